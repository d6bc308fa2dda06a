#include "shm/atomic.h"

#define shm_full_fence() __asm__ __volatile__("" ::: "memory")
#define SIDE(name)       doze_weak_##name
#include "tests/litmus/doze_sides.h"
