/*
 * states.h - snapshots in the tests, on top of worker.h: every step is audited.
 *
 *      keep(&w, "aaaabbbb", 8, PFX_EXACT, 0);      caches the text, saves a state at depth 8
 *      found(&w, "aaaabbbbx", 0, 8, 0);            is offered it, and nothing spilled
 *
 * A slot's bytes follow from the space, the tokens up to the depth, the depth, and whose tail it
 * is. It has three parts of different size, as a model's state has, each with bytes of its own: a
 * foreign, torn or missing part shows. The same on every device, but with other bytes.
 */
#ifndef TESTS_STATES_H
#define TESTS_STATES_H

#include "tests/worker.h"

enum { STATE_PARTS = 3, STATE_BYTES = 192, SLOTS_MAX = 64 };

/* As host_small, with slots of 192 bytes, and room for n_tier spilled ones: in memory, or
 * on_disk(). */
void host_states(struct host *h, unsigned n_blocks, unsigned bt, unsigned n_slots, unsigned n_tier);

/* ---- bytes ---- */

struct state {
    const struct seq *s;
    uint32_t depth;
    uint64_t tail_of; /* its session; 0: exact */
};

void state_fill(const struct worker *w, uint32_t slot, const struct state *state);
bool state_is(const struct worker *w, uint32_t slot, const struct state *state);
bool state_part_is(const struct worker *w, uint32_t slot, const struct state *state, int part);

/* ---- calls ---- */

/* A lookup for a session. */
struct held ask(struct worker *w, const char *text, uint64_t session, uint32_t flags);
struct held ask_seq(struct worker *w, const struct seq *s, uint64_t session, uint32_t flags);

/* Statuses; audited. */
int slot_reserve(struct worker *w, const struct held *h, uint32_t *slot);
int slot_insert(struct worker *w, const struct held *h, uint32_t slot, uint32_t depth,
                enum pfx_snapshot_kind kind);
int slot_cancel(struct worker *w, const struct held *h, uint32_t slot);
int fetch(struct worker *w, struct held *h);
int let_go(struct worker *w, const struct held *h); /* pfx_snapshot_drop */
int evict_state(struct worker *w);
int forget_state(struct worker *w, uint64_t key);

/* These fail the test if they fail. */
uint32_t save(struct worker *w, const struct held *h, const char *text, uint32_t depth,
              enum pfx_snapshot_kind kind); /* reserve, fill, insert; the slot */
uint32_t save_seq(struct worker *w, const struct held *h, const struct seq *s, uint32_t depth,
                  enum pfx_snapshot_kind kind);
struct pfx_spilled spill(struct worker *w, uint32_t min_tokens);

/* A whole turn of a session, quietly: cache all of it (PFX_FINAL), save a state, release. */
void keep(struct worker *w, const char *text, uint32_t depth, enum pfx_snapshot_kind kind,
          uint64_t session);
void keep_seq(struct worker *w, const struct seq *s, uint32_t depth, enum pfx_snapshot_kind kind,
              uint64_t session);

/* ---- what is offered ---- */

/* The lease was offered states of these depths (0: none), with the right bytes. */
void offers(struct worker *w, const struct held *h, const char *text, uint32_t depth,
            uint32_t tier_depth);
void offers_seq(struct worker *w, const struct held *h, const struct seq *s, uint32_t depth,
                uint32_t tier_depth);

/* A quiet lookup is, and pfx_peek_full agrees; nothing is left behind. */
struct pfx_snapshot_ref found(struct worker *w, const char *text, uint64_t session, uint32_t depth,
                              uint32_t tier_depth);
struct pfx_snapshot_ref found_seq(struct worker *w, const struct seq *s, uint64_t session,
                                  uint32_t depth, uint32_t tier_depth);

/* Findable entries, by the counters. */
void states_are(const struct worker *w, unsigned resident, unsigned tiered);

/* ---- slots ---- */

/* How many slots one lease can get now, each once; all are given back. Idle states are dropped or
 * spilled by that: what is left is held, or private. */
uint32_t slots_to_get(struct worker *w);

/* Every slot can be had: none is lost, none is there twice. */
void slots_all_there(struct worker *w);

/* snapshots_tiered by what came and went; the last three are the caller's own count. */
void tier_reconciles(const struct worker *w, unsigned resaved, unsigned swept, unsigned dropped);

#endif
