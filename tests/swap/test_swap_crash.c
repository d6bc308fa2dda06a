/*
 * B36. A process writes, reads, gives up, flushes and retires, with several orders under way, and
 * is killed at a random point; the next one looks at all that it finds, and goes on. What both know
 * stands in shared memory:
 *
 *      acked and not given up, flushed or retired      is found, and reads exactly
 *      a flush or a retirement that was answered       is never found again
 *      anything else                                   is exact, or absent, or found out when it is
 * read generations                                     none that was answered is given out again
 */
#include "tests/swap/rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SLOTS = 96,
    PAGES = 64,
    SPACES = 5,
    GENERATIONS = 1 << 20,
    KILLS = 200,
    ORDERS = 4,
    PER_ORDER = 6,
};

struct known {
    uint64_t parent;
    uint32_t slot;
    uint8_t space;
    bool acked, gone; /* gone: its end has been asked for */
    bool retired;     /* and answered */
};

struct shared {
    uint64_t flushed[SPACES + 1], flush_asked[SPACES + 1]; /* generation */
    uint64_t highest_acked;
    uint32_t checked;               /* processes that have looked at everything */
    uint32_t found, exact, corrupt; /* in all */
    uint32_t wrong;
    char what[200];
    struct known known[GENERATIONS];
};

struct live {
    uint64_t generation;
    uint32_t children;
    bool busy; /* in an order */
};

struct worker {
    struct rig *r;
    struct shared *s;
    struct rng rng;
    struct live live[SLOTS];
    uint32_t n_live;
    bool page_busy[PAGES];
    unsigned n_out;
    uint64_t flush_generation;
};

#define SURE(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            snprintf(w->s->what, sizeof w->s->what, __VA_ARGS__);                                  \
            w->s->wrong++;                                                                         \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static struct known *known(struct worker *w, uint64_t generation)
{
    SURE(generation < GENERATIONS, "generation %llu", (unsigned long long)generation);
    return &w->s->known[generation];
}

static struct live *find(struct worker *w, uint64_t generation)
{
    for (uint32_t i = 0; i < w->n_live; i++)
        if (w->live[i].generation == generation)
            return &w->live[i];
    return NULL;
}

/* ---- after a start ---- */

/* It, and all that it hangs on. */
static bool must_be_there(const struct shared *s, uint64_t generation)
{
    const struct known *k = &s->known[generation];
    return k->acked && !k->gone && generation > s->flush_asked[k->space] &&
           (!k->parent || must_be_there(s, k->parent));
}

static void look(struct worker *w)
{
    static struct written found[2 * SLOTS];
    static bool seen[GENERATIONS];
    memset(seen, 0, sizeof seen);
    rig_start_only(w->r);
    uint32_t n = rig_scan(w->r, found, 2 * SLOTS);
    SURE(n <= SLOTS, "%u records in %u slots", n, SLOTS);
    for (uint32_t i = 0; i < n; i++) {
        struct known *k = known(w, found[i].generation);
        unsigned long long g = found[i].generation;
        SURE(k->slot == found[i].slot && k->parent == found[i].parent && k->space == found[i].space,
             "generation %llu is not what was written", g);
        SURE(!k->retired, "generation %llu was retired", g);
        SURE(g > w->s->flushed[k->space], "generation %llu was flushed", g);
        SURE(!k->parent || seen[k->parent], "generation %llu came before its parent", g);
        seen[g] = true;
        enum swap_status status = rig_read(w->r, &found[i]); /* checks the bytes */
        SURE(status == SWAP_GOOD || status == SWAP_CORRUPT, "status %d", status);
        SURE(status == SWAP_GOOD || !must_be_there(w->s, g), "generation %llu is corrupt", g);
        w->s->found++;
        w->s->exact += status == SWAP_GOOD;
        w->s->corrupt += status == SWAP_CORRUPT;
        k->acked = status == SWAP_GOOD;
        k->gone = false;
        w->live[w->n_live++] = (struct live){.generation = g};
        struct live *parent = find(w, k->parent);
        if (parent)
            parent->children++;
    }
    for (uint64_t g = 1; g <= w->s->highest_acked; g++)
        SURE(seen[g] || !must_be_there(w->s, g), "generation %llu is missing",
             (unsigned long long)g);
    SURE(swap_free(w->r->sw, STORE_BLOCKS) <= swap_ready(w->r->sw, STORE_BLOCKS) - n,
         "%u free of %u, with %u in use", swap_free(w->r->sw, STORE_BLOCKS),
         swap_ready(w->r->sw, STORE_BLOCKS), n);
    for (uint64_t g = 1; g <= w->s->highest_acked; g++) /* not there: nobody asks for it again */
        if (!seen[g])
            w->s->known[g].gone = true;
    w->s->checked++;
}

/* ---- work ---- */

static void forget(struct worker *w, struct live *l)
{
    struct live *parent = find(w, known(w, l->generation)->parent);
    if (parent)
        parent->children--;
    *l = w->live[--w->n_live];
}

static struct live *some_leaf(struct worker *w)
{
    for (int tries = 0; w->n_live && tries < 20; tries++) {
        struct live *l = &w->live[rng_below(&w->rng, w->n_live)];
        if (!l->children && !l->busy)
            return l;
    }
    return NULL;
}

static uint32_t free_page(struct worker *w)
{
    uint32_t i = rng_below(&w->rng, PAGES);
    while (w->page_busy[i])
        i = (i + 1) % PAGES;
    w->page_busy[i] = true;
    return i;
}

static void submit(struct worker *w, struct swap_order *o)
{
    if (!o->n && o->kind != SWAP_FLUSH) {
        swap_order_free(w->r->sw, o);
        return;
    }
    swap_submit(w->r->sw, o);
    w->n_out++;
}

/* A chain below something that is there, or on the root. */
static void write_some(struct worker *w)
{
    struct swap_order *o = rig_order(w->r, SWAP_WRITE, STORE_BLOCKS);
    struct live *on =
        rng_below(&w->rng, 4) && w->n_live ? &w->live[rng_below(&w->rng, w->n_live)] : NULL;
    uint64_t parent = on ? on->generation : 0;
    uint8_t space = on ? known(w, parent)->space : (uint8_t)(1 + rng_below(&w->rng, SPACES));
    uint32_t first,
        n = swap_slots_take(w->r->sw, STORE_BLOCKS, 1 + rng_below(&w->rng, PER_ORDER), &first);
    for (uint32_t i = 0; i < n; i++) {
        struct swap_record *x = &o->record[o->n++];
        x->slot = first + i;
        x->record = free_page(w);
        x->generation = swap_generation(w->r->sw);
        struct known *k = known(w, x->generation);
        SURE(!k->acked, "generation %llu again", (unsigned long long)x->generation);
        *k = (struct known){.parent = parent, .slot = x->slot, .space = space};
        page_fill(w->r, STORE_BLOCKS, x->record, x->generation);
        body_fill(x, parent, space);
        w->live[w->n_live++] = (struct live){.generation = x->generation, .busy = true};
        struct live *p = find(w, parent);
        if (p)
            p->children++;
        parent = x->generation;
    }
    submit(w, o);
}

static void read_some(struct worker *w)
{
    struct swap_order *o = rig_order(w->r, SWAP_READ, STORE_BLOCKS);
    for (uint32_t i = 0; i < PER_ORDER && w->n_live; i++) {
        struct live *l = &w->live[rng_below(&w->rng, w->n_live)];
        if (l->busy)
            continue;
        l->busy = true;
        rig_add_read(o, known(w, l->generation)->slot, l->generation, free_page(w));
    }
    submit(w, o);
}

static void give_some(struct worker *w, bool retire)
{
    struct live *l = some_leaf(w);
    if (!l)
        return;
    struct known *k = known(w, l->generation);
    uint64_t generation = l->generation;
    k->gone = true;
    forget(w, l);
    if (!retire) {
        swap_slot_give(w->r->sw, STORE_BLOCKS, k->slot);
        return;
    }
    struct swap_order *o = rig_order(w->r, SWAP_RETIRE, STORE_BLOCKS);
    o->record[o->n++] = (struct swap_record){.slot = k->slot, .generation = generation};
    submit(w, o);
}

/* All of a space goes at once; what is being written or read of it goes when it comes back. */
static void flush_one(struct worker *w)
{
    uint8_t space = (uint8_t)(1 + rng_below(&w->rng, SPACES));
    struct swap_order *o = rig_order(w->r, SWAP_FLUSH, STORE_BLOCKS);
    o->generation = swap_generation(w->r->sw);
    o->space[0] = space;
    o->space[1] = ~(uint64_t)space;
    w->s->flush_asked[space] = o->generation;
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < w->n_live; i++) {
            struct live *l = &w->live[i];
            if (known(w, l->generation)->space != space || l->children || l->busy)
                continue;
            swap_slot_give(w->r->sw, STORE_BLOCKS, known(w, l->generation)->slot);
            forget(w, l);
            again = true;
            break;
        }
    }
    submit(w, o);
}

static void take_one(struct worker *w)
{
    struct swap_order *o = rig_take(w->r);
    w->n_out--;
    SURE(o->status == SWAP_GOOD || o->kind == SWAP_READ, "kind %d: status %d", o->kind, o->status);
    if (o->kind == SWAP_FLUSH)
        w->s->flushed[o->space[0]] = o->generation;
    for (uint32_t i = 0; i < o->n; i++) {
        struct swap_record *x = &o->record[i];
        struct known *k = known(w, x->generation);
        if (o->kind == SWAP_RETIRE) {
            k->retired = true;
            continue;
        }
        struct live *l = find(w, x->generation);
        SURE(l && l->busy, "an answer for nothing");
        l->busy = false;
        w->page_busy[x->record] = false;
        if (o->kind == SWAP_WRITE) {
            k->acked = true;
            if (x->generation > w->s->highest_acked)
                w->s->highest_acked = x->generation;
        } else if (x->status == SWAP_GOOD) {
            SURE(page_is(w->r, STORE_BLOCKS, x->record, x->generation), "wrong bytes");
        } else {
            SURE(x->status == SWAP_CORRUPT && !must_be_there(w->s, x->generation),
                 "generation %llu is lost", (unsigned long long)x->generation);
        }
    }
    swap_order_free(w->r->sw, o);
}

struct start {
    struct rig *r;
    struct shared *s;
    uint64_t seed;
};

static void live_and_die(struct child *me, void *arg)
{
    const struct start *start = arg;
    static struct worker it;
    struct worker *w = &it;
    *w = (struct worker){.r = start->r, .s = start->s, .rng = {start->seed}};
    look(w);
    for (;;) {
        if (w->n_out >= ORDERS) {
            take_one(w);
            continue;
        }
        uint32_t dice = rng_below(&w->rng, 100);
        if (dice < 50 && swap_free(w->r->sw, STORE_BLOCKS) > PER_ORDER)
            write_some(w);
        else if (dice < 70)
            read_some(w);
        else if (dice < 97)
            give_some(w, false);
        else if (dice == 97 && rng_below(&w->rng, 20) == 0)
            give_some(w, true);
        else if (dice == 98)
            flush_one(w);
        else if (w->n_out)
            take_one(w);
    }
}

static void run(bool uring, unsigned kills)
{
    struct rig r;
    struct rng rng = rng_seeded("crash");
    rig_init(&r, 16 << 10, PAGES, SLOTS);
    r.config.uring = uring;
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(s, MAP_FAILED);
    unsigned looked = 0;
    for (unsigned i = 0; i < kills; i++) {
        struct child c;
        uint32_t checked = s->checked;
        struct start start = {&r, s, rng_next(&rng)};
        child_start(&c, live_and_die, &start);
        bool early = rng_below(&rng, 8) == 0; /* while it opens, scans, grows */
        if (!early)
            EVENTUALLY(WAIT_MS, s->checked != checked || s->wrong);
        looked += !early;
        sleep_us(rng_below(&rng, early ? 10 * 1000 : 30 * 1000));
        ck_assert_msg(!s->wrong, "after %u kills: %s", i, s->what);
        child_kill(&c, SIGKILL);
    }
    ck_assert_uint_ge(s->checked, looked);
    fprintf(stderr, "%u found, %u exact, %u found out; generation %llu\n", s->found, s->exact,
            s->corrupt, (unsigned long long)s->highest_acked);
    ck_assert_uint_gt(s->exact, kills);
    munmap(s, sizeof *s);
    rig_deinit(&r);
}

START_TEST(kill_at_random_points)
{
    run(_i == 0, _i == 0 ? KILLS : KILLS / 4);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_crash");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, kill_at_random_points, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
