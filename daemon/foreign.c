#include "daemon/foreign.h"

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

struct batch {
    struct batch *next;
    size_t n;
    int fd[];
};

struct foreign {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct batch *first; /* the youngest */
    bool stopping;
};

/* ---- the thread ------------------------------------------------------------------------- */

/* A socket is told not to linger: then a hostile one has to be quick to hold up even the others
 * that wait to be closed. */
static void close_batch(const struct batch *b)
{
    const struct linger none = {0};
    for (size_t i = 0; i < b->n; i++) {
        (void)setsockopt(b->fd[i], SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(b->fd[i]);
    }
}

static void *close_all(void *arg)
{
    struct foreign *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct batch *b = f->first;
        if (b) {
            f->first = b->next;
            pthread_mutex_unlock(&f->lock);
            close_batch(b);
            free(b);
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

/* Without memory or a thread for it, there is nobody else to close them. */
static void give_away(struct foreign **at, const int *fd, size_t n)
{
    struct batch *b = malloc(sizeof *b + n * sizeof *fd);
    if (!*at)
        *at = foreign_new();
    if (!b || !*at) {
        free(b);
        for (size_t i = 0; i < n; i++)
            close(fd[i]);
        return;
    }
    b->n = n;
    memcpy(b->fd, fd, n * sizeof *fd);
    struct foreign *f = *at;
    pthread_mutex_lock(&f->lock);
    b->next = f->first;
    f->first = b;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* *said: the kernel had something to say beside the bytes. */
static ssize_t take(struct foreign **f, int fd, void *to, size_t n, bool *said)
{
    union {
        struct cmsghdr align;
        char
            room[CMSG_SPACE(DESCRIPTORS_A_PACKET * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {to, n};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &m, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
    *said = got >= 0 && m.msg_controllen > 0;
    if (!*said)
        return got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            int all[DESCRIPTORS_A_PACKET];
            size_t bytes = c->cmsg_len - CMSG_LEN(0);
            memcpy(all, CMSG_DATA(c), bytes);
            give_away(f, all, bytes / sizeof *all);
        }
    return got;
}

void foreign_refuse(int listen_fd)
{
    static const int off = 0;
    (void)setsockopt(listen_fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

ssize_t foreign_recv(struct foreign **f, int fd, void *to, size_t n)
{
    bool said;
    return take(f, fd, to, n, &said);
}

/* What is still in the queue would be closed with the socket. Nothing comes after SHUT_RD; an empty
 * packet, which may bring descriptors too, is told from the end by its credentials. */
void foreign_close(struct foreign **f, int fd)
{
    static const int on = 1;
    bool said = true;
    (void)setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    (void)shutdown(fd, SHUT_RD);
    while (said) {
        char byte;
        (void)take(f, fd, &byte, sizeof byte, &said);
    }
    close(fd);
}
