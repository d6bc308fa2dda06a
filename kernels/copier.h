/*
 * copier.h - moves pages between a device's pool and host memory, many at a time, without waiting.
 *
 *      pool (GPU)                                   buffers (host, pinned; two or more)
 *      | 3 |   | 7 | 8 |      | 1 |    --OUT-->    | 7 | 1 | 3 | 8 |    --> disk, memory
 *                                      <--IN---
 *
 * The caller owns the life of a buffer, and says which part of the pool is where in it:
 *
 *      take -> begin OUT -> poll until it is over -> use what is in it -> give
 *      take -> fill it   -> begin IN -> poll until it is over          -> give
 *
 * Several buffers may be under way; there is no order between them, so a page that one of them
 * writes belongs to it alone until it is over. One thread at a time uses a copier.
 *
 *   copier.c           what is common, and host pools: memcpy, in steps
 *   copier_cuda.c      GPUs: the kernel and one large copy, or the copy engine
 *   copier_measure.c   which of the two is for what
 */
#ifndef KERNELS_COPIER_H
#define KERNELS_COPIER_H

#include "kernels/cuda_driver.h"

struct copier;

enum { COPIER_PARTS = 4096, COPIER_ALIGN = 16, COPIER_BUFFERS = 16, COPIER_WAIT_MS = 5000 };

/* Offsets. Parts are fast where the pool's is a multiple of COPIER_ALIGN; the buffer's must be.
 * What stands between two parts in the buffer is lost. */
struct copier_part {
    uint64_t pool;
    uint64_t buffer;
    uint64_t bytes;
};

enum copier_way { COPIER_OUT, COPIER_IN };

#define COPIER_MEASURE 0          /* when it starts; takes a fraction of a second */
#define COPIER_NEVER   UINT64_MAX /* the kernel does all */
#define COPIER_ENGINE  1          /* the copy engine does all: no kernel, nor room for stages */

struct copier_config {
    uint64_t pool; /* its address: the device's, or a host pool's */
    uint64_t pool_bytes;
    uint64_t buffer_bytes; /* of one buffer */
    unsigned n_buffers;
    int numa_node;                  /* for the buffers; -1: anywhere */
    const struct cuda_driver *cuda; /* NULL: a host pool, and nothing below counts */
    void *context;                  /* the device's; outlives the copier */
    uint64_t engine_from;           /* parts of so many bytes go by the copy engine */
    bool *stuck;                    /* the device's, for all its copiers: see copiers_free */
};

/* NULL and a sentence in why. `note` receives one line for the log: how it will work, and what
 * could not be had. */
struct copier *copier_new(const struct copier_config *config, char *why, size_t n_why, char *note,
                          size_t n_note);
/* Waits for what is under way in any of them (some may be NULL), COPIER_WAIT_MS at most, before it
 * frees the first. What has not come back may use buffers and pool as long as the process lives,
 * and most calls of the driver would wait for it: then *stuck is set, and no copier of the device
 * frees anything. So those of a device go together. All are NULL then. */
void copiers_free(struct copier **all, unsigned n);
/* One alone. */
void copier_free(struct copier *c);

/* All buffers, one after the other, as long as the copier lives. */
uint8_t *copier_buffers(const struct copier *c);
uint8_t *copier_buffer(const struct copier *c, unsigned buffer);

/* A free one, or -1. */
int copier_take(struct copier *c);
void copier_give(struct copier *c, unsigned buffer);

/* 0. -EINVAL: a part is not within the pool or the buffer, there are too many, or two of them would
 * write the same bytes: nothing happened. -EIO: the device refused; what was written is not to be
 * trusted, and nothing is under way any more. */
int copier_begin(struct copier *c, unsigned buffer, enum copier_way way,
                 const struct copier_part *parts, unsigned n);
/* 1: over; 0: not yet; -EIO: over, and what was written is not to be trusted. */
int copier_poll(struct copier *c, unsigned buffer);
/* A sentence about the last -EINVAL or -EIO. */
const char *copier_why(const struct copier *c);

#endif
