/*
 * carve.c - the cache itself: made at start, or when the first worker brings its layout.
 */
#include "daemon/daemon.h"
#include "daemon/geometry.h"
#include "daemon/handshake.h"
#include "daemon/log.h"
#include "shm/status.h"

#include <errno.h>
#include <poll.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    LEASES_MAX = 1 << 24, /* sparse: what is not used costs nothing */
    RETRY_MS = 10000,
    RETRY_EVERY_MS = 200,
};

static const char *size_option(const struct daemon *d)
{
    return d->options->blocks ? "--blocks" : "--bytes";
}

static void fill_header(struct daemon *d, const struct geometry *g)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct index_header *h = d->header;
    h->magic = INDEX_MAGIC;
    h->format = LAYOUT_FORMAT;
    h->active = !d->options->null_index;
    h->epoch = d->epoch;
    h->region_bytes = g->plan.bytes;
    h->params = g->params;
    h->block_bytes = g->layout.block_bytes;
    h->block_stride = g->block_stride;
    h->snapshot_bytes = g->layout.snapshot_bytes;
    h->slot_stride = g->slot_stride;
    h->n_devices = g->layout.n_devices;
    h->n_slots = g->n_slots;
    h->n_tier = g->n_tier;
    memcpy(h->model_digest, g->layout.model_digest, sizeof h->model_digest);
    h->started_realtime_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    h->daemon_pid = (uint32_t)getpid();
}

static uint32_t lease_slots(const struct options *o)
{
    uint64_t all = (uint64_t)o->max_workers * o->max_leases;
    if (all > LEASES_MAX)
        all = o->max_leases > LEASES_MAX ? o->max_leases : LEASES_MAX;
    return (uint32_t)all;
}

static bool make_region(struct daemon *d, struct geometry *g, char *why, size_t n_why)
{
    size_t n = sizeof g->params.hash_seed;
    int rc = getrandom(&g->params.hash_seed, n, 0) == (ssize_t)n ? 0 : -errno;
    if (rc == 0)
        rc = segment_create(&d->index_segment, SEGMENT_INDEX, SEGMENT_DAEMON, g->plan.bytes);
    if (rc) {
        snprintf(why, n_why, "%s: the index of %u blocks could not be made: %s; %s", size_option(d),
                 g->n_blocks, strerror(-rc), segment_remedy(rc));
        return false;
    }
    d->header = d->index_segment.base;
    fill_header(d, g);
    return true;
}

static bool make_tables(struct daemon *d, const struct geometry *g, char *why, size_t n_why)
{
    snprintf(why, n_why, "%s: there is no memory for the tables of %u blocks; ask for fewer",
             size_option(d), g->n_blocks);
    if (!pool_init(&d->pool, g->n_blocks))
        return false;
    const struct index_config config = {
        .region = d->header,
        .pool = &d->pool,
        .policy = d->options->policy,
        .admit = d->options->swap_admit,
    };
    d->index = index_new(&config);
    if (!d->index)
        return false;
    d->spaces = spaces_new(d->index);
    return d->spaces && leases_init(&d->leases, lease_slots(d->options), g->n_slots);
}

/* What asked for that much, or for that device. */
static const char *pool_option(const struct daemon *d, const struct geometry *g, int rc)
{
    if (d->options->n_gpus && rc != -ENOMEM && rc != -EFBIG)
        return "--device";
    bool states = (double)g->slot_stride * g->n_slots > (double)g->block_stride * g->n_blocks;
    return states ? "--snapshots" : size_option(d);
}

/* At the start, the GPU's memory may still be a dead daemon's, or its workers': that passes. Later
 * a worker waits for an answer. A signal ends it. */
static int make_device(const struct daemon *d, const struct device_want *want, struct device **out,
                       struct device_words *words)
{
    struct pollfd signalled = {.fd = d->signal_fd, .events = POLLIN};
    int rc = device_create(out, want, words);
    bool retry = want->gpu && d->listen_fd < 0;
    for (int tries = 0; retry && rc == -ENOMEM && tries < RETRY_MS / RETRY_EVERY_MS; tries++) {
        if (tries == 0) {
            char users[256];
            device_users(users, sizeof users);
            log_warning("%s; trying again for %d s: %s", words->why, RETRY_MS / 1000, users);
        }
        if (poll(&signalled, 1, RETRY_EVERY_MS) > 0)
            break;
        rc = device_create(out, want, words);
    }
    return rc;
}

static bool make_devices(struct daemon *d, const struct geometry *g, char *why, size_t n_why)
{
    const struct options *o = d->options;
    struct device_want want = {.bytes = g->pool_bytes,
                               .export = o->cuda_export,
                               .huge_pages = o->huge_pages,
                               .numa_node = o->numa_node};
    for (uint32_t i = 0; i < g->layout.n_devices; i++) {
        struct device_words words;
        want.gpu = o->n_gpus ? &o->gpu[i] : NULL;
        int rc = make_device(d, &want, &d->devices[i], &words);
        if (rc) {
            snprintf(why, n_why, "%s: %s", pool_option(d, g, rc), words.why);
            return false;
        }
        if (words.note[0])
            log_warning("device %u: %s", i, words.note);
    }
    return true;
}

static uint8_t *slots_address(const struct daemon *d, const struct geometry *g, uint32_t device)
{
    return (uint8_t *)device_address(d->devices[device]) +
           pool_slots_offset(g->n_blocks, g->block_stride);
}

/* Spilled snapshots in memory; of a GPU's, through its copier. */
static struct tier *make_memory_tier(struct daemon *d, const struct geometry *g, char *why,
                                     size_t n_why)
{
    struct tier_memory_config config = {
        .first = pool_slots_offset(g->n_blocks, g->block_stride),
        .n_devices = g->layout.n_devices,
        .n_blobs = g->n_tier,
        .bytes = g->layout.snapshot_bytes,
        .stride = g->slot_stride,
    };
    for (uint32_t i = 0; i < config.n_devices; i++) {
        struct device_words words = {.why = ""};
        if (!device_is_cuda(d->devices[i])) {
            config.slots[i] = slots_address(d, g, i);
            continue;
        }
        config.copier[i] =
            device_copier(d->devices[i], TIER_BUFFER, TIER_BUFFERS, COPIER_ENGINE, &words);
        if (!config.copier[i]) {
            snprintf(why, n_why, "--snapshot-swap: %s", words.why);
            copiers_free(config.copier, i);
            return NULL;
        }
        if (words.note[0])
            log_info("device %u: %s", i, words.note);
    }
    return tier_memory_new(&config);
}

/* After the devices, which spilling copies from, and the disk, which may be the lower tier. */
static bool make_snapshots(struct daemon *d, const struct geometry *g, char *why, size_t n_why)
{
    struct tier *tier = disk_states(d->disk);
    if (!g->n_slots)
        return true;
    snprintf(why, n_why, "%s: there is no memory for the tables of %llu snapshots; ask for fewer",
             g->n_tier > g->n_slots ? "--snapshot-swap" : "--snapshots",
             (unsigned long long)g->n_slots + g->n_tier);
    if (g->n_tier && !tier) {
        tier = make_memory_tier(d, g, why, n_why);
        if (!tier)
            return false;
    }
    const struct snapshots_config config = {
        .index = d->index,
        .tier = tier,
        .n_slots = g->n_slots,
        .n_tier = g->n_tier,
        .alpha = d->options->alpha,
        .spill_min_tokens = d->options->spill_min_tokens,
        .wait_ns = d->disk ? DISK_WAIT_NS : 0,
        .counters = &d->counters,
    };
    d->snapshots = snapshots_new(&config);
    return d->snapshots != NULL;
}

/* What makes the bytes of two daemons interchangeable. */
static void fingerprint(const struct wire_layout *layout, enum swap_store_kind store,
                        uint8_t digest[32])
{
    const uint32_t kind[2] = {store, SWAP_FORMAT};
    SHA2_CTX sha;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)layout, sizeof *layout);
    SHA256Update(&sha, (const uint8_t *)kind, sizeof kind);
    SHA256Final(digest, &sha);
}

/* It only ends a nap: the answers are taken in the next turn. */
static void disk_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    (void)d;
    (void)w;
    (void)events;
}

static void store_of_blocks(const struct daemon *d, const struct geometry *g,
                            struct swap_store_config *s)
{
    for (uint32_t i = 0; i < d->options->n_swap; i++)
        s->bytes[i] = d->options->swap_bytes[i];
    s->slots_most = g->n_disk;
    s->record_bytes = g->layout.block_bytes;
    s->body_bytes = body_room(g->layout.block_tokens);
    s->stride = g->block_stride;
    s->pool_records = (uint64_t)g->n_blocks + 1;
    fingerprint(&g->layout, STORE_BLOCKS, s->fingerprint);
}

static void store_of_snapshots(const struct daemon *d, const struct geometry *g,
                               struct swap_store_config *s)
{
    for (uint32_t i = 0; i < d->options->n_swap; i++)
        s->bytes[i] = geometry_snapshot_swap(d->options);
    s->slots_most = g->n_tier;
    s->record_bytes = g->layout.snapshot_bytes;
    s->first = pool_slots_offset(g->n_blocks, g->block_stride);
    s->body_bytes = state_body_room(g->layout.block_tokens);
    s->stride = g->slot_stride;
    s->pool_records = (uint64_t)g->n_slots + 1;
    fingerprint(&g->layout, STORE_SNAPSHOTS, s->fingerprint);
}

/* Where records are; a GPU's are reached by a copier. Buffers that hold one record are copied by
 * the engine, whatever the GPU. */
static bool find_records(struct daemon *d, struct swap_store_config *s, enum swap_store_kind store,
                         char *why, size_t n_why)
{
    s->buffers = swap_buffers(s->record_bytes);
    uint64_t engine_from = s->buffers.records > 1 ? COPIER_MEASURE : COPIER_ENGINE;
    for (uint32_t i = 0; i < DEVICES_MAX && d->devices[i]; i++) {
        struct device_words words = {.why = ""};
        if (!device_is_cuda(d->devices[i])) {
            s->pool[i] = (uint8_t *)device_address(d->devices[i]) + s->first;
            continue;
        }
        s->copier[i] = d->copiers[store * DEVICES_MAX + i] =
            device_copier(d->devices[i], s->buffers.bytes, s->buffers.n, engine_from, &words);
        if (!s->copier[i]) {
            snprintf(why, n_why, "--swap: %s", words.why);
            return false;
        }
        if (words.note[0])
            log_info("device %u: %s: %s", i, store == STORE_BLOCKS ? "blocks" : "snapshots",
                     words.note);
    }
    return true;
}

static bool make_disk(struct daemon *d, const struct geometry *g, char *why, size_t n_why)
{
    const struct options *o = d->options;
    if (!g->n_disk)
        return true;
    struct swap_config config = {.n_paths = o->n_swap,
                                 .n_pieces = g->layout.n_devices,
                                 .depth = o->swap_depth,
                                 .uring = true};
    for (uint32_t i = 0; i < o->n_swap; i++)
        config.path[i] = o->swap_path[i];
    store_of_blocks(d, g, &config.store[STORE_BLOCKS]);
    if (g->n_tier)
        store_of_snapshots(d, g, &config.store[STORE_SNAPSHOTS]);
    for (int k = 0; k < SWAP_STORES; k++)
        if (config.store[k].record_bytes &&
            !find_records(d, &config.store[k], (enum swap_store_kind)k, why, n_why))
            return false;
    d->disk = disk_start(d, &config, why, n_why);
    d->on_disk.ready = disk_ready;
    return d->disk && watch_add(d, disk_fd(d->disk), &d->on_disk) == 0;
}

void daemon_uncarve(struct daemon *d)
{
    if (d->disk)
        watch_remove(d, disk_fd(d->disk));
    snapshots_free(d->snapshots);
    d->snapshots = NULL;
    disk_stop(d->disk);
    d->disk = NULL;
    copiers_free(d->copiers, SWAP_STORES * DEVICES_MAX);
    for (uint32_t i = 0; i < DEVICES_MAX; i++) {
        d->gpu_left |= !(d->importers_left ? device_leave : device_free)(d->devices[i]);
        d->devices[i] = NULL;
    }
    leases_deinit(&d->leases);
    if (d->spaces)
        spaces_free(d->spaces);
    if (d->index)
        index_free(d->index);
    pool_deinit(&d->pool);
    segment_free(&d->index_segment);
    free(d->orphans);
    d->orphans = NULL;
    d->n_orphans = d->n_flushing = 0;
    d->spaces = NULL;
    d->index = NULL;
    d->header = NULL;
    d->carved = false;
}

static void say_gpus(const struct daemon *d)
{
    char text[128];
    for (uint32_t i = 0; i < d->layout.n_devices && device_is_cuda(d->devices[i]); i++) {
        device_print(d->devices[i], text, sizeof text);
        log_info("device %u: %s", i, text);
    }
}

int daemon_carve(struct daemon *d, const struct wire_layout *layout, char *why, size_t n_why)
{
    struct wire_layout wanted = *layout;
    if (d->options->has_model && memcmp(d->options->layout.model_digest, layout->model_digest,
                                        sizeof layout->model_digest) != 0) {
        memcpy(wanted.model_digest, d->options->layout.model_digest, sizeof wanted.model_digest);
        return hello_compare(&wanted, layout, why, n_why);
    }
    struct geometry g;
    if (!geometry_plan(d->options, &wanted, &g, why, n_why))
        return STATUS_EMISMATCH;
    if (!make_region(d, &g, why, n_why) || !make_tables(d, &g, why, n_why) ||
        !make_devices(d, &g, why, n_why) || !make_disk(d, &g, why, n_why) ||
        !make_snapshots(d, &g, why, n_why)) {
        daemon_uncarve(d);
        return STATUS_ENOSPC;
    }
    d->layout = g.layout;
    d->n_blocks = g.n_blocks;
    d->n_slots = g.n_slots;
    d->n_tier = g.n_tier;
    d->block_stride = g.block_stride;
    d->slot_stride = g.slot_stride;
    d->carved = true;
    daemon_publish(d);
    shm_store_release(&d->header->ready, 1); /* this must be last: tools may look now */
    bool small = g.pool_bytes < 1 << 20;
    if (d->n_slots)
        log_info("snapshots: %u slot%s of %llu bytes on a device, %u more spilled to %s",
                 d->n_slots, PLURAL(d->n_slots), (unsigned long long)d->layout.snapshot_bytes,
                 d->n_tier, d->disk ? "disk" : "memory");
    log_info("pool: %u block%s of %u token%s and %llu bytes, %u slot%s, %u device%s of %llu %s",
             d->n_blocks, PLURAL(d->n_blocks), d->layout.block_tokens,
             PLURAL(d->layout.block_tokens), (unsigned long long)d->layout.block_bytes, d->n_slots,
             PLURAL(d->n_slots), d->layout.n_devices, PLURAL(d->layout.n_devices),
             (unsigned long long)(g.pool_bytes >> (small ? 10 : 20)), small ? "KiB" : "MiB");
    say_gpus(d);
    return 0;
}
