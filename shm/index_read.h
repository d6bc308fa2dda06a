/*
 * index_read.h - the read-only walk over the shared index, for workers, tools and the daemon.
 *
 * A reader takes no lock, writes nothing and leaves no trace, so its death needs no clean-up. It
 * may run while the daemon changes what it reads, or while the daemon is stopped in the middle of
 * a change. What makes its answers right stands at the top of index_read.c.
 *
 * Results grant no right: a block id counts only while a lease holds its path.
 */
#ifndef SHM_INDEX_READ_H
#define SHM_INDEX_READ_H

#include "shm/layout.h"
#include "shm/message.h"

/* A mapped index region and our private copy of its geometry. */
struct index_view {
    const uint8_t *base;
    const struct index_header *header;
    struct index_params params;
    struct index_plan plan;
    uint64_t epoch;
};

/* What is looked for. Extras are ascending and disjoint, at + len does not overflow. */
struct index_query {
    const uint32_t *tokens;
    size_t n_tokens; /* where it ends, counted from the start of the sequence */
    const struct wire_extra *extras;
    size_t n_extras;
    uint64_t first; /* position of tokens[0]: 0, or where this piece of a sequence begins */
};

struct index_found {
    struct place where; /* deepest node reached and the depth matched in it */
    uint32_t root;
    bool ask; /* the walk gave up early (collisions, a change that never ended):
                 more may be cached than was found, the daemon knows */
};

/* False: not an index region of our format, or its geometry does not fit its size. */
bool index_view_init(struct index_view *view, const void *base, uint64_t bytes);

/* Match at most `limit` blocks from the root down. False: the space is not there. */
bool index_walk(const struct index_view *view, uint64_t space, const struct index_query *query,
                uint32_t limit, struct index_found *found);

/* The block and disk ids of positions [from, to) of the path to `where` (either may be NULL),
 * by climbing from its node: no token is compared, so the path must be held, or the answer be
 * checked otherwise. False if the place is gone. */
bool index_path_ids(const struct index_view *view, struct place where, uint32_t from, uint32_t to,
                    uint32_t *pages, uint32_t *disks);

/* Do the query's n_tokens, which end in or before block where.depth - 1, and the extras of its
 * whole blocks agree with that path? 1: yes; 0: no; -1: the place is gone. */
int index_path_agrees(const struct index_view *view, struct place where,
                      const struct index_query *query);

/* The longest tail, in tokens, that a candidate shares with `rest` after the place. */
uint32_t index_tail_tokens(const struct index_view *view, struct place where,
                           const uint32_t *rest, uint32_t n_rest);

/* The query's first extra that ends after token `at`. */
size_t index_extras_from(const struct index_query *query, uint64_t at);

/* Of `n_rest` tokens after depth `from` (tokens), how many may be compared for a tail: an extra
 * that starts inside ends it. */
uint32_t index_tail_limit(const struct index_query *query, uint64_t from, uint32_t n_rest);

/* ---- shared with the daemon's writers ------------------------------------------ */

static inline const struct index_node *index_node_at(const struct index_view *v, uint32_t id)
{
    return (const struct index_node *)(const void *)(v->base + v->plan.nodes) + id;
}

static inline const struct index_space *index_space_at(const struct index_view *v, uint32_t slot)
{
    return (const struct index_space *)(const void *)(v->base + v->plan.spaces) + slot;
}

static inline const struct index_bucket *index_bucket_at(const struct index_view *v, uint32_t i)
{
    return (const struct index_bucket *)(const void *)(v->base + v->plan.buckets) + i;
}

static inline const uint32_t *index_tokens_at(const struct index_view *v, uint32_t unit)
{
    return (const uint32_t *)(const void *)(v->base + v->plan.tokens) +
           (uint64_t)unit * v->params.block_tokens;
}

static inline const uint32_t *index_pages_at(const struct index_view *v, uint32_t unit)
{
    return (const uint32_t *)(const void *)(v->base + v->plan.pages) + unit;
}

static inline const uint32_t *index_disks_at(const struct index_view *v, uint32_t unit)
{
    return (const uint32_t *)(const void *)(v->base + v->plan.disks) + unit;
}

static inline const uint32_t *index_extra_head_at(const struct index_view *v, uint32_t unit)
{
    return (const uint32_t *)(const void *)(v->base + v->plan.extra_heads) + unit;
}

static inline const struct index_extra *index_extra_at(const struct index_view *v, uint32_t id)
{
    return (const struct index_extra *)(const void *)(v->base + v->plan.extras) + id;
}

static inline const struct index_snapshot *index_snapshot_at(const struct index_view *v,
                                                             uint32_t id)
{
    return (const struct index_snapshot *)(const void *)(v->base + v->plan.snapshots) + id;
}

static inline const uint32_t *index_residue_at(const struct index_view *v, uint32_t id)
{
    return (const uint32_t *)(const void *)(v->base + v->plan.residues) +
           (uint64_t)id * v->params.block_tokens;
}

/* The query's tokens from the block at `depth` on. */
static inline const uint32_t *index_query_at(const struct index_view *v,
                                             const struct index_query *q, uint32_t depth)
{
    return q->tokens + ((uint64_t)depth * v->params.block_tokens - q->first);
}

/* Where a child stands: hash of (parent, tokens of its first block), keyed by the epoch's seed. */
uint64_t index_child_hash(const struct index_view *v, uint32_t parent, const uint32_t *tokens);

/* Leading blocks, at most n, of the run in units from `unit` (its first at path depth `depth`) that
 * equal the query, extras included. `stored`: the node has NODE_EXTRAS. */
uint32_t index_run_match(const struct index_view *v, bool stored, uint32_t unit, uint32_t depth,
                         uint32_t n, const struct index_query *query);

/* Tokens, at most n, of the stored block in `unit` that may serve as a tail: up to its own first
 * extra that starts in it. (One that started earlier touches the block before, and was compared
 * there.) They are its key in the order of children. */
uint32_t index_key_length(const struct index_view *v, bool stored, uint32_t unit, uint32_t depth,
                          uint32_t n);

#endif
