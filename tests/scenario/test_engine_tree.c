/* Engine faults E1 to E34 (tree counts, block ownership, sub-block matching): what a single-process
 * engine got wrong, made impossible here. COVERAGE.md says
 * where the rest is. */
#include "tests/worker.h"

#include <string.h>

/* Sixteen-token blocks, as the faults were met with. */
#define A16 "aaaaaaaaaaaaaaaa"
#define B16 "bbbbbbbbbbbbbbbb"
#define C16 "cccccccccccccccc"
#define D16 "dddddddddddddddd"

static void setup(struct host *h, struct worker *w, unsigned n_blocks, unsigned bt)
{
    host_small(h, n_blocks, bt);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    worker_close(w);
    host_stop(h);
}

START_TEST(e1_straddling_block)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 16);
    struct pfx_insert_result r;
    struct held l = look(&w, A16 "bbbbbb"); /* 22 tokens */
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    ck_assert_int_eq(put(&w, &l, A16 "bbbbbb", 0, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 1);
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    ck_assert_int_eq(put(&w, &l, A16 B16 C16 "dddddddddddd", 0, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 3);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, A16 B16 C16 "dddddddddddd"), 48);
    pages_are(&w, 5, 0, 0, 3);
    teardown(&h, &w);
}
END_TEST

START_TEST(e3_bypassing_request)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "syssyste");
    struct seq s = seq("syssyste-image-");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    args.flags = PFX_NO_MATCH;
    struct held l = look_args(&w, &args); /* computes from the start, shares nothing */
    ck_assert_uint_eq(l.match.n_blocks, 0);
    ck_assert_int_eq(grab(&w, &l, 4), 0);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, "syssyste-"), 8);
    teardown(&h, &w);
}
END_TEST

START_TEST(e4_rollback_gives_back_what_it_took)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 8, 4);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaa");
    struct held candidate = look(&w, "aaaabbbbccccx");
    ck_assert_uint_eq(candidate.match.n_blocks, 1);
    struct held other = look(&v, "aaaabbbbccccx");
    ck_assert_int_eq(grab(&v, &other, 3), 0);
    ck_assert_int_eq(put(&v, &other, "aaaabbbbccccx", 0, NULL, NULL), 0);
    drop(&w, &candidate);
    pages_are(&w, 4, 1, 3, 0); /* all three are still the other's */
    ck_assert_uint_eq(evict(&w, 8), 0);
    drop(&v, &other);
    pages_are(&w, 5, 0, 0, 3);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(e6_failed_prefill_leaks_nothing)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "aaaabbbb");
    struct held hog = look(&w, "");
    ck_assert_int_eq(grab(&w, &hog, 6), 0);
    for (int i = 0; i < 20; i++) {
        struct pages before = pages(&w);
        struct held l = look(&w, "aaaabbbbcccc");
        ck_assert_uint_eq(l.match.n_blocks, 2);
        ck_assert_int_eq(grab(&w, &l, 1), PFX_ENOSPC);
        drop(&w, &l);
        pages_equal(&w, before);
    }
    drop(&w, &hog);
    ck_assert_uint_eq(evict(&w, 8), 2);
    teardown(&h, &w);
}
END_TEST

START_TEST(e7_batch_of_leases_ends_with_its_worker)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 16, 4);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 5; i++) {
        struct held l = look(&v, "aaaabbbbcccc");
        ck_assert_int_eq(grab(&v, &l, 1), 0);
    }
    pages_are(&w, 9, 5, 2, 0);
    worker_close(&v); /* an error in stream k: nobody releases streams > k */
    EVENTUALLY(5000, counters(&w).leases == 0);
    step(&w);
    pages_are(&w, 14, 0, 0, 2);
    teardown(&h, &w);
}
END_TEST

START_TEST(e9_warm_turns_never_wedge)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 12, 4);
    for (int turn = 0; turn < 300; turn++) {
        char text[33] = "sysAsysBsysC";
        for (int i = 12; i < 32; i++)
            text[i] = (char)('a' + (turn * 7 + i) % 11);
        text[32] = 0;
        struct held l = look(&w, text);
        ck_assert_uint_ge(l.match.n_blocks, turn ? 3 : 0);
        ck_assert_int_eq(grab(&w, &l, 8 - l.n_table), 0);
        ck_assert_int_eq(put(&w, &l, text, 0, NULL, NULL), 0);
        drop(&w, &l);
        ck_assert_uint_eq(pages(&w).pinned + pages(&w).private, 0);
    }
    uint64_t idle = pages(&w).idle;
    ck_assert_uint_eq(evict(&w, 12), idle);
    pages_are(&w, 12, 0, 0, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(e10_eviction_never_takes_what_is_held)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 8, 4);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    struct held l = look(&w, "aaaabbbbccccddddx");
    ck_assert_uint_eq(evict(&v, 8), 0);
    struct held all = look(&v, "");
    ck_assert_int_eq(grab(&v, &all, 4), 0);
    ck_assert_int_eq(grab(&v, &all, 1), PFX_ENOSPC);
    for (uint32_t i = 0; i < 4; i++)
        memset(pfx_block_address(v.c, 0, all.table[i]), 0xee, 64);
    bytes_match(&w, &l, "aaaabbbbccccdddd");
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(e12_partial_block_is_owned_like_any_other)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    ck_assert_uint_eq(cache_final(&w, "aaaabb"), 2);
    pages_are(&w, 6, 0, 0, 2);
    for (int i = 0; i < 60; i++) { /* offered and given back: never freed by that */
        struct held l = look(&w, "aaaabbbbc");
        ck_assert_uint_eq(l.match.matched_tokens, 4);
        ck_assert_uint_eq(l.match.tail_tokens, 2);
        pages_are(&w, 6, 0, 2, 0);
        drop(&w, &l);
        pages_are(&w, 6, 0, 0, 2);
    }
    ck_assert_uint_eq(cache_final(&w, "aaaabb"), 0); /* stored again: no second reference */
    pages_are(&w, 6, 0, 0, 2);
    ck_assert_uint_eq(evict(&w, 8), 2);
    pages_are(&w, 8, 0, 0, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(e13_free_block_is_not_freed_again)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    struct held l = look(&w, "");
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    drop(&w, &l);
    ck_assert_int_eq(release(&w, l.lease), PFX_ESTALE);
    struct held all = look(&w, "");
    ck_assert_int_eq(grab(&w, &all, 4), 0); /* four different ones */
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(all.table[i], all.table[k]);
    ck_assert_int_eq(grab(&w, &all, 1), PFX_ENOSPC);
    teardown(&h, &w);
}
END_TEST

START_TEST(e16_insert_again_and_extension)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    struct held l = look(&w, "");
    struct pfx_insert_result first, again, longer;
    uint32_t ids[2], ids_again[2];
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbb", 0, ids, &first), 0);
    struct pages before = pages(&w);
    ck_assert_int_eq(put(&w, &l, "aaaabbbb", 0, ids_again, &again), 0);
    pages_equal(&w, before);
    ck_assert_uint_eq(first.new_blocks, 2);
    ck_assert_uint_eq(again.new_blocks, 0);
    ck_assert_uint_eq(again.cached_blocks, first.cached_blocks);
    ck_assert_uint_eq(again.duplicate_blocks, 0);
    ck_assert_mem_eq(ids, ids_again, sizeof ids);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbcccc", 0, NULL, &longer), 0);
    ck_assert_uint_eq(longer.new_blocks, 1);
    ck_assert_uint_eq(longer.cached_blocks, 3);
    ck_assert_uint_eq(counters(&w).inserted_blocks, 3);
    drop(&w, &l);
    pages_are(&w, 5, 0, 0, 3);
    teardown(&h, &w);
}
END_TEST

START_TEST(e18_first_inserter_keeps_its_entry)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "aaaabbbb"); /* inserts and releases */
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    teardown(&h, &w);
}
END_TEST

START_TEST(e19_checkpoint_inserts)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    struct held l = look(&w, "aaaabbbbccccdddd");
    ck_assert_int_eq(grab(&w, &l, 4), 0);
    static const char *const checkpoints[] = {"aaaa", "aaaabbbb", "aaaabbbbcccc",
                                              "aaaabbbbccccdddd"};
    for (int i = 0; i < 4; i++) {
        struct pfx_insert_result r;
        ck_assert_int_eq(put(&w, &l, checkpoints[i], 0, NULL, &r), 0);
        ck_assert_uint_eq(r.new_blocks, 1);
    }
    pages_are(&w, 4, 0, 4, 0);
    drop(&w, &l);
    pages_are(&w, 4, 0, 0, 4);
    ck_assert_uint_eq(evict(&w, 8), 4);
    teardown(&h, &w);
}
END_TEST

/* E21 and E22: a tail is a copy source; what goes on from it gets pages of its own. */
START_TEST(e21_tail_is_copied_never_shared)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 12, 16);
    cache_final(&w, A16 B16 "ccc"); /* [0, 35) */
    struct held l = look_whole(&w, A16 "bbbbbb");
    ck_assert_uint_eq(l.match.matched_tokens, 16);
    ck_assert_uint_eq(l.match.tail_tokens, 6);
    uint32_t source = l.match.tail_block;
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    ck_assert_uint_ne(l.table[1], source);
    memcpy(pfx_block_address(w.c, 0, l.table[1]), pfx_block_address(w.c, 0, source), 64);
    struct pfx_insert_result r;
    uint32_t ids[2];
    ck_assert_int_eq(put(&w, &l, A16 "bbbbbbzzzzzzzzzz", 0, ids, &r), 0);
    ck_assert_uint_eq(r.new_blocks, 1);
    ck_assert_uint_ne(ids[1], source); /* one block, one identity */
    drop(&w, &l);

    struct held branch = look_whole(&w, A16 B16 "ccc");
    ck_assert_uint_eq(branch.match.matched_tokens, 32);
    ck_assert_uint_eq(branch.table[1], source);
    ck_assert_uint_eq(branch.match.tail_tokens, 3);
    bytes_match(&w, &branch, A16 B16);
    struct seq whole = seq(A16 B16 "ccc");
    ck_assert(bytes_are(&w, branch.match.tail_block, &whole, 35));
    drop(&w, &branch);
    ck_assert_uint_eq(matched(&w, A16 "bbbbbbzzzzzzzzzz-"), 32);
    teardown(&h, &w);
}
END_TEST

START_TEST(e24_unrelated_branch_leaves_the_partial)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache_final(&w, "aaaabb");
    cache(&w, "aaaaxxxx");
    cache(&w, "aaaabbbb"); /* nor does a longer block: the partial goes by eviction */
    struct held l = look_whole(&w, "aaaabb");
    ck_assert_uint_eq(l.match.matched_tokens, 4);
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    drop(&w, &l);
    pages_are(&w, 4, 0, 0, 4);
    teardown(&h, &w);
}
END_TEST

START_TEST(e25_lookup_again_is_another_lease)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "aaaabbbb");
    struct held once = look(&w, "aaaabbbbx"), again = look(&w, "aaaabbbbx");
    ck_assert_uint_ne(once.lease, again.lease);
    ck_assert_uint_eq(again.n_table, 2);
    pages_are(&w, 6, 0, 2, 0);
    drop(&w, &once);
    drop(&w, &again);
    pages_are(&w, 6, 0, 0, 2);
    teardown(&h, &w);
}
END_TEST

START_TEST(e28_only_written_blocks_are_cached)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    struct held l = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    struct pfx_insert_result r;
    ck_assert_int_eq(put(&w, &l, "aaaabbbbccc", 0, NULL, &r), 0); /* one token short */
    ck_assert_uint_eq(r.cached_blocks, 2);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, "aaaabbbbccccx"), 8);

    l = look(&w, "qqqqrrrrssss"); /* more written than the table covers: capped to the table */
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    ck_assert_int_eq(put(&w, &l, "qqqqrrrrssss", 0, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 2);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, "qqqqrrrrssssx"), 8);
    teardown(&h, &w);
}
END_TEST

START_TEST(e30_tokens_must_agree_with_the_lease)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "aaaabbbb");
    struct held l = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    struct pages before = pages(&w);
    ck_assert_int_eq(put(&w, &l, "bbbbcccc", 0, NULL, NULL), PFX_ECONFLICT); /* a suffix */
    ck_assert_int_eq(put(&w, &l, "aaaabbbXcccc", 0, NULL, NULL), PFX_ECONFLICT);
    ck_assert_int_eq(put(&w, &l, "aaaX", 0, NULL, NULL), PFX_ECONFLICT);
    pages_equal(&w, before);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbcccc", 0, NULL, NULL), 0);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, "aaaabbbbccccx"), 12);
    teardown(&h, &w);
}
END_TEST

static int look_image(struct worker *w, const char *text, uint8_t image, struct pfx_match *m)
{
    struct seq s = seq(text);
    struct pfx_extra extra = {.at = 2, .len = 4};
    memset(extra.digest, image, sizeof extra.digest);
    struct pfx_lookup_args args = lookup_args(w, &s);
    args.extras = &extra;
    args.n_extras = image ? 1 : 0;
    *m = (struct pfx_match){.size = sizeof *m};
    return pfx_lookup(w->c, &args, m);
}

START_TEST(e31_images_are_part_of_the_key)
{
    struct host h;
    struct worker w;
    struct pfx_match m;
    setup(&h, &w, 8, 4);
    const char *text = "t..pppptttt"; /* the pads of an image, at tokens 2..5 */
    ck_assert_int_eq(look_image(&w, text, 1, &m), 0);
    struct held l = {.lease = m.lease, .match = m};
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    struct seq s = seq("t..ppppt");
    struct pfx_extra extra = {.at = 2, .len = 4};
    memset(extra.digest, 1, sizeof extra.digest);
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = s.at, .n_written = s.n, .extras = &extra, .n_extras = 1};
    struct pfx_insert_result r = {.size = sizeof r};
    ck_assert_int_eq(pfx_insert(w.c, l.lease, &args, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 2);
    drop(&w, &l);
    static const struct {
        uint8_t image;
        uint32_t matched;
    } looks[] = {{1, 8}, {2, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(look_image(&w, text, looks[i].image, &m), 0);
        ck_assert_uint_eq(m.matched_tokens, looks[i].matched);
        ck_assert_int_eq(release(&w, m.lease), 0);
    }
    teardown(&h, &w);
}
END_TEST

START_TEST(e33_a_peek_promises_nothing)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 4);
    cache(&w, "aaaabbbbccccdddd");
    struct seq s = seq("aaaabbbbccccddddx");
    ck_assert_int_eq(pfx_peek(w.c, 0, s.at, s.n), 16);
    ck_assert_uint_eq(evict(&w, 2), 2); /* an earlier stream of the batch */
    struct held l = look(&w, "aaaabbbbccccddddx");
    ck_assert_uint_eq(l.match.matched_tokens, 8);
    ck_assert_uint_eq(evict(&w, 8), 0); /* what the lookup said is held */
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("engine faults: tree and ownership");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, e1_straddling_block);
    tcase_add_test(t, e3_bypassing_request);
    tcase_add_test(t, e4_rollback_gives_back_what_it_took);
    tcase_add_test(t, e6_failed_prefill_leaks_nothing);
    tcase_add_test(t, e7_batch_of_leases_ends_with_its_worker);
    tcase_add_test(t, e9_warm_turns_never_wedge);
    tcase_add_test(t, e10_eviction_never_takes_what_is_held);
    tcase_add_test(t, e12_partial_block_is_owned_like_any_other);
    tcase_add_test(t, e13_free_block_is_not_freed_again);
    tcase_add_test(t, e16_insert_again_and_extension);
    tcase_add_test(t, e18_first_inserter_keeps_its_entry);
    tcase_add_test(t, e19_checkpoint_inserts);
    tcase_add_test(t, e21_tail_is_copied_never_shared);
    tcase_add_test(t, e24_unrelated_branch_leaves_the_partial);
    tcase_add_test(t, e25_lookup_again_is_another_lease);
    tcase_add_test(t, e28_only_written_blocks_are_cached);
    tcase_add_test(t, e30_tokens_must_agree_with_the_lease);
    tcase_add_test(t, e31_images_are_part_of_the_key);
    tcase_add_test(t, e33_a_peek_promises_nothing);
    suite_add_tcase(s, t);
    return s;
}
