/* attach.h - what attach.c and handshake.c share. */
#ifndef CLIENT_ATTACH_H
#define CLIENT_ATTACH_H

#include "client/client.h"

enum { FDS_MAX = 3 + DEVICES_MAX };

/* Descriptors of WELCOME: request, completion, index, then each device's pool. */
struct received {
    int fd[FDS_MAX];
    unsigned n;
};

/* Keep a sentence for pfx_why(NULL), in this thread, and return the status. */
int refuse(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *refuse_why(void);

int socket_open(struct pfx *c, const struct pfx_options *o); /* into c->fd, which pfx_free closes */
int handshake(struct pfx *c, const struct hello *h, struct welcome *w, struct received *r);
bool welcome_right(const struct welcome *w, unsigned n_fds);
void received_close(struct received *r);

#endif
