/*
 * How often blocks were seen, and what of a tree is written for it (daemon/index_admit.c), case by
 * case. At random, with everything else: the worlds of test_residency.c.
 */
#include "tests/unit/tree.h"

#include <string.h>

/* One-token blocks, so that a token is a block; slots are given out in order. */
struct stand {
    struct tree t;
    uint32_t slot;
};

static void on_gone(void *arg, uint32_t disk)
{
}

static void stand_new(struct stand *s, uint32_t admit)
{
    s->slot = 0;
    tree_new_admit(&s->t,
                   (struct index_params){
                       .block_tokens = 1, .n_blocks = 200, .n_disk = 200, .hash_mask = UINT64_MAX},
                   admit);
    index_set_slot_gone(s->t.ix, on_gone, s);
}

static void stand_free(struct stand *s)
{
    tree_audit(&s->t);
    tree_free(&s->t);
}

static void look_up(struct stand *s, const uint32_t *run, uint32_t n)
{
    struct place where = tree_match(&s->t, run, n);
    ck_assert_uint_eq(where.depth, n);
    index_stamp(s->t.ix, where);
    index_seen(s->t.ix, where);
    tree_audit(&s->t);
}

/* What is written next ends at this block of this run; 0: nothing is. */
static void next_is(struct stand *s, const uint32_t *run, uint32_t depth)
{
    struct place leaf = {0};
    ck_assert_int_eq(index_dirty(s->t.ix, &leaf), depth > 0);
    ck_assert_uint_eq(leaf.depth, depth);
    if (depth)
        ck_assert_uint_eq(leaf.node, tree_match(&s->t, run, depth).node);
}

/* The chain of what is written next, to its end. */
static void write_next(struct stand *s)
{
    struct place leaf, end;
    struct hold h = {0};
    uint32_t n;
    ck_assert(index_dirty(s->t.ix, &leaf));
    index_hold_io(s->t.ix, &h, leaf);
    while ((n = index_unwritten(s->t.ix, h.where, 8, &end))) {
        struct place at = end;
        for (at.depth = end.depth - n + 1; at.depth <= end.depth; at.depth++)
            ck_assert(index_copy_commit(s->t.ix, at, s->slot++));
        index_written(s->t.ix, end, n);
    }
    ck_assert(index_on_disk_to(s->t.ix, h.where));
    index_unhold(s->t.ix, &h);
    tree_audit(&s->t);
}

static void frees(struct stand *s, uint32_t n, bool want, uint32_t freed, uint32_t removed)
{
    struct index_evicted out = {0};
    ck_assert_int_eq(index_free_pages(s->t.ix, n, false, &out), want);
    ck_assert_uint_eq(out.freed, freed);
    ck_assert_uint_eq(out.removed, removed);
    tree_audit(&s->t);
}

static const uint32_t run[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 9, 10}, other[] = {20, 21};

START_TEST(only_what_was_seen_often_is_written)
{
    struct stand s;
    stand_new(&s, 3);
    tree_insert(&s.t, run, 6);
    next_is(&s, run, 0);
    look_up(&s, run, 4);
    next_is(&s, run, 0);
    look_up(&s, run, 2);
    next_is(&s, run, 2); /* 1 + 2 times; the third and fourth 1 + 1 */
    look_up(&s, run, 3);
    next_is(&s, run, 3);
    look_up(&s, run, 6);
    look_up(&s, run, 5);
    next_is(&s, run, 5);
    write_next(&s);
    next_is(&s, run, 0);
    ck_assert_uint_eq(index_on_disk(s.t.ix), 5);
    stand_free(&s);
}
END_TEST

/* With 1, as without: all is. */
START_TEST(once_is_always)
{
    for (uint32_t admit = 0; admit < 2; admit++) {
        struct stand s;
        stand_new(&s, admit);
        tree_insert(&s.t, run, 6);
        next_is(&s, run, 6);
        frees(&s, 1, false, 0, 0);
        stand_free(&s);
    }
}
END_TEST

/* Nobody waits for a write of what is not worth one. */
START_TEST(what_was_seen_too_seldom_just_goes)
{
    struct stand s;
    stand_new(&s, 2);
    tree_insert(&s.t, run, 6);
    look_up(&s, run, 2);
    ck_assert_uint_eq(index_clean(s.t.ix), 4);
    tree_insert(&s.t, other, 2);
    ck_assert_uint_eq(index_clean(s.t.ix), 6);
    frees(&s, 9, false, 4, 4); /* 6 to 3; then 2 could be written, and is older than the other */
    ck_assert_uint_eq(index_clean(s.t.ix), 2);
    write_next(&s);
    ck_assert_uint_eq(index_clean(s.t.ix), 4);
    frees(&s, 9, true, 4, 2);
    ck_assert_uint_eq(index_on_disk(s.t.ix), 2);
    stand_free(&s);
}
END_TEST

/* What is shared is written although what hangs below it, on the device still, is not; but after
 * what could go before it. */
START_TEST(a_shared_front_is_written_without_its_branches)
{
    struct stand s;
    stand_new(&s, 2);
    tree_insert(&s.t, run, 6);
    tree_insert(&s.t, branch, 4);
    look_up(&s, branch, 2);
    next_is(&s, run, 2);
    tree_insert(&s.t, other, 2);
    look_up(&s, other, 2);
    next_is(&s, other, 2);
    write_next(&s);
    next_is(&s, run, 2);
    look_up(&s, branch, 3); /* now it is one path with its front */
    next_is(&s, branch, 3);
    write_next(&s);
    next_is(&s, run, 0);
    ck_assert_uint_eq(index_on_disk(s.t.ix), 5);
    look_up(&s, run, 6);
    next_is(&s, run, 6);
    stand_free(&s);
}
END_TEST

/* The front of a path that is on its way to the disk, and more of it that is seen meanwhile. */
START_TEST(seen_while_it_is_written)
{
    struct stand s;
    struct place leaf, end;
    struct hold h = {0};
    stand_new(&s, 2);
    tree_insert(&s.t, run, 6);
    look_up(&s, run, 3);
    ck_assert(index_dirty(s.t.ix, &leaf));
    index_hold_io(s.t.ix, &h, leaf);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 3);
    look_up(&s, run, 5);
    next_is(&s, run, 0);
    for (uint32_t depth = 1; depth <= 3; depth++)
        ck_assert(index_copy_commit(s.t.ix, tree_match(&s.t, run, depth), s.slot++));
    index_written(s.t.ix, end, 3);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 0);
    index_unhold(s.t.ix, &h);
    next_is(&s, run, 5);
    stand_free(&s);
}
END_TEST

/* Two workers that compute the same at the same time have both seen it; the front, of which their
 * quiet lookups said nothing, no less. */
START_TEST(a_duplicate_was_seen)
{
    struct stand s;
    stand_new(&s, 3);
    tree_insert(&s.t, run, 4);
    for (int i = 0; i < 2; i++) {
        struct place where = tree_match(&s.t, run, 2);
        struct index_query q = tree_query(run, 6);
        uint32_t pages[4];
        uint8_t taken[4];
        for (int k = 0; k < 4; k++)
            pages[k] = pool_take(&s.t.pool);
        struct hold h = {0};
        index_hold(s.t.ix, &h, where);
        ck_assert_uint_eq(index_insert(s.t.ix, &q, pages, 4, taken, &where), i ? 0 : 2);
        for (int k = 0; k < 4; k++)
            if (taken[k] == TAKEN_NOT)
                pool_give(&s.t.pool, pages[k]);
        index_unhold(s.t.ix, &h);
        tree_audit(&s.t);
    }
    next_is(&s, run, 4); /* 1 + 2 times; the last two 1 + 1 */
    stand_free(&s);
}
END_TEST

START_TEST(split_and_merge_carry_the_count)
{
    struct stand s;
    stand_new(&s, 3);
    tree_insert(&s.t, run, 6);
    look_up(&s, run, 5);
    tree_insert(&s.t, branch, 4);
    look_up(&s, run, 4);
    ck_assert_uint_eq(index_nodes(s.t.ix), 3);
    next_is(&s, run, 4);
    index_stamp(s.t.ix, tree_match(&s.t, run, 6)); /* the branch is older now, and goes */
    frees(&s, 2, true, 2, 2);
    ck_assert_uint_eq(index_nodes(s.t.ix), 1);
    next_is(&s, run, 4);
    look_up(&s, run, 5);
    next_is(&s, run, 5);
    stand_free(&s);
}
END_TEST

/* What a restart finds on disk was worth it; so it is again when its copy has gone. */
START_TEST(what_was_on_disk_is_worth_it)
{
    struct stand s;
    static const uint32_t disk[] = {0, 1, 2};
    uint32_t removed = 0, page = 0;
    stand_new(&s, 3);
    struct index_query q = tree_query(run, 3);
    struct place where = tree_root(&s.t);
    index_restore(s.t.ix, &q, disk, 3, &where);
    tree_audit(&s.t);
    for (uint32_t depth = 1; depth <= 3; depth++) {
        page = pool_take(&s.t.pool);
        pool_publish(&s.t.pool, page);
        ck_assert(index_page_arrive(s.t.ix, tree_match(&s.t, run, depth), page));
    }
    tree_insert(&s.t, run, 6);
    next_is(&s, run, 0);
    ck_assert_uint_eq(index_evict_copies(s.t.ix, 1, &removed), 1);
    next_is(&s, run, 3);
    s.slot = 10;
    write_next(&s);
    tree_insert(&s.t, other, 2); /* computed anew before the scan came to it */
    ck_assert(index_copy_commit(s.t.ix, tree_match(&s.t, other, 1), 7));
    look_up(&s, other, 2);
    look_up(&s, other, 2);
    next_is(&s, other, 2);
    stand_free(&s);
}
END_TEST

/* Across many nodes, at the highest count that there is. */
START_TEST(long_paths_and_high_counts)
{
    struct stand s;
    uint32_t text[120];
    for (uint32_t i = 0; i < 120; i++)
        text[i] = 100 + i;
    stand_new(&s, ADMIT_MAX);
    tree_insert(&s.t, text, 120);
    for (uint32_t k = 1; k < ADMIT_MAX; k++) {
        next_is(&s, text, 0);
        look_up(&s, text, k % 2 ? 120 : 119);
    }
    next_is(&s, text, 119);
    for (uint32_t k = 0; k < 2 * ADMIT_MAX; k++)
        look_up(&s, text, 119);
    next_is(&s, text, 119);
    write_next(&s);
    ck_assert_uint_eq(index_on_disk(s.t.ix), 119);
    frees(&s, 120, true, 120, 1);
    stand_free(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("seen");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, only_what_was_seen_often_is_written);
    tcase_add_test(t, once_is_always);
    tcase_add_test(t, what_was_seen_too_seldom_just_goes);
    tcase_add_test(t, a_shared_front_is_written_without_its_branches);
    tcase_add_test(t, seen_while_it_is_written);
    tcase_add_test(t, a_duplicate_was_seen);
    tcase_add_test(t, split_and_merge_carry_the_count);
    tcase_add_test(t, what_was_on_disk_is_worth_it);
    tcase_add_test(t, long_paths_and_high_counts);
    suite_add_tcase(s, t);
    return s;
}
