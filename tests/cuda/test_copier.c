/* The copier (kernels/copier.h): host pools, and GPUs by a driver in this process. */
#include "kernels/block_copy_image.h"
#include "kernels/copier.h"
#include "tests/cuda/pocket.h"
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Instead of the build's, which may have none: the pocket driver does not look into it. */
const unsigned char block_copy_image[] = {1};
const size_t block_copy_image_bytes = 1;
const char block_copy_targets[] = "sm_1";

enum { POOL = 4 << 20, BUFFER = 1 << 20, BUFFERS = 3 };

struct stand {
    uint8_t *pool, *want;
    struct copier *c;
    char why[256], note[512];
    struct rng r;
};

static void fill(uint8_t *at, size_t n, struct rng *r)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = rng_next(r);
        memcpy(at + i, &word, 8);
    }
}

static struct copier_config config(const struct stand *s, bool cuda)
{
    return (struct copier_config){
        .pool = (uintptr_t)s->pool,
        .pool_bytes = POOL,
        .buffer_bytes = BUFFER,
        .n_buffers = BUFFERS,
        .numa_node = -1,
        .cuda = cuda ? &pocket.cu : NULL,
        .context = pocket.context,
        .engine_from = 64 << 10,
    };
}

static void stand_pool(struct stand *s)
{
    s->r = rng_seeded("copier");
    s->pool = aligned_alloc(4096, POOL);
    s->want = malloc(POOL);
    ck_assert(s->pool && s->want);
    fill(s->pool, POOL, &s->r);
    memcpy(s->want, s->pool, POOL);
}

static void stand_new(struct stand *s, bool cuda)
{
    pocket_init();
    stand_pool(s);
    struct copier_config g = config(s, cuda);
    s->c = copier_new(&g, s->why, sizeof s->why, s->note, sizeof s->note);
    ck_assert_msg(s->c != NULL, "%s", s->why);
}

static void stand_free(struct stand *s)
{
    copier_free(s->c);
    free(s->pool);
    free(s->want);
    ck_assert_int_eq(pocket.n_live, 0);
    ck_assert_int_eq(pocket.n_pushed, 0);
}

/* Until it is over. Returns how often it was not. */
static unsigned wait_for(struct stand *s, unsigned buffer)
{
    unsigned n = 0;
    int rc;
    while ((rc = copier_poll(s->c, buffer)) == 0)
        REQUIRE(n++ < 100000);
    REQUIRE_EQ(rc, 1);
    return n;
}

static unsigned taken(struct stand *s)
{
    int buffer = copier_take(s->c);
    REQUIRE(buffer >= 0);
    return (unsigned)buffer;
}

/* n pages of so many bytes, anywhere in the pool, none twice, none beside another; packed in the
 * buffer. */
static void pages(struct stand *s, struct copier_part *p, unsigned n, uint64_t bytes)
{
    uint64_t step = bytes + 16, room = POOL / step;
    uint32_t used[64] = {0};
    REQUIRE(n <= 64 && n <= room);
    for (unsigned i = 0; i < n;) {
        uint32_t at = rng_below(&s->r, (uint32_t)room);
        bool again = false;
        for (unsigned k = 0; k < i; k++)
            again |= used[k] == at;
        if (again)
            continue;
        used[i] = at;
        p[i] = (struct copier_part){at * step, i * bytes, bytes};
        i++;
    }
}

/* Out, compared; changed, and in to where it was: what the pool must be then stands in want. */
static void there_and_back(struct stand *s, const struct copier_part *p, unsigned n)
{
    unsigned b = taken(s);
    ck_assert_int_eq(copier_begin(s->c, b, COPIER_OUT, p, n), 0);
    wait_for(s, b);
    uint8_t *at = copier_buffer(s->c, b);
    for (unsigned i = 0; i < n; i++) {
        REQUIRE(memcmp(at + p[i].buffer, s->want + p[i].pool, p[i].bytes) == 0);
        for (uint64_t k = 0; k < p[i].bytes; k++)
            at[p[i].buffer + k] ^= (uint8_t)(0x5b + k);
        memcpy(s->want + p[i].pool, at + p[i].buffer, p[i].bytes);
    }
    ck_assert_int_eq(copier_begin(s->c, b, COPIER_IN, p, n), 0);
    wait_for(s, b);
    REQUIRE(memcmp(s->pool, s->want, POOL) == 0);
    copier_give(s->c, b);
}

static void sizes(struct stand *s)
{
    static const uint64_t bytes[] = {16, 48, 4096, 4112, 10000, 65536, 100000, 262144};
    for (unsigned i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        struct copier_part p[64];
        uint64_t most =
            BUFFER / bytes[i] < POOL / (bytes[i] + 16) ? BUFFER / bytes[i] : POOL / (bytes[i] + 16);
        unsigned n = 1 + rng_below(&s->r, most < 40 ? (uint32_t)most : 40);
        pages(s, p, n, bytes[i] / 16 * 16);
        there_and_back(s, p, n);
    }
}

/* ---- host pools ---------------------------------------------------------------------------- */

START_TEST(host_pool)
{
    struct stand s;
    stand_new(&s, false);
    for (int i = 0; i < 5; i++)
        sizes(&s);
    ck_assert_uint_eq(pocket.n_calls, 0);
    stand_free(&s);
}
END_TEST

/* A megabyte is not moved by one call, and the first call moves nothing. */
START_TEST(host_pool_in_steps)
{
    struct stand s;
    stand_new(&s, false);
    struct copier_part p = {BUFFER, 0, BUFFER};
    unsigned b = taken(&s);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, &p, 1), 0);
    ck_assert_uint_eq(copier_buffer(s.c, b)[0], 0);
    ck_assert_uint_ge(wait_for(&s, b), 2);
    ck_assert_int_eq(memcmp(copier_buffer(s.c, b), s.pool + BUFFER, BUFFER), 0);
    stand_free(&s);
}
END_TEST

/* It ends while transfers are under way. */
START_TEST(freed_in_the_middle)
{
    for (int cuda = 0; cuda < 2; cuda++) {
        struct stand s;
        stand_new(&s, cuda);
        struct copier_part p = {0, 0, BUFFER};
        for (int i = 0; i < BUFFERS; i++)
            ck_assert_int_eq(copier_begin(s.c, taken(&s), COPIER_OUT, &p, 1), 0);
        copier_poll(s.c, 1);
        stand_free(&s);
    }
}
END_TEST

/* ---- what is refused, the same for all ------------------------------------------------------- */

static void refused(struct stand *s, unsigned b, enum copier_way way, struct copier_part *p,
                    unsigned n, const char *why)
{
    unsigned calls = pocket.n_calls;
    ck_assert_int_eq(copier_begin(s->c, b, way, p, n), -EINVAL);
    ck_assert_msg(strstr(copier_why(s->c), why) != NULL, "%s", copier_why(s->c));
    ck_assert_uint_eq(pocket.n_calls, calls);
}

START_TEST(lists_that_are_refused)
{
    struct stand s;
    stand_new(&s, _i);
    unsigned b = taken(&s);
    struct copier_part p[3] = {{0, 0, 64}, {64, 64, 64}, {256, 128, 64}};
    static struct copier_part many[COPIER_PARTS + 1];

    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 3), 0);
    refused(&s, b, COPIER_OUT, p, 3, "under way");
    wait_for(&s, b);
    refused(&s, BUFFERS, COPIER_OUT, p, 3, "not taken");
    refused(&s, b ? b - 1 : b + 1, COPIER_OUT, p, 3, "not taken");
    refused(&s, b, COPIER_OUT, many, COPIER_PARTS + 1, "longer than");

    p[1] = (struct copier_part){POOL - 63, 64, 64};
    refused(&s, b, COPIER_OUT, p, 3, "part 1");
    p[1] = (struct copier_part){UINT64_MAX - 15, 64, 64};
    refused(&s, b, COPIER_OUT, p, 3, "part 1");
    p[1] = (struct copier_part){0, BUFFER - 48, 64};
    refused(&s, b, COPIER_IN, p, 3, "part 1");
    p[1] = (struct copier_part){0, 64, UINT64_MAX};
    refused(&s, b, COPIER_IN, p, 3, "part 1");
    p[1] = (struct copier_part){64, 72, 32};
    refused(&s, b, COPIER_IN, p, 3, "part 1");
    stand_free(&s);
}
END_TEST

/* Two parts over each other: where they are read from that is fine. */
START_TEST(overlaps)
{
    struct stand s;
    stand_new(&s, _i);
    unsigned b = taken(&s);
    const char *why = "the same bytes";
    struct copier_part same_page[] = {{4096, 0, 4096}, {8192, 4096, 4096}, {4096, 8192, 4096}};
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, same_page, 3), 0);
    wait_for(&s, b);
    refused(&s, b, COPIER_IN, same_page, 3, why);
    struct copier_part by_a_byte[] = {{8191, 0, 4096}, {4096, 4096, 4096}};
    refused(&s, b, COPIER_IN, by_a_byte, 2, why);
    by_a_byte[0].pool++;
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_IN, by_a_byte, 2), 0);
    wait_for(&s, b);
    struct copier_part same_room[] = {{0, 16, 64}, {4096, 64, 64}};
    refused(&s, b, COPIER_OUT, same_room, 2, why);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_IN, same_room, 2), 0);
    wait_for(&s, b);
    struct copier_part empty[] = {{0, 16, 64}, {4096, 32, 0}};
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, empty, 2), 0);
    wait_for(&s, b);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, NULL, 0), 0);
    ck_assert_uint_eq(wait_for(&s, b), 0);
    stand_free(&s);
}
END_TEST

START_TEST(buffers_are_taken_and_given)
{
    struct stand s;
    stand_new(&s, _i);
    unsigned b[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        b[i] = taken(&s);
        memset(copier_buffer(s.c, b[i]), i, BUFFER); /* each its own */
    }
    ck_assert_int_eq(copier_take(s.c), -1);
    for (int i = 0; i < BUFFERS; i++) {
        ck_assert_uint_eq(copier_buffer(s.c, b[i])[0], i);
        ck_assert_uint_eq(copier_buffer(s.c, b[i])[BUFFER - 1], i);
        ck_assert_uint_eq((uintptr_t)copier_buffer(s.c, b[i]) % 4096, 0);
    }
    copier_give(s.c, b[1]);
    ck_assert_int_eq(copier_take(s.c), (int)b[1]);
    stand_free(&s);
}
END_TEST

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* With the batches of CUDA 13, those of 12.8, and none. */
START_TEST(both_ways_at_random)
{
    struct stand s;
    stand_new(&s, true);
    if (_i > 0)
        pocket.cu.cuMemcpyBatchAsync = NULL;
    if (_i > 1)
        pocket.cu.cuMemcpyBatchAsync_v12080 = NULL;
    for (int i = 0; i < 5; i++)
        sizes(&s);
    ck_assert_uint_gt(pocket.n_launches, 0);
    ck_assert_int_eq(pocket.n_batches > 0, _i < 2);
    stand_free(&s);
}
END_TEST

/* By the kernel: a list, one large copy, a launch. By the engine: a copy a page. */
START_TEST(size_decides)
{
    struct stand s;
    struct copier_part p[16];
    stand_new(&s, true); /* from 64 KiB on */
    unsigned b = taken(&s);
    pages(&s, p, 16, (64 << 10) - 16);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 16), 0);
    ck_assert_uint_eq(pocket.n_launches, 1);
    ck_assert_uint_eq(pocket.n_copies, 2);
    wait_for(&s, b);
    pages(&s, p, 16, 64 << 10);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 16), 0);
    ck_assert_uint_eq(pocket.n_launches, 1);
    ck_assert_uint_eq(pocket.n_copies, 18);
    wait_for(&s, b);
    stand_free(&s);
}
END_TEST

/* 16 small pages side by side are one large one. */
START_TEST(neighbours_are_one)
{
    struct stand s;
    struct copier_part p[16];
    stand_new(&s, true);
    for (unsigned i = 0; i < 16; i++)
        p[i] = (struct copier_part){8192 + i * 4096, i * 4096, 4096};
    there_and_back(&s, p, 16);
    ck_assert_uint_eq(pocket.n_launches, 0);
    ck_assert_uint_eq(pocket.n_copies, 2);
    p[7].buffer = 17 * 4096; /* not in the buffer: two runs and one between */
    there_and_back(&s, p, 16);
    ck_assert_uint_eq(pocket.n_launches, 2);
    ck_assert_uint_eq(pocket.n_copies, 2 + 4);
    stand_free(&s);
}
END_TEST

/* A pool's page that is not aligned goes right, and not by the kernel. */
START_TEST(odd_pages)
{
    struct stand s;
    struct copier_part p[] = {{1, 0, 999}, {4096, 1008, 1}, {10007, 1024, 77}};
    stand_new(&s, true);
    there_and_back(&s, p, 3);
    ck_assert_uint_eq(pocket.n_launches, 0);
    stand_free(&s);
}
END_TEST

/* Three at once, over in another order than begun; nothing is there before it is over. */
START_TEST(in_flight)
{
    struct stand s;
    struct copier_part p[BUFFERS] = {{0, 0, BUFFER}, {BUFFER, 0, 4096}, {2 * BUFFER, 0, 65536}};
    stand_new(&s, true);
    unsigned b[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        b[i] = taken(&s);
        memset(copier_buffer(s.c, b[i]), 0, BUFFER);
        ck_assert_int_eq(copier_begin(s.c, b[i], COPIER_OUT, &p[i], 1), 0);
    }
    for (int i = BUFFERS; i-- > 0;) {
        ck_assert_uint_eq(*(uint64_t *)copier_buffer(s.c, b[i]), 0);
        ck_assert_uint_ge(wait_for(&s, b[i]), 1);
        ck_assert_int_eq(memcmp(copier_buffer(s.c, b[i]), s.pool + p[i].pool, p[i].bytes), 0);
    }
    stand_free(&s);
}
END_TEST

/* The list of 4096 pages, in batches of 1024. */
START_TEST(longest_list)
{
    struct stand s;
    static struct copier_part p[COPIER_PARTS];
    stand_new(&s, true);
    for (unsigned i = 0; i < COPIER_PARTS; i++)
        p[i] = (struct copier_part){(COPIER_PARTS - 1 - i) * 528ull, i * 256ull, 240};
    there_and_back(&s, p, COPIER_PARTS);
    ck_assert_uint_eq(pocket.n_launches, 2);
    for (unsigned i = 0; i < COPIER_PARTS; i++)
        p[i].pool++; /* so the engine must */
    there_and_back(&s, p, COPIER_PARTS);
    ck_assert_uint_eq(pocket.n_launches, 2);
    ck_assert_uint_eq(pocket.n_batches, 8);
    stand_free(&s);
}
END_TEST

/* ---- the measurement ---------------------------------------------------------------------------
 */

static void stand_measured(struct stand *s, unsigned copy_us, unsigned launch_us, unsigned batch_us)
{
    pocket_init();
    stand_pool(s);
    pocket.clock = true;
    pocket.copy_us = copy_us;
    pocket.launch_us = launch_us;
    pocket.batch_us = batch_us;
    struct copier_config g = config(s, true);
    g.engine_from = COPIER_MEASURE;
    s->c = copier_new(&g, s->why, sizeof s->why, s->note, sizeof s->note);
    pocket.clock = false;
    ck_assert_msg(s->c != NULL, "%s", s->why);
    ck_assert_int_eq(memcmp(s->pool, s->want, POOL), 0);
}

/* A copy costs 5 us and a launch 50, so with its two copies the kernel's way takes 60: the engine
 * is as fast up to 12 pages. A buffer is 8 pages of 128 KiB, or 16 of 64. */
START_TEST(measured)
{
    struct stand s;
    stand_measured(&s, 5, 50, 0);
    ck_assert_msg(strstr(s.note, "pages of 128 KiB and more, and up to 8 pages at once") != NULL,
                  "%s", s.note);
    /* 1 MiB in 16 x 5 us, and in 60 */
    ck_assert_msg(strstr(s.note, "64 KiB: 13.1 GB/s by the engine, 17.5 by the kernel") != NULL,
                  "%s", s.note);

    unsigned launches = pocket.n_launches, b = taken(&s);
    struct copier_part p[9];
    pages(&s, p, 8, 4096);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 8), 0);
    ck_assert_uint_eq(pocket.n_launches, launches);
    wait_for(&s, b);
    pages(&s, p, 9, 4096);
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 9), 0);
    ck_assert_uint_eq(pocket.n_launches, launches + 1);
    wait_for(&s, b);
    stand_free(&s);
}
END_TEST

/* The engine is always faster, or only for one page. */
START_TEST(measured_extremes)
{
    struct stand s;
    stand_measured(&s, 1, _i ? 1 : 20000, _i ? 1000 : 0);
    const char *say = _i ? "up to 1 pages at once" : "pages of 4 KiB and more, and up to 64 pages";
    ck_assert_msg(strstr(s.note, say) != NULL, "%s", s.note);
    ck_assert_int_eq(strstr(s.note, "and more") == NULL, _i);
    stand_free(&s);
}
END_TEST

/* ---- what fails
 * ---------------------------------------------------------------------------------- */

/* Without these it goes on, and says so. */
static const struct {
    const char *call, *note;
} spare[] = {
    {"cuModuleLoadData", "the kernels do not load: CUDA_ERROR_OUT_OF_MEMORY"},
    {"cuModuleGetFunction", "the kernels do not load: CUDA_ERROR_OUT_OF_MEMORY"},
    {"cuMemAlloc", "the kernels have no room for their stages: CUDA_ERROR_OUT_OF_MEMORY"},
    {"cuMemHostRegister", "the buffers are not pinned"},
};

START_TEST(goes_on_without)
{
    struct stand s;
    pocket_init();
    stand_pool(&s);
    pocket.fail = spare[_i].call;
    pocket.error = CUDA_OUT_OF_MEMORY;
    struct copier_config g = config(&s, true);
    s.c = copier_new(&g, s.why, sizeof s.why, s.note, sizeof s.note);
    ck_assert_msg(s.c != NULL, "%s", s.why);
    ck_assert_msg(strstr(s.note, spare[_i].note) != NULL, "%s", s.note);
    sizes(&s);
    ck_assert_int_eq(pocket.n_launches > 0, _i == 3);
    ck_assert_int_eq(pocket.n_batches > 0, _i != 3); /* they are for pinned memory */
    ck_assert_int_eq(strstr(s.note, "the copy engine moves all pages") != NULL, _i != 3);
    stand_free(&s);
}
END_TEST

/* A copy that is refused half way leaves nothing under way behind its caller's back. */
START_TEST(refused_half_way)
{
    static const char *const calls[] = {"cuEventRecord", "cuMemcpyDtoHAsync", "cuLaunchKernel"};
    struct stand s;
    struct copier_part p[8];
    stand_new(&s, true);
    unsigned b = taken(&s);
    pages(&s, p, 8, 4096);
    pocket.fail = calls[_i];
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 8), -EIO);
    ck_assert_uint_gt(pocket.n_copies, 0);
    ck_assert_uint_eq(pocket.n_waiting, 0);
    pocket.fail = NULL;
    ck_assert_int_eq(copier_begin(s.c, b, COPIER_OUT, p, 8), 0); /* still its taker's */
    wait_for(&s, b);
    stand_free(&s);
}
END_TEST

/* Each call fails once, from the first to the last: a sentence, or a slower way, and no handle is
 * left. A pool that was to be read is as it was. */
static bool one_fails(unsigned n)
{
    struct stand s;
    struct copier_part p[32];
    pocket_init();
    stand_pool(&s);
    pocket.fail_call = n;
    struct copier_config g = config(&s, true);
    s.c = copier_new(&g, s.why, sizeof s.why, s.note, sizeof s.note);
    if (!s.c)
        ck_assert_msg(strstr(s.why, "CUDA_ERROR_OTHER") != NULL, "%s", s.why);
    for (int i = 0; s.c && i < 2; i++) {
        unsigned b = taken(&s);
        pages(&s, p, i ? 8 : 32, i ? 80 << 10 : 4096);
        int rc = copier_begin(s.c, b, COPIER_OUT, p, i ? 8 : 32);
        while (!rc && (rc = copier_poll(s.c, b)) == 0)
            continue;
        ck_assert(rc == 1 || rc == -EIO);
        if (rc < 0)
            ck_assert_msg(strstr(copier_why(s.c), "CUDA_ERROR_OTHER") != NULL, "%s",
                          copier_why(s.c));
        else
            for (unsigned k = 0; k < (i ? 8u : 32u); k++)
                ck_assert_int_eq(
                    memcmp(copier_buffer(s.c, b) + p[k].buffer, s.pool + p[k].pool, p[k].bytes), 0);
        copier_give(s.c, b);
    }
    ck_assert_int_eq(memcmp(s.pool, s.want, POOL), 0);
    bool reached = pocket.n_calls >= n;
    pocket.fail_call = 0;
    stand_free(&s);
    return reached;
}

START_TEST(each_call_fails)
{
    unsigned n = 1;
    while (one_fails(n))
        n++;
    ck_assert_uint_gt(n, 30);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("copier");
    TCase *tc = tcase_create("copier");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, host_pool);
    tcase_add_test(tc, host_pool_in_steps);
    tcase_add_test(tc, freed_in_the_middle);
    tcase_add_loop_test(tc, lists_that_are_refused, 0, 2);
    tcase_add_loop_test(tc, overlaps, 0, 2);
    tcase_add_loop_test(tc, buffers_are_taken_and_given, 0, 2);
    tcase_add_loop_test(tc, both_ways_at_random, 0, 3);
    tcase_add_test(tc, size_decides);
    tcase_add_test(tc, neighbours_are_one);
    tcase_add_test(tc, odd_pages);
    tcase_add_test(tc, in_flight);
    tcase_add_test(tc, longest_list);
    tcase_add_test(tc, measured);
    tcase_add_loop_test(tc, measured_extremes, 0, 2);
    tcase_add_loop_test(tc, goes_on_without, 0, sizeof spare / sizeof *spare);
    tcase_add_loop_test(tc, refused_half_way, 0, 3);
    tcase_add_test(tc, each_call_fails);
    suite_add_tcase(s, tc);
    return s;
}
