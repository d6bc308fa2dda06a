/* A file system that is full for real: a small tmpfs of our own, or, where none may be mounted, a
 * limit of the process on the length of files. And budgets, which are never exceeded. */
#include "tests/scenario/disk_site.h"

#include "daemon/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOT = 4096 };

/* ---- full ---------------------------------------------------------------------------------- */

/* Another process's file: it grows as far as it can, at most to n bytes. */
static void filler(struct site *s, size_t n)
{
    static const char zeros[4096];
    char name[100];
    snprintf(name, sizeof name, "%s/of others", s->dir[0]);
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    while (n >= sizeof zeros && write(fd, zeros, sizeof zeros) == sizeof zeros)
        n -= sizeof zeros;
    close(fd);
}

static void no_filler(struct site *s)
{
    char name[100];
    snprintf(name, sizeof name, "%s/of others", s->dir[0]);
    ck_assert_int_eq(unlink(name), 0);
}

static struct seq path(uint32_t i)
{
    return (struct seq){.n = 9, .at = {1000 + i, 1, 1, 1, 2, 2, 2, 2, 3}};
}

/* Blocks from..to come and go; each call in time, and the latest found. */
static void use(struct site *s, uint32_t from, uint32_t to)
{
    s->w.unchecked = true;
    for (uint32_t i = from; i < to; i++) {
        struct seq q = path(i);
        q.n = 8;
        uint64_t began = now_ms();
        REQUIRE_EQ(cache_seq(&s->w, &q, 0), 2);
        REQUIRE(now_ms() - began < 1000 * SLOW);
        q.n = 9;
        REQUIRE_EQ(exact_seq(s, &q), 8);
    }
    s->w.unchecked = false;
    step(&s->w);
}

static unsigned blocks_found(struct site *s, uint32_t to)
{
    unsigned n = 0;
    s->w.unchecked = true;
    for (uint32_t i = 0; i < to; i++) {
        struct seq q = path(i);
        n += exact_seq(s, &q) / 4;
    }
    s->w.unchecked = false;
    return n;
}

static void idle_is_idle(struct site *s)
{
    uint64_t cpu = process_cpu_us(s->h.pid);
    sleep_us(500000);
    ck_assert_uint_lt(process_cpu_us(s->h.pid) - cpu, 50 * 1000);
}

static void end_mounted(struct site *s)
{
    site_stop(s);
    ck_assert_int_eq(umount2(s->dir[0], MNT_DETACH), 0);
    site_start(s);
    site_deinit(s);
}

/* Full before the budget is: the tier uses what it got, gives up its oldest, and grows when others
 * make room, without a restart. */
START_TEST(b35_file_system_full_before_the_budget)
{
    struct site s;
    site_init(&s, "4M");
    if (!own_file_system(s.dir[0], "1M"))
        SKIP_TEST("no file system may be mounted; b35_limit_on_files says nearly the same");
    filler(&s, 600 * 1024);
    site_start_scanning(&s);
    EVENTUALLY(DISK_WAIT_MS, host_logged(&s.h, "slots for now"));
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_ready_blocks > 8); /* told after it was logged */
    uint64_t small = counters(&s.w).disk_ready_blocks;
    ck_assert_uint_lt(small, 100);
    use(&s, 0, 100);
    ck_assert_uint_le(counters(&s.w).disk_used, small);
    ck_assert_uint_gt(counters(&s.w).disk_used, small / 2);
    ck_assert_uint_eq(blocks_found(&s, 100), counters(&s.w).disk_used);
    ck_assert_uint_eq(counters(&s.w).disk_errors, 0); /* a full one is not a sick one */
    filler(&s, 1 << 20);                              /* now there is not a page left */
    use(&s, 100, 120);
    idle_is_idle(&s);
    site_kill(&s);
    site_start_scanning(&s); /* it starts on a full one, too */
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_scan_done);
    ck_assert_uint_gt(counters(&s.w).disk_used, small / 2);
    ck_assert_uint_eq(blocks_found(&s, 120), counters(&s.w).disk_used);
    use(&s, 120, 140);
    no_filler(&s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_ready_blocks > small);
    use(&s, 140, 300);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_used > small);
    end_mounted(&s);
}
END_TEST

/* Not even the first page of a file: the pool goes on alone, misses are misses, and later it works.
 */
START_TEST(b35_no_room_at_all)
{
    struct site s;
    site_init(&s, "4M");
    if (!own_file_system(s.dir[0], "1M"))
        SKIP_TEST("no file system may be mounted; b35_limit_on_files says nearly the same");
    filler(&s, 2 << 20);
    site_start_scanning(&s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_scan_done);
    use(&s, 0, 30);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_uint_eq(blocks_found(&s, 26), 0);
    idle_is_idle(&s);
    no_filler(&s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_ready_blocks > 16);
    use(&s, 30, 60);
    ck_assert_uint_gt(counters(&s.w).disk_used, 16);
    ck_assert_uint_eq(blocks_found(&s, 60), counters(&s.w).disk_used);
    end_mounted(&s);
}
END_TEST

/* States, too: the coldest goes for a warmer one, at once, though the budget is far away. */
START_TEST(states_on_a_full_file_system)
{
    enum { TEXTS = 20 };
    struct site s;
    char text[6] = "aaaax";
    site_init(&s, "400K");
    site_set(&s, "--blocks", "32");
    site_set(&s, "--snapshots", "4");
    site_set(&s, "--snapshot-bytes", "64K");
    site_set(&s, "--snapshot-swap", "8M");
    if (!own_file_system(s.dir[0], "1M"))
        SKIP_TEST("no file system may be mounted; bad_slot_of_states_is_no_room says nearly it");
    site_start(&s);
    EVENTUALLY(DISK_WAIT_MS, host_logged(&s.h, "slots for now"));
    for (int i = 0; i < TEXTS; i++) {
        memset(text, 'a' + i, 4);
        text[4] = 0;
        keep_on_disk(&s, text, 4, PFX_EXACT, 0);
        unsigned n = (unsigned)counters(&s.w).snapshots_tiered;
        ck_assert_uint_le(n, (1 << 20) / (64 << 10));
        ck_assert(i == TEXTS - 1 ? n > 4 : n > 0);
    }
    found(&s.w, "aaaax", 0, 0, 0);
    for (int i = TEXTS - 4; i < TEXTS; i++) {
        memset(text, 'a' + i, 4);
        text[4] = 'x';
        struct held h = ask(&s.w, text, 0, PFX_FETCH);
        offers(&s.w, &h, text, 4, 0);
        drop(&s.w, &h);
    }
    end_mounted(&s);
}
END_TEST

/* A limit on the length of files is a full file system, not a signal that ends the daemon, also
 * where the file is longer already. When it is raised all is well. */
START_TEST(b35_limit_on_files)
{
    struct site s;
    struct rlimit old, limit;
    site_init(&s, "4M");
    site_start(&s);
    EVENTUALLY(DISK_WAIT_MS,
               counters(&s.w).disk_ready_blocks == pfx_geometry(s.w.c)->n_disk_blocks);
    ck_assert_int_eq(prlimit(s.h.pid, RLIMIT_FSIZE, NULL, &old), 0);
    limit = (struct rlimit){1 << 20, old.rlim_max};
    ck_assert_int_eq(prlimit(s.h.pid, RLIMIT_FSIZE, &limit, NULL), 0);
    use(&s, 0, 200); /* 400 blocks, of which some 200 lie below the limit */
    uint64_t used = counters(&s.w).disk_used;
    ck_assert_uint_gt(used, 16);
    ck_assert_uint_lt(used, 256);
    ck_assert_uint_eq(counters(&s.w).disk_errors, 0);
    idle_is_idle(&s);
    ck_assert_int_eq(prlimit(s.h.pid, RLIMIT_FSIZE, &old, NULL), 0);
    sleep_us(1200000); /* as long as a full one is left in peace */
    use(&s, 200, 400);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_used > used + 300);
    ck_assert_uint_eq(blocks_found(&s, 400), counters(&s.w).disk_used);
    site_deinit(&s);
}
END_TEST

/* ---- budgets ------------------------------------------------------------------------------- */

/* A budget of so many slots, to the byte. */
static const char *budget_of(unsigned n)
{
    static char text[SITE_PATHS][24];
    static unsigned next;
    char *t = text[next++ % SITE_PATHS];
    snprintf(t, sizeof text[0], "%llu",
             (unsigned long long)swap_file_bytes(SLOT, 1, body_room(4), n));
    return t;
}

static void site_of_slots(struct site *s, unsigned n)
{
    site_init(s, budget_of(n));
    site_start(s);
    ck_assert_uint_eq(pfx_geometry(s->w.c)->n_disk_blocks, n);
}

static void used_is(struct site *s, unsigned n)
{
    all_written(s);
    ck_assert_uint_eq(counters(&s->w).disk_used, n);
    ck_assert_uint_le(site_file_size(s, 0), strtoull(strrchr(s->swap[0], ':') + 1, NULL, 10));
}

/* The count follows each way in and out, at a budget of two blocks. */
START_TEST(b33_usage_is_what_is_there)
{
    struct site s;
    site_of_slots(&s, 2);
    pfx_space other = use_space(&s, "other", 0, 0, 1);
    put_on_disk(&s, "aaaa");
    used_is(&s, 1);
    ck_assert_uint_eq(exact(&s, "aaaax"), 4); /* to the pool, and out of it again */
    ck_assert_uint_eq(evict_pages(&s, 8), 0);
    used_is(&s, 1);
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, 1);
    s.w.space = 0;
    put_on_disk(&s, "bbbb");
    used_is(&s, 2);
    ck_assert_int_eq(pfx_flush(s.w.c, other), 0);
    used_is(&s, 1);
    ck_assert_int_eq(pfx_flush(s.w.c, PFX_ALL_SPACES), 0);
    used_is(&s, 0);
    put_on_disk(&s, "cccc");
    put_on_disk(&s, "dddd");
    used_is(&s, 2);
    put_on_disk(&s, "eeee"); /* in place of the older one */
    used_is(&s, 2);
    ck_assert_uint_eq(findable(&s, "ccccx"), 0);
    ck_assert_uint_eq(exact(&s, "ddddx"), 4);
    ck_assert_uint_eq(exact(&s, "eeeex"), 4);
    site_deinit(&s);
}
END_TEST

/* A copy that the disk gave up is not counted on: out of the pool as well, the block is a miss, and
 * no read is even tried. */
START_TEST(b33_copies_given_up_are_not_counted_on)
{
    struct site s;
    site_of_slots(&s, 2);
    cache(&s.w, "xxxx");
    used_is(&s, 1);
    struct held h = look(&s.w, "xxxxx"); /* its page stays */
    cache(&s.w, "bbbb");
    cache(&s.w, "cccc");
    used_is(&s, 2);
    cache(&s.w, "dddd");
    cache(&s.w, "eeee");
    used_is(&s, 2);
    drop(&s.w, &h);
    ck_assert_uint_eq(exact(&s, "xxxxx"), 4);
    uint64_t read = counters(&s.w).disk_read_blocks;
    all_written(&s);
    (void)evict_pages(&s, 8);
    uint32_t left = findable(&s, "xxxxx") + findable(&s, "bbbbx") + findable(&s, "ccccx") +
                    findable(&s, "ddddx") + findable(&s, "eeeex");
    ck_assert_uint_eq(left, 4 * counters(&s.w).disk_used);
    ck_assert_uint_le(left, 8);
    static const char *const texts[] = {"xxxxx", "bbbbx", "ccccx", "ddddx", "eeeex"};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(exact(&s, texts[i]), findable(&s, texts[i]));
    ck_assert_uint_eq(counters(&s.w).disk_read_blocks, read + left / 4);
    ck_assert_uint_eq(counters(&s.w).disk_errors, 0);
    site_deinit(&s);
}
END_TEST

/* More valid records than the next budget has room for: it holds from the start. */
START_TEST(b33_smaller_budget_after_a_restart)
{
    struct site s;
    site_of_slots(&s, 5);
    put_on_disk(&s, "aaaa");
    put_on_disk(&s, "bbbbcccc");
    put_on_disk(&s, "dddd");
    put_on_disk(&s, "eeee");
    used_is(&s, 5);
    for (unsigned n = 4; n >= 1; n--) {
        site_kill(&s);
        site_budget(&s, 0, budget_of(n));
        site_start(&s);
        uint64_t used = counters(&s.w).disk_used;
        ck_assert_uint_le(used, n);
        ck_assert_uint_le(site_file_size(&s, 0), strtoull(budget_of(n), NULL, 10));
        uint32_t tokens =
            exact(&s, "aaaax") + exact(&s, "bbbbccccx") + exact(&s, "ddddx") + exact(&s, "eeeex");
        ck_assert_uint_eq(tokens, 4 * used);
        cache(&s.w, "ffff");
        all_written(&s);
        ck_assert_uint_le(counters(&s.w).disk_used, n);
    }
    site_deinit(&s);
}
END_TEST

/* What goes from the disk goes leaf first, as from the pool: a block is never there without those
 * before it. */
START_TEST(b07_leaf_first_on_disk)
{
    struct site s;
    site_of_slots(&s, 4);
    put_on_disk(&s, "aaaabbbbccccdddd");
    used_is(&s, 4);
    static const char *const others[] = {"1111", "2222", "3333"};
    for (unsigned i = 0; i < 3; i++) {
        put_on_disk(&s, others[i]);
        used_is(&s, 4);
        ck_assert_uint_eq(findable(&s, "aaaabbbbccccddddx"), 12 - 4 * i);
        site_again(&s);
        ck_assert_uint_eq(counters(&s.w).disk_used, 4);
        ck_assert_uint_eq(findable(&s, "aaaabbbbccccddddx"), 12 - 4 * i);
        for (unsigned k = 0; k <= i; k++) { /* younger than the path, also for the next life */
            char text[8];
            snprintf(text, sizeof text, "%sx", others[k]);
            ck_assert_uint_eq(exact(&s, text), 4);
        }
        ck_assert_uint_eq(evict_pages(&s, 8), 0);
    }
    site_deinit(&s);
}
END_TEST

/* Slots on disk that are all in use, by prefixes that somebody holds: no call fails, and what
 * cannot be written is lost when its page is needed. */
START_TEST(e64_disk_slots_exhausted)
{
    struct site s;
    site_of_slots(&s, 3);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held h = seek(&s, "aaaabbbbccccx", 0); /* holds all three copies */
    for (uint32_t i = 0; i < 30; i++) {
        struct seq q = path(i);
        q.n = 8;
        uint64_t began = now_ms();
        ck_assert_uint_eq(cache_seq(&s.w, &q, 0), 2);
        ck_assert_uint_lt(now_ms() - began, 1500 * SLOW);
    }
    used_is(&s, 3);
    ck_assert_int_eq(pfx_fetch(s.w.c, h.lease, &h.match), 0);
    ck_assert_uint_eq(h.match.n_resident, 3);
    drop(&s.w, &h);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Clean idle pages are room: with a disk that stands still, a reserve of the whole pool is answered
 * at once, and nothing is lost. */
START_TEST(e111_reserve_counts_clean_pages_as_room)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    cache(&s.w, "aaaabbbbccccddddeeeeffffgggghhhh");
    disk_used_is(&s, 8);
    uint64_t written = counters(&s.w).disk_written_blocks;
    pages_are(&s.w, 0, 0, 0, 8);
    io_stop(&s);
    struct held h = look(&s.w, "zzzz");
    uint64_t began = now_ms();
    ck_assert_int_eq(grab(&s.w, &h, 8), 0);
    ck_assert_uint_lt(now_ms() - began, 100 * SLOW);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 0);
    ck_assert_uint_eq(counters(&s.w).disk_used, 8);
    drop(&s.w, &h);
    io_go(&s);
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, written);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddeeeeffffgggghhhhx"), 32);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_full");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b35_file_system_full_before_the_budget);
    tcase_add_test(t, b35_no_room_at_all);
    tcase_add_test(t, states_on_a_full_file_system);
    tcase_add_test(t, b35_limit_on_files);
    tcase_add_test(t, b33_usage_is_what_is_there);
    tcase_add_test(t, b33_copies_given_up_are_not_counted_on);
    tcase_add_test(t, b33_smaller_budget_after_a_restart);
    tcase_add_test(t, b07_leaf_first_on_disk);
    tcase_add_test(t, e64_disk_slots_exhausted);
    tcase_add_test(t, e111_reserve_counts_clean_pages_as_room);
    suite_add_tcase(s, t);
    return s;
}
