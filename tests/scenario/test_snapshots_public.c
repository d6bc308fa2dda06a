/* Public reports B24 to B30: states of hybrid models, and the tails of sessions. (A state at a
 * wrong depth that changes a model's answers: tests/hybrid/. Lost and refused blobs:
 * test_lost_blobs.c.)
 */
#include "tests/states.h"

#include <stdlib.h>
#include <string.h>

/* n tokens; from `shared` on they are this branch's own. */
static struct seq branch(size_t n, size_t shared, uint32_t own)
{
    struct seq s = {.n = n};
    for (size_t i = 0; i < n; i++)
        s.at[i] = (i < shared ? 1000 : own * 10000) + (uint32_t)i;
    return s;
}

/* P, with states at 64 and 128. */
static void cache_p(struct worker *w)
{
    struct seq p = branch(128, 128, 0);
    keep_seq(w, &p, 64, PFX_EXACT, 0);
    keep_seq(w, &p, 128, PFX_EXACT, 0);
}

/* Its two states are held meanwhile: what one can get are the slots that nothing is in. */
static uint32_t free_beside_p(struct worker *w)
{
    struct seq all = branch(129, 128, 0), half = branch(65, 65, 0);
    struct held deep = ask_seq(w, &all, 0, PFX_QUIET), shallow = ask_seq(w, &half, 0, PFX_QUIET);
    offers_seq(w, &deep, &all, 128, 0);
    offers_seq(w, &shallow, &half, 64, 0);
    uint32_t n = slots_to_get(w);
    drop(w, &deep);
    drop(w, &shallow);
    return n;
}

/* ---- B24 ------------------------------------------------------------------------------- */

/* The lease has published `written` tokens and offers a state of 192. */
static void offer_192(struct worker *w, struct held *h, const struct seq *r, size_t written,
                      int want)
{
    struct seq cut = *r;
    uint32_t slot;
    cut.n = written;
    ck_assert_int_eq(grab(w, h, 24), 0);
    ck_assert_int_eq(put_seq(w, h, &cut, 0, NULL, NULL), 0);
    ck_assert_int_eq(slot_reserve(w, h, &slot), 0);
    state_fill(w, slot, &(struct state){r, 192, 0});
    uint64_t saves = counters(w).snapshot_saves;
    ck_assert_int_eq(slot_insert(w, h, slot, 192, PFX_EXACT), want);
    ck_assert_uint_eq(counters(w).snapshot_saves, saves + (want == 0));
    if (want == 0)
        return;
    for (uint32_t depth = (uint32_t)written + 1; depth <= 192; depth += 31)
        ck_assert_int_eq(slot_insert(w, h, slot, depth, PFX_EXACT), PFX_ECONFLICT);
    ck_assert_int_eq(slot_cancel(w, h, slot), 0); /* it has stayed the lease's */
}

START_TEST(b24_depth_beyond_the_insert)
{
    struct host h;
    struct worker w;
    host_states(&h, 64, 4, 4, 0);
    worker_open(&w, &h, NULL);
    cache_p(&w);
    struct seq r = branch(192, 96, 1), r1 = branch(193, 96, 1), other = branch(120, 96, 2);

    struct held l = look_seq(&w, &r);
    ck_assert_uint_eq(l.match.matched_tokens, 96);
    offer_192(&w, &l, &r, 96, PFX_ECONFLICT);
    drop(&w, &l);
    states_are(&w, 2, 0);
    ck_assert_uint_eq(free_beside_p(&w), 2);
    const struct seq *ask[] = {&other, &r1};
    for (int i = 0; i < 2; i++) {
        l = look_seq(&w, ask[i]);
        ck_assert_uint_eq(l.match.matched_tokens, 96);
        offers_seq(&w, &l, ask[i], 64, 0);
        drop(&w, &l);
    }

    l = look_seq(&w, &r);
    offer_192(&w, &l, &r, 192, 0);
    drop(&w, &l);
    l = look_seq(&w, &r1);
    ck_assert_uint_eq(l.match.matched_tokens, 192);
    offers_seq(&w, &l, &r1, 192, 0);
    drop(&w, &l);
    found_seq(&w, &other, 0, 64, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* The same where the lease is cut after its insert: what it had written at the end is gone. */
START_TEST(b24_depth_beyond_what_a_cut_left)
{
    struct host h;
    struct worker w;
    uint32_t slot;
    host_states(&h, 16, 4, 4, 0);
    worker_open(&w, &h, NULL);
    struct held l = look(&w, "aaaabbbbcc");
    ck_assert_int_eq(grab(&w, &l, 3), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbcc", 0, NULL, NULL), 0);
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    ck_assert_int_eq(slot_insert(&w, &l, slot, 11, PFX_EXACT), PFX_ECONFLICT); /* not written */
    ck_assert_int_eq(cut(&w, &l, 2), 0);
    ck_assert_int_eq(slot_insert(&w, &l, slot, 10, PFX_EXACT), PFX_ECONFLICT); /* cut off */
    ck_assert_int_eq(slot_insert(&w, &l, slot, 9, PFX_EXACT), PFX_ECONFLICT);
    struct seq s = seq("aaaabbbbcc");
    state_fill(&w, slot, &(struct state){&s, 7, 0});
    ck_assert_int_eq(slot_insert(&w, &l, slot, 7, PFX_EXACT), 0);
    drop(&w, &l);
    found(&w, "aaaabbbx", 0, 7, 0); /* within a block that is cached whole */
    found(&w, "aaaabbbbx", 0, 7, 0);
    found(&w, "aaaabbxx", 0, 0, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B26 ------------------------------------------------------------------------------- */

static void asked_for(struct worker *w, const struct seq *s, uint32_t matched_tokens,
                      uint32_t depth)
{
    uint64_t before = counters(w).recompute_tokens, hits = counters(w).snapshot_hits;
    struct held l = look_seq(w, s);
    ck_assert_uint_eq(l.match.matched_tokens, matched_tokens);
    offers_seq(w, &l, s, depth, 0);
    ck_assert_uint_eq(counters(w).recompute_tokens, before + matched_tokens - depth);
    ck_assert_uint_eq(counters(w).snapshot_hits, hits + 1);
    drop(w, &l);
}

START_TEST(b26_state_at_a_boundary)
{
    struct host h;
    struct worker w;
    host_states(&h, 64, 16, 4, 0);
    worker_open(&w, &h, NULL);
    cache_p(&w);
    struct seq all = branch(128, 128, 0), more = branch(129, 128, 0), half = branch(116, 96, 3);
    asked_for(&w, &all, 112, 64); /* a token is left to compute */
    asked_for(&w, &more, 128, 128);
    struct seq diverges = branch(128, 96, 1);
    cache_seq(&w, &diverges, 0);
    asked_for(&w, &more, 128, 128);
    asked_for(&w, &half, 96, 64);
    /* a split at every block: no part of the run loses its state */
    for (uint32_t at = 1; at < 8; at++) {
        struct seq split = branch(at * 16 + 16, at * 16, 10 + at);
        cache_seq(&w, &split, 0);
        asked_for(&w, &more, 128, 128);
        asked_for(&w, &all, 112, 64);
        asked_for(&w, &half, 96, 64);
        found_seq(&w, &split, 0, at < 4 ? 0 : 64, 0);
    }
    states_are(&w, 2, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B27 ------------------------------------------------------------------------------- */

START_TEST(b27_restored_copy_is_ones_own)
{
    struct host h;
    struct worker w1, w2;
    host_states(&h, 64, 4, 4, 0);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    cache_p(&w1);
    struct seq p = branch(65, 65, 0);
    struct held l = look_seq(&w1, &p);
    offers_seq(&w1, &l, &p, 64, 0);
    ck_assert_int_eq(grab(&w1, &l, 1), 0);
    ck_assert_int_eq(put_seq(&w1, &l, &p, 0, NULL, NULL), 0);
    uint32_t mine;
    ck_assert_int_eq(slot_reserve(&w1, &l, &mine), 0);
    ck_assert_uint_ne(mine, l.match.snapshot.slot);
    uint8_t *copy = pfx_slot_address(w1.c, 0, mine);
    memcpy(copy, pfx_slot_address(w1.c, 0, l.match.snapshot.slot), STATE_BYTES);
    memset(copy, 0xee, STATE_BYTES); /* the running state goes on */
    found_seq(&w2, &p, 0, 64, 0);    /* compares its bytes */
    state_fill(&w1, mine, &(struct state){&p, 65, 0});
    ck_assert_int_eq(slot_insert(&w1, &l, mine, 65, PFX_EXACT), 0);
    drop(&w1, &l);
    found_seq(&w2, &p, 0, 64, 0);
    states_are(&w2, 3, 0);
    slots_all_there(&w2);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

/* The spilled one is forgotten; the good one is left, and nothing of the other is seen again. */
START_TEST(b27_forgotten_state_is_none)
{
    struct host h;
    struct worker w1, w2;
    host_states(&h, 128, 4, 4, 16);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    struct seq p = branch(129, 128, 0);
    keep_seq(&w1, &p, 128, PFX_EXACT, 0);
    keep_seq(&w1, &p, 64, PFX_EXACT, 0);
    struct pfx_spilled gone = spill(&w1, 0); /* the older one */
    ck_assert_uint_eq(gone.depth, 128);
    struct held l = look_seq(&w1, &p);
    offers_seq(&w1, &l, &p, 64, 128);
    ck_assert_uint_eq(l.match.snapshot.tier_key, gone.key);
    ck_assert_int_eq(forget_state(&w2, gone.key), 0);
    found_seq(&w2, &p, 0, 64, 0);
    ck_assert_uint_eq(slots_to_get(&w2), 3); /* all but the one that is held */
    drop(&w1, &l);
    found_seq(&w2, &p, 0, 64, 0);
    states_are(&w1, 1, 0);
    ck_assert_uint_eq(counters(&w1).snapshot_forgotten, 1);
    ck_assert_uint_eq(counters(&w1).snapshot_fetches, 0);
    for (uint32_t i = 0; i < 100; i++) {
        struct seq other = branch(9, i % 2 ? 4 : 0, 20 + i % 7);
        struct held u = ask_seq(&w2, &other, 0, PFX_FETCH);
        for (uint32_t k = 0; k < u.match.n_blocks; k++)
            ck_assert(bytes_are(&w2, u.table[k], &other, (k + 1) * 4));
        offers_seq(&w2, &u, &other, i >= 14 && i % 2 == 0 ? 8 : 0, 0);
        drop(&w2, &u);
        if (i < 14 && i % 2 == 0)
            keep_seq(&w2, &other, 8, PFX_EXACT, 0);
    }
    slots_all_there(&w2);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

/* One slot: A is in it, and B's state has nowhere to come back to. */
START_TEST(b27_no_room_to_restore)
{
    struct host h;
    struct worker w1, w2;
    host_states(&h, 16, 4, 1, 2);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    keep(&w1, "bbbb", 4, PFX_EXACT, 0);
    uint64_t key = spill(&w1, 0).key;
    keep(&w1, "aaaa", 4, PFX_EXACT, 0);
    struct held a = ask(&w1, "aaaax", 0, 0);
    offers(&w1, &a, "aaaax", 4, 0);
    struct held b = ask(&w2, "bbbbx", 0, PFX_FETCH); /* succeeds, with what there is */
    offers(&w2, &b, "bbbbx", 0, 4);
    ck_assert_int_eq(fetch(&w2, &b), PFX_ENOSPC);
    offers(&w2, &b, "bbbbx", 0, 4);
    ck_assert_uint_eq(b.match.snapshot.tier_key, key);
    offers(&w1, &a, "aaaax", 4, 0); /* A's bytes are where they were */
    drop(&w2, &b);
    ck_assert_int_eq(forget_state(&w1, key), 0);
    b = ask(&w2, "bbbbx", 0, PFX_FETCH); /* no state any more */
    offers(&w2, &b, "bbbbx", 0, 0);
    ck_assert_int_eq(fetch(&w2, &b), 0);
    offers(&w2, &b, "bbbbx", 0, 0);
    drop(&w2, &b);
    drop(&w1, &a);
    found(&w2, "bbbbx", 0, 0, 0);
    found(&w2, "aaaax", 0, 4, 0);
    slots_all_there(&w2);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

/* ---- B29 ------------------------------------------------------------------------------- */

/* Two states and one slot: each comes back whole, again and again, on both devices. */
START_TEST(b29_all_parts_come_back)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--devices", "2",
               "--snapshots", "1", "--snapshot-bytes", "192", "--snapshot-swap", "64K");
    worker_open(&w, &h, NULL);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&w, 0).depth, 6);
    struct seq s = seq("ccccdddd");
    keep_seq(&w, &s, 8, PFX_EXACT, 0); /* the slot holds other bytes now */
    for (uint64_t turn = 1; turn <= 10; turn++) {
        const char *text = turn % 2 ? "aaaabbx" : "ccccddddx";
        uint32_t depth = turn % 2 ? 6 : 8;
        s = seq(text);
        struct held l = ask_seq(&w, &s, 0, turn % 4 < 2 ? PFX_FETCH : 0);
        if (turn % 4 >= 2) {
            offers_seq(&w, &l, &s, 0, depth);
            ck_assert_int_eq(fetch(&w, &l), 0);
        }
        offers_seq(&w, &l, &s, depth, 0);
        for (int part = 0; part < STATE_PARTS; part++)
            ck_assert(
                state_part_is(&w, l.match.snapshot.slot, &(struct state){&s, depth, 0}, part));
        drop(&w, &l);
        states_are(&w, 1, 1);
        ck_assert_uint_eq(counters(&w).snapshot_fetches, turn);
        tier_reconciles(&w, 0, 0, 0);
    }
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Attached by somebody else, long after its prefix was cached. */
START_TEST(b29_attached_later)
{
    struct host h;
    struct worker w1, w2;
    host_states(&h, 16, 4, 2, 2);
    worker_open(&w1, &h, NULL);
    worker_open(&w2, &h, NULL);
    cache(&w1, "aaaabbbbcccc");
    struct held l = look(&w2, "aaaabbbbccccx");
    ck_assert_uint_eq(l.match.matched_tokens, 12);
    save(&w2, &l, "aaaabbbbcccc", 8, PFX_EXACT);
    drop(&w2, &l);
    ck_assert_uint_eq(spill(&w2, 0).depth, 8);
    found(&w1, "aaaabbbbccccx", 0, 0, 8);
    found(&w1, "aaaabbbb", 0, 0, 0); /* a token is left: it matches 4, and 3 of a tail */
    l = ask(&w1, "aaaabbbbccccx", 0, PFX_FETCH);
    offers(&w1, &l, "aaaabbbbccccx", 8, 0);
    drop(&w1, &l);
    slots_all_there(&w1);
    worker_close(&w1);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

START_TEST(b29_full_tier)
{
    struct host h;
    struct worker w;
    const char *text[] = {"aaaax", "bbbbx", "ccccx", "ddddx", "eeeex"};
    host_states(&h, 16, 4, 8, 2);
    worker_open(&w, &h, NULL);
    for (int i = 0; i < 5; i++)
        keep(&w, text[i], 4, PFX_EXACT, 0);
    for (unsigned i = 0; i < 4; i++) { /* the oldest resident one goes, and the oldest spilled */
        struct pfx_spilled s = spill(&w, 0);
        ck_assert_uint_ne(s.key, 0);
        states_are(&w, 4 - i, i < 2 ? i + 1 : 2);
        for (unsigned k = 0; k < 5; k++) {
            bool resident = k > i, dropped = k + 2 <= i;
            found(&w, text[k], 0, resident ? 4 : 0, resident || dropped ? 0 : 4);
            ck_assert_uint_eq(matched(&w, text[k]), 4); /* what was computed is kept */
        }
        tier_reconciles(&w, 0, 0, i < 2 ? 0 : i - 1);
    }
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 0);
    /* now the spilled ones (c, d) were asked for after e was saved: e is dropped, they stay */
    for (int i = 2; i < 4; i++) {
        struct held l = look(&w, text[i]);
        drop(&w, &l);
    }
    struct pfx_spilled s = spill(&w, 0);
    ck_assert_uint_eq(s.dropped, 1);
    ck_assert_uint_eq(s.depth, 4);
    states_are(&w, 0, 2);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, 1);
    tier_reconciles(&w, 0, 0, 2);
    found(&w, text[2], 0, 0, 4);
    found(&w, text[3], 0, 0, 4);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &s), PFX_ENOENT);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B30 ------------------------------------------------------------------------------- */

static const char *const turn_of[] = {"", "1111aa", "2222bb", "3333cc", "4444dd", "5555ee"};

static struct held turn_open(struct worker *w, uint64_t session)
{
    char text[8];
    strcpy(text, turn_of[session]);
    strcat(text, "x");
    return ask(w, text, session, 0);
}

/* Tails of sessions that nobody closes: a new one takes the place of the stalest; what is in use is
 * waited for by nobody. */
START_TEST(b30_tails_never_fill_the_slots)
{
    struct host h;
    struct worker w, v;
    uint32_t slot;
    host_states(&h, 32, 4, 3, 0);
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    for (uint64_t i = 1; i <= 3; i++)
        keep(&w, turn_of[i], 6, PFX_TAIL, i);
    struct held open[4] = {{0}};
    for (uint64_t i = 1; i <= 3; i++)
        open[i] = turn_open(&w, i);
    struct held fourth = ask(&v, turn_of[4], 4, 0);
    uint64_t start = now_ms();
    ck_assert_int_eq(slot_reserve(&v, &fourth, &slot), PFX_ENOSPC);
    ck_assert_uint_lt(now_ms() - start, 100 * SLOW);

    drop(&w, &open[2]); /* the stalest that is not in use, though not the stalest */
    ck_assert_int_eq(slot_reserve(&v, &fourth, &slot), 0);
    found(&v, "2222bbx", 2, 0, 0);
    ck_assert_uint_eq(matched(&v, "2222bbx"), 4); /* the blocks stay */
    ck_assert_int_eq(grab(&v, &fourth, 2), 0);
    ck_assert_int_eq(put(&v, &fourth, turn_of[4], PFX_FINAL, NULL, NULL), 0);
    struct seq s = seq(turn_of[4]);
    state_fill(&v, slot, &(struct state){&s, 6, 4});
    ck_assert_int_eq(slot_insert(&v, &fourth, slot, 6, PFX_TAIL), 0);
    drop(&v, &fourth);
    ck_assert_uint_eq(found(&v, "4444ddx", 4, 6, 0).is_tail, 1);

    drop(&w, &open[1]);
    ck_assert_int_eq(release(&w, open[1].lease), PFX_ESTALE);
    ck_assert_int_eq(slot_reserve(&w, &open[1], &slot), PFX_ESTALE);
    drop(&w, &open[3]);
    slots_all_there(&w);
    worker_close(&w);
    worker_close(&v);
    host_stop(&h);
}
END_TEST

START_TEST(b30_aborted_turn_leaves_the_tail)
{
    struct host h;
    struct worker w, v;
    host_states(&h, 32, 4, 4, 0);
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    for (uint64_t i = 1; i <= 3; i++)
        keep(&w, turn_of[i], 6, PFX_TAIL, i);
    struct held l = turn_open(&w, 3); /* reads its tail, takes a slot, and is aborted */
    offers(&w, &l, "3333ccx", 6, 0);
    uint32_t slot;
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    ck_assert_uint_ne(slot, l.match.snapshot.slot);
    memset(pfx_slot_address(w.c, 0, slot), 0xee, STATE_BYTES);
    drop(&w, &l);
    ck_assert_uint_eq(found(&v, "3333ccx", 3, 6, 0).is_tail, 1);
    for (uint64_t other = 0; other < 6; other++)
        if (other != 3) {
            l = ask(&v, "3333ccx", other, 0);
            ck_assert_uint_eq(l.match.matched_tokens, 4); /* shared blocks, no tail of a stranger */
            offers(&v, &l, "3333ccx", 0, 0);
            drop(&v, &l);
        }
    states_are(&w, 3, 0);
    worker_close(&w);
    EVENTUALLY(5000, counters(&v).workers == 1);
    slots_all_there(&v);
    ck_assert_uint_eq(pages(&v).pinned + pages(&v).private, 0);
    worker_close(&v);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("public reports, snapshots");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b24_depth_beyond_the_insert);
    tcase_add_test(t, b24_depth_beyond_what_a_cut_left);
    tcase_add_test(t, b26_state_at_a_boundary);
    tcase_add_test(t, b27_restored_copy_is_ones_own);
    tcase_add_test(t, b27_forgotten_state_is_none);
    tcase_add_test(t, b27_no_room_to_restore);
    tcase_add_test(t, b29_all_parts_come_back);
    tcase_add_test(t, b29_attached_later);
    tcase_add_test(t, b29_full_tier);
    tcase_add_test(t, b30_tails_never_fill_the_slots);
    tcase_add_test(t, b30_aborted_turn_leaves_the_tail);
    suite_add_tcase(s, t);
    return s;
}
