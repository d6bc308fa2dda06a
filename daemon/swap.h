/*
 * swap.h - slots on disk, and the one thread that moves their bytes. The index thread orders
 * transfers and takes them back when they are over; it never waits.
 *
 *   swap.c            start, stop, orders and answers                       (index thread)
 *   swap_slots.c      which slots are free                                  (index thread)
 *   swap_thread.c     the loop, and how orders begin                        (swap thread)
 *   swap_record.c     what a record goes through; checksums                 (swap thread)
 *   swap_transfer.c   operations: depth, coalescing, short transfers        (swap thread)
 *   swap_stage.c      pools that the CPU does not reach                     (swap thread)
 *   swap_grow.c       in the background: growth, probes, what is owed       (swap thread)
 *   swap_scan.c       a restart's reading of all headers                    (swap thread)
 *   swap_file.c       opening a file; swap_super.c what it says of itself; swap_set.c all files;
 *                     swap_flush.c flush records
 *   swap_uring.c      engine: io_uring
 *   swap_preadv.c     engine: a few threads with pread and pwrite, where io_uring is refused
 *   swap_format.h     the bytes
 *
 *      index thread    swap_submit ---- ring, 64-byte records ---> swap thread
 *                      swap_take  <---- ring, and an eventfd ------
 *
 * Both rings are shm/ring.h in private memory; a side that sleeps is woken by an eventfd, asked for
 * by the doze word. The order belongs to the swap thread until it is taken back.
 *
 * A store is a kind of record: blocks, or snapshots. Its slots are numbered through all its files
 * (0 .. n_slots - 1); each is n_pieces pieces of the same length, one a device of the pool.
 */
#ifndef DAEMON_SWAP_H
#define DAEMON_SWAP_H

#include "daemon/swap_format.h"
#include "kernels/copier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct swap;

enum { SWAP_STORES = 2, SWAP_PATHS = 16, SWAP_BATCH = 64, SWAP_DEPTH_MAX = 256 };
enum swap_store_kind { STORE_BLOCKS, STORE_SNAPSHOTS };

/* What the copiers of a store need: n buffers of so many bytes, for so many records each. */
struct swap_buffers {
    uint64_t bytes;
    unsigned n, records;
};
struct swap_buffers swap_buffers(uint64_t record_bytes);

struct swap_store_config {
    uint64_t bytes[SWAP_PATHS]; /* budget of each path, its file's length at most; 0: none there */
    uint32_t slots_most;        /* slots of all files at most, whatever the budgets hold; 0: any */
    uint64_t record_bytes;      /* of a piece, as the pool holds it */
    uint32_t body_bytes;        /* of a header's body at most, struct body_prefix included */
    uint8_t fingerprint[32];
    uint8_t *pool[16]; /* of each device: record i at pool[d] + i * stride. For direct transfers
                          aligned, and the stride padded, to what the device wants (512, 4096);
                          otherwise they go through the page cache, with one line */
    uint64_t stride;
    uint64_t pool_records; /* how many of them: what may be registered */
    /* Of each device, where the CPU does not reach its memory: pool[] does not count then. Record i
     * is at first + i * stride of the copier's pool. Its buffers are as swap_buffers says, and
     * nobody else's from swap_start to swap_stop. */
    struct copier *copier[16];
    uint64_t first;
    struct swap_buffers buffers;
};

struct swap_config {
    const char *path[SWAP_PATHS]; /* directories that exist */
    unsigned n_paths;
    uint32_t n_pieces; /* devices */
    uint32_t depth;    /* operations of payload in flight, 1 .. SWAP_DEPTH_MAX; as many of headers
                          beside them */
    bool uring;        /* false: do not even try */
    struct swap_store_config store[SWAP_STORES]; /* record_bytes 0: there is none */
};

/* Open and lock every file and start the thread. Existing files of this fingerprint are kept;
 * those of another, and damaged ones, are emptied (said in the log); foreign ones are left alone
 * and not used (said in the log). A file system that is full, or slow, is no error. NULL, and a
 * sentence in why: a directory that is not there, a file that another daemon has, no memory. */
struct swap *swap_start(const struct swap_config *config, char *why, size_t n_why);
/* Drains what is under way, closes. Orders not taken back are gone. */
void swap_stop(struct swap *sw);

/* Readable when something is to be taken, also when there are new slots. */
int swap_fd(const struct swap *sw);

/* How many slots a new file of that budget has; 0: it is too small for one. */
uint64_t swap_file_slots(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t budget);

/* The length of a file of so many slots: the least budget that is of use is that of one. */
uint64_t swap_file_bytes(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t n_slots);

/* ---- slots (index thread). None is free before the scan is over. ---- */

uint32_t swap_slots(const struct swap *sw, enum swap_store_kind store); /* the budget's, fixed */
/* That exist by now, as far as swap_take has seen. */
uint32_t swap_ready(const struct swap *sw, enum swap_store_kind store);
uint32_t swap_free(const struct swap *sw, enum swap_store_kind store);
/* More will exist, with nothing given up for them: nothing is known to be in a file's way. */
bool swap_will_grow(const struct swap *sw, enum swap_store_kind store);
/* A run of up to n free slots of one file, in turn from each file; 0: there is none. While some
 * files are sick and some are not, only those of the latter count. */
uint32_t swap_slots_take(struct swap *sw, enum swap_store_kind store, uint32_t n, uint32_t *slot);
void swap_slot_give(struct swap *sw, enum swap_store_kind store, uint32_t slot);
/* A record of the scan is kept: its slot is not free when the scan is over, unless it is given
 * back. */
void swap_slot_used(struct swap *sw, enum swap_store_kind store, uint32_t slot);

/* ---- orders ---- */

enum swap_kind {
    SWAP_WRITE,  /* payload, then header                                                        */
    SWAP_READ,   /* and verify: the generation, and the payload's checksum                      */
    SWAP_FLUSH,  /* a flush record, or flushed_all, is on disk in each file of the store        */
    SWAP_RETIRE, /* the slots must not be found by a restart, nor be used again                 */
    SWAP_SCAN,   /* answers only: what the scan found, older generations first                  */
};

enum swap_status {
    SWAP_GOOD = 0,
    SWAP_CORRUPT = 1, /* or not what it should be: proven gone                              */
    SWAP_FAILED = 2,  /* an I/O error; READ: or not tried, or not brought to the pool       */
    SWAP_FULL = 3,    /* WRITE: the file system is full. What the slot holds is not known,
                         but the slot is as good as any                                     */
    SWAP_REFUSED = 4, /* WRITE: given up, the device is sick, or the pool could not be read.
                         The same is true of the slot                                       */
};

struct swap_record {
    uint32_t slot;
    uint32_t record;     /* of the pool; RETIRE, SCAN: not used */
    uint64_t generation; /* WRITE: from swap_generation; READ: what it must be; SCAN: what it is */
    uint8_t *body;       /* WRITE: to be filled, where it is; SCAN: as it was found */
    uint32_t body_bytes; /* WRITE: how much was filled; SCAN: how much was found */
    enum swap_status status;
};

/* SCAN: a record comes after that which it hangs on (body_prefix). Those whose chain is not whole,
 * flushed and retired ones do not come. A flush that is submitted during the scan counts for all
 * that comes after its answer; what comes between the two is the index thread's to sort out. */
struct swap_order {
    enum swap_kind kind;
    enum swap_store_kind store;
    uint32_t n;
    struct swap_record record[SWAP_BATCH];
    uint64_t space[2];       /* FLUSH: 0 0: all */
    uint64_t generation;     /* FLUSH: up to this one; UINT64_MAX: all that were ordered */
    enum swap_status status; /* the worst of its records; FLUSH: its own, FAILED: not on disk in
                                each file, and tried again until it is */
    bool last;               /* SCAN: it is over, in all stores */
    uint64_t began_ns;
    void *owner; /* the index thread's own */
};

/* An empty order, with room for bodies; NULL: no memory, or as many as depth x 4 are out. */
struct swap_order *swap_order_new(struct swap *sw, enum swap_kind kind, enum swap_store_kind store);
void swap_order_free(struct swap *sw, struct swap_order *o);
void swap_submit(struct swap *sw, struct swap_order *o);
/* One that is over, or NULL. It is the caller's again (to free). */
struct swap_order *swap_take(struct swap *sw);

/* Another generation, higher than all before it and all in the files. Only after the scan. A
 * record is numbered after that which it hangs on; orders are submitted in the order of theirs. */
uint64_t swap_generation(struct swap *sw);
bool swap_scanning(const struct swap *sw);

struct swap_facts {
    uint64_t reads, writes, errors; /* records, since the start; errors: FAILED and CORRUPT */
    uint64_t bytes_read, bytes_written;
    uint64_t late;    /* completions of operations that were over: counted and ignored */
    uint32_t foreign; /* files that are not ours: left alone, so their paths are not in use */
    uint32_t in_flight;
    bool uring;
    bool growing; /* there are fewer slots than it wants, and it could have more */
    bool healthy; /* false: a file is sick, after errors in a row or an operation that does not come
                     back: its writes are refused, its reads fail at once, until a probe succeeds;
                     or the swap thread itself hangs in a file */
    bool writable; /* not all files of blocks are sick: slots are those of the others */
};
struct swap_facts swap_facts(const struct swap *sw);

#endif
