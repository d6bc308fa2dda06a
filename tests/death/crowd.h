/*
 * crowd.h - workers at full speed: random requests, every page that they see compared.
 *
 * A story is a random prompt: at each depth one of a few blocks, so that stories share beginnings.
 * A block's key follows from its tenant and all tokens up to its end; a page is its key and words
 * that follow from it. So foreign, torn or overwritten bytes show, whoever wrote the page.
 *
 *      test process   crowd_new, forks actors, audits meanwhile, reads tallies
 *      actor          actor_run or storm_run, until it has done its requests, or `stop`, or SIGKILL
 */
#ifndef TESTS_DEATH_CROWD_H
#define TESTS_DEATH_CROWD_H

#include "client/prefixd.h"
#include "shm/atomic.h"
#include "tests/harness.h"

enum { CROWD_MAX = 8, STORY_BLOCKS = 10, STORY_TOKENS = (STORY_BLOCKS + 1) * 16 };

/* Written by one actor, in memory that all share. */
struct tally {
    uint64_t requests, calls; /* leases ended; calls that came back */
    uint64_t verified, hits, created;
    uint64_t worst_us; /* slowest call */
    uint32_t attached, pad[3];
};

struct crowd {
    struct tally tally[CROWD_MAX];
    uint32_t stop;
};

struct crowd *crowd_new(void);
void crowd_free(struct crowd *c);
void crowd_stop(struct crowd *c);
/* Fails the test if it has ended already. */
void child_lives(const struct child *c);
uint64_t crowd_requests(const struct crowd *c); /* of all actors, so far */

struct actor {
    const struct host *host;
    struct crowd *crowd;
    unsigned number; /* of its tally */
    const char *name, *group;
    uint64_t seed;
    uint64_t requests;   /* then it closes; 0: until stop */
    unsigned timeout_ms; /* a call that takes longer fails the test */
    unsigned ring_entries;
};

/* One synchronous call after another: lookup, reserve, fill, insert, truncate, release, evict,
 * flush, spaces of two tenants, up to four leases at once. */
void actor_run(struct child *me, void *actor);
/* As many asynchronous calls as the ring takes, all the time. */
void storm_run(struct child *me, void *actor);

/* A process that naps for 50 us again and again: how late this machine lets it run is what a time
 * limit must allow for, since neither the daemon nor its workers are to blame for that. */
struct beat {
    struct crowd *crowd;
    struct actor actor;
    struct child child;
};
void beat_begin(struct beat *b);
uint64_t beat_end(struct beat *b); /* the worst, in us */

/* ---- stories and pages: for tests of their own -------------------------------------- */

struct story {
    uint32_t tokens[STORY_TOKENS];
    uint32_t n_blocks, rest;        /* whole blocks; tokens after them */
    uint64_t key[STORY_BLOCKS + 1]; /* of each block; the last one of the rest */
};

void story_draw(struct story *s, struct rng *r, uint32_t block_tokens, uint64_t tenant);
static inline size_t story_tokens(const struct story *s, uint32_t block_tokens)
{
    return (size_t)s->n_blocks * block_tokens + s->rest;
}

void page_fill(pfx *c, uint32_t block, uint64_t key);
bool page_holds(pfx *c, uint32_t block, uint64_t key);
bool page_whole(pfx *c, uint32_t block); /* some key, and all words follow from it */

/* All is given back: nothing private or held, free + idle = all, and the audit is clean. */
void all_given_back(struct host *h, pfx *c);

#endif
