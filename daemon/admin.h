/*
 * admin.h - what only the daemon knows, as rows in a sealed memfd: workers, leases, the audit.
 * Never a token. The daemon's user and root see all; another user sees what is his, and may not
 * have the audit, for which everybody waits.
 */
#ifndef DAEMON_ADMIN_H
#define DAEMON_ADMIN_H

#include "shm/message.h"

#include <stdbool.h>

struct daemon;
struct peer;

/* False: the tool can no longer be answered; close it. */
bool admin_answer(struct daemon *d, int fd, const struct peer *p, const struct admin_request *rq);

#endif
