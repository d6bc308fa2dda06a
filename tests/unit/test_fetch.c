/*
 * A fetch while a restart's scan finds a newer copy of what it reads. disk_read.c and disk.c as
 * they are, over a swap file that is not there: orders come here, and are answered by hand.
 *
 *      scan     older copy in slot OLD            newer copy in slot NEWER: OLD is given back
 *      fetch                        begins   ordered                    over
 *                                          ^ newer  ^ or here
 */
#include "daemon/disk_private.h"
#include "daemon/options.h"
#include "tests/harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OLD = 1, NEWER = 2, SLOTS = 8, BLOCK = 42 };
enum { OLD_GENERATION = 10, NEWER_GENERATION = 20, OTHER_GENERATION = 30 };

static struct {
    struct index_header *header;
    uint64_t bytes;
    struct daemon d;
    struct options options;
    struct disk *k;
    struct place where; /* of the block */
    struct fetch *fetch;
    struct swap_order *sent; /* not yet answered */
    unsigned given[SLOTS];
} site;

/* ---- in the place of daemon/swap.c ---- */

struct swap *__wrap_swap_start(const struct swap_config *config, char *why, size_t n_why);
void __wrap_swap_stop(struct swap *sw);
struct swap_order *__wrap_swap_order_new(struct swap *sw, enum swap_kind kind,
                                         enum swap_store_kind store);
void __wrap_swap_order_free(struct swap *sw, struct swap_order *o);
void __wrap_swap_submit(struct swap *sw, struct swap_order *o);
void __wrap_swap_slot_give(struct swap *sw, enum swap_store_kind store, uint32_t slot);

struct swap *__wrap_swap_start(const struct swap_config *config, char *why, size_t n_why)
{
    (void)config;
    (void)why;
    (void)n_why;
    return (struct swap *)(void *)&site;
}

void __wrap_swap_stop(struct swap *sw)
{
    (void)sw;
}

struct swap_order *__wrap_swap_order_new(struct swap *sw, enum swap_kind kind,
                                         enum swap_store_kind store)
{
    (void)sw;
    struct swap_order *o = calloc(1, sizeof *o);
    REQUIRE(o != NULL);
    o->kind = kind;
    o->store = store;
    return o;
}

void __wrap_swap_order_free(struct swap *sw, struct swap_order *o)
{
    (void)sw;
    free(o);
}

void __wrap_swap_submit(struct swap *sw, struct swap_order *o)
{
    (void)sw;
    if (o->kind == SWAP_RETIRE) { /* given back, in a way */
        site.given[o->record[0].slot]++;
        free(o);
        return;
    }
    REQUIRE(o->kind == SWAP_READ && !site.sent);
    site.sent = o;
}

void __wrap_swap_slot_give(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    (void)sw;
    REQUIRE(store == STORE_BLOCKS && slot < SLOTS);
    site.given[slot]++;
}

/* ---- steps ---- */

static void cache_new(void)
{
    struct index_params p = {.block_tokens = 1,
                             .n_blocks = 10,
                             .n_disk = SLOTS,
                             .max_spaces = 1,
                             .hash_seed = 1,
                             .hash_mask = UINT64_MAX};
    struct index_plan plan;
    REQUIRE(index_plan(&p, &plan));
    site.bytes = plan.bytes;
    site.header = mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(site.header != MAP_FAILED);
    site.header->params = p;
    REQUIRE(pool_init(&site.d.pool, p.n_blocks));
    site.d.index = index_new(&(struct index_config){
        .region = site.header, .pool = &site.d.pool, .policy = policy_find("lru"), .admit = 1});
    REQUIRE(site.d.index != NULL);
}

static void show(void *arg, const char *finding, ...)
{
    va_list args;
    va_start(args, finding);
    vfprintf(stderr, finding, args);
    va_end(args);
    fputc('\n', stderr);
}

/* The scan has found the older copy, and a worker fetches the block. */
static void begin(void)
{
    char why[256];
    memset(&site, 0, sizeof site);
    cache_new();
    site.d.options = &site.options;
    const struct swap_config config = {.depth = 1};
    site.k = disk_start(&site.d, &config, why, sizeof why);
    ck_assert_msg(site.k != NULL, "%s", why);
    static const uint32_t token = BLOCK, slot = OLD;
    struct index_query q = {.tokens = &token, .n_tokens = 1};
    uint32_t root = index_root_new(site.d.index, 0);
    site.where =
        (struct place){index_node_at(index_view_of(site.d.index), root)->identity, root, 0};
    index_restore(site.d.index, &q, &slot, 1, &site.where);
    site.k->generation[OLD] = OLD_GENERATION;
    uint32_t page = pool_take(&site.d.pool);
    site.fetch = fetch_begin(site.k, site.where, &page, 1);
    ck_assert_ptr_nonnull(site.fetch);
}

/* disk_restore.c hang. */
static void newer_is_found(void)
{
    index_copy_replace(site.d.index, site.where, NEWER);
    site.k->generation[NEWER] = NEWER_GENERATION;
}

static void is_ordered(uint32_t slot, uint64_t generation)
{
    fetches_step(site.k);
    ck_assert_ptr_nonnull(site.sent);
    ck_assert_uint_eq(site.sent->n, 1);
    ck_assert_uint_eq(site.sent->record[0].slot, slot);
    ck_assert_uint_eq(site.sent->record[0].generation, generation);
}

static void answer(enum swap_status status)
{
    struct swap_order *o = site.sent;
    site.sent = NULL;
    o->record[0].status = status;
    read_over(site.k, o);
}

/* Its page is there, and the copy in `slot` is the block's. */
static void is_there(uint32_t slot)
{
    uint32_t depth, page, disk;
    ck_assert_int_eq(fetch_look(site.fetch, &depth), 0);
    ck_assert_uint_eq(depth, 1);
    ck_assert(index_path_ids(index_view_of(site.d.index), site.where, 0, 1, &page, &disk));
    ck_assert_uint_ne(page, NO_PAGE);
    ck_assert_uint_eq(disk, slot);
}

static void end(void)
{
    ck_assert_ptr_null(site.sent);
    fetch_leave(site.fetch);
    REQUIRE_EQ(index_audit(site.d.index, show, NULL), 0);
    disk_stop(site.k);
    index_free(site.d.index);
    pool_deinit(&site.d.pool);
    munmap(site.header, site.bytes);
}

/* ---- tests ---- */

/* Orders were short, and by the time of ours the scan is over, and the old slot another block's:
 * its header and its bytes would fit each other. */
START_TEST(e79_a_fetch_reads_the_copy_of_now)
{
    begin();
    newer_is_found();
    ck_assert_uint_eq(site.given[OLD], 1);
    site.k->generation[OLD] = OTHER_GENERATION;
    is_ordered(NEWER, NEWER_GENERATION);
    answer(SWAP_GOOD);
    fetches_step(site.k);
    is_there(NEWER);
    end();
}
END_TEST

/* The device reads it still: nobody may write there. */
START_TEST(a_slot_is_given_back_when_it_has_been_read)
{
    begin();
    is_ordered(OLD, OLD_GENERATION);
    newer_is_found();
    ck_assert_uint_eq(site.given[OLD], 0);
    answer(SWAP_GOOD); /* of the same block, if older */
    fetches_step(site.k);
    ck_assert_uint_eq(site.given[OLD], 1);
    is_there(NEWER);
    end();
    ck_assert_uint_eq(site.given[OLD], 1);
}
END_TEST

/* What could not be read is not the block's copy any more, when it ends or a moment later: the
 * newer one is tried then. */
START_TEST(an_old_copy_says_nothing_about_the_newer)
{
    static const enum swap_status bad[] = {SWAP_CORRUPT, SWAP_FAILED};
    bool before = _i < 2;
    begin();
    is_ordered(OLD, OLD_GENERATION);
    if (before)
        newer_is_found();
    answer(bad[_i % 2]);
    if (!before)
        newer_is_found();
    ck_assert_uint_eq(site.given[OLD], 1);
    is_ordered(NEWER, NEWER_GENERATION);
    answer(SWAP_GOOD);
    fetches_step(site.k);
    is_there(NEWER);
    end();
}
END_TEST

/* And if that cannot be read either, it is over. */
START_TEST(the_copy_of_now_is_the_last)
{
    uint32_t depth;
    begin();
    is_ordered(OLD, OLD_GENERATION);
    newer_is_found();
    answer(SWAP_CORRUPT);
    is_ordered(NEWER, NEWER_GENERATION);
    answer(SWAP_CORRUPT);
    fetches_step(site.k);
    ck_assert_int_lt(fetch_look(site.fetch, &depth), 0);
    ck_assert_uint_eq(depth, 0);
    ck_assert_uint_eq(site.given[NEWER], 0);
    end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fetches");
    TCase *t = tcase_create("all");
    tcase_add_test(t, e79_a_fetch_reads_the_copy_of_now);
    tcase_add_test(t, a_slot_is_given_back_when_it_has_been_read);
    tcase_add_loop_test(t, an_old_copy_says_nothing_about_the_newer, 0, 4);
    tcase_add_test(t, the_copy_of_now_is_the_last);
    suite_add_tcase(s, t);
    return s;
}
