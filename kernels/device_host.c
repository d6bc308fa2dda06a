/*
 * The host backend: one memfd a device.
 *
 * Order matters: the NUMA policy of the mapping becomes the file's policy (shmem keeps it in the
 * inode), so it is set before the first page exists; then the pool is populated, if it is small
 * beside what is available, so that "no memory" comes now and not as a signal later. A large pool
 * stays sparse: it may be meant to be larger than what will ever be used.
 */
#include "kernels/device_private.h"
#include "kernels/host_guard.h"
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

static const uint64_t HUGE_PAGE = 2ull << 20;

struct host_device {
    struct device device;
    struct segment segment;
};

struct text {
    char *at;
    size_t n;
};

/* Sentences add up, and the last one may be cut. */
static void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_add(struct text *t, const char *format, ...)
{
    size_t used = strlen(t->at);
    if (used && used + 2 < t->n)
        used += (size_t)snprintf(t->at + used, t->n - used, "; ");
    va_list args;
    va_start(args, format);
    vsnprintf(t->at + used, t->n - used, format, args);
    va_end(args);
}

/* A line of /proc/meminfo in bytes; 0 if it cannot be read. */
static uint64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return 0;
    char line[128];
    unsigned long long kib = 0;
    size_t n = strlen(name);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && line[n] == ':' &&
            sscanf(line + n + 1, "%llu", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

/* The least number in the files of that name in a directory and those above it, up to base. */
static uint64_t least_above(const char *base, char *group, const char *name)
{
    uint64_t least = UINT64_MAX;
    char *end;
    do {
        char path[640];
        unsigned long long bytes;
        snprintf(path, sizeof path, "%s%s/%s", base, group, name);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%llu", &bytes) == 1 && bytes < least) /* else "max" */
            least = bytes;
        if (f)
            fclose(f);
        end = strrchr(group, '/');
        if (end)
            *end = 0;
    } while (end);
    return least;
}

/* What our control group may use, of either version, UINT64_MAX where nothing is said: to go beyond
 * it while filling the pool ahead would be death, not an error. */
static uint64_t group_limit(void)
{
    char line[512];
    uint64_t limit = UINT64_MAX, in_memory = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re"); /* lines of NUMBER:CONTROLLERS:GROUP */
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *group;
        line[strcspn(line, "\n")] = 0;
        group = controllers ? strchr(++controllers, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (!*controllers)
            limit = least_above("/sys/fs/cgroup", group, "memory.max");
        else if (strcmp(controllers, "memory") == 0)
            in_memory = least_above("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    }
    if (f)
        fclose(f);
    return limit < in_memory ? limit : in_memory;
}

bool device_has_node(int node)
{
    if (numa_available() < 0)
        return node == 0;
    return node >= 0 && node <= numa_max_node() &&
           numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node);
}

static void place(const struct host_device *dev, int node, struct text *note)
{
    if (node == -1)
        return;
    if (numa_available() < 0) {
        text_add(note, "this machine has no NUMA placement, pages come from anywhere");
        return;
    }
    if (node == -2)
        node = numa_node_of_cpu(sched_getcpu());
    struct bitmask *mask = node < 0 ? NULL : numa_allocate_nodemask();
    if (!mask) {
        text_add(note, "the local NUMA node is not known, pages come from anywhere");
        return;
    }
    numa_bitmask_setbit(mask, (unsigned)node);
    if (mbind(dev->segment.base, dev->segment.bytes, MPOL_BIND, mask->maskp, mask->size + 1, 0))
        text_add(note, "NUMA node %d could not be bound (%s), pages come from anywhere", node,
                 strerror(errno));
    numa_free_nodemask(mask);
}

static void populate(const struct host_device *dev, struct text *note)
{
    uint64_t bytes = dev->segment.bytes, total = meminfo("MemTotal"), limit = group_limit();
    bool of_group = limit < total;
    if (total && bytes > (of_group ? limit : total))
        text_add(note,
                 "the pool (%llu MiB) is larger than %s (%llu MiB): filling it will fail or swap",
                 (unsigned long long)(bytes >> 20),
                 of_group ? "what its control group may use" : "this machine's memory",
                 (unsigned long long)((of_group ? limit : total) >> 20));
    uint64_t room = meminfo("MemAvailable");
    if (bytes > (room < limit ? room : limit) / 4)
        return;
    if (fallocate(dev->segment.fd, 0, 0, (off_t)bytes))
        text_add(note,
                 "the pool could not be filled ahead (%s), pages come when they are first used",
                 strerror(errno));
}

static int create_segment(struct host_device *dev, uint64_t bytes, bool huge, struct text *note)
{
    if (huge) {
        int rc = segment_create_with(&dev->segment, SEGMENT_POOL, SEGMENT_SHARED, bytes,
                                     MFD_HUGETLB | MFD_HUGE_2MB);
        if (rc == 0) {
            host_guard_add(dev->segment.base, bytes, HUGE_PAGE);
            return 0;
        }
        text_add(note, "huge pages could not be had (%s; raise vm.nr_hugepages), plain pages serve",
                 strerror(-rc));
    }
    int rc = segment_create(&dev->segment, SEGMENT_POOL, SEGMENT_SHARED, bytes);
    if (rc == 0 && huge)
        (void)madvise(dev->segment.base, bytes, MADV_HUGEPAGE);
    return rc;
}

static bool end(struct device *device, bool in_use)
{
    struct host_device *dev = (struct host_device *)device;
    host_guard_remove(dev->segment.base);
    segment_free(&dev->segment);
    free(dev);
    return true;
}

static struct device *finish(struct host_device *dev)
{
    dev->device = (struct device){
        .share = {.kind = DEVICE_HOST, .bytes = dev->segment.bytes},
        .fd = dev->segment.fd,
        .address = dev->segment.base,
        .end = end,
    };
    return &dev->device;
}

int device_create_host(struct device **out, const struct device_want *want,
                       struct device_words *words)
{
    struct text notes = {words->note, sizeof words->note};
    uint64_t bytes = want->bytes;
    if (want->huge_pages)
        bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);

    struct host_device *dev = calloc(1, sizeof *dev);
    int rc = dev ? create_segment(dev, bytes, want->huge_pages, &notes) : -ENOMEM;
    if (rc) {
        snprintf(words->why, sizeof words->why, "a pool of %llu bytes could not be made (%s); %s",
                 (unsigned long long)bytes, strerror(-rc), segment_remedy(rc));
        free(dev);
        return rc;
    }
    place(dev, want->numa_node, &notes);
    populate(dev, &notes);
    *out = finish(dev);
    return 0;
}

struct device *device_import_host(const struct wire_device *share, int fd, char *why, size_t n_why)
{
    struct host_device *dev = calloc(1, sizeof *dev);
    int rc = dev ? segment_map(&dev->segment, fd, SEGMENT_SHARED, share->bytes, true) : -ENOMEM;
    if (rc == 0)
        return finish(dev);
    snprintf(why, n_why, "the pool could not be mapped: %s",
             rc == -EPERM    ? "it is not sealed"
             : rc == -EINVAL ? "its size is not the one announced"
                             : strerror(-rc));
    free(dev);
    return NULL;
}
