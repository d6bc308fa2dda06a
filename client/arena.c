/*
 * Room in an arena: live spans in a list by address, next fit. Calls end in any order (those that
 * wait for the disk end late), so a plain ring of bytes would be stuck behind the oldest. With one
 * call at a time every span starts at 0, in lines that are still in both caches.
 */
#include "client/client.h"

void arena_init(struct arena *a, uint32_t bytes)
{
    a->bytes = bytes;
    a->rover = NULL;
    TAILQ_INIT(&a->spans);
}

bool arena_claim(struct arena *a, struct span *s, uint32_t bytes)
{
    bytes = (bytes + 7) & ~7u;
    *s = (struct span){.bytes = 0};
    if (bytes == 0)
        return true;
    struct span *at = a->rover; /* the gap after this one; NULL: the gap before the first */
    do {
        struct span *next = at ? TAILQ_NEXT(at, link) : TAILQ_FIRST(&a->spans);
        uint32_t from = at ? at->from + at->bytes : 0;
        uint32_t to = next ? next->from : a->bytes;
        if (to - from >= bytes) {
            s->from = from;
            s->bytes = bytes;
            if (at)
                TAILQ_INSERT_AFTER(&a->spans, at, s, link);
            else
                TAILQ_INSERT_HEAD(&a->spans, s, link);
            a->rover = s;
            return true;
        }
        at = next;
    } while (at != a->rover);
    return false;
}

void arena_give(struct arena *a, struct span *s)
{
    if (s->bytes == 0)
        return;
    if (a->rover == s)
        a->rover = TAILQ_PREV(s, span_list, link);
    TAILQ_REMOVE(&a->spans, s, link);
    s->bytes = 0;
}
