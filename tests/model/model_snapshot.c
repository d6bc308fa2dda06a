/*
 * Snapshots: a list of them, each with its whole prefix, and loops over it.
 *
 *   found    its prefix begins the query, and is no longer than the match and its tail
 *   held     some lease lists it
 *   victim   of those that can be found, are resident and not held: the lowest by (stamp of its
 *            session, stamp + alpha x depth, stamp); the tail and sibling of the live session only
 *            if there is no other, or 64 have gone since its latest use
 *
 * Everything happens at once: a transfer is over when it was asked for.
 */
#include "tests/model/model.h"
#include "tests/harness.h"

#include <string.h>

enum { LEASED_FOR = 64 };

bool model_findable(const struct model *m, int snapshot)
{
    return m->snapshot[snapshot].used && !m->snapshot[snapshot].gone;
}

static bool held(const struct model *m, int id)
{
    for (int l = 0; l < MODEL_LEASES; l++)
        if (m->lease[l].used && (m->lease[l].resident == id || m->lease[l].tiered == id))
            return true;
    return false;
}

uint32_t model_slots_private(const struct model *m)
{
    uint32_t n = 0;
    for (int l = 0; l < MODEL_LEASES; l++)
        n += m->lease[l].used ? m->lease[l].n_slots : 0;
    return n;
}

uint32_t model_slots_free(const struct model *m)
{
    uint32_t n = m->config.n_slots - model_slots_private(m);
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        n -= m->snapshot[i].used && !m->snapshot[i].tiered;
    return n;
}

uint32_t model_blobs(const struct model *m)
{
    uint32_t n = 0;
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        n += m->snapshot[i].used && m->snapshot[i].tiered;
    return n;
}

void model_snapshot_reap(struct model *m)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        if (m->snapshot[i].used && m->snapshot[i].gone && !held(m, i))
            m->snapshot[i].used = false;
}

static void leave(struct model *m, int id)
{
    m->snapshot[id].gone = true;
    model_snapshot_reap(m);
}

/* ---- what the daemon chooses --------------------------------------------------------------- */

static bool slot_free(const struct model *m, uint32_t slot)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        if (m->snapshot[i].used && !m->snapshot[i].tiered && m->snapshot[i].slot == slot)
            return false;
    for (int l = 0; l < MODEL_LEASES; l++)
        for (uint32_t i = 0; m->lease[l].used && i < m->lease[l].n_slots; i++)
            if (m->lease[l].slot[i] == slot)
                return false;
    return slot >= 1 && slot <= m->config.n_slots;
}

void model_take_slot(struct model *m, int lease, uint32_t slot)
{
    struct model_lease *l = &m->lease[lease];
    REQUIRE_MSG(slot_free(m, slot), "slot %u was given out but is not free", slot);
    l->slot[l->n_slots++] = slot;
}

void model_tell_slot(struct model *m, int snapshot, uint32_t slot)
{
    struct model_snapshot *s = &m->snapshot[snapshot];
    if (s->slot) {
        REQUIRE_EQ(slot, s->slot);
        return;
    }
    REQUIRE_MSG(slot_free(m, slot), "a snapshot was fetched to slot %u, which is not free", slot);
    s->slot = slot;
}

void model_tell_name(struct model *m, int snapshot, uint64_t name)
{
    struct model_snapshot *s = &m->snapshot[snapshot];
    if (s->name) {
        REQUIRE_EQ(name, s->name);
        return;
    }
    REQUIRE(name != 0);
    for (uint32_t i = 0; i < m->n_names; i++)
        REQUIRE_MSG(m->name[i] != name, "the key %llx is used twice", (unsigned long long)name);
    REQUIRE(m->n_names < MODEL_NAMES);
    m->name[m->n_names++] = s->name = name;
}

/* ---- order ------------------------------------------------------------------------------------
 */

static uint64_t *session_stamp(struct model *m, const struct model_snapshot *s)
{
    return &m->session_stamp[s->space][s->session];
}

static void stamp(struct model *m, int id)
{
    m->snapshot[id].stamp = ++m->uses;
    *session_stamp(m, &m->snapshot[id]) = m->uses;
}

static void live(struct model *m, int space, uint64_t session)
{
    m->live_space = space;
    m->live_session = session;
    m->live_evictions = 0;
}

static bool leased(const struct model *m, const struct model_snapshot *s)
{
    return s->kind != PFX_EXACT && s->session == m->live_session && s->space == m->live_space &&
           m->live_evictions < LEASED_FOR;
}

static bool goes_before(struct model *m, int a, int b)
{
    const struct model_snapshot *x = &m->snapshot[a], *y = &m->snapshot[b];
    uint64_t sx = *session_stamp(m, x), sy = *session_stamp(m, y);
    double fx = (double)x->stamp + m->config.alpha * x->key.n;
    double fy = (double)y->stamp + m->config.alpha * y->key.n;
    return sx != sy ? sx < sy : fx != fy ? fx < fy : x->stamp < y->stamp;
}

/* The first to go of a tier, -1: none. */
static int first(struct model *m, bool tiered, bool leased_too)
{
    int best = -1;
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) {
        const struct model_snapshot *s = &m->snapshot[i];
        if (model_findable(m, i) && s->tiered == tiered && !held(m, i) &&
            (tiered || leased_too || !leased(m, s)) && (best < 0 || goes_before(m, i, best)))
            best = i;
    }
    return best;
}

static int victim(struct model *m)
{
    int id = first(m, false, false);
    return id >= 0 ? id : first(m, false, true);
}

/* ---- down ---------------------------------------------------------------------------------- */

static enum fate put_fate(struct model *m)
{
    return m->fates->put[m->fates->n_put++ % MODEL_TRANSFERS];
}

static bool tier_takes(struct model *m, int id)
{
    if (m->config.n_tier == 0)
        return false;
    if (model_blobs(m) == m->config.n_tier) {
        int low = first(m, true, false);
        if (low < 0 || !goes_before(m, low, id))
            return false;
        m->dropped++;
        leave(m, low);
    }
    return put_fate(m) == FATE_DONE;
}

/* A resident one goes; true: to the tier. */
static bool send_down(struct model *m, int id, uint32_t min_tokens)
{
    struct model_snapshot *s = &m->snapshot[id];
    bool spilled = s->key.n >= min_tokens && tier_takes(m, id);
    m->live_evictions++;
    if (spilled) {
        s->tiered = true;
        s->slot = 0;
        s->name = 0;
        m->count.snapshot_spills++;
    } else {
        m->count.snapshot_evictions++;
        leave(m, id);
    }
    return spilled;
}

static bool make_room(struct model *m)
{
    if (model_slots_free(m))
        return true;
    int id = victim(m);
    if (id >= 0)
        send_down(m, id, m->config.spill_min);
    return id >= 0;
}

int model_snapshot_evict(struct model *m)
{
    int id = victim(m);
    if (id < 0)
        return PFX_ENOENT;
    m->live_evictions++;
    m->count.snapshot_evictions++;
    leave(m, id);
    return 0;
}

int model_snapshot_spill(struct model *m, uint32_t min_tokens, int *spilled, uint32_t *depth)
{
    int id = victim(m);
    if (id < 0)
        return PFX_ENOENT;
    *depth = m->snapshot[id].key.n;
    *spilled = send_down(m, id, min_tokens) ? id : -1;
    return 0;
}

int model_snapshot_forget(struct model *m, uint64_t name)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        if (model_findable(m, i) && m->snapshot[i].tiered && m->snapshot[i].name == name) {
            m->count.snapshot_forgotten++;
            leave(m, i);
            return 0;
        }
    return PFX_ENOENT;
}

/* The blocks of its prefix are no longer there. */
void model_snapshot_orphans(struct model *m)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) {
        const struct model_snapshot *s = &m->snapshot[i];
        struct key whole = key_cut(&s->key, s->key.n / m->bt * m->bt);
        if (!model_findable(m, i) || whole.n == 0 || model_block_find(m, s->root, &whole) >= 0)
            continue;
        *(s->tiered ? &m->dropped : &m->count.snapshot_evictions) += 1;
        leave(m, i);
    }
}

void model_snapshot_flush(struct model *m)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        if (model_findable(m, i) && !model_live_root(m, m->snapshot[i].root)) {
            m->dropped += m->snapshot[i].tiered;
            leave(m, i);
        }
}

/* ---- up ---------------------------------------------------------------------------------------
 */

/* A tiered one to a slot. PFX_ENOENT: its bytes are gone. */
static int fetch(struct model *m, int id)
{
    struct model_snapshot *s = &m->snapshot[id];
    if (!make_room(m))
        return PFX_ENOSPC;
    enum fate fate = m->fates->get[m->fates->n_get++ % MODEL_TRANSFERS];
    if (fate == FATE_REFUSED || fate == FATE_ERROR)
        return PFX_EIO;
    if (fate == FATE_MISS) {
        s->lost = true;
        m->count.snapshot_forgotten += model_findable(m, id);
        leave(m, id);
        return PFX_ENOENT;
    }
    s->tiered = false;
    s->slot = 0;
    s->name = 0;
    m->count.snapshot_fetches += model_findable(m, id);
    return 0;
}

static uint32_t depth_of(const struct model *m, int id)
{
    return id < 0 ? 0 : m->snapshot[id].key.n;
}

/* What the lease was offered, as it is now: another may have fetched it. After a cut, what is
 * deeper than match and tail is held, but not reported. */
static void offered(const struct model *m, const struct model_lease *l, struct model_found *out)
{
    const int held_by_it[2] = {l->resident, l->tiered};
    out->resident = out->tiered = -1;
    for (int i = 0; i < 2; i++) {
        int id = held_by_it[i];
        if (id < 0 || depth_of(m, id) > l->matched * m->bt + l->tail_tokens)
            continue;
        int *best = m->snapshot[id].tiered ? &out->tiered : &out->resident;
        if (depth_of(m, id) > depth_of(m, *best) ||
            (depth_of(m, id) == depth_of(m, *best) && m->snapshot[id].kind != PFX_TAIL))
            *best = id;
    }
}

int model_bring(struct model *m, struct model_lease *l)
{
    struct model_found now;
    offered(m, l, &now);
    if (depth_of(m, now.tiered) <= depth_of(m, now.resident))
        return 0;
    int status = m->snapshot[now.tiered].lost ? PFX_ENOENT : fetch(m, now.tiered);
    if (status == PFX_ENOENT || status == PFX_EIO)
        l->tiered = -1;
    model_snapshot_reap(m);
    return status == PFX_ENOENT ? 0 : status;
}

int model_fetch(struct model *m, int conn, int lease, struct model_found *out)
{
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    int status = model_bring(m, l);
    *out = (struct model_found){.matched = l->matched * m->bt, .tail_block = PFX_NO_BLOCK};
    offered(m, l, out);
    if (l->tail >= 0) {
        out->tail_block = m->block[l->tail].page;
        out->tail_tokens = l->tail_tokens;
    }
    for (uint32_t i = 0; i < l->matched; i++) {
        struct key prefix = key_cut(&l->path, (i + 1) * m->bt);
        out->blocks[i] = m->block[model_block_find(m, l->root, &prefix)].page;
    }
    return status;
}

/* ---- found ------------------------------------------------------------------------------------
 */

void model_offers(const struct model *m, const struct model_ask *ask, uint32_t end,
                  struct model_found *out)
{
    out->resident = out->tiered = -1;
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) {
        const struct model_snapshot *s = &m->snapshot[i];
        if (!model_findable(m, i) || s->root != m->root[ask->space] || s->key.n > end ||
            !key_begins(&ask->query, &s->key) ||
            (ask->snapshot_multiple && s->key.n % ask->snapshot_multiple) ||
            (s->kind == PFX_TAIL && s->session != ask->session))
            continue;
        int *best = s->tiered ? &out->tiered : &out->resident;
        if (*best < 0 || s->key.n > depth_of(m, *best) ||
            (s->key.n == depth_of(m, *best) && s->kind != PFX_TAIL))
            *best = i;
    }
}

static void count_lookup(struct model *m, const struct model_found *out)
{
    uint32_t resident = depth_of(m, out->resident), tiered = depth_of(m, out->tiered);
    uint32_t depth = resident > tiered ? resident : tiered;
    m->count.snapshot_hits += depth > 0;
    if (m->config.n_slots && out->matched > depth)
        m->count.recompute_tokens += out->matched - depth;
}

void model_snapshot_lookup(struct model *m, struct model_lease *l, const struct model_ask *ask,
                           struct model_found *out)
{
    l->session = ask->session;
    l->resident = out->resident;
    l->tiered = out->tiered;
    if (ask->query.n && !(ask->flags & (PFX_QUIET | PFX_NO_MATCH))) {
        if (ask->session) {
            m->session_stamp[ask->space][ask->session] = ++m->uses;
            live(m, ask->space, ask->session);
        }
        if (out->resident >= 0)
            stamp(m, out->resident);
        if (out->tiered >= 0)
            stamp(m, out->tiered);
        count_lookup(m, out);
    }
    if (!(ask->flags & PFX_FETCH))
        return;
    model_bring(m, l);
    offered(m, l, out);
}

/* ---- saved ------------------------------------------------------------------------------------
 */

int model_snapshot_reserve(struct model *m, int conn, int lease)
{
    if (!model_mine(m, conn, lease, false))
        return PFX_ESTALE;
    if (m->config.n_slots == 0)
        return PFX_ENOENT;
    return make_room(m) ? 0 : PFX_ENOSPC;
}

static bool give_slot(struct model_lease *l, uint32_t slot)
{
    for (uint32_t i = 0; i < l->n_slots; i++)
        if (l->slot[i] == slot) {
            l->slot[i] = l->slot[--l->n_slots];
            return true;
        }
    return false;
}

int model_snapshot_cancel(struct model *m, int conn, int lease, uint32_t slot)
{
    if (slot == 0 || slot > m->config.n_slots)
        return PFX_EINVAL;
    struct model_lease *l = model_mine(m, conn, lease, false);
    return l && give_slot(l, slot) ? 0 : PFX_ESTALE;
}

int model_snapshot_drop(struct model *m, int conn, int lease)
{
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    l->resident = l->tiered = -1;
    model_snapshot_reap(m);
    return 0;
}

bool model_prefix(const struct model *m, const struct model_lease *l, uint32_t depth,
                  struct key *prefix)
{
    const struct key *from = &l->path;
    uint32_t end = l->path.n;
    if (depth > end && l->written.n > end) {
        from = &l->written;
        end = from->n;
    } else if (depth > end && l->tail >= 0 && !l->inserted) {
        from = &m->block[l->tail].key;
        end += l->tail_tokens;
    }
    if (depth > end)
        return false;
    *prefix = key_cut(from, depth);
    return true;
}

/* The session's own tail or sibling in this space, -1: none. */
static int own(const struct model *m, const struct model_lease *l, int kind)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) {
        const struct model_snapshot *s = &m->snapshot[i];
        if (model_findable(m, i) && s->root == l->root && s->session == l->session &&
            s->kind == kind)
            return i;
    }
    return -1;
}

static void sweep(struct model *m, const struct model_lease *l, int kind)
{
    int id = own(m, l, kind);
    if (id < 0)
        return;
    m->swept += m->snapshot[id].tiered;
    leave(m, id);
}

/* What stands there for everybody, -1: nothing. */
static int shared_at(const struct model *m, uint32_t root, const struct key *key)
{
    for (int i = 0; i < MODEL_SNAPSHOTS; i++) {
        const struct model_snapshot *s = &m->snapshot[i];
        if (model_findable(m, i) && s->root == root && s->kind != PFX_TAIL && s->key.n == key->n &&
            key_begins(&s->key, key))
            return i;
    }
    return -1;
}

static void displace(struct model *m, int id)
{
    m->resaved += m->snapshot[id].tiered;
    leave(m, id);
}

/* False: what is there serves. */
static bool clear_for(struct model *m, const struct model_lease *l, const struct key *key, int kind)
{
    int there = shared_at(m, l->root, key);
    bool needed = true;
    if (kind == PFX_TAIL) {
        sweep(m, l, PFX_TAIL);
    } else if (kind == PFX_EXACT && there >= 0) {
        displace(m, there);
    } else if (there >= 0 && there == own(m, l, PFX_TAIL_SIBLING)) {
        displace(m, there);
    } else if (there >= 0) {
        m->snapshot[there].kind = PFX_EXACT;
        needed = false;
    }
    if (kind != PFX_EXACT)
        sweep(m, l, PFX_TAIL_SIBLING);
    return needed;
}

int model_snapshot_insert(struct model *m, int conn, int lease, uint32_t slot, uint32_t depth,
                          int kind)
{
    if (slot == 0 || slot > m->config.n_slots || depth == 0 || kind < 0 || kind > PFX_TAIL_SIBLING)
        return PFX_EINVAL;
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    if (kind != PFX_EXACT && l->session == 0)
        return PFX_EINVAL;
    bool has = false;
    for (uint32_t i = 0; i < l->n_slots; i++)
        has |= l->slot[i] == slot;
    if (!has)
        return PFX_ESTALE;
    struct key key;
    if (!model_prefix(m, l, depth, &key))
        return PFX_ECONFLICT;
    give_slot(l, slot);
    if (!clear_for(m, l, &key, kind))
        return 0;
    int i = 0;
    while (m->snapshot[i].used)
        REQUIRE(++i < MODEL_SNAPSHOTS);
    m->snapshot[i] = (struct model_snapshot){.used = true,
                                             .space = l->space,
                                             .root = l->root,
                                             .session = l->session,
                                             .kind = kind,
                                             .slot = slot,
                                             .key = key};
    m->count.snapshot_saves++;
    stamp(m, i);
    if (kind == PFX_TAIL)
        live(m, l->space, l->session);
    return 0;
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ at[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

void state_bytes(uint32_t life, const struct key *prefix, uint64_t tail_of,
                 uint8_t bytes[STATE_BYTES])
{
    uint64_t h = mix(0xcbf29ce484222325ull, &life, sizeof life);
    h = mix(h, &tail_of, sizeof tail_of);
    h = mix(h, prefix->token, prefix->n * sizeof prefix->token[0]);
    h = mix(h, prefix->extra, prefix->n_extras * sizeof prefix->extra[0]);
    struct rng r = {h};
    for (int i = 0; i < STATE_BYTES; i++)
        bytes[i] = (uint8_t)(rng_next(&r) >> 24);
}
