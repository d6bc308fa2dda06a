/*
 * prefixd.h - the contract of libprefixd, the worker side of prefixd, and its manual.
 *
 * Caveats first
 *   - A match is KV bytes that another worker wrote. Workers of one daemon trust each other: they
 *     map one pool and one index. Spaces keep tenants from matching each other; they do not hide
 *     memory from a hostile worker.
 *   - A lease is the only way to hold anything. A block id, a peek, a geometry grants no right.
 *   - A `pfx` belongs to one thread at a time, and to the process that opened it: every call in a
 *     forked child returns PFX_EINVAL there (pfx_close frees the child's copy and leaves the
 *     parent's connection alone). Open one per thread; they are cheap.
 *   - After PFX_ETIMEDOUT the call may still happen. See "Time" below.
 *
 * Terms
 *   token    one vocabulary id, uint32_t.
 *   block    `block_tokens` consecutive tokens, counted from the start of a
 *            sequence, and the KV page that holds their keys and values.
 *            A block has one id, valid on every device of the pool.
 *   space    who may share with whom: (tenant, adapter id, adapter generation).
 *            Two spaces never match each other, in any tier.
 *   lease    what one worker holds for one sequence: a block table (matched
 *            blocks, then reserved ones) and the snapshots it may restore.
 *            A lease is the only way to hold anything.
 *   group    processes that act as one engine (a scheduler and its ranks, or the
 *            threads of one server). Members may use each other's leases; the
 *            kernel tells the daemon who died, and what a dead member held is
 *            given back when the last member of its group is gone. A group is
 *            (user id, name); once its last member has gone, the name is a new group.
 *   snapshot recurrent (SSM) state after exactly `depth` tokens of a prefix,
 *            in one slot of `snapshot_bytes`.
 *   session  a conversation, by a number that the caller chooses, known in its space in
 *            all connections of the daemon: two engines that use one number share
 *            its tail. So take a random or hashed 64-bit id; 0 is none.
 *   tier     DEVICE (GPU or host pool) or DISK (the high-speed-swap files; for
 *            snapshots without --swap the daemon's memory, --snapshot-swap). On every
 *            path what is on the device comes first, and so does what is on disk.
 *
 * Rules that hold everywhere
 *   - Content decides a match: tokens (and extras) are compared in full, in every
 *     tier; a hash only narrows.
 *   - A cached block is immutable. A worker writes only to blocks it reserved
 *     and has not inserted; it never writes to a matched block.
 *   - Device writes to a block are complete before it is inserted; device reads
 *     are complete before its lease is released.
 *   - Block 0 and slot 0 exist on every device as scratch: never given out, never
 *     cached, not counted.
 *   - A call either does all it says or changes nothing, results included.
 *
 * Results and errors
 *   - Calls return 0 or a positive count on success and a negative PFX_E* on
 *     failure; pfx_strerror() explains it in one sentence, pfx_why() often better.
 *   - PFX_EINVAL comes before any other error, and nothing was sent. Every call may also
 *     return PFX_EGONE and, if it asks the daemon, PFX_ETIMEDOUT (the synchronous form) or
 *     PFX_EAGAIN (the asynchronous form; and either when this process has no memory left).
 *   - A lease of 0, of a released one, or of another group is PFX_ESTALE. A space that this
 *     connection does not have open is PFX_ENOENT. A snapshot slot outside 1..n_slots is
 *     PFX_EINVAL, one that is not this lease's PFX_ESTALE. A snapshot depth of 0 is PFX_EINVAL,
 *     one beyond what is matched or inserted PFX_ECONFLICT.
 *   - Sequences have fewer than 2^32 tokens (PFX_ETOOBIG).
 *
 * Structs
 *   - Every struct that crosses the interface begins with its `size` in bytes, set
 *     by the caller, so that fields can be added; pfx_extra and pfx_snapshot_ref have
 *     none and are frozen. Reserved fields and unknown flags must be 0 (PFX_EINVAL).
 *   - What the caller passes in may be larger than this library knows, if the excess is zero;
 *     else, and if it is smaller or its size is 0, it is PFX_EINVAL.
 *   - What the library fills must be at least as large as it knows; the known part is filled,
 *     and `size` then says how much that is. pfx_completion: the nested sizes count as well.
 *
 * Time
 *   - A synchronous call waits timeout_ms of struct pfx_options, then returns PFX_ETIMEDOUT. The
 *     library remembers it: a late lookup's lease is given back, and the lease of a timed-out
 *     call takes nothing but pfx_release (PFX_ESTALE for all else).
 *   - When the daemon dies, every call under way ends with PFX_EGONE within 100 ms. Mappings stay
 *     readable until pfx_close, but see "GPUs"; open a new connection for anything else.
 *   - A daemon that is stopped is not dead: pfx_peek, pfx_peek_full and pfx_stats go on.
 *
 * GPUs (a daemon with --device cuda)
 *   - Addresses are device addresses, for kernels and copies of the GPU that the device is, in
 *     whatever stream; no CPU may follow them, and no other GPU. They may differ from process
 *     to process, and between two connections of one.
 *   - pfx_open loads libcuda.so.1 (which may start threads) and retains the primary context of each
 *     GPU that it maps, the one that the CUDA runtime uses, and so PyTorch; what was current in the
 *     thread stays current. Do not reset that context (cudaDeviceReset) before pfx_close.
 *     PFX_MAP_NONE does none of it. CUDA does not survive a fork: open in the child, and only if
 *     the parent had no CUDA.
 *   - Nothing here orders work on streams. Wait for it on the host (cuStreamSynchronize, or an
 *     event): for writes before pfx_insert, for reads before pfx_release, pfx_truncate and
 *     pfx_snapshot_drop, for all of it before pfx_close. What is inserted is then seen by the GPU
 *     work of every worker that finds it.
 *   - Where a worker dies, its GPU may still write: what its group held goes to nobody else until
 *     the kernel has shown both its exit and its hang-up.
 *   - At PFX_EGONE end what the GPU does with the pool and close, soon: a daemon that stops waits
 *     two seconds for that, and the next one may find no room on the GPU before. With --cuda-export
 *     fd the old mapping stays good until then; with ipc it is undefined once the daemon has ended.
 *   - A mapping cannot be exported again (cuIpcGetMemHandle), and is not made for RDMA.
 *
 * Progress. pfx_lookup walks the index in this process and sends one 64-byte record. No call on
 * sequences makes a system call while the daemon is awake and answers within spin_us; those that
 * only look (pfx_peek, pfx_stats, pfx_wait with timeout 0) ask the socket about once a millisecond
 * whether the daemon is alive. Nothing here takes a lock, starts a thread or installs a signal
 * handler.
 */
#ifndef PREFIXD_H
#define PREFIXD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define PFX_ABI_VERSION 1u

#define PFX_NO_BLOCK UINT32_MAX /* this position has no page on the device */
#define PFX_NO_DISK UINT32_MAX  /* this position has no copy on disk       */
#define PFX_NO_SLOT UINT32_MAX  /* no snapshot slot                         */

enum pfx_error {
    PFX_EINVAL = -1,    /* an argument is out of range; nothing was sent      */
    PFX_ENOSPC = -2,    /* every block (or slot) is held; retry after release */
    PFX_ETOOBIG = -3,   /* can never fit: more than the pool or the channel   */
    PFX_ESTALE = -4,    /* the lease, block or slot is not (or no longer) yours */
    PFX_EAGAIN = -5,    /* the channel is full; take completions, then retry  */
    PFX_EGONE = -6,     /* the daemon died or restarted; reconnect            */
    PFX_EIO = -7,       /* the disk tier failed; the blocks it lost are a miss.
                           A flush: it counts, but is not on disk yet         */
    PFX_EVERSION = -8,  /* the daemon speaks another ABI version              */
    PFX_EACCESS = -9,   /* the daemon refused this user                       */
    PFX_ETIMEDOUT = -10,/* no answer within the time given; see the rules above */
    PFX_ECONFLICT = -11,/* tokens or depth contradict what the lease holds    */
    PFX_ENOENT = -12,   /* no such snapshot, key or space                     */
    PFX_EMISMATCH = -13 /* the worker's layout is not the daemon's            */
};
/* One sentence; static, never NULL. */
const char *pfx_strerror(int error);

/* ---- connection ------------------------------------------------------- */

typedef struct pfx pfx;

/* All that makes KV bytes of two processes interchangeable. The daemon compares
 * every field; a daemon started without a geometry takes the first worker's. */
struct pfx_layout {
    uint32_t size;
    uint32_t block_tokens;     /* tokens in a block                           */
    uint64_t block_bytes;      /* bytes of one block on one device; 0: states only */
    uint64_t snapshot_bytes;   /* bytes of one slot on one device, any number;
                                  0: no states                                */
    uint32_t n_devices;        /* shards (tensor-parallel ranks) of a block   */
    uint32_t reserved;
    uint8_t model_digest[32];  /* of weights, KV dtype, scales, memory order  */
};

struct pfx_options {
    uint32_t size;
    uint32_t ring_entries;     /* calls under way at once; a power of two up to 4096;
                                  0: the daemon's default                     */
    const char *socket_path;   /* NULL: $PREFIXD_SOCKET; without that
                                  $XDG_RUNTIME_DIR/prefixd.sock, then
                                  /run/prefixd/prefixd.sock                   */
    const char *name;          /* shown by prefixctl; at most 31 bytes        */
    const char *group;         /* at most 63 bytes, with the user id its name;
                                  NULL or empty: a group of its own           */
    const struct pfx_layout *layout; /* NULL: accept the daemon's             */
    uint64_t map_devices;      /* PFX_MAP_ALL, PFX_MAP_NONE, or bit i: device i of the
                                  pool, however this process numbers its GPUs */
    uint32_t arena_bytes;      /* room for tokens and answers, each way, at most
                                  64 MiB; less than 64 KiB counts as 64 KiB;
                                  0: the daemon's default                     */
    uint32_t timeout_ms;       /* for pfx_open and the synchronous calls; 0: 5000 */
    uint32_t spin_us;          /* spin this long before sleeping; 0: the daemon's default */
    uint32_t reserved;
};
#define PFX_MAP_ALL 0u          /* every device                              */
#define PFX_MAP_NONE UINT64_MAX /* none: a scheduler needs no GPU context    */

/* The digest that a daemon started with --model TEXT has: SHA-256 of the text. NULL is as "". */
void pfx_model_digest(const char *text, uint8_t digest[32]);

struct pfx_geometry {
    uint32_t size;
    uint32_t n_blocks;         /* usable blocks; ids are 1..n_blocks          */
    struct pfx_layout layout;
    uint32_t n_slots;          /* usable snapshot slots; ids are 1..n_slots   */
    uint32_t n_disk_blocks;    /* disk slots for blocks that the files may grow
                                  to; 0: no disk tier                         */
    uint64_t epoch;            /* changes whenever the daemon starts          */
    uint32_t active;           /* 0: caching is off (the null cache)          */
    uint32_t reserved;
};

/* Connect, check the ABI, receive and map the channel, the index (read-only)
 * and the pool. options NULL: all defaults. On failure *out is NULL, nothing is left
 * behind, and pfx_why(NULL) has a sentence.
 *
 * Errors: PFX_EGONE (no daemon), PFX_ETIMEDOUT (one that is stopped), PFX_EVERSION (another
 * ABI version), PFX_EACCESS (this user may not attach; the daemon's user and root may, and
 * whom --allow-user and --allow-group name), PFX_EMISMATCH (pfx_why names the field),
 * PFX_ENOSPC (as many workers as --max-workers allows), PFX_EAGAIN (this process has no
 * memory or descriptors left, or cannot map a GPU of the pool: pfx_why says why, and to try again
 * is of no use before that is changed). */
int pfx_open_abi(uint32_t abi_version, const struct pfx_options *options, pfx **out);
#define pfx_open(options, out) pfx_open_abi(PFX_ABI_VERSION, (options), (out))

/* One sentence on the last failure of this connection; c NULL: of this thread's last
 * pfx_open that failed. Never NULL; valid until the next call. */
const char *pfx_why(const pfx *c);

/* Give back every lease and space that this connection opened, also in a group that lives
 * on, and unmap. Calls under way get no completion. Safe on NULL, on a dead daemon and in a
 * forked child. Waits for the daemon to have given back, but not for long; before that, for all
 * that the GPUs it maps still do for this process. If a GPU's driver refuses (it is lost, or the
 * process is about to exit), the pages are given back when the process has ended. */
void pfx_close(pfx *c);

/* Owned by the connection; it never changes. NULL for NULL. */
const struct pfx_geometry *pfx_geometry(const pfx *c);

/* An empty round trip: 0 if the daemon answers. */
int pfx_ping(pfx *c);

/* One device's memory as one contiguous range of addresses in this process:
 * block b is at blocks + b * block_stride, slot s at slots + s * slot_stride. Host addresses
 * for a host pool, device addresses for a CUDA pool (see "GPUs"). Blocks and slots are aligned
 * to 64 bytes, or to 4096 where they may go to disk; a stride is block_bytes or snapshot_bytes
 * rounded up to that. blocks (slots) is NULL where the layout has none. PFX_EINVAL when the device
 * was not mapped. */
struct pfx_pool_view {
    uint32_t size;
    uint32_t is_cuda;
    uint8_t device_uuid[16];   /* of the GPU or MIG instance; 0 for host memory */
    void *blocks;
    uint64_t block_stride;
    void *slots;
    uint64_t slot_stride;
};
int pfx_pool_view(pfx *c, uint32_t device, struct pfx_pool_view *out);
/* The same addresses, one by one, as good as that view's. NULL: not mapped, or no such id. */
void *pfx_block_address(pfx *c, uint32_t device, uint32_t block);
void *pfx_slot_address(pfx *c, uint32_t device, uint32_t slot);

/* ---- spaces ------------------------------------------------------------ */

typedef uint64_t pfx_space; /* 0 is the base space: no tenant, base model */

struct pfx_space_desc {
    uint32_t size;
    uint32_t tenant_len;       /* 0..255                                      */
    const void *tenant;        /* opaque bytes, compared whole; may hold NUL  */
    uint64_t adapter_id;       /* 0: the base model                           */
    uint64_t adapter_generation;/* raise it when weights are reloaded         */
};

/* The same description always gives the same space, with one number in all connections of an
 * epoch; an adapter generation makes a space of its own, also with adapter 0. Opens are counted a
 * connection, and a connection uses the spaces that it has open: close it as often as it was
 * opened, or let pfx_close do it. Leases outlive a close. Spaces with nothing cached and nobody
 * using them cost nothing, so a space a request is fine. Errors: PFX_ENOSPC (every space the
 * daemon has room for is in use). */
int pfx_space_open(pfx *c, const struct pfx_space_desc *desc, pfx_space *out);
/* Errors: PFX_ENOENT (this connection does not have it open). */
int pfx_space_close(pfx *c, pfx_space space);

/* ---- sequences --------------------------------------------------------- */

/* Content that tokens do not show (an image, an embedding): the digest of what
 * stands behind tokens [at, at + len). Compared in full like tokens. A list of them is
 * ascending and disjoint; an overlapping, descending or empty one, or an end beyond 2^64, is
 * PFX_EINVAL; those beyond the tokens of the call are ignored. A block with more of them than a
 * piece of the channel holds is PFX_ETOOBIG. */
struct pfx_extra {
    uint64_t at;
    uint64_t len;
    uint8_t digest[32];
};

struct pfx_lookup_args {
    uint32_t size;
    uint32_t flags;            /* PFX_FETCH, PFX_NO_MATCH, PFX_NO_TAIL, PFX_QUIET */
    pfx_space space;
    uint64_t session;          /* conversation; 0: none (no tail SNAPSHOT is
                                  offered; a tail block does not depend on it) */
    const uint32_t *tokens;
    size_t n_tokens;           /* 0: an empty lease                           */
    const struct pfx_extra *extras; /* ascending, disjoint                    */
    size_t n_extras;
    size_t max_match;          /* longest useful match in tokens; 0: n_tokens-1,
                                  so that one token is left to compute; more than
                                  n_tokens counts as n_tokens                 */
    uint32_t match_multiple;   /* matched_tokens is a multiple of this too (of the
                                  common multiple with block_tokens); a match cut
                                  by it offers no tail. 0: block_tokens alone */
    uint32_t snapshot_multiple;/* offer only snapshot depths that are multiples of
                                  this alone; 0: any                          */
};
#define PFX_FETCH 1u           /* bring disk blocks and snapshots in first    */
#define PFX_NO_MATCH 2u        /* an empty lease, to compute from the start   */
#define PFX_NO_TAIL 4u         /* no tail block                               */
#define PFX_QUIET 8u           /* count neither hit nor miss, keep recency (of
                                  snapshots neither); its release is no use   */

struct pfx_snapshot_ref {
    uint32_t slot;             /* PFX_NO_SLOT: none resident                  */
    uint32_t depth;            /* tokens it covers; 0: none                   */
    uint64_t tier_key;         /* best spilled snapshot; 0: none              */
    uint32_t tier_depth;       /* tokens that one covers; 0: none             */
    uint32_t is_tail;          /* the resident one is this session's own tail;
                                  0 for a sibling, and for an exact one, which
                                  is offered where both are at one depth      */
};

/* matched_tokens + tail_tokens <= max_match. To use a tail: reserve, copy tail_block into the first
 * reserved block, compute from matched_tokens + tail_tokens on, and write only there. */
struct pfx_match {
    uint32_t size;
    uint32_t matched_tokens;   /* a multiple of block_tokens, <= max_match    */
    uint64_t lease;            /* never 0                                     */
    const uint32_t *blocks;    /* n_blocks ids in order, PFX_NO_BLOCK while a
                                  block is on disk only; valid until release  */
    const uint32_t *disk;      /* n_blocks disk ids, PFX_NO_DISK: none; NULL
                                  without a disk tier; valid until release    */
    uint32_t n_blocks;         /* matched_tokens / block_tokens               */
    uint32_t n_resident;       /* leading blocks that are on the device       */
    uint32_t tail_block;       /* a block whose first tail_tokens tokens go on
                                  from matched_tokens; copy it, never write it;
                                  PFX_NO_BLOCK: none                          */
    uint32_t tail_tokens;      /* 0: none. It ends before an extra that starts
                                  inside the block                            */
    struct pfx_snapshot_ref snapshot; /* deepest usable resident and spilled,
                                  each <= matched_tokens + tail_tokens        */
};

/* How far a lookup with these arguments would match now. Reads the shared index only: takes
 * nothing, moves no recency, counts no hit, does not involve the daemon and works while it
 * is stopped. The answer grants no right. pfx_peek returns matched tokens, by a lookup's
 * defaults. Errors: PFX_ENOENT (space), PFX_EGONE (once the daemon's death has been seen). */
struct pfx_peeked {
    uint32_t size;
    uint32_t matched_tokens, resident_tokens, tail_tokens;
    uint32_t snapshot_depth, snapshot_tier_depth;
};
ssize_t pfx_peek(pfx *c, pfx_space space, const uint32_t *tokens, size_t n_tokens);
int pfx_peek_full(pfx *c, const struct pfx_lookup_args *args, struct pfx_peeked *out);

/* Find the longest cached prefix and hold all of it - blocks, tail block and
 * snapshots - in a new lease, which is the caller's to release. A miss also yields a lease; a
 * tail alone (matched_tokens 0) is a miss. Recency is stamped, and a hit or miss counted, here;
 * an empty lease (n_tokens 0, PFX_NO_MATCH) counts as nothing but a lease.
 *
 * With PFX_FETCH what is on disk is brought in first; blocks that cannot be read are a miss: the
 * call returns 0 with the shorter match. Where no slot can be had for a snapshot, it returns 0 with
 * the tiered offer still there.
 *
 * The arrays in *out are the library's, and stay valid and unchanged until the lease is released
 * (or fetched). Errors: PFX_ENOENT (space), PFX_ENOSPC (this worker has as many leases as
 * --max-leases allows). */
int pfx_lookup(pfx *c, const struct pfx_lookup_args *args, struct pfx_match *out);

/* Bring the lease's disk-only blocks (and its tiered snapshot, when deeper than
 * the resident one) to the device; updates *m. Errors: PFX_ESTALE; PFX_ENOSPC leaves all as it
 * was (a lookup with PFX_FETCH then succeeds with disk-only blocks); on PFX_EIO the match is cut
 * before the first lost block and *m says what is left. It takes as long as the disk does: one that
 * does not answer makes the call PFX_ETIMEDOUT (see "Time"). */
int pfx_fetch(pfx *c, uint64_t lease, struct pfx_match *m);

/* Keep the first n_blocks of the lease's table and give back the rest: matched
 * ones stay cached, private ones become free. Any cut ends the hold on the tail block, and the
 * hold on a snapshot that lies deeper than what is kept. A later insert must agree with what was
 * kept. Errors: PFX_ESTALE; PFX_EINVAL beyond the table; PFX_ECONFLICT below the full blocks
 * that this lease itself has inserted. */
int pfx_truncate(pfx *c, uint64_t lease, uint32_t n_blocks);

/* Append n private blocks to the lease's table, evicting idle ones as needed (never what this lease
 * has matched). All or nothing; `blocks` receives n ids. 0 of them succeed and change nothing. With
 * a disk tier it may wait until idle ones are written: half a second at most, then they are lost.
 * Blocks that the disk is at just then are room as soon as it is through with them: those are
 * waited for while it works, and 20 seconds at most when it does not answer at all (then it counts
 * as sick).
 * Errors: PFX_ESTALE; PFX_ETOOBIG (n > n_blocks); PFX_ENOSPC (nothing tells when blocks become
 * free: retry after a release of yours, or a little later; one of more than 64 blocks that loses a
 * race for them may have evicted idle blocks; or it would be more than --max-worker-blocks);
 * PFX_ECONFLICT while the table has disk-only blocks (fetch or truncate first), and after
 * PFX_FINAL. */
int pfx_reserve(pfx *c, uint64_t lease, uint32_t n, uint32_t *blocks);

struct pfx_insert_args {
    uint32_t size;
    uint32_t flags;            /* PFX_FINAL                                   */
    const uint32_t *tokens;    /* the sequence from its start                 */
    size_t n_written;          /* leading tokens whose KV is in the table     */
    const struct pfx_extra *extras;
    size_t n_extras;
};
#define PFX_FINAL 1u /* no more writes: the last, partly filled block is cached too */

struct pfx_insert_result {
    uint32_t size;
    uint32_t cached_blocks;    /* table positions now backed by the index     */
    uint32_t new_blocks;       /* of these, created by this call              */
    uint32_t duplicate_blocks; /* already cached under another block: the lease
                                  now holds both; its own is freed at release */
};

/* Publish: every full block of the first n_written tokens that the table covers
 * becomes findable by others at once. What the lease already knows of the tokens
 * must agree (PFX_ECONFLICT). Tokens that it holds are compared in this process and never sent;
 * the rest goes in pieces, so there is no limit but PFX_ETOOBIG's.
 *
 * Repeating a call reports the same numbers with new_blocks 0 and changes nothing; neither does
 * an insert shorter than what is published. `canonical`, if not NULL, receives one id per cached
 * full position (n_written / block_tokens at most): the block that lookups will return. With
 * PFX_FINAL a partly filled last block is cached too, as a copy source: it counts in
 * cached_blocks and gets no canonical id; on a block boundary the flag only makes the lease final.
 *
 * Errors: PFX_ESTALE (also for a lease from before a flush of its space), PFX_ECONFLICT (the
 * tokens, or a longer insert after PFX_FINAL). */
int pfx_insert(pfx *c, uint64_t lease, const struct pfx_insert_args *args,
               uint32_t *canonical, struct pfx_insert_result *out);

/* Give back the lease: held blocks stay cached, private ones become free, once. Recency does not
 * move. Before any insert this is the rollback of a lookup. Errors: PFX_ESTALE. */
int pfx_release(pfx *c, uint64_t lease);

/* ---- snapshots --------------------------------------------------------- */

/* To use a snapshot. KV serves from any position on, a state at its own depth alone. So a hybrid
 * engine goes on at `depth` = snapshot.depth (0 where slot is PFX_NO_SLOT), and keeps the first
 * depth / block_tokens matched blocks; `rest` = depth % block_tokens tokens follow them:
 *
 *     below the match, rest 0    keep the blocks before it
 *     inside a matched block     keep those before that; `rest` tokens of it are copied
 *     at matched_tokens          keep all
 *     beyond it                  keep all; `rest` tokens of tail_block are copied
 *     none, recurrent layers     keep 0: KV without a state is of no use
 *
 *   1. With rest: copy those tokens of blocks[depth / block_tokens], or of tail_block, to memory of
 *      your own. Copy the state out of its slot. Both before 2, which ends the holds.
 *   2. pfx_truncate to depth / block_tokens blocks, if there are more; pfx_snapshot_drop.
 *   3. pfx_reserve, and put the copied tokens into the first reserved block.
 *   4. Compute from `depth` on, write to reserved blocks only, never to a matched one, and insert.
 *      What was cached already counts in duplicate_blocks.
 *
 * Where tier_depth is deeper, a fetch brings that one in; PFX_FETCH has tried it already. */

/* EXACT: the state after exactly `depth` tokens, as prefill leaves it; good for whoever has that
 * prefix. File one where prompts part (the end of a system prompt) and just before a prompt's end.
 * TAIL: the state at a turn's end, by when the layers may have run past `depth` (through a stop
 * sequence, or drafted tokens that were refused) and cannot go back: an approximation, good for its
 * own conversation only. An exact state may be filed as a tail too, so that the next turn's takes
 * its place.
 * SIBLING: an exact state that was set aside earlier in the turn, at the start of the answer, say.
 * It serves the next prompt where that leaves the answer before the tail (edited, or tokenized
 * anew), and other sessions. File the tail first, then its sibling: a tail takes the session's
 * older sibling away. */
enum pfx_snapshot_kind {
    PFX_EXACT = 0,             /* a pure function of the prefix: any session  */
    PFX_TAIL = 1,              /* state runs past depth: this session only    */
    PFX_TAIL_SIBLING = 2       /* exact, early twin of the tail               */
};

/* Which one goes when a slot is needed: of the session that was used least recently, the one used
 * least recently, its depth weighed in by --alpha. A session is as fresh as its own latest lookup
 * or save, or the latest offer of a snapshot that it saved. The tail and sibling of the session
 * that looked up last are spared for 64 evictions, unless nothing else may go. What a lease was
 * offered stays until pfx_snapshot_drop or the lease's end, displaced or not. A snapshot goes with
 * the blocks of its prefix; those shallower than a block go by this order alone. Spilled ones
 * that are on disk outlive the daemon, with their session and kind; among them may be some that
 * had been displaced or forgotten. Those in slots do not. */

/* A private slot for the lease to fill, spilling or dropping an idle snapshot if none is free.
 * Errors: PFX_ESTALE, PFX_ENOSPC (all are reserved, or held by leases that were offered them,
 * or it would be more than --max-worker-slots), PFX_ENOENT (a daemon without slots). */
int pfx_snapshot_reserve(pfx *c, uint64_t lease, uint32_t *slot);

/* Attach a filled slot to the first `depth` tokens of what the lease has matched or inserted,
 * aligned or not; the cache owns it from here. `depth` may lie in the partly filled block after the
 * published ones: up to the n_written of the latest insert that went beyond them, or up to the end
 * of the tail that the lookup offered. A later lookup is offered it where its match and tail reach
 * that far: in a partly filled block only if that block is cached too, by an insert with PFX_FINAL,
 * or as soon as a longer insert publishes the block.
 *
 * An exact one takes the place of an exact one or sibling that is there. A session has one tail and
 * one sibling a space: a new one replaces the old, and a tail replaces both. A sibling where an
 * exact entry stands leaves that as it is, and the slot is freed; where another session's sibling
 * stands, that becomes exact. What is displaced is freed by the daemon, once nobody holds it. On an
 * error the slot stays the lease's. Errors: PFX_ESTALE, PFX_ECONFLICT (depth not inserted),
 * PFX_EINVAL (depth 0; a tail or sibling without a session). */
int pfx_snapshot_insert(pfx *c, uint64_t lease, uint32_t slot, uint32_t depth,
                        enum pfx_snapshot_kind kind);

/* Give a reserved slot back unfilled. Errors: PFX_EINVAL (no such slot), PFX_ESTALE. */
int pfx_snapshot_cancel(pfx *c, uint64_t lease, uint32_t slot);

/* The lease no longer needs the snapshots it was offered (they were restored). Errors:
 * PFX_ESTALE. */
int pfx_snapshot_drop(pfx *c, uint64_t lease);

/* ---- administration ---------------------------------------------------- */

/* Evict up to n idle blocks, least recently used first; fewer if there are no more. Answers when
 * their pages are free; a block that moves to disk is not removed. */
struct pfx_evicted { uint32_t size, freed_blocks, removed_blocks; };
int pfx_evict(pfx *c, uint32_t n, struct pfx_evicted *out);

/* Drop or spill the one idle snapshot that goes next. PFX_ENOENT: there is none. */
struct pfx_spilled { uint32_t size, depth; uint64_t key; uint32_t dropped, reserved; };
int pfx_snapshot_evict(pfx *c);
int pfx_snapshot_spill(pfx *c, uint32_t min_tokens, struct pfx_spilled *out);
int pfx_snapshot_forget(pfx *c, uint64_t tier_key);          /* tiered ones only */
/* Forget a space (or PFX_ALL_SPACES) in all tiers, for good: not even a restart brings it back.
 * Held blocks go when released; a lease from before can only be released (PFX_ESTALE). A flush is
 * not counted as eviction. Errors: PFX_ENOENT; PFX_EIO: it holds while this daemon lives, and is
 * written to disk when that works again. */
int pfx_flush(pfx *c, pfx_space space);
#define PFX_ALL_SPACES UINT64_MAX

struct pfx_stats {             /* a consistent copy of the daemon's counters   */
    uint64_t size;
    uint64_t lookups, hits, misses, hit_tokens, lookup_tokens;
    uint64_t inserted_blocks, duplicate_blocks;
    uint64_t evicted_blocks;   /* given up, and in no tier any more           */
    uint64_t blocks_free, blocks_private, blocks_pinned, blocks_idle, blocks_inflight;
    uint64_t disk_used;        /* blocks that are found on disk               */
    uint64_t disk_read_blocks, disk_written_blocks;
    uint64_t disk_errors;      /* blocks and states not read or written, or
                                  read with another checksum                  */
    uint64_t snapshots, snapshots_tiered, snapshot_hits, snapshot_saves,
             snapshot_evictions, snapshot_spills, snapshot_fetches,
             snapshot_forgotten, recompute_tokens;
    uint64_t nodes, spaces, leases, workers, workers_reaped;
    uint64_t disk_ready_blocks;/* disk slots that exist by now                */
    uint64_t disk_scan_done;   /* 1: a restart's scan is over, or no disk tier; until
                                  then lookups miss what is on disk           */
};
/* From shared memory, no round trip; works while the daemon is stopped. A counter is there before
 * the completion that reports its change. Errors: PFX_EGONE (once its death has been seen). */
int pfx_stats(pfx *c, struct pfx_stats *out);

/* ---- asynchronous form ------------------------------------------------- */

/* Each pfx_submit_* takes the arguments of its synchronous call and a tag, never blocks, and is
 * answered by exactly one completion; the synchronous call is submit plus wait, and keeps other
 * completions for the next pfx_wait. Argument arrays may be reused when submit returns. A submit
 * that fails has no completion; PFX_EAGAIN: as many calls as ring_entries are under way or not
 * taken, take some and retry. Tags are the caller's and may repeat.
 *
 * Calls on one lease happen in the order in which they were submitted, and a lookup sees every
 * insert submitted before it. Answers to one worker come in the order of its requests, except
 * those that wait for the disk. Work goes on inside pfx_wait
 * and every other call that asks the daemon: call one of them now and then. */
struct pfx_completion {
    uint32_t size;
    int32_t status;            /* what the synchronous call would return      */
    uint64_t tag;
    uint64_t lease;
    struct pfx_match match;    /* lookup, fetch                               */
    struct pfx_insert_result insert;
    const uint32_t *ids;       /* reserved or canonical ids, or the slot; valid
                                  until the next pfx_wait; NULL: none         */
    uint32_t n_ids;
    uint32_t reserved;
    pfx_space space;           /* space_open                                  */
};
int pfx_submit_space_open(pfx *c, const struct pfx_space_desc *desc, uint64_t tag);
int pfx_submit_lookup(pfx *c, const struct pfx_lookup_args *args, uint64_t tag);
int pfx_submit_fetch(pfx *c, uint64_t lease, uint64_t tag);
int pfx_submit_truncate(pfx *c, uint64_t lease, uint32_t n_blocks, uint64_t tag);
int pfx_submit_reserve(pfx *c, uint64_t lease, uint32_t n, uint64_t tag);
int pfx_submit_insert(pfx *c, uint64_t lease, const struct pfx_insert_args *args,
                      uint64_t tag);
int pfx_submit_release(pfx *c, uint64_t lease, uint64_t tag);
int pfx_submit_snapshot_reserve(pfx *c, uint64_t lease, uint64_t tag);
int pfx_submit_snapshot_insert(pfx *c, uint64_t lease, uint32_t slot, uint32_t depth,
                               enum pfx_snapshot_kind kind, uint64_t tag);

/* Forget a submitted lookup or fetch: what it takes is given back, no completion
 * comes. PFX_ENOENT if its completion is already there, or there is no such tag; PFX_EINVAL for
 * other calls. Of several calls with this tag it may be any. */
int pfx_cancel(pfx *c, uint64_t tag);

/* Take up to `max` completions (at least 1) into an array of structs `stride` bytes apart
 * (sizeof, so that it can grow), each with its sizes set, anew for every
 * call (outer and nested); waits for the first up to timeout_ms
 * (0: poll, -1: for ever). Returns how many; 0 when the time is over. At the daemon's death every
 * submitted call completes with PFX_EGONE; when those are taken, this returns PFX_EGONE. */
int pfx_wait(pfx *c, struct pfx_completion *out, size_t stride, unsigned max,
             int timeout_ms);

/* A descriptor that polls readable when completions wait, or the daemon has died, for event
 * loops; then call pfx_wait with timeout 0, which may still find none. It is the library's, closed
 * by pfx_close; level-triggered. Asking for it costs the daemon a packet for each time it wakes
 * this worker, so do not unless you wait on it. */
int pfx_fd(pfx *c);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
