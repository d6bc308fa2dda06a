/*
 * segment.h - memfds: made and sealed by the daemon, checked and mapped by whoever receives one.
 * Nothing is named in the file system, so nothing is left after SIGKILL.
 */
#ifndef SHM_SEGMENT_H
#define SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who writes decides the seals. Both kinds have SHRINK, GROW and SEAL: nobody can truncate it under
 * another, or seal it against the next one. */
enum segment_kind {
    SEGMENT_SHARED, /* several write: request regions, pools                     */
    SEGMENT_DAEMON, /* the daemon alone: + FUTURE_WRITE, others map it read-only */
};

/* Names, as /proc/PID/fd shows them to tools: "/memfd:prefixd-index (deleted)". */
#define SEGMENT_REQUEST    "prefixd-request"
#define SEGMENT_COMPLETION "prefixd-completion"
#define SEGMENT_INDEX      "prefixd-index"
#define SEGMENT_POOL       "prefixd-pool"
#define SEGMENT_ROWS       "prefixd-rows"

struct segment {
    int fd;
    void *base;
    uint64_t bytes;
};

/* Make a zeroed, sparse, sealed memfd and map it read-write. 0 or -errno. */
int segment_create(struct segment *s, const char *name, enum segment_kind kind, uint64_t bytes);

/* The same with more flags of memfd_create(2): a pool on huge pages. */
int segment_create_with(struct segment *s, const char *name, enum segment_kind kind, uint64_t bytes,
                        unsigned memfd_flags);

#define RAISE_DESCRIPTORS "raise the descriptor limit (ulimit -n, LimitNOFILE=)"

/* "; " and that, or the same of the whole machine, where an error is for want of descriptors; ""
 * for another one. */
const char *descriptors_remedy(int error);

/* What to do about an error of the two above: "ask for fewer", or which limit to raise. */
const char *segment_remedy(int error);

/* Check seals and exact size of a received descriptor and map it: writable, or read-only. The
 * mapping is not inherited by a fork. 0 or -errno (-EPERM: seals, -EINVAL: size). Owns no fd. */
int segment_map(struct segment *s, int fd, enum segment_kind kind, uint64_t bytes, bool writable);

/* Unmap, and close fd if it is not -1. */
void segment_free(struct segment *s);

#endif
