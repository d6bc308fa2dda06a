/*
 * rig.h - the disk tier by itself, in a directory of its own: a pool of numbered bytes, records
 * that follow from their generation, and orders that are waited for.
 *
 * With $SWAP_STAGED the pool is not told to the tier: it has copiers, whose copies are late.
 */
#ifndef TESTS_SWAP_RIG_H
#define TESTS_SWAP_RIG_H

#include "daemon/swap.h"
#include "kernels/copier.h"
#include "tests/harness.h"

enum { RIG_DEVICES = 4, RIG_BODY = 200, WAIT_MS = 30000 * SLOW };

struct rig {
    char dir[SWAP_PATHS][96];
    struct swap_config config;
    struct swap *sw;
    uint8_t *pool[SWAP_STORES];
    uint64_t pool_bytes[SWAP_STORES];
    struct copier *copier[SWAP_STORES][RIG_DEVICES];
};

/* One path, one store (blocks) of so many pages of so many bytes, and a budget in slots. */
void rig_init(struct rig *r, uint64_t record_bytes, uint64_t pool_records, uint64_t n_slots);
void rig_store(struct rig *r, enum swap_store_kind store, uint64_t record_bytes,
               uint64_t pool_records, uint64_t n_slots, uint32_t n_pieces);
void rig_budget(struct rig *r, enum swap_store_kind store, uint64_t n_slots); /* of each path */
void rig_deinit(struct rig *r); /* stops it and removes everything */

void rig_start(struct rig *r);      /* and goes through the scan, keeping nothing */
void rig_start_only(struct rig *r); /* the scan is the caller's */
bool rig_start_fails(struct rig *r, const char *why_has);
void rig_stop(struct rig *r);
void rig_wait_ready(struct rig *r, enum swap_store_kind store, uint32_t n);
const char *rig_file(const struct rig *r, unsigned path, enum swap_store_kind store); /* static */

/* Where in its file; told from the superblock on disk. */
uint64_t rig_header_offset(const struct rig *r, uint32_t local);
uint64_t rig_slot_offset(const struct rig *r, uint32_t local);
/* faults_is_header of store blocks. */
void rig_tell_faults(const struct rig *r);

/* The file's own bytes, with nobody's help. */
void file_patch(const char *name, uint64_t offset, const void *bytes, size_t n);
void file_get(const char *name, uint64_t offset, void *bytes, size_t n);
void file_flip(const char *name, uint64_t offset);

/* ---- bytes ---- */

/* A page's bytes follow from a number, mostly the generation of the record. */
void page_fill(struct rig *r, enum swap_store_kind store, uint32_t record, uint64_t number);
bool page_is(const struct rig *r, enum swap_store_kind store, uint32_t record, uint64_t number);

struct body {
    struct body_prefix prefix;
    uint64_t generation, check; /* what the record is called in the test */
    uint8_t more[RIG_BODY - 48];
};
void body_fill(struct swap_record *record, uint64_t parent, uint64_t space);
bool body_is(const struct swap_record *record);

/* ---- orders ---- */

struct swap_order *rig_take(struct rig *r); /* waits on the descriptor */
struct swap_order *rig_order(struct rig *r, enum swap_kind kind, enum swap_store_kind store);

/* Takes a slot, fills page `record` and the body, and adds it to the order. */
struct swap_record *rig_add_write(struct rig *r, struct swap_order *o, uint32_t record,
                                  uint64_t parent, uint64_t space);
void rig_add_read(struct swap_order *o, uint32_t slot, uint64_t generation, uint32_t record);

/* Submits, waits for just this one, frees it. */
enum swap_status rig_run(struct rig *r, struct swap_order *o);

/* What has been written: slot and generation. */
struct written {
    uint32_t slot;
    uint64_t generation, parent, space;
};
enum swap_status rig_write(struct rig *r, uint64_t parent, uint64_t space, struct written *w);
enum swap_status rig_read(struct rig *r,
                          const struct written *w); /* GOOD: and the bytes are right */
enum swap_status rig_flush(struct rig *r, enum swap_store_kind store, uint64_t space,
                           uint64_t generation);
enum swap_status rig_retire(struct rig *r, uint32_t slot);

/* The scan to its end; keeps what it finds (up to n; swap_slot_used) and checks bodies and order.
 */
uint32_t rig_scan(struct rig *r, struct written *found, uint32_t n);

#endif
