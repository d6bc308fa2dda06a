/*
 * Finding the deepest snapshot of a path.
 *
 *      root --- A: blocks 0 1 2 3 --- B: blocks 4 5 6 7 8         where: B, depth 7; then the rest
 *       |       |                     |
 *      f = 0    f = 1 .. 4            f = 5 .. 7                  f: whole blocks of an entry
 *
 * THE CLIMB. From the place upwards, a node a step, each under its version, until what is wanted
 * has been found or the root is done. An entry of a lower node has more whole blocks than any of a
 * higher one, so it is deeper: what is found first is the best.
 *
 * IN A NODE entries stand in the order of (f, residue, extras). One is on our path if its residue
 * begins T, the path's own text after f blocks, with the same extras. T is the next block of this
 * run, or the first block of the child that we came from, or, after the place itself, the rest.
 *
 *      T = 5 6 7 8     entries:  ""  [5 1]  [5 6]  [5 6 2]  [5 6 9]  [6]
 *                      turns:                2 <---- 1              the last one not behind T is
 *                                                                   5 6 2; the last one not behind
 *                                                                   what it shares with T is 5 6
 *
 *   1  P = the last entry not behind (f, first L tokens of T), of those in the wanted state: one
 *      descent, because each entry knows the states of all that is below it. No P: nothing here.
 *   2  P has fewer whole blocks: there is nothing with f. Go on with P's f, and all of its T.
 *   3  P's residue leaves T after c tokens, and is below it there. An entry that begins T and is
 *      longer than c would stand between P and the key: there is none. Go on with L = c.
 *   4  P's residue begins T: no longer one does, for the same reason. If P has T's extras, it is
 *      the one; else the position with these is looked up; else go on with L one less than P's.
 *
 * Every turn lowers the limit, and ends a block or passes the one best of many entries that leave T
 * at the same token: at most block_tokens turns a block, two where snapshots are aligned, however
 * many entries there are. Only a comb, with entries that leave T one token later each, costs more:
 * made on purpose it could hold up others, so after turns_most() a search looks only at whole
 * blocks. Depths that are not the wanted multiple are skipped by rounding the
 * limit down. A tail is looked up by its session: one descent a node.
 */
#include "shm/snapshot_read.h"
#include "shm/index_seen.h"
#include "shm/tokens.h"

#include <string.h>

/* ---- the order of entries --------------------------------------------------------- */

enum { EXTRA_WORDS = 6 }; /* at, len, digest */

struct extras_at {
    const struct wire_extra *given;
    size_t n_given;
    uint32_t id, steps;
    uint64_t low, high;
};

static struct extras_at extras_begin(const struct snapshot_key *k)
{
    return (struct extras_at){k->given, k->n_given, k->extras, 0, k->low, k->high};
}

/* The next one in [low, high). */
static bool extras_next(const struct index_view *v, struct extras_at *x, uint64_t *word)
{
    if (x->given) {
        if (x->n_given == 0)
            return false;
        memcpy(word, x->given, EXTRA_WORDS * 8);
        x->given++;
        x->n_given--;
        return true;
    }
    while (x->id && x->id < v->plan.max_extras && x->steps++ <= v->params.block_tokens) {
        const struct index_extra *e = index_extra_at(v, x->id);
        for (unsigned w = 0; w < EXTRA_WORDS; w++)
            word[w] = shm_load((const uint64_t *)(const void *)e + w);
        x->id = shm_load(&e->next);
        if (word[0] >= x->high)
            return false;
        if (word[0] >= x->low)
            return true;
    }
    return false;
}

/* The entry's list has the residue's extras and no other. */
static int extras_compare(const struct index_view *v, const struct snapshot_key *key, uint32_t list)
{
    struct extras_at mine = extras_begin(key), its = {.id = list, .high = UINT64_MAX};
    for (;;) {
        uint64_t a[EXTRA_WORDS], b[EXTRA_WORDS];
        bool more = extras_next(v, &mine, a), its_more = extras_next(v, &its, b);
        if (!more || !its_more)
            return (int)more - (int)its_more;
        for (unsigned w = 0; w < EXTRA_WORDS; w++)
            if (a[w] != b[w])
                return a[w] < b[w] ? -1 : 1;
    }
}

static uint32_t residue_match(const struct index_view *v, uint32_t id, const uint32_t *tokens,
                              uint32_t n)
{
    return n ? (uint32_t)tokens_match(index_residue_at(v, id), tokens, n) : 0;
}

/* Whatever the kinds are. */
static int position_compare(const struct index_view *v, const struct snapshot_key *key, uint32_t id)
{
    const struct index_snapshot *e = index_snapshot_at(v, id);
    uint32_t bt = v->params.block_tokens, depth = shm_load(&e->depth), n = depth % bt;
    if (key->depth / bt != depth / bt)
        return key->depth / bt < depth / bt ? -1 : 1;
    uint32_t most = key->n < n ? key->n : n, same = residue_match(v, id, key->tokens, most);
    if (same < most)
        return key->tokens[same] < shm_load(index_residue_at(v, id) + same) ? -1 : 1;
    if (key->n != n)
        return key->n < n ? -1 : 1;
    return extras_compare(v, key, shm_load(&e->extras));
}

struct snapshot_key snapshot_key_of(const struct index_view *v, uint32_t id)
{
    const struct index_snapshot *e = index_snapshot_at(v, id);
    return (struct snapshot_key){
        .tail = e->kind == SNAPSHOT_TAIL,
        .session = e->session,
        .depth = e->depth,
        .tokens = index_residue_at(v, id),
        .n = e->depth % v->params.block_tokens,
        .extras = e->extras,
        .high = UINT64_MAX,
    };
}

int snapshot_compare(const struct index_view *v, const struct snapshot_key *key, uint32_t id)
{
    const struct index_snapshot *e = index_snapshot_at(v, id);
    bool tail = shm_load(&e->kind) == SNAPSHOT_TAIL;
    if (key->tail != tail)
        return tail ? -1 : 1;
    if (!tail)
        return position_compare(v, key, id);
    uint64_t session = shm_load(&e->session);
    return key->session < session ? -1 : key->session > session;
}

static const struct index_snapshot *entry_at(const struct index_view *v, uint32_t id)
{
    return id && id <= v->params.max_snapshots ? index_snapshot_at(v, id) : NULL;
}

uint32_t snapshot_find(const struct index_view *v, uint32_t top, const struct snapshot_key *key)
{
    const struct index_snapshot *e;
    for (int steps = 0; (e = entry_at(v, top)) && steps < TREAP_STEPS; steps++) {
        int side = snapshot_compare(v, key, top);
        if (side == 0)
            return top;
        top = side < 0 ? shm_load(&e->left) : shm_load(&e->right);
    }
    return 0;
}

/* ---- in one node -------------------------------------------------------------------- */

#define NO_TEXT UINT32_MAX

struct search {
    const struct index_view *v;
    const struct snapshot_want *want;
    struct place where;
    uint32_t id; /* of the node, and what it was read as; its treap */
    struct seen seen;
    uint32_t top;
    uint32_t child; /* that the climb came from; 0: none */
    struct seen child_seen;
    bool read_child; /* for T */
    uint32_t turns;  /* so far, of all nodes */
    /* T after f whole blocks, if it has been read */
    uint32_t f, n;
    const uint32_t *text;
    uint32_t extras;
    uint32_t room[BLOCK_TOKENS_MAX];
};

static bool still(const struct search *s)
{
    return seen_still(s->v, s->id, &s->seen) &&
           (!s->read_child || seen_still(s->v, s->child, &s->child_seen));
}

/* False: there is none, something changes. */
static bool text_read(struct search *s, uint32_t f)
{
    const struct index_view *v = s->v;
    const struct seen *from = &s->seen;
    uint32_t bt = v->params.block_tokens;
    if (s->f == f)
        return true;
    s->f = f;
    if (f == s->where.depth) {
        s->text = s->want->rest;
        s->n = s->want->n_rest < bt ? s->want->n_rest : bt - 1;
        s->extras = 0;
        return true;
    }
    if (f >= from->start + from->n_blocks) {
        from = &s->child_seen;
        s->read_child = true;
        if (!s->child || f != from->start || from->n_blocks == 0) {
            s->f = NO_TEXT;
            return false;
        }
    }
    uint32_t unit = from->extent + (f - from->start);
    s->text = s->room;
    s->n = bt - 1;
    if (s->n)
        tokens_copy(s->room, index_tokens_at(v, unit), s->n);
    s->extras = from->flags & NODE_EXTRAS ? shm_load(index_extra_head_at(v, unit)) : 0;
    return true;
}

/* The position of T's first n tokens. */
static struct snapshot_key text_key(const struct search *s, uint32_t n)
{
    uint64_t low = (uint64_t)s->f * s->v->params.block_tokens;
    return (struct snapshot_key){
        .depth = (uint32_t)(low + n),
        .tokens = s->text,
        .n = n,
        .extras = s->extras,
        .low = low,
        .high = low + n,
    };
}

static bool below_has(const struct index_view *v, uint32_t id, uint32_t state)
{
    const struct index_snapshot *e = entry_at(v, id);
    return e && shm_load(&e->below) & state;
}

static uint32_t last_below(const struct index_view *v, uint32_t id, uint32_t state)
{
    for (int steps = 0; below_has(v, id, state) && steps < TREAP_STEPS; steps++) {
        const struct index_snapshot *e = index_snapshot_at(v, id);
        uint32_t right = shm_load(&e->right);
        if (below_has(v, right, state))
            id = right;
        else if (shm_load(&e->state) & state)
            return id;
        else
            id = shm_load(&e->left);
    }
    return 0;
}

/* The last entry in that state which does not stand behind the key; 0: none. */
static uint32_t last_until(const struct search *s, const struct snapshot_key *key, uint32_t state)
{
    const struct index_view *v = s->v;
    uint32_t best = 0, tree = 0; /* it is `best`, or the last of the subtree `tree` */
    uint32_t id = s->top;
    for (int steps = 0; below_has(v, id, state) && steps < TREAP_STEPS; steps++) {
        const struct index_snapshot *e = index_snapshot_at(v, id);
        uint32_t left = shm_load(&e->left);
        if (snapshot_compare(v, key, id) < 0) {
            id = left;
            continue;
        }
        if (shm_load(&e->state) & state) {
            best = id;
            tree = 0;
        } else if (below_has(v, left, state)) {
            tree = left;
        }
        id = shm_load(&e->right);
    }
    return tree ? last_below(v, tree, state) : best;
}

static uint64_t rounded(const struct search *s, uint64_t depth)
{
    return s->want->multiple ? depth - depth % s->want->multiple : depth;
}

/* Whole blocks that an entry of this node has at least. */
static uint32_t fewest(const struct search *s)
{
    return s->seen.flags & NODE_ROOT ? 0 : s->seen.start + 1;
}

/* Is entry `id`, with f whole blocks and n tokens, on the path? The text is read already. */
static bool agrees(const struct search *s, uint32_t id, uint32_t n)
{
    struct snapshot_key key = text_key(s, n);
    return n <= s->n && position_compare(s->v, &key, id) == 0;
}

/* One turn (see the top): P is known. Returns the entry; 0: go on with the lower *limit, or give up
 * if it is not lower. */
static uint32_t turn(const struct search *s, uint32_t p, uint32_t state, uint64_t *limit)
{
    const struct index_view *v = s->v;
    uint32_t bt = v->params.block_tokens, depth = shm_load(&index_snapshot_at(v, p)->depth);
    uint64_t low = (uint64_t)s->f * bt;
    uint32_t n = depth % bt, most = (uint32_t)(*limit - low);
    if (depth / bt != s->f) {
        *limit = (uint64_t)(depth / bt) * bt + bt - 1;
        return 0;
    }
    uint32_t common = residue_match(v, p, s->text, n < most ? n : most);
    if (common < n || rounded(s, depth) != depth) {
        *limit = low + common;
        return 0;
    }
    if (agrees(s, p, n))
        return p;
    struct snapshot_key key = text_key(s, n);
    uint32_t other = snapshot_find(v, s->top, &key);
    if (other && shm_load(&index_snapshot_at(v, other)->state) & state)
        return other;
    *limit = low + n - 1; /* wraps at 0: then there is nothing deeper than nothing */
    return 0;
}

/* A turn compares a block's tokens some times: a millisecond in all. */
static uint32_t turns_most(const struct index_view *v)
{
    uint32_t most = (1u << 20) / v->params.block_tokens;
    return most < 4096 ? most : 4096;
}

/* The deepest at a border of blocks, at most `f` of them: whatever is hung there is on the path.
 * One descent for each number of blocks at which anything hangs. */
static struct snapshot_found deepest_whole(struct search *s, uint32_t state, uint32_t f)
{
    const struct index_view *v = s->v;
    uint32_t bt = v->params.block_tokens;
    const struct snapshot_found none = {0};
    while (f > 0 && f >= fewest(s) && still(s)) {
        const struct snapshot_key key = {.depth = f * bt};
        uint32_t p = last_until(s, &key, state);
        uint32_t depth = p ? shm_load(&index_snapshot_at(v, p)->depth) : 0;
        if (depth == f * bt && rounded(s, depth) == depth)
            return (struct snapshot_found){p, depth, false};
        if (p == 0 || depth > f * bt)
            return none;
        f = depth / bt < f ? depth / bt : f - 1;
        s->turns++;
    }
    return none;
}

static struct snapshot_found deepest_exact(struct search *s, uint32_t state, uint64_t limit)
{
    uint32_t bt = s->v->params.block_tokens;
    const struct snapshot_found none = {0};
    for (;;) {
        limit = rounded(s, limit);
        uint32_t f = (uint32_t)(limit / bt);
        if (s->turns >= turns_most(s->v))
            return deepest_whole(s, state, f);
        if (limit == 0 || f < fewest(s) || !text_read(s, f))
            return none;
        s->turns++;
        struct snapshot_key key = text_key(s, (uint32_t)(limit % bt));
        uint32_t p = last_until(s, &key, state);
        uint64_t lower = limit;
        uint32_t id = p ? turn(s, p, state, &lower) : 0;
        if (id)
            return (struct snapshot_found){id, shm_load(&index_snapshot_at(s->v, id)->depth),
                                           false};
        if (p == 0 || lower >= limit || !still(s))
            return none;
        limit = lower;
    }
}

static struct snapshot_found own_tail(struct search *s, uint32_t state, uint64_t limit)
{
    const struct index_view *v = s->v;
    const struct snapshot_key key = {.tail = true, .session = s->want->session};
    const struct snapshot_found none = {0};
    uint32_t id = key.session ? snapshot_find(v, s->top, &key) : 0, bt = v->params.block_tokens;
    if (!id || !(shm_load(&index_snapshot_at(v, id)->state) & state))
        return none;
    uint32_t depth = shm_load(&index_snapshot_at(v, id)->depth);
    if (depth == 0 || depth > limit || rounded(s, depth) != depth || depth / bt < fewest(s) ||
        !text_read(s, depth / bt) || !agrees(s, id, depth % bt))
        return none;
    return (struct snapshot_found){id, depth, true};
}

/* The deepest of this node in that state, at most `limit` tokens deep. */
static struct snapshot_found deepest(struct search *s, uint32_t state, uint64_t limit)
{
    struct snapshot_found none = {0};
    if (!(s->want->states & state) || !below_has(s->v, s->top, state))
        return none;
    struct snapshot_found exact = deepest_exact(s, state, limit), tail = own_tail(s, state, limit);
    return tail.depth > exact.depth ? tail : exact;
}

/* `depth`: how far the path goes in this node, in blocks. */
static struct snapshots_found node_search(struct search *s, uint32_t depth,
                                          const struct snapshots_found *have)
{
    struct snapshots_found found = *have;
    uint32_t bt = s->v->params.block_tokens, more = bt - 1;
    s->read_child = false;
    s->f = NO_TEXT;
    s->top = shm_load(&index_node_at(s->v, s->id)->snapshots);
    if (depth == s->where.depth && s->want->n_rest < more)
        more = s->want->n_rest;
    uint64_t limit = (uint64_t)depth * bt + more;
    if (!found.resident.id)
        found.resident = deepest(s, SNAPSHOT_RESIDENT, limit);
    if (!found.tiered.id)
        found.tiered = deepest(s, SNAPSHOT_TIERED, limit);
    return found;
}

/* ---- the climb ------------------------------------------------------------------------ */

/* The child has changed since we left it. If it is still the one that begins where the node ends,
 * read it again; else (it was split or cut) begin anew. */
static bool child_again(struct search *s)
{
    struct seen was = s->child_seen;
    for (int tries = 0; tries < RETRIES; tries++) {
        if (seen_read(s->v, s->child, &s->child_seen) && seen_still(s->v, s->child, &s->child_seen))
            return s->child_seen.identity == was.identity && s->child_seen.start == was.start &&
                   s->child_seen.parent == was.parent &&
                   s->child_seen.parent_identity == was.parent_identity;
        cpu_relax();
    }
    return false;
}

static bool all_found(const struct snapshot_want *want, const struct snapshots_found *found)
{
    return (found->resident.id || !(want->states & SNAPSHOT_RESIDENT)) &&
           (found->tiered.id || !(want->states & SNAPSHOT_TIERED));
}

static bool search_once(struct search *s, struct snapshots_found *found)
{
    uint32_t depth = s->where.depth, nodes = 0;
    uint64_t identity = s->where.identity;
    *found = (struct snapshots_found){0};
    s->id = s->where.node;
    s->child = 0;
    s->turns = 0;
    for (int tries = 0; tries < RETRIES; tries++) {
        if (!seen_read(s->v, s->id, &s->seen)) {
            if (s->id == 0 || s->id >= s->v->plan.max_nodes)
                return false;
            cpu_relax();
            continue;
        }
        bool root = s->seen.flags & NODE_ROOT;
        bool here = s->seen.identity == identity && depth <= s->seen.start + s->seen.n_blocks;
        struct snapshots_found got = *found;
        s->read_child = false;
        if (here && (root || depth > s->seen.start))
            got = node_search(s, depth, found);
        if (!seen_still(s->v, s->id, &s->seen))
            continue;
        if (!here)
            return false;
        if (s->read_child && !seen_still(s->v, s->child, &s->child_seen)) {
            if (!child_again(s))
                return false;
            continue;
        }
        *found = got;
        found->work = s->turns + ++nodes;
        if (root || all_found(s->want, found))
            return true;
        if (depth > s->seen.start)
            depth = s->seen.start;
        s->child = s->id;
        s->child_seen = s->seen;
        s->id = s->seen.parent;
        identity = s->seen.parent_identity;
        tries = 0; /* one step nearer to the root */
    }
    return false;
}

/* An ancestor may be merged away under the climb: the place itself stays, so begin anew. */
bool index_snapshots(const struct index_view *v, struct place where,
                     const struct snapshot_want *want, struct snapshots_found *found)
{
    struct search s;
    s.v = v;
    s.want = want;
    s.where = where;
    for (int tries = 0; tries < 16; tries++)
        if (search_once(&s, found))
            return true;
    *found = (struct snapshots_found){0};
    return false;
}
