/*
 * A GPU's memory, made by the daemon.
 *
 * What is exported by descriptor needs no context: a daemon without lower tiers takes nothing of
 * the GPU but the pool. Only a copier (device_copier) has it mapped here. The legacy handle is that
 * of an allocation, which belongs to a context; its size is a multiple of 2 MiB, for the driver
 * exports whole blocks, and what else were in the last one would be everybody's.
 */
#include "kernels/cuda_driver.h"
#include "kernels/device_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t LEGACY_BLOCK = 2ull << 20;

struct cuda_device {
    struct device device;
    struct cuda_driver cu;
    int number;      /* as this process numbers it */
    uint64_t memory; /* fd: the handle; ipc: the address */
    void *context;   /* ipc; fd: once it is mapped here */
    uint64_t at;     /* where it is mapped here; 0: it is not */
    bool stuck;      /* a copier's work does not come back: what waits for it would hang */
};

static int refuse(const struct cuda_device *dev, int result, const char *what,
                  struct device_words *words)
{
    char text[160], uuid[CUDA_UUID_TEXT];
    cuda_uuid_print(uuid, dev->device.share.uuid);
    snprintf(text, sizeof text, "%s: %s", uuid, what);
    cuda_explain(&dev->cu, result, text, words->why, sizeof words->why);
    return result == CUDA_OUT_OF_MEMORY ? -ENOMEM : -ENODEV;
}

/* ---- which ----------------------------------------------------------------------------------- */

static int refuse_absent(const struct cuda_device *dev, const struct device_name *gpu,
                         struct device_words *words)
{
    char name[CUDA_UUID_TEXT];
    int count = 0;
    (void)dev->cu.cuDeviceGetCount(&count);
    if (gpu->by_uuid)
        cuda_uuid_print(name, gpu->uuid);
    else
        snprintf(name, sizeof name, "GPU %u", gpu->index);
    if (gpu->mig)
        memcpy(name, "MIG", 3);
    snprintf(words->why, sizeof words->why,
             "%s is not here: %d GPU%s visible, numbered from 0; nvidia-smi -L lists them, and "
             "CUDA_VISIBLE_DEVICES may hide some",
             name, count, count == 1 ? " is" : "s are");
    return -ENODEV;
}

static int find(struct cuda_device *dev, const struct device_name *gpu, struct device_words *words)
{
    struct cuda_uuid uuid;
    dev->number = -1;
    if (gpu->by_uuid)
        dev->number = cuda_find(&dev->cu, gpu->uuid);
    else if (dev->cu.cuDeviceGet(&dev->number, (int)gpu->index))
        dev->number = -1;
    if (dev->number < 0)
        return refuse_absent(dev, gpu, words);
    int result = dev->cu.cuDeviceGetUuid(&uuid, dev->number);
    if (result)
        return refuse(dev, result, "its UUID is not known", words);
    memcpy(dev->device.share.uuid, uuid.bytes, sizeof uuid.bytes);
    return 0;
}

static int attribute_of(const struct cuda_device *dev, int attribute, int otherwise)
{
    int value;
    return dev->cu.cuDeviceGetAttribute(&value, attribute, dev->number) ? otherwise : value;
}

static bool can(const struct cuda_device *dev, int attribute)
{
    return attribute_of(dev, attribute, 0) != 0;
}

/* ---- by descriptor --------------------------------------------------------------------------- */

static int create_fd(struct cuda_device *dev, uint64_t bytes, struct device_words *words)
{
    const struct cuda_memory_kind kind = {
        .type = CUDA_MEMORY_PINNED,
        .handle_types = CUDA_HANDLE_FD,
        .location = {CUDA_LOCATION_DEVICE, dev->number},
    };
    size_t unit = 0;
    int result = dev->cu.cuMemGetAllocationGranularity(&unit, &kind, CUDA_GRANULARITY_MINIMUM);
    if (result || unit == 0)
        return refuse(dev, result, "the granularity of its memory is not known", words);
    bytes = (bytes + unit - 1) / unit * unit;
    result = dev->cu.cuMemCreate(&dev->memory, bytes, &kind, 0);
    if (result)
        return refuse(dev, result, "the pool's memory could not be had", words);
    result = dev->cu.cuMemExportToShareableHandle(&dev->device.fd, dev->memory, CUDA_HANDLE_FD, 0);
    if (result) {
        dev->device.fd = -1;
        (void)dev->cu.cuMemRelease(dev->memory);
        return refuse(dev, result, "the pool's memory could not be exported as a descriptor",
                      words);
    }
    (void)fcntl(dev->device.fd, F_SETFD, FD_CLOEXEC);
    dev->device.share.kind = DEVICE_CUDA_FD;
    dev->device.share.bytes = bytes;
    return 0;
}

/* Everybody's mapping keeps it alive. */
static bool end_fd(struct device *device, bool in_use)
{
    struct cuda_device *dev = (struct cuda_device *)device;
    bool over = !dev->stuck;
    close(device->fd);
    if (dev->stuck)
        goto end;
    if (dev->at && dev->cu.cuCtxPushCurrent(dev->context) == CUDA_OK) {
        over = cuda_unmap(&dev->cu, dev->at, device->share.bytes);
        (void)dev->cu.cuCtxPopCurrent(NULL);
    }
    if (dev->at)
        (void)dev->cu.cuDevicePrimaryCtxRelease(dev->number);
    over &= dev->cu.cuMemRelease(dev->memory) == CUDA_OK;
end:
    free(dev);
    return over;
}

/* ---- by handle ------------------------------------------------------------------------------- */

/* With the device's context current. */
static int allocate_ipc(struct cuda_device *dev, uint64_t bytes, struct device_words *words)
{
    struct cuda_ipc_handle handle;
    int result = dev->cu.cuMemAlloc(&dev->memory, bytes);
    if (result)
        return refuse(dev, result, "the pool's memory could not be had", words);
    result = dev->cu.cuIpcGetMemHandle(&handle, dev->memory);
    if (result) {
        (void)dev->cu.cuMemFree(dev->memory);
        return refuse(dev, result, "the pool's memory could not be exported as a handle", words);
    }
    memcpy(dev->device.share.handle, handle.bytes, sizeof handle.bytes);
    return 0;
}

static int create_ipc(struct cuda_device *dev, uint64_t bytes, struct device_words *words)
{
    bytes = (bytes + LEGACY_BLOCK - 1) / LEGACY_BLOCK * LEGACY_BLOCK;
    dev->device.fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* one descriptor a device */
    if (dev->device.fd < 0) {
        snprintf(words->why, sizeof words->why, "/dev/null: %s", strerror(errno));
        return -errno;
    }
    int result = dev->cu.cuDevicePrimaryCtxRetain(&dev->context, dev->number), rc;
    if (result) {
        rc = refuse(dev, result, "there is no context for it", words);
        goto fail;
    }
    result = dev->cu.cuCtxPushCurrent(dev->context);
    if (result) {
        rc = refuse(dev, result, "its context does not work", words);
    } else {
        rc = allocate_ipc(dev, bytes, words);
        (void)dev->cu.cuCtxPopCurrent(NULL);
    }
    if (rc) {
        (void)dev->cu.cuDevicePrimaryCtxRelease(dev->number);
        goto fail;
    }
    dev->at = dev->memory;
    dev->device.share.kind = DEVICE_CUDA_IPC;
    dev->device.share.bytes = bytes;
    return 0;
fail:
    close(dev->device.fd);
    return rc;
}

/* To free it under an importer is undefined: then it ends with the process. */
static bool end_ipc(struct device *device, bool in_use)
{
    struct cuda_device *dev = (struct cuda_device *)device;
    bool over = !dev->stuck;
    close(device->fd);
    if (over && !in_use && (over = dev->cu.cuCtxPushCurrent(dev->context) == CUDA_OK)) {
        over = dev->cu.cuMemFree(dev->memory) == CUDA_OK;
        (void)dev->cu.cuCtxPopCurrent(NULL);
        (void)dev->cu.cuDevicePrimaryCtxRelease(dev->number);
    }
    free(dev);
    return over;
}

/* ---- either ------------------------------------------------------------------------------------
 */

/* What no waiting brings. */
static int refuse_size(const struct cuda_device *dev, uint64_t bytes, struct device_words *words)
{
    char uuid[CUDA_UUID_TEXT];
    size_t total = 0;
    if (dev->cu.cuDeviceTotalMem(&total, dev->number) != CUDA_OK || bytes <= total)
        return 0;
    cuda_uuid_print(uuid, dev->device.share.uuid);
    snprintf(words->why, sizeof words->why,
             "%s: the pool takes %llu MiB and all of the GPU's memory is %llu MiB; ask for less",
             uuid, (unsigned long long)(bytes >> 20), (unsigned long long)(total >> 20));
    return -EFBIG;
}

static int create(struct cuda_device *dev, const struct device_want *want,
                  struct device_words *words)
{
    int rc = refuse_size(dev, want->bytes, words);
    if (rc)
        return rc;
    bool fds = can(dev, CUDA_HAS_VMM) && can(dev, CUDA_HAS_FD_HANDLES);
    if (want->export == EXPORT_FD && !fds)
        return refuse(dev, CUDA_NOT_SUPPORTED, "it has no memory with descriptors", words);
    if (want->export == EXPORT_FD || (want->export == EXPORT_AUTO && fds)) {
        dev->device.end = end_fd;
        return create_fd(dev, want->bytes, words);
    }
    if (!can(dev, CUDA_HAS_IPC))
        return refuse(dev, CUDA_NOT_SUPPORTED, "it has no handles for other processes", words);
    dev->device.end = end_ipc;
    return create_ipc(dev, want->bytes, words);
}

int device_create_cuda(struct device **out, const struct device_want *want,
                       struct device_words *words)
{
    struct cuda_device *dev = calloc(1, sizeof *dev);
    int rc = -EIO;
    if (!dev) {
        snprintf(words->why, sizeof words->why, "there is no memory for the device's table");
        return -ENOMEM;
    }
    dev->device.fd = -1;
    if (cuda_open(&dev->cu, words->why, sizeof words->why))
        rc = find(dev, want->gpu, words);
    else
        cuda_or(words->why, sizeof words->why, "use --device host");
    if (rc == 0)
        rc = create(dev, want, words);
    if (rc == 0)
        *out = &dev->device;
    else
        free(dev);
    return rc;
}

/* ---- here, for a copier -----------------------------------------------------------------------
 */

static int map_here(struct cuda_device *dev, struct device_words *words)
{
    const char *what = "its context does not work";
    int result = dev->cu.cuDevicePrimaryCtxRetain(&dev->context, dev->number);
    if (result)
        return refuse(dev, result, "there is no context for it", words);
    result = dev->cu.cuCtxPushCurrent(dev->context);
    if (result == CUDA_OK) {
        bool mapped = cuda_map(&dev->cu, dev->number, dev->memory, dev->device.share.bytes,
                               &dev->at, &result, &what);
        (void)dev->cu.cuCtxPopCurrent(NULL);
        if (mapped)
            return 0;
    }
    dev->at = 0;
    (void)dev->cu.cuDevicePrimaryCtxRelease(dev->number);
    return refuse(dev, result, what, words);
}

struct copier *device_copier(struct device *device, uint64_t buffer_bytes, unsigned n_buffers,
                             uint64_t engine_from, struct device_words *words)
{
    struct cuda_device *dev = (struct cuda_device *)device;
    if (!dev->at && map_here(dev, words))
        return NULL;
    const struct copier_config config = {
        .pool = dev->at,
        .pool_bytes = device->share.bytes,
        .buffer_bytes = buffer_bytes,
        .n_buffers = n_buffers,
        .numa_node = attribute_of(dev, CUDA_HOST_NUMA_ID, -1), /* -1: there is one only */
        .cuda = &dev->cu,
        .context = dev->context,
        .engine_from = engine_from,
        .stuck = &dev->stuck,
    };
    return copier_new(&config, words->why, sizeof words->why, words->note, sizeof words->note);
}
