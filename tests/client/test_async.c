/*
 * The asynchronous form: one completion a submit, in order, with what the synchronous call would
 * have returned; the caller's arrays are its own again when submit returns.
 */
#include "tests/client/fixture.h"

#include <stdlib.h>
#include <string.h>

struct async {
    struct host h;
    struct worker w;
    pfx *c;
    struct seq s;
    struct pfx_lookup_args look;
    struct pfx_insert_args in;
};

/* 64 blocks of 4; "aaaabbbb" is cached; look and in are of "aaaabbbbccccdd". */
static void async_open(struct async *a)
{
    host_small(&a->h, 64, 4);
    worker_open(&a->w, &a->h, NULL);
    a->c = a->w.c;
    cache(&a->w, "aaaabbbb");
    a->s = seq("aaaabbbbccccdd");
    a->look = lookup_args(&a->w, &a->s);
    a->in = (struct pfx_insert_args){
        .size = sizeof a->in, .flags = PFX_FINAL, .tokens = a->s.at, .n_written = a->s.n};
}

static void async_close(struct async *a)
{
    completion_none(a->c);
    step(&a->w);
    ck_assert_uint_eq(counters(&a->w).leases, 0);
    ck_assert_uint_eq(counters(&a->w).blocks_private, 0);
    worker_close(&a->w);
    host_stop(&a->h);
}

/* Results that a completion of another call must not have. */
static void only(const struct pfx_completion *k, bool match, bool insert, uint32_t n_ids)
{
    ck_assert_uint_eq(k->size, sizeof *k);
    ck_assert_uint_eq(k->match.size, sizeof k->match);
    ck_assert_uint_eq(k->insert.size, sizeof k->insert);
    ck_assert(match == (k->match.lease != 0));
    ck_assert(insert == (k->insert.cached_blocks != 0));
    ck_assert_uint_eq(k->n_ids, n_ids);
    ck_assert((k->ids != NULL) == (n_ids != 0));
    ck_assert_uint_eq(k->reserved, 0);
}

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

/* Calls on one lease happen in the order in which they were submitted, and a lookup sees every
 * insert submitted before it: here all of a request at once, while the daemon is stopped. */
START_TEST(order_of_calls_and_answers)
{
    struct async a;
    async_open(&a);
    struct held l = look_seq(&a.w, &a.s);
    a.w.unchecked = true;
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 1, 1));
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 2)); /* not the partial block: the table ends */
    OK(pfx_submit_reserve(a.c, l.lease, 1, 3));    /* too late */
    OK(pfx_submit_lookup(a.c, &a.look, 4));        /* sees it */
    OK(pfx_submit_release(a.c, l.lease, 5));
    OK(pfx_submit_release(a.c, l.lease, 6));
    OK(pfx_submit_truncate(a.c, l.lease, 0, 7));
    struct pfx_completion k = completion_empty();
    ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, 5), 0);
    host_resume(&a.h);
    a.w.unchecked = false;
    completion_of(a.c, 1, 0);
    k = completion_of(a.c, 2, 0);
    ck_assert_uint_eq(k.insert.cached_blocks, 3);
    completion_of(a.c, 3, PFX_ECONFLICT);
    k = completion_of(a.c, 4, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 12);
    OK(pfx_release(a.c, k.lease));
    completion_of(a.c, 5, 0);
    completion_of(a.c, 6, PFX_ESTALE);
    completion_of(a.c, 7, PFX_ESTALE);
    async_close(&a);
}
END_TEST

/* Calls on different leases, too: a reserve gets the room that an earlier release gave back, though
 * that stood in line behind an insert. */
static void reserve_after_release(bool synchronous)
{
    enum { N = 64 };
    struct async a;
    async_open(&a);
    struct held l = look(&a.w, ""), next = look(&a.w, "");
    static uint32_t tokens[N * 4], ids[N];
    sequence(tokens, N * 4, 1);
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = N * 4};
    for (int i = 0; i < 50; i++) { /* the whole pool each time */
        OK(pfx_submit_reserve(a.c, l.lease, N, 1));
        OK(pfx_submit_insert(a.c, l.lease, &in, 2));
        OK(pfx_submit_release(a.c, l.lease, 3));
        if (synchronous)
            OK(pfx_reserve(a.c, next.lease, N, ids));
        else
            OK(pfx_submit_reserve(a.c, next.lease, N, 4));
        for (uint64_t tag = 1; tag <= (synchronous ? 3 : 4); tag++)
            completion_of(a.c, tag, 0);
        ck_assert_int_eq(cut(&a.w, &next, 0), 0);
        l = next;
        next = look(&a.w, "");
        tokens[0]++;
    }
    drop(&a.w, &l);
    drop(&a.w, &next);
    async_close(&a);
}

START_TEST(order_across_leases)
{
    reserve_after_release(false);
    reserve_after_release(true);
}
END_TEST

/* An insert of many pieces is one call: another of the same tokens does not come in between. */
START_TEST(order_of_large_inserts)
{
    enum { N = 60000, LEASES = 4 };
    struct host h;
    HOST_START(&h, "--blocks", "20000", "--block-tokens", "16", "--block-bytes", "64");
    pfx *c = connect_with(&h, (struct pfx_options){0});
    static uint32_t tokens[N];
    struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = N};
    struct pfx_lookup_args look = {.size = sizeof look};
    uint64_t lease[LEASES];
    for (uint32_t round = 0; round < 5; round++) {
        sequence(tokens, N, round);
        for (uint64_t i = 0; i < LEASES; i++) {
            OK(pfx_submit_lookup(c, &look, i));
            lease[i] = completion_of(c, i, 0).lease;
            OK(pfx_submit_reserve(c, lease[i], N / 16, i));
            completion_of(c, i, 0);
        }
        for (uint64_t i = 0; i < LEASES; i++)
            OK(pfx_submit_insert(c, lease[i], &in, i));
        for (uint64_t i = 0; i < LEASES; i++) {
            struct pfx_completion k = completion_of(c, i, 0);
            ck_assert_uint_eq(k.insert.cached_blocks, N / 16);
            ck_assert_uint_eq(k.insert.new_blocks, i ? 0 : N / 16);
            ck_assert_uint_eq(k.insert.duplicate_blocks, i ? N / 16 : 0);
        }
        for (uint64_t i = 0; i < LEASES; i++)
            OK(pfx_release(c, lease[i]));
    }
    pfx_close(c);
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

/* A fetch submitted before a flush succeeds, though the flush may be over when its answer is read. */
START_TEST(fetch_before_a_flush)
{
    struct async a;
    async_open(&a);
    for (int i = 0; i < 200; i++) {
        cache(&a.w, "zzzzyyyyxxxx");
        struct held l = look(&a.w, "zzzzyx"); /* the front of a run, whose rest the flush removes */
        OK(pfx_submit_fetch(a.c, l.lease, 1));
        OK(pfx_flush(a.c, 0));
        struct pfx_completion k = completion_of(a.c, 1, 0);
        ck_assert_uint_eq(k.match.matched_tokens, 4);
        ck_assert_uint_eq(k.match.blocks[0], l.table[0]);
        drop(&a.w, &l);
    }
    async_close(&a);
}
END_TEST

START_TEST(tags_may_repeat)
{
    struct async a;
    async_open(&a);
    uint64_t lease[5];
    for (int i = 0; i < 5; i++)
        OK(pfx_submit_lookup(a.c, &a.look, 7));
    for (int i = 0; i < 5; i++) {
        lease[i] = completion_of(a.c, 7, 0).lease;
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(lease[i], lease[k]);
    }
    completion_none(a.c);
    for (int i = 0; i < 5; i++)
        OK(pfx_submit_release(a.c, lease[i], 7));
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(completion_of(a.c, 7, 0).lease, lease[i]);
    async_close(&a);
}
END_TEST

/* ---- whose memory -------------------------------------------------------------------------- */

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

/* All that a call is given is gone when the call is sent: the daemon is stopped meanwhile, and
 * each of them stands in a line. */
START_TEST(arrays_are_free_after_submit)
{
    struct async a;
    async_open(&a);
    struct held l = look(&a.w, "");
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 4, 1));
    const struct pfx_extra x[2] = {{.at = 1, .len = 2, .digest = {7}}, {.at = 12, .len = 1}};
    size_t n_tokens = a.s.n * 4;
    for (int i = 0; i < 2; i++) { /* an insert, and the lookup that waits for it */
        uint32_t *tokens = borrowed(a.s.at, n_tokens);
        struct pfx_extra *extras = borrowed(x, sizeof x);
        struct pfx_insert_args in = a.in;
        struct pfx_lookup_args look = a.look;
        in.tokens = look.tokens = tokens;
        in.extras = look.extras = extras;
        in.n_extras = look.n_extras = 2;
        if (i == 0)
            OK(pfx_submit_insert(a.c, l.lease, &in, 2));
        else
            OK(pfx_submit_lookup(a.c, &look, 3));
        give_back(tokens, n_tokens);
        give_back(extras, sizeof x);
    }
    for (int i = 0; i < 2; i++) { /* the same of no tokens: the extras alone */
        struct pfx_extra *extras = borrowed(x, sizeof x);
        struct pfx_insert_args in = {.size = sizeof in, .extras = extras, .n_extras = 2};
        struct pfx_lookup_args look = {.size = sizeof look, .tokens = a.s.at, .n_tokens = 1,
                                       .extras = extras, .n_extras = 2};
        if (i == 0)
            OK(pfx_submit_insert(a.c, l.lease, &in, 4));
        else
            OK(pfx_submit_lookup(a.c, &look, 5));
        give_back(extras, sizeof x);
    }
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

/* ---- waiting ----------------------------------------------------------------------------------- */

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
        ck_assert_msg(took >= (uint64_t)ms[i] * 1000 && took < ((uint64_t)ms[i] + 200) * 1000 * SLOW,
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

/* A synchronous call keeps other completions for the next pfx_wait, all of them and in order. */
START_TEST(synchronous_calls_keep_completions)
{
    struct async a;
    async_open(&a);
    uint64_t lease[20];
    for (uint64_t tag = 0; tag < 20; tag++) {
        OK(pfx_submit_lookup(a.c, &a.look, tag));
        struct held l = look_seq(&a.w, &a.s); /* answered after all that was submitted */
        drop(&a.w, &l);
        ck_assert_uint_eq(counters(&a.w).leases, tag + 1);
    }
    for (uint64_t tag = 0; tag < 20; tag++) {
        struct pfx_completion k = completion_empty();
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, 0), 1); /* it is there already */
        ck_assert_uint_eq(k.tag, tag);
        lease[tag] = k.lease;
    }
    for (int i = 0; i < 20; i++)
        OK(pfx_release(a.c, lease[i]));
    async_close(&a);
}
END_TEST

/* At the daemon's death every submitted call completes with PFX_EGONE, in order, those in line
 * too; what was answered before keeps its answer; then pfx_wait says so. */
START_TEST(death_completes_all)
{
    struct async a;
    async_open(&a);
    struct held l = look_seq(&a.w, &a.s);
    OK(pfx_submit_lookup(a.c, &a.look, 1));
    OK(pfx_ping(a.c));
    host_pause(&a.h);
    OK(pfx_submit_reserve(a.c, l.lease, 1, 2));
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 3));
    OK(pfx_submit_release(a.c, l.lease, 4));
    OK(pfx_submit_lookup(a.c, &a.look, 5));
    OK(pfx_submit_truncate(a.c, l.lease, 0, 6));
    host_kill(&a.h);
    struct pfx_completion k = completion_of(a.c, 1, 0);
    ck_assert_uint_eq(k.match.matched_tokens, 8);
    for (uint64_t tag = 2; tag <= 6; tag++) {
        k = completion_of(a.c, tag, PFX_EGONE);
        only(&k, false, false, 0);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pfx_wait(a.c, &k, sizeof k, 1, -1), PFX_EGONE);
    ck_assert_int_eq(pfx_submit_lookup(a.c, &a.look, 7), PFX_EGONE);
    ck_assert_int_eq(pfx_submit_release(a.c, l.lease, 7), PFX_EGONE);
    ck_assert_int_eq(pfx_cancel(a.c, 5), PFX_ENOENT);
    worker_close(&a.w);
    host_again(&a.h, NULL);
    host_stop(&a.h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("async");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, every_call_and_its_completion);
    tcase_add_test(t, failures_and_their_completions);
    tcase_add_test(t, order_of_calls_and_answers);
    tcase_add_test(t, order_across_leases);
    tcase_add_test(t, order_of_large_inserts);
    tcase_add_test(t, fetch_before_a_flush);
    tcase_add_test(t, tags_may_repeat);
    tcase_add_test(t, arrays_are_free_after_submit);
    tcase_add_test(t, larger_stride);
    tcase_add_test(t, ids_stay_until_the_next_wait);
    tcase_add_test(t, wait_timeouts);
    tcase_add_test(t, wait_until_it_comes);
    tcase_add_test(t, wait_takes_at_most_max);
    tcase_add_test(t, synchronous_calls_keep_completions);
    tcase_add_test(t, death_completes_all);
    suite_add_tcase(s, t);
    return s;
}
