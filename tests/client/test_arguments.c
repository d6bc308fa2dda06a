/*
 * Every argument of every call out of range: the header's error, nothing sent, nothing changed, and
 * PFX_EINVAL before any other error. (Structs: test_structs.c; pfx_open: test_open.c; no
 * connection, or a dead one: test_no_connection.c.)
 */
#include "tests/client/fixture.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { UNKNOWN = 12345 };
static const uint64_t TOO_MANY = 1ull << 32; /* tokens; a sequence has fewer */

static struct pfx_match match_empty(void)
{
    return (struct pfx_match){.size = sizeof(struct pfx_match)};
}

static struct pfx_insert_args insert_args(const struct seq *s)
{
    return (struct pfx_insert_args){
        .size = sizeof(struct pfx_insert_args), .tokens = s->at, .n_written = s->n};
}

/* ---- lookup, peek ------------------------------------------------------------------------ */

START_TEST(lookup_arguments)
{
    struct fixture f;
    fixture_open(&f);
    const struct pfx_lookup_args right = lookup_args(&f.w, &f.tokens);
    static const struct pfx_extra overlap[2] = {{.at = 0, .len = 2}, {.at = 1, .len = 2}};
    const struct {
        const char *what;
        int want;
        struct pfx_lookup_args args;
    } rows[] = {
        {"no tokens", PFX_EINVAL, {.n_tokens = 1}},
        {"no tokens, many", PFX_EINVAL, {.n_tokens = SIZE_MAX}},
        {"2^32 and no tokens", PFX_EINVAL, {.n_tokens = TOO_MANY}},
        {"2^32", PFX_ETOOBIG, {.tokens = right.tokens, .n_tokens = TOO_MANY}},
        {"2^64 - 1", PFX_ETOOBIG, {.tokens = right.tokens, .n_tokens = SIZE_MAX}},
        {"2^32, unused",
         PFX_ETOOBIG,
         {.tokens = right.tokens, .n_tokens = TOO_MANY, .flags = PFX_NO_MATCH}},
        {"2^32, overlap",
         PFX_EINVAL,
         {.tokens = right.tokens, .n_tokens = TOO_MANY, .extras = overlap, .n_extras = 2}},
        {"overlap, unknown space",
         PFX_EINVAL,
         {.space = UNKNOWN,
          .tokens = right.tokens,
          .n_tokens = 4,
          .extras = overlap,
          .n_extras = 2}},
        {"flags, unknown space", PFX_EINVAL, {.space = UNKNOWN, .flags = 16}},
        {"no tokens, unknown space", PFX_EINVAL, {.space = UNKNOWN, .n_tokens = 3}},
        {"extras without tokens", PFX_EINVAL, {.n_extras = 1}},
        {"overlap without tokens", PFX_EINVAL, {.extras = overlap, .n_extras = 2}},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct pfx_lookup_args args = rows[i].args;
        struct pfx_match m = match_empty(), none = m;
        struct pfx_peeked p = {.size = sizeof p};
        args.size = sizeof args;
        struct still before = still_begin(&f.w);
        status_is(pfx_lookup(f.c, &args, &m), rows[i].want, rows[i].what);
        ck_assert_mem_eq(&m, &none, sizeof m);
        status_is(pfx_submit_lookup(f.c, &args, 9), rows[i].want, rows[i].what);
        status_is(pfx_peek_full(f.c, &args, &p), rows[i].want, rows[i].what);
        still_end(&f.w, &before, rows[i].what);
    }
    fixture_close(&f);
}
END_TEST

START_TEST(lookup_without_arguments)
{
    struct fixture f;
    fixture_open(&f);
    const struct pfx_lookup_args right = lookup_args(&f.w, &f.tokens);
    struct pfx_match m = match_empty();
    REFUSED(&f.w, PFX_EINVAL, pfx_lookup(f.c, NULL, &m));
    REFUSED(&f.w, PFX_EINVAL, pfx_lookup(f.c, &right, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_lookup(f.c, NULL, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_lookup(f.c, NULL, 9));
    fixture_close(&f);
}
END_TEST

START_TEST(lookup_unknown_space)
{
    struct fixture f;
    fixture_open(&f);
    const pfx_space unknown[] = {UNKNOWN, 1ull << 32, f.space + (1ull << 32), UINT32_MAX,
                                 PFX_ALL_SPACES};
    for (size_t i = 0; i < LENGTH(unknown); i++) {
        struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
        struct pfx_match m = match_empty(), none = m;
        struct pfx_peeked p = {.size = sizeof p};
        args.space = unknown[i];
        FAILS(&f.w, PFX_ENOENT, pfx_lookup(f.c, &args, &m));
        ck_assert_mem_eq(&m, &none, sizeof m);
        FAILS(&f.w, PFX_ENOENT, pfx_peek(f.c, unknown[i], f.tokens.at, f.tokens.n));
        FAILS(&f.w, PFX_ENOENT, pfx_peek_full(f.c, &args, &p));
        args.flags = PFX_NO_MATCH;
        FAILS(&f.w, PFX_ENOENT, pfx_lookup(f.c, &args, &m));
        args.flags = args.n_tokens = 0;
        FAILS(&f.w, PFX_ENOENT, pfx_lookup(f.c, &args, &m));
    }
    fixture_close(&f);
}
END_TEST

START_TEST(peek_arguments)
{
    struct fixture f;
    fixture_open(&f);
    const struct pfx_lookup_args right = lookup_args(&f.w, &f.tokens);
    struct pfx_peeked p = {.size = sizeof p};
    REFUSED(&f.w, PFX_EINVAL, pfx_peek(f.c, 0, NULL, 1));
    REFUSED(&f.w, PFX_EINVAL, pfx_peek(f.c, 0, NULL, TOO_MANY));
    REFUSED(&f.w, PFX_EINVAL, pfx_peek(f.c, UNKNOWN, NULL, 1));
    REFUSED(&f.w, PFX_ETOOBIG, pfx_peek(f.c, 0, f.tokens.at, TOO_MANY));
    REFUSED(&f.w, PFX_ETOOBIG, pfx_peek(f.c, 0, f.tokens.at, SIZE_MAX));
    REFUSED(&f.w, 0, pfx_peek(f.c, 0, NULL, 0));
    REFUSED(&f.w, 8, pfx_peek(f.c, 0, f.tokens.at, f.tokens.n));
    REFUSED(&f.w, PFX_EINVAL, pfx_peek_full(f.c, NULL, &p));
    REFUSED(&f.w, PFX_EINVAL, pfx_peek_full(f.c, &right, NULL));
    fixture_close(&f);
}
END_TEST

/* What is unusual and allowed. */
START_TEST(lookup_extremes_that_are_right)
{
    struct fixture f;
    fixture_open(&f);
    const uint32_t *t = f.tokens.at;
    const struct {
        const char *what;
        struct pfx_lookup_args args;
        uint32_t matched;
    } rows[] = {
        {"nothing at all", {0}, 0},
        {"nothing, and limits", {.max_match = 7, .match_multiple = 3}, 0},
        {"one token", {.tokens = t, .n_tokens = 1}, 0},
        {"max_match above", {.tokens = t, .n_tokens = 12, .max_match = SIZE_MAX}, 12},
        {"max_match 2^32", {.tokens = t, .n_tokens = 12, .max_match = TOO_MANY}, 12},
        {"max_match 1", {.tokens = t, .n_tokens = 12, .max_match = 1}, 0},
        {"a multiple that no match reaches",
         {.tokens = t, .n_tokens = 12, .match_multiple = UINT32_MAX},
         0},
        {"2^31", {.tokens = t, .n_tokens = 12, .match_multiple = 1u << 31}, 0},
        {"snapshot_multiple", {.tokens = t, .n_tokens = 12, .snapshot_multiple = UINT32_MAX}, 8},
        {"a session", {.tokens = t, .n_tokens = 12, .session = UINT64_MAX}, 8},
        {"every flag but NO_MATCH",
         {.tokens = t, .n_tokens = 12, .flags = PFX_FETCH | PFX_NO_TAIL | PFX_QUIET},
         8},
        {"every flag", {.tokens = t, .n_tokens = 12, .flags = 15}, 0},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct pfx_lookup_args args = rows[i].args;
        struct pfx_match m = match_empty();
        struct pfx_peeked p = {.size = sizeof p};
        args.size = sizeof args;
        status_is(pfx_lookup(f.c, &args, &m), 0, rows[i].what);
        ck_assert_msg(m.matched_tokens == rows[i].matched, "%s: %u", rows[i].what,
                      m.matched_tokens);
        status_is(pfx_peek_full(f.c, &args, &p), 0, rows[i].what);
        ck_assert_msg(p.matched_tokens == rows[i].matched && p.tail_tokens == m.tail_tokens,
                      "%s: peek %u and %u", rows[i].what, p.matched_tokens, p.tail_tokens);
        ck_assert_int_eq(release(&f.w, m.lease), 0);
    }
    fixture_close(&f);
}
END_TEST

/* 2^32 - 1 tokens are a sequence. Only what the cache holds of it is read. */
START_TEST(longest_sequence)
{
    struct fixture f;
    fixture_open(&f);
    size_t n = TOO_MANY - 1;
    uint32_t *t = mmap(NULL, n * 4, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(t, MAP_FAILED);
    memcpy(t, f.tokens.at, f.tokens.n * 4);
    struct pfx_lookup_args args = {.size = sizeof args, .tokens = t, .n_tokens = n, .max_match = n};
    struct pfx_match m = match_empty();
    struct pfx_stats before = counters(&f.w);
    OK(pfx_lookup(f.c, &args, &m));
    ck_assert_uint_eq(m.matched_tokens, 12);
    ck_assert_uint_eq(counters(&f.w).lookup_tokens, before.lookup_tokens + n);
    ck_assert_int_eq(pfx_peek(f.c, 0, t, n), 12);
    uint32_t block;
    OK(pfx_reserve(f.c, m.lease, 1, &block));
    struct pfx_insert_args in = {.size = sizeof in, .tokens = t, .n_written = n};
    struct pfx_insert_result r = {.size = sizeof r};
    OK(pfx_insert(f.c, m.lease, &in, NULL, &r)); /* what the table covers of them */
    ck_assert_uint_eq(r.cached_blocks, 4);
    ck_assert_uint_eq(r.new_blocks, 1);
    ck_assert_int_eq(release(&f.w, m.lease), 0);
    ck_assert_uint_eq(evict(&f.w, 1), 1);
    munmap(t, n * 4);
    fixture_close(&f);
}
END_TEST

/* ---- leases ------------------------------------------------------------------------------ */

START_TEST(reserve_arguments)
{
    struct fixture f;
    fixture_open(&f);
    uint64_t l = f.lease.lease;
    uint32_t ids[FIX_BLOCKS + 1];
    memset(ids, 0xa5, sizeof ids);
    REFUSED(&f.w, PFX_EINVAL, pfx_reserve(f.c, l, 1, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_reserve(f.c, l, UINT32_MAX, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_reserve(f.c, 0, 1, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_reserve(f.c, UNKNOWN, 1, NULL));
    FAILS(&f.w, PFX_ETOOBIG, pfx_reserve(f.c, l, FIX_BLOCKS + 1, ids));
    FAILS(&f.w, PFX_ETOOBIG, pfx_reserve(f.c, l, UINT32_MAX, ids));
    FAILS(&f.w, PFX_ENOSPC, pfx_reserve(f.c, l, FIX_BLOCKS, ids));
    for (size_t i = 0; i < LENGTH(ids); i++)
        ck_assert_uint_eq(ids[i], 0xa5a5a5a5u);
    FAILS(&f.w, 0, pfx_reserve(f.c, l, 0, NULL));
    FAILS(&f.w, 0, pfx_reserve(f.c, l, 0, ids));
    fixture_close(&f);
}
END_TEST

START_TEST(insert_arguments)
{
    struct fixture f;
    fixture_open(&f);
    uint64_t l = f.lease.lease;
    struct pfx_insert_args args = insert_args(&f.tokens), bad;
    struct pfx_insert_result r = {.size = sizeof r};
    uint32_t canonical[4];
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, l, NULL, canonical, &r));
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, l, &args, canonical, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, 0, &args, canonical, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_insert(f.c, l, NULL, 9));
    bad = args;
    bad.tokens = NULL;
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, l, &bad, canonical, &r));
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, UNKNOWN, &bad, canonical, &r));
    bad.n_written = TOO_MANY;
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, l, &bad, canonical, &r));
    bad.tokens = args.tokens;
    REFUSED(&f.w, PFX_ETOOBIG, pfx_insert(f.c, l, &bad, canonical, &r));
    REFUSED(&f.w, PFX_ETOOBIG, pfx_submit_insert(f.c, l, &bad, 9));
    bad = args;
    bad.flags = 2;
    REFUSED(&f.w, PFX_EINVAL, pfx_insert(f.c, 0, &bad, canonical, &r));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_insert(f.c, UNKNOWN, &bad, 9));
    bad = (struct pfx_insert_args){.size = sizeof bad}; /* of nothing: right, and no change */
    FAILS(&f.w, 0, pfx_insert(f.c, l, &bad, NULL, &r));
    fixture_close(&f);
}
END_TEST

START_TEST(fetch_and_truncate_arguments)
{
    struct fixture f;
    fixture_open(&f);
    uint64_t l = f.lease.lease;
    REFUSED(&f.w, PFX_EINVAL, pfx_fetch(f.c, l, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_fetch(f.c, 0, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_fetch(f.c, UNKNOWN, NULL));
    FAILS(&f.w, PFX_EINVAL, pfx_truncate(f.c, l, 6)); /* the table has 5 */
    FAILS(&f.w, PFX_EINVAL, pfx_truncate(f.c, l, UINT32_MAX));
    FAILS(&f.w, 0, pfx_truncate(f.c, l, 5));
    fixture_close(&f);
}
END_TEST

/* ---- spaces ------------------------------------------------------------------------------ */

START_TEST(space_arguments)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "x", .tenant_len = 1};
    pfx_space s = UNKNOWN;
    REFUSED(&f.w, PFX_EINVAL, pfx_space_open(f.c, NULL, &s));
    REFUSED(&f.w, PFX_EINVAL, pfx_space_open(f.c, &d, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_space_open(f.c, NULL, 9));
    d.tenant = NULL;
    REFUSED(&f.w, PFX_EINVAL, pfx_space_open(f.c, &d, &s));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_space_open(f.c, &d, 9));
    char long_one[257];
    memset(long_one, 't', sizeof long_one);
    d.tenant = long_one;
    d.tenant_len = 256;
    REFUSED(&f.w, PFX_EINVAL, pfx_space_open(f.c, &d, &s));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_space_open(f.c, &d, 9));
    ck_assert_uint_eq(s, UNKNOWN);
    const pfx_space unknown[] = {UNKNOWN, 1ull << 32, f.space + (1ull << 32), UINT32_MAX};
    for (size_t i = 0; i < LENGTH(unknown); i++) {
        FAILS(&f.w, PFX_ENOENT, pfx_space_close(f.c, unknown[i]));
        FAILS(&f.w, PFX_ENOENT, pfx_flush(f.c, unknown[i]));
    }
    FAILS(&f.w, PFX_ENOENT, pfx_space_close(f.c, PFX_ALL_SPACES));
    FAILS(&f.w, PFX_ENOENT, pfx_space_close(f.c, 0)); /* it was never opened here */
    fixture_close(&f);
}
END_TEST

/* 255 bytes, all of them count, NUL too. */
START_TEST(tenant_of_255_bytes)
{
    struct fixture f;
    fixture_open(&f);
    char t[255];
    memset(t, 0, sizeof t);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = t, .tenant_len = 255};
    pfx_space all, again, last, shorter;
    OK(pfx_space_open(f.c, &d, &all));
    OK(pfx_space_open(f.c, &d, &again));
    ck_assert_uint_eq(all, again);
    t[254] = 1;
    OK(pfx_space_open(f.c, &d, &last));
    t[254] = 0;
    d.tenant_len = 254;
    OK(pfx_space_open(f.c, &d, &shorter));
    ck_assert(all != last && all != shorter && last != shorter && all != 0 && shorter != 0);
    const pfx_space opened[] = {all, again, last, shorter};
    for (size_t i = 0; i < LENGTH(opened); i++)
        OK(pfx_space_close(f.c, opened[i]));
    FAILS(&f.w, PFX_ENOENT, pfx_space_close(f.c, all));
    fixture_close(&f);
}
END_TEST

/* ---- snapshots and administration -------------------------------------------------------- */

START_TEST(snapshot_arguments)
{
    struct fixture f;
    fixture_open(&f);
    uint64_t l = f.lease.lease;
    uint32_t slot = 1;
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_reserve(f.c, l, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_reserve(f.c, 0, NULL));
    const uint32_t no_slot[] = {0, FIX_SLOTS + 1, PFX_NO_SLOT};
    for (size_t i = 0; i < LENGTH(no_slot); i++) {
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_cancel(f.c, l, no_slot[i]));
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_cancel(f.c, 0, no_slot[i]));
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, l, no_slot[i], 8, PFX_EXACT));
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, 0, no_slot[i], 8, PFX_EXACT));
        REFUSED(&f.w, PFX_EINVAL, pfx_submit_snapshot_insert(f.c, l, no_slot[i], 8, PFX_EXACT, 9));
    }
    const enum pfx_snapshot_kind no_kind[] = {3, INT_MAX, (enum pfx_snapshot_kind)UINT32_MAX};
    for (size_t i = 0; i < LENGTH(no_kind); i++) {
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, l, slot, 8, no_kind[i]));
        REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, 0, slot, 8, no_kind[i]));
        REFUSED(&f.w, PFX_EINVAL, pfx_submit_snapshot_insert(f.c, l, slot, 8, no_kind[i], 9));
    }
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, l, slot, 0, PFX_EXACT));
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, UNKNOWN, slot, 0, PFX_EXACT));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_snapshot_insert(f.c, l, slot, 0, PFX_EXACT, 9));
    /* a tail without a session, also on a slot that is the lease's */
    OK(pfx_snapshot_reserve(f.c, l, &slot));
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, l, slot, 8, PFX_TAIL));
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_insert(f.c, l, slot, 8, PFX_TAIL_SIBLING));
    REFUSED(&f.w, PFX_EINVAL, pfx_submit_snapshot_insert(f.c, l, slot, 8, PFX_TAIL, 9));
    /* depths that are not inserted: the table has 20 tokens, 12 are written */
    FAILS(&f.w, PFX_ECONFLICT, pfx_snapshot_insert(f.c, l, slot, 13, PFX_EXACT));
    FAILS(&f.w, PFX_ECONFLICT, pfx_snapshot_insert(f.c, l, slot, 20, PFX_EXACT));
    FAILS(&f.w, PFX_ECONFLICT, pfx_snapshot_insert(f.c, l, slot, UINT32_MAX, PFX_EXACT));
    OK(pfx_snapshot_cancel(f.c, l, slot));
    /* not this lease's: given back, or never given out */
    FAILS(&f.w, PFX_ESTALE, pfx_snapshot_cancel(f.c, l, slot));
    FAILS(&f.w, PFX_ESTALE, pfx_snapshot_insert(f.c, l, slot, 8, PFX_EXACT));
    FAILS(&f.w, PFX_ESTALE, pfx_snapshot_insert(f.c, l, slot, 99, PFX_EXACT));
    FAILS(&f.w, PFX_ESTALE, pfx_snapshot_insert(f.c, l, slot % FIX_SLOTS + 1, 8, PFX_EXACT));
    FAILS(&f.w, 0, pfx_snapshot_drop(f.c, l));
    /* there is nothing to evict, spill or forget */
    struct pfx_spilled s = {.size = sizeof s, .depth = 99};
    FAILS(&f.w, PFX_ENOENT, pfx_snapshot_evict(f.c));
    FAILS(&f.w, PFX_ENOENT, pfx_snapshot_spill(f.c, 0, &s));
    FAILS(&f.w, PFX_ENOENT, pfx_snapshot_spill(f.c, UINT32_MAX, &s));
    ck_assert_uint_eq(s.depth, 99);
    FAILS(&f.w, PFX_ENOENT, pfx_snapshot_forget(f.c, 0));
    FAILS(&f.w, PFX_ENOENT, pfx_snapshot_forget(f.c, UINT64_MAX));
    fixture_close(&f);
}
END_TEST

/* A daemon without slots: its calls say "none". */
START_TEST(snapshots_are_none)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    ck_assert_uint_eq(pfx_geometry(w.c)->n_slots, 0);
    cache(&w, "aaaa");
    struct held l = look(&w, "aaaax");
    ck_assert_uint_eq(l.match.snapshot.slot, PFX_NO_SLOT);
    uint32_t slot = 99;
    struct pfx_spilled s = {.size = sizeof s, .depth = 99};
    FAILS(&w, PFX_ENOENT, pfx_snapshot_reserve(w.c, l.lease, &slot));
    ck_assert_uint_eq(slot, 99);
    FAILS(&w, PFX_ESTALE, pfx_snapshot_reserve(w.c, UNKNOWN, &slot));
    REFUSED(&w, PFX_EINVAL, pfx_snapshot_insert(w.c, l.lease, 1, 4, PFX_EXACT)); /* no such slot */
    REFUSED(&w, PFX_EINVAL, pfx_snapshot_cancel(w.c, l.lease, 1));
    FAILS(&w, 0, pfx_snapshot_drop(w.c, l.lease));
    FAILS(&w, PFX_ENOENT, pfx_snapshot_evict(w.c));
    FAILS(&w, PFX_ENOENT, pfx_snapshot_spill(w.c, 0, &s));
    FAILS(&w, PFX_ENOENT, pfx_snapshot_spill(w.c, UINT32_MAX, &s));
    ck_assert_uint_eq(s.depth, 99);
    FAILS(&w, PFX_ENOENT, pfx_snapshot_forget(w.c, 0));
    FAILS(&w, PFX_ENOENT, pfx_snapshot_forget(w.c, UINT64_MAX));
    ck_assert_uint_eq(counters(&w).recompute_tokens, 0); /* no states to miss */
    drop(&w, &l);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(evict_and_stats_arguments)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_evicted e = {.size = sizeof e};
    REFUSED(&f.w, PFX_EINVAL, pfx_evict(f.c, 1, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_snapshot_spill(f.c, 1, NULL));
    REFUSED(&f.w, PFX_EINVAL, pfx_stats(f.c, NULL));
    FAILS(&f.w, 0, pfx_evict(f.c, 0, &e));
    FAILS(&f.w, 0, pfx_evict(f.c, UINT32_MAX, &e)); /* all that is cached is held */
    ck_assert_uint_eq(e.freed_blocks, 0);
    fixture_close(&f);
}
END_TEST

/* ---- completions ------------------------------------------------------------------------- */

START_TEST(wait_arguments)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_completion k[2] = {completion_empty(), completion_empty()};
    size_t right = sizeof *k;
    REFUSED(&f.w, PFX_EINVAL, pfx_wait(f.c, NULL, right, 1, 0));
    REFUSED(&f.w, PFX_EINVAL, pfx_wait(f.c, k, right, 0, 0));
    const size_t stride[] = {0, 1, 8, right - 8, right - 1, right + 1, right + 4};
    for (size_t i = 0; i < LENGTH(stride); i++)
        REFUSED(&f.w, PFX_EINVAL, pfx_wait(f.c, k, stride[i], 1, 0));
    const int timeout[] = {-2, -1000, INT_MIN};
    for (size_t i = 0; i < LENGTH(timeout); i++)
        REFUSED(&f.w, PFX_EINVAL, pfx_wait(f.c, k, right, 1, timeout[i]));
    REFUSED(&f.w, PFX_ENOENT, pfx_cancel(f.c, UNKNOWN));
    REFUSED(&f.w, PFX_ENOENT, pfx_cancel(f.c, FIX_TAG)); /* its completion is there */
    fixture_close(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("arguments");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, lookup_arguments);
    tcase_add_test(t, lookup_without_arguments);
    tcase_add_test(t, lookup_unknown_space);
    tcase_add_test(t, peek_arguments);
    tcase_add_test(t, lookup_extremes_that_are_right);
    tcase_add_test(t, longest_sequence);
    tcase_add_test(t, reserve_arguments);
    tcase_add_test(t, insert_arguments);
    tcase_add_test(t, fetch_and_truncate_arguments);
    tcase_add_test(t, space_arguments);
    tcase_add_test(t, tenant_of_255_bytes);
    tcase_add_test(t, snapshot_arguments);
    tcase_add_test(t, snapshots_are_none);
    tcase_add_test(t, evict_and_stats_arguments);
    tcase_add_test(t, wait_arguments);
    suite_add_tcase(s, t);
    return s;
}
