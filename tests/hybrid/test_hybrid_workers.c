/*
 * Answers stay the same when a conversation wanders between processes, when the process that
 * computes one is killed at any point of a turn, and when the daemon is.
 *
 *   test ---- child_post(SERVE) ----> worker process: serves stage->rq
 *     |  <--- child_post(POINT) ----  it has come to the point where it is to die, and waits
 *     |  <--- child_post(DONE) -----  the answer is in stage->answer
 *
 * The stage is memory that all of them share; the model is made before the fork.
 */
#include "tests/hybrid/conversation.h"
#include "tests/hybrid/stand.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SERVE = 1, LEAVE, POINT, DONE };
enum { DECODED = 6, CHUNK = 11, SLOTS = 12 };

struct stage {
    struct request rq;
    struct conversation c;
    struct hybrid_answer answer;
    uint32_t restored;
    enum engine_point die_at;
    uint32_t die_nth; /* 0: nowhere */
};

struct theatre {
    struct host host;
    struct daemon_options options;
    struct rng rng;
    struct talk talk;
    struct hybrid *model;
    struct stage *stage;
    const char *group;
};

struct actor {
    struct child *me;
    struct stage *stage;
};

static void maybe_wait_for_death(void *arg, enum engine_point point)
{
    struct actor *a = arg;
    if (!a->stage->die_nth || point != a->stage->die_at || --a->stage->die_nth)
        return;
    child_post(a->me, POINT);
    for (;;)
        pause();
}

static void actor_main(struct child *me, void *arg)
{
    struct theatre *t = arg;
    struct actor actor = {me, t->stage};
    struct engine e;
    worker_attach(&e, &t->host, t->model, t->group);
    e.at = maybe_wait_for_death;
    e.arg = &actor;
    while (child_wait(me) == SERVE) {
        t->stage->restored = engine_serve(&e, &t->stage->rq, &t->stage->answer);
        child_post(me, DONE);
    }
    pfx_close(e.c);
}

static void theatre_begin(struct theatre *t, uint32_t block_tokens)
{
    *t = (struct theatre){.rng = rng_seeded("workers")};
    t->model = hybrid_new(3, block_tokens, false);
    daemon_options(&t->options, t->model,
                   &(struct pool_sizes){.n_blocks = 800, .n_slots = SLOTS, .swap_slots = 10});
    host_start(&t->host, t->options.argv);
    talk_begin(&t->talk, &t->rng, block_tokens, 3 * block_tokens / 2);
    t->stage =
        mmap(NULL, sizeof *t->stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(t->stage, MAP_FAILED);
}

static void theatre_end(struct theatre *t)
{
    audit_clean(&t->host);
    host_stop(&t->host);
    hybrid_free(t->model);
    munmap(t->stage, sizeof *t->stage);
}

/* A user who says something, in a session of his own; without images, as a tail block is offered
 * only up to one, and these tests know how deep a restore has to go. */
static void open_conversation(struct theatre *t, struct conversation *c)
{
    talk_open(&t->talk, c, NULL);
    c->n_images = 0;
    c->session = ++t->talk.last_session;
}

static struct request turn_of(struct theatre *t, const struct conversation *c)
{
    t->stage->c = *c;
    return (struct request){.model = t->model,
                            .session = c->session,
                            .prompt = conversation_text(&t->stage->c),
                            .n_tokens = c->n,
                            .n_decode = DECODED,
                            .chunk = CHUNK,
                            .stride = t->talk.stride,
                            .save_before_end = true,
                            .save_end = true,
                            .finish = FINISH_TAIL_AND_SIBLING,
                            .flags = PFX_FETCH};
}

static void same_answer(struct theatre *t, const struct hybrid_answer *cached)
{
    const struct request *rq = &t->stage->rq;
    struct hybrid_answer plain;
    ck_assert(hybrid_plain(t->model, &rq->prompt, rq->n_tokens, rq->n_decode, 64, &plain));
    ck_assert(hybrid_answers_equal(&plain, cached));
}

/* One turn by that process, and its answer checked. Returns the tokens restored. */
static uint32_t serve(struct theatre *t, struct child *worker, struct conversation *c)
{
    t->stage->rq = turn_of(t, c);
    child_post(worker, SERVE);
    ck_assert_uint_eq(child_wait(worker), DONE);
    same_answer(t, &t->stage->answer);
    talk_answer(c, &t->stage->answer);
    audit_clean(&t->host);
    return t->stage->restored;
}

static void say_more(struct theatre *t, struct conversation *c)
{
    uint32_t n = 2 + rng_below(&t->rng, 20);
    while (n-- && c->n < PROMPT_TOKENS)
        c->tokens[c->n++] = rng_below(&t->rng, HYBRID_VOCABULARY);
}

static void leave(struct child *worker)
{
    child_post(worker, LEAVE);
    child_join(worker);
}

/* Two processes in turn: each goes on exactly where the other stopped, inside a block or not, and
 * computes nothing that the other has computed. */
START_TEST(two_processes_in_turn)
{
    struct theatre t;
    theatre_begin(&t, _i);
    struct child worker[2];
    child_start(&worker[0], actor_main, &t);
    child_start(&worker[1], actor_main, &t);
    unsigned unaligned = 0;
    for (unsigned i = 0; i < 8; i++) {
        struct conversation c;
        open_conversation(&t, &c);
        serve(&t, &worker[i % 2], &c);
        for (unsigned turn = 1; turn < 5; turn++) {
            uint32_t computed = c.n - 1; /* of the last token there is no KV yet */
            say_more(&t, &c);
            uint32_t restored = serve(&t, &worker[(i + turn) % 2], &c);
            ck_assert_uint_eq(restored, computed);
            unaligned += restored % (uint32_t)_i != 0;
        }
    }
    ck_assert_uint_ge(unaligned, 8);
    leave(&worker[0]);
    leave(&worker[1]);
    theatre_end(&t);
}
END_TEST

/* ---- a worker is killed ------------------------------------------------------------------------
 */

/* Its second turn ends at that point, by SIGKILL. False: it never came there, and was done. */
static bool die(struct theatre *t, struct child *worker, const struct conversation *c,
                enum engine_point point, uint32_t nth)
{
    t->stage->rq = turn_of(t, c);
    t->stage->die_at = point;
    t->stage->die_nth = nth;
    child_post(worker, SERVE);
    bool there = child_wait(worker) == POINT;
    child_kill(worker, SIGKILL);
    t->stage->die_nth = 0;
    return there;
}

/* Two turns of a conversation, the second interrupted; another worker serves it, and one more. */
static bool killed_conversation(struct theatre *t, struct child *heir, enum engine_point point,
                                uint32_t nth)
{
    struct conversation c;
    struct child victim;
    child_start(&victim, actor_main, t);
    open_conversation(t, &c);
    serve(t, &victim, &c);
    uint32_t computed = c.n - 1;
    say_more(t, &c);
    bool died = die(t, &victim, &c, point, nth);
    uint32_t restored = serve(t, heir, &c);
    ck_assert_uint_ge(restored, computed); /* what the dead one had filed, before or then */
    say_more(t, &c);
    serve(t, heir, &c);
    return died;
}

/* _i: the point, and whether both are of one group, so that what the dead one held stays held until
 * the heir leaves. */
START_TEST(killed_in_mid_turn)
{
    struct theatre t;
    theatre_begin(&t, _i % 2 ? 4 : 16);
    t.group = _i / ENGINE_POINTS ? "mates" : NULL;
    enum engine_point point = _i % ENGINE_POINTS;
    struct child heir;
    child_start(&heir, actor_main, &t);
    unsigned died = 0;
    for (uint32_t nth = 1; nth <= 3; nth++)
        died += killed_conversation(&t, &heir, point, nth);
    ck_assert_uint_ge(died, 1);
    leave(&heir);
    struct engine last;
    worker_attach(&last, &t.host, t.model, NULL);
    nothing_is_held(&last);
    pfx_close(last.c);
    theatre_end(&t);
}
END_TEST

/* ---- the daemon is killed
 * -------------------------------------------------------------------------- */

struct assassin {
    struct host *host;
    enum engine_point point;
    bool done;
};

static void kill_daemon(void *arg, enum engine_point point)
{
    struct assassin *a = arg;
    if (a->done || point != a->point)
        return;
    host_kill(a->host);
    a->done = true;
}

static void serve_here(struct theatre *t, struct engine *e, struct conversation *c)
{
    struct hybrid_answer a;
    t->stage->rq = turn_of(t, c);
    engine_serve(e, &t->stage->rq, &a);
    same_answer(t, &a);
    talk_answer(c, &a);
}

/* The turn goes on with what it has, and its answer is the same; a new daemon starts cold. */
START_TEST(daemon_killed_in_mid_turn)
{
    struct theatre t;
    theatre_begin(&t, _i % 2 ? 4 : 16);
    struct engine e;
    worker_attach(&e, &t.host, t.model, NULL);
    struct conversation c;
    open_conversation(&t, &c);
    serve_here(&t, &e, &c);
    say_more(&t, &c);
    struct assassin assassin = {&t.host, _i, false};
    e.at = kill_daemon;
    e.arg = &assassin;
    serve_here(&t, &e, &c);
    ck_assert(assassin.done);
    ck_assert_uint_eq(e.counts.alone, 1);
    ck_assert_uint_eq(e.counts.restores, 1);
    say_more(&t, &c);
    serve_here(&t, &e, &c); /* without any daemon */
    pfx_close(e.c);
    host_again(&t.host, t.options.argv);
    worker_attach(&e, &t.host, t.model, NULL);
    say_more(&t, &c);
    serve_here(&t, &e, &c);
    say_more(&t, &c);
    serve_here(&t, &e, &c);
    ck_assert_uint_eq(e.counts.restores, 1);
    pfx_close(e.c);
    theatre_end(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_workers");
    TCase *c = tcase_create("workers");
    tcase_set_timeout(c, 60 * SLOW);
    tcase_add_loop_test(c, two_processes_in_turn, 4, 5);   /* 4-token blocks  */
    tcase_add_loop_test(c, two_processes_in_turn, 16, 17); /* 16-token blocks */
    tcase_add_loop_test(c, killed_in_mid_turn, 0, 2 * ENGINE_POINTS);
    tcase_add_loop_test(c, daemon_killed_in_mid_turn, 0, ENGINE_POINTS);
    suite_add_tcase(s, c);
    return s;
}
