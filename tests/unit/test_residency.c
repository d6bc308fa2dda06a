/*
 * Where blocks are, on the device or on disk: the rules of daemon/index_residency.c one by one, and
 * a tree with a disk tier against a list of blocks (world.h).
 */
#include "tests/unit/world.h"

#include <string.h>

START_TEST(residency_against_a_list)
{
    struct rng r = rng_seeded("residency");
    worlds(&r, 100, 1500);
}
END_TEST

/* One-token blocks, so that a token is a block, and slot s was written s-th. */
struct stand {
    struct tree t;
    uint32_t written, n_gone, gone[16];
};

static void on_gone(void *arg, uint32_t disk)
{
    struct stand *s = arg;
    REQUIRE(s->n_gone < 16);
    s->gone[s->n_gone++] = disk;
}

static void on_snapshot_gone(void *arg, uint32_t snapshot, bool evicted)
{
    ck_assert_uint_eq(snapshot, 1);
    ck_assert(evicted);
    ++*(uint32_t *)arg;
}

static void stand_new(struct stand *s, uint32_t block_tokens)
{
    memset(s, 0, sizeof *s);
    tree_new_params(&s->t, (struct index_params){.block_tokens = block_tokens,
                                                 .n_blocks = 32,
                                                 .n_disk = 32,
                                                 .max_snapshots = 1,
                                                 .hash_mask = UINT64_MAX});
    index_set_slot_gone(s->t.ix, on_gone, s);
}

static void stand_free(struct stand *s)
{
    tree_audit(&s->t);
    tree_free(&s->t);
}

/* Block by block: p has a page, d a copy, b both; what is not there is not shown. */
static void shows(const struct stand *s, const uint32_t *run, uint32_t n, const char *want)
{
    struct place where = tree_match(&s->t, run, n);
    uint32_t pages[16], disks[16];
    char got[17] = "";
    ck_assert(index_path_ids(index_view_of(s->t.ix), where, 0, where.depth, pages, disks));
    for (uint32_t i = 0; i < where.depth; i++)
        got[i] = disks[i] == NO_DISK ? 'p' : pages[i] == NO_PAGE ? 'd' : 'b';
    ck_assert_str_eq(got, want);
    tree_audit(&s->t);
}

static bool commit(struct stand *s, const uint32_t *run, uint32_t depth)
{
    return index_copy_commit(s->t.ix, tree_match(&s->t, run, depth), s->written) &&
           ++s->written > 0;
}

/* The first n blocks, from the first that has no copy on. */
static void written(struct stand *s, const uint32_t *run, uint32_t from, uint32_t n)
{
    for (uint32_t depth = from + 1; depth <= n; depth++)
        ck_assert(commit(s, run, depth));
}

static bool arrive(struct stand *s, const uint32_t *run, uint32_t depth)
{
    uint32_t page = pool_take(&s->t.pool);
    pool_publish(&s->t.pool, page);
    bool came = index_page_arrive(s->t.ix, tree_match(&s->t, run, depth), page);
    if (!came)
        pool_unpublish(&s->t.pool, page);
    return came;
}

/* Freed, and of these gone for good; false where the tree said so. */
static void frees(struct stand *s, uint32_t n, bool dirty, bool want, uint32_t freed,
                  uint32_t removed)
{
    struct index_evicted out = {0};
    ck_assert_int_eq(index_free_pages(s->t.ix, n, dirty, &out), want);
    ck_assert_uint_eq(out.freed, freed);
    ck_assert_uint_eq(out.removed, removed);
}

static void gives_up(struct stand *s, uint32_t n, uint32_t gone, uint32_t removed)
{
    uint32_t out = 0;
    s->n_gone = 0;
    ck_assert_uint_eq(index_evict_copies(s->t.ix, n, &out), gone);
    ck_assert_uint_eq(out, removed);
    ck_assert_uint_eq(s->n_gone, gone);
}

static const uint32_t run[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 9}, other[] = {20};

START_TEST(a_page_with_a_copy_just_goes)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 5);
    written(&s, run, 0, 5);
    frees(&s, 2, false, true, 2, 0);
    shows(&s, run, 5, "bbbdd");
    frees(&s, 9, false, true, 3, 0);
    shows(&s, run, 5, "ddddd");
    ck_assert_uint_eq(index_on_disk(s.t.ix), 5);
    ck_assert_uint_eq(s.n_gone, 0);
    stand_free(&s);
}
END_TEST

START_TEST(a_page_without_a_copy_takes_its_block)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 5);
    written(&s, run, 0, 3);
    frees(&s, 1, false, false, 0, 0); /* it could be written */
    shows(&s, run, 5, "bbbpp");
    frees(&s, 1, true, true, 1, 1);
    frees(&s, 3, true, true, 3, 1);
    shows(&s, run, 5, "bdd");
    ck_assert_uint_eq(s.n_gone, 0);
    stand_free(&s);
}
END_TEST

START_TEST(a_copy_goes_alone_or_with_its_block)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 5);
    written(&s, run, 0, 5);
    gives_up(&s, 2, 2, 0);
    shows(&s, run, 5, "bbbpp");
    ck_assert_uint_eq(s.gone[0] + s.gone[1], 3 + 4);
    ck_assert(commit(&s, run, 4) && commit(&s, run, 5));
    frees(&s, 2, true, true, 2, 0);
    gives_up(&s, 1, 1, 1);
    ck_assert_uint_eq(s.gone[0], 6);
    shows(&s, run, 5, "bbbd");
    gives_up(&s, 2, 2, 1);
    shows(&s, run, 5, "bbp");
    stand_free(&s);
}
END_TEST

/* Through nodes: what hangs below goes from the device, and from the disk, before what is above. */
START_TEST(the_deepest_goes_first)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    tree_insert(&s.t, branch, 3);
    written(&s, run, 0, 4);
    written(&s, branch, 2, 3);
    frees(&s, 3, false, true, 3, 0);
    shows(&s, run, 4, "bbdd");
    shows(&s, branch, 3, "bbd");
    frees(&s, 1, false, true, 1, 0);
    shows(&s, branch, 3, "bdd");
    gives_up(&s, 2, 2, 2);
    shows(&s, run, 4, "bd");
    shows(&s, branch, 3, "bdd");
    gives_up(&s, 3, 3, 2);
    shows(&s, branch, 3, "p");
    stand_free(&s);
}
END_TEST

START_TEST(copies_are_committed_front_first)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    ck_assert(!commit(&s, run, 2));
    tree_insert(&s.t, branch, 3); /* a border after 2 */
    ck_assert(!commit(&s, run, 3));
    ck_assert(!commit(&s, branch, 3));
    ck_assert(commit(&s, run, 1));
    ck_assert(!commit(&s, run, 1));
    ck_assert(!commit(&s, branch, 3));
    ck_assert(commit(&s, run, 2));
    ck_assert(commit(&s, branch, 3));
    ck_assert(commit(&s, run, 3));
    shows(&s, run, 4, "bbbp");
    shows(&s, branch, 3, "bbb");
    stand_free(&s);
}
END_TEST

START_TEST(pages_arrive_front_first)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    tree_insert(&s.t, branch, 3);
    written(&s, run, 0, 4);
    written(&s, branch, 2, 3);
    frees(&s, 5, false, true, 5, 0);
    ck_assert(!arrive(&s, run, 2));
    ck_assert(!arrive(&s, run, 3));
    ck_assert(arrive(&s, run, 1));
    ck_assert(!arrive(&s, run, 1));
    ck_assert(!arrive(&s, branch, 3));
    ck_assert(arrive(&s, run, 2));
    ck_assert(!arrive(&s, run, 4));
    ck_assert(arrive(&s, branch, 3));
    shows(&s, run, 4, "bbdd");
    shows(&s, branch, 3, "bbb");
    stand_free(&s);
}
END_TEST

START_TEST(an_insert_brings_pages_to_what_is_on_disk)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 5);
    tree_insert(&s.t, branch, 3); /* a border inside what is adopted */
    written(&s, run, 0, 5);
    written(&s, branch, 2, 3);
    frees(&s, 5, true, true, 5, 0);
    shows(&s, run, 5, "bdddd");
    struct place where = tree_match(&s.t, run, 0);
    struct hold h = {0};
    index_hold(s.t.ix, &h, where);
    struct index_query q = tree_query(run, 6);
    uint32_t pages[6];
    uint8_t taken[6];
    for (int i = 0; i < 6; i++)
        pages[i] = pool_take(&s.t.pool);
    ck_assert_uint_eq(index_insert(s.t.ix, &q, pages, 6, taken, &where), 1);
    static const uint8_t want[6] = {TAKEN_NOT,     TAKEN_ADOPTED, TAKEN_ADOPTED,
                                    TAKEN_ADOPTED, TAKEN_ADOPTED, TAKEN_NEW};
    ck_assert_mem_eq(taken, want, 6);
    pool_give(&s.t.pool, pages[0]);
    shows(&s, run, 6, "bbbbbp");
    shows(&s, branch, 3, "bbd");
    index_unhold(s.t.ix, &h);
    stand_free(&s);
}
END_TEST

START_TEST(a_hold_keeps_pages_and_copies)
{
    for (int io = 0; io < 2; io++) {
        struct stand s;
        stand_new(&s, 1);
        tree_insert(&s.t, run, 5);
        written(&s, run, 0, 5);
        frees(&s, 3, true, true, 3, 0);
        struct hold h = {0};
        if (io)
            index_hold_io(s.t.ix, &h, tree_match(&s.t, run, 4));
        else
            index_hold(s.t.ix, &h, tree_match(&s.t, run, 4));
        ck_assert_uint_eq(index_pinned(s.t.ix), io ? 0 : 2);
        ck_assert_uint_eq(index_busy(s.t.ix), io ? 2 : 0);
        ck_assert_uint_eq(index_idle(s.t.ix), 0);
        frees(&s, 9, true, true, 0, 0);
        gives_up(&s, 9, 1, 1);
        shows(&s, run, 5, "bbdd");
        tree_insert(&s.t, branch, 3); /* the hold's end goes to the lower part */
        shows(&s, run, 5, "bbdd");
        gives_up(&s, 9, 0, 0);
        index_unhold(s.t.ix, &h);
        gives_up(&s, 9, 4, 2);
        shows(&s, run, 5, "pp");
        stand_free(&s);
    }
}
END_TEST

START_TEST(split_and_merge_carry_what_is_on_disk)
{
    struct stand s;
    stand_new(&s, 1);
    static const uint32_t b4[] = {1, 2, 3, 9};
    tree_insert(&s.t, run, 6);
    written(&s, run, 0, 5);
    tree_insert(&s.t, branch, 3);
    tree_insert(&s.t, b4, 4);
    shows(&s, run, 6, "bbbbbp");
    ck_assert_uint_eq(index_nodes(s.t.ix), 5);
    frees(&s, 5, true, true, 5, 3); /* 6, 5 and 4, then the branches: merged again */
    shows(&s, run, 6, "bbbdd");
    ck_assert_uint_eq(index_nodes(s.t.ix), 1);
    frees(&s, 1, true, true, 1, 0);
    shows(&s, run, 6, "bbddd");
    gives_up(&s, 4, 4, 3);
    shows(&s, run, 6, "bp");
    stand_free(&s);
}
END_TEST

START_TEST(a_flush_takes_copies_with_it)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 6);
    written(&s, run, 0, 6);
    frees(&s, 3, true, true, 3, 0);
    struct hold lease = {0}, transfer = {0};
    index_hold(s.t.ix, &lease, tree_match(&s.t, run, 2));
    index_hold_io(s.t.ix, &transfer, tree_match(&s.t, run, 5));
    bool done = false;
    struct place old = tree_root(&s.t);
    index_condemn(s.t.ix, old.node);
    ck_assert_uint_eq(index_reap(s.t.ix, old, 100, &done), 1);
    ck_assert(done);
    shows(&s, run, 6, "bbbdd");
    ck_assert(arrive(&s, run, 4)); /* a transfer under way goes on */
    index_unhold(s.t.ix, &transfer);
    shows(&s, run, 6, "bb");
    index_unhold(s.t.ix, &lease);
    ck_assert_uint_eq(s.n_gone, 6);
    ck_assert_uint_eq(index_nodes(s.t.ix), 0);
    ck_assert_uint_eq(s.t.pool.n_free, 32);
    tree_free(&s.t); /* the root has gone: nothing to audit */
}
END_TEST

/* A flushed space is not written any more, and what it still has is not in the others' order. */
START_TEST(nothing_condemned_is_next)
{
    struct stand s;
    struct place leaf;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 3);
    tree_insert(&s.t, branch, 3);
    written(&s, run, 0, 3);
    ck_assert(index_dirty(s.t.ix, &leaf));
    index_condemn(s.t.ix, s.t.root);
    ck_assert(!index_dirty(s.t.ix, &leaf));
    frees(&s, 9, true, true, 0, 0);
    gives_up(&s, 9, 0, 0);
    stand_free(&s);
}
END_TEST

/* The path that is written next, and what of it: a node at a time, nothing that is on its way. */
START_TEST(the_coldest_path_is_written_front_first)
{
    struct stand s;
    struct place leaf, end;
    struct hold h = {0};
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    tree_insert(&s.t, other, 1);
    tree_insert(&s.t, branch, 3);
    ck_assert(index_dirty(s.t.ix, &leaf));
    ck_assert_uint_eq(leaf.depth, 4);
    index_hold_io(s.t.ix, &h, leaf);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 1, &end), 1);
    ck_assert_uint_eq(end.depth, 1);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 0); /* it is on its way */
    index_written(s.t.ix, end, 1);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 2); /* it has failed */
    ck_assert_uint_eq(end.depth, 2);
    written(&s, run, 0, 2);
    index_written(s.t.ix, end, 2);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 2);
    ck_assert_uint_eq(end.depth, 4);
    written(&s, run, 2, 4);
    index_written(s.t.ix, end, 2);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 0);
    index_unhold(s.t.ix, &h);
    ck_assert(index_dirty(s.t.ix, &leaf));
    ck_assert_uint_eq(leaf.depth, 1); /* other */
    stand_free(&s);
}
END_TEST

/* What came after the place is held by nobody: it may go while it is written. */
START_TEST(nothing_is_written_beyond_the_place)
{
    struct stand s;
    struct place end;
    struct hold h = {0};
    stand_new(&s, 1);
    index_hold_io(s.t.ix, &h, tree_insert(&s.t, run, 3));
    tree_insert(&s.t, run, 6);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 3);
    ck_assert_uint_eq(end.depth, 3);
    written(&s, run, 0, 3);
    index_written(s.t.ix, end, 3);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 8, &end), 0);
    index_unhold(s.t.ix, &h);
    stand_free(&s);
}
END_TEST

/* One transfer's blocks, on both sides of a border that came later. */
START_TEST(a_transfer_is_seen_across_a_split)
{
    struct stand s;
    struct place leaf, end;
    struct hold h = {0}, second = {0};
    stand_new(&s, 1);
    index_hold_io(s.t.ix, &h, tree_insert(&s.t, run, 6));
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 4, &end), 4);
    tree_insert(&s.t, branch, 3);
    ck_assert(index_dirty(s.t.ix, &leaf));
    ck_assert_uint_eq(leaf.depth, 3);
    index_hold_io(s.t.ix, &second, leaf);
    struct place other_end;
    ck_assert_uint_eq(index_unwritten(s.t.ix, second.where, 4, &other_end), 0);
    written(&s, run, 0, 2); /* the front of it is there, and the other path may go on */
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 4, &leaf), 0);
    ck_assert_uint_eq(index_unwritten(s.t.ix, second.where, 4, &other_end), 1);
    ck_assert_uint_eq(other_end.depth, 3);
    written(&s, branch, 2, 3);
    index_written(s.t.ix, other_end, 1);
    index_unhold(s.t.ix, &second);
    written(&s, run, 2, 4);
    index_written(s.t.ix, end, 4);
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 4, &end), 2);
    ck_assert_uint_eq(end.depth, 6);
    index_written(s.t.ix, end, 2);
    index_unhold(s.t.ix, &h);
    stand_free(&s);
}
END_TEST

/* The copy of a front is as young as the path for which it was written. */
START_TEST(recency_of_a_copy_is_that_of_its_path)
{
    struct stand s;
    struct place end;
    struct hold h = {0};
    stand_new(&s, 1);
    tree_insert(&s.t, other, 1);
    written(&s, other, 0, 1);
    index_hold_io(s.t.ix, &h, tree_insert(&s.t, run, 4));
    ck_assert_uint_eq(index_unwritten(s.t.ix, h.where, 2, &end), 2);
    written(&s, run, 0, 2);
    index_written(s.t.ix, end, 2);
    index_unhold(s.t.ix, &h);
    gives_up(&s, 1, 1, 0);
    shows(&s, other, 1, "p");
    shows(&s, run, 4, "bbpp");
    stand_free(&s);
}
END_TEST

START_TEST(what_cannot_be_read_goes_with_what_is_below)
{
    struct stand s;
    struct hold h = {0};
    static const uint32_t deep[] = {1, 2, 3, 4, 7, 8};
    stand_new(&s, 1);
    tree_insert(&s.t, run, 6);
    tree_insert(&s.t, branch, 3);
    tree_insert(&s.t, deep, 6);
    written(&s, run, 0, 6);
    written(&s, branch, 2, 3);
    written(&s, deep, 4, 6);
    frees(&s, 8, false, true, 8, 0);
    index_hold(s.t.ix, &h, tree_match(&s.t, run, 5));
    index_lose(s.t.ix, tree_match(&s.t, run, 3));
    shows(&s, run, 6, "bdddd"); /* to the end of the hold */
    shows(&s, deep, 6, "bddd");
    shows(&s, branch, 3, "bdd");
    index_unhold(s.t.ix, &h);
    index_lose(s.t.ix, tree_match(&s.t, run, 3));
    shows(&s, run, 6, "bd");
    shows(&s, branch, 3, "bdd");
    ck_assert_uint_eq(s.n_gone, 6);
    ck_assert_uint_eq(index_nodes(s.t.ix), 1); /* merged again */
    stand_free(&s);
}
END_TEST

/* Its blocks have what no header holds: nobody waits for them, and others are written. */
START_TEST(what_cannot_be_written_is_not_waited_for)
{
    struct stand s;
    struct place leaf;
    struct hold h = {0};
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    tree_insert(&s.t, other, 1);
    ck_assert(index_dirty(s.t.ix, &leaf));
    ck_assert_uint_eq(leaf.depth, 4);
    index_unwritable(s.t.ix, leaf);
    ck_assert(index_dirty(s.t.ix, &leaf));
    ck_assert_uint_eq(leaf.depth, 1);
    frees(&s, 2, false, true, 2, 2);
    shows(&s, run, 4, "pp");
    index_hold_io(s.t.ix, &h, leaf);
    ck_assert(index_dirty(s.t.ix, &leaf)); /* what is left may be another matter */
    ck_assert_uint_eq(leaf.depth, 2);
    index_unhold(s.t.ix, &h);
    stand_free(&s);
}
END_TEST

START_TEST(clean_is_idle_with_a_copy)
{
    struct stand s;
    struct hold h = {0};
    stand_new(&s, 1);
    tree_insert(&s.t, run, 6);
    written(&s, run, 0, 4);
    ck_assert_uint_eq(index_clean(s.t.ix), 4);
    index_hold_io(s.t.ix, &h, tree_match(&s.t, run, 1));
    ck_assert_uint_eq(index_clean(s.t.ix), 3);
    frees(&s, 3, true, true, 3, 2);
    ck_assert_uint_eq(index_clean(s.t.ix), 2);
    index_unhold(s.t.ix, &h);
    ck_assert_uint_eq(index_clean(s.t.ix), 3);
    struct place root = tree_root(&s.t);
    bool done;
    index_condemn(s.t.ix, root.node);
    index_reap(s.t.ix, root, 100, &done);
    ck_assert_uint_eq(index_clean(s.t.ix), 0);
    tree_free(&s.t); /* the root has gone: nothing to audit */
}
END_TEST

/* It is never written, so nobody need wait for that. */
START_TEST(a_partial_block_is_not_dirty)
{
    struct stand s;
    struct place leaf, partial;
    static const uint32_t part[] = {1, 2};
    stand_new(&s, 4);
    struct index_query q = tree_query(part, 2);
    ck_assert(index_insert_partial(s.t.ix, &q, tree_root(&s.t), 2, pool_take(&s.t.pool), &partial));
    index_stamp(s.t.ix, partial);
    ck_assert(!index_dirty(s.t.ix, &leaf));
    frees(&s, 1, false, true, 1, 1);
    stand_free(&s);
}
END_TEST

/* A copy source is on the device: one on disk that shares more is none. */
START_TEST(a_tail_is_on_the_device)
{
    struct stand s;
    struct place tail;
    uint32_t block, n_tokens;
    static const uint32_t near[] = {1, 2, 3, 4}, far[] = {1, 2, 9, 9}, third[] = {1, 2, 8, 8},
                          rest[] = {1, 2, 3, 7};
    stand_new(&s, 4);
    tree_insert(&s.t, near, 4);
    tree_insert(&s.t, far, 4);
    tree_insert(&s.t, third, 4);
    uint32_t low = 0;
    ck_assert(index_path_ids(index_view_of(s.t.ix), tree_match(&s.t, far, 4), 0, 1, &low, NULL));
    ck_assert(index_copy_commit(s.t.ix, tree_match(&s.t, near, 4), 0));
    ck_assert(index_tail(s.t.ix, tree_root(&s.t), rest, 4, &tail, &block, &n_tokens));
    ck_assert_uint_eq(n_tokens, 3);
    frees(&s, 1, false, true, 1, 0);
    ck_assert(index_tail(s.t.ix, tree_root(&s.t), rest, 4, &tail, &block, &n_tokens));
    ck_assert_uint_eq(n_tokens, 2);
    ck_assert_uint_eq(block, low); /* the lower of two */
    frees(&s, 2, true, true, 2, 2);
    ck_assert(!index_tail(s.t.ix, tree_root(&s.t), rest, 4, &tail, &block, &n_tokens));
    stand_free(&s);
}
END_TEST

/* A use that ended on disk was a use of the pages before it. */
START_TEST(recency_reaches_the_last_page)
{
    struct stand s;
    stand_new(&s, 1);
    tree_insert(&s.t, run, 4);
    tree_insert(&s.t, branch, 3);
    written(&s, run, 0, 4);
    written(&s, branch, 2, 3);
    frees(&s, 3, false, true, 3, 0); /* 4 3 and 9, in nodes of their own */
    tree_insert(&s.t, other, 1);
    index_stamp(s.t.ix, tree_match(&s.t, run, 4));
    frees(&s, 1, true, true, 1, 1);
    shows(&s, other, 1, "");
    shows(&s, run, 4, "bbdd");
    stand_free(&s);
}
END_TEST

/* Pages that went together come back as young as what was behind them. */
START_TEST(recency_comes_back_with_a_page)
{
    struct stand s;
    struct hold h = {0};
    stand_new(&s, 1);
    index_hold(s.t.ix, &h, tree_insert(&s.t, other, 1));
    tree_insert(&s.t, run, 3);
    written(&s, run, 0, 3);
    frees(&s, 3, false, true, 3, 0);
    index_unhold(s.t.ix, &h);
    ck_assert(arrive(&s, run, 1));
    frees(&s, 1, true, true, 1, 1); /* used before the run was */
    shows(&s, other, 1, "");
    shows(&s, run, 3, "bdd");
    stand_free(&s);
}
END_TEST

/* Whoever had its place before it may have been young. */
START_TEST(recency_of_a_restored_block_is_none)
{
    struct stand s;
    static const uint32_t first[] = {30}, disk[] = {7};
    stand_new(&s, 1);
    tree_insert(&s.t, first, 1);
    written(&s, first, 0, 1);
    frees(&s, 1, false, true, 1, 0);
    for (int i = 0; i < 5; i++)
        tree_insert(&s.t, other, 1);
    frees(&s, 1, true, true, 1, 1);
    struct index_query q = tree_query(run, 1);
    struct place where = tree_root(&s.t);
    index_restore(s.t.ix, &q, disk, 1, &where);
    shows(&s, run, 1, "d");
    gives_up(&s, 1, 1, 1);
    shows(&s, run, 1, "");
    shows(&s, first, 1, "d");
    stand_free(&s);
}
END_TEST

/* Its prefix is still somewhere: it stays with the last copy, and is told once. */
START_TEST(a_snapshot_stays_while_its_prefix_is_on_disk)
{
    struct stand s;
    uint32_t gone = 0;
    stand_new(&s, 1);
    index_set_snapshot_gone(s.t.ix, on_snapshot_gone, &gone);
    tree_insert(&s.t, run, 4);
    written(&s, run, 0, 4);
    const struct residue none = {0};
    index_snapshot_add(s.t.ix, 1, tree_match(&s.t, run, 4), &none, SNAPSHOT_EXACT, 0, 1, 0);
    frees(&s, 9, false, true, 4, 0);
    ck_assert_uint_eq(index_snapshot_find(s.t.ix, tree_match(&s.t, run, 4), &none), 1);
    ck_assert(arrive(&s, run, 1));
    ck_assert_uint_eq(gone, 0);
    gives_up(&s, 1, 1, 1);
    ck_assert_uint_eq(gone, 1);
    shows(&s, run, 4, "bdd");
    stand_free(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("residency");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, residency_against_a_list);
    tcase_add_test(t, a_page_with_a_copy_just_goes);
    tcase_add_test(t, a_page_without_a_copy_takes_its_block);
    tcase_add_test(t, a_copy_goes_alone_or_with_its_block);
    tcase_add_test(t, the_deepest_goes_first);
    tcase_add_test(t, copies_are_committed_front_first);
    tcase_add_test(t, pages_arrive_front_first);
    tcase_add_test(t, an_insert_brings_pages_to_what_is_on_disk);
    tcase_add_test(t, a_hold_keeps_pages_and_copies);
    tcase_add_test(t, split_and_merge_carry_what_is_on_disk);
    tcase_add_test(t, a_flush_takes_copies_with_it);
    tcase_add_test(t, nothing_condemned_is_next);
    tcase_add_test(t, the_coldest_path_is_written_front_first);
    tcase_add_test(t, nothing_is_written_beyond_the_place);
    tcase_add_test(t, a_transfer_is_seen_across_a_split);
    tcase_add_test(t, recency_of_a_copy_is_that_of_its_path);
    tcase_add_test(t, what_cannot_be_read_goes_with_what_is_below);
    tcase_add_test(t, what_cannot_be_written_is_not_waited_for);
    tcase_add_test(t, clean_is_idle_with_a_copy);
    tcase_add_test(t, a_partial_block_is_not_dirty);
    tcase_add_test(t, a_tail_is_on_the_device);
    tcase_add_test(t, recency_reaches_the_last_page);
    tcase_add_test(t, recency_comes_back_with_a_page);
    tcase_add_test(t, recency_of_a_restored_block_is_none);
    tcase_add_test(t, a_snapshot_stays_while_its_prefix_is_on_disk);
    suite_add_tcase(s, t);
    return s;
}
