#include "tests/cuda/pocket.h"
#include "tests/cuda/lanes.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pocket pocket;

enum { OPS = 8192 };

struct work {
    bool launch;
    uint64_t to, from, bytes; /* a launch: its list in from */
    uint32_t n_pieces, chunks_each, n_blocks, n_threads;
};

struct stream {
    struct work work[OPS];
    unsigned n_done, n;
};

struct event {
    struct stream *stream;
    unsigned after;
};

static void *current;

/* ---- calls in general -------------------------------------------------------------------- */

static bool fails(const char *name)
{
    pocket.n_calls++;
    return pocket.n_calls == pocket.fail_call || (pocket.fail && strcmp(name, pocket.fail) == 0);
}

#define CALL                                                                                       \
    do {                                                                                           \
        REQUIRE_MSG(current == pocket.context, "%s without the context", __func__);                \
        if (fails(__func__))                                                                       \
            return pocket.error;                                                                   \
    } while (0)

static void *live(size_t bytes)
{
    void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    REQUIRE(at);
    memset(at, 0, bytes);
    pocket.n_live++;
    return at;
}

static void dead(void *at)
{
    free(at);
    pocket.n_live--;
}

int __real_clock_gettime(clockid_t id, struct timespec *t);
__attribute__((visibility("default"))) int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    if (!pocket.clock)
        return __real_clock_gettime(id, t);
    *t = (struct timespec){(time_t)(pocket.time_us / 1000000),
                           (long)(pocket.time_us % 1000000 * 1000)};
    return 0;
}

static void carry_out(const struct work *w)
{
    if (pocket.clock)
        pocket.time_us += w->launch ? pocket.launch_us : pocket.copy_us;
    else if (w->launch)
        lanes_run((const struct copy_piece *)(uintptr_t)w->from, w->n_pieces, w->chunks_each,
                  w->n_blocks, w->n_threads, w->n_pieces);
    else
        memcpy((void *)(uintptr_t)w->to, (const void *)(uintptr_t)w->from, w->bytes);
}

static void run(struct stream *s, unsigned most)
{
    for (; most && s->n_done < s->n; most--) {
        carry_out(&s->work[s->n_done++ % OPS]);
        pocket.n_waiting--;
    }
}

static void post(void *stream, struct work w)
{
    struct stream *s = stream;
    REQUIRE(s->n - s->n_done < OPS);
    s->work[s->n++ % OPS] = w;
    pocket.n_waiting++;
}

/* ---- the driver's ------------------------------------------------------------------------ */

static int cuGetErrorName(int result, const char **name)
{
    *name = result == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return CUDA_OK;
}

static int cuCtxPushCurrent(void *context)
{
    if (fails(__func__))
        return pocket.error;
    REQUIRE(context == pocket.context && !current);
    current = context;
    pocket.n_pushed++;
    return CUDA_OK;
}

static int cuCtxPopCurrent(void **context)
{
    REQUIRE(current);
    *context = current;
    current = NULL;
    pocket.n_pushed--;
    return CUDA_OK;
}

static int cuMemAlloc(uint64_t *at, size_t bytes)
{
    CALL;
    *at = (uintptr_t)live(bytes);
    return CUDA_OK;
}

static int cuMemFree(uint64_t at)
{
    CALL;
    dead((void *)(uintptr_t)at);
    return CUDA_OK;
}

static int cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
    CALL;
    pocket.n_live++;
    return CUDA_OK;
}

static int cuMemHostUnregister(void *at)
{
    CALL;
    pocket.n_live--;
    return CUDA_OK;
}

static int cuStreamCreate(void **stream, unsigned flags)
{
    CALL;
    REQUIRE_EQ(flags, CUDA_STREAM_NON_BLOCKING);
    *stream = live(sizeof(struct stream));
    return CUDA_OK;
}

static int cuStreamSynchronize(void *stream)
{
    run(stream, UINT32_MAX);
    CALL;
    return CUDA_OK;
}

static int cuStreamDestroy(void *stream)
{
    struct stream *s = stream;
    REQUIRE_EQ(s->n_done, s->n);
    CALL;
    dead(stream);
    return CUDA_OK;
}

static int cuEventCreate(void **event, unsigned flags)
{
    CALL;
    *event = live(sizeof(struct event));
    return CUDA_OK;
}

static int cuEventDestroy(void *event)
{
    CALL;
    dead(event);
    return CUDA_OK;
}

static int cuEventRecord(void *event, void *stream)
{
    CALL;
    *(struct event *)event = (struct event){stream, ((struct stream *)stream)->n};
    return CUDA_OK;
}

static int cuEventQuery(void *event)
{
    struct event *e = event;
    CALL;
    if (!e->stream || e->stream->n_done >= e->after)
        return CUDA_OK;
    run(e->stream, pocket.per_query);
    return CUDA_NOT_READY;
}

static int cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t bytes, void *stream)
{
    CALL;
    pocket.n_copies++;
    post(stream, (struct work){.to = to, .from = (uintptr_t)from, .bytes = bytes});
    return CUDA_OK;
}

static int cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, void *stream)
{
    CALL;
    pocket.n_copies++;
    post(stream, (struct work){.to = (uintptr_t)to, .from = from, .bytes = bytes});
    return CUDA_OK;
}

/* Last one first: nothing is promised. */
static int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
                              struct cuda_copy_attributes *attributes, size_t *first,
                              size_t n_attributes, void *stream)
{
    CALL;
    REQUIRE(n_attributes == 1 && first[0] == 0 && attributes[0].order == CUDA_ORDER_STREAM);
    REQUIRE(n > 0 && n <= 1024 && stream);
    pocket.n_batches++;
    pocket.time_us += pocket.batch_us;
    for (size_t i = n; i-- > 0;) {
        pocket.n_copies++;
        post(stream, (struct work){.to = to[i], .from = from[i], .bytes = bytes[i]});
    }
    return CUDA_OK;
}

static int cuMemcpyBatchAsync_v12080(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
                                     struct cuda_copy_attributes *attributes, size_t *first,
                                     size_t n_attributes, size_t *failed, void *stream)
{
    REQUIRE(failed);
    return cuMemcpyBatchAsync(to, from, bytes, n, attributes, first, n_attributes, stream);
}

static int cuModuleLoadData(void **module, const void *image)
{
    CALL;
    *module = live(1);
    return CUDA_OK;
}

static int cuModuleUnload(void *module)
{
    CALL;
    dead(module);
    return CUDA_OK;
}

static int cuModuleGetFunction(void **function, void *module, const char *name)
{
    CALL;
    REQUIRE(strcmp(name, COPY_KERNEL) == 0);
    *function = module;
    return CUDA_OK;
}

static int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    CALL;
    REQUIRE(grid_x >= 1 && grid_y == 1 && grid_z == 1);
    REQUIRE(block_x == COPY_THREADS && block_y == 1 && block_z == 1 && !shared_bytes);
    pocket.n_launches++;
    post(stream, (struct work){.launch = true,
                               .from = *(const uint64_t *)parameters[0],
                               .n_pieces = *(const uint32_t *)parameters[1],
                               .chunks_each = *(const uint32_t *)parameters[2],
                               .n_blocks = grid_x,
                               .n_threads = block_x});
    return CUDA_OK;
}

void pocket_init(void)
{
    current = NULL;
    pocket = (struct pocket){
        .context = &pocket,
        .error = CUDA_UNKNOWN,
        .per_query = 1,
        .cu = {.cuGetErrorName = cuGetErrorName,
               .cuCtxPushCurrent = cuCtxPushCurrent,
               .cuCtxPopCurrent = cuCtxPopCurrent,
               .cuMemAlloc = cuMemAlloc,
               .cuMemFree = cuMemFree,
               .cuMemHostRegister = cuMemHostRegister,
               .cuMemHostUnregister = cuMemHostUnregister,
               .cuStreamCreate = cuStreamCreate,
               .cuStreamSynchronize = cuStreamSynchronize,
               .cuStreamDestroy = cuStreamDestroy,
               .cuEventCreate = cuEventCreate,
               .cuEventDestroy = cuEventDestroy,
               .cuEventRecord = cuEventRecord,
               .cuEventQuery = cuEventQuery,
               .cuMemcpyHtoDAsync = cuMemcpyHtoDAsync,
               .cuMemcpyDtoHAsync = cuMemcpyDtoHAsync,
               .cuMemcpyBatchAsync = cuMemcpyBatchAsync,
               .cuMemcpyBatchAsync_v12080 = cuMemcpyBatchAsync_v12080,
               .cuModuleLoadData = cuModuleLoadData,
               .cuModuleUnload = cuModuleUnload,
               .cuModuleGetFunction = cuModuleGetFunction,
               .cuLaunchKernel = cuLaunchKernel},
    };
}
