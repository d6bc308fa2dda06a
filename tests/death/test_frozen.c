/*
 * B41. A worker that is stopped, with its completion ring full or in the middle of anything, slows
 * nobody down and costs no memory; when it is killed, all that it held comes back. Who has nothing
 * to do uses no CPU.
 */
#include "tests/death/crowd.h"
#include "tests/death/rows.h"
#include "tests/raw.h"
#include "tests/worker.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HONEST = 3, FROZEN = HONEST, SOON_MS = 2000 * SLOW };
enum { PAIRS_MIN = 5, PAIRS_MAX = 100, WINDOW_MS = 40 };
enum { MEMORY_KB = 2048 * SLOW, IDLE_MS = 2500, FIRST_MS = 1000 * SLOW };

enum state { RING_FULL, RING_OVERFULL, ASLEEP, BUSY, STATES };

struct scene {
    struct host host;
    struct crowd *crowd;
    struct actor honest[HONEST], busy;
    struct child child[HONEST], frozen;
};

static void stop(struct child *c)
{
    int status;
    ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(c->pid, &status, WUNTRACED), c->pid);
    ck_assert(WIFSTOPPED(status));
}

/* ---- who is stopped ------------------------------------------------------------------------ */

/* Holds pages, and has every completion that its ring takes waiting. */
static void ring_full(struct child *me, void *arg)
{
    struct worker w;
    struct pfx_options o = worker_options(arg);
    o.name = "frozen";
    o.ring_entries = 8;
    ck_assert_int_eq(pfx_open(&o, &w.c), 0);
    w = (struct worker){.host = arg, .c = w.c, .unchecked = true};
    struct held h = look(&w, "0123456701234567");
    ck_assert_int_eq(grab(&w, &h, 5), 0);
    struct seq s = seq("0123456701234567");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    for (uint64_t i = 0; i < 8; i++)
        ck_assert_int_eq(pfx_submit_lookup(w.c, &args, i), 0);
    ck_assert_int_eq(pfx_submit_lookup(w.c, &args, 8), PFX_EAGAIN);
    child_post(me, 1);
    child_wait(me);
}

/* The same without the library: goes on asking though it takes nothing. */
static void ring_overfull(struct child *me, void *arg)
{
    struct raw r;
    raw_open(&r, arg, "frozen");
    uint64_t lease = raw_lease(&r);
    ck_assert_int_eq(raw_reserve(&r, lease, 5).status, 0);
    struct request ping = {.op = OP_NOP};
    unsigned posted = 0, size = r.welcome.ring_entries;
    uint64_t until = now_ms() + SOON_MS;
    while (posted < 2 * size) {
        ck_assert_msg(now_ms() < until, "only %u were taken", posted);
        if (raw_post(&r, &ping))
            posted++;
        else
            sleep_us(100);
    }
    ck_assert(!raw_post(&r, &ping)); /* the daemon takes none without room for its answer */
    child_post(me, 1);
    child_wait(me);
}

static void asleep(struct child *me, void *arg)
{
    struct worker w;
    struct pfx_options o = worker_options(arg);
    o.name = "frozen";
    ck_assert_int_eq(pfx_open(&o, &w.c), 0);
    w = (struct worker){.host = arg, .c = w.c, .unchecked = true};
    struct held h = look(&w, "0123456701234567");
    ck_assert_int_eq(grab(&w, &h, 5), 0);
    struct pfx_completion done = {
        .size = sizeof done, .match.size = sizeof done.match, .insert.size = sizeof done.insert};
    child_post(me, 1);
    pfx_wait(w.c, &done, sizeof done, 1, -1);
    ck_abort_msg("it was to be killed");
}

static uint64_t calls_of(const struct scene *s, unsigned i)
{
    return shm_load(&s->crowd->tally[i].calls);
}

static void start_frozen(struct scene *s, enum state state)
{
    static child_fn *const others[] = {ring_full, ring_overfull, asleep};
    s->busy = (struct actor){.host = &s->host,
                             .crowd = s->crowd,
                             .number = FROZEN,
                             .name = "frozen",
                             .seed = calls_of(s, 0),
                             .timeout_ms = 60000};
    if (state != BUSY) {
        child_start(&s->frozen, others[state], &s->host);
        child_wait(&s->frozen);
        return;
    }
    child_start(&s->frozen, actor_run, &s->busy);
    uint64_t wanted = shm_load(&s->crowd->tally[FROZEN].requests) + 20;
    EVENTUALLY(SOON_MS, shm_load(&s->crowd->tally[FROZEN].requests) > wanted);
}

/* ---- the others ------------------------------------------------------------------------------ */

/* Each honest worker's calls in the best window so far. What the machine does besides is not ours,
 * and who happens to sleep is ten times slower than who spins; so windows with and without are in
 * turn, and as many as it takes. */
static void measure(const struct scene *s, uint64_t best[HONEST])
{
    uint64_t before[HONEST];
    for (unsigned i = 0; i < HONEST; i++)
        before[i] = calls_of(s, i);
    sleep_us(WINDOW_MS * 1000);
    for (unsigned i = 0; i < HONEST; i++) {
        uint64_t n = calls_of(s, i) - before[i];
        best[i] = n > best[i] ? n : best[i];
    }
}

static uint64_t own_memory_kb(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (kb == 0 && fgets(line, sizeof line, f))
        sscanf(line, "RssAnon: %llu kB", &kb);
    fclose(f);
    ck_assert_uint_gt(kb, 0);
    return kb;
}

static void scene_begin(struct scene *s)
{
    struct rng rng = rng_seeded("frozen");
    static const char *const names[] = {"one", "two", "three"};
    HOST_START(&s->host, "--blocks", "200", "--block-tokens", "8", "--block-bytes", "512");
    audit_clean(&s->host);
    s->crowd = crowd_new();
    for (unsigned i = 0; i < HONEST; i++) {
        s->honest[i] = (struct actor){.host = &s->host,
                                      .crowd = s->crowd,
                                      .number = i,
                                      .name = names[i],
                                      .seed = rng_next(&rng),
                                      .timeout_ms = 10000 * SLOW};
        child_start(&s->child[i], actor_run, &s->honest[i]);
    }
    for (unsigned i = 0; i < HONEST; i++)
        EVENTUALLY(SOON_MS, calls_of(s, i) > 1000);
}

static bool attached(const struct host *h, const char *name)
{
    struct workers now;
    workers_now(h, &now);
    return workers_find(&now, name) != NULL;
}

static void scene_end(struct scene *s, unsigned reaped)
{
    crowd_stop(s->crowd);
    for (unsigned i = 0; i < HONEST; i++)
        child_join(&s->child[i]);
    struct worker w;
    worker_open(&w, &s->host, NULL);
    all_given_back(&s->host, w.c);
    ck_assert_uint_eq(counters(&w).workers_reaped, reaped);
    worker_close(&w);
    host_stop(&s->host);
    crowd_free(s->crowd);
}

static void measure_beside(struct scene *s, enum state state, uint64_t beside[HONEST])
{
    start_frozen(s, state);
    stop(&s->frozen);
    uint64_t kb = own_memory_kb(s->host.pid);
    measure(s, beside);
    audit_clean(&s->host);
    ck_assert(attached(&s->host, "frozen"));
    ck_assert_uint_le(own_memory_kb(s->host.pid), kb + MEMORY_KB);
    child_kill(&s->frozen, SIGKILL);
    EVENTUALLY(SOON_MS, !attached(&s->host, "frozen"));
    audit_clean(&s->host);
}

static bool half_at_least(const uint64_t alone[HONEST], const uint64_t beside[HONEST])
{
    for (unsigned i = 0; i < HONEST; i++)
        if (2 * beside[i] < alone[i])
            return false;
    return true;
}

START_TEST(frozen_worker_slows_nobody)
{
    struct scene s;
    uint64_t alone[HONEST] = {0}, beside[HONEST] = {0};
    unsigned pairs = 0;
    scene_begin(&s);
    while (pairs < PAIRS_MIN || (pairs < PAIRS_MAX && !half_at_least(alone, beside))) {
        measure(&s, alone);
        measure_beside(&s, (enum state)_i, beside);
        for (unsigned i = 0; i < HONEST; i++)
            child_lives(&s.child[i]);
        pairs++;
    }
    for (unsigned i = 0; i < HONEST; i++)
        fprintf(stderr, "%u pairs, worker %u: %llu calls alone, %llu beside it\n", pairs, i,
                (unsigned long long)alone[i], (unsigned long long)beside[i]);
    ck_assert(half_at_least(alone, beside));
    scene_end(&s, pairs);
}
END_TEST

/* ---- nothing to do --------------------------------------------------------------------------- */

static uint64_t cpu_us(pid_t pid)
{
    char path[64];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    FILE *f = fopen(path, "re");
    int got = f ? fscanf(f, "%llu", &ns) : 0;
    if (f)
        fclose(f);
    return got == 1 ? ns / 1000 : process_cpu_us(pid);
}

static void idle_in_wait(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    struct held h = look(&w, "aaaabbbbx");
    child_post(me, 1);
    struct pfx_completion done = {
        .size = sizeof done, .match.size = sizeof done.match, .insert.size = sizeof done.insert};
    ck_assert_int_eq(pfx_wait(w.c, &done, sizeof done, 1, IDLE_MS * 3 / 2), 0);
    drop(&w, &h);
    worker_close(&w);
}

static void idle_on_fd(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    struct held h = look(&w, "aaaabbbbx");
    struct pollfd p[2] = {{.fd = pfx_fd(w.c), .events = POLLIN},
                          {.fd = me->from, .events = POLLIN}};
    child_post(me, 1);
    ck_assert_int_eq(poll(p, 2, -1), 1);
    ck_assert_int_eq(p[0].revents, 0);
    drop(&w, &h);
    worker_close(&w);
}

/* _i: nothing at all to do; or a worker whose answers have no room, with requests left. */
START_TEST(idle_uses_no_cpu)
{
    struct host h;
    struct worker w;
    struct child child[5];
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 4; i++)
        child_start(&child[i], i % 2 ? idle_on_fd : idle_in_wait, &h);
    if (_i)
        child_start(&child[4], ring_overfull, &h);
    for (int i = 0; i < 4 + _i; i++)
        child_wait(&child[i]);
    sleep_us(20000);
    uint64_t daemon = cpu_us(h.pid), began = now_us(), workers[4];
    for (int i = 0; i < 4; i++)
        workers[i] = cpu_us(child[i].pid);
    sleep_us(IDLE_MS * 1000);
    uint64_t percent = (now_us() - began) / 100;
    for (int i = 0; i < 4; i++)
        ck_assert_uint_le(cpu_us(child[i].pid) - workers[i], percent);
    daemon = cpu_us(h.pid) - daemon;
    fprintf(stderr, "the daemon used %llu us of %d ms\n", (unsigned long long)daemon, IDLE_MS);
    ck_assert_uint_le(daemon, percent);
    began = now_ms();
    ck_assert_int_eq(pfx_ping(w.c), 0);
    ck_assert_uint_le(now_ms() - began, FIRST_MS);
    for (int i = 0; i < 4; i++) {
        if (i % 2)
            child_post(&child[i], 1);
        child_join(&child[i]);
    }
    if (_i)
        child_kill(&child[4], SIGKILL);
    EVENTUALLY(SOON_MS, counters(&w).workers == 1);
    all_given_back(&h, w.c);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("frozen");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, frozen_worker_slows_nobody, 0, STATES);
    tcase_add_loop_test(t, idle_uses_no_cpu, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
