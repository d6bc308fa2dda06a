/*
 * Walk every node from every root and compare each count with the walk. Slow on purpose: it
 * believes nothing that it can count.
 */
#include "daemon/index_private.h"

#include <stdlib.h>

struct audit {
    const struct index *ix;
    audit_find *find;
    void *arg;
    unsigned found;
    uint8_t *page_seen;     /* by page id */
    uint8_t *unit_owned;    /* by unit */
    uint8_t *snapshot_seen; /* by entry */
    uint8_t *disk_seen;     /* by slot of the disk tier */
    uint64_t nodes, pages, copies, pinned, kept, clean, units, extras, snapshots, ranked[RANKS];
};

#define FOUND(a, ...)                                                                              \
    do {                                                                                           \
        (a)->find((a)->arg, __VA_ARGS__);                                                          \
        (a)->found++;                                                                              \
    } while (0)

/* It is where the counts of its node say, and nobody else is. */
static void audit_block(struct audit *a, uint32_t id, uint32_t i)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id);
    uint32_t unit = n->extent + i, page = *pages_at(ix, unit), disk = *disks_at(ix, unit);
    if (i >= device_blocks(ix, id)) {
        if (page != NO_PAGE)
            FOUND(a, "block %u of node %u has a page and is not on the device", i, id);
    } else if (page == 0 || page > ix->pool->n_blocks || ix->pool->state[page] != PAGE_CACHED ||
               a->page_seen[page]++) {
        FOUND(a, "page %u at depth %u of node %u is not its own", page, n->start + i, id);
    }
    if (i >= disk_blocks(ix, id)) {
        if (disk != NO_DISK)
            FOUND(a, "block %u of node %u has a disk slot and no copy", i, id);
    } else if (disk >= ix->view.params.n_disk || a->disk_seen[disk]++) {
        FOUND(a, "disk slot %u at depth %u of node %u is not its own", disk, n->start + i, id);
    }
}

/* RES and DISK. */
static void audit_tiers(struct audit *a, uint32_t id)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id);
    uint32_t device = device_blocks(ix, id), disk = disk_blocks(ix, id);
    uint32_t parent = n->parent, whole = node_at(ix, parent)->n_blocks;
    bool top = node_is_root(node_at(ix, parent));
    if (device > n->n_blocks || disk > n->n_blocks || (device < n->n_blocks && disk < n->n_blocks))
        FOUND(a, "of %u blocks of node %u, %u are on the device and %u on disk", n->n_blocks, id,
              device, disk);
    if (!top && ((device && device_blocks(ix, parent) < whole) ||
                 (disk && disk_blocks(ix, parent) < whole)))
        FOUND(a, "node %u is where its parent %u is not", id, parent);
}

/* ADMIT. Partial blocks are not counted. */
static void audit_seen(struct audit *a, uint32_t id)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id), *p = node_at(ix, n->parent);
    uint32_t often = 0, front = ix->admit;
    if (ix->admit <= 1 || n->n_partial)
        return;
    if (!node_is_root(p))
        front = ix->seen[p->extent + p->n_blocks - 1];
    for (uint32_t i = 0; i < n->n_blocks; i++) {
        uint32_t seen = ix->seen[n->extent + i];
        if (seen < 1 || seen > front)
            FOUND(a, "block %u of node %u was seen %u times, the one before it %u", i, id, seen,
                  front);
        often += seen == ix->admit;
        front = seen;
    }
    if (often != ix->tiers[id].seen || often < disk_blocks(ix, id))
        FOUND(a, "of node %u, %u blocks were seen often, %u are counted and %u on disk", id, often,
              ix->tiers[id].seen, disk_blocks(ix, id));
}

/* What stands behind a block's placeholders: in order, apart, and each touches the block. */
static void audit_extras(struct audit *a, uint32_t id, uint32_t i)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id);
    uint64_t bt = ix->view.params.block_tokens, from = (n->start + (uint64_t)i) * bt, end = 0;
    for (uint32_t e = *extra_head_at(ix, n->extent + i); e; e = extra_at(ix, e)->next) {
        const struct index_extra *x = extra_at(ix, e);
        if (x->len == 0 || x->at < end || x->at + x->len < x->at || x->at >= from + bt ||
            x->at + x->len <= from)
            FOUND(a, "block %u of node %u has an extra at %llu of %llu tokens", i, id,
                  (unsigned long long)x->at, (unsigned long long)x->len);
        end = x->at + x->len;
        a->extras++;
    }
}

static void audit_units(struct audit *a, uint32_t id)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id);
    const struct node_private *p = priv_at(ix, id);
    if (p->cap < n->n_blocks || p->cap > 2 * n->n_blocks || n->n_blocks > NODE_BLOCKS)
        FOUND(a, "node %u owns %u units for %u blocks", id, p->cap, n->n_blocks);
    for (uint32_t i = 0; i < p->cap; i++) {
        uint32_t unit = n->extent + i;
        if (unit >= ix->unit_top || a->unit_owned[unit]++)
            FOUND(a, "unit %u of node %u is another's too", unit, id);
        if (i >= n->n_blocks)
            continue;
        audit_block(a, id, i);
        if (n->flags & NODE_EXTRAS)
            audit_extras(a, id, i);
    }
    a->units += p->cap;
    a->pages += device_blocks(ix, id);
    a->copies += disk_blocks(ix, id);
}

static void audit_ends(struct audit *a, uint32_t id, bool io)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id);
    uint32_t counted_end = io ? ix->tiers[id].io_end : priv_at(ix, id)->max_end;
    uint64_t ends = 0, counted = 0;
    uint32_t deepest = 0;
    for (const struct hold *h = priv_at(ix, id)->holds; h; h = h->next) {
        if (h->io != io)
            continue;
        if (h->where.node != id || h->where.identity != n->identity || h->where.depth <= n->start ||
            h->where.depth > n->start + n->n_blocks)
            FOUND(a, "a hold to depth %u is listed at node %u", h->where.depth, id);
        else if (h->where.depth - n->start > deepest)
            deepest = h->where.depth - n->start;
        ends++;
    }
    for (uint32_t i = 0; i < priv_at(ix, id)->cap; i++)
        counted += io ? ix->io_ends[n->extent + i] : ix->units[n->extent + i].ends;
    if (ends != counted || deepest != counted_end)
        FOUND(a, "node %u counts %llu ends to block %u; %llu holds end there, to block %u", id,
              (unsigned long long)counted, counted_end, (unsigned long long)ends, deepest);
}

static void audit_holds(struct audit *a, uint32_t id)
{
    struct tally t = node_tally(a->ix, id);
    audit_ends(a, id, false);
    if (a->ix->tiers)
        audit_ends(a, id, true);
    a->pinned += t.pinned;
    a->kept += t.kept;
    a->clean += t.clean;
}

static void audit_ranks(struct audit *a, uint32_t id, bool condemned)
{
    const struct index *ix = a->ix;
    for (enum rank_order o = RANK_PAGE; o < (ix->tiers ? RANKS : RANK_PAGE + 1); o++) {
        bool in = rank_has(ix, o, id); /* those of a condemned tree leave as they are reaped */
        if (in != rank_belongs(ix, o, id) && !(condemned && !in))
            FOUND(a, "node %u is %sin order %d", id, in ? "" : "not ", o);
        a->ranked[o] += in;
    }
}

static bool bucket_has(const struct index *ix, uint32_t id)
{
    const struct index_node *n = node_at(ix, id);
    uint64_t hash = index_child_hash(&ix->view, n->parent, index_tokens_at(&ix->view, n->extent));
    for (uint32_t i = (uint32_t)hash;; i++) {
        const struct index_bucket *b =
            index_bucket_at(&ix->view, i & (ix->view.plan.n_buckets - 1));
        for (int e = 0; e < BUCKET_ENTRIES; e++)
            if (b->entry[e] == (hash >> 32 << 32 | id))
                return true;
        if (b->overflow == 0)
            return false;
    }
}

static void audit_node(struct audit *a, uint32_t id, uint32_t root)
{
    const struct index *ix = a->ix;
    const struct index_node *n = node_at(ix, id), *p = node_at(ix, n->parent);
    if (n->version & 1)
        FOUND(a, "node %u is in the middle of a change", id);
    if (n->root != root || n->space != node_at(ix, root)->space)
        FOUND(a, "node %u belongs to root %u and hangs below %u", id, n->root, root);
    if (n->parent_identity != p->identity || n->start != p->start + p->n_blocks)
        FOUND(a, "node %u does not continue its parent %u", id, n->parent);
    if (n->n_partial && (n->n_blocks != 1 || n->children))
        FOUND(a, "node %u is a partial block and has more", id);
    if (!n->n_partial && !bucket_has(ix, id))
        FOUND(a, "node %u cannot be found below its parent %u", id, n->parent);
    audit_units(a, id);
    audit_holds(a, id);
    audit_tiers(a, id);
    audit_seen(a, id);
    audit_ranks(a, id, priv_at(ix, root)->condemned);
    a->nodes++;
}

/* Below one root, without recursion: the order of index_reap_next. */
static void audit_root(struct audit *a, uint32_t root)
{
    const struct index *ix = a->ix;
    uint32_t id = root;
    while (priv_at(ix, id)->n_children)
        id = children_first(ix, id);
    for (;; id = index_reap_next(ix, id)) {
        uint32_t held = 0, device = 0, disk = 0, io = 0, admitted = 0;
        for (uint32_t c = children_first(ix, id); c; c = children_next(ix, c)) {
            if (node_at(ix, c)->parent != id) {
                FOUND(a, "child %u of node %u names node %u", c, id, node_at(ix, c)->parent);
                return; /* the walk would not end */
            }
            struct tally t = node_tally(ix, c);
            held += t.held;
            device += t.device;
            disk += t.disk;
            io += t.io;
            admitted += t.admitted;
        }
        const struct node_tiers *tiers = ix->tiers ? &ix->tiers[id] : NULL;
        if (held != priv_at(ix, id)->held_children ||
            (tiers && (device != tiers->device_children || disk != tiers->disk_children ||
                       io != tiers->io_children || admitted != tiers->admitted_children)))
            FOUND(a,
                  "node %u counts its children wrong: %u held, %u on the device, %u on disk, %u "
                  "in transfer, %u admitted",
                  id, held, device, disk, io, admitted);
        a->found += children_audit(ix, id, a->find, a->arg);
        a->found +=
            hung_audit(ix, id, a->snapshot_seen, &a->snapshots, &a->extras, a->find, a->arg);
        if (id == root)
            return;
        audit_node(a, id, root);
    }
}

static int tail_order(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : x[1] < y[1] ? -1 : x[1] > y[1];
}

/* A session has one tail below a root. */
static void audit_tails(struct audit *a)
{
    const struct index *ix = a->ix;
    uint32_t n = 0;
    uint64_t(*tail)[2] = calloc((size_t)a->snapshots + 1, sizeof *tail);
    if (!tail) {
        FOUND(a, "there is no memory for an audit");
        return;
    }
    for (uint32_t id = 1; id <= ix->view.params.max_snapshots; id++) {
        const struct index_snapshot *e = index_snapshot_at(&ix->view, id);
        if (!a->snapshot_seen[id] || e->kind != SNAPSHOT_TAIL)
            continue;
        tail[n][0] = node_at(ix, e->node)->root;
        tail[n++][1] = e->session;
    }
    qsort(tail, n, sizeof *tail, tail_order);
    for (uint32_t i = 1; i < n; i++)
        if (tail_order(tail[i - 1], tail[i]) == 0)
            FOUND(a, "session %llu has two tails", (unsigned long long)tail[i][1]);
    free(tail);
}

static void audit_buckets(struct audit *a, uint64_t expected)
{
    const struct index *ix = a->ix;
    uint64_t entries = 0;
    for (uint32_t i = 0; i < ix->view.plan.n_buckets; i++)
        for (int e = 0; e < BUCKET_ENTRIES; e++)
            entries += index_bucket_at(&ix->view, i)->entry[e] != 0;
    if (entries != expected)
        FOUND(a, "the bucket table has %llu entries for %llu nodes", (unsigned long long)entries,
              (unsigned long long)expected);
}

static void audit_totals(struct audit *a)
{
    const struct index *ix = a->ix;
    const struct {
        const char *what;
        uint64_t counted, walked;
    } total[] = {
        {"nodes", ix->n_nodes, a->nodes},
        {"blocks on the device", ix->cached, a->pages},
        {"blocks on disk", ix->on_disk, a->copies},
        {"pinned blocks", ix->pinned, a->pinned},
        {"kept blocks", ix->kept, a->kept},
        {"clean blocks", ix->clean, a->clean},
        {"owned units", ix->n_units_owned, a->units},
        {"extras", ix->n_extras, a->extras},
        {"nodes in the order of pages", ix->n_heap[RANK_PAGE], a->ranked[RANK_PAGE]},
        {"nodes in the order of copies", ix->n_heap[RANK_COPY], a->ranked[RANK_COPY]},
        {"nodes in the order of writes", ix->n_heap[RANK_DIRTY], a->ranked[RANK_DIRTY]},
        {"snapshots", ix->n_snapshots, a->snapshots},
        {"cached pages", ix->pool->n_cached, a->pages},
    };
    for (size_t i = 0; i < sizeof total / sizeof total[0]; i++)
        if (total[i].counted != total[i].walked)
            FOUND(a, "%llu %s are counted, the walk finds %llu",
                  (unsigned long long)total[i].counted, total[i].what,
                  (unsigned long long)total[i].walked);
}

unsigned index_audit(const struct index *ix, audit_find *find, void *arg)
{
    struct audit a = {.ix = ix, .find = find, .arg = arg};
    a.page_seen = calloc((size_t)ix->pool->n_blocks + 1, 1);
    a.unit_owned = calloc((size_t)ix->unit_top + 1, 1);
    a.snapshot_seen = calloc((size_t)ix->view.params.max_snapshots + 1, 1);
    a.disk_seen = calloc((size_t)ix->view.params.n_disk + 1, 1);
    uint64_t partial = 0;
    if (!a.page_seen || !a.unit_owned || !a.snapshot_seen || !a.disk_seen) {
        FOUND(&a, "there is no memory for an audit");
    } else {
        for (uint32_t id = 1; id < ix->node_top; id++) {
            if (node_is_root(node_at(ix, id)))
                audit_root(&a, id);
            partial += node_at(ix, id)->n_partial > 0;
        }
        audit_totals(&a);
        audit_tails(&a);
        audit_buckets(&a, a.nodes - partial);
        a.found += rank_audit(ix, find, arg) + extent_audit(ix, find, arg);
    }
    free(a.page_seen);
    free(a.unit_owned);
    free(a.snapshot_seen);
    free(a.disk_seen);
    return a.found;
}
