/*
 * socket_path.h - where a daemon listens and where it is looked for: the one rule.
 *
 *   what was given (--socket, socket_path), else $PREFIXD_SOCKET: there, and nowhere else
 *   else $XDG_RUNTIME_DIR/prefixd.sock, if XDG_RUNTIME_DIR is set
 *   else /run/prefixd/prefixd.sock
 *
 * A daemon listens at the first of these. Who looks for one tries the user's path, then the
 * system's: a daemon of the system is found from a session that has XDG_RUNTIME_DIR, too.
 */
#ifndef SHM_SOCKET_PATH_H
#define SHM_SOCKET_PATH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define SYSTEM_SOCKET_DIRECTORY "/run/prefixd"
#define SYSTEM_SOCKET SYSTEM_SOCKET_DIRECTORY "/prefixd.sock"

enum { SOCKET_PATH_MAX = sizeof((struct sockaddr_un *)0)->sun_path - 1 };

struct socket_paths {
    const char *at[2];
    unsigned n;
    char own[SOCKET_PATH_MAX + 2]; /* cut to one byte more than fits: too long it stays */
};

/* `given` NULL or empty: nothing was given. The paths live as long as *p and `given`. */
static inline void socket_paths(struct socket_paths *p, const char *given)
{
    const char *named = given && *given ? given : secure_getenv("PREFIXD_SOCKET");
    const char *directory = secure_getenv("XDG_RUNTIME_DIR");
    p->n = 0;
    if (named && *named) {
        p->at[p->n++] = named;
        return;
    }
    if (directory && *directory) {
        (void)snprintf(p->own, sizeof p->own, "%s/prefixd.sock", directory);
        p->at[p->n++] = p->own;
    }
    p->at[p->n++] = SYSTEM_SOCKET;
}

/* How to start one: at the first path, if this user may; prefixd makes the system's directory. */
static inline void socket_remedy(const struct socket_paths *p, char *to, size_t n)
{
    char directory[SOCKET_PATH_MAX + 1] = ".";
    const char *slash = strrchr(p->at[0], '/');
    if (slash)
        (void)snprintf(directory, sizeof directory, "%.*s", (int)(slash - p->at[0] + 1), p->at[0]);
    bool system = strcmp(p->at[0], SYSTEM_SOCKET) == 0;
    bool may = access(directory, W_OK | X_OK) == 0 || (system && geteuid() == 0);
    snprintf(to, n, "start one with `prefixd --socket %s`%s", may ? p->at[0] : "PATH",
             may ? "" : ", with a PATH where this user may make files");
}

/* Of a path that this user may not open. */
#define SOCKET_CLOSED                                                                              \
    "%s may not be opened by this user; join the group that its directory is open to, and log in " \
    "anew, or run as the daemon's user"

#endif
