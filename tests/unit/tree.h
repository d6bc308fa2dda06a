/* tree.h - an index and its pool alone, in memory that a fork shares: for tests of the tree and of
 * its readers. Blocks are bt tokens, sequences plain arrays. */
#ifndef TESTS_TREE_H
#define TESTS_TREE_H

#include "daemon/index.h"
#include "tests/harness.h"

struct tree {
    struct pool pool;
    struct index *ix;
    struct index_header *header;
    uint64_t bytes;
    uint32_t root, bt;
};

void tree_new(struct tree *t, uint32_t block_tokens, uint32_t n_blocks);
/* With room for snapshots, and with fewer different hashes. */
void tree_new_with(struct tree *t, uint32_t block_tokens, uint32_t n_blocks, uint32_t max_snapshots,
                   uint64_t hash_mask);
/* With all that, and a disk tier: max_spaces and hash_seed are filled in. */
void tree_new_params(struct tree *t, struct index_params p);
/* And only blocks that were seen so often are written. */
void tree_new_admit(struct tree *t, struct index_params p, uint32_t admit);
void tree_free(struct tree *t);
void tree_audit(const struct tree *t);

struct index_query tree_query(const uint32_t *tokens, size_t n);
struct place tree_root(const struct tree *t);
/* How far n tokens match, exactly. */
struct place tree_match(const struct tree *t, const uint32_t *tokens, size_t n);
/* Insert the whole blocks of n tokens, evicting as needed; the place of their end. */
struct place tree_insert(struct tree *t, const uint32_t *tokens, size_t n);
struct place tree_insert_query(struct tree *t, const struct index_query *q);

#endif
