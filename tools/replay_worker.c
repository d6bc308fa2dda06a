/*
 * One worker process of a replay: a stand-in for an LLM server.
 *
 * THE PROOF. The page of a block is filled with bytes that follow from the tokens of the block and
 * of everything before it:
 *
 *      key(0) = hash(seed, tokens of block 0)     key(i) = hash(key(i - 1), tokens of block i)
 *      word w of block i on device d = random_word(key(i) + d, w)
 *
 * So a page that a lookup returns can be compared without knowing who wrote it, and a page of the
 * right tokens behind a wrong prefix, of another block, or not yet (or no longer) written, differs.
 */
#include "tools/replay.h"
#include "tools/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    RESERVE_TRIES = 200, /* others hold the room: wait so many milliseconds */
    TIMEOUT_MS = 60 * 1000,
};

static int fail(const struct worker *w, const char *what, int rc)
{
    return tool_fail_call(w->r->tool, w->c, what, rc);
}

/* ---- tokens and bytes ------------------------------------------------------------------- */

static void expand(struct worker *w, const struct prompt *p)
{
    const struct segment *s = w->r->work->segment + p->first;
    w->n_tokens = 0;
    for (uint32_t i = 0; i < p->n_segments; i++, s++)
        for (uint32_t t = 0; t < s->n_tokens; t++)
            w->tokens[w->n_tokens++] = (uint32_t)random_word(mix64(s->seed), t);

    uint32_t bt = w->g->layout.block_tokens;
    uint64_t key = 0;
    w->stem = p->stem;
    w->n_blocks = w->n_tokens / bt;
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        key = XXH3_64bits_withSeed(w->tokens + (size_t)b * bt, (size_t)bt * sizeof *w->tokens, key);
        w->key[b] = key;
    }
}

void worker_fill(void *to, size_t bytes, uint64_t key)
{
    uint64_t *at = to, last = random_word(key, bytes / sizeof *at);
    for (size_t i = 0; i < bytes / sizeof *at; i++)
        at[i] = random_word(key, i);
    memcpy((char *)to + bytes - bytes % sizeof *at, &last, bytes % sizeof *at);
}

bool worker_holds(const void *from, size_t bytes, uint64_t key)
{
    const uint64_t *at = from;
    uint64_t differs = 0, last = random_word(key, bytes / sizeof *at);
    for (size_t i = 0; i < bytes / sizeof *at; i++)
        differs |= at[i] ^ random_word(key, i);
    return differs == 0 &&
           memcmp((const char *)from + bytes - bytes % sizeof *at, &last, bytes % sizeof *at) == 0;
}

static void *page(const struct worker *w, uint32_t device, uint32_t block)
{
    const struct pfx_pool_view *v = &w->device[device];
    return (char *)v->blocks + block * v->block_stride;
}

/* A pool of states only has blocks without bytes, and no pages. */
static void fill(const struct worker *w, uint32_t block, uint64_t key)
{
    size_t bytes = w->g->layout.block_bytes;
    for (uint32_t d = 0; bytes && d < w->g->layout.n_devices; d++)
        worker_fill(page(w, d, block), bytes, key + d);
}

static bool holds(const struct worker *w, uint32_t block, uint64_t key)
{
    size_t bytes = w->g->layout.block_bytes;
    bool good = true;
    for (uint32_t d = 0; bytes && d < w->g->layout.n_devices; d++)
        good &= worker_holds(page(w, d, block), bytes, key + d);
    return good;
}

/* ---- one request -------------------------------------------------------------------------- */

/* Bring blocks that are on disk only, and a spilled snapshot that lies deeper than the resident
 * one; where there is no room, go on with what is here. */
static int fetch(struct worker *w, struct pfx_match *m, struct outcome *o)
{
    bool state = w->r->snapshots && m->snapshot.tier_depth > m->snapshot.depth;
    if (m->n_resident == m->n_blocks && !state)
        return 0;
    o->disk = m->n_blocks - m->n_resident;
    int rc = pfx_fetch(w->c, m->lease, m);
    if (rc == PFX_ENOSPC) {
        o->disk = 0;
        m->n_blocks = m->n_resident;
        rc = pfx_truncate(w->c, m->lease, m->n_resident);
    }
    return rc == PFX_EIO ? 0 : rc;
}

static void compare(const struct worker *w, const struct pfx_match *m, struct outcome *o)
{
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (!holds(w, m->blocks[b], w->key[b]))
            o->corrupt++;
    o->verified += m->n_blocks;
}

/* Room for n more blocks. Others may hold it: wait a bounded time, then take what there is, so
 * that two workers never wait for each other for ever. Blocks got, or an error. */
static int reserve(struct worker *w, uint64_t lease, uint32_t n)
{
    for (int tries = 0; n > 0;) {
        int rc = pfx_reserve(w->c, lease, n, w->reserved);
        if (rc >= 0)
            return (int)n;
        if (rc != PFX_ENOSPC)
            return rc;
        if (++tries < RESERVE_TRIES && w->r->n_workers > 1)
            usleep(1000);
        else
            n /= 2;
    }
    return 0;
}

/* Blocks of the prompt that are cached then, or an error. PFX_ESTALE: somebody flushed the space
 * meanwhile, only release is left. */
static int publish(struct worker *w, const struct pfx_match *m)
{
    uint32_t want = w->n_blocks < w->g->n_blocks ? w->n_blocks : w->g->n_blocks;
    int got = want > m->n_blocks ? reserve(w, m->lease, want - m->n_blocks) : 0;
    if (got <= 0)
        return got < 0 ? got : (int)m->n_blocks;
    for (int i = 0; i < got; i++)
        fill(w, w->reserved[i], w->key[m->n_blocks + (uint32_t)i]);
    struct pfx_insert_args args = {.size = sizeof args,
                                   .tokens = w->tokens,
                                   .n_written = (size_t)(m->n_blocks + (uint32_t)got) *
                                                w->g->layout.block_tokens};
    struct pfx_insert_result result = {.size = sizeof result};
    int rc = pfx_insert(w->c, m->lease, &args, NULL, &result);
    return rc < 0 ? rc : (int)result.cached_blocks;
}

static int compute(struct worker *w, const struct pfx_match *m, struct outcome *o)
{
    int rc = 0;
    if (w->r->snapshots && (rc = state_restore(w, m, o)) < 0)
        return rc;
    rc = publish(w, m);
    return rc < 0 || !w->r->snapshots ? rc : state_save(w, m, (uint32_t)rc, o);
}

static int serve(struct worker *w, const struct prompt *p, struct outcome *o)
{
    expand(w, p);
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .flags = PFX_NO_TAIL,
                                   .tokens = w->tokens,
                                   .n_tokens = w->n_tokens,
                                   .max_match = w->r->whole_match ? w->n_tokens : 0};
    struct pfx_match m = {.size = sizeof m};
    uint64_t before = clock_ns();
    int rc = pfx_lookup(w->c, &args, &m);
    o->lookup_ns = clock_ns() - before;
    if (rc < 0)
        return fail(w, "lookup failed", rc);
    rc = fetch(w, &m, o);
    if (rc < 0)
        return fail(w, "fetch failed", rc);
    o->requested = w->n_blocks;
    o->hit = m.n_blocks;
    compare(w, &m, o);
    rc = compute(w, &m, o);
    if (rc < 0 && rc != PFX_ESTALE)
        return fail(w, "reserve or insert failed", rc);
    rc = pfx_release(w->c, m.lease);
    if (rc < 0)
        return fail(w, "release failed", rc);
    return EXIT_GOOD;
}

/* ---- its life ------------------------------------------------------------------------------ */

static int attach(struct worker *w, unsigned me)
{
    char name[32];
    snprintf(name, sizeof name, "replay-%u", me);
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = w->r->tool->socket,
                                  .name = name,
                                  .timeout_ms = TIMEOUT_MS};
    int rc = pfx_open(&options, &w->c);
    if (rc < 0)
        return tool_fail_pfx("a worker cannot attach", rc, pfx_why(NULL));
    w->g = pfx_geometry(w->c);
    for (uint32_t d = 0; d < w->g->layout.n_devices; d++) {
        w->device[d].size = sizeof w->device[d];
        rc = pfx_pool_view(w->c, d, &w->device[d]);
        if (rc < 0)
            return fail(w, "no view of the pool", rc);
        if (w->device[d].is_cuda)
            return tool_fail(EXIT_DAEMON, "replay compares pages in host memory, and this pool is "
                                          "on a GPU; hit ratios are the same with --private and "
                                          "--device host.");
    }
    size_t longest = w->r->work->longest, blocks = longest / w->g->layout.block_tokens + 1;
    w->tokens = calloc(longest + 1, sizeof *w->tokens);
    w->key = calloc(blocks, sizeof *w->key);
    w->reserved = calloc(blocks, sizeof *w->reserved);
    if (!w->tokens || !w->key || !w->reserved)
        return tool_fail(EXIT_DAEMON, "out of memory.");
    return EXIT_GOOD;
}

static void detach(struct worker *w)
{
    pfx_close(w->c);
    free(w->tokens);
    free(w->key);
    free(w->reserved);
    *w = (struct worker){.r = w->r};
}

/* The daemon is killed and started again: begin anew, with whatever it has kept. */
static int over_a_restart(struct worker *w, unsigned me)
{
    detach(w);
    shm_store_release(&w->r->words[me].paused, 1u);
    while (shm_load_acquire(w->r->go) < 2)
        usleep(200);
    return attach(w, me);
}

int replay_worker(const struct replay *r, unsigned me)
{
    struct worker w = {.r = r};
    struct worker_words *words = &r->words[me];
    int code = attach(&w, me);
    if (code != EXIT_GOOD)
        return code;
    shm_store_release(&words->ready, 1u);
    while (!shm_load_acquire(r->go))
        usleep(200);
    for (size_t i = me; i < r->work->n_prompts && code == EXIT_GOOD; i += r->n_workers) {
        if (i >= r->pause_at && !words->paused)
            code = over_a_restart(&w, me);
        if (code == EXIT_GOOD)
            code = serve(&w, &r->work->prompt[i], &r->outcome[i]);
        r->outcome[i].done = code == EXIT_GOOD;
        shm_store(&words->done, words->done + 1);
    }
    words->end_ns = clock_ns();
    detach(&w);
    return code;
}
