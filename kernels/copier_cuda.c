/*
 * copier_cuda.c - the copier of a GPU. Two ways, and a choice for each list:
 *
 *   the kernel   many small pages. Out: the list goes to the device, the kernel gathers the
 *                pages into the stage, one large copy brings that to the buffer. In: reversed
 *   the engine   few or large pages: each is a copy of its own, in batches where the driver has
 *                those (CUDA 12.8). No stage, no work for the processors that compute
 *
 *      OUT  pages --kernel--> stage --one copy--> buffer
 *           pages ------copy, copy, copy--------> buffer
 *
 * All of a list goes into its buffer's stream in this order, an event behind it, so nothing is
 * waited for. Streams take no notice of the legacy one. If something is refused half way, what is
 * under way is waited for then and there: a buffer must not be filled behind its user's back.
 *
 * What cannot be had (kernels, room for stages, pinned memory) is done without, slower, and said.
 */
#include "kernels/block_copy_image.h"
#include "kernels/copier_private.h"
#include "shm/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    BATCH = 1024, /* a driver hung on 50,000 copies in one batch (vLLM issue 49276) */
    GRID = 32,    /* blocks of a launch: more than the bus takes, and most of the GPU left alone */
};

int copier_checked(struct copier_cuda *c, int result, const char *what)
{
    if (result == CUDA_OK)
        return 0;
    cuda_explain(c->cu, result, what, c->copier.why, sizeof c->copier.why);
    return -EIO;
}

static uint64_t stage_of(const struct copier_cuda *c, unsigned buffer)
{
    return c->stage + buffer * (c->copier.buffer_pitch + COPIER_LIST);
}

/* ---- the engine ---- */

/* The hints of where memory is count for memory without a place of its own: pageable, for one. */
static bool has_batches(const struct copier_cuda *c)
{
    return c->pinned && (c->cu->cuMemcpyBatchAsync || c->cu->cuMemcpyBatchAsync_v12080);
}

static int batch(struct copier_cuda *c, unsigned buffer, unsigned n)
{
    struct cuda_copy_attributes attributes = {.order = CUDA_ORDER_STREAM};
    size_t first = 0, failed;
    int rc = 0;
    for (unsigned at = 0; at < n && !rc; at += BATCH) {
        unsigned most = n - at < BATCH ? n - at : BATCH;
        if (c->cu->cuMemcpyBatchAsync)
            rc = COPIER_CALL(c, cuMemcpyBatchAsync, c->to + at, c->from + at, c->sizes + at, most,
                             &attributes, &first, 1, c->stream[buffer]);
        else
            rc = COPIER_CALL(c, cuMemcpyBatchAsync_v12080, c->to + at, c->from + at, c->sizes + at,
                             most, &attributes, &first, 1, &failed, c->stream[buffer]);
    }
    return rc;
}

static int one_by_one(struct copier_cuda *c, unsigned buffer, enum copier_way way, unsigned n)
{
    void *stream = c->stream[buffer];
    int rc = 0;
    for (unsigned i = 0; i < n && !rc; i++)
        if (way == COPIER_OUT)
            rc = COPIER_CALL(c, cuMemcpyDtoHAsync, (void *)(uintptr_t)c->to[i], c->from[i],
                             c->sizes[i], stream);
        else
            rc = COPIER_CALL(c, cuMemcpyHtoDAsync, c->to[i], (const void *)(uintptr_t)c->from[i],
                             c->sizes[i], stream);
    return rc;
}

int copier_by_engine(struct copier_cuda *c, unsigned buffer, enum copier_way way,
                     const struct copier_part *parts, unsigned n)
{
    uint64_t host = (uintptr_t)copier_buffer(&c->copier, buffer), pool = c->copier.config.pool;
    for (unsigned i = 0; i < n; i++) {
        c->to[i] = way == COPIER_OUT ? host + parts[i].buffer : pool + parts[i].pool;
        c->from[i] = way == COPIER_OUT ? pool + parts[i].pool : host + parts[i].buffer;
        c->sizes[i] = parts[i].bytes;
    }
    if (n > 1 && has_batches(c))
        return batch(c, buffer, n);
    return one_by_one(c, buffer, way, n);
}

/* ---- the kernel ---- */

/* The pinned list of a buffer; it is not written while its stream works. */
static struct copy_piece *list_of(const struct copier_cuda *c, unsigned buffer)
{
    const struct copier *all = &c->copier;
    return (struct copy_piece *)(all->buffers + all->config.n_buffers * all->buffer_pitch) +
           (size_t)buffer * COPIER_PARTS;
}

static int launch(struct copier_cuda *c, unsigned buffer, unsigned n, uint64_t longest)
{
    uint64_t list = stage_of(c, buffer) + c->copier.buffer_pitch;
    uint32_t n_pieces = n, chunks_each = (uint32_t)copy_chunks(longest);
    uint64_t warps = (uint64_t)n * chunks_each, blocks = (warps * COPY_WARP - 1) / COPY_THREADS + 1;
    void *parameters[] = {&list, &n_pieces, &chunks_each};
    return COPIER_CALL(c, cuLaunchKernel, c->kernel, blocks < GRID ? (unsigned)blocks : GRID, 1, 1,
                       COPY_THREADS, 1, 1, 0, c->stream[buffer], parameters, NULL);
}

/* The span of the buffer that the parts are in, and the longest of them. */
static struct copier_part span(const struct copier_part *parts, unsigned n, uint64_t *longest)
{
    uint64_t from = UINT64_MAX, to = 0;
    *longest = 0;
    for (unsigned i = 0; i < n; i++) {
        const struct copier_part *p = &parts[i];
        from = p->buffer < from ? p->buffer : from;
        to = p->buffer + p->bytes > to ? p->buffer + p->bytes : to;
        *longest = p->bytes > *longest ? p->bytes : *longest;
    }
    return (struct copier_part){.buffer = from, .bytes = to - from};
}

int copier_by_kernel(struct copier_cuda *c, unsigned buffer, enum copier_way way,
                     const struct copier_part *parts, unsigned n)
{
    void *stream = c->stream[buffer];
    uint64_t stage = stage_of(c, buffer);
    struct copy_piece *list = list_of(c, buffer);
    uint64_t longest, pool = c->copier.config.pool;
    struct copier_part all = span(parts, n, &longest);
    uint8_t *host = copier_buffer(&c->copier, buffer) + all.buffer;
    for (unsigned i = 0; i < n; i++) {
        uint64_t there = stage + parts[i].buffer, page = pool + parts[i].pool;
        list[i] = way == COPIER_OUT ? (struct copy_piece){there, page, parts[i].bytes}
                                    : (struct copy_piece){page, there, parts[i].bytes};
    }
    int rc = COPIER_CALL(c, cuMemcpyHtoDAsync, stage + c->copier.buffer_pitch, list,
                         n * sizeof *list, stream);
    if (!rc && way == COPIER_IN)
        rc = COPIER_CALL(c, cuMemcpyHtoDAsync, stage + all.buffer, host, all.bytes, stream);
    if (!rc)
        rc = launch(c, buffer, n, longest);
    if (!rc && way == COPIER_OUT)
        rc = COPIER_CALL(c, cuMemcpyDtoHAsync, host, stage + all.buffer, all.bytes, stream);
    return rc;
}

/* ---- the choice ---- */

static bool for_engine(const struct copier_cuda *c, const struct copier_part *parts, unsigned n)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        bytes += parts[i].bytes;
        if ((c->copier.config.pool + parts[i].pool) % COPIER_ALIGN)
            return true; /* the kernel would go by bytes */
    }
    return !c->kernel || n <= c->engine_few || bytes / n >= c->engine_from;
}

static int enter(struct copier_cuda *c)
{
    return COPIER_CALL(c, cuCtxPushCurrent, c->copier.config.context);
}

static void leave(const struct copier_cuda *c)
{
    void *ours;
    c->cu->cuCtxPopCurrent(&ours);
}

static int cuda_begin(struct copier *copier, unsigned buffer, enum copier_way way,
                      const struct copier_part *parts, unsigned n)
{
    struct copier_cuda *c = (struct copier_cuda *)copier;
    int rc = enter(c);
    if (rc)
        return rc;
    if (n)
        rc = for_engine(c, parts, n) ? copier_by_engine(c, buffer, way, parts, n)
                                     : copier_by_kernel(c, buffer, way, parts, n);
    if (!rc)
        rc = COPIER_CALL(c, cuEventRecord, c->event[buffer], c->stream[buffer]);
    if (rc)
        c->cu->cuStreamSynchronize(c->stream[buffer]);
    leave(c);
    return rc;
}

static int cuda_poll(struct copier *copier, unsigned buffer)
{
    struct copier_cuda *c = (struct copier_cuda *)copier;
    if (enter(c))
        return -EIO;
    int result = c->cu->cuEventQuery(c->event[buffer]);
    leave(c);
    if (result == CUDA_NOT_READY)
        return 0;
    int rc = copier_checked(c, result, "a copy between the GPU and host memory");
    return rc ? rc : 1;
}

/* ---- start and end ---- */

static void note_add(char *note, size_t n, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void note_add(char *note, size_t n, const char *format, ...)
{
    size_t used = strlen(note);
    if (used && used + 2 < n)
        used += (size_t)snprintf(note + used, n - used, "; ");
    va_list args;
    va_start(args, format);
    vsnprintf(note + used, n - used, format, args);
    va_end(args);
}

static int make_streams(struct copier_cuda *c)
{
    int rc = 0;
    for (unsigned i = 0; i < c->copier.config.n_buffers && !rc; i++) {
        rc = COPIER_CALL(c, cuStreamCreate, &c->stream[i], CUDA_STREAM_NON_BLOCKING);
        if (!rc)
            rc = COPIER_CALL(c, cuEventCreate, &c->event[i], CUDA_EVENT_NO_TIMING);
    }
    return rc;
}

/* The kernel and its stages, or the reason why there are none. */
static void load_kernel(struct copier_cuda *c, char *note, size_t n_note)
{
    if (!block_copy_image_bytes) {
        note_add(note, n_note, "this build has no kernels (it was made without nvcc)");
        return;
    }
    void *kernel = NULL;
    char why[256];
    int rc = c->cu->cuModuleLoadData(&c->module, block_copy_image);
    if (rc == CUDA_OK)
        rc = c->cu->cuModuleGetFunction(&kernel, c->module, COPY_KERNEL);
    if (rc != CUDA_OK) {
        cuda_explain(c->cu, rc, "the kernels do not load", why, sizeof why);
        note_add(note, n_note, "%s; they are for %s", why, block_copy_targets);
        return;
    }
    uint64_t room = c->copier.config.n_buffers * (c->copier.buffer_pitch + COPIER_LIST);
    rc = c->cu->cuMemAlloc(&c->stage, room);
    if (rc != CUDA_OK) {
        c->stage = 0;
        cuda_explain(c->cu, rc, "the kernels have no room for their stages", why, sizeof why);
        note_add(note, n_note, "%s", why);
        return;
    }
    c->kernel = kernel;
}

static void pin(struct copier_cuda *c, char *note, size_t n_note)
{
    int rc = c->cu->cuMemHostRegister(c->copier.buffers, copier_room(&c->copier), 0);
    c->pinned = rc == CUDA_OK;
    if (c->pinned)
        return;
    char why[256];
    cuda_explain(c->cu, rc, "the buffers are not pinned, so copies are slow and waited for", why,
                 sizeof why);
    note_add(note, n_note, "%s", why);
}

static int start(struct copier_cuda *c, char *note, size_t n_note)
{
    int rc = make_streams(c);
    if (rc)
        return rc;
    pin(c, note, n_note);
    c->engine_from = c->copier.config.engine_from;
    if (c->engine_from != COPIER_ENGINE)
        load_kernel(c, note, n_note);
    if (!c->cu->cuMemcpyBatchAsync && !c->cu->cuMemcpyBatchAsync_v12080)
        note_add(note, n_note, "the driver has no batch copy (CUDA 12.8 brought it)");
    if (c->engine_from == COPIER_ENGINE)
        return rc;
    if (!c->kernel)
        note_add(note, n_note, "the copy engine moves all pages, small ones slowly");
    else if (c->engine_from == COPIER_MEASURE)
        rc = copier_measure(c, note, n_note);
    return rc;
}

int copier_cuda_start(struct copier_cuda *c, char *note, size_t n_note)
{
    c->cu = c->copier.config.cuda;
    if (!c->copier.config.stuck)
        c->copier.config.stuck = &c->stuck;
    int rc = enter(c);
    if (rc)
        return rc;
    c->entered = true;
    rc = start(c, note, n_note);
    leave(c);
    return rc;
}

/* Of a GPU that is stuck an event says so; the calls that wait would wait for ever. */
static bool comes_back(const struct copier_cuda *c, unsigned buffer, uint64_t until_ns)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    while (c->cu->cuEventQuery(c->event[buffer]) == CUDA_NOT_READY) {
        if (clock_ns() >= until_ns)
            return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

void copier_cuda_wait(struct copier_cuda *c, uint64_t until_ns)
{
    const struct copier *copier = &c->copier;
    if (!c->entered || *copier->config.stuck || enter(c))
        return;
    for (unsigned i = 0; i < copier->config.n_buffers; i++)
        if (copier->state[i] == BUFFER_MOVING && !comes_back(c, i, until_ns))
            *copier->config.stuck = true;
    leave(c);
}

/* Whatever the driver says, the rest is tried. If it does not say that copies are over, because the
 * GPU is lost, nobody knows: the buffers stay. */
static bool cuda_free(struct copier *copier)
{
    struct copier_cuda *c = (struct copier_cuda *)copier;
    bool over = true;
    if (!c->entered)
        return true;
    if (*copier->config.stuck || enter(c))
        return false;
    for (unsigned i = 0; i < copier->config.n_buffers; i++) {
        if (c->stream[i]) {
            over &= c->cu->cuStreamSynchronize(c->stream[i]) == CUDA_OK;
            c->cu->cuStreamDestroy(c->stream[i]);
        }
        if (c->event[i])
            c->cu->cuEventDestroy(c->event[i]);
    }
    if (c->stage)
        c->cu->cuMemFree(c->stage);
    if (c->module)
        c->cu->cuModuleUnload(c->module);
    if (c->pinned)
        c->cu->cuMemHostUnregister(copier->buffers);
    leave(c);
    return over;
}

const struct copier_ops copier_cuda_ops = {cuda_begin, cuda_poll, cuda_free};
