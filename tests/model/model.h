/*
 * model.h - the cache as the documents describe it, too simple to be wrong: a list of blocks, each
 * with its whole prefix, and loops over it. No tree, no hash, no counts kept anywhere.
 *
 *   block   the tokens (and extras) from the start of its sequence to its end, its page, and when
 * it was last used; a partial block is one whose length is no multiple of block_tokens held    some
 * lease's path, tail or partial block begins with it leaf    no other block's prefix begins with
 * its own victim  the leaf that is not held and was used longest ago
 *
 * Every call returns what pfx_* would. Page ids are the daemon's choice: the model is told which
 * ones a reserve gave, and checks that they were free.
 */
#ifndef TESTS_MODEL_H
#define TESTS_MODEL_H

#include "client/prefixd.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KEY_MAX = 48,
    KEY_EXTRAS = 4,
    MODEL_BLOCKS = 64,
    MODEL_LEASES = 16,
    MODEL_SPACES = 3,
    MODEL_CONNS = 4,
};

/* A sequence from its start: tokens, and the extras that begin before its end. */
struct key {
    uint32_t n, n_extras;
    uint32_t token[KEY_MAX];
    struct pfx_extra extra[KEY_EXTRAS];
};

struct model_block {
    bool used;
    uint32_t root; /* a life of a space: flushing it begins another */
    uint32_t page;
    uint64_t stamp;
    struct key key;
};

struct model_lease {
    bool used, final;
    int group, opener; /* opener -1: its connection has died */
    int space;
    uint32_t root;
    struct key path;   /* what is held: whole blocks */
    int tail, partial; /* blocks, -1: none */
    uint32_t matched;  /* blocks */
    bool inserted;     /* whole blocks beyond `matched` were published by this lease */
    uint32_t final_written, final_position;
    uint32_t n_pages, page[MODEL_BLOCKS]; /* positions from `matched` on */
    bool published[MODEL_BLOCKS];
};

struct model_conn {
    bool used;
    int group;
    uint32_t opens[MODEL_SPACES];
};

struct model {
    uint32_t bt, n_blocks;
    uint64_t clock;
    uint32_t last_root;
    uint32_t root[MODEL_SPACES];
    struct model_block block[MODEL_BLOCKS];
    struct model_lease lease[MODEL_LEASES];
    struct model_conn conn[MODEL_CONNS];
    struct pfx_stats count; /* the fields that only count up */
};

void model_init(struct model *m, uint32_t block_tokens, uint32_t n_blocks);

void model_attach(struct model *m, int conn, int group);
void model_detach(struct model *m, int conn, bool clean);

int model_space_open(struct model *m, int conn, int space);
int model_space_close(struct model *m, int conn, int space);
int model_flush(struct model *m, int space); /* -1: all */

struct model_ask {
    int space;
    uint32_t flags, max_match, multiple;
    struct key query;
};
struct model_found {
    uint32_t matched, tail_tokens, tail_block; /* tokens, tokens, page */
    uint32_t blocks[MODEL_BLOCKS];
};
/* What a lookup finds; takes and counts nothing. */
void model_find(const struct model *m, const struct model_ask *ask, struct model_found *out);
/* The lookup itself: PFX_E*, or the index of a new lease. */
int model_lookup(struct model *m, int conn, const struct model_ask *ask, struct model_found *out);

/* Evicts what must go; the pages come by model_take after the daemon has chosen them. */
int model_reserve(struct model *m, int conn, int lease, uint32_t n);
void model_take(struct model *m, int lease, const uint32_t *pages, uint32_t n);
int model_truncate(struct model *m, int conn, int lease, uint32_t n);
int model_insert(struct model *m, int conn, int lease, const struct key *written, bool final,
                 uint32_t *canonical, struct pfx_insert_result *out);
int model_release(struct model *m, int conn, int lease);
uint32_t model_evict(struct model *m, uint32_t n);

uint32_t model_table(const struct model_lease *l);
uint32_t model_held(const struct model *m, const struct model_lease *l); /* blocks of the path */
/* All counters but `nodes`, which is the tree's own business. */
struct pfx_stats model_stats(const struct model *m);

/* ---- between model.c and model_lease.c ---- */
bool key_begins(const struct key *whole, const struct key *start);
struct key key_cut(const struct key *k, uint32_t n);
int model_block_find(const struct model *m, uint32_t root, const struct key *key);
int model_block_add(struct model *m, uint32_t root, const struct key *key, uint32_t page);
void model_stamp(struct model *m, uint32_t root, const struct key *path);
void model_reap(struct model *m); /* condemned blocks that nobody holds */
/* The best copy source after `path`, sharing [path->n, end) of query: its block or -1. */
int model_tail(const struct model *m, uint32_t root, const struct key *query, uint32_t from,
               uint32_t end, uint32_t *shared);
uint32_t key_extra_after(const struct key *k, uint32_t from, uint32_t end);

#endif
