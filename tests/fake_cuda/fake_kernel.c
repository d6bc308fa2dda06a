/*
 * Kernels: a table of names, each with the code that the GPU would run, compiled for the CPU. The
 * image is only looked at for being one.
 *
 * What a launch of block_copy uses stands in its list, and that is not known before it runs: the
 * list may be on its way. So of the pages nothing is checked but that they are device memory.
 */
#include "kernels/block_copy.h"
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_FOUND = 500 };
static const uint32_t FATBIN = 0xba55ed50;

struct launch {
    uint64_t list;
    uint32_t n_pieces, chunks_each, n_blocks, n_threads;
};

static unsigned n_modules;

static void run_block_copy(void *arg)
{
    struct launch *l = arg;
    struct copy_piece *pieces = calloc(l->n_pieces + 1, sizeof *pieces);
    if (!pieces)
        fake_die("cuLaunchKernel: no memory");
    memcpy(pieces, fake_span(l->list, l->n_pieces * sizeof *pieces, true, COPY_KERNEL),
           l->n_pieces * sizeof *pieces);
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        struct copy_piece *p = &pieces[i];
        if (copy_chunks(p->bytes) > l->chunks_each)
            fake_die("block_copy: piece %u has more than %u chunks", i, l->chunks_each);
        p->to = (uintptr_t)fake_span(p->to, p->bytes, true, COPY_KERNEL);
        p->from = (uintptr_t)fake_span(p->from, p->bytes, true, COPY_KERNEL);
    }
    for (uint32_t b = 0; b < l->n_blocks; b++)
        for (uint32_t t = 0; t < l->n_threads; t++)
            block_copy_lane(pieces, l->n_pieces, l->chunks_each,
                            (struct copy_place){b, l->n_blocks, t, l->n_threads});
    free(pieces);
    free(l);
}

static int launch_block_copy(const struct launch *grid, void **parameters, void *stream)
{
    struct launch *l = malloc(sizeof *l);
    if (!l)
        fake_die("cuLaunchKernel: no memory");
    *l = *grid;
    l->list = *(const uint64_t *)parameters[0];
    l->n_pieces = *(const uint32_t *)parameters[1];
    l->chunks_each = *(const uint32_t *)parameters[2];
    if (l->n_threads != COPY_THREADS)
        fake_die("block_copy is compiled for %d threads a block, not %u", COPY_THREADS,
                 l->n_threads);
    const struct fake_use use = {l->list, l->n_pieces * sizeof(struct copy_piece), false};
    return fake_submit(stream, COPY_KERNEL, &use, 1, run_block_copy, l);
}

static const struct kernel {
    const char *name;
    int (*launch)(const struct launch *grid, void **parameters, void *stream);
} kernels[] = {
    {COPY_KERNEL, launch_block_copy},
};

int fake_cuModuleLoadData(void **module, const void *image)
{
    FAKE_ENTER();
    uint32_t magic;
    (void)fake_current("cuModuleLoadData");
    memcpy(&magic, image, sizeof magic);
    if (magic != FATBIN)
        return CUDA_INVALID_IMAGE;
    pthread_mutex_lock(&fake_lock);
    n_modules++;
    pthread_mutex_unlock(&fake_lock);
    *module = malloc(1);
    return *module ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

int fake_cuModuleUnload(void *module)
{
    FAKE_ENTER();
    (void)fake_current("cuModuleUnload");
    pthread_mutex_lock(&fake_lock);
    if (!n_modules--)
        fake_die("cuModuleUnload: no module is loaded");
    pthread_mutex_unlock(&fake_lock);
    free(module);
    return CUDA_OK;
}

int fake_cuModuleGetFunction(void **function, void *module, const char *name)
{
    FAKE_ENTER();
    (void)fake_current("cuModuleGetFunction");
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0) {
            *(const struct kernel **)function = &kernels[i];
            return CUDA_OK;
        }
    return NOT_FOUND;
}

int fake_cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        void *stream, void **parameters, void **extra)
{
    FAKE_ENTER();
    const struct kernel *k = function;
    if (!grid_x || !block_x || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra)
        fake_die("cuLaunchKernel: a grid of blocks in one dimension, parameters by pointers");
    return k->launch(&(struct launch){.n_blocks = grid_x, .n_threads = block_x}, parameters,
                     stream);
}

void fake_kernels_facts(struct fake_facts *facts)
{
    facts->modules = n_modules;
}
