/*
 * Large prompts: 2^20 tokens, inserts in pieces, and the slow lookup as the oracle of the fast one.
 */
#include "tests/client/fixture.h"
#include "tests/raw.h"

#include <stdlib.h>
#include <string.h>

enum { N = 1 << 20, BT = 16, BLOCKS = N / BT };

static uint32_t tokens[N + 1];
static uint32_t table[BLOCKS], canonical[BLOCKS];

static void large_host(struct host *h)
{
    HOST_START(h, "--blocks", "70000", "--block-tokens", "16", "--block-bytes", "64");
    sequence(tokens, N + 1, 1);
}

static struct pfx_match lookup_first(pfx *c, size_t n, size_t max_match)
{
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = tokens, .n_tokens = n, .max_match = max_match};
    struct pfx_match m = {.size = sizeof m};
    OK(pfx_lookup(c, &args, &m));
    return m;
}

static struct pfx_insert_result insert_first(pfx *c, uint64_t lease, size_t n, uint32_t *ids)
{
    struct pfx_insert_args args = {.size = sizeof args, .tokens = tokens, .n_written = n};
    struct pfx_insert_result r = {.size = sizeof r};
    OK(pfx_insert(c, lease, &args, ids, &r));
    return r;
}

/* One insert of all, by the library's pieces; every id of every answer. */
static void all_at_once(struct pfx_options o)
{
    struct host h;
    large_host(&h);
    pfx *c = connect_with(&h, o);
    struct pfx_match m = lookup_first(c, N, 0);
    ck_assert_uint_eq(m.matched_tokens, 0);
    OK(pfx_reserve(c, m.lease, BLOCKS, table));
    struct pfx_insert_result r = insert_first(c, m.lease, N, canonical);
    ck_assert_uint_eq(r.cached_blocks, BLOCKS);
    ck_assert_uint_eq(r.new_blocks, BLOCKS);
    ck_assert_uint_eq(r.duplicate_blocks, 0);
    ck_assert_mem_eq(table, canonical, sizeof table);
    struct pfx_match found = lookup_first(c, N + 1, 0);
    ck_assert_uint_eq(found.matched_tokens, N);
    ck_assert_uint_eq(found.n_resident, BLOCKS);
    ck_assert_mem_eq(found.blocks, table, sizeof table);
    ck_assert_int_eq(pfx_peek(c, 0, tokens, N + 1), N);
    r = insert_first(c, m.lease, N, canonical); /* again: compared here, nothing new */
    ck_assert_uint_eq(r.new_blocks, 0);
    ck_assert_mem_eq(table, canonical, sizeof table);
    tokens[N - 1] ^= 1; /* the last token of all counts */
    struct pfx_insert_args wrong = {.size = sizeof wrong, .tokens = tokens, .n_written = N};
    ck_assert_int_eq(pfx_insert(c, m.lease, &wrong, NULL, &r), PFX_ECONFLICT);
    ck_assert_int_eq(pfx_peek(c, 0, tokens, N + 1), N - BT);
    OK(pfx_release(c, m.lease));
    OK(pfx_release(c, found.lease));
    audit_clean(&h);
    pfx_close(c);
    host_stop(&h);
}

START_TEST(insert_of_a_million_tokens)
{
    all_at_once((struct pfx_options){0});
}
END_TEST

START_TEST(insert_of_a_million_tokens_through_a_small_arena)
{
    all_at_once((struct pfx_options){.arena_bytes = 1, .ring_entries = 1});
}
END_TEST

/* As a prefill goes: a chunk reserved, written, inserted, by the same lease; others see each. */
START_TEST(insert_chunk_by_chunk)
{
    struct host h;
    large_host(&h);
    pfx *c = connect_with(&h, (struct pfx_options){0});
    pfx *other = connect_with(&h, (struct pfx_options){0});
    struct pfx_match m = lookup_first(c, N, 0);
    struct rng rng = rng_seeded("insert_chunk_by_chunk");
    size_t at = 0;
    uint32_t have = 0;
    while (at < N) {
        at += 1 + rng_below(&rng, 60000);
        at = at < N ? at : N;
        uint32_t want = (uint32_t)((at + BT - 1) / BT), full = (uint32_t)(at / BT);
        OK(pfx_reserve(c, m.lease, want - have, table + have));
        have = want;
        struct pfx_insert_result r = insert_first(c, m.lease, at, canonical);
        ck_assert_uint_eq(r.cached_blocks, full);
        ck_assert_mem_eq(table, canonical, full * sizeof *table);
        ck_assert_int_eq(pfx_peek(other, 0, tokens, N + 1), full * BT);
        struct pfx_match seen = lookup_first(other, at + 1, 0);
        ck_assert_uint_eq(seen.n_blocks, full);
        ck_assert_mem_eq(table, seen.blocks, full * sizeof *table);
        OK(pfx_release(other, seen.lease));
    }
    OK(pfx_truncate(c, m.lease, BLOCKS));
    OK(pfx_release(c, m.lease));
    pfx_close(other);
    pfx_close(c);
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

/* ---- the slow lookup, by the protocol itself --------------------------------------------- */

struct query {
    size_t n;
    uint32_t max_match, multiple;
    bool no_tail;
    const struct pfx_extra *extras;
    size_t n_extras;
};

/* Tokens [at, at + n) and the extras that touch them, in the request arena. */
static uint32_t put_piece(struct raw *r, const struct query *q, uint32_t at, uint32_t n)
{
    struct wire_extra *to = (void *)(r->arena + ((n * 4 + 7) & ~7u));
    uint32_t n_extras = 0;
    memcpy(r->arena, tokens + at, n * 4);
    for (size_t i = 0; i < q->n_extras; i++)
        if (q->extras[i].at < at + n && q->extras[i].at + q->extras[i].len > at)
            memcpy(&to[n_extras++], &q->extras[i], sizeof *to);
    return n_extras;
}

/* All tokens, a piece a record: what the library does when its walk gives up. */
static struct wire_completion slow_lookup(struct raw *r, const struct query *q)
{
    struct wire_completion k = {.lease = 0};
    for (uint32_t at = 0;;) {
        uint32_t n = q->max_match - at, most = piece_most(BT);
        bool last = n <= most;
        n = last ? n : most;
        uint32_t flags = (last ? RF_LAST : 0) | (q->no_tail ? RF_NO_TAIL : 0);
        uint32_t n_extras = put_piece(r, q, at, n);
        struct request rq = {.op = OP_LOOKUP_SLOW, .flags = (uint16_t)flags, .lease = k.lease};
        rq.slow = (struct request_lookup_slow){.n_tokens = (uint32_t)q->n,
                                               .max_match = q->max_match,
                                               .multiple = q->multiple,
                                               .piece = n,
                                               .n_extras = n_extras};
        k = raw_call(r, rq);
        if (k.status == 0)
            return k;
        ck_assert_int_eq(k.status, ANSWER_MORE);
        ck_assert(!last);
        at += n;
    }
}

static unsigned deep, tails; /* how many answers say something */

static void fast_and_slow_agree(struct raw *r, pfx *c, const struct query *q)
{
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .flags = q->no_tail ? PFX_NO_TAIL : 0,
                                   .tokens = tokens,
                                   .n_tokens = q->n,
                                   .extras = q->extras,
                                   .n_extras = q->n_extras,
                                   .max_match = q->max_match,
                                   .match_multiple = q->multiple};
    struct pfx_match m = {.size = sizeof m};
    OK(pfx_lookup(c, &args, &m));
    struct wire_completion k = slow_lookup(r, q);
    ck_assert_msg(k.lookup.where.depth == m.n_blocks && k.lookup.tail_tokens == m.tail_tokens &&
                      k.lookup.tail_block == m.tail_block,
                  "n %d max %u multiple %u: slow %u blocks, tail %u of %u; fast %u, %u of %u",
                  (int)q->n, q->max_match, q->multiple, k.lookup.where.depth, k.lookup.tail_tokens,
                  k.lookup.tail_block, m.n_blocks, m.tail_tokens, m.tail_block);
    deep += m.n_blocks > 100;
    tails += m.tail_tokens > 0;
    struct wire_completion done = raw_call(r, (struct request){.op = OP_RELEASE, .lease = k.lease});
    ck_assert_int_eq(done.status, 0);
    OK(pfx_release(c, m.lease));
}

/* A few branches off one long prompt, some with extras, one that ends in a partial block. */
static void grow_branches(pfx *c, struct rng *rng, const struct pfx_extra *x)
{
    static uint32_t ids[BLOCKS];
    for (int i = 0; i < 12; i++) {
        size_t n = (size_t)rng_below(rng, 200000) + 100;
        struct pfx_lookup_args look = {.size = sizeof look,
                                       .tokens = tokens,
                                       .n_tokens = n,
                                       .max_match = n,
                                       .extras = x,
                                       .n_extras = i % 3 ? 0 : 3};
        struct pfx_match m = {.size = sizeof m};
        OK(pfx_lookup(c, &look, &m));
        uint32_t want = (uint32_t)(n / BT + 1);
        OK(pfx_reserve(c, m.lease, want - m.n_blocks, ids));
        struct pfx_insert_args in = {.size = sizeof in,
                                     .flags = i % 2 ? PFX_FINAL : 0,
                                     .tokens = tokens,
                                     .n_written = n,
                                     .extras = look.extras,
                                     .n_extras = look.n_extras};
        struct pfx_insert_result r = {.size = sizeof r};
        OK(pfx_insert(c, m.lease, &in, NULL, &r));
        OK(pfx_release(c, m.lease));
        tokens[20000 + rng_below(rng, 180000)] ^=
            1u << rng_below(rng, 8); /* where the next ones leave */
    }
}

START_TEST(slow_lookup_is_the_oracle)
{
    struct host h;
    struct raw r;
    large_host(&h);
    pfx *c = connect_with(&h, (struct pfx_options){0});
    raw_open(&r, &h, "oracle");
    struct rng rng = rng_seeded("slow_lookup_is_the_oracle");
    const struct pfx_extra x[3] = {{.at = 100, .len = 40, .digest = {1}},
                                   {.at = 3000, .len = 1},
                                   {.at = 100000, .len = 5000, .digest = {3}}};
    grow_branches(c, &rng, x);
    for (int i = 0; i < 300; i++) {
        struct query q = {.n = 1 + rng_below(&rng, i % 4 ? 220000 : 200), .extras = x};
        q.n_extras = i % 3 ? 0 : 3;
        q.max_match = 1 + rng_below(&rng, (uint32_t)q.n);
        q.multiple = BT * (i % 5 ? 1 : 1 + rng_below(&rng, 20));
        q.no_tail = i % 7 == 0;
        fast_and_slow_agree(&r, c, &q);
        if (i % 10 == 0)
            tokens[10000 + rng_below(&rng, 190000)] ^= 1;
    }
    ck_assert_uint_gt(deep, 10);
    ck_assert_uint_gt(tails, 10);
    audit_clean(&h);
    raw_close(&r);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("large");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, insert_of_a_million_tokens);
    tcase_add_test(t, insert_of_a_million_tokens_through_a_small_arena);
    tcase_add_test(t, insert_chunk_by_chunk);
    tcase_add_test(t, slow_lookup_is_the_oracle);
    suite_add_tcase(s, t);
    return s;
}
