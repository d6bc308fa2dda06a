/*
 * worker.h - a worker process from inside.
 *
 * It has HANDS leases at a time, each of one request. Every call goes through CALL, which takes its
 * time and judges its answer; after PFX_EGONE nothing is called any more (`gone`) and the worker
 * begins anew with the next daemon, or ends.
 */
#ifndef TESTS_CHAOS_WORKER_H
#define TESTS_CHAOS_WORKER_H

#include "tests/chaos/text.h"

enum { HANDS = 3, TABLE_MAX = 512 };

struct hand {
    uint64_t lease; /* 0: empty */
    struct text text;
    size_t prompt;
    uint32_t variant;
    unsigned space;
    uint64_t version; /* flushes of the space before */
    uint64_t session;
    uint32_t table[TABLE_MAX], n_table;
    uint32_t n_right;           /* leading positions that hold our text: matched, or filled by us */
    uint32_t n_matched;         /* positions of the match that are kept */
    uint32_t n_inserted, known; /* tokens: published; that a state may name */
    uint32_t tail_block, tail_tokens;
    struct pfx_snapshot_ref state; /* that it holds */
    bool final, unsure; /* unsure: a flush came between, nobody knows of which side it is */
};

struct actor {
    const struct cast *cast;
    const struct plan *plan;
    struct stage *stage;
    struct seat *seat;
    struct dice dice;
    pfx *c;
    pfx_space space[SPACES];
    uint32_t bt, life; /* life: of the daemon that it is attached to */
    uint64_t attached_ns;
    uint64_t begun; /* requests */
    int rc;         /* of the last call */
    bool gone, cut; /* cut: by its own order */
    struct hand hand[HANDS];
};

/* ---- calls and answers ---- */

void call_begin(struct actor *w, const char *what);
/* also: errors that may be, ERROR(PFX_E...) each; known when the call has come back, not before. */
int call_end(struct actor *w, int rc, uint32_t also);
#define CALL(w, what, also, call)                                                                  \
    (call_begin((w), (what)), (w)->rc = (call), call_end((w), (w)->rc, (also)))
#define ERROR(e) (1u << -(e))
/* PFX_ESTALE where its space has been flushed, or may just be. */
uint32_t stale_of(const struct actor *w, const struct hand *h);

/* The answer contradicts the interface. */
void wrong(struct actor *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define EXPECT(w, cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond))                                                                               \
            wrong((w), __VA_ARGS__);                                                               \
    } while (0)

/* Do here what was ordered for this point, if anything was. */
void at_point(struct actor *w, enum point point);

/* ---- one request (request.c) ---- */

void request_draw(struct actor *w, struct hand *h);
struct pfx_lookup_args request_lookup(struct actor *w, struct hand *h);
/* The lookup has answered; what it matched is compared, and the hand has it. False: it was given
 * back again. `before`: version when it was submitted. */
bool request_matched(struct actor *w, struct hand *h, const struct pfx_lookup_args *args,
                     struct pfx_match *m, uint64_t before);
void request_begin(struct actor *w, struct hand *h);          /* lookup .. insert */
uint32_t request_wish(struct actor *w, const struct hand *h); /* positions that lack */
void request_reserved(struct actor *w, struct hand *h, const uint32_t *ids, uint32_t n);
void request_fill(struct actor *w, struct hand *h);
void request_insert(struct actor *w, struct hand *h, uint32_t n_written, uint32_t flags);
void request_inserted(struct actor *w, struct hand *h, uint32_t n_written, uint32_t flags,
                      const struct pfx_insert_result *r);
void request_verify(struct actor *w, const struct hand *h); /* all that it holds */
void request_end(struct actor *w, struct hand *h);          /* verify, release */
void hand_clear(struct hand *h);
void verify_block(struct actor *w, const struct hand *h, uint32_t block, uint32_t at, uint32_t n,
                  const char *where);

/* ---- states (state.c) ---- */

void state_verify(struct actor *w, const struct hand *h);
void state_use(struct actor *w, struct hand *h); /* as a hybrid model does: cuts the lease there */
void state_keep(struct actor *w, struct hand *h);

/* ---- mate.c, flight.c ---- */

bool mate_exists(const struct actor *w);
uint32_t crowded(const struct actor *w);          /* PFX_ENOSPC of a lookup, if that may be */
bool mate_offer(struct actor *w, struct hand *h); /* the hand is empty then */
void mate_serve(struct actor *w);
bool mate_await(struct actor *w); /* until it has done with what it took; false: it does not end */
void flight_run(struct actor *w);
void flight_end(struct actor *w, struct hand *h); /* insert and release at once */

#endif
