/* The rule on identity: what a node's identity and version promise to those who
 * remember them. One-token blocks, so that a token is a block. */
#include "tests/unit/tree.h"

static const struct index_node *node(const struct tree *t, uint32_t id)
{
    return index_node_at(index_view_of(t->ix), id);
}

static bool still(const struct tree *t, struct place p)
{
    return index_resolve(t->ix, t->root, &p);
}

START_TEST(rule_identity_survives_append_and_split)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4, 5, 6, 7, 8}, branch[] = {1, 2, 3, 9};
    struct place end = tree_insert(&t, run, 6);
    struct place longer = tree_insert(&t, run, 8); /* the leaf grows */
    ck_assert_uint_eq(longer.node, end.node);
    ck_assert_uint_eq(longer.identity, end.identity);
    ck_assert(still(&t, end));

    struct place other = tree_insert(&t, branch, 4); /* a split at 3: the lower part keeps both */
    ck_assert_uint_ne(other.node, longer.node);
    ck_assert_uint_eq(node(&t, longer.node)->identity, longer.identity);
    ck_assert_uint_eq(node(&t, longer.node)->start, 3);
    ck_assert(still(&t, end) && still(&t, longer));
    struct place above = {longer.identity, longer.node, 2}; /* "what covers depth 2", by climbing */
    ck_assert(index_resolve(t.ix, t.root, &above));
    ck_assert_uint_ne(above.node, longer.node);
    ck_assert_uint_eq(node(&t, longer.node)->parent, above.node);
    ck_assert_uint_eq(node(&t, longer.node)->parent_identity, above.identity);
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

START_TEST(rule_identity_changes_on_truncation_and_recycling)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4, 5, 6}, foreign[] = {7, 8};
    struct place end = tree_insert(&t, run, 6), front = {end.identity, end.node, 2};
    ck_assert_uint_eq(index_evict(t.ix, 2), 2);
    ck_assert_uint_ne(node(&t, end.node)->identity, end.identity);
    ck_assert(!still(&t, end) && !still(&t, front)); /* all that was named by the old one */
    struct place again = tree_insert(&t, run, 6);    /* regrown with the very same tokens */
    ck_assert(!still(&t, end));
    ck_assert(still(&t, again));

    ck_assert_uint_eq(index_evict(t.ix, 6), 6);
    for (uint32_t i = 0; i < 40; i++) { /* the node's number comes back: the name does not */
        uint32_t other[] = {100 + i, foreign[0]};
        tree_insert(&t, other, 2);
        ck_assert(!still(&t, again));
    }
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

START_TEST(rule_identity_child_names_its_parent_and_start)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 5, 6};
    struct place left = tree_insert(&t, a, 4), right = tree_insert(&t, b, 4);
    const struct place child[2] = {left, right};
    for (int i = 0; i < 2; i++) {
        const struct index_node *c = node(&t, child[i].node);
        const struct index_node *p = node(&t, c->parent);
        ck_assert_uint_eq(c->parent_identity, p->identity);
        ck_assert_uint_eq(c->start, p->start + p->n_blocks);
        ck_assert_uint_eq(c->start, 2);
    }
    tree_free(&t);
}
END_TEST

/* A merge lets the lower part absorb the upper, and only if no lease names the upper. */
START_TEST(rule_identity_merge_waits_for_leases)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 3, 9};
    for (int held = 0; held < 2; held++) {
        struct place lower = tree_insert(&t, run, 6);
        struct hold at_end = {0}, at_border = {0};
        index_hold(t.ix, &at_end, lower);
        tree_insert(&t, branch, 4);
        struct place border = {lower.identity, lower.node, 3};
        ck_assert(index_resolve(t.ix, t.root, &border));
        if (held)
            index_hold(t.ix, &at_border, border);
        ck_assert_uint_eq(index_evict(t.ix, 1), 1); /* the branch goes, an only child is left */
        tree_audit(&t);
        ck_assert_uint_eq(node(&t, lower.node)->identity, lower.identity);
        ck_assert_uint_eq(node(&t, lower.node)->start, held ? 3 : 0);
        ck_assert_uint_eq(index_nodes(t.ix), held ? 2 : 1);
        if (held) {
            ck_assert(still(&t, border));
            index_unhold(t.ix, &at_border);
        }
        index_unhold(t.ix, &at_end);
        ck_assert_uint_eq(index_evict(t.ix, 32), 6);
    }
    tree_free(&t);
}
END_TEST

/* Bumped around every change of a node, of its extent, and of its children; even in between. */
START_TEST(rule_version_moves_with_every_change)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4}, branch[] = {1, 2, 3, 9}, child[] = {1, 2, 3, 4, 5};
    struct place p = tree_insert(&t, run, 3);
    uint32_t before = node(&t, p.node)->version, root_before = node(&t, t.root)->version;
    tree_insert(&t, run, 4); /* append */
    ck_assert_uint_ne(node(&t, p.node)->version, before);
    before = node(&t, p.node)->version;
    tree_insert(&t, branch, 4); /* split: the parent's children change too */
    ck_assert_uint_ne(node(&t, p.node)->version, before);
    ck_assert_uint_ne(node(&t, t.root)->version, root_before);
    struct place up = {p.identity, p.node, 3};
    ck_assert(index_resolve(t.ix, t.root, &up));
    before = node(&t, up.node)->version;
    static const uint32_t third[] = {1, 2, 3, 8};
    tree_insert(&t, third, 4); /* a new child */
    ck_assert_uint_ne(node(&t, up.node)->version, before);
    before = node(&t, p.node)->version;
    struct place longest = tree_insert(&t, child, 5);
    ck_assert_uint_eq(longest.node, p.node);
    before = node(&t, p.node)->version;
    ck_assert_uint_eq(index_evict(t.ix, 3), 3); /* both branches, then the youngest's end: cut */
    ck_assert_uint_ne(node(&t, p.node)->version, before);
    for (uint32_t id = 1; id < 10; id++)
        ck_assert_uint_eq(node(&t, id)->version % 2, 0);
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

/* The rule on recency: one stamp a node, or stamping before the split, refreshes a suffix that
 * nobody asked for. */
START_TEST(rule_recency_a_lookup_does_not_refresh_the_suffix)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4, 5, 6, 7, 8}, other[] = {20, 21};
    struct place end = tree_insert(&t, run, 8);
    tree_insert(&t, other, 2);
    struct place front = {end.identity, end.node, 4};
    ck_assert(index_resolve(t.ix, t.root, &front));
    index_stamp(t.ix, front);                   /* the first half was asked for */
    ck_assert_uint_eq(index_evict(t.ix, 4), 4); /* so its second half is the oldest */
    ck_assert_uint_eq(tree_match(&t, run, 8).depth, 4);
    ck_assert_uint_eq(tree_match(&t, other, 2).depth, 2);
    ck_assert_uint_eq(index_evict(t.ix, 2), 2); /* then the other run, although it came later */
    ck_assert_uint_eq(tree_match(&t, run, 8).depth, 4);
    ck_assert_uint_eq(tree_match(&t, other, 2).depth, 0);
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

START_TEST(rule_recency_a_split_keeps_the_older_stamp_below)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 9}, other[] = {20};
    tree_insert(&t, run, 6);
    tree_insert(&t, other, 1);
    tree_insert(&t, branch, 3); /* splits at 2; 3..6 were not asked for */
    ck_assert_uint_eq(index_evict(t.ix, 4), 4);
    ck_assert_uint_eq(tree_match(&t, run, 6).depth, 2);
    ck_assert_uint_eq(tree_match(&t, branch, 3).depth, 3);
    ck_assert_uint_eq(tree_match(&t, other, 1).depth, 1);
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

START_TEST(rule_recency_a_parent_takes_the_newer_when_its_child_goes)
{
    struct tree t;
    tree_new(&t, 1, 32);
    static const uint32_t run[] = {1, 2, 3}, branch[] = {1, 2, 9}, other[] = {20}, last[] = {30};
    tree_insert(&t, run, 3);
    tree_insert(&t, branch, 3); /* 1 2 was used with it */
    tree_insert(&t, other, 1);
    struct place leaf = tree_match(&t, branch, 3);
    index_stamp(t.ix, leaf); /* and again, after `other` */
    tree_insert(&t, last, 1);
    ck_assert_uint_eq(index_evict(t.ix, 3), 3); /* 3, then other, then 9; 1 2 is as young as 9 */
    ck_assert_uint_eq(tree_match(&t, branch, 3).depth, 2);
    ck_assert_uint_eq(tree_match(&t, other, 1).depth, 0);
    ck_assert_uint_eq(index_evict(t.ix, 2), 2);
    ck_assert_uint_eq(tree_match(&t, branch, 3).depth, 0);
    ck_assert_uint_eq(tree_match(&t, last, 1).depth, 1);
    tree_free(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("identity and recency");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 30 * SLOW);
    tcase_add_test(t, rule_identity_survives_append_and_split);
    tcase_add_test(t, rule_identity_changes_on_truncation_and_recycling);
    tcase_add_test(t, rule_identity_child_names_its_parent_and_start);
    tcase_add_test(t, rule_identity_merge_waits_for_leases);
    tcase_add_test(t, rule_version_moves_with_every_change);
    tcase_add_test(t, rule_recency_a_lookup_does_not_refresh_the_suffix);
    tcase_add_test(t, rule_recency_a_split_keeps_the_older_stamp_below);
    tcase_add_test(t, rule_recency_a_parent_takes_the_newer_when_its_child_goes);
    suite_add_tcase(s, t);
    return s;
}
