/* The operations on snapshots of a random run. */
#include "tests/model/run.h"

#include <string.h>

/* ---- bytes ----------------------------------------------------------------------------- */

static bool slot_has(struct run *r, int conn, uint32_t slot, int snapshot)
{
    const struct model_snapshot *s = &r->m.snapshot[snapshot];
    uint8_t bytes[STATE_BYTES];
    state_bytes(s->root, &s->key, s->kind == PFX_TAIL ? s->session : 0, bytes);
    return memcmp(r->b.slot(r->b.self, conn, slot), bytes, STATE_BYTES) == 0;
}

/* A slot that is reserved, before anything is saved in it. */
static void spoil(struct run *r, int conn, int lease, uint32_t slot)
{
    memset(r->b.slot(r->b.self, conn, slot), (int)(0x80 + slot + 8 * (uint32_t)lease), STATE_BYTES);
}

static bool spoilt(struct run *r, int conn, int lease, uint32_t slot)
{
    const uint8_t *at = r->b.slot(r->b.self, conn, slot);
    for (int i = 0; i < STATE_BYTES; i++)
        if (at[i] != (uint8_t)(0x80 + slot + 8 * (uint32_t)lease))
            return false;
    return true;
}

/* ---- what is offered ------------------------------------------------------------------------ */

void same_offers(struct run *r, int conn, const struct model_found *want,
                 const struct pfx_snapshot_ref *got)
{
    int id = want->resident;
    if (id >= 0) {
        REQUIRE_EQ(got->depth, r->m.snapshot[id].key.n);
        REQUIRE_EQ(got->is_tail, r->m.snapshot[id].kind == PFX_TAIL);
        model_tell_slot(&r->m, id, got->slot);
        REQUIRE_MSG(slot_has(r, conn, got->slot, id), "slot %u has not the state after %u tokens",
                    got->slot, got->depth);
    } else {
        REQUIRE_EQ(got->depth, 0);
        REQUIRE_EQ(got->slot, PFX_NO_SLOT);
        REQUIRE_EQ(got->is_tail, 0);
    }
    id = want->tiered;
    if (id >= 0) {
        REQUIRE_EQ(got->tier_depth, r->m.snapshot[id].key.n);
        model_tell_name(&r->m, id, got->tier_key);
    } else {
        REQUIRE_EQ(got->tier_depth, 0);
        REQUIRE_EQ(got->tier_key, 0);
    }
}

void offers_whole(struct run *r, int conn, int lease)
{
    const struct model_lease *l = &r->m.lease[lease];
    const int held[2] = {l->resident, l->tiered};
    for (int i = 0; i < 2; i++) {
        const struct model_snapshot *s = &r->m.snapshot[held[i] < 0 ? 0 : held[i]];
        if (held[i] >= 0 && !s->tiered && s->slot)
            REQUIRE_MSG(slot_has(r, conn, s->slot, held[i]), "slot %u changed while it was held",
                        s->slot);
    }
    for (uint32_t i = 0; i < l->n_slots; i++)
        REQUIRE_MSG(spoilt(r, conn, lease, l->slot[i]), "slot %u changed while it was private",
                    l->slot[i]);
}

/* ---- transfers --------------------------------------------------------------------------- */

static enum fate put_fate(struct run *r)
{
    return one_in(r, 8) ? FATE_REFUSED : one_in(r, 10) ? FATE_ERROR : FATE_DONE;
}

static enum fate get_fate(struct run *r)
{
    static const enum fate bad[] = {FATE_REFUSED, FATE_ERROR, FATE_MISS, FATE_MISS};
    return one_in(r, 4) ? bad[dice(r, 4)] : FATE_DONE;
}

void cast_fates(struct run *r)
{
    r->fates = (struct fates){0};
    for (int i = 0; r->local && i < MODEL_TRANSFERS; i++) {
        r->fates.put[i] = put_fate(r);
        r->fates.get[i] = get_fate(r);
    }
    r->fates_model = r->fates;
    r->m.fates = &r->fates_model;
}

void same_transfers(struct run *r)
{
    if (!r->local)
        return;
    REQUIRE_EQ(r->fates.n_put, r->fates_model.n_put);
    REQUIRE_EQ(r->fates.n_get, r->fates_model.n_get);
}

/* ---- operations -------------------------------------------------------------------------------
 */

static int slot_for(struct run *r, int conn, int lease, uint32_t *slot)
{
    int status = r->b.snapshot_reserve(r->b.self, conn, r->lease[lease], slot);
    REQUIRE_EQ(status, model_snapshot_reserve(&r->m, conn, lease));
    if (status)
        return status;
    model_take_slot(&r->m, lease, *slot);
    spoil(r, conn, lease, *slot);
    return 0;
}

void do_snapshot_reserve(struct run *r)
{
    int lease = some_lease(r);
    uint32_t slot;
    if (lease >= 0)
        slot_for(r, conn_for(r, lease), lease, &slot);
}

/* Mostly a lease that has a slot. */
static int lease_with_slot(struct run *r)
{
    int lease = some_lease(r);
    for (int tries = 0; lease >= 0 && tries < 6 && r->m.lease[lease].n_slots == 0; tries++)
        lease = some_lease(r);
    return lease;
}

/* One of its own, or any number. */
static uint32_t some_slot(struct run *r, const struct model_lease *l)
{
    return l->n_slots && !one_in(r, 12) ? l->slot[dice(r, l->n_slots)]
                                        : dice(r, r->m.config.n_slots + 2);
}

static bool has_slot(const struct model_lease *l, uint32_t slot)
{
    for (uint32_t i = 0; i < l->n_slots; i++)
        if (l->slot[i] == slot)
            return true;
    return false;
}

/* Where a state is worth saving: the end of what is held, or written, or before; now and then
 * beyond.
 */
static uint32_t some_depth(struct run *r, const struct model_lease *l)
{
    uint32_t written = l->written.n > l->path.n ? l->written.n : l->path.n + l->tail_tokens;
    switch (dice(r, 8)) {
    case 0:
    case 1:
        return l->path.n;
    case 2:
    case 3:
        return written;
    case 4:
        return dice(r, KEY_MAX + 4);
    case 5:
        return l->final ? l->final_written : l->path.n;
    default:
        return dice(r, written + 2);
    }
}

static int some_kind(struct run *r, const struct model_lease *l)
{
    if (one_in(r, 40))
        return 3;
    return l->session || one_in(r, 20) ? (int)dice(r, 3) : PFX_EXACT;
}

/* A second time, with what was a lease's own slot a moment ago. */
static void insert_twice(struct run *r, int conn, int lease, uint32_t slot)
{
    REQUIRE_EQ(r->b.snapshot_insert(r->b.self, conn, r->lease[lease], slot, 1, PFX_EXACT),
               PFX_ESTALE);
    REQUIRE_EQ(r->b.snapshot_cancel(r->b.self, conn, r->lease[lease], slot), PFX_ESTALE);
}

static int save(struct run *r, int conn, int lease, uint32_t slot, uint32_t depth, int kind)
{
    const struct model_lease *l = &r->m.lease[lease];
    struct key prefix;
    bool right = has_slot(l, slot) && depth && model_prefix(&r->m, l, depth, &prefix) &&
                 (kind == PFX_EXACT || l->session) && kind <= PFX_TAIL_SIBLING &&
                 l->group == r->m.conn[conn].group && r->m.root[l->space] == l->root;
    if (right) {
        offers_whole(r, conn, lease);
        uint8_t bytes[STATE_BYTES];
        state_bytes(l->root, &prefix, kind == PFX_TAIL ? l->session : 0, bytes);
        memcpy(r->b.slot(r->b.self, conn, slot), bytes, STATE_BYTES);
    }
    int status = r->b.snapshot_insert(r->b.self, conn, r->lease[lease], slot, depth, kind);
    REQUIRE_EQ(status, model_snapshot_insert(&r->m, conn, lease, slot, depth, kind));
    REQUIRE_EQ(status == 0, right);
    return status;
}

void do_snapshot_insert(struct run *r)
{
    int lease = lease_with_slot(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    const struct model_lease *l = &r->m.lease[lease];
    uint32_t slot = some_slot(r, l), depth = some_depth(r, l);
    int kind = some_kind(r, l);
    /* the library knows the session of a lease that its connection opened, and says EINVAL where
     * the daemon would say that the lease is stale */
    if (kind != PFX_EXACT && l->session == 0 && l->opener == conn && r->m.root[l->space] != l->root)
        kind = PFX_EXACT;
    if (save(r, conn, lease, slot, depth, kind) == 0 && one_in(r, 8))
        insert_twice(r, conn, lease, slot);
}

void do_snapshot_cancel(struct run *r)
{
    int lease = lease_with_slot(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    uint32_t slot = some_slot(r, &r->m.lease[lease]);
    int status = r->b.snapshot_cancel(r->b.self, conn, r->lease[lease], slot);
    REQUIRE_EQ(status, model_snapshot_cancel(&r->m, conn, lease, slot));
}

void do_snapshot_drop(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    offers_whole(r, conn, lease);
    int status = r->b.snapshot_drop(r->b.self, conn, r->lease[lease]);
    REQUIRE_EQ(status, model_snapshot_drop(&r->m, conn, lease));
}

void do_snapshot_evict(struct run *r)
{
    REQUIRE_EQ(r->b.snapshot_evict(r->b.self, some_conn(r)), model_snapshot_evict(&r->m));
}

void do_snapshot_spill(struct run *r)
{
    uint32_t min = one_in(r, 2) ? 0 : dice(r, 12), depth;
    struct pfx_spilled got;
    int spilled, status = r->b.snapshot_spill(r->b.self, some_conn(r), min, &got);
    REQUIRE_EQ(status, model_snapshot_spill(&r->m, min, &spilled, &depth));
    if (status)
        return;
    REQUIRE_EQ(got.depth, depth);
    REQUIRE_EQ(got.dropped, spilled < 0);
    if (spilled < 0)
        REQUIRE_EQ(got.key, 0);
    else
        model_tell_name(&r->m, spilled, got.key);
}

/* One that is there, or was, or never. */
void do_snapshot_forget(struct run *r)
{
    uint64_t name = one_in(r, 4) ? rng_next(&r->rng) >> dice(r, 64) : 0;
    if (name == 0 && r->m.n_names)
        name = r->m.name[r->m.n_names - 1 - dice(r, r->m.n_names < 8 ? r->m.n_names : 8)];
    int status = r->b.snapshot_forget(r->b.self, some_conn(r), name);
    REQUIRE_EQ(status, name ? model_snapshot_forget(&r->m, name) : PFX_ENOENT);
}

/* ---- a turn -----------------------------------------------------------------------------------
 */

/* What the session has said, and a little more; or something new, when that is too long. */
static struct key next_prompt(struct run *r, uint64_t session)
{
    struct key *talk = &r->talk[session];
    if (talk->n > KEY_MAX - 8 || one_in(r, r->shape.narrow ? 40 : 12))
        *talk = key_cut(&r->recent[dice(r, 8)], 0);
    if (talk->n == 0)
        *talk = sequence(r);
    struct key k = longer(r, talk);
    return k.n > talk->n + 12 ? key_cut(&k, talk->n + 12) : k;
}

static void save_some(struct run *r, int conn, int lease, uint32_t depth)
{
    uint32_t slot;
    int kind = r->m.lease[lease].session ? (int)dice(r, 3) : PFX_EXACT;
    if (depth && slot_for(r, conn, lease, &slot) == 0)
        save(r, conn, lease, slot, depth, kind);
}

void do_turn(struct run *r)
{
    if (!lease_to_have(r))
        return;
    int conn = some_conn(r);
    struct model_ask ask = {.session = some_session(r)};
    /* an aside: it leaves the conversation as it is, and no blocks if it ends inside one */
    bool aside = r->shape.narrow && !one_in(r, 3);
    ask.query = aside ? sequence(r) : next_prompt(r, ask.session);
    ask.max_match = ask.query.n;
    ask.flags = one_in(r, 2) ? PFX_FETCH : 0;
    int lease = run_lookup(r, conn, &ask);
    uint32_t table = (ask.query.n + r->m.bt - 1) / r->m.bt, matched = r->m.lease[lease].matched;
    if (run_reserve(r, conn, lease, table - matched)) {
        run_release(r, conn, lease);
        return;
    }
    run_insert(r, conn, lease, &ask.query, one_in(r, aside ? 20 : 2));
    save_some(r, conn, lease, ask.query.n);
    if (one_in(r, 3))
        save_some(r, conn, lease, dice(r, ask.query.n + 1));
    if (!aside)
        r->talk[ask.session] = ask.query;
    if (!one_in(r, 6))
        run_release(r, conn, lease);
}

/* Somebody without a session saves and saves, so that one goes each time: first those of all other
 * sessions, after 64 the tail of the live one too. */
void do_storm(struct run *r)
{
    if (!lease_to_have(r))
        return;
    int conn = some_conn(r);
    struct model_ask ask = {.query = sequence(r)};
    ask.max_match = ask.query.n;
    int lease = run_lookup(r, conn, &ask);
    uint32_t known = r->m.lease[lease].path.n + r->m.lease[lease].tail_tokens, slot;
    for (uint32_t n = 60 + dice(r, 10); known && n; n--)
        if (slot_for(r, conn, lease, &slot) == 0)
            save(r, conn, lease, slot, 1 + dice(r, known), PFX_EXACT);
    run_release(r, conn, lease);
}
