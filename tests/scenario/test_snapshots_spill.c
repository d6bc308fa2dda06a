/* Engine faults E48 to E61: spilled states, keys that are gone, gates, and when a state can be
 * seen. (Blobs that are lost, refused or unreadable by injection: test_lost_blobs.c.) */
#include "tests/states.h"

#include <string.h>

static void setup(struct host *h, struct worker *w, unsigned n_slots, unsigned n_tier)
{
    host_states(h, 64, 4, n_slots, n_tier);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    slots_all_there(w);
    worker_close(w);
    host_stop(h);
}

/* ---- E48: a key that is forgotten --------------------------------------------------------- */

/* Its holder may still restore it: the slot is nobody's but the lease's hold, and comes back with
 * it.
 */
START_TEST(e48_fetch_of_a_forgotten_key)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 2, 2);
    worker_open(&v, &h, NULL);
    for (unsigned turn = 1; turn <= 4; turn++) {
        keep(&w, "aaaabb", 6, PFX_EXACT, 0);
        uint64_t key = spill(&w, 0).key;
        struct held l = look(&w, "aaaabbx");
        offers(&w, &l, "aaaabbx", 0, 6);
        ck_assert_int_eq(forget_state(&v, key), 0);
        states_are(&w, 0, 0);
        found(&v, "aaaabbx", 0, 0, 0);
        ck_assert_int_eq(fetch(&w, &l), 0);
        offers(&w, &l, "aaaabbx", 6, 0);
        states_are(&w, 0, 0); /* it does not come back for others */
        found(&v, "aaaabbx", 0, 0, 0);
        ck_assert_uint_eq(slots_to_get(&v), 1);
        ck_assert_int_eq(turn % 2 ? let_go(&w, &l) : 0, 0);
        ck_assert_uint_eq(slots_to_get(&v), turn % 2 ? 2 : 1);
        drop(&w, &l);
        ck_assert_uint_eq(slots_to_get(&v), 2);
        ck_assert_uint_eq(counters(&w).snapshot_forgotten, turn);
        ck_assert_int_eq(forget_state(&v, key), PFX_ENOENT);
    }
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 0); /* of those that others find */
    tier_reconciles(&w, 0, 0, 0);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* It lets go without restoring: the blob is gone then, and no slot was touched. */
START_TEST(e48_forgotten_and_not_fetched)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 1);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    struct held l = look(&w, "aaaabbx");
    ck_assert_int_eq(forget_state(&w, key), 0);
    ck_assert_uint_eq(slots_to_get(&w), 2);
    keep(&w, "cccc", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&w, 0).dropped, 1); /* the one blob is still held */
    drop(&w, &l);
    keep(&w, "cccc", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&w, 0).dropped, 0);
    teardown(&h, &w);
}
END_TEST

/* Four warm turns of a session whose blob is gone: no slot is spilled for it, no other is lost. */
START_TEST(e49_forgotten_key_costs_nobody)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 2);
    keep(&w, "aaaabb", 6, PFX_EXACT, 1);
    uint64_t key = spill(&w, 0).key;
    keep(&w, "cccc", 4, PFX_EXACT, 2);
    keep(&w, "dddd", 4, PFX_EXACT, 3); /* now all slots are in use */
    ck_assert_int_eq(forget_state(&w, key), 0);
    for (int turn = 0; turn < 4; turn++) {
        struct held l = ask(&w, "aaaabbx", 1, PFX_FETCH);
        offers(&w, &l, "aaaabbx", 0, 0);
        drop(&w, &l);
        found(&w, "ccccx", 0, 4, 0);
        found(&w, "ddddx", 0, 4, 0);
    }
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.snapshot_fetches, 0);
    ck_assert_uint_eq(s.snapshot_forgotten, 1);
    ck_assert_uint_eq(s.snapshot_spills, 1);
    ck_assert_uint_eq(s.snapshot_evictions, 0);
    teardown(&h, &w);
}
END_TEST

/* ---- E51: a refused spill ------------------------------------------------------------------ */

/* The tier is full of what is in use: the next one is dropped, and nobody is offered a key of it.
 */
START_TEST(e51_refused_spill_is_a_drop)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 1);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    struct held l = look(&w, "aaaax");
    ck_assert_uint_eq(l.match.snapshot.tier_key, key);
    keep(&w, "cccc", 4, PFX_EXACT, 0);
    struct pfx_spilled s = spill(&w, 0);
    ck_assert_uint_eq(s.dropped, 1);
    ck_assert_uint_eq(s.depth, 4);
    found(&w, "ccccx", 0, 0, 0);
    found(&w, "aaaax", 0, 0, 4);
    states_are(&w, 0, 1);
    ck_assert_uint_eq(counters(&w).snapshot_spills, 1);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 1);
    ck_assert_int_eq(fetch(&w, &l), 0); /* the one in use is as it was */
    offers(&w, &l, "aaaax", 4, 0);
    drop(&w, &l);
    tier_reconciles(&w, 0, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* Without a tier every spill is a drop. */
START_TEST(e51_no_tier_at_all)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    struct pfx_spilled s = spill(&w, 0);
    ck_assert_uint_eq(s.dropped, 1);
    ck_assert_uint_eq(s.depth, 6);
    states_are(&w, 0, 0);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 1);
    ck_assert_uint_eq(counters(&w).snapshot_spills, 0);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &s), PFX_ENOENT);
    teardown(&h, &w);
}
END_TEST

/* ---- E52: what forget may take ------------------------------------------------------------ */

START_TEST(e52_forget_takes_spilled_ones_alone)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    uint64_t first = spill(&w, 0).key;
    struct held l = ask(&w, "aaaabbx", 0, PFX_FETCH);
    drop(&w, &l);
    ck_assert_int_eq(forget_state(&w, first), PFX_ENOENT); /* it is resident now */
    found(&w, "aaaabbx", 0, 6, 0);

    uint64_t second = spill(&w, 0).key; /* spilled again: another name */
    ck_assert_uint_ne(second, first);
    ck_assert_int_eq(forget_state(&w, first), PFX_ENOENT); /* a forget that comes late */
    found(&w, "aaaabbx", 0, 0, 6);
    l = ask(&w, "aaaabbx", 0, PFX_FETCH);
    offers(&w, &l, "aaaabbx", 6, 0);
    drop(&w, &l);

    uint64_t third = spill(&w, 0).key;
    ck_assert_uint_ne(third, second);
    ck_assert_int_eq(forget_state(&w, third), 0);
    ck_assert_int_eq(forget_state(&w, third), PFX_ENOENT);
    const uint64_t never[] = {0, 1, third + 1, third + 1000, 1ull << 32, UINT64_MAX};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(forget_state(&w, never[i]), PFX_ENOENT);
    found(&w, "aaaabbx", 0, 0, 0);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.snapshot_forgotten, 1);
    ck_assert_uint_eq(s.snapshot_evictions, 0);
    ck_assert_uint_eq(s.snapshot_spills, 3);
    ck_assert_uint_eq(s.snapshot_fetches, 2);
    tier_reconciles(&w, 0, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* 64 forgets are no evictions: the live session's lease is as long as before. */
START_TEST(e52_forget_does_not_shorten_the_lease)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "llllmm", 6, PFX_TAIL, 1);
    for (int i = 0; i < 64; i++) { /* 63 evictions, all of them spills; 63 forgets */
        keep(&w, "cccc", 4, PFX_EXACT, 0);
        if (i < 63)
            ck_assert_int_eq(forget_state(&w, spill(&w, 0).key), 0);
    }
    ck_assert_uint_eq(spill(&w, 0).depth, 4); /* the 64th still spares the tail */
    found(&w, "llllmmx", 1, 6, 0);
    keep(&w, "dddd", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&w, 0).depth, 6);
    teardown(&h, &w);
}
END_TEST

/* ---- E54, E55: gates ------------------------------------------------------------------------ */

/* What the gate lets out comes back: there is no second gate on the way in. */
START_TEST(e54_what_is_spilled_can_be_fetched)
{
    struct host h;
    struct worker w;
    static const char text[] = "aaaabbbbccccddddeeeeffffgggghhhhx";
    setup(&h, &w, 8, 8);
    for (uint32_t depth = 1; depth <= 8; depth++)
        keep(&w, text, depth, PFX_EXACT, 0);
    for (uint32_t i = 1; i <= 8; i++) {
        struct pfx_spilled s = spill(&w, 0); /* 0: no gate */
        ck_assert_uint_eq(s.depth, i);
        ck_assert_uint_eq(s.dropped, 0);
    }
    states_are(&w, 0, 8);
    for (uint32_t depth = 1; depth <= 8; depth++) {
        struct seq s = seq(text);
        s.n = depth + 1;
        struct held l = ask_seq(&w, &s, 0, PFX_FETCH);
        offers_seq(&w, &l, &s, depth, 0);
        drop(&w, &l);
    }
    states_are(&w, 8, 0);
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 8);
    teardown(&h, &w);
}
END_TEST

/* The gate of a call: at the depth itself it is open, above it is a drop. */
START_TEST(e54_gate_of_a_call)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    static const struct {
        uint32_t gate;
        bool out;
    } gates[] = {{0, true}, {1, true}, {5, true}, {6, true}, {7, false}, {UINT32_MAX, false}};
    for (int i = 0; i < 6; i++) {
        keep(&w, "aaaabb", 6, PFX_EXACT, 0);
        struct pfx_spilled s = spill(&w, gates[i].gate);
        ck_assert_uint_eq(s.depth, 6);
        ck_assert_uint_eq(s.dropped, !gates[i].out);
        found(&w, "aaaabbx", 0, 0, gates[i].out ? 6 : 0);
    }
    ck_assert_uint_eq(counters(&w).snapshot_spills, 4);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 2);
    tier_reconciles(&w, 4, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* The daemon's own gate, for slots that are needed; a call has its own. */
START_TEST(e54_gate_of_the_daemon)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "64", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "2", "--snapshot-bytes", "192", "--snapshot-swap", "64K", "--spill-min-tokens", "8");
    worker_open(&w, &h, NULL);
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&w, "ccccddd", 7, PFX_EXACT, 0);
    keep(&w, "eeee", 4, PFX_EXACT, 0); /* the first goes: deep enough */
    found(&w, "aaaabbbbx", 0, 0, 8);
    keep(&w, "ffff", 4, PFX_EXACT, 0); /* the second: not */
    found(&w, "ccccdddx", 0, 0, 0);
    states_are(&w, 2, 1);
    struct pfx_spilled s = spill(&w, 0);
    ck_assert_uint_eq(s.depth, 4);
    ck_assert_uint_eq(s.dropped, 0);
    found(&w, "eeeex", 0, 0, 4);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 1);
    teardown(&h, &w);
}
END_TEST

/* ---- E57, E58: when a state is offered ------------------------------------------------------- */

static void offered_within(struct worker *w, const char *text, size_t max_match, uint32_t depth)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    args.max_match = max_match;
    struct held l = look_args(w, &args);
    offers(w, &l, text, depth, 0);
    ck_assert_uint_le(depth, l.match.matched_tokens + l.match.tail_tokens);
    struct pfx_peeked p = {.size = sizeof p};
    ck_assert_int_eq(pfx_peek_full(w->c, &args, &p), 0);
    ck_assert_uint_eq(p.snapshot_depth, depth);
    drop(w, &l);
}

/* A state of all N tokens is no use to who must still compute the last one: it is offered only to
 * who says so. */
START_TEST(e57_restart_exactly_at_depth)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&w, "aaaabbbb", 3, PFX_EXACT, 0);
    offered_within(&w, "aaaabbbb", 0, 3);
    offered_within(&w, "aaaabbbb", 8, 8);
    offered_within(&w, "aaaabbbb", 7, 3);
    offered_within(&w, "aaaabbbbx", 0, 8);
    offered_within(&w, "aaaabbbbx", 7, 3);
    keep(&w, "ccccdd", 6, PFX_EXACT, 0);
    offered_within(&w, "ccccdd", 0, 0);
    offered_within(&w, "ccccdd", 6, 6);
    offered_within(&w, "ccccddx", 0, 6);
    offered_within(&w, "ccccddx", 5, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(e58_seen_only_once_inserted)
{
    struct host h;
    struct worker w, v;
    uint32_t slot;
    struct seq s = seq("aaaabb");
    setup(&h, &w, 2, 2);
    worker_open(&v, &h, NULL);
    for (int abandoned = 1; abandoned >= 0; abandoned--) {
        struct held l = ask(&w, "aaaabb", 7, 0);
        ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
        found(&v, "aaaabbx", 7, 0, 0);
        ck_assert_int_eq(grab(&w, &l, 2 - l.n_table), 0);
        ck_assert_int_eq(put(&w, &l, "aaaabb", PFX_FINAL, NULL, NULL), 0);
        state_fill(&w, slot, &(struct state){&s, 6, 7});
        found(&v, "aaaabbx", 7, 0, 0);
        struct pfx_spilled none = {.size = sizeof none};
        ck_assert_int_eq(pfx_snapshot_spill(v.c, 0, &none), PFX_ENOENT); /* not there to move */
        ck_assert_int_eq(evict_state(&v), PFX_ENOENT);
        if (!abandoned)
            ck_assert_int_eq(slot_insert(&w, &l, slot, 6, PFX_TAIL), 0);
        else
            found(&v, "aaaabbx", 7, 0, 0);
        drop(&w, &l);
        found(&v, "aaaabbx", 7, abandoned ? 0 : 6, 0);
    }
    ck_assert_uint_eq(counters(&w).snapshot_saves, 1);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* ---- E60: the depth of what is restored ----------------------------------------------------- */

START_TEST(e60_depth_is_the_restored_ones)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "aaaabbbbcc", 10, PFX_EXACT, 0);
    keep(&w, "aaaabbbbcc", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&w, 0).depth, 10);
    struct held l = look(&w, "aaaabbbbccx"); /* the spilled one is deeper */
    offers(&w, &l, "aaaabbbbccx", 4, 10);
    ck_assert_int_eq(fetch(&w, &l), 0);
    offers(&w, &l, "aaaabbbbccx", 10, 0);
    ck_assert_int_eq(fetch(&w, &l), 0); /* nothing is left to fetch */
    offers(&w, &l, "aaaabbbbccx", 10, 0);
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 1);
    drop(&w, &l);

    struct held deep = look(&w, "aaaabbbbccx"); /* now the shallow one is spilled */
    ck_assert_uint_eq(spill(&w, 0).depth, 4);
    drop(&w, &deep);
    l = look(&w, "aaaabbbbccx");
    offers(&w, &l, "aaaabbbbccx", 10, 4);
    ck_assert_int_eq(fetch(&w, &l), 0); /* not deeper: stays where it is */
    offers(&w, &l, "aaaabbbbccx", 10, 4);
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 1);
    drop(&w, &l);
    l = ask(&w, "aaaabbbb", 0, PFX_FETCH); /* here the spilled one is all there is */
    offers(&w, &l, "aaaabbbb", 4, 0);
    drop(&w, &l);
    teardown(&h, &w);
}
END_TEST

/* ---- E61: a slot that is read, written and moved -------------------------------------------- */

enum { TURNS = 60, WRITERS = 2 };

struct turner {
    struct host *h;
    uint64_t seed;
};

/* Saves, looks up with fetches, spills, and compares every byte that it is offered, while another
 * process does the same with the same prefixes and far too few slots. */
static void turn_run(struct child *me, void *arg)
{
    const struct turner *t = arg;
    static const char *const text[] = {"aaaabbbbccx", "aaaaddddx", "eeeeffffggggx", "hhhhiiix"};
    static const uint32_t depth[] = {10, 8, 12, 7};
    struct rng r = {t->seed};
    struct worker w;
    worker_open(&w, t->h, NULL);
    w.unchecked = true;
    for (int i = 0; i < TURNS; i++) {
        int k = (int)rng_below(&r, 4);
        struct held l = ask(&w, text[k], 0, rng_below(&r, 2) ? PFX_FETCH : 0);
        struct seq s = seq(text[k]);
        const struct pfx_snapshot_ref *ref = &l.match.snapshot;
        offers_seq(&w, &l, &s, ref->depth, ref->tier_depth);
        REQUIRE(ref->depth == 0 || ref->depth == depth[k]);
        if (rng_below(&r, 3) == 0) {
            struct pfx_spilled out = {.size = sizeof out};
            int rc = pfx_snapshot_spill(w.c, 0, &out);
            REQUIRE(rc == 0 || rc == PFX_ENOENT);
        }
        int rc = ref->tier_depth ? pfx_fetch(w.c, l.lease, &l.match) : 0;
        REQUIRE(rc == 0 || rc == PFX_ENOSPC);
        offers_seq(&w, &l, &s, ref->depth, ref->tier_depth); /* still whole */
        drop(&w, &l);
        uint32_t slot;
        struct pfx_lookup_args args = lookup_args(&w, &s);
        l = look_args(&w, &args);
        if (ref->depth == 0 && pfx_snapshot_reserve(w.c, l.lease, &slot) == 0) {
            grab(&w, &l, (uint32_t)(s.n + 3) / 4 - l.n_table);
            put_seq(&w, &l, &s, PFX_FINAL, NULL, NULL);
            state_fill(&w, slot, &(struct state){&s, depth[k], 0});
            REQUIRE_EQ(pfx_snapshot_insert(w.c, l.lease, slot, depth[k], PFX_EXACT), 0);
        }
        drop(&w, &l);
    }
    worker_close(&w);
    (void)me;
}

/* Slots of 3 MiB: a spill takes many slices, and everything else happens between them. */
START_TEST(e61_bytes_are_right_while_they_move)
{
    struct host h;
    struct worker w;
    struct turner t[WRITERS];
    struct child c[WRITERS];
    struct rng r = rng_seeded("e61");
    HOST_START(&h, "--blocks", "64", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "3", "--snapshot-bytes", "3M", "--snapshot-swap", "12M");
    worker_open(&w, &h, NULL);
    for (int i = 0; i < WRITERS; i++) {
        t[i] = (struct turner){&h, rng_next(&r)};
        child_start(&c[i], turn_run, &t[i]);
    }
    for (int i = 0; i < 40; i++) {
        step(&w);
        sleep_us(2000);
    }
    for (int i = 0; i < WRITERS; i++)
        child_join(&c[i]);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_gt(s.snapshot_spills, 10);
    ck_assert_uint_gt(s.snapshot_fetches, 10);
    ck_assert_uint_eq(s.leases, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

static struct pfx_completion taken(struct worker *w)
{
    struct pfx_completion k = {.size = sizeof k};
    k.match.size = sizeof k.match;
    k.insert.size = sizeof k.insert;
    REQUIRE_EQ(pfx_wait(w->c, &k, sizeof k, 1, 5000 * SLOW), 1);
    return k;
}

/* A slot is on its way down for one worker, when another asks for the state in it: that one has it
 * at once, and the first is told that there is no room. */
START_TEST(e61_a_hold_cancels_a_spill)
{
    struct host h;
    struct worker w, v;
    struct seq s = seq("aaaabbx");
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "1", "--snapshot-bytes", "32M", "--snapshot-swap", "32M");
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    struct held l = look(&w, "");
    struct pfx_lookup_args args = lookup_args(&v, &s);
    host_pause(&h);
    ck_assert_int_eq(pfx_submit_snapshot_reserve(w.c, l.lease, 1), 0);
    ck_assert_int_eq(pfx_submit_lookup(v.c, &args, 2), 0);
    host_resume(&h);
    struct pfx_completion k = taken(&v);
    ck_assert_int_eq(k.status, 0);
    ck_assert_uint_eq(k.match.snapshot.depth, 6);
    ck_assert(state_is(&v, k.match.snapshot.slot, &(struct state){&s, 6, 0}));
    ck_assert_int_eq(taken(&w).status, PFX_ENOSPC);
    step(&w);
    ck_assert_uint_eq(counters(&w).snapshot_spills, 0);
    tier_reconciles(&w, 0, 0, 0);
    ck_assert_int_eq(pfx_release(v.c, k.lease), 0);
    uint32_t slot; /* and now it goes */
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    found(&v, "aaaabbx", 0, 0, 6);
    drop(&w, &l);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshots: spilled");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, e48_fetch_of_a_forgotten_key);
    tcase_add_test(t, e48_forgotten_and_not_fetched);
    tcase_add_test(t, e49_forgotten_key_costs_nobody);
    tcase_add_test(t, e51_refused_spill_is_a_drop);
    tcase_add_test(t, e51_no_tier_at_all);
    tcase_add_test(t, e52_forget_takes_spilled_ones_alone);
    tcase_add_test(t, e52_forget_does_not_shorten_the_lease);
    tcase_add_test(t, e54_what_is_spilled_can_be_fetched);
    tcase_add_test(t, e54_gate_of_a_call);
    tcase_add_test(t, e54_gate_of_the_daemon);
    tcase_add_test(t, e57_restart_exactly_at_depth);
    tcase_add_test(t, e58_seen_only_once_inserted);
    tcase_add_test(t, e60_depth_is_the_restored_ones);
    tcase_add_test(t, e61_bytes_are_right_while_they_move);
    tcase_add_test(t, e61_a_hold_cancels_a_spill);
    suite_add_tcase(s, t);
    return s;
}
