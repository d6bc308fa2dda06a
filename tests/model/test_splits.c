/* B23 (ii): an edge of 8 blocks split at its 7 inner boundaries in all 5,040 orders, with an audit
 * after every step, then evicted to empty. */
#include "tests/model/backend.h"
#include "tests/model/model.h"

#include <string.h>

enum { EDGE = 8, CUTS = EDGE - 1, POOL = EDGE + CUTS };

static struct pfx_match look_for(struct backend *b, const uint32_t *tokens, size_t n)
{
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = tokens, .n_tokens = n, .max_match = n};
    struct pfx_match m = {.size = sizeof m};
    REQUIRE_EQ(b->lookup(b->self, 0, &args, &m), 0);
    b->audit(b->self);
    return m;
}

static void give_up(struct backend *b, uint64_t lease)
{
    REQUIRE_EQ(b->release(b->self, 0, lease), 0);
    b->audit(b->self);
}

/* Cache n one-token blocks, of which `shared` are there already. */
static void insert_path(struct backend *b, const uint32_t *tokens, uint32_t n, uint32_t shared)
{
    struct pfx_match m = look_for(b, tokens, n);
    REQUIRE_EQ(m.n_blocks, shared);
    uint32_t ids[EDGE];
    REQUIRE_EQ(b->reserve(b->self, 0, m.lease, n - shared, ids), 0);
    struct pfx_insert_args args = {.size = sizeof args, .tokens = tokens, .n_written = n};
    struct pfx_insert_result r;
    REQUIRE_EQ(b->insert(b->self, 0, m.lease, &args, ids, &r), 0);
    REQUIRE_EQ(r.new_blocks, n - shared);
    b->audit(b->self);
    give_up(b, m.lease);
}

/* The edge 1 2 .. 8 down to `cut`, then a token of its own. */
static uint32_t branch(uint32_t cut, uint32_t *tokens)
{
    for (uint32_t i = 0; i < EDGE; i++)
        tokens[i] = i < cut ? 1 + i : 100 + cut;
    return cut + 1;
}

static void found_whole(struct backend *b, const uint32_t *tokens, uint32_t n)
{
    struct pfx_match m = look_for(b, tokens, n);
    REQUIRE_EQ(m.n_blocks, n);
    give_up(b, m.lease);
}

static void one_order(struct backend *b, const uint32_t *order)
{
    uint32_t edge[EDGE], other[EDGE];
    branch(EDGE, edge);
    insert_path(b, edge, EDGE, 0);
    for (int i = 0; i < CUTS; i++) {
        uint32_t n = branch(order[i], other);
        insert_path(b, other, n, order[i]);
        found_whole(b, edge, EDGE);
    }
    for (uint32_t cut = 1; cut < EDGE; cut++) /* every child under its own first block */
        found_whole(b, other, branch(cut, other));
    struct pfx_stats s;
    b->stats(b->self, &s);
    REQUIRE_EQ(s.blocks_idle, POOL);
    struct pfx_evicted e;
    for (uint32_t left = POOL; left; left -= e.removed_blocks) {
        REQUIRE_EQ(b->evict(b->self, 0, 1 + order[0] % 4, &e), 0);
        REQUIRE(e.removed_blocks > 0);
        b->audit(b->self);
    }
    b->stats(b->self, &s);
    REQUIRE_EQ(s.blocks_free, POOL);
    REQUIRE_EQ(s.nodes, 0);
}

/* The next permutation in lexicographic order; false after the last. */
static bool next_order(uint32_t *a)
{
    int i = CUTS - 2, k = CUTS - 1;
    while (i >= 0 && a[i] > a[i + 1])
        i--;
    if (i < 0)
        return false;
    while (a[k] < a[i])
        k--;
    uint32_t t = a[i];
    a[i] = a[k];
    a[k] = t;
    for (int l = i + 1, h = CUTS - 1; l < h; l++, h--) {
        t = a[l];
        a[l] = a[h];
        a[h] = t;
    }
    return true;
}

START_TEST(b23_5040_split_orders)
{
    struct rng r = rng_seeded("splits");
    const struct model_config config = {.block_tokens = 1, .n_blocks = POOL};
    struct backend b = backend_local(&config, UINT64_MAX, rng_next(&r), NULL);
    b.attach(b.self, 0, NULL);
    uint32_t order[CUTS] = {1, 2, 3, 4, 5, 6, 7};
    unsigned orders = 0;
    do {
        one_order(&b, order);
        orders++;
    } while (next_order(order));
    REQUIRE_EQ(orders, 5040);
    b.detach(b.self, 0, true);
    b.free(b.self);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("splits");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, b23_5040_split_orders);
    suite_add_tcase(s, t);
    return s;
}
