/* cuMemAlloc and the legacy handles. */
#include "tests/fake_cuda/fake_memory_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int fake_cuMemFree(uint64_t address)
{
    FAKE_ENTER();
    int device = fake_current("cuMemFree");
    pthread_mutex_lock(&fake_lock);
    struct range *r = range_of(address, ALLOCATED, "cuMemFree");
    size_t bytes = r->bytes;
    if (r->device != device)
        fake_die("cuMemFree: the context that is current is of another device");
    if (memory_imported(r->memory))
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
        struct memory *m = fake_allocate(sizeof *m);
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
