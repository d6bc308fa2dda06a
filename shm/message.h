/*
 * message.h - what travels: 64-byte records on the rings, packets on the control socket.
 *
 *   request     worker -> daemon   op, flags, tag, lease, operands; bulk data in the request arena
 *   completion  daemon -> worker   tag, status, lease, results; id lists in the completion arena,
 *                                  where the request said that there is room
 *
 * A tag is the client's own (its slot in the table of pending calls), never the caller's. A status
 * is 0 or a positive answer, or a PFX_E* of client/prefixd.h. Every record is answered by exactly
 * one completion, in order, except those that say so.
 *
 * Depths are in blocks, lengths in tokens, arena offsets in bytes from the arena's start and
 * multiples of 8. Reserved fields and unknown flags are 0.
 */
#ifndef SHM_MESSAGE_H
#define SHM_MESSAGE_H

#include "shm/layout.h"

#include <assert.h>
#include <stdint.h>

/* One table: enum, name in logs and tools. */
#define OPCODES(O)                                                                                \
    O(NOP, "nop")                     /* an empty round trip                                    */ \
    O(LOOKUP, "lookup")               /* the fast form: the worker walked the index             */ \
    O(LOOKUP_SLOW, "lookup_slow")     /* all tokens, a piece a record                           */ \
    O(CANCEL, "cancel")               /* give back the lease of a lookup, named by its tag      */ \
    O(FETCH, "fetch")                                                                             \
    O(TRUNCATE, "truncate")                                                                       \
    O(RESERVE, "reserve")                                                                         \
    O(INSERT, "insert")               /* tokens from the held depth on, a piece a record        */ \
    O(RELEASE, "release")                                                                         \
    O(TABLE, "table")                 /* what a lease holds, and a part of its block table      */ \
    O(SPACE_OPEN, "space_open")                                                                   \
    O(SPACE_CLOSE, "space_close")                                                                 \
    O(EVICT, "evict")                                                                             \
    O(FLUSH, "flush")                                                                             \
    O(SNAPSHOT_RESERVE, "snapshot_reserve")                                                       \
    O(SNAPSHOT_INSERT, "snapshot_insert")                                                         \
    O(SNAPSHOT_CANCEL, "snapshot_cancel")                                                         \
    O(SNAPSHOT_DROP, "snapshot_drop")                                                             \
    O(SNAPSHOT_EVICT, "snapshot_evict")                                                           \
    O(SNAPSHOT_SPILL, "snapshot_spill")                                                           \
    O(SNAPSHOT_FORGET, "snapshot_forget")

enum opcode {
#define OPCODE_ENUM(name, text) OP_##name,
    OPCODES(OPCODE_ENUM)
#undef OPCODE_ENUM
    OP_COUNT
};

/* Positive statuses: answers that the library handles itself. */
enum answer {
    ANSWER_RETRY = 1, /* LOOKUP: the place named is gone, walk again. LOOKUP_SLOW: a flush came
                         between two pieces, the lease is gone, begin anew. INSERT: the lease is
                         not where the caller thinks; the completion says where it is */
    ANSWER_MORE = 2,  /* LOOKUP_SLOW: all of this piece matched, send the next (same lease);
                         INSERT: this piece is in, send the next */
};

enum request_flags {
    RF_FETCH = 1u,    /* as PFX_FETCH                                     */
    RF_NO_MATCH = 2u, /* LOOKUP: an empty lease, nothing counted          */
    RF_QUIET = 8u,    /* as PFX_QUIET                                     */
    RF_FINAL = 16u,   /* INSERT: as PFX_FINAL (with the last piece)       */
    RF_LAST = 32u,    /* LOOKUP_SLOW, INSERT: the last piece              */
    RF_NO_TAIL = 64u, /* LOOKUP_SLOW: as PFX_NO_TAIL                      */
};

/* A place in the index: the path down to `depth` blocks, named by a node on or below it. */
struct place {
    uint64_t identity;
    uint32_t node;
    uint32_t depth;
};

/* LOOKUP: the worker's walk matched where.depth blocks. rest: the tokens that follow, for the
 * tail; cut by the worker to one block, to max_match and before any extra; 0: no tail wanted. */
struct request_lookup {
    uint64_t space, session;
    struct place where;
    uint32_t n_tokens; /* of the whole query, for the counters */
    uint32_t snapshot_multiple;
    uint32_t arena; /* of rest */
    uint16_t rest;
    uint16_t reserved;
};

/* LOOKUP_SLOW. A piece holds `piece` tokens (a multiple of block_tokens but for the last), then,
 * 8-aligned, n_extras x struct wire_extra: those that touch the piece. request.lease is 0 for the
 * first piece, then the lease that ANSWER_MORE named: the path so far is held meanwhile. */
struct request_lookup_slow {
    uint64_t space, session;
    uint32_t n_tokens;  /* of the whole query                        */
    uint32_t max_match; /* tokens                                    */
    uint32_t multiple;  /* tokens; a multiple of block_tokens        */
    uint32_t snapshot_multiple;
    uint32_t arena, piece, n_extras;
    uint32_t reserved;
};

struct wire_extra {
    uint64_t at, len;
    uint8_t digest[32];
};

/* INSERT. The worker compared its tokens with the path down to `where`; the piece holds those
 * from there on, then its extras as above. */
struct request_insert {
    struct place where;
    uint32_t arena, piece, n_extras;
    uint32_t n_written; /* of the whole call: where RF_FINAL ends, also if the table ends before */
    uint32_t reserved[4];
};

struct request_reserve {
    uint32_t n;
    uint32_t arena, room; /* completion arena: room for that many ids; the first ones come so */
    uint32_t reserved[9];
};

struct request_table {
    uint32_t from, count; /* positions wanted */
    uint32_t arena;       /* completion arena */
    uint32_t reserved[9];
};

struct request_space {
    uint64_t space;                          /* SPACE_CLOSE, FLUSH         */
    uint64_t adapter_id, adapter_generation; /* SPACE_OPEN                 */
    uint32_t arena, tenant_len;
    uint32_t reserved[4];
};

struct request_number {
    uint64_t n; /* TRUNCATE: blocks kept; EVICT: how many; CANCEL: the tag; SNAPSHOT_FORGET: key;
                   SNAPSHOT_SPILL: min_tokens; SNAPSHOT_INSERT, _CANCEL: slot */
    uint32_t depth, kind; /* SNAPSHOT_INSERT */
    uint32_t reserved[8];
};

struct request {
    uint16_t op;
    uint16_t flags;
    uint32_t tag;
    uint64_t lease;
    union {
        struct request_lookup lookup;
        struct request_lookup_slow slow;
        struct request_insert insert;
        struct request_reserve reserve;
        struct request_table table;
        struct request_space space;
        struct request_number number;
        uint64_t raw[6];
    };
};
static_assert(sizeof(struct request) == 64, "one ring record");

/* LOOKUP, LOOKUP_SLOW, FETCH: where the lease holds, and what it was offered. */
struct completion_lookup {
    struct place where;
    uint64_t tier_key;
    uint32_t tail_block, tail_tokens;
    uint32_t slot, snapshot_depth, tier_depth;
    uint32_t is_tail;
};

struct completion_insert {
    struct place where; /* the hold afterwards; with ANSWER_RETRY: where the lease is */
    uint32_t cached, created, duplicates;
    uint32_t reserved[5];
};

/* RESERVE: n ids are in the arena, the table now has `table` positions. TABLE, TRUNCATE: also
 * where the lease holds and how many positions were matched. */
struct completion_table {
    struct place where;
    uint32_t matched, table, n;
    uint32_t reserved[5];
};

struct completion_number {
    uint64_t n;    /* SPACE_OPEN: the space; EVICT: blocks freed; SNAPSHOT_SPILL: key */
    uint64_t more; /* EVICT: blocks removed */
    uint32_t slot, depth, dropped;
    uint32_t reserved[5];
};

struct wire_completion {
    uint32_t tag;
    int16_t status;
    uint16_t op;
    uint64_t lease;
    union {
        struct completion_lookup lookup;
        struct completion_insert insert;
        struct completion_table table;
        struct completion_number number;
        uint64_t raw[6];
    };
};
static_assert(sizeof(struct wire_completion) == 64, "one ring record");

/* ---- control socket (AF_UNIX, SEQPACKET) ---------------------------------------
 *
 *   HELLO    peer -> daemon, the first packet
 *   WELCOME  daemon -> peer, with these descriptors for a worker, in this order:
 *            request, completion, index, then the pool of each device
 *   after that, between a worker and the daemon: wake-ups, one byte each (WAKE), and BYE, one
 *   byte, by which a worker gives back all that it opened; for a tool (HELLO_ADMIN): one
 *   admin_request a packet, answered by one admin_reply with a memfd of rows (none: no memfd).
 */
#define HELLO_MAGIC 0x6f6c6c6568786670ull /* "pfxhello" */
#define WIRE_ABI 1u                       /* equals PFX_ABI_VERSION (client/prefixd.h) */

enum hello_kind { HELLO_WORKER = 0, HELLO_ADMIN = 1 };
enum { WAKE = 'w', BYE = 'b' };

struct wire_layout {
    uint32_t block_tokens, n_devices;
    uint64_t block_bytes, snapshot_bytes;
    uint8_t model_digest[32];
};

struct hello {
    uint64_t magic;
    uint32_t abi, kind;
    uint32_t format;       /* LAYOUT_FORMAT */
    uint32_t ring_entries; /* 0: default    */
    uint32_t arena_bytes;  /* 0: default    */
    uint32_t has_layout;
    uint64_t maps;         /* bit i: it will map device i, if there is one */
    struct wire_layout layout;
    char name[32];  /* NUL-terminated */
    char group[64]; /* NUL-terminated; empty: a group of its own */
};
static_assert(sizeof(struct hello) == 192, "no padding to leak");

/* How the memory of one device of the pool is found and mapped (kernels/device.h). */
enum device_kind { DEVICE_HOST = 0, DEVICE_CUDA_FD = 1, DEVICE_CUDA_IPC = 2 };

struct wire_device {
    uint8_t uuid[16];   /* of the GPU */
    uint8_t handle[64]; /* DEVICE_CUDA_IPC; its descriptor is a placeholder then */
    uint64_t bytes;
    uint32_t kind;
    uint32_t reserved;
};
static_assert(sizeof(struct wire_device) == 96, "no padding to leak");

enum { WHY_MAX = 512 }; /* of a sentence: one of a GPU's driver takes more than half */

struct welcome {
    uint64_t magic;
    int32_t status; /* 0 or PFX_E*: then only `why` counts and the socket is closed */
    uint32_t abi;
    uint32_t ring_entries, arena_bytes; /* of both rings and arenas */
    uint32_t spin_us;                   /* the daemon's default for workers */
    uint32_t n_fds;
    uint64_t epoch;
    uint64_t index_bytes; /* of the region */
    uint32_t n_blocks, n_slots, n_disk, active;
    uint64_t block_stride, slot_stride;
    struct wire_layout layout;
    uint64_t worker; /* the session's number, as prefixctl workers shows it */
    char why[WHY_MAX];
    struct wire_device device[DEVICES_MAX];
};
static_assert(sizeof(struct welcome) == 2192, "no padding to leak");

enum admin_op { ADMIN_WORKERS = 1, ADMIN_LEASES = 2, ADMIN_AUDIT = 3 };

struct admin_request {
    uint32_t op;
    uint32_t reserved;
};

struct admin_reply {
    int32_t status;
    uint32_t n_rows, row_bytes;
    uint32_t reserved;
};

struct worker_row {
    uint64_t worker;
    int32_t pid;
    uint32_t uid;
    char name[32], group[64];
    uint32_t leases, opened_spaces;
    uint64_t private_blocks, requests;
    uint32_t dead; /* it has died, its group lives on and keeps its leases */
    uint32_t reserved;
};

struct lease_row {
    uint64_t lease, worker;
    char group[64];
    uint64_t space;
    uint32_t matched_blocks, held_blocks, table_blocks, private_blocks;
    uint32_t final, stale; /* stale: from before a flush */
    uint32_t slots;        /* reserved and not yet inserted */
    uint32_t snapshot_depth, tier_depth; /* of the snapshots it holds, in tokens; 0: none */
    uint32_t reserved;
};

struct audit_row {
    char finding[256];
};

#endif
