/*
 * device.h - memory that holds pages: made and exported by the daemon, imported and mapped by
 * workers. The only interface behind which CUDA lives.
 *
 * This version has one backend, the host (a sealed memfd). A device holds n_blocks + 1 blocks and
 * n_slots + 1 slots (id 0 is scratch), as pool_bytes() of shm/layout.h lays them out.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;

struct device_want {
    uint64_t bytes;
    bool huge_pages; /* asked for; falls back */
    int numa_node;   /* -1: anywhere; -2: local */
};

/* Make one. NULL and a sentence in why. `note` receives a sentence if something asked for could
 * not be had and plain pages serve instead; else it is empty. */
struct device *device_create(const struct device_want *want, char *why, size_t n_why, char *note,
                             size_t n_note);
/* The descriptor to send; owned by the device. */
int device_export(const struct device *dev);
/* Its size: what was wanted, rounded up to huge pages where those were asked for. */
uint64_t device_bytes(const struct device *dev);
void device_free(struct device *dev);

/* In a worker: check seals and size of a received descriptor and map it. NULL and a sentence.
 * The descriptor stays the caller's. */
struct device *device_import(int fd, uint64_t bytes, char *why, size_t n_why);
void *device_address(const struct device *dev); /* one contiguous range */

/* Does this machine have that NUMA node? (One without NUMA has node 0.) */
bool device_has_node(int node);

#endif
