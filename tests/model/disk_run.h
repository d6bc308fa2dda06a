/*
 * disk_run.h - one random run of the daemon's dispatch over a trial disk (trial_swap.h).
 *
 * What a token's KV is, here: a word, made of the space, its life, and all tokens and extras up to
 * that one. A life of a space ends with a flush. So a page that shows up under another prefix, in
 * another space, or after a flush, shows other words; and nothing needs to be remembered of pages.
 *
 *      published   words of the last tokens of blocks that were ever inserted: a match is no more
 *      present     of those that must be there now, where nothing may be lost: a match is no less
 *
 * Lives are numbered. `lives` of a lease, or of a space, is the range that it may show: one life;
 * more after a daemon that was killed before a flush was through.
 */
#ifndef TESTS_DISK_RUN_H
#define TESTS_DISK_RUN_H

#include "tests/model/local.h"
#include "tests/model/trial_swap.h"

enum {
    TEXT_MAX = 224,
    TEXT_EXTRAS = 24,
    RUN_CONNS = 4,
    RUN_LEASES = 10,
    RUN_SLOTS = 8, /* private ones of a lease */
    RUN_SPACES = 10,
    RUN_BT = 16,
    RECENT = 10,
    ADMIT_MOST = 4,
    LIVES_MOST = 16, /* that a space may show at once */
    TURNS_MOST = 4000,
};

struct text {
    uint32_t n, n_extras;
    uint32_t token[TEXT_MAX];
    struct pfx_extra extra[TEXT_EXTRAS];
};

struct lives {
    uint64_t first, last;
};

/* A set of words. */
struct words {
    uint64_t *slot;
    uint32_t n, room;
};

struct disk_shape {
    const char *name;
    uint32_t block_tokens, n_blocks, n_disk, alphabet;
    bool insert;     /* --swap-write insert */
    bool whole;      /* room for all, no faults, and time: nothing is ever lost */
    bool no_flush;   /* then blocks are conserved: what is evicted is counted */
    bool long_texts; /* longer than a node, and than an order */
    bool grows, no_restart;
    uint32_t n_spaces;
    uint32_t extras; /* of a text; more than 4: side by side, more than a header holds */
    uint32_t admit;  /* --swap-admit */
    uint32_t n_states, n_states_disk;
    uint32_t tick_us, longest, depth;
    uint64_t hash_mask;
    struct trial_faults faults;
};

struct run_lease {
    bool used, secret; /* nobody has been told of it yet */
    bool quiet;
    uint64_t id, session;
    int group, space;
    struct lives lives;
    struct text asked;                                  /* of the lookup */
    struct text text;                                   /* what it holds, and is to write */
    uint64_t asked_word[TEXT_MAX], text_word[TEXT_MAX]; /* of the last life */
    uint32_t tail_first; /* where the tail began, that it was offered */
    uint32_t seen;       /* blocks that its lookup has counted */
    uint32_t written;    /* tokens of `text` that its latest insert has named; 0: not any more */
    uint32_t n_slots, slot[RUN_SLOTS];
};

struct run_conn {
    bool used, busy;
    int group;
    uint32_t opens[RUN_SPACES];
    /* what it waits for */
    uint16_t op;
    unsigned turns;
    int lease; /* -1: none */
    uint64_t lease_id;
    uint32_t flags, wanted;       /* RESERVE, EVICT: blocks */
    uint32_t expected;            /* LOOKUP: blocks that must match; with `whole` all */
    bool bounded;                 /* LOOKUP: by `expected` from below */
    bool quiet, fits;             /* nobody else does anything, and there are pages enough */
    uint64_t flushed[RUN_SPACES]; /* FLUSH: the life that it began; 0: none */
};

struct disk_run {
    struct disk_shape shape;
    struct rng rng, disk_rng;
    struct trial_disk *disk;
    struct local *x;
    struct backend b;
    uint64_t (*page)[RUN_BT];   /* the pool: one word a token */
    uint64_t (*shadow)[RUN_BT]; /* what was written to private pages */
    struct run_conn conn[RUN_CONNS];
    struct run_lease lease[RUN_LEASES];
    struct text recent[RECENT];

    struct lives lives[RUN_SPACES]; /* now */
    uint64_t durable[RUN_SPACES];   /* the first life that a restart may show */
    uint64_t flushes[RUN_SPACES];   /* as the daemon counts them */
    pfx_space number[RUN_SPACES];
    struct words published, present;
    uint64_t first_generation;     /* of this daemon */
    struct words seen[ADMIT_MOST]; /* [n - 1]: so often at least */
    struct words saved, kept;      /* states: of all that were; that a restart must find */
    uint8_t state_shadow[MODEL_SLOTS + 1][STATE_BYTES];

    uint64_t operations, restarts, inserted, restored, turns;
    uint64_t seen_fetched, seen_lost, seen_disk_hits;
    uint64_t seen_states, seen_tiered, states_kept;
    uint64_t faults, errors, cut_scans, cut_flushes; /* of daemons that are gone */
};

static inline uint32_t dice(struct disk_run *r, uint32_t n)
{
    return rng_below(&r->rng, n);
}

static inline bool one_in(struct disk_run *r, uint32_t n)
{
    return dice(r, n) == 0;
}

/* ---- disk_words.c ---- */

void words_add(struct words *s, uint64_t word);
bool words_has(const struct words *s, uint64_t word);
void words_clear(struct words *s);

/* The word of a token, from that of the one before it (word_begin: before the first). */
uint64_t word_begin(int space, uint64_t life);
uint64_t word_next(uint64_t before, uint32_t token);
uint64_t word_extra(uint64_t before, uint64_t len, const uint8_t digest[32]);
void text_words(const struct text *t, int space, uint64_t life, uint64_t word[TEXT_MAX]);

void text_cut(struct text *t, uint32_t n);
struct text text_recent(struct disk_run *r); /* a recent one, cut somewhere and gone on with */
void text_grow(struct disk_run *r, struct text *t, uint32_t n);
struct space_key run_space_key(int space);

/* ---- disk_check.c ---- */

struct index;
/* The words of n tokens, `first` of their sequence and on, and of the extras that start there. */
void token_words(const struct index *ix, const uint32_t *tokens, uint32_t extras, uint64_t first,
                 uint32_t n, uint64_t before, uint64_t word[RUN_BT]);
/* The word after so many blocks of the path to this node. */
uint64_t path_word(const struct index *ix, uint32_t node, uint32_t depth, uint64_t begin);
int run_space_of(const struct disk_run *r, uint32_t slot);

/* After each step. */
void check_step(struct disk_run *r);
/* Every block in the tree, on the device and on disk. */
void check_tree(struct disk_run *r);
/* Those with a copy, below live roots, that a restart must find, become `present`. */
uint32_t note_copies(struct disk_run *r);
/* How many blocks of `present` are not in the tree. */
void check_present(struct disk_run *r);

/* ---- disk_life.c ---- */

void run_start(struct disk_run *r); /* a daemon on the disk as it is */
void run_attach(struct disk_run *r, int conn);
void run_detach(struct disk_run *r, int conn, bool clean);
void run_restart(struct disk_run *r, bool kill);
void run_end(struct disk_run *r); /* all is given back */
/* Some time goes by: background, the disk, and whoever waits. */
void run_turn(struct disk_run *r);
void run_idle(struct disk_run *r); /* until nobody waits and nothing moves */
bool run_scanning(const struct disk_run *r);

/* ---- disk_ops.c ---- */

void run_operation(struct disk_run *r);
/* Begin; run_answered may have been called when this returns. */
void run_begin(struct disk_run *r, int conn, const struct request *rq);
/* Begin, and wait for it, or let others do what they do meanwhile. */
void run_ask(struct disk_run *r, int conn, const struct request *rq);
/* The answer of what a connection waits for. */
void run_answered(struct disk_run *r, int conn, const struct wire_completion *c);
/* Is nobody else doing anything? */
bool run_alone(const struct disk_run *r, int conn);
/* Has an operation of this connection begun a new life of a space? */
void run_look_for_flushes(struct disk_run *r, int conn);

/* ---- disk_leases.c ---- */

struct lease *run_lease_of(const struct disk_run *r, const struct run_lease *l);
struct run_lease *run_lease_named(struct disk_run *r, uint64_t id);
/* One of this connection's group; mostly one that nobody waits for. -1: there is none. */
int run_some_lease(struct disk_run *r, int conn);
/* A lookup under way has matched so far. */
void run_look_for_matches(struct disk_run *r, int conn);
void do_lookup(struct disk_run *r, int conn);
void do_fetch(struct disk_run *r, int conn);
void do_reserve(struct disk_run *r, int conn);
void do_insert(struct disk_run *r, int conn);
void do_truncate(struct disk_run *r, int conn);
void do_release(struct disk_run *r, int conn);
void lookup_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out);
void fetch_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out);
void reserve_answered(struct disk_run *r, struct run_conn *c, int conn,
                      const struct wire_completion *out);

/* ---- disk_states.c: snapshots ---- */

void do_state(struct disk_run *r, int conn);
void state_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out);
void check_states(struct disk_run *r); /* after each step: of the leases */
/* What an answer says of them. */
void check_offers(struct disk_run *r, const struct run_lease *l,
                  const struct completion_lookup *out);
void check_state_tree(struct disk_run *r);  /* each in the tree, in its slot and on disk */
void note_states(struct disk_run *r);       /* after note_copies */
void check_states_kept(struct disk_run *r); /* after a restart's scan */

#endif
