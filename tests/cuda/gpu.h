/* gpu.h - what the tests of GPUs share. */
#ifndef TESTS_CUDA_GPU_H
#define TESTS_CUDA_GPU_H

#include "client/prefixd.h"
#include "tests/fake_cuda/fake.h"
#include "tests/worker.h"

/* Both ways to a GPU's memory, for loop tests. */
enum { EXPORTS = 2 };
extern const char *const gpu_exports[EXPORTS]; /* "fd", "ipc" */

/* A daemon of 14 blocks of 4 tokens and 64 bytes, and of two slots, on these GPUs. */
void gpu_host(struct host *h, const char *device, const char *export);

/* What this process has of CUDA; all 0 if it has not even loaded it. */
struct fake_facts gpu_facts(void);
/* From now on; NULL: no faults. */
void gpu_fail(const char *faults);

pfx *gpu_open(const struct host *h, uint64_t map);

#endif
