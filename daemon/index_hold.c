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
 *
 * A transfer to or from the disk holds what it needs in the same way, counted apart: what only
 * transfers hold is in flight, not pinned. The same settling carries upwards which children have
 * blocks on the device and on disk.
 */
#include "daemon/index_private.h"

#include <assert.h>
#include <string.h>

uint32_t held_prefix(const struct index *ix, uint32_t id)
{
    const struct node_private *p = priv_at(ix, id);
    return p->held_children ? node_at(ix, id)->n_blocks : p->max_end;
}

uint32_t io_prefix(const struct index *ix, uint32_t id)
{
    if (!ix->tiers)
        return 0;
    return ix->tiers[id].io_children ? node_at(ix, id)->n_blocks : ix->tiers[id].io_end;
}

uint32_t kept_prefix(const struct index *ix, uint32_t id)
{
    uint32_t held = held_prefix(ix, id), io = io_prefix(ix, id);
    return held > io ? held : io;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct tally node_tally(const struct index *ix, uint32_t id)
{
    uint32_t held = held_prefix(ix, id), device = device_blocks(ix, id);
    struct tally t = {.pinned = lesser(held, device), .held = held > 0, .device = device > 0};
    t.kept = t.pinned;
    if (ix->tiers) {
        t.kept = lesser(kept_prefix(ix, id), device);
        uint32_t both = lesser(device, ix->tiers[id].disk), admitted = admitted_blocks(ix, id);
        t.clean = both > t.kept ? both - t.kept : 0;
        t.clean += device - (admitted > t.kept ? admitted : t.kept);
        t.admitted = admitted > 0;
        t.io = ix->tiers[id].io_children || ix->tiers[id].io_end;
        t.disk = ix->tiers[id].disk > 0;
    }
    return t;
}

static void count(uint32_t *n, bool before, bool now)
{
    *n = *n + now - before;
}

void child_count(struct index *ix, uint32_t parent, struct tally child, bool add)
{
    count(&priv_at(ix, parent)->held_children, child.held && !add, child.held && add);
    if (!ix->tiers)
        return;
    struct node_tiers *t = &ix->tiers[parent];
    count(&t->io_children, child.io && !add, child.io && add);
    count(&t->device_children, child.device && !add, child.device && add);
    count(&t->disk_children, child.disk && !add, child.disk && add);
    count(&t->admitted_children, child.admitted && !add, child.admitted && add);
}

void node_settle(struct index *ix, uint32_t id, struct tally before)
{
    for (;;) {
        struct tally now = node_tally(ix, id);
        ix->pinned = ix->pinned + now.pinned - before.pinned;
        ix->kept = ix->kept + now.kept - before.kept;
        ix->clean = ix->clean + now.clean - before.clean;
        rank_node(ix, id);
        if (node_is_root(node_at(ix, id)) ||
            (before.held == now.held && before.io == now.io && before.device == now.device &&
             before.disk == now.disk && before.admitted == now.admitted))
            return;
        struct tally old = before;
        id = node_at(ix, id)->parent;
        ix->work++;
        before = node_tally(ix, id);
        child_count(ix, id, old, false);
        child_count(ix, id, now, true);
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

/* A lease's hold, or a transfer's: where its ends are counted. */
static uint8_t *max_end_of(struct index *ix, uint32_t id, bool io)
{
    return io ? &ix->tiers[id].io_end : &priv_at(ix, id)->max_end;
}

static uint32_t ends_at(const struct index *ix, uint32_t unit, bool io)
{
    return io ? ix->io_ends[unit] : ix->units[unit].ends;
}

static void ends_add(struct index *ix, uint32_t unit, bool io, int n)
{
    if (io)
        ix->io_ends[unit] = (uint16_t)(ix->io_ends[unit] + n);
    else
        ix->units[unit].ends = ix->units[unit].ends + (uint32_t)n;
}

void hold_deepest(struct index *ix, uint32_t id, bool io)
{
    uint8_t *end = max_end_of(ix, id, io);
    uint32_t extent = node_at(ix, id)->extent;
    while (*end && ends_at(ix, extent + *end - 1, io) == 0)
        --*end;
}

static void hold_as(struct index *ix, struct hold *h, struct place where, bool io)
{
    *h = (struct hold){.where = where, .io = io};
    if (where.depth == 0)
        return;
    uint32_t id = where.node;
    struct tally before = node_tally(ix, id);
    hold_link(ix, h);
    ends_add(ix, unit_of(ix, h), io, 1);
    uint8_t end = (uint8_t)(where.depth - node_at(ix, id)->start),
            *deepest = max_end_of(ix, id, io);
    if (end > *deepest)
        *deepest = end;
    node_settle(ix, id, before);
}

void index_hold(struct index *ix, struct hold *h, struct place where)
{
    hold_as(ix, h, where, false);
}

void index_hold_io(struct index *ix, struct hold *h, struct place where)
{
    assert(ix->tiers && where.depth);
    hold_as(ix, h, where, true);
}

/* Below a condemned root, what is no longer held goes at once, up to the first node that is. */
static void prune(struct index *ix, uint32_t id)
{
    while (!node_is_root(node_at(ix, id)) && priv_at(ix, id)->n_children == 0) {
        uint32_t keep = kept_prefix(ix, id), parent = node_at(ix, id)->parent;
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
    uint32_t id = h->where.node;
    struct tally before = node_tally(ix, id);
    ends_add(ix, unit_of(ix, h), h->io, -1);
    hold_unlink(ix, h);
    hold_deepest(ix, id, h->io);
    node_settle(ix, id, before);
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
    hold_as(ix, h, to, old.io);
    index_unhold(ix, &old);
}

void index_stamp(struct index *ix, struct place where)
{
    ix->clock++;
    if (where.depth == 0)
        return;
    for (uint32_t id = where.node, depth = where.depth;; id = node_at(ix, id)->parent) {
        const struct index_node *n = node_at(ix, id);
        uint32_t block = depth - n->start, device = device_blocks(ix, id);
        do
            ix->units[n->extent + block - 1].last_use = ix->clock;
        while (block-- > device && block > 0);
        rank_node(ix, id);
        if (device || n->start == 0)
            break;
        depth = n->start;
        ix->work++;
    }
}
