/*
 * Snapshots of a random run, whose lower tier is on disk. A state is a word as well: of the prefix
 * that it is of, and of its session if it is a tail.
 *
 *      saved   all that were ever saved
 *      kept    those that a restart must find: their bytes are on disk whole, and so is the chain
 * of copies that they hang on
 */
#include "tests/model/disk_run.h"
#include "daemon/disk_private.h"
#include "daemon/index_private.h"
#include "shm/status.h"

#include <string.h>

enum { SLOTS_OF_LEASE = 3, EXACT_WORD = 0xffff };

static uint64_t state_word(uint64_t prefix, bool tail, uint64_t session)
{
    return word_next(prefix, tail ? (uint32_t)session : EXACT_WORD);
}

static void fill(uint8_t bytes[STATE_BYTES], uint64_t word)
{
    for (uint32_t i = 0; i < STATE_BYTES / 8; i++) {
        uint64_t w = word_next(word, i);
        memcpy(bytes + i * 8, &w, 8);
    }
}

static bool holds(const uint8_t *bytes, uint64_t word)
{
    uint8_t right[STATE_BYTES];
    fill(right, word);
    return memcmp(bytes, right, sizeof right) == 0;
}

/* ---- of leases --------------------------------------------------------------------------- */

/* The state that a lease was offered, after `depth` tokens of what it asked for. */
static void check_offer(const struct disk_run *r, const struct run_lease *l, uint32_t slot,
                        uint32_t depth, bool tail)
{
    const uint8_t *bytes = r->x->slots[slot];
    uint64_t word[TEXT_MAX], state = 0;
    bool right = false;
    REQUIRE(slot >= 1 && slot <= r->shape.n_states && depth >= 1 && depth <= l->asked.n);
    for (uint64_t life = l->lives.first; !right && life <= l->lives.last; life++) {
        text_words(&l->asked, l->space, life, word);
        state = state_word(word[depth - 1], tail, l->session);
        right = holds(bytes, state);
    }
    REQUIRE_MSG(right, "slot %u does not have the state after %u tokens", slot, depth);
    REQUIRE_MSG(words_has(&r->saved, state), "a state is offered that nobody saved");
}

static void check_held(const struct disk_run *r, const struct run_lease *l, uint32_t id)
{
    struct snapshot_facts f =
        id ? snapshot_facts(r->x->d.snapshots, id) : (struct snapshot_facts){0};
    if (id && f.state == SNAPSHOT_RESIDENT)
        check_offer(r, l, f.slot, f.depth, f.is_tail);
}

static uint32_t blobs(const struct disk_run *r)
{
    const struct disk *k = r->x->d.disk;
    uint32_t n = 0;
    for (uint32_t id = 1; id <= k->states.max; id++)
        n += k->states.blob[id].key != 0;
    list_each (at, after, &k->states.moves) { /* dropped, and still being read */
        const struct move *m = list_entry(at, struct move, link);
        n += !m->write && m->dropped && m->stage == MOVE_IO;
    }
    return n;
}

void check_states(struct disk_run *r)
{
    if (!r->shape.n_states)
        return;
    struct trial_counts n = trial_counts(r->disk, STORE_SNAPSHOTS);
    REQUIRE_EQ(n.taken, blobs(r) + n.in_writes + n.unretired);
    for (int i = 0; i < RUN_LEASES; i++) {
        const struct run_lease *mine = &r->lease[i];
        const struct lease *l = mine->used ? run_lease_of(r, mine) : NULL;
        if (!l)
            continue;
        for (uint32_t s = 0; s < mine->n_slots; s++)
            REQUIRE_MSG(memcmp(r->x->slots[mine->slot[s]], r->state_shadow[mine->slot[s]],
                               STATE_BYTES) == 0,
                        "slot %u is one lease's, and somebody wrote to it", mine->slot[s]);
        if (mine->secret)
            continue;
        check_held(r, mine, l->resident);
        check_held(r, mine, l->tiered);
    }
}

void check_offers(struct disk_run *r, const struct run_lease *l,
                  const struct completion_lookup *out)
{
    uint32_t most = out->where.depth * r->shape.block_tokens + out->tail_tokens;
    if (!r->shape.n_states)
        return;
    REQUIRE(out->snapshot_depth <= most && out->tier_depth <= most);
    if (out->snapshot_depth)
        check_offer(r, l, out->slot, out->snapshot_depth, out->is_tail);
    REQUIRE((out->tier_depth == 0) == (out->tier_key == 0));
    r->seen_states += out->snapshot_depth > 0;
    r->seen_tiered += out->tier_depth > out->snapshot_depth;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void reserve_slot(struct disk_run *r, int conn, int lease)
{
    struct run_conn *c = &r->conn[conn];
    c->lease = lease;
    c->lease_id = r->lease[lease].id;
    c->quiet = one_in(r, 2) && run_alone(r, conn);
    c->fits = slots_free(r->x->d.snapshots) > 0;
    run_ask(r, conn, &(struct request){.op = OP_SNAPSHOT_RESERVE, .lease = c->lease_id});
}

static void slot_came(struct disk_run *r, const struct run_conn *c, uint32_t slot)
{
    struct run_lease *l = run_lease_named(r, c->lease_id);
    REQUIRE(l && l->n_slots < RUN_SLOTS && slot >= 1 && slot <= r->shape.n_states);
    l->slot[l->n_slots++] = slot;
    fill(r->x->slots[slot], rng_next(&r->rng));
    memcpy(r->state_shadow[slot], r->x->slots[slot], STATE_BYTES);
}

void state_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out)
{
    if (c->op == OP_SNAPSHOT_SPILL) {
        REQUIRE(out->status == 0 || out->status == STATUS_ENOENT);
        REQUIRE(out->status || (out->number.n == 0) == out->number.dropped);
        return;
    }
    if (out->status == 0)
        slot_came(r, c, out->number.slot);
    else
        REQUIRE(out->status == STATUS_ESTALE || out->status == STATUS_ENOSPC);
    REQUIRE(out->status != STATUS_ENOSPC || !c->quiet || !c->fits);
}

static void slot_forget(struct run_lease *l, uint32_t i)
{
    l->slot[i] = l->slot[--l->n_slots];
}

/* A depth that the lease knows, and the word there: in what it holds, in what it has written after
 * that, or in the tail that it was offered. 0: none. */
static uint32_t some_depth(struct disk_run *r, const struct run_lease *mine, const struct lease *l,
                           uint64_t *word)
{
    uint32_t held = l->path.where.depth * r->shape.block_tokens, depth = 0;
    bool beyond = held == 0 || one_in(r, 3);
    if (beyond && l->residue && mine->written > held) {
        depth = held + 1 + dice(r, l->residue->n_tokens);
        REQUIRE(depth <= mine->written);
    } else if (beyond && !l->residue && l->path.where.depth == l->matched && l->tail_tokens) {
        depth = held + 1 + dice(r, l->tail_tokens);
        *word = mine->asked_word[depth - 1];
        return depth;
    } else if (held) {
        depth = 1 + dice(r, held);
    }
    if (depth)
        *word = mine->text_word[depth - 1];
    return depth;
}

static void save(struct disk_run *r, int conn, struct run_lease *mine)
{
    const struct lease *l = run_lease_of(r, mine);
    uint64_t word, session = mine->session;
    uint32_t depth = some_depth(r, mine, l, &word), i = dice(r, mine->n_slots);
    int kind = session && one_in(r, 2) ? (one_in(r, 2) ? SNAPSHOT_TAIL : SNAPSHOT_SIBLING)
                                       : SNAPSHOT_EXACT;
    if (!depth)
        return;
    uint32_t slot = mine->slot[i];
    bool stale = lease_is_stale(&r->x->d, l);
    word = state_word(word, kind == SNAPSHOT_TAIL, session);
    fill(r->x->slots[slot], word);
    memcpy(r->state_shadow[slot], r->x->slots[slot], STATE_BYTES);
    int status = r->b.snapshot_insert(r->x, conn, mine->id, slot, depth, kind);
    REQUIRE_EQ(status, stale ? STATUS_ESTALE : 0);
    if (status)
        return;
    slot_forget(mine, i);
    words_add(&r->saved, word);
}

/* One that is on disk, or just on its way back. */
static void forget(struct disk_run *r, int conn)
{
    const struct disk *k = r->x->d.disk;
    uint64_t key = k->states.blob[1 + dice(r, k->states.max)].key;
    if (!list_empty(&k->states.moves) && one_in(r, 2))
        key = list_entry(k->states.moves.next, struct move, link)->key;
    int status = r->b.snapshot_forget(r->x, conn, key);
    REQUIRE(status == 0 || status == STATUS_ENOENT);
}

static void of_lease(struct disk_run *r, int conn, uint32_t what)
{
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    struct run_lease *l = &r->lease[i];
    bool stale = lease_is_stale(&r->x->d, run_lease_of(r, l));
    if (what == 0) {
        REQUIRE_EQ(r->b.snapshot_drop(r->x, conn, l->id), stale ? STATUS_ESTALE : 0);
    } else if (what == 1 && l->n_slots) {
        REQUIRE_EQ(r->b.snapshot_cancel(r->x, conn, l->id, l->slot[0]), stale ? STATUS_ESTALE : 0);
        if (!stale)
            slot_forget(l, 0);
    } else if (l->n_slots < SLOTS_OF_LEASE && (!l->n_slots || one_in(r, 4))) {
        reserve_slot(r, conn, i);
    }
    if (what > 1 && l->used && l->n_slots)
        save(r, conn, l);
}

void do_state(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    uint32_t what = dice(r, 17);
    if (!r->shape.n_states)
        return;
    if (what < 13) {
        of_lease(r, conn, what);
    } else if (what == 13) {
        c->lease = -1;
        c->quiet = false;
        run_ask(r, conn, &(struct request){.op = OP_SNAPSHOT_SPILL});
    } else if (what == 14) {
        int status = r->b.snapshot_evict(r->x, conn);
        REQUIRE(status == 0 || status == STATUS_ENOENT);
    } else {
        forget(r, conn);
    }
    check_step(r);
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* The word of this entry in the life whose bytes these are; 0: none's. */
static uint64_t word_of(const struct disk_run *r, uint32_t id, const uint8_t *bytes)
{
    const struct index *ix = r->x->d.index;
    const struct index_snapshot *e = index_snapshot_at(&ix->view, id);
    uint32_t bt = r->shape.block_tokens, blocks = e->depth / bt;
    int space = run_space_of(r, node_at(ix, node_at(ix, e->node)->root)->space);
    for (uint64_t life = r->lives[space].first; life <= r->lives[space].last; life++) {
        uint64_t word = path_word(ix, e->node, blocks, word_begin(space, life)), residue[RUN_BT];
        if (e->depth % bt) {
            token_words(ix, index_residue_at(&ix->view, id), e->extras, (uint64_t)blocks * bt,
                        e->depth % bt, word, residue);
            word = residue[e->depth % bt - 1];
        }
        word = state_word(word, e->kind == SNAPSHOT_TAIL, e->session);
        if (holds(bytes, word))
            return word;
    }
    return 0;
}

/* Is it in a tree that can be found? */
static bool hangs(const struct disk_run *r, uint32_t id)
{
    const struct index *ix = r->x->d.index;
    const struct index_snapshot *e = index_snapshot_at(&ix->view, id);
    return e->node && !index_flushed(ix, (struct place){.node = e->node});
}

static struct trial_record record_of(const struct disk_run *r, uint32_t id)
{
    struct trial_record on_disk;
    const struct blob *b = &r->x->d.disk->states.blob[id];
    REQUIRE_EQ(b->key, index_snapshot_at(index_view_of(r->x->d.index), id)->tier_key);
    trial_look(r->disk, STORE_SNAPSHOTS, b->disk, &on_disk);
    REQUIRE(on_disk.headed && on_disk.generation == b->generation);
    return on_disk;
}

void check_state_tree(struct disk_run *r)
{
    if (!r->shape.n_states)
        return;
    for (uint32_t id = 1; id <= snapshots_max(r->x->d.snapshots); id++) {
        const struct index_snapshot *e = index_snapshot_at(index_view_of(r->x->d.index), id);
        if (!hangs(r, id))
            continue;
        bool resident = e->state == SNAPSHOT_RESIDENT;
        struct trial_record on_disk = {.whole = true};
        if (!resident)
            on_disk = record_of(r, id);
        if (!on_disk.whole)
            continue;
        uint64_t word = word_of(r, id, resident ? r->x->slots[e->slot] : on_disk.payload);
        REQUIRE_MSG(word, "entry %u, %s, does not have the state of its %u tokens", id,
                    resident ? "in its slot" : "on disk", e->depth);
        REQUIRE_MSG(words_has(&r->saved, word), "entry %u is a state that nobody saved", id);
    }
}

/* ---- what a restart must find ------------------------------------------------------------------
 */

/* Does it hang on the copy of its last block, which is one that will be found? */
static bool prefix_kept(const struct disk_run *r, const struct index_snapshot *e,
                        const struct body_prefix *p)
{
    const struct index *ix = r->x->d.index;
    uint32_t blocks = e->depth / r->shape.block_tokens;
    const struct index_node *n = node_at(ix, e->node);
    if (blocks == 0)
        return p->parent_generation == 0;
    uint32_t slot = *disks_at(ix, n->extent + (blocks - 1 - n->start));
    if (slot == NO_DISK || slot != p->parent_slot ||
        r->x->d.disk->generation[slot] != p->parent_generation)
        return false;
    int space = run_space_of(r, node_at(ix, n->root)->space);
    for (uint64_t life = r->lives[space].first; life <= r->lives[space].last; life++)
        if (words_has(&r->present, path_word(ix, e->node, blocks, word_begin(space, life))))
            return true;
    return false;
}

void note_states(struct disk_run *r)
{
    if (!r->shape.n_states)
        return;
    for (uint32_t id = 1; id <= snapshots_max(r->x->d.snapshots); id++) {
        const struct index_snapshot *e = index_snapshot_at(index_view_of(r->x->d.index), id);
        if (!hangs(r, id) || e->state != SNAPSHOT_TIERED)
            continue;
        struct trial_record on_disk = record_of(r, id);
        struct body_prefix p;
        memcpy(&p, on_disk.body, sizeof p);
        uint64_t word = word_of(r, id, on_disk.payload);
        if (word && !trial_flushed(r->disk, STORE_SNAPSHOTS, p.space, on_disk.generation) &&
            prefix_kept(r, e, &p))
            words_add(&r->kept, word);
    }
    r->states_kept += r->kept.n;
}

void check_states_kept(struct disk_run *r)
{
    uint32_t found = 0;
    for (uint32_t id = 1; r->shape.n_states && id <= snapshots_max(r->x->d.snapshots); id++)
        if (hangs(r, id))
            found += words_has(&r->kept, word_of(r, id, record_of(r, id).payload));
    REQUIRE_MSG(found == r->kept.n, "%u states were on disk, a restart finds %u of them", r->kept.n,
                found);
}
