/*
 * What one worker can have at most: the others' share stays theirs. (Leases and spaces:
 * tests/client/test_limits.c; workers: test_open.c; rings and arenas: test_hostile.c.)
 */
#include "client/prefixd.h"
#include "tests/client/fixture.h"
#include "tests/worker.h"

#include <signal.h>
#include <string.h>

enum { BLOCKS = 32, SHARE = 6, SLOTS = 8, SLOT_SHARE = 2 };

struct scene {
    struct host h;
    struct worker w, other;
};

static void begin_grouped(struct scene *s, const char *group)
{
    HOST_START(&s->h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "8", "--snapshot-bytes", "64", "--max-worker-blocks", "6", "--max-worker-slots",
               "2");
    worker_open(&s->w, &s->h, group);
    worker_open(&s->other, &s->h, NULL);
}

static void begin(struct scene *s)
{
    begin_grouped(s, NULL);
}

static void end(struct scene *s)
{
    struct held l = look(&s->other, "zzzz"); /* its share was there all the while */
    ck_assert_int_eq(grab(&s->other, &l, SHARE), 0);
    drop(&s->other, &l);
    worker_close(&s->other);
    worker_close(&s->w);
    host_stop(&s->h);
}

static void too_many(struct worker *w, struct held *l, uint32_t n)
{
    struct pages before = pages(w);
    ck_assert_int_eq(grab(w, l, n), PFX_ENOSPC);
    ck_assert_ptr_nonnull(strstr(pfx_why(w->c), "--max-worker-blocks"));
    pages_equal(w, before);
}

START_TEST(caps_blocks_of_a_worker)
{
    struct scene s;
    begin(&s);
    struct held a = look(&s.w, "aaaabbbbcccc"), b = look(&s.w, "ddddeeee");
    too_many(&s.w, &a, SHARE + 1);
    ck_assert_int_eq(grab(&s.w, &a, 4), 0);
    too_many(&s.w, &b, 3);
    ck_assert_int_eq(grab(&s.w, &b, 2), 0);
    too_many(&s.w, &b, 1);
    ck_assert_int_eq(grab(&s.w, &b, 0), 0);
    /* what is cached is held by its lease as before */
    ck_assert_int_eq(put(&s.w, &a, "aaaabbbbcccc", 0, NULL, NULL), 0);
    too_many(&s.w, &b, 1);
    /* given back by a cut, by a release */
    ck_assert_int_eq(cut(&s.w, &a, 3), 0);
    ck_assert_int_eq(grab(&s.w, &b, 1), 0);
    too_many(&s.w, &b, 1);
    drop(&s.w, &a);
    ck_assert_int_eq(grab(&s.w, &b, 3), 0);
    too_many(&s.w, &b, 1);
    /* a match is nobody's share */
    struct held again = look(&s.w, "aaaabbbbccccx");
    ck_assert_uint_eq(again.match.matched_tokens, 12);
    drop(&s.w, &again);
    drop(&s.w, &b);
    end(&s);
}
END_TEST

/* Calls that are under way together do not get more than one after the other. */
START_TEST(caps_blocks_of_calls_at_once)
{
    struct scene s;
    begin(&s);
    struct held l = look(&s.w, "aaaabbbb");
    unsigned had = 0, refused = 0;
    for (uint64_t tag = 0; tag < 8; tag++)
        OK(pfx_submit_reserve(s.w.c, l.lease, 2, tag));
    for (int i = 0; i < 8; i++) {
        struct pfx_completion k = completion_take(s.w.c);
        had += k.status == 0;
        refused += k.status == PFX_ENOSPC;
    }
    ck_assert_uint_eq(had, SHARE / 2);
    ck_assert_uint_eq(refused, 8 - SHARE / 2);
    step(&s.w);
    OK(pfx_release(s.w.c, l.lease));
    end(&s);
}
END_TEST

/* Two members' calls take turns, some blocks at a time: what the one is about to have counts. */
START_TEST(caps_blocks_of_two_members_at_once)
{
    enum { MUCH = 500 };
    struct host h;
    struct worker w, mate;
    HOST_START(&h, "--blocks", "1024", "--block-tokens", "4", "--block-bytes", "64",
               "--max-worker-blocks", "300");
    worker_open(&w, &h, "group");
    worker_open(&mate, &h, "group");
    struct held a = look(&w, "aaaa"), b = look(&mate, "bbbb");
    host_pause(&h);
    OK(pfx_submit_reserve(w.c, a.lease, MUCH, 1));
    OK(pfx_submit_reserve(mate.c, b.lease, MUCH, 2));
    host_resume(&h);
    int one = completion_take(w.c).status, two = completion_take(mate.c).status;
    ck_assert_int_eq(one + two, PFX_ENOSPC); /* and the other 0 */
    ck_assert_uint_eq(pages(&w).private, MUCH);
    step(&w);
    worker_close(&mate);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

START_TEST(caps_slots_of_a_worker)
{
    struct scene s;
    uint32_t slot[SLOT_SHARE], more;
    begin(&s);
    struct held l = look(&s.w, "aaaabbbb");
    ck_assert_int_eq(grab(&s.w, &l, 2), 0);
    ck_assert_int_eq(put(&s.w, &l, "aaaabbbb", 0, NULL, NULL), 0);
    for (int i = 0; i < SLOT_SHARE; i++)
        OK(pfx_snapshot_reserve(s.w.c, l.lease, &slot[i]));
    FAILS(&s.w, PFX_ENOSPC, pfx_snapshot_reserve(s.w.c, l.lease, &more));
    ck_assert_ptr_nonnull(strstr(pfx_why(s.w.c), "--max-worker-slots"));
    OK(pfx_snapshot_insert(s.w.c, l.lease, slot[0], 8, PFX_EXACT)); /* filed: the cache's */
    OK(pfx_snapshot_reserve(s.w.c, l.lease, &slot[0]));
    FAILS(&s.w, PFX_ENOSPC, pfx_snapshot_reserve(s.w.c, l.lease, &more));
    OK(pfx_snapshot_cancel(s.w.c, l.lease, slot[1]));
    OK(pfx_snapshot_reserve(s.w.c, l.lease, &slot[1]));
    struct held theirs = look(&s.other, "zzzz");
    OK(pfx_snapshot_reserve(s.other.c, theirs.lease, &more));
    drop(&s.other, &theirs);
    drop(&s.w, &l);
    struct held next = look(&s.w, "aaaabbbb");
    OK(pfx_snapshot_reserve(s.w.c, next.lease, &slot[0]));
    drop(&s.w, &next);
    end(&s);
}
END_TEST

/* A member comes, takes, and is killed, again and again: its group has what its members' shares
 * are, and no more. */
static void take_and_wait(struct child *me, void *arg)
{
    struct scene *s = arg;
    struct worker w;
    worker_open(&w, &s->h, "group");
    struct held l = look(&w, "mmmm");
    int rc = 0;
    for (uint32_t n = SHARE; n && (rc = pfx_reserve(w.c, l.lease, n, l.table)); n--)
        ck_assert_int_eq(rc, PFX_ENOSPC);
    child_post(me, 1);
    child_wait(me);
}

START_TEST(caps_what_the_dead_have_left)
{
    struct scene s;
    begin_grouped(&s, "group");
    struct held l = look(&s.w, "aaaa");
    ck_assert_int_eq(grab(&s.w, &l, 1), 0);
    for (int i = 0; i < 4; i++) {
        struct child c;
        child_start(&c, take_and_wait, &s);
        child_wait(&c);
        ck_assert_uint_le(pages(&s.w).private, 2 * SHARE);
        child_kill(&c, SIGKILL);
        EVENTUALLY(5000, counters(&s.w).workers == 2);
        step(&s.w);
    }
    ck_assert_uint_eq(pages(&s.w).private, 2 * SHARE);
    too_many(&s.w, &l, 1);
    drop(&s.w, &l);
    end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("caps");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, caps_blocks_of_a_worker);
    tcase_add_test(t, caps_blocks_of_calls_at_once);
    tcase_add_test(t, caps_blocks_of_two_members_at_once);
    tcase_add_test(t, caps_slots_of_a_worker);
    tcase_add_test(t, caps_what_the_dead_have_left);
    suite_add_tcase(s, t);
    return s;
}
