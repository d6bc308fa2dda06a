/* prefixctl replay: hit ratios that were worked out by hand, bad traces, and pages gone bad. */
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char trace[] = "/tmp/prefixd-trace-XXXXXX";

static void trace_write(const char *text)
{
    static bool made;
    if (!made)
        close(mkstemp(trace));
    made = true;
    FILE *f = fopen(trace, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* The last line of what it said, which is one object. */
static json_t *report_of(const struct said *s)
{
    struct said last = *s;
    size_t n = strlen(last.out);
    ck_assert_msg(s->code == 0 || s->code == 1, "exit %d: %s", s->code, s->err);
    ck_assert_msg(n && last.out[n - 1] == '\n', "no whole line: %s", s->out);
    last.out[n - 1] = '\0';
    const char *line = strrchr(last.out, '\n');
    json_error_t e;
    json_t *o = json_loads(line ? line + 1 : last.out, 0, &e);
    ck_assert_msg(o != NULL, "%s: %s", e.text, s->out);
    return o;
}

static double real_of(const json_t *o, const char *field)
{
    const json_t *v = json_object_get(o, field);
    ck_assert_msg(json_is_number(v), "no number \"%s\"", field);
    return json_number_value(v);
}

static void check_report(const struct said *s, int requests, int requested, int hit)
{
    json_t *o = report_of(s);
    ck_assert_int_eq(s->code, 0);
    ck_assert_int_eq(number_of(o, "requests"), requests);
    ck_assert_int_eq(number_of(o, "blocks_requested"), requested);
    ck_assert_int_eq(number_of(o, "blocks_hit"), hit);
    ck_assert_int_eq(number_of(o, "verified_blocks"), hit);
    ck_assert_int_eq(number_of(o, "disk_hits"), 0);
    ck_assert_int_eq(number_of(o, "corrupt_blocks"), 0);
    ck_assert_int_eq(number_of(o, "leaked_blocks"), 0);
    ck_assert(fabs(real_of(o, "hit_ratio") - (requested ? (double)hit / requested : 0)) < 1e-6);
    ck_assert(real_of(o, "requests_per_s") > 0);
    const json_t *ns = json_object_get(o, "lookup_ns");
    ck_assert_int_gt(number_of(ns, "p50"), 0);
    ck_assert_int_le(number_of(ns, "p50"), number_of(ns, "p99"));
    ck_assert_int_le(number_of(ns, "p99"), number_of(ns, "max"));
    json_decref(o);
}

#define REPLAY(s, ...)                                                                             \
    RUN((s), prefixctl_path(), "replay", "--private", "--json", "--trace", trace, "--block-bytes", \
        "64", __VA_ARGS__)

/* ---- by hand
 * ---------------------------------------------------------------------------------------
 *
 *      ids of 512 tokens     hits, block 512     --pad-last
 *   A  1 2                   -                   -
 *   B  1 2 3                 1 2                 1 2
 *   C  1 4                   1                   1
 *   D  1 2                   1     (a token is   1 2
 *   E  1 9   700 tokens      1      to compute)  1        9 is 188 tokens: no block, or padded
 *   F  7     512 tokens      -                   -
 *   G  7     512 tokens      -                   7
 */
static const char by_hand[] =
    "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [1, 2]}\n"
    "{\"timestamp\": 5, \"input_length\": 1536, \"output_length\": 1, \"hash_ids\": [1, 2, 3]}\n"
    "\n"
    "{\"timestamp\": 9, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [1, 4]}\n"
    "{\"timestamp\": 9, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [1, 2]}\n"
    "{\"timestamp\": 10.5, \"input_length\": 700, \"output_length\": 1, \"hash_ids\": [1, 9]}\n"
    "{\"timestamp\": 11, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [7]}\n"
    "{\"timestamp\": 12, \"input_length\": 512, \"hash_ids\": [7]}";

START_TEST(replay_ratio_by_hand)
{
    struct said s;
    trace_write(by_hand);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "100");
    check_report(&s, 7, 2 + 3 + 2 + 2 + 1 + 1 + 1, 2 + 1 + 1 + 1);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "100", "--pad-last");
    check_report(&s, 7, 2 + 3 + 2 + 2 + 2 + 1 + 1, 2 + 1 + 2 + 1 + 1);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "100", "--limit", "3");
    check_report(&s, 3, 7, 3);
    unlink(trace);
}
END_TEST

/* Blocks of 16: 32 an id; the last 16 tokens of a whole prompt are left to compute, and 700 tokens
 * are 43 blocks of which 32 are known. */
START_TEST(replay_ratio_in_small_blocks)
{
    struct said s;
    trace_write(by_hand);
    REPLAY(&s, "--block-tokens", "16", "--blocks", "1000");
    check_report(&s, 7, 64 + 96 + 64 + 64 + 43 + 32 + 32, 64 + 32 + 63 + 32 + 31);
    REPLAY(&s, "--block-tokens", "256", "--blocks", "1000", "--devices", "3");
    check_report(&s, 7, 4 + 6 + 4 + 4 + 2 + 2 + 2, 4 + 2 + 3 + 2 + 1);
    unlink(trace);
}
END_TEST

/* Room for two: 1 | 1 2 | hit 1 | 3 evicts 2 | hit 1 | 2 evicts 3 | 3 evicts 1. */
START_TEST(replay_ratio_with_eviction)
{
    char text[1024] = "";
    struct said s;
    static const int ids[] = {1, 2, 1, 3, 1, 2, 3};
    for (int i = 0; i < 7; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"timestamp\": %d, \"input_length\": 512, \"hash_ids\": [%d]}\n", i, ids[i]);
    trace_write(text);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "2", "--pad-last");
    check_report(&s, 7, 7, 2);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "3", "--pad-last");
    check_report(&s, 7, 7, 4);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "3", "--pad-last", "--index", "none");
    check_report(&s, 7, 7, 0);
    unlink(trace);
}
END_TEST

/* A prompt that is longer than the whole pool is served as far as that goes. */
START_TEST(replay_prompt_longer_than_the_pool)
{
    struct said s;
    trace_write("{\"timestamp\": 0, \"input_length\": 1536, \"hash_ids\": [1, 2, 3]}\n"
                "{\"timestamp\": 1, \"input_length\": 1536, \"hash_ids\": [1, 2, 3]}\n");
    REPLAY(&s, "--block-tokens", "512", "--blocks", "2", "--pad-last");
    check_report(&s, 2, 6, 2);
    unlink(trace);
}
END_TEST

/* ---- the built-in workload, and a daemon that runs
 * ------------------------------------------------- */

START_TEST(replay_chat_with_two_workers)
{
    struct said s;
    RUN(&s, prefixctl_path(), "replay", "--private", "--workers", "2", "--limit", "150", "--json",
        "--blocks", "4000");
    json_t *o = report_of(&s);
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_eq(number_of(o, "requests"), 150);
    ck_assert_int_gt(number_of(o, "blocks_hit"), 1000);
    ck_assert_int_eq(number_of(o, "verified_blocks"), number_of(o, "blocks_hit"));
    ck_assert_int_eq(number_of(o, "corrupt_blocks"), 0);
    ck_assert_int_eq(number_of(o, "leaked_blocks"), 0);
    json_decref(o);
}
END_TEST

START_TEST(replay_against_a_running_daemon)
{
    struct host h;
    struct worker w;
    struct said s;
    trace_write(by_hand);
    HOST_START(&h, "--blocks", "300", "--block-tokens", "16", "--block-bytes", "64");
    worker_open(&w, &h, NULL);
    CTL(&s, &h, "replay", "--json", "--trace", trace);
    check_report(&s, 7, 395, 222);
    step(&w);
    CTL(&s, &h, "replay", "--json", "--trace", trace); /* all but the last block of each is there */
    check_report(&s, 7, 395, 395 - 6);
    ck_assert_uint_eq(counters(&w).leases, 0);
    ck_assert_uint_eq(counters(&w).workers, 1);
    CTL(&s, &h, "replay", "--json", "--trace", trace, "--block-tokens", "32");
    refused(&s, 2, "32");
    CTL(&s, &h, "replay", "--trace", trace, "--workers", "3");
    ck_assert_int_eq(s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.out, "0 corrupt"));
    worker_close(&w);
    host_stop(&h);
    unlink(trace);
}
END_TEST

/* Somebody has spoilt a cached page: it is found, and said. */
START_TEST(replay_finds_a_corrupt_page)
{
    struct host h;
    struct worker w;
    struct said s;
    trace_write("{\"timestamp\": 0, \"input_length\": 40, \"hash_ids\": [1]}\n");
    HOST_START(&h, "--blocks", "100", "--block-tokens", "8", "--block-bytes", "64");
    worker_open(&w, &h, NULL);
    CTL(&s, &h, "replay", "--json", "--trace", trace);
    check_report(&s, 1, 5, 0);

    struct said shown;
    CTL(&shown, &h, "tree", "--tokens", "--json");
    json_t *o = json_said(&shown);
    const json_t *space = json_array_get(json_object_get(o, "spaces"), 0);
    const json_t *root = json_object_get(space, "root");
    const json_t *node = json_array_get(json_object_get(root, "children"), 0);
    const json_t *tokens = json_object_get(node, "tokens");
    struct seq prompt = {.n = 40};
    ck_assert_uint_eq(json_array_size(tokens), 40);
    for (size_t i = 0; i < 40; i++)
        prompt.at[i] = (uint32_t)json_integer_value(json_array_get(tokens, i));
    json_decref(o);
    struct held held = look_seq(&w, &prompt);
    ck_assert_uint_eq(held.match.n_blocks, 4);
    ((uint8_t *)pfx_block_address(w.c, 0, held.table[2]))[63] ^= 1;
    drop(&w, &held);

    CTL(&s, &h, "replay", "--json", "--trace", trace);
    ck_assert_int_eq(s.code, 1);
    o = report_of(&s);
    ck_assert_int_eq(number_of(o, "corrupt_blocks"), 1);
    ck_assert_int_eq(number_of(o, "verified_blocks"), 4);
    json_decref(o);
    worker_close(&w);
    host_stop(&h);
    unlink(trace);
}
END_TEST

/* ---- bad traces
 * -------------------------------------------------------------------------------------- */

#define GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1]}\n"
static const struct bad {
    const char *text, *line;
} bad[] = {
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1]\n", "line 2"},
    {GOOD "\n\nnonsense\n", "line 4"},
    {GOOD GOOD "[1, 2, 3]\n", "line 3"},
    {GOOD "17\n", "line 2"},
    {"{\"input_length\": 512, \"hash_ids\": [1]}\n", "line 1"},
    {"{\"timestamp\": \"now\", \"input_length\": 512, \"hash_ids\": [1]}\n", "line 1"},
    {GOOD "{\"timestamp\": 0, \"hash_ids\": [1]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": 1}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 513, \"hash_ids\": [1]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1, 2]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [-1]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1.5]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [\"1\"]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 0, \"hash_ids\": []}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": -5, \"hash_ids\": []}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 51.2, \"hash_ids\": [1]}\n", "line 2"},
    {GOOD "{\"timestamp\": 0, \"input_length\": 99999999999, \"hash_ids\": [1]}\n", "line 2"},
    {"", "no request"},
    {"\n\n", "no request"},
};

START_TEST(replay_bad_trace)
{
    struct said s;
    trace_write(bad[_i].text);
    REPLAY(&s, "--block-tokens", "512", "--blocks", "10");
    unlink(trace);
    refused(&s, 2, bad[_i].line);
    ck_assert_ptr_nonnull(strstr(s.err, trace));
}
END_TEST

START_TEST(replay_cannot_begin)
{
    struct said s;
    RUN(&s, prefixctl_path(), "replay", "--private", "--trace", "/no/such/trace");
    refused(&s, 2, "/no/such/trace");
    trace_write(GOOD);
    REPLAY(&s, "--block-tokens", "500");
    refused(&s, 2, "500");
    REPLAY(&s, "--block-tokens", "512", "--blocks", "2147483648");
    refused(&s, 2, "--blocks");
    REPLAY(&s, "--policy", "clairvoyant");
    refused(&s, 2, "--policy");
    unlink(trace);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("replay");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, replay_ratio_by_hand);
    tcase_add_test(t, replay_ratio_in_small_blocks);
    tcase_add_test(t, replay_ratio_with_eviction);
    tcase_add_test(t, replay_prompt_longer_than_the_pool);
    tcase_add_test(t, replay_chat_with_two_workers);
    tcase_add_test(t, replay_against_a_running_daemon);
    tcase_add_test(t, replay_finds_a_corrupt_page);
    tcase_add_loop_test(t, replay_bad_trace, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, replay_cannot_begin);
    suite_add_tcase(s, t);
    return s;
}
