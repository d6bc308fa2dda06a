/*
 * snapshot.h - states of hybrid models: their slots, the entries that own them, who goes next.
 *
 *   snapshot.c          entries and their slots: save, sweep, hold, evict, forget
 *   snapshot_spill.c    to the lower tier and back
 *   snapshot_rank.c     sessions, and the order in which entries go
 *   snapshot_audit.c    compares every count with a walk
 *   index_snapshot.c    where entries hang in the tree, and how they are found
 *
 * A slot is free, private (one lease reserved it), or an entry's. An entry owns one slot or one
 * blob of the lower tier until it is freed:
 *
 *            save                spill                            forget, no prefix,
 *      slot -----> RESIDENT ------------------> TIERED              sweep, save again
 *                     ^  \--- dropped: no tier, too shallow, refused   |
 *                     |                           |                    v
 *                     \----------- fetch ---------/               out of the tree (nobody can find
 *                                                                  it), and freed when the last
 *                                                                  lease lets go of it
 *
 * A session is (space, number); number 0 stands for all that have none. It exists while it has
 * entries in the tree.
 */
#ifndef DAEMON_SNAPSHOT_H
#define DAEMON_SNAPSHOT_H

#include "daemon/index.h"
#include "daemon/tier.h"
#include "shm/snapshot_read.h"

struct snapshots;

struct snapshots_config {
    struct index *index;
    struct tier *tier; /* NULL: none; owned from here on, also if snapshots_new fails */
    uint32_t n_slots, n_tier;
    double alpha;              /* uses that a token of depth is worth */
    uint32_t spill_min_tokens; /* shallower ones are dropped instead of spilled */
    uint64_t wait_ns;          /* a slot is waited for no longer, if another can go; 0: any time */
    struct counters *counters;
};

/* NULL: no memory. */
struct snapshots *snapshots_new(const struct snapshots_config *config);
void snapshots_free(struct snapshots *sn);

/* ---- slots ---- */

/* YES: a slot is free now. SOON: one is being spilled, ask again. NO: all are in use, or held.
 * *began_ns is the caller's, 0 at first: since when it has waited. */
enum room { ROOM_YES, ROOM_SOON, ROOM_NO };
enum room snapshots_make_room(struct snapshots *sn, uint64_t *began_ns);
uint32_t slot_take(struct snapshots *sn);            /* there is a free one; it is private now */
void slot_give(struct snapshots *sn, uint32_t slot); /* a private one back */
struct pool *slots_pool(struct snapshots *sn);
uint32_t slots_free(const struct snapshots *sn);
uint32_t slots_private(const struct snapshots *sn);

/* ---- entries ---- */

/* Attach a private slot. What it displaces is let go of, once. Cannot fail. */
struct snapshot_save {
    uint64_t space;   /* its number */
    uint64_t session; /* not 0 for a tail or sibling */
    enum snapshot_kind kind;
    struct place at;
    struct residue residue;
};
void snapshot_save(struct snapshots *sn, const struct snapshot_save *save, uint32_t slot);

/* A lookup of this session (not 0) in this space: it is the live one now. */
void snapshots_live(struct snapshots *sn, uint64_t space, uint64_t session);
void snapshot_stamp(struct snapshots *sn, uint32_t id); /* it was offered */

/* A lease holds what it was offered. */
void snapshot_hold(struct snapshots *sn, uint32_t id);
void snapshot_unhold(struct snapshots *sn, uint32_t id);

/* Evict the one that goes next. 0, or STATUS_ENOENT. */
int snapshots_evict(struct snapshots *sn);

/* Begin to spill the one that goes next, or drop it: shallower than min_tokens, no tier, or
 * refused. STATUS_ENOENT: there is none; 0: it is over, see *out; 1: it has begun, see spill_look.
 */
struct spill {
    uint32_t id;
    uint64_t key; /* of the blob; 0: dropped */
    uint32_t depth;
};
int snapshots_spill(struct snapshots *sn, uint32_t min_tokens, struct spill *out);
/* 1: not over. 0: it is TIERED, or (key 0 then) it was dropped because the tier failed.
 * STATUS_ENOENT: it came to nothing (it is held, or gone otherwise). */
int spill_look(const struct snapshots *sn, struct spill *s);

/* Forget a spilled entry. 0, or STATUS_ENOENT: no such key. */
int snapshots_forget(struct snapshots *sn, uint64_t key);

/* Bring a held entry back. 0: it is resident; 1: not yet, ask again; STATUS_ENOSPC: no room;
 * STATUS_ENOENT: its bytes are gone, and so is the entry; STATUS_EIO: they cannot be read now.
 * *begun and *began_ns are the caller's, false and 0 at first. */
int snapshot_fetch(struct snapshots *sn, uint32_t id, bool *begun, uint64_t *began_ns);

/* After a restart: an entry whose bytes the tier has. *key is what it is to call them. False: there
 * is no room, or something newer is there. Older ones are restored first. */
bool snapshot_restore(struct snapshots *sn, const struct snapshot_save *save, uint64_t *key);

/* A slice of what the tier has to do. True: there was some. */
bool snapshots_step(struct snapshots *sn);

/* What an answer says of an entry. */
struct snapshot_facts {
    uint32_t depth;
    enum snapshot_state state;
    uint32_t slot;     /* RESIDENT; else NO_SLOT */
    uint64_t tier_key; /* TIERED */
    bool is_tail;
};
struct snapshot_facts snapshot_facts(const struct snapshots *sn, uint32_t id);

uint32_t snapshots_resident(const struct snapshots *sn); /* in the tree */
uint32_t snapshots_tiered(const struct snapshots *sn);

uint32_t snapshots_max(const struct snapshots *sn); /* entries are numbered 1 .. this */

/* `holds`: by entry, as the leases say. `slots`: by slot, how many leases list it as private,
 * or groups as confined. */
unsigned snapshots_audit(const struct snapshots *sn, const uint32_t *holds, const uint8_t *slots,
                         audit_find *find, void *arg);

#endif
