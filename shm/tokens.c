#include "shm/tokens.h"
#include "shm/atomic.h"
#include "shm/sanitized.h"

#include <string.h>

#if defined(__x86_64__) && !SANITIZED_THREAD
#define TOKENS_VECTOR 1
#endif

size_t tokens_match_atomic(const uint32_t *shared, const uint32_t *mine, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (shm_load(shared + i) != mine[i])
            return i;
    return n;
}

#ifdef TOKENS_VECTOR
#include <immintrin.h>

/* asm volatile: exactly this load, exactly once. The memory operand tells the compiler what is
 * read, so nothing else is ordered or flushed around it. */
__attribute__((target("avx2"))) static inline __m256i load_shared(const uint32_t *at)
{
    __m256i v;
    __asm__ __volatile__("vmovdqu %1, %0" : "=x"(v) : "m"(*(const __m256i_u *)(const void *)at));
    return v;
}

__attribute__((target("avx2"))) static inline __m256i load_mine(const uint32_t *at)
{
    return _mm256_loadu_si256((const __m256i_u *)(const void *)at);
}

/* 32 tokens a turn: the differences of four vectors are gathered before one test. Which token
 * differs is found again, exactly, by the tail loop (it may have changed since: a version check
 * follows in any case). */
__attribute__((target("avx2"))) static size_t match_avx2(const uint32_t *shared,
                                                         const uint32_t *mine, size_t n)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = _mm256_xor_si256(load_shared(shared + i), load_mine(mine + i));
        __m256i b = _mm256_xor_si256(load_shared(shared + i + 8), load_mine(mine + i + 8));
        __m256i c = _mm256_xor_si256(load_shared(shared + i + 16), load_mine(mine + i + 16));
        __m256i d = _mm256_xor_si256(load_shared(shared + i + 24), load_mine(mine + i + 24));
        __m256i any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
        if (!_mm256_testz_si256(any, any))
            break;
    }
    for (; i + 8 <= n; i += 8) {
        __m256i a = _mm256_xor_si256(load_shared(shared + i), load_mine(mine + i));
        if (!_mm256_testz_si256(a, a))
            break;
    }
    return i + tokens_match_atomic(shared + i, mine + i, n - i);
}

/* The same with vectors of 64 bytes, 64 tokens a turn. */
__attribute__((target("avx512f"))) static inline __m512i load_shared_512(const uint32_t *at)
{
    __m512i v;
    __asm__ __volatile__("vmovdqu32 %1, %0" : "=v"(v) : "m"(*(const __m512i_u *)(const void *)at));
    return v;
}

__attribute__((target("avx512f"))) static inline __m512i differ_512(const uint32_t *shared,
                                                                    const uint32_t *mine)
{
    return _mm512_xor_si512(load_shared_512(shared), _mm512_loadu_si512((const void *)mine));
}

__attribute__((target("avx512f"))) static size_t match_avx512(const uint32_t *shared,
                                                              const uint32_t *mine, size_t n)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512i ab = _mm512_or_si512(differ_512(shared + i, mine + i),
                                     differ_512(shared + i + 16, mine + i + 16));
        __m512i cd = _mm512_or_si512(differ_512(shared + i + 32, mine + i + 32),
                                     differ_512(shared + i + 48, mine + i + 48));
        __m512i any = _mm512_or_si512(ab, cd);
        if (_mm512_test_epi32_mask(any, any))
            break;
    }
    for (; i + 16 <= n; i += 16) {
        __m512i a = differ_512(shared + i, mine + i);
        if (_mm512_test_epi32_mask(a, a))
            break;
    }
    return i + tokens_match_atomic(shared + i, mine + i, n - i);
}

size_t tokens_match(const uint32_t *shared, const uint32_t *mine, size_t n)
{
    if (__builtin_cpu_supports("avx512f"))
        return match_avx512(shared, mine, n);
    if (__builtin_cpu_supports("avx2"))
        return match_avx2(shared, mine, n);
    return tokens_match_atomic(shared, mine, n);
}

__attribute__((target("avx2"))) static size_t copy_avx2(uint32_t *to, const uint32_t *shared,
                                                        size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_si256((__m256i_u *)(void *)(to + i), load_shared(shared + i));
    return i;
}
#else
size_t tokens_match(const uint32_t *shared, const uint32_t *mine, size_t n)
{
    return tokens_match_atomic(shared, mine, n);
}
#endif

void tokens_copy(uint32_t *to, const uint32_t *shared, size_t n)
{
    size_t i = 0;
#ifdef TOKENS_VECTOR
    if (__builtin_cpu_supports("avx2"))
        i = copy_avx2(to, shared, n);
#endif
    for (; i < n; i++)
        to[i] = shm_load(shared + i);
}

void tokens_store(uint32_t *shared, const uint32_t *from, size_t n)
{
#ifdef TOKENS_VECTOR
    memcpy(shared, from, n * sizeof *from); /* readers throw away what they see meanwhile */
#else
    for (size_t i = 0; i < n; i++)
        shm_store(shared + i, from[i]);
#endif
}
