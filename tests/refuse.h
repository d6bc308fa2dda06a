/* refuse.h - a kernel that refuses system calls, by a filter of seccomp: for this process and all
 * that it starts, for good. Each adds to those before. */
#ifndef TESTS_REFUSE_H
#define TESTS_REFUSE_H

#include <stdint.h>

/* This call fails with this errno, always. */
void refuse_call(long number, int error);
/* Shared mappings of so many bytes and more: there is no memory for them. */
void refuse_shared_maps(uint64_t bytes);

/* As the default profile of container engines does, or with another errno. */
void refuse_io_uring(int error);

#endif
