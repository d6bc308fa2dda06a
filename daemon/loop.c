/*
 * loop.c - the one thread: rings first, descriptors now and then, sleep in one place.
 *
 *      turn of every session --- work found --------------> again; descriptors after WORK_TOKENS
 *               |
 *            nothing --- for less than spin_us -----------> again; descriptors every LOOK_NS
 *               |
 *      doze word odd, FULL FENCE, look at every ring, epoll_wait with a limit, doze word even
 *
 * Nothing here waits for a worker: rings are looked at, packets are sent and received without
 * waiting, and a worker's turn is bounded (session_turn).
 */
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "shm/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    WORK_TOKENS = 256 * 1024, /* about 100 us; the smallest record counts 1024 (session.c) */
    LOOK_NS = 100 * 1000,
    SPINS_A_LOOK = 16, /* rounds between looks at the clock */
    EVENTS_A_LOOK = 64,
    NAP_MS = 1000,  /* every sleep has a limit */
    PAUSED_MS = 10, /* while a worker with a full completion ring has requests left, or jobs wait
                       for the disk: that wakes us, but their patience ends by the clock */
};

int watch_add(struct daemon *d, int fd, struct watch *w)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = w};
    return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

void watch_hangup(struct daemon *d, int fd, struct watch *w)
{
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = w};
    (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

void watch_remove(struct daemon *d, int fd)
{
    (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static bool take_event(struct daemon *d, int timeout_ms, struct epoll_event *e)
{
    return epoll_wait(d->epoll_fd, e, 1, timeout_ms) == 1;
}

static void serve_event(struct daemon *d, const struct epoll_event *e)
{
    struct watch *w = e->data.ptr;
    w->ready(d, w, e->events);
}

bool daemon_serve_one(struct daemon *d, int timeout_ms)
{
    struct epoll_event e;
    if (!take_event(d, timeout_ms, &e))
        return false;
    serve_event(d, &e);
    return true;
}

static void look_at_descriptors(struct daemon *d)
{
    struct epoll_event e;
    for (int i = 0; i < EVENTS_A_LOOK && !d->stopping && take_event(d, 0, &e); i++)
        serve_event(d, &e);
    d->work = 0;
}

static bool turn_of_all(struct daemon *d)
{
    bool busy = dispatch_background(d);
    if (busy)
        daemon_publish(d); /* no completion will */
    list_each (at, after, &d->sessions)
        busy |= session_turn(d, list_entry(at, struct session, link));
    return busy;
}

/* How long may we sleep? 0: there is work. */
static int nap_length(struct daemon *d)
{
    int ms = NAP_MS;
    list_each (at, after, &d->sessions) {
        enum session_state state = session_look(list_entry(at, struct session, link));
        if (state == SESSION_READY)
            return 0;
        if (state == SESSION_WAITING || state == SESSION_PAUSED)
            ms = PAUSED_MS;
    }
    return ms;
}

/* Before the cache is carved there are no workers, hence no doze word and no rings. False: it ran
 * its full time. Before each, counters are published that no completion will: what the swap thread
 * alone has changed, like a disk's health. */
static bool nap(struct daemon *d)
{
    struct epoll_event e;
    bool event;
    daemon_publish(d);
    if (d->carved) {
        doze_begin(&d->header->doze); /* DOZE-1 is in it: the rings come after */
        event = take_event(d, nap_length(d), &e);
        doze_end(&d->header->doze);
    } else {
        event = take_event(d, NAP_MS, &e);
    }
    if (event)
        serve_event(d, &e);
    look_at_descriptors(d);
    return event;
}

/* Look for work for spin_us. True: there is some. */
static bool spin(struct daemon *d)
{
    uint64_t start = clock_ns(), looked = start, until = start + d->options->spin_us * 1000ull;
    for (uint64_t now = start; now < until && !d->stopping; now = clock_ns()) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            cpu_relax();
            if (turn_of_all(d))
                return true;
        }
        if (now - looked > LOOK_NS) {
            look_at_descriptors(d);
            looked = now;
        }
    }
    return false;
}

int daemon_run(struct daemon *d)
{
    bool lively = true; /* no spinning after a nap that nobody ended */
    while (!d->stopping) {
        if (turn_of_all(d) || (lively && spin(d))) {
            lively = true;
            if (d->work >= WORK_TOKENS)
                look_at_descriptors(d);
        } else {
            lively = nap(d);
        }
    }
    log_info("stopping: %u worker%s attached", d->n_sessions, PLURAL(d->n_sessions));
    return 0;
}
