/* Copies, all asynchronous: a list of pieces on a stream. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 4096 }; /* what long batches do to real drivers is in lowlevel.md */

struct piece {
    void *to;
    const void *from; /* NULL: bytes of `byte` */
    size_t bytes;
};

struct copy {
    unsigned n;
    unsigned char byte;
    struct piece piece[];
};

static void rot(const struct copy *c)
{
    static unsigned long copies;
    unsigned long n = strtoul(fake_environment("FAKE_CUDA_ROT", "0"), NULL, 10);
    if (__atomic_add_fetch(&copies, 1, __ATOMIC_RELAXED) == n)
        *(unsigned char *)c->piece[0].to ^= 1;
}

static void copy_run(void *arg)
{
    struct copy *c = arg;
    for (unsigned i = 0; i < c->n; i++)
        if (c->piece[i].from)
            memcpy(c->piece[i].to, c->piece[i].from, c->piece[i].bytes);
        else
            memset(c->piece[i].to, c->byte, c->piece[i].bytes);
    rot(c);
    free(c);
}

static struct copy *copy_new(unsigned n)
{
    struct copy *c = calloc(1, sizeof *c + n * sizeof c->piece[0]);
    if (!c)
        fake_die("no memory for %u copies", n);
    c->n = n;
    return c;
}

/* Memory of either kind, where it may be pageable also that. */
static void *memory(uint64_t address, size_t bytes, bool device, const char *what, bool *pageable)
{
    bool may = !device && strcmp(fake_environment("FAKE_CUDA_PAGEABLE", "0"), "0") != 0;
    void *at = may ? fake_span_if(address, bytes, false) : fake_span(address, bytes, device, what);
    *pageable |= !at;
    return at ? at : (void *)(uintptr_t)address;
}

static int copy_one(void *stream, const char *what, uint64_t to, bool to_device, uint64_t from,
                    bool from_device, size_t bytes)
{
    bool pageable = false;
    struct copy *c = copy_new(1);
    c->piece[0] = (struct piece){.to = memory(to, bytes, to_device, what, &pageable),
                                 .from = memory(from, bytes, from_device, what, &pageable),
                                 .bytes = bytes};
    const struct fake_use use[2] = {{to, bytes, true}, {from, bytes, false}};
    int result = fake_submit(stream, what, use, 2, copy_run, c);
    if (pageable)
        fake_finish(stream);
    return result;
}

int fake_cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t bytes, void *stream)
{
    FAKE_ENTER();
    return copy_one(stream, "cuMemcpyHtoDAsync", to, true, (uint64_t)(uintptr_t)from, false, bytes);
}

int fake_cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, void *stream)
{
    FAKE_ENTER();
    return copy_one(stream, "cuMemcpyDtoHAsync", (uint64_t)(uintptr_t)to, false, from, true, bytes);
}

int fake_cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    FAKE_ENTER();
    return copy_one(stream, "cuMemcpyDtoDAsync", to, true, from, true, bytes);
}

int fake_cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, void *stream)
{
    FAKE_ENTER();
    struct copy *c = copy_new(1);
    c->byte = byte;
    c->piece[0] =
        (struct piece){.to = fake_span(address, bytes, true, "cuMemsetD8Async"), .bytes = bytes};
    const struct fake_use use = {address, bytes, true};
    return fake_submit(stream, "cuMemsetD8Async", &use, 1, copy_run, c);
}

/* Of a batch either side may be the host's. */
static void *either(uint64_t address, size_t bytes, bool *is_device)
{
    void *at = fake_span_if(address, bytes, true);
    *is_device = at != NULL;
    return at ? at : fake_span(address, bytes, false, "cuMemcpyBatchAsync");
}

/* In no order among themselves: the last comes first here. */
static int copy_batch(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
                      struct cuda_copy_attributes *attributes, size_t *first, size_t n_attributes,
                      void *stream)
{
    if (n == 0 || n > BATCH_MAX)
        fake_die("cuMemcpyBatchAsync: %zu copies; at most %d at a time", n, BATCH_MAX);
    if (n_attributes == 0 || n_attributes > n || first[0] != 0)
        fake_die("cuMemcpyBatchAsync: %zu attributes, the first from %zu on", n_attributes,
                 n_attributes ? first[0] : 0);
    for (size_t i = 0; i < n_attributes; i++)
        if (attributes[i].order != CUDA_ORDER_STREAM || (i && first[i] <= first[i - 1]))
            fake_die("cuMemcpyBatchAsync: attribute %zu: in the stream's order, ascending", i);
    struct copy *c = copy_new((unsigned)n);
    struct fake_use *use = calloc(2 * n, sizeof *use);
    if (!use)
        fake_die("cuMemcpyBatchAsync: no memory");
    for (size_t i = 0; i < n; i++) {
        bool device;
        c->piece[n - 1 - i] = (struct piece){either(to[i], bytes[i], &device),
                                             either(from[i], bytes[i], &device), bytes[i]};
        use[2 * i] = (struct fake_use){to[i], bytes[i], true};
        use[2 * i + 1] = (struct fake_use){from[i], bytes[i], false};
    }
    int result = fake_submit(stream, "cuMemcpyBatchAsync", use, (unsigned)(2 * n), copy_run, c);
    free(use);
    return result;
}

int fake_cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
                            struct cuda_copy_attributes *attributes, size_t *first,
                            size_t n_attributes, void *stream)
{
    FAKE_ENTER();
    return copy_batch(to, from, bytes, n, attributes, first, n_attributes, stream);
}

/* Of CUDA 12.8; a driver of 13 has it as well, for those that were compiled for it. */
int fake_cuMemcpyBatchAsync_v12080(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
                                   struct cuda_copy_attributes *attributes, size_t *first,
                                   size_t n_attributes, size_t *failed, void *stream)
{
    FAKE_ENTER();
    if (!failed)
        fake_die("cuMemcpyBatchAsync: there is no place for the number of the copy that failed");
    *failed = SIZE_MAX;
    return copy_batch(to, from, bytes, n, attributes, first, n_attributes, stream);
}
