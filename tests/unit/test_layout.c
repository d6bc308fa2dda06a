/* Sizes and offsets of the regions, and the seals of their descriptors. */
#include "shm/index_read.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct index_params params(uint32_t block_tokens, uint32_t n_blocks)
{
    return (struct index_params){.block_tokens = block_tokens,
                                 .n_blocks = n_blocks,
                                 .max_spaces = 4,
                                 .hash_mask = UINT64_MAX};
}

/* The areas stand behind one another in the order of the picture, each large enough. */
static void plan_holds(const struct index_params *p)
{
    struct index_plan plan;
    ck_assert(index_plan(p, &plan));
    const struct {
        uint64_t at, bytes;
    } area[] = {
        {0, sizeof(struct index_header)},
        {plan.spaces, (uint64_t)p->max_spaces * sizeof(struct index_space)},
        {plan.nodes, (uint64_t)plan.max_nodes * sizeof(struct index_node)},
        {plan.buckets, (uint64_t)plan.n_buckets * sizeof(struct index_bucket)},
        {plan.tokens, (uint64_t)plan.n_units * p->block_tokens * 4},
        {plan.pages, (uint64_t)plan.n_units * 4},
        {plan.disks, (uint64_t)plan.n_units * 4},
        {plan.extra_heads, (uint64_t)plan.n_units * 4},
        {plan.extras, (uint64_t)plan.max_extras * sizeof(struct index_extra)},
    };
    uint64_t end = 0;
    for (size_t i = 0; i < sizeof area / sizeof area[0]; i++) {
        ck_assert_uint_ge(area[i].at, end);
        ck_assert_uint_eq(area[i].at % 64, 0);
        end = area[i].at + area[i].bytes;
    }
    ck_assert_uint_ge(plan.bytes, end);
    ck_assert_uint_ge(plan.n_units, p->n_blocks);
    ck_assert_uint_gt(plan.max_nodes, p->n_blocks);
    ck_assert_uint_ge((uint64_t)plan.n_buckets * BUCKET_ENTRIES, p->n_blocks);
    ck_assert_uint_eq(plan.n_buckets & (plan.n_buckets - 1), 0);
}

START_TEST(plan_of_every_size)
{
    static const uint32_t blocks[] = {1, 2, 7, 64, 1000, 100000, 10000000, 500000000};
    static const uint32_t tokens[] = {1, 2, 4, 16, 512, BLOCK_TOKENS_MAX};
    for (unsigned b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
        for (unsigned t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            struct index_params p = params(tokens[t], blocks[b]);
            plan_holds(&p);
        }
}
END_TEST

START_TEST(plan_refuses_what_ids_cannot_name)
{
    struct index_plan plan;
    struct index_params p = params(16, 1u << 31);
    ck_assert(!index_plan(&p, &plan));
    p = params(16, UINT32_MAX);
    ck_assert(!index_plan(&p, &plan));
    p = params(0, 8);
    ck_assert(!index_plan(&p, &plan));
    p = params(BLOCK_TOKENS_MAX + 1, 8);
    ck_assert(!index_plan(&p, &plan));
    p = params(UINT32_MAX, 8);
    ck_assert(!index_plan(&p, &plan));
    p = params(16, 8);
    p.max_spaces = 0;
    ck_assert(!index_plan(&p, &plan));
    p = params(16, 1u << 29);
    p.n_disk = UINT32_MAX;
    ck_assert(!index_plan(&p, &plan));
}
END_TEST

/* B45: sizes are 64-bit where they can exceed 2^31. */
START_TEST(b45_pool_sizes_are_64_bit)
{
    ck_assert_uint_eq(pool_slots_offset(9999, 1002240),
                      10000ull * 1002240 / 4096 * 4096 + (10000ull * 1002240 % 4096 ? 4096 : 0));
    ck_assert_uint_ge(pool_bytes(UINT32_MAX - 1, 1ull << 20, 0, 0), (1ull << 52) - (1ull << 20));
    ck_assert_uint_ge(pool_bytes(1, 64, UINT32_MAX - 1, 3ull << 30), 3ull << 61);
    ck_assert_uint_ge(channel_bytes(RING_MAX, ARENA_MAX), ARENA_MAX + RING_MAX * 64ull);
}
END_TEST

START_TEST(view_refuses_foreign_regions)
{
    struct index_params p = params(4, 16);
    struct index_plan plan;
    ck_assert(index_plan(&p, &plan));
    void *region =
        mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(region, MAP_FAILED);
    struct index_header *h = region;
    struct index_view view;
    *h = (struct index_header){.magic = INDEX_MAGIC, .format = LAYOUT_FORMAT, .params = p};
    ck_assert(!index_view_init(&view, region, plan.bytes)); /* not ready */
    h->ready = 1;
    ck_assert(index_view_init(&view, region, plan.bytes));
    ck_assert(!index_view_init(&view, region, plan.bytes - 1));
    ck_assert(!index_view_init(&view, region, 100));
    h->format++;
    ck_assert(!index_view_init(&view, region, plan.bytes));
    h->format--;
    h->magic++;
    ck_assert(!index_view_init(&view, region, plan.bytes));
    h->magic--;
    h->params.n_blocks = 1u << 31;
    ck_assert(!index_view_init(&view, region, plan.bytes));
}
END_TEST

/* Without F_SEAL_SEAL a worker could seal the pool against the next one. */
START_TEST(rule_regions_are_sealed_against_seals)
{
    for (int kind = SEGMENT_SHARED; kind <= SEGMENT_DAEMON; kind++) {
        struct segment s;
        ck_assert_int_eq(segment_create(&s, "test", (enum segment_kind)kind, 8192), 0);
        int seals = fcntl(s.fd, F_GET_SEALS);
        ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        ck_assert_int_eq(!!(seals & F_SEAL_FUTURE_WRITE), kind == SEGMENT_DAEMON);
        ck_assert_int_eq(fcntl(s.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
        ck_assert_int_eq(fcntl(s.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
        ck_assert_int_eq(ftruncate(s.fd, 4096), -1);
        ck_assert_int_eq(ftruncate(s.fd, 16384), -1);
        memset(s.base, 1, 8192); /* whoever made it writes it still */
        segment_free(&s);
    }
}
END_TEST

START_TEST(segment_map_checks_what_it_got)
{
    struct segment s, m;
    ck_assert_int_eq(segment_create(&s, "test", SEGMENT_SHARED, 8192), 0);
    ck_assert_int_eq(segment_map(&m, s.fd, SEGMENT_SHARED, 4096, true), -EINVAL);
    ck_assert_int_eq(segment_map(&m, s.fd, SEGMENT_SHARED, 12288, true), -EINVAL);
    ck_assert_int_eq(segment_map(&m, s.fd, SEGMENT_DAEMON, 8192, false), -EPERM);
    ck_assert_int_eq(segment_map(&m, s.fd, SEGMENT_SHARED, 8192, true), 0);
    ((char *)m.base)[5000] = 7;
    ck_assert_int_eq(((char *)s.base)[5000], 7);
    m.fd = -1;
    segment_free(&m);
    segment_free(&s);

    ck_assert_int_eq(segment_create(&s, "test", SEGMENT_DAEMON, 8192), 0);
    ck_assert_int_ne(segment_map(&m, s.fd, SEGMENT_DAEMON, 8192, true),
                     0); /* read-only for others */
    ck_assert_int_eq(segment_map(&m, s.fd, SEGMENT_DAEMON, 8192, false), 0);
    m.fd = -1;
    segment_free(&m);
    segment_free(&s);

    int bare = memfd_create("bare", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(bare, 8192), 0);
    ck_assert_int_eq(segment_map(&m, bare, SEGMENT_SHARED, 8192, true), -EPERM);
    close(bare);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("layout");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 30 * SLOW);
    tcase_add_test(t, plan_of_every_size);
    tcase_add_test(t, plan_refuses_what_ids_cannot_name);
    tcase_add_test(t, b45_pool_sizes_are_64_bit);
    tcase_add_test(t, view_refuses_foreign_regions);
    tcase_add_test(t, rule_regions_are_sealed_against_seals);
    tcase_add_test(t, segment_map_checks_what_it_got);
    suite_add_tcase(s, t);
    return s;
}
