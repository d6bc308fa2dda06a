/*
 * What a cached block costs: the growth of this process's resident memory, shared region and the
 * daemon's private arrays together, over the number of blocks that are cached at the end.
 *
 * Each row is measured in a process of its own, so that nothing of an earlier one is reused or
 * counted. The pool's own arrays, which are not the index, are made resident before.
 *
 *   runs        sequences of 32,768 tokens
 *   truncated   runs of 64 blocks, each cut to a random length by eviction before the next comes,
 *               which reuses what the cut gave back
 *   single      one-block leaves, a thousand below each shared block
 */
#include "tools/bench.h"
#include "tools/measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY_BLOCKS = 1000 * 1000, LONG_RUN = BENCH_PREFIX_TOKENS / BENCH_BLOCK_TOKENS };

struct fill {
    struct bench_index *b;
    uint32_t *tokens;   /* room for one sequence */
    struct hold *holds; /* room for one a sequence; all zero */
};

/* Cache the i-th sequence. */
typedef void memory_add(struct fill *f, uint32_t i);

struct memory {
    memory_add *add;
};

static void add_run(struct fill *f, uint32_t i)
{
    bench_fill_tokens(f->tokens, BENCH_PREFIX_TOKENS, i);
    bench_index_add(f->b, f->tokens, LONG_RUN);
}

/* Earlier ones are held, so that the one just added is the victim. */
static void add_truncated(struct fill *f, uint32_t i)
{
    uint32_t keep = 1 + (uint32_t)(random_word(6, i) % NODE_BLOCKS);
    bench_fill_tokens(f->tokens, NODE_BLOCKS * BENCH_BLOCK_TOKENS, i);
    bench_index_add(f->b, f->tokens, NODE_BLOCKS);
    index_evict(f->b->index, NODE_BLOCKS - keep);
    struct place where = bench_index_add(f->b, f->tokens, keep);
    index_hold(f->b->index, &f->holds[i], where);
}

static void add_single(struct fill *f, uint32_t i)
{
    bench_fill_tokens(f->tokens, BENCH_BLOCK_TOKENS, i / 1000);
    bench_fill_tokens(f->tokens + BENCH_BLOCK_TOKENS, BENCH_BLOCK_TOKENS, 1000000000ull + i);
    bench_index_add(f->b, f->tokens, 2);
}

/* ---- the measuring process ---------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* So that what the pool touches later is resident before. */
static void touch_pool(struct pool *p)
{
    for (uint32_t n = p->n_blocks; n > 0; n--)
        pool_take(p);
    for (uint32_t id = p->n_blocks; id > 0; id--)
        pool_give(p, id);
}

static void *resident(size_t bytes)
{
    void *p = malloc(bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

static double measure(memory_add *add)
{
    struct fill f = {.b = bench_index_new(MEMORY_BLOCKS + LONG_RUN),
                     .tokens = resident(BENCH_PREFIX_TOKENS * sizeof *f.tokens),
                     .holds = resident(MEMORY_BLOCKS / 8 * sizeof *f.holds)};
    if (!f.tokens || !f.b || !f.holds)
        return -1;
    memset(f.b->page, 0, f.b->pool.n_blocks * sizeof *f.b->page);
    memset(f.b->taken, 0, f.b->pool.n_blocks);
    touch_pool(&f.b->pool);
    uint64_t before = resident_bytes();
    for (uint32_t i = 0; bench_index_cached(f.b) < MEMORY_BLOCKS; i++)
        add(&f, i);
    return (double)(resident_bytes() - before) / bench_index_cached(f.b);
}

static void *begin(memory_add *add)
{
    struct memory *m = malloc(sizeof *m);
    if (m)
        m->add = add;
    return m;
}

void *memory_runs_begin(void)
{
    return begin(add_run);
}

void *memory_truncated_begin(void)
{
    return begin(add_truncated);
}

void *memory_single_begin(void)
{
    return begin(add_single);
}

double memory_value(void *self)
{
    const struct memory *m = self;
    int result[2], status = 0;
    double value = -1;
    if (pipe(result) != 0) {
        tool_fail(0, "cannot make a pipe: %s.", strerror(errno));
        return -1;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        value = measure(m->add);
        _exit(write(result[1], &value, sizeof value) == sizeof value ? 0 : 1);
    }
    close(result[1]);
    if (pid < 0 || read(result[0], &value, sizeof value) != sizeof value) {
        if (!interrupted)
            tool_fail(0, "the measuring process failed.");
        value = -1;
    }
    close(result[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return value;
}

void memory_end(void *self)
{
    free(self);
}
