/*
 * Random operations against the daemon and the model; after each the results, all counters and the
 * daemon's own audit must agree, and every state that is offered has the bytes of its prefix.
 * (B23 i.)
 *
 * Everything is tiny, so that splits, merges, tails, duplicates, full pools and full tiers are the
 * rule: 24 to 60 blocks of 1 to 4 tokens over an alphabet of 2 or 3, up to 24 slots and 16 blobs. A
 * failing run is repeated by PFX_SEED=<printed>.
 */
#include "tests/model/run.h"

#include <stdio.h>

/* ---- the run ---------------------------------------- */

struct kind {
    void (*act)(struct run *r);
    uint32_t weight;
};

static const struct kind kinds[] = {
    {do_lookup, 30},  {do_insert, 25}, {do_reserve, 20}, {do_release, 22},   {do_peek, 8},
    {do_truncate, 5}, {do_evict, 4},   {do_space, 2},    {do_connection, 1}, {do_flush, 1},
};

static const struct kind snapshot_kinds[] = {
    {do_snapshot_reserve, 40},
    {do_snapshot_insert, 56},
    {do_snapshot_cancel, 4},
    {do_snapshot_drop, 6},
    {do_snapshot_evict, 4},
    {do_snapshot_spill, 8},
    {do_snapshot_forget, 4},
    {do_fetch, 12},
    {do_turn, 50},
    {do_storm, 1},
};

static void same_counters(struct run *r)
{
    struct pfx_stats got, want = model_stats(&r->m);
    r->b.stats(r->b.self, &got);
    got.nodes = 0; /* how many nodes a tree has is its own business */
    got.size = got.disk_scan_done = got.workers_reaped = 0;
    want.size = 0;
    const uint64_t *a = (const uint64_t *)&got, *b = (const uint64_t *)&want;
    for (size_t i = 0; i < sizeof got / 8; i++)
        REQUIRE_MSG(a[i] == b[i], "counter %zu of pfx_stats is %llu, the model says %llu", i,
                    (unsigned long long)a[i], (unsigned long long)b[i]);
}

static void same_details(struct run *r)
{
    struct backend_details got;
    if (!r->b.details)
        return;
    r->b.details(r->b.self, &got);
    if (r->m.config.n_slots) {
        REQUIRE_EQ(got.slots_free, model_slots_free(&r->m));
        REQUIRE_EQ(got.slots_private, model_slots_private(&r->m));
    }
    REQUIRE_EQ(got.resaved, r->m.resaved);
    REQUIRE_EQ(got.swept, r->m.swept);
    REQUIRE_EQ(got.dropped, r->m.dropped);
    REQUIRE_EQ(got.blobs, model_blobs(&r->m));
}

static const struct kind *pick(struct run *r, const struct kind *from, size_t n)
{
    uint32_t total = 0;
    for (size_t k = 0; k < n; k++)
        total += from[k].weight;
    uint32_t at = dice(r, total);
    while (at >= from->weight)
        at -= from++->weight;
    return from;
}

static void operate(struct run *r)
{
    size_t n = sizeof kinds / sizeof kinds[0];
    size_t n_snapshot = sizeof snapshot_kinds / sizeof snapshot_kinds[0];
    bool snapshots = one_in(r, r->m.config.n_slots ? 3 : 40);
    cast_fates(r);
    if (one_in(r, 500))
        r->sessionless = one_in(r, 3);
    pick(r, snapshots ? snapshot_kinds : kinds, snapshots ? n_snapshot : n)->act(r);
    same_counters(r);
    same_details(r);
    same_transfers(r);
    r->b.audit(r->b.self);
}

static void run_random(struct run *r, uint32_t operations)
{
    model_init(&r->m, &r->shape.config);
    for (int s = 1; s < MODEL_SPACES; s++)
        r->space[s] = UINT64_MAX / 2; /* a number that no space has */
    r->b.attach(r->b.self, 0, NULL);
    model_attach(&r->m, 0, 100);
    for (uint32_t i = 0; i < operations; i++)
        operate(r);
    for (int c = 0; c < MODEL_CONNS; c++)
        if (r->m.conn[c].used) {
            r->b.detach(r->b.self, c, true);
            model_detach(&r->m, c, true);
        }
    same_counters(r);
    same_details(r);
    struct pfx_stats end = model_stats(&r->m);
    REQUIRE_EQ(end.blocks_private + end.blocks_pinned + end.leases, 0);
    r->b.free(r->b.self);
}

static void run_local(const char *name, const struct shape *shape, uint32_t operations)
{
    struct run r = {.rng = rng_seeded(name), .shape = *shape, .local = true};
    uint64_t seed = rng_next(&r.rng);
    r.b = backend_local(&shape->config, shape->hash_mask, seed, &r.fates);
    run_random(&r, operations);
}

/* 200,000 operations in all, over shapes that differ in what they make frequent; the last has many
 * snapshots at every place, that differ in their last tokens and extras. */
static const struct shape shapes[] = {
    {{1, 24, 6, 2, 0, 0}, 2, 0, UINT64_MAX, 0},    {{2, 32, 0, 0, 0, 0}, 2, 0, UINT64_MAX, 0},
    {{3, 40, 4, 16, 0, 0.5}, 2, 1, UINT64_MAX, 0}, {{4, 48, 2, 2, 6, 0}, 3, 1, UINT64_MAX, 0},
    {{4, 60, 6, 0, 0, 0.5}, 2, 0, UINT64_MAX, 0},  {{4, 48, 5, 16, 0, 0}, 2, 1, UINT64_MAX, 0},
    {{4, 40, 24, 16, 0, 0}, 2, 1, UINT64_MAX, 1},
};

START_TEST(b23_200000_operations)
{
    run_local("model", &shapes[_i], 30000);
}
END_TEST

/* B14: the hash forced to a constant, and to 8 bits: slower, never wrong. */
START_TEST(b14_hash_of_0_and_8_bits)
{
    static const uint64_t masks[] = {0, 0xff, 0xffull << 32};
    run_local("model, narrowed hash", &(struct shape){{2, 40, 4, 6, 0, 0}, 3, 1, masks[_i], 0},
              20000);
}
END_TEST

/* The last one: blocks without bytes, states only. */
static const struct shape remote_shapes[] = {
    {{1, 24, 6, 2, 0, 0}, 2, 0, 0, 0},  {{2, 32, 4, 16, 3, 0.5}, 2, 0, 0, 0},
    {{3, 40, 2, 0, 0, 0}, 2, 1, 0, 0},  {{4, 48, 5, 2, 0, 0.5}, 3, 1, 0, 0},
    {{4, 60, 5, 16, 0, 0}, 2, 1, 0, 0},
};

START_TEST(model_library_and_daemon)
{
    const struct shape *shape = &remote_shapes[_i];
    struct run r = {.rng = rng_seeded("model, remote"), .shape = *shape};
    r.b = backend_remote(&shape->config, _i == 4 ? 0 : 64);
    run_random(&r, 4000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, b23_200000_operations, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_loop_test(t, b14_hash_of_0_and_8_bits, 0, 3);
    tcase_add_loop_test(t, model_library_and_daemon, 0,
                        sizeof remote_shapes / sizeof remote_shapes[0]);
    suite_add_tcase(s, t);
    return s;
}
