/*
 * Few descriptors: whoever has too few says so, with the remedy, and all that was there goes on.
 */
#include "client/prefixd.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 5000 * SLOW, TRIES = 30 };

static bool names_the_remedy(const char *text)
{
    return strstr(text, "ulimit -n") != NULL;
}

/* ---- the daemon, at its start ---------------------------------------------------------------- */

struct start {
    const char *socket, *swap; /* swap: NULL, none */
    rlim_t descriptors;
    char out[160], err[8192];
    int status; /* as waitpid gives it */
};

static void start_exec(const struct start *s, int out, int err)
{
    struct rlimit few = {s->descriptors, s->descriptors};
    const char *argv[] = {prefixd_path(), "--socket", s->socket, "--max-workers", "4",
                          "--blocks",     "8",        "--swap",  s->swap,         NULL};
    if (!s->swap)
        argv[7] = NULL;
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close_range(3, ~0u, 0);
    setrlimit(RLIMIT_NOFILE, &few);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(99);
}

static void read_all(int fd, char *to, size_t room)
{
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n<room - 1; n += got> 0 ? (size_t)got : 0)
        got = read(fd, to + n, room - 1 - n);
    to[n] = 0;
    close(fd);
}

/* Until it is ready, then SIGTERM; or until it ends by itself. True: it was ready. */
static bool start(struct start *s)
{
    int out[2], err[2];
    ck_assert_int_eq(pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0)
        start_exec(s, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    struct pollfd p = {.fd = out[0], .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 20000 * SLOW), 1);
    ssize_t n = read(out[0], s->out, sizeof s->out - 1);
    s->out[n > 0 ? n : 0] = 0;
    if (n > 0)
        kill(pid, SIGTERM);
    close(out[0]);
    read_all(err[0], s->err, sizeof s->err);
    ck_assert_int_eq(waitpid(pid, &s->status, 0), pid);
    return n > 0;
}

/* The line in which it says why it ends. */
static const char *error_line(char *text)
{
    char *at = strstr(text, "prefixd: error: ");
    if (at)
        at[strcspn(at, "\n")] = 0;
    return at ? at : "";
}

/* One more each time: it ends with a sentence that has the remedy, whatever it lacks one for, until
 * it starts; and then it stops as it should. _i: with a disk tier. */
START_TEST(start_with_few_descriptors)
{
    char dir[64], socket[80], swap[80];
    unsigned refused = 0;
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    snprintf(swap, sizeof swap, "%s:1M", dir);
    for (rlim_t n = 4;; n++) { /* three it is born with, and one to load libraries by */
        struct start s = {.socket = socket, .swap = _i ? swap : NULL, .descriptors = n};
        ck_assert_uint_lt(n, 40);
        bool ready = start(&s);
        ck_assert_msg(WIFEXITED(s.status), "%d descriptors: it died: %s", (int)n, s.err);
        ck_assert_msg((WEXITSTATUS(s.status) == 0) == ready, "%d descriptors: exit %d: %s", (int)n,
                      WEXITSTATUS(s.status), s.err);
        ck_assert(access(socket, F_OK) != 0);
        if (ready)
            break;
        refused++;
        ck_assert_msg(names_the_remedy(error_line(s.err)), "%d descriptors: %s", (int)n, s.err);
    }
    ck_assert_uint_gt(refused, 4);
}
END_TEST

/* ---- the daemon, with workers -------------------------------------------------------------------
 */

/* From now on it may have `more` beside those that it has. */
static void limit_descriptors(const struct host *h, unsigned more)
{
    struct rlimit few = {count_fds(h->pid) + more, count_fds(h->pid) + more};
    ck_assert_int_eq(prlimit(h->pid, RLIMIT_NOFILE, &few, NULL), 0);
}

static bool joins(const struct host *h, pfx **c)
{
    struct pfx_options o = worker_options(h);
    int rc = pfx_open(&o, c);
    ck_assert_msg(rc == 0 || rc == PFX_ENOSPC || rc == PFX_EGONE, "%s (%s)", pfx_strerror(rc),
                  pfx_why(NULL));
    ck_assert_msg(rc == 0 || names_the_remedy(pfx_why(NULL)) ||
                      strstr(pfx_why(NULL), "its log says why"),
                  "%s", pfx_why(NULL));
    return rc == 0;
}

static void idle_is_idle(const struct host *h)
{
    uint64_t cpu = process_cpu_us(h->pid);
    sleep_us(500000);
    ck_assert_uint_lt(process_cpu_us(h->pid) - cpu, 50 * 1000);
}

/* As many as there are descriptors for, and no more: those work, others are told, and when one goes
 * another may come. */
START_TEST(workers_until_no_descriptor_is_left)
{
    struct host h;
    struct worker first;
    pfx *c[TRIES];
    unsigned n = 0, refused = 0;
    host_small(&h, 16, 4);
    worker_open(&first, &h, NULL);
    step(&first); /* its audit has a connection, too */
    limit_descriptors(&h, 9);
    for (unsigned i = 0; i < TRIES; i++)
        if (joins(&h, &c[n]))
            n++;
        else
            refused++;
    ck_assert_uint_ge(n, 2);
    ck_assert_uint_ge(refused, TRIES - 4); /* at two descriptors each */
    ck_assert(host_logged(&h, "raise the descriptor limit (ulimit -n, LimitNOFILE=)"));
    idle_is_idle(&h);
    cache(&first, "aaaabbbb");
    ck_assert_uint_eq(matched(&first, "aaaabbbbx"), 8);
    ck_assert_uint_eq(counters(&first).workers, n + 1);
    for (unsigned i = 0; i < 20; i++) {
        pfx_close(c[--n]);
        EVENTUALLY(SOON_MS, joins(&h, &c[n]));
        n++;
    }
    while (n)
        pfx_close(c[--n]);
    EVENTUALLY(SOON_MS, counters(&first).workers == 1);
    step(&first);
    worker_close(&first);
    host_stop(&h);
}
END_TEST

static int connect_silently(const struct host *h)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, h->socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Who connects and says nothing takes descriptors; a worker that comes is served all the same. */
START_TEST(silent_ones_keep_nobody_out)
{
    struct host h;
    struct worker w;
    int silent[TRIES];
    host_small(&h, 16, 4);
    limit_descriptors(&h, 10);
    for (unsigned i = 0; i < TRIES; i++)
        silent[i] = connect_silently(&h);
    EVENTUALLY(SOON_MS, host_logged(&h, "no descriptor is left for another connection"));
    idle_is_idle(&h);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    for (unsigned i = 0; i < TRIES; i++)
        close(silent[i]);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- the worker -------------------------------------------------------------------------------
 */

static void needy(struct child *me, void *arg)
{
    const struct host *h = arg;
    struct pfx_options o = worker_options(h);
    unsigned have = count_fds(getpid());
    pfx *c = NULL;
    for (unsigned more = 0; !c; more++) {
        struct rlimit few = {have + more, have + 40};
        ck_assert_uint_lt(more, 12);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = pfx_open(&o, &c);
        ck_assert_msg(rc == 0 || rc == PFX_EAGAIN, "%u: %s (%s)", more, pfx_strerror(rc),
                      pfx_why(NULL));
        ck_assert_msg(rc == 0 || names_the_remedy(pfx_why(NULL)), "%u: %s", more, pfx_why(NULL));
        ck_assert(rc == 0 || more < 5); /* the socket, two rings, index and pool */
    }
    struct rlimit none = {count_fds(getpid()), have + 40};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(pfx_ping(c), 0);
    ck_assert_int_eq(pfx_fd(c), PFX_EAGAIN);
    ck_assert_msg(names_the_remedy(pfx_why(c)), "%s", pfx_why(c));
    ck_assert_int_eq(pfx_ping(c), 0);
    none.rlim_cur += 2;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_ge(pfx_fd(c), 0);
    pfx_close(c);
}

/* One more each time, until it attaches; nothing of the tries is left in the daemon. */
START_TEST(worker_with_few_descriptors)
{
    struct host h;
    struct worker w;
    struct child c;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    step(&w);
    unsigned before = count_fds(h.pid);
    child_start(&c, needy, &h);
    child_join(&c);
    EVENTUALLY(SOON_MS, counters(&w).workers == 1 && count_fds(h.pid) == before);
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("descriptors");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, start_with_few_descriptors, 0, 2);
    tcase_add_test(t, workers_until_no_descriptor_is_left);
    tcase_add_test(t, silent_ones_keep_nobody_out);
    tcase_add_test(t, worker_with_few_descriptors);
    suite_add_tcase(s, t);
    return s;
}
