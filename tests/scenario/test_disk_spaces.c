/* Tenants, adapters, flushes and retired slots on disk, over restarts: a space's number means
 * nothing there, its whole description does. */
#include "tests/scenario/disk_site.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct name {
    const char *tenant;
    uint64_t adapter, generation;
};

static char longest[256];

/* What differs in one thing only, and what a file name could not hold. */
static const struct name names[] = {
    {"", 0, 0},      {"t", 0, 0}, {"t", 1, 0},  {"t", 1, 1}, {"", 1, 0},
    {"", 0, 1},      {"1", 0, 0}, {"tt", 0, 0}, {"T", 0, 0}, {"../\n\xff/..", 0, 0},
    {longest, 7, 7},
};
enum { NAMES = sizeof names / sizeof names[0] };

/* The worker is in the i-th space from here on; each has bytes of its own. */
static void enter(struct site *s, unsigned i)
{
    memset(longest, 'n', 255);
    use_space(s, names[i].tenant, names[i].adapter, names[i].generation, 100 + i);
}

static void site_of_all(struct site *s)
{
    site_init(s, "4M");
    site_set(s, "--blocks", "32");
    site_start(s);
    for (unsigned i = 0; i < NAMES; i++) {
        enter(s, i);
        cache(&s->w, "aaaabbbb");
        cache(&s->w, i % 2 ? "aaaacccc" : "dddd");
    }
    disk_used_is(s, 5 * 3 + 6 * 3);
}

static void all_but(struct site *s, unsigned gone)
{
    for (unsigned i = NAMES; i-- > 0;) {
        enter(s, i);
        ck_assert_uint_eq(exact(s, "aaaabbbbx"), i == gone ? 0 : 8);
        ck_assert_uint_eq(exact(s, i % 2 ? "aaaaccccx" : "ddddx"), i == gone ? 0 : i % 2 ? 8 : 4);
        ck_assert_uint_eq(exact(s, i % 2 ? "ddddx" : "aaaaccccx"), i % 2 || i == gone ? 0 : 4);
    }
}

/* Same tokens in each: each finds its own, in this life and in the next ones, whatever its number
 * is there. Who comes first gets a number that was another's, and sees nothing of it. */
START_TEST(b18_spaces_stay_apart_on_disk)
{
    struct site s;
    site_of_all(&s);
    ck_assert_uint_eq(evict_pages(&s, 32), 0);
    all_but(&s, NAMES);
    for (int life = 0; life < 2; life++) {
        site_again(&s);
        use_space(&s, "stranger", 0, (uint64_t)life, 1);
        ck_assert_uint_eq(findable(&s, "aaaabbbbx") + findable(&s, "ddddx"), 0);
        all_but(&s, NAMES);
    }
    site_deinit(&s);
}
END_TEST

/* A tenant that gets the number which another had in the life before sees nothing of that one's. */
START_TEST(b18_another_tenants_old_number)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    pfx_space first = use_space(&s, "first", 0, 0, 1); /* nothing of it is cached */
    pfx_space number = use_space(&s, "owner", 0, 0, 2);
    ck_assert_uint_ne(number, first);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 2);
    site_again(&s);
    ck_assert_uint_eq(use_space(&s, "stranger", 0, 0, 3), number);
    ck_assert_uint_eq(findable(&s, "aaaabbbbx"), 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 0);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 4);
    ck_assert_uint_ne(use_space(&s, "owner", 0, 0, 2), number);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    site_again(&s);
    use_space(&s, "stranger", 0, 0, 3);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    use_space(&s, "owner", 0, 0, 2);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    site_deinit(&s);
}
END_TEST

/* In this life and in the next, the others' stay. */
START_TEST(b48_flushed_space_stays_gone)
{
    struct site s;
    unsigned which = (unsigned)_i;
    site_of_all(&s);
    enter(&s, which);
    ck_assert_int_eq(pfx_flush(s.w.c, s.w.space), 0);
    step(&s.w);
    ck_assert_uint_eq(counters(&s.w).disk_used, 30);
    all_but(&s, which);
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 30);
    all_but(&s, which);
    ck_assert_int_eq(pfx_flush(s.w.c, PFX_ALL_SPACES), 0);
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    for (unsigned i = 0; i < NAMES; i++) {
        enter(&s, i);
        ck_assert_uint_eq(findable(&s, "aaaabbbbx"), 0);
    }
    site_deinit(&s);
}
END_TEST

/* A lease from before keeps its pages; the same tokens come anew with other bytes, and a restart
 * finds those alone. */
START_TEST(b48_flushed_and_written_again)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 2);
    struct held old = look(&s.w, "aaaabbbbx");
    ck_assert_int_eq(pfx_flush(s.w.c, 0), 0);
    ck_assert_uint_eq(findable(&s, "aaaabbbbx"), 0);
    struct worker now = s.w;
    now.weights = 9;
    cache(&now, "aaaabbbb");
    bytes_match(&s.w, &old, "aaaabbbbx");
    uint64_t n_free = counters(&s.w).blocks_free;
    drop(&s.w, &old);
    ck_assert_uint_eq(counters(&s.w).blocks_free, n_free + 2); /* not idle */
    s.w.weights = 9;
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    disk_used_is(&s, 2);
    for (int life = 0; life < 2; life++) {
        site_again(&s);
        s.w.weights = 9;
        ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
        ck_assert_uint_eq(counters(&s.w).disk_used, 2);
    }
    site_deinit(&s);
}
END_TEST

/* Killed right after pfx_flush has returned, many times: it is gone for good each time. */
START_TEST(b48_flush_is_on_disk_when_it_returns)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    for (uint64_t i = 0; i < 20; i++) {
        s.w.weights = i;
        cache(&s.w, "aaaabbbbcccc");
        if (i % 3)
            disk_used_is(&s, 3); /* else it may still be on its way */
        ck_assert_int_eq(pfx_flush(s.w.c, i % 2 ? PFX_ALL_SPACES : 0), 0);
        site_again(&s);
        ck_assert_uint_eq(counters(&s.w).disk_used, 0);
        ck_assert_uint_eq(findable(&s, "aaaabbbbccccx"), 0);
    }
    site_deinit(&s);
}
END_TEST

/* ---- slots that are retired ---------------------------------------------------------------- */

/* Where in the file this page's bytes lie. */
static off_t place_of(struct site *s, const uint8_t *page)
{
    static uint8_t bytes[4096];
    int fd = open(site_file(s, 0), O_RDONLY | O_CLOEXEC);
    off_t at = 0;
    while (pread(fd, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes &&
           memcmp(bytes, page, sizeof bytes) != 0)
        at += 4096;
    close(fd);
    ck_assert_uint_lt((uint64_t)at, site_file_size(s, 0));
    return at;
}

static void flip_at(struct site *s, off_t at)
{
    uint8_t byte;
    int fd = open(site_file(s, 0), O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    ck_assert_int_eq(fsync(fd), 0);
    close(fd);
}

/* A block that was proven bad takes what hangs on it along; its slot is not used again, and not
 * even when its bytes are as they were does a restart find it. */
START_TEST(e79_retired_slot_stays_gone)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    cache(&s.w, "aaaabbbbcccc");
    disk_used_is(&s, 3);
    struct held h = look(&s.w, "aaaabbbbccccx");
    off_t at = place_of(&s, pfx_block_address(s.w.c, 0, h.table[1]));
    drop(&s.w, &h);
    ck_assert_uint_eq(evict_pages(&s, 8), 0);
    flip_at(&s, at + 100);
    h = seek(&s, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(h.match.matched_tokens, 12);
    ck_assert_int_eq(pfx_fetch(s.w.c, h.lease, &h.match), PFX_EIO);
    ck_assert_uint_eq(h.match.matched_tokens, 4);
    ck_assert_uint_eq(h.match.n_resident, 1);
    drop(&s.w, &h);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 4); /* and no error */
    ck_assert_uint_ge(counters(&s.w).disk_errors, 1);
    ck_assert_uint_eq(counters(&s.w).disk_used, 1);
    all_written(&s); /* so is the retirement */
    flip_at(&s, at + 100);
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 1);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 4);
    cache(&s.w, "aaaabbbbcccc"); /* elsewhere */
    disk_used_is(&s, 3);
    h = seek(&s, "aaaabbbbccccx", PFX_FETCH);
    ck_assert_int_ne(place_of(&s, pfx_block_address(s.w.c, 0, h.table[2])), at);
    drop(&s.w, &h);
    site_again(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_spaces");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b18_spaces_stay_apart_on_disk);
    tcase_add_test(t, b18_another_tenants_old_number);
    tcase_add_loop_test(t, b48_flushed_space_stays_gone, 0, 4);
    tcase_add_test(t, b48_flushed_and_written_again);
    tcase_add_test(t, b48_flush_is_on_disk_when_it_returns);
    tcase_add_test(t, e79_retired_slot_stays_gone);
    suite_add_tcase(s, t);
    return s;
}
