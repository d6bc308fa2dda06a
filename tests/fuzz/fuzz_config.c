/*
 * Configuration files: any text. It is refused with one sentence and exit code 2, or every value is
 * in its range, and then, if the pool is small enough, a daemon of these options serves.
 */
#include "daemon/geometry.h"
#include "daemon/option_table.h"
#include "tests/fuzz/house.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char fuzz_name[] = "config";

static void check(const struct options *o)
{
    REQUIRE(memchr(o->socket, 0, sizeof o->socket));
    REQUIRE(o->n_users <= ALLOWED_MAX && o->n_groups <= ALLOWED_MAX && o->n_swap <= SWAP_PATHS);
    for (uint32_t i = 0; i < o->n_swap; i++)
        REQUIRE(memchr(o->swap_path[i], 0, sizeof o->swap_path[i]) && o->swap_bytes[i] > 0);
    REQUIRE(o->max_workers >= 1 && o->max_workers <= 65536);
    REQUIRE(o->max_leases >= 1 && o->max_leases <= 1 << 24);
    REQUIRE(o->spin_us <= 1000000 && o->swap_depth >= 1 && o->swap_depth <= SWAP_DEPTH_MAX);
    REQUIRE(o->policy && o->alpha >= 0 && isfinite(o->alpha));
    REQUIRE(log_level_name(o->log_level));
    if (o->waits)
        return;
    REQUIRE(o->layout.block_tokens >= 1 && o->layout.block_tokens <= BLOCK_TOKENS_MAX);
    REQUIRE(o->layout.n_devices >= 1 && o->layout.n_devices <= DEVICES_MAX);
    REQUIRE(o->layout.block_bytes % 64 == 0);
}

static bool is_small(const struct options *o)
{
    struct geometry g;
    char why[256];
    if (o->max_leases < 2 || o->waits || o->n_swap || o->huge_pages || o->snapshot_swap > 1 << 22 ||
        (uint64_t)o->max_leases * o->max_workers > 1 << 18 ||
        !geometry_plan(o, &o->layout, &g, why, sizeof why))
        return false;
    if (o->max_worker_blocks && o->max_worker_blocks < 2 * HONEST_BLOCKS)
        return false; /* the honest one has no room */
    return g.pool_bytes * g.layout.n_devices <= 1 << 22 && g.n_blocks >= 2 * HONEST_BLOCKS &&
           g.n_blocks <= 1 << 16;
}

static void serve(struct house *h)
{
    static struct honest x;
    memset(&x, 0, sizeof x);
    h->options.log_level = LOG_AT_ERROR;
    if (!house_start_with(h)) /* a memory node that is not there */
        return;
    honest_open(h, &x);
    house_audit(h);
    honest_work(h, &x);
    honest_close(h, &x);
    house_stop(h);
}

/* One sentence: a line, to its end. */
static void check_sentence(const char *text, size_t n)
{
    REQUIRE_MSG(n > 10 && memcmp(text, "prefixd: ", 9) == 0, "it says %s", text);
    REQUIRE_MSG(strcspn(text, "\n") == n - 1, "it says more than a line: %s", text);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    static struct house h;
    char path[64], *text = NULL;
    size_t length = 0;
    memset(&h, 0, sizeof h);
    (void)house_init();
    int fd = memfd_create("config", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "--config=/proc/self/fd/%d", fd);
    char *argv[] = {(char *)(uintptr_t) "prefixd", path, NULL};
    FILE *errors = stderr;
    stderr = open_memstream(&text, &length);
    REQUIRE(stderr);
    int rc = options_read(&h.options, 2, argv);
    fclose(stderr);
    stderr = errors;
    REQUIRE(rc == OPTIONS_RUN || rc == 2);
    if (rc == 2) {
        check_sentence(text, length);
    } else {
        REQUIRE_EQ(length, 0);
        check(&h.options);
        if (is_small(&h.options))
            serve(&h);
    }
    free(text);
    close(fd);
}

/* ---- words ---- */

static const char *const values[] = {"1",    "0",     "16",   "64",      "4K",
                                     "1M",   "3G",    "yes",  "no",      "18446744073709551615",
                                     "-1",   "0x10",  "lru",  "none",    "radix",
                                     "host", "local", "any",  "insert",  "evict",
                                     "0.5",  "1e308", "nan",  "warning", "/dev/shm:1M",
                                     "root", "4095",  "1T",   "",        "4097",
                                     "inf",  " 8 ",   "8 ;x", "\"8\"",   "99999999999999999999"};
enum { VALUES = sizeof values / sizeof values[0] };

static size_t line(char *to, struct rng *r)
{
    const struct row *row = row_at(rng_below(r, row_count()));
    const char *value = row->preset && rng_below(r, 2) ? row->preset : values[rng_below(r, VALUES)];
    static const char *const equals[] = {" = ", "=", ": ", "  =  "};
    if (rng_below(r, 24) == 0)
        return (size_t)sprintf(to, "[prefixd]\n");
    return (size_t)sprintf(to, "%s%s%s\n", row->name, equals[rng_below(r, 4)], value);
}

size_t fuzz_seed(unsigned i, uint8_t *to)
{
    static const char *const good[] = {
        "blocks = 64\nblock-tokens = 4\nblock-bytes = 64\nmax-workers = 4\nmax-leases = 64\n",
        "[prefixd]\n# a comment\nblocks: 32\nblock-bytes = 128\nsnapshots = 3\nsnapshot-bytes = "
        "64\nsnapshot-swap = 4K\nalpha = 0.25\nmax-workers = 2\nmax-leases = 9\n",
        "bytes = 1M\n",
        "blocks = 100\nblock-bytes=64\nindex = "
        "none\nmax-workers=3\nmax-leases=3\nlog-level=debug\n",
        "blocks=100\nblock-bytes=64\nindex=none\nmax-leases=3\nblock-tokens=4095\n",
        "devices = 3\nblocks = 20\nblock-bytes = 64\nmodel = some model\nmax-leases=8\nmax-"
        "workers=8\nallow-group=0\nallow-user=0\npolicy=lru\nspin-us=0\n"};
    enum { GOOD = sizeof good / sizeof good[0] };
    struct rng r = {i};
    size_t n = 0;
    if (i >= GOOD + 24)
        return 0;
    if (i < GOOD) {
        memcpy(to, good[i], strlen(good[i]));
        return strlen(good[i]);
    }
    for (unsigned k = 0; k <= i % 4; k++)
        n += line((char *)to + n, &r);
    return n;
}

size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r)
{
    char text[256];
    size_t length = line(text, r), at = n;
    if (rng_below(r, 2) || n + length > FUZZ_INPUT)
        return mutate_bytes(bytes, n, r);
    for (uint32_t i = rng_below(r, 8); i && at; i--) /* where a line begins */
        do
            at--;
        while (at && bytes[at - 1] != '\n');
    memmove(bytes + at + length, bytes + at, n - at);
    memcpy(bytes + at, text, length);
    return n + length;
}
