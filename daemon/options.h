/*
 * options.h - what prefixd was asked to be. One table (options.c) makes the parser, --help and the
 * configuration file.
 */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include "daemon/log.h"
#include "daemon/policy.h"
#include "shm/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

enum { ALLOWED_MAX = 64 };

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
    bool has_model; /* --model was given: layout.model_digest counts even while waiting */
    bool waits;
    bool huge_pages;
    int numa_node; /* as device_want.numa_node */

    bool null_index; /* --index none */
    const struct policy *policy;
    double alpha;
    uint32_t spin_us;
    uint32_t max_workers;
    uint32_t max_leases; /* a worker */
    enum log_level log_level;
};

/* Defaults, then the configuration file, then the command line. OPTIONS_RUN, or an exit code after
 * --help, --version or one sentence on stderr. */
enum { OPTIONS_RUN = -1 };
int options_read(struct options *o, int argc, char **argv);

#endif
