/*
 * Lookup: the prefix is found here, by walking the shared index; the daemon gets the place, and one
 * block of tokens for the tail, whatever the prompt's length.
 *
 *   1  walk; cut the match to the multiple that was asked for
 *   2  LOOKUP: the daemon checks the place, holds it and picks the tail
 *      RETRY: it is gone; from 1 again, and after FAST_TRIES, or if the walk gave up, LOOKUP_SLOW:
 *      all tokens, a piece a record, the path so far being held meanwhile (MORE)
 *   3  read the ids off the path that is now held: nothing can move them any more. They are never
 *      taken from the walk, because an ancestor's page may have gone to disk and come back under
 *      an unchanged node.
 */
#include "client/client.h"
#include "shm/tokens.h"

#include <string.h>

enum {
    FAST_TRIES = 3,
    ALL_TRIES = 16, /* a flush in the middle of a slow lookup, a place that is gone: start anew */
};

static_assert(RF_FETCH == PFX_FETCH && RF_NO_MATCH == PFX_NO_MATCH && RF_QUIET == PFX_QUIET,
              "flags that travel as they are");
static_assert(NO_PAGE == PFX_NO_BLOCK && NO_DISK == PFX_NO_DISK && NO_SLOT == PFX_NO_SLOT,
              "ids that travel as they are");
static_assert(sizeof(struct pfx_extra) == sizeof(struct wire_extra) &&
                  offsetof(struct pfx_extra, digest) == offsetof(struct wire_extra, digest),
              "extras travel as they are");

uint32_t lookup_longest(const struct pfx_lookup_args *args)
{
    size_t n = args->n_tokens;
    if (args->max_match == 0)
        return n ? (uint32_t)n - 1 : 0;
    return smaller(args->max_match, n);
}

uint32_t lookup_multiple(const struct pfx *c, uint32_t match_multiple)
{
    uint64_t bt = c->geometry.layout.block_tokens;
    if (match_multiple == 0)
        return (uint32_t)bt;
    uint64_t a = bt, b = match_multiple, product = a * b;
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    uint64_t common = product / a;
    /* Beyond 2^32 no match reaches it anyway. */
    return (uint32_t)(common <= UINT32_MAX ? common : UINT32_MAX / bt * bt);
}

int ask_lookup(struct pfx *c, const struct pfx_lookup_args *args, struct call **out)
{
    int status = check_lookup(c, args);
    if (status == 0)
        status = ask_simple(c, OP_LOOKUP, out);
    if (status)
        return status;
    struct call *call = *out;
    call->look = (struct looking){
        .space = args->space,
        .session = args->session,
        .flags = args->flags,
        .n_tokens = (uint32_t)args->n_tokens,
        .longest = lookup_longest(args),
        .multiple = lookup_multiple(c, args->match_multiple),
        .snapshot_multiple = args->snapshot_multiple,
        .fresh = lease_new(c),
    };
    if (!call->look.fresh) {
        call_free(c, call);
        return fail(c, PFX_EAGAIN, "there is no memory for another lease");
    }
    if (args->n_tokens == 0)
        call->look.flags |= PFX_NO_MATCH;
    if (call->look.flags & PFX_NO_MATCH)
        return 0;
    call->query = (struct index_query){
        .tokens = args->tokens,
        .n_tokens = call->look.longest,
        .extras = wire_extras(args->extras),
        .n_extras = args->n_extras,
    };
    return 0;
}

/* ---- 2: the record ---------------------------------------------------------------- */

static enum step slow_build(struct pfx *c, struct call *call)
{
    struct looking *k = &call->look;
    struct piece piece;
    enum step step = piece_build(c, call, k->at, k->longest, &piece);
    if (step != STEP_SEND)
        return step;
    uint32_t flags = k->flags & (PFX_FETCH | PFX_QUIET);
    if (k->flags & PFX_NO_TAIL)
        flags |= RF_NO_TAIL;
    if (piece.last)
        flags |= RF_LAST;
    k->piece = piece.tokens;
    call->more = !piece.last;
    call->request = (struct request){
        .op = OP_LOOKUP_SLOW,
        .flags = (uint16_t)flags,
        .lease = k->opening,
        .slow = {.space = k->space,
                 .session = k->session,
                 .n_tokens = k->n_tokens,
                 .max_match = k->longest,
                 .multiple = k->multiple,
                 .snapshot_multiple = k->snapshot_multiple,
                 .arena = piece.arena,
                 .piece = piece.tokens,
                 .n_extras = piece.n_extras},
    };
    return STEP_SEND;
}

/* Tokens after the match that may be compared for a tail. */
static uint32_t rest_after(const struct pfx *c, const struct call *call, uint32_t depth)
{
    const struct looking *k = &call->look;
    uint32_t bt = c->geometry.layout.block_tokens, from = depth * bt;
    if (k->flags & (PFX_NO_TAIL | PFX_NO_MATCH))
        return 0;
    return index_tail_limit(&call->query, from, smaller(bt, k->longest - from));
}

static enum step fast_build(struct pfx *c, struct call *call)
{
    struct looking *k = &call->look;
    uint32_t bt = c->geometry.layout.block_tokens, rest = 0;
    struct index_found found = {0};
    if (!(k->flags & PFX_NO_MATCH)) {
        bool there = index_walk(&c->index, k->space, &call->query, k->longest / bt, &found);
        if (!there || found.ask) { /* no such space: or its daemon stops, which closes them all */
            k->slow = true;
            return slow_build(c, call);
        }
        uint32_t cut = found.where.depth % (k->multiple / bt);
        found.where.depth -= cut;
        rest = cut ? 0 : rest_after(c, call, found.where.depth);
    }
    if (!arena_claim(&c->out, &call->out, rest * 4))
        return STEP_ROOM;
    if (rest)
        memcpy(c->out_bytes + call->out.from, call->query.tokens + (size_t)found.where.depth * bt,
               (size_t)rest * 4);
    call->request = (struct request){
        .op = OP_LOOKUP,
        .flags = (uint16_t)(k->flags & (PFX_FETCH | PFX_NO_MATCH | PFX_QUIET)),
        .lookup = {.space = k->space,
                   .session = k->session,
                   .where = found.where,
                   .n_tokens = k->n_tokens,
                   .snapshot_multiple = k->snapshot_multiple,
                   .arena = call->out.from,
                   .rest = (uint16_t)rest},
    };
    return STEP_SEND;
}

enum step lookup_build(struct pfx *c, struct call *call)
{
    struct looking *k = &call->look;
    call->more = false;
    if (k->granted) {
        build_where(call, k->opening);
        return STEP_SEND;
    }
    return k->slow ? slow_build(c, call) : fast_build(c, call);
}

/* ---- 3: the answer ----------------------------------------------------------------- */

/* Ids of the path down to the place, and the match as the caller sees it. */
static bool match_read(struct pfx *c, struct lease *l, const struct completion_lookup *got,
                       struct pfx_match *m)
{
    bool disks = c->geometry.n_disk_blocks > 0;
    uint32_t n = got->where.depth, resident = 0;
    if (n && !index_path_ids(&c->index, got->where, 0, n, l->pages, disks ? l->disks : NULL))
        return false;
    while (resident < n && l->pages[resident] != NO_PAGE)
        resident++;
    *m = (struct pfx_match){
        .size = sizeof *m,
        .matched_tokens = n * c->geometry.layout.block_tokens,
        .lease = l->id,
        .blocks = l->pages,
        .disk = disks ? l->disks : NULL,
        .n_blocks = n,
        .n_resident = resident,
        .tail_block = got->tail_tokens ? got->tail_block : PFX_NO_BLOCK,
        .tail_tokens = got->tail_tokens,
        .snapshot = {.slot = got->slot,
                     .depth = got->snapshot_depth,
                     .tier_key = got->tier_key,
                     .tier_depth = got->tier_depth,
                     .is_tail = got->is_tail},
    };
    return true;
}

static enum step give_up(struct pfx *c, struct call *call, int status)
{
    call->status = status;
    if (call->look.opening)
        call_give_back(c, call->look.opening);
    return STEP_DONE;
}

/* Granted, at this place; the lease becomes ours once its ids are read. */
static enum step lookup_granted(struct pfx *c, struct call *call)
{
    struct looking *k = &call->look;
    struct lease *l = k->fresh;
    l->id = k->opening;
    l->session = k->session;
    l->own = l->keep = true;
    take_place(l, k->got.where);
    if (!lease_room(l, k->got.where.depth, c->geometry.n_disk_blocks > 0))
        return give_up(c, call, PFX_EAGAIN);
    if (!match_read(c, l, &k->got, call->match))
        return ++k->tries < ALL_TRIES ? STEP_SEND : give_up(c, call, PFX_EAGAIN);
    if (!lease_add(c, l))
        return give_up(c, call, PFX_EAGAIN);
    l->matched = k->got.where.depth;
    k->fresh = NULL;
    call->lease_id = l->id;
    call->status = 0;
    return STEP_DONE;
}

/* A flush came between two pieces: what was held is stale, so begin anew. */
static enum step slow_failed(struct pfx *c, struct call *call, int status)
{
    struct looking *k = &call->look;
    if (status != PFX_ESTALE || !k->opening || ++k->tries >= ALL_TRIES)
        return give_up(c, call, status);
    call_give_back(c, k->opening);
    k->opening = 0;
    k->granted = false;
    k->at = 0;
    return STEP_SEND;
}

enum step lookup_take(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    struct looking *k = &call->look;
    if (answer->status < 0)
        return slow_failed(c, call, answer->status);
    if (call->request.op == OP_TABLE) {
        k->got.where = answer->table.where;
        return lookup_granted(c, call);
    }
    switch (answer->status) {
    case ANSWER_RETRY: /* if a slow one: a flush came between, and its lease is gone */
        k->slow = ++k->tries >= FAST_TRIES;
        k->opening = 0;
        k->at = 0;
        return k->tries < ALL_TRIES ? STEP_SEND : give_up(c, call, PFX_EAGAIN);
    case ANSWER_MORE:
        k->opening = answer->lease;
        k->at += k->piece;
        return STEP_SEND;
    default:
        k->opening = answer->lease;
        k->granted = true;
        k->got = answer->lookup;
        return lookup_granted(c, call);
    }
}

/* ---- fetch --------------------------------------------------------------------------- */

enum step fetch_build(struct pfx *c, struct call *call)
{
    (void)c;
    if (call->look.granted)
        build_where(call, call->lease_id);
    else
        call->request = (struct request){.op = OP_FETCH, .lease = call->lease_id};
    return STEP_SEND;
}

/* The same answer as a lookup's, for a lease that is there. The ids are read into the arrays that
 * the lookup handed out: the match can only have become shorter. */
enum step fetch_take(struct pfx *c, struct call *call, const struct wire_completion *answer)
{
    struct lease *l = call->lease;
    struct looking *k = &call->look;
    if (answer->status < 0 && (answer->status != PFX_EIO || k->granted))
        return STEP_DONE;
    if (!k->granted) {
        k->granted = true;
        k->got = answer->lookup;
        k->outcome = answer->status;
    } else { /* its place had moved: where it is now, which may be deeper by its inserts */
        k->got.where = answer->table.where;
        k->got.where.depth = smaller(k->got.where.depth, answer->table.matched);
    }
    if (!lease_room(l, k->got.where.depth, c->geometry.n_disk_blocks > 0)) {
        call->status = PFX_EAGAIN;
        return STEP_DONE;
    }
    if (!match_read(c, l, &k->got, call->match)) {
        call->status = PFX_EAGAIN;
        return ++k->tries < ALL_TRIES ? STEP_SEND : STEP_DONE;
    }
    call->status = k->outcome;
    l->keep = true;
    l->matched = k->got.where.depth;
    return STEP_DONE;
}
