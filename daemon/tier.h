/*
 * tier.h - where spilled snapshots go: a store of blobs, each the bytes of one slot on all devices,
 * by a key that is never used twice in an epoch.
 *
 * Nothing here waits: put and get begin a transfer, tier_step moves a slice of it and says which
 * one is over. The slot belongs to the transfer until then.
 *
 *   tier_memory.c   blobs in the daemon's own memory, gone with it
 *   disk_state.c    blobs on disk, which a restart finds again
 *
 * Three outcomes that nobody may mix up: a blob that is proven gone (MISS), one that cannot be read
 * now (ERROR), and a put that was refused (false: nothing happened). A fourth, DROPPED, is only for
 * the slot: a device still read or wrote it when its transfer was dropped, and has ended now.
 */
#ifndef DAEMON_TIER_H
#define DAEMON_TIER_H

#include "kernels/copier.h"
#include "shm/layout.h"

#include <stdbool.h>
#include <stdint.h>

enum tier_outcome { TIER_DONE, TIER_MISS, TIER_ERROR, TIER_DROPPED };

struct tier_over {
    uint64_t key;
    uint32_t slot;
    enum tier_outcome outcome;
};

struct tier {
    const struct tier_ops *ops;
};

struct tier_ops {
    /* One more blob fits: a put may be refused all the same, or fail, but is worth it. */
    bool (*room)(struct tier *t);
    bool (*put)(struct tier *t, uint64_t key, uint32_t slot);
    bool (*get)(struct tier *t, uint64_t key, uint32_t slot); /* false: it cannot be read now */
    /* Forget the blob, and the transfer of it that is under way. True: no outcome comes. False: the
     * transfer cannot be called back; its slot is in use until its outcome comes, DROPPED. An
     * unknown key is fine. */
    bool (*drop)(struct tier *t, uint64_t key);
    /* A slice of work. *n_over outcomes, at most one; true: there is more to do. */
    bool (*step)(struct tier *t, struct tier_over *over, unsigned *n_over);
    void (*free)(struct tier *t);
};

static inline bool tier_room(struct tier *t)
{
    return t->ops->room(t);
}

static inline bool tier_put(struct tier *t, uint64_t key, uint32_t slot)
{
    return t->ops->put(t, key, slot);
}

static inline bool tier_get(struct tier *t, uint64_t key, uint32_t slot)
{
    return t->ops->get(t, key, slot);
}

static inline bool tier_drop(struct tier *t, uint64_t key)
{
    return t->ops->drop(t, key);
}

static inline bool tier_step(struct tier *t, struct tier_over *over, unsigned *n_over)
{
    return t->ops->step(t, over, n_over);
}

static inline void tier_free(struct tier *t)
{
    if (t)
        t->ops->free(t);
}

/* Blobs of n_devices pieces: `bytes` of each, from slots + slot * stride of that device; or, of a
 * GPU's memory, by a copier of that device, whose pool has slots from `first` on. At most n_blobs
 * of them. NULL: no memory. The copiers are the tier's from here on, also then. */
struct tier_memory_config {
    uint8_t *slots[DEVICES_MAX];
    struct copier *copier[DEVICES_MAX]; /* NULL: slots counts */
    uint64_t first;
    uint32_t n_devices, n_blobs;
    uint64_t bytes, stride;
};
enum { TIER_BUFFER = 256 * 1024, TIER_BUFFERS = 2 }; /* of a copier */

struct tier *tier_memory_new(const struct tier_memory_config *config);

#endif
