/*
 * Random operations against the daemon and the model; after each the results, all counters and the
 * daemon's own audit must agree. (B23 i.)
 *
 * Everything is tiny, so that splits, merges, tails, duplicates and full pools are the rule: 24 to
 * 60 blocks of 1 to 4 tokens over an alphabet of 2 or 3. A failing run is repeated by
 * PFX_SEED=<printed>.
 */
#include "tests/model/backend.h"
#include "tests/model/model.h"

#include <stdio.h>
#include <string.h>

struct shape {
    uint32_t bt, n_blocks, alphabet, extras;
    uint64_t hash_mask;
};

struct run {
    struct backend b;
    struct model m;
    struct rng rng;
    struct shape shape;
    uint64_t lease[MODEL_LEASES];   /* the daemon's names of the model's leases */
    struct key meant[MODEL_LEASES]; /* the sequence that each lease works on */
    pfx_space space[MODEL_SPACES];
    uint64_t dead_lease; /* one that was released */
    struct key recent[8];
};

static uint32_t dice(struct run *r, uint32_t n)
{
    return rng_below(&r->rng, n);
}

static bool one_in(struct run *r, uint32_t n)
{
    return dice(r, n) == 0;
}

/* ---- sequences that meet often -------------------------------------------------------- */

static void add_extras(struct run *r, struct key *k, uint32_t from)
{
    if (!r->shape.extras || !one_in(r, 3))
        return;
    while (k->n_extras && k->extra[k->n_extras - 1].at + k->extra[k->n_extras - 1].len > from)
        k->n_extras--;
    for (uint32_t at = from + dice(r, 4); at < k->n && k->n_extras < KEY_EXTRAS; at += dice(r, 6)) {
        struct pfx_extra x = {.at = at, .len = 1 + dice(r, 6)};
        memset(x.digest, 'A' + (int)dice(r, 2), sizeof x.digest);
        k->extra[k->n_extras++] = x;
        at += (uint32_t)x.len;
    }
}

/* A recent sequence, cut somewhere and gone on with. */
static struct key sequence(struct run *r)
{
    struct key *old = &r->recent[dice(r, 8)];
    uint32_t keep = old->n ? dice(r, old->n + 1) : 0;
    uint32_t most = r->shape.bt * 10 < KEY_MAX ? r->shape.bt * 10 : KEY_MAX;
    struct key k = key_cut(old, one_in(r, 4) ? 0 : keep);
    uint32_t from = k.n;
    k.n = from + dice(r, most - (from < most ? from : most) + 1);
    for (uint32_t i = from; i < k.n; i++)
        k.token[i] = dice(r, r->shape.alphabet);
    add_extras(r, &k, from);
    r->recent[dice(r, 8)] = k;
    return k;
}

static struct key longer(struct run *r, const struct key *k)
{
    struct key out = *k;
    out.n = k->n + dice(r, KEY_MAX - k->n + 1) / 3;
    for (uint32_t i = k->n; i < out.n; i++)
        out.token[i] = dice(r, r->shape.alphabet);
    r->recent[dice(r, 8)] = out;
    return out;
}

/* ---- one operation of each kind ---------------------------------------------------------- */

/* A connection in use. */
static int some_conn(struct run *r)
{
    int c = (int)dice(r, MODEL_CONNS);
    while (!r->m.conn[c].used)
        c = (c + 1) % MODEL_CONNS;
    return c;
}

static int some_lease(struct run *r)
{
    int n = 0, pick[MODEL_LEASES];
    for (int l = 0; l < MODEL_LEASES; l++)
        if (r->m.lease[l].used)
            pick[n++] = l;
    return n ? pick[dice(r, (uint32_t)n)] : -1;
}

/* Mostly the opener or a mate, sometimes a stranger. */
static int conn_for(struct run *r, int lease)
{
    int c = some_conn(r);
    for (int tries = 0; tries < 8 && r->m.conn[c].group != r->m.lease[lease].group; tries++)
        c = some_conn(r);
    return c;
}

static struct pfx_lookup_args args_of(struct run *r, const struct model_ask *ask)
{
    return (struct pfx_lookup_args){.size = sizeof(struct pfx_lookup_args),
                                    .flags = ask->flags,
                                    .space = r->space[ask->space],
                                    .tokens = ask->query.token,
                                    .n_tokens = ask->query.n,
                                    .extras = ask->query.n_extras ? ask->query.extra : NULL,
                                    .n_extras = ask->query.n_extras,
                                    .max_match = ask->max_match,
                                    .match_multiple = ask->multiple};
}

static struct model_ask random_ask(struct run *r)
{
    struct model_ask a = {.space = one_in(r, 4) ? (int)dice(r, MODEL_SPACES) : 0};
    a.query = sequence(r);
    if (!one_in(r, 3))
        a.max_match = a.query.n;
    else if (one_in(r, 2))
        a.max_match = dice(r, a.query.n + 8);
    if (one_in(r, 8))
        a.multiple = 1 + dice(r, 2 * r->shape.bt);
    a.flags |= one_in(r, 8) ? PFX_QUIET : 0;
    a.flags |= one_in(r, 8) ? PFX_NO_TAIL : 0;
    a.flags |= one_in(r, 16) ? PFX_NO_MATCH : 0;
    a.flags |= one_in(r, 16) ? PFX_FETCH : 0; /* there is nothing to fetch */
    return a;
}

static void same_match(const struct model_found *want, const struct pfx_match *got)
{
    REQUIRE_EQ(got->matched_tokens, want->matched);
    REQUIRE_EQ(got->tail_tokens, want->tail_tokens);
    if (want->tail_tokens)
        REQUIRE_EQ(got->tail_block, want->tail_block);
    for (uint32_t i = 0; i < got->n_blocks; i++)
        REQUIRE_EQ(got->blocks[i], want->blocks[i]);
}

static void do_lookup(struct run *r)
{
    int used = 0;
    for (int l = 0; l < MODEL_LEASES; l++)
        used += r->m.lease[l].used;
    if (used == MODEL_LEASES)
        return;
    int conn = some_conn(r);
    struct model_ask ask = random_ask(r);
    struct pfx_lookup_args args = args_of(r, &ask);
    struct pfx_match got = {.size = sizeof got};
    struct model_found want;
    int status = r->b.lookup(r->b.self, conn, &args, &got);
    int lease = model_lookup(&r->m, conn, &ask, &want);
    REQUIRE_EQ(status, lease < 0 ? lease : 0);
    if (lease < 0)
        return;
    same_match(&want, &got);
    r->lease[lease] = got.lease;
    r->meant[lease] = ask.query;
}

static void do_peek(struct run *r)
{
    int conn = some_conn(r);
    struct model_ask ask = random_ask(r);
    ask.flags &= ~PFX_NO_MATCH;
    if (ask.space && !r->m.conn[conn].opens[ask.space])
        ask.space = 0;
    struct pfx_lookup_args args = args_of(r, &ask);
    struct pfx_peeked got = {.size = sizeof got};
    struct model_found want;
    model_find(&r->m, &ask, &want);
    ssize_t status = r->b.peek(r->b.self, conn, &args, &got);
    if (status == PFX_EAGAIN) { /* the reader gave up among collisions: less, never more */
        REQUIRE(got.matched_tokens <= want.matched);
        return;
    }
    REQUIRE_EQ(status, 0);
    REQUIRE_EQ(got.matched_tokens, want.matched);
    REQUIRE_EQ(got.tail_tokens, want.tail_tokens);
}

static void do_reserve(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    const struct model_lease *l = &r->m.lease[lease];
    uint32_t room = MODEL_BLOCKS - l->n_pages;
    /* which of two errors comes first is nobody's promise: too much only of a lease in order */
    bool in_order =
        !l->final && r->m.root[l->space] == l->root && r->m.conn[conn].group == l->group;
    uint32_t n = in_order && one_in(r, 30) ? r->shape.n_blocks + dice(r, 3) : dice(r, 6);
    n = n < room || n > r->shape.n_blocks ? n : 0;
    uint32_t blocks[MODEL_BLOCKS + 8];
    int status = r->b.reserve(r->b.self, conn, r->lease[lease], n, blocks);
    REQUIRE_EQ(status, model_reserve(&r->m, conn, lease, n));
    if (status == 0)
        model_take(&r->m, lease, blocks, n);
}

static void do_truncate(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    uint32_t n = dice(r, model_table(&r->m.lease[lease]) + 2);
    int status = r->b.truncate(r->b.self, conn, r->lease[lease], n);
    REQUIRE_EQ(status, model_truncate(&r->m, conn, lease, n));
}

/* What it writes: mostly what the lease is about, cut or gone on with; sometimes something else. */
static struct key written(struct run *r, int lease)
{
    const struct model_lease *l = &r->m.lease[lease];
    struct key k = r->meant[lease];
    if (k.n < l->path.n || !key_begins(&k, &l->path))
        k = l->path;
    if (one_in(r, 2))
        k = longer(r, &k);
    if (one_in(r, 4))
        k = key_cut(&k, dice(r, k.n + 1));
    if (one_in(r, 12) && k.n && r->m.root[l->space] == l->root)
        k.token[dice(r, k.n)] ^= 1;
    return k;
}

static void do_insert(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    struct key k = written(r, lease);
    bool final = one_in(r, 6);
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = final ? PFX_FINAL : 0,
                                   .tokens = k.token,
                                   .n_written = k.n,
                                   .extras = k.n_extras ? k.extra : NULL,
                                   .n_extras = k.n_extras};
    uint32_t ids[KEY_MAX], ids_want[KEY_MAX];
    memset(ids, 0xff, sizeof ids);
    memset(ids_want, 0xff, sizeof ids_want);
    struct pfx_insert_result got = {.size = sizeof got}, want;
    bool stranger = r->m.conn[conn].group != r->m.lease[lease].group;
    int status = r->b.insert(r->b.self, conn, r->lease[lease], &args, ids, &got);
    REQUIRE_EQ(status, model_insert(&r->m, conn, lease, &k, final, ids_want, &want));
    if (status)
        return;
    REQUIRE(!stranger);
    REQUIRE_EQ(got.cached_blocks, want.cached_blocks);
    REQUIRE_EQ(got.new_blocks, want.new_blocks);
    REQUIRE_EQ(got.duplicate_blocks, want.duplicate_blocks);
    ck_assert_mem_eq(ids, ids_want, sizeof ids);
    r->meant[lease] = k;
}

static void do_release(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    if (r->dead_lease && one_in(r, 8))
        REQUIRE_EQ(r->b.release(r->b.self, conn, r->dead_lease), PFX_ESTALE);
    int status = r->b.release(r->b.self, conn, r->lease[lease]);
    REQUIRE_EQ(status, model_release(&r->m, conn, lease));
    if (status == 0)
        r->dead_lease = r->lease[lease];
}

static void do_evict(struct run *r)
{
    uint32_t n = dice(r, 6);
    struct pfx_evicted e;
    REQUIRE_EQ(r->b.evict(r->b.self, some_conn(r), n, &e), 0);
    REQUIRE_EQ(e.removed_blocks, model_evict(&r->m, n));
    REQUIRE_EQ(e.freed_blocks, e.removed_blocks);
}

static struct pfx_space_desc desc_of(int space)
{
    return (struct pfx_space_desc){.size = sizeof(struct pfx_space_desc),
                                   .tenant = "t",
                                   .tenant_len = space > 1 ? 1 : 0,
                                   .adapter_id = space > 0 ? 5 : 0};
}

static void do_space(struct run *r)
{
    int conn = some_conn(r), space = 1 + (int)dice(r, MODEL_SPACES - 1);
    if (one_in(r, 2)) {
        struct pfx_space_desc d = desc_of(space);
        pfx_space number = 0;
        REQUIRE_EQ(r->b.space_open(r->b.self, conn, &d, &number), 0);
        REQUIRE(r->space[space] == UINT64_MAX / 2 || r->space[space] == number);
        r->space[space] = number;
        model_space_open(&r->m, conn, space);
    } else {
        int status = r->b.space_close(r->b.self, conn, r->space[space]);
        REQUIRE_EQ(status, model_space_close(&r->m, conn, space));
    }
}

static void do_flush(struct run *r)
{
    int conn = some_conn(r), space = (int)dice(r, MODEL_SPACES + 1) - 1;
    if (space > 0 && !r->m.conn[conn].opens[space])
        return;
    pfx_space number = space < 0 ? PFX_ALL_SPACES : r->space[space];
    REQUIRE_EQ(r->b.flush(r->b.self, conn, number), model_flush(&r->m, space));
}

static const char *const groups[] = {NULL, "g", "g", "h"};

static void do_connection(struct run *r)
{
    int c = (int)dice(r, MODEL_CONNS), used = 0;
    for (int o = 0; o < MODEL_CONNS; o++)
        used += r->m.conn[o].used;
    if (!r->m.conn[c].used) {
        r->b.attach(r->b.self, c, groups[c]);
        model_attach(&r->m, c, groups[c] ? groups[c][0] : 100 + c);
    } else if (used > 1) {
        bool clean = !r->b.kills || one_in(r, 2);
        r->b.detach(r->b.self, c, clean);
        model_detach(&r->m, c, clean);
    }
}

/* ---- the run ---------------------------------------- */

static const struct {
    void (*act)(struct run *r);
    uint32_t weight;
} kinds[] = {
    {do_lookup, 30},  {do_insert, 25}, {do_reserve, 20}, {do_release, 14},   {do_peek, 8},
    {do_truncate, 5}, {do_evict, 4},   {do_space, 2},    {do_connection, 1}, {do_flush, 1},
};

static void same_counters(struct run *r)
{
    struct pfx_stats got, want = model_stats(&r->m);
    r->b.stats(r->b.self, &got);
    got.nodes = 0; /* how many nodes a tree has is its own business */
    got.size = got.disk_scan_done = got.workers_reaped = 0;
    want.size = 0;
    const uint64_t *a = (const uint64_t *)&got, *b = (const uint64_t *)&want;
    for (size_t i = 0; i < sizeof got / 8; i++)
        REQUIRE_MSG(a[i] == b[i], "counter %zu of pfx_stats is %llu, the model says %llu", i,
                    (unsigned long long)a[i], (unsigned long long)b[i]);
}

static void operate(struct run *r)
{
    uint32_t total = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        total += kinds[k].weight;
    uint32_t at = dice(r, total);
    size_t k = 0;
    while (at >= kinds[k].weight)
        at -= kinds[k++].weight;
    kinds[k].act(r);
    same_counters(r);
    r->b.audit(r->b.self);
}

static void run_random(struct run *r, uint32_t operations)
{
    model_init(&r->m, r->shape.bt, r->shape.n_blocks);
    for (int s = 1; s < MODEL_SPACES; s++)
        r->space[s] = UINT64_MAX / 2; /* a number that no space has */
    r->b.attach(r->b.self, 0, groups[0]);
    model_attach(&r->m, 0, 100);
    for (uint32_t i = 0; i < operations; i++)
        operate(r);
    for (int c = 0; c < MODEL_CONNS; c++)
        if (r->m.conn[c].used) {
            r->b.detach(r->b.self, c, true);
            model_detach(&r->m, c, true);
        }
    same_counters(r);
    struct pfx_stats end = model_stats(&r->m);
    REQUIRE_EQ(end.blocks_private + end.blocks_pinned + end.leases, 0);
    r->b.free(r->b.self);
}

static void run_local(const char *name, struct shape shape, uint32_t operations)
{
    struct run r = {.rng = rng_seeded(name), .shape = shape};
    uint64_t seed = rng_next(&r.rng);
    r.b = backend_local(shape.bt, shape.n_blocks, shape.hash_mask, seed);
    run_random(&r, operations);
}

/* 200,000 operations in all, over shapes that differ in what they make frequent. */
static const struct shape shapes[] = {
    {1, 24, 2, 0, UINT64_MAX}, {2, 32, 2, 0, UINT64_MAX}, {3, 40, 2, 1, UINT64_MAX},
    {4, 48, 3, 1, UINT64_MAX}, {4, 60, 2, 0, UINT64_MAX},
};

START_TEST(b23_200000_operations)
{
    run_local("model", shapes[_i], 40000);
}
END_TEST

/* B14: the hash forced to a constant, and to 8 bits: slower, never wrong. */
START_TEST(b14_hash_of_0_and_8_bits)
{
    run_local("model, narrowed hash",
              (struct shape){2, 40, 3, 1,
                             _i == 0   ? 0
                             : _i == 1 ? 0xff
                                       : 0xffull << 32},
              20000);
}
END_TEST

START_TEST(model_library_and_daemon)
{
    struct run r = {.rng = rng_seeded("model, remote"), .shape = shapes[_i]};
    r.b = backend_remote(r.shape.bt, r.shape.n_blocks);
    run_random(&r, 4000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, b23_200000_operations, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_loop_test(t, b14_hash_of_0_and_8_bits, 0, 3);
    tcase_add_loop_test(t, model_library_and_daemon, 0, sizeof shapes / sizeof shapes[0]);
    suite_add_tcase(s, t);
    return s;
}
