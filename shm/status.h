/*
 * status.h - the one table of errors that cross a ring: number and sentence. The numbers are those
 * of enum pfx_error (client/prefixd.h), where the library asserts it.
 */
#ifndef SHM_STATUS_H
#define SHM_STATUS_H

#define STATUSES(S)                                                                               \
    S(EINVAL, -1, "an argument is out of range; nothing was sent")                                \
    S(ENOSPC, -2, "every block or slot is held; retry after a release")                           \
    S(ETOOBIG, -3, "this can never fit: it is larger than the pool or the channel")               \
    S(ESTALE, -4, "the lease, block or slot is not, or no longer, yours")                         \
    S(EAGAIN, -5, "the channel is full; take completions with pfx_wait, then retry")              \
    S(EGONE, -6, "the daemon is not running or has restarted; open a new connection")             \
    S(EIO, -7, "the disk tier failed; the blocks that it lost are a miss")                        \
    S(EVERSION, -8, "the daemon speaks another ABI version; install matching versions")           \
    S(EACCESS, -9, "the daemon refused this user; start it with --allow-user or --allow-group")   \
    S(ETIMEDOUT, -10, "no answer within the time given; the call may still happen")               \
    S(ECONFLICT, -11, "tokens or depth contradict what the lease holds")                          \
    S(ENOENT, -12, "no such snapshot, key or space")                                              \
    S(EMISMATCH, -13, "the worker's layout is not the daemon's")

enum status {
#define STATUS_ENUM(name, number, text) STATUS_##name = number,
    STATUSES(STATUS_ENUM)
#undef STATUS_ENUM
};

#endif
