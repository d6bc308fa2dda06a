/*
 * Who runs it, and what a user who is not root may not have: io_uring, locked memory. It says so
 * once, and serves.
 */
#include "tests/refuse.h"
#include "tests/scenario/disk_site.h"
#include "tests/tools/run.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534, SOMEBODY = 12345, STRANGER = 23456, SOON_MS = 5000 * SLOW };

/* ---- becoming another ----------------------------------------------------------------------- */

/* `back`: it may become root again. */
static void take_identity(uid_t uid, gid_t gid, bool back)
{
    ck_assert_int_eq(setgroups(0, NULL), 0);
    ck_assert_int_eq(setresgid(gid, gid, back ? 0 : gid), 0);
    ck_assert_int_eq(setresuid(uid, uid, back ? 0 : uid), 0);
}

/* Another user's eyes may not reach the build: the program goes along. */
static void take_program(int from)
{
    char dir[64];
    static char path[80];
    struct stat st;
    temp_dir(dir);
    snprintf(path, sizeof path, "%s/prefixd", dir);
    int to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    ck_assert_int_ge(to, 0);
    ck_assert_int_eq(fstat(from, &st), 0);
    for (off_t at = 0; at < st.st_size;)
        ck_assert_int_gt(sendfile(to, from, &at, (size_t)st.st_size), 0);
    close(to);
    close(from);
    setenv("PREFIXD_BIN", path, 1);
}

/* This process and all that it starts. */
static void become(uid_t uid, gid_t gid, bool back)
{
    int program = open(prefixd_path(), O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(program, 0);
    take_identity(uid, gid, back);
    take_program(program);
}

/* For good. Whoever runs the tests without being root is not root already. */
static void become_nobody(void)
{
    if (geteuid() == 0)
        become(NOBODY, NOBODY, false);
}

/* ---- a site that works ------------------------------------------------------------------------
 */

/* Out of the pool and back, in this life and the next. */
static void works(struct site *s)
{
    cache(&s->w, "aaaabbbb");
    disk_used_is(s, 2);
    ck_assert_uint_eq(evict_pages(s, 8), 0);
    ck_assert_uint_eq(exact(s, "aaaabbbbx"), 8);
    cache(&s->w, "aaaacccc");
    disk_used_is(s, 3);
    ck_assert_uint_eq(exact(s, "aaaaccccx"), 8);
    site_again(s);
    ck_assert_uint_eq(exact(s, "aaaabbbbx"), 8);
    ck_assert_uint_eq(exact(s, "aaaaccccx"), 8);
    ck_assert_uint_eq(counters(&s->w).disk_errors, 0);
    at_rest(s);
}

START_TEST(nobody_runs_it)
{
    struct site s;
    become_nobody();
    ck_assert_int_ne(geteuid(), 0);
    site_init(&s, "2M");
    site_start(&s);
    works(&s);
    site_deinit(&s);
}
END_TEST

/* ---- io_uring, locked memory --------------------------------------------------------------------
 */

static unsigned times_logged(const struct host *h, const char *text)
{
    char all[16384];
    ssize_t length = pread(h->log, all, sizeof all - 1, 0);
    unsigned n = 0;
    all[length > 0 ? length : 0] = 0;
    for (const char *at = all; (at = strstr(at, text)); at++)
        n++;
    return n;
}

/* As a container's profile refuses it, the kernel's switch, a kernel without it, and one that
 * counts its rings as locked memory. */
START_TEST(no_io_uring)
{
    static const int errors[] = {EPERM, EACCES, ENOSYS, ENOMEM};
    struct site s;
    char said[128];
    snprintf(said, sizeof said, "--swap: io_uring is refused here (%s); threads do its work\n",
             strerror(errors[_i]));
    refuse_io_uring(errors[_i]);
    site_init(&s, "2M");
    site_start(&s);
    ck_assert_uint_eq(times_logged(&s.h, said), 1);
    works(&s);
    ck_assert_uint_eq(times_logged(&s.h, said), 2); /* once a life */
    site_deinit(&s);
}
END_TEST

/* Files are the same, whoever does the transfers. */
START_TEST(io_uring_goes_and_files_stay)
{
    struct site s;
    site_init(&s, "2M");
    site_start(&s);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 2);
    site_kill(&s);
    refuse_io_uring(EPERM);
    site_start(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    works(&s);
    site_deinit(&s);
}
END_TEST

/* The pool is not registered with io_uring, where that counts as locked memory and root's
 * privileges are not there. */
START_TEST(little_locked_memory)
{
    struct site s;
    rlim_t bytes = _i ? 64 << 10 : 0;
    struct rlimit little = {bytes, bytes};
    become_nobody();
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    site_init(&s, "4M");
    site_set(&s, "--block-bytes", "64K");
    site_start(&s);
    EVENTUALLY(SOON_MS, host_logged(&s.h, "raise the limit of locked memory (ulimit -l, "
                                          "LimitMEMLOCK=)") ||
                            host_logged(&s.h, "io_uring is refused here"));
    works(&s);
    site_deinit(&s);
}
END_TEST

/* ---- daemon and worker of two users
 * --------------------------------------------------------------- */

static void somebody(struct child *me, void *arg)
{
    struct worker w;
    take_identity(SOMEBODY, SOMEBODY, false);
    worker_open(&w, arg, NULL);
    w.unchecked = true; /* an audit is the daemon's user's and root's */
    cache(&w, "aaaabbbb");
    child_post(me, 1);
    child_wait(me);
    struct held h = look(&w, "aaaacccczzzz");
    bytes_match(&w, &h, "aaaacccczzzz"); /* root's */
    ck_assert_uint_eq(h.match.matched_tokens, 8);
    ck_assert_int_eq(grab(&w, &h, 3), 0);
    child_post(me, 2);
    child_wait(me); /* for ever */
}

static void stranger(struct child *me, void *arg)
{
    const struct host *h = arg;
    struct pfx_options o = worker_options(h);
    pfx *c;
    take_identity(STRANGER, STRANGER, false);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EACCESS);
    ck_assert_msg(strstr(pfx_why(NULL), "this user may not attach") != NULL, "%s", pfx_why(NULL));
}

static void host_start_as(struct host *h, uid_t uid, gid_t gid)
{
    if (uid)
        become(uid, gid, true);
    HOST_START(h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64", "--allow-user",
               "12345");
    ck_assert_int_eq(chmod(h->dir, 0755), 0);
    if (uid)
        ck_assert_int_eq(setresuid(0, 0, 0) | setresgid(0, 0, 0), 0);
}

static void status_by(uid_t uid, struct said *s, const struct host *h)
{
    run_as(uid, s, prefixctl_path(), (const char *const[]){"status", "--socket", h->socket, NULL});
}

/* The daemon nobody's, or root's; workers are root and somebody who is let in; he is killed. */
START_TEST(daemon_and_workers_of_several_users)
{
    struct host h;
    struct worker w;
    struct child c, other;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    host_start_as(&h, _i ? 0 : NOBODY, NOBODY);
    child_start(&c, somebody, &h);
    worker_open(&w, &h, NULL);
    ck_assert_uint_eq(child_wait(&c), 1);
    struct held held = look(&w, "aaaabbbbx");
    ck_assert_uint_eq(held.match.matched_tokens, 8);
    bytes_match(&w, &held, "aaaabbbbx");
    drop(&w, &held);
    cache(&w, "aaaacccc");
    child_post(&c, 1);
    ck_assert_uint_eq(child_wait(&c), 2);
    pages_are(&w, 10, 3, 2, 1);
    ck_assert(host_logged(&h, "user 12345) attached"));
    child_start(&other, stranger, &h);
    child_join(&other);
    ck_assert(host_logged(&h, "of user 23456: this user may not attach"));
    child_kill(&c, SIGKILL);
    EVENTUALLY(SOON_MS, counters(&w).workers == 1 && counters(&w).leases == 0);
    pages_are(&w, 13, 0, 0, 3);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* The daemon's own user reads its memory through /proc, also while it is stopped; but not as a
 * member of another group (ptrace(2)): then he is told what a worker is told. */
START_TEST(status_by_its_own_user)
{
    struct host h;
    struct said s;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    host_start_as(&h, NOBODY, _i ? SOMEBODY : NOBODY);
    status_by(NOBODY, &s, &h);
    ck_assert_int_eq(s.code, 0);
    ck_assert_msg(strstr(s.out, "blocks_free") != NULL, "%s", s.out);
    host_pause(&h);
    status_by(NOBODY, &s, &h);
    if (_i) {
        refused(&s, 3, "is stopped");
        ck_assert_ptr_null(strstr(s.err, "work all the same"));
    } else {
        ck_assert_msg(s.code == 0 && strstr(s.out, "blocks_free"), "%s%s", s.out, s.err);
    }
    host_resume(&h);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("users");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, nobody_runs_it);
    tcase_add_loop_test(t, no_io_uring, 0, 4);
    tcase_add_test(t, io_uring_goes_and_files_stay);
    tcase_add_loop_test(t, little_locked_memory, 0, 2);
    tcase_add_loop_test(t, daemon_and_workers_of_several_users, 0, 2);
    tcase_add_loop_test(t, status_by_its_own_user, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
