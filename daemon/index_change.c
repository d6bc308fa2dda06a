/*
 * Every change of the tree's shape but the removals (index_remove.c).
 *
 *   append    a leaf grows in its extent, or in a larger one; identity stays
 *   child     new blocks hang below a node that cannot grow
 *   split     at k:  P -- L[0..n)   becomes   P -- U[0..k) -- L[k..n)
 *             U is new and takes the front of the extent; L keeps id, identity and children. Holds
 *             and snapshots that end in the front move to U. No token moves, nothing is stamped.
 *   merge     U with one child C, and nobody's hold ends in U:  P -- U -- C  becomes  P -- C, which
 *             keeps id and identity and now starts where U did (the reverse of split)
 *
 * A reader may stand anywhere meanwhile; who may believe what is argued in shm/index_read.c. Each
 * change begins every node that it touches before the first store and ends them after the last.
 *
 * None of these can fail: there is always a node and a unit (index_plan, index_extent.c). When only
 * short extents are left, a run becomes several nodes.
 */
#include "daemon/index_private.h"
#include "shm/tokens.h"

#include <assert.h>
#include <string.h>

static uint32_t *tokens_at(const struct index *ix, uint32_t unit)
{
    return (uint32_t *)(uintptr_t)index_tokens_at(&ix->view, unit);
}

/* ---- filling and moving units ------------------------------------------------------ */

/* Where blocks come from: the query's, from `depth` on, with their pages, or else with their copies
 * on disk. */
struct source {
    const struct index_query *query;
    const uint32_t *pages, *disks;
    uint32_t depth;
};

static void units_fill(struct index *ix, uint32_t unit, uint32_t n, bool extras,
                       const struct source *from)
{
    uint64_t bt = ix->view.params.block_tokens;
    tokens_store(tokens_at(ix, unit), index_query_at(&ix->view, from->query, from->depth), n * bt);
    for (uint32_t i = 0; i < n; i++) {
        if (from->pages)
            pool_publish(ix->pool, from->pages[i]);
        shm_store(pages_at(ix, unit + i), from->pages ? from->pages[i] : NO_PAGE);
        shm_store(disks_at(ix, unit + i), from->pages ? NO_DISK : from->disks[i]);
        if (extras)
            extras_store(ix, unit + i, from->depth + i, from->query);
        if (ix->admit > 1) /* what is on disk was once admitted */
            ix->seen[unit + i] = from->pages ? 1 : (uint8_t)ix->admit;
    }
    *(from->pages ? &ix->cached : &ix->on_disk) += n;
}

/* So many of a node's blocks are new, where they come from. */
static void count_filled(struct index *ix, uint32_t id, uint32_t n, const struct source *from)
{
    if (!ix->tiers)
        return;
    struct node_tiers *t = &ix->tiers[id];
    uint8_t *there = from->pages ? &t->device : &t->disk;
    *there = (uint8_t)(*there + n);
    if (!from->pages)
        t->seen = t->disk;
}

/* Copy blocks to other units, with all that is known of them; `extras`: the new place needs
 * extra heads, `stored`: the old one has them. The old units are given back by the caller. */
static void units_move(struct index *ix, uint32_t to, uint32_t from, uint32_t n, bool extras,
                       bool stored)
{
    uint64_t bt = ix->view.params.block_tokens;
    tokens_store(tokens_at(ix, to), tokens_at(ix, from), n * bt);
    tokens_store(pages_at(ix, to), pages_at(ix, from), n);
    tokens_store(disks_at(ix, to), disks_at(ix, from), n);
    for (uint32_t i = 0; i < n; i++) {
        ix->units[to + i].last_use = ix->units[from + i].last_use;
        ix->units[to + i].ends = ix->units[from + i].ends;
        ix->units[from + i].ends = 0;
        if (ix->tiers) {
            ix->io_ends[to + i] = ix->io_ends[from + i];
            ix->io_ends[from + i] = 0;
        }
        if (ix->admit > 1)
            ix->seen[to + i] = ix->seen[from + i];
        if (extras)
            shm_store(extra_head_at(ix, to + i), stored ? *extra_head_at(ix, from + i) : 0);
        if (stored)
            shm_store(extra_head_at(ix, from + i), 0);
    }
}

static bool query_has_extras(const struct index *ix, const struct source *from, uint32_t n)
{
    uint64_t bt = ix->view.params.block_tokens, low = from->depth * bt, high = low + n * bt;
    const struct index_query *q = from->query;
    for (size_t i = 0; i < q->n_extras && q->extras[i].at < high; i++)
        if (q->extras[i].at + q->extras[i].len > low && q->extras[i].at < q->n_tokens)
            return true;
    return false;
}

/* ---- growing ------------------------------------------------------------------------ */

static void child_link(struct index *ix, uint32_t parent, uint32_t id)
{
    struct tally before = node_tally(ix, parent);
    node_begin(ix, parent);
    children_add(ix, parent, id);
    bucket_add(ix, id);
    node_end(ix, parent);
    ix->n_nodes++;
    struct tally child = node_tally(ix, id);
    ix->clean += child.clean;
    child_count(ix, parent, child, true);
    node_settle(ix, parent, before);
    rank_node(ix, id);
}

/* A node, still begun and without blocks, below `parent`. */
static uint32_t child_begin(struct index *ix, uint32_t parent, uint32_t want, uint32_t *got)
{
    uint32_t id = node_new(ix);
    struct index_node *n = node_at(ix, id);
    const struct index_node *p = node_at(ix, parent);
    shm_store(&n->parent, parent);
    shm_store(&n->parent_identity, p->identity);
    shm_store(&n->start, p->start + p->n_blocks);
    shm_store(&n->root, p->root);
    shm_store(&n->space, p->space);
    shm_store(&n->extent, extent_take(ix, want, got));
    priv_at(ix, id)->cap = (uint8_t)*got;
    return id;
}

/* Up to n blocks as a new leaf below parent; returns its id, *made how many. */
static uint32_t child_new(struct index *ix, uint32_t parent, uint32_t n, const struct source *from,
                          uint32_t *made)
{
    uint32_t id = child_begin(ix, parent, n < NODE_BLOCKS ? n : NODE_BLOCKS, made);
    struct index_node *node = node_at(ix, id);
    bool extras = query_has_extras(ix, from, *made);
    if (extras)
        shm_store(&node->flags, NODE_EXTRAS);
    units_fill(ix, node->extent, *made, extras, from);
    shm_store(&node->n_blocks, (uint16_t)*made);
    count_filled(ix, id, *made, from);
    node_end(ix, id);
    child_link(ix, parent, id);
    return id;
}

/* Room for more blocks in a leaf: a larger extent if there is one. Keeps CAP. */
static void leaf_widen(struct index *ix, uint32_t id, uint32_t want)
{
    struct index_node *n = node_at(ix, id);
    struct node_private *p = priv_at(ix, id);
    uint32_t got, cap = n->n_blocks + want;
    if (cap < 2u * n->n_blocks)
        cap = 2u * n->n_blocks;
    if (cap > NODE_BLOCKS)
        cap = NODE_BLOCKS;
    uint32_t extent = extent_take(ix, cap, &got);
    if (got <= p->cap) {
        extent_give(ix, extent, got);
        return;
    }
    bool extras = n->flags & NODE_EXTRAS;
    node_begin(ix, id);
    units_move(ix, extent, n->extent, n->n_blocks, extras, extras);
    uint32_t old = n->extent;
    shm_store(&n->extent, extent);
    node_end(ix, id);
    extent_give(ix, old, p->cap);
    p->cap = (uint8_t)got;
}

/* Blocks at the end of a leaf, as many as fit; returns how many. */
static uint32_t leaf_append(struct index *ix, uint32_t id, uint32_t n, const struct source *from)
{
    struct index_node *node = node_at(ix, id);
    struct node_private *p = priv_at(ix, id);
    if (node_is_root(node) || p->n_children || node->n_partial || node->n_blocks == NODE_BLOCKS)
        return 0;
    uint32_t want = NODE_BLOCKS - node->n_blocks;
    if (want > n)
        want = n;
    if (want > (uint32_t)p->cap - node->n_blocks)
        leaf_widen(ix, id, want);
    if (want > (uint32_t)p->cap - node->n_blocks)
        want = (uint32_t)p->cap - node->n_blocks;
    if (want == 0)
        return 0;
    bool stored = node->flags & NODE_EXTRAS, extras = stored || query_has_extras(ix, from, want);
    struct tally before = node_tally(ix, id);
    node_begin(ix, id);
    if (extras && !stored) {
        for (uint32_t i = 0; i < node->n_blocks; i++)
            shm_store(extra_head_at(ix, node->extent + i), 0);
        shm_store(&node->flags, node->flags | NODE_EXTRAS);
    }
    units_fill(ix, node->extent + node->n_blocks, want, extras, from);
    shm_store(&node->n_blocks, (uint16_t)(node->n_blocks + want));
    count_filled(ix, id, want, from);
    node_end(ix, id);
    node_settle(ix, id, before);
    return want;
}

/* ---- split and merge ------------------------------------------------------------------ */

/* Blocks of the run before and after the border, where they are. */
static void split_tiers(struct index *ix, uint32_t upper, uint32_t lower)
{
    if (!ix->tiers)
        return;
    uint8_t k = (uint8_t)node_at(ix, upper)->n_blocks;
    struct node_tiers *u = &ix->tiers[upper], *l = &ix->tiers[lower];
    u->device = l->device < k ? l->device : k;
    u->disk = l->disk < k ? l->disk : k;
    u->seen = l->seen < k ? l->seen : k;
    l->device = (uint8_t)(l->device - u->device);
    l->disk = (uint8_t)(l->disk - u->disk);
    l->seen = (uint8_t)(l->seen - u->seen);
    uint8_t writing = l->writing; /* what is on its way, on both sides of the border */
    u->writing = writing < k ? writing : u->disk < k ? k : 0;
    l->writing = writing > k ? (uint8_t)(writing - k) : 0;
}

/* Holds that end in the front go to the upper part; each part's deepest end is counted anew. */
static void split_holds(struct index *ix, uint32_t upper, uint32_t lower)
{
    uint32_t border = node_at(ix, lower)->start;
    struct hold *after;
    for (struct hold *h = priv_at(ix, lower)->holds; h; h = after) {
        after = h->next;
        if (h->where.depth > border)
            continue;
        hold_unlink(ix, h);
        h->where.node = upper;
        h->where.identity = node_at(ix, upper)->identity;
        hold_link(ix, h);
    }
    const uint32_t part[2] = {upper, lower};
    for (int i = 0; i < 2; i++) {
        struct node_private *p = priv_at(ix, part[i]);
        const struct index_node *n = node_at(ix, part[i]);
        p->max_end = (uint8_t)n->n_blocks;
        hold_deepest(ix, part[i], false);
        if (!ix->tiers)
            continue;
        ix->tiers[part[i]].io_end = (uint8_t)n->n_blocks;
        hold_deepest(ix, part[i], true);
    }
    child_count(ix, upper, node_tally(ix, lower), true);
}

/* Cut node `lower` before its block k (0 < k < n_blocks); returns the new upper part. */
static uint32_t node_split(struct index *ix, uint32_t lower, uint32_t k)
{
    struct index_node *l = node_at(ix, lower);
    uint32_t parent = l->parent;
    uint32_t upper = node_new(ix);
    struct index_node *u = node_at(ix, upper);
    node_begin(ix, parent);
    node_begin(ix, lower);

    bucket_remove(ix, lower);
    children_remove(ix, parent, lower);

    shm_store(&u->parent, parent);
    shm_store(&u->parent_identity, l->parent_identity);
    shm_store(&u->start, l->start);
    shm_store(&u->root, l->root);
    shm_store(&u->space, l->space);
    shm_store(&u->extent, l->extent);
    shm_store(&u->n_blocks, (uint16_t)k);
    shm_store(&u->flags, l->flags & NODE_EXTRAS);
    priv_at(ix, upper)->cap = (uint8_t)k;

    shm_store(&l->parent, upper);
    shm_store(&l->parent_identity, u->identity);
    shm_store(&l->start, l->start + k);
    shm_store(&l->extent, l->extent + k);
    shm_store(&l->n_blocks, (uint16_t)(l->n_blocks - k));
    uint32_t cap = priv_at(ix, lower)->cap - k, most = 2u * l->n_blocks;
    if (cap > most) {
        extent_give(ix, l->extent + most, cap - most);
        cap = most;
    }
    priv_at(ix, lower)->cap = (uint8_t)cap;

    children_add(ix, parent, upper);
    bucket_add(ix, upper);
    children_add(ix, upper, lower);
    bucket_add(ix, lower);
    split_tiers(ix, upper, lower);
    split_holds(ix, upper, lower);
    hung_split(ix, upper, lower);

    node_end(ix, lower);
    node_end(ix, upper);
    node_end(ix, parent);
    ix->n_nodes++;
    rank_node(ix, upper);
    rank_node(ix, lower);
    return upper;
}

static bool mergeable(const struct index *ix, uint32_t upper)
{
    const struct index_node *u = node_at(ix, upper);
    const struct node_private *p = priv_at(ix, upper);
    if (node_is_root(u) || p->n_children != 1 || p->holds || node_condemned(ix, upper))
        return false;
    const struct index_node *c = node_at(ix, u->children);
    return !c->n_partial && u->n_blocks + c->n_blocks <= NODE_BLOCKS;
}

void node_merge(struct index *ix, uint32_t upper)
{
    if (!mergeable(ix, upper))
        return;
    struct index_node *u = node_at(ix, upper);
    uint32_t lower = u->children, parent = u->parent;
    struct index_node *l = node_at(ix, lower);
    uint32_t nu = u->n_blocks, nl = l->n_blocks, got;
    uint32_t extent = extent_take(ix, nu + nl, &got);
    if (got < nu + nl) {
        extent_give(ix, extent, got);
        return;
    }
    node_begin(ix, parent);
    node_begin(ix, upper);
    node_begin(ix, lower);
    bucket_remove(ix, lower);
    bucket_remove(ix, upper);
    children_remove(ix, upper, lower);
    children_remove(ix, parent, upper);

    bool us = u->flags & NODE_EXTRAS, ls = l->flags & NODE_EXTRAS;
    units_move(ix, extent, u->extent, nu, us || ls, us);
    units_move(ix, extent + nu, l->extent, nl, us || ls, ls);
    extent_give(ix, u->extent, priv_at(ix, upper)->cap);
    extent_give(ix, l->extent, priv_at(ix, lower)->cap);

    shm_store(&l->extent, extent);
    shm_store(&l->n_blocks, (uint16_t)(nu + nl));
    shm_store(&l->start, u->start);
    shm_store(&l->parent, parent);
    shm_store(&l->parent_identity, u->parent_identity);
    shm_store(&l->flags, us || ls ? NODE_EXTRAS : 0);
    struct node_private *p = priv_at(ix, lower);
    p->cap = (uint8_t)(nu + nl);
    if (p->max_end)
        p->max_end = (uint8_t)(p->max_end + nu);
    if (ix->tiers) { /* what is in the lower part comes after all of the upper */
        struct node_tiers *t = &ix->tiers[lower], *ut = &ix->tiers[upper];
        t->device = (uint8_t)(t->device + ut->device);
        t->disk = (uint8_t)(t->disk + ut->disk);
        t->seen = (uint8_t)(t->seen + ut->seen);
        t->io_end = t->io_end ? (uint8_t)(t->io_end + nu) : 0;
        t->writing = t->writing ? (uint8_t)(t->writing + nu) : ut->writing;
        t->unwritable = 0; /* what was the upper part may be */
    }

    children_add(ix, parent, lower);
    bucket_add(ix, lower);
    hung_merge(ix, upper, lower);
    shm_store(&u->n_blocks, 0); /* until it is freed: what its units have lost was in its run */
    node_end(ix, lower);
    node_end(ix, upper);
    node_end(ix, parent);
    rank_remove(ix, upper);
    node_free(ix, upper);
    ix->n_nodes--;
    rank_node(ix, lower);
}

/* ---- insert ---------------------------------------------------------------------------- */

/* Make the place the end of a node, so that something can hang there. */
static void place_end(struct index *ix, struct place *where)
{
    const struct index_node *n = node_at(ix, where->node);
    if (where->depth < n->start + n->n_blocks) {
        where->node = node_split(ix, where->node, where->depth - n->start);
        where->identity = node_at(ix, where->node)->identity;
    }
}

/* Blocks that follow the place, which is the end of what is there. */
static void grow(struct index *ix, struct place *where, const struct source *all, uint32_t n)
{
    if (n)
        place_end(ix, where);
    for (uint32_t done = 0; done < n;) {
        struct source from = *all;
        from.depth += done;
        from.pages = all->pages ? all->pages + done : NULL;
        from.disks = all->disks ? all->disks + done : NULL;
        uint32_t made = leaf_append(ix, where->node, n - done, &from);
        if (made == 0)
            where->node = child_new(ix, where->node, n - done, &from, &made);
        done += made;
    }
    *where = (struct place){node_at(ix, where->node)->identity, where->node, all->depth + n};
}

uint32_t index_insert(struct index *ix, const struct index_query *query, const uint32_t *pages,
                      uint32_t n, uint8_t *taken, struct place *where)
{
    uint32_t first = where->depth;
    index_match(ix, query, first + n, where);
    uint32_t known = where->depth - first;
    memset(taken, TAKEN_NOT, known);
    memset(taken + known, TAKEN_NEW, n - known);
    if (ix->tiers && known)
        pages_adopt(ix, *where, first, pages, taken);
    seen_again(ix, *where, first);
    const struct source rest = {.query = query, .pages = pages + known, .depth = first + known};
    grow(ix, where, &rest, n - known);
    return n - known;
}

void index_restore(struct index *ix, const struct index_query *query, const uint32_t *disks,
                   uint32_t n, struct place *where)
{
    const struct source all = {.query = query, .disks = disks, .depth = where->depth};
    grow(ix, where, &all, n);
}

bool index_insert_partial(struct index *ix, const struct index_query *query, struct place where,
                          uint32_t n_tokens, uint32_t page, struct place *partial)
{
    const uint32_t *rest = index_query_at(&ix->view, query, where.depth);
    uint32_t block, shared;
    if (index_tail(ix, where, rest, n_tokens, partial, &block, &shared) && shared == n_tokens)
        return false;
    place_end(ix, &where);
    uint32_t got, id = child_begin(ix, where.node, 1, &got);
    struct index_node *n = node_at(ix, id);
    tokens_store(tokens_at(ix, n->extent), rest, n_tokens);
    pool_publish(ix->pool, page);
    shm_store(pages_at(ix, n->extent), page);
    shm_store(disks_at(ix, n->extent), NO_DISK);
    shm_store(&n->n_blocks, 1);
    shm_store(&n->n_partial, (uint16_t)n_tokens);
    ix->cached++;
    if (ix->tiers)
        ix->tiers[id].device = 1;
    node_end(ix, id);
    child_link(ix, where.node, id);
    *partial = (struct place){n->identity, id, n->start + 1};
    return true;
}
