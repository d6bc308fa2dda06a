/*
 * treap.h - a binary search tree whose shape follows from random priorities (a hash of the
 * element's number), so no insertion order is a bad one and a thousand or a million elements cost
 * 20 to 40 steps.
 *
 * Elements are numbers, 0 is none; where their links are, how they compare and what they know of
 * their subtree is the user's. The links down may be in shared memory: a change of the tree stands
 * between the begin and end of whatever version its readers check. The way up is the daemon's own.
 *
 * `struct treap` is a constant of the file that uses it, so nothing here is called through a
 * pointer.
 */
#ifndef DAEMON_TREAP_H
#define DAEMON_TREAP_H

#include "daemon/index_private.h"

#define TREAP static inline __attribute__((always_inline))

struct treap {
    uint32_t *(*left)(const struct index *ix, uint32_t id);
    uint32_t *(*right)(const struct index *ix, uint32_t id);
    uint32_t *(*up)(const struct index *ix, uint32_t id); /* 0: it is the top */
    int (*compare)(const struct index *ix, uint32_t a, uint32_t b);
    bool (*pull)(struct index *ix,
                 uint32_t id); /* what it knows of its subtree; true: it changed */
};

static inline uint64_t treap_priority(const struct index *ix, uint32_t id)
{
    uint64_t x = id ^ ix->view.params.hash_seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

TREAP void treap_pull_up(const struct treap *t, struct index *ix, uint32_t id)
{
    while (id && t->pull(ix, id))
        id = *t->up(ix, id);
}

/* Where the link to `id` stands: in its treap parent, or at the top. */
TREAP uint32_t *treap_link(const struct treap *t, const struct index *ix, uint32_t *top,
                           uint32_t id)
{
    uint32_t up = *t->up(ix, id);
    if (!up)
        return top;
    return *t->left(ix, up) == id ? t->left(ix, up) : t->right(ix, up);
}

/* Turn `id` and its treap parent around: id goes up, order stays. */
TREAP void treap_rotate_up(const struct treap *t, struct index *ix, uint32_t *top, uint32_t id)
{
    uint32_t down = *t->up(ix, id);
    uint32_t *above = treap_link(t, ix, top, down);
    bool left = *t->left(ix, down) == id;
    uint32_t *outer = left ? t->left(ix, down) : t->right(ix, down);
    uint32_t *inner = left ? t->right(ix, id) : t->left(ix, id);
    uint32_t moved = *inner;
    shm_store(outer, moved);
    shm_store(inner, down);
    if (moved)
        *t->up(ix, moved) = down;
    shm_store(above, id);
    *t->up(ix, id) = *t->up(ix, down);
    *t->up(ix, down) = id;
    t->pull(ix, down);
    t->pull(ix, id);
}

/* Its links are 0. */
TREAP void treap_add(const struct treap *t, struct index *ix, uint32_t *top, uint32_t id)
{
    uint32_t *link = top, up = 0;
    while (*link) {
        up = *link;
        link = t->compare(ix, id, up) < 0 ? t->left(ix, up) : t->right(ix, up);
    }
    shm_store(link, id);
    *t->up(ix, id) = up;
    t->pull(ix, id);
    treap_pull_up(t, ix, up);
    while (*t->up(ix, id) && treap_priority(ix, *t->up(ix, id)) < treap_priority(ix, id))
        treap_rotate_up(t, ix, top, id);
}

TREAP void treap_remove(const struct treap *t, struct index *ix, uint32_t *top, uint32_t id)
{
    uint32_t l, r;
    while ((l = *t->left(ix, id)) && (r = *t->right(ix, id)))
        treap_rotate_up(t, ix, top, treap_priority(ix, l) > treap_priority(ix, r) ? l : r);
    uint32_t rest = l ? l : *t->right(ix, id), up = *t->up(ix, id);
    shm_store(treap_link(t, ix, top, id), rest);
    if (rest)
        *t->up(ix, rest) = up;
    treap_pull_up(t, ix, up);
    shm_store(t->left(ix, id), 0);
    shm_store(t->right(ix, id), 0);
    *t->up(ix, id) = 0;
}

TREAP uint32_t treap_first(const struct treap *t, const struct index *ix, uint32_t top)
{
    while (top && *t->left(ix, top))
        top = *t->left(ix, top);
    return top;
}

TREAP uint32_t treap_next(const struct treap *t, const struct index *ix, uint32_t id)
{
    if (*t->right(ix, id))
        return treap_first(t, ix, *t->right(ix, id));
    uint32_t up = *t->up(ix, id);
    while (up && *t->right(ix, up) == id) {
        id = up;
        up = *t->up(ix, id);
    }
    return up;
}

#endif
