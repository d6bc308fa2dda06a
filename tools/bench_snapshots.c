/*
 * A lookup of a long prefix that thousands of snapshots hang on, against the same in a daemon that
 * has none. Both daemons have the other core, one at a time: the one not asked is halted.
 *
 * The snapshots make the search work for its answer: they lie a block apart, aligned and not, of
 * every kind, resident and spilled, and the deepest eighth of the path has only tails of other
 * sessions, which nobody is offered. What is offered, resident and spilled, must be the deepest of
 * the rest.
 */
#include "tools/bench.h"
#include "tools/bench_rig.h"

#include <sched.h>
#include <stdlib.h>

enum {
    CALLS = 301,
    STATES = 4096,
    TOKENS = STATES * BENCH_BLOCK_TOKENS,
    FOREIGN = STATES - STATES / 8, /* from here on */
};

struct state {
    uint32_t depth;
    enum pfx_snapshot_kind kind;
    uint64_t session;
    bool spilled;
};

static struct state state_at(uint32_t i)
{
    uint32_t rest = i % 2 ? 1 + i / 2 % (BENCH_BLOCK_TOKENS - 1) : BENCH_BLOCK_TOKENS;
    struct state s = {.depth = i * BENCH_BLOCK_TOKENS + rest, .kind = PFX_EXACT};
    unsigned turn = i % 8;
    if (i >= FOREIGN || turn == 2 || turn == 3)
        s.kind = PFX_TAIL;
    else if (turn == 4)
        s.kind = PFX_TAIL_SIBLING;
    else
        s.spilled = turn >= 6;
    if (s.kind != PFX_EXACT)
        s.session = 1 + i; /* each has one tail or sibling */
    return s;
}

static int save(pfx *c, uint64_t lease, const struct state *s)
{
    uint32_t slot;
    int rc = pfx_snapshot_reserve(c, lease, &slot);
    return rc < 0 ? rc : pfx_snapshot_insert(c, lease, slot, s->depth, s->kind);
}

/* Under a lease of its own session. */
static int save_of_session(const struct rig *g, const struct state *s)
{
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .session = s->session,
                                   .tokens = g->tokens,
                                   .n_tokens = g->n_tokens + 1};
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(g->c, &args, &m);
    if (rc < 0)
        return rc;
    rc = save(g->c, m.lease, s);
    int released = pfx_release(g->c, m.lease);
    return rc < 0 ? rc : released;
}

/* Those to be spilled first: while there is no other, they are the ones that go. */
static bool save_spilled(struct rig *g)
{
    for (uint32_t i = 0; i < STATES; i++) {
        struct state s = state_at(i);
        struct pfx_spilled out = {.size = sizeof out};
        if (!s.spilled)
            continue;
        int rc = save(g->c, g->lease, &s);
        if (rc >= 0)
            rc = pfx_snapshot_spill(g->c, 0, &out);
        if (rc < 0)
            return rig_fail(g->c, "a snapshot could not be saved and spilled", rc);
        if (out.dropped || out.depth != s.depth) {
            tool_fail(0, "a snapshot was not spilled.");
            return false;
        }
        g->tier_depth = s.depth;
    }
    return true;
}

static bool save_resident(struct rig *g)
{
    for (uint32_t i = 0; i < STATES; i++) {
        struct state s = state_at(i);
        if (s.spilled)
            continue;
        int rc = s.session ? save_of_session(g, &s) : save(g->c, g->lease, &s);
        if (rc < 0)
            return rig_fail(g->c, "a snapshot could not be saved", rc);
        if (s.kind != PFX_TAIL)
            g->snapshot_depth = s.depth;
    }
    return true;
}

/* ---- snapshots.lookup ----------------------------------------------------------------------- */

struct pair_of_rigs {
    struct rig *with, *without;
};

void *snapshots_lookup_begin(void)
{
    const struct daemon_args slots = {
        .arg = {"--snapshots", "4096", "--snapshot-bytes", "64", "--snapshot-swap", "256K"},
        .n = 6};
    struct pair_of_rigs *two = calloc(1, sizeof *two);
    if (!two)
        return NULL;
    two->with = rig_begin(&slots);
    if (two->with && rig_attach(two->with, TOKENS) && save_spilled(two->with) &&
        save_resident(two->with)) {
        rig_halt_daemon(two->with);
        sched_setaffinity(0, sizeof two->with->before, &two->with->before);
        two->without = rig_begin(NULL);
        if (two->without && rig_attach(two->without, TOKENS)) {
            rig_halt_daemon(two->without);
            return two;
        }
    }
    snapshots_lookup_end(two);
    return NULL;
}

static double time_of(struct rig *g)
{
    rig_resume_daemon(g);
    double ns = rig_lookup_ns(g, CALLS, 500);
    rig_halt_daemon(g);
    return ns;
}

double snapshots_lookup_value(void *self)
{
    struct pair_of_rigs *two = self;
    return time_of(two->with);
}

double snapshots_lookup_baseline(void *self)
{
    struct pair_of_rigs *two = self;
    return time_of(two->without);
}

void snapshots_lookup_end(void *self)
{
    struct pair_of_rigs *two = self;
    if (two->without)
        rig_end(two->without);
    if (two->with)
        rig_end(two->with);
    free(two);
}
