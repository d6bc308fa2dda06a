/*
 * Users who may not attach, and what they may send all the same: everybody may connect to the
 * socket, so everybody may put packets and descriptors on it. Nobody but they may notice.
 */
#include "client/prefixd.h"
#include "tests/pass.h"
#include "tests/raw.h"
#include "tests/refuse.h"
#include "tests/worker.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

enum { STRANGER = 54321, LINGER_S = 20, PROMPT_MS = 2000 };
enum { NEW, OLD, KERNELS };
enum { MANY = 8 };

struct scene {
    struct host h;
    struct worker honest;
    unsigned fds;
    uint64_t from_ms;
    int kernel;
};

/* Before Linux 6.16 no socket could refuse descriptors: setsockopt does not know SO_PASSRIGHTS. */
static void old_kernel(void)
{
    refuse_option(__NR_setsockopt, SO_PASSRIGHTS, ENOPROTOOPT);
}

static void begin(struct scene *s, int kernel)
{
    if (kernel == OLD)
        old_kernel();
    host_small(&s->h, 32, 4);
    ck_assert_int_eq(chmod(s->h.dir, 0755), 0);
    worker_open(&s->honest, &s->h, NULL);
    cache(&s->honest, "aaaabbbb");
    s->fds = count_fds(s->h.pid);
    s->from_ms = now_ms();
}

/* The honest one was served all the while, and nothing is left. */
static void end(struct scene *s)
{
    ck_assert_uint_eq(matched(&s->honest, "aaaabbbbx"), 8);
    ck_assert_uint_lt(now_ms() - s->from_ms, PROMPT_MS);
    EVENTUALLY(PROMPT_MS, count_fds(s->h.pid) == s->fds);
    worker_close(&s->honest);
    uint64_t from = now_ms();
    host_stop(&s->h);
    ck_assert_uint_lt(now_ms() - from, PROMPT_MS);
}

/* Where nobody but root may: whoever runs the tests, who says no hello, is met just the same. */
static void become_stranger(void)
{
    if (geteuid() != 0)
        return;
    ck_assert_int_eq(setresgid(STRANGER, STRANGER, STRANGER), 0);
    ck_assert_int_eq(setresuid(STRANGER, STRANGER, STRANGER), 0);
}

/* A packet of n bytes, 0 or 1, with these descriptors, which are not ours any more. False: the
 * kernel lets none through. */
static bool give(int to, size_t n, const int *fd, size_t n_fd)
{
    bool sent = pass_descriptors(to, "x", n, fd, n_fd);
    for (size_t i = 0; i < n_fd; i++) {
        if (!sent)
            setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &(struct linger){0}, sizeof(struct linger));
        close(fd[i]);
    }
    return sent;
}

/* A TCP connection whose other end takes nothing: closing it takes LINGER_S seconds, of whoever
 * closes it last. */
static int lingering_socket(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    static const char much[1 << 16];
    struct linger linger = {1, LINGER_S};
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &n), 0);
    ck_assert_int_eq(connect(out, (struct sockaddr *)&at, sizeof at), 0);
    while (send(out, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        continue;
    ck_assert_int_eq(setsockopt(out, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    return out;
}

/* Behind empty packets, with and without one: whoever takes such a packet for the end leaves the
 * next in the queue. */
static void pass_several(int line, int kernel)
{
    for (size_t n = 0; n < 2; n++) {
        int fd = lingering_socket();
        ck_assert_int_eq(send(line, "", 0, MSG_NOSIGNAL), 0);
        ck_assert_int_eq(send(line, "", 0, MSG_NOSIGNAL), 0);
        if (!give(line, n, &fd, 1))
            ck_assert_int_eq(kernel, NEW);
    }
}

/* ---- who says no hello ---------------------------------------------------------------------- */

static void pass_and_wait(struct child *me, void *arg)
{
    const struct scene *s = arg;
    become_stranger();
    pass_several(raw_connect(&s->h), s->kernel);
    child_post(me, 1);
    child_wait(me);
}

START_TEST(stranger_passes_sockets_that_linger)
{
    struct scene s = {.kernel = _i};
    struct child c;
    begin(&s, _i);
    host_pause(&s.h); /* both are there before it looks */
    child_start(&c, pass_and_wait, &s);
    child_wait(&c);
    host_resume(&s.h);
    ck_assert_uint_eq(matched(&s.honest, "aaaabbbbx"), 8);
    child_post(&c, 1);
    child_join(&c);
    end(&s);
}
END_TEST

/* In the queue of the listening socket when the daemon is told to stop. */
START_TEST(stranger_waits_with_them_at_the_stop)
{
    struct scene s = {.kernel = _i};
    struct child c;
    begin(&s, _i);
    worker_close(&s.honest);
    host_pause(&s.h);
    child_start(&c, pass_and_wait, &s);
    child_wait(&c);
    uint64_t from = now_ms();
    kill(s.h.pid, SIGTERM);
    host_resume(&s.h);
    host_stop(&s.h);
    ck_assert_uint_lt(now_ms() - from, PROMPT_MS);
    child_post(&c, 1);
    child_join(&c);
}
END_TEST

/* ---- no descriptor is left --------------------------------------------------------------------
 */

static void pass_many(struct child *me, void *arg)
{
    const struct scene *s = arg;
    int fd[MANY];
    become_stranger();
    for (int i = 0; i < MANY; i++)
        fd[i] = lingering_socket();
    if (!give(raw_connect(&s->h), 1, fd, MANY))
        ck_assert_int_eq(s->kernel, NEW);
    child_post(me, 1);
    child_wait(me);
}

/* More come than the daemon may open: what has no room would be closed where it is received. */
START_TEST(stranger_passes_more_than_there_is_room_for)
{
    struct scene s = {.kernel = _i};
    struct child c;
    begin(&s, _i);
    s.honest.unchecked = true; /* each audit would be a connection more */
    struct rlimit few = {s.fds + 3, s.fds + 3};
    ck_assert_int_eq(prlimit(s.h.pid, RLIMIT_NOFILE, &few, NULL), 0);
    host_pause(&s.h); /* else it may be through with them first, and the stranger's close lingers */
    child_start(&c, pass_many, &s);
    child_wait(&c);
    host_resume(&s.h);
    for (int i = 0; i < 20; i++, sleep_us(10000))
        ck_assert_uint_eq(matched(&s.honest, "aaaabbbbx"), 8);
    ck_assert_uint_lt(now_ms() - s.from_ms, PROMPT_MS);
    child_post(&c, 1);
    child_join(&c);
    EVENTUALLY(PROMPT_MS, count_fds(s.h.pid) == s.fds);
    s.honest.unchecked = false;
    s.from_ms = now_ms();
    end(&s);
}
END_TEST

/* ---- a crowd ------------------------------------------------------------------------------ */

static void knock_for_ever(struct child *me, void *arg)
{
    const struct scene *s = arg;
    struct hello bad = raw_hello("stranger");
    become_stranger();
    bad.magic++;
    child_post(me, 1);
    for (;;) {
        int fd = raw_connect(&s->h);
        (void)send(fd, &bad, sizeof bad, MSG_DONTWAIT | MSG_NOSIGNAL);
        close(fd);
    }
}

/* However often they come: the rings have their turn. */
START_TEST(strangers_in_a_crowd)
{
    enum { CROWD = 3, LOOKUPS = 500, LONGEST_MS = 100 * SLOW };
    struct scene s = {0};
    struct child c[CROWD];
    begin(&s, NEW);
    for (int i = 0; i < CROWD; i++) {
        child_start(&c[i], knock_for_ever, &s);
        child_wait(&c[i]);
    }
    s.honest.unchecked = true; /* each audit would be a connection more */
    for (int i = 0; i < LOOKUPS; i++) {
        uint64_t from = now_ms();
        ck_assert_uint_eq(matched(&s.honest, "aaaabbbbx"), 8);
        ck_assert_uint_lt(now_ms() - from, LONGEST_MS);
    }
    for (int i = 0; i < CROWD; i++)
        child_kill(&c[i], SIGKILL);
    s.honest.unchecked = false;
    s.from_ms = now_ms();
    end(&s);
}
END_TEST

/* ---- the log -------------------------------------------------------------------------------- */

static unsigned lines_with(const struct host *h, const char *text)
{
    static char log[1 << 20];
    ssize_t size = pread(h->log, log, sizeof log - 1, 0);
    unsigned n = 0;
    ck_assert_int_gt(size, 0);
    log[size] = 0;
    for (const char *at = log; (at = strstr(at, text)); at++)
        n++;
    return n;
}

/* They write into the daemon's log as often as they come: no more than some lines of it. */
START_TEST(strangers_do_not_fill_the_log)
{
    enum { CAME = 2000, LINES = 20 };
    struct scene s = {0};
    begin(&s, NEW);
    struct hello bad = raw_hello("stranger");
    bad.magic++;
    for (int i = 0; i < CAME; i++) {
        struct raw r;
        ck_assert(raw_greet(&r, &s.h, &bad));
        ck_assert_int_eq(r.welcome.status, PFX_EINVAL);
        close(r.fd);
        ck_assert_uint_lt(now_ms() - s.from_ms, 9000); /* all within the time of one count */
    }
    ck_assert_uint_eq(lines_with(&s.h, "refused process"), LINES);
    ck_assert_uint_eq(lines_with(&s.h, "only counted"), 1);
    worker_close(&s.honest);
    host_stop(&s.h);
}
END_TEST

/* Where no descriptor is left for them, either. */
START_TEST(strangers_without_descriptors_do_not_fill_the_log)
{
    enum { CAME = 300 };
    struct scene s = {0};
    begin(&s, NEW);
    struct rlimit few = {s.fds, s.fds};
    ck_assert_int_eq(prlimit(s.h.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < CAME; i++) {
        char byte;
        int fd = raw_connect(&s.h);
        ck_assert_int_le(recv(fd, &byte, 1, 0), 0); /* it was hung up on */
        close(fd);
        ck_assert_uint_lt(now_ms() - s.from_ms, 9000); /* all within the time of one line */
    }
    ck_assert_uint_eq(lines_with(&s.h, "no descriptor is left"), 1);
    worker_close(&s.honest);
    host_stop(&s.h);
}
END_TEST

/* ---- who is attached ------------------------------------------------------------------------- */

START_TEST(worker_passes_sockets_that_linger)
{
    struct scene s = {.kernel = _i};
    struct raw w;
    begin(&s, _i);
    raw_open(&w, &s.h, "passes");
    host_pause(&s.h);
    pass_several(w.fd, _i);
    host_resume(&s.h);
    raw_close(&w);
    EVENTUALLY(PROMPT_MS, counters(&s.honest).workers == 1);
    end(&s);
}
END_TEST

/* Where the kernel can, none gets as far as our socket. */
START_TEST(kernel_refuses_descriptors)
{
    struct scene s = {.kernel = NEW};
    int known = 0, line[2];
    socklen_t n = sizeof known;
    begin(&s, NEW);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    bool can = getsockopt(line[0], SOL_SOCKET, SO_PASSRIGHTS, &known, &n) == 0;
    close(line[0]);
    close(line[1]);
    int fd = raw_connect(&s.h);
    ck_assert_int_eq(pass_descriptors(fd, "x", 1, &fd, 1), !can);
    close(fd);
    end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("strangers");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, stranger_passes_sockets_that_linger, 0, KERNELS);
    tcase_add_loop_test(t, stranger_waits_with_them_at_the_stop, 0, KERNELS);
    tcase_add_loop_test(t, worker_passes_sockets_that_linger, 0, KERNELS);
    tcase_add_loop_test(t, stranger_passes_more_than_there_is_room_for, 0, KERNELS);
    tcase_add_test(t, strangers_in_a_crowd);
    tcase_add_test(t, strangers_do_not_fill_the_log);
    tcase_add_test(t, strangers_without_descriptors_do_not_fill_the_log);
    tcase_add_test(t, kernel_refuses_descriptors);
    suite_add_tcase(s, t);
    return s;
}
