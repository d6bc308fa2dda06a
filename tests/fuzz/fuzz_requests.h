/* fuzz_requests.h - what its files share: the bytes of an input, and the scene that they play in.
 */
#ifndef TESTS_FUZZ_REQUESTS_H
#define TESTS_FUZZ_REQUESTS_H

#include "tests/fuzz/house.h"

struct trial_disk;

/* The first bytes of an input: which daemon it is for. */
struct shape {
    uint8_t block_tokens, blocks, slots, tier;
    uint8_t disk;   /* 0: none; its slots otherwise */
    uint8_t faults; /* of the disk */
    uint8_t hash;   /* how bad the index's hash is */
    uint8_t groups; /* bit 0: the guests are of one group; 1, 2: they say goodbye at the end */
    uint8_t ring;
    uint8_t options;  /* bit 0: --index none; 1: --swap-write insert; 2: --swap-admit 2; 3: alpha */
    uint8_t scribble; /* % 8: 1, a second thread changes what is read; 2, each read does */
    uint8_t reserved[21];
};
static_assert(sizeof(struct shape) == 32, "splices of inputs keep their units");

/* op: an opcode; OP_COUNT .. STEP_FIRST - 1: garbage; or one of these. */
enum {
    STEP_FIRST = 32,
    STEP_WORDS = STEP_FIRST,
    STEP_ARENA,
    STEP_ROUNDS,
    STEP_WAIT,
    STEP_PACKET,
    STEP_CLOSE,
    STEP_LOOK,
    STEP_AUDIT,
    STEP_DEAF,
    STEP_RESTART,
    STEP_STORE, /* all that a good worker does for one prompt */
    STEP_FIND,  /* a prompt that is there, perhaps in the lower tiers */
    STEP_KINDS
};

struct step {
    uint8_t op;
    uint8_t who; /* bit 0: which guest; 2: a word of the record is spoiled; 3: no round after it */
    uint8_t lease; /* which live one, or one of some that are none */
    uint8_t what;  /* which space, slot, key; of garbage the opcode */
    uint16_t flags;
    uint16_t n;
    uint16_t at; /* in the arena, by eight */
    uint16_t reserved;
    uint32_t pattern;
    uint32_t c, d;
    uint32_t more[2];
};
static_assert(sizeof(struct step) == 32, "no holes");

enum {
    GUESTS = 2,
    LIVE_LEASES = 8,
    LIVE_SPACES = 4,
    LIVE_SLOTS = 4,
    LIVE_KEYS = 4,
    STEPS_MOST = 120
};

struct live_lease {
    uint64_t id;
    struct place where;
    uint32_t table, tag;
};

struct guest {
    struct raw w;
    bool open;
    bool lies; /* about its indexes: then it may misread the daemon's */
    uint32_t deaf;
};

struct scene {
    struct shape shape;
    struct house h;
    struct rng rng;
    struct trial_disk *disk;
    struct honest honest;
    struct guest guest[GUESTS];
    struct live_lease lease[LIVE_LEASES];
    uint64_t space[LIVE_SPACES], key[LIVE_KEYS], slot_lease[LIVE_SLOTS];
    uint32_t slot[LIVE_SLOTS];
    uint32_t newest; /* lease of a lookup */
    uint32_t n_leases, n_spaces, n_slots, n_keys;
    uint32_t bt, restarts, steps, scribbles;
};

/* records.c */
/* The record of a step as a good worker would say it, more or less; of some it is just garbage. */
struct request step_record(struct scene *s, struct guest *g, const struct step *p);
uint32_t step_length(const struct step *p); /* of its prompt, in tokens */

/* scene.c */
void scene_open(struct scene *s);  /* its disk */
void scene_start(struct scene *s); /* its daemon */
void scene_stop(struct scene *s);
void scene_close(struct scene *s);

/* scribble.c */
/* Between the two this guest's region changes while the daemon reads it, if the shape wants it. */
void scribble_begin(struct scene *s, struct guest *g);
void scribble_end(struct scene *s, struct guest *g);

#endif
