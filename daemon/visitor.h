/*
 * visitor.h - connections that are not workers: those that have not said HELLO yet, and tools. Each
 * is a small table entry, their number is bounded, and none is ever waited for.
 */
#ifndef DAEMON_VISITOR_H
#define DAEMON_VISITOR_H

struct daemon;

/* Accept from the listening socket, and later send all visitors away. */
int visitors_start(struct daemon *d);
void visitors_stop(struct daemon *d);

#endif
