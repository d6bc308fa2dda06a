/*
 * Calls of one kind of record each, and the table that says what every call does.
 *
 * ask_* checks the arguments and makes the call; nothing is sent before call_run or call_submit.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

int ask_simple(struct pfx *c, enum opcode op, struct call **out)
{
    *out = call_new(c, op);
    return *out ? 0 : fail(c, c->gone ? PFX_EGONE : PFX_EAGAIN, NULL);
}

int ask_leased(struct pfx *c, enum opcode op, uint64_t lease, struct call **out)
{
    if (lease == 0)
        return fail(c, PFX_ESTALE, NULL);
    int status = ask_simple(c, op, out);
    if (status)
        return status;
    struct call *call = *out;
    call->lease_id = call->request.lease = lease;
    call->lease = lease_use(c, lease);
    if (call->lease)
        return 0;
    call_free(c, call);
    return fail(c, PFX_EAGAIN, "there is no memory for another lease");
}

void build_where(struct call *call, uint64_t lease)
{
    call->request = (struct request){.op = OP_TABLE, .lease = lease};
}

void take_place(struct lease *l, struct place where)
{
    if (!l)
        return;
    l->place = where;
    l->known = true;
}

/* ---- spaces ---------------------------------------------------------------------- */

int ask_space_open(struct pfx *c, const struct pfx_space_desc *desc, struct call **out)
{
    int status = check_space(c, desc);
    if (status == 0)
        status = ask_simple(c, OP_SPACE_OPEN, out);
    if (status)
        return status;
    struct call *call = *out;
    call->request.space = (struct request_space){
        .adapter_id = desc->adapter_id,
        .adapter_generation = desc->adapter_generation,
        .tenant_len = desc->tenant_len,
    };
    if (desc->tenant_len == 0)
        return 0;
    call->copy = malloc(desc->tenant_len);
    if (!call->copy) {
        call_free(c, call);
        return fail(c, PFX_EAGAIN, "there is no memory for the description");
    }
    memcpy(call->copy, desc->tenant, desc->tenant_len);
    return 0;
}

static enum step space_open_build(struct pfx *c, struct call *call)
{
    uint32_t n = call->request.space.tenant_len;
    if (!arena_claim(&c->out, &call->out, n))
        return STEP_ROOM;
    if (n)
        memcpy(c->out_bytes + call->out.from, call->copy, n);
    call->request.space.arena = call->out.from;
    return STEP_SEND;
}

static enum step space_open_take(struct pfx *c, struct call *call,
                                 const struct wire_completion *answer)
{
    space_opened(c, answer->number.n);
    *call->number = answer->number;
    return STEP_DONE;
}

int ask_space(struct pfx *c, enum opcode op, uint64_t space, struct call **out)
{
    int status = ask_simple(c, op, out);
    if (status == 0)
        (*out)->request.space.space = space;
    return status;
}

static enum step space_close_take(struct pfx *c, struct call *call,
                                  const struct wire_completion *answer)
{
    (void)answer;
    space_closed(c, call->request.space.space);
    return STEP_DONE;
}

/* ---- the block table ---------------------------------------------------------------- */

int ask_truncate(struct pfx *c, uint64_t lease, uint32_t n_blocks, struct call **out)
{
    int status = ask_leased(c, OP_TRUNCATE, lease, out);
    if (status == 0)
        (*out)->request.number.n = n_blocks;
    return status;
}

static enum step truncate_take(struct pfx *c, struct call *call,
                               const struct wire_completion *answer)
{
    (void)c;
    take_place(call->lease, answer->table.where);
    return STEP_DONE;
}

int ask_reserve(struct pfx *c, uint64_t lease, uint32_t n, struct call **out)
{
    if (lease && n > c->geometry.n_blocks)
        return fail(c, PFX_ETOOBIG, NULL);
    int status = ask_leased(c, OP_RESERVE, lease, out);
    if (status == 0)
        (*out)->res.n = n;
    return status;
}

/* The first record reserves, and brings as many ids as have room; further ones fetch the rest. */
static enum step reserve_build(struct pfx *c, struct call *call)
{
    struct reserving *r = &call->res;
    if (!call_ids(call, r->n)) {
        call->status = PFX_EAGAIN;
        return STEP_DONE;
    }
    uint32_t most = smaller(c->in.bytes / 16, PIECE_BYTES / 4);
    uint32_t n = smaller(r->n - r->got, most);
    if (!arena_claim(&c->in, &call->in, n * 4))
        return STEP_ROOM;
    call->request = (struct request){.op = OP_RESERVE, .lease = call->lease_id};
    if (r->got == 0) {
        call->request.reserve =
            (struct request_reserve){.n = r->n, .arena = call->in.from, .room = n};
    } else {
        call->request.op = OP_TABLE;
        call->request.table = (struct request_table){
            .from = r->table - r->n + r->got, .count = n, .arena = call->in.from};
    }
    return STEP_SEND;
}

static enum step reserve_take(struct pfx *c, struct call *call,
                              const struct wire_completion *answer)
{
    struct reserving *r = &call->res;
    bool first = call->request.op == OP_RESERVE;
    uint32_t n = first ? call->request.reserve.room : call->request.table.count;
    if (first)
        r->table = answer->table.table;
    n = smaller(n, answer->table.n);
    if (n)
        memcpy(call->ids + r->got, c->in_bytes + call->in.from, (size_t)n * 4);
    r->got += n;
    call->n_ids = r->got;
    if (r->got == r->n)
        return STEP_DONE;
    if (n == 0) { /* a group mate has truncated the table meanwhile */
        call->status = PFX_ESTALE;
        return STEP_DONE;
    }
    return STEP_SEND;
}

/* ---- snapshots, administration --------------------------------------------------------- */

int ask_snapshot_reserve(struct pfx *c, uint64_t lease, struct call **out)
{
    return ask_leased(c, OP_SNAPSHOT_RESERVE, lease, out);
}

int ask_snapshot_insert(struct pfx *c, uint64_t lease, uint32_t slot, uint32_t depth, int kind,
                        struct call **out)
{
    int status = check_slot(c, slot);
    if (status)
        return status;
    if (depth == 0)
        return fail(c, PFX_EINVAL, "a snapshot covers at least one token: depth is 0");
    if (kind < PFX_EXACT || kind > PFX_TAIL_SIBLING)
        return fail(c, PFX_EINVAL, "kind is not one of enum pfx_snapshot_kind");
    const struct lease *l = lease_seek(c, lease);
    if (kind != PFX_EXACT && l && l->own && l->session == 0)
        return fail(c, PFX_EINVAL, "a tail or sibling needs a lease with a session");
    status = ask_leased(c, OP_SNAPSHOT_INSERT, lease, out);
    if (status == 0)
        (*out)->request.number =
            (struct request_number){.n = slot, .depth = depth, .kind = (uint32_t)kind};
    return status;
}

static enum step number_take(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    (void)c;
    *call->number = answer->number;
    return STEP_DONE;
}

static enum step slot_take(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    number_take(c, call, answer);
    call->ids = &call->number->slot;
    call->n_ids = 1;
    return STEP_DONE;
}

/* ---- one table ---------------------------------------------------------------------------- */

const struct method methods[OP_COUNT] = {
    [OP_LOOKUP] = {lookup_build, lookup_take, true},
    [OP_FETCH] = {fetch_build, fetch_take, true},
    [OP_TRUNCATE] = {NULL, truncate_take, false},
    [OP_RESERVE] = {reserve_build, reserve_take, false},
    [OP_INSERT] = {insert_build, insert_take, false},
    [OP_SPACE_OPEN] = {space_open_build, space_open_take, false},
    [OP_SPACE_CLOSE] = {NULL, space_close_take, false},
    [OP_EVICT] = {NULL, number_take, false},
    [OP_SNAPSHOT_RESERVE] = {NULL, slot_take, false},
    [OP_SNAPSHOT_SPILL] = {NULL, number_take, false},
};
