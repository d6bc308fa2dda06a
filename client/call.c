/*
 * Calls: the machine that client.h draws.
 *
 * ORDER. Answers are handed out in the order of the requests, except those that wait for the disk.
 * The daemon answers records in order; but a call may take several records, or stand in line
 * behind another. So a finished call is delivered only when every earlier one is, or has been
 * passed: the daemon has answered a record that was posted after that one's, which it does only
 * when that one waits for the disk.
 *
 * FORGOTTEN CALLS (timed out, cancelled) stay here until their answer has come, because the daemon
 * may still write into their span and may still open a lease. The daemon is asked to give that
 * back by itself (CANCEL); if there was no room for that record, or the daemon could not, it is
 * released on arrival.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

#define NO_CALL UINT16_MAX

struct call *call_new(struct pfx *c, enum opcode op)
{
    struct call *call = TAILQ_FIRST(&c->free);
    if (!call)
        return NULL;
    TAILQ_REMOVE(&c->free, call, link);
    memset((char *)call + offsetof(struct call, op), 0, sizeof *call - offsetof(struct call, op));
    /* A tag counts up, so that one that is long out is not taken for a new one. */
    while (c->by_tag[c->next_tag & c->tag_mask] != NO_CALL)
        c->next_tag++;
    call->tag = c->next_tag++;
    c->by_tag[call->tag & c->tag_mask] = (uint16_t)(call - c->calls);
    call->op = (uint16_t)op;
    call->state = CALL_LINED;
    call->request.op = (uint16_t)op;
    return call;
}

static struct call *call_find(const struct pfx *c, uint32_t tag)
{
    uint16_t at = c->by_tag[tag & c->tag_mask];
    return at != NO_CALL && c->calls[at].tag == tag ? &c->calls[at] : NULL;
}

/* Out of every list; a call that has been sent must not be freed before its answer. */
void call_free(struct pfx *c, struct call *call)
{
    arena_give(&c->out, &call->out);
    arena_give(&c->in, &call->in);
    if (call->op == OP_LOOKUP && call->look.fresh)
        lease_free(c, call->look.fresh);
    free(call->copy);
    call->copy = NULL;
    c->by_tag[call->tag & c->tag_mask] = NO_CALL;
    call->state = CALL_FREE;
    TAILQ_INSERT_HEAD(&c->free, call, link);
}

bool call_ids(struct call *call, uint32_t n)
{
    if (call->synchronous || n <= call->room_ids) {
        if (!call->synchronous)
            call->ids = call->own_ids;
        return true;
    }
    uint32_t *ids = realloc(call->own_ids, (size_t)n * 4);
    if (!ids)
        return false;
    call->ids = call->own_ids = ids;
    call->room_ids = n;
    return true;
}

/* ---- lines and ends -------------------------------------------------------------- */

static void call_begin(struct pfx *c, struct call *call);
static void call_finish(struct pfx *c, struct call *call, int status);

static void line_next(struct pfx *c, struct lease *l)
{
    if (l->moving)
        return;
    l->moving = true;
    struct call *call;
    while ((call = TAILQ_FIRST(&l->line)) && call->state == CALL_LINED)
        call_begin(c, call);
    l->moving = false;
    if (TAILQ_EMPTY(&l->line) && !l->keep)
        lease_free(c, l);
}

/* The lease is no more: whatever stands in line came too late. */
static void line_end(struct pfx *c, struct lease *l)
{
    l->moving = true;
    struct call *call;
    while ((call = TAILQ_FIRST(&l->line)))
        call_finish(c, call, PFX_ESTALE);
    lease_free(c, l);
}

static void call_leave_line(struct pfx *c, struct call *call, bool over)
{
    struct lease *l = call->lease;
    if (!l)
        return;
    if (call->in_line)
        TAILQ_REMOVE(&l->line, call, line);
    call->in_line = false;
    call->lease = NULL;
    if (over)
        line_end(c, l);
    else
        line_next(c, l);
}

static void call_finish(struct pfx *c, struct call *call, int status)
{
    if (call->state == CALL_STALLED)
        TAILQ_REMOVE(&c->stalled, call, stall);
    call->state = CALL_FINISHED;
    call->status = status;
    arena_give(&c->out, &call->out);
    arena_give(&c->in, &call->in);
    call_leave_line(c, call, call->op == OP_RELEASE && (status == 0 || status == PFX_ESTALE));
    if (call->forgotten)
        call_free(c, call);
}

void calls_end(struct pfx *c)
{
    for (uint32_t i = 0; i < c->n_calls; i++) {
        struct call *call = &c->calls[i];
        if (call->state != CALL_FREE && call->state != CALL_FINISHED)
            call_finish(c, call, PFX_EGONE);
    }
    c->in_flight = 0;
}

/* ---- one step ---------------------------------------------------------------------- */

static enum step call_build(struct pfx *c, struct call *call)
{
    const struct method *m = &methods[call->op];
    if (!channel_room(c))
        return STEP_ROOM;
    return m->build ? m->build(c, call) : STEP_SEND;
}

static void call_apply(struct pfx *c, struct call *call, enum step step)
{
    switch (step) {
    case STEP_SEND:
        call->state = CALL_SENT;
        call->request.tag = call->tag;
        channel_post(c, &call->request);
        call->sequence = c->sequence;
        break;
    case STEP_ROOM:
        call->state = CALL_STALLED;
        TAILQ_INSERT_TAIL(&c->stalled, call, stall);
        break;
    case STEP_DONE:
        call_finish(c, call, call->status);
        break;
    }
}

static void call_begin(struct pfx *c, struct call *call)
{
    if (c->gone)
        call_finish(c, call, PFX_EGONE);
    else if (call->lease && call->lease->late && call->op != OP_RELEASE)
        call_finish(c, call, PFX_ESTALE);
    else
        call_apply(c, call, TAILQ_EMPTY(&c->stalled) ? call_build(c, call) : STEP_ROOM);
}

static void call_start(struct pfx *c, struct call *call)
{
    if (!call->lease) {
        call_begin(c, call);
        return;
    }
    TAILQ_INSERT_TAIL(&call->lease->line, call, line);
    call->in_line = true;
    line_next(c, call->lease);
}

void calls_retry(struct pfx *c)
{
    struct call *call;
    while (!c->gone && (call = TAILQ_FIRST(&c->stalled))) {
        enum step step = call_build(c, call);
        if (step == STEP_ROOM)
            return; /* the order of those that wait stays */
        if (step == STEP_SEND)
            TAILQ_REMOVE(&c->stalled, call, stall);
        call_apply(c, call, step);
    }
}

/* ---- answers ------------------------------------------------------------------------- */

void call_give_back(struct pfx *c, uint64_t lease)
{
    struct call *call = call_new(c, OP_RELEASE);
    if (!call)
        return; /* cannot be: there are more calls than can be out */
    call->forgotten = true;
    call->request.lease = lease;
    call_begin(c, call);
}

/* The lease that the answer of a forgotten lookup leaves in our hands; 0: none. */
static uint64_t lookup_holds(const struct call *call, const struct wire_completion *answer)
{
    if (call->look.opening)
        return call->look.opening;
    return answer->status == 0 || answer->status == ANSWER_MORE ? answer->lease : 0;
}

static void cancel_answered(struct pfx *c, uint32_t tag, bool done)
{
    struct call *call = call_find(c, tag);
    if (!call || call->cancel != CANCEL_SENT)
        return;
    call->cancel = done ? CANCEL_DONE : CANCEL_FAILED;
    if (call->state != CALL_PARKED)
        return;
    uint64_t lease = call->lease_id;
    call_finish(c, call, 0);
    if (!done)
        call_give_back(c, lease);
}

static void answer_forgotten(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    uint64_t lease = 0, space = 0;
    if (call->op == OP_CANCEL) {
        cancel_answered(c, (uint32_t)call->request.number.n, answer->status == 0);
    } else if (call->op == OP_LOOKUP) {
        lease = lookup_holds(call, answer);
        if (lease && call->cancel == CANCEL_SENT) {
            call->state = CALL_PARKED;
            call->lease_id = lease;
            return;
        }
        if (call->cancel == CANCEL_DONE)
            lease = 0;
    } else if (call->op == OP_SPACE_OPEN && answer->status == 0) {
        space = answer->number.n;
    }
    call_finish(c, call, answer->status);
    if (lease)
        call_give_back(c, lease);
    struct call *close = space ? call_new(c, OP_SPACE_CLOSE) : NULL;
    if (close) {
        close->forgotten = true;
        close->request.space.space = space;
        call_begin(c, close);
    }
}

void call_answer(struct pfx *c, const struct wire_completion *answer)
{
    struct call *call = call_find(c, answer->tag);
    if (!call || call->state != CALL_SENT)
        return; /* not ours: a daemon that invents answers hurts nobody */
    c->in_flight--;
    if ((int32_t)(call->sequence - c->answered) > 0)
        c->answered = call->sequence;
    if (call->forgotten) {
        answer_forgotten(c, call, answer);
        return;
    }
    const struct method *m = &methods[call->op];
    enum step step = STEP_DONE;
    call->status = answer->status;
    if (m->take && (answer->status >= 0 || m->takes_errors))
        step = m->take(c, call, answer);
    arena_give(&c->out, &call->out);
    arena_give(&c->in, &call->in);
    if (step == STEP_SEND) {
        if (c->gone)
            call_finish(c, call, PFX_EGONE);
        else
            call_apply(c, call, call_build(c, call));
    } else {
        call_finish(c, call, call->status);
    }
}

/* ---- delivery ------------------------------------------------------------------------ */

static bool call_passed(const struct pfx *c, const struct call *call)
{
    if (call->state == CALL_LINED && call->lease)
        call = TAILQ_FIRST(&call->lease->line);
    return call->state == CALL_SENT && (int32_t)(c->answered - call->sequence) > 0;
}

void calls_deliver(struct pfx *c)
{
    struct call *next;
    for (struct call *call = TAILQ_FIRST(&c->pending); call; call = next) {
        next = TAILQ_NEXT(call, link);
        if (call->state == CALL_FINISHED) {
            TAILQ_REMOVE(&c->pending, call, link);
            TAILQ_INSERT_TAIL(&c->done, call, link);
        } else if (!call_passed(c, call)) {
            return;
        }
    }
}

/* ---- forgetting ------------------------------------------------------------------------ */

static void send_cancel(struct pfx *c, struct call *call)
{
    if (!TAILQ_EMPTY(&c->stalled) || !channel_room(c))
        return;
    struct call *cancel = call_new(c, OP_CANCEL);
    if (!cancel)
        return;
    cancel->forgotten = true;
    cancel->request.number.n = call->tag;
    call->cancel = CANCEL_SENT;
    call_begin(c, cancel);
}

void call_forget(struct pfx *c, struct call *call)
{
    if (call->listed) {
        TAILQ_REMOVE(&c->pending, call, link);
        c->n_submitted--;
        call->listed = false;
    }
    call->forgotten = true;
    if (call->state != CALL_SENT) { /* nothing is out */
        uint64_t lease = call->op == OP_LOOKUP ? call->look.opening : 0;
        call_finish(c, call, PFX_ETIMEDOUT);
        if (lease)
            call_give_back(c, lease);
        return;
    }
    if (call->op == OP_RELEASE)
        return; /* it keeps the lease's line, and ends the lease when it is answered */
    call_leave_line(c, call, false);
    if (call->op == OP_LOOKUP || call->op == OP_FETCH)
        send_cancel(c, call);
}

/* ---- the two ways to make a call --------------------------------------------------------- */

int call_run(struct pfx *c, struct call *call)
{
    call->synchronous = true;
    call_start(c, call);
    uint64_t until = 0;
    bool over = false;
    while (call->state != CALL_FINISHED) {
        channel_take(c);
        if (call->state == CALL_FINISHED)
            break;
        if (over) {
            if (call->lease)
                call->lease->late = call->lease->keep = true;
            call_forget(c, call);
            channel_leave(c);
            return fail(c, PFX_ETIMEDOUT, NULL);
        }
        if (!until)
            until = clock_ns() + c->timeout_ns;
        over = !channel_await(c, until);
    }
    int status = call->status;
    call_free(c, call);
    channel_leave(c);
    return status < 0 ? fail(c, status, NULL) : status;
}

/* The caller may reuse its arrays when submit returns, and a later step may need them. */
static bool copy_query(struct call *call)
{
    struct index_query *q = &call->query;
    if (q->n_tokens == 0)
        return true;
    size_t tokens = (q->n_tokens * 4 + 7) & ~(size_t)7;
    size_t extras = q->n_extras * sizeof *q->extras;
    call->copy = malloc(tokens + extras);
    if (!call->copy)
        return false;
    memcpy(call->copy, q->tokens, q->n_tokens * 4);
    if (extras)
        memcpy((char *)call->copy + tokens, q->extras, extras);
    q->tokens = call->copy;
    q->extras = (const struct wire_extra *)(const void *)((const char *)call->copy + tokens);
    return true;
}

static int call_withdraw(struct pfx *c, struct call *call, int status)
{
    if (call->listed) {
        TAILQ_REMOVE(&c->pending, call, link);
        c->n_submitted--;
    }
    if (call->lease || call->state == CALL_STALLED)
        call_finish(c, call, status);
    call_free(c, call);
    channel_leave(c);
    return fail(c, status, NULL);
}

int call_submit(struct pfx *c, struct call *call, uint64_t user_tag)
{
    call->user_tag = user_tag;
    call->match = &call->own_match;
    call->insert = &call->own_insert;
    call->number = &call->own_number;
    if (c->n_submitted >= c->ring_entries || !TAILQ_EMPTY(&c->stalled) || !channel_room(c))
        channel_take(c);
    if (c->n_submitted >= c->ring_entries || !TAILQ_EMPTY(&c->stalled) || !copy_query(call))
        return call_withdraw(c, call, c->gone ? PFX_EGONE : PFX_EAGAIN);
    TAILQ_INSERT_TAIL(&c->pending, call, link);
    call->listed = true;
    c->n_submitted++;
    call_start(c, call);
    if (call->state == CALL_STALLED)
        return call_withdraw(c, call, PFX_EAGAIN);
    calls_deliver(c);
    channel_leave(c);
    return 0;
}
