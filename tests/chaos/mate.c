/*
 * Two workers of one group: one leases blocks and offers them, the other writes them, inserts and
 * releases. What a dead member held stays while the group lives: an offer that was made after the
 * mate had attached is good, whatever has become of its maker - unless he has closed, so he waits.
 */
#include "tests/chaos/worker.h"

#include <string.h>

enum { WAIT_MS = 3 * DEADLINE_MS };

static struct seat *mate_seat(const struct actor *w)
{
    return &w->stage->seat[w->cast->seat ^ 1u];
}

/* What was offered to a mate that then died is its maker's until he closes. */
uint32_t crowded(const struct actor *w)
{
    return mate_exists(w) ? ERROR(PFX_ENOSPC) : 0;
}

bool mate_offer(struct actor *w, struct hand *h)
{
    struct offer *o = &w->seat->offer;
    if (shm_load_acquire(&o->state) != OFFER_NONE)
        return false;
    o->life = w->life;
    o->made_ns = clock_ns();
    o->lease = h->lease;
    o->version = h->version;
    o->prompt = h->prompt;
    o->variant = h->variant;
    o->space = h->space;
    o->n_tokens = h->text.n;
    o->n_matched = h->n_matched;
    o->n_table = h->n_table;
    memcpy(o->table, h->table, h->n_table * sizeof o->table[0]);
    shm_store_release(&o->state, (uint32_t)OFFER_MADE);
    hand_clear(h);
    at_point(w, POINT_OFFER);
    return true;
}

static void take_offer(struct actor *w, struct hand *h, const struct offer *o)
{
    hand_clear(h);
    h->lease = o->lease;
    h->version = o->version;
    h->prompt = o->prompt;
    h->variant = o->variant;
    h->space = o->space;
    text_make(&h->text, w->plan, w->cast->work, o->prompt, o->variant, o->n_tokens);
    text_key(&h->text, o->space, o->version);
    h->n_matched = h->n_right = o->n_matched;
    h->known = h->n_matched * w->bt;
    h->n_table = o->n_table;
    memcpy(h->table, o->table, o->n_table * sizeof o->table[0]);
    h->state.slot = PFX_NO_SLOT;
}

void mate_serve(struct actor *w)
{
    struct offer *o = &mate_seat(w)->offer;
    uint32_t made = OFFER_MADE;
    if (shm_load_acquire(&o->state) != OFFER_MADE ||
        !__atomic_compare_exchange_n(&o->state, &made, OFFER_TAKEN, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    if (o->life == w->life && o->made_ns > w->attached_ns) {
        struct hand h = {.lease = 0};
        take_offer(w, &h, o);
        request_fill(w, &h);
        uint32_t room = h.n_table * w->bt, whole = room < h.text.n ? room : h.text.n;
        if (!w->cut && whole > h.n_matched * w->bt)
            request_insert(w, &h, whole, 0);
        if (!w->gone && !w->cut && w->plan->slots && dice_one_in(&w->dice, 3))
            state_keep(w, &h);
        if (!w->gone)
            request_end(w, &h);
        tally_add(&w->seat->tally.handed_over, 1);
        text_free(&h.text);
    } else if (o->life == w->life) { /* of a group before, or of this one */
        CALL(w, "pfx_release", ERROR(PFX_ESTALE), pfx_release(w->c, o->lease));
    }
    made = OFFER_TAKEN;
    __atomic_compare_exchange_n(&o->state, &made, OFFER_NONE, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
}

bool mate_await(struct actor *w)
{
    struct offer *o = &w->seat->offer;
    uint32_t made = OFFER_MADE;
    if (__atomic_compare_exchange_n(&o->state, &made, OFFER_NONE, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return true;
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap_us(500))
        if (shm_load_acquire(&o->state) == OFFER_NONE)
            return true;
    return false;
}
