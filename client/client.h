/*
 * client.h - inside the library: one connection, its calls, and its leases.
 *
 * THE IDEA. Every call of the public header, synchronous or not, is a `struct call`: a small
 * machine that builds a record, takes the daemon's answer, and may build another (a lookup whose
 * place was gone walks again, an insert larger than a piece goes on). It is moved on only when
 * completions are taken in, so a submitted call never blocks; the synchronous one waits for it.
 *
 *                 (in line behind another call on its lease)
 *      call_new -> LINED -> STALLED <-> SENT -> FINISHED -> handed out -> call_free
 *                             no room              \-> by itself, if FORGOTTEN (cancel, time-out)
 *
 *   handshake.c, attach.c  socket, mappings, close    request.c  calls of one record each
 *   channel.c   rings, waking, sleeping, death         lookup.c   the walk, retries, slow pieces
 *   arena.c     room for bulk data in both arenas      insert.c   compare, then pieces
 *   call.c      the machine above, and its order       piece.c    cutting tokens and extras
 *   forget.c    cancelled and timed-out calls          peek.c     shared memory alone
 *   lease.c     what this worker knows of its leases   complete.c pfx_wait, pfx_cancel, pfx_fd
 *   space.c     which spaces it has open               sync.c, submit.c  the public calls
 *   pool.c      addresses of pages                     check.c    arguments
 *                                                      text.c     sentences, the model's digest
 *
 * One call at a time is on its way for a lease; later ones stand in its line. So an insert of many
 * pieces and the release submitted after it keep their order, and the lease's place is known when
 * a call starts.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "client/prefixd.h"
#include "shm/clock.h"
#include "shm/index_read.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "shm/status.h"

#include <sys/queue.h>

struct call;
struct device;
TAILQ_HEAD(call_list, call);

/* ---- arena.c ------------------------------------------------------------------ */

/* A piece of an arena that one call uses while its record is on its way. bytes 0: none. */
struct span {
    TAILQ_ENTRY(span) link;
    uint32_t from, bytes;
};
TAILQ_HEAD(span_list, span);

/* Live spans, ascending. `rover` is where the next search begins. */
struct arena {
    uint32_t bytes;
    struct span_list spans;
    struct span *rover;
};

void arena_init(struct arena *a, uint32_t bytes);
bool arena_claim(struct arena *a, struct span *s, uint32_t bytes); /* false: no room now */
void arena_give(struct arena *a, struct span *s);

/* ---- lease.c ------------------------------------------------------------------ */

/* What this worker knows of a lease. Its own leases, from lookup to release; one that a group mate
 * opened, only while calls on it are under way. */
struct lease {
    uint64_t id;
    uint64_t session;
    struct place place; /* where it holds, if known */
    bool known;
    bool own;  /* opened here */
    bool keep; /* stays when its line is empty: own, or ids handed out, or late */
    bool late; /* a call timed out: takes nothing but a release */
    bool moving; /* line_next is at work */
    uint32_t matched;  /* ids handed out */
    uint32_t room;     /* of pages and disks, in ids */
    uint32_t *pages, *disks;
    struct call_list line; /* the first is under way */
    struct lease *next_free;
};

/* By id: open addressing, at most half full. */
struct leases {
    struct lease **slot;
    uint32_t n_slots, n_used;
    struct lease *free;
    uint32_t n_free;
};

struct lease *lease_new(struct pfx *c); /* NULL: no memory. Not in the table yet */
bool lease_add(struct pfx *c, struct lease *l);
struct lease *lease_seek(const struct pfx *c, uint64_t id);
struct lease *lease_use(struct pfx *c, uint64_t id); /* find, or begin to know a mate's */
void lease_free(struct pfx *c, struct lease *l);     /* out of the table, if it is there */
bool lease_room(struct lease *l, uint32_t n, bool disks);
void leases_forget(struct pfx *c);

/* ---- space.c ------------------------------------------------------------------ */

/* How often this connection has each space open, by the slot in its number. */
struct space_use {
    uint64_t number;
    uint32_t opens;
    bool used;
};

struct space_uses {
    struct space_use *slot;
    uint32_t n_slots, n_used;
};

void space_opened(struct pfx *c, uint64_t number);
void space_closed(struct pfx *c, uint64_t number);
/* A connection uses the spaces that it has open, and the base space. */
bool space_is_open(const struct pfx *c, uint64_t number);

/* ---- call.c ------------------------------------------------------------------- */

enum call_state {
    CALL_FREE = 0,
    CALL_LINED,    /* behind another call on its lease                        */
    CALL_STALLED,  /* no room for its next record, or an earlier call is in the way */
    CALL_SENT,     /* a record is with the daemon                             */
    CALL_PARKED,   /* a forgotten lookup that was granted, while its CANCEL is out */
    CALL_FINISHED, /* status says how                                         */
};

enum step {
    STEP_SEND, /* build: the record is ready; take: build another */
    STEP_ROOM, /* build: no room in an arena now                  */
    STEP_DONE, /* call->status says how it ended                  */
};

/* What a call does. build may be NULL (the record was made when the call was), take as well (the
 * status is all). Before take, a negative status has ended the call, unless takes_errors. */
struct method {
    enum step (*build)(struct pfx *c, struct call *call);
    enum step (*take)(struct pfx *c, struct call *call, const struct wire_completion *answer);
    bool takes_errors;
};
extern const struct method methods[OP_COUNT];

/* Of a forgotten lookup or fetch. */
enum cancel_state { CANCEL_NONE, CANCEL_SENT, CANCEL_DONE, CANCEL_FAILED };

/* A lookup, or a fetch, on its way. */
struct looking {
    uint64_t space, session;
    uint32_t flags;             /* PFX_FETCH .. */
    uint32_t n_tokens;          /* as the caller gave them, for the counters   */
    uint32_t longest;           /* max_match, in tokens, never above n_tokens  */
    uint32_t multiple;          /* of block_tokens and match_multiple          */
    uint32_t snapshot_multiple;
    uint32_t tries;
    bool slow;
    uint32_t at;                /* slow: tokens that have matched              */
    uint32_t piece;             /* slow: tokens of the piece on its way        */
    uint64_t opening;           /* the lease that the daemon has opened for it */
    struct lease *fresh;        /* becomes ours for that one                   */
    bool granted;
    int32_t outcome; /* of a fetch */
    struct completion_lookup got;
};

/* An insert on its way. */
struct inserting {
    bool final, agreed;
    bool short_table; /* the table ends before the tokens: no more pieces  */
    bool done;        /* all is in; what is left are the canonical ids     */
    bool asked;       /* TABLE has said where the lease holds              */
    uint32_t tries;
    uint32_t until;   /* depth after the piece on its way, if all of it is in */
    struct pfx_insert_result total;
};

struct reserving {
    uint32_t n, got, table; /* wanted; ids so far; length of the table afterwards */
};

struct call {
    TAILQ_ENTRY(call) link;  /* in pfx.pending, .done, .handed or .free */
    TAILQ_ENTRY(call) line;  /* in its lease's line, if in_line */
    TAILQ_ENTRY(call) stall; /* in pfx.stalled             */
    uint32_t *own_ids, room_ids; /* kept from call to call */

    uint16_t op;             /* what was asked for; its record may be another's */
    uint8_t state;
    uint8_t cancel;
    bool synchronous, forgotten, in_line;
    bool listed; /* in pfx.pending or .done */
    bool behind; /* another one in its line: counted in pfx.n_behind */
    bool more;   /* its record is not the last: build says so  */
    bool midway; /* such a record is out: counted in pfx.n_midway */
    uint64_t order;         /* of calls, as they were started */
    uint32_t tag, sequence; /* of its last record */
    int32_t status;
    uint64_t user_tag, lease_id;
    struct lease *lease;
    struct request request;
    struct span out, in; /* in the request and the completion arena */

    struct index_query query; /* the caller's arrays, or `copy` */
    void *copy;
    union {
        struct looking look;
        struct inserting ins;
        struct reserving res;
    };

    /* Where results go: the caller's structs, or our own below. */
    struct pfx_match *match;
    struct pfx_insert_result *insert;
    struct completion_number *number;
    uint32_t *ids; /* the caller's array, or `own_ids`, or NULL: not wanted */
    uint32_t n_ids;
    struct pfx_match own_match;
    struct pfx_insert_result own_insert;
    struct completion_number own_number;
};

struct call *call_new(struct pfx *c, enum opcode op);
struct call *call_find(const struct pfx *c, uint32_t tag);
int call_fail(struct pfx *c, const struct call *call); /* as fail, for one that has ended */
void call_free(struct pfx *c, struct call *call);

/* Start it, wait for it, free it: what a synchronous call returns. */
int call_run(struct pfx *c, struct call *call);
/* Start it and come back: 0 or PFX_E*, and then it is gone. */
int call_submit(struct pfx *c, struct call *call, uint64_t user_tag);

void call_answer(struct pfx *c, const struct wire_completion *answer);
void calls_retry(struct pfx *c);   /* those that are stalled */
void calls_deliver(struct pfx *c); /* finished ones to pfx.done, in order */
void calls_end(struct pfx *c);     /* the daemon is gone: PFX_EGONE for all */
/* Room for n ids in call->ids, if they are wanted. */
bool call_ids(struct call *call, uint32_t n);

/* The machine's parts, for forget.c. */
void call_begin(struct pfx *c, struct call *call);
void call_finish(struct pfx *c, struct call *call, int status);
void call_leave_line(struct pfx *c, struct call *call, bool over);
void call_midway(struct pfx *c, struct call *call, bool midway);

/* ---- forget.c ----------------------------------------------------------------- */

/* Nobody waits for it any more: what it takes is given back. */
void call_forget(struct pfx *c, struct call *call);
void call_answer_forgotten(struct pfx *c, struct call *call, const struct wire_completion *answer);
/* Release a lease that nobody was told about. */
void call_give_back(struct pfx *c, uint64_t lease);

/* ---- the connection -------------------------------------------------------------- */

struct pfx {
    const uint32_t *here; /* 1, but 0 in a forked child: a page that is wiped there */
    const char *why;
    char space_why[64]; /* what `why` may point to */
    uint64_t timeout_ns, spin_ns;
    struct pfx_geometry geometry;

    /* channel */
    int fd;       /* control socket */
    int event_fd; /* readable while completions are set aside; -1 until pfx_fd */
    int epoll_fd;
    bool event_set;
    bool gone;
    bool has_mates; /* a named group: others may use its leases */
    struct segment request_region, completion_region, index_region;
    uint32_t ring_entries;
    struct ring_writer requests;
    struct ring_reader completions;
    uint8_t *out_bytes;      /* request arena    */
    const uint8_t *in_bytes; /* completion arena */
    struct arena out, in;
    uint32_t *doze;
    uint32_t doze_answered;
    uint64_t checked_ns; /* when the socket was last looked at */
    struct index_view index;

    /* pool */
    struct device *devices[DEVICES_MAX];
    uint64_t block_stride, slot_stride;

    /* calls */
    struct call *calls;
    uint32_t n_calls;
    uint16_t *by_tag;
    uint32_t tag_mask, next_tag;
    uint32_t sequence, answered;      /* of the last record posted; newest answered */
    uint32_t in_flight, n_submitted;  /* records out; asynchronous calls not handed out */
    uint32_t n_midway, n_behind;
    uint32_t n_inserts; /* asynchronous ones that are not finished */
    uint64_t next_order;
    struct call_list free, pending, stalled, done, handed;

    struct leases leases;
    struct space_uses spaces;
    uint32_t *scratch; /* peek: ids of a path */
    uint32_t scratch_ids;
};

/* ---- channel.c ---------------------------------------------------------------- */

bool channel_room(struct pfx *c); /* for one record */
void channel_post(struct pfx *c, const struct request *rq);
void channel_take(struct pfx *c); /* all completions that are there */
/* Spin, then sleep, until something may have come. False: the time is over. */
bool channel_await(struct pfx *c, uint64_t until);
void channel_look(struct pfx *c); /* is the daemon alive? Asked about once a millisecond */
/* Has it hung up, or does it within that time? */
bool channel_ends(struct pfx *c, int ms);
void channel_die(struct pfx *c);
void channel_drain(struct pfx *c); /* wake-ups */
/* Control goes back to the caller: arm the wake-up, if pfx_fd was asked for. */
void channel_leave(struct pfx *c);

/* ---- request.c, lookup.c, insert.c: check arguments, make the call -------------- */

int ask_simple(struct pfx *c, enum opcode op, struct call **out);
int ask_leased(struct pfx *c, enum opcode op, uint64_t lease, struct call **out);
int ask_space_open(struct pfx *c, const struct pfx_space_desc *desc, struct call **out);
int ask_space(struct pfx *c, enum opcode op, uint64_t space, struct call **out);
int ask_truncate(struct pfx *c, uint64_t lease, uint32_t n_blocks, struct call **out);
int ask_reserve(struct pfx *c, uint64_t lease, uint32_t n, struct call **out);
int ask_snapshot_reserve(struct pfx *c, uint64_t lease, struct call **out);
int ask_snapshot_insert(struct pfx *c, uint64_t lease, uint32_t slot, uint32_t depth, int kind,
                        struct call **out);
int ask_lookup(struct pfx *c, const struct pfx_lookup_args *args, struct call **out);
int ask_insert(struct pfx *c, uint64_t lease, const struct pfx_insert_args *args,
               struct call **out);

/* One piece of the query: whole blocks from token `at` of `total` on (and what is left at the
 * end), then the extras that touch them, in the request arena. STEP_DONE: it can never fit. */
struct piece {
    uint32_t arena, tokens, n_extras;
    bool last;
};
enum step piece_build(struct pfx *c, struct call *call, uint32_t at, uint32_t total,
                      struct piece *piece);

/* No block from token `from` on has more extras than a piece holds. */
bool pieces_fit(const struct pfx *c, const struct index_query *q, uint64_t from);

/* Ask where a lease holds; the answer's place goes to take_place. */
void build_where(struct call *call, uint64_t lease);
void take_place(struct lease *l, struct place where);

enum step lookup_build(struct pfx *c, struct call *call);
enum step lookup_take(struct pfx *c, struct call *call, const struct wire_completion *answer);
enum step fetch_build(struct pfx *c, struct call *call);
enum step fetch_take(struct pfx *c, struct call *call, const struct wire_completion *answer);
enum step insert_build(struct pfx *c, struct call *call);
enum step insert_take(struct pfx *c, struct call *call, const struct wire_completion *answer);

/* Longest useful match and the common multiple, both in tokens. */
uint32_t lookup_longest(const struct pfx_lookup_args *args);
uint32_t lookup_multiple(const struct pfx *c, uint32_t match_multiple);

/* ---- check.c: 0, or PFX_EINVAL and a sentence in pfx.why -------------------------- */

/* What a status means for this call, where that says more than the status's own sentence; else
 * NULL. */
const char *call_why(const struct pfx *c, uint32_t op, int status);

/* Remember why a call of this connection failed: NULL stands for the status's own sentence. */
int fail(struct pfx *c, int status, const char *why);
/* The same for a call on a space: PFX_ENOENT names it. */
int fail_space(struct pfx *c, int status, uint64_t space);

int check_here(const struct pfx *c);
int check_in(struct pfx *c, const void *in, size_t known);
int check_out(struct pfx *c, const void *out, size_t known);
int check_lookup(struct pfx *c, const struct pfx_lookup_args *args);
int check_insert(struct pfx *c, const struct pfx_insert_args *args);
int check_space(struct pfx *c, const struct pfx_space_desc *desc);
int check_slot(struct pfx *c, uint32_t slot);

/* Extras of the public header, as they travel: the same bytes. */
static inline const struct wire_extra *wire_extras(const struct pfx_extra *extras)
{
    return (const struct wire_extra *)(const void *)extras;
}

static inline uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

#endif
