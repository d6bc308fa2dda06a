/* The asynchronous calls: each makes the call and starts it. */
#include "client/client.h"

#define SUBMIT(ask)                                                                                \
    do {                                                                                           \
        struct call *call = NULL;                                                                  \
        int status = check_here(c);                                                                \
        if (status == 0)                                                                           \
            status = (ask);                                                                        \
        return status ? status : call_submit(c, call, tag);                                        \
    } while (0)

int pfx_submit_space_open(pfx *c, const struct pfx_space_desc *desc, uint64_t tag)
{
    SUBMIT(ask_space_open(c, desc, &call));
}

int pfx_submit_lookup(pfx *c, const struct pfx_lookup_args *args, uint64_t tag)
{
    SUBMIT(ask_lookup(c, args, &call));
}

int pfx_submit_fetch(pfx *c, uint64_t lease, uint64_t tag)
{
    SUBMIT(ask_leased(c, OP_FETCH, lease, &call));
}

int pfx_submit_truncate(pfx *c, uint64_t lease, uint32_t n_blocks, uint64_t tag)
{
    SUBMIT(ask_truncate(c, lease, n_blocks, &call));
}

int pfx_submit_reserve(pfx *c, uint64_t lease, uint32_t n, uint64_t tag)
{
    SUBMIT(ask_reserve(c, lease, n, &call));
}

int pfx_submit_insert(pfx *c, uint64_t lease, const struct pfx_insert_args *args, uint64_t tag)
{
    SUBMIT(ask_insert(c, lease, args, &call));
}

int pfx_submit_release(pfx *c, uint64_t lease, uint64_t tag)
{
    SUBMIT(ask_leased(c, OP_RELEASE, lease, &call));
}

int pfx_submit_snapshot_reserve(pfx *c, uint64_t lease, uint64_t tag)
{
    SUBMIT(ask_snapshot_reserve(c, lease, &call));
}

int pfx_submit_snapshot_insert(pfx *c, uint64_t lease, uint32_t slot, uint32_t depth,
                               enum pfx_snapshot_kind kind, uint64_t tag)
{
    SUBMIT(ask_snapshot_insert(c, lease, slot, depth, (int)kind, &call));
}
