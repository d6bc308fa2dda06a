/*
 * Which spaces this connection has open. The daemon counts too; this copy serves the calls that
 * do not involve it (pfx_peek). Entries stay when a space is closed: there are never more than
 * the daemon has slots for spaces.
 */
#include "client/client.h"

#include <stdlib.h>

static struct space_use *find(const struct space_uses *s, uint32_t slot)
{
    uint32_t at = slot * 0x9e3779b1u & (s->n_slots - 1);
    while (s->slot[at].used && (uint32_t)s->slot[at].number != slot)
        at = (at + 1) & (s->n_slots - 1);
    return &s->slot[at];
}

static bool grow(struct space_uses *s)
{
    struct space_uses wider = {.n_slots = s->n_slots ? 2 * s->n_slots : 16, .n_used = s->n_used};
    wider.slot = calloc(wider.n_slots, sizeof *wider.slot);
    if (!wider.slot)
        return false;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].used)
            *find(&wider, (uint32_t)s->slot[i].number) = s->slot[i];
    free(s->slot);
    *s = wider;
    return true;
}

void space_opened(struct pfx *c, uint64_t number)
{
    struct space_uses *s = &c->spaces;
    if (2 * (s->n_used + 1) > s->n_slots && !grow(s))
        return; /* no memory: pfx_peek will say PFX_ENOENT */
    struct space_use *use = find(s, (uint32_t)number);
    if (!use->used)
        s->n_used++;
    if (!use->used || use->number != number) /* the slot is another space's now */
        *use = (struct space_use){.number = number, .used = true};
    use->opens++;
}

void space_closed(struct pfx *c, uint64_t number)
{
    struct space_use *use = c->spaces.n_used ? find(&c->spaces, (uint32_t)number) : NULL;
    if (use && use->used && use->number == number && use->opens)
        use->opens--;
}

bool space_is_open(const struct pfx *c, uint64_t number)
{
    if (number == 0)
        return true;
    const struct space_use *use = c->spaces.n_used ? find(&c->spaces, (uint32_t)number) : NULL;
    return use && use->used && use->number == number && use->opens;
}
