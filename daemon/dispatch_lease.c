/* What a lease does after its lookup: reserve, truncate, insert, release. */
#include "daemon/dispatch_private.h"
#include "daemon/group.h"
#include "shm/tokens.h"

#include <stdlib.h>
#include <string.h>

static void answer_table(struct call *c, const struct lease *l, uint32_t n)
{
    c->out->table = (struct completion_table){
        .where = l->path.where, .matched = l->matched, .table = lease_table(l), .n = n};
}

/* ---- reserve ------------------------------------------------------------------------------ */

static bool lease_room(struct lease *l, uint32_t more)
{
    uint64_t want = (uint64_t)l->n_pages + more;
    if (want <= l->cap_pages)
        return true;
    uint64_t cap = want < 2ull * l->cap_pages ? 2ull * l->cap_pages : want;
    uint32_t *pages = realloc(l->pages, cap * sizeof *pages);
    if (!pages)
        return false;
    l->pages = pages;
    l->cap_pages = (uint32_t)cap;
    return true;
}

/* The job's pages become the lease's: its array too, if the lease has none. False: no memory. */
static bool append_pages(struct call *c, struct lease *l, struct job *j)
{
    uint32_t n = j->n_pages, shown = n < c->rq->reserve.room ? n : c->rq->reserve.room;
    if (l->n_pages && !lease_room(l, n))
        return false;
    memcpy(call_room(c, c->rq->reserve.arena, shown), j->pages, shown * sizeof *j->pages);
    if (l->n_pages) {
        memcpy(l->pages + l->n_pages, j->pages, n * sizeof *j->pages);
        free(j->pages);
    } else {
        free(l->pages);
        l->pages = j->pages;
        l->cap_pages = n;
    }
    *j = (struct job){0};
    l->n_pages += n;
    lease_count_private(l, n);
    answer_table(c, l, n);
    return true;
}

int op_reserve(struct call *c)
{
    const struct request_reserve *q = &c->rq->reserve;
    struct daemon *d = c->d;
    if (c->rq->flags || !call_room(c, q->arena, q->room))
        return STATUS_EINVAL;
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    if (q->n == 0) {
        answer_table(c, l, 0);
        return 0;
    }
    if (l->final)
        return STATUS_ECONFLICT;
    if (q->n > d->pool.n_blocks)
        return STATUS_ETOOBIG;
    if (!index_on_device_to(d->index, l->path.where))
        return STATUS_ECONFLICT; /* fetch or truncate first */
    if (q->n > (uint64_t)d->pool.n_free + index_idle(d->index) + index_busy(d->index))
        return STATUS_ENOSPC;
    if (!group_may_take_pages(d, c->s->group, q->n))
        return STATUS_ENOSPC;
    *c->job = (struct job){.op = OP_RESERVE, .request = *c->rq, .left = q->n};
    c->job->pages = malloc(q->n * sizeof(uint32_t));
    if (!c->job->pages)
        return STATUS_ENOSPC;
    c->s->group->n_pages += q->n; /* the lease's, or given back by dispatch_abandon */
    return go_on_reserve(c);
}

/* A slice of a job's pages; 0, WAITING, or PFX_ENOSPC, and then the job is over. */
int take_pages(struct call *c, uint32_t slice)
{
    struct daemon *d = c->d;
    struct job *j = c->job;
    enum page_room pages = make_pages(d, j, slice);
    if (pages != PAGES_READY) {
        if (pages == PAGES_SOON || (index_idle(d->index) && d->n_flushing))
            return WAITING; /* blocks are being written, or a flush is freeing them */
        dispatch_abandon(d, c->s, c->job);
        return STATUS_ENOSPC;
    }
    for (uint32_t i = 0; i < slice; i++)
        j->pages[j->n_pages++] = pool_take(&d->pool);
    c->cost += slice * 16ull;
    j->left -= slice;
    return 0;
}

/* Pages move from the pool to the job, a slice a turn; to the lease when all are there. In between
 * another worker may hold what was idle: then all go back, and it is PFX_ENOSPC after all. */
int go_on_reserve(struct call *c)
{
    struct daemon *d = c->d;
    struct job *j = c->job;
    uint32_t slice = j->left < TURN_BLOCKS ? (uint32_t)j->left : TURN_BLOCKS;
    int status = take_pages(c, slice);
    if (status || j->left)
        return status ? status : STARTED;
    struct lease *l = call_lease(c);
    if (l && !l->final && append_pages(c, l, j))
        return 0;
    dispatch_abandon(d, c->s, c->job);
    return !l         ? STATUS_ESTALE
           : l->final ? STATUS_ECONFLICT
                      : STATUS_ENOSPC; /* or a mate was faster */
}

/* ---- truncate ------------------------------------------------------------------------------ */

int op_truncate(struct call *c)
{
    struct lease *l = call_lease(c);
    uint64_t n = c->rq->number.n;
    if (!l)
        return STATUS_ESTALE;
    uint32_t table = lease_table(l), depth = l->path.where.depth;
    if (n > table)
        return STATUS_EINVAL;
    if (n < l->inserted)
        return STATUS_ECONFLICT;
    if (n < table) {
        index_unhold(c->d->index, &l->tail);
        l->tail_tokens = 0;
        lease_drop_snapshots(c->d, l, n * c->d->layout.block_tokens);
        if (n <= depth)
            lease_drop_residue(l);
        if (l->partial.where.depth > n) {
            index_unhold(c->d->index, &l->partial);
            if (!(l->pages[depth - l->matched] & LEASE_PUBLISHED))
                l->duplicates--;
        }
        lease_drop_pages(c->d, l, n > l->matched ? (uint32_t)n - l->matched : 0);
        c->cost += table - n;
    }
    if (n < l->matched) {
        struct place where = l->path.where;
        where.depth = (uint32_t)n;
        index_cover(c->d->index, &where);
        index_hold_move(c->d->index, &l->path, where);
        l->matched = (uint32_t)n;
    }
    answer_table(c, l, 0);
    return 0;
}

/* ---- insert --------------------------------------------------------------------------------- */

static void answer_insert(struct call *c, const struct lease *l, uint32_t created)
{
    c->out->insert = (struct completion_insert){
        .where = l->path.where,
        .cached = l->path.where.depth + (l->partial.where.depth ? 1 : 0),
        .created = created,
        .duplicates = l->duplicates,
    };
}

/* The worker compared its tokens down to a place: is that where the lease is? */
static bool same_place(struct call *c, const struct lease *l, struct place where)
{
    if (where.depth != l->path.where.depth)
        return false;
    if (where.depth == 0)
        return true;
    return index_resolve(c->d->index, spaces_root(c->d->spaces, l->space), &where) &&
           where.node == l->path.where.node;
}

static uint32_t position_page(const struct lease *l, uint32_t position)
{
    return l->pages[position - l->matched];
}

static void mark(struct call *c, struct lease *l, uint32_t position, enum taken taken)
{
    if (taken == TAKEN_NOT) {
        l->duplicates++;
        c->d->counters.duplicate_blocks++;
        return;
    }
    l->pages[position - l->matched] |= LEASE_PUBLISHED;
    c->d->counters.inserted_blocks += taken == TAKEN_NEW;
    lease_count_private(l, -1);
}

/* Whole blocks [held depth, covered); returns how many are new. */
static uint32_t insert_blocks(struct call *c, struct lease *l, const struct index_query *query,
                              uint32_t covered)
{
    struct place where = l->path.where;
    uint32_t first = where.depth, n = covered - first;
    uint8_t taken[PIECE_BLOCKS];
    uint32_t created =
        index_insert(c->d->index, query, l->pages + (first - l->matched), n, taken, &where);
    for (uint32_t i = 0; i < n; i++)
        mark(c, l, first + i, (enum taken)taken[i]);
    index_hold_move(c->d->index, &l->path, where);
    l->inserted = where.depth;
    c->cost += n * 16ull;
    return created;
}

/* The last, partly filled block, up to the first extra that starts in it: beyond that no lookup
 * could use it. */
static uint32_t insert_partial(struct call *c, struct lease *l, const struct index_query *query)
{
    uint64_t bt = c->d->layout.block_tokens;
    uint32_t depth = l->path.where.depth, rest = (uint32_t)(query->n_tokens - depth * bt);
    rest = index_tail_limit(query, depth * bt, rest);
    if (rest == 0)
        return 0;
    struct place partial;
    bool published = index_insert_partial(c->d->index, query, l->path.where, rest,
                                          position_page(l, depth), &partial);
    mark(c, l, depth, published ? TAKEN_NEW : TAKEN_NOT);
    index_hold(c->d->index, &l->partial, partial);
    return published;
}

/* Where the caller's tokens end, of which this may be a piece. */
static uint32_t insert_end(const struct call *c, const struct index_query *query)
{
    uint32_t n = c->rq->insert.n_written;
    return n > query->n_tokens ? n : (uint32_t)query->n_tokens;
}

/* A final lease takes the same tokens again, or fewer. Its partial block is compared here. */
static int insert_again(struct call *c, struct lease *l, const struct index_query *query)
{
    const struct index_view *v = index_view_of(c->d->index);
    if (insert_end(c, query) > l->final_tokens)
        return STATUS_ECONFLICT;
    const struct place *p = &l->partial.where;
    if (p->depth && query->n_tokens > query->first) {
        const struct index_node *n = index_node_at(v, p->node);
        uint32_t whole = n->n_partial ? n->n_partial : v->params.block_tokens;
        size_t rest = query->n_tokens - query->first;
        rest = rest < whole ? rest : whole;
        uint32_t unit = n->extent + (p->depth - 1 - n->start);
        if (tokens_match(index_tokens_at(v, unit), query->tokens, rest) < rest)
            return STATUS_ECONFLICT;
    }
    answer_insert(c, l, 0);
    return 0;
}

int op_insert(struct call *c)
{
    const struct request_insert *q = &c->rq->insert;
    struct daemon *d = c->d;
    uint64_t bt = d->layout.block_tokens;
    bool last = c->rq->flags & RF_LAST, final = c->rq->flags & RF_FINAL;
    struct index_query query;
    if (c->rq->flags & ~(RF_LAST | RF_FINAL) || (!last && (final || q->piece % bt)) ||
        !call_piece(c, q->arena, q->piece, q->n_extras, q->where.depth * bt, &query))
        return STATUS_EINVAL;
    struct lease *l = call_lease(c);
    if (!l)
        return STATUS_ESTALE;
    if (!same_place(c, l, q->where)) {
        answer_insert(c, l, 0);
        return ANSWER_RETRY;
    }
    if (l->final)
        return insert_again(c, l, &query);
    uint32_t created = 0, depth = l->path.where.depth, table = lease_table(l);
    uint64_t whole = query.n_tokens / bt;
    uint32_t covered = whole < table ? (uint32_t)whole : table;
    if (!d->options->null_index) {
        if (covered > depth)
            created = insert_blocks(c, l, &query, covered);
        if (covered > depth)
            index_stamp(d->index, l->path.where);
        if (last && final && query.n_tokens % bt && whole == covered && covered < table) {
            created += insert_partial(c, l, &query);
            if (l->partial.where.depth)
                index_stamp(d->index, l->partial.where);
        }
    }
    if (d->snapshots)
        keep_residue(c, l, &query, last);
    if (final) {
        l->final = true;
        l->final_tokens = insert_end(c, &query);
    }
    answer_insert(c, l, created);
    return last ? 0 : ANSWER_MORE;
}

/* ---- release, table -----------------------------------------------------------------------------
 */

int op_release(struct call *c)
{
    struct lease *l = lease_find(c->d, c->s, c->rq->lease);
    if (!l)
        return STATUS_ESTALE;
    c->cost += l->n_pages + l->n_slots;
    lease_release(c->d, l);
    return 0;
}

/* Where the lease holds, and ids of its table: what it matched, then what it reserved. */
int op_table(struct call *c)
{
    const struct request_table *q = &c->rq->table;
    uint32_t *room = call_room(c, q->arena, q->count);
    if (!room || c->rq->flags || q->count > PIECE_BYTES / 4)
        return STATUS_EINVAL;
    const struct lease *l = lease_find(c->d, c->s, c->rq->lease);
    if (!l || l->opening)
        return STATUS_ESTALE;
    uint64_t table = lease_table(l), to = (uint64_t)q->from + q->count;
    to = to < table ? to : table;
    uint32_t at = q->from, n = to > at ? (uint32_t)to - at : 0;
    uint32_t held = to < l->matched ? (uint32_t)to : l->matched;
    if (at < held)
        index_path_ids(index_view_of(c->d->index), l->path.where, at, held, room, NULL);
    for (uint32_t p = at > held ? at : held; p < to; p++)
        room[p - at] = position_page(l, p) & ~LEASE_PUBLISHED;
    answer_table(c, l, n);
    c->cost += n;
    return 0;
}
