/*
 * fuzz.h - a target is a function of bytes that fails loudly; here is what drives it.
 *
 *      libFuzzer (clang, -Dfuzzers=true)  --\
 *      AFL++ (afl-clang-fast, stdin)      ---+--> fuzz_one(bytes)
 *      the bounded test (any compiler)    --/        the same property each time
 *
 * A target of the daemon's has it in this process (house.h) and promises: it lives, its audit is
 * clean, and a second, honest worker gets right bytes, in time.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "tests/harness.h"

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_INPUT = 4096 /* bytes at most */ };

/* ---- what a target defines ---- */

extern const char fuzz_name[];
void fuzz_one(const uint8_t *bytes, size_t n);
/* The i-th input that somebody thought of; 0: there are no more. */
size_t fuzz_seed(unsigned i, uint8_t *to);
/* A change, in place: *bytes has room for FUZZ_INPUT. Returns the new length. */
size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r);

/* ---- what it may use ---- */

/* Bytes know nothing of structure: flips, runs, numbers at an edge, inserted, removed, doubled. */
size_t mutate_bytes(uint8_t *bytes, size_t n, struct rng *r);
/* The input is a head and then units of one size: whole units are inserted, removed, doubled,
 * moved; words of one are changed. */
size_t mutate_units(uint8_t *bytes, size_t n, size_t head, size_t unit, struct rng *r);
/* A number that is often at an edge. */
uint32_t odd_number(struct rng *r);
/* Make one of the units of mutate_units; a target may have better ideas. */
void mutate_unit_made(void (*make)(uint8_t *unit, struct rng *r));

/* Time of this process's processor: other load does not count. */
uint64_t cpu_ns(void);

#endif
