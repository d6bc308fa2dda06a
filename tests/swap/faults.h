/*
 * faults.h - an engine that goes wrong on purpose. The test executable is linked with --wrap for
 * engine_uring_new, engine_threads_new, pwritev2 and what makes rings and threads, so the daemon's
 * own code is what runs, unchanged, and none of this is in it.
 *
 * Faults come call by call (faults_plan: the next `count` operations that fit, after `skip` of
 * them) or at random (faults_random). A short transfer is really short, a flipped bit is really on
 * disk or in memory; EIO, EAGAIN, EINTR and ENOSPC do nothing else. An operation that is cancelled
 * completes with -ECANCELED, and some time later once more, as if it had succeeded.
 */
#ifndef TESTS_SWAP_FAULTS_H
#define TESTS_SWAP_FAULTS_H

#include <stdbool.h>
#include "kernels/copier.h"

#include <stdint.h>

enum fault {
    FAULT_SHORT = 1 << 0,
    FAULT_ZERO = 1 << 1, /* a result of 0 */
    FAULT_EIO = 1 << 2,
    FAULT_EAGAIN = 1 << 3,
    FAULT_EINTR = 1 << 4,
    FAULT_ENOSPC = 1 << 5,
    FAULT_DELAY = 1 << 6,   /* some milliseconds late */
    FAULT_REORDER = 1 << 7, /* behind what was issued after it */
    FAULT_CANCEL = 1 << 8,
    FAULT_FLIP = 1 << 9,
    FAULT_HANG = 1 << 10, /* until faults_clear */
    FAULT_ODD = 1 << 11,  /* short, and of no whole sectors */
};

enum { FAULT_KINDS = 12 };

/* Which operations: all of these hold. Zero: any. */
struct fault_where {
    bool reads, writes;
    bool payload; /* not headers, growth, probes or the scan: places of slots */
    bool headers;
    uint64_t from, to; /* file offsets */
    unsigned file;     /* the how manieth of all, from 1 */
};

void faults_plan(enum fault fault, struct fault_where where, unsigned skip, unsigned count);
/* Each operation that fits, with this chance in 1000, one of these. */
void faults_random(unsigned faults, struct fault_where where, unsigned permille, uint64_t seed);
/* Synchronized small writes (flushes, retirements, superblocks): the next `count` fail so. */
void faults_sync(int error, unsigned count);
unsigned faults_sync_calls(void); /* of these, how many there were at all, failed or not */
void faults_clear(void);          /* what hangs comes back */
unsigned faults_done(void);       /* how many there were since faults_clear */
/* io_uring or threads cannot be had: -errno. 0: they can. */
void faults_setup(int uring_error, int threads_error);
/* The first n sets of flags for a ring that are tried are unknown here. */
void faults_ring_flags(unsigned n);
/* The engine of threads gets none. */
void faults_no_threads(void);

/* ---- copies ---- */

/* Of those that go this way, `skip` are as ever and `count` fail: they do not begin, or they end
 * so. */
void faults_copy(enum copier_way way, bool begins, unsigned skip, unsigned count);
/* Each is over only when it has been asked for so many times more; UINT_MAX: not at all. */
void faults_copies_late(unsigned times);
struct copies {
    unsigned begun, failed;
    unsigned asked; /* how often for one that was not over */
    unsigned under_way, most;
    enum copier_way way;        /* of the last one */
    unsigned in_a_row, longest; /* this way, without one of the other */
};
struct copies faults_copies(void); /* since faults_clear */

/* Payload or header? For fault_where: told by the rig, from the store's shape. */
extern bool (*faults_is_header)(uint64_t offset);

#endif
