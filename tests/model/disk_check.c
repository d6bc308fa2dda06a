/*
 * What must hold after each step, whoever was first: the audit is clean, the counts sum up, no slot
 * is lost, and every page has the words of its place.
 */
#include "tests/model/disk_run.h"
#include "daemon/disk_private.h"
#include "daemon/index_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- counts ----------------------------------------------------------------------------- */

/* Older copies, of which a scan has found a newer one while they were read. */
static uint32_t replaced(const struct disk *k)
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < k->n_slots; slot++)
        n += k->reader[slot] && k->generation[slot] == 0;
    return n;
}

static void check_counts(struct disk_run *r)
{
    const struct daemon *d = &r->x->d;
    const struct counters *c = &d->published;
    struct trial_counts n = trial_counts(r->disk, STORE_BLOCKS);
    REQUIRE_EQ(c->blocks_free + c->blocks_private + c->blocks_pinned + c->blocks_idle +
                   c->blocks_inflight,
               r->shape.n_blocks);
    REQUIRE_EQ(c->disk_used, index_on_disk(d->index));
    REQUIRE(c->disk_used <= trial_disk_config_of(r->disk)->slots[STORE_BLOCKS]);
    REQUIRE(run_scanning(r) || c->disk_used <= c->disk_ready_blocks);
    REQUIRE_MSG(
        n.taken == c->disk_used + n.in_writes + n.unretired + replaced(d->disk),
        "%u slots are taken; %llu blocks are on disk, %u are being written, %u could not be "
        "retired",
        n.taken, (unsigned long long)c->disk_used, n.in_writes, n.unretired);
    REQUIRE_EQ(c->disk_read_blocks, n.reads_taken);
    if (r->shape.whole)
        REQUIRE(c->evicted_blocks <= c->inserted_blocks - r->inserted);
    if (!r->shape.no_flush || run_scanning(r) || c->disk_errors)
        return;
    /* what is not there any more was evicted: there are no flushes, and nothing was lost */
    uint64_t both = 0;
    for (uint32_t id = 1; id < d->index->node_top; id++)
        if (!node_is_root(node_at(d->index, id)) && node_at(d->index, id)->n_blocks) {
            uint32_t device = device_blocks(d->index, id), disk = disk_blocks(d->index, id);
            both += device < disk ? device : disk;
        }
    REQUIRE_EQ(d->index->cached + c->disk_used - both + c->evicted_blocks,
               c->inserted_blocks + r->restored);
}

/* ---- leases ------------------------------------------------------------------------------- */

static bool same_words(const struct disk_run *r, uint32_t page, const uint64_t *word, uint32_t n)
{
    return page >= 1 && page <= r->shape.n_blocks &&
           memcmp(r->page[page], word, n * sizeof *word) == 0;
}

/* The words [first, first + n) of a text, of any life that it may show. */
static void check_words(const struct disk_run *r, const struct run_lease *l, const struct text *t,
                        const uint64_t *last, uint32_t page, uint32_t first, uint32_t n)
{
    bool same = same_words(r, page, last + first, n);
    for (uint64_t life = l->lives.first; !same && life < l->lives.last; life++) {
        uint64_t word[TEXT_MAX];
        text_words(t, l->space, life, word);
        same = same_words(r, page, word + first, n);
    }
    REQUIRE_MSG(same, "page %u does not have the KV of tokens %u to %u of its lease", page, first,
                first + n);
}

static void check_table(const struct disk_run *r, const struct run_lease *mine,
                        const struct lease *l)
{
    uint32_t bt = r->shape.block_tokens, depth = l->path.where.depth;
    uint32_t pages[TEXT_MAX], disks[TEXT_MAX], there = 0;
    REQUIRE(depth * bt <= mine->text.n);
    REQUIRE(depth == 0 ||
            index_path_ids(index_view_of(r->x->d.index), l->path.where, 0, depth, pages, disks));
    while (there < depth && pages[there] != NO_PAGE) {
        check_words(r, mine, &mine->text, mine->text_word, pages[there], there * bt, bt);
        there++;
    }
    for (uint32_t i = there; i < depth; i++)
        REQUIRE(pages[i] == NO_PAGE && disks[i] != NO_DISK);
    for (uint32_t i = 0; i < l->n_pages; i++)
        if (!(l->pages[i] & LEASE_PUBLISHED))
            REQUIRE_MSG(memcmp(r->page[l->pages[i]], r->shadow[l->pages[i]], sizeof r->page[0]) ==
                            0,
                        "page %u is one lease's, and somebody wrote to it", l->pages[i]);
    if (l->tail_tokens)
        check_words(r, mine, &mine->asked, mine->asked_word, l->tail_block, mine->tail_first,
                    l->tail_tokens);
}

static void check_leases(struct disk_run *r)
{
    for (int i = 0; i < RUN_LEASES; i++) {
        const struct run_lease *mine = &r->lease[i];
        if (!mine->used)
            continue;
        const struct lease *l = run_lease_of(r, mine);
        REQUIRE(l != NULL);
        check_table(r, mine, l);
    }
}

void check_step(struct disk_run *r)
{
    check_counts(r);
    check_leases(r);
    check_states(r);
    r->b.audit(r->x);
}

/* ---- the tree ----------------------------------------------------------------------------- */

/* A block, and its words in each life that its space may show. */
struct seen_block {
    int space;
    uint32_t n; /* tokens; fewer than a block: a partial one */
    uint32_t page, disk, n_extras;
    uint32_t before; /* the copy of the block before it; NO_DISK: it is the first */
    unsigned n_lives;
    const uint64_t (*word)[RUN_BT];
};

struct walk {
    struct disk_run *r;
    int space;
    unsigned n_lives;
    bool (*visit)(struct disk_run *r, const struct seen_block *b); /* false: go no deeper */
};

void token_words(const struct index *ix, const uint32_t *tokens, uint32_t extras, uint64_t first,
                 uint32_t n, uint64_t before, uint64_t word[RUN_BT])
{
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t e = extras; e; e = extra_at(ix, e)->next)
            if (extra_at(ix, e)->at == first + t)
                before = word_extra(before, extra_at(ix, e)->len, extra_at(ix, e)->digest);
        word[t] = before = word_next(before, tokens[t]);
    }
}

static void block_words(const struct index *ix, uint32_t unit, uint64_t first, uint32_t n,
                        uint64_t before, uint64_t word[RUN_BT])
{
    token_words(ix, index_tokens_at(&ix->view, unit), *extra_head_at(ix, unit), first, n, before,
                word);
}

uint64_t path_word(const struct index *ix, uint32_t node, uint32_t depth, uint64_t begin)
{
    const struct index_node *n = node_at(ix, node);
    uint32_t bt = ix->view.params.block_tokens;
    uint64_t word[RUN_BT];
    if (node_is_root(n))
        return begin;
    uint64_t last = path_word(ix, n->parent, n->start, begin);
    for (uint32_t i = 0; n->start + i < depth; i++) {
        block_words(ix, n->extent + i, (uint64_t)(n->start + i) * bt, bt, last, word);
        last = word[bt - 1];
    }
    return last;
}

static uint32_t extras_of(const struct index *ix, uint32_t unit)
{
    uint32_t n = 0;
    for (uint32_t e = *extra_head_at(ix, unit); e; e = extra_at(ix, e)->next)
        n++;
    return n;
}

static void walk_below(struct walk *w, uint32_t id, uint32_t copy,
                       const uint64_t before[LIVES_MOST])
{
    const struct index *ix = w->r->x->d.index;
    const struct index_node *n = node_at(ix, id);
    uint64_t word[LIVES_MOST][RUN_BT], last[LIVES_MOST];
    uint32_t bt = w->r->shape.block_tokens;
    memcpy(last, before, sizeof last);
    for (uint32_t i = 0; i < n->n_blocks; i++) {
        uint32_t unit = n->extent + i, tokens = n->n_partial ? n->n_partial : bt;
        for (unsigned k = 0; k < w->n_lives; k++) {
            block_words(ix, unit, (uint64_t)(n->start + i) * bt, tokens, last[k], word[k]);
            last[k] = word[k][tokens - 1];
        }
        struct seen_block b = {.space = w->space,
                               .n = tokens,
                               .page = *pages_at(ix, unit),
                               .disk = *disks_at(ix, unit),
                               .n_extras = extras_of(ix, unit),
                               .before = copy,
                               .n_lives = w->n_lives,
                               .word = (const uint64_t(*)[RUN_BT])word};
        if (!w->visit(w->r, &b))
            return;
        copy = b.disk;
    }
    for (uint32_t c = children_first(ix, id); c; c = children_next(ix, c))
        walk_below(w, c, copy, last);
}

int run_space_of(const struct disk_run *r, uint32_t slot)
{
    struct space_key key = spaces_key(r->x->d.spaces, slot);
    for (int s = 0; s < RUN_SPACES; s++) {
        struct space_key k = run_space_key(s);
        if (k.adapter_id == key.adapter_id && k.adapter_generation == key.adapter_generation &&
            k.tenant_len == key.tenant_len && memcmp(k.tenant, key.tenant, k.tenant_len) == 0)
            return s;
    }
    ck_abort_msg("there is a space that nobody opened");
}

/* Every block below a root that is not condemned. */
static void walk_all(struct disk_run *r,
                     bool (*visit)(struct disk_run *r, const struct seen_block *b))
{
    const struct spaces *all = r->x->d.spaces;
    for (uint32_t slot = 0; slot < spaces_top(all); slot++) {
        if (spaces_find(all, spaces_number(all, slot)) == UINT32_MAX)
            continue;
        struct walk w = {.r = r, .space = run_space_of(r, slot), .visit = visit};
        struct lives lives = r->lives[w.space];
        uint64_t before[LIVES_MOST] = {0};
        REQUIRE(lives.last - lives.first < LIVES_MOST);
        w.n_lives = (unsigned)(lives.last - lives.first + 1);
        for (unsigned k = 0; k < w.n_lives; k++)
            before[k] = word_begin(w.space, lives.first + k);
        walk_below(&w, spaces_root(all, slot), NO_DISK, before);
    }
}

/* The last word of the life whose words these are; 0: none's. */
static uint64_t life_of(const struct seen_block *b, const void *bytes)
{
    for (unsigned k = 0; k < b->n_lives; k++)
        if (memcmp(bytes, b->word[k], b->n * sizeof b->word[k][0]) == 0)
            return b->word[k][b->n - 1];
    return 0;
}

/* Its header names the copy that the tree has of the block before it. Not so below one of two
 * copies, of which an older one was given up, but found by a restart: they go in the next. */
static bool chain_is_whole(const struct disk_run *r, const struct seen_block *b,
                           const struct trial_record *on_disk)
{
    struct body_prefix p;
    memcpy(&p, on_disk->body, sizeof p);
    uint64_t before = b->before == NO_DISK ? 0 : r->x->d.disk->generation[b->before];
    return p.parent_generation == before;
}

/* In any life: a block that is computed again while a scan goes on takes over the copy that it had
 * in the one before. */
static bool often_enough(const struct disk_run *r, const struct seen_block *b)
{
    bool enough = r->shape.admit <= 1;
    for (unsigned k = 0; k < b->n_lives; k++)
        enough = enough || words_has(&r->seen[r->shape.admit - 1], b->word[k][b->n - 1]);
    return enough;
}

static void check_copy(struct disk_run *r, const struct seen_block *b)
{
    struct trial_record on_disk;
    uint64_t generation = r->x->d.disk->generation[b->disk];
    trial_look(r->disk, STORE_BLOCKS, b->disk, &on_disk);
    REQUIRE(on_disk.headed);
    REQUIRE(generation == on_disk.generation || generation == GENERATION_BAD);
    REQUIRE_MSG(b->n_extras <= BODY_EXTRAS, "a block with %u extras is on disk", b->n_extras);
    REQUIRE_MSG(on_disk.generation < r->first_generation || chain_is_whole(r, b, &on_disk) ||
                    r->x->d.disk->generation[b->before] == GENERATION_BAD,
                "slot %u was written, and does not hang on the copy before it", b->disk);
    if (!on_disk.whole)
        return;
    uint64_t word = life_of(b, on_disk.payload);
    REQUIRE_MSG(word, "slot %u does not have the KV of its block, of space %d", b->disk, b->space);
    REQUIRE_MSG(words_has(&r->published, word),
                "a block of space %d is on disk, and nobody inserted it", b->space);
    REQUIRE_MSG(often_enough(r, b), "a block of space %d is on disk, and was not seen %u times",
                b->space, r->shape.admit);
}

static bool check_block(struct disk_run *r, const struct seen_block *b)
{
    if (b->page != NO_PAGE) {
        uint64_t word = life_of(b, r->page[b->page]);
        REQUIRE_MSG(word, "page %u does not have the KV of its block, of space %d", b->page,
                    b->space);
        REQUIRE_MSG(b->n < r->shape.block_tokens || words_has(&r->published, word),
                    "a block of space %d is cached, and nobody inserted it", b->space);
    }
    if (b->disk != NO_DISK)
        check_copy(r, b);
    return true;
}

void check_tree(struct disk_run *r)
{
    walk_all(r, check_block);
    check_state_tree(r);
}

/* ---- what a restart must find --------------------------------------------------------------- */

/* Its copy is on a file that is as long as that, hangs on others, and no flush has taken it. */
static bool note_copy(struct disk_run *r, const struct seen_block *b)
{
    struct trial_record on_disk;
    struct body_prefix p;
    if (b->disk == NO_DISK || b->disk >= trial_disk_config_of(r->disk)->slots[STORE_BLOCKS])
        return false;
    trial_look(r->disk, STORE_BLOCKS, b->disk, &on_disk);
    memcpy(&p, on_disk.body, sizeof p);
    if (!chain_is_whole(r, b, &on_disk) ||
        trial_flushed(r->disk, STORE_BLOCKS, p.space, on_disk.generation))
        return false;
    uint64_t word = life_of(b, on_disk.payload);
    if (word)
        words_add(&r->present, word);
    return true;
}

uint32_t note_copies(struct disk_run *r)
{
    words_clear(&r->present);
    words_clear(&r->kept);
    if (!run_scanning(r)) { /* else a newer copy may be among those that have not come yet */
        walk_all(r, note_copy);
        note_states(r);
    }
    return r->present.n;
}

static uint32_t found;

static bool find_copy(struct disk_run *r, const struct seen_block *b)
{
    struct trial_record on_disk;
    if (b->disk == NO_DISK)
        return false;
    trial_look(r->disk, STORE_BLOCKS, b->disk, &on_disk);
    found += words_has(&r->present, life_of(b, on_disk.payload));
    return true;
}

void check_present(struct disk_run *r)
{
    found = 0;
    walk_all(r, find_copy);
    REQUIRE_MSG(found == r->present.n, "%u blocks were on disk, a restart finds %u of them",
                r->present.n, found);
    check_states_kept(r);
}
