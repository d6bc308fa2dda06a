/*
 * A daemon with 64 attached workers that ask for nothing: the processor time that it takes all the
 * same, of all its threads, from the kernel's clock of the process.
 */
#include "tools/bench.h"
#include "tools/measure.h"
#include "tools/private_daemon.h"

#include <stdlib.h>
#include <unistd.h>

enum { IDLE_WORKERS = 64, IDLE_SECONDS = 6 };

struct idle {
    struct private_daemon daemon;
    struct tool tool;
    pfx *worker[IDLE_WORKERS];
};

void *idle_begin(void)
{
    struct idle *s = calloc(1, sizeof *s);
    struct daemon_args args = {0};
    if (!s || private_daemon_start(&s->daemon, &args) != EXIT_GOOD) {
        free(s);
        return NULL;
    }
    s->tool.socket = s->daemon.socket;
    for (int i = 0; i < IDLE_WORKERS; i++) {
        int code;
        s->worker[i] = tool_attach(&s->tool, &code);
        if (!s->worker[i]) {
            idle_end(s);
            return NULL;
        }
    }
    return s;
}

double idle_value(void *self)
{
    struct idle *s = self;
    clockid_t clock;
    struct timespec from, to;
    if (clock_getcpuclockid(s->daemon.pid, &clock) != 0) {
        tool_fail(0, "the daemon's processor time cannot be read.");
        return -1;
    }
    usleep(500 * 1000); /* attaching is over */
    uint64_t begin = clock_ns();
    clock_gettime(clock, &from);
    for (int i = 0; i < IDLE_SECONDS * 10 && !interrupted; i++)
        usleep(100 * 1000);
    clock_gettime(clock, &to);
    double used = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    return 100 * used / (double)(clock_ns() - begin);
}

void idle_end(void *self)
{
    struct idle *s = self;
    for (int i = 0; i < IDLE_WORKERS; i++)
        pfx_close(s->worker[i]);
    private_daemon_stop(&s->daemon);
    free(s);
}
