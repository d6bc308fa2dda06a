#include "tests/harness.h"

#include <signal.h>
#include <stdlib.h>

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
