/*
 * What leaves the tree: the end of a leaf (truncate), which gets a new identity then, or all of it;
 * and below a condemned root one node after the other.
 *
 * As in index_change.c, each change begins every node that it touches before the first store and
 * ends them after the last. None can fail.
 */
#include "daemon/index_private.h"

#include <assert.h>

/* ---- truncate, evict --------------------------------------------------------------------- */

/* The parent of a leaf that has just gone. */
static void parent_settle(struct index *ix, uint32_t parent)
{
    const struct index_node *p = node_at(ix, parent);
    if (priv_at(ix, parent)->n_children == 1) {
        node_merge(ix, parent);
    } else if (priv_at(ix, parent)->n_children == 0) {
        if (!node_is_root(p))
            rank_node(ix, parent);
        else if (priv_at(ix, parent)->condemned)
            index_root_free(ix, parent);
        else
            root_settle(ix, parent);
    }
}

static void leaf_remove(struct index *ix, uint32_t id, uint64_t last_use)
{
    const struct index_node was = *node_at(ix, id);
    uint32_t parent = was.parent;
    struct node_private *root = priv_at(ix, was.root);
    if (root->reap_at == id)
        root->reap_at = index_reap_next(ix, id);
    rank_remove(ix, id);
    hung_leave(ix, id);
    struct tally before = node_tally(ix, parent);
    node_begin(ix, parent);
    bucket_remove(ix, id);
    children_remove(ix, parent, id);
    node_end(ix, parent);
    struct tally gone = node_tally(ix, id);
    ix->clean -= gone.clean;
    child_count(ix, parent, gone, false);
    uint32_t cap = priv_at(ix, id)->cap;
    node_free(ix, id);
    units_empty(ix, was.extent, was.n_blocks, was.flags & NODE_EXTRAS);
    extent_give(ix, was.extent, cap);
    ix->n_nodes--;

    const struct index_node *p = node_at(ix, parent);
    if (p->n_blocks) {
        uint64_t *last = &ix->units[p->extent + p->n_blocks - 1].last_use;
        if (*last < last_use)
            *last = last_use;
    }
    node_settle(ix, parent, before);
    parent_settle(ix, parent);
}

/* What is cut is emptied only after the node's version has moved: a reader that is still in it must
 * not take a block whose extras have gone for one that never had any. */
void node_truncate(struct index *ix, uint32_t id, uint32_t keep, uint64_t last_use)
{
    struct index_node *n = node_at(ix, id);
    struct node_private *p = priv_at(ix, id);
    uint32_t cut = n->n_blocks - keep;
    assert(p->n_children == 0 && keep >= kept_prefix(ix, id) && keep < n->n_blocks);
    if (keep == 0) {
        leaf_remove(ix, id, last_use);
        return;
    }
    struct tally before = node_tally(ix, id);
    node_begin(ix, id);
    node_new_identity(ix, id);
    shm_store(&n->n_blocks, (uint16_t)keep);
    if (ix->tiers) {
        struct node_tiers *t = &ix->tiers[id];
        t->device = t->device < keep ? t->device : (uint8_t)keep;
        t->disk = t->disk < keep ? t->disk : (uint8_t)keep;
        t->seen = t->seen < keep ? t->seen : (uint8_t)keep;
        t->unwritable = 0; /* perhaps what could not be is gone */
    }
    uint32_t left = hung_cut(ix, id, keep);
    node_end(ix, id);
    hung_tell(ix, left, !node_condemned(ix, id));
    units_empty(ix, n->extent + keep, cut, n->flags & NODE_EXTRAS);
    extent_give(ix, n->extent + keep, p->cap - keep);
    p->cap = (uint8_t)keep;
    uint64_t *last = &ix->units[n->extent + keep - 1].last_use;
    if (*last < last_use)
        *last = last_use;
    node_settle(ix, id, before);
}

/* ---- flush ---------------------------------------------------------------------------------- */

/* The walk of a condemned tree: children before their parent, in order. */
static uint32_t deepest_first(const struct index *ix, uint32_t id)
{
    while (priv_at(ix, id)->n_children)
        id = children_first(ix, id);
    return id;
}

uint32_t index_reap_next(const struct index *ix, uint32_t id)
{
    uint32_t next = children_next(ix, id);
    return next ? deepest_first(ix, next) : node_at(ix, id)->parent;
}

void index_condemn(struct index *ix, uint32_t root)
{
    priv_at(ix, root)->condemned = 1;
    priv_at(ix, root)->reap_at = deepest_first(ix, root);
    hung_leave(ix, root);
    if (priv_at(ix, root)->n_children == 0)
        index_root_free(ix, root);
}

/* Merges stop below a condemned root, so the walk only has to step off what goes (leaf_remove). */
uint32_t index_reap(struct index *ix, struct place root, uint32_t n, bool *done)
{
    uint32_t gone = 0;
    for (uint32_t steps = 0; steps < n; steps++) {
        struct node_private *p = priv_at(ix, root.node);
        *done = node_at(ix, root.node)->identity != root.identity || p->reap_at == root.node;
        if (*done)
            break;
        uint32_t id = p->reap_at, keep = kept_prefix(ix, id);
        uint32_t blocks = node_at(ix, id)->n_blocks;
        p->reap_at = index_reap_next(ix, id);
        rank_remove(ix, id);
        steps += hung_leave(ix, id);
        if (priv_at(ix, id)->n_children == 0 && keep < blocks) {
            node_truncate(ix, id, keep, 0);
            gone += blocks - keep;
            steps += blocks - keep;
        }
    }
    return gone;
}
