#include "tests/worker.h"

#include <string.h>

struct seq seq(const char *text)
{
    struct seq s = {.n = strlen(text)};
    REQUIRE(s.n <= SEQ_MAX);
    for (size_t i = 0; i < s.n; i++)
        s.at[i] = (uint32_t)(unsigned char)text[i];
    return s;
}

struct pfx_options worker_options(const struct host *h)
{
    return (struct pfx_options){
        .size = sizeof(struct pfx_options), .socket_path = h->socket, .name = "test"};
}

static void open_until(struct worker *w, struct host *h, const struct pfx_options *o,
                       uint64_t until)
{
    int rc;
    *w = (struct worker){.host = h};
    while ((rc = pfx_open(o, &w->c)) == PFX_ETIMEDOUT && now_ms() < until)
        continue;
    REQUIRE_MSG(rc == 0, "pfx_open: %s (%s)", pfx_strerror(rc), pfx_why(NULL));
}

void worker_open(struct worker *w, struct host *h, const char *group)
{
    struct pfx_options o = worker_options(h);
    o.group = group;
    o.timeout_ms = 5000 * SLOW;
    open_until(w, h, &o, 0);
}

/* Its requests have so little time; to be let in is not what is tested. */
void worker_open_timeout(struct worker *w, struct host *h, unsigned timeout_ms)
{
    struct pfx_options o = worker_options(h);
    o.timeout_ms = timeout_ms;
    open_until(w, h, &o, now_ms() + 5000 * SLOW);
}

void worker_close(struct worker *w)
{
    pfx_close(w->c);
    w->c = NULL;
}

uint32_t block_tokens(const struct worker *w)
{
    return pfx_geometry(w->c)->layout.block_tokens;
}

struct pfx_stats counters(const struct worker *w)
{
    struct pfx_stats s = {.size = sizeof s};
    REQUIRE_EQ(pfx_stats(w->c, &s), 0);
    return s;
}

struct pages pages(const struct worker *w)
{
    struct pfx_stats s = counters(w);
    return (struct pages){s.blocks_free, s.blocks_private, s.blocks_pinned, s.blocks_idle,
                          s.blocks_inflight};
}

void pages_are(const struct worker *w, unsigned n_free, unsigned n_private, unsigned n_pinned,
               unsigned n_idle)
{
    struct pages p = pages(w);
    REQUIRE_MSG(p.free == n_free && p.private == n_private && p.pinned == n_pinned &&
                    p.idle == n_idle && p.inflight == 0,
                "free %d private %d pinned %d idle %d inflight %d, not %u %u %u %u 0", (int)p.free,
                (int)p.private, (int)p.pinned, (int)p.idle, (int)p.inflight, n_free, n_private,
                n_pinned, n_idle);
}

void pages_confined(const struct worker *w, unsigned n_free, unsigned n_confined)
{
    struct pages p = pages(w);
    REQUIRE_EQ(p.inflight, n_confined);
    REQUIRE_EQ(p.free, n_free);
    REQUIRE_EQ(p.private, 0);
}

void pages_equal(const struct worker *w, struct pages before)
{
    pages_are(w, (unsigned)before.free, (unsigned)before.private, (unsigned)before.pinned,
              (unsigned)before.idle);
}

void step(const struct worker *w)
{
    if (w->unchecked)
        return;
    audit_clean(w->host);
    struct pages p = pages(w);
    REQUIRE_EQ(p.free + p.private + p.pinned + p.idle + p.inflight, pfx_geometry(w->c)->n_blocks);
}

/* ---- lookups ------------------------------------------------------------------- */

struct pfx_lookup_args lookup_args(const struct worker *w, const struct seq *s)
{
    return (struct pfx_lookup_args){.size = sizeof(struct pfx_lookup_args),
                                    .space = w->space,
                                    .tokens = s->at,
                                    .n_tokens = s->n};
}

/* All of a match has pages: only where a tier holds blocks may some wait there to be fetched. */
static void all_resident(const struct pfx_match *m, uint32_t flags)
{
    if (!on_disk() || (flags & PFX_FETCH))
        REQUIRE_EQ(m->n_resident, m->n_blocks);
    for (uint32_t i = 0; i < m->n_blocks; i++)
        REQUIRE(m->blocks[i] != PFX_NO_BLOCK || m->disk[i] != PFX_NO_DISK);
}

struct held look_args(struct worker *w, const struct pfx_lookup_args *args)
{
    struct held h = {.match = {.size = sizeof h.match}, .session = args->session};
    int rc = pfx_lookup(w->c, args, &h.match);
    REQUIRE_MSG(rc == 0, "pfx_lookup: %s (%s)", pfx_strerror(rc), pfx_why(w->c));
    REQUIRE(h.match.lease != 0);
    REQUIRE_EQ(h.match.matched_tokens, h.match.n_blocks * block_tokens(w));
    all_resident(&h.match, args->flags);
    h.lease = h.match.lease;
    for (uint32_t i = 0; i < h.match.n_blocks; i++)
        h.table[i] = h.match.blocks[i];
    h.n_table = h.n_published = h.match.n_blocks;
    step(w);
    return h;
}

struct held look_seq(struct worker *w, const struct seq *s)
{
    struct pfx_lookup_args args = lookup_args(w, s);
    return look_args(w, &args);
}

struct held look(struct worker *w, const char *text)
{
    struct seq s = seq(text);
    return look_seq(w, &s);
}

struct held look_whole(struct worker *w, const char *text)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    args.max_match = s.n;
    return look_args(w, &args);
}

uint32_t matched(struct worker *w, const char *text)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    args.flags = PFX_QUIET;
    struct held h = look_args(w, &args);
    uint32_t n = h.match.matched_tokens;
    bytes_match(w, &h, text);
    REQUIRE_EQ(pfx_peek(w->c, w->space, s.at, s.n), n);
    drop(w, &h);
    return n;
}

/* ---- leases ---------------------------------------------------------------------- */

int grab(struct worker *w, struct held *h, uint32_t n)
{
    REQUIRE(h->n_table + n <= TABLE_MAX);
    int rc = pfx_reserve(w->c, h->lease, n, h->table + h->n_table);
    if (rc >= 0)
        h->n_table += n;
    step(w);
    return rc;
}

int put_seq(struct worker *w, struct held *h, const struct seq *s, uint32_t flags,
            uint32_t *canonical, struct pfx_insert_result *result)
{
    fill(w, h, s);
    struct pfx_insert_args args = {
        .size = sizeof args, .flags = flags, .tokens = s->at, .n_written = s->n};
    struct pfx_insert_result r = {.size = sizeof r};
    int rc = pfx_insert(w->c, h->lease, &args, canonical, &r);
    if (result)
        *result = r;
    if (rc >= 0 && r.cached_blocks > h->n_published)
        h->n_published = r.cached_blocks;
    step(w);
    return rc;
}

int put(struct worker *w, struct held *h, const char *text, uint32_t flags, uint32_t *canonical,
        struct pfx_insert_result *result)
{
    struct seq s = seq(text);
    return put_seq(w, h, &s, flags, canonical, result);
}

int cut(struct worker *w, struct held *h, uint32_t n)
{
    int rc = pfx_truncate(w->c, h->lease, n);
    if (rc >= 0 && n < h->n_table)
        h->n_table = n;
    if (rc >= 0 && n < h->n_published)
        h->n_published = n;
    step(w);
    return rc;
}

int release(struct worker *w, uint64_t lease)
{
    int rc = pfx_release(w->c, lease);
    step(w);
    return rc;
}

void drop(struct worker *w, struct held *h)
{
    int rc = release(w, h->lease);
    REQUIRE_MSG(rc == 0, "pfx_release: %s", pfx_strerror(rc));
}

uint32_t cache_seq(struct worker *w, const struct seq *s, uint32_t flags)
{
    struct pfx_lookup_args args = lookup_args(w, s);
    args.max_match = s->n;
    args.flags = s->n ? PFX_QUIET : 0;
    struct held h = look_args(w, &args);
    uint32_t bt = block_tokens(w);
    uint32_t want = (uint32_t)((s->n + bt - 1) / bt);
    REQUIRE_EQ(grab(w, &h, want - h.n_table), 0);
    struct pfx_insert_result r;
    int rc = put_seq(w, &h, s, flags, NULL, &r);
    REQUIRE_MSG(rc == 0, "pfx_insert: %s", pfx_strerror(rc));
    drop(w, &h);
    return r.new_blocks;
}

uint32_t cache(struct worker *w, const char *text)
{
    struct seq s = seq(text);
    return cache_seq(w, &s, 0);
}

uint32_t cache_final(struct worker *w, const char *text)
{
    struct seq s = seq(text);
    return cache_seq(w, &s, PFX_FINAL);
}

uint32_t evict(struct worker *w, uint32_t n)
{
    struct pfx_evicted e = {.size = sizeof e};
    REQUIRE(pfx_evict(w->c, n, &e) >= 0);
    if (!on_disk()) /* there a block may only move */
        REQUIRE_EQ(e.freed_blocks, e.removed_blocks);
    step(w);
    return e.freed_blocks;
}

/* ---- bytes ------------------------------------------------------------------------- */

static uint64_t prefix_word(const struct worker *w, const struct seq *s, size_t n)
{
    struct rng r = {w->space * 31 + w->weights};
    for (size_t i = 0; i < n; i++)
        r.state ^= rng_next(&r) + s->at[i];
    return rng_next(&r);
}

void fill(struct worker *w, const struct held *h, const struct seq *s)
{
    uint32_t bt = block_tokens(w);
    size_t words = pfx_geometry(w->c)->layout.block_bytes / 8;
    if (words == 0) /* states only */
        return;
    for (uint32_t i = h->n_published; i < h->n_table && (size_t)i * bt < s->n; i++) {
        size_t n = (size_t)(i + 1) * bt;
        uint64_t word = prefix_word(w, s, n < s->n ? n : s->n);
        uint64_t *page = pfx_block_address(w->c, 0, h->table[i]);
        REQUIRE(page != NULL);
        for (size_t k = 0; k < words; k++)
            page[k] = word + k;
    }
}

bool bytes_are(const struct worker *w, uint32_t block, const struct seq *s, size_t n_tokens)
{
    size_t words = pfx_geometry(w->c)->layout.block_bytes / 8;
    uint64_t word = prefix_word(w, s, n_tokens);
    const uint64_t *page = pfx_block_address(w->c, 0, block);
    REQUIRE_MSG(page != NULL || words == 0, "block %u has no page", block);
    for (size_t k = 0; k < words; k++)
        if (page[k] != word + k)
            return false;
    return true;
}

void bytes_match(const struct worker *w, const struct held *h, const char *text)
{
    struct seq s = seq(text);
    for (uint32_t i = 0; i < h->match.n_blocks; i++)
        REQUIRE_MSG(bytes_are(w, h->table[i], &s, (size_t)(i + 1) * block_tokens(w)),
                    "block %u at position %u of \"%s\" holds other bytes", h->table[i], i, text);
}
