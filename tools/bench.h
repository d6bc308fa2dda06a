/*
 * bench.h - rows of measurements (design section 11) and what they share.
 *
 *   bench.c            the table of rows; pairs, medians, output
 *   bench_index.c      an index in this process: index.*
 *   bench_evict.c      a full one: evict.*
 *   bench_memory.c     what a cached block costs: memory.*
 *   bench_rig.c        a private daemon on the other core, and the least that two cores can do
 *   bench_channel.c    its rows: ring, lookup, peek
 *   bench_snapshots.c  two of them, one with snapshots: snapshots
 *   bench_idle.c       a private daemon with nothing to do: idle
 *   bench_swap.h       what moves bytes to a disk and back: swap
 */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include "daemon/index.h"
#include "daemon/space.h"
#include "tools/tool.h"

/* A row is measured in pairs: a value, then its baseline, in turn, so that both see the same
 * machine. Each of the two returns the median or mean of many calls, or a negative number after a
 * sentence on stderr. What is reported is the pair of the median ratio. */
struct bench_row {
    const char *name, *unit;
    const char *baseline_name;
    double budget; /* of value / baseline, at most; 0: none */
    unsigned pairs;
    void *(*begin)(void); /* NULL after a sentence: it cannot be measured here */
    double (*value)(void *);
    double (*baseline)(void *); /* NULL: 1, so that the budget is one of the value itself */
    void (*end)(void *);
    bool at_least; /* the budget is a floor */
    /* What else is known of all pairs, or NULL: more fields of the row's JSON. */
    void (*more)(void *, struct json_t *);
};

/* --dir: where rows that need a disk make their files. */
extern const char *bench_dir;

/* begin, value, baseline, end of each row; named in the table of bench.c. */
#define BENCH_ROW(name)                                                                            \
    void *name##_begin(void);                                                                      \
    double name##_value(void *);                                                                   \
    double name##_baseline(void *);                                                                \
    void name##_end(void *)
BENCH_ROW(index_hot);
BENCH_ROW(index_cold);
BENCH_ROW(index_scale);
BENCH_ROW(lookup_p50);
BENCH_ROW(lookup_busy);
BENCH_ROW(peek_hot);
BENCH_ROW(ring_p50);
BENCH_ROW(snapshots_lookup);
void *evict_runs_begin(void), *evict_single_begin(void);
double evict_value(void *);
void evict_end(void *);
void *memory_runs_begin(void), *memory_truncated_begin(void), *memory_single_begin(void);
double memory_value(void *);
void memory_end(void *);
void *swap_read_64k_begin(void), *swap_read_256k_begin(void), *swap_read_1m_begin(void);
void *swap_write_64k_begin(void), *swap_write_256k_begin(void), *swap_write_1m_begin(void);
double swap_value(void *);
double swap_baseline(void *);
void swap_end(void *);
void swap_more(void *, struct json_t *);
BENCH_ROW(swap_lookup);
void swap_lookup_more(void *, struct json_t *);
void *swap_restart_begin(void);
double swap_restart_value(void *);
void swap_restart_more(void *, struct json_t *);
void swap_restart_end(void *);
void *idle_begin(void);
double idle_value(void *);
void idle_end(void *);

/* ---- an index in this process, as the daemon has it ------------------------------------ */

enum { BENCH_BLOCK_TOKENS = 16, BENCH_PREFIX_TOKENS = 32768 };

struct bench_index {
    void *region;
    uint64_t bytes;
    struct pool pool;
    struct index *index;
    struct spaces *spaces;
    const struct index_view *view;
    uint32_t root;
    uint32_t *page; /* scratch of bench_index_add */
    uint8_t *taken;
};

struct bench_index *bench_index_new(uint32_t n_blocks); /* NULL after a sentence */
void bench_index_free(struct bench_index *b);
/* Cache what is missing of these whole blocks. Returns the place where they end. */
struct place bench_index_add(struct bench_index *b, const uint32_t *tokens, uint32_t n_blocks);
uint32_t bench_index_cached(const struct bench_index *b);

/* Match as a client does, block ids copied out. False: not all of it is there. */
bool bench_index_match(const struct index_view *v, const uint32_t *tokens, uint32_t n_blocks,
                       uint32_t *ids);

void bench_fill_tokens(uint32_t *to, size_t n, uint64_t seed);

/* Keep the compiler from knowing what is in memory, or that a result is not used. */
static inline void bench_clobber(const void *p)
{
    __asm__ __volatile__("" : : "g"(p) : "memory");
}

#endif
