/*
 * Entries and their slots.
 *
 * THE RULE that keeps slots from being freed twice, or never: an entry owns what it owns until
 * entry_free, which runs once, when the entry is out of the tree, nobody holds it and no transfer
 * moves it. Displacing, sweeping, evicting, forgetting only take it out of the tree (entry_leave).
 * So a lease may restore from a slot whose entry was displaced a moment ago, and the slot of a
 * spilled entry cannot be freed again: it has none.
 *
 * There is always an entry for a slot that is saved: each entry owns a slot or a blob, and there
 * are as many as both together.
 */
#include "daemon/snapshot_private.h"
#include "shm/clock.h"
#include "shm/stats.h"
#include "shm/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- start and stop --------------------------------------------------------------------- */

static void on_gone(void *arg, uint32_t id, bool evicted)
{
    struct snapshots *sn = arg;
    entry_leave(sn, &sn->entry[id], evicted ? LEAVE_PREFIX : LEAVE_FLUSHED, false);
}

struct snapshots *snapshots_new(const struct snapshots_config *config)
{
    struct snapshots *sn = calloc(1, sizeof *sn);
    if (!sn) {
        tier_free(config->tier);
        return NULL;
    }
    sn->config = *config;
    sn->index = config->index;
    sn->tier = config->tier;
    sn->counters = config->counters;
    sn->max = config->n_slots + config->n_tier;
    sn->entry = calloc((size_t)sn->max + 1, sizeof *sn->entry);
    sn->lingering = calloc((size_t)config->n_slots + 1, sizeof *sn->lingering);
    if (!sn->entry || !sn->lingering || !pool_init(&sn->slots, config->n_slots) ||
        !ranks_init(sn)) {
        snapshots_free(sn);
        return NULL;
    }
    sn->slots.what = "slot";
    index_set_snapshot_gone(sn->index, on_gone, sn);
    return sn;
}

void snapshots_free(struct snapshots *sn)
{
    if (!sn)
        return;
    tier_free(sn->tier);
    ranks_deinit(sn);
    pool_deinit(&sn->slots);
    free(sn->lingering);
    free(sn->entry);
    free(sn);
}

/* ---- slots ----------------------------------------------------------------------------------- */

uint32_t slot_take(struct snapshots *sn)
{
    return pool_take(&sn->slots);
}

void slot_give(struct snapshots *sn, uint32_t slot)
{
    pool_give(&sn->slots, slot);
}

struct pool *slots_pool(struct snapshots *sn)
{
    return &sn->slots;
}

uint32_t slots_free(const struct snapshots *sn)
{
    return sn->slots.n_free;
}

uint32_t slots_private(const struct snapshots *sn)
{
    return sn->slots.n_private;
}

void slot_let_go(struct snapshots *sn, uint32_t slot)
{
    bool private = sn->slots.state[slot] == PAGE_PRIVATE;
    if (sn->lingering[slot])
        (private ? pool_fly : pool_linger)(&sn->slots, slot);
    else
        (private ? pool_give : pool_unpublish)(&sn->slots, slot);
}

/* A spill that takes long costs the next victim its state, not the caller its time. */
static bool waited_enough(const struct snapshots *sn, uint64_t *began_ns)
{
    if (!sn->config.wait_ns)
        return false;
    uint64_t now = clock_ns();
    if (!*began_ns)
        *began_ns = now;
    return now - *began_ns >= sn->config.wait_ns;
}

enum room snapshots_make_room(struct snapshots *sn, uint64_t *began_ns)
{
    if (sn->slots.n_free)
        return ROOM_YES;
    bool enough = waited_enough(sn, began_ns);
    if (!enough && (sn->n_spilling || sn->n_lingering))
        return ROOM_SOON;
    struct entry *e = rank_next(sn, TIER_SLOTS);
    if (!e) /* what is being fetched may be nobody's any more when it has come */
        return sn->n_transfers || sn->n_lingering ? ROOM_SOON : ROOM_NO;
    if (!enough && e->depth >= sn->config.spill_min_tokens && spill_begin(sn, e))
        return ROOM_SOON;
    entry_evict(sn, e);
    *began_ns = 0; /* its slot may linger: then that is waited for, before another one goes */
    return sn->slots.n_free ? ROOM_YES : ROOM_SOON;
}

/* ---- entries -----------------------------------------------------------------------------------
 */

struct entry *entry_new(struct snapshots *sn)
{
    uint32_t id = sn->free_entry;
    if (id)
        sn->free_entry = sn->entry[id].next_free;
    else
        id = ++sn->entry_top;
    assert(id <= sn->max);
    struct entry *e = &sn->entry[id];
    /* keys are never used twice */
    *e = (struct entry){
        .used = true, .generation = e->generation, .failed = e->failed, .stored = e->stored};
    return e;
}

static void entry_free(struct snapshots *sn, struct entry *e)
{
    assert(!e->session && e->holds == 0 && e->transfer != TRANSFER_SPILL);
    bool fetched = e->transfer == TRANSFER_FETCH;
    if (e->state == SNAPSHOT_TIERED)
        blob_drop(sn, e);
    if (fetched)
        sn->n_transfers--;
    if (fetched || e->state == SNAPSHOT_RESIDENT)
        slot_let_go(sn, e->slot);
    e->used = false;
    e->transfer = TRANSFER_NONE;
    e->next_free = sn->free_entry;
    sn->free_entry = id_of(sn, e);
}

static void count_leave(struct snapshots *sn, const struct entry *e, enum leave why)
{
    struct counters *n = sn->counters;
    if (e->state == SNAPSHOT_RESIDENT) {
        ++*(why == LEAVE_EVICTED || why == LEAVE_PREFIX ? &n->snapshot_evictions
                                                        : &n->snapshot_displaced);
        return;
    }
    switch (why) {
    case LEAVE_RESAVED:
        n->tier_resaved++;
        break;
    case LEAVE_SWEPT:
        n->tier_swept++;
        break;
    case LEAVE_FORGOTTEN:
        n->snapshot_forgotten++;
        break;
    default:
        n->tier_dropped++;
    }
}

void entry_leave(struct snapshots *sn, struct entry *e, enum leave why, bool hangs)
{
    if (e->transfer == TRANSFER_SPILL)
        spill_cancel(sn, e);
    if (hangs)
        index_snapshot_remove(sn->index, id_of(sn, e));
    count_leave(sn, e, why);
    session_part(sn, e);
    sn->n_in_tree[tier_of(e)]--;
    if (e->holds == 0)
        entry_free(sn, e);
}

void entry_evict(struct snapshots *sn, struct entry *e)
{
    entry_leave(sn, e, LEAVE_EVICTED, true);
    lease_count_eviction(sn);
}

/* ---- saving --------------------------------------------------------------------------------- */

static void sweep(struct snapshots *sn, uint32_t id)
{
    if (id)
        entry_leave(sn, &sn->entry[id], LEAVE_SWEPT, true);
}

/* The session ends with its last entry, so it is looked up anew for each. */
static void sweep_session(struct snapshots *sn, const struct snapshot_save *save, bool tail)
{
    const struct snapshot_session *s = session_find(sn, save->space, save->session);
    if (s && tail)
        sweep(sn, s->tail);
    s = session_find(sn, save->space, save->session);
    if (s)
        sweep(sn, s->sibling);
}

void sibling_turns_exact(struct snapshots *sn, struct entry *e)
{
    e->session->sibling = 0;
    e->kind = SNAPSHOT_EXACT;
    index_snapshot_exact(sn->index, id_of(sn, e));
    rank_settle(sn, e); /* it was leased, perhaps */
}

/* A sibling where an exact state is already: that serves. If it is another session's sibling, two
 * sessions need it now, and the sweep of one must not take it from the other. */
static bool sibling_is_there(struct snapshots *sn, const struct snapshot_save *save,
                             struct entry *there)
{
    const struct snapshot_session *s = there->session;
    if (there->kind == SNAPSHOT_SIBLING) {
        if (s->space == save->space && s->number == save->session)
            return false;
        sibling_turns_exact(sn, there);
    }
    return true;
}

/* Free the position. False: the new one is not needed. */
static bool displace(struct snapshots *sn, const struct snapshot_save *save)
{
    if (save->kind == SNAPSHOT_TAIL) {
        sweep_session(sn, save, true);
        return true;
    }
    uint32_t there = index_snapshot_find(sn->index, save->at, &save->residue);
    bool needed = true;
    if (there && save->kind == SNAPSHOT_SIBLING)
        needed = !sibling_is_there(sn, save, &sn->entry[there]);
    if (there && needed)
        entry_leave(sn, &sn->entry[there], LEAVE_RESAVED, true);
    if (save->kind == SNAPSHOT_SIBLING)
        sweep_session(sn, save, false);
    return needed;
}

void snapshot_save(struct snapshots *sn, const struct snapshot_save *save, uint32_t slot)
{
    if (!displace(sn, save)) {
        slot_give(sn, slot);
        return;
    }
    pool_publish(&sn->slots, slot);
    struct entry *e = entry_new(sn);
    uint32_t bt = index_view_of(sn->index)->params.block_tokens;
    e->depth = save->at.depth * bt + save->residue.n_tokens;
    e->slot = slot;
    e->kind = (uint8_t)save->kind;
    e->state = SNAPSHOT_RESIDENT;
    index_snapshot_add(sn->index, id_of(sn, e), save->at, &save->residue, save->kind, save->session,
                       slot, 0);
    session_join(sn, e, session_get(sn, save->space, save->session));
    sn->n_in_tree[TIER_SLOTS]++;
    sn->counters->snapshot_saves++;
    snapshot_stamp(sn, id_of(sn, e));
    if (save->kind == SNAPSHOT_TAIL)
        live_set(sn, save->space, save->session);
}

/* ---- offered and held --------------------------------------------------------------------- */

void snapshot_stamp(struct snapshots *sn, uint32_t id)
{
    struct entry *e = &sn->entry[id];
    e->stamp = ++sn->uses;
    if (!e->session)
        return;
    session_stamp(sn, e->session, e->stamp);
    rank_settle(sn, e);
}

void snapshot_hold(struct snapshots *sn, uint32_t id)
{
    struct entry *e = &sn->entry[id];
    if (e->transfer == TRANSFER_SPILL)
        spill_cancel(sn, e);
    e->holds++;
    rank_settle(sn, e);
}

void snapshot_unhold(struct snapshots *sn, uint32_t id)
{
    struct entry *e = &sn->entry[id];
    assert(e->used && e->holds);
    if (--e->holds)
        return;
    if (e->session)
        rank_settle(sn, e);
    else
        entry_free(sn, e);
}

struct snapshot_facts snapshot_facts(const struct snapshots *sn, uint32_t id)
{
    const struct entry *e = &sn->entry[id];
    struct snapshot_facts f = {
        .depth = e->depth, .state = e->state, .slot = NO_SLOT, .is_tail = e->kind == SNAPSHOT_TAIL};
    if (e->state == SNAPSHOT_RESIDENT)
        f.slot = e->slot;
    else
        f.tier_key = e->key;
    return f;
}

/* ---- by call -------------------------------------------------------------------------------- */

int snapshots_evict(struct snapshots *sn)
{
    struct entry *e = rank_next(sn, TIER_SLOTS);
    if (!e)
        return STATUS_ENOENT;
    entry_evict(sn, e);
    return 0;
}

int snapshots_forget(struct snapshots *sn, uint64_t key)
{
    uint32_t id = (uint32_t)key;
    struct entry *e = id >= 1 && id <= sn->max ? &sn->entry[id] : NULL;
    if (!e || !e->used || !e->session || e->state != SNAPSHOT_TIERED || e->key != key)
        return STATUS_ENOENT;
    entry_leave(sn, e, LEAVE_FORGOTTEN, true);
    return 0;
}

uint32_t snapshots_max(const struct snapshots *sn)
{
    return sn->max;
}

uint32_t snapshots_resident(const struct snapshots *sn)
{
    return sn->n_in_tree[TIER_SLOTS];
}

uint32_t snapshots_tiered(const struct snapshots *sn)
{
    return sn->n_in_tree[TIER_BLOBS];
}
