/*
 * Mates: connections of one group, in other processes, use each other's leases. (What becomes of
 * them when a mate dies: tests/death.)
 */
#include "tests/client/fixture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct pfx_insert_result insert_text(pfx *c, uint64_t lease, const char *text, int want)
{
    struct seq s = seq(text);
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result r = {.size = sizeof r};
    status_is(pfx_insert(c, lease, &args, NULL, &r), want, text);
    return r;
}

/* The rank's part of lease_used_by_a_mate; `me` brings the lease. */
static void rank(struct child *me, void *arg)
{
    pfx *c = connect_with(arg, (struct pfx_options){.group = "engine", .name = "rank"});
    uint64_t l = child_wait(me);
    struct pfx_match m = {.size = sizeof m};
    OK(pfx_fetch(c, l, &m)); /* what the scheduler matched */
    ck_assert_uint_eq(m.matched_tokens, 8);
    ck_assert_uint_eq(m.lease, l);
    uint32_t id;
    OK(pfx_reserve(c, l, 1, &id));
    child_post(me, id);
    child_wait(me); /* the scheduler has inserted cccc */
    ck_assert_uint_eq(insert_text(c, l, "aaaabbbbcccc", 0).new_blocks, 0);
    OK(pfx_reserve(c, l, 2, (uint32_t[2]){0}));
    ck_assert_uint_eq(insert_text(c, l, "aaaabbbbccccdddd", 0).new_blocks, 1);
    ck_assert_int_eq(pfx_truncate(c, l, 3), PFX_ECONFLICT);
    OK(pfx_truncate(c, l, 4));
    child_post(me, 1);
    child_wait(me);
    OK(pfx_release(c, l)); /* for all of them */
    ck_assert_int_eq(pfx_release(c, l), PFX_ESTALE);
    child_post(me, 1);
    child_wait(me);
    pfx_close(c);
}

START_TEST(lease_used_by_a_mate)
{
    struct host h;
    struct worker w;
    struct child c;
    host_small(&h, 32, 4);
    worker_open(&w, &h, "engine");
    cache(&w, "aaaabbbb");
    child_start(&c, rank, &h);
    struct held l = look(&w, "aaaabbbbccccddddx");
    child_post(&c, l.lease);
    l.table[2] = (uint32_t)child_wait(&c);
    pages_are(&w, 29, 1, 2, 0);
    struct seq s = seq("aaaabbbbcccc");
    struct pfx_insert_args args = {.size = sizeof args, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result r = {.size = sizeof r};
    uint32_t canonical[3];
    OK(pfx_insert(w.c, l.lease, &args, canonical, &r)); /* into the block that the rank reserved */
    ck_assert_uint_eq(r.new_blocks, 1);
    ck_assert_uint_eq(canonical[2], l.table[2]);
    child_post(&c, 1);
    child_wait(&c);
    step(&w);
    pages_are(&w, 28, 0, 4, 0);
    /* what the rank inserted is known here too: a contradiction is refused, more goes on from it */
    insert_text(w.c, l.lease, "aaaabbbbccccddde", PFX_ECONFLICT);
    OK(pfx_reserve(w.c, l.lease, 1, canonical));
    ck_assert_uint_eq(insert_text(w.c, l.lease, "aaaabbbbccccddddeeee", 0).new_blocks, 1);
    ck_assert_uint_eq(l.match.blocks[0], l.table[0]); /* valid until the release */
    child_post(&c, 1);
    child_wait(&c);
    struct pfx_match m = {.size = sizeof m};
    FAILS(&w, PFX_ESTALE, pfx_fetch(w.c, l.lease, &m));
    FAILS(&w, PFX_ESTALE, pfx_release(w.c, l.lease));
    pages_are(&w, 27, 0, 0, 5);
    child_post(&c, 1);
    child_join(&c);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* A mate truncates under us: the next insert must agree with what was kept, and no more. */
START_TEST(lease_truncated_by_a_mate)
{
    struct host h;
    struct worker a, b;
    host_small(&h, 32, 4);
    worker_open(&a, &h, "engine");
    worker_open(&b, &h, "engine");
    cache(&a, "aaaabbbbccccdddd");
    struct held l = look_whole(&a, "aaaabbbbccccdddd");
    OK(pfx_truncate(b.c, l.lease, 2));
    uint32_t ids[2];
    OK(pfx_reserve(b.c, l.lease, 2, ids));
    insert_text(a.c, l.lease, "aaaabbbxzzzz", PFX_ECONFLICT);
    step(&a);
    ck_assert_uint_eq(insert_text(a.c, l.lease, "aaaabbbbzzzzyyyy", 0).new_blocks, 2);
    step(&a);
    ck_assert_uint_eq(insert_text(b.c, l.lease, "aaaabbbbzzzzyyyy", 0).new_blocks, 0);
    const char *const both[] = {"aaaabbbbzzzzyyyyx", "aaaabbbbccccddddx"};
    for (size_t i = 0; i < LENGTH(both); i++) {
        struct seq s = seq(both[i]);
        ck_assert_int_eq(pfx_peek(b.c, 0, s.at, s.n), 16);
    }
    drop(&b, &l);
    worker_close(&b);
    worker_close(&a);
    host_stop(&h);
}
END_TEST

/* Only members: the same name of no group, and a group that begins alike, are others. */
START_TEST(groups_are_told_apart)
{
    struct host h;
    struct worker w;
    host_small(&h, 32, 4);
    worker_open(&w, &h, "engine");
    struct held l = look(&w, "aaaab");
    const char *const others[] = {NULL, "", "engin", "engine2", "Engine", " engine"};
    for (size_t i = 0; i < LENGTH(others); i++) {
        struct worker o;
        worker_open(&o, &h, others[i]);
        FAILS(&o, PFX_ESTALE, pfx_truncate(o.c, l.lease, 0));
        FAILS(&o, PFX_ESTALE, pfx_release(o.c, l.lease));
        worker_close(&o);
    }
    struct worker mate;
    worker_open(&mate, &h, "engine");
    OK(pfx_release(mate.c, l.lease));
    worker_close(&mate);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* pfx_close gives back what that member opened, also in a group that lives on, and no more. */
START_TEST(close_gives_back_its_own)
{
    struct host h;
    struct worker a, b;
    host_small(&h, 32, 4);
    worker_open(&a, &h, "engine");
    worker_open(&b, &h, "engine");
    struct held of_a = look(&a, ""), of_b = look(&b, "");
    uint32_t ids[3];
    OK(pfx_reserve(b.c, of_a.lease, 3, ids)); /* by b, on a's lease */
    OK(pfx_reserve(a.c, of_b.lease, 2, ids));
    pages_are(&b, 27, 5, 0, 0);
    worker_close(&a);
    pages_are(&b, 30, 2, 0, 0);
    step(&b);
    FAILS(&b, PFX_ESTALE, pfx_release(b.c, of_a.lease));
    OK(pfx_release(b.c, of_b.lease));
    worker_close(&b);
    host_stop(&h);
}
END_TEST

/* ---- three processes, four leases, everything at once ------------------------------------ */

enum { SHARED = 4, ROUNDS = 1500, MATES = 3, TOKENS = 20000, MATE_BLOCKS = 3000 };

struct mates {
    struct host *h;
    uint64_t *shared; /* ids of the leases */
};

static void take_out(pfx *c, uint64_t *slot, uint64_t new)
{
    uint64_t old = __atomic_exchange_n(slot, new, __ATOMIC_SEQ_CST);
    if (old)
        OK(pfx_release(c, old)); /* whoever takes it out releases it: exactly one */
}

static int random_lookup(pfx *c, struct rng *r, const uint32_t *tokens, uint64_t *slot)
{
    struct pfx_lookup_args args = {
        .size = sizeof args, .tokens = tokens, .n_tokens = rng_below(r, TOKENS)};
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(c, &args, &m);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < m.n_blocks; i++)
        if (m.blocks[i] == 0 || m.blocks[i] > MATE_BLOCKS)
            ck_abort_msg("block %u", m.blocks[i]);
    take_out(c, slot, m.lease);
    return 0;
}

static int random_call(pfx *c, struct rng *r, const uint32_t *tokens, uint64_t *slot)
{
    static uint32_t ids[MATE_BLOCKS];
    uint64_t l = __atomic_load_n(slot, __ATOMIC_SEQ_CST);
    uint32_t op = rng_below(r, 10);
    if (!l || op == 0)
        return random_lookup(c, r, tokens, slot);
    if (op < 4)
        return pfx_reserve(c, l, rng_below(r, 300), ids);
    if (op < 8) {
        struct pfx_insert_args args = {
            .size = sizeof args, .tokens = tokens, .n_written = rng_below(r, TOKENS)};
        struct pfx_insert_result result = {.size = sizeof result};
        return pfx_insert(c, l, &args, op & 1 ? ids : NULL, &result);
    }
    struct pfx_match m = {.size = sizeof m};
    return op < 9 ? pfx_truncate(c, l, rng_below(r, 300)) : pfx_fetch(c, l, &m);
}

static void mate(struct child *me, void *arg)
{
    const struct mates *s = arg;
    static uint32_t tokens[TOKENS];
    sequence(tokens, TOKENS, 1);
    struct rng r = {child_wait(me)};
    pfx *c = connect_with(
        s->h,
        (struct pfx_options){.group = "g", .arena_bytes = rng_below(&r, 2), .ring_entries = 8});
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t *slot = &s->shared[rng_below(&r, SHARED)];
        if (rng_below(&r, 50) == 0)
            tokens[rng_below(&r, MATE_BLOCKS)] ^= 1;
        int rc = random_call(c, &r, tokens, slot);
        if (rc == PFX_ENOSPC)
            take_out(c, slot, 0);
        else if (rc && rc != PFX_ESTALE && rc != PFX_ECONFLICT && rc != PFX_EINVAL)
            ck_abort_msg("%d: %s", rc, pfx_why(c));
    }
    child_post(me, 1);
    child_wait(me);
    pfx_close(c);
}

START_TEST(mates_at_random)
{
    struct host h;
    struct child c[MATES];
    HOST_START(&h, "--blocks", "3000", "--block-tokens", "16", "--block-bytes", "64");
    struct mates s = {&h,
                      mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    struct rng r = rng_seeded("mates_at_random");
    struct worker w;
    worker_open(&w, &h, "g");
    for (int i = 0; i < MATES; i++) {
        child_start(&c[i], mate, &s);
        child_post(&c[i], rng_next(&r));
    }
    for (int i = 0; i < MATES; i++)
        child_wait(&c[i]);
    step(&w); /* while they still hold */
    for (int i = 0; i < SHARED; i++)
        take_out(w.c, &s.shared[i], 0);
    step(&w);
    ck_assert_uint_eq(counters(&w).leases, 0);
    ck_assert_uint_eq(counters(&w).blocks_private, 0);
    ck_assert_uint_eq(counters(&w).blocks_pinned, 0);
    for (int i = 0; i < MATES; i++) {
        child_post(&c[i], 1);
        child_join(&c[i]);
    }
    worker_close(&w);
    host_stop(&h);
    munmap(s.shared, 4096);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mates");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, lease_used_by_a_mate);
    tcase_add_test(t, lease_truncated_by_a_mate);
    tcase_add_test(t, groups_are_told_apart);
    tcase_add_test(t, close_gives_back_its_own);
    tcase_add_test(t, mates_at_random);
    suite_add_tcase(s, t);
    return s;
}
