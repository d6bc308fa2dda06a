/* What `prefixctl bench swap` makes of fio: how it is asked, what is taken from its answer, and
 * what is said where it is missing or fails. fio is a script of ours, first in $PATH. */
#include "tests/tools/run.h"
#include "tools/bench_swap.h"
#include "tools/tool.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char said[1024]; /* the tool's last sentence */

int tool_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return code;
}

/* A fio that notes its arguments, a line each, and then does this. */
static struct fake {
    char dir[64], fio[80], args[80];
} at;

static void fake_fio(const char *does)
{
    strcpy(at.dir, "/tmp/prefixd-fio-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(at.dir));
    snprintf(at.fio, sizeof at.fio, "%s/fio", at.dir);
    snprintf(at.args, sizeof at.args, "%s/args", at.dir);
    FILE *f = fopen(at.fio, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f,
            "#!/bin/sh\n"
            "for a; do printf '%%s\\n' \"$a\"; case $a in --iomem=*) [ -w \"${a#*:}\" ] && echo "
            "pool;; --filename=*) [ -w \"${a#*=}\" ] && echo file;; esac; done >%s\n%s\n",
            at.args, does);
    fclose(f);
    ck_assert_int_eq(chmod(at.fio, 0700), 0);
    char path[256];
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", at.dir);
    setenv("PATH", path, 1);
    said[0] = '\0';
}

static void fake_remove(void)
{
    unlink(at.args);
    unlink(at.fio);
    ck_assert_int_eq(rmdir(at.dir), 0);
}

static bool asked(const char *line)
{
    char have[256];
    bool found = false;
    FILE *f = fopen(at.args, "r");
    while (f && fgets(have, sizeof have, f)) {
        have[strcspn(have, "\n")] = '\0';
        found |= strcmp(have, line) == 0;
    }
    if (f)
        fclose(f);
    return found;
}

static bool run(bool write, struct moved *m)
{
    int fd = memfd_create("file", MFD_CLOEXEC), pool = memfd_create("pool", MFD_CLOEXEC);
    struct fio_job job = {.fd = fd,
                          .pool_fd = pool,
                          .file_bytes = 1 << 30,
                          .block_bytes = 256 << 10,
                          .depth = 32,
                          .ms = 1000,
                          .write = write,
                          .core = -1};
    bool good = fio_run(&job, m);
    close(fd);
    close(pool);
    return good;
}

/* Both sides of its answer, of which one is nothing; a note before it. */
#define ANSWER(r, w, ms)                                                                           \
    "echo 'note: both iodepth >= 1 and a synchronous engine'\n"                                    \
    "echo '{\"jobs\": [{\"read\": {\"io_bytes\": " r ", \"runtime\": " ms "}, "                    \
    "\"write\": {\"io_bytes\": " w ", \"runtime\": " ms "}, \"usr_cpu\": 3, "                      \
    "\"sys_cpu\": 5.0}]}'"

START_TEST(fio_answers)
{
    struct moved m;
    bool write = _i == 1;
    fake_fio(write ? ANSWER("0", "3000000000", "2000") : ANSWER("3000000000", "0", "2000"));
    ck_assert_msg(run(write, &m), "%s", said);
    ck_assert_double_eq(m.bytes, 3e9);
    ck_assert_double_eq(m.seconds, 2);
    ck_assert_double_eq_tol(m.cpu_seconds, 0.16, 1e-9); /* 8 % of two seconds */
    static const char *const lines[] = {
        "--ioengine=io_uring", "--direct=1",   "--fixedbufs",      "--iodepth=32", "--bs=262144",
        "--size=1073741824",   "--time_based", "--runtime=1000ms", "pool",         "file"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(asked(lines[i]), "not asked for %s", lines[i]);
    ck_assert(asked(write ? "--rw=write" : "--rw=read"));
    fake_remove();
}
END_TEST

static const struct bad {
    const char *does, *sentence;
} bad[] = {
    {"echo 'fio: io_uring_queue_init: Operation not permitted'; exit 1", "Operation not permitted"},
    {"exit 1", "it said nothing"},
    {"echo no answer", "no answer"},
    {"echo '{}'", "could not be run"},
    {ANSWER("0", "0", "1000"), "could not be run"},
    {ANSWER("1000", "0", "0"), "could not be run"},
    {"kill -9 $$", "it said nothing"},
};
enum { N_BAD = sizeof bad / sizeof bad[0] };

/* No number is made of it. */
START_TEST(fio_fails)
{
    struct moved m;
    fake_fio(bad[_i].does);
    ck_assert(!run(false, &m));
    ck_assert_msg(strstr(said, bad[_i].sentence), "'%s' and not '%s'", said, bad[_i].sentence);
    fake_remove();
}
END_TEST

/* Said once, with the remedy; and the rows end with 3: their budgets were not checked. */
START_TEST(fio_missing)
{
    static struct said s;
    setenv("PATH", "/nowhere", 1);
    said[0] = '\0';
    ck_assert(!fio_there());
    ck_assert_ptr_nonnull(strstr(said, "apt-get install fio"));
    said[0] = '\0';
    ck_assert(!fio_there());
    ck_assert_str_eq(said, "");
    RUN(&s, prefixctl_path(), "bench", "swap.read", "--json");
    ck_assert_int_eq(s.code, EXIT_DAEMON);
    ck_assert_str_eq(s.out, "");
    const char *first = strstr(s.err, "apt-get install fio");
    ck_assert_msg(first && !strstr(first + 1, "apt-get"), "it said: %s", s.err);
}
END_TEST

START_TEST(fio_there_is)
{
    fake_fio("echo fio-3.33");
    ck_assert(fio_there());
    ck_assert(asked("--version"));
    fake_remove();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fio");
    TCase *t = tcase_create("fio");
    tcase_add_loop_test(t, fio_answers, 0, 2);
    tcase_add_loop_test(t, fio_fails, 0, N_BAD);
    tcase_add_test(t, fio_missing);
    tcase_add_test(t, fio_there_is);
    suite_add_tcase(s, t);
    return s;
}
