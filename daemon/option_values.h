/*
 * option_values.h - from text to values. Each returns true, or false and the rest of a sentence
 * that begins with the option and its value.
 */
#ifndef DAEMON_OPTION_VALUES_H
#define DAEMON_OPTION_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct why {
    char text[256];
};

/* Digits alone, min..max. */
bool value_count(const char *text, uint64_t min, uint64_t max, uint64_t *out, struct why *why);
/* Digits and K, M, G or T (powers of 1024). */
bool value_size(const char *text, uint64_t *out, struct why *why);
/* A finite decimal number, 0 or more. */
bool value_number(const char *text, double *out, struct why *why);
bool value_switch(const char *text, bool *out, struct why *why);
/* A name of the user or group database, or a number. */
bool value_user(const char *text, uint32_t *out, struct why *why);
bool value_group(const char *text, uint32_t *out, struct why *why);

bool value_refuse(struct why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
