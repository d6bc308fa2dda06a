/* The disk tier through the whole daemon: what leaves the pool is fetched back, survives kill -9,
 * and what was flushed does not. The engines and files have tests of their own (tests/swap). */
#include "tests/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 20000 };

struct site {
    struct host h;
    struct worker w;
    char swap[160];
    const char *options[16];
};

/* 8 blocks of 4 tokens; all that is inserted is written soon. */
static void site_open(struct site *s)
{
    char made[] = "/tmp/prefixd-disk-XXXXXX";
    ck_assert_ptr_ne(mkdtemp(made), NULL);
    snprintf(s->swap, sizeof s->swap, "%s:2M", made);
    const char *const options[] = {"--blocks",
                                   "8",
                                   "--block-tokens",
                                   "4",
                                   "--block-bytes",
                                   "4K",
                                   "--swap",
                                   s->swap,
                                   "--swap-write",
                                   "insert",
                                   NULL};
    memcpy(s->options, options, sizeof options);
    host_start(&s->h, s->options);
    worker_open(&s->w, &s->h, NULL);
    EVENTUALLY(WAIT_MS, counters(&s->w).disk_scan_done);
}

static void site_again(struct site *s)
{
    s->w.unchecked = true;
    host_kill(&s->h);
    worker_close(&s->w);
    host_again(&s->h, s->options);
    worker_open(&s->w, &s->h, NULL);
    s->w.unchecked = false;
    EVENTUALLY(WAIT_MS, counters(&s->w).disk_scan_done);
}

static void site_close(struct site *s)
{
    char command[256];
    worker_close(&s->w);
    host_stop(&s->h);
    snprintf(command, sizeof command, "rm -r %.*s", (int)(strrchr(s->swap, ':') - s->swap),
             s->swap);
    ck_assert_int_eq(system(command), 0);
}

/* As look, which wants all of it on the device. */
static struct held find(struct site *s, const char *text)
{
    struct held h = {0};
    struct seq q = seq(text);
    struct pfx_lookup_args args = lookup_args(&s->w, &q);
    h.match.size = sizeof h.match;
    ck_assert_int_eq(pfx_lookup(s->w.c, &args, &h.match), 0);
    h.lease = h.match.lease;
    step(&s->w);
    return h;
}

/* Found, in whole; the first `resident` blocks without a fetch, all of them with the right bytes
 * after it. */
static void comes_back(struct site *s, const char *text, uint32_t tokens, uint32_t resident)
{
    struct held l = find(s, text);
    ck_assert_uint_eq(l.match.matched_tokens, tokens);
    ck_assert_uint_eq(l.match.n_resident, resident);
    ck_assert_int_eq(pfx_fetch(s->w.c, l.lease, &l.match), 0);
    ck_assert_uint_eq(l.match.n_resident, tokens / 4);
    memcpy(l.table, l.match.blocks, l.match.n_blocks * sizeof l.table[0]);
    l.n_table = l.match.n_blocks;
    bytes_match(&s->w, &l, text);
    drop(&s->w, &l);
}

START_TEST(disk_blocks_come_back_to_the_pool)
{
    struct site s;
    site_open(&s);
    cache(&s.w, "aaaabbbbcccc");
    EVENTUALLY(WAIT_MS, counters(&s.w).disk_used == 3);
    cache(&s.w, "ddddeeeeffffgggghhhhiiii"); /* one page of the first three must go */
    struct held l = find(&s, "aaaabbbbccccx");
    ck_assert_uint_eq(l.match.matched_tokens, 12);
    ck_assert_uint_eq(l.match.n_resident, 2);
    ck_assert_uint_eq(l.match.blocks[2], PFX_NO_BLOCK);
    ck_assert_uint_ne(l.match.disk[2], PFX_NO_DISK);
    drop(&s.w, &l);
    EVENTUALLY(WAIT_MS, counters(&s.w).disk_used == 9);
    comes_back(&s, "aaaabbbbccccx", 12, 2);
    ck_assert_uint_eq(counters(&s.w).disk_read_blocks, 1);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 0);
    site_close(&s);
}
END_TEST

START_TEST(disk_blocks_survive_kill_9)
{
    struct site s;
    site_open(&s);
    cache(&s.w, "aaaabbbbcccc");
    cache(&s.w, "aaaabbbbdddd");
    EVENTUALLY(WAIT_MS, counters(&s.w).disk_used == 4);
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 4);
    comes_back(&s, "aaaabbbbccccx", 12, 0);
    comes_back(&s, "aaaabbbbddddx", 12, 2);
    site_close(&s);
}
END_TEST

/* What the index has room for is what the files have, also with a budget that is another one now.
 */
START_TEST(disk_budget_is_the_same_for_all)
{
    struct site s;
    static char smaller[160];
    site_open(&s);
    uint32_t n = pfx_geometry(s.w.c)->n_disk_blocks;
    ck_assert_uint_gt(n, 8);
    cache(&s.w, "aaaabbbbcccc");
    EVENTUALLY(WAIT_MS, counters(&s.w).disk_used == 3);
    ck_assert_uint_le(counters(&s.w).disk_ready_blocks, n);
    snprintf(smaller, sizeof smaller, "%.*s:1300K", (int)(strrchr(s.swap, ':') - s.swap), s.swap);
    s.options[7] = smaller;
    site_again(&s);
    ck_assert_uint_lt(pfx_geometry(s.w.c)->n_disk_blocks, n);
    ck_assert_uint_le(counters(&s.w).disk_ready_blocks, pfx_geometry(s.w.c)->n_disk_blocks);
    comes_back(&s, "aaaabbbbccccx", 12, 0);
    site_close(&s);
}
END_TEST

START_TEST(disk_flushed_blocks_stay_gone)
{
    struct site s;
    site_open(&s);
    cache(&s.w, "aaaabbbb");
    EVENTUALLY(WAIT_MS, counters(&s.w).disk_used == 2);
    ck_assert_int_eq(pfx_flush(s.w.c, _i ? PFX_ALL_SPACES : 0), 0);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    site_again(&s);
    ck_assert_uint_eq(counters(&s.w).disk_used, 0);
    ck_assert_uint_eq(matched(&s.w, "aaaabbbbx"), 0);
    site_close(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, disk_blocks_come_back_to_the_pool);
    tcase_add_test(t, disk_blocks_survive_kill_9);
    tcase_add_test(t, disk_budget_is_the_same_for_all);
    tcase_add_loop_test(t, disk_flushed_blocks_stay_gone, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
