/*
 * Snapshots: what lookups are offered, and the calls on slots and entries. Here everything is
 * checked; snapshot.h cannot fail.
 */
#include "daemon/dispatch_private.h"
#include "daemon/group.h"

#include <stdlib.h>
#include <string.h>

static_assert(PIECE_BYTES >= BLOCK_TOKENS_MAX * (4 + sizeof(struct wire_extra)),
              "scratch holds the largest residue");

/* ---- offers ------------------------------------------------------------------------------- */

static void offer(struct call *c, uint32_t id, uint32_t *held)
{
    *held = id;
    if (!id)
        return;
    snapshot_hold(c->d->snapshots, id);
    if (!(c->rq->flags & RF_QUIET))
        snapshot_stamp(c->d->snapshots, id);
}

static void count_offer(struct call *c, const struct lease *l, const struct snapshots_found *found)
{
    struct counters *n = &c->d->counters;
    uint64_t matched = (uint64_t)l->matched * c->d->layout.block_tokens;
    uint32_t depth = found->resident.depth;
    if (found->tiered.depth > depth)
        depth = found->tiered.depth;
    n->snapshot_hits += depth > 0;
    n->recompute_tokens += matched > depth ? matched - depth : 0;
}

void offer_snapshots(struct call *c, struct lease *l, const uint32_t *rest, uint32_t multiple)
{
    struct snapshots *sn = c->d->snapshots;
    if (!sn)
        return;
    const struct snapshot_want want = {
        .session = l->session,
        .multiple = multiple,
        .states = (snapshots_resident(sn) ? SNAPSHOT_RESIDENT : 0u) |
                  (snapshots_tiered(sn) ? SNAPSHOT_TIERED : 0u),
        .rest = rest,
        .n_rest = l->tail_tokens,
    };
    struct snapshots_found found = {0};
    if (want.states)
        index_snapshots(index_view_of(c->d->index), l->path.where, &want, &found);
    c->cost += (16ull + c->d->layout.block_tokens / 16) * found.work;
    bool quiet = c->rq->flags & RF_QUIET;
    if (!quiet && l->session)
        snapshots_live(sn, l->space_number, l->session);
    offer(c, found.resident.id, &l->resident);
    offer(c, found.tiered.id, &l->tiered);
    if (!quiet)
        count_offer(c, l, &found);
}

/* What a lease holds may have moved since it was offered: another lease has fetched it. What a
 * truncate has left deeper than match and tail is held, but no longer a part of the match. */
static void best_offers(const struct call *c, const struct lease *l,
                        struct snapshot_facts best[SNAPSHOT_TIERED + 1])
{
    const uint32_t held[2] = {l->resident, l->tiered};
    uint64_t most = (uint64_t)l->matched * c->d->layout.block_tokens + l->tail_tokens;
    for (int i = 0; i < 2; i++) {
        if (!held[i])
            continue;
        struct snapshot_facts f = snapshot_facts(c->d->snapshots, held[i]);
        if (f.depth > most)
            continue;
        struct snapshot_facts *b = &best[f.state];
        if (f.depth > b->depth || (f.depth == b->depth && b->is_tail))
            *b = f;
    }
}

bool offered_deeper_below(const struct call *c, const struct lease *l)
{
    struct snapshot_facts best[SNAPSHOT_TIERED + 1] = {0};
    best_offers(c, l, best);
    return best[SNAPSHOT_TIERED].depth > best[SNAPSHOT_RESIDENT].depth;
}

void answer_snapshots(struct call *c, const struct lease *l)
{
    struct snapshot_facts best[SNAPSHOT_TIERED + 1] = {0};
    struct completion_lookup *out = &c->out->lookup;
    best_offers(c, l, best);
    const struct snapshot_facts *r = &best[SNAPSHOT_RESIDENT], *t = &best[SNAPSHOT_TIERED];
    out->slot = r->depth ? r->slot : NO_SLOT;
    out->snapshot_depth = r->depth;
    out->is_tail = r->is_tail;
    out->tier_key = t->tier_key;
    out->tier_depth = t->depth;
}

/* ---- reserve and cancel ---------------------------------------------------------------------- */

int op_snapshot_reserve(struct call *c)
{
    if (c->rq->flags)
        return STATUS_EINVAL;
    if (!call_lease(c))
        return STATUS_ESTALE;
    if (!c->d->snapshots)
        return STATUS_ENOENT;
    if (!group_may_take_slot(c->d, c->s->group))
        return STATUS_ENOSPC;
    *c->job = (struct job){.op = OP_SNAPSHOT_RESERVE, .request = *c->rq};
    return go_on_snapshot_reserve(c);
}

int go_on_snapshot_reserve(struct call *c)
{
    struct snapshots *sn = c->d->snapshots;
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    switch (snapshots_make_room(sn, &c->job->began_ns)) {
    case ROOM_SOON:
        if (c->d->disk && disk_gives_up(c->d->disk, &c->job->since_ns))
            return STATUS_ENOSPC; /* what a sick device does not give back is as good as held */
        return WAITING;
    case ROOM_NO:
        return STATUS_ENOSPC;
    case ROOM_YES:
        break;
    }
    if (!group_may_take_slot(c->d, c->s->group)) /* others of its calls were faster */
        return STATUS_ENOSPC;
    c->out->number.slot = slot_take(sn);
    lease_slot_add(c->d, l, c->out->number.slot);
    return 0;
}

static bool slot_right(const struct call *c)
{
    const struct request_number *q = &c->rq->number;
    return !c->rq->flags && q->n >= 1 && q->n <= c->d->n_slots;
}

int op_snapshot_cancel(struct call *c)
{
    if (!slot_right(c))
        return STATUS_EINVAL;
    struct lease *l = call_lease(c);
    uint32_t slot = (uint32_t)c->rq->number.n;
    if (!l || !lease_has_slot(c->d, l, slot))
        return STATUS_ESTALE;
    lease_slot_remove(c->d, l, slot);
    group_give_slot(c->d, l->group, slot);
    return 0;
}

int op_snapshot_drop(struct call *c)
{
    if (c->rq->flags)
        return STATUS_EINVAL;
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    if (c->d->snapshots)
        lease_drop_snapshots(c->d, l, 0);
    return 0;
}

/* ---- insert --------------------------------------------------------------------------------- */

static size_t extras_below(const struct lease_residue *r, uint64_t end)
{
    size_t n = 0;
    while (n < r->n_extras && r->extras[n].at < end)
        n++;
    return n;
}

/* Where the lease's first `depth` tokens end: in its held path, among the tokens that its latest
 * insert has named beyond it, or in the tail that it was offered. False: it knows no such tokens.
 */
static bool position(struct call *c, const struct lease *l, uint32_t depth,
                     struct snapshot_save *save)
{
    struct index *ix = c->d->index;
    uint64_t bt = c->d->layout.block_tokens, held = l->path.where.depth * bt;
    const struct lease_residue *r = l->residue;
    if (depth <= held) {
        index_residue(ix, l->path.where, depth, c->d->scratch, &save->at, &save->residue);
        return true;
    }
    if (r) {
        if (depth - held > r->n_tokens)
            return false;
        save->at = l->path.where;
        save->residue = (struct residue){.tokens = r->tokens,
                                         .n_tokens = (uint32_t)(depth - held),
                                         .extras = r->extras,
                                         .n_extras = extras_below(r, depth)};
        return true;
    }
    if (l->path.where.depth != l->matched || depth - held > l->tail_tokens)
        return false;
    index_residue(ix, l->tail.where, depth, c->d->scratch, &save->at, &save->residue);
    return true;
}

int op_snapshot_insert(struct call *c)
{
    const struct request_number *q = &c->rq->number;
    if (!slot_right(c) || q->depth == 0 || q->kind > SNAPSHOT_SIBLING)
        return STATUS_EINVAL;
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    if (q->kind != SNAPSHOT_EXACT && l->session == 0)
        return STATUS_EINVAL;
    uint32_t slot = (uint32_t)q->n;
    if (!lease_has_slot(c->d, l, slot))
        return STATUS_ESTALE;
    struct snapshot_save save = {
        .space = l->space_number, .session = l->session, .kind = (enum snapshot_kind)q->kind};
    bool null_index = c->d->options->null_index;
    if (!null_index && !position(c, l, q->depth, &save))
        return STATUS_ECONFLICT;
    lease_slot_remove(c->d, l, slot);
    if (null_index)
        group_give_slot(c->d, l->group, slot);
    else
        snapshot_save(c->d->snapshots, &save, slot);
    c->cost += 4ull * save.residue.n_tokens;
    return 0;
}

/* The block after the held path is in the table, so its tokens are written: remember them. Without
 * memory for that, a snapshot there is refused later. */
void keep_residue(struct call *c, struct lease *l, const struct index_query *query, bool last)
{
    uint64_t bt = c->d->layout.block_tokens, held = l->path.where.depth * bt;
    uint64_t end = query->n_tokens;
    if (c->d->options->null_index || end < held ||
        (end == held && c->rq->insert.where.depth == l->path.where.depth))
        return; /* nothing beyond what was known before */
    lease_drop_residue(l);
    if (!last || end == held || end - held >= bt || lease_table(l) == l->path.where.depth)
        return;
    size_t first = index_extras_from(query, held), after;
    while (first < query->n_extras && query->extras[first].at < held)
        first++;
    for (after = first; after < query->n_extras && query->extras[after].at < end; after++)
        continue;
    uint32_t n = (uint32_t)(end - held), room = (n + 1) & ~1u; /* extras are 8-aligned */
    struct lease_residue *r =
        malloc(sizeof *r + room * sizeof *r->tokens + (after - first) * sizeof *r->extras);
    if (!r)
        return;
    r->n_tokens = n;
    r->n_extras = (uint32_t)(after - first);
    r->extras = (struct wire_extra *)(void *)(r->tokens + room);
    memcpy(r->tokens, query->tokens + (held - query->first), n * sizeof *r->tokens);
    memcpy(r->extras, query->extras + first, r->n_extras * sizeof *r->extras);
    l->residue = r;
}

/* ---- administration ---------------------------------------------------------------------------
 */

int op_snapshot_evict(struct call *c)
{
    if (c->rq->flags)
        return STATUS_EINVAL;
    return c->d->snapshots ? snapshots_evict(c->d->snapshots) : STATUS_ENOENT;
}

int op_snapshot_spill(struct call *c)
{
    if (c->rq->flags)
        return STATUS_EINVAL;
    if (!c->d->snapshots)
        return STATUS_ENOENT;
    *c->job = (struct job){.op = OP_SNAPSHOT_SPILL, .request = *c->rq};
    return go_on_snapshot_spill(c);
}

/* One that is held or displaced on its way down comes to nothing: then the next. */
int go_on_snapshot_spill(struct call *c)
{
    struct snapshots *sn = c->d->snapshots;
    struct job *j = c->job;
    uint64_t min = c->rq->number.n;
    int status = j->begun ? spill_look(sn, &j->spill) : STATUS_ENOENT;
    if (status == STATUS_ENOENT)
        status = snapshots_spill(sn, min < UINT32_MAX ? (uint32_t)min : UINT32_MAX, &j->spill);
    j->begun = status == 1;
    if (status == 1)
        return WAITING;
    c->out->number = (struct completion_number){
        .n = j->spill.key, .depth = j->spill.depth, .dropped = j->spill.key == 0};
    return status;
}

int op_snapshot_forget(struct call *c)
{
    if (c->rq->flags)
        return STATUS_EINVAL;
    return c->d->snapshots ? snapshots_forget(c->d->snapshots, c->rq->number.n) : STATUS_ENOENT;
}
