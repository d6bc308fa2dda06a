/* device_private.h - what the backends share. */
#ifndef KERNELS_DEVICE_PRIVATE_H
#define KERNELS_DEVICE_PRIVATE_H

#include "kernels/cuda_driver.h"
#include "kernels/device.h"

struct device {
    struct wire_device share;
    int fd; /* -1: none, or closed */
    void *address;
    bool (*end)(struct device *dev, bool in_use); /* frees it; as device_free */
};

int device_create_host(struct device **out, const struct device_want *want,
                       struct device_words *words);
int device_create_cuda(struct device **out, const struct device_want *want,
                       struct device_words *words);
/* Map memory that was made or imported by descriptor. False: *result and what could not be done. */
bool cuda_map(const struct cuda_driver *cu, int number, uint64_t handle, uint64_t bytes,
              uint64_t *at, int *result, const char **what);
bool cuda_unmap(const struct cuda_driver *cu, uint64_t at, uint64_t bytes);

struct device *device_import_host(const struct wire_device *share, int fd, char *why, size_t n_why);
struct device *device_import_cuda(const struct wire_device *share, int fd, char *why, size_t n_why);

#endif
