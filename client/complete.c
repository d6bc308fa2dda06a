/* Completions: handed out in order by pfx_wait, forgotten by pfx_cancel, announced by pfx_fd. */
#include "client/client.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int check_elements(struct pfx *c, const struct pfx_completion *out, size_t stride,
                          unsigned max)
{
    if (!out || max == 0 || stride < sizeof *out || stride % _Alignof(struct pfx_completion))
        return fail(c, PFX_EINVAL, "out is NULL, max is 0, or stride is too small or odd");
    for (unsigned i = 0; i < max; i++) {
        const struct pfx_completion *e = (const void *)((const char *)out + (size_t)i * stride);
        if (e->size < sizeof *e || e->size > stride || e->match.size < sizeof e->match ||
            e->insert.size < sizeof e->insert)
            return fail(c, PFX_EINVAL, "a completion's size, or one inside it, is not set");
    }
    return 0;
}

static void hand_out(struct pfx *c, struct call *call, struct pfx_completion *to)
{
    *to = (struct pfx_completion){
        .size = sizeof *to,
        .status = call->status,
        .tag = call->user_tag,
        .lease = call->lease_id,
        .match = {.size = sizeof to->match},
        .insert = {.size = sizeof to->insert},
    };
    bool matched = call->status == 0 || (call->op == OP_FETCH && call->status == PFX_EIO);
    if (matched && (call->op == OP_LOOKUP || call->op == OP_FETCH))
        to->match = call->own_match;
    if (call->status < 0) {
        (void)call_fail(c, call);
        return;
    }
    if (call->op == OP_INSERT)
        to->insert = call->own_insert;
    if (call->op == OP_SPACE_OPEN)
        to->space = call->own_number.n;
    to->ids = call->n_ids ? call->ids : NULL;
    to->n_ids = call->n_ids;
}

/* What the last pfx_wait handed out is the library's again. */
static void take_back(struct pfx *c)
{
    struct call *call;
    while ((call = TAILQ_FIRST(&c->handed))) {
        TAILQ_REMOVE(&c->handed, call, link);
        call_free(c, call);
    }
}

static int hand_out_all(struct pfx *c, struct pfx_completion *out, size_t stride, unsigned max)
{
    unsigned n = 0;
    struct call *call;
    while (n < max && (call = TAILQ_FIRST(&c->done))) {
        TAILQ_REMOVE(&c->done, call, link);
        call->listed = false;
        c->n_submitted--;
        hand_out(c, call, (void *)((char *)out + (size_t)n * stride));
        TAILQ_INSERT_TAIL(&c->handed, call, link);
        n++;
    }
    return (int)n;
}

/* Until there is one, the time is over (0), or the daemon is dead. */
static int wait_first(struct pfx *c, int timeout_ms)
{
    channel_take(c);
    if (!TAILQ_EMPTY(&c->done))
        return 0;
    if (timeout_ms == 0) {
        channel_look(c);
        channel_take(c);
    }
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : 0;
    if (timeout_ms > 0)
        until = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    while (timeout_ms && TAILQ_EMPTY(&c->done) && !c->gone) {
        bool over = !channel_await(c, until);
        channel_take(c);
        if (over)
            break;
    }
    return TAILQ_EMPTY(&c->done) && c->gone ? PFX_EGONE : 0;
}

int pfx_wait(pfx *c, struct pfx_completion *out, size_t stride, unsigned max, int timeout_ms)
{
    int status = check_here(c);
    if (status)
        return status;
    status = check_elements(c, out, stride, max);
    if (status)
        return status;
    if (timeout_ms < -1 || max > INT32_MAX)
        return fail(c, PFX_EINVAL, "timeout_ms is -1 (for ever), 0 (poll), or a time");
    take_back(c);
    if (c->event_fd >= 0)
        channel_drain(c); /* so that pfx_fd is readable for what comes from now on */
    status = wait_first(c, timeout_ms);
    int n = hand_out_all(c, out, stride, max);
    channel_leave(c);
    return n == 0 && status ? fail(c, status, NULL) : n;
}

static bool can_cancel(const struct call *call)
{
    return call->op == OP_LOOKUP || call->op == OP_FETCH;
}

/* Of several with this tag: one that can be forgotten, else any. */
static struct call *cancel_find(const struct pfx *c, uint64_t tag)
{
    struct call *any = NULL, *call;
    TAILQ_FOREACH(call, &c->pending, link)
    {
        if (call->user_tag != tag)
            continue;
        if (can_cancel(call) && call->state != CALL_FINISHED)
            return call;
        any = call;
    }
    TAILQ_FOREACH(call, &c->done, link)
    if (call->user_tag == tag && !any)
        any = call;
    return any;
}

int pfx_cancel(pfx *c, uint64_t tag)
{
    int status = check_here(c);
    if (status)
        return status;
    channel_take(c);
    struct call *call = cancel_find(c, tag);
    if (!call)
        status = fail(c, PFX_ENOENT, "no call with this tag is under way");
    else if (!can_cancel(call))
        status = fail(c, PFX_EINVAL, "only a lookup or a fetch can be cancelled");
    else if (call->state == CALL_FINISHED)
        status = fail(c, PFX_ENOENT, "its completion is already there");
    else
        call_forget(c, call);
    channel_take(c);
    channel_leave(c);
    return status;
}

static int make_fd(struct pfx *c)
{
    struct epoll_event e = {.events = EPOLLIN};
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->event_fd >= 0 && c->epoll_fd >= 0 &&
        epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->fd, &e) == 0 &&
        epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->event_fd, &e) == 0)
        return 0;
    if (c->event_fd >= 0)
        close(c->event_fd);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    c->event_fd = c->epoll_fd = -1;
    return fail(c, PFX_EAGAIN,
                "this process has no file descriptor left; raise the limit (ulimit -n)");
}

int pfx_fd(pfx *c)
{
    int status = check_here(c);
    if (status == 0 && c->event_fd < 0)
        status = make_fd(c);
    if (status)
        return status;
    channel_leave(c);
    return c->epoll_fd;
}
