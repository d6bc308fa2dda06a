#include "tools/bench_rig.h"
#include "tools/bench.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SPIN_US = 1000000 /* so that neither side sleeps */ };

struct rig *rig_begin(const struct daemon_args *more)
{
    struct daemon_args args = {.arg = {"--blocks", "65536", "--block-tokens", "16", "--block-bytes",
                                       "64", "--spin-us", "1000000"},
                               .n = 8};
    for (unsigned i = 0; more && i + 1 < more->n; i += 2)
        daemon_args_add(&args, more->arg[i], more->arg[i + 1]);
    struct rig *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    sched_getaffinity(0, sizeof g->before, &g->before);
    if (!cores_choose(&g->cores)) {
        tool_fail(0, "this measures two cores that talk to each other, and here is one.");
        free(g);
        return NULL;
    }
    if (private_daemon_start(&g->daemon, &args) != EXIT_GOOD) {
        free(g);
        return NULL;
    }
    g->tool.socket = g->daemon.socket;
    cores_pin(g->daemon.pid, g->cores.other);
    cores_pin(0, g->cores.mine);
    return g;
}

void rig_end(struct rig *g)
{
    rig_resume_daemon(g); /* it is told that we go */
    pfx_close(g->c);
    private_daemon_stop(&g->daemon);
    sched_setaffinity(0, sizeof g->before, &g->before);
    free(g->tokens);
    free(g);
}

bool rig_fail(pfx *c, const char *what, int rc)
{
    if (!interrupted)
        tool_fail_pfx(what, rc, pfx_why(c));
    return false;
}

/* ---- the prefix --------------------------------------------------------------------------- */

int rig_lookup(const struct rig *g, struct pfx_match *m)
{
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = g->tokens, .n_tokens = g->n_tokens + 1};
    m->size = sizeof *m;
    return pfx_lookup(g->c, &args, m);
}

double rig_lookup_ns(struct rig *g, int n, unsigned per_mille)
{
    static uint64_t ns[RIG_CALLS];
    struct pfx_match m;
    for (int i = -10; i < n; i++) { /* the first ones warm up */
        uint64_t before = clock_ns();
        int rc = rig_lookup(g, &m);
        uint64_t took = clock_ns() - before;
        if (rc >= 0 && (m.matched_tokens != g->n_tokens || m.snapshot.depth != g->snapshot_depth ||
                        m.snapshot.tier_depth != g->tier_depth)) {
            tool_fail(0, "the held prefix was found otherwise than it is cached.");
            return -1;
        }
        if (rc >= 0)
            rc = pfx_release(g->c, m.lease);
        if (rc < 0) {
            rig_fail(g->c, "lookup or release failed", rc);
            return -1;
        }
        if (i >= 0)
            ns[i] = took;
    }
    return (double)quantile(ns, (size_t)n, per_mille);
}

static int cache_prefix(struct rig *g)
{
    uint32_t n_blocks = g->n_tokens / BENCH_BLOCK_TOKENS, *ids = malloc(n_blocks * sizeof *ids);
    struct pfx_match m;
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = g->tokens, .n_written = g->n_tokens};
    struct pfx_insert_result out = {.size = sizeof out};
    int rc = ids ? rig_lookup(g, &m) : PFX_EAGAIN;
    if (rc >= 0)
        rc = pfx_reserve(g->c, m.lease, n_blocks, ids);
    if (rc >= 0)
        rc = pfx_insert(g->c, m.lease, &args, NULL, &out);
    free(ids);
    return rc < 0 ? rc : pfx_release(g->c, m.lease);
}

bool rig_attach(struct rig *g, uint32_t n_tokens)
{
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = g->tool.socket,
                                  .name = "bench",
                                  .map_devices = PFX_MAP_NONE,
                                  .spin_us = SPIN_US};
    struct pfx_match m;
    g->n_tokens = n_tokens;
    g->tokens = malloc((n_tokens + 1) * sizeof *g->tokens);
    if (!g->tokens)
        return false;
    bench_fill_tokens(g->tokens, n_tokens + 1, 7);
    int rc = pfx_open(&options, &g->c);
    if (rc < 0)
        return rig_fail(NULL, "cannot attach", rc);
    rc = cache_prefix(g);
    if (rc < 0)
        return rig_fail(g->c, "the prefix could not be cached", rc);
    rc = rig_lookup(g, &m);
    if (rc < 0 || m.matched_tokens != n_tokens)
        return rig_fail(g->c, "the prefix was not found", rc);
    g->lease = m.lease;
    return true;
}

/* ---- the other core ------------------------------------------------------------------------ */

void rig_halt_daemon(struct rig *g)
{
    siginfo_t info;
    kill(g->daemon.pid, SIGSTOP);
    waitid(P_PID, (id_t)g->daemon.pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

void rig_resume_daemon(struct rig *g)
{
    kill(g->daemon.pid, SIGCONT);
}

/* A line a direction, each with one writer, as in any channel. */
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
    for (uint32_t i = 1; i <= RIG_TRIPS * (RIG_BATCHES + 1); i++) {
        while (shm_load_acquire(&l->ping) != i)
            cpu_relax();
        shm_store_release(&l->pong, i);
    }
    return NULL;
}

static double time_pings(struct lines *l)
{
    uint64_t ns[RIG_BATCHES];
    uint32_t i = 0;
    for (int batch = -1; batch < RIG_BATCHES; batch++) { /* the first one warms up */
        uint64_t before = clock_ns();
        for (int trip = 0; trip < RIG_TRIPS; trip++) {
            shm_store_release(&l->ping, ++i);
            while (shm_load_acquire(&l->pong) != i)
                cpu_relax();
        }
        if (batch >= 0)
            ns[batch] = clock_ns() - before;
    }
    return (double)quantile(ns, RIG_BATCHES, 500) / RIG_TRIPS;
}

double rig_pingpong(struct rig *g)
{
    struct lines *l = aligned_alloc(128, (sizeof *l + 127) & ~(size_t)127);
    pthread_t partner;
    double ns = -1;
    if (!l)
        return ns;
    memset(l, 0, sizeof *l);
    l->core = g->cores.other;
    rig_halt_daemon(g);
    if (pthread_create(&partner, NULL, answer_pings, l) == 0) {
        ns = time_pings(l);
        pthread_join(partner, NULL);
    }
    rig_resume_daemon(g);
    free(l);
    return ns;
}
