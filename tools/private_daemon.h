/*
 * private_daemon.h - a daemon of our own in a temporary directory, for replay and bench.
 *
 * It dies with us whatever happens (PR_SET_PDEATHSIG); private_daemon_stop ends it with SIGTERM and
 * removes the directory. Its log goes there too, and is shown if it does not start.
 */
#ifndef TOOLS_PRIVATE_DAEMON_H
#define TOOLS_PRIVATE_DAEMON_H

#include "tools/tool.h"

struct private_daemon {
    pid_t pid;
    int out; /* its standard output: the ready line came from there */
    char dir[64];
    char socket[80];
};

/* An exit code; not EXIT_GOOD: after a sentence, nothing is left. */
int private_daemon_start(struct private_daemon *d, const struct daemon_args *args);
/* SIGKILL, and another one with the same arguments at the same socket. An exit code, as above. */
int private_daemon_again(struct private_daemon *d, const struct daemon_args *args);
/* SIGKILL, and the directory goes. */
void private_daemon_kill(struct private_daemon *d);
/* False, after a sentence: it had to be killed, or did not end well. */
bool private_daemon_stop(struct private_daemon *d);

#endif
