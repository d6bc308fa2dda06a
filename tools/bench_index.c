/*
 * The index alone, in this process: the daemon's writer fills a region of the same kind of memory
 * that it shares (a sealed memfd), and the reader of shm/index_read.c is timed as a client has it.
 *
 *   hot     one prefix again and again: the walk against memcmp of the same tokens
 *   cold    more prefixes than any cache holds, each once a round, in random order; the query and
 *           the memory that memcmp reads are as cold
 *   scale   random prefixes of a large and of a small index, the caches emptied before each batch
 */
#include "tools/bench.h"
#include "tools/measure.h"
#include "shm/segment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PREFIX_BLOCKS = BENCH_PREFIX_TOKENS / BENCH_BLOCK_TOKENS,
    PREFIX_BYTES = BENCH_PREFIX_TOKENS * sizeof(uint32_t),
};

/* ---- the index -------------------------------------------------------------------------- */

void bench_fill_tokens(uint32_t *to, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint32_t)random_word(mix64(seed), i);
}

static bool map_region(struct bench_index *b, uint32_t n_blocks)
{
    struct index_plan plan;
    struct segment s;
    struct index_params params = {.block_tokens = BENCH_BLOCK_TOKENS,
                                  .n_blocks = n_blocks,
                                  .max_spaces = 16,
                                  .hash_seed = mix64(n_blocks),
                                  .hash_mask = UINT64_MAX};
    if (!index_plan(&params, &plan) ||
        segment_create(&s, "prefixctl-bench", SEGMENT_DAEMON, plan.bytes) != 0)
        return false;
    close(s.fd);
    b->region = s.base;
    b->bytes = s.bytes;
    struct index_header *h = s.base;
    h->magic = INDEX_MAGIC;
    h->format = LAYOUT_FORMAT;
    h->active = 1;
    h->region_bytes = plan.bytes;
    h->params = params;
    shm_store_release(&h->ready, 1u);
    return true;
}

struct bench_index *bench_index_new(uint32_t n_blocks)
{
    struct bench_index *b = calloc(1, sizeof *b);
    if (b && map_region(b, n_blocks) && pool_init(&b->pool, n_blocks)) {
        b->page = malloc(n_blocks * sizeof *b->page);
        b->taken = malloc(n_blocks);
        struct index_config config = {
            .region = b->region, .pool = &b->pool, .policy = policy_find("lru")};
        b->index = index_new(&config);
        b->spaces = b->index ? spaces_new(b->index) : NULL;
    }
    if (!b || !b->page || !b->taken || !b->spaces) {
        tool_fail(0, "out of memory for an index of %u blocks.", n_blocks);
        bench_index_free(b);
        return NULL;
    }
    b->view = index_view_of(b->index);
    b->root = spaces_root(b->spaces, 0);
    return b;
}

void bench_index_free(struct bench_index *b)
{
    if (!b)
        return;
    if (b->spaces)
        spaces_free(b->spaces);
    if (b->index)
        index_free(b->index);
    pool_deinit(&b->pool);
    if (b->region)
        munmap(b->region, b->bytes);
    free(b->page);
    free(b->taken);
    free(b);
}

uint32_t bench_index_cached(const struct bench_index *b)
{
    return b->pool.n_cached;
}

struct place bench_index_add(struct bench_index *b, const uint32_t *tokens, uint32_t n_blocks)
{
    struct index_query q = {.tokens = tokens, .n_tokens = (size_t)n_blocks * BENCH_BLOCK_TOKENS};
    struct place where = {index_node_at(b->view, b->root)->identity, b->root, 0};
    index_match(b->index, &q, n_blocks, &where);
    uint32_t missing = n_blocks - where.depth;
    for (uint32_t i = 0; i < missing; i++)
        b->page[i] = pool_take(&b->pool);
    struct hold hold = {0};
    index_hold(b->index, &hold, where);
    index_insert(b->index, &q, b->page, missing, b->taken, &where);
    index_unhold(b->index, &hold);
    index_stamp(b->index, where);
    return where;
}

bool bench_index_match(const struct index_view *v, const uint32_t *tokens, uint32_t n_blocks,
                       uint32_t *ids)
{
    struct index_query q = {.tokens = tokens, .n_tokens = (size_t)n_blocks * BENCH_BLOCK_TOKENS};
    struct index_found found;
    return index_walk(v, 0, &q, n_blocks, &found) && found.where.depth == n_blocks &&
           index_path_ids(v, found.where, 0, n_blocks, ids, NULL);
}

static double miss(void)
{
    tool_fail(0, "a cached prefix was not found.");
    return -1;
}

/* ---- index.hot -------------------------------------------------------------------------- */

enum { HOT_CALLS = 301 };

struct hot {
    struct bench_index *index;
    uint32_t *query, *same;
    uint32_t ids[PREFIX_BLOCKS];
};

void *index_hot_begin(void)
{
    struct hot *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->query = aligned_alloc(64, PREFIX_BYTES);
    h->same = aligned_alloc(64, PREFIX_BYTES);
    h->index = bench_index_new(2 * PREFIX_BLOCKS);
    if (!h->query || !h->same || !h->index) {
        index_hot_end(h);
        return NULL;
    }
    bench_fill_tokens(h->query, BENCH_PREFIX_TOKENS, 1);
    memcpy(h->same, h->query, PREFIX_BYTES);
    bench_index_add(h->index, h->query, PREFIX_BLOCKS);
    return h;
}

double index_hot_value(void *self)
{
    struct hot *h = self;
    uint64_t ns[HOT_CALLS];
    for (int i = 0; i < HOT_CALLS; i++) {
        uint64_t before = clock_ns();
        bool found = bench_index_match(h->index->view, h->query, PREFIX_BLOCKS, h->ids);
        bench_clobber(h->ids);
        ns[i] = clock_ns() - before;
        if (!found)
            return miss();
    }
    return (double)quantile(ns, HOT_CALLS, 500);
}

double index_hot_baseline(void *self)
{
    struct hot *h = self;
    uint64_t ns[HOT_CALLS];
    for (int i = 0; i < HOT_CALLS; i++) {
        bench_clobber(h->query);
        uint64_t before = clock_ns();
        int differs = memcmp(h->query, h->same, PREFIX_BYTES);
        bench_clobber((void *)(intptr_t)differs);
        ns[i] = clock_ns() - before;
    }
    return (double)quantile(ns, HOT_CALLS, 500);
}

void index_hot_end(void *self)
{
    struct hot *h = self;
    bench_index_free(h->index);
    free(h->query);
    free(h->same);
    free(h);
}

/* ---- index.cold -------------------------------------------------------------------------- */

struct cold {
    struct bench_index *index;
    uint32_t n;             /* prefixes */
    uint32_t *query, *same; /* n x BENCH_PREFIX_TOKENS */
    uint32_t *order;
    uint64_t *ns; /* of each */
    uint64_t rounds;
    uint32_t ids[PREFIX_BLOCKS];
};

/* What one core can reach. Some machines add up the caches of all their dies. */
static size_t cache_bytes(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (l3 < 32 << 20)
        return 32 << 20;
    return l3 < 96 << 20 ? (size_t)l3 : 96 << 20;
}

void *index_cold_begin(void)
{
    struct cold *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->n = (uint32_t)(4 * cache_bytes() / PREFIX_BYTES);
    c->query = aligned_alloc(64, (size_t)c->n * PREFIX_BYTES);
    c->same = aligned_alloc(64, (size_t)c->n * PREFIX_BYTES);
    c->order = malloc(c->n * sizeof *c->order);
    c->ns = malloc(c->n * sizeof *c->ns);
    c->index = bench_index_new(c->n * PREFIX_BLOCKS + 1);
    if (!c->query || !c->same || !c->order || !c->ns || !c->index) {
        index_cold_end(c);
        return NULL;
    }
    bench_fill_tokens(c->query, (size_t)c->n * BENCH_PREFIX_TOKENS, 2);
    memcpy(c->same, c->query, (size_t)c->n * PREFIX_BYTES);
    for (uint32_t i = 0; i < c->n; i++)
        bench_index_add(c->index, c->query + (size_t)i * BENCH_PREFIX_TOKENS, PREFIX_BLOCKS);
    return c;
}

double index_cold_value(void *self)
{
    struct cold *c = self;
    shuffle(c->order, c->n, c->rounds++);
    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t *query = c->query + (size_t)c->order[i] * BENCH_PREFIX_TOKENS;
        uint64_t before = clock_ns();
        if (!bench_index_match(c->index->view, query, PREFIX_BLOCKS, c->ids))
            return miss();
        c->ns[i] = clock_ns() - before;
    }
    return (double)quantile(c->ns, c->n, 500);
}

double index_cold_baseline(void *self)
{
    struct cold *c = self;
    shuffle(c->order, c->n, c->rounds++);
    for (uint32_t i = 0; i < c->n; i++) {
        size_t at = (size_t)c->order[i] * BENCH_PREFIX_TOKENS;
        uint64_t before = clock_ns();
        int differs = memcmp(c->query + at, c->same + at, PREFIX_BYTES);
        bench_clobber((void *)(intptr_t)differs);
        c->ns[i] = clock_ns() - before;
    }
    return (double)quantile(c->ns, c->n, 500);
}

void index_cold_end(void *self)
{
    struct cold *c = self;
    bench_index_free(c->index);
    free(c->query);
    free(c->same);
    free(c->order);
    free(c->ns);
    free(c);
}

/* ---- index.scale -------------------------------------------------------------------------- */

/* A sequence: a beginning that a thousand share, and its own end. */
enum {
    SCALE_SHARED = 8,
    SCALE_BLOCKS = 32,
    SCALE_GROUP = 1000,
    SCALE_LARGE = 10 * 1000 * 1000,
    SCALE_SMALL = 100 * 1000,
    SCALE_BATCH = 8,
    SCALE_BATCHES = 32,
    SCALE_TOKENS = SCALE_BLOCKS * BENCH_BLOCK_TOKENS,
};

struct scale {
    struct bench_index *large, *small;
    uint32_t n_large, n_small; /* sequences */
    uint8_t *flush;
    size_t flush_bytes;
    uint64_t draws;
    uint32_t query[SCALE_BATCH][SCALE_TOKENS];
    uint32_t ids[SCALE_BLOCKS];
};

static void scale_tokens(uint32_t *to, uint32_t sequence)
{
    bench_fill_tokens(to, SCALE_SHARED * BENCH_BLOCK_TOKENS, sequence / SCALE_GROUP);
    bench_fill_tokens(to + SCALE_SHARED * BENCH_BLOCK_TOKENS,
                      (SCALE_BLOCKS - SCALE_SHARED) * BENCH_BLOCK_TOKENS, 1000000000ull + sequence);
}

static struct bench_index *scale_fill(uint32_t n_blocks, uint32_t *n)
{
    struct bench_index *b = bench_index_new(n_blocks + SCALE_BLOCKS);
    uint32_t tokens[SCALE_TOKENS];
    for (*n = 0; b && bench_index_cached(b) < n_blocks; ++*n) {
        scale_tokens(tokens, *n);
        bench_index_add(b, tokens, SCALE_BLOCKS);
    }
    return b;
}

void *index_scale_begin(void)
{
    struct scale *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->flush_bytes = 3 * cache_bytes();
    s->flush = malloc(s->flush_bytes);
    s->small = scale_fill(SCALE_SMALL, &s->n_small);
    s->large = s->small ? scale_fill(SCALE_LARGE, &s->n_large) : NULL;
    if (s->flush && s->large)
        return s;
    index_scale_end(s);
    return NULL;
}

/* Write every line of a buffer that no cache holds: what was there before is gone. */
static void flush_caches(struct scale *s)
{
    for (size_t i = 0; i < s->flush_bytes; i += 64)
        s->flush[i]++;
    bench_clobber(s->flush);
}

static double scale_time(struct scale *s, const struct bench_index *b, uint32_t n)
{
    uint64_t ns[SCALE_BATCH * SCALE_BATCHES];
    for (int batch = 0; batch < SCALE_BATCHES; batch++) {
        for (int i = 0; i < SCALE_BATCH; i++)
            scale_tokens(s->query[i], (uint32_t)(random_word(3, s->draws++) % n));
        flush_caches(s);
        for (int i = 0; i < SCALE_BATCH; i++) {
            uint64_t before = clock_ns();
            bool found = bench_index_match(b->view, s->query[i], SCALE_BLOCKS, s->ids);
            ns[batch * SCALE_BATCH + i] = clock_ns() - before;
            if (!found)
                return miss();
        }
    }
    return (double)quantile(ns, SCALE_BATCH * SCALE_BATCHES, 500);
}

double index_scale_value(void *self)
{
    struct scale *s = self;
    return scale_time(s, s->large, s->n_large);
}

double index_scale_baseline(void *self)
{
    struct scale *s = self;
    return scale_time(s, s->small, s->n_small);
}

void index_scale_end(void *self)
{
    struct scale *s = self;
    bench_index_free(s->large);
    bench_index_free(s->small);
    free(s->flush);
    free(s);
}
