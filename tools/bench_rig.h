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
};

struct rig {
    struct private_daemon daemon;
    struct tool tool;
    struct cores cores;
    cpu_set_t before;
    pfx *c;           /* once attached */
    uint32_t *tokens; /* the prefix, and one more */
    uint64_t lease;   /* holds it, so that nobody evicts it */
};

struct rig *rig_begin(void); /* NULL after a sentence */
void rig_end(struct rig *g);

/* Attach as a worker, and cache and hold a prefix of BENCH_PREFIX_TOKENS. */
bool rig_attach(struct rig *g);
/* Look that prefix up; all of it may match. */
int rig_lookup(const struct rig *g, struct pfx_match *m);

/* False, after a sentence about a failed call. */
bool rig_fail(pfx *c, const char *what, int rc);

void rig_halt_daemon(struct rig *g);
void rig_resume_daemon(struct rig *g);

/* A cache line to the daemon's core and back, in ns; the daemon is halted meanwhile. Negative: it
 * could not be measured. */
double rig_pingpong(struct rig *g);

#endif
