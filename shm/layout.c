#include "shm/layout.h"

#include <stddef.h>

/* Why these sizes suffice for ever:
 *   units    a node owns at most twice the units of its blocks (index.c, INVARIANT CAP), and
 *            blocks never exceed pages + disk slots; 64 more let an insert find one at any time
 *   nodes    each but a root has a block; a live root is a space's, a condemned one (flushed,
 *            still held) has a block below it; a flush has both roots for a moment; id 0 is none
 *   buckets  at most `blocks` entries, between 2 and 4 for the 7 places of a bucket
 *   extras   at most one a token of a block or a residue, capped where ids end
 */
bool index_plan(const struct index_params *p, struct index_plan *plan)
{
    uint64_t blocks = (uint64_t)p->n_blocks + p->n_disk;
    if (p->block_tokens == 0 || p->block_tokens > BLOCK_TOKENS_MAX || p->max_spaces == 0)
        return false;
    if (blocks >= 1ull << 30 || p->n_blocks >= 1u << 31 || p->max_spaces >= 1u << 30 ||
        p->max_snapshots >= 1u << 31)
        return false;

    uint64_t n_buckets = 16;
    while (n_buckets < blocks / 4)
        n_buckets *= 2;
    uint64_t extras = (blocks + p->max_snapshots) * p->block_tokens + 1;
    uint64_t snapshots = (uint64_t)p->max_snapshots + 1;

    plan->n_units = (uint32_t)(2 * blocks + NODE_BLOCKS);
    plan->max_nodes = (uint32_t)(2 * blocks + p->max_spaces + 2);
    plan->n_buckets = (uint32_t)n_buckets;
    plan->max_extras = extras < UINT32_MAX ? (uint32_t)extras : UINT32_MAX;

    uint64_t at = REGION_PAGE;
    const struct {
        uint64_t *offset, bytes;
    } part[] = {
        {&plan->spaces, (uint64_t)p->max_spaces * sizeof(struct index_space)},
        {&plan->nodes, (uint64_t)plan->max_nodes * sizeof(struct index_node)},
        {&plan->buckets, n_buckets * sizeof(struct index_bucket)},
        {&plan->tokens, (uint64_t)plan->n_units * p->block_tokens * 4},
        {&plan->pages, (uint64_t)plan->n_units * 4},
        {&plan->disks, (uint64_t)plan->n_units * 4},
        {&plan->extra_heads, (uint64_t)plan->n_units * 4},
        {&plan->extras, (uint64_t)plan->max_extras * sizeof(struct index_extra)},
        {&plan->snapshots, snapshots * sizeof(struct index_snapshot)},
        {&plan->residues, snapshots * p->block_tokens * 4},
    };
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        *part[i].offset = at;
        at += (part[i].bytes + REGION_PAGE - 1) & ~4095ull;
    }
    plan->bytes = at;
    return true;
}
