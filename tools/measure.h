/*
 * measure.h - time, quantiles and cores, for replay and bench.
 */
#ifndef TOOLS_MEASURE_H
#define TOOLS_MEASURE_H

#include "shm/clock.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sorts; per_mille 500 is the median. 0 of nothing. */
uint64_t quantile(uint64_t *value, size_t n, unsigned per_mille);

/* A fast deterministic generator: the n-th word after a seed (splitmix64). */
static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t random_word(uint64_t seed, uint64_t n)
{
    return mix64(seed + (n + 1) * 0x9e3779b97f4a7c15ull);
}

/* 0 .. n-1 in an order that follows from the seed. */
void shuffle(uint32_t *order, uint32_t n, uint64_t seed);

/* Two cores that this process may use and that are no hyperthreads of each other, where there are
 * two; `third` is another one, or -1. False: there is one only. */
struct cores {
    int mine, other, third;
};
bool cores_choose(struct cores *cores);
void cores_pin(int pid, int core); /* pid 0: the caller; core -1: leave it as it is */

/* Set by SIGINT, SIGTERM and SIGHUP once interrupt_catch was called: clean up, then call
 * interrupt_raise, which ends the process as the signal would have. */
extern volatile sig_atomic_t interrupted;
void interrupt_catch(void);
void interrupt_raise(void);

#endif
