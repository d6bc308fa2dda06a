/*
 * Eviction: 1,000 blocks of a cache of 1,000,000, again and again.
 *
 * The leaves were used in random order, so that victims lie scattered in memory as in a real cache.
 */
#include "tools/bench.h"
#include "tools/measure.h"

#include <stdlib.h>

enum { EVICT_CACHED = 1000 * 1000, EVICT_N = 1000, EVICT_RUN_MIN = 8, EVICT_RUN_MAX = 64 };

struct evict {
    struct bench_index *index;
};

/* `group` leaves below each shared beginning; a leaf has from..to blocks. */
static void *evict_begin(uint32_t shared, uint32_t group, uint32_t from, uint32_t to)
{
    struct evict *e = calloc(1, sizeof *e);
    struct place *leaf = malloc(EVICT_CACHED * sizeof *leaf);
    uint32_t *order = malloc(EVICT_CACHED * sizeof *order);
    uint32_t tokens[2 * EVICT_RUN_MAX * BENCH_BLOCK_TOKENS], n = 0;
    if (e && leaf && order)
        e->index = bench_index_new(EVICT_CACHED + 2 * EVICT_RUN_MAX);
    while (e && e->index && bench_index_cached(e->index) < EVICT_CACHED) {
        uint32_t run = from + (uint32_t)(random_word(4, n) % (to - from + 1));
        uint32_t *own = tokens + shared * BENCH_BLOCK_TOKENS;
        bench_fill_tokens(tokens, shared * BENCH_BLOCK_TOKENS, n / group);
        bench_fill_tokens(own, run * BENCH_BLOCK_TOKENS, 1000000000ull + n);
        leaf[n++] = bench_index_add(e->index, tokens, shared + run);
    }
    if (e && e->index) {
        shuffle(order, n, 5);
        for (uint32_t i = 0; i < n; i++)
            index_stamp(e->index->index, leaf[order[i]]);
    }
    free(leaf);
    free(order);
    if (e && e->index)
        return e;
    free(e);
    return NULL;
}

void *evict_runs_begin(void)
{
    return evict_begin(16, 100, EVICT_RUN_MIN, EVICT_RUN_MAX);
}

void *evict_single_begin(void)
{
    return evict_begin(1, 1000, 1, 1);
}

double evict_value(void *self)
{
    struct evict *e = self;
    uint64_t before = clock_ns();
    uint32_t n = index_evict(e->index->index, EVICT_N);
    uint64_t ns = clock_ns() - before;
    if (n == EVICT_N)
        return (double)ns / 1e3 / EVICT_N;
    tool_fail(0, "only %u of %d blocks could be evicted.", n, EVICT_N);
    return -1;
}

void evict_end(void *self)
{
    struct evict *e = self;
    bench_index_free(e->index);
    free(e);
}
