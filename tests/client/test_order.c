/*
 * Calls in the wrong order, on leases and spaces that are not, or no longer, the caller's: the
 * header's error, and nothing changed, results included.
 */
#include "tests/client/fixture.h"

#include <string.h>

/* Everything but pfx_release that takes a lease must fail so, in both forms, and leave results. */
static void lease_refused(struct worker *w, uint64_t lease, const struct seq *s, int want)
{
    struct pfx_match m = {.size = sizeof m}, no_match = m;
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s->at, .n_written = s->n};
    struct pfx_insert_result r = {.size = sizeof r}, no_result = r;
    uint32_t ids[4] = {1, 2, 3, 4}, slot = 5;
    const uint32_t no_ids[4] = {1, 2, 3, 4};
    FAILS(w, want, pfx_fetch(w->c, lease, &m));
    FAILS(w, want, pfx_truncate(w->c, lease, 0));
    FAILS(w, want, pfx_reserve(w->c, lease, 1, ids));
    FAILS(w, want, pfx_insert(w->c, lease, &args, ids, &r));
    FAILS(w, want, pfx_snapshot_reserve(w->c, lease, &slot));
    FAILS(w, want, pfx_snapshot_drop(w->c, lease));
    ck_assert_mem_eq(&m, &no_match, sizeof m);
    ck_assert_mem_eq(&r, &no_result, sizeof r);
    ck_assert_mem_eq(ids, no_ids, sizeof ids);
    ck_assert_uint_eq(slot, 5);
}

static void lease_gone(struct worker *w, uint64_t lease, const struct seq *s)
{
    lease_refused(w, lease, s, PFX_ESTALE);
    FAILS(w, PFX_ESTALE, pfx_snapshot_cancel(w->c, lease, 1));
    FAILS(w, PFX_ESTALE, pfx_snapshot_insert(w->c, lease, 1, 4, PFX_EXACT));
    FAILS(w, PFX_ESTALE, pfx_release(w->c, lease));
}

START_TEST(lease_that_never_was)
{
    struct fixture f;
    fixture_open(&f);
    const uint64_t l = f.lease.lease;
    const uint64_t never[] = {0,          1,          l + 1,     l ^ 1ull << 32, l + (1ull << 32),
                              UINT32_MAX, 1ull << 32, UINT64_MAX};
    for (size_t i = 0; i < LENGTH(never); i++)
        lease_gone(&f.w, never[i], &f.tokens);
    fixture_close(&f);
}
END_TEST

START_TEST(lease_released)
{
    struct fixture f;
    fixture_open(&f);
    struct held old = look_seq(&f.w, &f.tokens);
    drop(&f.w, &old);
    lease_gone(&f.w, old.lease, &f.tokens);
    struct held new = look_seq(&f.w, &f.tokens); /* the daemon's slot is used again */
    lease_gone(&f.w, old.lease, &f.tokens);
    ck_assert_uint_ne(new.lease, old.lease);
    drop(&f.w, &new);
    fixture_close(&f);
}
END_TEST

/* In the asynchronous form the answer is a completion, or the submit itself fails. */
START_TEST(lease_released_asynchronously)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_completion aside = completion_of(f.c, FIX_TAG, 0);
    struct held l = look_seq(&f.w, &f.tokens);
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = f.tokens.at, .n_written = f.tokens.n};
    OK(pfx_submit_release(f.c, l.lease, 1));
    OK(pfx_submit_fetch(f.c, l.lease, 2));
    OK(pfx_submit_truncate(f.c, l.lease, 0, 3));
    OK(pfx_submit_reserve(f.c, l.lease, 1, 4));
    OK(pfx_submit_insert(f.c, l.lease, &args, 5));
    OK(pfx_submit_release(f.c, l.lease, 6));
    OK(pfx_submit_snapshot_reserve(f.c, l.lease, 7));
    OK(pfx_submit_snapshot_insert(f.c, l.lease, 1, 4, PFX_EXACT, 8));
    completion_of(f.c, 1, 0);
    for (uint64_t tag = 2; tag <= 8; tag++) {
        struct pfx_completion k = completion_of(f.c, tag, PFX_ESTALE);
        ck_assert_ptr_null(k.ids);
        ck_assert_uint_eq(k.n_ids, 0);
        ck_assert_uint_eq(k.match.matched_tokens, 0);
        ck_assert_uint_eq(k.insert.cached_blocks, 0);
    }
    ck_assert_int_eq(pfx_submit_release(f.c, 0, 9), PFX_ESTALE);
    completion_none(f.c);
    OK(pfx_release(f.c, aside.lease));
    struct pfx_lookup_args again = lookup_args(&f.w, &f.tokens);
    OK(pfx_submit_lookup(f.c, &again, FIX_TAG));
    fixture_close(&f);
}
END_TEST

START_TEST(lease_of_another_worker)
{
    struct fixture f;
    struct worker other, grouped;
    fixture_open(&f);
    worker_open(&other, &f.h, NULL);
    worker_open(&grouped, &f.h, "engine");
    struct held theirs = look_seq(&grouped, &f.tokens);
    lease_gone(&other, f.lease.lease, &f.tokens);
    lease_gone(&grouped, f.lease.lease, &f.tokens);
    lease_gone(&other, theirs.lease, &f.tokens);
    lease_gone(&f.w, theirs.lease, &f.tokens);
    drop(&grouped, &theirs);
    worker_close(&other);
    worker_close(&grouped);
    fixture_close(&f);
}
END_TEST

/* ---- after a flush ----------------------------------------------------------------------- */

static void after_flush(pfx_space which, bool base, bool tenant)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_completion aside = completion_of(f.c, FIX_TAG, 0);
    f.w.space = f.space;
    cache(&f.w, "aaaabbbb");
    struct held in_tenant = look(&f.w, "aaaabbbbcccc");
    ck_assert_uint_eq(in_tenant.match.matched_tokens, 8);
    f.w.space = 0;
    OK(pfx_flush(f.c, which == 1 ? f.space : which));
    step(&f.w);
    if (base)
        lease_refused(&f.w, f.lease.lease, &f.tokens, PFX_ESTALE);
    else
        ck_assert_int_eq(grab(&f.w, &f.lease, 1), 0);
    if (tenant)
        lease_refused(&f.w, in_tenant.lease, &f.tokens, PFX_ESTALE);
    else
        ck_assert_int_eq(cut(&f.w, &in_tenant, 1), 0);
    ck_assert_int_eq(pfx_peek(f.c, 0, f.tokens.at, f.tokens.n), base ? 0 : 8);
    ck_assert_int_eq(pfx_peek(f.c, f.space, f.tokens.at, f.tokens.n), tenant ? 0 : 8);
    const uint64_t all[] = {aside.lease, in_tenant.lease, f.lease.lease};
    for (size_t i = 0; i < LENGTH(all); i++) { /* each of them can be released, once */
        ck_assert_int_eq(release(&f.w, all[i]), 0);
        lease_gone(&f.w, all[i], &f.tokens);
    }
    pages_are(&f.w, FIX_BLOCKS - (base ? 0 : 3) - (tenant ? 0 : 2), 0, 0,
              (base ? 0 : 3) + (tenant ? 0 : 2));
    ck_assert_uint_eq(counters(&f.w).evicted_blocks, 0); /* a flush is no eviction */
    worker_close(&f.w);
    host_stop(&f.h);
}

START_TEST(lease_from_before_a_flush)
{
    after_flush(0, true, false);
    after_flush(1, false, true);
    after_flush(PFX_ALL_SPACES, true, true);
}
END_TEST

/* ---- PFX_FINAL --------------------------------------------------------------------------- */

static int insert_text(struct fixture *f, uint64_t lease, const char *text, uint32_t flags,
                       struct pfx_insert_result *r)
{
    struct seq s = seq(text);
    struct pfx_insert_args args = {
        .size = sizeof args, .flags = flags, .tokens = s.at, .n_written = s.n};
    *r = (struct pfx_insert_result){.size = sizeof *r};
    return pfx_insert(f->c, lease, &args, NULL, r);
}

START_TEST(insert_after_final)
{
    struct fixture f;
    fixture_open(&f);
    struct held l = look(&f.w, "aaaabbbbddddxx");
    ck_assert_uint_eq(l.match.matched_tokens, 8);
    ck_assert_int_eq(grab(&f.w, &l, 4), 0); /* more than the tokens need */
    struct pfx_insert_result first, r;
    ck_assert_int_eq(put(&f.w, &l, "aaaabbbbddddxx", PFX_FINAL, NULL, &first), 0);
    ck_assert_uint_eq(first.cached_blocks, 4);
    ck_assert_uint_eq(first.new_blocks, 2);
    uint32_t more[1];
    for (uint32_t flags = 0; flags <= PFX_FINAL; flags++) {
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddxxx", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddxxxxeeee", flags, &r));
        FAILS(&f.w, 0, insert_text(&f, l.lease, "aaaabbbbddddxx", flags, &r));
        ck_assert_uint_eq(r.cached_blocks, 4);
        ck_assert_uint_eq(r.new_blocks, 0);
        ck_assert_uint_eq(r.duplicate_blocks, first.duplicate_blocks);
        FAILS(&f.w, 0, insert_text(&f, l.lease, "aaaabbbbddddx", flags, &r));
        FAILS(&f.w, 0, insert_text(&f, l.lease, "aaaabbbbdddd", flags, &r));
        FAILS(&f.w, 0, insert_text(&f, l.lease, "aa", flags, &r));
        FAILS(&f.w, 0, insert_text(&f, l.lease, "", flags, &r));
        ck_assert_uint_eq(r.new_blocks, 0);
        /* as long or shorter, but not the same */
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddxy", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddy", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddyx", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddde", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "zaaabbbbddddxx", flags, &r));
        FAILS(&f.w, PFX_ECONFLICT, pfx_reserve(f.c, l.lease, 1, more));
        FAILS(&f.w, 0, pfx_reserve(f.c, l.lease, 0, more));
    }
    ck_assert_int_eq(cut(&f.w, &l, 3), 0); /* its partial block, too, can be given back */
    FAILS(&f.w, PFX_ECONFLICT, pfx_reserve(f.c, l.lease, 1, more));
    FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbddddxxx", 0, &r));
    drop(&f.w, &l);
    ck_assert_uint_eq(evict(&f.w, 64), 2);
    fixture_close(&f);
}
END_TEST

/* On a block boundary, and before anything was reserved, the flag only makes the lease final. */
START_TEST(final_on_a_boundary)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_insert_result r;
    uint32_t id;
    const char *const texts[] = {"aaaabbbbcccc", "aaaabbbb", "aaaa", "", "aaaabbbbcccczz"};
    for (size_t i = 0; i < LENGTH(texts); i++) {
        struct held l = look(&f.w, "aaaabbbbccccdddd");
        ck_assert_uint_eq(l.match.matched_tokens, 12);
        FAILS(&f.w, 0, insert_text(&f, l.lease, texts[i], PFX_FINAL, &r));
        ck_assert_uint_eq(r.cached_blocks, 3);
        ck_assert_uint_eq(r.new_blocks + r.duplicate_blocks, 0);
        FAILS(&f.w, PFX_ECONFLICT, pfx_reserve(f.c, l.lease, 1, &id));
        FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l.lease, "aaaabbbbccccdddd", 0, &r));
        drop(&f.w, &l);
    }
    fixture_close(&f);
}
END_TEST

/* ---- truncate, and what the lease knows -------------------------------------------------- */

START_TEST(truncate_below_what_is_inserted)
{
    struct fixture f;
    fixture_open(&f);
    struct held l = look(&f.w, "aaaabbbbx"); /* matched only: down to nothing */
    for (uint32_t n = 2; n <= 2; n--) {
        ck_assert_int_eq(cut(&f.w, &l, n), 0);
        FAILS(&f.w, PFX_EINVAL, pfx_truncate(f.c, l.lease, n + 1));
    }
    drop(&f.w, &l);
    /* the fixture's own has matched 2, inserted 1, and 2 more are private */
    for (uint32_t n = 0; n < 3; n++)
        FAILS(&f.w, PFX_ECONFLICT, pfx_truncate(f.c, f.lease.lease, n));
    FAILS(&f.w, PFX_EINVAL, pfx_truncate(f.c, f.lease.lease, 6));
    ck_assert_int_eq(cut(&f.w, &f.lease, 4), 0);
    FAILS(&f.w, PFX_EINVAL, pfx_truncate(f.c, f.lease.lease, 5));
    ck_assert_int_eq(cut(&f.w, &f.lease, 3), 0);
    FAILS(&f.w, PFX_ECONFLICT, pfx_truncate(f.c, f.lease.lease, 2));
    fixture_close(&f);
}
END_TEST

START_TEST(insert_that_contradicts)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_insert_result r;
    uint64_t l = f.lease.lease; /* aaaabbbb matched, cccc inserted, two more reserved */
    const char *const wrong[] = {
        "xaaabbbbccccdddd", "aaabbbbbccccdddd", "aaaabbbxccccdddd", /* matched           */
        "aaaaxbbb",         "aaaabbbx",         "z",
        "aaaabx",           "aaaabbbbccx",  /* .. and only a part */
        "aaaabbbbxcccdddd", "aaaabbbbcccx", /* inserted by itself */
    };
    for (size_t i = 0; i < LENGTH(wrong); i++)
        for (uint32_t flags = 0; flags <= PFX_FINAL; flags++)
            FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, l, wrong[i], flags, &r));
    struct held shorter = look(&f.w, "aaaabbbbcccczzzz");
    ck_assert_uint_eq(shorter.match.matched_tokens, 12);
    ck_assert_int_eq(cut(&f.w, &shorter, 1), 0);
    ck_assert_int_eq(grab(&f.w, &shorter, 1), 0);
    FAILS(&f.w, PFX_ECONFLICT, insert_text(&f, shorter.lease, "aaaxyyyy", 0, &r));
    ck_assert_int_eq(put(&f.w, &shorter, "aaaayyyy", 0, NULL, &r), 0); /* what was cut is free */
    ck_assert_uint_eq(r.new_blocks, 1);
    drop(&f.w, &shorter);
    ck_assert_uint_eq(evict(&f.w, 1), 1);
    fixture_close(&f);
}
END_TEST

/* Extras are content: another digest, another range, or none, contradicts as tokens do. */
START_TEST(insert_that_contradicts_extras)
{
    struct fixture f;
    fixture_open(&f);
    struct seq s = seq("iiiijjjjkkkk");
    struct pfx_extra x = {.at = 2, .len = 4, .digest = {1}}, y = x;
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = s.at, .n_written = s.n, .extras = &x, .n_extras = 1};
    struct pfx_insert_result r = {.size = sizeof r};
    struct held l = look(&f.w, "");
    ck_assert_int_eq(grab(&f.w, &l, 3), 0);
    OK(pfx_insert(f.c, l.lease, &args, NULL, &r));
    ck_assert_uint_eq(r.new_blocks, 3);
    FAILS(&f.w, 0, pfx_insert(f.c, l.lease, &args, NULL, &r));
    args.extras = &y;
    y.digest[0] = 2;
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, l.lease, &args, NULL, &r));
    y = (struct pfx_extra){.at = 2, .len = 5, .digest = {1}};
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, l.lease, &args, NULL, &r));
    y = (struct pfx_extra){.at = 3, .len = 3, .digest = {1}};
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, l.lease, &args, NULL, &r));
    y = (struct pfx_extra){.at = 8, .len = 1, .digest = {1}};
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, l.lease, &args, NULL, &r));
    args.n_extras = 0;
    FAILS(&f.w, PFX_ECONFLICT, pfx_insert(f.c, l.lease, &args, NULL, &r));
    args.extras = (struct pfx_extra[]){x, {.at = 12, .len = 9}}; /* the second is beyond */
    args.n_extras = 2;
    FAILS(&f.w, 0, pfx_insert(f.c, l.lease, &args, NULL, &r));
    drop(&f.w, &l);
    ck_assert_uint_eq(evict(&f.w, 64), 3);
    fixture_close(&f);
}
END_TEST

/* ---- spaces ------------------------------------------------------------------------------ */

START_TEST(space_that_was_closed)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "other", .tenant_len = 5};
    pfx_space s, again;
    OK(pfx_space_open(f.c, &d, &s));
    OK(pfx_space_open(f.c, &d, &again));
    ck_assert_uint_eq(s, again);
    OK(pfx_space_close(f.c, s)); /* opened twice: still open */
    f.w.space = s;
    struct held l = look_seq(&f.w, &f.tokens);
    OK(pfx_space_close(f.c, s));
    f.w.space = 0;
    struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
    struct pfx_match m = {.size = sizeof m};
    struct pfx_peeked p = {.size = sizeof p};
    args.space = s;
    FAILS(&f.w, PFX_ENOENT, pfx_space_close(f.c, s));
    FAILS(&f.w, PFX_ENOENT, pfx_lookup(f.c, &args, &m));
    FAILS(&f.w, PFX_ENOENT, pfx_peek(f.c, s, f.tokens.at, f.tokens.n));
    FAILS(&f.w, PFX_ENOENT, pfx_peek_full(f.c, &args, &p));
    /* leases outlive a close */
    ck_assert_int_eq(grab(&f.w, &l, 3), 0);
    struct pfx_insert_result r;
    ck_assert_int_eq(put_seq(&f.w, &l, &f.tokens, 0, NULL, &r), 0);
    ck_assert_uint_eq(r.new_blocks, 3);
    drop(&f.w, &l);
    OK(pfx_space_open(f.c, &d, &again)); /* the same while something is cached there */
    ck_assert_uint_eq(s, again);
    ck_assert_int_eq(pfx_peek(f.c, s, f.tokens.at, f.tokens.n), 8);
    OK(pfx_flush(f.c, s));
    OK(pfx_space_close(f.c, s));
    step(&f.w);
    FAILS(&f.w, PFX_ENOENT, pfx_flush(f.c, s)); /* nothing cached, nobody using it */
    fixture_close(&f);
}
END_TEST

/* Opens are counted a connection. */
START_TEST(space_of_another_connection)
{
    struct fixture f;
    struct worker other;
    fixture_open(&f);
    worker_open(&other, &f.h, NULL);
    struct pfx_lookup_args args = lookup_args(&other, &f.tokens);
    struct pfx_match m = {.size = sizeof m};
    args.space = f.space;
    FAILS(&other, PFX_ENOENT, pfx_lookup(other.c, &args, &m));
    FAILS(&other, PFX_ENOENT, pfx_peek(other.c, f.space, f.tokens.at, f.tokens.n));
    FAILS(&other, PFX_ENOENT, pfx_space_close(other.c, f.space));
    pfx_space same;
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "tenant", .tenant_len = 6};
    OK(pfx_space_open(other.c, &d, &same));
    ck_assert_uint_eq(same, f.space);
    OK(pfx_lookup(other.c, &args, &m));
    OK(pfx_release(other.c, m.lease));
    OK(pfx_space_close(other.c, same));
    FAILS(&other, PFX_ENOENT, pfx_lookup(other.c, &args, &m));
    worker_close(&other);
    OK(pfx_peek(f.c, f.space, f.tokens.at, f.tokens.n));
    fixture_close(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("order");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, lease_that_never_was);
    tcase_add_test(t, lease_released);
    tcase_add_test(t, lease_released_asynchronously);
    tcase_add_test(t, lease_of_another_worker);
    tcase_add_test(t, lease_from_before_a_flush);
    tcase_add_test(t, insert_after_final);
    tcase_add_test(t, final_on_a_boundary);
    tcase_add_test(t, truncate_below_what_is_inserted);
    tcase_add_test(t, insert_that_contradicts);
    tcase_add_test(t, insert_that_contradicts_extras);
    tcase_add_test(t, space_that_was_closed);
    tcase_add_test(t, space_of_another_connection);
    suite_add_tcase(s, t);
    return s;
}
