/*
 * What a restart's scan found, hung into the tree: a block at a time, each below its parent, which
 * came before it. Slots that are not used here are free when the scan is over: tree and allocator
 * are built from the one scan.
 *
 * Workers are served meanwhile. A block that one of them has computed anew in the meantime takes
 * the copy for its own if it is the next on its path that lacks one; else the slot stays free.
 */
#include "daemon/disk_private.h"

bool parent_of(struct disk *k, const struct body_prefix *b, uint32_t space, struct place *where)
{
    struct index *ix = k->d->index;
    uint32_t root = spaces_root(k->d->spaces, space);
    if (b->parent_slot == NO_SLOT) {
        *where = (struct place){index_node_at(index_view_of(ix), root)->identity, root, 0};
        return b->depth == 0;
    }
    if (b->parent_slot >= k->n_slots)
        return false;
    *where = k->restored[b->parent_slot];
    return where->node && where->depth == b->depth && index_resolve(ix, root, where);
}

static bool hang(struct disk *k, const struct block_found *b, uint32_t space,
                 const struct swap_record *r)
{
    struct index *ix = k->d->index;
    uint64_t bt = index_view_of(ix)->params.block_tokens;
    struct place where;
    if (!parent_of(k, &b->prefix, space, &where))
        return false;
    const struct index_query q = {.tokens = b->tokens,
                                  .first = b->prefix.depth * bt,
                                  .n_tokens = (b->prefix.depth + 1) * bt,
                                  .extras = b->extras,
                                  .n_extras = b->n_extras};
    struct place end = where;
    index_match(ix, &q, where.depth + 1, &end);
    bool there = end.depth > where.depth;
    if (there && index_on_disk_to(ix, end)) /* of two copies the newer, which others hang on */
        index_copy_replace(ix, end, r->slot);
    else if (there && !index_copy_commit(ix, end, r->slot))
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
    if (!body_read(k, r, &b) || being_flushed(k, b.prefix.space) ||
        !spaces_open(k->d->spaces, &b.key, &space))
        return;
    if (hang(k, &b, space, r)) {
        k->generation[r->slot] = r->generation;
        swap_slot_used(k->swap, STORE_BLOCKS, r->slot);
    }
    spaces_close(k->d->spaces, space);
}

/* A state hangs on a block that has been restored. It is a lower tier's entry at once. */
static void restore_state(struct disk *k, const struct swap_record *r)
{
    struct state_found f;
    uint32_t space;
    if (!k->states.max || !state_body_read(k, r, &f) || being_flushed(k, f.at.prefix.space) ||
        !spaces_open(k->d->spaces, &f.at.key, &space))
        return;
    struct snapshot_save save = {.space = spaces_number(k->d->spaces, space),
                                 .session = f.session,
                                 .kind = (enum snapshot_kind)f.kind,
                                 .residue = {f.at.tokens, f.n_tokens, f.at.extras, f.at.n_extras}};
    uint64_t key;
    if (parent_of(k, &f.at.prefix, space, &save.at) &&
        snapshot_restore(k->d->snapshots, &save, &key))
        state_found(k, key, r);
    spaces_close(k->d->spaces, space);
}

void restore_take(struct disk *k, const struct swap_order *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->record[i].status != SWAP_GOOD)
            continue;
        if (o->store == STORE_BLOCKS)
            restore(k, &o->record[i]);
        else
            restore_state(k, &o->record[i]);
    }
}
