#include "daemon/foreign.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

enum { DESCRIPTORS_A_PACKET = 253 /* SCM_MAX_FD */, STOP_S = 1 };

struct socket {
    struct socket *next;
    int fd;
};

struct foreign {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct socket *first; /* the youngest */
    bool stopping;
};

/* ---- the thread ------------------------------------------------------------------------- */

/* A socket is told not to linger: then a hostile one has to be quick to hold up even the others
 * that wait to be closed. */
static void close_those(const struct cmsghdr *c)
{
    const struct linger none = {0};
    int all[DESCRIPTORS_A_PACKET];
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof *all;
    memcpy(all, CMSG_DATA(c), n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        (void)setsockopt(all[i], SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(all[i]);
    }
}

/* A packet with all that comes along, which the kernel closes here where there is no room for it.
 * False: there is none, or nothing but bytes. */
static bool close_packet(int fd)
{
    union {
        struct cmsghdr align;
        char
            room[CMSG_SPACE(DESCRIPTORS_A_PACKET * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {(char[1]){0}, 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    if (recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0 || !m.msg_controllen)
        return false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            close_those(c);
    return true;
}

static void *close_all(void *arg)
{
    struct foreign *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct socket *s = f->first;
        if (s) {
            f->first = s->next;
            pthread_mutex_unlock(&f->lock);
            while (close_packet(s->fd)) /* each has its credentials */
                continue;
            close(s->fd);
            free(s);
            pthread_mutex_lock(&f->lock);
        } else if (f->stopping) {
            break;
        } else {
            pthread_cond_wait(&f->changed, &f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static struct foreign *foreign_new(void)
{
    struct foreign *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    if (pthread_create(&f->thread, NULL, close_all, f) == 0)
        return f;
    free(f);
    return NULL;
}

void foreign_stop(struct foreign **at)
{
    struct foreign *f = *at;
    struct timespec until;
    *at = NULL;
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_S;
    if (pthread_timedjoin_np(f->thread, NULL, &until))
        return; /* it keeps what it works on */
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- packets ------------------------------------------------------------------------------ */

/* Without memory or a thread for it, there is nobody else to close it. */
static void give_away(struct foreign **at, int fd)
{
    struct socket *s = malloc(sizeof *s);
    if (!*at)
        *at = foreign_new();
    if (!s || !*at) {
        free(s);
        close(fd);
        return;
    }
    s->fd = fd;
    struct foreign *f = *at;
    pthread_mutex_lock(&f->lock);
    s->next = f->first;
    f->first = s;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

enum next { NEXT_NOTHING, NEXT_BYTES, NEXT_DESCRIPTORS };

/* What the next packet is. To look takes nothing and gives up nothing: the queue keeps its own. A
 * socket that asks for credentials (room for nothing else) has them with each packet, an empty one
 * too, and not with the end. */
static enum next look(int fd, struct cmsghdr *credentials, size_t room)
{
    struct iovec part = {(char[1]){0}, 1};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = credentials, .msg_controllen = room};
    if (recvmsg(fd, &m, MSG_PEEK | MSG_DONTWAIT) < 0 || (room && !m.msg_controllen))
        return NEXT_NOTHING;
    return m.msg_flags & MSG_CTRUNC ? NEXT_DESCRIPTORS : NEXT_BYTES;
}

void foreign_refuse(int listen_fd)
{
    static const int off = 0;
    (void)setsockopt(listen_fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

ssize_t foreign_recv(int fd, void *to, size_t n)
{
    enum next next = look(fd, NULL, 0);
    if (next == NEXT_BYTES)
        return recv(fd, to, n, MSG_DONTWAIT | MSG_TRUNC);
    if (next == NEXT_DESCRIPTORS)
        errno = EPERM;
    return -1;
}

/* Nothing comes after SHUT_RD. */
void foreign_close(struct foreign **f, int fd)
{
    static const int on = 1;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } credentials;
    enum next next;
    (void)setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    (void)shutdown(fd, SHUT_RD);
    while ((next = look(fd, &credentials.align, sizeof credentials)) == NEXT_BYTES)
        (void)recv(fd, NULL, 0, MSG_DONTWAIT);
    if (next == NEXT_DESCRIPTORS) {
        (void)shutdown(fd, SHUT_RDWR); /* it may be long until it is closed */
        give_away(f, fd);
    } else {
        close(fd);
    }
}
