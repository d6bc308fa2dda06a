/*
 * stand.h - a private daemon for a hybrid model, and workers of it.
 */
#ifndef HYBRID_STAND_H
#define HYBRID_STAND_H

#include "tests/harness.h"
#include "tests/hybrid/engine.h"

struct pool_sizes {
    uint32_t n_blocks, n_slots, swap_slots; /* swap_slots 0: no lower tier */
    const char *alpha;                      /* NULL: the default           */
};

struct daemon_options {
    char text[6][24];
    const char *argv[20]; /* for host_start and host_again */
};
void daemon_options(struct daemon_options *o, const struct hybrid *m, const struct pool_sizes *p);

/* group NULL: one of its own. Fails the test if it cannot. */
void worker_attach(struct engine *e, const struct host *h, const struct hybrid *m,
                   const char *group);

struct pfx_stats worker_stats(const struct engine *e);

/* No lease is left, no page or slot is anybody's private: all slots can be had at once, which
 * leaves the cache without resident states. */
void nothing_is_held(const struct engine *e);

#endif
