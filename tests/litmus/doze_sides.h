/*
 * The two sides of DOZE, compiled twice: doze_strong.c as shm/ring.h has it, doze_weak.c with both
 * full fences turned into compiler barriers and nothing else changed.
 *
 *      sleeper (DOZE-1)             writer (DOZE-2)
 *      doze = odd                   tail = 1
 *      FULL FENCE                   FULL FENCE
 *      sleeps if tail == 0          wakes if doze is odd
 *
 * Both "sleeps" and "does not wake": a sleeper that nobody wakes, on a ring that is not empty.
 */
#include "shm/ring.h"
#include "tests/litmus/litmus.h"

bool SIDE(sleeper)(struct doze_slot *s)
{
    doze_begin(&s->doze);
    return shm_load(&s->tail) == 0;
}

bool SIDE(writer)(struct doze_slot *s)
{
    uint32_t answered = 0;
    shm_store_release(&s->tail, 1); /* as ring_post ends */
    return doze_must_wake(&s->doze, &answered);
}
