#include "daemon/daemon.h"

#include <unistd.h>

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
    if (d.gpu_left) /* the driver's own end would wait for a GPU that is stuck */
        _exit(rc);
    return rc;
}
