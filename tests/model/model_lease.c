/* What leases, connections and spaces do to the blocks of model.c. */
#include "tests/model/model.h"
#include "tests/harness.h"

#include <string.h>

uint32_t model_table(const struct model_lease *l)
{
    return l->matched + l->n_pages;
}

uint32_t model_held(const struct model *m, const struct model_lease *l)
{
    return l->path.n / m->bt;
}

static bool stale(const struct model *m, const struct model_lease *l)
{
    return m->root[l->space] != l->root;
}

struct model_lease *model_mine(struct model *m, int conn, int lease, bool release_only)
{
    struct model_lease *l = lease >= 0 ? &m->lease[lease] : NULL;
    if (!l || !l->used || l->group != m->conn[conn].group || (!release_only && stale(m, l)))
        return NULL;
    return l;
}

/* ---- connections --------------------------------------------------------------------- */

static void give_back(struct model *m, struct model_lease *l)
{
    l->used = false;
    model_reap(m);
}

void model_attach(struct model *m, int conn, int group)
{
    REQUIRE(!m->conn[conn].used);
    m->conn[conn] = (struct model_conn){.used = true, .group = group};
}

void model_detach(struct model *m, int conn, bool clean)
{
    int group = m->conn[conn].group;
    bool mates = false;
    m->conn[conn].used = false;
    for (int c = 0; c < MODEL_CONNS; c++)
        mates |= m->conn[c].used && m->conn[c].group == group;
    for (int i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->lease[i];
        if (!l->used || l->group != group)
            continue;
        if (!mates || (clean && l->opener == conn))
            give_back(m, l);
        else if (l->opener == conn)
            l->opener = -1;
    }
}

/* ---- spaces ---------------------------------------------------------------------------- */

static bool may_use(const struct model *m, int conn, int space)
{
    return space == 0 || m->conn[conn].opens[space];
}

int model_space_open(struct model *m, int conn, int space)
{
    m->conn[conn].opens[space]++;
    return 0;
}

int model_space_close(struct model *m, int conn, int space)
{
    if (!m->conn[conn].opens[space])
        return PFX_ENOENT;
    m->conn[conn].opens[space]--;
    return 0;
}

int model_flush(struct model *m, int space)
{
    for (int s = 0; s < MODEL_SPACES; s++)
        if (space == s || space < 0)
            m->root[s] = ++m->last_root;
    model_snapshot_flush(m);
    model_reap(m);
    return 0;
}

/* ---- lookup, reserve, truncate, release -------------------------------------------------- */

int model_lookup(struct model *m, int conn, const struct model_ask *ask, struct model_found *out)
{
    if (!may_use(m, conn, ask->space))
        return PFX_ENOENT;
    int i = 0;
    while (m->lease[i].used)
        REQUIRE(++i < MODEL_LEASES);
    model_find(m, ask, out);
    struct model_lease *l = &m->lease[i];
    *l = (struct model_lease){.used = true,
                              .group = m->conn[conn].group,
                              .opener = conn,
                              .space = ask->space,
                              .root = m->root[ask->space],
                              .tail = -1,
                              .partial = -1,
                              .tail_tokens = out->tail_tokens};
    l->path = key_cut(&ask->query, out->matched);
    l->matched = out->matched / m->bt;
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (out->tail_tokens && m->block[b].used && m->block[b].page == out->tail_block)
            l->tail = b;
    model_snapshot_lookup(m, l, ask, out);
    if (ask->query.n == 0 || ask->flags & (PFX_QUIET | PFX_NO_MATCH))
        return i;
    model_stamp(m, l->root, &l->path);
    m->count.lookups++;
    m->count.hits += out->matched > 0;
    m->count.misses += out->matched == 0;
    m->count.hit_tokens += out->matched;
    m->count.lookup_tokens += ask->query.n;
    return i;
}

int model_reserve(struct model *m, int conn, int lease, uint32_t n)
{
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    if (n == 0)
        return 0; /* "succeeds and changes nothing", after PFX_FINAL too */
    if (l->final)
        return PFX_ECONFLICT;
    if (n > m->n_blocks)
        return PFX_ETOOBIG;
    struct pfx_stats s = model_stats(m);
    if (n > s.blocks_free + s.blocks_idle)
        return PFX_ENOSPC;
    if (n > s.blocks_free)
        REQUIRE_EQ(model_evict(m, n - (uint32_t)s.blocks_free), n - s.blocks_free);
    return 0;
}

static bool page_free(const struct model *m, uint32_t page)
{
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (m->block[b].used && m->block[b].page == page)
            return false;
    for (int i = 0; i < MODEL_LEASES; i++)
        for (uint32_t k = 0; m->lease[i].used && k < m->lease[i].n_pages; k++)
            if (m->lease[i].page[k] == page && !m->lease[i].published[k])
                return false;
    return page >= 1 && page <= m->n_blocks;
}

void model_take(struct model *m, int lease, const uint32_t *pages, uint32_t n)
{
    struct model_lease *l = &m->lease[lease];
    for (uint32_t i = 0; i < n; i++) {
        REQUIRE_MSG(page_free(m, pages[i]), "page %u was given out but is not free", pages[i]);
        l->page[l->n_pages] = pages[i];
        l->published[l->n_pages++] = false;
    }
}

static int kept(const struct model *m, int snapshot, uint32_t tokens)
{
    return snapshot >= 0 && m->snapshot[snapshot].key.n <= tokens ? snapshot : -1;
}

int model_truncate(struct model *m, int conn, int lease, uint32_t n)
{
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    if (n > model_table(l))
        return PFX_EINVAL;
    if (l->inserted && n < model_held(m, l))
        return PFX_ECONFLICT;
    if (n == model_table(l))
        return 0;
    l->tail = -1;
    l->tail_tokens = 0;
    l->resident = kept(m, l->resident, n * m->bt);
    l->tiered = kept(m, l->tiered, n * m->bt);
    if (l->written.n > n * m->bt)
        l->written.n = 0;
    if (l->final_position > n) {
        l->partial = -1;
        l->final_position = 0;
    }
    if (n < l->matched) {
        l->matched = n;
        l->path = key_cut(&l->path, n * m->bt);
        l->n_pages = 0;
    } else {
        l->n_pages = n - l->matched;
    }
    model_reap(m);
    return 0;
}

int model_release(struct model *m, int conn, int lease)
{
    struct model_lease *l = model_mine(m, conn, lease, true);
    if (!l)
        return PFX_ESTALE;
    give_back(m, l);
    return 0;
}

/* ---- insert -------------------------------------------------------------------------------- */

static void report(const struct model *m, const struct model_lease *l, uint32_t created,
                   uint32_t written, uint32_t *canonical, struct pfx_insert_result *out)
{
    uint32_t held = model_held(m, l), backed = held + (l->partial >= 0);
    *out = (struct pfx_insert_result){
        .size = sizeof *out, .cached_blocks = backed, .new_blocks = created};
    for (uint32_t i = 0; i < l->n_pages; i++)
        out->duplicate_blocks += l->matched + i < backed && !l->published[i];
    for (uint32_t i = 0; i < held && i < written / m->bt; i++) {
        struct key prefix = key_cut(&l->path, (i + 1) * m->bt);
        int b = model_block_find(m, l->root, &prefix);
        REQUIRE(b >= 0);
        canonical[i] = m->block[b].page;
    }
}

/* The page at the end of the held path, published under `key` or a duplicate of a block there. */
static bool publish(struct model *m, struct model_lease *l, uint32_t position,
                    const struct key *key, int existing, int *block)
{
    uint32_t i = position - l->matched;
    *block = existing;
    if (existing >= 0) {
        m->count.duplicate_blocks++;
        return false;
    }
    *block = model_block_add(m, l->root, key, l->page[i]);
    l->published[i] = true;
    m->count.inserted_blocks++;
    return true;
}

static uint32_t insert_partial(struct model *m, struct model_lease *l, const struct key *written)
{
    uint32_t from = l->path.n, end = key_extra_after(written, from, written->n), shared,
             created = 0;
    if (end == from)
        return 0; /* an extra begins with it: no lookup could use it */
    struct key key = key_cut(written, end);
    int existing = model_tail(m, l->root, written, from, end, &shared);
    if (shared < end - from)
        existing = -1;
    created = publish(m, l, from / m->bt, &key, existing, &l->partial);
    l->final_position = from / m->bt + 1;
    model_stamp(m, l->root, &m->block[l->partial].key);
    return created;
}

/* What the lease knows of the tokens: its held path, and after PFX_FINAL the partial block too. */
static bool contradicts(const struct model *m, const struct model_lease *l,
                        const struct key *written)
{
    struct key known = l->path;
    if (l->partial >= 0)
        known = m->block[l->partial].key;
    uint32_t n = written->n < known.n ? written->n : known.n;
    if (memcmp(known.token, written->token, n * 4) != 0)
        return true;
    uint32_t whole = n < l->path.n ? n / m->bt * m->bt : l->path.n;
    struct key a = key_cut(&l->path, whole), b = key_cut(written, whole);
    return !key_begins(&a, &b);
}

int model_insert(struct model *m, int conn, int lease, const struct key *written, bool final,
                 uint32_t *canonical, struct pfx_insert_result *out)
{
    struct model_lease *l = model_mine(m, conn, lease, false);
    if (!l)
        return PFX_ESTALE;
    if (contradicts(m, l, written) || (l->final && written->n > l->final_written))
        return PFX_ECONFLICT;
    uint32_t created = 0, whole = written->n / m->bt, table = model_table(l);
    uint32_t covered = whole < table ? whole : table;
    bool longer = covered > model_held(m, l);
    for (uint32_t d = model_held(m, l); d < covered; d++) {
        struct key key = key_cut(written, (d + 1) * m->bt);
        int block, existing = model_block_find(m, l->root, &key);
        created += publish(m, l, d, &key, existing, &block);
        l->path = key;
    }
    if (longer) {
        l->inserted = true;
        model_stamp(m, l->root, &l->path);
    }
    if (!l->final && written->n > l->path.n && table > model_held(m, l))
        l->written = *written;
    if (final && !l->final) {
        bool room = whole == covered && covered < table && whole == model_held(m, l);
        if (written->n % m->bt && room)
            created += insert_partial(m, l, written);
        l->final = true;
        uint32_t held = l->path.n;
        l->final_written = written->n > held ? written->n : held;
    }
    report(m, l, created, written->n, canonical, out);
    return 0;
}
