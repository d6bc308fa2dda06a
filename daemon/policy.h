/*
 * policy.h - which leaf goes first. A policy ranks the last block of an evictable leaf; the lowest
 * rank is the next victim.
 */
#ifndef DAEMON_POLICY_H
#define DAEMON_POLICY_H

#include <stdint.h>

struct policy {
    const char *name;
    const char *help;
    uint64_t (*rank)(uint64_t last_use, uint32_t depth);
};

/* NULL: no policy of that name. */
const struct policy *policy_find(const char *name);
const struct policy *policy_at(unsigned i); /* NULL past the last */

#endif
