/*
 * replay.h - requests as data, and what a worker process does with each.
 *
 *   trace.c          requests of a file in the open trace format
 *   chat.c           the built-in workload
 *   replay_worker.c  one request: lookup, compare, reserve, fill, insert, release
 *   replay_state.c   with --snapshots: restore and save as a hybrid model does
 *   replay.c         options, processes, the sum
 */
#ifndef TOOLS_REPLAY_H
#define TOOLS_REPLAY_H

#include "tools/tool.h"

/* A prompt is a list of segments; a segment's tokens follow from its seed alone, so that equal
 * seeds are equal text. In a trace file each hash id is one of 512 tokens. */
struct segment {
    uint64_t seed;
    uint32_t n_tokens;
};

struct prompt {
    size_t first; /* of workload.segment */
    uint32_t n_segments;
    uint32_t n_tokens;
    uint32_t stem; /* tokens that a later prompt may go on from: all but a trace's partial block */
};

struct workload {
    struct prompt *prompt;
    struct segment *segment;
    size_t n_prompts, n_segments;
    size_t room_prompts, room_segments;
    uint32_t longest; /* tokens */
};

enum { TRACE_BLOCK = 512 /* tokens behind one hash id */ };

/* Add to the next prompt; it is complete. */
void workload_segment(struct workload *w, uint64_t seed, uint32_t n_tokens);
void workload_prompt(struct workload *w, uint32_t stem);
void workload_free(struct workload *w);

/* pad_last: a request's last, partial block counts as a whole one. An exit code. */
int trace_load(struct workload *w, const char *path, uint64_t limit, bool pad_last);
void chat_make(struct workload *w, uint64_t limit);

/* What became of one prompt; written by its worker into memory that the parent shares. */
struct outcome {
    uint32_t done;
    uint32_t requested, hit, disk; /* blocks */
    uint32_t verified, corrupt;
    uint32_t restart; /* --snapshots: where the state was taken up, in tokens; 0: nowhere */
    uint32_t saves;   /* snapshots filed */
    bool corrupt_state;
    uint64_t lookup_ns;
};

struct worker_words {
    uint32_t ready, done; /* attached; prompts done */
    uint32_t paused;      /* it has nothing open, and waits for the daemon's next life */
    uint64_t end_ns;
    uint64_t pad[5]; /* a cache line a worker */
};

struct replay {
    const struct tool *tool;
    const struct workload *work;
    bool whole_match; /* the whole prompt may match, not all but one token */
    bool snapshots;
    unsigned n_workers;
    struct outcome *outcome;    /* shared, one a prompt */
    struct worker_words *words; /* shared, one a worker */
    size_t pause_at;            /* before this prompt the daemon is killed; n_prompts: never */
    uint32_t *go;               /* shared: 1: all are attached, begin; 2: the daemon is another */
};

/* The life of worker number `me`; the exit code of its process. */
int replay_worker(const struct replay *r, unsigned me);

/* ---- a worker process ------------------------------------------------------------------ */

struct worker {
    const struct replay *r;
    pfx *c;
    const struct pfx_geometry *g;
    struct pfx_pool_view device[DEVICES_MAX];
    uint32_t *tokens; /* of the prompt at hand */
    uint64_t *key;    /* of its blocks */
    uint32_t n_tokens, n_blocks, stem;
    uint32_t *reserved;
};

/* Write the bytes that follow from a key to one page or slot, or compare them. */
void worker_fill(void *to, size_t bytes, uint64_t key);
bool worker_holds(const void *from, size_t bytes, uint64_t key);

/* Take up the state that the match offers: read it back, compare it, and let go of it. 0 or an
 * error of pfx_snapshot_drop. */
int state_restore(struct worker *w, const struct pfx_match *m, struct outcome *o);
/* File what a hybrid model would, once the first n_cached blocks of the prompt are cached. 0 or an
 * error. */
int state_save(struct worker *w, const struct pfx_match *m, uint32_t n_cached, struct outcome *o);

#endif
