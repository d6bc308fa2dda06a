/* rows.h - what only the daemon knows, row by row, by its admin channel. */
#ifndef TESTS_DEATH_ROWS_H
#define TESTS_DEATH_ROWS_H

#include "shm/message.h"
#include "tests/harness.h"

enum { ROWS_MAX = 64 };

struct workers {
    struct worker_row row[ROWS_MAX];
    uint32_t n;
};

/* Needs one audit_clean before, which makes the connection. */
void workers_now(const struct host *h, struct workers *w);
/* Of that name; NULL: not attached. */
const struct worker_row *workers_find(const struct workers *w, const char *name);
const struct worker_row *workers_find_pid(const struct workers *w, pid_t pid);

#endif
