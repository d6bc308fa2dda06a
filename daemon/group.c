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
    list_each (at, after, &g->dead)
        free(list_entry(at, struct dead_member, link));
    list_remove(&g->link);
    free(g);
}

static bool has_leases(const struct group *g, uint64_t number)
{
    list_each (at, after, &g->leases)
        if (list_entry(at, struct lease, of_group)->dead_opener == number)
            return true;
    return false;
}

/* Those whose leases the mates have released by now: so the list is no longer than the leases. */
static void forget_settled(struct group *g)
{
    list_each (at, after, &g->dead) {
        struct dead_member *m = list_entry(at, struct dead_member, link);
        if (!has_leases(g, m->number)) {
            list_remove(&m->link);
            free(m);
        }
    }
}

void group_mourn(struct session *s)
{
    struct group *g = s->group;
    if (g->members == 1)
        return;
    forget_settled(g);
    if (list_empty(&s->leases))
        return;
    list_each (at, after, &s->leases)
        list_entry(at, struct lease, of_session)->dead_opener = s->number;
    struct dead_member *m = calloc(1, sizeof *m);
    if (!m)
        return;
    m->number = s->number;
    m->pid = s->pid;
    memcpy(m->name, s->name, sizeof m->name);
    list_append(&g->dead, &m->link);
}
