/*
 * What a restart finds in the lower tier. Headers of blobs stay until their room is written anew,
 * so some of those found were displaced or swept long ago: they come oldest first, and the newer
 * one of a position, or of a session, takes the place of the older. What this life has saved
 * meanwhile is newer than all of them.
 *
 * A session's older sibling may have been swept by the newer one, or have turned exact before, as
 * another session needed it too: its header does not tell. Its bytes are right in both cases, so it
 * is taken for exact.
 */
#include "daemon/snapshot_private.h"
#include "shm/stats.h"

/* False: what is there stays. */
static bool make_way(struct snapshots *sn, uint32_t id)
{
    struct entry *e = &sn->entry[id];
    if (id == 0)
        return true;
    if (e->state != SNAPSHOT_TIERED || e->holds)
        return false;
    entry_leave(sn, e, LEAVE_SWEPT, true);
    return true;
}

static bool is_full(const struct snapshots *sn)
{
    return sn->n_blobs == sn->config.n_tier;
}

static bool sibling_steps_aside(struct snapshots *sn, uint32_t id)
{
    if (id == 0 || is_full(sn))
        return make_way(sn, id);
    if (sn->entry[id].state != SNAPSHOT_TIERED)
        return false;
    sibling_turns_exact(sn, &sn->entry[id]);
    return true;
}

static bool place_is_free(struct snapshots *sn, const struct snapshot_save *save)
{
    const struct snapshot_session *s = session_find(sn, save->space, save->session);
    if (s && save->kind == SNAPSHOT_TAIL)
        return make_way(sn, s->tail);
    if (s && save->kind == SNAPSHOT_SIBLING && !sibling_steps_aside(sn, s->sibling))
        return false;
    return save->kind == SNAPSHOT_TAIL ||
           make_way(sn, index_snapshot_find(sn->index, save->at, &save->residue));
}

bool snapshot_restore(struct snapshots *sn, const struct snapshot_save *save, uint64_t *key)
{
    if (!place_is_free(sn, save) || is_full(sn))
        return false;
    struct entry *e = entry_new(sn);
    uint32_t bt = index_view_of(sn->index)->params.block_tokens;
    e->depth = save->at.depth * bt + save->residue.n_tokens;
    e->kind = (uint8_t)save->kind;
    e->state = SNAPSHOT_TIERED;
    *key = e->key = e->stored = key_new(sn, e);
    index_snapshot_add(sn->index, id_of(sn, e), save->at, &save->residue, save->kind, save->session,
                       NO_SLOT, e->key);
    session_join(sn, e, session_get(sn, save->space, save->session));
    sn->n_in_tree[TIER_BLOBS]++;
    sn->n_blobs++;
    sn->counters->tier_restored++;
    snapshot_stamp(sn, id_of(sn, e));
    return true;
}
