/*
 * options.h - what prefixd was asked to be. One table (options.c) makes the parser, --help and the
 * configuration file.
 */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include "daemon/log.h"
#include "daemon/policy.h"
#include "daemon/swap.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

enum { ALLOWED_MAX = 64 };

enum swap_write_mode { SWAP_WRITE_EVICT, SWAP_WRITE_INSERT };

struct options {
    char socket[sizeof((struct sockaddr_un *)0)->sun_path];
    uid_t users[ALLOWED_MAX]; /* besides root and the daemon's own */
    gid_t groups[ALLOWED_MAX];
    uint32_t n_users, n_groups;

    /* The pool. Without any of these a small one; --bytes alone waits for a worker's layout. */
    uint64_t bytes; /* 0: not given */
    struct wire_layout layout;
    uint32_t blocks, snapshots;
    uint64_t snapshot_swap; /* bytes for spilled snapshots */
    uint32_t spill_min_tokens;
    char swap_path[SWAP_PATHS][512];
    uint64_t swap_bytes[SWAP_PATHS];
    uint32_t n_swap, swap_depth, swap_admit;
    enum swap_write_mode swap_write;
    const char *without_swap[3]; /* given, and of no use without --swap; NULL ends them */
    bool has_model; /* --model was given: layout.model_digest counts even while waiting */
    bool waits;
    struct device_name gpu[DEVICES_MAX]; /* --device cuda; n_gpus 0: host */
    uint32_t n_gpus;
    bool gpus_listed; /* by name: as many as that; else the first ones, as many as there are shards */
    enum device_export cuda_export;
    bool huge_pages;
    int numa_node; /* as device_want.numa_node */

    bool null_index; /* --index none */
    const struct policy *policy;
    double alpha;
    uint32_t spin_us;
    uint32_t max_workers;
    uint32_t max_leases; /* a worker */
    uint32_t max_worker_blocks, max_worker_slots; /* 0: as many as there are */
    enum log_level log_level;
};

/* Defaults, then the configuration file, then the command line. OPTIONS_RUN, or an exit code after
 * --help, --version or one sentence on stderr. */
enum { OPTIONS_RUN = -1 };
int options_read(struct options *o, int argc, char **argv);

#endif
