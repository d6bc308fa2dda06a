/*
 * The table. Everything moves the same bytes, pages in a shuffled order, and is measured in this
 * run; the best of TRIES. GB/s count a byte once, although a copy within the GPU reads and writes
 * it.
 *
 *   gather, scatter   the kernel with the whole GPU to itself, against one plain copy on the device
 *   out, in           the copier with four buffers under way, against one
 *                     cuMemcpyDtoH or HtoD to pinned memory
 */
#include "kernels/block_copy.h"
#include "kernels/block_copy_image.h"
#include "kernels/copier.h"
#include "tools/gpu_check.h"
#include "tools/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIES = 5,
    COPIES = 4, /* in one measurement on the device, so that a launch counts little */
    BUFFER = 8 << 20,
    BUFFERS = 4,
    PROCESSORS = 16, /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    BLOCKS_EACH = 4, /* of a launch, for each processor */
};

static const uint64_t page_sizes[] = {64 << 10, 512 << 10, 2 << 20};

struct course {
    struct gpu *g;
    uint64_t pool, stage, list; /* on the device */
    uint8_t *host;              /* pinned */
    struct copy_piece *pieces;  /* pinned */
    uint32_t *order;            /* of the pages */
    void *stream, *module, *kernel;
    unsigned n_blocks;
};

/* ---- on the device ------------------------------------------------------------------------- */

enum job { DEVICE_COPY, KERNEL, HOST_OUT, HOST_IN };

static bool submit(struct course *s, enum job job, uint32_t n_pages, uint64_t page)
{
    const struct cuda_driver *cu = &s->g->cu;
    uint32_t chunks = (uint32_t)copy_chunks(page);
    void *parameters[] = {&s->list, &n_pages, &chunks};
    switch (job) {
    case DEVICE_COPY:
        return gpu_ok(s->g, cu->cuMemcpyDtoDAsync(s->stage, s->pool, s->g->bytes, s->stream),
                      "cuMemcpyDtoDAsync");
    case KERNEL:
        return gpu_ok(s->g,
                      cu->cuLaunchKernel(s->kernel, s->n_blocks, 1, 1, COPY_THREADS, 1, 1, 0,
                                         s->stream, parameters, NULL),
                      "cuLaunchKernel");
    case HOST_OUT:
        return gpu_ok(s->g, cu->cuMemcpyDtoHAsync(s->host, s->pool, s->g->bytes, s->stream),
                      "cuMemcpyDtoHAsync");
    case HOST_IN:
        return gpu_ok(s->g, cu->cuMemcpyHtoDAsync(s->pool, s->host, s->g->bytes, s->stream),
                      "cuMemcpyHtoDAsync");
    }
    return false;
}

/* GB/s; 0 after a finding. */
static double speed(struct course *s, enum job job, uint32_t n_pages, uint64_t page)
{
    int copies = job == DEVICE_COPY || job == KERNEL ? COPIES : 1;
    double best = 0, bytes = (double)s->g->bytes * copies;
    for (int i = 0; i <= TRIES; i++) {
        uint64_t began = clock_ns();
        for (int k = 0; k < copies; k++)
            if (!submit(s, job, n_pages, page))
                return 0;
        if (!gpu_ok(s->g, s->g->cu.cuStreamSynchronize(s->stream), "cuStreamSynchronize"))
            return 0;
        double rate = bytes / (double)(clock_ns() - began);
        if (i && rate > best) /* the first one warms up */
            best = rate;
    }
    return best;
}

static double kernel_speed(struct course *s, uint64_t page, bool gather)
{
    const struct cuda_driver *cu = &s->g->cu;
    uint32_t n = (uint32_t)(s->g->bytes / page);
    if (!s->kernel)
        return 0;
    shuffle(s->order, n, page);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t there = s->stage + i * page, here = s->pool + s->order[i] * page;
        s->pieces[i] = gather ? (struct copy_piece){there, here, page}
                              : (struct copy_piece){here, there, page};
    }
    if (!gpu_ok(s->g, cu->cuMemcpyHtoDAsync(s->list, s->pieces, n * sizeof *s->pieces, s->stream),
                "cuMemcpyHtoDAsync") ||
        !gpu_ok(s->g, cu->cuStreamSynchronize(s->stream), "cuStreamSynchronize"))
        return 0;
    return speed(s, KERNEL, n, page);
}

/* ---- the copier ------------------------------------------------------------------------------ */

/* All pages once, in order[], a buffer's worth a time. */
static bool copy_all(struct course *s, struct copier *c, enum copier_way way, uint64_t page)
{
    static struct copier_part p[COPIER_PARTS];
    uint32_t n = (uint32_t)(s->g->bytes / page), each = (uint32_t)(BUFFER / page), at = 0;
    unsigned moving = 0; /* a bit a buffer */
    while (at < n || moving) {
        int buffer = at < n ? copier_take(c) : -1;
        if (buffer >= 0) {
            uint32_t k = 0;
            for (; k < each && at < n; k++, at++)
                p[k] = (struct copier_part){s->order[at] * page, k * page, page};
            if (copier_begin(c, (unsigned)buffer, way, p, k)) {
                finding("%s", copier_why(c));
                return false;
            }
            moving |= 1u << buffer;
        }
        for (unsigned b = 0; b < BUFFERS; b++) {
            int rc = moving >> b & 1 ? copier_poll(c, b) : 0;
            if (rc < 0) {
                finding("%s", copier_why(c));
                return false;
            }
            if (rc) {
                moving &= ~(1u << b);
                copier_give(c, b);
            }
        }
    }
    return true;
}

static double copier_speed(struct course *s, struct copier *c, enum copier_way way, uint64_t page)
{
    double best = 0;
    shuffle(s->order, (uint32_t)(s->g->bytes / page), page + 1);
    for (int i = 0; i <= TRIES; i++) {
        uint64_t began = clock_ns();
        if (!copy_all(s, c, way, page))
            return 0;
        double rate = (double)s->g->bytes / (double)(clock_ns() - began);
        if (i && rate > best)
            best = rate;
    }
    return best;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void say(double rate, double against)
{
    if (rate > 0 && against > 0)
        printf(" %.1f (%.0f%%) |", rate, 100 * rate / against);
    else
        printf(" none |");
}

static void table(struct course *s, struct copier *c, const char *note)
{
    double device = speed(s, DEVICE_COPY, 0, 0), out = speed(s, HOST_OUT, 0, 0),
           in = speed(s, HOST_IN, 0, 0);
    printf("\n%llu MiB on %s; GB/s, and what that is of a plain copy:\n\n",
           (unsigned long long)s->g->bytes >> 20, s->g->name);
    printf("| pages | gather | scatter | copier, out | copier, in |\n");
    printf("| --- | --- | --- | --- | --- |\n");
    printf("| one copy (cuMemcpy) | %.1f | %.1f | %.1f | %.1f |\n", device, device, out, in);
    for (unsigned i = 0; i < sizeof page_sizes / sizeof *page_sizes; i++) {
        uint64_t page = page_sizes[i];
        printf("| %llu KiB |", (unsigned long long)page >> 10);
        say(kernel_speed(s, page, true), device);
        say(kernel_speed(s, page, false), device);
        say(copier_speed(s, c, COPIER_OUT, page), out);
        say(copier_speed(s, c, COPIER_IN, page), in);
        printf("\n");
        fflush(stdout);
    }
    printf("\ncopier: %s\n", note);
}

static bool prepare(struct course *s)
{
    const struct cuda_driver *cu = &s->g->cu;
    uint64_t most = s->g->bytes / page_sizes[0], lists = most * sizeof *s->pieces;
    int processors = 0;
    s->host = gpu_pinned(s->g, s->g->bytes);
    s->pieces = gpu_pinned(s->g, lists);
    s->order = calloc(most, sizeof *s->order);
    for (uint32_t i = 0; s->order && i < most; i++)
        s->order[i] = i;
    if (!s->host || !s->pieces || !s->order ||
        !gpu_ok(s->g, cu->cuMemAlloc(&s->pool, s->g->bytes), "cuMemAlloc") ||
        !gpu_ok(s->g, cu->cuMemAlloc(&s->stage, s->g->bytes), "cuMemAlloc") ||
        !gpu_ok(s->g, cu->cuMemAlloc(&s->list, lists), "cuMemAlloc") ||
        !gpu_ok(s->g, cu->cuStreamCreate(&s->stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate"))
        return false;
    cu->cuDeviceGetAttribute(&processors, PROCESSORS, s->g->device);
    s->n_blocks = BLOCKS_EACH * (unsigned)(processors > 0 ? processors : 1);
    return !block_copy_image_bytes ||
           (gpu_ok(s->g, cu->cuModuleLoadData(&s->module, block_copy_image), "cuModuleLoadData") &&
            gpu_ok(s->g, cu->cuModuleGetFunction(&s->kernel, s->module, COPY_KERNEL),
                   "cuModuleGetFunction"));
}

static void clean_up(struct course *s)
{
    const struct cuda_driver *cu = &s->g->cu;
    uint64_t memory[] = {s->pool, s->stage, s->list};
    if (s->stream)
        cu->cuStreamDestroy(s->stream);
    if (s->module)
        cu->cuModuleUnload(s->module);
    for (unsigned i = 0; i < 3; i++)
        if (memory[i])
            cu->cuMemFree(memory[i]);
    gpu_unpin(s->g, s->host);
    gpu_unpin(s->g, s->pieces);
    free(s->order);
}

void gpu_check_speed(struct gpu *g)
{
    struct course s = {.g = g};
    char why[400], note[1024];
    if (prepare(&s)) {
        struct copier_config config = {.pool = s.pool,
                                       .pool_bytes = g->bytes,
                                       .buffer_bytes = BUFFER,
                                       .n_buffers = BUFFERS,
                                       .numa_node = -1,
                                       .cuda = &g->cu,
                                       .context = g->context,
                                       .engine_from = COPIER_MEASURE};
        struct copier *c = copier_new(&config, why, sizeof why, note, sizeof note);
        if (c)
            table(&s, c, note);
        else
            finding("%s", why);
        copier_free(c);
    }
    clean_up(&s);
}
