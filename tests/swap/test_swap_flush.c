/* What must not come back: flushes and retired slots, after restarts, errors and rot. */
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { N = 60 };

static bool has(const struct written *found, uint32_t n, uint64_t generation)
{
    for (uint32_t i = 0; i < n; i++)
        if (found[i].generation == generation)
            return true;
    return false;
}

/* Records of spaces 1, 2, 3 in turn. */
static void fill(struct rig *r, struct written *w, int n)
{
    rig_wait_ready(r, STORE_BLOCKS, (uint32_t)n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(rig_write(r, 0, (uint64_t)(i % 3 + 1), &w[i]), SWAP_GOOD);
}

static uint32_t restart(struct rig *r, struct written *found)
{
    rig_stop(r);
    rig_start_only(r);
    return rig_scan(r, found, 2 * N);
}

START_TEST(a_space)
{
    struct rig r;
    struct written w[N], found[2 * N];
    rig_init(&r, 4096, 8, 2 * N);
    rig_start(&r);
    fill(&r, w, N);
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 2, swap_generation(r.sw)), SWAP_GOOD);
    struct written after;
    ck_assert_int_eq(rig_write(&r, 0, 2, &after), SWAP_GOOD); /* new bytes of the same space */
    for (int again = 0; again < 3; again++) {
        uint32_t n = restart(&r, found);
        ck_assert_uint_eq(n, N / 3 * 2 + 1);
        for (uint32_t i = 0; i < n; i++)
            ck_assert(found[i].space != 2 || found[i].generation == after.generation);
        ck_assert(has(found, n, after.generation));
    }
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 2, UINT64_MAX), SWAP_GOOD);
    ck_assert_uint_eq(restart(&r, found), N / 3 * 2);
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 0, UINT64_MAX), SWAP_GOOD);
    ck_assert_uint_eq(restart(&r, found), 0);
    ck_assert_int_eq(rig_write(&r, 0, 2, &after), SWAP_GOOD);
    ck_assert_uint_eq(restart(&r, found), 1);
    rig_deinit(&r);
}
END_TEST

/* More spaces than there are records for: none is forgotten, at the price of some that were not
 * meant. */
START_TEST(more_spaces_than_records)
{
    enum { SPACES = 3 * FLUSH_RECORDS / 2 };
    struct rig r;
    struct written w[N], found[2 * N], fresh;
    rig_init(&r, 4096, 8, 2 * N);
    rig_start(&r);
    fill(&r, w, N);
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 2, UINT64_MAX), SWAP_GOOD);
    for (uint64_t s = 0; s < SPACES; s++) {
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 1000 + s, swap_generation(r.sw)), SWAP_GOOD);
        if (s % 500 == 0) {
            uint32_t n = restart(&r, found);
            for (uint32_t i = 0; i < n; i++)
                ck_assert_uint_ne(found[i].space, 2);
            if (s == 500)
                ck_assert_uint_eq(n, N / 3 * 2);
        }
    }
    ck_assert_int_eq(rig_write(&r, 0, 4, &fresh), SWAP_GOOD);
    uint32_t n = restart(&r, found);
    ck_assert(has(found, n, fresh.generation));
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_ne(found[i].space, 2);
    rig_deinit(&r);
}
END_TEST

/* Old headers gone, old records mean nothing: the newest are enough, and nothing else is lost. */
START_TEST(records_without_headers_make_room)
{
    struct rig r;
    struct written w[N], found[2 * N];
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t s = 0; s < FLUSH_RECORDS - 100; s++)
            ck_assert_int_eq(
                rig_flush(&r, STORE_BLOCKS, 5000 * round + s + 10, swap_generation(r.sw)),
                SWAP_GOOD);
        for (int i = 0; i < N; i++) {
            if (round)
                swap_slot_give(r.sw, STORE_BLOCKS, w[i].slot);
            ck_assert_int_eq(rig_write(&r, 0, 1, &w[i]), SWAP_GOOD);
        }
    }
    ck_assert_uint_eq(restart(&r, found), N); /* all of them: flushed_all was not needed */
    rig_deinit(&r);
}
END_TEST

START_TEST(many_flushes_of_one_space)
{
    struct rig r;
    struct written w, found[2 * N];
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < FLUSH_RECORDS + 200; i++)
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 5, swap_generation(r.sw)), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    ck_assert_uint_eq(restart(&r, found), 1);
    rig_deinit(&r);
}
END_TEST

/* A rotten superblock has a twin; a rotten flush record might have been of any space. */
START_TEST(rot)
{
    for (int what = 0; what < 3; what++) {
        struct rig r;
        struct written w[N], found[2 * N];
        rig_init(&r, 4096, 8, N);
        rig_start(&r);
        fill(&r, w, N / 2);
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 0, UINT64_MAX), SWAP_GOOD);
        struct written after[2];
        ck_assert_int_eq(rig_write(&r, 0, 2, &after[0]), SWAP_GOOD);
        ck_assert_int_eq(rig_write(&r, 0, 3, &after[1]), SWAP_GOOD);
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 2, UINT64_MAX), SWAP_GOOD);
        rig_stop(&r);
        const char *name = rig_file(&r, 0, STORE_BLOCKS);
        if (what < 2)
            file_flip(name, (uint64_t)what * SWAP_SUPERBLOCK + 100);
        else
            file_flip(name, SWAP_FLUSHES + 17);
        rig_start_only(&r);
        uint32_t n = rig_scan(&r, found, 2 * N);
        ck_assert_uint_eq(n, what < 2 ? 1 : 0);
        if (n)
            ck_assert_uint_eq(found[0].generation, after[1].generation);
        rig_deinit(&r);
    }
}
END_TEST

START_TEST(retired)
{
    struct rig r;
    struct written w[N], found[2 * N], more;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N);
    ck_assert_int_eq(rig_retire(&r, w[7].slot), SWAP_GOOD);
    ck_assert_int_eq(rig_retire(&r, w[8].slot), SWAP_GOOD);
    ck_assert_int_eq(rig_read(&r, &w[7]), SWAP_CORRUPT);
    for (int again = 0; again < 2; again++) {
        uint32_t n = restart(&r, found);
        ck_assert_uint_eq(n, N - 2);
        ck_assert(!has(found, n, w[7].generation) && !has(found, n, w[8].generation));
        ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0); /* not used again */
    }
    swap_slot_give(r.sw, STORE_BLOCKS, w[9].slot);
    ck_assert_int_eq(rig_write(&r, 0, 1, &more), SWAP_GOOD);
    ck_assert_uint_eq(more.slot, w[9].slot);
    rig_deinit(&r);
}
END_TEST

/* A flush that cannot be written says so, and is written as soon as it can be. */
START_TEST(flush_that_fails)
{
    for (int all = 0; all < 2; all++) {
        struct rig r;
        struct written w[N], found[2 * N];
        rig_init(&r, 4096, 8, N);
        rig_start(&r);
        fill(&r, w, N);
        faults_sync(EIO, 3);
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, all ? 0 : 2, UINT64_MAX), SWAP_FAILED);
        ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD); /* others are served all the while */
        sleep_us(100 * 1000);
        faults_clear();
        sleep_us(5000 * 1000);
        ck_assert_uint_eq(restart(&r, found), all ? 0 : N / 3 * 2);
        rig_deinit(&r);
    }
}
END_TEST

/* So does a retirement; and it holds, whether it is written in time, or as the last thing of all.
 */
START_TEST(retire_that_fails)
{
    struct rig r;
    struct written w[N], found[2 * N];
    uint64_t magic = 0;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N);
    faults_sync(EIO, 2);
    ck_assert_int_eq(rig_retire(&r, w[7].slot), SWAP_FAILED);
    ck_assert_int_eq(rig_retire(&r, w[8].slot), SWAP_FAILED);
    file_get(rig_file(&r, 0, STORE_BLOCKS), rig_header_offset(&r, w[7].slot), &magic, sizeof magic);
    ck_assert_uint_eq(magic, HEADER_MAGIC);
    if (_i == 0)
        for (int k = 7; k < 9; k++)
            EVENTUALLY(WAIT_MS, (file_get(rig_file(&r, 0, STORE_BLOCKS),
                                          rig_header_offset(&r, w[k].slot), &magic, sizeof magic),
                                 magic == RETIRED_MAGIC));
    uint32_t n = restart(&r, found);
    ck_assert_uint_eq(n, N - 2);
    ck_assert(!has(found, n, w[7].generation) && !has(found, n, w[8].generation));
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0);
    rig_deinit(&r);
}
END_TEST

/* A retirement that succeeds after all, by another order, is not written once more. */
START_TEST(retire_that_fails_once)
{
    struct rig r;
    struct written w[N];
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, 3);
    faults_sync(EIO, 1);
    ck_assert_int_eq(rig_retire(&r, w[1].slot), SWAP_FAILED);
    ck_assert_int_eq(rig_retire(&r, w[1].slot), SWAP_GOOD);
    unsigned done = faults_done();
    faults_sync(EIO, 1); /* would be used up by a second one */
    sleep_us(5000 * 1000);
    ck_assert_uint_eq(faults_done(), done);
    rig_deinit(&r);
}
END_TEST

/* What does not come back is not waited for: the answer is an error, and it is kept later. */
START_TEST(promises_of_a_sick_file)
{
    struct rig r;
    struct written w[N], found[2 * N];
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N);
    faults_plan(FAULT_EIO, (struct fault_where){.reads = true}, 0, 1000);
    for (int i = 0; i < 20 && swap_facts(r.sw).healthy; i++)
        ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_FAILED);
    ck_assert(!swap_facts(r.sw).healthy);
    unsigned before = faults_sync_calls();
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 2, UINT64_MAX), SWAP_FAILED);
    ck_assert_int_eq(rig_retire(&r, w[8].slot), SWAP_FAILED);
    ck_assert_uint_eq(faults_sync_calls(), before); /* not even tried */
    faults_clear();
    EVENTUALLY(WAIT_MS, swap_facts(r.sw).healthy);
    EVENTUALLY(WAIT_MS, faults_sync_calls() >= before + 4); /* records, two superblocks, a header */
    ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD);
    uint32_t n = restart(&r, found), want = 0;
    for (int i = 0; i < N; i++)
        want += w[i].space != 2 && i != 8;
    ck_assert_uint_eq(n, want);
    rig_deinit(&r);
}
END_TEST

/* During the scan: what comes after the answer is not of that space any more. */
START_TEST(during_the_scan)
{
    enum { MANY = 3000 };
    struct rig r;
    rig_init(&r, 64, 64, MANY);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, MANY);
    struct written w, last;
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_eq(rig_write(&r, 0, (uint64_t)(i % 2 + 1), &w), SWAP_GOOD);
        if (i % 2 == 0)
            last = w;
    }
    rig_stop(&r);
    rig_start_only(&r);
    struct swap_order *flush = rig_order(&r, SWAP_FLUSH, STORE_BLOCKS);
    flush->space[0] = 2;
    flush->space[1] = ~2ull;
    flush->generation = UINT64_MAX;
    swap_submit(r.sw, flush);
    bool answered = false, over = false;
    uint32_t before = 0, kept = 0;
    uint64_t highest = 0;
    while (!answered || !over) {
        struct swap_order *o = rig_take(&r);
        if (o == flush) {
            ck_assert_int_eq(o->status, SWAP_GOOD);
            answered = true;
        }
        for (uint32_t i = 0; o != flush && i < o->n; i++) {
            const struct body_prefix *p = (const struct body_prefix *)(void *)o->record[i].body;
            before += p->space[0] == 2;
            kept += p->space[0] == 1;
            highest = o->record[i].generation;
            ck_assert(!answered || p->space[0] == 1);
        }
        over |= o != flush && o->last;
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(kept, MANY / 2);
    ck_assert_uint_eq(highest, last.generation);
    ck_assert_uint_lt(before, MANY / 2);
    rig_stop(&r);
    struct written found[1];
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, 0), MANY / 2);
    rig_deinit(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_flush");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, a_space);
    tcase_add_test(t, more_spaces_than_records);
    tcase_add_test(t, records_without_headers_make_room);
    tcase_add_test(t, many_flushes_of_one_space);
    tcase_add_test(t, rot);
    tcase_add_test(t, retired);
    tcase_add_test(t, flush_that_fails);
    tcase_add_loop_test(t, retire_that_fails, 0, 2);
    tcase_add_test(t, retire_that_fails_once);
    tcase_add_test(t, promises_of_a_sick_file);
    tcase_add_test(t, during_the_scan);
    suite_add_tcase(s, t);
    return s;
}
