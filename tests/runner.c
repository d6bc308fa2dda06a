#include "tests/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Check knows no skipped tests, and names its functions NAME_fn. */
void test_skipped(const char *function, const char *why)
{
    fprintf(stderr, "SKIPPED %.*s: %s\n", (int)(strlen(function) - strlen("_fn")), function, why);
}

/* Check forks a process a test; CK_RUN_CASE, CK_FORK and CK_VERBOSITY work as its manual says:
 * "verbose" is a line a test, which coverage.sh reads. */
int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    SRunner *r = srunner_create(test_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
