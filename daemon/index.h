/*
 * index.h - the radix tree over token prefixes, and its writers. One thread.
 *
 *   index.c           nodes, versions, identities, the bucket table; begin/end of every change
 *   index_extent.c    units: which run of the token array a node owns (buddy allocator)
 *   index_children.c  the ordered children of a node (treap), tail candidates
 *   index_hold.c      holds and the pinned count
 *   index_rank.c      the evictable leaves in the policy's order (heap)
 *   index_change.c    insert, split, append, merge
 *   index_remove.c    truncate, evict, condemn
 *   index_residency.c where blocks are, on the device or on disk, and who goes next
 *   index_admit.c     how often blocks were seen: which of them are worth writing
 *   index_snapshot.c  the snapshots that hang on nodes
 *   index_audit.c     walks it all and compares every count
 *
 * The shared half is read by everybody (shm/index_read.h); the private half is here.
 */
#ifndef DAEMON_INDEX_H
#define DAEMON_INDEX_H

#include "daemon/policy.h"
#include "daemon/pool.h"
#include "shm/index_read.h"

/* A hold on a path: blocks 0 .. where.depth-1 stay. Lives in a lease; linked from its node, so
 * that a split can move it. node 0: nothing is held. */
struct hold {
    struct place where;
    struct hold *prev, *next;
    bool io; /* a transfer's, not a lease's */
};

struct index;

typedef void audit_find(void *arg, const char *finding, ...) __attribute__((format(printf, 2, 3)));

struct index_config {
    void *region; /* plan.bytes, zeroed, header filled in */
    struct pool *pool;
    const struct policy *policy;
    uint32_t admit; /* blocks seen so often are written to the disk tier; 0 is as 1, all are */
};
enum { ADMIT_MAX = UINT8_MAX };

/* NULL: no memory. */
struct index *index_new(const struct index_config *config);
void index_free(struct index *ix);
const struct index_view *index_view_of(const struct index *ix);
/* Who is told that a live root has lost its last child. */
void index_set_emptied(struct index *ix, void (*emptied)(void *arg, uint32_t space), void *arg);

/* Counts that are exact at every moment. */
uint32_t index_pinned(const struct index *ix);
uint32_t index_idle(const struct index *ix);
uint32_t index_busy(const struct index *ix); /* held by transfers alone: in flight */
uint32_t index_on_disk(const struct index *ix);
uint32_t index_clean(const struct index *ix); /* idle, on disk too or not worth writing */
uint32_t index_nodes(const struct index *ix); /* roots not counted */

uint32_t index_root_new(struct index *ix, uint32_t space);    /* a node id */
void index_root_free(struct index *ix, uint32_t root);        /* has no children */
bool index_root_empty(const struct index *ix, uint32_t root); /* no block, no snapshot */

/* Go on from *where while the query matches, to depth `limit` at most. Exact: probes unbounded. */
void index_match(const struct index *ix, const struct index_query *query, uint32_t limit,
                 struct place *where);

/* Is this place of a worker's walk still there, below `root`? Then make it name the node that
 * covers its depth. One far above its node (RESOLVE_BLOCKS) is refused: no honest walk ends there,
 * and the climb is work that others wait for. */
enum { RESOLVE_BLOCKS = 1024 };
bool index_resolve(struct index *ix, uint32_t root, struct place *where);

/* The same for a place of our own, which is there. */
void index_cover(struct index *ix, struct place *where);

/* Nodes climbed past and blocks emptied so far: what an operation cost that was not told how much
 * to do. */
uint64_t index_work(const struct index *ix);

/* Hold a resolved place; `h` is linked until index_unhold. Moving is hold of the new, then unhold
 * of the old. Depth 0 holds nothing. */
void index_hold(struct index *ix, struct hold *h, struct place where);
void index_unhold(struct index *ix, struct hold *h);
/* The same for a transfer to or from the disk: what it needs stays until index_unhold. */
void index_hold_io(struct index *ix, struct hold *h, struct place where);
void index_hold_move(struct index *ix, struct hold *h, struct place to);

/* Recency: the path to this place was used now. */
void index_stamp(struct index *ix, struct place where);
/* Its blocks were seen once more: a lookup has matched them. What inserts see is counted there. */
void index_seen(struct index *ix, struct place where);

/* The best tail candidate after a place: true, and its block, its shared tokens (>= 1) and the
 * place that holds it. */
bool index_tail(const struct index *ix, struct place where, const uint32_t *rest, uint32_t n_rest,
                struct place *tail, uint32_t *block, uint32_t *n_tokens);

/* Publish blocks after *where, which is resolved and held: `n` whole blocks of the query with
 * these pages, the first at depth where->depth. taken[i] says what became of each. *where moves to
 * the end. Cannot fail. Returns how many blocks are new. */
enum taken {
    TAKEN_NOT,     /* the block exists and has a page: a duplicate */
    TAKEN_NEW,     /* the block is new, the index owns the page    */
    TAKEN_ADOPTED, /* the block was on disk only, and now has it   */
};
uint32_t index_insert(struct index *ix, const struct index_query *query, const uint32_t *pages,
                      uint32_t n, uint8_t *taken, struct place *where);

/* Publish a partial block of n_tokens (< block_tokens, >= 1) after `where`. True: the index owns
 * the page; false: a candidate with that prefix exists. *partial: the place of whichever it is. */
bool index_insert_partial(struct index *ix, const struct index_query *query, struct place where,
                          uint32_t n_tokens, uint32_t page, struct place *partial);

/* Free at most n pages, least recent first: of blocks that are on disk too, or with the block.
 * dirty false: not where a block would be lost that is to be written; then false is returned if
 * such a one is next. *out grows. */
struct index_evicted {
    uint32_t freed, removed; /* pages; blocks that are nowhere any more */
};
bool index_free_pages(struct index *ix, uint32_t n, bool dirty, struct index_evicted *out);

/* All of it, whatever is lost. Returns pages freed. */
static inline uint32_t index_evict(struct index *ix, uint32_t n)
{
    struct index_evicted gone = {0};
    (void)index_free_pages(ix, n, true, &gone);
    return gone.freed;
}

/* A flushed root: from now on nothing below it is evictable. index_reap removes what is not held,
 * in slices of about n blocks (returns how many went); what is held goes when its last hold ends,
 * and the root with its last child. *done: the walk is over, or the root is gone. An empty root
 * is freed instead (index_root_free). */
void index_condemn(struct index *ix, uint32_t root);
uint32_t index_reap(struct index *ix, struct place root, uint32_t n, bool *done);

/* ---- the disk tier -------------------------------------------------------------------------
 *
 * Only where params.n_disk is not 0. Slots are numbered by their owner (swap.h). */

/* Who is told that a copy's slot is no longer needed. It must not change the tree. */
void index_set_slot_gone(struct index *ix, void (*gone)(void *arg, uint32_t disk), void *arg);

/* The coldest path that has blocks to be written: the place of the last of them. */
bool index_dirty(struct index *ix, struct place *leaf);
/* The first blocks without a copy on the path to a place that is held for a transfer, at most
 * `most` of one node: how many, and the place where they end. 0: there is none, or they are on
 * their way. From here to index_written they are. */
uint32_t index_unwritten(struct index *ix, struct place leaf, uint32_t most, struct place *end);
void index_written(struct index *ix, struct place end, uint32_t n);
/* Are all blocks down to this place on disk; on the device? */
bool index_on_disk_to(struct index *ix, struct place where);
bool index_on_device_to(struct index *ix, struct place where);
/* Is it below a root that was flushed? */
bool index_flushed(const struct index *ix, struct place where);
/* Blocks at the end of this path that have no page. */
uint32_t index_absent(struct index *ix, struct place where);
/* The blocks from this place on cannot be written: do not offer this leaf again. */
void index_unwritable(struct index *ix, struct place leaf);
/* The block that ends at this place cannot be read: it, and what hangs below it, goes as far as
 * nobody holds it. */
void index_lose(struct index *ix, struct place where);
void index_lose_held(struct index *ix,
                     struct hold *h); /* the one that this transfer's hold ends at */
/* The block that ends at this place has been written to a slot. False: it is not the next one. */
bool index_copy_commit(struct index *ix, struct place where, uint32_t disk);
/* It has a copy, and this is a newer one: the older one's slot is no longer needed. */
void index_copy_replace(struct index *ix, struct place where, uint32_t disk);
/* The block that ends at this place has been read into a page, which is cached now. False: it has
 * a page already. */
bool index_page_arrive(struct index *ix, struct place where, uint32_t page);
/* Give up at most n copies, least recent first; *removed grows by blocks that had nothing else. */
uint32_t index_evict_copies(struct index *ix, uint32_t n, uint32_t *removed);
bool index_spare_copy(struct index *ix); /* the first that goes is of a block without a page */
/* n whole blocks of the query that are on disk only, after *where, which is the end of what is
 * there; *where moves on. */
void index_restore(struct index *ix, const struct index_query *query, const uint32_t *disks,
                   uint32_t n, struct place *where);

/* ---- snapshots ----------------------------------------------------------------------------
 *
 * Entries are numbered by their owner (snapshot.h), from 1 to max_snapshots. What they are, and
 * their order, stands at struct index_snapshot (shm/layout.h); what a lookup finds, in
 * shm/snapshot_read.h. Nothing here can fail. */

/* The tokens of a prefix after its last whole block, and the extras that start among them (`at`
 * counts from the start of the sequence). */
struct residue {
    const uint32_t *tokens;
    uint32_t n_tokens; /* < block_tokens */
    const struct wire_extra *extras;
    size_t n_extras;
};

/* The first `depth` tokens of the path to `where`, which may end with a partial block: *at becomes
 * the place of their whole blocks, *residue what is left, in the caller's `room`, which holds
 * residue_room() bytes. */
size_t residue_room(uint32_t block_tokens);
void index_residue(struct index *ix, struct place where, uint32_t depth, void *room,
                   struct place *at, struct residue *residue);

/* The exact entry or sibling that hangs there; 0: none. */
uint32_t index_snapshot_find(const struct index *ix, struct place at,
                             const struct residue *residue);

/* Hang entry `id` at a place that names the node which covers its depth: a resident one, or one of
 * the lower tier (slot NO_SLOT). Its position is free: no exact entry or sibling there, no tail of
 * that session in this space. */
void index_snapshot_add(struct index *ix, uint32_t id, struct place at,
                        const struct residue *residue, enum snapshot_kind kind, uint64_t session,
                        uint32_t slot, uint64_t tier_key);
void index_snapshot_remove(struct index *ix, uint32_t id);
/* It has moved: to a slot (tier_key 0) or to the lower tier (slot NO_SLOT). */
void index_snapshot_move(struct index *ix, uint32_t id, uint32_t slot, uint64_t tier_key);
/* A sibling becomes an exact entry. */
void index_snapshot_exact(struct index *ix, uint32_t id);

/* Who is told that an entry has left the tree because its prefix has; `evicted`: by an eviction,
 * not by a flush. It must not change the tree. */
void index_set_snapshot_gone(struct index *ix,
                             void (*gone)(void *arg, uint32_t snapshot, bool evicted), void *arg);

/* Walk everything; hands each finding as a sentence. Returns how many. */
unsigned index_audit(const struct index *ix, audit_find *find, void *arg);

#endif
