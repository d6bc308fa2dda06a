/*
 * The copier on a real GPU: pages out of a pool and in again, by the kernel and by the copy engine,
 * against a copy of the pool in host memory.
 */
#include "kernels/block_copy_image.h"
#include "kernels/copier.h"
#include "tools/gpu_check.h"
#include "tools/measure.h"

#include <string.h>

enum { POOL = 32 << 20, BUFFER = 4 << 20, ROUNDS = 6 };

struct scene {
    struct gpu *g;
    uint64_t pool;
    uint8_t *want; /* what the pool must be; pinned */
    uint8_t *seen;
    void *stream;
    struct copier *c;
    uint64_t seed, n;
};

static uint64_t next(struct scene *s, uint64_t below)
{
    return random_word(s->seed, s->n++) % below;
}

static bool fill(struct scene *s)
{
    for (uint64_t i = 0; i < POOL; i += 8) {
        uint64_t word = random_word(s->seed, s->n++);
        memcpy(s->want + i, &word, 8);
    }
    const struct cuda_driver *cu = &s->g->cu;
    return gpu_ok(s->g, cu->cuMemcpyHtoDAsync(s->pool, s->want, POOL, s->stream),
                  "cuMemcpyHtoDAsync") &&
           gpu_ok(s->g, cu->cuStreamSynchronize(s->stream), "cuStreamSynchronize");
}

static bool pool_is_right(struct scene *s)
{
    const struct cuda_driver *cu = &s->g->cu;
    return gpu_ok(s->g, cu->cuMemcpyDtoHAsync(s->seen, s->pool, POOL, s->stream),
                  "cuMemcpyDtoHAsync") &&
           gpu_ok(s->g, cu->cuStreamSynchronize(s->stream), "cuStreamSynchronize") &&
           memcmp(s->seen, s->want, POOL) == 0;
}

static bool move(struct scene *s, unsigned buffer, enum copier_way way, const struct copier_part *p,
                 unsigned n)
{
    uint64_t end = clock_ns() + 20000000000u;
    int rc = copier_begin(s->c, buffer, way, p, n);
    while (!rc && (rc = copier_poll(s->c, buffer)) == 0 && clock_ns() < end)
        continue;
    if (rc != 1)
        finding("a copy of %u pages: %s", n, rc ? copier_why(s->c) : "not over after 20 s");
    return rc == 1;
}

/* Pages of one size, in the order of a shuffle of all that the pool has; packed in the buffer. */
static unsigned choose(struct scene *s, uint64_t bytes, struct copier_part *p)
{
    static uint32_t order[POOL / 256];
    uint64_t pitch = (bytes + COPIER_ALIGN - 1) / COPIER_ALIGN * COPIER_ALIGN;
    uint32_t all = (uint32_t)(POOL / pitch), most = (uint32_t)(BUFFER / pitch);
    if (all > sizeof order / sizeof *order)
        all = sizeof order / sizeof *order;
    if (most > COPIER_PARTS)
        most = COPIER_PARTS;
    for (uint32_t i = 0; i < all; i++)
        order[i] = i;
    shuffle(order, all, random_word(s->seed, s->n++));
    unsigned n = 1 + (unsigned)next(s, most);
    for (unsigned i = 0; i < n; i++)
        p[i] = (struct copier_part){order[i] * pitch, i * pitch, bytes};
    return n;
}

static bool round_trip(struct scene *s, uint64_t bytes)
{
    static struct copier_part p[COPIER_PARTS];
    unsigned n = choose(s, bytes, p);
    int buffer = copier_take(s->c);
    uint8_t *at = copier_buffer(s->c, (unsigned)buffer);
    if (!move(s, (unsigned)buffer, COPIER_OUT, p, n))
        return false;
    for (unsigned i = 0; i < n; i++) {
        if (memcmp(at + p[i].buffer, s->want + p[i].pool, bytes) != 0) {
            finding("page %u of %u of %llu bytes came out of the GPU with other bytes", i, n,
                    (unsigned long long)bytes);
            return false;
        }
        for (uint64_t k = 0; k < bytes; k++)
            at[p[i].buffer + k] ^= (uint8_t)(0xa5 + k);
        memcpy(s->want + p[i].pool, at + p[i].buffer, bytes);
    }
    if (!move(s, (unsigned)buffer, COPIER_IN, p, n))
        return false;
    copier_give(s->c, (unsigned)buffer);
    if (pool_is_right(s))
        return true;
    finding("after %u pages of %llu bytes went to the GPU, its memory is not what it must be", n,
            (unsigned long long)bytes);
    return false;
}

static void one_way(struct scene *s, const char *name, uint64_t engine_from)
{
    static const uint64_t sizes[] = {1, 1000, 4096, 8208, 65536, 100003, 524288, 2097152};
    struct copier_config config = {.pool = s->pool,
                                   .pool_bytes = POOL,
                                   .buffer_bytes = BUFFER,
                                   .n_buffers = 2,
                                   .numa_node = -1,
                                   .cuda = &s->g->cu,
                                   .context = s->g->context,
                                   .engine_from = engine_from};
    char why[400], note[1024];
    s->c = copier_new(&config, why, sizeof why, note, sizeof note);
    if (!s->c) {
        finding("%s", why);
        return;
    }
    bool right = true;
    for (unsigned i = 0; right && i < ROUNDS * sizeof sizes / sizeof *sizes; i++)
        right = round_trip(s, sizes[i % (sizeof sizes / sizeof *sizes)]);
    copier_free(s->c);
    if (right)
        fine("pages of 1 byte to 2 MiB out and in again, by the %s%s%s", name, note[0] ? ": " : "",
             note);
}

void gpu_check_copies(struct gpu *g)
{
    struct scene s = {.g = g, .seed = 1};
    s.want = gpu_pinned(g, POOL);
    s.seen = gpu_pinned(g, POOL);
    if (s.want && s.seen && gpu_ok(g, g->cu.cuMemAlloc(&s.pool, POOL), "cuMemAlloc") &&
        gpu_ok(g, g->cu.cuStreamCreate(&s.stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate") &&
        fill(&s)) {
        if (block_copy_image_bytes)
            one_way(&s, "kernel", COPIER_NEVER);
        else
            finding("this build has no kernels: install nvcc and build again");
        one_way(&s, "copy engine", COPIER_ENGINE);
    }
    if (s.stream)
        g->cu.cuStreamDestroy(s.stream);
    if (s.pool)
        g->cu.cuMemFree(s.pool);
    gpu_unpin(g, s.want);
    gpu_unpin(g, s.seen);
}
