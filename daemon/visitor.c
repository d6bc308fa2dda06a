#include "daemon/visitor.h"

#include "daemon/admin.h"
#include "daemon/daemon.h"
#include "daemon/foreign.h"
#include "daemon/handshake.h"
#include "daemon/log.h"
#include "shm/clock.h"
#include "shm/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VISITORS_MAX = 64, UNACCEPTED_S = 10 };

struct visitor {
    struct list link; /* daemon.visitors, oldest first */
    struct watch watch;
    int fd;
    struct peer peer;
    bool allowed;
    bool admin; /* a tool that was welcomed */
};

/* Keeps the descriptor; it becomes the caller's. */
static int visitor_drop(struct daemon *d, struct visitor *v)
{
    int fd = v->fd;
    watch_remove(d, fd);
    list_remove(&v->link);
    d->n_visitors--;
    free(v);
    return fd;
}

static void visitor_close(struct daemon *d, struct visitor *v)
{
    foreign_close(&d->foreign, visitor_drop(d, v));
}

static void refuse(struct daemon *d, struct visitor *v, int status, const char *why)
{
    welcome_refuse(d, v->fd, &v->peer, status, why);
    visitor_close(d, v);
}

static void meet(struct daemon *d, struct visitor *v, const struct hello *h, size_t n)
{
    char why[256];
    int status = hello_check(h, n, why, sizeof why);
    if (status)
        refuse(d, v, status, why);
    else if (!v->allowed)
        refuse(d, v, STATUS_EACCESS,
               "this user may not attach; start the daemon with --allow-user or --allow-group");
    else if (h->kind == HELLO_WORKER)
        session_attach(d, visitor_drop(d, v), h);
    else {
        struct welcome w = welcome_of(d);
        v->admin = welcome_send(v->fd, &w, NULL, 0);
        if (!v->admin)
            visitor_close(d, v);
    }
}

static void visitor_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    struct visitor *v = list_entry(w, struct visitor, watch);
    union {
        struct hello hello;
        struct admin_request request;
    } in;
    memset(&in, 0, sizeof in);
    ssize_t n = foreign_recv(v->fd, &in, sizeof in);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        visitor_close(d, v);
    else if (!v->admin)
        meet(d, v, &in.hello, (size_t)n);
    else if ((size_t)n != sizeof in.request || !admin_answer(d, v->fd, &v->peer, &in.request))
        visitor_close(d, v);
}

/* Who is to go for another: a stranger first, then who has not said HELLO, then a tool, and of each
 * the oldest. At least of this rank. */
enum { RANK_TOOL, RANK_SILENT, RANK_STRANGER };

static struct visitor *least_wanted(struct daemon *d, int rank)
{
    struct visitor *victim = NULL;
    list_each (at, after, &d->visitors) {
        struct visitor *v = list_entry(at, struct visitor, link);
        int its = !v->allowed ? RANK_STRANGER : !v->admin ? RANK_SILENT : RANK_TOOL;
        if (its >= rank + (victim != NULL)) {
            victim = v;
            rank = its;
        }
    }
    return victim;
}

static void make_room(struct daemon *d)
{
    if (d->n_visitors >= VISITORS_MAX)
        visitor_close(d, least_wanted(d, RANK_TOOL));
}

bool visitors_give_way(struct daemon *d)
{
    struct visitor *v = least_wanted(d, RANK_SILENT);
    if (v)
        visitor_close(d, v);
    return v != NULL;
}

static void admit(struct daemon *d, int fd)
{
    make_room(d);
    struct visitor *v = calloc(1, sizeof *v);
    if (!v || !peer_identify(fd, &v->peer))
        goto fail;
    v->fd = fd;
    v->watch.ready = visitor_ready;
    v->allowed = peer_allowed(d->options, fd, &v->peer);
    if (watch_add(d, fd, &v->watch))
        goto fail;
    list_append(&d->visitors, &v->link);
    d->n_visitors++;
    return;
fail:
    free(v);
    foreign_close(&d->foreign, fd);
}

/* Whoever connects causes it, as often as he likes. */
static void log_unaccepted(struct daemon *d, const char *what, const char *why)
{
    uint64_t now = clock_ns();
    if (d->unaccepted_ns && now - d->unaccepted_ns < UNACCEPTED_S * 1000000000ull)
        return;
    d->unaccepted_ns = now;
    log_warning("%s%s", what, why);
}

/* Without a free descriptor the caller would stay in the queue and wake us for ever: who has said
 * nothing gives way to it; or the spare one is given up for a moment, to hang up on it. */
static void turn_away(struct daemon *d)
{
    log_unaccepted(d, "no descriptor is left for another connection; ", RAISE_DESCRIPTORS);
    if (visitors_give_way(d))
        return;
    if (d->spare_fd >= 0)
        close(d->spare_fd);
    int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        foreign_close(&d->foreign, fd);
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void connect_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        admit(d, fd);
    else if (errno == EMFILE || errno == ENFILE)
        turn_away(d);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        log_unaccepted(d, "a connection could not be accepted: ", strerror(errno));
}

int visitors_start(struct daemon *d)
{
    d->on_connect.ready = connect_ready;
    return watch_add(d, d->listen_fd, &d->on_connect);
}

void visitors_stop(struct daemon *d)
{
    list_each (at, after, &d->visitors)
        visitor_close(d, list_entry(at, struct visitor, link));
}
