/*
 * Device memory: memfds, and ranges of addresses.
 *
 *   memory   a memfd, from cuMemAlloc, from cuMemCreate, or another process's
 *   range    addresses: a reservation, with memory mapped into it or not; an allocation of
 *            cuMemAlloc; or a handle of another process that was opened
 *
 * A memfd is named after the device file that a real driver would have open, so that whoever looks
 * in /proc for users of a GPU finds the same: /memfd:/dev/nvidia0 MACHINE (deleted). That is also
 * how the memory of a GPU is counted over all processes, with no state of ours to be left behind.
 *
 * A legacy handle says where the memfd is: a process and a descriptor. Who opens one keeps a read
 * lock on the memfd, and the kernel takes that back if he dies; so who frees under an importer
 * finds out. (A process's lock, not a description's: a forked child of the importer has not opened
 * it.)
 *
 *   fake_memory.c   memory, addresses, pinned host memory, how much is in use
 *   fake_vmm.c      cuMemCreate and what belongs to it
 *   fake_legacy.c   cuMemAlloc and the legacy handles
 */
#include "tests/fake_cuda/fake_memory_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct memory_list memories = TAILQ_HEAD_INITIALIZER(memories);
struct range_list ranges = TAILQ_HEAD_INITIALIZER(ranges);

struct pin {
    TAILQ_ENTRY(pin) link;
    uint8_t *at;
    size_t bytes;
};
static TAILQ_HEAD(, pin) pins = TAILQ_HEAD_INITIALIZER(pins);

void *fake_allocate(size_t n)
{
    void *at = calloc(1, n);
    if (!at)
        fake_die("no memory");
    return at;
}

/* ---- how much is in use --------------------------------------------------------------------- */

static void memory_name(char name[96], int device)
{
    snprintf(name, 96, "/dev/nvidia%d %s", device, fake_machine());
}

struct inodes {
    ino_t seen[256];
    unsigned n;
    uint64_t bytes;
};

static void count_process(const char *pid, const char *name, struct inodes *all)
{
    char path[300], link[160], want[128];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    int n_want = snprintf(want, sizeof want, "/memfd:%s (deleted)", name);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof link);
        if (n != n_want || memcmp(link, want, (size_t)n) != 0 ||
            fstatat(dirfd(d), e->d_name, &st, 0))
            continue;
        unsigned i = 0;
        while (i < all->n && all->seen[i] != st.st_ino)
            i++;
        if (i < all->n || i == 256)
            continue;
        all->seen[all->n++] = st.st_ino;
        all->bytes += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
}

static uint64_t in_use(int device)
{
    char name[96];
    struct inodes all = {.n = 0};
    memory_name(name, device);
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
            count_process(e->d_name, name, &all);
    if (d)
        closedir(d);
    return all.bytes;
}

static uint64_t limit(void)
{
    return strtoull(fake_environment("FAKE_CUDA_BYTES", "0"), NULL, 10);
}

int fake_cuDeviceTotalMem(size_t *bytes, int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0)
        return CUDA_INVALID_DEVICE;
    *bytes = limit() ? limit() : 1ull << 40;
    return CUDA_OK;
}

int fake_cuMemGetInfo(size_t *left, size_t *total)
{
    FAKE_ENTER();
    int device = fake_current("cuMemGetInfo");
    *total = limit() ? limit() : 1ull << 40;
    *left = *total - in_use(fake_physical(device));
    return CUDA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int memory_new(int visible, size_t bytes, struct memory **out)
{
    char name[96];
    int device = fake_physical(visible);
    if (device < 0)
        return CUDA_INVALID_DEVICE;
    if (bytes > 1ull << 40 || (limit() && in_use(device) + bytes > limit()))
        return CUDA_OUT_OF_MEMORY;
    memory_name(name, device);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        fake_die("a memfd of %zu bytes: %s", bytes, strerror(errno));
    struct memory *m = fake_allocate(sizeof *m);
    *m = (struct memory){.fd = fd, .device = device, .bytes = bytes};
    TAILQ_INSERT_TAIL(&memories, m, link);
    *out = m;
    return CUDA_OK;
}

void memory_settle(struct memory *m)
{
    if (m->handles || m->maps)
        return;
    TAILQ_REMOVE(&memories, m, link);
    close(m->fd);
    free(m);
}

struct memory *memory_of(uint64_t handle, const char *what)
{
    struct memory *m;
    TAILQ_FOREACH(m, &memories, link)
    if (handle && m->handle == handle && m->handles)
        return m;
    fake_die("%s: handle %llu is none, or was released", what, (unsigned long long)handle);
}

bool memory_imported(const struct memory *m)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(m->fd, F_GETLK, &lock))
        fake_die("F_GETLK: %s", strerror(errno));
    return lock.l_type != F_UNLCK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static bool touchable(void)
{
    return strcmp(fake_environment("FAKE_CUDA_TOUCH", "1"), "0") != 0;
}

/* Addresses without memory; aligned as a GPU's are. */
static uint8_t *addresses(size_t bytes)
{
    size_t room = bytes + FAKE_GRANULARITY;
    uint8_t *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        fake_die("%zu bytes of addresses: %s", bytes, strerror(errno));
    size_t skip = (FAKE_GRANULARITY - (uintptr_t)at % FAKE_GRANULARITY) % FAKE_GRANULARITY;
    if (skip)
        munmap(at, skip);
    if (room - skip - bytes)
        munmap(at + skip + bytes, room - skip - bytes);
    return at + skip;
}

/* A forked child has no CUDA, so it has no device memory either. */
static void place(void *at, const struct range *r, int protection)
{
    if (mmap(at, r->bytes, protection, MAP_SHARED | MAP_FIXED, r->memory->fd, 0) == MAP_FAILED)
        fake_die("mapping %zu bytes: %s", r->bytes, strerror(errno));
    (void)madvise(at, r->bytes, MADV_DONTFORK);
    (void)madvise(at, r->bytes, MADV_DONTDUMP);
}

void range_open(struct range *r)
{
    r->access = true;
    if (touchable()) {
        place(r->at, r, PROT_READ | PROT_WRITE);
        r->alias = r->at;
    } else {
        r->alias = addresses(r->bytes);
        place(r->alias, r, PROT_READ | PROT_WRITE);
    }
}

void range_close(struct range *r)
{
    if (r->alias && r->alias != r->at)
        munmap(r->alias, r->bytes);
    if (mmap(r->at, r->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        fake_die("unmapping: %s", strerror(errno));
    struct memory *m = r->memory;
    r->memory = NULL;
    r->alias = NULL;
    r->access = false;
    m->maps--;
    memory_settle(m);
}

struct range *range_new(enum kind kind, size_t bytes)
{
    struct range *r = fake_allocate(sizeof *r);
    *r = (struct range){.kind = kind, .at = addresses(bytes), .bytes = bytes};
    TAILQ_INSERT_TAIL(&ranges, r, link);
    return r;
}

void range_free(struct range *r)
{
    munmap(r->at, r->bytes);
    TAILQ_REMOVE(&ranges, r, link);
    free(r);
}

struct range *range_of(uint64_t address, enum kind kind, const char *what)
{
    struct range *r;
    TAILQ_FOREACH(r, &ranges, link)
    if ((uint64_t)(uintptr_t)r->at == address && r->kind == kind)
        return r;
    fake_die("%s: %llx is not what it should be, or was freed", what, (unsigned long long)address);
}

void range_map(struct range *r, struct memory *m)
{
    r->memory = m;
    m->maps++;
}

/* ---- pinned host memory
 * ------------------------------------------------------------------------------ */

int fake_cuMemHostRegister(void *host, size_t bytes, unsigned flags)
{
    FAKE_ENTER();
    (void)fake_current("cuMemHostRegister");
    pthread_mutex_lock(&fake_lock);
    struct pin *p;
    TAILQ_FOREACH(p, &pins, link)
    if ((uint8_t *)host < p->at + p->bytes && p->at < (uint8_t *)host + bytes)
        fake_die("cuMemHostRegister: a part of it is registered");
    p = fake_allocate(sizeof *p);
    *p = (struct pin){.at = host, .bytes = bytes};
    TAILQ_INSERT_TAIL(&pins, p, link);
    LOCKED(CUDA_OK);
}

int fake_cuMemHostUnregister(void *host)
{
    FAKE_ENTER();
    (void)fake_current("cuMemHostUnregister");
    struct pin *p;
    pthread_mutex_lock(&fake_lock);
    TAILQ_FOREACH(p, &pins, link)
    if (p->at == host)
        break;
    size_t bytes = p ? p->bytes : 0;
    pthread_mutex_unlock(&fake_lock);
    if (!p)
        fake_die("cuMemHostUnregister: it is not registered");
    fake_unused((uint64_t)(uintptr_t)host, bytes, "cuMemHostUnregister");
    pthread_mutex_lock(&fake_lock);
    TAILQ_REMOVE(&pins, p, link);
    free(p);
    LOCKED(CUDA_OK);
}

/* ---- for copies
 * ------------------------------------------------------------------------------------ */

static void *find_span(uint64_t address, size_t bytes, bool device)
{
    uint8_t *at = (uint8_t *)(uintptr_t)address;
    struct range *r;
    struct pin *p;
    if (device) {
        TAILQ_FOREACH(r, &ranges, link)
        if (r->access && at >= r->at && bytes <= r->bytes &&
            (size_t)(at - r->at) <= r->bytes - bytes)
            return r->alias + (at - r->at);
    } else {
        TAILQ_FOREACH(p, &pins, link)
        if (at >= p->at && bytes <= p->bytes && (size_t)(at - p->at) <= p->bytes - bytes)
            return at;
    }
    return NULL;
}

void *fake_span_if(uint64_t address, size_t bytes, bool device)
{
    pthread_mutex_lock(&fake_lock);
    void *at = find_span(address, bytes, device);
    pthread_mutex_unlock(&fake_lock);
    return at;
}

void *fake_span(uint64_t address, size_t bytes, bool device, const char *what)
{
    void *at = fake_span_if(address, bytes, device);
    if (!at)
        fake_die("%s: %zu bytes at %llx are not %s", what, bytes, (unsigned long long)address,
                 device ? "device memory with access" : "pinned host memory");
    return at;
}

/* ---- all of it
 * ----------------------------------------------------------------------------------------- */

void fake_memory_forked(void)
{
    struct range *r;
    struct memory *m;
    struct pin *p;
    while ((r = TAILQ_FIRST(&ranges))) { /* its addresses were not inherited, or stay unused */
        TAILQ_REMOVE(&ranges, r, link);
        free(r);
    }
    while ((m = TAILQ_FIRST(&memories))) {
        TAILQ_REMOVE(&memories, m, link);
        close(m->fd);
        free(m);
    }
    while ((p = TAILQ_FIRST(&pins))) {
        TAILQ_REMOVE(&pins, p, link);
        free(p);
    }
}

void fake_memory_facts(struct fake_facts *facts)
{
    struct range *r;
    struct memory *m;
    struct pin *p;
    TAILQ_FOREACH(r, &ranges, link)
    facts->mappings += r->memory != NULL;
    TAILQ_FOREACH(m, &memories, link)
    facts->handles += m->handles;
    TAILQ_FOREACH(p, &pins, link)
    facts->pinned++;
}

/* Mappings of cuMemMap are of no context. */
const char *fake_memory_of_context(int device)
{
    const char *what = NULL;
    struct range *r;
    pthread_mutex_lock(&fake_lock);
    TAILQ_FOREACH(r, &ranges, link)
    if (r->kind != RESERVED && r->device == device)
        what = r->kind == OPENED ? "another process's memory" : "memory of cuMemAlloc";
    pthread_mutex_unlock(&fake_lock);
    return what;
}

/* Its own legacy memory may stay while others have it open: freeing it would be the fault. */
bool fake_memory_left(void)
{
    struct range *r;
    struct memory *m;
    bool left = false;
    TAILQ_FOREACH(m, &memories, link)
    left |= m->handles > 0;
    TAILQ_FOREACH(r, &ranges, link)
    left |= r->kind != ALLOCATED || !memory_imported(r->memory);
    return left;
}
