/* The ring by itself: order across the wrap of its indexes, random pauses, and a peer that lies. */
#include "shm/layout.h"
#include "shm/ring.h"
#include "tests/harness.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

/* Both ends of one ring in one shared mapping, begun at any index. */
struct ends {
    struct channel_words *writer_words, *reader_words;
    struct ring_writer w;
    struct ring_reader r;
};

static struct ends ends_new(uint32_t size, uint32_t first)
{
    size_t bytes = 2 * REGION_PAGE + (size_t)size * RING_RECORD;
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    struct channel_words *a = (struct channel_words *)(void *)base;
    struct channel_words *b = (struct channel_words *)(void *)(base + REGION_PAGE);
    a->tail = b->head = first;
    uint8_t *entries = base + 2 * REGION_PAGE;
    return (struct ends){a,
                         b,
                         {.entries = entries,
                          .shared_tail = &a->tail,
                          .shared_head = &b->head,
                          .size = size,
                          .tail = first,
                          .peer_head = first},
                         {.entries = entries,
                          .shared_head = &b->head,
                          .shared_tail = &a->tail,
                          .size = size,
                          .head = first,
                          .peer_tail = first}};
}

struct numbered {
    uint64_t word[8];
};

static struct numbered record_of(uint64_t n)
{
    struct numbered m;
    for (unsigned i = 0; i < 8; i++)
        m.word[i] = n * 0x9e3779b97f4a7c15ull + i;
    return m;
}

static void pause_sometimes(struct rng *rng)
{
    uint32_t dice = rng_below(rng, 1000);
    if (dice == 0)
        sleep_us(200);
    else
        for (uint32_t i = 0; i < dice; i++)
            cpu_relax();
}

struct stream {
    struct ends *e;
    uint64_t n;
    struct rng rng;
};

static void write_all(struct child *me, void *arg)
{
    struct stream *s = arg;
    for (uint64_t i = 0; i < s->n; i++) {
        enum ring_state state;
        while ((state = ring_claim(&s->e->w)) == RING_NONE)
            sched_yield();
        ck_assert_int_eq(state, RING_OK);
        struct numbered m = record_of(i);
        ring_post(&s->e->w, &m);
        pause_sometimes(&s->rng);
    }
}

/* Two processes; every record comes once, whole and in order. */
static void run_stream(uint32_t size, uint32_t first, uint64_t n)
{
    struct ends e = ends_new(size, first);
    struct rng rng = rng_seeded("ring stream");
    struct stream s = {&e, n, {rng_next(&rng)}};
    struct child writer;
    child_start(&writer, write_all, &s);
    for (uint64_t i = 0; i < n; i++) {
        struct numbered got, want = record_of(i);
        enum ring_state state;
        while ((state = ring_peek(&e.r, &got)) == RING_NONE)
            sched_yield();
        ck_assert_int_eq(state, RING_OK);
        ck_assert_mem_eq(&got, &want, sizeof got);
        ring_drop(&e.r);
        pause_sometimes(&rng);
    }
    child_join(&writer);
    struct numbered none;
    ck_assert_int_eq(ring_peek(&e.r, &none), RING_NONE);
    ck_assert_uint_eq(e.writer_words->tail, (uint32_t)(first + n));
    ck_assert_uint_eq(e.reader_words->head, (uint32_t)(first + n));
}

START_TEST(b41_ten_thousand_across_the_wrap)
{
    run_stream(64, UINT32_MAX - 9, 10000); /* 2^32 - 10 */
}
END_TEST

START_TEST(ring_sizes_and_starts)
{
    run_stream(RING_MIN, 0, 20000);
    run_stream(RING_MIN, UINT32_MAX - 3, 20000);
    run_stream(RING_MAX, UINT32_MAX - 4000, 20000);
}
END_TEST

START_TEST(ring_full_and_empty_at_the_wrap)
{
    for (uint32_t back = 0; back <= 10; back++) {
        struct ends e = ends_new(8, 0u - back);
        struct numbered m, got;
        ck_assert_int_eq(ring_peek(&e.r, &got), RING_NONE);
        for (uint64_t i = 0; i < 8; i++) {
            ck_assert_int_eq(ring_claim(&e.w), RING_OK);
            m = record_of(i);
            ring_post(&e.w, &m);
        }
        ck_assert_int_eq(ring_claim(&e.w), RING_NONE);
        ck_assert_int_eq(ring_peek(&e.r, &got), RING_OK);
        m = record_of(0);
        ck_assert_mem_eq(&got, &m, sizeof m);
        ck_assert_int_eq(ring_claim(&e.w), RING_NONE); /* a peek gives nothing back */
        ring_drop(&e.r);
        ck_assert_int_eq(ring_claim(&e.w), RING_OK);
    }
}
END_TEST

/* A reader that claims more than was written, or to have given back entries that it never had. */
START_TEST(ring_peer_lies)
{
    static const uint32_t starts[] = {0, 5, UINT32_MAX - 2};
    for (unsigned i = 0; i < 3; i++) {
        struct numbered m = record_of(1), got;
        for (uint64_t lie = 9; lie < 1ull << 32; lie = lie * 3 + 1) {
            struct ends e = ends_new(8, starts[i]);
            e.writer_words->tail = starts[i] + (uint32_t)lie; /* more than a ring holds */
            ck_assert_int_eq(ring_peek(&e.r, &got), RING_BROKEN);
            ck_assert_uint_eq(e.r.head, starts[i]);

            e = ends_new(8, starts[i]);
            for (int k = 0; k < 8; k++)
                ring_post(&e.w, &m);
            e.reader_words->head = starts[i] + (uint32_t)lie; /* beyond the tail */
            ck_assert_int_eq(ring_claim(&e.w), RING_BROKEN);
            e.reader_words->head = starts[i] - 1; /* before what it had dropped */
            ck_assert_int_eq(ring_claim(&e.w), RING_BROKEN);
        }
    }
}
END_TEST

/* A record is copied out whole: what is checked is what is used, whatever the writer does later. */
START_TEST(ring_record_is_copied_at_peek)
{
    struct ends e = ends_new(8, 0);
    struct numbered m = record_of(7), got, scribble = record_of(9);
    ring_post(&e.w, &m);
    ck_assert_int_eq(ring_peek(&e.r, &got), RING_OK);
    memcpy(e.w.entries, &scribble, sizeof scribble);
    ck_assert_mem_eq(&got, &m, sizeof m);
}
END_TEST

START_TEST(doze_one_wake_a_nap)
{
    uint32_t word = 0, answered = 0;
    for (uint32_t nap = 0; nap < 5; nap++) {
        ck_assert(!doze_must_wake(&word, &answered)); /* awake */
        doze_begin(&word);
        ck_assert(word & 1);
        ck_assert(doze_must_wake(&word, &answered));
        ck_assert(!doze_must_wake(&word, &answered)); /* this nap has its packet */
        doze_end(&word);
        ck_assert(!(word & 1));
    }
    word = UINT32_MAX - 1; /* the counter of naps wraps */
    answered = 0;
    for (int nap = 0; nap < 4; nap++) {
        doze_begin(&word);
        ck_assert(doze_must_wake(&word, &answered));
        doze_end(&word);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("ring");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b41_ten_thousand_across_the_wrap);
    tcase_add_test(t, ring_sizes_and_starts);
    tcase_add_test(t, ring_full_and_empty_at_the_wrap);
    tcase_add_test(t, ring_peer_lies);
    tcase_add_test(t, ring_record_is_copied_at_peek);
    tcase_add_test(t, doze_one_wake_a_nap);
    suite_add_tcase(s, t);
    return s;
}
