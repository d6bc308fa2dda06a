/*
 * The murder test: a scheduler is killed while the ranks of its group copy into the pages that it
 * leased, and another group wants the whole pool. The pages must not be given away under the ranks'
 * hands: no byte of the other group's pages changes while it holds them.
 */
#include "tests/death/murder.h"
#include "tests/worker.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

enum { ROUNDS = 1000, PATIENCE_MS = 20000 * SLOW };

struct play {
    struct host host;
    struct stage *stage;
    struct part part[RANKS];
    struct child rank[RANKS], other;
    struct worker observer; /* reads counters */
    struct rng rng;
};

static void play_begin(struct play *p, bool strangers)
{
    p->rng = rng_seeded("murder");
    HOST_START(&p->host, "--blocks", "128", "--block-tokens", "4", "--block-bytes", "1024",
               "--log-level", "error");
    p->stage = stage_new();
    p->stage->strangers = strangers;
    for (unsigned i = 0; i < RANKS; i++) {
        p->part[i] = (struct part){&p->host, p->stage, i, 1};
        child_start(&p->rank[i], rank_run, &p->part[i]);
    }
    child_start(&p->other, other_run, &p->part[0]);
    worker_open(&p->observer, &p->host, NULL);
    EVENTUALLY(PATIENCE_MS, counters(&p->observer).workers == 2); /* the other, and us */
    audit_clean(&p->host);
}

static void play_end(struct play *p)
{
    for (unsigned i = 0; i < RANKS; i++)
        child_kill(&p->rank[i], SIGKILL);
    child_kill(&p->other, SIGKILL);
    EVENTUALLY(PATIENCE_MS, counters(&p->observer).workers == 1);
    all_given_back(&p->host, p->observer.c);
    worker_close(&p->observer);
    host_stop(&p->host);
    munmap(p->stage, sizeof *p->stage);
}

/* Until the counter has grown by n. */
static void await_more(struct play *p, const uint64_t *counter, uint64_t n)
{
    uint64_t wanted = shm_load_acquire(counter) + n;
    EVENTUALLY(PATIENCE_MS, shm_load_acquire(counter) >= wanted);
}

/* Ranks copy, the other group wants, and then the scheduler is killed; returns when the daemon has
 * seen that. */
static void murder(struct play *p, uint32_t round)
{
    struct stage *s = p->stage;
    struct child scheduler;
    uint64_t reaped = counters(&p->observer).workers_reaped;
    shm_store_release(&s->round, round);
    for (unsigned i = 0; i < RANKS; i++)
        await_round(&s->attached[i], round);
    child_start(&scheduler, scheduler_run, &p->part[0]);
    await_round(&s->leased, round);
    await_more(p, &s->copied, 1 + rng_below(&p->rng, 16)); /* mid-copy: a pass is 64 */
    child_kill(&scheduler, SIGKILL);
    EVENTUALLY(PATIENCE_MS, counters(&p->observer).workers_reaped > reaped);
}

/* All but one end; that one is killed in mid-copy, and a new process takes its place. */
static void murder_last(struct play *p, uint32_t round, unsigned last)
{
    struct stage *s = p->stage;
    for (unsigned i = 0; i < RANKS; i++)
        if (i != last)
            await_round(&s->ended[i], round);
    await_more(p, &s->refused, 3);
    shm_store_release(&s->ended[last], round);
    child_kill(&p->rank[last], SIGKILL);
    p->part[last].first = round + 1;
    child_start(&p->rank[last], rank_run, &p->part[last]);
}

static void play_round(struct play *p, uint32_t round)
{
    struct stage *s = p->stage;
    murder(p, round);
    await_more(p, &s->refused, 3); /* it has wanted the whole pool, in vain */
    ck_assert_uint_eq(counters(&p->observer).blocks_private, POOL);
    shm_store(&s->last, round % 16 == 0 ? rng_below(&p->rng, RANKS) : RANKS);
    shm_store_release(&s->over, round);
    if (shm_load(&s->last) < RANKS)
        murder_last(p, round, shm_load(&s->last));
    await_round(&s->served, round); /* the last rank has ended, and the pages came back */
    ck_assert_msg(shm_load(&s->early) == 0, "round %u: pages of ranks that live were given away",
                  round);
    ck_assert_msg(shm_load(&s->changed) == 0, "round %u: bytes of the other group changed", round);
    ck_assert_msg(shm_load(&s->overwritten) == 0, "round %u: bytes of the ranks changed", round);
    EVENTUALLY(PATIENCE_MS, counters(&p->observer).workers == 2);
    all_given_back(&p->host, p->observer.c);
}

START_TEST(pages_outlive_their_scheduler)
{
    struct play p;
    play_begin(&p, false);
    uint64_t before = now_ms();
    for (uint32_t round = 1; round <= ROUNDS; round++)
        play_round(&p, round);
    uint64_t ms = now_ms() - before;
    fprintf(stderr, "%d murders, %llu us each; %llu pages copied by rank 0, %llu wishes refused\n",
            ROUNDS, (unsigned long long)ms * 1000 / ROUNDS, (unsigned long long)p.stage->copied,
            (unsigned long long)p.stage->refused);
    ck_assert_uint_ge(p.stage->refused, 3 * ROUNDS);
    play_end(&p);
}
END_TEST

/* Without the group the pages do go to somebody else, and this very test sees it. */
START_TEST(the_test_sees_pages_given_away)
{
    struct play p;
    play_begin(&p, true);
    struct stage *s = p.stage;
    for (uint32_t round = 1; round <= 3; round++) {
        uint64_t changed = shm_load(&s->changed);
        murder(&p, round);
        EVENTUALLY(PATIENCE_MS, shm_load(&s->changed) > changed);
        ck_assert_uint_gt(shm_load(&s->early), 0);
        shm_store_release(&s->over, round);
        await_round(&s->served, round);
        EVENTUALLY(PATIENCE_MS, counters(&p.observer).workers == 2);
        all_given_back(&p.host, p.observer.c);
    }
    play_end(&p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("murder");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, pages_outlive_their_scheduler);
    tcase_add_test(t, the_test_sees_pages_given_away);
    suite_add_tcase(s, t);
    return s;
}
