/*
 * watch.h - who is called when a descriptor has something. Embedded in its owner, named by the
 * epoll entry. Events are taken one at a time, so an owner may free itself and others in `ready`:
 * no later event of a batch can name what is gone.
 */
#ifndef DAEMON_WATCH_H
#define DAEMON_WATCH_H

#include <stdint.h>

struct daemon;

struct watch {
    void (*ready)(struct daemon *d, struct watch *w, uint32_t events);
};

/* Level-triggered, readable and hang-up. 0 or -errno. */
int watch_add(struct daemon *d, int fd, struct watch *w);
/* From now on nothing but the hang-up. */
void watch_hangup(struct daemon *d, int fd, struct watch *w);
void watch_remove(struct daemon *d, int fd);

#endif
