/*
 * What shared memory alone answers, also while the daemon is stopped. It cannot say that the daemon
 * is dead, so the control socket is asked, about once a millisecond.
 */
#include "client/client.h"
#include "shm/snapshot_read.h"

#include <stdlib.h>
#include <string.h>

enum { WALKS = 16 }; /* the path is not held, so it may go while it is read */

static int peek_check(struct pfx *c, uint64_t space)
{
    channel_look(c);
    if (c->gone)
        return fail(c, PFX_EGONE, NULL);
    return space_is_open(c, space) ? 0 : fail_space(c, PFX_ENOENT, space);
}

ssize_t pfx_peek(pfx *c, pfx_space space, const uint32_t *tokens, size_t n_tokens)
{
    int status = check_here(c);
    if (status)
        return status;
    const struct pfx_lookup_args args = {
        .size = sizeof args, .space = space, .tokens = tokens, .n_tokens = n_tokens};
    status = check_lookup(c, &args);
    if (status == 0)
        status = peek_check(c, space);
    if (status)
        return status;
    uint32_t bt = c->geometry.layout.block_tokens, longest = lookup_longest(&args);
    const struct index_query query = {.tokens = tokens, .n_tokens = longest};
    struct index_found found = {0};
    if (!index_walk(&c->index, space, &query, longest / bt, &found))
        return fail(c, PFX_EGONE, NULL); /* it is open: so a daemon that stops has closed it */
    return (ssize_t)found.where.depth * bt;
}

/* Leading blocks of the path that are on the device; false if the path is gone. */
static bool peek_resident(struct pfx *c, struct place where, uint32_t *resident)
{
    uint32_t n = where.depth;
    *resident = n;
    if (c->geometry.n_disk_blocks == 0 || n == 0)
        return true; /* what is cached is on the device */
    if (n > c->scratch_ids) {
        uint32_t *more = realloc(c->scratch, (size_t)n * 4);
        if (!more)
            return false;
        c->scratch = more;
        c->scratch_ids = n;
    }
    if (!index_path_ids(&c->index, where, 0, n, c->scratch, NULL))
        return false;
    *resident = 0;
    while (*resident < n && c->scratch[*resident] != NO_PAGE)
        ++*resident;
    return true;
}

/* What a lookup would offer of them; false if the path is gone. */
static bool peek_snapshots(struct pfx *c, const struct pfx_lookup_args *args, struct place where,
                           struct pfx_peeked *out)
{
    const struct snapshot_want want = {
        .session = args->session,
        .multiple = args->snapshot_multiple,
        .states = SNAPSHOT_RESIDENT | (c->index.header->n_tier ? SNAPSHOT_TIERED : 0u),
        .rest = args->tokens + out->matched_tokens,
        .n_rest = out->tail_tokens,
    };
    struct snapshots_found found;
    if (c->geometry.n_slots == 0)
        return true;
    bool there = index_snapshots(&c->index, where, &want, &found);
    out->snapshot_depth = found.resident.depth;
    out->snapshot_tier_depth = found.tiered.depth;
    return there;
}

/* At a place of a walk, which is cut to the multiple; all but the snapshots. */
static bool peek_place(struct pfx *c, const struct pfx_lookup_args *args,
                       const struct index_query *query, struct place *where, struct pfx_peeked *out)
{
    uint32_t bt = c->geometry.layout.block_tokens, resident;
    uint32_t cut = where->depth % (lookup_multiple(c, args->match_multiple) / bt);
    where->depth -= cut;
    uint32_t at = where->depth * bt;
    if (!peek_resident(c, *where, &resident))
        return false;
    *out = (struct pfx_peeked){
        .size = sizeof *out, .matched_tokens = at, .resident_tokens = resident * bt};
    if (!cut && !(args->flags & PFX_NO_TAIL)) {
        uint32_t rest = index_tail_limit(query, at, smaller(bt, (uint32_t)query->n_tokens - at));
        if (rest)
            out->tail_tokens = index_tail_tokens(&c->index, *where, args->tokens + at, rest);
    }
    return true;
}

static int peek_walk(struct pfx *c, const struct pfx_lookup_args *args, struct pfx_peeked *out)
{
    const struct index_query query = {
        .tokens = args->tokens,
        .n_tokens = lookup_longest(args),
        .extras = wire_extras(args->extras),
        .n_extras = args->n_extras,
    };
    uint32_t limit = (uint32_t)query.n_tokens / c->geometry.layout.block_tokens;
    for (int walks = 0; walks < WALKS; walks++) {
        struct index_found found = {0};
        if (!index_walk(&c->index, args->space, &query, limit, &found))
            return PFX_EGONE; /* as above */
        if (!peek_place(c, args, &query, &found.where, out))
            continue;
        /* The last time: none, while the daemon stands still in the middle of a change. */
        if (peek_snapshots(c, args, found.where, out) || walks == WALKS - 1)
            return 0;
    }
    return PFX_EAGAIN;
}

int pfx_peek_full(pfx *c, const struct pfx_lookup_args *args, struct pfx_peeked *out)
{
    int status = check_here(c);
    if (status)
        return status;
    status = check_out(c, out, sizeof *out);
    if (status == 0)
        status = check_lookup(c, args);
    if (status == 0)
        status = peek_check(c, args->space);
    if (status)
        return status;
    if (args->flags & PFX_NO_MATCH || args->n_tokens == 0) {
        *out = (struct pfx_peeked){.size = sizeof *out};
        return 0;
    }
    status = peek_walk(c, args, out);
    return status ? fail_space(c, status, args->space) : 0;
}

/* Both structs have the counters in the order of the one table in shm/stats.h. */
#define SAME_PLACE(name, kind)                                                                     \
    static_assert(offsetof(struct pfx_stats, name) == 8 + offsetof(struct counters, name),         \
                  "prefixd.h has the counter " #name " where stats.h has it");
COUNTERS(SAME_PLACE)
#undef SAME_PLACE
static_assert(sizeof(struct pfx_stats) == 8 + COUNTERS_PUBLIC, "and no other");

int pfx_stats(pfx *c, struct pfx_stats *out)
{
    int status = check_here(c);
    if (status)
        return status;
    if (!out || out->size < sizeof *out)
        return fail(c, PFX_EINVAL, "a result's size is not set, or it is too small");
    channel_look(c);
    if (c->gone)
        return fail(c, PFX_EGONE, NULL);
    struct counters now;
    if (!stats_copy(&c->index.header->stats, &now))
        return fail(c, PFX_EAGAIN, "the counters change faster than they can be read");
    out->size = sizeof *out;
    memcpy((uint8_t *)out + 8, &now, COUNTERS_PUBLIC);
    return 0;
}
