/*
 * The operations of a random run. A connection asks, and goes on in its own time: so jobs of
 * several overlap, on the leases of mates too. Sometimes all wait for one, and then its answer is
 * looked at more closely.
 */
#include "tests/model/disk_run.h"
#include "daemon/disk_private.h"
#include "shm/status.h"

#include <string.h>

enum { SPACES_OF_DAEMON = 8 /* local.c */ };

/* ---- asking ------------------------------------------------------------------------------ */

/* Is nobody else doing anything? */
bool run_alone(const struct disk_run *r, int conn)
{
    for (int c = 0; c < RUN_CONNS; c++)
        if (c != conn && r->conn[c].used && r->conn[c].busy)
            return false;
    return !r->x->d.n_flushing;
}

void run_begin(struct disk_run *r, int conn, const struct request *rq)
{
    struct run_conn *c = &r->conn[conn];
    struct wire_completion out;
    c->op = rq->op;
    c->turns = 0;
    c->busy = true;
    memset(c->flushed, 0, sizeof c->flushed);
    bool done = local_begin(r->x, conn, rq, &out);
    if (!done && (rq->op == OP_LOOKUP || rq->op == OP_LOOKUP_SLOW)) {
        /* the lease is there, and known to nobody else */
        c->lease_id = r->x->session[conn]->job.lease;
        r->lease[c->lease].id = c->lease_id;
        r->lease[c->lease].used = r->lease[c->lease].secret = true;
        run_look_for_matches(r, conn);
    }
    run_look_for_flushes(r, conn);
    if (done)
        run_answered(r, conn, &out);
    check_step(r);
}

/* Now, or while others do what they do. */
void run_ask(struct disk_run *r, int conn, const struct request *rq)
{
    struct run_conn *c = &r->conn[conn];
    run_begin(r, conn, rq);
    c->quiet = c->quiet && c->busy;
    bool wait = c->quiet || one_in(r, 2);
    for (int turns = 0; wait && c->used && c->busy; turns++) {
        REQUIRE(turns < 4 * TURNS_MOST);
        run_turn(r);
    }
}

/* ---- evict, flush, spaces ------------------------------------------------------------------ */

static void do_evict(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    c->wanted = one_in(r, 6) ? r->shape.n_blocks : dice(r, 8);
    c->quiet = one_in(r, 2) && run_alone(r, conn);
    c->fits = c->wanted <= index_idle(r->x->d.index);
    run_ask(r, conn, &(struct request){.op = OP_EVICT, .number = {.n = c->wanted}});
}

static void evict_answered(const struct run_conn *c, const struct wire_completion *out)
{
    REQUIRE_EQ(out->status, 0);
    REQUIRE(out->number.n <= c->wanted && out->number.more <= out->number.n);
    REQUIRE(!c->quiet || !c->fits || out->number.n == c->wanted);
}

/* The slot of a space, live or asleep; -1: the daemon has not heard of it, or not any more. */
static int slot_of(const struct disk_run *r, int space)
{
    struct space_key want = run_space_key(space);
    for (uint32_t slot = 0; slot < spaces_top(r->x->d.spaces); slot++) {
        struct space_key key = spaces_key(r->x->d.spaces, slot);
        if (key.adapter_id == want.adapter_id &&
            key.adapter_generation == want.adapter_generation &&
            key.tenant_len == want.tenant_len &&
            memcmp(key.tenant, want.tenant, want.tenant_len) == 0)
            return (int)slot;
    }
    return -1;
}

static void new_life(struct disk_run *r, int space, struct run_conn *c)
{
    r->lives[space].first = ++r->lives[space].last;
    c->flushed[space] = r->lives[space].last;
}

void run_look_for_flushes(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    for (int s = 0; c->op == OP_FLUSH && s < RUN_SPACES; s++) {
        int slot = slot_of(r, s);
        uint64_t now = slot < 0 ? 0 : spaces_flushes(r->x->d.spaces, (uint32_t)slot);
        if (now > r->flushes[s])
            new_life(r, s, c);
        r->flushes[s] = now;
    }
}

/* Of all spaces: those with nothing cached begin their new life at once. */
static void flush(struct disk_run *r, int conn, int space)
{
    struct run_conn *c = &r->conn[conn];
    c->op = OP_NOP;
    c->quiet = false;
    struct request rq = {.op = OP_FLUSH, .space = {.space = PFX_ALL_SPACES}};
    if (space >= 0)
        rq.space.space = r->number[space];
    run_begin(r, conn, &rq);
    for (int s = 0; space < 0 && c->busy && s < RUN_SPACES; s++) {
        int slot = slot_of(r, s);
        if (!c->flushed[s] &&
            (slot < 0 || spaces_find(r->x->d.spaces,
                                     spaces_number(r->x->d.spaces, (uint32_t)slot)) == UINT32_MAX))
            new_life(r, s, c);
    }
}

static void do_flush(struct disk_run *r, int conn)
{
    int space = one_in(r, 3) ? -1 : (int)dice(r, r->shape.n_spaces);
    if (r->shape.no_flush || !one_in(r, 2) || (space > 0 && !r->conn[conn].opens[space]))
        return;
    flush(r, conn, space);
}

static void flush_answered(struct disk_run *r, const struct run_conn *c,
                           const struct wire_completion *out)
{
    REQUIRE(out->status == 0 || out->status == STATUS_EIO);
    REQUIRE(out->status == 0 || trial_counts(r->disk, STORE_BLOCKS).faults);
    for (int s = 0; out->status == 0 && s < RUN_SPACES; s++)
        if (c->flushed[s] > r->durable[s])
            r->durable[s] = c->flushed[s];
}

static void do_space(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    int s = 1 + (int)dice(r, r->shape.n_spaces - 1);
    if (!c->opens[s] || !one_in(r, 4)) {
        struct space_key key = run_space_key(s);
        struct pfx_space_desc desc = {.size = sizeof desc,
                                      .tenant = key.tenant,
                                      .tenant_len = key.tenant_len,
                                      .adapter_id = key.adapter_id,
                                      .adapter_generation = key.adapter_generation};
        pfx_space number;
        int status = r->b.space_open(r->x, conn, &desc, &number);
        if (status) {
            REQUIRE_EQ(status, STATUS_ENOSPC);
            REQUIRE(spaces_live(r->x->d.spaces) == SPACES_OF_DAEMON);
            return;
        }
        r->number[s] = number;
        c->opens[s]++;
        int slot = slot_of(r, s); /* it may be new in its slot */
        r->flushes[s] = spaces_flushes(r->x->d.spaces, (uint32_t)slot);
    } else {
        c->opens[s]--;
        REQUIRE_EQ(r->b.space_close(r->x, conn, r->number[s]), 0);
    }
    check_step(r);
}

/* ---- all --------------------------------------------------------------------------------- */

void run_answered(struct disk_run *r, int conn, const struct wire_completion *out)
{
    struct run_conn *c = &r->conn[conn];
    REQUIRE_EQ(out->op, c->op);
    c->busy = false;
    switch (c->op) {
    case OP_LOOKUP:
    case OP_LOOKUP_SLOW:
        lookup_answered(r, c, out);
        break;
    case OP_FETCH:
        fetch_answered(r, c, out);
        break;
    case OP_RESERVE:
        reserve_answered(r, c, conn, out);
        break;
    case OP_EVICT:
        evict_answered(c, out);
        break;
    case OP_FLUSH:
        flush_answered(r, c, out);
        break;
    case OP_SNAPSHOT_RESERVE:
    case OP_SNAPSHOT_SPILL:
        state_answered(r, c, out);
        break;
    default:
        ck_abort_msg("opcode %u is nobody's", c->op);
    }
    c->lease = -1;
}

static void do_connection(struct disk_run *r, int conn)
{
    int other = (int)dice(r, RUN_CONNS);
    if (!r->conn[other].used)
        run_attach(r, other);
    else if (other != conn && one_in(r, 3))
        run_detach(r, other, one_in(r, 2));
    check_step(r);
}

/* Of a conversation: the lookup, what is missing, and what is new. */
static void do_turn(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    do_lookup(r, conn);
    for (int turns = 0; c->used && c->busy && turns < 40; turns++)
        run_turn(r);
    if (c->used && !c->busy)
        do_reserve(r, conn);
    for (int turns = 0; c->used && c->busy && turns < 40; turns++)
        run_turn(r);
    if (c->used && !c->busy)
        do_insert(r, conn);
    if (c->used && !c->busy && one_in(r, 2))
        do_state(r, conn);
    if (c->used && !c->busy && !one_in(r, 3))
        do_release(r, conn);
}

/* Where nothing may be lost there must be room: begin anew before it is used up. */
static void make_room(struct disk_run *r, int conn)
{
    if (!r->shape.whole || r->x->d.published.disk_used < r->shape.n_disk / 2)
        return;
    if (!r->shape.no_flush)
        flush(r, conn, -1);
}

static int idle_conn(struct disk_run *r)
{
    for (int turns = 0;; turns++) {
        int c = (int)dice(r, RUN_CONNS);
        if (r->conn[c].used && !r->conn[c].busy)
            return c;
        if (one_in(r, 4))
            run_turn(r);
        REQUIRE(turns < 20 * TURNS_MOST);
    }
}

static const struct {
    void (*act)(struct disk_run *r, int conn);
    uint32_t weight;
} kinds[] = {
    {do_turn, 30},  {do_lookup, 14},    {do_fetch, 8},    {do_reserve, 8},
    {do_insert, 8}, {do_release, 16},   {do_truncate, 4}, {do_evict, 5},
    {do_space, 4},  {do_connection, 2}, {do_flush, 1},    {do_state, 20},
};

void run_operation(struct disk_run *r)
{
    uint32_t total = 0, k = 0;
    int conn = idle_conn(r);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        total += kinds[i].weight;
    uint32_t at = dice(r, total);
    while (at >= kinds[k].weight)
        at -= kinds[k++].weight;
    r->operations++;
    make_room(r, conn);
    if (!r->conn[conn].busy && run_scanning(r) && one_in(r, 4))
        do_flush(r, conn);
    if (!r->conn[conn].busy)
        kinds[k].act(r, conn);
    while (one_in(r, 2))
        run_turn(r);
}
