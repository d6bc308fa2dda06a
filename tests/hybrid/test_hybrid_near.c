/*
 * Prefixes that are almost the same: two texts that differ in one token, or in one image behind the
 * same tokens, inside the last block that a state covers a part of. Whole blocks and hashes of them
 * agree; only the residue that is stored with the state tells them apart.
 *
 *      X   |....|....|.x..|....|....|    all of it cached as KV, first without a state
 *      Y   |....|....|.y|                a state at this depth, d, and KV up to there
 */
#include "tests/hybrid/conversation.h"
#include "tests/hybrid/stand.h"

#include <string.h>

enum { WHOLE = 2 };          /* blocks before the one that differs */
enum { BY_TOKEN, BY_IMAGE }; /* how they differ                    */
enum { SESSION = 1, VARIANTS = 4 };

struct near {
    struct host host;
    struct rng rng;
    struct hybrid *model;
    struct engine e;
    uint32_t bt, depth;
    enum engine_finish finish;
    struct conversation x, y;
};

static void near_begin(struct near *t, uint32_t bt, enum engine_finish finish)
{
    *t = (struct near){.rng = rng_seeded("near"), .bt = bt, .finish = finish};
    t->model = hybrid_new(7, bt, false);
    struct daemon_options o;
    daemon_options(&o, t->model, &(struct pool_sizes){.n_blocks = 1000, .n_slots = 40});
    host_start(&t->host, o.argv);
    worker_attach(&t->e, &t->host, t->model, NULL);
}

static void near_end(struct near *t)
{
    nothing_is_held(&t->e);
    pfx_close(t->e.c);
    audit_clean(&t->host);
    host_stop(&t->host);
    hybrid_free(t->model);
}

static void write_texts(struct near *t, int differ)
{
    uint32_t at = WHOLE * t->bt + rng_below(&t->rng, t->depth - WHOLE * t->bt);
    struct conversation c = {.n = t->depth + 2 * t->bt};
    for (uint32_t i = 0; i < c.n; i++)
        c.tokens[i] = rng_below(&t->rng, HYBRID_VOCABULARY);
    if (differ == BY_IMAGE) {
        c.n_images = 1;
        c.images[0] = (struct pfx_extra){.at = at, .len = 1, .digest = "a picture"};
    }
    t->x = t->y = c;
    if (differ == BY_IMAGE)
        t->y.images[0].digest[31] = 1;
    else
        t->y.tokens[at] = (c.tokens[at] + 1) % HYBRID_VOCABULARY;
}

/* The first n tokens of it; the answer is right. Returns the tokens restored. */
static uint32_t serve(struct near *t, const struct conversation *c, uint32_t n,
                      enum engine_finish finish)
{
    struct request rq = {.model = t->model,
                         .session = SESSION,
                         .prompt = conversation_text(c),
                         .n_tokens = n,
                         .n_decode = 1, /* so the last state is that of n tokens */
                         .chunk = 7,
                         .finish = finish};
    struct hybrid_answer cached, plain;
    uint32_t restored = engine_serve(&t->e, &rq, &cached);
    ck_assert(hybrid_plain(t->model, &rq.prompt, n, 1, n, &plain));
    ck_assert(hybrid_answers_equal(&cached, &plain));
    return restored;
}

static void one_pair(struct near *t, int differ)
{
    uint32_t all = t->x.n, d = t->depth;
    /* a tail block is offered only up to the image that starts in it */
    uint32_t of_y = differ == BY_IMAGE ? 0 : d;
    serve(t, &t->x, all, FINISH_NOTHING);
    serve(t, &t->y, d, t->finish);
    ck_assert_uint_eq(serve(t, &t->x, all, FINISH_NOTHING), 0); /* not Y's state */
    ck_assert_uint_eq(serve(t, &t->y, all, FINISH_NOTHING), of_y);
    serve(t, &t->x, d, t->finish);
    ck_assert_uint_eq(serve(t, &t->x, all, FINISH_NOTHING), d);
    /* by now all of Y is cached; a session has one tail, but states of any depth side by side */
    ck_assert_uint_eq(serve(t, &t->y, all, FINISH_NOTHING), t->finish == FINISH_EXACT ? d : 0);
}

START_TEST(residues_tell_them_apart)
{
    struct near t;
    near_begin(&t, _i / VARIANTS ? 16 : 4, _i & 1 ? FINISH_TAIL : FINISH_EXACT);
    int differ = _i & 2 ? BY_IMAGE : BY_TOKEN;
    for (uint32_t residue = 1; residue < t.bt; residue++) {
        t.depth = WHOLE * t.bt + residue;
        write_texts(&t, differ);
        one_pair(&t, differ);
    }
    near_end(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_near");
    TCase *c = tcase_create("near");
    tcase_set_timeout(c, 30 * SLOW);
    tcase_add_loop_test(c, residues_tell_them_apart, 0, 2 * VARIANTS);
    suite_add_tcase(s, c);
    return s;
}
