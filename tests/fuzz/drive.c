/*
 * Drives a target without libFuzzer.
 *
 *      fuzz_NAME                     one input, from standard input; with AFL++ again and again
 *      fuzz_NAME FILE...             these inputs
 *      fuzz_NAME --write DIR         writes the seeds there
 *      fuzz_NAME --bounded DIR...    every seed, every file of these directories, then mutations of
 *                                    all of them for $FUZZ_SECONDS (60), with $PFX_SEED
 *
 * Whoever fails, or takes TRY_SECONDS for one input, leaves its input in the file crash-NAME.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRY_SECONDS = 120 };

struct input {
    uint8_t *bytes;
    size_t n;
};

static struct input *kept;
static size_t n_kept;
static struct input now; /* what is being tried */

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void last_words(void)
{
    char name[64] = "crash-";
    strcat(name, fuzz_name);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, now.bytes, now.n) != (ssize_t)now.n)
        return;
    close(fd);
    static const char text[] = "the input is in the file crash-*\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
}

static void died(int sig)
{
    last_words();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void try_one(const uint8_t *bytes, size_t n)
{
    now = (struct input){malloc(n ? n : 1), n}; /* a read beyond it shows */
    memcpy(now.bytes, bytes, n);
    alarm(TRY_SECONDS);
    fuzz_one(now.bytes, n);
    alarm(0);
    free(now.bytes);
    now = (struct input){0};
}

static void keep(const uint8_t *bytes, size_t n)
{
    kept = reallocarray(kept, n_kept + 1, sizeof *kept);
    uint8_t *copy = malloc(n ? n : 1);
    if (!kept || !copy)
        abort();
    memcpy(copy, bytes, n);
    kept[n_kept++] = (struct input){copy, n};
}

static size_t read_all(int fd, uint8_t *to)
{
    size_t n = 0;
    ssize_t got;
    while (n < FUZZ_INPUT && (got = read(fd, to + n, FUZZ_INPUT - n)) > 0)
        n += (size_t)got;
    return n;
}

static void keep_file(const char *path)
{
    uint8_t bytes[FUZZ_INPUT];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    keep(bytes, read_all(fd, bytes));
    close(fd);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void keep_directory(const char *path)
{
    struct dirent **entry;
    int n = scandir(path, &entry, NULL, by_name);
    if (n < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    for (int i = 0; i < n; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.')
            keep_file(name);
        free(entry[i]);
    }
    free(entry);
}

static void keep_seeds(void)
{
    static uint8_t bytes[FUZZ_INPUT];
    size_t n;
    for (unsigned i = 0; (n = fuzz_seed(i, bytes)) > 0; i++)
        keep(bytes, n);
}

static int write_seeds(const char *dir)
{
    keep_seeds();
    for (size_t i = 0; i < n_kept; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s/seed-%02zu", dir, i);
        FILE *f = fopen(name, "we");
        if (!f || fwrite(kept[i].bytes, 1, kept[i].n, f) != kept[i].n || fclose(f)) {
            fprintf(stderr, "%s: %s\n", name, strerror(errno));
            return 2;
        }
    }
    return 0;
}

static uint64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* the monotonic one may be the target's own (house.h) */
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Two of them, one after the other's front. */
static size_t join(uint8_t *bytes, size_t n, struct rng *r)
{
    const struct input *other = &kept[rng_below(r, (uint32_t)n_kept)];
    size_t from = rng_below(r, (uint32_t)other->n + 1) & ~31ul, at = n & ~31ul;
    size_t more = other->n - from < FUZZ_INPUT - at ? other->n - from : FUZZ_INPUT - at;
    memcpy(bytes + at, other->bytes + from, more);
    return at + more;
}

static int bounded(int n_dirs, char **dir)
{
    static uint8_t bytes[FUZZ_INPUT];
    const char *given = getenv("FUZZ_SECONDS");
    uint64_t ms = (given ? strtoull(given, NULL, 10) : 60) * 1000, start = real_ms(), tries = 0;
    struct rng r = rng_seeded(fuzz_name);
    keep_seeds();
    for (int i = 0; i < n_dirs; i++)
        keep_directory(dir[i]);
    if (n_kept == 0) {
        fprintf(stderr, "%s: there is no input\n", fuzz_name);
        return 2;
    }
    for (size_t i = 0; i < n_kept; i++)
        try_one(kept[i].bytes, kept[i].n);
    for (; real_ms() - start < ms; tries++) {
        const struct input *from = &kept[rng_below(&r, (uint32_t)n_kept)];
        size_t n = from->n;
        memcpy(bytes, from->bytes, n);
        if (rng_below(&r, 8) == 0)
            n = join(bytes, n, &r);
        try_one(bytes, fuzz_mutate(bytes, n, &r));
    }
    fprintf(stderr, "%s: %zu kept inputs and %" PRIu64 " mutations in %" PRIu64 " ms\n", fuzz_name,
            n_kept, tries, real_ms() - start);
    for (size_t i = 0; i < n_kept; i++)
        free(kept[i].bytes);
    free(kept);
    return 0;
}

#ifdef __AFL_HAVE_MANUAL_CONTROL
#define AGAIN (__extension__(__AFL_LOOP(1000)))
#else
#define AGAIN (rounds++ == 0)
#endif

static int from_input(void)
{
    static uint8_t bytes[FUZZ_INPUT];
    unsigned rounds = 0;
    (void)rounds;
    while (AGAIN)
        try_one(bytes, read_all(STDIN_FILENO, bytes));
    return 0;
}

int main(int argc, char **argv)
{
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(last_words);
    else
        signal(SIGSEGV, died);
    signal(SIGABRT, died);
    signal(SIGALRM, died);
    if (argc == 1)
        return from_input();
    if (strcmp(argv[1], "--bounded") == 0)
        return bounded(argc - 2, argv + 2);
    if (strcmp(argv[1], "--write") == 0 && argc == 3)
        return write_seeds(argv[2]);
    for (int i = 1; i < argc; i++)
        keep_file(argv[i]);
    for (size_t i = 0; i < n_kept; i++)
        try_one(kept[i].bytes, kept[i].n);
    return 0;
}
