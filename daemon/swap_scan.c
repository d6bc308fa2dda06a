/*
 * swap_scan.c - what a restart finds. Two readings of the headers:
 *
 *   1. all of them, in sequence: each checked; generation and payload checksum are kept for reading
 *      (struct slot_fact), and a few bytes of those that are alive (struct found)
 *   2. by generation, a window of some hundred at a time: bodies are read again, and handed over in
 *      batches. What a record hangs on has a lower generation, so it has been handed over before -
 *      or else the record is dropped, and all that hangs on it in its turn.
 *
 * Blocks first, then snapshots, which hang on blocks. Memory: 24 bytes a record until the scan is
 * over, beside the 24 of the slot; and the batches, whose number is bounded: when the index thread
 * is slow, the scan waits for it.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNKS = 4,
    CHUNK_BYTES = 1 << 20,
    WINDOW = 8, /* batches that are read at once */
    READS = 16, /* operations for them */
};

enum found_state { FOUND_WAITS, FOUND_HANDED, FOUND_DROPPED };

struct found {
    uint64_t generation;
    uint64_t parent; /* generation; 0: none */
    uint32_t slot;
    uint8_t store;
    uint8_t state;
};

struct batch {
    struct job *job;
    uint32_t n, issued;
    struct found *found[SWAP_BATCH];
    struct found *parent[SWAP_BATCH]; /* NULL: on the root */
};

struct scan {
    enum scan_phase { SCAN_HEADERS, SCAN_BODIES } phase;
    struct found *found;
    size_t n;
    unsigned reading; /* operations under way */
    /* 1 */
    uint8_t *chunk[CHUNKS];
    uint32_t chunk_first[CHUNKS], chunk_n[CHUNKS];
    bool chunk_busy[CHUNKS];
    uint32_t existed[SWAP_STORES * SWAP_PATHS]; /* slots that existed at the start, of each file */
    unsigned file;
    uint32_t local;
    /* 2 */
    unsigned store;
    size_t next;
    struct batch batch[WINDOW];
    unsigned n_batches;
    struct job *spare[SWAP_SCANS];
    unsigned n_spare, n_jobs;
};

static void see_generation(struct swap *sw, uint64_t generation)
{
    if (generation > sw->highest_generation)
        shm_store(&sw->highest_generation, generation);
}

bool scan_begin(struct swap *sw)
{
    struct scan *c = sw->scan = calloc(1, sizeof *c);
    if (!c)
        return false;
    size_t most = 0;
    for (unsigned i = 0; i < sw->n_files; i++) {
        const struct swap_file *f = &sw->file[i];
        most += c->existed[i] = f->ready;
        see_generation(sw, f->super.flushed_all);
        see_generation(sw, flushes_highest(f->flushes));
    }
    bool whole = true;
    for (int i = 0; i < CHUNKS; i++)
        whole &= (c->chunk[i] = malloc(CHUNK_BYTES)) != NULL;
    c->found = malloc((most + 1) * sizeof *c->found); /* touched as it is filled */
    return whole && c->found;
}

void scan_free(struct swap *sw)
{
    struct scan *c = sw->scan;
    if (!c)
        return;
    for (unsigned i = 0; i < c->n_spare; i++)
        free(c->spare[i]);
    for (unsigned i = 0; i < c->n_batches; i++)
        free(c->batch[i].job);
    for (int i = 0; i < CHUNKS; i++)
        free(c->chunk[i]);
    free(c->found);
    free(c);
    sw->scan = NULL;
}

bool scan_knows(const struct swap *sw)
{
    return !sw->scan || sw->scan->phase != SCAN_HEADERS;
}

/* ---- 1. headers ---- */

static void consider(struct swap *sw, const struct swap_file *f, const struct slot_header *h,
                     uint32_t local)
{
    struct swap_store *s = &sw->store[f->store];
    uint32_t slot = f->first_slot + local;
    if (!h->magic || !header_fits(h, f, local, s->header_bytes))
        return;
    see_generation(sw, h->generation);
    if (h->magic == RETIRED_MAGIC) {
        s->retired[slot / 64] |= 1ull << slot % 64;
        return;
    }
    struct slot_fact *fact = &s->fact[slot];
    fact->generation = h->generation;
    memcpy(fact->payload, h->payload, sizeof fact->payload);
    const struct body_prefix *p = (const struct body_prefix *)(const void *)(h + 1);
    if (h->body_bytes < sizeof *p || p->parent_generation >= h->generation ||
        flushed(f, p->space, h->generation))
        return;
    sw->scan->found[sw->scan->n++] = (struct found){.generation = h->generation,
                                                    .parent = p->parent_generation,
                                                    .slot = slot,
                                                    .store = (uint8_t)f->store};
}

/* Slots whose headers cannot be read are not used, in this life; nor are generations they may have.
 */
static void unreadable(struct swap *sw, const struct swap_file *f, uint32_t local, uint32_t n,
                       int error)
{
    struct swap_store *s = &sw->store[f->store];
    log_warning("%s: the headers of %u slots cannot be read: %s", f->name, n, strerror(error));
    sw->generation_jump = true;
    for (uint32_t slot = f->first_slot + local; n; slot++, n--)
        s->retired[slot / 64] |= 1ull << slot % 64;
}

void scan_headers_over(struct swap *sw, struct op *op, int error)
{
    struct scan *c = sw->scan;
    const struct swap_file *f = op->file;
    uint32_t i = op->first, bytes = sw->store[f->store].header_bytes;
    c->reading--;
    c->chunk_busy[i] = false;
    if (error) {
        unreadable(sw, f, c->chunk_first[i], c->chunk_n[i], error);
        return;
    }
    for (uint32_t k = 0; k < c->chunk_n[i]; k++)
        consider(sw, f, (const struct slot_header *)(const void *)(c->chunk[i] + (size_t)k * bytes),
                 c->chunk_first[i] + k);
}

static bool next_chunk(struct swap *sw, unsigned i)
{
    struct scan *c = sw->scan;
    while (c->file < sw->n_files && c->local >= c->existed[c->file]) {
        c->file++;
        c->local = 0;
    }
    if (c->file == sw->n_files)
        return false;
    struct swap_file *f = &sw->file[c->file];
    const struct swap_store *s = &sw->store[f->store];
    uint32_t n = f->super.extent_slots - c->local % f->super.extent_slots; /* to the extent's end */
    if (n > c->existed[c->file] - c->local)
        n = c->existed[c->file] - c->local;
    if (n > CHUNK_BYTES / s->header_bytes)
        n = CHUNK_BYTES / s->header_bytes;
    c->chunk_first[i] = c->local;
    c->chunk_n[i] = n;
    c->chunk_busy[i] = true;
    c->local += n;
    c->reading++;
    struct op *op = op_new(sw, OP_HEADERS, f);
    op->first = i;
    op->offset = header_offset(s, f, c->chunk_first[i]);
    op->base = c->chunk[i];
    op->length = n * s->header_bytes;
    op_send(sw, op);
    return true;
}

/* By generation, in place: by bits from the top, as 24 bytes more a record would be too much. */
static void sort(struct found *f, size_t n, int bit)
{
    while (n > 1 && bit >= 0) {
        size_t low = 0, high = n;
        while (low < high) {
            if (!(f[low].generation >> bit & 1)) {
                low++;
                continue;
            }
            struct found t = f[--high];
            f[high] = f[low];
            f[low] = t;
        }
        bit--;
        sort(f, low, bit);
        f += low;
        n -= low;
    }
}

static int top_bit(uint64_t n)
{
    return n ? 63 - __builtin_clzll(n) : 0;
}

static void headers_are_known(struct swap *sw)
{
    struct scan *c = sw->scan;
    sort(c->found, c->n, top_bit(sw->highest_generation));
    for (size_t i = 1; i < c->n; i++) /* two of one number: neither is known by it */
        if (c->found[i].generation == c->found[i - 1].generation)
            c->found[i].state = c->found[i - 1].state = FOUND_DROPPED;
    if (sw->generation_jump)
        see_generation(sw, sw->highest_generation + GENERATION_JUMP);
    c->phase = SCAN_BODIES;
}

static bool headers_step(struct swap *sw)
{
    struct scan *c = sw->scan;
    for (unsigned i = 0; i < CHUNKS; i++)
        if (!c->chunk_busy[i] && !next_chunk(sw, i))
            break;
    if (c->reading)
        return false;
    headers_are_known(sw);
    return true;
}

/* ---- 2. bodies ---- */

static struct found *find(struct scan *c, uint64_t generation)
{
    size_t from = 0, to = c->n;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (c->found[middle].generation < generation)
            from = middle + 1;
        else
            to = middle;
    }
    return from < c->n && c->found[from].generation == generation ? &c->found[from] : NULL;
}

/* Is its chain whole as far as is known? *parent: NULL on the root. */
static bool hangs(struct scan *c, const struct found *f, struct found **parent)
{
    *parent = f->parent ? find(c, f->parent) : NULL;
    return !f->parent ||
           (*parent && (*parent)->store == STORE_BLOCKS && (*parent)->state != FOUND_DROPPED);
}

/* The next records of this store, as many as a batch holds. */
static bool batch_fill(struct scan *c, struct batch *b)
{
    b->n = b->issued = 0;
    for (; c->next < c->n && b->n < SWAP_BATCH; c->next++) {
        struct found *f = &c->found[c->next];
        if (f->store != c->store || f->state == FOUND_DROPPED)
            continue;
        if (hangs(c, f, &b->parent[b->n]))
            b->found[b->n++] = f;
        else
            f->state = FOUND_DROPPED;
    }
    return b->n != 0;
}

static struct job *spare_job(struct swap *sw)
{
    struct scan *c = sw->scan;
    if (c->n_spare)
        return c->spare[--c->n_spare];
    if (c->n_jobs == SWAP_SCANS)
        return NULL;
    const struct swap_store *a = &sw->store[0], *b = &sw->store[1];
    struct job *j = job_alloc(a->header_bytes > b->header_bytes ? a : b, true);
    if (!j)
        return NULL;
    c->n_jobs++;
    job_in_no_list(j);
    return j;
}

void scan_back(struct swap *sw, struct job *j)
{
    if (sw->scan)
        sw->scan->spare[sw->scan->n_spare++] = j;
    else
        free(j);
}

static void window_fill(struct swap *sw)
{
    struct scan *c = sw->scan;
    while (c->n_batches < WINDOW) {
        struct batch *b = &c->batch[c->n_batches];
        b->job = spare_job(sw);
        if (!b->job)
            return;
        if (!batch_fill(c, b)) {
            scan_back(sw, b->job);
            return;
        }
        c->n_batches++;
    }
}

static uint8_t *room_of(const struct swap_store *s, const struct batch *b, uint32_t i)
{
    return b->job->staging + (size_t)i * s->header_bytes;
}

/* Those of a batch that follow each other in the file are read as one. */
static void batch_read(struct swap *sw, struct batch *b)
{
    struct scan *c = sw->scan;
    const struct swap_store *s = &sw->store[c->store];
    while (b->issued < b->n && c->reading < READS) {
        uint32_t first = b->issued, slot = b->found[first]->slot, n = 1;
        struct swap_file *f = file_of(s, slot);
        uint32_t room = f->super.extent_slots - (slot - f->first_slot) % f->super.extent_slots;
        while (first + n < b->n && n < room && b->found[first + n]->slot == slot + n &&
               slot + n - f->first_slot < f->n_slots)
            n++;
        struct op *op = op_new(sw, OP_BODIES, f);
        op->job = b->job;
        op->first = first;
        op->n = n;
        op->offset = header_offset(s, f, slot - f->first_slot);
        op->base = room_of(s, b, first);
        op->length = n * s->header_bytes;
        b->issued += n;
        c->reading++;
        op_send(sw, op);
    }
}

void scan_bodies_over(struct swap *sw, struct op *op, int error)
{
    sw->scan->reading--;
    if (error) { /* nothing that could be taken for a header */
        log_warning("%s: headers cannot be read again: %s", op->file->name, strerror(error));
        memset(op->base, 0, op->length);
    }
}

/* Read again, is it what it was, and does it still hang on something? A flush may have come. */
static bool accept(struct swap *sw, struct batch *b, uint32_t i, struct swap_record *r)
{
    const struct swap_store *s = &sw->store[sw->scan->store];
    struct found *f = b->found[i];
    const struct found *parent = b->parent[i];
    const struct swap_file *file = file_of(s, f->slot);
    struct slot_header *h = (struct slot_header *)(void *)room_of(s, b, i);
    struct body_prefix *p = (struct body_prefix *)(void *)(h + 1);
    if ((parent && parent->state != FOUND_HANDED) || h->magic != HEADER_MAGIC ||
        !header_fits(h, file, f->slot - file->first_slot, s->header_bytes) ||
        h->generation != f->generation || flushed(file, p->space, h->generation)) {
        f->state = FOUND_DROPPED;
        return false;
    }
    f->state = FOUND_HANDED;
    p->parent_slot = parent ? parent->slot : NO_SLOT;
    *r = (struct swap_record){.slot = f->slot,
                              .generation = f->generation,
                              .body = (uint8_t *)p,
                              .body_bytes = h->body_bytes};
    return true;
}

static void batch_hand_over(struct swap *sw, struct batch *b)
{
    struct swap_order *o = &b->job->order;
    *o = (struct swap_order){.kind = SWAP_SCAN, .store = (enum swap_store_kind)sw->scan->store};
    for (uint32_t i = 0; i < b->n; i++)
        o->n += accept(sw, b, i, &o->record[o->n]);
    if (o->n)
        job_answer(sw, b->job);
    else
        scan_back(sw, b->job);
}

/* All stores are through, and a job is there to say so. */
static bool say_it_is_over(struct swap *sw)
{
    struct job *j = spare_job(sw);
    if (!j)
        return false;
    j->order = (struct swap_order){.kind = SWAP_SCAN, .last = true};
    scan_free(sw);
    job_answer(sw, j);
    return false;
}

static bool bodies_step(struct swap *sw)
{
    struct scan *c = sw->scan;
    if (!c->n_batches)
        window_fill(sw);
    if (!c->n_batches && c->next < c->n)
        return false; /* all batches are out */
    if (!c->n_batches && ++c->store < SWAP_STORES) {
        c->next = 0;
        return true;
    }
    if (!c->n_batches) {
        c->store = SWAP_STORES - 1; /* again, if there is no job for it now */
        return say_it_is_over(sw);
    }
    bool issued = true;
    for (unsigned i = 0; i < c->n_batches; i++) {
        batch_read(sw, &c->batch[i]);
        issued &= c->batch[i].issued == c->batch[i].n;
    }
    if (c->reading || !issued)
        return false;
    for (unsigned i = 0; i < c->n_batches; i++)
        batch_hand_over(sw, &c->batch[i]);
    c->n_batches = 0;
    return true;
}

bool scan_step(struct swap *sw)
{
    if (!sw->scan)
        return false;
    return sw->scan->phase == SCAN_HEADERS ? headers_step(sw) : bodies_step(sw);
}
