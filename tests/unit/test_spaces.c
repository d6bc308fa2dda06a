/* Spaces at the limit of their tables: every node, every slot in use. */
#include "daemon/space.h"
#include "tests/harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

enum { BLOCKS = 21, SPACES = 3 };

struct house {
    struct index_header *header;
    uint64_t bytes;
    struct pool pool;
    struct index *ix;
    struct spaces *spaces;
    struct hold holds[BLOCKS];
};

static void house_new(struct house *h)
{
    struct index_params p = {.block_tokens = 1,
                             .n_blocks = BLOCKS,
                             .max_spaces = SPACES,
                             .hash_seed = 1,
                             .hash_mask = UINT64_MAX};
    struct index_plan plan;
    ck_assert(index_plan(&p, &plan));
    struct index_header *header =
        mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(header, MAP_FAILED);
    header->params = p;
    *h = (struct house){.header = header, .bytes = plan.bytes};
    ck_assert(pool_init(&h->pool, BLOCKS));
    h->ix = index_new(
        &(struct index_config){.region = header, .pool = &h->pool, .policy = policy_find("lru")});
    ck_assert_ptr_nonnull(h->ix);
    h->spaces = spaces_new(h->ix);
    ck_assert_ptr_nonnull(h->spaces);
}

static void house_free(struct house *h)
{
    spaces_free(h->spaces);
    index_free(h->ix);
    pool_deinit(&h->pool);
    munmap(h->header, h->bytes);
}

static void show(void *arg, const char *finding, ...)
{
    va_list args;
    va_start(args, finding);
    vfprintf(stderr, finding, args);
    va_end(args);
    fputc('\n', stderr);
}

static void audit(const struct house *h)
{
    ck_assert_uint_eq(index_audit(h->ix, show, NULL), 0);
    ck_assert_uint_eq(spaces_audit(h->spaces, show, NULL), 0);
}

/* Cache the one block [token] in the base space and hold it. */
static void cache_one(struct house *h, uint32_t token, struct hold *hold)
{
    uint32_t root = spaces_root(h->spaces, 0), page = pool_take(&h->pool);
    struct index_query q = {.tokens = &token, .n_tokens = 1};
    struct place where = {index_node_at(index_view_of(h->ix), root)->identity, root, 0};
    uint8_t taken;
    ck_assert_uint_eq(index_insert(h->ix, &q, &page, 1, &taken, &where), 1);
    index_hold(h->ix, hold, where);
}

static void flush_base(struct house *h)
{
    bool done = false;
    struct place root = spaces_flush(h->spaces, 0);
    while (root.node && !done)
        index_reap(h->ix, root, 1, &done);
}

/* A condemned root a held block, every space live: that many nodes there are, and a flush needs the
 * old root and the new one at once. */
START_TEST(flush_with_every_node_in_use)
{
    struct house h;
    house_new(&h);
    for (uint64_t i = 1; i < SPACES; i++) {
        struct space_key key = {.adapter_id = i};
        uint32_t slot;
        ck_assert(spaces_open(h.spaces, &key, &slot));
    }
    struct space_key one_more = {.adapter_id = SPACES};
    uint32_t slot;
    ck_assert(!spaces_open(h.spaces, &one_more, &slot));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cache_one(&h, i, &h.holds[i]);
        flush_base(&h);
        audit(&h);
    }
    flush_base(&h);
    flush_base(&h);
    audit(&h);
    ck_assert_uint_eq(index_pinned(h.ix), BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        index_unhold(h.ix, &h.holds[i]);
        audit(&h);
    }
    ck_assert_uint_eq(h.pool.n_free, BLOCKS);
    ck_assert_uint_eq(index_nodes(h.ix), 0);
    house_free(&h);
}
END_TEST

/* Between two slices of a flush the audit finds nothing wrong, whatever is evicted meanwhile. */
START_TEST(audit_is_clean_while_a_flush_goes_on)
{
    struct house h;
    house_new(&h);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cache_one(&h, i, &h.holds[i]);
        if (i % 3)
            index_unhold(h.ix, &h.holds[i]);
    }
    struct place root = spaces_flush(h.spaces, 0);
    for (bool done = false; !done;) {
        audit(&h);
        index_reap(h.ix, root, 2, &done);
        index_evict(h.ix, 1);
    }
    audit(&h);
    ck_assert_uint_eq(index_idle(h.ix), 0);
    ck_assert_uint_eq(index_pinned(h.ix), BLOCKS / 3);
    for (uint32_t i = 0; i < BLOCKS; i += 3)
        index_unhold(h.ix, &h.holds[i]);
    audit(&h);
    ck_assert_uint_eq(h.pool.n_free, BLOCKS);
    house_free(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("spaces");
    TCase *t = tcase_create("all");
    tcase_add_test(t, flush_with_every_node_in_use);
    tcase_add_test(t, audit_is_clean_while_a_flush_goes_on);
    suite_add_tcase(s, t);
    return s;
}
