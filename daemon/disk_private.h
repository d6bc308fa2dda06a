/* disk_private.h - what the files disk*.c share. */
#ifndef DAEMON_DISK_PRIVATE_H
#define DAEMON_DISK_PRIVATE_H

#include "daemon/daemon.h"
#include "daemon/disk.h"
#include "shm/clock.h"

/* The body of a block's header: which block it is. Tokens and extras follow. */
struct block_body {
    struct body_prefix prefix; /* depth: blocks before this one */
    uint64_t adapter_id, adapter_generation;
    uint32_t tenant_len;
    uint32_t n_extras;
    uint8_t tenant[TENANT_MAX + 1];
};
static_assert(sizeof(struct block_body) % 8 == 0, "extras after it are aligned");

enum { BODY_EXTRAS = 8 /* a block with more stays on the device */ };

/* The same of a state, which hangs on a block as a block does. Extras and tokens of its residue
 * follow. */
struct state_body {
    struct block_body block; /* depth: whole blocks of its prefix */
    uint64_t session;
    uint32_t kind;
    uint32_t n_tokens;
};
static_assert(sizeof(struct state_body) % 8 == 0, "extras after it are aligned");

/* One path that is being written: its leaf is held until all of it is on disk. */
struct chain {
    struct list link;
    struct hold leaf;
    struct move *state;       /* is written after it; NULL: none, or not any more */
    struct swap_order *order; /* NULL: it waits for another's write, or for an order */
    uint32_t end, marked;     /* the order is of blocks [end - marked, end) of the path */
};

/* Where a read position is. */
enum read_state { READ_WANTED, READ_SHARED, READ_ISSUED, READ_GOOD, READ_BAD };

struct fetch {
    struct list link;
    struct disk *disk;
    struct hold path;     /* all of it, until the fetch is over */
    struct list readings; /* a struct reading of each order */
    uint32_t first, n;    /* blocks [first, first + n) of the path */
    uint32_t issued;      /* those before it have been looked at */
    uint32_t done;        /* those before it have pages */
    uint32_t in_flight;
    uint32_t retried;
    bool bad;       /* the one at `done` cannot be read */
    bool waited;    /* somebody looks */
    bool ended;     /* only the result is left */
    uint32_t *page; /* NO_PAGE: not needed, or in the tree */
    uint32_t *slot;
    uint8_t *state;
};

/* A state on its way to the disk, or back (disk_state.c). */
enum move_stage {
    MOVE_CHAIN, /* its prefix is being written    */
    MOVE_SLOT,  /* it waits for room in the files */
    MOVE_READ,  /* it waits for an order          */
    MOVE_IO,    /* the swap thread has it         */
    MOVE_OVER,  /* the outcome is to be taken     */
    MOVE_GONE,  /* nobody wants to know           */
};

struct move {
    struct list link;
    uint64_t key;
    uint32_t slot; /* of the pool */
    uint32_t disk; /* of the file, from MOVE_IO on */
    enum move_stage stage;
    enum tier_outcome outcome;
    bool write, dropped;
    bool chained; /* its chain has been tried */
    uint64_t began_ns;
    struct chain *chain; /* its prefix's; NULL: none was needed, or it is over */
    struct hold path;    /* its prefix, until it is over */
};

/* A state that is on disk, by entry. */
struct blob {
    uint64_t key; /* 0: none */
    uint64_t generation;
    uint32_t disk;
    bool bad; /* it has turned out to be gone */
};

struct states {
    struct tier tier;
    struct blob *blob;
    uint32_t max;
    struct list moves;
};

struct disk_flush {
    struct list link; /* disk.flushes */
    struct disk *disk;
    uint64_t space[2]; /* its digest; 0 0: all */
    unsigned ordered;  /* stores */
    uint32_t orders;   /* under way */
    bool left, failed;
};

/* The copy in this slot has turned out to be gone: it is never given out again. */
#define GENERATION_BAD UINT64_MAX

struct disk {
    struct daemon *d;
    struct swap *swap;
    uint32_t n_slots;
    uint64_t *generation;  /* by slot: of its header; 0: none */
    struct fetch **reader; /* by slot: who reads it now */
    struct list chains, fetches, flushes;
    uint32_t n_chains, max_chains, max_reads;
    enum swap_write_mode write;
    uint64_t starved_ns; /* since when chains wait for the files to grow; 0: none does */
    bool no_order;       /* a chain waits for an order to be had */
    bool pressed;        /* somebody waits for pages; said again in each turn */
    uint32_t low_water;  /* pages that are free, or clean and idle, at least */
    bool scanning;
    struct place *restored;         /* by slot, during the scan: where its block is */
    struct states states;           /* max 0: there are none on disk */
    uint64_t written, read, errors; /* blocks */
    uint64_t full_until_ns;         /* no writes before: the file system is full */
};

/* disk.c */
bool disk_can_write(const struct disk *k);
void flush_over(struct disk_flush *f, const struct swap_order *o);
bool being_flushed(const struct disk *k, const uint64_t space[2]);
/* Neither a restart nor we may use this slot again. */
void disk_retire(struct disk *k, enum swap_store_kind store, uint32_t slot);

/* disk_body.c */
/* The block that ends at this place, hung on the one that `parent` writes (NULL: on the one on
 * disk, or the root). False: it has more extras than a header holds. */
bool body_write(const struct disk *k, struct place where, const struct swap_record *parent,
                struct swap_record *r);
/* What a header says, checked; false: it says nothing that we could use. */
struct block_found {
    struct space_key key;
    struct body_prefix prefix;
    const uint32_t *tokens;
    const struct wire_extra *extras;
    uint32_t n_extras;
};
bool body_read(const struct disk *k, const struct swap_record *r, struct block_found *out);
/* The same for the state of an entry, which hangs at `where`. */
bool state_body_write(const struct disk *k, struct place where, uint32_t id, struct swap_record *r);
struct state_found {
    struct block_found at; /* tokens, extras: of the residue */
    uint64_t session;
    uint32_t kind, n_tokens;
};
bool state_body_read(const struct disk *k, const struct swap_record *r, struct state_found *out);
void space_digest(const struct space_key *key, uint64_t digest[2]);

/* disk_write.c */
bool chains_step(struct disk *k);
void chains_again(struct disk *k);
void chain_over(struct disk *k, struct swap_order *o);
/* Write what is missing of the path to `leaf`, for this state (NULL: for its own sake). NULL: there
 * is no memory, or nothing to be done. */
struct chain *chain_begin(struct disk *k, struct place leaf, struct move *state);
/* After this answer of the swap thread nothing is written for a while. */
void writes_failed(struct disk *k, enum swap_status status);

/* disk_read.c */
void fetch_free(struct fetch *f);
bool fetches_step(struct disk *k);
void read_over(struct disk *k, struct swap_order *o);

/* disk_state.c */
bool states_init(struct disk *k);
void states_deinit(struct disk *k);
bool states_step(struct disk *k);
void state_over(struct disk *k, struct swap_order *o);
void state_found(struct disk *k, uint64_t key, const struct swap_record *r);

/* disk_restore.c */
void restore_take(struct disk *k, const struct swap_order *o);
/* Where a block or a state hangs: the end of the block before it, or the root of its space. */
bool parent_of(struct disk *k, const struct body_prefix *b, uint32_t space, struct place *where);

#endif
