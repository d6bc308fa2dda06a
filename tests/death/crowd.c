#include "tests/death/crowd.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- shared tallies ---------------------------------------------------------------- */

struct crowd *crowd_new(void)
{
    struct crowd *c =
        mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(c != MAP_FAILED);
    return c;
}

void crowd_free(struct crowd *c)
{
    munmap(c, sizeof *c);
}

void crowd_stop(struct crowd *c)
{
    shm_store_release(&c->stop, 1u);
}

uint64_t crowd_requests(const struct crowd *c)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < CROWD_MAX; i++)
        n += shm_load(&c->tally[i].requests);
    return n;
}

void child_lives(const struct child *c)
{
    siginfo_t end = {0};
    ck_assert_int_eq(waitid(P_PID, (id_t)c->pid, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    ck_assert_msg(end.si_pid == 0, "child %d ended too early, with %d", (int)c->pid, end.si_status);
}

static void count(uint64_t *counter, uint64_t n)
{
    shm_store(counter, shm_load(counter) + n);
}

/* ---- stories and pages --------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    struct rng r = {a * 0x9e3779b97f4a7c15ull ^ b};
    return rng_next(&r);
}

void story_draw(struct story *s, struct rng *r, uint32_t block_tokens, uint64_t tenant)
{
    uint64_t key = mix(0x73746f7279ull, tenant);
    s->n_blocks = 1 + rng_below(r, STORY_BLOCKS);
    s->rest = rng_below(r, block_tokens);
    uint32_t *token = s->tokens;
    for (uint32_t b = 0; b <= s->n_blocks; b++) {
        uint32_t a = rng_below(r, b ? 3 : 6), other = rng_below(r, 3);
        uint32_t choice = a < other ? a : other, n = b < s->n_blocks ? block_tokens : s->rest;
        for (uint32_t i = 0; i < n; i++) {
            *token = (uint32_t)mix(b * 16 + choice, i);
            key = mix(key, *token++);
        }
        s->key[b] = key;
    }
}

static size_t page_words(pfx *c)
{
    return pfx_geometry(c)->layout.block_bytes / sizeof(uint64_t);
}

void page_fill(pfx *c, uint32_t block, uint64_t key)
{
    uint64_t *page = pfx_block_address(c, 0, block);
    REQUIRE_MSG(block != 0 && page != NULL, "no page %u", block);
    for (size_t i = 0, n = page_words(c); i < n; i++)
        page[i] = key + i * 0x100000001ull;
}

bool page_holds(pfx *c, uint32_t block, uint64_t key)
{
    const uint64_t *page = pfx_block_address(c, 0, block);
    uint64_t differs = page ? 0 : 1;
    for (size_t i = 0, n = page ? page_words(c) : 0; i < n; i++)
        differs |= page[i] ^ (key + i * 0x100000001ull);
    return differs == 0;
}

bool page_whole(pfx *c, uint32_t block)
{
    const uint64_t *page = pfx_block_address(c, 0, block);
    return page && page_holds(c, block, page[0]);
}

void all_given_back(struct host *h, pfx *c)
{
    struct pfx_stats s = {.size = sizeof s};
    ck_assert_int_eq(pfx_stats(c, &s), 0);
    ck_assert_uint_eq(s.leases, 0);
    ck_assert_uint_eq(s.blocks_private, 0);
    ck_assert_uint_eq(s.blocks_pinned, 0);
    ck_assert_uint_eq(s.blocks_inflight, 0);
    ck_assert_uint_eq(s.blocks_free + s.blocks_idle, pfx_geometry(c)->n_blocks);
    audit_clean(h);
}

/* ---- an actor's leases ---------------------------------------------------------------- */

enum { HANDS = 4, TENANTS = 2 };

struct hand {
    uint64_t lease; /* 0: empty */
    struct story story;
    unsigned tenant;
    uint32_t table[STORY_BLOCKS + 1];
    uint32_t n_table, n_filled; /* positions; those up to n_filled hold our keys */
    uint32_t tail;              /* block, or PFX_NO_BLOCK */
    bool final;
};

struct cast {
    const struct actor *a;
    struct tally *tally;
    pfx *c;
    struct rng rng;
    uint32_t bt;
    uint64_t ends; /* requests that it may still begin */
    uint64_t began_us;
    bool flushed; /* the call is on a lease of the tenant that is flushed now and then */
    pfx_space space[TENANTS];
    struct hand hand[HANDS];
};

static void verify(struct cast *k, uint32_t block, uint64_t key)
{
    REQUIRE_MSG(page_holds(k->c, block, key), "%s: page %u holds other bytes", k->a->name, block);
    count(&k->tally->verified, 1);
}

static void verify_hand(struct cast *k, const struct hand *h)
{
    for (uint32_t i = 0; i < h->n_filled; i++)
        verify(k, h->table[i], h->story.key[i]);
    REQUIRE_MSG(h->tail == PFX_NO_BLOCK || page_whole(k->c, h->tail),
                "%s: the tail's page %u is torn", k->a->name, h->tail);
}

static void note_time(struct tally *t, uint64_t us)
{
    if (us > shm_load(&t->worst_us))
        shm_store(&t->worst_us, us);
}

static void beat_run(struct child *me, void *arg)
{
    const struct actor *a = arg;
    struct tally *t = &a->crowd->tally[a->number];
    shm_store_release(&t->attached, 1u);
    while (!shm_load_acquire(&a->crowd->stop)) {
        uint64_t before = now_us();
        sleep_us(50);
        note_time(t, now_us() - before);
    }
}

void beat_begin(struct beat *b)
{
    b->crowd = crowd_new();
    b->actor = (struct actor){.crowd = b->crowd};
    child_start(&b->child, beat_run, &b->actor);
    EVENTUALLY(20000 * SLOW, shm_load_acquire(&b->crowd->tally[0].attached));
}

uint64_t beat_end(struct beat *b)
{
    crowd_stop(b->crowd);
    child_join(&b->child);
    uint64_t worst = b->crowd->tally[0].worst_us;
    crowd_free(b->crowd);
    return worst;
}

static void begin(struct cast *k)
{
    k->began_us = now_us();
}

/* Every call goes through here: how long it took, and whether this answer may be. */
static int note(struct cast *k, int rc, int also, const char *what)
{
    note_time(k->tally, now_us() - k->began_us);
    count(&k->tally->calls, 1);
    REQUIRE_MSG(rc >= 0 || rc == also || (rc == PFX_ESTALE && k->flushed), "%s: %s: %s (%s)",
                k->a->name, what, pfx_strerror(rc), pfx_why(k->c));
    return rc;
}

#define CALL(k, also, what, call) (begin(k), note((k), (call), (also), (what)))

static void open_hand(struct cast *k, struct hand *h)
{
    h->tenant = rng_below(&k->rng, 8) == 0;
    story_draw(&h->story, &k->rng, k->bt, h->tenant);
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .space = k->space[h->tenant],
                                   .tokens = h->story.tokens,
                                   .n_tokens = story_tokens(&h->story, k->bt)};
    static const uint32_t flags[] = {0, 0, 0, PFX_QUIET, PFX_NO_TAIL, PFX_NO_MATCH};
    args.flags = flags[rng_below(&k->rng, 6)];
    args.max_match = rng_below(&k->rng, 2) ? args.n_tokens : 0;
    struct pfx_match m = {.size = sizeof m};
    CALL(k, 0, "lookup", pfx_lookup(k->c, &args, &m));
    REQUIRE_MSG(m.n_blocks <= h->story.n_blocks, "it matched %u blocks", m.n_blocks);
    REQUIRE_MSG(m.n_resident == m.n_blocks, "%u are resident", m.n_resident);
    h->lease = m.lease;
    h->n_table = h->n_filled = m.n_blocks;
    for (uint32_t i = 0; i < m.n_blocks; i++)
        h->table[i] = m.blocks[i];
    h->tail = m.tail_tokens ? m.tail_block : PFX_NO_BLOCK;
    h->final = false;
    count(&k->tally->hits, m.n_blocks != 0);
    verify_hand(k, h);
}

static void release_hand(struct cast *k, struct hand *h)
{
    k->flushed = false; /* a release works all the same */
    verify_hand(k, h);
    CALL(k, 0, "release", pfx_release(k->c, h->lease));
    h->lease = 0;
    count(&k->tally->requests, 1);
}

static uint32_t positions(const struct hand *h)
{
    return h->story.n_blocks + (h->story.rest != 0);
}

/* Some more pages, filled. */
static void reserve_hand(struct cast *k, struct hand *h)
{
    uint32_t left = positions(h) - h->n_table, n = left ? 1 + rng_below(&k->rng, left) : 0;
    if (h->final ||
        CALL(k, PFX_ENOSPC, "reserve", pfx_reserve(k->c, h->lease, n, h->table + h->n_table)) < 0)
        return;
    h->n_table += n;
    for (; h->n_filled < h->n_table; h->n_filled++)
        page_fill(k->c, h->table[h->n_filled], h->story.key[h->n_filled]);
}

static void insert_hand(struct cast *k, struct hand *h)
{
    if (h->final)
        return;
    bool whole = h->n_filled == positions(h);
    struct pfx_insert_args args = {.size = sizeof args, .tokens = h->story.tokens};
    args.n_written = whole ? story_tokens(&h->story, k->bt) : (size_t)h->n_filled * k->bt;
    args.flags = whole && rng_below(&k->rng, 4) == 0 ? PFX_FINAL : 0;
    struct pfx_insert_result got = {.size = sizeof got};
    if (CALL(k, 0, "insert", pfx_insert(k->c, h->lease, &args, NULL, &got)) < 0)
        return;
    h->final = args.flags != 0;
    count(&k->tally->created, got.new_blocks);
}

/* Matched positions may go too; a lease that has published keeps what it has. */
static void truncate_hand(struct cast *k, struct hand *h)
{
    uint32_t n = rng_below(&k->rng, h->n_table + 1);
    if (CALL(k, PFX_ECONFLICT, "truncate", pfx_truncate(k->c, h->lease, n)) < 0 || n == h->n_table)
        return;
    h->n_table = n;
    h->n_filled = h->n_filled < n ? h->n_filled : n;
    h->tail = PFX_NO_BLOCK;
}

/* ---- an actor's life --------------------------------------------------------------------- */

static void act_on(struct cast *k, struct hand *h)
{
    switch (rng_below(&k->rng, 8)) {
    case 0:
    case 1:
    case 2:
        reserve_hand(k, h);
        return;
    case 3:
    case 4:
        insert_hand(k, h);
        return;
    case 5:
        if (rng_below(&k->rng, 4) == 0)
            truncate_hand(k, h);
        return;
    default:
        release_hand(k, h);
    }
}

static void act(struct cast *k)
{
    struct hand *h = &k->hand[rng_below(&k->rng, HANDS)];
    struct pfx_evicted gone = {.size = sizeof gone};
    switch (rng_below(&k->rng, 200)) {
    case 0:
        CALL(k, 0, "evict", pfx_evict(k->c, 1 + rng_below(&k->rng, 8), &gone));
        return;
    case 1:
        if (rng_below(&k->rng, 4) == 0)
            CALL(k, 0, "flush", pfx_flush(k->c, k->space[1]));
        return;
    case 2:
        CALL(k, 0, "ping", pfx_ping(k->c));
        return;
    default:
        break;
    }
    if (h->lease) {
        k->flushed = h->tenant == 1;
        act_on(k, h);
        k->flushed = false;
    } else if (k->ends) {
        k->ends--;
        open_hand(k, h);
    }
}

static bool busy(const struct cast *k)
{
    for (unsigned i = 0; i < HANDS; i++)
        if (k->hand[i].lease)
            return true;
    return false;
}

static void attach(struct cast *k, const struct actor *a)
{
    *k = (struct cast){.a = a,
                       .tally = &a->crowd->tally[a->number],
                       .rng = {a->seed},
                       .ends = a->requests ? a->requests : UINT64_MAX};
    struct pfx_options o = {.size = sizeof o,
                            .socket_path = a->host->socket,
                            .name = a->name,
                            .group = a->group,
                            .ring_entries = a->ring_entries,
                            .timeout_ms = a->timeout_ms};
    int rc = pfx_open(&o, &k->c);
    REQUIRE_MSG(rc == 0, "%s: pfx_open: %s (%s)", a->name, pfx_strerror(rc), pfx_why(NULL));
    k->bt = pfx_geometry(k->c)->layout.block_tokens;
    REQUIRE_MSG(k->bt * (STORY_BLOCKS + 1) <= STORY_TOKENS, "too many tokens a block");
    struct pfx_space_desc tenant = {.size = sizeof tenant, .tenant_len = 5, .tenant = "other"};
    CALL(k, 0, "space_open", pfx_space_open(k->c, &tenant, &k->space[1]));
    shm_store_release(&k->tally->attached, 1u);
}

void actor_run(struct child *me, void *arg)
{
    const struct actor *a = arg;
    struct cast k;
    attach(&k, a);
    while ((k.ends || busy(&k)) && !shm_load_acquire(&a->crowd->stop))
        act(&k);
    for (unsigned i = 0; i < HANDS; i++)
        if (k.hand[i].lease)
            release_hand(&k, &k.hand[i]);
    CALL(&k, 0, "space_close", pfx_space_close(k.c, k.space[1]));
    pfx_close(k.c);
}

/* ---- a storm ------------------------------------------------------------------------------
 *
 * Each slot is one request at a time: lookup, reserve, insert, release. The tag is the slot and
 * what was asked.
 */
enum { SLOTS = 32, STORM_WAIT_MS = 20 };
enum asked { ASKED_LOOKUP, ASKED_RESERVE, ASKED_INSERT, ASKED_RELEASE, ASKED_N };

struct slot {
    struct hand hand;
    enum asked next; /* to be submitted */
    bool out;
};

static int submit(struct cast *k, struct slot *s, uint64_t tag)
{
    struct hand *h = &s->hand;
    if (s->next == ASKED_LOOKUP) {
        story_draw(&h->story, &k->rng, k->bt, 0);
        struct pfx_lookup_args args = {.size = sizeof args,
                                       .tokens = h->story.tokens,
                                       .n_tokens = story_tokens(&h->story, k->bt)};
        return pfx_submit_lookup(k->c, &args, tag);
    }
    if (s->next == ASKED_RESERVE)
        return pfx_submit_reserve(k->c, h->lease, h->story.n_blocks - h->n_table, tag);
    if (s->next == ASKED_RELEASE)
        return pfx_submit_release(k->c, h->lease, tag);
    struct pfx_insert_args args = {.size = sizeof args,
                                   .tokens = h->story.tokens,
                                   .n_written = (size_t)h->story.n_blocks * k->bt};
    return pfx_submit_insert(k->c, h->lease, &args, tag);
}

/* The answer to what a slot asked: check it, and say what comes next. */
static void storm_take(struct cast *k, struct slot *s, const struct pfx_completion *done)
{
    struct hand *h = &s->hand;
    enum asked asked = (enum asked)(done->tag % ASKED_N);
    s->out = false;
    REQUIRE_MSG(done->status == 0 || (asked == ASKED_RESERVE && done->status == PFX_ENOSPC),
                "%s: storm: %d: %s", k->a->name, (int)asked, pfx_strerror(done->status));
    if (asked == ASKED_LOOKUP) {
        h->lease = done->lease;
        h->n_table = done->match.n_blocks;
        for (uint32_t i = 0; i < h->n_table; i++)
            verify(k, done->match.blocks[i], h->story.key[i]);
        s->next = h->n_table < h->story.n_blocks ? ASKED_RESERVE : ASKED_RELEASE;
    } else if (asked == ASKED_RESERVE && done->status == 0) {
        for (uint32_t i = 0; i < done->n_ids; i++)
            page_fill(k->c, done->ids[i], h->story.key[h->n_table + i]);
        s->next = ASKED_INSERT;
    } else if (asked == ASKED_RELEASE) {
        count(&k->tally->requests, 1);
        s->next = ASKED_LOOKUP;
    } else {
        s->next = ASKED_RELEASE;
    }
}

static void storm_wait(struct cast *k, struct slot *slots)
{
    struct pfx_completion done[16];
    for (unsigned i = 0; i < 16; i++)
        done[i] = (struct pfx_completion){.size = sizeof done[i],
                                          .match.size = sizeof done[i].match,
                                          .insert.size = sizeof done[i].insert};
    int n = CALL(k, 0, "wait", pfx_wait(k->c, done, sizeof done[0], 16, STORM_WAIT_MS));
    for (int i = 0; i < n; i++)
        storm_take(k, &slots[done[i].tag / ASKED_N], &done[i]);
}

void storm_run(struct child *me, void *arg)
{
    const struct actor *a = arg;
    struct cast k;
    struct slot slots[SLOTS] = {0};
    attach(&k, a);
    while (!shm_load_acquire(&a->crowd->stop)) {
        for (unsigned i = 0; i < SLOTS; i++) {
            if (slots[i].out)
                continue;
            int rc = submit(&k, &slots[i], i * ASKED_N + slots[i].next);
            REQUIRE_MSG(rc == 0 || rc == PFX_EAGAIN, "%s: submit: %s", a->name, pfx_strerror(rc));
            slots[i].out = rc == 0;
        }
        storm_wait(&k, slots);
    }
    pfx_close(k.c);
}
