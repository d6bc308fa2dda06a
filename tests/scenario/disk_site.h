/*
 * disk_site.h - a daemon with swap directories of its own, over several lives, and one worker.
 *
 *      site_init(&s, "2M");               8 blocks of 4 tokens and 4 KiB, written after insert
 *      site_set(&s, "--blocks", "64");
 *      site_start(&s);                    daemon and worker, a restart's scan over
 *      site_kill(&s); site_start(&s);     the next life
 *      site_deinit(&s);
 *
 * io_stop holds the daemon's swap thread alone: nothing is read or written from then on, and all
 * else of the daemon goes on. A slow disk, for as long as a test likes.
 */
#ifndef TESTS_SCENARIO_DISK_SITE_H
#define TESTS_SCENARIO_DISK_SITE_H

#include "tests/states.h"

enum { DISK_WAIT_MS = 20000, SITE_PATHS = 3, SITE_OPTIONS = 40 };

struct site {
    struct host h;
    struct worker w;
    char dir[SITE_PATHS][64], swap[SITE_PATHS][96];
    unsigned n_paths;
    const char *option[SITE_OPTIONS];
    unsigned n_options;
    bool up, was_up; /* was_up: its control directory is still there */
    pid_t stopped;   /* the swap thread, held by io_stop */
};

void site_init(struct site *s, const char *budget);
void site_path(struct site *s, const char *budget); /* one more directory */
/* An option that is given already gets this value; NULL: it goes. Texts must stay. */
void site_set(struct site *s, const char *option, const char *value);
void site_budget(struct site *s, unsigned path, const char *budget);
void site_deinit(struct site *s);

void site_start(struct site *s);
void site_start_scanning(struct site *s); /* the scan may still be under way */
void site_kill(struct site *s);           /* SIGKILL */
void site_stop(struct site *s);           /* SIGTERM: it must exit 0 */
void site_again(struct site *s);          /* kill and start */

const char *site_file(const struct site *s, unsigned path); /* of blocks; static */
uint64_t site_file_size(const struct site *s, unsigned path);
/* What does not fit any more is cut off, garbage is put over a part of it. */
void site_file_cut(const struct site *s, unsigned path, uint64_t length);
void site_file_garbage(const struct site *s, unsigned path, uint64_t at, uint64_t n, uint64_t seed);

void io_stop(struct site *s); /* there are free slots on disk by then */
void io_go(struct site *s);

/* ---- calls ---- */

/* A lookup of any residency. */
struct held seek(struct site *s, const char *text, uint32_t flags);
struct held seek_seq(struct site *s, const struct seq *q, uint32_t flags);
/* Brought in, and every block that is there has the right bytes. Returns the tokens that matched;
 * leaves nothing behind. */
uint32_t exact(struct site *s, const char *text);
uint32_t exact_seq(struct site *s, const struct seq *q);
uint32_t findable(struct site *s, const char *text); /* by pfx_peek: tokens in any tier */

/* All that is cached is on disk too, and nothing moves. */
void all_written(struct site *s);
void disk_used_is(struct site *s, unsigned n); /* soon */
bool disk_is_healthy(const struct site *s);    /* as prefixctl status says */
/* Pages of n idle blocks become free; returns how many blocks are nowhere now. */
uint32_t evict_pages(struct site *s, uint32_t n);

/* Cached, written, and in no page. */
void put_on_disk(struct site *s, const char *text);
/* A state: saved, and on disk with its prefix. */
void keep_on_disk(struct site *s, const char *text, uint32_t depth, enum pfx_snapshot_kind kind,
                  uint64_t session);
void inflight_is(struct site *s, unsigned n); /* soon */
/* Nothing is held, nothing moves, and none is lost. */
void at_rest(struct site *s);

void submit_fetch(struct worker *w, const char *text, uint64_t tag); /* a lookup with PFX_FETCH */
struct held await_fetch(struct worker *w, uint64_t tag, const char *text); /* all came, and right */

struct site site_by(const struct site *s, struct worker w); /* the same daemon, by another worker */
struct seq numbers(uint32_t first, uint32_t n);             /* tokens first, first + 1, ... */

/* Another tenant's or adapter's: of this worker, from here on. Bytes depend on `weights` and the
 * tokens alone, so that they are the same in a life in which the space has another number. */
pfx_space use_space(struct site *s, const char *tenant, uint64_t adapter, uint64_t generation,
                    uint64_t weights);

#endif
