/* notify.h - the state line that systemd waits for (sd_notify(3)), where it started us. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

void notify_systemd(const char *state);

#endif
