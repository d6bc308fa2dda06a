/*
 * group.h - joining and leaving a group, and remembering its dead while their leases live.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/session.h"

/* A member that ended without BYE while its leases stay. */
struct dead_member {
    struct list link;
    uint64_t number; /* of its session; leases name it (lease.dead_opener) */
    pid_t pid;
    char name[32];
};

/* The group of that user and name, or a new one; an empty name is always a new one. NULL: no
 * memory. */
struct group *group_join(struct daemon *d, uid_t uid, const char *name);

/* The last member's leave gives back what the group still holds. */
void group_leave(struct daemon *d, struct group *g);

/* Before leases_session_end of an unclean end: mark its leases, and note who it was. Without memory
 * only the note is lost. */
void group_mourn(struct session *s);

#endif
