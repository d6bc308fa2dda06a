/*
 * backend.h - two ways to the real thing, behind the same calls:
 *
 *   local    the daemon's functions in this process, a session a connection, records built here as
 *            the library builds them; lookups go now the fast way, now the slow one, in pieces;
 *            spilled snapshots go to a tier of the test's own (trial_tier.h)
 *   remote   the library and a prefixd of its own
 */
#ifndef TESTS_BACKEND_H
#define TESTS_BACKEND_H

#include "client/prefixd.h"
#include "tests/harness.h"
#include "tests/model/model.h"

/* What pfx_stats does not show. */
struct backend_details {
    uint64_t slots_free, slots_private;
    uint64_t resaved, swept, dropped; /* ends of spilled snapshots */
    uint64_t blobs;                   /* that the tier has */
};

struct backend {
    void *self;
    void (*attach)(void *self, int conn, const char *group);
    void (*detach)(void *self, int conn, bool clean);
    int (*space_open)(void *self, int conn, const struct pfx_space_desc *desc, pfx_space *out);
    int (*space_close)(void *self, int conn, pfx_space space);
    int (*flush)(void *self, int conn, pfx_space space);
    int (*lookup)(void *self, int conn, const struct pfx_lookup_args *args, struct pfx_match *out);
    int (*fetch)(void *self, int conn, uint64_t lease, struct pfx_match *out);
    int (*reserve)(void *self, int conn, uint64_t lease, uint32_t n, uint32_t *blocks);
    int (*truncate)(void *self, int conn, uint64_t lease, uint32_t n);
    int (*insert)(void *self, int conn, uint64_t lease, const struct pfx_insert_args *args,
                  uint32_t *canonical, struct pfx_insert_result *out);
    int (*release)(void *self, int conn, uint64_t lease);
    int (*snapshot_reserve)(void *self, int conn, uint64_t lease, uint32_t *slot);
    int (*snapshot_insert)(void *self, int conn, uint64_t lease, uint32_t slot, uint32_t depth,
                           int kind);
    int (*snapshot_cancel)(void *self, int conn, uint64_t lease, uint32_t slot);
    int (*snapshot_drop)(void *self, int conn, uint64_t lease);
    int (*snapshot_evict)(void *self, int conn);
    int (*snapshot_spill)(void *self, int conn, uint32_t min_tokens, struct pfx_spilled *out);
    int (*snapshot_forget)(void *self, int conn, uint64_t key);
    uint8_t *(*slot)(void *self, int conn, uint32_t slot); /* its STATE_BYTES */
    int (*evict)(void *self, int conn, uint32_t n, struct pfx_evicted *out);
    ssize_t (*peek)(void *self, int conn, const struct pfx_lookup_args *args,
                    struct pfx_peeked *out);
    void (*stats)(void *self, struct pfx_stats *out);
    void (*details)(void *self, struct backend_details *out); /* NULL: nobody can say */
    void (*audit)(void *self);
    bool kills; /* detach can be unclean */
    void (*free)(void *self);
};

/* fates: what becomes of the transfers of the tier. */
struct backend backend_local(const struct model_config *config, uint64_t hash_mask, uint64_t seed,
                             struct fates *fates);
struct backend backend_remote(const struct model_config *config, uint32_t block_bytes);

#endif
