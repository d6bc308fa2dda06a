/*
 * block_copy.h - many pieces of memory copied by one launch, from a list: pages gathered into a
 * staging buffer, or scattered from one. The code of one lane, for the GPU (block_copy.cu) and, the
 * same lines, for the CPU (tests, and a driver that is not real).
 *
 *      pieces     [ 0: to, from, bytes ] [ 1 ] [ 2 ] ...            in device memory
 *                   |
 *                   v    each cut into chunks of 8 KiB, the last one shorter
 *      chunks     | 0.0 | 0.1 | 0.2 | 0.3 | 1.0 | 1.1 | ...         numbered through
 *                    ^     ^     ^
 *      warps         0     1     2   ...  then on by the number of warps in the grid
 *
 * A warp copies a chunk in steps of 2 KiB: each lane has four loads of 16 bytes under way before it
 * stores the first, and what the 32 lanes touch at a time is contiguous. So a grid of any size does
 * any list; how many warps there are is a matter of how much of the GPU is left to others.
 *
 * Every piece has as many chunk numbers as the longest: `chunks_each`. Of a shorter one, the
 * numbers past its end are skipped. (Pages are of one size; only runs of neighbours differ.)
 *
 * Where `to` and `from` differ modulo 16, no 16-byte access is possible and all goes by bytes:
 * right, and slow. Pages and staging buffers are made so that it does not happen. What stands
 * before the first multiple of 16 and after the last goes by bytes too.
 */
#ifndef KERNELS_BLOCK_COPY_H
#define KERNELS_BLOCK_COPY_H

#include <stdint.h>

struct copy_piece {
    uint64_t to, from; /* addresses */
    uint64_t bytes;
};

/* Where a lane stands in the launch. */
struct copy_place {
    uint32_t block, n_blocks;
    uint32_t thread, n_threads; /* of the block; whole warps */
};

enum {
    COPY_WARP = 32,
    COPY_AHEAD = 4, /* loads of a lane under way */
    COPY_CHUNK = 8192,
    COPY_THREADS = 256, /* of a block, as block_copy.cu is compiled for */
};

#define COPY_KERNEL "block_copy" /* its name in the image */

#ifdef __CUDACC__
#define COPY_CODE static __host__ __device__ __forceinline__
#else
#define COPY_CODE static inline
#endif

#ifdef __CUDA_ARCH__
/* Neither side is read again soon: nothing of it needs to stay in the caches. */
typedef uint4 copy_word;
#define COPY_LOAD(from)      __ldcs(from)
#define COPY_STORE(to, word) __stcs((to), (word))
#define COPY_UNROLL          _Pragma("unroll")
#define COPY_ROLLED          _Pragma("unroll 1") /* a tail: registers are worth more */
#else
typedef struct {
    uint32_t part[4];
} __attribute__((aligned(16), may_alias)) copy_word;
#define COPY_LOAD(from)      (*(from))
#define COPY_STORE(to, word) (*(to) = (word))
#define COPY_UNROLL
#define COPY_ROLLED
#endif

/* Chunks of a piece of so many bytes. */
COPY_CODE uint64_t copy_chunks(uint64_t bytes)
{
    return (bytes + COPY_CHUNK - 1) / COPY_CHUNK;
}

/* n words of 16 bytes, both sides aligned to that. */
COPY_CODE void copy_words(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t lane)
{
    copy_word *t = (copy_word *)to;
    const copy_word *f = (const copy_word *)from;
    uint32_t i = lane;
    for (; i + (COPY_AHEAD - 1) * COPY_WARP < n; i += COPY_AHEAD * COPY_WARP) {
        copy_word ahead[COPY_AHEAD];
        COPY_UNROLL
        for (int k = 0; k < COPY_AHEAD; k++)
            ahead[k] = COPY_LOAD(&f[i + k * COPY_WARP]);
        COPY_UNROLL
        for (int k = 0; k < COPY_AHEAD; k++)
            COPY_STORE(&t[i + k * COPY_WARP], ahead[k]);
    }
    COPY_ROLLED
    for (; i < n; i += COPY_WARP)
        COPY_STORE(&t[i], COPY_LOAD(&f[i]));
}

/* A lane's share of one chunk. */
COPY_CODE void copy_chunk(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t lane)
{
    uint32_t head = (uint32_t)(0 - (uintptr_t)to) % 16;
    if (((uintptr_t)to ^ (uintptr_t)from) % 16 || head > n)
        head = n;
    uint32_t words = (n - head) / 16;
    COPY_ROLLED
    for (uint32_t i = lane; i < head; i += COPY_WARP)
        to[i] = from[i];
    copy_words(to + head, from + head, words, lane);
    COPY_ROLLED
    for (uint32_t i = head + 16 * words + lane; i < n; i += COPY_WARP)
        to[i] = from[i];
}

/* A lane's share of all. n_pieces x chunks_each is less than 2^32. */
COPY_CODE void block_copy_lane(const struct copy_piece *pieces, uint32_t n_pieces,
                               uint32_t chunks_each, struct copy_place at)
{
    uint32_t warps = at.n_threads / COPY_WARP, lane = at.thread % COPY_WARP;
    uint64_t all = (uint64_t)n_pieces * chunks_each;
    for (uint64_t c = at.block * warps + at.thread / COPY_WARP; c < all; c += at.n_blocks * warps) {
        const struct copy_piece *p = &pieces[(uint32_t)c / chunks_each];
        uint64_t begin = (uint64_t)((uint32_t)c % chunks_each) * COPY_CHUNK, bytes = p->bytes;
        if (begin >= bytes)
            continue;
        uint64_t n = bytes - begin < COPY_CHUNK ? bytes - begin : COPY_CHUNK;
        copy_chunk((uint8_t *)(uintptr_t)p->to + begin, (const uint8_t *)(uintptr_t)p->from + begin,
                   (uint32_t)n, lane);
    }
}

#endif
