/*
 * raw_channel.h - a worker's channel without the library: attach, and empty round trips.
 */
#ifndef TOOLS_RAW_CHANNEL_H
#define TOOLS_RAW_CHANNEL_H

#include "shm/ring.h"
#include "shm/segment.h"
#include "tools/tool.h"

struct raw_channel {
    int fd; /* -1: not attached */
    struct segment request, completion, index;
    struct ring_writer requests;
    struct ring_reader completions;
    uint32_t answered; /* the daemon's nap that we have woken it from */
    uint32_t tag;
};

/* An exit code; not EXIT_GOOD: after a sentence. w->status 0: attached; else refused, w->why. */
int raw_ask(const struct tool *t, struct raw_channel *raw, struct welcome *w);
bool raw_attach(const struct tool *t, struct raw_channel *raw); /* false after a sentence */
void raw_detach(struct raw_channel *raw);
/* One OP_NOP; spins for its answer. False after a sentence. */
bool raw_round_trip(struct raw_channel *raw);

#endif
