#include "daemon/admin.h"

#include "daemon/daemon.h"
#include "daemon/group.h"
#include "daemon/handshake.h"
#include "daemon/log.h"
#include "shm/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { FINDINGS_MAX = 1000 };

/* Rows of one kind, growing. */
struct rows {
    const struct peer *to;
    uint8_t *at;
    size_t row_bytes;
    uint32_t n, cap;
    bool failed; /* no memory */
};

/* A zeroed row, or NULL. */
static void *row_add(struct rows *r)
{
    if (r->n == r->cap) {
        uint32_t cap = r->cap ? 2 * r->cap : 64;
        uint8_t *at = reallocarray(r->at, cap, r->row_bytes);
        if (!at) {
            r->failed = true;
            return NULL;
        }
        r->at = at;
        r->cap = cap;
    }
    return memset(r->at + (size_t)r->n++ * r->row_bytes, 0, r->row_bytes);
}

static bool may_see(const struct rows *r, uid_t of)
{
    return peer_is_owner(r->to) || r->to->uid == of;
}

/* ---- workers ------------------------------------------------------------------------------ */

static void worker_row(struct rows *r, const struct session *s)
{
    struct worker_row *row = may_see(r, s->uid) ? row_add(r) : NULL;
    if (!row)
        return;
    row->worker = s->number;
    row->pid = s->pid;
    row->uid = s->uid;
    memcpy(row->name, s->name, sizeof row->name);
    text_clean(row->group, s->group->name, sizeof row->group);
    row->leases = s->n_leases;
    row->opened_spaces = s->n_opened;
    row->private_blocks = s->private_blocks;
    row->requests = s->n_requests;
}

static uint32_t private_pages(const struct lease *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_pages; i++)
        n += !(l->pages[i] & LEASE_PUBLISHED);
    return n;
}

static void dead_row(struct rows *r, const struct group *g, const struct dead_member *m)
{
    struct worker_row *row = row_add(r);
    if (!row)
        return;
    row->worker = m->number;
    row->pid = m->pid;
    row->uid = g->uid;
    row->dead = 1;
    row->leases = m->leases;
    row->private_blocks = m->private_blocks;
    memcpy(row->name, m->name, sizeof row->name);
    text_clean(row->group, g->name, sizeof row->group);
}

static void add_workers(struct daemon *d, struct rows *r)
{
    list_each (at, after, &d->sessions)
        worker_row(r, list_entry(at, struct session, link));
    list_each (at, after, &d->groups) {
        const struct group *g = list_entry(at, struct group, link);
        if (!may_see(r, g->uid))
            continue;
        list_each (dead, next, &g->dead)
            dead_row(r, g, list_entry(dead, struct dead_member, link));
    }
}

/* ---- leases ------------------------------------------------------------------------------- */

static void lease_row(const struct daemon *d, struct rows *r, const struct lease *l)
{
    struct lease_row *row = row_add(r);
    if (!row)
        return;
    row->lease = l->id;
    row->worker = l->opener ? l->opener->number : l->dead->number;
    text_clean(row->group, l->group->name, sizeof row->group);
    row->space = l->space_number;
    row->matched_blocks = l->matched;
    row->held_blocks = l->path.where.depth;
    row->table_blocks = lease_table(l);
    row->private_blocks = private_pages(l);
    row->final = l->final;
    row->stale = lease_is_stale(d, l);
    row->slots = l->n_slots;
    if (l->resident)
        row->snapshot_depth = snapshot_facts(d->snapshots, l->resident).depth;
    if (l->tiered)
        row->tier_depth = snapshot_facts(d->snapshots, l->tiered).depth;
}

static void add_leases(struct daemon *d, struct rows *r)
{
    list_each (at, after, &d->groups) {
        const struct group *g = list_entry(at, struct group, link);
        if (!may_see(r, g->uid))
            continue;
        list_each (of_group, next, &g->leases)
            lease_row(d, r, list_entry(of_group, struct lease, of_group));
    }
}

/* ---- audit -------------------------------------------------------------------------------- */

static void add_finding(void *arg, const char *finding, ...) __attribute__((format(printf, 2, 3)));
static void add_finding(void *arg, const char *finding, ...)
{
    struct rows *r = arg;
    struct audit_row *row = r->n < FINDINGS_MAX ? row_add(r) : NULL;
    if (!row)
        return;
    va_list args;
    va_start(args, finding);
    vsnprintf(row->finding, sizeof row->finding, finding, args);
    va_end(args);
    log_error("audit: %s", row->finding);
}

static void add_audit(struct daemon *d, struct rows *r)
{
    unsigned n = daemon_audit(d, add_finding, r);
    if (n)
        log_error("audit: %u findings; this is a fault of prefixd, please report it", n);
}

/* ---- answer ------------------------------------------------------------------------------- */

static const struct {
    size_t row_bytes;
    void (*add)(struct daemon *d, struct rows *r);
} kinds[] = {
    [ADMIN_WORKERS] = {sizeof(struct worker_row), add_workers},
    [ADMIN_LEASES] = {sizeof(struct lease_row), add_leases},
    [ADMIN_AUDIT] = {sizeof(struct audit_row), add_audit},
};

static bool reply_send(int fd, const struct admin_reply *reply, int rows_fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)reply, sizeof *reply};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (rows_fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &rows_fd, sizeof rows_fd);
    }
    return sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *reply;
}

bool admin_answer(struct daemon *d, int fd, const struct peer *p, const struct admin_request *rq)
{
    struct admin_reply reply = {.status = STATUS_EINVAL};
    if (rq->op == 0 || rq->op >= sizeof kinds / sizeof kinds[0] || rq->reserved)
        return reply_send(fd, &reply, -1);
    if (rq->op == ADMIN_AUDIT && !peer_is_owner(p)) {
        reply.status = STATUS_EACCESS;
        return reply_send(fd, &reply, -1);
    }

    struct rows r = {.to = p, .row_bytes = kinds[rq->op].row_bytes};
    struct segment s = {.fd = -1};
    kinds[rq->op].add(d, &r);
    reply = (struct admin_reply){.n_rows = r.n, .row_bytes = (uint32_t)r.row_bytes};
    size_t bytes = (size_t)r.n * r.row_bytes;
    if (r.failed || (r.n && segment_create(&s, SEGMENT_ROWS, SEGMENT_DAEMON, bytes)))
        reply = (struct admin_reply){.status = STATUS_ENOSPC};
    else if (r.n)
        memcpy(s.base, r.at, bytes);
    bool sent = reply_send(fd, &reply, s.fd);
    segment_free(&s);
    free(r.at);
    return sent;
}
