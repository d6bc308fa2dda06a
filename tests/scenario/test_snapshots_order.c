/* Engine faults E36 to E46: which state is stamped, leased, given to whom, and goes next; what a
 * save over another one leaves behind. */
#include "tests/states.h"

#include <stdio.h>
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

/* ---- E36: only the one offered is stamped -------------------------------------------------- */

START_TEST(e36_losing_candidates_stay_old)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "aaaabbbb", 4, PFX_EXACT, 0);
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&w, "zzzz", 4, PFX_EXACT, 0);
    for (int i = 0; i < 3; i++) {
        struct held l = look(&w, "aaaabbbbx");
        offers(&w, &l, "aaaabbbbx", 8, 0);
        drop(&w, &l);
    }
    ck_assert_int_eq(evict_state(&w), 0); /* at 4: passed by three times, never offered */
    found(&w, "aaaax", 0, 0, 0);
    found(&w, "aaaabbbbx", 0, 8, 0);
    found(&w, "zzzzx", 0, 4, 0);
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "zzzzx", 0, 0, 0);
    found(&w, "aaaabbbbx", 0, 8, 0);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 2);
    teardown(&h, &w);
}
END_TEST

/* A peek, a quiet lookup and a release stamp nothing. */
START_TEST(e36_quiet_ones_stamp_nothing)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    keep(&w, "zzzz", 4, PFX_EXACT, 0);
    struct held l = ask(&w, "aaaax", 0, PFX_QUIET);
    found(&w, "aaaax", 0, 4, 0); /* quiet, and a peek */
    drop(&w, &l);
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "aaaax", 0, 0, 0);
    found(&w, "zzzzx", 0, 4, 0);
    teardown(&h, &w);
}
END_TEST

/* The stalest session goes first, whatever its entries' age is; in it, the oldest entry. */
START_TEST(e36_stalest_session_first)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    keep(&w, "1111", 4, PFX_EXACT, 1);
    keep(&w, "2222", 4, PFX_EXACT, 2);
    keep(&w, "3333", 4, PFX_EXACT, 3);
    keep(&w, "2222bbbb", 8, PFX_EXACT, 2);
    keep(&w, "1111aaaa", 8, PFX_EXACT, 1);
    static const struct {
        const char *text;
        uint32_t left; /* the deepest that is left of it */
    } order[] = {
        {"3333xxxxx", 0}, {"2222bbbbx", 8}, {"2222bbbbx", 0}, {"1111aaaax", 8}, {"1111aaaax", 0}};
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(evict_state(&w), 0);
        found(&w, order[i].text, 0, order[i].left, 0);
        states_are(&w, 4 - i, 0);
        if (i == 1) /* the session's older one, at 4 */
            found(&w, "2222x", 0, 0, 0);
    }
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    teardown(&h, &w);
}
END_TEST

/* ---- E39, E40: the live session's lease --------------------------------------------------- */

/* n evictions, each of somebody else's state that was just saved; the tail stays. */
static void cold_traffic(struct worker *w, int n)
{
    for (int i = 0; i < n; i++) {
        keep(w, "cccc", 4, PFX_EXACT, 0);
        ck_assert_int_eq(evict_state(w), 0);
        ck_assert_uint_eq(found(w, "llllmmx", 1, 6, 0).is_tail, 1);
        found(w, "ccccx", 0, 0, 0);
    }
}

static void tail_goes_next(struct worker *w)
{
    keep(w, "cccc", 4, PFX_EXACT, 0);
    ck_assert_int_eq(evict_state(w), 0);
    found(w, "llllmmx", 1, 0, 0);
    found(w, "ccccx", 0, 4, 0);
}

START_TEST(e39_lease_ends_after_64_evictions)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "llllmm", 6, PFX_TAIL, 1);
    cold_traffic(&w, 64);
    tail_goes_next(&w);
    teardown(&h, &w);
}
END_TEST

START_TEST(e39_lease_begins_anew_at_a_lookup)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "llllmm", 6, PFX_TAIL, 1);
    cold_traffic(&w, 40);
    struct held l = ask(&w, "ccccx", 1, 0); /* of that session, though not of its tail */
    drop(&w, &l);
    cold_traffic(&w, 63);
    l = look(&w, "llllmmx"); /* of nobody: changes nothing */
    drop(&w, &l);
    l = ask(&w, "llllmmx", 1, PFX_QUIET); /* nor does a quiet one */
    drop(&w, &l);
    cold_traffic(&w, 1);
    tail_goes_next(&w);
    teardown(&h, &w);
}
END_TEST

/* Another session's lookup makes that one live. */
START_TEST(e39_one_session_is_live)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 0);
    keep(&w, "llllmm", 6, PFX_TAIL, 1);
    keep(&w, "cccc", 4, PFX_EXACT, 0);
    struct held l = ask(&w, "yyyyx", 2, 0);
    drop(&w, &l);
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "llllmmx", 1, 0, 0);
    found(&w, "ccccx", 0, 4, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(e40_lease_never_blocks_the_last_candidate)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 0);
    keep(&w, "llllmm", 6, PFX_TAIL, 1);
    keep(&w, "llllmm", 4, PFX_TAIL_SIBLING, 1);
    states_are(&w, 2, 0);
    keep(&w, "cccc", 4, PFX_EXACT, 0); /* both slots are leased: the older one goes */
    states_are(&w, 2, 0);
    found(&w, "llllmmx", 1, 4, 0);
    found(&w, "ccccx", 0, 4, 0);
    ck_assert_int_eq(evict_state(&w), 0); /* there is another: the leased one stays */
    found(&w, "llllmmx", 1, 4, 0);
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "llllmmx", 1, 0, 0);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    teardown(&h, &w);
}
END_TEST

/* ---- E42: whose tail it is ------------------------------------------------------------------ */

START_TEST(e42_tail_is_for_its_session_alone)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "aaaabbbbcc", 10, PFX_TAIL, 7);
    keep(&w, "aaaabbbbcc", 4, PFX_EXACT, 7);
    static const uint64_t strangers[] = {0, 1, 8, 7ull << 32, UINT64_MAX};
    for (int spilled = 0; spilled < 2; spilled++) {
        for (int i = 0; i < 5; i++) {
            struct held l = ask(&w, "aaaabbbbccx", strangers[i], spilled ? PFX_FETCH : 0);
            ck_assert_uint_eq(l.match.matched_tokens, 8);
            ck_assert_uint_eq(l.match.tail_tokens, 2);
            offers(&w, &l, "aaaabbbbccx", 4, 0); /* the tail does not hide the shallower one */
            ck_assert_uint_eq(l.match.snapshot.is_tail, 0);
            drop(&w, &l);
        }
        struct held l = ask(&w, "aaaabbbbccx", 7, 0);
        offers(&w, &l, "aaaabbbbccx", spilled ? 4 : 10, spilled ? 10 : 0);
        ck_assert_uint_eq(l.match.snapshot.is_tail, !spilled);
        drop(&w, &l);
        if (spilled)
            break;
        struct held anchor = ask(&w, "aaaax", 0, PFX_QUIET); /* so that the tail goes */
        ck_assert_uint_eq(spill(&w, 0).depth, 10);
        drop(&w, &anchor);
    }
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 0);
    struct held l = ask(&w, "aaaabbbbccx", 7, PFX_FETCH);
    offers(&w, &l, "aaaabbbbccx", 10, 0);
    ck_assert_uint_eq(l.match.snapshot.is_tail, 1); /* it came back as what it was */
    drop(&w, &l);
    found(&w, "aaaabbbbccx", 8, 4, 0);
    teardown(&h, &w);
}
END_TEST

/* ---- E43: kinds after a save over another ------------------------------------------------- */

START_TEST(e43_exact_over_a_tail)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    keep(&w, "aaaabb", 6, PFX_TAIL, 7);
    keep(&w, "aaaabb", 6, PFX_EXACT, 8); /* beside it */
    states_are(&w, 2, 0);
    for (uint64_t session = 6; session <= 8; session++)
        ck_assert_uint_eq(found(&w, "aaaabbx", session, 6, 0).is_tail, 0); /* exact before tail */
    keep(&w, "aaaabb", 6, PFX_EXACT, 9);                                   /* over the exact one */
    states_are(&w, 2, 0);
    keep(&w, "zzzz", 4, PFX_TAIL, 7); /* sweeps the tail, and nothing else */
    states_are(&w, 2, 0);
    found(&w, "aaaabbx", 7, 6, 0);
    ck_assert_int_eq(evict_state(&w), 0); /* the live session is 7: session 9's goes */
    found(&w, "aaaabbx", 7, 0, 0);
    found(&w, "zzzzx", 7, 4, 0);
    teardown(&h, &w);
}
END_TEST

START_TEST(e43_tail_over_tails)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    for (uint64_t session = 1; session <= 3; session++) { /* three tails at one prefix */
        keep(&w, "aaaabb", 6, PFX_TAIL, session);
        states_are(&w, (unsigned)session, 0);
    }
    for (uint64_t session = 1; session <= 3; session++)
        ck_assert_uint_eq(found(&w, "aaaabbx", session, 6, 0).is_tail, 1);
    found(&w, "aaaabbx", 4, 0, 0);
    keep(&w, "aaaabb", 6, PFX_TAIL, 2); /* its own again: the others stay */
    states_are(&w, 3, 0);
    keep(&w, "yyyy", 4, PFX_TAIL, 2);
    states_are(&w, 3, 0);
    found(&w, "aaaabbx", 2, 0, 0);
    found(&w, "aaaabbx", 1, 6, 0);
    found(&w, "aaaabbx", 3, 6, 0);
    teardown(&h, &w);
}
END_TEST

/* A sibling that two sessions need belongs to neither: no sweep of one takes it from the other. */
START_TEST(e43_siblings_of_two_sessions)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    keep(&w, "aaaabb", 6, PFX_TAIL, 1);
    keep(&w, "aaaabb", 4, PFX_TAIL_SIBLING, 1);
    keep(&w, "aaaacc", 6, PFX_TAIL, 2);
    uint64_t saves = counters(&w).snapshot_saves;
    keep(&w, "aaaacc", 4, PFX_TAIL_SIBLING, 2); /* the entry stays, the slot is free */
    ck_assert_uint_eq(counters(&w).snapshot_saves, saves);
    states_are(&w, 3, 0);
    keep(&w, "1111", 4, PFX_TAIL, 1);
    found(&w, "aaaax", 0, 4, 0);
    keep(&w, "2222", 4, PFX_TAIL, 2);
    found(&w, "aaaax", 0, 4, 0);
    states_are(&w, 3, 0);
    teardown(&h, &w);
}
END_TEST

/* A new sibling elsewhere: the old one goes, also where the new one finds an entry in its place. */
START_TEST(e43_one_sibling_a_session)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    keep(&w, "aaaabbbb", 4, PFX_TAIL_SIBLING, 1);
    keep(&w, "aaaabbbb", 8, PFX_TAIL_SIBLING, 1);
    states_are(&w, 1, 0);
    found(&w, "aaaax", 0, 0, 0);
    keep(&w, "aaaabbbb", 8, PFX_TAIL_SIBLING, 1); /* in its own place */
    states_are(&w, 1, 0);
    keep(&w, "aaaabbbb", 4, PFX_EXACT, 0);
    keep(&w, "aaaabbbb", 4, PFX_TAIL_SIBLING, 1); /* where an exact one is */
    states_are(&w, 1, 0);
    found(&w, "aaaabbbbx", 0, 4, 0);
    keep(&w, "cccc", 4, PFX_TAIL, 1); /* and the exact one is still nobody's to sweep */
    found(&w, "aaaabbbbx", 0, 4, 0);
    states_are(&w, 2, 0);
    teardown(&h, &w);
}
END_TEST

/* ---- E45, E46: slots and blobs of what is displaced ---------------------------------------- */

static const enum pfx_snapshot_kind kinds[] = {PFX_EXACT, PFX_TAIL, PFX_TAIL_SIBLING};

/* All slots but that of the one entry, which is held meanwhile, are free: each once. */
static void one_slot_in_use(struct worker *w, uint64_t session)
{
    struct held l = ask(w, "aaaabbx", session, PFX_QUIET);
    offers(w, &l, "aaaabbx", 6, 0);
    ck_assert_uint_eq(slots_to_get(w), pfx_geometry(w->c)->n_slots - 1);
    drop(w, &l);
}

/* Saved again where it lies spilled: the blob goes, no slot is given back for it. */
START_TEST(e45_save_over_a_spilled_one)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    for (unsigned turn = 1; turn <= 12; turn++) {
        keep(&w, "aaaabb", 6, kinds[_i], 7);
        states_are(&w, 1, 0);
        one_slot_in_use(&w, 7);
        tier_reconciles(&w, turn - 1, 0, 0);
        ck_assert_uint_eq(spill(&w, 0).depth, 6);
        states_are(&w, 0, 1);
        ck_assert_uint_eq(slots_to_get(&w), 4);
    }
    teardown(&h, &w);
}
END_TEST

/* Saved again where it is resident: the old slot comes back, once. */
START_TEST(e45_save_over_a_resident_one)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 0);
    for (int turn = 0; turn < 12; turn++) {
        keep(&w, "aaaabb", 6, kinds[_i], 7);
        states_are(&w, 1, 0);
        one_slot_in_use(&w, 7);
    }
    ck_assert_uint_eq(counters(&w).snapshot_saves, 12);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 0);
    teardown(&h, &w);
}
END_TEST

/* Saved again while somebody still reads the old one: its slot comes back at that release. */
START_TEST(e45_save_over_a_held_one)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 4, 0);
    worker_open(&v, &h, NULL);
    keep(&w, "aaaabb", 6, kinds[_i], 7);
    struct held old = ask(&v, "aaaabbx", 7, 0);
    w.weights = 1;
    keep(&w, "aaaabb", 6, kinds[_i], 7);
    offers(&v, &old, "aaaabbx", 6, 0); /* its bytes are as they were */
    struct pfx_snapshot_ref now = found(&w, "aaaabbx", 7, 6, 0);
    ck_assert_uint_ne(now.slot, old.match.snapshot.slot);
    states_are(&w, 1, 0);
    struct held fresh = ask(&w, "aaaabbx", 7, PFX_QUIET);
    ck_assert_uint_eq(slots_to_get(&w), 2);
    if (_i == 0)
        drop(&v, &old);
    else if (_i == 1)
        ck_assert_int_eq(let_go(&v, &old), 0);
    else
        ck_assert_int_eq(cut(&v, &old, 0), 0); /* the state lies deeper than what is kept */
    ck_assert_uint_eq(slots_to_get(&w), 3);
    if (_i)
        drop(&v, &old);
    ck_assert_uint_eq(slots_to_get(&w), 3);
    drop(&w, &fresh);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* Swept by the session's next tail: spilled ones, resident ones, and one of each. */
START_TEST(e45_sweep_of_spilled_ones)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 8);
    unsigned n_swept = 0;
    for (int spilled = 0; spilled <= 2; spilled++)
        for (int turn = 0; turn < 4; turn++) {
            keep(&w, "aaaabb", 6, PFX_TAIL, 7);
            keep(&w, "aaaabb", 4, PFX_TAIL_SIBLING, 7);
            for (int i = 0; i < spilled; i++)
                ck_assert_uint_ne(spill(&w, 0).key, 0);
            n_swept += (unsigned)spilled;
            states_are(&w, 2 - (unsigned)spilled, (unsigned)spilled);
            keep(&w, "cccc", 4, PFX_TAIL, 7);
            states_are(&w, 1, 0);
            found(&w, "aaaabbx", 7, 0, 0);
            tier_reconciles(&w, 0, n_swept, 0);
            struct held l = ask(&w, "ccccx", 7, PFX_QUIET);
            ck_assert_uint_eq(slots_to_get(&w), 3);
            drop(&w, &l);
        }
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 0);
    teardown(&h, &w);
}
END_TEST

/* A sibling where a spilled exact one lies: that stays spilled, the sibling's slot is free. */
START_TEST(e45_sibling_where_a_spilled_one_lies)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 2);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    for (int turn = 0; turn < 4; turn++) {
        keep(&w, "aaaabb", 6, PFX_TAIL_SIBLING, 7);
        states_are(&w, 0, 1);
        ck_assert_uint_eq(found(&w, "aaaabbx", 0, 0, 6).tier_key, key);
        ck_assert_uint_eq(slots_to_get(&w), 2);
    }
    ck_assert_uint_eq(counters(&w).snapshot_saves, 1);
    tier_reconciles(&w, 0, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* What was saved over a spilled one is resident in every way: offered, and a victim. */
START_TEST(e46_saved_over_a_spilled_one_is_resident)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "aaaabb", 6, kinds[_i], 7);
    uint64_t key = spill(&w, 0).key;
    keep(&w, "aaaabb", 6, kinds[_i], 7);
    struct held l = ask(&w, "aaaabbx", 7, 0);
    offers(&w, &l, "aaaabbx", 6, 0);
    ck_assert_uint_eq(l.match.snapshot.is_tail, kinds[_i] == PFX_TAIL);
    drop(&w, &l);
    ck_assert_int_eq(forget_state(&w, key), PFX_ENOENT); /* the old blob's name is nobody's */
    found(&w, "aaaabbx", 7, 6, 0);
    ck_assert_int_eq(evict_state(&w), 0);
    found(&w, "aaaabbx", 7, 0, 0);
    states_are(&w, 0, 0);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshots: order and kinds");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, e36_losing_candidates_stay_old);
    tcase_add_test(t, e36_quiet_ones_stamp_nothing);
    tcase_add_test(t, e36_stalest_session_first);
    tcase_add_test(t, e39_lease_ends_after_64_evictions);
    tcase_add_test(t, e39_lease_begins_anew_at_a_lookup);
    tcase_add_test(t, e39_one_session_is_live);
    tcase_add_test(t, e40_lease_never_blocks_the_last_candidate);
    tcase_add_test(t, e42_tail_is_for_its_session_alone);
    tcase_add_test(t, e43_exact_over_a_tail);
    tcase_add_test(t, e43_tail_over_tails);
    tcase_add_test(t, e43_siblings_of_two_sessions);
    tcase_add_test(t, e43_one_sibling_a_session);
    tcase_add_loop_test(t, e45_save_over_a_spilled_one, 0, 3);
    tcase_add_loop_test(t, e45_save_over_a_resident_one, 0, 3);
    tcase_add_loop_test(t, e45_save_over_a_held_one, 0, 3);
    tcase_add_test(t, e45_sweep_of_spilled_ones);
    tcase_add_test(t, e45_sibling_where_a_spilled_one_lies);
    tcase_add_loop_test(t, e46_saved_over_a_spilled_one_is_resident, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
