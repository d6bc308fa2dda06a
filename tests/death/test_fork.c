/*
 * A connection belongs to the process that opened it. A forked child gets PFX_EINVAL and harms
 * nobody; and a socket that others hold too does not keep a dead process's leases. Hanging up, on
 * the other hand, ends a session though its process lives.
 */
#include "tests/death/crowd.h"
#include "tests/death/rows.h"
#include "tests/raw.h"
#include "tests/worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 2000 * SLOW };

struct scene {
    struct host host;
    struct worker w;
};

static void scene_begin(struct scene *s)
{
    host_small(&s->host, 16, 4);
    worker_open(&s->w, &s->host, NULL);
    cache(&s->w, "aaaabbbb");
}

static void scene_end(struct scene *s)
{
    EVENTUALLY(SOON_MS, counters(&s->w).workers == 1);
    all_given_back(&s->host, s->w.c);
    worker_close(&s->w);
    host_stop(&s->host);
}

/* ---- the child of a fork --------------------------------------------------------------------- */

static void lookups_refused(pfx *c)
{
    struct seq s = seq("aaaabbbbc");
    struct pfx_lookup_args args = {.size = sizeof args, .tokens = s.at, .n_tokens = s.n};
    struct pfx_match m = {.size = sizeof m};
    struct pfx_peeked p = {.size = sizeof p};
    struct pfx_space_desc desc = {.size = sizeof desc, .adapter_id = 3};
    pfx_space space;
    ck_assert_int_eq(pfx_lookup(c, &args, &m), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_lookup(c, &args, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_peek(c, 0, s.at, s.n), PFX_EINVAL);
    ck_assert_int_eq(pfx_peek_full(c, &args, &p), PFX_EINVAL);
    ck_assert_int_eq(pfx_space_open(c, &desc, &space), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_space_open(c, &desc, 2), PFX_EINVAL);
    ck_assert_int_eq(pfx_space_close(c, 0), PFX_EINVAL);
    ck_assert_int_eq(pfx_flush(c, PFX_ALL_SPACES), PFX_EINVAL);
}

static void leases_refused(pfx *c, uint64_t lease)
{
    struct seq s = seq("aaaabbbbcccc");
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result got = {.size = sizeof got};
    struct pfx_match m = {.size = sizeof m};
    uint32_t id;
    ck_assert_int_eq(pfx_reserve(c, lease, 1, &id), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_reserve(c, lease, 1, 3), PFX_EINVAL);
    ck_assert_int_eq(pfx_insert(c, lease, &args, NULL, &got), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_insert(c, lease, &args, 4), PFX_EINVAL);
    ck_assert_int_eq(pfx_truncate(c, lease, 0), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_truncate(c, lease, 0, 5), PFX_EINVAL);
    ck_assert_int_eq(pfx_fetch(c, lease, &m), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_fetch(c, lease, 6), PFX_EINVAL);
    ck_assert_int_eq(pfx_release(c, lease), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_release(c, lease, 7), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_reserve(c, lease, &id), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_reserve(c, lease, 8), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_insert(c, lease, 0, 4, PFX_EXACT), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_insert(c, lease, 0, 4, PFX_EXACT, 9), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_cancel(c, lease, 0), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_drop(c, lease), PFX_EINVAL);
}

static void rest_refused(pfx *c)
{
    struct pfx_stats stats = {.size = sizeof stats};
    struct pfx_evicted evicted = {.size = sizeof evicted};
    struct pfx_spilled spilled = {.size = sizeof spilled};
    struct pfx_pool_view view = {.size = sizeof view};
    struct pfx_completion done = {
        .size = sizeof done, .match.size = sizeof done.match, .insert.size = sizeof done.insert};
    ck_assert_int_eq(pfx_ping(c), PFX_EINVAL);
    ck_assert_int_eq(pfx_evict(c, 1, &evicted), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_evict(c), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_spill(c, 0, &spilled), PFX_EINVAL);
    ck_assert_int_eq(pfx_snapshot_forget(c, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_stats(c, &stats), PFX_EINVAL);
    ck_assert_int_eq(pfx_wait(c, &done, sizeof done, 1, 0), PFX_EINVAL);
    ck_assert_int_eq(pfx_wait(c, &done, sizeof done, 1, -1), PFX_EINVAL);
    ck_assert_int_eq(pfx_cancel(c, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_fd(c), PFX_EINVAL);
    ck_assert_int_eq(pfx_pool_view(c, 0, &view), PFX_EINVAL);
    ck_assert_ptr_null(pfx_block_address(c, 0, 1));
    ck_assert_ptr_null(pfx_slot_address(c, 0, 0));
    ck_assert_ptr_nonnull(pfx_why(c));
}

struct inheritance {
    struct worker *w;
    uint64_t lease;
    bool close;
};

static void heir(struct child *me, void *arg)
{
    const struct inheritance *i = arg;
    lookups_refused(i->w->c);
    leases_refused(i->w->c, i->lease);
    rest_refused(i->w->c);
    child_post(me, 1);
    child_wait(me);
    struct worker own; /* a connection of its own is another matter */
    worker_open(&own, i->w->host, NULL);
    ck_assert_int_eq(pfx_ping(own.c), 0);
    worker_close(&own);
    if (i->close)
        pfx_close(i->w->c);
}

/* _i: the child ends without a word, or with a pfx_close of what it inherited. */
START_TEST(fork_child_is_refused_and_parent_goes_on)
{
    struct scene s;
    struct child child;
    scene_begin(&s);
    struct held h = look(&s.w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&s.w, &h, 2), 0);
    struct pages before = pages(&s.w);
    uint64_t requests = counters(&s.w).lookups;
    struct inheritance i = {&s.w, h.lease, _i};
    child_start(&child, heir, &i);
    child_wait(&child);
    pages_equal(&s.w, before);
    ck_assert_uint_eq(counters(&s.w).lookups, requests);
    ck_assert_int_eq(pfx_ping(s.w.c), 0);
    bytes_match(&s.w, &h, "aaaabbbbcccc");
    child_post(&child, 1);
    child_join(&child);
    pages_equal(&s.w, before);
    ck_assert_int_eq(put(&s.w, &h, "aaaabbbbccccdddd", 0, NULL, NULL), 0);
    ck_assert_uint_eq(matched(&s.w, "aaaabbbbccccddddx"), 16);
    drop(&s.w, &h);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, 0);
    scene_end(&s);
}
END_TEST

/* Calls under way when the fork happens are the parent's, and come once. */
START_TEST(fork_with_calls_under_way)
{
    struct scene s;
    struct child child;
    scene_begin(&s);
    struct seq prompt = seq("aaaabbbbc");
    struct pfx_lookup_args args = lookup_args(&s.w, &prompt);
    struct inheritance i = {&s.w, 1, true};
    host_pause(&s.host);
    for (uint64_t tag = 0; tag < 20; tag++)
        ck_assert_int_eq(pfx_submit_lookup(s.w.c, &args, tag), 0);
    child_start(&child, heir, &i);
    child_wait(&child);
    host_resume(&s.host);
    child_post(&child, 1);
    child_join(&child);
    for (uint64_t tag = 0; tag < 20; tag++) {
        struct pfx_completion done = {.size = sizeof done,
                                      .match.size = sizeof done.match,
                                      .insert.size = sizeof done.insert};
        ck_assert_int_eq(pfx_wait(s.w.c, &done, sizeof done, 1, SOON_MS), 1);
        ck_assert_uint_eq(done.tag, tag);
        ck_assert_int_eq(done.status, 0);
        ck_assert_uint_eq(done.match.matched_tokens, 8);
        ck_assert_int_eq(release(&s.w, done.lease), 0);
    }
    ck_assert_uint_eq(counters(&s.w).lookups, 20);
    scene_end(&s);
}
END_TEST

/* No descriptor of the library survives an exec. */
START_TEST(fork_and_exec_inherits_nothing)
{
    struct scene s;
    unsigned n = 0;
    scene_begin(&s);
    ck_assert_int_ge(pfx_fd(s.w.c), 0);
    for (int fd = 3; fd < 256; fd++) {
        char path[64], what[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, what, sizeof what - 1) < 0 ||
            (strncmp(what, "socket:", 7) != 0 && strncmp(what, "anon_inode:", 11) != 0))
            continue;
        ck_assert_msg(fcntl(fd, F_GETFD) & FD_CLOEXEC, "%s would survive", what);
        n++;
    }
    ck_assert_uint_ge(n, 3); /* control socket, event descriptor, epoll */
    scene_end(&s);
}
END_TEST

/* ---- a socket with two holders ----------------------------------------------------------------
 */

/* Opens, takes, forks a child that keeps the socket, says that one's pid. */
static void parent_run(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    struct held h = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &h, 3), 0);
    pid_t keeper = fork();
    if (keeper == 0) {
        prctl(PR_SET_PDEATHSIG, 0); /* outlives us; the test ends it */
        for (;;)
            pause();
    }
    child_post(me, (uint64_t)keeper);
    child_wait(me);
    worker_close(&w);
    child_post(me, 1);
    child_wait(me);
}

enum { KILLED, CLOSED, ENDS };

START_TEST(fork_keeps_no_dead_parents_leases)
{
    struct scene s;
    struct child parent;
    scene_begin(&s);
    child_start(&parent, parent_run, &s.host);
    pid_t keeper = (pid_t)child_wait(&parent);
    pages_are(&s.w, 11, 3, 2, 0);
    if (_i == CLOSED) {
        child_post(&parent, 1);
        child_wait(&parent);
    } else {
        child_kill(&parent, SIGKILL);
    }
    EVENTUALLY(SOON_MS, counters(&s.w).leases == 0);
    bool waits =
        on_cuda() && _i == KILLED; /* who has the socket may have the GPU's files as well */
    if (waits)
        pages_confined(&s.w, 11, 3);
    else
        pages_are(&s.w, 14, 0, 0, 2);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, _i == KILLED);
    ck_assert_int_eq(kill(keeper, 0), 0); /* it has held the socket all the time */
    ck_assert_int_eq(kill(keeper, SIGKILL), 0);
    if (waits)
        EVENTUALLY(SOON_MS, pages(&s.w).inflight == 0);
    pages_are(&s.w, 14, 0, 0, 2);
    if (_i == CLOSED)
        child_kill(&parent, SIGKILL);
    scene_end(&s);
}
END_TEST

/* ---- hanging up ---------------------------------------------------------------------------------
 */

static int library_socket(void)
{
    int found = -1;
    for (int fd = 3; fd < 256; fd++) {
        int type;
        socklen_t n = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
            found = fd; /* the newest: the first ones are inherited */
    }
    ck_assert_int_ge(found, 0);
    return found;
}

enum { BY_SHUTDOWN, BY_CLOSE, BY_REPLACEMENT, WAYS };

static void hangs_up(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    struct held h = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &h, 3), 0);
    child_post(me, 1);
    int fd = library_socket();
    switch (child_wait(me)) {
    case BY_SHUTDOWN:
        ck_assert_int_eq(shutdown(fd, SHUT_RDWR), 0);
        break;
    case BY_CLOSE:
        ck_assert_int_eq(close(fd), 0);
        break;
    default: { /* some other file has its number now */
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        ck_assert_int_eq(dup2(null, fd), fd);
        close(null);
    }
    }
    child_post(me, 1);
    child_wait(me);
    bytes_match(&w, &h, "aaaabbbb");
    child_post(me, (uint64_t)(int64_t)pfx_release(w.c, h.lease));
    bytes_match(&w, &h, "aaaabbbb");
    worker_close(&w);
}

/* The session is over, the process lives; it learns that when it asks. */
START_TEST(hang_up_gives_back_while_the_process_lives)
{
    struct scene s;
    struct child child;
    scene_begin(&s);
    child_start(&child, hangs_up, &s.host);
    child_wait(&child);
    pages_are(&s.w, 11, 3, 2, 0);
    child_post(&child, (uint64_t)_i);
    child_wait(&child);
    EVENTUALLY(SOON_MS, counters(&s.w).leases == 0);
    ck_assert_uint_eq(counters(&s.w).workers, 1);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, 1);
    struct held h = look(&s.w, "eeeeffff"); /* all of it is anybody's; but a GPU may go on */
    if (on_cuda())
        pages_confined(&s.w, 11, 3);
    ck_assert_int_eq(grab(&s.w, &h, 14), on_cuda() ? PFX_ENOSPC : 0);
    drop(&s.w, &h);
    child_lives(&child);
    child_post(&child, 1);
    ck_assert_int_eq((int)(int64_t)child_wait(&child), PFX_EGONE);
    child_join(&child);
    EVENTUALLY(SOON_MS, pages(&s.w).inflight == 0);
    scene_end(&s);
}
END_TEST

/* Thousands of sessions that end so: nothing is left of any, in the daemon neither. */
START_TEST(hang_up_a_thousand_times)
{
    struct scene s;
    scene_begin(&s);
    unsigned fds = count_fds(s.host.pid);
    for (int i = 0; i < 1000; i++) {
        struct raw r;
        raw_open(&r, &s.host, "short");
        uint64_t lease = raw_lease(&r);
        ck_assert_int_eq(raw_reserve(&r, lease, 5).status, 0);
        struct request more = {.op = OP_RESERVE, .lease = lease, .reserve = {.n = 3, .room = 3}};
        for (int k = 0; k < i % 4; k++)
            ck_assert(raw_post(&r, &more)); /* on its way when the socket goes */
        raw_close(&r);
        if (i % 50 == 0) {
            EVENTUALLY(SOON_MS, counters(&s.w).workers == 1);
            all_given_back(&s.host, s.w.c);
        }
    }
    EVENTUALLY(SOON_MS, counters(&s.w).workers == 1);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, 1000);
    EVENTUALLY(SOON_MS, count_fds(s.host.pid) == fds);
    scene_end(&s);
}
END_TEST

/* A goodbye is no hang-up; one who says it twice, or something else, is no trouble either. */
START_TEST(hang_up_after_any_words)
{
    static const char words[][4] = {"b", "bb", "wwwb", "xyz", "w"};
    struct scene s;
    scene_begin(&s);
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct raw r;
        uint64_t reaped = counters(&s.w).workers_reaped;
        raw_open(&r, &s.host, "talker");
        ck_assert_int_eq(raw_reserve(&r, raw_lease(&r), 5).status, 0);
        for (const char *c = words[i]; *c && c < words[i] + sizeof words[i]; c++)
            (void)!send(r.fd, c, 1, MSG_NOSIGNAL);
        raw_close(&r);
        EVENTUALLY(SOON_MS, counters(&s.w).workers == 1);
        all_given_back(&s.host, s.w.c);
        bool bye = memchr(words[i], BYE, sizeof words[i]) != NULL;
        ck_assert_uint_eq(counters(&s.w).workers_reaped, reaped + !bye);
    }
    scene_end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fork");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, fork_child_is_refused_and_parent_goes_on, 0, 2);
    tcase_add_test(t, fork_with_calls_under_way);
    tcase_add_test(t, fork_and_exec_inherits_nothing);
    tcase_add_loop_test(t, fork_keeps_no_dead_parents_leases, 0, ENDS);
    tcase_add_loop_test(t, hang_up_gives_back_while_the_process_lives, 0, WAYS);
    tcase_add_test(t, hang_up_a_thousand_times);
    tcase_add_test(t, hang_up_after_any_words);
    suite_add_tcase(s, t);
    return s;
}
