/*
 * index_private.h - what the files index*.c share: the private half of the tree.
 *
 *   shared (shm/layout.h)              private (here)
 *   node: run, identity, treap links   node: holds, counts, treap up-link, place in the ranking
 *   unit: tokens, page, disk, extra    unit: last use, ends of holds; or links of a free extent
 *
 * Rules that the audit checks:
 *   RES     along every path the blocks on the device come first: in a node, the first `device` of
 *           its run; a child has some only if its parent has all
 *   DISK    the same for blocks with a committed copy on disk; and each block is in one of the two
 *   CAP     a node owns at least n_blocks and at most 2 x n_blocks units
 *   HELD    a node's held prefix is all of it if a child is held, else up to its deepest end; a
 *           node is held if that is not 0. Leases and transfers hold apart; what either holds is
 *           kept. `pinned` and `kept` count the blocks on the device in these prefixes
 *   HUNG    a snapshot hangs on the node that covers its last whole block, or on the root
 *   RANKED  below live roots, a node stands in
 *             RANK_PAGE   if it has blocks on the device, no child has, and the last is not kept
 *             RANK_COPY   the same for copies on disk
 *             RANK_DIRTY  if admitted blocks have no copy, no child has admitted ones, and no
 *                         transfer holds it
 *   ADMIT   a block is admitted if it is whole, on the device, and was seen often enough to be
 *           written (or all are). Along every path they come first; and what has a copy was seen as
 * often
 */
#ifndef DAEMON_INDEX_PRIVATE_H
#define DAEMON_INDEX_PRIVATE_H

#include "daemon/index.h"

enum rank_order { RANK_PAGE, RANK_COPY, RANK_DIRTY, RANKS };

struct node_private {
    struct hold *holds; /* those that end in this run */
    uint32_t n_children;
    uint32_t held_children; /* by leases */
    uint32_t up;            /* treap: my parent among my siblings, 0: I am the top */
    uint32_t min_page;      /* treap: lowest first page in my subtree, and whose it is */
    uint32_t min_node;
    uint32_t ranked;   /* 1 + place in the heap; 0: not there */
    uint8_t max_end;   /* blocks of the run up to the deepest end of a lease's hold */
    uint8_t cap;       /* units owned */
    uint8_t condemned; /* of a root */
    uint32_t reap_at;  /* of a condemned root: next node of the walk; 0: over */
};

/* The other half of a node, where there is a disk tier (index.tiers); without one all blocks are on
 * the device, and this costs no memory. */
struct node_tiers {
    uint32_t device_children, disk_children; /* that have blocks there */
    uint32_t io_children;                    /* held by transfers */
    uint32_t admitted_children;
    uint32_t ranked[RANKS]; /* RANK_PAGE is in node_private */
    uint8_t device, disk;   /* leading blocks of the run that are there */
    uint8_t io_end;         /* as max_end, of transfers */
    uint8_t writing;        /* blocks [disk, writing) are on their way; 0: none */
    uint8_t unwritable;
    uint8_t seen; /* leading blocks of the run that were seen often enough, where that is asked */
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
    struct node_tiers *tiers; /* NULL: no disk tier */
    uint16_t *io_ends;        /* by unit: transfers' holds that end with this block */
    uint8_t *seen;            /* by unit: how often, at most `admit`; where that is more than 1 */
    uint32_t admit;           /* blocks that were seen so often are written; 1: all */
    struct ranked *heap[RANKS];
    uint32_t n_heap[RANKS];
    void (*slot_gone)(void *arg, uint32_t disk);
    void *slot_gone_arg;

    uint32_t free_node;  /* list through node_private.up */
    uint32_t node_top;   /* ids from here on were never used */
    uint32_t n_nodes;    /* with blocks; roots apart */
    uint32_t free_extra; /* list through index_extra.next */
    uint32_t extra_top;
    uint32_t n_extras;
    uint32_t free_extent[EXTENT_ORDERS]; /* 1 + first unit; 0: none */
    uint32_t unit_top;                   /* units from here on were never used */
    uint32_t n_units_owned;
    uint32_t n_snapshots; /* that hang on nodes */

    uint64_t identity;     /* the last one given */
    uint64_t clock;        /* the last use given */
    uint64_t work;         /* see index_work */
    uint32_t pinned, kept; /* blocks on the device that leases, that leases or transfers hold */
    uint32_t cached;       /* blocks on the device */
    uint32_t on_disk;      /* blocks with a copy */
    uint32_t clean;        /* blocks that nobody keeps, and whose page can go without a write */
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

/* Leading blocks of the run that are on the device; that have a copy on disk. */
static inline uint32_t device_blocks(const struct index *ix, uint32_t id)
{
    return ix->tiers ? ix->tiers[id].device : node_at(ix, id)->n_blocks;
}

static inline uint32_t disk_blocks(const struct index *ix, uint32_t id)
{
    return ix->tiers ? ix->tiers[id].disk : 0;
}

/* Leading blocks of the run that are on the device, and to be written if they are not on disk. */
static inline uint32_t admitted_blocks(const struct index *ix, uint32_t id)
{
    uint32_t device = device_blocks(ix, id);
    if (node_at(ix, id)->n_partial)
        return 0;
    return ix->admit <= 1 || ix->tiers[id].seen > device ? device : ix->tiers[id].seen;
}

static inline uint32_t device_children(const struct index *ix, uint32_t id)
{
    return ix->tiers ? ix->tiers[id].device_children : ix->nodes[id].n_children;
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

/* The first page of a node has come or gone: its siblings' order of pages follows. */
void children_page(struct index *ix, uint32_t id);

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

uint32_t held_prefix(const struct index *ix, uint32_t id); /* by leases */
uint32_t io_prefix(const struct index *ix, uint32_t id);   /* by transfers */
uint32_t kept_prefix(const struct index *ix, uint32_t id); /* by either */

/* What a node adds to the counts, and what its parent counts of it. Taken before a change of its
 * holds, or of where its blocks are, it lets node_settle put the counts, its ancestors and the
 * rankings right afterwards. */
struct tally {
    uint32_t pinned, kept, clean;
    bool held, io, device, disk, admitted;
};
struct tally node_tally(const struct index *ix, uint32_t id);
void node_settle(struct index *ix, uint32_t id, struct tally before);
/* A child begins, or ends, to count at its parent. */
void child_count(struct index *ix, uint32_t parent, struct tally child, bool add);
/* The deepest end of the node's holds may have become smaller. */
void hold_deepest(struct index *ix, uint32_t id, bool io);
void hold_link(struct index *ix, struct hold *h);
void hold_unlink(struct index *ix, struct hold *h);

/* ---- index_rank.c ---- */

void rank_node(struct index *ix, uint32_t id); /* put in, take out or move, as RANKED says */
void rank_remove(struct index *ix, uint32_t id);
uint32_t rank_lowest(struct index *ix, enum rank_order order); /* 0: none */
/* The next one's rank; UINT64_MAX: none. */
uint64_t rank_second(const struct index *ix, enum rank_order order);
bool rank_belongs(const struct index *ix, enum rank_order order, uint32_t id);
bool rank_has(const struct index *ix, enum rank_order order, uint32_t id);
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

/* ---- index_residency.c ---- */

/* Blocks of a run have left: their pages become free, their copies' slots are given back. */
void units_empty(struct index *ix, uint32_t from, uint32_t n, bool extras);
/* Of positions [first, where.depth), which are there, those without a page take theirs from
 * `pages`; taken says so. */
void pages_adopt(struct index *ix, struct place where, uint32_t first, const uint32_t *pages,
                 uint8_t *taken);
unsigned residency_audit(const struct index *ix, uint32_t id, audit_find *find, void *arg);

/* ---- index_admit.c ---- */

/* The blocks from `first` on, down to this place, were seen once more. */
void seen_again(struct index *ix, struct place where, uint32_t first);
/* The first block of the node that has no copy has one now. */
void seen_enough(struct index *ix, uint32_t id, uint32_t block);

/* ---- index_change.c ---- */

/* Let the only child absorb its parent `upper`, if nobody's hold ends there and one extent holds
 * both. */
void node_merge(struct index *ix, uint32_t upper);

/* ---- index_remove.c ---- */

/* The node after `id` in the walk of index_reap: children before their parent. */
uint32_t index_reap_next(const struct index *ix, uint32_t id);

/* Cut a leaf to its first `keep` blocks (0: it goes). last_use: of the youngest block cut. */
void node_truncate(struct index *ix, uint32_t id, uint32_t keep, uint64_t last_use);

#endif
