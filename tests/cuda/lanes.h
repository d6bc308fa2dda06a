/*
 * lanes.h - a launch of block_copy on the CPU: its lanes one after the other, in an order that the
 * seed decides, as no GPU promises one.
 */
#ifndef TESTS_CUDA_LANES_H
#define TESTS_CUDA_LANES_H

#include "kernels/block_copy.h"

void lanes_run(const struct copy_piece *pieces, uint32_t n_pieces, uint32_t chunks_each,
               uint32_t n_blocks, uint32_t n_threads, uint64_t seed);

#endif
