#include "daemon/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pool_init(struct pool *p, uint32_t n_blocks)
{
    *p = (struct pool){.what = "page", .n_blocks = n_blocks, .n_free = n_blocks};
    p->free = malloc(((size_t)n_blocks + 1) * sizeof *p->free);
    p->state = calloc((size_t)n_blocks + 1, 1);
    p->next = calloc((size_t)n_blocks + 1, sizeof *p->next);
    if (!p->free || !p->state || !p->next) {
        pool_deinit(p);
        return false;
    }
    for (uint32_t i = 0; i < n_blocks; i++) /* low ids come first */
        p->free[i] = n_blocks - i;
    return true;
}

void pool_deinit(struct pool *p)
{
    free(p->free);
    free(p->state);
    free(p->next);
    memset(p, 0, sizeof *p);
}

/* Going on would hand one page to two owners: a wrong byte later. Stopping loses only time. */
static void check(const struct pool *p, bool right, const char *done, uint32_t id)
{
    if (right)
        return;
    fprintf(stderr, "prefixd: %s %u cannot be %s: this is a fault of prefixd, please report it\n",
            p->what, id, done);
    abort();
}

static void move(struct pool *p, uint32_t id, enum page_state from, enum page_state to,
                 const char *done)
{
    check(p, id >= 1 && id <= p->n_blocks && p->state[id] == from, done, id);
    p->state[id] = (uint8_t)to;
    uint32_t *count[PAGE_STATES] = {&p->n_free, &p->n_private, &p->n_cached, &p->n_inflight,
                                    &p->n_confined};
    --*count[from];
    if (to == PAGE_FREE)
        p->free[p->n_free] = id;
    ++*count[to];
}

uint32_t pool_take(struct pool *p)
{
    check(p, p->n_free > 0, "taken from an empty pool", 0);
    uint32_t id = p->free[p->n_free - 1];
    move(p, id, PAGE_FREE, PAGE_PRIVATE, "reserved");
    return id;
}

void pool_give(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_PRIVATE, PAGE_FREE, "given back");
}

void pool_publish(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_PRIVATE, PAGE_CACHED, "published");
}

void pool_unpublish(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_CACHED, PAGE_FREE, "evicted");
}

void pool_fly(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_PRIVATE, PAGE_INFLIGHT, "read into");
}

void pool_land(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_INFLIGHT, PAGE_CACHED, "published");
}

void pool_ditch(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_INFLIGHT, PAGE_FREE, "given back");
}

void pool_linger(struct pool *p, uint32_t id)
{
    move(p, id, PAGE_CACHED, PAGE_INFLIGHT, "left to a transfer");
}

void pool_confine(struct pool *p, struct page_chain *c, uint32_t id)
{
    move(p, id, PAGE_PRIVATE, PAGE_CONFINED, "confined");
    p->next[id] = c->first;
    c->first = id;
    c->n++;
}

void pool_discharge(struct pool *p, struct page_chain *c)
{
    while (c->first) {
        uint32_t id = c->first;
        c->first = p->next[id];
        move(p, id, PAGE_CONFINED, PAGE_FREE, "discharged");
    }
    c->n = 0;
}
