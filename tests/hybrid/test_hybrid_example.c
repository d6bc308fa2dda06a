/*
 * The example runs against a daemon started with the options that it prints, twice; without a
 * daemon it says what it needs.
 */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUTPUT = 8192, OPTIONS = 32 };

static const char *example_path(void)
{
    const char *path = getenv("HYBRID_EXAMPLE_BIN");
    ck_assert_msg(path != NULL, "HYBRID_EXAMPLE_BIN is not set: run the tests by meson");
    return path;
}

static int example(const char *const *argv, char output[OUTPUT])
{
    return program_run(example_path(), argv, output, OUTPUT);
}

/* Of a line that begins `N of M prompt tokens`: N. */
static unsigned saved_tokens(const char *output)
{
    const char *line = strstr(output, "logits\n");
    unsigned saved = 0, all = 0;
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(sscanf(line, "logits\n%u of %u prompt tokens", &saved, &all), 2);
    ck_assert_uint_lt(saved, all);
    return saved;
}

START_TEST(runs_with_its_own_options)
{
    char text[OUTPUT], output[OUTPUT], *rest = NULL;
    const char *options[OPTIONS] = {NULL};
    ck_assert_int_eq(example((const char *const[]){"--options", NULL}, text), 0);
    for (int n = 0; n < OPTIONS - 1; n++)
        options[n] = strtok_r(n ? NULL : text, " \n", &rest);
    struct host h;
    host_start(&h, options);
    const char *const attach[] = {"--socket", h.socket, NULL};
    ck_assert_int_eq(example(attach, output), 0);
    ck_assert_ptr_nonnull(strstr(output, "\n9 of 9 answers equal"));
    /* at least the system prompt, 640 tokens, in all turns but the very first */
    unsigned first = saved_tokens(output);
    ck_assert_uint_ge(first, 8 * 640);
    ck_assert_int_eq(example(attach, output), 0);
    ck_assert_uint_gt(saved_tokens(output), first);
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

START_TEST(says_what_it_needs)
{
    char output[OUTPUT];
    const char *const nowhere[] = {"--socket", "/nonexistent/s", NULL};
    time_t begin = time(NULL);
    ck_assert_int_eq(example(nowhere, output), 1);
    ck_assert_int_ge(time(NULL) - begin, 4); /* it might have been started a moment ago */
    ck_assert_ptr_nonnull(strstr(output, "/../daemon/prefixd --model hybrid --block-tokens 16"));
    ck_assert_int_eq(example((const char *const[]){"--what", NULL}, output), 2);
    ck_assert_int_eq(example((const char *const[]){"--help", NULL}, output), 0);
    ck_assert_ptr_nonnull(strstr(output, "usage: hybrid_example"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_example");
    TCase *c = tcase_create("example");
    tcase_set_timeout(c, 30 * SLOW);
    tcase_add_test(c, runs_with_its_own_options);
    tcase_add_test(c, says_what_it_needs);
    suite_add_tcase(s, c);
    return s;
}
