/* Public reports B14 to B23 (identity, adapters and tenants, partial blocks, splits). The runs with
 * a narrowed hash, and B23's 200,000 operations and 5,040 orders, are in tests/model/. */
#include "tests/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A random prefix of n 4-token blocks. */
static void random_text(struct rng *r, char *text, size_t n_blocks)
{
    for (size_t i = 0; i < n_blocks * 4; i++)
        text[i] = (char)('a' + rng_below(r, 26));
    text[n_blocks * 4] = 0;
}

START_TEST(b14_content_decides)
{
    struct host h;
    struct worker w;
    struct rng r = rng_seeded("b14");
    char text[100][17];
    host_small(&h, 600, 4);
    worker_open(&w, &h, NULL);
    for (int i = 0; i < 100; i++) {
        random_text(&r, text[i], 4);
        cache(&w, text[i]);
    }
    for (int i = 0; i < 100; i++) {
        struct held l = look_whole(&w, text[i]);
        ck_assert_uint_eq(l.match.matched_tokens, 16);
        bytes_match(&w, &l, text[i]);
        drop(&w, &l);
        /* neighbours that differ by +31 and -1: equal under a polynomial hash of base 31 */
        struct seq s = seq(text[i]);
        s.at[2] += 1;
        s.at[3] -= 31;
        struct pfx_lookup_args args = lookup_args(&w, &s);
        args.max_match = s.n;
        l = look_args(&w, &args);
        ck_assert_uint_eq(l.match.matched_tokens, 0);
        drop(&w, &l);
    }
    for (int i = 0; i < 100; i++) {
        char never[17];
        random_text(&r, never, 4);
        never[0] = '#';
        ck_assert_uint_eq(matched(&w, never), 0);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b14_equal_blocks_at_other_positions)
{
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    const char *four = "kkkkkkkkkkkkkkkk";
    struct held l = look(&w, "");
    uint32_t canonical[4];
    ck_assert_int_eq(grab(&w, &l, 4), 0);
    ck_assert_int_eq(put(&w, &l, four, 0, canonical, NULL), 0);
    ck_assert_mem_eq(canonical, l.table, sizeof canonical);
    struct held two = look_whole(&w, "kkkkkkkk"), all = look_whole(&w, four);
    ck_assert_uint_eq(two.match.n_blocks, 2);
    ck_assert_uint_eq(all.match.n_blocks, 4);
    ck_assert_mem_eq(two.table, canonical, 2 * sizeof canonical[0]);
    ck_assert_mem_eq(all.table, canonical, sizeof canonical);
    cache(&w, "xxxx");
    ck_assert_uint_eq(matched(&w, "xxxxkkkkk"), 4);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b15_processes_find_each_others_entries)
{
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    const char *program = getenv("LOOKUP_ONCE_BIN");
    ck_assert_ptr_nonnull(program);
    for (int i = 0; i < 3; i++) { /* a fresh address layout each, and another environment */
        char pad[2000], out[64];
        memset(pad, 'e', sizeof pad);
        pad[i * 700] = 0;
        setenv("PFX_TEST_PAD", pad, 1);
        int rc = program_run(program, (const char *const[]){h.socket, "aaaabbbbccccddddx", NULL},
                             out, sizeof out);
        ck_assert_int_eq(rc, 0);
        ck_assert_str_eq(out, "16\n");
        step(&w);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

static pfx_space space_of(struct worker *w, const char *tenant, uint64_t id, uint64_t generation)
{
    struct pfx_space_desc d = {.size = sizeof d,
                               .tenant = tenant,
                               .tenant_len = (uint32_t)strlen(tenant),
                               .adapter_id = id,
                               .adapter_generation = generation};
    pfx_space out = 0;
    ck_assert_int_eq(pfx_space_open(w->c, &d, &out), 0);
    return out;
}

START_TEST(b16_identities_never_meet)
{
    struct host h;
    struct worker w;
    host_small(&h, 32, 4);
    worker_open(&w, &h, NULL);
    const char *t = "aaaabbbbccccdddd";
    pfx_space space[5] = {0, space_of(&w, "a", 1, 1), space_of(&w, "a", 1, 2),
                          space_of(&w, "a", 2, 1), space_of(&w, "b", 1, 1)};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 5; k++) {
            w.space = space[k];
            ck_assert_uint_eq(matched(&w, "aaaabbbbccccddddx"), k < i ? 16 : 0);
        }
        w.space = space[i];
        ck_assert_uint_eq(cache(&w, t), 4);
    }
    for (int i = 0; i < 5; i++) { /* full match, and only its own bytes */
        w.space = space[i];
        ck_assert_uint_eq(matched(&w, "aaaabbbbccccddddx"), 16);
    }
    w.space = space[1]; /* the generation before the reload: nobody holds it, it may go */
    pages_are(&w, 12, 0, 0, 20);
    ck_assert_uint_eq(evict(&w, 32), 20);
    ck_assert_uint_eq(matched(&w, "aaaabbbbccccddddx"), 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b18_tenant_and_adapter_separate)
{
    struct host h;
    struct worker w;
    host_small(&h, 32, 4);
    worker_open(&w, &h, NULL);
    pfx_space own = space_of(&w, "1", 'A', 0);
    pfx_space others[3] = {space_of(&w, "1", 'B', 0), space_of(&w, "2", 'A', 0),
                           space_of(&w, "1", 0, 0)};
    w.space = own;
    cache(&w, "aaaabbbb");
    for (int i = 0; i < 3; i++) {
        w.space = others[i];
        ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 0);
    }
    w.space = own;
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b19_shorter_than_a_block)
{
    struct host h;
    struct worker w;
    host_small(&h, 4, 64);
    worker_open(&w, &h, NULL);
    struct seq s = {.n = 192};
    for (size_t i = 0; i < s.n; i++)
        s.at[i] = (uint32_t)(1000 + i);
    const uint64_t empty = counters(&w).nodes;

    s.n = 63;
    ck_assert_uint_eq(cache_seq(&w, &s, 0), 0);
    pages_are(&w, 4, 0, 0, 0);
    ck_assert_uint_eq(counters(&w).nodes, empty);
    s.n = 64;
    ck_assert_uint_eq(cache_seq(&w, &s, 0), 1);
    uint64_t nodes = counters(&w).nodes;
    static const struct {
        size_t n;
        uint32_t matched;
    } lookups[] = {{63, 0}, {64, 0}, {65, 64}};
    uint32_t first = 0;
    for (int i = 0; i < 3; i++) {
        s.n = lookups[i].n;
        struct held l = look_seq(&w, &s);
        ck_assert_uint_eq(l.match.matched_tokens, lookups[i].matched);
        first = l.table[0];
        drop(&w, &l);
        ck_assert_uint_eq(counters(&w).nodes, nodes);
    }
    s.n = 128;
    ck_assert_uint_eq(cache_seq(&w, &s, 0), 1);
    s.n = 129;
    struct held l = look_seq(&w, &s);
    ck_assert_uint_eq(l.match.matched_tokens, 128);
    ck_assert_uint_eq(l.table[0], first);
    drop(&w, &l);
    ck_assert_uint_eq(evict(&w, 4), 2);

    for (size_t n = 0; n <= 192; n++) {
        s.n = n;
        ck_assert_uint_eq(cache_seq(&w, &s, 0), n / 64);
        ck_assert_uint_eq(pages(&w).idle, n / 64);
        ck_assert_uint_eq(evict(&w, 4), n / 64);
        pages_are(&w, 4, 0, 0, 0);
        ck_assert_uint_eq(counters(&w).nodes, empty);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* other: let a second worker split the edge at 1 while the lease is held. */
static void b22_run(bool other)
{
    struct host h;
    struct worker w, v;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    struct held l = look(&w, "aaaabbbbxxxx-");
    ck_assert_uint_eq(l.match.matched_tokens, 8);
    pages_are(&w, 12, 0, 2, 2);
    ck_assert_uint_eq(evict(&w, 4), 2);
    pages_are(&w, 14, 0, 2, 0);
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    ck_assert_int_eq(put(&w, &l, "aaaabbbbxxxx", 0, NULL, NULL), 0);
    pages_are(&w, 13, 0, 3, 0);
    if (other)
        ck_assert_uint_eq(cache(&v, "aaaayyyy"), 1);
    drop(&w, &l);
    ck_assert_uint_eq(pages(&w).pinned, 0);
    ck_assert_uint_eq(evict(&w, 16), other ? 4 : 3);
    pages_are(&w, 16, 0, 0, 0);
    worker_close(&w);
    worker_close(&v);
    host_stop(&h);
}

START_TEST(b22_a_hold_ends_where_the_match_ended)
{
    b22_run(false);
    b22_run(true);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("public reports B14..B23");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b14_content_decides);
    tcase_add_test(t, b14_equal_blocks_at_other_positions);
    tcase_add_test(t, b15_processes_find_each_others_entries);
    tcase_add_test(t, b16_identities_never_meet);
    tcase_add_test(t, b18_tenant_and_adapter_separate);
    tcase_add_test(t, b19_shorter_than_a_block);
    tcase_add_test(t, b22_a_hold_ends_where_the_match_ended);
    suite_add_tcase(s, t);
    return s;
}
