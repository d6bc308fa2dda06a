/* Snapshots in the tree: a random test against a plain list, and the cases it is made of. */
#include "tests/unit/hooked_read.h"
#include "tests/unit/naive.h"

#include <stdlib.h>
#include <string.h>

/* ---- against a plain list ------------------------------------------------------------------ */

enum { SESSIONS = 3 };

static struct place match(const struct naive *n, const struct text *x)
{
    struct index_query q = text_query(x);
    struct place where = tree_root(&n->t);
    index_match(n->t.ix, &q, x->n / n->t.bt, &where);
    return where;
}

/* What hangs there and what index_residue says of it: the same, wherever the place is. */
static void residue_is_right(struct naive *n, struct place where, const struct text *x,
                             uint32_t depth)
{
    uint32_t bt = n->t.bt, whole = depth / bt;
    _Alignas(8) uint8_t room[8 * (sizeof(struct wire_extra) + 4)];
    struct place at;
    struct residue residue;
    REQUIRE(residue_room(bt) <= sizeof room);
    index_residue(n->t.ix, where, depth, room, &at, &residue);
    const struct index_node *node = index_node_at(index_view_of(n->t.ix), at.node);
    REQUIRE_EQ(at.depth, whole);
    REQUIRE_EQ(at.identity, node->identity);
    REQUIRE(node->flags & NODE_ROOT ? whole == 0
                                    : whole > node->start && whole <= node->start + node->n_blocks);
    REQUIRE_EQ(residue.n_tokens, depth % bt);
    REQUIRE(memcmp(residue.tokens, x->tokens + whole * bt, residue.n_tokens * 4) == 0);
    uint32_t extras = 0;
    for (uint32_t i = 0; i < x->n_extras; i++)
        if (x->extras[i].at >= whole * bt && x->extras[i].at < depth)
            REQUIRE(memcmp(&residue.extras[extras++], &x->extras[i], sizeof x->extras[i]) == 0);
    REQUIRE_EQ(residue.n_extras, extras);
    REQUIRE_EQ(index_snapshot_find(n->t.ix, at, &residue), naive_at(n, x, depth));
}

static void save(struct naive *n, struct rng *r, struct place where, const struct text *x)
{
    uint32_t depth = 1 + rng_below(r, x->n);
    uint64_t session = rng_below(r, SESSIONS + 1);
    enum snapshot_kind kind = session ? (enum snapshot_kind)rng_below(r, 3) : SNAPSHOT_EXACT;
    uint32_t other = kind == SNAPSHOT_TAIL ? naive_tail(n, session) : naive_at(n, x, depth);
    if (other)
        naive_remove(n, other);
    uint32_t id = naive_unused(n);
    if (id)
        naive_add(n, id, where, x, depth, kind, session);
}

/* A text's whole blocks, sometimes its end as a partial block, sometimes a snapshot of it. */
static void step_insert(struct naive *n, struct rng *r, uint32_t most)
{
    struct text x;
    text_random(r, most, &x);
    struct index_query q = text_query(&x);
    struct place where = tree_insert_query(&n->t, &q), end = where;
    uint32_t at = where.depth * n->t.bt, covered = at;
    uint32_t rest = index_tail_limit(&q, at, x.n - at);
    if (rest && rng_below(r, 3) == 0 && n->t.pool.n_free) {
        uint32_t page = pool_take(&n->t.pool);
        if (!index_insert_partial(n->t.ix, &q, where, rest, page, &end))
            pool_give(&n->t.pool, page);
        covered = at + rest;
    }
    if (covered)
        residue_is_right(n, end, &x, 1 + rng_below(r, covered));
    if (rng_below(r, 3))
        save(n, r, where, &x);
}

static void step_entry(struct naive *n, struct rng *r)
{
    uint32_t id = 1 + rng_below(r, NAIVE_MAX);
    struct naive_entry *e = &n->entry[id];
    if (!e->there)
        return;
    switch (rng_below(r, 4)) {
    case 0:
        naive_remove(n, id);
        break;
    case 1:
        if (e->kind == SNAPSHOT_SIBLING) {
            index_snapshot_exact(n->t.ix, id);
            e->kind = SNAPSHOT_EXACT;
        }
        break;
    default:
        naive_move(n, id, e->state ^ SNAPSHOT_RESIDENT ^ SNAPSHOT_TIERED);
    }
}

/* Ask for a text or, more often, for one that begins as an entry does. Returns how many were found.
 */
static unsigned ask(struct naive *n, struct rng *r, uint32_t most)
{
    struct text x;
    text_random(r, most, &x);
    const struct naive_entry *e = &n->entry[1 + rng_below(r, NAIVE_MAX)];
    if (e->there && rng_below(r, 4)) {
        uint32_t more = rng_below(r, most - e->prefix.n + 1);
        x = e->prefix;
        for (; more; more--)
            x.tokens[x.n++] = rng_below(r, 5) == 0;
    }
    struct index_query q = text_query(&x);
    struct place where = match(n, &x);
    uint32_t bt = n->t.bt;
    if (rng_below(r, 4) == 0)
        where.depth = rng_below(r, where.depth + 1);
    if (rng_below(r, 2))
        index_cover(n->t.ix, &where);
    uint32_t at = where.depth * bt, rest = x.n - at < bt ? x.n - at : bt;
    const struct snapshot_want want = {
        .session = rng_below(r, SESSIONS + 1),
        .multiple = rng_below(r, 2) ? 0 : rng_below(r, 2 * bt + 2),
        .states = 1 + rng_below(r, 3),
        .rest = x.tokens + at,
        .n_rest = rng_below(r, index_tail_limit(&q, at, rest) + 1),
    };
    struct snapshots_found found, right = naive_search(n, &x, where.depth, &want);
    REQUIRE(index_snapshots(index_view_of(n->t.ix), where, &want, &found));
    const struct snapshot_found got[2] = {found.resident, found.tiered};
    const struct snapshot_found expected[2] = {right.resident, right.tiered};
    for (int i = 0; i < 2; i++) {
        REQUIRE_MSG(got[i].id == expected[i].id,
                    "state %d: entry %u at %u tokens is found, it should be %u at %u", i + 1,
                    got[i].id, got[i].depth, expected[i].id, expected[i].depth);
        REQUIRE_EQ(got[i].depth, expected[i].depth);
        REQUIRE_EQ(got[i].is_tail, expected[i].is_tail);
    }
    return (got[0].id != 0) + (got[1].id != 0);
}

static void step(struct naive *n, struct rng *r, uint32_t most, struct hold *hold)
{
    uint32_t dice = rng_below(r, 100);
    if (dice < 45) {
        step_insert(n, r, most);
    } else if (dice < 80) {
        step_entry(n, r);
    } else if (dice < 95) {
        naive_evict(n, 1 + rng_below(r, dice == 94 ? 100 : 6));
    } else if (dice < 99) { /* a hold keeps a border from being merged away */
        struct text x;
        text_random(r, most, &x);
        index_unhold(n->t.ix, hold);
        index_hold(n->t.ix, hold, match(n, &x));
    } else if (rng_below(r, 3) == 0) {
        naive_flush(n, 1 + rng_below(r, 8));
        index_unhold(n->t.ix, hold); /* what it held went with it */
    }
}

START_TEST(snapshots_against_a_plain_list)
{
    static struct naive n;
    uint32_t bt = 1 + (uint32_t)_i % 4, most = bt == 1 ? 24 : 10 * bt;
    uint64_t mask = _i < 4 ? UINT64_MAX : 0x300000001ull;
    struct rng r = rng_seeded("snapshots");
    struct hold hold = {0};
    unsigned offers = 0;
    naive_new(&n, bt, 60, mask);
    for (int i = 0; i < 12000; i++) {
        step(&n, &r, most, &hold);
        naive_settle(&n);
        for (int asks = 0; asks < 4; asks++)
            offers += ask(&n, &r, most);
    }
    index_unhold(n.t.ix, &hold);
    REQUIRE(n.left > 1000 && n.flushed > 100 && offers > 10000); /* it did happen */
    naive_free(&n);
}
END_TEST

/* ---- one case each -----------------------------------------------------------------------------
 */

static struct text text_of(const char *tokens)
{
    struct text x = {.n = (uint32_t)strlen(tokens)};
    for (uint32_t i = 0; i < x.n; i++)
        x.tokens[i] = (uint32_t)(tokens[i] - 'a');
    return x;
}

static struct place put(struct naive *n, const char *tokens)
{
    struct text x = text_of(tokens);
    struct index_query q = text_query(&x);
    return tree_insert_query(&n->t, &q);
}

static void hang(struct naive *n, uint32_t id, const char *prefix, enum snapshot_kind kind,
                 uint64_t session)
{
    struct text x = text_of(prefix);
    naive_add(n, id, match(n, &x), &x, x.n, kind, session);
}

/* Depth of the resident one that `session` is offered for this text; its number in *id. */
static uint32_t offered(const struct naive *n, const struct text *x, uint64_t session, uint32_t *id)
{
    struct place where = match(n, x);
    uint32_t at = where.depth * n->t.bt, rest = x->n - at;
    struct index_query q = text_query(x);
    const struct snapshot_want want = {
        .session = session,
        .states = SNAPSHOT_RESIDENT,
        .rest = x->tokens + at,
        .n_rest = index_tail_limit(&q, at, rest < n->t.bt ? rest : n->t.bt)};
    struct snapshots_found found;
    ck_assert(index_snapshots(index_view_of(n->t.ix), where, &want, &found));
    if (id)
        *id = found.resident.id;
    return found.resident.depth;
}

static uint32_t offer(const struct naive *n, const char *tokens)
{
    struct text x = text_of(tokens);
    return offered(n, &x, 0, NULL);
}

static uint32_t node_of(const struct naive *n, uint32_t id)
{
    return index_snapshot_at(index_view_of(n->t.ix), id)->node;
}

/* abcd cut into ab-cd and ab-ef: what is not deeper than ab goes to the upper part, its residue
 * included; the branch goes, and it comes back. */
START_TEST(snapshots_move_with_split_and_merge)
{
    static struct naive n;
    naive_new(&n, 2, 16, UINT64_MAX);
    struct place end = put(&n, "aabbccdd");
    hang(&n, 1, "aa", SNAPSHOT_EXACT, 0);
    hang(&n, 2, "aabb", SNAPSHOT_EXACT, 0);
    hang(&n, 3, "aabbc", SNAPSHOT_EXACT, 0);
    hang(&n, 4, "aabbcc", SNAPSHOT_EXACT, 0);
    hang(&n, 5, "aabbx", SNAPSHOT_TAIL, 7);
    hang(&n, 6, "aabbccdd", SNAPSHOT_TAIL, 8);
    for (uint32_t id = 1; id <= 6; id++)
        ck_assert_uint_eq(node_of(&n, id), end.node);

    put(&n, "aabbee");
    naive_settle(&n);
    uint32_t upper = node_of(&n, 1);
    ck_assert_uint_ne(upper, end.node);
    const uint32_t front[] = {1, 2, 3, 5}, back[] = {4, 6};
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(node_of(&n, front[i]), upper);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(node_of(&n, back[i]), end.node);
    ck_assert_uint_eq(offer(&n, "aabbccdd"), 6);
    ck_assert_uint_eq(offer(&n, "aabbee"), 4);

    struct hold h;
    index_hold(n.t.ix, &h, end);
    ck_assert_uint_eq(index_evict(n.t.ix, 1), 1); /* ee */
    naive_settle(&n);
    for (uint32_t id = 1; id <= 6; id++)
        ck_assert_uint_eq(node_of(&n, id), end.node);
    ck_assert_uint_eq(n.left, 0);
    index_unhold(n.t.ix, &h);
    naive_free(&n);
}
END_TEST

START_TEST(snapshots_leave_with_their_last_whole_block)
{
    static struct naive n;
    naive_new(&n, 2, 16, UINT64_MAX);
    put(&n, "aabbcc");
    hang(&n, 1, "a", SNAPSHOT_EXACT, 0); /* on the root */
    hang(&n, 2, "aabb", SNAPSHOT_EXACT, 0);
    hang(&n, 3, "aabbc", SNAPSHOT_EXACT, 0); /* less than a block more: it needs bb alone */
    hang(&n, 4, "aabbcc", SNAPSHOT_EXACT, 0);
    hang(&n, 5, "aabbccd", SNAPSHOT_TAIL, 7);
    ck_assert_uint_eq(index_evict(n.t.ix, 1), 1);
    ck_assert_uint_eq(n.left, 2);
    ck_assert(!n.entry[4].there && !n.entry[5].there);
    naive_settle(&n);
    ck_assert_uint_eq(offer(&n, "aabbcc"), 5); /* as a rest, although its block has gone */
    ck_assert_uint_eq(index_evict(n.t.ix, 1), 1);
    ck_assert_uint_eq(n.left, 4);
    ck_assert_uint_eq(index_evict(n.t.ix, 8), 1);
    naive_settle(&n);
    ck_assert_uint_eq(n.emptied, 0); /* the root has one still */
    ck_assert_uint_eq(offer(&n, "aabb"), 1);
    naive_remove(&n, 1);
    ck_assert_uint_eq(n.emptied, 1);
    naive_free(&n);
}
END_TEST

/* Of a flush nobody is told as of an eviction, and entries go although a lease holds their path. */
START_TEST(snapshots_leave_with_a_flush)
{
    static struct naive n;
    for (int blocks = 0; blocks < 2; blocks++) {
        naive_new(&n, 2, 16, UINT64_MAX);
        struct hold h = {0};
        if (blocks) {
            index_hold(n.t.ix, &h, put(&n, "aabbcc"));
            put(&n, "aadd");
            hang(&n, 2, "aab", SNAPSHOT_EXACT, 0);
            hang(&n, 3, "aabbcc", SNAPSHOT_TAIL, 7);
            hang(&n, 4, "aadd", SNAPSHOT_SIBLING, 7);
        }
        hang(&n, 1, "a", SNAPSHOT_EXACT, 0);
        uint32_t root = n.t.root;
        naive_flush(&n, 1);
        ck_assert_uint_eq(n.left, blocks ? 4 : 1);
        ck_assert_uint_eq(n.flushed, n.left);
        ck_assert_uint_eq(n.emptied, 0);
        ck_assert_int_eq(index_node_at(index_view_of(n.t.ix), root)->identity != 0, 1);
        index_unhold(n.t.ix, &h);
        tree_audit(&n.t);
        ck_assert_uint_eq(n.t.pool.n_free, 16);
        naive_free(&n);
    }
}
END_TEST

START_TEST(snapshots_of_unaligned_depths)
{
    static struct naive n;
    naive_new(&n, 4, 16, UINT64_MAX);
    put(&n, "aaaabbbbcccc");
    hang(&n, 1, "aaaa", SNAPSHOT_EXACT, 0);
    hang(&n, 2, "aaaab", SNAPSHOT_EXACT, 0);
    hang(&n, 3, "aaaabbb", SNAPSHOT_EXACT, 0);
    hang(&n, 4, "aaaabbx", SNAPSHOT_EXACT, 0); /* between "bb" and "bbx" in order, beside 3 */
    hang(&n, 5, "aaaaa", SNAPSHOT_EXACT, 0);
    ck_assert_uint_eq(offer(&n, "aaaabbbbcccc"), 7);
    ck_assert_uint_eq(offer(&n, "aaaabbbx"), 7); /* bbbb is not matched: the rest is bbbx */
    ck_assert_uint_eq(offer(&n, "aaaabbx"), 7);
    ck_assert_uint_eq(offer(&n, "aaaabby"), 5);
    ck_assert_uint_eq(offer(&n, "aaaabb"), 5);
    ck_assert_uint_eq(offer(&n, "aaaac"), 4);
    ck_assert_uint_eq(offer(&n, "aaaaaa"), 5);
    ck_assert_uint_eq(offer(&n, "aaa"), 0);
    struct text x = text_of("aaaabbbbcccc");
    struct snapshot_want want = {.states = SNAPSHOT_RESIDENT, .multiple = 5};
    struct snapshots_found found;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.depth, 5);
    want.multiple = 2;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.depth, 4);
    want.multiple = 8;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.depth, 0);
    naive_free(&n);
}
END_TEST

/* The same tokens with another image, or none, are another prefix, in the residue too. */
START_TEST(snapshots_know_the_images_of_their_residue)
{
    static struct naive n;
    naive_new(&n, 4, 16, UINT64_MAX);
    struct text plain = text_of("aaaabbbbcc"), a = plain, b = plain, later = plain;
    a.extras[0] = (struct wire_extra){5, 1, "a"};
    b.extras[0] = (struct wire_extra){5, 1, "b"};
    later.extras[0] = (struct wire_extra){6, 1, "a"};
    a.n_extras = b.n_extras = later.n_extras = 1;
    struct text *const of[] = {&plain, &a, &b, &later};
    for (int i = 0; i < 4; i++) {
        struct index_query q = text_query(of[i]);
        tree_insert_query(&n.t, &q);
    }
    for (uint32_t i = 0; i < 3; i++)
        naive_add(&n, 1 + i, match(&n, of[i]), of[i], 6 + (i == 2), SNAPSHOT_EXACT, 0);
    naive_add(&n, 4, match(&n, &later), &later, 7, SNAPSHOT_TAIL, 7);
    naive_settle(&n);
    uint32_t id;
    ck_assert_uint_eq(offered(&n, &plain, 7, &id), 6);
    ck_assert_uint_eq(id, 1);
    ck_assert_uint_eq(offered(&n, &a, 7, &id), 6);
    ck_assert_uint_eq(id, 2);
    ck_assert_uint_eq(offered(&n, &b, 7, &id), 7);
    ck_assert_uint_eq(id, 3);
    ck_assert_uint_eq(offered(&n, &later, 7, &id), 7);
    ck_assert_uint_eq(id, 4);
    ck_assert_uint_eq(offered(&n, &later, 0, &id), 6); /* its image starts behind these */
    ck_assert_uint_eq(id, 1);
    naive_free(&n);
}
END_TEST

START_TEST(snapshots_offer_the_exact_one_before_the_tail)
{
    static struct naive n;
    naive_new(&n, 2, 16, UINT64_MAX);
    put(&n, "aabbcc");
    hang(&n, 1, "aabb", SNAPSHOT_SIBLING, 9);
    hang(&n, 2, "aabb", SNAPSHOT_TAIL, 7);
    hang(&n, 3, "aab", SNAPSHOT_TAIL, 8);
    struct text x = text_of("aabbcc");
    struct snapshot_want want = {.states = SNAPSHOT_RESIDENT | SNAPSHOT_TIERED, .session = 7};
    struct snapshots_found found;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.id, 1);
    ck_assert(!found.resident.is_tail);
    ck_assert_uint_eq(found.tiered.id, 0);
    naive_move(&n, 1, SNAPSHOT_TIERED); /* each of the two is looked for on its own */
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.id, 2);
    ck_assert(found.resident.is_tail);
    ck_assert_uint_eq(found.tiered.id, 1);
    want.session = 8;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.id, 3);
    want.session = 0;
    ck_assert(index_snapshots(index_view_of(n.t.ix), match(&n, &x), &want, &found));
    ck_assert_uint_eq(found.resident.id, 0);
    naive_free(&n);
}
END_TEST

/* ---- many at one place
 * --------------------------------------------------------------------------- */

enum { MANY = 4096, BLOCK = 16 };

static uint64_t loads;

static void count_load(void)
{
    loads++;
}

/* What a search loads, with MANY entries or a few: entries whose residue leaves the text at its
 * k-th token, all k, which is the most turns that can be; half of them in the other state. */
static uint64_t loads_with(uint32_t entries, uint32_t wanted)
{
    struct tree t;
    uint32_t path[3 * BLOCK], other[BLOCK];
    tree_new_with(&t, BLOCK, 8, MANY, UINT64_MAX);
    for (uint32_t i = 0; i < 3 * BLOCK; i++)
        path[i] = 1000000;
    struct place end = tree_insert(&t, path, 3 * BLOCK), at = {end.identity, end.node, 2};
    for (uint32_t id = 1; id <= entries; id++) {
        uint32_t n = 1 + id % (BLOCK - 1);
        memcpy(other, path, sizeof other);
        other[n - 1] = id; /* below the path's */
        struct residue residue = {.tokens = other, .n_tokens = n};
        index_snapshot_add(t.ix, id, at, &residue, SNAPSHOT_EXACT, 0, id, 0);
        if (id % 2)
            index_snapshot_move(t.ix, id, NO_SLOT, id);
    }
    tree_audit(&t);
    struct snapshot_want want = {.states = wanted};
    struct snapshots_found found;
    loads = 0;
    hooked_between_loads = count_load;
    REQUIRE(hooked_index_snapshots(index_view_of(t.ix), end, &want, &found));
    REQUIRE_EQ(found.resident.id, 0);
    REQUIRE_EQ(found.tiered.id, 0);
    tree_free(&t);
    return loads;
}

START_TEST(snapshots_are_found_without_looking_at_all)
{
    uint64_t few = loads_with(BLOCK - 1, SNAPSHOT_RESIDENT),
             all = loads_with(MANY, SNAPSHOT_RESIDENT);
    ck_assert_uint_gt(few, 0);
    /* A turn for each token of a block, a descent each: 12 levels at best, not much more than
     * twice that with random priorities, at about 6 loads a level. */
    ck_assert_uint_lt(all, (BLOCK + 2) * 30 * 8);
    ck_assert_uint_lt(loads_with(MANY, SNAPSHOT_TIERED), (BLOCK + 2) * 30 * 8);
}
END_TEST

/* More turns than a search may take: what stands at a border of blocks is found all the same. */
START_TEST(snapshots_at_whole_blocks_are_found_behind_a_comb)
{
    enum { BT = 4096, COMB = 600 };
    static uint32_t path[2 * BT], other[BT];
    struct tree t;
    tree_new_with(&t, BT, 4, COMB + 1, UINT64_MAX);
    for (uint32_t i = 0; i < 2 * BT; i++)
        path[i] = 1000000;
    struct place end = tree_insert(&t, path, 2 * BT), at = {end.identity, end.node, 1};
    for (uint32_t n = 1; n <= COMB; n++) {
        memcpy(other, path, sizeof other);
        other[n - 1] = n;
        struct residue residue = {.tokens = other, .n_tokens = n};
        index_snapshot_add(t.ix, n, at, &residue, SNAPSHOT_EXACT, 0, n, 0);
    }
    struct residue none = {0};
    index_snapshot_add(t.ix, COMB + 1, at, &none, SNAPSHOT_EXACT, 0, COMB + 1, 0);
    struct snapshot_want want = {.states = SNAPSHOT_RESIDENT};
    struct snapshots_found found;
    REQUIRE(index_snapshots(index_view_of(t.ix), end, &want, &found));
    ck_assert_uint_eq(found.resident.id, COMB + 1);
    ck_assert_uint_eq(found.resident.depth, BT);
    ck_assert_uint_lt(found.work, COMB);
    tree_free(&t);
}
END_TEST

/* A split that leaves all on one side, and a truncation that cuts none, touch none. */
START_TEST(snapshots_stay_without_being_looked_at)
{
    struct tree t;
    uint32_t path[8];
    tree_new_with(&t, 1, 16, MANY, UINT64_MAX);
    for (uint32_t i = 0; i < 8; i++)
        path[i] = i;
    struct place end = tree_insert(&t, path, 8);
    struct residue none = {0};
    for (uint32_t id = 1; id <= MANY; id++)
        index_snapshot_add(t.ix, id, end, &none, SNAPSHOT_TAIL, id, id, 0);
    uint64_t before = index_work(t.ix);
    path[4] = 100;
    tree_insert(&t, path, 5); /* cuts at 4: all are in the lower part */
    tree_audit(&t);
    ck_assert_uint_lt(index_work(t.ix) - before, 16);
    before = index_work(t.ix);
    ck_assert_uint_eq(index_evict(t.ix, 1), 1); /* the old leaf's last block, and all that hangs */
    tree_audit(&t);
    ck_assert_uint_ge(index_work(t.ix) - before, MANY);
    tree_free(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshots");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, snapshots_against_a_plain_list, 0, 8);
    tcase_add_test(t, snapshots_move_with_split_and_merge);
    tcase_add_test(t, snapshots_leave_with_their_last_whole_block);
    tcase_add_test(t, snapshots_leave_with_a_flush);
    tcase_add_test(t, snapshots_of_unaligned_depths);
    tcase_add_test(t, snapshots_know_the_images_of_their_residue);
    tcase_add_test(t, snapshots_offer_the_exact_one_before_the_tail);
    tcase_add_test(t, snapshots_are_found_without_looking_at_all);
    tcase_add_test(t, snapshots_at_whole_blocks_are_found_behind_a_comb);
    tcase_add_test(t, snapshots_stay_without_being_looked_at);
    suite_add_tcase(s, t);
    return s;
}
