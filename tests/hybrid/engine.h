/*
 * engine.h - a minimal inference engine over prefixd for a hybrid model: KV pages in pool blocks,
 * recurrent states in snapshot slots.
 *
 *   lookup ---> restore a state, and the KV up to just there ---> prefill in chunks ---> decode
 *               (see engine.c: the state decides)                  publish each, file states
 *
 * What the cache refuses, the engine does without: pages come from its own memory and are not
 * published, a state is not filed, and when the daemon dies the turn goes on alone. So a turn
 * always has an answer, and it is always the same. (A failed malloc ends the program.)
 */
#ifndef HYBRID_ENGINE_H
#define HYBRID_ENGINE_H

#include "client/prefixd.h"
#include "tests/hybrid/hybrid_model.h"

/* What an engine has done, with the words for it. */
#define ENGINE_COUNTS(X)                                                                           \
    X(turns, "turns")                                                                              \
    X(prompt_tokens, "prompt tokens")                                                              \
    X(restored_tokens, "prompt tokens not recomputed")                                             \
    X(restores, "states restored")                                                                 \
    X(unaligned, "of these at a depth inside a block")                                             \
    X(tails, "of these the session's own tail")                                                    \
    X(fetches, "states fetched from the lower tier")                                               \
    X(tail_copies, "tail blocks copied")                                                           \
    X(block_copies, "matched blocks copied, as the state ended inside")                            \
    X(truncations, "leases cut to where the state is")                                             \
    X(stateless, "turns with KV but no state")                                                     \
    X(saves, "states filed")                                                                       \
    X(duplicates, "blocks computed that were already cached")                                      \
    X(no_block, "reserves of blocks refused")                                                      \
    X(no_slot, "reserves of slots refused")                                                        \
    X(no_fetch, "fetches of a state refused")                                                      \
    X(alone, "turns that went on without the cache")

struct engine_counts {
#define X(name, words) uint64_t name;
    ENGINE_COUNTS(X)
#undef X
};
void engine_counts_add(struct engine_counts *to, const struct engine_counts *from);

/* Where a turn stands when engine.at is called. */
enum engine_point {
    AT_LOOKUP,   /* it holds what was matched                      */
    AT_RESERVE,  /* it has private blocks                          */
    AT_INSERT,   /* a chunk is published                           */
    AT_SLOT,     /* it has a private slot                          */
    AT_FILLED,   /* and the state is in it, but not yet inserted   */
    AT_SNAPSHOT, /* a state is filed                               */
    AT_TOKEN,    /* a token is decoded                             */
    ENGINE_POINTS
};

struct engine {
    pfx *c;
    struct engine_counts counts;
    /* For tests, NULL if not wanted: to die at a point, and to spoil what was restored. */
    void (*at)(void *arg, enum engine_point point);
    void (*spoil)(void *arg, float *state, uint32_t *depth);
    void *arg;
};

/* The layout of a pool for this model; `name` is the daemon's --model. */
struct pfx_layout engine_layout(const struct hybrid *m, const char *name);

/* What is filed of the last state of a turn, after the last token that was computed. */
enum engine_finish {
    FINISH_NOTHING,
    FINISH_EXACT,
    FINISH_TAIL,
    FINISH_SIBLING,         /* a state of mid-answer, as sibling           */
    FINISH_TAIL_AND_SIBLING /* the last one as tail, then that of mid-answer */
};

struct request {
    const struct hybrid *model;
    pfx_space space;
    uint64_t session;            /* 0: none; then neither tail nor sibling        */
    struct hybrid_text prompt;   /* its images are the extras of lookup and insert */
    uint32_t n_tokens, n_decode; /* at least 1 each; at most HYBRID_DECODE        */
    uint32_t chunk;              /* tokens of a prefill chunk                     */
    uint32_t stride;             /* file a state at each multiple of it; 0: no    */
    bool save_before_end;        /* and before the last token: all that the same
                                    prompt, sent again, can use                   */
    bool save_end;               /* and after the prompt                          */
    enum engine_finish finish;
    uint32_t flags, snapshot_multiple; /* of the lookup */
};

/* A turn by steps, so that several can be under way. begin looks up; the first step restores, each
 * other one computes a chunk or a token, false: there is nothing left; end files the last state,
 * releases, and frees. */
struct turn;
struct turn *turn_begin(struct engine *e, const struct request *rq);
bool turn_step(struct turn *t);
void turn_end(struct turn *t, struct hybrid_answer *out);
bool turn_has_prompt(const struct turn *t);   /* the prompt is computed */
uint32_t turn_restored(const struct turn *t); /* tokens, after the first step */

/* All of a turn. Returns the tokens restored. */
uint32_t engine_serve(struct engine *e, const struct request *rq, struct hybrid_answer *out);

#endif
