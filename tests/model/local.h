/* local.h - the daemon in this process, without sockets: what the files local*.c share, and what
 * test_jobs.c drives a slice at a time. */
#ifndef TESTS_LOCAL_H
#define TESTS_LOCAL_H

#include "daemon/daemon.h"
#include "tests/model/backend.h"
#include "tests/model/trial_tier.h"

enum { CONNS = 8, ARENA = PIECE_BYTES, UID = 1000 };

struct local {
    struct daemon d;
    struct options options;
    struct session *session[CONNS];
    struct rng rng;
    struct tier *tier; /* the daemon's; NULL: none */
    uint8_t slots[MODEL_SLOTS + 1][STATE_BYTES];
    uint32_t ids[4096]; /* of the last match */
};

struct local *local_new(const struct model_config *config, uint64_t hash_mask, uint64_t seed,
                        enum fate (*fate)(void *arg, bool put), void *arg);
/* With room for a disk tier, which the caller starts, and snapshots after it: their lower tier may
 * be a part of it. */
struct local_disk {
    uint32_t n_blocks, admit;
};
struct local *local_new_on_disk(const struct model_config *config, const struct local_disk *disk,
                                uint64_t hash_mask, uint64_t seed);
void local_snapshots(struct local *x, const struct model_config *config, struct tier *tier,
                     uint64_t wait_ns);
struct backend local_backend(struct local *x);
void local_free(void *self);
void local_attach(void *self, int conn, const char *group);
void local_detach(void *self, int conn, bool clean);
void local_audit(void *self);

/* Begin, or go on; true: *c is the answer. */
bool local_begin(struct local *x, int conn, const struct request *rq, struct wire_completion *c);
bool local_go_on(struct local *x, int conn, struct wire_completion *c);
/* All of it. */
struct wire_completion local_call(struct local *x, int conn, const struct request *rq);

/* ---- records, as the library builds them ---- */

uint8_t *local_arena(struct local *x, int conn);
struct index_query local_query(const struct pfx_lookup_args *a);
/* What a lookup that found this place asks; tokens for the tail go to the arena. */
struct request local_lookup_request(struct local *x, int conn, const struct pfx_lookup_args *a,
                                    const struct index_found *found);
/* A lookup in one record, the fast way or the slow one; false: there is no such space. */
bool local_request(struct local *x, int conn, const struct pfx_lookup_args *a, struct request *rq);
/* The match of an answer; ids are read into x->ids. */
void local_match(struct local *x, int conn, const struct wire_completion *c, struct pfx_match *out);

/* ---- local_snapshot.c ---- */

int local_fetch(void *self, int conn, uint64_t lease, struct pfx_match *out);
int local_snapshot_reserve(void *self, int conn, uint64_t lease, uint32_t *slot);
int local_snapshot_insert(void *self, int conn, uint64_t lease, uint32_t slot, uint32_t depth,
                          int kind);
int local_snapshot_cancel(void *self, int conn, uint64_t lease, uint32_t slot);
int local_snapshot_drop(void *self, int conn, uint64_t lease);
int local_snapshot_evict(void *self, int conn);
int local_snapshot_spill(void *self, int conn, uint32_t min_tokens, struct pfx_spilled *out);
int local_snapshot_forget(void *self, int conn, uint64_t key);
uint8_t *local_slot(void *self, int conn, uint32_t slot);

#endif
