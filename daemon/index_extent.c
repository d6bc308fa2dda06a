/*
 * Which units of the token array belong to whom: a buddy allocator that gives and takes runs of
 * any length.
 *
 * A run is taken as the power of two that covers it, and what is beyond is given back at once; a
 * run is given back piece by aligned piece, and pieces find their buddies again:
 *
 *      take 5:   [0 1 2 3 4 5 6 7] -> owned 0..4, free [5] [6 7]
 *      give 2-4: [2 3] [4]         -> [4] meets [5], then [4 5] meets [6 7]: free [2 3] [4..7]
 *
 * So a split gives the upper node the front of the extent and moves nothing, and a truncation
 * gives the end back exactly. Nothing is merged beyond 64 units, the longest run.
 *
 * It cannot run dry: owned units never exceed twice the cached blocks (CAP), and there are
 * NODE_BLOCKS more than that. When only short runs are left, a shorter one is given, and the
 * caller makes more nodes.
 */
#include "daemon/index_private.h"

#include <assert.h>

enum {
    HOLES_PART = 8,  /* holes of more than this part of the owned units are used first */
    HOLE_ORDERS = 3, /* and runs are not cut below an eighth of what was wanted */
};

static void list_push(struct index *ix, uint32_t unit, uint32_t order)
{
    struct unit_private *u = &ix->units[unit];
    u->free_order = order + 1;
    u->free.prev = 0;
    u->free.next = ix->free_extent[order];
    if (u->free.next)
        ix->units[u->free.next - 1].free.prev = unit + 1;
    ix->free_extent[order] = unit + 1;
}

static void list_drop(struct index *ix, uint32_t unit)
{
    struct unit_private *u = &ix->units[unit];
    uint32_t order = u->free_order - 1;
    if (u->free.prev)
        ix->units[u->free.prev - 1].free.next = u->free.next;
    else
        ix->free_extent[order] = u->free.next;
    if (u->free.next)
        ix->units[u->free.next - 1].free.prev = u->free.prev;
    u->free_order = 0;
    u->last_use = 0;
}

static void give_piece(struct index *ix, uint32_t unit, uint32_t order)
{
    while (order < EXTENT_ORDERS - 1) {
        uint32_t buddy = unit ^ (1u << order);
        if (buddy >= ix->unit_top || ix->units[buddy].free_order != order + 1)
            break;
        list_drop(ix, buddy);
        unit &= ~(1u << order);
        order++;
    }
    list_push(ix, unit, order);
}

static void give_run(struct index *ix, uint32_t first, uint32_t count)
{
    while (count) {
        uint32_t order = 0;
        while (order < EXTENT_ORDERS - 1 && !(first & (1u << order)) && 2u << order <= count)
            order++;
        give_piece(ix, first, order);
        first += 1u << order;
        count -= 1u << order;
    }
}

void extent_give(struct index *ix, uint32_t first, uint32_t count)
{
    ix->n_units_owned -= count;
    for (uint32_t i = 0; i < count; i++) {
        ix->units[first + i].last_use = 0;
        assert(ix->units[first + i].ends == 0);
    }
    give_run(ix, first, count);
}

/* Bring 64 (at the very end: fewer) never used units into the lists. */
static bool extend(struct index *ix)
{
    uint32_t left = ix->view.plan.n_units - ix->unit_top;
    if (left == 0)
        return false;
    uint32_t first = ix->unit_top, count = left < NODE_BLOCKS ? left : NODE_BLOCKS;
    ix->unit_top += count;
    give_run(ix, first, count);
    return true;
}

/* The order of the free extent to take from: the smallest that covers `order`; if there is none,
 * the longest that is shorter, but not below `least`. EXTENT_ORDERS: none of these. */
static uint32_t order_find(const struct index *ix, uint32_t order, uint32_t least)
{
    for (uint32_t o = order; o < EXTENT_ORDERS; o++)
        if (ix->free_extent[o])
            return o;
    for (uint32_t o = order; o-- > least;)
        if (ix->free_extent[o])
            return o;
    return EXTENT_ORDERS;
}

/* Holes that truncation left are used before never used units, once they are an eighth of what is
 * owned: then a run becomes a few nodes, and the index stays small. */
uint32_t extent_take(struct index *ix, uint32_t want, uint32_t *got)
{
    uint32_t order = 0;
    while (1u << order < want)
        order++;
    uint32_t holes = ix->unit_top - ix->n_units_owned;
    bool many = holes > ix->n_units_owned / HOLES_PART;
    uint32_t from =
        order_find(ix, order, many && order > HOLE_ORDERS ? order - HOLE_ORDERS : order);
    if (from == EXTENT_ORDERS && extend(ix))
        from = order_find(ix, order, order);
    if (from == EXTENT_ORDERS)
        from = order_find(ix, order, 0);
    assert(from < EXTENT_ORDERS);
    uint32_t first = ix->free_extent[from] - 1, size = 1u << from;
    list_drop(ix, first);
    *got = want < size ? want : size;
    give_run(ix, first + *got, size - *got);
    ix->n_units_owned += *got;
    return first;
}

unsigned extent_audit(const struct index *ix, audit_find *find, void *arg)
{
    uint64_t free_units = 0;
    unsigned found = 0;
    for (uint32_t order = 0; order < EXTENT_ORDERS; order++)
        for (uint32_t at = ix->free_extent[order]; at; at = ix->units[at - 1].free.next) {
            free_units += 1u << order;
            if (ix->units[at - 1].free_order != order + 1 || (at - 1) & ((1u << order) - 1)) {
                find(arg, "free extent at unit %u is not of order %u", at - 1, order);
                return found + 1;
            }
        }
    if (free_units + ix->n_units_owned != ix->unit_top) {
        find(arg, "%llu free and %u owned units are not the %u in use",
             (unsigned long long)free_units, ix->n_units_owned, ix->unit_top);
        found++;
    }
    return found;
}
