/*
 * Reading a radix tree that one other process changes meanwhile.
 *
 * THE IDEA. Nodes are type-stable (a node's 64 bytes are always a node) and never unmapped. So a
 * reader may follow any id that is in bounds, compare whatever it finds there, and ask afterwards
 * whether what it saw was one state: the node's version was even before and is unchanged after.
 *
 *      version (acquire) -> fields, tokens -> read fence -> version again        edge VERSION
 *      daemon: odd version, write fence -> changes -> even version (release)
 *
 * WHY A PATH IS RIGHT. One checked node says nothing about the next. A child counts only if it
 * names its parent by (id, identity) and starts exactly where we stand:
 *
 *   (a) The daemon appends blocks to a leaf that we have just finished, and then hangs a child
 *       below whose first block happens to be our next one. Its start is deeper than our depth:
 *       refused.
 *   (b) A run is cut and regrown with other tokens while we stand at its end. Cutting changes
 *       the identity: children made later name the new one, refused.
 *   (c) A split puts a new upper part between. The lower part, which we stand in, keeps id and
 *       identity, and so do its children: accepted, and rightly, for the path reads the same.
 *
 * WHY A MISS IS RIGHT. The probe of the bucket table found no such child, and the parent's version
 * is still the one under which we compared its run: the daemon bumps it around every change of
 * the children. Entries never move between buckets. Past READER_PROBES buckets we say `ask`.
 *
 * Every loop is bounded: each step goes one block deeper, or counts against RETRIES.
 *
 * WHAT IT COSTS. One hash of one block, one bucket, one node line and the tokens, a node of up
 * to 64 blocks: measured against memcmp of the same tokens by `prefixctl bench index`.
 */
#include "shm/index_seen.h"
#include "shm/tokens.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

bool index_view_init(struct index_view *view, const void *base, uint64_t bytes)
{
    const struct index_header *h = base;
    if (bytes < REGION_PAGE || !shm_load_acquire(&h->ready))
        return false;
    if (h->magic != INDEX_MAGIC || h->format != LAYOUT_FORMAT)
        return false;
    view->base = base;
    view->header = h;
    view->params = h->params;
    view->epoch = h->epoch;
    return index_plan(&view->params, &view->plan) && view->plan.bytes <= bytes;
}

/* What one look can tell. UNSURE: a change did not end while we looked, so only the daemon knows.
 */
enum sight { SIGHT_NO, SIGHT_YES, SIGHT_UNSURE };

static enum sight space_root(const struct index_view *view, uint64_t number, uint32_t *root,
                             uint32_t *seen)
{
    uint32_t slot = (uint32_t)number;
    if (slot >= view->params.max_spaces)
        return SIGHT_NO;
    const struct index_space *s = index_space_at(view, slot);
    for (int tries = 0; tries < RETRIES; tries++) {
        uint32_t version = shm_load_acquire(&s->version); /* VERSION */
        uint32_t state = shm_load(&s->state);
        uint64_t is = shm_load(&s->number);
        uint32_t at = shm_load(&s->root);
        shm_read_fence();
        if ((version & 1) || shm_load(&s->version) != version) {
            cpu_relax();
            continue;
        }
        *root = at;
        *seen = version;
        return state != SPACE_FREE && is == number && at != 0 && at < view->plan.max_nodes
                   ? SIGHT_YES
                   : SIGHT_NO;
    }
    return SIGHT_UNSURE;
}

/* A flush gives a space another root, and the old one's number may be another space's root by now.
 */
static bool space_still(const struct index_view *view, uint64_t number, uint32_t seen)
{
    shm_read_fence();
    return shm_load(&index_space_at(view, (uint32_t)number)->version) == seen;
}

uint64_t index_child_hash(const struct index_view *v, uint32_t parent, const uint32_t *tokens)
{
    uint64_t seed = v->params.hash_seed ^ (uint64_t)parent * 0x9e3779b97f4a7c15ull;
    return XXH3_64bits_withSeed(tokens, (size_t)v->params.block_tokens * 4, seed) &
           v->params.hash_mask;
}

/* ---- extras --------------------------------------------------------------------- */

size_t index_extras_from(const struct index_query *q, uint64_t at)
{
    size_t low = 0;
    size_t high = q->n_extras;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (q->extras[mid].at + q->extras[mid].len > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static bool extras_agree(const struct index_view *v, bool stored, uint32_t unit, uint32_t depth,
                         const struct index_query *q)
{
    uint64_t from = (uint64_t)depth * v->params.block_tokens;
    uint64_t to = from + v->params.block_tokens;
    size_t i = index_extras_from(q, from);
    uint32_t id = stored ? shm_load(index_extra_head_at(v, unit)) : 0;
    for (uint32_t steps = 0; steps <= v->params.block_tokens; steps++) {
        bool mine = i < q->n_extras && q->extras[i].at < to && q->extras[i].at < q->n_tokens;
        if (!mine || id == 0)
            return !mine && id == 0;
        if (id >= v->plan.max_extras)
            return false;
        const struct index_extra *e = index_extra_at(v, id);
        uint64_t stored_words[6], wanted[6];
        for (unsigned w = 0; w < 6; w++)
            stored_words[w] = shm_load((const uint64_t *)(const void *)e + w);
        memcpy(wanted, &q->extras[i], sizeof wanted);
        if (memcmp(stored_words, wanted, sizeof wanted) != 0)
            return false;
        id = shm_load(&e->next);
        i++;
    }
    return false;
}

/* Leading blocks of [depth, depth + n) in units from `unit` whose extras agree. */
static uint32_t extras_match(const struct index_view *v, bool stored, uint32_t unit, uint32_t depth,
                             uint32_t n, const struct index_query *q)
{
    uint64_t bt = v->params.block_tokens;
    if (!stored) { /* no block of the node has any: stop where the query's next one touches */
        size_t i = index_extras_from(q, depth * bt);
        if (i == q->n_extras || q->extras[i].at >= q->n_tokens ||
            q->extras[i].at >= (depth + (uint64_t)n) * bt)
            return n;
        return q->extras[i].at <= depth * bt ? 0 : (uint32_t)(q->extras[i].at / bt) - depth;
    }
    for (uint32_t b = 0; b < n; b++)
        if (!extras_agree(v, true, unit + b, depth + b, q))
            return b;
    return n;
}

uint32_t index_run_match(const struct index_view *v, bool stored, uint32_t unit, uint32_t depth,
                         uint32_t n, const struct index_query *q)
{
    uint32_t bt = v->params.block_tokens;
    size_t equal =
        tokens_match(index_tokens_at(v, unit), index_query_at(v, q, depth), (size_t)n * bt);
    uint32_t blocks = (uint32_t)(equal / bt);
    if (stored || q->n_extras)
        blocks = extras_match(v, stored, unit, depth, blocks, q);
    return blocks;
}

/* Leading blocks of the node, from path depth `depth` on, that equal the query; at most n. */
static uint32_t run_match(const struct index_view *v, const struct seen *s, uint32_t depth,
                          uint32_t n, const struct index_query *q)
{
    return index_run_match(v, s->flags & NODE_EXTRAS, s->extent + (depth - s->start), depth, n, q);
}

/* ---- the walk -------------------------------------------------------------------- */

/* Where a walk stands: at the end of node `id`, whose children are found by `hash`. */
struct step {
    uint32_t id, depth;
    uint64_t hash; /* of (id, the query's next block), if there is one */
    struct seen seen;
};

/* Hash the block after `depth` and ask for its bucket, long before it is needed. */
static uint64_t hash_ahead(const struct index_view *v, uint32_t id, uint32_t depth, uint32_t limit,
                           const struct index_query *q)
{
    if (depth >= limit)
        return 0;
    uint64_t hash = index_child_hash(v, id, index_query_at(v, q, depth));
    __builtin_prefetch(index_bucket_at(v, (uint32_t)hash & (v->plan.n_buckets - 1)));
    return hash;
}

enum { LINE = 64, AHEAD_BLOCKS = 16, AHEAD_LINES = 16 };

/* Ask for the node's block ids, and for its child, which is the next node if it is the only one.
 * Nothing here is believed: an address in bounds is all that a prefetch needs. */
static void prefetch_next(const struct index_view *v, const struct seen *s)
{
    const char *ids = (const char *)index_pages_at(v, s->extent);
    for (uint32_t at = 0; at < s->n_blocks * 4; at += LINE)
        __builtin_prefetch(ids + at);
    if (s->children < v->plan.max_nodes)
        __builtin_prefetch(index_node_at(v, s->children));
}

/* By now the child's line is here: ask for the first of its tokens, and of the query's. */
static void prefetch_tokens(const struct index_view *v, uint32_t child, const uint32_t *mine)
{
    if (child == 0 || child >= v->plan.max_nodes)
        return;
    uint32_t extent = shm_load(&index_node_at(v, child)->extent);
    if (extent >= v->plan.n_units)
        return;
    const char *tokens = (const char *)index_tokens_at(v, extent), *next = (const char *)mine;
    for (int line = 0; line < AHEAD_LINES; line++) {
        __builtin_prefetch(tokens + line * LINE);
        __builtin_prefetch(next + line * LINE);
    }
}

/* run_match in two parts, so that what comes next is on its way during the second. */
static uint32_t run_match_ahead(const struct index_view *v, const struct seen *s, uint32_t depth,
                                uint32_t n, const struct index_query *q)
{
    if (n <= AHEAD_BLOCKS)
        return run_match(v, s, depth, n, q);
    uint32_t first = n - AHEAD_BLOCKS, equal = run_match(v, s, depth, first, q);
    if (equal < first)
        return equal;
    prefetch_tokens(v, s->children, index_query_at(v, q, depth + n));
    return first + run_match(v, s, depth + first, AHEAD_BLOCKS, q);
}

/* Is node `id` the child that goes on from `at`? Then *next is at the end of what matched. */
static enum sight child_match(const struct index_view *v, const struct step *at, uint32_t id,
                              uint32_t limit, const struct index_query *q, struct step *next)
{
    for (int tries = 0; tries < RETRIES; tries++) {
        struct seen *s = &next->seen;
        if (!seen_read(v, id, s)) {
            cpu_relax();
            continue;
        }
        uint32_t equal = 0;
        if (s->parent == at->id && s->parent_identity == at->seen.identity &&
            s->start == at->depth && s->n_partial == 0) {
            uint32_t n = s->n_blocks < limit - at->depth ? s->n_blocks : limit - at->depth;
            prefetch_next(v, s);
            next->hash = hash_ahead(v, id, at->depth + n, limit, q);
            equal = run_match_ahead(v, s, at->depth, n, q);
        }
        if (!seen_still(v, id, s))
            continue;
        next->id = id;
        next->depth = at->depth + equal;
        return equal > 0 ? SIGHT_YES : SIGHT_NO;
    }
    return SIGHT_UNSURE;
}

/* Find the child whose first block is the query's next. */
static enum sight probe_child(const struct index_view *v, const struct step *at, uint32_t limit,
                              const struct index_query *q, struct step *next)
{
    uint32_t mask = v->plan.n_buckets - 1;
    for (uint32_t i = 0; i < READER_PROBES; i++) {
        const struct index_bucket *b = index_bucket_at(v, ((uint32_t)at->hash + i) & mask);
        for (int e = 0; e < BUCKET_ENTRIES; e++) {
            uint64_t entry = shm_load(&b->entry[e]);
            if (entry == 0 || entry >> 32 != at->hash >> 32)
                continue;
            enum sight child = child_match(v, at, (uint32_t)entry, limit, q, next);
            if (child != SIGHT_NO)
                return child;
        }
        if (shm_load(&b->overflow) == 0)
            return SIGHT_NO;
    }
    return SIGHT_UNSURE;
}

/* A miss counts only if the parent has not moved since its run was compared. If it has, it may have
 * grown, or split (then the same words describe its lower part): go on in it. False: walk anew; as
 * well if we stand behind its end, for then it has been merged into its child. */
static bool step_again(const struct index_view *v, struct step *at, uint32_t limit,
                       const struct index_query *q)
{
    uint64_t identity = at->seen.identity;
    struct seen *s = &at->seen;
    if (!seen_read(v, at->id, s) || s->identity != identity)
        return false;
    uint32_t end = s->start + s->n_blocks;
    if (at->depth < s->start || at->depth > end)
        return false;
    if (end > at->depth) {
        uint32_t n = (end < limit ? end : limit) - at->depth;
        uint32_t more = run_match(v, s, at->depth, n, q);
        if (!seen_still(v, at->id, s))
            return false;
        at->depth += more;
        at->hash = hash_ahead(v, at->id, at->depth, limit, q);
    }
    return true;
}

/* One walk from the root; false if something moved under it in a way that needs a new one. */
static bool walk_once(const struct index_view *v, uint64_t space, uint32_t version, uint32_t root,
                      const struct index_query *q, uint32_t limit, struct index_found *found)
{
    struct step steps[2] = {{.id = root}}, *at = &steps[0], *next = &steps[1];
    at->hash = hash_ahead(v, root, 0, limit, q);
    if (!seen_read(v, root, &at->seen) || !(at->seen.flags & NODE_ROOT) ||
        !space_still(v, space, version))
        return false;
    *found = (struct index_found){.root = root};
    for (int tries = 0; tries < RETRIES;) {
        found->where = (struct place){at->seen.identity, at->id, at->depth};
        if (at->depth == limit || at->depth < at->seen.start + at->seen.n_blocks)
            return true; /* its run ended the match, and was checked */
        enum sight child = probe_child(v, at, limit, q, next);
        if (child == SIGHT_YES) {
            struct step *swap = at;
            at = next;
            next = swap;
            continue;
        }
        found->ask = child == SIGHT_UNSURE;
        if (found->ask || seen_still(v, at->id, &at->seen))
            return true;
        if (!step_again(v, at, limit, q))
            return false;
        tries++;
    }
    found->ask = true;
    return true;
}

bool index_walk(const struct index_view *v, uint64_t space, const struct index_query *q,
                uint32_t limit, struct index_found *found)
{
    uint64_t whole = q->n_tokens / v->params.block_tokens;
    if (limit > whole)
        limit = (uint32_t)whole;
    uint32_t root = 0, version = 0;
    for (int tries = 0; tries < RETRIES; tries++) {
        enum sight there = space_root(v, space, &root, &version);
        if (there == SIGHT_NO)
            return false;
        if (there == SIGHT_UNSURE)
            break;
        if (walk_once(v, space, version, root, q, limit, found))
            return true;
        cpu_relax();
    }
    *found = (struct index_found){.where = {0, root, 0}, .root = root, .ask = true};
    return true;
}

/* ---- the held path ---------------------------------------------------------------- */

/* Climbs from a place to the root, a node a step, and hands each piece [first, last) of the path
 * to `take`, which reads the extent; what it read counts once the version has been checked, so it
 * may be called again for the same piece. `take` answers false to stop. */
typedef bool path_take(const struct index_view *v, const struct seen *s, uint32_t first,
                       uint32_t last, void *arg);

enum climb { CLIMB_DONE, CLIMB_STOPPED, CLIMB_GONE };

static enum climb climb_once(const struct index_view *v, struct place where, path_take *take,
                             void *arg)
{
    uint32_t id = where.node, depth = where.depth;
    uint64_t identity = where.identity;
    for (int tries = 0; tries < RETRIES;) {
        struct seen s;
        if (!seen_read(v, id, &s)) {
            if (id == 0 || id >= v->plan.max_nodes)
                return CLIMB_GONE;
            tries++;
            cpu_relax();
            continue;
        }
        bool here = s.identity == identity && depth <= s.start + s.n_blocks;
        bool go_on = true;
        if (here && depth > s.start)
            go_on = take(v, &s, s.start, depth, arg);
        if (!seen_still(v, id, &s)) {
            tries++;
            continue;
        }
        if (!here)
            return CLIMB_GONE;
        if (!go_on)
            return CLIMB_STOPPED;
        if (s.flags & NODE_ROOT)
            return CLIMB_DONE;
        if (depth > s.start)
            depth = s.start;
        id = s.parent;
        identity = s.parent_identity;
        tries = 0; /* one step nearer to the root */
    }
    return CLIMB_GONE;
}

/* An ancestor may be merged away under the climb: the place itself stays, so begin anew. */
static enum climb climb(const struct index_view *v, struct place where, path_take *take, void *arg)
{
    enum climb how = CLIMB_GONE;
    for (int tries = 0; tries < 16 && how == CLIMB_GONE; tries++)
        how = climb_once(v, where, take, arg);
    return how;
}

struct ids_take {
    uint32_t from, to;
    uint32_t *pages, *disks;
};

static bool take_ids(const struct index_view *v, const struct seen *s, uint32_t first,
                     uint32_t last, void *arg)
{
    struct ids_take *t = arg;
    if (last <= t->from)
        return false;
    if (first < t->from)
        first = t->from;
    if (last > t->to)
        last = t->to;
    if (first >= last)
        return true;
    uint32_t unit = s->extent + (first - s->start);
    if (t->pages)
        tokens_copy(t->pages + (first - t->from), index_pages_at(v, unit), last - first);
    if (t->disks)
        tokens_copy(t->disks + (first - t->from), index_disks_at(v, unit), last - first);
    return true;
}

bool index_path_ids(const struct index_view *v, struct place where, uint32_t from, uint32_t to,
                    uint32_t *pages, uint32_t *disks)
{
    struct ids_take t = {from, to, pages, disks};
    return to <= where.depth && climb(v, where, take_ids, &t) != CLIMB_GONE;
}

static bool take_agrees(const struct index_view *v, const struct seen *s, uint32_t first,
                        uint32_t last, void *arg)
{
    const struct index_query *q = arg;
    uint64_t bt = v->params.block_tokens, whole = q->n_tokens / bt;
    if (first < whole) {
        uint32_t n = (uint32_t)(last < whole ? last : whole) - first;
        if (run_match(v, s, first, n, q) != n)
            return false;
    }
    size_t rest = q->n_tokens % bt; /* in the block after the whole ones */
    return rest == 0 || whole < first || whole >= last ||
           tokens_match(index_tokens_at(v, s->extent + (uint32_t)(whole - s->start)),
                        index_query_at(v, q, (uint32_t)whole), rest) == rest;
}

int index_path_agrees(const struct index_view *v, struct place where, const struct index_query *q)
{
    struct index_query copy = *q;
    switch (climb(v, where, take_agrees, &copy)) {
    case CLIMB_DONE:
        return 1;
    case CLIMB_STOPPED:
        return 0;
    default:
        return -1;
    }
}

/* ---- tails ------------------------------------------------------------------------ */

uint32_t index_tail_limit(const struct index_query *q, uint64_t from, uint32_t n_rest)
{
    size_t i = index_extras_from(q, from);
    for (; i < q->n_extras && q->extras[i].at < from + n_rest; i++)
        if (q->extras[i].at >= from)
            return (uint32_t)(q->extras[i].at - from);
    return n_rest;
}

uint32_t index_key_length(const struct index_view *v, bool extras, uint32_t unit, uint32_t depth,
                          uint32_t n)
{
    uint64_t from = (uint64_t)depth * v->params.block_tokens;
    uint32_t id = extras ? shm_load(index_extra_head_at(v, unit)) : 0;
    for (uint32_t steps = 0; id && id < v->plan.max_extras && steps < 2; steps++) {
        const struct index_extra *e = index_extra_at(v, id);
        uint64_t at = shm_load(&e->at);
        if (at >= from)
            return at - from < n ? (uint32_t)(at - from) : n;
        id = shm_load(&e->next);
    }
    return n;
}

/* How many tokens of rest the first block of child `id` shares, and on which side of rest the
 * child stands in the order of keys (-1: before, 1: after, 0: key is a prefix of rest or equal). */
static bool key_compare(const struct index_view *v, uint32_t id, const uint32_t *rest,
                        uint32_t n_rest, struct seen *s, uint32_t *shared, int *side)
{
    for (int tries = 0; tries < RETRIES; tries++) {
        if (!seen_read(v, id, s) || s->n_blocks == 0) {
            cpu_relax();
            continue;
        }
        uint32_t n = s->n_partial ? s->n_partial : v->params.block_tokens;
        n = index_key_length(v, s->flags & NODE_EXTRAS, s->extent, s->start, n);
        const uint32_t *key = index_tokens_at(v, s->extent);
        uint32_t m = n < n_rest ? n : n_rest;
        *shared = (uint32_t)tokens_match(key, rest, m);
        if (*shared < m)
            *side = shm_load(key + *shared) < rest[*shared] ? -1 : 1;
        else
            *side = n < n_rest ? -1 : 1; /* a key that goes on after rest stands behind it */
        if (shm_load(index_pages_at(v, s->extent)) == NO_PAGE)
            *shared = 0; /* on disk only: nothing to copy from */
        if (seen_still(v, id, s))
            return true;
    }
    return false;
}

uint32_t index_tail_tokens(const struct index_view *v, struct place where, const uint32_t *rest,
                           uint32_t n_rest)
{
    uint32_t bt = v->params.block_tokens;
    if (n_rest >= bt)
        n_rest = bt - 1; /* all of it has come since the walk: as in a lookup, no tail is a block */
    for (int tries = 0; tries < RETRIES; tries++) {
        struct seen s;
        if (!seen_read(v, where.node, &s)) {
            cpu_relax();
            continue;
        }
        if (s.identity != where.identity || where.depth < s.start)
            return 0;
        uint32_t best = 0;
        if (where.depth < s.start + s.n_blocks) { /* the next block of the same run */
            uint32_t unit = s.extent + (where.depth - s.start);
            uint32_t n = index_key_length(v, s.flags & NODE_EXTRAS, unit, where.depth,
                                          s.n_partial ? s.n_partial : bt);
            if (shm_load(index_pages_at(v, unit)) != NO_PAGE)
                best =
                    (uint32_t)tokens_match(index_tokens_at(v, unit), rest, n < n_rest ? n : n_rest);
        } else {
            /* Among keys in order, the two neighbours of rest share most with it, and the
             * descent passes both. */
            uint32_t id = s.children;
            for (int steps = 0; id && steps < TREAP_STEPS; steps++) {
                struct seen child;
                uint32_t shared = 0;
                int side = 0;
                if (!key_compare(v, id, rest, n_rest, &child, &shared, &side))
                    break;
                if (shared > best)
                    best = shared;
                id = side < 0 ? child.right : child.left;
            }
        }
        if (seen_still(v, where.node, &s))
            return best;
    }
    return 0;
}
