/*
 * --bytes counts what can be used: n_blocks x block_bytes x devices, and the slots. The scratch
 * block and slot of each device come on top.
 */
#include "daemon/geometry.h"
#include "daemon/disk.h"
#include "daemon/space.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

enum { TIER_MAX = 1 << 30 };

static bool refuse(char *why, size_t n_why, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool refuse(char *why, size_t n_why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, n_why, format, args);
    va_end(args);
    return false;
}

/* While a worker's layout is awaited, its fields are at fault, else our options. */
static bool check_layout(const struct options *o, const struct wire_layout *l, char *why, size_t n)
{
    bool theirs = o->waits;
    if (l->block_tokens < 1 || l->block_tokens > BLOCK_TOKENS_MAX)
        return refuse(why, n, "%s %u: a block has 1 to %d tokens",
                      theirs ? "block_tokens" : "--block-tokens", l->block_tokens,
                      BLOCK_TOKENS_MAX);
    if (l->n_devices < 1 || l->n_devices > DEVICES_MAX)
        return refuse(why, n, "%s %u: a pool has 1 to %d devices",
                      theirs ? "n_devices" : "--devices", l->n_devices, DEVICES_MAX);
    if (o->gpus_listed && l->n_devices != o->n_gpus)
        return refuse(why, n, "n_devices %u: --device lists %u GPUs, and one shard is on each",
                      l->n_devices, o->n_gpus);
    if (l->block_bytes % 64 || l->block_bytes > INT64_MAX)
        return refuse(why, n, "%s %llu: it must be a multiple of 64",
                      theirs ? "block_bytes" : "--block-bytes", (ull)l->block_bytes);
    if (l->snapshot_bytes > INT64_MAX - 64)
        return refuse(why, n, "%s %llu: no memory is that large",
                      theirs ? "snapshot_bytes" : "--snapshot-bytes", (ull)l->snapshot_bytes);
    if (l->block_bytes == 0 && l->snapshot_bytes == 0)
        return refuse(why, n, "%s 0 holds nothing without snapshots",
                      theirs ? "block_bytes" : "--block-bytes");
    return true;
}

/* The bytes that n pieces of this stride take on all devices; false if no number holds them. */
static bool total(uint64_t n, uint64_t stride, uint32_t devices, uint64_t *sum)
{
    uint64_t bytes;
    return !__builtin_mul_overflow(n, stride, &bytes) &&
           !__builtin_mul_overflow(bytes, devices, &bytes) &&
           !__builtin_add_overflow(*sum, bytes, sum) && *sum <= INT64_MAX;
}

/* Shares of --bytes, where no count was given: a quarter goes to snapshots if there are any, all of
 * it if blocks have no bytes. */
static bool share(const struct options *o, struct geometry *g, char *why, size_t n)
{
    uint64_t devices = g->layout.n_devices;
    uint64_t slots = g->n_slots, blocks, used = 0;
    if (o->waits && g->slot_stride)
        slots = (g->block_stride ? o->bytes / 4 : o->bytes) / g->slot_stride / devices;
    if (slots > UINT32_MAX - 1)
        slots = UINT32_MAX - 1;
    if (!total(slots, g->slot_stride, g->layout.n_devices, &used) || used > o->bytes)
        return refuse(why, n, "--bytes %llu: %llu snapshots do not fit", (ull)o->bytes, (ull)slots);
    blocks = g->block_stride ? (o->bytes - used) / g->block_stride / devices : 64 * (slots + 1);
    if (blocks == 0 || (g->slot_stride && slots == 0))
        return refuse(why, n, "--bytes %llu is smaller than one %s of %llu bytes on %u device%s",
                      (ull)o->bytes, blocks ? "snapshot" : "block",
                      (ull)(blocks ? g->slot_stride : g->block_stride), g->layout.n_devices,
                      devices == 1 ? "" : "s");
    g->n_slots = (uint32_t)slots;
    g->n_blocks = blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX;
    return true;
}

static bool check_sizes(const struct options *o, struct geometry *g, char *why, size_t n)
{
    const char *option = o->blocks ? "--blocks" : "--bytes";
    ull given = o->blocks ? o->blocks : o->bytes;
    uint64_t sum = 0;
    struct index_params pool = g->params;
    pool.n_disk = 0;
    bool fits = index_plan(&g->params, &g->plan);
    if (!fits && g->n_disk && index_plan(&pool, &g->plan))
        return refuse(
            why, n,
            "--swap: %u blocks on disk, with %u in the pool, are more than this build can "
            "index; give it less, or ask for larger blocks",
            g->n_disk, g->n_blocks);
    if (!fits)
        return refuse(why, n,
                      "%s %llu makes %u blocks, more than this build can index; ask for fewer or "
                      "larger blocks",
                      option, given, g->n_blocks);
    if (!total((uint64_t)g->n_blocks + 1, g->block_stride, g->layout.n_devices, &sum) ||
        !total((uint64_t)g->n_slots + 1, g->slot_stride, g->layout.n_devices, &sum))
        return refuse(why, n,
                      "%s %llu: blocks and snapshots of these sizes are more than any memory",
                      option, given);
    sum -= (g->block_stride + g->slot_stride) * g->layout.n_devices;
    if (o->bytes && sum > o->bytes)
        return refuse(why, n, "--bytes %llu and --blocks %u contradict: the blocks take %llu bytes",
                      (ull)o->bytes, g->n_blocks, (ull)sum);
    return true;
}

/* How many blocks the files of --swap hold. */
static bool plan_disk(const struct options *o, struct geometry *g, char *why, size_t n)
{
    uint64_t slots = 0;
    if (o->n_swap && g->layout.block_bytes == 0)
        return refuse(why, n, "--swap: blocks of 0 bytes need no disk");
    for (uint32_t i = 0; i < o->n_swap; i++) {
        uint64_t here = swap_file_slots(g->layout.block_bytes, g->layout.n_devices,
                                        body_room(g->layout.block_tokens), o->swap_bytes[i]);
        if (here == 0)
            return refuse(
                why, n,
                "--swap %s:%llu: not one block of %llu bytes fits in it, beside what else "
                "the file holds; give it more",
                o->swap_path[i], (ull)o->swap_bytes[i], (ull)g->layout.block_bytes);
        slots += here;
    }
    g->n_disk = slots < TIER_MAX ? (uint32_t)slots : TIER_MAX;
    return true;
}

uint64_t geometry_snapshot_swap(const struct options *o)
{
    return o->snapshot_swap / o->n_swap;
}

/* How many spilled snapshots --snapshot-swap holds. A layout that a worker brings may have none. */
static bool plan_tier(const struct options *o, struct geometry *g, char *why, size_t n)
{
    uint64_t blob = g->layout.snapshot_bytes * g->layout.n_devices;
    if (!o->snapshot_swap || (o->waits && !blob))
        return true;
    if (!g->n_slots)
        return refuse(why, n,
                      "--snapshot-swap %llu: there are no snapshots to spill; give "
                      "--snapshots and --snapshot-bytes as well",
                      (ull)o->snapshot_swap);
    uint64_t blobs = o->snapshot_swap / blob;
    if (o->n_swap)
        blobs = o->n_swap * swap_file_slots(g->layout.snapshot_bytes, g->layout.n_devices,
                                            state_body_room(g->layout.block_tokens),
                                            geometry_snapshot_swap(o));
    if (blobs == 0 && o->n_swap)
        return refuse(
            why, n,
            "--snapshot-swap %llu: spread over %u --swap path%s, not one snapshot of %llu "
            "bytes fits in a file",
            (ull)o->snapshot_swap, o->n_swap, o->n_swap == 1 ? "" : "s", (ull)blob);
    if (blobs == 0)
        return refuse(why, n, "--snapshot-swap %llu is smaller than one snapshot of %llu bytes",
                      (ull)o->snapshot_swap, (ull)blob);
    g->n_tier = blobs < TIER_MAX ? (uint32_t)blobs : TIER_MAX;
    return true;
}

/* What workers may have open beside what is cached, so that none of them can take it all. Sparse.
 */
static uint32_t open_spaces(const struct options *o)
{
    uint64_t all = (uint64_t)o->max_workers * SESSION_SPACES_MAX;
    return all < 1 << 22 ? (uint32_t)all : 1 << 22;
}

bool geometry_plan(const struct options *o, const struct wire_layout *layout, struct geometry *g,
                   char *why, size_t n_why)
{
    *g = (struct geometry){.layout = *layout, .n_blocks = o->blocks, .n_slots = o->snapshots};
    if (!check_layout(o, layout, why, n_why))
        return false;
    g->block_stride = layout->block_bytes;
    if (o->n_swap) /* direct transfers want that */
        g->block_stride = (g->block_stride + SWAP_ALIGN - 1) / SWAP_ALIGN * SWAP_ALIGN;
    uint64_t align = o->n_swap && o->snapshot_swap ? SWAP_ALIGN : 64;
    g->slot_stride = (layout->snapshot_bytes + align - 1) / align * align;
    if (!o->blocks && !share(o, g, why, n_why))
        return false;

    if (!plan_tier(o, g, why, n_why))
        return false;

    if (!plan_disk(o, g, why, n_why))
        return false;
    uint64_t all = (uint64_t)g->n_blocks + g->n_disk;
    uint32_t spaces = all < 1u << 20 ? (uint32_t)all : 1u << 20;
    g->params = (struct index_params){
        .block_tokens = layout->block_tokens,
        .n_blocks = g->n_blocks,
        .n_disk = g->n_disk,
        .max_spaces = 1 + spaces + open_spaces(o),
        .hash_mask = UINT64_MAX,
        .max_snapshots = g->n_slots + g->n_tier,
    };
    if (!check_sizes(o, g, why, n_why))
        return false;
    g->pool_bytes = pool_bytes(g->n_blocks, g->block_stride, g->n_slots, g->slot_stride);
    return true;
}
