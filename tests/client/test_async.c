/*
 * The asynchronous form: one completion a submit, in order, with what the synchronous call would
 * have returned; the caller's arrays are its own again when submit returns.
 */
#include "tests/client/async.h"

#include <stdlib.h>
#include <string.h>

/* Each kind of call, one after the other: every field of its completion. */
START_TEST(every_call_and_its_completion)
{
    struct async a;
    async_open(&a);
    OK(pfx_submit_lookup(a.c, &a.look, 10));
    struct pfx_completion k = completion_of(a.c, 10, 0);
    only(&k, true, false, 0);
    uint64_t l = k.lease;
    ck_assert_uint_eq(k.match.lease, l);
    ck_assert_uint_eq(k.match.matched_tokens, 8);
    ck_assert_uint_eq(k.match.n_resident, 2);
    ck_assert_uint_eq(k.match.tail_block, PFX_NO_BLOCK);
    const uint32_t *matched = k.match.blocks;
    uint32_t first = matched[0], table[2];

    OK(pfx_submit_reserve(a.c, l, 2, UINT64_MAX));
    k = completion_of(a.c, UINT64_MAX, 0);
    only(&k, false, false, 2);
    ck_assert_uint_eq(k.lease, l);
    memcpy(table, k.ids, sizeof table);

    OK(pfx_submit_insert(a.c, l, &a.in, 0));
    k = completion_of(a.c, 0, 0);
    only(&k, false, true, 3);
    ck_assert_uint_eq(k.lease, l);
    ck_assert_uint_eq(k.insert.cached_blocks, 4);
    ck_assert_uint_eq(k.insert.new_blocks, 2);
    ck_assert_uint_eq(k.insert.duplicate_blocks, 0);
    ck_assert_uint_eq(k.ids[0], first);
    ck_assert_uint_eq(k.ids[2], table[0]);

    OK(pfx_submit_fetch(a.c, l, 11));
    k = completion_of(a.c, 11, 0);
    only(&k, true, false, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 8);
    ck_assert_uint_eq(matched[0], first); /* what the lookup handed out is as it was */

    OK(pfx_submit_truncate(a.c, l, 3, 12));
    k = completion_of(a.c, 12, 0);
    only(&k, false, false, 0);
    OK(pfx_submit_snapshot_reserve(a.c, l, 13));
    k = completion_of(a.c, 13, PFX_ENOENT);
    only(&k, false, false, 0);
    OK(pfx_submit_release(a.c, l, 14));
    k = completion_of(a.c, 14, 0);
    only(&k, false, false, 0);
    ck_assert_uint_eq(k.lease, l);

    struct pfx_space_desc d = {.size = sizeof d, .adapter_id = 3};
    pfx_space s;
    OK(pfx_submit_space_open(a.c, &d, 15));
    k = completion_of(a.c, 15, 0);
    only(&k, false, false, 0);
    OK(pfx_space_open(a.c, &d, &s));
    ck_assert(s != 0 && k.space == s);
    OK(pfx_space_close(a.c, s));
    OK(pfx_space_close(a.c, s));
    async_close(&a);
}
END_TEST

/* A submit that fails has no completion; one that succeeds has one, whatever its status. */
START_TEST(failures_and_their_completions)
{
    struct async a;
    async_open(&a);
    a.look.space = 99;
    OK(pfx_submit_lookup(a.c, &a.look, 1));
    OK(pfx_submit_reserve(a.c, 5, 1, 2));
    OK(pfx_submit_insert(a.c, 5, &a.in, 3));
    OK(pfx_submit_truncate(a.c, 5, 1, 4));
    OK(pfx_submit_release(a.c, 5, 5));
    const int want[] = {PFX_ENOENT, PFX_ESTALE, PFX_ESTALE, PFX_ESTALE, PFX_ESTALE};
    for (uint64_t tag = 1; tag <= LENGTH(want); tag++) {
        struct pfx_completion k = completion_of(a.c, tag, want[tag - 1]);
        only(&k, false, false, 0);
        ck_assert_uint_eq(k.lease, tag == 1 ? 0 : 5);
    }
    ck_assert_int_eq(pfx_submit_lookup(a.c, NULL, 6), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_reserve(a.c, 0, 1, 7), PFX_ESTALE);
    async_close(&a);
}
END_TEST

/* ---- whose memory ------------------------------------------------------------------------ */

/* A copy on the heap that ends where the array ends, so that a late look at it shows. */
static void *borrowed(const void *from, size_t n)
{
    void *copy = malloc(n);
    memcpy(copy, from, n);
    return copy;
}

static void give_back(void *copy, size_t n)
{
    memset(copy, 0xee, n);
    free(copy);
}

/* An insert and the lookup that waits for it, of the first n tokens, with two extras. */
static void submit_borrowed(struct async *a, uint64_t lease, size_t n, uint64_t tag)
{
    static const struct pfx_extra x[2] = {{.at = 1, .len = 2, .digest = {7}}, {.at = 12, .len = 1}};
    for (int i = 0; i < 2; i++) {
        uint32_t *tokens = borrowed(a->s.at, n * 4);
        struct pfx_extra *extras = borrowed(x, sizeof x);
        struct pfx_insert_args in = {.size = sizeof in,
                                     .flags = n ? PFX_FINAL : 0,
                                     .tokens = tokens,
                                     .n_written = n,
                                     .extras = extras,
                                     .n_extras = 2};
        struct pfx_lookup_args look = {
            .size = sizeof look, .tokens = tokens, .n_tokens = n, .extras = extras, .n_extras = 2};
        if (i == 0)
            OK(pfx_submit_insert(a->c, lease, &in, tag));
        else
            OK(pfx_submit_lookup(a->c, &look, tag + 1));
        give_back(tokens, n * 4);
        give_back(extras, sizeof x);
    }
}

/* All that a call is given is gone when the call is sent: the daemon is stopped meanwhile, and
 * each of them stands in a line. */
START_TEST(arrays_are_free_after_submit)
{
    struct async a;
    async_open(&a);
    struct held l = look(&a.w, "");
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 4, 1));
    submit_borrowed(&a, l.lease, a.s.n, 2);
    submit_borrowed(&a, l.lease, 0, 4); /* the extras alone */
    char *tenant = borrowed("somebody", 8);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = tenant, .tenant_len = 8};
    OK(pfx_submit_space_open(a.c, &d, 6));
    give_back(tenant, 8);
    host_resume(&a.h);

    completion_of(a.c, 1, 0);
    ck_assert_uint_eq(completion_of(a.c, 2, 0).insert.new_blocks, 3); /* no tail before token 12 */
    struct pfx_completion k = completion_of(a.c, 3, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 12);
    OK(pfx_release(a.c, k.lease));
    ck_assert_uint_eq(completion_of(a.c, 4, 0).insert.cached_blocks, 3);
    k = completion_of(a.c, 5, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 0);
    OK(pfx_release(a.c, k.lease));
    pfx_space s = completion_of(a.c, 6, 0).space, same;
    d.tenant = "somebody";
    OK(pfx_space_open(a.c, &d, &same));
    ck_assert_uint_eq(s, same);
    drop(&a.w, &l);
    async_close(&a);
}
END_TEST

/* A newer caller's completions are larger: what this library does not know stays untouched. */
START_TEST(larger_stride)
{
    struct async a;
    async_open(&a);
    struct larger {
        struct pfx_completion k;
        uint8_t more[40];
    } out[4];
    memset(out, 0xa5, sizeof out);
    for (int i = 0; i < 4; i++) {
        out[i].k.size = i % 2 ? sizeof out[i] : sizeof out[i].k;
        out[i].k.match.size = sizeof out[i].k.match;
        out[i].k.insert.size = sizeof out[i].k.insert;
    }
    for (uint64_t tag = 0; tag < 3; tag++)
        OK(pfx_submit_lookup(a.c, &a.look, tag));
    OK(pfx_ping(a.c));
    ck_assert_int_eq(pfx_wait(a.c, &out[0].k, sizeof out[0], 4, -1), 3);
    for (uint64_t i = 0; i < 4; i++) {
        for (size_t b = 0; b < sizeof out[i].more; b++)
            ck_assert_uint_eq(out[i].more[b], 0xa5);
        if (i == 3)
            break;
        ck_assert_uint_eq(out[i].k.tag, i);
        ck_assert_uint_eq(out[i].k.size, sizeof out[i].k);
        OK(pfx_release(a.c, out[i].k.lease));
    }
    ck_assert_uint_eq(out[3].k.tag, 0xa5a5a5a5a5a5a5a5u); /* none came for it */
    ck_assert_uint_eq(out[3].k.size, sizeof out[3]);
    async_close(&a);
}
END_TEST

/* ids are the library's until the next pfx_wait; other calls do not disturb them. */
START_TEST(ids_stay_until_the_next_wait)
{
    struct async a;
    async_open(&a);
    struct held l = look_seq(&a.w, &a.s), other = look(&a.w, "");
    struct pfx_completion k[3] = {completion_empty(), completion_empty(), completion_empty()};
    OK(pfx_submit_reserve(a.c, l.lease, 3, 1));
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 2));
    OK(pfx_submit_reserve(a.c, other.lease, 5, 3));
    OK(pfx_ping(a.c));
    ck_assert_int_eq(pfx_wait(a.c, k, sizeof *k, 3, -1), 3);
    uint32_t reserved[3], canonical[3], others[5], more[20];
    memcpy(reserved, k[0].ids, sizeof reserved);
    memcpy(canonical, k[1].ids, sizeof canonical);
    memcpy(others, k[2].ids, sizeof others);
    for (int i = 0; i < 20; i++) { /* calls of both forms, some with ids of their own */
        OK(pfx_submit_reserve(a.c, other.lease, 1, 4));
        OK(pfx_reserve(a.c, other.lease, 1, more + i));
        struct held again = look_seq(&a.w, &a.s);
        drop(&a.w, &again);
    }
    drop(&a.w, &l);
    ck_assert_mem_eq(reserved, k[0].ids, sizeof reserved);
    ck_assert_mem_eq(canonical, k[1].ids, sizeof canonical);
    ck_assert_mem_eq(others, k[2].ids, sizeof others);
    for (int i = 0; i < 20; i++)
        ck_assert_uint_eq(completion_of(a.c, 4, 0).n_ids, 1);
    drop(&a.w, &other);
    async_close(&a);
}
END_TEST

/* ---- waiting ----------------------------------------------------------------------------- */

START_TEST(wait_timeouts)
{
    struct async a;
    async_open(&a);
    struct pfx_completion k = completion_empty();
    uint64_t start = now_us();
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, 0), 0);
    ck_assert_uint_lt(now_us() - start, 100 * 1000 * SLOW);
    const int ms[] = {1, 10, 120};
    for (size_t i = 0; i < LENGTH(ms); i++) {
        start = now_us();
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, ms[i]), 0);
        uint64_t took = now_us() - start;
        ck_assert_msg(took >= (uint64_t)ms[i] * 1000 &&
                          took < ((uint64_t)ms[i] + 200) * 1000 * SLOW,
                      "%d ms took %d us", ms[i], (int)took);
    }
    async_close(&a);
}
END_TEST

static void resume_later(struct child *me, void *arg)
{
    struct host *h = arg;
    child_wait(me);
    sleep_us(150 * 1000);
    host_resume(h);
}

/* For ever, and a time that is long enough, end when the completion comes. */
START_TEST(wait_until_it_comes)
{
    struct async a;
    struct child c;
    async_open(&a);
    const int ms[] = {-1, 10000 * SLOW};
    for (size_t i = 0; i < LENGTH(ms); i++) {
        struct pfx_completion k = completion_empty();
        child_start(&c, resume_later, &a.h);
        host_pause(&a.h);
        OK(pfx_submit_lookup(a.c, &a.look, 5));
        child_post(&c, 1);
        uint64_t start = now_ms();
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, ms[i]), 1);
        ck_assert_uint_ge(now_ms() - start, 140);
        ck_assert_uint_lt(now_ms() - start, 3000 * SLOW);
        OK(k.status);
        OK(pfx_release(a.c, k.lease));
        child_join(&c);
    }
    async_close(&a);
}
END_TEST

/* At most max; the others wait. */
START_TEST(wait_takes_at_most_max)
{
    struct async a;
    async_open(&a);
    struct pfx_completion k[8];
    for (uint64_t tag = 0; tag < 5; tag++)
        OK(pfx_submit_lookup(a.c, &a.look, tag));
    OK(pfx_ping(a.c));
    uint64_t tag = 0;
    for (unsigned max = 2; tag < 5; max = 8) {
        for (int i = 0; i < 8; i++)
            k[i] = completion_empty();
        int n = pfx_wait(a.c, k, sizeof *k, max, 0);
        ck_assert_int_eq(n, max == 2 ? 2 : 3);
        for (int i = 0; i < n; i++) {
            ck_assert_uint_eq(k[i].tag, tag++);
            OK(pfx_release(a.c, k[i].lease));
        }
    }
    async_close(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("async");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, every_call_and_its_completion);
    tcase_add_test(t, failures_and_their_completions);
    tcase_add_test(t, arrays_are_free_after_submit);
    tcase_add_test(t, larger_stride);
    tcase_add_test(t, ids_stay_until_the_next_wait);
    tcase_add_test(t, wait_timeouts);
    tcase_add_test(t, wait_until_it_comes);
    tcase_add_test(t, wait_takes_at_most_max);
    suite_add_tcase(s, t);
    return s;
}
