/*
 * swap_engine.h - what moves bytes between memory and files: io_uring, or threads. The caller keeps
 * the count of what is in flight (at most `depth`), finishes short transfers, and knows its
 * operations by their tag; an engine only carries out and reports, in any order. One thread uses an
 * engine, and it sleeps nowhere but in reap.
 */
#ifndef DAEMON_SWAP_ENGINE_H
#define DAEMON_SWAP_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define ENGINE_TAG_NONE UINT64_MAX /* the engine's own */

struct engine_op {
    uint64_t tag;
    uint64_t offset;
    uint8_t *base;
    uint32_t length;
    uint16_t file; /* index into engine_setup.fds */
    bool write;
};

struct engine_result {
    uint64_t tag;
    int result; /* bytes, or -errno */
};

struct engine {
    const struct engine_ops *ops;
};

struct engine_ops {
    /* Queued; it begins at the next reap at the latest. */
    void (*submit)(struct engine *e, const struct engine_op *op);
    /* Results that are there. If there is none: wait for one, for wake_fd (which is read), or until
     * the time is over. */
    unsigned (*reap)(struct engine *e, struct engine_result *results, unsigned n,
                     unsigned timeout_us);
    /* Pin some more of the memory, so that transfers of it cost less. False: there is no more to
     * do. */
    bool (*pin)(struct engine *e);
    /* What was pinned may not be what is there any more: begin anew. */
    void (*unpin)(struct engine *e);
    /* Nothing may be in flight. */
    void (*free)(struct engine *e);
};

struct engine_setup {
    const int *fds;
    unsigned n_fds;
    unsigned depth;
    int wake_fd;                /* an eventfd, blocking */
    const struct iovec *memory; /* what payload lies in: the pool, or the buffers of its copiers */
    unsigned n_memory;
};

/* NULL: it cannot be had, and -errno in *error. */
struct engine *engine_uring_new(const struct engine_setup *setup, int *error);
struct engine *engine_threads_new(const struct engine_setup *setup, int *error);

#endif
