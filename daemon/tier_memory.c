/*
 * Blobs in the daemon's own memory: what a slot of the pool holds, moved to plain memory. It serves
 * where the pool is the scarcer of the two; a disk tier has the same interface.
 *
 * Rooms for all blobs are mapped at the start and never given back: unmapping a large one would
 * hold up everybody (64 MiB: 5 ms), and so would faulting it in anew at each spill. What was never
 * used costs nothing. Blobs are found by key in a chained table; transfers stand in a line, and one
 * step copies at most TIER_BUFFER bytes of the first, so that no worker waits longer for another's
 * gigabytes.
 *
 * A GPU's slots are not the CPU's to touch: their pieces go through the buffers of a copier, two
 * under way, and a step begins one or ends the oldest. A blob that is dropped meanwhile keeps its
 * place in the line, without a key, until the device has let go of the slot (DROPPED).
 *
 *      slot (GPU) <--copier--> buffer <--memcpy--> room
 *                   asked              moved
 */
#include "daemon/list.h"
#include "daemon/tier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct blob {
    struct list line; /* of transfers; of itself: none is under way */
    struct blob *chain;
    uint64_t key;
    uint64_t moved; /* bytes, of all devices one after the other */
    uint32_t slot;
    bool whole; /* it was put in full */
    bool dropped, failed;
};

/* A part of a transfer, within one device. */
struct piece {
    uint64_t from, bytes; /* of the blob */
    uint32_t device, buffer;
};

struct tier_memory {
    struct tier tier;
    struct tier_memory_config config;
    uint32_t top;                      /* rooms from here on were never used */
    struct piece flight[TIER_BUFFERS]; /* of the first in the line, the oldest first */
    uint32_t n_flight;
    uint64_t asked; /* bytes of it that are, or were, under way */
    struct list line;
    struct blob *blob; /* by room */
    struct blob *free; /* through chain */
    uint8_t *rooms;
    struct blob **heads;
    uint32_t mask;
};

static struct blob **link_to(struct tier_memory *m, uint64_t key)
{
    /* the low half of a key is a small number, the high half counts up */
    struct blob **at = &m->heads[(uint32_t)(key ^ key >> 32) & m->mask];
    while (*at && (*at)->key != key)
        at = &(*at)->chain;
    return at;
}

static void room_give(struct tier_memory *m, struct blob *b)
{
    b->chain = m->free;
    m->free = b;
}

static bool memory_put(struct tier *t, uint64_t key, uint32_t slot)
{
    struct tier_memory *m = (struct tier_memory *)t;
    struct blob *b = m->free;
    if (b)
        m->free = b->chain;
    else if (m->top < m->config.n_blobs)
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
    b->failed = false;
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
    if (m->n_flight && m->line.next == &b->line) {
        b->dropped = true;
        return false;
    }
    list_remove(&b->line);
    room_give(m, b);
    return true;
}

static uint64_t room_bytes(const struct tier_memory *m)
{
    return m->config.bytes * m->config.n_devices;
}

static uint8_t *room_of(const struct tier_memory *m, const struct blob *b)
{
    return m->rooms + (uint64_t)(b - m->blob) * room_bytes(m);
}

/* What comes at byte `from` of a blob. */
static struct piece piece_at(const struct tier_memory *m, uint64_t from)
{
    uint64_t at = from % m->config.bytes, left = m->config.bytes - at;
    return (struct piece){.from = from,
                          .bytes = left < TIER_BUFFER ? left : TIER_BUFFER,
                          .device = (uint32_t)(from / m->config.bytes)};
}

/* ---- where the CPU reaches the slots --------------------------------------------------------- */

static void move_piece(struct tier_memory *m, struct blob *b)
{
    struct piece p = piece_at(m, b->moved);
    uint8_t *blob = room_of(m, b) + p.from, *slot = m->config.slots[p.device];
    slot += b->slot * m->config.stride + p.from % m->config.bytes;
    if (b->whole)
        memcpy(slot, blob, p.bytes);
    else
        memcpy(blob, slot, p.bytes);
    b->moved += p.bytes;
}

/* ---- where a copier does --------------------------------------------------------------------- */

static void begin_piece(struct tier_memory *m, struct blob *b)
{
    struct piece p = piece_at(m, m->asked);
    struct copier *c = m->config.copier[p.device];
    uint64_t slot = m->config.first + b->slot * m->config.stride;
    int buffer = copier_take(c);
    if (buffer < 0)
        return; /* both of this device's are under way */
    p.buffer = (uint32_t)buffer;
    if (b->whole)
        memcpy(copier_buffer(c, p.buffer), room_of(m, b) + p.from, p.bytes);
    const struct copier_part part = {.pool = slot + p.from % m->config.bytes, .bytes = p.bytes};
    if (copier_begin(c, p.buffer, b->whole ? COPIER_IN : COPIER_OUT, &part, 1)) {
        copier_give(c, p.buffer);
        b->failed = true;
        return;
    }
    m->flight[m->n_flight++] = p;
    m->asked += p.bytes;
}

static void end_piece(struct tier_memory *m, struct blob *b)
{
    struct piece p = m->flight[0];
    struct copier *c = m->config.copier[p.device];
    int state = copier_poll(c, p.buffer);
    if (state == 0)
        return;
    b->failed |= state < 0;
    if (state > 0 && !b->whole)
        memcpy(room_of(m, b) + p.from, copier_buffer(c, p.buffer), p.bytes);
    copier_give(c, p.buffer);
    b->moved += p.bytes;
    memmove(m->flight, m->flight + 1, --m->n_flight * sizeof p);
}

static void stage_piece(struct tier_memory *m, struct blob *b)
{
    bool more = !b->failed && !b->dropped && m->asked < room_bytes(m);
    if (m->n_flight == 0)
        m->asked = more ? b->moved : m->asked;
    if (more && m->n_flight < TIER_BUFFERS)
        begin_piece(m, b);
    else if (m->n_flight)
        end_piece(m, b);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* The first transfer is over, unless it is not. */
static bool is_over(struct tier_memory *m, struct blob *b, struct tier_over *over)
{
    if (m->n_flight || !(b->dropped || b->failed || b->moved == room_bytes(m)))
        return false;
    list_remove(&b->line);
    m->asked = 0;
    *over = (struct tier_over){b->key, b->slot,
                               b->dropped  ? TIER_DROPPED
                               : b->failed ? TIER_ERROR
                                           : TIER_DONE};
    b->whole |= over->outcome == TIER_DONE;
    if (b->dropped)
        room_give(m, b);
    return true;
}

static bool memory_step(struct tier *t, struct tier_over *over, unsigned *n_over)
{
    struct tier_memory *m = (struct tier_memory *)t;
    *n_over = 0;
    if (list_empty(&m->line))
        return false;
    struct blob *b = list_entry(m->line.next, struct blob, line);
    if (m->config.copier[0])
        stage_piece(m, b);
    else
        move_piece(m, b);
    *n_over = is_over(m, b, over);
    return true;
}

static void memory_free(struct tier *t)
{
    struct tier_memory *m = (struct tier_memory *)t;
    copiers_free(m->config.copier, m->config.n_devices);
    if (m->rooms)
        munmap(m->rooms, m->config.n_blobs * room_bytes(m));
    free(m->blob);
    free(m->heads);
    free(m);
}

static bool memory_room(struct tier *t)
{
    (void)t; /* as many as were asked for */
    return true;
}

static const struct tier_ops memory_ops = {memory_room, memory_put,  memory_get,
                                           memory_drop, memory_step, memory_free};

struct tier *tier_memory_new(const struct tier_memory_config *config)
{
    struct tier_memory *m = calloc(1, sizeof *m);
    if (!m) {
        for (uint32_t i = 0; i < config->n_devices; i++)
            copier_free(config->copier[i]);
        return NULL;
    }
    m->tier.ops = &memory_ops;
    m->config = *config;
    m->mask = 63;
    while (m->mask < config->n_blobs / 2)
        m->mask = 2 * m->mask + 1;
    list_init(&m->line);
    m->heads = calloc((size_t)m->mask + 1, sizeof *m->heads);
    m->blob = calloc(config->n_blobs, sizeof *m->blob);
    void *rooms = mmap(NULL, config->n_blobs * room_bytes(m), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->rooms = rooms == MAP_FAILED ? NULL : rooms;
    if (!m->heads || !m->blob || !m->rooms) {
        memory_free(&m->tier);
        return NULL;
    }
    return &m->tier;
}
