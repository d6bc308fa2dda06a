/*
 * disk.h - the disk tier as the index thread sees it: which blocks are written and when, how they
 * come back, what a restart finds. The bytes are moved by swap.h; nothing here waits.
 *
 *   disk.c          start and stop, answers of the swap thread, pages for who needs them
 *   disk_write.c    chains: the blocks of one path, written front first
 *   disk_read.c     fetches: the blocks of one match, read together
 *   disk_restore.c  what a restart's scan found, hung into the tree
 *   disk_body.c     what the header of a block says beside its checksums
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

/* Bytes of a block's header beside its checksums. */
uint32_t body_room(uint32_t block_tokens);

/* For the blocks of d->options, after the pool and the index are made. NULL, and a sentence. */
struct disk *disk_start(struct daemon *d, const struct swap_config *config, char *why,
                        size_t n_why);
void disk_stop(struct disk *k);

/* Take answers, begin what is due. True: something has happened. */
bool disk_step(struct disk *k);
int disk_fd(const struct disk *k); /* readable when disk_step has something to take */

/* ---- pages ---- */

/* Free n pages for a caller that has waited since *began_ns (0: it does not yet). READY: at least n
 * are free now. SOON: blocks are being written for it, ask again. NONE: there are not so many. */
enum pages { PAGES_READY, PAGES_SOON, PAGES_NONE };
enum pages disk_pages(struct disk *k, uint32_t n, uint64_t *began_ns, struct index_evicted *gone);
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

/* What there is of this space (NULL: of all) must not come back at a restart. NULL: no memory now.
 * Look until it is over (0, or STATUS_EIO: it is not on disk yet), then it is gone; or leave it. 1: not
 * over. */
struct disk_flush *disk_flush(struct disk *k, const struct space_key *key);
int disk_flush_look(struct disk_flush *f);
void disk_flush_leave(struct disk_flush *f);

void disk_publish(const struct disk *k); /* into the daemon's counters */

#endif
