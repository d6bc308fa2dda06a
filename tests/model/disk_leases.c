/* Operations on leases: lookups, fetches, reserves, inserts, and their ends. */
#include "tests/model/disk_run.h"
#include "shm/status.h"

#include <string.h>

/* ---- leases ------------------------------------------------------------------------------ */

struct lease *run_lease_of(const struct disk_run *r, const struct run_lease *l)
{
    const struct leases *all = &r->x->d.leases;
    uint32_t slot = (uint32_t)l->id;
    struct lease *found = slot < all->top ? all->slot[slot] : NULL;
    return found && found->id == l->id ? found : NULL;
}

static int unused_lease(const struct disk_run *r)
{
    for (int i = 0; i < RUN_LEASES; i++)
        if (!r->lease[i].used)
            return i;
    return -1;
}

/* One of this connection's group; mostly one that nobody waits for. */
int run_some_lease(struct disk_run *r, int conn)
{
    int n = 0, pick[RUN_LEASES];
    for (int i = 0; i < RUN_LEASES; i++) {
        bool awaited = false;
        for (int c = 0; c < RUN_CONNS; c++)
            awaited |= r->conn[c].busy && r->conn[c].lease == i;
        if (r->lease[i].used && !r->lease[i].secret && r->lease[i].group == r->conn[conn].group &&
            (!awaited || one_in(r, 8)))
            pick[n++] = i;
    }
    return n ? pick[dice(r, (uint32_t)n)] : -1;
}

static void text_set(struct disk_run *r, struct run_lease *l, const struct text *t)
{
    l->text = *t;
    text_words(t, l->space, l->lives.last, l->text_word);
}

struct run_lease *run_lease_named(struct disk_run *r, uint64_t id)
{
    for (int i = 0; i < RUN_LEASES; i++)
        if (r->lease[i].used && r->lease[i].id == id)
            return &r->lease[i];
    return NULL;
}

static uint64_t pages_to_have(const struct disk_run *r)
{
    return (uint64_t)r->x->d.pool.n_free + index_idle(r->x->d.index);
}

/* ---- lookup ------------------------------------------------------------------------------- */

static struct pfx_lookup_args args_of(struct disk_run *r, const struct run_lease *l, uint32_t flags)
{
    struct pfx_lookup_args a = {.size = sizeof a,
                                .flags = flags,
                                .space = r->number[l->space],
                                .session = l->session,
                                .tokens = l->asked.token,
                                .n_tokens = l->asked.n,
                                .extras = l->asked.n_extras ? l->asked.extra : NULL,
                                .n_extras = l->asked.n_extras,
                                .max_match = one_in(r, 4) ? dice(r, l->asked.n + 2) : l->asked.n};
    if (one_in(r, 10))
        a.match_multiple = 1 + dice(r, 2 * r->shape.block_tokens);
    if (one_in(r, 10))
        a.snapshot_multiple = 1 + dice(r, 4);
    return a;
}

/* What must match, of what nobody could lose. */
static uint32_t expected(const struct disk_run *r, const struct run_lease *l,
                         const struct pfx_lookup_args *a)
{
    uint64_t bt = r->shape.block_tokens, most = a->max_match ? a->max_match : a->n_tokens - 1;
    uint32_t n = 0, step = 1;
    most = most < a->n_tokens ? most : a->n_tokens;
    while ((n + 1) * bt <= most && words_has(&r->present, l->asked_word[(n + 1) * bt - 1]))
        n++;
    while (a->match_multiple && step * bt % a->match_multiple)
        step++;
    return n / step * step;
}

static int open_space(struct disk_run *r, int conn)
{
    int s = (int)dice(r, r->shape.n_spaces);
    return r->conn[conn].opens[s] && !one_in(r, 3) ? s : 0;
}

static uint32_t times_seen(const struct disk_run *r, uint64_t word)
{
    uint32_t n = 0;
    while (n < ADMIT_MOST && words_has(&r->seen[n], word))
        n++;
    return n;
}

/* Blocks [first, end) of this text have been seen once more; and those before each as often. */
static void seen_again(struct disk_run *r, const struct run_lease *l, const struct text *t,
                       uint32_t first, uint32_t end)
{
    uint32_t bt = r->shape.block_tokens;
    uint64_t word[TEXT_MAX];
    for (uint64_t life = l->lives.first; r->shape.admit > 1 && life <= l->lives.last; life++) {
        uint32_t least = 0;
        text_words(t, l->space, life, word);
        for (uint32_t d = end; d-- > 0;) {
            uint64_t last = word[(d + 1) * bt - 1];
            uint32_t before = times_seen(r, last), now = before + (d >= first);
            least = now > least ? now : least;
            for (uint32_t n = before; n < least && n < ADMIT_MOST; n++)
                words_add(&r->seen[n], last);
        }
    }
}

void run_look_for_matches(struct disk_run *r, int conn)
{
    const struct run_conn *c = &r->conn[conn];
    if (c->lease < 0 || (c->op != OP_LOOKUP && c->op != OP_LOOKUP_SLOW))
        return;
    struct run_lease *l = &r->lease[c->lease];
    const struct lease *real = l->used ? run_lease_of(r, l) : NULL;
    if (!real)
        return;
    l->tail_first = real->path.where.depth * r->shape.block_tokens;
    if (l->quiet || real->path.where.depth <= l->seen)
        return;
    seen_again(r, l, &l->asked, l->seen, real->path.where.depth);
    l->seen = real->path.where.depth;
}

void do_lookup(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    int i = unused_lease(r);
    if (i < 0)
        return;
    struct run_lease *l = &r->lease[i];
    *l = (struct run_lease){.group = c->group, .space = open_space(r, conn)};
    l->lives = r->lives[l->space];
    l->asked = text_recent(r);
    if (l->asked.n == 0)
        return;
    text_words(&l->asked, l->space, l->lives.last, l->asked_word);
    text_set(r, l, &l->asked);
    uint32_t flags = (one_in(r, 3) ? 0 : PFX_FETCH) | (one_in(r, 10) ? PFX_QUIET : 0) |
                     (one_in(r, 10) ? PFX_NO_TAIL : 0);
    l->quiet = flags & PFX_QUIET;
    l->session = dice(r, 4);
    struct pfx_lookup_args a = args_of(r, l, flags);
    struct request rq;
    if (!local_request(r->x, conn, &a, &rq))
        return;
    c->lease = i;
    c->flags = flags;
    c->bounded = r->shape.whole && !run_scanning(r) && l->lives.first == l->lives.last;
    c->expected = c->bounded ? expected(r, l, &a) : 0;
    c->quiet = one_in(r, 2) && run_alone(r, conn) && r->shape.whole;
    c->fits = c->bounded &&
              2 * c->expected < pages_to_have(r); /* what it matches is held, and no page to have */
    run_ask(r, conn, &rq);
}

void lookup_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out)
{
    struct run_lease *l = &r->lease[c->lease];
    uint32_t bt = r->shape.block_tokens, depth = out->lookup.where.depth;
    if (out->status) {
        REQUIRE(!l->used);
        REQUIRE_EQ(out->status, STATUS_ENOSPC);
        return;
    }
    l->used = true;
    l->secret = false;
    l->id = out->lease;
    run_look_for_matches(r, (int)(c - r->conn));
    check_offers(r, l, &out->lookup);
    REQUIRE(depth * bt + out->lookup.tail_tokens <= l->asked.n);
    for (uint32_t i = 0; i < depth; i++) {
        bool published = words_has(&r->published, l->asked_word[(i + 1) * bt - 1]);
        for (uint64_t life = l->lives.first; !published && life < l->lives.last; life++) {
            uint64_t word[TEXT_MAX];
            text_words(&l->asked, l->space, life, word);
            published = words_has(&r->published, word[(i + 1) * bt - 1]);
        }
        REQUIRE_MSG(published, "block %u of a match was never inserted", i);
    }
    REQUIRE_MSG(!c->bounded || depth >= c->expected, "%u blocks match, and %u must be there", depth,
                c->expected);
    struct lease *real = run_lease_of(r, l);
    uint32_t absent = index_absent(r->x->d.index, real->path.where);
    r->seen_disk_hits += absent > 0;
    if (c->flags & PFX_FETCH && c->quiet && c->fits)
        REQUIRE_EQ(absent, 0);
}

/* ---- fetch -------------------------------------------------------------------------------- */

void do_fetch(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    struct lease *l = run_lease_of(r, &r->lease[i]);
    uint32_t absent = index_absent(r->x->d.index, l->path.where);
    c->lease = i;
    c->lease_id = r->lease[i].id;
    c->quiet = one_in(r, 2) && run_alone(r, conn);
    c->fits = absent <= pages_to_have(r) && !l->tiered;
    run_ask(r, conn, &(struct request){.op = OP_FETCH, .lease = c->lease_id});
}

void fetch_answered(struct disk_run *r, struct run_conn *c, const struct wire_completion *out)
{
    struct run_lease *mine = run_lease_named(r, c->lease_id);
    struct lease *l = mine ? run_lease_of(r, mine) : NULL;
    uint32_t absent = l ? index_absent(r->x->d.index, l->path.where) : 0;
    /* a kill may leave half a payload below the header of one that was given up */
    bool faults =
        trial_counts(r->disk, STORE_BLOCKS).faults > 0 || (!r->shape.whole && r->restarts);
    switch (out->status) {
    case 0:
    case STATUS_EIO:
        REQUIRE(l != NULL);
        REQUIRE_EQ(absent, 0); /* what could not be read was cut off */
        REQUIRE(out->status == 0 || faults);
        r->seen_fetched += out->status == 0;
        r->seen_lost += out->status == STATUS_EIO;
        break;
    case STATUS_ENOSPC:
        REQUIRE(!c->quiet || !c->fits);
        break;
    default:
        REQUIRE_EQ(out->status, STATUS_ESTALE);
        REQUIRE(!c->quiet || !l || lease_is_stale(&r->x->d, l));
    }
}

/* ---- reserve, insert, truncate, release ------------------------------------------------------ */

static void page_put(struct disk_run *r, uint32_t page, const uint64_t *word, uint32_t n)
{
    for (uint32_t i = 0; i < RUN_BT; i++)
        r->shadow[page][i] = r->page[page][i] = i < n ? word[i] : rng_next(&r->rng);
}

void do_reserve(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    uint32_t n = one_in(r, 20) ? dice(r, r->shape.n_blocks + 2) : 1 + dice(r, 5);
    struct lease *l = run_lease_of(r, &r->lease[i]);
    if (lease_table(l) + n > TEXT_MAX)
        return;
    c->lease = i;
    c->lease_id = r->lease[i].id;
    c->wanted = n;
    c->quiet = one_in(r, 2) && run_alone(r, conn);
    c->fits = n <= pages_to_have(r);
    struct request rq = {.op = OP_RESERVE, .lease = c->lease_id, .reserve = {.n = n, .room = n}};
    run_ask(r, conn, &rq);
}

void reserve_answered(struct disk_run *r, struct run_conn *c, int conn,
                      const struct wire_completion *out)
{
    const uint32_t *ids = (const uint32_t *)(const void *)r->x->session[conn]->completion_arena;
    struct run_lease *mine = run_lease_named(r, c->lease_id);
    struct lease *l = mine ? run_lease_of(r, mine) : NULL;
    switch (out->status) {
    case 0:
        REQUIRE(l && l->n_pages >= c->wanted && out->table.n == c->wanted);
        for (uint32_t i = 0; i < c->wanted; i++) { /* who has it may write to it at once */
            REQUIRE_EQ(l->pages[l->n_pages - c->wanted + i], ids[i]);
            page_put(r, ids[i], NULL, 0);
        }
        break;
    case STATUS_ENOSPC:
        REQUIRE(!c->quiet || !c->fits);
        break;
    case STATUS_ETOOBIG:
        REQUIRE(c->wanted > r->shape.n_blocks);
        break;
    case STATUS_ECONFLICT:
        REQUIRE(!c->quiet || l->final || index_absent(r->x->d.index, l->path.where));
        break;
    default:
        REQUIRE_EQ(out->status, STATUS_ESTALE);
        REQUIRE(!c->quiet || !l || lease_is_stale(&r->x->d, l));
    }
}

/* What the lease knows of its text, and something after it, as long as its table or so. */
static struct text written(struct disk_run *r, const struct run_lease *mine, const struct lease *l)
{
    uint32_t bt = r->shape.block_tokens, held = l->path.where.depth * bt, n = lease_table(l) * bt;
    struct text t = mine->text;
    if (one_in(r, 3) && t.n > held)
        text_cut(&t, held + dice(r, t.n - held + 1));
    n -= n > held && one_in(r, 3) ? dice(r, n - held) : 0;
    text_cut(&t, n + 1);
    if (t.n < n)
        text_grow(r, &t, n);
    return t;
}

static void write_pages(struct disk_run *r, struct run_lease *mine, const struct lease *l)
{
    uint32_t bt = r->shape.block_tokens, n = mine->text.n;
    for (uint32_t p = l->path.where.depth; p < lease_table(l) && p * bt < n; p++) {
        uint32_t page = l->pages[p - l->matched];
        if (!(page & LEASE_PUBLISHED))
            page_put(r, page, mine->text_word + p * bt, n - p * bt < bt ? n - p * bt : bt);
    }
}

static void inserted(struct disk_run *r, const struct run_lease *mine, uint32_t from,
                     const struct lease *l)
{
    uint32_t bt = r->shape.block_tokens;
    seen_again(r, mine, &mine->text, mine->quiet ? 0 : l->matched, l->path.where.depth);
    for (uint32_t d = from; d < l->path.where.depth; d++) {
        words_add(&r->published, mine->text_word[(d + 1) * bt - 1]);
        words_add(&r->present, mine->text_word[(d + 1) * bt - 1]);
    }
}

/* A lease that is final, or from before a flush, is not asked to write something else. */
void do_insert(struct disk_run *r, int conn)
{
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    struct run_lease *mine = &r->lease[i];
    struct lease *l = run_lease_of(r, mine);
    bool stale = lease_is_stale(&r->x->d, l);
    if (!l->final && !stale) {
        struct text t = written(r, mine, l);
        text_set(r, mine, &t);
        write_pages(r, mine, l);
        r->recent[dice(r, RECENT)] = t;
    }
    struct pfx_insert_args a = {.size = sizeof a,
                                .flags = one_in(r, 6) ? PFX_FINAL : 0,
                                .tokens = mine->text.token,
                                .n_written = mine->text.n,
                                .extras = mine->text.n_extras ? mine->text.extra : NULL,
                                .n_extras = mine->text.n_extras};
    uint32_t ids[TEXT_MAX], from = l->path.where.depth, partial = l->partial.where.depth;
    bool final = l->final;
    struct pfx_insert_result out = {.size = sizeof out};
    int status = r->b.insert(r->x, conn, mine->id, &a, ids, &out);
    if (stale || final) {
        REQUIRE(status == (stale ? STATUS_ESTALE : 0) || (final && status == STATUS_ECONFLICT));
    } else {
        REQUIRE_EQ(status, 0);
        inserted(r, mine, from, l);
        mine->written = mine->text.n;
        bool ended = l->partial.where.depth != partial &&
                     l->pages[l->path.where.depth - l->matched] & LEASE_PUBLISHED;
        r->inserted += out.new_blocks - ended;
    }
    check_step(r);
}

void do_truncate(struct disk_run *r, int conn)
{
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    struct lease *l = run_lease_of(r, &r->lease[i]);
    uint32_t n = lease_table(l), absent = index_absent(r->x->d.index, l->path.where);
    n = absent ? l->path.where.depth - absent : dice(r, n + 1);
    bool stale = lease_is_stale(&r->x->d, l), short_of = n < l->inserted;
    int status = r->b.truncate(r->x, conn, r->lease[i].id, n);
    REQUIRE_EQ(status, stale ? STATUS_ESTALE : short_of ? STATUS_ECONFLICT : 0);
    if (status == 0)
        r->lease[i].written = 0;
    check_step(r);
}

void do_release(struct disk_run *r, int conn)
{
    int i = run_some_lease(r, conn);
    if (i < 0)
        return;
    r->lease[i].used = false;
    REQUIRE_EQ(r->b.release(r->x, conn, r->lease[i].id), 0);
    check_step(r);
}
