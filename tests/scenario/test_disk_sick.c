/* A device that answers with errors, or late, or has lost its file under the daemon: what it held
 * is a miss, nobody waits for it, and when it is well again it is used again.
 *
 *      prefixd ---- preadv2, pwritev2 ----> kernel ---- notification ----> device()
 *              <---- EIO, or the transfer goes on -----------------------'
 *
 * io_uring is forbidden, so that each transfer is a system call of a thread; a filter of seccomp
 * sends those here, to be decided upon. The daemon is as it is, the errors are the kernel's. */
#include "tests/disk_calls.h"
#include "tests/scenario/disk_site.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    int listener;
    pthread_t thread;
    atomic_bool bad_reads, bad_writes, slow;
    atomic_uint reads, writes; /* that were asked for */
} device;

static void *serve(void *arg)
{
    (void)arg;
    for (;;) {
        struct seccomp_notif call = {0};
        if (ioctl(device.listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
            continue; /* the caller is dead */
        bool write = call.data.nr == __NR_pwritev2;
        atomic_fetch_add(write ? &device.writes : &device.reads, 1);
        if (atomic_load(&device.slow))
            sleep_us(2000);
        bool bad = atomic_load(write ? &device.bad_writes : &device.bad_reads);
        struct seccomp_notif_resp answer = {
            .id = call.id,
            .error = bad ? -EIO : 0,
            .flags = bad ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE,
        };
        (void)ioctl(device.listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return NULL;
}

/* For this process and its children, for good. */
static void device_begin(void)
{
    device.listener = disk_calls_listen();
    ck_assert_msg(device.listener >= 0, "no listener for system calls: %s", strerror(errno));
    ck_assert_int_eq(pthread_create(&device.thread, NULL, serve, NULL), 0);
}

static void reads_are(bool good)
{
    atomic_store(&device.bad_reads, !good);
}

static void writes_are(bool good)
{
    atomic_store(&device.bad_writes, !good);
}

static bool says_unhealthy(const struct site *s)
{
    static char text[16384];
    const char *argv[] = {"status", "--socket", s->h.socket, NULL};
    ck_assert_int_eq(program_run(prefixctl_path(), argv, text, sizeof text), 0);
    return strstr(text, "unhealthy") != NULL;
}

static struct seq path(uint32_t i)
{
    return (struct seq){.n = 9, .at = {1000 + i, 1, 1, 1, 2, 2, 2, 2, 3}};
}

enum { N = 20 };

static void site_of_paths(struct site *s)
{
    device_begin();
    site_init(s, "2M");
    site_set(s, "--blocks", "64");
    site_start(s);
    for (uint32_t i = 0; i < N; i++) {
        struct seq q = path(i);
        q.n = 8;
        cache_seq(&s->w, &q, 0);
    }
    disk_used_is(s, 2 * N);
    ck_assert_uint_eq(evict_pages(s, 64), 0);
}

/* Tokens of all paths, each right; none of these calls may take long. */
static uint32_t read_all(struct site *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct seq q = path(i);
        uint64_t began = now_ms();
        n += exact_seq(s, &q);
        ck_assert_uint_lt(now_ms() - began, 1000 * SLOW);
    }
    return n;
}

/* Errors of all reads: misses, which are tried no more; after some in a row the device is sick, and
 * nothing is even tried. Then it is well again: what was not lost comes, new blocks are written. */
START_TEST(b31_a_device_that_cannot_be_read)
{
    struct site s;
    site_of_paths(&s);
    ck_assert(disk_is_healthy(&s));
    reads_are(false);
    ck_assert_uint_eq(read_all(&s), 0);
    EVENTUALLY(DISK_WAIT_MS, !disk_is_healthy(&s));
    ck_assert(says_unhealthy(&s));
    ck_assert_uint_gt(counters(&s.w).disk_errors, 0);
    unsigned tried = atomic_load(&device.reads);
    ck_assert_uint_eq(read_all(&s), 0);
    ck_assert_uint_lt(atomic_load(&device.reads) - tried, 4); /* probes */
    cache(&s.w, "aaaabbbb");                                  /* the pool alone */
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    reads_are(true);
    EVENTUALLY(DISK_WAIT_MS, disk_is_healthy(&s));
    cache(&s.w, "ccccdddd");
    all_written(&s);
    ck_assert_uint_eq(evict_pages(&s, 64), 0); /* all that there is can move */
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    ck_assert_uint_eq(exact(&s, "ccccddddx"), 8);
    site_again(&s); /* errors prove nothing: the others are there after a restart */
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    uint32_t n = read_all(&s);
    ck_assert_uint_eq(n % 4, 0);
    ck_assert_uint_eq(counters(&s.w).disk_used, n / 4 + 4);
    site_deinit(&s);
}
END_TEST

/* Who watches an idle daemon sees how the disk is, not how it was when somebody last asked for a
 * block; to look at the counters is no work, and brings none. */
START_TEST(b31_health_is_told_while_nothing_goes_on)
{
    struct site s;
    site_of_paths(&s);
    reads_are(false);
    ck_assert_uint_eq(read_all(&s), 0);
    EVENTUALLY(DISK_WAIT_MS, !disk_is_healthy(&s));
    at_rest(&s);
    reads_are(true);
    EVENTUALLY(DISK_WAIT_MS, host_logged(&s.h, "works again"));
    EVENTUALLY(3000 * SLOW, disk_is_healthy(&s));
    site_deinit(&s);
}
END_TEST

/* Errors of all writes: blocks stay in the pool, and go when room is needed; no call waits for
 * long, nothing spins, and what is on disk can be read until the device counts as sick. */
START_TEST(b31_a_device_that_cannot_be_written)
{
    struct site s;
    site_of_paths(&s);
    writes_are(false);
    s.w.unchecked = true;
    for (uint32_t i = 0; i < 200; i++) {
        struct seq q = numbers(50000 + 100 * i, 8);
        uint64_t began = now_ms();
        ck_assert_uint_eq(cache_seq(&s.w, &q, 0), 2);
        ck_assert_uint_lt(now_ms() - began, 1000 * SLOW);
    }
    s.w.unchecked = false;
    step(&s.w);
    EVENTUALLY(DISK_WAIT_MS, !disk_is_healthy(&s));
    ck_assert_uint_gt(counters(&s.w).evicted_blocks, 200);
    ck_assert_uint_eq(counters(&s.w).blocks_inflight, 0);
    ck_assert_uint_eq(counters(&s.w).disk_used, 2 * N);
    unsigned tried = atomic_load(&device.writes);
    uint64_t cpu = process_cpu_us(s.h.pid);
    sleep_us(1000000);
    ck_assert_uint_lt(process_cpu_us(s.h.pid) - cpu, 100 * 1000);
    ck_assert_uint_lt(atomic_load(&device.writes) - tried, 4);
    writes_are(true);
    EVENTUALLY(DISK_WAIT_MS, disk_is_healthy(&s));
    ck_assert_uint_eq(read_all(&s), 8 * N);
    cache(&s.w, "aaaabbbb");
    all_written(&s);
    ck_assert_uint_eq(evict_pages(&s, 64), 0);
    site_again(&s);
    ck_assert_uint_eq(read_all(&s), 8 * N);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    site_deinit(&s);
}
END_TEST

/* A flush that cannot be written is an error, and yet nothing of the space is found; as soon as the
 * device is well it is on disk, too. */
START_TEST(b48_flush_that_cannot_be_written)
{
    struct site s;
    site_of_paths(&s);
    writes_are(false);
    ck_assert_int_eq(pfx_flush(s.w.c, 0), PFX_EIO);
    step(&s.w);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_uint_eq(read_all(&s), 0);
    writes_are(true);
    EVENTUALLY(DISK_WAIT_MS, host_logged(&s.h, "what was owed is written"));
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_uint_eq(read_all(&s), 0);
    site_deinit(&s);
}
END_TEST

/* Errors come and go while two workers fetch, cache and evict: bytes are right, and nothing hangs.
 */
START_TEST(b31_errors_now_and_then)
{
    struct rng r = rng_seeded("errors");
    struct site s;
    unsigned got = 0;
    site_of_paths(&s);
    atomic_store(&device.slow, true);
    s.w.unchecked = true;
    for (unsigned i = 0; i < 400; i++) {
        struct seq q = path(rng_below(&r, N));
        reads_are(rng_below(&r, 8) != 0);
        writes_are(rng_below(&r, 8) != 0);
        got += exact_seq(&s, &q) != 0;
        if (rng_below(&r, 4) == 0) {
            struct held h = seek_seq(&s, &q, PFX_FETCH);
            if (h.match.matched_tokens == 0) {
                q.n = 8;
                ck_assert_int_eq(grab(&s.w, &h, 2), 0);
                ck_assert_int_eq(put_seq(&s.w, &h, &q, 0, NULL, NULL), 0);
            }
            drop(&s.w, &h);
        }
        struct pfx_evicted e = {.size = sizeof e};
        if (rng_below(&r, 8) == 0)
            ck_assert_int_eq(pfx_evict(s.w.c, 8, &e), 0);
    }
    reads_are(true);
    writes_are(true);
    EVENTUALLY(DISK_WAIT_MS, disk_is_healthy(&s));
    s.w.unchecked = false;
    ck_assert_uint_gt(got, 50);
    at_rest(&s);
    site_again(&s);
    uint32_t n = read_all(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, n / 4);
    site_deinit(&s);
}
END_TEST

/* ---- the file itself goes ------------------------------------------------------------------- */

/* Cut to nothing under the daemon: a miss, never a stall or somebody's bytes; new blocks are
 * written where there is something to write to. */
START_TEST(e67_file_cut_under_the_daemon)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    site_file_cut(&s, 0, _i ? 4096 : 0);
    uint64_t began = now_ms();
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 0);
    ck_assert_uint_lt(now_ms() - began, 1000 * SLOW);
    ck_assert_uint_gt(counters(&s.w).disk_errors, 0);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    for (uint32_t i = 0; i < 20; i++) {
        struct seq q = path(i);
        q.n = 8;
        ck_assert_uint_eq(cache_seq(&s.w, &q, 0), 2);
    }
    struct seq last = path(19);
    ck_assert_uint_eq(exact_seq(&s, &last), 8);
    site_kill(&s);
    site_start_scanning(&s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_scan_done);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 20; i++) {
        struct seq q = path(i);
        n += exact_seq(&s, &q);
    }
    ck_assert_uint_eq(counters(&s.w).disk_used, n / 4);
    if (_i == 0) { /* without its head nobody can tell whose it is */
        ck_assert_uint_eq(n, 0);
        ck_assert(host_logged(&s.h, "it is left alone"));
        ck_assert_int_eq(unlink(site_file(&s, 0)), 0);
        site_kill(&s);
    }
    site_deinit(&s);
}
END_TEST

/* Deleted: the daemon goes on with it, and the next one begins anew. */
START_TEST(e67_file_deleted_under_the_daemon)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    ck_assert_int_eq(unlink(site_file(&s, 0)), 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    put_on_disk(&s, "dddd");
    ck_assert_uint_eq(exact(&s, "ddddx"), 4);
    site_again(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 0);
    put_on_disk(&s, "dddd");
    site_again(&s);
    ck_assert_uint_eq(exact(&s, "ddddx"), 4);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_sick");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b31_a_device_that_cannot_be_read);
    tcase_add_test(t, b31_health_is_told_while_nothing_goes_on);
    tcase_add_test(t, b31_a_device_that_cannot_be_written);
    tcase_add_test(t, b48_flush_that_cannot_be_written);
    tcase_add_test(t, b31_errors_now_and_then);
    tcase_add_loop_test(t, e67_file_cut_under_the_daemon, 0, 2);
    tcase_add_test(t, e67_file_deleted_under_the_daemon);
    suite_add_tcase(s, t);
    return s;
}
