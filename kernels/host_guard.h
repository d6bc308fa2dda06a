/*
 * host_guard.h - a pool of huge pages survives what a worker does to its file.
 *
 * A hole in a file of huge pages gives them back to the machine, where anybody may take them; there
 * is no seal against that which leaves workers their right to write. The next touch finds none, and
 * is SIGBUS. In the process that made the pool, zeros of its own come in such a page's place then:
 * what was there is lost, as if the worker had written over it, and the daemon goes on.
 */
#ifndef KERNELS_HOST_GUARD_H
#define KERNELS_HOST_GUARD_H

#include <stdint.h>

/* One a device. */
void host_guard_add(const void *base, uint64_t bytes, uint64_t page);
void host_guard_remove(const void *base);

#endif
