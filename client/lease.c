/*
 * Leases as the worker knows them: id, the place in the index where it holds, and the ids that were
 * handed out. The daemon's own record is what counts; this one saves asking.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEPT_LEASES = 256,    /* freed objects kept for the next lookups */
    KEPT_IDS = 64 * 1024, /* with room for no more ids than this     */
};

static uint32_t home(const struct leases *ls, uint64_t id)
{
    return (uint32_t)(id * 0x9e3779b97f4a7c15ull >> 32) & (ls->n_slots - 1);
}

struct lease *lease_new(struct pfx *c)
{
    struct leases *ls = &c->leases;
    struct lease *l = ls->free;
    if (l) {
        ls->free = l->next_free;
        ls->n_free--;
        *l = (struct lease){.pages = l->pages, .disks = l->disks, .room = l->room};
    } else {
        l = calloc(1, sizeof *l);
    }
    if (l)
        TAILQ_INIT(&l->line);
    return l;
}

static void put(struct leases *ls, struct lease *l)
{
    uint32_t at = home(ls, l->id);
    while (ls->slot[at])
        at = (at + 1) & (ls->n_slots - 1);
    ls->slot[at] = l;
}

static bool grow(struct leases *ls)
{
    struct leases wider = *ls;
    wider.n_slots = ls->n_slots ? 2 * ls->n_slots : 64;
    wider.slot = calloc(wider.n_slots, sizeof *wider.slot);
    if (!wider.slot)
        return false;
    for (uint32_t i = 0; i < ls->n_slots; i++)
        if (ls->slot[i])
            put(&wider, ls->slot[i]);
    free(ls->slot);
    *ls = wider;
    return true;
}

bool lease_add(struct pfx *c, struct lease *l)
{
    struct leases *ls = &c->leases;
    if (2 * (ls->n_used + 1) > ls->n_slots && !grow(ls))
        return false;
    put(ls, l);
    ls->n_used++;
    return true;
}

struct lease *lease_seek(const struct pfx *c, uint64_t id)
{
    const struct leases *ls = &c->leases;
    if (ls->n_used == 0)
        return NULL;
    for (uint32_t at = home(ls, id); ls->slot[at]; at = (at + 1) & (ls->n_slots - 1))
        if (ls->slot[at]->id == id)
            return ls->slot[at];
    return NULL;
}

struct lease *lease_use(struct pfx *c, uint64_t id)
{
    struct lease *l = lease_seek(c, id);
    if (l)
        return l;
    l = lease_new(c);
    if (!l)
        return NULL;
    l->id = id;
    if (lease_add(c, l))
        return l;
    lease_free(c, l);
    return NULL;
}

/* Close the gap: an entry moves back unless its home lies behind the gap. */
static void take_out(struct leases *ls, const struct lease *l)
{
    uint32_t mask = ls->n_slots - 1, gap = home(ls, l->id);
    while (ls->slot[gap] && ls->slot[gap] != l)
        gap = (gap + 1) & mask;
    if (!ls->slot[gap])
        return;
    for (uint32_t at = (gap + 1) & mask; ls->slot[at]; at = (at + 1) & mask) {
        if (((at - home(ls, ls->slot[at]->id)) & mask) < ((at - gap) & mask))
            continue;
        ls->slot[gap] = ls->slot[at];
        gap = at;
    }
    ls->slot[gap] = NULL;
    ls->n_used--;
}

void lease_free(struct pfx *c, struct lease *l)
{
    struct leases *ls = &c->leases;
    if (ls->n_used)
        take_out(ls, l);
    if (ls->n_free < KEPT_LEASES && l->room <= KEPT_IDS) {
        l->next_free = ls->free;
        ls->free = l;
        ls->n_free++;
        return;
    }
    free(l->pages);
    free(l);
}

bool lease_room(struct lease *l, uint32_t n, bool disks)
{
    if (n <= l->room)
        return true;
    uint32_t room = 256;
    while (room < n)
        room = room < 1u << 31 ? 2 * room : n;
    uint32_t *ids = malloc((size_t)room * (disks ? 8 : 4));
    if (!ids)
        return false;
    free(l->pages);
    l->pages = ids;
    l->disks = disks ? ids + room : NULL;
    l->room = room;
    return true;
}

void leases_forget(struct pfx *c)
{
    struct leases *ls = &c->leases;
    for (uint32_t i = 0; i < ls->n_slots; i++) {
        if (!ls->slot[i])
            continue;
        free(ls->slot[i]->pages);
        free(ls->slot[i]);
    }
    while (ls->free) {
        struct lease *l = ls->free;
        ls->free = l->next_free;
        free(l->pages);
        free(l);
    }
    free(ls->slot);
    *ls = (struct leases){0};
}
