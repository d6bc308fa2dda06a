/* Calls that wait for the disk, and what happens meanwhile to what they wait for: it is held still in
 * the middle (io_stop). */
#include "tests/raw.h"
#include "tests/scenario/disk_site.h"

static bool next(struct worker *w, struct pfx_completion *done, int ms)
{
    *done = (struct pfx_completion){.size = sizeof *done};
    done->match.size = sizeof done->match;
    done->insert.size = sizeof done->insert;
    return pfx_wait(w->c, done, sizeof *done, 1, ms) == 1;
}

/* A fetch waits for pages, and a mate cuts its match, to 0, 1 or 2 blocks of 3. */
START_TEST(b22_truncate_while_its_fetch_waits_for_pages)
{
    struct site s;
    struct worker a, b;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&a, &s.h, "mates");
    worker_open(&b, &s.h, "mates");
    struct site by_a = site_by(&s, a);
    struct held l = seek(&by_a, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(l.match.n_resident, 0);
    io_stop(&s);
    cache(&s.w, "AAAABBBBCCCCDDDDEEEEFFFF");
    inflight_is(&s, 6);
    ck_assert_int_eq(pfx_submit_fetch(a.c, l.lease, 1), 0);
    ck_assert_int_eq(pfx_ping(a.c), 0);
    ck_assert_int_eq(pfx_truncate(b.c, l.lease, (uint32_t)_i), 0);
    io_go(&s);
    struct pfx_completion done;
    ck_assert(next(&a, &done, DISK_WAIT_MS));
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.match.n_blocks, _i);
    ck_assert_uint_eq(done.match.n_resident, _i);
    struct seq q = seq("aaaabbbbccccx");
    for (int i = 0; i < _i; i++)
        ck_assert(bytes_are(&a, done.match.blocks[i], &q, 4 * (size_t)(i + 1)));
    step(&a);
    ck_assert_int_eq(release(&a, l.lease), 0);
    worker_close(&a);
    worker_close(&b);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* As many jobs wait for the disk as the ring has entries, and one more, which no worker of the
 * library would send: the daemon sleeps all the same. */
START_TEST(e94_ring_full_of_waiting_calls)
{
    struct site s;
    struct raw r;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "64");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    raw_open(&r, &s.h, "raw");
    io_stop(&s);
    for (uint32_t i = 0; i < r.out.size + 1; i++) {
        /* a flush waits for the disk, and for nothing else */
        struct request rq = {.op = OP_FLUSH, .tag = i};
        while (!raw_post(&r, &rq))
            sleep_us(1000);
    }
    sleep_us(300000);
    uint64_t before = process_cpu_us(s.h.pid);
    sleep_us(500000);
    uint64_t spent = process_cpu_us(s.h.pid) - before;
    io_go(&s);
    ck_assert_msg(spent < 150000, "%llu us of 500000 were spent asleep", (unsigned long long)spent);
    for (uint32_t i = 0; i < r.out.size + 1; i++) {
        struct wire_completion out;
        ck_assert(raw_take(&r, &out, DISK_WAIT_MS));
        ck_assert_int_eq(out.status, 0);
    }
    raw_close(&r);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Nothing can be evicted while all is being written; who asks for it does not wait for as long as
 * the disk stands. */
START_TEST(e94_evict_while_all_is_in_flight)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccddddeeeeffffgggghhhh");
    inflight_is(&s, 8);
    uint64_t began = now_ms();
    struct pfx_evicted e = {.size = sizeof e};
    int rc = pfx_evict(s.w.c, 8, &e);
    uint64_t took = now_ms() - began;
    io_go(&s);
    ck_assert_msg(rc == 0, "%s after %llu ms", pfx_strerror(rc), (unsigned long long)took);
    ck_assert_uint_eq(e.freed_blocks, 0);
    ck_assert_uint_lt(took, 2000 * SLOW);
    all_written(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddeeeeffffgggghhhhx"), 32);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* A flush has freed its pages and waits for the disk alone. Who finds no room meanwhile hears so at
 * once. */
START_TEST(e64_no_room_while_a_flush_waits_for_the_disk)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_set(&s, "--swap-depth", "1"); /* one path at a time is being written */
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held all = look(&s.w, "xxxx");
    ck_assert_int_eq(grab(&s.w, &all, 6), 0);
    struct held l = seek(&s, "aaaabbbbccccx", 0);
    worker_open_timeout(&v, &s.h, 300);
    struct site by_v = site_by(&s, v);
    use_space(&by_v, "tenant", 0, 0, 3);
    io_stop(&s);
    cache(&s.w, "yyyy");
    inflight_is(&s, 1);
    cache(&s.w, "zzzz");
    ck_assert_int_eq(pfx_flush(v.c, by_v.w.space), PFX_ETIMEDOUT);
    uint64_t began = now_ms();
    int rc = pfx_fetch(s.w.c, l.lease, &l.match);
    uint64_t took = now_ms() - began;
    io_go(&s);
    ck_assert_msg(rc == PFX_ENOSPC, "%s after %llu ms", pfx_strerror(rc),
                  (unsigned long long)took);
    ck_assert_uint_lt(took, 1000 * SLOW);
    step(&s.w);
    drop(&s.w, &l);
    drop(&s.w, &all);
    worker_close(&v);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk: calls that wait");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, b22_truncate_while_its_fetch_waits_for_pages, 0, 4);
    tcase_add_test(t, e94_ring_full_of_waiting_calls);
    tcase_add_test(t, e94_evict_while_all_is_in_flight);
    tcase_add_test(t, e64_no_room_while_a_flush_waits_for_the_disk);
    suite_add_tcase(s, t);
    return s;
}
