/*
 * index_seen.h - one node, read as one state: what the readers index_read.c and snapshot_read.c
 * share, and nobody else. The rule stands at the top of index_read.c.
 */
#ifndef SHM_INDEX_SEEN_H
#define SHM_INDEX_SEEN_H

#include "shm/index_read.h"

/* Looks at something that changes meanwhile; steps down a treap, which has fewer levels unless it
 * changes meanwhile. */
enum { RETRIES = 256, TREAP_STEPS = 256 };

struct seen {
    uint32_t version;
    uint32_t n_blocks, n_partial;
    uint64_t identity, parent_identity;
    uint32_t parent, start, extent, children, left, right, flags, root;
};

/* Copies the fields; false if a change is under way or they are impossible. The caller checks
 * the version with seen_still after whatever else it read. */
static inline bool seen_read(const struct index_view *v, uint32_t id, struct seen *s)
{
    if (id == 0 || id >= v->plan.max_nodes)
        return false;
    const struct index_node *n = index_node_at(v, id);
    s->version = shm_load_acquire(&n->version); /* VERSION */
    s->n_blocks = shm_load(&n->n_blocks);
    s->n_partial = shm_load(&n->n_partial);
    s->identity = shm_load(&n->identity);
    s->parent_identity = shm_load(&n->parent_identity);
    s->parent = shm_load(&n->parent);
    s->start = shm_load(&n->start);
    s->extent = shm_load(&n->extent);
    s->children = shm_load(&n->children);
    s->left = shm_load(&n->left);
    s->right = shm_load(&n->right);
    s->flags = shm_load(&n->flags);
    s->root = shm_load(&n->root);
    return !(s->version & 1) && s->n_blocks <= NODE_BLOCKS && s->extent <= v->plan.n_units &&
           s->n_blocks <= v->plan.n_units - s->extent && s->n_partial < v->params.block_tokens;
}

static inline bool seen_still(const struct index_view *v, uint32_t id, const struct seen *s)
{
    shm_read_fence();
    return shm_load(&index_node_at(v, id)->version) == s->version;
}

#endif
