#include "tests/unit/hooked_read.h"
#include "shm/atomic.h"
#include "shm/tokens.h"

void (*hooked_between_loads)(void);

#undef shm_load
#undef shm_load_acquire
#define shm_load(p)         (hooked_between_loads(), __atomic_load_n((p), __ATOMIC_RELAXED))
#define shm_load_acquire(p) (hooked_between_loads(), __atomic_load_n((p), __ATOMIC_ACQUIRE))

/* Changes before a run is compared and in the middle of it: before each of its tokens, a long run
 * would never be read in one piece. */
static size_t hooked_match(const uint32_t *shared, const uint32_t *mine, size_t n)
{
    hooked_between_loads();
    size_t half = tokens_match(shared, mine, n / 2);
    if (half < n / 2)
        return half;
    hooked_between_loads();
    return half + tokens_match(shared + half, mine + half, n - half);
}

static void hooked_copy(uint32_t *to, const uint32_t *shared, size_t n)
{
    hooked_between_loads();
    tokens_copy(to, shared, n / 2);
    hooked_between_loads();
    tokens_copy(to + n / 2, shared + n / 2, n - n / 2);
}

#define tokens_match hooked_match
#define tokens_copy  hooked_copy

#define index_extras_from hooked_extras_from
#define index_view_init   hooked_view_init
#define index_child_hash  hooked_child_hash
#define index_run_match   hooked_run_match
#define index_key_length  hooked_key_length
#define index_tail_limit  hooked_tail_limit
#define index_walk        hooked_index_walk
#define index_path_ids    hooked_index_path_ids
#define index_path_agrees hooked_index_path_agrees
#define index_tail_tokens hooked_index_tail_tokens
#define index_snapshots   hooked_index_snapshots
#define snapshot_key_of   hooked_snapshot_key_of
#define snapshot_compare  hooked_snapshot_compare
#define snapshot_find     hooked_snapshot_find

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* those that only this file calls */
#include "shm/index_read.c"
#include "shm/snapshot_read.c"
