/*
 * Blobs in the daemon's own memory: what a slot of the pool holds, moved to plain memory. It serves
 * where the pool is the scarcer of the two; a disk tier has the same interface.
 *
 * Rooms for all blobs are mapped at the start and never given back: unmapping a large one would
 * hold up everybody (64 MiB: 5 ms), and so would faulting it in anew at each spill. What was never
 * used costs nothing. Blobs are found by key in a chained table; transfers stand in a line, and one
 * step copies at most STEP_BYTES of the first, so that no worker waits longer for another's
 * gigabytes.
 */
#include "daemon/list.h"
#include "daemon/tier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEP_BYTES = 256 * 1024 };

struct blob {
    struct list line; /* of transfers; of itself: none is under way */
    struct blob *chain;
    uint64_t key;
    uint64_t moved; /* bytes, of all devices one after the other */
    uint32_t slot;
    bool whole; /* it was put in full */
};

struct tier_memory {
    struct tier tier;
    uint32_t n_devices, most, top; /* rooms from top on were never used */
    uint64_t bytes, stride;
    struct list line;
    struct blob *blob; /* by room */
    struct blob *free; /* through chain */
    uint8_t *rooms;
    struct blob **heads;
    uint32_t mask;
    uint8_t *slots[];
};

static struct blob **link_to(struct tier_memory *m, uint64_t key)
{
    /* the low half of a key is a small number, the high half counts up */
    struct blob **at = &m->heads[(uint32_t)(key ^ key >> 32) & m->mask];
    while (*at && (*at)->key != key)
        at = &(*at)->chain;
    return at;
}

static bool memory_put(struct tier *t, uint64_t key, uint32_t slot)
{
    struct tier_memory *m = (struct tier_memory *)t;
    struct blob *b = m->free;
    if (b)
        m->free = b->chain;
    else if (m->top < m->most)
        b = &m->blob[m->top++];
    else
        return false;
    *b = (struct blob){.key = key, .slot = slot};
    *link_to(m, key) = b;
    list_append(&m->line, &b->line);
    return true;
}

static bool memory_get(struct tier *t, uint64_t key, uint32_t slot)
{
    struct tier_memory *m = (struct tier_memory *)t;
    struct blob *b = *link_to(m, key);
    if (!b || !b->whole || !list_empty(&b->line))
        return false;
    b->slot = slot;
    b->moved = 0;
    list_append(&m->line, &b->line);
    return true;
}

static bool memory_drop(struct tier *t, uint64_t key)
{
    struct tier_memory *m = (struct tier_memory *)t;
    struct blob **link = link_to(m, key), *b = *link;
    if (!b)
        return true;
    *link = b->chain;
    list_remove(&b->line);
    b->chain = m->free;
    m->free = b;
    return true;
}

static uint64_t room_bytes(const struct tier_memory *m)
{
    return m->bytes * m->n_devices;
}

static uint8_t *room_of(const struct tier_memory *m, const struct blob *b)
{
    return m->rooms + (uint64_t)(b - m->blob) * room_bytes(m);
}

/* The next piece of the transfer, within one device. */
static void move_piece(struct tier_memory *m, struct blob *b)
{
    uint64_t device = b->moved / m->bytes, at = b->moved % m->bytes, n = m->bytes - at;
    n = n < STEP_BYTES ? n : STEP_BYTES;
    uint8_t *slot = m->slots[device] + b->slot * m->stride + at, *blob = room_of(m, b) + b->moved;
    if (b->whole)
        memcpy(slot, blob, n);
    else
        memcpy(blob, slot, n);
    b->moved += n;
}

static bool memory_step(struct tier *t, struct tier_over *over, unsigned *n_over)
{
    struct tier_memory *m = (struct tier_memory *)t;
    *n_over = 0;
    if (list_empty(&m->line))
        return false;
    struct blob *b = list_entry(m->line.next, struct blob, line);
    move_piece(m, b);
    if (b->moved == room_bytes(m)) {
        b->whole = true;
        list_remove(&b->line);
        *over = (struct tier_over){b->key, b->slot, TIER_DONE};
        *n_over = 1;
    }
    return true;
}

static void memory_free(struct tier *t)
{
    struct tier_memory *m = (struct tier_memory *)t;
    if (m->rooms)
        munmap(m->rooms, m->most * room_bytes(m));
    free(m->blob);
    free(m->heads);
    free(m);
}

static const struct tier_ops memory_ops = {memory_put, memory_get, memory_drop, memory_step,
                                           memory_free};

struct tier *tier_memory_new(uint8_t *const *slots, uint32_t n_devices, uint64_t bytes,
                             uint64_t stride, uint32_t n_blobs)
{
    struct tier_memory *m = calloc(1, sizeof *m + n_devices * sizeof *m->slots);
    if (!m)
        return NULL;
    m->tier.ops = &memory_ops;
    m->n_devices = n_devices;
    m->most = n_blobs;
    m->bytes = bytes;
    m->stride = stride;
    m->mask = 63;
    while (m->mask < n_blobs / 2)
        m->mask = 2 * m->mask + 1;
    list_init(&m->line);
    memcpy(m->slots, slots, n_devices * sizeof *slots);
    m->heads = calloc((size_t)m->mask + 1, sizeof *m->heads);
    m->blob = calloc(n_blobs, sizeof *m->blob);
    void *rooms = mmap(NULL, n_blobs * room_bytes(m), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->rooms = rooms == MAP_FAILED ? NULL : rooms;
    if (!m->heads || !m->blob || !m->rooms) {
        memory_free(&m->tier);
        return NULL;
    }
    return &m->tier;
}
