/*
 * swap_uring.c - the engine on io_uring. The ring is made and used by one thread, which with
 * DEFER_TASKRUN sees completions only when it enters the kernel: so it sleeps nowhere else. A read
 * of the wake-up eventfd is always under way and ends the sleep.
 *
 * The completion queue cannot overflow: it has twice as many places as operations can be in flight.
 * What the kernel does not take at a submission stays in the queue, for the next one.
 */
#include "daemon/log.h"
#include "daemon/swap_engine.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES (1ull << 28) /* registered at once; the kernel's limit is 1 GiB */
#define NEEDS       (IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP)

enum { ENTRIES_MIN = 8, REGISTERED_MAX = 16384, RANGES_MAX = 32 };

struct range { /* of that memory */
    uint8_t *base;
    uint64_t bytes;
    unsigned first; /* number of its first chunk */
};

struct uring {
    struct engine engine;
    struct io_uring ring;
    int wake_fd;
    uint64_t wake_count; /* read into it */
    bool wake_armed;
    bool fixed_files;
    int *fds;
    struct range range[RANGES_MAX];
    unsigned n_ranges, n_chunks, n_pinned;
};

static struct uring *uring_of(struct engine *e)
{
    return (struct uring *)(void *)e;
}

/* ---- the pool, or what stands for it, pinned ---- */

/* The chunk that holds all of it, or -1. */
static int chunk_of(const struct uring *u, const uint8_t *base, uint32_t length)
{
    for (unsigned i = 0; u->n_pinned && i < u->n_ranges; i++) {
        const struct range *r = &u->range[i];
        if (base < r->base || base >= r->base + r->bytes)
            continue;
        uint64_t at = (uint64_t)(base - r->base), chunk = at / CHUNK_BYTES;
        bool whole = chunk == (at + length - 1) / CHUNK_BYTES && at + length <= r->bytes;
        unsigned number = r->first + (unsigned)chunk;
        return whole && number < u->n_pinned ? (int)number : -1;
    }
    return -1;
}

static void chunk_at(const struct uring *u, unsigned number, struct iovec *v)
{
    unsigned i = u->n_ranges - 1;
    while (number < u->range[i].first)
        i--;
    uint64_t at = (number - u->range[i].first) * CHUNK_BYTES, rest = u->range[i].bytes - at;
    *v = (struct iovec){u->range[i].base + at, rest < CHUNK_BYTES ? rest : CHUNK_BYTES};
}

static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* Pinning takes the memory at once: a pool that is mostly untouched, and large, is left as it is.
 */
static void plan_chunks(struct uring *u, const struct engine_setup *setup)
{
    uint64_t bytes = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < setup->n_memory && i < RANGES_MAX; i++) {
        u->range[i] = (struct range){setup->memory[i].iov_base, setup->memory[i].iov_len, n};
        bytes += setup->memory[i].iov_len;
        n += (unsigned)((setup->memory[i].iov_len + CHUNK_BYTES - 1) / CHUNK_BYTES);
        u->n_ranges++;
    }
    if (!n)
        return;
    uint64_t available = available_bytes();
    if (bytes > available / 2 || n > REGISTERED_MAX) {
        log_info("--swap: the pool is %s to be registered with io_uring",
                 available ? "too large beside the free memory"
                           : "not known to be small enough beside the free memory");
        return;
    }
    int error = io_uring_register_buffers_sparse(&u->ring, n);
    if (error)
        log_info("--swap: the pool's memory is not registered with io_uring (%s)",
                 strerror(-error));
    else
        u->n_chunks = n;
}

static bool uring_pin(struct engine *e)
{
    struct uring *u = uring_of(e);
    if (u->n_pinned >= u->n_chunks)
        return false;
    struct iovec v;
    chunk_at(u, u->n_pinned, &v);
    int rc = io_uring_register_buffers_update_tag(&u->ring, u->n_pinned, &v, NULL, 1);
    if (rc == 1) {
        u->n_pinned++;
        return true;
    }
    log_info(
        "--swap: %u of %u parts of the pool are registered with io_uring (%s); raise the limit "
        "of locked memory (ulimit -l, LimitMEMLOCK=)",
        u->n_pinned, u->n_chunks, strerror(rc < 0 ? -rc : ENOMEM));
    u->n_chunks = u->n_pinned;
    return false;
}

/* Until a chunk is pinned again, in the place that it had, transfers of it go without. */
static void uring_unpin(struct engine *e)
{
    uring_of(e)->n_pinned = 0;
}

/* ---- submission ---- */

/* There is a place: the ring has one for each operation in flight, and for ours. */
static struct io_uring_sqe *next_sqe(struct uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe)
        abort();
    return sqe;
}

static void arm_wake(struct uring *u)
{
    struct io_uring_sqe *sqe = next_sqe(u);
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof u->wake_count, 0);
    sqe->user_data = ENGINE_TAG_NONE;
    u->wake_armed = true;
}

static void uring_submit(struct engine *e, const struct engine_op *op)
{
    struct uring *u = uring_of(e);
    struct io_uring_sqe *sqe = next_sqe(u);
    int chunk = chunk_of(u, op->base, op->length);
    int fd = u->fixed_files ? op->file : u->fds[op->file];
    if (chunk < 0 && op->write)
        io_uring_prep_write(sqe, fd, op->base, op->length, op->offset);
    else if (chunk < 0)
        io_uring_prep_read(sqe, fd, op->base, op->length, op->offset);
    else if (op->write)
        io_uring_prep_write_fixed(sqe, fd, op->base, op->length, op->offset, chunk);
    else
        io_uring_prep_read_fixed(sqe, fd, op->base, op->length, op->offset, chunk);
    if (u->fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    sqe->user_data = op->tag;
}

/* ---- completion ---- */

static unsigned collect(struct uring *u, struct engine_result *results, unsigned n)
{
    unsigned got = 0, seen = 0, head;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        if (got == n)
            break;
        seen++;
        if (cqe->user_data == ENGINE_TAG_NONE)
            u->wake_armed = false;
        else
            results[got++] = (struct engine_result){cqe->user_data, cqe->res};
    }
    io_uring_cq_advance(&u->ring, seen);
    return got;
}

/* The kernel may be short of memory, or refuse for a moment: what was queued stays queued. */
static unsigned uring_reap(struct engine *e, struct engine_result *results, unsigned n,
                           unsigned timeout_us)
{
    struct uring *u = uring_of(e);
    struct __kernel_timespec limit = {.tv_sec = timeout_us / 1000000,
                                      .tv_nsec = timeout_us % 1000000 * 1000ll};
    struct io_uring_cqe *cqe;
    if (!u->wake_armed)
        arm_wake(u);
    int rc = timeout_us ? io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &limit, NULL)
                        : io_uring_submit_and_get_events(&u->ring);
    unsigned got = collect(u, results, n);
    if (rc < 0 && rc != -ETIME && rc != -EINTR && !got)
        usleep(1000);
    return got;
}

/* ---- begin and end ---- */

/* Our own read writes to us: it must be over before the memory goes. */
static void uring_free(struct engine *e)
{
    struct uring *u = uring_of(e);
    uint64_t one = 1;
    ssize_t written = write(u->wake_fd, &one, sizeof one);
    while (written == sizeof one && u->wake_armed) {
        struct io_uring_cqe *cqe;
        struct engine_result none;
        struct __kernel_timespec limit = {.tv_sec = 1};
        (void)io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &limit, NULL);
        collect(u, &none, 1);
    }
    io_uring_queue_exit(&u->ring);
    free(u->fds);
    free(u);
}

static const struct engine_ops uring_ops = {uring_submit, uring_reap, uring_pin, uring_unpin,
                                            uring_free};

static int ring_make(struct io_uring *ring, unsigned entries)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL,
        IORING_SETUP_COOP_TASKRUN,
        0,
    };
    static const char *const names[] = {"SINGLE_ISSUER, DEFER_TASKRUN, SUBMIT_ALL", "COOP_TASKRUN",
                                        "no flags"};
    int error = 0;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        struct io_uring_params p = {.flags = flags[i]};
        error = io_uring_queue_init_params(entries, ring, &p);
        if (error == -EINVAL) /* an older kernel */
            continue;
        if (!error && (p.features & NEEDS) != NEEDS) {
            io_uring_queue_exit(ring);
            return -ENOSYS;
        }
        if (!error)
            log_info("--swap: io_uring with %s", names[i]);
        return error;
    }
    return error;
}

struct engine *engine_uring_new(const struct engine_setup *setup, int *error)
{
    struct uring *u = calloc(1, sizeof *u);
    int *fds = calloc(setup->n_fds + 1, sizeof *fds);
    unsigned entries = ENTRIES_MIN;
    while (entries < setup->depth + 1)
        entries *= 2;
    *error = u && fds ? ring_make(&u->ring, entries) : -ENOMEM;
    if (*error) {
        free(fds);
        free(u);
        return NULL;
    }
    memcpy(fds, setup->fds, setup->n_fds * sizeof *fds);
    u->engine.ops = &uring_ops;
    u->fds = fds;
    u->wake_fd = setup->wake_fd;
    u->fixed_files = setup->n_fds && !io_uring_register_files(&u->ring, fds, setup->n_fds);
    (void)io_uring_ring_dontfork(&u->ring);
    plan_chunks(u, setup);
    return &u->engine;
}
