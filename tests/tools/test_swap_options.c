/* The disk tier's options beside the others: what could never be used is refused or warned of, by
 * name; a file that is not ours is left alone, and prefixctl shows that its path is not in use. */
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOON_MS = 5000 * SLOW, SOMEBODY = 12345 };

/* Two directories for files, and their values for --swap. */
static struct site {
    char dir[2][64], swap[2][80], file[2][96], socket[80];
} at;

static void site_make(void)
{
    for (int i = 0; i < 2; i++) {
        strcpy(at.dir[i], "/tmp/prefixd-swap-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(at.dir[i]));
        snprintf(at.swap[i], sizeof at.swap[i], "%s:1M", at.dir[i]);
        snprintf(at.file[i], sizeof at.file[i], "%s/blocks.prefixd", at.dir[i]);
    }
    snprintf(at.socket, sizeof at.socket, "%s/s", at.dir[0]);
}

static void site_remove(void)
{
    for (int i = 0; i < 2; i++) {
        char states[96];
        snprintf(states, sizeof states, "%s/snapshots.prefixd", at.dir[i]);
        unlink(at.file[i]);
        unlink(states);
        ck_assert_msg(rmdir(at.dir[i]) == 0, "something is left in %s", at.dir[i]);
    }
}

#define SMALL "--blocks", "8", "--block-tokens", "4", "--block-bytes", "4K"

/* ---- warned of ----------------------------------------------------------------------------------
 */

static const struct odd {
    const char *warning; /* NULL: none */
    const char *words[8];
} odd[] = {
    {NULL, {"--swap-write", "insert", "--swap-admit", "2", "--swap-depth", "8"}},
    {"--index none", {"--index", "none"}},
    {"a block of 100096 takes 102400 in the pool and on disk, 2304 of them",
     {"--block-bytes", "100096"}},
    {NULL, {"--block-bytes", "8K"}},
    {"a state of 100 takes 4096 in the pool and on disk, 3996 of them",
     {"--snapshots", "2", "--snapshot-bytes", "100", "--snapshot-swap", "1M"}},
    {"--spill-min-tokens 36: nothing is spilled, for the pool holds no prefix of more than 35",
     {"--snapshots=2", "--snapshot-bytes=4K", "--snapshot-swap=1M", "--spill-min-tokens=36"}},
    {"the pool 8000: they have room for little beyond", {"--blocks", "8000"}},
    {NULL, {"--blocks", "800"}},
    {"not all that is inserted can be written", {"--blocks", "800", "--swap-write", "insert"}},
    {NULL, {"--blocks", "100", "--swap-write", "insert"}},
    {"--swap without --snapshot-swap", {"--snapshots", "2", "--snapshot-bytes", "4K"}},
    {"--alpha", {"--alpha", "0.5"}},
};

static void starts_with(const char *swap, const struct odd *o)
{
    struct host h;
    const char *words[20] = {SMALL};
    int n = 6;
    if (swap) {
        words[n++] = "--swap";
        words[n++] = swap;
    }
    for (int i = 0; i < 8 && o->words[i]; i++)
        words[n++] = o->words[i];
    host_start(&h, words);
    ck_assert_int_eq(host_logged(&h, "warning: --"), o->warning != NULL);
    if (o->warning)
        ck_assert_msg(host_logged(&h, o->warning), "nothing is said of %s", o->warning);
    host_stop(&h);
}

START_TEST(swap_options_of_little_use_are_warned_of)
{
    site_make();
    starts_with(at.swap[0], &odd[_i]);
    site_remove();
}
END_TEST

/* Each by its name, given with its default or not. */
static const struct odd without[] = {
    {"--swap-write: there is no disk tier; give --swap", {"--swap-write", "evict"}},
    {"--swap-admit: there is no disk tier; give --swap", {"--swap-admit", "1"}},
    {"--swap-depth: there is no disk tier; give --swap", {"--swap-depth", "32"}},
    {"--spill-min-tokens 5: nothing is spilled; give --snapshot-swap", {"--spill-min-tokens", "5"}},
    {"--spill-min-tokens 36: nothing is spilled, for the pool holds no prefix of more than 35",
     {"--snapshots", "2", "--snapshot-bytes", "64", "--snapshot-swap", "1K", "--spill-min-tokens",
      "36"}},
    {NULL,
     {"--snapshots", "2", "--snapshot-bytes", "64", "--snapshot-swap", "1K", "--spill-min-tokens",
      "35"}},
};

START_TEST(swap_options_without_a_tier_are_warned_of)
{
    starts_with(NULL, &without[_i]);
}
END_TEST

/* A daemon that waits for a layout knows what it can before, and says the rest when it comes. */
START_TEST(swap_options_of_a_waiting_daemon)
{
    struct host h;
    struct said s;
    pfx *c;
    site_make();
    PREFIXD(&s, "--socket", at.socket, "--bytes", "1M", "--swap", "/no/such/directory:1M");
    refused(&s, 2, "/no/such/directory");
    HOST_START(&h, "--bytes", "1M", "--swap", at.swap[0]);
    ck_assert(!host_logged(&h, "warning"));
    struct pfx_options o = worker_options(&h);
    const struct pfx_layout layout = {
        .size = sizeof layout, .block_tokens = 4, .block_bytes = 64, .n_devices = 1};
    o.layout = &layout;
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    ck_assert(host_logged(&h, "a block of 64 takes 4096"));
    pfx_close(c);
    host_stop(&h);
    HOST_START(&h, "--bytes", "8M", "--swap", at.swap[0]); /* less than one of his blocks */
    const struct pfx_layout large = {
        .size = sizeof large, .block_tokens = 4, .block_bytes = 1 << 20, .n_devices = 1};
    o = worker_options(&h);
    o.layout = &large;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "not one block of 1048576 bytes fits in it"));
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), at.dir[0]));
    host_stop(&h);
    site_remove();
}
END_TEST

/* ---- refused ------------------------------------------------------------------------------------
 */

/* What could never hold anything, each by its name. */
START_TEST(swap_options_for_a_tier_of_nothing)
{
    struct said s;
    char little[80];
    site_make();
    snprintf(little, sizeof little, "%s:64K", at.dir[0]);
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", little);
    refused(&s, 2, "not one block of 4096 bytes fits in it");
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[0], "--snapshots", "2",
            "--snapshot-bytes", "1M", "--snapshot-swap", "1M");
    refused(&s, 2, "--snapshot-swap 1048576: spread over 1 --swap path, not one snapshot");
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[0], "--swap", at.swap[1],
            "--snapshots", "2", "--snapshot-bytes", "1M", "--snapshot-swap", "2M");
    refused(&s, 2, "--snapshot-swap 2097152: spread over 2 --swap paths, not one snapshot");
    PREFIXD(&s, "--socket", at.socket, "--blocks", "8", "--block-tokens", "4", "--block-bytes", "0",
            "--swap", at.swap[0], "--snapshots", "2", "--snapshot-bytes", "4K");
    refused(&s, 2, "--swap: blocks of 0 bytes need no disk");
    site_remove();
}
END_TEST

/* Whoever the user is: a directory that is there, and not for him. */
START_TEST(swap_directory_of_somebody_else)
{
    struct said s;
    char path[120];
    site_make();
    ck_assert_int_eq(chmod(at.dir[0], 0755), 0);
    if (geteuid() != 0) { /* then we are somebody, and the root directory is not ours */
        PREFIXD(&s, "--socket", at.socket, "--swap", "/:1M");
    } else {
        const char *const words[] = {"--socket", "/tmp/prefixd-nobody", SMALL, "--swap", at.swap[0],
                                     NULL};
        run_as(SOMEBODY, &s, prefixd_path(), words);
    }
    refused(&s, 2, "nothing can be written there: Permission denied");
    snprintf(path, sizeof path, "%s:1M", at.file[0]); /* a file */
    fclose(fopen(at.file[0], "we"));
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", path);
    refused(&s, 2, "it is not a directory");
    site_remove();
}
END_TEST

/* By whatever name. */
START_TEST(swap_directory_given_twice)
{
    struct said s;
    char link[96], swap[120];
    site_make();
    snprintf(link, sizeof link, "%s/link", at.dir[1]);
    snprintf(swap, sizeof swap, "%s:1M", link);
    ck_assert_int_eq(symlink(at.dir[0], link), 0);
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[0], "--swap", at.swap[1], "--swap",
            swap);
    refused(&s, 2, "the same directory as --swap");
    ck_assert_ptr_nonnull(strstr(s.err, at.dir[0]));
    unlink(link);
    site_remove();
}
END_TEST

START_TEST(swap_file_of_another_daemon)
{
    struct host h;
    struct said s;
    site_make();
    HOST_START(&h, SMALL, "--swap", at.swap[0]);
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[1], "--swap", at.swap[0]);
    ck_assert_int_eq(s.code, 2);
    ck_assert_ptr_nonnull(strstr(s.err, at.file[0]));
    ck_assert_ptr_nonnull(strstr(s.err, "is used by another daemon"));
    host_stop(&h);
    site_remove();
}
END_TEST

/* By a hard link that is one file in two directories: said at once, not after a wait for the lock.
 */
START_TEST(swap_file_given_twice)
{
    struct host h;
    struct said s;
    site_make();
    HOST_START(&h, SMALL, "--swap", at.swap[0]);
    host_stop(&h);
    ck_assert_int_eq(link(at.file[0], at.file[1]), 0);
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[0], "--swap", at.swap[1]);
    ck_assert_int_eq(s.code, 2);
    ck_assert_ptr_nonnull(strstr(s.err, "is the same file as"));
    ck_assert_ptr_nonnull(strstr(s.err, at.file[0]));
    ck_assert_ptr_nonnull(strstr(s.err, at.file[1]));
    ck_assert_ptr_null(strstr(s.err, "waiting for another daemon"));
    HOST_START(&h, SMALL, "--swap", at.swap[0]); /* by its other name: another daemon has it */
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[1]);
    ck_assert_int_eq(s.code, 2);
    ck_assert_ptr_nonnull(strstr(s.err, at.file[1]));
    ck_assert_ptr_nonnull(strstr(s.err, "is used by another daemon"));
    host_stop(&h);
    site_remove();
}
END_TEST

/* ---- a foreign file -----------------------------------------------------------------------------
 */

static void write_foreign(const char *name)
{
    FILE *f = fopen(name, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_gt(fprintf(f, "precious"), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* The log says which file and what to do; the daemon works with the other path; status tells. */
START_TEST(swap_foreign_file_is_left_alone)
{
    struct host h;
    struct said s;
    struct stat st;
    int bad = _i == 0 ? 2 : 1; /* paths with one */
    site_make();
    for (int i = 0; i < bad; i++)
        write_foreign(at.file[i]);
    HOST_START(&h, SMALL, "--swap", at.swap[0], "--swap", at.swap[1]);
    ck_assert(host_logged(&h, at.file[0]));
    ck_assert(host_logged(&h, "is not a file of prefixd"));
    ck_assert(host_logged(&h, "move it away and start prefixd again"));
    CTL(&s, &h, "status", "--json");
    json_t *o = json_said(&s);
    ck_assert_int_eq(number_of(o, "disk_unused_files"), bad);
    json_decref(o);
    CTL(&s, &h, "status");
    ck_assert_ptr_nonnull(strstr(s.out, bad == 1 ? "1 file is not ours and not in use"
                                                 : "2 files are not ours and not in use"));
    struct worker w;
    worker_open(&w, &h, NULL);
    EVENTUALLY(SOON_MS, counters(&w).disk_scan_done);
    for (char text[] = "aaaabbbbcccc"; text[0] < 'm'; text[0]++) /* more than the pool holds */
        cache(&w, text);
    ck_assert_int_eq(counters(&w).disk_used > 0, bad == 1);
    worker_close(&w);
    host_stop(&h);
    for (int i = 0; i < bad; i++)
        ck_assert(stat(at.file[i], &st) == 0 && st.st_size == 8);
    unlink(at.file[0]);
    unlink(at.file[1]);
    HOST_START(&h, SMALL, "--swap", at.swap[0], "--swap", at.swap[1]);
    CTL(&s, &h, "status", "--json");
    o = json_said(&s);
    ck_assert_int_eq(number_of(o, "disk_unused_files"), 0);
    json_decref(o);
    host_stop(&h);
    site_remove();
}
END_TEST

/* Somebody put it there for us to fill; only the owner of the directory may. Only root can give a
 * file away: anybody else sees that a file of his own is good. */
START_TEST(swap_file_of_somebody_else)
{
    struct host h;
    struct stat st;
    site_make();
    close(open(at.file[0], O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
    bool root = geteuid() == 0;
    ck_assert(!root || chown(at.file[0], SOMEBODY, SOMEBODY) == 0);
    HOST_START(&h, SMALL, "--swap", at.swap[0]);
    ck_assert_int_eq(host_logged(&h, "belongs to another user"), root);
    ck_assert(stat(at.file[0], &st) == 0 && (st.st_size == 0) == root);
    host_stop(&h);
    ck_assert(!root || chown(at.dir[0], SOMEBODY, SOMEBODY) == 0);
    HOST_START(&h, SMALL, "--swap", at.swap[0]);
    ck_assert(!host_logged(&h, "belongs to another user"));
    ck_assert(stat(at.file[0], &st) == 0 && st.st_size > 0);
    host_stop(&h);
    site_remove();
}
END_TEST

/* One that was there with another mode, of a backup perhaps, and new ones, whatever the umask. */
START_TEST(swap_files_are_for_one_user)
{
    struct host h;
    struct stat st;
    site_make();
    mode_t was = umask(0);
    close(open(at.file[0], O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
    HOST_START(&h, SMALL, "--swap", at.swap[0], "--swap", at.swap[1]);
    umask(was);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(stat(at.file[i], &st), 0);
        ck_assert_int_gt(st.st_size, 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0600);
    }
    host_stop(&h);
    site_remove();
}
END_TEST

START_TEST(swap_file_is_no_link)
{
    struct said s;
    struct stat st;
    site_make();
    char precious[96];
    snprintf(precious, sizeof precious, "%s/precious", at.dir[1]);
    close(open(precious, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
    ck_assert_int_eq(symlink(precious, at.file[0]), 0);
    PREFIXD(&s, "--socket", at.socket, SMALL, "--swap", at.swap[0]);
    refused(&s, 2, "is a symbolic link");
    ck_assert_int_eq(stat(precious, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    unlink(precious);
    site_remove();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_options");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, swap_options_of_little_use_are_warned_of, 0, sizeof odd / sizeof odd[0]);
    tcase_add_loop_test(t, swap_options_without_a_tier_are_warned_of, 0,
                        sizeof without / sizeof without[0]);
    tcase_add_test(t, swap_options_of_a_waiting_daemon);
    tcase_add_test(t, swap_options_for_a_tier_of_nothing);
    tcase_add_test(t, swap_directory_of_somebody_else);
    tcase_add_test(t, swap_directory_given_twice);
    tcase_add_test(t, swap_files_are_for_one_user);
    tcase_add_test(t, swap_file_is_no_link);
    tcase_add_test(t, swap_file_of_another_daemon);
    tcase_add_test(t, swap_file_given_twice);
    tcase_add_test(t, swap_file_of_somebody_else);
    tcase_add_loop_test(t, swap_foreign_file_is_left_alone, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
