/*
 * pfx_stats: every counter moves on every operation exactly as prefixd.h says, and no other; the
 * five page counts always sum; what counts up never goes back; a counter is there before the
 * completion that reports its change.
 */
#include "tests/client/fixture.h"
#include "shm/stats.h"

#include <stdlib.h>
#include <string.h>

/* ---- one operation ----------------------------------------------------------------------- */

/* How each counter has moved since, `nodes` aside (the audit compares that with the tree). */
static void moved(struct worker *w, struct pfx_stats *since, const char *what,
                  const struct pfx_stats *by)
{
    static const char *const names[] = {
#define NAME(name, kind) #name,
        COUNTERS(NAME)
#undef NAME
    };
    struct pfx_stats now = counters(w);
    since->nodes = now.nodes;
    const uint64_t *a = &since->size, *b = &now.size, *d = &by->size;
    for (size_t i = 1; i < sizeof now / 8; i++)
        ck_assert_msg(b[i] == a[i] + d[i], "%s: %s moved by %lld, not %lld", what, names[i - 1],
                      (long long)(b[i] - a[i]), (long long)d[i]);
    *since = now;
    step(w);
}

#define BY(...) (&(struct pfx_stats){__VA_ARGS__})
#define LESS(n) ((uint64_t)0 - (n)) /* a level that falls */

struct scene {
    struct host h;
    struct worker w;
    struct pfx_stats s; /* as last looked at */
};

static void scene_open(struct scene *a)
{
    host_small(&a->h, 32, 4);
    worker_open(&a->w, &a->h, NULL);
    a->s = counters(&a->w);
}

static void scene_close(struct scene *a)
{
    worker_close(&a->w);
    host_stop(&a->h);
}

#define MOVED(a, what, ...) moved(&(a)->w, &(a)->s, what, BY(__VA_ARGS__))

START_TEST(at_the_start)
{
    struct scene a;
    scene_open(&a);
    const struct pfx_stats want = {
        .size = sizeof want, .blocks_free = 32, .workers = 1, .spaces = 1, .nodes = a.s.nodes};
    a.s.disk_scan_done = 0; /* no disk tier: either */
    ck_assert_mem_eq(&a.s, &want, sizeof want);
    scene_close(&a);
}
END_TEST

START_TEST(of_a_request)
{
    struct scene a;
    scene_open(&a);
    struct held l = look(&a.w, "aaaabbbbccx"), m;
    MOVED(&a, "a miss", .lookups = 1, .misses = 1, .lookup_tokens = 11, .leases = 1);
    ck_assert_int_eq(grab(&a.w, &l, 4), 0);
    MOVED(&a, "reserve", .blocks_free = LESS(4), .blocks_private = 4);
    put(&a.w, &l, "aaaabbbb", 0, NULL, NULL);
    MOVED(&a, "insert", .inserted_blocks = 2, .blocks_private = LESS(2), .blocks_pinned = 2);
    put(&a.w, &l, "aaaabbbb", 0, NULL, NULL);
    MOVED(&a, "insert again", 0);
    put(&a.w, &l, "aaaabbbbccx", PFX_FINAL, NULL, NULL);
    MOVED(&a, "a partial", .inserted_blocks = 1, .blocks_private = LESS(1), .blocks_pinned = 1);
    ck_assert_int_eq(cut(&a.w, &l, 3), 0);
    MOVED(&a, "truncate", .blocks_free = 1, .blocks_private = LESS(1));
    drop(&a.w, &l);
    MOVED(&a, "release", .blocks_pinned = LESS(3), .blocks_idle = 3, .leases = LESS(1));

    l = look(&a.w, "aaaabbbbccyy");
    MOVED(&a, "a hit with a tail", .lookups = 1, .hits = 1, .hit_tokens = 8, .lookup_tokens = 12,
          .leases = 1, .blocks_pinned = 3, .blocks_idle = LESS(3));
    m = look(&a.w, "aaaay");
    MOVED(&a, "a hit of what is held", .lookups = 1, .hits = 1, .hit_tokens = 4, .lookup_tokens = 5,
          .leases = 1);
    struct pfx_match again = {.size = sizeof again};
    OK(pfx_fetch(a.w.c, l.lease, &again));
    MOVED(&a, "fetch", 0);
    ck_assert_int_eq(cut(&a.w, &l, 1), 0);
    MOVED(&a, "a cut", .blocks_pinned = LESS(2), .blocks_idle = 2);
    drop(&a.w, &l);
    MOVED(&a, "release of what another holds", .leases = LESS(1));
    drop(&a.w, &m);
    MOVED(&a, "release", .blocks_pinned = LESS(1), .blocks_idle = 1, .leases = LESS(1));
    scene_close(&a);
}
END_TEST

START_TEST(of_lookups_that_do_not_count)
{
    struct scene a;
    scene_open(&a);
    cache(&a.w, "aaaabbbb");
    a.s = counters(&a.w);
    struct seq s = seq("aaaabbbbx");
    struct pfx_lookup_args args = lookup_args(&a.w, &s);
    struct pfx_peeked p = {.size = sizeof p};
    ck_assert_int_eq(pfx_peek(a.w.c, 0, s.at, s.n), 8);
    OK(pfx_peek_full(a.w.c, &args, &p));
    MOVED(&a, "peek", 0);
    args.flags = PFX_QUIET;
    struct held l = look_args(&a.w, &args);
    MOVED(&a, "quiet", .leases = 1, .blocks_pinned = 2, .blocks_idle = LESS(2));
    drop(&a.w, &l);
    MOVED(&a, "its release", .leases = LESS(1), .blocks_pinned = LESS(2), .blocks_idle = 2);
    args.flags = PFX_NO_MATCH;
    l = look_args(&a.w, &args);
    MOVED(&a, "no match", .leases = 1);
    drop(&a.w, &l);
    MOVED(&a, "its release", .leases = LESS(1));
    l = look(&a.w, "");
    MOVED(&a, "of nothing", .leases = 1);
    drop(&a.w, &l);
    MOVED(&a, "its release", .leases = LESS(1));
    l = look(&a.w, "aaX"); /* a tail alone is a miss */
    MOVED(&a, "a tail", .lookups = 1, .misses = 1, .lookup_tokens = 3, .leases = 1,
          .blocks_pinned = 1, .blocks_idle = LESS(1));
    drop(&a.w, &l);
    MOVED(&a, "its release", .leases = LESS(1), .blocks_pinned = LESS(1), .blocks_idle = 1);
    scene_close(&a);
}
END_TEST

START_TEST(of_duplicates)
{
    struct scene a;
    scene_open(&a);
    struct held l = look(&a.w, ""), m = look(&a.w, "");
    ck_assert_int_eq(grab(&a.w, &l, 3), 0);
    ck_assert_int_eq(grab(&a.w, &m, 3), 0);
    put(&a.w, &l, "aaaabbbbc", PFX_FINAL, NULL, NULL);
    a.s = counters(&a.w);
    put(&a.w, &m, "aaaabbbbc", PFX_FINAL, NULL, NULL);
    MOVED(&a, "duplicates", .duplicate_blocks = 3);
    put(&a.w, &m, "aaaabbbbc", PFX_FINAL, NULL, NULL);
    MOVED(&a, "again", 0);
    drop(&a.w, &l);
    MOVED(&a, "the first goes", .leases = LESS(1)); /* the second holds both */
    drop(&a.w, &m);
    MOVED(&a, "the second goes", .leases = LESS(1), .blocks_private = LESS(3), .blocks_free = 3,
          .blocks_pinned = LESS(3), .blocks_idle = 3);
    scene_close(&a);
}
END_TEST

START_TEST(of_eviction_and_flush)
{
    struct scene a;
    scene_open(&a);
    cache(&a.w, "aaaabbbbccccdddd");
    cache(&a.w, "eeeeffff");
    struct held l = look(&a.w, "aaaabbbbx"), big = look(&a.w, "");
    a.s = counters(&a.w);
    evict(&a.w, 1);
    MOVED(&a, "evict", .evicted_blocks = 1, .blocks_idle = LESS(1), .blocks_free = 1);
    ck_assert_int_eq(grab(&a.w, &big, 28), 0); /* 27 are free */
    MOVED(&a, "reserve that evicts", .evicted_blocks = 1, .blocks_idle = LESS(1),
          .blocks_free = LESS(27), .blocks_private = 28);
    FAILS(&a.w, PFX_ENOSPC, pfx_reserve(a.w.c, big.lease, 3, (uint32_t[3]){0}));
    drop(&a.w, &big);
    MOVED(&a, "release", .blocks_private = LESS(28), .blocks_free = 28, .leases = LESS(1));
    OK(pfx_flush(a.w.c, 0));
    MOVED(&a, "flush", .blocks_idle = LESS(2), .blocks_free = 2); /* is no eviction */
    drop(&a.w, &l);
    MOVED(&a, "held until now", .blocks_pinned = LESS(2), .blocks_free = 2, .leases = LESS(1));
    scene_close(&a);
}
END_TEST

START_TEST(of_spaces)
{
    struct scene a;
    scene_open(&a);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "t", .tenant_len = 1};
    struct pfx_space_desc base = {.size = sizeof base};
    pfx_space s, same, zero;
    OK(pfx_space_open(a.w.c, &base, &zero));
    OK(pfx_space_close(a.w.c, zero));
    MOVED(&a, "the base space", 0);
    OK(pfx_space_open(a.w.c, &d, &s));
    MOVED(&a, "a new space", .spaces = 1);
    OK(pfx_space_open(a.w.c, &d, &same));
    MOVED(&a, "the same space", 0);
    OK(pfx_space_close(a.w.c, s));
    MOVED(&a, "closed once", 0);
    OK(pfx_space_close(a.w.c, s));
    MOVED(&a, "closed twice", .spaces = LESS(1));
    OK(pfx_space_open(a.w.c, &d, &s));
    a.w.space = s;
    struct held l = look(&a.w, "aaaax");
    OK(pfx_space_close(a.w.c, s));
    MOVED(&a, "a lease uses it", .spaces = 1, .leases = 1, .lookups = 1, .misses = 1,
          .lookup_tokens = 5);
    ck_assert_int_eq(grab(&a.w, &l, 1), 0);
    put(&a.w, &l, "aaaa", 0, NULL, NULL);
    drop(&a.w, &l);
    MOVED(&a, "a block is cached in it", .leases = LESS(1), .blocks_free = LESS(1),
          .blocks_idle = 1, .inserted_blocks = 1);
    evict(&a.w, 1);
    MOVED(&a, "nothing is", .spaces = LESS(1), .blocks_free = 1, .blocks_idle = LESS(1),
          .evicted_blocks = 1);
    scene_close(&a);
}
END_TEST

static void dies(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    look(&w, "aaaax");
    child_post(me, 1);
    child_wait(me); /* for ever */
}

START_TEST(of_workers)
{
    struct scene a;
    struct worker other;
    struct child c;
    scene_open(&a);
    worker_open(&other, &a.h, NULL);
    MOVED(&a, "attached", .workers = 1);
    look(&other, "aaaax");
    worker_close(&other); /* which waits for the daemon */
    MOVED(&a, "closed", .workers = LESS(1), .lookups = 1, .misses = 1, .lookup_tokens = 5);
    child_start(&c, dies, &a.h);
    child_wait(&c);
    MOVED(&a, "another", .workers = 1, .leases = 1, .lookups = 1, .misses = 1, .lookup_tokens = 5);
    child_kill(&c, 9);
    EVENTUALLY(1000 * SLOW, counters(&a.w).workers == 1);
    MOVED(&a, "killed", .workers = LESS(1), .workers_reaped = 1, .leases = LESS(1));
    scene_close(&a);
}
END_TEST

/* Failures move nothing, whatever they are of. */
START_TEST(of_failures)
{
    struct fixture f;
    fixture_open(&f);
    struct seq wrong = seq("aaaabbbx");
    struct pfx_insert_args args = {.size = sizeof args, .tokens = wrong.at, .n_written = wrong.n};
    struct pfx_insert_result r = {.size = sizeof r};
    uint32_t ids[FIX_BLOCKS];
    struct pfx_lookup_args look = lookup_args(&f.w, &f.tokens);
    struct pfx_match m = {.size = sizeof m};
    look.space = 99;
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, f.lease.lease, &args, NULL, &r));
    FAILS(&f.w, PFX_ECONFLICT, pfx_truncate(f.c, f.lease.lease, 0));
    FAILS(&f.w, PFX_ENOSPC, pfx_reserve(f.c, f.lease.lease, FIX_BLOCKS, ids));
    FAILS(&f.w, PFX_ENOENT, pfx_lookup(f.c, &look, &m));
    FAILS(&f.w, PFX_ENOENT, pfx_flush(f.c, 99));
    FAILS(&f.w, PFX_ESTALE, pfx_release(f.c, 99));
    fixture_close(&f);
}
END_TEST

/* ---- at every moment --------------------------------------------------------------------- */

/* Random requests, and a flush now and then. */
static void churn(struct child *me, void *arg)
{
    static uint32_t tokens[2000], ids[3000];
    pfx *c = connect_with(arg, (struct pfx_options){0});
    struct rng r = {child_wait(me)};
    for (int i = 0; i < 1500; i++) {
        size_t n = 1 + rng_below(&r, 2000);
        sequence(tokens, n, rng_below(&r, 12));
        tokens[rng_below(&r, (uint32_t)n)] ^= 1;
        struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = n};
        struct pfx_insert_args in = {
            .size = sizeof in, .flags = i % 3 == 0, .tokens = tokens, .n_written = n};
        struct pfx_insert_result result = {.size = sizeof result};
        struct pfx_match m = {.size = sizeof m};
        OK(pfx_lookup(c, &look, &m));
        int rc = pfx_reserve(c, m.lease, i % 50 ? (uint32_t)n / 4 + 1 : 3000, ids);
        ck_assert(rc == 0 || rc == PFX_ENOSPC || rc == PFX_ESTALE);
        rc = pfx_insert(c, m.lease, &in, NULL, &result);
        ck_assert(rc == 0 || rc == PFX_ESTALE); /* the other one flushes, too */
        OK(pfx_release(c, m.lease));
        if (i % 400 == 0)
            OK(pfx_flush(c, 0));
    }
    child_post(me, 1);
    child_wait(me);
    pfx_close(c);
}

static void never_back(const struct pfx_stats *before, const struct pfx_stats *now)
{
#define T 1
#define G 0
#define NEVER_BACK(name, kind)                                                                     \
    if (kind && now->name < before->name)                                                          \
        ck_abort_msg("%s went back from %llu to %llu", #name, (unsigned long long)before->name,    \
                     (unsigned long long)now->name);
    COUNTERS(NEVER_BACK)
#undef NEVER_BACK
#undef T
#undef G
    uint64_t sum = now->blocks_free + now->blocks_private + now->blocks_pinned + now->blocks_idle +
                   now->blocks_inflight;
    if (sum != 3000 || now->hits + now->misses != now->lookups ||
        now->hit_tokens > now->lookup_tokens)
        ck_abort_msg("%llu blocks, %llu lookups of %llu + %llu", (unsigned long long)sum,
                     (unsigned long long)now->lookups, (unsigned long long)now->hits,
                     (unsigned long long)now->misses);
}

START_TEST(consistent_at_every_moment)
{
    struct host h;
    struct child c[2];
    HOST_START(&h, "--blocks", "3000", "--block-tokens", "4", "--block-bytes", "64");
    struct worker w;
    worker_open(&w, &h, NULL);
    struct rng r = rng_seeded("consistent_at_every_moment");
    for (int i = 0; i < 2; i++) {
        child_start(&c[i], churn, &h);
        child_post(&c[i], rng_next(&r));
    }
    struct pfx_stats before = counters(&w), now = before;
    uint64_t samples = 0, changes = 0, until = now_ms() + 40000 * SLOW;
    while (now.lookups < 3000) { /* all that the two will make */
        if (pfx_stats(w.c, &now) != 0 || now_ms() > until)
            ck_abort_msg("%s, or the two do not get on", pfx_why(w.c));
        never_back(&before, &now);
        changes += memcmp(&before, &now, sizeof now) != 0;
        samples++;
        before = now;
    }
    ck_assert_uint_gt(changes, 50);
    for (int i = 0; i < 2; i++) {
        child_wait(&c[i]);
        child_post(&c[i], 1);
        child_join(&c[i]);
    }
    ck_assert_uint_gt(counters(&w).evicted_blocks, 0);
    ck_assert_uint_ge(samples, changes);
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Many under way: with each completion that is taken, its change is there at least. */
START_TEST(there_before_the_completion)
{
    enum { CALLS = 2000, DEEP = 8 };
    struct scene a;
    scene_open(&a);
    pfx *c = a.w.c;
    struct seq s = seq("aaaabbbb");
    struct pfx_lookup_args look = lookup_args(&a.w, &s);
    struct pfx_insert_args in = {.size = sizeof in, .tokens = s.at, .n_written = s.n};
    uint64_t leases[DEEP];
    for (uint64_t i = 0; i < CALLS; i += DEEP) {
        for (uint64_t k = 0; k < DEEP; k++)
            OK(pfx_submit_lookup(c, &look, k));
        for (uint64_t k = 0; k < DEEP; k++) {
            leases[k] = completion_of(c, k, 0).lease;
            ck_assert_uint_ge(counters(&a.w).lookups, i + k + 1);
            ck_assert_uint_ge(counters(&a.w).leases, k + 1);
        }
        for (uint64_t k = 0; k < DEEP; k++)
            OK(pfx_submit_reserve(c, leases[k], 2, k));
        for (uint64_t k = 0; k < DEEP; k++) {
            completion_of(c, k, 0);
            ck_assert_uint_ge(counters(&a.w).blocks_private, 2 * (k + 1));
        }
        for (uint64_t k = 0; k < DEEP; k++) {
            s.at[0] = (uint32_t)(i + k); /* another sequence each time */
            OK(pfx_submit_insert(c, leases[k], &in, k));
        }
        for (uint64_t k = 0; k < DEEP; k++) {
            ck_assert_uint_eq(completion_of(c, k, 0).insert.new_blocks, 2);
            ck_assert_uint_ge(counters(&a.w).inserted_blocks, 2 * (i + k + 1));
        }
        for (uint64_t k = 0; k < DEEP; k++)
            OK(pfx_submit_release(c, leases[k], k));
        for (uint64_t k = 0; k < DEEP; k++) {
            completion_of(c, k, 0);
            ck_assert_uint_le(counters(&a.w).leases, DEEP - k - 1);
        }
        s.at[0] = UINT32_MAX; /* what is looked for is never there */
    }
    scene_close(&a);
}
END_TEST

/* From shared memory: the same while the daemon is stopped. */
START_TEST(while_the_daemon_is_stopped)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_stats before = counters(&f.w);
    host_pause(&f.h);
    for (int i = 0; i < 1000; i++)
        counters_equal(&f.w, &before, "a stopped daemon");
    host_resume(&f.h);
    fixture_close(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("counters");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, at_the_start);
    tcase_add_test(t, of_a_request);
    tcase_add_test(t, of_lookups_that_do_not_count);
    tcase_add_test(t, of_duplicates);
    tcase_add_test(t, of_eviction_and_flush);
    tcase_add_test(t, of_spaces);
    tcase_add_test(t, of_workers);
    tcase_add_test(t, of_failures);
    tcase_add_test(t, consistent_at_every_moment);
    tcase_add_test(t, there_before_the_completion);
    tcase_add_test(t, while_the_daemon_is_stopped);
    suite_add_tcase(s, t);
    return s;
}
