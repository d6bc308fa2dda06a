/*
 * An engine that keeps many requests under way on one connection, all asynchronous, in a pool that
 * is too small for them: what is matched holds the right bytes, and nothing is left behind.
 *
 *      request   lookup -> (bytes compared) reserve -> (pages filled) insert -> release
 *                                   \-> full: release, and the lookup again
 */
#include "tests/client/fixture.h"

#include <stdlib.h>
#include <string.h>

enum { ENGINES = 2, DEEP = 8, BT = 4, PROMPT = 120, REQUESTS = 1500 };
enum step { LOOK, RESERVE, INSERT, RELEASE, GIVE_UP };

struct request {
    enum step step;
    uint64_t lease;
    uint32_t tokens[PROMPT], n, n_blocks;
    uint32_t table[PROMPT / BT + 1];
};

struct engine {
    pfx *c;
    struct rng rng;
    struct request request[DEEP];
    unsigned done, full, hits, under_way;
};

/* Every word of a page follows from all the tokens before its end. */
static uint64_t page_word(const struct request *q, uint32_t block)
{
    uint64_t word = 14695981039346656037ull;
    uint32_t end = (block + 1) * BT < q->n ? (block + 1) * BT : q->n;
    for (uint32_t i = 0; i < end; i++)
        word = (word ^ q->tokens[i]) * 1099511628211ull;
    return word;
}

static void page_fill(pfx *c, const struct request *q, uint32_t block)
{
    uint64_t *page = pfx_block_address(c, 0, q->table[block]);
    for (int k = 0; k < 8; k++)
        page[k] = page_word(q, block) + (unsigned)k;
}

static void page_check(pfx *c, const struct request *q, uint32_t block)
{
    const uint64_t *page = pfx_block_address(c, 0, q->table[block]);
    for (int k = 0; k < 8; k++)
        if (page[k] != page_word(q, block) + (unsigned)k)
            ck_abort_msg("block %u at position %u holds other bytes", q->table[block], block);
}

/* One of a few conversations, to a random length, sometimes with a turn of its own at the end. */
static void prompt_new(struct engine *e, struct request *q)
{
    q->n = 1 + rng_below(&e->rng, PROMPT);
    uint32_t which = rng_below(&e->rng, 6);
    for (uint32_t i = 0; i < q->n; i++)
        q->tokens[i] = i < 40 ? i : i * 10 + which;
    if (rng_below(&e->rng, 3) == 0)
        q->tokens[rng_below(&e->rng, q->n)] = rng_below(&e->rng, 4);
}

static void submit(struct engine *e, uint64_t tag)
{
    struct request *q = &e->request[tag];
    struct pfx_lookup_args look = {
        .size = sizeof look, .tokens = q->tokens, .n_tokens = q->n, .session = 1 + tag};
    struct pfx_insert_args in = {
        .size = sizeof in, .flags = rng_below(&e->rng, 2), .tokens = q->tokens, .n_written = q->n};
    switch (q->step) {
    case LOOK:
        OK(pfx_submit_lookup(e->c, &look, tag));
        break;
    case RESERVE:
        OK(pfx_submit_reserve(e->c, q->lease, (q->n + BT - 1) / BT - q->n_blocks, tag));
        break;
    case INSERT:
        OK(pfx_submit_insert(e->c, q->lease, &in, tag));
        break;
    case RELEASE:
    case GIVE_UP:
        OK(pfx_submit_release(e->c, q->lease, tag));
        break;
    }
}

static void on_match(struct engine *e, struct request *q, const struct pfx_match *m)
{
    q->lease = m->lease;
    q->n_blocks = m->n_blocks;
    e->hits += m->n_blocks > 0;
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        q->table[i] = m->blocks[i];
        page_check(e->c, q, i);
    }
}

static void on_reserve(struct engine *e, struct request *q, const struct pfx_completion *k)
{
    for (uint32_t i = 0; i < k->n_ids; i++) {
        q->table[q->n_blocks + i] = k->ids[i];
        page_fill(e->c, q, q->n_blocks + i);
    }
}

static void answered(struct engine *e, const struct pfx_completion *k)
{
    struct request *q = &e->request[k->tag];
    if (q->step == RESERVE && k->status == PFX_ENOSPC) {
        e->full++;
        q->step = GIVE_UP;
        submit(e, k->tag);
        return;
    }
    OK(k->status);
    switch (q->step) {
    case LOOK:
        on_match(e, q, &k->match);
        break;
    case RESERVE:
        on_reserve(e, q, k);
        break;
    case INSERT:
        ck_assert_uint_ge(k->insert.cached_blocks, q->n / BT);
        break;
    case RELEASE:
        e->done++;
        prompt_new(e, q);
        break;
    case GIVE_UP:
        break;
    }
    q->step = q->step >= RELEASE ? LOOK : q->step + 1;
    if (q->step == LOOK && e->done >= REQUESTS)
        e->under_way--;
    else
        submit(e, k->tag);
}

static void engine_run(struct child *me, void *arg)
{
    struct engine *e = calloc(1, sizeof *e);
    e->rng.state = child_wait(me);
    e->c = connect_with(arg, (struct pfx_options){.ring_entries = DEEP});
    for (uint64_t tag = 0; tag < DEEP; tag++) {
        prompt_new(e, &e->request[tag]);
        submit(e, tag);
        e->under_way++;
    }
    while (e->under_way) {
        struct pfx_completion k = completion_take(e->c);
        answered(e, &k);
    }
    completion_none(e->c);
    ck_assert_uint_gt(e->hits, REQUESTS / 10);
    child_post(me, e->full);
    child_wait(me);
    pfx_close(e->c);
    free(e);
}

START_TEST(requests_in_a_pipeline)
{
    struct host h;
    struct worker w;
    struct child c[ENGINES];
    HOST_START(&h, "--blocks", "150", "--block-tokens", "4", "--block-bytes", "64");
    worker_open(&w, &h, NULL);
    struct rng r = rng_seeded("requests_in_a_pipeline");
    for (int i = 0; i < ENGINES; i++) {
        child_start(&c[i], engine_run, &h);
        child_post(&c[i], rng_next(&r));
    }
    uint64_t full = 0;
    for (int i = 0; i < ENGINES; i++)
        full += child_wait(&c[i]);
    ck_assert_uint_gt(full, 0); /* the pool was too small now and then */
    struct pfx_stats s = counters(&w);
    ck_assert_uint_gt(s.evicted_blocks, 0);
    ck_assert_uint_eq(s.leases, 0);
    ck_assert_uint_eq(s.blocks_private, 0);
    ck_assert_uint_eq(s.blocks_pinned, 0);
    step(&w);
    for (int i = 0; i < ENGINES; i++) {
        child_post(&c[i], 1);
        child_join(&c[i]);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pipeline");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, requests_in_a_pipeline);
    suite_add_tcase(s, t);
    return s;
}
