#include "tests/death/rows.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One reply; its rows come as a memfd. */
static int receive_rows(int fd, struct admin_reply *reply)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {reply, sizeof *reply};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    ck_assert_int_eq(recvmsg(fd, &m, MSG_CMSG_CLOEXEC), sizeof *reply);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int rows = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&rows, CMSG_DATA(c), sizeof rows);
    return rows;
}

void workers_now(const struct host *h, struct workers *w)
{
    struct admin_request rq = {.op = ADMIN_WORKERS};
    struct admin_reply reply;
    ck_assert_int_ge(h->admin, 0);
    ck_assert_int_eq(send(h->admin, &rq, sizeof rq, 0), sizeof rq);
    int rows = receive_rows(h->admin, &reply);
    ck_assert_int_eq(reply.status, 0);
    ck_assert_uint_le(reply.n_rows, ROWS_MAX);
    w->n = reply.n_rows;
    ssize_t bytes = (ssize_t)(w->n * sizeof w->row[0]);
    if (w->n)
        ck_assert_int_eq(pread(rows, w->row, (size_t)bytes, 0), bytes);
    if (rows >= 0)
        close(rows);
}

const struct worker_row *workers_find(const struct workers *w, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (strcmp(w->row[i].name, name) == 0)
            return &w->row[i];
    return NULL;
}

const struct worker_row *workers_find_pid(const struct workers *w, pid_t pid)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->row[i].pid == pid)
            return &w->row[i];
    return NULL;
}
