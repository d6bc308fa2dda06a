/*
 * Huge pages that a worker gives away. A hole in a pool of plain pages is filled again when it is
 * touched; one in a pool of huge pages only as long as there are any, and everybody may use them
 * up. Then a touch is SIGBUS, and the daemon does touch pages: states that it spills.
 */
#include "client/prefixd.h"
#include "tests/raw.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE = 2 << 20, PAGES = 4, POOL = 3 /* of the descriptors */ };

static const char number_file[] = "/proc/sys/vm/nr_hugepages";
static unsigned before;

static unsigned huge_pages(void)
{
    FILE *f = fopen(number_file, "re");
    unsigned n;
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%u", &n), 1);
    fclose(f);
    return n;
}

static void want_huge_pages(unsigned n)
{
    FILE *f = fopen(number_file, "we");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%u", n);
    ck_assert_int_eq(fclose(f), 0);
}

#define NO_HUGE_PAGES "this user cannot write vm.nr_hugepages: there are none to give away"

static bool may_have_huge_pages(void)
{
    return access(number_file, W_OK) == 0;
}

static void more_huge_pages(void)
{
    if (!may_have_huge_pages())
        return;
    before = huge_pages();
    want_huge_pages(before + PAGES);
    ck_assert_msg(huge_pages() == before + PAGES, "the machine gives no huge pages");
}

static void as_many_as_before(void)
{
    if (may_have_huge_pages())
        want_huge_pages(before);
}

/* Until there are none. */
static unsigned take_huge_pages(void)
{
    unsigned n = 0;
    while (mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0) != MAP_FAILED)
        n++;
    return n;
}

/* File a state after the prefix of two blocks, and have it spilled. */
static void spill_a_state(struct raw *w, uint64_t lease)
{
    struct request rq = {.op = OP_INSERT, .lease = lease, .flags = RF_LAST, .insert = {.piece = 8}};
    ck_assert_int_eq(raw_call(w, rq).status, 0);
    rq = (struct request){.op = OP_SNAPSHOT_RESERVE, .lease = lease};
    struct wire_completion c = raw_call(w, rq);
    ck_assert_int_eq(c.status, 0);
    rq = (struct request){
        .op = OP_SNAPSHOT_INSERT, .lease = lease, .number = {.n = c.number.slot, .depth = 8}};
    ck_assert_int_eq(raw_call(w, rq).status, 0);
    rq = (struct request){.op = OP_SNAPSHOT_SPILL};
    ck_assert_int_eq(raw_call(w, rq).status, 0);
}

START_TEST(huge_pages_given_away)
{
    struct host h;
    struct worker honest;
    struct raw w;
    struct stat st;
    if (!may_have_huge_pages())
        SKIP_TEST(NO_HUGE_PAGES);
    HOST_START(&h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64", "--huge-pages",
               "--snapshots", "4", "--snapshot-bytes", "4096", "--snapshot-swap", "1M");
    ck_assert(!host_logged(&h, "huge pages could not be had"));
    worker_open(&honest, &h, NULL);
    raw_open(&w, &h, "thief");
    uint64_t lease = raw_lease(&w);
    ck_assert_int_eq(raw_reserve(&w, lease, 2).status, 0);
    ck_assert_int_eq(fstat(w.fds[POOL], &st), 0);
    int flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    ck_assert_int_eq(fallocate(w.fds[POOL], flags, 0, st.st_size), 0);
    ck_assert_uint_gt(take_huge_pages(), 0);
    spill_a_state(&w, lease);
    ck_assert(host_logged(&h, "given a huge page of the pool away"));
    raw_close(&w);
    EVENTUALLY(5000, counters(&honest).workers == 1);
    step(&honest);
    ck_assert_int_eq(pfx_ping(honest.c), 0);
    worker_close(&honest);
    host_stop(&h);
}
END_TEST

/* A SIGBUS that is not the touch of a page, and so would not come again. */
START_TEST(huge_pages_and_a_signal_from_outside)
{
    struct host h;
    int status;
    if (!may_have_huge_pages())
        SKIP_TEST(NO_HUGE_PAGES);
    HOST_START(&h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64", "--huge-pages");
    ck_assert(!host_logged(&h, "huge pages could not be had"));
    ck_assert_int_eq(kill(h.pid, SIGBUS), 0);
    EVENTUALLY(5000, waitpid(h.pid, &status, WNOHANG) == h.pid);
    ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0); /* a sanitizer's way to die */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("huge pages");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_unchecked_fixture(t, more_huge_pages, as_many_as_before);
    tcase_add_test(t, huge_pages_given_away);
    tcase_add_test(t, huge_pages_and_a_signal_from_outside);
    suite_add_tcase(s, t);
    return s;
}
