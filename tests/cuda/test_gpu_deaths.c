/*
 * Quarantine: what a dying worker's GPU may still write is nobody's until its exit and its hang-up
 * have both been seen; and nobody waits for that.
 *
 * A kill -9 shows both at once. So the two are pulled apart: a worker closes its socket and lives;
 * a forked child keeps the socket of one that died.
 */
#include "tests/cuda/gpu.h"
#include "tests/pass.h"
#include "tests/raw.h"
#include "tests/refuse.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

enum { SOON_MS = 2000 * SLOW };

struct scene {
    struct host host;
    struct worker w; /* an observer, of another group */
};

static void scene_begin(struct scene *s)
{
    gpu_host(&s->host, "cuda", "fd");
    worker_open(&s->w, &s->host, NULL);
    pages_are(&s->w, 14, 0, 0, 0);
}

static void scene_end(struct scene *s)
{
    EVENTUALLY(SOON_MS, pages(&s->w).inflight == 0);
    audit_clean(&s->host);
    pages_are(&s->w, 14, 0, 0, 0);
    ck_assert_int_eq(pfx_snapshot_reserve(s->w.c, look(&s->w, "x").lease, &(uint32_t){0}), 0);
    worker_close(&s->w);
    host_stop(&s->host);
}

static bool is_socket(int fd)
{
    int type;
    socklen_t n = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET;
}

static void hang_up(void)
{
    for (int fd = 3; fd < 256; fd++)
        if (is_socket(fd))
            close(fd);
}

/* A wake-up, a goodbye, and a packet of no bytes, which is what the end of a stream looks like: on
 * the socket that came last, for the others are the observer's. */
static void talk(void)
{
    int fd = 256;
    while (fd > 3 && !is_socket(fd))
        fd--;
    (void)send(fd, "w", 1, MSG_NOSIGNAL);
    (void)send(fd, "b", 1, MSG_NOSIGNAL);
    (void)send(fd, "", 0, MSG_NOSIGNAL);
}

enum { TALKS_AFTER_US = 200 * 1000 };

/* Keeps what it has inherited when its parent dies, and talks then. */
static void keep(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, 0);
    while (getppid() == parent)
        sleep_us(1000);
    sleep_us(TALKS_AFTER_US);
    talk();
    for (;;)
        pause();
}

enum order { HANG_UP, KEEP, RELEASE, END };

struct victim {
    struct host *host;
    const char *group;
    uint64_t map;
};

/* Three pages and a slot; then as it is told. */
static void victim_run(struct child *me, void *arg)
{
    const struct victim *v = arg;
    struct pfx_options o = worker_options(v->host);
    struct worker w = {.host = v->host, .unchecked = true};
    uint32_t slot;
    o.group = v->group;
    o.map_devices = v->map;
    ck_assert_int_eq(pfx_open(&o, &w.c), 0);
    struct held h = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &h, 3), 0);
    ck_assert_int_eq(pfx_snapshot_reserve(w.c, h.lease, &slot), 0);
    child_post(me, h.lease);
    for (;;) {
        enum order order = (enum order)child_wait(me);
        pid_t keeper = 0;
        if (order == HANG_UP)
            hang_up();
        if (order == KEEP && (keeper = fork()) == 0)
            keep(getppid());
        if (order == END)
            return;
        child_post(me, (uint64_t)keeper);
    }
}

static uint64_t start(struct scene *s, struct victim *v, struct child *c, const char *group)
{
    *v = (struct victim){&s->host, group, PFX_MAP_ALL};
    child_start(c, victim_run, v);
    return child_wait(c);
}

static pid_t tell(struct child *c, enum order order)
{
    child_post(c, order);
    return (pid_t)child_wait(c);
}

static uint64_t slots_left(struct scene *s)
{
    struct held h = look(&s->w, "y");
    uint32_t slot;
    uint64_t n = 0;
    while (n < 3 && pfx_snapshot_reserve(s->w.c, h.lease, &slot) == 0)
        n++;
    drop(&s->w, &h);
    return n;
}

/* Three pages and a slot are out of circulation; all else works, at once. */
static void confined(struct scene *s)
{
    uint64_t start = now_ms();
    EVENTUALLY(SOON_MS, counters(&s->w).leases == 0);
    pages_confined(&s->w, 11, 3);
    audit_clean(&s->host);
    struct held h = look(&s->w, "ddddeeee");
    ck_assert_int_eq(grab(&s->w, &h, 12), PFX_ENOSPC);
    ck_assert_int_eq(grab(&s->w, &h, 11), 0);
    for (unsigned i = 0; i < 11; i++)
        for (unsigned k = 0; k < i; k++)
            ck_assert_uint_ne(h.table[i], h.table[k]);
    drop(&s->w, &h);
    ck_assert_uint_eq(slots_left(s), 1);
    pages_confined(&s->w, 11, 3);
    ck_assert_uint_lt(now_ms() - start, SOON_MS);
}

static void back(struct scene *s)
{
    EVENTUALLY(SOON_MS, pages(&s->w).inflight == 0);
    pages_are(&s->w, 14, 0, 0, 0);
    ck_assert_uint_eq(slots_left(s), 2);
}

START_TEST(hang_up_alone_frees_nothing)
{
    struct scene s;
    struct victim v;
    struct child c;
    scene_begin(&s);
    start(&s, &v, &c, NULL);
    tell(&c, HANG_UP);
    confined(&s);
    ck_assert_uint_eq(counters(&s.w).workers, 1);
    if (_i) {
        child_kill(&c, SIGKILL);
    } else {
        child_post(&c, END);
        child_join(&c);
    }
    back(&s);
    scene_end(&s);
}
END_TEST

/* Who has inherited the socket may have inherited the driver's descriptors, and the GPU's memory
 * with them. He may also talk. */
START_TEST(exit_alone_frees_nothing)
{
    struct scene s;
    struct victim v;
    struct child c;
    scene_begin(&s);
    start(&s, &v, &c, NULL);
    pid_t keeper = tell(&c, KEEP);
    child_kill(&c, SIGKILL);
    confined(&s);
    sleep_us(2 * TALKS_AFTER_US);
    pages_confined(&s.w, 11, 3);
    ck_assert_int_eq(kill(keeper, SIGKILL), 0);
    back(&s);
    scene_end(&s);
}
END_TEST

START_TEST(kill_9_shows_both)
{
    struct scene s;
    struct victim v;
    struct child c;
    scene_begin(&s);
    for (int i = 0; i < 50; i++) {
        start(&s, &v, &c, NULL);
        pages_are(&s.w, 11, 3, 0, 0);
        child_kill(&c, SIGKILL);
        EVENTUALLY(SOON_MS, counters(&s.w).leases == 0);
        back(&s);
    }
    scene_end(&s);
}
END_TEST

/* Nothing was mapped: nothing can be written. */
START_TEST(who_maps_nothing_leaves_nothing)
{
    struct scene s;
    struct victim v;
    struct child c;
    scene_begin(&s);
    v = (struct victim){&s.host, NULL, PFX_MAP_NONE};
    child_start(&c, victim_run, &v);
    child_wait(&c);
    tell(&c, HANG_UP);
    EVENTUALLY(SOON_MS, counters(&s.w).leases == 0);
    pages_are(&s.w, 14, 0, 0, 0);
    child_kill(&c, SIGKILL);
    scene_end(&s);
}
END_TEST

/* The group lives on and has the lease; what a mate gives back while the other's GPU may write is
 * confined, and what the group reserved later is not. */
START_TEST(a_mate_gives_back_what_the_dying_one_writes)
{
    struct scene s;
    struct victim v;
    struct child c;
    struct worker mate;
    scene_begin(&s);
    worker_open(&mate, &s.host, "engine");
    uint64_t lease = start(&s, &v, &c, "engine");
    tell(&c, HANG_UP);
    EVENTUALLY(SOON_MS, counters(&s.w).workers == 2);
    pages_are(&s.w, 11, 3, 0, 0);
    ck_assert_int_eq(release(&mate, lease), 0);
    confined(&s);
    child_kill(&c, SIGKILL);
    back(&s);
    struct held h = look(&mate, "ffff");
    ck_assert_int_eq(grab(&mate, &h, 14), 0);
    drop(&mate, &h);
    pages_are(&s.w, 14, 0, 0, 0);
    worker_close(&mate);
    scene_end(&s);
}
END_TEST

/* The name is free; who takes it is of another group, and its pages are its own. */
START_TEST(the_name_is_free_at_once)
{
    struct scene s;
    struct victim v;
    struct child c;
    struct worker next;
    scene_begin(&s);
    start(&s, &v, &c, "engine");
    tell(&c, HANG_UP);
    confined(&s);
    worker_open(&next, &s.host, "engine");
    struct held h = look(&next, "ffff");
    ck_assert_int_eq(grab(&next, &h, 5), 0);
    drop(&next, &h);
    pages_confined(&s.w, 11, 3);
    worker_close(&next);
    child_kill(&c, SIGKILL);
    back(&s);
    scene_end(&s);
}
END_TEST

/* Two members of one group, and the pages of both wait for the last of them. */
START_TEST(two_ghosts_of_a_group)
{
    struct scene s;
    struct victim v[2];
    struct child c[2];
    scene_begin(&s);
    for (int i = 0; i < 2; i++)
        start(&s, &v[i], &c[i], "engine");
    for (int i = 0; i < 2; i++)
        tell(&c[i], HANG_UP);
    EVENTUALLY(SOON_MS, counters(&s.w).leases == 0);
    pages_confined(&s.w, 8, 6);
    audit_clean(&s.host);
    child_kill(&c[_i], SIGKILL);
    audit_clean(&s.host);
    pages_confined(&s.w, 8, 6);
    child_kill(&c[1 - _i], SIGKILL);
    back(&s);
    scene_end(&s);
}
END_TEST

/* ESRCH: as it is before Linux 6.5 for processes of another pid namespace: they have no number
 * here, and no pidfd. ENFILE: the machine has no descriptor left for one. */
static void nobody_is_seen(int error)
{
    refuse_call(__NR_pidfd_open, error);
    refuse_option(__NR_getsockopt, SO_PEERPIDFD, error);
}

/* Nobody would know when its pages are quiet: it is refused, and told what to do; who maps no GPU
 * is served. */
START_TEST(who_cannot_be_seen_to_end_maps_no_gpu)
{
    struct host h;
    pfx *c;
    nobody_is_seen(ESRCH);
    gpu_host(&h, "cuda", gpu_exports[_i]);
    struct pfx_options o = worker_options(&h);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EACCESS);
    ck_assert_msg(strstr(pfx_why(NULL), "--pid=host") && strstr(pfx_why(NULL), "6.5"), "%s",
                  pfx_why(NULL));
    c = gpu_open(&h, PFX_MAP_NONE);
    audit_clean(&h);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* What is lacking is said, and not that its end cannot be seen. */
START_TEST(who_cannot_be_watched_for_lack_of_descriptors)
{
    struct host h;
    pfx *c;
    nobody_is_seen(ENFILE);
    gpu_host(&h, "cuda", gpu_exports[0]);
    struct pfx_options o = worker_options(&h);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_ENOSPC);
    ck_assert_msg(strstr(pfx_why(NULL), "fs.file-max") != NULL, "%s", pfx_why(NULL));
    host_stop(&h);
}
END_TEST

/* A process that reconnects without end and never says goodbye: it is bounded like workers are. */
START_TEST(ghosts_are_counted)
{
    struct host h;
    pfx *all[4], *c;
    HOST_START(&h, "--device", "cuda", "--max-workers", "4");
    struct pfx_options o = worker_options(&h);
    for (int i = 0; i < 4; i++) {
        all[i] = gpu_open(&h, PFX_MAP_ALL);
        hang_up();
    }
    ck_assert_int_eq(pfx_open(&o, &c), PFX_ENOSPC);
    ck_assert_msg(strstr(pfx_why(NULL), "or not quite dead") != NULL, "%s", pfx_why(NULL));
    for (int i = 0; i < 4; i++)
        pfx_close(all[i]);
    host_kill(&h);
}
END_TEST

/* Whom the daemon answered too late has mapped nothing: he leaves nobody behind, however often he
 * tries. */
START_TEST(who_gave_up_waiting_leaves_nothing)
{
    struct host h;
    pfx *c;
    HOST_START(&h, "--device", "cuda", "--max-workers", "4");
    struct pfx_options o = worker_options(&h);
    o.timeout_ms = 100;
    host_pause(&h);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(pfx_open(&o, &c), PFX_ETIMEDOUT);
    host_resume(&h);
    c = gpu_open(&h, PFX_MAP_ALL);
    struct pfx_stats s = {.size = sizeof s};
    EVENTUALLY(SOON_MS, pfx_stats(c, &s) == 0 && s.workers == 1);
    audit_clean(&h);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* ---- the daemon dies while somebody attaches ---------------------------------------------------
 */

struct between {
    struct host h;
    int listener;
};

/* Between a worker and the daemon: the worker hears of the pool when the daemon is dead. */
static void pass_on_late(struct child *me, void *arg)
{
    const struct between *b = arg;
    struct raw r;
    struct hello hello = raw_hello("late"), his;
    child_post(me, 1);
    int worker = accept(b->listener, NULL, NULL);
    REQUIRE(worker >= 0 && recv(worker, &his, sizeof his, 0) == sizeof his);
    REQUIRE(raw_greet(&r, &b->h, &hello));
    kill(b->h.pid, SIGKILL);
    REQUIRE(raw_ended(&r, 5000));
    REQUIRE(pass_descriptors(worker, &r.welcome, sizeof r.welcome, r.fds, r.n_fds));
}

/* A handle of what is gone: that is the daemon's death, and no want of anything. */
START_TEST(daemon_dies_before_its_pool_is_mapped)
{
    struct between b;
    struct child c;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    pfx *worker;
    HOST_START(&b.h, "--device", "cuda", "--cuda-export", "ipc", "--blocks", "8", "--block-tokens",
               "4", "--block-bytes", "4096");
    snprintf(at.sun_path, sizeof at.sun_path, "%s/between", b.h.dir);
    b.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(b.listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(b.listener, 8), 0);
    child_start(&c, pass_on_late, &b);
    child_wait(&c);
    struct pfx_options o = worker_options(&b.h);
    o.socket_path = at.sun_path;
    o.timeout_ms = 5000 * SLOW;
    int rc = pfx_open(&o, &worker);
    ck_assert_msg(rc == PFX_EGONE, "%s (%s)", pfx_strerror(rc), pfx_why(NULL));
    child_join(&c);
    host_kill(&b.h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpu deaths");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, hang_up_alone_frees_nothing, 0, 2);
    tcase_add_test(t, exit_alone_frees_nothing);
    tcase_add_test(t, kill_9_shows_both);
    tcase_add_test(t, who_maps_nothing_leaves_nothing);
    tcase_add_test(t, a_mate_gives_back_what_the_dying_one_writes);
    tcase_add_test(t, the_name_is_free_at_once);
    tcase_add_loop_test(t, two_ghosts_of_a_group, 0, 2);
    tcase_add_loop_test(t, who_cannot_be_seen_to_end_maps_no_gpu, 0, EXPORTS);
    tcase_add_test(t, who_cannot_be_watched_for_lack_of_descriptors);
    tcase_add_test(t, ghosts_are_counted);
    tcase_add_test(t, who_gave_up_waiting_leaves_nothing);
    tcase_add_test(t, daemon_dies_before_its_pool_is_mapped);
    suite_add_tcase(s, t);
    return s;
}
