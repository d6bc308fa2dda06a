/* Spaces at the limit of their tables: every node, every slot in use. */
#include "daemon/space.h"
#include "tests/harness.h"
#include "tests/unit/hooked_read.h"
#include "tests/unit/hooked_tree.h"

#include <jansson.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    *header = (struct index_header){
        .magic = INDEX_MAGIC, .format = LAYOUT_FORMAT, .params = p, .ready = 1};
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

/* Cache the one block [token] in a space. */
static struct place cache_in(struct house *h, uint32_t slot, uint32_t token)
{
    uint32_t root = spaces_root(h->spaces, slot), page = pool_take(&h->pool);
    struct index_query q = {.tokens = &token, .n_tokens = 1};
    struct place where = {index_node_at(index_view_of(h->ix), root)->identity, root, 0};
    uint8_t taken;
    ck_assert_uint_eq(index_insert(h->ix, &q, &page, 1, &taken, &where), 1);
    index_stamp(h->ix, where);
    return where;
}

/* In the base space, and hold it. */
static void cache_one(struct house *h, uint32_t token, struct hold *hold)
{
    index_hold(h->ix, hold, cache_in(h, 0, token));
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

/* ---- readers ---------------------------------------------------------------------------- */

enum { MINE = 7, THEIRS = 42 };

/* Tenant A's tree goes, and B gets its root. */
static struct {
    struct house h;
    bool flush; /* or else A falls asleep */
    uint32_t a, loads, at;
} moved;

static uint32_t tenant(struct house *h, char name)
{
    struct space_key key = {.tenant_len = 1, .tenant = {(uint8_t)name}};
    uint32_t slot;
    REQUIRE(spaces_open(h->spaces, &key, &slot));
    return slot;
}

static void root_moves(void)
{
    struct house *h = &moved.h;
    if (moved.loads++ != moved.at)
        return;
    uint32_t root = spaces_root(h->spaces, moved.a);
    if (moved.flush) {
        bool done = false;
        struct place old = spaces_flush(h->spaces, moved.a);
        index_reap(h->ix, old, BLOCKS, &done);
        REQUIRE(done);
    } else {
        index_evict(h->ix, 1);
        spaces_close(h->spaces, moved.a);
    }
    uint32_t b = tenant(h, 'B');
    REQUIRE_EQ(spaces_root(h->spaces, b), root);
    cache_in(h, b, THEIRS);
}

static void nothing_moves(void)
{
}

/* pfx_peek of tenant A, who asks for what B alone has, with that change between any two loads. */
START_TEST(b16_a_walk_ends_in_its_own_space)
{
    moved.flush = _i;
    moved.at = 0;
    do {
        struct house *h = &moved.h;
        house_new(h);
        moved.a = tenant(h, 'A');
        moved.loads = 0;
        cache_in(h, moved.a, MINE);
        static const uint32_t token = THEIRS;
        struct index_query q = {.tokens = &token, .n_tokens = 1};
        struct index_found f = {0};
        uint64_t number = spaces_number(h->spaces, moved.a);
        hooked_between_loads = root_moves;
        bool there = hooked_index_walk(index_view_of(h->ix), number, &q, 1, &f);
        hooked_between_loads = nothing_moves;
        ck_assert_msg(!there || f.where.depth == 0, "a change before load %u: another's block",
                      moved.at);
        house_free(h);
    } while (moved.at++ < moved.loads);
    ck_assert_uint_ge(moved.at, 20); /* a space, a root and a bucket have been read */
}
END_TEST

/* Does that tenant's tree, as it is printed, have the token? */
static bool shows(const char *text, const char *tenant, const char *token)
{
    json_t *tree = json_loads(text, 0, NULL), *space;
    ck_assert_msg(tree != NULL, "no JSON: %s", text);
    bool found = false;
    size_t i;
    json_array_foreach(json_object_get(tree, "spaces"), i, space)
    {
        if (strcmp(json_string_value(json_object_get(space, "tenant")), tenant))
            continue;
        char *root = json_dumps(json_object_get(space, "root"), JSON_ENCODE_ANY | JSON_COMPACT);
        found |= strstr(root, token) != NULL;
        free(root);
    }
    json_decref(tree);
    return found;
}

/* The same change, while prefixctl prints all trees. */
START_TEST(ctl_tree_shows_a_tenant_its_own_tree)
{
    bool mine = false, theirs = false;
    moved.flush = _i;
    moved.at = 0;
    do {
        house_new(&moved.h);
        moved.a = tenant(&moved.h, 'A');
        moved.loads = 0;
        cache_in(&moved.h, moved.a, MINE);
        hooked_between_loads = root_moves;
        char *text = hooked_tree(index_view_of(moved.h.ix));
        hooked_between_loads = nothing_moves;
        ck_assert_msg(!shows(text, "41", "[42]"), "a change before load %u: %s", moved.at, text);
        mine |= shows(text, "41", "[7]");
        theirs |= shows(text, "42", "[42]");
        free(text);
        house_free(&moved.h);
    } while (moved.at++ < moved.loads);
    ck_assert(mine && theirs);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("spaces");
    TCase *t = tcase_create("all");
    tcase_add_test(t, flush_with_every_node_in_use);
    tcase_add_test(t, audit_is_clean_while_a_flush_goes_on);
    tcase_add_loop_test(t, b16_a_walk_ends_in_its_own_space, 0, 2);
    tcase_add_loop_test(t, ctl_tree_shows_a_tenant_its_own_tree, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
