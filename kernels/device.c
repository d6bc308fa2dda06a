#include "kernels/device_private.h"

#include <stdio.h>

int device_create(struct device **out, const struct device_want *want, struct device_words *words)
{
    *words = (struct device_words){.why = ""};
    *out = NULL;
    return want->gpu ? device_create_cuda(out, want, words) : device_create_host(out, want, words);
}

struct device *device_import(const struct wire_device *share, int fd, char *why, size_t n_why)
{
    switch (share->kind) {
    case DEVICE_HOST:
        return device_import_host(share, fd, why, n_why);
    case DEVICE_CUDA_FD:
    case DEVICE_CUDA_IPC:
        return device_import_cuda(share, fd, why, n_why);
    default:
        snprintf(why, n_why,
                 "the pool is on a kind of device that this library does not know; "
                 "install matching versions");
        return NULL;
    }
}

const struct wire_device *device_share(const struct device *dev)
{
    return &dev->share;
}

int device_fd(const struct device *dev)
{
    return dev->fd;
}

uint64_t device_bytes(const struct device *dev)
{
    return dev->share.bytes;
}

void *device_address(const struct device *dev)
{
    return dev->address;
}

bool device_is_cuda(const struct device *dev)
{
    return dev->share.kind != DEVICE_HOST;
}

void device_print(const struct device *dev, char *text, size_t n)
{
    char uuid[CUDA_UUID_TEXT];
    cuda_uuid_print(uuid, dev->share.uuid);
    snprintf(text, n, "%s, exported as a %s", uuid,
             dev->share.kind == DEVICE_CUDA_FD ? "descriptor (fd)" : "handle (ipc)");
}

bool device_free(struct device *dev)
{
    return !dev || dev->end(dev, false);
}

bool device_leave(struct device *dev)
{
    return !dev || dev->end(dev, true);
}
