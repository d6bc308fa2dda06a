/*
 * Which leaf goes next: a heap of the evictable leaves, lowest rank on top, four children a node
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

static void place(struct index *ix, uint32_t at, struct ranked r)
{
    ix->heap[at] = r;
    priv_at(ix, r.node)->ranked = at + 1;
}

static void sift_up(struct index *ix, uint32_t at, struct ranked r)
{
    while (at > 0 && ix->heap[(at - 1) / 4].rank > r.rank) {
        place(ix, at, ix->heap[(at - 1) / 4]);
        at = (at - 1) / 4;
    }
    place(ix, at, r);
}

static uint32_t lowest_child(const struct index *ix, uint32_t at)
{
    uint32_t first = 4 * at + 1, low = first;
    for (uint32_t c = first + 1; c < first + 4 && c < ix->n_heap; c++)
        if (ix->heap[c].rank < ix->heap[low].rank)
            low = c;
    return low;
}

static void sift_down(struct index *ix, uint32_t at, struct ranked r)
{
    while (4 * at + 1 < ix->n_heap) {
        uint32_t low = lowest_child(ix, at);
        if (ix->heap[low].rank >= r.rank)
            break;
        place(ix, at, ix->heap[low]);
        at = low;
    }
    place(ix, at, r);
}

void rank_remove(struct index *ix, uint32_t id)
{
    uint32_t at = priv_at(ix, id)->ranked;
    if (!at--)
        return;
    priv_at(ix, id)->ranked = 0;
    struct ranked last = ix->heap[--ix->n_heap];
    if (at == ix->n_heap)
        return;
    if (at > 0 && ix->heap[(at - 1) / 4].rank > last.rank)
        sift_up(ix, at, last);
    else
        sift_down(ix, at, last);
}

static uint64_t rank_of(const struct index *ix, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    return ix->policy->rank(ix->units[n->extent + n->n_blocks - 1].last_use,
                            n->start + n->n_blocks);
}

static bool loose_leaf(const struct index *ix, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    const struct node_private *p = priv_at(ix, id);
    return n->n_blocks > 0 && p->n_children == 0 && p->max_end < n->n_blocks;
}

static bool evictable(const struct index *ix, uint32_t id)
{
    return loose_leaf(ix, id) && !node_condemned(ix, id);
}

void rank_leaf(struct index *ix, uint32_t id)
{
    if (!evictable(ix, id)) {
        rank_remove(ix, id);
        return;
    }
    struct ranked r = {.rank = rank_of(ix, id), .node = id};
    uint32_t at = priv_at(ix, id)->ranked;
    if (!at--) {
        sift_up(ix, ix->n_heap++, r);
        return;
    }
    if (at > 0 && ix->heap[(at - 1) / 4].rank > r.rank)
        sift_up(ix, at, r);
    else
        sift_down(ix, at, r);
}

uint32_t rank_lowest(const struct index *ix)
{
    return ix->n_heap ? ix->heap[0].node : 0;
}

uint64_t rank_second(const struct index *ix)
{
    return ix->n_heap > 1 ? ix->heap[lowest_child(ix, 0)].rank : UINT64_MAX;
}

unsigned rank_audit(const struct index *ix, audit_find *find, void *arg)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < ix->n_heap; i++) {
        uint32_t id = ix->heap[i].node;
        if (priv_at(ix, id)->ranked != i + 1 || !loose_leaf(ix, id) ||
            rank_of(ix, id) != ix->heap[i].rank) {
            find(arg, "leaf %u does not belong at place %u of the eviction order", id, i);
            found++;
        }
        if (i && ix->heap[(i - 1) / 4].rank > ix->heap[i].rank) {
            find(arg, "place %u of the eviction order is before its parent", i);
            found++;
        }
    }
    return found;
}
