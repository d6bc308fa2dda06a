#include "tests/cuda/lanes.h"

#include <stdlib.h>

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

void lanes_run(const struct copy_piece *pieces, uint32_t n_pieces, uint32_t chunks_each,
               uint32_t n_blocks, uint32_t n_threads, uint64_t seed)
{
    uint32_t n = n_blocks * n_threads, *order = calloc(n, sizeof *order);
    if (!order)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)(next(&seed) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct copy_place at = {order[i] / n_threads, n_blocks, order[i] % n_threads, n_threads};
        block_copy_lane(pieces, n_pieces, chunks_each, at);
    }
    free(order);
}
