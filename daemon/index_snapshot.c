/*
 * Snapshots that hang on nodes. An entry hangs on the node that covers its last whole block:
 *
 *      root ------ A: blocks 0 1 2 ------ B: blocks 3 4
 *       |          |                      |
 *       depth < 1  1 .. 3 blocks          4, 5 blocks, and less than one more (the residue)
 *
 * so it moves when A is split or merged, and leaves when its last whole block does. Each node's
 * entries are a treap (shm/layout.h says in what order, shm/snapshot_read.c why); what an entry
 * knows of its subtree is the states in it, for readers, and the range of depths, so that those on
 * one side of a border are found without looking at the others.
 *
 * Every change stands between the begin and end of the node; what has left is told after that,
 * through a list in `up`.
 */
#include "daemon/treap.h"
#include "shm/snapshot_read.h"
#include "shm/tokens.h"

#include <assert.h>
#include <string.h>

static struct index_snapshot *snapshot_at(const struct index *ix, uint32_t id)
{
    return (struct index_snapshot *)(uintptr_t)index_snapshot_at(&ix->view, id);
}

/* ---- the treap -------------------------------------------------------------------- */

TREAP uint32_t *left_of(const struct index *ix, uint32_t id)
{
    return &snapshot_at(ix, id)->left;
}

TREAP uint32_t *right_of(const struct index *ix, uint32_t id)
{
    return &snapshot_at(ix, id)->right;
}

TREAP uint32_t *up_of(const struct index *ix, uint32_t id)
{
    return &snapshot_at(ix, id)->up;
}

TREAP int compare(const struct index *ix, uint32_t a, uint32_t b)
{
    struct snapshot_key key = snapshot_key_of(&ix->view, a);
    return snapshot_compare(&ix->view, &key, b);
}

struct known {
    uint8_t below;
    uint32_t shallowest, deepest;
};

static inline struct known known_of(const struct index *ix, uint32_t id)
{
    const struct index_snapshot *e = snapshot_at(ix, id);
    struct known k = {e->state, e->depth, e->depth};
    const uint32_t side[2] = {e->left, e->right};
    for (int i = 0; i < 2; i++) {
        const struct index_snapshot *s = snapshot_at(ix, side[i]);
        if (!side[i])
            continue;
        k.below |= s->below;
        if (s->shallowest < k.shallowest)
            k.shallowest = s->shallowest;
        if (s->deepest > k.deepest)
            k.deepest = s->deepest;
    }
    return k;
}

TREAP bool pull(struct index *ix, uint32_t id)
{
    struct index_snapshot *e = snapshot_at(ix, id);
    struct known k = known_of(ix, id);
    bool same = k.below == e->below && k.shallowest == e->shallowest && k.deepest == e->deepest;
    shm_store(&e->below, k.below);
    e->shallowest = k.shallowest;
    e->deepest = k.deepest;
    return !same;
}

static const struct treap by_position = {left_of, right_of, up_of, compare, pull};

static void hang(struct index *ix, uint32_t node, uint32_t id)
{
    shm_store(&snapshot_at(ix, id)->node, node);
    treap_add(&by_position, ix, &node_at(ix, node)->snapshots, id);
}

static void unhang(struct index *ix, uint32_t id)
{
    uint32_t node = snapshot_at(ix, id)->node;
    treap_remove(&by_position, ix, &node_at(ix, node)->snapshots, id);
}

/* Any entry below `top` with less, or at least as many, tokens than the border; 0: none. */
static uint32_t shallower(const struct index *ix, uint32_t top, uint64_t border)
{
    if (!top || snapshot_at(ix, top)->shallowest >= border)
        return 0;
    while (snapshot_at(ix, top)->depth >= border) {
        const struct index_snapshot *e = snapshot_at(ix, top);
        top = e->left && snapshot_at(ix, e->left)->shallowest < border ? e->left : e->right;
    }
    return top;
}

static uint32_t deeper(const struct index *ix, uint32_t top, uint64_t border)
{
    if (!top || snapshot_at(ix, top)->deepest < border)
        return 0;
    while (snapshot_at(ix, top)->depth < border) {
        const struct index_snapshot *e = snapshot_at(ix, top);
        top = e->right && snapshot_at(ix, e->right)->deepest >= border ? e->right : e->left;
    }
    return top;
}

/* ---- with the tree's shape ----------------------------------------------------------- */

static void move(struct index *ix, uint32_t id, uint32_t node)
{
    unhang(ix, id);
    hang(ix, node, id);
    ix->work++;
}

void hung_split(struct index *ix, uint32_t upper, uint32_t lower)
{
    const struct index_node *l = node_at(ix, lower);
    uint64_t border = (l->start + 1ull) * ix->view.params.block_tokens;
    uint32_t id;
    while ((id = shallower(ix, l->snapshots, border)))
        move(ix, id, upper);
}

void hung_merge(struct index *ix, uint32_t upper, uint32_t lower)
{
    while (node_at(ix, upper)->snapshots)
        move(ix, node_at(ix, upper)->snapshots, lower);
}

/* It is in no treap any more. */
static void leave(struct index *ix, uint32_t id)
{
    struct index_snapshot *e = snapshot_at(ix, id);
    shm_store(&e->left, 0);
    shm_store(&e->right, 0);
    shm_store(&e->node, 0);
    shm_store(&e->state, 0);
    shm_store(&e->below, 0);
    extra_list_free(ix, e->extras);
    shm_store(&e->extras, 0);
    ix->n_snapshots--;
    ix->work++;
}

/* The whole treap, from its leaves: nothing is rotated. */
static uint32_t cut_all(struct index *ix, uint32_t id)
{
    uint32_t list = 0, at = node_at(ix, id)->snapshots;
    shm_store(&node_at(ix, id)->snapshots, 0);
    while (at) {
        struct index_snapshot *e = snapshot_at(ix, at);
        if (e->left || e->right) {
            uint32_t *down = e->left ? &e->left : &e->right;
            at = *down;
            shm_store(down, 0);
            continue;
        }
        uint32_t up = e->up;
        leave(ix, at);
        e->up = list;
        list = at;
        at = up;
    }
    return list;
}

uint32_t hung_cut(struct index *ix, uint32_t id, uint32_t keep)
{
    const struct index_node *n = node_at(ix, id);
    uint64_t border = (n->start + keep + 1ull) * ix->view.params.block_tokens;
    uint32_t list = 0, gone;
    if (n->snapshots && snapshot_at(ix, n->snapshots)->shallowest >= border)
        return cut_all(ix, id);
    while ((gone = deeper(ix, n->snapshots, border))) {
        unhang(ix, gone);
        leave(ix, gone);
        *up_of(ix, gone) = list;
        list = gone;
    }
    return list;
}

void hung_tell(struct index *ix, uint32_t list, bool evicted)
{
    while (list) {
        uint32_t id = list;
        list = *up_of(ix, id);
        *up_of(ix, id) = 0;
        if (ix->gone)
            ix->gone(ix->gone_arg, id, evicted);
    }
}

uint32_t hung_leave(struct index *ix, uint32_t id)
{
    if (!node_at(ix, id)->snapshots)
        return 0;
    uint32_t before = ix->n_snapshots;
    node_begin(ix, id);
    uint32_t list = cut_all(ix, id);
    node_end(ix, id);
    hung_tell(ix, list, !node_condemned(ix, id));
    return before - ix->n_snapshots;
}

void index_set_snapshot_gone(struct index *ix,
                             void (*gone)(void *arg, uint32_t snapshot, bool evicted), void *arg)
{
    ix->gone = gone;
    ix->gone_arg = arg;
}

/* ---- residues -------------------------------------------------------------------------- */

size_t residue_room(uint32_t block_tokens)
{
    return (size_t)block_tokens * (sizeof(struct wire_extra) + sizeof(uint32_t));
}

/* Those of the block's extras that start in its tokens [low, high), of the whole sequence. */
static size_t extras_between(const struct index *ix, uint32_t id, uint64_t low, uint64_t high,
                             struct wire_extra *out)
{
    size_t n = 0;
    for (; id && extra_at(ix, id)->at < high; id = extra_at(ix, id)->next)
        if (extra_at(ix, id)->at >= low)
            memcpy(&out[n++], extra_at(ix, id), sizeof *out);
    return n;
}

void index_residue(struct index *ix, struct place where, uint32_t depth, void *room,
                   struct place *at, struct residue *residue)
{
    uint32_t bt = ix->view.params.block_tokens, f = depth / bt, n = depth % bt;
    struct wire_extra *extras = room;
    uint32_t *tokens = (uint32_t *)(void *)(extras + bt);
    *at = where;
    *residue = (struct residue){.tokens = tokens, .n_tokens = n, .extras = extras};
    if (n) {
        at->depth = f + 1;
        index_cover(ix, at);
        const struct index_node *node = node_at(ix, at->node);
        uint32_t unit = node->extent + (f - node->start);
        memcpy(tokens, index_tokens_at(&ix->view, unit), (size_t)n * 4);
        if (node->flags & NODE_EXTRAS)
            residue->n_extras =
                extras_between(ix, *extra_head_at(ix, unit), (uint64_t)f * bt, depth, extras);
    }
    at->depth = f;
    index_cover(ix, at);
}

/* ---- entries ------------------------------------------------------------------------------ */

uint32_t index_snapshot_find(const struct index *ix, struct place at, const struct residue *r)
{
    static const struct wire_extra none;
    const struct snapshot_key key = {
        .depth = at.depth * ix->view.params.block_tokens + r->n_tokens,
        .tokens = r->tokens,
        .n = r->n_tokens,
        .given = r->n_extras ? r->extras : &none,
        .n_given = r->n_extras,
    };
    return snapshot_find(&ix->view, node_at(ix, at.node)->snapshots, &key);
}

void index_snapshot_add(struct index *ix, uint32_t id, struct place at, const struct residue *r,
                        enum snapshot_kind kind, uint64_t session, uint32_t slot, uint64_t tier_key)
{
    struct index_snapshot *e = snapshot_at(ix, id);
    assert((slot == NO_SLOT) == (tier_key != 0));
    assert(id && id <= ix->view.params.max_snapshots && e->node == 0 && !e->left && !e->right);
    node_begin(ix, at.node);
    shm_store(&e->session, session);
    shm_store(&e->tier_key, tier_key);
    shm_store(&e->depth, at.depth * ix->view.params.block_tokens + r->n_tokens);
    shm_store(&e->slot, slot);
    shm_store(&e->kind, (uint8_t)kind);
    shm_store(&e->state, tier_key ? SNAPSHOT_TIERED : SNAPSHOT_RESIDENT);
    if (r->n_tokens)
        tokens_store((uint32_t *)(uintptr_t)index_residue_at(&ix->view, id), r->tokens,
                     r->n_tokens);
    uint32_t *link = &e->extras;
    shm_store(link, 0);
    for (size_t i = 0; i < r->n_extras; i++)
        link = extra_append(ix, link, &r->extras[i]);
    hang(ix, at.node, id);
    node_end(ix, at.node);
    ix->n_snapshots++;
}

void index_snapshot_remove(struct index *ix, uint32_t id)
{
    uint32_t node = snapshot_at(ix, id)->node;
    assert(node);
    node_begin(ix, node);
    unhang(ix, id);
    leave(ix, id);
    node_end(ix, node);
    if (node_is_root(node_at(ix, node)))
        root_settle(ix, node);
}

void index_snapshot_move(struct index *ix, uint32_t id, uint32_t slot, uint64_t tier_key)
{
    struct index_snapshot *e = snapshot_at(ix, id);
    assert(e->node && (slot == NO_SLOT) == (tier_key != 0));
    node_begin(ix, e->node);
    shm_store(&e->slot, slot);
    shm_store(&e->tier_key, tier_key);
    shm_store(&e->state, tier_key ? SNAPSHOT_TIERED : SNAPSHOT_RESIDENT);
    treap_pull_up(&by_position, ix, id);
    node_end(ix, e->node);
}

void index_snapshot_exact(struct index *ix, uint32_t id)
{
    struct index_snapshot *e = snapshot_at(ix, id);
    assert(e->node && e->kind == SNAPSHOT_SIBLING);
    node_begin(ix, e->node);
    shm_store(&e->kind, SNAPSHOT_EXACT); /* its place stays */
    node_end(ix, e->node);
}

/* ---- audit ---------------------------------------------------------------------------------- */

#define FOUND(...)                                                                                 \
    do {                                                                                           \
        find(arg, __VA_ARGS__);                                                                    \
        found++;                                                                                   \
    } while (0)

static unsigned audit_links(const struct index *ix, uint32_t node, uint32_t id, audit_find *find,
                            void *arg)
{
    unsigned found = 0;
    const struct index_snapshot *e = snapshot_at(ix, id);
    struct known k = known_of(ix, id);
    if (k.below != e->below || k.shallowest != e->shallowest || k.deepest != e->deepest)
        FOUND("snapshot %u of node %u is wrong about what is below it", id, node);
    if (e->up && treap_priority(ix, e->up) < treap_priority(ix, id))
        FOUND("snapshot %u of node %u stands below a lesser priority", id, node);
    const uint32_t side[2] = {e->left, e->right};
    for (int i = 0; i < 2; i++)
        if (side[i] && snapshot_at(ix, side[i])->up != id)
            FOUND("snapshot %u of node %u does not know what is above it", side[i], node);
    return found;
}

static unsigned audit_entry(const struct index *ix, uint32_t node, uint32_t id, audit_find *find,
                            void *arg)
{
    unsigned found = 0;
    const struct index_node *n = node_at(ix, node);
    const struct index_snapshot *e = snapshot_at(ix, id);
    uint32_t blocks = e->depth / ix->view.params.block_tokens;
    bool here =
        node_is_root(n) ? blocks == 0 : blocks > n->start && blocks <= n->start + n->n_blocks;
    if (e->node != node || e->depth == 0 || !here)
        FOUND("snapshot %u, %u tokens deep and of node %u, hangs on node %u", id, e->depth, e->node,
              node);
    bool resident = e->state == SNAPSHOT_RESIDENT && e->slot != NO_SLOT && e->tier_key == 0;
    bool tiered = e->state == SNAPSHOT_TIERED && e->slot == NO_SLOT && e->tier_key != 0;
    if (!resident && !tiered)
        FOUND("snapshot %u is in state %u with slot %u and tier key %llu", id, e->state, e->slot,
              (unsigned long long)e->tier_key);
    if (e->kind > SNAPSHOT_SIBLING || (e->kind != SNAPSHOT_EXACT && e->session == 0))
        FOUND("snapshot %u of kind %u has session %llu", id, e->kind,
              (unsigned long long)e->session);
    return found;
}

unsigned hung_audit(const struct index *ix, uint32_t node, uint8_t *seen, uint64_t *count,
                    uint64_t *extras, audit_find *find, void *arg)
{
    unsigned found = 0;
    uint32_t before = 0, top = node_at(ix, node)->snapshots;
    if (top && snapshot_at(ix, top)->up)
        FOUND("snapshot %u is the top of node %u and names another", top, node);
    for (uint32_t id = treap_first(&by_position, ix, top); id;
         id = treap_next(&by_position, ix, id)) {
        if (id > ix->view.params.max_snapshots || seen[id]++) {
            FOUND("snapshot %u of node %u is listed twice", id, node);
            return found; /* the walk would not end */
        }
        if (before && compare(ix, before, id) >= 0)
            FOUND("snapshots %u and %u of node %u are out of order", before, id, node);
        found += audit_links(ix, node, id, find, arg) + audit_entry(ix, node, id, find, arg);
        for (uint32_t x = snapshot_at(ix, id)->extras; x; x = extra_at(ix, x)->next)
            ++*extras;
        ++*count;
        before = id;
    }
    return found;
}
