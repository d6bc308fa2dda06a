/*
 * The model by itself, no daemon: any chunking and any paging gives the same bits, a state copied
 * at any depth is as good as one computed, and a state restored wrongly changes the logits.
 */
#include "tests/harness.h"
#include "tests/hybrid/damage.h"
#include "tests/hybrid/hybrid_model.h"

#include <stdlib.h>
#include <string.h>

enum { MODEL_SEED = 1, LONGEST = 120 };

static void draw(struct rng *rng, uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = rng_below(rng, HYBRID_VOCABULARY);
}

static struct hybrid_answer plain(const struct hybrid *m, const uint32_t *tokens, uint32_t n,
                                  uint32_t chunk)
{
    struct hybrid_answer a;
    ck_assert(hybrid_plain(m, &(struct hybrid_text){.tokens = tokens}, n, 5, chunk, &a));
    return a;
}

/* ---- what does not matter, and what does ------------------------------------------------ */

START_TEST(chunks_and_pages_do_not_matter)
{
    struct rng rng = rng_seeded("chunks");
    const uint32_t paging[] = {1, 4, 16};
    bool states_only = _i == 1;
    for (unsigned round = 0; round < 20; round++) {
        uint32_t tokens[LONGEST], n = 1 + rng_below(&rng, LONGEST);
        draw(&rng, tokens, n);
        struct hybrid_answer first = {.n = 0};
        for (unsigned i = 0; i < 3; i++) {
            struct hybrid *m = hybrid_new(MODEL_SEED, paging[i], states_only);
            struct hybrid_answer whole = plain(m, tokens, n, n);
            struct hybrid_answer single = plain(m, tokens, n, 1);
            struct hybrid_answer some = plain(m, tokens, n, 1 + rng_below(&rng, n));
            ck_assert(hybrid_answer_finite(&whole));
            ck_assert(hybrid_answers_equal(&whole, &single));
            ck_assert(hybrid_answers_equal(&whole, &some));
            first = i == 0 ? whole : first;
            ck_assert(hybrid_answers_equal(&whole, &first));
            hybrid_free(m);
        }
    }
}
END_TEST

/* So KV or a state of a prefix that differs in any one token is not taken for the right one. */
START_TEST(every_token_matters)
{
    struct rng rng = rng_seeded("every token");
    struct hybrid *m = hybrid_new(MODEL_SEED, 4, _i == 1);
    uint32_t tokens[LONGEST];
    draw(&rng, tokens, LONGEST);
    struct hybrid_answer right = plain(m, tokens, LONGEST, LONGEST);
    for (uint32_t i = 0; i < LONGEST; i++) {
        uint32_t was = tokens[i];
        tokens[i] = (was + 1 + rng_below(&rng, HYBRID_VOCABULARY - 1)) % HYBRID_VOCABULARY;
        struct hybrid_answer other = plain(m, tokens, LONGEST, LONGEST);
        ck_assert_msg(memcmp(right.logits[0], other.logits[0], sizeof right.logits[0]) != 0,
                      "token %u does not matter", i);
        tokens[i] = was;
    }
    hybrid_free(m);
}
END_TEST

/* The same tokens with another image, with it elsewhere, or without. */
START_TEST(images_matter)
{
    struct hybrid *m = hybrid_new(MODEL_SEED, 4, _i == 1);
    uint32_t tokens[12] = {0};
    struct pfx_extra image[4] = {{3, 4, "one"}, {3, 4, "two"}, {4, 4, "one"}, {20, 4, "one"}};
    struct hybrid_answer a[5];
    for (int i = 0; i < 5; i++) /* the last without any, as in the text beyond which it lies */
        ck_assert(
            hybrid_plain(m, &(struct hybrid_text){tokens, &image[i % 4], i < 4}, 12, 3, 5, &a[i]));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            ck_assert(!hybrid_answers_equal(&a[i], &a[j]));
    ck_assert(hybrid_answers_equal(&a[3], &a[4]));
    hybrid_free(m);
}
END_TEST

START_TEST(weights_matter)
{
    struct hybrid *a = hybrid_new(1, 4, false), *b = hybrid_new(2, 4, false);
    struct hybrid *a_again = hybrid_new(1, 4, false);
    uint32_t tokens[3] = {1, 2, 3};
    struct hybrid_answer of_a = plain(a, tokens, 3, 3), of_b = plain(b, tokens, 3, 3);
    struct hybrid_answer again = plain(a_again, tokens, 3, 3);
    ck_assert(hybrid_answers_equal(&of_a, &again));
    ck_assert(!hybrid_answers_equal(&of_a, &of_b));
    hybrid_free(a);
    hybrid_free(b);
    hybrid_free(a_again);
}
END_TEST

START_TEST(sizes)
{
    struct hybrid *m = hybrid_new(1, 4, false), *wide = hybrid_new(1, 16, false);
    struct hybrid *states = hybrid_new(1, 16, true);
    ck_assert_uint_eq(hybrid_block_bytes(m), 2 * 4 * 256);
    ck_assert_uint_eq(hybrid_block_bytes(wide), 2 * 16 * 256);
    ck_assert_uint_eq(hybrid_state_bytes(wide), 2 * 896);
    ck_assert_uint_eq(hybrid_block_bytes(states), 0);
    ck_assert_uint_eq(hybrid_state_bytes(states), 4 * 896);
    hybrid_free(m);
    hybrid_free(wide);
    hybrid_free(states);
}
END_TEST

/* ---- a state restored --------------------------------------------------------------------- */

enum { PAGE_TOKENS = 4, PAGES = LONGEST / PAGE_TOKENS + 1, PAGE_FLOATS = 1024 };

struct pages {
    float page[PAGES][PAGE_FLOATS];
    float *at[PAGES];
};

static struct pages *pages_new(void)
{
    struct pages *p = malloc(sizeof *p);
    ck_assert_ptr_nonnull(p);
    memset(p->page, 0xff, sizeof p->page); /* NaNs */
    for (uint32_t i = 0; i < PAGES; i++)
        p->at[i] = p->page[i];
    return p;
}

/* Compute the first `kv` tokens, and keep the state that belongs to `depth`; then go on in other
 * pages, which have the KV of `depth` tokens, with that state: damaged. The logits after n. */
static void resume(const struct hybrid *m, const uint32_t *tokens, uint32_t n, uint32_t depth,
                   uint32_t kv, struct damaged *d, float logits[HYBRID_VOCABULARY])
{
    struct hybrid_text text = {.tokens = tokens};
    struct pages *first = pages_new(), *second = pages_new();
    float *state = calloc(2, hybrid_state_bytes(m)), *kept = state;
    ck_assert_ptr_nonnull(state);
    ck_assert_uint_le(hybrid_block_bytes(m), sizeof first->page[0]);
    hybrid_run(m, kept, first->at, &text, 0, depth, NULL);
    float *further = state + hybrid_state_bytes(m) / sizeof *state;
    memcpy(further, kept, hybrid_state_bytes(m));
    hybrid_run(m, further, first->at, &text, depth, kv, NULL);
    damage_state(d, kept, &depth);
    ck_assert_uint_le(depth, kv);
    for (uint32_t at = 0; at < depth; at += PAGE_TOKENS)
        hybrid_copy_kv(m, second->at[at / PAGE_TOKENS], first->at[at / PAGE_TOKENS],
                       depth - at < PAGE_TOKENS ? depth - at : PAGE_TOKENS);
    hybrid_run(m, kept, second->at, &text, depth, n, logits);
    free(state);
    free(first);
    free(second);
}

START_TEST(restored_at_any_depth)
{
    struct rng rng = rng_seeded("restored");
    struct hybrid *m = hybrid_new(MODEL_SEED, PAGE_TOKENS, _i == 1);
    uint32_t tokens[LONGEST], n = 50;
    draw(&rng, tokens, n);
    struct hybrid_answer right = plain(m, tokens, n, n);
    struct damaged none = {.model = m};
    for (uint32_t depth = 0; depth < n; depth++) {
        float logits[HYBRID_VOCABULARY];
        resume(m, tokens, n, depth, depth, &none, logits);
        ck_assert(memcmp(logits, right.logits[0], sizeof logits) == 0);
    }
    hybrid_free(m);
}
END_TEST

/* Restored with this damage, the logits differ, at aligned and unaligned depths alike; and not by
 * NaNs, so it is not our poison that shows. */
static void shows(enum damage damage, bool states_only)
{
    struct rng rng = rng_seeded("damage");
    struct hybrid *m = hybrid_new(MODEL_SEED, PAGE_TOKENS, states_only);
    for (uint32_t depth = 2; depth < 40; depth++) {
        uint32_t tokens[LONGEST], other[LONGEST], n = depth + 2 + rng_below(&rng, 30);
        draw(&rng, tokens, n);
        draw(&rng, other, n);
        struct hybrid_answer right = plain(m, tokens, n, n), wrong = {.n = 1};
        struct pages *p = pages_new();
        float *foreign = calloc(1, hybrid_state_bytes(m));
        ck_assert_ptr_nonnull(foreign);
        hybrid_run(m, foreign, p->at, &(struct hybrid_text){.tokens = other}, 0, depth, NULL);
        struct damaged d = {.damage = damage, .model = m, .foreign = foreign};
        resume(m, tokens, n, depth, depth + 1, &d, wrong.logits[0]);
        ck_assert(memcmp(wrong.logits[0], right.logits[0], sizeof wrong.logits[0]) != 0);
        ck_assert(hybrid_answer_finite(&wrong));
        free(foreign);
        free(p);
    }
    hybrid_free(m);
}

START_TEST(too_early)
{
    shows(DAMAGE_EARLY, _i == 1);
}
END_TEST

START_TEST(too_late)
{
    shows(DAMAGE_LATE, _i == 1);
}
END_TEST

START_TEST(foreign)
{
    shows(DAMAGE_FOREIGN, _i == 1);
}
END_TEST

START_TEST(window_missing)
{
    shows(DAMAGE_NO_WINDOW, _i == 1);
}
END_TEST

START_TEST(memory_missing)
{
    shows(DAMAGE_NO_MEMORY, _i == 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_model");
    TCase *c = tcase_create("model");
    tcase_set_timeout(c, 60 * SLOW);
    tcase_add_test(c, sizes);
    tcase_add_test(c, weights_matter);
    /* 0: attention and recurrent layers, 1: recurrent ones only */
    tcase_add_loop_test(c, chunks_and_pages_do_not_matter, 0, 2);
    tcase_add_loop_test(c, every_token_matters, 0, 2);
    tcase_add_loop_test(c, images_matter, 0, 2);
    tcase_add_loop_test(c, restored_at_any_depth, 0, 2);
    tcase_add_loop_test(c, too_early, 0, 2);
    tcase_add_loop_test(c, too_late, 0, 2);
    tcase_add_loop_test(c, foreign, 0, 2);
    tcase_add_loop_test(c, window_missing, 0, 2);
    tcase_add_loop_test(c, memory_missing, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
