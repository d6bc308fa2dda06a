/*
 * The daemon and workers of its library as threads over one mapping of each region. Under a thread
 * sanitizer (tools/matrix.sh tsan) whatever both touch without an order between them is a failure:
 * there is no suppression. Bytes are compared as in other builds.
 *
 *      crowd     synchronous calls of all kinds, and a storm of asynchronous ones: tests/death
 *      movers    a pool and slots that are too small, over a disk: fetch, spill, evict, snapshots
 *      watchers  pfx_peek and pfx_stats, which ask nobody
 */
#include "tests/death/crowd.h"
#include "tests/matrix/inside.h"
#include "tests/refuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACTORS = 3, REQUESTS = 1500 };

struct hand_over {
    pthread_t thread;
    child_fn *fn; /* as a child process would be given it */
    void *arg;
};

static void *begin(void *arg)
{
    struct hand_over *h = arg;
    h->fn(NULL, h->arg);
    return NULL;
}

static void thread_begin(struct hand_over *h, child_fn *fn, void *arg)
{
    *h = (struct hand_over){.fn = fn, .arg = arg};
    REQUIRE_EQ(pthread_create(&h->thread, NULL, begin, h), 0);
}

static void thread_end(struct hand_over *h)
{
    REQUIRE_EQ(pthread_join(h->thread, NULL), 0);
}

static pfx *attach(const struct host *h, const char *name)
{
    pfx *c;
    struct pfx_options o = {
        .size = sizeof o, .socket_path = h->socket, .name = name, .timeout_ms = 30000 * SLOW};
    int rc = pfx_open(&o, &c);
    REQUIRE_MSG(rc == 0, "pfx_open: %s", pfx_why(NULL));
    return c;
}

static struct pfx_stats stats_of(pfx *c)
{
    struct pfx_stats s = {.size = sizeof s};
    REQUIRE_EQ(pfx_stats(c, &s), 0);
    return s;
}

/* ---- watchers ------------------------------------------------------------------------------ */

/* Counters that only grow do, and the five page counts sum, at every moment. */
static void watch(struct child *me, void *arg)
{
    const struct actor *a = arg;
    struct rng rng = {a->seed};
    struct story story;
    pfx *c = attach(a->host, a->name);
    uint32_t bt = pfx_geometry(c)->layout.block_tokens;
    uint64_t lookups = 0;
    while (!shm_load_acquire(&a->crowd->stop)) {
        struct pfx_stats s = stats_of(c);
        REQUIRE_EQ(s.blocks_free + s.blocks_private + s.blocks_pinned + s.blocks_idle +
                       s.blocks_inflight,
                   pfx_geometry(c)->n_blocks);
        REQUIRE(s.lookups >= lookups);
        lookups = s.lookups;
        story_draw(&story, &rng, bt, 0);
        ssize_t n = pfx_peek(c, 0, story.tokens, story_tokens(&story, bt));
        REQUIRE(n >= 0 && (size_t)n <= story_tokens(&story, bt));
        sleep_us(100);
    }
    pfx_close(c);
}

/* ---- crowd ------------------------------------------------------------------------------------
 */

START_TEST(threads_over_one_mapping)
{
    struct rng rng = rng_seeded("threads over one mapping");
    struct inside in;
    struct hand_over t[ACTORS + 2];
    struct actor a[ACTORS + 2];
    struct crowd *crowd = crowd_new();
    inside_start(&in, (const char *const[]){"--blocks", "40", "--block-tokens", "4",
                                            "--block-bytes", "64", "--log-level", "error", NULL});
    for (unsigned i = 0; i < ACTORS + 2; i++) {
        a[i] = (struct actor){.host = &in.host,
                              .crowd = crowd,
                              .number = i,
                              .name = i < ACTORS    ? "actor"
                                      : i == ACTORS ? "storm"
                                                    : "watcher",
                              .seed = rng_next(&rng),
                              .requests = REQUESTS,
                              .timeout_ms = 30000 * SLOW};
        thread_begin(&t[i], i < ACTORS ? actor_run : i == ACTORS ? storm_run : watch, &a[i]);
    }
    for (unsigned i = 0; i < ACTORS; i++) {
        audit_clean(&in.host);
        thread_end(&t[i]);
    }
    crowd_stop(crowd);
    for (unsigned i = ACTORS; i < ACTORS + 2; i++)
        thread_end(&t[i]);
    uint64_t verified = 0, hits = 0;
    for (unsigned i = 0; i < ACTORS; i++) {
        ck_assert_uint_eq(crowd->tally[i].requests, REQUESTS);
        verified += crowd->tally[i].verified;
        hits += crowd->tally[i].hits;
    }
    ck_assert_uint_gt(crowd->tally[ACTORS].requests, 100);
    ck_assert_uint_gt(verified, REQUESTS);
    ck_assert_uint_gt(hits, REQUESTS / 10);
    pfx *c = attach(&in.host, "last");
    ck_assert_uint_ge(mappings_shared(), 2); /* index and pool, at least */
    all_given_back(&in.host, c);
    pfx_close(c);
    inside_stop(&in);
    ck_assert_uint_eq(mappings_shared_ever(), 4 * (ACTORS + 3)); /* and two rings of each worker */
    crowd_free(crowd);
}
END_TEST

/* ---- movers -----------------------------------------------------------------------------------
 */

enum { DEPTH_MOST = 5, STATE = 192 };

static void state_fill(pfx *c, uint32_t slot, uint64_t key)
{
    uint64_t *at = pfx_slot_address(c, 0, slot);
    for (unsigned i = 0; i < STATE / 8; i++)
        at[i] = key * (i + 3);
}

static bool state_holds(pfx *c, uint32_t slot, uint64_t key)
{
    const uint64_t *at = pfx_slot_address(c, 0, slot);
    for (unsigned i = 0; i < STATE / 8; i++)
        if (at[i] != key * (i + 3))
            return false;
    return true;
}

/* What was found is right. Returns the blocks that can be gone on from. */
static uint32_t check_match(pfx *c, const struct story *s, const struct pfx_match *m, uint32_t bt)
{
    for (uint32_t i = 0; i < m->n_resident; i++)
        REQUIRE_MSG(page_holds(c, m->blocks[i], s->key[i]), "page %u is not right", m->blocks[i]);
    const struct pfx_snapshot_ref *r = &m->snapshot;
    if (r->slot != PFX_NO_SLOT && r->depth % bt == 0)
        REQUIRE_MSG(state_holds(c, r->slot, s->key[r->depth / bt - 1]), "state at %u is not right",
                    r->depth);
    return m->n_resident;
}

/* Some more of the story, and a state behind it, where there is room for them. */
static void extend(pfx *c, const struct story *s, uint64_t lease, uint32_t have, uint32_t bt)
{
    uint32_t ids[STORY_BLOCKS], n = s->n_blocks - have, slot;
    int rc = pfx_reserve(c, lease, n, ids);
    REQUIRE_MSG(rc == 0 || rc == PFX_ENOSPC, "reserve: %s", pfx_strerror(rc));
    if (rc)
        return;
    for (uint32_t i = 0; i < n; i++)
        page_fill(c, ids[i], s->key[have + i]);
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = s->tokens, .n_written = (size_t)s->n_blocks * bt};
    struct pfx_insert_result got = {.size = sizeof got};
    rc = pfx_insert(c, lease, &args, NULL, &got);
    REQUIRE_MSG(rc == 0, "insert: %s (%s)", pfx_strerror(rc), pfx_why(c));
    rc = pfx_snapshot_reserve(c, lease, &slot);
    REQUIRE_MSG(rc == 0 || rc == PFX_ENOSPC, "snapshot_reserve: %s", pfx_strerror(rc));
    if (rc)
        return;
    state_fill(c, slot, s->key[s->n_blocks - 1]);
    rc = pfx_snapshot_insert(c, lease, slot, s->n_blocks * bt, PFX_EXACT);
    REQUIRE_MSG(rc == 0, "snapshot_insert: %s (%s)", pfx_strerror(rc), pfx_why(c));
}

static void move(struct child *me, void *arg)
{
    const struct actor *a = arg;
    struct rng rng = {a->seed};
    struct story s;
    pfx *c = attach(a->host, a->name);
    uint32_t bt = pfx_geometry(c)->layout.block_tokens;
    for (uint64_t i = 0; i < a->requests; i++) {
        story_draw(&s, &rng, bt, 0);
        if (s.n_blocks > DEPTH_MOST)
            s.n_blocks = DEPTH_MOST;
        struct pfx_lookup_args args = {.size = sizeof args,
                                       .tokens = s.tokens,
                                       .n_tokens = (size_t)s.n_blocks * bt,
                                       .max_match = (size_t)s.n_blocks * bt,
                                       .flags = rng_below(&rng, 4) ? PFX_FETCH : 0};
        struct pfx_match m = {.size = sizeof m};
        int rc = pfx_lookup(c, &args, &m);
        REQUIRE_MSG(rc == 0, "lookup: %s (%s)", pfx_strerror(rc), pfx_why(c));
        uint32_t have = check_match(c, &s, &m, bt);
        if (have == m.n_blocks && have < s.n_blocks)
            extend(c, &s, m.lease, have, bt);
        REQUIRE(pfx_release(c, m.lease) >= 0);
        struct pfx_evicted gone = {.size = sizeof gone};
        if (rng_below(&rng, 16) == 0)
            REQUIRE_EQ(pfx_evict(c, 4, &gone), 0);
    }
    pfx_close(c);
}

/* With io_uring, whose transfers no sanitizer sees, and with threads (_i). */
START_TEST(threads_over_a_disk)
{
    struct rng rng = rng_seeded("threads over a disk");
    struct inside in;
    struct hand_over t[ACTORS + 1];
    struct actor a[ACTORS + 1];
    struct crowd *crowd = crowd_new();
    char dir[64], swap[80];
    if (_i)
        refuse_io_uring(EPERM);
    temp_dir(dir);
    snprintf(swap, sizeof swap, "%s:4M", dir);
    inside_start(&in, (const char *const[]){"--blocks", "20", "--block-tokens", "4",
                                            "--block-bytes", "4K", "--snapshots", "6",
                                            "--snapshot-bytes", "192", "--snapshot-swap", "256K",
                                            "--swap", swap, "--log-level", "error", NULL});
    for (unsigned i = 0; i <= ACTORS; i++) {
        a[i] = (struct actor){.host = &in.host,
                              .crowd = crowd,
                              .name = i < ACTORS ? "mover" : "watcher",
                              .seed = rng_next(&rng),
                              .requests = REQUESTS / 2};
        thread_begin(&t[i], i < ACTORS ? move : watch, &a[i]);
    }
    for (unsigned i = 0; i < ACTORS; i++) {
        audit_clean(&in.host);
        thread_end(&t[i]);
    }
    crowd_stop(crowd);
    thread_end(&t[ACTORS]);
    pfx *c = attach(&in.host, "last");
    struct pfx_stats s = stats_of(c);
    ck_assert_uint_gt(s.disk_read_blocks, 50);
    ck_assert_uint_gt(s.disk_written_blocks, 50);
    ck_assert_uint_gt(s.snapshot_hits, 50);
    ck_assert_uint_eq(s.disk_errors, 0);
    EVENTUALLY(20000, stats_of(c).blocks_inflight == 0);
    all_given_back(&in.host, c);
    pfx_close(c);
    inside_stop(&in);
    crowd_free(crowd);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("one_mapping");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, threads_over_one_mapping);
    tcase_add_loop_test(t, threads_over_a_disk, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
