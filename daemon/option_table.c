#include "daemon/option_table.h"

#include "daemon/index.h"
#include "kernels/cuda_driver.h"
#include "shm/layout.h"

#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS_MAX = (1 << 30) - 1 };

static row_set set_count, set_size, set_alpha, set_switch, set_socket, set_config, set_device,
    set_cuda_export, set_user, set_group, set_swap, set_swap_write, set_model, set_index,
    set_policy, set_numa, set_log_level;

#define COUNT(field, min, max) set_count, offsetof(struct options, field), min, max
#define SIZE(field, min)       set_size, offsetof(struct options, field), min, INT64_MAX
#define SWITCH(field)          set_switch, offsetof(struct options, field), 0, 0
#define OTHER(setter)          setter, 0, 0, 0

/* name, argument, default as a value, or in words, help, how it is set */
/* clang-format off */
static const struct row rows[] = {
    {"socket", "PATH", NULL,
     "$PREFIXD_SOCKET, then $XDG_RUNTIME_DIR/prefixd.sock, then /run/prefixd/prefixd.sock",
     "control socket", OTHER(set_socket)},
    {"config", "FILE", NULL, "none",
     "read lines `option = value` from FILE; the command line wins", OTHER(set_config)},
    {"allow-user", "USER", NULL, "nobody",
     "besides root and the daemon's own user, let USER (name or number) attach; repeatable",
     OTHER(set_user)},
    {"allow-group", "GROUP", NULL, "nobody",
     "let members of GROUP (name or number) attach; repeatable", OTHER(set_group)},
    {"device", "WHERE", "host", NULL,
     "where pages live: host, or on GPUs: cuda, the first ones; cuda:0,1 or cuda:GPU-<uuid>, those of "
     "a list, a shard on each", OTHER(set_device)},
    {"cuda-export", "HOW", "auto", NULL,
     "how workers get a GPU's memory: fd, a descriptor; ipc, a handle; auto, fd where the GPU can",
     OTHER(set_cuda_export)},
    {"bytes", "SIZE", NULL, "as the other options say; 64M without any",
     "usable bytes of the pool, all devices together; alone, the first worker's layout decides how "
     "they are cut; beside --blocks only a limit", SIZE(bytes, 1)},
    {"blocks", "N", NULL, "what --bytes holds; 1024 without",
     "blocks of the pool", COUNT(blocks, 1, BLOCKS_MAX)},
    {"block-tokens", "N", "16", NULL,
     "tokens of a block", COUNT(layout.block_tokens, 1, BLOCK_TOKENS_MAX)},
    {"block-bytes", "SIZE", "64K", NULL,
     "bytes of a block on one device, a multiple of 64; 0 with snapshots alone",
     SIZE(layout.block_bytes, 0)},
    {"devices", "N", "1", NULL,
     "shards of the pool, one a tensor-parallel rank", COUNT(layout.n_devices, 1, DEVICES_MAX)},
    {"snapshots", "N", "0", NULL,
     "slots for recurrent state", COUNT(snapshots, 0, BLOCKS_MAX)},
    {"snapshot-bytes", "SIZE", "0", NULL,
     "bytes of a slot on one device", SIZE(layout.snapshot_bytes, 0)},
    {"snapshot-swap", "SIZE", "0", NULL,
     "memory of the daemon, or with --swap disk, for snapshots that lost their slot; 0: they are "
     "dropped",
     SIZE(snapshot_swap, 0)},
    {"spill-min-tokens", "N", "0", NULL,
     "drop snapshots of fewer tokens instead of keeping them in --snapshot-swap",
     COUNT(spill_min_tokens, 0, UINT32_MAX)},
    {"swap", "PATH:SIZE", NULL, "none",
     "keep blocks that leave the pool in a file of at most SIZE in the directory PATH, over "
     "restarts; repeatable: they are spread", OTHER(set_swap)},
    {"swap-write", "MODE", "evict", NULL,
     "evict: write blocks as the pool runs full; insert: soon after they were inserted",
     OTHER(set_swap_write)},
    {"swap-admit", "N", "1", NULL,
     "write only blocks that were seen N times: inserted, and found by lookups since",
     COUNT(swap_admit, 1, ADMIT_MAX)},
    {"swap-depth", "N", "32", NULL,
     "transfers under way at once", COUNT(swap_depth, 1, SWAP_DEPTH_MAX)},
    {"model", "TEXT", NULL, "a digest of zeros",
     "what KV bytes depend on besides the layout; a worker's model_digest must be its SHA-256",
     OTHER(set_model)},
    {"huge-pages", NULL, "no", NULL,
     "put a pool in host memory on 2 MiB pages where the machine has them", SWITCH(huge_pages)},
    {"numa", "N|local|any", "any", NULL,
     "memory node of a pool in host memory", OTHER(set_numa)},
    {"index", "radix|none", "radix", NULL,
     "none: every call works, nothing is ever found", OTHER(set_index)},
    {"policy", "NAME", "lru", NULL,
     "who is evicted first", OTHER(set_policy)},
    {"alpha", "X", "0", NULL,
     "when a snapshot must go: how many later uses of others a token of its depth is worth",
     OTHER(set_alpha)},
    {"spin-us", "N", NULL, "50; on one CPU 0",
     "microseconds to look for work before sleeping", COUNT(spin_us, 0, 1000000)},
    {"max-workers", "N", "256", NULL,
     "workers attached at once", COUNT(max_workers, 1, 65536)},
    {"max-leases", "N", "65536", NULL,
     "leases of one worker", COUNT(max_leases, 1, 1 << 24)},
    {"max-worker-blocks", "N", NULL, "all of them",
     "blocks that one worker's leases may have reserved, cached since or not, until they are released "
     "or truncated", COUNT(max_worker_blocks, 1, BLOCKS_MAX)},
    {"max-worker-slots", "N", NULL, "all of them",
     "snapshot slots that one worker's leases may have reserved and not filed yet",
     COUNT(max_worker_slots, 1, BLOCKS_MAX)},
    {"log-level", "LEVEL", "info", NULL,
     "error, warning, info or debug", OTHER(set_log_level)},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof rows[0] };
static_assert(ROWS <= 64, "a bit each in reading.given");

unsigned row_count(void)
{
    return ROWS;
}

const struct row *row_at(unsigned i)
{
    return &rows[i];
}

const struct row *row_find(const char *name, size_t n)
{
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (strlen(row->name) == n && memcmp(row->name, name, n) == 0)
            return row;
    return NULL;
}

bool row_give(struct reading *r, const struct row *row, const char *value)
{
    r->given |= 1ull << (row - rows);
    return row->set(r, row, value);
}

bool row_given(const struct reading *r, const char *name)
{
    return r->given >> (row_find(name, strlen(name)) - rows) & 1;
}

bool row_is_config(const struct row *row)
{
    return row->set == set_config;
}

/* ---- help ------------------------------------------------------------------------- */

enum { HELP_COLUMN = 26, HELP_WIDTH = 100 };

/* Words from column HELP_COLUMN on, which is where the cursor is. */
static void print_words(const char *text)
{
    size_t column = HELP_COLUMN;
    while (*text) {
        size_t n = strcspn(text, " ");
        bool first = column == HELP_COLUMN, wraps = !first && column + 1 + n > HELP_WIDTH;
        if (wraps)
            column = (size_t)printf("\n%*s%.*s", HELP_COLUMN, "", (int)n, text) - 1;
        else
            column += (size_t)printf("%s%.*s", first ? "" : " ", (int)n, text);
        text += n + (text[n] == ' ');
    }
    printf("\n");
}

static void print_line(const char *left, const char *text)
{
    printf("  %-*s", HELP_COLUMN - 2, left);
    print_words(text);
}

void print_help(void)
{
    char left[64], text[512];
    printf("prefixd: one prefix cache for all LLM workers of a machine\n\n"
           "usage: prefixd [--OPTION VALUE]...\n\n");
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        snprintf(left, sizeof left, "--%s %s", row->name, row->arg ? row->arg : "");
        snprintf(text, sizeof text, "%s (default: %s)", row->help,
                 row->preset ? row->preset : row->otherwise);
        print_line(left, text);
    }
    print_line("--version", "print the version and stop");
    print_line("--help, -h", "print this and stop");
    printf("\nSIZE is in bytes and takes K, M, G or T. Policies:\n");
    for (unsigned i = 0; policy_at(i); i++)
        print_line(policy_at(i)->name, policy_at(i)->help);
}

/* ---- one setter a kind of value --------------------------------------------------- */

static void *field(struct reading *r, const struct row *row)
{
    return (char *)r->o + row->offset;
}

static bool set_count(struct reading *r, const struct row *row, const char *value)
{
    uint64_t n;
    if (!value_count(value, row->min, row->max, &n, &r->why))
        return false;
    *(uint32_t *)field(r, row) = (uint32_t)n;
    return true;
}

static bool set_size(struct reading *r, const struct row *row, const char *value)
{
    uint64_t n;
    if (!value_size(value, &n, &r->why))
        return false;
    if (n < row->min)
        return value_refuse(&r->why, "it is smaller than one block");
    *(uint64_t *)field(r, row) = n;
    return true;
}

static bool set_switch(struct reading *r, const struct row *row, const char *value)
{
    return value_switch(value, field(r, row), &r->why);
}

static bool set_alpha(struct reading *r, const struct row *row, const char *value)
{
    return value_number(value, &r->o->alpha, &r->why);
}

static bool set_socket(struct reading *r, const struct row *row, const char *value)
{
    size_t n = strlen(value);
    if (n == 0)
        return value_refuse(&r->why, "it takes a path");
    if (n >= sizeof r->o->socket)
        return value_refuse(&r->why, "the path is too long for a socket; at most %zu bytes fit",
                            sizeof r->o->socket - 1);
    memcpy(r->o->socket, value, n + 1);
    return true;
}

static bool set_config(struct reading *r, const struct row *row, const char *value)
{
    r->config = value;
    return true;
}

static bool set_user(struct reading *r, const struct row *row, const char *value)
{
    if (r->o->n_users == ALLOWED_MAX)
        return value_refuse(&r->why, "at most %d users; use --allow-group", ALLOWED_MAX);
    return value_user(value, &r->o->users[r->o->n_users], &r->why) && ++r->o->n_users;
}

static bool set_group(struct reading *r, const struct row *row, const char *value)
{
    if (r->o->n_groups == ALLOWED_MAX)
        return value_refuse(&r->why, "at most %d groups", ALLOWED_MAX);
    return value_group(value, &r->o->groups[r->o->n_groups], &r->why) && ++r->o->n_groups;
}

/* A number, or a UUID as nvidia-smi -L prints it. */
static bool set_gpu(struct reading *r, const char *word, size_t n)
{
    struct options *o = r->o;
    struct device_name *gpu = &o->gpu[o->n_gpus];
    if (o->n_gpus++ == DEVICES_MAX)
        return value_refuse(&r->why, "a pool has at most %d devices", DEVICES_MAX);
    gpu->by_uuid = cuda_uuid_parse(word, n, gpu->uuid);
    gpu->mig = gpu->by_uuid && word[0] == 'M';
    if (gpu->by_uuid)
        return true;
    if (n == 0 || n > 3 || strspn(word, "0123456789") < n)
        return value_refuse(&r->why,
                            "%.*s is neither the number of a GPU nor its UUID, "
                            "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx (nvidia-smi -L)",
                            n ? (int)n : 7, n ? word : "nothing");
    gpu->index = (uint32_t)strtoul(word, NULL, 10);
    return true;
}

static bool set_device(struct reading *r, const struct row *row, const char *value)
{
    struct options *o = r->o;
    o->n_gpus = 0;
    o->gpus_listed = strncmp(value, "cuda:", 5) == 0;
    if (strcmp(value, "host") == 0)
        return true;
    if (strcmp(value, "cuda") == 0) {
        for (; o->n_gpus < DEVICES_MAX; o->n_gpus++)
            o->gpu[o->n_gpus] = (struct device_name){.index = o->n_gpus};
        return true;
    }
    if (!o->gpus_listed)
        return value_refuse(&r->why, "it takes host, cuda, or cuda: and a list of GPUs");
    for (const char *at = value + 4; *at;) {
        size_t n = strcspn(++at, ",");
        if (!set_gpu(r, at, n))
            return false;
        at += n;
    }
    return true;
}

static bool set_cuda_export(struct reading *r, const struct row *row, const char *value)
{
    static const char *const names[] = {
        [EXPORT_AUTO] = "auto", [EXPORT_IPC] = "ipc", [EXPORT_FD] = "fd"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(value, names[i]) == 0) {
            r->o->cuda_export = (enum device_export)i;
            return true;
        }
    return value_refuse(&r->why, "it takes auto, fd or ipc");
}

static bool set_model(struct reading *r, const struct row *row, const char *value)
{
    SHA2_CTX sha;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)value, strlen(value));
    SHA256Final(r->o->layout.model_digest, &sha);
    r->o->has_model = true;
    return true;
}

static bool set_swap(struct reading *r, const struct row *row, const char *value)
{
    struct options *o = r->o;
    const char *colon = strrchr(value, ':');
    if (!colon || colon == value)
        return value_refuse(&r->why, "it takes PATH:SIZE, a directory and how much of it to use");
    if (o->n_swap == SWAP_PATHS)
        return value_refuse(&r->why, "at most %d paths", SWAP_PATHS);
    if ((size_t)(colon - value) >= sizeof o->swap_path[0])
        return value_refuse(&r->why, "the path is too long");
    if (!value_size(colon + 1, &o->swap_bytes[o->n_swap], &r->why))
        return false;
    memcpy(o->swap_path[o->n_swap], value, (size_t)(colon - value));
    o->swap_path[o->n_swap++][colon - value] = '\0';
    return true;
}

static bool set_swap_write(struct reading *r, const struct row *row, const char *value)
{
    r->o->swap_write = strcmp(value, "insert") == 0 ? SWAP_WRITE_INSERT : SWAP_WRITE_EVICT;
    return r->o->swap_write == SWAP_WRITE_INSERT || strcmp(value, "evict") == 0 ||
           value_refuse(&r->why, "it takes evict or insert");
}

static bool set_index(struct reading *r, const struct row *row, const char *value)
{
    r->o->null_index = strcmp(value, "none") == 0;
    return r->o->null_index || strcmp(value, "radix") == 0 ||
           value_refuse(&r->why, "it takes radix or none");
}

static bool set_policy(struct reading *r, const struct row *row, const char *value)
{
    r->o->policy = policy_find(value);
    if (r->o->policy)
        return true;
    char known[128] = "";
    for (unsigned i = 0, n = 0; policy_at(i) && n < sizeof known; i++)
        n += (unsigned)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "",
                                policy_at(i)->name);
    return value_refuse(&r->why, "there is no such policy; known: %s", known);
}

static bool set_numa(struct reading *r, const struct row *row, const char *value)
{
    uint64_t node;
    r->o->numa_node = strcmp(value, "local") == 0 ? -2 : -1;
    if (r->o->numa_node == -2 || strcmp(value, "any") == 0)
        return true;
    if (!value_count(value, 0, INT32_MAX, &node, &r->why))
        return value_refuse(&r->why, "it takes the number of a node, local or any");
    r->o->numa_node = (int)node;
    return device_has_node((int)node) || value_refuse(&r->why, "this machine has no such node");
}

static bool set_log_level(struct reading *r, const struct row *row, const char *value)
{
    for (unsigned i = 0; log_level_name(i); i++)
        if (strcmp(value, log_level_name(i)) == 0) {
            r->o->log_level = (enum log_level)i;
            return true;
        }
    return value_refuse(&r->why, "it takes error, warning, info or debug");
}
