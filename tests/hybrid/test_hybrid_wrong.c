/*
 * The proof can fail: a state that comes out of the cache and is restored wrongly, in any of the
 * ways that a cache of states may go wrong, changes the logits. The same turns restored rightly
 * have the same bits.
 */
#include "tests/hybrid/conversation.h"
#include "tests/hybrid/damage.h"
#include "tests/hybrid/stand.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 12, DECODED = 6, FIRST = 60, SECOND = 20 };

/* 0: 4-token blocks, 1: 16, 2: states only */
enum { KINDS = 3 };

struct scene {
    struct host host;
    struct rng rng;
    struct hybrid *model;
    struct engine e;
    uint64_t session;
};

static void scene_begin(struct scene *s, int kind)
{
    *s = (struct scene){.rng = rng_seeded("wrong")};
    s->model = hybrid_new(5, kind == 1 ? 16 : 4, kind == 2);
    struct daemon_options o;
    daemon_options(&o, s->model, &(struct pool_sizes){.n_blocks = 2000, .n_slots = 50});
    host_start(&s->host, o.argv);
    worker_attach(&s->e, &s->host, s->model, NULL);
}

static void scene_end(struct scene *s)
{
    nothing_is_held(&s->e);
    pfx_close(s->e.c);
    audit_clean(&s->host);
    host_stop(&s->host);
    hybrid_free(s->model);
}

static void say(struct scene *s, struct conversation *c, uint32_t n)
{
    while (n--)
        c->tokens[c->n++] = rng_below(&s->rng, HYBRID_VOCABULARY);
}

/* The state of another text, as long as this one: what another session's tail would be. */
static float *foreign_state(struct scene *s, uint32_t n)
{
    struct conversation other = {.n = 0};
    say(s, &other, n);
    uint32_t bt = hybrid_block_tokens(s->model), n_blocks = n / bt + 1;
    size_t floats = hybrid_block_bytes(s->model) / sizeof(float);
    float *state = calloc(1, hybrid_state_bytes(s->model));
    float *kv = calloc(n_blocks, floats * sizeof *kv + 1), *blocks[CONVERSATION_TOKENS];
    ck_assert(state && kv);
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = kv + i * floats;
    hybrid_run(s->model, state, blocks, &(struct hybrid_text){.tokens = other.tokens}, 0, n, NULL);
    free(kv);
    return state;
}

/* A first turn files one state, at its prompt's end; its answer is computed and cached behind that,
 * so that the KV goes on where the state ends. */
static void first_turn(struct scene *s, struct conversation *c)
{
    *c = (struct conversation){.session = ++s->session};
    say(s, c, 3 + rng_below(&s->rng, FIRST));
    struct request rq = {.model = s->model,
                         .session = c->session,
                         .prompt = {.tokens = c->tokens},
                         .n_tokens = c->n,
                         .n_decode = DECODED,
                         .chunk = 16,
                         .save_end = true};
    struct hybrid_answer a;
    ck_assert_uint_eq(engine_serve(&s->e, &rq, &a), 0);
    talk_answer(c, &a);
}

/* The second turn's answer, with that state restored through `d`, and without any cache. */
static void second_turn(struct scene *s, const struct conversation *c, struct damaged *d,
                        struct hybrid_answer *cached, struct hybrid_answer *plain)
{
    uint32_t depth = c->n - DECODED - SECOND;
    struct request rq = {.model = s->model,
                         .session = c->session,
                         .prompt = {.tokens = c->tokens},
                         .n_tokens = c->n,
                         .n_decode = 2,
                         .chunk = 16};
    s->e.spoil = damage_state;
    s->e.arg = d;
    uint32_t restored = engine_serve(&s->e, &rq, cached);
    s->e.spoil = NULL;
    uint32_t expected = d->damage == DAMAGE_EARLY  ? depth - 1
                        : d->damage == DAMAGE_LATE ? depth + 1
                                                   : depth;
    ck_assert_uint_eq(restored, expected);
    ck_assert_uint_eq(d->done, 1);
    ck_assert(hybrid_plain(s->model, &rq.prompt, c->n, 2, c->n, plain));
}

static void restore(int kind, enum damage damage)
{
    struct scene s;
    scene_begin(&s, kind);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct conversation c;
        struct hybrid_answer cached, plain;
        first_turn(&s, &c);
        float *foreign = foreign_state(&s, c.n);
        say(&s, &c, SECOND);
        struct damaged d = {.damage = damage, .model = s.model, .foreign = foreign};
        second_turn(&s, &c, &d, &cached, &plain);
        bool same = memcmp(cached.logits[0], plain.logits[0], sizeof plain.logits[0]) == 0;
        ck_assert_int_eq(same, damage == DAMAGE_NONE);
        ck_assert_int_eq(hybrid_answers_equal(&cached, &plain), damage == DAMAGE_NONE);
        ck_assert(hybrid_answer_finite(&cached)); /* it was no page of NaNs that showed */
        free(foreign);
    }
    scene_end(&s);
}

START_TEST(right)
{
    restore(_i, DAMAGE_NONE);
}
END_TEST

START_TEST(depth_one_too_small)
{
    restore(_i, DAMAGE_EARLY);
}
END_TEST

START_TEST(depth_one_too_large)
{
    restore(_i, DAMAGE_LATE);
}
END_TEST

START_TEST(foreign_tail)
{
    restore(_i, DAMAGE_FOREIGN);
}
END_TEST

START_TEST(convolution_missing)
{
    restore(_i, DAMAGE_NO_WINDOW);
}
END_TEST

START_TEST(recurrence_missing)
{
    restore(_i, DAMAGE_NO_MEMORY);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_wrong");
    TCase *c = tcase_create("wrong");
    tcase_set_timeout(c, 30 * SLOW);
    tcase_add_loop_test(c, right, 0, KINDS);
    tcase_add_loop_test(c, depth_one_too_small, 0, KINDS);
    tcase_add_loop_test(c, depth_one_too_large, 0, KINDS);
    tcase_add_loop_test(c, foreign_tail, 0, KINDS);
    tcase_add_loop_test(c, convolution_missing, 0, KINDS);
    tcase_add_loop_test(c, recurrence_missing, 0, KINDS);
    suite_add_tcase(s, c);
    return s;
}
