/*
 * Start and stop of the disk tier, what the swap thread answers, and pages for those who need some.
 *
 * Pressure. A part of the pool (low_water) is kept free or clean: idle blocks that are on disk
 * already, whose pages can go at once. When a reserve finds only unwritten victims it waits for
 * chains, for DISK_WAIT_NS at most; then, or when nothing can be written, victims are lost and
 * counted: a slow disk costs hits, never progress.
 */
#include "daemon/disk_private.h"
#include "daemon/geometry.h"
#include "daemon/log.h"
#include "shm/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LOW_WATER_PART = 16, LOW_WATER_LEAST = 64, MAX_READS = 8 };

static void *sparse(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void unmap(void *p, uint64_t bytes)
{
    if (p)
        munmap(p, bytes);
}

void disk_retire(struct disk *k, enum swap_store_kind store, uint32_t slot)
{
    struct swap_order *o = swap_order_new(k->swap, SWAP_RETIRE, store);
    if (!o)
        return; /* not given out again in this life; its header fits no payload */
    o->n = 1;
    o->record[0].slot = slot;
    swap_submit(k->swap, o);
}

static void on_slot_gone(void *arg, uint32_t slot)
{
    struct disk *k = arg;
    bool bad = k->generation[slot] == GENERATION_BAD;
    k->generation[slot] = 0;
    if (k->reader[slot])
        return; /* a scan has found a newer one: read_over gives it back */
    if (bad)
        disk_retire(k, STORE_BLOCKS, slot);
    else
        swap_slot_give(k->swap, STORE_BLOCKS, slot);
}

/* ---- start and stop ------------------------------------------------------------------------ */

static uint32_t low_water(uint32_t n_blocks)
{
    uint32_t part = n_blocks / LOW_WATER_PART;
    if (part < LOW_WATER_LEAST)
        part = n_blocks / 2 < LOW_WATER_LEAST ? n_blocks / 2 : LOW_WATER_LEAST;
    return part;
}

struct disk *disk_start(struct daemon *d, const struct swap_config *config, char *why, size_t n_why)
{
    struct disk *k = calloc(1, sizeof *k);
    snprintf(why, n_why, "--swap: there is no memory for its tables");
    if (!k)
        return NULL;
    k->d = d;
    k->n_slots = index_view_of(d->index)->params.n_disk;
    k->write = d->options->swap_write;
    k->max_chains = config->depth;
    k->max_reads = MAX_READS;
    k->low_water = low_water(index_view_of(d->index)->params.n_blocks);
    k->scanning = true;
    list_init(&k->chains);
    list_init(&k->fetches);
    list_init(&k->flushes);
    k->generation = sparse(k->n_slots * sizeof *k->generation);
    k->reader = sparse(k->n_slots * sizeof *k->reader);
    k->restored = sparse(k->n_slots * sizeof *k->restored);
    if (states_init(k) && k->generation && k->reader && k->restored)
        k->swap = swap_start(config, why, n_why);
    if (!k->swap) {
        disk_stop(k);
        return NULL;
    }
    index_set_slot_gone(d->index, on_slot_gone, k);
    return k;
}

static void flush_free(struct disk_flush *f)
{
    list_remove(&f->link);
    free(f);
}

void disk_stop(struct disk *k)
{
    if (!k)
        return;
    if (k->swap)
        swap_stop(k->swap);
    unmap(k->generation, k->n_slots * sizeof *k->generation);
    unmap(k->reader, k->n_slots * sizeof *k->reader);
    unmap(k->restored, k->n_slots * sizeof *k->restored);
    list_each (at, after, &k->chains)
        free(list_entry(at, struct chain, link));
    list_each (at, after, &k->fetches)
        fetch_free(list_entry(at, struct fetch, link));
    list_each (at, after, &k->flushes)
        flush_free(list_entry(at, struct disk_flush, link));
    states_deinit(k);
    free(k);
}

int disk_fd(const struct disk *k)
{
    return swap_fd(k->swap);
}

/* ---- answers -----------------------------------------------------------------------------------
 */

static void scan_over(struct disk *k)
{
    k->scanning = false;
    unmap(k->restored, k->n_slots * sizeof *k->restored);
    k->restored = NULL;
    log_info("disk: %u of %u slots hold blocks", index_on_disk(k->d->index), k->n_slots);
    if (k->states.max)
        log_info("disk: %u spilled snapshots were found", snapshots_tiered(k->d->snapshots));
}

static void take(struct disk *k, struct swap_order *o)
{
    switch (o->kind) {
    case SWAP_WRITE:
        (o->store == STORE_BLOCKS ? chain_over : state_over)(k, o);
        return;
    case SWAP_READ:
        (o->store == STORE_BLOCKS ? read_over : state_over)(k, o);
        return;
    case SWAP_SCAN:
        restore_take(k, o);
        if (o->last)
            scan_over(k);
        break;
    case SWAP_FLUSH:
        flush_over(o->owner, o);
        break;
    case SWAP_RETIRE:
        break;
    }
    swap_order_free(k->swap, o);
}

enum { ANSWERS_A_STEP = 4 };

bool disk_step(struct disk *k)
{
    struct swap_order *o;
    int n = 0;
    while (n < ANSWERS_A_STEP && (o = swap_take(k->swap))) {
        take(k, o);
        n++;
    }
    bool grown = k->starved_ns && swap_free(k->swap, STORE_BLOCKS);
    if (grown)
        k->starved_ns = 0;
    if (n || grown || k->starved_ns || k->no_order)
        chains_again(k);
    bool busy = fetches_step(k);
    busy |= states_step(k);
    busy |= swap_ready(k->swap, STORE_BLOCKS) != k->d->counters.disk_ready_blocks; /* to be told */
    return chains_step(k) || busy || n;
}

/* ---- pages
 * --------------------------------------------------------------------------------------- */

/* Not for longer than DISK_WAIT_NS, in all that a caller asks for. */
static bool patient(uint64_t *began_ns)
{
    uint64_t now = clock_ns();
    if (!*began_ns)
        *began_ns = now;
    return now - *began_ns < DISK_WAIT_NS;
}

/* Is it worth while to wait for writes? */
static bool may_wait(struct disk *k, uint64_t *began_ns)
{
    if (!patient(began_ns) || !disk_can_write(k))
        return false;
    k->pressed = true;
    return true;
}

bool disk_gives_up(struct disk *k, uint64_t *since_ns)
{
    return !patient(since_ns) && !swap_facts(k->swap).healthy;
}

/* Blocks in flight are room soon. What a sick device does not give back in good time is as good as
 * held. */
static bool comes_back(struct disk *k, uint64_t *began_ns)
{
    return index_busy(k->d->index) && !disk_gives_up(k, began_ns);
}

enum page_room disk_pages(struct disk *k, uint32_t n, uint64_t *began_ns,
                          struct index_evicted *gone)
{
    struct index *ix = k->d->index;
    const struct pool *p = &k->d->pool;
    if (p->n_free < n)
        (void)index_free_pages(ix, n - p->n_free, false, gone);
    if (p->n_free >= n)
        return PAGES_READY;
    if (n > (uint64_t)p->n_free + index_idle(ix) + index_busy(ix))
        return PAGES_NONE;
    if (may_wait(k, began_ns))
        return PAGES_SOON;
    (void)index_free_pages(ix, n - p->n_free, true, gone);
    if (p->n_free >= n)
        return PAGES_READY;
    return comes_back(k, began_ns) ? PAGES_SOON : PAGES_NONE;
}

bool disk_evict(struct disk *k, uint32_t n, uint64_t *began_ns, struct index_evicted *gone)
{
    bool clean = index_free_pages(k->d->index, n, false, gone);
    if (!clean && may_wait(k, began_ns))
        return true;
    if (!clean)
        (void)index_free_pages(k->d->index, n - gone->freed, true, gone);
    return gone->freed == n || comes_back(k, began_ns);
}

/* ---- flush
 * --------------------------------------------------------------------------------------- */

struct disk_flush *disk_flush_begin(struct disk *k, const struct space_key *key)
{
    struct disk_flush *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->disk = k;
    if (key)
        space_digest(key, f->space);
    list_append(&k->flushes, &f->link);
    return f;
}

bool being_flushed(const struct disk *k, const uint64_t space[2])
{
    list_each (at, after, &k->flushes) {
        const struct disk_flush *f = list_entry(at, struct disk_flush, link);
        bool all = f->space[0] == 0 && f->space[1] == 0;
        if (all || (f->space[0] == space[0] && f->space[1] == space[1]))
            return true;
    }
    return false;
}

/* The next store's; false: no order is to be had now. */
static bool flush_store(struct disk_flush *f)
{
    struct swap *sw = f->disk->swap;
    struct swap_order *o = swap_order_new(sw, SWAP_FLUSH, (enum swap_store_kind)f->ordered);
    if (!o)
        return false;
    memcpy(o->space, f->space, sizeof o->space);
    o->generation = UINT64_MAX;
    o->owner = f;
    f->ordered++;
    f->orders++;
    swap_submit(sw, o);
    return true;
}

int disk_flush_go(struct disk_flush *f)
{
    unsigned stores = f->disk->states.max ? SWAP_STORES : 1;
    while (f->ordered < stores)
        if (!flush_store(f))
            return 1;
    return f->orders ? 1 : f->failed ? STATUS_EIO : 0;
}

void flush_over(struct disk_flush *f, const struct swap_order *o)
{
    f->orders--;
    f->failed |= o->status != SWAP_GOOD; /* the swap thread goes on trying */
    if (f->left && !f->orders)
        flush_free(f);
}

void disk_flush_end(struct disk_flush *f)
{
    f->left = true;
    if (!f->orders)
        flush_free(f);
}

/* ---- counters
 * ------------------------------------------------------------------------------------ */

void disk_publish(const struct disk *k)
{
    struct counters *c = &k->d->counters;
    struct swap_facts f = swap_facts(k->swap);
    c->disk_used = index_on_disk(k->d->index);
    c->disk_read_blocks = k->read;
    c->disk_written_blocks = k->written;
    c->disk_errors = f.errors;
    c->disk_ready_blocks = swap_ready(k->swap, STORE_BLOCKS);
    c->disk_scan_done = !k->scanning;
    c->disk_in_flight = f.in_flight;
    c->disk_uring = f.uring;
    c->disk_healthy = f.healthy;
    c->disk_unused_files = f.foreign;
}
