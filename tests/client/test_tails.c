/* Tails: which candidate is offered, how long, and that it is held; with extras; with limits. */
#include "tests/client/fixture.h"
#include "tests/raw.h"

#include <string.h>

static void scene_open(struct host *h, struct worker *w)
{
    host_small(h, 64, 8);
    worker_open(w, h, NULL);
}

static void scene_close(struct host *h, struct worker *w)
{
    step(w);
    worker_close(w);
    host_stop(h);
}

/* What a lookup of the text offers; it must be what pfx_peek_full says, and hold `bytes_of`. */
static void offers(struct worker *w, const char *text, uint32_t matched, uint32_t tail,
                   const char *bytes_of)
{
    struct seq s = seq(text), of = seq(bytes_of);
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_peeked p = {.size = sizeof p};
    OK(pfx_peek_full(w->c, &args, &p));
    struct held l = look(w, text);
    ck_assert_msg(l.match.matched_tokens == matched && l.match.tail_tokens == tail,
                  "%s: %u and %u, not %u and %u", text, l.match.matched_tokens, l.match.tail_tokens,
                  matched, tail);
    ck_assert_uint_eq(p.matched_tokens, matched);
    ck_assert_uint_eq(p.tail_tokens, tail);
    if (tail)
        ck_assert_msg(bytes_are(w, l.match.tail_block, &of, of.n), "%s: not the page of %s", text,
                      bytes_of);
    else
        ck_assert_uint_eq(l.match.tail_block, PFX_NO_BLOCK);
    drop(w, &l);
}

/* The next block of the run, a child, a partial block: what shares most with the rest. */
START_TEST(best_candidate)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaaaaaabbbbbbbb");
    cache(&w, "aaaaaaaabbbbcccc");
    cache_final(&w, "aaaaaaaabbbbccd");
    cache_final(&w, "aaaaaaaax");
    const struct {
        const char *text;
        uint32_t tail;
        const char *of;
    } rows[] = {
        {"aaaaaaaabbbbbbbX", 7, "aaaaaaaabbbbbbbb"},
        {"aaaaaaaabbbbbbbb", 7, "aaaaaaaabbbbbbbb"},
        {"aaaaaaaabbbbbX", 5, "aaaaaaaabbbbbbbb"},
        {"aaaaaaaabbbbccX", 6, NULL},
        {"aaaaaaaabbbbccdX", 7, "aaaaaaaabbbbccd"},
        {"aaaaaaaabbbbcccX", 7, "aaaaaaaabbbbcccc"},
        {"aaaaaaaaxyz", 1, "aaaaaaaax"},
        {"aaaaaaaabX", 1, NULL},
        {"aaaaaaaaX", 0, ""},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        if (rows[i].of) {
            offers(&w, rows[i].text, 8, rows[i].tail, rows[i].of);
            continue;
        }
        struct held l = look(&w, rows[i].text); /* several share as much */
        ck_assert_uint_eq(l.match.tail_tokens, rows[i].tail);
        drop(&w, &l);
    }
    offers(&w, "aaaaaaaa", 0, 7, "aaaaaaaa"); /* one token is left to compute */
    scene_close(&h, &w);
}
END_TEST

/* Equal tails: the lowest block id. */
START_TEST(equal_tails_lowest_id)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    const char *const texts[] = {"aaaaaaaabbbbcccc", "aaaaaaaabbbbdddd", "aaaaaaaabbbbeeee",
                                 "aaaaaaaabbbbffff"};
    uint32_t lowest = UINT32_MAX;
    for (size_t i = 0; i < LENGTH(texts); i++) {
        struct held l = look(&w, texts[i]);
        uint32_t want = 2 - l.n_table, ids[3];
        if (i == 1)
            OK(pfx_reserve(w.c, l.lease, 1, ids)); /* mix the order of ids */
        ck_assert_int_eq(grab(&w, &l, want), 0);
        uint32_t canonical[2];
        struct seq s = seq(texts[i]);
        if (i == 1) {
            OK(pfx_truncate(w.c, l.lease, 1));
            l.n_table = 1;
            ck_assert_int_eq(grab(&w, &l, 1), 0);
        }
        ck_assert_int_eq(put_seq(&w, &l, &s, 0, canonical, NULL), 0);
        lowest = canonical[1] < lowest ? canonical[1] : lowest;
        drop(&w, &l);
    }
    struct held l = look(&w, "aaaaaaaabbbbX");
    ck_assert_uint_eq(l.match.tail_tokens, 4);
    ck_assert_uint_eq(l.match.tail_block, lowest);
    drop(&w, &l);
    scene_close(&h, &w);
}
END_TEST

/* Never more than max_match leaves, and none when the flag or a multiple says so. */
START_TEST(tail_within_max_match)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache_final(&w, "aaaaaaaabbbbb");
    struct seq s = seq("aaaaaaaabbbbbbbb");
    for (size_t most = 1; most <= 16; most++) {
        struct pfx_lookup_args args = lookup_args(&w, &s);
        args.max_match = most;
        struct held l = look_args(&w, &args);
        uint32_t rest = (uint32_t)(most < 8 ? most : most < 13 ? most - 8 : 5);
        ck_assert_uint_eq(l.match.matched_tokens, most < 8 ? 0 : 8);
        ck_assert_uint_eq(l.match.tail_tokens, rest);
        drop(&w, &l);
        args.flags = PFX_NO_TAIL;
        l = look_args(&w, &args);
        ck_assert_uint_eq(l.match.tail_tokens, 0);
        ck_assert_uint_eq(l.match.tail_block, PFX_NO_BLOCK);
        drop(&w, &l);
    }
    scene_close(&h, &w);
}
END_TEST

/* Inserted after the worker's walk, and before its lookup: what is a whole block by now is offered
 * as a tail of one token less. A worker that restores a state at the end of a whole one would copy
 * none of it (depth % block_tokens is 0), and go on without its keys and values. */
START_TEST(tail_is_less_than_a_block)
{
    struct host h;
    struct worker w;
    struct raw r;
    scene_open(&h, &w);
    cache(&w, "aaaaaaaa");
    raw_open(&r, &h, "late");
    struct seq s = seq("aaaaaaaabbbbbbbb");
    const struct index_query query = {.tokens = s.at, .n_tokens = s.n};
    struct index_found found = {0};
    ck_assert(index_walk(&r.view, 0, &query, 2, &found));
    ck_assert_uint_eq(found.where.depth, 1);
    cache(&w, "aaaaaaaabbbbbbbb");
    for (uint32_t rest = 7; rest <= 8; rest++) {
        memcpy(r.arena, s.at + 8, rest * sizeof s.at[0]);
        struct request rq = {
            .op = OP_LOOKUP,
            .lookup = {.where = found.where, .n_tokens = 16, .rest = (uint16_t)rest}};
        struct wire_completion c = raw_call(&r, rq);
        ck_assert_int_eq(c.status, 0);
        ck_assert_uint_eq(c.lookup.where.depth, 1);
        ck_assert_uint_eq(c.lookup.tail_tokens, 7);
    }
    ck_assert_uint_eq(index_tail_tokens(&r.view, found.where, s.at + 8, 8), 7); /* a peek's */
    raw_close(&r);
    EVENTUALLY(5000, counters(&w).workers == 1);
    scene_close(&h, &w);
}
END_TEST

/* A tail alone is a miss. */
START_TEST(tail_alone_is_a_miss)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaaaaaa");
    struct pfx_stats before = counters(&w);
    struct held l = look(&w, "aaaaaX");
    ck_assert_uint_eq(l.match.tail_tokens, 5);
    struct pfx_stats now = counters(&w);
    ck_assert_uint_eq(now.misses, before.misses + 1);
    ck_assert_uint_eq(now.hits, before.hits);
    ck_assert_uint_eq(now.hit_tokens, before.hit_tokens);
    drop(&w, &l);
    scene_close(&h, &w);
}
END_TEST

/* The tail block is held until the release, or any cut of the table. */
START_TEST(tail_is_held)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    struct seq s = seq("aaaaaaaabbb");
    for (int how = 0; how < 3; how++) {
        cache_final(&w, "aaaaaaaabbb");
        struct held l = look(&w, "aaaaaaaabbbX");
        ck_assert_uint_eq(l.match.tail_tokens, 3);
        pages_are(&w, 62, 0, 2, 0);
        ck_assert_uint_eq(evict(&w, 64), 0);
        ck_assert(bytes_are(&w, l.match.tail_block, &s, s.n));
        if (how == 1) { /* no cut: nothing ends */
            ck_assert_int_eq(cut(&w, &l, 1), 0);
            ck_assert_uint_eq(evict(&w, 64), 0);
        } else if (how == 2) {
            ck_assert_int_eq(grab(&w, &l, 1), 0);
            ck_assert_int_eq(cut(&w, &l, 1), 0); /* of the new block alone: a cut all the same */
            ck_assert_uint_eq(evict(&w, 64), 1);
            ck_assert_int_eq(cut(&w, &l, 0), 0);
        }
        drop(&w, &l);
        ck_assert_uint_eq(evict(&w, 64), how == 2 ? 1 : 2);
    }
    scene_close(&h, &w);
}
END_TEST

/* ---- with extras ------------------------------------------------------------------------- */

static int put_extras(struct worker *w, struct held *l, const struct seq *s, uint32_t flags,
                      const struct pfx_extra *x, size_t n)
{
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = flags,
                                   .tokens = s->at,
                                   .n_written = s->n,
                                   .extras = x,
                                   .n_extras = n};
    struct pfx_insert_result r = {.size = sizeof r};
    return pfx_insert(w->c, l->lease, &args, NULL, &r);
}

static void cache_extras(struct worker *w, const char *text, const struct pfx_extra *x, size_t n)
{
    struct seq s = seq(text);
    struct held l = look(w, "");
    ck_assert_int_eq(grab(w, &l, ((uint32_t)s.n + 7) / 8), 0);
    fill(w, &l, &s);
    OK(put_extras(w, &l, &s, PFX_FINAL, x, n));
    drop(w, &l);
}

static void offers_extras(struct worker *w, const char *text, const struct pfx_extra *x, size_t n,
                          uint32_t matched, uint32_t tail)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_peeked p = {.size = sizeof p};
    args.extras = x;
    args.n_extras = n;
    OK(pfx_peek_full(w->c, &args, &p));
    struct held l = look_args(w, &args);
    ck_assert_msg(l.match.matched_tokens == matched && l.match.tail_tokens == tail,
                  "%u and %u, not %u and %u", l.match.matched_tokens, l.match.tail_tokens, matched,
                  tail);
    ck_assert_uint_eq(p.matched_tokens, matched);
    ck_assert_uint_eq(p.tail_tokens, tail);
    drop(w, &l);
}

/* A tail ends before an extra that starts inside the block, on either side. */
START_TEST(tail_ends_before_an_extra)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    const struct pfx_extra stored = {.at = 12, .len = 3, .digest = {1}};
    cache_extras(&w, "aaaaaaaabbbbbbbb", &stored, 1);
    const char *text = "aaaaaaaabbbbbbbX";
    for (uint64_t at = 8; at < 16; at++) {
        struct pfx_extra asked = {.at = at, .len = 2, .digest = {1}};
        offers_extras(&w, text, &asked, 1, 8, at < 12 ? (uint32_t)at - 8 : 4);
    }
    offers_extras(&w, text, NULL, 0, 8, 4);
    offers_extras(&w, text, &stored, 1, 8, 4);
    struct pfx_extra behind = {.at = 16, .len = 2};
    offers_extras(&w, text, &behind, 1, 8, 4);
    offers_extras(&w, "aaaaaaaabbbbbbbbc", &stored, 1, 16, 0); /* the whole block, with its extra */
    scene_close(&h, &w);
}
END_TEST

/* One that starts in the block before is part of that block's content: it must be the same there,
 * and does not end the tail. */
START_TEST(tail_goes_on_from_an_extra)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    struct pfx_extra x = {.at = 5, .len = 6, .digest = {1}};
    cache_extras(&w, "aaaaaaaabbbbbbbb", &x, 1);
    offers_extras(&w, "aaaaaaaabbbbbbbX", &x, 1, 8, 7);
    x.digest[31] = 1;
    offers_extras(&w, "aaaaaaaabbbbbbbX", &x, 1, 0, 5); /* another image: only what stands before */
    x.digest[31] = 0;
    x.len = 5;
    offers_extras(&w, "aaaaaaaabbbbbbbX", &x, 1, 0, 5);
    offers_extras(&w, "aaaaaaaabbbbbbbX", NULL, 0, 0, 5);
    scene_close(&h, &w);
}
END_TEST

/* PFX_FINAL with an extra in the last block: cached up to it, as no lookup could use more. */
START_TEST(partial_block_up_to_an_extra)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    struct pfx_extra x = {.at = 10, .len = 1, .digest = {1}};
    cache_extras(&w, "aaaaaaaabbbbb", &x, 1);
    offers_extras(&w, "aaaaaaaabbbbbX", &x, 1, 8, 2);
    offers_extras(&w, "aaaaaaaabbbbbX", NULL, 0, 8, 2);
    x.at = 8;
    cache_extras(&w, "zzzzzzzzyyyyy", &x, 1); /* it starts with one: nothing to copy */
    offers_extras(&w, "zzzzzzzzyyyyyX", &x, 1, 8, 0);
    scene_close(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tails");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, best_candidate);
    tcase_add_test(t, equal_tails_lowest_id);
    tcase_add_test(t, tail_within_max_match);
    tcase_add_test(t, tail_is_less_than_a_block);
    tcase_add_test(t, tail_alone_is_a_miss);
    tcase_add_test(t, tail_is_held);
    tcase_add_test(t, tail_ends_before_an_extra);
    tcase_add_test(t, tail_goes_on_from_an_extra);
    tcase_add_test(t, partial_block_up_to_an_extra);
    suite_add_tcase(s, t);
    return s;
}
