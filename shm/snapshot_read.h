/*
 * snapshot_read.h - which snapshots a match can be continued from: the read-only search that the
 * daemon's lookup and a worker's pfx_peek_full share. As in index_read.h: no lock, no trace; an
 * answer grants no right.
 */
#ifndef SHM_SNAPSHOT_READ_H
#define SHM_SNAPSHOT_READ_H

#include "shm/index_read.h"

struct snapshot_want {
    uint64_t session;     /* 0: nobody's tail */
    uint32_t multiple;    /* only depths that are multiples of it; 0: any */
    uint32_t states;      /* set of enum snapshot_state: what is looked for */
    const uint32_t *rest; /* the tokens after the place that a tail block shares with the query; */
    uint32_t n_rest;      /* no extra starts in them */
};

struct snapshot_found {
    uint32_t id; /* 0: none */
    uint32_t depth;
    bool is_tail;
};

struct snapshots_found {
    struct snapshot_found resident, tiered;
    uint32_t work; /* nodes climbed and turns taken */
};

/* The deepest resident and the deepest tiered snapshot of the path to `where` and the rest; of an
 * exact one and the session's own tail at one depth, the exact one. False: the place is gone. */
bool index_snapshots(const struct index_view *view, struct place where,
                     const struct snapshot_want *want, struct snapshots_found *found);

/* ---- shared with the daemon's writers --------------------------------------------------- */

/* Where an entry stands in its node's treap. Of its extras those with low <= at < high count; the
 * others of a block's list belong to its other tokens. */
struct snapshot_key {
    bool tail;
    uint64_t session;       /* tail: all that counts */
    uint32_t depth;         /* in tokens: whole blocks, then n of the residue */
    const uint32_t *tokens; /* of the residue */
    uint32_t n;
    const struct wire_extra *given; /* n_given of them; NULL: the list that begins with `extras` */
    size_t n_given;
    uint32_t extras;
    uint64_t low, high;
};

struct snapshot_key snapshot_key_of(const struct index_view *view, uint32_t id);

/* < 0: the key stands before entry id; 0: it is the entry's. */
int snapshot_compare(const struct index_view *view, const struct snapshot_key *key, uint32_t id);

/* The entry with that key in the treap below `top`; 0: none. */
uint32_t snapshot_find(const struct index_view *view, uint32_t top, const struct snapshot_key *key);

#endif
