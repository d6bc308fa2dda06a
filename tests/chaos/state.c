/* States of a request: restored and compared, saved at depths that the lease may name. */
#include "tests/chaos/worker.h"

#include <unistd.h>

void state_verify(struct actor *w, const struct hand *h)
{
    const struct pfx_snapshot_ref *s = &h->state;
    if (h->unsure || s->depth == 0 || s->slot == PFX_NO_SLOT)
        return;
    struct difference x =
        state_compare(w->c, s->slot, &h->text, s->depth, s->is_tail ? h->session : 0);
    tally_add(&w->seat->tally.verified_states, 1);
    if (x.word < 0)
        return;
    tally_add(&w->seat->tally.corrupt_states, 1);
    stage_find(w->stage,
               "worker %u (process %d): slot %u, %s of depth %u of prompt %zu in space %u (flushed "
               "%llu times), session %llu, word %lld on device %u: 0x%016llx was expected, "
               "0x%016llx is there",
               w->cast->seat, (int)getpid(), s->slot, s->is_tail ? "the tail" : "a state", s->depth,
               h->prompt, h->space, (unsigned long long)h->version, (unsigned long long)h->session,
               (long long)x.word, x.device, (unsigned long long)x.expected,
               (unsigned long long)x.found);
}

static void let_go(struct actor *w, struct hand *h)
{
    if (CALL(w, "pfx_snapshot_drop", stale_of(w, h), pfx_snapshot_drop(w->c, h->lease)) == 0)
        h->state = (struct pfx_snapshot_ref){.slot = PFX_NO_SLOT};
}

/* Go on at its depth: blocks behind it are computed again. */
void state_use(struct actor *w, struct hand *h)
{
    uint32_t keep = h->state.depth / w->bt;
    bool shorter = keep < h->n_table;
    state_verify(w, h);
    keep = keep < h->n_table ? keep : h->n_table;
    if (CALL(w, "pfx_truncate", stale_of(w, h), pfx_truncate(w->c, h->lease, keep)) < 0)
        return;
    h->n_table = h->n_right = h->n_matched = keep;
    if (shorter) {
        h->tail_tokens = 0;
        h->known = keep * w->bt;
        if (h->state.depth > h->known)
            h->state = (struct pfx_snapshot_ref){.slot = PFX_NO_SLOT};
    }
    let_go(w, h);
}

static void save_at(struct actor *w, struct hand *h, uint32_t depth, enum pfx_snapshot_kind kind)
{
    uint32_t slot = PFX_NO_SLOT;
    if (CALL(w, "pfx_snapshot_reserve", ERROR(PFX_ENOSPC) | stale_of(w, h),
             pfx_snapshot_reserve(w->c, h->lease, &slot)) < 0)
        return;
    EXPECT(w, slot >= 1 && slot <= w->plan->slots, "slot %u of %u was given", slot, w->plan->slots);
    at_point(w, POINT_SLOT);
    if (w->gone || w->cut)
        return;
    state_write(w->c, slot, &h->text, depth, kind == PFX_TAIL ? h->session : 0);
    if (dice_one_in(&w->dice, 8))
        CALL(w, "pfx_snapshot_cancel", stale_of(w, h), pfx_snapshot_cancel(w->c, h->lease, slot));
    else
        CALL(w, "pfx_snapshot_insert", stale_of(w, h),
             pfx_snapshot_insert(w->c, h->lease, slot, depth, kind));
}

void state_keep(struct actor *w, struct hand *h)
{
    for (unsigned i = dice_between(&w->dice, 1, 2); i && h->known && !w->gone && !w->cut; i--) {
        uint32_t depth = dice_one_in(&w->dice, 2) ? h->known : dice_between(&w->dice, 1, h->known);
        uint32_t kind = h->session ? dice_below(&w->dice, 3) : PFX_EXACT;
        save_at(w, h, depth, (enum pfx_snapshot_kind)kind);
    }
}
