/*
 * twin.h - one stream of calls, twice: asynchronous on one daemon, synchronous on another.
 *
 *      call i  --submit-->  daemon A   ... completion i, some time later, in order
 *              --call---->  daemon B   its result is what completion i must say
 *
 * The stream works on a few families of sequences. A family has one lease at a time, which is known
 * on A only when its lookup has completed. Now and then daemon A is stopped, so that calls pile up.
 */
#ifndef TESTS_CLIENT_TWIN_H
#define TESTS_CLIENT_TWIN_H

#include "tests/client/fixture.h"

enum {
    FAMILIES = 12,
    FAMILY_TOKENS = 12000,
    TWIN_BT = 16,
    TWIN_BLOCKS = 40000,
    TWIN_LOG = 1 << 12,
};

enum twin_kind {
    TWIN_LOOKUP,
    TWIN_RESERVE,
    TWIN_INSERT,
    TWIN_TRUNCATE,
    TWIN_FETCH,
    TWIN_RELEASE,
    TWIN_SPACE
};

/* What completion i must say. */
struct expected {
    enum twin_kind kind;
    int status;
    uint32_t family;
    bool cancelled;
    struct pfx_match match; /* counts only */
    struct pfx_insert_result insert;
    uint32_t n_ids;
};

struct family {
    enum { NO_LEASE, ASKED, OPEN } state;
    uint64_t a, b; /* the lease on either side */
    uint32_t table;
    uint32_t tokens[FAMILY_TOKENS];
    struct pfx_extra extras[3];
    size_t n_extras;
};

struct twin {
    struct host ha, hb;
    pfx *a, *b;
    int fd; /* of a, or -1 */
    bool stopped;
    struct rng rng;
    struct family family[FAMILIES];
    struct expected log[TWIN_LOG];
    uint64_t submitted, taken; /* tags count up */
    unsigned cancelled, full, flushes, largest_backlog;
};

void twin_open(struct twin *t);
void twin_step(struct twin *t);  /* one random call, or a look for completions */
void twin_close(struct twin *t); /* takes what is left and compares both daemons */

/* twin_check.c: take completions, at most `max`, for at most ms, and compare them. */
void twin_take(struct twin *t, unsigned max, int ms);

#endif
