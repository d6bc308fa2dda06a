#include "daemon/daemon.h"

int main(int argc, char **argv)
{
    struct options options;
    int rc = options_read(&options, argc, argv);
    if (rc != OPTIONS_RUN)
        return rc;

    struct daemon d;
    rc = daemon_start(&d, &options);
    if (rc == 0)
        rc = daemon_run(&d);
    daemon_stop(&d);
    return rc;
}
