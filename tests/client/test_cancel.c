/* pfx_cancel: either no completion comes and nothing stays held, or it was too late for that. */
#include "tests/client/fixture.h"

#include <string.h>

struct scene {
    struct host h;
    struct worker w;
    pfx *c;
    struct seq s;
    struct pfx_lookup_args look;
};

/* 64 blocks of 4, "aaaabbbb" cached; this connection has room for `ring` calls. */
static void scene_open(struct scene *a, uint32_t ring)
{
    memset(a, 0, sizeof *a);
    host_small(&a->h, 64, 4);
    a->w.host = &a->h;
    a->c = a->w.c = connect_with(&a->h, (struct pfx_options){.ring_entries = ring});
    cache(&a->w, "aaaabbbb");
    a->s = seq("aaaabbbbcccc");
    a->look = lookup_args(&a->w, &a->s);
}

/* The daemon runs; what was cancelled is given back soon, as the library has work left. */
static void nothing_held(struct scene *a)
{
    EVENTUALLY(1000 * SLOW, pfx_ping(a->c) == 0 && counters(&a->w).leases == 0);
    completion_none(a->c);
    step(&a->w);
    pages_are(&a->w, 62, 0, 0, 2);
}

static void scene_close(struct scene *a)
{
    nothing_held(a);
    worker_close(&a->w);
    host_stop(&a->h);
}

START_TEST(cancel_before_the_answer)
{
    struct scene a;
    scene_open(&a, 0);
    for (int i = 0; i < 3; i++) {
        host_pause(&a.h);
        OK(pfx_submit_lookup(a.c, &a.look, 1));
        OK(pfx_submit_lookup(a.c, &a.look, 2));
        OK(pfx_submit_lookup(a.c, &a.look, 3));
        OK(pfx_cancel(a.c, 2));
        ck_assert_int_eq(pfx_cancel(a.c, 2), PFX_ENOENT);
        if (i == 1)
            OK(pfx_cancel(a.c, 3));
        host_resume(&a.h);
        OK(pfx_release(a.c, completion_of(a.c, 1, 0).lease));
        if (i != 1)
            OK(pfx_release(a.c, completion_of(a.c, 3, 0).lease));
        nothing_held(&a);
    }
    scene_close(&a);
}
END_TEST

START_TEST(cancel_after_the_answer)
{
    struct scene a;
    scene_open(&a, 0);
    OK(pfx_submit_lookup(a.c, &a.look, 1));
    OK(pfx_ping(a.c));
    ck_assert_int_eq(pfx_cancel(a.c, 1), PFX_ENOENT);
    struct pfx_completion k = completion_of(a.c, 1, 0); /* still there */
    ck_assert_uint_eq(k.match.matched_tokens, 8);
    ck_assert_int_eq(pfx_cancel(a.c, 1), PFX_ENOENT); /* taken */
    ck_assert_int_eq(pfx_cancel(a.c, 2), PFX_ENOENT); /* never was */
    OK(pfx_release(a.c, k.lease));
    scene_close(&a);
}
END_TEST

/* No other call can be forgotten; all of them go on. */
START_TEST(cancel_of_other_calls)
{
    struct scene a;
    scene_open(&a, 0);
    struct held l = look_seq(&a.w, &a.s);
    struct pfx_insert_args in = {.size = sizeof in, .tokens = a.s.at, .n_written = a.s.n};
    struct pfx_space_desc d = {.size = sizeof d, .adapter_id = 1};
    for (int paused = 1; paused >= 0; paused--) {
        if (paused)
            host_pause(&a.h);
        OK(pfx_submit_reserve(a.c, l.lease, 1, 1));
        OK(pfx_submit_insert(a.c, l.lease, &in, 2));
        OK(pfx_submit_truncate(a.c, l.lease, 3, 3));
        OK(pfx_submit_snapshot_reserve(a.c, l.lease, 4));
        OK(pfx_submit_space_open(a.c, &d, 5));
        OK(pfx_submit_release(a.c, l.lease, 6));
        if (!paused)
            OK(pfx_ping(a.c)); /* their completions are there: PFX_EINVAL all the same */
        for (uint64_t tag = 1; tag <= 6; tag++)
            ck_assert_int_eq(pfx_cancel(a.c, tag), PFX_EINVAL);
        if (paused)
            host_resume(&a.h);
        const int want[] = {0, 0, 0, PFX_ENOENT, 0, 0};
        for (uint64_t tag = 1; tag <= 6; tag++) {
            struct pfx_completion k = completion_of(a.c, tag, want[tag - 1]);
            if (tag == 5)
                OK(pfx_space_close(a.c, k.space));
        }
        ck_assert_uint_eq(evict(&a.w, 1), 1); /* what was inserted */
        if (paused)
            l = look_seq(&a.w, &a.s);
    }
    scene_close(&a);
}
END_TEST

/* A cancelled fetch leaves its lease as it was. */
START_TEST(cancel_of_a_fetch)
{
    struct scene a;
    scene_open(&a, 0);
    struct held l = look_seq(&a.w, &a.s);
    struct pfx_match m = {.size = sizeof m};
    host_pause(&a.h);
    OK(pfx_submit_fetch(a.c, l.lease, 1));
    OK(pfx_submit_fetch(a.c, l.lease, 2)); /* in line */
    OK(pfx_submit_fetch(a.c, l.lease, 3));
    OK(pfx_cancel(a.c, 2));
    OK(pfx_cancel(a.c, 1));
    ck_assert_int_eq(pfx_cancel(a.c, 1), PFX_ENOENT);
    host_resume(&a.h);
    completion_of(a.c, 3, 0);
    completion_none(a.c);
    OK(pfx_fetch(a.c, l.lease, &m));
    ck_assert_uint_eq(m.matched_tokens, 8);
    bytes_match(&a.w, &l, "aaaabbbb");
    ck_assert_int_eq(grab(&a.w, &l, 1), 0);
    drop(&a.w, &l);
    scene_close(&a);
}
END_TEST

/* Of several calls with one tag: one of them, and the others complete. */
START_TEST(cancel_of_a_repeated_tag)
{
    struct scene a;
    scene_open(&a, 0);
    host_pause(&a.h);
    for (int i = 0; i < 4; i++)
        OK(pfx_submit_lookup(a.c, &a.look, 9));
    OK(pfx_cancel(a.c, 9));
    OK(pfx_cancel(a.c, 9));
    host_resume(&a.h);
    for (int i = 0; i < 2; i++)
        OK(pfx_release(a.c, completion_of(a.c, 9, 0).lease));
    completion_none(a.c);
    scene_close(&a);
}
END_TEST

/* Without room for another record, and from behind calls that wait for room themselves. */
START_TEST(cancel_with_a_full_ring)
{
    const uint32_t rings[] = {1, 2, 8};
    for (size_t r = 0; r < LENGTH(rings); r++) {
        struct scene a;
        scene_open(&a, rings[r]);
        host_pause(&a.h);
        for (uint32_t round = 0; round < 3; round++) /* a cancelled one makes room again */
            for (uint32_t i = 0; i < rings[r]; i++) {
                OK(pfx_submit_lookup(a.c, &a.look, i));
                OK(pfx_cancel(a.c, i));
            }
        for (uint32_t i = 0; i < rings[r]; i++)
            OK(pfx_submit_lookup(a.c, &a.look, i));
        for (uint32_t i = 0; i < rings[r]; i += 2)
            OK(pfx_cancel(a.c, i));
        host_resume(&a.h);
        for (uint32_t i = 1; i < rings[r]; i += 2)
            OK(pfx_release(a.c, completion_of(a.c, i, 0).lease));
        scene_close(&a);
    }
}
END_TEST

/* A lookup that waits for an insert, or for room in the arena, has sent nothing yet. (A daemon that
 * is not stopped may have answered it by then.) */
START_TEST(cancel_of_calls_that_wait)
{
    enum { N = 40000 };
    struct host h;
    HOST_START(&h, "--blocks", "20000", "--block-tokens", "4", "--block-bytes", "64");
    struct worker w = {.host = &h};
    w.c = connect_with(&h, (struct pfx_options){.arena_bytes = 1});
    static uint32_t tokens[N];
    sequence(tokens, N, 1);
    struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = N};
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = N};
    for (int i = 0; i < 20; i++) {
        struct pfx_match m = {.size = sizeof m};
        OK(pfx_lookup(w.c, &look, &m));
        if (i % 2)
            host_pause(&h);
        OK(pfx_submit_reserve(w.c, m.lease, 10000 - m.n_blocks, 1));
        OK(pfx_submit_insert(w.c, m.lease, &in, 2));
        OK(pfx_submit_lookup(w.c, &look, 3));
        OK(pfx_submit_release(w.c, m.lease, 4));
        int rc = pfx_cancel(w.c, 3);
        ck_assert(rc == 0 || (rc == PFX_ENOENT && i % 2 == 0));
        if (i % 2)
            host_resume(&h);
        completion_of(w.c, 1, 0);
        ck_assert_uint_eq(completion_of(w.c, 2, 0).insert.cached_blocks, 10000);
        if (rc)
            OK(pfx_release(w.c, completion_of(w.c, 3, 0).lease));
        completion_of(w.c, 4, 0);
        completion_none(w.c);
        step(&w);
        tokens[i * 2000]++;
    }
    ck_assert_uint_eq(counters(&w).leases, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* While the daemon answers: each lookup is either cancelled or completes, and no lease is lost. */
START_TEST(cancel_races_with_the_answer)
{
    struct scene a;
    scene_open(&a, 16);
    struct rng r = rng_seeded("cancel_races_with_the_answer");
    unsigned cancelled = 0, late = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        OK(pfx_submit_lookup(a.c, &a.look, i));
        for (uint32_t spins = rng_below(&r, 2000); spins; spins--)
            __asm__ volatile("");
        if (i % 64 == 0)
            sleep_us(50); /* certainly answered, unless the machine is busy */
        int rc = pfx_cancel(a.c, i);
        if (rc == 0) {
            cancelled++;
            continue;
        }
        ck_assert_int_eq(rc, PFX_ENOENT);
        late++;
        struct pfx_completion k = completion_of(a.c, i, 0);
        ck_assert_uint_eq(k.match.matched_tokens, 8);
        OK(pfx_release(a.c, k.lease));
    }
    ck_assert_uint_gt(cancelled, 0);
    ck_assert_uint_gt(late, 0);
    scene_close(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cancel");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, cancel_before_the_answer);
    tcase_add_test(t, cancel_after_the_answer);
    tcase_add_test(t, cancel_of_other_calls);
    tcase_add_test(t, cancel_of_a_fetch);
    tcase_add_test(t, cancel_of_a_repeated_tag);
    tcase_add_test(t, cancel_with_a_full_ring);
    tcase_add_test(t, cancel_of_calls_that_wait);
    tcase_add_test(t, cancel_races_with_the_answer);
    suite_add_tcase(s, t);
    return s;
}
