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
 */
#include "tests/fake_cuda/fake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct memory {
    TAILQ_ENTRY(memory) link;
    uint64_t handle; /* of cuMemCreate and imports */
    int fd, device;  /* physical */
    size_t bytes;
    unsigned handles, maps;
    bool legacy, foreign;
};
static TAILQ_HEAD(, memory) memories = TAILQ_HEAD_INITIALIZER(memories);

enum kind { RESERVED, ALLOCATED, OPENED };

struct range {
    TAILQ_ENTRY(range) link;
    enum kind kind;
    uint8_t *at, *alias; /* alias: where the fake's own copies go */
    size_t bytes;
    struct memory *memory; /* NULL: nothing is mapped there */
    bool access;
    unsigned opens;
    int device;            /* visible: whose context opened or allocated it */
    uint64_t handle_of[3]; /* OPENED: device and inode of the memfd, and its length */
};
static TAILQ_HEAD(, range) ranges = TAILQ_HEAD_INITIALIZER(ranges);

struct pin {
    TAILQ_ENTRY(pin) link;
    uint8_t *at;
    size_t bytes;
};
static TAILQ_HEAD(, pin) pins = TAILQ_HEAD_INITIALIZER(pins);

static void *allocate(size_t n)
{
    void *at = calloc(1, n);
    if (!at)
        fake_die("no memory");
    return at;
}

#define LOCKED(result)                                                                             \
    do {                                                                                           \
        int result_ = (result);                                                                    \
        pthread_mutex_unlock(&fake_lock);                                                          \
        return result_;                                                                            \
    } while (0)

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

static int memory_new(int visible, size_t bytes, struct memory **out)
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
    struct memory *m = allocate(sizeof *m);
    *m = (struct memory){.fd = fd, .device = device, .bytes = bytes};
    TAILQ_INSERT_TAIL(&memories, m, link);
    *out = m;
    return CUDA_OK;
}

static void memory_settle(struct memory *m)
{
    if (m->handles || m->maps)
        return;
    TAILQ_REMOVE(&memories, m, link);
    close(m->fd);
    free(m);
}

static struct memory *memory_of(uint64_t handle, const char *what)
{
    struct memory *m;
    TAILQ_FOREACH(m, &memories, link)
    if (handle && m->handle == handle && m->handles)
        return m;
    fake_die("%s: handle %llu is none, or was released", what, (unsigned long long)handle);
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

static void range_open(struct range *r)
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

/* The addresses stay, without memory. */
static void range_close(struct range *r)
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

static struct range *range_new(enum kind kind, size_t bytes)
{
    struct range *r = allocate(sizeof *r);
    *r = (struct range){.kind = kind, .at = addresses(bytes), .bytes = bytes};
    TAILQ_INSERT_TAIL(&ranges, r, link);
    return r;
}

static void range_free(struct range *r)
{
    munmap(r->at, r->bytes);
    TAILQ_REMOVE(&ranges, r, link);
    free(r);
}

/* The range that begins there. */
static struct range *range_of(uint64_t address, enum kind kind, const char *what)
{
    struct range *r;
    TAILQ_FOREACH(r, &ranges, link)
    if ((uint64_t)(uintptr_t)r->at == address && r->kind == kind)
        return r;
    fake_die("%s: %llx is not what it should be, or was freed", what, (unsigned long long)address);
}

static void range_map(struct range *r, struct memory *m)
{
    r->memory = m;
    m->maps++;
}

/* ---- cuMemCreate and what belongs to it --------------------------------------------------------
 */

static void check_kind(const struct cuda_memory_kind *kind, const char *what)
{
    if (kind->type != CUDA_MEMORY_PINNED || kind->location.type != CUDA_LOCATION_DEVICE ||
        kind->reserved_pointer || kind->compression || kind->usage)
        fake_die("%s: that kind of memory is none of prefixd's", what);
}

static void check_size(size_t bytes, const char *what)
{
    if (bytes == 0 || bytes % FAKE_GRANULARITY)
        fake_die("%s: %zu bytes are no multiple of the granularity", what, bytes);
}

int fake_cuMemGetAllocationGranularity(size_t *bytes, const struct cuda_memory_kind *kind,
                                       int which)
{
    FAKE_ENTER();
    check_kind(kind, "cuMemGetAllocationGranularity");
    *bytes = FAKE_GRANULARITY;
    return fake_physical(kind->location.id) < 0 ? CUDA_INVALID_DEVICE : CUDA_OK;
}

static uint64_t next_handle(void)
{
    static uint64_t last = 0x1000;
    return ++last;
}

int fake_cuMemCreate(uint64_t *handle, size_t bytes, const struct cuda_memory_kind *kind,
                     unsigned long long flags)
{
    FAKE_ENTER();
    check_kind(kind, "cuMemCreate");
    check_size(bytes, "cuMemCreate");
    if (flags)
        fake_die("cuMemCreate: flags must be 0");
    pthread_mutex_lock(&fake_lock);
    struct memory *m;
    int result = memory_new(kind->location.id, bytes, &m);
    if (result == CUDA_OK) {
        m->handles = 1;
        *handle = m->handle = next_handle();
        m->legacy = !(kind->handle_types & CUDA_HANDLE_FD); /* not to be exported */
    }
    LOCKED(result);
}

int fake_cuMemRelease(uint64_t handle)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct memory *m = memory_of(handle, "cuMemRelease");
    m->handles--;
    memory_settle(m);
    LOCKED(CUDA_OK);
}

int fake_cuMemExportToShareableHandle(void *shared, uint64_t handle, int type,
                                      unsigned long long flags)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct memory *m = memory_of(handle, "cuMemExportToShareableHandle");
    if (type != CUDA_HANDLE_FD || flags)
        fake_die("cuMemExportToShareableHandle: only descriptors, and flags must be 0");
    if (m->legacy)
        fake_die("cuMemExportToShareableHandle: it was not made to be exported");
    *(int *)shared = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    LOCKED(*(int *)shared < 0 ? CUDA_OS_ERROR : CUDA_OK);
}

/* What is the memfd of that descriptor: its device, or -1. */
static int device_of_fd(int fd)
{
    char path[64], link[160] = "";
    int device;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, link, sizeof link - 1) < 0 ||
        sscanf(link, "/memfd:/dev/nvidia%d", &device) != 1)
        return -1;
    return device;
}

int fake_cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type)
{
    FAKE_ENTER();
    struct stat st;
    int fd = (int)(intptr_t)shared, device = device_of_fd(fd);
    if (type != CUDA_HANDLE_FD)
        fake_die("cuMemImportFromShareableHandle: only descriptors");
    if (device < 0 || fstat(fd, &st))
        return CUDA_INVALID_VALUE;
    if (fake_visible(device) < 0)
        return CUDA_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    struct memory *m = allocate(sizeof *m);
    *m = (struct memory){.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0),
                         .device = device,
                         .bytes = (size_t)st.st_size,
                         .handles = 1,
                         .handle = next_handle(),
                         .foreign = true};
    TAILQ_INSERT_TAIL(&memories, m, link);
    *handle = m->handle;
    LOCKED(m->fd < 0 ? CUDA_OS_ERROR : CUDA_OK);
}

int fake_cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
                             unsigned long long flags)
{
    FAKE_ENTER();
    check_size(bytes, "cuMemAddressReserve");
    if (alignment > FAKE_GRANULARITY || wish || flags)
        fake_die("cuMemAddressReserve: no alignment, place or flags of the caller's");
    pthread_mutex_lock(&fake_lock);
    *address = (uint64_t)(uintptr_t)range_new(RESERVED, bytes)->at;
    LOCKED(CUDA_OK);
}

int fake_cuMemAddressFree(uint64_t address, size_t bytes)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, RESERVED, "cuMemAddressFree");
    if (r->memory || bytes != r->bytes)
        fake_die("cuMemAddressFree: %s", r->memory ? "memory is mapped there" : "not all of it");
    range_free(r);
    LOCKED(CUDA_OK);
}

int fake_cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
                  unsigned long long flags)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct memory *m = memory_of(handle, "cuMemMap");
    struct range *r = range_of(address, RESERVED, "cuMemMap");
    if (offset || flags)
        fake_die("cuMemMap: offset and flags must be 0");
    if (bytes != m->bytes || bytes != r->bytes || r->memory)
        fake_die("cuMemMap: %zu bytes of memory, %zu of addresses, %zu asked for%s", m->bytes,
                 r->bytes, bytes, r->memory ? "; something is mapped there" : "");
    range_map(r, m);
    LOCKED(CUDA_OK);
}

int fake_cuMemSetAccess(uint64_t address, size_t bytes, const struct cuda_access *access, size_t n)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, RESERVED, "cuMemSetAccess");
    if (!r->memory || bytes != r->bytes || n != 1 || access->flags != CUDA_ACCESS_READ_WRITE ||
        access->location.type != CUDA_LOCATION_DEVICE)
        fake_die("cuMemSetAccess: all that is mapped, for one device, to read and write");
    if (fake_physical(access->location.id) != r->memory->device)
        fake_die("cuMemSetAccess: device %d is not the memory's", access->location.id);
    if (!r->access)
        range_open(r);
    LOCKED(CUDA_OK);
}

int fake_cuMemUnmap(uint64_t address, size_t bytes)
{
    FAKE_ENTER();
    fake_unused(address, bytes, "cuMemUnmap");
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, RESERVED, "cuMemUnmap");
    if (!r->memory || bytes != r->bytes)
        fake_die("cuMemUnmap: %s", r->memory ? "not all of it" : "nothing is mapped there");
    range_close(r);
    LOCKED(CUDA_OK);
}

/* ---- cuMemAlloc and the legacy handles
 * ----------------------------------------------------------- */

int fake_cuMemAlloc(uint64_t *address, size_t bytes)
{
    FAKE_ENTER();
    int device = fake_current("cuMemAlloc");
    size_t whole = (bytes + FAKE_GRANULARITY - 1) / FAKE_GRANULARITY * FAKE_GRANULARITY;
    if (bytes == 0)
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct memory *m;
    int result = memory_new(device, whole, &m);
    if (result == CUDA_OK) {
        struct range *r = range_new(ALLOCATED, whole);
        r->device = device;
        m->legacy = bytes == whole; /* what is smaller shares its block with others */
        range_map(r, m);
        range_open(r);
        *address = (uint64_t)(uintptr_t)r->at;
    }
    LOCKED(result);
}

static bool imported(const struct memory *m)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(m->fd, F_GETLK, &lock))
        fake_die("F_GETLK: %s", strerror(errno));
    return lock.l_type != F_UNLCK;
}

int fake_cuMemFree(uint64_t address)
{
    FAKE_ENTER();
    int device = fake_current("cuMemFree");
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, ALLOCATED, "cuMemFree");
    size_t bytes = r->bytes;
    if (r->device != device)
        fake_die("cuMemFree: the context that is current is of another device");
    if (imported(r->memory))
        fake_die("cuMemFree: another process has it open");
    pthread_mutex_unlock(&fake_lock);
    fake_unused(address, bytes, "cuMemFree");
    pthread_mutex_lock(&fake_lock);
    range_close(r);
    range_free(r);
    LOCKED(CUDA_OK);
}

/* Where the memfd is. */
struct handle {
    uint64_t magic, bytes, inode, on;
    int32_t pid, fd, device, reserved;
};
#define HANDLE_MAGIC 0x6369706964616c75ull
static_assert(sizeof(struct handle) <= sizeof(struct cuda_ipc_handle), "it fits");

int fake_cuIpcGetMemHandle(struct cuda_ipc_handle *handle, uint64_t address)
{
    FAKE_ENTER();
    (void)fake_current("cuIpcGetMemHandle");
    struct stat st;
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, ALLOCATED, "cuIpcGetMemHandle");
    if (!r->memory->legacy)
        fake_die("cuIpcGetMemHandle: its size is no multiple of 2 MiB, so that other allocations "
                 "would be exported with it");
    if (fstat(r->memory->fd, &st))
        fake_die("fstat: %s", strerror(errno));
    struct handle h = {.magic = HANDLE_MAGIC,
                       .bytes = r->bytes,
                       .inode = st.st_ino,
                       .on = st.st_dev,
                       .pid = getpid(),
                       .fd = r->memory->fd,
                       .device = r->memory->device};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    LOCKED(CUDA_OK);
}

/* The memfd of a process that lives and has not freed it; -1: none. */
static int find_memory(const struct handle *h)
{
    char path[64];
    struct stat st;
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_ino == h->inode && st.st_dev == h->on &&
        (uint64_t)st.st_size == h->bytes && fcntl(fd, F_SETLK, &lock) == 0)
        return fd;
    close(fd);
    return -1;
}

static struct range *opened_already(const struct handle *h, int device)
{
    struct range *r;
    TAILQ_FOREACH(r, &ranges, link)
    if (r->kind == OPENED && r->handle_of[0] == h->on && r->handle_of[1] == h->inode) {
        if (r->device != device)
            fake_die("cuIpcOpenMemHandle: it is open in another context of this process");
        return r;
    }
    return NULL;
}

int fake_cuIpcOpenMemHandle(uint64_t *address, struct cuda_ipc_handle handle, unsigned flags)
{
    FAKE_ENTER();
    int device = fake_current("cuIpcOpenMemHandle");
    struct handle h;
    memcpy(&h, &handle, sizeof h);
    if (flags != CUDA_IPC_LAZY_PEER)
        fake_die("cuIpcOpenMemHandle: flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS");
    if (h.magic != HANDLE_MAGIC)
        return CUDA_INVALID_VALUE;
    if (h.pid == getpid())
        fake_die("cuIpcOpenMemHandle: it is this process's own");
    if (fake_physical(device) != h.device)
        fake_die("cuIpcOpenMemHandle: the context that is current is of another device");
    pthread_mutex_lock(&fake_lock);
    struct range *r = opened_already(&h, device);
    if (!r) {
        int fd = find_memory(&h);
        if (fd < 0)
            LOCKED(CUDA_INVALID_HANDLE);
        struct memory *m = allocate(sizeof *m);
        *m = (struct memory){.fd = fd, .device = h.device, .bytes = h.bytes, .foreign = true};
        TAILQ_INSERT_TAIL(&memories, m, link);
        r = range_new(OPENED, h.bytes);
        r->device = device;
        r->handle_of[0] = h.on;
        r->handle_of[1] = h.inode;
        range_map(r, m);
        range_open(r);
    }
    r->opens++;
    *address = (uint64_t)(uintptr_t)r->at;
    LOCKED(CUDA_OK);
}

int fake_cuIpcCloseMemHandle(uint64_t address)
{
    FAKE_ENTER();
    int device = fake_current("cuIpcCloseMemHandle");
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, OPENED, "cuIpcCloseMemHandle");
    if (r->device != device)
        fake_die("cuIpcCloseMemHandle: the context that is current is of another device");
    size_t bytes = r->bytes;
    bool last = --r->opens == 0;
    pthread_mutex_unlock(&fake_lock);
    if (!last)
        return CUDA_OK;
    fake_unused(address, bytes, "cuIpcCloseMemHandle");
    pthread_mutex_lock(&fake_lock);
    range_close(r);
    range_free(r);
    LOCKED(CUDA_OK);
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
    p = allocate(sizeof *p);
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

/* Its own legacy memory may stay while others have it open: freeing it would be the fault. */
bool fake_memory_left(void)
{
    struct range *r;
    struct memory *m;
    bool left = false;
    TAILQ_FOREACH(m, &memories, link)
    left |= m->handles > 0;
    TAILQ_FOREACH(r, &ranges, link)
    left |= r->kind != ALLOCATED || !imported(r->memory);
    return left;
}
