/*
 * hybrid_model.h - a small hybrid language model that really computes: recurrent layers, whose
 * state has a fixed size, and attention layers, whose keys and values grow with the tokens. Its
 * weights are random, from a seed.
 *
 *      token --> embedding --> recurrent, attention, recurrent, attention --> logits of the next
 * one
 *
 * What an engine has to keep of the tokens so far, with WIDTH 32:
 *
 *   KV, of the attention layers only: a page ("block") holds block_tokens tokens of all of them
 *
 *      | layer 1: token 0 | token 1 | ...  || layer 3: token 0 | token 1 | ... |
 *                 K 32 floats, V 32 floats: 256 bytes a token and attention layer,
 *                 so 2048 bytes a block of 4 tokens, 8192 of 16
 *
 *   state, of the recurrent layers only: all of it belongs to one depth, and is one snapshot
 *
 *      | layer 0: window | memory          || layer 2: window | memory |
 *                 |        32 rows of 4 floats, the linear recurrence     512 bytes
 *                 3 rows of 32 floats, the last inputs of the convolution 384 bytes
 *                 so 1792 bytes a snapshot
 *
 * A model of states only has four recurrent layers: 3584 bytes a snapshot, and no KV.
 *
 * Why the same prefix always gives the same bits. A token is computed by itself, whatever chunk it
 * comes in, from nothing but (token, image, position, state before it, KV of the positions before
 * it), and
 * every sum in it has one order: an output is the sum over its inputs, first to last; attention
 * goes over positions from 0 on, whichever pages they lie in. The compiler may use vectors across
 * outputs, but not reorder a sum (no -ffast-math) nor join a multiplication with an addition in one
 * place and not in another (-ffp-contract=off, see meson.build). So, token by token, state and KV
 * are functions of the prefix, bit for bit, and copying their bytes is as good as computing them.
 */
#ifndef HYBRID_MODEL_H
#define HYBRID_MODEL_H

#include "client/prefixd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HYBRID_VOCABULARY = 64,
    HYBRID_WIDTH = 32,
    HYBRID_LAYERS = 4,
    HYBRID_POSITIONS = 4096, /* tokens that a sequence may have */
    HYBRID_DECODE = 16,      /* tokens that an answer may have  */
};

struct hybrid;

/* NULL: no memory. */
struct hybrid *hybrid_new(uint64_t seed, uint32_t block_tokens, bool states_only);
void hybrid_free(struct hybrid *m);

uint32_t hybrid_block_tokens(const struct hybrid *m);
size_t hybrid_block_bytes(const struct hybrid *m); /* 0: states only */
size_t hybrid_state_bytes(const struct hybrid *m);

/* Tokens, and images: what an extra stands for is mixed into the embeddings of its tokens, each
 * with another part of the picture. */
struct hybrid_text {
    const uint32_t *tokens;
    const struct pfx_extra *images; /* ascending, disjoint */
    size_t n_images;
};

/* Compute tokens[from .. to): `state` is that of depth `from` and becomes that of depth `to`; the
 * KV of `from` tokens is in blocks, that of the others is written there. Before the first token the
 * state is all zero. `logits` (HYBRID_VOCABULARY) are those after the last; NULL: not wanted. */
void hybrid_run(const struct hybrid *m, float *state, float *const *blocks,
                const struct hybrid_text *text, uint32_t from, uint32_t to, float *logits);

/* The greedy choice: the greatest, of equal ones the first. */
uint32_t hybrid_choice(const float *logits);

/* KV of the first n_tokens of a block. */
void hybrid_copy_kv(const struct hybrid *m, float *to, const float *from, uint32_t n_tokens);

/* One of the two pieces of a state is lost: all zero, in every layer. */
enum hybrid_piece { HYBRID_WINDOW, HYBRID_MEMORY };
void hybrid_lose(const struct hybrid *m, float *state, enum hybrid_piece piece);

/* The next n tokens after a prompt, chosen greedily, and the logits that each was chosen by. */
struct hybrid_answer {
    uint32_t n;
    uint32_t tokens[HYBRID_DECODE];
    float logits[HYBRID_DECODE][HYBRID_VOCABULARY];
};
bool hybrid_answers_equal(const struct hybrid_answer *a, const struct hybrid_answer *b); /* bits */
bool hybrid_answer_finite(const struct hybrid_answer *a);

/* The answer without any cache: everything is computed, in memory of its own, in chunks of `chunk`
 * tokens. False: no memory. */
bool hybrid_plain(const struct hybrid *m, const struct hybrid_text *prompt, uint32_t n_tokens,
                  uint32_t n_decode, uint32_t chunk, struct hybrid_answer *out);

#endif
