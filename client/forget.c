/*
 * Calls that nobody waits for any more: timed out, or cancelled.
 *
 * They stay until their answer has come, because the daemon may still write into their span and
 * may still open a lease. The daemon is asked to give that back by itself (CANCEL names the
 * lookup's tag); if there was no room for that record, or the daemon could not, it is released on
 * arrival. The two answers come in either order:
 *
 *      lookup granted, CANCEL still out    PARKED until its answer
 *      CANCEL done                         whatever the lookup was granted is gone
 *      CANCEL failed, or never sent        release what the lookup was granted
 */
#include "client/client.h"

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

void call_answer_forgotten(struct pfx *c, struct call *call, const struct wire_completion *answer)
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

static void send_cancel(struct pfx *c, struct call *call)
{
    if (!TAILQ_EMPTY(&c->stalled) || c->n_midway || !channel_room(c))
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
    call_midway(c, call, false);
    call_leave_line(c, call, false);
    if (call->op == OP_LOOKUP || call->op == OP_FETCH)
        send_cancel(c, call);
}
