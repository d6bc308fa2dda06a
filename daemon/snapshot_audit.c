/* Slots, entries, sessions and their orders, counted again. */
#include "daemon/snapshot_private.h"
#include "shm/stats.h"

#include <stdlib.h>

struct audit {
    const struct snapshots *sn;
    const uint32_t *holds;
    audit_find *find;
    void *arg;
    unsigned found;
    uint8_t *owned; /* by slot: how many name it */
    uint32_t in_tree[TIERS], blobs, spilling, transfers;
};

#define FOUND(a, ...)                                                                              \
    do {                                                                                           \
        (a)->find((a)->arg, __VA_ARGS__);                                                          \
        (a)->found++;                                                                              \
    } while (0)

static void expect(struct audit *a, const char *what, uint64_t counted, uint64_t walked)
{
    if (counted != walked)
        FOUND(a, "%s: counted %llu, walked %llu", what, (unsigned long long)counted,
              (unsigned long long)walked);
}

static void own(struct audit *a, uint32_t id, uint32_t slot, enum page_state state)
{
    const struct pool *p = &a->sn->slots;
    if (slot == 0 || slot > p->n_blocks || a->owned[slot]++ || p->state[slot] != state)
        FOUND(a, "slot %u of snapshot %u is not its own", slot, id);
}

/* What readers see is what is true. */
static void audit_shared(struct audit *a, uint32_t id, const struct entry *e)
{
    const struct index_snapshot *x = index_snapshot_at(index_view_of(a->sn->index), id);
    bool resident = e->state == SNAPSHOT_RESIDENT;
    if (!e->session) {
        if (x->node)
            FOUND(a, "snapshot %u hangs at node %u and belongs to no session", id, x->node);
        return;
    }
    if (x->node == 0 || x->depth != e->depth || x->kind != e->kind || x->state != e->state ||
        x->session != e->session->number || x->slot != (resident ? e->slot : NO_SLOT) ||
        x->tier_key != (resident ? 0 : e->key))
        FOUND(a, "snapshot %u of depth %u is not what the tree says of it", id, e->depth);
}

static void audit_entry(struct audit *a, uint32_t id)
{
    const struct snapshots *sn = a->sn;
    const struct entry *e = &sn->entry[id];
    audit_shared(a, id, e);
    expect(a, "holds of a snapshot", e->holds, a->holds[id]);
    if (!e->session && e->holds == 0)
        FOUND(a, "snapshot %u is neither in the tree nor held", id);
    if (e->state == SNAPSHOT_RESIDENT)
        own(a, id, e->slot, PAGE_CACHED);
    else if (e->transfer == TRANSFER_FETCH)
        own(a, id, e->slot, PAGE_PRIVATE);
    a->blobs += e->state == SNAPSHOT_TIERED || e->transfer == TRANSFER_SPILL;
    a->spilling += e->transfer == TRANSFER_SPILL;
    a->transfers += e->transfer != TRANSFER_NONE;
    if (!e->session)
        return;
    a->in_tree[tier_of(e)]++;
    if (entry_candidate(sn, e) != e->rank.in || (e->rank.in && e->queued != tier_of(e)))
        FOUND(a, "snapshot %u is %samong those that may go", id, e->rank.in ? "" : "not ");
    const struct snapshot_session *s = e->session;
    if ((e->kind == SNAPSHOT_TAIL && s->tail != id) ||
        (e->kind == SNAPSHOT_SIBLING && s->sibling != id))
        FOUND(a, "session %llu does not know its snapshot %u", (unsigned long long)s->number, id);
}

/* ---- heaps --------------------------------------------------------------------------- */

/* A node of a heap, and that its children come after it; returns how many they are. With one top a
 * heap and each node but that a child once, what is counted is what stands there. */
static uint32_t audit_heap_node(struct audit *a, const struct heap *h, const struct heap_node *n)
{
    uint32_t children = 0;
    for (const struct heap_node *c = n->child; c; c = c->next) {
        const struct heap_node *back = c == n->child ? n : c->prev;
        if (!c->in || h->before(c, n) || c->prev != back || (back != n && back->next != c))
            FOUND(a, "an order of snapshots is broken");
        if (++children > a->sn->max)
            return children;
    }
    return children;
}

/* What the entries say of a session. */
struct seen {
    uint32_t members, candidates[TIERS], children[TIERS];
};

static void see_members(struct audit *a, struct seen *seen)
{
    const struct snapshots *sn = a->sn;
    for (uint32_t id = 1; id <= sn->entry_top; id++) {
        const struct entry *e = &sn->entry[id];
        if (!e->used || !e->session)
            continue;
        struct seen *of = &seen[e->session - sn->session];
        of->members++;
        if (!e->rank.in)
            continue;
        of->candidates[tier_of(e)]++;
        of->children[tier_of(e)] +=
            audit_heap_node(a, &e->session->candidates[tier_of(e)], &e->rank);
    }
}

static void audit_session(struct audit *a, const struct snapshot_session *s,
                          const struct seen *seen)
{
    expect(a, "snapshots of a session", s->n_entries, seen->members);
    for (int t = 0; t < TIERS; t++) {
        expect(a, "candidates of a session", seen->candidates[t],
               seen->children[t] + (s->candidates[t].top != NULL));
        if (s->order[t].in != (s->candidates[t].top != NULL))
            FOUND(a, "session %llu is %samong those with candidates", (unsigned long long)s->number,
                  s->order[t].in ? "" : "not ");
    }
    if (session_find(a->sn, s->space, s->number) != s)
        FOUND(a, "session %llu cannot be found", (unsigned long long)s->number);
}

static void audit_sessions(struct audit *a)
{
    const struct snapshots *sn = a->sn;
    struct seen *seen = calloc((size_t)sn->session_top + 1, sizeof *seen);
    uint32_t with[TIERS] = {0}, children[TIERS] = {0};
    if (!seen) {
        FOUND(a, "there is no memory for the audit");
        return;
    }
    see_members(a, seen);
    for (uint32_t i = 0; i < sn->session_top; i++) {
        const struct snapshot_session *s = &sn->session[i];
        if (seen[i].members == 0)
            continue;
        audit_session(a, s, &seen[i]);
        for (int t = 0; t < TIERS; t++)
            if (s->order[t].in) {
                with[t]++;
                children[t] += audit_heap_node(a, &sn->order[t], &s->order[t]);
            }
    }
    for (int t = 0; t < TIERS; t++)
        expect(a, "sessions in order", with[t], children[t] + (sn->order[t].top != NULL));
    free(seen);
}

/* ---- all ------------------------------------------------------------------------------------ */

static void audit_slots(struct audit *a, const uint8_t *listed)
{
    const struct pool *p = &a->sn->slots;
    uint32_t n[PAGE_STATES] = {0}, lingering = 0;
    for (uint32_t slot = 1; slot <= p->n_blocks; slot++) {
        unsigned owners = a->owned[slot] + listed[slot];
        bool lingers = p->state[slot] == PAGE_INFLIGHT;
        n[p->state[slot]]++;
        lingering += a->sn->lingering[slot];
        if (lingers && a->sn->lingering[slot] == 0)
            FOUND(a, "slot %u is in flight and nothing uses it", slot);
        if (p->state[slot] == PAGE_FREE && a->sn->lingering[slot])
            FOUND(a, "slot %u is free and a transfer uses it", slot);
        if (owners != (p->state[slot] != PAGE_FREE && !lingers) ||
            (listed[slot] && p->state[slot] != PAGE_PRIVATE && p->state[slot] != PAGE_CONFINED))
            FOUND(a, "slot %u is in state %u and has %u owners", slot, p->state[slot], owners);
    }
    for (uint32_t i = 0; i < p->n_free; i++)
        if (p->free[i] == 0 || p->free[i] > p->n_blocks || p->state[p->free[i]] != PAGE_FREE)
            FOUND(a, "slot %u is listed as free", p->free[i]);
    expect(a, "free slots", p->n_free, n[PAGE_FREE]);
    expect(a, "private slots", p->n_private, n[PAGE_PRIVATE]);
    expect(a, "slots of snapshots", p->n_cached, n[PAGE_CACHED]);
    expect(a, "slots in flight", p->n_inflight, n[PAGE_INFLIGHT]);
    expect(a, "slots in quarantine", p->n_confined, n[PAGE_CONFINED]);
    expect(a, "dropped transfers", a->sn->n_lingering, lingering);
}

static void audit_counters(struct audit *a)
{
    const struct counters *c = a->sn->counters;
    expect(a, "resident snapshots of all that came and went", a->sn->n_in_tree[TIER_SLOTS],
           c->snapshot_saves + c->snapshot_fetches - c->snapshot_spills - c->snapshot_evictions -
               c->snapshot_displaced);
    expect(a, "spilled snapshots", a->sn->n_in_tree[TIER_BLOBS],
           c->snapshot_spills + c->tier_restored - c->snapshot_fetches - c->snapshot_forgotten -
               c->tier_resaved - c->tier_swept - c->tier_dropped);
}

unsigned snapshots_audit(const struct snapshots *sn, const uint32_t *holds, const uint8_t *slots,
                         audit_find *find, void *arg)
{
    struct audit a = {.sn = sn, .holds = holds, .find = find, .arg = arg};
    a.owned = calloc((size_t)sn->slots.n_blocks + 1, 1);
    if (!a.owned) {
        FOUND(&a, "there is no memory for the audit");
        return a.found;
    }
    for (uint32_t id = 1; id <= sn->entry_top; id++)
        if (sn->entry[id].used)
            audit_entry(&a, id);
        else if (holds[id])
            FOUND(&a, "snapshot %u is held and does not exist", id);
    audit_sessions(&a);
    audit_slots(&a, slots);
    audit_counters(&a);
    expect(&a, "resident snapshots", sn->n_in_tree[TIER_SLOTS], a.in_tree[TIER_SLOTS]);
    expect(&a, "tiered snapshots", sn->n_in_tree[TIER_BLOBS], a.in_tree[TIER_BLOBS]);
    expect(&a, "blobs", sn->n_blobs, a.blobs);
    expect(&a, "spills under way", sn->n_spilling, a.spilling);
    expect(&a, "transfers", sn->n_transfers, a.transfers);
    free(a.owned);
    return a.found;
}
