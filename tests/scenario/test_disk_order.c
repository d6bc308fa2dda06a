/* One worker's calls beside its own that wait for the disk, which is held still meanwhile
 * (io_stop): they are answered as if nothing waited, and the late ones when the disk goes on. */
#include "tests/scenario/disk_site.h"

enum { PATHS = 40 };

/* A block of its own for each i, and one token more: a lookup leaves the last token out. */
static struct seq path_of(uint32_t i)
{
    return (struct seq){.n = 5, .at = {9000 + i, 1, 2, 3, 4}};
}

/* A pool of 64 blocks; each path on disk, in no page. */
static void site_of_paths(struct site *s)
{
    site_init(s, "4M");
    site_set(s, "--blocks", "64");
    site_start(s);
    for (uint32_t i = 0; i < PATHS; i++) {
        struct seq q = path_of(i);
        REQUIRE_EQ(cache_seq(&s->w, &q, 0), 1);
    }
    all_written(s);
    REQUIRE_EQ(evict_pages(s, 64), 0);
}

static void submit(struct site *s, const struct seq *q, uint64_t tag)
{
    struct pfx_lookup_args args = lookup_args(&s->w, q);
    args.flags = PFX_FETCH;
    ck_assert_int_eq(pfx_submit_lookup(s->w.c, &args, tag), 0);
}

/* The next completion, after at most wait_ms; false: there is none. */
static bool next(struct site *s, struct pfx_completion *done, int wait_ms)
{
    *done = (struct pfx_completion){.size = sizeof *done};
    done->match.size = sizeof done->match;
    done->insert.size = sizeof done->insert;
    int n = pfx_wait(s->w.c, done, sizeof *done, 1, wait_ms);
    REQUIRE(n >= 0);
    return n == 1;
}

static void in_flight(struct site *s, uint64_t n)
{
    EVENTUALLY(DISK_WAIT_MS, counters(&s->w).blocks_inflight == n);
}

/* Everything that does not need the disk, by the same connection. */
static void everything_else(struct site *s, uint32_t salt)
{
    struct seq q = {.n = 8, .at = {salt, 7, 7, 7, 7, 7, 7, 7}};
    ck_assert_int_eq(pfx_ping(s->w.c), 0);
    ck_assert_uint_eq(cache_seq(&s->w, &q, 0), 2); /* lookup, reserve, insert, release */
    struct held h = look_seq(&s->w, &q);
    ck_assert_uint_eq(h.match.matched_tokens, 4);
    cut(&s->w, &h, 0);
    drop(&s->w, &h);
    pfx_space space = s->w.space;
    use_space(s, "other", 1, 1, 5);
    ck_assert_int_eq(pfx_space_close(s->w.c, s->w.space), 0);
    s->w.space = space;
    s->w.weights = 0;
}

START_TEST(e94_its_other_calls_go_on_while_its_fetches_wait)
{
    struct site s;
    site_of_paths(&s);
    io_stop(&s);
    for (uint32_t i = 0; i < PATHS; i++) {
        struct seq q = path_of(i);
        submit(&s, &q, i);
    }
    in_flight(&s, PATHS);
    everything_else(&s, 1);
    struct pfx_completion done;
    ck_assert(!next(&s, &done, 20));
    everything_else(&s, 2);
    io_go(&s);
    bool seen[PATHS] = {false};
    for (uint32_t i = 0; i < PATHS; i++) {
        ck_assert(next(&s, &done, DISK_WAIT_MS));
        ck_assert_uint_lt(done.tag, PATHS);
        ck_assert(!seen[done.tag]);
        seen[done.tag] = true;
        ck_assert_int_eq(done.status, 0);
        ck_assert_uint_eq(done.match.n_resident, 1);
        struct seq q = path_of((uint32_t)done.tag);
        ck_assert(bytes_are(&s.w, done.match.blocks[0], &q, 4));
        ck_assert_int_eq(pfx_release(s.w.c, done.lease), 0);
    }
    step(&s.w);
    ck_assert_uint_eq(counters(&s.w).leases, 0);
    site_deinit(&s);
}
END_TEST

/* Some are cancelled (0), or all of them are left to the worker's end (1). */
START_TEST(e94_fetches_that_nobody_waits_for)
{
    struct site s;
    site_of_paths(&s);
    struct worker v;
    worker_open(&v, &s.h, NULL);
    io_stop(&s);
    for (uint32_t i = 0; i < PATHS; i++) {
        struct seq q = path_of(i);
        submit(&s, &q, i);
    }
    in_flight(&s, PATHS);
    if (_i == 0) {
        for (uint32_t i = 0; i < PATHS; i += 2)
            ck_assert_int_eq(pfx_cancel(s.w.c, i), 0);
        EVENTUALLY(DISK_WAIT_MS, counters(&v).leases == PATHS / 2);
    } else {
        worker_close(&s.w);
        EVENTUALLY(DISK_WAIT_MS, counters(&v).leases == 0);
        s.w = v;
    }
    step(&s.w);
    io_go(&s);
    struct pfx_completion done;
    for (uint32_t i = 1; _i == 0 && i < PATHS; i += 2) {
        ck_assert(next(&s, &done, DISK_WAIT_MS));
        ck_assert_uint_eq(done.tag % 2, 1);
        ck_assert_int_eq(pfx_release(s.w.c, done.lease), 0);
    }
    ck_assert(!next(&s, &done, 0));
    in_flight(&s, 0);
    step(&s.w);
    ck_assert_uint_eq(counters(&s.w).leases, 0);
    if (_i == 0)
        worker_close(&v);
    site_deinit(&s);
}
END_TEST

/* A reserve that waits for victims to be written. */
START_TEST(e94_its_other_calls_go_on_while_a_reserve_waits)
{
    struct site s;
    site_init(&s, "2M");
    site_set(&s, "--swap-write", "evict");
    site_start(&s);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccdddd");
    cache(&s.w, "eeeeffff"); /* 6 of 8 pages; none is on disk */
    struct held h = look(&s.w, "zzzz");
    ck_assert_int_eq(pfx_submit_reserve(s.w.c, h.lease, 4, 1), 0);
    struct pfx_completion done;
    bool late = !next(&s, &done, 100);
    ck_assert(late);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    struct held other = look(&s.w, "yyyy");
    drop(&s.w, &other);
    io_go(&s);
    ck_assert(next(&s, &done, DISK_WAIT_MS));
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.n_ids, 4);
    ck_assert_int_eq(pfx_release(s.w.c, h.lease), 0);
    step(&s.w);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddx"), 16); /* written, not lost */
    ck_assert_uint_eq(exact(&s, "eeeeffffx"), 8);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk: order of answers");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, e94_its_other_calls_go_on_while_its_fetches_wait);
    tcase_add_loop_test(t, e94_fetches_that_nobody_waits_for, 0, 2);
    tcase_add_test(t, e94_its_other_calls_go_on_while_a_reserve_waits);
    suite_add_tcase(s, t);
    return s;
}
