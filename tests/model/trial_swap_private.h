/* trial_swap_private.h - what the files trial_swap*.c share. */
#ifndef TESTS_TRIAL_SWAP_PRIVATE_H
#define TESTS_TRIAL_SWAP_PRIVATE_H

#include "daemon/list.h"
#include "tests/model/trial_swap.h"

enum { TRIAL_FLUSHES = 64, TRIAL_SCANS = 4 };

/* ---- the files ---- */

struct trial_slot {
    bool headed, retired; /* its header is whole; and says that the slot is of no use */
    uint64_t generation;
    uint64_t sum; /* of the payload that was meant */
    uint32_t body_bytes;
    uint8_t *body, *payload;
};

struct trial_flush {
    uint64_t space[2], generation;
};

struct trial_store {
    uint32_t n, ready;
    uint32_t body_bytes;
    uint64_t payload_bytes;
    struct trial_slot *slot;
    uint64_t flushed_all;
    struct trial_flush flush[TRIAL_FLUSHES];
    uint32_t n_flushes;
};

struct trial_disk {
    struct trial_disk_config config;
    struct trial_store store[SWAP_STORES];
    struct swap *live; /* NULL: no daemon uses it */
    bool dead;         /* it has been killed */
    uint64_t faults;
};

/* ---- one daemon's use of them ---- */

enum slot_owner { SLOT_ABSENT, SLOT_FREE, SLOT_TAKEN, SLOT_RETIRED };

struct live_slot {
    enum slot_owner owner;
    bool handed;         /* by the scan */
    uint64_t generation; /* what a read may expect; 0: none */
    uint64_t sum;
    uint8_t written, read; /* by orders that are out */
};

struct live_page {
    uint8_t written, read; /* to, from disk, by orders that are out */
};

struct live_store {
    struct trial_store *files;
    const struct swap_store_config *config;
    uint32_t n, known, n_free, unretired, in_writes;
    uint64_t reads_taken;
    struct live_slot *slot;
    struct live_page *page;
};

struct trial_order {
    struct swap_order order; /* first */
    struct list link;        /* under_way, over */
    bool submitted;
    uint32_t wait;            /* ticks */
    uint64_t bound;           /* FLUSH */
    uint64_t sum[SWAP_BATCH]; /* of the page when it was submitted */
};

enum found_state { FOUND_WAITS, FOUND_HANDED, FOUND_DROPPED };

struct found {
    uint64_t generation, parent;
    enum swap_store_kind store;
    uint32_t slot;
    enum found_state state;
};

/* A flush that failed, and is still to be done. */
struct owed {
    enum swap_store_kind store;
    uint64_t space[2], generation;
};

struct swap {
    struct trial_disk *disk;
    int fd; /* never readable: nobody sleeps here */
    struct swap_config config;
    struct live_store store[SWAP_STORES];
    struct list under_way, over;
    uint32_t n_out, n_scans;
    bool scanning, healthy;
    uint32_t sick_ticks;
    uint64_t highest;     /* generation, that was seen or submitted */
    uint64_t next;        /* generation */
    struct found *found;  /* by generation */
    uint32_t n_found, at; /* the next one of store `scan_store` */
    unsigned scan_store;  /* SWAP_STORES: all are through */
    struct owed owed[TRIAL_FLUSHES];
    uint32_t n_owed;
    uint64_t reads, writes, errors;
};

bool trial_fault(struct trial_disk *t, uint32_t one_in);
uint64_t trial_sum(const uint8_t *bytes, uint64_t n);
void trial_flush(struct trial_disk *t, enum swap_store_kind store, const uint64_t space[2],
                 uint64_t generation);
void trial_slots_grown(struct swap *sw);
struct trial_order *trial_order_new(const struct live_store *l, uint32_t bodies);

/* trial_swap_scan.c */
void trial_scan_begin(struct swap *sw);
void trial_scan_tick(struct swap *sw);

#endif
