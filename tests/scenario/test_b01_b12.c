/* Public reports B01 to B12 (reference counts, ownership, eviction, match length): outages of
 * systems like this one, as scenarios (COVERAGE.md); 4 tokens a block. */
#include "tests/worker.h"

#include <string.h>

START_TEST(b01_double_release)
{
    struct host h;
    struct worker w0, w1, w2;
    host_small(&h, 8, 4);
    worker_open(&w0, &h, NULL);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    ck_assert_uint_eq(cache(&w0, "aaaabbbb"), 2);

    struct held l1 = look(&w1, "aaaabbbbx");
    struct held l2 = look(&w2, "aaaabbbbx");
    ck_assert_uint_eq(l1.match.matched_tokens, 8);
    ck_assert_uint_eq(l2.match.matched_tokens, 8);
    pages_are(&w0, 6, 0, 2, 0);
    drop(&w1, &l1);
    pages_are(&w0, 6, 0, 2, 0);
    ck_assert_int_eq(release(&w1, l1.lease), PFX_ESTALE);
    ck_assert_int_eq(release(&w1, l2.lease), PFX_ESTALE);
    pages_are(&w0, 6, 0, 2, 0);

    ck_assert_uint_eq(evict(&w0, 8), 0);
    bytes_match(&w2, &l2, "aaaabbbb");
    drop(&w2, &l2);
    ck_assert_uint_eq(evict(&w0, 2), 2);
    pages_are(&w0, 8, 0, 0, 0);

    struct held all = look(&w0, "");
    bool seen[9] = {false};
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(grab(&w0, &all, 1), 0);
        uint32_t id = all.table[i];
        ck_assert(id >= 1 && id <= 8 && !seen[id]);
        seen[id] = true;
    }
    worker_close(&w0);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

/* One request of B03 that ends in the way given; what it may leave behind is checked. */
static void b03_request(struct worker *w, struct worker *other, struct rng *r, int way)
{
    char text[14] = "";
    for (int i = 0; i < 12; i++)
        text[i] = (char)('a' + rng_below(r, 2) + (i % 4 == 0 ? 0 : 2));
    struct pages before = pages(w);
    uint32_t cached_before = matched(w, text);
    struct held h = look(w, text);
    if (way == 1) {
        drop(w, &h);
    } else if (way == 2) { /* the whole pool never suffices: this lease holds part of it */
        uint32_t n = pfx_geometry(w->c)->n_blocks;
        struct held more = look(w, "");
        ck_assert_int_eq(grab(w, &more, 1), 0);
        ck_assert_int_eq(grab(w, &h, n), PFX_ENOSPC);
        drop(w, &more);
        drop(w, &h);
        return; /* the one page may have cost an idle one */
    } else {
        ck_assert_int_eq(grab(w, &h, 3), 0);
        uint64_t evicted = counters(w).evicted_blocks;
        if (way == 0) {
            struct pfx_insert_result res;
            ck_assert_int_eq(put(w, &h, text, 0, NULL, &res), 0);
            ck_assert_uint_eq(res.cached_blocks, 3);
        }
        if (way == 5) {
            struct host *host = w->host;
            worker_close(w);
            EVENTUALLY(5000, counters(other).workers == 1);
            worker_open(w, host, NULL);
        } else {
            drop(w, &h);
        }
        ck_assert_uint_eq(counters(w).evicted_blocks, evicted);
    }
    struct pages after = pages(w);
    ck_assert_uint_eq(after.private + after.pinned + after.inflight, 0);
    if (way == 0)
        return;
    ck_assert_uint_ge(after.free, before.free);
    ck_assert_uint_le(matched(w, text), cached_before);
}

START_TEST(b03_every_ending_gives_back)
{
    struct host h;
    struct worker w, other;
    struct rng r = rng_seeded("b03");
    host_small(&h, 12, 4);
    worker_open(&w, &h, NULL);
    worker_open(&other, &h, NULL);
    for (int i = 0; i < 10000; i++) {
        static const int ways[] = {0, 1, 2, 3, 5};
        int way = ways[rng_below(&r, 5)];
        if (way == 5 && rng_below(&r, 10))
            way = 3;
        b03_request(&w, &other, &r, way);
    }
    struct pages end = pages(&w);
    ck_assert_uint_eq(end.private + end.pinned + end.inflight, 0);
    worker_close(&w);
    worker_close(&other);
    host_stop(&h);
}
END_TEST

START_TEST(b04_matched_blocks_are_not_free_space)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    struct held l = look(&w, "aaaabbbbccccddddx");
    struct pages before = pages(&w);
    ck_assert_int_eq(grab(&w, &l, 5), PFX_ENOSPC);
    pages_equal(&w, before);
    ck_assert_uint_eq(counters(&w).evicted_blocks, 0);
    ck_assert_int_eq(grab(&w, &l, 4), 0);
    drop(&w, &l);
    worker_close(&w);
    host_stop(&h);

    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    cache(&w, "qqqqrrrr");
    l = look(&w, "aaaabbbbccccddddx");
    ck_assert_int_eq(grab(&w, &l, 4), 0);
    for (int i = 4; i < 8; i++)
        for (int j = 0; j < 4; j++)
            ck_assert_uint_ne(l.table[i], l.table[j]);
    bytes_match(&w, &l, "aaaabbbbccccdddd");
    ck_assert_uint_eq(matched(&w, "qqqqrrrrx"), 0);
    drop(&w, &l);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b05_nothing_held_is_evicted)
{
    struct host h;
    struct worker w1, w2, w3;
    host_small(&h, 8, 4);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    worker_open(&w3, &h, NULL);
    cache(&w1, "aaaabbbbccccdddd");
    cache(&w1, "eeeeffffgggghhhh");
    struct held l1 = look(&w1, "aaaabbbbccccddddx");
    ck_assert_uint_eq(l1.match.matched_tokens, 16);
    struct held l2 = look(&w2, "");
    ck_assert_int_eq(grab(&w2, &l2, 4), 0);
    ck_assert_int_eq(grab(&w2, &l2, 1), PFX_ENOSPC);
    bytes_match(&w1, &l1, "aaaabbbbccccdddd");
    uint32_t last = l1.table[3];
    drop(&w1, &l1);
    ck_assert_int_eq(grab(&w2, &l2, 1), 0);
    ck_assert_uint_eq(l2.table[4], last);
    struct held l3 = look(&w3, "aaaabbbbccccddddx");
    ck_assert_uint_eq(l3.match.matched_tokens, 12);
    worker_close(&w1);
    worker_close(&w2);
    worker_close(&w3);
    host_stop(&h);
}
END_TEST

START_TEST(b07_leaf_first)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    for (uint32_t left = 12;; left -= 4) {
        ck_assert_uint_eq(evict(&w, 1), 1);
        ck_assert_uint_eq(matched(&w, "aaaabbbbccccddddx"), left);
        if (left == 0)
            break;
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b07_random_trees_evict_to_empty)
{
    struct host h;
    struct worker w;
    struct rng r = rng_seeded("b07");
    host_small(&h, 24, 1);
    worker_open(&w, &h, NULL);
    for (int tree = 0; tree < 1000; tree++) {
        char text[9];
        struct held pin[3];
        unsigned pins = 0;
        for (int i = 0; i < 4; i++) {
            size_t n = 1 + rng_below(&r, 6);
            for (size_t k = 0; k < n; k++)
                text[k] = (char)('a' + rng_below(&r, 2));
            text[n] = 0;
            cache(&w, text);
            if (pins < 3 && rng_below(&r, 2))
                pin[pins++] = look_whole(&w, text);
        }
        while (pins) {
            evict(&w, 1 + rng_below(&r, 4));
            drop(&w, &pin[--pins]);
        }
        for (uint64_t idle = pages(&w).idle; idle; idle = pages(&w).idle) {
            uint32_t n = 1 + rng_below(&r, 4);
            ck_assert_uint_eq(evict(&w, n), idle < n ? idle : n);
        }
        pages_are(&w, 24, 0, 0, 0);
        ck_assert_uint_eq(counters(&w).nodes, 0);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

static void b09_both_insert(struct worker *w1, struct worker *w2, const char *first,
                            uint32_t n_shared)
{
    const char *t = "aaaabbbbccccx";
    struct held l1 = look(w1, t), l2 = look(w2, t);
    ck_assert_uint_eq(l1.match.matched_tokens + l2.match.matched_tokens, 0);
    ck_assert_int_eq(grab(w1, &l1, 3), 0);
    ck_assert_int_eq(grab(w2, &l2, 3), 0);
    struct pfx_insert_result r1, r2;
    uint32_t canonical[3];
    ck_assert_int_eq(put(w1, &l1, first, 0, NULL, &r1), 0);
    ck_assert_uint_eq(r1.new_blocks, n_shared);
    ck_assert_int_eq(put(w2, &l2, t, 0, canonical, &r2), 0);
    ck_assert_uint_eq(r2.cached_blocks, 3);
    ck_assert_uint_eq(r2.duplicate_blocks, n_shared);
    ck_assert_uint_eq(r2.new_blocks, 3 - n_shared);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(canonical[i], i < n_shared ? l1.table[i] : l2.table[i]);

    struct worker w3;
    worker_open(&w3, w1->host, NULL);
    struct held rest = look(&w3, "");
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_int_eq(grab(&w3, &rest, 1), 0);
    ck_assert_int_eq(grab(&w3, &rest, 1), PFX_ENOSPC);
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < 3; k++)
            ck_assert(rest.table[i] != l1.table[k] && rest.table[i] != l2.table[k]);

    uint32_t surplus[3];
    memcpy(surplus, l2.table, sizeof surplus);
    drop(w2, &l2); /* the surplus pages become free, once */
    struct pages before = pages(w2);
    ck_assert_uint_eq(before.free, n_shared);
    struct seq s = seq(t);
    struct pfx_insert_args again = {.size = sizeof again, .tokens = s.at, .n_written = s.n};
    ck_assert_int_eq(pfx_insert(w2->c, l2.lease, &again, NULL, &r2), PFX_ESTALE);
    step(w2);
    pages_equal(w2, before);
    for (uint32_t i = 0; i < n_shared; i++)
        ck_assert_int_eq(grab(&w3, &rest, 1), 0);
    for (uint32_t i = 6; i < 6 + n_shared; i++)
        ck_assert(rest.table[i] == surplus[0] || rest.table[i] == surplus[1] ||
                  (n_shared == 3 && rest.table[i] == surplus[2]));
    worker_close(&w3);
    drop(w1, &l1);
}

START_TEST(b09_duplicate_insert)
{
    struct host h;
    struct worker w1, w2;
    host_small(&h, 12, 4);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    b09_both_insert(&w1, &w2, "aaaabbbbcccc", 3);
    EVENTUALLY(5000, counters(&w1).workers == 2);
    ck_assert_uint_eq(evict(&w1, 12), 3);
    b09_both_insert(&w1, &w2, "aaaabbbb", 2);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

START_TEST(b11_one_token_is_left_to_compute)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    for (size_t n = 0; n <= 20; n++) {
        char text[32] = "aaaabbbbzzzzzzzzzzzz";
        text[n] = 0;
        struct held l = look(&w, text);
        uint32_t want = n <= 4 ? 0 : n <= 8 ? 4 : 8;
        ck_assert_uint_eq(l.match.matched_tokens, want);
        /* a tail block is held like the rest: with it, one more may be pinned */
        uint32_t tail = l.match.tail_tokens ? 1 : 0;
        pages_are(&w, 6, 0, want / 4 + tail, 2 - want / 4 - tail);
        drop(&w, &l);
    }
    ck_assert_uint_eq(matched(&w, "aaaabbbz"), 4);
    ck_assert_uint_eq(matched(&w, "aaaabbbzy"), 4);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b12_repeated_lookup_and_old_lease)
{
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    const char *long_text = "aaaabbbbccccddddeeeeffffgggghhhhx";
    struct held first = look(&w, long_text), second = look(&w, long_text);
    ck_assert_uint_eq(first.match.matched_tokens, 16);
    ck_assert_uint_eq(second.match.matched_tokens, 16);
    ck_assert_mem_eq(first.table, second.table, 4 * sizeof first.table[0]);
    drop(&w, &first);
    ck_assert_int_eq(grab(&w, &second, 5), 0);
    ck_assert_int_eq(put(&w, &second, long_text, 0, NULL, NULL), 0);
    drop(&w, &second);
    ck_assert_uint_eq(pages(&w).pinned, 0);
    ck_assert_uint_eq(matched(&w, long_text), 32);

    struct held old = look(&w, long_text);
    drop(&w, &old);
    ck_assert_uint_eq(evict(&w, 16), 8);
    struct pages before = pages(&w);
    struct seq s = seq(long_text);
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result r = {.size = sizeof r};
    ck_assert_int_eq(pfx_insert(w.c, old.lease, &args, NULL, &r), PFX_ESTALE);
    step(&w);
    ck_assert_int_eq(grab(&w, &old, 1), PFX_ESTALE);
    ck_assert_int_eq(cut(&w, &old, 0), PFX_ESTALE);
    pages_equal(&w, before);
    ck_assert_uint_eq(matched(&w, long_text), 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("public reports B01..B12");
    TCase *t = tcase_create("quick");
    tcase_set_timeout(t, 30 * SLOW);
    tcase_add_test(t, b01_double_release);
    tcase_add_test(t, b04_matched_blocks_are_not_free_space);
    tcase_add_test(t, b05_nothing_held_is_evicted);
    tcase_add_test(t, b07_leaf_first);
    tcase_add_test(t, b09_duplicate_insert);
    tcase_add_test(t, b11_one_token_is_left_to_compute);
    tcase_add_test(t, b12_repeated_lookup_and_old_lease);
    suite_add_tcase(s, t);
    t = tcase_create("long");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, b03_every_ending_gives_back);
    tcase_add_test(t, b07_random_trees_evict_to_empty);
    suite_add_tcase(s, t);
    return s;
}
