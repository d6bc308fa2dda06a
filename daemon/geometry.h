/*
 * geometry.h - how many blocks and slots of which size: asked at start, or, with --bytes alone,
 * when the first worker brings its layout.
 */
#ifndef DAEMON_GEOMETRY_H
#define DAEMON_GEOMETRY_H

#include "daemon/options.h"
#include "shm/layout.h"

struct geometry {
    struct wire_layout layout;
    uint32_t n_blocks, n_slots;
    uint32_t n_tier; /* spilled snapshots at once */
    uint32_t n_disk; /* blocks on disk, of all --swap */
    uint64_t block_stride, slot_stride;
    uint64_t pool_bytes;        /* of one device */
    struct index_params params; /* without its seed */
    struct index_plan plan;
};

/* False, and one sentence that names the option (or the field of a worker's layout) at fault. */
bool geometry_plan(const struct options *o, const struct wire_layout *layout, struct geometry *g,
                   char *why, size_t n_why);

/* The part of --snapshot-swap that each path of --swap has. */
uint64_t geometry_snapshot_swap(const struct options *o);

#endif
