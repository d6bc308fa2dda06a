/* What prefixctl shows of snapshots: status, tree, leases; also while the daemon is stopped. */
#include "tests/states.h"
#include "tests/tools/run.h"

#include <stdio.h>
#include <string.h>

/*
 * Blocks of 4, 6 slots, room for 3 spilled:
 *
 *      aaaabbbb                        exact at 2 (of the root), 8 and, spilled, 4
 *          cccc                        exact at 10 (cc), tail of session 7 at 12
 *          dddd                        sibling of session 8 at 11 (ddd)
 */
struct scene {
    struct host host;
    struct worker w;
    struct said s;
};

static void scene_begin(struct scene *s)
{
    host_states(&s->host, 16, 4, 6, 3);
    worker_open(&s->w, &s->host, "engine");
    keep(&s->w, "aaaabbbb", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&s->w, 0).depth, 4);
    keep(&s->w, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&s->w, "aaaabbbb", 2, PFX_EXACT, 0);
    keep(&s->w, "aaaabbbbcccc", 10, PFX_EXACT, 0);
    keep(&s->w, "aaaabbbbcccc", 12, PFX_TAIL, 7);
    keep(&s->w, "aaaabbbbdddd", 11, PFX_TAIL_SIBLING, 8);
}

static void scene_end(struct scene *s)
{
    worker_close(&s->w);
    host_stop(&s->host);
}

/* ---- status -------------------------------------------------------------------------- */

static void check_status(struct scene *s)
{
    CTL(&s->s, &s->host, "status", "--json");
    json_t *o = json_said(&s->s);
    ck_assert_int_eq(number_of(o, "n_slots"), 6);
    ck_assert_int_eq(number_of(o, "n_tier"), 3);
    ck_assert_int_eq(number_of(o, "snapshot_bytes"), STATE_BYTES);
    ck_assert_int_eq(number_of(o, "snapshots"), 4);
    ck_assert_int_eq(number_of(o, "snapshots_tiered"), 1);
    ck_assert_int_eq(number_of(o, "slots_private"), 1);
    ck_assert_int_eq(number_of(o, "slots_free"), 1);
    ck_assert_int_eq(number_of(o, "recompute_tokens"), 4);
    ck_assert_int_eq(number_of(o, "tier_resaved"), 1);
    ck_assert_int_eq(number_of(o, "tier_swept"), 1);
    ck_assert_int_eq(number_of(o, "tier_dropped"), 0);
    json_decref(o);
    CTL(&s->s, &s->host, "status");
    ck_assert_int_eq(s->s.code, 0);
    ck_assert_ptr_nonnull(strstr(s->s.out,
                                 "4 resident in 6 slots of 192 bytes (1 free, 1 reserved); "
                                 "spilled 1 of at most 3 states\n"));
    ck_assert_ptr_nonnull(strstr(s->s.out, "no state      for 4 of 8 matched tokens"));
}

START_TEST(states_status)
{
    struct scene s;
    uint32_t slot;
    host_states(&s.host, 16, 4, 6, 3);
    worker_open(&s.w, &s.host, "engine");
    keep(&s.w, "aaaabbbbcccc", 12, PFX_TAIL, 7);
    ck_assert_uint_eq(spill(&s.w, 0).depth, 12);
    keep(&s.w, "aaaabbbbcccc", 10, PFX_TAIL, 7); /* sweeps it */
    keep(&s.w, "eeee", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&s.w, 0).depth, 4); /* the tail is leased to the live session */
    keep(&s.w, "aaaa", 4, PFX_EXACT, 0);
    ck_assert_uint_eq(spill(&s.w, 0).depth, 4);
    keep(&s.w, "aaaa", 4, PFX_EXACT, 0); /* in place of the spilled one */
    keep(&s.w, "aaaabbbbdddd", 11, PFX_TAIL_SIBLING, 8);
    keep(&s.w, "aaaabbbb", 2, PFX_EXACT, 0);
    struct held h = ask(&s.w, "aaaabbbbx", 0, 0);
    offers(&s.w, &h, "aaaabbbbx", 4, 0); /* of 8 tokens */
    ck_assert_int_eq(slot_reserve(&s.w, &h, &slot), 0);
    check_status(&s);
    host_pause(&s.host);
    check_status(&s);
    host_resume(&s.host);
    drop(&s.w, &h);

    ck_assert_int_eq(pfx_flush(s.w.c, 0), 0);
    CTL(&s.s, &s.host, "status", "--json");
    json_t *o = json_said(&s.s);
    ck_assert_int_eq(number_of(o, "snapshots"), 0);
    ck_assert_int_eq(number_of(o, "snapshots_tiered"), 0);
    ck_assert_int_eq(number_of(o, "slots_free"), 6);
    ck_assert_int_eq(number_of(o, "tier_dropped"), 1); /* eeee */
    json_decref(o);
    scene_end(&s);
}
END_TEST

START_TEST(states_status_without_slots)
{
    struct host h;
    struct said s;
    host_small(&h, 16, 4);
    CTL(&s, &h, "status", "--json");
    json_t *o = json_said(&s);
    ck_assert_int_eq(number_of(o, "n_slots"), 0);
    ck_assert_int_eq(number_of(o, "n_tier"), 0);
    ck_assert_int_eq(number_of(o, "slots_free"), 0);
    json_decref(o);
    CTL(&s, &h, "status");
    ck_assert_ptr_null(strstr(s.out, "resident in"));
    host_stop(&h);
}
END_TEST

/* ---- tree ---------------------------------------------------------------------------- */

struct mark {
    int64_t depth;
    const char *kind, *state, *session, *residue; /* residue: as text */
};

static void check_mark(const json_t *shown, const struct mark *m, bool tokens)
{
    const json_t *residue = json_object_get(shown, "residue");
    ck_assert_int_eq(number_of(shown, "depth_tokens"), m->depth);
    ck_assert_str_eq(text_of(shown, "kind"), m->kind);
    ck_assert_str_eq(text_of(shown, "state"), m->state);
    ck_assert_str_eq(text_of(shown, "session"), m->session);
    ck_assert_int_gt(number_of(shown, strcmp(m->state, "spilled") ? "slot" : "tier_key"), 0);
    ck_assert_int_eq(residue != NULL, tokens && *m->residue);
    ck_assert_uint_eq(json_array_size(residue), residue ? strlen(m->residue) : 0);
    for (size_t i = 0; i < json_array_size(residue); i++)
        ck_assert_int_eq(json_integer_value(json_array_get(residue, i)), m->residue[i]);
}

static void check_marks(const json_t *node, const struct mark *m, size_t n, bool tokens)
{
    const json_t *shown = json_object_get(node, "snapshots");
    ck_assert(json_is_array(shown));
    ck_assert_uint_eq(json_array_size(shown), n);
    for (size_t i = 0; i < n; i++)
        check_mark(json_array_get(shown, i), &m[i], tokens);
}

#define NONE "0000000000000000"
static const struct mark of_root[] = {{2, "exact", "resident", NONE, "aa"}},
                         of_top[] = {{4, "exact", "spilled", NONE, ""},
                                     {8, "exact", "resident", NONE, ""},
                                     {10, "exact", "resident", NONE, "cc"},
                                     {11, "sibling", "resident", "0000000000000008", "ddd"}},
                         of_child[] = {{12, "tail", "resident", "0000000000000007", ""}};

static void check_tree(struct scene *s, bool tokens)
{
    if (tokens)
        CTL(&s->s, &s->host, "tree", "--json", "--tokens");
    else
        CTL(&s->s, &s->host, "tree", "--json");
    json_t *o = json_said(&s->s);
    const json_t *root = json_object_get(json_array_get(json_object_get(o, "spaces"), 0), "root");
    const json_t *top = json_array_get(json_object_get(root, "children"), 0);
    const json_t *children = json_object_get(top, "children");
    check_marks(root, of_root, 1, tokens);
    ck_assert_int_eq(number_of(top, "blocks"), 2);
    check_marks(top, of_top, 4, tokens);
    ck_assert_uint_eq(json_array_size(children), 2); /* in the order of their tokens */
    check_marks(json_array_get(children, 0), of_child, 1, tokens);
    check_marks(json_array_get(children, 1), NULL, 0, tokens);
    json_decref(o);
}

START_TEST(states_tree)
{
    struct scene s;
    scene_begin(&s);
    check_tree(&s, false);
    check_tree(&s, true);
    host_pause(&s.host);
    check_tree(&s, true);
    CTL(&s.s, &s.host, "tree");
    host_resume(&s.host);
    ck_assert_int_eq(s.s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.s.out, "\n  snapshot at 2 tokens  exact  slot "));
    ck_assert_ptr_nonnull(strstr(s.s.out, "\n    snapshot at 4 tokens  exact  spilled, key "));
    ck_assert_ptr_nonnull(strstr(s.s.out, "  session 0000000000000007\n"));
    ck_assert_ptr_null(strstr(s.s.out, "residue"));
    ck_assert_ptr_null(strstr(s.s.out, "saved by"));
    CTL(&s.s, &s.host, "tree", "--tokens");
    ck_assert_ptr_nonnull(strstr(s.s.out, "  session 0000000000000008  residue 100 100 100\n"));
    keep(&s.w, "aaaabbbb", 6, PFX_EXACT, 9);
    CTL(&s.s, &s.host, "tree");
    ck_assert_ptr_nonnull(strstr(s.s.out, "  saved by session 0000000000000009\n"));
    scene_end(&s);
}
END_TEST

/* ---- leases -------------------------------------------------------------------------- */

START_TEST(states_leases)
{
    struct scene s;
    uint32_t slot;
    scene_begin(&s);
    struct held h = ask(&s.w, "aaaabbbbx", 0, 0); /* 4 is spilled, and not as deep */
    ck_assert_int_eq(slot_reserve(&s.w, &h, &slot), 0);
    CTL(&s.s, &s.host, "leases", "--json");
    json_t *o = json_said(&s.s);
    const json_t *row = json_array_get(json_object_get(o, "leases"), 0);
    ck_assert_int_eq(number_of(row, "reserved_slots"), 1);
    ck_assert_int_eq(number_of(row, "snapshot_depth"), 8);
    ck_assert_int_eq(number_of(row, "tier_depth"), 4);
    json_decref(o);
    CTL(&s.s, &s.host, "leases");
    ck_assert_ptr_nonnull(strstr(s.s.out, " private  slots  snapshot   spilled\n"));
    ck_assert_ptr_nonnull(strstr(s.s.out, "       0      1         8         4\n"));

    ck_assert_int_eq(let_go(&s.w, &h), 0);
    ck_assert_int_eq(slot_cancel(&s.w, &h, slot), 0);
    CTL(&s.s, &s.host, "leases", "--json");
    o = json_said(&s.s);
    row = json_array_get(json_object_get(o, "leases"), 0);
    ck_assert_int_eq(number_of(row, "reserved_slots"), 0);
    ck_assert_int_eq(number_of(row, "snapshot_depth"), 0);
    ck_assert_int_eq(number_of(row, "tier_depth"), 0);
    json_decref(o);
    drop(&s.w, &h);
    scene_end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("states");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, states_status);
    tcase_add_test(t, states_status_without_slots);
    tcase_add_test(t, states_tree);
    tcase_add_test(t, states_leases);
    suite_add_tcase(s, t);
    return s;
}
