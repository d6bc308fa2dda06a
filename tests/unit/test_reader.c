/*
 * Readers while a writer splits, appends, cuts, evicts and recycles.
 *
 * The writer inserts only sequences in which no 1 follows a 1. So whatever a walk says it has
 * matched must be such a sequence, although most of what is asked for is not. `wild` sequences are
 * short and random; `close` ones are made for the two ways to a wrong answer that shm/index_read.c
 * names, which both end in a 1 after a 1 here:
 *
 *   (a)  a leaf ends at 40 with a 1; it grows to 64, the longest run, and a child below begins with
 * a 1 (b)  a run of 64 ends with a 1; it is cut and regrown with a 0, and a child below begins with
 * a 1
 *
 * Each is asked for twice: with changes between any two loads of one reader (hooked_read.h), and by
 * processes that read the same memory while it changes.
 */
#include "tests/unit/hooked_read.h"
#include "tests/unit/tree.h"

#include <string.h>
#include <sys/mman.h>

enum { WILD = 24, LEAF = 40, LONG = 72, POOL = 120, READERS = 2 };

/* Fills in tokens and returns how many; valid: nothing that was never there. */
typedef uint32_t maker(struct rng *r, uint32_t *tokens, bool valid);

static bool allowed(const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (tokens[i] == 1 && tokens[i - 1] == 1)
            return false;
    return true;
}

static uint32_t wild(struct rng *r, uint32_t *tokens, bool valid)
{
    uint32_t n = 1 + rng_below(r, WILD);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = rng_below(r, 2);
        if (valid && i && tokens[i - 1] == 1)
            tokens[i] = 0;
    }
    return n;
}

static uint32_t close_by(struct rng *r, uint32_t *tokens, bool valid)
{
    memset(tokens, 0, LONG * sizeof tokens[0]);
    tokens[LEAF - 1] = 1;
    tokens[NODE_BLOCKS - 1] = rng_below(r, 2);
    tokens[NODE_BLOCKS] = tokens[NODE_BLOCKS - 1] && valid ? 0 : rng_below(r, 4) > 0;
    if (!valid && rng_below(r, 2))
        tokens[LEAF] = 1;
    uint32_t dice = rng_below(r, 3);
    return !valid || dice == 0 ? LONG - 4 : dice == 1 ? LEAF : NODE_BLOCKS;
}

static void change(struct tree *t, maker *make, struct rng *r)
{
    uint32_t tokens[LONG], dice = rng_below(r, 4);
    if (dice == 0) {
        index_evict(t->ix, POOL); /* the next one recycles the nodes' numbers */
    } else if (dice == 1) {
        index_evict(t->ix, 1 + rng_below(r, 30));
    } else {
        uint32_t n = make(r, tokens, true);
        if (rng_below(r, 4) == 0)
            tokens[0] = 2; /* beside the anchor */
        tree_insert(t, tokens, n);
    }
}

/* ---- changes between any two loads ---------------------------------------------------- */

static struct {
    struct tree t;
    maker *make;
    struct rng rng;
    uint32_t one_in; /* loads that are followed by a change */
    struct hold anchor;
} hooked;

/* A path that is held, so it is there all the time while others split and merge it. */
enum { ANCHOR = 20 };

static uint32_t anchor_tokens(uint32_t *tokens)
{
    for (uint32_t i = 0; i < ANCHOR; i++)
        tokens[i] = i % 2;
    tokens[0] = 2; /* so that most others are elsewhere, and their runs begin at the root */
    return ANCHOR;
}

static void change_now(void)
{
    if (rng_below(&hooked.rng, hooked.one_in) == 0)
        for (uint32_t n = 1 + rng_below(&hooked.rng, 3); n; n--)
            change(&hooked.t, hooked.make, &hooked.rng);
}

static void change_nothing(void)
{
}

/* Of what a walk found, other readers may say that the place has gone, but not that it reads
 * otherwise. */
static void hooked_closer(const struct index_found *f, const uint32_t *tokens, uint32_t n)
{
    const struct index_view *v = index_view_of(hooked.t.ix);
    uint32_t pages[LONG], depth = f->where.depth;
    struct index_query front = tree_query(tokens, depth);
    REQUIRE(hooked_index_path_agrees(v, f->where, &front) != 0);
    if (hooked_index_path_ids(v, f->where, 0, depth, pages, NULL))
        for (uint32_t i = 0; i < depth; i++)
            REQUIRE_MSG(pages[i] >= 1 && pages[i] <= POOL, "page %u at %u", pages[i], i);
    REQUIRE(hooked_index_tail_tokens(v, f->where, tokens + depth, n - depth) <= 1);
}

static void anchor_is_found(void)
{
    uint32_t tokens[ANCHOR], n = anchor_tokens(tokens);
    struct index_query q = tree_query(tokens, n);
    struct index_found f;
    REQUIRE(hooked_index_walk(index_view_of(hooked.t.ix), 0, &q, n, &f));
    REQUIRE_MSG(f.ask || f.where.depth == n, "only %u of %u held blocks were found", f.where.depth,
                n);
}

static void read_between_changes(maker *make, uint32_t one_in, unsigned walks)
{
    unsigned found = 0;
    tree_new(&hooked.t, 1, POOL);
    hooked.make = make;
    hooked.rng = rng_seeded("reader, hooked");
    hooked.one_in = one_in;
    uint32_t held[ANCHOR];
    anchor_tokens(held);
    index_hold(hooked.t.ix, &hooked.anchor, tree_insert(&hooked.t, held, ANCHOR));
    for (unsigned i = 0; i < walks; i++) {
        uint32_t tokens[LONG], n = make(&hooked.rng, tokens, i % 4 == 0);
        struct index_query q = tree_query(tokens, n);
        struct index_found f;
        hooked_between_loads = change_now;
        REQUIRE(hooked_index_walk(index_view_of(hooked.t.ix), 0, &q, n, &f));
        if (f.where.depth > n || !allowed(tokens, f.where.depth))
            ck_abort_msg("%u tokens matched that were never there", f.where.depth);
        found += f.where.depth > 0;
        if (f.where.depth && i % 8 == 0)
            hooked_closer(&f, tokens, n);
        if (i % 8 == 1)
            anchor_is_found();
        hooked_between_loads = change_nothing;
    }
    REQUIRE(found > walks / 100);
    index_unhold(hooked.t.ix, &hooked.anchor);
    tree_audit(&hooked.t);
    tree_free(&hooked.t);
}

START_TEST(reader_between_changes)
{
    static const uint32_t rates[] = {10, 40, 200};
    read_between_changes(wild, rates[_i], 60000);
    read_between_changes(close_by, rates[_i], 100000);
}
END_TEST

/* ---- processes -------------------------------------------------------------------------- */

struct shared {
    uint64_t walks[READERS], matched[READERS];
    bool done;
};

struct reading {
    struct tree *t;
    struct shared *s;
    maker *make;
    int me;
    uint64_t seed;
};

/* They did read meanwhile. On a busy machine the writer goes on until they have, for a while. */
static bool have_read(const struct shared *s, int readers)
{
    for (int i = 0; i < readers; i++)
        if (__atomic_load_n(&s->walks[i], __ATOMIC_RELAXED) <= 1000 ||
            __atomic_load_n(&s->matched[i], __ATOMIC_RELAXED) <= 100)
            return false;
    return true;
}

static void look_closer(const struct index_view *v, const struct index_found *f,
                        const uint32_t *tokens, uint32_t n)
{
    uint32_t pages[LONG], depth = f->where.depth;
    struct index_query front = tree_query(tokens, depth);
    if (depth == 0)
        return;
    REQUIRE(index_path_agrees(v, f->where, &front) != 0);
    if (index_path_ids(v, f->where, 0, depth, pages, NULL))
        for (uint32_t i = 0; i < depth; i++)
            REQUIRE_MSG(pages[i] >= 1 && pages[i] <= POOL, "page %u at %u", pages[i], i);
    REQUIRE(index_tail_tokens(v, f->where, tokens + depth, n - depth) <= 1);
}

static void reader(struct child *me, void *arg)
{
    struct reading *x = arg;
    struct rng r = {x->seed};
    struct index_view v;
    REQUIRE(index_view_init(&v, x->t->header, x->t->bytes));
    child_post(me, 1);
    for (uint32_t i = 0; !__atomic_load_n(&x->s->done, __ATOMIC_RELAXED); i++) {
        uint32_t tokens[LONG], n = x->make(&r, tokens, i % 4 == 0);
        struct index_query q = tree_query(tokens, n);
        struct index_found f;
        REQUIRE(index_walk(&v, 0, &q, n, &f));
        if (f.where.depth > n || !allowed(tokens, f.where.depth))
            ck_abort_msg("%u tokens matched that were never there", f.where.depth);
        look_closer(&v, &f, tokens, n);
        x->s->walks[x->me]++;
        x->s->matched[x->me] += f.where.depth > 0;
    }
}

START_TEST(reader_processes_under_a_writer)
{
    struct tree t;
    maker *make = _i ? close_by : wild;
    tree_new(&t, 1, POOL);
    struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct rng r = rng_seeded("reader");
    struct reading x[READERS];
    struct child c[READERS];
    for (int i = 0; i < READERS; i++) {
        x[i] = (struct reading){&t, s, make, i, rng_next(&r)};
        child_start(&c[i], reader, &x[i]);
        child_wait(&c[i]);
    }
    uint64_t until = now_ms() + 60000;
    for (unsigned i = 0; i < 200000 || (!have_read(s, READERS) && now_ms() < until); i++)
        change(&t, make, &r);
    __atomic_store_n(&s->done, true, __ATOMIC_RELAXED);
    for (int i = 0; i < READERS; i++)
        child_join(&c[i]);
    REQUIRE(have_read(s, READERS));
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

/* All that is ever inserted carries an image over block 4; half of the readers ask without it.
 * Blocks from there on come and go: nobody without the image may ever match them. */
enum { PLAIN = 4, PICTURED = 8 };

static const struct wire_extra picture = {.at = PLAIN, .len = 1, .digest = "a picture"};

static void reader_without(struct child *me, void *arg)
{
    struct reading *x = arg;
    static const uint32_t tokens[PICTURED];
    struct index_view v;
    REQUIRE(index_view_init(&v, x->t->header, x->t->bytes));
    child_post(me, 1);
    while (!__atomic_load_n(&x->s->done, __ATOMIC_RELAXED)) {
        struct index_query q = tree_query(tokens, PICTURED);
        struct index_found f;
        REQUIRE(index_walk(&v, 0, &q, PICTURED, &f));
        REQUIRE_MSG(f.where.depth <= PLAIN, "%u blocks matched without the image", f.where.depth);
        x->s->walks[x->me]++;
        x->s->matched[x->me] += f.where.depth > 0;
    }
}

START_TEST(reader_extras_under_a_writer)
{
    struct tree t;
    tree_new(&t, 1, POOL);
    struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static const uint32_t tokens[PICTURED];
    struct index_query q = tree_query(tokens, PICTURED);
    q.extras = &picture;
    q.n_extras = 1;
    struct reading x = {&t, s, NULL, 0, 0};
    struct child c;
    child_start(&c, reader_without, &x);
    child_wait(&c);
    uint64_t until = now_ms() + 60000;
    for (unsigned i = 0; i < 300000 || (!have_read(s, 1) && now_ms() < until); i++) {
        struct place where = tree_insert_query(&t, &q);
        REQUIRE_EQ(where.depth, PICTURED);
        index_evict(t.ix, PICTURED - i % 3);
    }
    __atomic_store_n(&s->done, true, __ATOMIC_RELAXED);
    child_join(&c);
    REQUIRE(have_read(s, 1));
    tree_audit(&t);
    tree_free(&t);
}
END_TEST

/* ---- alone ---------------------------------------------------------------------------------- */

/* A walk is exact: as far as the daemon's own match, after any changes. */
START_TEST(reader_agrees_with_the_writer)
{
    struct tree t;
    tree_new(&t, 1, POOL);
    struct rng r = rng_seeded("reader");
    struct index_view v;
    REQUIRE(index_view_init(&v, t.header, t.bytes));
    for (int i = 0; i < 40000; i++) {
        maker *make = i % 2 ? close_by : wild;
        uint32_t tokens[LONG], n = make(&r, tokens, false);
        change(&t, make, &r);
        struct index_query q = tree_query(tokens, n);
        struct index_found f;
        REQUIRE(index_walk(&v, 0, &q, n, &f));
        struct place exact = tree_match(&t, tokens, n);
        REQUIRE_EQ(f.where.depth, exact.depth);
        REQUIRE_EQ(f.where.identity, exact.identity);
        REQUIRE(!f.ask);
        look_closer(&v, &f, tokens, n);
    }
    tree_free(&t);
}
END_TEST

/* A daemon stopped in the middle of a change: every walk ends, with less or with what is right. */
START_TEST(reader_ends_under_a_change_that_never_does)
{
    struct tree t;
    tree_new(&t, 1, POOL);
    struct index_view v;
    REQUIRE(index_view_init(&v, t.header, t.bytes));
    static const uint32_t run[] = {0, 0, 0, 0}, branch[] = {0, 0, 1};
    tree_insert(&t, run, 4);
    tree_insert(&t, branch, 3);
    for (uint32_t id = 1; id < 6; id++) {
        struct index_node *n = (struct index_node *)(uintptr_t)index_node_at(&v, id);
        n->version++; /* odd */
        struct index_query q = tree_query(run, 4);
        struct index_found f;
        REQUIRE(index_walk(&v, 0, &q, 4, &f));
        REQUIRE(f.where.depth <= 4);
        n->version++;
    }
    tree_free(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("readers");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, reader_between_changes, 0, 3);
    tcase_add_loop_test(t, reader_processes_under_a_writer, 0, 2);
    tcase_add_test(t, reader_extras_under_a_writer);
    tcase_add_test(t, reader_agrees_with_the_writer);
    tcase_add_test(t, reader_ends_under_a_change_that_never_does);
    suite_add_tcase(s, t);
    return s;
}
