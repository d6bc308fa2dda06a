/* States of tenants and adapters that never meet, in any tier (B18, E100, E103, E124), what a flush
 * forgets (B48), and sizes at the edges (B45, B46). */
#include "tests/states.h"

#include <stdio.h>
#include <string.h>

static pfx_space space_of(struct worker *w, const char *tenant, uint64_t adapter)
{
    struct pfx_space_desc d = {.size = sizeof d,
                               .tenant = tenant,
                               .tenant_len = (uint32_t)strlen(tenant),
                               .adapter_id = adapter};
    pfx_space space = 0;
    ck_assert_int_eq(pfx_space_open(w->c, &d, &space), 0);
    return space;
}

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

/* ---- B18, E100, E103 --------------------------------------------------------------------- */

enum { SPACES = 5 };

/* Of all spaces only `own` is offered a state of the session, at these depths. */
static void only_in(struct worker *w, const pfx_space *space, int own, uint64_t session,
                    uint32_t depth, uint32_t tier_depth)
{
    for (int i = 0; i < SPACES; i++) {
        w->space = space[i];
        if (i == own)
            found(w, "aaaabbx", session, depth, tier_depth);
        else
            found(w, "aaaabbx", session, 0, 0);
    }
    w->space = space[own];
}

/* The same tokens are cached in all of them; a state, exact or a tail, is saved in one. */
static void b18_kind(struct worker *w, const pfx_space *space, int own, enum pfx_snapshot_kind kind)
{
    w->space = space[own];
    keep(w, "aaaabb", 6, kind, 7);
    only_in(w, space, own, 7, 6, 0);
    ck_assert_uint_eq(spill(w, 0).depth, 6);
    only_in(w, space, own, 7, 0, 6);
    uint64_t fetches = counters(w).snapshot_fetches;
    for (int i = 0; i < SPACES; i++)
        if (i != own) {
            w->space = space[i];
            struct held l = ask(w, "aaaabbx", 7, PFX_FETCH);
            ck_assert_uint_eq(l.match.matched_tokens, 4);
            offers(w, &l, "aaaabbx", 0, 0);
            drop(w, &l);
        }
    ck_assert_uint_eq(counters(w).snapshot_fetches, fetches); /* nothing was read for them */
    w->space = space[own];
    struct held l = ask(w, "aaaabbx", 7, PFX_FETCH);
    offers(w, &l, "aaaabbx", 6, 0);
    drop(w, &l);
    only_in(w, space, own, 7, 6, 0);
    ck_assert_int_eq(evict_state(w), 0);
    only_in(w, space, own, 7, 0, 0);
    states_are(w, 0, 0);
}

START_TEST(b18_states_of_tenants_and_adapters)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 4, 4);
    const pfx_space space[SPACES] = {0, space_of(&w, "1", 'A'), space_of(&w, "1", 'B'),
                                     space_of(&w, "2", 'A'), space_of(&w, "1", 0)};
    for (int i = 0; i < SPACES; i++) {
        w.space = space[i];
        cache_final(&w, "aaaabb");
    }
    for (int own = 0; own < SPACES; own++)
        for (int kind = PFX_EXACT; kind <= PFX_TAIL_SIBLING; kind++)
            b18_kind(&w, space, own, (enum pfx_snapshot_kind)kind);
    teardown(&h, &w);
}
END_TEST

/* One session number in two spaces is two sessions: each has its tail and its sibling. */
START_TEST(e124_sweep_stays_in_its_space)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 8, 8);
    const pfx_space space[2] = {space_of(&w, "t", 1), space_of(&w, "t", 2)};
    for (int spilled = 0; spilled < 2; spilled++) {
        for (int i = 0; i < 2; i++) {
            w.space = space[i];
            keep(&w, "aaaabb", 6, PFX_TAIL, 7);
            keep(&w, "aaaabb", 4, PFX_TAIL_SIBLING, 7);
        }
        for (int i = 0; spilled && i < 4; i++)
            ck_assert_uint_ne(spill(&w, 0).key, 0);
        states_are(&w, spilled ? 0 : 4, spilled ? 4 : 0);
        w.space = space[0];
        keep(&w, "cccc", 4, PFX_TAIL, 7); /* sweeps both of this space */
        found(&w, "aaaabbx", 7, 0, 0);
        ck_assert_uint_eq(found(&w, "ccccx", 7, 4, 0).is_tail, 1);
        w.space = space[1];
        found(&w, "aaaabbx", 7, spilled ? 0 : 6, spilled ? 6 : 0);
        found(&w, "aaaabbx", 0, spilled ? 0 : 4, spilled ? 4 : 0);
        found(&w, "ccccx", 7, 0, 0);
        states_are(&w, spilled ? 1 : 3, spilled ? 2 : 0);
        ck_assert_int_eq(pfx_flush(w.c, PFX_ALL_SPACES), 0);
        step(&w);
        states_are(&w, 0, 0);
    }
    tier_reconciles(&w, 0, 2, 2);
    teardown(&h, &w);
}
END_TEST

/* ---- B48 ------------------------------------------------------------------------------ */

/* One spilled, one resident, and one that hangs on the space's root. */
static void three_states(struct worker *w)
{
    keep(w, "cccc", 4, PFX_EXACT, 0);
    ck_assert_uint_ne(spill(w, 0).key, 0);
    keep(w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(w, "aa", 2, PFX_EXACT, 0);
}

static void three_found(struct worker *w, bool there)
{
    found(w, "ccccx", 0, 0, there ? 4 : 0);
    found(w, "aaaabbbbx", 0, there ? 8 : 0, 0);
    found(w, "aax", 0, there ? 2 : 0, 0);
}

/* Slots of the flushed space come back when their leases end: 6 in all, 2 are the other space's. */
static void slots_come_back(struct worker *w, struct held *filling, struct held *old)
{
    ck_assert_uint_eq(slots_to_get(w), 2);
    drop(w, filling);
    ck_assert_uint_eq(slots_to_get(w), 3);
    drop(w, old);
    ck_assert_uint_eq(slots_to_get(w), 4);
}

static void stale(struct worker *w, struct held *l, uint32_t slot)
{
    uint32_t more;
    ck_assert_int_eq(slot_insert(w, l, slot, 4, PFX_EXACT), PFX_ESTALE);
    ck_assert_int_eq(slot_cancel(w, l, slot), PFX_ESTALE);
    ck_assert_int_eq(slot_reserve(w, l, &more), PFX_ESTALE);
    ck_assert_int_eq(let_go(w, l), PFX_ESTALE);
}

START_TEST(b48_flush_forgets_states)
{
    struct host h;
    struct worker w, v; /* w: of the space that is flushed; v: of another */
    uint32_t slot;
    setup(&h, &w, 6, 4);
    worker_open(&v, &h, NULL);
    w.space = space_of(&w, "n", 0);
    v.space = space_of(&v, "m", 0);
    three_states(&v);
    struct held hold8 = ask(&v, "aaaabbbbx", 0, 0), hold2 = ask(&v, "aax", 0, 0);
    w.weights = 1;
    three_states(&w);
    struct held old = ask(&w, "aaaabbbbx", 0, 0), filling = ask(&w, "aaaabbbbx", 0, PFX_NO_MATCH);
    ck_assert_int_eq(slot_reserve(&w, &filling, &slot), 0);
    states_are(&w, 4, 2);
    uint64_t evictions = counters(&w).snapshot_evictions;

    ck_assert_int_eq(pfx_flush(w.c, w.space), 0);
    step(&w);
    states_are(&w, 2, 1);
    tier_reconciles(&w, 0, 0, 1);
    ck_assert_uint_eq(counters(&w).snapshot_evictions, evictions); /* a flush is no eviction */
    three_found(&w, false);
    three_found(&v, true);
    offers(&w, &old, "aaaabbbbx", 8, 0); /* its holder still reads it */
    stale(&w, &filling, slot);
    slots_come_back(&w, &filling, &old);

    w.weights = 2; /* new weights: new bytes are found, and no old ones */
    three_states(&w);
    three_found(&w, true);
    three_found(&v, true);
    drop(&v, &hold8);
    drop(&v, &hold2);
    ck_assert_int_eq(pfx_flush(w.c, PFX_ALL_SPACES), 0);
    step(&w);
    states_are(&w, 0, 0);
    three_found(&v, false);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

/* A lease from before holds a spilled one: it is nobody's any more, and is not brought back. */
START_TEST(b48_flush_while_a_spilled_one_is_held)
{
    struct host h;
    struct worker w;
    setup(&h, &w, 2, 2);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    uint64_t key = spill(&w, 0).key;
    struct held old = ask(&w, "aaaax", 0, 0);
    offers(&w, &old, "aaaax", 0, 4);
    ck_assert_int_eq(pfx_flush(w.c, 0), 0);
    step(&w);
    states_are(&w, 0, 0);
    ck_assert_int_eq(forget_state(&w, key), PFX_ENOENT);
    ck_assert_int_eq(fetch(&w, &old), PFX_ESTALE);
    found(&w, "aaaax", 0, 0, 0);
    keep(&w, "aaaa", 4, PFX_EXACT, 0);
    drop(&w, &old);
    found(&w, "aaaax", 0, 4, 0);
    tier_reconciles(&w, 0, 0, 1);
    teardown(&h, &w);
}
END_TEST

/* ---- E126: a state on the space's root ------------------------------------------------------- */

/* A state of less than a block needs no block. It keeps its space, and is found once there are
 * blocks again to carry a match to it. */
START_TEST(e126_state_on_a_root)
{
    struct host h;
    struct worker w;
    uint32_t slot;
    struct seq s = seq("aa");
    setup(&h, &w, 4, 4);
    uint64_t spaces = counters(&w).spaces;
    w.space = space_of(&w, "t", 1);
    struct held l = look(&w, "aa");
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    ck_assert_int_eq(put(&w, &l, "aa", 0, NULL, NULL), 0); /* not final: no block is cached */
    ck_assert_int_eq(slot_reserve(&w, &l, &slot), 0);
    state_fill(&w, slot, &(struct state){&s, 2, 0});
    ck_assert_int_eq(slot_insert(&w, &l, slot, 2, PFX_EXACT), 0);
    drop(&w, &l);
    states_are(&w, 1, 0);
    pages_are(&w, 64, 0, 0, 0);
    found(&w, "aax", 0, 0, 0); /* nothing carries a match there */
    ck_assert_int_eq(pfx_space_close(w.c, w.space), 0);
    step(&w);
    ck_assert_uint_eq(counters(&w).spaces, spaces + 1);
    ck_assert_uint_eq(space_of(&w, "t", 1), w.space); /* the same one */
    cache(&w, "aabb");
    found(&w, "aax", 0, 2, 0);
    ck_assert_uint_ne(spill(&w, 0).key, 0);
    ck_assert_uint_eq(evict(&w, 64), 1);
    ck_assert_int_eq(pfx_space_close(w.c, w.space), 0);
    states_are(&w, 0, 1);
    ck_assert_uint_eq(counters(&w).spaces, spaces + 1); /* a spilled one keeps it, too */
    w.space = space_of(&w, "t", 1);
    cache(&w, "aabb");
    l = ask(&w, "aax", 0, PFX_FETCH);
    offers(&w, &l, "aax", 2, 0);
    drop(&w, &l);
    ck_assert_uint_eq(evict(&w, 64), 1);
    ck_assert_int_eq(evict_state(&w), 0); /* the last of it */
    ck_assert_int_eq(pfx_space_close(w.c, w.space), 0);
    step(&w);
    ck_assert_uint_eq(counters(&w).spaces, spaces);
    w.space = 0;
    teardown(&h, &w);
}
END_TEST

/* ---- sizes ------------------------------------------------------------------------------ */

/* Slots of 3 GiB: the third begins beyond 2^32. Memory is touched where it is written only. */
START_TEST(b45_states_of_3_gib)
{
    struct host h;
    struct worker w, v;
    const char *text[] = {"aaaabbx", "ccccddx", "eeeeffx"};
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "3", "--snapshot-bytes", "3G");
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    const uint64_t bytes = 3ull << 30;
    ck_assert_uint_eq(pfx_geometry(w.c)->layout.snapshot_bytes, bytes);
    for (uint32_t s = 1; s < 3; s++)
        ck_assert_uint_eq((uintptr_t)pfx_slot_address(w.c, 0, s + 1) -
                              (uintptr_t)pfx_slot_address(w.c, 0, s),
                          bytes);
    for (int i = 0; i < 3; i++)
        keep(&w, text[i], 6, PFX_EXACT, 0);
    for (int i = 0; i < 3; i++)
        found(&v, text[i], 0, 6, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(matched(&v, text[i]), 4); /* blocks are not run over */
    struct pfx_spilled s = spill(&w, 0);            /* no tier: dropped */
    ck_assert_uint_eq(s.dropped, 1);
    ck_assert_uint_eq(s.depth, 6);
    found(&v, text[0], 0, 0, 0);
    found(&v, text[1], 0, 6, 0);
    worker_close(&v);
    teardown(&h, &w);
}
END_TEST

static void odd_size(const char *bytes, const char *devices)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--devices",
               devices, "--snapshots", "2", "--snapshot-bytes", bytes, "--snapshot-swap", "1M");
    worker_open(&w, &h, NULL);
    const char *text[] = {"aaaabbx", "ccccddx", "eeeeffx"};
    for (int i = 0; i < 3; i++) /* the first is spilled by the third */
        keep(&w, text[i], 6, PFX_EXACT, 0);
    states_are(&w, 2, 1);
    for (int turn = 0; turn < 6; turn++) { /* in and out, its neighbours whole */
        struct held l = ask(&w, text[turn % 3], 0, PFX_FETCH);
        offers(&w, &l, text[turn % 3], 6, 0);
        drop(&w, &l);
        states_are(&w, 2, 1);
    }
    ck_assert_uint_eq(counters(&w).snapshot_fetches, 6);
    tier_reconciles(&w, 0, 0, 0);
    teardown(&h, &w);
}

START_TEST(b46_odd_state_sizes)
{
    static const char *const bytes[] = {"1", "7", "63", "65", "100", "4097", "100001"};
    odd_size(bytes[_i], _i % 2 ? "3" : "1");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshots: spaces and sizes");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b18_states_of_tenants_and_adapters);
    tcase_add_test(t, e124_sweep_stays_in_its_space);
    tcase_add_test(t, b48_flush_forgets_states);
    tcase_add_test(t, b48_flush_while_a_spilled_one_is_held);
    if (!on_disk()) /* an evicted block would be on disk still */
        tcase_add_test(t, e126_state_on_a_root);
    tcase_add_test(t, b45_states_of_3_gib);
    tcase_add_loop_test(t, b46_odd_state_sizes, 0, 7);
    suite_add_tcase(s, t);
    return s;
}
