/*
 * Snapshot calls at their edges: the order of errors, depths that a lease may and may not name,
 * leases that may not, and flags. Whatever is refused leaves every counter as it was.
 */
#include "tests/client/fixture.h"
#include "tests/states.h"

#include <string.h>

enum { NO_LEASE = 12345 };

/* 32 blocks of 4 tokens, 4 slots, room for 4 spilled. */
struct scene {
    struct host h;
    struct worker w;
};

static void scene_open(struct scene *s)
{
    host_states(&s->h, 32, 4, 4, 4);
    worker_open(&s->w, &s->h, NULL);
}

static void scene_close(struct scene *s)
{
    slots_all_there(&s->w);
    ck_assert_uint_eq(counters(&s->w).leases, 0);
    worker_close(&s->w);
    host_stop(&s->h);
}

/* ---- errors ------------------------------------------------------------------------------ */

/* Each line is wrong in all that follows as well: the first error wins. */
START_TEST(order_of_errors)
{
    struct scene s;
    scene_open(&s);
    cache(&s.w, "aaaabbbb");
    struct held l = look(&s.w, "aaaabbbbx"), other = look(&s.w, "aaaabbbbx");
    uint32_t mine, theirs;
    OK(pfx_snapshot_reserve(s.w.c, l.lease, &mine));
    OK(pfx_snapshot_reserve(s.w.c, other.lease, &theirs));
    const struct {
        int want;
        uint64_t lease;
        uint32_t slot, depth;
        int kind;
    } rows[] = {
        {PFX_EINVAL, NO_LEASE, 0, 99, PFX_TAIL},      /* no such slot */
        {PFX_EINVAL, NO_LEASE, 5, 99, PFX_TAIL},      /* nor that one */
        {PFX_EINVAL, NO_LEASE, theirs, 0, PFX_TAIL},  /* depth 0 */
        {PFX_EINVAL, NO_LEASE, theirs, 99, 3},        /* no such kind */
        {PFX_ESTALE, NO_LEASE, theirs, 99, PFX_TAIL}, /* no such lease */
        {PFX_EINVAL, l.lease, theirs, 99, PFX_TAIL},  /* a tail without a session */
        {PFX_EINVAL, l.lease, theirs, 99, PFX_TAIL_SIBLING},
        {PFX_ESTALE, l.lease, theirs, 99, PFX_EXACT},  /* another lease's slot */
        {PFX_ECONFLICT, l.lease, mine, 99, PFX_EXACT}, /* a depth that is not inserted */
        {PFX_ECONFLICT, l.lease, mine, 9, PFX_EXACT},
        {PFX_ECONFLICT, l.lease, mine, UINT32_MAX, PFX_EXACT},
    };
    for (size_t i = 0; i < LENGTH(rows); i++)
        FAILS(&s.w, rows[i].want,
              pfx_snapshot_insert(s.w.c, rows[i].lease, rows[i].slot, rows[i].depth,
                                  (enum pfx_snapshot_kind)rows[i].kind));
    OK(pfx_snapshot_insert(s.w.c, l.lease, mine, 8, PFX_EXACT)); /* and it is still the lease's */
    FAILS(&s.w, PFX_ESTALE, pfx_snapshot_insert(s.w.c, l.lease, mine, 8, PFX_EXACT)); /* once */
    FAILS(&s.w, PFX_ESTALE, pfx_snapshot_cancel(s.w.c, l.lease, mine));
    FAILS(&s.w, PFX_ESTALE, pfx_snapshot_cancel(s.w.c, l.lease, theirs));
    FAILS(&s.w, 0, pfx_snapshot_drop(s.w.c, l.lease)); /* there is nothing to let go of */
    states_are(&s.w, 1, 0);
    drop(&s.w, &l);
    drop(&s.w, &other);
    scene_close(&s);
}
END_TEST

static void lease_refused(struct scene *s, struct worker *w, uint64_t lease, uint32_t slot)
{
    uint32_t out = 77;
    struct pfx_match m = {.size = sizeof m}, none = m;
    FAILS(w, PFX_ESTALE, pfx_snapshot_reserve(w->c, lease, &out));
    ck_assert_uint_eq(out, 77);
    for (int kind = PFX_EXACT; kind <= PFX_TAIL_SIBLING; kind++)
        FAILS(w, PFX_ESTALE,
              pfx_snapshot_insert(w->c, lease, slot, 4, (enum pfx_snapshot_kind)kind));
    FAILS(w, PFX_ESTALE, pfx_snapshot_cancel(w->c, lease, slot));
    FAILS(w, PFX_ESTALE, pfx_snapshot_drop(w->c, lease));
    FAILS(w, PFX_ESTALE, pfx_fetch(w->c, lease, &m));
    ck_assert_mem_eq(&m, &none, sizeof m);
    step(&s->w);
}

START_TEST(leases_that_may_not)
{
    struct scene s;
    struct worker stranger, mate;
    uint32_t slot;
    scene_open(&s);
    worker_open(&stranger, &s.h, NULL);
    worker_open(&mate, &s.h, "engine");
    keep(&s.w, "aaaabbbb", 8, PFX_EXACT, 0);
    struct held l = ask(&s.w, "aaaabbbbx", 7, 0), theirs = ask(&mate, "aaaabbbbx", 7, 0);
    OK(pfx_snapshot_reserve(s.w.c, l.lease, &slot));
    lease_refused(&s, &stranger, l.lease, slot); /* another group's */
    lease_refused(&s, &mate, l.lease, slot);
    lease_refused(&s, &s.w, theirs.lease, slot);
    lease_refused(&s, &s.w, 0, slot);
    lease_refused(&s, &s.w, l.lease + (1ull << 32), slot);
    offers(&s.w, &l, "aaaabbbbx", 8, 0);

    OK(pfx_flush(s.w.c, 0)); /* from before a flush */
    step(&s.w);
    lease_refused(&s, &s.w, l.lease, slot);
    offers(&s.w, &l, "aaaabbbbx", 8, 0); /* still held, and its bytes */
    drop(&mate, &theirs);
    drop(&s.w, &l);
    lease_refused(&s, &s.w, l.lease, slot); /* released */
    worker_close(&stranger);
    worker_close(&mate);
    scene_close(&s);
}
END_TEST

/* A mate uses the lease as its opener does: slots, offers, sessions. */
START_TEST(lease_of_a_mate)
{
    struct scene s;
    struct worker one, two;
    uint32_t slot;
    scene_open(&s);
    worker_open(&one, &s.h, "engine");
    worker_open(&two, &s.h, "engine");
    keep(&s.w, "aaaabb", 6, PFX_TAIL, 7);
    spill(&s.w, 0);
    struct held l = ask(&one, "aaaabbx", 7, 0), seen = l;
    OK(pfx_fetch(two.c, l.lease, &seen.match));
    step(&two);
    offers(&two, &seen, "aaaabbx", 6, 0);
    ck_assert_uint_eq(seen.match.snapshot.is_tail, 1);
    OK(pfx_snapshot_reserve(one.c, l.lease, &slot));
    struct seq t = seq("aaaa");
    state_fill(&two, slot, &(struct state){&t, 4, 7});
    OK(pfx_snapshot_insert(two.c, l.lease, slot, 4, PFX_TAIL)); /* of the lease's session */
    ck_assert_uint_eq(found(&s.w, "aaaax", 7, 4, 0).is_tail, 1);
    FAILS(&one, PFX_ESTALE, pfx_snapshot_cancel(one.c, l.lease, slot));
    OK(pfx_snapshot_reserve(two.c, l.lease, &slot));
    OK(pfx_snapshot_cancel(one.c, l.lease, slot));
    OK(pfx_snapshot_drop(two.c, l.lease));
    drop(&two, &l);
    worker_close(&one);
    worker_close(&two);
    scene_close(&s);
}
END_TEST

/* ---- depths ------------------------------------------------------------------------------- */

/* Depths from 1 to 20 that a lease may name: the row's bits. Bit d: depth d. */
static void depths_are(struct scene *s, struct held *l, uint32_t to, const char *what)
{
    for (uint32_t depth = 1; depth <= 20; depth++) {
        uint32_t slot;
        OK(pfx_snapshot_reserve(s->w.c, l->lease, &slot));
        int rc = pfx_snapshot_insert(s->w.c, l->lease, slot, depth, PFX_EXACT);
        ck_assert_msg(rc == (depth <= to ? 0 : PFX_ECONFLICT), "%s: depth %u: %s", what, depth,
                      pfx_strerror(rc));
        if (rc)
            OK(pfx_snapshot_cancel(s->w.c, l->lease, slot));
        step(&s->w);
    }
    while (pfx_snapshot_evict(s->w.c) == 0)
        continue;
}

static int write_of(struct scene *s, struct held *l, const char *text, uint32_t flags)
{
    struct seq t = seq(text);
    struct pfx_insert_args in = {
        .size = sizeof in, .flags = flags, .tokens = t.at, .n_written = t.n};
    struct pfx_insert_result r = {.size = sizeof r};
    int rc = pfx_insert(s->w.c, l->lease, &in, NULL, &r);
    step(&s->w);
    return rc;
}

START_TEST(depths_that_a_lease_may_name)
{
    struct scene s;
    scene_open(&s);
    cache_final(&s.w, "aaaabbbbcc");
    struct held l = look(&s.w, "");
    depths_are(&s, &l, 0, "nothing");
    ck_assert_int_eq(grab(&s.w, &l, 5), 0);
    depths_are(&s, &l, 0, "reserved is not inserted");
    drop(&s.w, &l);

    l = look(&s.w, "aaaabbbbccx");
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    depths_are(&s, &l, 10, "matched, and the tail that is held");
    ck_assert_int_eq(grab(&s.w, &l, 2), 0);
    depths_are(&s, &l, 10, "and reserved");
    OK(write_of(&s, &l, "aaaabbbb", 0));
    depths_are(&s, &l, 10, "an insert of no more than it matched");
    OK(write_of(&s, &l, "aaaabbbbccd", 0));
    depths_are(&s, &l, 11, "the latest insert's last tokens");
    OK(write_of(&s, &l, "aaaabbbb", 0)); /* shorter: changes nothing */
    depths_are(&s, &l, 11, "a shorter insert");
    OK(write_of(&s, &l, "aaaabbbbccdd", 0));
    depths_are(&s, &l, 12, "on a boundary");
    OK(write_of(&s, &l, "aaaabbbbccddeee", PFX_FINAL));
    depths_are(&s, &l, 15, "with PFX_FINAL");
    ck_assert_int_eq(cut(&s.w, &l, 3), 0);
    depths_are(&s, &l, 12, "cut");
    drop(&s.w, &l);

    l = look(&s.w, "aaaabbbbccddeeex"); /* the tail's hold ends with a cut */
    depths_are(&s, &l, 15, "a tail");
    ck_assert_int_eq(cut(&s.w, &l, 2), 0);
    depths_are(&s, &l, 8, "a match that was cut");
    ck_assert_int_eq(cut(&s.w, &l, 0), 0);
    depths_are(&s, &l, 0, "all of it");
    drop(&s.w, &l);

    l = look(&s.w, "zzzzyyyyx"); /* the table ends before what is said to be written */
    ck_assert_int_eq(grab(&s.w, &l, 1), 0);
    OK(write_of(&s, &l, "zzzzyyyyx", 0));
    depths_are(&s, &l, 4, "what the table covers");
    ck_assert_int_eq(grab(&s.w, &l, 1), 0);
    depths_are(&s, &l, 4, "reserved after it");
    OK(write_of(&s, &l, "zzzzyy", 0));
    depths_are(&s, &l, 6, "written after it");
    drop(&s.w, &l);
    scene_close(&s);
}
END_TEST

/* ---- flags and limits of a lookup ----------------------------------------------------------- */

static void limited(struct scene *s, struct pfx_lookup_args args, uint32_t depth,
                    uint32_t tier_depth, const char *what)
{
    struct seq t = seq("aaaabbbbccx");
    struct pfx_peeked p = {.size = sizeof p};
    args.size = sizeof args;
    args.tokens = t.at;
    args.n_tokens = t.n;
    struct held l = look_args(&s->w, &args);
    ck_assert_msg(l.match.snapshot.depth == depth && l.match.snapshot.tier_depth == tier_depth,
                  "%s: %u and %u", what, l.match.snapshot.depth, l.match.snapshot.tier_depth);
    offers_seq(&s->w, &l, &t, depth, tier_depth);
    drop(&s->w, &l);
    OK(pfx_peek_full(s->w.c, &args, &p));
    ck_assert_msg(p.snapshot_depth == depth && p.snapshot_tier_depth == tier_depth,
                  "%s: peek %u and %u", what, p.snapshot_depth, p.snapshot_tier_depth);
}

START_TEST(limits_of_a_lookup)
{
    struct scene s;
    scene_open(&s);
    keep(&s.w, "aaaabbbbcc", 9, PFX_EXACT, 0); /* these two will be spilled */
    keep(&s.w, "aaaabbbbcc", 4, PFX_EXACT, 0);
    keep(&s.w, "aaaabbbbcc", 10, PFX_TAIL, 7);
    keep(&s.w, "aaaabbbbcc", 8, PFX_EXACT, 7);
    keep(&s.w, "aaaabbbbcc", 6, PFX_EXACT, 7);
    keep(&s.w, "aaaabbbbcc", 3, PFX_EXACT, 7);
    states_are(&s.w, 4, 2);
    const struct {
        const char *what;
        struct pfx_lookup_args args;
        uint32_t depth, tier_depth;
    } rows[] = {
        {"all", {.session = 7}, 10, 9},
        {"no session", {0}, 8, 9},
        {"no tail", {.session = 7, .flags = PFX_NO_TAIL}, 8, 4},
        {"no match", {.session = 7, .flags = PFX_NO_MATCH}, 0, 0},
        {"multiple of 1", {.session = 7, .snapshot_multiple = 1}, 10, 9},
        {"multiple of 2", {.session = 7, .snapshot_multiple = 2}, 10, 4},
        {"multiple of 3", {.session = 7, .snapshot_multiple = 3}, 6, 9},
        {"multiple of 4", {.session = 7, .snapshot_multiple = 4}, 8, 4},
        {"multiple of 5", {.session = 7, .snapshot_multiple = 5}, 10, 0},
        {"multiple of 6", {.session = 7, .snapshot_multiple = 6}, 6, 0},
        {"multiple of 7", {.session = 7, .snapshot_multiple = 7}, 0, 0},
        {"2^32 - 1", {.session = 7, .snapshot_multiple = UINT32_MAX}, 0, 0},
        {"max_match 10", {.session = 7, .max_match = 10}, 10, 9},
        {"max_match 9", {.session = 7, .max_match = 9}, 8, 9},
        {"max_match 8", {.session = 7, .max_match = 8}, 8, 4},
        {"max_match 7", {.session = 7, .max_match = 7}, 6, 4},
        {"max_match 4", {.session = 7, .max_match = 4}, 3, 4},
        {"max_match 3", {.session = 7, .max_match = 3}, 3, 0},
        {"max_match 2", {.session = 7, .max_match = 2}, 0, 0},
        {"match_multiple 8", {.session = 7, .match_multiple = 8}, 10, 9},
        {"match_multiple 12", {.session = 7, .match_multiple = 12}, 0, 0}, /* cut to 0: no tail */
        {"match_multiple 3 of 8 tokens", {.session = 7, .match_multiple = 3, .max_match = 8}, 0, 0},
        {"and both", {.session = 7, .max_match = 9, .snapshot_multiple = 3}, 6, 9},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        limited(&s, rows[i].args, rows[i].depth, rows[i].tier_depth, rows[i].what);
        struct pfx_lookup_args quiet = rows[i].args; /* offers the same */
        quiet.flags |= PFX_QUIET;
        struct pfx_stats before = counters(&s.w);
        limited(&s, quiet, rows[i].depth, rows[i].tier_depth, rows[i].what);
        counters_equal(&s.w, &before, rows[i].what);
    }
    scene_close(&s);
}
END_TEST

/* At random: every depth, kind and tier, and every peek agrees with its lookup. */
/* A cut ends the hold on the tail: what was offered beyond the match is no part of it any more,
 * although the lease still has the state, whose tokens it may have copied. */
START_TEST(fetch_after_a_truncate)
{
    struct scene s;
    scene_open(&s);
    keep(&s.w, "aaaabbbb", 2, PFX_EXACT, 0);
    struct held l = ask(&s.w, "aaax", 0, 0);
    ck_assert_uint_eq(l.match.matched_tokens, 0);
    ck_assert_uint_eq(l.match.tail_tokens, 3);
    ck_assert_uint_eq(l.match.snapshot.depth, 2);
    OK(grab(&s.w, &l, 2));
    OK(cut(&s.w, &l, 1));
    OK(fetch(&s.w, &l));
    ck_assert_uint_eq(l.match.tail_tokens, 0);
    ck_assert_uint_eq(l.match.snapshot.slot, PFX_NO_SLOT);
    ck_assert_uint_eq(l.match.snapshot.depth, 0);
    drop(&s.w, &l);
    scene_close(&s);
}
END_TEST

START_TEST(peek_agrees_with_lookup)
{
    struct scene s;
    struct rng r = rng_seeded("peek_agrees");
    scene_open(&s);
    for (int i = 0; i < 300; i++) {
        char text[12] = "aaaabbbbccx";
        text[rng_below(&r, 10)] = (char)('a' + rng_below(&r, 2));
        struct seq t = seq(text);
        uint64_t session = rng_below(&r, 3);
        int kind = session ? (int)rng_below(&r, 3) : 0;
        if (rng_below(&r, 3) == 0)
            keep(&s.w, text, 1 + rng_below(&r, 10), (enum pfx_snapshot_kind)kind, session);
        if (rng_below(&r, 8) == 0)
            evict(&s.w, 1 + rng_below(&r, 3));
        struct pfx_lookup_args args = lookup_args(&s.w, &t);
        struct pfx_peeked p = {.size = sizeof p};
        args.session = session;
        args.max_match = rng_below(&r, 12);
        args.snapshot_multiple = rng_below(&r, 4);
        args.flags = rng_below(&r, 4) ? 0 : PFX_NO_TAIL;
        OK(pfx_peek_full(s.w.c, &args, &p));
        struct held l = look_args(&s.w, &args);
        ck_assert_uint_eq(p.matched_tokens, l.match.matched_tokens);
        ck_assert_uint_eq(p.tail_tokens, l.match.tail_tokens);
        ck_assert_uint_eq(p.snapshot_depth, l.match.snapshot.depth);
        ck_assert_uint_eq(p.snapshot_tier_depth, l.match.snapshot.tier_depth);
        offers_seq(&s.w, &l, &t, p.snapshot_depth, p.snapshot_tier_depth);
        drop(&s.w, &l);
    }
    scene_close(&s);
}
END_TEST

/* ---- other daemons ----------------------------------------------------------------------------
 */

/* Caching is off: every call works, nothing is ever found, no slot is ever lost. */
START_TEST(null_cache_takes_states)
{
    struct host h;
    struct worker w;
    uint32_t slot;
    struct pfx_spilled out = {.size = sizeof out};
    HOST_START(&h, "--index", "none", "--blocks", "8", "--block-tokens", "4", "--block-bytes", "64",
               "--snapshots", "2", "--snapshot-bytes", "64", "--snapshot-swap", "64K");
    worker_open(&w, &h, NULL);
    ck_assert_uint_eq(pfx_geometry(w.c)->active, 0);
    for (int i = 0; i < 10; i++) {
        struct held l = ask(&w, "aaaabbx", 7, i % 2 ? PFX_FETCH : 0);
        ck_assert_int_eq(grab(&w, &l, 2), 0);
        ck_assert_int_ge(put(&w, &l, "aaaabb", PFX_FINAL, NULL, NULL), 0);
        OK(slot_reserve(&w, &l, &slot));
        OK(slot_insert(&w, &l, slot, 6, (enum pfx_snapshot_kind)(i % 3)));
        ck_assert_int_eq(slot_insert(&w, &l, slot, 6, PFX_EXACT), PFX_ESTALE);
        OK(slot_reserve(&w, &l, &slot));
        OK(slot_cancel(&w, &l, slot));
        OK(slot_reserve(&w, &l, &slot));
        OK(let_go(&w, &l));
        OK(fetch(&w, &l));
        drop(&w, &l);
        found(&w, "aaaabbx", 7, 0, 0);
    }
    ck_assert_int_eq(evict_state(&w), PFX_ENOENT);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &out), PFX_ENOENT);
    ck_assert_int_eq(forget_state(&w, 1), PFX_ENOENT);
    states_are(&w, 0, 0);
    ck_assert_uint_eq(counters(&w).recompute_tokens, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* A pure recurrent model: blocks are tokens without pages. */
START_TEST(pool_of_states_alone)
{
    struct host h;
    struct worker w;
    struct pfx_pool_view v = {.size = sizeof v};
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "0", "--snapshots",
               "2", "--snapshot-bytes", "192", "--snapshot-swap", "64K");
    worker_open(&w, &h, NULL);
    OK(pfx_pool_view(w.c, 0, &v));
    ck_assert_ptr_null(v.blocks);
    ck_assert_ptr_nonnull(v.slots);
    keep(&w, "aaaabb", 6, PFX_EXACT, 0);
    keep(&w, "aaaabb", 6, PFX_TAIL, 7);
    ck_assert_uint_eq(found(&w, "aaaabbx", 7, 6, 0).is_tail, 0);
    keep(&w, "ccccdddd", 8, PFX_EXACT, 0); /* the third: one is spilled */
    states_are(&w, 2, 1);
    found(&w, "aaaabbx", 0, 0, 6);
    struct held l = ask(&w, "aaaabbx", 0, PFX_FETCH);
    ck_assert_uint_eq(l.match.matched_tokens, 4);
    ck_assert_uint_eq(l.match.tail_tokens, 2);
    offers(&w, &l, "aaaabbx", 6, 0);
    drop(&w, &l);
    ck_assert_uint_eq(matched(&w, "ccccddddx"), 8);
    ck_assert_uint_eq(evict(&w, 16), 4); /* aaaa, its bb, cccc, dddd */
    states_are(&w, 0, 0);
    slots_all_there(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- time ------------------------------------------------------------------------------------ */

static void only_released(pfx *c, const struct held *l, uint32_t slot)
{
    uint32_t more;
    struct pfx_match m = {.size = sizeof m};
    status_is(pfx_snapshot_reserve(c, l->lease, &more), PFX_ESTALE, "reserve");
    status_is(pfx_snapshot_insert(c, l->lease, slot, 4, PFX_EXACT), PFX_ESTALE, "insert");
    status_is(pfx_snapshot_cancel(c, l->lease, slot), PFX_ESTALE, "cancel");
    status_is(pfx_snapshot_drop(c, l->lease), PFX_ESTALE, "drop");
    status_is(pfx_fetch(c, l->lease, &m), PFX_ESTALE, "fetch");
}

/* A reserve of a slot, an insert, or a fetch that timed out: it happens later, and the lease takes
 * nothing but its release. */
START_TEST(timed_out_call_on_a_slot)
{
    struct scene s;
    struct worker hasty;
    uint32_t slot = 0, late = 77;
    scene_open(&s);
    keep(&s.w, "aaaabb", 6, PFX_EXACT, 0);
    spill(&s.w, 0);
    worker_open_timeout(&hasty, &s.h, 200 * SLOW);
    struct held l = ask(&hasty, "aaaabbx", 7, 0);
    offers(&hasty, &l, "aaaabbx", 0, 6);
    OK(slot_reserve(&hasty, &l, &slot));
    host_pause(&s.h);
    int rc = _i == 0   ? pfx_snapshot_reserve(hasty.c, l.lease, &late)
             : _i == 1 ? pfx_snapshot_insert(hasty.c, l.lease, slot, 4, PFX_EXACT)
                       : pfx_fetch(hasty.c, l.lease, &l.match);
    status_is(rc, PFX_ETIMEDOUT, "the call");
    only_released(hasty.c, &l, slot);
    host_resume(&s.h);
    OK(pfx_ping(hasty.c));
    ck_assert_uint_eq(late, 77);
    EVENTUALLY(5000, _i != 1 || counters(&s.w).snapshot_saves == 2);
    EVENTUALLY(5000, _i != 2 || counters(&s.w).snapshot_fetches == 1);
    only_released(hasty.c, &l, slot);
    drop(&hasty, &l);
    states_are(&s.w, _i ? 1 : 0, _i == 2 ? 0 : 1);
    worker_close(&hasty);
    scene_close(&s);
}
END_TEST

/* Without the daemon: a peek says where the states are while it is stopped. */
START_TEST(peek_while_it_is_stopped)
{
    struct scene s;
    struct pfx_peeked p = {.size = sizeof p};
    struct seq t = seq("aaaabbbbccx");
    scene_open(&s);
    keep(&s.w, "aaaabbbbcc", 4, PFX_EXACT, 0);
    spill(&s.w, 0);
    keep(&s.w, "aaaabbbbcc", 10, PFX_TAIL, 7);
    struct pfx_lookup_args args = lookup_args(&s.w, &t);
    args.session = 7;
    host_pause(&s.h);
    OK(pfx_peek_full(s.w.c, &args, &p));
    ck_assert_uint_eq(p.snapshot_depth, 10);
    ck_assert_uint_eq(p.snapshot_tier_depth, 4);
    ck_assert_uint_eq(counters(&s.w).snapshots, 1);
    args.session = 0;
    OK(pfx_peek_full(s.w.c, &args, &p));
    ck_assert_uint_eq(p.snapshot_depth, 0);
    host_resume(&s.h);
    scene_close(&s);
}
END_TEST

/* pfx_close gives back reserved slots, and what was held of offers. */
START_TEST(close_gives_back_slots)
{
    struct scene s;
    struct worker v;
    uint32_t slot;
    scene_open(&s);
    keep(&s.w, "aaaa", 4, PFX_EXACT, 0);
    worker_open(&v, &s.h, NULL);
    struct held l = look(&v, "aaaax");
    for (int i = 0; i < 3; i++)
        OK(slot_reserve(&v, &l, &slot));
    ck_assert_uint_eq(slots_to_get(&s.w), 0);
    worker_close(&v);
    EVENTUALLY(5000, counters(&s.w).leases == 0);
    step(&s.w);
    found(&s.w, "aaaax", 0, 4, 0);
    scene_close(&s); /* all four can be had */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("states");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, order_of_errors);
    tcase_add_test(t, leases_that_may_not);
    tcase_add_test(t, lease_of_a_mate);
    tcase_add_test(t, depths_that_a_lease_may_name);
    tcase_add_test(t, limits_of_a_lookup);
    tcase_add_test(t, fetch_after_a_truncate);
    if (!on_disk()) /* it looks for what is resident */
        tcase_add_test(t, peek_agrees_with_lookup);
    tcase_add_test(t, null_cache_takes_states);
    tcase_add_test(t, pool_of_states_alone);
    tcase_add_test(t, peek_while_it_is_stopped);
    tcase_add_test(t, close_gives_back_slots);
    tcase_add_loop_test(t, timed_out_call_on_a_slot, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
