/* Spaces, and what an administrator asks for: evict, flush. */
#include "daemon/dispatch_private.h"

#include <stdlib.h>
#include <string.h>

int op_space_open(struct call *c)
{
    const struct request_space *q = &c->rq->space;
    if (c->rq->flags || q->tenant_len > TENANT_MAX)
        return STATUS_EINVAL;
    const uint8_t *tenant = call_arena(c, q->tenant_len ? q->arena : 0, q->tenant_len);
    if (!tenant)
        return STATUS_EINVAL;
    struct space_key key = {q->adapter_id, q->adapter_generation, q->tenant_len, {0}};
    memcpy(key.tenant, tenant, q->tenant_len);
    uint32_t slot;
    if (!spaces_open(c->d->spaces, &key, &slot))
        return STATUS_ENOSPC;
    struct opened_space *o = session_space(c->s, slot, true);
    if (!o || o->count == UINT32_MAX) {
        spaces_close(c->d->spaces, slot);
        return STATUS_ENOSPC;
    }
    if (o->count++) /* the table counts a session once */
        spaces_close(c->d->spaces, slot);
    c->out->number.n = spaces_number(c->d->spaces, slot);
    return 0;
}

int op_space_close(struct call *c)
{
    uint32_t slot = spaces_find(c->d->spaces, c->rq->space.space);
    struct opened_space *o = slot == UINT32_MAX ? NULL : session_space(c->s, slot, false);
    if (!o)
        return STATUS_ENOENT;
    if (--o->count == 0) {
        session_space_drop(c->s, slot);
        spaces_close(c->d->spaces, slot);
    }
    return 0;
}

/* ---- evict -------------------------------------------------------------------------------- */

enum page_room make_pages(struct daemon *d, struct job *j, uint32_t n)
{
    struct index_evicted gone = {0};
    enum page_room pages;
    if (d->disk) {
        pages = disk_pages(d->disk, n, &j->began_ns, &gone);
    } else {
        if (d->pool.n_free < n)
            (void)index_free_pages(d->index, n - d->pool.n_free, true, &gone);
        pages = d->pool.n_free >= n ? PAGES_READY : PAGES_NONE;
    }
    d->counters.evicted_blocks += gone.removed;
    return pages;
}

/* Pages of n more idle blocks; true: ask again. */
static bool evict_some(struct daemon *d, struct job *j, uint32_t n, struct index_evicted *gone)
{
    bool again;
    if (d->disk) {
        again = disk_evict(d->disk, n, &j->began_ns, gone);
    } else {
        (void)index_free_pages(d->index, n, true, gone);
        again = gone->freed == n;
    }
    d->counters.evicted_blocks += gone->removed;
    return again;
}

int op_evict(struct call *c)
{
    /* What there is now, or it would have no end while others cache and fetch. */
    uint64_t n = c->rq->number.n,
             most = (uint64_t)index_idle(c->d->index) + index_busy(c->d->index);
    *c->job = (struct job){.op = OP_EVICT, .request = *c->rq, .left = n < most ? n : most};
    return go_on_evict(c);
}

int go_on_evict(struct call *c)
{
    struct job *j = c->job;
    uint32_t slice = j->left < TURN_BLOCKS ? (uint32_t)j->left : TURN_BLOCKS;
    struct index_evicted gone = {0};
    bool more = evict_some(c->d, j, slice, &gone);
    c->cost += gone.freed * 16ull;
    j->removed += gone.removed;
    j->freed += gone.freed;
    j->left -= gone.freed;
    if (more && j->left)
        return gone.freed ? STARTED : WAITING;
    c->out->number = (struct completion_number){.n = j->freed, .more = j->removed};
    return 0;
}

/* ---- flush ---------------------------------------------------------------------------------- */

#define ALL_SPACES UINT64_MAX

int op_flush(struct call *c)
{
    uint64_t number = c->rq->space.space;
    uint32_t slot = number == ALL_SPACES ? 0 : spaces_find(c->d->spaces, number);
    if (slot == UINT32_MAX)
        return STATUS_ENOENT;
    *c->job = (struct job){.op = OP_FLUSH, .request = *c->rq, .slot = slot};
    c->d->n_flushing++;
    return go_on_flush(c);
}

/* Remove about TURN_BLOCKS blocks below a condemned root; true: the walk is over. */
static bool reap_slice(struct daemon *d, struct place *root, uint32_t *budget)
{
    bool done = true;
    uint32_t gone = index_reap(d->index, *root, *budget, &done);
    *budget -= gone < *budget ? gone : *budget;
    if (done)
        root->node = 0;
    return done;
}

/* The space has its new root at once; what hung below the old one goes a slice a turn, and the
 * answer comes when it is gone. */
static bool flush_slice(struct daemon *d, struct job *j)
{
    bool all = j->request.space.space == ALL_SPACES;
    uint32_t budget = TURN_BLOCKS;
    while (budget) {
        if (j->root.node && !reap_slice(d, &j->root, &budget))
            return false;
        if (j->slot >= spaces_top(d->spaces))
            return true;
        if (spaces_find(d->spaces, spaces_number(d->spaces, j->slot)) != UINT32_MAX)
            j->root = spaces_flush(d->spaces, j->slot);
        j->slot = all ? j->slot + 1 : UINT32_MAX;
        if (budget)
            budget--;
    }
    return false;
}

/* A restart must not raise the dead: all that is on disk of it now is dead there too. What was
 * written since, of the space's new life, is lost to a restart as well: a miss. */
static bool flush_disk_begin(struct daemon *d, struct job *j)
{
    struct space_key key = {0};
    bool all = j->request.space.space == ALL_SPACES;
    if (!all)
        key = spaces_key(d->spaces, j->slot);
    j->disk_flush = disk_flush_begin(d->disk, all ? NULL : &key);
    return j->disk_flush != NULL;
}

static int flush_disk(struct job *j)
{
    int status = disk_flush_go(j->disk_flush);
    if (status == 1)
        return WAITING;
    disk_flush_end(j->disk_flush);
    j->disk_flush = NULL;
    return status;
}

int go_on_flush(struct call *c)
{
    struct job *j = c->job;
    c->cost += TURN_BLOCKS * 16ull;
    if (c->d->disk && !j->disk_flush && !flush_disk_begin(c->d, j))
        return STARTED; /* no memory now; nothing has been flushed yet */
    if (!j->reaped && !flush_slice(c->d, j))
        return STARTED;
    if (!j->reaped)
        c->d->n_flushing--;
    j->reaped = true;
    return c->d->disk ? flush_disk(j) : 0;
}

/* The worker that flushed has gone: what it condemned still goes, a slice a turn. Without memory to
 * remember that, at once. */
void abandon_flush(struct daemon *d, struct job *j)
{
    struct place root = j->root;
    if (j->disk_flush)
        disk_flush_end(j->disk_flush);
    uint32_t everything = UINT32_MAX;
    if (j->reaped)
        return;
    d->n_flushing--;
    if (!root.node)
        return;
    struct place *orphans = realloc(d->orphans, (d->n_orphans + 1) * sizeof *orphans);
    if (!orphans) {
        reap_slice(d, &root, &everything);
        return;
    }
    d->orphans = orphans;
    d->orphans[d->n_orphans++] = root;
    d->n_flushing++;
}

/* A slice of a transfer copies 256 KiB: some 30 us, during which as many tokens are compared. */
enum { STEP_WORK = 64 * 1024 };

bool dispatch_background(struct daemon *d)
{
    uint32_t budget = TURN_BLOCKS;
    bool busy = d->snapshots && snapshots_step(d->snapshots);
    if (busy)
        d->work += STEP_WORK;
    if (d->disk && disk_step(d->disk))
        busy = true;
    if (d->n_orphans == 0)
        return busy;
    d->work += TURN_BLOCKS * 16ull;
    if (reap_slice(d, &d->orphans[d->n_orphans - 1], &budget)) {
        d->n_orphans--;
        d->n_flushing--;
    }
    return true;
}
