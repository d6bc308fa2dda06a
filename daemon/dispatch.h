/*
 * dispatch.h - what each record does: one function an opcode, found in one table.
 *
 * The record is a private copy; arenas are hostile and copied before they are looked at. All that
 * can fail comes before the first change.
 */
#ifndef DAEMON_DISPATCH_H
#define DAEMON_DISPATCH_H

#include "shm/message.h"

#include <stdbool.h>

struct daemon;
struct session;
struct job;

/* Tokens and blocks that one session may cost a turn before the next one has its own. */
enum { TURN_TOKENS = 8 * 1024, TURN_BLOCKS = 64 };

/* What came of it: *out is the completion; or it became a job, which goes on in the next turn, or
 * which waits for the disk. */
enum progress { ANSWERED, GOES_ON, WAITS };

/* Do one record; a job of it is s->job. *cost grows by the work done, in tokens. */
enum progress dispatch_request(struct daemon *d, struct session *s, const struct request *rq,
                               struct wire_completion *out, uint64_t *cost);
/* Go on with a job of this session. */
enum progress dispatch_continue(struct daemon *d, struct session *s, struct job *j,
                                struct wire_completion *out, uint64_t *cost);

/* Give back what an unfinished job has taken (its session ends). */
void dispatch_abandon(struct daemon *d, struct session *s, struct job *j);

/* A slice of what no session's turn does: transfers of snapshots, flushed trees whose worker has
 * gone. True: there was some. */
bool dispatch_background(struct daemon *d);

#endif
