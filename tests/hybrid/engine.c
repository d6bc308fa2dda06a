/*
 * engine.c - a turn: restore, prefill, decode, publish.
 *
 * The state decides. KV can be used from any position on, a state only at the very depth that it
 * was taken at. So a turn goes on at the depth of the snapshot that it was offered, and of the KV
 * it keeps what lies before that depth. With 4-token blocks:
 *
 *   matched      |....|....|....|....|      16 tokens, and of a tail block 2 more
 *   tail block                       |..??|
 *
 *   state at 8   |....|....|                 keep 2 blocks, truncate the rest, compute from 8 on
 *   state at 10  |....|....|..>              keep 2; 2 tokens of block 2 are copied to a private
 *                                            block, which the turn writes from position 10 on
 *   state at 18  |....|....|....|....|..>    keep all; the 2 tokens of the tail block are copied
 *   none         >                           truncate to 0: KV without a state is of no use here
 *
 * In all four cases depth / block_tokens blocks are kept, and the rest of the depth is copied from
 * what follows them: the next matched block, or the tail block. The copy is made, and the state
 * taken out of its slot, before the truncate, which ends the hold on either.
 *
 * What is computed again is then published again. Positions that exist keep their page, and the
 * turn's own become duplicates; it goes on reading its own, which have the same bits.
 */
#include "tests/hybrid/engine.h"

#include <stdlib.h>
#include <string.h>

struct turn {
    struct engine *e;
    struct request rq;
    struct hybrid_answer a;
    struct pfx_match match; /* while restoring */
    uint64_t lease;         /* 0: none */
    bool restoring;         /* it has a match, and nothing else yet */
    bool caches;            /* what it computes is still published */
    uint32_t *tokens;       /* the prompt, then what is decoded */
    float *state;           /* after `done` tokens */
    float **blocks;         /* the page of each position */
    uint32_t n_blocks;
    uint32_t n_leased; /* of these, the lease's table; the rest is own memory */
    uint32_t done;     /* tokens computed, or restored */
    uint32_t restored;
    uint32_t published;  /* tokens of the last insert */
    uint32_t duplicates; /* and how many blocks of all were there already */
    float *twin;         /* the state at twin_depth, for the sibling */
    uint32_t twin_depth;
};

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static void reached(const struct turn *t, enum engine_point point)
{
    if (t->e->at)
        t->e->at(t->e->arg, point);
}

/* If a call failed for lack of room only, the turn goes on publishing. */
static void refused(struct turn *t, int rc)
{
    if (rc >= 0 || rc == PFX_ENOSPC || rc == PFX_ETOOBIG || rc == PFX_ENOENT)
        return;
    t->e->counts.alone += t->caches;
    t->caches = false;
}

/* ---- pages -------------------------------------------------------------------------- */

/* A new page holds NaNs: whatever is read before it was written, shows. */
static void append_page(struct turn *t, float *page)
{
    size_t bytes = hybrid_block_bytes(t->rq.model);
    if (bytes)
        memset(page, 0xff, bytes);
    t->blocks[t->n_blocks++] = page;
}

static void append_own(struct turn *t)
{
    append_page(t, need(malloc(hybrid_block_bytes(t->rq.model) + 1)));
}

static void append_reserved(struct turn *t, uint32_t n)
{
    uint32_t *ids = need(malloc(n * sizeof ids[0]));
    int rc = pfx_reserve(t->e->c, t->lease, n, ids);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        append_page(t, pfx_block_address(t->e->c, 0, ids[i]));
    free(ids);
    if (rc < 0) {
        t->e->counts.no_block++;
        refused(t, rc);
        return;
    }
    t->n_leased = t->n_blocks;
    reached(t, AT_RESERVE);
}

/* Pages for n_tokens. A table has no gaps: after the first page of our own, all are. */
static void extend(struct turn *t, uint32_t n_tokens)
{
    uint32_t bt = hybrid_block_tokens(t->rq.model), n = (n_tokens + bt - 1) / bt;
    if (n > t->n_blocks && t->caches && t->n_leased == t->n_blocks)
        append_reserved(t, n - t->n_blocks);
    while (t->n_blocks < n)
        append_own(t);
}

/* ---- restore -------------------------------------------------------------------------- */

/* False: there is no lease. */
static bool look(struct turn *t, struct pfx_match *m)
{
    const struct request *rq = &t->rq;
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .flags = rq->flags,
                                   .space = rq->space,
                                   .session = rq->session,
                                   .tokens = rq->prompt.tokens,
                                   .n_tokens = rq->n_tokens,
                                   .extras = rq->prompt.images,
                                   .n_extras = rq->prompt.n_images,
                                   .snapshot_multiple = rq->snapshot_multiple};
    int rc = pfx_lookup(t->e->c, &args, m);
    if (rc < 0) {
        refused(t, rc);
        t->caches = false;
        return false;
    }
    t->lease = m->lease;
    reached(t, AT_LOOKUP);
    return true;
}

/* Take the better of the two offers, if it can be had. */
static void fetch(struct turn *t, struct pfx_match *m)
{
    uint32_t depth = m->snapshot.tier_depth;
    bool there = m->n_resident == m->n_blocks;
    if (depth <= m->snapshot.depth && there)
        return;
    int rc = pfx_fetch(t->e->c, t->lease, m);
    if (rc == 0 && m->snapshot.depth == depth && m->snapshot.slot != PFX_NO_SLOT)
        t->e->counts.fetches++;
    else
        t->e->counts.no_fetch++;
    if (rc != PFX_EIO) /* then *m says what is left */
        refused(t, rc);
}

/* The state of what depth can be restored: one that is in a slot, with KV up to there. */
static uint32_t usable(const struct turn *t, const struct pfx_match *m)
{
    uint32_t bt = hybrid_block_tokens(t->rq.model);
    bool there = m->n_resident == m->n_blocks;
    uint32_t kv = there ? m->matched_tokens + m->tail_tokens : m->n_resident * bt;
    return m->snapshot.slot != PFX_NO_SLOT && m->snapshot.depth <= kv ? m->snapshot.depth : 0;
}

/* The first n tokens of the block that follows the kept ones, copied to own memory while it is
 * held. */
static float *take_partial(struct turn *t, const struct pfx_match *m, uint32_t keep, uint32_t n)
{
    const struct hybrid *model = t->rq.model;
    float *copy = need(malloc(hybrid_block_bytes(model) + 1));
    bool matched = keep < m->n_blocks;
    uint32_t block = matched ? m->blocks[keep] : m->tail_block;
    if (hybrid_block_bytes(model))
        hybrid_copy_kv(model, copy, pfx_block_address(t->e->c, 0, block), n);
    t->e->counts.block_copies += matched;
    t->e->counts.tail_copies += !matched;
    return copy;
}

static void keep_blocks(struct turn *t, const struct pfx_match *m, uint32_t keep)
{
    if (keep < m->n_blocks) {
        refused(t, pfx_truncate(t->e->c, t->lease, keep));
        t->e->counts.truncations++;
    }
    for (uint32_t i = 0; i < keep; i++)
        t->blocks[i] = pfx_block_address(t->e->c, 0, m->blocks[i]);
    t->n_blocks = t->n_leased = keep;
}

static void count_restored(struct turn *t, const struct pfx_match *m, uint32_t residue)
{
    struct engine_counts *counts = &t->e->counts;
    counts->restored_tokens += t->restored;
    counts->restores += t->restored > 0;
    counts->unaligned += residue > 0;
    counts->tails += t->restored && m->snapshot.is_tail;
    counts->stateless += !t->restored && m->matched_tokens;
}

static void restore(struct turn *t)
{
    struct pfx_match *m = &t->match;
    struct engine *e = t->e;
    const struct hybrid *model = t->rq.model;
    t->restoring = false;
    fetch(t, m);
    uint32_t bt = hybrid_block_tokens(model), depth = usable(t, m);
    if (depth) {
        memcpy(t->state, pfx_slot_address(e->c, 0, m->snapshot.slot), hybrid_state_bytes(model));
        if (e->spoil)
            e->spoil(e->arg, t->state, &depth);
    }
    uint32_t keep = depth / bt, residue = depth % bt;
    float *partial = residue ? take_partial(t, m, keep, residue) : NULL;
    if (m->snapshot.depth || m->snapshot.tier_depth)
        refused(t, pfx_snapshot_drop(e->c, t->lease));
    keep_blocks(t, m, keep);
    t->done = t->restored = depth;
    extend(t, depth);
    if (residue && hybrid_block_bytes(model))
        hybrid_copy_kv(model, t->blocks[keep], partial, residue);
    free(partial);
    count_restored(t, m, residue);
}

struct turn *turn_begin(struct engine *e, const struct request *rq)
{
    uint32_t n = rq->n_tokens + rq->n_decode;
    struct turn *t = need(calloc(1, sizeof *t));
    t->e = e;
    t->rq = *rq;
    t->caches = true;
    t->tokens = need(malloc(n * sizeof t->tokens[0]));
    memcpy(t->tokens, rq->prompt.tokens, rq->n_tokens * sizeof t->tokens[0]);
    t->state = need(calloc(1, hybrid_state_bytes(rq->model)));
    t->twin = need(calloc(1, hybrid_state_bytes(rq->model)));
    t->blocks = need(malloc((n / hybrid_block_tokens(rq->model) + 1) * sizeof t->blocks[0]));
    e->counts.turns++;
    e->counts.prompt_tokens += rq->n_tokens;
    t->match.size = sizeof t->match;
    t->restoring = look(t, &t->match);
    return t;
}

uint32_t turn_restored(const struct turn *t)
{
    return t->restored;
}

/* ---- publish ---------------------------------------------------------------------------- */

/* What is computed, as far as it lies in blocks of the pool. */
static void publish(struct turn *t, uint32_t flags)
{
    uint32_t room = t->n_leased * hybrid_block_tokens(t->rq.model);
    uint32_t n = t->done < room ? t->done : room;
    if (!t->caches || n == 0)
        return;
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = n == t->done ? flags : 0,
                                   .tokens = t->tokens,
                                   .n_written = n,
                                   .extras = t->rq.prompt.images,
                                   .n_extras = t->rq.prompt.n_images};
    struct pfx_insert_result result = {.size = sizeof result};
    int rc = pfx_insert(t->e->c, t->lease, &args, NULL, &result);
    if (rc < 0) {
        refused(t, rc);
        return;
    }
    t->published = n;
    t->duplicates = result.duplicate_blocks;
    reached(t, AT_INSERT);
}

/* File a state under the depth that it is the state of, aligned or not. */
static void file(struct turn *t, const float *state, uint32_t depth, enum pfx_snapshot_kind kind)
{
    struct engine *e = t->e;
    if (!t->caches || depth > t->published)
        return;
    uint32_t slot;
    int rc = pfx_snapshot_reserve(e->c, t->lease, &slot);
    if (rc < 0) {
        e->counts.no_slot++;
        refused(t, rc);
        return;
    }
    reached(t, AT_SLOT);
    memcpy(pfx_slot_address(e->c, 0, slot), state, hybrid_state_bytes(t->rq.model));
    reached(t, AT_FILLED);
    rc = pfx_snapshot_insert(e->c, t->lease, slot, depth, kind);
    if (rc < 0) {
        pfx_snapshot_cancel(e->c, t->lease, slot);
        refused(t, rc);
        return;
    }
    e->counts.saves++;
    reached(t, AT_SNAPSHOT);
}

/* ---- compute ------------------------------------------------------------------------------- */

/* A chunk ends early where a state is to be filed: it is there at this moment only. */
static uint32_t chunk_end(const struct turn *t)
{
    const struct request *rq = &t->rq;
    uint32_t n = rq->n_tokens, end = n - t->done < rq->chunk ? n : t->done + rq->chunk;
    uint32_t mark = rq->stride ? (t->done / rq->stride + 1) * rq->stride : n;
    if (mark < end)
        end = mark;
    return rq->save_before_end && end == n && t->done + 1 < n ? n - 1 : end;
}

static bool to_be_filed(const struct request *rq, uint32_t depth)
{
    return (rq->stride && depth % rq->stride == 0) ||
           (rq->save_before_end && depth + 1 == rq->n_tokens) ||
           (rq->save_end && depth == rq->n_tokens);
}

static void compute(struct turn *t, uint32_t end, float *logits)
{
    struct hybrid_text text = t->rq.prompt;
    text.tokens = t->tokens;
    extend(t, end);
    hybrid_run(t->rq.model, t->state, t->blocks, &text, t->done, end, logits);
    t->done = end;
}

static void prefill(struct turn *t)
{
    compute(t, chunk_end(t), t->a.logits[0]);
    publish(t, 0);
    if (to_be_filed(&t->rq, t->done))
        file(t, t->state, t->done, PFX_EXACT);
}

/* The last token of an answer is chosen, but not computed: its KV and state are the next turn's. */
static void decode(struct turn *t)
{
    const struct request *rq = &t->rq;
    if (t->a.n == (rq->n_decode - 1) / 2) {
        memcpy(t->twin, t->state, hybrid_state_bytes(rq->model));
        t->twin_depth = t->done;
    }
    uint32_t token = hybrid_choice(t->a.logits[t->a.n]);
    t->tokens[rq->n_tokens + t->a.n] = t->a.tokens[t->a.n] = token;
    if (++t->a.n == rq->n_decode)
        return;
    compute(t, t->done + 1, t->a.logits[t->a.n]);
    if (t->done % hybrid_block_tokens(rq->model) == 0)
        publish(t, 0);
    reached(t, AT_TOKEN);
}

bool turn_has_prompt(const struct turn *t)
{
    return t->done >= t->rq.n_tokens;
}

bool turn_step(struct turn *t)
{
    if (t->restoring)
        restore(t);
    else if (!turn_has_prompt(t))
        prefill(t);
    else if (t->a.n < t->rq.n_decode)
        decode(t);
    else
        return false;
    return true;
}

static void finish(struct turn *t)
{
    enum engine_finish how = t->rq.finish;
    publish(t, PFX_FINAL);
    if (how == FINISH_EXACT)
        file(t, t->state, t->done, PFX_EXACT);
    if (how == FINISH_TAIL || how == FINISH_TAIL_AND_SIBLING)
        file(t, t->state, t->done, PFX_TAIL);
    if (how == FINISH_SIBLING || how == FINISH_TAIL_AND_SIBLING)
        file(t, t->twin, t->twin_depth, PFX_TAIL_SIBLING);
}

void turn_end(struct turn *t, struct hybrid_answer *out)
{
    finish(t);
    t->e->counts.duplicates += t->duplicates;
    if (t->lease)
        refused(t, pfx_release(t->e->c, t->lease));
    for (uint32_t i = t->n_leased; i < t->n_blocks; i++)
        free(t->blocks[i]);
    *out = t->a;
    free(t->tokens);
    free(t->state);
    free(t->twin);
    free(t->blocks);
    free(t);
}

uint32_t engine_serve(struct engine *e, const struct request *rq, struct hybrid_answer *out)
{
    struct turn *t = turn_begin(e, rq);
    while (turn_step(t))
        ;
    uint32_t restored = turn_restored(t);
    turn_end(t, out);
    return restored;
}

/* ---- small things -----------------------------------------------------------------------------
 */

struct pfx_layout engine_layout(const struct hybrid *m, const char *name)
{
    struct pfx_layout layout = {.size = sizeof layout,
                                .block_tokens = hybrid_block_tokens(m),
                                .block_bytes = hybrid_block_bytes(m),
                                .snapshot_bytes = hybrid_state_bytes(m),
                                .n_devices = 1};
    pfx_model_digest(name, layout.model_digest);
    return layout;
}

void engine_counts_add(struct engine_counts *to, const struct engine_counts *from)
{
#define X(name, words) to->name += from->name;
    ENGINE_COUNTS(X)
#undef X
}
