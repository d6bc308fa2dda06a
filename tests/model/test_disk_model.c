/*
 * Random operations on the daemon's dispatch with a disk tier below a pool that is too small, and
 * restarts, of which many are kills: over a trial disk (trial_swap.h) that takes its time, ends
 * orders in any order, fails, fills up, falls sick and loses bits. See disk_run.h for what is
 * known, disk_check.c for what must hold after each step. (B23 ii.)
 *
 * Everything is tiny, as in test_model.c. A failing run is repeated by PFX_SEED=<printed>.
 */
#include "tests/model/disk_run.h"

#include <stdlib.h>
#include <string.h>

enum { OPERATIONS = 10000 }; /* of each shape */

static struct disk_run *run_new(const struct disk_shape *shape)
{
    struct disk_run *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL);
    r->shape = *shape;
    r->rng = rng_seeded(shape->name);
    r->disk_rng.state = rng_next(&r->rng);
    r->page = calloc(shape->n_blocks + 1, sizeof *r->page);
    r->shadow = calloc(shape->n_blocks + 1, sizeof *r->shadow);
    const struct trial_disk_config config = {.rng = &r->disk_rng,
                                             .slots = {shape->n_disk, shape->n_states_disk},
                                             .grows = shape->grows,
                                             .longest = shape->longest,
                                             .faults = shape->faults};
    r->disk = trial_disk_new(&config);
    for (int s = 0; s < RUN_SPACES; s++)
        r->lives[s].first = r->lives[s].last = r->durable[s] = 1;
    run_start(r);
    if (shape->whole) /* nothing can be written before */
        run_idle(r);
    return r;
}

/* More likely where it hurts: while a scan, or a flush, is under way. */
static bool time_to_restart(struct disk_run *r)
{
    bool flushing = r->x->d.n_flushing > 0;
    return !r->shape.no_restart && one_in(r, run_scanning(r) || flushing ? 10 : 700);
}

/* A run that never met what it is about has tested nothing. */
static void check_met(const struct disk_run *r)
{
    const struct disk_shape *s = &r->shape;
    const struct trial_faults none = {0};
    bool faults = memcmp(&s->faults, &none, sizeof none) != 0;
    REQUIRE(r->seen_disk_hits > 0 && r->seen_fetched > 0);
    REQUIRE((r->faults > 0) == faults);
    REQUIRE(!s->faults.flipped || r->errors > 0);
    REQUIRE(s->no_restart || r->restarts > 5);
    REQUIRE(s->no_restart || s->whole || s->no_flush || r->cut_scans + r->cut_flushes > 0);
    REQUIRE(!s->n_states || (r->seen_states > 0 && r->seen_tiered > 0 && r->states_kept > 0));
}

static void run_shape(const struct disk_shape *shape)
{
    struct disk_run *r = run_new(shape);
    while (r->operations < OPERATIONS) {
        run_operation(r);
        if (r->operations % 64 == 0)
            check_tree(r);
        if (one_in(r, 800))
            run_idle(r);
        if (time_to_restart(r))
            run_restart(r, !one_in(r, 4));
    }
    run_idle(r);
    run_restart(r, false);
    run_idle(r);
    check_met(r);
    run_end(r);
}

#define USUAL .n_spaces = 3, .tick_us = 2000, .longest = 8, .depth = 4, .hash_mask = UINT64_MAX

/* name, block_tokens, n_blocks, n_disk, alphabet. What is not `whole` loses blocks for want of
 * room.
 */
static const struct disk_shape shapes[] = {
    {"disk, room for all", 2, 24, 1200, 2, USUAL, .whole = true, .extras = 3},
    {"disk, room for all, insert", 4, 40, 1200, 2, USUAL, .whole = true, .insert = true},
    {"disk, no restart", 2, 24, 1200, 2, USUAL, .whole = true, .no_restart = true},
    {"disk, no flush", 2, 24, 60, 2, USUAL, .no_flush = true},
    {"disk, no flush, insert", 3, 24, 60, 2, USUAL, .no_flush = true, .insert = true},
    {"disk, tiny", 2, 32, 3, 2, USUAL},
    {"disk, tiny pool", 2, 4, 100, 2, USUAL},
    {"disk, insert", 4, 24, 60, 2, USUAL, .insert = true, .extras = 4},
    {"disk, long texts", 1, 230, 500, 3, USUAL, .long_texts = true},
    {"disk, long texts, grows", 1, 230, 400, 3, USUAL, .long_texts = true, .grows = true,
     .insert = true},
    {"disk, grows", 2, 24, 100, 2, USUAL, .grows = true},
    {"disk, extras", 16, 24, 60, 2, USUAL, .extras = 24},
    {"disk, one hash", 2, 24, 60, 2, .n_spaces = 8, .tick_us = 2000, .longest = 8, .depth = 4,
     .hash_mask = 0, .extras = 4},
    {"disk, slow", 2, 24, 100, 2, .n_spaces = 3, .tick_us = 50000, .longest = 30, .depth = 1,
     .hash_mask = UINT64_MAX},
    {"disk, bad reads", 2, 24, 60, 2, USUAL, .faults = {.read_failed = 20, .flipped = 30}},
    {"disk, bad writes", 2, 24, 60, 2, USUAL,
     .faults = {.write_failed = 30, .full = 60, .refused = 60, .retire_failed = 3, .no_order = 20}},
    {"disk, sick", 2, 24, 60, 2, .n_spaces = 4, .tick_us = 10000, .longest = 8, .depth = 4,
     .hash_mask = 3, .grows = true, .insert = true, .extras = 3,
     .faults = {.read_failed = 50,
                .flipped = 80,
                .write_failed = 50,
                .full = 100,
                .refused = 100,
                .flush_failed = 3,
                .retire_failed = 4,
                .sick = 300,
                .no_order = 30}},
    {"disk, admit 2", 2, 24, 60, 2, USUAL, .admit = 2},
    {"disk, admit 4", 2, 24, 60, 2, USUAL, .admit = 4, .insert = true, .grows = true},
    {"disk, states", 4, 40, 300, 2, USUAL, .n_states = 6, .n_states_disk = 24, .extras = 3},
    {"disk, states, tight", 2, 24, 40, 2, USUAL, .n_states = 3, .n_states_disk = 5, .insert = true},
    {"disk, states, grows", 3, 24, 60, 2, USUAL, .n_states = 8, .n_states_disk = 12, .grows = true},
    {"disk, states, sick", 4, 24, 60, 2, .n_spaces = 4, .tick_us = 10000, .longest = 12, .depth = 4,
     .hash_mask = 3, .grows = true, .extras = 3, .n_states = 5, .n_states_disk = 12,
     .faults = {.read_failed = 30,
                .flipped = 50,
                .write_failed = 50,
                .full = 100,
                .refused = 100,
                .flush_failed = 3,
                .retire_failed = 4,
                .sick = 300,
                .no_order = 30}},
};
START_TEST(b23_disk_operations)
{
    run_shape(&shapes[_i]);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_model");
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++) { /* CK_RUN_CASE names one */
        TCase *t = tcase_create(shapes[i].name);
        tcase_set_timeout(t, 120);
        tcase_add_loop_test(t, b23_disk_operations, i, i + 1);
        suite_add_tcase(s, t);
    }
    return s;
}
