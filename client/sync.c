/* The synchronous calls: make the call, say where its results go, run it. */
#include "client/client.h"

#define HERE(c)                                                                                    \
    do {                                                                                           \
        int here_ = check_here(c);                                                                 \
        if (here_)                                                                                 \
            return here_;                                                                          \
    } while (0)

int pfx_ping(pfx *c)
{
    struct call *call;
    HERE(c);
    int status = ask_simple(c, OP_NOP, &call);
    return status ? status : call_run(c, call);
}

/* ---- spaces ---------------------------------------------------------------------- */

int pfx_space_open(pfx *c, const struct pfx_space_desc *desc, pfx_space *out)
{
    struct call *call;
    struct completion_number got = {0};
    HERE(c);
    if (!out)
        return fail(c, PFX_EINVAL, "an argument is NULL");
    int status = ask_space_open(c, desc, &call);
    if (status)
        return status;
    call->number = &got;
    status = call_run(c, call);
    if (status == 0)
        *out = got.n;
    return status;
}

int pfx_space_close(pfx *c, pfx_space space)
{
    struct call *call;
    HERE(c);
    int status = ask_space(c, OP_SPACE_CLOSE, space, &call);
    return status ? status : call_run(c, call);
}

int pfx_flush(pfx *c, pfx_space space)
{
    struct call *call;
    HERE(c);
    int status = ask_space(c, OP_FLUSH, space, &call);
    return status ? status : call_run(c, call);
}

/* ---- sequences --------------------------------------------------------------------- */

int pfx_lookup(pfx *c, const struct pfx_lookup_args *args, struct pfx_match *out)
{
    struct call *call;
    HERE(c);
    int status = check_out(c, out, sizeof *out);
    if (status == 0)
        status = ask_lookup(c, args, &call);
    if (status)
        return status;
    call->match = out;
    return call_run(c, call);
}

int pfx_fetch(pfx *c, uint64_t lease, struct pfx_match *m)
{
    struct call *call;
    HERE(c);
    int status = check_out(c, m, sizeof *m);
    if (status == 0)
        status = ask_leased(c, OP_FETCH, lease, &call);
    if (status)
        return status;
    call->match = m;
    return call_run(c, call);
}

int pfx_truncate(pfx *c, uint64_t lease, uint32_t n_blocks)
{
    struct call *call;
    HERE(c);
    int status = ask_truncate(c, lease, n_blocks, &call);
    return status ? status : call_run(c, call);
}

int pfx_reserve(pfx *c, uint64_t lease, uint32_t n, uint32_t *blocks)
{
    struct call *call;
    HERE(c);
    if (n && !blocks)
        return fail(c, PFX_EINVAL, "an argument is NULL");
    int status = ask_reserve(c, lease, n, &call);
    if (status)
        return status;
    call->ids = blocks;
    return call_run(c, call);
}

int pfx_insert(pfx *c, uint64_t lease, const struct pfx_insert_args *args, uint32_t *canonical,
               struct pfx_insert_result *out)
{
    struct call *call;
    HERE(c);
    int status = check_out(c, out, sizeof *out);
    if (status == 0)
        status = ask_insert(c, lease, args, &call);
    if (status)
        return status;
    call->ids = canonical;
    call->insert = out;
    return call_run(c, call);
}

int pfx_release(pfx *c, uint64_t lease)
{
    struct call *call;
    HERE(c);
    int status = ask_leased(c, OP_RELEASE, lease, &call);
    return status ? status : call_run(c, call);
}

/* ---- snapshots ----------------------------------------------------------------------- */

int pfx_snapshot_reserve(pfx *c, uint64_t lease, uint32_t *slot)
{
    struct call *call;
    struct completion_number got = {0};
    HERE(c);
    if (!slot)
        return fail(c, PFX_EINVAL, "an argument is NULL");
    int status = ask_snapshot_reserve(c, lease, &call);
    if (status)
        return status;
    call->number = &got;
    status = call_run(c, call);
    if (status == 0)
        *slot = got.slot;
    return status;
}

int pfx_snapshot_insert(pfx *c, uint64_t lease, uint32_t slot, uint32_t depth,
                        enum pfx_snapshot_kind kind)
{
    struct call *call;
    HERE(c);
    int status = ask_snapshot_insert(c, lease, slot, depth, (int)kind, &call);
    return status ? status : call_run(c, call);
}

int pfx_snapshot_cancel(pfx *c, uint64_t lease, uint32_t slot)
{
    struct call *call;
    HERE(c);
    int status = check_slot(c, slot);
    if (status == 0)
        status = ask_leased(c, OP_SNAPSHOT_CANCEL, lease, &call);
    if (status)
        return status;
    call->request.number.n = slot;
    return call_run(c, call);
}

int pfx_snapshot_drop(pfx *c, uint64_t lease)
{
    struct call *call;
    HERE(c);
    int status = ask_leased(c, OP_SNAPSHOT_DROP, lease, &call);
    return status ? status : call_run(c, call);
}

/* ---- administration -------------------------------------------------------------------- */

/* One record with one number, answered by numbers. */
static int run_number(struct pfx *c, enum opcode op, uint64_t n, struct completion_number *got)
{
    struct call *call;
    int status = ask_simple(c, op, &call);
    if (status)
        return status;
    call->request.number.n = n;
    call->number = got;
    return call_run(c, call);
}

int pfx_evict(pfx *c, uint32_t n, struct pfx_evicted *out)
{
    struct completion_number got = {0};
    HERE(c);
    int status = check_out(c, out, sizeof *out);
    if (status == 0)
        status = run_number(c, OP_EVICT, n, &got);
    if (status == 0)
        *out = (struct pfx_evicted){
            .size = sizeof *out,
            .freed_blocks = smaller(got.n, UINT32_MAX),
            .removed_blocks = smaller(got.more, UINT32_MAX),
        };
    return status;
}

int pfx_snapshot_evict(pfx *c)
{
    struct completion_number got = {0};
    HERE(c);
    return run_number(c, OP_SNAPSHOT_EVICT, 0, &got);
}

int pfx_snapshot_spill(pfx *c, uint32_t min_tokens, struct pfx_spilled *out)
{
    struct completion_number got = {0};
    HERE(c);
    int status = check_out(c, out, sizeof *out);
    if (status == 0)
        status = run_number(c, OP_SNAPSHOT_SPILL, min_tokens, &got);
    if (status == 0)
        *out = (struct pfx_spilled){
            .size = sizeof *out, .depth = got.depth, .key = got.n, .dropped = got.dropped};
    return status;
}

int pfx_snapshot_forget(pfx *c, uint64_t tier_key)
{
    struct completion_number got = {0};
    HERE(c);
    return run_number(c, OP_SNAPSHOT_FORGET, tier_key, &got);
}
