/*
 * pool.h - who has which page, or which snapshot slot. Every page is in exactly one state:
 *
 *      free --take--> private --publish--> cached --unpublish--> free
 *        ^---------------give-------------/
 *
 *      private --fly--> in flight --land--> cached --linger--> in flight --ditch--> free
 *
 *      private --confine--> confined --discharge--> free
 *
 * Cached pages are pinned or idle, as the index says (index.h keeps those two counts). `in flight`
 * is for pages that a device or the disk still uses, confined ones are in quarantine
 * (quarantine.h). A wrong transition is a fault of ours and
 * stops the daemon (pool_check) rather than hand one page to two owners.
 */
#ifndef DAEMON_POOL_H
#define DAEMON_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum page_state { PAGE_FREE = 0, PAGE_PRIVATE, PAGE_CACHED, PAGE_INFLIGHT, PAGE_CONFINED };
enum { PAGE_STATES = PAGE_CONFINED + 1 };

struct pool {
    const char *what;  /* "page" or "slot" */
    uint32_t n_blocks; /* ids 1..n_blocks */
    uint32_t n_free;
    uint32_t n_private;
    uint32_t n_cached;
    uint32_t n_inflight;
    uint32_t n_confined;
    uint32_t *free; /* a stack of ids */
    uint8_t *state; /* by id */
    uint32_t *next; /* by id of a confined one: the next in its chain; 0: none */
};

/* Confined pages of one group. */
struct page_chain {
    uint32_t first, n;
};

bool pool_init(struct pool *p, uint32_t n_blocks);
void pool_deinit(struct pool *p);

uint32_t pool_take(struct pool *p);               /* free -> private; the caller checked n_free */
void pool_give(struct pool *p, uint32_t id);      /* private -> free */
void pool_publish(struct pool *p, uint32_t id);   /* private -> cached */
void pool_unpublish(struct pool *p, uint32_t id); /* cached -> free */

void pool_fly(struct pool *p, uint32_t id);    /* private -> in flight */
void pool_land(struct pool *p, uint32_t id);   /* in flight -> cached */
void pool_ditch(struct pool *p, uint32_t id);  /* in flight -> free */
void pool_linger(struct pool *p, uint32_t id); /* cached -> in flight: nobody's, and still read */
void pool_confine(struct pool *p, struct page_chain *c, uint32_t id); /* private -> confined */
void pool_discharge(struct pool *p, struct page_chain *c);            /* all of them -> free */

#endif
