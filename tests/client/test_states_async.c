/* The asynchronous forms of the snapshot calls: one completion each, in order after what was
 * submitted before on the same lease; ids is the slot. */
#include "tests/client/async.h"
#include "tests/states.h"

#include <string.h>

struct scene {
    struct host h;
    struct worker w;
    pfx *c;
    struct seq s;
    struct pfx_insert_args in; /* of "aaaabbbbccccdd", PFX_FINAL */
};

static void scene_open(struct scene *a, unsigned n_tier)
{
    host_states(&a->h, 32, 4, 4, n_tier);
    worker_open(&a->w, &a->h, NULL);
    a->c = a->w.c;
    a->s = seq("aaaabbbbccccdd");
    a->in = (struct pfx_insert_args){
        .size = sizeof a->in, .flags = PFX_FINAL, .tokens = a->s.at, .n_written = a->s.n};
}

static void scene_close(struct scene *a)
{
    completion_none(a->c);
    slots_all_there(&a->w);
    ck_assert_uint_eq(counters(&a->w).leases, 0);
    worker_close(&a->w);
    host_stop(&a->h);
}

/* The slot that a completion carries, and nothing else. */
static uint32_t slot_of(struct scene *a, uint64_t tag, uint64_t lease)
{
    struct pfx_completion k = completion_of(a->c, tag, 0);
    only(&k, false, false, 1);
    ck_assert_uint_eq(k.lease, lease);
    ck_assert(k.ids[0] >= 1 && k.ids[0] <= 4);
    return k.ids[0];
}

START_TEST(slot_in_a_completion)
{
    struct scene a;
    scene_open(&a, 0);
    struct held l = ask(&a.w, "aaaabbbbccccdd", 7, 0);
    uint32_t slot[4];
    for (uint64_t i = 0; i < 4; i++)
        OK(pfx_submit_snapshot_reserve(a.c, l.lease, 10 + i));
    OK(pfx_submit_snapshot_reserve(a.c, l.lease, 14)); /* one too many */
    for (uint64_t i = 0; i < 4; i++) {
        slot[i] = slot_of(&a, 10 + i, l.lease);
        for (uint64_t k = 0; k < i; k++)
            ck_assert_uint_ne(slot[k], slot[i]);
    }
    struct pfx_completion k = completion_of(a.c, 14, PFX_ENOSPC);
    only(&k, false, false, 0);
    ck_assert_uint_eq(k.lease, l.lease);
    for (int i = 0; i < 4; i++)
        OK(slot_cancel(&a.w, &l, slot[i]));
    drop(&a.w, &l);
    scene_close(&a);
}
END_TEST

/* Submitted behind the insert that it needs, before that has an answer. */
START_TEST(snapshot_after_a_submitted_insert)
{
    struct scene a;
    scene_open(&a, 0);
    struct held l = ask(&a.w, "aaaabbbbccccdd", 7, 0);
    uint32_t slot[2], table[4];
    for (int i = 0; i < 2; i++)
        OK(slot_reserve(&a.w, &l, &slot[i]));
    OK(pfx_reserve(a.c, l.lease, 4, table));
    state_fill(&a.w, slot[0], &(struct state){&a.s, 14, 7});
    state_fill(&a.w, slot[1], &(struct state){&a.s, 12, 0});
    host_pause(&a.h);
    OK(pfx_submit_snapshot_insert(a.c, l.lease, slot[0], 14, PFX_TAIL, 1)); /* too early */
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 2));
    OK(pfx_submit_snapshot_insert(a.c, l.lease, slot[0], 14, PFX_TAIL, 3));
    OK(pfx_submit_snapshot_insert(a.c, l.lease, slot[1], 12, PFX_TAIL_SIBLING, 4));
    OK(pfx_submit_snapshot_insert(a.c, l.lease, slot[1], 12, PFX_TAIL_SIBLING, 5));
    OK(pfx_submit_release(a.c, l.lease, 6));
    host_resume(&a.h);
    const int want[] = {PFX_ECONFLICT, 0, 0, 0, PFX_ESTALE, 0};
    for (uint64_t tag = 1; tag <= 6; tag++) {
        struct pfx_completion k = completion_of(a.c, tag, want[tag - 1]);
        ck_assert_uint_eq(k.lease, l.lease);
        only(&k, false, tag == 2, tag == 2 ? 3 : 0);
    }
    step(&a.w);
    ck_assert_uint_eq(found(&a.w, "aaaabbbbccccddx", 7, 14, 0).is_tail, 1);
    found(&a.w, "aaaabbbbccccddx", 0, 12, 0);
    scene_close(&a);
}
END_TEST

/* A lookup sees every snapshot submitted before it; it may fetch, and its completion says what. */
START_TEST(lookup_after_a_submitted_snapshot)
{
    struct scene a;
    struct seq more = seq("aaaabbbbccccddx");
    scene_open(&a, 4);
    struct held l = ask(&a.w, "aaaabbbbccccdd", 0, 0);
    uint32_t slot, table[4];
    OK(slot_reserve(&a.w, &l, &slot));
    OK(pfx_reserve(a.c, l.lease, 4, table));
    state_fill(&a.w, slot, &(struct state){&a.s, 14, 0});
    struct pfx_lookup_args look = lookup_args(&a.w, &more);
    OK(pfx_submit_insert(a.c, l.lease, &a.in, 1));
    OK(pfx_submit_snapshot_insert(a.c, l.lease, slot, 14, PFX_EXACT, 2));
    OK(pfx_submit_lookup(a.c, &look, 3));
    completion_of(a.c, 1, 0);
    completion_of(a.c, 2, 0);
    struct pfx_completion k = completion_of(a.c, 3, 0);
    only(&k, true, false, 0);
    ck_assert_uint_eq(k.match.snapshot.slot, slot);
    ck_assert_uint_eq(k.match.snapshot.depth, 14);
    OK(pfx_release(a.c, k.lease));
    drop(&a.w, &l);

    spill(&a.w, 0);
    OK(pfx_submit_lookup(a.c, &look, 4));
    k = completion_of(a.c, 4, 0);
    ck_assert_uint_eq(k.match.snapshot.slot, PFX_NO_SLOT);
    ck_assert_uint_eq(k.match.snapshot.tier_depth, 14);
    ck_assert_uint_ne(k.match.snapshot.tier_key, 0);
    OK(pfx_submit_fetch(a.c, k.lease, 5));
    k = completion_of(a.c, 5, 0);
    only(&k, true, false, 0);
    ck_assert_uint_eq(k.match.snapshot.depth, 14);
    ck_assert_uint_eq(k.match.snapshot.tier_depth, 0);
    ck_assert(state_is(&a.w, k.match.snapshot.slot, &(struct state){&a.s, 14, 0}));
    OK(pfx_release(a.c, k.lease));
    spill(&a.w, 0);
    look.flags = PFX_FETCH;
    OK(pfx_submit_lookup(a.c, &look, 6));
    k = completion_of(a.c, 6, 0);
    ck_assert_uint_eq(k.match.snapshot.depth, 14);
    OK(pfx_release(a.c, k.lease));
    scene_close(&a);
}
END_TEST

/* What was cancelled leaves nothing: a lookup that fetches, a fetch, a reserve's slot at release.
 */
START_TEST(cancelled_fetches)
{
    struct scene a;
    struct seq more = seq("aaaabbbbccccddx");
    scene_open(&a, 4);
    keep(&a.w, "aaaabbbbccccdd", 14, PFX_EXACT, 0);
    struct pfx_lookup_args look = lookup_args(&a.w, &more);
    look.flags = PFX_FETCH;
    for (int late = 0; late < 2; late++) {
        spill(&a.w, 0);
        host_pause(&a.h);
        OK(pfx_submit_lookup(a.c, &look, 1));
        OK(pfx_cancel(a.c, 1));
        host_resume(&a.h);
        OK(pfx_ping(a.c));
        EVENTUALLY(5000, counters(&a.w).leases == 0);
        completion_none(a.c);
        look.flags = 0;
        struct held l = look_args(&a.w, &look);
        look.flags = PFX_FETCH;
        host_pause(&a.h);
        OK(pfx_submit_fetch(a.c, l.lease, 2));
        OK(pfx_submit_snapshot_reserve(a.c, l.lease, 3));
        OK(pfx_cancel(a.c, 2));
        ck_assert_int_eq(pfx_cancel(a.c, 3), PFX_EINVAL);
        host_resume(&a.h);
        slot_of(&a, 3, l.lease);
        drop(&a.w, &l);
        step(&a.w);
        while (counters(&a.w).snapshots_tiered) { /* whatever came of them, for the next turn */
            l = look_args(&a.w, &look);
            drop(&a.w, &l);
        }
    }
    scene_close(&a);
}
END_TEST

START_TEST(failed_submits_have_no_completion)
{
    struct scene a;
    scene_open(&a, 0);
    struct held l = ask(&a.w, "aaaa", 0, 0);
    ck_assert_int_eq(pfx_submit_snapshot_insert(a.c, l.lease, 0, 4, PFX_EXACT, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_insert(a.c, l.lease, 5, 4, PFX_EXACT, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_insert(a.c, l.lease, 1, 0, PFX_EXACT, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_insert(a.c, l.lease, 1, 4, (enum pfx_snapshot_kind)3, 1),
                     PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_insert(a.c, l.lease, 1, 4, PFX_TAIL, 1), PFX_EINVAL);
    ck_assert_int_eq(pfx_submit_snapshot_reserve(a.c, 0, 1), PFX_ESTALE);
    completion_none(a.c);
    OK(pfx_submit_snapshot_insert(a.c, l.lease, 1, 4, PFX_EXACT, 2)); /* these are for the daemon */
    OK(pfx_submit_snapshot_reserve(a.c, 99, 3));
    completion_of(a.c, 2, PFX_ESTALE);
    completion_of(a.c, 3, PFX_ESTALE);
    drop(&a.w, &l);
    scene_close(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("states, asynchronous");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, slot_in_a_completion);
    tcase_add_test(t, snapshot_after_a_submitted_insert);
    tcase_add_test(t, lookup_after_a_submitted_snapshot);
    tcase_add_test(t, cancelled_fetches);
    tcase_add_test(t, failed_submits_have_no_completion);
    suite_add_tcase(s, t);
    return s;
}
