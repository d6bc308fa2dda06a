/* Cutting a query into pieces that fit one record's share of the arena. */
#include "client/client.h"

#include <string.h>

/* Those that touch tokens [from, to): the first, and how many. */
static uint32_t extras_touching(const struct index_query *q, uint64_t from, uint64_t to,
                                size_t *first)
{
    *first = index_extras_from(q, from);
    size_t end = index_extras_from(q, to);
    if (end < q->n_extras && q->extras[end].at < to)
        end++;
    return (uint32_t)(end - *first); /* disjoint, so no more than tokens */
}

static uint64_t token_bytes(uint32_t n)
{
    return ((uint64_t)n * 4 + 7) & ~7ull;
}

static uint64_t piece_bytes(const struct pfx *c)
{
    return smaller(PIECE_BYTES, c->out.bytes / 2 & ~7u);
}

/* Of the extras that touch one block, all but the first start in it: so it has too many if, after
 * one that ends in the block, the one by which it would be too many still starts there. */
bool pieces_fit(const struct pfx *c, const struct index_query *q, uint64_t from)
{
    uint64_t bt = c->geometry.layout.block_tokens;
    for (size_t i = index_extras_from(q, from); i < q->n_extras; i++) {
        const struct wire_extra *x = &q->extras[i];
        uint64_t block = (x->at + x->len - 1) / bt * bt;
        if (x->at >= q->n_tokens || block >= q->n_tokens)
            return true;
        uint32_t n = smaller(bt, q->n_tokens - block);
        size_t most = (piece_bytes(c) - token_bytes(n)) / sizeof *x;
        if (q->n_extras - i > most && q->extras[i + most].at < block + n)
            return false;
    }
    return true;
}

enum step piece_build(struct pfx *c, struct call *call, uint32_t at, uint32_t total,
                      struct piece *piece)
{
    const struct index_query *q = &call->query;
    uint32_t bt = c->geometry.layout.block_tokens;
    uint64_t most = piece_bytes(c);
    uint32_t n = total - at;
    if (n > piece_most(bt))
        n = piece_most(bt);
    if (token_bytes(n) > most)
        n = (uint32_t)(most / 4 / bt * bt);
    size_t first = 0;
    uint32_t n_extras = 0;
    uint64_t bytes = 0;
    for (;;) { /* fewer blocks, until the extras fit as well */
        n_extras = extras_touching(q, at, (uint64_t)at + n, &first);
        bytes = token_bytes(n) + n_extras * sizeof *q->extras;
        if (bytes <= most)
            break;
        if (n <= bt) {
            call->status = PFX_ETOOBIG; /* one block with more extras than a piece holds */
            return STEP_DONE;
        }
        n = (n / bt + 1) / 2 * bt;
    }
    if (n == 0 && total > at) {
        call->status = PFX_ETOOBIG;
        return STEP_DONE;
    }
    if (!arena_claim(&c->out, &call->out, (uint32_t)bytes))
        return STEP_ROOM;
    uint8_t *to = c->out_bytes + call->out.from;
    if (n)
        memcpy(to, q->tokens + at, (size_t)n * 4);
    if (n_extras)
        memcpy(to + token_bytes(n), q->extras + first, n_extras * sizeof *q->extras);
    *piece = (struct piece){
        .arena = call->out.from, .tokens = n, .n_extras = n_extras, .last = at + n == total};
    return STEP_SEND;
}
