/*
 * stats.h - the tables of counters, and how a consistent copy of them is read.
 *
 * From COUNTERS come the daemon's struct, the shared copy, pfx_stats(), and the output of
 * prefixctl. Order and names are those of struct pfx_stats (client/prefixd.h), which is fixed; what
 * only tools and audits ask for stands in DETAILS, behind them.
 *
 * The shared copy is a latch of two: while the daemon writes one half, readers use the other.
 * So a daemon stopped by SIGSTOP between any two instructions leaves one half whole, and
 * `prefixctl status` works on it.
 *
 *      sequence even: half 0 is whole and current        sequence odd: half 1 is
 *
 * Edge LATCH   daemon: half's stores, then sequence store (release)
 *              reader: sequence load (acquire), half's loads, read fence, sequence load
 */
#ifndef SHM_STATS_H
#define SHM_STATS_H

#include "shm/atomic.h"

#include <stdbool.h>

/* C(name, kind): T counts up only, within an epoch; G is a level that goes up and down. */
#define COUNTERS(C)                                                                               \
    C(lookups, T) C(hits, T) C(misses, T) C(hit_tokens, T) C(lookup_tokens, T)                    \
    C(inserted_blocks, T) C(duplicate_blocks, T) C(evicted_blocks, T)                             \
    C(blocks_free, G) C(blocks_private, G) C(blocks_pinned, G) C(blocks_idle, G)                  \
    C(blocks_inflight, G)                                                                         \
    C(disk_used, G) C(disk_read_blocks, T) C(disk_written_blocks, T) C(disk_errors, T)            \
    C(snapshots, G) C(snapshots_tiered, G) C(snapshot_hits, T) C(snapshot_saves, T)               \
    C(snapshot_evictions, T) C(snapshot_spills, T) C(snapshot_fetches, T)                         \
    C(snapshot_forgotten, T) C(recompute_tokens, T)                                               \
    C(nodes, G) C(spaces, G) C(leases, G) C(workers, G) C(workers_reaped, T)                      \
    C(disk_ready_blocks, G) C(disk_scan_done, G)

/* Slots that hold nothing, or that a lease has reserved. How spilled snapshots came to an end other
 * than in a fetch or pfx_snapshot_forget: a new save stands in their place; their session's next
 * tail or sibling; their prefix left, or the tier was full. And those that a restart found. */
#define DETAILS(C)                                                                                \
    C(slots_free, G) C(slots_private, G) C(snapshot_displaced, T)                                 \
    C(tier_resaved, T) C(tier_swept, T) C(tier_dropped, T) C(tier_restored, T)                    \
    C(disk_in_flight, G) C(disk_uring, G) C(disk_healthy, G) C(disk_unused_files, G)

struct counters {
#define COUNTER_FIELD(name, kind) uint64_t name;
    COUNTERS(COUNTER_FIELD)
    DETAILS(COUNTER_FIELD)
#undef COUNTER_FIELD
};

#define COUNTER_BYTES(name, kind) +8
enum {
    COUNTERS_N = sizeof(struct counters) / 8,
    COUNTERS_PUBLIC = 0 COUNTERS(COUNTER_BYTES), /* bytes: what pfx_stats shows of them */
};
#undef COUNTER_BYTES

struct stats_latch {
    uint64_t sequence;
    uint64_t half[2][COUNTERS_N];
};

static inline void stats_publish(struct stats_latch *latch, const struct counters *now)
{
    uint64_t next = shm_load(&latch->sequence) + 1;
    const uint64_t *from = (const uint64_t *)now;
    for (unsigned i = 0; i < COUNTERS_N; i++)
        shm_store(&latch->half[next & 1][i], from[i]);
    shm_store_release(&latch->sequence, next); /* LATCH: this must be last */
}

/* False if the daemon published twice during each of many tries (it never does for long). */
static inline bool stats_copy(const struct stats_latch *latch, struct counters *out)
{
    uint64_t *to = (uint64_t *)out;
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t before = shm_load_acquire(&latch->sequence); /* LATCH */
        for (unsigned i = 0; i < COUNTERS_N; i++)
            to[i] = shm_load(&latch->half[before & 1][i]);
        shm_read_fence();
        /* The half that we read is written again only after one more publication began, and
         * that begins with the other half: equal, nothing moved. */
        if (shm_load(&latch->sequence) == before)
            return true;
    }
    return false;
}

#endif
