/*
 * gpu_check.h - what only a GPU can show, in one program (tools/gpu-check.sh): that pages are
 * copied right, that processes share a pool, that memory comes back after every kill, and how fast
 * it is.
 *
 *   gpu_check.c          start, the verdict
 *   gpu_check_copy.c     the copier and the kernels against memcpy
 *   gpu_check_share.c    a daemon and workers, with each export; kill -9 of both
 *   gpu_check_worker.c   such a worker: a process of its own
 *   gpu_check_speed.c    the table
 */
#ifndef TOOLS_GPU_CHECK_H
#define TOOLS_GPU_CHECK_H

#include "kernels/cuda_driver.h"

#include <stdbool.h>
#include <stdint.h>

enum { GPU_EXIT_NONE = 77 /* no driver, or no GPU: nothing was checked */ };

struct gpu {
    struct cuda_driver cu;
    int device;
    void *context; /* current in this thread */
    char name[96], uuid[CUDA_UUID_TEXT];
    uint64_t bytes; /* of what is measured */
};

/* The driver is open: this device, its context current. False after a finding. */
bool gpu_use(struct gpu *g, int device);
/* Page-aligned host memory that is pinned. NULL after a finding. */
void *gpu_pinned(struct gpu *g, uint64_t bytes);
void gpu_unpin(struct gpu *g, void *at);
/* True: CUDA_OK; else a finding. */
bool gpu_ok(const struct gpu *g, int result, const char *what);

/* Something is wrong: a sentence, and the verdict. */
void finding(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of what went well. */
void fine(const char *format, ...) __attribute__((format(printf, 1, 2)));

void gpu_check_copies(struct gpu *g);
void gpu_check_sharing(struct gpu *g);
void gpu_check_speed(struct gpu *g);

/* An exit status: 0, or 1 after a sentence. "pool": all of it is memory; "write": fill
 * blocks and publish them; "read": find and
 * compare them; "hold": read, and stay. It says "done" on stdout when it has done that. */
int gpu_check_worker(const char *socket, const char *task);
enum { WORKER_BLOCKS = 8, WORKER_BLOCK_TOKENS = 16, WORKER_BLOCK_BYTES = 2 << 20 };

#endif
