/*
 * Stop and start of a daemon whose workers still have the pool of a GPU mapped: they are told, it
 * waits for them for a while, and never frees what they use (the fake driver would abort, and the
 * harness wants exit status 0); and a daemon that starts while the memory is still in use waits.
 */
#include "tests/cuda/gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAREWELL_MS = 2000, QUICK_MS = 1500 * SLOW };

/* Maps, writes, and asks the daemon until it has gone; then closes when it is told to. */
static void worker_run(struct child *me, void *arg)
{
    pfx *c = gpu_open(arg, PFX_MAP_ALL);
    memset(pfx_block_address(c, 0, 3), 0x77, 64);
    child_post(me, 1);
    while (pfx_ping(c) != PFX_EGONE)
        sleep_us(1000);
    child_post(me, 2);
    child_wait(me);
    for (unsigned i = 0; i < 64; i++) /* readable until pfx_close */
        ck_assert_uint_eq(((uint8_t *)pfx_block_address(c, 0, 3))[i], 0x77);
    pfx_close(c);
    ck_assert_uint_eq(gpu_facts().mappings, 0);
}

START_TEST(workers_that_close_are_waited_for)
{
    struct host h;
    struct child c;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    child_start(&c, worker_run, &h);
    child_wait(&c);
    child_post(&c, 1); /* it may close as soon as it knows */
    uint64_t start = now_ms();
    host_stop(&h);
    ck_assert_uint_lt(now_ms() - start, QUICK_MS);
    child_join(&c);
}
END_TEST

START_TEST(workers_that_do_not_are_left)
{
    struct host h;
    struct child c;
    char text[64];
    gpu_host(&h, "cuda", gpu_exports[_i]);
    child_start(&c, worker_run, &h);
    child_wait(&c);
    uint64_t start = now_ms();
    ck_assert_int_eq(kill(h.pid, SIGTERM), 0);
    ck_assert_uint_eq(child_wait(&c), 2); /* it has been told, and does not close */
    snprintf(text, sizeof text, "process %d) and maybe others still map the pool", (int)c.pid);
    EVENTUALLY(FAREWELL_MS + QUICK_MS, host_logged(&h, text));
    host_stop(&h);
    ck_assert_uint_ge(now_ms() - start, FAREWELL_MS);
    ck_assert_uint_lt(now_ms() - start, FAREWELL_MS + QUICK_MS);
    child_post(&c, 1);
    child_join(&c);
}
END_TEST

/* One that is killed during the farewell counts as closed. */
START_TEST(workers_that_die_are_not_waited_for)
{
    struct host h;
    struct child c;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    child_start(&c, worker_run, &h);
    child_wait(&c);
    uint64_t start = now_ms();
    ck_assert_int_eq(kill(h.pid, SIGTERM), 0);
    ck_assert_uint_eq(child_wait(&c), 2);
    child_kill(&c, SIGKILL);
    host_stop(&h);
    ck_assert_uint_lt(now_ms() - start, QUICK_MS);
}
END_TEST

/* Who maps nothing does not hold it up. */
START_TEST(schedulers_are_not_waited_for)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx *c = gpu_open(&h, PFX_MAP_NONE);
    uint64_t start = now_ms();
    host_stop(&h);
    ck_assert_uint_lt(now_ms() - start, QUICK_MS);
    ck_assert_int_eq(pfx_ping(c), PFX_EGONE);
    pfx_close(c);
}
END_TEST

/* ---- start while the memory is in use -----------------------------------------------------------
 */

/* A GPU with room for one pool (2 MiB), of which this test's processes have the only users. */
static void small_machine(void)
{
    char name[32];
    snprintf(name, sizeof name, "stop-%d", (int)getpid());
    setenv("FAKE_CUDA_MACHINE", name, 1);
    setenv("FAKE_CUDA_BYTES", "3145728", 1);
}

static const char *const again[] = {"--device", "cuda",          "--blocks", "14", "--block-tokens",
                                    "4",        "--block-bytes", "64",       NULL};

/* kill -9: the memory is the worker's until it closes. */
START_TEST(a_start_finds_what_workers_have_closed)
{
    struct host h;
    struct child c;
    small_machine();
    gpu_host(&h, "cuda", "fd");
    child_start(&c, worker_run, &h);
    child_wait(&c);
    host_kill(&h);
    ck_assert_uint_eq(child_wait(&c), 2);
    child_post(&c, 1);
    child_join(&c);
    host_again(&h, again);
    ck_assert(!host_logged(&h, "trying again"));
    host_stop(&h);
}
END_TEST

/* It keeps the memory until the next daemon has missed it, and half a second more. */
static void holder(struct child *me, void *arg)
{
    const struct host *h = arg;
    pfx *c = gpu_open(arg, PFX_MAP_ALL);
    child_post(me, 1);
    child_wait(me);
    child_post(me, 1);
    while (!host_logged(h, "trying again"))
        sleep_us(1000);
    sleep_us(500000);
    pfx_close(c);
}

START_TEST(a_start_names_who_has_the_memory)
{
    struct host h;
    struct child c;
    char text[64];
    small_machine();
    gpu_host(&h, "cuda", "fd");
    child_start(&c, holder, &h);
    child_wait(&c);
    host_kill(&h);
    child_post(&c, 1);
    child_wait(&c);
    uint64_t start = now_ms();
    host_again(&h, again);
    ck_assert_uint_ge(now_ms() - start, 500);
    snprintf(text, sizeof text, "process %d (", (int)c.pid);
    ck_assert(host_logged(&h, text));
    ck_assert(host_logged(&h, "CUDA_ERROR_OUT_OF_MEMORY"));
    ck_assert(host_logged(&h, "trying again for 10 s"));
    child_join(&c);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpu stop");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, workers_that_close_are_waited_for, 0, EXPORTS);
    tcase_add_loop_test(t, workers_that_do_not_are_left, 0, EXPORTS);
    tcase_add_loop_test(t, workers_that_die_are_not_waited_for, 0, EXPORTS);
    tcase_add_loop_test(t, schedulers_are_not_waited_for, 0, EXPORTS);
    tcase_add_test(t, a_start_finds_what_workers_have_closed);
    tcase_add_test(t, a_start_names_who_has_the_memory);
    suite_add_tcase(s, t);
    return s;
}
