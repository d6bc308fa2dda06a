/* A disk that stands still, or comes to its limits: who waits for it, and who does not. */
#include "tests/scenario/disk_site.h"

/* A disk that stands still costs those who need it, and nobody else. */
START_TEST(e94_others_go_on_while_the_disk_stands)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "64");
    site_set(&s, "--swap-depth", "1"); /* one path at a time is being written */
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    submit_fetch(&v, "aaaabbbbccccx", 1);
    inflight_is(&s, 3);
    uint64_t slowest = 0;
    for (uint32_t i = 0; i < 200; i++) {
        struct seq q = numbers(10 * i, 8);
        uint64_t began = now_us();
        struct pfx_lookup_args args = lookup_args(&s.w, &q);
        struct held h = {.match = {.size = sizeof h.match}};
        ck_assert_int_eq(pfx_lookup(s.w.c, &args, &h.match), 0);
        uint64_t took = now_us() - began;
        slowest = took > slowest ? took : slowest;
        ck_assert_int_eq(pfx_release(s.w.c, h.match.lease), 0);
    }
    ck_assert_uint_lt(slowest, 200 * 1000 * SLOW);
    /* 61 pages, of which one path in flight keeps 16: after a bounded wait blocks are lost. */
    for (uint32_t i = 0; i < 6; i++) {
        struct seq q = numbers(5000 + i * 1000, 16 * 4);
        uint64_t began = now_ms();
        ck_assert_uint_eq(cache_seq(&s.w, &q, 0), 16);
        ck_assert_uint_lt(now_ms() - began, 2000 * SLOW);
    }
    ck_assert_uint_eq(counters(&s.w).blocks_inflight, 3 + 16);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 6 * 16 - 61);
    io_go(&s);
    struct held a = await_fetch(&v, 1, "aaaabbbbccccx");
    ck_assert_uint_eq(a.match.matched_tokens, 12);
    drop(&v, &a);
    worker_close(&v);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* What needs pages that are in flight waits for them, as long as its caller does; the caller's
 * other leases go on meanwhile, and nothing is lost by it. */
START_TEST(e64_reserve_waits_for_pages_in_flight)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccddddeeeeffff");
    inflight_is(&s, 6);
    worker_open_timeout(&v, &s.h, 200 * SLOW);
    struct held l = look(&v, "zzzz");
    ck_assert_int_eq(grab(&v, &l, 3), PFX_ETIMEDOUT);
    step(&s.w);
    struct held m = look(&s.w, "yyyy");
    ck_assert_int_eq(pfx_submit_reserve(s.w.c, m.lease, 3, 5), 0);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    struct held n = look(&s.w, "aaaabbbbx");
    ck_assert_uint_eq(n.match.matched_tokens, 8);
    ck_assert_int_eq(grab(&s.w, &n, 9), PFX_ETOOBIG);
    drop(&s.w, &n);
    worker_close(&v); /* what it waited for is nobody's */
    io_go(&s);
    struct pfx_completion done = {.size = sizeof done};
    done.match.size = sizeof done.match;
    done.insert.size = sizeof done.insert;
    ck_assert_int_eq(pfx_wait(s.w.c, &done, sizeof done, 1, DISK_WAIT_MS), 1);
    ck_assert_uint_eq(done.tag, 5);
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.n_ids, 3);
    ck_assert_int_eq(release(&s.w, m.lease), 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddeeeeffffx"), 24);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 0);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Calls on a lease that waits for the disk come after, in their order, while the caller's others go
 * on. */
START_TEST(e94_calls_on_the_lease_that_waits_come_after)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held f = seek(&s, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(f.match.n_resident, 0);
    io_stop(&s);
    ck_assert_int_eq(pfx_submit_fetch(s.w.c, f.lease, 0), 0);
    inflight_is(&s, 3);
    ck_assert_int_eq(pfx_submit_reserve(s.w.c, f.lease, 1, 1), 0);
    ck_assert_int_eq(pfx_submit_release(s.w.c, f.lease, 2), 0);
    ck_assert_int_eq(pfx_submit_reserve(s.w.c, f.lease, 1, 3), 0);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    struct pfx_completion done = {.size = sizeof done};
    done.match.size = sizeof done.match;
    done.insert.size = sizeof done.insert;
    ck_assert_int_eq(pfx_wait(s.w.c, &done, sizeof done, 1, 0), 0);
    io_go(&s);
    for (unsigned i = 0; i < 4; i++) {
        done = (struct pfx_completion){.size = sizeof done};
        done.match.size = sizeof done.match;
        done.insert.size = sizeof done.insert;
        ck_assert_int_eq(pfx_wait(s.w.c, &done, sizeof done, 1, DISK_WAIT_MS), 1);
        ck_assert_uint_eq(done.tag, i);
        ck_assert_int_eq(done.status, i < 3 ? 0 : PFX_ESTALE);
        if (i == 0)
            ck_assert_uint_eq(done.match.n_resident, 3);
    }
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_stands");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, e94_others_go_on_while_the_disk_stands);
    tcase_add_test(t, e94_calls_on_the_lease_that_waits_come_after);
    tcase_add_test(t, e64_reserve_waits_for_pages_in_flight);
    suite_add_tcase(s, t);
    return s;
}
