/*
 * visitor.h - connections that are not workers: those that have not said HELLO yet, and tools. Each
 * is a small table entry, their number is bounded, and none is ever waited for.
 */
#ifndef DAEMON_VISITOR_H
#define DAEMON_VISITOR_H

#include <stdbool.h>

struct daemon;

/* Accept from the listening socket, and later send all visitors away. */
int visitors_start(struct daemon *d);
void visitors_stop(struct daemon *d);

/* Descriptors are short: one that has not said HELLO goes. False: there is none. */
bool visitors_give_way(struct daemon *d);

#endif
