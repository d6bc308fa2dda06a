/* prefixd's options: what cannot work is refused with its name, what can is what was asked for. */
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a place for sockets and files ----------------------------------------------------------- */

static struct place {
    char dir[64], socket[80], file[80];
} at;

static void place_make(void)
{
    strcpy(at.dir, "/tmp/prefixd-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(at.dir));
    snprintf(at.socket, sizeof at.socket, "%s/s", at.dir);
    snprintf(at.file, sizeof at.file, "%s/conf", at.dir);
}

/* Whoever was refused left nothing behind. */
static void place_remove(void)
{
    unlink(at.file);
    ck_assert_msg(rmdir(at.dir) == 0, "something is left in %s", at.dir);
}

static void write_file(const char *text)
{
    FILE *f = fopen(at.file, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* ---- refused -----------------------------------------------------------------------------------
 */

static const struct bad {
    const char *named;
    const char *words[6];
} bad[] = {
    {"--blocks", {"--blocks", "2147483648"}},
    {"--blocks", {"--blocks", "4294967297"}},
    {"--blocks", {"--blocks", "18446744073709551617"}},
    {"--blocks", {"--blocks", "0"}},
    {"--blocks", {"--blocks", "-1"}},
    {"--blocks", {"--blocks", "12x"}},
    {"--blocks", {"--blocks", "0x10"}},
    {"--blocks", {"--blocks", " 7"}},
    {"--blocks", {"--blocks", ""}},
    {"--blocks", {"--blocks"}},
    {"--blocks", {"--blocks", "1000000000", "--block-bytes", "1T"}},
    {"--blocks", {"--blocks", "1000000", "--block-bytes", "1G"}},
    {"--block-bytes", {"--block-bytes", "100"}},
    {"--block-bytes", {"--block-bytes", "1"}},
    {"--block-bytes", {"--block-bytes", "0"}},
    {"--block-bytes", {"--block-bytes", "4Q"}},
    {"--block-bytes", {"--block-bytes", "4KB"}},
    {"--block-bytes", {"--block-bytes", "K"}},
    {"--block-bytes", {"--block-bytes", "4.5K"}},
    {"--block-bytes", {"--block-bytes", "-4K"}},
    {"--block-bytes", {"--block-bytes", "99999999999T"}},
    {"--block-bytes", {"--block-bytes=100"}},
    {"--block-tokens", {"--block-tokens", "0"}},
    {"--block-tokens", {"--block-tokens", "4097"}},
    {"--devices", {"--devices", "0"}},
    {"--devices", {"--devices", "17"}},
    {"--bytes", {"--bytes", "0"}},
    {"--bytes", {"--bytes", "100"}},
    {"--bytes", {"--bytes", "lots"}},
    {"--bytes", {"--bytes", "1K", "--block-bytes", "4K"}},
    {"--bytes", {"--bytes", "1T", "--block-bytes", "64"}},
    {"--bytes", {"--bytes", "1M", "--blocks", "1000", "--block-bytes", "64K"}},
    {"--blocks", {"--bytes", "1M", "--blocks", "1000", "--block-bytes", "64K"}},
    {"--snapshot-bytes", {"--snapshots", "4"}},
    {"--snapshots", {"--snapshot-bytes", "4K"}},
    {"--snapshots", {"--snapshots", "0", "--snapshot-bytes", "4K"}},
    {"--snapshot-bytes", {"--snapshots", "2", "--snapshot-bytes", "9223372036854775807"}},
    {"--policy", {"--policy", "clairvoyant"}},
    {"--policy", {"--policy", ""}},
    {"--index", {"--index", "hash"}},
    {"--numa", {"--numa", "4000"}},
    {"--numa", {"--numa", "first"}},
    {"--numa", {"--numa", "-1"}},
    {"--device", {"--device", "tpu"}},
    {"--alpha", {"--alpha", "-1"}},
    {"--alpha", {"--alpha", "nan"}},
    {"--alpha", {"--alpha", "inf"}},
    {"--alpha", {"--alpha", "1e999"}},
    {"--alpha", {"--alpha", "much"}},
    {"--swap", {"--swap"}},
    {"--swap", {"--swap", ""}},
    {"--swap", {"--swap", "/tmp"}},
    {"--swap", {"--swap", ":1G"}},
    {"--swap", {"--swap", "/tmp:"}},
    {"--swap", {"--swap", "/tmp:lots"}},
    {"--swap", {"--swap", "/tmp:-1G"}},
    {"--swap", {"--swap", "/tmp:nan"}},
    {"--swap", {"--swap", "/tmp:1e9"}},
    {"--swap", {"--swap", "/tmp:1.5G"}},
    {"--swap", {"--swap", "/tmp:1GB"}},
    {"--swap", {"--swap", "/tmp:18446744073709551617"}},
    {"--swap", {"--swap", "/tmp:99999999999T"}},
    {"--swap", {"--swap", "/tmp:0"}},
    {"--swap", {"--swap", "/tmp:64K"}}, /* less than the file's head and one block */
    {"--swap /var/tmp:65536", {"--swap", "/tmp:1G", "--swap", "/var/tmp:64K"}}, /* each by itself */
    {"--swap /tmp:1048576", {"--swap", "/tmp:1M", "--block-bytes", "1M"}},
    {"/no/such/directory", {"--swap", "/no/such/directory:1G"}},
    {"--swap", {"--swap", "/etc/passwd:1G"}},
    {"--swap", {"--swap", "/tmp:1G", "--swap", "/tmp/../tmp:1G"}},
    {"--swap", {"--swap=/tmp:1G", "--block-bytes=0", "--snapshots=2", "--snapshot-bytes=4K"}},
    {"--swap-write", {"--swap-write", "never"}},
    {"--swap-write", {"--swap-write", ""}},
    {"--swap-admit", {"--swap-admit", "0"}},
    {"--swap-admit", {"--swap-admit", "256"}}, /* more than is counted */
    {"--swap-admit", {"--swap-admit", "-1"}},
    {"--swap-admit", {"--swap-admit", "twice"}},
    {"--swap-depth", {"--swap-depth", "0"}},
    {"--swap-depth", {"--swap-depth", "257"}},
    {"--snapshot-swap", {"--snapshot-swap", "nan"}},
    {"--snapshot-swap", {"--snapshot-swap", "-4K"}},
    {"--snapshot-swap", {"--snapshot-swap", "99999999999T"}},
    {"--snapshot-swap", {"--snapshot-swap", "1G"}},
    {"--snapshot-swap", {"--snapshots", "2", "--snapshot-bytes", "4K", "--snapshot-swap", "4000"}},
    {"--snapshot-swap 1048576",
     {"--snapshots=2", "--snapshot-bytes=1M", "--snapshot-swap=1M", "--swap=/tmp:1G"}},
    {"--snapshot-swap 1572864: spread over 2", /* one path alone would do */
     {"--snapshots=2", "--snapshot-bytes=1M", "--snapshot-swap=1536K", "--swap=/tmp:1G",
      "--swap=/var/tmp:1G"}},
    {"--spill-min-tokens", {"--spill-min-tokens", "4294967296"}},
    {"--spill-min-tokens", {"--spill-min-tokens", "few"}},
    {"--Swap", {"--Swap", "/tmp:1G"}},
    {"--swp", {"--swp", "/tmp:1G"}},
    {"--swap-dir", {"--swap-dir", "/tmp"}},
    {"--snapshots-swap", {"--snapshots-swap", "1G"}},
    {"--spin-us", {"--spin-us", "1000001"}},
    {"--max-workers", {"--max-workers", "0"}},
    {"--max-leases", {"--max-leases", "0"}},
    {"--max-leases", {"--max-leases", "4294967296"}},
    {"--max-worker-blocks", {"--max-worker-blocks", "0"}},
    {"--max-worker-slots", {"--max-worker-slots", "-1"}},
    {"--log-level", {"--log-level", "loud"}},
    {"--allow-user", {"--allow-user", "nobody-of-that-name"}},
    {"--allow-user", {"--allow-user", "4294967295"}},
    {"--allow-group", {"--allow-group", "no-group-of-that-name"}},
    {"--huge-pages", {"--huge-pages=perhaps"}},
    {"--socket", {"--socket", ""}},
    {"--socket", {"--socket", "/no/such/directory/s"}},
    {"--socket", {"--socket", "/tmp"}},
    {"--config", {"--config", "/no/such/file"}},
    {"--config", {"--config", "/tmp"}},
    {"--nonsense", {"--nonsense"}},
    {"--nonsense", {"--nonsense=4"}},
    {"--Blocks", {"--Blocks", "4"}},
    {"--block", {"--block", "4"}},
    {"nonsense", {"nonsense"}},
    {"-b", {"-b", "4"}},
    {"--", {"--"}},
};

START_TEST(options_that_cannot_work)
{
    const struct bad *b = &bad[_i];
    struct said s;
    place_make();
    const char *words[10] = {"--socket", at.socket};
    for (int i = 0; i < 6; i++)
        words[2 + i] = b->words[i];
    run_as(0, &s, prefixd_path(), words);
    refused(&s, 2, b->named);
    place_remove();
}
END_TEST

START_TEST(options_socket_too_long)
{
    char path[300];
    struct said s;
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    PREFIXD(&s, "--socket", path);
    refused(&s, 2, "--socket");
    setenv("PREFIXD_SOCKET", path, 1);
    PREFIXD(&s, "--blocks", "4");
    refused(&s, 2, "--socket");
    unsetenv("PREFIXD_SOCKET");
    setenv("XDG_RUNTIME_DIR", path, 1);
    PREFIXD(&s, "--blocks", "4");
    refused(&s, 2, "--socket");
}
END_TEST

/* ---- the configuration file
 * ---------------------------------------------------------------------- */

static const struct bad_file {
    const char *text, *named, *line;
} bad_files[] = {
    {"blocks = 2147483648\n", "blocks", "line 1"},
    {"blocks = 64\nblock-bytes = 100\n", "block-bytes", ""}, /* a line alone is not to blame */
    {"blocks = 64\n\nblock-tokens = none\n", "block-tokens", "line 3"},
    {"blocks = 64\nnonsense = 1\n", "nonsense", "line 2"},
    {"# as it should be\nblocks\n", "", "line 2"},
    {"blocks = 64\npolicy = clairvoyant\n", "policy", "line 2"},
    {"[other]\nblocks = 64\n", "other", "line 2"},
    {"huge-pages = perhaps\n", "huge-pages", "line 1"},
    {"config = /etc/passwd\n", "config", "line 1"},
    {"blocks =\n", "blocks", "line 1"},
    {"blocks = 64 65\n", "blocks", "line 1"},
    {"numa = 4000\n", "numa", "line 1"},
    {"swap = /tmp\n", "swap", "line 1"},
    {"blocks = 64\nswap = /tmp:lots\n", "swap", "line 2"},
    {"swop = /tmp:1G\n", "swop", "line 1"},
    {"swap_admit = 2\n", "swap_admit", "line 1"},
    {"swap-admit = none\n", "swap-admit", "line 1"},
};

START_TEST(options_bad_file)
{
    const struct bad_file *b = &bad_files[_i];
    struct said s;
    place_make();
    write_file(b->text);
    PREFIXD(&s, "--socket", at.socket, "--config", at.file);
    refused(&s, 2, b->named);
    refused(&s, 2, b->line);
    place_remove();
}
END_TEST

START_TEST(options_endless_line_in_file)
{
    struct said s;
    place_make();
    FILE *f = fopen(at.file, "we");
    fputs("model = ", f);
    for (int i = 0; i < 100000; i++)
        fputc('m', f);
    fputs("\nblocks = 64\n", f);
    fclose(f);
    PREFIXD(&s, "--socket", at.socket, "--config", at.file);
    refused(&s, 2, "too long");
    place_remove();
}
END_TEST

/* Every option has its line; the command line wins, wherever it stands. */
START_TEST(options_from_file)
{
    struct host h;
    struct said s;
    uint8_t digest[32];
    char hex[65];
    place_make();
    write_file("; all of them\n[prefixd]\nblocks = 77\nblock-tokens=8\n  block-bytes =  4K \n"
               "devices = 2\nmodel = some model, 8 bit\nspin-us = 5\nmax-workers = 9\n"
               "max-leases = 3\nmax-worker-blocks = 77\nmax-worker-slots = 3\npolicy = lru\nindex = radix\nalpha = 0.5\nlog-level = debug\n"
               "numa = any\nhuge-pages = no\ndevice = host\nallow-user = 0\nallow-group = 0\n"
               "snapshots = 3\nsnapshot-bytes = 1000\n");
    HOST_START(&h, "--block-tokens", "32", "--config", at.file, "--devices=1");
    CTL(&s, &h, "status", "--json");
    json_t *o = json_said(&s);
    ck_assert_int_eq(number_of(o, "n_blocks"), 77);
    ck_assert_int_eq(number_of(o, "block_tokens"), 32);
    ck_assert_int_eq(number_of(o, "block_bytes"), 4096);
    ck_assert_int_eq(number_of(o, "n_devices"), 1);
    ck_assert_int_eq(number_of(o, "n_slots"), 3);
    ck_assert_int_eq(number_of(o, "snapshot_bytes"), 1000);
    pfx_model_digest("some model, 8 bit", digest);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    ck_assert_str_eq(text_of(o, "model_digest"), hex);
    json_decref(o);
    host_stop(&h);
    place_remove();
}
END_TEST

/* ---- accepted -----------------------------------------------------------------------------------
 */

static void geometry_is(const char *const *words, unsigned blocks, unsigned tokens, uint64_t bytes,
                        unsigned devices)
{
    struct host h;
    struct worker w;
    host_start(&h, words);
    worker_open(&w, &h, NULL);
    const struct pfx_geometry *g = pfx_geometry(w.c);
    ck_assert_uint_eq(g->n_blocks, blocks);
    ck_assert_uint_eq(g->layout.block_tokens, tokens);
    ck_assert_uint_eq(g->layout.block_bytes, bytes);
    ck_assert_uint_eq(g->layout.n_devices, devices);
    ck_assert_uint_eq(g->n_disk_blocks, 0);
    ck_assert_uint_eq(g->active, 1);
    pages_are(&w, blocks, 0, 0, 0);
    struct held h1 = look(&w, "aaaa");
    ck_assert_int_eq(grab(&w, &h1, blocks < 9 ? blocks : 9), 0);
    for (unsigned d = 0; d < devices; d++) { /* the last byte of the last page is there */
        uint8_t *page = pfx_block_address(w.c, d, blocks);
        ck_assert_ptr_nonnull(page);
        page[bytes - 1] = (uint8_t)(d + 1);
    }
    for (unsigned d = 0; d < devices; d++)
        ck_assert_uint_eq(((uint8_t *)pfx_block_address(w.c, d, blocks))[bytes - 1], d + 1);
    drop(&w, &h1);
    worker_close(&w);
    host_stop(&h);
}

#define GEOMETRY(blocks, tokens, bytes, devices, ...)                                              \
    geometry_is((const char *const[]){__VA_ARGS__, NULL}, blocks, tokens, bytes, devices)

START_TEST(options_default_geometry)
{
    geometry_is((const char *const[]){NULL}, 1024, 16, 65536, 1);
}
END_TEST

START_TEST(options_make_the_geometry)
{
    GEOMETRY(1, 16, 65536, 1, "--blocks", "1");
    GEOMETRY(10, 1, 64, 1, "--blocks=10", "--block-tokens=1", "--block-bytes=64");
    GEOMETRY(5, 4096, 1048576, 1, "--blocks", "5", "--block-tokens", "4096", "--block-bytes", "1m");
    GEOMETRY(256, 16, 4096, 1, "--bytes", "1M", "--block-bytes", "4K");
    GEOMETRY(64, 16, 4096, 4, "--bytes", "1M", "--block-bytes", "4K", "--devices", "4");
    GEOMETRY(100, 16, 4096, 1, "--bytes", "1M", "--blocks", "100", "--block-bytes", "4K");
    GEOMETRY(16, 16, 65536, 16, "--blocks", "16", "--devices", "16", "--numa", "any");
    GEOMETRY(7, 16, 65536, 1, "--blocks", "3", "--blocks", "7"); /* the last one counts */
    GEOMETRY(12, 16, 65536, 1, "--blocks", "12", "--numa", "0");
    GEOMETRY(12, 16, 65536, 1, "--blocks", "12", "--numa", "local", "--huge-pages");
}
END_TEST

START_TEST(options_limits_hold)
{
    struct host h;
    struct worker w[2];
    struct pfx_match m = {.size = sizeof m};
    struct pfx_lookup_args none = {.size = sizeof none};
    uint64_t lease[2];
    HOST_START(&h, "--max-workers", "2", "--max-leases", "2", "--blocks", "8");
    worker_open(&w[0], &h, NULL);
    worker_open(&w[1], &h, NULL);
    struct pfx_options o = worker_options(&h);
    pfx *c;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_ENOSPC);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "--max-workers"));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pfx_lookup(w[0].c, &none, &m), 0);
        lease[i] = m.lease;
    }
    ck_assert_int_eq(pfx_lookup(w[0].c, &none, &m), PFX_ENOSPC);
    ck_assert_int_eq(pfx_lookup(w[1].c, &none, &m), 0); /* a worker's limit, not all workers' */
    ck_assert_int_eq(release(&w[1], m.lease), 0);
    ck_assert_int_eq(release(&w[0], lease[1]), 0);
    ck_assert_int_eq(pfx_lookup(w[0].c, &none, &m), 0);
    worker_close(&w[1]);
    EVENTUALLY(2000 * SLOW, counters(&w[0]).workers == 1);
    worker_open(&w[1], &h, NULL);
    worker_close(&w[0]);
    worker_close(&w[1]);
    host_stop(&h);
}
END_TEST

START_TEST(options_say_what_they_are)
{
    struct said s;
    PREFIXD(&s, "--version");
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_eq(strncmp(s.out, "prefixd ", 8), 0);
    PREFIXD(&s, "--blocks", "junk", "--help"); /* help, whatever else is wrong */
    ck_assert_int_eq(s.code, 0);
    ck_assert_str_eq(s.err, "");
    static const char *const names[] = {
        "--socket",
        "--config",
        "--device",
        "--bytes",
        "--blocks",
        "--block-tokens",
        "--devices",
        "--snapshots",
        "--block-bytes",
        "--snapshot-bytes",
        "--index",
        "--policy",
        "--alpha",
        "--spin-us",
        "--max-workers",
        "--max-leases",
        "--max-worker-blocks",
        "--max-worker-slots",
        "--model",
        "--numa",
        "--huge-pages",
        "--log-level",
        "--allow-user",
        "--allow-group",
        "--version",
        "--help",
        "K, M, G",
        "--swap",
        "--swap-write",
        "--swap-admit",
        "--swap-depth",
        "--snapshot-swap",
        "--spill-min-tokens",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_msg(strstr(s.out, names[i]) != NULL, "--help does not show %s", names[i]);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("options");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, options_that_cannot_work, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, options_socket_too_long);
    tcase_add_loop_test(t, options_bad_file, 0, sizeof bad_files / sizeof bad_files[0]);
    tcase_add_test(t, options_endless_line_in_file);
    tcase_add_test(t, options_from_file);
    tcase_add_test(t, options_default_geometry);
    tcase_add_test(t, options_make_the_geometry);
    tcase_add_test(t, options_limits_hold);
    tcase_add_test(t, options_say_what_they_are);
    suite_add_tcase(s, t);
    return s;
}
