/* async.h - the scene of the asynchronous tests: a small daemon and one worker. */
#ifndef TESTS_CLIENT_ASYNC_H
#define TESTS_CLIENT_ASYNC_H

#include "tests/client/fixture.h"

/* 64 blocks of 4; "aaaabbbb" is cached; look and in are of "aaaabbbbccccdd". */
struct async {
    struct host h;
    struct worker w;
    pfx *c;
    struct seq s;
    struct pfx_lookup_args look;
    struct pfx_insert_args in; /* PFX_FINAL */
};

void async_open(struct async *a);
void async_close(struct async *a); /* no completion, lease or private block may be left */

/* The completion has these results, and none of another call. */
void only(const struct pfx_completion *k, bool match, bool insert, uint32_t n_ids);

#endif
