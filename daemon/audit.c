/*
 * audit.c - everything that is counted, counted again. Each part walks its own house (index_audit,
 * spaces_audit); here is what only shows between them: pages, leases, sessions, groups.
 */
#include "daemon/daemon.h"

#include <stdlib.h>
#include <string.h>

struct audit {
    struct daemon *d;
    audit_find *find;
    void *arg;
    unsigned findings;
    uint8_t *seen;   /* by page: how often it is listed by an owner */
    uint32_t *holds; /* by snapshot: leases that hold it */
    uint8_t *slots;  /* by snapshot slot: leases that have reserved it */
};

#define FIND(a, ...) ((a)->findings++, (a)->find((a)->arg, __VA_ARGS__))

static void expect(struct audit *a, const char *what, uint64_t counted, uint64_t walked)
{
    if (counted != walked)
        FIND(a, "%s: counted %llu, walked %llu", what, (unsigned long long)counted,
             (unsigned long long)walked);
}

/* ---- pages ---------------------------------------------------------------------------- */

static void audit_states(struct audit *a)
{
    const struct pool *p = &a->d->pool;
    uint32_t n[PAGE_STATES] = {0};
    for (uint32_t id = 1; id <= p->n_blocks; id++) {
        if (p->state[id] >= PAGE_STATES)
            FIND(a, "page %u is in state %u", id, p->state[id]);
        else
            n[p->state[id]]++;
    }
    expect(a, "free pages", p->n_free, n[PAGE_FREE]);
    expect(a, "private pages", p->n_private, n[PAGE_PRIVATE]);
    expect(a, "cached pages", p->n_cached, n[PAGE_CACHED]);
    expect(a, "pages in flight", p->n_inflight, n[PAGE_INFLIGHT]);
    expect(a, "pages in quarantine", p->n_confined, n[PAGE_CONFINED]);
    expect(a, "pinned and idle pages", p->n_cached,
           (uint64_t)index_pinned(a->d->index) + index_idle(a->d->index) + index_busy(a->d->index));
    expect(a, "all pages", p->n_blocks,
           (uint64_t)p->n_free + p->n_private + p->n_cached + p->n_inflight + p->n_confined);
}

/* A page stands once at most, here or in one lease's table. */
static void see_page(struct audit *a, uint32_t id, enum page_state state, const char *where)
{
    const struct pool *p = &a->d->pool;
    if (id == 0 || id > p->n_blocks) {
        FIND(a, "%s names page %u of %u", where, id, p->n_blocks);
        return;
    }
    if (a->seen[id]++)
        FIND(a, "page %u stands twice, now in %s", id, where);
    if (p->state[id] != state)
        FIND(a, "page %u in %s is in state %u, not %u", id, where, p->state[id], state);
}

static void audit_free_stack(struct audit *a)
{
    for (uint32_t i = 0; i < a->d->pool.n_free; i++)
        see_page(a, a->d->pool.free[i], PAGE_FREE, "the free stack");
}

/* ---- leases --------------------------------------------------------------------------- */

/* Pages of the table that are the lease's own; those below the held depth are duplicates. */
static uint32_t own_pages(const struct lease *l, uint32_t *duplicates)
{
    uint32_t n = 0, held = l->path.where.depth + (l->partial.where.depth ? 1 : 0);
    *duplicates = 0;
    for (uint32_t i = 0; i < l->n_pages; i++)
        if (!(l->pages[i] & LEASE_PUBLISHED)) {
            n++;
            *duplicates += l->matched + i < held;
        }
    return n;
}

static void see_snapshots(struct audit *a, const struct lease *l)
{
    const struct daemon *d = a->d;
    if (!d->snapshots) {
        if (l->resident || l->tiered || l->n_slots)
            FIND(a, "lease %llx has snapshots, the pool has none", (unsigned long long)l->id);
        return;
    }
    a->holds[l->resident]++;
    a->holds[l->tiered]++;
    uint32_t n = 0;
    for (uint32_t slot = l->first_slot; slot && n <= d->n_slots;
         slot = d->leases.snapshots[slot].next, n++) {
        a->slots[slot]++;
        if (d->leases.snapshots[slot].lease != l)
            FIND(a, "lease %llx lists slot %u, which is another's", (unsigned long long)l->id,
                 slot);
    }
    if (n != l->n_slots)
        FIND(a, "lease %llx counts %u slots, walked %u", (unsigned long long)l->id, l->n_slots, n);
}

static void audit_lease(struct audit *a, const struct group *g, const struct lease *l)
{
    const struct leases *ls = &a->d->leases;
    unsigned long long id = l->id;
    uint32_t slot = (uint32_t)l->id, depth = l->path.where.depth, duplicates;
    if (slot >= ls->n_slots || ls->slot[slot] != l || ls->generation[slot] != l->id >> 32)
        FIND(a, "lease %llx is not in its slot", id);
    if (l->group != g)
        FIND(a, "lease %llx is linked in a group that is not its own", id);
    if (l->opener ? l->opener->group != g : !list_empty(&l->of_session))
        FIND(a, "lease %llx belongs to a session outside its group", id);
    if (l->n_pages > l->cap_pages || l->matched > depth ||
        (depth > lease_table(l) && !l->opening)) /* between two pieces it has no match yet */
        FIND(a, "lease %llx: %u matched, held to %u, %u pages of %u", id, l->matched, depth,
             l->n_pages, l->cap_pages);
    see_snapshots(a, l);
    own_pages(l, &duplicates);
    if (duplicates != l->duplicates)
        FIND(a, "lease %llx: counted %u duplicates, walked %u", id, l->duplicates, duplicates);
    for (uint32_t i = 0; i < l->n_pages; i++)
        if (!(l->pages[i] & LEASE_PUBLISHED))
            see_page(a, l->pages[i], PAGE_PRIVATE, "a lease's table");
}

static uint64_t claimed_by(const struct job *j)
{
    return j->op == OP_RESERVE ? j->request.reserve.n : 0;
}

/* By reserves that are not over. */
static uint64_t claimed_pages(const struct daemon *d)
{
    uint64_t n = 0;
    list_each (at, after, &d->sessions) {
        const struct session *s = list_entry(at, struct session, link);
        n += claimed_by(&s->job);
        list_each (waits, next, &s->waiting)
            n += claimed_by(&list_entry(waits, struct waiting, link)->job);
    }
    return n;
}

/* Returns what its leases have reserved. */
static uint64_t audit_group(struct audit *a, const struct group *g)
{
    uint64_t leases = 0, pages = 0, slots = 0;
    list_each (at, after, &g->leases) {
        const struct lease *l = list_entry(at, struct lease, of_group);
        audit_lease(a, g, l);
        leases++;
        pages += l->n_pages;
        slots += l->n_slots;
    }
    expect(a, "leases of a group", g->n_leases, leases);
    expect(a, "slots that a group has reserved", g->n_slots, slots);
    if (pages > g->n_pages)
        FIND(a, "a group counts %llu reserved pages, walked %llu", (unsigned long long)g->n_pages,
             (unsigned long long)pages);
    return pages;
}

static uint64_t audit_groups(struct audit *a)
{
    uint64_t leases = 0, members = 0, counted = 0, pages = claimed_pages(a->d);
    list_each (at, after, &a->d->groups) {
        const struct group *g = list_entry(at, struct group, link);
        members += g->members;
        leases += g->n_leases;
        counted += g->n_pages;
        pages += audit_group(a, g);
    }
    expect(a, "members of all groups", a->d->n_sessions, members);
    expect(a, "pages that all groups have reserved", counted, pages);
    return leases;
}

static void audit_leases(struct audit *a)
{
    const struct leases *ls = &a->d->leases;
    uint64_t used = 0, linked = audit_groups(a);
    for (uint32_t i = 0; i < ls->top; i++)
        used += ls->slot[i] != NULL;
    expect(a, "leases", ls->n_used, used);
    expect(a, "leases linked in groups", ls->n_used, linked);
    expect(a, "lease slots", ls->top, (uint64_t)ls->n_used + ls->n_free);
}

/* ---- sessions --------------------------------------------------------------------------- */

static void audit_job(struct audit *a, const struct job *j)
{
    for (uint32_t i = 0; i < j->n_pages; i++)
        see_page(a, j->pages[i], PAGE_PRIVATE, "an unfinished reserve");
}

static void audit_session(struct audit *a, const struct session *s)
{
    uint64_t leases = 0, own = 0;
    uint32_t duplicates;
    list_each (at, after, &s->leases) {
        const struct lease *l = list_entry(at, struct lease, of_session);
        leases++;
        own += own_pages(l, &duplicates);
        if (l->opener != s)
            FIND(a, "lease %llx is not of worker %llu, where it is linked",
                 (unsigned long long)l->id, (unsigned long long)s->number);
    }
    expect(a, "leases of a worker", s->n_leases, leases);
    expect(a, "private pages of a worker", s->private_blocks, own);
    audit_job(a, &s->job);
    uint64_t waiting = 0;
    list_each (at, after, &s->waiting) {
        audit_job(a, &list_entry(at, struct waiting, link)->job);
        waiting++;
    }
    expect(a, "waiting jobs of a worker", s->n_waiting, waiting);
}

static void audit_sessions(struct audit *a)
{
    uint64_t n = 0;
    list_each (at, after, &a->d->sessions) {
        audit_session(a, list_entry(at, struct session, link));
        n++;
    }
    expect(a, "workers", a->d->n_sessions, n);
}

/* ---- quarantine ------------------------------------------------------------------------- */

static void audit_confined(struct audit *a, const struct group *g)
{
    const struct pool *p = &a->d->pool, *slots = NULL;
    uint32_t n = 0;
    for (uint32_t id = g->pages.first; id && n <= p->n_blocks; id = p->next[id], n++)
        see_page(a, id, PAGE_CONFINED, "quarantine");
    expect(a, "pages of a group in quarantine", g->pages.n, n);
    if (a->d->snapshots)
        slots = slots_pool(a->d->snapshots);
    n = 0;
    for (uint32_t id = g->slots.first; id && n <= a->d->n_slots; id = slots->next[id], n++)
        a->slots[id]++;
    expect(a, "slots of a group in quarantine", g->slots.n, n);
}

static void audit_quarantine(struct audit *a)
{
    uint64_t ghosts = 0, n = 0, confined = 0;
    list_each (at, after, &a->d->confined) {
        const struct group *g = list_entry(at, struct group, confined);
        audit_confined(a, g);
        ghosts += g->ghosts;
        confined += g->pages.n;
    }
    list_each (at, after, &a->d->ghosts)
        n++;
    expect(a, "ghosts", a->d->n_ghosts, n);
    expect(a, "ghosts of all groups", ghosts, n);
    expect(a, "pages of all groups in quarantine", a->d->pool.n_confined, confined);
}

/* Every private page was seen in a table or an unfinished reserve, every free one on the stack,
 * every confined one in a chain. */
static void audit_unseen(struct audit *a)
{
    const struct pool *p = &a->d->pool;
    for (uint32_t id = 1; id <= p->n_blocks; id++)
        if (!a->seen[id] && p->state[id] != PAGE_CACHED && p->state[id] != PAGE_INFLIGHT)
            FIND(a, "page %u is in state %u, but nobody lists it", id, p->state[id]);
}

static void audit_all(struct audit *a)
{
    struct daemon *d = a->d;
    audit_states(a);
    audit_free_stack(a);
    audit_leases(a);
    audit_sessions(a);
    audit_quarantine(a);
    audit_unseen(a);
    a->findings += index_audit(d->index, a->find, a->arg);
    a->findings += spaces_audit(d->spaces, a->find, a->arg);
    if (d->snapshots)
        a->findings += snapshots_audit(d->snapshots, a->holds, a->slots, a->find, a->arg);
}

unsigned daemon_audit(struct daemon *d, audit_find *find, void *arg)
{
    if (!d->carved)
        return 0;
    struct audit a = {.d = d, .find = find, .arg = arg, .seen = calloc((size_t)d->n_blocks + 1, 1)};
    size_t entries = d->snapshots ? snapshots_max(d->snapshots) : 0;
    a.holds = calloc(entries + 1, sizeof *a.holds);
    a.slots = calloc((size_t)d->n_slots + 1, 1);
    if (a.seen && a.holds && a.slots)
        audit_all(&a);
    else
        FIND(&a, "there is no memory for the audit");
    free(a.seen);
    free(a.holds);
    free(a.slots);
    return a.findings;
}
