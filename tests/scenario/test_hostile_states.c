/* Workers that lie about slots: numbers beyond 32 bits, kinds that are none, flags, reserved words,
 * strangers' leases. What an honest worker holds is untouched, and no slot is lost. */
#include "tests/raw.h"
#include "tests/states.h"

#include "client/prefixd.h"

#include <string.h>

enum { N_SLOTS = 6 };

struct scene {
    struct host h;
    struct worker honest;
    struct held held; /* offered a resident state and a spilled one; has a slot of its own */
    uint32_t slot;
    struct raw liar;
    uint64_t lease; /* the liar's own; of a session */
};

static uint64_t liar_lease(struct raw *r, uint64_t session)
{
    struct request rq = {.op = OP_LOOKUP, .flags = RF_NO_MATCH, .lookup = {.session = session}};
    struct wire_completion c = raw_call(r, rq);
    REQUIRE_EQ(c.status, 0);
    return c.lease;
}

static void scene_open(struct scene *s)
{
    host_states(&s->h, 32, 4, N_SLOTS, 4);
    worker_open(&s->honest, &s->h, NULL);
    s->honest.weights = 42;
    keep(&s->honest, "aaaabbbbcc", 10, PFX_EXACT, 0);
    spill(&s->honest, 0);
    keep(&s->honest, "aaaabbbbcc", 8, PFX_TAIL, 7);
    s->held = ask(&s->honest, "aaaabbbbccx", 7, 0);
    ck_assert_int_eq(slot_reserve(&s->honest, &s->held, &s->slot), 0);
    memset(pfx_slot_address(s->honest.c, 0, s->slot), 0x42, STATE_BYTES);
    raw_open(&s->liar, &s->h, "liar");
    s->lease = liar_lease(&s->liar, 7);
}

static void scene_holds(struct scene *s)
{
    const uint8_t *mine = pfx_slot_address(s->honest.c, 0, s->slot);
    step(&s->honest);
    offers(&s->honest, &s->held, "aaaabbbbccx", 8, 10);
    for (int i = 0; i < STATE_BYTES; i++)
        REQUIRE_EQ(mine[i], 0x42);
}

static void scene_close(struct scene *s)
{
    scene_holds(s);
    raw_close(&s->liar);
    EVENTUALLY(5000, counters(&s->honest).workers == 1);
    ck_assert_int_eq(fetch(&s->honest, &s->held), 0); /* it is still there to be had */
    offers(&s->honest, &s->held, "aaaabbbbccx", 10, 0);
    ck_assert_int_eq(slot_cancel(&s->honest, &s->held, s->slot), 0);
    drop(&s->honest, &s->held);
    slots_all_there(&s->honest);
    worker_close(&s->honest);
    host_stop(&s->h);
}

static int liar_insert(struct scene *s, uint16_t flags, uint64_t lease, uint64_t slot,
                       uint32_t depth, uint32_t kind)
{
    struct request rq = {.op = OP_SNAPSHOT_INSERT,
                         .flags = flags,
                         .lease = lease,
                         .number = {.n = slot, .depth = depth, .kind = kind}};
    return raw_call(&s->liar, rq).status;
}

static int liar_number(struct scene *s, uint16_t op, uint16_t flags, uint64_t lease, uint64_t n)
{
    struct request rq = {.op = op, .flags = flags, .lease = lease, .number = {.n = n}};
    return raw_call(&s->liar, rq).status;
}

START_TEST(hostile_slot_numbers)
{
    struct scene s;
    scene_open(&s);
    struct wire_completion c =
        raw_call(&s.liar, (struct request){.op = OP_SNAPSHOT_RESERVE, .lease = s.lease});
    ck_assert_int_eq(c.status, 0);
    uint64_t own = c.number.slot;
    ck_assert_uint_ne(own, s.slot);
    const uint64_t none[] = {0,          N_SLOTS + 1,        UINT32_MAX,      1ull << 32,
                             UINT64_MAX, own + (1ull << 32), own | 1ull << 63};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        ck_assert_int_eq(liar_insert(&s, 0, s.lease, none[i], 4, 0), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_CANCEL, 0, s.lease, none[i]), PFX_EINVAL);
        scene_holds(&s);
    }
    const uint32_t kinds[] = {3, 4, 255, 256, 65536, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        ck_assert_int_eq(liar_insert(&s, 0, s.lease, own, 4, kinds[i]), PFX_EINVAL);
    for (uint16_t flag = 1; flag; flag = (uint16_t)(flag << 1)) {
        ck_assert_int_eq(liar_insert(&s, flag, s.lease, own, 4, 0), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_CANCEL, flag, s.lease, own), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_RESERVE, flag, s.lease, 0), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_EVICT, flag, 0, 0), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_SPILL, flag, 0, 0), PFX_EINVAL);
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_FORGET, flag, 0, 0), PFX_EINVAL);
        scene_holds(&s);
    }
    ck_assert_int_eq(liar_insert(&s, 0, s.lease, own, 0, 0), PFX_EINVAL);
    const uint32_t depths[] = {1, 4, 1u << 31, UINT32_MAX}; /* it holds no tokens */
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(liar_insert(&s, 0, s.lease, own, depths[i], 0), PFX_ECONFLICT);
    uint64_t nobody = liar_lease(&s.liar, 0); /* the library refuses this by itself */
    ck_assert_int_eq(liar_insert(&s, 0, nobody, own, 4, PFX_TAIL), PFX_EINVAL);
    ck_assert_int_eq(liar_insert(&s, 0, nobody, own, 4, PFX_TAIL_SIBLING), PFX_EINVAL);
    ck_assert_int_eq(liar_insert(&s, 0, nobody, own, 4, PFX_EXACT), PFX_ESTALE);
    /* strangers' leases and slots */
    ck_assert_int_eq(liar_insert(&s, 0, s.lease, s.slot, 4, 0), PFX_ESTALE);
    ck_assert_int_eq(liar_insert(&s, 0, s.held.lease, s.slot, 8, 0), PFX_ESTALE);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_CANCEL, 0, s.held.lease, s.slot), PFX_ESTALE);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_RESERVE, 0, s.held.lease, 0), PFX_ESTALE);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_DROP, 0, s.held.lease, 0), PFX_ESTALE);
    ck_assert_int_eq(liar_number(&s, OP_FETCH, 0, s.held.lease, 0), PFX_ESTALE);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_CANCEL, 0, s.lease, own), 0);
    scene_close(&s);
}
END_TEST

/* Numbers that are allowed and large. */
START_TEST(hostile_large_numbers)
{
    struct scene s;
    scene_open(&s);
    keep(&s.honest, "ccccdddd", 8, PFX_EXACT, 0); /* may go: nobody holds it */
    const uint64_t keys[] = {0, 1, UINT32_MAX, 1ull << 32, UINT64_MAX, 1ull << 63};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_FORGET, 0, 0, keys[i]), PFX_ENOENT);
    struct request rq = {.op = OP_SNAPSHOT_SPILL, .number = {.n = 1ull << 32}};
    struct wire_completion c = raw_call(&s.liar, rq); /* a gate above every depth, not 0 */
    ck_assert_int_eq(c.status, 0);
    ck_assert_uint_eq(c.number.dropped, 1);
    ck_assert_uint_eq(c.number.depth, 8);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_SPILL, 0, 0, UINT64_MAX), PFX_ENOENT);
    ck_assert_int_eq(liar_number(&s, OP_SNAPSHOT_EVICT, 0, 0, UINT64_MAX), PFX_ENOENT);
    scene_close(&s);
}
END_TEST

/* ---- at random -------------------------------------------------------------------------- */

static uint64_t odd_slot(struct rng *r, uint64_t last)
{
    switch (rng_below(r, 8)) {
    case 0:
        return rng_next(r);
    case 1:
        return (uint64_t)rng_below(r, 8) << 32 | rng_below(r, 8);
    case 2:
        return rng_below(r, N_SLOTS + 2);
    default:
        return last;
    }
}

/* last: the slot that it was given last. */
static struct request odd_record(struct rng *r, const uint64_t *leases, uint64_t last)
{
    struct request rq = {.op = (uint16_t)(OP_SNAPSHOT_RESERVE + rng_below(r, 7)),
                         .flags = (uint16_t)(rng_below(r, 8) ? 0 : rng_next(r)),
                         .lease = leases[rng_below(r, 2) ? 0 : rng_below(r, 4)]};
    for (int i = 0; i < 6; i++)
        rq.raw[i] = rng_below(r, 4) ? 0 : rng_next(r);
    rq.number.n = odd_slot(r, last);
    rq.number.depth = rng_below(r, 4) ? rng_below(r, 14) : (uint32_t)rng_next(r);
    rq.number.kind = rng_below(r, 4) ? rng_below(r, 3) : (uint32_t)rng_next(r);
    if (rng_below(r, 12) == 0)
        rq.op = OP_FETCH;
    if (rng_below(r, 100) == 0)
        rq = (struct request){.op = OP_RELEASE, .lease = leases[0]};
    return rq;
}

/* Its lease holds "aaaabbbb", of session 7, so that inserts may succeed. */
static uint64_t matching_lease(struct scene *s)
{
    static const uint32_t text[] = {'a', 'a', 'a', 'a', 'b', 'b', 'b', 'b'};
    memcpy(s->liar.arena, text, sizeof text);
    struct request rq = {
        .op = OP_LOOKUP_SLOW,
        .flags = RF_LAST,
        .slow = {.session = 7, .n_tokens = 8, .max_match = 8, .multiple = 4, .piece = 8}};
    struct wire_completion c = raw_call(&s->liar, rq);
    REQUIRE_EQ(c.status, 0);
    REQUIRE_EQ(c.lookup.where.depth, 2);
    return c.lease;
}

START_TEST(hostile_slots_at_random)
{
    struct scene s;
    struct rng r = rng_seeded("hostile_states");
    unsigned done[OP_COUNT] = {0};
    scene_open(&s);
    uint64_t leases[4] = {matching_lease(&s), s.held.lease, s.lease, 12345}, last = 1;
    for (int i = 0; i < 20000; i++) {
        struct request rq = odd_record(&r, leases, last);
        struct wire_completion c = raw_call(&s.liar, rq);
        ck_assert_msg(c.status >= PFX_EMISMATCH && c.status <= 0, "op %u: %d", rq.op, c.status);
        REQUIRE(c.status != 0 || rq.lease != s.held.lease || rq.op == OP_SNAPSHOT_EVICT ||
                rq.op == OP_SNAPSHOT_SPILL || rq.op == OP_SNAPSHOT_FORGET);
        done[rq.op] += c.status == 0;
        if (rq.op == OP_SNAPSHOT_RESERVE && c.status == 0)
            last = c.number.slot;
        if (rq.op == OP_RELEASE)
            leases[0] = matching_lease(&s);
        if (i % 40 == 0)
            scene_holds(&s);
    }
    static const uint16_t reached[] = {OP_SNAPSHOT_RESERVE, OP_SNAPSHOT_INSERT, OP_SNAPSHOT_CANCEL,
                                       OP_SNAPSHOT_DROP,    OP_SNAPSHOT_EVICT,  OP_SNAPSHOT_SPILL};
    for (size_t i = 0; i < sizeof reached / sizeof reached[0]; i++)
        ck_assert_msg(done[reached[i]] > 0, "op %u never succeeded", reached[i]);
    scene_close(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hostile: slots");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, hostile_slot_numbers);
    tcase_add_test(t, hostile_large_numbers);
    tcase_add_test(t, hostile_slots_at_random);
    suite_add_tcase(s, t);
    return s;
}
