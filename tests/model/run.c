/* The operations on sequences of a random run, on the daemon and on the model. */
#include "tests/model/run.h"

#include <string.h>

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

/* A recent sequence, cut somewhere and gone on with. Narrow: one of few long ones, and a little. */
struct key sequence(struct run *r)
{
    bool narrow = r->shape.narrow;
    struct key *old = narrow ? &r->talk[dice(r, MODEL_SESSIONS)] : &r->recent[dice(r, 8)];
    uint32_t keep = old->n ? dice(r, old->n + 1) : 0;
    uint32_t most = r->m.bt * 10 < KEY_MAX ? r->m.bt * 10 : KEY_MAX;
    struct key k = key_cut(old, one_in(r, narrow ? 20 : 4) ? 0 : keep);
    uint32_t from = k.n, room = most - (from < most ? from : most);
    k.n = from + dice(r, (narrow && room > r->m.bt ? r->m.bt : room) + 1);
    for (uint32_t i = from; i < k.n; i++)
        k.token[i] = dice(r, r->shape.alphabet);
    add_extras(r, &k, from);
    r->recent[dice(r, 8)] = k;
    return k;
}

struct key longer(struct run *r, const struct key *k)
{
    struct key out = *k;
    uint32_t more = dice(r, KEY_MAX - k->n + 1) / 3;
    out.n = k->n + (r->shape.narrow && more > r->m.bt ? r->m.bt : more);
    for (uint32_t i = k->n; i < out.n; i++)
        out.token[i] = dice(r, r->shape.alphabet);
    r->recent[dice(r, 8)] = out;
    return out;
}

/* ---- one operation of each kind ---------------------------------------------------------- */

int some_conn(struct run *r)
{
    int c = (int)dice(r, MODEL_CONNS);
    while (!r->m.conn[c].used)
        c = (c + 1) % MODEL_CONNS;
    return c;
}

int some_lease(struct run *r)
{
    int n = 0, pick[MODEL_LEASES];
    for (int l = 0; l < MODEL_LEASES; l++)
        if (r->m.lease[l].used)
            pick[n++] = l;
    return n ? pick[dice(r, (uint32_t)n)] : -1;
}

int conn_for(struct run *r, int lease)
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
                                    .match_multiple = ask->multiple,
                                    .session = ask->session,
                                    .snapshot_multiple = ask->snapshot_multiple};
}

uint64_t some_session(struct run *r)
{
    return r->sessionless ? 0 : dice(r, MODEL_SESSIONS);
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
        a.multiple = 1 + dice(r, 2 * r->m.bt);
    a.flags |= one_in(r, 8) ? PFX_QUIET : 0;
    a.flags |= one_in(r, 8) ? PFX_NO_TAIL : 0;
    a.flags |= one_in(r, 16) ? PFX_NO_MATCH : 0;
    a.flags |= one_in(r, r->m.config.n_tier ? 3 : 16) ? PFX_FETCH : 0;
    a.session = some_session(r);
    if (one_in(r, 6))
        a.snapshot_multiple = 1 + dice(r, 2 * r->m.bt);
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

int run_lookup(struct run *r, int conn, const struct model_ask *ask)
{
    struct pfx_lookup_args args = args_of(r, ask);
    struct pfx_match got = {.size = sizeof got};
    struct model_found want;
    int status = r->b.lookup(r->b.self, conn, &args, &got);
    int lease = model_lookup(&r->m, conn, ask, &want);
    REQUIRE_EQ(status, lease < 0 ? lease : 0);
    if (lease < 0)
        return -1;
    same_match(&want, &got);
    same_offers(r, conn, &want, &got.snapshot);
    r->lease[lease] = got.lease;
    r->meant[lease] = ask->query;
    return lease;
}

bool lease_to_have(const struct run *r)
{
    int used = 0;
    for (int l = 0; l < MODEL_LEASES; l++)
        used += r->m.lease[l].used;
    return used < MODEL_LEASES;
}

void do_lookup(struct run *r)
{
    if (!lease_to_have(r))
        return;
    int conn = some_conn(r);
    struct model_ask ask = random_ask(r);
    run_lookup(r, conn, &ask);
}

void do_peek(struct run *r)
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
    REQUIRE_EQ(got.snapshot_depth, want.resident < 0 ? 0 : r->m.snapshot[want.resident].key.n);
    REQUIRE_EQ(got.snapshot_tier_depth, want.tiered < 0 ? 0 : r->m.snapshot[want.tiered].key.n);
}

void do_fetch(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    struct pfx_match got = {.size = sizeof got};
    struct model_found want;
    int status = r->b.fetch(r->b.self, conn, r->lease[lease], &got);
    REQUIRE_EQ(status, model_fetch(&r->m, conn, lease, &want));
    if (status && status != PFX_EIO)
        return;
    REQUIRE_EQ(got.lease, r->lease[lease]);
    same_match(&want, &got);
    same_offers(r, conn, &want, &got.snapshot);
}

int run_reserve(struct run *r, int conn, int lease, uint32_t n)
{
    uint32_t blocks[MODEL_BLOCKS + 8];
    int status = r->b.reserve(r->b.self, conn, r->lease[lease], n, blocks);
    REQUIRE_EQ(status, model_reserve(&r->m, conn, lease, n));
    if (status == 0)
        model_take(&r->m, lease, blocks, n);
    return status;
}

void do_reserve(struct run *r)
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
    uint32_t n = in_order && one_in(r, 30) ? r->m.n_blocks + dice(r, 3) : dice(r, 6);
    n = n < room || n > r->m.n_blocks ? n : 0;
    run_reserve(r, conn, lease, n);
}

void do_truncate(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    uint32_t n = dice(r, model_table(&r->m.lease[lease]) + 2);
    offers_whole(r, conn, lease);
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

int run_insert(struct run *r, int conn, int lease, const struct key *k, bool final)
{
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = final ? PFX_FINAL : 0,
                                   .tokens = k->token,
                                   .n_written = k->n,
                                   .extras = k->n_extras ? k->extra : NULL,
                                   .n_extras = k->n_extras};
    uint32_t ids[KEY_MAX], ids_want[KEY_MAX];
    memset(ids, 0xff, sizeof ids);
    memset(ids_want, 0xff, sizeof ids_want);
    struct pfx_insert_result got = {.size = sizeof got}, want;
    int status = r->b.insert(r->b.self, conn, r->lease[lease], &args, ids, &got);
    REQUIRE_EQ(status, model_insert(&r->m, conn, lease, k, final, ids_want, &want));
    if (status)
        return status;
    REQUIRE_EQ(got.cached_blocks, want.cached_blocks);
    REQUIRE_EQ(got.new_blocks, want.new_blocks);
    REQUIRE_EQ(got.duplicate_blocks, want.duplicate_blocks);
    ck_assert_mem_eq(ids, ids_want, sizeof ids);
    r->meant[lease] = *k;
    return 0;
}

void do_insert(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    struct key k = written(r, lease);
    bool stranger = r->m.conn[conn].group != r->m.lease[lease].group;
    int status = run_insert(r, conn, lease, &k, one_in(r, 6));
    REQUIRE(status || !stranger);
}

void run_release(struct run *r, int conn, int lease)
{
    offers_whole(r, conn, lease);
    int status = r->b.release(r->b.self, conn, r->lease[lease]);
    REQUIRE_EQ(status, model_release(&r->m, conn, lease));
    if (status == 0)
        r->dead_lease = r->lease[lease];
}

void do_release(struct run *r)
{
    int lease = some_lease(r);
    if (lease < 0)
        return;
    int conn = conn_for(r, lease);
    if (r->dead_lease && one_in(r, 8))
        REQUIRE_EQ(r->b.release(r->b.self, conn, r->dead_lease), PFX_ESTALE);
    run_release(r, conn, lease);
}

void do_evict(struct run *r)
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

void do_space(struct run *r)
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

void do_flush(struct run *r)
{
    int conn = some_conn(r), space = (int)dice(r, MODEL_SPACES + 1) - 1;
    if (space > 0 && !r->m.conn[conn].opens[space])
        return;
    pfx_space number = space < 0 ? PFX_ALL_SPACES : r->space[space];
    REQUIRE_EQ(r->b.flush(r->b.self, conn, number), model_flush(&r->m, space));
}

static const char *const groups[] = {NULL, "g", "g", "h"};

void do_connection(struct run *r)
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
