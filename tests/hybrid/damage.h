/*
 * damage.h - a state restored wrongly, on purpose: so that the proof is seen to be able to fail.
 */
#ifndef HYBRID_DAMAGE_H
#define HYBRID_DAMAGE_H

#include "tests/hybrid/hybrid_model.h"

enum damage {
    DAMAGE_NONE,
    DAMAGE_EARLY,     /* the state of depth d is taken for that of d - 1 */
    DAMAGE_LATE,      /* or for that of d + 1                            */
    DAMAGE_FOREIGN,   /* it is that of another text                      */
    DAMAGE_NO_WINDOW, /* a piece is missing: the convolution's inputs    */
    DAMAGE_NO_MEMORY, /* or the recurrence's memory                      */
};

struct damaged {
    enum damage damage;
    const struct hybrid *model;
    const float *foreign;
    unsigned done; /* how often */
};

/* A struct engine's `spoil`; arg: struct damaged. */
void damage_state(void *arg, float *state, uint32_t *depth);

#endif
