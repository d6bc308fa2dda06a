/*
 * ring.h - one-writer one-reader rings of 64-byte records between processes that do not trust
 * each other, and the wake-up edge beside them.
 *
 *      writer's private:  tail, peer_head          reader's private:  head, peer_tail
 *                  |                                       |
 *                  v  writer's region                      v  reader's region
 *            [shared tail] ------ read by reader     [shared head] ------ read by writer
 *            [entry 0 .. entry size-1]
 *
 * Indexes run free over 2^32 and only differences are compared, so the wrap is no case of its
 * own. Each side keeps its own index in private memory; the shared copy is output only and never
 * read back. The peer's index is read once and checked: a difference larger than the ring means
 * that the peer lies (RING_BROKEN), and that ends its session.
 *
 * Ordering edges, named at both ends:
 *   POST   writer: record stores, then tail store (release)
 *          reader: tail load (acquire), then record loads
 *   DROP   reader: record loads, then head store (release)
 *          writer: head load (acquire), then record stores into the freed entry
 *   DOZE   sleeper: doze store, FULL FENCE, tail load; sleeps if it is unchanged     (DOZE-1)
 *          writer:  tail store, FULL FENCE, doze load; sends a packet if it is set   (DOZE-2)
 *          Both fences are needed: without either, each side may read the old value of the
 *          other's word, and the sleeper sleeps on a full ring (tests/litmus shows it).
 */
#ifndef SHM_RING_H
#define SHM_RING_H

#include "shm/atomic.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { RING_RECORD = 64, RING_MIN = 8, RING_MAX = 4096 };

enum ring_state {
    RING_OK = 0,
    RING_NONE = 1,   /* writer: full; reader: empty */
    RING_BROKEN = -1 /* the peer's index is impossible */
};

struct ring_writer {
    uint8_t *entries;
    uint32_t *shared_tail;
    const uint32_t *shared_head;
    uint32_t size; /* power of two */
    uint32_t tail;
    uint32_t peer_head;
};

struct ring_reader {
    const uint8_t *entries;
    uint32_t *shared_head;
    const uint32_t *shared_tail;
    uint32_t size;
    uint32_t head;
    uint32_t peer_tail;
};

/* Room for one more record? Reads the peer's index only when the private copy says full. */
static inline enum ring_state ring_claim(struct ring_writer *w)
{
    if (w->tail - w->peer_head < w->size)
        return RING_OK;
    uint32_t head = shm_load_acquire(w->shared_head); /* DROP */
    if (w->tail - head > w->size)
        return RING_BROKEN;
    w->peer_head = head;
    return w->tail - head < w->size ? RING_OK : RING_NONE;
}

/* Publish one record into the room that ring_claim found. The store of the tail permits the
 * reader to read the record, and us nothing more in that entry until it is dropped. */
static inline void ring_post(struct ring_writer *w, const void *record)
{
    memcpy(w->entries + (size_t)(w->tail & (w->size - 1)) * RING_RECORD, record, RING_RECORD);
    w->tail++;
    shm_store_release(w->shared_tail, w->tail); /* POST: this must be last */
}

/* Is there a record? Copies it out whole, so that what is checked is what is used. */
static inline enum ring_state ring_peek(struct ring_reader *r, void *record)
{
    if (r->head == r->peer_tail) {
        uint32_t tail = shm_load_acquire(r->shared_tail); /* POST */
        if (tail - r->head > r->size)
            return RING_BROKEN;
        r->peer_tail = tail;
        if (tail == r->head)
            return RING_NONE;
    }
    const uint8_t *entry = r->entries + (size_t)(r->head & (r->size - 1)) * RING_RECORD;
    uint64_t word[RING_RECORD / 8];
    for (size_t i = 0; i < RING_RECORD / 8; i++) /* the peer may still scribble: read once */
        word[i] = shm_load((const uint64_t *)(const void *)entry + i);
    memcpy(record, word, RING_RECORD);
    return RING_OK;
}

/* Give the entry back. The store of the head permits the writer to overwrite it. */
static inline void ring_drop(struct ring_reader *r)
{
    r->head++;
    shm_store_release(r->shared_head, r->head); /* DROP */
}

/* DOZE. The word is a counter of naps: odd while its owner sleeps or is about to. The other
 * side sends one packet per nap (it remembers the value it answered), so an armed sleeper that
 * does not come back costs one packet, not one a record. */
static inline void doze_begin(uint32_t *word)
{
    shm_store(word, (shm_load(word) + 1) | 1);
    shm_full_fence(); /* DOZE-1: the caller now looks at the ring once more */
}

static inline void doze_end(uint32_t *word)
{
    shm_store(word, (shm_load(word) + 1) & ~1u);
}

/* Call after posting: true if the other side sleeps and has not been woken from this nap. */
static inline bool doze_must_wake(const uint32_t *word, uint32_t *answered)
{
    shm_full_fence(); /* DOZE-2 */
    uint32_t nap = shm_load(word);
    if (!(nap & 1) || nap == *answered)
        return false;
    *answered = nap;
    return true;
}

#endif
