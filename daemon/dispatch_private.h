/* dispatch_private.h - what the files dispatch*.c share: one function an opcode. */
#ifndef DAEMON_DISPATCH_PRIVATE_H
#define DAEMON_DISPATCH_PRIVATE_H

#include "daemon/daemon.h"
#include "shm/status.h"

/* What an operation gets: the record is a private copy. It fills out->... and returns a status.
 * STARTED and WAITING mean that it became *job: the one goes on in the next turn, the other can do
 * nothing until the disk, or another lower tier, has done something. */
struct call {
    struct daemon *d;
    struct session *s;
    struct job *job;
    const struct request *rq;
    struct wire_completion *out;
    uint64_t cost;
};

enum { STARTED = 1000, WAITING };

typedef int operation(struct call *c);

operation op_lookup, op_lookup_slow, op_cancel, op_fetch;           /* dispatch_lookup.c */
operation op_reserve, op_truncate, op_insert, op_release, op_table; /* dispatch_lease.c */
operation op_space_open, op_space_close, op_evict, op_flush;        /* dispatch_space.c */
operation op_snapshot_reserve, op_snapshot_insert, op_snapshot_cancel, op_snapshot_drop,
    op_snapshot_evict, op_snapshot_spill, op_snapshot_forget; /* dispatch_snapshot.c */

/* At least n free pages, for a job that waits as long as blocks are being written for it. */
enum page_room make_pages(struct daemon *d, struct job *j, uint32_t n);
int take_pages(struct call *c, uint32_t slice);

/* One slice of a job: a status when it is done, STARTED or WAITING while it is not. */
operation go_on_reserve, go_on_evict, go_on_flush, go_on_fetch, go_on_snapshot_reserve,
    go_on_snapshot_spill;
void abandon_flush(struct daemon *d, struct job *j);

/* The lease of the record, if it may be changed; else NULL and PFX_ESTALE is the answer. */
struct lease *call_lease(struct call *c);

/* The session has this space open (or it is the base space): its slot, or UINT32_MAX. */
uint32_t call_space(const struct call *c, uint64_t number);

/* n bytes at `at` in the request arena, copied to the daemon's scratch; NULL: out of bounds. */
const uint8_t *call_arena(struct call *c, uint32_t at, uint64_t n);

/* Room for n ids at `at` in the completion arena; NULL: out of bounds. */
uint32_t *call_room(struct call *c, uint32_t at, uint64_t n);

/* A piece of tokens and its extras, copied and checked, as a query that begins at token `first`.
 * False: PFX_EINVAL is the answer. */
bool call_piece(struct call *c, uint32_t at, uint32_t n_tokens, uint32_t n_extras, uint64_t first,
                struct index_query *query);

/* ---- dispatch_snapshot.c ---- */

/* Find, hold, stamp and count what the lookup of this lease is offered; `rest`: the query after the
 * match, at least as far as the tail goes. */
void offer_snapshots(struct call *c, struct lease *l, const uint32_t *rest, uint32_t multiple);
/* Is what was offered in the lower tier deeper than what is resident? */
bool offered_deeper_below(const struct call *c, const struct lease *l);
/* As the answer says it. */
void answer_snapshots(struct call *c, const struct lease *l);
/* What the last piece of an insert says of the tokens after its last whole block. */
void keep_residue(struct call *c, struct lease *l, const struct index_query *query, bool last);

#endif
