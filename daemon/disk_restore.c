/*
 * What a restart's scan found, hung into the tree: a block at a time, each below its parent, which
 * came before it. Slots that are not used here are free when the scan is over: tree and allocator
 * are built from the one scan.
 *
 * Workers are served meanwhile. A block that one of them has computed anew in the meantime takes
 * the copy for its own if it is the next on its path that lacks one; else the slot stays free.
 */
#include "daemon/disk_private.h"

/* Where the block hangs: the end of its parent, or the root of its space. */
static bool parent_of(struct disk *k, const struct block_found *b, uint32_t space,
                      struct place *where)
{
    struct index *ix = k->d->index;
    uint32_t root = spaces_root(k->d->spaces, space);
    if (b->prefix.parent_slot == NO_SLOT) {
        *where = (struct place){index_node_at(index_view_of(ix), root)->identity, root, 0};
        return b->prefix.depth == 0;
    }
    if (b->prefix.parent_slot >= k->n_slots)
        return false;
    *where = k->restored[b->prefix.parent_slot];
    return where->node && where->depth == b->prefix.depth && index_resolve(ix, root, where);
}

static bool hang(struct disk *k, const struct block_found *b, uint32_t space,
                 const struct swap_record *r)
{
    struct index *ix = k->d->index;
    uint64_t bt = index_view_of(ix)->params.block_tokens;
    struct place where;
    if (!parent_of(k, b, space, &where))
        return false;
    const struct index_query q = {.tokens = b->tokens,
                                  .first = b->prefix.depth * bt,
                                  .n_tokens = (b->prefix.depth + 1) * bt,
                                  .extras = b->extras,
                                  .n_extras = b->n_extras};
    struct place end = where;
    index_match(ix, &q, where.depth + 1, &end);
    bool there = end.depth > where.depth;
    if (there && !index_copy_commit(ix, end, r->slot))
        return false;
    if (!there) {
        if (where.depth && !index_on_disk_to(ix, where))
            return false;
        index_restore(ix, &q, &r->slot, 1, &end);
    }
    k->restored[r->slot] = end;
    return true;
}

/* A space that nobody has open lives as long as something is cached in it. */
static void restore(struct disk *k, const struct swap_record *r)
{
    struct block_found b;
    uint32_t space;
    if (!body_read(k, r, &b) || !spaces_open(k->d->spaces, &b.key, &space))
        return;
    if (hang(k, &b, space, r)) {
        k->generation[r->slot] = r->generation;
        swap_slot_used(k->swap, STORE_BLOCKS, r->slot);
    }
    spaces_close(k->d->spaces, space);
}

void restore_take(struct disk *k, const struct swap_order *o)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (o->record[i].status == SWAP_GOOD)
            restore(k, &o->record[i]);
}
