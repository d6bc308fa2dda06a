/*
 * Chains: what is written is a path, front first, because a block on disk is of use only while all
 * before it are there too.
 *
 *      root -- A -- B -- C -- D         the coldest leaf D has no copy: hold D for a transfer,
 * write x    x    o    o         the first blocks on its path without one (C), commit them in
 *                                       order, go on until D has one, let go
 *
 * Two chains with a front in common: the first writes it, the other looks again after each answer.
 * Room is made by giving up the coldest copies that nobody holds; the chain's own are held.
 *
 * A block whose extras fill no header is not written, nor is what comes after it.
 */
#include "daemon/disk_private.h"

#include <assert.h>
#include <stdlib.h>

enum { FULL_NS = 1000000000, NO_ROOM_NS = 100000000 };

static void chain_end(struct disk *k, struct chain *c)
{
    if (c->state)
        c->state->chain = NULL;
    index_unhold(k->d->index, &c->leaf);
    list_remove(&c->link);
    k->n_chains--;
    free(c);
}

/* Nothing is written for a while: pages that are needed take their blocks with them. */
static void pause_writes(struct disk *k, uint64_t ns)
{
    k->full_until_ns = clock_ns() + ns;
}

/* While the files grow, what they hold is not given up. */
static uint32_t make_slots(struct disk *k, uint32_t n)
{
    uint32_t room = swap_free(k->swap, STORE_BLOCKS), removed = 0;
    if (room < n && !swap_facts(k->swap).growing) {
        index_evict_copies(k->d->index, n - room, &removed);
        k->d->counters.evicted_blocks += removed;
        room = swap_free(k->swap, STORE_BLOCKS);
    }
    return room < n ? room : n;
}

/* The end of the i-th block that is being written. The leaf's hold is kept up to date by the tree.
 */
static struct place place_in(const struct chain *c, uint32_t i)
{
    struct place at = c->leaf.where;
    at.depth = c->end - c->marked + 1 + i;
    return at;
}

static void marks_end(struct disk *k, struct chain *c)
{
    struct place at = c->leaf.where;
    at.depth = c->end;
    index_written(k->d->index, at, c->marked);
}

/* At most n; there may be fewer than were counted, since a device may become sick at any time. */
static uint32_t take_slots(struct disk *k, uint32_t n, uint32_t slot[SWAP_BATCH])
{
    uint32_t got = 0, first, run = 1;
    while (got < n && run) {
        run = swap_slots_take(k->swap, STORE_BLOCKS, n - got, &first);
        for (uint32_t i = 0; i < run; i++)
            slot[got++] = first + i;
    }
    return got;
}

static void give_slots(struct disk *k, const uint32_t *slot, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        swap_slot_give(k->swap, STORE_BLOCKS, slot[i]);
}

/* Generations and bodies for n blocks that end at c->end; returns for how many: the first that no
 * header can describe ends it. */
static uint32_t fill(struct disk *k, const struct chain *c, struct swap_order *o,
                     const uint32_t *slot, uint32_t n)
{
    uint32_t used = 0;
    for (; used < n; used++) {
        struct swap_record *r = &o->record[used];
        struct place at = place_in(c, used);
        r->slot = slot[used];
        if (!body_write(k, at, used ? r - 1 : NULL, r))
            break;
        r->generation = swap_generation(k->swap);
    }
    return used;
}

/* No copy can go. While the files grow, look again when they have; false: they do not. */
static bool chain_starves(struct disk *k)
{
    uint64_t now = clock_ns();
    if (!disk_can_write(k))
        return false;
    if (!k->starved_ns)
        k->starved_ns = now;
    if (swap_ready(k->swap, STORE_BLOCKS) < k->n_slots && now - k->starved_ns < NO_ROOM_NS)
        return true;
    k->starved_ns = 0;
    pause_writes(k, NO_ROOM_NS);
    return false;
}

/* Write what comes next. False: the chain is over. */
static bool chain_go(struct disk *k, struct chain *c)
{
    struct index *ix = k->d->index;
    if (index_flushed(ix, c->leaf.where) || index_on_disk_to(ix, c->leaf.where))
        return false;
    struct place end;
    uint32_t n = index_unwritten(ix, c->leaf.where, SWAP_BATCH, &end);
    if (n == 0)
        return true; /* another chain writes there: look again */
    index_written(ix, end, n);
    uint32_t slot[SWAP_BATCH], room = take_slots(k, make_slots(k, n), slot);
    if (room == 0)
        return chain_starves(k);
    struct swap_order *o = swap_order_new(k->swap, SWAP_WRITE, STORE_BLOCKS);
    n = o ? index_unwritten(ix, c->leaf.where, room, &end) : 0;
    if (n == 0) {
        if (o)
            swap_order_free(k->swap, o);
        give_slots(k, slot, room);
        k->no_order |= !o; /* all are out, or there is no memory for one: look again */
        return true;
    }
    c->marked = n;
    c->end = end.depth;
    o->n = fill(k, c, o, slot, n);
    give_slots(k, slot + o->n, room - o->n);
    if (o->n == 0) {
        marks_end(k, c);
        index_unwritable(ix, c->leaf.where);
        swap_order_free(k->swap, o);
        return false;
    }
    o->owner = c;
    c->order = o;
    swap_submit(k->swap, o);
    return true;
}

void writes_failed(struct disk *k, enum swap_status status)
{
    pause_writes(k, status == SWAP_FULL ? FULL_NS : NO_ROOM_NS);
}

/* In order, up to the first that failed: what comes after it hangs on nothing. */
static void commit(struct disk *k, const struct chain *c, const struct swap_order *o)
{
    bool good = true;
    for (uint32_t i = 0; i < o->n; i++) {
        const struct swap_record *r = &o->record[i];
        good = good && r->status == SWAP_GOOD &&
               index_copy_commit(k->d->index, place_in(c, i), r->slot);
        if (good) {
            k->generation[r->slot] = r->generation;
            k->written++;
        } else if (r->status == SWAP_FAILED) {
            disk_retire(k, STORE_BLOCKS, r->slot);
        } else {
            swap_slot_give(k->swap, STORE_BLOCKS, r->slot);
        }
    }
}

void chain_over(struct disk *k, struct swap_order *o)
{
    struct chain *c = o->owner;
    enum swap_status status = o->status;
    commit(k, c, o);
    marks_end(k, c);
    c->order = NULL;
    swap_order_free(k->swap, o);
    if (status != SWAP_GOOD)
        writes_failed(k, status);
    if (status != SWAP_GOOD || !chain_go(k, c))
        chain_end(k, c);
}

bool disk_can_write(const struct disk *k)
{
    return !k->scanning && clock_ns() >= k->full_until_ns && swap_facts(k->swap).writable;
}

/* In good time: by insert, or as there are too few pages that can be had at once, free, or idle
 * with a copy. Not for the price of a copy whose block is in the pool: that one would be the next
 * to be written, and so on without an end. Who waits for pages pays it: what leaves the pool is
 * kept, what stays there needs no copy. */
static bool wanted(const struct disk *k)
{
    if (k->pressed)
        return true;
    uint64_t ready = (uint64_t)k->d->pool.n_free + index_clean(k->d->index);
    bool room = swap_free(k->swap, STORE_BLOCKS) || index_spare_copy(k->d->index);
    return room && (k->write == SWAP_WRITE_INSERT || ready < k->low_water);
}

struct chain *chain_begin(struct disk *k, struct place leaf, struct move *state)
{
    struct chain *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    index_hold_io(k->d->index, &c->leaf, leaf);
    list_append(&k->chains, &c->link);
    k->n_chains++;
    if (chain_go(k, c)) {
        c->state = state;
        return c;
    }
    chain_end(k, c);
    return NULL;
}

bool chains_step(struct disk *k)
{
    struct place leaf;
    bool begun = false;
    if (!disk_can_write(k))
        return false;
    while (k->n_chains < k->max_chains && wanted(k) && index_dirty(k->d->index, &leaf)) {
        begun = true;
        if (!chain_begin(k, leaf, NULL))
            break;
    }
    k->pressed = false;
    return begun;
}

/* After any answer: those that waited for another's. */
void chains_again(struct disk *k)
{
    k->no_order = false;
    list_each (at, after, &k->chains) {
        struct chain *c = list_entry(at, struct chain, link);
        if (!c->order && !chain_go(k, c))
            chain_end(k, c);
    }
}
