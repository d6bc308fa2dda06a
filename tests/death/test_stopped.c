/*
 * A daemon that is stopped (SIGSTOP) is not dead: what reads shared memory goes on, calls time out
 * as prefixd.h says, and when it goes on, nothing that timed out is left behind.
 */
#include "tests/death/crowd.h"
#include "tests/worker.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 50, SOON_MS = 2000 * SLOW, LATE_MS = 2000 * SLOW };

struct scene {
    struct host host;
    struct worker w;     /* its calls time out soon     */
    struct worker other; /* a patient one, for counters */
};

static void scene_begin(struct scene *s, unsigned ring_entries)
{
    host_small(&s->host, 16, 4);
    struct pfx_options o = worker_options(&s->host);
    o.timeout_ms = TIMEOUT_MS;
    o.ring_entries = ring_entries;
    worker_open(&s->other, &s->host, NULL);
    cache(&s->other, "aaaabbbbcccc");
    s->w = (struct worker){.host = &s->host, .unchecked = true};
    ck_assert_int_eq(pfx_open(&o, &s->w.c), 0);
}

static void scene_end(struct scene *s)
{
    worker_close(&s->w);
    EVENTUALLY(SOON_MS, counters(&s->other).workers == 1);
    all_given_back(&s->host, s->other.c);
    worker_close(&s->other);
    host_stop(&s->host);
}

/* It takes its time-out, and not much more. */
#define TIMES_OUT(call)                                                                            \
    do {                                                                                           \
        uint64_t before_ = now_ms();                                                               \
        ck_assert_int_eq((call), PFX_ETIMEDOUT);                                                   \
        uint64_t took_ = now_ms() - before_;                                                       \
        ck_assert_uint_ge(took_ + 1, TIMEOUT_MS);                                                  \
        ck_assert_uint_le(took_, TIMEOUT_MS + LATE_MS);                                            \
    } while (0)

static int lookup_of(struct worker *w, const char *text, struct pfx_match *m)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    *m = (struct pfx_match){.size = sizeof *m};
    return pfx_lookup(w->c, &args, m);
}

static int insert_of(struct worker *w, uint64_t lease, const char *text)
{
    struct seq s = seq(text);
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result got = {.size = sizeof got};
    return pfx_insert(w->c, lease, &args, NULL, &got);
}

/* ---- shared memory -------------------------------------------------------------------------- */

START_TEST(stopped_peek_and_stats_go_on)
{
    struct scene s;
    scene_begin(&s, 0);
    struct pages before = pages(&s.other);
    struct seq known = seq("aaaabbbbccccd"), half = seq("aaaabbbbzzzzd"), tail = seq("aaaabbZZ");
    struct pfx_lookup_args args = lookup_args(&s.w, &tail);
    struct pfx_peeked peeked = {.size = sizeof peeked};
    host_pause(&s.host);
    ck_assert_int_eq(pfx_peek(s.w.c, 0, known.at, known.n), 12);
    ck_assert_int_eq(pfx_peek(s.w.c, 0, half.at, half.n), 8);
    ck_assert_int_eq(pfx_peek_full(s.w.c, &args, &peeked), 0);
    ck_assert_uint_eq(peeked.matched_tokens, 4);
    ck_assert_uint_eq(peeked.resident_tokens, 4);
    ck_assert_uint_eq(peeked.tail_tokens, 2);
    pages_equal(&s.w, before);
    ck_assert_uint_eq(counters(&s.w).workers, 2);
    host_resume(&s.host);
    scene_end(&s);
}
END_TEST

static json_t *ctl_json(const struct host *h, const char *command)
{
    char out[8192];
    const char *argv[] = {command, "--socket", h->socket, "--json", NULL};
    int code = program_run(prefixctl_path(), argv, out, sizeof out);
    ck_assert_msg(code == 0, "prefixctl %s: exit %d: %s", command, code, out);
    json_error_t e;
    json_t *o = json_loads(out, 0, &e);
    ck_assert_msg(o != NULL, "prefixctl %s: %s: %s", command, e.text, out);
    return o;
}

START_TEST(stopped_status_and_tree_go_on)
{
    struct scene s;
    scene_begin(&s, 0);
    host_pause(&s.host);
    uint64_t before = now_ms();
    json_t *status = ctl_json(&s.host, "status"), *tree = ctl_json(&s.host, "tree");
    ck_assert_uint_le(now_ms() - before, SOON_MS * 2);
    host_resume(&s.host);
    ck_assert_int_eq(json_integer_value(json_object_get(status, "pid")), s.host.pid);
    ck_assert_int_eq(json_integer_value(json_object_get(status, "blocks_idle")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(status, "workers")), 2);
    json_t *space = json_array_get(json_object_get(tree, "spaces"), 0);
    json_t *root = json_object_get(space, "root");
    json_t *node = json_array_get(json_object_get(root, "children"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(node, "blocks")), 3);
    json_decref(status);
    json_decref(tree);
    scene_end(&s);
}
END_TEST

/* ---- calls ------------------------------------------------------------------------------------
 */

START_TEST(stopped_lookup_times_out_and_is_given_back)
{
    struct scene s;
    struct pfx_match m;
    scene_begin(&s, 0);
    uint64_t lookups = counters(&s.other).lookups;
    host_pause(&s.host);
    for (int i = 0; i < 3; i++)
        TIMES_OUT(lookup_of(&s.w, "aaaabbbbccccd", &m));
    TIMES_OUT(pfx_ping(s.w.c));
    host_resume(&s.host);
    /* With no further call of that worker: the daemon was asked to give back by itself. */
    EVENTUALLY(SOON_MS, counters(&s.other).lookups == lookups + 3);
    EVENTUALLY(SOON_MS, counters(&s.other).leases == 0);
    pages_are(&s.other, 13, 0, 0, 3);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    ck_assert_int_eq(lookup_of(&s.w, "aaaabbbbccccd", &m), 0);
    ck_assert_uint_eq(m.matched_tokens, 12);
    ck_assert_int_eq(pfx_release(s.w.c, m.lease), 0);
    scene_end(&s);
}
END_TEST

static unsigned take_all(struct worker *w, unsigned want, int status)
{
    unsigned got = 0;
    struct pfx_completion done = {
        .size = sizeof done, .match.size = sizeof done.match, .insert.size = sizeof done.insert};
    while (got < want) {
        int n = pfx_wait(w->c, &done, sizeof done, 1, SOON_MS);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(done.status, status);
        if (done.match.lease)
            ck_assert_int_eq(pfx_submit_release(w->c, done.match.lease, 1000), 0);
        got += done.tag != 1000;
    }
    return got;
}

/* The ring is full, so no word about the lost call could be sent. */
START_TEST(stopped_lookup_in_a_full_ring_is_given_back)
{
    struct scene s;
    struct pfx_match m;
    scene_begin(&s, 8);
    struct seq prompt = seq("aaaabbbbccccd");
    struct pfx_lookup_args args = lookup_args(&s.w, &prompt);
    uint64_t lookups = counters(&s.other).lookups;
    host_pause(&s.host);
    for (unsigned i = 0; i < 7; i++)
        ck_assert_int_eq(pfx_submit_lookup(s.w.c, &args, i), 0);
    TIMES_OUT(lookup_of(&s.w, "aaaabbbbccccd", &m)); /* is in the ring */
    TIMES_OUT(lookup_of(&s.w, "aaaabbbbccccd", &m)); /* never was      */
    ck_assert_int_eq(pfx_submit_lookup(s.w.c, &args, 7), 0);
    ck_assert_int_eq(pfx_submit_lookup(s.w.c, &args, 8), PFX_EAGAIN);
    host_resume(&s.host);
    ck_assert_uint_eq(take_all(&s.w, 8, 0), 8);
    ck_assert_uint_eq(counters(&s.other).lookups, lookups + 9);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    EVENTUALLY(SOON_MS, counters(&s.other).leases == 0);
    pages_are(&s.other, 13, 0, 0, 3);
    scene_end(&s);
}
END_TEST

static void only_release(struct worker *w, uint64_t lease)
{
    uint32_t ids[2];
    struct pfx_match m = {.size = sizeof m};
    ck_assert_int_eq(pfx_reserve(w->c, lease, 1, ids), PFX_ESTALE);
    ck_assert_int_eq(insert_of(w, lease, "aaaabbbbccccdddd"), PFX_ESTALE);
    ck_assert_int_eq(pfx_truncate(w->c, lease, 0), PFX_ESTALE);
    ck_assert_int_eq(pfx_fetch(w->c, lease, &m), PFX_ESTALE);
    ck_assert_int_eq(pfx_submit_reserve(w->c, lease, 1, 5), 0);
    struct pfx_completion done = {
        .size = sizeof done, .match.size = sizeof done.match, .insert.size = sizeof done.insert};
    ck_assert_int_eq(pfx_wait(w->c, &done, sizeof done, 1, 0), 1);
    ck_assert_int_eq(done.status, PFX_ESTALE);
}

enum { TIMED_RESERVE, TIMED_INSERT, TIMED_TRUNCATE, TIMED_CALLS };

/* The call may still happen: a retried reserve would shift the block table under the worker. */
START_TEST(stopped_lease_takes_nothing_but_release)
{
    struct scene s;
    uint32_t ids[2];
    scene_begin(&s, 0);
    struct held h = look(&s.w, "aaaabbbbccccd"), sound = look(&s.w, "aaaabbbbccccd");
    ck_assert_int_eq(grab(&s.w, &h, 1), 0);
    host_pause(&s.host);
    if (_i == TIMED_RESERVE)
        TIMES_OUT(pfx_reserve(s.w.c, h.lease, 2, ids));
    else if (_i == TIMED_INSERT)
        TIMES_OUT(insert_of(&s.w, h.lease, "aaaabbbbccccdddd"));
    else
        TIMES_OUT(pfx_truncate(s.w.c, h.lease, 1));
    only_release(&s.w, h.lease);
    host_resume(&s.host);
    ck_assert_int_eq(pfx_ping(s.w.c), 0); /* by now it has happened */
    pages_are(&s.other,
              _i == TIMED_RESERVE  ? 10
              : _i == TIMED_INSERT ? 12
                                   : 13,
              _i == TIMED_RESERVE ? 3 : 0, _i == TIMED_INSERT ? 4 : 3, 0);
    only_release(&s.w, h.lease);
    ck_assert_int_eq(grab(&s.w, &sound, 2), 0); /* another lease is as it was */
    ck_assert_int_eq(pfx_release(s.w.c, h.lease), 0);
    ck_assert_int_eq(pfx_release(s.w.c, h.lease), PFX_ESTALE);
    drop(&s.w, &sound);
    scene_end(&s);
}
END_TEST

/* A release that timed out happens all the same. */
START_TEST(stopped_release_happens_late)
{
    struct scene s;
    scene_begin(&s, 0);
    struct held h = look(&s.w, "aaaabbbbccccd");
    host_pause(&s.host);
    TIMES_OUT(pfx_release(s.w.c, h.lease));
    only_release(&s.w, h.lease);
    host_resume(&s.host);
    EVENTUALLY(SOON_MS, counters(&s.other).leases == 0);
    ck_assert_int_eq(pfx_release(s.w.c, h.lease), PFX_ESTALE);
    scene_end(&s);
}
END_TEST

/* ---- attaching ------------------------------------------------------------------------------- */

START_TEST(stopped_open_times_out)
{
    struct scene s;
    scene_begin(&s, 0);
    unsigned fds = count_fds(getpid());
    struct pfx_options o = worker_options(&s.host);
    o.timeout_ms = TIMEOUT_MS;
    pfx *c = (pfx *)&s;
    host_pause(&s.host);
    TIMES_OUT(pfx_open(&o, &c));
    ck_assert_ptr_null(c);
    ck_assert_uint_eq(count_fds(getpid()), fds);
    host_resume(&s.host);
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    pfx_close(c);
    EVENTUALLY(SOON_MS, counters(&s.other).workers == 2);
    ck_assert_uint_le(counters(&s.other).workers_reaped, 1); /* the late one went with its socket */
    audit_clean(&s.host);
    scene_end(&s);
}
END_TEST

/* Connect and close, until the kernel keeps no more of them for the daemon. */
static unsigned fill_backlog(const struct host *h)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strcpy(to.sun_path, h->socket);
    for (unsigned n = 0;; n++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int rc = connect(fd, (struct sockaddr *)&to, sizeof to), why = errno;
        close(fd);
        if (rc == 0 && n < 100000)
            continue;
        ck_assert_int_eq(rc, -1);
        ck_assert_int_eq(why, EAGAIN);
        return n;
    }
}

/* Nor does anybody wait for ever, or fail otherwise, when so many did that the backlog is full. */
START_TEST(stopped_open_with_a_full_backlog_times_out)
{
    struct scene s;
    scene_begin(&s, 0);
    struct pfx_options o = worker_options(&s.host);
    o.timeout_ms = TIMEOUT_MS;
    pfx *c;
    char said[1024];
    const char *argv[] = {"status", "--socket", s.host.socket, NULL};
    host_pause(&s.host);
    ck_assert_uint_gt(fill_backlog(&s.host), 16);
    TIMES_OUT(pfx_open(&o, &c));
    ck_assert_int_eq(program_run(prefixctl_path(), argv, said, sizeof said), 3);
    ck_assert_msg(strstr(said, "stopped") != NULL, "%s", said);
    host_resume(&s.host);
    ck_assert_int_eq(pfx_ping(s.other.c), 0);
    o.timeout_ms = SOON_MS;
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    pfx_close(c);
    scene_end(&s);
}
END_TEST

/* pfx_close waits for the daemon, but not for long; all comes back when it goes on. */
START_TEST(stopped_close_returns)
{
    struct scene s;
    scene_begin(&s, 0);
    struct held h = look(&s.w, "aaaabbbbccccd");
    ck_assert_int_eq(grab(&s.w, &h, 2), 0);
    host_pause(&s.host);
    uint64_t before = now_ms();
    worker_close(&s.w);
    ck_assert_uint_le(now_ms() - before, 1000 + LATE_MS);
    ck_assert_uint_eq(counters(&s.other).leases, 1);
    host_resume(&s.host);
    EVENTUALLY(SOON_MS, counters(&s.other).workers == 1);
    ck_assert_uint_eq(counters(&s.other).workers_reaped, 0);
    all_given_back(&s.host, s.other.c);
    worker_close(&s.other);
    host_stop(&s.host);
}
END_TEST

/* ---- again and again ---------------------------------------------------------------------------
 */

/* A worker that does not give up: whatever times out, it releases what it was told of. */
static void stubborn(struct worker *w, struct rng *r, unsigned *timeouts)
{
    static const char *const prompts[] = {"aaaabbbbccccd", "aaaaeeeeffffg", "hhhhiiiij"};
    struct pfx_match m;
    uint32_t ids[4];
    const char *prompt = prompts[rng_below(r, 3)];
    int rc = lookup_of(w, prompt, &m);
    if (rc == PFX_ETIMEDOUT) {
        ++*timeouts;
        return;
    }
    ck_assert_int_eq(rc, 0);
    uint32_t want = 3 - m.n_blocks;
    rc = pfx_reserve(w->c, m.lease, want, ids);
    if (rc == 0)
        rc = insert_of(w, m.lease, prompt);
    ck_assert_msg(rc == 0 || rc == PFX_ETIMEDOUT, "%s", pfx_strerror(rc));
    *timeouts += rc == PFX_ETIMEDOUT;
    for (int tries = 0; (rc = pfx_release(w->c, m.lease)) == PFX_ETIMEDOUT && tries < 1000; tries++)
        ++*timeouts;
    ck_assert_msg(rc == 0 || rc == PFX_ESTALE, "%s", pfx_strerror(rc));
}

/* Stops and wakes the daemon at random moments, until told to end. */
static void tease(struct child *me, void *arg)
{
    struct host *h = arg;
    struct rng r = {child_wait(me)};
    for (int i = 0; i < 150; i++) {
        sleep_us(rng_below(&r, 4000));
        kill(h->pid, SIGSTOP);
        sleep_us(rng_below(&r, 12000));
        kill(h->pid, SIGCONT);
    }
    child_post(me, 1);
}

START_TEST(stopped_again_and_again)
{
    struct rng r = rng_seeded("stopped");
    struct host h;
    struct worker w, other;
    struct child teaser;
    unsigned timeouts = 0, requests = 0;
    host_small(&h, 16, 4);
    worker_open(&other, &h, NULL);
    worker_open_timeout(&w, &h, 4);
    child_start(&teaser, tease, &h);
    child_post(&teaser, rng_next(&r));
    siginfo_t end = {0};
    while (end.si_pid == 0) {
        stubborn(&w, &r, &timeouts);
        requests++;
        ck_assert_int_eq(waitid(P_PID, (id_t)teaser.pid, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    child_join(&teaser);
    fprintf(stderr, "%u requests, %u time-outs\n", requests, timeouts);
    ck_assert_uint_gt(timeouts, 10);
    ck_assert_uint_gt(requests, 50);
    int rc;
    while ((rc = pfx_ping(w.c)) == PFX_ETIMEDOUT)
        ;
    ck_assert_int_eq(rc, 0);
    EVENTUALLY(SOON_MS, counters(&other).leases == 0);
    all_given_back(&h, other.c);
    worker_close(&w);
    worker_close(&other);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("stopped");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, stopped_peek_and_stats_go_on);
    tcase_add_test(t, stopped_status_and_tree_go_on);
    tcase_add_test(t, stopped_lookup_times_out_and_is_given_back);
    tcase_add_test(t, stopped_lookup_in_a_full_ring_is_given_back);
    tcase_add_loop_test(t, stopped_lease_takes_nothing_but_release, 0, TIMED_CALLS);
    tcase_add_test(t, stopped_release_happens_late);
    tcase_add_test(t, stopped_open_times_out);
    tcase_add_test(t, stopped_open_with_a_full_backlog_times_out);
    tcase_add_test(t, stopped_close_returns);
    tcase_add_test(t, stopped_again_and_again);
    suite_add_tcase(s, t);
    return s;
}
