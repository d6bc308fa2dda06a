/* refuse.h - a kernel that refuses system calls, by a filter of seccomp: for this process and all
 * that it starts, for good. Each adds to those before. */
#ifndef TESTS_REFUSE_H
#define TESTS_REFUSE_H

#include <stdint.h>

/* This call fails with this errno, always. */
void refuse_call(long number, int error);
/* This call fails with this errno where its third argument is `option`, as for a socket's. */
void refuse_option(long number, uint32_t option, int error);
/* There is no memory for a shared mapping of so many bytes, below 4 GiB. */
void refuse_shared_maps(uint32_t from, uint32_t to);

/* As the default profile of container engines does, or with another errno. */
void refuse_io_uring(int error);

#endif
