/*
 * What is full: the pool, the ring, the arena, the leases and spaces of a worker. The header's
 * error, nothing lost, and it works again when something was given back.
 */
#include "tests/client/fixture.h"

#include <stdlib.h>
#include <string.h>

/* ---- the pool ---------------------------------------------------------------------------- */

/* 16 blocks: 4 cached and held, 3 cached and idle, 5 private, 4 free. */
struct pool16 {
    struct host h;
    struct worker w;
    struct held pinned, private;
};

static void pool16_open(struct pool16 *p)
{
    host_small(&p->h, 16, 4);
    worker_open(&p->w, &p->h, NULL);
    cache(&p->w, "aaaabbbbccccdddd");
    cache(&p->w, "eeeeffffgggg");
    p->pinned = look_whole(&p->w, "aaaabbbbccccdddd");
    p->private = look(&p->w, "");
    ck_assert_int_eq(grab(&p->w, &p->private, 5), 0);
    pages_are(&p->w, 4, 5, 4, 3);
}

static void pool16_close(struct pool16 *p)
{
    worker_close(&p->w);
    host_stop(&p->h);
}

START_TEST(full_pool)
{
    struct pool16 p;
    pool16_open(&p);
    struct held l = look(&p.w, "");
    uint32_t ids[17] = {0}, none[17] = {0};
    for (uint32_t n = 8; n <= 16; n++) /* 4 free and 3 idle are 7 */
        FAILS(&p.w, PFX_ENOSPC, pfx_reserve(p.w.c, l.lease, n, ids));
    FAILS(&p.w, PFX_ETOOBIG, pfx_reserve(p.w.c, l.lease, 17, ids));
    ck_assert_mem_eq(ids, none, sizeof ids);
    struct seq s = seq("eeeeffffgggghhhh");
    ck_assert_int_eq(pfx_peek(p.w.c, 0, s.at, s.n), 12); /* nothing was evicted for it */

    ck_assert_int_eq(grab(&p.w, &l, 7), 0);
    pages_are(&p.w, 0, 12, 4, 0);
    FAILS(&p.w, PFX_ENOSPC, pfx_reserve(p.w.c, p.private.lease, 1, ids));
    FAILS(&p.w, PFX_ENOSPC, pfx_reserve(p.w.c, p.pinned.lease, 1, ids));
    drop(&p.w, &p.private); /* works again after a release */
    ck_assert_int_eq(grab(&p.w, &l, 5), 0);
    FAILS(&p.w, PFX_ENOSPC, pfx_reserve(p.w.c, l.lease, 1, ids));
    drop(&p.w, &p.pinned); /* what was pinned is idle */
    ck_assert_int_eq(grab(&p.w, &l, 1), 0);
    ck_assert_int_eq(cut(&p.w, &l, 3), 0);
    ck_assert_int_eq(grab(&p.w, &l, 10), 0);
    drop(&p.w, &l);
    pages_are(&p.w, 13, 0, 0, 3);
    pool16_close(&p);
}
END_TEST

/* A lease never gets its own matched blocks as room. */
START_TEST(full_of_its_own_match)
{
    struct host h;
    struct worker w;
    host_small(&h, 4, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    struct held l = look_whole(&w, "aaaabbbbccccdddd");
    uint32_t ids[4];
    for (uint32_t n = 1; n <= 4; n++)
        FAILS(&w, PFX_ENOSPC, pfx_reserve(w.c, l.lease, n, ids));
    ck_assert_int_eq(cut(&w, &l, 3), 0);
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    l.match.n_blocks = 3;
    bytes_match(&w, &l, "aaaabbbbcccc");
    drop(&w, &l);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* A large reserve goes in slices; what cannot be had is refused as a whole. */
START_TEST(large_reserves_all_or_nothing)
{
    enum { N = 20000 };
    struct host h;
    HOST_START(&h, "--blocks", "20000", "--block-tokens", "1", "--block-bytes", "64");
    struct worker w = {.host = &h};
    w.c = connect_with(&h, (struct pfx_options){.arena_bytes = 1}); /* ids come in pieces */
    static uint32_t ids[N], seen[N + 1];
    struct held a = look(&w, ""), b = look(&w, "");
    OK(pfx_reserve(w.c, a.lease, 1, ids));
    FAILS(&w, PFX_ENOSPC, pfx_reserve(w.c, b.lease, N, ids));
    OK(pfx_reserve(w.c, b.lease, N - 1, ids + 1));
    for (int i = 0; i < N; i++) {
        if (ids[i] < 1 || ids[i] > N || seen[ids[i]]++)
            ck_abort_msg("block %u does not exist, or was given out twice", ids[i]);
    }
    pages_are(&w, 0, N, 0, 0);
    FAILS(&w, PFX_ENOSPC, pfx_reserve(w.c, a.lease, 1, ids));
    drop(&w, &b);
    pages_are(&w, N - 1, 1, 0, 0);
    drop(&w, &a);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- the ring ---------------------------------------------------------------------------- */

/* Submit until PFX_EAGAIN; returns how many were taken. Tags from `tag` on. */
static unsigned submit_all(pfx *c, const struct pfx_lookup_args *args, uint64_t tag)
{
    unsigned n = 0;
    int rc;
    while ((rc = pfx_submit_lookup(c, args, tag + n)) == 0)
        n++;
    ck_assert_int_eq(rc, PFX_EAGAIN);
    return n;
}

static void full_ring(struct host *h, uint32_t entries)
{
    struct worker w = {.host = h};
    w.c = connect_with(h, (struct pfx_options){.ring_entries = entries, .arena_bytes = 1});
    struct seq s = seq("aaaabbbbx");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    ck_assert_uint_eq(submit_all(w.c, &args, 0), entries);
    struct held l = look(&w, "aaaabbbb"); /* a synchronous call has room of its own */
    ck_assert_uint_eq(l.match.matched_tokens, 4);
    ck_assert_int_eq(pfx_submit_release(w.c, l.lease, 1), PFX_EAGAIN);
    ck_assert_int_eq(pfx_submit_lookup(w.c, &args, 1), PFX_EAGAIN); /* done, but not taken */
    OK(pfx_ping(w.c));
    for (uint64_t tag = 0; tag < entries; tag++) {
        struct pfx_completion k = completion_of(w.c, tag, 0);
        ck_assert_uint_eq(k.match.matched_tokens, 8);
        OK(pfx_submit_release(w.c, k.lease, entries + tag)); /* one is taken: one more has room */
        ck_assert_int_eq(pfx_submit_release(w.c, l.lease, 1), PFX_EAGAIN);
    }
    for (uint64_t tag = entries; tag < 2 * entries; tag++)
        completion_of(w.c, tag, 0);
    completion_none(w.c);
    drop(&w, &l);
    ck_assert_uint_eq(counters(&w).leases, 0);
    worker_close(&w);
}

START_TEST(ring_full)
{
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    const uint32_t entries[] = {1, 2, 4, 8, 16, 256, 4096};
    for (size_t i = 0; i < LENGTH(entries); i++)
        full_ring(&h, entries[i]);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* The same while the daemon is stopped: nothing is lost, and the order stays. */
START_TEST(ring_full_of_a_stopped_daemon)
{
    struct host h;
    struct worker w = {.host = &h};
    host_small(&h, 16, 4);
    w.c = connect_with(&h, (struct pfx_options){.ring_entries = 8, .timeout_ms = 100 * SLOW});
    cache(&w, "aaaabbbb");
    struct seq s = seq("aaaabbbbx");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    struct pfx_match m = {.size = sizeof m};
    host_pause(&h);
    ck_assert_uint_eq(submit_all(w.c, &args, 0), 8);
    ck_assert_int_eq(pfx_lookup(w.c, &args, &m), PFX_ETIMEDOUT);
    ck_assert_int_eq(pfx_ping(w.c), PFX_ETIMEDOUT);
    ck_assert_int_eq(pfx_peek(w.c, 0, s.at, s.n), 8);
    host_resume(&h);
    for (uint64_t tag = 0; tag < 8; tag++)
        OK(pfx_release(w.c, completion_of(w.c, tag, 0).lease));
    completion_none(w.c);
    EVENTUALLY(1000 * SLOW, pfx_ping(w.c) == 0 && counters(&w).leases == 0);
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- the arena --------------------------------------------------------------------------- */

/* More bulk data under way than the smallest arena holds: calls wait for room, in order. */
START_TEST(small_arena_many_large_calls)
{
    enum { CALLS = 16, N = 40000 };
    struct host h;
    HOST_START(&h, "--blocks", "40000", "--block-tokens", "16", "--block-bytes", "64");
    pfx *c = connect_with(&h, (struct pfx_options){.arena_bytes = 1, .ring_entries = 64});
    static uint32_t tokens[N];
    uint64_t lease[CALLS];
    struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = N};
    for (uint32_t i = 0; i < CALLS; i++) {
        sequence(tokens, N, i + 1);
        OK(pfx_submit_lookup(c, &look, i));
    }
    for (uint32_t i = 0; i < CALLS; i++)
        lease[i] = completion_of(c, i, 0).lease;
    for (uint32_t i = 0; i < CALLS; i++) {
        struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = N};
        sequence(tokens, N, i + 1);
        OK(pfx_submit_reserve(c, lease[i], N / 16, 3 * i));
        OK(pfx_submit_insert(c, lease[i], &in, 3 * i + 1));
        OK(pfx_submit_release(c, lease[i], 3 * i + 2));
        memset(tokens, 0xee, sizeof tokens);
    }
    for (uint32_t i = 0; i < CALLS; i++) {
        ck_assert_uint_eq(completion_of(c, 3 * i, 0).n_ids, N / 16);
        ck_assert_uint_eq(completion_of(c, 3 * i + 1, 0).insert.new_blocks, N / 16);
        completion_of(c, 3 * i + 2, 0);
        sequence(tokens, N, i + 1);
        ck_assert_int_eq(pfx_peek(c, 0, tokens, N), N - 16);
    }
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* A block with more extras than a piece holds can never travel: nothing is published of it, nor of
 * the blocks before it. Found locally, such a lookup needs no travel. */
START_TEST(block_with_too_many_extras)
{
    enum { BT = 1024, BLOCKS = 20, FULL = 15, N = BT * BLOCKS };
    struct host h;
    HOST_START(&h, "--blocks", "64", "--block-tokens", "1024", "--block-bytes", "64");
    struct worker w = {.host = &h};
    w.c = connect_with(&h, (struct pfx_options){.arena_bytes = 1});
    static uint32_t tokens[N];
    static struct pfx_extra x[BT];
    sequence(tokens, N, 1);
    for (int i = 0; i < BT; i++)
        x[i] = (struct pfx_extra){.at = FULL * BT + (unsigned)i, .len = 1, .digest = {1}};
    struct held l = look(&w, "");
    ck_assert_int_eq(grab(&w, &l, BLOCKS), 0);
    struct pfx_insert_args in = {
        .size = sizeof in, .tokens = tokens, .n_written = N, .extras = x, .n_extras = BT};
    struct pfx_insert_result r = {.size = sizeof r};
    FAILS(&w, PFX_ETOOBIG, pfx_insert(w.c, l.lease, &in, NULL, &r));
    in.n_written = (FULL + 1) * BT;
    FAILS(&w, PFX_ETOOBIG, pfx_insert(w.c, l.lease, &in, NULL, &r));
    in.n_written = FULL * BT; /* those of that block are beyond the tokens */
    OK(pfx_insert(w.c, l.lease, &in, NULL, &r));
    ck_assert_uint_eq(r.new_blocks, FULL);
    in.n_written = N;
    pfx *wide = connect_with(&h, (struct pfx_options){0}); /* with a larger arena it fits */
    struct pfx_lookup_args look = {.size = sizeof look,
                                   .tokens = tokens,
                                   .n_tokens = N,
                                   .extras = x,
                                   .n_extras = BT,
                                   .max_match = N};
    struct pfx_match m = {.size = sizeof m};
    uint32_t ids[BLOCKS];
    OK(pfx_lookup(wide, &look, &m));
    ck_assert_uint_eq(m.matched_tokens, FULL * BT);
    OK(pfx_reserve(wide, m.lease, BLOCKS - FULL, ids));
    OK(pfx_insert(wide, m.lease, &in, NULL, &r));
    ck_assert_uint_eq(r.new_blocks, BLOCKS - FULL);
    OK(pfx_release(wide, m.lease));
    OK(pfx_lookup(w.c, &look, &m));
    ck_assert_uint_eq(m.matched_tokens, N);
    OK(pfx_release(w.c, m.lease));
    drop(&w, &l);
    pfx_close(wide);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- leases and spaces ------------------------------------------------------------------- */

START_TEST(most_leases_of_a_worker)
{
    struct host h;
    struct worker w, other;
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--max-leases",
               "3");
    worker_open(&w, &h, NULL);
    worker_open(&other, &h, NULL);
    cache(&w, "aaaa");
    struct seq s = seq("aaaab");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    struct pfx_match m = {.size = sizeof m}, none = m;
    struct held l[3];
    for (int i = 0; i < 3; i++)
        l[i] = look(&w, "aaaab");
    FAILS(&w, PFX_ENOSPC, pfx_lookup(w.c, &args, &m));
    ck_assert_mem_eq(&m, &none, sizeof m);
    args.flags = PFX_NO_MATCH;
    FAILS(&w, PFX_ENOSPC, pfx_lookup(w.c, &args, &m));
    struct pfx_stats before = counters(&w);
    OK(pfx_submit_lookup(w.c, &args, 7));
    struct pfx_completion k = completion_of(w.c, 7, PFX_ENOSPC);
    ck_assert_uint_eq(k.lease, 0);
    counters_equal(&w, &before, "a lookup too many");
    struct held theirs = look(&other, "aaaab"); /* a limit of each worker */
    drop(&other, &theirs);
    drop(&w, &l[1]);
    l[1] = look(&w, "aaaab");
    for (int i = 0; i < 3; i++)
        drop(&w, &l[i]);
    worker_close(&other);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Spaces are many, but not without end. One that nobody uses gives its room to another. */
START_TEST(most_spaces)
{
    enum { MORE = 20000 };
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    static pfx_space s[MORE];
    struct pfx_space_desc d = {.size = sizeof d};
    unsigned n = 0;
    int rc = 0;
    for (; n < MORE; n++) {
        d.adapter_id = n + 1;
        rc = pfx_space_open(w.c, &d, &s[n]);
        if (rc)
            break;
    }
    ck_assert_int_eq(rc, PFX_ENOSPC);
    ck_assert_uint_ge(n, 4096);
    ck_assert_uint_eq(counters(&w).spaces, n + 1); /* and the base space */
    FAILS(&w, PFX_ENOSPC, pfx_space_open(w.c, &d, &s[n]));
    OK(pfx_space_close(w.c, s[5]));
    OK(pfx_space_open(w.c, &d, &s[n]));
    struct seq q = seq("aaaab");
    FAILS(&w, PFX_ENOENT, pfx_peek(w.c, s[5], q.at, q.n));
    OK(pfx_peek(w.c, s[n], q.at, q.n));
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("limits");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, full_pool);
    tcase_add_test(t, full_of_its_own_match);
    tcase_add_test(t, large_reserves_all_or_nothing);
    tcase_add_test(t, ring_full);
    tcase_add_test(t, ring_full_of_a_stopped_daemon);
    tcase_add_test(t, small_arena_many_large_calls);
    tcase_add_test(t, block_with_too_many_extras);
    tcase_add_test(t, most_leases_of_a_worker);
    tcase_add_test(t, most_spaces);
    suite_add_tcase(s, t);
    return s;
}
