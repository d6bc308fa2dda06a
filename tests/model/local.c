#include "tests/model/local.h"
#include "daemon/group.h"
#include "shm/snapshot_read.h"
#include "shm/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- a daemon without sockets -------------------------------------------------------- */

static void make_index(struct local *x, const struct model_config *config,
                       const struct local_disk *disk, uint64_t hash_mask)
{
    struct daemon *d = &x->d;
    struct index_params p = {.block_tokens = config->block_tokens,
                             .n_blocks = config->n_blocks,
                             .n_disk = disk->n_blocks,
                             .max_spaces = 8,
                             .max_snapshots = config->n_slots + config->n_tier,
                             .hash_seed = rng_next(&x->rng),
                             .hash_mask = hash_mask};
    struct index_plan plan;
    REQUIRE(index_plan(&p, &plan));
    d->header = mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(d->header, MAP_FAILED);
    d->header->params = p;
    d->index_segment = (struct segment){.fd = -1, .base = d->header, .bytes = plan.bytes};
    REQUIRE(pool_init(&d->pool, config->n_blocks));
    d->index = index_new(&(struct index_config){
        .region = d->header, .pool = &d->pool, .policy = x->options.policy, .admit = disk->admit});
    REQUIRE(d->index != NULL);
    d->spaces = spaces_new(d->index);
    REQUIRE(d->spaces && leases_init(&d->leases, 256, config->n_slots));
}

void local_snapshots(struct local *x, const struct model_config *config, struct tier *tier,
                     uint64_t wait_ns)
{
    x->d.snapshots = snapshots_new(&(struct snapshots_config){.index = x->d.index,
                                                              .tier = tier,
                                                              .n_slots = config->n_slots,
                                                              .n_tier = config->n_tier,
                                                              .alpha = config->alpha,
                                                              .spill_min_tokens = config->spill_min,
                                                              .wait_ns = wait_ns,
                                                              .counters = &x->d.counters});
    REQUIRE(x->d.snapshots != NULL);
    x->d.n_slots = config->n_slots;
    x->d.n_tier = config->n_tier;
}

static void make_snapshots(struct local *x, const struct model_config *config,
                           enum fate (*fate)(void *arg, bool put), void *arg)
{
    const struct trial_config trial = {.rng = &x->rng,
                                       .slots = x->slots,
                                       .n_slots = config->n_slots,
                                       .n_blobs = config->n_tier,
                                       .fate = fate,
                                       .arg = arg};
    x->tier = config->n_tier ? trial_new(&trial) : NULL;
    local_snapshots(x, config, x->tier, 0);
}

struct local *local_new_on_disk(const struct model_config *config, const struct local_disk *disk,
                                uint64_t hash_mask, uint64_t seed)
{
    struct local *x = calloc(1, sizeof *x);
    REQUIRE(x != NULL);
    x->rng.state = seed;
    x->options = (struct options){.max_leases = 64,
                                  .max_workers = CONNS,
                                  .policy = policy_find("lru"),
                                  .alpha = config->alpha,
                                  .spill_min_tokens = config->spill_min};
    x->d.options = &x->options;
    list_init(&x->d.sessions);
    list_init(&x->d.groups);
    list_init(&x->d.ghosts);
    list_init(&x->d.confined);
    list_init(&x->d.visitors);
    x->d.scratch = malloc(PIECE_BYTES);
    x->d.layout.block_tokens = config->block_tokens;
    x->d.n_blocks = config->n_blocks;
    make_index(x, config, disk, hash_mask);
    x->d.carved = true;
    daemon_publish(&x->d);
    return x;
}

struct local *local_new(const struct model_config *config, uint64_t hash_mask, uint64_t seed,
                        enum fate (*fate)(void *arg, bool put), void *arg)
{
    struct local *x = local_new_on_disk(config, &(struct local_disk){0}, hash_mask, seed);
    if (config->n_slots)
        make_snapshots(x, config, fate, arg);
    daemon_publish(&x->d);
    return x;
}

void local_free(void *self)
{
    struct local *x = self;
    for (int c = 0; c < CONNS; c++)
        REQUIRE(x->session[c] == NULL);
    snapshots_free(x->d.snapshots); /* whose tier may be the disk's */
    disk_stop(x->d.disk);
    leases_deinit(&x->d.leases);
    spaces_free(x->d.spaces);
    index_free(x->d.index);
    pool_deinit(&x->d.pool);
    munmap(x->d.header, x->d.index_segment.bytes);
    free(x->d.scratch);
    free(x->d.orphans);
    free(x);
}

void local_attach(void *self, int conn, const char *group)
{
    struct local *x = self;
    struct session *s = calloc(1, sizeof *s);
    list_init(&s->link);
    list_init(&s->leases);
    s->number = ++x->d.next_session;
    s->fd = s->pidfd = -1;
    s->obituary = calloc(1, sizeof *s->obituary);
    s->request_arena = calloc(1, ARENA);
    s->completion_arena = calloc(1, ARENA);
    s->arena_bytes = ARENA;
    list_init(&s->waiting);
    s->group = group_join(&x->d, UID, group ? group : "");
    list_append(&x->d.sessions, &s->link);
    x->d.n_sessions++;
    x->session[conn] = s;
    daemon_publish(&x->d);
}

/* As session_end does, but for the sockets. */
void local_detach(void *self, int conn, bool clean)
{
    struct local *x = self;
    struct session *s = x->session[conn];
    dispatch_abandon(&x->d, s, &s->job);
    if (!clean)
        group_mourn(s);
    leases_session_end(&x->d, s, clean);
    spaces_session_end(&x->d, s);
    list_remove(&s->link);
    x->d.n_sessions--;
    group_leave(&x->d, s->group);
    free((void *)(uintptr_t)s->request_arena);
    free(s->completion_arena);
    free(s->obituary);
    free(s->opened);
    free(s);
    x->session[conn] = NULL;
    daemon_publish(&x->d);
}

static bool answered(struct local *x, bool done, const struct wire_completion *c, uint16_t op,
                     uint64_t cost)
{
    REQUIRE(cost > 0);
    if (done)
        REQUIRE_EQ(c->op, op);
    daemon_publish(&x->d);
    return done;
}

bool local_begin(struct local *x, int conn, const struct request *rq, struct wire_completion *c)
{
    uint64_t cost = 0;
    bool done = dispatch_request(&x->d, x->session[conn], rq, c, &cost) == ANSWERED;
    return answered(x, done, c, rq->op, cost);
}

bool local_go_on(struct local *x, int conn, struct wire_completion *c)
{
    uint64_t cost = 0;
    struct session *s = x->session[conn];
    uint16_t op = s->job.request.op;
    bool done = dispatch_continue(&x->d, s, &s->job, c, &cost) == ANSWERED;
    return answered(x, done, c, op, cost);
}

struct wire_completion local_call(struct local *x, int conn, const struct request *rq)
{
    enum { TURNS_MOST = 1000 };
    struct wire_completion c;
    bool done = local_begin(x, conn, rq, &c);
    for (int turns = 0; !done; turns++) {
        REQUIRE_MSG(turns < TURNS_MOST, "opcode %u comes to no end", rq->op);
        dispatch_background(&x->d);
        done = local_go_on(x, conn, &c);
    }
    return c;
}

uint8_t *local_arena(struct local *x, int conn)
{
    return (uint8_t *)(uintptr_t)x->session[conn]->request_arena;
}

/* A piece of tokens and the extras that touch it, as message.h says. */
static uint32_t write_piece(struct local *x, int conn, const struct index_query *q, uint64_t first,
                            uint64_t end)
{
    uint8_t *to = local_arena(x, conn);
    uint64_t bytes = (end - first) * 4;
    memcpy(to, q->tokens + first, bytes);
    to += (bytes + 7) & ~7ull;
    uint32_t n = 0;
    for (size_t i = 0; i < q->n_extras; i++)
        if (q->extras[i].at < end && q->extras[i].at + q->extras[i].len > first) {
            memcpy(to + n * sizeof q->extras[i], &q->extras[i], sizeof q->extras[i]);
            n++;
        }
    return n;
}

static struct index_query query_of(const uint32_t *tokens, size_t n, const struct pfx_extra *extras,
                                   size_t n_extras)
{
    static_assert(sizeof(struct pfx_extra) == sizeof(struct wire_extra), "the same on the wire");
    return (struct index_query){
        .tokens = tokens, .n_tokens = n, .extras = (const void *)extras, .n_extras = n_extras};
}

/* ---- lookups ------------------------------------------------------------------------------ */

static uint32_t multiple_of(uint32_t bt, uint32_t wanted)
{
    uint32_t m = bt;
    while (wanted && m % wanted)
        m += bt;
    return m;
}

static uint64_t limit_of(const struct pfx_lookup_args *a)
{
    uint64_t most = a->max_match ? a->max_match : a->n_tokens ? a->n_tokens - 1 : 0;
    return most < a->n_tokens ? most : a->n_tokens;
}

struct index_query local_query(const struct pfx_lookup_args *a)
{
    return query_of(a->tokens, a->n_tokens, a->extras, a->n_extras);
}

struct request local_lookup_request(struct local *x, int conn, const struct pfx_lookup_args *a,
                                    const struct index_found *found)
{
    uint64_t bt = x->d.header->params.block_tokens, most = limit_of(a);
    uint32_t step = multiple_of((uint32_t)bt, a->match_multiple) / (uint32_t)bt;
    struct index_query q = local_query(a);
    struct request rq = {.op = OP_LOOKUP, .flags = a->flags & (PFX_QUIET | PFX_FETCH)};
    rq.lookup = (struct request_lookup){.space = a->space,
                                        .session = a->session,
                                        .where = found->where,
                                        .snapshot_multiple = a->snapshot_multiple,
                                        .n_tokens = (uint32_t)a->n_tokens};
    uint32_t cut = found->where.depth / step * step;
    uint64_t matched = cut * bt, rest = most - matched < bt ? most - matched : bt;
    if (cut == found->where.depth && !(a->flags & PFX_NO_TAIL) && rest) {
        rq.lookup.rest = (uint16_t)index_tail_limit(&q, matched, (uint32_t)rest);
        memcpy(local_arena(x, conn), q.tokens + matched, rq.lookup.rest * 4u);
    }
    rq.lookup.where.depth = cut;
    return rq;
}

static struct wire_completion lookup_fast(struct local *x, int conn,
                                          const struct pfx_lookup_args *a,
                                          const struct index_found *found)
{
    struct request rq = local_lookup_request(x, conn, a, found);
    struct wire_completion c = local_call(x, conn, &rq);
    REQUIRE(c.status != ANSWER_RETRY); /* nobody else changes anything */
    return c;
}

/* Tokens [first, end) of a slow lookup; lease 0: the first of them. */
static struct request slow_piece(struct local *x, int conn, const struct pfx_lookup_args *a,
                                 uint64_t lease, uint64_t first, uint64_t end)
{
    uint32_t bt = x->d.header->params.block_tokens;
    struct index_query q = local_query(a);
    struct request rq = {.op = OP_LOOKUP_SLOW, .lease = lease};
    rq.flags =
        (uint16_t)((a->flags & (PFX_QUIET | PFX_FETCH)) | (end == a->n_tokens ? RF_LAST : 0) |
                   (a->flags & PFX_NO_TAIL ? RF_NO_TAIL : 0));
    rq.slow = (struct request_lookup_slow){
        .space = a->space,
        .session = a->session,
        .n_tokens = (uint32_t)a->n_tokens,
        .max_match = (uint32_t)limit_of(a),
        .multiple = multiple_of(bt, a->match_multiple),
        .snapshot_multiple = a->snapshot_multiple,
        .piece = (uint32_t)(end - first),
        .n_extras = write_piece(x, conn, &q, first, end),
    };
    return rq;
}

static struct wire_completion lookup_slow(struct local *x, int conn,
                                          const struct pfx_lookup_args *a)
{
    uint64_t bt = x->d.header->params.block_tokens, first = 0;
    struct wire_completion c = {0};
    do {
        uint64_t end = first + bt * (1 + rng_below(&x->rng, 8));
        end = end < a->n_tokens ? end : a->n_tokens;
        struct request rq =
            slow_piece(x, conn, a, c.status == ANSWER_MORE ? c.lease : 0, first, end);
        c = local_call(x, conn, &rq);
        first = end;
    } while (c.status == ANSWER_MORE);
    REQUIRE(c.status != ANSWER_RETRY);
    return c;
}

bool local_request(struct local *x, int conn, const struct pfx_lookup_args *a, struct request *rq)
{
    struct index_query q = local_query(a);
    struct index_found found;
    if (!index_walk(index_view_of(x->d.index), a->space, &q,
                    (uint32_t)(limit_of(a) / x->d.header->params.block_tokens), &found))
        return false;
    *rq = found.ask || rng_below(&x->rng, 2) ? slow_piece(x, conn, a, 0, 0, a->n_tokens)
                                             : local_lookup_request(x, conn, a, &found);
    return true;
}

/* ids of positions [0, n) of what the lease holds */
static void read_table(struct local *x, int conn, uint64_t lease, uint32_t n)
{
    struct request rq = {.op = OP_TABLE, .lease = lease, .table = {.count = n}};
    struct wire_completion c = local_call(x, conn, &rq);
    REQUIRE_EQ(c.status, 0);
    REQUIRE_EQ(c.table.n, n);
    memcpy(x->ids, x->session[conn]->completion_arena, n * 4u);
}

void local_match(struct local *x, int conn, const struct wire_completion *c, struct pfx_match *out)
{
    const struct completion_lookup *got = &c->lookup;
    uint32_t n = got->where.depth;
    read_table(x, conn, c->lease, n);
    *out = (struct pfx_match){.size = sizeof *out,
                              .matched_tokens = n * x->d.header->params.block_tokens,
                              .lease = c->lease,
                              .blocks = x->ids,
                              .n_blocks = n,
                              .n_resident = n,
                              .tail_block = got->tail_block,
                              .tail_tokens = got->tail_tokens,
                              .snapshot = {.slot = got->slot,
                                           .depth = got->snapshot_depth,
                                           .tier_key = got->tier_key,
                                           .tier_depth = got->tier_depth,
                                           .is_tail = got->is_tail}};
}

static int local_lookup(void *self, int conn, const struct pfx_lookup_args *a,
                        struct pfx_match *out)
{
    struct local *x = self;
    struct index_query q = local_query(a);
    struct wire_completion c;
    struct index_found found;
    if (a->n_tokens == 0 || a->flags & PFX_NO_MATCH) {
        struct request rq = {.op = OP_LOOKUP, .flags = RF_NO_MATCH};
        rq.lookup.space = a->space;
        rq.lookup.session = a->session;
        c = local_call(x, conn, &rq);
    } else if (rng_below(&x->rng, 2)) {
        c = lookup_slow(x, conn, a);
    } else if (!index_walk(index_view_of(x->d.index), a->space, &q,
                           (uint32_t)(limit_of(a) / x->d.header->params.block_tokens), &found)) {
        return PFX_ENOENT;
    } else {
        c = found.ask ? lookup_slow(x, conn, a) : lookup_fast(x, conn, a, &found);
    }
    if (c.status == 0)
        local_match(x, conn, &c, out);
    return c.status;
}

static ssize_t local_peek(void *self, int conn, const struct pfx_lookup_args *a,
                          struct pfx_peeked *out)
{
    struct local *x = self;
    const struct index_view *v = index_view_of(x->d.index);
    uint64_t bt = v->params.block_tokens, most = limit_of(a);
    struct index_query q = local_query(a);
    struct index_found found;
    if (!index_walk(v, a->space, &q, (uint32_t)(most / bt), &found))
        return PFX_ENOENT;
    uint32_t step = multiple_of((uint32_t)bt, a->match_multiple) / (uint32_t)bt;
    uint32_t cut = found.where.depth / step * step;
    uint64_t matched = cut * bt, rest = most - matched < bt ? most - matched : bt;
    *out = (struct pfx_peeked){.size = sizeof *out, .matched_tokens = (uint32_t)matched};
    if (cut == found.where.depth && !(a->flags & PFX_NO_TAIL) && rest)
        out->tail_tokens = index_tail_tokens(v, found.where, q.tokens + matched,
                                             index_tail_limit(&q, matched, (uint32_t)rest));
    struct snapshot_want want = {.session = a->session,
                                 .multiple = a->snapshot_multiple,
                                 .states = SNAPSHOT_RESIDENT | SNAPSHOT_TIERED,
                                 .rest = q.tokens + matched,
                                 .n_rest = out->tail_tokens};
    struct snapshots_found snapshots;
    found.where.depth = cut;
    REQUIRE(index_snapshots(v, found.where, &want, &snapshots));
    out->snapshot_depth = snapshots.resident.depth;
    out->snapshot_tier_depth = snapshots.tiered.depth;
    return found.ask ? PFX_EAGAIN : 0;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static int local_reserve(void *self, int conn, uint64_t lease, uint32_t n, uint32_t *blocks)
{
    struct local *x = self;
    struct request rq = {
        .op = OP_RESERVE, .lease = lease, .reserve = {.n = n, .room = n < 1024 ? n : 0}};
    struct wire_completion c = local_call(x, conn, &rq);
    if (c.status == 0)
        memcpy(blocks, x->session[conn]->completion_arena, c.table.n * 4u);
    return c.status;
}

static int local_truncate(void *self, int conn, uint64_t lease, uint32_t n)
{
    struct request rq = {.op = OP_TRUNCATE, .lease = lease, .number = {.n = n}};
    return local_call(self, conn, &rq).status;
}

static int local_release(void *self, int conn, uint64_t lease)
{
    struct request rq = {.op = OP_RELEASE, .lease = lease};
    return local_call(self, conn, &rq).status;
}

/* As the library does it: compare what is held, then send what follows, a piece a record. */
static int local_insert(void *self, int conn, uint64_t lease, const struct pfx_insert_args *a,
                        uint32_t *canonical, struct pfx_insert_result *out)
{
    struct local *x = self;
    const struct index_view *v = index_view_of(x->d.index);
    uint64_t bt = v->params.block_tokens;
    struct index_query q = query_of(a->tokens, a->n_written, a->extras, a->n_extras), held = q;
    struct request ask = {.op = OP_TABLE, .lease = lease};
    struct wire_completion c = local_call(x, conn, &ask);
    if (c.status)
        return c.status;
    struct place where = c.table.where;
    uint64_t table = c.table.table;
    if (held.n_tokens > where.depth * bt)
        held.n_tokens = where.depth * bt;
    int agrees = where.depth ? index_path_agrees(v, where, &held) : 1;
    REQUIRE(agrees >= 0);
    if (!agrees)
        return PFX_ECONFLICT;
    uint32_t created = 0;
    do {
        uint64_t first = where.depth * bt, left = first < q.n_tokens ? q.n_tokens - first : 0;
        uint64_t piece = bt * (1 + rng_below(&x->rng, 4));
        bool last = piece >= left || first + piece >= table * bt;
        piece = last ? left : piece; /* what the table does not cover travels with the last one */
        struct request rq = {.op = OP_INSERT, .lease = lease};
        rq.flags = (uint16_t)((last ? RF_LAST : 0) | (last && a->flags & PFX_FINAL ? RF_FINAL : 0));
        rq.insert = (struct request_insert){
            .where = where,
            .piece = (uint32_t)piece,
            .n_extras = piece ? write_piece(x, conn, &q, first, first + piece) : 0};
        c = local_call(x, conn, &rq);
        REQUIRE(c.status != ANSWER_RETRY);
        if (c.status < 0)
            return c.status;
        created += c.insert.created;
        where = c.insert.where;
    } while (c.status == ANSWER_MORE);
    *out = (struct pfx_insert_result){.size = sizeof *out,
                                      .cached_blocks = c.insert.cached,
                                      .new_blocks = created,
                                      .duplicate_blocks = c.insert.duplicates};
    uint32_t n = (uint32_t)(a->n_written / bt);
    n = n < where.depth ? n : where.depth;
    REQUIRE(index_path_ids(v, where, 0, n, canonical, NULL));
    return 0;
}

static int local_space_open(void *self, int conn, const struct pfx_space_desc *desc, pfx_space *out)
{
    struct local *x = self;
    struct request rq = {.op = OP_SPACE_OPEN};
    rq.space = (struct request_space){.adapter_id = desc->adapter_id,
                                      .adapter_generation = desc->adapter_generation,
                                      .tenant_len = desc->tenant_len};
    memcpy(local_arena(x, conn), desc->tenant, desc->tenant_len);
    struct wire_completion c = local_call(x, conn, &rq);
    *out = c.number.n;
    return c.status;
}

static int local_space_close(void *self, int conn, pfx_space space)
{
    struct request rq = {.op = OP_SPACE_CLOSE, .space = {.space = space}};
    return local_call(self, conn, &rq).status;
}

static int local_flush(void *self, int conn, pfx_space space)
{
    struct request rq = {.op = OP_FLUSH, .space = {.space = space}};
    return local_call(self, conn, &rq).status;
}

static int local_evict(void *self, int conn, uint32_t n, struct pfx_evicted *out)
{
    struct request rq = {.op = OP_EVICT, .number = {.n = n}};
    struct wire_completion c = local_call(self, conn, &rq);
    *out = (struct pfx_evicted){sizeof *out, (uint32_t)c.number.n, (uint32_t)c.number.more};
    return c.status;
}

/* Through the latch, as a worker reads them. */
static void local_stats(void *self, struct pfx_stats *out)
{
    struct local *x = self;
    struct counters c;
    static_assert(sizeof *out == sizeof out->size + COUNTERS_PUBLIC, "the same table of counters");
    REQUIRE(stats_copy(&x->d.header->stats, &c));
    out->size = sizeof *out;
    memcpy(&out->lookups, &c, COUNTERS_PUBLIC);
}

static void local_details(void *self, struct backend_details *out)
{
    struct local *x = self;
    struct counters c;
    REQUIRE(stats_copy(&x->d.header->stats, &c));
    *out = (struct backend_details){
        .slots_free = c.slots_free,
        .slots_private = c.slots_private,
        .resaved = c.tier_resaved,
        .swept = c.tier_swept,
        .dropped = c.tier_dropped,
        .blobs = x->tier ? trial_blobs(x->tier) : 0,
    };
    REQUIRE(!x->tier || trial_transfers(x->tier) == 0);
}

static void local_find(void *arg, const char *finding, ...)
{
    va_list args;
    va_start(args, finding);
    vfprintf(stderr, finding, args);
    va_end(args);
    fputc('\n', stderr);
}

void local_audit(void *self)
{
    struct local *x = self;
    REQUIRE_EQ(daemon_audit(&x->d, local_find, NULL), 0);
}

static enum fate next_fate(void *arg, bool put)
{
    struct fates *f = arg;
    return put ? f->put[f->n_put++ % MODEL_TRANSFERS] : f->get[f->n_get++ % MODEL_TRANSFERS];
}

struct backend backend_local(const struct model_config *config, uint64_t hash_mask, uint64_t seed,
                             struct fates *fates)
{
    return local_backend(local_new(config, hash_mask, seed, next_fate, fates));
}

struct backend local_backend(struct local *x)
{
    return (struct backend){.self = x,
                            .attach = local_attach,
                            .detach = local_detach,
                            .space_open = local_space_open,
                            .space_close = local_space_close,
                            .flush = local_flush,
                            .lookup = local_lookup,
                            .fetch = local_fetch,
                            .reserve = local_reserve,
                            .truncate = local_truncate,
                            .insert = local_insert,
                            .release = local_release,
                            .snapshot_reserve = local_snapshot_reserve,
                            .snapshot_insert = local_snapshot_insert,
                            .snapshot_cancel = local_snapshot_cancel,
                            .snapshot_drop = local_snapshot_drop,
                            .snapshot_evict = local_snapshot_evict,
                            .snapshot_spill = local_snapshot_spill,
                            .snapshot_forget = local_snapshot_forget,
                            .slot = local_slot,
                            .evict = local_evict,
                            .peek = local_peek,
                            .stats = local_stats,
                            .details = local_details,
                            .audit = local_audit,
                            .kills = true,
                            .free = local_free};
}
