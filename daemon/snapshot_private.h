/* snapshot_private.h - what the files snapshot*.c share. */
#ifndef DAEMON_SNAPSHOT_PRIVATE_H
#define DAEMON_SNAPSHOT_PRIVATE_H

#include "daemon/heap.h"
#include "daemon/snapshot.h"

enum transfer { TRANSFER_NONE, TRANSFER_SPILL, TRANSFER_FETCH };
enum tiers { TIER_SLOTS, TIER_BLOBS, TIERS };

/* The facts of an entry; what readers need of them is copied into the tree while it hangs there.
 *
 *   state     transfer   owns
 *   RESIDENT  NONE       its slot
 *   RESIDENT  SPILL      its slot; `key` is that of the blob being written
 *   TIERED    NONE       the blob `key`
 *   TIERED    FETCH      the blob `key`; `slot` is being filled
 */
struct entry {
    struct heap_node rank;            /* among its session's candidates of its tier */
    struct snapshot_session *session; /* NULL: out of the tree */
    uint64_t stamp;
    double score;
    uint64_t key;
    uint64_t failed;     /* the last key that the tier could not store */
    uint64_t stored;     /* and the last that it has stored, whatever became of it since */
    uint32_t generation; /* of the last key */
    uint32_t depth, slot;
    uint32_t holds;
    uint32_t next_free;
    uint8_t kind, state, transfer;
    uint8_t queued; /* while it is in a heap: of which tier */
    bool used;
    bool lost; /* the blob is proven gone; only its holders remain */
};

/* A candidate is an entry that may go: in the tree, not held, not in a transfer, and not leased to
 * the live session. */
struct snapshot_session {
    struct heap_node order[TIERS]; /* among the sessions that have candidates in this tier */
    struct heap candidates[TIERS];
    uint64_t space, number;
    uint64_t stamp;
    uint32_t tail, sibling; /* entries; 0: none */
    uint32_t n_entries;
    uint32_t chain; /* 1 + next of the same hash; of a free one: of the free list */
};

struct snapshots {
    struct snapshots_config config;
    struct index *index;
    struct tier *tier;
    struct counters *counters;
    struct pool slots;
    uint16_t *lingering; /* by slot: dropped transfers that still use it */
    uint32_t n_lingering;
    struct entry *entry;              /* by number, 1 .. max */
    struct snapshot_session *session; /* one for each entry at most */
    uint32_t *heads;                  /* 1 + session, by hash */
    uint32_t n_heads;
    uint64_t seed; /* nobody can choose sessions that collide */
    uint32_t max;
    uint32_t free_entry, free_session, entry_top, session_top;
    uint32_t n_in_tree[TIERS];
    uint32_t n_blobs; /* owned by entries, and those being written */
    uint32_t n_spilling;
    uint32_t n_transfers;
    struct heap order[TIERS]; /* sessions that have candidates, stalest on top */
    uint64_t uses;            /* the clock */

    uint64_t live_space, live_number; /* number 0: none */
    uint32_t lease_left;              /* evictions that its tail and sibling are still safe from */
};

/* Why an entry leaves the tree; one counter each (leave_counters). */
enum leave {
    LEAVE_EVICTED,   /* by policy, or by a call */
    LEAVE_PREFIX,    /* with its prefix: evicted */
    LEAVE_FLUSHED,   /* with its prefix: flushed */
    LEAVE_RESAVED,   /* displaced by a new one */
    LEAVE_SWEPT,     /* by its session's new tail or sibling */
    LEAVE_FORGOTTEN, /* its bytes are gone */
    LEAVE_PUSHED,    /* out of the full tier */
};

static inline uint32_t id_of(const struct snapshots *sn, const struct entry *e)
{
    return (uint32_t)(e - sn->entry);
}

static inline enum tiers tier_of(const struct entry *e)
{
    return e->state == SNAPSHOT_RESIDENT ? TIER_SLOTS : TIER_BLOBS;
}

/* ---- snapshot.c ---- */

/* A fresh one; the caller says what it owns. There is one: each slot and each blob has its own. */
struct entry *entry_new(struct snapshots *sn);
/* Out of the tree; freed if nobody holds it. `hangs`: the tree still has it. */
void entry_leave(struct snapshots *sn, struct entry *e, enum leave why, bool hangs);
/* A resident one, by policy. */
void entry_evict(struct snapshots *sn, struct entry *e);

/* The slot is nobody's any more: free, or lingering until the last transfer ends. */
void slot_let_go(struct snapshots *sn, uint32_t slot);

/* ---- snapshot_spill.c ---- */

/* False: it cannot be spilled (no tier, no room, refused). */
bool spill_begin(struct snapshots *sn, struct entry *e);
void spill_cancel(struct snapshots *sn, struct entry *e);
/* Forget the entry's blob, and a transfer of it. */
void blob_drop(struct snapshots *sn, struct entry *e);
/* The name of its next blob. */
uint64_t key_new(const struct snapshots *sn, struct entry *e);

/* ---- snapshot_rank.c ---- */

bool ranks_init(struct snapshots *sn);
void ranks_deinit(struct snapshots *sn);
struct snapshot_session *session_find(const struct snapshots *sn, uint64_t space, uint64_t number);
struct snapshot_session *session_get(struct snapshots *sn, uint64_t space, uint64_t number);
/* An entry begins, or ends, to be one of its session's; the session ends with its last. */
void session_join(struct snapshots *sn, struct entry *e, struct snapshot_session *s);
void session_part(struct snapshots *sn, struct entry *e);
void session_stamp(struct snapshots *sn, struct snapshot_session *s, uint64_t stamp);

/* After any change of what makes it a candidate, or of its rank. */
void rank_settle(struct snapshots *sn, struct entry *e);
/* The next to go from this tier; NULL: none. Of slots: a leased one if there is no other. */
struct entry *rank_next(struct snapshots *sn, enum tiers tier);
bool ranks_before(const struct entry *a, const struct entry *b);
/* Two sessions need it: it is no session's any more. */
void sibling_turns_exact(struct snapshots *sn, struct entry *e);
/* From now on this session's tail and sibling are leased, and no other's. */
void live_set(struct snapshots *sn, uint64_t space, uint64_t number);
/* A resident entry was evicted or spilled by policy. */
void lease_count_eviction(struct snapshots *sn);
bool entry_leased(const struct snapshots *sn, const struct entry *e);
bool entry_candidate(const struct snapshots *sn, const struct entry *e);

#endif
