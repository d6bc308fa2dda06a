/*
 * The order of asynchronous calls: they happen, and are answered, in the order in which they were
 * submitted, synchronous ones in between included.
 */
#include "tests/client/async.h"

/* Calls on one lease happen in the order in which they were submitted, and a lookup sees every
 * insert submitted before it: here all of a request at once, while the daemon is stopped. */
START_TEST(order_of_calls_and_answers)
{
    struct async a;
    async_open(&a);
    struct held l = look_seq(&a.w, &a.s);
    a.w.unchecked = true;
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 1, 1));
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 2)); /* not the partial block: the table ends */
    OK(pfx_submit_reserve(a.c, l.lease, 1, 3));    /* too late */
    OK(pfx_submit_lookup(a.c, &a.look, 4));        /* sees it */
    OK(pfx_submit_release(a.c, l.lease, 5));
    OK(pfx_submit_release(a.c, l.lease, 6));
    OK(pfx_submit_truncate(a.c, l.lease, 0, 7));
    struct pfx_completion k = completion_empty();
    ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, 5), 0);
    host_resume(&a.h);
    a.w.unchecked = false;
    completion_of(a.c, 1, 0);
    k = completion_of(a.c, 2, 0);
    ck_assert_uint_eq(k.insert.cached_blocks, 3);
    completion_of(a.c, 3, PFX_ECONFLICT);
    k = completion_of(a.c, 4, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 12);
    OK(pfx_release(a.c, k.lease));
    completion_of(a.c, 5, 0);
    completion_of(a.c, 6, PFX_ESTALE);
    completion_of(a.c, 7, PFX_ESTALE);
    async_close(&a);
}
END_TEST

/* Calls on different leases, too: a reserve gets the room that an earlier release gave back, though
 * that stood in line behind an insert. */
static void reserve_after_release(bool synchronous)
{
    enum { N = 64 };
    struct async a;
    async_open(&a);
    struct held l = look(&a.w, ""), next = look(&a.w, "");
    static uint32_t tokens[N * 4], ids[N];
    sequence(tokens, N * 4, 1);
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = N * 4};
    for (int i = 0; i < 50; i++) { /* the whole pool each time */
        OK(pfx_submit_reserve(a.c, l.lease, N, 1));
        OK(pfx_submit_insert(a.c, l.lease, &in, 2));
        OK(pfx_submit_release(a.c, l.lease, 3));
        if (synchronous)
            OK(pfx_reserve(a.c, next.lease, N, ids));
        else
            OK(pfx_submit_reserve(a.c, next.lease, N, 4));
        for (uint64_t tag = 1; tag <= (synchronous ? 3 : 4); tag++)
            completion_of(a.c, tag, 0);
        ck_assert_int_eq(cut(&a.w, &next, 0), 0);
        l = next;
        next = look(&a.w, "");
        tokens[0]++;
    }
    drop(&a.w, &l);
    drop(&a.w, &next);
    async_close(&a);
}

START_TEST(order_across_leases)
{
    reserve_after_release(false);
    reserve_after_release(true);
}
END_TEST

/* An insert of many pieces is one call. The first begins at the root and has the front as
 * duplicates, the second begins where the front ends: it does not come in between and take the
 * rest. */
START_TEST(order_of_large_inserts)
{
    enum { N = 60000, FRONT = 40000, BT = 16 };
    struct host h;
    HOST_START(&h, "--blocks", "20000", "--block-tokens", "16", "--block-bytes", "64");
    pfx *c = connect_with(&h, (struct pfx_options){0});
    static uint32_t tokens[N], ids[N / BT];
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = FRONT};
    struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = N};
    struct pfx_insert_result r = {.size = sizeof r};
    struct pfx_match first = {.size = sizeof first}, second = {.size = sizeof second};
    for (uint32_t round = 0; round < 5; round++) {
        sequence(tokens, N, round);
        look.flags = PFX_NO_MATCH;
        OK(pfx_lookup(c, &look, &first));
        OK(pfx_reserve(c, first.lease, FRONT / BT, ids));
        OK(pfx_insert(c, first.lease, &in, NULL, &r));
        OK(pfx_release(c, first.lease));

        OK(pfx_lookup(c, &look, &first));
        look.flags = 0;
        OK(pfx_lookup(c, &look, &second));
        ck_assert_uint_eq(second.matched_tokens, FRONT);
        OK(pfx_reserve(c, first.lease, N / BT, ids));
        OK(pfx_reserve(c, second.lease, (N - FRONT) / BT, ids));
        in.n_written = N;
        OK(pfx_submit_insert(c, first.lease, &in, 1));
        OK(pfx_submit_insert(c, second.lease, &in, 2));
        in.n_written = FRONT;
        r = completion_of(c, 1, 0).insert;
        ck_assert_uint_eq(r.new_blocks, (N - FRONT) / BT);
        ck_assert_uint_eq(r.duplicate_blocks, FRONT / BT);
        r = completion_of(c, 2, 0).insert;
        ck_assert_uint_eq(r.new_blocks, 0);
        ck_assert_uint_eq(r.duplicate_blocks, (N - FRONT) / BT);
        OK(pfx_release(c, first.lease));
        OK(pfx_release(c, second.lease));
    }
    pfx_close(c);
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

/* A fetch submitted before a flush succeeds, though the flush may be over when its answer is read.
 */
START_TEST(fetch_before_a_flush)
{
    struct async a;
    async_open(&a);
    for (int i = 0; i < 200; i++) {
        cache(&a.w, "zzzzyyyyxxxx");
        struct held l = look(&a.w, "zzzzyx"); /* the front of a run, whose rest the flush removes */
        if (i % 2) {                          /* it holds more than it has matched */
            ck_assert_int_eq(grab(&a.w, &l, 1), 0);
            ck_assert_int_eq(put(&a.w, &l, "zzzzyyyy", 0, NULL, NULL), 0);
        }
        OK(pfx_submit_fetch(a.c, l.lease, 1));
        OK(pfx_flush(a.c, 0));
        struct pfx_completion k = completion_of(a.c, 1, 0);
        ck_assert_uint_eq(k.match.matched_tokens, 4);
        ck_assert_uint_eq(k.match.blocks[0], l.table[0]);
        drop(&a.w, &l);
    }
    async_close(&a);
}
END_TEST

START_TEST(tags_may_repeat)
{
    struct async a;
    async_open(&a);
    uint64_t lease[5];
    for (int i = 0; i < 5; i++)
        OK(pfx_submit_lookup(a.c, &a.look, 7));
    for (int i = 0; i < 5; i++) {
        lease[i] = completion_of(a.c, 7, 0).lease;
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(lease[i], lease[k]);
    }
    completion_none(a.c);
    for (int i = 0; i < 5; i++)
        OK(pfx_submit_release(a.c, lease[i], 7));
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(completion_of(a.c, 7, 0).lease, lease[i]);
    async_close(&a);
}
END_TEST

/* A synchronous call keeps other completions for the next pfx_wait, all of them and in order. */
START_TEST(synchronous_calls_keep_completions)
{
    struct async a;
    async_open(&a);
    uint64_t lease[20];
    for (uint64_t tag = 0; tag < 20; tag++) {
        OK(pfx_submit_lookup(a.c, &a.look, tag));
        struct held l = look_seq(&a.w, &a.s); /* answered after all that was submitted */
        drop(&a.w, &l);
        ck_assert_uint_eq(counters(&a.w).leases, tag + 1);
    }
    for (uint64_t tag = 0; tag < 20; tag++) {
        struct pfx_completion k = completion_empty();
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, 0), 1); /* it is there already */
        ck_assert_uint_eq(k.tag, tag);
        lease[tag] = k.lease;
    }
    for (int i = 0; i < 20; i++)
        OK(pfx_release(a.c, lease[i]));
    async_close(&a);
}
END_TEST

/* At the daemon's death every submitted call completes with PFX_EGONE, in order, those in line
 * too; what was answered before keeps its answer; then pfx_wait says so. */
START_TEST(death_completes_all)
{
    struct async a;
    async_open(&a);
    struct held l = look_seq(&a.w, &a.s);
    OK(pfx_submit_lookup(a.c, &a.look, 1));
    OK(pfx_ping(a.c));
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 1, 2));
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 3));
    OK(pfx_submit_release(a.c, l.lease, 4));
    OK(pfx_submit_lookup(a.c, &a.look, 5));
    OK(pfx_submit_truncate(a.c, l.lease, 0, 6));
    host_kill(&a.h);
    struct pfx_completion k = completion_of(a.c, 1, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 8);
    for (uint64_t tag = 2; tag <= 6; tag++) {
        k = completion_of(a.c, tag, PFX_EGONE);
        only(&k, false, false, 0);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, -1), PFX_EGONE);
    ck_assert_int_eq(pfx_submit_lookup(a.c, &a.look, 7), PFX_EGONE);
    ck_assert_int_eq(pfx_submit_release(a.c, l.lease, 7), PFX_EGONE);
    ck_assert_int_eq(pfx_cancel(a.c, 5), PFX_ENOENT);
    worker_close(&a.w);
    host_again(&a.h, NULL);
    host_stop(&a.h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("async_order");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, order_of_calls_and_answers);
    tcase_add_test(t, order_across_leases);
    tcase_add_test(t, order_of_large_inserts);
    tcase_add_test(t, fetch_before_a_flush);
    tcase_add_test(t, tags_may_repeat);
    tcase_add_test(t, synchronous_calls_keep_completions);
    tcase_add_test(t, death_completes_all);
    suite_add_tcase(s, t);
    return s;
}
