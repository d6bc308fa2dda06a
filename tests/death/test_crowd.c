/*
 * Two and four worker processes on one cache that is far too small for them: every hit's bytes, the
 * audit meanwhile, and every counter at its baseline afterwards.
 */
#include "tests/death/crowd.h"

#include <stdio.h>

enum { BLOCKS = 96, REQUESTS = 6000 };

static void start_host(struct host *h)
{
    char blocks[16];
    snprintf(blocks, sizeof blocks, "%d", BLOCKS);
    HOST_START(h, "--blocks", blocks, "--block-tokens", "8", "--block-bytes", "512");
}

static pfx *open_observer(const struct host *h)
{
    pfx *c = NULL;
    struct pfx_options o = {
        .size = sizeof o, .socket_path = h->socket, .name = "observer", .timeout_ms = 5000 * SLOW};
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    return c;
}

static struct pfx_stats stats_of(pfx *c)
{
    struct pfx_stats s = {.size = sizeof s};
    ck_assert_int_eq(pfx_stats(c, &s), 0);
    return s;
}

/* The five page counts of one consistent copy; negative ones would be huge. */
static void check_sum(pfx *c)
{
    struct pfx_stats s = stats_of(c);
    uint64_t counts[] = {s.blocks_free, s.blocks_private, s.blocks_pinned, s.blocks_idle,
                         s.blocks_inflight};
    uint64_t sum = 0;
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_uint_le(counts[i], BLOCKS);
        sum += counts[i];
    }
    ck_assert_uint_eq(sum, BLOCKS);
}

struct run {
    struct host host;
    struct crowd *crowd;
    unsigned n, n_storms; /* actors; the first ones storm, until the others are done */
    struct actor actor[4];
    struct child child[4];
    pfx *observer;
    uint64_t nodes, spaces; /* before anything was cached */
};

static void run_begin(struct run *r, const char *group)
{
    static const char *const names[] = {"one", "two", "three", "four"};
    struct rng rng = rng_seeded("crowd");
    start_host(&r->host);
    r->observer = open_observer(&r->host);
    r->nodes = stats_of(r->observer).nodes;
    r->spaces = stats_of(r->observer).spaces;
    r->crowd = crowd_new();
    for (unsigned i = 0; i < r->n; i++) {
        bool storm = i < r->n_storms;
        r->actor[i] = (struct actor){.host = &r->host,
                                     .crowd = r->crowd,
                                     .number = i,
                                     .name = names[i],
                                     .group = group,
                                     .seed = rng_next(&rng),
                                     .requests = storm ? 0 : REQUESTS,
                                     .timeout_ms = 5000 * SLOW};
        child_start(&r->child[i], storm ? storm_run : actor_run, &r->actor[i]);
    }
}

static bool all_done(const struct run *r)
{
    for (unsigned i = r->n_storms; i < r->n; i++)
        if (shm_load(&r->crowd->tally[i].requests) < REQUESTS)
            return false;
    return true;
}

static void watch(struct run *r)
{
    while (!all_done(r)) {
        audit_clean(&r->host);
        check_sum(r->observer);
        for (unsigned i = 0; i < r->n_storms; i++)
            child_lives(&r->child[i]);
        for (unsigned i = r->n_storms; i < r->n; i++)
            if (shm_load(&r->crowd->tally[i].requests) < REQUESTS)
                child_lives(&r->child[i]);
        sleep_us(2000);
    }
    crowd_stop(r->crowd);
}

static void check_tallies(struct run *r)
{
    struct tally sum = {0};
    for (unsigned i = 0; i < r->n; i++) {
        child_join(&r->child[i]);
        const struct tally *t = &r->crowd->tally[i];
        ck_assert_uint_gt(t->requests, 100);
        ck_assert_uint_gt(t->verified, 100);
        sum.verified += t->verified;
        sum.hits += t->hits;
        sum.created += t->created;
        sum.worst_us = t->worst_us > sum.worst_us ? t->worst_us : sum.worst_us;
    }
    fprintf(stderr,
            "%u workers: %llu pages compared, %llu hits, %llu created, worst call %llu us\n", r->n,
            (unsigned long long)sum.verified, (unsigned long long)sum.hits,
            (unsigned long long)sum.created, (unsigned long long)sum.worst_us);
    ck_assert_uint_gt(sum.hits, 100);
    ck_assert_uint_gt(sum.created, BLOCKS);
}

static void run_crowd(unsigned n, unsigned n_storms, const char *group)
{
    struct run r = {.n = n, .n_storms = n_storms};
    run_begin(&r, group);
    watch(&r);
    check_tallies(&r);
    struct pfx_stats s = stats_of(r.observer);
    ck_assert_uint_gt(s.evicted_blocks, 0);
    ck_assert_uint_gt(s.duplicate_blocks, 0);
    ck_assert_uint_eq(s.workers, 1);
    ck_assert_uint_eq(s.workers_reaped, 0);
    all_given_back(&r.host, r.observer);

    ck_assert_int_eq(pfx_flush(r.observer, PFX_ALL_SPACES), 0);
    s = stats_of(r.observer);
    ck_assert_uint_eq(s.blocks_free, BLOCKS);
    ck_assert_uint_eq(s.nodes, r.nodes);
    ck_assert_uint_eq(s.spaces, r.spaces);
    all_given_back(&r.host, r.observer);
    pfx_close(r.observer);
    host_stop(&r.host);
    crowd_free(r.crowd);
}

START_TEST(two_workers_share_a_cache)
{
    run_crowd(2, 0, NULL);
}
END_TEST

START_TEST(four_workers_share_a_cache)
{
    run_crowd(4, 0, NULL);
}
END_TEST

/* One group: what one member's requests touch is never another's. Two work asynchronously. */
START_TEST(four_workers_of_a_group_share_a_cache)
{
    run_crowd(4, 2, "engine");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("crowd");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, two_workers_share_a_cache);
    tcase_add_test(t, four_workers_share_a_cache);
    tcase_add_test(t, four_workers_of_a_group_share_a_cache);
    suite_add_tcase(s, t);
    return s;
}
