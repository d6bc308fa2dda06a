/* pass.h - descriptors along with a packet, for whoever tests with them, with Check or without. */
#ifndef TESTS_PASS_H
#define TESTS_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum { PASS_MOST = 253 /* SCM_MAX_FD */ };

/* They stay the caller's. False: the packet could not be sent, or the kernel lets none through. */
static inline bool pass_descriptors(int to, const void *bytes, size_t n, const int *fds,
                                    size_t n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(PASS_MOST * sizeof(int))] = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, n};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = CMSG_SPACE(n_fds * sizeof *fds)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n_fds * sizeof *fds);
    memcpy(CMSG_DATA(c), fds, n_fds * sizeof *fds);
    return sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n;
}

#endif
