/*
 * layout.h - every region that processes share, byte by byte.
 *
 *   request region      written by one worker, read by the daemon
 *   completion region   written by the daemon, mapped read-only by that worker
 *
 *      0     channel_header   magic, format, epoch, sizes (written by the daemon before it is sent)
 *      4096  channel_words    one cache line each: tail, head, doze
 *      8192  ring             ring_entries x 64 bytes
 *      ...   arena            arena_bytes: tokens (request), id lists (completion)
 *
 *      The request region's `tail` is the request ring's, its `head` says what the worker has
 *      taken from the completion ring; the completion region mirrors that.
 *
 *   index region        written by the daemon's one metadata thread, read by everybody
 *
 *      0     index_header     parameters, epoch, the daemon's doze word, counters
 *      ...   spaces           max_spaces  x struct index_space
 *      ...   nodes            max_nodes   x struct index_node (64 bytes, one cache line)
 *      ...   buckets          n_buckets   x struct index_bucket (64 bytes): who is whose child
 *      ...   tokens           n_units     x block_tokens x 4 bytes
 *      ...   pages            n_units     x 4 bytes: block ids      (NO_PAGE: not resident)
 *      ...   disks            n_units     x 4 bytes: disk slot ids  (NO_DISK: none)
 *      ...   extra heads      n_units     x 4 bytes: first extra of the block, 0: none; only
 *                             meaningful where the node says NODE_EXTRAS
 *      ...   extras           n_extras    x struct index_extra
 *      ...   snapshots        max_snapshots + 1 x struct index_snapshot; 0 is none
 *      ...   residues         max_snapshots + 1 x block_tokens x 4 bytes: what a snapshot's prefix
 *                             has after its last whole block
 *
 *      A unit is the room of one block. A node owns a run of consecutive units (an extent):
 *
 *          node  start=3 n_blocks=4 extent=17    path depth 3 .. 7 (in blocks)
 *                                    |
 *          tokens  ... | 17 | 18 | 19 | 20 | 21   | ...
 *          pages   ... | p3 | p4 | p5 | p6 | room | ...
 *
 *      Everything is sized at start (index_plan): nothing grows or is rehashed. Arrays are
 *      sparse: pages of the region that no block ever needed cost nothing.
 *
 *   pool regions        one a device: block b at b * block_stride; then the slots. Block 0 and
 *                       slot 0 are scratch.
 *
 * Regions hold ids and offsets, never pointers. LAYOUT_FORMAT changes with any change here.
 */
#ifndef SHM_LAYOUT_H
#define SHM_LAYOUT_H

#include "shm/stats.h"

#include <assert.h>
#include <stddef.h>

#define LAYOUT_FORMAT 3u
#define CHANNEL_MAGIC 0x6c6e6e6863786670ull /* "pfxchnnl" */
#define INDEX_MAGIC 0x7865646e69786670ull   /* "pfxindex" */

enum {
    REGION_PAGE = 4096,
    NODE_BLOCKS = 64,         /* longest run of one node                                 */
    BLOCK_TOKENS_MAX = 4096,  /* so that a run compare stays bounded                     */
    BUCKET_ENTRIES = 7,
    READER_PROBES = 16,       /* buckets a reader looks at before it asks the daemon     */
    TENANT_MAX = 255,
    DEVICES_MAX = 16,
    ARENA_MIN = 64 * 1024,
    ARENA_DEFAULT = 1024 * 1024,
    ARENA_MAX = 64 * 1024 * 1024,
    PIECE_BYTES = 256 * 1024, /* tokens and extras of one record at most                 */
    PIECE_TOKENS = 8192,      /* and never more than these: the work of a record is bounded, */
    PIECE_BLOCKS = 512,       /* so that other workers wait for microseconds (piece_most)    */
};

/* No page, disk slot or snapshot slot stands here (PFX_NO_* of the public header). */
#define NO_PAGE UINT32_MAX
#define NO_DISK UINT32_MAX
#define NO_SLOT UINT32_MAX

/* ---- channel ---------------------------------------------------------------- */

struct channel_header {
    uint64_t magic;
    uint32_t format;
    uint32_t ring_entries;
    uint64_t epoch;
    uint32_t arena_bytes;
    uint32_t reserved;
};

struct channel_words {
    uint32_t tail; /* of the ring in this region                 */
    uint32_t pad0[15];
    uint32_t head; /* taken from the ring in the other region    */
    uint32_t pad1[15];
    uint32_t doze; /* of the region's writer; the daemon's own word is in the index header */
    uint32_t pad2[15];
};
static_assert(sizeof(struct channel_words) == 192, "one line a word: no false sharing");

enum { CHANNEL_WORDS = REGION_PAGE, CHANNEL_RING = 2 * REGION_PAGE };

static inline uint64_t channel_arena_offset(uint32_t ring_entries)
{
    return CHANNEL_RING + (uint64_t)ring_entries * 64;
}

static inline uint64_t channel_bytes(uint32_t ring_entries, uint32_t arena_bytes)
{
    return (channel_arena_offset(ring_entries) + arena_bytes + REGION_PAGE - 1) & ~4095ull;
}

/* Tokens of one piece at most: whole blocks, at least one. */
static inline uint32_t piece_most(uint32_t block_tokens)
{
    uint32_t blocks = PIECE_TOKENS / block_tokens;
    if (blocks > PIECE_BLOCKS)
        blocks = PIECE_BLOCKS;
    return (blocks ? blocks : 1) * block_tokens;
}

/* ---- index ------------------------------------------------------------------- */

/* What all sizes of the index region follow from. */
struct index_params {
    uint32_t block_tokens;
    uint32_t n_blocks; /* device blocks                              */
    uint32_t n_disk;   /* disk slots for blocks                      */
    uint32_t max_spaces;
    uint64_t hash_seed; /* random, an epoch's own                     */
    uint64_t hash_mask; /* all ones; a test narrows it to force collisions */
    uint32_t max_snapshots; /* slots and spilled copies: each entry has one of them */
    uint32_t reserved;
};

struct index_header {
    uint64_t magic;
    uint32_t format;
    uint32_t active; /* 0: the null cache                           */
    uint64_t epoch;
    uint64_t region_bytes;
    struct index_params params;
    /* the pool's layout and the daemon, for tools that only see this region */
    uint64_t block_bytes, block_stride, snapshot_bytes, slot_stride;
    uint32_t n_devices, n_slots;
    uint8_t model_digest[32];
    uint64_t started_realtime_ns;
    uint32_t daemon_pid;
    uint32_t ready; /* 1: all above is there; stored last, with release */
    uint32_t n_tier; /* spilled snapshots at once; 0: none */
    uint32_t reserved;
    uint8_t pad[1024 - 168];

    /* Offset 1024: the daemon's doze word (ring.h, DOZE), one for all workers. */
    uint32_t doze;
    uint32_t pad_doze[15];

    /* Offset 1088 */
    struct stats_latch stats;
};
static_assert(offsetof(struct index_header, doze) == 1024, "on a line of its own");
static_assert(offsetof(struct index_header, stats) == 1088, "after the doze line");
static_assert(sizeof(struct index_header) <= REGION_PAGE, "the header is one page");

enum space_state { SPACE_FREE = 0, SPACE_LIVE = 1, SPACE_DORMANT = 2 };

/* A space's number is slot | generation << 32; the base space is slot 0, generation 0. A
 * dormant one has nothing cached and nobody using it; its slot is taken again last. */
struct index_space {
    uint32_t version; /* odd while it changes */
    uint32_t state;
    uint64_t number;
    uint64_t flushes; /* its flush generation */
    uint32_t root;    /* node id; changes with a flush */
    uint32_t tenant_len;
    uint64_t adapter_id, adapter_generation;
    uint8_t tenant[TENANT_MAX + 1];
};
static_assert(sizeof(struct index_space) == 304, "shape of a space");

enum node_flags { NODE_EXTRAS = 1u, NODE_ROOT = 2u };

/* A run of blocks, or a root (n_blocks 0), or one partial block (n_partial > 0).
 *
 * version    bumped around every change of the node or of its extent, page ids included
 * identity   changes when the node is recycled or its run is truncated; never on append or
 *            split (the lower part keeps id and identity)
 *
 * The children of a node form a treap ordered by the tokens of their first block (`children` is
 * its root, `left` and `right` its links), so that the best tail candidate is a neighbour; and
 * each child but a partial one stands in the bucket table, so that descending is one probe.
 * A change of either bumps the PARENT's version as well. */
struct index_node {
    uint32_t version;
    uint16_t n_blocks;
    uint16_t n_partial;       /* tokens of a PFX_FINAL partial block (then n_blocks is 1) */
    uint64_t identity;
    uint64_t parent_identity;
    uint32_t parent;
    uint32_t start;           /* depth of the first block, in blocks                      */
    uint32_t extent;          /* first unit                                               */
    uint32_t root;            /* the root it hangs below                                  */
    uint32_t children;
    uint32_t left, right;
    uint32_t flags;
    uint32_t space;           /* slot in the space table                                  */
    uint32_t snapshots;       /* the treap of those that hang here                        */
};
static_assert(sizeof(struct index_node) == 64, "one cache line");

/* entry: tag << 32 | node id; 0 is empty. `overflow` counts entries whose probe passed this
 * bucket: a probe may stop at a bucket where it is 0. Nothing ever moves, so a reader that sees
 * an unchanged parent has seen all its children. */
struct index_bucket {
    uint32_t overflow;
    uint32_t reserved;
    uint64_t entry[BUCKET_ENTRIES];
};
static_assert(sizeof(struct index_bucket) == 64, "one cache line");

/* One extra that touches a block, in a list ascending by `at`. */
struct index_extra {
    uint64_t at, len; /* tokens, from the start of the sequence */
    uint8_t digest[32];
    uint32_t next; /* 0: the last */
    uint32_t reserved[3];
};
static_assert(sizeof(struct index_extra) == 64, "one cache line");

/* Kinds as enum pfx_snapshot_kind has them. States are bits: `below` is a set of them. */
enum snapshot_kind { SNAPSHOT_EXACT = 0, SNAPSHOT_TAIL = 1, SNAPSHOT_SIBLING = 2 };
enum snapshot_state { SNAPSHOT_RESIDENT = 1, SNAPSHOT_TIERED = 2 };

/* The state after `depth` tokens of a prefix. It hangs on the node that covers the last whole block
 * of them (on the root, if there is none); what is left of them, fewer tokens than a block, is its
 * residue. Readers see it under the version of that node.
 *
 * A node's entries form a treap, in this order:
 *
 *      exact ones and siblings (at most one a position)    by depth in blocks, residue, extras
 *      tails                   (at most one a session)     by session
 */
struct index_snapshot {
    uint64_t session;  /* who saved it; of a tail, the only one that may see it        */
    uint64_t tier_key; /* TIERED: its name in the lower tier                           */
    uint32_t depth;    /* tokens                                                       */
    uint32_t node;     /* where it hangs; 0: nowhere                                   */
    uint32_t left, right;
    uint32_t up;       /* the daemon's own: its parent in the treap; 0: it is the top  */
    uint32_t extras;   /* first of the extras that start in the residue; 0: none       */
    uint32_t slot;     /* RESIDENT                                                     */
    uint8_t kind;
    uint8_t state;
    uint8_t below;     /* states of its subtree in the treap, its own included         */
    uint8_t reserved0;
    uint32_t shallowest, deepest; /* the daemon's own: depths of its subtree         */
    uint64_t reserved1;
};
static_assert(sizeof(struct index_snapshot) == 64, "one cache line");

struct index_plan {
    uint32_t max_nodes, n_buckets, n_units, max_extras;
    uint64_t spaces, nodes, buckets, tokens, pages, disks, extra_heads, extras; /* offsets */
    uint64_t snapshots, residues;
    uint64_t bytes;
};

/* All sizes and offsets, from the parameters; creator, reader and tools call this one function.
 * False if the parameters are out of range. */
bool index_plan(const struct index_params *params, struct index_plan *plan);

/* ---- pool -------------------------------------------------------------------- */

static inline uint64_t pool_slots_offset(uint32_t n_blocks, uint64_t block_stride)
{
    return (((uint64_t)n_blocks + 1) * block_stride + REGION_PAGE - 1) & ~4095ull;
}

static inline uint64_t pool_bytes(uint32_t n_blocks, uint64_t block_stride, uint32_t n_slots,
                                  uint64_t slot_stride)
{
    uint64_t bytes = pool_slots_offset(n_blocks, block_stride);
    if (slot_stride)
        bytes += ((uint64_t)n_slots + 1) * slot_stride;
    return (bytes + REGION_PAGE - 1) & ~4095ull;
}

#endif
