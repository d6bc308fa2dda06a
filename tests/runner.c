#include "tests/harness.h"

#include <signal.h>
#include <stdlib.h>

/* Check forks a process a test; CK_RUN_CASE and CK_FORK work as its manual says. */
int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    SRunner *r = srunner_create(test_suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
