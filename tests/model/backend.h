/*
 * backend.h - two ways to the real thing, behind the same calls:
 *
 *   local    the daemon's functions in this process, a session a connection, records built here as
 * the library builds them; lookups go now the fast way, now the slow one, in pieces remote   the
 * library and a prefixd of its own
 */
#ifndef TESTS_BACKEND_H
#define TESTS_BACKEND_H

#include "client/prefixd.h"
#include "tests/harness.h"

struct backend {
    void *self;
    void (*attach)(void *self, int conn, const char *group);
    void (*detach)(void *self, int conn, bool clean);
    int (*space_open)(void *self, int conn, const struct pfx_space_desc *desc, pfx_space *out);
    int (*space_close)(void *self, int conn, pfx_space space);
    int (*flush)(void *self, int conn, pfx_space space);
    int (*lookup)(void *self, int conn, const struct pfx_lookup_args *args, struct pfx_match *out);
    int (*reserve)(void *self, int conn, uint64_t lease, uint32_t n, uint32_t *blocks);
    int (*truncate)(void *self, int conn, uint64_t lease, uint32_t n);
    int (*insert)(void *self, int conn, uint64_t lease, const struct pfx_insert_args *args,
                  uint32_t *canonical, struct pfx_insert_result *out);
    int (*release)(void *self, int conn, uint64_t lease);
    int (*evict)(void *self, int conn, uint32_t n, struct pfx_evicted *out);
    ssize_t (*peek)(void *self, int conn, const struct pfx_lookup_args *args,
                    struct pfx_peeked *out);
    void (*stats)(void *self, struct pfx_stats *out);
    void (*audit)(void *self);
    bool kills; /* detach can be unclean */
    void (*free)(void *self);
};

struct backend backend_local(uint32_t block_tokens, uint32_t n_blocks, uint64_t hash_mask,
                             uint64_t seed);
struct backend backend_remote(uint32_t block_tokens, uint32_t n_blocks);

#endif
