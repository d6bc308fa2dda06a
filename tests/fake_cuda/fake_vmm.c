/* cuMemCreate and what belongs to it: memory, addresses, and the one mapped into the other. */
#include "tests/fake_cuda/fake_memory_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    struct memory *m = fake_allocate(sizeof *m);
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
