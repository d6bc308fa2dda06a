/* What may be found in the directory, and who else may be there. */
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 40 };

/* A chain of n records. */
static void fill(struct rig *r, struct written *w, int n)
{
    rig_wait_ready(r, STORE_BLOCKS, (uint32_t)n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(rig_write(r, i ? w[i - 1].generation : 0, 1, &w[i]), SWAP_GOOD);
}

static uint64_t file_size(const char *name)
{
    struct stat st;
    ck_assert_int_eq(stat(name, &st), 0);
    return (uint64_t)st.st_size;
}

/* Every record that is found reads as it was written, or not at all. Returns how many were found.
 */
static uint32_t look_at_all(struct rig *r, unsigned *good)
{
    struct written found[4 * N];
    rig_start_only(r);
    uint32_t n = rig_scan(r, found, 4 * N);
    *good = 0;
    for (uint32_t i = 0; i < n; i++)
        *good += rig_read(r, &found[i]) == SWAP_GOOD;
    ck_assert_uint_eq(swap_free(r->sw, STORE_BLOCKS) + n, swap_ready(r->sw, STORE_BLOCKS));
    return n;
}

START_TEST(directory_must_be_there)
{
    struct rig r;
    rig_init(&r, 4096, 8, 16);
    r.config.path[0] = "/nonexistent/swap";
    ck_assert(rig_start_fails(&r, "/nonexistent/swap"));
    rig_deinit(&r);
}
END_TEST

START_TEST(foreign_file_is_left_alone)
{
    static const char *const contents[] = {"this is somebody's\n", "x", ""};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        rig_init(&r, 4096, 8, 16);
        int fd = open(rig_file(&r, 0, STORE_BLOCKS), O_RDWR | O_CREAT, 0600);
        size_t n = strlen(contents[i]);
        ck_assert_int_eq(write(fd, contents[i], n), (ssize_t)n);
        rig_start(&r);
        ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 0);
        uint32_t slot;
        ck_assert_uint_eq(swap_slots_take(r.sw, STORE_BLOCKS, 1, &slot), 0);
        ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 5, 1), SWAP_GOOD);
        rig_stop(&r);
        char back[64] = "";
        ck_assert_int_eq(pread(fd, back, sizeof back, 0), (ssize_t)n);
        ck_assert_str_eq(back, contents[i]);
        close(fd);
        rig_deinit(&r);
    }
}
END_TEST

/* Long, and nothing of it is ours: a foreign one. One that begins as ours and goes on with garbage
 * is ours, and begun anew. */
START_TEST(garbage)
{
    for (int ours = 0; ours < 2; ours++) {
        struct rig r;
        struct written w[N];
        unsigned good;
        struct rng rng = rng_seeded("garbage");
        rig_init(&r, 4096, 8, N);
        rig_start(&r);
        fill(&r, w, N);
        rig_stop(&r);
        char name[128];
        snprintf(name, sizeof name, "%s", rig_file(&r, 0, STORE_BLOCKS));
        uint64_t bytes = file_size(name), word;
        for (uint64_t at = ours ? 8 : 0; at + 8 <= bytes; at += 8) {
            word = rng_next(&rng);
            if (at < 16384 || at % 512 == 8) /* enough of it, and quickly */
                file_patch(name, at, &word, 8);
        }
        ck_assert_uint_eq(look_at_all(&r, &good), 0);
        ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), ours ? N : 0);
        rig_deinit(&r);
    }
}
END_TEST

START_TEST(cut_and_grown)
{
    struct rng rng = rng_seeded("cut");
    for (int round = 0; round < 30; round++) {
        struct rig r;
        struct written w[N];
        unsigned good;
        rig_init(&r, 4096, 8, N);
        rig_start(&r);
        fill(&r, w, N);
        rig_stop(&r);
        char name[128];
        snprintf(name, sizeof name, "%s", rig_file(&r, 0, STORE_BLOCKS));
        uint64_t bytes = file_size(name), cut = round ? rng_next(&rng) % bytes : bytes / 2;
        if (round == 1)
            cut = 3; /* not even the magic */
        ck_assert_int_eq(truncate(name, (off_t)cut), 0);
        uint32_t n = look_at_all(&r, &good);
        ck_assert_uint_eq(good, n); /* a slot is whole or not there */
        if (cut < SWAP_EXTENTS)
            ck_assert_uint_eq(n, 0);
        rig_wait_ready(&r, STORE_BLOCKS, N); /* it grows back */
        ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), N - n);
        struct written more[N];
        for (uint32_t i = 0; i < N - n; i++)
            ck_assert_int_eq(rig_write(&r, 0, 1, &more[i]), SWAP_GOOD);
        rig_stop(&r);
        /* Garbage behind the end, and what the file system says of the length does not matter. */
        uint64_t word[600];
        for (int i = 0; i < 600; i++)
            word[i] = rng_next(&rng);
        file_patch(name, file_size(name), word, 1 + rng_below(&rng, sizeof word));
        ck_assert_uint_eq(look_at_all(&r, &good), N);
        ck_assert_uint_eq(good, N);
        rig_stop(&r);
        ck_assert_uint_le(file_size(name), r.config.store[0].bytes[0]);
        rig_deinit(&r);
    }
}
END_TEST

START_TEST(flipped_bits)
{
    struct rng rng = rng_seeded("flips");
    for (int round = 0; round < 10; round++) {
        struct rig r;
        struct written w[N];
        unsigned good;
        rig_init(&r, 4096, 8, N);
        rig_start(&r);
        fill(&r, w, N);
        rig_stop(&r);
        char name[128];
        snprintf(name, sizeof name, "%s", rig_file(&r, 0, STORE_BLOCKS));
        uint32_t payload = rng_below(&rng, N), header = rng_below(&rng, N);
        file_flip(name, rig_slot_offset(&r, w[payload].slot) + rng_below(&rng, 4096));
        file_flip(name, rig_header_offset(&r, w[header].slot) + rng_below(&rng, 64 + 200));
        ck_assert_uint_eq(look_at_all(&r, &good), header); /* the chain is cut there */
        ck_assert_uint_eq(good, payload < header ? header - 1 : header);
        rig_deinit(&r);
    }
}
END_TEST

START_TEST(other_fingerprint_empties)
{
    struct rig r;
    struct written w[N];
    unsigned good;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N);
    rig_stop(&r);
    r.config.store[STORE_BLOCKS].fingerprint[31] ^= 1;
    ck_assert_uint_eq(look_at_all(&r, &good), 0);
    rig_stop(&r);
    r.config.store[STORE_BLOCKS].fingerprint[31] ^= 1;
    ck_assert_uint_eq(look_at_all(&r, &good), 0); /* wiped, not a mixture */
    rig_wait_ready(&r, STORE_BLOCKS, N);
    fill(&r, w, N);
    rig_stop(&r);
    rig_store(&r, STORE_BLOCKS, 8192, 8, N, 1); /* the shape alone */
    ck_assert_uint_eq(look_at_all(&r, &good), 0);
    rig_deinit(&r);
}
END_TEST

START_TEST(other_budget)
{
    struct rig r;
    struct written w[N];
    unsigned good;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N);
    rig_stop(&r);
    rig_budget(&r, STORE_BLOCKS, 3 * N);
    ck_assert_uint_eq(look_at_all(&r, &good), N);
    ck_assert_uint_eq(good, N);
    rig_wait_ready(&r, STORE_BLOCKS, 3 * N);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 3 * N);
    rig_stop(&r);
    rig_budget(&r, STORE_BLOCKS, 5);
    ck_assert_uint_eq(look_at_all(&r, &good), 5);
    ck_assert_uint_eq(good, 5);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 5);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0);
    uint64_t next = swap_generation(r.sw);
    ck_assert_uint_gt(next, w[N - 1].generation); /* those that were cut off included */
    rig_stop(&r);
    ck_assert_uint_le(file_size(rig_file(&r, 0, STORE_BLOCKS)), r.config.store[0].bytes[0]);
    rig_budget(&r, STORE_BLOCKS, N); /* what was cut off does not come back */
    ck_assert_uint_eq(look_at_all(&r, &good), 5);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    rig_stop(&r);
    ck_assert_uint_eq(look_at_all(&r, &good), 5);
    r.config.store[0].bytes[0] = 1000; /* of no use: no file */
    rig_stop(&r);
    rig_start(&r);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 0);
    rig_deinit(&r);
}
END_TEST

static void second_daemon(struct child *me, void *arg)
{
    struct rig *r = arg;
    r->sw = NULL;
    ck_assert(rig_start_fails(r, "is used by another daemon"));
}

static void holder(struct child *me, void *arg)
{
    struct rig *r = arg;
    rig_start(r);
    child_post(me, 1);
    child_wait(me);
}

START_TEST(two_daemons)
{
    struct rig r;
    struct child c;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    ck_assert(rig_start_fails(&(struct rig){.config = r.config}, "is used by another daemon"));
    rig_stop(&r);
    child_start(&c, holder, &r);
    ck_assert_uint_eq(child_wait(&c), 1);
    second_daemon(NULL, &(struct rig){.config = r.config});
    child_kill(&c, SIGKILL); /* its lock goes with it */
    rig_start(&r);
    rig_deinit(&r);
}
END_TEST

/* One path is away for a time: its records, and its knowledge of flushes, are of no use after that.
 */
START_TEST(a_path_comes_back)
{
    struct rig r, other;
    struct written w[N], found[N];
    rig_init(&r, 4096, 8, 0);
    rig_init(&other, 4096, 8, 0);
    memcpy(r.dir[1], other.dir[0], sizeof r.dir[1]);
    r.config.path[1] = r.dir[1];
    r.config.n_paths = 2;
    rig_budget(&r, STORE_BLOCKS, N / 2);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < N; i++) /* even ones in one file, odd ones in the other */
        ck_assert_int_eq(rig_write(&r, 0, 1, &w[i]), SWAP_GOOD);
    uint64_t before = swap_generation(r.sw);
    rig_stop(&r);
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, N), N); /* both there: as it was */
    ck_assert_uint_lt(swap_generation(r.sw), before + 10);
    rig_stop(&r);
    r.config.n_paths = 1;
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, N), N / 2);
    ck_assert_uint_gt(swap_generation(r.sw), before); /* what is in the other is not given out */
    ck_assert_int_eq(rig_flush(&r, STORE_BLOCKS, 1, UINT64_MAX), SWAP_GOOD);
    rig_stop(&r);
    r.config.n_paths = 2;
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, N), 0);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(&r, 0, 1, &w[i]), SWAP_GOOD);
    rig_stop(&r);
    unlink(rig_file(&r, 1, STORE_BLOCKS)); /* deleted by hand */
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, N), N / 2);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    rig_deinit(&r);
    rig_deinit(&other);
}
END_TEST

/* Deleted while it is in use: it goes on, and is gone at the next start. */
START_TEST(deleted_under_us)
{
    struct rig r;
    struct written w[N];
    unsigned good;
    rig_init(&r, 4096, 8, N);
    rig_start(&r);
    fill(&r, w, N / 2);
    ck_assert_int_eq(unlink(rig_file(&r, 0, STORE_BLOCKS)), 0);
    for (int i = 0; i < N / 2; i++)
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w[0]), SWAP_GOOD);
    rig_stop(&r);
    ck_assert_uint_eq(look_at_all(&r, &good), 0);
    rig_deinit(&r);
}
END_TEST

/* Cut while it is in use: what lay there is proven gone. */
START_TEST(cut_under_us)
{
    struct rig r;
    struct written w[N];
    rig_init(&r, 8192, 8, N);
    r.config.uring = _i == 0;
    rig_start(&r);
    fill(&r, w, N);
    uint64_t keep = rig_slot_offset(&r, 9) + 512 * 3;
    ck_assert_int_eq(truncate(rig_file(&r, 0, STORE_BLOCKS), (off_t)keep), 0);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_read(&r, &w[i]), w[i].slot < 9 ? SWAP_GOOD : SWAP_CORRUPT);
    ck_assert(swap_facts(r.sw).healthy);
    rig_deinit(&r);
}
END_TEST

/* ---- a full file system ---- */

static void full_then_not(struct rig *r, void (*make_room)(void *), void *arg)
{
    struct written w[N], more;
    rig_start(r);
    uint64_t until = now_ms() + 2000;
    while (now_ms() < until && swap_ready(r->sw, STORE_BLOCKS) < N) {
        ck_assert_ptr_null(swap_take(r->sw));
        sleep_us(10000);
    }
    uint32_t ready = swap_ready(r->sw, STORE_BLOCKS);
    ck_assert_uint_gt(ready, 2);
    ck_assert_uint_lt(ready, N);
    uint64_t before = process_cpu_us(getpid());
    sleep_us(1000 * 1000);
    ck_assert_uint_lt(process_cpu_us(getpid()) - before, 50 * 1000 * SLOW); /* no spinning */
    for (uint32_t i = 0; i < ready; i++) {
        ck_assert_int_eq(rig_write(r, 0, 1, &w[i]), SWAP_GOOD); /* what exists can be used */
        ck_assert_int_eq(rig_read(r, &w[i]), SWAP_GOOD);
    }
    uint32_t slot;
    ck_assert_uint_eq(swap_slots_take(r->sw, STORE_BLOCKS, 1, &slot), 0);
    ck_assert(swap_facts(r->sw).healthy);
    make_room(arg);
    rig_wait_ready(r, STORE_BLOCKS, N);
    ck_assert_int_eq(rig_write(r, 0, 1, &more), SWAP_GOOD);
    for (uint32_t i = 0; i < ready; i++)
        ck_assert_int_eq(rig_read(r, &w[i]), SWAP_GOOD);
}

static void raise_limit(void *arg)
{
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
}

START_TEST(file_size_limit)
{
    struct rig r;
    rig_init(&r, 256 << 10, 8, N);
    r.config.uring = _i == 0;
    struct rlimit limit = {3 << 20, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    full_then_not(&r, raise_limit, NULL);
    rig_deinit(&r);
}
END_TEST

static void remove_filler(void *arg)
{
    ck_assert_int_eq(unlink(arg), 0);
}

START_TEST(small_file_system)
{
    struct rig r;
    char filler[128];
    static uint8_t some[1 << 16] = {1};
    rig_init(&r, 256 << 10, 8, N);
    r.config.uring = _i == 0;
    if (!own_file_system(r.dir[0], "12m")) {
        rig_deinit(&r);
        SKIP_TEST("no file system may be mounted; file_size_limit says nearly the same");
    }
    snprintf(filler, sizeof filler, "%s/filler", r.dir[0]);
    int fd = open(filler, O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 9 * 16; i++)
        ck_assert_int_eq(write(fd, some, sizeof some), sizeof some);
    close(fd);
    full_then_not(&r, remove_filler, filler);
    rig_stop(&r);
    umount2(r.dir[0], MNT_DETACH);
    rig_deinit(&r);
}
END_TEST

/* Not even the superblocks find room. */
START_TEST(no_room_at_all)
{
    struct rig r;
    struct written w;
    rig_init(&r, 4096, 8, N);
    struct rlimit limit = {0, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    rig_start(&r);
    ck_assert_uint_eq(swap_ready(r.sw, STORE_BLOCKS), 0);
    raise_limit(NULL);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    rig_stop(&r);
    unsigned good;
    ck_assert_uint_eq(look_at_all(&r, &good), 1);
    rig_deinit(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_files");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, directory_must_be_there);
    tcase_add_test(t, foreign_file_is_left_alone);
    tcase_add_test(t, garbage);
    tcase_add_test(t, cut_and_grown);
    tcase_add_test(t, flipped_bits);
    tcase_add_test(t, other_fingerprint_empties);
    tcase_add_test(t, other_budget);
    tcase_add_test(t, two_daemons);
    tcase_add_test(t, a_path_comes_back);
    tcase_add_test(t, deleted_under_us);
    tcase_add_loop_test(t, cut_under_us, 0, 2);
    tcase_add_loop_test(t, file_size_limit, 0, 2);
    tcase_add_loop_test(t, small_file_system, 0, 2);
    tcase_add_test(t, no_room_at_all);
    suite_add_tcase(s, t);
    return s;
}
