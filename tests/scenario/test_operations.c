/* A test a row of the founding interface (COVERAGE.md; but disk; snapshots:
 * test_operations_states.c): every operation that the project was founded on, across processes. */
#include "tests/worker.h"

#include <string.h>

static void setup(struct host *h, struct worker *w)
{
    host_small(h, 16, 4);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    worker_close(w);
    host_stop(h);
}

START_TEST(op_is_active)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    ck_assert_uint_eq(pfx_geometry(w.c)->active, 1);
    teardown(&h, &w);

    HOST_START(&h, "--index", "none", "--blocks", "8", "--block-tokens", "4", "--block-bytes",
               "64");
    worker_open(&w, &h, NULL);
    ck_assert_uint_eq(pfx_geometry(w.c)->active, 0);
    struct held l = look(&w, "aaaabbbbx"); /* every call works, nothing is ever found */
    ck_assert_uint_eq(l.match.n_blocks, 0);
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    ck_assert_int_ge(put(&w, &l, "aaaabbbbx", 0, NULL, NULL), 0);
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 0);
    ck_assert_int_eq(cut(&w, &l, 1), 0);
    drop(&w, &l);
    pages_are(&w, 8, 0, 0, 0);
    ck_assert_uint_eq(evict(&w, 8), 0);
    ck_assert_int_eq(pfx_flush(w.c, 0), 0);
    step(&w);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_lookup)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    cache(&w, "aaaabbbbcccc");
    cache(&w, "zzzz");
    struct pfx_stats before = counters(&w);
    struct held l = look(&w, "aaaabbbbccXX");
    ck_assert_uint_eq(l.match.matched_tokens, 8);
    struct pfx_stats after = counters(&w);
    ck_assert_uint_eq(after.lookups, before.lookups + 1);
    ck_assert_uint_eq(after.hits, before.hits + 1);
    ck_assert_uint_eq(after.misses, before.misses);
    ck_assert_uint_eq(after.hit_tokens, before.hit_tokens + 8);
    ck_assert_uint_eq(after.lookup_tokens, before.lookup_tokens + 12);
    drop(&w, &l);
    struct held miss = look(&w, "yyyyyyyy");
    ck_assert_uint_eq(counters(&w).misses, before.misses + 1);
    ck_assert_uint_eq(counters(&w).hits, after.hits);
    drop(&w, &miss);
    /* recency: the matched path was used after zzzz and after the rest of its own run */
    ck_assert_uint_eq(evict(&w, 2), 2);
    ck_assert_uint_eq(matched(&w, "aaaabbbbccccx"), 8);
    ck_assert_uint_eq(matched(&w, "zzzzx"), 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_lookup_result)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    cache(&w, "aaaabbbbcccc");
    struct held l = look(&w, "aaaabbbbcczz");
    ck_assert_uint_eq(l.match.size, sizeof l.match);
    ck_assert_uint_eq(l.match.matched_tokens, 8);
    ck_assert_uint_eq(l.match.n_blocks, 2);
    ck_assert_uint_eq(l.match.n_resident, 2);
    ck_assert_ptr_null(l.match.disk); /* there is no disk tier */
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    bytes_match(&w, &l, "aaaabbbb");
    ck_assert_uint_eq(l.match.snapshot.slot, PFX_NO_SLOT);
    ck_assert_uint_eq(l.match.snapshot.depth, 0);
    ck_assert_uint_eq(l.match.snapshot.tier_key, 0);
    ck_assert_uint_eq(l.match.snapshot.tier_depth, 0);
    ck_assert_uint_eq(l.match.snapshot.is_tail, 0);
    drop(&w, &l);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_sub_block_remainder)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct seq s = seq("aaaabbbb");
    cache(&w, "aaaabbbb");
    struct held l = look(&w, "aaaabbbzz"); /* against a longer child */
    ck_assert_uint_eq(l.match.matched_tokens, 4);
    ck_assert_uint_eq(l.match.tail_tokens, 3);
    ck_assert(bytes_are(&w, l.match.tail_block, &s, 8));
    drop(&w, &l);
    cache_final(&w, "aaaacc"); /* against a stored partial suffix */
    s = seq("aaaacc");
    l = look(&w, "aaaaccdd");
    ck_assert_uint_eq(l.match.matched_tokens, 4);
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    ck_assert(bytes_are(&w, l.match.tail_block, &s, 6));
    drop(&w, &l);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_peek_matched_tokens)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    cache(&w, "aaaabbbb");
    cache(&w, "zzzz");
    struct seq s = seq("aaaabbbbx");
    struct pfx_stats before = counters(&w);
    ck_assert_int_eq(pfx_peek(w.c, 0, s.at, s.n), 8);
    ck_assert_int_eq(pfx_peek(w.c, 0, s.at, 8), 4); /* leaves a token, as a lookup does */
    ck_assert_int_eq(pfx_peek(w.c, 0, s.at, 0), 0);
    struct pfx_stats after = counters(&w);
    ck_assert_mem_eq(&before, &after, sizeof before); /* no counter, no hold */
    ck_assert_uint_eq(evict(&w, 2), 2);               /* no recency: aaaabbbb was the older */
    ck_assert_uint_eq(matched(&w, "zzzzx"), 4);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_adapters_and_base)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct pfx_space_desc d = {.size = sizeof d};
    pfx_space base = 7, one = 0, two = 0;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &base), 0);
    ck_assert_uint_eq(base, 0); /* no tenant, adapter 0: the base space */
    d.adapter_id = 1;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &one), 0);
    d.adapter_id = 2;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &two), 0);
    ck_assert_uint_ne(one, two);
    cache(&w, "aaaa");
    w.space = one;
    ck_assert_uint_eq(matched(&w, "aaaax"), 0);
    cache(&w, "aaaa");
    w.space = two;
    ck_assert_uint_eq(matched(&w, "aaaax"), 0);
    w.space = 0;
    ck_assert_uint_eq(matched(&w, "aaaax"), 4);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_insert)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct pfx_insert_result r;
    uint32_t ids[2];
    cache(&w, "aaaa");
    struct seq s = seq("aaaabbbb");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    args.flags = PFX_NO_MATCH;
    struct held l = look_args(&w, &args);
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbb", 0, ids, &r), 0);
    ck_assert_uint_eq(r.size, sizeof r);
    ck_assert_uint_eq(r.cached_blocks, 2);
    ck_assert_uint_eq(r.new_blocks, 1); /* an existing node keeps its block */
    ck_assert_uint_eq(r.duplicate_blocks, 1);
    ck_assert_uint_ne(ids[0], l.table[0]);
    ck_assert_uint_eq(ids[1], l.table[1]);
    pages_are(&w, 13, 1, 2, 0);
    drop(&w, &l);
    pages_are(&w, 14, 0, 0, 2);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_release)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w);
    worker_open(&v, &h, NULL);
    struct held l = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbcccc", 0, NULL, NULL), 0);
    cache(&v, "aaaaxxxx"); /* the tree changes meanwhile: splits, other branches, evictions */
    cache(&v, "aaaabbbbcccceeee");
    ck_assert_uint_eq(evict(&v, 16), 2);
    pages_are(&w, 13, 0, 3, 0);
    drop(&w, &l);
    pages_are(&w, 13, 0, 0, 3);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_release_matched)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaa");
    struct held rolled = look(&w, "aaaabbbbccccx");
    struct held kept = look(&v, "aaaabbbbccccx");
    ck_assert_int_eq(grab(&v, &kept, 2), 0);
    ck_assert_int_eq(put(&v, &kept, "aaaabbbbcccc", 0, NULL, NULL), 0);
    drop(&w, &rolled); /* gives back one block's hold, not the longer suffix's */
    pages_are(&w, 13, 0, 3, 0);
    drop(&v, &kept);
    pages_are(&w, 13, 0, 0, 3);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_evict)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    cache(&w, "aaaabbbb");
    cache(&w, "cccc");
    cache(&w, "dddd");
    struct held l = look_whole(&w, "cccc");
    uint64_t before = counters(&w).evicted_blocks;
    struct pfx_evicted e = {.size = sizeof e};
    ck_assert_int_ge(pfx_evict(w.c, 3, &e), 0); /* least recent, not held, leaf first */
    step(&w);
    ck_assert_uint_eq(e.freed_blocks, 3);
    ck_assert_uint_eq(e.removed_blocks, 3);
    ck_assert_uint_eq(counters(&w).evicted_blocks, before + 3);
    ck_assert_uint_eq(evict(&w, 100), 0);
    ck_assert_uint_eq(matched(&w, "ccccx"), 4);
    drop(&w, &l);
    ck_assert_uint_eq(evict(&w, 0), 0);
    ck_assert_uint_eq(evict(&w, 100), 1);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_stats)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.size, sizeof s);
    ck_assert_uint_eq(s.blocks_free, 16);
    ck_assert_uint_eq(s.workers, 1);
    ck_assert_uint_eq(s.spaces, 1);
    ck_assert_uint_eq(s.leases + s.nodes + s.snapshots, 0);
    cache(&w, "aaaabbbb");
    struct held l = look(&w, "aaaabbbbx");
    s = counters(&w); /* a counter is there before the completion that reports its change */
    ck_assert_uint_eq(s.leases, 1);
    ck_assert_uint_eq(s.blocks_pinned, 2);
    ck_assert_uint_eq(s.inserted_blocks, 2);
    ck_assert_uint_eq(s.nodes, 1);
    drop(&w, &l);
    ck_assert_uint_eq(counters(&w).leases, 0);
    teardown(&h, &w);
}
END_TEST

/* Counters that count never go back, whatever happens: the exported view of a process' life. */
START_TEST(op_counters_never_go_back)
{
    struct host h;
    struct worker w;
    struct rng r = rng_seeded("op_counters");
    setup(&h, &w);
    struct pfx_stats last = counters(&w);
    for (int i = 0; i < 300; i++) {
        char text[9] = "aaaabbbb";
        text[0] = (char)('a' + rng_below(&r, 8));
        switch (rng_below(&r, 4)) {
        case 0:
            cache(&w, text);
            break;
        case 1:
            matched(&w, text);
            break;
        case 2:
            evict(&w, rng_below(&r, 5));
            break;
        default:
            ck_assert_int_eq(pfx_flush(w.c, 0), 0);
            break;
        }
        struct held l = look(&w, text);
        drop(&w, &l);
        struct pfx_stats now = counters(&w);
        ck_assert_uint_eq(now.lookups, last.lookups + 1);
        ck_assert_uint_eq(now.hits + now.misses, now.lookups);
        ck_assert_uint_ge(now.hits, last.hits);
        ck_assert_uint_ge(now.misses, last.misses);
        ck_assert_uint_ge(now.hit_tokens, last.hit_tokens);
        ck_assert_uint_ge(now.inserted_blocks, last.inserted_blocks);
        ck_assert_uint_ge(now.evicted_blocks, last.evicted_blocks);
        last = now;
    }
    teardown(&h, &w);
}
END_TEST

static void op_shared_child(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    child_wait(me);
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8); /* the other process' blocks and bytes */
    cache(&w, "aaaabbbbcccc");
    child_post(me, 1);
    child_wait(me);
    worker_close(&w);
}

START_TEST(op_shared_by_processes)
{
    struct host h;
    struct worker w;
    struct child c[3];
    setup(&h, &w);
    for (int i = 0; i < 3; i++)
        child_start(&c[i], op_shared_child, &h);
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 3; i++) {
        child_post(&c[i], 1);
        child_wait(&c[i]);
        ck_assert_uint_eq(matched(&w, "aaaabbbbccccx"), 12);
    }
    for (int i = 0; i < 3; i++) {
        child_post(&c[i], 1);
        child_join(&c[i]);
    }
    pages_are(&w, 13, 0, 0, 3);
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("operations");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, op_is_active);
    tcase_add_test(t, op_lookup);
    tcase_add_test(t, op_lookup_result);
    tcase_add_test(t, op_sub_block_remainder);
    tcase_add_test(t, op_peek_matched_tokens);
    tcase_add_test(t, op_adapters_and_base);
    tcase_add_test(t, op_insert);
    tcase_add_test(t, op_release);
    tcase_add_test(t, op_release_matched);
    tcase_add_test(t, op_evict);
    tcase_add_test(t, op_stats);
    tcase_add_test(t, op_counters_never_go_back);
    tcase_add_test(t, op_shared_by_processes);
    suite_add_tcase(s, t);
    return s;
}
