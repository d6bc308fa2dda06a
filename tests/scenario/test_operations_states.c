/* The rows of the founding interface that are about snapshots (COVERAGE.md), a test a row, across
 * processes. */
#include "tests/states.h"

#include <string.h>

#define TURN "aaaabbbbccccdd" /* 14 tokens */

static void setup(struct host *h, struct worker *w)
{
    host_states(h, 32, 4, 4, 4);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    slots_all_there(w);
    worker_close(w);
    host_stop(h);
}

/* A session's lease that has published all of TURN. */
static struct held published(struct worker *w, uint64_t session)
{
    struct held l = ask(w, TURN, session, 0);
    REQUIRE_EQ(grab(w, &l, 4 - l.n_table), 0);
    REQUIRE_EQ(put(w, &l, TURN, PFX_FINAL, NULL, NULL), 0);
    return l;
}

/* What another process is offered of TURN and a token more. */
struct asked {
    struct host *h;
    uint64_t session;
    uint32_t depth, is_tail;
};

static void other_process(struct child *me, void *arg)
{
    const struct asked *a = arg;
    struct worker w;
    worker_open(&w, a->h, NULL);
    ck_assert_uint_eq(found(&w, TURN "x", a->session, a->depth, 0).is_tail, a->is_tail);
    worker_close(&w);
    (void)me;
}

static void elsewhere(struct host *h, uint64_t session, uint32_t depth, uint32_t is_tail)
{
    struct asked a = {h, session, depth, is_tail};
    struct child c;
    child_start(&c, other_process, &a);
    child_join(&c);
}

/* `lookup` and its result, with all that it says of states. */
START_TEST(op_lookup_result_states)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    keep(&w, TURN, 14, PFX_TAIL, 7);
    keep(&w, TURN, 8, PFX_EXACT, 0);
    keep(&w, TURN, 12, PFX_EXACT, 0);
    struct held anchor = ask(&w, "aaaabbbbx", 0, 0); /* 8 is in use: 12 is spilled */
    struct pfx_spilled s = spill(&w, 0);
    drop(&w, &anchor);
    ck_assert_uint_eq(s.depth, 12);
    struct held l = ask(&w, TURN "x", 7, 0);
    offers(&w, &l, TURN "x", 14, 12);
    ck_assert_uint_eq(l.match.matched_tokens, 12);
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    ck_assert_uint_eq(l.match.snapshot.is_tail, 1);
    ck_assert_uint_eq(l.match.snapshot.tier_key, s.key);
    drop(&w, &l);
    l = ask(&w, TURN "x", 0, 0);
    offers(&w, &l, TURN "x", 8, 12);
    ck_assert_uint_eq(l.match.snapshot.is_tail, 0);
    drop(&w, &l);
    l = ask(&w, TURN "x", 7, PFX_NO_TAIL); /* no tail block, so nothing beyond the match */
    offers(&w, &l, TURN "x", 8, 12);
    drop(&w, &l);
    l = ask(&w, TURN "x", 7, PFX_NO_MATCH);
    offers(&w, &l, TURN "x", 0, 0);
    drop(&w, &l);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_insert_with_snapshot)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct held l = published(&w, 0);
    save(&w, &l, TURN, 14, PFX_EXACT); /* n_written */
    states_are(&w, 1, 0);
    elsewhere(&h, 0, 14, 0); /* at once, though the lease goes on */
    drop(&w, &l);
    elsewhere(&h, 3, 14, 0);
    l = published(&w, 0);
    ck_assert_int_eq(let_go(&w, &l), 0);
    save(&w, &l, TURN, 14, PFX_EXACT); /* the displaced slot is the daemon's to free */
    drop(&w, &l);
    states_are(&w, 1, 0);
    l = ask(&w, TURN "x", 0, PFX_QUIET);
    ck_assert_uint_eq(slots_to_get(&w), 3);
    drop(&w, &l);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_insert_intermediate_snapshot)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct held l = published(&w, 0);
    for (uint32_t depth = 4; depth <= 12; depth += 4)
        save(&w, &l, TURN, depth, PFX_EXACT);
    save(&w, &l, TURN, 6, PFX_EXACT); /* and inside a block */
    drop(&w, &l);
    states_are(&w, 4, 0);
    found(&w, "aaaax", 0, 4, 0);
    found(&w, "aaaabbx", 0, 6, 0);
    found(&w, "aaaabbbbx", 0, 8, 0);
    found(&w, "aaaabbbx", 0, 6, 0);
    elsewhere(&h, 0, 12, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_insert_tail_snapshot)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct held l = published(&w, 7);
    struct pages before = pages(&w);
    save(&w, &l, TURN, 14, PFX_TAIL);
    pages_equal(&w, before); /* the index alone */
    drop(&w, &l);
    elsewhere(&h, 7, 14, 1);
    elsewhere(&h, 8, 0, 0);
    l = ask(&w, TURN "x", 7, 0);
    ck_assert_int_eq(let_go(&w, &l), 0);
    save(&w, &l, TURN, 12, PFX_TAIL); /* replaces the one before */
    drop(&w, &l);
    states_are(&w, 1, 0);
    elsewhere(&h, 7, 12, 1);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_insert_tail_sibling_snapshot)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    struct held l = published(&w, 7);
    save(&w, &l, TURN, 14, PFX_TAIL);
    save(&w, &l, TURN, 12, PFX_TAIL_SIBLING);
    drop(&w, &l);
    elsewhere(&h, 7, 14, 1);
    elsewhere(&h, 8, 12, 0); /* exact: for any session */
    elsewhere(&h, 0, 12, 0);
    keep(&w, "zzzz", 4, PFX_TAIL, 7); /* swept with its tail */
    states_are(&w, 1, 0);
    elsewhere(&h, 7, 0, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_evict_snapshot_lru)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    keep(&w, "bbbb", 4, PFX_EXACT, 0);
    keep(&w, "cccc", 4, PFX_EXACT, 0);
    struct held l = look(&w, "aaaax"); /* used again: and held */
    struct pages before = pages(&w);
    ck_assert_int_eq(evict_state(&w), 0);
    pages_equal(&w, before);
    found(&w, "bbbbx", 0, 0, 0);
    ck_assert_uint_eq(matched(&w, "bbbbx"), 4); /* its blocks stay */
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "ccccx", 0, 0, 0);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    drop(&w, &l);
    for (char c = 'd'; c <= 'g'; c++) { /* and by itself when slots run out: one is too many */
        char text[] = "aaaa";
        memset(text, c, 4);
        keep(&w, text, 4, PFX_EXACT, 0);
    }
    found(&w, "aaaax", 0, 0, 4); /* spilled: there is a tier */
    found(&w, "ddddx", 0, 4, 0);
    teardown(&h, &w);
}
END_TEST

/* With alpha a deep state outlives shallow ones that are somewhat newer. */
START_TEST(op_evict_snapshot_alpha)
{
    static const struct {
        const char *alpha;
        uint32_t deep_goes; /* as which one */
    } rows[] = {{"0", 0}, {"0.2", 1}, {"1", 3}};
    for (int i = 0; i < 3; i++) {
        struct host h;
        struct worker w;
        HOST_START(&h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64",
                   "--snapshots", "4", "--snapshot-bytes", "192", "--alpha", rows[i].alpha);
        worker_open(&w, &h, NULL);
        keep(&w, "aaaabbbbcccc", 12, PFX_EXACT, 0); /* scores 1 + 12 alpha */
        keep(&w, "dddd", 4, PFX_EXACT, 0);          /* 2 + 4 alpha */
        keep(&w, "eeee", 4, PFX_EXACT, 0);          /* 3 + 4 alpha */
        keep(&w, "ffff", 4, PFX_EXACT, 0);          /* 4 + 4 alpha */
        for (uint32_t gone = 0; gone < 4; gone++) {
            found(&w, "aaaabbbbccccx", 0, gone <= rows[i].deep_goes ? 12 : 0, 0);
            ck_assert_int_eq(evict_state(&w), 0);
        }
        teardown(&h, &w);
    }
}
END_TEST

START_TEST(op_evict_snapshot_to_tier)
{
    struct host h;
    struct worker w;
    struct pfx_spilled s = {.size = sizeof s};
    setup(&h, &w);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &s), PFX_ENOENT);
    keep(&w, TURN, 12, PFX_EXACT, 0);
    keep(&w, TURN, 4, PFX_EXACT, 0);
    s = spill(&w, 8); /* spill(slot, key, depth) */
    ck_assert_uint_eq(s.size, sizeof s);
    ck_assert_uint_eq(s.depth, 12);
    ck_assert_uint_ne(s.key, 0);
    ck_assert_uint_eq(s.dropped, 0);
    ck_assert_uint_eq(s.reserved, 0);
    found(&w, TURN "x", 0, 4, 12);
    s = spill(&w, 8); /* or drop(slot, depth) */
    ck_assert_uint_eq(s.depth, 4);
    ck_assert_uint_eq(s.dropped, 1);
    found(&w, TURN "x", 0, 0, 12);
    keep(&w, TURN, 4, PFX_EXACT, 0);
    s = spill(&w, 0); /* 0: no gate */
    ck_assert_uint_eq(s.dropped, 0);
    states_are(&w, 0, 2);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &s), PFX_ENOENT);
    struct pfx_stats now = counters(&w);
    ck_assert_uint_eq(now.snapshot_spills, 2);
    ck_assert_uint_eq(now.snapshot_evictions, 1);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_promote_snapshot)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w);
    worker_open(&v, &h, NULL);
    keep(&w, TURN, 14, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    struct held one = look(&w, TURN "x"), two = look(&v, TURN "x");
    ck_assert_uint_eq(one.match.snapshot.tier_key, key);
    ck_assert_int_eq(fetch(&w, &one), 0);
    offers(&w, &one, TURN "x", 14, 0);
    ck_assert_int_eq(fetch(&v, &two), 0); /* comes late, and finds it where it is */
    offers(&v, &two, TURN "x", 14, 0);
    ck_assert_uint_eq(one.match.snapshot.slot, two.match.snapshot.slot);
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 1);
    states_are(&w, 1, 0);
    drop(&w, &one);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT); /* the other one holds it */
    drop(&v, &two);
    key = spill(&w, 0).key;
    one = ask(&w, TURN "x", 0, PFX_FETCH);
    offers(&w, &one, TURN "x", 14, 0);
    drop(&w, &one);
    ck_assert_int_eq(forget_state(&w, key), PFX_ENOENT);
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 2);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_forget_snapshot_tier_key)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    keep(&w, TURN, 12, PFX_EXACT, 0);
    keep(&w, TURN, 4, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    ck_assert_int_eq(forget_state(&w, key), 0);
    found(&w, TURN "x", 0, 4, 0); /* never a resident one */
    ck_assert_int_eq(forget_state(&w, key), PFX_ENOENT);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.snapshot_forgotten, 1);
    ck_assert_uint_eq(s.snapshot_evictions, 0);
    states_are(&w, 1, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(op_snapshot_count)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    ck_assert_uint_eq(pfx_geometry(w.c)->n_slots, 4);
    ck_assert_uint_eq(pfx_geometry(w.c)->layout.snapshot_bytes, STATE_BYTES);
    states_are(&w, 0, 0);
    struct held l = published(&w, 7);
    uint32_t slot;
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    states_are(&w, 0, 0); /* a reserved slot is no snapshot yet */
    struct seq s = seq(TURN);
    state_fill(&w, slot, &(struct state){&s, 14, 7});
    ck_assert_int_eq(slot_insert(&w, &l, slot, 14, PFX_TAIL), 0);
    states_are(&w, 1, 0); /* there before the completion */
    save(&w, &l, TURN, 12, PFX_EXACT);
    states_are(&w, 2, 0);
    drop(&w, &l);
    spill(&w, 0);
    states_are(&w, 1, 1);
    struct pfx_stats now = counters(&w);
    ck_assert_uint_eq(now.snapshot_saves, 2);
    ck_assert_uint_eq(now.snapshot_spills, 1);
    ck_assert_int_eq(pfx_flush(w.c, 0), 0);
    states_are(&w, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* Adapter 0 is the base, two adapters never meet: for snapshots too. */
START_TEST(op_adapters_and_base_states)
{
    struct host h;
    struct worker w;
    setup(&h, &w);
    pfx_space space[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct pfx_space_desc d = {.size = sizeof d, .adapter_id = i};
        ck_assert_int_eq(pfx_space_open(w.c, &d, &space[i]), 0);
    }
    ck_assert_uint_eq(space[0], 0);
    for (int i = 0; i < 3; i++) {
        w.space = space[i];
        keep(&w, "aaaa", 4, PFX_EXACT, 0);
        for (int k = 0; k < 3; k++) {
            w.space = space[k];
            found(&w, "aaaax", 0, k <= i ? 4 : 0, 0);
        }
    }
    w.space = 0;
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("operations on snapshots");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, op_lookup_result_states);
    tcase_add_test(t, op_insert_with_snapshot);
    tcase_add_test(t, op_insert_intermediate_snapshot);
    tcase_add_test(t, op_insert_tail_snapshot);
    tcase_add_test(t, op_insert_tail_sibling_snapshot);
    tcase_add_test(t, op_evict_snapshot_lru);
    tcase_add_test(t, op_evict_snapshot_alpha);
    tcase_add_test(t, op_evict_snapshot_to_tier);
    tcase_add_test(t, op_promote_snapshot);
    tcase_add_test(t, op_forget_snapshot_tier_key);
    tcase_add_test(t, op_snapshot_count);
    tcase_add_test(t, op_adapters_and_base_states);
    suite_add_tcase(s, t);
    return s;
}
