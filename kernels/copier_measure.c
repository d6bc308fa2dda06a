/*
 * copier_measure.c - which pages go by the copy engine, and which by the kernel, on this machine.
 *
 * A copy of the engine's costs some microseconds by itself, whatever its size; the kernel's way has
 * a fixed price (a list, a launch, the stage) and then none a page. So small pages want the kernel,
 * unless they are few. Where the lines are differs from GPU to GPU and from bus to bus by a factor
 * of ten, so both are timed when the copier starts, out of the pool into a buffer:
 *
 *   engine_from   a whole buffer in pages of 4 KiB, 8 KiB, ...: the size from which on the engine
 *                 is as fast for all that are larger
 *   engine_few    1, 2, 4, ... pages of FEW_BYTES: the number up to which it is as fast
 *
 * Only OUT is measured, because that changes nothing in the pool; IN has the same steps. The best
 * of three counts: what else the GPU does only makes one slower. It takes some tens of
 * milliseconds.
 */
#include "kernels/copier_private.h"
#include "shm/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    LEAST = 4096,
    MOST = 4 << 20,
    FEW_BYTES = 16 << 10,
    FEW_MOST = 64,
    TRIES = 3,
};

typedef int copy_fn(struct copier_cuda *c, unsigned buffer, enum copier_way way,
                    const struct copier_part *parts, unsigned n);

static double now(void)
{
    return (double)clock_ns() * 1e-9;
}

/* Pages spread over the pool, one after the other in the buffer: no two are neighbours if the pool
 * has room. Returns how many, `most` at most. */
static unsigned spread(struct copier_cuda *c, uint64_t bytes, unsigned most)
{
    const struct copier_config *g = &c->copier.config;
    struct copier_part *p = c->copier.parts;
    uint64_t n = g->buffer_bytes / bytes;
    n = n < most ? n : most;
    n = n < g->pool_bytes / bytes ? n : g->pool_bytes / bytes;
    uint64_t step = n ? g->pool_bytes / n / COPIER_ALIGN * COPIER_ALIGN : 0;
    for (uint64_t i = 0; i < n; i++)
        p[i] = (struct copier_part){i * step, i * bytes, bytes};
    return (unsigned)n;
}

/* Seconds of the parts, the best of TRIES after one to warm up; < 0: it failed. */
static double timed(struct copier_cuda *c, copy_fn *copy, unsigned n)
{
    double best = -1;
    for (int i = 0; i <= TRIES; i++) {
        double began = now();
        if (copy(c, 0, COPIER_OUT, c->copier.parts, n) ||
            copier_checked(c, c->cu->cuStreamSynchronize(c->stream[0]), "a copy"))
            return -1;
        double took = now() - began;
        if (i && (best < 0 || took < best))
            best = took;
    }
    return best;
}

/* Both ways. False: one failed. */
static bool compare(struct copier_cuda *c, unsigned n, double *engine, double *kernel)
{
    *engine = timed(c, copier_by_engine, n);
    *kernel = timed(c, copier_by_kernel, n);
    return *engine >= 0 && *kernel >= 0;
}

int copier_measure(struct copier_cuda *c, char *note, size_t n_note)
{
    double engine, kernel, gb_engine = 0, gb_kernel = 0;
    uint64_t shown = 0, from = COPIER_NEVER;
    for (uint64_t bytes = MOST; bytes >= LEAST; bytes /= 2) {
        unsigned n = spread(c, bytes, COPIER_PARTS);
        if (n < 2) /* nothing to tell them apart by */
            continue;
        if (!compare(c, n, &engine, &kernel))
            return -EIO;
        shown = bytes;
        gb_engine = 1e-9 * (double)(n * bytes) / engine;
        gb_kernel = 1e-9 * (double)(n * bytes) / kernel;
        if (engine > kernel)
            break;
        from = bytes;
    }
    c->engine_from = from;
    for (unsigned n = 1; n <= FEW_MOST && spread(c, FEW_BYTES, n) == n; n *= 2) {
        if (!compare(c, n, &engine, &kernel))
            return -EIO;
        if (engine > kernel)
            break;
        c->engine_few = n;
    }
    size_t used = strlen(note);
    char size[64] = "";
    if (from != COPIER_NEVER)
        snprintf(size, sizeof size, "pages of %llu KiB and more, and ",
                 (unsigned long long)from >> 10);
    snprintf(note + used, n_note - used,
             "%s%sup to %u pages at once go by the copy engine, the others by the kernel (measured "
             "with pages of %llu KiB: %.1f GB/s by the engine, %.1f by the kernel)",
             used ? "; " : "", size, c->engine_few, (unsigned long long)shown >> 10, gb_engine,
             gb_kernel);
    return 0;
}
