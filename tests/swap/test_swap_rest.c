/* The allocator against a naive one; io_uring as it is refused in the field; starts and stops. */
#include "tests/refuse.h"
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- slots ---- */

/* Runs are of free slots, as long as they can be up to what is asked, and never given twice. */
START_TEST(slots_against_naive)
{
    enum { ABOUT = 700, MOST = 2 * ABOUT };
    struct rng rng = rng_seeded("slots");
    struct rig r;
    bool taken[MOST] = {false};
    uint32_t first;
    rig_init(&r, 64, 8, ABOUT);
    rig_start(&r);
    uint32_t n = swap_slots(r.sw, STORE_BLOCKS), n_free = n;
    ck_assert_uint_lt(n, MOST);
    rig_wait_ready(&r, STORE_BLOCKS, n);
    for (int step = 0; step < 20000; step++) {
        uint32_t want = 1 + rng_below(&rng, step % 1000 < 500 ? 70 : 3);
        if (rng_below(&rng, 100) < (step % 2000 < 1000 ? 60 : 30)) {
            uint32_t got = swap_slots_take(r.sw, STORE_BLOCKS, want, &first);
            REQUIRE((got == 0) == (n_free == 0));
            REQUIRE(got <= want && (!got || first + got <= n));
            for (uint32_t i = 0; i < got; i++) {
                REQUIRE(!taken[first + i]);
                taken[first + i] = true;
            }
            if (got && got < want)
                REQUIRE(first + got == n || taken[first + got]);
            n_free -= got;
        } else {
            for (uint32_t i = 0; i < want; i++) {
                uint32_t slot = rng_below(&rng, n);
                if (!taken[slot])
                    continue;
                taken[slot] = false;
                swap_slot_give(r.sw, STORE_BLOCKS, slot);
                n_free++;
            }
        }
        REQUIRE_EQ(swap_free(r.sw, STORE_BLOCKS), n_free);
    }
    rig_deinit(&r);
}
END_TEST

static void give_twice(struct child *me, void *arg)
{
    struct rig *r = arg;
    uint32_t slot;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    rig_start(r);
    rig_wait_ready(r, STORE_BLOCKS, 16);
    ck_assert_uint_eq(swap_slots_take(r->sw, STORE_BLOCKS, 1, &slot), 1);
    swap_slot_give(r->sw, STORE_BLOCKS, slot);
    child_post(me, 1);
    swap_slot_give(r->sw, STORE_BLOCKS, slot);
    child_post(me, 2);
}

/* C 63: two owners of one slot. Stopping is better. */
START_TEST(slot_given_twice_stops)
{
    struct rig r;
    struct child c;
    rig_init(&r, 4096, 8, 16);
    child_start(&c, give_twice, &r);
    ck_assert_uint_eq(child_wait(&c), 1);
    child_kill(&c, SIGABRT);
    rig_deinit(&r);
}
END_TEST

/* ---- io_uring refused ---- */

static void write_and_read(struct rig *r)
{
    struct written w[20];
    rig_wait_ready(r, STORE_BLOCKS, 20);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(rig_write(r, 0, 0, &w[i]), SWAP_GOOD);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(rig_read(r, &w[i]), SWAP_GOOD);
}

/* As the default profile of container engines does. */
START_TEST(seccomp)
{
    struct rig r;
    rig_init(&r, 64 << 10, 8, 20);
    r.config.uring = true;
    refuse_io_uring(EPERM);
    rig_start(&r);
    ck_assert(!swap_facts(r.sw).uring);
    write_and_read(&r);
    rig_deinit(&r);
}
END_TEST

/* Too little memory may be locked: io_uring without registered buffers. */
START_TEST(locked_memory)
{
    struct rig r;
    struct rlimit little = {64 << 10, 64 << 10};
    bool root = getuid() == 0;
    rig_init(&r, 64 << 10, 64, 20);
    r.config.uring = true;
    ck_assert_int_eq(chmod(r.dir[0], 0777), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    if (root)
        ck_assert_int_eq(setresuid(65534, 65534, 0), 0);
    rig_start(&r);
    ck_assert(swap_facts(r.sw).uring);
    write_and_read(&r);
    rig_stop(&r);
    ck_assert_int_eq(root ? setresuid(0, 0, 0) : 0, 0);
    rig_deinit(&r);
}
END_TEST

/* A kernel that knows fewer flags. */
START_TEST(older_kernels)
{
    struct rig r;
    rig_init(&r, 64 << 10, 8, 20);
    r.config.uring = true;
    faults_ring_flags((unsigned)_i);
    rig_start(&r);
    ck_assert_int_eq(swap_facts(r.sw).uring, _i < 3);
    write_and_read(&r);
    rig_deinit(&r);
}
END_TEST

/* Neither io_uring nor threads beside the one: slow, and right. */
START_TEST(no_threads)
{
    struct rig r;
    rig_init(&r, 64 << 10, 8, 20);
    r.config.uring = false;
    faults_no_threads();
    rig_start(&r);
    write_and_read(&r);
    rig_deinit(&r);
}
END_TEST

/* ---- starts and stops ---- */

START_TEST(stop_during_the_scan)
{
    enum { N = 2000 };
    struct rng rng = rng_seeded("stop during the scan");
    struct rig r;
    struct written w;
    rig_init(&r, 64, 64, N);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    rig_stop(&r);
    unsigned fds = count_fds(getpid());
    for (int round = 0; round < 60; round++) {
        r.config.uring = round % 2;
        rig_start_only(&r);
        for (uint32_t n = rng_below(&rng, 40); n; n--) {
            struct swap_order *o = swap_take(r.sw);
            if (o)
                swap_order_free(r.sw, o);
            sleep_us(rng_below(&rng, 50));
        }
        rig_stop(&r);
    }
    EVENTUALLY(1000, count_fds(getpid()) <= fds);
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, NULL, 0), N);
    rig_deinit(&r);
}
END_TEST

/* The index thread does not take: the scan waits for it, in bounded memory, and goes on. */
START_TEST(scan_waits)
{
    enum { N = 4000 };
    struct rig r;
    struct written w;
    rig_init(&r, 64, 64, N);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    rig_stop(&r);
    rig_start_only(&r);
    sleep_us(200 * 1000);
    struct swap_order *kept[64];
    unsigned n_kept = 0;
    uint32_t n = 0;
    bool last = false;
    while (!last && n_kept < 64) { /* all that are to be had at once */
        struct swap_order *o = swap_take(r.sw);
        if (!o)
            break;
        n += o->n;
        kept[n_kept++] = o;
    }
    ck_assert_uint_eq(n_kept, 16);
    ck_assert_uint_lt(n, N);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0);
    for (unsigned i = 0; i < n_kept; i++)
        swap_order_free(r.sw, kept[i]);
    ck_assert_uint_eq(n + rig_scan(&r, NULL, 0), N);
    rig_deinit(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_rest");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, slots_against_naive);
    tcase_add_test(t, slot_given_twice_stops);
    tcase_add_test(t, seccomp);
    tcase_add_test(t, locked_memory);
    tcase_add_loop_test(t, older_kernels, 0, 4);
    tcase_add_test(t, no_threads);
    tcase_add_test(t, stop_during_the_scan);
    tcase_add_test(t, scan_waits);
    suite_add_tcase(s, t);
    return s;
}
