/* The rules of the design that are there because the obvious way serves wrong bytes or stalls the
 * daemon, each where a worker would meet it (COVERAGE.md). Those on identity, versions and recency,
 * and on seals, are also in tests/unit/. */
#include "tests/raw.h"
#include "tests/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Section 3: without F_SEAL_SEAL a worker could seal the pool against the next one. */
START_TEST(rule_no_worker_can_seal_what_it_got)
{
    struct host h;
    struct raw r, next;
    host_small(&h, 8, 4);
    raw_open(&r, &h, "sealer");
    for (unsigned i = 0; i < r.n_fds; i++) {
        ck_assert_int_eq(fcntl(r.fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
        ck_assert_int_eq(fcntl(r.fds[i], F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
        ck_assert_int_eq(ftruncate(r.fds[i], 0), -1);
    }
    /* what the daemon alone writes cannot even be mapped for writing */
    for (unsigned i = 1; i <= 2; i++)
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r.fds[i], 0),
                         MAP_FAILED);
    raw_open(&next, &h, "next"); /* maps the pool for writing */
    if (!on_cuda())              /* that is no memory of the host's */
        memset(next.pool.base, 1, 64);
    raw_close(&next);
    raw_close(&r);
    host_stop(&h);
}
END_TEST

/* Section 3: wake-ups are packets that are never waited for. A worker that asks for one at every
 * record and never reads them holds nobody up. */
START_TEST(rule_unread_wakeups_hold_nobody_up)
{
    struct host h;
    struct raw r;
    struct worker w;
    host_small(&h, 8, 4);
    raw_open(&r, &h, "deaf");
    worker_open(&w, &h, NULL);
    int flags = fcntl(r.fd, F_GETFL);
    ck_assert_int_eq(fcntl(r.fd, F_SETFL, flags & ~O_NONBLOCK), 0);
    for (int i = 0; i < 5000; i++) {
        doze_begin(&r.words->doze); /* a new nap: the daemon sends one packet */
        raw_call(&r, (struct request){.op = OP_NOP});
    }
    uint64_t start = now_ms();
    cache(&w, "aaaabbbb");
    ck_assert_uint_lt(now_ms() - start, 1000 * SLOW);
    char wake = WAKE; /* and the other way: packets by the thousand */
    for (int i = 0; i < 5000; i++)
        send(r.fd, &wake, 1, MSG_DONTWAIT);
    ck_assert_uint_eq(matched(&w, "aaaabbbbx"), 8);
    raw_call(&r, (struct request){.op = OP_NOP});
    raw_close(&r);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Section 4: a retried reserve would shift the block table under the worker. */
START_TEST(rule_timed_out_lease_takes_only_a_release)
{
    struct host h;
    struct worker w, v;
    host_small(&h, 8, 4);
    worker_open_timeout(&w, &h, 200 * SLOW);
    worker_open(&v, &h, NULL);
    struct held l = look(&w, "aaaabbbb");
    w.unchecked = true;
    host_pause(&h);
    ck_assert_int_eq(grab(&w, &l, 1), PFX_ETIMEDOUT);
    ck_assert_int_eq(grab(&w, &l, 1), PFX_ESTALE);
    host_resume(&h);
    EVENTUALLY(5000, pages(&v).private == 1); /* it did happen */
    w.unchecked = false;
    ck_assert_int_eq(grab(&w, &l, 1), PFX_ESTALE);
    ck_assert_int_eq(put(&w, &l, "aaaabbbb", 0, NULL, NULL), PFX_ESTALE);
    ck_assert_int_eq(cut(&w, &l, 0), PFX_ESTALE);
    pages_are(&v, 7, 1, 0, 0);
    drop(&w, &l);
    pages_are(&v, 8, 0, 0, 0);
    worker_close(&w);
    worker_close(&v);
    host_stop(&h);
}
END_TEST

/* Section 5: page ids count only after the hold is granted. One process evicts the prefix and
 * caches it anew in other pages, over and over; the bytes under a hold are always the prefix' own.
 */
static void mover(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    w.unchecked = true;
    child_post(me, 1);
    for (int i = 0;; i++) {
        struct held spoil = look(&w, "");
        uint32_t n = 1 + i % 5;
        if (grab(&w, &spoil, n) == 0)
            for (uint32_t k = 0; k < n; k++)
                memset(pfx_block_address(w.c, 0, spoil.table[k]), 0xee, 64);
        struct seq s = seq("aaaabbbbcccc");
        struct pfx_lookup_args args = lookup_args(&w, &s);
        args.max_match = s.n;
        struct held l = look_args(&w, &args);
        if (grab(&w, &l, 3 - l.n_table) == 0)
            put(&w, &l, "aaaabbbbcccc", 0, NULL, NULL);
        drop(&w, &l);
        drop(&w, &spoil);
        struct pfx_evicted e = {.size = sizeof e};
        pfx_evict(w.c, 1 + (uint32_t)i % 3, &e);
    }
}

START_TEST(rule_page_ids_count_only_under_the_hold)
{
    struct host h;
    struct worker w;
    struct child c;
    unsigned hits = 0, moved = 0;
    uint32_t last = 0;
    host_small(&h, 10, 4);
    worker_open(&w, &h, NULL);
    child_start(&c, mover, &h);
    child_wait(&c);
    w.unchecked = true;
    uint64_t until = now_ms() + 60000;
    for (int i = 0; i < 20000 || ((hits <= 100 || moved <= 10) && now_ms() < until); i++) {
        struct held l = look_whole(&w, "aaaabbbbcccc");
        bytes_match(&w, &l, "aaaabbbbcccc");
        hits += l.match.n_blocks > 0;
        if (l.match.n_blocks) {
            moved += l.table[0] != last;
            last = l.table[0];
        }
        drop(&w, &l);
    }
    ck_assert_uint_gt(hits, 100);
    ck_assert_uint_gt(moved, 10);
    child_kill(&c, SIGKILL);
    EVENTUALLY(5000, counters(&w).workers == 1);
    w.unchecked = false;
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Section 6: a scheduler holds leases while its ranks copy; if it alone is killed, its pages stay.
 * (The murder test in tests/death/ does this a thousand times under writing ranks.) */
static void scheduler(struct child *me, void *arg)
{
    struct worker w;
    worker_open(&w, arg, "engine");
    struct held l = look(&w, "aaaabbbb");
    ck_assert_int_eq(grab(&w, &l, 2), 0);
    child_post(me, l.lease);
    child_wait(me);
}

START_TEST(rule_group_outlives_its_killed_member)
{
    struct host h;
    struct worker rank, other;
    struct child c;
    host_small(&h, 8, 4);
    worker_open(&rank, &h, "engine");
    worker_open(&other, &h, "another");
    child_start(&c, scheduler, &h);
    uint64_t lease = child_wait(&c);
    child_kill(&c, SIGKILL);
    EVENTUALLY(5000, counters(&other).workers == 2);
    pages_are(&other, 6, 2, 0, 0);
    struct held all = look(&other, "");
    ck_assert_int_eq(grab(&other, &all, 7), PFX_ENOSPC);
    ck_assert_int_eq(release(&other, lease), PFX_ESTALE); /* not its group's */
    struct held mine = {.lease = lease};
    ck_assert_int_eq(grab(&rank, &mine, 1), 0); /* any member may use it */
    pages_are(&other, 5, 3, 0, 0);
    worker_close(&rank); /* the last one goes: now they come back */
    EVENTUALLY(5000, pages(&other).free == 8);
    step(&other);

    worker_open(&rank, &h, "engine"); /* after its last member has gone, the name is a new group */
    ck_assert_int_eq(release(&rank, lease), PFX_ESTALE);
    worker_close(&rank);
    worker_close(&other);
    host_stop(&h);
}
END_TEST

/* Section 5, recency, as a worker sees it: a prefix outlives its suffix, and only what was asked
 * for is young. */
START_TEST(rule_recency_through_the_interface)
{
    struct host h;
    struct worker w;
    host_small(&h, 12, 4);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbccccdddd");
    cache(&w, "xxxxyyyy");
    struct held l = look(&w, "aaaabbbb-"); /* asks for half of the older one */
    drop(&w, &l);
    cache(&w, "aaaazzzz"); /* splits it; the part below keeps its old stamp */
    struct held need = look(&w, "");
    ck_assert_int_eq(grab(&w, &need, 7), 0); /* five free, two go: c and d */
    ck_assert_uint_eq(matched(&w, "aaaabbbbccccdddd-"), 8);
    ck_assert_uint_eq(matched(&w, "xxxxyyyy-"), 8);
    ck_assert_uint_eq(matched(&w, "aaaazzzz-"), 8);
    ck_assert_int_eq(grab(&w, &need, 2), 0); /* then x and y */
    ck_assert_uint_eq(matched(&w, "aaaabbbb-"), 8);
    ck_assert_uint_eq(matched(&w, "xxxxyyyy-"), 0);
    ck_assert_int_eq(grab(&w, &need, 1), 0); /* then b: its lookup came before z */
    ck_assert_uint_eq(matched(&w, "aaaabbbb-"), 4);
    ck_assert_uint_eq(matched(&w, "aaaazzzz-"), 8);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("rules");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, rule_no_worker_can_seal_what_it_got);
    tcase_add_test(t, rule_unread_wakeups_hold_nobody_up);
    tcase_add_test(t, rule_timed_out_lease_takes_only_a_release);
    tcase_add_test(t, rule_page_ids_count_only_under_the_hold);
    tcase_add_test(t, rule_group_outlives_its_killed_member);
    tcase_add_test(t, rule_recency_through_the_interface);
    suite_add_tcase(s, t);
    return s;
}
