#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <time.h>

static void (*make_unit)(uint8_t *unit, struct rng *r);

void mutate_unit_made(void (*make)(uint8_t *unit, struct rng *r))
{
    make_unit = make;
}

uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint32_t odd_number(struct rng *r)
{
    static const uint32_t edges[] = {
        0,   1,   2,    3,     4,     5,      8,       16,        63,       64,        65,
        255, 256, 4096, 65535, 65536, 262144, 1048576, INT32_MAX, 1u << 31, UINT32_MAX};
    switch (rng_below(r, 4)) {
    case 0:
        return (uint32_t)rng_next(r);
    case 1:
        return rng_below(r, 256);
    default:
        return edges[rng_below(r, sizeof edges / sizeof edges[0])];
    }
}

static uint32_t small(struct rng *r, size_t most)
{
    uint32_t n = 1u << rng_below(r, 7);
    n = 1 + rng_below(r, n);
    return n < most ? n : (uint32_t)most;
}

static void change_word(uint8_t *at, size_t n, struct rng *r)
{
    uint32_t word = odd_number(r), bytes = 1u << rng_below(r, 3);
    if (bytes > n)
        bytes = 1;
    size_t to = rng_below(r, (uint32_t)(n / bytes)) * bytes;
    if (rng_below(r, 3) == 0)
        at[to] ^= (uint8_t)(1u << rng_below(r, 8));
    else if (rng_below(r, 3) == 0)
        at[to] = (uint8_t)(at[to] + rng_below(r, 9) - 4);
    else
        memcpy(at + to, &word, bytes);
}

static size_t insert_at(uint8_t *bytes, size_t n, size_t at, size_t gap)
{
    memmove(bytes + at + gap, bytes + at, n - at);
    return n + gap;
}

static size_t remove_at(uint8_t *bytes, size_t n, size_t at, size_t gap)
{
    memmove(bytes + at, bytes + at + gap, n - at - gap);
    return n - gap;
}

static size_t change_bytes(uint8_t *bytes, size_t n, struct rng *r)
{
    uint32_t dice = n ? rng_below(r, 8) : 0;
    size_t at = rng_below(r, (uint32_t)n + 1), gap;
    switch (dice) {
    case 0: /* something new */
    case 1: /* or the same again */
        gap = small(r, FUZZ_INPUT - n);
        if (dice == 1 && gap > n - at)
            gap = n - at < FUZZ_INPUT - n ? n - at : FUZZ_INPUT - n;
        n = insert_at(bytes, n, at, gap);
        for (size_t i = 0; dice == 0 && i < gap; i++)
            bytes[at + i] = (uint8_t)(rng_below(r, 2) ? 0x20 + rng_below(r, 0x5f) : odd_number(r));
        return n;
    case 2:
        gap = small(r, n);
        return remove_at(bytes, n, rng_below(r, (uint32_t)(n - gap) + 1), gap);
    case 3: /* its end */
        return rng_below(r, 8) ? n : rng_below(r, (uint32_t)n);
    default:
        change_word(bytes, n, r);
        return n;
    }
}

size_t mutate_bytes(uint8_t *bytes, size_t n, struct rng *r)
{
    for (uint32_t i = small(r, 8); i; i--)
        n = change_bytes(bytes, n, r);
    return n;
}

static void new_unit(uint8_t *at, size_t unit, struct rng *r)
{
    if (make_unit) {
        make_unit(at, r);
        return;
    }
    for (size_t i = 0; i < unit; i++)
        at[i] = (uint8_t)rng_next(r);
}

static size_t change_units(uint8_t *bytes, size_t n, size_t head, size_t unit, struct rng *r)
{
    static uint8_t copy[FUZZ_INPUT];
    size_t units = (n - head) / unit, room = (FUZZ_INPUT - head) / unit;
    uint8_t *first = bytes + head;
    size_t at = rng_below(r, (uint32_t)units + 1), one;
    uint32_t dice = rng_below(r, 10), gap = small(r, 8);
    if (units == 0 || (dice < 4 && units < room)) {
        n = insert_at(bytes, n, head + at * unit, unit);
        new_unit(first + at * unit, unit, r);
        return n;
    }
    if (units < gap)
        gap = (uint32_t)units;
    one = rng_below(r, (uint32_t)(units - gap) + 1);
    switch (dice) {
    case 4:
        return remove_at(bytes, n, head + one * unit, gap * unit);
    case 5: /* the same once more */
        if (units + gap > room)
            return n;
        memcpy(copy, first + one * unit, gap * unit);
        n = insert_at(bytes, n, head + at * unit, gap * unit);
        memcpy(first + at * unit, copy, gap * unit);
        return n;
    case 6: /* in another's place */
        at = at < units ? at : units - 1;
        memmove(first + at * unit, first + one * unit, unit);
        return n;
    case 7:
        change_word(bytes, head ? head : n, r);
        return n;
    default:
        change_word(first + rng_below(r, (uint32_t)units) * unit, unit, r);
        return n;
    }
}

size_t mutate_units(uint8_t *bytes, size_t n, size_t head, size_t unit, struct rng *r)
{
    if (n < head) {
        memset(bytes + n, 0, head - n);
        n = head;
    }
    n -= (n - head) % unit;
    for (uint32_t i = small(r, 8); i; i--)
        n = change_units(bytes, n, head, unit, r);
    return n;
}
