/* Blocks on their way between pool and disk, with the disk held still in the middle (io_stop): who
 * may see them, who must wait, and what becomes of them when a worker, a space or the daemon goes.
 */
#include "tests/scenario/disk_site.h"

#include <signal.h>
#include <string.h>

/* ---- reads ----------------------------------------------------------------------------- */

/* Cancelled (0), or its worker goes (1): the fetch ends by itself, and what it took is given back.
 */
START_TEST(b03_abort_while_a_fetch_is_under_way)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    submit_fetch(&v, "aaaabbbbccccx", 7);
    inflight_is(&s, 3);
    ck_assert_uint_eq(counters(&s.w).blocks_free, 5);
    if (_i == 0)
        ck_assert_int_eq(pfx_cancel(v.c, 7), 0);
    worker_close(&v);
    inflight_is(&s, 3); /* the disk may still write to them */
    struct held l = look(&s.w, "zzzz");
    ck_assert_int_eq(grab(&s.w, &l, 6), PFX_ENOSPC);
    ck_assert_int_eq(grab(&s.w, &l, 5), 0);
    drop(&s.w, &l);
    io_go(&s);
    inflight_is(&s, 0);
    at_rest(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    ck_assert_uint_eq(counters(&s.w).leases, 0);
    site_deinit(&s);
}
END_TEST

/* What is being read is shown to nobody, given to nobody, and read once for all who want it. */
START_TEST(e67_a_page_being_read_is_nobodys)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    uint64_t read = counters(&s.w).disk_read_blocks;
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    submit_fetch(&s.w, "aaaabbbbccccx", 1);
    inflight_is(&s, 3);
    struct site other = site_by(&s, v);
    struct held l = seek(&other, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(l.match.matched_tokens, 12);
    ck_assert_uint_eq(l.match.n_resident, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(l.match.blocks[i], PFX_NO_BLOCK);
    ck_assert_int_eq(grab(&v, &l, 1), PFX_ECONFLICT);
    drop(&v, &l);
    struct held m = look(&v, "yyyy");
    ck_assert_int_eq(grab(&v, &m, 6), PFX_ENOSPC); /* 5 are not in flight */
    ck_assert_int_eq(grab(&v, &m, 2), 0);
    submit_fetch(&v, "aaaabbbbddddx", 2); /* it needs pages of its own for the first two */
    inflight_is(&s, 5);
    ck_assert_uint_eq(counters(&s.w).disk_read_blocks, read);
    io_go(&s);
    struct held a = await_fetch(&s.w, 1, "aaaabbbbccccx"), b = await_fetch(&v, 2, "aaaabbbbddddx");
    ck_assert_uint_eq(a.match.matched_tokens, 12);
    ck_assert_uint_eq(b.match.matched_tokens, 8);
    ck_assert_uint_eq(a.table[1], b.table[1]);
    inflight_is(&s, 0);
    ck_assert_uint_eq(counters(&s.w).disk_read_blocks, read + 3); /* the read was shared */
    pages_are(&s.w, 3, 2, 3, 0);
    drop(&s.w, &a);
    drop(&v, &b);
    drop(&v, &m);
    worker_close(&v);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* A block that another worker computes while it is being read: one of the two pages is it. */
START_TEST(e88_inserted_while_it_is_read)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    submit_fetch(&s.w, "aaaabbbbccccx", 1);
    inflight_is(&s, 3);
    struct seq q = seq("aaaabbbbx");
    struct pfx_lookup_args args = lookup_args(&v, &q);
    args.flags = PFX_NO_MATCH;
    struct held l = look_args(&v, &args);
    struct pfx_insert_result r;
    ck_assert_int_eq(grab(&v, &l, 2), 0);
    ck_assert_int_eq(put(&v, &l, "aaaabbbb", 0, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 2);
    ck_assert_uint_eq(r.new_blocks, 0); /* they are on disk */
    struct site other = site_by(&s, v);
    struct held now = seek(&other, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(now.match.n_resident, 2);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(now.match.blocks[i], l.table[i]);
    drop(&v, &now);
    io_go(&s);
    struct held a = await_fetch(&s.w, 1, "aaaabbbbccccx");
    ck_assert_uint_eq(a.match.matched_tokens, 12);
    ck_assert_uint_eq(a.table[0], l.table[0]);
    inflight_is(&s, 0);
    pages_are(&s.w, 5, 0, 3, 0);
    drop(&s.w, &a);
    drop(&v, &l);
    worker_close(&v);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* The whole pool is wanted back at once: what is fetched does not push out itself, in the pool or
 * on the disk. */
START_TEST(e82_fetch_at_the_cap)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbccccddddeeeeffffgggghhhh");
    cache(&s.w, "AAAABBBBCCCCDDDDEEEEFFFFGGGGHHHH");
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddeeeeffffgggghhhhx"), 32);
        ck_assert_uint_eq(exact(&s, "AAAABBBBCCCCDDDDEEEEFFFFGGGGHHHHx"), 32);
    }
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 0);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Without room for it, pfx_fetch leaves all as it was, and a lookup succeeds with what is there. */
START_TEST(e64_no_page_to_fetch_into)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held all = look(&s.w, "");
    ck_assert_int_eq(grab(&s.w, &all, 6), 0);
    struct held l = seek(&s, "aaaabbbbccccx", 0);
    struct pages before = pages(&s.w);
    ck_assert_int_eq(pfx_fetch(s.w.c, l.lease, &l.match), PFX_ENOSPC);
    pages_equal(&s.w, before);
    step(&s.w);
    struct held m = seek(&s, "aaaabbbbccccx", PFX_FETCH);
    ck_assert_uint_eq(m.match.matched_tokens, 12);
    ck_assert_uint_eq(m.match.n_resident, 0);
    drop(&s.w, &m);
    drop(&s.w, &all);
    ck_assert_int_eq(pfx_fetch(s.w.c, l.lease, &l.match), 0);
    ck_assert_uint_eq(l.match.n_resident, 3);
    drop(&s.w, &l);
    site_deinit(&s);
}
END_TEST

/* Blocks on disk alone are computed from nowhere: fetch, or cut the match before them. */
START_TEST(e73_disk_blocks_are_fetched_or_cut)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held l = seek(&s, "aaaabbbbccccx", 0);
    ck_assert_int_eq(grab(&s.w, &l, 1), PFX_ECONFLICT);
    ck_assert_int_eq(cut(&s.w, &l, 1), 0);
    ck_assert_int_eq(grab(&s.w, &l, 1), PFX_ECONFLICT); /* the first is not there either */
    l.match.size = sizeof l.match;
    ck_assert_int_eq(pfx_fetch(s.w.c, l.lease, &l.match), 0);
    ck_assert_uint_eq(l.match.n_resident, 1);
    l.table[0] = l.match.blocks[0];
    ck_assert_int_eq(grab(&s.w, &l, 1), 0);
    ck_assert_int_eq(put(&s.w, &l, "aaaaBBBB", 0, NULL, NULL), 0);
    drop(&s.w, &l);
    ck_assert_uint_eq(exact(&s, "aaaaBBBBx"), 8);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* A flush in the middle of a read (0), or of a write (1): nothing of it is found again, nobody's
 * pages are mixed up, and a restart finds nothing either. */
START_TEST(e84_flush_while_blocks_move)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    worker_open(&v, &s.h, NULL);
    if (_i == 0)
        put_on_disk(&s, "aaaabbbbcccc");
    io_stop(&s);
    if (_i == 0)
        submit_fetch(&v, "aaaabbbbccccx", 1);
    else
        cache(&s.w, "aaaabbbbcccc");
    inflight_is(&s, 3);
    struct seq q = seq("aaaabbbbccccx");
    struct pfx_options o = worker_options(&s.h);
    o.timeout_ms = 100 * SLOW;
    pfx *third;
    ck_assert_int_eq(pfx_open(&o, &third), 0);
    ck_assert_int_eq(pfx_flush(third, 0), PFX_ETIMEDOUT); /* it waits for the disk */
    ck_assert_int_eq(pfx_peek(s.w.c, 0, q.at, q.n), 0);   /* and yet: found no more */
    step(&s.w);
    io_go(&s);
    inflight_is(&s, 0);
    if (_i == 0) {
        struct pfx_completion done = {.size = sizeof done};
        done.match.size = sizeof done.match;
        done.insert.size = sizeof done.insert;
        ck_assert_int_eq(pfx_wait(v.c, &done, sizeof done, 1, DISK_WAIT_MS), 1);
        ck_assert_int_eq(pfx_release(v.c, done.lease), 0);
    }
    disk_used_is(&s, 0);
    pfx_close(third);
    worker_close(&v);
    pages_are(&s.w, 8, 0, 0, 0);
    s.w.weights = 5; /* the same tokens, with new bytes */
    cache(&s.w, "aaaabbbbcccc");
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    disk_used_is(&s, 3);
    site_again(&s);
    s.w.weights = 5;
    disk_used_is(&s, 3);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    site_deinit(&s);
}
END_TEST

/* ---- writes ---------------------------------------------------------------------------- */

/* The path of a write in flight is split, extended, looked up and cut short meanwhile. */
START_TEST(b21_split_while_a_write_is_in_flight)
{
    struct site s;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "16");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccdddd"); /* one run */
    inflight_is(&s, 4);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    cache(&s.w, "aaaabbbbXXXX"); /* split after the second block */
    cache(&s.w, "aaaaYYYY");     /* and after the first */
    cache(&s.w, "aaaabbbbccccddddeeee");
    ck_assert_uint_eq(matched(&s.w, "aaaabbbbccccddddeeeex"), 20);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    io_go(&s);
    disk_used_is(&s, 7);
    at_rest(&s);
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, 7); /* each once */
    site_again(&s);
    static const char *const texts[] = {"aaaabbbbccccddddeeeex", "aaaabbbbXXXXx", "aaaaYYYYx"};
    static const uint32_t tokens[] = {20, 12, 8};
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(exact(&s, texts[i]), tokens[i]);
    site_deinit(&s);
}
END_TEST

/* The same under a read. */
START_TEST(b21_split_while_a_read_is_in_flight)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "16");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbccccdddd");
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    submit_fetch(&v, "aaaabbbbccccddddx", 1);
    inflight_is(&s, 4);
    struct seq q = seq("aaaabbbbXXXX");
    struct pfx_lookup_args args = lookup_args(&s.w, &q);
    args.flags = PFX_NO_MATCH;
    struct held l = look_args(&s.w, &args);
    ck_assert_int_eq(grab(&s.w, &l, 3), 0);
    ck_assert_int_eq(put(&s.w, &l, "aaaabbbbXXXX", 0, NULL, NULL), 0);
    drop(&s.w, &l);
    io_go(&s);
    struct held a = await_fetch(&v, 1, "aaaabbbbccccddddx");
    ck_assert_uint_eq(a.match.matched_tokens, 16);
    drop(&v, &a);
    worker_close(&v);
    disk_used_is(&s, 5);
    ck_assert_uint_eq(exact(&s, "aaaabbbbXXXXx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Two paths share their front: that is written once, before either's rest. */
START_TEST(e87_a_common_front_is_written_once)
{
    struct site s;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "16");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccdddd");
    cache(&s.w, "aaaabbbbEEEEFFFF");
    cache(&s.w, "aaaabbbbccccGGGG");
    io_go(&s);
    disk_used_is(&s, 7);
    at_rest(&s);
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, 7);
    site_deinit(&s);
}
END_TEST

/* What is being written is served from its page, and has no copy yet: a crash now loses it whole.
 */
START_TEST(b36_looked_up_while_it_is_written)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbb");
    inflight_is(&s, 2);
    struct held l = seek(&s, "aaaabbbbx", PFX_FETCH);
    ck_assert_uint_eq(l.match.n_resident, 2);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(l.match.disk[i], PFX_NO_DISK);
    bytes_match(&s.w, &l, "aaaabbbbx");
    struct held m = look(&s.w, "");
    ck_assert_int_eq(grab(&s.w, &m, 7), PFX_ENOSPC); /* nor are its pages anybody's */
    ck_assert_int_eq(grab(&s.w, &m, 6), 0);
    drop(&s.w, &m);
    drop(&s.w, &l);
    ck_assert_uint_eq(counters(&s.w).disk_read_blocks, 0);
    site_kill(&s); /* its header has not been written */
    site_start(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, exact(&s, "aaaabbbbx") / 4);
    site_deinit(&s);
}
END_TEST

/* ---- who dies -------------------------------------------------------------------------- */

static void fetch_and_wait(struct child *me, void *arg)
{
    struct site *s = arg;
    struct worker v;
    worker_open(&v, &s->h, NULL);
    submit_fetch(&v, "aaaabbbbccccx", 1);
    child_post(me, 1);
    child_wait(me);
}

START_TEST(e81_killed_while_its_fetch_is_under_way)
{
    struct site s;
    struct child c;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    for (int i = 0; i < 10; i++) {
        io_stop(&s);
        child_start(&c, fetch_and_wait, &s);
        ck_assert_uint_eq(child_wait(&c), 1);
        inflight_is(&s, 3);
        child_kill(&c, SIGKILL);
        EVENTUALLY(DISK_WAIT_MS, counters(&s.w).leases == 0);
        inflight_is(&s, 3); /* the disk may still write to them */
        io_go(&s);
        inflight_is(&s, 0);
        at_rest(&s);
        ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
        ck_assert_uint_eq(evict_pages(&s, 8), 0);
    }
    ck_assert_uint_eq(counters(&s.w).workers, 1);
    site_deinit(&s);
}
END_TEST

static void stop_while_transfers_run(struct site *s, bool held)
{
    struct worker v;
    struct seq q = numbers(0, 24 * 4), p = numbers(70000, 7 * 4);
    cache_seq(&s->w, &q, 0);
    all_written(s);
    ck_assert_uint_eq(evict_pages(s, 32), 0);
    worker_open(&v, &s->h, NULL);
    if (held)
        io_stop(s);
    struct pfx_lookup_args args = lookup_args(&v, &q);
    args.flags = PFX_FETCH;
    ck_assert_int_eq(pfx_submit_lookup(v.c, &args, 1), 0);
    cache_seq(&s->w, &p, 0); /* reads and writes are under way now */
    if (held) {
        inflight_is(s, 23 + 7);
        ck_assert_int_eq(kill(s->h.pid, SIGTERM), 0);
        sleep_us(50000); /* it waits for the disk now; what comes of it, nobody takes */
        io_go(s);
    }
    uint64_t began = now_ms();
    site_stop(s); /* exit status 0 */
    ck_assert_uint_lt(now_ms() - began, 5000 * SLOW);
    struct pfx_completion done = {.size = sizeof done};
    done.match.size = sizeof done.match;
    done.insert.size = sizeof done.insert;
    int rc = pfx_wait(v.c, &done, sizeof done, 1, 5000);
    ck_assert_int_eq(rc, 1);
    ck_assert(done.status == 0 || done.status == PFX_EGONE);
    pfx_close(v.c);
    site_start(s);
    ck_assert_uint_eq(exact_seq(s, &q), (24 - 1) * 4); /* one token is left, so one block */
    uint32_t n = exact_seq(s, &p);
    ck_assert_uint_le(n, 6 * 4);
}

/* SIGTERM in the middle: a clean end, soon, and what was on disk is there afterwards. */
START_TEST(e66_stopped_while_transfers_run)
{
    struct site s;
    site_init(&s, "96M");
    site_set(&s, "--blocks", "32");
    site_set(&s, "--block-bytes", "1M");
    site_start(&s);
    stop_while_transfers_run(&s, _i);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_moves");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, b03_abort_while_a_fetch_is_under_way, 0, 2);
    tcase_add_test(t, e67_a_page_being_read_is_nobodys);
    tcase_add_test(t, e88_inserted_while_it_is_read);
    tcase_add_test(t, e82_fetch_at_the_cap);
    tcase_add_test(t, e64_no_page_to_fetch_into);
    tcase_add_test(t, e73_disk_blocks_are_fetched_or_cut);
    tcase_add_loop_test(t, e84_flush_while_blocks_move, 0, 2);
    tcase_add_test(t, b21_split_while_a_write_is_in_flight);
    tcase_add_test(t, b21_split_while_a_read_is_in_flight);
    tcase_add_test(t, e87_a_common_front_is_written_once);
    tcase_add_test(t, b36_looked_up_while_it_is_written);
    tcase_add_test(t, e81_killed_while_its_fetch_is_under_way);
    tcase_add_loop_test(t, e66_stopped_while_transfers_run, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
