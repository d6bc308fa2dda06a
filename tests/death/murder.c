#include "tests/death/murder.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000 * SLOW, WORDS_A_NAP = 64 };

struct stage *stage_new(void)
{
    struct stage *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_MSG(s != MAP_FAILED, "no shared memory");
    s->last = RANKS;
    return s;
}

void await_round(const uint32_t *word, uint32_t round)
{
    uint64_t until = now_ms() + PATIENCE_MS;
    while (shm_load_acquire(word) != round) {
        REQUIRE_MSG(now_ms() < until, "round %u: an event did not happen", round);
        sleep_us(20);
    }
}

static void add(uint64_t *counter, uint64_t n)
{
    shm_store_release(counter, shm_load(counter) + n);
}

static pfx *join(const struct part *p, const char *name, const char *group)
{
    pfx *c = NULL;
    struct pfx_options o = {.size = sizeof o,
                            .socket_path = p->host->socket,
                            .name = name,
                            .group = group,
                            .ring_entries = 8,
                            .arena_bytes = 64 * 1024,
                            .timeout_ms = 10000 * SLOW};
    int rc = pfx_open(&o, &c);
    REQUIRE_MSG(rc == 0, "%s: pfx_open: %s (%s)", name, pfx_strerror(rc), pfx_why(NULL));
    return c;
}

static pfx *join_engine(const struct part *p, const char *name, uint32_t round)
{
    char group[32];
    snprintf(group, sizeof group, "engine %u", round);
    return join(p, name, shm_load(&p->stage->strangers) ? NULL : group);
}

static uint64_t empty_lease(pfx *c)
{
    struct pfx_lookup_args args = {.size = sizeof args};
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(c, &args, &m);
    REQUIRE_MSG(rc == 0, "lookup: %s", pfx_strerror(rc));
    return m.lease;
}

/* ---- scheduler ------------------------------------------------------------------------- */

void scheduler_run(struct child *me, void *part)
{
    const struct part *p = part;
    struct stage *s = p->stage;
    uint32_t round = shm_load(&s->round);
    pfx *c = join_engine(p, "scheduler", round);
    uint64_t lease = empty_lease(c);
    int rc = pfx_reserve(c, lease, PAGES, s->table);
    REQUIRE_MSG(rc == 0, "reserve: %s", pfx_strerror(rc));
    shm_store_release(&s->leased, round);
    while (round % 2) /* half of them are killed at work, half asleep */
        REQUIRE_MSG(pfx_ping(c) == 0, "ping: %s", pfx_why(c));
    pause();
}

/* ---- ranks ------------------------------------------------------------------------------ */

static bool must_end(const struct part *p, uint32_t round)
{
    return shm_load_acquire(&p->stage->over) == round && shm_load(&p->stage->last) != p->rank;
}

/* One pass over this rank's shard of every page; what an earlier pass wrote must still be there.
 * False: the round is over. */
static bool copy_pass(const struct part *p, pfx *c, uint32_t round, uint64_t pass)
{
    struct stage *s = p->stage;
    uint64_t value = (uint64_t)round << 32 | p->rank << 24;
    for (unsigned i = 0; i < PAGES; i++) {
        uint64_t *shard = pfx_block_address(c, 0, s->table[i]);
        shard += p->rank * SHARD_WORDS;
        for (unsigned w = 0; w < SHARD_WORDS; w++) {
            if (pass && shm_load(&shard[w]) != value + pass - 1)
                add(&s->overwritten, 1);
            shm_store(&shard[w], value + pass);
            if ((i * SHARD_WORDS + w) % WORDS_A_NAP == 0) {
                if (must_end(p, round))
                    return false;
                sleep_us(50);
            }
        }
        if (p->rank == 0)
            add(&s->copied, 1);
    }
    return true;
}

void rank_run(struct child *me, void *part)
{
    const struct part *p = part;
    struct stage *s = p->stage;
    for (uint32_t round = p->first;; round++) {
        await_round(&s->round, round);
        pfx *c = join_engine(p, "rank", round);
        shm_store_release(&s->attached[p->rank], round);
        await_round(&s->leased, round);
        for (uint64_t pass = 0; copy_pass(p, c, round, pass); pass++)
            ;
        shm_store_release(&s->ended[p->rank], round);
        pfx_close(c);
    }
}

/* ---- the other group ----------------------------------------------------------------------- */

struct loot {
    pfx *c;
    uint64_t lease;
    uint32_t page[POOL], n;
};

static uint64_t loot_key(uint32_t round, uint32_t i)
{
    return (uint64_t)round * 0xabcdef0123ull + i;
}

static bool ranks_ended(const struct stage *s, uint32_t round)
{
    for (unsigned i = 0; i < RANKS; i++)
        if (shm_load_acquire(&s->ended[i]) != round)
            return false;
    return true;
}

static void compare_loot(struct stage *s, const struct loot *l, uint32_t round)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!page_holds(l->c, l->page[i], loot_key(round, i)))
            add(&s->changed, 1);
}

/* All of the rest, or what a smaller wish gets. */
static void take_loot(struct stage *s, struct loot *l, uint32_t round)
{
    for (uint32_t n = POOL - l->n; n > 0; n /= 2) {
        int rc = pfx_reserve(l->c, l->lease, n, l->page + l->n);
        REQUIRE_MSG(rc == 0 || rc == PFX_ENOSPC, "reserve: %s", pfx_strerror(rc));
        if (rc == PFX_ENOSPC)
            continue;
        if (l->n + n > POOL - PAGES && !ranks_ended(s, round))
            add(&s->early, n);
        for (uint32_t i = l->n; i < l->n + n; i++)
            page_fill(l->c, l->page[i], loot_key(round, i));
        l->n += n;
        return;
    }
    add(&s->refused, 1);
}

void other_run(struct child *me, void *part)
{
    const struct part *p = part;
    struct stage *s = p->stage;
    struct loot l = {.c = join(p, "other", NULL)};
    for (uint32_t round = p->first;; round++) {
        await_round(&s->leased, round);
        l.lease = empty_lease(l.c);
        l.n = 0;
        while (l.n < POOL || shm_load_acquire(&s->over) != round) {
            if (l.n < POOL)
                take_loot(s, &l, round);
            else
                add(&s->refused,
                    1); /* nothing is left to want: a control that went wrong as it must */
            compare_loot(s, &l, round);
            sleep_us(50);
        }
        compare_loot(s, &l, round);
        int rc = pfx_release(l.c, l.lease);
        REQUIRE_MSG(rc == 0, "release: %s", pfx_strerror(rc));
        shm_store_release(&s->served, round);
    }
}
