/*
 * prefixd's life: one daemon a socket, a stale socket taken over, a clean stop; who may attach, and
 * with which layout.
 */
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 5000 * SLOW, SOMEBODY = 12345, SOME_GROUP = 23456, STRANGER = 12346 };

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void lock_path(const struct host *h, char *to, size_t room)
{
    snprintf(to, room, "%s.lock", h->socket);
}

/* ---- one daemon a socket ------------------------------------------------------------------------
 */

START_TEST(start_second_daemon_is_refused)
{
    struct host h;
    struct worker w;
    struct said s;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 3; i++) {
        PREFIXD(&s, "--socket", h.socket, "--blocks", "4");
        ck_assert_int_ne(s.code, 0);
        refused(&s, s.code, h.socket);
        ck_assert_ptr_nonnull(strstr(s.err, "another prefixd"));
    }
    ck_assert_uint_eq(matched(&w, "aaaabbbbc"), 8); /* the first one has noticed nothing */
    host_pause(&h);
    PREFIXD(&s, "--socket", h.socket); /* nor is a stopped one a dead one */
    refused(&s, 1, h.socket);
    host_resume(&h);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(start_takes_over_a_stale_socket)
{
    struct host h;
    struct worker w;
    char lock[120];
    static const char *const options[] = {"--blocks", "16", "--block-tokens", "4", "--block-bytes",
                                          "64",       NULL};
    host_small(&h, 16, 4);
    lock_path(&h, lock, sizeof lock);
    for (int i = 0; i < 5; i++) {
        host_kill(&h);
        ck_assert(exists(h.socket));
        struct pfx_options o = worker_options(&h);
        pfx *c;
        ck_assert_int_eq(pfx_open(&o, &c), PFX_EGONE);
        host_again(&h, options);
        worker_open(&w, &h, NULL);
        cache(&w, "aaaa");
        worker_close(&w);
    }
    host_stop(&h);
    ck_assert(!exists(lock));
}
END_TEST

/* At once, while the kernel is still taking the killed one apart: 256 MiB take it a while. */
START_TEST(start_follows_a_killed_one_at_once)
{
    struct host h;
    static const char *const options[] = {"--blocks", "64", "--block-tokens", "4", "--block-bytes",
                                          "4M",       NULL};
    host_start(&h, options);
    for (int i = 0; i < 8; i++) {
        struct host killed = h;
        ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
        host_again(&h, options);
        ck_assert_int_eq(waitpid(killed.pid, NULL, 0), killed.pid);
    }
    host_stop(&h);
}
END_TEST

/* What is not a dead daemon's socket is left alone. */
START_TEST(start_leaves_other_files_alone)
{
    struct host h;
    struct said s;
    char path[120];
    host_small(&h, 16, 4);
    snprintf(path, sizeof path, "%s/file", h.dir);
    FILE *f = fopen(path, "we");
    fputs("precious", f);
    fclose(f);
    PREFIXD(&s, "--socket", path);
    refused(&s, 2, "--socket");
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISREG(st.st_mode) && st.st_size == 8);

    snprintf(path, sizeof path, "%s/other", h.dir);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    PREFIXD(&s, "--socket", path);
    refused(&s, 2, "another program");
    ck_assert(exists(path));
    close(fd);
    host_stop(&h);
}
END_TEST

/* ---- many at once -------------------------------------------------------------------------------
 */

enum { RACERS = 6 };

struct racer {
    pid_t pid;
    int out;
};

static void racer_start(struct racer *r, const char *socket)
{
    int out[2];
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    r->pid = fork();
    if (r->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
        execl(prefixd_path(), "prefixd", "--socket", socket, "--blocks", "4", "--log-level",
              "error", (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    r->out = out[0];
}

/* True: it said ready and lives; false: it has ended, and said nothing. */
static bool racer_ready(struct racer *r)
{
    char line[160] = "";
    struct pollfd p = {.fd = r->out, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, SOON_MS * 4), 1);
    ssize_t n = read(r->out, line, sizeof line - 1);
    close(r->out);
    if (n > 0) {
        ck_assert_int_eq(strncmp(line, "ready ", 6), 0);
        return true;
    }
    int status;
    ck_assert_int_eq(waitpid(r->pid, &status, 0), r->pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "it ended with 0x%x",
                  (unsigned)status);
    return false;
}

/* Of many that start on one stale socket, one serves it. */
START_TEST(start_race_has_one_winner)
{
    struct host h;
    host_small(&h, 4, 16);
    for (int round = 0; round < 5; round++) {
        struct racer r[RACERS];
        unsigned winners = 0, winner = 0;
        host_kill(&h);
        for (int i = 0; i < RACERS; i++)
            racer_start(&r[i], h.socket);
        for (unsigned i = 0; i < RACERS; i++)
            if (racer_ready(&r[i])) {
                winners++;
                winner = i;
            }
        ck_assert_uint_eq(winners, 1);
        h.pid = r[winner].pid;
        struct worker w;
        worker_open(&w, &h, NULL);
        ck_assert_int_eq(pfx_ping(w.c), 0);
        worker_close(&w);
    }
    host_stop(&h);
}
END_TEST

/* ---- stop
 * ----------------------------------------------------------------------------------------- */

/* With workers attached and idle, at once: they learn it, and nothing is left. */
START_TEST(stop_is_clean)
{
    struct host h;
    struct worker w;
    char lock[120];
    host_small(&h, 16, 4);
    lock_path(&h, lock, sizeof lock);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    struct held held = look(&w, "aaaabbbbc");
    ck_assert(exists(lock));
    ck_assert(!_i || kill(h.pid, SIGINT) == 0);
    host_stop(&h); /* SIGTERM; exit 0, and the socket is gone */
    ck_assert(!exists(lock));
    ck_assert_int_eq(pfx_ping(w.c), PFX_EGONE);
    bytes_match(&w, &held, "aaaabbbbc");
    worker_close(&w);
}
END_TEST

/* Without room for its regions it says so and ends; no signal kills it. */
START_TEST(start_with_a_file_size_limit_says_so)
{
    struct host h;
    struct said s;
    char command[512], path[120];
    host_small(&h, 4, 16);
    snprintf(path, sizeof path, "%s/limited", h.dir);
    snprintf(command, sizeof command, "ulimit -f 1; exec '%s' --socket '%s'", prefixd_path(), path);
    RUN(&s, "/bin/bash", "-c", command);
    ck_assert_int_ne(s.code, 0);
    ck_assert_str_eq(s.out, "");
    ck_assert_msg(strlen(s.err) > 20, "it said only: %s", s.err);
    ck_assert(!exists(path));
    host_stop(&h);
}
END_TEST

/* ---- systemd
 * ---------------------------------------------------------------------------------------- */

static void await_notice(int fd, const char *text)
{
    char packet[256];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, SOON_MS), 1);
    ssize_t n = recv(fd, packet, sizeof packet - 1, 0);
    ck_assert_int_gt(n, 0);
    packet[n] = '\0';
    ck_assert_ptr_nonnull(strstr(packet, text));
}

START_TEST(start_notifies_systemd)
{
    struct host h;
    char path[] = "/tmp/prefixd-notify-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(path));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/n", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    host_small(&h, 16, 4);
    await_notice(fd, "READY=1");
    host_stop(&h);
    await_notice(fd, "STOPPING=1");
    unsetenv("NOTIFY_SOCKET");
    close(fd);
    unlink(at.sun_path);
    rmdir(path);
}
END_TEST

/* ---- layouts
 * ------------------------------------------------------------------------------------------ */

static struct pfx_layout a_layout(void)
{
    struct pfx_layout l = {.size = sizeof l,
                           .block_tokens = 4,
                           .block_bytes = 256,
                           .snapshot_bytes = 128,
                           .n_devices = 2};
    memset(l.model_digest, 0x5a, sizeof l.model_digest);
    return l;
}

static int open_with(const struct host *h, const struct pfx_layout *l, pfx **c)
{
    struct pfx_options o = worker_options(h);
    o.layout = l;
    return pfx_open(&o, c);
}

/* Every field, one at a time: refused by its name. */
static void mismatches_are_named(const struct host *h)
{
    static const char *const names[] = {"block_tokens", "block_bytes", "snapshot_bytes",
                                        "n_devices", "model_digest"};
    for (int i = 0; i < 5; i++) {
        struct pfx_layout l = a_layout();
        pfx *c;
        l.block_tokens += i == 0;
        l.block_bytes += i == 1 ? 64 : 0;
        l.snapshot_bytes += i == 2 ? 64 : 0;
        l.n_devices += i == 3;
        l.model_digest[31] ^= i == 4;
        ck_assert_int_eq(open_with(h, &l, &c), PFX_EMISMATCH);
        ck_assert_ptr_null(c);
        ck_assert_msg(strstr(pfx_why(NULL), names[i]) != NULL, "%s: %s", names[i], pfx_why(NULL));
    }
}

static void impossible_layouts(const struct host *h)
{
    static const char *const names[] = {"block_tokens", "block_bytes", "n_devices", "block_bytes"};
    for (int i = 0; i < 4; i++) {
        struct pfx_layout l = a_layout();
        pfx *c;
        l.block_tokens = i == 0 ? 5000 : l.block_tokens;
        l.block_bytes = i == 1 ? 100 : i == 3 ? 1ull << 62 : l.block_bytes;
        l.n_devices = i == 2 ? 40 : l.n_devices;
        int rc = open_with(h, &l, &c);
        ck_assert_msg(rc < 0, "layout %d was taken", i);
        ck_assert_msg(i == 3 || strstr(pfx_why(NULL), names[i]) != NULL, "%s: %s", names[i],
                      pfx_why(NULL));
    }
}

static void status_is_ready(const struct host *h, bool ready)
{
    struct said s;
    CTL(&s, h, "status", "--json");
    json_t *o = json_said(&s);
    ck_assert_int_eq(json_is_true(json_object_get(o, "ready")), ready);
    ck_assert_int_eq(number_of(o, "pid"), h->pid);
    json_decref(o);
    CTL(&s, h, "tree", "--json");
    json_decref(json_said(&s));
    CTL(&s, h, "status");
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_eq(strstr(s.out, "waits") == NULL, ready);
}

START_TEST(start_bytes_alone_takes_the_first_layout)
{
    struct host h;
    struct worker w = {.host = &h};
    struct said s;
    HOST_START(&h, "--bytes", "1M");
    status_is_ready(&h, false);
    CTL(&s, &h, "audit");
    ck_assert_int_eq(s.code, 0);
    pfx *c;
    ck_assert_int_eq(open_with(&h, NULL, &c), PFX_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "layout"));
    impossible_layouts(&h);
    status_is_ready(&h, false);

    struct pfx_layout l = a_layout();
    ck_assert_int_eq(open_with(&h, &l, &w.c), 0);
    status_is_ready(&h, true);
    const struct pfx_geometry *g = pfx_geometry(w.c);
    uint64_t used = ((uint64_t)g->n_blocks * 256 + (uint64_t)g->n_slots * 128) * 2;
    ck_assert_uint_le(used, 1 << 20);
    ck_assert_uint_gt(used, (1 << 20) - 1024); /* and nearly all of it */
    ck_assert_uint_gt(g->n_slots, 0);
    ck_assert_mem_eq(g->layout.model_digest, l.model_digest, 32);
    cache(&w, "aaaabbbb");
    mismatches_are_named(&h);
    ck_assert_int_eq(open_with(&h, &l, &c), 0);
    pfx_close(c);
    ck_assert_int_eq(open_with(&h, NULL, &c), 0);
    ck_assert_uint_eq(pfx_geometry(c)->layout.block_bytes, 256);
    pfx_close(c);
    ck_assert_uint_eq(matched(&w, "aaaabbbbc"), 8);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(start_given_layout_is_compared)
{
    struct host h;
    struct worker w = {.host = &h};
    HOST_START(&h, "--blocks", "16", "--block-tokens", "4", "--block-bytes", "256", "--devices",
               "2", "--snapshots", "4", "--snapshot-bytes", "128", "--model", "llama");
    struct pfx_layout l = a_layout();
    pfx *c;
    ck_assert_int_eq(open_with(&h, &l, &c), PFX_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "model_digest"));
    pfx_model_digest("llama", l.model_digest);
    ck_assert_int_eq(open_with(&h, &l, &w.c), 0);
    ck_assert_uint_eq(pfx_geometry(w.c)->n_slots, 4);
    l.block_bytes = 512;
    ck_assert_int_eq(open_with(&h, &l, &c), PFX_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "block_bytes"));
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "512"));
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- who may attach
 * ------------------------------------------------------------------------------------ */

struct visitor {
    const struct host *host;
    uid_t uid;
    gid_t gid;
    int expected;
};

static void visit(struct child *me, void *arg)
{
    const struct visitor *v = arg;
    ck_assert_int_eq(setgid(v->gid), 0);
    ck_assert_int_eq(setuid(v->uid), 0);
    struct pfx_options o = worker_options(v->host);
    pfx *c;
    int rc = pfx_open(&o, &c);
    ck_assert_msg(rc == v->expected, "user %u: %s (%s)", v->uid, pfx_strerror(rc), pfx_why(NULL));
    if (rc == 0)
        ck_assert_int_eq(pfx_ping(c), 0);
    pfx_close(c);
}

static void visit_as(const struct host *h, uid_t uid, gid_t gid, int expected)
{
    struct child c;
    struct visitor v = {h, uid, gid, expected};
    child_start(&c, visit, &v);
    child_join(&c);
}

START_TEST(start_allows_whom_it_was_told)
{
    struct host h;
    struct said s;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    HOST_START(&h, "--blocks", "16", "--allow-user", "12345", "--allow-group", "23456");
    ck_assert_int_eq(chmod(h.dir, 0755), 0);
    visit_as(&h, 0, 0, 0);
    visit_as(&h, SOMEBODY, SOMEBODY, 0);
    visit_as(&h, STRANGER, STRANGER, PFX_EACCESS);
    visit_as(&h, STRANGER, SOME_GROUP, 0);
    const char *words[] = {"workers", "--socket", h.socket, NULL};
    run_as(STRANGER, &s, prefixctl_path(), words);
    refused(&s, 3, "allow-user");
    words[0] = "status"; /* reads the daemon's memory: through /proc, or by its leave */
    run_as(STRANGER, &s, prefixctl_path(), words);
    refused(&s, 3, "allow-user");
    host_stop(&h);
}
END_TEST

/* The null cache: every call works, nothing is ever found. */
START_TEST(start_index_none)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--index", "none", "--blocks", "16", "--block-tokens", "4", "--block-bytes",
               "64");
    worker_open(&w, &h, NULL);
    ck_assert_uint_eq(pfx_geometry(w.c)->active, 0);
    for (int i = 0; i < 3; i++) {
        struct held held = look_whole(&w, "aaaabbbb");
        ck_assert_uint_eq(held.match.matched_tokens, 0);
        ck_assert_int_eq(grab(&w, &held, 2), 0);
        ck_assert_int_eq(put(&w, &held, "aaaabbbb", 0, NULL, NULL), 0);
        drop(&w, &held);
        pages_are(&w, 16, 0, 0, 0);
    }
    ck_assert_uint_eq(counters(&w).hits, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("start");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, start_second_daemon_is_refused);
    tcase_add_test(t, start_takes_over_a_stale_socket);
    tcase_add_test(t, start_follows_a_killed_one_at_once);
    tcase_add_test(t, start_leaves_other_files_alone);
    tcase_add_test(t, start_race_has_one_winner);
    tcase_add_loop_test(t, stop_is_clean, 0, 2);
    tcase_add_test(t, start_with_a_file_size_limit_says_so);
    tcase_add_test(t, start_notifies_systemd);
    tcase_add_test(t, start_bytes_alone_takes_the_first_layout);
    tcase_add_test(t, start_given_layout_is_compared);
    tcase_add_test(t, start_allows_whom_it_was_told);
    tcase_add_test(t, start_index_none);
    suite_add_tcase(s, t);
    return s;
}
