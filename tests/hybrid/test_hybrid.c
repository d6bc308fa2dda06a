/*
 * The proof: answers through the cache are those without any, to the last bit of the logits, for
 * random conversations, two workers in turn, turns that overlap, and whatever else may happen to
 * the cache between turns and during them: evictions, spills, flushes, another that holds all
 * slots.
 *
 * Each shape below is a daemon of its own, with CONVERSATIONS conversations. What must have
 * happened for the comparison to mean anything is counted, and required. PFX_SEED=<printed> repeats
 * a run.
 */
#include "tests/hybrid/conversation.h"
#include "tests/hybrid/stand.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CONVERSATIONS = 24, LIVE_MAX = 7, WORKERS = 2, ADAPTERS = 2 };

struct shape {
    const char *name;
    uint32_t block_tokens, stride, live; /* conversations that take turns */
    uint32_t n_blocks, n_slots, swap_slots;
    const char *alpha;
    bool states_only;
    /* So often at least, in any run. */
    uint32_t restores, unaligned, copies, truncations, other_worker, other_session, fetches;
};

static const struct shape shapes[] = {
    {"roomy", 4, 8, 6, 2000, 500, 0, "0", false, 30, 8, 8, 15, 6, 4, 0},
    {"wide blocks", 16, 24, 6, 600, 500, 0, "0", false, 30, 15, 15, 15, 6, 4, 0},
    {"few blocks", 4, 12, 3, 70, 40, 0, "0", false, 25, 5, 5, 15, 5, 3, 0},
    {"few wide blocks", 16, 16, 3, 20, 40, 0, "0.5", false, 25, 8, 8, 8, 5, 3, 0},
    {"one slot", 4, 8, 1, 500, 1, 0, "0", false, 8, 5, 5, 30, 2, 0, 0},
    {"two slots", 16, 16, 2, 200, 2, 0, "0", false, 8, 5, 5, 30, 2, 0, 0},
    {"three slots", 4, 16, 2, 500, 3, 0, "0.1", false, 10, 6, 6, 30, 3, 0, 0},
    {"two slots and a tier", 4, 10, 6, 500, 2, 60, "0", false, 30, 12, 12, 15, 6, 4, 10},
    {"slots and a tier", 16, 32, 6, 300, 8, 40, "0.1", false, 30, 12, 12, 15, 6, 4, 8},
    {"states only", 4, 6, 6, 500, 12, 20, "0", true, 25, 12, 12, 20, 5, 3, 5},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
_Static_assert(SHAPES *CONVERSATIONS >= 200, "the proof is promised for 200 conversations a run");

struct worker {
    struct engine e;
    pfx_space space[ADAPTERS];
};

/* A conversation and what the test knows of it: who filed states of it, how deep. */
struct thread {
    struct conversation c, other;
    uint32_t adapter, n_served;
    uint32_t deepest[WORKERS];
};

struct world {
    const struct shape *shape;
    struct host host;
    struct rng rng;
    struct hybrid *model[ADAPTERS]; /* the adapter's weights are all others */
    struct worker workers[WORKERS];
    struct talk talk;
    struct thread threads[LIVE_MAX];
    uint64_t hog; /* a lease that holds slots and blocks; 0: none */
    uint64_t other_worker, other_session, spills, flushes, overlapped;
};

static uint32_t dice(struct world *w, uint32_t n)
{
    return rng_below(&w->rng, n);
}

static bool one_in(struct world *w, uint32_t n)
{
    return dice(w, n) == 0;
}

/* ---- a daemon, two workers ------------------------------------------------------------------ */

static void open_worker(struct world *w, struct worker *worker)
{
    worker_attach(&worker->e, &w->host, w->model[0], NULL);
    struct pfx_space_desc adapter = {.size = sizeof adapter, .adapter_id = 7};
    worker->space[0] = 0;
    ck_assert_int_eq(pfx_space_open(worker->e.c, &adapter, &worker->space[1]), 0);
}

static void world_begin(struct world *w, const struct shape *shape)
{
    *w = (struct world){.shape = shape, .rng = rng_seeded(shape->name)};
    for (uint32_t i = 0; i < ADAPTERS; i++)
        w->model[i] = hybrid_new(i + 1, shape->block_tokens, shape->states_only);
    struct daemon_options o;
    daemon_options(
        &o, w->model[0],
        &(struct pool_sizes){shape->n_blocks, shape->n_slots, shape->swap_slots, shape->alpha});
    host_start(&w->host, o.argv);
    for (uint32_t i = 0; i < WORKERS; i++)
        open_worker(w, &w->workers[i]);
    talk_begin(&w->talk, &w->rng, shape->block_tokens, shape->stride);
}

static void world_end(struct world *w)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        pfx_close(w->workers[i].e.c);
    audit_clean(&w->host);
    host_stop(&w->host);
    for (uint32_t i = 0; i < ADAPTERS; i++)
        hybrid_free(w->model[i]);
}

/* ---- turns -------------------------------------------------------------------------------------
 */

struct play {
    struct thread *thread;
    uint32_t worker, restored, deepest[WORKERS];
    struct request rq;
    struct conversation c; /* as it was when the turn began */
    struct hybrid_answer plain, cached;
    struct turn *turn;
    bool again; /* beside another turn with the same prompt: that one goes on */
};

/* The next prompt of some conversation, or a new one. The last is for a turn beside another's. */
static struct thread *pick(struct world *w, bool beside)
{
    uint32_t live = w->shape->live;
    struct thread *t = &w->threads[beside ? live : dice(w, live)];
    if (t->n_served && !one_in(w, 6) && talk_next(&w->talk, &t->c, &t->other))
        return t;
    struct thread *like = &w->threads[dice(w, live + 1)];
    bool copied = like->n_served && one_in(w, 2);
    struct thread fresh = {.adapter = copied ? like->adapter : one_in(w, 5)};
    talk_open(&w->talk, &fresh.c, copied ? &like->c : NULL);
    *t = fresh;
    return t;
}

static struct request policy(struct world *w, const struct play *p)
{
    const struct conversation *c = &p->c;
    struct request rq = {.model = w->model[p->thread->adapter],
                         .space = w->workers[p->worker].space[p->thread->adapter],
                         .session = c->session,
                         .prompt = conversation_text(c),
                         .n_tokens = c->n,
                         .n_decode = 1 + dice(w, HYBRID_DECODE),
                         .chunk = 1 + dice(w, 40),
                         .stride = one_in(w, 3) ? 0 : w->shape->stride,
                         .save_before_end = one_in(w, 2),
                         .save_end = one_in(w, 2),
                         .flags = one_in(w, 2) ? PFX_FETCH : 0,
                         .snapshot_multiple = one_in(w, 10) ? w->shape->block_tokens : 0};
    rq.flags |= one_in(w, 15) ? PFX_NO_MATCH : one_in(w, 10) ? PFX_NO_TAIL : 0;
    rq.finish = dice(w, c->session ? FINISH_TAIL_AND_SIBLING + 1 : FINISH_EXACT + 1);
    return rq;
}

static void play_begin(struct world *w, struct play *p, const struct play *beside)
{
    p->again = beside && one_in(w, 3);
    p->thread = p->again ? beside->thread : pick(w, beside != NULL);
    p->worker = dice(w, WORKERS);
    p->c = p->thread->c;
    memcpy(p->deepest, p->thread->deepest, sizeof p->deepest);
    p->rq = policy(w, p);
    REQUIRE(hybrid_plain(p->rq.model, &p->rq.prompt, p->rq.n_tokens, p->rq.n_decode,
                         1 + dice(w, 64), &p->plain));
    REQUIRE(hybrid_answer_finite(&p->plain));
    p->turn = turn_begin(&w->workers[p->worker].e, &p->rq);
}

static void count_hits(struct world *w, const struct play *p)
{
    const uint32_t *deepest = p->deepest;
    w->other_session += p->thread->n_served == 0 && !p->again && p->restored > 0;
    w->other_worker += p->restored > deepest[p->worker] && p->restored <= deepest[!p->worker];
}

static void play_end(struct world *w, struct play *p)
{
    struct thread *t = p->thread;
    p->restored = turn_restored(p->turn);
    count_hits(w, p);
    turn_end(p->turn, &p->cached);
    REQUIRE_MSG(hybrid_answers_equal(&p->plain, &p->cached),
                "other bits: %u tokens, restored at %u, session %" PRIu64, p->rq.n_tokens,
                p->restored, t->c.session);
    uint32_t depth = p->rq.n_tokens + p->rq.n_decode - 1;
    if (depth > t->deepest[p->worker])
        t->deepest[p->worker] = depth;
    if (p->again)
        return;
    talk_answer(&t->c, &p->cached);
    t->n_served++;
}

/* ---- what else happens
 * ---------------------------------------------------------------------------- */

static void flush(struct world *w)
{
    REQUIRE_EQ(pfx_flush(w->workers[dice(w, WORKERS)].e.c, PFX_ALL_SPACES), 0);
    w->flushes++;
}

static void spill(struct world *w, pfx *c)
{
    struct pfx_spilled spilled = {.size = sizeof spilled};
    int rc = pfx_snapshot_spill(c, one_in(w, 4) ? 20 : 0, &spilled);
    REQUIRE(rc == 0 || rc == PFX_ENOENT);
    if (rc < 0 || spilled.dropped)
        return;
    w->spills++;
    if (one_in(w, 6))
        REQUIRE_EQ(pfx_snapshot_forget(c, spilled.key), 0);
}

/* Up to a quarter of what there is, and one. */
static uint32_t some(struct world *w, uint64_t n)
{
    return 1 + dice(w, (uint32_t)n / 4 + 1);
}

static void disturb(struct world *w)
{
    pfx *c = w->workers[dice(w, WORKERS)].e.c;
    struct pfx_stats now = worker_stats(&w->workers[0].e);
    struct pfx_evicted evicted = {.size = sizeof evicted};
    if (one_in(w, 4))
        REQUIRE(pfx_evict(c, some(w, now.blocks_idle), &evicted) >= 0);
    for (uint32_t n = one_in(w, w->shape->swap_slots ? 2 : 6) ? some(w, now.snapshots) : 0; n; n--)
        spill(w, c);
    for (uint32_t n = one_in(w, 6) ? some(w, now.snapshots) : 0; n; n--) {
        int rc = pfx_snapshot_evict(c);
        REQUIRE(rc >= 0 || rc == PFX_ENOENT);
    }
    if (one_in(w, 60))
        flush(w);
}

/* Another worker that holds some slots, of a few maybe all, and up to half of the blocks. */
static void hog_take(struct world *w)
{
    pfx *c = w->workers[0].e.c;
    struct pfx_lookup_args args = {.size = sizeof args, .flags = PFX_NO_MATCH};
    struct pfx_match m = {.size = sizeof m};
    REQUIRE_EQ(pfx_lookup(c, &args, &m), 0);
    w->hog = m.lease;
    uint32_t slot, block;
    for (uint32_t n = dice(w, w->shape->n_slots) % 8 + 1; n; n--)
        if (pfx_snapshot_reserve(c, m.lease, &slot) < 0)
            break;
    for (uint32_t n = dice(w, w->shape->n_blocks / 2); n; n--)
        if (pfx_reserve(c, m.lease, 1, &block) < 0)
            break;
}

static void hog_release(struct world *w)
{
    if (w->hog)
        REQUIRE_EQ(pfx_release(w->workers[0].e.c, w->hog), 0);
    w->hog = 0;
}

/* One turn, or two that overlap; and whatever before it restores, after it, or in its middle. */
static void step(struct world *w)
{
    struct play a, b;
    bool two = one_in(w, 4);
    if (one_in(w, 10))
        hog_take(w);
    play_begin(w, &a, NULL);
    if (two)
        play_begin(w, &b, &a);
    if (one_in(w, 4))
        disturb(w);
    while (two && turn_step(dice(w, 2) ? a.turn : b.turn))
        if (one_in(w, 300))
            flush(w);
    while (turn_step(a.turn))
        ;
    play_end(w, &a);
    while (two && turn_step(b.turn))
        ;
    if (two)
        play_end(w, &b);
    w->overlapped += two;
    hog_release(w);
    disturb(w);
    audit_clean(&w->host);
}

/* ---- the test
 * -------------------------------------------------------------------------------------- */

static struct engine_counts counts(const struct world *w)
{
    struct engine_counts sum = {.turns = 0};
    for (uint32_t i = 0; i < WORKERS; i++)
        engine_counts_add(&sum, &w->workers[i].e.counts);
    return sum;
}

static void report(const struct world *w)
{
    struct engine_counts n = counts(w);
    fprintf(stderr, "%s: %" PRIu64 " conversations", w->shape->name, w->talk.begun);
#define X(name, words) fprintf(stderr, ", %" PRIu64 " %s", n.name, words);
    ENGINE_COUNTS(X)
#undef X
    fprintf(stderr, ", %" PRIu64 " hits of the other worker, %" PRIu64 " of another session\n",
            w->other_worker, w->other_session);
}

/* What has not happened often enough yet; NULL: nothing. */
static const char *lacking(struct world *w)
{
    const struct shape *s = w->shape;
    const struct engine_counts n = counts(w);
    const struct pfx_stats now = worker_stats(&w->workers[0].e);
    const struct {
        const char *what;
        uint64_t value, least;
    } needs[] = {
        {"states restored", n.restores, s->restores},
        {"at unaligned depths", n.unaligned, s->unaligned},
        {"blocks copied", n.block_copies + n.tail_copies, s->copies},
        {"truncations", n.truncations, s->truncations},
        {"hits of the other worker", w->other_worker, s->other_worker},
        {"hits of another session", w->other_session, s->other_session},
        {"fetches", n.fetches, s->fetches},
        {"spills by call", w->spills, s->swap_slots ? 5 : 0},
        {"turns beside another", w->overlapped, 5},
        {"conversations taken up again", w->talk.returned, 2},
        {"images changed", w->talk.repainted, 1},
        {"prompts before a block's end", w->talk.by_block[0], 1},
        {"prompts at a block's end", w->talk.by_block[1], 1},
        {"prompts behind a block's end", w->talk.by_block[2], 1},
        {"prompts before a stride's end", w->talk.by_stride[0], 1},
        {"prompts at a stride's end", w->talk.by_stride[1], 1},
        {"prompts behind a stride's end", w->talk.by_stride[2], 1},
        {"blocks evicted", now.evicted_blocks, 10},
        {"states evicted or spilled", now.snapshot_evictions + now.snapshot_spills, 10},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if (needs[i].value < needs[i].least)
            return needs[i].what;
    return NULL;
}

/* The daemon has counted what we know of. */
static void counted(struct world *w)
{
    const struct engine_counts n = counts(w);
    const struct pfx_stats now = worker_stats(&w->workers[0].e);
    ck_assert_uint_ge(now.snapshot_spills, w->spills);
    ck_assert_uint_ge(now.snapshot_fetches, n.fetches);
    ck_assert_uint_ge(now.snapshot_hits, n.restores);
    ck_assert_uint_le(now.snapshot_saves, n.saves); /* not where an exact state served a sibling */
}

/* An unlucky run goes on until it has seen everything, but not for ever. */
START_TEST(same_bits)
{
    struct world w;
    world_begin(&w, &shapes[_i]);
    while (w.talk.begun < CONVERSATIONS || (lacking(&w) && w.talk.begun < 6 * CONVERSATIONS))
        step(&w);
    report(&w);
    const char *lack = lacking(&w);
    ck_assert_msg(lack == NULL, "not enough: %s", lack);
    counted(&w);
    nothing_is_held(&w.workers[0].e);
    world_end(&w);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid");
    TCase *c = tcase_create("proof");
    tcase_set_timeout(c, 60 * SLOW);
    tcase_add_loop_test(c, same_bits, 0, SHAPES);
    suite_add_tcase(s, c);
    return s;
}
