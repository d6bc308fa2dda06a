/*
 * Readers in the middle of one change: the daemon may stand still between any two of its steps for
 * as long as the machine likes. It runs in a thread of its own here and is stopped after each
 * node_end, before each node_begin and before a node is freed (wrapped), while a reader that began
 * before the change, and was interrupted between any two of its loads, goes on to its end.
 *
 *      reader   load .. load |                     load .. load |
 *      daemon                | begin .. end .. end |            | end .. free
 *                            `at` of them          `stop` of them
 *
 * hooked_read.h has the reader, and shows whole changes alone.
 */
#include "daemon/index_private.h"
#include "tests/unit/hooked_read.h"
#include "tests/unit/tree.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>

enum { POOL = 20, MOST = 5, NO_SNAPSHOT = 0 };

/* One-token blocks. Sequences end with 0. */
struct half {
    const char *name;
    uint32_t before[2][MOST]; /* what is there, oldest first */
    uint32_t evict;           /* the change: so many blocks go, */
    uint32_t insert[MOST];    /* or else this comes */
    uint32_t asked[MOST];
    uint32_t stays;    /* blocks of it that are there all the time */
    uint32_t image;    /* the block that has one */
    uint32_t snapshot; /* depth of one that stays on the path that is asked for */
};

static const struct half halves[] = {
    {"merge", {{1, 2}, {1, 3}}, 1, {0}, {1, 3}, 2, 0, 1},
    {"merge, what went", {{1, 2}, {1, 3}}, 1, {0}, {1, 2}, 1, 0, NO_SNAPSHOT},
    {"merge, image below", {{1, 2}, {1, 3}}, 1, {0}, {1, 3}, 2, 1, 2},
    {"cut", {{1, 2}}, 1, {0}, {1, 2}, 1, 0, 1},
    {"cut, image there", {{1, 2}}, 1, {0}, {1, 2}, 1, 1, 1},
    {"a leaf goes", {{1}, {2}}, 1, {0}, {1}, 0, 0, NO_SNAPSHOT},
    {"split", {{1, 2}}, 0, {1, 3}, {1, 2}, 2, 0, 1},
    {"split, image below", {{1, 2}}, 0, {1, 3}, {1, 2}, 2, 1, 2},
    {"append", {{1, 2}}, 0, {1, 2, 3, 4}, {1, 2, 3, 4}, 2, 0, 1},
    {"append with an image", {{1, 2}}, 0, {1, 2, 3, 4}, {1, 2, 3, 4}, 2, 2, 2},
};

static struct wire_extra image_at(uint32_t block)
{
    return (struct wire_extra){.at = block, .len = 1, .digest = {9}};
}

static struct index_query query_of(const uint32_t *tokens, const struct wire_extra *image)
{
    size_t n = 0;
    while (n < MOST && tokens[n])
        n++;
    return (struct index_query){.tokens = tokens, .n_tokens = n, .extras = image, .n_extras = 1};
}

/* ---- the daemon ------------------------------------------------------------------------- */

static struct {
    struct tree t;
    const struct half *what;
    struct wire_extra image;
    uint32_t loads, at;   /* of the reader */
    uint32_t stops, stop; /* of the daemon */
    bool begun, stopped;
    pthread_t thread;
    sem_t standing, go;
} run;
static __thread bool is_daemon;

void __real_node_begin(struct index *ix, uint32_t id);
void __real_node_end(struct index *ix, uint32_t id);
void __real_node_free(struct index *ix, uint32_t id);
void __wrap_node_begin(struct index *ix, uint32_t id);
void __wrap_node_end(struct index *ix, uint32_t id);
void __wrap_node_free(struct index *ix, uint32_t id);

static void may_stop(void)
{
    if (!is_daemon || run.stops++ != run.stop)
        return;
    run.stopped = true;
    sem_post(&run.standing);
    while (sem_wait(&run.go))
        ;
}

void __wrap_node_begin(struct index *ix, uint32_t id)
{
    may_stop();
    __real_node_begin(ix, id);
}

void __wrap_node_end(struct index *ix, uint32_t id)
{
    __real_node_end(ix, id);
    may_stop();
}

void __wrap_node_free(struct index *ix, uint32_t id)
{
    may_stop();
    __real_node_free(ix, id);
}

static void *change(void *arg)
{
    const struct half *what = arg;
    is_daemon = true;
    if (what->evict) {
        index_evict(run.t.ix, what->evict);
    } else {
        struct index_query q = query_of(what->insert, &run.image);
        tree_insert_query(&run.t, &q);
    }
    if (!run.stopped)
        sem_post(&run.standing);
    return NULL;
}

/* Before each load of the reader. */
static void half_a_change(void)
{
    if (run.loads++ != run.at)
        return;
    run.begun = true;
    REQUIRE(pthread_create(&run.thread, NULL, change, (void *)(uintptr_t)run.what) == 0);
    while (sem_wait(&run.standing))
        ;
}

static void nothing(void)
{
}

/* ---- readers ------------------------------------------------------------------------------ */

/* `where` is the place of what stays, from before the change. */
typedef void reader(const struct half *what, const struct index_view *v, struct place where);

#define RIGHT(expr, ...)                                                                           \
    ck_assert_msg(expr, "%s: before load %u, at stop %u: " #expr, what->name, run.at, run.stop)

static void walks_without_the_image(const struct half *what, const struct index_view *v,
                                    struct place where)
{
    (void)where;
    struct index_query q = query_of(what->asked, NULL);
    q.n_extras = 0;
    struct index_found f = {0};
    REQUIRE(hooked_index_walk(v, 0, &q, MOST, &f));
    RIGHT(f.where.depth <= what->image);
}

static void walks(const struct half *what, const struct index_view *v, struct place where)
{
    (void)where;
    struct index_query q = query_of(what->asked, &run.image);
    struct index_found f = {0};
    REQUIRE(hooked_index_walk(v, 0, &q, MOST, &f));
    RIGHT(f.ask || f.where.depth >= what->stays);
}

static void agrees_without_the_image(const struct half *what, const struct index_view *v,
                                     struct place where)
{
    struct index_query q = query_of(what->asked, NULL);
    q.n_extras = 0;
    q.n_tokens = what->stays;
    bool agrees = hooked_index_path_agrees(v, where, &q) == 1;
    RIGHT(!agrees || what->image >= what->stays);
}

static void finds_the_snapshot(const struct half *what, const struct index_view *v,
                               struct place where)
{
    const struct snapshot_want want = {.states = SNAPSHOT_RESIDENT};
    struct snapshots_found found;
    bool there = hooked_index_snapshots(v, where, &want, &found);
    RIGHT(!there || found.resident.depth == what->snapshot);
}

/* ---- all of them -------------------------------------------------------------------------- */

static void run_new(const struct half *what)
{
    static const struct residue none = {0};
    tree_new_with(&run.t, 1, POOL, 4, UINT64_MAX);
    run.what = what;
    run.image = image_at(what->image);
    for (int i = 0; i < 2; i++) {
        struct index_query q = query_of(what->before[i], &run.image);
        if (q.n_tokens)
            tree_insert_query(&run.t, &q);
    }
    if (what->snapshot) {
        struct index_query q = query_of(what->asked, &run.image);
        q.n_tokens = what->snapshot;
        struct place at = tree_root(&run.t);
        index_match(run.t.ix, &q, what->snapshot, &at);
        REQUIRE_EQ(at.depth, what->snapshot);
        index_snapshot_add(run.t.ix, 1, at, &none, SNAPSHOT_EXACT, 0, 1, 0);
    }
    run.loads = run.stops = 0;
    run.begun = run.stopped = false;
    REQUIRE(sem_init(&run.standing, 0, 0) == 0 && sem_init(&run.go, 0, 0) == 0);
}

/* One reader over one half of a change. */
static void run_once(const struct half *what, reader *read)
{
    run_new(what);
    struct index_query q = query_of(what->asked, &run.image);
    struct place where = tree_root(&run.t);
    index_match(run.t.ix, &q, what->stays, &where);
    hooked_between_loads = half_a_change;
    read(what, index_view_of(run.t.ix), where);
    hooked_between_loads = nothing;
    if (run.begun) {
        sem_post(&run.go);
        pthread_join(run.thread, NULL);
        tree_audit(&run.t);
    }
    tree_free(&run.t);
}

static void read_in_halves(reader *read)
{
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        uint32_t most = 0;
        run.stop = 0;
        do {
            run.at = 0;
            do {
                run_once(&halves[i], read);
                most = run.stops > most ? run.stops : most;
            } while (run.at++ < run.loads);
        } while (run.stop++ < most);
        REQUIRE(run.stop > 2);
    }
}

START_TEST(e31_no_match_without_the_image_in_a_change)
{
    read_in_halves(walks_without_the_image);
    read_in_halves(agrees_without_the_image);
}
END_TEST

START_TEST(reader_finds_what_stays_in_a_change)
{
    read_in_halves(walks);
    read_in_halves(finds_the_snapshot);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("changes by halves");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, e31_no_match_without_the_image_in_a_change);
    tcase_add_test(t, reader_finds_what_stays_in_a_change);
    suite_add_tcase(s, t);
    return s;
}
