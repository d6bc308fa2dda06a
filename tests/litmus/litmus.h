/* litmus.h - two threads that do the two halves of an ordering edge at the same moment. */
#ifndef TESTS_LITMUS_H
#define TESTS_LITMUS_H

#include <stdbool.h>
#include <stdint.h>

struct doze_slot {
    uint32_t tail;
    uint32_t pad0[15];
    uint32_t doze;
    uint32_t pad1[15];
};

bool doze_strong_sleeper(struct doze_slot *s);
bool doze_strong_writer(struct doze_slot *s);
bool doze_weak_sleeper(struct doze_slot *s);
bool doze_weak_writer(struct doze_slot *s);

#endif
