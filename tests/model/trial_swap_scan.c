/* What a restart finds, as swap_scan.c does it: by generation, what hangs on nothing left out. */
#include "tests/model/trial_swap_private.h"

#include <stdlib.h>
#include <string.h>

static int by_generation(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return x->generation < y->generation ? -1 : x->generation > y->generation;
}

/* The headers that are alive now; a flush that comes later counts when they are handed over. */
void trial_scan_begin(struct swap *sw)
{
    uint32_t most = 1;
    for (int k = 0; k < SWAP_STORES; k++)
        most += sw->store[k].n;
    sw->found = calloc(most, sizeof *sw->found);
    REQUIRE(sw->found != NULL);
    for (int k = 0; k < SWAP_STORES; k++) {
        const struct trial_store *s = sw->store[k].files;
        for (uint32_t i = 0; i < sw->store[k].n && i < s->ready; i++) {
            struct body_prefix p;
            memcpy(&p, s->slot[i].body, sizeof p);
            if (s->slot[i].headed &&
                !trial_flushed(sw->disk, (enum swap_store_kind)k, p.space, s->slot[i].generation))
                sw->found[sw->n_found++] = (struct found){.generation = s->slot[i].generation,
                                                          .parent = p.parent_generation,
                                                          .store = (enum swap_store_kind)k,
                                                          .slot = i};
        }
    }
    qsort(sw->found, sw->n_found, sizeof *sw->found, by_generation);
    for (uint32_t i = 1; i < sw->n_found; i++)
        REQUIRE_MSG(sw->found[i].generation != sw->found[i - 1].generation,
                    "two records on disk have generation %llu",
                    (unsigned long long)sw->found[i].generation);
}

static const struct found *parent_of(const struct swap *sw, const struct found *f)
{
    const struct found key = {.generation = f->parent};
    return bsearch(&key, sw->found, sw->n_found, sizeof key, by_generation);
}

/* A flush counts from the moment that it was tried, on disk or not. */
static bool flushed(const struct swap *sw, const struct found *f, const uint64_t space[2])
{
    for (uint32_t i = 0; i < sw->n_owed; i++) {
        const struct owed *o = &sw->owed[i];
        bool all = !o->space[0] && !o->space[1];
        if (o->store == f->store && f->generation <= o->generation &&
            (all || memcmp(o->space, space, sizeof o->space) == 0))
            return true;
    }
    return trial_flushed(sw->disk, f->store, space, f->generation);
}

/* The next one, if it hangs on what was handed over. */
static bool accept(struct swap *sw, struct found *f, struct swap_record *r)
{
    struct live_store *l = &sw->store[f->store];
    const struct trial_slot *x = &l->files->slot[f->slot];
    const struct found *parent = f->parent ? parent_of(sw, f) : NULL;
    struct body_prefix p;
    memcpy(&p, x->body, sizeof p);
    f->state = FOUND_DROPPED;
    if ((f->parent &&
         (!parent || parent->store != STORE_BLOCKS || parent->state != FOUND_HANDED)) ||
        flushed(sw, f, p.space))
        return false;
    f->state = FOUND_HANDED;
    l->slot[f->slot].handed = true;
    p.parent_slot = parent ? parent->slot : NO_SLOT;
    memcpy(r->body, x->body, x->body_bytes);
    memcpy(r->body, &p, sizeof p);
    r->slot = f->slot;
    r->generation = x->generation;
    r->body_bytes = x->body_bytes;
    return true;
}

static void hand_over(struct swap *sw, uint32_t n)
{
    enum swap_store_kind store = (enum swap_store_kind)sw->scan_store;
    struct trial_order *t = trial_order_new(&sw->store[store], n);
    t->order.kind = SWAP_SCAN;
    t->order.store = store;
    for (; sw->at < sw->n_found && t->order.n < n; sw->at++)
        if (sw->found[sw->at].store == store)
            t->order.n += accept(sw, &sw->found[sw->at], &t->order.record[t->order.n]);
    if (sw->at == sw->n_found) {
        sw->at = 0;
        sw->scan_store++;
    }
    if (t->order.n == 0) {
        free(t);
        return;
    }
    sw->n_scans++;
    list_append(&sw->over, &t->link);
}

void trial_scan_tick(struct swap *sw)
{
    struct rng *r = sw->disk->config.rng;
    if (!sw->scanning || sw->n_scans == TRIAL_SCANS || sw->scan_store > SWAP_STORES)
        return;
    if (sw->scan_store < SWAP_STORES) {
        hand_over(sw, 1 + rng_below(r, rng_below(r, 3) ? 8 : SWAP_BATCH));
        return;
    }
    struct trial_order *t = trial_order_new(&sw->store[0], 0);
    t->order.kind = SWAP_SCAN;
    t->order.last = true;
    sw->scan_store++;
    sw->n_scans++;
    list_append(&sw->over, &t->link);
}
