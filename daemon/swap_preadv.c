/*
 * swap_preadv.c - the engine where io_uring is refused: threads that take operations from a queue
 * and wait for them with pread and pwrite. The thread that uses the engine sleeps on the wake-up
 * eventfd, which a finished operation writes too, if it sleeps. Without a single thread, reap does
 * the work.
 */
#include "daemon/swap_engine.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS_MAX = 16, STACK_BYTES = 256 * 1024 };

struct threads {
    struct engine engine;
    const int *fds; /* of the setup: copied behind the struct */
    int wake_fd;
    unsigned size; /* of both queues */
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* Under the lock. */
    struct engine_op *todo;
    unsigned todo_first, todo_n;
    struct engine_result *done;
    unsigned done_first, done_n;
    bool sleeping, stopping;
    pthread_t thread[THREADS_MAX];
    unsigned n_threads;
};

static struct threads *threads_of(struct engine *e)
{
    return (struct threads *)(void *)e;
}

static int carry_out(const struct threads *t, const struct engine_op *op)
{
    int fd = t->fds[op->file];
    struct iovec v = {op->base, op->length};
    ssize_t n = op->write ? pwritev2(fd, &v, 1, (off_t)op->offset, 0)
                          : preadv2(fd, &v, 1, (off_t)op->offset, 0);
    return n < 0 ? -errno : (int)n;
}

/* Under the lock. */
static struct engine_op take_todo(struct threads *t)
{
    struct engine_op op = t->todo[t->todo_first];
    t->todo_first = (t->todo_first + 1) % t->size;
    t->todo_n--;
    return op;
}

/* Under the lock. True: its user sleeps and is to be woken. */
static bool put_done(struct threads *t, uint64_t tag, int result)
{
    t->done[(t->done_first + t->done_n++) % t->size] = (struct engine_result){tag, result};
    bool wake = t->sleeping;
    t->sleeping = false;
    return wake;
}

static void *work(void *arg)
{
    struct threads *t = arg;
    prctl(PR_SET_NAME, "prefixd-swap-io");
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->todo_n && !t->stopping)
            pthread_cond_wait(&t->work, &t->lock);
        if (!t->todo_n)
            break;
        struct engine_op op = take_todo(t);
        pthread_mutex_unlock(&t->lock);
        int result = carry_out(t, &op);
        pthread_mutex_lock(&t->lock);
        if (put_done(t, op.tag, result)) {
            uint64_t one = 1;
            ssize_t n = write(t->wake_fd, &one, sizeof one);
            (void)n;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void threads_submit(struct engine *e, const struct engine_op *op)
{
    struct threads *t = threads_of(e);
    pthread_mutex_lock(&t->lock);
    t->todo[(t->todo_first + t->todo_n++) % t->size] = *op;
    pthread_mutex_unlock(&t->lock);
    pthread_cond_signal(&t->work);
}

/* Under the lock. */
static unsigned collect(struct threads *t, struct engine_result *results, unsigned n)
{
    unsigned got = 0;
    for (; got < n && t->done_n; got++, t->done_n--) {
        results[got] = t->done[t->done_first];
        t->done_first = (t->done_first + 1) % t->size;
    }
    return got;
}

static void work_alone(struct threads *t)
{
    while (!t->n_threads && t->todo_n) {
        struct engine_op op = take_todo(t);
        put_done(t, op.tag, carry_out(t, &op));
    }
}

static unsigned threads_reap(struct engine *e, struct engine_result *results, unsigned n,
                             unsigned timeout_us)
{
    struct threads *t = threads_of(e);
    pthread_mutex_lock(&t->lock);
    work_alone(t);
    unsigned got = collect(t, results, n);
    t->sleeping = !got && timeout_us;
    pthread_mutex_unlock(&t->lock);
    if (got || !timeout_us)
        return got;
    struct pollfd p = {.fd = t->wake_fd, .events = POLLIN};
    const struct timespec limit = {timeout_us / 1000000, timeout_us % 1000000 * 1000l};
    uint64_t count;
    if (ppoll(&p, 1, &limit, NULL) == 1 && read(t->wake_fd, &count, sizeof count) < 0)
        usleep(1000);
    pthread_mutex_lock(&t->lock);
    t->sleeping = false;
    got = collect(t, results, n);
    pthread_mutex_unlock(&t->lock);
    return got;
}

static bool threads_pin(struct engine *e)
{
    return false;
}

static void threads_unpin(struct engine *e)
{
}

static void threads_free(struct engine *e)
{
    struct threads *t = threads_of(e);
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_mutex_unlock(&t->lock);
    pthread_cond_broadcast(&t->work);
    for (unsigned i = 0; i < t->n_threads; i++)
        pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t->todo);
    free(t->done);
    free(t);
}

static const struct engine_ops threads_ops = {threads_submit, threads_reap, threads_pin,
                                              threads_unpin, threads_free};

struct engine *engine_threads_new(const struct engine_setup *setup, int *error)
{
    *error = -ENOMEM;
    struct threads *t = calloc(1, sizeof *t + setup->n_fds * sizeof(int));
    if (!t)
        return NULL;
    int *fds = (int *)(void *)(t + 1);
    for (unsigned i = 0; i < setup->n_fds; i++)
        fds[i] = setup->fds[i];
    t->engine.ops = &threads_ops;
    t->fds = fds;
    t->wake_fd = setup->wake_fd;
    t->size = setup->depth;
    t->todo = calloc(t->size, sizeof *t->todo);
    t->done = calloc(t->size, sizeof *t->done);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    if (!t->todo || !t->done) {
        threads_free(&t->engine);
        return NULL;
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (unsigned i = 0; i < THREADS_MAX && i < setup->depth; i++)
        if (!pthread_create(&t->thread[t->n_threads], &attr, work, t))
            t->n_threads++;
    pthread_attr_destroy(&attr);
    *error = 0;
    return &t->engine;
}
