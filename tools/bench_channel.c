/*
 * What a round trip costs: a private daemon that spins on one core, a worker (this process) on
 * another, and beside them the least that two cores can do, which is to pass a cache line to and
 * fro.
 *
 * The daemon is stopped by SIGSTOP while its core plays the other half of the ping-pong; the same
 * stop shows that a peek needs no daemon.
 *
 * With two cores there is none left for the worker that keeps the daemon busy: it shares ours and
 * sleeps while it waits for its answers.
 */
#include "tools/bench.h"
#include "tools/measure.h"
#include "tools/private_daemon.h"
#include "tools/raw_channel.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CALLS = 301,
    BUSY_CALLS = 3000,
    POOL_BLOCKS = 65536,
    BUSY_BLOCKS = 64,
    TRIPS = 200, /* in one timing: a trip is too short for the clock */
    BATCHES = 101,
    PREFIX_BLOCKS = BENCH_PREFIX_TOKENS / BENCH_BLOCK_TOKENS,
};

struct busy {
    uint32_t run;  /* 1: at full speed; 0: pause */
    uint32_t done; /* sequences inserted */
};

struct rig {
    struct private_daemon daemon;
    struct tool tool;
    struct cores cores;
    cpu_set_t before;
    struct raw_channel raw;
    pfx *c;
    uint64_t lease; /* holds the prefix, so that nobody evicts it */
    uint32_t *tokens;
    void *hot; /* of index.hot */
    struct busy *busy;
    pid_t busy_pid;
};

/* ---- the rig ------------------------------------------------------------------------------ */

static void rig_end(struct rig *g)
{
    if (g->busy_pid > 0) {
        kill(g->busy_pid, SIGKILL);
        waitpid(g->busy_pid, NULL, 0);
    }
    if (g->busy)
        munmap(g->busy, sizeof *g->busy);
    raw_detach(&g->raw);
    pfx_close(g->c);
    private_daemon_stop(&g->daemon);
    if (g->hot)
        index_hot_end(g->hot);
    sched_setaffinity(0, sizeof g->before, &g->before);
    free(g->tokens);
    free(g);
}

static struct rig *rig_begin(void)
{
    struct daemon_args args = {
        .arg = {"--blocks", "65536", "--block-tokens", "16", "--block-bytes", "64", "--spin-us",
                "1000000"},
        .n = 8};
    struct rig *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->raw.fd = -1;
    sched_getaffinity(0, sizeof g->before, &g->before);
    if (!cores_choose(&g->cores)) {
        tool_fail(0, "this measures two cores that talk to each other, and here is one.");
        rig_end(g);
        return NULL;
    }
    if (private_daemon_start(&g->daemon, &args) != EXIT_GOOD) {
        rig_end(g);
        return NULL;
    }
    g->tool.socket = g->daemon.socket;
    cores_pin(g->daemon.pid, g->cores.other);
    cores_pin(0, g->cores.mine);
    return g;
}

static bool fail(const struct rig *g, pfx *c, const char *what, int rc)
{
    if (!interrupted)
        tool_fail_pfx(&g->tool, what, rc, pfx_why(c));
    return false;
}

static bool insert(pfx *c, const uint32_t *tokens, uint32_t n_blocks, uint32_t *ids, int *rc)
{
    size_t n = (size_t)n_blocks * BENCH_BLOCK_TOKENS;
    struct pfx_lookup_args look = {
        .size = sizeof look, .flags = PFX_NO_MATCH, .tokens = tokens, .n_tokens = n};
    struct pfx_match m = {.size = sizeof m};
    struct pfx_insert_args args = {.size = sizeof args, .tokens = tokens, .n_written = n};
    struct pfx_insert_result out = {.size = sizeof out};
    return (*rc = pfx_lookup(c, &look, &m)) >= 0 &&
           (*rc = pfx_reserve(c, m.lease, n_blocks, ids)) >= 0 &&
           (*rc = pfx_insert(c, m.lease, &args, NULL, &out)) >= 0 &&
           (*rc = pfx_release(c, m.lease)) >= 0;
}

/* One token more than the prefix: all of it may match. */
static int lookup(const struct rig *g, struct pfx_match *m)
{
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = g->tokens, .n_tokens = BENCH_PREFIX_TOKENS + 1};
    m->size = sizeof *m;
    return pfx_lookup(g->c, &args, m);
}

/* Attach as a worker, and cache and hold the prefix. */
static bool rig_attach(struct rig *g)
{
    uint32_t ids[PREFIX_BLOCKS];
    struct pfx_match m;
    int rc = EXIT_GOOD;
    g->tokens = malloc((BENCH_PREFIX_TOKENS + 1) * sizeof *g->tokens);
    g->hot = index_hot_begin();
    g->c = tool_attach(&g->tool, &rc);
    if (!g->tokens || !g->hot || !g->c)
        return false;
    bench_fill_tokens(g->tokens, BENCH_PREFIX_TOKENS + 1, 7);
    if (!insert(g->c, g->tokens, PREFIX_BLOCKS, ids, &rc))
        return fail(g, g->c, "the prefix could not be cached", rc);
    rc = lookup(g, &m);
    if (rc < 0 || m.n_blocks != PREFIX_BLOCKS)
        return fail(g, g->c, "the prefix was not found", rc);
    g->lease = m.lease;
    return true;
}

static void daemon_halt(struct rig *g)
{
    kill(g->daemon.pid, SIGSTOP);
    siginfo_t info;
    waitid(P_PID, (id_t)g->daemon.pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

static void daemon_go(struct rig *g)
{
    kill(g->daemon.pid, SIGCONT);
}

/* ---- the least: a cache line to the other core and back ------------------------------------ */

struct lines {
    uint32_t ping;
    uint32_t pad0[31];
    uint32_t pong;
    uint32_t pad1[31];
    int core;
};

static void *answer_pings(void *arg)
{
    struct lines *l = arg;
    cores_pin(0, l->core);
    for (uint32_t i = 1; i <= TRIPS * (BATCHES + 1); i++) {
        while (shm_load_acquire(&l->ping) != i)
            ;
        shm_store_release(&l->pong, i);
    }
    return NULL;
}

static double pingpong(struct rig *g)
{
    struct lines *l = aligned_alloc(128, (sizeof *l + 127) & ~(size_t)127);
    uint64_t ns[BATCHES + 1];
    pthread_t partner;
    if (!l)
        return -1;
    memset(l, 0, sizeof *l);
    l->core = g->cores.other;
    daemon_halt(g);
    if (pthread_create(&partner, NULL, answer_pings, l) != 0) {
        free(l);
        return -1;
    }
    uint32_t i = 0;
    for (int batch = 0; batch <= BATCHES; batch++) {
        uint64_t before = now_ns();
        for (int trip = 0; trip < TRIPS; trip++) {
            shm_store_release(&l->ping, ++i);
            while (shm_load_acquire(&l->pong) != i)
                ;
        }
        ns[batch] = now_ns() - before;
    }
    pthread_join(partner, NULL);
    daemon_go(g);
    free(l);
    return (double)quantile(ns + 1, BATCHES, 500) / TRIPS;
}

/* ---- ring.p50 ------------------------------------------------------------------------------ */

void *ring_p50_begin(void)
{
    struct rig *g = rig_begin();
    if (g && raw_attach(&g->tool, &g->raw))
        return g;
    if (g)
        rig_end(g);
    return NULL;
}

double ring_p50_value(void *self)
{
    struct rig *g = self;
    uint64_t ns[BATCHES];
    for (int batch = -1; batch < BATCHES; batch++) { /* the first one warms up */
        uint64_t before = now_ns();
        for (int trip = 0; trip < TRIPS; trip++)
            if (!raw_round_trip(&g->raw))
                return -1;
        if (batch >= 0)
            ns[batch] = now_ns() - before;
    }
    return (double)quantile(ns, BATCHES, 500) / TRIPS;
}

double ring_p50_baseline(void *self)
{
    return pingpong(self);
}

void ring_p50_end(void *self)
{
    rig_end(self);
}

/* ---- lookup.p50 ----------------------------------------------------------------------------- */

void *lookup_p50_begin(void)
{
    struct rig *g = rig_begin();
    if (g && rig_attach(g))
        return g;
    if (g)
        rig_end(g);
    return NULL;
}

/* The time of a lookup, without that of the release after it; a quantile of n calls. */
static double lookup_ns(struct rig *g, int n, unsigned per_mille)
{
    uint64_t ns[BUSY_CALLS];
    struct pfx_match m;
    for (int i = -10; i < n; i++) {
        uint64_t before = now_ns();
        int rc = lookup(g, &m);
        uint64_t took = now_ns() - before;
        if (rc >= 0 && m.n_blocks != PREFIX_BLOCKS) {
            tool_fail(0, "the held prefix was found in part only.");
            return -1;
        }
        if (rc >= 0)
            rc = pfx_release(g->c, m.lease);
        if (rc < 0)
            return fail(g, g->c, "lookup or release failed", rc), -1;
        if (i >= 0)
            ns[i] = took;
    }
    return (double)quantile(ns, (size_t)n, per_mille);
}

double lookup_p50_value(void *self)
{
    return lookup_ns(self, CALLS, 500);
}

double lookup_p50_baseline(void *self)
{
    struct rig *g = self;
    double hot = index_hot_value(g->hot), line = pingpong(g);
    return hot < 0 || line < 0 ? -1 : 1.5 * hot + 5 * line;
}

void lookup_p50_end(void *self)
{
    rig_end(self);
}

/* ---- lookup.p99_busy -------------------------------------------------------------------------- */

/* Insert new sequences into a pool that is full, so that each reserve evicts; and evict some more. */
static int busy_worker(const struct rig *g)
{
    uint32_t tokens[BUSY_BLOCKS * BENCH_BLOCK_TOKENS], ids[BUSY_BLOCKS];
    bool shares = g->cores.third < 0;
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = g->tool.socket,
                                  .name = "busy",
                                  .map_devices = PFX_MAP_NONE,
                                  .spin_us = shares ? 1 : 0};
    pfx *c;
    int rc = pfx_open(&options, &c);
    if (rc < 0)
        return tool_fail_pfx(&g->tool, "the busy worker cannot attach", rc, pfx_why(NULL));
    cores_pin(0, shares ? g->cores.mine : g->cores.third);
    bench_fill_tokens(tokens, BUSY_BLOCKS * BENCH_BLOCK_TOKENS, 8);
    for (uint32_t i = 1;; i++) {
        struct pfx_evicted evicted = {.size = sizeof evicted};
        while (!shm_load_acquire(&g->busy->run))
            usleep(100);
        tokens[0] = i; /* the first block differs, so all do */
        if (!insert(c, tokens, BUSY_BLOCKS, ids, &rc) ||
            (i % 16 == 0 && (rc = pfx_evict(c, BUSY_BLOCKS, &evicted)) < 0))
            return tool_fail_pfx(&g->tool, "the busy worker failed", rc, pfx_why(c));
        shm_store_release(&g->busy->done, i);
    }
}

static bool busy_begin(struct rig *g)
{
    pid_t parent = getpid();
    g->busy = mmap(NULL, sizeof *g->busy, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g->busy == MAP_FAILED) {
        g->busy = NULL;
        return false;
    }
    g->busy->run = 1;
    fflush(NULL);
    g->busy_pid = fork();
    if (g->busy_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        _exit(getppid() == parent ? busy_worker(g) : EXIT_DAEMON);
    }
    /* Until the pool has been full. */
    while (g->busy_pid > 0 && shm_load_acquire(&g->busy->done) < POOL_BLOCKS / BUSY_BLOCKS + 100) {
        if (interrupted || waitpid(g->busy_pid, NULL, WNOHANG) != 0)
            return false;
        usleep(1000);
    }
    shm_store_release(&g->busy->run, 0u);
    return g->busy_pid > 0;
}

void *lookup_busy_begin(void)
{
    struct rig *g = lookup_p50_begin();
    if (g && busy_begin(g))
        return g;
    if (g)
        rig_end(g);
    return NULL;
}

double lookup_busy_value(void *self)
{
    struct rig *g = self;
    uint32_t before = shm_load_acquire(&g->busy->done);
    shm_store_release(&g->busy->run, 1u);
    usleep(2000);
    double ns = lookup_ns(g, BUSY_CALLS, 990);
    shm_store_release(&g->busy->run, 0u);
    if (shm_load_acquire(&g->busy->done) == before) {
        tool_fail(0, "the busy worker did nothing.");
        return -1;
    }
    usleep(2000);
    return ns;
}

double lookup_busy_baseline(void *self)
{
    return lookup_ns(self, CALLS, 500);
}

void lookup_busy_end(void *self)
{
    rig_end(self);
}

/* ---- peek.hot ---------------------------------------------------------------------------------- */

void *peek_hot_begin(void)
{
    return lookup_p50_begin();
}

static double peek_ns(struct rig *g)
{
    uint64_t ns[CALLS];
    for (int i = 0; i < CALLS; i++) {
        uint64_t before = now_ns();
        ssize_t n = pfx_peek(g->c, 0, g->tokens, BENCH_PREFIX_TOKENS + 1);
        ns[i] = now_ns() - before;
        if (n != BENCH_PREFIX_TOKENS)
            return fail(g, g->c, "peek failed", n < 0 ? (int)n : PFX_ENOENT), -1;
    }
    return (double)quantile(ns, CALLS, 500);
}

/* The worse of two: with the daemon awake, and with it stopped. */
double peek_hot_value(void *self)
{
    struct rig *g = self;
    double awake = peek_ns(g);
    daemon_halt(g);
    double stopped = peek_ns(g);
    daemon_go(g);
    if (awake < 0 || stopped < 0)
        return -1;
    return awake > stopped ? awake : stopped;
}

double peek_hot_baseline(void *self)
{
    struct rig *g = self;
    return index_hot_value(g->hot);
}

void peek_hot_end(void *self)
{
    rig_end(self);
}
