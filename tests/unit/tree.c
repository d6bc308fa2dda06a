#include "tests/unit/tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

void tree_new(struct tree *t, uint32_t block_tokens, uint32_t n_blocks)
{
    tree_new_with(t, block_tokens, n_blocks, 0, UINT64_MAX);
}

void tree_new_with(struct tree *t, uint32_t block_tokens, uint32_t n_blocks, uint32_t max_snapshots,
                   uint64_t hash_mask)
{
    tree_new_params(t, (struct index_params){.block_tokens = block_tokens,
                                             .n_blocks = n_blocks,
                                             .hash_mask = hash_mask,
                                             .max_snapshots = max_snapshots});
}

void tree_new_params(struct tree *t, struct index_params p)
{
    tree_new_admit(t, p, 1);
}

void tree_new_admit(struct tree *t, struct index_params p, uint32_t admit)
{
    struct index_plan plan;
    p.max_spaces = 2;
    p.hash_seed = 12345;
    REQUIRE(index_plan(&p, &plan));
    t->header = mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(t->header, MAP_FAILED);
    *t->header = (struct index_header){
        .magic = INDEX_MAGIC, .format = LAYOUT_FORMAT, .params = p, .ready = 1};
    t->bytes = plan.bytes;
    t->bt = p.block_tokens;
    REQUIRE(pool_init(&t->pool, p.n_blocks));
    t->ix = index_new(&(struct index_config){
        .region = t->header, .pool = &t->pool, .policy = policy_find("lru"), .admit = admit});
    REQUIRE(t->ix != NULL);
    t->root = index_root_new(t->ix, 0);
    struct index_space *s =
        (struct index_space *)(uintptr_t)index_space_at(index_view_of(t->ix), 0);
    s->state = SPACE_LIVE; /* space 0, for index_walk */
    s->root = t->root;
}

void tree_free(struct tree *t)
{
    index_free(t->ix);
    pool_deinit(&t->pool);
    munmap(t->header, t->bytes);
}

static void show(void *arg, const char *finding, ...)
{
    va_list args;
    va_start(args, finding);
    vfprintf(stderr, finding, args);
    va_end(args);
    fputc('\n', stderr);
}

void tree_audit(const struct tree *t)
{
    REQUIRE_EQ(index_audit(t->ix, show, NULL), 0);
}

struct index_query tree_query(const uint32_t *tokens, size_t n)
{
    return (struct index_query){.tokens = tokens, .n_tokens = n};
}

struct place tree_root(const struct tree *t)
{
    return (struct place){index_node_at(index_view_of(t->ix), t->root)->identity, t->root, 0};
}

static struct place match_query(const struct tree *t, const struct index_query *q)
{
    struct place where = tree_root(t);
    index_match(t->ix, q, (uint32_t)(q->n_tokens / t->bt), &where);
    return where;
}

struct place tree_match(const struct tree *t, const uint32_t *tokens, size_t n)
{
    struct index_query q = tree_query(tokens, n);
    return match_query(t, &q);
}

struct place tree_insert(struct tree *t, const uint32_t *tokens, size_t n)
{
    struct index_query q = tree_query(tokens, n);
    return tree_insert_query(t, &q);
}

struct place tree_insert_query(struct tree *t, const struct index_query *q)
{
    enum { MOST = 128 };
    uint32_t pages[MOST], blocks = (uint32_t)(q->n_tokens / t->bt);
    uint8_t taken[MOST];
    struct place where = match_query(t, q);
    uint32_t more = blocks - where.depth;
    REQUIRE(more <= MOST);
    struct hold h = {0};
    index_hold(t->ix, &h, where);
    if (t->pool.n_free < more)
        index_evict(t->ix, more - t->pool.n_free);
    REQUIRE(t->pool.n_free >= more);
    for (uint32_t i = 0; i < more; i++)
        pages[i] = pool_take(&t->pool);
    where = h.where; /* evicting may have moved it */
    if (more)
        REQUIRE_EQ(index_insert(t->ix, q, pages, more, taken, &where), more);
    index_stamp(t->ix, where);
    index_unhold(t->ix, &h);
    return where;
}
