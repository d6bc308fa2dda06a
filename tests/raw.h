/*
 * raw.h - a worker without the library: it speaks the protocol through the headers of shm/ and may
 * say anything. Nothing here checks what it sends.
 */
#ifndef TESTS_RAW_H
#define TESTS_RAW_H

#include "shm/index_read.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "tests/harness.h"

struct raw {
    int fd; /* the control socket */
    struct welcome welcome;
    int fds[3 + DEVICES_MAX]; /* as WELCOME brought them */
    unsigned n_fds;
    struct segment request, completion, index, pool;
    struct channel_words *words;      /* our region: writable */
    const struct channel_words *peer; /* the daemon's */
    uint8_t *arena;                   /* request arena */
    const uint8_t *answers;           /* completion arena */
    struct ring_writer out;
    struct ring_reader in;
    uint32_t answered; /* of the daemon's doze word */
    struct index_view view;
    uint32_t tag;
};

/* Connect the socket and no more. */
int raw_connect(const struct host *h);
struct hello raw_hello(const char *name);
/* Send it and take the WELCOME with its descriptors. False: the daemon closed instead. */
bool raw_greet(struct raw *r, const struct host *h, const struct hello *hello);
void raw_map(struct raw *r);
void raw_open(struct raw *r, struct host *h, const char *name); /* all of it */
void raw_close(struct raw *r);

/* Post a record and wake the daemon if it sleeps. False: the ring is full. */
bool raw_post(struct raw *r, const struct request *rq);
/* The next completion within ms; false: none. */
bool raw_take(struct raw *r, struct wire_completion *out, int ms);
/* Both; fails the test without an answer. */
struct wire_completion raw_call(struct raw *r, struct request rq);
/* Did the daemon end the session (hang-up) within ms? */
bool raw_ended(struct raw *r, int ms);

/* An empty lease by LOOKUP with RF_NO_MATCH in the base space, and n reserved pages in it. */
uint64_t raw_lease(struct raw *r);
struct wire_completion raw_reserve(struct raw *r, uint64_t lease, uint32_t n);

#endif
