/*
 * quarantine.h - pages that a dying worker's GPU may still write.
 *
 * A kernel goes on when the process that launched it is killed, until the driver has taken its
 * context down; and a worker whose socket has hung up may live. So an end without BYE (which is
 * said after the pool was unmapped) leaves a ghost of the session, until both its hang-up and its
 * process's exit have been seen: exit alone does not do, for a forked child may have inherited the
 * driver's descriptors as well as the socket. Meanwhile
 *
 *   - the session has ended in every other respect: its name, its place, its leases;
 *   - what its group gives back (the dead worker's leases at the group's end, or what a mate
 *     releases) is confined: neither free nor private, counted as in flight;
 *   - nobody waits for it: a reserve is refused as if these pages were held.
 *
 * Only private pages matter. Published ones were complete before their insert, and what a dying
 * reader reads is nobody's business.
 *
 * The host's memory needs none of this: its mappings are gone before the exit is seen, and who
 * hangs up and lives is told by PFX_EGONE.
 */
#ifndef DAEMON_QUARANTINE_H
#define DAEMON_QUARANTINE_H

#include "daemon/session.h"

/* Does it map memory that something else than its CPUs may write? Then it has a pidfd. */
bool quarantine_needed(const struct daemon *d, const struct session *s);

/* At the beginning of an unclean end. True: the session becomes a ghost: its descriptors and
 * itself are ours, it is out of daemon.sessions. */
bool quarantine_begin(struct daemon *d, struct session *s);

/* When the daemon stops: tell workers that map a GPU that the epoch is over, and wait for a bounded
 * time until they have unmapped. True: none does any more, and its memory may be freed. */
bool quarantine_farewell(struct daemon *d);
void quarantine_stop(struct daemon *d);

#endif
