/*
 * Readers of snapshots while a writer adds, moves and drops them and changes the tree below them.
 *
 * Between any two loads of one reader (hooked_read.h), with a record of what was there when: what
 * is found was there at some moment of the search, under that very prefix, and no deeper than the
 * match; and what was there all the time, and is on the path, is not missed.
 *
 * By processes: the writer saves only prefixes in which no 1 follows a 1, and tails only for the
 * session that their first token names. So whatever is found must be such a one.
 */
#include "tests/unit/hooked_read.h"
#include "tests/unit/tree.h"

#include <string.h>
#include <sys/mman.h>

enum { POOL = 60, ENTRIES = 24, TEXT = 40, ANCHOR = 14, SESSIONS = 3, RECORDS = 1 << 14 };

/* An entry that was there for a while of the search. */
struct record {
    uint32_t id, tokens[TEXT], depth, state;
    uint64_t tail_of;
    bool always;
};

static struct {
    struct tree t;
    struct rng rng;
    uint32_t one_in; /* loads that are followed by a change */
    struct record record[RECORDS];
    uint32_t n_records, of[ENTRIES + 1]; /* 1 + an entry's last record; 0: it is not there */
    uint32_t anchor[TEXT];
    struct hold held;
} w;

static uint32_t random_text(struct rng *r, uint32_t most, uint32_t *tokens, bool valid)
{
    uint32_t n = 1 + rng_below(r, most);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = rng_below(r, 4) == 0;
        if (valid && i && tokens[i - 1] == 1)
            tokens[i] = 0;
    }
    return n;
}

static bool allowed(const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (tokens[i] == 1 && tokens[i - 1] == 1)
            return false;
    return true;
}

/* ---- the writer ----------------------------------------------------------------------------- */

static void record_open(struct record as)
{
    REQUIRE(w.n_records < RECORDS);
    as.always = false;
    w.record[w.n_records++] = as;
    w.of[as.id] = w.n_records;
}

static void record_close(uint32_t id)
{
    w.record[w.of[id] - 1].always = false;
    w.of[id] = 0;
}

/* A search begins: forget what is over. */
static void records_begin(void)
{
    struct record there[ENTRIES];
    uint32_t n = 0;
    for (uint32_t id = 1; id <= ENTRIES; id++)
        if (w.of[id])
            there[n++] = w.record[w.of[id] - 1];
    for (w.n_records = 0; w.n_records < n;) {
        struct record *r = &w.record[w.n_records++];
        *r = there[w.n_records - 1];
        r->always = true;
        w.of[r->id] = w.n_records;
    }
}

static void on_gone(void *arg, uint32_t id, bool evicted)
{
    (void)arg;
    REQUIRE(evicted && w.of[id]);
    record_close(id);
}

static void drop(uint32_t id)
{
    record_close(id);
    index_snapshot_remove(w.t.ix, id);
}

static void drop_tail(uint64_t session)
{
    for (uint32_t id = 1; id <= ENTRIES; id++)
        if (w.of[id] && w.record[w.of[id] - 1].tail_of == session)
            drop(id);
}

static void save(struct place where, const uint32_t *tokens, uint32_t depth, uint64_t session)
{
    uint32_t id = 1, bt = w.t.bt;
    if (session)
        drop_tail(session);
    where.depth = depth / bt;
    index_cover(w.t.ix, &where);
    struct residue residue = {.tokens = tokens + where.depth * bt, .n_tokens = depth % bt};
    uint32_t there = session ? 0 : index_snapshot_find(w.t.ix, where, &residue);
    if (there)
        drop(there);
    while (id <= ENTRIES && w.of[id])
        id++;
    if (id > ENTRIES)
        drop(id = 1 + rng_below(&w.rng, ENTRIES));
    struct record r = {.id = id, .depth = depth, .state = SNAPSHOT_RESIDENT, .tail_of = session};
    memcpy(r.tokens, tokens, depth * sizeof tokens[0]);
    record_open(r);
    index_snapshot_add(w.t.ix, id, where, &residue, session ? SNAPSHOT_TAIL : SNAPSHOT_EXACT,
                       session, id, 0);
}

/* Half of them go on from the anchor, or leave it. */
static uint32_t text_near(struct rng *r, const uint32_t *anchor, uint32_t *tokens, bool valid)
{
    uint32_t n = random_text(r, TEXT - 12, tokens, valid), same = 0;
    if (rng_below(r, 2))
        same = rng_below(r, ANCHOR * w.t.bt < TEXT - 12 ? ANCHOR * w.t.bt + 1 : TEXT - 12);
    memcpy(tokens, anchor, same * sizeof tokens[0]);
    if (valid && same && same < n && tokens[same - 1] == 1)
        tokens[same] = 0;
    return n > same ? n : same;
}

static void change_once(void)
{
    uint32_t tokens[TEXT], dice = rng_below(&w.rng, 12), id = 1 + rng_below(&w.rng, ENTRIES);
    if (dice == 0) {
        index_evict(w.t.ix, POOL); /* the next one recycles the nodes' numbers */
    } else if (dice < 3) {
        index_evict(w.t.ix, 1 + rng_below(&w.rng, 10));
    } else if (dice < 5) {
        if (w.of[id])
            drop(id);
    } else if (dice < 7) {
        if (!w.of[id])
            return;
        struct record r = w.record[w.of[id] - 1];
        record_close(id);
        r.state ^= SNAPSHOT_RESIDENT ^ SNAPSHOT_TIERED;
        record_open(r);
        bool tiered = r.state == SNAPSHOT_TIERED;
        index_snapshot_move(w.t.ix, id, tiered ? NO_SLOT : id, tiered ? id : 0);
    } else {
        uint32_t n = text_near(&w.rng, w.anchor, tokens, true);
        struct place where = tree_insert(&w.t, tokens, n);
        if (n && dice > 8)
            save(where, tokens, 1 + rng_below(&w.rng, n), rng_below(&w.rng, 3) ? 0 : 1 + tokens[0]);
    }
}

static void change_now(void)
{
    if (rng_below(&w.rng, w.one_in) == 0 && w.n_records + 8 < RECORDS)
        for (uint32_t n = 1 + rng_below(&w.rng, 3); n; n--)
            change_once();
}

static void change_nothing(void)
{
}

static void writer_begin(uint32_t bt, const char *seed)
{
    memset(&w, 0, sizeof w);
    tree_new_with(&w.t, bt, POOL, ENTRIES, UINT64_MAX);
    index_set_snapshot_gone(w.t.ix, on_gone, NULL);
    w.rng = rng_seeded(seed);
    for (uint32_t i = 0; i < TEXT; i++)
        w.anchor[i] = i % 3 == 0;
    uint32_t n = ANCHOR * bt < TEXT ? ANCHOR * bt : TEXT;
    index_hold(w.t.ix, &w.held, tree_insert(&w.t, w.anchor, n));
}

static void writer_end(void)
{
    index_unhold(w.t.ix, &w.held);
    tree_audit(&w.t);
    tree_free(&w.t);
}

/* ---- changes between any two loads --------------------------------------------------------------
 */

struct asked {
    uint32_t tokens[TEXT], n;
    struct place where;
    struct snapshot_want want;
    uint32_t limit;
};

static bool fits(const struct asked *q, const struct record *r, uint32_t state)
{
    return r->state == state && r->depth <= q->limit &&
           !(q->want.multiple && r->depth % q->want.multiple) &&
           (!r->tail_of || r->tail_of == q->want.session) &&
           memcmp(r->tokens, q->tokens, r->depth * sizeof r->tokens[0]) == 0;
}

static void judge(const struct asked *q, struct snapshot_found found, uint32_t state)
{
    bool was = false;
    for (uint32_t i = 0; i < w.n_records; i++) {
        const struct record *r = &w.record[i];
        if (!fits(q, r, state))
            continue;
        was |= r->id == found.id && r->depth == found.depth && found.is_tail == (r->tail_of != 0);
        REQUIRE_MSG(!r->always || r->depth <= found.depth,
                    "a snapshot of %u tokens was there all the time: %u is offered", r->depth,
                    found.depth);
    }
    REQUIRE_MSG(was || found.id == 0, "entry %u, %u tokens deep, was never on that path", found.id,
                found.depth);
}

/* False: no place to search from was found, or it went. */
static bool search_hooked(uint32_t *offers)
{
    const struct index_view *v = index_view_of(w.t.ix);
    struct asked q = {.n = text_near(&w.rng, w.anchor, q.tokens, false)};
    uint32_t bt = w.t.bt;
    struct index_query query = tree_query(q.tokens, q.n);
    struct index_found f;
    struct snapshots_found found;
    REQUIRE(hooked_index_walk(v, 0, &query, q.n / bt, &f));
    if (f.where.identity == 0)
        return false;
    q.where = f.where;
    uint32_t at = q.where.depth * bt, rest = q.n - at < bt ? q.n - at : bt;
    q.want = (struct snapshot_want){
        .session = rng_below(&w.rng, SESSIONS + 1),
        .multiple = rng_below(&w.rng, 3) ? 0 : rng_below(&w.rng, 5),
        .states = SNAPSHOT_RESIDENT | SNAPSHOT_TIERED,
        .rest = q.tokens + at,
        .n_rest = rng_below(&w.rng, rest + 1),
    };
    q.limit = at + (q.want.n_rest < bt ? q.want.n_rest : bt - 1);
    records_begin();
    if (!hooked_index_snapshots(v, q.where, &q.want, &found))
        return false;
    judge(&q, found.resident, SNAPSHOT_RESIDENT);
    judge(&q, found.tiered, SNAPSHOT_TIERED);
    *offers += (found.resident.id != 0) + (found.tiered.id != 0);
    return true;
}

START_TEST(snapshots_read_between_changes)
{
    static const uint32_t rates[] = {20, 100, 500};
    for (uint32_t bt = 1; bt <= 3; bt += 2) {
        uint32_t searches = 0, offers = 0, all = 30000;
        writer_begin(bt, "snapshot reader, hooked");
        w.one_in = rates[_i];
        for (uint32_t i = 0; i < all; i++) {
            records_begin();
            hooked_between_loads = change_now;
            searches += search_hooked(&offers);
            hooked_between_loads = change_nothing;
            change_once();
        }
        REQUIRE(searches > all / 2);
        REQUIRE(offers > all / 4);
        writer_end();
    }
}
END_TEST

/* ---- processes --------------------------------------------------------------------------------
 */

struct shared {
    uint64_t searches, offers;
    bool done;
};

struct reading {
    struct shared *s;
    uint64_t seed;
};

static void reader_checks(const uint32_t *tokens, uint64_t session, uint32_t limit,
                          struct snapshot_found found)
{
    REQUIRE_MSG(found.depth <= limit, "%u tokens are offered and %u match", found.depth, limit);
    REQUIRE_MSG(allowed(tokens, found.depth), "a snapshot of %u tokens that never was",
                found.depth);
    REQUIRE(!found.is_tail || session == 1 + tokens[0]);
}

static void reader(struct child *me, void *arg)
{
    struct reading *x = arg;
    struct rng r = {x->seed};
    struct index_view v;
    uint32_t bt = w.t.bt;
    REQUIRE(index_view_init(&v, w.t.header, w.t.bytes));
    child_post(me, 1);
    while (!__atomic_load_n(&x->s->done, __ATOMIC_RELAXED)) {
        uint32_t tokens[TEXT], n = text_near(&r, w.anchor, tokens, false);
        struct index_query q = tree_query(tokens, n);
        struct index_found f;
        struct snapshots_found found;
        REQUIRE(index_walk(&v, 0, &q, n / bt, &f));
        uint32_t at = f.where.depth * bt, rest = n - at < bt ? n - at : bt - 1;
        const struct snapshot_want want = {.session = rng_below(&r, SESSIONS + 1),
                                           .states = SNAPSHOT_RESIDENT | SNAPSHOT_TIERED,
                                           .rest = tokens + at,
                                           .n_rest = rest};
        if (!index_snapshots(&v, f.where, &want, &found))
            continue;
        reader_checks(tokens, want.session, at + rest, found.resident);
        reader_checks(tokens, want.session, at + rest, found.tiered);
        x->s->searches++;
        x->s->offers += found.resident.id || found.tiered.id;
    }
}

static bool has_read(const struct shared *s)
{
    return __atomic_load_n(&s->searches, __ATOMIC_RELAXED) > 1000 &&
           __atomic_load_n(&s->offers, __ATOMIC_RELAXED) > 100;
}

START_TEST(snapshots_read_by_a_process_under_a_writer)
{
    writer_begin(1 + 2 * (uint32_t)_i, "snapshot reader");
    struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(s, MAP_FAILED);
    struct reading x = {s, rng_next(&w.rng)};
    struct child c;
    child_start(&c, reader, &x);
    child_wait(&c);
    uint64_t until = now_ms() + 60000;
    for (unsigned i = 0; i < 100000 || (!has_read(s) && now_ms() < until); i++) {
        records_begin();
        change_once();
    }
    __atomic_store_n(&s->done, true, __ATOMIC_RELAXED);
    child_join(&c);
    REQUIRE(has_read(s));
    writer_end();
    munmap(s, 4096);
}
END_TEST

/* A daemon stopped in the middle of a change of any node: every search ends. */
START_TEST(snapshots_read_ends_under_a_change_that_never_does)
{
    writer_begin(2, "snapshot reader, stopped");
    uint32_t branch[] = {1, 0, 0, 1, 0, 0, 0, 0};
    save(w.held.where, w.anchor, 7, 0);
    save(w.held.where, w.anchor, 1, 0);
    tree_insert(&w.t, branch, 8);
    struct index_view v;
    REQUIRE(index_view_init(&v, w.t.header, w.t.bytes));
    const struct snapshot_want want = {.states = SNAPSHOT_RESIDENT};
    struct snapshots_found found;
    ck_assert(index_snapshots(&v, w.held.where, &want, &found));
    ck_assert_uint_eq(found.resident.depth, 7);
    for (uint32_t id = 1; id < 5; id++) {
        struct index_node *n = (struct index_node *)(uintptr_t)index_node_at(&v, id);
        n->version++; /* odd */
        if (!index_snapshots(&v, w.held.where, &want, &found))
            ck_assert_uint_eq(found.resident.id, 0);
        else
            ck_assert_uint_eq(found.resident.depth, 7);
        n->version++;
    }
    writer_end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("snapshot readers");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, snapshots_read_between_changes, 0, 3);
    tcase_add_loop_test(t, snapshots_read_by_a_process_under_a_writer, 0, 2);
    tcase_add_test(t, snapshots_read_ends_under_a_change_that_never_does);
    suite_add_tcase(s, t);
    return s;
}
