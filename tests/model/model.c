#include "tests/model/model.h"
#include "tests/harness.h"

#include <string.h>

void model_init(struct model *m, const struct model_config *config)
{
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->bt = config->block_tokens;
    m->n_blocks = config->n_blocks;
    for (int s = 0; s < MODEL_SPACES; s++)
        m->root[s] = ++m->last_root;
}

/* ---- sequences -------------------------------------------------------------------- */

static bool extra_equal(const struct pfx_extra *a, const struct pfx_extra *b)
{
    return a->at == b->at && a->len == b->len && memcmp(a->digest, b->digest, 32) == 0;
}

struct key key_cut(const struct key *k, uint32_t n)
{
    struct key out = {.n = n};
    memcpy(out.token, k->token, n * sizeof k->token[0]);
    for (uint32_t i = 0; i < k->n_extras && k->extra[i].at < n; i++)
        out.extra[out.n_extras++] = k->extra[i];
    return out;
}

bool key_begins(const struct key *whole, const struct key *start)
{
    if (whole->n < start->n || memcmp(whole->token, start->token, start->n * 4) != 0)
        return false;
    uint32_t i = 0;
    for (; i < whole->n_extras && whole->extra[i].at < start->n; i++)
        if (i >= start->n_extras || !extra_equal(&whole->extra[i], &start->extra[i]))
            return false;
    return i == start->n_extras;
}

/* Where the first extra that starts in [from, end) starts; else end. */
uint32_t key_extra_after(const struct key *k, uint32_t from, uint32_t end)
{
    for (uint32_t i = 0; i < k->n_extras; i++)
        if (k->extra[i].at >= from && k->extra[i].at < end)
            return (uint32_t)k->extra[i].at;
    return end;
}

/* ---- blocks ------------------------------------------------------------------------- */

int model_block_find(const struct model *m, uint32_t root, const struct key *key)
{
    for (int b = 0; b < MODEL_BLOCKS; b++) {
        const struct model_block *at = &m->block[b];
        if (at->used && at->root == root && at->key.n == key->n && key_begins(&at->key, key))
            return b;
    }
    return -1;
}

int model_block_add(struct model *m, uint32_t root, const struct key *key, uint32_t page)
{
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (!m->block[b].used) {
            m->block[b] =
                (struct model_block){.used = true, .root = root, .page = page, .key = *key};
            return b;
        }
    ck_abort_msg("the model has no room for a block");
}

/* The path down to `end` goes through this block. A partial one is an end only: the block that goes
 * on from the same tokens is another. */
static bool on_path(const struct model *m, const struct key *end, const struct model_block *b)
{
    return key_begins(end, &b->key) && (b->key.n % m->bt == 0 || b->key.n == end->n);
}

void model_stamp(struct model *m, uint32_t root, const struct key *path)
{
    m->clock++;
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (m->block[b].used && m->block[b].root == root && on_path(m, path, &m->block[b]))
            m->block[b].stamp = m->clock;
}

static bool held_by(const struct model *m, const struct model_lease *l, const struct model_block *b)
{
    if (!l->used || l->root != b->root)
        return false;
    return on_path(m, &l->path, b) || (l->tail >= 0 && on_path(m, &m->block[l->tail].key, b)) ||
           (l->partial >= 0 && on_path(m, &m->block[l->partial].key, b));
}

static bool held(const struct model *m, const struct model_block *b)
{
    for (int l = 0; l < MODEL_LEASES; l++)
        if (held_by(m, &m->lease[l], b))
            return true;
    return false;
}

static bool leaf(const struct model *m, int b)
{
    for (int o = 0; o < MODEL_BLOCKS; o++)
        if (o != b && m->block[o].used && m->block[o].root == m->block[b].root &&
            m->block[o].key.n > m->block[b].key.n && m->block[b].key.n % m->bt == 0 &&
            key_begins(&m->block[o].key, &m->block[b].key))
            return false;
    return true;
}

bool model_live_root(const struct model *m, uint32_t root)
{
    for (int s = 0; s < MODEL_SPACES; s++)
        if (m->root[s] == root)
            return true;
    return false;
}

uint32_t model_evict(struct model *m, uint32_t n)
{
    uint32_t gone = 0;
    for (; gone < n; gone++) {
        int victim = -1;
        for (int b = 0; b < MODEL_BLOCKS; b++) {
            const struct model_block *at = &m->block[b];
            if (at->used && model_live_root(m, at->root) &&
                (victim < 0 || at->stamp < m->block[victim].stamp) && leaf(m, b) && !held(m, at))
                victim = b;
        }
        if (victim < 0)
            break;
        m->block[victim].used = false;
        model_snapshot_orphans(m);
    }
    m->count.evicted_blocks += gone;
    return gone;
}

void model_reap(struct model *m)
{
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (m->block[b].used && !model_live_root(m, m->block[b].root) && !held(m, &m->block[b]))
            m->block[b].used = false;
    model_snapshot_reap(m);
}

/* ---- finding -------------------------------------------------------------------------- */

int model_tail(const struct model *m, uint32_t root, const struct key *query, uint32_t from,
               uint32_t end, uint32_t *shared)
{
    int best = -1;
    struct key path = key_cut(query, from);
    *shared = 0;
    for (int b = 0; b < MODEL_BLOCKS; b++) {
        const struct model_block *at = &m->block[b];
        if (!at->used || at->root != root || at->key.n <= from || at->key.n > from + m->bt ||
            !key_begins(&at->key, &path))
            continue;
        uint32_t to = key_extra_after(&at->key, from, at->key.n), n = 0;
        while (from + n < to && from + n < end && at->key.token[from + n] == query->token[from + n])
            n++;
        if (n > *shared || (n && n == *shared && at->page < m->block[best].page)) {
            *shared = n;
            best = b;
        }
    }
    return best;
}

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t n = a;
    while (n % b)
        n += a;
    return n;
}

void model_find(const struct model *m, const struct model_ask *ask, struct model_found *out)
{
    const struct key *q = &ask->query;
    uint32_t most = ask->max_match ? ask->max_match : q->n ? q->n - 1 : 0;
    most = most < q->n ? most : q->n;
    *out = (struct model_found){.tail_block = PFX_NO_BLOCK, .resident = -1, .tiered = -1};
    if (ask->flags & PFX_NO_MATCH)
        return;
    uint32_t depth = 0;
    while ((depth + 1) * m->bt <= most) {
        struct key next = key_cut(q, (depth + 1) * m->bt);
        int b = model_block_find(m, m->root[ask->space], &next);
        if (b < 0)
            break;
        out->blocks[depth++] = m->block[b].page;
    }
    uint32_t multiple = ask->multiple ? common_multiple(m->bt, ask->multiple) : m->bt;
    out->matched = depth * m->bt / multiple * multiple;
    if (out->matched == depth * m->bt && !(ask->flags & PFX_NO_TAIL)) {
        uint32_t end = out->matched + m->bt < most ? out->matched + m->bt : most;
        end = key_extra_after(q, out->matched, end);
        int tail = model_tail(m, m->root[ask->space], q, out->matched, end, &out->tail_tokens);
        if (tail >= 0)
            out->tail_block = m->block[tail].page;
    }
    model_offers(m, ask, out->matched + out->tail_tokens, out);
}

/* ---- counters ---------------------------------------------------------------------------- */

struct pfx_stats model_stats(const struct model *m)
{
    struct pfx_stats s = m->count;
    s.blocks_free = m->n_blocks;
    for (int b = 0; b < MODEL_BLOCKS; b++)
        if (m->block[b].used) {
            *(held(m, &m->block[b]) ? &s.blocks_pinned : &s.blocks_idle) += 1;
            s.blocks_free--;
        }
    uint32_t in_use[MODEL_SPACES] = {1}; /* the base space always is */
    for (int l = 0; l < MODEL_LEASES; l++) {
        const struct model_lease *at = &m->lease[l];
        if (!at->used)
            continue;
        s.leases++;
        in_use[at->space]++;
        for (uint32_t i = 0; i < at->n_pages; i++)
            if (!at->published[i]) {
                s.blocks_private++;
                s.blocks_free--;
            }
    }
    for (int c = 0; c < MODEL_CONNS; c++) {
        s.workers += m->conn[c].used;
        for (int space = 0; space < MODEL_SPACES; space++)
            in_use[space] += m->conn[c].used && m->conn[c].opens[space];
    }
    for (int b = 0; b < MODEL_BLOCKS; b++)
        for (int space = 0; space < MODEL_SPACES; space++)
            in_use[space] += m->block[b].used && m->block[b].root == m->root[space];
    for (int i = 0; i < MODEL_SNAPSHOTS; i++)
        if (model_findable(m, i)) {
            *(m->snapshot[i].tiered ? &s.snapshots_tiered : &s.snapshots) += 1;
            in_use[m->snapshot[i].space]++;
        }
    for (int space = 0; space < MODEL_SPACES; space++)
        s.spaces += in_use[space] > 0;
    return s;
}
