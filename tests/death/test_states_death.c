/*
 * kill -9 of a worker that has slots, is offered states, or waits for one to move: what it had
 * comes back, once, and nobody else's state is touched.
 */
#include "tests/death/crowd.h"
#include "tests/states.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { SOON_MS = 5000 * SLOW };

#define TURN "aaaabbbbcc"

/* What a child is to do before it is killed; it holds all of it then. */
struct victim {
    struct host *h;
    const char *group;
    unsigned n_slots; /* reserved, filled with garbage; none inserted */
    bool reads;       /* holds what it is offered of TURN in session 7 */
    int moves;        /* submitted, and not waited for: */
};
enum { NOTHING, A_RESERVE, A_FETCH, A_FETCHING_LOOKUP };

static void submit_move(struct worker *w, const struct held *l, int moves)
{
    struct seq s = seq(TURN "x");
    struct pfx_lookup_args args = lookup_args(w, &s);
    args.flags = PFX_FETCH;
    if (moves == A_RESERVE)
        REQUIRE_EQ(pfx_submit_snapshot_reserve(w->c, l->lease, 1), 0);
    if (moves == A_FETCH)
        REQUIRE_EQ(pfx_submit_fetch(w->c, l->lease, 1), 0);
    if (moves == A_FETCHING_LOOKUP)
        REQUIRE_EQ(pfx_submit_lookup(w->c, &args, 1), 0);
}

static void victim_run(struct child *me, void *arg)
{
    const struct victim *v = arg;
    struct worker w;
    worker_open(&w, v->h, v->group);
    w.unchecked = true;
    struct held l = ask(&w, v->reads ? TURN "x" : "zzzz", 7, PFX_QUIET);
    for (unsigned i = 0; i < v->n_slots; i++) {
        uint32_t slot;
        REQUIRE_EQ(slot_reserve(&w, &l, &slot), 0);
        memset(pfx_slot_address(w.c, 0, slot), 0xee, STATE_BYTES);
    }
    submit_move(&w, &l, v->moves);
    child_post(me, l.lease);
    child_wait(me); /* for ever */
}

static uint64_t victim_start(struct child *c, struct victim *v)
{
    child_start(c, victim_run, v);
    return child_wait(c);
}

static void victim_kill(struct worker *w, struct child *c)
{
    child_kill(c, SIGKILL);
    EVENTUALLY(SOON_MS, counters(w).leases == 0);
    step(w);
}

static void setup(struct host *h, struct worker *w, unsigned n_slots, unsigned n_tier)
{
    host_states(h, 32, 4, n_slots, n_tier);
    worker_open(w, h, NULL);
}

static void teardown(struct host *h, struct worker *w)
{
    EVENTUALLY(SOON_MS, counters(w).workers == 1);
    all_given_back(h, w->c);
    slots_all_there(w);
    worker_close(w);
    host_stop(h);
}

/* ---- what it had -------------------------------------------------------------------------- */

/* Between reserve and insert: the slots come back, and nothing that it wrote is ever found. */
START_TEST(killed_between_reserve_and_insert)
{
    struct host h;
    struct worker w;
    struct child c;
    setup(&h, &w, 4, 0);
    cache_final(&w, TURN);
    struct victim v = {.h = &h, .n_slots = 3, .reads = true};
    for (int i = 0; i < 10; i++) {
        victim_start(&c, &v);
        ck_assert_uint_eq(slots_to_get(&w), 1);
        victim_kill(&w, &c);
        ck_assert_uint_eq(slots_to_get(&w), 4);
        found(&w, TURN "x", 7, 0, 0);
    }
    states_are(&w, 0, 0);
    ck_assert_uint_eq(counters(&w).workers_reaped, 10);
    teardown(&h, &w);
}
END_TEST

/* Holding what it was offered: that stays; and if it is displaced meanwhile, its slot comes back
 * with the death, not before. */
START_TEST(killed_while_it_restores)
{
    struct host h;
    struct worker w;
    struct child c;
    setup(&h, &w, 4, 0);
    keep(&w, TURN, 10, PFX_EXACT, 0);
    struct victim v = {.h = &h, .reads = true};
    for (int i = 0; i < 10; i++) {
        victim_start(&c, &v);
        ck_assert_int_eq(evict_state(&w), PFX_ENOENT); /* it is held */
        if (i % 2) {
            w.weights++;
            keep(&w, TURN, 10, PFX_EXACT, 0);
            struct held now = ask(&w, TURN "x", 0, PFX_QUIET);
            ck_assert_uint_eq(slots_to_get(&w), 2); /* the new one and the old one */
            drop(&w, &now);
        }
        victim_kill(&w, &c);
        found(&w, TURN "x", 0, 10, 0);
        struct held now = ask(&w, TURN "x", 0, PFX_QUIET);
        ck_assert_uint_eq(slots_to_get(&w), 3);
        drop(&w, &now);
    }
    teardown(&h, &w);
}
END_TEST

/* The tail that its turn had just saved is its session's, and outlives it. */
static void saver_run(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    keep(&w, TURN, 10, PFX_TAIL, 7);
    child_post(me, 1);
    child_wait(me);
}

START_TEST(killed_after_the_insert)
{
    struct host h;
    struct worker w;
    struct child c;
    setup(&h, &w, 4, 0);
    child_start(&c, saver_run, &h);
    child_wait(&c);
    child_kill(&c, SIGKILL);
    EVENTUALLY(SOON_MS, counters(&w).workers == 1);
    ck_assert_uint_eq(found(&w, TURN "x", 7, 10, 0).is_tail,
                      1); /* another worker goes on with it */
    found(&w, TURN "x", 8, 0, 0);
    teardown(&h, &w);
}
END_TEST

/* ---- groups -------------------------------------------------------------------------------- */

/* A dead member's slots and holds are kept while its group lives, and a mate can use them. */
START_TEST(slots_outlive_their_scheduler)
{
    struct host h;
    struct worker w, rank;
    struct child c;
    setup(&h, &w, 4, 0);
    keep(&w, TURN, 10, PFX_EXACT, 0);
    worker_open(&rank, &h, "engine");
    struct victim v = {.h = &h, .group = "engine", .n_slots = 2, .reads = true};
    uint64_t lease = victim_start(&c, &v);
    ck_assert_uint_eq(slots_to_get(&w), 1);
    child_kill(&c, SIGKILL);
    EVENTUALLY(SOON_MS, counters(&w).workers_reaped == 1);
    ck_assert_uint_eq(slots_to_get(&w), 1); /* a rank may still be writing */
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    if (_i == 0) { /* the mate releases the lease */
        ck_assert_int_eq(release(&rank, lease), 0);
    } else if (_i == 1) { /* it goes on with it */
        uint32_t slot = 0;
        while (++slot <= 4 && pfx_snapshot_cancel(rank.c, lease, slot) != 0)
            continue;
        ck_assert_uint_le(slot, 4);
        ck_assert_uint_eq(slots_to_get(&w), 2);
        ck_assert_int_eq(pfx_snapshot_drop(rank.c, lease), 0);
        ck_assert_uint_eq(slots_to_get(&w), 3);
    }
    worker_close(&rank); /* or it is the last one to go */
    EVENTUALLY(SOON_MS, counters(&w).leases == 0);
    step(&w);
    teardown(&h, &w);
}
END_TEST

/* ---- while something moves ------------------------------------------------------------------- */

enum { ROUNDS = 12 };

static void setup_large(struct host *h, struct worker *w)
{
    HOST_START(h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "1", "--snapshot-bytes", "160M", "--snapshot-swap", "160M");
    worker_open(w, h, NULL);
}

/* Its reserve waits until TURN's state has been spilled: that goes on, or not; the state is whole.
 */
START_TEST(killed_while_a_spill_is_waited_for)
{
    struct host h;
    struct worker w;
    struct child c;
    unsigned under_way = 0;
    setup_large(&h, &w);
    keep(&w, TURN, 10, PFX_EXACT, 0);
    struct victim v = {.h = &h, .moves = A_RESERVE};
    for (int i = 0; i < ROUNDS; i++) {
        victim_start(&c, &v);
        sleep_us(200u * (unsigned)i);
        uint64_t spills = counters(&w).snapshot_spills;
        victim_kill(&w, &c);
        struct held l = ask(&w, TURN "x", 0, PFX_FETCH);
        under_way += spills == counters(&w).snapshot_spills || counters(&w).snapshots == 1;
        offers(&w, &l, TURN "x", 10, 0);
        drop(&w, &l);
        states_are(&w, 1, 0);
        tier_reconciles(&w, 0, 0, 0);
    }
    fprintf(stderr, "%u of %d while it was under way\n", under_way, ROUNDS);
    teardown(&h, &w);
}
END_TEST

START_TEST(killed_while_a_fetch_is_under_way)
{
    struct host h;
    struct worker w;
    struct child c;
    unsigned under_way = 0;
    setup_large(&h, &w);
    keep(&w, TURN, 10, PFX_EXACT, 0);
    struct victim v = {.h = &h, .reads = true, .moves = _i ? A_FETCH : A_FETCHING_LOOKUP};
    v.reads = v.moves == A_FETCH;
    for (int i = 0; i < ROUNDS; i++) {
        spill(&w, 0);
        uint64_t fetches = counters(&w).snapshot_fetches;
        victim_start(&c, &v);
        sleep_us(200u * (unsigned)i);
        under_way += counters(&w).snapshot_fetches == fetches;
        victim_kill(&w, &c);
        struct held l = ask(&w, TURN "x", 0, PFX_FETCH); /* shares what is under way, or begins */
        offers(&w, &l, TURN "x", 10, 0);
        drop(&w, &l);
        ck_assert_uint_eq(counters(&w).snapshot_fetches, fetches + 1);
        states_are(&w, 1, 0);
        tier_reconciles(&w, 0, 0, 0);
    }
    ck_assert_uint_gt(under_way, 0);
    teardown(&h, &w);
}
END_TEST

/* ---- at random ------------------------------------------------------------------------------ */

struct actor_arg {
    struct host *h;
    uint64_t seed;
};

static void random_turn(struct worker *w, struct rng *r)
{
    char text[12] = "aaaabbbbccx";
    text[rng_below(r, 10)] = (char)('a' + rng_below(r, 2));
    struct seq s = seq(text);
    uint64_t session = 1 + rng_below(r, 3);
    uint32_t slot[3], n = 0, depth = 1 + rng_below(r, 10);
    struct held l = ask_seq(w, &s, session, rng_below(r, 2) ? PFX_FETCH : 0);
    offers_seq(w, &l, &s, l.match.snapshot.depth, l.match.snapshot.tier_depth);
    while (n < rng_below(r, 4) && slot_reserve(w, &l, &slot[n]) == 0)
        n++;
    struct pfx_spilled out = {.size = sizeof out};
    if (rng_below(r, 4) == 0)
        pfx_snapshot_spill(w->c, 0, &out);
    if (n && grab(w, &l, 3 - l.n_table) == 0) {
        s.n = 10;
        put_seq(w, &l, &s, PFX_FINAL, NULL, NULL);
        int kind = (int)rng_below(r, 3);
        state_fill(w, slot[0], &(struct state){&s, depth, kind == PFX_TAIL ? session : 0});
        REQUIRE_EQ(slot_insert(w, &l, slot[0], depth, (enum pfx_snapshot_kind)kind), 0);
    }
    if (l.match.snapshot.tier_key && rng_below(r, 2))
        pfx_fetch(w->c, l.lease, &l.match);
    drop(w, &l);
}

static void random_run(struct child *me, void *arg)
{
    const struct actor_arg *a = arg;
    struct rng r = {a->seed};
    struct worker w;
    worker_open(&w, a->h, NULL);
    w.unchecked = true;
    child_post(me, 1);
    for (;;)
        random_turn(&w, &r);
}

START_TEST(killed_with_slots_at_random_points)
{
    struct host h;
    struct worker w;
    struct rng r = rng_seeded("states_death");
    HOST_START(&h, "--blocks", "64", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "8", "--snapshot-bytes", "200K", "--snapshot-swap", "1000K");
    worker_open(&w, &h, NULL);
    audit_clean(&h);
    unsigned fds = count_fds(h.pid);
    for (int i = 0; i < 200; i++) {
        struct actor_arg a = {&h, rng_next(&r)};
        struct child c;
        child_start(&c, random_run, &a);
        child_wait(&c);
        sleep_us(rng_below(&r, 4000 * SLOW));
        child_lives(&c);
        victim_kill(&w, &c);
        for (int k = 0; k < 4; k++) { /* all that is found is whole */
            w.unchecked = true;
            random_turn(&w, &r);
            w.unchecked = false;
        }
        step(&w);
        struct pfx_stats s = counters(&w);
        ck_assert_uint_eq(s.blocks_private + s.blocks_pinned, 0);
        ck_assert_uint_eq(s.leases, 0);
        if (i % 10 == 0)
            slots_all_there(&w);
    }
    ck_assert_uint_gt(counters(&w).snapshot_saves, 200);
    ck_assert_uint_gt(counters(&w).snapshot_fetches, 20);
    EVENTUALLY(SOON_MS, count_fds(h.pid) == fds);
    teardown(&h, &w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("states of the dead");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, killed_between_reserve_and_insert);
    tcase_add_test(t, killed_while_it_restores);
    tcase_add_test(t, killed_after_the_insert);
    tcase_add_loop_test(t, slots_outlive_their_scheduler, 0, 3);
    tcase_add_test(t, killed_while_a_spill_is_waited_for);
    tcase_add_loop_test(t, killed_while_a_fetch_is_under_way, 0, 2);
    tcase_add_test(t, killed_with_slots_at_random_points);
    suite_add_tcase(s, t);
    return s;
}
