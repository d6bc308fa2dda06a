/* The GPU's copying code (kernels/block_copy.h) on the CPU, against memcpy. */
#include "tests/cuda/lanes.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a pattern that no shift repeats within a few MiB. */
static void fill(uint8_t *at, size_t n, struct rng *r)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = rng_next(r);
        memcpy(at + i, &word, n - i < 8 ? n - i : 8);
    }
}

static uint8_t *room(size_t n)
{
    uint8_t *at = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    ck_assert_ptr_nonnull(at);
    return at;
}

static struct copy_piece piece(uint8_t *to, const uint8_t *from, size_t n)
{
    return (struct copy_piece){(uintptr_t)to, (uintptr_t)from, n};
}

/* One piece by one warp, and the bytes around it stay. */
static void one_piece(uint8_t *to, const uint8_t *from, size_t n)
{
    static uint8_t before[3 * COPY_CHUNK], want[3 * COPY_CHUNK];
    uint8_t *start = to - 32;
    size_t all = n + 64;
    memset(start, 0x5a, all);
    memcpy(before, start, all);
    memcpy(want, before, all);
    memcpy(want + 32, from, n);
    struct copy_piece p = piece(to, from, n);
    lanes_run(&p, 1, (uint32_t)copy_chunks(n), 1, COPY_WARP, n);
    REQUIRE_MSG(memcmp(start, want, all) == 0, "%zu bytes from ..%x to ..%x", n,
                (unsigned)((uintptr_t)from % 16), (unsigned)((uintptr_t)to % 16));
}

START_TEST(sizes_and_alignments)
{
    static const size_t sizes[] = {COPY_CHUNK - 17,
                                   COPY_CHUNK - 1,
                                   COPY_CHUNK,
                                   COPY_CHUNK + 1,
                                   COPY_CHUNK + 31,
                                   2 * COPY_CHUNK + 5,
                                   2048,
                                   2047,
                                   2049};
    struct rng r = rng_seeded("sizes and alignments");
    uint8_t *to = room(4 * COPY_CHUNK), *from = room(4 * COPY_CHUNK);
    fill(from, 4 * COPY_CHUNK, &r);
    for (unsigned t = 0; t < 16; t++)
        for (unsigned f = 0; f < 16; f++) {
            for (size_t n = 0; n <= 70; n++)
                one_piece(to + 32 + t, from + f, n);
            for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
                one_piece(to + 32 + t, from + f, sizes[i]);
        }
    free(to);
    free(from);
}
END_TEST

/* A lane that wrote what another writes too would be right in any order, and slow. */
START_TEST(each_byte_has_one_lane)
{
    enum { N = COPY_CHUNK + 999, BLOCKS = 2, THREADS = 64 };
    for (unsigned skew = 0; skew < 16; skew += 3) {
        uint8_t *to = room(N + 64), *from = room(N + 64);
        static uint8_t written[N];
        memset(written, 0, sizeof written);
        memset(from, 1, N + 64);
        struct copy_piece p = piece(to + skew, from + skew % 2 * 5, N);
        for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
            memset(to, 0, N + 64);
            block_copy_lane(&p, 1, (uint32_t)copy_chunks(N),
                            (struct copy_place){i / THREADS, BLOCKS, i % THREADS, THREADS});
            for (unsigned k = 0; k < N; k++)
                written[k] += to[skew + k];
        }
        for (unsigned k = 0; k < N; k++)
            REQUIRE_EQ(written[k], 1);
        free(to);
        free(from);
    }
}
END_TEST

static size_t random_size(struct rng *r)
{
    switch (rng_below(r, 5)) {
    case 0:
        return rng_below(r, 64);
    case 1:
        return 16 * rng_below(r, 600);
    case 2:
        return COPY_CHUNK * rng_below(r, 4) + rng_below(r, 33);
    case 3:
        return rng_below(r, 5 * COPY_CHUNK);
    default:
        return 4096;
    }
}

/* A list of pieces of many sizes, any grid: what stands in `want` was copied by memcpy. */
static void random_list(struct rng *r)
{
    enum { ROOM = 1 << 20, PIECES = 200 };
    uint8_t *to = room(ROOM), *want = room(ROOM), *from = room(ROOM + 16);
    struct copy_piece list[PIECES];
    uint32_t n = 0;
    uint64_t longest = 0;
    fill(from, ROOM + 16, r);
    fill(to, ROOM, r);
    memcpy(want, to, ROOM);
    for (size_t at = rng_below(r, 40); n < PIECES; n++) {
        size_t bytes = random_size(r);
        if (at + bytes > ROOM)
            break;
        size_t source = rng_below(r, (uint32_t)(ROOM - bytes + 1));
        if (rng_below(r, 4)) /* congruent, as pages are */
            source = source - source % 16 + at % 16;
        list[n] = piece(to + at, from + source, bytes);
        memcpy(want + at, from + source, bytes);
        longest = bytes > longest ? bytes : longest;
        at += bytes + rng_below(r, 3) * rng_below(r, 50);
    }
    lanes_run(list, n, (uint32_t)copy_chunks(longest), 1 + rng_below(r, 9),
              COPY_WARP * (1 + rng_below(r, 8)), rng_next(r));
    REQUIRE(memcmp(to, want, ROOM) == 0);
    free(to);
    free(want);
    free(from);
}

START_TEST(lists_at_random)
{
    struct rng r = rng_seeded("lists");
    for (int i = 0; i < 1500 / SLOW; i++)
        random_list(&r);
}
END_TEST

/* Out of a pool in any order into one buffer, and back into another pool. */
START_TEST(thousands_of_pages)
{
    enum { PAGES = 5000, PAGE = 1040 };
    struct rng r = rng_seeded("pages");
    uint8_t *pool = room(PAGES * PAGE), *stage = room(PAGES * PAGE), *other = room(PAGES * PAGE);
    struct copy_piece *list = calloc(PAGES, sizeof *list);
    uint32_t *page = calloc(PAGES, sizeof *page);
    ck_assert(list && page);
    fill(pool, PAGES * PAGE, &r);
    memset(other, 0, PAGES * PAGE);
    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t j = rng_below(&r, i + 1);
        page[i] = page[j];
        page[j] = i;
    }
    for (uint32_t i = 0; i < PAGES; i++)
        list[i] = piece(stage + i * PAGE, pool + page[i] * PAGE, PAGE);
    lanes_run(list, PAGES, (uint32_t)copy_chunks(PAGE), 16, COPY_THREADS, rng_next(&r));
    for (uint32_t i = 0; i < PAGES; i++)
        REQUIRE(memcmp(stage + i * PAGE, pool + page[i] * PAGE, PAGE) == 0);
    for (uint32_t i = 0; i < PAGES; i++)
        list[i] = piece(other + page[i] * PAGE, stage + i * PAGE, PAGE);
    lanes_run(list, PAGES, (uint32_t)copy_chunks(PAGE), 7, COPY_THREADS, rng_next(&r));
    ck_assert_int_eq(memcmp(pool, other, PAGES * PAGE), 0);
    free(pool);
    free(stage);
    free(other);
    free(list);
    free(page);
}
END_TEST

/* Chunk numbers past a shorter piece's end, an empty piece, an empty list. */
START_TEST(nothing_to_do)
{
    uint8_t from[64], to[64];
    memset(from, 7, sizeof from);
    memset(to, 1, sizeof to);
    struct copy_piece list[] = {piece(to, from, 0), piece(to + 16, from, 16)};
    lanes_run(list, 2, 50, 3, COPY_WARP, 1);
    lanes_run(NULL, 0, 1, 3, COPY_WARP, 1);
    for (unsigned i = 0; i < sizeof to; i++)
        ck_assert_uint_eq(to[i], i >= 16 && i < 32 ? 7 : 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("block_copy");
    TCase *tc = tcase_create("block_copy");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, sizes_and_alignments);
    tcase_add_test(tc, each_byte_has_one_lane);
    tcase_add_test(tc, lists_at_random);
    tcase_add_test(tc, thousands_of_pages);
    tcase_add_test(tc, nothing_to_do);
    suite_add_tcase(s, tc);
    return s;
}
