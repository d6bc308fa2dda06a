/*
 * harness.h - what every test stands on: a private daemon a scenario, child processes, seeds.
 *
 *   test process ---- host_start ----> prefixd (dies with us: PR_SET_PDEATHSIG)
 *        |   \---- child_start ------> children, each with two pipes to wait for one another
 *        \-------- audit_clean ------> the daemon's own walk over everything, by HELLO_ADMIN
 *
 * A helper that finds something wrong fails the test at once: callers hold no error handling.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "shm/sanitized.h"

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Each test program defines its suite; runner.c has the one main(). */
Suite *test_suite(void);

/* Sanitizers slow everything: only time limits look at this, never a count. */
#if SANITIZED_ADDRESS || SANITIZED_THREAD
enum { SLOW = 8 };
#else
enum { SLOW = 1 };
#endif

/* As ck_assert and ck_assert_int_eq, but silent while they hold: Check's own write a mark to a pipe
 * each time, a system call. For what is done a million times. */
#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond))                                                                               \
            ck_abort_msg("not so: %s", #cond);                                                     \
    } while (0)
#define REQUIRE_MSG(cond, ...)                                                                     \
    do {                                                                                           \
        if (!(cond))                                                                               \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define REQUIRE_EQ(a, b)                                                                           \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_)                                                                              \
            ck_abort_msg("%s is %lld, not %s, which is %lld", #a, a_, #b, b_);                     \
    } while (0)

/* ---- a private daemon -------------------------------------------------------- */

struct host {
    pid_t pid;
    int admin; /* connection for audits, made at the first one */
    int log;   /* its stderr, a file in dir */
    char dir[64];
    char socket[96];
};

/* Start prefixd with these options (NULL ends them; --socket is added) and wait for `ready`. */
void host_start(struct host *h, const char *const *options);
#define HOST_START(h, ...) host_start((h), (const char *const[]){__VA_ARGS__, NULL})

/* The usual small one: n blocks of block_tokens tokens, 64 bytes a block. */
void host_small(struct host *h, unsigned n_blocks, unsigned block_tokens);

/* A new directory for files alone, which goes when the test's process ends. */
void temp_dir(char dir[64]);

/* This process, and all that it starts, may mount what nobody else sees: root may, and others in a
 * user namespace of their own, where that is allowed. */
bool mounts_of_our_own(void);
/* An empty file system of this size (as mount(8) says it) at dir; false: it is not allowed here. */
bool own_file_system(const char *dir, const char *size);

/* The rest of a test cannot be done here, which coverage.sh does not take for a test that passed.
 */
#define SKIP_TEST(why)                                                                             \
    do {                                                                                           \
        test_skipped(__func__, why);                                                               \
        return;                                                                                    \
    } while (0)
void test_skipped(const char *function, const char *why);

/* $PREFIXD_TEST_DISK: tests whose daemons have a lower tier are run once more with it on disk. */
bool on_disk(void);

/* $PREFIXD_TEST_DEVICE=cuda: tests that touch the pool are run once more with it on GPUs, those of
 * tests/fake_cuda, whose memory the CPU of a worker can touch; the daemon's cannot. */
bool on_cuda(void);
/* A function of the fake driver, if this process has loaded it; else NULL. */
void *fake_cuda(const char *name);

void host_stop(struct host *h); /* SIGTERM; it must exit 0 and leave no socket */
void host_kill(struct host *h); /* SIGKILL */
void host_again(struct host *h, const char *const *options); /* another one at the same socket */
void host_pause(struct host *h); /* SIGSTOP, and wait until it has stopped */
void host_resume(struct host *h);
bool host_logged(const struct host *h, const char *text);

/* Run prefixd (or another program) to its end: exit status; its output, both streams. */
int program_run(const char *path, const char *const *argv, char *output, size_t room);
const char *prefixd_path(void);
const char *prefixctl_path(void);

/* No finding of the daemon's audit. */
void audit_clean(struct host *h);

/* ---- child processes ----------------------------------------------------------- */

struct child {
    pid_t pid;
    int to, from;
};

/* Runs in a process of its own, which ends with _exit(0) when it returns; a failed check ends it
 * with another status. `me` is its side of the pipes. */
typedef void child_fn(struct child *me, void *arg);

void child_start(struct child *c, child_fn *fn, void *arg);
void child_post(struct child *c, uint64_t word); /* to the other side */
uint64_t child_wait(struct child *c);            /* for the other side's word */
void child_join(struct child *c);                /* its exit status must be 0 */
void child_kill(struct child *c, int sig);       /* and reap it */

/* ---- small things ---------------------------------------------------------------- */

struct rng {
    uint64_t state;
};
/* PFX_SEED from the environment, or the clock; printed either way, so that a failure repeats. */
struct rng rng_seeded(const char *what);
uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);

uint64_t now_ms(void);
uint64_t now_us(void);
void sleep_us(unsigned us);
unsigned count_fds(pid_t pid);      /* entries of /proc/PID/fd */
uint64_t process_cpu_us(pid_t pid); /* user + system time so far */

/* Poll until cond holds; fail after `ms`. For what another process does in its own time. */
#define EVENTUALLY(ms, cond)                                                                       \
    do {                                                                                           \
        uint64_t until_ = now_ms() + (uint64_t)(ms);                                               \
        while (!(cond)) {                                                                          \
            ck_assert_msg(now_ms() < until_, "not within %d ms: %s", (int)(ms), #cond);            \
            sleep_us(200);                                                                         \
        }                                                                                          \
    } while (0)

#endif
