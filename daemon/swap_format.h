/*
 * swap_format.h - the disk tier's bytes. One file a store and path, named STORE.prefixd in the
 * directory that --swap names.
 *
 *      0        superblock A          4 KiB each, written one after the other, with one content;
 *      4096     superblock B          of two valid ones that with the higher sequence counts
 *      8192     flush records         FLUSH_RECORDS x struct flush_record (64 KiB), in any order
 *      72 KiB   a block for probes    written and read back to see whether a sick device is well
 *      128 KiB  extent 0              | headers: extent_slots x header_bytes, padded to 4 KiB |
 *      ...      extent 1              | slots:   extent_slots x slot_bytes                    |
 *
 * A slot exists once the file, written with zeros from front to back, reaches beyond its end. So a
 * file may be used with a larger or a smaller budget.
 *
 * A slot's payload is written first, then its header. Nothing is synchronized for that: a header
 * whose checksum, file id, slot number or payload checksum does not fit is a miss. A slot that is
 * given up keeps its header until it is written anew: after a restart the block is simply there
 * again. What must not come back is written down and synchronized (pwritev2 with RWF_DSYNC) before
 * it is promised: a flush as a flush record, a slot retired after an error as a header of
 * RETIRED_MAGIC.
 *
 * A record is known by its generation, which no other record of these files ever has: one counter
 * for all of them. It names the record that it hangs on by that record's generation, which is
 * lower, as that one was numbered first. So a restart that goes on above the highest generation it
 * can see never gives a number to which an old record still refers - an old record that refers to
 * it has a higher one. Slot numbers mean nothing after a restart: another budget, or another order
 * of paths, shifts them.
 *
 * Files that are used together know it (set_id). One that was away meanwhile has not heard of
 * flushes, and the others have given out its numbers: it is emptied when it comes back.
 *
 * Numbers are little-endian. SWAP_FORMAT changes with any change here.
 */
#ifndef DAEMON_SWAP_FORMAT_H
#define DAEMON_SWAP_FORMAT_H

#include <assert.h>
#include <stdint.h>

#define SWAP_FORMAT   1u
#define SWAP_MAGIC    0x7061777378667870ull /* "pxfxswap" */
#define HEADER_MAGIC  0x746f6c7378667870ull /* "pxfxslot" */
#define RETIRED_MAGIC 0x6461656478667870ull /* "pxfxdead" */

enum {
    SWAP_ALIGN = 4096, /* of headers' and pieces' places; direct transfers need at most that */
    SWAP_SUPERBLOCK = 4096,
    SWAP_FLUSHES = 2 * SWAP_SUPERBLOCK,
    FLUSH_RECORDS = 1024,
    SWAP_PROBE = SWAP_FLUSHES + FLUSH_RECORDS * 64,
    SWAP_EXTENTS = 128 * 1024,
};

/* What bytes of two daemons must have in common to be interchangeable, digested: SHA-256 of struct
 * wire_layout (every field), the store's kind and SWAP_FORMAT. */
struct superblock {
    uint64_t magic;
    uint32_t format;
    uint32_t header_bytes;
    uint64_t slot_bytes;
    uint32_t extent_slots;
    uint32_t set_files; /* how many have this set_id */
    uint64_t sequence;
    uint64_t file_id[2]; /* random, made with the file */
    uint64_t set_id[2];  /* random, made anew when a file joins or is missing */
    uint8_t fingerprint[32];
    uint64_t flushed_all; /* headers of this generation or an older one are dead */
    uint8_t pad[SWAP_SUPERBLOCK - 120];
    uint64_t checksum; /* XXH3-64 of all before it */
};
static_assert(sizeof(struct superblock) == SWAP_SUPERBLOCK, "one block");

/* Headers of this space up to this generation are dead. The space is known by a digest of its
 * whole description: two that collide lose their blocks together, which is a miss, never a hit. Of
 * two records of one space the newer counts. A damaged one might be of any space: the file is
 * emptied. */
struct flush_record {
    uint64_t space[2]; /* XXH3-128 of (adapter id, adapter generation, tenant); 0: none here */
    uint64_t generation;
    uint64_t checksum; /* XXH3-64 of all before it */
    uint64_t reserved[4];
};
static_assert(sizeof(struct flush_record) == 64, "none lies across two sectors");

struct slot_header {
    uint64_t magic;
    uint64_t generation; /* counts up with each header that is written, in all files */
    uint64_t file_id[2];
    uint32_t slot;       /* of this file */
    uint32_t body_bytes; /* after this struct, at most header_bytes - 64 */
    uint64_t payload[2]; /* XXH3-128 of the slot's payload */
    uint64_t checksum;   /* XXH3-64 of the body, seeded with that of all before this field */
};
static_assert(sizeof(struct slot_header) == 64, "the body comes after it");

/* The body begins with this; the rest is the index thread's own. */
struct body_prefix {
    uint32_t depth;       /* as the index thread likes to count it */
    uint32_t parent_slot; /* as handed over by the scan: where the parent is now, NO_SLOT: none */
    uint64_t parent_generation; /* of a block, lower than its own; 0: on the space's root */
    uint64_t space[2];          /* as in struct flush_record */
};
static_assert(sizeof(struct body_prefix) == 32, "no holes");

#define NO_SLOT UINT32_MAX

#endif
