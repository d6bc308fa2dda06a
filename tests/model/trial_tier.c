#include "tests/model/trial_tier.h"

#include <stdlib.h>
#include <string.h>

enum { BLOBS_MOST = 64, MOVES_MOST = 16, LONGEST = 4 };

struct blob {
    uint64_t key; /* 0: none */
    uint8_t bytes[STATE_BYTES];
};

/* put: `bytes` is what the slot held when it began. get: what it was spoilt with. */
struct move {
    uint64_t key; /* 0: none */
    bool put;
    uint32_t slot, wait;
    enum fate fate;
    uint8_t bytes[STATE_BYTES];
};

struct trial {
    struct tier tier;
    struct trial_config config;
    struct blob blob[BLOBS_MOST];
    struct move move[MOVES_MOST];
    uint64_t keys[MODEL_NAMES]; /* all that were ever put */
    uint32_t n_keys;
};

static struct trial *trial_of(struct tier *t)
{
    return (struct trial *)t;
}

static struct blob *blob_find(struct trial *x, uint64_t key)
{
    for (int i = 0; i < BLOBS_MOST; i++)
        if (x->blob[i].key == key)
            return &x->blob[i];
    return NULL;
}

static struct move *move_find(struct trial *x, uint64_t key)
{
    for (int i = 0; i < MOVES_MOST; i++)
        if (x->move[i].key == key)
            return &x->move[i];
    return NULL;
}

uint32_t trial_blobs(const struct tier *t)
{
    const struct trial *x = (const struct trial *)t;
    uint32_t n = 0;
    for (int i = 0; i < BLOBS_MOST; i++)
        n += x->blob[i].key != 0;
    return n;
}

uint32_t trial_transfers(const struct tier *t)
{
    const struct trial *x = (const struct trial *)t;
    uint32_t n = 0;
    for (int i = 0; i < MOVES_MOST; i++)
        n += x->move[i].key != 0;
    return n;
}

static struct move *begin(struct trial *x, uint64_t key, uint32_t slot, bool put, enum fate fate)
{
    REQUIRE(key != 0 && slot >= 1 && slot <= x->config.n_slots);
    REQUIRE_MSG(!move_find(x, key), "a blob is moved twice at once");
    for (int i = 0; i < MOVES_MOST; i++)
        REQUIRE_MSG(!x->move[i].key || x->move[i].slot != slot, "slot %u is moved twice at once",
                    slot);
    struct move *m = move_find(x, 0);
    REQUIRE(m != NULL);
    *m = (struct move){.key = key,
                       .put = put,
                       .slot = slot,
                       .fate = fate,
                       .wait = rng_below(x->config.rng, LONGEST)};
    return m;
}

static bool trial_room(struct tier *t)
{
    (void)t; /* trial_put looks that there is */
    return true;
}

static bool trial_put(struct tier *t, uint64_t key, uint32_t slot)
{
    struct trial *x = trial_of(t);
    for (uint32_t i = 0; i < x->n_keys; i++)
        REQUIRE_MSG(x->keys[i] != key, "key %llx is put twice", (unsigned long long)key);
    enum fate fate = x->config.fate(x->config.arg, true);
    if (fate == FATE_REFUSED)
        return false;
    uint32_t writing = 0;
    for (int i = 0; i < MOVES_MOST; i++)
        writing += x->move[i].key && x->move[i].put;
    REQUIRE_MSG(trial_blobs(t) + writing < x->config.n_blobs, "more blobs than there is room for");
    REQUIRE(x->n_keys < MODEL_NAMES);
    x->keys[x->n_keys++] = key;
    struct move *m = begin(x, key, slot, true, fate);
    memcpy(m->bytes, x->config.slots[slot], STATE_BYTES);
    return true;
}

static bool trial_get(struct tier *t, uint64_t key, uint32_t slot)
{
    struct trial *x = trial_of(t);
    REQUIRE_MSG(blob_find(x, key), "a blob is asked for that is not here");
    enum fate fate = x->config.fate(x->config.arg, false);
    if (fate == FATE_REFUSED)
        return false;
    struct move *m = begin(x, key, slot, false, fate);
    for (int i = 0; i < STATE_BYTES; i++)
        m->bytes[i] = (uint8_t)rng_next(x->config.rng);
    memcpy(x->config.slots[slot], m->bytes, STATE_BYTES);
    return true;
}

static bool trial_drop(struct tier *t, uint64_t key)
{
    struct trial *x = trial_of(t);
    REQUIRE(key != 0);
    struct blob *b = blob_find(x, key);
    struct move *m = move_find(x, key);
    if (b)
        b->key = 0;
    if (m)
        m->key = 0;
    return true;
}

static enum tier_outcome end(struct trial *x, struct move *m)
{
    uint8_t *slot = x->config.slots[m->slot];
    REQUIRE_MSG(memcmp(slot, m->bytes, STATE_BYTES) == 0, "slot %u was touched while it %s",
                m->slot, m->put ? "was spilled" : "was fetched");
    struct blob *b = blob_find(x, m->put ? 0 : m->key);
    REQUIRE(b != NULL);
    if (m->fate != FATE_DONE)
        return m->fate == FATE_MISS ? TIER_MISS : TIER_ERROR;
    if (m->put) {
        b->key = m->key;
        memcpy(b->bytes, m->bytes, STATE_BYTES);
    } else {
        memcpy(slot, b->bytes, STATE_BYTES);
    }
    return TIER_DONE;
}

/* All wait a step less; one of those that have waited long enough is over. */
static bool trial_step(struct tier *t, struct tier_over *over, unsigned *n_over)
{
    struct trial *x = trial_of(t);
    struct move *ready[MOVES_MOST];
    uint32_t n = 0, under_way = trial_transfers(t);
    *n_over = 0;
    for (int i = 0; i < MOVES_MOST; i++) {
        struct move *m = &x->move[i];
        if (!m->key)
            continue;
        if (m->wait)
            m->wait--;
        else
            ready[n++] = m;
    }
    if (n) {
        struct move *m = ready[rng_below(x->config.rng, n)];
        *over = (struct tier_over){m->key, m->slot, end(x, m)};
        *n_over = 1;
        m->key = 0;
    }
    return under_way > 0;
}

static void trial_free(struct tier *t)
{
    free(t);
}

static const struct tier_ops trial_ops = {trial_room, trial_put,  trial_get,
                                          trial_drop, trial_step, trial_free};

struct tier *trial_new(const struct trial_config *config)
{
    struct trial *x = calloc(1, sizeof *x);
    REQUIRE(x && config->n_blobs <= BLOBS_MOST);
    x->config = *config;
    x->tier.ops = &trial_ops;
    return &x->tier;
}
