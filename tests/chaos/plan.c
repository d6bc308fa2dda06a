/* What a round is like, and what happens in it: drawn from the seed and the round's number alone.
 */
#include "tests/chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- dice ----------------------------------------------------------------------------- */

uint64_t dice_next(struct dice *d)
{
    return random_word(d->state++, 0);
}

uint32_t dice_below(struct dice *d, uint32_t n)
{
    return (uint32_t)((dice_next(d) >> 32) * n >> 32);
}

bool dice_one_in(struct dice *d, uint32_t n)
{
    return dice_below(d, n) == 0;
}

uint32_t dice_between(struct dice *d, uint32_t low, uint32_t high)
{
    return low + dice_below(d, high - low + 1);
}

struct dice dice_of(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    return (struct dice){mix64(mix64(mix64(seed ^ 0x6368616f73ull) + a) + b) + c * 0x1000003ull};
}

/* ---- plan ------------------------------------------------------------------------------- */

/* Small: everybody wants what others hold, and most of what is cached has to move. */
static void draw_pool(struct plan *p, struct dice *d)
{
    static const uint32_t tokens[] = {8, 16, 16, 32, 64, 512};
    static const uint32_t bytes[] = {4096, 4096, 4096, 8192, 5120};
    p->block_tokens = tokens[dice_below(d, 6)];
    p->id_tokens = p->block_tokens == 512 ? 512 : p->block_tokens * dice_between(d, 1, 2);
    p->block_bytes = bytes[dice_below(d, 5)];
    /* Three GPUs have more streams than the driver that is not real. */
    p->devices = dice_one_in(d, 4) ? dice_between(d, 2, p->cuda ? 2 : 3) : 1;
    p->blocks = dice_between(d, 80, 320);
    p->slots = dice_one_in(d, 6) ? 0 : dice_between(d, 3, 12);
    p->slot_bytes = dice_one_in(d, 3) ? dice_between(d, 9, 700) : dice_between(d, 64, 9000);
    p->tier = p->slots && !dice_one_in(d, 4) ? dice_between(d, 4, 48) : 0;
}

static void draw_disk(struct plan *p, struct dice *d)
{
    p->paths = dice_one_in(d, 3) ? dice_between(d, 2, PATHS_MAX) : 1;
    /* One to five times the pool, all paths together. */
    uint64_t pool = (uint64_t)p->blocks * p->block_bytes * p->devices / 1024;
    p->path_kib = (uint32_t)(pool * dice_between(d, 2, 10) / 2 / p->paths) + 700;
    p->admit = dice_one_in(d, 6) ? 2 : 1;
    p->depth = dice_one_in(d, 2) ? 32 : dice_between(d, 1, 8);
    p->write_early = dice_one_in(d, 2);
    p->filtered = dice_one_in(d, 2);
    p->bad_media = dice_one_in(d, 2);
}

struct plan plan_draw(uint64_t seed, unsigned round, unsigned workers, uint32_t ms, int device,
                      bool disk, size_t n_prompts)
{
    struct dice d = dice_of(seed, round, 0, 0);
    struct plan p = {.seed = dice_next(&d), .round = round, .workers = workers, .ms = ms};
    bool third = (round + seed) % 3 == 2;
    p.cuda = device == DEVICE_CUDA_ONLY || (device == DEVICE_MIXED && third);
    p.ipc = p.cuda && dice_one_in(&d, 4);
    draw_pool(&p, &d);
    if (disk && !dice_one_in(&d, 6))
        draw_disk(&p, &d);
    p.leases = dice_one_in(&d, 2) ? LEASES_NEEDED : 64;
    p.spin_us = dice_one_in(&d, 2) ? 50 : 0;
    p.spill_min = dice_one_in(&d, 4) ? p.block_tokens * 2 : 0;
    p.alpha = dice_one_in(&d, 2);
    p.window = dice_between(&d, 12, 60);
    p.first = (size_t)(dice_next(&d) % n_prompts);
    return p;
}

struct pfx_space_desc space_of(unsigned space)
{
    static const struct {
        const char *tenant;
        uint64_t adapter, generation;
    } of[SPACES] = {{"", 0, 0}, {"a", 0, 0}, {"b", 0, 0}, {"", 7, 1}, {"", 7, 2}, {"a", 7, 1}};
    return (struct pfx_space_desc){.size = sizeof(struct pfx_space_desc),
                                   .tenant = of[space].tenant,
                                   .tenant_len = (uint32_t)strlen(of[space].tenant),
                                   .adapter_id = of[space].adapter,
                                   .adapter_generation = of[space].generation};
}

/* ---- schedule ----------------------------------------------------------------------------- */

/* How often, in ms from one to the next on average. */
static const uint32_t every_ms[ACTS] = {
    [ACT_KILL] = 170,   [ACT_ORDER] = 140, [ACT_STOP] = 250, [ACT_RESTART] = 2600,
    [ACT_FLUSH] = 1300, [ACT_DISK] = 900,  [ACT_ROT] = 1100, [ACT_AUDIT] = 400,
};

static void draw_details(struct event *e, const struct plan *p, struct dice *d)
{
    e->seat = (uint16_t)dice_below(d, p->workers);
    switch (e->act) {
    case ACT_ORDER:
        e->a = dice_between(d, 1, POINTS - 1);
        e->b = dice_one_in(d, 2) ? ENDING_KILL : dice_below(d, ENDINGS);
        break;
    case ACT_STOP:
        e->a = dice_one_in(d, 8) ? dice_between(d, 600, 1500) : dice_between(d, 5, 300);
        break;
    case ACT_RESTART:
        e->a = dice_one_in(d, 3);
        e->b = !p->paths || dice_one_in(d, 2) ? DAMAGE_NONE : dice_below(d, DAMAGES);
        e->b = p->bad_media || e->b == DAMAGE_GONE ? e->b : DAMAGE_NONE;
        e->c = dice_one_in(d, 3) ? dice_between(d, 50, 400) : 0;
        break;
    case ACT_FLUSH:
        e->a = dice_below(d, SPACES);
        break;
    case ACT_DISK:
        e->a = dice_between(d, 20, 400);
        e->b = dice_one_in(d, 4) ? 1000 : dice_between(d, 10, 400);
        e->c = dice_below(d, DISK_KINDS);
        break;
    default:
        break;
    }
    e->salt = dice_next(d);
}

static bool happens(const struct plan *p, enum act act)
{
    return act == ACT_DISK  ? p->filtered && p->bad_media
           : act == ACT_ROT ? p->paths && p->bad_media
                            : true;
}

static int by_time(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    return x->ms != y->ms ? (x->ms > y->ms) - (x->ms < y->ms) : (int)x->act - (int)y->act;
}

struct schedule schedule_draw(const struct plan *p)
{
    struct schedule s = {0};
    size_t room = 0;
    for (unsigned act = 0; act < ACTS; act++) {
        struct dice d = dice_of(p->seed, act + 1, 0, 0);
        uint32_t step = 2 * every_ms[act];
        for (uint32_t ms = dice_below(&d, step); happens(p, act) && ms < p->ms;
             ms += 1 + dice_below(&d, step)) {
            if (s.n == room) {
                room = room ? 2 * room : 64;
                s.event = realloc(s.event, room * sizeof *s.event);
                if (!s.event)
                    abort();
            }
            s.event[s.n] = (struct event){.ms = ms, .act = (uint16_t)act};
            draw_details(&s.event[s.n++], p, &d);
        }
    }
    if (s.n)
        qsort(s.event, s.n, sizeof *s.event, by_time);
    return s;
}

/* ---- for people --------------------------------------------------------------------------- */

static void event_print(const struct event *e)
{
    static const char *const points[POINTS] = {"",     "lookup", "reserve", "fill", "insert",
                                               "slot", "flight", "fetch",   "offer"};
    static const char *const endings[ENDINGS] = {"SIGKILL", "exit", "a socket shut"};
    static const char *const damages[DAMAGES] = {"", ", a swap file cut", ", a swap file garbage",
                                                 ", bits of a swap file flipped",
                                                 ", a swap file gone"};
    static const char *const kinds[DISK_KINDS] = {"reads fail", "writes fail", "lie", "are late",
                                                  "have no room"};
    printf("  %6u ms  ", e->ms);
    switch (e->act) {
    case ACT_KILL:
        printf("kill     worker %u\n", e->seat);
        break;
    case ACT_ORDER:
        printf("order    worker %u ends by %s at its next %s\n", e->seat, endings[e->b],
               points[e->a]);
        break;
    case ACT_STOP:
        printf("stop     worker %u for %u ms\n", e->seat, e->a);
        break;
    case ACT_RESTART:
        printf("restart  by %s, %u ms down%s\n", e->a ? "SIGTERM" : "SIGKILL", e->c, damages[e->b]);
        break;
    case ACT_FLUSH:
        printf("flush    space %u\n", e->a);
        break;
    case ACT_DISK:
        printf("disk     for %u ms %u of 1000 transfers: %s\n", e->a, e->b, kinds[e->c]);
        break;
    default:
        printf("%s\n", e->act == ACT_ROT ? "rot      of a swap file" : "audit");
    }
}

void schedule_print(const struct plan *p, const struct schedule *s)
{
    printf(
        "round %u: %u workers, %s%s, %u blocks of %u tokens and %u bytes on %u devices, %u slots "
        "of %u bytes, %u in a lower tier, %u swap files of %u KiB%s%s\n",
        p->round, p->workers, p->cuda ? "cuda" : "host", p->ipc ? " (ipc)" : "", p->blocks,
        p->block_tokens, p->block_bytes, p->devices, p->slots, p->slot_bytes, p->tier, p->paths,
        p->path_kib, p->filtered ? ", through the device" : "", p->bad_media ? ", bad media" : "");
    for (size_t i = 0; i < s->n; i++)
        event_print(&s->event[i]);
}
