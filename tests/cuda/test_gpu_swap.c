/*
 * The disk tier of a pool on GPUs, by a daemon: blocks so large that each is a copy of the
 * engine's, so that the driver can fail those of one way alone.
 */
#include "kernels/block_copy_image.h"
#include "kernels/copier.h"
#include "tests/scenario/disk_site.h"
#include "tests/states.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { N = 6 };

#define OUT_FAILS "cuMemcpyDtoHAsync:1+:719"
#define IN_FAILS  "cuMemcpyHtoDAsync:1+:719"

static void site_of_gpus(struct site *s, const char *devices)
{
    site_init(s, "64M");
    site_set(s, "--device", devices);
    site_set(s, "--block-bytes", "512K");
    site_set(s, "--blocks", "64");
}

/* The daemon's driver alone, from its start on. (Its worker is in this process.) */
static void start_failing(struct site *s, const char *faults)
{
    void (*inject)(const char *) = NULL;
    setenv("FAKE_CUDA_FAIL", faults, 1);
    site_start(s);
    unsetenv("FAKE_CUDA_FAIL");
    *(void **)(&inject) = fake_cuda("fake_cuda_fail");
    inject(NULL);
}

static struct seq path(uint32_t i)
{
    return (struct seq){.n = 9, .at = {1000 + i, 1, 1, 1, 2, 2, 2, 2, 3}};
}

static void cache_all(struct site *s)
{
    for (uint32_t i = 0; i < N; i++) {
        struct seq q = path(i);
        q.n = 8;
        ck_assert_uint_eq(cache_seq(&s->w, &q, 0), 2);
    }
}

static uint32_t read_all(struct site *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct seq q = path(i);
        n += exact_seq(s, &q);
    }
    return n;
}

/* All leave the pool for the disk and come back, in this life and the next. */
static void all_come_back(struct site *s)
{
    cache_all(s);
    disk_used_is(s, 2 * N);
    ck_assert_uint_eq(evict_pages(s, 64), 0);
    ck_assert_uint_eq(read_all(s), 8 * N);
    site_again(s);
    ck_assert_uint_eq(read_all(s), 8 * N);
}

/* All that leaves the pool comes back, after a restart too, and the other way of sharing it. */
START_TEST(blocks_of_gpus_on_disk)
{
    struct site s;
    site_of_gpus(&s, _i ? "cuda:1,0" : "cuda:0");
    site_start(&s);
    ck_assert(host_logged(&s.h, "blocks go through 16 buffers of 512 KiB a device"));
    all_come_back(&s);
    site_set(&s, "--cuda-export", "ipc");
    site_stop(&s);
    site_start(&s);
    ck_assert_uint_eq(read_all(&s), 8 * N);
    site_deinit(&s);
}
END_TEST

/* Whatever the driver has and grants: batches of CUDA 13 and of 12.8, none, no pinned memory, no
 * kernels. Several blocks go through a buffer at a time. */
START_TEST(drivers_that_lack_something)
{
    static const struct {
        const char *name, *value, *says;
    } lacks[] = {
        {"FAKE_CUDA_VERSION", "13000", NULL},
        {"FAKE_CUDA_VERSION", "12080", NULL},
        {"FAKE_CUDA_VERSION", "12070", "the driver has no batch copy (CUDA 12.8 brought it)"},
        {"FAKE_CUDA_FAIL", "cuMemHostRegister:1+:2", "the buffers are not pinned"},
        {"FAKE_CUDA_FAIL", "cuModuleLoadData:1+:209", "build with an nvcc that knows the GPU"},
    };
    bool kernels_fail = strstr(lacks[_i].value, "cuModuleLoadData") != NULL;
    struct site s;
    site_init(&s, "64M");
    site_set(&s, "--device", "cuda:0,1");
    site_set(&s, "--block-bytes", "64K");
    site_set(&s, "--blocks", "64");
    setenv("FAKE_CUDA_PAGEABLE", "1", 1);
    setenv(lacks[_i].name, lacks[_i].value, 1);
    site_start(&s);
    if (lacks[_i].says)
        ck_assert(host_logged(&s.h, block_copy_image_bytes || !kernels_fail
                                        ? lacks[_i].says
                                        : "this build has no kernels"));
    else
        ck_assert(!host_logged(&s.h, "no batch copy"));
    all_come_back(&s);
    site_deinit(&s);
}
END_TEST

/* Nothing is written, nothing spins, the file is as well as ever, and the pool is one without a
 * disk. */
START_TEST(nothing_comes_out)
{
    struct site s;
    site_of_gpus(&s, "cuda:0");
    start_failing(&s, OUT_FAILS);
    cache_all(&s);
    EVENTUALLY(DISK_WAIT_MS, host_logged(&s.h, "the write is given up"));
    uint64_t cpu = process_cpu_us(s.h.pid);
    sleep_us(1000000);
    ck_assert_uint_lt(process_cpu_us(s.h.pid) - cpu, 100 * 1000);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert(disk_is_healthy(&s));
    ck_assert_uint_eq(read_all(&s), 8 * N);
    s.w.unchecked = true;
    for (uint32_t i = 0; i < 100; i++) { /* there is room for more all the same */
        struct seq q = numbers(50000 + 100 * i, 8);
        uint64_t began = now_ms();
        ck_assert_uint_eq(cache_seq(&s.w, &q, 0), 2);
        ck_assert_uint_lt(now_ms() - began, 1000 * SLOW);
    }
    s.w.unchecked = false;
    step(&s.w);
    site_stop(&s);
    site_start(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    site_deinit(&s);
}
END_TEST

/* What cannot come back is a miss; the file is as well as ever, and a restart finds all that has
 * not lost its place to another block since. */
START_TEST(nothing_goes_in)
{
    struct site s;
    site_of_gpus(&s, "cuda:0");
    site_start(&s);
    cache_all(&s);
    disk_used_is(&s, 2 * N);
    site_kill(&s);
    start_failing(&s, IN_FAILS);
    ck_assert_uint_eq(read_all(&s), 0);
    ck_assert(host_logged(&s.h, "the read is given up"));
    ck_assert_uint_gt(counters(&s.w).disk_errors, 0);
    ck_assert(disk_is_healthy(&s));
    cache(&s.w, "aaaabbbb");
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    site_kill(&s);
    site_start(&s);
    ck_assert_uint_ge(read_all(&s), 8 * (N - 2));
    site_deinit(&s);
}
END_TEST

/* A round of what moves blocks; none of it may take long. */
static void round_of_moves(struct site *s)
{
    enum { ROUND_MS = 4000 };
    uint64_t began = now_ms();
    for (uint32_t i = 0; i < N; i++) {
        struct seq q = path(i);
        q.n = 8;
        (void)cache_seq(&s->w, &q, 0);
    }
    (void)evict_pages(s, 16);
    (void)read_all(s);
    ck_assert_uint_lt(now_ms() - began, ROUND_MS * SLOW);
}

/* The GPU is lost at some call, while blocks go out and come in: no call hangs, none brings a wrong
 * byte (read_all looks), the pool's counts are right, and a stop ends. Fewer than 100 calls start
 * it, and a round makes some hundred. */
START_TEST(the_gpu_is_lost_under_the_disk)
{
    struct rng rng = rng_seeded("the_gpu_is_lost_under_the_disk");
    for (int i = 0; i < 6; i++) {
        struct site s;
        char fault[32];
        site_of_gpus(&s, "cuda:0,1");
        site_set(&s, "--blocks", "16");
        site_set(&s, "--cuda-export", i % 2 ? "fd" : "ipc");
        snprintf(fault, sizeof fault, "*:%u+:999", 100 + rng_below(&rng, 500));
        start_failing(&s, fault);
        for (int k = 0; k < 4; k++)
            round_of_moves(&s);
        ck_assert(host_logged(&s.h, "the GPU may have been lost"));
        site_stop(&s);
        site_deinit(&s);
    }
}
END_TEST

/* ---- a GPU that is stuck -------------------------------------------------------------------- */

/* What waits for its copies waits, others go on, and a stop ends all the same: the disk's, after
 * what it waits for operations that do not come back. */
START_TEST(stuck_under_the_disk)
{
    enum { DRAIN_MS = 30 * 1000, STOP_MS = DRAIN_MS + 30 * 1000 };
    struct site s;
    siginfo_t ended = {0};
    site_of_gpus(&s, "cuda:0,1");
    setenv("FAKE_CUDA_STUCK", "1", 1);
    site_start(&s);
    unsetenv("FAKE_CUDA_STUCK");
    cache_all(&s);
    ck_assert_uint_eq(read_all(&s), 8 * N);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_int_eq(kill(s.h.pid, SIGTERM), 0);
    EVENTUALLY(STOP_MS, waitid(P_PID, (id_t)s.h.pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                            ended.si_pid == s.h.pid);
    site_stop(&s);
    site_deinit(&s);
}
END_TEST

START_TEST(stuck_under_the_memory_tier)
{
    struct host h;
    struct worker w;
    struct pfx_spilled spilled = {.size = sizeof spilled};
    setenv("FAKE_CUDA_STUCK", "1", 1);
    setenv("FAKE_CUDA_ATTRIBUTES", _i ? "103=0" : "103=1", 1);
    host_states(&h, 14, 4, 2, 4);
    unsetenv("FAKE_CUDA_STUCK");
    worker_open_timeout(&w, &h, 300 * SLOW);
    keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);
    ck_assert_int_eq(pfx_snapshot_spill(w.c, 0, &spilled), PFX_ETIMEDOUT);
    ck_assert_int_eq(pfx_ping(w.c), 0);
    worker_close(&w);
    uint64_t began = now_ms();
    host_stop(&h);
    ck_assert_uint_lt(now_ms() - began, COPIER_WAIT_MS + 3000 * SLOW);
}
END_TEST

/* How the kernel was asked to place some mapping of that process. */
static bool memory_prefers(pid_t pid, const char *what)
{
    char name[64], line[4096];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/numa_maps", (int)pid);
    FILE *f = fopen(name, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        found |= strstr(line, what) != NULL;
    fclose(f);
    return found;
}

/* What lies between a GPU and the disk lies on the GPU's side of the machine, if the driver says
 * which that is. */
START_TEST(buffers_on_the_node_of_the_gpu)
{
    static const char *const says[] = {"134=0", "134=-1"};
    struct site s;
    if (access("/proc/self/numa_maps", R_OK) != 0)
        SKIP_TEST("this kernel knows of no nodes");
    setenv("FAKE_CUDA_ATTRIBUTES", says[_i], 1);
    site_of_gpus(&s, "cuda:0,1");
    site_start(&s);
    ck_assert_int_eq(memory_prefers(s.h.pid, " prefer:0 "), _i == 0);
    cache_all(&s);
    ck_assert_uint_eq(read_all(&s), 8 * N);
    site_stop(&s);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpu_swap");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, blocks_of_gpus_on_disk, 0, 2);
    tcase_add_loop_test(t, drivers_that_lack_something, 0, 5);
    tcase_add_test(t, nothing_comes_out);
    tcase_add_test(t, nothing_goes_in);
    tcase_add_test(t, the_gpu_is_lost_under_the_disk);
    tcase_add_test(t, stuck_under_the_disk);
    tcase_add_loop_test(t, stuck_under_the_memory_tier, 0, 2);
    tcase_add_loop_test(t, buffers_on_the_node_of_the_gpu, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
