/*
 * A litmus for each named ordering edge: seen to fail when the order is weakened, and not with it.
 * A stress test is no evidence for an ordering edge (style.md, "A warning that was measured").
 *
 *   DOZE     a real store-buffer test: x86-64 itself lets a load pass an earlier store, so with the
 *            fences taken out the hardware breaks it
 *   POST, DROP, VERSION, LATCH
 *            x86-64 keeps stores among themselves, and loads among themselves, in program order, so
 *            taking away release and acquire would show nothing here (it would on ARM, and to the
 *            compiler everywhere). These are weakened by writing the accesses in the order in
 *            which a weaker machine may perform them. That shows what each edge is for and that
 *            the litmus has eyes; it is no proof for machines that we do not have.
 */
#include "shm/ring.h"
#include "shm/stats.h"
#include "tests/harness.h"
#include "tests/litmus/litmus.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* How long a weakened run may go on until it is seen to fail. */
enum { EYES_MS = 60000 };

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* only a help */
}

/* ---- DOZE ------------------------------------------------------------------------ */

enum { ROUNDS = 400000 };

struct duel {
    bool (*side[2])(struct doze_slot *);
    struct doze_slot *slots;
    uint8_t *answer[2];
    uint32_t at[2][16]; /* round that each side has come to, a line each */
};

struct dueller {
    struct duel *d;
    int me;
};

/* Both sides enter each round together; the pauses let now one, now the other be first. */
static void *duel_side(void *arg)
{
    struct dueller *who = arg;
    struct duel *d = who->d;
    struct rng r = {(uint64_t)who->me + 1};
    pin(who->me);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        shm_store_release(&d->at[who->me][0], i + 1);
        while (shm_load_acquire(&d->at[!who->me][0]) < i + 1)
            ;
        for (uint32_t wait = rng_below(&r, 16); wait; wait--)
            __asm__ __volatile__("" ::: "memory");
        d->answer[who->me][i] = d->side[who->me](&d->slots[i]);
    }
    return NULL;
}

/* Rounds in which the sleeper slept and the writer did not wake it. */
static unsigned duel_missed(bool (*sleeper)(struct doze_slot *), bool (*writer)(struct doze_slot *))
{
    struct duel d = {.side = {sleeper, writer}};
    d.slots = aligned_alloc(64, sizeof *d.slots * ROUNDS);
    memset(d.slots, 0, sizeof *d.slots * ROUNDS);
    for (int i = 0; i < 2; i++)
        d.answer[i] = malloc(ROUNDS);
    pthread_t thread[2];
    struct dueller who[2] = {{&d, 0}, {&d, 1}};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, duel_side, &who[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    unsigned missed = 0;
    for (uint32_t i = 0; i < ROUNDS; i++)
        missed += d.answer[0][i] && !d.answer[1][i];
    free(d.slots);
    free(d.answer[0]);
    free(d.answer[1]);
    return missed;
}

START_TEST(litmus_doze)
{
    ck_assert_uint_eq(duel_missed(doze_strong_sleeper, doze_strong_writer), 0);
    unsigned missed = 0;
    for (uint64_t until = now_ms() + EYES_MS; !missed && now_ms() < until;)
        missed = duel_missed(doze_weak_sleeper, doze_weak_writer);
    ck_assert_msg(missed > 0, "the litmus is blind: no wake-up was missed without the fences");
}
END_TEST

/* Only one of the two fences taken out: each is needed. */
START_TEST(litmus_doze_needs_both_fences)
{
    unsigned missed = 0;
    for (uint64_t until = now_ms() + EYES_MS; !missed && now_ms() < until;)
        missed = duel_missed(doze_weak_sleeper, doze_strong_writer);
    ck_assert_msg(missed > 0, "DOZE-1 alone was not seen to be needed");
    missed = 0;
    for (uint64_t until = now_ms() + EYES_MS; !missed && now_ms() < until;)
        missed = duel_missed(doze_strong_sleeper, doze_weak_writer);
    ck_assert_msg(missed > 0, "DOZE-2 alone was not seen to be needed");
}
END_TEST

/* ---- edges with a writer that goes on and a reader that judges --------------------------- */

/* What both sides share. Each line of the edges below says who writes what. */
struct stage {
    uint64_t stop;
    uint8_t entries[RING_MIN * RING_RECORD];
    uint32_t tail, pad0[15], head, pad1[15];
    uint64_t version, pad2[7];
    uint64_t word[8];
    struct stats_latch latch;
};

struct actor {
    struct stage *s;
    void (*act)(struct stage *s, uint64_t n);
};

static void *act_on(void *arg)
{
    struct actor *a = arg;
    pin(1);
    for (uint64_t n = 0; !shm_load(&a->s->stop); n++)
        a->act(a->s, n);
    return NULL;
}

/* Run the writer against `judge` (true: it saw something impossible) until n judgements were passed
 * or, in weakened runs, one was bad. */
static unsigned judged(void (*act)(struct stage *, uint64_t),
                       bool (*judge)(struct stage *, uint64_t), unsigned n, bool weakened)
{
    struct stage *s = aligned_alloc(64, (sizeof *s + 63) & ~(size_t)63);
    memset(s, 0, sizeof *s);
    struct actor a = {s, act};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, act_on, &a), 0);
    pin(0);
    unsigned bad = 0;
    uint64_t until = now_ms() + EYES_MS;
    for (uint64_t i = 0; weakened ? !bad && (i % 1024 || now_ms() < until) : i < n; i++)
        bad += judge(s, i);
    shm_store(&s->stop, 1);
    pthread_join(thread, NULL);
    free(s);
    return bad;
}

static void judge_edge(const char *edge, bool weakened, void (*act)(struct stage *, uint64_t),
                       bool (*judge)(struct stage *, uint64_t))
{
    unsigned bad = judged(act, judge, ROUNDS, weakened);
    if (weakened)
        ck_assert_msg(bad > 0, "the litmus of %s is blind", edge);
    else
        ck_assert_msg(bad == 0, "%s was broken %u times", edge, bad);
}

/* A moment in which a reordered pair of accesses shows. */
static void a_moment(uint64_t n)
{
    for (uint64_t i = n % 64; i; i--)
        cpu_relax();
}

/* ---- POST and DROP ------------------------------------------------------------------------ */

static struct ring_writer writer_of(struct stage *s, uint64_t n)
{
    return (struct ring_writer){.entries = s->entries,
                                .shared_tail = &s->tail,
                                .shared_head = &s->head,
                                .size = RING_MIN,
                                .tail = (uint32_t)n,
                                .peer_head = (uint32_t)n - RING_MIN};
}

static struct ring_reader reader_of(struct stage *s, uint64_t n)
{
    return (struct ring_reader){.entries = s->entries,
                                .shared_head = &s->head,
                                .shared_tail = &s->tail,
                                .size = RING_MIN,
                                .head = (uint32_t)n,
                                .peer_tail = (uint32_t)n};
}

static void record_fill(uint64_t record[8], uint64_t n)
{
    for (int i = 0; i < 8; i++)
        record[i] = n;
}

static bool record_wrong(const uint64_t record[8], uint64_t n)
{
    for (int i = 0; i < 8; i++)
        if (record[i] != n)
            return true;
    return false;
}

static bool claim(struct stage *s, struct ring_writer *w)
{
    while (ring_claim(w) == RING_NONE)
        if (shm_load(&s->stop))
            return false;
    return true;
}

static void post_strong(struct stage *s, uint64_t n)
{
    struct ring_writer w = writer_of(s, n);
    uint64_t record[8];
    record_fill(record, n);
    if (claim(s, &w))
        ring_post(&w, record);
}

static void post_weak(struct stage *s, uint64_t n) /* the tail is seen before the record */
{
    struct ring_writer w = writer_of(s, n);
    if (!claim(s, &w))
        return;
    shm_store(w.shared_tail, w.tail + 1);
    a_moment(n);
    for (int i = 0; i < 8; i++)
        shm_store((uint64_t *)(void *)(w.entries + (n % RING_MIN) * RING_RECORD) + i, n);
}

static bool take_strong(struct stage *s, uint64_t n)
{
    struct ring_reader r = reader_of(s, n);
    uint64_t record[8];
    while (ring_peek(&r, record) == RING_NONE)
        ;
    ring_drop(&r);
    return record_wrong(record, n);
}

static bool take_weak(struct stage *s, uint64_t n) /* the entry is given back before it was read */
{
    struct ring_reader r = reader_of(s, n);
    uint64_t record[8];
    while (shm_load_acquire(r.shared_tail) == r.head)
        ;
    shm_store(r.shared_head, r.head + 1);
    a_moment(n * 7);
    for (int i = 0; i < 8; i++)
        record[i] = shm_load((uint64_t *)(void *)(s->entries + (n % RING_MIN) * RING_RECORD) + i);
    return record_wrong(record, n);
}

START_TEST(litmus_post)
{
    judge_edge("POST", false, post_strong, take_strong);
    judge_edge("POST", true, post_weak, take_strong);
}
END_TEST

START_TEST(litmus_drop)
{
    judge_edge("DROP", false, post_strong, take_strong);
    judge_edge("DROP", true, post_strong, take_weak);
}
END_TEST

/* ---- VERSION ------------------------------------------------------------------------------- */

static void change_words(struct stage *s, uint64_t n)
{
    for (int i = 0; i < 8; i++)
        shm_store(&s->word[i], n);
}

static void version_strong(struct stage *s, uint64_t n) /* as node_begin and node_end */
{
    shm_store(&s->version, s->version + 1);
    shm_write_fence();
    change_words(s, n);
    shm_store_release(&s->version, s->version + 1);
    a_moment(n);
}

/* Changes are seen before the odd version. */
static void version_weak_writer(struct stage *s, uint64_t n)
{
    change_words(s, n);
    shm_store(&s->version, s->version + 1);
    shm_store_release(&s->version, s->version + 1);
    a_moment(n);
}

static bool version_read(struct stage *s, uint64_t n)
{
    uint64_t seen[8];
    uint64_t before = shm_load_acquire(&s->version);
    for (int i = 0; i < 8; i++)
        seen[i] = shm_load(&s->word[i]);
    shm_read_fence();
    if ((before & 1) || shm_load(&s->version) != before)
        return false; /* read again, says the edge */
    return record_wrong(seen, seen[0]);
}

/* The check is done before the reading. */
static bool version_weak_reader(struct stage *s, uint64_t n)
{
    uint64_t seen[8];
    uint64_t before = shm_load_acquire(&s->version);
    if ((before & 1) || shm_load(&s->version) != before)
        return false;
    for (int i = 0; i < 8; i++)
        seen[i] = shm_load(&s->word[i]);
    return record_wrong(seen, seen[0]);
}

START_TEST(litmus_version)
{
    judge_edge("VERSION", false, version_strong, version_read);
    judge_edge("VERSION (writer)", true, version_weak_writer, version_read);
    judge_edge("VERSION (reader)", true, version_strong, version_weak_reader);
}
END_TEST

/* ---- LATCH ---------------------------------------------------------------------------------- */

static struct counters counters_of(uint64_t n)
{
    struct counters c;
    uint64_t *word = (uint64_t *)(void *)&c;
    for (unsigned i = 0; i < COUNTERS_N; i++)
        word[i] = n;
    return c;
}

static void latch_strong(struct stage *s, uint64_t n)
{
    struct counters c = counters_of(n);
    stats_publish(&s->latch, &c);
    a_moment(n);
}

static void latch_weak(struct stage *s, uint64_t n) /* the sequence is seen before the half */
{
    uint64_t next = s->latch.sequence + 1;
    shm_store(&s->latch.sequence, next);
    for (unsigned i = 0; i < COUNTERS_N; i++)
        shm_store(&s->latch.half[next & 1][i], n);
    a_moment(n);
}

static bool latch_read(struct stage *s, uint64_t n)
{
    struct counters c;
    if (!stats_copy(&s->latch, &c))
        return false;
    const uint64_t *word = (const uint64_t *)(const void *)&c;
    for (unsigned i = 1; i < COUNTERS_N; i++)
        if (word[i] != word[0])
            return true;
    return false;
}

START_TEST(litmus_latch)
{
    judge_edge("LATCH", false, latch_strong, latch_read);
    judge_edge("LATCH", true, latch_weak, latch_read);
}
END_TEST

/* A daemon stopped between any two stores leaves one half whole: readers need no retry. */
START_TEST(litmus_latch_stopped_in_the_middle)
{
    struct stats_latch latch = {0};
    struct counters one = counters_of(1), two = counters_of(2), got;
    stats_publish(&latch, &one);
    for (unsigned stores = 0; stores <= COUNTERS_N; stores++) {
        const uint64_t *from = (const uint64_t *)(const void *)&two;
        for (unsigned i = 0; i < stores; i++)
            latch.half[(latch.sequence + 1) & 1][i] = from[i];
        ck_assert(stats_copy(&latch, &got));
        ck_assert_mem_eq(&got, &one, sizeof got);
    }
    stats_publish(&latch, &two);
    ck_assert(stats_copy(&latch, &got));
    ck_assert_mem_eq(&got, &two, sizeof got);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("litmus");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, litmus_doze);
    tcase_add_test(t, litmus_doze_needs_both_fences);
    tcase_add_test(t, litmus_post);
    tcase_add_test(t, litmus_drop);
    tcase_add_test(t, litmus_version);
    tcase_add_test(t, litmus_latch);
    tcase_add_test(t, litmus_latch_stopped_in_the_middle);
    suite_add_tcase(s, t);
    return s;
}
