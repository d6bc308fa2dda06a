/*
 * group.h - joining and leaving a group, and remembering its dead while their leases live.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/session.h"

/* A member that ended without BYE while its leases stay. Made when the session is, so that its end
 * cannot fail; goes with its last lease. */
struct dead_member {
    struct list link; /* group.dead */
    uint64_t number;  /* of its session */
    pid_t pid;
    char name[32];
    uint32_t leases;
    uint64_t private_blocks;
};

/* The group of that user and name, or a new one; an empty name is always a new one. NULL: no
 * memory. */
struct group *group_join(struct daemon *d, uid_t uid, const char *name);

/* The last member's leave gives back what the group still holds. */
void group_leave(struct daemon *d, struct group *g);

/* A private page, or slot, of its leases goes back: to the pool, or into quarantine. */
void group_give_page(struct daemon *d, struct group *g, uint32_t page);
void group_give_slot(struct daemon *d, struct group *g, uint32_t slot);

/* Do the options allow its leases so many more? Each member that is there brings its share; what
 * the leases of dead members have counts as well. */
bool group_may_take_pages(const struct daemon *d, const struct group *g, uint32_t more);
bool group_may_take_slot(const struct daemon *d, const struct group *g);

/* Before leases_session_end of an unclean end: its leases belong to the dead from here on. */
void group_mourn(struct session *s);

/* One of its leases has been released. */
void dead_settle(struct dead_member *m);

#endif
