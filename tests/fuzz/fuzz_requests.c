/*
 * Hostile request regions: records, arena, indexes and wake-up word of two workers of one group,
 * which also hang up, come back and tell each other's ids, beside an honest worker.
 *
 *      struct shape | struct step, struct step, ...
 *
 * A step speaks the protocol: it names live leases, slots, spaces and keys by number, its tokens
 * are such that prefixes are shared, its places come from the shared index. Some of it is then
 * spoiled as the input says, and some steps are just garbage. Below is the disk tier of the model
 * test (trial_swap.h), which fails as the shape says. With `scribble` the request region changes
 * while the daemon reads it (scribble.c).
 */
#include "client/prefixd.h"
#include "tests/fuzz/fuzz_requests.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char fuzz_name[] = "requests";

/* ---- answers ------------------------------------------------------------------------------- */

static void learn_lease(struct scene *s, const struct wire_completion *c, struct place where,
                        uint32_t table)
{
    struct live_lease *l = NULL;
    for (int i = 0; i < LIVE_LEASES && !l; i++)
        if (s->lease[i].id == c->lease)
            l = &s->lease[i];
    if (!l)
        l = &s->lease[s->n_leases++ % LIVE_LEASES];
    if (c->op == OP_LOOKUP || c->op == OP_LOOKUP_SLOW)
        s->newest = (uint32_t)(l - s->lease);
    *l = (struct live_lease){.id = c->lease, .where = where, .table = table, .tag = c->tag};
}

static bool takes_lease(unsigned op)
{
    static const uint8_t ops[] = {OP_LOOKUP,        OP_LOOKUP_SLOW,     OP_FETCH,
                                  OP_TRUNCATE,      OP_RESERVE,         OP_INSERT,
                                  OP_RELEASE,       OP_TABLE,           OP_SNAPSHOT_RESERVE,
                                  OP_SNAPSHOT_DROP, OP_SNAPSHOT_INSERT, OP_SNAPSHOT_CANCEL};
    return memchr(ops, (int)op, sizeof ops) != NULL;
}

static void learn(struct scene *s, const struct wire_completion *c)
{
    REQUIRE_MSG(c->status >= PFX_EMISMATCH && c->status <= ANSWER_MORE, "op %u: status %d", c->op,
                c->status);
    REQUIRE_MSG(c->status < 0 || c->status == ANSWER_RETRY || !takes_lease(c->op) ||
                    house_lease(c->lease),
                "op %u of a lease that there never was: status %d", c->op, c->status);
    if (c->status < 0 && !(c->op == OP_FETCH && c->status == PFX_EIO))
        return;
    switch (c->op) {
    case OP_LOOKUP:
    case OP_LOOKUP_SLOW:
    case OP_FETCH:
        if (c->status != ANSWER_RETRY)
            learn_lease(s, c, c->lookup.where, c->lookup.where.depth);
        if (c->lookup.tier_key && c->status != ANSWER_RETRY)
            s->key[s->n_keys++ % LIVE_KEYS] = c->lookup.tier_key;
        break;
    case OP_RESERVE:
    case OP_TABLE:
    case OP_TRUNCATE:
        REQUIRE(c->op != OP_RESERVE || c->table.n <= s->h.d.n_blocks);
        learn_lease(s, c, c->table.where, c->table.table);
        break;
    case OP_INSERT:
        learn_lease(s, c, c->insert.where, c->insert.cached);
        break;
    case OP_SPACE_OPEN:
        s->space[s->n_spaces++ % LIVE_SPACES] = c->number.n;
        break;
    case OP_SNAPSHOT_RESERVE:
        REQUIRE(c->number.slot >= 1 && c->number.slot <= s->h.d.n_slots);
        s->slot_lease[s->n_slots % LIVE_SLOTS] = c->lease;
        s->slot[s->n_slots++ % LIVE_SLOTS] = c->number.slot;
        break;
    case OP_SNAPSHOT_SPILL:
        s->key[s->n_keys++ % LIVE_KEYS] = c->number.n;
        break;
    default:
        break;
    }
}

/* The tail in the completion region is the daemon's: it never lies. */
static void take_answers(struct scene *s, struct guest *g)
{
    struct wire_completion c;
    enum ring_state state;
    if (!g->open)
        return;
    while ((state = ring_peek(&g->w.in, &c)) == RING_OK) {
        ring_drop(&g->w.in);
        learn(s, &c);
    }
    REQUIRE(state == RING_NONE || g->lies);
}

/* ---- steps that are no records ----------------------------------------------------------------
 */

static void open_guest(struct scene *s, struct guest *g, unsigned number)
{
    static const uint32_t rings[] = {RING_MIN, 64, 0, RING_MIN};
    char name[16];
    snprintf(name, sizeof name, "guest%u", number);
    *g = (struct guest){0};
    g->open = guest_open(&s->h, &g->w, name, s->shape.groups & 1 ? "two" : "",
                         rings[s->shape.ring % 4], false);
    REQUIRE(g->open);
}

static void close_guest(struct scene *s, struct guest *g, bool bye)
{
    static const char packet = BYE;
    if (!g->open)
        return;
    if (bye)
        (void)send(g->w.fd, &packet, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    take_answers(s, g);
    g->open = false;
    guest_close(&s->h, &g->w);
}

static bool hung_up(const struct guest *g)
{
    char byte;
    ssize_t n;
    while ((n = recv(g->w.fd, &byte, 1, MSG_DONTWAIT)) == 1)
        continue;
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static void rounds(struct scene *s, struct guest *g);

/* More records than the ring has ends the session as soon as the daemon looks, which it does when
 * it has room for an answer. */
static void lie_of_tail(struct scene *s, struct guest *g, uint32_t tail)
{
    bool impossible = tail - shm_load(&g->w.peer->head) > g->w.welcome.ring_entries;
    shm_store_release(&g->w.words->tail, tail);
    g->w.out.tail = tail;
    bool changes = s->shape.scribble % 8 == 1 || s->shape.scribble % 8 == 2;
    for (int i = 0; impossible && !changes; i++) {
        g->deaf = 0;
        rounds(s, g);
        if (hung_up(g))
            break;
        REQUIRE_MSG(i < 100, "a worker with an impossible ring is still there");
    }
}

static void spoil_words(struct scene *s, struct guest *g, const struct step *p)
{
    struct channel_words *w = g->w.words;
    bool heads = g->lies;
    g->lies = true;
    switch (p->what % 5) {
    case 0: /* records that were there before, once more; or more than there can be */
        g->lies = heads;
        lie_of_tail(s, g, p->flags & 1 ? p->d : shm_load(&w->tail) + p->d % 8);
        break;
    case 1:
        shm_store_release(&w->head, p->flags & 1 ? p->d : shm_load(&w->head) + p->d % 8 - 4);
        break;
    case 2:
        shm_store(&w->doze, p->d);
        break;
    case 3: /* anywhere in the words, ring and the beginning of the arena */
        shm_store((uint32_t *)g->w.request.base + p->n % (64 * 1024 / 4), p->d);
        break;
    default: /* the header was for reading */
        memset(g->w.request.base, (int)p->d, 64);
        break;
    }
}

static void send_packet(const struct guest *g, const struct step *p)
{
    char bytes[300];
    memset(bytes, p->what & 1 ? WAKE : (int)p->d, sizeof bytes);
    for (uint32_t i = p->n % 32; i; i--)
        (void)send(g->w.fd, bytes, p->flags & 1 ? 1 : p->c % sizeof bytes,
                   MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* All go, a daemon of the same disk comes. */
static void restart(struct scene *s)
{
    if (s->restarts++ >= 2)
        return;
    for (int i = 0; i < GUESTS; i++)
        close_guest(s, &s->guest[i], false);
    honest_close(&s->h, &s->honest);
    scene_stop(s);
    scene_start(s);
    honest_open(&s->h, &s->honest);
    for (unsigned i = 0; i < GUESTS; i++)
        open_guest(s, &s->guest[i], i);
}

static void other_step(struct scene *s, struct guest *g, const struct step *p)
{
    switch (p->op) {
    case STEP_WORDS:
        spoil_words(s, g, p);
        break;
    case STEP_ARENA:
        for (uint32_t i = 0; i < p->n % 256; i++)
            shm_store((uint32_t *)(void *)g->w.arena + (p->at + i) % (ARENA_MIN / 4),
                      p->d + i * p->c);
        break;
    case STEP_ROUNDS:
        for (uint32_t i = 0; i < p->n % 32; i++)
            house_round(&s->h);
        break;
    case STEP_WAIT:
        house_wait(p->n % 1000 * 1000000ull);
        break;
    case STEP_PACKET:
        send_packet(g, p);
        break;
    case STEP_CLOSE:
        close_guest(s, g, p->flags & 1);
        break;
    case STEP_LOOK:
        honest_look(&s->h, &s->honest);
        break;
    case STEP_AUDIT:
        house_audit(&s->h);
        break;
    case STEP_DEAF: /* its answers stay where they are until the end of the step after next */
        g->deaf = p->n % 16;
        break;
    case STEP_RESTART:
        restart(s);
        break;
    default:
        break;
    }
}

/* ---- an input -----------------------------------------------------------------------------------
 */

static void rounds(struct scene *s, struct guest *g)
{
    scribble_begin(s, g);
    house_round(&s->h);
    scribble_end(s, g);
    for (int i = 0; i < GUESTS; i++)
        if (s->guest[i].deaf)
            s->guest[i].deaf--;
        else
            take_answers(s, &s->guest[i]);
}

static void post(struct scene *s, struct guest *g, const struct step *p)
{
    struct request rq = step_record(s, g, p);
    if (p->who & 4) /* one word of it is something else */
        ((uint32_t *)(void *)&rq)[p->c % 16] = p->d;
    rq.tag = ++g->w.tag;
    (void)raw_post(&g->w, &rq);
}

/* One record of several, answered before the next if it does not wait for the disk for long. */
static void part(struct scene *s, struct guest *g, struct step p, uint8_t op)
{
    p.op = op;
    p.who &= 1;
    if (!g->open)
        return;
    post(s, g, &p);
    for (uint32_t i = 0; i < 1 + (op == OP_LOOKUP_SLOW ? 6u : 0); i++)
        rounds(s, g);
    if (g->open && hung_up(g))
        close_guest(s, g, false);
}

static void store(struct scene *s, struct guest *g, const struct step *p)
{
    struct step q = *p;
    q.flags = (uint16_t)((p->flags & 0xf000) | RF_LAST | RF_FETCH);
    part(s, g, q, OP_LOOKUP_SLOW);
    q.lease = (uint8_t)s->newest;
    q.n = (uint16_t)(step_length(p) / s->bt + 1 - s->lease[s->newest].where.depth);
    part(s, g, q, OP_RESERVE);
    q.n = p->n;
    q.flags = (uint16_t)((p->flags & 0xf000) | 0x800 | RF_LAST | (p->flags & RF_FINAL));
    part(s, g, q, OP_INSERT);
    for (uint32_t i = 0; i < (p->c >> 4 & 3); i++) {
        part(s, g, q, OP_SNAPSHOT_RESERVE);
        q.what = (uint8_t)(s->n_slots - 1);
        q.c = p->c + i;
        part(s, g, q, OP_SNAPSHOT_INSERT);
    }
    if (p->flags & 0x100)
        part(s, g, q, OP_RELEASE);
}

static void find(struct scene *s, struct guest *g, const struct step *p)
{
    struct step q = *p;
    q.flags = (uint16_t)((p->flags & 0xf000) | RF_LAST | (p->flags & RF_FETCH));
    part(s, g, q, p->flags & 0x200 ? OP_LOOKUP_SLOW : OP_LOOKUP);
    q.lease = (uint8_t)s->newest;
    if (p->flags & 0x400)
        part(s, g, q, OP_FETCH);
    if (p->flags & 0x100)
        part(s, g, q, OP_RELEASE);
}

static void do_step(struct scene *s, const struct step *p)
{
    struct guest *g = &s->guest[p->who & 1];
    if (g->open && hung_up(g))
        close_guest(s, g, false);
    if (!g->open)
        open_guest(s, g, p->who & 1);
    if (p->op == STEP_STORE)
        store(s, g, p);
    else if (p->op == STEP_FIND)
        find(s, g, p);
    else if (p->op >= STEP_FIRST)
        other_step(s, g, p);
    else
        post(s, g, p);
    if (!(p->who & 8)) /* else the next comes with it */
        rounds(s, g);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    static struct scene s;
    struct step p;
    memset(&s, 0, sizeof s);
    if (n >= sizeof s.shape)
        memcpy(&s.shape, bytes, sizeof s.shape);
    scene_open(&s);
    scene_start(&s);
    honest_open(&s.h, &s.honest);
    for (unsigned i = 0; i < GUESTS; i++)
        open_guest(&s, &s.guest[i], i);
    for (size_t at = sizeof s.shape; at + sizeof p <= n && s.steps < STEPS_MOST; at += sizeof p) {
        memcpy(&p, bytes + at, sizeof p);
        do_step(&s, &p);
        if (++s.steps % 8 == 0)
            honest_look(&s.h, &s.honest);
        if (s.steps % 4 == 0)
            house_audit(&s.h);
    }
    honest_look(&s.h, &s.honest);
    house_audit(&s.h);
    for (unsigned i = 0; i < GUESTS; i++)
        close_guest(&s, &s.guest[i], (s.shape.groups >> (1 + i)) & 1);
    house_audit(&s.h);
    honest_work(&s.h, &s.honest);
    honest_close(&s.h, &s.honest);
    scene_stop(&s);
    scene_close(&s);
}
