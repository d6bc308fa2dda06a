/*
 * pocket.h - a driver in the test's own process, for what must be exact: nothing runs before it is
 * asked about, calls are counted, any one of them can fail, and each kind of work can be given a
 * price in time. Device memory is plain memory.
 */
#ifndef TESTS_CUDA_POCKET_H
#define TESTS_CUDA_POCKET_H

#include "kernels/cuda_driver.h"

struct pocket {
    struct cuda_driver cu;
    void *context;
    /* since pocket_init */
    unsigned n_calls, n_launches, n_copies, n_batches;
    /* live: streams, events, allocations, modules, registrations; contexts pushed */
    int n_live, n_pushed;
    unsigned n_waiting; /* operations */
    unsigned fail_call; /* the n-th call fails, and a launch or copy is not done; 0: none */
    const char *fail;   /* every call of this name fails */
    int error;          /* with this */
    /* How many operations an event's query lets run: what is not done is not there. */
    unsigned per_query;
    /* What a copy, a launch and a batch take by a clock that only they move on: clock_gettime, as
     * long as it runs. Nothing else is done then. */
    bool clock;
    unsigned copy_us, launch_us, batch_us;
    uint64_t time_us;
};

extern struct pocket pocket;

/* As new. */
void pocket_init(void);

#endif
