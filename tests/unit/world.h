/*
 * world.h - the tree with a disk tier, and beside it a list of blocks, each with its whole prefix.
 *
 * The tree does a thing first, then the list does the same, then every block, slot and count is
 * compared. What the list knows of recency is true LRU: a use of a path is a use of every block on
 * it (`used`). Two orders follow:
 *
 *   pages    the least recently used block that has one, none below it has, and no hold keeps
 *   copies   the same; but a block that is on the device too counts only by the uses that the tree
 *            has kept with it (`kept`): those of what hangs below it come when that goes
 *
 * In half of the worlds only blocks that were seen `admit` times are written (`times`).
 *
 * Blocks for which no use is known at all, as after a restart, rank alike: then the list takes the
 * one that the tree took.
 */
#ifndef TESTS_WORLD_H
#define TESTS_WORLD_H

#include "tests/unit/tree.h"

enum { BT = 4, DEEPEST = 80, PAGES = 60, SLOTS = 200, MOST = PAGES + SLOTS, NONE = -1 };
enum { LEASES = 8, JOBS = 4, GENERATIONS = 64 };

/* What has happened, all worlds together: a run that never came to something tests nothing. */
struct seen {
    unsigned adopted, duplicates, clean, dirty, refused, copies, last_copies, committed, not_next,
        arrived, too_late, restored, under_way, partials, tails, reaped, pruned, lost, ties,
        longest, unworthy, inner;
};

struct block {
    bool there, partial;
    uint32_t gen, depth, n; /* n: tokens of its whole prefix */
    uint32_t tokens[DEEPEST * BT];
    int parent;
    uint32_t page, disk, times;
    uint64_t used, kept;
    bool page_below, copy_below, pinned, held; /* see world_look() */
    bool dirty_below;
};

/* A hold up to a block: a lease's, or a transfer's with what it has left to do. */
struct holder {
    struct hold h;
    bool live, write;
    int end;
    uint32_t first, n;                /* n blocks after this depth are being written */
    uint32_t next, last, id[DEEPEST]; /* depths; slots or pages, by depth - 1 */
};

enum slot { SLOT_FREE, SLOT_JOB, SLOT_TREE, SLOT_TOLD };

struct world {
    struct tree t;
    struct rng r;
    uint32_t alphabet, n_disk, admit;
    struct block b[MOST];
    struct holder lease[LEASES], job[JOBS];
    uint8_t slot[SLOTS];
    uint32_t n_told;
    struct place root[GENERATIONS];
    bool reaped[GENERATIONS];
    uint32_t gen; /* the live one */
    uint64_t clock;
    struct seen *seen;
};

struct text {
    uint32_t n, tokens[DEEPEST * BT];
};

void world_new(struct world *w, struct rng *r, struct seen *seen);
/* n of them, one after the other: so many steps at random, and then everything goes. */
void worlds(struct rng *r, unsigned n, unsigned steps);

/* ---- the list (blocks are named by their place in it; NONE: the root) --------------------- */

/* The whole block that ends with these tokens. */
int world_find(const struct world *w, uint32_t gen, const uint32_t *tokens, uint32_t n);
int world_add(struct world *w, const uint32_t *tokens, uint32_t n, uint32_t page, uint32_t disk);
void world_block_gone(struct world *w, int i);
int world_above(const struct world *w, int i, uint32_t depth);
uint32_t world_depth(const struct world *w, int i);
/* A use of what hangs below, or of the path, comes to the block. */
void world_keep(struct world *w, int i, uint64_t stamp);
/* Mark what lies below each block, and who holds it. */
void world_look(struct world *w);

struct place world_match(const struct world *w, uint32_t gen, const uint32_t *tokens, uint32_t n);
struct place world_place(const struct world *w, int i);
/* Pages, slots and counts of the tree are those of the list; and its audit finds nothing. */
void world_check(struct world *w);

/* ---- both do it --------------------------------------------------------------------------- */

void world_free_pages(struct world *w, uint32_t n, bool dirty);
void world_evict_copies(struct world *w, uint32_t n);
void world_stamp(struct world *w, int i, struct place where);
/* A lookup's use: the blocks of the path were seen. */
void world_look_up(struct world *w, int i, struct place where);
/* The blocks after `first` on the path to block i were seen once more; what is in front of them at
 * least as often. */
void world_times(struct world *w, int i, uint32_t first);
/* To be written, if it is not on disk. */
bool world_admits(const struct world *w, int i);

struct holder *holder_unused(struct holder *all, int n);
struct holder *holder_any(struct world *w, struct holder *all, uint32_t n);
void world_hold(struct world *w, struct holder *h, int end, bool io);
void world_unhold(struct world *w, struct holder *h);
void world_move_hold(struct world *w, struct holder *h, int end);

/* What is gone of a condemned tree leaves the list: nothing that is held, and below nothing that
 * stays. When the walk is over, all that is not held. Returns how many. */
uint32_t world_sync(struct world *w, uint32_t gen);

/* ---- texts -------------------------------------------------------------------------------- */

/* A live block, not a partial one; NONE: none was drawn. */
int world_any_block(struct world *w);
void world_text(struct world *w, struct text *x);
/* The deepest block of a text that the list has. */
int world_text_match(const struct world *w, const struct text *x);
/* Among the blocks on the device that follow block i: who shares most, then the lowest page. */
int world_tail(const struct world *w, int i, const uint32_t *rest, uint32_t n, uint32_t *shared);
void world_check_tail(struct world *w, const struct text *x, int i);

#endif
