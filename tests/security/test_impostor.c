/*
 * What listens at the socket is no prefixd. Root's prefixctl may be pointed at it; it reads what it
 * is handed only as long as that cannot end under it.
 */
#include "client/prefixd.h"
#include "shm/layout.h"
#include "shm/message.h"
#include "tests/pass.h"
#include "tests/tools/run.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ROWS = 64, BYTES = 1 << 20 };

struct scene {
    char dir[64], socket[96];
    int listener;
};

static void answer_with(int fd, int rows)
{
    struct admin_reply reply = {.n_rows = ROWS, .row_bytes = sizeof(struct worker_row)};
    (void)pass_descriptors(fd, &reply, sizeof reply, &rows, 1);
}

/* Two memfds that it could cut: one that looks like an index, one of rows. */
static void pretend(struct child *me, void *arg)
{
    const struct scene *s = arg;
    int index = memfd_create("prefixd-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rows = memfd_create("rows", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(index >= 0 && rows >= 0 && listen(s->listener, 8) == 0);
    REQUIRE_EQ(ftruncate(index, BYTES), 0);
    REQUIRE_EQ(ftruncate(rows, BYTES), 0);
    child_post(me, 1);
    for (int fd; (fd = accept(s->listener, NULL, NULL)) >= 0; close(fd)) {
        char bytes[512];
        struct welcome w = {.magic = HELLO_MAGIC, .abi = PFX_ABI_VERSION};
        if (recv(fd, bytes, sizeof bytes, 0) != sizeof(struct hello))
            continue; /* who only asks who is there */
        (void)send(fd, &w, sizeof w, MSG_NOSIGNAL);
        if (recv(fd, bytes, sizeof bytes, 0) == sizeof(struct admin_request))
            answer_with(fd, rows);
    }
}

START_TEST(impostor_shares_what_is_not_sealed)
{
    static const char *const commands[] = {"workers", "status", "tree"};
    struct scene s;
    struct child c;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    temp_dir(s.dir);
    snprintf(s.socket, sizeof s.socket, "%s/s", s.dir);
    strcpy(at.sun_path, s.socket);
    s.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(s.listener, (struct sockaddr *)&at, sizeof at), 0);
    child_start(&c, pretend, &s);
    child_wait(&c);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct said said;
        run_as(0, &said, prefixctl_path(),
               (const char *const[]){commands[i], "--socket", s.socket, NULL});
        refused(&said, 3, "it is not sealed");
    }
    child_kill(&c, SIGKILL);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("impostor");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, impostor_shares_what_is_not_sealed);
    suite_add_tcase(s, t);
    return s;
}
