/*
 * index_private.h - what the files index*.c share: the private half of the tree.
 *
 *   shared (shm/layout.h)              private (here)
 *   node: run, identity, treap links   node: holds, counts, treap up-link, place in the ranking
 *   unit: tokens, page, disk, extra    unit: last use, ends of holds; or links of a free extent
 *
 * Rules that the audit checks:
 *   CAP     a node owns at least n_blocks and at most 2 x n_blocks units
 *   HELD    a node's held prefix is all of it if a child is held, else up to its deepest end; a
 *           node is held if that is not 0; `pinned` is the sum of held prefixes
 *   HUNG    a snapshot hangs on the node that covers its last whole block, or on the root
 *   RANKED  exactly the leaves whose last block is not held, below live roots, are in the heap
 */
#ifndef DAEMON_INDEX_PRIVATE_H
#define DAEMON_INDEX_PRIVATE_H

#include "daemon/index.h"

struct node_private {
    struct hold *holds;     /* those that end in this run */
    uint32_t n_children;
    uint32_t held_children;
    uint32_t up;            /* treap: my parent among my siblings, 0: I am the top */
    uint32_t min_page;      /* treap: lowest first page in my subtree, and whose it is */
    uint32_t min_node;
    uint32_t ranked;        /* 1 + place in the heap; 0: not there */
    uint8_t max_end;        /* blocks of the run up to the deepest end of a hold */
    uint8_t cap;            /* units owned */
    uint8_t condemned;      /* of a root */
    uint32_t reap_at;       /* of a condemned root: next node of the walk; 0: over */
};

struct unit_private {
    union {
        uint64_t last_use; /* of the block, by a lookup or insert that ended here */
        struct {
            uint32_t next, prev; /* of a free extent: in the list of its order */
        } free;
    };
    uint32_t ends;       /* holds that end with this block */
    uint32_t free_order; /* 1 + order of the free extent that begins here; 0: none does */
};

struct ranked {
    uint64_t rank;
    uint32_t node;
    uint32_t reserved;
};

enum { EXTENT_ORDERS = 7 }; /* 1, 2, 4 .. 64 units */

struct index {
    struct index_view view;
    struct pool *pool;
    const struct policy *policy;
    void (*emptied)(void *arg, uint32_t space);
    void *emptied_arg;
    void (*gone)(void *arg, uint32_t snapshot, bool evicted);
    void *gone_arg;

    struct node_private *nodes;
    struct unit_private *units;
    struct ranked *heap;
    uint32_t n_heap;

    uint32_t free_node;  /* list through node_private.up */
    uint32_t node_top;   /* ids from here on were never used */
    uint32_t n_nodes;    /* with blocks; roots apart */
    uint32_t free_extra; /* list through index_extra.next */
    uint32_t extra_top;
    uint32_t n_extras;
    uint32_t free_extent[EXTENT_ORDERS]; /* 1 + first unit; 0: none */
    uint32_t unit_top;   /* units from here on were never used */
    uint32_t n_units_owned;
    uint32_t n_snapshots; /* that hang on nodes */

    uint64_t identity;   /* the last one given */
    uint64_t clock;      /* the last use given */
    uint64_t work; /* see index_work */
    uint32_t pinned, cached;
};

/* ---- index.c ---- */

static inline struct index_node *node_at(const struct index *ix, uint32_t id)
{
    return (struct index_node *)(uintptr_t)index_node_at(&ix->view, id);
}

static inline struct node_private *priv_at(const struct index *ix, uint32_t id)
{
    return &ix->nodes[id];
}

static inline uint32_t *pages_at(const struct index *ix, uint32_t unit)
{
    return (uint32_t *)(uintptr_t)index_pages_at(&ix->view, unit);
}

static inline uint32_t *disks_at(const struct index *ix, uint32_t unit)
{
    return (uint32_t *)(uintptr_t)index_disks_at(&ix->view, unit);
}

static inline uint32_t *extra_head_at(const struct index *ix, uint32_t unit)
{
    return (uint32_t *)(uintptr_t)index_extra_head_at(&ix->view, unit);
}

static inline struct index_extra *extra_at(const struct index *ix, uint32_t id)
{
    return (struct index_extra *)(uintptr_t)index_extra_at(&ix->view, id);
}

static inline bool node_is_root(const struct index_node *n)
{
    return n->flags & NODE_ROOT;
}

static inline bool node_condemned(const struct index *ix, uint32_t id)
{
    return ix->nodes[node_at(ix, id)->root].condemned;
}

/* Bracket every change of a node, or of what its readers read under its version. */
void node_begin(struct index *ix, uint32_t id);
void node_end(struct index *ix, uint32_t id);

uint32_t node_new(struct index *ix); /* left begun: fill it in, then node_end */
void node_free(struct index *ix, uint32_t id);
void node_new_identity(struct index *ix, uint32_t id); /* inside begin/end; holds follow */

void bucket_add(struct index *ix, uint32_t id);
void bucket_remove(struct index *ix, uint32_t id);

/* The query's extras that touch the block at `depth`, stored for `unit`; and their end. */
void extras_store(struct index *ix, uint32_t unit, uint32_t depth, const struct index_query *q);
void extras_drop(struct index *ix, uint32_t unit);
/* Put one at the end of a list, whose last link this is; returns the new last link. */
uint32_t *extra_append(struct index *ix, uint32_t *link, const struct wire_extra *x);
void extra_list_free(struct index *ix, uint32_t id);
/* A live root without anything below it or on it: its space is told. */
void root_settle(struct index *ix, uint32_t root);

/* ---- index_extent.c ---- */

/* At most `want` (1..64) units in one run; *got says how many, at least 1. */
uint32_t extent_take(struct index *ix, uint32_t want, uint32_t *got);
void extent_give(struct index *ix, uint32_t first, uint32_t count);
unsigned extent_audit(const struct index *ix, audit_find *find, void *arg);

/* ---- index_children.c ---- (inside begin/end of the parent) */

void children_add(struct index *ix, uint32_t parent, uint32_t id);
void children_remove(struct index *ix, uint32_t parent, uint32_t id);
uint32_t children_first(const struct index *ix, uint32_t parent);
uint32_t children_next(const struct index *ix, uint32_t id); /* 0: it was the last */
unsigned children_audit(const struct index *ix, uint32_t parent, audit_find *find, void *arg);

/* ---- index_hold.c ---- */

uint32_t held_prefix(const struct index *ix, uint32_t id);
/* The held prefix of `id` was `before`; settle pinned, its ancestors and its ranking. */
void held_settle(struct index *ix, uint32_t id, uint32_t before);
void hold_link(struct index *ix, struct hold *h);
void hold_unlink(struct index *ix, struct hold *h);

/* ---- index_rank.c ---- */

void rank_leaf(struct index *ix, uint32_t id); /* put in, take out or move, as RANKED says */
void rank_remove(struct index *ix, uint32_t id);
uint32_t rank_lowest(const struct index *ix);  /* 0: none is evictable */
uint64_t rank_second(const struct index *ix);  /* the next one's rank; UINT64_MAX: none */
unsigned rank_audit(const struct index *ix, audit_find *find, void *arg);

/* ---- index_snapshot.c ---- what hangs on nodes */

/* Inside begin/end of the nodes. `upper` is the new front of `lower`: what is not deeper than its
 * end moves there. */
void hung_split(struct index *ix, uint32_t upper, uint32_t lower);
void hung_merge(struct index *ix, uint32_t upper, uint32_t lower); /* all moves to lower */
/* All with more than `keep` whole blocks of the node leaves. The owner is told of the list when all
 * versions are even again. */
uint32_t hung_cut(struct index *ix, uint32_t id, uint32_t keep);
void hung_tell(struct index *ix, uint32_t list, bool evicted);

/* Not inside: all leaves, and its owner is told. Returns how many. */
uint32_t hung_leave(struct index *ix, uint32_t id);

/* `seen` by entry. Counts them and their extras. */
unsigned hung_audit(const struct index *ix, uint32_t node, uint8_t *seen, uint64_t *count,
                    uint64_t *extras, audit_find *find, void *arg);

/* ---- index_change.c ---- */

/* The node after `id` in the walk of index_reap: children before their parent. */
uint32_t index_reap_next(const struct index *ix, uint32_t id);

/* Cut a leaf to its first `keep` blocks (0: it goes). last_use: of the youngest block cut. */
void node_truncate(struct index *ix, uint32_t id, uint32_t keep, uint64_t last_use);

#endif
