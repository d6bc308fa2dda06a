/*
 * disk.h - the disk tier as the index thread sees it: which blocks are written and when, how they
 * come back, what a restart finds. The bytes are moved by swap.h; nothing here waits.
 *
 *   disk.c          start and stop, answers of the swap thread, pages for who needs them
 *   disk_write.c    chains: the blocks of one path, written front first
 *   disk_read.c     fetches: the blocks of one match, read together
 *   disk_state.c    states of snapshots: a lower tier (tier.h) that a restart finds again
 *   disk_restore.c  what a restart's scan found, hung into the tree
 *   disk_body.c     what the header of a block, or state, says beside its checksums
 *
 * A transfer holds in the tree what it needs (index_hold_io), so nothing that moves is evicted, cut
 * or handed out; a worker's death ends no transfer half way.
 */
#ifndef DAEMON_DISK_H
#define DAEMON_DISK_H

#include "daemon/index.h"
#include "daemon/space.h"
#include "daemon/swap.h"

struct daemon;
struct disk;

/* Bytes of a block's, or a state's, header beside its checksums. */
uint32_t body_room(uint32_t block_tokens);
uint32_t state_body_room(uint32_t block_tokens);

/* For the blocks of d->options, after the pool and the index are made. NULL, and a sentence. */
struct disk *disk_start(struct daemon *d, const struct swap_config *config, char *why,
                        size_t n_why);
void disk_stop(struct disk *k);

/* Take answers, begin what is due. True: something has happened. */
bool disk_step(struct disk *k);
int disk_fd(const struct disk *k); /* readable when disk_step has something to take */

/* The tier of states, if config.store[STORE_SNAPSHOTS] is one; else NULL. It is gone with the disk.
 */
struct tier *disk_states(struct disk *k);
/* How long a caller waits for room at most, if there is another way. */
#define DISK_WAIT_NS 500000000ull

/* ---- pages ---- */

/* Free n pages for a caller that has waited since *began_ns (0: it has not). READY: at least n are
 * free now. SOON: blocks are being written for it, ask again. NONE: there are not so many. */
enum page_room { PAGES_READY, PAGES_SOON, PAGES_NONE };
enum page_room disk_pages(struct disk *k, uint32_t n, uint64_t *began_ns,
                          struct index_evicted *gone);
/* Free pages of n idle blocks, whether or not others are free. True: there may be more, ask again.
 */
bool disk_evict(struct disk *k, uint32_t n, uint64_t *began_ns, struct index_evicted *gone);

/* ---- fetch ---- */

struct fetch;

/* Read the blocks of the path to `where` that have no page. Takes as many private pages, in the
 * order of the path. NULL: no memory; the pages are the caller's still. */
struct fetch *fetch_begin(struct disk *k, struct place where, const uint32_t *pages, uint32_t n);
/* 1: not over. 0: all are there. Else STATUS_EIO, and *depth is where the path can be read to. */
int fetch_look(const struct fetch *f, uint32_t *depth);
/* Nobody waits for it any more; it ends by itself. */
void fetch_leave(struct fetch *f);

/* ---- flush ---- */

struct disk_flush;

/* A flush of this space (NULL: of all) begins: what a restart's scan still finds of it does not
 * come. NULL: no memory. */
struct disk_flush *disk_flush_begin(struct disk *k, const struct space_key *key);
/* The tree has let go of it: what was written of it until now must not come back at a restart.
 * Ask until it is over: 1: not yet. 0; STATUS_EIO: it is not on disk yet. */
int disk_flush_go(struct disk_flush *f);
/* Nobody asks any more, or it is over: `f` is gone. */
void disk_flush_end(struct disk_flush *f);

void disk_publish(const struct disk *k); /* into the daemon's counters */

#endif
