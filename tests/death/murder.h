/*
 * murder.h - the cast of the murder test.
 *
 *      scheduler   a process a round: leases PAGES pages for its group, and is killed
 *      ranks       RANKS processes: copy slowly into these pages, each its own shard of every page,
 *                  until the round is over; then they close (or one of them is killed as well)
 *      other       of another group: wants the whole pool, again and again; fills what it gets, and
 *                  compares it as long as it holds it
 *
 * They meet in memory that all share. A word that holds the number of the round says that its event
 * has happened in it.
 */
#ifndef TESTS_DEATH_MURDER_H
#define TESTS_DEATH_MURDER_H

#include "tests/death/crowd.h"

enum { RANKS = 4, POOL = 128, PAGES = 64, PAGE_WORDS = 1024 / 8, SHARD_WORDS = PAGE_WORDS / RANKS };

struct stage {
    uint32_t round;           /* the one that is on */
    uint32_t strangers;       /* the ranks are no group: the test must see what happens then */
    uint32_t attached[RANKS]; /* rounds */
    uint32_t leased;          /* round: `table` is right */
    uint32_t over;            /* round: ranks end now, but for `last` */
    uint32_t last;            /* the rank that goes on until it is killed; RANKS: none */
    uint32_t ended[RANKS];    /* round: writes no more */
    uint32_t served;          /* round: the other group has had the whole pool, and given it back */
    uint32_t table[PAGES];
    uint64_t copied;               /* shards begun, by rank 0 */
    uint64_t refused;              /* PFX_ENOSPC, by the other group */
    uint64_t early;                /* pages that it got while a rank could still write */
    uint64_t changed, overwritten; /* foreign bytes in its pages; in the ranks' pages */
};

struct part {
    const struct host *host;
    struct stage *stage;
    unsigned rank;
    uint32_t first; /* round in which it begins */
};

struct stage *stage_new(void);
/* Wait, as a process of the play, until the word holds the round. */
void await_round(const uint32_t *word, uint32_t round);

void scheduler_run(struct child *me, void *part);
void rank_run(struct child *me, void *part);
void other_run(struct child *me, void *part);

#endif
