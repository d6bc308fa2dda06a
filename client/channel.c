/*
 * The channel from the worker's side: post, take, wake, sleep, and notice the daemon's death.
 *
 * Death is a hang-up of the control socket; a daemon that stops hangs up its side, and waits a
 * while for our BYE. Whoever sleeps is told by poll(); whoever only polls
 * asks about once a millisecond. There is no heartbeat: a stopped daemon is not a dead one.
 */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    SPINS_A_LOOK = 32, /* looks at the ring between two looks at the clock    */
    NAP_MS = 100,      /* longest sleep: a wake-up lost by a fault costs that */
    LOOK_NS = 1000 * 1000,
};

bool channel_room(struct pfx *c)
{
    if (c->in_flight >= c->ring_entries)
        return false;
    enum ring_state state = ring_claim(&c->requests);
    if (state == RING_BROKEN)
        channel_die(c);
    return state == RING_OK;
}

void channel_post(struct pfx *c, const struct request *rq)
{
    ring_post(&c->requests, rq);
    c->in_flight++;
    c->sequence++;
    if (!doze_must_wake(&c->index.header->doze, &c->doze_answered)) /* DOZE-2 */
        return;
    const uint8_t wake = WAKE;
    /* A full buffer means that a wake-up is pending; a hang-up is seen by whoever waits. */
    (void)send(c->fd, &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void channel_take(struct pfx *c)
{
    struct wire_completion answer;
    enum ring_state state;
    while ((state = ring_peek(&c->completions, &answer)) == RING_OK) {
        ring_drop(&c->completions);
        call_answer(c, &answer);
    }
    if (state == RING_BROKEN)
        channel_die(c);
    if (c->gone)
        calls_end(c);
    else
        calls_retry(c);
    calls_deliver(c);
}

static bool channel_has(const struct pfx *c)
{
    return shm_load_acquire(c->completions.shared_tail) != c->completions.head;
}

void channel_die(struct pfx *c)
{
    c->gone = true;
}

void channel_drain(struct pfx *c)
{
    uint8_t bytes[8];
    ssize_t n = 1;
    for (int i = 0; i < 64 && n > 0; i++)
        n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    /* Another error: the descriptor is no longer ours, because the program closed it. */
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        channel_die(c);
}

static short channel_poll(struct pfx *c, short events, int ms)
{
    struct pollfd p = {.fd = c->fd, .events = (short)(events | POLLRDHUP)};
    if (poll(&p, 1, ms) <= 0)
        return 0;
    if (p.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL))
        channel_die(c);
    return p.revents;
}

bool channel_ends(struct pfx *c, int ms)
{
    (void)channel_poll(c, 0, ms);
    return c->gone;
}

void channel_look(struct pfx *c)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* the cheap one: this is called in loops */
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (c->gone || now - c->checked_ns < LOOK_NS)
        return;
    c->checked_ns = now;
    (void)channel_poll(c, 0, 0);
}

/* True: there is something in the ring, or the time is over. */
static bool spin(struct pfx *c, uint64_t now, uint64_t until)
{
    uint64_t end = until - now < c->spin_ns ? until : now + c->spin_ns;
    while (now < end) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (channel_has(c))
                return true;
            cpu_relax();
        }
        now = clock_ns();
    }
    return channel_has(c) || now >= until;
}

bool channel_await(struct pfx *c, uint64_t until)
{
    if (channel_has(c) || c->gone)
        return true;
    uint64_t now = clock_ns();
    if (now >= until)
        return false;
    if (spin(c, now, until))
        return true;
    now = clock_ns();
    uint64_t left = until > now ? until - now : 0;
    int ms = left > NAP_MS * 1000000ull ? NAP_MS : (int)((left + 999999) / 1000000);
    short events = 0;
    doze_begin(c->doze); /* DOZE-1, then look once more */
    if (!channel_has(c))
        events = channel_poll(c, POLLIN, ms);
    doze_end(c->doze);
    if (events & POLLIN)
        channel_drain(c);
    return true;
}

/* The event descriptor is readable while completions are set aside, or the end is known. */
static void event_update(struct pfx *c)
{
    bool want = c->gone || !TAILQ_EMPTY(&c->done);
    uint64_t one = 1;
    if (want && !c->event_set)
        c->event_set = write(c->event_fd, &one, sizeof one) == sizeof one;
    else if (!want && c->event_set)
        c->event_set = read(c->event_fd, &one, sizeof one) != sizeof one;
}

void channel_leave(struct pfx *c)
{
    if (c->event_fd < 0)
        return;
    do {
        channel_take(c);
        if (c->in_flight == 0)
            break;
        doze_begin(c->doze); /* DOZE-1: a new nap, then look once more */
    } while (channel_has(c));
    event_update(c);
}
