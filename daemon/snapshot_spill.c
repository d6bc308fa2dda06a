/*
 * Between slots and the lower tier. A transfer belongs to its entry, not to the call that asked for
 * it: calls begin one and look until it is over, so that two that want one entry share its read,
 * and a worker's death ends none of them half way.
 *
 *   spill    key, put ...... DONE: TIERED, the slot is free     else: dropped, as if never accepted
 *   fetch    slot, get ..... DONE: RESIDENT, the blob is gone
 *                            MISS: the entry leaves the tree    ERROR: it stays as it was
 *
 * A transfer that is dropped may go on: a device cannot be called back. Its slot stays with its
 * entry, or, if that lets go of it, in flight until the transfer has ended (lingering), so that no
 * state is ever written into a slot that is still read, or read into one that another has.
 *
 * What comes back from the tier names a key. Keys are (entry, generation), a new generation for
 * each spill: an outcome that comes late finds another key, and nothing happens.
 */
#include "daemon/snapshot_private.h"
#include "shm/stats.h"
#include "shm/status.h"

#include <assert.h>

/* ---- down ------------------------------------------------------------------------------- */

/* Room for one more blob; what ranks below `e` may be pushed out for it. */
static bool blob_room(struct snapshots *sn, const struct entry *e)
{
    if (sn->n_blobs < sn->config.n_tier && tier_room(sn->tier))
        return true;
    struct entry *low = rank_next(sn, TIER_BLOBS);
    if (!low || !ranks_before(low, e))
        return false;
    entry_leave(sn, low, LEAVE_PUSHED, true);
    return tier_room(sn->tier);
}

uint64_t key_new(const struct snapshots *sn, struct entry *e)
{
    if (++e->generation == 0) /* a key is never 0 */
        e->generation = 1;
    return (uint64_t)e->generation << 32 | id_of(sn, e);
}

bool spill_begin(struct snapshots *sn, struct entry *e)
{
    if (!sn->tier || !blob_room(sn, e))
        return false;
    uint64_t key = key_new(sn, e);
    if (!tier_put(sn->tier, key, e->slot))
        return false;
    e->key = key;
    e->transfer = TRANSFER_SPILL;
    sn->n_blobs++;
    sn->n_spilling++;
    sn->n_transfers++;
    rank_settle(sn, e);
    return true;
}

static void spill_end(struct snapshots *sn, struct entry *e)
{
    e->transfer = TRANSFER_NONE;
    sn->n_spilling--;
    sn->n_transfers--;
}

void blob_drop(struct snapshots *sn, struct entry *e)
{
    if (!tier_drop(sn->tier, e->key)) {
        sn->lingering[e->slot]++;
        sn->n_lingering++;
    }
    e->key = 0;
    sn->n_blobs--;
}

void spill_cancel(struct snapshots *sn, struct entry *e)
{
    blob_drop(sn, e);
    spill_end(sn, e);
    if (e->session)
        rank_settle(sn, e);
}

static void spill_over(struct snapshots *sn, struct entry *e, enum tier_outcome outcome)
{
    if (outcome != TIER_DONE) {
        e->failed = e->key;
        spill_cancel(sn, e);
        entry_evict(sn, e);
        return;
    }
    spill_end(sn, e);
    e->stored = e->key;
    e->state = SNAPSHOT_TIERED;
    index_snapshot_move(sn->index, id_of(sn, e), NO_SLOT, e->key);
    slot_let_go(sn, e->slot);
    sn->n_in_tree[TIER_SLOTS]--;
    sn->n_in_tree[TIER_BLOBS]++;
    sn->counters->snapshot_spills++;
    rank_settle(sn, e);
    lease_count_eviction(sn);
}

int snapshots_spill(struct snapshots *sn, uint32_t min_tokens, struct spill *out)
{
    struct entry *e = rank_next(sn, TIER_SLOTS);
    if (!e)
        return STATUS_ENOENT;
    *out = (struct spill){.id = id_of(sn, e), .depth = e->depth};
    if (e->depth >= min_tokens && spill_begin(sn, e)) {
        out->key = e->key;
        return 1;
    }
    entry_evict(sn, e);
    return 0;
}

int spill_look(const struct snapshots *sn, struct spill *s)
{
    const struct entry *e = &sn->entry[s->id];
    if (e->failed == s->key) {
        s->key = 0;
        return 0;
    }
    if (e->stored == s->key) /* it may be forgotten by now, or fetched */
        return 0;
    bool moving = e->used && e->key == s->key && e->transfer == TRANSFER_SPILL;
    return moving ? 1 : STATUS_ENOENT;
}

/* ---- up ---------------------------------------------------------------------------------- */

int snapshot_fetch(struct snapshots *sn, uint32_t id, bool *begun, uint64_t *began_ns)
{
    struct entry *e = &sn->entry[id];
    assert(e->holds);
    if (e->lost)
        return STATUS_ENOENT;
    if (e->state == SNAPSHOT_RESIDENT)
        return 0;
    if (e->transfer == TRANSFER_FETCH) {
        *begun = true;
        return 1;
    }
    if (*begun)
        return STATUS_EIO; /* what we waited for is over, and it is not here */
    switch (snapshots_make_room(sn, began_ns)) {
    case ROOM_NO:
        return STATUS_ENOSPC;
    case ROOM_SOON:
        return 1;
    case ROOM_YES:
        break;
    }
    uint32_t slot = slot_take(sn);
    if (!tier_get(sn->tier, e->key, slot)) {
        slot_give(sn, slot);
        return STATUS_EIO;
    }
    e->slot = slot;
    e->transfer = TRANSFER_FETCH;
    sn->n_transfers++;
    *begun = true;
    return 1;
}

/* In the tree or, since it was displaced meanwhile, only in the hands of its holders. */
static void fetch_over(struct snapshots *sn, struct entry *e, enum tier_outcome outcome)
{
    e->transfer = TRANSFER_NONE;
    sn->n_transfers--;
    if (outcome != TIER_DONE) {
        pool_give(&sn->slots, e->slot);
        e->lost = outcome == TIER_MISS;
        if (e->lost && e->session)
            entry_leave(sn, e, LEAVE_FORGOTTEN, true);
        else if (e->session)
            rank_settle(sn, e);
        return;
    }
    pool_publish(&sn->slots, e->slot);
    blob_drop(sn, e);
    e->state = SNAPSHOT_RESIDENT;
    if (!e->session)
        return;
    index_snapshot_move(sn->index, id_of(sn, e), e->slot, 0);
    sn->n_in_tree[TIER_BLOBS]--;
    sn->n_in_tree[TIER_SLOTS]++;
    sn->counters->snapshot_fetches++;
    rank_settle(sn, e);
}

/* ---- what is over --------------------------------------------------------------------------- */

static void linger_over(struct snapshots *sn, uint32_t slot)
{
    sn->n_lingering--;
    if (--sn->lingering[slot] == 0 && sn->slots.state[slot] == PAGE_INFLIGHT)
        pool_ditch(&sn->slots, slot);
}

bool snapshots_step(struct snapshots *sn)
{
    struct tier_over over;
    unsigned n = 0;
    if (!sn->tier || (sn->n_transfers == 0 && sn->n_lingering == 0))
        return false;
    bool more = tier_step(sn->tier, &over, &n);
    if (n && over.outcome == TIER_DROPPED) {
        linger_over(sn, over.slot);
        return true;
    }
    uint32_t id = (uint32_t)over.key;
    if (n == 0 || id == 0 || id > sn->max)
        return more;
    struct entry *e = &sn->entry[id];
    if (!e->used || e->key != over.key)
        return more;
    if (e->transfer == TRANSFER_SPILL)
        spill_over(sn, e, over.outcome);
    else if (e->transfer == TRANSFER_FETCH)
        fetch_over(sn, e, over.outcome);
    return true;
}
