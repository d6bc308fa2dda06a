/*
 * Sessions, and who goes next.
 *
 *      stalest session first;          order[tier]   sessions by stamp
 *      in it the lowest score          candidates    its entries by stamp + alpha x depth
 *
 * A session is as fresh as its newest use: a lookup or save of its own, or the offer of an entry
 * that it saved, to whomever: so a prefix that all conversations share keeps its saver's session
 * fresh, and in that session it is the newest.
 *
 * The published trade-off (Marconi, MLSys 2025: recency against the compute that a byte saves)
 * weighs age against depth; so does the score: stamps count uses, and alpha says how many uses a
 * token of depth is worth. It is fixed between two uses of an entry, so a heap holds it.
 *
 * The live session, that of the latest lookup, needs its tail in its next turn, although between
 * the turns everybody else looks fresher: its tail and sibling are leased, no candidates at all,
 * for LEASE_EVICTIONS evictions. A session that has ended thus holds nothing for ever.
 */
#include "daemon/snapshot_private.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { LEASE_EVICTIONS = 64 };

/* ---- orders -------------------------------------------------------------------------- */

static struct entry *entry_in(const struct heap_node *n)
{
    return (struct entry *)((uintptr_t)n - offsetof(struct entry, rank));
}

static struct snapshot_session *session_in(const struct heap_node *n, enum tiers tier)
{
    return (struct snapshot_session *)((uintptr_t)n -
                                       offsetof(struct snapshot_session, order[tier]));
}

static bool scores_before(const struct heap_node *a, const struct heap_node *b)
{
    const struct entry *x = entry_in(a), *y = entry_in(b);
    return x->score < y->score || (x->score == y->score && x->stamp < y->stamp);
}

static bool slots_before(const struct heap_node *a, const struct heap_node *b)
{
    return session_in(a, TIER_SLOTS)->stamp < session_in(b, TIER_SLOTS)->stamp;
}

static bool blobs_before(const struct heap_node *a, const struct heap_node *b)
{
    return session_in(a, TIER_BLOBS)->stamp < session_in(b, TIER_BLOBS)->stamp;
}

bool ranks_before(const struct entry *a, const struct entry *b)
{
    return a->session == b->session ? scores_before(&a->rank, &b->rank)
                                    : a->session->stamp < b->session->stamp;
}

/* ---- sessions ------------------------------------------------------------------------- */

bool ranks_init(struct snapshots *sn)
{
    sn->order[TIER_SLOTS].before = slots_before;
    sn->order[TIER_BLOBS].before = blobs_before;
    sn->n_heads = 64;
    while (sn->n_heads < sn->max)
        sn->n_heads *= 2;
    sn->session = calloc((size_t)sn->max + 1, sizeof *sn->session);
    sn->heads = calloc(sn->n_heads, sizeof *sn->heads);
    return sn->session && sn->heads &&
           getrandom(&sn->seed, sizeof sn->seed, 0) == (ssize_t)sizeof sn->seed;
}

void ranks_deinit(struct snapshots *sn)
{
    free(sn->session);
    free(sn->heads);
}

static uint32_t *head_of(const struct snapshots *sn, uint64_t space, uint64_t number)
{
    const uint64_t name[2] = {space, number};
    return &sn->heads[XXH3_64bits_withSeed(name, sizeof name, sn->seed) & (sn->n_heads - 1)];
}

struct snapshot_session *session_find(const struct snapshots *sn, uint64_t space, uint64_t number)
{
    for (uint32_t at = *head_of(sn, space, number); at; at = sn->session[at - 1].chain) {
        struct snapshot_session *s = &sn->session[at - 1];
        if (s->space == space && s->number == number)
            return s;
    }
    return NULL;
}

struct snapshot_session *session_get(struct snapshots *sn, uint64_t space, uint64_t number)
{
    struct snapshot_session *s = session_find(sn, space, number);
    if (s)
        return s;
    uint32_t at = sn->free_session;
    if (at)
        sn->free_session = sn->session[at - 1].chain;
    else
        at = ++sn->session_top; /* never more than entries, and one that is about to come */
    uint32_t *head = head_of(sn, space, number);
    s = &sn->session[at - 1];
    *s = (struct snapshot_session){
        .space = space,
        .number = number,
        .chain = *head,
        .candidates = {{.before = scores_before}, {.before = scores_before}},
    };
    *head = at;
    return s;
}

static void session_free(struct snapshots *sn, struct snapshot_session *s)
{
    uint32_t at = (uint32_t)(s - sn->session) + 1;
    uint32_t *link = head_of(sn, s->space, s->number);
    while (*link != at)
        link = &sn->session[*link - 1].chain;
    *link = s->chain;
    assert(!s->candidates[0].top && !s->candidates[1].top && !s->tail && !s->sibling);
    s->chain = sn->free_session;
    sn->free_session = at;
}

void session_join(struct snapshots *sn, struct entry *e, struct snapshot_session *s)
{
    e->session = s;
    s->n_entries++;
    if (e->kind == SNAPSHOT_TAIL)
        s->tail = id_of(sn, e);
    if (e->kind == SNAPSHOT_SIBLING)
        s->sibling = id_of(sn, e);
}

static void candidate_remove(struct snapshots *sn, struct entry *e);

void session_part(struct snapshots *sn, struct entry *e)
{
    struct snapshot_session *s = e->session;
    candidate_remove(sn, e);
    e->session = NULL;
    if (s->tail == id_of(sn, e))
        s->tail = 0;
    if (s->sibling == id_of(sn, e))
        s->sibling = 0;
    if (--s->n_entries == 0)
        session_free(sn, s);
}

void session_stamp(struct snapshots *sn, struct snapshot_session *s, uint64_t stamp)
{
    for (int t = 0; t < TIERS; t++)
        if (s->order[t].in)
            heap_remove(&sn->order[t], &s->order[t]);
    s->stamp = stamp;
    for (int t = 0; t < TIERS; t++)
        if (s->candidates[t].top)
            heap_put(&sn->order[t], &s->order[t]);
}

/* ---- candidates ------------------------------------------------------------------------ */

bool entry_leased(const struct snapshots *sn, const struct entry *e)
{
    const struct snapshot_session *s = e->session;
    uint32_t id = id_of(sn, e);
    return sn->lease_left && s->number && s->number == sn->live_number &&
           s->space == sn->live_space && (s->tail == id || s->sibling == id);
}

bool entry_candidate(const struct snapshots *sn, const struct entry *e)
{
    return e->session && e->holds == 0 && e->transfer == TRANSFER_NONE &&
           !(e->state == SNAPSHOT_RESIDENT && entry_leased(sn, e));
}

/* It stands in the heap of one tier, which it may have left meanwhile. */
static void candidate_remove(struct snapshots *sn, struct entry *e)
{
    struct snapshot_session *s = e->session;
    if (!e->rank.in)
        return;
    enum tiers tier = e->queued;
    heap_remove(&s->candidates[tier], &e->rank);
    if (!s->candidates[tier].top)
        heap_remove(&sn->order[tier], &s->order[tier]);
}

void rank_settle(struct snapshots *sn, struct entry *e)
{
    candidate_remove(sn, e);
    e->score = (double)e->stamp + sn->config.alpha * e->depth;
    if (!entry_candidate(sn, e))
        return;
    struct snapshot_session *s = e->session;
    e->queued = tier_of(e);
    heap_put(&s->candidates[e->queued], &e->rank);
    if (!s->order[e->queued].in)
        heap_put(&sn->order[e->queued], &s->order[e->queued]);
}

static struct entry *leased_one(struct snapshots *sn)
{
    const struct snapshot_session *s = session_find(sn, sn->live_space, sn->live_number);
    struct entry *best = NULL;
    if (!s)
        return NULL;
    const uint32_t leased[2] = {s->tail, s->sibling};
    for (int i = 0; i < 2; i++) {
        struct entry *e = &sn->entry[leased[i]];
        if (leased[i] && e->state == SNAPSHOT_RESIDENT && e->holds == 0 &&
            e->transfer == TRANSFER_NONE && (!best || scores_before(&e->rank, &best->rank)))
            best = e;
    }
    return best;
}

struct entry *rank_next(struct snapshots *sn, enum tiers tier)
{
    if (sn->order[tier].top)
        return entry_in(session_in(sn->order[tier].top, tier)->candidates[tier].top);
    return tier == TIER_SLOTS ? leased_one(sn) : NULL;
}

/* ---- the live session --------------------------------------------------------------------- */

/* Its leased entries begin or end to be candidates. */
static void live_settle(struct snapshots *sn, uint64_t space, uint64_t number)
{
    const struct snapshot_session *s = number ? session_find(sn, space, number) : NULL;
    if (s && s->tail)
        rank_settle(sn, &sn->entry[s->tail]);
    if (s && s->sibling)
        rank_settle(sn, &sn->entry[s->sibling]);
}

void live_set(struct snapshots *sn, uint64_t space, uint64_t number)
{
    uint64_t old_space = sn->live_space, old_number = sn->live_number;
    sn->live_space = space;
    sn->live_number = number;
    sn->lease_left = LEASE_EVICTIONS;
    live_settle(sn, old_space, old_number);
    live_settle(sn, space, number);
}

void snapshots_live(struct snapshots *sn, uint64_t space, uint64_t number)
{
    struct snapshot_session *s = session_find(sn, space, number);
    sn->uses++;
    if (s)
        session_stamp(sn, s, sn->uses);
    live_set(sn, space, number);
}

void lease_count_eviction(struct snapshots *sn)
{
    if (sn->lease_left && --sn->lease_left == 0)
        live_settle(sn, sn->live_space, sn->live_number);
}
