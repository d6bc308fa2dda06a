/* Engine faults E121 to E135, and E31 for states: whose state it is, what it stands on, and whose
 * slot. */
#include "tests/states.h"

#include <stdio.h>
#include <string.h>

static void setup(struct host *h, struct worker *w, unsigned n_slots, unsigned n_tier)
{
    host_states(h, 32, 4, n_slots, n_tier);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    slots_all_there(w);
    worker_close(w);
    host_stop(h);
}

/* ---- E121: prefixes of one hash ----------------------------------------------------------- */

static struct seq collision(const uint32_t head[7])
{
    struct seq s = {.n = 22};
    for (uint32_t i = 0; i < 22; i++)
        s.at[i] = i < 7 ? head[i] : i;
    return s;
}

/* At all three depths, resident. */
static void three_depths(struct worker *w, const struct seq *s, bool there)
{
    for (uint32_t depth = 7; depth <= 21; depth += 7) {
        struct seq cut = *s;
        cut.n = depth + 1;
        found_seq(w, &cut, 0, there ? depth : 0, 0);
    }
}

START_TEST(e121_states_of_colliding_prefixes)
{
    static const uint32_t p[] = {125131, 1654, 106825, 92909, 151479, 48800, 5};
    static const uint32_t q[] = {99299, 67827, 108731, 46956, 90706, 135831, 126323};
    static const unsigned bt[] = {1, 4, 7, 16, 32}; /* in blocks, in both, in the residue alone */
    struct host h;
    struct worker w;
    struct seq sp = collision(p), sq = collision(q);
    host_states(&h, 64, bt[_i], 8, 0);
    worker_open(&w, &h, NULL);
    for (uint32_t depth = 7; depth <= 21; depth += 7)
        keep_seq(&w, &sp, depth, PFX_EXACT, 0);
    three_depths(&w, &sp, true);
    three_depths(&w, &sq, false);
    cache_seq(&w, &sq, PFX_FINAL); /* now its blocks match, and it still has no state */
    three_depths(&w, &sq, false);
    for (uint32_t depth = 7; depth <= 21; depth += 7)
        keep_seq(&w, &sq, depth, PFX_EXACT, 0);
    states_are(&w, 6, 0); /* none was displaced */
    three_depths(&w, &sp, true);
    three_depths(&w, &sq, true);
    teardown(&h, &w);
}
END_TEST

/* ---- E31: what stands behind the tokens ----------------------------------------------------- */

static const struct seq *image_prompt(void)
{
    static struct seq s;
    s = seq("aaaabbbbccccx");
    return &s;
}

static struct pfx_extra image(uint64_t at, uint64_t len, uint8_t digest)
{
    return (struct pfx_extra){.at = at, .len = len, .digest = {digest}};
}

/* Cache the prompt with this image and, if depth is not 0, a state there. */
static void keep_image(struct worker *w, const struct pfx_extra *x, uint32_t depth)
{
    const struct seq *s = image_prompt();
    struct pfx_lookup_args args = lookup_args(w, s);
    args.extras = x;
    args.n_extras = 1;
    args.flags = PFX_QUIET;
    struct held l = look_args(w, &args);
    ck_assert_int_eq(grab(w, &l, 4 - l.n_table), 0);
    struct pfx_insert_args in = {
        .size = sizeof in, .tokens = s->at, .n_written = s->n, .extras = x, .n_extras = 1};
    struct pfx_insert_result r = {.size = sizeof r};
    ck_assert_int_eq(pfx_insert(w->c, l.lease, &in, NULL, &r), 0);
    step(w);
    w->weights = x->digest[0];
    if (depth)
        save_seq(w, &l, s, depth, PFX_EXACT);
    drop(w, &l);
}

static void image_offered(struct worker *w, const struct pfx_extra *x, uint32_t matched_tokens,
                          uint32_t depth)
{
    struct pfx_lookup_args args = lookup_args(w, image_prompt());
    args.extras = x;
    args.n_extras = 1;
    struct held l = look_args(w, &args);
    ck_assert_uint_eq(l.match.matched_tokens, matched_tokens);
    w->weights = x->digest[0];
    offers_seq(w, &l, image_prompt(), depth, 0);
    drop(w, &l);
    struct pfx_peeked p = {.size = sizeof p};
    ck_assert_int_eq(pfx_peek_full(w->c, &args, &p), 0);
    ck_assert_uint_eq(p.snapshot_depth, depth);
}

/* The image starts in the tokens after the last whole block: the state's own copy of it counts. */
START_TEST(e31_states_of_two_images)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    const struct pfx_extra one = image(5, 2, 1), two = image(5, 2, 2), longer = image(5, 6, 1);
    keep_image(&w, &one, 7);
    image_offered(&w, &one, 12, 7);
    image_offered(&w, &two, 4, 0);
    keep_image(&w, &two, 0); /* its blocks are cached, no state of it is */
    image_offered(&w, &two, 12, 0);
    keep_image(&w, &longer, 0); /* as long as the state reads, the same; but not the same image */
    image_offered(&w, &longer, 12, 0);
    image_offered(&w, &one, 12, 7);
    keep_image(&w, &two, 7);
    keep_image(&w, &longer, 7);
    states_are(&w, 3, 0);
    image_offered(&w, &one, 12, 7);
    image_offered(&w, &two, 12, 7);
    image_offered(&w, &longer, 12, 7);
    keep_image(&w, &two, 7); /* displaces its own alone */
    states_are(&w, 3, 0);
    teardown(&h, &w);
}
END_TEST

/* It starts before the residue (its block tells), or after the depth (no part of the prefix). */
START_TEST(e31_images_around_the_residue)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 0);
    const struct pfx_extra before = image(2, 4, 1), before2 = image(2, 4, 2),
                           after = image(7, 2, 3), after2 = image(7, 2, 4);
    keep_image(&w, &before, 7);
    keep_image(&w, &before2, 0);
    image_offered(&w, &before, 12, 7);
    image_offered(&w, &before2, 12, 0);
    keep_image(&w, &after, 7);
    image_offered(&w, &after, 12, 7);
    keep_image(&w, &after2, 0);
    w.weights = 3; /* after2 shares all seven tokens and all that stands behind them */
    struct pfx_lookup_args args = lookup_args(&w, image_prompt());
    args.extras = &after2;
    args.n_extras = 1;
    struct held l = look_args(&w, &args);
    ck_assert_uint_eq(l.match.matched_tokens, 12);
    offers_seq(&w, &l, image_prompt(), 7, 0);
    drop(&w, &l);
    const struct pfx_extra within = image(6, 1, 5); /* where the state has none */
    keep_image(&w, &within, 0);
    image_offered(&w, &within, 12, 0);
    teardown(&h, &w);
}
END_TEST

/* What the latest insert wrote beyond its blocks: an image after the depth is none of the state's.
 */
START_TEST(e31_image_after_an_unaligned_depth)
{
    struct host h;
    struct worker w;
    uint32_t slot;
    struct seq s = seq("aaaabbb"), other = seq("aaaabccc");
    const struct pfx_extra x[] = {image(4, 1, 1), image(6, 1, 2)};
    setup(&h, &w, 4, 0);
    struct held l = look(&w, "aaaabbb");
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    struct pfx_insert_args in = {
        .size = sizeof in, .tokens = s.at, .n_written = s.n, .extras = x, .n_extras = 2};
    struct pfx_insert_result r = {.size = sizeof r};
    ck_assert_int_eq(pfx_insert(w.c, l.lease, &in, NULL, &r), 0);
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    state_fill(&w, slot, &(struct state){&s, 5, 0});
    ck_assert_int_eq(slot_insert(&w, &l, slot, 5, PFX_EXACT), 0);
    drop(&w, &l);
    for (int i = 0; i < 2; i++) { /* a block that has the first image, and one that has none */
        l = look(&w, "aaaabccc");
        ck_assert_int_eq(grab(&w, &l, 2 - l.n_table), 0);
        in = (struct pfx_insert_args){.size = sizeof in,
                                      .tokens = other.at,
                                      .n_written = other.n,
                                      .extras = i ? NULL : x,
                                      .n_extras = i ? 0 : 1};
        ck_assert_int_eq(pfx_insert(w.c, l.lease, &in, NULL, &r), 0);
        drop(&w, &l);
        struct pfx_lookup_args args = lookup_args(&w, &other);
        args.max_match = 8;
        args.extras = in.extras;
        args.n_extras = in.n_extras;
        l = look_args(&w, &args);
        ck_assert_uint_eq(l.match.matched_tokens, 8);
        offers_seq(&w, &l, &other, i ? 0 : 5, 0);
        drop(&w, &l);
    }
    teardown(&h, &w);
}
END_TEST

/* ---- E123 ---------------------------------------------------------------------------------- */

START_TEST(e123_a_tail_leaves_the_shared_anchor)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 8);
    for (int spilled = 0; spilled < 2; spilled++) {
        keep(&w, "aaaabb", 6, PFX_EXACT, 7);
        if (spilled)
            ck_assert_uint_eq(spill(&w, 0).depth, 6);
        keep(&w, "aaaabb", 6, PFX_TAIL, 8);
        found(&w, "aaaabbx", 0, spilled ? 0 : 6, spilled ? 6 : 0);
        found(&w, "aaaabbx", 7, spilled ? 0 : 6, spilled ? 6 : 0);
        ck_assert_uint_eq(found(&w, "aaaabbx", 8, 6, spilled ? 6 : 0).is_tail, spilled);
        keep(&w, "cccc", 4, PFX_TAIL, 8); /* and so does its sweep */
        found(&w, "aaaabbx", 8, spilled ? 0 : 6, spilled ? 6 : 0);
        keep(&w, "cccc", 4, PFX_EXACT, 7); /* and an exact one leaves the tail */
        found(&w, "ccccx", 7, 4, 0);
        states_are(&w, spilled ? 2 : 3, spilled ? 1 : 0);
        ck_assert_int_eq(pfx_flush(w.c, 0), 0);
        step(&w);
    }
    teardown(&h, &w);
}
END_TEST

/* ---- E126: a state and its prefix ---------------------------------------------------------- */

START_TEST(e126_states_go_with_their_prefix)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 8);
    bool spilled = _i == 1;
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&w, "aaaabbbb", 6, PFX_TAIL, 7);
    keep(&w, "aaaabbbb", 2, PFX_EXACT, 0);
    for (int i = 0; spilled && i < 3; i++)
        ck_assert_uint_ne(spill(&w, 0).key, 0);
    uint64_t evictions = counters(&w).snapshot_evictions;
    ck_assert_uint_eq(evict(&w, 1), 1); /* the second block, and the state after it */
    states_are(&w, spilled ? 0 : 2, spilled ? 2 : 0);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, evictions + !spilled);
    found(&w, "aaaabbbbx", 7, spilled ? 0 : 2, spilled ? 2 : 0);
    ck_assert_uint_eq(evict(&w, 1), 1); /* the first, and the one that hung on it */
    states_are(&w, spilled ? 0 : 1, spilled ? 1 : 0);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, evictions + (spilled ? 0 : 2));
    found(&w, "aaaabbbbx", 7, 0, 0);
    pages_are(&w, 32, 0, 0, 0);
    cache(&w, "aaaabbbb"); /* cached again: what was dropped does not come back, what hangs on */
    found(&w, "aaaabbbbx", 7, spilled ? 0 : 2, spilled ? 2 : 0); /* the root was never gone */
    tier_reconciles(&w, 0, 0, spilled ? 2 : 0);
    teardown(&h, &w);
}
END_TEST

/* A state that is in use holds its prefix, until the lease says that it is not. */
START_TEST(e126_held_state_and_its_prefix)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 4, 0);
    worker_open(&v, &h, NULL);
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    struct held l = look(&v, "aaaabbbbx");
    offers(&v, &l, "aaaabbbbx", 8, 0);
    ck_assert_uint_eq(evict(&w, 32), 0);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    ck_assert_int_eq(cut(&v, &l, 1), 0); /* computes from an earlier point: not in use any more */
    ck_assert_uint_eq(evict(&w, 32), 1);
    states_are(&w, 0, 0);
    ck_assert_uint_eq(slots_to_get(&w), 4);
    drop(&v, &l);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* Blocks without a state: a hit that must compute everything again, and says so. */
START_TEST(e126_blocks_without_a_state)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    keep(&w, "aaaabbbbcc", 10, PFX_EXACT, 0);
    struct pfx_stats before = counters(&w);
    struct held l = look(&w, "aaaabbbbccx"); /* deeper than what is matched in whole blocks */
    drop(&w, &l);
    ck_assert_uint_eq(counters(&w).recompute_tokens, before.recompute_tokens);
    ck_assert_uint_eq(spill(&w, 0).depth, 10);
    l = look(&w, "aaaabbbbccx"); /* spilled ones count */
    drop(&w, &l);
    ck_assert_uint_eq(counters(&w).recompute_tokens, before.recompute_tokens);
    ck_assert_uint_eq(counters(&w).snapshot_hits, before.snapshot_hits + 2);
    ck_assert_int_eq(forget_state(&w, l.match.snapshot.tier_key), 0);
    l = look(&w, "aaaabbbbccx");
    drop(&w, &l);
    l = ask(&w, "aaaabbbbccx", 0, PFX_QUIET);
    drop(&w, &l);
    l = ask(&w, "aaaabbbbccx", 0, PFX_NO_MATCH);
    drop(&w, &l);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.hits, before.hits + 3);
    ck_assert_uint_eq(s.recompute_tokens, before.recompute_tokens + 8);
    ck_assert_uint_eq(s.snapshot_hits, before.snapshot_hits + 2);
    teardown(&h, &w);
}
END_TEST

/* ---- E127: the next turn's match ------------------------------------------------------------ */

/* A turn rarely ends on a block boundary. Each turn restores the tail of the one before, a stranger
 * the sibling at the boundary below it. */
START_TEST(e127_next_turn_finds_the_last_state)
{
    struct host h;
    struct worker w;
    struct seq s = {.n = 0};
    setup(&h, &w, 4, 0);
    for (uint32_t turn = 0, last = 0; turn < 9; turn++) {
        for (uint32_t i = 0; i < 5 + turn % 4; i++)
            s.at[s.n++] = turn * 100 + i;
        struct held l = ask_seq(&w, &s, 7, 0);
        offers_seq(&w, &l, &s, last, 0);
        ck_assert_uint_eq(l.match.snapshot.is_tail, turn && last % 4);
        ck_assert_uint_eq(l.match.matched_tokens, last / 4 * 4);
        ck_assert_int_eq(let_go(&w, &l), 0); /* restored */
        uint32_t total = (uint32_t)s.n, below = total / 4 * 4;
        ck_assert_int_eq(grab(&w, &l, (total + 3) / 4 - l.n_table), 0);
        ck_assert_int_eq(put_seq(&w, &l, &s, PFX_FINAL, NULL, NULL), 0);
        save_seq(&w, &l, &s, total, PFX_TAIL);
        save_seq(&w, &l, &s, below, PFX_TAIL_SIBLING);
        drop(&w, &l);
        states_are(&w, 2, 0);
        struct seq next = s;
        next.at[next.n++] = 1;
        found_seq(&w, &next, 8, below, 0);
        found_seq(&w, &next, 7, total, 0);
        last = total;
    }
    teardown(&h, &w);
}
END_TEST

/* ---- E129, E130, E133: whose slot ------------------------------------------------------------ */

START_TEST(e129_offered_state_stays)
{
    struct host h;
    struct worker w, v;
    setup(&h, &w, 2, 4);
    worker_open(&v, &h, NULL);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    keep(&w, "bbbb", 4, PFX_EXACT, 0);
    struct held one = look(&v, "aaaax"), two = look(&v, "bbbbx"), again = look(&w, "aaaax");
    struct pfx_spilled s = {.size = sizeof s};
    ck_assert_uint_eq(slots_to_get(&w), 0);
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &s), PFX_ENOENT);
    offers(&v, &one, "aaaax", 4, 0);
    offers(&v, &two, "bbbbx", 4, 0);
    ck_assert_int_eq(let_go(&v, &one), 0);
    ck_assert_int_eq(let_go(&v, &one), 0);  /* nothing is left to let go: no harm */
    ck_assert_uint_eq(slots_to_get(&w), 0); /* `again` still holds it */
    ck_assert_int_eq(let_go(&v, &two), 0);
    ck_assert_uint_eq(slots_to_get(&w), 1);
    found(&w, "bbbbx", 0, 0, 4);
    found(&w, "aaaax", 0, 4, 0);
    drop(&w, &again);
    drop(&v, &one);
    drop(&v, &two);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

START_TEST(e130_slots_are_their_leases)
{
    struct host h;
    struct worker w, v;
    uint32_t a, b;
    setup(&h, &w, 4, 0);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaabbbb");
    struct held one = look(&w, "aaaabbbbx"), two = look(&w, "aaaabbbbx"), far = look(&v, "aaaabx");
    ck_assert_int_eq(slot_reserve(&w, &one, &a), 0);
    ck_assert_int_eq(slot_reserve(&w, &one, &b), 0);
    ck_assert_uint_ne(a, b);
    ck_assert_int_eq(slot_cancel(&w, &two, a), PFX_ESTALE);
    ck_assert_int_eq(slot_insert(&w, &two, a, 4, PFX_EXACT), PFX_ESTALE);
    ck_assert_int_eq(slot_cancel(&v, &far, a), PFX_ESTALE);
    ck_assert_int_eq(slot_insert(&v, &far, a, 4, PFX_EXACT), PFX_ESTALE);
    ck_assert_uint_eq(slots_to_get(&w), 2);
    ck_assert_int_eq(slot_cancel(&w, &one, a), 0);
    ck_assert_int_eq(slot_cancel(&w, &one, a), PFX_ESTALE);
    ck_assert_int_eq(slot_insert(&w, &one, a, 4, PFX_EXACT), PFX_ESTALE);
    ck_assert_uint_eq(slots_to_get(&w), 3);
    struct seq s = seq("aaaa");
    state_fill(&w, b, &(struct state){&s, 4, 0});
    ck_assert_int_eq(slot_insert(&w, &one, b, 4, PFX_EXACT), 0);
    ck_assert_int_eq(slot_insert(&w, &one, b, 4, PFX_EXACT), PFX_ESTALE); /* twice */
    ck_assert_int_eq(slot_insert(&w, &one, b, 8, PFX_EXACT), PFX_ESTALE);
    ck_assert_int_eq(slot_cancel(&w, &one, b), PFX_ESTALE);
    states_are(&w, 1, 0);
    found(&w, "aaaax", 0, 4, 0);
    drop(&w, &one);
    drop(&w, &two);
    drop(&v, &far);
    found(&w, "aaaax", 0, 4, 0); /* not the lease's any more: it stays */
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* A save, a rollback, an eviction or a spill. */
static void random_step(struct worker *w, struct rng *r, const char *text, uint64_t session)
{
    uint32_t depth = 1 + rng_below(r, 8), slot;
    struct pfx_spilled s = {.size = sizeof s};
    struct held l;
    switch (rng_below(r, 6)) {
    case 0:
        l = ask(w, text, session, PFX_QUIET);
        if (slot_reserve(w, &l, &slot) == 0)
            memset(pfx_slot_address(w->c, 0, slot), 0xee, STATE_BYTES);
        drop(w, &l);
        break;
    case 1:
        evict(w, 1);
        break;
    case 2:
        REQUIRE(pfx_snapshot_spill(w->c, 3, &s) <= 0);
        break;
    default:
        keep(w, text, depth, (enum pfx_snapshot_kind)rng_below(r, 3), session);
    }
}

/* At random: every state that can be found holds its own bytes. */
START_TEST(e133_no_two_states_share_a_slot)
{
    struct host h;
    struct worker w;
    struct rng r = rng_seeded("e133");
    setup(&h, &w, 6, 2);
    for (int i = 0; i < 150; i++) {
        char text[10] = "aaaabbbbx";
        text[0] = (char)('a' + rng_below(&r, 3));
        text[4] = (char)('a' + rng_below(&r, 2));
        uint64_t session = 1 + rng_below(&r, 2);
        random_step(&w, &r, text, session);
        for (int k = 0; k < 6; k++) { /* compares bytes */
            text[0] = (char)('a' + k % 3);
            text[4] = (char)('a' + k / 3);
            struct held l = ask(&w, text, session, k % 2 ? PFX_FETCH : 0);
            offers(&w, &l, text, l.match.snapshot.depth, l.match.snapshot.tier_depth);
            drop(&w, &l);
        }
    }
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshots: identity and slots");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, e121_states_of_colliding_prefixes, 0, 5);
    tcase_add_test(t, e31_states_of_two_images);
    tcase_add_test(t, e31_images_around_the_residue);
    tcase_add_test(t, e31_image_after_an_unaligned_depth);
    tcase_add_test(t, e123_a_tail_leaves_the_shared_anchor);
    if (!on_disk()) /* there a prefix is not gone when it is evicted */
        tcase_add_loop_test(t, e126_states_go_with_their_prefix, 0, 2);
    tcase_add_test(t, e126_held_state_and_its_prefix);
    tcase_add_test(t, e126_blocks_without_a_state);
    tcase_add_test(t, e127_next_turn_finds_the_last_state);
    tcase_add_test(t, e129_offered_state_stays);
    tcase_add_test(t, e130_slots_are_their_leases);
    tcase_add_test(t, e133_no_two_states_share_a_slot);
    suite_add_tcase(s, t);
    return s;
}
