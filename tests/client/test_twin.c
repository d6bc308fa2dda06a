/* Random asynchronous calls against a synchronous twin (twin.h). */
#include "tests/client/twin.h"

#include <stdio.h>
#include <stdlib.h>

START_TEST(twins_agree)
{
    struct twin *t = malloc(sizeof *t);
    twin_open(t);
    while (t->submitted < 10000)
        twin_step(t);
    ck_assert_uint_gt(t->cancelled, 0);
    ck_assert_uint_gt(t->largest_backlog, 4);
    printf("twins_agree: %u cancelled, %u flushes, %u times full, backlog up to %u\n", t->cancelled,
           t->flushes, t->full, t->largest_backlog);
    twin_close(t);
    free(t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("twin");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, twins_agree, 0, 3); /* each with a seed, ring and arena of its own */
    suite_add_tcase(s, t);
    return s;
}
