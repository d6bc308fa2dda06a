/*
 * Where cached blocks are: on the device, on disk, or both.
 *
 *      run of a node    | b0 | b1 | b2 | b3 | b4 |        device 3: b0 b1 b2 have pages
 *                         x    x    x                     disk   5: all have copies
 *                         o    o    o    o    o           so b3 and b4 are on disk only
 *
 * THE RULES (RES and DISK, index_private.h). On every path what is on the device comes first, and
 * so does what is on disk. So two small numbers a node say it all, and what may go next is always
 * at an end:
 *
 *   a page   of the deepest block that has one: with a copy it just goes; without one the block
 *            goes, and it is a leaf, for below it there is nothing on the device and, since it has
 *            no copy itself, nothing on disk
 *   a copy   of the deepest block that has one: if the block has a page it just goes; else the
 * block goes, and it is a leaf for the same reason
 *
 * Blocks are written front first, so the rules hold by themselves; they are read front first; and
 * an insert can only bring a page to a block whose front is held, and thus on the device.
 */
#include "daemon/index_private.h"

#include <assert.h>
#include <string.h>

void index_set_slot_gone(struct index *ix, void (*gone)(void *arg, uint32_t disk), void *arg)
{
    ix->slot_gone = gone;
    ix->slot_gone_arg = arg;
}

static void copy_gone(struct index *ix, uint32_t unit)
{
    uint32_t disk = *disks_at(ix, unit);
    if (disk == NO_DISK)
        return;
    shm_store(disks_at(ix, unit), NO_DISK);
    ix->on_disk--;
    ix->slot_gone(ix->slot_gone_arg, disk);
}

void units_empty(struct index *ix, uint32_t from, uint32_t n, bool extras)
{
    for (uint32_t i = 0; i < n; i++) {
        if (*pages_at(ix, from + i) != NO_PAGE) {
            pool_unpublish(ix->pool, *pages_at(ix, from + i));
            ix->cached--;
        }
        copy_gone(ix, from + i);
        if (extras)
            extras_drop(ix, from + i);
    }
    ix->work += n;
}

static uint64_t *last_use(const struct index *ix, uint32_t id, uint32_t block)
{
    return &ix->units[node_at(ix, id)->extent + block].last_use;
}

static void younger(uint64_t *to, uint64_t stamp)
{
    if (*to < stamp)
        *to = stamp;
}

/* ---- pages ------------------------------------------------------------------------------ */

/* A page for the first block of the node that has none. */
static void page_add(struct index *ix, uint32_t id, uint32_t page)
{
    struct node_tiers *t = &ix->tiers[id];
    uint32_t unit = node_at(ix, id)->extent + t->device;
    struct tally before = node_tally(ix, id);
    assert(t->device < node_at(ix, id)->n_blocks && *pages_at(ix, unit) == NO_PAGE);
    node_begin(ix, id);
    shm_store(pages_at(ix, unit), page);
    node_end(ix, id);
    ix->cached++;
    if (t->device++ == 0)
        children_page(ix, id);
    node_settle(ix, id, before);
}

/* The pages of the node's blocks from `keep` on become free; they have copies. */
static void pages_drop(struct index *ix, uint32_t id, uint32_t keep)
{
    struct node_tiers *t = &ix->tiers[id];
    const struct index_node *n = node_at(ix, id);
    uint32_t old = t->device, page[NODE_BLOCKS];
    struct tally before = node_tally(ix, id);
    assert(t->disk >= old && keep >= kept_prefix(ix, id) && keep < old);
    node_begin(ix, id);
    for (uint32_t i = keep; i < old; i++) {
        page[i] = *pages_at(ix, n->extent + i);
        shm_store(pages_at(ix, n->extent + i), NO_PAGE);
    }
    node_end(ix, id);
    for (uint32_t i = keep; i < old; i++)
        pool_unpublish(ix->pool, page[i]);
    ix->cached -= old - keep;
    ix->work += old - keep;
    t->device = (uint8_t)keep;
    if (keep == 0)
        children_page(ix, id);
    node_settle(ix, id, before);
}

/* The place of the first block of the path that has no page; depth 0: all have one. */
static struct place first_absent(struct index *ix, struct place where, uint32_t first)
{
    struct place at = where;
    while (at.depth > first) {
        index_cover(ix, &at);
        const struct index_node *n = node_at(ix, at.node);
        uint32_t here = n->start + device_blocks(ix, at.node);
        if (at.depth <= here)
            break;
        at.depth = here > first ? here : first;
        if (here > n->start)
            break;
    }
    return at;
}

void pages_adopt(struct index *ix, struct place where, uint32_t first, const uint32_t *pages,
                 uint8_t *taken)
{
    uint32_t depth = first_absent(ix, where, first).depth;
    for (; depth < where.depth; depth++) {
        struct place at = where;
        at.depth = depth + 1;
        index_cover(ix, &at);
        pool_publish(ix->pool, pages[depth - first]);
        page_add(ix, at.node, pages[depth - first]);
        taken[depth - first] = TAKEN_ADOPTED;
    }
}

bool index_page_arrive(struct index *ix, struct place where, uint32_t page)
{
    index_cover(ix, &where);
    uint32_t device = device_blocks(ix, where.node), parent = node_at(ix, where.node)->parent;
    if (where.depth != node_at(ix, where.node)->start + device + 1 ||
        (device == 0 && device_blocks(ix, parent) < node_at(ix, parent)->n_blocks))
        return false; /* an insert was faster, or the one before it has not come */
    page_add(ix, where.node, page);
    return true;
}

/* ---- what goes -------------------------------------------------------------------------- */

/* Blocks of the run, from `last` down, that go together: as long as they rank lowest. */
static uint32_t run_out(struct index *ix, enum rank_order order, uint32_t id, uint32_t last,
                        uint32_t floor, uint64_t *stamp)
{
    uint64_t second = rank_second(ix, order);
    uint32_t start = node_at(ix, id)->start, keep = last;
    *stamp = 0;
    do {
        uint64_t *own = last_use(ix, id, keep - 1);
        younger(stamp, *own);
        younger(own, *stamp); /* what goes behind it was used with it */
        if (keep < last && ix->policy->rank(*stamp, start + keep) > second)
            break;
        keep--;
    } while (keep > floor);
    return keep;
}

static uint32_t higher(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The block before `keep` was used when what follows it was. */
static void stamp_front(struct index *ix, uint32_t id, uint32_t keep, uint64_t stamp)
{
    const struct index_node *n = node_at(ix, id);
    if (keep)
        younger(last_use(ix, id, keep - 1), stamp);
    else if (node_at(ix, n->parent)->n_blocks)
        younger(last_use(ix, n->parent, node_at(ix, n->parent)->n_blocks - 1), stamp);
}

/* Leading blocks of the run that could be written. */
static uint32_t writable(const struct index *ix, uint32_t id)
{
    return ix->tiers && !ix->tiers[id].unwritable ? admitted_blocks(ix, id) : 0;
}

/* Of the node that ranks lowest, at most `most`; false: what is to be written must not go, and it
 * is next. */
static bool evict_node(struct index *ix, uint32_t id, uint32_t most, bool dirty,
                       struct index_evicted *out)
{
    uint32_t device = device_blocks(ix, id), disk = disk_blocks(ix, id);
    uint32_t floor = higher(kept_prefix(ix, id), device > most ? device - most : 0);
    uint64_t stamp;
    if (device > disk) {
        uint32_t stays = dirty ? disk : higher(disk, writable(ix, id));
        if (stays == device)
            return false;
        uint32_t keep = run_out(ix, RANK_PAGE, id, device, higher(floor, stays), &stamp);
        out->freed += device - keep;
        out->removed += device - keep;
        node_truncate(ix, id, keep, stamp);
        return true;
    }
    uint32_t keep = run_out(ix, RANK_PAGE, id, device, floor, &stamp),
             parent = node_at(ix, id)->parent;
    stamp_front(ix, id, keep, stamp);
    pages_drop(ix, id, keep);
    rank_node(ix, parent);
    out->freed += device - keep;
    return true;
}

bool index_free_pages(struct index *ix, uint32_t n, bool dirty, struct index_evicted *out)
{
    uint32_t id, before = out->freed;
    while (out->freed - before < n && (id = rank_lowest(ix, RANK_PAGE)) != 0)
        if (!evict_node(ix, id, n - (out->freed - before), dirty, out))
            return false;
    return true;
}

static void copies_drop(struct index *ix, uint32_t id, uint32_t keep)
{
    struct node_tiers *t = &ix->tiers[id];
    const struct index_node *n = node_at(ix, id);
    uint32_t old = t->disk, disk[NODE_BLOCKS];
    struct tally before = node_tally(ix, id);
    node_begin(ix, id);
    for (uint32_t i = keep; i < old; i++) {
        disk[i] = *disks_at(ix, n->extent + i);
        shm_store(disks_at(ix, n->extent + i), NO_DISK);
    }
    node_end(ix, id);
    ix->on_disk -= old - keep;
    ix->work += old - keep;
    t->disk = (uint8_t)keep;
    for (uint32_t i = keep; i < old; i++)
        ix->slot_gone(ix->slot_gone_arg, disk[i]);
    node_settle(ix, id, before);
}

uint32_t index_evict_copies(struct index *ix, uint32_t n, uint32_t *removed)
{
    uint32_t gone = 0, id;
    while (gone < n && (id = rank_lowest(ix, RANK_COPY)) != 0) {
        uint32_t device = device_blocks(ix, id), disk = disk_blocks(ix, id), most = n - gone;
        uint32_t floor = higher(kept_prefix(ix, id), disk > most ? disk - most : 0);
        uint64_t stamp;
        if (disk > device) {
            uint32_t keep = run_out(ix, RANK_COPY, id, disk, higher(floor, device), &stamp);
            gone += disk - keep;
            *removed += disk - keep;
            node_truncate(ix, id, keep, stamp);
            continue;
        }
        uint32_t keep = run_out(ix, RANK_COPY, id, disk, floor, &stamp);
        uint32_t parent = node_at(ix, id)->parent;
        stamp_front(ix, id, keep, stamp);
        copies_drop(ix, id, keep);
        rank_node(ix, parent);
        gone += disk - keep;
    }
    return gone;
}

bool index_spare_copy(struct index *ix)
{
    uint32_t id = rank_lowest(ix, RANK_COPY);
    return id && disk_blocks(ix, id) > device_blocks(ix, id);
}

/* A leaf below `top` that can lose blocks; 0: none can. */
static uint32_t loose_below(const struct index *ix, uint32_t top)
{
    uint32_t id = top;
    while (priv_at(ix, id)->n_children)
        id = children_first(ix, id);
    for (; id != top; id = index_reap_next(ix, id))
        if (priv_at(ix, id)->n_children == 0 && kept_prefix(ix, id) < node_at(ix, id)->n_blocks)
            return id;
    return 0;
}

/* Each cut may merge nodes, so each begins anew at the place; that stays, for it is held. When it
 * is not any more, its node is another one's if something is below it, and gone if it was flushed.
 */
void index_lose_held(struct index *ix, struct hold *h)
{
    uint32_t id;
    while ((id = loose_below(ix, h->where.node)))
        node_truncate(ix, id, kept_prefix(ix, id), 0);
    struct place where = h->where;
    id = where.node;
    bool leaf = priv_at(ix, id)->n_children == 0 && !node_condemned(ix, id);
    index_unhold(ix, h);
    if (!leaf)
        return;
    uint32_t keep = higher(kept_prefix(ix, id), where.depth - 1 - node_at(ix, id)->start);
    if (keep < node_at(ix, id)->n_blocks)
        node_truncate(ix, id, keep, 0);
}

void index_lose(struct index *ix, struct place where)
{
    struct hold at;
    index_cover(ix, &where);
    index_hold_io(ix, &at, where);
    index_lose_held(ix, &at);
}

/* ---- writing ---------------------------------------------------------------------------- */

bool index_dirty(struct index *ix, struct place *leaf)
{
    uint32_t id = ix->tiers ? rank_lowest(ix, RANK_DIRTY) : 0;
    if (!id)
        return false;
    const struct index_node *n = node_at(ix, id);
    *leaf = (struct place){n->identity, id, n->start + admitted_blocks(ix, id)};
    return true;
}

/* The first node on the path that lacks copies: its parent has them all. What is handed out was
 * used when the leaf was, for it is before it: so the copy is as young. */
uint32_t index_unwritten(struct index *ix, struct place leaf, uint32_t most, struct place *end)
{
    uint32_t node = 0;
    for (uint32_t id = leaf.node; !node_is_root(node_at(ix, id)); id = node_at(ix, id)->parent) {
        ix->work++;
        if (disk_blocks(ix, id) == node_at(ix, id)->n_blocks)
            break;
        if (ix->tiers[id].writing)
            return 0;
        node = id;
        if (disk_blocks(ix, id))
            break;
    }
    if (!node)
        return 0;
    const struct index_node *n = node_at(ix, node), *l = node_at(ix, leaf.node);
    uint32_t disk = disk_blocks(ix, node), held = n->n_blocks;
    if (node == leaf.node)
        held = leaf.depth - n->start;
    if (held <= disk)
        return 0;
    uint32_t blocks = held - disk < most ? held - disk : most;
    uint64_t used = *last_use(ix, leaf.node, leaf.depth - 1 - l->start);
    for (uint32_t i = 0; i < blocks; i++)
        younger(last_use(ix, node, disk + i), used);
    ix->tiers[node].writing = (uint8_t)(disk + blocks);
    rank_node(ix, node);
    *end = (struct place){n->identity, node, n->start + disk + blocks};
    return blocks;
}

void index_written(struct index *ix, struct place end, uint32_t n)
{
    uint32_t first = end.depth - n;
    while (end.depth > first) {
        index_cover(ix, &end);
        ix->tiers[end.node].writing = 0;
        rank_node(ix, end.node);
        end.depth = node_at(ix, end.node)->start;
    }
}

bool index_flushed(const struct index *ix, struct place where)
{
    return node_condemned(ix, where.node);
}

bool index_on_disk_to(struct index *ix, struct place where)
{
    index_cover(ix, &where);
    return where.depth <= node_at(ix, where.node)->start + disk_blocks(ix, where.node);
}

uint32_t index_absent(struct index *ix, struct place where)
{
    return ix->tiers ? where.depth - first_absent(ix, where, 0).depth : 0;
}

bool index_on_device_to(struct index *ix, struct place where)
{
    index_cover(ix, &where);
    return where.depth <= node_at(ix, where.node)->start + device_blocks(ix, where.node);
}

void index_unwritable(struct index *ix, struct place leaf)
{
    ix->tiers[leaf.node].unwritable = 1;
    rank_node(ix, leaf.node);
}

bool index_copy_commit(struct index *ix, struct place where, uint32_t disk)
{
    index_cover(ix, &where);
    struct node_tiers *t = &ix->tiers[where.node];
    const struct index_node *n = node_at(ix, where.node);
    if (where.depth != n->start + t->disk + 1 ||
        (t->disk == 0 && disk_blocks(ix, n->parent) < node_at(ix, n->parent)->n_blocks))
        return false;
    struct tally before = node_tally(ix, where.node);
    node_begin(ix, where.node);
    shm_store(disks_at(ix, n->extent + t->disk), disk);
    node_end(ix, where.node);
    seen_enough(ix, where.node, t->disk);
    t->disk++;
    ix->on_disk++;
    node_settle(ix, where.node, before);
    return true;
}

void index_copy_replace(struct index *ix, struct place where, uint32_t disk)
{
    index_cover(ix, &where);
    const struct index_node *n = node_at(ix, where.node);
    uint32_t unit = n->extent + (where.depth - 1 - n->start), old = *disks_at(ix, unit);
    node_begin(ix, where.node);
    shm_store(disks_at(ix, unit), disk);
    node_end(ix, where.node);
    ix->slot_gone(ix->slot_gone_arg, old);
}
