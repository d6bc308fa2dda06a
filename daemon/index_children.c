/*
 * The children of a node, in the order of their first block's tokens, as a treap.
 *
 * Why ordered: among keys in lexicographic order, the one that shares most leading tokens with a
 * given text stands beside the place where the text would stand; and all that share its first L
 * tokens stand together. So the best tail is two descents: find L, then the lowest block id in
 * that range, which every subtree keeps ready (min_page, min_node).
 *
 * A key is the first block's tokens up to its first own extra (index_key_length); a shorter key
 * stands before a longer one that it begins; equal keys are ordered by node id.
 *
 * left and right are in the shared nodes: pfx_peek_full walks them under the parent's version.
 * The way up is private.
 */
#include "daemon/treap.h"
#include "shm/tokens.h"

#include <assert.h>

struct key {
    const uint32_t *tokens;
    uint32_t n;
};

static struct key key_of(const struct index *ix, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    uint32_t length = n->n_partial ? n->n_partial : ix->view.params.block_tokens;
    length = index_key_length(&ix->view, n->flags & NODE_EXTRAS, n->extent, n->start, length);
    return (struct key){index_tokens_at(&ix->view, n->extent), length};
}

TREAP int compare(const struct index *ix, uint32_t a, uint32_t b)
{
    struct key x = key_of(ix, a), y = key_of(ix, b);
    uint32_t n = x.n < y.n ? x.n : y.n;
    size_t same = tokens_match(x.tokens, y.tokens, n);
    if (same < n)
        return x.tokens[same] < y.tokens[same] ? -1 : 1;
    if (x.n != y.n)
        return x.n < y.n ? -1 : 1;
    return a < b ? -1 : a > b;
}

static uint32_t first_page(const struct index *ix, uint32_t id)
{
    return *pages_at(ix, node_at(ix, id)->extent);
}

/* Recompute the subtree minimum of `id`; true if it changed. */
TREAP bool pull(struct index *ix, uint32_t id)
{
    struct node_private *p = priv_at(ix, id);
    const struct index_node *n = node_at(ix, id);
    uint32_t page = first_page(ix, id), node = id;
    const uint32_t side[2] = {n->left, n->right};
    for (int i = 0; i < 2; i++)
        if (side[i] && priv_at(ix, side[i])->min_page < page) {
            page = priv_at(ix, side[i])->min_page;
            node = priv_at(ix, side[i])->min_node;
        }
    bool changed = p->min_page != page || p->min_node != node;
    p->min_page = page;
    p->min_node = node;
    return changed;
}

TREAP uint32_t *left_of(const struct index *ix, uint32_t id)
{
    return &node_at(ix, id)->left;
}

TREAP uint32_t *right_of(const struct index *ix, uint32_t id)
{
    return &node_at(ix, id)->right;
}

TREAP uint32_t *up_of(const struct index *ix, uint32_t id)
{
    return &priv_at(ix, id)->up;
}

static const struct treap by_tokens = {left_of, right_of, up_of, compare, pull};

void children_add(struct index *ix, uint32_t parent, uint32_t id)
{
    treap_add(&by_tokens, ix, &node_at(ix, parent)->children, id);
    priv_at(ix, parent)->n_children++;
}

void children_remove(struct index *ix, uint32_t parent, uint32_t id)
{
    treap_remove(&by_tokens, ix, &node_at(ix, parent)->children, id);
    priv_at(ix, parent)->n_children--;
}

void children_page(struct index *ix, uint32_t id)
{
    treap_pull_up(&by_tokens, ix, id);
}

uint32_t children_first(const struct index *ix, uint32_t parent)
{
    return treap_first(&by_tokens, ix, node_at(ix, parent)->children);
}

uint32_t children_next(const struct index *ix, uint32_t id)
{
    return treap_next(&by_tokens, ix, id);
}

/* ---- tails ---------------------------------------------------------------------- */

/* -1: the key stands before every key that begins with text[0..n); 1: after them; 0: begins so.
 * *shared: its leading tokens that agree. */
static int key_side(const struct index *ix, uint32_t id, const uint32_t *text, uint32_t n,
                    uint32_t *shared)
{
    struct key k = key_of(ix, id);
    uint32_t m = k.n < n ? k.n : n;
    *shared = (uint32_t)tokens_match(k.tokens, text, m);
    if (*shared < m)
        return k.tokens[*shared] < text[*shared] ? -1 : 1;
    return k.n < n ? -1 : 0;
}

static uint32_t longest_shared(const struct index *ix, uint32_t id, const uint32_t *rest,
                               uint32_t n)
{
    uint32_t best = 0;
    while (id) {
        uint32_t shared;
        int side = key_side(ix, id, rest, n, &shared);
        if (shared > best)
            best = shared;
        id = side < 0 ? node_at(ix, id)->right : node_at(ix, id)->left;
    }
    return best;
}

static void take_lower(uint32_t page, uint32_t node, uint32_t *best_page, uint32_t *best)
{
    if (page < *best_page) {
        *best_page = page;
        *best = node;
    }
}

/* The child with the lowest first page among those whose key begins with text[0..n). */
static uint32_t lowest_in_range(const struct index *ix, uint32_t id, const uint32_t *text,
                                uint32_t n)
{
    uint32_t shared, page = NO_PAGE, best = 0;
    int side;
    while (id && (side = key_side(ix, id, text, n, &shared)) != 0)
        id = side < 0 ? node_at(ix, id)->right : node_at(ix, id)->left;
    if (!id)
        return 0;
    take_lower(first_page(ix, id), id, &page, &best);
    /* Left of the node where the range divides: whatever is right of a hit is in the range. */
    for (uint32_t l = node_at(ix, id)->left; l;) {
        if (key_side(ix, l, text, n, &shared) != 0) {
            l = node_at(ix, l)->right;
            continue;
        }
        uint32_t all = node_at(ix, l)->right;
        take_lower(first_page(ix, l), l, &page, &best);
        if (all)
            take_lower(priv_at(ix, all)->min_page, priv_at(ix, all)->min_node, &page, &best);
        l = node_at(ix, l)->left;
    }
    for (uint32_t r = node_at(ix, id)->right; r;) {
        if (key_side(ix, r, text, n, &shared) != 0) {
            r = node_at(ix, r)->left;
            continue;
        }
        uint32_t all = node_at(ix, r)->left;
        take_lower(first_page(ix, r), r, &page, &best);
        if (all)
            take_lower(priv_at(ix, all)->min_page, priv_at(ix, all)->min_node, &page, &best);
        r = node_at(ix, r)->right;
    }
    return best;
}

bool index_tail(const struct index *ix, struct place where, const uint32_t *rest, uint32_t n_rest,
                struct place *tail, uint32_t *block, uint32_t *n_tokens)
{
    const struct index_node *n = node_at(ix, where.node);
    uint32_t bt = ix->view.params.block_tokens, id = where.node, unit;
    if (where.depth < n->start + n->n_blocks) { /* the next block of the same run */
        unit = n->extent + (where.depth - n->start);
        uint32_t length =
            index_key_length(&ix->view, n->flags & NODE_EXTRAS, unit, where.depth, bt);
        *n_tokens = (uint32_t)tokens_match(index_tokens_at(&ix->view, unit), rest,
                                           length < n_rest ? length : n_rest);
    } else {
        *n_tokens = longest_shared(ix, n->children, rest, n_rest);
        id = 0; /* those on disk only may share more than any other */
        while (*n_tokens && !(id = lowest_in_range(ix, n->children, rest, *n_tokens)))
            --*n_tokens;
        unit = id ? node_at(ix, id)->extent : 0;
    }
    if (*n_tokens == 0 || id == 0 || *pages_at(ix, unit) == NO_PAGE)
        return false;
    *tail = (struct place){node_at(ix, id)->identity, id, where.depth + 1};
    *block = *pages_at(ix, unit);
    return true;
}

/* ---- audit ----------------------------------------------------------------------- */

unsigned children_audit(const struct index *ix, uint32_t parent, audit_find *find, void *arg)
{
    unsigned found = 0;
    uint32_t count = 0, before = 0;
    for (uint32_t id = children_first(ix, parent); id; id = children_next(ix, id)) {
        const struct index_node *n = node_at(ix, id);
        const struct node_private *p = priv_at(ix, id);
        if (before && compare(ix, before, id) >= 0) {
            find(arg, "children %u and %u of node %u are out of order", before, id, parent);
            found++;
        }
        if (p->up && treap_priority(ix, p->up) < treap_priority(ix, id)) {
            find(arg, "child %u of node %u stands below a lesser priority", id, parent);
            found++;
        }
        uint32_t low = first_page(ix, id);
        const uint32_t side[2] = {n->left, n->right};
        for (int i = 0; i < 2; i++) {
            if (side[i] && priv_at(ix, side[i])->up != id) {
                find(arg, "child %u of node %u does not know who is above it", side[i], parent);
                found++;
            }
            if (side[i] && priv_at(ix, side[i])->min_page < low)
                low = priv_at(ix, side[i])->min_page;
        }
        if (p->min_page != low || (low != NO_PAGE && first_page(ix, p->min_node) != low)) {
            find(arg, "child %u of node %u keeps a wrong lowest page", id, parent);
            found++;
        }
        before = id;
        count++;
    }
    if (count != priv_at(ix, parent)->n_children) {
        find(arg, "node %u counts %u children and has %u", parent, priv_at(ix, parent)->n_children,
             count);
        found++;
    }
    return found;
}
