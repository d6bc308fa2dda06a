#include "daemon/daemon.h"
#include "daemon/group.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool leases_init(struct leases *ls, uint32_t n_slots, uint32_t snapshots)
{
    *ls = (struct leases){.n_slots = n_slots};
    ls->slot = calloc(n_slots, sizeof *ls->slot);
    ls->generation = calloc(n_slots, sizeof *ls->generation);
    ls->free = calloc(n_slots, sizeof *ls->free);
    if (snapshots)
        ls->snapshots = calloc((size_t)snapshots + 1, sizeof *ls->snapshots);
    if (ls->slot && ls->generation && ls->free && (!snapshots || ls->snapshots))
        return true;
    leases_deinit(ls);
    return false;
}

void leases_deinit(struct leases *ls)
{
    free(ls->slot);
    free(ls->generation);
    free(ls->free);
    free(ls->snapshots);
    memset(ls, 0, sizeof *ls);
}

struct lease *lease_open(struct daemon *d, struct session *s, uint32_t space, uint64_t session,
                         uint32_t tag)
{
    struct leases *ls = &d->leases;
    /* Those of dead members count as well: max_leases for each member that is there. */
    if (s->n_leases >= d->options->max_leases || ls->n_used == ls->n_slots ||
        s->group->n_leases >= (uint64_t)s->group->members * d->options->max_leases)
        return NULL;
    struct lease *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    uint32_t slot = ls->n_free ? ls->free[--ls->n_free] : ls->top++;
    if (++ls->generation[slot] == 0) /* an id is never 0 */
        ls->generation[slot] = 1;
    l->id = (uint64_t)ls->generation[slot] << 32 | slot;
    l->opener = s;
    l->group = s->group;
    l->space = space;
    l->space_number = spaces_number(d->spaces, space);
    l->flushes = spaces_flushes(d->spaces, space);
    l->session = session;
    l->tag = tag;
    ls->slot[slot] = l;
    ls->n_used++;
    s->n_leases++;
    s->group->n_leases++;
    list_append(&s->group->leases, &l->of_group);
    list_append(&s->leases, &l->of_session);
    spaces_use(d->spaces, space);
    return l;
}

struct lease *lease_find(struct daemon *d, const struct session *s, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= d->leases.top)
        return NULL;
    struct lease *l = d->leases.slot[slot];
    return l && l->id == id && l->group == s->group ? l : NULL;
}

bool lease_is_stale(const struct daemon *d, const struct lease *l)
{
    return spaces_flushes(d->spaces, l->space) != l->flushes;
}

void lease_count_private(struct lease *l, int64_t n)
{
    uint64_t *count = l->opener ? &l->opener->private_blocks : &l->dead->private_blocks;
    *count += (uint64_t)n;
}

/* What is not needed of the array goes as well, or a worker could pile up empty ones. */
void lease_drop_pages(struct daemon *d, struct lease *l, uint32_t keep)
{
    while (l->n_pages > keep) {
        uint32_t page = l->pages[--l->n_pages];
        l->group->n_pages--;
        if (page & LEASE_PUBLISHED)
            continue;
        group_give_page(d, l->group, page);
        lease_count_private(l, -1);
    }
    if (l->n_pages >= l->cap_pages / 4)
        return;
    uint32_t *less = l->n_pages ? realloc(l->pages, l->n_pages * sizeof *less) : NULL;
    if (!less && l->n_pages)
        return; /* no memory to use less */
    if (!less)
        free(l->pages);
    l->pages = less;
    l->cap_pages = l->n_pages;
}

void lease_slot_add(struct daemon *d, struct lease *l, uint32_t slot)
{
    struct lease_slot *at = d->leases.snapshots;
    at[slot] = (struct lease_slot){.lease = l, .next = l->first_slot};
    if (l->first_slot)
        at[l->first_slot].prev = slot;
    l->first_slot = slot;
    l->n_slots++;
    l->group->n_slots++;
}

void lease_slot_remove(struct daemon *d, struct lease *l, uint32_t slot)
{
    struct lease_slot *at = d->leases.snapshots, was = at[slot];
    if (was.prev)
        at[was.prev].next = was.next;
    else
        l->first_slot = was.next;
    if (was.next)
        at[was.next].prev = was.prev;
    at[slot] = (struct lease_slot){0};
    l->n_slots--;
    l->group->n_slots--;
}

bool lease_has_slot(const struct daemon *d, const struct lease *l, uint64_t slot)
{
    return slot >= 1 && slot <= d->n_slots && d->leases.snapshots[slot].lease == l;
}

void lease_drop_snapshots(struct daemon *d, struct lease *l, uint64_t tokens)
{
    uint32_t *const offered[2] = {&l->resident, &l->tiered};
    for (int i = 0; i < 2; i++)
        if (*offered[i] && snapshot_facts(d->snapshots, *offered[i]).depth > tokens) {
            snapshot_unhold(d->snapshots, *offered[i]);
            *offered[i] = 0;
        }
}

void lease_drop_residue(struct lease *l)
{
    free(l->residue);
    l->residue = NULL;
}

void lease_release(struct daemon *d, struct lease *l)
{
    struct leases *ls = &d->leases;
    uint32_t slot = (uint32_t)l->id, space = l->space;
    lease_drop_pages(d, l, 0);
    lease_drop_snapshots(d, l, 0);
    lease_drop_residue(l);
    while (l->first_slot) {
        uint32_t reserved = l->first_slot;
        lease_slot_remove(d, l, reserved);
        group_give_slot(d, l->group, reserved);
    }
    index_unhold(d->index, &l->partial);
    index_unhold(d->index, &l->tail);
    index_unhold(d->index, &l->path);
    list_remove(&l->of_group);
    list_remove(&l->of_session);
    l->group->n_leases--;
    if (l->opener)
        l->opener->n_leases--;
    if (l->dead)
        dead_settle(l->dead);
    ls->slot[slot] = NULL;
    ls->free[ls->n_free++] = slot;
    ls->n_used--;
    free(l->pages);
    free(l);
    spaces_unuse(d->spaces, space);
}

void leases_session_end(struct daemon *d, struct session *s, bool clean)
{
    list_each (at, after, &s->leases) {
        struct lease *l = list_entry(at, struct lease, of_session);
        if (clean) {
            lease_release(d, l);
            continue;
        }
        list_remove(&l->of_session);
        l->opener = NULL;
        s->n_leases--;
    }
    assert(s->n_leases == 0);
}

void leases_group_end(struct daemon *d, struct group *g)
{
    list_each (at, after, &g->leases)
        lease_release(d, list_entry(at, struct lease, of_group));
}
