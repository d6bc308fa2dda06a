/*
 * copier.c - what all copiers have in common, and the one for host pools.
 *
 * A list is checked before anything moves. Two parts that write the same bytes have no right result
 * on a GPU, where nothing says which comes last: the list is refused. Going OUT that is about the
 * buffer, going IN about the pool; what is read may overlap.
 *
 * There is no checksum of the GPU's. The disk tier's is XXH3-128 of a record's whole payload, which
 * one core of an EPYC virtual machine does at 10 to 20 GB/s: three times and more what a disk of
 * 3.5 GB/s needs. The bytes are in host memory anyway, on their way to or from the disk, and those
 * that come back must be checked there, before they go to the pool. The GPU would be slower: XXH3
 * is a chain of stripes, so a page is work for eight lanes, one stripe after the other, and a
 * result read back costs about 80 us a call (SGLang issue 39229), in which the core has done 800
 * KB.
 */
#include "kernels/copier_private.h"
#include "shm/clock.h"

#include <errno.h>
#include <numaif.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    HOST_STEP = 256 * 1024, /* of a poll: no caller waits longer for another's gigabytes */
};

void copier_say(struct copier *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
}

/* ---- host pools ---- */

static int host_begin(struct copier *c, unsigned buffer, enum copier_way way,
                      const struct copier_part *parts, unsigned n)
{
    struct host_move *m = &((struct copier_host *)c)->move[buffer];
    m->parts = malloc(n * sizeof *parts);
    if (!m->parts && n) {
        copier_say(c, "there is no memory for a list of %u pages", n);
        return -EIO;
    }
    memcpy(m->parts, parts, n * sizeof *parts);
    m->n = n;
    m->at = 0;
    m->done = 0;
    m->way = way;
    return 0;
}

/* Some of the part that is begun: so many bytes at most. Returns how many. */
static uint64_t host_piece(struct copier *c, unsigned buffer, uint64_t most)
{
    struct host_move *m = &((struct copier_host *)c)->move[buffer];
    const struct copier_part *p = &m->parts[m->at];
    uint64_t n = p->bytes - m->done < most ? p->bytes - m->done : most;
    uint8_t *pool = (uint8_t *)(uintptr_t)c->config.pool + p->pool + m->done;
    uint8_t *there = copier_buffer(c, buffer) + p->buffer + m->done;
    if (m->way == COPIER_OUT)
        memcpy(there, pool, n);
    else
        memcpy(pool, there, n);
    m->done += n;
    if (m->done == p->bytes) {
        m->at++;
        m->done = 0;
    }
    return n;
}

static void host_end(struct copier *c, unsigned buffer)
{
    struct host_move *m = &((struct copier_host *)c)->move[buffer];
    free(m->parts);
    *m = (struct host_move){0};
}

static int host_poll(struct copier *c, unsigned buffer)
{
    const struct host_move *m = &((struct copier_host *)c)->move[buffer];
    for (uint64_t done = 0; m->at < m->n && done < HOST_STEP;)
        done += host_piece(c, buffer, HOST_STEP - done);
    if (m->at < m->n)
        return 0;
    host_end(c, buffer);
    return 1;
}

static bool host_free(struct copier *c)
{
    for (unsigned i = 0; i < c->config.n_buffers; i++)
        host_end(c, i);
    return true;
}

const struct copier_ops copier_host_ops = {host_begin, host_poll, host_free};

/* ---- lists ---- */

static bool within(uint64_t at, uint64_t n, uint64_t all)
{
    return n <= all && at <= all - n;
}

static int by_pool(const void *a, const void *b)
{
    const struct copier_part *x = a, *y = b;
    return (x->pool > y->pool) - (x->pool < y->pool);
}

static int by_buffer(const void *a, const void *b)
{
    const struct copier_part *x = a, *y = b;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* Do two of the n parts in c->parts write the same byte? They are sorted only where they do not
 * come in order. */
static bool overlap(struct copier *c, enum copier_way way, unsigned n)
{
    int (*compare)(const void *, const void *) = way == COPIER_OUT ? by_buffer : by_pool;
    const struct copier_part *p = c->parts;
    unsigned i = 1;
    while (i < n && compare(&p[i - 1], &p[i]) < 0)
        i++;
    if (i < n) {
        memcpy(c->sorted, p, n * sizeof *p);
        qsort(c->sorted, n, sizeof *p, compare);
        p = c->sorted;
    }
    for (i = 1; i < n; i++) {
        uint64_t gap =
            way == COPIER_OUT ? p[i].buffer - p[i - 1].buffer : p[i].pool - p[i - 1].pool;
        if (gap < p[i - 1].bytes)
            return true;
    }
    return false;
}

/* Into c->parts, without empty ones, neighbours on both sides made one. Returns how many; -EINVAL.
 */
static int take_list(struct copier *c, const struct copier_part *parts, unsigned n)
{
    unsigned n_out = 0;
    if (n > COPIER_PARTS) {
        copier_say(c, "a list of %u pages is longer than %u", n, COPIER_PARTS);
        return -EINVAL;
    }
    for (unsigned i = 0; i < n; i++) {
        const struct copier_part *p = &parts[i];
        struct copier_part *last = n_out ? &c->parts[n_out - 1] : NULL;
        if (!within(p->pool, p->bytes, c->config.pool_bytes) ||
            !within(p->buffer, p->bytes, c->config.buffer_bytes) || p->buffer % COPIER_ALIGN) {
            copier_say(c, "part %u of a list is not within the pool, or the buffer, or not aligned",
                       i);
            return -EINVAL;
        }
        if (!p->bytes)
            continue;
        if (last && p->pool == last->pool + last->bytes && p->buffer == last->buffer + last->bytes)
            last->bytes += p->bytes;
        else
            c->parts[n_out++] = *p;
    }
    return (int)n_out;
}

int copier_begin(struct copier *c, unsigned buffer, enum copier_way way,
                 const struct copier_part *parts, unsigned n)
{
    if (buffer >= c->config.n_buffers || c->state[buffer] != BUFFER_TAKEN) {
        copier_say(c, "buffer %u was not taken, or is under way", buffer);
        return -EINVAL;
    }
    int left = take_list(c, parts, n);
    if (left < 0)
        return left;
    if (overlap(c, way, (unsigned)left)) {
        copier_say(c, "two parts of a list would write the same bytes");
        return -EINVAL;
    }
    int rc = c->ops->begin(c, buffer, way, c->parts, (unsigned)left);
    if (!rc)
        c->state[buffer] = BUFFER_MOVING;
    return rc;
}

int copier_poll(struct copier *c, unsigned buffer)
{
    int rc = c->ops->poll(c, buffer);
    if (rc)
        c->state[buffer] = BUFFER_TAKEN;
    return rc;
}

const char *copier_why(const struct copier *c)
{
    return c->why;
}

/* ---- buffers ---- */

int copier_take(struct copier *c)
{
    for (unsigned i = 0; i < c->config.n_buffers; i++)
        if (c->state[i] == BUFFER_FREE) {
            c->state[i] = BUFFER_TAKEN;
            return (int)i;
        }
    return -1;
}

void copier_give(struct copier *c, unsigned buffer)
{
    c->state[buffer] = BUFFER_FREE;
}

uint8_t *copier_buffers(const struct copier *c)
{
    return c->buffers;
}

uint8_t *copier_buffer(const struct copier *c, unsigned buffer)
{
    return c->buffers + buffer * c->buffer_pitch;
}

uint64_t copier_room(const struct copier *c)
{
    return c->config.n_buffers * (c->buffer_pitch + (c->config.cuda ? COPIER_LIST : 0));
}

/* Our own pages, not the driver's: io_uring can register them as well. Where they cannot be on the
 * node that was asked for, they are on another. */
static bool map_buffers(struct copier *c)
{
    c->buffer_pitch = (c->config.buffer_bytes + PAGE - 1) / PAGE * PAGE;
    void *at =
        mmap(NULL, copier_room(c), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    c->buffers = at;
    if (c->config.numa_node >= 0 && c->config.numa_node < 64) {
        unsigned long mask = 1ul << c->config.numa_node;
        mbind(at, copier_room(c), MPOL_PREFERRED, &mask, 65, 0);
    }
    if (madvise(at, copier_room(c), MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL)
        return false;
    memset(at, 0, copier_room(c)); /* a kernel that does not know how */
    return true;
}

struct copier *copier_new(const struct copier_config *config, char *why, size_t n_why, char *note,
                          size_t n_note)
{
    struct copier *c =
        calloc(1, config->cuda ? sizeof(struct copier_cuda) : sizeof(struct copier_host));
    note[0] = 0;
    if (c) {
        c->ops = config->cuda ? &copier_cuda_ops : &copier_host_ops;
        c->config = *config;
    }
    if (!c || !map_buffers(c)) {
        snprintf(why, n_why, "there is no memory for %u buffers of %llu bytes", config->n_buffers,
                 (unsigned long long)config->buffer_bytes);
        copier_free(c);
        return NULL;
    }
    if (config->cuda && copier_cuda_start((struct copier_cuda *)c, note, n_note)) {
        snprintf(why, n_why, "%s", c->why);
        copier_free(c);
        return NULL;
    }
    return c;
}

static void free_one(struct copier *c)
{
    bool over = c->ops->free(c);
    if (c->buffers && over)
        munmap(c->buffers, copier_room(c));
    free(c);
}

void copiers_free(struct copier **all, unsigned n)
{
    uint64_t until = clock_ns() + COPIER_WAIT_MS * 1000000ull;
    for (unsigned i = 0; i < n; i++)
        if (all[i] && all[i]->config.cuda)
            copier_cuda_wait((struct copier_cuda *)all[i], until);
    for (unsigned i = 0; i < n; i++) {
        if (all[i])
            free_one(all[i]);
        all[i] = NULL;
    }
}

void copier_free(struct copier *c)
{
    copiers_free(&c, 1);
}
