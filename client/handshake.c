/*
 * The control socket: find the daemon, say HELLO, take WELCOME and the descriptors that come along.
 */
#include "client/attach.h"
#include "shm/socket_path.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

static _Thread_local char open_why[768];

int refuse(int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(open_why, sizeof open_why, format, args);
    va_end(args);
    return status;
}

const char *refuse_why(void)
{
    return open_why[0] ? open_why : "pfx_open has not failed in this thread";
}

/* ---- the socket --------------------------------------------------------------------- */

/* Connect with a time limit: a stopped daemon's backlog may be full. PFX_EGONE and PFX_EACCES leave
 * the sentence to the caller, and errno. */
static int socket_connect(struct pfx *c, const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path)
        return refuse(PFX_EINVAL, "socket_path: %s is longer than the %zu bytes of a socket's name",
                      path, sizeof to.sun_path - 1);
    memcpy(to.sun_path, path, strlen(path));
    if (c->fd >= 0)
        close(c->fd);
    c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return refuse(PFX_EAGAIN, "no socket can be made: %s%s", strerror(errno),
                      errno == EMFILE ? "; raise the descriptor limit (ulimit -n)" : "");
    struct timeval limit = {.tv_sec = (time_t)(c->timeout_ns / 1000000000u),
                            .tv_usec = (suseconds_t)(c->timeout_ns % 1000000000u / 1000u)};
    (void)setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(c->fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return 0;
    switch (errno) {
    case EACCES:
    case EPERM:
        return PFX_EACCESS;
    case EAGAIN:
    case EINTR:
        return refuse(PFX_ETIMEDOUT, "the daemon at %s does not answer: it is stopped or stuck",
                      path);
    default:
        return PFX_EGONE;
    }
}

int socket_open(struct pfx *c, const struct pfx_options *o)
{
    struct socket_paths paths;
    char tried[2 * SOCKET_PATH_MAX + 160] = "", remedy[SOCKET_PATH_MAX + 80];
    int status = PFX_EGONE;
    socket_paths(&paths, o->socket_path);
    for (unsigned i = 0; i < paths.n; i++) {
        size_t used = strlen(tried);
        status = socket_connect(c, paths.at[i]);
        if (status != PFX_EGONE && status != PFX_EACCESS)
            return status;
        snprintf(tried + used, sizeof tried - used, "%s%s (%s)", i ? " nor at " : "", paths.at[i],
                 strerror(errno));
    }
    if (status == PFX_EACCESS)
        return refuse(status, SOCKET_CLOSED, paths.at[paths.n - 1]);
    socket_remedy(&paths, remedy, sizeof remedy);
    return refuse(status,
                  "no daemon answers at %s; %s, or name the socket of a running one in socket_path "
                  "or $PREFIXD_SOCKET",
                  tried, remedy);
}

/* ---- WELCOME -------------------------------------------------------------------------- */

void received_close(struct received *r)
{
    while (r->n)
        close(r->fd[--r->n]);
}

/* Take every descriptor out of the message first, so that none is lost whatever else is wrong. */
static bool take_fds(struct msghdr *m, struct received *r)
{
    bool right = !(m->msg_flags & (MSG_CTRUNC | MSG_TRUNC));
    for (struct cmsghdr *k = CMSG_FIRSTHDR(m); k; k = CMSG_NXTHDR(m, k)) {
        if (k->cmsg_level != SOL_SOCKET || k->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (k->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(k) + i * sizeof fd, sizeof fd);
            if (r->n < FDS_MAX) {
                r->fd[r->n++] = fd;
            } else {
                close(fd);
                right = false;
            }
        }
    }
    return right;
}

static int welcome_receive(struct pfx *c, struct welcome *w, struct received *r)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec part = {w, sizeof *w};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    bool right = n >= 0 && take_fds(&m, r);
    if (n < 0 && errno == EMFILE)
        return refuse(PFX_EAGAIN, "this process has no file descriptor left; raise the limit "
                                  "(ulimit -n)");
    if (n <= 0)
        return refuse(PFX_EGONE, "the daemon hung up instead of answering; its log says why");
    if ((size_t)n < offsetof(struct welcome, ring_entries) || w->magic != HELLO_MAGIC)
        return refuse(PFX_EVERSION, "what listens there does not speak prefixd's protocol");
    if (w->abi != PFX_ABI_VERSION)
        return refuse(PFX_EVERSION, "the daemon speaks ABI %u, this library %u", w->abi,
                      PFX_ABI_VERSION);
    if (m.msg_flags & MSG_CTRUNC)
        return refuse(PFX_EAGAIN, "this process has no room for the daemon's descriptors; raise "
                                  "the limit (ulimit -n)");
    if (!right || (size_t)n != sizeof *w)
        return refuse(PFX_EVERSION, "the daemon's answer has an unknown shape");
    w->why[sizeof w->why - 1] = 0;
    if (w->status < 0)
        return refuse(w->status, "%s", w->why[0] ? w->why : pfx_strerror(w->status));
    return 0;
}

int handshake(struct pfx *c, const struct hello *h, struct welcome *w, struct received *r)
{
    if (send(c->fd, h, sizeof *h, MSG_NOSIGNAL) != sizeof *h)
        return errno == EAGAIN ? refuse(PFX_ETIMEDOUT, "the daemon takes no packet")
                               : refuse(PFX_EGONE, "the daemon hung up (%s); its log says why",
                                        strerror(errno));
    uint64_t until = clock_ns() + c->timeout_ns;
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    for (;;) {
        uint64_t now = clock_ns();
        if (now >= until)
            return refuse(PFX_ETIMEDOUT, "the daemon does not answer: it is stopped or stuck");
        uint64_t ms = (until - now + 999999) / 1000000;
        if (poll(&p, 1, ms < 60000 ? (int)ms : 60000) > 0)
            return welcome_receive(c, w, r);
    }
}

/* Each device has room for the pool. */
static bool devices_right(const struct welcome *w)
{
    uint64_t bytes = pool_bytes(w->n_blocks, w->block_stride, w->n_slots, w->slot_stride);
    for (uint32_t i = 0; i < w->layout.n_devices; i++)
        if (w->device[i].bytes < bytes)
            return false;
    return true;
}

bool welcome_right(const struct welcome *w, unsigned n_fds)
{
    uint32_t n = w->ring_entries;
    return n >= RING_MIN && n <= RING_MAX && !(n & (n - 1)) && w->arena_bytes >= ARENA_MIN &&
           w->arena_bytes <= ARENA_MAX && w->layout.block_tokens &&
           w->layout.block_tokens <= BLOCK_TOKENS_MAX && w->layout.n_devices &&
           w->layout.n_devices <= DEVICES_MAX && n_fds == 3 + w->layout.n_devices &&
           w->n_fds == n_fds && devices_right(w);
}
