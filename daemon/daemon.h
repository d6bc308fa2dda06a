/*
 * daemon.h - the one struct that owns the process.
 *
 * Parts start in the order in which they stand here and stop in reverse. One thread changes
 * metadata: it accepts, drains rings and answers, and sleeps in one place (daemon_run).
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/disk.h"
#include "daemon/dispatch.h"
#include "daemon/index.h"
#include "daemon/lease.h"
#include "daemon/options.h"
#include "daemon/pool.h"
#include "daemon/session.h"
#include "daemon/snapshot.h"
#include "daemon/space.h"
#include "daemon/watch.h"
#include "kernels/device.h"
#include "shm/segment.h"

struct daemon {
    const struct options *options;
    uint64_t epoch;
    int signal_fd, epoll_fd, lock_fd, listen_fd;
    int spare_fd; /* given up for a moment when no descriptor is left (visitor.c) */
    struct watch on_signal, on_connect, on_disk;

    /* The cache: made at start, or when the first worker brings its layout (--bytes alone). */
    bool carved;
    struct wire_layout layout;
    uint32_t n_blocks, n_slots, n_tier;
    uint64_t block_stride, slot_stride;
    struct device *devices[DEVICES_MAX];
    struct segment index_segment;
    struct index_header *header; /* its start; NULL until carved */
    struct pool pool;
    struct index *index;
    struct spaces *spaces;
    struct copier *copiers[SWAP_STORES * DEVICES_MAX]; /* the disk's, of GPUs, by store */
    struct disk *disk;                                /* NULL: no disk tier */
    struct snapshots *snapshots;                      /* NULL: a pool without slots */
    struct leases leases;

    struct counters counters; /* what dispatch counts; levels are filled in by daemon_publish */
    struct counters published;

    struct list sessions, groups;
    struct list ghosts, confined; /* quarantine.h: sessions that were, groups with pages */
    struct list visitors;         /* connections that are not workers: not yet, or tools */
    struct foreign *foreign;      /* closes what nobody asked for */
    uint64_t refused_ns;          /* since then n_refused were refused (handshake.c) */
    uint64_t unaccepted_ns;       /* when that was last said; 0: never (visitor.c) */
    uint32_t n_refused;
    uint32_t n_sessions, n_ghosts, n_visitors;
    uint64_t next_session;
    uint64_t charged;      /* index_work() when it was last charged */
    uint64_t work;         /* in tokens, since the descriptors were last looked at */
    uint32_t n_flushing;   /* condemned roots that are being emptied, a slice a turn */
    struct place *orphans; /* those of them whose worker has gone */
    uint32_t n_orphans;
    bool stopping;
    bool gpu_left;       /* a GPU's driver did not take its memory back */
    bool importers_left; /* workers still map the pool: a GPU's is not freed under them */

    uint8_t *scratch; /* PIECE_BYTES: private copies of hostile arenas */
};

/* Start everything; 0, or an exit code after one sentence on stderr. */
int daemon_start(struct daemon *d, const struct options *options);
int daemon_run(struct daemon *d); /* until SIGTERM or SIGINT */
void daemon_stop(struct daemon *d);
/* Wait for a descriptor and serve it. False: there was none in that time. */
bool daemon_serve_one(struct daemon *d, int timeout_ms);

/* Make the cache for this layout. 0, or PFX_E* and a sentence in why. */
int daemon_carve(struct daemon *d, const struct wire_layout *layout, char *why, size_t n_why);
void daemon_uncarve(struct daemon *d);
/* Warn of options that this layout leaves without effect. */
void daemon_say_unused(const struct daemon *d);

/* Put counters and levels where workers read them: before the completion that reports a change. */
void daemon_publish(struct daemon *d);

/* Everything that can be compared, compared. Returns the number of findings. */
unsigned daemon_audit(struct daemon *d, audit_find *find, void *arg);

#endif
