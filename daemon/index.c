/*
 * The tree's ground floor: nodes and their versions, the bucket table, extras, and reading.
 *
 * Every change stands between node_begin and node_end (edge VERSION of shm/index_read.c): the
 * version is odd meanwhile, and readers that saw any of it try again. A change of a node's
 * children is a change of that node.
 */
#include "daemon/index_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Every array by node or unit: made and freed together. Those of the disk tier only with one. */
static bool arrays_each(struct index *ix, bool (*each)(void **array, uint64_t bytes))
{
    uint64_t nodes = ix->view.plan.max_nodes, units = ix->view.plan.n_units;
    bool disk = ix->view.params.n_disk > 0;
    bool good = each((void **)&ix->nodes, nodes * sizeof *ix->nodes) &&
                each((void **)&ix->units, units * sizeof *ix->units);
    for (enum rank_order o = RANK_PAGE; o < (disk ? RANKS : RANK_PAGE + 1); o++)
        good = good && each((void **)&ix->heap[o], nodes * sizeof *ix->heap[o]);
    return good && (!disk || (each((void **)&ix->tiers, nodes * sizeof *ix->tiers) &&
                              each((void **)&ix->io_ends, units * sizeof *ix->io_ends) &&
                              each((void **)&ix->seen, units * sizeof *ix->seen)));
}

/* Sparse: what is never touched costs nothing. */
static bool array_make(void **array, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    *array = p == MAP_FAILED ? NULL : p;
    return *array != NULL;
}

static bool array_free(void **array, uint64_t bytes)
{
    if (*array)
        munmap(*array, bytes);
    *array = NULL;
    return true;
}

struct index *index_new(const struct index_config *config)
{
    struct index *ix = calloc(1, sizeof *ix);
    if (!ix)
        return NULL;
    const struct index_header *header = config->region;
    ix->view.base = config->region;
    ix->view.header = header;
    ix->view.params = header->params;
    ix->view.epoch = header->epoch;
    ix->pool = config->pool;
    ix->policy = config->policy;
    ix->admit = header->params.n_disk && config->admit > 1 ? config->admit : 1;
    ix->node_top = 1;
    ix->extra_top = 1;
    if (!index_plan(&ix->view.params, &ix->view.plan)) {
        free(ix);
        return NULL;
    }
    if (!arrays_each(ix, array_make)) {
        index_free(ix);
        return NULL;
    }
    return ix;
}

void index_free(struct index *ix)
{
    if (!ix)
        return;
    arrays_each(ix, array_free);
    free(ix);
}

void index_set_emptied(struct index *ix, void (*emptied)(void *arg, uint32_t space), void *arg)
{
    ix->emptied = emptied;
    ix->emptied_arg = arg;
}

const struct index_view *index_view_of(const struct index *ix)
{
    return &ix->view;
}

uint32_t index_pinned(const struct index *ix)
{
    return ix->pinned;
}

uint32_t index_idle(const struct index *ix)
{
    return ix->cached - ix->kept;
}

uint32_t index_busy(const struct index *ix)
{
    return ix->kept - ix->pinned;
}

uint32_t index_clean(const struct index *ix)
{
    return ix->clean;
}

uint32_t index_on_disk(const struct index *ix)
{
    return ix->on_disk;
}

uint32_t index_nodes(const struct index *ix)
{
    return ix->n_nodes;
}

/* ---- nodes --------------------------------------------------------------------- */

void node_begin(struct index *ix, uint32_t id)
{
    struct index_node *n = node_at(ix, id);
    assert(!(n->version & 1));
    shm_store(&n->version, n->version + 1);
    shm_write_fence(); /* VERSION: odd before anything changes */
}

void node_end(struct index *ix, uint32_t id)
{
    struct index_node *n = node_at(ix, id);
    assert(n->version & 1);
    shm_store_release(&n->version, n->version + 1); /* VERSION: this must be last */
}

/* Nothing, under a new identity; inside begin/end. */
static void node_clear(struct index *ix, struct index_node *n)
{
    shm_store(&n->identity, ++ix->identity);
    shm_store(&n->n_blocks, 0);
    shm_store(&n->n_partial, 0);
    shm_store(&n->parent, 0);
    shm_store(&n->parent_identity, 0);
    shm_store(&n->start, 0);
    shm_store(&n->extent, 0);
    shm_store(&n->children, 0);
    shm_store(&n->left, 0);
    shm_store(&n->right, 0);
    shm_store(&n->flags, 0);
    shm_store(&n->snapshots, 0);
}

uint32_t node_new(struct index *ix)
{
    uint32_t id = ix->free_node;
    if (id)
        ix->free_node = priv_at(ix, id)->up;
    else
        id = ix->node_top++;
    if (id >= ix->view.plan.max_nodes) { /* index_plan: there is always one more */
        fprintf(stderr, "prefixd: no node is left: this is a fault of prefixd, please report it\n");
        abort(); /* going on would write over the next table */
    }
    memset(priv_at(ix, id), 0, sizeof(struct node_private));
    if (ix->tiers)
        memset(&ix->tiers[id], 0, sizeof ix->tiers[id]);
    node_begin(ix, id);
    node_clear(ix, node_at(ix, id));
    return id;
}

/* Its extent, children, holds and snapshots are gone already. */
void node_free(struct index *ix, uint32_t id)
{
    assert(!priv_at(ix, id)->holds && !priv_at(ix, id)->ranked && !node_at(ix, id)->snapshots);
    node_begin(ix, id);
    node_clear(ix, node_at(ix, id));
    node_end(ix, id);
    priv_at(ix, id)->up = ix->free_node;
    ix->free_node = id;
}

void node_new_identity(struct index *ix, uint32_t id)
{
    shm_store(&node_at(ix, id)->identity, ++ix->identity);
    for (struct hold *h = priv_at(ix, id)->holds; h; h = h->next)
        h->where.identity = ix->identity;
}

uint32_t index_root_new(struct index *ix, uint32_t space)
{
    uint32_t id = node_new(ix);
    struct index_node *n = node_at(ix, id);
    shm_store(&n->flags, NODE_ROOT);
    shm_store(&n->root, id);
    shm_store(&n->space, space);
    node_end(ix, id);
    return id;
}

void index_root_free(struct index *ix, uint32_t root)
{
    assert(index_root_empty(ix, root));
    node_free(ix, root);
}

bool index_root_empty(const struct index *ix, uint32_t root)
{
    return priv_at(ix, root)->n_children == 0 && node_at(ix, root)->snapshots == 0;
}

void root_settle(struct index *ix, uint32_t root)
{
    if (!priv_at(ix, root)->condemned && index_root_empty(ix, root) && ix->emptied)
        ix->emptied(ix->emptied_arg, node_at(ix, root)->space);
}

/* ---- the bucket table ------------------------------------------------------------ */

static struct index_bucket *bucket_at(const struct index *ix, uint32_t i)
{
    uint32_t mask = ix->view.plan.n_buckets - 1;
    return (struct index_bucket *)(uintptr_t)index_bucket_at(&ix->view, i & mask);
}

static uint64_t hash_of(const struct index *ix, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    return index_child_hash(&ix->view, n->parent, index_tokens_at(&ix->view, n->extent));
}

static uint64_t entry_of(uint64_t hash, uint32_t id)
{
    return hash >> 32 << 32 | id;
}

/* Partial blocks are found through the ordered children alone. */
void bucket_add(struct index *ix, uint32_t id)
{
    if (node_at(ix, id)->n_partial)
        return;
    uint64_t hash = hash_of(ix, id);
    for (uint32_t i = (uint32_t)hash;; i++) {
        struct index_bucket *b = bucket_at(ix, i);
        for (int e = 0; e < BUCKET_ENTRIES; e++)
            if (b->entry[e] == 0) {
                shm_store(&b->entry[e], entry_of(hash, id));
                return;
            }
        shm_store(&b->overflow, b->overflow + 1);
    }
}

void bucket_remove(struct index *ix, uint32_t id)
{
    if (node_at(ix, id)->n_partial)
        return;
    uint64_t hash = hash_of(ix, id), entry = entry_of(hash, id);
    for (uint32_t i = (uint32_t)hash;; i++) {
        struct index_bucket *b = bucket_at(ix, i);
        for (int e = 0; e < BUCKET_ENTRIES; e++)
            if (b->entry[e] == entry) {
                shm_store(&b->entry[e], 0);
                return;
            }
        assert(b->overflow > 0);
        shm_store(&b->overflow, b->overflow - 1);
    }
}

/* ---- extras ------------------------------------------------------------------------ */

uint32_t *extra_append(struct index *ix, uint32_t *link, const struct wire_extra *x)
{
    uint32_t id = ix->free_extra;
    if (id)
        ix->free_extra = extra_at(ix, id)->next;
    else
        id = ix->extra_top++;
    assert(id < ix->view.plan.max_extras);
    struct index_extra *e = extra_at(ix, id);
    uint64_t word[6];
    memcpy(word, x, sizeof word);
    for (unsigned w = 0; w < 6; w++)
        shm_store((uint64_t *)(void *)e + w, word[w]);
    shm_store(&e->next, 0);
    shm_store(link, id);
    ix->n_extras++;
    return &e->next;
}

void extra_list_free(struct index *ix, uint32_t id)
{
    while (id) {
        uint32_t next = extra_at(ix, id)->next;
        shm_store(&extra_at(ix, id)->next, ix->free_extra);
        ix->free_extra = id;
        ix->n_extras--;
        id = next;
    }
}

void extras_store(struct index *ix, uint32_t unit, uint32_t depth, const struct index_query *q)
{
    uint64_t bt = ix->view.params.block_tokens, from = depth * bt, to = from + bt;
    uint32_t *link = extra_head_at(ix, unit);
    shm_store(link, 0);
    for (size_t i = 0; i < q->n_extras && q->extras[i].at < to; i++) {
        const struct wire_extra *x = &q->extras[i];
        if (x->at + x->len > from && x->at < q->n_tokens)
            link = extra_append(ix, link, x);
    }
}

void extras_drop(struct index *ix, uint32_t unit)
{
    extra_list_free(ix, *extra_head_at(ix, unit));
    shm_store(extra_head_at(ix, unit), 0);
}

/* ---- reading, exactly -------------------------------------------------------------- */

/* The child of `parent` whose first block is the query's next at `depth`; 0: none. */
static uint32_t child_find(const struct index *ix, uint32_t parent, uint32_t depth,
                           const struct index_query *q)
{
    uint64_t hash = index_child_hash(&ix->view, parent, index_query_at(&ix->view, q, depth));
    for (uint32_t i = (uint32_t)hash;; i++) {
        const struct index_bucket *b = bucket_at(ix, i);
        for (int e = 0; e < BUCKET_ENTRIES; e++) {
            if (b->entry[e] == 0 || b->entry[e] >> 32 != hash >> 32)
                continue;
            uint32_t id = (uint32_t)b->entry[e];
            const struct index_node *n = node_at(ix, id);
            if (n->parent == parent &&
                index_run_match(&ix->view, n->flags & NODE_EXTRAS, n->extent, depth, 1, q))
                return id;
        }
        if (b->overflow == 0)
            return 0;
    }
}

void index_match(const struct index *ix, const struct index_query *q, uint32_t limit,
                 struct place *where)
{
    uint32_t id = where->node, depth = where->depth;
    while (depth < limit) {
        const struct index_node *n = node_at(ix, id);
        uint32_t end = n->start + n->n_blocks;
        if (depth == end) {
            uint32_t child = child_find(ix, id, depth, q);
            if (!child)
                break;
            id = child;
            continue;
        }
        uint32_t want = (end < limit ? end : limit) - depth;
        uint32_t got = index_run_match(&ix->view, n->flags & NODE_EXTRAS,
                                       n->extent + (depth - n->start), depth, want, q);
        depth += got;
        if (got < want)
            break;
    }
    *where = (struct place){node_at(ix, id)->identity, id, depth};
}

void index_cover(struct index *ix, struct place *where)
{
    uint32_t id = where->node;
    while (!node_is_root(node_at(ix, id)) && where->depth <= node_at(ix, id)->start) {
        id = node_at(ix, id)->parent;
        ix->work++;
    }
    *where = (struct place){node_at(ix, id)->identity, id, where->depth};
}

bool index_resolve(struct index *ix, uint32_t root, struct place *where)
{
    if (where->node == 0 || where->node >= ix->node_top)
        return false;
    const struct index_node *n = node_at(ix, where->node);
    if (n->identity != where->identity || n->root != root || n->n_partial ||
        where->depth > n->start + n->n_blocks || where->depth + RESOLVE_BLOCKS < n->start)
        return false;
    index_cover(ix, where);
    return true;
}

uint64_t index_work(const struct index *ix)
{
    return ix->work;
}
