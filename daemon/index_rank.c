/*
 * Which leaf goes next: heaps of nodes (RANKED), lowest rank on top, four children a node
 * (a cache line of them). Each leaf knows its place in it, so a leaf that is held, used or gone
 * leaves it in O(log n).
 *
 * Recency is kept a block, not a node: a lookup stamps the one block where it ended. A block's
 * true last use is the youngest stamp at or behind it on any path, and eviction is leaf first: so
 * when blocks are cut, their youngest stamp moves to the block before them (node_truncate), and
 * the stamp of a leaf's last block is always true. A split moves no stamp, and a suffix that
 * nobody asked for keeps its old one.
 */
#include "daemon/index_private.h"

#include <assert.h>

static uint32_t *ranked_at(const struct index *ix, enum rank_order order, uint32_t id)
{
    return order == RANK_PAGE ? &priv_at(ix, id)->ranked : &ix->tiers[id].ranked[order];
}

static void place(struct index *ix, enum rank_order o, uint32_t at, struct ranked r)
{
    ix->heap[o][at] = r;
    *ranked_at(ix, o, r.node) = at + 1;
}

static void sift_up(struct index *ix, enum rank_order o, uint32_t at, struct ranked r)
{
    while (at > 0 && ix->heap[o][(at - 1) / 4].rank > r.rank) {
        place(ix, o, at, ix->heap[o][(at - 1) / 4]);
        at = (at - 1) / 4;
    }
    place(ix, o, at, r);
}

static uint32_t lowest_child(const struct index *ix, enum rank_order o, uint32_t at)
{
    uint32_t first = 4 * at + 1, low = first;
    for (uint32_t c = first + 1; c < first + 4 && c < ix->n_heap[o]; c++)
        if (ix->heap[o][c].rank < ix->heap[o][low].rank)
            low = c;
    return low;
}

static void sift_down(struct index *ix, enum rank_order o, uint32_t at, struct ranked r)
{
    while (4 * at + 1 < ix->n_heap[o]) {
        uint32_t low = lowest_child(ix, o, at);
        if (ix->heap[o][low].rank >= r.rank)
            break;
        place(ix, o, at, ix->heap[o][low]);
        at = low;
    }
    place(ix, o, at, r);
}

static void sift(struct index *ix, enum rank_order o, uint32_t at, struct ranked r)
{
    if (at > 0 && ix->heap[o][(at - 1) / 4].rank > r.rank)
        sift_up(ix, o, at, r);
    else
        sift_down(ix, o, at, r);
}

static void leave(struct index *ix, enum rank_order o, uint32_t id)
{
    uint32_t at = *ranked_at(ix, o, id);
    if (!at--)
        return;
    *ranked_at(ix, o, id) = 0;
    struct ranked last = ix->heap[o][--ix->n_heap[o]];
    if (at < ix->n_heap[o])
        sift(ix, o, at, last);
}

/* Blocks of the run that the order is about: the last of them goes, or is written, next. */
static uint32_t blocks_of(const struct index *ix, enum rank_order o, uint32_t id)
{
    return o == RANK_COPY ? disk_blocks(ix, id) : device_blocks(ix, id);
}

static uint64_t rank_of(const struct index *ix, enum rank_order o, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    uint32_t blocks = blocks_of(ix, o, id);
    if (o == RANK_DIRTY && device_children(ix, id))
        return UINT64_MAX; /* it goes after what hangs below it, and need not be written before */
    return ix->policy->rank(ix->units[n->extent + blocks - 1].last_use, n->start + blocks);
}

static bool belongs(const struct index *ix, enum rank_order o, uint32_t id)
{
    uint32_t blocks = blocks_of(ix, o, id);
    if (blocks == 0)
        return false;
    switch (o) {
    case RANK_PAGE:
        return device_children(ix, id) == 0 && kept_prefix(ix, id) < blocks;
    case RANK_COPY:
        return ix->tiers[id].disk_children == 0 && kept_prefix(ix, id) < blocks;
    default:
        return ix->tiers[id].disk < admitted_blocks(ix, id) &&
               ix->tiers[id].admitted_children == 0 && ix->tiers[id].io_end == 0 &&
               !ix->tiers[id].unwritable;
    }
}

static enum rank_order orders(const struct index *ix)
{
    return ix->tiers ? RANKS : RANK_PAGE + 1;
}

void rank_remove(struct index *ix, uint32_t id)
{
    for (enum rank_order o = RANK_PAGE; o < orders(ix); o++)
        leave(ix, o, id);
}

void rank_node(struct index *ix, uint32_t id)
{
    bool condemned = node_condemned(ix, id);
    for (enum rank_order o = RANK_PAGE; o < orders(ix); o++) {
        if (condemned || !belongs(ix, o, id)) {
            leave(ix, o, id);
            continue;
        }
        struct ranked r = {.rank = rank_of(ix, o, id), .node = id};
        uint32_t at = *ranked_at(ix, o, id);
        if (at)
            sift(ix, o, at - 1, r);
        else
            sift_up(ix, o, ix->n_heap[o]++, r);
    }
}

/* Those of a condemned tree leave here, or as they are reaped. */
uint32_t rank_lowest(struct index *ix, enum rank_order o)
{
    while (ix->n_heap[o] && node_condemned(ix, ix->heap[o][0].node))
        leave(ix, o, ix->heap[o][0].node);
    return ix->n_heap[o] ? ix->heap[o][0].node : 0;
}

uint64_t rank_second(const struct index *ix, enum rank_order o)
{
    return ix->n_heap[o] > 1 ? ix->heap[o][lowest_child(ix, o, 0)].rank : UINT64_MAX;
}

static unsigned audit_order(const struct index *ix, enum rank_order o, audit_find *find, void *arg)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < ix->n_heap[o]; i++) {
        uint32_t id = ix->heap[o][i].node;
        if (*ranked_at(ix, o, id) != i + 1 || !belongs(ix, o, id) ||
            rank_of(ix, o, id) != ix->heap[o][i].rank) {
            find(arg, "node %u does not belong at place %u of order %d", id, i, o);
            found++;
        }
        if (i && ix->heap[o][(i - 1) / 4].rank > ix->heap[o][i].rank) {
            find(arg, "place %u of order %d is before its parent", i, o);
            found++;
        }
    }
    return found;
}

unsigned rank_audit(const struct index *ix, audit_find *find, void *arg)
{
    unsigned found = 0;
    for (enum rank_order o = RANK_PAGE; o < orders(ix); o++)
        found += audit_order(ix, o, find, arg);
    return found;
}

bool rank_belongs(const struct index *ix, enum rank_order o, uint32_t id)
{
    return belongs(ix, o, id);
}

bool rank_has(const struct index *ix, enum rank_order o, uint32_t id)
{
    return *ranked_at(ix, o, id) > 0;
}
