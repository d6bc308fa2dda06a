#include "tests/unit/world.h"

#include <string.h>

static void on_slot_gone(void *arg, uint32_t disk)
{
    struct world *w = arg;
    REQUIRE(disk < w->n_disk);
    REQUIRE_EQ(w->slot[disk], SLOT_TREE);
    w->slot[disk] = SLOT_TOLD;
    w->n_told++;
}

void world_new(struct world *w, struct rng *r, struct seen *seen)
{
    memset(w, 0, sizeof *w);
    w->seen = seen;
    w->r = (struct rng){rng_next(r)};
    w->alphabet = 1 + rng_below(r, 3);
    w->n_disk = 10 + rng_below(r, SLOTS - 9);
    w->admit = rng_below(r, 2) ? 1 : 2 + rng_below(r, 3);
    const struct index_params params = {.block_tokens = 1 + rng_below(r, BT),
                                        .n_blocks = 24 + rng_below(r, PAGES - 23),
                                        .n_disk = w->n_disk,
                                        .hash_mask = rng_below(r, 4) ? UINT64_MAX : 3};
    tree_new_admit(&w->t, params, w->admit);
    index_set_slot_gone(w->t.ix, on_slot_gone, w);
    w->root[0] = tree_root(&w->t);
}

/* ---- the list ----------------------------------------------------------------------------- */

int world_find(const struct world *w, uint32_t gen, const uint32_t *tokens, uint32_t n)
{
    for (int i = 0; n && i < MOST; i++) {
        const struct block *b = &w->b[i];
        if (b->there && !b->partial && b->gen == gen && b->n == n &&
            memcmp(b->tokens, tokens, n * sizeof *tokens) == 0)
            return i;
    }
    return NONE;
}

int world_add(struct world *w, const uint32_t *tokens, uint32_t n, uint32_t page, uint32_t disk)
{
    uint32_t bt = w->t.bt, depth = (n + bt - 1) / bt;
    int i = 0;
    while (i < MOST && w->b[i].there)
        i++;
    REQUIRE(i < MOST);
    struct block *b = &w->b[i];
    *b = (struct block){.there = true, .gen = w->gen, .depth = depth, .n = n};
    b->partial = n % bt > 0;
    b->parent = world_find(w, w->gen, tokens, (depth - 1) * bt);
    REQUIRE_EQ(depth == 1, b->parent == NONE);
    b->page = page;
    b->disk = disk;
    b->times = disk == NO_DISK ? 1 : w->admit;
    memcpy(b->tokens, tokens, n * sizeof *tokens);
    return i;
}

/* The block at a depth of the path to block i. */
int world_above(const struct world *w, int i, uint32_t depth)
{
    while (i != NONE && w->b[i].depth > depth)
        i = w->b[i].parent;
    return i;
}

uint32_t world_depth(const struct world *w, int i)
{
    return i == NONE ? 0 : w->b[i].depth;
}

void world_look(struct world *w)
{
    for (int i = 0; i < MOST; i++)
        w->b[i].page_below = w->b[i].copy_below = w->b[i].pinned = w->b[i].held = false;
    for (int i = 0; i < MOST; i++)
        for (int p = w->b[i].there ? w->b[i].parent : NONE; p != NONE; p = w->b[p].parent) {
            w->b[p].page_below |= w->b[i].page != NO_PAGE;
            w->b[p].copy_below |= w->b[i].disk != NO_DISK;
        }
    for (int k = 0; k < LEASES; k++)
        for (int i = w->lease[k].live ? w->lease[k].end : NONE; i != NONE; i = w->b[i].parent)
            w->b[i].pinned = w->b[i].held = true;
    for (int k = 0; k < JOBS; k++)
        for (int i = w->job[k].live ? w->job[k].end : NONE; i != NONE; i = w->b[i].parent)
            w->b[i].held = true;
}

void world_keep(struct world *w, int i, uint64_t stamp)
{
    if (i != NONE && w->b[i].kept < stamp)
        w->b[i].kept = stamp;
}

static void world_copy_gone(struct world *w, int i)
{
    REQUIRE_EQ(w->slot[w->b[i].disk], SLOT_TOLD);
    w->slot[w->b[i].disk] = SLOT_FREE;
    w->n_told--;
    w->b[i].disk = NO_DISK;
}

void world_block_gone(struct world *w, int i)
{
    if (w->b[i].disk != NO_DISK)
        world_copy_gone(w, i);
    for (int k = 0; k < MOST; k++)
        REQUIRE(!w->b[k].there || w->b[k].parent != i);
    w->b[i].there = false;
}

/* ---- comparing ------------------------------------------------------------------------------ */

struct place world_match(const struct world *w, uint32_t gen, const uint32_t *tokens, uint32_t n)
{
    struct index_query q = tree_query(tokens, n);
    struct place where = w->root[gen];
    index_match(w->t.ix, &q, n / w->t.bt, &where);
    return where;
}

struct place world_place(const struct world *w, int i)
{
    if (i == NONE)
        return w->root[w->gen];
    struct place where = world_match(w, w->b[i].gen, w->b[i].tokens, w->b[i].n);
    REQUIRE_EQ(where.depth, w->b[i].depth);
    return where;
}

/* The page and the slot of every block from the root to block i. */
static void check_path(const struct world *w, int i)
{
    const struct block *b = &w->b[i];
    uint32_t pages[DEEPEST], disks[DEEPEST];
    struct place where = world_place(w, i);
    REQUIRE(index_path_ids(index_view_of(w->t.ix), where, 0, b->depth, pages, disks));
    REQUIRE_EQ(index_on_device_to(w->t.ix, where), b->page != NO_PAGE);
    REQUIRE_EQ(index_on_disk_to(w->t.ix, where), b->disk != NO_DISK);
    uint32_t absent = index_absent(w->t.ix, where);
    for (; i != NONE; i = b->parent) {
        b = &w->b[i];
        absent -= b->page == NO_PAGE;
        REQUIRE_EQ(pages[b->depth - 1], b->page);
        REQUIRE_EQ(disks[b->depth - 1], b->disk);
    }
    REQUIRE_EQ(absent, 0);
}

void world_check(struct world *w)
{
    uint32_t cached = 0, copies = 0, pinned = 0, held = 0, clean = 0, private = 0;
    world_look(w);
    REQUIRE_EQ(w->n_told, 0);
    for (int i = 0; i < MOST; i++) {
        const struct block *b = &w->b[i];
        if (!b->there)
            continue;
        bool page = b->page != NO_PAGE;
        cached += page;
        w->seen->longest += b->depth > NODE_BLOCKS;
        copies += b->disk != NO_DISK;
        pinned += page && b->pinned;
        held += page && b->held;
        clean += page && !b->held && (b->disk != NO_DISK || !world_admits(w, i));
        if (!b->partial)
            check_path(w, i);
    }
    for (int k = 0; k < JOBS; k++)
        if (w->job[k].live && !w->job[k].write)
            for (uint32_t d = w->job[k].next; d < w->job[k].last; d++)
    private += w->job[k].id[d] != NO_PAGE;
    REQUIRE_EQ(w->t.pool.n_cached, cached);
    REQUIRE_EQ(w->t.pool.n_private, private);
    REQUIRE_EQ(index_on_disk(w->t.ix), copies);
    REQUIRE_EQ(index_pinned(w->t.ix), pinned);
    REQUIRE_EQ(index_busy(w->t.ix), held - pinned);
    REQUIRE_EQ(index_idle(w->t.ix), cached - held);
    REQUIRE_EQ(index_clean(w->t.ix), clean);
    tree_audit(&w->t);
}

/* ---- what goes --------------------------------------------------------------------------------
 */

/* The tree has taken the page, or the copy, of this block just now. */
static bool taken_by_tree(const struct world *w, int i, bool copy)
{
    return copy ? w->slot[w->b[i].disk] == SLOT_TOLD : w->t.pool.state[w->b[i].page] == PAGE_FREE;
}

static uint64_t rank_of(const struct world *w, int i, bool copy)
{
    return copy && w->b[i].page != NO_PAGE ? w->b[i].kept : w->b[i].used;
}

static int victim(struct world *w, bool copy)
{
    int low = NONE;
    world_look(w);
    for (int i = 0; i < MOST; i++) {
        const struct block *b = &w->b[i];
        if (!b->there || b->gen != w->gen || b->held || (copy ? b->disk : b->page) == NO_PAGE ||
            (copy ? b->copy_below : b->page_below))
            continue;
        if (b->page == NO_PAGE || !b->page_below)
            REQUIRE_EQ(b->kept, b->used); /* so the tree can know it */
        uint64_t rank = rank_of(w, i, copy), lowest = low == NONE ? 0 : rank_of(w, low, copy);
        bool tie = low != NONE && rank == lowest;
        w->seen->ties += tie;
        if (low == NONE || rank < lowest || (tie && taken_by_tree(w, i, copy)))
            low = i;
    }
    return low;
}

void world_free_pages(struct world *w, uint32_t n, bool dirty)
{
    struct index_evicted out = {0}, want = {0};
    bool done = index_free_pages(w->t.ix, n, dirty, &out), want_done = true;
    int i;
    while (want.freed < n && (i = victim(w, false)) != NONE) {
        struct block *b = &w->b[i];
        if (b->disk == NO_DISK && !dirty && world_admits(w, i)) {
            want_done = false;
            break;
        }
        w->seen->unworthy += b->disk == NO_DISK && !b->partial && !dirty;
        REQUIRE_EQ(w->t.pool.state[b->page], PAGE_FREE);
        b->page = NO_PAGE;
        world_keep(w, b->parent, b->kept);
        want.freed++;
        if (b->disk == NO_DISK) {
            want.removed++;
            world_block_gone(w, i);
        }
    }
    REQUIRE_EQ(done, want_done);
    REQUIRE_EQ(out.freed, want.freed);
    REQUIRE_EQ(out.removed, want.removed);
    w->seen->dirty += want.removed;
    w->seen->clean += want.freed - want.removed;
    w->seen->refused += !done;
    world_check(w);
}

void world_evict_copies(struct world *w, uint32_t n)
{
    uint32_t removed = 0, gone = 0, want_removed = 0;
    uint32_t got = index_evict_copies(w->t.ix, n, &removed);
    int i;
    while (gone < n && (i = victim(w, true)) != NONE) {
        world_copy_gone(w, i);
        world_keep(w, w->b[i].parent, w->b[i].kept);
        gone++;
        if (w->b[i].page == NO_PAGE) {
            want_removed++;
            world_block_gone(w, i);
        }
    }
    REQUIRE_EQ(got, gone);
    REQUIRE_EQ(removed, want_removed);
    w->seen->copies += gone - removed;
    w->seen->last_copies += removed;
    world_check(w);
}

/* ---- uses, holds -------------------------------------------------------------------------------
 */

void world_stamp(struct world *w, int i, struct place where)
{
    index_stamp(w->t.ix, where);
    w->clock++;
    for (int k = i; k != NONE; k = w->b[k].parent)
        w->b[k].used = w->clock;
    for (int k = i; k != NONE; k = w->b[k].page == NO_PAGE ? w->b[k].parent : NONE)
        w->b[k].kept = w->clock;
}

bool world_admits(const struct world *w, int i)
{
    return !w->b[i].partial && (w->admit == 1 || w->b[i].times >= w->admit);
}

void world_times(struct world *w, int i, uint32_t first)
{
    for (uint32_t least = 0; i != NONE; i = w->b[i].parent) {
        struct block *b = &w->b[i];
        b->times += b->depth > first;
        b->times = b->times > least ? b->times : least;
        least = b->times;
    }
}

void world_look_up(struct world *w, int i, struct place where)
{
    world_stamp(w, i, where);
    index_seen(w->t.ix, where);
    world_times(w, i, 0);
}

uint32_t world_sync(struct world *w, uint32_t gen)
{
    uint32_t gone = 0;
    world_look(w);
    for (uint32_t depth = DEEPEST; depth > 0; depth--)
        for (int i = 0; i < MOST; i++) {
            struct block *b = &w->b[i];
            if (!b->there || b->gen != gen || b->depth != depth)
                continue;
            if (taken_by_tree(w, i, b->page == NO_PAGE)) {
                REQUIRE(!b->held);
                world_block_gone(w, i);
                gone++;
            } else {
                REQUIRE(!w->reaped[gen] || b->held);
            }
        }
    return gone;
}

struct holder *holder_unused(struct holder *all, int n)
{
    for (int k = 0; k < n; k++)
        if (!all[k].live)
            return &all[k];
    return NULL;
}

struct holder *holder_any(struct world *w, struct holder *all, uint32_t n)
{
    for (uint32_t k = rng_below(&w->r, n), tries = 0; tries < n; tries++, k = (k + 1) % n)
        if (all[k].live)
            return &all[k];
    return NULL;
}

void world_hold(struct world *w, struct holder *h, int end, bool io)
{
    *h = (struct holder){.live = true, .end = end};
    if (io)
        index_hold_io(w->t.ix, &h->h, world_place(w, end));
    else
        index_hold(w->t.ix, &h->h, world_place(w, end));
}

void world_unhold(struct world *w, struct holder *h)
{
    uint32_t gen = h->end == NONE ? w->gen : w->b[h->end].gen;
    REQUIRE_EQ(h->h.where.depth, world_depth(w, h->end));
    index_unhold(w->t.ix, &h->h);
    h->live = false;
    if (gen != w->gen)
        w->seen->pruned += world_sync(w, gen);
    world_check(w);
}

void world_move_hold(struct world *w, struct holder *h, int end)
{
    index_hold_move(w->t.ix, &h->h, world_place(w, end));
    h->end = end;
    world_check(w);
}

/* ---- texts --------------------------------------------------------------------------------------
 */

int world_any_block(struct world *w)
{
    for (int tries = 0; tries < 40; tries++) {
        int i = (int)rng_below(&w->r, MOST);
        if (w->b[i].there && !w->b[i].partial && w->b[i].gen == w->gen)
            return i;
    }
    return NONE;
}

void world_text(struct world *w, struct text *x)
{
    int i = rng_below(&w->r, 6) ? world_any_block(w) : NONE;
    uint32_t room = DEEPEST * w->t.bt, blocks = rng_below(&w->r, 12) ? 3 + rng_below(&w->r, 9) : 70;
    uint32_t more = rng_below(&w->r, 1 + w->t.bt * blocks);
    x->n = 0;
    if (i != NONE) {
        x->n = rng_below(&w->r, 2) ? w->b[i].n : rng_below(&w->r, w->b[i].n + 1);
        memcpy(x->tokens, w->b[i].tokens, x->n * sizeof *x->tokens);
    }
    while (x->n < room && more-- > 0)
        x->tokens[x->n++] = rng_below(&w->r, w->alphabet);
}

int world_text_match(const struct world *w, const struct text *x)
{
    int i = NONE, next;
    for (uint32_t n = w->t.bt; n <= x->n && (next = world_find(w, w->gen, x->tokens, n)) != NONE;
         n += w->t.bt)
        i = next;
    return i;
}

static uint32_t shared_tokens(const struct world *w, int i, const uint32_t *rest, uint32_t n)
{
    const struct block *b = &w->b[i];
    const uint32_t *own = b->tokens + (b->depth - 1) * w->t.bt;
    uint32_t most = b->n - (b->depth - 1) * w->t.bt, k = 0;
    while (k < most && k < n && own[k] == rest[k])
        k++;
    return k;
}

int world_tail(const struct world *w, int i, const uint32_t *rest, uint32_t n, uint32_t *shared)
{
    int best = NONE;
    *shared = 0;
    for (int k = 0; k < MOST; k++) {
        if (!w->b[k].there || w->b[k].gen != w->gen || w->b[k].parent != i ||
            w->b[k].page == NO_PAGE)
            continue;
        uint32_t s = shared_tokens(w, k, rest, n);
        if (s > *shared || (s && s == *shared && w->b[k].page < w->b[best].page)) {
            best = k;
            *shared = s;
        }
    }
    return best;
}

void world_check_tail(struct world *w, const struct text *x, int i)
{
    uint32_t from = world_depth(w, i) * w->t.bt, n = x->n - from, block, n_tokens, shared;
    struct place tail;
    int want = world_tail(w, i, x->tokens + from, n < w->t.bt ? n : w->t.bt, &shared);
    bool got = n > 0 && index_tail(w->t.ix, world_place(w, i), x->tokens + from,
                                   n < w->t.bt ? n : w->t.bt, &tail, &block, &n_tokens);
    REQUIRE_EQ(got, want != NONE);
    if (!got)
        return;
    REQUIRE_EQ(n_tokens, shared);
    REQUIRE_EQ(block, w->b[want].page);
    REQUIRE_EQ(tail.depth, w->b[want].depth);
    w->seen->tails++;
}
