/*
 * Calls: the machine that client.h draws.
 *
 * ORDER. Calls happen, and their answers are handed out, in the order of the requests, except for
 * those that wait for the disk. The daemon takes records in order; but a call may take several
 * records, stand in line behind another on its lease, or look before it sends. Hence:
 *
 *   - while a call is midway through its pieces, later ones do not start: they would see half;
 *   - while a call stands in line behind another on its lease, later ones on other leases do not
 *     start: a reserve may count on the room that a release gives back;
 *   - a lookup does not walk while an earlier insert is unfinished: it would not see it;
 *   - what cannot go on is stalled, in the order of the calls, but midway ones first;
 *   - a finished call is delivered only when every earlier one is, or has been passed: the daemon
 *     has answered a record that was posted after that one's, as it does only when that one
 *     waits for the disk.
 *
 * So nothing waits in a circle: the first stalled call waits for earlier ones alone, and those are
 * out with the daemon or in line behind one that is.
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
    call->order = c->next_order++;
    call->op = (uint16_t)op;
    call->state = CALL_LINED;
    call->request.op = (uint16_t)op;
    return call;
}

struct call *call_find(const struct pfx *c, uint32_t tag)
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
    struct call *call;
    while ((call = TAILQ_FIRST(&l->line))) {
        TAILQ_REMOVE(&l->line, call, line);
        call->in_line = false;
        call->lease = NULL;
        call_finish(c, call, PFX_ESTALE);
    }
    lease_free(c, l);
}

void call_leave_line(struct pfx *c, struct call *call, bool over)
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

void call_midway(struct pfx *c, struct call *call, bool midway)
{
    if (call->midway != midway)
        c->n_midway += midway ? 1 : -1u;
    call->midway = midway;
}

static void call_behind(struct pfx *c, struct call *call, bool behind)
{
    if (call->behind != behind)
        c->n_behind += behind ? 1 : -1u;
    call->behind = behind;
}

void call_finish(struct pfx *c, struct call *call, int status)
{
    call_midway(c, call, false);
    call_behind(c, call, false);
    if (call->listed && call->op == OP_INSERT)
        c->n_inserts--;
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

static void call_stall(struct pfx *c, struct call *call)
{
    call->state = CALL_STALLED;
    struct call *before = TAILQ_LAST(&c->stalled, call_list);
    while (before && (call->midway || (before->order > call->order && !before->midway)))
        before = TAILQ_PREV(before, call_list, stall);
    if (before)
        TAILQ_INSERT_AFTER(&c->stalled, before, call, stall);
    else
        TAILQ_INSERT_HEAD(&c->stalled, call, stall);
}

static void call_apply(struct pfx *c, struct call *call, enum step step)
{
    switch (step) {
    case STEP_SEND:
        call_midway(c, call, call->more);
        call->state = CALL_SENT;
        call->request.tag = call->tag;
        channel_post(c, &call->request);
        call->sequence = c->sequence;
        break;
    case STEP_ROOM:
        call_stall(c, call);
        break;
    case STEP_DONE:
        call_finish(c, call, call->status);
        break;
    }
}

/* A synchronous call is later than all that are pending. */
static bool waits_for_insert(const struct pfx *c, const struct call *call)
{
    if (c->n_inserts == 0 || call->op != OP_LOOKUP || call->look.flags & PFX_NO_MATCH)
        return false;
    const struct call *other;
    TAILQ_FOREACH(other, &c->pending, link)
    {
        if (other == call)
            return false;
        if (other->op == OP_INSERT && other->state != CALL_FINISHED)
            return true;
    }
    return false;
}

static bool may_be_late(const struct pfx *c, const struct call *call)
{
    return c->geometry.n_disk_blocks && (call->op == OP_FETCH || call->op == OP_RESERVE);
}

/* ... nor may any call overtake one in line: a reserve counts on the release submitted before it.
 * Only behind a head that may wait for the disk are calls as late as that one. */
static bool waits_for_line(const struct pfx *c, const struct call *call)
{
    if (c->n_behind == 0)
        return false;
    const struct call *other;
    TAILQ_FOREACH(other, &c->pending, link)
    {
        if (other == call)
            return false;
        if (other->behind && !may_be_late(c, TAILQ_FIRST(&other->lease->line)))
            return true;
    }
    return false;
}

static bool may_go(const struct pfx *c, const struct call *call)
{
    return call->midway ||
           (c->n_midway == 0 && !waits_for_insert(c, call) && !waits_for_line(c, call));
}

void call_begin(struct pfx *c, struct call *call)
{
    call_behind(c, call, false);
    if (c->gone)
        call_finish(c, call, PFX_EGONE);
    else if (call->lease && call->lease->late && call->op != OP_RELEASE)
        call_finish(c, call, PFX_ESTALE);
    else if (TAILQ_EMPTY(&c->stalled) && may_go(c, call))
        call_apply(c, call, call_build(c, call));
    else
        call_stall(c, call);
}

static void call_start(struct pfx *c, struct call *call)
{
    if (!call->lease) {
        call_begin(c, call);
        return;
    }
    if (call->lease->late && call->op != OP_RELEASE) {
        call_finish(c, call, PFX_ESTALE);
        return;
    }
    TAILQ_INSERT_TAIL(&call->lease->line, call, line);
    call->in_line = true;
    call_behind(c, call, TAILQ_FIRST(&call->lease->line) != call);
    line_next(c, call->lease);
}

void calls_retry(struct pfx *c)
{
    struct call *call;
    while (!c->gone && (call = TAILQ_FIRST(&c->stalled)) && may_go(c, call)) {
        enum step step = call_build(c, call);
        if (step == STEP_ROOM)
            return; /* the order of those that wait stays */
        if (step == STEP_SEND)
            TAILQ_REMOVE(&c->stalled, call, stall);
        call_apply(c, call, step);
    }
}

/* ---- answers ------------------------------------------------------------------------- */

void call_answer(struct pfx *c, const struct wire_completion *answer)
{
    struct call *call = call_find(c, answer->tag);
    if (!call || call->state != CALL_SENT)
        return; /* not ours: a daemon that invents answers hurts nobody */
    c->in_flight--;
    if ((int32_t)(call->sequence - c->answered) > 0)
        c->answered = call->sequence;
    if (call->forgotten) {
        call_answer_forgotten(c, call, answer);
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

/* ---- the two ways to make a call --------------------------------------------------------- */

int call_fail(struct pfx *c, const struct call *call)
{
    if (call->op == OP_LOOKUP)
        return fail_space(c, call->status, call->look.space);
    if (call->op == OP_SPACE_CLOSE)
        return fail_space(c, call->status, call->request.space.space);
    return fail(c, call->status, call_why(c, call->op, call->status));
}

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
    if (status < 0)
        (void)call_fail(c, call);
    call_free(c, call);
    channel_leave(c);
    return status;
}

/* The caller may reuse its arrays when submit returns, and a later step may need them. */
static bool copy_query(struct call *call)
{
    struct index_query *q = &call->query;
    if (q->n_tokens == 0) {
        q->n_extras = 0; /* they touch nothing, and are not copied */
        return true;
    }
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

int call_submit(struct pfx *c, struct call *call, uint64_t user_tag)
{
    int status = c->gone ? PFX_EGONE : 0;
    if (status == 0 && c->n_submitted >= c->ring_entries)
        status = PFX_EAGAIN;
    if (status == 0 && !copy_query(call))
        status = PFX_EAGAIN;
    if (status) {
        call_finish(c, call, status);
        call_free(c, call);
        return fail(c, status, NULL);
    }
    call->user_tag = user_tag;
    call->match = &call->own_match;
    call->insert = &call->own_insert;
    call->number = &call->own_number;
    call->listed = true;
    TAILQ_INSERT_TAIL(&c->pending, call, link);
    c->n_submitted++;
    c->n_inserts += call->op == OP_INSERT;
    call_start(c, call);
    channel_take(c);
    channel_leave(c);
    return 0;
}
