/*
 * What a round trip costs (ring), a lookup, a lookup while the daemon is busy with another worker's
 * inserts, and a peek, which needs no daemon: the same with it stopped.
 *
 * With two cores there is none left for the worker that keeps the daemon busy: it shares ours. It
 * publishes long sequences, several at once, and sleeps while the daemon works on them, so that
 * most of what we wait for is the daemon's and not the scheduler's.
 */
#include "tools/bench.h"
#include "tools/bench_rig.h"
#include "tools/raw_channel.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PREFIX_BLOCKS = BENCH_PREFIX_TOKENS / BENCH_BLOCK_TOKENS,
    CALLS = 301,
    BUSY_CALLS = RIG_CALLS,
    BUSY_BATCH = 4, /* sequences on their way at once */
};

/* ---- ring.p50 ------------------------------------------------------------------------------ */

struct ring_row {
    struct rig *rig;
    struct raw_channel raw;
};

void *ring_p50_begin(void)
{
    struct ring_row *row = calloc(1, sizeof *row);
    if (row && (row->rig = rig_begin(NULL)) && raw_attach(&row->rig->tool, &row->raw))
        return row;
    if (row && row->rig)
        rig_end(row->rig);
    free(row);
    return NULL;
}

double ring_p50_value(void *self)
{
    struct ring_row *row = self;
    uint64_t ns[RIG_BATCHES];
    for (int batch = -1; batch < RIG_BATCHES; batch++) { /* the first one warms up */
        uint64_t before = clock_ns();
        for (int trip = 0; trip < RIG_TRIPS; trip++)
            if (!raw_round_trip(&row->raw))
                return -1;
        if (batch >= 0)
            ns[batch] = clock_ns() - before;
    }
    return (double)quantile(ns, RIG_BATCHES, 500) / RIG_TRIPS;
}

double ring_p50_baseline(void *self)
{
    struct ring_row *row = self;
    return rig_pingpong(row->rig);
}

void ring_p50_end(void *self)
{
    struct ring_row *row = self;
    raw_detach(&row->raw);
    rig_end(row->rig);
    free(row);
}

/* ---- lookup.p50 ----------------------------------------------------------------------------- */

struct lookup_row {
    struct rig *rig;
    void *hot; /* of index.hot */
    struct busy *busy;
    pid_t busy_pid;
};

void *lookup_p50_begin(void)
{
    struct lookup_row *row = calloc(1, sizeof *row);
    if (row && (row->hot = index_hot_begin()) && (row->rig = rig_begin(NULL)) &&
        rig_attach(row->rig, BENCH_PREFIX_TOKENS))
        return row;
    if (row)
        lookup_p50_end(row);
    return NULL;
}

double lookup_p50_value(void *self)
{
    struct lookup_row *row = self;
    return rig_lookup_ns(row->rig, CALLS, 500);
}

double lookup_p50_baseline(void *self)
{
    struct lookup_row *row = self;
    double hot = index_hot_value(row->hot), line = rig_pingpong(row->rig);
    return hot < 0 || line < 0 ? -1 : 1.5 * hot + 5 * line;
}

void lookup_p50_end(void *self)
{
    struct lookup_row *row = self;
    if (row->rig)
        rig_end(row->rig);
    if (row->hot)
        index_hot_end(row->hot);
    free(row);
}

/* ---- lookup.p99_busy ----------------------------------------------------------------------- */

struct busy {
    uint32_t run;  /* 1: at full speed; 0: pause */
    uint32_t done; /* sequences inserted */
};

/* Take n completions; the leases of lookups by their tags. 0 or the first error. */
static int busy_collect(pfx *c, unsigned n, uint64_t lease[BUSY_BATCH])
{
    struct pfx_completion done[BUSY_BATCH];
    int rc = 0;
    for (unsigned left = n; left;) {
        for (unsigned i = 0; i < BUSY_BATCH; i++)
            done[i] = (struct pfx_completion){.size = sizeof done[i],
                                              .match.size = sizeof done[i].match,
                                              .insert.size = sizeof done[i].insert};
        int got = pfx_wait(c, done, sizeof done[0], BUSY_BATCH, -1);
        if (got < 0)
            return got;
        for (int i = 0; i < got; i++) {
            rc = rc == 0 && done[i].status < 0 ? done[i].status : rc;
            if (done[i].tag < BUSY_BATCH)
                lease[done[i].tag] = done[i].lease;
        }
        left -= (unsigned)got;
    }
    return rc;
}

/* Insert BUSY_BATCH new sequences, with all that can be on its way at once on its way. The pool is
 * full: each reserve evicts. */
static int busy_round(pfx *c, uint32_t *tokens, uint32_t first)
{
    struct pfx_lookup_args look = {.size = sizeof look,
                                   .flags = PFX_NO_MATCH,
                                   .tokens = tokens,
                                   .n_tokens = BENCH_PREFIX_TOKENS};
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = tokens, .n_written = BENCH_PREFIX_TOKENS};
    struct pfx_evicted evicted = {.size = sizeof evicted};
    uint64_t lease[BUSY_BATCH];
    int rc = 0;
    for (uint32_t i = 0; i < BUSY_BATCH && rc >= 0; i++)
        rc = pfx_submit_lookup(c, &look, i);
    if (rc < 0 || (rc = busy_collect(c, BUSY_BATCH, lease)) < 0)
        return rc;
    for (uint32_t i = 0; i < BUSY_BATCH && rc >= 0; i++) {
        tokens[0] = first + i; /* the first block differs, so all do */
        if ((rc = pfx_submit_reserve(c, lease[i], PREFIX_BLOCKS, BUSY_BATCH)) >= 0 &&
            (rc = pfx_submit_insert(c, lease[i], &args, BUSY_BATCH)) >= 0)
            rc = pfx_submit_release(c, lease[i], BUSY_BATCH);
    }
    if (rc < 0 || (rc = busy_collect(c, 3 * BUSY_BATCH, lease)) < 0)
        return rc;
    return pfx_evict(c, PREFIX_BLOCKS, &evicted);
}

static int busy_worker(const struct lookup_row *row)
{
    static uint32_t tokens[BENCH_PREFIX_TOKENS];
    const struct cores *cores = &row->rig->cores;
    bool shares = cores->third < 0;
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = row->rig->tool.socket,
                                  .name = "busy",
                                  .map_devices = PFX_MAP_NONE,
                                  .spin_us = shares ? 1 : 0};
    pfx *c;
    int rc = pfx_open(&options, &c);
    if (rc < 0)
        return tool_fail_pfx("the busy worker cannot attach", rc, pfx_why(NULL));
    cores_pin(0, shares ? cores->mine : cores->third);
    bench_fill_tokens(tokens, BENCH_PREFIX_TOKENS, 8);
    for (uint32_t n = 0; rc >= 0; n += BUSY_BATCH) {
        while (!shm_load_acquire(&row->busy->run))
            usleep(100);
        rc = busy_round(c, tokens, n);
        shm_store_release(&row->busy->done, n + BUSY_BATCH);
    }
    return tool_fail_pfx("the busy worker failed", rc, pfx_why(c));
}

static bool busy_begin(struct lookup_row *row)
{
    enum { FULL = RIG_POOL_BLOCKS / PREFIX_BLOCKS + BUSY_BATCH };
    pid_t parent = getpid();
    void *shared =
        mmap(NULL, sizeof *row->busy, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return false;
    row->busy = shared;
    row->busy->run = 1;
    row->busy_pid = fork();
    if (row->busy_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        _exit(getppid() == parent ? busy_worker(row) : EXIT_DAEMON);
    }
    while (row->busy_pid > 0 && shm_load_acquire(&row->busy->done) < FULL) {
        if (interrupted || waitpid(row->busy_pid, NULL, WNOHANG) != 0)
            return false;
        usleep(1000);
    }
    shm_store_release(&row->busy->run, 0u);
    return row->busy_pid > 0;
}

void *lookup_busy_begin(void)
{
    struct lookup_row *row = lookup_p50_begin();
    if (row && busy_begin(row))
        return row;
    if (row)
        lookup_busy_end(row);
    return NULL;
}

double lookup_busy_value(void *self)
{
    struct lookup_row *row = self;
    uint32_t before = shm_load_acquire(&row->busy->done);
    shm_store_release(&row->busy->run, 1u);
    usleep(2000);
    double ns = rig_lookup_ns(row->rig, BUSY_CALLS, 990);
    shm_store_release(&row->busy->run, 0u);
    usleep(2000);
    if (shm_load_acquire(&row->busy->done) != before)
        return ns;
    tool_fail(0, "the busy worker did nothing.");
    return -1;
}

double lookup_busy_baseline(void *self)
{
    struct lookup_row *row = self;
    return rig_lookup_ns(row->rig, CALLS, 500);
}

void lookup_busy_end(void *self)
{
    struct lookup_row *row = self;
    if (row->busy_pid > 0) {
        kill(row->busy_pid, SIGKILL);
        waitpid(row->busy_pid, NULL, 0);
    }
    if (row->busy)
        munmap(row->busy, sizeof *row->busy);
    lookup_p50_end(row);
}

/* ---- peek.hot ------------------------------------------------------------------------------ */

void *peek_hot_begin(void)
{
    return lookup_p50_begin();
}

static double peek_ns(struct rig *g)
{
    uint64_t ns[CALLS];
    for (int i = 0; i < CALLS; i++) {
        uint64_t before = clock_ns();
        ssize_t n = pfx_peek(g->c, 0, g->tokens, BENCH_PREFIX_TOKENS + 1);
        ns[i] = clock_ns() - before;
        if (n != BENCH_PREFIX_TOKENS) {
            rig_fail(g->c, "peek failed", n < 0 ? (int)n : PFX_ENOENT);
            return -1;
        }
    }
    return (double)quantile(ns, CALLS, 500);
}

/* The worse of two: with the daemon awake, and with it stopped. */
double peek_hot_value(void *self)
{
    struct lookup_row *row = self;
    double awake = peek_ns(row->rig);
    rig_halt_daemon(row->rig);
    double stopped = peek_ns(row->rig);
    rig_resume_daemon(row->rig);
    if (awake < 0 || stopped < 0)
        return -1;
    return awake > stopped ? awake : stopped;
}

double peek_hot_baseline(void *self)
{
    struct lookup_row *row = self;
    return index_hot_value(row->hot);
}

void peek_hot_end(void *self)
{
    lookup_p50_end(self);
}
