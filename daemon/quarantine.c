#include "daemon/quarantine.h"

#include "daemon/daemon.h"
#include "daemon/foreign.h"
#include "daemon/group.h"
#include "daemon/log.h"
#include "shm/clock.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FAREWELL_MS = 2000 };

static void forget_socket(struct daemon *d, struct session *s)
{
    if (s->fd < 0)
        return;
    watch_remove(d, s->fd);
    foreign_close(&d->foreign, s->fd);
    s->fd = -1;
}

static void forget_process(struct daemon *d, struct session *s)
{
    if (s->pidfd < 0)
        return;
    watch_remove(d, s->pidfd);
    close(s->pidfd);
    s->pidfd = -1;
}

/* Nothing of it can write any more. */
static void release(struct daemon *d, struct session *s)
{
    struct group *g = s->group;
    forget_socket(d, s);
    forget_process(d, s);
    list_remove(&s->link);
    d->n_ghosts--;
    session_free(d, s);
    if (--g->ghosts)
        return;
    uint32_t n = g->pages.n + g->slots.n;
    pool_discharge(&d->pool, &g->pages);
    if (g->slots.n)
        pool_discharge(slots_pool(d->snapshots), &g->slots);
    list_remove(&g->confined);
    if (!g->members)
        free(g);
    if (n)
        log_info("%u page%s and slots are out of quarantine", n, PLURAL(n));
    daemon_publish(d);
}

static void settle(struct daemon *d, struct session *s)
{
    if (s->hung_up)
        forget_socket(d, s);
    if (s->exited)
        forget_process(d, s);
    if (s->hung_up && s->exited)
        release(d, s);
}

/* Whoever has inherited the socket may say what he likes: nobody listens. */
static void ghost_hangs_up(struct daemon *d, struct watch *w, uint32_t events)
{
    struct session *s = list_entry(w, struct session, on_socket);
    (void)events;
    s->hung_up = true;
    settle(d, s);
}

static void ghost_exits(struct daemon *d, struct watch *w, uint32_t events)
{
    struct session *s = list_entry(w, struct session, on_exit);
    s->exited = true;
    settle(d, s);
}

bool quarantine_needed(const struct daemon *d, const struct session *s)
{
    for (uint32_t i = 0; i < d->layout.n_devices; i++)
        if (s->maps >> i & 1 && device_is_cuda(d->devices[i]))
            return true;
    return false;
}

bool quarantine_begin(struct daemon *d, struct session *s)
{
    if (!quarantine_needed(d, s))
        return false;
    struct pollfd now[2] = {{.fd = s->fd, .events = POLLRDHUP}, {.fd = s->pidfd, .events = POLLIN}};
    (void)poll(now, 2, 0);
    s->hung_up |= now[0].revents != 0;
    s->exited |= now[1].revents != 0;
    if (s->hung_up && s->exited)
        return false;
    if (!s->hung_up && !s->exited)
        s->hung_up = true; /* we are the one who hangs up */
    list_remove(&s->link);
    list_append(&d->ghosts, &s->link);
    d->n_ghosts++;
    if (s->group->ghosts++ == 0)
        list_append(&d->confined, &s->group->confined);
    segment_free(&s->request_region);
    segment_free(&s->completion_region);
    s->on_socket.ready = ghost_hangs_up;
    s->on_exit.ready = ghost_exits;
    if (s->hung_up)
        forget_socket(d, s);
    else
        watch_hangup(d, s->fd, &s->on_socket);
    return true;
}

/* ---- farewell ---------------------------------------------------------------------------- */

/* The first one in the list that maps a GPU; NULL: none does. */
static struct session *importer(const struct daemon *d, const struct list *sessions)
{
    list_each (at, after, sessions)
        if (quarantine_needed(d, list_entry(at, struct session, link)))
            return list_entry(at, struct session, link);
    return NULL;
}

/* Our half of the socket is shut: that is how a worker learns it. Its half still brings BYE. */
static void tell(const struct daemon *d)
{
    list_each (at, after, &d->sessions) {
        const struct session *s = list_entry(at, struct session, link);
        if (quarantine_needed(d, s))
            (void)shutdown(s->fd, SHUT_WR);
    }
}

bool quarantine_farewell(struct daemon *d)
{
    const struct session *s = importer(d, &d->sessions);
    if (!s)
        s = importer(d, &d->ghosts);
    if (!s)
        return true;
    uint64_t until = clock_ns() + FAREWELL_MS * 1000000ull, now;
    tell(d);
    while (s && (now = clock_ns()) < until) {
        (void)daemon_serve_one(d, (int)((until - now + 999999) / 1000000));
        s = importer(d, &d->sessions);
        if (!s)
            s = importer(d, &d->ghosts);
    }
    if (s)
        log_warning("worker %llu (%s, process %d) and maybe others still map the pool after %d ms; "
                    "GPU memory stays in use until they have closed or ended",
                    (unsigned long long)s->number, s->name[0] ? s->name : "unnamed", (int)s->pid,
                    FAREWELL_MS);
    return s == NULL;
}

void quarantine_stop(struct daemon *d)
{
    list_each (at, after, &d->ghosts)
        release(d, list_entry(at, struct session, link));
}
