#include "tests/client/twin.h"

#include <stdlib.h>
#include <string.h>

static uint32_t below(struct twin *t, uint32_t n)
{
    return rng_below(&t->rng, n);
}

static bool chance(struct twin *t, uint32_t n)
{
    return below(t, n) == 0;
}

static void family_init(struct twin *t, uint32_t f)
{
    struct family *y = &t->family[f];
    for (uint32_t i = 0; i < FAMILY_TOKENS; i++)
        y->tokens[i] = chance(t, 100) ? below(t, 5) : i * 31 + f;
    y->extras[0] = (struct pfx_extra){.at = 5, .len = 20};
    y->extras[1] = (struct pfx_extra){.at = 40, .len = 3, .digest = {(uint8_t)f}};
    y->extras[2] = (struct pfx_extra){.at = 1000, .len = 5000};
    y->n_extras = f % 3 == 0 ? 3 : 0;
}

void twin_open(struct twin *t)
{
    memset(t, 0, sizeof *t);
    t->rng = rng_seeded("twin");
    const char *const options[] = {"--blocks", "40000", "--block-tokens", "16", "--block-bytes",
                                   "64",       NULL};
    host_start(&t->ha, options);
    host_start(&t->hb, options);
    for (uint32_t f = 0; f < FAMILIES; f++)
        family_init(t, f);
    t->a = connect_with(&t->ha, (struct pfx_options){.ring_entries = 8u << below(t, 4),
                                                     .arena_bytes = below(t, 2),
                                                     .spin_us = below(t, 2) ? 1 : 50});
    t->b = connect_with(&t->hb, (struct pfx_options){0});
    t->fd = chance(t, 2) ? pfx_fd(t->a) : -1;
}

static void resume(struct twin *t)
{
    if (t->stopped)
        host_resume(&t->ha);
    t->stopped = false;
}

/* The arrays that a call is given are overwritten as soon as it was submitted. */
static uint32_t borrowed[FAMILY_TOKENS];

static const uint32_t *borrow(const struct family *y, uint32_t n)
{
    memcpy(borrowed, y->tokens, n * sizeof *borrowed);
    return borrowed;
}

/* ---- one call, twice: submit to A; if it was taken, call B ------------------------------- */

static struct expected *expect(struct twin *t, enum twin_kind kind, const struct family *y)
{
    struct expected *e = &t->log[t->submitted % TWIN_LOG];
    *e = (struct expected){.kind = kind, .family = (uint32_t)(y - t->family)};
    e->match.size = sizeof e->match;
    e->insert.size = sizeof e->insert;
    return e;
}

static void try_cancel(struct twin *t, struct expected *e, struct family *y)
{
    int rc = pfx_cancel(t->a, t->submitted);
    if (rc == 0) {
        e->cancelled = true;
        t->cancelled++;
        OK(pfx_release(t->b, y->b));
        y->state = NO_LEASE;
    } else {
        ck_assert_int_eq(rc, PFX_ENOENT);
    }
}

static int step_lookup(struct twin *t, struct family *y, uint32_t n)
{
    struct expected *e = expect(t, TWIN_LOOKUP, y);
    struct pfx_lookup_args args = {
        .size = sizeof args,
        .flags = (chance(t, 5) ? PFX_NO_TAIL : 0) | (chance(t, 10) ? PFX_NO_MATCH : 0) |
                 (chance(t, 10) ? PFX_QUIET : 0),
        .tokens = borrow(y, n),
        .n_tokens = n,
        .extras = y->extras,
        .n_extras = y->n_extras,
        .max_match = chance(t, 4) ? below(t, n + 10) : 0,
        .match_multiple = chance(t, 6) ? below(t, 100) : 0,
    };
    int rc = pfx_submit_lookup(t->a, &args, t->submitted);
    if (rc)
        return rc;
    memset(borrowed, 0xee, sizeof borrowed);
    args.tokens = y->tokens;
    e->status = pfx_lookup(t->b, &args, &e->match);
    OK(e->status);
    y->b = e->match.lease;
    y->table = e->match.n_blocks;
    y->state = ASKED;
    if (chance(t, 6))
        try_cancel(t, e, y);
    return 0;
}

static int step_insert(struct twin *t, struct family *y, uint32_t n)
{
    struct expected *e = expect(t, TWIN_INSERT, y);
    if (chance(t, 2)) /* as much as the table covers, or a little less */
        n = y->table * TWIN_BT < FAMILY_TOKENS ? y->table * TWIN_BT : FAMILY_TOKENS;
    if (n && chance(t, 2))
        n -= below(t, n < 40 ? n : 40);
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = chance(t, 4) ? PFX_FINAL : 0,
                                   .tokens = borrow(y, n),
                                   .n_written = n,
                                   .extras = y->extras,
                                   .n_extras = y->n_extras};
    int rc = pfx_submit_insert(t->a, y->a, &args, t->submitted);
    if (rc)
        return rc;
    memset(borrowed, 0xee, sizeof borrowed);
    static uint32_t canonical[FAMILY_TOKENS];
    args.tokens = y->tokens;
    e->status = pfx_insert(t->b, y->b, &args, chance(t, 2) ? canonical : NULL, &e->insert);
    return 0;
}

static int step_reserve(struct twin *t, struct family *y)
{
    struct expected *e = expect(t, TWIN_RESERVE, y);
    static uint32_t ids[TWIN_BLOCKS];
    e->n_ids = chance(t, 5) ? below(t, 2000) : below(t, 100);
    int rc = pfx_submit_reserve(t->a, y->a, e->n_ids, t->submitted);
    if (rc)
        return rc;
    e->status = pfx_reserve(t->b, y->b, e->n_ids, ids);
    y->table += e->status ? 0 : e->n_ids;
    return 0;
}

static int step_truncate(struct twin *t, struct family *y)
{
    struct expected *e = expect(t, TWIN_TRUNCATE, y);
    uint32_t n = below(t, y->table + 2);
    int rc = pfx_submit_truncate(t->a, y->a, n, t->submitted);
    if (rc)
        return rc;
    e->status = pfx_truncate(t->b, y->b, n);
    y->table = e->status ? y->table : n;
    return 0;
}

static int step_fetch(struct twin *t, struct family *y)
{
    struct expected *e = expect(t, TWIN_FETCH, y);
    int rc = pfx_submit_fetch(t->a, y->a, t->submitted);
    if (rc == 0)
        e->status = pfx_fetch(t->b, y->b, &e->match);
    return rc;
}

static int step_release(struct twin *t, struct family *y)
{
    struct expected *e = expect(t, TWIN_RELEASE, y);
    int rc = pfx_submit_release(t->a, y->a, t->submitted);
    if (rc)
        return rc;
    e->status = pfx_release(t->b, y->b);
    y->state = NO_LEASE;
    return 0;
}

static int step_space(struct twin *t, struct family *y)
{
    expect(t, TWIN_SPACE, y);
    struct pfx_space_desc d = {.size = sizeof d, .adapter_id = 1 + below(t, 5)};
    return pfx_submit_space_open(t->a, &d, t->submitted);
}

/* ---- the stream -------------------------------------------------------------------------- */

static int any_step(struct twin *t, struct family *y)
{
    uint32_t n = chance(t, 3) ? below(t, 200) : below(t, FAMILY_TOKENS);
    if (y->state == NO_LEASE)
        return step_lookup(t, y, n);
    switch (below(t, 16)) {
    case 0:
        return step_space(t, y);
    case 1:
        return step_fetch(t, y);
    case 2:
    case 3:
        return step_truncate(t, y);
    case 4:
    case 5:
        return step_release(t, y);
    case 6:
    case 7:
    case 8:
    case 9:
        return step_reserve(t, y);
    default:
        return step_insert(t, y, n);
    }
}

/* A synchronous call in between sees all that was submitted before it. */
static void same_lookup(struct twin *t, const struct family *y)
{
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .flags = PFX_QUIET,
                                   .tokens = y->tokens,
                                   .n_tokens = 1 + below(t, FAMILY_TOKENS),
                                   .extras = y->extras,
                                   .n_extras = y->n_extras};
    struct pfx_match a = {.size = sizeof a}, b = a;
    OK(pfx_lookup(t->a, &args, &a));
    OK(pfx_lookup(t->b, &args, &b));
    ck_assert_uint_eq(a.matched_tokens, b.matched_tokens);
    ck_assert_uint_eq(a.tail_tokens, b.tail_tokens);
    OK(pfx_release(t->a, a.lease));
    OK(pfx_release(t->b, b.lease));
}

/* Before blocks are evicted both forget everything: recency is not the same on both, as nobody can
 * say whether a cancelled lookup has stamped it. Leases from before go on as stale ones. */
static void make_room(struct twin *t)
{
    struct pfx_stats b = {.size = sizeof b};
    OK(pfx_stats(t->b, &b));
    if (b.blocks_free >= TWIN_BLOCKS / 4 || b.blocks_idle == 0)
        return;
    resume(t);
    OK(pfx_flush(t->a, 0));
    OK(pfx_flush(t->b, 0));
    t->flushes++;
}

void twin_step(struct twin *t)
{
    make_room(t);
    struct family *y = &t->family[below(t, FAMILIES)];
    if (chance(t, 150)) {
        if (!t->stopped)
            host_pause(&t->ha);
        t->stopped = true;
    } else if (chance(t, 30)) {
        resume(t);
    }
    if (chance(t, 5))
        y->tokens[below(t, FAMILY_TOKENS)] ^= below(t, 3); /* diverge */
    if (y->state == ASKED) {
        twin_take(t, 1 + below(t, 20), t->stopped ? 0 : (int)below(t, 3));
        return;
    }
    int rc = any_step(t, y);
    if (rc == 0) {
        t->submitted++;
        unsigned backlog = (unsigned)(t->submitted - t->taken);
        if (backlog > t->largest_backlog)
            t->largest_backlog = backlog;
    } else {
        ck_assert_int_eq(rc, PFX_EAGAIN);
        t->full++;
        resume(t);
        twin_take(t, 1 + below(t, 20), 10);
    }
    if (chance(t, 3))
        twin_take(t, 1 + below(t, 20), 0);
    if (!t->stopped && chance(t, 100))
        same_lookup(t, y);
}

static void same_state(struct twin *t)
{
    struct pfx_stats a = {.size = sizeof a}, b = {.size = sizeof b};
    OK(pfx_ping(t->a));
    OK(pfx_ping(t->b));
    OK(pfx_stats(t->a, &a));
    OK(pfx_stats(t->b, &b));
    ck_assert_uint_eq(a.inserted_blocks, b.inserted_blocks);
    ck_assert_uint_eq(a.duplicate_blocks, b.duplicate_blocks);
    ck_assert_uint_eq(a.evicted_blocks + b.evicted_blocks, 0);
    ck_assert_uint_eq(a.blocks_free, b.blocks_free);
    ck_assert_uint_eq(a.blocks_private, b.blocks_private);
    ck_assert_uint_eq(a.blocks_pinned, b.blocks_pinned);
    ck_assert_uint_eq(a.leases, b.leases);
    audit_clean(&t->ha);
    audit_clean(&t->hb);
}

void twin_close(struct twin *t)
{
    resume(t);
    uint64_t until = now_ms() + 20000 * SLOW;
    for (;;) {
        while (t->taken < t->submitted && t->log[t->taken % TWIN_LOG].cancelled)
            t->taken++;
        if (t->taken == t->submitted)
            break;
        ck_assert_msg(now_ms() < until, "completion %llu of %llu never came",
                      (unsigned long long)t->taken, (unsigned long long)t->submitted);
        twin_take(t, 32, 100);
    }
    completion_none(t->a);
    same_state(t);
    pfx_close(t->a);
    pfx_close(t->b);
    host_stop(&t->ha);
    host_stop(&t->hb);
}
