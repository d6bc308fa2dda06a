/*
 * A hybrid model's side of a replay: where it takes up its state, and which states it files.
 *
 * Keys and values of every matched block can be read, but the recurrent layers go on only from a
 * state. So the prompt restarts at the depth of the snapshot that was offered, and what lies
 * between there and the end of the match is computed again: it is what `recompute_tokens` counts.
 *
 *      0             restart            match                        stem
 *      |-- skipped -----|-- again, KV read --|-- computed and cached ----|-- computed --|
 *                                            |                           |
 *                                          filed                       filed
 *
 * WHICH STATES ARE WORTH A SLOT. A later prompt can use a snapshot only at or above the end of its
 * own match, and a match ends at a whole block.
 *
 *   stem     A prompt that goes on from this one (the next turn) matches at least up to there. In a
 *            trace it ends with the last whole id: the id of a partial block names a text that ends
 *            in it, and the next turn, which does not, has another one. So padding that block, or
 *            cutting it into smaller ones, makes its end no place where anybody goes on.
 *   match    That is where this prompt left what others had computed, so a third one may leave
 *            there too: a system prompt, the fork of a conversation, the same prompt again.
 *
 * Neither is filed where the state was taken up: there is one already.
 *
 * Both are EXACT, and the session is 0: a trace does not say which requests are one conversation,
 * and without tails a session would only order the evictions. With one for all, alpha weighs every
 * snapshot's depth against every other's age.
 */
#include "tools/replay.h"
#include "tools/measure.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Of the whole prefix and the depth; for any depth, though we file whole blocks only. */
static uint64_t state_key(const struct worker *w, uint32_t depth)
{
    uint32_t bt = w->g->layout.block_tokens, whole = depth / bt, rest = depth % bt;
    uint64_t key = whole ? w->key[whole - 1] : 0;
    if (rest)
        key = XXH3_64bits_withSeed(w->tokens + (size_t)whole * bt, rest * sizeof *w->tokens, key);
    return random_word(key, depth);
}

static void *slot_at(const struct worker *w, uint32_t device, uint32_t slot)
{
    const struct pfx_pool_view *v = &w->device[device];
    return (char *)v->slots + slot * v->slot_stride;
}

int state_restore(struct worker *w, const struct pfx_match *m, struct outcome *o)
{
    const struct pfx_snapshot_ref *s = &m->snapshot;
    /* Where blocks could not be fetched, the match is shorter than it was. */
    if (s->depth == 0 || s->depth > m->n_blocks * w->g->layout.block_tokens)
        return 0;
    uint64_t key = state_key(w, s->depth);
    for (uint32_t d = 0; d < w->g->layout.n_devices; d++)
        if (!worker_holds(slot_at(w, d, s->slot), w->g->layout.snapshot_bytes, key + d))
            o->corrupt_state = true;
    o->restart = s->depth;
    return pfx_snapshot_drop(w->c, m->lease);
}

static int save_at(struct worker *w, uint64_t lease, uint32_t depth, struct outcome *o)
{
    uint32_t slot;
    int rc = pfx_snapshot_reserve(w->c, lease, &slot);
    if (rc < 0)
        return rc == PFX_ENOSPC ? 0 : rc; /* others hold all of them: go on without */
    uint64_t key = state_key(w, depth);
    for (uint32_t d = 0; d < w->g->layout.n_devices; d++)
        worker_fill(slot_at(w, d, slot), w->g->layout.snapshot_bytes, key + d);
    rc = pfx_snapshot_insert(w->c, lease, slot, depth, PFX_EXACT);
    o->saves += rc >= 0;
    return rc;
}

int state_save(struct worker *w, const struct pfx_match *m, uint32_t n_cached, struct outcome *o)
{
    uint32_t bt = w->g->layout.block_tokens, branch = m->n_blocks * bt;
    uint32_t end = w->stem / bt < n_cached ? w->stem / bt * bt : n_cached * bt;
    int rc = 0;
    if (branch && branch != o->restart)
        rc = save_at(w, m->lease, branch, o);
    if (rc >= 0 && end > branch)
        rc = save_at(w, m->lease, end, o);
    return rc;
}
