/*
 * What calls report: canonical ids, duplicates, repeated inserts, matches that stay as they were,
 * and how match_multiple, max_match and the flags shape a lookup.
 */
#include "tests/client/fixture.h"

#include <stdio.h>
#include <string.h>

static void scene_open(struct host *h, struct worker *w)
{
    host_small(h, 64, 4);
    worker_open(w, h, NULL);
}

static void scene_close(struct host *h, struct worker *w)
{
    worker_close(w);
    host_stop(h);
}

static void result_is(const struct pfx_insert_result *r, uint32_t cached, uint32_t new,
                      uint32_t duplicates)
{
    ck_assert_msg(r->size == sizeof *r && r->cached_blocks == cached && r->new_blocks == new &&
                      r->duplicate_blocks == duplicates,
                  "cached %u new %u duplicate %u, not %u %u %u", r->cached_blocks, r->new_blocks,
                  r->duplicate_blocks, cached, new, duplicates);
}

/* ---- inserts ----------------------------------------------------------------------------- */

START_TEST(canonical_ids_and_duplicates)
{
    struct host h;
    struct worker a, b;
    scene_open(&h, &a);
    worker_open(&b, &h, NULL);
    struct held first = look(&a, "aaaabbbbcccc"), second = look(&b, "aaaabbbbccccdddd");
    ck_assert_int_eq(grab(&a, &first, 3), 0);
    ck_assert_int_eq(grab(&b, &second, 4), 0);
    struct pfx_insert_result r;
    uint32_t canonical[4] = {0}, theirs[4];
    ck_assert_int_eq(put(&a, &first, "aaaabbbbcccc", 0, canonical, &r), 0);
    result_is(&r, 3, 3, 0);
    ck_assert_mem_eq(canonical, first.table, 3 * sizeof *canonical);

    /* the same again by somebody else: his own copies are no longer needed */
    memset(theirs, 0, sizeof theirs);
    ck_assert_int_eq(put(&b, &second, "aaaabbbbccccdddd", 0, theirs, &r), 0);
    result_is(&r, 4, 1, 3);
    ck_assert_mem_eq(theirs, canonical, 3 * sizeof *theirs);
    ck_assert_uint_eq(theirs[3], second.table[3]);
    pages_are(&a, 64 - 3 - 4, 3, 4, 0);
    for (int i = 0; i < 3; i++) { /* a repeated call reports the same numbers, no new ones */
        uint32_t again[4] = {0};
        ck_assert_int_eq(put(&b, &second, "aaaabbbbccccdddd", 0, again, &r), 0);
        result_is(&r, 4, 0, 3);
        ck_assert_mem_eq(again, theirs, sizeof again);
    }
    struct held found = look(&a, "aaaabbbbccccddddx");
    ck_assert_mem_eq(found.match.blocks, theirs, sizeof theirs);
    bytes_match(&a, &found, "aaaabbbbccccdddd");
    drop(&b, &second); /* its three duplicates are freed */
    pages_are(&a, 60, 0, 4, 0);
    drop(&a, &first);
    drop(&a, &found);
    pages_are(&a, 60, 0, 0, 4);
    worker_close(&b);
    scene_close(&h, &a);
}
END_TEST

/* canonical: one id a cached full position, n_written / block_tokens at most, and not one more. */
START_TEST(canonical_ids_as_many_as_written)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    struct held l = look(&w, "aaaabbbbccccdddd");
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    struct pfx_insert_result r;
    uint32_t ids[6];
    const struct {
        const char *text;
        uint32_t flags, cached, new, ids;
    } rows[] = {
        {"", 0, 0, 0, 0},
        {"aaa", 0, 0, 0, 0},
        {"aaaa", 0, 1, 1, 1},
        {"aaaabbbbcc", 0, 2, 1, 2},
        {"aaaabb", 0, 2, 0, 1},               /* shorter than what is published */
        {"aaaabbbbccccddddeeee", 0, 3, 1, 3}, /* more than the table covers */
        {"aaaabbbb", 0, 3, 0, 2},
        {"aaaabbbbcccc", PFX_FINAL, 3, 0, 3},
        {"aaaabbbbcc", PFX_FINAL, 3, 0, 2},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        memset(ids, 0xa5, sizeof ids);
        ck_assert_int_eq(put(&w, &l, rows[i].text, rows[i].flags, ids, &r), 0);
        result_is(&r, rows[i].cached, rows[i].new, 0);
        for (uint32_t k = 0; k < LENGTH(ids); k++)
            ck_assert_uint_eq(ids[k], k < rows[i].ids ? l.table[k] : 0xa5a5a5a5u);
    }
    drop(&w, &l);
    scene_close(&h, &w);
}
END_TEST

/* A partial block counts, gets no canonical id, and is a duplicate where a candidate goes on. */
START_TEST(partial_blocks)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    const struct {
        const char *text;
        uint32_t new, duplicates;
    } rows[] = {
        {"aaaabb", 2, 0},   /* a new prefix and a new partial    */
        {"aaaabbb", 1, 0},  /* longer: a partial of its own      */
        {"aaaabbb", 0, 1},  /* the same                          */
        {"aaaab", 0, 1},    /* a prefix of the partial           */
        {"aaaacc", 1, 0},   /* another                           */
        {"aaaadddd", 1, 0}, /* a full block                      */
        {"aaaaddd", 0, 1},  /* a prefix of the full block        */
        {"aa", 0, 1},       /* at the root, of the first block   */
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct held l = look(&w, rows[i].text);
        uint32_t want = ((uint32_t)strlen(rows[i].text) + 3) / 4, ids[2] = {0};
        ck_assert_int_eq(grab(&w, &l, want - l.n_table), 0);
        struct pfx_insert_result r;
        for (int again = 0; again < 2; again++) {
            ck_assert_int_eq(put(&w, &l, rows[i].text, PFX_FINAL, ids, &r), 0);
            result_is(&r, want, again ? 0 : rows[i].new, rows[i].duplicates);
            ck_assert_uint_eq(ids[1], strlen(rows[i].text) < 8 ? 0 : l.table[1]);
        }
        drop(&w, &l);
    }
    scene_close(&h, &w);
}
END_TEST

/* ---- a match stays as it was ------------------------------------------------------------- */

START_TEST(match_is_the_callers_until_release)
{
    struct host h;
    struct worker w, other;
    scene_open(&h, &w);
    worker_open(&other, &h, NULL);
    cache(&other, "aaaabbbbccccddddeeeeffff");
    struct held l[3];
    uint32_t ids[3][5];
    for (int i = 0; i < 3; i++) {
        static const char *const texts[] = {"aaaabbbbccccddddeeeex", "aaaabbbbccccdx", "aaaabx"};
        l[i] = look(&w, texts[i]);
        memcpy(ids[i], l[i].match.blocks, l[i].match.n_blocks * 4);
    }
    const char *const branches[] = {
        "aaaabbbbcccczzzz",         "aaaazzzz",     "zzzz",
        "aaaabbbbccccddddzzzzyyyy", "aaaabbbbyyyy", "aaaabbbbccccddddeeeeffffgggg"};
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < LENGTH(branches); i++) /* splits */
            cache(&other, branches[i]);
        evict(&other, round == 1 ? 3 : 64); /* and merges */
        if (round == 2)
            OK(pfx_flush(other.c, 0));
        for (int i = 0; i < 3; i++) {
            ck_assert_mem_eq(l[i].match.blocks, ids[i], l[i].match.n_blocks * 4);
            bytes_match(&w, &l[i], "aaaabbbbccccddddeeee");
        }
    }
    for (int i = 0; i < 3; i++)
        drop(&w, &l[i]);
    worker_close(&other);
    scene_close(&h, &w);
}
END_TEST

/* Also through its own inserts, and calls on many other leases that come and go. */
START_TEST(match_stays_through_own_calls)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaabbbb");
    struct held l = look(&w, "aaaabbbbccccdddd");
    const uint32_t *blocks = l.match.blocks, first = blocks[0], second = blocks[1];
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbccccdddd", 0, NULL, NULL), 0);
    for (int i = 0; i < 600; i++) { /* more than the library keeps for reuse */
        struct held more = look(&w, i % 2 ? "aaaabbbbccccddddx" : "zzzz");
        if (i % 3)
            drop(&w, &more);
    }
    ck_assert(blocks[0] == first && blocks[1] == second);
    struct pfx_match m = {.size = sizeof m};
    OK(pfx_fetch(w.c, l.lease, &m));
    ck_assert_uint_eq(m.matched_tokens, 8); /* what was matched, not what was inserted */
    ck_assert(m.blocks[0] == first && m.blocks[1] == second);
    drop(&w, &l);
    scene_close(&h, &w);
}
END_TEST

/* ---- how long a match is ----------------------------------------------------------------- */

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t m = a;
    while (m % b)
        m += a;
    return m;
}

/* Every multiple, every max_match: the longest multiple of both within the limit, and a tail only
 * where nothing was cut. */
START_TEST(every_multiple_and_limit)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    const char *text = "aaaabbbbccccddddeeeeff"; /* 20 in full blocks, 2 in a partial one */
    cache_final(&w, text);
    struct seq s = seq("aaaabbbbccccddddeeeeffgg");
    for (uint32_t multiple = 0; multiple <= 30; multiple++)
        for (size_t most = 0; most <= s.n + 2; most++) {
            struct pfx_lookup_args args = lookup_args(&w, &s);
            args.max_match = most;
            args.match_multiple = multiple;
            size_t limit = most == 0 ? s.n - 1 : most < s.n ? most : s.n;
            uint32_t full = (uint32_t)(limit < 20 ? limit : 20) / 4 * 4;
            uint32_t unit = multiple ? common_multiple(4, multiple) : 4;
            uint32_t want = full / unit * unit;
            uint32_t tail = want < full ? 0 : (uint32_t)(limit < 22 ? limit : 22) - want;
            struct pfx_match m = {.size = sizeof m};
            struct pfx_peeked p = {.size = sizeof p};
            OK(pfx_lookup(w.c, &args, &m));
            OK(pfx_peek_full(w.c, &args, &p));
            if (m.matched_tokens != want || m.tail_tokens != tail || m.n_blocks != want / 4 ||
                p.matched_tokens != want || p.tail_tokens != tail || p.resident_tokens != want)
                ck_abort_msg("multiple %u, max_match %d: %u and %u, peek %u and %u, not %u and %u",
                             multiple, (int)most, m.matched_tokens, m.tail_tokens, p.matched_tokens,
                             p.tail_tokens, want, tail);
            if ((m.tail_block == PFX_NO_BLOCK) != (tail == 0))
                ck_abort_msg("tail_block %u with %u tail tokens", m.tail_block, m.tail_tokens);
            OK(pfx_release(w.c, m.lease));
        }
    step(&w);
    scene_close(&h, &w);
}
END_TEST

/* ---- flags ------------------------------------------------------------------------------- */

/* Evict one: the victim must be this one-block prefix. */
static void oldest_is(struct worker *w, const char *text)
{
    char longer[8];
    snprintf(longer, sizeof longer, "%sx", text);
    ck_assert_uint_eq(evict(w, 1), 1);
    struct seq s = seq(longer);
    ck_assert_msg(pfx_peek(w->c, 0, s.at, s.n) == 0, "%s was not the oldest", text);
}

static void flagged_lookup(struct worker *w, const char *text, uint32_t flags, uint32_t matched)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_stats before = counters(w);
    args.flags = flags;
    struct held l = look_args(w, &args);
    ck_assert_uint_eq(l.match.matched_tokens, matched);
    struct pfx_stats now = counters(w);
    ck_assert_uint_eq(now.leases, before.leases + 1);
    drop(w, &l);
    counters_equal(w, &before, text);
}

/* PFX_QUIET and an empty lease touch no counter but `leases`, and no recency; nor does release. */
START_TEST(quiet_and_empty_lookups)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaa");
    cache(&w, "bbbb");
    cache(&w, "cccc");
    cache(&w, "dddd");
    flagged_lookup(&w, "aaaax", PFX_QUIET, 4);
    flagged_lookup(&w, "zzzzx", PFX_QUIET, 0);
    flagged_lookup(&w, "bbbbx", PFX_NO_MATCH, 0);
    flagged_lookup(&w, "bbbbx", PFX_NO_MATCH | PFX_QUIET, 0);
    flagged_lookup(&w, "", 0, 0);
    oldest_is(&w, "aaaa");
    oldest_is(&w, "bbbb");
    struct held l = look(&w, "ccccx"); /* an ordinary one does stamp */
    drop(&w, &l);
    oldest_is(&w, "dddd");
    oldest_is(&w, "cccc");
    scene_close(&h, &w);
}
END_TEST

/* A lookup's stamp is of the moment of the lookup: a later release is no use. */
START_TEST(release_moves_no_recency)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaa");
    cache(&w, "bbbb");
    struct held a = look(&w, "aaaax"), b = look(&w, "bbbbx");
    drop(&w, &b);
    drop(&w, &a);
    oldest_is(&w, "aaaa");
    oldest_is(&w, "bbbb");
    scene_close(&h, &w);
}
END_TEST

/* Held all the same: what a quiet lookup matched is not evicted. */
START_TEST(quiet_lookup_holds)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaabbbb");
    struct seq s = seq("aaaabbx");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    args.flags = PFX_QUIET;
    struct held l = look_args(&w, &args);
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    ck_assert_uint_eq(evict(&w, 64), 0);
    bytes_match(&w, &l, "aaaa");
    drop(&w, &l);
    ck_assert_uint_eq(evict(&w, 64), 2);
    scene_close(&h, &w);
}
END_TEST

/* An empty lease may compute from the start, and be more than what is cached. */
START_TEST(no_match_to_compute_from_the_start)
{
    struct host h;
    struct worker w;
    scene_open(&h, &w);
    cache(&w, "aaaabbbb");
    struct seq s = seq("aaaabbbbcccc");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    args.flags = PFX_NO_MATCH;
    struct held l = look_args(&w, &args);
    ck_assert_uint_eq(l.match.n_blocks, 0);
    ck_assert_uint_eq(l.match.tail_tokens, 0);
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    struct pfx_insert_result r;
    ck_assert_int_eq(put_seq(&w, &l, &s, 0, NULL, &r), 0);
    result_is(&r, 3, 1, 2);
    drop(&w, &l);
    pages_are(&w, 61, 0, 0, 3);
    scene_close(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("results");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, canonical_ids_and_duplicates);
    tcase_add_test(t, canonical_ids_as_many_as_written);
    tcase_add_test(t, partial_blocks);
    tcase_add_test(t, match_is_the_callers_until_release);
    tcase_add_test(t, match_stays_through_own_calls);
    tcase_add_test(t, every_multiple_and_limit);
    tcase_add_test(t, quiet_and_empty_lookups);
    tcase_add_test(t, release_moves_no_recency);
    tcase_add_test(t, quiet_lookup_holds);
    tcase_add_test(t, no_match_to_compute_from_the_start);
    suite_add_tcase(s, t);
    return s;
}
