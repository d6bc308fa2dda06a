/*
 * fixture.h - what the tests of the library share: a daemon in a known state, "nothing has changed,
 * nothing was sent", and completions.
 *
 * The fixture: 64 blocks of 4 tokens, 4 snapshot slots, and one worker with
 *
 *      space      opened once; its tenant is "tenant"
 *      lease      of the base space: "aaaabbbb" matched, 3 more reserved, "cccc" inserted
 *      set aside  the completion of a lookup (tag FIX_TAG), which no other call may lose
 */
#ifndef TESTS_CLIENT_FIXTURE_H
#define TESTS_CLIENT_FIXTURE_H

#include "tests/worker.h"

enum { FIX_BLOCKS = 64, FIX_TOKENS = 4, FIX_SLOTS = 4, FIX_TAG = 77 };

struct fixture {
    struct host h;
    struct worker w;
    pfx *c; /* w.c */
    struct held lease;
    pfx_space space;
    struct seq tokens; /* of the lease */
};

void fixture_open(struct fixture *f);
/* Audits, takes the completion that was set aside, releases, stops the daemon. */
void fixture_close(struct fixture *f);

/* ---- nothing has changed ----------------------------------------------------------------- */

struct still {
    struct pfx_stats stats;
    uint64_t requests; /* that all workers ever sent */
};
struct still still_begin(struct worker *w);
/* No counter has moved and no record was posted since. */
void still_end(struct worker *w, const struct still *before, const char *what);
/* No counter has moved; records may have been posted. */
void counters_equal(struct worker *w, const struct pfx_stats *before, const char *what);

/* The call must return `error`, sending nothing and changing nothing. */
#define REFUSED(w, error, call)                                                                    \
    do {                                                                                           \
        struct still before_ = still_begin(w);                                                     \
        status_is((call), (error), #call);                                                         \
        still_end((w), &before_, #call);                                                           \
    } while (0)

/* The call must return `error`, which may take asking, and changes nothing. */
#define FAILS(w, error, call)                                                                      \
    do {                                                                                           \
        struct pfx_stats before_ = counters(w);                                                    \
        status_is((call), (error), #call);                                                         \
        counters_equal((w), &before_, #call);                                                      \
        step(w);                                                                                   \
    } while (0)

void status_is(long got, int want, const char *what);
#define OK(call) status_is((call), 0, #call)

/* ---- completions ------------------------------------------------------------------------- */

struct pfx_completion completion_empty(void);
/* pfx_wait for one; fails the test if none comes. ids stay valid until the next. */
struct pfx_completion completion_take(pfx *c);
/* The next one must be this one's. */
struct pfx_completion completion_of(pfx *c, uint64_t tag, int status);
/* None is there, and none comes within 10 ms. */
void completion_none(pfx *c);

/* ---- sequences longer than text ---------------------------------------------------------- */

/* Tokens that no other `which` shares, not even one block. */
void sequence(uint32_t *to, size_t n, uint32_t which);

/* A connection with these options; socket, size and a long time limit are filled in. */
pfx *connect_with(const struct host *h, struct pfx_options o);

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

#endif
