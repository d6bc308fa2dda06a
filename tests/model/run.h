/* run.h - one random run: the daemon, the model, and what the operations on both need. */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include "tests/model/backend.h"
#include "tests/model/model.h"

struct shape {
    struct model_config config;
    uint32_t alphabet, extras;
    uint64_t hash_mask;
    bool narrow; /* few long sequences, that differ in their ends */
};

struct run {
    struct backend b;
    struct model m;
    struct rng rng;
    struct shape shape;
    bool local; /* transfers end as `fates` says */
    struct fates fates, fates_model;
    uint64_t lease[MODEL_LEASES];   /* the daemon's names of the model's leases */
    struct key meant[MODEL_LEASES]; /* the sequence that each lease works on */
    pfx_space space[MODEL_SPACES];
    uint64_t dead_lease; /* one that was released */
    struct key recent[8];
    struct key talk[MODEL_SESSIONS]; /* what each session has said so far */
    bool sessionless;                /* for a while, nobody has one: leases of the live one end */
};

static inline uint32_t dice(struct run *r, uint32_t n)
{
    return rng_below(&r->rng, n);
}

static inline bool one_in(struct run *r, uint32_t n)
{
    return dice(r, n) == 0;
}

/* ---- run.c ---- */

int some_conn(struct run *r);  /* one in use */
int some_lease(struct run *r); /* -1: there is none */
bool lease_to_have(const struct run *r);
int conn_for(struct run *r, int lease); /* mostly the opener or a mate, sometimes a stranger */
uint64_t some_session(struct run *r);
struct key sequence(struct run *r); /* a recent one, cut somewhere and gone on with */
struct key longer(struct run *r, const struct key *k);

/* One call, made of both and compared. */
int run_lookup(struct run *r, int conn, const struct model_ask *ask); /* the lease, or -1 */
int run_reserve(struct run *r, int conn, int lease, uint32_t n);
int run_insert(struct run *r, int conn, int lease, const struct key *k, bool final);
void run_release(struct run *r, int conn, int lease);

void do_lookup(struct run *r);
void do_peek(struct run *r);
void do_fetch(struct run *r);
void do_reserve(struct run *r);
void do_truncate(struct run *r);
void do_insert(struct run *r);
void do_release(struct run *r);
void do_evict(struct run *r);
void do_space(struct run *r);
void do_flush(struct run *r);
void do_connection(struct run *r);

/* ---- run_snapshot.c ---- */

/* What becomes of the transfers of the next operation, and that both used up as many. */
void cast_fates(struct run *r);
void same_transfers(struct run *r);

/* What was offered; the bytes of the resident one are those of its prefix. */
void same_offers(struct run *r, int conn, const struct model_found *want,
                 const struct pfx_snapshot_ref *got);
/* What the lease holds has its bytes still: before it lets go. */
void offers_whole(struct run *r, int conn, int lease);

void do_snapshot_reserve(struct run *r);
void do_snapshot_insert(struct run *r);
void do_snapshot_cancel(struct run *r);
void do_snapshot_drop(struct run *r);
void do_snapshot_evict(struct run *r);
void do_snapshot_spill(struct run *r);
void do_snapshot_forget(struct run *r);
void do_turn(struct run *r); /* of a conversation, from its lookup to its release */
void do_storm(struct run *r);

#endif
