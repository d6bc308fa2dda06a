/* The entry points that libFuzzer asks for. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most);

__attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_one(bytes, n);
    return 0;
}

/* Most often ours, which knows the structure; sometimes its own, which knows what was compared. */
__attribute__((visibility("default"))) size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n,
                                                                      size_t most, unsigned seed)
{
    static uint8_t copy[FUZZ_INPUT];
    struct rng r = {.state = seed};
    if (most < FUZZ_INPUT || n > FUZZ_INPUT || rng_below(&r, 4) == 0)
        return LLVMFuzzerMutate(bytes, n, most);
    memcpy(copy, bytes, n);
    n = fuzz_mutate(copy, n, &r);
    memcpy(bytes, copy, n);
    return n;
}
