/*
 * How often a block was seen: once when it was inserted, and once more by each lookup that matched
 * it, and by each insert that brought it again. Where `admit` is more than 1, only blocks that were
 * seen so often are written to the disk tier (ADMIT in index_private.h); the others go with their
 * page.
 *
 *      seen, admit 3      3  3  3 | 2  2  1        a lookup of the first five: from its end up to
 *                         -  -  -   3  3           the first that has it all, as those before it do
 *
 * So a block is counted up admit - 1 times in its life, and a lookup costs nothing where it is a
 * usual one. What is in front is seen at least as often: an insert that brings again what comes
 * after it (its own lookup was a quiet one) counts for it as well.
 */
#include "daemon/index_private.h"

/* Of one node, the blocks down to the `last`-th; false: what is in front of it stays as it is. */
static bool count_up(struct index *ix, uint32_t id, uint32_t last, uint32_t first, uint32_t *least)
{
    const struct index_node *n = node_at(ix, id);
    struct node_tiers *t = &ix->tiers[id];
    for (uint32_t block = last; block > 0; block--) {
        uint8_t *seen = &ix->seen[n->extent + block - 1];
        uint32_t now = *seen + (n->start + block > first);
        if (*seen == ix->admit || (n->start + block <= first && *seen >= *least))
            return false;
        *least = now > *least ? now : *least;
        *seen = (uint8_t)*least;
        if (*seen == ix->admit && block > t->seen)
            t->seen = (uint8_t)block;
    }
    return true;
}

void seen_again(struct index *ix, struct place where, uint32_t first)
{
    uint32_t least = 0;
    bool more = ix->admit > 1 && where.depth > first;
    for (uint32_t id = where.node, depth = where.depth; more && depth > 0;) {
        const struct index_node *n = node_at(ix, id);
        struct tally before = node_tally(ix, id);
        more = count_up(ix, id, depth - n->start, first, &least);
        node_settle(ix, id, before);
        depth = n->start;
        id = n->parent;
        ix->work++;
    }
}

void index_seen(struct index *ix, struct place where)
{
    seen_again(ix, where, 0);
}

void seen_enough(struct index *ix, uint32_t id, uint32_t block)
{
    if (ix->admit <= 1)
        return;
    ix->seen[node_at(ix, id)->extent + block] = (uint8_t)ix->admit;
    if (ix->tiers[id].seen <= block)
        ix->tiers[id].seen = (uint8_t)(block + 1);
}
