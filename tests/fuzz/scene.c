/* The daemon and the disk of fuzz_requests.c; its seeds. */
#include "tests/fuzz/fuzz_requests.h"
#include "tests/model/trial_swap.h"

#include <stdio.h>
#include <string.h>

/* ---- daemon and disk ---------------------------------------------------------------------- */

static uint32_t tokens_of(const struct shape *x)
{
    static const uint32_t bt[] = {4, 1, 2, 16};
    return bt[x->block_tokens % 4];
}

static uint32_t disk_slots(const struct shape *x)
{
    return x->disk ? 4 + x->disk % 96 : 0;
}

static uint32_t tier_slots(const struct shape *x)
{
    return x->slots % 8 ? x->tier % 8 : 0;
}

static void tick(void *arg)
{
    trial_tick(arg);
}

void scene_open(struct scene *s)
{
    uint8_t f = s->shape.faults;
    s->rng.state = f;
    s->bt = tokens_of(&s->shape);
    if (!s->shape.disk)
        return;
    struct trial_disk_config c = {
        .rng = &s->rng, .grows = f & 1, .longest = 8, .slots = {disk_slots(&s->shape)}};
    c.slots[STORE_SNAPSHOTS] = tier_slots(&s->shape);
    c.faults = (struct trial_faults){.read_failed = f & 2 ? 8 : 0,
                                     .flipped = f & 4 ? 10 : 0,
                                     .write_failed = f & 8 ? 10 : 0,
                                     .full = f & 8 ? 16 : 0,
                                     .refused = f & 8 ? 16 : 0,
                                     .flush_failed = f & 16 ? 3 : 0,
                                     .retire_failed = f & 32 ? 4 : 0,
                                     .sick = f & 64 ? 60 : 0,
                                     .no_order = f & 128 ? 10 : 0};
    s->disk = trial_disk_new(&c);
}

/* Words for the command line; they stay until the next daemon. */
static const char *said(const char *format, unsigned long long number)
{
    static char text[16][96];
    static unsigned n;
    char *to = text[n++ % 16];
    snprintf(to, sizeof text[0], format, number);
    return to;
}

void scene_start(struct scene *s)
{
    static const uint64_t masks[] = {UINT64_MAX, 0, 3, 0xff};
    const struct shape *x = &s->shape;
    uint32_t tier = tier_slots(x), bt = s->bt;
    const char *options[24];
    unsigned n = 0;
    options[n++] = said("--blocks=%llu", 12 + x->blocks);
    options[n++] = said("--block-tokens=%llu", bt);
    options[n++] = said("--block-bytes=%llu", HOUSE_BLOCK);
    options[n++] = "--max-workers=4";
    options[n++] = "--max-leases=12";
    options[n++] = x->options & 1 ? "--index=none" : "--index=radix";
    if (x->slots % 8) {
        options[n++] = said("--snapshots=%llu", x->slots % 8);
        options[n++] = said("--snapshot-bytes=%llu", HOUSE_STATE);
        options[n++] = x->options & 8 ? "--alpha=0.5" : "--alpha=0";
    }
    if (tier)
        options[n++] = said("--snapshot-swap=%llu",
                            s->disk ? swap_file_bytes(HOUSE_STATE, 1, state_body_room(bt), tier)
                                    : tier * HOUSE_STATE);
    if (s->disk) {
        static char path[128];
        snprintf(path, sizeof path, "--swap=%s:%llu", house_init(),
                 (unsigned long long)swap_file_bytes(HOUSE_BLOCK, 1, body_room(bt), disk_slots(x)));
        options[n++] = path;
        options[n++] = x->options & 2 ? "--swap-write=insert" : "--swap-write=evict";
        options[n++] = x->options & 4 ? "--swap-admit=2" : "--swap-admit=1";
        options[n++] = "--swap-depth=4";
        trial_disk_insert(s->disk);
        s->h.tick = tick;
        s->h.arg = s->disk;
    }
    options[n] = NULL;
    house_hash(masks[x->hash % 4]);
    REQUIRE(house_start(&s->h, options));
}

void scene_stop(struct scene *s)
{
    house_stop(&s->h);
}

void scene_close(struct scene *s)
{
    if (s->disk)
        trial_disk_free(s->disk);
}

/* ---- steps that get somewhere ------------------------------------------------------------- */

static bool one_in(struct rng *r, uint32_t n)
{
    return rng_below(r, n) == 0;
}

static uint8_t likely_op(struct rng *r)
{
    static const uint8_t often[] = {OP_LOOKUP,
                                    OP_LOOKUP,
                                    OP_LOOKUP_SLOW,
                                    OP_LOOKUP_SLOW,
                                    OP_RESERVE,
                                    OP_RESERVE,
                                    OP_RESERVE,
                                    OP_INSERT,
                                    OP_INSERT,
                                    OP_INSERT,
                                    OP_INSERT,
                                    OP_RELEASE,
                                    OP_TRUNCATE,
                                    OP_SNAPSHOT_RESERVE,
                                    OP_SNAPSHOT_INSERT,
                                    OP_SNAPSHOT_INSERT,
                                    OP_SNAPSHOT_SPILL,
                                    OP_FETCH,
                                    OP_EVICT};
    if (one_in(r, 3))
        return one_in(r, 3) ? STEP_FIND : STEP_STORE;
    if (one_in(r, 8))
        return (uint8_t)(STEP_FIRST + rng_below(r, STEP_STORE - STEP_FIRST));
    if (one_in(r, 16))
        return (uint8_t)(OP_COUNT + rng_below(r, STEP_FIRST - OP_COUNT));
    return one_in(r, 4) ? (uint8_t)rng_below(r, OP_COUNT)
                        : often[rng_below(r, sizeof often / sizeof often[0])];
}

static uint16_t likely_flags(struct rng *r)
{
    uint16_t f = 0;
    f |= one_in(r, 2) ? RF_FETCH : 0;
    f |= one_in(r, 12) ? RF_NO_MATCH : 0;
    f |= one_in(r, 6) ? RF_QUIET : 0;
    f |= one_in(r, 3) ? RF_FINAL : 0;
    f |= one_in(r, 4) ? 0 : RF_LAST;
    f |= one_in(r, 6) ? RF_NO_TAIL : 0;
    f |= one_in(r, 3) ? 0x400 : 0;
    f |= one_in(r, 2) ? 0x800 : 0;
    f |= one_in(r, 3) ? (uint16_t)(rng_below(r, 4) << 12) : 0;
    f |= one_in(r, 8) ? 0x4000 : 0;
    f |= one_in(r, 5) ? 0 : 0x100;
    f |= one_in(r, 2) ? 0x200 : 0;
    f |= one_in(r, 8) ? 0x8000 : 0;
    return f;
}

static void make_step(uint8_t *unit, struct rng *r)
{
    static const uint32_t patterns[] = {0, 1, 2, 0x80, 0x8000, 0x55555, 0x10000000, 0x10000001};
    struct step p = {.op = likely_op(r),
                     .who =
                         (uint8_t)(one_in(r, 3) | (one_in(r, 20) ? 4 : 0) | (one_in(r, 5) ? 8 : 0)),
                     .lease = (uint8_t)(one_in(r, 10) ? rng_next(r) : rng_below(r, LIVE_LEASES)),
                     .what = (uint8_t)rng_below(r, one_in(r, 4) ? 256 : 4),
                     .flags = likely_flags(r),
                     .n = (uint16_t)rng_below(r, one_in(r, 6) ? 65536 : 96),
                     .at = (uint16_t)rng_below(r, 64),
                     .pattern = one_in(r, 4) ? (uint32_t)rng_next(r) : patterns[rng_below(r, 8)],
                     .c = one_in(r, 3) ? odd_number(r) : (uint32_t)rng_next(r),
                     .d = one_in(r, 3) ? odd_number(r) : (uint32_t)rng_next(r)};
    if (p.op == OP_TABLE || p.op >= STEP_FIRST || one_in(r, 2))
        p.d &= 0xff;
    memcpy(unit, &p, sizeof p);
}

/* A conversation in which everything succeeds. */
static size_t good_steps(struct rng *r, uint8_t *to)
{
    static const uint8_t ops[] = {
        OP_SPACE_OPEN,      OP_LOOKUP_SLOW, OP_RESERVE,        OP_INSERT, OP_SNAPSHOT_RESERVE,
        OP_SNAPSHOT_INSERT, OP_RELEASE,     OP_LOOKUP,         OP_FETCH,  OP_TRUNCATE,
        OP_RESERVE,         OP_INSERT,      OP_SNAPSHOT_SPILL, OP_TABLE,  OP_RELEASE,
        OP_EVICT,           STEP_ROUNDS};
    uint32_t pattern = rng_below(r, 8), n = 20 + rng_below(r, 60);
    size_t at = 0;
    for (size_t i = 0; i < sizeof ops; i++, at += sizeof(struct step)) {
        struct step p = {.op = ops[i],
                         .flags = (uint16_t)(RF_LAST | RF_FETCH),
                         .n = (uint16_t)n,
                         .lease = (uint8_t)(i > 6),
                         .pattern = pattern,
                         .c = 16};
        if (p.op == OP_RESERVE)
            p.n = 11;
        if (p.op == OP_INSERT)
            p.flags = (uint16_t)(RF_LAST | 0x800 | (rng_below(r, 3) ? 0 : RF_FINAL) |
                                 rng_below(r, 3) << 12);
        if (p.op == OP_INSERT || p.op == OP_SNAPSHOT_INSERT)
            p.c = rng_below(r, 4);
        if (p.op == OP_INSERT)
            p.d = rng_below(r, 32);
        memcpy(to + at, &p, sizeof p);
    }
    return at;
}

enum { SEEDS = 40 };

size_t fuzz_seed(unsigned i, uint8_t *to)
{
    struct rng r = {i};
    struct shape x = {.block_tokens = (uint8_t)i,
                      .blocks = (uint8_t)(i % 3 ? 63 : i),
                      .slots = (uint8_t)(i % 2 ? 4 : 0),
                      .tier = (uint8_t)(i % 4 > 1 ? 5 : 0),
                      .disk = (uint8_t)(i % 5 > 1 ? 20 + i : 0),
                      .faults = (uint8_t)(i % 7 ? 0 : rng_next(&r)),
                      .hash = (uint8_t)(i / 8),
                      .groups = (uint8_t)rng_next(&r),
                      .ring = (uint8_t)(i / 3),
                      .options = (uint8_t)(i == 13 ? 1 : i & 14),
                      .scribble = (uint8_t)(i % 4 == 1   ? 2
                                            : i % 8 == 3 ? 1 + i
                                                         : 0)};
    size_t n = sizeof x;
    if (i >= SEEDS)
        return 0;
    memcpy(to, &x, sizeof x);
    for (unsigned k = 0; k < 1 + i % 3; k++)
        n += good_steps(&r, to + n);
    for (unsigned k = 0; k < 8 + i && n + sizeof(struct step) <= FUZZ_INPUT; k++) {
        make_step(to + n, &r);
        n += sizeof(struct step);
    }
    return n;
}

size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r)
{
    mutate_unit_made(make_step);
    return mutate_units(bytes, n, sizeof(struct shape), sizeof(struct step), r);
}
