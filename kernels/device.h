/*
 * device.h - memory that holds pages: made and exported by the daemon, imported and mapped by
 * workers. The only interface behind which CUDA lives.
 *
 *   device_host.c    a sealed memfd
 *   device_cuda.c    memory of a GPU, made by the daemon, in two ways (--cuda-export):
 *                      fd   cuMemCreate, a descriptor over the control socket. Needs no context
 *                           and lives as long as anybody has it
 *                      ipc  cuMemAlloc, a handle of 64 bytes in WELCOME, and a placeholder where
 *                           the descriptor would be. Ends with the daemon, whoever uses it
 *   import_cuda.c    the worker's side of both
 *   cuda_driver.h    what is loaded from libcuda, when the first GPU is asked for
 *
 * A device is one allocation: n_blocks + 1 blocks, then n_slots + 1 slots (id 0 is scratch), as
 * pool_bytes() of shm/layout.h lays them out; so a worker has one contiguous range of it.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/copier.h"
#include "shm/message.h"

#include <stdbool.h>
#include <stddef.h>

struct device;

/* Which GPU. */
struct device_name {
    bool by_uuid, mig; /* mig: the UUID was given as one of a MIG instance */
    uint32_t index;    /* as this process numbers them */
    uint8_t uuid[16];
};

enum device_export { EXPORT_AUTO, EXPORT_IPC, EXPORT_FD };

struct device_want {
    uint64_t bytes;
    const struct device_name *gpu; /* NULL: the host's memory */
    enum device_export export;     /* of a GPU's */
    bool huge_pages;               /* of the host's: asked for; falls back */
    int numa_node;                 /* -1: anywhere; -2: local */
};

/* Sentences. `note`: something asked for could not be had and something else serves. */
struct device_words {
    char why[400], note[512];
};

/* Make one: 0; -ENOMEM: there is no memory now; another negative number: it cannot be had. */
int device_create(struct device **out, const struct device_want *want, struct device_words *words);
/* What a worker is told of it, and the descriptor to send along; both owned by the device. */
const struct wire_device *device_share(const struct device *dev);
int device_fd(const struct device *dev);
uint64_t device_bytes(const struct device *dev); /* what was wanted, rounded up */

/* In a worker: check what was received and map it. NULL and a sentence. The descriptor stays the
 * caller's. */
struct device *device_import(const struct wire_device *share, int fd, char *why, size_t n_why);

/* In the daemon: what moves pages between it and buffers of the host, where its memory is a GPU's
 * (the host's needs none). The memory is mapped here when the first one is made. It goes before
 * the device. NULL and a sentence in why. */
struct copier *device_copier(struct device *dev, uint64_t buffer_bytes, unsigned n_buffers,
                             uint64_t engine_from, struct device_words *words);

/* One contiguous range. Of a GPU: an address for its kernels and copies, not for the CPU; NULL in
 * the daemon, which has a copier. */
void *device_address(const struct device *dev);
bool device_is_cuda(const struct device *dev);
/* For the log: which GPU, and how workers get its memory. */
void device_print(const struct device *dev, char *text, size_t n);

/* Unmap or free it; of a worker's import, after what its GPU still does. NULL is fine. False: the
 * driver has refused, and the GPU may use it until this process ends. */
bool device_free(struct device *dev);
/* The same while others may have it mapped: memory that would go from under them stays until this
 * process ends. */
bool device_leave(struct device *dev);

/* "process 12 (python3) and process 34 (python3) use a GPU", as far as /proc shows it to us. */
void device_users(char *text, size_t n);

/* Does this machine have that NUMA node? (One without NUMA has node 0.) */
bool device_has_node(int node);

#endif
