/* Public reports B41 and B45 as far as they measure time or idleness, so that they run alone.
 * Neither looks at the pool's bytes. */
#include "tests/raw.h"
#include "tests/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- B41 ------------------------------------------------------------------------------ */

struct toiler {
    struct host *h;
    uint64_t *done; /* counts its requests, in shared memory */
};

static void toil(struct child *me, void *arg)
{
    struct toiler *t = arg;
    struct worker w;
    worker_open(&w, t->h, NULL);
    w.unchecked = true;
    child_post(me, 1);
    for (;;) {
        uint64_t ms = child_wait(me), until = now_ms() + ms;
        if (ms == 0)
            break;
        while (now_ms() < until) {
            struct held l = look(&w, "aaaabbbbx");
            drop(&w, &l);
            (*t->done)++;
        }
        child_post(me, 1);
    }
    worker_close(&w);
}

/* Now its request ring is full and it takes no answer, now it has taken all of them; it says so,
 * and is then stopped from outside. */
static void choke(struct child *me, void *arg)
{
    struct raw r;
    struct wire_completion c;
    raw_open(&r, arg, "choked");
    ck_assert_int_eq(raw_reserve(&r, raw_lease(&r), 2).status, 0);
    uint32_t both = 2 * r.welcome.ring_entries;
    struct request nop = {.op = OP_NOP};
    for (;;) {
        for (uint32_t posted = 0; posted < both;)
            posted += raw_post(&r, &nop);
        child_post(me, 1);
        child_wait(me);
        for (uint32_t taken = 0; taken < both; taken++)
            REQUIRE(raw_take(&r, &c, 5000 * SLOW));
        child_post(me, 1);
        child_wait(me);
    }
}

/* Requests that the three do in 150 ms. */
static uint64_t throughput(struct child *c, const struct toiler *t)
{
    uint64_t before = 0, after = 0;
    for (int i = 0; i < 3; i++) {
        before += *t[i].done;
        child_post(&c[i], 150);
    }
    for (int i = 0; i < 3; i++) {
        child_wait(&c[i]);
        after += *t[i].done;
    }
    return after - before;
}

/* The machine may have other work too: pairs of windows side by side, and in most pairs at least
 * half. */
static void half_at_least(struct child *c, const struct toiler *t, struct child *choked)
{
    enum { PAIRS = 11 };
    unsigned at_least_half = 0;
    for (int pair = 0; pair < PAIRS; pair++) {
        child_wait(choked); /* full */
        ck_assert_int_eq(kill(choked->pid, SIGSTOP), 0);
        uint64_t beside = throughput(c, t);
        ck_assert_int_eq(kill(choked->pid, SIGCONT), 0);
        child_post(choked, 1);
        child_wait(choked); /* empty */
        uint64_t alone = throughput(c, t);
        child_post(choked, 1);
        ck_assert_uint_gt(beside, 10);
        at_least_half += beside >= alone / 2;
    }
    ck_assert_uint_gt(at_least_half, PAIRS / 2);
    child_wait(choked);
    ck_assert_int_eq(kill(choked->pid, SIGSTOP), 0);
}

START_TEST(b41_stopped_worker_with_a_full_ring)
{
    struct host h;
    struct worker w;
    struct child c[3], choked;
    struct toiler t[3];
    uint64_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 3; i++) {
        t[i] = (struct toiler){&h, &done[i * 8]};
        child_start(&c[i], toil, &t[i]);
        child_wait(&c[i]);
    }
    child_start(&choked, choke, &h);
    half_at_least(c, t, &choked);
    ck_assert_uint_eq(pages(&w).private, 2); /* a stopped worker keeps what it holds */
    step(&w);
    child_kill(&choked, SIGKILL);
    EVENTUALLY(5000, pages(&w).private == 0);
    step(&w);

    uint64_t busy[5], from = now_us();
    pid_t pid[5] = {h.pid, c[0].pid, c[1].pid, c[2].pid, getpid()};
    for (int i = 0; i < 5; i++)
        busy[i] = process_cpu_us(pid[i]);
    sleep_us(10 * 1000 * 1000); /* nobody says anything */
    for (int i = 0; i < 5; i++)
        ck_assert_uint_lt((process_cpu_us(pid[i]) - busy[i]) * 100, now_us() - from);
    from = now_ms();
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    ck_assert_uint_lt(now_ms() - from, 100 * SLOW);
    for (int i = 0; i < 3; i++) {
        child_post(&c[i], 0);
        child_join(&c[i]);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B45 ------------------------------------------------------------------------------------- */

/* Caches n tokens (whole blocks) and looks them up; how long that took. */
static uint64_t long_prompt(struct worker *w, const uint32_t *tokens, size_t n)
{
    uint32_t bt = block_tokens(w), blocks = (uint32_t)(n / bt);
    uint32_t *ids = calloc(blocks, sizeof *ids);
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = tokens, .n_tokens = n, .max_match = n};
    struct pfx_match m = {.size = sizeof m};
    struct pfx_insert_result r = {.size = sizeof r};
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = n};
    uint64_t start = now_us();
    ck_assert_int_eq(pfx_lookup(w->c, &args, &m), 0);
    uint32_t had = m.n_blocks;
    ck_assert_int_eq(pfx_reserve(w->c, m.lease, blocks - had, ids), 0);
    ck_assert_int_eq(pfx_insert(w->c, m.lease, &in, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, blocks);
    ck_assert_uint_eq(r.new_blocks, blocks - had);
    ck_assert_int_eq(pfx_release(w->c, m.lease), 0);
    ck_assert_int_eq(pfx_lookup(w->c, &args, &m), 0);
    ck_assert_uint_eq(m.matched_tokens, n);
    ck_assert_int_eq(pfx_release(w->c, m.lease), 0);
    uint64_t took = now_us() - start;
    step(w);
    free(ids);
    return took;
}

START_TEST(b45_prompts_of_2_to_the_24_tokens)
{
    enum { MOST = 1 << 24, LESS = 1 << 20 };
    struct host h;
    struct worker w;
    host_small(&h, 8192, 4096);
    worker_open(&w, &h, NULL);
    uint32_t *tokens = malloc(MOST * sizeof *tokens);
    for (size_t i = 0; i < MOST; i++)
        tokens[i] = (uint32_t)(i * 2654435761u);
    uint64_t small = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t took = long_prompt(&w, tokens, LESS);
        small = took > small ? took : small;
        tokens[0]++; /* another prompt */
    }
    uint64_t large = long_prompt(&w, tokens, MOST);
    ck_assert_uint_lt(large, small * 16 * 4); /* linear, with room for a busy machine */
    tokens[MOST - 4096] ^= 1;                 /* exact: one token in the last block differs */
    ck_assert_int_eq(pfx_peek(w.c, 0, tokens, MOST), MOST - 4096);
    free(tokens);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("public reports B41, B45: time");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, b41_stopped_worker_with_a_full_ring);
    tcase_add_test(t, b45_prompts_of_2_to_the_24_tokens);
    suite_add_tcase(s, t);
    return s;
}
