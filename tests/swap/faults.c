#include "tests/swap/faults.h"
#include "daemon/swap_engine.h"
#include "tests/harness.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* What the linker makes of the wrapped names. */
struct engine *__real_engine_uring_new(const struct engine_setup *setup, int *error);
struct engine *__real_engine_threads_new(const struct engine_setup *setup, int *error);
ssize_t __real_pwritev2(int fd, const struct iovec *v, int n, off_t offset, int flags);
ssize_t __real_pwritev64v2(int fd, const struct iovec *v, int n, off_t offset, int flags);
struct engine *__wrap_engine_uring_new(const struct engine_setup *setup, int *error);
struct engine *__wrap_engine_threads_new(const struct engine_setup *setup, int *error);
ssize_t __wrap_pwritev2(int fd, const struct iovec *v, int n, off_t offset, int flags);
ssize_t __wrap_pwritev64v2(int fd, const struct iovec *v, int n, off_t offset, int flags);
int __real_io_uring_queue_init_params(unsigned n, struct io_uring *ring, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *ring, struct io_uring_params *p);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);

int __real_copier_begin(struct copier *c, unsigned buffer, enum copier_way way,
                        const struct copier_part *parts, unsigned n);
int __wrap_copier_begin(struct copier *c, unsigned buffer, enum copier_way way,
                        const struct copier_part *parts, unsigned n);
int __real_copier_poll(struct copier *c, unsigned buffer);
int __wrap_copier_poll(struct copier *c, unsigned buffer);

bool (*faults_is_header)(uint64_t offset);

enum { PLANS = 8, HELD = 1024, SHORT_UNIT = 512, MOVING = 256 };

struct plan {
    enum fault fault;
    struct fault_where where;
    unsigned skip, count;
};

static struct {
    pthread_mutex_t lock;
    struct plan plan[PLANS];
    unsigned n_plans;
    unsigned random, permille;
    struct fault_where random_where;
    struct rng rng;
    int sync_error;
    unsigned sync_count, sync_calls;
    unsigned done;
    unsigned epoch; /* counts faults_clear: what hangs comes back */
    int uring_error, threads_error;
    unsigned refused_flags;
    bool no_threads, making_engine;
    struct {
        unsigned skip, count;
    } copy[2][2]; /* way; as it begins */
    unsigned late;
    struct copies copies;
    struct moving {
        const struct copier *copier;
        unsigned buffer, asked;
        bool fails;
    } moving[MOVING];
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what is to go wrong ---- */

void faults_plan(enum fault fault, struct fault_where where, unsigned skip, unsigned count)
{
    pthread_mutex_lock(&faults.lock);
    REQUIRE(faults.n_plans < PLANS);
    faults.plan[faults.n_plans++] = (struct plan){fault, where, skip, count};
    pthread_mutex_unlock(&faults.lock);
}

void faults_random(unsigned kinds, struct fault_where where, unsigned permille, uint64_t seed)
{
    pthread_mutex_lock(&faults.lock);
    faults.random = kinds;
    faults.random_where = where;
    faults.permille = permille;
    faults.rng.state = seed;
    pthread_mutex_unlock(&faults.lock);
}

void faults_sync(int error, unsigned count)
{
    pthread_mutex_lock(&faults.lock);
    faults.sync_error = error;
    faults.sync_count = count;
    pthread_mutex_unlock(&faults.lock);
}

unsigned faults_sync_calls(void)
{
    pthread_mutex_lock(&faults.lock);
    unsigned n = faults.sync_calls;
    pthread_mutex_unlock(&faults.lock);
    return n;
}

void faults_clear(void)
{
    pthread_mutex_lock(&faults.lock);
    faults.n_plans = 0;
    faults.random = 0;
    faults.sync_count = 0;
    faults.done = 0;
    memset(faults.copy, 0, sizeof faults.copy);
    faults.copies = (struct copies){.under_way = faults.copies.under_way};
    faults.epoch++;
    pthread_mutex_unlock(&faults.lock);
}

unsigned faults_done(void)
{
    pthread_mutex_lock(&faults.lock);
    unsigned n = faults.done;
    pthread_mutex_unlock(&faults.lock);
    return n;
}

void faults_setup(int uring_error, int threads_error)
{
    faults.uring_error = uring_error;
    faults.threads_error = threads_error;
}

void faults_ring_flags(unsigned n)
{
    faults.refused_flags = n;
}

void faults_no_threads(void)
{
    faults.no_threads = true;
}

static bool fits(const struct fault_where *w, const struct engine_op *op)
{
    bool header = faults_is_header && faults_is_header(op->offset);
    if ((w->reads && op->write) || (w->writes && !op->write))
        return false;
    if ((w->payload && header) || (w->headers && !header))
        return false;
    if (w->file && w->file != op->file / 2 + 1u)
        return false;
    return op->offset >= w->from && (!w->to || op->offset < w->to);
}

static enum fault choose(const struct engine_op *op)
{
    enum fault chosen = 0;
    pthread_mutex_lock(&faults.lock);
    for (unsigned i = 0; !chosen && i < faults.n_plans; i++) {
        struct plan *p = &faults.plan[i];
        if (!p->count || !fits(&p->where, op))
            continue;
        if (p->skip) {
            p->skip--;
            continue;
        }
        p->count--;
        chosen = p->fault;
    }
    if (!chosen && faults.random && fits(&faults.random_where, op) &&
        rng_below(&faults.rng, 1000) < faults.permille)
        do
            chosen = 1u << rng_below(&faults.rng, FAULT_KINDS) & faults.random;
        while (!chosen);
    faults.done += chosen != 0;
    pthread_mutex_unlock(&faults.lock);
    return chosen;
}

static uint32_t dice(uint32_t n)
{
    pthread_mutex_lock(&faults.lock);
    uint32_t x = rng_below(&faults.rng, n);
    pthread_mutex_unlock(&faults.lock);
    return x;
}

static unsigned epoch_now(void)
{
    pthread_mutex_lock(&faults.lock);
    unsigned e = faults.epoch;
    pthread_mutex_unlock(&faults.lock);
    return e;
}

/* ---- the engine ---- */

/* An operation that something is done to when it completes, or a result that is to come. */
struct held {
    struct engine_op op;
    enum fault fault;
    bool busy, made_up; /* made_up: the engine below does not know of it */
    bool arrived;
    int result;
    uint64_t due_ms;
    unsigned behind; /* results that go first */
    unsigned epoch;
    uint8_t *copy; /* flipped, written instead */
};

struct faulty {
    struct engine engine;
    struct engine *below;
    struct held held[HELD];
};

static struct faulty *faulty_of(struct engine *e)
{
    return (struct faulty *)(void *)e;
}

static struct held *hold(struct faulty *f, const struct engine_op *op, enum fault fault)
{
    for (unsigned i = 0; i < HELD; i++)
        if (!f->held[i].busy) {
            f->held[i] =
                (struct held){.op = *op, .fault = fault, .busy = true, .epoch = epoch_now()};
            return &f->held[i];
        }
    abort();
}

static void make_up(struct faulty *f, const struct engine_op *op, int result, unsigned after_ms)
{
    struct held *h = hold(f, op, 0);
    h->made_up = h->arrived = true;
    h->result = result;
    h->due_ms = now_ms() + after_ms;
}

static void submit_flipped(struct faulty *f, const struct engine_op *op)
{
    struct held *h = hold(f, op, FAULT_FLIP);
    struct engine_op other = *op;
    if (op->write) {
        if (posix_memalign((void **)&h->copy, 4096, op->length))
            abort();
        memcpy(h->copy, op->base, op->length);
        h->copy[dice(op->length)] ^= 1u << dice(8);
        other.base = h->copy;
    }
    f->below->ops->submit(f->below, &other);
}

static void faulty_submit(struct engine *e, const struct engine_op *op)
{
    struct faulty *f = faulty_of(e);
    struct engine_op shorter = *op;
    enum fault fault = choose(op);
    switch (fault) {
    case FAULT_SHORT: /* a kernel's are mostly of whole sectors */
        if (op->length > SHORT_UNIT)
            shorter.length = SHORT_UNIT * (1 + dice((op->length - 1) / SHORT_UNIT));
        f->below->ops->submit(f->below, &shorter);
        break;
    case FAULT_ZERO:
        make_up(f, op, 0, 0);
        break;
    case FAULT_EIO:
        make_up(f, op, -EIO, 0);
        break;
    case FAULT_EAGAIN:
        make_up(f, op, -EAGAIN, 0);
        break;
    case FAULT_EINTR:
        make_up(f, op, -EINTR, 0);
        break;
    case FAULT_ENOSPC:
        make_up(f, op, -ENOSPC, 0);
        break;
    case FAULT_CANCEL:
        make_up(f, op, -ECANCELED, 0);
        make_up(f, op, (int)op->length, 5 + dice(20));
        break;
    case FAULT_FLIP:
        submit_flipped(f, op);
        break;
    case FAULT_ODD:
    case FAULT_DELAY:
    case FAULT_REORDER:
    case FAULT_HANG:
        hold(f, op, fault);
        f->below->ops->submit(f->below, op);
        break;
    default:
        f->below->ops->submit(f->below, op);
    }
}

/* A result from below: for the caller, or to be kept for later? */
static bool pass(struct faulty *f, struct engine_result *r)
{
    for (unsigned i = 0; i < HELD; i++) {
        struct held *h = &f->held[i];
        if (!h->busy || h->made_up || h->op.tag != r->tag)
            continue;
        if (h->fault == FAULT_FLIP) {
            if (!h->op.write && r->result > 0)
                h->op.base[dice((uint32_t)r->result)] ^= 1u << dice(8);
            free(h->copy);
            h->busy = false;
            return true;
        }
        if (h->fault == FAULT_ODD) {
            if (r->result > 1)
                r->result = 1 + (int)dice((uint32_t)r->result - 1);
            h->busy = false;
            return true;
        }
        h->arrived = true;
        h->result = r->result;
        h->due_ms = now_ms() + (h->fault == FAULT_DELAY ? 1 + dice(10) : 20);
        h->behind = h->fault == FAULT_REORDER ? 1 + dice(5) : UINT32_MAX;
        return false;
    }
    for (unsigned i = 0; i < HELD; i++) /* this one overtakes them */
        if (f->held[i].busy && f->held[i].arrived && f->held[i].behind &&
            f->held[i].fault == FAULT_REORDER)
            f->held[i].behind--;
    return true;
}

static bool due(const struct held *h)
{
    if (h->fault == FAULT_HANG)
        return h->epoch != epoch_now();
    return now_ms() >= h->due_ms || (h->fault == FAULT_REORDER && !h->behind);
}

static unsigned faulty_reap(struct engine *e, struct engine_result *results, unsigned n,
                            unsigned timeout_us)
{
    struct faulty *f = faulty_of(e);
    unsigned got = 0, waiting = 0;
    for (unsigned i = 0; i < HELD && got < n; i++) {
        struct held *h = &f->held[i];
        if (!h->busy)
            continue;
        waiting++;
        if (!h->arrived || !due(h))
            continue;
        h->busy = false;
        results[got++] = (struct engine_result){h->op.tag, h->result};
    }
    if (got == n)
        return got;
    if (got)
        timeout_us = 0;
    else if (waiting && timeout_us > 1000)
        timeout_us = 1000;
    struct engine_result below[64];
    unsigned room = n - got < 64 ? n - got : 64;
    unsigned m = f->below->ops->reap(f->below, below, room, timeout_us);
    for (unsigned i = 0; i < m; i++)
        if (pass(f, &below[i]))
            results[got++] = below[i];
    return got;
}

static bool faulty_pin(struct engine *e)
{
    struct faulty *f = faulty_of(e);
    return f->below->ops->pin(f->below);
}

static void faulty_unpin(struct engine *e)
{
    struct faulty *f = faulty_of(e);
    f->below->ops->unpin(f->below);
}

static void faulty_free(struct engine *e)
{
    struct faulty *f = faulty_of(e);
    f->below->ops->free(f->below);
    free(f);
}

static const struct engine_ops faulty_ops = {faulty_submit, faulty_reap, faulty_pin, faulty_unpin,
                                             faulty_free};

static struct engine *wrap(struct engine *below)
{
    if (!below)
        return NULL;
    struct faulty *f = calloc(1, sizeof *f);
    if (!f)
        abort();
    f->engine.ops = &faulty_ops;
    f->below = below;
    return &f->engine;
}

struct engine *__wrap_engine_uring_new(const struct engine_setup *setup, int *error)
{
    *error = faults.uring_error;
    return *error ? NULL : wrap(__real_engine_uring_new(setup, error));
}

struct engine *__wrap_engine_threads_new(const struct engine_setup *setup, int *error)
{
    *error = faults.threads_error;
    faults.making_engine = true;
    struct engine *e = *error ? NULL : wrap(__real_engine_threads_new(setup, error));
    faults.making_engine = false;
    return e;
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    return faults.making_engine && faults.no_threads ? EAGAIN
                                                     : __real_pthread_create(t, a, fn, arg);
}

int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *ring, struct io_uring_params *p)
{
    if (!faults.refused_flags)
        return __real_io_uring_queue_init_params(n, ring, p);
    faults.refused_flags--;
    return -EINVAL;
}

/* The engine of threads has no flags; what is synchronized is the thread's own. */
static int sync_fault(int flags)
{
    int error = 0;
    pthread_mutex_lock(&faults.lock);
    faults.sync_calls += flags != 0;
    if (flags && faults.sync_count) {
        faults.sync_count--;
        faults.done++;
        error = faults.sync_error;
    }
    pthread_mutex_unlock(&faults.lock);
    errno = error;
    return error;
}

ssize_t __wrap_pwritev2(int fd, const struct iovec *v, int n, off_t offset, int flags)
{
    return sync_fault(flags) ? -1 : __real_pwritev2(fd, v, n, offset, flags);
}

/* With 64-bit offsets it has another name. */
ssize_t __wrap_pwritev64v2(int fd, const struct iovec *v, int n, off_t offset, int flags)
{
    return sync_fault(flags) ? -1 : __real_pwritev64v2(fd, v, n, offset, flags);
}

/* ---- copies ---- */

void faults_copy(enum copier_way way, bool begins, unsigned skip, unsigned count)
{
    pthread_mutex_lock(&faults.lock);
    faults.copy[way][begins].skip = skip;
    faults.copy[way][begins].count = count;
    pthread_mutex_unlock(&faults.lock);
}

void faults_copies_late(unsigned times)
{
    pthread_mutex_lock(&faults.lock);
    faults.late = times;
    pthread_mutex_unlock(&faults.lock);
}

struct copies faults_copies(void)
{
    pthread_mutex_lock(&faults.lock);
    struct copies copies = faults.copies;
    pthread_mutex_unlock(&faults.lock);
    return copies;
}

/* Under the lock. */
static bool copy_fails(enum copier_way way, bool begins)
{
    if (faults.copy[way][begins].skip) {
        faults.copy[way][begins].skip--;
        return false;
    }
    if (!faults.copy[way][begins].count)
        return false;
    faults.copy[way][begins].count--;
    faults.copies.failed++;
    return true;
}

/* Under the lock. That of a copy; of none: a free place. */
static struct moving *moving_of(const struct copier *c, unsigned buffer)
{
    for (int i = 0; i < MOVING; i++)
        if (faults.moving[i].copier == c && (!c || faults.moving[i].buffer == buffer))
            return &faults.moving[i];
    abort();
}

int __wrap_copier_begin(struct copier *c, unsigned buffer, enum copier_way way,
                        const struct copier_part *parts, unsigned n)
{
    pthread_mutex_lock(&faults.lock);
    int rc = copy_fails(way, true) ? -EIO : __real_copier_begin(c, buffer, way, parts, n);
    if (!rc) {
        *moving_of(NULL, 0) = (struct moving){c, buffer, 0, copy_fails(way, false)};
        faults.copies.in_a_row = faults.copies.way == way ? faults.copies.in_a_row + 1 : 1;
        faults.copies.way = way;
        if (faults.copies.in_a_row > faults.copies.longest)
            faults.copies.longest = faults.copies.in_a_row;
        faults.copies.begun++;
        faults.copies.under_way++;
        if (faults.copies.under_way > faults.copies.most)
            faults.copies.most = faults.copies.under_way;
    }
    pthread_mutex_unlock(&faults.lock);
    return rc;
}

int __wrap_copier_poll(struct copier *c, unsigned buffer)
{
    pthread_mutex_lock(&faults.lock);
    struct moving *m = moving_of(c, buffer);
    int rc = m->asked++ < faults.late ? 0 : __real_copier_poll(c, buffer);
    faults.copies.asked += rc == 0;
    if (rc && m->fails)
        rc = -EIO;
    if (rc) {
        m->copier = NULL;
        faults.copies.under_way--;
    }
    pthread_mutex_unlock(&faults.lock);
    return rc;
}
