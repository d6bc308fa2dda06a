/*
 * bench_rig.h - a private daemon that spins on one core, a worker (this process) on another, and
 * beside them the least that two cores can do: pass a cache line to and fro.
 */
#ifndef TOOLS_BENCH_RIG_H
#define TOOLS_BENCH_RIG_H

#include "tools/measure.h"
#include "tools/private_daemon.h"

#include <sched.h>

enum {
    RIG_TRIPS = 200,   /* in one timing: a trip is too short for the clock */
    RIG_BATCHES = 101, /* timings, of which the median counts */
    RIG_POOL_BLOCKS = 65536,
    RIG_CALLS = 30000,
};

struct rig {
    struct private_daemon daemon;
    struct tool tool;
    struct cores cores;
    cpu_set_t before;
    pfx *c;                              /* once attached */
    uint32_t *tokens;                    /* the prefix, and one more */
    uint32_t n_tokens;                   /* of the prefix */
    uint64_t lease;                      /* holds it, so that nobody evicts it */
    uint32_t snapshot_depth, tier_depth; /* what a lookup of it must offer */
};

/* A daemon with these options besides (NULL: none). NULL after a sentence. */
struct rig *rig_begin(const struct daemon_args *more);
void rig_end(struct rig *g);

/* Attach as a worker, and cache and hold a prefix of n tokens. */
bool rig_attach(struct rig *g, uint32_t n_tokens);
/* Look that prefix up; all of it may match. */
int rig_lookup(const struct rig *g, struct pfx_match *m);
/* The time of a lookup of it, without that of the release after it: a quantile of n calls, which
 * are at most RIG_CALLS. Negative after a sentence: it failed, or found something else. */
double rig_lookup_ns(struct rig *g, int n, unsigned per_mille);

/* False, after a sentence about a failed call. */
bool rig_fail(pfx *c, const char *what, int rc);

void rig_halt_daemon(struct rig *g);
void rig_resume_daemon(struct rig *g);

/* A cache line to the daemon's core and back, in ns; the daemon is halted meanwhile. Negative: it
 * could not be measured. */
double rig_pingpong(struct rig *g);

#endif
