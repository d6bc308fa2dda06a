/* The records that steps of fuzz_requests.c stand for. */
#include "tests/fuzz/fuzz_requests.h"

#include <string.h>

/* ---- names that are alive ------------------------------------------------------------------- */

static struct live_lease *lease_named(struct scene *s, uint32_t n)
{
    return &s->lease[n % LIVE_LEASES];
}

static const struct live_lease *lease_of(const struct scene *s, uint64_t id)
{
    for (int i = 0; i < LIVE_LEASES; i++)
        if (s->lease[i].id == id)
            return &s->lease[i];
    return &s->lease[0];
}

static uint64_t lease_id(struct scene *s, const struct step *p)
{
    uint32_t n = p->lease % (LIVE_LEASES + 6);
    uint64_t live = lease_named(s, p->lease)->id;
    switch (n) {
    case LIVE_LEASES:
        return s->honest.lease;
    case LIVE_LEASES + 1:
        return 0;
    case LIVE_LEASES + 2:
        return live + (1ull << 32);
    case LIVE_LEASES + 3:
        return live ^ 1;
    case LIVE_LEASES + 4:
        return (uint64_t)p->d << 32 | p->c;
    default:
        return live;
    }
}

static uint64_t space_named(struct scene *s, uint32_t n)
{
    n %= LIVE_SPACES + 3;
    return n < LIVE_SPACES ? s->space[n] : n == LIVE_SPACES ? s->honest.space : n + 1000;
}

/* Tokens of a pattern: words of its bits, so that most of them begin alike. */
static uint32_t token_at(uint32_t pattern, uint32_t i)
{
    return (pattern >> (i * 5 / 32 % 32) & 1) + (pattern >> 28);
}

static uint32_t make_tokens(uint32_t *to, uint32_t pattern, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = token_at(pattern, first + i);
    return n;
}

/* ---- records ----------------------------------------------------------------------------------
 */

enum { TOKENS_MOST = 1024, EXTRAS_MOST = 12 };

/* Some that are none: without length, too far, over each other, in no order. */
static void spoil_extras(struct wire_extra *extra, uint32_t n, const struct step *p)
{
    struct wire_extra *one = &extra[p->c % n];
    switch (p->c >> 8 & 3) {
    case 0:
        one->len = 0;
        break;
    case 1:
        one->at = (uint64_t)p->d << 32;
        break;
    case 2:
        one->len = UINT64_MAX - p->d % 4;
        break;
    default:
        *one = extra[0];
        extra[0].at += p->d >> 4 & 1;
        break;
    }
}

/* A piece in the arena at p->at, extras after it. Returns how many of these. */
static uint32_t put_piece(struct scene *s, struct guest *g, const struct step *p, uint32_t first,
                          uint32_t n)
{
    uint32_t tokens[TOKENS_MOST];
    struct wire_extra extra[EXTRAS_MOST] = {0};
    uint32_t extras = p->flags >> 12 & 3, bt = s->bt;
    uint64_t at = first + (p->d & 0x1f), bytes = (n * 4ull + 7) & ~7ull;
    uint8_t *to = g->w.arena + p->at % 64 * 8;
    make_tokens(tokens, p->pattern, first, n);
    memcpy(to, tokens, n * 4);
    extras = extras == 3 ? (p->d >> 8 & 15) % EXTRAS_MOST : extras;
    for (uint32_t i = 0; i < extras; i++) {
        uint64_t len = 1 + (p->d >> (16 + i % 4) & 7) * (i % 2 ? 1 : bt);
        extra[i] = (struct wire_extra){.at = at, .len = len, .digest = {(uint8_t)(p->d >> 24 & 3)}};
        at += len + (p->d >> 20 & 3);
    }
    if (p->flags & 0x8000 && extras)
        spoil_extras(extra, extras, p);
    memcpy(to + bytes, extra, extras * sizeof extra[0]);
    return extras;
}

uint32_t step_length(const struct step *p)
{
    uint32_t n = p->n % (TOKENS_MOST + 1);
    return p->flags & 0x4000 ? n : n % 96;
}

static struct request lookup(struct scene *s, struct guest *g, const struct step *p)
{
    uint32_t tokens[TOKENS_MOST], n = make_tokens(tokens, p->pattern, 0, step_length(p)),
                                  bt = s->bt;
    struct request rq = {.op = OP_LOOKUP, .flags = p->flags & (RF_FETCH | RF_QUIET | RF_NO_MATCH)};
    struct index_query q = {.tokens = tokens, .n_tokens = n};
    struct index_found found = {0};
    rq.lookup = (struct request_lookup){.space = space_named(s, p->what),
                                        .session = p->c % 4,
                                        .n_tokens = n,
                                        .arena = p->at % 64 * 8,
                                        .snapshot_multiple = p->c >> 8 & 7};
    if (!index_walk(&g->w.view, rq.lookup.space, &q, n / bt, &found))
        return rq;
    rq.lookup.where = found.where;
    uint32_t cut = p->d & 3;
    rq.lookup.where.depth -= cut < found.where.depth ? cut : 0;
    uint32_t matched = rq.lookup.where.depth * bt, rest = n - matched < bt ? n - matched : bt;
    memcpy(g->w.arena + rq.lookup.arena, tokens + matched, rest * 4);
    rq.lookup.rest = (uint16_t)rest;
    return rq;
}

static struct request lookup_slow(struct scene *s, struct guest *g, const struct step *p)
{
    const struct live_lease *l = lease_named(s, p->lease);
    bool goes_on = p->flags & 0x400 && l->id;
    uint32_t n = step_length(p), first = goes_on ? l->where.depth * s->bt : 0;
    struct request rq = {.op = OP_LOOKUP_SLOW, .lease = goes_on ? l->id : 0};
    rq.flags = p->flags & (RF_FETCH | RF_QUIET | RF_LAST | RF_NO_TAIL);
    if (!(rq.flags & RF_LAST))
        n -= n % s->bt;
    rq.slow = (struct request_lookup_slow){.space = space_named(s, p->what),
                                           .session = p->c % 4,
                                           .n_tokens = first + n + (p->c >> 4 & 63),
                                           .max_match = first + n + (p->c >> 4 & 63) / 2,
                                           .multiple = s->bt * (1 + (p->c >> 16 & 3)),
                                           .snapshot_multiple = p->c >> 8 & 7,
                                           .arena = p->at % 64 * 8,
                                           .piece = n};
    rq.slow.n_extras = put_piece(s, g, p, first, n);
    return rq;
}

static struct request insert(struct scene *s, struct guest *g, const struct step *p)
{
    const struct live_lease *l = lease_named(s, p->lease);
    uint32_t n = step_length(p), first = l->where.depth * s->bt;
    struct place where = l->where;
    struct request rq = {.op = OP_INSERT, .lease = lease_id(s, p)};
    if ((p->d & 0x30) == 0x30) /* somewhere else */
        where.depth += (p->d >> 6 & 3) - 1;
    if ((p->d & 0xf00) == 0xf00)
        where = lease_named(s, p->d >> 12)->where;
    rq.flags = p->flags & (RF_LAST | RF_FINAL);
    if (p->flags & 0x800 && l->table * s->bt > first) /* to the end of the table, or near it */
        n = l->table * s->bt - first - p->c % (s->bt + 1);
    n = n < TOKENS_MOST ? n : TOKENS_MOST;
    if (!(rq.flags & RF_LAST))
        n -= n % s->bt;
    rq.insert = (struct request_insert){.where = where,
                                        .arena = p->at % 64 * 8,
                                        .piece = n,
                                        .n_extras = put_piece(s, g, p, first, n),
                                        .n_written = p->c % 3 ? 0 : p->c};
    return rq;
}

static struct request garbage(struct scene *s, const struct step *p)
{
    struct request rq = {.op = p->what, .flags = p->flags, .lease = lease_id(s, p)};
    rq.raw[0] = (uint64_t)p->c << 32 | p->d;
    rq.raw[1] = (uint64_t)p->pattern << 32 | p->n;
    rq.raw[2] = (uint64_t)p->at << 32 | p->d;
    rq.raw[3] = p->c;
    rq.raw[4] = (uint64_t)p->n << 32 | p->at;
    rq.raw[5] = p->d % 5 ? 0 : rq.raw[0];
    return rq;
}

struct request step_record(struct scene *s, struct guest *g, const struct step *p)
{
    const struct live_lease *l = lease_named(s, p->lease);
    struct request rq = {.op = p->op, .lease = lease_id(s, p)};
    if (p->op >= OP_COUNT)
        return garbage(s, p);
    switch (p->op) {
    case OP_LOOKUP:
        return lookup(s, g, p);
    case OP_LOOKUP_SLOW:
        return lookup_slow(s, g, p);
    case OP_INSERT:
        return insert(s, g, p);
    case OP_CANCEL:
        rq.number.n = p->c % 3 ? l->tag : p->d;
        break;
    case OP_TRUNCATE:
        rq.number.n = p->n % (l->table + 2);
        break;
    case OP_RESERVE:
        rq.reserve = (struct request_reserve){
            .n = p->n % (p->flags & 0x4000 ? 300 : 12), .arena = p->at % 64 * 8, .room = p->c % 16};
        break;
    case OP_TABLE:
        rq.table =
            (struct request_table){.from = p->n % 8, .count = p->c % 64, .arena = p->at % 64 * 8};
        break;
    case OP_SPACE_OPEN:
        rq.lease = 0;
        rq.space = (struct request_space){.adapter_id = p->n % 3,
                                          .adapter_generation = p->c % 2,
                                          .arena = p->at % 64 * 8,
                                          .tenant_len = p->d % 4};
        memset(g->w.arena + rq.space.arena, 'a', rq.space.tenant_len);
        break;
    case OP_SPACE_CLOSE:
    case OP_FLUSH:
        rq.lease = 0;
        rq.space.space = p->c % 16 == 15 ? UINT64_MAX : space_named(s, p->what);
        break;
    case OP_EVICT:
        rq.number.n = p->n % 2 ? p->n % 16 : p->d;
        break;
    case OP_SNAPSHOT_INSERT:
    case OP_SNAPSHOT_CANCEL:
        rq.number.n = s->slot[p->what % LIVE_SLOTS];
        if (p->lease < LIVE_LEASES) { /* most slots are given back where they were taken */
            l = lease_of(s, s->slot_lease[p->what % LIVE_SLOTS]);
            rq.lease = l->id;
        }
        rq.number.depth = p->n % 4 ? l->where.depth * s->bt + p->c % s->bt : p->c % 512;
        rq.number.kind = p->d % 4;
        if (p->op == OP_SNAPSHOT_CANCEL)
            rq.number.depth = rq.number.kind = 0;
        break;
    case OP_SNAPSHOT_SPILL:
        rq.lease = 0;
        rq.number.n = p->n % 4 ? 0 : p->c;
        break;
    case OP_SNAPSHOT_FORGET:
        rq.number.n = p->c % 8 ? s->key[p->what % LIVE_KEYS] : p->d;
        break;
    default:
        break;
    }
    return rq;
}
