/*
 * Blobs of the lower tier that are lost, refused, or cannot be read just now (B27, B29, E49, E51):
 * the daemon in this process, over a tier that does as it is told. Miss, error and refusal are
 * three outcomes; only a proven miss retires an entry.
 */
#include "tests/model/local.h"
#include "tests/model/model.h"

#include <string.h>

enum { TEXT_MAX = 32 };

struct lab {
    struct local *x;
    struct backend b;
    enum fate put, get;    /* of all transfers, until said otherwise */
    unsigned n_put, n_get; /* asked for */
};

static enum fate decide(void *arg, bool put)
{
    struct lab *l = arg;
    *(put ? &l->n_put : &l->n_get) += 1;
    return put ? l->put : l->get;
}

static void lab_open(struct lab *l, uint32_t n_slots, uint32_t n_tier)
{
    struct model_config config = {
        .block_tokens = 4, .n_blocks = 32, .n_slots = n_slots, .n_tier = n_tier};
    struct rng r = rng_seeded("lost_blobs");
    *l = (struct lab){.put = FATE_DONE};
    l->x = local_new(&config, UINT64_MAX, rng_next(&r), decide, l);
    l->b = local_backend(l->x);
    l->b.attach(l->x, 0, NULL);
}

/* Nothing is left but what is idle: every slot is free or a state's. */
static void lab_close(struct lab *l)
{
    struct backend_details d;
    struct pfx_stats s;
    l->b.stats(l->x, &s);
    l->b.details(l->x, &d);
    ck_assert_uint_eq(d.slots_private, 0);
    ck_assert_uint_eq(d.slots_free + s.snapshots, l->x->d.n_slots);
    ck_assert_uint_eq(d.blobs, s.snapshots_tiered);
    ck_assert_uint_eq(s.snapshots_tiered, s.snapshot_spills - s.snapshot_fetches -
                                              s.snapshot_forgotten - d.resaved - d.swept -
                                              d.dropped);
    l->b.detach(l->x, 0, true);
    l->b.free(l->x);
}

static struct pfx_stats stats(struct lab *l)
{
    struct pfx_stats s;
    l->b.audit(l->x);
    l->b.stats(l->x, &s);
    return s;
}

static size_t tokens_of(const char *text, uint32_t *to)
{
    size_t n = strlen(text);
    REQUIRE(n <= TEXT_MAX);
    for (size_t i = 0; i < n; i++)
        to[i] = (uint32_t)(unsigned char)text[i];
    return n;
}

static struct pfx_match ask(struct lab *l, const char *text, uint32_t flags, size_t max_match)
{
    uint32_t t[TEXT_MAX];
    struct pfx_lookup_args args = {
        .size = sizeof args, .flags = flags, .tokens = t, .max_match = max_match};
    struct pfx_match m = {.size = sizeof m};
    args.n_tokens = tokens_of(text, t);
    REQUIRE_EQ(l->b.lookup(l->x, 0, &args, &m), 0);
    l->b.audit(l->x);
    return m;
}

static void drop(struct lab *l, const struct pfx_match *m)
{
    REQUIRE_EQ(l->b.release(l->x, 0, m->lease), 0);
    l->b.audit(l->x);
}

static uint8_t byte_of(const char *text, uint32_t depth, int i)
{
    return (uint8_t)(text[depth - 1] * 31 + text[0] * 7 + (int)depth * 13 + i);
}

/* Cache text, and a state of its first `depth` tokens. */
static void keep(struct lab *l, const char *text, uint32_t depth)
{
    uint32_t t[TEXT_MAX], ids[TEXT_MAX], slot;
    struct pfx_match m = ask(l, text, PFX_QUIET, strlen(text));
    struct pfx_insert_args in = {
        .size = sizeof in, .flags = PFX_FINAL, .tokens = t, .n_written = tokens_of(text, t)};
    struct pfx_insert_result r;
    REQUIRE_EQ(l->b.snapshot_drop(l->x, 0, m.lease), 0);
    uint32_t more = (uint32_t)(in.n_written + 3) / 4 - m.n_blocks;
    REQUIRE_EQ(l->b.reserve(l->x, 0, m.lease, more, ids), 0);
    REQUIRE_EQ(l->b.insert(l->x, 0, m.lease, &in, ids, &r), 0);
    REQUIRE_EQ(l->b.snapshot_reserve(l->x, 0, m.lease, &slot), 0);
    for (int i = 0; i < STATE_BYTES; i++)
        l->x->slots[slot][i] = byte_of(text, depth, i);
    REQUIRE_EQ(l->b.snapshot_insert(l->x, 0, m.lease, slot, depth, PFX_EXACT), 0);
    drop(l, &m);
}

static void offers(struct lab *l, const struct pfx_match *m, const char *text, uint32_t depth,
                   uint32_t tier_depth)
{
    REQUIRE_MSG(m->snapshot.depth == depth && m->snapshot.tier_depth == tier_depth,
                "offered at %u and, spilled, at %u", m->snapshot.depth, m->snapshot.tier_depth);
    REQUIRE_EQ(m->snapshot.slot != PFX_NO_SLOT, depth != 0);
    REQUIRE_EQ(m->snapshot.tier_key != 0, tier_depth != 0);
    for (int i = 0; depth && i < STATE_BYTES; i++)
        REQUIRE_EQ(l->x->slots[m->snapshot.slot][i], byte_of(text, depth, i));
}

static void found(struct lab *l, const char *text, uint32_t depth, uint32_t tier_depth)
{
    struct pfx_match m = ask(l, text, PFX_QUIET, 0);
    offers(l, &m, text, depth, tier_depth);
    drop(l, &m);
}

static int fetch(struct lab *l, struct pfx_match *m)
{
    int status = l->b.fetch(l->x, 0, m->lease, m);
    l->b.audit(l->x);
    return status;
}

static struct pfx_spilled spill(struct lab *l)
{
    struct pfx_spilled out;
    REQUIRE_EQ(l->b.snapshot_spill(l->x, 0, 0, &out), 0);
    l->b.audit(l->x);
    return out;
}

/* The deep one is spilled, the shallow one is not. */
static void deep_and_shallow(struct lab *l)
{
    keep(l, "aaaabbbb", 8);
    keep(l, "aaaabbbb", 4);
    ck_assert_uint_eq(spill(l).depth, 8);
    found(l, "aaaabbbbx", 4, 8);
}

/* ---- lost ---------------------------------------------------------------------------------- */

/* A part of it is missing: the whole of it is a miss, never half of it. What it was restored beside
 * is untouched, its blocks still match, and nobody is offered it again. */
START_TEST(b27_lost_blob_is_no_state)
{
    struct lab l;
    lab_open(&l, 4, 4);
    deep_and_shallow(&l);
    l.get = FATE_MISS;
    struct pfx_match m;
    if (_i == 0) {
        m = ask(&l, "aaaabbbbx", 0, 0);
        offers(&l, &m, "aaaabbbbx", 4, 8);
        ck_assert_int_eq(fetch(&l, &m), 0);
    } else {
        m = ask(&l, "aaaabbbbx", PFX_FETCH, 0);
    }
    offers(&l, &m, "aaaabbbbx", 4, 0);
    ck_assert_uint_eq(m.matched_tokens, 8);
    ck_assert_int_eq(fetch(&l, &m), 0); /* no second attempt */
    drop(&l, &m);
    ck_assert_uint_eq(l.n_get, 1);
    struct pfx_stats s = stats(&l);
    ck_assert_uint_eq(s.snapshots, 1);
    ck_assert_uint_eq(s.snapshots_tiered, 0);
    ck_assert_uint_eq(s.snapshot_forgotten, 1);
    ck_assert_uint_eq(s.snapshot_fetches, 0);
    ck_assert_uint_eq(s.snapshot_evictions, 0);
    for (int i = 0; i < 100; i++) {
        found(&l, i % 2 ? "aaaabbbbx" : "aaaax", 4, 0);
        found(&l, "cccc", 0, 0);
    }
    l.get = FATE_DONE;
    keep(&l, "aaaabbbb", 8); /* and another one may stand in its place */
    found(&l, "aaaabbbbx", 8, 0);
    lab_close(&l);
}
END_TEST

/* Two hold it, one asks: the other learns it at its own fetch, without another attempt. */
START_TEST(b29_lost_while_two_hold_it)
{
    struct lab l;
    lab_open(&l, 4, 4);
    deep_and_shallow(&l);
    struct pfx_match one = ask(&l, "aaaabbbbx", 0, 0), two = ask(&l, "aaaabbbbx", 0, 0);
    l.get = FATE_MISS;
    ck_assert_int_eq(fetch(&l, &one), 0);
    offers(&l, &one, "aaaabbbbx", 4, 0);
    ck_assert_int_eq(fetch(&l, &two), 0);
    offers(&l, &two, "aaaabbbbx", 4, 0);
    ck_assert_uint_eq(l.n_get, 1);
    ck_assert_uint_eq(stats(&l).snapshot_forgotten, 1);
    drop(&l, &one);
    drop(&l, &two);
    lab_close(&l);
}
END_TEST

/* Four warm turns over a dead blob: one attempt, one miss, and one spill for it. */
START_TEST(e49_dead_key_is_tried_once)
{
    struct lab l;
    lab_open(&l, 2, 4);
    keep(&l, "aaaabbbb", 8);
    spill(&l);
    keep(&l, "cccc", 4);
    keep(&l, "dddd", 4); /* now all slots are in use: a fetch must spill one */
    l.get = FATE_MISS;
    for (int turn = 0; turn < 4; turn++) {
        struct pfx_match m = ask(&l, "aaaabbbbx", PFX_FETCH, 0);
        offers(&l, &m, "aaaabbbbx", 0, 0);
        ck_assert_uint_eq(m.matched_tokens, 8);
        drop(&l, &m);
    }
    struct pfx_stats s = stats(&l);
    ck_assert_uint_eq(l.n_get, 1);
    ck_assert_uint_eq(l.n_put, 2); /* the one by hand, and one to make room */
    ck_assert_uint_eq(s.snapshot_forgotten, 1);
    ck_assert_uint_eq(s.snapshot_evictions, 0);
    ck_assert_uint_eq(s.snapshots + s.snapshots_tiered, 2); /* nobody else was lost */
    lab_close(&l);
}
END_TEST

/* ---- not now ----------------------------------------------------------------------------- */

/* It cannot be read: the caller is told, and goes on with less; the entry is as it was. */
START_TEST(b27_unreadable_blob_stays)
{
    struct lab l;
    lab_open(&l, 4, 4);
    deep_and_shallow(&l);
    l.get = _i ? FATE_REFUSED : FATE_ERROR;
    for (int turn = 0; turn < 3; turn++) {
        struct pfx_match m = ask(&l, "aaaabbbbx", 0, 0);
        offers(&l, &m, "aaaabbbbx", 4, 8);
        ck_assert_int_eq(fetch(&l, &m), PFX_EIO);
        offers(&l, &m, "aaaabbbbx", 4, 0);
        drop(&l, &m);
        m = ask(&l, "aaaabbbbx", PFX_FETCH, 0);
        offers(&l, &m, "aaaabbbbx", 4, 0);
        drop(&l, &m);
        found(&l, "aaaabbbbx", 4, 8);
    }
    struct pfx_stats s = stats(&l);
    ck_assert_uint_eq(s.snapshot_forgotten, 0);
    ck_assert_uint_eq(s.snapshots_tiered, 1);
    ck_assert_uint_eq(l.n_get, 6);
    l.get = FATE_DONE; /* the disk is back */
    struct pfx_match m = ask(&l, "aaaabbbbx", PFX_FETCH, 0);
    offers(&l, &m, "aaaabbbbx", 8, 0);
    drop(&l, &m);
    ck_assert_uint_eq(stats(&l).snapshot_fetches, 1);
    lab_close(&l);
}
END_TEST

/* One slot, full of A's bytes: B's restore fails, and what B is offered is nothing. */
START_TEST(b27_failed_restore_shows_nobodys_bytes)
{
    struct lab l;
    lab_open(&l, 1, 2);
    keep(&l, "bbbb", 4);
    spill(&l);
    keep(&l, "aaaa", 4);
    l.get = _i ? FATE_MISS : FATE_ERROR;
    struct pfx_match m = ask(&l, "bbbbx", PFX_FETCH, 0);
    offers(&l, &m, "bbbbx", 0, 0);
    drop(&l, &m);
    found(&l, "aaaax", 0, 4); /* had to make room, and is whole */
    found(&l, "bbbbx", 0, _i ? 0 : 4);
    l.get = FATE_DONE;
    m = ask(&l, "aaaax", PFX_FETCH, 0);
    offers(&l, &m, "aaaax", 4, 0);
    drop(&l, &m);
    lab_close(&l);
}
END_TEST

/* ---- refused, and not written ---------------------------------------------------------------- */

/* A spill that is refused, or that fails on the way: dropped, counted as that, no key is offered.
 */
START_TEST(e51_spill_that_fails)
{
    static const enum fate fates[] = {FATE_REFUSED, FATE_ERROR, FATE_MISS};
    struct lab l;
    lab_open(&l, 2, 4);
    keep(&l, "aaaabbbb", 8);
    l.put = fates[_i];
    keep(&l, "cccc", 4);
    keep(&l, "dddd", 4); /* needs the first one's slot */
    found(&l, "aaaabbbbx", 0, 0);
    found(&l, "ccccx", 4, 0);
    found(&l, "ddddx", 4, 0);
    struct pfx_stats s = stats(&l);
    ck_assert_uint_eq(l.n_put, 1);
    ck_assert_uint_eq(s.snapshots_tiered, 0);
    ck_assert_uint_eq(s.snapshot_spills, 0);
    ck_assert_uint_eq(s.snapshot_evictions, 1);
    struct pfx_match m = ask(&l, "aaaabbbbx", PFX_FETCH, 0);
    offers(&l, &m, "aaaabbbbx", 0, 0);
    drop(&l, &m);
    ck_assert_uint_eq(l.n_get, 0);
    lab_close(&l);
}
END_TEST

/* By a call: the answer says that it was dropped. One entry goes, not two. */
START_TEST(e51_spill_by_a_call_that_fails)
{
    static const enum fate fates[] = {FATE_REFUSED, FATE_ERROR, FATE_MISS};
    struct lab l;
    struct pfx_spilled out;
    lab_open(&l, 4, 4);
    keep(&l, "aaaabbbb", 8);
    keep(&l, "cccc", 4);
    l.put = fates[_i];
    out = spill(&l);
    ck_assert_uint_eq(out.depth, 8);
    ck_assert_uint_eq(out.dropped, 1);
    ck_assert_uint_eq(out.key, 0);
    found(&l, "aaaabbbbx", 0, 0);
    found(&l, "ccccx", 4, 0);
    ck_assert_uint_eq(l.n_put, 1);
    ck_assert_uint_eq(stats(&l).snapshot_evictions, 1);
    lab_close(&l);
}
END_TEST

/* The one that goes next has been stored, and another worker forgets it before the spiller looks
 * again: its call has taken that one, and no second one. */
START_TEST(e51_spill_that_is_forgotten_at_once)
{
    struct lab l;
    struct pfx_spilled none;
    struct request rq = {.op = OP_SNAPSHOT_SPILL};
    struct wire_completion c;
    lab_open(&l, 4, 4);
    l.b.attach(l.x, 1, NULL);
    keep(&l, "aaaabbbb", 8);
    keep(&l, "cccc", 4);
    ck_assert(!local_begin(l.x, 0, &rq, &c));
    while (stats(&l).snapshots_tiered == 0)
        dispatch_background(&l.x->d), daemon_publish(&l.x->d);
    uint32_t t[TEXT_MAX];
    struct pfx_lookup_args args = {.size = sizeof args, .tokens = t};
    struct pfx_match m = {.size = sizeof m};
    args.n_tokens = tokens_of("aaaabbbbx", t);
    ck_assert_int_eq(l.b.lookup(l.x, 1, &args, &m), 0);
    ck_assert_int_eq(l.b.snapshot_forget(l.x, 1, m.snapshot.tier_key), 0);
    l.b.release(l.x, 1, m.lease);
    ck_assert(local_go_on(l.x, 0, &c));
    ck_assert_int_eq(c.status, 0);
    ck_assert_uint_eq(c.number.n, m.snapshot.tier_key);
    ck_assert_uint_eq(c.number.depth, 8);
    ck_assert_uint_eq(stats(&l).snapshot_spills, 1);
    found(&l, "ccccx", 4, 0);
    ck_assert_int_eq(l.b.snapshot_spill(l.x, 1, 0, &none), 0); /* the other one, for its own sake */
    l.b.detach(l.x, 1, true);
    lab_close(&l);
}
END_TEST

/* Making room for a fetch never evicts what is being fetched: not from one slot and one blob. */
START_TEST(e49_fetch_makes_room_beside_itself)
{
    struct lab l;
    lab_open(&l, 1, 1);
    keep(&l, "bbbb", 4);
    spill(&l);
    keep(&l, "aaaa", 4);
    struct pfx_match m = ask(&l, "bbbbx", PFX_FETCH, 0);
    offers(&l, &m, "bbbbx", 4, 0);
    drop(&l, &m);
    found(&l, "aaaax", 0, 0); /* the tier was full of what was being fetched */
    ck_assert_uint_eq(stats(&l).snapshot_evictions, 1);
    lab_close(&l);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("lost blobs");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, b27_lost_blob_is_no_state, 0, 2);
    tcase_add_test(t, b29_lost_while_two_hold_it);
    tcase_add_test(t, e49_dead_key_is_tried_once);
    tcase_add_loop_test(t, b27_unreadable_blob_stays, 0, 2);
    tcase_add_loop_test(t, b27_failed_restore_shows_nobodys_bytes, 0, 2);
    tcase_add_loop_test(t, e51_spill_that_fails, 0, 3);
    tcase_add_loop_test(t, e51_spill_by_a_call_that_fails, 0, 3);
    tcase_add_test(t, e51_spill_that_is_forgotten_at_once);
    tcase_add_test(t, e49_fetch_makes_room_beside_itself);
    suite_add_tcase(s, t);
    return s;
}
