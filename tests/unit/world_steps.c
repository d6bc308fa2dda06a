/* What may happen to a tree with a disk tier, one step a call. */
#include "tests/unit/world.h"

/* ---- steps: lookups and inserts
 * ------------------------------------------------------------------ */

static void step_lookup(struct world *w)
{
    struct text x;
    world_text(w, &x);
    int i = world_text_match(w, &x);
    REQUIRE_EQ(world_match(w, w->gen, x.tokens, x.n).depth, world_depth(w, i));
    if (rng_below(&w->r, 4) == 0)
        i = world_above(w, i, rng_below(&w->r, world_depth(w, i) + 1));
    world_check_tail(w, &x, i);
    if (rng_below(&w->r, 4))
        world_look_up(w, i, world_place(w, i));
    struct holder *h = holder_unused(w->lease, LEASES);
    if (h && rng_below(&w->r, 3) == 0)
        world_hold(w, h, i, false);
    world_check(w);
}

/* Up to n free pages, making room for them; returns how many. */
static uint32_t room_for(struct world *w, uint32_t n)
{
    if (w->t.pool.n_free < n)
        world_free_pages(w, n - w->t.pool.n_free, rng_below(&w->r, 4) > 0);
    return n < w->t.pool.n_free ? n : w->t.pool.n_free;
}

/* n blocks of the text after the holder's; what the tree said of each page is what the list says.
 */
static void insert(struct world *w, const struct text *x, struct holder *h, uint32_t n)
{
    uint32_t first = world_depth(w, h->end), pages[DEEPEST], fresh = 0, bt = w->t.bt;
    int known = h->end;
    uint8_t taken[DEEPEST];
    struct index_query q = tree_query(x->tokens, x->n);
    struct place where = h->h.where;
    for (uint32_t k = 0; k < n; k++)
        pages[k] = pool_take(&w->t.pool);
    uint32_t got = index_insert(w->t.ix, &q, pages, n, taken, &where);
    REQUIRE_EQ(where.depth, first + n);
    int i = h->end;
    for (uint32_t k = 0; k < n; k++) {
        i = world_find(w, w->gen, x->tokens, (first + k + 1) * bt);
        known = i == NONE ? known : i;
        if (i == NONE) {
            REQUIRE_EQ(taken[k], TAKEN_NEW);
            i = world_add(w, x->tokens, (first + k + 1) * bt, pages[k], NO_DISK);
            fresh++;
        } else if (w->b[i].page == NO_PAGE) {
            REQUIRE_EQ(taken[k], TAKEN_ADOPTED);
            w->b[i].page = pages[k];
            w->seen->adopted++;
        } else {
            REQUIRE_EQ(taken[k], TAKEN_NOT);
            pool_give(&w->t.pool, pages[k]);
            w->seen->duplicates++;
        }
    }
    REQUIRE_EQ(got, fresh);
    if (known != h->end)
        world_times(w, known, first);
    world_stamp(w, i, where);
    world_move_hold(w, h, i);
}

static void step_insert(struct world *w)
{
    struct text x;
    struct holder *h = holder_unused(w->lease, LEASES);
    if (!h)
        return;
    world_text(w, &x);
    int i = world_text_match(w, &x);
    while (i != NONE && w->b[i].page == NO_PAGE)
        i = w->b[i].parent;
    uint32_t back = rng_below(&w->r, 4), depth = world_depth(w, i);
    world_hold(w, h, world_above(w, i, depth > back ? depth - back : 0), false);
    uint32_t n = x.n / w->t.bt - world_depth(w, h->end);
    if ((n = room_for(w, n)) > 0)
        insert(w, &x, h, n);
    if (rng_below(&w->r, 3))
        world_unhold(w, h);
}

/* A last block that is not full: a copy source, never written. */
static void step_partial(struct world *w)
{
    struct text x;
    struct holder *h = holder_unused(w->lease, LEASES);
    uint32_t bt = w->t.bt;
    world_text(w, &x);
    int i = world_text_match(w, &x);
    uint32_t from = world_depth(w, i) * bt, n, shared;
    if (!h || bt == 1 || (i != NONE && w->b[i].page == NO_PAGE) || x.n % bt == 0 ||
        x.n - from >= bt)
        return;
    n = x.n - from;
    world_hold(w, h, i, false);
    if (room_for(w, 1)) {
        struct index_query q = tree_query(x.tokens, x.n);
        struct place partial;
        uint32_t page = pool_take(&w->t.pool);
        int there = world_tail(w, i, x.tokens + from, n, &shared);
        bool fresh = index_insert_partial(w->t.ix, &q, h->h.where, n, page, &partial);
        REQUIRE_EQ(fresh, there == NONE || shared < n);
        if (fresh)
            there = world_add(w, x.tokens, x.n, page, NO_DISK);
        else
            pool_give(&w->t.pool, page);
        w->seen->partials += fresh;
        REQUIRE_EQ(partial.depth, w->b[there].depth);
        world_stamp(w, there, partial);
    }
    world_unhold(w, h);
}

/* ---- steps: transfers
 * ------------------------------------------------------------------------------ */

static uint32_t free_slots(const struct world *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_disk; i++)
        n += w->slot[i] == SLOT_FREE;
    return n;
}

static uint32_t slot_take(struct world *w, enum slot as)
{
    uint32_t i = rng_below(&w->r, w->n_disk);
    while (w->slot[i] != SLOT_FREE)
        i = (i + 1) % w->n_disk;
    w->slot[i] = (uint8_t)as;
    return i;
}

/* Does a transfer's hold end in the node that covers block i? */
static bool node_in_transfer(const struct world *w, int i)
{
    uint32_t node = world_place(w, i).node;
    for (int k = 0; k < JOBS; k++)
        if (w->job[k].live && w->job[k].h.where.node == node)
            return true;
    return false;
}

static bool dirty(const struct world *w, int i)
{
    const struct block *b = &w->b[i];
    return b->there && !b->partial && b->gen == w->gen && b->page != NO_PAGE &&
           b->disk == NO_DISK && world_admits(w, i);
}

/* When block i, the last of its path that is to be written, is: as its node's last page goes; after
 * all others if that has pages below it. */
static uint64_t dirty_rank(struct world *w, int i)
{
    uint32_t node = world_place(w, i).node;
    for (int k = 0; w->b[i].page_below && k < MOST; k++) {
        const struct block *b = &w->b[k];
        if (!b->there || b->parent != i || b->page == NO_PAGE)
            continue;
        if (b->partial || world_place(w, k).node != node)
            return UINT64_MAX;
        i = k;
        k = -1;
    }
    return w->b[i].used;
}

/* The block that is written next; of several that rank alike, the one that the tree says. */
static int list_dirty(struct world *w, const struct place *leaf)
{
    uint64_t lowest = UINT64_MAX;
    int low = NONE;
    world_look(w);
    for (int i = 0; i < MOST; i++)
        w->b[i].dirty_below = false;
    for (int i = 0; i < MOST; i++)
        for (int p = dirty(w, i) ? w->b[i].parent : NONE; p != NONE; p = w->b[p].parent)
            w->b[p].dirty_below = true;
    for (int i = 0; i < MOST; i++) {
        if (!dirty(w, i) || w->b[i].dirty_below || node_in_transfer(w, i))
            continue;
        uint64_t rank = dirty_rank(w, i);
        struct place at = world_place(w, i);
        bool same = leaf && at.node == leaf->node && at.depth == leaf->depth;
        if (low == NONE || rank < lowest || (rank == lowest && same)) {
            low = i;
            lowest = rank;
        }
    }
    w->seen->inner += low != NONE && lowest == UINT64_MAX;
    return low;
}

/* Is this block being written? */
static bool on_its_way(const struct world *w, int i)
{
    uint32_t depth = w->b[i].depth;
    for (int k = 0; k < JOBS; k++) {
        const struct holder *h = &w->job[k];
        if (h->live && h->n && depth > h->first && depth <= h->first + h->n &&
            world_above(w, h->end, depth) == i)
            return true;
    }
    return false;
}

/* What of the path to the transfer's block is written next; false: nothing. */
static bool batch_begin(struct world *w, struct holder *h)
{
    struct place end;
    uint32_t most = 1 + rng_below(&w->r, 8), n = index_unwritten(w->t.ix, h->h.where, most, &end);
    int i = h->end;
    while (w->b[i].parent != NONE && w->b[w->b[i].parent].disk == NO_DISK)
        i = w->b[i].parent;
    bool none = w->b[i].disk != NO_DISK, busy = !none && on_its_way(w, i);
    w->seen->under_way += busy;
    REQUIRE_EQ(n == 0, none || busy);
    if (n == 0)
        return false;
    h->first = h->next = h->last = w->b[i].depth - 1;
    const struct index_node *node = index_node_at(index_view_of(w->t.ix), end.node);
    uint32_t stop = node->start + node->n_blocks;
    stop = stop < w->b[h->end].depth ? stop : w->b[h->end].depth;
    REQUIRE(node->identity == end.identity && node->start <= h->first);
    REQUIRE_EQ(n, stop - h->first < most ? stop - h->first : most);
    REQUIRE_EQ(end.depth, h->first + n);
    h->n = n;
    for (uint32_t k = 1; k <= n; k++) /* used when the last of the path was */
        world_keep(w, world_above(w, h->end, h->first + k), w->b[h->end].kept);
    if (free_slots(w) < n)
        world_evict_copies(w, n - free_slots(w));
    for (; h->last < end.depth && free_slots(w) > 0; h->last++)
        h->id[h->last] = slot_take(w, SLOT_JOB);
    world_check(w);
    return true;
}

static void batch_end(struct world *w, struct holder *h)
{
    struct place end = h->h.where;
    for (uint32_t k = h->next; k < h->last; k++)
        if (h->id[k] != NO_PAGE && h->write)
            w->slot[h->id[k]] = SLOT_FREE;
        else if (h->id[k] != NO_PAGE)
            pool_give(&w->t.pool, h->id[k]);
    end.depth = h->first + h->n;
    if (h->n)
        index_written(w->t.ix, end, h->n);
    h->n = h->next = h->last = 0;
}

static void finish(struct world *w, struct holder *h)
{
    batch_end(w, h);
    world_unhold(w, h);
}

static void step_write(struct world *w)
{
    struct place leaf;
    struct holder *h = holder_unused(w->job, JOBS);
    bool got = index_dirty(w->t.ix, &leaf);
    int i = list_dirty(w, got ? &leaf : NULL);
    REQUIRE_EQ(got, i != NONE);
    if (i != NONE) {
        struct place want = world_place(w, i);
        REQUIRE(leaf.node == want.node && leaf.identity == want.identity);
        REQUIRE_EQ(leaf.depth, want.depth);
    }
    if (rng_below(&w->r, 4) == 0) /* soon after an insert, anywhere */
        i = world_any_block(w);
    if (i == NONE || !h)
        return;
    world_hold(w, h, i, true);
    h->write = true;
    if (!batch_begin(w, h))
        finish(w, h);
}

static void step_read(struct world *w)
{
    struct holder *h = holder_unused(w->job, JOBS);
    int i = world_any_block(w);
    if (!h || i == NONE || w->b[i].page != NO_PAGE)
        return;
    world_hold(w, h, i, true);
    if (rng_below(&w->r, 4))
        world_look_up(w, i, h->h.where);
    while (w->b[i].parent != NONE && w->b[w->b[i].parent].page == NO_PAGE)
        i = w->b[i].parent;
    h->next = h->last = w->b[i].depth - 1;
    uint32_t n = room_for(w, w->b[h->end].depth - h->next);
    if (n && rng_below(&w->r, 4) == 0)
        world_move_hold(w, h, world_above(w, h->end, h->next + n));
    for (; n > 0; n--)
        h->id[h->last++] = pool_take(&w->t.pool);
    world_check(w);
}

/* One block of a transfer, which may have been overtaken by a later one, is done. */
static void transfer_block(struct world *w, struct holder *h, uint32_t depth)
{
    int i = world_above(w, h->end, depth);
    struct place where = h->h.where;
    const struct block *front = w->b[i].parent == NONE ? NULL : &w->b[w->b[i].parent];
    uint32_t *id = &h->id[depth - 1];
    bool next;
    if (*id == NO_PAGE)
        return;
    where.depth = depth;
    if (h->write) {
        next = w->b[i].disk == NO_DISK && (!front || front->disk != NO_DISK);
        REQUIRE_EQ(index_copy_commit(w->t.ix, where, *id), next);
        if (next) {
            w->b[i].disk = *id;
            w->b[i].times = w->b[i].times > w->admit ? w->b[i].times : w->admit;
            w->slot[*id] = SLOT_TREE;
        }
        w->seen->committed += next;
        w->seen->not_next += !next;
        if (!next && depth <= h->next) /* its own time has come and gone */
            w->slot[*id] = SLOT_FREE;
    } else {
        next = w->b[i].page == NO_PAGE && (!front || front->page != NO_PAGE);
        pool_publish(&w->t.pool, *id);
        REQUIRE_EQ(index_page_arrive(w->t.ix, where, *id), next);
        if (next)
            w->b[i].page = *id;
        else
            pool_unpublish(&w->t.pool, *id);
        w->seen->arrived += next;
        w->seen->too_late += !next;
    }
    if (next)
        *id = NO_PAGE;
    else if (!h->write && depth > h->next)
        *id = pool_take(&w->t.pool); /* it comes again */
}

static void step_transfer(struct world *w)
{
    struct holder *h = holder_any(w, w->job, JOBS);
    if (!h)
        return;
    uint32_t left = h->last - h->next, how = rng_below(&w->r, 12);
    if (left == 0 || how == 0) { /* it has failed */
        finish(w, h);
        return;
    }
    if (how < 4) /* another one first */
        transfer_block(w, h, h->next + 1 + rng_below(&w->r, left));
    else
        transfer_block(w, h, ++h->next);
    while (h->next < h->last && h->id[h->next] == NO_PAGE)
        h->next++;
    bool whole = h->next == h->last, live = w->b[h->end].gen == w->gen;
    REQUIRE_EQ(index_flushed(w->t.ix, h->h.where), !live);
    if (whole)
        batch_end(w, h);
    world_check(w);
    if (whole && (!h->write || !live || rng_below(&w->r, 4) == 0 || !batch_begin(w, h)))
        finish(w, h);
}

/* A block cannot be read: it goes, and what hangs below it, but for what is held. */
static void step_lose(struct world *w)
{
    int i = world_any_block(w);
    if (i == NONE || w->b[i].page != NO_PAGE)
        return;
    uint32_t top = w->b[i].depth;
    world_look(w);
    index_lose(w->t.ix, world_place(w, i));
    for (uint32_t depth = DEEPEST; depth >= top; depth--)
        for (int k = 0; k < MOST; k++)
            if (w->b[k].there && w->b[k].depth == depth && !w->b[k].held &&
                world_above(w, k, top) == i) {
                w->seen->lost++;
                world_block_gone(w, k);
            }
    world_check(w);
}

/* Blocks on disk only, as a restart finds them. */
static void step_restore(struct world *w)
{
    struct text x;
    uint32_t disks[DEEPEST];
    world_text(w, &x);
    int i = world_text_match(w, &x);
    uint32_t first = world_depth(w, i), n = x.n / w->t.bt - first, free = free_slots(w);
    n = n < free ? n : free;
    if (n == 0 || (i != NONE && w->b[i].disk == NO_DISK))
        return;
    struct place where = world_place(w, i);
    struct index_query q = tree_query(x.tokens, x.n);
    for (uint32_t k = 0; k < n; k++)
        disks[k] = slot_take(w, SLOT_TREE);
    index_restore(w->t.ix, &q, disks, n, &where);
    REQUIRE_EQ(where.depth, first + n);
    for (uint32_t k = 0; k < n; k++)
        i = world_add(w, x.tokens, (first + k + 1) * w->t.bt, NO_PAGE, disks[k]);
    if (rng_below(&w->r, 2))
        world_stamp(w, i, where);
    w->seen->restored += n;
    world_check(w);
}

/* ---- steps: the rest
 * --------------------------------------------------------------------------------- */

static void step_lease(struct world *w)
{
    struct holder *h = holder_any(w, w->lease, LEASES);
    if (!h)
        return;
    if (h->end == NONE || w->b[h->end].gen != w->gen || rng_below(&w->r, 3))
        world_unhold(w, h);
    else
        world_move_hold(w, h, world_above(w, h->end, rng_below(&w->r, w->b[h->end].depth + 1)));
}

static void step_flush(struct world *w)
{
    struct place old = w->root[w->gen];
    if (w->gen + 1 == GENERATIONS)
        return;
    bool empty = index_root_empty(w->t.ix, old.node);
    w->t.root = index_root_new(w->t.ix, 0);
    w->root[++w->gen] = tree_root(&w->t);
    if (empty)
        index_root_free(w->t.ix, old.node);
    else
        index_condemn(w->t.ix, old.node);
    world_check(w);
}

static void step_reap(struct world *w)
{
    for (uint32_t gen = 0; gen < w->gen; gen++) {
        if (w->reaped[gen])
            continue;
        bool done = false;
        uint32_t gone = index_reap(w->t.ix, w->root[gen], 1 + rng_below(&w->r, 6), &done);
        w->reaped[gen] = done;
        REQUIRE_EQ(world_sync(w, gen), gone);
        w->seen->reaped += gone;
        world_check(w);
    }
}

static void world_free(struct world *w)
{
    for (int k = 0; k < JOBS; k++)
        if (w->job[k].live)
            finish(w, &w->job[k]);
    for (int k = 0; k < LEASES; k++)
        if (w->lease[k].live)
            world_unhold(w, &w->lease[k]);
    world_evict_copies(w, MOST);
    world_free_pages(w, MOST, false);
    world_free_pages(w, MOST, true);
    world_evict_copies(w, MOST);
    for (uint32_t gen = 0; gen < w->gen; gen += w->reaped[gen])
        step_reap(w);
    REQUIRE_EQ(index_nodes(w->t.ix), 0);
    REQUIRE_EQ(free_slots(w), w->n_disk);
    REQUIRE_EQ(w->t.pool.n_free, w->t.pool.n_blocks);
    tree_free(&w->t);
}

static void step(struct world *w)
{
    uint32_t n = rng_below(&w->r, 200);
    if (n < 30)
        step_lookup(w);
    else if (n < 55)
        step_insert(w);
    else if (n < 62)
        step_partial(w);
    else if (n < 75)
        world_free_pages(w, 1 + rng_below(&w->r, 10), rng_below(&w->r, 3) == 0);
    else if (n < 83)
        world_evict_copies(w, 1 + rng_below(&w->r, 6));
    else if (n < 100)
        step_write(w);
    else if (n < 112)
        step_read(w);
    else if (n < 170)
        step_transfer(w);
    else if (n < 175)
        step_restore(w);
    else if (n < 177)
        step_lose(w);
    else if (n < 199)
        step_lease(w);
    else if (rng_below(&w->r, 3) == 0)
        step_flush(w);
    if (n % 8 == 0)
        step_reap(w);
}

void worlds(struct rng *r, unsigned n, unsigned steps)
{
    static struct world w;
    struct seen seen = {0};
    while (n-- > 0) {
        world_new(&w, r, &seen);
        for (unsigned i = 0; i < steps; i++)
            step(&w);
        world_free(&w);
    }
    const unsigned *count = (const unsigned *)&seen;
    for (size_t i = 0; i < sizeof seen / sizeof *count; i++)
        REQUIRE_MSG(count[i] > 0, "what count %zu counts never happened", i);
}
