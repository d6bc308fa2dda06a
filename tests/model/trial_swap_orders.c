/* What becomes of orders: in any order, after any time, whole, half, or not. */
#include "tests/model/trial_swap_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- pages ---- */

static uint8_t *piece(const struct swap *sw, enum swap_store_kind store, uint32_t record,
                      uint32_t i)
{
    const struct swap_store_config *c = &sw->config.store[store];
    return c->pool[i] + record * c->stride;
}

static void page_read(const struct swap *sw, enum swap_store_kind store, uint32_t record,
                      uint8_t *payload)
{
    uint64_t bytes = sw->config.store[store].record_bytes;
    for (uint32_t i = 0; i < sw->config.n_pieces; i++)
        memcpy(payload + i * bytes, piece(sw, store, record, i), bytes);
}

static void page_write(const struct swap *sw, enum swap_store_kind store, uint32_t record,
                       const uint8_t *payload)
{
    uint64_t bytes = sw->config.store[store].record_bytes;
    for (uint32_t i = 0; i < sw->config.n_pieces; i++)
        memcpy(piece(sw, store, record, i), payload + i * bytes, bytes);
}

static uint64_t page_sum(const struct swap *sw, enum swap_store_kind store, uint32_t record)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < sw->config.n_pieces; i++)
        sum =
            sum * 3 + trial_sum(piece(sw, store, record, i), sw->config.store[store].record_bytes);
    return sum;
}

/* While it is read, nothing that anybody may use. */
static void page_spoil(const struct swap *sw, enum swap_store_kind store, uint32_t record)
{
    for (uint32_t i = 0; i < sw->config.n_pieces; i++)
        for (uint64_t k = 0; k < sw->config.store[store].record_bytes; k++)
            piece(sw, store, record, i)[k] = (uint8_t)rng_next(sw->disk->config.rng);
}

/* ---- submit ---- */

static struct live_slot *slot_for(struct swap *sw, const struct swap_order *o,
                                  const struct swap_record *r)
{
    struct live_store *l = &sw->store[o->store];
    REQUIRE_MSG(r->slot < l->n, "an order names slot %u of %u", r->slot, l->n);
    struct live_slot *x = &l->slot[r->slot];
    REQUIRE_MSG(x->owner == SLOT_TAKEN, "an order is for slot %u, which is nobody's", r->slot);
    REQUIRE_MSG(!x->written, "slot %u is being written, and another order has it", r->slot);
    REQUIRE_MSG(!x->read || o->kind == SWAP_READ, "slot %u is being read, and written", r->slot);
    return x;
}

static struct live_page *page_for(struct swap *sw, const struct swap_order *o,
                                  const struct swap_record *r)
{
    struct live_store *l = &sw->store[o->store];
    REQUIRE_MSG(r->record >= 1 && r->record < l->config->pool_records,
                "an order names page %u of the pool", r->record);
    struct live_page *p = &l->page[r->record];
    REQUIRE_MSG(!p->read && (!p->written || o->kind == SWAP_WRITE), "page %u moves twice at once",
                r->record);
    return p;
}

/* What it hangs on is on disk, or in this order before it. */
static void check_parent(struct swap *sw, const struct swap_order *o, uint32_t i)
{
    struct body_prefix p;
    memcpy(&p, o->record[i].body, sizeof p);
    REQUIRE(p.parent_generation < o->record[i].generation);
    if (!p.parent_generation)
        return;
    for (uint32_t k = 0; o->store == STORE_BLOCKS && k < i; k++)
        if (o->record[k].slot == p.parent_slot && o->record[k].generation == p.parent_generation)
            return;
    const struct live_store *l = &sw->store[STORE_BLOCKS];
    REQUIRE_MSG(p.parent_slot < l->n && l->slot[p.parent_slot].owner == SLOT_TAKEN &&
                    l->slot[p.parent_slot].generation == p.parent_generation,
                "a record is to be written that hangs on slot %u, generation %llu: it is not there",
                p.parent_slot, (unsigned long long)p.parent_generation);
}

static void submit_record(struct swap *sw, struct trial_order *t, uint32_t i)
{
    struct swap_order *o = &t->order;
    struct swap_record *r = &o->record[i];
    struct live_slot *x = slot_for(sw, o, r);
    struct live_page *p;
    switch (o->kind) {
    case SWAP_WRITE:
        p = page_for(sw, o, r);
        REQUIRE_MSG(r->generation > sw->highest && r->generation < sw->next,
                    "generation %llu is not the next", (unsigned long long)r->generation);
        sw->highest = r->generation;
        REQUIRE(r->body_bytes >= sizeof(struct body_prefix) &&
                r->body_bytes <= sw->config.store[o->store].body_bytes);
        check_parent(sw, o, i);
        x->written++;
        x->generation = 0;
        p->written++;
        break;
    case SWAP_READ:
        p = page_for(sw, o, r);
        REQUIRE_MSG(r->generation == UINT64_MAX || r->generation == x->generation,
                    "a read of slot %u expects generation %llu, there is %llu", r->slot,
                    (unsigned long long)r->generation, (unsigned long long)x->generation);
        x->read++;
        p->read++;
        page_spoil(sw, o->store, r->record);
        break;
    case SWAP_RETIRE:
        x->owner = SLOT_RETIRED;
        return;
    default:
        return;
    }
    t->sum[i] = page_sum(sw, o->store, r->record);
}

void swap_submit(struct swap *sw, struct swap_order *o)
{
    struct trial_order *t = (struct trial_order *)(void *)o;
    REQUIRE(!t->submitted && o->kind != SWAP_SCAN);
    REQUIRE(o->kind == SWAP_FLUSH || (o->n >= 1 && o->n <= SWAP_BATCH));
    t->submitted = true;
    for (uint32_t i = 0; i < o->n; i++)
        submit_record(sw, t, i);
    if (o->kind == SWAP_WRITE)
        sw->store[o->store].in_writes += o->n;
    t->bound = o->generation == UINT64_MAX ? sw->highest : o->generation;
    t->wait = rng_below(sw->disk->config.rng, sw->disk->config.longest + 1);
    list_append(&sw->under_way, &t->link);
}

/* ---- writes ---- */

enum extent { NOTHING, TORN, PAYLOAD, ALL };

/* As much of a record as reaches the files. */
static void put(struct swap *sw, const struct swap_order *o, uint32_t i, enum extent extent)
{
    struct trial_store *s = sw->store[o->store].files;
    const struct swap_record *r = &o->record[i];
    struct trial_slot *x = &s->slot[r->slot];
    uint8_t payload[4096];
    REQUIRE(s->payload_bytes <= sizeof payload);
    page_read(sw, o->store, r->record, payload);
    if (extent != NOTHING)
        memcpy(x->payload, payload, extent == TORN ? s->payload_bytes / 2 : s->payload_bytes);
    if (extent != ALL)
        return;
    x->headed = true;
    x->generation = r->generation;
    x->sum = trial_sum(payload, s->payload_bytes);
    x->body_bytes = r->body_bytes;
    memcpy(x->body, r->body, r->body_bytes);
}

static enum swap_status write_status(struct swap *sw)
{
    const struct trial_faults *f = &sw->disk->config.faults;
    if (sw->disk->dead)
        return SWAP_FAILED;
    if (!sw->healthy || trial_fault(sw->disk, f->refused))
        return SWAP_REFUSED;
    if (trial_fault(sw->disk, f->full))
        return SWAP_FULL;
    return trial_fault(sw->disk, f->write_failed) ? SWAP_FAILED : SWAP_GOOD;
}

static enum swap_status write_record(struct swap *sw, struct swap_order *o, uint32_t i)
{
    struct live_slot *x = &sw->store[o->store].slot[o->record[i].slot];
    enum swap_status status = write_status(sw);
    if (status == SWAP_GOOD) {
        put(sw, o, i, ALL);
        x->generation = o->record[i].generation;
        x->sum = sw->store[o->store].files->slot[o->record[i].slot].sum;
        sw->writes++;
    } else if (!sw->disk->dead) {
        put(sw, o, i, (enum extent)rng_below(sw->disk->config.rng, ALL + 1));
    }
    return status;
}

/* ---- reads ---- */

static enum swap_status read_record(struct swap *sw, struct swap_order *o, uint32_t i)
{
    const struct trial_faults *f = &sw->disk->config.faults;
    struct swap_record *r = &o->record[i];
    struct trial_store *s = sw->store[o->store].files;
    struct trial_slot *x = &s->slot[r->slot];
    const struct live_slot *fact = &sw->store[o->store].slot[r->slot];
    if (sw->disk->dead || !sw->healthy || trial_fault(sw->disk, f->read_failed))
        return SWAP_FAILED;
    if (r->generation != fact->generation)
        return SWAP_CORRUPT;
    if (trial_fault(sw->disk, f->flipped))
        x->payload[rng_below(sw->disk->config.rng, (uint32_t)s->payload_bytes)] ^=
            (uint8_t)(1 << rng_below(sw->disk->config.rng, 8));
    page_write(sw, o->store, r->record, x->payload);
    if (trial_sum(x->payload, s->payload_bytes) != fact->sum)
        return SWAP_CORRUPT;
    sw->reads++;
    return SWAP_GOOD;
}

/* ---- the others ---- */

static enum swap_status retire_record(struct swap *sw, struct swap_order *o, uint32_t i)
{
    struct trial_slot *x = &sw->store[o->store].files->slot[o->record[i].slot];
    if (sw->disk->dead || trial_fault(sw->disk, sw->disk->config.faults.retire_failed))
        return SWAP_FAILED; /* the old header may still be there */
    x->headed = false;
    x->retired = true;
    x->generation = sw->highest ? sw->highest : 1;
    return SWAP_GOOD;
}

static enum swap_status flush_order(struct swap *sw, struct trial_order *t)
{
    struct swap_order *o = &t->order;
    if (sw->disk->dead)
        return SWAP_FAILED;
    if (sw->n_owed == TRIAL_FLUSHES ||
        !trial_fault(sw->disk, sw->disk->config.faults.flush_failed)) {
        trial_flush(sw->disk, o->store, o->space, t->bound);
        return SWAP_GOOD;
    }
    sw->owed[sw->n_owed++] = (struct owed){o->store, {o->space[0], o->space[1]}, t->bound};
    return SWAP_FAILED;
}

static enum swap_status record_over(struct swap *sw, struct trial_order *t, uint32_t i)
{
    struct swap_order *o = &t->order;
    if (o->kind == SWAP_RETIRE)
        return retire_record(sw, o, i);
    REQUIRE_MSG(page_sum(sw, o->store, o->record[i].record) == t->sum[i],
                "page %u was touched while it was being %s", o->record[i].record,
                o->kind == SWAP_READ ? "read" : "written");
    enum swap_status status = o->kind == SWAP_READ ? read_record(sw, o, i) : write_record(sw, o, i);
    sw->errors += status == SWAP_FAILED || status == SWAP_CORRUPT;
    return status;
}

static void order_over(struct swap *sw, struct trial_order *t)
{
    struct swap_order *o = &t->order;
    list_remove(&t->link);
    o->status = o->kind == SWAP_FLUSH ? flush_order(sw, t) : SWAP_GOOD;
    for (uint32_t i = 0; i < o->n; i++) {
        o->record[i].status = record_over(sw, t, i);
        if (o->record[i].status > o->status)
            o->status = o->record[i].status;
    }
    list_append(&sw->over, &t->link);
}

/* ---- time ---- */

static void grow(struct swap *sw)
{
    struct rng *r = sw->disk->config.rng;
    for (int k = 0; k < SWAP_STORES; k++) {
        struct live_store *l = &sw->store[k];
        if (!sw->healthy || sw->scanning || l->n_free > 4 || l->files->ready >= l->n ||
            rng_below(r, 4))
            continue;
        l->files->ready += 1 + rng_below(r, 6);
        if (l->files->ready > l->n)
            l->files->ready = l->n;
    }
}

static void health(struct swap *sw)
{
    if (!sw->healthy && sw->sick_ticks-- == 0)
        sw->healthy = true;
    else if (sw->healthy && trial_fault(sw->disk, sw->disk->config.faults.sick)) {
        sw->healthy = false;
        sw->sick_ticks = rng_below(sw->disk->config.rng, 60);
    }
}

static void pay(struct swap *sw)
{
    if (!sw->n_owed || rng_below(sw->disk->config.rng, 20))
        return;
    struct owed *o = &sw->owed[--sw->n_owed];
    trial_flush(sw->disk, o->store, o->space, o->generation);
}

void trial_tick(struct trial_disk *t)
{
    struct swap *sw = t->live;
    struct rng *r = t->config.rng;
    if (!t->dead) {
        health(sw);
        grow(sw);
        pay(sw);
    }
    trial_scan_tick(sw);
    list_each (at, after, &sw->under_way) {
        struct trial_order *o = list_entry(at, struct trial_order, link);
        if (t->dead || o->wait == 0 || rng_below(r, 8) == 0)
            order_over(sw, o);
        else
            o->wait -= 1;
    }
}

/* ---- the end ---- */

static void half_done(struct swap *sw, struct trial_order *t)
{
    struct swap_order *o = &t->order;
    struct rng *r = sw->disk->config.rng;
    if (o->kind == SWAP_FLUSH && rng_below(r, 2))
        trial_flush(sw->disk, o->store, o->space, t->bound);
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->kind == SWAP_WRITE)
            put(sw, o, i, (enum extent)rng_below(r, ALL + 1));
        else if (o->kind == SWAP_RETIRE && rng_below(r, 2))
            (void)retire_record(sw, o, i);
    }
}

void trial_kill(struct trial_disk *t)
{
    list_each (at, after, &t->live->under_way)
        half_done(t->live, list_entry(at, struct trial_order, link));
    t->dead = true;
}
