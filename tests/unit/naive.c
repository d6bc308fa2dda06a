#include "tests/unit/naive.h"

#include <string.h>

static void on_gone(void *arg, uint32_t id, bool evicted)
{
    struct naive *n = arg;
    REQUIRE(n->entry[id].there);
    REQUIRE(evicted != n->flushing);
    n->entry[id].there = false;
    n->told[n->n_told++] = n->entry[id].prefix;
    n->left++;
    n->flushed += !evicted;
}

static void on_emptied(void *arg, uint32_t space)
{
    struct naive *n = arg;
    REQUIRE_EQ(space, 0);
    REQUIRE(index_root_empty(n->t.ix, n->t.root));
    n->emptied++;
}

void naive_new(struct naive *n, uint32_t block_tokens, uint32_t n_blocks, uint64_t hash_mask)
{
    memset(n, 0, sizeof *n);
    tree_new_with(&n->t, block_tokens, n_blocks, NAIVE_MAX, hash_mask);
    index_set_snapshot_gone(n->t.ix, on_gone, n);
    index_set_emptied(n->t.ix, on_emptied, n);
}

void naive_free(struct naive *n)
{
    tree_free(&n->t);
}

/* ---- texts ------------------------------------------------------------------------------ */

static const struct wire_extra images[][TEXT_EXTRAS] = {
    {{2, 1, "a"}},
    {{2, 1, "b"}},
    {{2, 7, "a"}},
    {{1, 1, "a"}, {6, 3, "b"}},
    {{1, 1, "a"}, {6, 3, "a"}},
    {{5, 2, "a"}, {7, 1, "b"}, {9, 1, "c"}},
    {{5, 2, "a"}, {7, 1, "b"}, {9, 1, "d"}},
};

void text_random(struct rng *r, uint32_t most, struct text *x)
{
    x->n = 1 + rng_below(r, most);
    x->n_extras = 0;
    for (uint32_t i = 0; i < x->n; i++)
        x->tokens[i] = rng_below(r, 5) == 0;
    if (rng_below(r, 2))
        return;
    const struct wire_extra *image = images[rng_below(r, sizeof images / sizeof images[0])];
    while (x->n_extras < TEXT_EXTRAS && image[x->n_extras].len && image[x->n_extras].at < x->n) {
        x->extras[x->n_extras] = image[x->n_extras];
        x->n_extras++;
    }
}

struct index_query text_query(const struct text *x)
{
    return (struct index_query){
        .tokens = x->tokens, .n_tokens = x->n, .extras = x->extras, .n_extras = x->n_extras};
}

static uint32_t extras_until(const struct text *x, uint32_t n)
{
    uint32_t i = 0;
    while (i < x->n_extras && x->extras[i].at < n)
        i++;
    return i;
}

bool text_shares(const struct text *a, const struct text *b, uint32_t n)
{
    uint32_t extras = extras_until(a, n);
    return a->n >= n && b->n >= n && memcmp(a->tokens, b->tokens, n * sizeof a->tokens[0]) == 0 &&
           extras_until(b, n) == extras &&
           memcmp(a->extras, b->extras, extras * sizeof a->extras[0]) == 0;
}

/* ---- entries ----------------------------------------------------------------------------- */

void naive_add(struct naive *n, uint32_t id, struct place where, const struct text *x,
               uint32_t depth, enum snapshot_kind kind, uint64_t session)
{
    uint32_t bt = n->t.bt, whole = depth / bt;
    struct naive_entry *e = &n->entry[id];
    struct wire_extra in[TEXT_EXTRAS];
    struct residue residue = {
        .tokens = x->tokens + whole * bt, .n_tokens = depth % bt, .extras = in};
    for (uint32_t i = 0; i < extras_until(x, depth); i++)
        if (x->extras[i].at >= whole * bt)
            in[residue.n_extras++] = x->extras[i];
    *e = (struct naive_entry){true, *x, kind, session, SNAPSHOT_RESIDENT};
    e->prefix.n = depth;
    e->prefix.n_extras = extras_until(x, depth);
    where.depth = whole;
    index_cover(n->t.ix, &where);
    index_snapshot_add(n->t.ix, id, where, &residue, kind, session, 1000 + id, 0);
}

/* The space is told once of a root that has become empty, and of no other. */
static void emptied_once(const struct naive *n, bool was_empty, unsigned told)
{
    REQUIRE_EQ(n->emptied - told, !was_empty && index_root_empty(n->t.ix, n->t.root));
}

void naive_remove(struct naive *n, uint32_t id)
{
    unsigned told = n->emptied;
    n->entry[id].there = false;
    index_snapshot_remove(n->t.ix, id);
    emptied_once(n, false, told);
}

void naive_evict(struct naive *n, uint32_t blocks)
{
    unsigned told = n->emptied;
    bool was_empty = index_root_empty(n->t.ix, n->t.root);
    index_evict(n->t.ix, blocks);
    emptied_once(n, was_empty, told);
}

void naive_move(struct naive *n, uint32_t id, uint32_t state)
{
    n->entry[id].state = state;
    if (state == SNAPSHOT_TIERED)
        index_snapshot_move(n->t.ix, id, NO_SLOT, 5000 + id);
    else
        index_snapshot_move(n->t.ix, id, 1000 + id, 0);
}

uint32_t naive_at(const struct naive *n, const struct text *x, uint32_t depth)
{
    for (uint32_t id = 1; id <= NAIVE_MAX; id++) {
        const struct naive_entry *e = &n->entry[id];
        if (e->there && e->kind != SNAPSHOT_TAIL && e->prefix.n == depth &&
            text_shares(&e->prefix, x, depth))
            return id;
    }
    return 0;
}

uint32_t naive_tail(const struct naive *n, uint64_t session)
{
    for (uint32_t id = 1; id <= NAIVE_MAX; id++)
        if (n->entry[id].there && n->entry[id].kind == SNAPSHOT_TAIL &&
            n->entry[id].session == session)
            return id;
    return 0;
}

uint32_t naive_unused(const struct naive *n)
{
    for (uint32_t id = 1; id <= NAIVE_MAX; id++)
        if (!n->entry[id].there)
            return id;
    return 0;
}

static struct snapshot_found deepest(const struct naive *n, const struct text *x, uint32_t limit,
                                     uint32_t state, const struct snapshot_want *want)
{
    struct snapshot_found best = {0};
    for (uint32_t id = 1; id <= NAIVE_MAX; id++) {
        const struct naive_entry *e = &n->entry[id];
        uint32_t depth = e->prefix.n;
        bool tail = e->kind == SNAPSHOT_TAIL;
        if (!e->there || e->state != state || !(want->states & state) || depth > limit ||
            (want->multiple && depth % want->multiple) ||
            (tail && (e->session != want->session || !want->session)) ||
            !text_shares(&e->prefix, x, depth))
            continue;
        if (depth > best.depth || (depth == best.depth && !tail))
            best = (struct snapshot_found){id, depth, tail};
    }
    return best;
}

struct snapshots_found naive_search(const struct naive *n, const struct text *x, uint32_t depth,
                                    const struct snapshot_want *want)
{
    uint32_t bt = n->t.bt, rest = want->n_rest < bt ? want->n_rest : bt - 1;
    uint32_t limit = depth * bt + rest;
    return (struct snapshots_found){.resident = deepest(n, x, limit, SNAPSHOT_RESIDENT, want),
                                    .tiered = deepest(n, x, limit, SNAPSHOT_TIERED, want)};
}

/* ---- steps --------------------------------------------------------------------------------- */

void naive_flush(struct naive *n, uint32_t step)
{
    struct place old = tree_root(&n->t);
    bool empty = index_root_empty(n->t.ix, old.node), done = false;
    uint32_t root = index_root_new(n->t.ix, 0);
    struct index_space *s =
        (struct index_space *)(uintptr_t)index_space_at(index_view_of(n->t.ix), 0);
    s->root = n->t.root = root;
    n->flushing = true;
    if (empty)
        index_root_free(n->t.ix, old.node);
    else
        index_condemn(n->t.ix, old.node);
    while (!empty && !done) {
        index_reap(n->t.ix, old, step, &done);
        tree_audit(&n->t);
    }
    n->flushing = false;
    n->n_told = 0;
    for (uint32_t id = 1; id <= NAIVE_MAX; id++)
        REQUIRE(!n->entry[id].there);
}

static bool prefix_is_there(const struct naive *n, const struct text *prefix)
{
    struct index_query q = text_query(prefix);
    struct place where = tree_root(&n->t);
    index_match(n->t.ix, &q, prefix->n / n->t.bt, &where);
    return where.depth == prefix->n / n->t.bt;
}

void naive_settle(struct naive *n)
{
    for (uint32_t i = 0; i < n->n_told; i++)
        REQUIRE(!prefix_is_there(n, &n->told[i]));
    n->n_told = 0;
    for (uint32_t id = 1; id <= NAIVE_MAX; id++) {
        const struct index_snapshot *e = index_snapshot_at(index_view_of(n->t.ix), id);
        REQUIRE_EQ(e->node != 0, n->entry[id].there);
        REQUIRE_EQ(e->state, n->entry[id].there ? n->entry[id].state : 0);
        if (n->entry[id].there)
            REQUIRE(prefix_is_there(n, &n->entry[id].prefix));
    }
    tree_audit(&n->t);
}
