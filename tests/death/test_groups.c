/*
 * Groups: a lease belongs to a group, and what its dead members held is given back with the last
 * attached one - whether that dies, hangs up or closes. A stopped process is not a dead one.
 */
#include "tests/death/crowd.h"
#include "tests/death/rows.h"
#include "tests/worker.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 2000 * SLOW, QUIET_MS = 300, SOMEBODY = 12345 };

/* What a member does is told by words from the test; each is answered by one. */
enum order {
    TAKE,    /* a lease: one matched block, three reserved; the answer is its id */
    CLOSE,   /* pfx_close: what it opened goes */
    HANG_UP, /* close the socket under the library, and go on living */
    RELEASE, /* the lease that comes as the next word; the answer is the status */
    LEAVE,   /* return: end as a process that closed or never did */
};

struct member {
    struct host *host;
    const char *group;
    uid_t uid;
};

/* The library's socket, as /proc names it: the only one that is connected. */
static void hang_up(void)
{
    for (int fd = 3; fd < 256; fd++) {
        int type;
        socklen_t n = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
            close(fd);
    }
}

static uint64_t take(struct worker *w)
{
    struct held h = look(w, "aaaabbbbcccc");
    ck_assert_uint_eq(h.match.n_blocks, 1);
    ck_assert_int_eq(grab(w, &h, 3), 0);
    return h.lease;
}

static void member_run(struct child *me, void *arg)
{
    const struct member *m = arg;
    struct worker w;
    if (m->uid)
        ck_assert_int_eq(setuid(m->uid), 0);
    /* Maps nothing, so that on GPUs as well all comes back at once: quarantine is tested elsewhere
     */
    struct pfx_options o = worker_options(m->host);
    o.group = m->group;
    o.map_devices = PFX_MAP_NONE;
    w = (struct worker){.host = m->host, .unchecked = true};
    ck_assert_int_eq(pfx_open(&o, &w.c), 0);
    child_post(me, 0);
    for (;;) {
        uint64_t answer = 0;
        switch ((enum order)child_wait(me)) {
        case TAKE:
            answer = take(&w);
            break;
        case CLOSE:
            worker_close(&w);
            break;
        case HANG_UP:
            hang_up();
            break;
        case RELEASE:
            answer = (uint64_t)(int64_t)pfx_release(w.c, child_wait(me));
            break;
        case LEAVE:
            return;
        }
        child_post(me, answer);
    }
}

static uint64_t tell(struct child *c, enum order order)
{
    child_post(c, order);
    return child_wait(c);
}

static int tell_release(struct child *c, uint64_t lease)
{
    child_post(c, RELEASE);
    child_post(c, lease);
    return (int)(int64_t)child_wait(c);
}

/* A daemon of 16 blocks with one of them cached, and an observer that is nobody's mate. */
struct scene {
    struct host host;
    struct worker w;
    struct member member[3];
};

static void scene_begin(struct scene *s)
{
    HOST_START(&s->host, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "64",
               "--allow-user", "12345");
    ck_assert_int_eq(chmod(s->host.dir, 0755), 0);
    worker_open(&s->w, &s->host, NULL);
    cache(&s->w, "aaaa");
    pages_are(&s->w, 15, 0, 0, 1);
}

static void scene_end(struct scene *s)
{
    EVENTUALLY(SOON_MS, counters(&s->w).workers == 1);
    all_given_back(&s->host, s->w.c);
    pages_are(&s->w, 15, 0, 0, 1);
    worker_close(&s->w);
    host_stop(&s->host);
}

static void start_as(struct scene *s, struct child *c, unsigned i, const char *group, uid_t uid)
{
    s->member[i] = (struct member){&s->host, group, uid};
    child_start(c, member_run, &s->member[i]);
    child_wait(c);
}

static void start(struct scene *s, struct child *c, unsigned i, const char *group)
{
    start_as(s, c, i, group, 0);
}

/* Held by a group: one lease with its pages. */
static void still_held(const struct scene *s)
{
    step(&s->w);
    pages_are(&s->w, 12, 3, 1, 0);
    ck_assert_uint_eq(counters(&s->w).leases, 1);
}

static void comes_back(const struct scene *s)
{
    EVENTUALLY(SOON_MS, counters(&s->w).leases == 0);
    pages_are(&s->w, 15, 0, 0, 1);
    step(&s->w);
}

static void seen_dead(const struct scene *s, uint64_t reaped)
{
    EVENTUALLY(SOON_MS, counters(&s->w).workers_reaped == reaped);
}

/* ---- the last one's end -------------------------------------------------------------------- */

enum { BY_DEATH, BY_HANG_UP, BY_CLOSE, BY_EXIT, ENDINGS };

/* Returns true if the child has been reaped. */
static bool end_by(struct child *c, int how)
{
    switch (how) {
    case BY_DEATH:
        child_kill(c, SIGKILL);
        return true;
    case BY_HANG_UP:
        tell(c, HANG_UP);
        return false;
    case BY_CLOSE:
        tell(c, CLOSE);
        return false;
    default: /* without pfx_close */
        child_post(c, LEAVE);
        child_join(c);
        return true;
    }
}

static void reap(struct child *c, bool reaped)
{
    if (!reaped)
        child_kill(c, SIGKILL);
}

START_TEST(group_last_member_gives_back)
{
    struct scene s;
    struct child one, two;
    scene_begin(&s);
    start(&s, &one, 0, "engine");
    start(&s, &two, 1, "engine");
    tell(&one, TAKE);
    child_kill(&one, SIGKILL);
    seen_dead(&s, 1);
    still_held(&s);
    bool reaped = end_by(&two, _i);
    comes_back(&s);
    reap(&two, reaped);
    scene_end(&s);
}
END_TEST

/* The same with nobody but itself in the group, named or not. */
START_TEST(group_of_one_gives_back)
{
    struct scene s;
    struct child one;
    scene_begin(&s);
    start(&s, &one, 0, _i < ENDINGS ? NULL : "alone");
    tell(&one, TAKE);
    still_held(&s);
    bool reaped = end_by(&one, _i % ENDINGS);
    comes_back(&s);
    reap(&one, reaped);
    scene_end(&s);
}
END_TEST

/* It is the hung-up one that stays alive: its mate alone keeps the lease, and may use it. */
START_TEST(group_outlives_a_member_that_hung_up)
{
    struct scene s;
    struct child one, two;
    scene_begin(&s);
    start(&s, &one, 0, "engine");
    start(&s, &two, 1, "engine");
    uint64_t lease = tell(&one, TAKE);
    tell(&one, HANG_UP);
    seen_dead(&s, 1);
    still_held(&s);
    ck_assert_int_eq(tell_release(&two, lease), 0);
    comes_back(&s);
    ck_assert_int_eq(tell_release(&one, lease), PFX_EGONE);
    child_kill(&one, SIGKILL);
    child_kill(&two, SIGKILL);
    scene_end(&s);
}
END_TEST

/* ---- stopped is not dead ------------------------------------------------------------------- */

static void stop(struct child *c)
{
    int status;
    ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(c->pid, &status, WUNTRACED), c->pid);
    ck_assert(WIFSTOPPED(status));
}

static void go_on(struct child *c)
{
    ck_assert_int_eq(kill(c->pid, SIGCONT), 0);
}

START_TEST(group_stopped_member_keeps)
{
    struct scene s;
    struct child holder, mate;
    scene_begin(&s);
    start(&s, &holder, 0, "engine");
    start(&s, &mate, 1, "engine");
    uint64_t lease = tell(&holder, TAKE);
    stop(&holder);
    child_kill(&mate, SIGKILL);
    seen_dead(&s, 1);
    sleep_us(QUIET_MS * 1000); /* nothing happens, so there is nothing to wait for */
    still_held(&s);
    struct held h = look(&s.w, "zzzz");
    ck_assert_int_eq(grab(&s.w, &h, 13), PFX_ENOSPC);
    drop(&s.w, &h);
    go_on(&holder);
    ck_assert_int_eq(tell_release(&holder, lease), 0);
    comes_back(&s);
    child_kill(&holder, SIGKILL);
    scene_end(&s);
}
END_TEST

/* The last member of its group is a stopped one: what a dead mate opened stays with it. */
START_TEST(group_stopped_last_member_keeps_a_dead_mates)
{
    struct scene s;
    struct child scheduler, rank;
    scene_begin(&s);
    start(&s, &scheduler, 0, "engine");
    start(&s, &rank, 1, "engine");
    tell(&scheduler, TAKE);
    stop(&rank);
    child_kill(&scheduler, SIGKILL);
    seen_dead(&s, 1);
    sleep_us(QUIET_MS * 1000);
    still_held(&s);
    child_kill(&rank, SIGKILL);
    comes_back(&s);
    scene_end(&s);
}
END_TEST

/* ---- close, and names ------------------------------------------------------------------------ */

START_TEST(group_clean_close_gives_back_its_own_only)
{
    struct scene s;
    struct child one, two;
    scene_begin(&s);
    start(&s, &one, 0, "engine");
    start(&s, &two, 1, "engine");
    uint64_t first = tell(&one, TAKE);
    uint64_t second = tell(&two, TAKE);
    pages_are(&s.w, 9, 6, 1, 0);
    tell(&one, CLOSE);
    EVENTUALLY(SOON_MS, counters(&s.w).leases == 1);
    still_held(&s);
    ck_assert_int_eq(tell_release(&two, first), PFX_ESTALE);
    still_held(&s);
    ck_assert_int_eq(tell_release(&two, second), 0);
    comes_back(&s);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, 0);
    child_kill(&one, SIGKILL);
    child_kill(&two, SIGKILL);
    scene_end(&s);
}
END_TEST

/* stopped: the daemon hears of the death and of the new one in the same moment. */
static void kill_and_restart(struct scene *s, struct child *one, struct child *two, bool stopped)
{
    if (stopped)
        host_pause(&s->host);
    child_kill(one, SIGKILL);
    s->member[1] = (struct member){&s->host, "engine", 0};
    child_start(two, member_run, &s->member[1]);
    if (stopped) {
        sleep_us(10000); /* for its HELLO, of which nobody can tell us */
        host_resume(&s->host);
    }
    child_wait(two);
}

/* The next one comes at once, perhaps before the daemon has looked: it was dead all the same. */
START_TEST(group_name_is_new_after_its_last_member)
{
    struct scene s;
    struct child one, two;
    scene_begin(&s);
    for (int round = 0; round < 50; round++) {
        start(&s, &one, 0, "engine");
        uint64_t old = tell(&one, TAKE);
        kill_and_restart(&s, &one, &two, round % 5 == 0);
        comes_back(&s);
        ck_assert_int_eq(tell_release(&two, old), PFX_ESTALE);
        uint64_t lease = tell(&two, TAKE);
        ck_assert_uint_ne(lease, old);
        ck_assert_int_eq(tell_release(&two, old), PFX_ESTALE);
        still_held(&s);
        child_kill(&two, SIGKILL);
        comes_back(&s);
    }
    scene_end(&s);
}
END_TEST

/* ---- whose lease ------------------------------------------------------------------------------
 */

/* Every call on a lease that is not ours: refused, and nothing has changed. */
static void all_stale(struct scene *s, struct worker *w, uint64_t lease)
{
    uint32_t ids[4];
    struct seq prompt = seq("aaaabbbbcccc");
    struct pfx_insert_args args = {.size = sizeof args, .tokens = prompt.at, .n_written = 12};
    struct pfx_insert_result got = {.size = sizeof got};
    struct pfx_match m = {.size = sizeof m};
    ck_assert_int_eq(pfx_reserve(w->c, lease, 1, ids), PFX_ESTALE);
    ck_assert_int_eq(pfx_reserve(w->c, lease, 0, NULL), PFX_ESTALE);
    ck_assert_int_eq(pfx_insert(w->c, lease, &args, ids, &got), PFX_ESTALE);
    ck_assert_int_eq(pfx_truncate(w->c, lease, 0), PFX_ESTALE);
    ck_assert_int_eq(pfx_fetch(w->c, lease, &m), PFX_ESTALE);
    ck_assert_int_eq(pfx_release(w->c, lease), PFX_ESTALE);
    still_held(s);
}

START_TEST(group_anothers_lease_is_stale)
{
    struct scene s;
    struct child holder;
    struct worker mate;
    scene_begin(&s);
    start(&s, &holder, 0, "engine");
    uint64_t lease = tell(&holder, TAKE);
    all_stale(&s, &s.w, lease); /* a group of its own */
    worker_open(&mate, &s.host, "Engine");
    all_stale(&s, &mate, lease);
    worker_close(&mate);
    worker_open(&mate, &s.host, "engine");
    uint32_t id;
    ck_assert_int_eq(pfx_reserve(mate.c, lease, 1, &id), 0);
    ck_assert_int_eq(pfx_truncate(mate.c, lease, 4), 0);
    still_held(&s);
    ck_assert_int_eq(release(&mate, lease), 0);
    worker_close(&mate);
    ck_assert_int_eq(tell_release(&holder, lease), PFX_ESTALE);
    child_kill(&holder, SIGKILL);
    scene_end(&s);
}
END_TEST

/* A group is (user, name): the name alone is not enough. */
START_TEST(group_another_users_lease_is_stale)
{
    struct scene s;
    struct child ours, theirs;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    scene_begin(&s);
    start(&s, &ours, 0, "engine");
    start_as(&s, &theirs, 1, "engine", SOMEBODY);
    uint64_t lease = tell(&ours, TAKE);
    ck_assert_int_eq(tell_release(&theirs, lease), PFX_ESTALE);
    still_held(&s);
    struct workers now;
    workers_now(&s.host, &now);
    const struct worker_row *row = workers_find_pid(&now, theirs.pid);
    ck_assert_ptr_nonnull(row);
    ck_assert_uint_eq(row->uid, SOMEBODY);
    ck_assert_str_eq(row->group, "engine");
    child_kill(&ours, SIGKILL); /* the last of *its* group: theirs keeps nothing alive */
    comes_back(&s);
    tell(&theirs, TAKE);
    still_held(&s);
    child_kill(&theirs, SIGKILL);
    scene_end(&s);
}
END_TEST

/* The scheduler has died; a rank publishes what it left, and releases it. */
START_TEST(group_mate_finishes_a_dead_ones_request)
{
    struct scene s;
    struct child scheduler;
    struct worker mate;
    scene_begin(&s);
    worker_open(&mate, &s.host, "engine");
    start(&s, &scheduler, 0, "engine");
    uint64_t lease = tell(&scheduler, TAKE);
    child_kill(&scheduler, SIGKILL);
    seen_dead(&s, 1);
    still_held(&s);
    struct workers now;
    workers_now(&s.host, &now);
    const struct worker_row *dead = workers_find_pid(&now, scheduler.pid);
    ck_assert_ptr_nonnull(dead);
    ck_assert_uint_eq(dead->dead, 1);

    struct seq prompt = seq("aaaabbbbcccc");
    struct pfx_insert_args args = {.size = sizeof args, .tokens = prompt.at, .n_written = 12};
    struct pfx_insert_result got = {.size = sizeof got};
    uint32_t ids[3];
    ck_assert_int_eq(pfx_insert(mate.c, lease, &args, ids, &got), 0);
    ck_assert_uint_eq(got.cached_blocks, 3);
    ck_assert_uint_eq(got.new_blocks, 2);
    step(&s.w);
    ck_assert_int_eq(release(&mate, lease), 0);
    pages_are(&s.w, 13, 0, 0, 3);
    struct held h = look(&s.w, "aaaabbbbccccx");
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(h.match.blocks[i], ids[i]);
    drop(&s.w, &h);
    worker_close(&mate);
    ck_assert_uint_eq(evict(&s.w, 2), 2);
    scene_end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("groups");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, group_last_member_gives_back, 0, ENDINGS);
    tcase_add_loop_test(t, group_of_one_gives_back, 0, 2 * ENDINGS);
    tcase_add_test(t, group_outlives_a_member_that_hung_up);
    tcase_add_test(t, group_stopped_member_keeps);
    tcase_add_test(t, group_stopped_last_member_keeps_a_dead_mates);
    tcase_add_test(t, group_clean_close_gives_back_its_own_only);
    tcase_add_test(t, group_name_is_new_after_its_last_member);
    tcase_add_test(t, group_anothers_lease_is_stale);
    tcase_add_test(t, group_another_users_lease_is_stale);
    tcase_add_test(t, group_mate_finishes_a_dead_ones_request);
    suite_add_tcase(s, t);
    return s;
}
