/* The kernel itself: block_copy.h has what it does. */
#include "kernels/block_copy.h"

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    block_copy(const struct copy_piece *pieces, uint32_t n_pieces, uint32_t chunks_each)
{
    struct copy_place at = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
    block_copy_lane(pieces, n_pieces, chunks_each, at);
}
