/* run.h - a program run to its end, its two streams apart, and its JSON. */
#ifndef TESTS_TOOLS_RUN_H
#define TESTS_TOOLS_RUN_H

#include "tests/harness.h"

#include <jansson.h>

struct said {
    int code; /* exit status */
    char out[32768], err[4096];
};

/* The words after the program's name; NULL ends them. One that does not end in time is killed and
 * fails the test, and so does one that dies by a signal. uid: who runs it, 0 for the tests' own. */
void run_as(uid_t uid, struct said *s, const char *path, const char *const *words);
#define RUN(s, path, ...)                                                                          \
    run_as(0, (s), (path), (const char *const[]){(path), __VA_ARGS__, NULL} + 1)

#define PREFIXD(s, ...) RUN((s), prefixd_path(), __VA_ARGS__)
/* prefixctl of this daemon. */
#define CTL(s, host, ...) RUN((s), prefixctl_path(), __VA_ARGS__, "--socket", (host)->socket)

/* It ended with 0 and printed one JSON object, which is the caller's. */
json_t *json_said(const struct said *s);
/* A whole number that must be there. */
int64_t number_of(const json_t *object, const char *field);
const char *text_of(const json_t *object, const char *field);

/* One sentence on stderr and nothing on stdout: exit `code`, one line, and this in it. */
void refused(const struct said *s, int code, const char *needle);

#endif
