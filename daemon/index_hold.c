/*
 * Holds, and the number of pinned blocks, exact at every moment.
 *
 *      root -- A(4 blocks) -- B(6) -- C(3)        a lease holds C to its 2nd block:
 *                 4            6      2           pinned = 4 + 6 + 2, C's 3rd block is idle
 *
 * Each unit counts the holds that end with its block (`ends`), each node how many of its children
 * are held. From these follows a node's held prefix (HELD in index_private.h). When a node turns
 * from held to not held or back, its parent's count changes, and so on upwards: a lookup of a path
 * that somebody holds already climbs nothing.
 */
#include "daemon/index_private.h"

#include <assert.h>
#include <string.h>

uint32_t held_prefix(const struct index *ix, uint32_t id)
{
    const struct node_private *p = priv_at(ix, id);
    return p->held_children ? node_at(ix, id)->n_blocks : p->max_end;
}

void held_settle(struct index *ix, uint32_t id, uint32_t before)
{
    rank_leaf(ix, id);
    for (;;) {
        uint32_t now = held_prefix(ix, id);
        ix->pinned = ix->pinned + now - before;
        if (node_is_root(node_at(ix, id)) || (before > 0) == (now > 0))
            return;
        id = node_at(ix, id)->parent;
        ix->work++;
        before = held_prefix(ix, id);
        if (now)
            priv_at(ix, id)->held_children++;
        else
            priv_at(ix, id)->held_children--;
        if (node_is_root(node_at(ix, id)))
            return;
    }
}

static uint32_t unit_of(const struct index *ix, const struct hold *h)
{
    const struct index_node *n = node_at(ix, h->where.node);
    assert(h->where.depth > n->start && h->where.depth <= n->start + n->n_blocks);
    return n->extent + (h->where.depth - 1 - n->start);
}

void hold_link(struct index *ix, struct hold *h)
{
    struct node_private *p = priv_at(ix, h->where.node);
    h->prev = NULL;
    h->next = p->holds;
    if (h->next)
        h->next->prev = h;
    p->holds = h;
}

void hold_unlink(struct index *ix, struct hold *h)
{
    if (h->prev)
        h->prev->next = h->next;
    else
        priv_at(ix, h->where.node)->holds = h->next;
    if (h->next)
        h->next->prev = h->prev;
    h->next = h->prev = NULL;
}

void index_hold(struct index *ix, struct hold *h, struct place where)
{
    *h = (struct hold){.where = where};
    if (where.depth == 0)
        return;
    uint32_t id = where.node, before = held_prefix(ix, id);
    struct node_private *p = priv_at(ix, id);
    hold_link(ix, h);
    ix->units[unit_of(ix, h)].ends++;
    uint8_t end = (uint8_t)(where.depth - node_at(ix, id)->start);
    if (end > p->max_end)
        p->max_end = end;
    held_settle(ix, id, before);
}

/* Below a condemned root, what is no longer held goes at once, up to the first node that is. */
static void prune(struct index *ix, uint32_t id)
{
    while (!node_is_root(node_at(ix, id)) && priv_at(ix, id)->n_children == 0) {
        uint32_t keep = held_prefix(ix, id), parent = node_at(ix, id)->parent;
        if (keep < node_at(ix, id)->n_blocks)
            node_truncate(ix, id, keep, 0);
        if (keep)
            return;
        id = parent;
        if (node_at(ix, id)->n_blocks == 0) /* the root: node_truncate has settled it */
            return;
    }
}

void index_unhold(struct index *ix, struct hold *h)
{
    if (h->where.depth == 0) {
        memset(h, 0, sizeof *h);
        return;
    }
    uint32_t id = h->where.node, before = held_prefix(ix, id);
    struct node_private *p = priv_at(ix, id);
    const struct index_node *n = node_at(ix, id);
    ix->units[unit_of(ix, h)].ends--;
    hold_unlink(ix, h);
    while (p->max_end && ix->units[n->extent + p->max_end - 1].ends == 0)
        p->max_end--;
    held_settle(ix, id, before);
    memset(h, 0, sizeof *h);
    if (node_condemned(ix, id))
        prune(ix, id);
}

void index_hold_move(struct index *ix, struct hold *h, struct place to)
{
    struct hold old = *h;
    if (old.where.depth) { /* the copy takes the old one's place in the list */
        hold_unlink(ix, h);
        hold_link(ix, &old);
    }
    index_hold(ix, h, to);
    index_unhold(ix, &old);
}

void index_stamp(struct index *ix, struct place where)
{
    ix->clock++;
    if (where.depth == 0)
        return;
    const struct index_node *n = node_at(ix, where.node);
    ix->units[n->extent + (where.depth - 1 - n->start)].last_use = ix->clock;
    rank_leaf(ix, where.node);
}
