/* Swap files that were cut, overwritten or changed by a bit between two lives, or belong to another
 * configuration: the daemon starts, and what it finds has the right bytes or is a miss. */
#include "tests/scenario/disk_site.h"

#include "daemon/swap_format.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Six blocks: two paths with a front of two in common, and one of two. */
static const char *const paths[] = {"aaaabbbbccccx", "aaaabbbbddddx", "eeeeffffx"};
enum { PATHS = 3, ALL = 6 };

static unsigned blocks_in(const uint32_t tokens[PATHS])
{
    return tokens[0] / 4 + (tokens[1] > 8) + tokens[2] / 4;
}

/* How many are found; those that can be read have the right bytes. */
static unsigned all_exact(struct site *s)
{
    uint32_t there[PATHS], read[PATHS];
    for (int i = 0; i < PATHS; i++)
        there[i] = findable(s, paths[i]);
    ck_assert_uint_eq(counters(&s->w).disk_used, blocks_in(there));
    for (int i = 0; i < PATHS; i++)
        read[i] = exact(s, paths[i]);
    ck_assert_uint_eq(counters(&s->w).disk_used, blocks_in(read));
    return blocks_in(read);
}

static void write_all(struct site *s)
{
    char text[16];
    for (int i = 0; i < PATHS; i++) {
        strcpy(text, paths[i]);
        text[strlen(text) - 1] = 0;
        cache(&s->w, text);
    }
    disk_used_is(s, ALL);
}

static void site_with_all(struct site *s)
{
    site_init(s, "2M");
    site_start(s);
    write_all(s);
}

/* ---- damage -------------------------------------------------------------------------------- */

/* Cut to any length, the file is mended: what is lost is a miss, and it can be used again. */
START_TEST(b36_files_cut_short)
{
    struct site s;
    site_with_all(&s);
    uint64_t size = site_file_size(&s, 0);
    const uint64_t lengths[] = {size,
                                size - 1,
                                size / 2,
                                SWAP_EXTENTS + 8192,
                                4096,
                                SWAP_EXTENTS + 1,
                                SWAP_EXTENTS - 1,
                                SWAP_PROBE,
                                size - 7,
                                SWAP_FLUSHES + 5,
                                8191,
                                1,
                                0};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        site_kill(&s);
        site_file_cut(&s, 0, lengths[i]);
        site_start(&s);
        unsigned found = all_exact(&s);
        if (lengths[i] >= size / 2) /* six slots are at its front */
            ck_assert_uint_eq(found, ALL);
        if (lengths[i] < SWAP_EXTENTS)
            ck_assert_uint_eq(found, 0);
        write_all(&s);
        site_again(&s);
        ck_assert_uint_eq(all_exact(&s), ALL);
    }
    site_deinit(&s);
}
END_TEST

/* Random bytes over each part of the file in turn, and after its end. */
START_TEST(b36_files_partly_garbage)
{
    static const struct {
        uint64_t at, n;
        int found; /* -1: what is left of them */
    } part[] = {
        {0, SWAP_SUPERBLOCK, ALL}, /* one of two superblocks is enough, and soon there are two */
        {SWAP_SUPERBLOCK, SWAP_SUPERBLOCK, ALL},
        {SWAP_FLUSHES, 4096, 0}, /* any space may have been flushed there */
        {SWAP_PROBE, 4096, ALL},
        {SWAP_EXTENTS, 4096, -1}, /* headers */
        {SWAP_EXTENTS, 1500000, 0},
    };
    struct rng r = rng_seeded("garbage");
    struct site s;
    site_with_all(&s);
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        site_kill(&s);
        site_file_garbage(&s, 0, part[i].at, part[i].n, rng_next(&r));
        site_file_garbage(&s, 0, site_file_size(&s, 0), 1 + rng_below(&r, 100000), rng_next(&r));
        site_start(&s);
        unsigned found = all_exact(&s);
        if (part[i].found >= 0)
            ck_assert_int_eq((int)found, part[i].found);
        else
            ck_assert_uint_lt(found, ALL);
        write_all(&s);
        ck_assert_uint_le(site_file_size(&s, 0), 2 << 20); /* the budget */
    }
    site_deinit(&s);
}
END_TEST

/* A file that is nobody's as far as one can see is left alone; without it there is no tier. */
START_TEST(b36_files_all_garbage)
{
    struct site s;
    site_with_all(&s);
    site_kill(&s);
    uint64_t size = site_file_size(&s, 0);
    site_file_garbage(&s, 0, 0, size, 42);
    site_start_scanning(&s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).disk_scan_done);
    ck_assert(host_logged(&s.h, site_file(&s, 0)));
    ck_assert_uint_eq(all_exact(&s), 0);
    cache(&s.w, "aaaabbbb");
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_uint_eq(counters(&s.w).disk_errors, 0);
    site_kill(&s);
    ck_assert_uint_eq(site_file_size(&s, 0), size);
    unlink(site_file(&s, 0));
    site_start(&s);
    write_all(&s);
    site_again(&s);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_deinit(&s);
}
END_TEST

/* Bits of what is in use, a few at a time. */
static void flip_bits(struct site *s, struct rng *r, unsigned n)
{
    static uint8_t bytes[2 << 20];
    int fd = open(site_file(s, 0), O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    ssize_t size = pread(fd, bytes, sizeof bytes, 0);
    REQUIRE(size > SWAP_EXTENTS);
    while (n) {
        uint32_t at = rng_below(r, (uint32_t)size);
        if (!bytes[at] && rng_below(r, 200))
            continue; /* rarely where nothing is */
        bytes[at] ^= (uint8_t)(1 << rng_below(r, 8));
        REQUIRE_EQ(pwrite(fd, bytes + at, 1, at), 1);
        n--;
    }
    close(fd);
}

START_TEST(b36_flipped_bits_are_misses)
{
    struct rng r = rng_seeded("flips");
    struct site s;
    unsigned found = 0, lives = 40;
    site_with_all(&s);
    for (unsigned i = 0; i < lives; i++) {
        site_kill(&s);
        flip_bits(&s, &r, 1 + rng_below(&r, 4));
        site_start(&s);
        found += all_exact(&s);
        write_all(&s);
    }
    ck_assert_uint_gt(found, 0);
    ck_assert_uint_lt(found, lives * ALL);
    site_deinit(&s);
}
END_TEST

/* ---- another configuration --------------------------------------------------------------------
 */

static void tiered_site(struct site *s)
{
    site_init(s, "2M");
    site_set(s, "--model", "weights 1");
    site_set(s, "--snapshots", "4");
    site_set(s, "--snapshot-bytes", "4K");
    site_set(s, "--snapshot-swap", "512K");
}

static void no_states(struct site *s)
{
    states_are(&s->w, 0, 0);
    for (int i = 0; i < PATHS; i++)
        found(&s->w, paths[i], 0, 0, 0);
}

/* Each field of what makes bytes interchangeable, changed alone: nothing of the old is found, the
 * log says why, and the old bytes do not come back with the old configuration either. */
START_TEST(b37_each_field_of_the_fingerprint)
{
    static const struct {
        const char *option, *old, *other;
    } field[] = {
        {"--model", "weights 1", "weights 2"}, /* and KV dtype, heads, rank: all that it names */
        {"--block-tokens", "4", "8"},
        {"--block-bytes", "4K", "8K"},
        {"--devices", "1", "2"},
        {"--snapshot-bytes", "4K", "8K"},
    };
    struct site s;
    tiered_site(&s);
    site_set(&s, field[_i].option, field[_i].old);
    site_start(&s);
    write_all(&s);
    keep_on_disk(&s, "aaaabbbbcccc", 8, PFX_EXACT, 0);
    keep_on_disk(&s, "eeeeffff", 3, PFX_EXACT, 0); /* hangs on the root: it needs no block */
    site_again(&s);
    states_are(&s.w, 0, 2);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_kill(&s);
    site_set(&s, field[_i].option, field[_i].other);
    site_start(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    for (int i = 0; i < PATHS; i++)
        ck_assert_uint_eq(exact(&s, paths[i]), 0);
    ck_assert(host_logged(&s.h, "blocks.prefixd"));
    ck_assert(host_logged(&s.h, "snapshots.prefixd"));
    no_states(&s);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 8 / block_tokens(&s.w));
    site_kill(&s);
    site_set(&s, field[_i].option, field[_i].old);
    site_start(&s);
    no_states(&s);
    ck_assert_uint_eq(all_exact(&s), 0);
    write_all(&s);
    site_again(&s);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_deinit(&s);
}
END_TEST

/* What says nothing about bytes may change: pool, budgets, policies, engine. */
START_TEST(b37_what_is_no_part_of_it)
{
    struct site s;
    tiered_site(&s);
    site_start(&s);
    write_all(&s);
    site_kill(&s);
    site_set(&s, "--blocks", "16");
    site_set(&s, "--snapshots", "2");
    site_set(&s, "--snapshot-swap", "256K");
    site_set(&s, "--swap-write", "evict");
    site_set(&s, "--swap-depth", "4");
    site_set(&s, "--alpha", "0.5");
    site_budget(&s, 0, "3M");
    site_start(&s);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_deinit(&s);
}
END_TEST

/* ---- whose files these are ----------------------------------------------------------------- */

/* A second daemon is refused by name, and has harmed nothing; when the first is gone it may. */
START_TEST(e75_second_daemon_on_the_same_path)
{
    struct site s;
    char output[2000], socket[120];
    site_with_all(&s);
    const char *argv[SITE_OPTIONS + 3] = {"--socket", socket};
    snprintf(socket, sizeof socket, "%s/other", s.dir[0]);
    memcpy(argv + 2, s.option, s.n_options * sizeof argv[0]);
    ck_assert_int_eq(program_run(prefixd_path(), argv, output, sizeof output), 2);
    ck_assert_msg(strstr(output, site_file(&s, 0)) && strstr(output, "another daemon"), "%s",
                  output);
    ck_assert_int_ne(access(socket, F_OK), 0);
    ck_assert_uint_eq(all_exact(&s), ALL);
    ck_assert_uint_eq(evict_pages(&s, 8), 0);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_again(&s);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_deinit(&s);
}
END_TEST

/* One file a store, with one name for ever, within its budget: starts leave nothing behind. The
 * files stay when the daemon goes, as they are what a restart finds; what is not ours stays too. */
START_TEST(e96_files_do_not_pile_up)
{
    struct site s;
    char note[100];
    tiered_site(&s);
    for (int i = 0; i < 6; i++) {
        site_start(&s);
        ck_assert_uint_eq(all_exact(&s), i ? ALL : 0);
        write_all(&s);
        snprintf(note, sizeof note, "%s/a note of somebody's", s.dir[0]);
        if (i == 0)
            close(open(note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        if (i % 2)
            site_kill(&s);
        else
            site_stop(&s);
        struct stat st;
        ck_assert_int_eq(stat(s.dir[0], &st), 0);
        DIR *d = opendir(s.dir[0]);
        unsigned n = 0;
        for (struct dirent *e; (e = readdir(d));)
            n += e->d_name[0] != '.';
        closedir(d);
        ck_assert_uint_eq(n, 3);
        ck_assert_uint_le(site_file_size(&s, 0), 2 << 20);
    }
    site_start(&s);
    ck_assert_uint_eq(all_exact(&s), ALL);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_files");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b36_files_cut_short);
    tcase_add_test(t, b36_files_partly_garbage);
    tcase_add_test(t, b36_files_all_garbage);
    tcase_add_test(t, b36_flipped_bits_are_misses);
    tcase_add_loop_test(t, b37_each_field_of_the_fingerprint, 0, 5);
    tcase_add_test(t, b37_what_is_no_part_of_it);
    tcase_add_test(t, e75_second_daemon_on_the_same_path);
    tcase_add_test(t, e96_files_do_not_pile_up);
    suite_add_tcase(s, t);
    return s;
}
