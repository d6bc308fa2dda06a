/*
 * What the header of a block says: the whole description of its space, its tokens, the extras that
 * touch it, and on which block it hangs. At a restart all of it is compared or believed only under
 * its checksum, and a block is only hung where its parent is.
 *
 *      struct block_body | extras: n_extras x struct wire_extra | tokens: block_tokens x 4
 *      struct state_body | extras: n_extras x struct wire_extra | tokens: n_tokens x 4
 */
#include "daemon/disk_private.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

uint32_t body_room(uint32_t block_tokens)
{
    return (uint32_t)(sizeof(struct block_body) + BODY_EXTRAS * sizeof(struct wire_extra)) +
           block_tokens * 4;
}

uint32_t state_body_room(uint32_t block_tokens)
{
    return body_room(block_tokens) +
           (uint32_t)(sizeof(struct state_body) - sizeof(struct block_body));
}

void space_digest(const struct space_key *key, uint64_t digest[2])
{
    uint8_t text[16 + TENANT_MAX];
    memcpy(text, &key->adapter_id, 8);
    memcpy(text + 8, &key->adapter_generation, 8);
    memcpy(text + 16, key->tenant, key->tenant_len);
    XXH128_hash_t hash = XXH3_128bits(text, 16 + key->tenant_len);
    digest[0] = hash.low64;
    digest[1] = hash.high64 ? hash.high64 : 1; /* 0 0 stands for all spaces */
}

/* False: too many. */
static bool copy_extras(const struct index_view *v, uint32_t first, struct wire_extra *to,
                        uint32_t *n)
{
    *n = 0;
    for (uint32_t id = first; id; id = index_extra_at(v, id)->next) {
        if (*n == BODY_EXTRAS)
            return false;
        memcpy(&to[(*n)++], index_extra_at(v, id), sizeof *to);
    }
    return true;
}

/* All but the extras. */
static void describe(const struct disk *k, uint32_t root, uint32_t depth, struct block_body *b)
{
    uint32_t space = index_node_at(index_view_of(k->d->index), root)->space;
    struct space_key key = spaces_key(k->d->spaces, space);
    *b = (struct block_body){.prefix = {.depth = depth, .parent_slot = NO_SLOT},
                             .adapter_id = key.adapter_id,
                             .adapter_generation = key.adapter_generation,
                             .tenant_len = key.tenant_len};
    memcpy(b->tenant, key.tenant, key.tenant_len);
    space_digest(&key, b->prefix.space);
}

/* It hangs on the block that ends at `parent`, which has a copy. False: that has turned out to be
 * gone. */
static bool hang_on(const struct disk *k, struct place parent, struct body_prefix *prefix)
{
    const struct index_view *v = index_view_of(k->d->index);
    if (parent.depth == 0)
        return true;
    index_cover(k->d->index, &parent);
    const struct index_node *p = index_node_at(v, parent.node);
    prefix->parent_slot = *index_disks_at(v, p->extent + (parent.depth - 1 - p->start));
    prefix->parent_generation = k->generation[prefix->parent_slot];
    return prefix->parent_generation != GENERATION_BAD;
}

bool body_write(const struct disk *k, struct place where, const struct swap_record *before,
                struct swap_record *r)
{
    const struct index_view *v = index_view_of(k->d->index);
    struct place at = where, parent = where;
    index_cover(k->d->index, &at);
    const struct index_node *n = index_node_at(v, at.node);
    uint32_t unit = n->extent + (at.depth - 1 - n->start), bt = v->params.block_tokens;
    struct block_body *b = (struct block_body *)(void *)r->body;
    struct wire_extra *extras = (struct wire_extra *)(void *)(b + 1);
    describe(k, n->root, at.depth - 1, b);
    if (n->flags & NODE_EXTRAS &&
        !copy_extras(v, *index_extra_head_at(v, unit), extras, &b->n_extras))
        return false;
    parent.depth--;
    if (before) {
        b->prefix.parent_slot = before->slot;
        b->prefix.parent_generation = before->generation;
    } else if (!hang_on(k, parent, &b->prefix)) {
        return false;
    }
    memcpy(extras + b->n_extras, index_tokens_at(v, unit), (size_t)bt * 4);
    r->body_bytes = (uint32_t)(sizeof *b + b->n_extras * sizeof *extras) + bt * 4;
    r->record = *index_pages_at(v, unit);
    return true;
}

bool state_body_write(const struct disk *k, struct place where, uint32_t id, struct swap_record *r)
{
    const struct index_view *v = index_view_of(k->d->index);
    const struct index_snapshot *e = index_snapshot_at(v, id);
    struct state_body *b = (struct state_body *)(void *)r->body;
    struct wire_extra *extras = (struct wire_extra *)(void *)(b + 1);
    describe(k, index_node_at(v, where.node)->root, where.depth, &b->block);
    if (!copy_extras(v, e->extras, extras, &b->block.n_extras) ||
        !hang_on(k, where, &b->block.prefix))
        return false;
    b->session = e->session;
    b->kind = e->kind;
    b->n_tokens = e->depth - where.depth * v->params.block_tokens;
    memcpy(extras + b->block.n_extras, index_residue_at(v, id), b->n_tokens * 4ull);
    r->body_bytes = (uint32_t)(sizeof *b + b->block.n_extras * sizeof *extras) + b->n_tokens * 4;
    return true;
}

/* As a worker's must be (dispatch.c), and each touches tokens [from, to): a block has no more of
 * them than tokens, and the index no room for more. */
static bool extras_right(const struct wire_extra *x, uint32_t n, uint64_t from, uint64_t to)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i].len == 0 || x[i].at < end || x[i].at + x[i].len < x[i].at || x[i].at >= to ||
            x[i].at + x[i].len <= from)
            return false;
        end = x[i].at + x[i].len;
    }
    return true;
}

/* What follows a body of so many bytes is n_tokens tokens, after the extras. */
static bool read_block(const struct swap_record *r, size_t bytes, uint64_t n_tokens, uint32_t bt,
                       struct block_found *out)
{
    const struct block_body *b = (const struct block_body *)(const void *)r->body;
    if (b->tenant_len > TENANT_MAX || b->n_extras > BODY_EXTRAS ||
        r->body_bytes != bytes + b->n_extras * sizeof *out->extras + n_tokens * 4)
        return false;
    out->prefix = b->prefix;
    out->key = (struct space_key){b->adapter_id, b->adapter_generation, b->tenant_len, {0}};
    memcpy(out->key.tenant, b->tenant, b->tenant_len);
    out->n_extras = b->n_extras;
    out->extras = (const struct wire_extra *)(const void *)(r->body + bytes);
    out->tokens = (const uint32_t *)(const void *)(out->extras + b->n_extras);
    uint64_t from = (uint64_t)b->prefix.depth * bt;
    return extras_right(out->extras, b->n_extras, from, from + n_tokens);
}

bool body_read(const struct disk *k, const struct swap_record *r, struct block_found *out)
{
    uint32_t bt = index_view_of(k->d->index)->params.block_tokens;
    return r->body_bytes >= sizeof(struct block_body) &&
           read_block(r, sizeof(struct block_body), bt, bt, out);
}

bool state_body_read(const struct disk *k, const struct swap_record *r, struct state_found *out)
{
    uint32_t bt = index_view_of(k->d->index)->params.block_tokens;
    const struct state_body *b = (const struct state_body *)(const void *)r->body;
    if (r->body_bytes < sizeof *b || b->n_tokens >= bt || b->kind > SNAPSHOT_SIBLING ||
        (b->kind != SNAPSHOT_EXACT && b->session == 0) ||
        (b->block.prefix.depth == 0 && b->n_tokens == 0) ||
        !read_block(r, sizeof *b, b->n_tokens, bt, &out->at) ||
        (b->block.n_extras && out->at.extras[0].at < (uint64_t)b->block.prefix.depth * bt))
        return false;
    out->session = b->session;
    out->kind = b->kind;
    out->n_tokens = b->n_tokens;
    return true;
}
