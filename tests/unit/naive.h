/* naive.h - a tree with snapshots, and beside it a plain list of what hangs there: for each entry
 * its whole prefix. Where the two part, the test fails. */
#ifndef TESTS_NAIVE_H
#define TESTS_NAIVE_H

#include "shm/snapshot_read.h"
#include "tests/unit/tree.h"

enum { TEXT_TOKENS = 48, TEXT_EXTRAS = 3, NAIVE_MAX = 64 };

struct text {
    uint32_t tokens[TEXT_TOKENS];
    uint32_t n;
    struct wire_extra extras[TEXT_EXTRAS];
    uint32_t n_extras;
};

struct naive_entry {
    bool there;
    struct text prefix; /* all of it: n is the depth */
    enum snapshot_kind kind;
    uint64_t session;
    uint32_t state;
};

struct naive {
    struct tree t;
    struct naive_entry entry[NAIVE_MAX + 1];
    struct text told[NAIVE_MAX]; /* the prefixes of those that left since naive_settle */
    uint32_t n_told;
    bool flushing;
    unsigned emptied, left, flushed;
};

void naive_new(struct naive *n, uint32_t block_tokens, uint32_t n_blocks, uint64_t hash_mask);
void naive_free(struct naive *n);

/* Few tokens and few images, so that texts share beginnings, and some differ in their images
 * alone. At most `most` tokens. */
void text_random(struct rng *r, uint32_t most, struct text *x);
struct index_query text_query(const struct text *x);
/* The first n tokens are the same, and so are the images that start in them. */
bool text_shares(const struct text *a, const struct text *b, uint32_t n);

/* Hang entry `id` (not there) at depth `depth` of the text, whose whole blocks end or pass `where`;
 * whose tail and whose exact entry stand in the way has been looked at. */
void naive_add(struct naive *n, uint32_t id, struct place where, const struct text *x,
               uint32_t depth, enum snapshot_kind kind, uint64_t session);
void naive_remove(struct naive *n, uint32_t id);
void naive_evict(struct naive *n, uint32_t blocks);
void naive_move(struct naive *n, uint32_t id, uint32_t state);

/* The exact entry or sibling at that position; the session's tail. 0: none. */
uint32_t naive_at(const struct naive *n, const struct text *x, uint32_t depth);
uint32_t naive_tail(const struct naive *n, uint64_t session);
uint32_t naive_unused(const struct naive *n); /* 0: none */

/* What index_snapshots should find for a text matched to `depth` blocks and n_rest tokens. */
struct snapshots_found naive_search(const struct naive *n, const struct text *x, uint32_t depth,
                                    const struct snapshot_want *want);

/* A new root for the space; the old one is condemned and reaped, `step` blocks a time. */
void naive_flush(struct naive *n, uint32_t step);

/* After each step: the audit is clean, who left has no prefix any more, who stayed has. */
void naive_settle(struct naive *n);

#endif
