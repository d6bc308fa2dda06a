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

/* ---- --snapshots, by hand ---------------------------------------------------------------------
 *
 * The same requests, blocks of 512, as a hybrid model: where each restarts, and what it files where
 * its match ends (m) and at its last whole id (e), in ids.
 *
 *      --pad-last                 else: all but one token may match
 *   A  -        e 2               -        e 2
 *   B  2        e 3               2        e 3
 *   C  -   *    m 1  e 2          -   *    m 1  e 2         * one id was cached, but no state
 *   D  2                          1        e 2 (again)
 *   E  1                          1                         9 is no whole one
 *   F  -        e 1               -        e 1
 *   G  1                          -        e 1 (again)
 *
 * One slot without a lower tier holds what was filed last: B and G find it; C, D and E had 1, 2 and
 * 1 ids without a state, and file one there. With a tier, what lost its slot is brought back; but
 * for states of less than two ids, if they are dropped instead: then E finds none.
 */
enum { ID = 512 };

struct states {
    int hits, saves, skipped, prompts, recompute; /* the last three in tokens */
};

static void check_states(const struct said *s, struct states want)
{
    json_t *o = report_of(s);
    ck_assert_int_eq(s->code, 0);
    ck_assert_int_eq(number_of(o, "snapshot_hits"), want.hits);
    ck_assert_int_eq(number_of(o, "snapshots_verified"), want.hits);
    ck_assert_int_eq(number_of(o, "snapshot_saves"), want.saves);
    ck_assert_int_eq(number_of(o, "snapshots_corrupt"), 0);
    ck_assert_int_eq(number_of(o, "leaked_slots"), 0);
    ck_assert_int_eq(number_of(o, "prompt_tokens"), want.prompts);
    ck_assert_int_eq(number_of(o, "recomputed_tokens"), want.prompts - want.skipped);
    ck_assert_int_eq(number_of(o, "recompute_tokens"), want.recompute);
    ck_assert(fabs(real_of(o, "state_hit_ratio") - (double)want.skipped / want.prompts) < 1e-6);
    json_decref(o);
}

#define STATES(s, ...)                                                                             \
    REPLAY((s), "--block-tokens", "512", "--blocks", "100", "--snapshot-bytes", "100", __VA_ARGS__)

START_TEST(replay_states_by_hand)
{
    struct said s;
    trace_write(by_hand);
    STATES(&s, "--pad-last", "--snapshots");
    check_report(&s, 7, 2 + 3 + 2 + 2 + 2 + 1 + 1, 2 + 1 + 2 + 1 + 1);
    check_states(&s, (struct states){4, 5, (2 + 2 + 1 + 1) * ID, 13 * ID, 1 * ID});
    STATES(&s, "--snapshots=9", "--devices", "2");
    check_report(&s, 7, 2 + 3 + 2 + 2 + 1 + 1 + 1, 2 + 1 + 1 + 1);
    check_states(&s, (struct states){3, 7, (2 + 1 + 1) * ID, 11 * ID + 700, 1 * ID});

    /* Blocks of 16: D and G match up to their last block, and file there and, again, at the end. E
     * files nothing: no part of its 9 is a place where others go on. */
    REPLAY(&s, "--block-tokens", "16", "--blocks", "1000", "--snapshots", "--snapshot-bytes",
           "100");
    check_states(&s, (struct states){3, 1 + 1 + 2 + 2 + 0 + 1 + 2, (2 + 1 + 1) * ID, 11 * ID + 700,
                                     ID + (1008 - ID) + 496});

    REPLAY(&s, "--block-tokens", "512", "--blocks", "100", "--pad-last");
    json_t *o = report_of(&s);
    ck_assert_ptr_null(json_object_get(o, "snapshot_hits"));
    json_decref(o);
    unlink(trace);
}
END_TEST

START_TEST(replay_states_in_one_slot)
{
    struct said s;
    trace_write(by_hand);
    STATES(&s, "--pad-last", "--snapshots", "1");
    check_states(&s, (struct states){2, 7, (2 + 1) * ID, 13 * ID, (1 + 2 + 1) * ID});
    STATES(&s, "--pad-last", "--snapshots", "1", "--snapshot-swap", "1000");
    check_states(&s, (struct states){4, 5, (2 + 2 + 1 + 1) * ID, 13 * ID, 1 * ID});
    STATES(&s, "--pad-last", "--snapshots", "1", "--snapshot-swap", "1000", "--spill-min-tokens",
           "1024");
    check_states(&s, (struct states){3, 6, (2 + 2 + 1) * ID, 13 * ID, (1 + 1) * ID});
    unlink(trace);
}
END_TEST

/* Two slots; a deep one is filed, then two shallow ones. By age alone the deep one goes. */
START_TEST(replay_states_alpha)
{
    struct said s;
    trace_write("{\"timestamp\": 0, \"input_length\": 1536, \"hash_ids\": [1, 2, 3]}\n"
                "{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [4]}\n"
                "{\"timestamp\": 2, \"input_length\": 512, \"hash_ids\": [5]}\n"
                "{\"timestamp\": 3, \"input_length\": 1536, \"hash_ids\": [1, 2, 3]}\n");
    STATES(&s, "--pad-last", "--snapshots", "2");
    check_states(&s, (struct states){0, 4, 0, 8 * ID, 3 * ID});
    STATES(&s, "--pad-last", "--snapshots", "2", "--alpha", "0.01");
    check_states(&s, (struct states){1, 3, 3 * ID, 8 * ID, 0});
    unlink(trace);
}
END_TEST

/* A pool of states only: its blocks have no bytes. */
START_TEST(replay_states_without_pages)
{
    struct said s;
    trace_write(by_hand);
    RUN(&s, prefixctl_path(), "replay", "--private", "--json", "--trace", trace, "--block-bytes",
        "0", "--block-tokens", "512", "--blocks", "100", "--pad-last", "--snapshots");
    check_report(&s, 7, 13, 7);
    check_states(&s, (struct states){4, 5, (2 + 2 + 1 + 1) * ID, 13 * ID, 1 * ID});
    unlink(trace);
}
END_TEST

/* Turns of chats, by two workers, in few slots: what lost its slot comes back from the tier. */
START_TEST(replay_states_of_chats)
{
    struct said s;
    RUN(&s, prefixctl_path(), "replay", "--private", "--workers", "2", "--limit", "150", "--json",
        "--blocks", "4000", "--block-bytes", "64", "--snapshots", "8", "--snapshot-bytes", "100",
        "--snapshot-swap", "4K");
    json_t *o = report_of(&s);
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_gt(number_of(o, "snapshot_hits"), 50);
    ck_assert_int_gt(number_of(o, "snapshot_saves"), 50);
    ck_assert_int_eq(number_of(o, "snapshots_corrupt"), 0);
    ck_assert_int_eq(number_of(o, "corrupt_blocks"), 0);
    ck_assert_int_eq(number_of(o, "leaked_slots"), 0);
    ck_assert_int_eq(number_of(o, "leaked_blocks"), 0);
    json_decref(o);
    RUN(&s, prefixctl_path(), "replay", "--private", "--limit", "20", "--block-bytes", "64",
        "--snapshots");
    ck_assert_int_eq(s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.out, "restarted from a snapshot"));
    ck_assert_ptr_nonnull(strstr(s.out, "0 slots leaked"));
}
END_TEST

/* In its slots, twice; between the two somebody spoils one, and reserves another. */
START_TEST(replay_states_of_a_running_daemon)
{
    struct host h;
    struct worker w;
    struct said s;
    trace_write(by_hand);
    HOST_START(&h, "--blocks", "100", "--block-tokens", "512", "--block-bytes", "64", "--snapshots",
               "16", "--snapshot-bytes", "100");
    worker_open(&w, &h, NULL);
    CTL(&s, &h, "replay", "--json", "--pad-last", "--trace", trace, "--snapshots");
    check_states(&s, (struct states){4, 5, (2 + 2 + 1 + 1) * ID, 13 * ID, 1 * ID});
    step(&w);
    ck_assert_uint_eq(counters(&w).snapshots, 5);
    ck_assert_uint_eq(counters(&w).recompute_tokens, 512);

    struct said shown;
    CTL(&shown, &h, "tree");
    static const char deepest[] = "snapshot at 1536 tokens  exact  slot ";
    const char *at = strstr(shown.out, deepest);
    ck_assert_msg(at != NULL, "no such snapshot: %s", shown.out);
    uint32_t reserved, slot = (uint32_t)strtoul(at + sizeof deepest - 1, NULL, 10);
    ((uint8_t *)pfx_slot_address(w.c, 0, slot))[99] ^= 1;
    struct held held = look(&w, "");
    ck_assert_int_eq(pfx_snapshot_reserve(w.c, held.lease, &reserved), 0);

    CTL(&s, &h, "replay", "--json", "--pad-last", "--snapshots", "--trace", trace);
    ck_assert_int_eq(s.code, 1);
    json_t *o = report_of(&s);
    ck_assert_int_eq(number_of(o, "snapshots_corrupt"), 1);
    ck_assert_int_eq(number_of(o, "snapshot_hits"), 7);
    ck_assert_int_eq(number_of(o, "snapshot_saves"), 1); /* of E, where its padded 9 ends */
    ck_assert_int_eq(number_of(o, "recomputed_tokens"), 512);
    ck_assert_int_eq(number_of(o, "recompute_tokens"), 512);
    ck_assert_int_eq(number_of(o, "leaked_slots"), 0);
    json_decref(o);
    drop(&w, &held);
    worker_close(&w);
    host_stop(&h);
    unlink(trace);
}
END_TEST

static const struct refused_state {
    const char *named;
    const char *words[6];
} refused_states[] = {
    {"at least 1; leave it away", {"--private", "--snapshots", "0"}},
    {"at least 1", {"--private", "--snapshots=00", "--snapshot-bytes", "64"}},
    {"--snapshots", {"--private", "--snapshots", "12x"}},
    {"--snapshots", {"--private", "--snapshots=many"}},
    {"many", {"--private", "--snapshots", "many"}},
    {"--snapshot-bytes", {"--private", "--snapshots", "--snapshot-bytes", "0"}},
    {"--snapshot-bytes means nothing without --snapshots", {"--private", "--snapshot-bytes", "64"}},
    {"--snapshot-swap means nothing", {"--private", "--snapshot-swap", "64K"}},
    {"--spill-min-tokens means nothing", {"--private", "--spill-min-tokens", "9"}},
    {"--alpha means nothing without --snapshots", {"--private", "--alpha", "0.5"}},
    {"--snapshot-swap", {"--private", "--snapshots", "--snapshot-swap", "1K"}},
    {"--snapshot-swap", {"--private", "--snapshots", "--snapshot-swap", "much"}},
    {"--spill-min-tokens", {"--private", "--snapshots", "--spill-min-tokens", "-1"}},
    {"--alpha", {"--private", "--snapshots", "--alpha", "-1"}},
    {"--snapshots", {"--snapshots", "8"}},
    {"--snapshot-swap", {"--snapshots", "--snapshot-swap", "64K"}},
    {"--alpha", {"--snapshots", "--alpha", "1"}},
};

START_TEST(replay_states_refused)
{
    struct said s;
    const char *words[8] = {"replay"};
    memcpy(words + 1, refused_states[_i].words, sizeof refused_states[_i].words);
    setenv("PREFIXD_SOCKET", "/tmp/prefixd-nobody-is-here", 1);
    run_as(0, &s, prefixctl_path(), words);
    refused(&s, 2, refused_states[_i].named);
}
END_TEST

START_TEST(replay_states_need_slots)
{
    struct host h;
    struct said s;
    host_small(&h, 16, 4);
    CTL(&s, &h, "replay", "--snapshots");
    refused(&s, 3, "no slots");
    host_stop(&h);
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

/* A private daemon that is killed half way, with a swap directory of its own. */
static json_t *over_kill_9(const char *budget, const char *const *more)
{
    struct said s;
    char dir[] = "/tmp/prefixd-replay-XXXXXX", swap[64], command[64];
    const char *words[24] = {"replay", "--private",    "--json", "--swap",
                             swap,     "--restart-at", "0.5"};
    for (int n = 7; *more; n++, more++)
        words[n] = *more;
    ck_assert_ptr_ne(mkdtemp(dir), NULL);
    snprintf(swap, sizeof swap, "%s:%s", dir, budget);
    run_as(0, &s, prefixctl_path(), words);
    json_t *o = report_of(&s);
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_eq(number_of(o, "verified_blocks"), number_of(o, "blocks_hit"));
    ck_assert_int_eq(number_of(o, "corrupt_blocks"), 0);
    ck_assert_int_eq(number_of(o, "leaked_blocks"), 0);
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
    return o;
}
#define OVER_KILL_9(budget, ...) over_kill_9((budget), (const char *const[]){__VA_ARGS__, NULL})

/* Most of the pool is on disk when the daemon is killed half way, and comes back with the next one.
 */
START_TEST(replay_over_kill_9)
{
    struct said s;
    json_t *o = OVER_KILL_9("64M", "--workers", "2", "--limit", "150", "--blocks", "1500");
    ck_assert_int_eq(number_of(o, "requests"), 150);
    ck_assert_int_gt(number_of(o, "disk_hits"), 0);
    json_decref(o);
    RUN(&s, prefixctl_path(), "replay", "--restart-at", "0.5");
    refused(&s, 2, "--private");
    RUN(&s, prefixctl_path(), "replay", "--private", "--restart-at", "1");
    refused(&s, 2, "fraction");
}
END_TEST

/* Prompts that are all new before the kill, and all come once more after it: what is found then was
 * on disk. What was not written yet, at most the pool, is lost with the daemon. */
START_TEST(replay_finds_what_was_on_disk_at_the_kill)
{
    enum { PROMPTS = 60, BLOCKS = 8, POOL = 100 };
    char text[2 * PROMPTS * 160];
    size_t n = 0;
    for (int i = 0; i < 2 * PROMPTS; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"timestamp\": 0, \"input_length\": %d, \"hash_ids\": [",
                              BLOCKS * 512);
        for (int k = 0; k < BLOCKS; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%d%s", i % PROMPTS * BLOCKS + k,
                                  k < BLOCKS - 1 ? "," : "]}\n");
    }
    trace_write(text);
    json_t *o = OVER_KILL_9("8M", "--trace", trace, "--pad-last", "--block-tokens", "512",
                            "--blocks", "100");
    ck_assert_int_eq(number_of(o, "requests"), 2 * PROMPTS);
    ck_assert_int_ge(number_of(o, "disk_hits"), PROMPTS * BLOCKS - POOL);
    ck_assert_int_le(number_of(o, "blocks_hit"), PROMPTS * BLOCKS);
    json_decref(o);
}
END_TEST

/* On this trace a tier that has room for all and loses everything at the kill reaches 0.341, none
 * at all 0.112. */
START_TEST(replay_of_conversations_over_kill_9)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/conversation_trace.jsonl", getenv("TRACES_DIR"));
    if (access(path, R_OK) != 0)
        SKIP_TEST("the public traces are not here; replay_finds_what_was_on_disk_at_the_kill says "
                  "it of fewer");
    json_t *o = OVER_KILL_9("1G", "--trace", path, "--pad-last", "--block-tokens", "512",
                            "--blocks", "5000");
    ck_assert_int_eq(number_of(o, "requests"), 12031);
    ck_assert_double_gt(json_number_value(json_object_get(o, "hit_ratio")), 0.355);
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
    tcase_add_test(t, replay_states_by_hand);
    tcase_add_test(t, replay_states_in_one_slot);
    tcase_add_test(t, replay_states_alpha);
    tcase_add_test(t, replay_states_without_pages);
    tcase_add_test(t, replay_states_of_chats);
    tcase_add_test(t, replay_states_of_a_running_daemon);
    tcase_add_loop_test(t, replay_states_refused, 0,
                        sizeof refused_states / sizeof refused_states[0]);
    tcase_add_test(t, replay_states_need_slots);
    tcase_add_test(t, replay_chat_with_two_workers);
    tcase_add_test(t, replay_over_kill_9);
    tcase_add_test(t, replay_finds_what_was_on_disk_at_the_kill);
    tcase_add_test(t, replay_of_conversations_over_kill_9);
    tcase_add_test(t, replay_against_a_running_daemon);
    tcase_add_test(t, replay_finds_a_corrupt_page);
    tcase_add_loop_test(t, replay_bad_trace, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, replay_cannot_begin);
    suite_add_tcase(s, t);
    return s;
}
