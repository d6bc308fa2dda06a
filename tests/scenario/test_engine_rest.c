/* Engine faults beyond the tree (test_engine_tree.c) that concern this part: reserving, scheduling,
 * lifecycle, identity. What belongs to snapshots and the disk tier is named in COVERAGE.md. */
#include "tests/refuse.h"
#include "tests/worker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* E64: exhaustion evicts the cache before it fails anybody; a failure leaves the table in step. */
START_TEST(e64_exhaustion_evicts_then_fails_cleanly)
{
    struct host h;
    struct worker w;
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    cache(&w, "eeeeffffgggghhhh");
    struct held l = look(&w, "");
    ck_assert_int_eq(grab(&w, &l, 8), 0); /* all of it was only cached */
    ck_assert_int_eq(grab(&w, &l, 1), PFX_ENOSPC);
    ck_assert_int_eq(cut(&w, &l, 7), 0);
    ck_assert_int_eq(cut(&w, &l, 8), PFX_EINVAL); /* the failed page is not in the table */
    ck_assert_int_eq(grab(&w, &l, 1), 0);
    pages_are(&w, 0, 8, 0, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

static unsigned files_in(const char *dir, const char *foreign)
{
    unsigned n = 0, seen = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        n += e->d_name[0] != '.';
        seen += strcmp(e->d_name, foreign) == 0;
    }
    closedir(d);
    ck_assert_uint_eq(seen, 1);
    return n;
}

/* E75, E96: a directory of its own or shared, nothing foreign is touched and nothing piles up. */
START_TEST(e75_starts_and_stops_leave_nothing)
{
    static const char *const options[] = {"--blocks", "8", "--block-tokens", "4", NULL};
    struct host a, b;
    char path[128];
    host_start(&a, options);
    snprintf(path, sizeof path, "%s/foreign", a.dir);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    unsigned files = files_in(a.dir, "foreign");
    b = a; /* a second daemon in the same directory, on another socket */
    snprintf(b.socket, sizeof b.socket, "%s/t", a.dir);
    unsigned most = 0;
    for (int i = 0; i < 5; i++) {
        host_again(&b, options);
        unsigned now = files_in(a.dir, "foreign");
        ck_assert(most == 0 || now == most);
        most = now;
        host_kill(&b); /* it cannot clean up: the next one finds that */
    }
    struct worker w;
    worker_open(&w, &a, NULL); /* the first has noticed nothing */
    cache(&w, "aaaa");
    worker_close(&w);
    ck_assert_uint_ge(files_in(a.dir, "foreign"), files);
    host_stop(&a);
}
END_TEST

/* E99: names given out by one daemon mean nothing to another. */
START_TEST(e99_two_daemons_share_no_names)
{
    struct host a, b;
    struct worker wa, wb;
    host_small(&a, 8, 4);
    host_small(&b, 8, 4);
    worker_open(&wa, &a, NULL);
    worker_open(&wb, &b, NULL);
    ck_assert_uint_ne(pfx_geometry(wa.c)->epoch, pfx_geometry(wb.c)->epoch);
    cache(&wa, "aaaabbbb");
    struct held l = look(&wa, "aaaabbbbx");
    ck_assert_uint_eq(matched(&wb, "aaaabbbbx"), 0);
    ck_assert_int_eq(release(&wb, l.lease), PFX_ESTALE);
    pages_are(&wa, 6, 0, 2, 0);
    worker_close(&wa);
    worker_close(&wb);
    host_stop(&a);
    host_stop(&b);
}
END_TEST

/* Epoch, file ids and seeds are random numbers; without these there is no daemon. */
START_TEST(e99_no_random_numbers_no_daemon)
{
    char dir[64], socket[80], said[2048];
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    const char *words[] = {"--socket", socket, "--blocks", "8", NULL};
    refuse_call(__NR_getrandom, ENOSYS);
    ck_assert_int_eq(program_run(prefixd_path(), words, said, sizeof said), 1);
    ck_assert_msg(strstr(said, "random numbers") != NULL, "%s", said);
    ck_assert_int_ne(access(socket, F_OK), 0);
}
END_TEST

/* E111, E112: what is cached counts as room, in one call, however deep the chains are. */
START_TEST(e112_one_reserve_reclaims_whole_chains)
{
    struct host h;
    struct worker w;
    host_small(&h, 24, 1);
    worker_open(&w, &h, NULL);
    cache(&w, "abcdefgh");
    cache(&w, "abcdxyz");
    cache(&w, "abpqrstuv");
    struct pages p = pages(&w);
    ck_assert_uint_eq(p.idle, 8 + 3 + 7);
    struct held l = look(&w, "");
    ck_assert_int_eq(grab(&w, &l, 24), 0);
    ck_assert_uint_eq(counters(&w).evicted_blocks, p.idle);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* E114, E115: one stream's exhaustion changes nothing for the others; a retry allocates once. */
START_TEST(e114_a_batch_fails_one_by_one)
{
    struct host h;
    struct worker w;
    struct held stream[4];
    host_small(&h, 8, 4);
    worker_open(&w, &h, NULL);
    for (int i = 0; i < 4; i++) {
        stream[i] = look(&w, "");
        int rc = grab(&w, &stream[i], 3);
        ck_assert_int_eq(rc, i < 2 ? 0 : PFX_ENOSPC);
    }
    pages_are(&w, 2, 6, 0, 0);
    drop(&w, &stream[0]);
    ck_assert_int_eq(grab(&w, &stream[2], 3), 0);
    pages_are(&w, 2, 6, 0, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* E118: with caching off, nothing that a worker does leaves a block behind. */
START_TEST(e118_null_cache_leaks_nothing)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--index", "none", "--blocks", "8", "--block-tokens", "4", "--block-bytes",
               "64");
    worker_open(&w, &h, NULL);
    for (int i = 0; i < 200; i++) {
        struct held l = look(&w, "aaaabbbbcccc");
        ck_assert_int_eq(grab(&w, &l, 3), 0);
        ck_assert_int_ge(put(&w, &l, "aaaabbbbcc", i % 2 ? PFX_FINAL : 0, NULL, NULL), 0);
        pages_are(&w, 5, 3, 0, 0);
        drop(&w, &l);
        pages_are(&w, 8, 0, 0, 0);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* E120: taken by one, given back by a mate: the books are the daemon's, not a thread's. */
static void take_and_tell(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, "engine");
    w.unchecked = true;
    for (;;) {
        struct held l = look(&w, "aaaabbbbcccc");
        ck_assert_int_eq(grab(&w, &l, 1), 0);
        child_post(me, l.lease);
        if (child_wait(me) == 0)
            break;
    }
    worker_close(&w);
}

START_TEST(e120_released_by_a_mate)
{
    struct host h;
    struct worker w;
    struct child c;
    host_small(&h, 8, 4);
    worker_open(&w, &h, "engine");
    cache(&w, "aaaabbbb");
    child_start(&c, take_and_tell, &h);
    for (int i = 0; i < 50; i++) {
        uint64_t lease = child_wait(&c);
        pages_are(&w, 5, 1, 2, 0);
        ck_assert_int_eq(release(&w, lease), 0);
        pages_are(&w, 6, 0, 0, 2);
        child_post(&c, i < 49);
    }
    child_join(&c);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* E121: two prefixes with one FNV-1a value, at any length with a common suffix. */
START_TEST(e121_known_hash_collision)
{
    static const uint32_t p[] = {125131, 1654, 106825, 92909, 151479, 48800, 5};
    static const uint32_t q[] = {99299, 67827, 108731, 46956, 90706, 135831, 126323};
    struct host h;
    struct worker w;
    host_small(&h, 32, 7);
    worker_open(&w, &h, NULL);
    struct seq sp = {.n = 21}, sq = {.n = 21};
    for (size_t i = 0; i < 21; i++) {
        sp.at[i] = i < 7 ? p[i] : (uint32_t)i;
        sq.at[i] = i < 7 ? q[i] : (uint32_t)i;
    }
    ck_assert_uint_eq(cache_seq(&w, &sp, 0), 3);
    struct held l = look_seq(&w, &sq);
    ck_assert_uint_eq(l.match.matched_tokens, 0);
    ck_assert_uint_eq(l.match.tail_tokens, 0);
    drop(&w, &l);
    ck_assert_uint_eq(cache_seq(&w, &sq, 0), 3); /* and saving one displaces nothing */
    sp.n = sq.n = 22;
    l = look_seq(&w, &sp);
    ck_assert_uint_eq(l.match.matched_tokens, 21);
    ck_assert(bytes_are(&w, l.table[0], &sp, 7));
    drop(&w, &l);
    l = look_seq(&w, &sq);
    ck_assert_uint_eq(l.match.matched_tokens, 21);
    ck_assert(bytes_are(&w, l.table[0], &sq, 7));
    drop(&w, &l);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("engine faults: the rest");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, e64_exhaustion_evicts_then_fails_cleanly);
    tcase_add_test(t, e75_starts_and_stops_leave_nothing);
    tcase_add_test(t, e99_two_daemons_share_no_names);
    tcase_add_test(t, e99_no_random_numbers_no_daemon);
    tcase_add_test(t, e112_one_reserve_reclaims_whole_chains);
    tcase_add_test(t, e114_a_batch_fails_one_by_one);
    tcase_add_test(t, e118_null_cache_leaks_nothing);
    tcase_add_test(t, e120_released_by_a_mate);
    tcase_add_test(t, e121_known_hash_collision);
    suite_add_tcase(s, t);
    return s;
}
