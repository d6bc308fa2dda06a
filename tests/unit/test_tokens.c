/* tokens_match and its portable twin against memcmp: every length, every place of a difference,
 * every alignment. */
#include "shm/tokens.h"
#include "tests/harness.h"

#include <string.h>

enum { LONGEST = 200, SLACK = 16 };

/* Too simple to be wrong: the first token at which memcmp differs. */
static size_t reference(const uint32_t *a, const uint32_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            return i;
    return n;
}

START_TEST(tokens_match_every_length_and_place)
{
    uint32_t a[LONGEST + SLACK], b[LONGEST + SLACK];
    struct rng r = rng_seeded("tokens");
    for (size_t shift = 0; shift < SLACK / 2; shift++) {
        for (size_t i = 0; i < LONGEST + SLACK; i++)
            a[i] = (uint32_t)rng_next(&r);
        memcpy(b, a + shift, LONGEST * sizeof a[0]); /* equal, differently aligned */
        for (size_t n = 0; n <= LONGEST; n++) {
            REQUIRE_EQ(tokens_match(a + shift, b, n), n);
            REQUIRE_EQ(tokens_match_atomic(a + shift, b, n), n);
            for (size_t at = 0; at < n; at++) {
                b[at] ^= 1u << rng_below(&r, 32);
                size_t want = reference(a + shift, b, n);
                REQUIRE_EQ(want, at);
                REQUIRE_EQ(tokens_match(a + shift, b, n), want);
                REQUIRE_EQ(tokens_match_atomic(a + shift, b, n), want);
                b[at] = a[shift + at];
            }
        }
    }
}
END_TEST

/* Several differences: the first one counts. */
START_TEST(tokens_match_random)
{
    uint32_t a[LONGEST], b[LONGEST];
    struct rng r = rng_seeded("tokens");
    for (int round = 0; round < 100000; round++) {
        size_t n = rng_below(&r, LONGEST);
        for (size_t i = 0; i < n; i++) {
            a[i] = rng_below(&r, 3);
            b[i] = rng_below(&r, 40) ? a[i] : rng_below(&r, 3);
        }
        size_t want = reference(a, b, n);
        REQUIRE_EQ(tokens_match(a, b, n), want);
        REQUIRE_EQ(tokens_match_atomic(a, b, n), want);
    }
}
END_TEST

START_TEST(tokens_copied_and_stored_whole)
{
    uint32_t a[LONGEST], b[LONGEST], c[LONGEST];
    for (size_t n = 0; n < LONGEST; n++) {
        for (size_t i = 0; i < LONGEST; i++)
            a[i] = (uint32_t)(i * 7 + n);
        memset(b, 0xee, sizeof b);
        memset(c, 0xee, sizeof c);
        tokens_copy(b, a, n);
        memcpy(c, a, n * sizeof a[0]);
        ck_assert_mem_eq(b, c, sizeof b); /* n tokens and not one more */
        memset(b, 0xee, sizeof b);
        tokens_store(b, a, n);
        ck_assert_mem_eq(b, c, sizeof b);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tokens");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, tokens_match_every_length_and_place);
    tcase_add_test(t, tokens_match_random);
    tcase_add_test(t, tokens_copied_and_stored_whole);
    suite_add_tcase(s, t);
    return s;
}
