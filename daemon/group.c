#include "daemon/group.h"

#include "daemon/daemon.h"

#include <stdlib.h>
#include <string.h>

struct group *group_join(struct daemon *d, uid_t uid, const char *name)
{
    if (name[0])
        list_each (at, after, &d->groups) {
            struct group *g = list_entry(at, struct group, link);
            if (g->uid == uid && strcmp(g->name, name) == 0) {
                g->members++;
                return g;
            }
        }
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    list_init(&g->leases);
    list_init(&g->dead);
    list_init(&g->confined);
    g->members = 1;
    g->uid = uid;
    strncpy(g->name, name, sizeof g->name - 1);
    list_append(&d->groups, &g->link);
    return g;
}

void group_leave(struct daemon *d, struct group *g)
{
    if (--g->members)
        return;
    leases_group_end(d, g);
    list_remove(&g->link);
    if (!g->ghosts)
        free(g);
}

void group_give_page(struct daemon *d, struct group *g, uint32_t page)
{
    if (g->ghosts)
        pool_confine(&d->pool, &g->pages, page);
    else
        pool_give(&d->pool, page);
}

void group_give_slot(struct daemon *d, struct group *g, uint32_t slot)
{
    if (g->ghosts)
        pool_confine(slots_pool(d->snapshots), &g->slots, slot);
    else
        slot_give(d->snapshots, slot);
}

static bool within(uint64_t taken, uint64_t more, uint32_t share, uint32_t members)
{
    return share == 0 || taken + more <= (uint64_t)share * members;
}

bool group_may_take_pages(const struct daemon *d, const struct group *g, uint32_t more)
{
    return within(g->n_pages, more, d->options->max_worker_blocks, g->members);
}

bool group_may_take_slot(const struct daemon *d, const struct group *g)
{
    return within(g->n_slots, 1, d->options->max_worker_slots, g->members);
}

void group_mourn(struct session *s)
{
    struct dead_member *m = s->obituary;
    if (list_empty(&s->leases))
        return;
    s->obituary = NULL;
    m->number = s->number;
    m->pid = s->pid;
    m->leases = s->n_leases;
    m->private_blocks = s->private_blocks;
    memcpy(m->name, s->name, sizeof m->name);
    list_append(&s->group->dead, &m->link);
    list_each (at, after, &s->leases)
        list_entry(at, struct lease, of_session)->dead = m;
}

void dead_settle(struct dead_member *m)
{
    if (--m->leases)
        return;
    list_remove(&m->link);
    free(m);
}
