/*
 * heap.h - a pairing heap whose links live in its elements: put and merge are O(1), taking one out
 * is O(log n) amortized. The lowest is on top.
 *
 *      top -> child -> next -> next          each of a node's children is a heap of its own;
 *               |                            `prev` of a first child is its parent
 *             child -> next
 */
#ifndef DAEMON_HEAP_H
#define DAEMON_HEAP_H

#include <stdbool.h>
#include <stddef.h>

struct heap_node {
    struct heap_node *child, *next, *prev;
    bool in;
};

struct heap {
    struct heap_node *top;
    bool (*before)(const struct heap_node *a, const struct heap_node *b); /* a strict order */
};

static inline struct heap_node *heap_join(const struct heap *h, struct heap_node *a,
                                          struct heap_node *b)
{
    if (!a || !b)
        return a ? a : b;
    if (h->before(b, a)) {
        struct heap_node *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    if (b->next)
        b->next->prev = b;
    b->prev = a;
    a->child = b;
    return a;
}

/* Join siblings in pairs from the first on, then the pairs from the last back. */
static inline struct heap_node *heap_pair(const struct heap *h, struct heap_node *first)
{
    struct heap_node *pairs = NULL, *all = NULL;
    while (first) {
        struct heap_node *a = first, *b = a->next, *rest = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b)
            b->next = b->prev = NULL;
        a = heap_join(h, a, b);
        a->next = pairs;
        pairs = a;
        first = rest;
    }
    while (pairs) {
        struct heap_node *a = pairs;
        pairs = a->next;
        a->next = NULL;
        all = heap_join(h, all, a);
    }
    return all;
}

static inline void heap_put(struct heap *h, struct heap_node *n)
{
    *n = (struct heap_node){.in = true};
    h->top = heap_join(h, h->top, n);
}

static inline void heap_remove(struct heap *h, struct heap_node *n)
{
    struct heap_node *below = heap_pair(h, n->child);
    if (h->top == n) {
        h->top = below;
    } else {
        if (n->prev->child == n)
            n->prev->child = n->next;
        else
            n->prev->next = n->next;
        if (n->next)
            n->next->prev = n->prev;
        h->top = heap_join(h, h->top, below);
    }
    *n = (struct heap_node){0};
}

#endif
