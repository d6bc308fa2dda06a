/*
 * model.h - the cache as the documents describe it, too simple to be wrong: a list of blocks, each
 * with its whole prefix, a list of snapshots, each with its own, and loops over them. No tree, no
 * hash, no heap, no counts kept anywhere.
 *
 *   block     the tokens (and extras) from the start of its sequence to its end, its page, and
 *             when it was last used; a partial block is one whose length is no multiple of
 *             block_tokens
 *   held      some lease's path, tail or partial block begins with it
 *   leaf      no other block's prefix begins with its own
 *   victim    the leaf that is not held and was used longest ago
 *   snapshot  see model_snapshot.c
 *
 * Every call returns what pfx_* would. Page ids, slots and tier keys are the daemon's choice: the
 * model is told them, and checks that a page or slot was free, and that no key was used before.
 */
#ifndef TESTS_MODEL_H
#define TESTS_MODEL_H

#include "client/prefixd.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KEY_MAX = 48,
    KEY_EXTRAS = 4,
    MODEL_BLOCKS = 64,
    MODEL_LEASES = 16,
    MODEL_SPACES = 3,
    MODEL_CONNS = 4,
    MODEL_SNAPSHOTS = 48,
    MODEL_SLOTS = 24,
    MODEL_SESSIONS = 4,
    MODEL_TRANSFERS = 8,
    MODEL_NAMES = 1 << 16,
    STATE_BYTES = 64, /* of a snapshot slot */
};

/* A sequence from its start: tokens, and the extras that begin before its end. */
struct key {
    uint32_t n, n_extras;
    uint32_t token[KEY_MAX];
    struct pfx_extra extra[KEY_EXTRAS];
};

struct model_block {
    bool used;
    uint32_t root; /* a life of a space: flushing it begins another */
    uint32_t page;
    uint64_t stamp;
    struct key key;
};

/* A state after the tokens of a prefix. It is there while it can be found, or a lease holds it. */
struct model_snapshot {
    bool used;
    bool gone; /* nobody finds it any more */
    bool lost; /* its bytes are proven gone */
    bool tiered;
    int space;
    uint32_t root;
    uint64_t session; /* who saved it */
    int kind;
    uint32_t slot; /* resident; 0: not told yet */
    uint64_t name; /* tiered: its key in the tier; 0: not told yet */
    uint64_t stamp;
    struct key key;
};

/* What becomes of the transfers of one operation, in the order in which they are asked for; decided
 * before it, so that the daemon's tier and the model read the same. */
enum fate { FATE_DONE, FATE_MISS, FATE_ERROR, FATE_REFUSED };
struct fates {
    enum fate put[MODEL_TRANSFERS], get[MODEL_TRANSFERS];
    uint32_t n_put, n_get; /* used up */
};

struct model_lease {
    bool used, final;
    int group, opener; /* opener -1: its connection has died */
    int space;
    uint64_t session;
    uint32_t root;
    struct key path;   /* what is held: whole blocks */
    int tail, partial; /* blocks, -1: none */
    uint32_t tail_tokens;
    struct key written; /* by its latest insert that ended inside a block of its table; n 0: none */
    int resident, tiered; /* snapshots it was offered and holds, -1: none */
    uint32_t n_slots, slot[MODEL_SLOTS];
    uint32_t matched; /* blocks */
    bool inserted;    /* whole blocks beyond `matched` were published by this lease */
    uint32_t final_written, final_position;
    uint32_t n_pages, page[MODEL_BLOCKS]; /* positions from `matched` on */
    bool published[MODEL_BLOCKS];
};

struct model_conn {
    bool used;
    int group;
    uint32_t opens[MODEL_SPACES];
};

struct model_config {
    uint32_t block_tokens, n_blocks;
    uint32_t n_slots, n_tier;
    uint32_t spill_min; /* --spill-min-tokens */
    double alpha;
};

struct model {
    uint32_t bt, n_blocks;
    struct model_config config;
    uint64_t clock;
    uint32_t last_root;
    uint32_t root[MODEL_SPACES];
    struct model_block block[MODEL_BLOCKS];
    struct model_lease lease[MODEL_LEASES];
    struct model_conn conn[MODEL_CONNS];
    struct pfx_stats count; /* the fields that only count up */

    struct model_snapshot snapshot[MODEL_SNAPSHOTS];
    uint64_t uses; /* the clock of snapshots */
    uint64_t session_stamp[MODEL_SPACES][MODEL_SESSIONS];
    int live_space;
    uint64_t live_session;
    uint32_t live_evictions;          /* since its latest use */
    uint64_t resaved, swept, dropped; /* how spilled ones came to an end */
    uint64_t name[MODEL_NAMES];       /* all keys that were told */
    uint32_t n_names;
    struct fates *fates;
};

void model_init(struct model *m, const struct model_config *config);

void model_attach(struct model *m, int conn, int group);
void model_detach(struct model *m, int conn, bool clean);

int model_space_open(struct model *m, int conn, int space);
int model_space_close(struct model *m, int conn, int space);
int model_flush(struct model *m, int space); /* -1: all */

struct model_ask {
    int space;
    uint32_t flags, max_match, multiple, snapshot_multiple;
    uint64_t session;
    struct key query;
};
struct model_found {
    uint32_t matched, tail_tokens, tail_block; /* tokens, tokens, page */
    uint32_t blocks[MODEL_BLOCKS];
    int resident, tiered; /* snapshots, -1: none */
};
/* What a lookup finds; takes and counts nothing. */
void model_find(const struct model *m, const struct model_ask *ask, struct model_found *out);
/* The lookup itself: PFX_E*, or the index of a new lease. */
int model_lookup(struct model *m, int conn, const struct model_ask *ask, struct model_found *out);

/* Evicts what must go; the pages come by model_take after the daemon has chosen them. */
int model_reserve(struct model *m, int conn, int lease, uint32_t n);
void model_take(struct model *m, int lease, const uint32_t *pages, uint32_t n);
int model_truncate(struct model *m, int conn, int lease, uint32_t n);
int model_insert(struct model *m, int conn, int lease, const struct key *written, bool final,
                 uint32_t *canonical, struct pfx_insert_result *out);
int model_release(struct model *m, int conn, int lease);
int model_fetch(struct model *m, int conn, int lease, struct model_found *out);
uint32_t model_evict(struct model *m, uint32_t n);

uint32_t model_table(const struct model_lease *l);
uint32_t model_held(const struct model *m, const struct model_lease *l); /* blocks of the path */
/* All counters but `nodes`, which is the tree's own business. */
struct pfx_stats model_stats(const struct model *m);

/* ---- snapshots ---- */

/* The slot comes by model_take_slot after the daemon has chosen it. */
int model_snapshot_reserve(struct model *m, int conn, int lease);
void model_take_slot(struct model *m, int lease, uint32_t slot);
int model_snapshot_insert(struct model *m, int conn, int lease, uint32_t slot, uint32_t depth,
                          int kind);
int model_snapshot_cancel(struct model *m, int conn, int lease, uint32_t slot);
int model_snapshot_drop(struct model *m, int conn, int lease);
int model_snapshot_evict(struct model *m);
/* *spilled: the one that is in the tier now, -1: it was dropped. */
int model_snapshot_spill(struct model *m, uint32_t min_tokens, int *spilled, uint32_t *depth);
int model_snapshot_forget(struct model *m, uint64_t name);

/* The daemon says which slot, or which key, a snapshot has: it was free, or never used, or is what
 * it said before. */
void model_tell_slot(struct model *m, int snapshot, uint32_t slot);
void model_tell_name(struct model *m, int snapshot, uint64_t name);

/* The prefix that a snapshot of this depth would stand for; false: PFX_ECONFLICT. */
bool model_prefix(const struct model *m, const struct model_lease *l, uint32_t depth,
                  struct key *prefix);
uint32_t model_slots_free(const struct model *m);
uint32_t model_slots_private(const struct model *m);
uint32_t model_blobs(const struct model *m); /* of snapshots that are there */
bool model_findable(const struct model *m, int snapshot);

/* What stands in a slot after these tokens: a function of the life of the space, the prefix, and
 * whose tail it is (0: anybody's). */
void state_bytes(uint32_t life, const struct key *prefix, uint64_t tail_of,
                 uint8_t bytes[STATE_BYTES]);

/* ---- between model.c, model_lease.c and model_snapshot.c ---- */
bool key_begins(const struct key *whole, const struct key *start);
struct key key_cut(const struct key *k, uint32_t n);
int model_block_find(const struct model *m, uint32_t root, const struct key *key);
int model_block_add(struct model *m, uint32_t root, const struct key *key, uint32_t page);
void model_stamp(struct model *m, uint32_t root, const struct key *path);
void model_reap(struct model *m); /* condemned blocks that nobody holds */
/* The best copy source after `path`, sharing [path->n, end) of query: its block or -1. */
int model_tail(const struct model *m, uint32_t root, const struct key *query, uint32_t from,
               uint32_t end, uint32_t *shared);
uint32_t key_extra_after(const struct key *k, uint32_t from, uint32_t end);
bool model_live_root(const struct model *m, uint32_t root);
/* The lease, if this connection may change it. */
struct model_lease *model_mine(struct model *m, int conn, int lease, bool release_only);

/* The deepest of each kind of place that a query matched down to `end` can go on from. */
void model_offers(const struct model *m, const struct model_ask *ask, uint32_t end,
                  struct model_found *out);
/* A lookup holds what it was offered, stamps and counts it. */
void model_snapshot_lookup(struct model *m, struct model_lease *l, const struct model_ask *ask,
                           struct model_found *out);
/* Bring what the lease was offered up: 0, PFX_ENOSPC, PFX_EIO. */
int model_bring(struct model *m, struct model_lease *l);
void model_snapshot_orphans(struct model *m); /* whose prefix was evicted */
void model_snapshot_flush(struct model *m);   /* whose space was */
void model_snapshot_reap(struct model *m);    /* gone, and nobody holds them */

#endif
