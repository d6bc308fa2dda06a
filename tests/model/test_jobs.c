/*
 * Jobs that overlap: while a reserve waits for a spill, a lookup or pfx_fetch for a state to come
 * back, a spill for its tier, other connections do all that they like, on the same leases too, and
 * die. What comes out depends on who is first, so there is no model of it; but always
 *
 *   - the daemon's audit is clean, and its counters reconcile
 *   - what a lease is offered has the bytes of its prefix, of this life of the space and of nobody
 *     else's tail, and keeps them until it lets go; what it has reserved, nobody else touches
 *   - every job comes to an end, and at the end no slot and no blob is lost
 */
#include "daemon/snapshot_private.h"
#include "shm/status.h"
#include "tests/model/local.h"
#include "tests/model/run.h"

#include <string.h>

enum { JOB_CONNS = 5, JOB_LEASES = 9, TURNS_MOST = 2000 };

struct job_lease {
    bool used;
    uint64_t id;
    int group, opener; /* -1: it has died */
    uint64_t session, life;
    struct key query;
    uint32_t matched, table;       /* blocks */
    uint32_t known;                /* tokens that it may save at */
    struct pfx_snapshot_ref offer; /* the resident one is held */
    uint32_t n_slots, slot[MODEL_SLOTS];
};

struct job_conn {
    bool used;
    int group;
    bool busy;
    unsigned turns;
    uint16_t op;
    uint64_t lease_id;      /* FETCH, SNAPSHOT_RESERVE */
    struct job_lease asked; /* LOOKUP: the lease that it will be */
};

struct jobs {
    struct local *x;
    struct backend b;
    struct model_config config;
    struct rng rng;
    struct job_lease lease[JOB_LEASES];
    struct job_conn conn[JOB_CONNS];
    struct key recent[6];
    uint64_t keys[8]; /* of the tier, seen lately */
    unsigned waited;  /* jobs that were not done at once */
};

static uint32_t dice_of(struct jobs *j, uint32_t n)
{
    return rng_below(&j->rng, n);
}

static enum fate random_fate(void *arg, bool put)
{
    struct jobs *j = arg;
    if (dice_of(j, put ? 6 : 4))
        return FATE_DONE;
    return put ? (dice_of(j, 2) ? FATE_REFUSED : FATE_ERROR) : (enum fate)(1 + dice_of(j, 3));
}

static uint64_t life_now(const struct jobs *j)
{
    return spaces_flushes(j->x->d.spaces, 0);
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static void bytes_of(const struct job_lease *l, uint32_t depth, bool tail, uint8_t *bytes)
{
    struct key prefix = key_cut(&l->query, depth);
    state_bytes((uint32_t)l->life, &prefix, tail ? l->session : 0, bytes);
}

static void offer_is_whole(struct jobs *j, const struct job_lease *l)
{
    uint8_t bytes[STATE_BYTES];
    if (l->offer.depth == 0)
        return;
    bytes_of(l, l->offer.depth, l->offer.is_tail, bytes);
    REQUIRE_MSG(memcmp(j->x->slots[l->offer.slot], bytes, STATE_BYTES) == 0,
                "slot %u has not the state after %u tokens", l->offer.slot, l->offer.depth);
}

static uint8_t mark_of(const struct job_lease *l, uint32_t slot)
{
    return (uint8_t)(l->id * 31 + slot * 7 + 1);
}

static void slots_are_whole(struct jobs *j, const struct job_lease *l)
{
    for (uint32_t i = 0; i < l->n_slots; i++)
        for (int b = 0; b < STATE_BYTES; b++)
            REQUIRE_MSG(j->x->slots[l->slot[i]][b] == mark_of(l, l->slot[i]),
                        "slot %u changed while it was private", l->slot[i]);
}

static void all_is_whole(struct jobs *j)
{
    for (int i = 0; i < JOB_LEASES; i++)
        if (j->lease[i].used) {
            offer_is_whole(j, &j->lease[i]);
            slots_are_whole(j, &j->lease[i]);
        }
}

/* No lease has it, to fill or to restore from. */
static void slot_is_nobodys(struct jobs *j, uint32_t slot)
{
    REQUIRE(slot >= 1 && slot <= j->config.n_slots);
    for (int i = 0; i < JOB_LEASES; i++) {
        const struct job_lease *l = &j->lease[i];
        REQUIRE(!l->used || l->offer.depth == 0 || l->offer.slot != slot);
        for (uint32_t k = 0; l->used && k < l->n_slots; k++)
            REQUIRE(l->slot[k] != slot);
    }
}

/* ---- what is always true ------------------------------------------------------------------- */

static void always(struct jobs *j)
{
    struct counters c;
    daemon_publish(&j->x->d);
    REQUIRE(stats_copy(&j->x->d.header->stats, &c));
    REQUIRE_EQ(c.snapshots_tiered, c.snapshot_spills - c.snapshot_fetches - c.snapshot_forgotten -
                                       c.tier_resaved - c.tier_swept - c.tier_dropped);
    uint32_t mine = 0;
    for (int i = 0; i < JOB_LEASES; i++)
        mine += j->lease[i].used ? j->lease[i].n_slots : 0;
    REQUIRE(c.slots_private >= mine && c.slots_free + c.slots_private <= j->config.n_slots);
    local_audit(j->x);
    all_is_whole(j);
}

/* PFX_ENOSPC says that nothing could go. */
static void nothing_can_go(const struct jobs *j)
{
    const struct snapshots *sn = j->x->d.snapshots;
    REQUIRE_EQ(slots_free(sn), 0);
    for (uint32_t id = 1; id <= sn->entry_top; id++) {
        const struct entry *e = &sn->entry[id];
        REQUIRE(!e->used || !e->session || e->state != SNAPSHOT_RESIDENT || e->holds);
    }
}

/* ---- leases ------------------------------------------------------------------------------------
 */

static struct job_lease *some_of(struct jobs *j, int conn)
{
    struct job_lease *pick[JOB_LEASES];
    uint32_t n = 0;
    for (int i = 0; i < JOB_LEASES; i++)
        if (j->lease[i].used && j->lease[i].group == j->conn[conn].group)
            pick[n++] = &j->lease[i];
    return n ? pick[dice_of(j, n)] : NULL;
}

/* Preferably one with a slot to fill. */
static struct job_lease *some_with_slot(struct jobs *j, int conn)
{
    struct job_lease *l = some_of(j, conn);
    for (int tries = 0; l && !l->n_slots && tries < 4; tries++)
        l = some_of(j, conn);
    return l && l->n_slots ? l : NULL;
}

static struct job_lease *by_id(struct jobs *j, uint64_t id)
{
    for (int i = 0; i < JOB_LEASES; i++)
        if (j->lease[i].used && j->lease[i].id == id)
            return &j->lease[i];
    return NULL;
}

static struct job_lease *unused(struct jobs *j)
{
    for (int i = 0; i < JOB_LEASES; i++)
        if (!j->lease[i].used)
            return &j->lease[i];
    return NULL;
}

static struct key some_key(struct jobs *j)
{
    struct key *old = &j->recent[dice_of(j, 6)];
    struct key k = key_cut(old, dice_of(j, old->n + 1));
    for (uint32_t n = 1 + dice_of(j, 3 * j->config.block_tokens); n && k.n < KEY_MAX / 2; n--)
        k.token[k.n++] = dice_of(j, 2);
    j->recent[dice_of(j, 6)] = k;
    return k;
}

/* ---- calls that may wait ----------------------------------------------------------------------
 */

static void take_offer(struct jobs *j, struct job_lease *l, const struct completion_lookup *got)
{
    l->offer = (struct pfx_snapshot_ref){.slot = got->slot,
                                         .depth = got->snapshot_depth,
                                         .tier_key = got->tier_key,
                                         .tier_depth = got->tier_depth,
                                         .is_tail = got->is_tail};
    REQUIRE((got->tier_key != 0) == (got->tier_depth != 0));
    REQUIRE((got->slot != PFX_NO_SLOT) == (got->snapshot_depth != 0));
    REQUIRE(got->snapshot_depth <= l->query.n && got->tier_depth <= l->query.n);
    if (got->tier_key)
        j->keys[dice_of(j, 8)] = got->tier_key;
    offer_is_whole(j, l);
}

static void end_lookup(struct jobs *j, struct job_conn *c, const struct wire_completion *got)
{
    REQUIRE(got->status == 0 || got->status == PFX_ENOSPC);
    struct job_lease *l = unused(j);
    REQUIRE(l != NULL); /* one was kept for each that is under way */
    if (got->status)
        return;
    *l = c->asked;
    l->used = true;
    l->id = got->lease;
    l->matched = l->table = got->lookup.where.depth;
    uint32_t known = l->matched * j->config.block_tokens + got->lookup.tail_tokens;
    REQUIRE(got->lookup.snapshot_depth <= known && got->lookup.tier_depth <= known);
    l->known = known;
    take_offer(j, l, &got->lookup);
}

static void end_fetch(struct jobs *j, struct job_conn *c, const struct wire_completion *got)
{
    struct job_lease *l = by_id(j, c->lease_id);
    int status = got->status;
    REQUIRE(status == 0 || status == PFX_ENOSPC || status == PFX_EIO || status == PFX_ESTALE);
    if (!l) {
        REQUIRE_EQ(status, PFX_ESTALE);
        return;
    }
    if (status == PFX_EIO)
        REQUIRE(got->lookup.tier_depth == 0);
    if (status == 0)
        REQUIRE(got->lookup.tier_depth <= got->lookup.snapshot_depth);
    if (status == 0 || status == PFX_EIO)
        take_offer(j, l, &got->lookup);
}

static void end_slot(struct jobs *j, struct job_conn *c, const struct wire_completion *got)
{
    struct job_lease *l = by_id(j, c->lease_id);
    REQUIRE(got->status == 0 || got->status == PFX_ENOSPC || got->status == PFX_ESTALE);
    if (got->status == PFX_ENOSPC)
        nothing_can_go(j);
    if (got->status)
        return;
    REQUIRE(l != NULL);
    slot_is_nobodys(j, got->number.slot);
    l->slot[l->n_slots++] = got->number.slot;
    memset(j->x->slots[got->number.slot], mark_of(l, got->number.slot), STATE_BYTES);
}

static void end_spill(struct jobs *j, struct job_conn *c, const struct wire_completion *got)
{
    (void)c;
    REQUIRE(got->status == 0 || got->status == PFX_ENOENT);
    if (got->status)
        return;
    REQUIRE(got->number.depth > 0);
    REQUIRE((got->number.n != 0) == !got->number.dropped);
    if (got->number.n)
        j->keys[dice_of(j, 8)] = got->number.n;
}

static void over(struct jobs *j, struct job_conn *c, const struct wire_completion *got)
{
    c->busy = false;
    switch (c->op) {
    case OP_LOOKUP:
        end_lookup(j, c, got);
        break;
    case OP_FETCH:
        end_fetch(j, c, got);
        break;
    case OP_SNAPSHOT_RESERVE:
        end_slot(j, c, got);
        break;
    default:
        end_spill(j, c, got);
    }
}

static void begin(struct jobs *j, int conn, const struct request *rq)
{
    struct job_conn *c = &j->conn[conn];
    struct wire_completion got;
    c->op = rq->op;
    c->busy = true;
    c->turns = 0;
    if (local_begin(j->x, conn, rq, &got))
        over(j, c, &got);
    else
        j->waited++;
}

static void go_on(struct jobs *j, int conn)
{
    struct job_conn *c = &j->conn[conn];
    struct wire_completion got;
    REQUIRE_MSG(c->turns++ < TURNS_MOST, "opcode %u comes to no end", c->op);
    if (local_go_on(j->x, conn, &got))
        over(j, c, &got);
}

static void ask_lookup(struct jobs *j, int conn)
{
    uint32_t open = 0;
    for (int i = 0; i < JOB_LEASES; i++)
        open += j->lease[i].used;
    if (open + JOB_CONNS >= JOB_LEASES)
        return;
    struct job_conn *c = &j->conn[conn];
    c->asked = (struct job_lease){.group = c->group,
                                  .opener = conn,
                                  .session = dice_of(j, 3),
                                  .life = life_now(j),
                                  .query = some_key(j)};
    struct key *k = &c->asked.query;
    struct pfx_lookup_args args = {.tokens = k->token,
                                   .n_tokens = k->n,
                                   .max_match = k->n,
                                   .session = c->asked.session,
                                   .flags = dice_of(j, 3) ? PFX_FETCH : 0};
    struct index_query q = local_query(&args);
    struct index_found found;
    REQUIRE(index_walk(index_view_of(j->x->d.index), 0, &q, k->n / j->config.block_tokens, &found));
    REQUIRE(!found.ask);
    struct request rq = local_lookup_request(j->x, conn, &args, &found);
    begin(j, conn, &rq);
}

static void ask_leased(struct jobs *j, int conn, uint16_t op)
{
    const struct job_lease *l = some_of(j, conn);
    if (!l || (op == OP_SNAPSHOT_RESERVE && l->n_slots > 0))
        return;
    j->conn[conn].lease_id = l->id;
    begin(j, conn, &(struct request){.op = op, .lease = l->id});
}

static void ask_fetch(struct jobs *j, int conn)
{
    ask_leased(j, conn, OP_FETCH);
}

static void ask_slot(struct jobs *j, int conn)
{
    ask_leased(j, conn, OP_SNAPSHOT_RESERVE);
}

static void ask_spill(struct jobs *j, int conn)
{
    begin(j, conn, &(struct request){.op = OP_SNAPSHOT_SPILL, .number = {.n = dice_of(j, 6)}});
}

/* ---- calls that are done at once --------------------------------------------------------------
 */

/* A slot of its lease is filled and saved. */
static void save_state(struct jobs *j, int conn)
{
    struct job_lease *l = some_with_slot(j, conn);
    if (!l)
        return;
    slots_are_whole(j, l);
    uint32_t slot = l->slot[l->n_slots - 1];
    uint32_t depth = 1 + dice_of(j, l->known && dice_of(j, 8) ? l->known : l->query.n);
    int kind = l->session ? (int)dice_of(j, 3) : PFX_EXACT;
    bytes_of(l, depth, kind == PFX_TAIL, j->x->slots[slot]);
    int status = local_snapshot_insert(j->x, conn, l->id, slot, depth, kind);
    if (l->life != life_now(j))
        REQUIRE_EQ(status, PFX_ESTALE);
    else
        REQUIRE(status == 0 || status == PFX_ECONFLICT);
    if (status)
        memset(j->x->slots[slot], mark_of(l, slot), STATE_BYTES);
    else
        l->n_slots--;
}

static void cancel_slot(struct jobs *j, int conn)
{
    struct job_lease *l = some_with_slot(j, conn);
    if (!l)
        return;
    int status = local_snapshot_cancel(j->x, conn, l->id, l->slot[l->n_slots - 1]);
    REQUIRE_EQ(status, l->life == life_now(j) ? 0 : PFX_ESTALE);
    l->n_slots -= status == 0;
}

static void let_go(struct jobs *j, int conn)
{
    struct job_lease *l = some_of(j, conn);
    if (!l)
        return;
    int status = local_snapshot_drop(j->x, conn, l->id);
    REQUIRE_EQ(status, l->life == life_now(j) ? 0 : PFX_ESTALE);
    if (status == 0)
        l->offer = (struct pfx_snapshot_ref){0};
}

static void write_blocks(struct jobs *j, int conn)
{
    struct job_lease *l = some_of(j, conn);
    uint32_t blocks[KEY_MAX], ids[KEY_MAX];
    if (!l || l->life != life_now(j))
        return;
    uint32_t want = (l->query.n + j->config.block_tokens - 1) / j->config.block_tokens;
    if (l->table < want && j->b.reserve(j->x, conn, l->id, want - l->table, blocks) == 0)
        l->table = want;
    struct pfx_insert_args args = {.tokens = l->query.token,
                                   .n_written = 1 + dice_of(j, l->query.n)};
    struct pfx_insert_result got;
    REQUIRE_EQ(j->b.insert(j->x, conn, l->id, &args, ids, &got), 0);
    l->known = (uint32_t)args.n_written;
}

static void cut_lease(struct jobs *j, int conn)
{
    struct job_lease *l = some_of(j, conn);
    if (!l)
        return;
    uint32_t n = dice_of(j, l->table + 1);
    if (j->b.truncate(j->x, conn, l->id, n) || n == l->table)
        return;
    l->table = n;
    l->known = n * j->config.block_tokens;
    if (l->offer.depth > n * j->config.block_tokens)
        l->offer = (struct pfx_snapshot_ref){0};
}

static void release_lease(struct jobs *j, int conn)
{
    struct job_lease *l = some_of(j, conn);
    if (!l)
        return;
    offer_is_whole(j, l);
    slots_are_whole(j, l);
    REQUIRE_EQ(j->b.release(j->x, conn, l->id), 0);
    l->used = false;
}

static void evict_blocks(struct jobs *j, int conn)
{
    struct pfx_evicted e;
    REQUIRE_EQ(j->b.evict(j->x, conn, dice_of(j, 4), &e), 0);
}

static void evict_state(struct jobs *j, int conn)
{
    int status = local_snapshot_evict(j->x, conn);
    REQUIRE(status == 0 || status == PFX_ENOENT);
}

static void forget(struct jobs *j, int conn)
{
    uint64_t key = j->keys[dice_of(j, 8)];
    int status = local_snapshot_forget(j->x, conn, key);
    REQUIRE(status == PFX_ENOENT || (status == 0 && key));
    if (status == 0)
        REQUIRE_EQ(local_snapshot_forget(j->x, conn, key), PFX_ENOENT);
}

static void flush(struct jobs *j, int conn)
{
    if (dice_of(j, 16) == 0)
        REQUIRE_EQ(j->b.flush(j->x, conn, 0), 0);
}

/* ---- connections ------------------------------------------------------------------------------
 */

static const char *const groups[JOB_CONNS] = {"g", "g", "g", "h", NULL};

static void come(struct jobs *j, int conn)
{
    static const int number[JOB_CONNS] = {0, 0, 0, 1, 2};
    local_attach(j->x, conn, groups[conn]);
    j->conn[conn] = (struct job_conn){.used = true, .group = number[conn]};
}

/* In the middle of whatever it does. */
static void leave(struct jobs *j, int conn, bool clean)
{
    int group = j->conn[conn].group;
    bool mates = false;
    j->conn[conn].used = j->conn[conn].busy = false;
    for (int c = 0; c < JOB_CONNS; c++)
        mates |= j->conn[c].used && j->conn[c].group == group;
    local_detach(j->x, conn, clean);
    for (int i = 0; i < JOB_LEASES; i++) {
        struct job_lease *l = &j->lease[i];
        if (!l->used || l->group != group)
            continue;
        if (!mates || (clean && l->opener == conn))
            l->used = false;
        else if (l->opener == conn)
            l->opener = -1;
    }
}

/* Once nobody is left of a group, what its dead members held goes too: also the lease of a lookup
 * that was under way, which nobody knows. */
static void leave_all(struct jobs *j)
{
    for (int c = 0; c < JOB_CONNS; c++)
        if (j->conn[c].used)
            leave(j, c, dice_of(j, 2));
}

/* ---- the run ------------------------------------------------------------------------------- */

static const struct {
    void (*act)(struct jobs *j, int conn);
    uint32_t weight;
} acts[] = {
    {ask_lookup, 50},  {ask_fetch, 16},  {ask_slot, 40},     {ask_spill, 6}, {save_state, 60},
    {cancel_slot, 3},  {let_go, 40},     {write_blocks, 30}, {cut_lease, 4}, {release_lease, 30},
    {evict_blocks, 3}, {evict_state, 1}, {forget, 2},        {flush, 1},
};

static void act(struct jobs *j, int conn)
{
    uint32_t total = 0, n = 0;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        total += acts[i].weight;
    uint32_t at = dice_of(j, total);
    while (at >= acts[n].weight)
        at -= acts[n++].weight;
    acts[n].act(j, conn);
}

static void step(struct jobs *j)
{
    int conn = (int)dice_of(j, JOB_CONNS);
    if (dice_of(j, 3) == 0)
        dispatch_background(&j->x->d);
    if (!j->conn[conn].used)
        come(j, conn);
    else if (dice_of(j, 400) == 0)
        leave_all(j);
    else if (dice_of(j, 60) == 0)
        leave(j, conn, dice_of(j, 2));
    else if (j->conn[conn].busy)
        go_on(j, conn);
    else
        act(j, conn);
    always(j);
}

/* All go; what is under way ends; nothing is lost. */
static void the_end(struct jobs *j)
{
    const struct snapshots *sn = j->x->d.snapshots;
    leave_all(j);
    for (int i = 0; i < 1000 && j->x->tier && trial_transfers(j->x->tier); i++)
        dispatch_background(&j->x->d);
    always(j);
    REQUIRE_EQ(slots_private(sn), 0);
    REQUIRE_EQ(slots_free(sn) + snapshots_resident(sn), j->config.n_slots);
    if (j->x->tier) {
        REQUIRE_EQ(trial_transfers(j->x->tier), 0);
        REQUIRE_EQ(trial_blobs(j->x->tier), snapshots_tiered(sn));
    }
    come(j, 0);
    REQUIRE_EQ(j->b.flush(j->x, 0, 0), 0);
    leave(j, 0, true);
    always(j);
    REQUIRE_EQ(slots_free(sn), j->config.n_slots);
    REQUIRE_EQ(snapshots_tiered(sn), 0);
    if (j->x->tier)
        REQUIRE_EQ(trial_blobs(j->x->tier), 0);
}

static const struct model_config shapes[] = {
    {2, 40, 4, 2, 0, 0},
    {1, 30, 3, 8, 0, 0.5},
    {4, 24, 6, 16, 3, 0},
    {3, 40, 5, 0, 0, 0},
};

START_TEST(jobs_that_overlap)
{
    static struct jobs j;
    j = (struct jobs){.config = shapes[_i], .rng = rng_seeded("jobs")};
    j.x = local_new(&j.config, UINT64_MAX, rng_next(&j.rng), random_fate, &j);
    j.b = local_backend(j.x);
    for (int i = 0; i < 60000; i++)
        step(&j);
    the_end(&j);
    REQUIRE(j.waited > 100 || !j.config.n_tier);
    local_free(j.x);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("jobs");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, jobs_that_overlap, 0, sizeof shapes / sizeof shapes[0]);
    suite_add_tcase(s, t);
    return s;
}
