/*
 * Who comes in, and what is shown to whom. Users are tried as root alone can; a test that needs
 * them says so instead of passing.
 */
#include "client/prefixd.h"
#include "tests/pass.h"
#include "tests/raw.h"
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GUEST = 12345, OTHER_GUEST = 12346, GUESTS = 23456, STRANGER = 54321 };

#define ONLY_ROOT "only root can try what other users may do"

static void begin(struct host *h)
{
    HOST_START(h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64", "--allow-user",
               "12345", "--allow-user", "12346", "--allow-group", "23456");
    ck_assert_int_eq(chmod(h->dir, 0755), 0);
}

static void become(uid_t uid, const gid_t *more, size_t n)
{
    REQUIRE_EQ(setgroups(n, more), 0);
    REQUIRE_EQ(setresgid(uid, uid, uid), 0);
    REQUIRE_EQ(setresuid(uid, uid, uid), 0);
}

/* ---- the socket ------------------------------------------------------------------------- */

static unsigned mode_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

/* Everybody may knock, whatever umask the daemon was started with. */
START_TEST(socket_and_lock_have_their_modes)
{
    static const mode_t masks[] = {0, 022, 077, 0777};
    size_t n = sizeof masks / sizeof masks[0] - (geteuid() != 0); /* the last shuts the test out */
    for (size_t i = 0; i < n; i++) {
        struct host h;
        char lock[128];
        mode_t was = umask(masks[i]);
        host_small(&h, 16, 4);
        umask(was);
        snprintf(lock, sizeof lock, "%s.lock", h.socket);
        ck_assert_uint_eq(mode_of(h.socket), 0666);
        ck_assert_uint_eq(mode_of(lock), 0600 & ~masks[i]);
        host_stop(&h);
    }
}
END_TEST

/* A link in the lock's place leads to somebody's file: it is not followed. */
START_TEST(lock_is_no_link)
{
    struct said s;
    char dir[64], socket[96], lock[128], file[96];
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    snprintf(lock, sizeof lock, "%s.lock", socket);
    snprintf(file, sizeof file, "%s/precious", dir);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "precious", 8), 8);
    close(fd);
    ck_assert_int_eq(symlink(file, lock), 0);
    PREFIXD(&s, "--socket", socket, "--blocks", "16");
    refused(&s, 2, ".lock cannot be made");
    struct stat st;
    ck_assert_int_eq(lstat(file, &st), 0);
    ck_assert_int_eq(st.st_size, 8);
    ck_assert_int_eq(lstat(lock, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
}
END_TEST

/* A link in the socket's place is no socket of ours, wherever it leads. */
START_TEST(socket_is_no_link)
{
    struct host h;
    struct said s;
    char link[128];
    host_small(&h, 16, 4);
    snprintf(link, sizeof link, "%s/link", h.dir);
    ck_assert_int_eq(symlink(h.socket, link), 0);
    PREFIXD(&s, "--socket", link, "--blocks", "16");
    refused(&s, 2, "no socket");
    ck_assert_uint_eq(mode_of(h.socket), 0666);
    host_stop(&h);
}
END_TEST

/* ---- who -------------------------------------------------------------------------------- */

struct knock {
    struct host *h;
    uid_t uid;
    gid_t also;
    int status;
};

static void knock(struct child *me, void *arg)
{
    const struct knock *k = arg;
    struct hello hello = raw_hello("knocks");
    struct raw r;
    become(k->uid, &k->also, k->also != 0);
    REQUIRE(raw_greet(&r, k->h, &hello));
    REQUIRE_MSG(r.welcome.status == k->status, "user %u: %d (%s)", k->uid, r.welcome.status,
                r.welcome.why);
    REQUIRE_EQ(r.n_fds, k->status ? 0 : r.welcome.n_fds);
    raw_close(&r);
}

static void knock_as(struct host *h, uid_t uid, gid_t also, int status)
{
    struct child c;
    struct knock k = {h, uid, also, status};
    child_start(&c, knock, &k);
    child_join(&c);
}

START_TEST(users_and_groups_that_may_attach)
{
    struct host h;
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    knock_as(&h, 0, 0, 0);
    knock_as(&h, GUEST, 0, 0);
    knock_as(&h, STRANGER, GUESTS, 0); /* by a group beside its own */
    knock_as(&h, STRANGER, GUESTS + 1, PFX_EACCESS);
    knock_as(&h, STRANGER, 0, PFX_EACCESS);
    knock_as(&h, GUESTS, 0, 0); /* its own group has that number, not the user */
    knock_as(&h, GUEST + 2, 0, PFX_EACCESS);
    host_stop(&h);
}
END_TEST

START_TEST(refusal_is_logged)
{
    struct host h;
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    knock_as(&h, STRANGER, 0, PFX_EACCESS);
    ck_assert(host_logged(&h, "of user 54321: this user may not attach; start the daemon with "
                              "--allow-user or --allow-group"));
    host_stop(&h);
}
END_TEST

/* ---- a socket that changes hands ------------------------------------------------------------ */

/* Another process, of another user, connects, and this one speaks. */
static void connect_for_parent(struct child *me, void *arg)
{
    const struct knock *k = arg;
    become(k->uid, NULL, 0);
    int fd = raw_connect(k->h), at = (int)k->also; /* a number that both know */
    REQUIRE_EQ(send(at, &fd, sizeof fd, 0), sizeof fd);
    REQUIRE(pass_descriptors(at, "x", 1, &fd, 1));
    child_wait(me);
}

static int status_of_hello_over(int pass, int *fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char bytes[8];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    ck_assert_int_eq(recvmsg(pass, &m, 0), sizeof(int));
    m.msg_control = &control;
    m.msg_controllen = sizeof control;
    ck_assert_int_eq(recvmsg(pass, &m, 0), 1);
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof *fd);
    struct hello hello = raw_hello("handed");
    struct welcome w;
    ck_assert_int_eq(send(*fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    ck_assert_int_eq(recv(*fd, &w, sizeof w, 0), sizeof w);
    return w.status;
}

/* Who connected counts, as the kernel has it, and not who speaks: a user who may not attach does
 * not come in by giving his socket to root, and who may can let in whom he likes. */
START_TEST(who_connected_counts)
{
    struct host h;
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    static const struct {
        uid_t uid;
        int status;
    } cases[] = {{STRANGER, PFX_EACCESS}, {GUEST, 0}};
    for (int i = 0; i < 2; i++) {
        struct child c;
        int pass[2], fd;
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pass), 0);
        struct knock k = {&h, cases[i].uid, (gid_t)pass[1], 0};
        child_start(&c, connect_for_parent, &k);
        ck_assert_int_eq(status_of_hello_over(pass[0], &fd), cases[i].status);
        child_post(&c, 1);
        child_join(&c); /* and it ends with whoever connected */
        char byte;
        ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
        close(fd);
        close(pass[0]);
        close(pass[1]);
    }
    host_stop(&h);
}
END_TEST

/* ---- what is shown ----------------------------------------------------------------------- */

static void hold_a_lease(struct child *me, void *arg)
{
    const struct knock *k = arg;
    struct worker w;
    become(k->uid, NULL, 0);
    worker_open(&w, k->h, k->uid == GUEST ? "one" : "two");
    w.unchecked = true; /* the audit is not for guests */
    struct held l = look(&w, "aaaa");
    REQUIRE_EQ(grab(&w, &l, 1), 0);
    child_post(me, 1);
    child_wait(me);
    pfx_close(w.c);
}

static size_t rows_for(uid_t uid, const struct host *h, const char *what)
{
    struct said s;
    run_as(uid, &s, prefixctl_path(),
           (const char *const[]){what, "--json", "--socket", h->socket, NULL});
    json_t *o = json_said(&s);
    json_t *rows = json_object_get(o, what);
    size_t n = json_array_size(rows);
    for (size_t i = 0; uid && i < n; i++)
        ck_assert_str_eq(text_of(json_array_get(rows, i), "group"), uid == GUEST ? "one" : "two");
    json_decref(o);
    return n;
}

/* Root and the daemon's user see everybody's workers and leases, another user his own. */
START_TEST(listings_show_ones_own)
{
    static const uid_t uids[] = {GUEST, OTHER_GUEST};
    static const char *const listings[] = {"workers", "leases"};
    struct host h;
    struct child c[2];
    struct knock k[2];
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    for (int i = 0; i < 2; i++) {
        k[i] = (struct knock){.h = &h, .uid = uids[i]};
        child_start(&c[i], hold_a_lease, &k[i]);
        child_wait(&c[i]);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(rows_for(0, &h, listings[i]), 2);
        ck_assert_uint_eq(rows_for(GUEST, &h, listings[i]), 1);
        ck_assert_uint_eq(rows_for(OTHER_GUEST, &h, listings[i]), 1);
    }
    for (int i = 0; i < 2; i++) {
        child_post(&c[i], 1);
        child_join(&c[i]);
    }
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

/* A member that has died, and left leases, is its user's too. */
START_TEST(listings_show_ones_own_dead)
{
    struct host h;
    struct child c, mate;
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    struct knock k = {.h = &h, .uid = GUEST};
    child_start(&c, hold_a_lease, &k);
    child_wait(&c);
    child_start(&mate, hold_a_lease, &k);
    child_wait(&mate);
    child_kill(&c, SIGKILL);
    EVENTUALLY(5000, rows_for(0, &h, "workers") == 2 && rows_for(0, &h, "leases") == 2);
    ck_assert_uint_eq(rows_for(GUEST, &h, "workers"), 2);
    ck_assert_uint_eq(rows_for(GUEST, &h, "leases"), 2);
    ck_assert_uint_eq(rows_for(OTHER_GUEST, &h, "workers"), 0);
    ck_assert_uint_eq(rows_for(OTHER_GUEST, &h, "leases"), 0);
    child_post(&mate, 1);
    child_join(&mate);
    host_stop(&h);
}
END_TEST

/* The daemon does nothing else while it audits itself. */
START_TEST(audit_is_not_for_guests)
{
    struct host h;
    struct said s;
    if (geteuid() != 0)
        SKIP_TEST(ONLY_ROOT);
    begin(&h);
    const char *const words[] = {"audit", "--socket", h.socket, NULL};
    run_as(GUEST, &s, prefixctl_path(), words);
    refused(&s, 3, "for its own user and root");
    run_as(0, &s, prefixctl_path(), words);
    ck_assert_int_eq(s.code, 0);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("admission");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, socket_and_lock_have_their_modes);
    tcase_add_test(t, lock_is_no_link);
    tcase_add_test(t, socket_is_no_link);
    tcase_add_test(t, users_and_groups_that_may_attach);
    tcase_add_test(t, refusal_is_logged);
    tcase_add_test(t, who_connected_counts);
    tcase_add_test(t, listings_show_ones_own);
    tcase_add_test(t, listings_show_ones_own_dead);
    tcase_add_test(t, audit_is_not_for_guests);
    suite_add_tcase(s, t);
    return s;
}
