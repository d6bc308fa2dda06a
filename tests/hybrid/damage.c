#include "tests/hybrid/damage.h"

#include <string.h>

void damage_state(void *arg, float *state, uint32_t *depth)
{
    struct damaged *d = arg;
    d->done++;
    switch (d->damage) {
    case DAMAGE_NONE:
        break;
    case DAMAGE_EARLY:
        --*depth;
        break;
    case DAMAGE_LATE:
        ++*depth;
        break;
    case DAMAGE_FOREIGN:
        memcpy(state, d->foreign, hybrid_state_bytes(d->model));
        break;
    case DAMAGE_NO_WINDOW:
        hybrid_lose(d->model, state, HYBRID_WINDOW);
        break;
    case DAMAGE_NO_MEMORY:
        hybrid_lose(d->model, state, HYBRID_MEMORY);
        break;
    }
}
