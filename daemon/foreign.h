/*
 * foreign.h - packets, and open files, of processes that nobody has reason to trust.
 *
 * Everybody may connect to the control socket, and send descriptors along. Nobody is asked for any.
 * But whoever gives up the last descriptor of a file does the work of its end: a TCP socket with
 * SO_LINGER waits for its peer, for hours if told so, and an unlinked file gives back all its
 * blocks. On the one thread that would stop the daemon; so would one that is received where no more
 * may be opened, as the kernel gives it up at once. So the kernel is asked to take none for us
 * (SO_PASSRIGHTS, Linux 6.16); where it does not know that, they stay in the queue, and the socket
 * goes with them to another thread, which closes all. It begins with the first; few daemons ever
 * have it.
 */
#ifndef DAEMON_FOREIGN_H
#define DAEMON_FOREIGN_H

#include <stddef.h>
#include <sys/types.h>

struct foreign; /* the closing thread and what it has to close; NULL: nothing has come yet */

/* Of a listening socket, and so of what it accepts. */
void foreign_refuse(int listen_fd);

/* One packet, or -1 with errno, without waiting. Its true length, be it more than n; 0: an empty
 * packet, or the end. EPERM: descriptors come with it, and it stays where it is: hang up. */
ssize_t foreign_recv(int fd, void *to, size_t n);

/* Close a stranger's socket, what it has not been asked for yet included. */
void foreign_close(struct foreign **f, int fd);

/* The thread's end, or not for long: what a file still waits for ends with the process. */
void foreign_stop(struct foreign **f);

#endif
