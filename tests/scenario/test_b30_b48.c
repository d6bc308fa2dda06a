/* Public reports B30 to B48 as far as they need neither snapshots (test_snapshots_public.c,
 * test_snapshots_spaces.c) nor a disk: waiting, stopped workers, mappings of a dead daemon, sizes,
 * odd input, flush. Those about killed workers (B38) are in tests/death/. */
#include "tests/raw.h"
#include "tests/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Sequences that stay open are leases: they hold what they have, and nothing waits for ever. */
START_TEST(b30_open_sequences_and_a_full_pool)
{
    struct host h;
    struct worker w, v;
    struct held open[3];
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    for (int i = 0; i < 3; i++) {
        open[i] = look(&w, "");
        ck_assert_int_eq(grab(&w, &open[i], 5), 0);
    }
    struct held fourth = look(&v, "");
    uint64_t start = now_ms();
    ck_assert_int_eq(grab(&v, &fourth, 5), PFX_ENOSPC);
    ck_assert_uint_lt(now_ms() - start, 100 * SLOW);
    ck_assert_int_eq(grab(&w, &open[0], 1), 0);
    ck_assert_int_eq(grab(&w, &open[0], 1), PFX_ENOSPC);
    drop(&w, &open[1]);
    ck_assert_int_eq(release(&w, open[1].lease), PFX_ESTALE); /* closed twice */
    ck_assert_int_eq(grab(&w, &open[1], 1), PFX_ESTALE);      /* used after */
    ck_assert_int_eq(grab(&v, &fourth, 5), 0);
    worker_close(&v);
    drop(&w, &open[0]);
    drop(&w, &open[2]);
    EVENTUALLY(5000, pages(&w).free == 16);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B43, over memfds ------------------------------------------------------------------- */

static unsigned memfd_mappings(void)
{
    char line[512];
    unsigned n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:") != NULL;
    fclose(f);
    return n;
}

static void *open_elsewhere(void *arg) /* in a fresh thread */
{
    struct worker w;
    worker_open(&w, arg, NULL);
    cache(&w, "qqqq");
    ck_assert_uint_eq(matched(&w, "qqqqx"), 4);
    worker_close(&w);
    return NULL;
}

static void never_maps(struct child *me, void *arg)
{
    struct raw r;
    struct hello hello = raw_hello("idle");
    ck_assert(raw_greet(&r, arg, &hello));
    ck_assert_uint_ge(r.n_fds, 4);
}

START_TEST(b43_mappings_of_a_dead_daemon)
{
    static const char *const options[] = {"--blocks", "16", "--block-tokens", "4", NULL};
    struct host h;
    struct worker w, again;
    struct child c;
    pthread_t thread;
    unsigned mapped = memfd_mappings(), fds = count_fds(getpid());
    host_start(&h, options);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbb");
    struct held old = look(&w, "aaaabbbbx");
    uint64_t epoch = pfx_geometry(w.c)->epoch;
    host_kill(&h);
    w.unchecked = true;
    uint64_t start = now_ms();
    ck_assert_int_eq(grab(&w, &old, 1), PFX_EGONE);
    ck_assert_uint_lt(now_ms() - start, 100 * SLOW);
    host_again(&h, options);
    ck_assert_int_eq(grab(&w, &old, 1), PFX_EGONE); /* for good: another epoch */
    bytes_match(&w, &old, "aaaabbbb");              /* its old mapping stays readable */

    worker_open(&again, &h, NULL);
    ck_assert_uint_ne(pfx_geometry(again.c)->epoch, epoch);
    ck_assert_int_eq(release(&again, old.lease), PFX_ESTALE);
    ck_assert_uint_eq(matched(&again, "aaaabbbbx"), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, open_elsewhere, &h), 0);
    pthread_join(thread, NULL);
    child_start(&c, never_maps, &h);
    child_join(&c);
    EVENTUALLY(5000, counters(&again).workers == 1);
    worker_close(&w);
    worker_close(&again);
    host_stop(&h);
    ck_assert_uint_eq(memfd_mappings(), mapped);
    ck_assert_uint_eq(count_fds(getpid()), fds);
}
END_TEST

/* ---- B45 ----------------------------------------------------------------------------------- */

START_TEST(b45_pages_beyond_2_to_the_31)
{
    enum { PAGE = 1002240, PAGES = 10000 };
    static const uint32_t ids[] = {1, 2142, 2143, 4285, 4286, 9999, 10000};
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "10000", "--block-tokens", "16", "--block-bytes", "1002240");
    worker_open(&w, &h, NULL);
    struct pfx_pool_view view = {.size = sizeof view};
    ck_assert_int_eq(pfx_pool_view(w.c, 0, &view), 0);
    ck_assert_uint_ge(view.block_stride, PAGE);
    uint32_t *all = calloc(PAGES, sizeof *all);
    struct held l = look(&w, "");
    ck_assert_int_eq(pfx_reserve(w.c, l.lease, PAGES, all), 0); /* every page there is */
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        uint8_t *page = pfx_block_address(w.c, 0, ids[i]);
        ck_assert_ptr_eq(page, (uint8_t *)view.blocks + ids[i] * view.block_stride);
        memset(page, (int)ids[i] % 251, PAGE);
    }
    struct worker v; /* another mapping sees the same */
    worker_open(&v, &h, NULL);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const uint8_t *page = pfx_block_address(v.c, 0, ids[i]);
        for (size_t k = 0; k < PAGE; k++)
            REQUIRE_EQ(page[k], ids[i] % 251);
    }
    free(all);
    step(&w);
    worker_close(&v);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- B46 ------------------------------------------------------------------------------------- */

START_TEST(b46_empty_input)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    struct pfx_stats before = counters(&w);
    struct held l = look(&w, "");
    ck_assert_uint_eq(l.match.matched_tokens, 0);
    ck_assert_uint_eq(l.match.n_blocks, 0);
    ck_assert_uint_eq(l.match.tail_tokens, 0);
    ck_assert_int_eq(grab(&w, &l, 0), 0);
    struct pfx_insert_args none = {.size = sizeof none};
    struct pfx_insert_result r = {.size = sizeof r};
    ck_assert_int_eq(pfx_insert(w.c, l.lease, &none, NULL, &r), 0);
    step(&w);
    ck_assert_uint_eq(r.cached_blocks + r.new_blocks + r.duplicate_blocks, 0);
    ck_assert_int_eq(cut(&w, &l, 0), 0);
    drop(&w, &l);
    ck_assert_int_eq(release(&w, 0), PFX_ESTALE);
    struct pfx_stats after = counters(&w); /* an empty lease counts as nothing */
    ck_assert_mem_eq(&before, &after, sizeof before);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b46_tenant_names)
{
    static const char odd[] = "/../\n\xff\xfe\0..\"'\\";
    uint8_t longest[256];
    struct host h;
    struct worker w;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    for (size_t i = 0; i < sizeof longest; i++)
        longest[i] = (uint8_t)i;
    struct pfx_space_desc d = {.size = sizeof d, .tenant = longest, .tenant_len = 256};
    pfx_space space = 0;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &space), PFX_EINVAL);
    d.tenant_len = 255;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &w.space), 0);
    cache(&w, "aaaa");
    d.tenant_len = 254; /* compared whole */
    ck_assert_int_eq(pfx_space_open(w.c, &d, &space), 0);
    ck_assert_uint_ne(space, w.space);
    for (uint32_t n = 1; n < sizeof odd; n++) { /* each prefix of it is somebody else */
        d = (struct pfx_space_desc){.size = sizeof d, .tenant = odd, .tenant_len = n};
        ck_assert_int_eq(pfx_space_open(w.c, &d, &space), 0);
        w.space = space;
        ck_assert_uint_eq(matched(&w, "aaaax"), 0);
        ck_assert_int_eq(pfx_space_close(w.c, space), 0);
        step(&w);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(b46_long_run_directory)
{
    char path[300] = "/tmp/", output[2048];
    memset(path + 5, 'x', 250);
    strcpy(path + 200, "/s");
    int rc = program_run(prefixd_path(), (const char *const[]){"--socket", path, NULL}, output,
                         sizeof output);
    ck_assert_int_eq(rc, 2);
    ck_assert_msg(strstr(output, "--socket") != NULL, "not named: %s", output);
    struct pfx_options o = {.size = sizeof o, .socket_path = path};
    pfx *c = NULL;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EINVAL);
    ck_assert_ptr_null(c);
}
END_TEST

/* ---- B48 ---------------------------------------- */

START_TEST(b48_flush_is_complete)
{
    struct host h;
    struct worker w, v;
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    worker_open(&v, &h, NULL);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "n", .tenant_len = 1};
    pfx_space ns = 0, other = 0;
    ck_assert_int_eq(pfx_space_open(w.c, &d, &ns), 0);
    ck_assert_int_eq(pfx_space_open(v.c, &d, &v.space), 0);
    ck_assert_uint_eq(v.space, ns); /* one number in all connections */
    d.tenant = "m";
    ck_assert_int_eq(pfx_space_open(w.c, &d, &other), 0);
    w.space = other;
    cache(&w, "aaaabbbb");
    w.space = ns;
    cache(&w, "aaaabbbb");
    struct held old = look(&w, "aaaabbbbcccc");
    ck_assert_int_eq(grab(&w, &old, 1), 0);
    pages_are(&w, 11, 1, 2, 2);
    uint64_t evicted = counters(&w).evicted_blocks;

    ck_assert_int_eq(pfx_flush(v.c, ns), 0);
    step(&w);
    ck_assert_uint_eq(counters(&w).evicted_blocks, evicted); /* a flush is no eviction */
    ck_assert_uint_eq(matched(&v, "aaaabbbbx"), 0);
    bytes_match(&w, &old, "aaaabbbb"); /* readable to its holder */
    ck_assert_int_eq(put(&w, &old, "aaaabbbbcccc", 0, NULL, NULL), PFX_ESTALE);
    ck_assert_int_eq(grab(&w, &old, 1), PFX_ESTALE);
    ck_assert_uint_eq(matched(&v, "aaaabbbbccccx"), 0);

    v.weights = 2; /* new weights, new bytes, new pages */
    cache(&v, "aaaabbbb");
    struct held fresh = look(&v, "aaaabbbbx");
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            ck_assert_uint_ne(fresh.table[i], old.table[k]);
    drop(&v, &fresh);
    pages_are(&w, 9, 1, 2, 4);
    drop(&w, &old);
    pages_are(&w, 12, 0, 0, 4);                     /* free, not idle */
    ck_assert_uint_eq(matched(&v, "aaaabbbbx"), 8); /* checks the new bytes */
    w.space = other;
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    ck_assert_int_eq(pfx_flush(w.c, PFX_ALL_SPACES), 0);
    step(&w);
    pages_are(&w, 16, 0, 0, 0);
    worker_close(&w);
    worker_close(&v);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("public reports B30..B48");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, b30_open_sequences_and_a_full_pool);
    tcase_add_test(t, b43_mappings_of_a_dead_daemon);
    tcase_add_test(t, b45_pages_beyond_2_to_the_31);
    tcase_add_test(t, b46_empty_input);
    tcase_add_test(t, b46_tenant_names);
    tcase_add_test(t, b46_long_run_directory);
    tcase_add_test(t, b48_flush_is_complete);
    suite_add_tcase(s, t);
    return s;
}
