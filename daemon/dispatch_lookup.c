/*
 * Lookups. The fast form: the worker has walked the shared index and names the deepest place that
 * it matched; what is left is to believe it (the same identity below the same root is the same
 * path), hold it, stamp it, and find the tail. The slow form walks here, a piece of tokens a
 * record, and is the oracle of the fast one.
 */
#include "daemon/dispatch_private.h"

#include <stdlib.h>

enum { LOOKUP_FLAGS = RF_FETCH | RF_NO_MATCH | RF_QUIET, CANCEL_STEP = 4 };

static void answer_match(struct call *c, const struct lease *l)
{
    c->out->lease = l->id;
    c->out->lookup = (struct completion_lookup){
        .where = l->path.where,
        .tail_block = l->tail_tokens ? l->tail_block : NO_PAGE,
        .tail_tokens = l->tail_tokens,
    };
    answer_snapshots(c, l);
}

/* Less than a block, also where all of it has been inserted since the worker walked: a whole block
 * is a match, and who takes up a state at its end would copy none of it. */
static void take_tail(struct call *c, struct lease *l, const uint32_t *rest, uint32_t n_rest)
{
    struct place tail;
    uint32_t block, tokens, most = c->d->layout.block_tokens - 1;
    n_rest = n_rest < most ? n_rest : most;
    if (!n_rest || !index_tail(c->d->index, l->path.where, rest, n_rest, &tail, &block, &tokens))
        return;
    index_hold(c->d->index, &l->tail, tail);
    l->tail_block = block;
    l->tail_tokens = tokens;
}

static void count_lookup(struct call *c, const struct lease *l, uint32_t n_tokens)
{
    struct counters *n = &c->d->counters;
    uint32_t depth = l->matched;
    if (c->rq->flags & (RF_QUIET | RF_NO_MATCH))
        return;
    index_stamp(c->d->index, l->path.where);
    index_seen(c->d->index, l->path.where);
    n->lookups++;
    if (depth)
        n->hits++;
    else
        n->misses++;
    n->hit_tokens += (uint64_t)depth * c->d->layout.block_tokens;
    n->lookup_tokens += n_tokens;
}

/* A lease that has inserted since: its match is the front of what it holds. */
static struct place match_place(const struct call *c, const struct lease *l)
{
    struct place where = l->path.where;
    where.depth = l->matched;
    if (l->path.where.depth) /* else it holds nothing, and its root may have been flushed */
        index_cover(c->d->index, &where);
    return where;
}

static void answer_front(struct call *c, const struct lease *l)
{
    answer_match(c, l);
    c->out->lookup.where = match_place(c, l);
}

static int begin_fetch(struct call *c, struct lease *l);

/* rest: the query after the match; at least as much as the tail shares. */
static int settle_lookup(struct call *c, struct lease *l, uint32_t n_tokens, const uint32_t *rest,
                         uint32_t snapshot_multiple)
{
    l->matched = l->path.where.depth;
    l->opening = false;
    if (!(c->rq->flags & RF_NO_MATCH) && !c->d->options->null_index)
        offer_snapshots(c, l, rest, snapshot_multiple);
    answer_match(c, l);
    count_lookup(c, l, n_tokens);
    return c->rq->flags & RF_FETCH ? begin_fetch(c, l) : 0;
}

static struct place root_place(const struct call *c, uint32_t space)
{
    uint32_t root = spaces_root(c->d->spaces, space);
    return (struct place){index_node_at(index_view_of(c->d->index), root)->identity, root, 0};
}

int op_lookup(struct call *c)
{
    const struct request_lookup *q = &c->rq->lookup;
    struct daemon *d = c->d;
    if (c->rq->flags & ~LOOKUP_FLAGS || c->rq->lease || q->reserved ||
        q->rest > d->layout.block_tokens)
        return STATUS_EINVAL;
    struct index_query rest;
    if (!call_piece(c, q->rest ? q->arena : 0, q->rest, 0, 0, &rest))
        return STATUS_EINVAL;
    uint32_t space = call_space(c, q->space);
    if (space == UINT32_MAX)
        return STATUS_ENOENT;
    struct place where = root_place(c, space);
    bool match = !(c->rq->flags & RF_NO_MATCH) && !d->options->null_index;
    if (match) {
        where = q->where;
        if (!index_resolve(d->index, spaces_root(d->spaces, space), &where))
            return ANSWER_RETRY;
    }
    struct lease *l = lease_open(d, c->s, space, q->session, c->rq->tag);
    if (!l)
        return STATUS_ENOSPC;
    index_hold(d->index, &l->path, where);
    if (match)
        take_tail(c, l, rest.tokens, q->rest);
    return settle_lookup(c, l, q->n_tokens, rest.tokens, q->snapshot_multiple);
}

/* The lease that a slow lookup goes on with, or a new one. */
static int slow_lease(struct call *c, struct lease **l)
{
    const struct request_lookup_slow *q = &c->rq->slow;
    if (c->rq->lease) {
        *l = lease_find(c->d, c->s, c->rq->lease);
        if (!*l || !(*l)->opening || (*l)->opener != c->s)
            return STATUS_ESTALE;
        if (!lease_is_stale(c->d, *l))
            return 0;
        lease_release(c->d, *l);
        return ANSWER_RETRY;
    }
    uint32_t space = call_space(c, q->space);
    if (space == UINT32_MAX)
        return STATUS_ENOENT;
    *l = lease_open(c->d, c->s, space, q->session, c->rq->tag);
    if (!*l)
        return STATUS_ENOSPC;
    (*l)->opening = true;
    index_hold(c->d->index, &(*l)->path, root_place(c, space));
    return 0;
}

static bool slow_right(const struct call *c)
{
    const struct request_lookup_slow *q = &c->rq->slow;
    uint32_t bt = c->d->layout.block_tokens;
    return !(c->rq->flags & ~(RF_FETCH | RF_QUIET | RF_LAST | RF_NO_TAIL)) && !q->reserved &&
           q->max_match <= q->n_tokens && q->multiple && q->multiple % bt == 0 &&
           (q->piece % bt == 0 || c->rq->flags & RF_LAST);
}

int op_lookup_slow(struct call *c)
{
    const struct request_lookup_slow *q = &c->rq->slow;
    struct index *ix = c->d->index;
    uint64_t bt = c->d->layout.block_tokens, first = 0;
    if (!slow_right(c))
        return STATUS_EINVAL;
    if (c->rq->lease) {
        const struct lease *open = lease_find(c->d, c->s, c->rq->lease);
        first = open ? open->path.where.depth * bt : 0;
    }
    struct index_query query;
    if (!call_piece(c, q->arena, q->piece, q->n_extras, first, &query))
        return STATUS_EINVAL;
    struct lease *l;
    int status = slow_lease(c, &l);
    if (status)
        return status;

    struct place where = l->path.where;
    uint64_t end = first + q->piece, most = q->max_match < end ? q->max_match : end;
    if (!c->d->options->null_index)
        index_match(ix, &query, (uint32_t)(most / bt), &where);
    index_hold_move(ix, &l->path, where);
    uint64_t matched = where.depth * bt;
    if (matched == end && !(c->rq->flags & RF_LAST) && end < q->max_match) {
        answer_match(c, l);
        return ANSWER_MORE;
    }
    uint32_t wanted = (uint32_t)(matched / q->multiple * (q->multiple / bt));
    if (wanted < where.depth) {
        where.depth = wanted;
        index_cover(ix, &where);
        index_hold_move(ix, &l->path, where);
    } else if (!(c->rq->flags & RF_NO_TAIL) && most > matched && !c->d->options->null_index) {
        uint64_t rest = most - matched < bt ? most - matched : bt;
        uint32_t limit = index_tail_limit(&query, matched, (uint32_t)rest);
        take_tail(c, l, index_query_at(index_view_of(ix), &query, where.depth), limit);
    }
    const uint32_t *rest =
        l->tail_tokens ? index_query_at(index_view_of(ix), &query, where.depth) : NULL;
    return settle_lookup(c, l, q->n_tokens, rest, q->snapshot_multiple);
}

/* Answers are in order: when this is read, the lookup has been done. */
int op_cancel(struct call *c)
{
    for (struct list *at = c->s->leases.prev; at != &c->s->leases; at = at->prev) {
        struct lease *l = list_entry(at, struct lease, of_session);
        c->cost += CANCEL_STEP;
        if (l->tag != c->rq->number.n)
            continue;
        lease_release(c->d, l);
        return 0;
    }
    return STATUS_ENOENT;
}

/* Bring what the match has in lower tiers: first its blocks, then its snapshot. */
static int begin_fetch(struct call *c, struct lease *l)
{
    uint32_t absent = index_absent(c->d->index, match_place(c, l));
    if (!absent && !offered_deeper_below(c, l))
        return 0;
    *c->job = (struct job){
        .op = c->rq->op, .request = *c->rq, .lease = l->id, .left = absent, .n_absent = absent};
    c->job->pages = absent ? malloc(absent * sizeof(uint32_t)) : NULL;
    if (absent && !c->job->pages) {
        c->job->op = OP_NOP;
        return c->rq->op == OP_FETCH ? STATUS_ENOSPC : 0;
    }
    return go_on_fetch(c);
}

int op_fetch(struct call *c)
{
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    answer_front(c, l);
    return begin_fetch(c, l);
}

/* The match ends before the first block that could not be read; if it is lost, it goes, and what
 * hangs below it. */
static void cut_match(struct call *c, struct lease *l, uint32_t depth, bool is_lost)
{
    struct index *ix = c->d->index;
    struct place first = l->path.where, kept = l->path.where;
    struct hold lost;
    first.depth = depth + 1;
    index_cover(ix, &first);
    if (is_lost)
        index_hold_io(ix, &lost, first);
    kept.depth = depth;
    index_cover(ix, &kept);
    index_unhold(ix, &l->tail);
    l->tail_tokens = 0;
    index_hold_move(ix, &l->path, kept);
    l->matched = depth;
    lease_drop_snapshots(c->d, l, (uint64_t)depth * c->d->layout.block_tokens);
    if (is_lost)
        index_lose_held(ix, &lost);
}

/* While it waited for its pages, another fetch has brought some of the blocks, or the match has
 * been cut by a mate. False: nothing is left to be read. */
static bool still_absent(struct call *c, const struct lease *l)
{
    struct job *j = c->job;
    uint32_t absent = index_absent(c->d->index, match_place(c, l));
    while (j->n_pages > absent)
        pool_give(&c->d->pool, j->pages[--j->n_pages]);
    j->n_absent = j->n_pages;
    return j->n_absent > 0;
}

/* Pages, then the reads, then what came of them. */
static int fetch_blocks(struct call *c, struct lease *l)
{
    struct daemon *d = c->d;
    struct job *j = c->job;
    if (!j->fetch) {
        int status =
            j->left ? take_pages(c, j->left < TURN_BLOCKS ? (uint32_t)j->left : TURN_BLOCKS) : 0;
        if (status || j->left)
            return status ? status : STARTED;
        if (!still_absent(c, l))
            return 0;
        j->fetch = fetch_begin(d->disk, match_place(c, l), j->pages, j->n_pages);
        if (!j->fetch) {
            dispatch_abandon(d, c->s, c->job);
            return STATUS_ENOSPC;
        }
        j->n_pages = 0; /* they are the fetch's */
        return WAITING;
    }
    uint32_t depth;
    int status = fetch_look(j->fetch, &depth);
    bool is_lost = status != 1;
    if (!is_lost && !disk_gives_up(d->disk, &j->since_ns))
        return WAITING;
    if (!is_lost) { /* it goes on without us */
        status = STATUS_EIO;
        depth = l->matched - index_absent(d->index, match_place(c, l));
    }
    fetch_leave(j->fetch);
    j->fetch = NULL;
    j->n_absent = 0;
    if (status == STATUS_EIO && !index_absent(d->index, match_place(c, l)))
        return 0; /* a mate has truncated the lease, or another fetch could: what is left is there
                   */
    if (status == STATUS_EIO && l->path.where.depth == l->matched)
        cut_match(c, l, depth, is_lost);
    return status;
}

/* A lookup succeeds with what there is; pfx_fetch says why there is no more. */
static int fetch_outcome(struct call *c, const struct lease *l, int status)
{
    bool told = c->job->request.op == OP_FETCH || c->rq->op == OP_FETCH;
    answer_front(c, l);
    free(c->job->pages);
    c->job->pages = NULL;
    return told && status != STATUS_ENOENT ? status : 0;
}

int go_on_fetch(struct call *c)
{
    struct job *j = c->job;
    struct lease *l = lease_find(c->d, c->s, j->lease);
    int status = 0;
    if (!l) { /* a mate has released it */
        dispatch_abandon(c->d, c->s, c->job);
        return STATUS_ESTALE;
    }
    if (j->n_absent)
        status = fetch_blocks(c, l);
    if (status == STARTED || status == WAITING)
        return status;
    if (status < 0)
        return fetch_outcome(c, l, status);
    if (l->tiered && offered_deeper_below(c, l))
        status = snapshot_fetch(c->d->snapshots, l->tiered, &j->begun, &j->began_ns);
    if (status == 1 && c->d->disk && disk_gives_up(c->d->disk, &j->since_ns))
        status = STATUS_EIO;
    if (status == 1)
        return WAITING;
    if (status == STATUS_ENOENT || status == STATUS_EIO) { /* what cannot be had is not offered */
        snapshot_unhold(c->d->snapshots, l->tiered);
        l->tiered = 0;
    }
    return fetch_outcome(c, l, status);
}
