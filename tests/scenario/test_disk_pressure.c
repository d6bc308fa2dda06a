/* Pages are needed, and the disk cannot keep up, or has too little room: what it costs is bounded.
 */
#include "daemon/disk.h"
#include "tests/scenario/disk_site.h"

#include <stdio.h>

enum { BLOCKS = 1024, GROUP = 128, NEED = BLOCKS - 64, WAIT_MS = 500 };

/* Groups of paths of one block, in turn worth writing (seen twice) and not: so that what must be
 * waited for comes again and again. */
static void fill_pool(struct site *s)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        char text[8];
        snprintf(text, sizeof text, "%04u", i);
        cache(&s->w, text);
        if (i / GROUP % 2 == 0) {
            snprintf(text, sizeof text, "%04ux", i);
            struct held h = look(&s->w, text);
            REQUIRE_EQ(h.match.matched_tokens, 4);
            drop(&s->w, &h);
        }
    }
}

/* A disk that stands still costs a caller one wait, whatever it needs: then blocks are lost, and
 * counted. */
START_TEST(one_wait_a_call)
{
    struct site s;
    site_init(&s, "16M");
    site_set(&s, "--blocks", "1024");
    site_set(&s, "--swap-write", "evict");
    site_set(&s, "--swap-admit", "2");
    site_set(&s, "--swap-depth", "1");
    site_start(&s);
    s.w.unchecked = true;
    fill_pool(&s);
    ck_assert_uint_eq(counters(&s.w).blocks_idle, BLOCKS);
    io_stop(&s);
    uint64_t before = now_ms();
    if (_i == 0) {
        struct pfx_evicted evicted = {.size = sizeof evicted};
        ck_assert_int_eq(pfx_evict(s.w.c, NEED, &evicted), 0);
        ck_assert_uint_eq(evicted.freed_blocks, NEED);
    } else {
        struct held h = look(&s.w, "x");
        ck_assert_int_eq(grab(&s.w, &h, NEED), 0);
        drop(&s.w, &h);
    }
    uint64_t took = now_ms() - before;
    io_go(&s);
    ck_assert_uint_ge(took, WAIT_MS);
    ck_assert_uint_lt(took, 3 * WAIT_MS);
    audit_clean(&s.h);
    site_deinit(&s);
}
END_TEST

/* Files that hold less than is to be kept clean, or, by insert, less than the pool. To give up the
 * copy of a block that is still in the pool, only to write another, would never end. */
START_TEST(no_endless_writes)
{
    enum { SLOTS = 48, PATHS = 256, SETTLE_MS = 300 };
    struct site s;
    char budget[32];
    uint64_t bytes = swap_file_bytes(4096, 1, body_room(4), SLOTS);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)bytes);
    site_init(&s, budget);
    site_set(&s, "--blocks", "256");
    site_set(&s, "--swap-write", _i == 0 ? "evict" : "insert");
    site_start(&s);
    s.w.unchecked = true;
    for (unsigned i = 0; i < PATHS; i++) {
        char text[8];
        snprintf(text, sizeof text, "%04u", i);
        cache(&s.w, text);
    }
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_used == SLOTS);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).blocks_inflight == 0);
    uint64_t written = counters(&s.w).disk_written_blocks;
    for (uint64_t until = now_ms() + SETTLE_MS; now_ms() < until;)
        ck_assert_int_eq(pfx_ping(s.w.c), 0); /* it has its turns */
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, written);
    ck_assert_uint_le(written, 2 * SLOTS);
    /* Yet what must leave the pool takes the place of what need not. */
    ck_assert_uint_eq(evict_pages(&s, SLOTS), 0);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_used == SLOTS);
    audit_clean(&s.h);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_pressure");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, one_wait_a_call, 0, 2);
    tcase_add_loop_test(t, no_endless_writes, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
