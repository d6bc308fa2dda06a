/*
 * Insert: the tokens that the lease already holds never travel. They are compared here with the
 * held path; what follows goes to the daemon in pieces.
 *
 *   1  where does the lease hold? Known from its lookup or last insert; else TABLE
 *   2  do the caller's tokens agree with the path down to there? No: PFX_ECONFLICT, nothing sent
 *      (with group mates, who may have truncated the lease: not before TABLE has been asked)
 *   3  INSERT with a piece, the last one with RF_LAST
 *      MORE: it is in, the next one. RETRY: a group mate has moved the lease: from 2 again
 *   4  read the canonical ids off the path
 */
#include "client/client.h"

enum { ALL_TRIES = 64 };

int ask_insert(struct pfx *c, uint64_t lease, const struct pfx_insert_args *args, struct call **out)
{
    int status = check_insert(c, args);
    if (status == 0)
        status = ask_leased(c, OP_INSERT, lease, out);
    if (status)
        return status;
    (*out)->ins.final = args->flags & PFX_FINAL;
    (*out)->query = (struct index_query){
        .tokens = args->tokens,
        .n_tokens = args->n_written,
        .extras = wire_extras(args->extras),
        .n_extras = args->n_extras,
    };
    return 0;
}

static enum step insert_piece(struct pfx *c, struct call *call)
{
    struct inserting *i = &call->ins;
    struct place where = call->lease->place;
    uint64_t bt = c->geometry.layout.block_tokens, held = where.depth * bt;
    uint32_t total = (uint32_t)call->query.n_tokens;
    uint32_t at = total > held ? (uint32_t)held : total;
    struct piece piece;
    enum step step = piece_build(c, call, at, total, &piece);
    if (step != STEP_SEND)
        return step;
    bool last = piece.last || i->short_table;
    call->more = !last;
    i->until = where.depth + (uint32_t)(piece.tokens / bt);
    call->request = (struct request){
        .op = OP_INSERT,
        .flags = (uint16_t)(last ? RF_LAST | (i->final ? RF_FINAL : 0) : 0),
        .lease = call->lease_id,
        .insert = {.where = where,
                   .arena = piece.arena,
                   .piece = piece.tokens,
                   .n_extras = piece.n_extras,
                   .n_written = total},
    };
    return STEP_SEND;
}

enum step insert_build(struct pfx *c, struct call *call)
{
    struct inserting *i = &call->ins;
    struct lease *l = call->lease;
    if (l->known && !i->done && !i->agreed) {
        struct index_query front = call->query;
        uint64_t held = (uint64_t)l->place.depth * c->geometry.layout.block_tokens;
        front.n_tokens = smaller(front.n_tokens, held);
        int agrees = front.n_tokens ? index_path_agrees(&c->index, l->place, &front) : 1;
        if (agrees == 0 && (!c->has_mates || i->asked)) {
            call->status = PFX_ECONFLICT;
            return STEP_DONE;
        }
        if (agrees > 0 && !pieces_fit(c, &call->query, held)) { /* before the first is in */
            call->status = PFX_ETOOBIG;
            return STEP_DONE;
        }
        i->agreed = agrees > 0;
        l->known = agrees > 0;
    }
    if (l->known && !i->done)
        return insert_piece(c, call);
    if (++i->tries > ALL_TRIES) {
        call->status = PFX_EAGAIN;
        return STEP_DONE;
    }
    build_where(call, call->lease_id);
    call->more = !i->done;
    return STEP_SEND;
}

/* All is in. The ids count because the lease holds the path. */
static enum step insert_ids(struct pfx *c, struct call *call)
{
    struct place where = call->lease->place;
    uint32_t n = smaller(call->query.n_tokens / c->geometry.layout.block_tokens, where.depth);
    *call->insert = call->ins.total;
    call->status = 0;
    if (!call_ids(call, n)) {
        call->status = PFX_EAGAIN;
        return STEP_DONE;
    }
    if (!call->ids || n == 0)
        return STEP_DONE;
    if (!index_path_ids(&c->index, where, 0, n, call->ids, NULL))
        return STEP_SEND; /* the place was merged away: ask where it is */
    call->n_ids = n;
    return STEP_DONE;
}

enum step insert_take(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    struct inserting *i = &call->ins;
    if (call->request.op == OP_TABLE) {
        i->asked = true;
        take_place(call->lease, answer->table.where);
        return i->done ? insert_ids(c, call) : STEP_SEND;
    }
    take_place(call->lease, answer->insert.where);
    if (answer->status == ANSWER_RETRY) {
        i->agreed = false;
        if (++i->tries <= ALL_TRIES)
            return STEP_SEND;
        call->status = PFX_EAGAIN;
        return STEP_DONE;
    }
    i->total.size = sizeof i->total;
    i->total.cached_blocks = answer->insert.cached;
    i->total.new_blocks += answer->insert.created;
    i->total.duplicate_blocks = answer->insert.duplicates; /* of the lease, not of this piece */
    if (answer->status == ANSWER_MORE) {
        i->short_table = answer->insert.where.depth < i->until;
        return STEP_SEND;
    }
    i->done = true;
    return insert_ids(c, call);
}
