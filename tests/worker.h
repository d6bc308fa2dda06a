/*
 * worker.h - a worker of the tests: the public interface with every step audited.
 *
 * Sequences are written as text, a character a token, so that with 4-token blocks
 *
 *      cache(&w, "aaaabbbbcccc");
 *      struct held h = look(&w, "aaaabbbbx");      matches 8
 *
 * A page's bytes follow from the whole prefix that it stands for (and from the worker's `weights`,
 * where a test has two of the same prefix), so that any foreign byte shows.
 *
 * look, grab, put, cut, drop and cache run the daemon's audit after the call, and check that the
 * five page counts sum to n_blocks.
 */
#ifndef TESTS_WORKER_H
#define TESTS_WORKER_H

#include "client/prefixd.h"
#include "tests/harness.h"

enum { SEQ_MAX = 1024, TABLE_MAX = 1024 };

struct worker {
    struct host *host;
    pfx *c;
    pfx_space space;  /* of look and cache                       */
    uint64_t weights; /* mixed into the bytes of pages           */
    bool unchecked;   /* no audit: the daemon is stopped or dead */
};

/* A lease, its tokens, and its block table as the test believes it to be. */
struct held {
    uint64_t lease;
    uint64_t session; /* that the lookup was for */
    struct pfx_match match;
    uint32_t table[TABLE_MAX];
    uint32_t n_table;
    uint32_t n_published; /* positions that an insert may have given away: not written again */
};

struct seq {
    uint32_t at[SEQ_MAX];
    size_t n;
};

struct seq seq(const char *text);

/* Attach, by default as a group of its own; timeout_ms is that of its requests. */
void worker_open(struct worker *w, struct host *h, const char *group);
void worker_open_timeout(struct worker *w, struct host *h, unsigned timeout_ms);
void worker_close(struct worker *w);
struct pfx_options worker_options(const struct host *h);

uint32_t block_tokens(const struct worker *w);
struct pfx_stats counters(const struct worker *w);

/* The five page counts, as one comparable value. */
struct pages {
    uint64_t free, private, pinned, idle, inflight;
};
struct pages pages(const struct worker *w);
void pages_are(const struct worker *w, unsigned n_free, unsigned n_private, unsigned n_pinned,
               unsigned n_idle);
/* So many are in quarantine, so many free. */
void pages_confined(const struct worker *w, unsigned n_free, unsigned n_confined);
void pages_equal(const struct worker *w, struct pages before);
void step(const struct worker *w); /* audit, and the sum */

struct pfx_lookup_args lookup_args(const struct worker *w, const struct seq *s);

/* A lookup; fails the test if it fails. */
struct held look(struct worker *w, const char *text);
struct held look_whole(struct worker *w, const char *text); /* max_match: all of it */
struct held look_args(struct worker *w, const struct pfx_lookup_args *args);
struct held look_seq(struct worker *w, const struct seq *s);

/* What a lookup of it matches now, in tokens; leaves nothing behind, and pfx_peek must agree. */
uint32_t matched(struct worker *w, const char *text);

/* Reserve n more; returns the status, and on success extends the table. */
int grab(struct worker *w, struct held *h, uint32_t n);

/* Fill the table's unpublished positions with the bytes of the sequence's prefixes. */
void fill(struct worker *w, const struct held *h, const struct seq *s);

/* Fill what is private and insert all of text; returns the status. canonical ids come back into
 * `canonical` if it is not NULL. */
int put(struct worker *w, struct held *h, const char *text, uint32_t flags, uint32_t *canonical,
        struct pfx_insert_result *result);
int put_seq(struct worker *w, struct held *h, const struct seq *s, uint32_t flags,
            uint32_t *canonical, struct pfx_insert_result *result);

int cut(struct worker *w, struct held *h, uint32_t n);
void drop(struct worker *w, struct held *h);
int release(struct worker *w, uint64_t lease); /* the bare call, audited */

/* Lookup, reserve what lacks, fill, insert, release. final: with PFX_FINAL. Returns new blocks. */
uint32_t cache(struct worker *w, const char *text);
uint32_t cache_final(struct worker *w, const char *text);
uint32_t cache_seq(struct worker *w, const struct seq *s, uint32_t flags);

/* Evict n; returns blocks freed, which must equal blocks removed (there is no disk tier). */
uint32_t evict(struct worker *w, uint32_t n);

/* Block `position` of the lease holds the bytes of text's prefix; all matched ones do. */
bool bytes_are(const struct worker *w, uint32_t block, const struct seq *s, size_t n_tokens);
void bytes_match(const struct worker *w, const struct held *h, const char *text);

#endif
