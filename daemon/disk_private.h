/* disk_private.h - what the files disk*.c share. */
#ifndef DAEMON_DISK_PRIVATE_H
#define DAEMON_DISK_PRIVATE_H

#include "daemon/daemon.h"
#include "daemon/disk.h"

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

/* One path that is being written: its leaf is held until all of it is on disk. */
struct chain {
    struct list link;
    struct hold leaf;
    struct swap_order *order; /* NULL: it waits for another's write, or for an order */
    uint32_t end, marked;     /* the order is of blocks [end - marked, end) of the path */
};

/* Where a read position is. */
enum read_state { READ_WANTED, READ_SHARED, READ_ISSUED, READ_GOOD, READ_BAD };

struct fetch {
    struct list link;
    struct disk *disk;
    struct hold path;  /* all of it, until the fetch is over */
    uint32_t first, n; /* blocks [first, first + n) of the path */
    uint32_t issued;   /* those before it have been looked at */
    uint32_t done;     /* those before it have pages */
    uint32_t in_flight;
    uint32_t retried;
    bool bad;       /* the one at `done` cannot be read */
    bool waited;    /* somebody looks */
    bool ended;     /* only the result is left */
    uint32_t *page; /* NO_PAGE: not needed, or in the tree */
    uint32_t *slot;
    uint8_t *state;
};

struct disk_flush {
    bool over, left, failed;
};

/* The copy in this slot has turned out to be gone: it is never given out again. */
#define GENERATION_BAD UINT64_MAX

struct disk {
    struct daemon *d;
    struct swap *swap;
    uint32_t n_slots;
    uint64_t *generation;  /* by slot: of its header; 0: none */
    struct fetch **reader; /* by slot: who reads it now */
    struct list chains, fetches;
    uint32_t n_chains, max_chains, max_reads;
    enum swap_write_mode write;
    bool starved;       /* a chain waits for the files to grow */
    bool pressed;       /* somebody waits for pages; said again in each turn */
    uint32_t low_water; /* pages that are free, or clean and idle, at least */
    bool scanning;
    struct place *restored;         /* by slot, during the scan: where its block is */
    uint64_t written, read, errors; /* blocks */
    uint64_t full_until_ns;         /* no writes before: the file system is full */
};

/* disk.c */
uint64_t disk_now_ns(void);
bool disk_can_write(const struct disk *k);
void flush_over(struct disk *k, struct swap_order *o);
/* Neither a restart nor we may use this slot again. */
void disk_retire(struct disk *k, uint32_t slot);

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
void space_digest(const struct space_key *key, uint64_t digest[2]);

/* disk_write.c */
bool chains_step(struct disk *k);
void chains_again(struct disk *k);
void chain_over(struct disk *k, struct swap_order *o);

/* disk_read.c */
void fetch_free(struct fetch *f);
bool fetches_step(struct disk *k);
void read_over(struct disk *k, struct swap_order *o);

/* disk_restore.c */
void restore_take(struct disk *k, const struct swap_order *o);

#endif
