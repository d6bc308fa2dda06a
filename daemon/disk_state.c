/*
 * States on disk: a lower tier (tier.h) over the store of snapshots.
 *
 *      put    its prefix is written first (a chain), so that a restart finds the state where it
 *             hangs; then a slot, then the order          CHAIN -> SLOT -> IO -> OVER
 *      get    the order                                           READ -> IO -> OVER
 *      drop   what no order has yet is gone at once; an order cannot be called back: its slot of
 *             the pool is in use until it ends (DROPPED), and so is its slot of the file
 *
 * What a state is of, a put reads from the tree: a key's low half is its entry. The path is held
 * for the transfer, so none of it is evicted meanwhile.
 *
 * The copy of the prefix may go later, while the state stays: then it serves this life, and a
 * restart will not find it.
 */
#include "daemon/disk_private.h"

#include <stdlib.h>

static struct disk *disk_of(struct tier *t)
{
    return (struct disk *)(void *)((char *)t - offsetof(struct disk, states.tier));
}

static uint32_t entry_of(uint64_t key)
{
    return (uint32_t)key;
}

static struct move *move_find(struct disk *k, uint64_t key)
{
    list_each (at, after, &k->states.moves) {
        struct move *m = list_entry(at, struct move, link);
        if (m->key == key && !m->dropped && m->stage != MOVE_GONE)
            return m;
    }
    return NULL;
}

/* Where its hold ends, what was flushed meanwhile goes, other states with it: this is not for
 * state_drop, which the tree itself calls. */
static void move_free(struct disk *k, struct move *m)
{
    list_remove(&m->link);
    index_unhold(k->d->index, &m->path);
    free(m);
}

static void move_end(struct move *m, enum tier_outcome outcome)
{
    m->stage = MOVE_OVER;
    m->outcome = m->dropped ? TIER_DROPPED : outcome;
}

static void file_slot_free(struct disk *k, uint32_t disk, bool bad)
{
    if (bad)
        disk_retire(k, STORE_SNAPSHOTS, disk);
    else
        swap_slot_give(k->swap, STORE_SNAPSHOTS, disk);
}

/* ---- put ------------------------------------------------------------------------------------ */

/* Where the entry's last whole block ends. */
static struct place place_of(const struct disk *k, uint32_t id)
{
    const struct index_view *v = index_view_of(k->d->index);
    const struct index_snapshot *e = index_snapshot_at(v, id);
    return (struct place){index_node_at(v, e->node)->identity, e->node,
                          e->depth / v->params.block_tokens};
}

/* A state of less than a block hangs on the root alone. */
static bool prefix_is_there(struct disk *k, struct place where)
{
    return where.depth == 0 || index_on_disk_to(k->d->index, where);
}

/* Slots that were retired, or that the file system has no room for, are not there, whatever the
 * budget says. */
static bool state_room(struct tier *t)
{
    struct disk *k = disk_of(t);
    uint32_t waiting = 0;
    list_each (at, after, &k->states.moves) {
        const struct move *m = list_entry(at, struct move, link);
        waiting += m->write && (m->stage == MOVE_CHAIN || m->stage == MOVE_SLOT);
    }
    return swap_free(k->swap, STORE_SNAPSHOTS) > waiting ||
           swap_will_grow(k->swap, STORE_SNAPSHOTS);
}

static bool state_put(struct tier *t, uint64_t key, uint32_t slot)
{
    struct disk *k = disk_of(t);
    if (!disk_can_write(k))
        return false;
    struct move *m = calloc(1, sizeof *m);
    if (!m)
        return false;
    *m = (struct move){.key = key, .slot = slot, .write = true, .began_ns = clock_ns()};
    struct place where = place_of(k, entry_of(key));
    if (where.depth) /* the root stays while the entry does */
        index_hold_io(k->d->index, &m->path, where);
    list_append(&k->states.moves, &m->link);
    return true;
}

/* Once: what one chain could not write, the next cannot either. */
static bool chain_step(struct disk *k, struct move *m)
{
    if (m->chain)
        return false;
    if (prefix_is_there(k, m->path.where)) {
        m->stage = MOVE_SLOT;
        return true;
    }
    if (!m->chained)
        m->chain = chain_begin(k, m->path.where, m);
    if (!m->chain)
        move_end(m, TIER_ERROR);
    m->chained = true;
    return !m->chain;
}

/* A slot is given up with its blob, or comes when the file has grown. */
static bool slot_step(struct disk *k, struct move *m)
{
    struct place where = place_of(k, entry_of(m->key));
    struct swap_order *o = NULL;
    if (!disk_can_write(k) || index_flushed(k->d->index, where) || !prefix_is_there(k, where)) {
        move_end(m, TIER_ERROR);
        return true;
    }
    if (swap_slots_take(k->swap, STORE_SNAPSHOTS, 1, &m->disk)) {
        o = swap_order_new(k->swap, SWAP_WRITE, STORE_SNAPSHOTS);
        if (!o)
            swap_slot_give(k->swap, STORE_SNAPSHOTS, m->disk);
    }
    if (!o) {
        bool enough = clock_ns() - m->began_ns >= DISK_WAIT_NS && !swap_facts(k->swap).growing;
        if (enough)
            move_end(m, TIER_ERROR);
        return enough;
    }
    struct swap_record *r = &o->record[0];
    r->slot = m->disk;
    r->record = m->slot;
    if (!state_body_write(k, where, entry_of(m->key), r)) {
        swap_order_free(k->swap, o);
        file_slot_free(k, m->disk, false);
        move_end(m, TIER_ERROR);
        return true;
    }
    r->generation = swap_generation(k->swap);
    o->n = 1;
    o->owner = m;
    m->stage = MOVE_IO;
    swap_submit(k->swap, o);
    return true;
}

static void write_over(struct disk *k, struct move *m, const struct swap_record *r)
{
    if (r->status == SWAP_GOOD && !m->dropped) {
        k->states.blob[entry_of(m->key)] =
            (struct blob){.key = m->key, .generation = r->generation, .disk = m->disk};
        move_end(m, TIER_DONE);
        return;
    }
    file_slot_free(k, m->disk, r->status == SWAP_FAILED);
    if (r->status != SWAP_GOOD)
        writes_failed(k, r->status);
    move_end(m, TIER_ERROR);
}

/* ---- get ------------------------------------------------------------------------------------ */

static bool state_get(struct tier *t, uint64_t key, uint32_t slot)
{
    struct disk *k = disk_of(t);
    const struct blob *b = &k->states.blob[entry_of(key)];
    struct move *m = b->key == key && !b->bad ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return false;
    *m = (struct move){.key = key, .slot = slot, .disk = b->disk, .stage = MOVE_READ};
    list_append(&k->states.moves, &m->link);
    return true;
}

static bool read_step(struct disk *k, struct move *m)
{
    struct swap_order *o = swap_order_new(k->swap, SWAP_READ, STORE_SNAPSHOTS);
    if (!o)
        return false;
    o->record[0] = (struct swap_record){.slot = m->disk,
                                        .record = m->slot,
                                        .generation = k->states.blob[entry_of(m->key)].generation};
    o->n = 1;
    o->owner = m;
    m->stage = MOVE_IO;
    swap_submit(k->swap, o);
    return true;
}

static void state_read_over(struct disk *k, struct move *m, const struct swap_record *r)
{
    bool gone = r->status == SWAP_CORRUPT;
    if (m->dropped) /* with its blob */
        file_slot_free(k, m->disk, gone);
    else
        k->states.blob[entry_of(m->key)].bad = gone;
    move_end(m, r->status == SWAP_GOOD ? TIER_DONE : gone ? TIER_MISS : TIER_ERROR);
}

void state_over(struct disk *k, struct swap_order *o)
{
    struct move *m = o->owner;
    if (m->write)
        write_over(k, m, &o->record[0]);
    else
        state_read_over(k, m, &o->record[0]);
    swap_order_free(k->swap, o);
}

/* ---- drop, step ------------------------------------------------------------------------------ */

static bool state_drop(struct tier *t, uint64_t key)
{
    struct disk *k = disk_of(t);
    struct blob *b = &k->states.blob[entry_of(key)];
    struct move *m = move_find(k, key);
    bool under_way = m && m->stage == MOVE_IO;
    if (b->key == key) {
        if (!under_way)
            file_slot_free(k, b->disk, b->bad);
        *b = (struct blob){0};
    }
    if (under_way) {
        m->dropped = true;
    } else if (m) {
        if (m->chain)
            m->chain->state = NULL; /* it goes on alone */
        m->chain = NULL;
        m->stage = MOVE_GONE;
    }
    return !under_way;
}

static bool state_step(struct tier *t, struct tier_over *over, unsigned *n_over)
{
    struct disk *k = disk_of(t);
    *n_over = 0;
    list_each (at, after, &k->states.moves) {
        struct move *m = list_entry(at, struct move, link);
        if (m->stage != MOVE_OVER)
            continue;
        *over = (struct tier_over){m->key, m->slot, m->outcome};
        *n_over = 1;
        move_free(k, m);
        break;
    }
    return *n_over != 0;
}

static void state_free(struct tier *t)
{
    (void)t; /* the disk's */
}

bool states_step(struct disk *k)
{
    bool busy = false;
    list_each (at, after, &k->states.moves) {
        struct move *m = list_entry(at, struct move, link);
        if (m->stage == MOVE_CHAIN)
            busy |= chain_step(k, m);
        if (m->stage == MOVE_SLOT)
            busy |= slot_step(k, m);
        if (m->stage == MOVE_READ)
            busy |= read_step(k, m);
        busy |= m->stage == MOVE_OVER;
        if (m->stage == MOVE_GONE)
            move_free(k, m);
    }
    return busy;
}

/* ---- start, restart, stop -------------------------------------------------------------------- */

void state_found(struct disk *k, uint64_t key, const struct swap_record *r)
{
    k->states.blob[entry_of(key)] =
        (struct blob){.key = key, .generation = r->generation, .disk = r->slot};
    swap_slot_used(k->swap, STORE_SNAPSHOTS, r->slot);
}

bool states_init(struct disk *k)
{
    static const struct tier_ops ops = {state_room, state_put,  state_get,
                                        state_drop, state_step, state_free};
    struct states *s = &k->states;
    list_init(&s->moves);
    s->tier.ops = &ops;
    s->max = k->d->options->snapshot_swap ? index_view_of(k->d->index)->params.max_snapshots : 0;
    s->blob = calloc((size_t)s->max + 1, sizeof *s->blob);
    return s->blob != NULL;
}

void states_deinit(struct disk *k)
{
    if (!k->states.blob)
        return;
    list_each (at, after, &k->states.moves)
        free(list_entry(at, struct move, link));
    free(k->states.blob);
}

struct tier *disk_states(struct disk *k)
{
    return k && k->states.max ? &k->states.tier : NULL;
}
