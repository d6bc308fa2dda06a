/*
 * text.h - tokens, and the bytes that follow from them.
 *
 * A key a token: it follows from the space (tenant, adapter, flushes so far), all tokens before it,
 * and the extras that they stand for. A page's words follow from the keys of its tokens, so a page
 * can be compared up to any token without knowing who wrote it; a state's words from the key of its
 * last token, its depth, and its session if it is a tail.
 */
#ifndef TESTS_CHAOS_TEXT_H
#define TESTS_CHAOS_TEXT_H

#include "tests/chaos/chaos.h"

enum { EXTRAS_MAX = 12 };

struct text {
    uint32_t *token;
    uint64_t *key;
    uint32_t n, room;
    struct pfx_extra extra[EXTRAS_MAX];
    uint32_t n_extras;
};

/* At most `most` tokens of a prompt. variant: other pictures behind the same tokens. */
void text_make(struct text *t, const struct plan *p, const struct workload *work, size_t prompt,
               uint32_t variant, uint32_t most);
/* Keys, for this space of so many flushes. */
void text_key(struct text *t, unsigned space, uint64_t version);
void text_free(struct text *t);

/* What differs first; word -1: nothing. */
struct difference {
    int64_t word;
    uint32_t device, token;
    uint64_t expected, found;
};

/* Tokens from `at` on, n of them, on all devices. */
void page_write(pfx *c, uint32_t block, const struct text *t, uint32_t at, uint32_t n);
struct difference page_compare(pfx *c, uint32_t block, const struct text *t, uint32_t at,
                               uint32_t n);
void state_write(pfx *c, uint32_t slot, const struct text *t, uint32_t depth, uint64_t tail_of);
struct difference state_compare(pfx *c, uint32_t slot, const struct text *t, uint32_t depth,
                                uint64_t tail_of);

#endif
