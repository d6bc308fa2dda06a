#include "daemon/dispatch_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- the copies that operations work on ------------------------------------------------ */

struct lease *call_lease(struct call *c)
{
    struct lease *l = lease_find(c->d, c->s, c->rq->lease);
    return l && !l->opening && !lease_is_stale(c->d, l) ? l : NULL;
}

uint32_t call_space(const struct call *c, uint64_t number)
{
    uint32_t slot = spaces_find(c->d->spaces, number);
    if (slot == UINT32_MAX || (slot != 0 && !session_space(c->s, slot, false)))
        return UINT32_MAX;
    return slot;
}

static bool within(uint64_t at, uint64_t n, uint64_t bytes)
{
    return at % 8 == 0 && at <= bytes && n <= bytes - at;
}

const uint8_t *call_arena(struct call *c, uint32_t at, uint64_t n)
{
    if (n > PIECE_BYTES || !within(at, n, c->s->arena_bytes))
        return NULL;
    memcpy(c->d->scratch, c->s->request_arena + at, n);
    return c->d->scratch;
}

uint32_t *call_room(struct call *c, uint32_t at, uint64_t n)
{
    if (!within(at, n * 4, c->s->arena_bytes))
        return NULL;
    return (uint32_t *)(void *)(c->s->completion_arena + at);
}

static bool extras_right(const struct wire_extra *x, uint32_t n)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i].len == 0 || x[i].at < end || x[i].at + x[i].len < x[i].at)
            return false;
        end = x[i].at + x[i].len;
    }
    return true;
}

bool call_piece(struct call *c, uint32_t at, uint32_t n_tokens, uint32_t n_extras, uint64_t first,
                struct index_query *query)
{
    uint64_t tokens = ((uint64_t)n_tokens * 4 + 7) & ~7ull;
    uint64_t bytes = tokens + (uint64_t)n_extras * sizeof(struct wire_extra);
    if (n_tokens > piece_most(c->d->layout.block_tokens) || first + n_tokens > UINT32_MAX)
        return false;
    const uint8_t *copy = call_arena(c, at, bytes);
    if (!copy)
        return false;
    *query = (struct index_query){
        .tokens = (const uint32_t *)(const void *)copy,
        .n_tokens = first + n_tokens,
        .extras = (const struct wire_extra *)(const void *)(copy + tokens),
        .n_extras = n_extras,
        .first = first,
    };
    c->cost += n_tokens + 12 * (uint64_t)n_extras;
    return extras_right(query->extras, n_extras);
}

/* ---- one table -------------------------------------------------------------------------- */

static int op_nop(struct call *c)
{
    (void)c;
    return 0;
}

static const struct {
    operation *start;
    operation *go_on; /* for those that may become a job */
} operations[OP_COUNT] = {
    [OP_NOP] = {op_nop, NULL},
    [OP_LOOKUP] = {op_lookup, go_on_fetch},
    [OP_LOOKUP_SLOW] = {op_lookup_slow, go_on_fetch},
    [OP_CANCEL] = {op_cancel, NULL},
    [OP_FETCH] = {op_fetch, go_on_fetch},
    [OP_TRUNCATE] = {op_truncate, NULL},
    [OP_RESERVE] = {op_reserve, go_on_reserve},
    [OP_INSERT] = {op_insert, NULL},
    [OP_RELEASE] = {op_release, NULL},
    [OP_TABLE] = {op_table, NULL},
    [OP_SPACE_OPEN] = {op_space_open, NULL},
    [OP_SPACE_CLOSE] = {op_space_close, NULL},
    [OP_EVICT] = {op_evict, go_on_evict},
    [OP_FLUSH] = {op_flush, go_on_flush},
    [OP_SNAPSHOT_RESERVE] = {op_snapshot_reserve, go_on_snapshot_reserve},
    [OP_SNAPSHOT_INSERT] = {op_snapshot_insert, NULL},
    [OP_SNAPSHOT_CANCEL] = {op_snapshot_cancel, NULL},
    [OP_SNAPSHOT_DROP] = {op_snapshot_drop, NULL},
    [OP_SNAPSHOT_EVICT] = {op_snapshot_evict, NULL},
    [OP_SNAPSHOT_SPILL] = {op_snapshot_spill, go_on_snapshot_spill},
    [OP_SNAPSHOT_FORGET] = {op_snapshot_forget, NULL},
};

/* What a record costs beside its tokens, and a node that it climbs past or a block that it empties.
 */
enum { RECORD_COST = 64, WORK_COST = 16 };

static enum progress finish(struct call *c, int status, uint64_t *cost)
{
    uint64_t work = index_work(c->d->index);
    *cost += c->cost + RECORD_COST + (work - c->d->charged) * WORK_COST;
    c->d->charged = work;
    if (status == STARTED || status == WAITING)
        return status == WAITING ? WAITS : GOES_ON;
    c->out->status = (int16_t)status;
    c->job->op = OP_NOP;
    return ANSWERED;
}

enum progress dispatch_request(struct daemon *d, struct session *s, const struct request *rq,
                               struct wire_completion *out, uint64_t *cost)
{
    struct call c = {.d = d, .s = s, .job = &s->job, .rq = rq, .out = out};
    *out = (struct wire_completion){.tag = rq->tag, .op = rq->op, .lease = rq->lease};
    s->n_requests++;
    if (rq->op >= OP_COUNT || !operations[rq->op].start)
        return finish(&c, STATUS_EINVAL, cost);
    return finish(&c, operations[rq->op].start(&c), cost);
}

enum progress dispatch_continue(struct daemon *d, struct session *s, struct job *j,
                                struct wire_completion *out, uint64_t *cost)
{
    const struct request rq = j->request;
    struct call c = {.d = d, .s = s, .job = j, .rq = &rq, .out = out};
    *out = (struct wire_completion){.tag = rq.tag, .op = rq.op, .lease = rq.lease};
    return finish(&c, operations[rq.op].go_on(&c), cost);
}

void dispatch_abandon(struct daemon *d, struct session *s, struct job *j)
{
    if (j->op == OP_RESERVE)
        s->group->n_pages -= j->request.reserve.n;
    while (j->n_pages)
        pool_give(&d->pool, j->pages[--j->n_pages]);
    free(j->pages);
    if (j->fetch)
        fetch_leave(j->fetch);
    if (j->op == OP_FLUSH)
        abandon_flush(d, j);
    *j = (struct job){0};
}
