#include "tests/model/trial_swap.h"
#include "daemon/list.h"
#include "tests/model/trial_swap_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct trial_disk *inserted;

bool trial_fault(struct trial_disk *t, uint32_t one_in)
{
    bool yes = one_in && rng_below(t->config.rng, one_in) == 0;
    t->faults += yes;
    return yes;
}

/* ---- the files ---- */

struct trial_disk *trial_disk_new(const struct trial_disk_config *config)
{
    struct trial_disk *t = calloc(1, sizeof *t);
    REQUIRE(t != NULL);
    t->config = *config;
    return t;
}

struct trial_disk_config *trial_disk_config_of(struct trial_disk *t)
{
    return &t->config;
}

void trial_disk_insert(struct trial_disk *t)
{
    inserted = t;
}

void trial_disk_free(struct trial_disk *t)
{
    REQUIRE(t->live == NULL);
    for (int k = 0; k < SWAP_STORES; k++) {
        struct trial_store *s = &t->store[k];
        for (uint32_t i = 0; i < s->n; i++) {
            free(s->slot[i].body);
            free(s->slot[i].payload);
        }
        free(s->slot);
    }
    free(t);
    inserted = NULL;
}

/* Files of so many slots; a smaller budget has cut what is beyond it. */
static void store_open(struct trial_disk *t, enum swap_store_kind kind,
                       const struct swap_config *config)
{
    struct trial_store *s = &t->store[kind];
    const struct swap_store_config *c = &config->store[kind];
    uint32_t n = c->record_bytes ? t->config.slots[kind] : 0;
    if (!n)
        return;
    REQUIRE(s->n == 0 || (s->body_bytes == c->body_bytes &&
                          s->payload_bytes == c->record_bytes * config->n_pieces));
    s->body_bytes = c->body_bytes;
    s->payload_bytes = c->record_bytes * config->n_pieces;
    if (n > s->n) {
        s->slot = realloc(s->slot, n * sizeof *s->slot);
        REQUIRE(s->slot != NULL);
        memset(s->slot + s->n, 0, (n - s->n) * sizeof *s->slot);
    }
    for (; s->n < n; s->n++) {
        s->slot[s->n].body = calloc(1, s->body_bytes);
        s->slot[s->n].payload = calloc(1, s->payload_bytes);
        REQUIRE(s->slot[s->n].body && s->slot[s->n].payload);
    }
    for (uint32_t i = n; i < s->n; i++)
        s->slot[i].headed = s->slot[i].retired = false;
    if (s->ready > n || !t->config.grows)
        s->ready = n;
}

uint64_t trial_sum(const uint8_t *bytes, uint64_t n)
{
    uint64_t sum = 0xcbf29ce484222325;
    for (uint64_t i = 0; i < n; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3;
    return sum;
}

bool trial_flushed(const struct trial_disk *t, enum swap_store_kind store, const uint64_t space[2],
                   uint64_t generation)
{
    const struct trial_store *s = &t->store[store];
    if (generation <= s->flushed_all)
        return true;
    for (uint32_t i = 0; i < s->n_flushes; i++)
        if (memcmp(s->flush[i].space, space, sizeof s->flush[i].space) == 0)
            return generation <= s->flush[i].generation;
    return false;
}

void trial_flush(struct trial_disk *t, enum swap_store_kind store, const uint64_t space[2],
                 uint64_t generation)
{
    struct trial_store *s = &t->store[store];
    uint32_t i = 0;
    if (!space[0] && !space[1]) {
        s->flushed_all = generation > s->flushed_all ? generation : s->flushed_all;
        return;
    }
    while (i < s->n_flushes && memcmp(s->flush[i].space, space, sizeof s->flush[i].space) != 0)
        i++;
    REQUIRE(i < TRIAL_FLUSHES);
    if (i == s->n_flushes)
        s->flush[s->n_flushes++] =
            (struct trial_flush){.space = {space[0], space[1]}, .generation = generation};
    if (generation > s->flush[i].generation)
        s->flush[i].generation = generation;
}

void trial_look(const struct trial_disk *t, enum swap_store_kind store, uint32_t slot,
                struct trial_record *out)
{
    const struct trial_store *s = &t->store[store];
    REQUIRE(slot < s->n);
    const struct trial_slot *x = &s->slot[slot];
    *out = (struct trial_record){.headed = x->headed,
                                 .whole = x->sum == trial_sum(x->payload, s->payload_bytes),
                                 .generation = x->generation,
                                 .body = x->body,
                                 .payload = x->payload,
                                 .body_bytes = x->body_bytes};
}

uint64_t trial_generation(const struct trial_disk *t)
{
    return t->live->next;
}

struct trial_counts trial_counts(const struct trial_disk *t, enum swap_store_kind store)
{
    const struct swap *sw = t->live;
    const struct live_store *l = &sw->store[store];
    struct trial_counts n = {.unretired = l->unretired,
                             .in_writes = l->in_writes,
                             .reads_taken = l->reads_taken,
                             .faults = t->faults,
                             .orders = sw->n_out};
    for (uint32_t i = 0; i < l->n; i++) {
        n.taken += l->slot[i].owner == SLOT_TAKEN;
        n.retired += l->slot[i].owner == SLOT_RETIRED;
    }
    return n;
}

/* ---- start and stop ---- */

static uint64_t highest_generation(const struct trial_disk *t)
{
    uint64_t highest = 0;
    for (int k = 0; k < SWAP_STORES; k++) {
        const struct trial_store *s = &t->store[k];
        for (uint32_t i = 0; i < s->n; i++)
            if (s->slot[i].headed || s->slot[i].retired)
                highest = s->slot[i].generation > highest ? s->slot[i].generation : highest;
        highest = s->flushed_all > highest ? s->flushed_all : highest;
        for (uint32_t i = 0; i < s->n_flushes; i++)
            highest = s->flush[i].generation > highest ? s->flush[i].generation : highest;
    }
    return highest;
}

/* What is known of the slots before anything has been read: as by the first reading of a scan. */
static void live_init(struct swap *sw, enum swap_store_kind kind)
{
    struct trial_disk *t = sw->disk;
    struct live_store *l = &sw->store[kind];
    l->files = &t->store[kind];
    l->config = &sw->config.store[kind];
    l->n = l->config->record_bytes ? t->config.slots[kind] : 0;
    l->slot = calloc(l->n + 1ul, sizeof *l->slot);
    l->page = calloc(l->config->pool_records + 1, sizeof *l->page);
    REQUIRE(l->slot && l->page);
    for (uint32_t i = 0; i < l->n && i < l->files->ready; i++) {
        const struct trial_slot *x = &l->files->slot[i];
        if (x->retired)
            l->slot[i].owner = SLOT_RETIRED;
        if (x->headed)
            l->slot[i].generation = x->generation;
        l->slot[i].sum = x->sum;
    }
}

struct swap *swap_start(const struct swap_config *config, char *why, size_t n_why)
{
    (void)why;
    (void)n_why;
    REQUIRE(inserted && !inserted->live && config->n_pieces >= 1);
    struct swap *sw = calloc(1, sizeof *sw);
    REQUIRE(sw != NULL);
    sw->disk = inserted;
    sw->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    REQUIRE(sw->fd >= 0);
    sw->disk->live = sw;
    sw->disk->dead = false;
    sw->config = *config;
    sw->scanning = sw->healthy = true;
    list_init(&sw->under_way);
    list_init(&sw->over);
    for (int k = 0; k < SWAP_STORES; k++) {
        store_open(sw->disk, (enum swap_store_kind)k, config);
        live_init(sw, (enum swap_store_kind)k);
    }
    sw->highest = highest_generation(sw->disk);
    trial_scan_begin(sw);
    return sw;
}

static void crowd_free(struct list *crowd)
{
    list_each (at, after, crowd)
        free(list_entry(at, struct trial_order, link));
}

/* What has begun is brought to its end, the rest is given up: as at a kill. */
void swap_stop(struct swap *sw)
{
    if (!sw)
        return;
    struct trial_disk *t = sw->disk;
    if (!t->dead)
        trial_kill(t);
    crowd_free(&sw->under_way);
    crowd_free(&sw->over);
    for (int k = 0; k < SWAP_STORES; k++) {
        free(sw->store[k].slot);
        free(sw->store[k].page);
    }
    free(sw->found);
    close(sw->fd);
    free(sw);
    t->live = NULL;
}

int swap_fd(const struct swap *sw)
{
    return sw->fd;
}

uint64_t swap_file_slots(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t budget)
{
    return budget / (record_bytes * n_pieces + body_bytes + sizeof(struct slot_header));
}

uint64_t swap_file_bytes(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t n_slots)
{
    return n_slots * (record_bytes * n_pieces + body_bytes + sizeof(struct slot_header));
}

struct swap_buffers swap_buffers(uint64_t record_bytes)
{
    (void)record_bytes;
    return (struct swap_buffers){0}; /* no GPU comes here */
}

bool swap_scanning(const struct swap *sw)
{
    return sw->scanning;
}

uint64_t swap_generation(struct swap *sw)
{
    REQUIRE(!sw->scanning);
    return sw->next++;
}

struct swap_facts swap_facts(const struct swap *sw)
{
    return (struct swap_facts){.reads = sw->reads,
                               .writes = sw->writes,
                               .errors = sw->errors,
                               .in_flight = sw->n_out,
                               .growing = swap_ready(sw, STORE_BLOCKS) < sw->store[0].n,
                               .healthy = sw->healthy && !sw->disk->dead,
                               .writable = sw->healthy && !sw->disk->dead};
}

/* ---- slots ---- */

uint32_t swap_slots(const struct swap *sw, enum swap_store_kind store)
{
    return sw->store[store].n;
}

uint32_t swap_ready(const struct swap *sw, enum swap_store_kind store)
{
    return sw->store[store].known;
}

uint32_t swap_free(const struct swap *sw, enum swap_store_kind store)
{
    return sw->store[store].n_free;
}

bool swap_will_grow(const struct swap *sw, enum swap_store_kind store)
{
    return sw->store[store].known < sw->store[store].n;
}

/* The same as swap_slots.c, but from anywhere: runs are short, and slots are used again at once. */
uint32_t swap_slots_take(struct swap *sw, enum swap_store_kind store, uint32_t n, uint32_t *slot)
{
    struct live_store *l = &sw->store[store];
    if (!l->n_free || !n)
        return 0;
    uint32_t at = rng_below(sw->disk->config.rng, l->n), got = 0;
    while (l->slot[at].owner != SLOT_FREE)
        at = (at + 1) % l->n;
    *slot = at;
    for (; got < n && at < l->n && l->slot[at].owner == SLOT_FREE; at++, got++)
        l->slot[at].owner = SLOT_TAKEN;
    l->n_free -= got;
    return got;
}

static struct live_slot *taken(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    struct live_store *l = &sw->store[store];
    REQUIRE_MSG(slot < l->n, "slot %u of %u is named", slot, l->n);
    struct live_slot *x = &l->slot[slot];
    REQUIRE_MSG(x->owner == SLOT_TAKEN, "slot %u is used, and is nobody's (%d)", slot, x->owner);
    REQUIRE_MSG(!x->written && !x->read, "slot %u is used, and an order has it", slot);
    return x;
}

void swap_slot_give(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    taken(sw, store, slot)->owner = sw->scanning ? SLOT_ABSENT : SLOT_FREE;
    sw->store[store].n_free += !sw->scanning;
}

void swap_slot_used(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    struct live_store *l = &sw->store[store];
    REQUIRE(sw->scanning && slot < l->n);
    REQUIRE_MSG(l->slot[slot].handed && l->slot[slot].owner == SLOT_ABSENT,
                "slot %u is kept, and was not found", slot);
    l->slot[slot].owner = SLOT_TAKEN;
}

/* Those that exist and were not known. */
void trial_slots_grown(struct swap *sw)
{
    for (int k = 0; k < SWAP_STORES; k++) {
        struct live_store *l = &sw->store[k];
        for (; l->known < l->n && l->known < l->files->ready; l->known++)
            if (l->slot[l->known].owner == SLOT_ABSENT) {
                l->slot[l->known].owner = SLOT_FREE;
                l->n_free++;
            }
    }
}

/* ---- orders ---- */

struct swap_order *swap_order_new(struct swap *sw, enum swap_kind kind, enum swap_store_kind store)
{
    struct live_store *l = &sw->store[store];
    bool none = kind == SWAP_SCAN || sw->n_out >= sw->config.depth * 4;
    if (none || trial_fault(sw->disk, sw->disk->config.faults.no_order)) {
        l->unretired += kind == SWAP_RETIRE;
        return NULL;
    }
    struct trial_order *t = trial_order_new(l, kind == SWAP_WRITE ? SWAP_BATCH : 0);
    t->order.kind = kind;
    t->order.store = store;
    sw->n_out++;
    return &t->order;
}

struct trial_order *trial_order_new(const struct live_store *l, uint32_t bodies)
{
    uint32_t pitch = (l->config->body_bytes + 7) & ~7u;
    struct trial_order *t = calloc(1, sizeof *t + (size_t)bodies * pitch);
    REQUIRE(t != NULL);
    for (uint32_t i = 0; i < bodies; i++)
        t->order.record[i].body = (uint8_t *)(t + 1) + (size_t)i * pitch;
    list_init(&t->link);
    return t;
}

void swap_order_free(struct swap *sw, struct swap_order *o)
{
    struct trial_order *t = (struct trial_order *)(void *)o;
    REQUIRE(list_empty(&t->link));
    if (o->kind == SWAP_SCAN)
        sw->n_scans--;
    else
        sw->n_out--;
    if (o->kind == SWAP_WRITE && t->submitted)
        sw->store[o->store].in_writes -= o->n;
    free(t);
}

static void tell_pages(struct swap *sw, const struct swap_order *o)
{
    struct live_store *l = &sw->store[o->store];
    for (uint32_t i = 0; i < o->n; i++) {
        l->slot[o->record[i].slot].written -= o->kind == SWAP_WRITE;
        l->slot[o->record[i].slot].read -= o->kind == SWAP_READ;
        l->page[o->record[i].record].written -= o->kind == SWAP_WRITE;
        l->page[o->record[i].record].read -= o->kind == SWAP_READ;
        l->reads_taken += o->kind == SWAP_READ && o->record[i].status == SWAP_GOOD;
    }
}

struct swap_order *swap_take(struct swap *sw)
{
    if (!sw->scanning)
        trial_slots_grown(sw);
    if (list_empty(&sw->over))
        return NULL;
    struct trial_order *t = list_entry(sw->over.next, struct trial_order, link);
    list_remove(&t->link);
    if (t->order.kind == SWAP_WRITE || t->order.kind == SWAP_READ)
        tell_pages(sw, &t->order);
    if (t->order.kind == SWAP_SCAN && t->order.last) {
        sw->scanning = false;
        sw->next = sw->highest + 1;
        trial_slots_grown(sw);
    }
    return &t->order;
}
