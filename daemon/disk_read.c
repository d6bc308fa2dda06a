/*
 * Fetches: the blocks of one match that are on disk only, read together, published front first.
 *
 *      first      done            issued          n
 *        |  there  |  read, or    |  not yet      |
 *        |         |  on its way  |  ordered      |
 *
 * Each has a page of its own from the start, so two fetches never wait for each other's pages. A
 * block that somebody else is reading is not read again: when it has come, our page for it is free.
 * Pages are in flight until their block has been verified and all before it are there.
 *
 * A fetch belongs to nobody: it ends by itself, whoever asked for it may be dead.
 */
#include "daemon/disk_private.h"
#include "shm/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Which positions an order reads. */
struct reading {
    struct list link; /* fetch.readings */
    struct fetch *fetch;
    uint32_t position[SWAP_BATCH];
};

static void reading_free(struct reading *r)
{
    list_remove(&r->link);
    free(r);
}

static struct place place_of(const struct fetch *f, uint32_t i)
{
    struct place at = f->path.where;
    at.depth = f->first + i + 1;
    return at;
}

static void page_free(struct fetch *f, uint32_t i)
{
    if (f->page[i] != NO_PAGE)
        pool_ditch(&f->disk->d->pool, f->page[i]);
    f->page[i] = NO_PAGE;
}

struct fetch *fetch_begin(struct disk *k, struct place where, const uint32_t *pages, uint32_t n)
{
    struct fetch *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->page = malloc(n * sizeof *f->page);
    f->slot = malloc(n * sizeof *f->slot);
    f->state = calloc(n, 1);
    if (!f->page || !f->slot || !f->state ||
        !index_path_ids(index_view_of(k->d->index), where, where.depth - n, where.depth, NULL,
                        f->slot)) {
        free(f->page);
        free(f->slot);
        free(f->state);
        free(f);
        return NULL;
    }
    f->disk = k;
    list_init(&f->readings);
    f->first = where.depth - n;
    f->n = n;
    f->waited = true;
    for (uint32_t i = 0; i < n; i++) {
        f->page[i] = pages[i];
        pool_fly(&k->d->pool, pages[i]);
    }
    index_hold_io(k->d->index, &f->path, where);
    list_append(&k->fetches, &f->link);
    return f;
}

/* ---- ordering ------------------------------------------------------------------------------- */

/* Where the copies of the next positions are now: a scan may have found newer ones. */
static uint32_t copies_of(struct disk *k, struct fetch *f)
{
    uint32_t end = f->n - f->issued < SWAP_BATCH ? f->n : f->issued + SWAP_BATCH;
    bool there = index_path_ids(index_view_of(k->d->index), f->path.where, f->first + f->issued,
                                f->first + end, NULL, f->slot + f->issued);
    assert(there);
    (void)there;
    return end;
}

/* One order of what is next; false: nothing is, or no order is to be had. */
static bool order_next(struct disk *k, struct fetch *f)
{
    if (f->issued < f->done)
        f->issued = f->done; /* those came by another's hand, and have no page of ours */
    if (f->issued == f->n)
        return false;
    struct reading *r = malloc(sizeof *r);
    struct swap_order *o = r ? swap_order_new(k->swap, SWAP_READ, STORE_BLOCKS) : NULL;
    if (!o) {
        free(r);
        return false;
    }
    r->fetch = f;
    list_append(&f->readings, &r->link);
    for (uint32_t end = copies_of(k, f); f->issued < end; f->issued++) {
        uint32_t i = f->issued, slot = f->slot[i];
        if (f->state[i] != READ_WANTED)
            continue;
        if (slot == NO_DISK || k->reader[slot]) {
            f->state[i] = READ_SHARED;
            continue;
        }
        k->reader[slot] = f;
        f->state[i] = READ_ISSUED;
        r->position[o->n] = i;
        o->record[o->n++] = (struct swap_record){
            .slot = slot, .record = f->page[i], .generation = k->generation[slot]};
    }
    o->owner = r;
    if (o->n == 0) {
        reading_free(r);
        swap_order_free(k->swap, o);
        return true;
    }
    f->in_flight++;
    swap_submit(k->swap, o);
    return true;
}

void read_over(struct disk *k, struct swap_order *o)
{
    struct reading *r = o->owner;
    struct fetch *f = r->fetch;
    for (uint32_t i = 0; i < o->n; i++) {
        const struct swap_record *x = &o->record[i];
        k->reader[x->slot] = NULL;
        if (k->generation[x->slot] == 0)
            swap_slot_give(k->swap, STORE_BLOCKS, x->slot);
        f->state[r->position[i]] = x->status == SWAP_GOOD ? READ_GOOD : READ_BAD;
        if (x->status == SWAP_GOOD)
            k->read++;
        if (x->status == SWAP_CORRUPT && k->generation[x->slot] == x->generation)
            k->generation[x->slot] = GENERATION_BAD; /* still the copy that was meant */
    }
    f->in_flight--;
    reading_free(r);
    swap_order_free(k->swap, o);
}

/* ---- publishing -------------------------------------------------------------------------------
 */

/* The next block has been read, or has come by another's hand. */
static bool publish(struct disk *k, struct fetch *f)
{
    uint32_t i = f->done;
    struct index *ix = k->d->index;
    if (f->state[i] == READ_ISSUED)
        return false; /* whoever has brought the block meanwhile, our page is being written to */
    if (index_on_device_to(ix, place_of(f, i))) {
        page_free(f, i);
        f->done++;
        return true;
    }
    if (f->state[i] == READ_GOOD) {
        pool_land(&k->d->pool, f->page[i]);
        if (!index_page_arrive(ix, place_of(f, i), f->page[i]))
            pool_unpublish(&k->d->pool, f->page[i]);
        f->page[i] = NO_PAGE;
        f->done++;
        return true;
    }
    if (f->state[i] == READ_SHARED && (f->slot[i] == NO_DISK || !k->reader[f->slot[i]])) {
        f->state[i] = READ_WANTED; /* the other one failed: try it ourselves */
        f->issued = i;
        if (f->slot[i] == NO_DISK || f->retried++ > f->n)
            f->state[i] = READ_BAD;
        return f->state[i] == READ_BAD;
    }
    return false;
}

static bool fetch_go(struct disk *k, struct fetch *f)
{
    bool busy = false;
    while (f->done < f->n && !f->bad && publish(k, f))
        busy = true;
    f->bad = f->done < f->n && f->state[f->done] == READ_BAD;
    while (!f->bad && f->in_flight < k->max_reads && order_next(k, f))
        busy = true;
    return busy;
}

static bool fetch_over(const struct fetch *f)
{
    return f->in_flight == 0 && (f->bad || f->done == f->n);
}

void fetch_free(struct fetch *f)
{
    list_remove(&f->link);
    list_each (at, after, &f->readings) /* the daemon stops */
        reading_free(list_entry(at, struct reading, link));
    free(f->page);
    free(f->slot);
    free(f->state);
    free(f);
}

/* Its holds end when it is over; it stays for whoever looks. */
static void fetch_end(struct disk *k, struct fetch *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        page_free(f, i);
    index_unhold(k->d->index, &f->path);
    f->ended = true;
    if (!f->waited)
        fetch_free(f);
}

bool fetches_step(struct disk *k)
{
    bool busy = false;
    list_each (at, after, &k->fetches) {
        struct fetch *f = list_entry(at, struct fetch, link);
        if (f->ended)
            continue;
        busy |= fetch_go(k, f);
        if (fetch_over(f))
            fetch_end(k, f);
    }
    return busy;
}

int fetch_look(const struct fetch *f, uint32_t *depth)
{
    if (!f->ended)
        return 1;
    *depth = f->first + f->done;
    return f->done == f->n ? 0 : STATUS_EIO;
}

void fetch_leave(struct fetch *f)
{
    f->waited = false;
    if (f->ended)
        fetch_free(f);
}
