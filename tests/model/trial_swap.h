/*
 * trial_swap.h - daemon/swap.h in memory, to try the index thread's half of the disk tier with. It
 * is linked in the place of daemon/swap*.c: no thread, no file.
 *
 *      disk_*.c ---- swap_submit ----> a crowd of orders ---- trial_tick: some are over, in any
 *         ^------------ swap_take ----/                        order, done, damaged or failed
 *
 * struct trial_disk is the files: it outlives the daemon. So a restart is swap_stop, or trial_kill,
 * and another swap_start.
 *
 * It fails the test if it is used wrongly: a slot that is given back twice, read or written while
 * another order has it, or used after it was retired; a block that hangs on nothing; a generation
 * twice; a page that is touched while it moves.
 */
#ifndef TESTS_TRIAL_SWAP_H
#define TESTS_TRIAL_SWAP_H

#include "daemon/swap.h"
#include "tests/harness.h"

/* One in so many; 0: never. */
struct trial_faults {
    uint32_t read_failed, flipped; /* a bit of what is on disk: from then on */
    uint32_t write_failed, full, refused;
    uint32_t flush_failed; /* and made good some ticks later */
    uint32_t retire_failed;
    uint32_t sick;     /* a tick: nothing goes for a while */
    uint32_t no_order; /* swap_order_new has no memory */
};

struct trial_disk_config {
    struct rng *rng;
    uint32_t slots[SWAP_STORES]; /* the budget; of each start as it is then */
    bool grows;                  /* they come to be one by one, as they are needed */
    uint32_t longest;            /* ticks that an order takes at most */
    struct trial_faults faults;
};

struct trial_disk;

struct trial_disk *trial_disk_new(const struct trial_disk_config *config);
void trial_disk_free(struct trial_disk *t); /* no daemon uses it */
struct trial_disk_config *trial_disk_config_of(struct trial_disk *t);
/* The next swap_start opens this one. */
void trial_disk_insert(struct trial_disk *t);

/* Time goes on. */
void trial_tick(struct trial_disk *t);
/* Nothing reaches the files from here on: what is under way was done, half done, or not begun.
 * Orders come back, failed, so that the daemon can be taken down. */
void trial_kill(struct trial_disk *t);

/* ---- what there is ---- */

struct trial_record {
    bool headed; /* a restart would see it; not that it hangs on anything */
    bool whole;  /* its payload is what its checksum says */
    uint64_t generation;
    const uint8_t *body, *payload;
    uint32_t body_bytes;
};
void trial_look(const struct trial_disk *t, enum swap_store_kind store, uint32_t slot,
                struct trial_record *out);
/* Would a restart drop records of this space, of this generation? */
bool trial_flushed(const struct trial_disk *t, enum swap_store_kind store, const uint64_t space[2],
                   uint64_t generation);

/* The next that a record will have; after the scan. */
uint64_t trial_generation(const struct trial_disk *t);

struct trial_counts {
    uint32_t taken;       /* slots that are neither free nor retired */
    uint32_t retired;     /* in this life, or before */
    uint32_t unretired;   /* slots that were to be retired, but there was no order for it */
    uint32_t in_writes;   /* records of WRITE orders that have not been given back (to free) */
    uint64_t reads_taken; /* records of READ orders that were GOOD, and taken */
    uint64_t faults;      /* that were injected, of any kind */
    uint32_t orders;      /* out */
};
struct trial_counts trial_counts(const struct trial_disk *t, enum swap_store_kind store);

#endif
