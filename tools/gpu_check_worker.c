/* A worker of gpu_check: it maps the pool as any engine would, and uses its pages with copies. */
#include "client/prefixd.h"
#include "tools/gpu_check.h"
#include "tools/measure.h"
#include "tools/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = WORKER_BLOCKS * WORKER_BLOCK_TOKENS };

struct worker {
    struct gpu g;
    pfx *c;
    void *stream;
    uint8_t *page; /* pinned */
    uint32_t tokens[TOKENS];
    struct pfx_match match;
};

static bool done(const struct worker *w, const char *what, int rc)
{
    if (rc < 0)
        finding("%s: %s", what, pfx_why(w->c));
    return rc >= 0;
}

static bool start(struct worker *w, const char *socket)
{
    struct pfx_options options = {
        .size = sizeof options, .socket_path = socket, .name = "gpu-check"};
    struct pfx_pool_view view = {.size = sizeof view};
    char why[400];
    if (!done(w, "a worker cannot attach", pfx_open(&options, &w->c)) ||
        !done(w, "pfx_pool_view", pfx_pool_view(w->c, 0, &view)))
        return false;
    if (!view.is_cuda) {
        finding("the pool is not a GPU's");
        return false;
    }
    if (!cuda_open(&w->g.cu, why, sizeof why)) {
        finding("%s", why);
        return false;
    }
    if (!gpu_use(&w->g, cuda_find(&w->g.cu, view.device_uuid)))
        return false;
    w->page = gpu_pinned(&w->g, WORKER_BLOCK_BYTES);
    for (uint32_t i = 0; i < TOKENS; i++)
        w->tokens[i] = 1000 + i;
    return w->page && gpu_ok(&w->g, w->g.cu.cuStreamCreate(&w->stream, CUDA_STREAM_NON_BLOCKING),
                             "cuStreamCreate");
}

static uint64_t word_of(unsigned block, uint64_t i)
{
    return random_word(0x9000 + block, i);
}

static bool put(struct worker *w, unsigned i, uint32_t block)
{
    for (uint64_t k = 0; k < WORKER_BLOCK_BYTES / 8; k++)
        ((uint64_t *)w->page)[k] = word_of(i, k);
    uint64_t to = (uintptr_t)pfx_block_address(w->c, 0, block);
    return gpu_ok(&w->g, w->g.cu.cuMemcpyHtoDAsync(to, w->page, WORKER_BLOCK_BYTES, w->stream),
                  "cuMemcpyHtoDAsync") &&
           gpu_ok(&w->g, w->g.cu.cuStreamSynchronize(w->stream), "cuStreamSynchronize");
}

static bool compare(struct worker *w, unsigned i, uint32_t block)
{
    uint64_t from = (uintptr_t)pfx_block_address(w->c, 0, block);
    memset(w->page, 0, WORKER_BLOCK_BYTES);
    if (!gpu_ok(&w->g, w->g.cu.cuMemcpyDtoHAsync(w->page, from, WORKER_BLOCK_BYTES, w->stream),
                "cuMemcpyDtoHAsync") ||
        !gpu_ok(&w->g, w->g.cu.cuStreamSynchronize(w->stream), "cuStreamSynchronize"))
        return false;
    for (uint64_t k = 0; k < WORKER_BLOCK_BYTES / 8; k++)
        if (((uint64_t *)w->page)[k] != word_of(i, k)) {
            finding("block %u has other bytes than were written by another process", i);
            return false;
        }
    return true;
}

static bool look_up(struct worker *w, unsigned n_tokens, unsigned n_blocks)
{
    struct pfx_lookup_args look = {
        .size = sizeof look, .tokens = w->tokens, .n_tokens = n_tokens, .max_match = n_tokens};
    w->match = (struct pfx_match){.size = sizeof w->match};
    if (!done(w, "pfx_lookup", pfx_lookup(w->c, &look, &w->match)))
        return false;
    if (w->match.n_blocks == n_blocks)
        return true;
    finding("%u blocks were found, not %u", w->match.n_blocks, n_blocks);
    return false;
}

static bool write_all(struct worker *w)
{
    struct pfx_insert_args insert = {
        .size = sizeof insert, .tokens = w->tokens, .n_written = TOKENS};
    struct pfx_insert_result result = {.size = sizeof result};
    uint32_t block[WORKER_BLOCKS];
    if (!look_up(w, TOKENS, 0) ||
        !done(w, "pfx_reserve", pfx_reserve(w->c, w->match.lease, WORKER_BLOCKS, block)))
        return false;
    for (unsigned i = 0; i < WORKER_BLOCKS; i++)
        if (!put(w, i, block[i]))
            return false;
    return done(w, "pfx_insert", pfx_insert(w->c, w->match.lease, &insert, NULL, &result)) &&
           done(w, "pfx_release", pfx_release(w->c, w->match.lease));
}

static bool read_all(struct worker *w)
{
    if (!look_up(w, TOKENS, WORKER_BLOCKS))
        return false;
    for (unsigned i = 0; i < WORKER_BLOCKS; i++)
        if (!compare(w, i, w->match.blocks[i]))
            return false;
    return true;
}

/* ---- the pool ------------------------------------------------------------------------------ */

/* The first and the last word of a page: who it is. */
static bool stamp(struct worker *w, void *page, uint64_t bytes, uint64_t who)
{
    uint64_t *word = (uint64_t *)w->page, at = (uintptr_t)page;
    word[0] = ~who;
    word[1] = who;
    return gpu_ok(&w->g, w->g.cu.cuMemcpyHtoDAsync(at, &word[0], 8, w->stream), "a first word") &&
           gpu_ok(&w->g, w->g.cu.cuMemcpyHtoDAsync(at + bytes - 8, &word[1], 8, w->stream),
                  "a last word") &&
           gpu_ok(&w->g, w->g.cu.cuStreamSynchronize(w->stream), "cuStreamSynchronize");
}

static bool stamped(struct worker *w, void *page, uint64_t bytes, uint64_t who)
{
    uint64_t *word = (uint64_t *)w->page, at = (uintptr_t)page;
    if (!gpu_ok(&w->g, w->g.cu.cuMemcpyDtoHAsync(&word[0], at, 8, w->stream), "a first word") ||
        !gpu_ok(&w->g, w->g.cu.cuMemcpyDtoHAsync(&word[1], at + bytes - 8, 8, w->stream),
                "a last word") ||
        !gpu_ok(&w->g, w->g.cu.cuStreamSynchronize(w->stream), "cuStreamSynchronize"))
        return false;
    if (word[0] == ~who && word[1] == who)
        return true;
    finding("page %llu of the pool lies over another, or is not memory", (unsigned long long)who);
    return false;
}

/* Every block and every slot is memory of its own, where the view says. */
static bool pool_is_whole(struct worker *w)
{
    const struct pfx_geometry *geometry = pfx_geometry(w->c);
    struct pfx_pool_view view = {.size = sizeof view};
    uint64_t block_bytes = geometry->layout.block_bytes,
             slot_bytes = geometry->layout.snapshot_bytes / 8 * 8;
    uint32_t n_blocks = geometry->n_blocks, n_slots = geometry->n_slots,
             *block = calloc(n_blocks + n_slots, sizeof *block), *slot = block + n_blocks;
    bool good = block && look_up(w, 0, 0) &&
                done(w, "pfx_pool_view", pfx_pool_view(w->c, 0, &view)) &&
                done(w, "pfx_reserve", pfx_reserve(w->c, w->match.lease, n_blocks, block));
    for (uint32_t i = 0; good && i < n_slots; i++)
        good =
            done(w, "pfx_snapshot_reserve", pfx_snapshot_reserve(w->c, w->match.lease, &slot[i]));
    for (uint32_t i = 0; good && i < n_blocks + n_slots; i++)
        good = i < n_blocks
                   ? stamp(w, pfx_block_address(w->c, 0, block[i]), block_bytes, i)
                   : stamp(w, pfx_slot_address(w->c, 0, slot[i - n_blocks]), slot_bytes, i);
    for (uint32_t i = 0; good && i < n_blocks + n_slots; i++)
        good =
            i < n_blocks
                ? stamped(w, (uint8_t *)view.blocks + block[i] * view.block_stride, block_bytes, i)
                : stamped(w, (uint8_t *)view.slots + slot[i - n_blocks] * view.slot_stride,
                          slot_bytes, i);
    free(block);
    return good && done(w, "pfx_release", pfx_release(w->c, w->match.lease));
}

int gpu_check_worker(const char *socket, const char *task)
{
    static struct worker w;
    bool good = start(&w, socket) && (strcmp(task, "pool") == 0    ? pool_is_whole(&w)
                                      : strcmp(task, "write") == 0 ? write_all(&w)
                                                                   : read_all(&w));
    if (!good)
        return EXIT_FINDING;
    puts("done");
    fflush(stdout);
    while (strcmp(task, "hold") == 0)
        pause();
    gpu_unpin(&w.g, w.page);
    w.g.cu.cuStreamDestroy(w.stream);
    pfx_close(w.c);
    return EXIT_GOOD;
}
