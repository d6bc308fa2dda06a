/*
 * trial_tier.h - a tier to try the daemon with: it takes its time, ends transfers out of order,
 * refuses, errs and loses as it is told to, and fails the test if it is used wrongly, or if a slot
 * is touched while it is being moved.
 */
#ifndef TESTS_TRIAL_TIER_H
#define TESTS_TRIAL_TIER_H

#include "daemon/tier.h"
#include "tests/harness.h"
#include "tests/model/backend.h"
#include "tests/model/model.h"

struct trial_config {
    struct rng *rng;
    uint8_t (*slots)[STATE_BYTES]; /* 0 .. n_slots */
    uint32_t n_slots, n_blobs;
    enum fate (*fate)(void *arg, bool put); /* of one transfer */
    void *arg;
};

struct tier *trial_new(const struct trial_config *config);
uint32_t trial_blobs(const struct tier *t);     /* stored ones, not those being written */
uint32_t trial_transfers(const struct tier *t); /* under way */

#endif
