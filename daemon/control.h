/*
 * control.h - the control socket's place in the file system: one daemon a path, and a stale socket
 * of a killed one is taken over without a race.
 */
#ifndef DAEMON_CONTROL_H
#define DAEMON_CONTROL_H

struct daemon;

/* Take PATH.lock, and remove the socket of a dead daemon. 0, or an exit code after one log line. */
int control_lock(struct daemon *d);
/* Bind and listen; the lock is held. */
int control_listen(struct daemon *d);
/* Remove the socket and the lock, as far as we have them. */
void control_deafen(struct daemon *d); /* nobody can connect any more, but the path is ours */
void control_close(struct daemon *d);

#endif
