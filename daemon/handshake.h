/*
 * handshake.h - HELLO and WELCOME: who is there, may they come in, and the answer.
 */
#ifndef DAEMON_HANDSHAKE_H
#define DAEMON_HANDSHAKE_H

#include "daemon/options.h"
#include "shm/message.h"

#include <sys/types.h>

struct daemon;

/* The identity at connect time, as the kernel keeps it. */
struct peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};

bool peer_identify(int fd, struct peer *p);
bool peer_is_owner(const struct peer *p); /* the daemon's own user, or root */
bool peer_allowed(const struct options *o, int fd, const struct peer *p);
/* A pidfd of the process that connected. -ESRCH: the kernel gives none, hang-up alone tells; else
 * -errno: there is no descriptor or memory for it. */
int peer_pidfd(int fd, const struct peer *p);

/* 0, or PFX_E* and a sentence: size, magic, versions, strings. `n` is the packet's true length. */
int hello_check(const struct hello *h, size_t n, char *why, size_t n_why);
/* Its layout against ours, field by field: 0, or PFX_EMISMATCH and the field with both values. */
int hello_compare(const struct wire_layout *ours, const struct wire_layout *theirs, char *why,
                  size_t n_why);

/* What a welcome says about the daemon; the caller adds its own. */
struct welcome welcome_of(const struct daemon *d);
bool welcome_send(int fd, const struct welcome *w, const int *fds, unsigned n_fds);
/* A refusal, logged, but no more than some in some seconds: everybody may be refused. The
 * descriptor stays the caller's. */
void welcome_refuse(struct daemon *d, int fd, const struct peer *p, int status, const char *why);

/* Text of a stranger, fit for a log line and for JSON: what is not printable UTF-8 becomes '?'. */
void text_clean(char *to, const char *from, size_t n);

#endif
