/*
 * kill -9 of a worker at random points while two others go on, and B38: what a dead worker held
 * comes back, its name is free at once, and nobody else waits for it.
 */
#include "tests/death/crowd.h"
#include "tests/death/rows.h"
#include "tests/worker.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum {
    ROUNDS = 500,
    DEADLINE_MS = 500 * SLOW, /* of any call of the honest, on a machine that is never late */
    DETECTED_MS = 2000 * SLOW,
    HONEST = 2,
    VICTIM = HONEST, /* number of its tally */
};

struct scene {
    struct host host;
    struct crowd *crowd, *victims; /* the victims' stop is never set */
    struct actor honest[HONEST], victim;
    struct child child[HONEST];
    struct beat beat;
    struct rng rng;
    unsigned early; /* rounds in which it died before it was attached */
};

static void scene_begin(struct scene *s)
{
    static const char *const names[] = {"honest one", "honest two"};
    s->rng = rng_seeded("kill");
    HOST_START(&s->host, "--blocks", "160", "--block-tokens", "8", "--block-bytes", "512");
    audit_clean(&s->host);
    s->crowd = crowd_new();
    s->victims = crowd_new();
    for (unsigned i = 0; i < HONEST; i++) {
        s->honest[i] = (struct actor){.host = &s->host,
                                      .crowd = s->crowd,
                                      .number = i,
                                      .name = names[i],
                                      .seed = rng_next(&s->rng),
                                      .timeout_ms = 10000 * SLOW};
        child_start(&s->child[i], actor_run, &s->honest[i]);
        EVENTUALLY(20000, shm_load_acquire(&s->crowd->tally[i].attached));
    }
    beat_begin(&s->beat);
    s->victim = (struct actor){.host = &s->host,
                               .crowd = s->victims,
                               .number = VICTIM,
                               .name = "victim",
                               .timeout_ms = 60000};
}

/* One in four is killed while it attaches, the others after a call at least. */
static pid_t kill_one(struct scene *s)
{
    struct tally *t = &s->victims->tally[VICTIM];
    struct child victim;
    bool wait = rng_below(&s->rng, 4) != 0;
    s->victim.seed = rng_next(&s->rng);
    uint64_t calls = t->calls + 1 + rng_below(&s->rng, 4);
    shm_store(&t->attached, 0u);
    child_start(&victim, rng_below(&s->rng, 3) ? actor_run : storm_run, &s->victim);
    while (wait && shm_load(&t->calls) < calls) {
        child_lives(&victim);
        sleep_us(50);
    }
    sleep_us(rng_below(&s->rng, 2000));
    s->early += !shm_load_acquire(&t->attached);
    child_kill(&victim, SIGKILL);
    return victim.pid;
}

static struct workers workers_of(const struct scene *s)
{
    struct workers w;
    workers_now(&s->host, &w);
    return w;
}

static bool gone(const struct scene *s, pid_t pid)
{
    struct workers w = workers_of(s);
    return workers_find_pid(&w, pid) == NULL;
}

/* Its name is free at once, and who takes it has nothing of the dead one's. */
static void take_its_name(struct scene *s)
{
    struct worker w = {.host = &s->host};
    struct pfx_options o = worker_options(&s->host);
    o.name = "victim";
    o.timeout_ms = 10000 * SLOW;
    int rc = pfx_open(&o, &w.c);
    ck_assert_msg(rc == 0, "pfx_open: %s", pfx_why(NULL));
    struct workers now = workers_of(s);
    const struct worker_row *row = workers_find_pid(&now, getpid());
    ck_assert_ptr_nonnull(row);
    ck_assert_uint_eq(row->leases, 0);
    ck_assert_uint_eq(row->private_blocks, 0);
    ck_assert_uint_eq(row->opened_spaces, 0);
    struct seq prompt = seq("0123456789abcdef");
    struct pfx_lookup_args args = lookup_args(&w, &prompt);
    struct pfx_match m = {.size = sizeof m};
    ck_assert_int_eq(pfx_lookup(w.c, &args, &m), 0);
    ck_assert_int_eq(pfx_release(w.c, m.lease), 0);
    pfx_close(w.c);
}

static void scene_end(struct scene *s)
{
    crowd_stop(s->crowd);
    uint64_t worst = 0, verified = 0, late = beat_end(&s->beat);
    for (unsigned i = 0; i < HONEST; i++) {
        child_join(&s->child[i]);
        const struct tally *t = &s->crowd->tally[i];
        worst = t->worst_us > worst ? t->worst_us : worst;
        verified += t->verified;
        ck_assert_uint_gt(t->requests, ROUNDS);
        ck_assert_uint_le(t->worst_us, DEADLINE_MS * 1000u + 5 * late); /* five turns at most */
    }
    const struct tally *t = &s->victims->tally[VICTIM];
    fprintf(stderr,
            "%d killed, %u of them while attaching, after %llu calls; the honest compared %llu "
            "pages, slowest call %llu us; the machine was %llu us late\n",
            ROUNDS, s->early, (unsigned long long)t->calls, (unsigned long long)verified,
            (unsigned long long)worst, (unsigned long long)late);
    ck_assert_uint_gt(t->calls, ROUNDS);
    struct worker w;
    worker_open(&w, &s->host, NULL);
    struct pfx_stats now = counters(&w);
    ck_assert_uint_eq(now.workers, 1);
    ck_assert_uint_ge(now.workers_reaped, ROUNDS - s->early);
    all_given_back(&s->host, w.c);
    worker_close(&w);
    host_stop(&s->host);
    crowd_free(s->crowd);
    crowd_free(s->victims);
}

START_TEST(killed_at_random_points)
{
    struct scene s = {.early = 0};
    scene_begin(&s);
    audit_clean(&s.host); /* so that the daemon has done with those that attached */
    unsigned fds = count_fds(s.host.pid);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pid = kill_one(&s);
        take_its_name(&s);
        EVENTUALLY(DETECTED_MS, gone(&s, pid));
        audit_clean(&s.host);
        for (unsigned i = 0; i < HONEST; i++)
            child_lives(&s.child[i]);
    }
    EVENTUALLY(DETECTED_MS, count_fds(s.host.pid) == fds);
    scene_end(&s);
}
END_TEST

/* ---- B38 ------------------------------------------------------------------------------ */

#define HELD "aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj" /* ten blocks */
#define MORE HELD "kkkkllllmmmmnnnnoooo"                /* five more: T */

/* Holds ten, reserves five, fills three of them wrongly, and is killed before it has inserted. */
static void b38_victim(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    struct held h = look(&w, MORE);
    ck_assert_uint_eq(h.match.n_blocks, 10);
    ck_assert_int_eq(grab(&w, &h, 5), 0);
    for (unsigned i = 10; i < 13; i++)
        memset(pfx_block_address(w.c, 0, h.table[i]), 0xee, 64);
    child_post(me, 1);
    child_wait(me); /* for ever */
}

static void b38_round(struct worker *w2)
{
    struct child w1;
    child_start(&w1, b38_victim, w2->host);
    child_wait(&w1);
    struct held six = look(w2, "aaaabbbbccccddddeeeeffffX");
    ck_assert_uint_eq(six.match.n_blocks, 6);
    pages_are(w2, 5, 5, 10, 0);
    child_kill(&w1, SIGKILL);

    struct worker again; /* all workers of these tests have one name */
    worker_open(&again, w2->host, NULL);
    EVENTUALLY(DETECTED_MS, pages(w2).private == 0);
    pages_are(w2, 10, 0, 6, 4);
    ck_assert_uint_eq(counters(w2).leases, 1);
    ck_assert_uint_eq(matched(&again, MORE), 40); /* nothing of the half insert */
    worker_close(&again);

    ck_assert_uint_eq(cache(w2, MORE), 5);
    bytes_match(w2, &six, "aaaabbbbccccddddeeeeffffX");
    ck_assert_uint_eq(matched(w2, MORE "x"), 60);
    ck_assert_uint_eq(evict(w2, 20), 9); /* all but the six */
    bytes_match(w2, &six, "aaaabbbbccccddddeeeeffffX");
    drop(w2, &six);
    cache(w2, HELD);
    pages_are(w2, 10, 0, 0, 10);
}

START_TEST(b38_a_dead_worker_leaves_nothing)
{
    struct host h;
    struct worker w2;
    host_small(&h, 20, 4);
    worker_open(&w2, &h, NULL);
    cache(&w2, HELD);
    for (int i = 0; i < 50; i++)
        b38_round(&w2);
    ck_assert_uint_eq(counters(&w2).workers_reaped, 50);
    worker_close(&w2);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kill");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, killed_at_random_points);
    tcase_add_test(t, b38_a_dead_worker_leaves_nothing);
    suite_add_tcase(s, t);
    return s;
}
