/*
 * One request: lookup, compare, fetch, cut, reserve, fill, insert, compare again, release. Each
 * step may be left away or repeated, and the worker may end between any two of them (at_point).
 */
#include "tests/chaos/worker.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESERVE_TRIES = 3, SLIDE = 6 /* requests from which on the window moves by one prompt */ };

void hand_clear(struct hand *h)
{
    struct text text = h->text;
    *h = (struct hand){.text = text};
}

static uint32_t blocks_of(const struct actor *w, uint32_t n_tokens)
{
    return (n_tokens + w->bt - 1) / w->bt;
}

/* ---- what is asked for ------------------------------------------------------------------- */

void request_draw(struct actor *w, struct hand *h)
{
    struct dice *d = &w->dice;
    size_t n = w->cast->work->n_prompts;
    uint32_t most = w->plan->blocks / 4 * w->plan->block_tokens;
    hand_clear(h);
    h->prompt = (w->plan->first + w->begun / SLIDE + dice_below(d, w->plan->window)) % n;
    h->variant = dice_one_in(d, 6);
    h->space = dice_one_in(d, 2) ? 0 : dice_below(d, SPACES);
    h->session = dice_one_in(d, 3) ? 0 : h->prompt % 16 + 1;
    most = dice_one_in(d, 2) ? most : dice_between(d, 1, most);
    text_make(&h->text, w->plan, w->cast->work, h->prompt, h->variant, most);
    h->version = shm_load_acquire(&w->stage->flush_done[h->space]);
    text_key(&h->text, h->space, h->version);
}

struct pfx_lookup_args request_lookup(struct actor *w, struct hand *h)
{
    static const uint32_t flags[] = {
        0, 0, 0, PFX_FETCH, PFX_FETCH, PFX_FETCH, PFX_FETCH | PFX_NO_TAIL, PFX_QUIET, PFX_NO_MATCH};
    struct pfx_lookup_args args = {.size = sizeof args,
                                   .flags = flags[dice_below(&w->dice, 9)],
                                   .space = w->space[h->space],
                                   .session = h->session,
                                   .tokens = h->text.token,
                                   .n_tokens = h->text.n,
                                   .extras = h->text.extra,
                                   .n_extras = h->text.n_extras};
    if (dice_one_in(&w->dice, 2))
        args.max_match = h->text.n;
    if (dice_one_in(&w->dice, 12))
        args.match_multiple = w->bt * 2;
    if (dice_one_in(&w->dice, 12))
        args.snapshot_multiple = w->bt;
    return args;
}

/* ---- what came is compared ----------------------------------------------------------------- */

void verify_block(struct actor *w, const struct hand *h, uint32_t block, uint32_t at, uint32_t n,
                  const char *where)
{
    struct difference x = page_compare(w->c, block, &h->text, at, n);
    tally_add(&w->seat->tally.verified_blocks, 1);
    if (x.word < 0)
        return;
    tally_add(&w->seat->tally.corrupt_blocks, 1);
    stage_find(
        w->stage,
        "worker %u (process %d): block %u, %s of prompt %zu in space %u (flushed %llu times), "
        "token %u, word %lld on device %u: 0x%016llx was expected, 0x%016llx is there",
        w->cast->seat, (int)getpid(), block, where, h->prompt, h->space,
        (unsigned long long)h->version, x.token, (long long)x.word, x.device,
        (unsigned long long)x.expected, (unsigned long long)x.found);
}

static uint32_t tokens_at(const struct actor *w, const struct hand *h, uint32_t position)
{
    uint32_t left = h->text.n - position * w->bt;
    return left < w->bt ? left : w->bt;
}

void request_verify(struct actor *w, const struct hand *h)
{
    if (h->unsure)
        return;
    for (uint32_t i = 0; i < h->n_right; i++)
        if (h->table[i] != PFX_NO_BLOCK)
            verify_block(w, h, h->table[i], i * w->bt, tokens_at(w, h, i),
                         i < h->n_matched ? "matched" : "its own");
    if (h->tail_tokens)
        verify_block(w, h, h->tail_block, h->n_matched * w->bt, h->tail_tokens, "the tail");
    state_verify(w, h);
}

static void check_match(struct actor *w, const struct hand *h, const struct pfx_lookup_args *args,
                        const struct pfx_match *m)
{
    size_t most = args->max_match ? args->max_match : args->n_tokens - 1;
    uint32_t reach = m->matched_tokens + m->tail_tokens;
    EXPECT(w, m->n_blocks * w->bt == m->matched_tokens && m->n_resident <= m->n_blocks,
           "%u tokens matched, %u blocks, %u of them resident", m->matched_tokens, m->n_blocks,
           m->n_resident);
    EXPECT(w, reach <= most && m->tail_tokens < w->bt, "%u and %u tokens matched, and %zu may be",
           m->matched_tokens, m->tail_tokens, most);
    EXPECT(w, m->snapshot.depth <= reach && m->snapshot.tier_depth <= reach,
           "states at %u and %u, beyond the %u that matched", m->snapshot.depth,
           m->snapshot.tier_depth, reach);
    EXPECT(w, !(args->flags & PFX_NO_MATCH) || m->n_blocks == 0, "PFX_NO_MATCH matched");
    EXPECT(w, (m->tail_block == PFX_NO_BLOCK) == (m->tail_tokens == 0), "half a tail");
}

static void take_match(struct hand *h, const struct pfx_match *m)
{
    h->lease = m->lease;
    h->n_table = h->n_right = h->n_matched = m->n_blocks < TABLE_MAX ? m->n_blocks : TABLE_MAX;
    for (uint32_t i = 0; i < h->n_table; i++)
        h->table[i] = m->blocks[i];
    h->tail_block = m->tail_block;
    h->tail_tokens = m->tail_tokens;
    h->state = m->snapshot;
    h->known = m->matched_tokens + m->tail_tokens;
}

/* Keep so many positions. */
static bool cut_at(struct actor *w, struct hand *h, uint32_t n)
{
    if (CALL(w, "pfx_truncate", stale_of(w, h), pfx_truncate(w->c, h->lease, n)) < 0)
        return false;
    if (n < h->n_table) {
        h->tail_tokens = 0;
        if (h->state.depth > n * w->bt)
            h->state = (struct pfx_snapshot_ref){.slot = PFX_NO_SLOT};
        h->known = n * w->bt < h->known ? n * w->bt : h->known;
    }
    h->n_table = n;
    h->n_right = h->n_right < n ? h->n_right : n;
    h->n_matched = h->n_matched < n ? h->n_matched : n;
    return true;
}

/* Bring what is on disk, mostly; else go on with what is here. */
static void fetch(struct actor *w, struct hand *h, struct pfx_match *m)
{
    bool state = m->snapshot.tier_depth > m->snapshot.depth;
    if (m->n_resident == m->n_blocks && !(state && dice_one_in(&w->dice, 2)))
        return;
    uint32_t before = m->n_blocks - m->n_resident;
    if (!dice_one_in(&w->dice, 4)) {
        int rc = CALL(w, "pfx_fetch", ERROR(PFX_ENOSPC) | ERROR(PFX_EIO) | stale_of(w, h),
                      pfx_fetch(w->c, h->lease, m));
        if (rc == 0 || rc == PFX_EIO)
            take_match(h, m);
        if (rc == 0)
            tally_add(&w->seat->tally.disk_hits, before);
    }
    if (!w->gone && m->n_resident < m->n_blocks)
        cut_at(w, h, m->n_resident);
}

bool request_matched(struct actor *w, struct hand *h, const struct pfx_lookup_args *args,
                     struct pfx_match *m, uint64_t before)
{
    h->unsure = shm_load_acquire(&w->stage->flush_begun[h->space]) != before;
    check_match(w, h, args, m);
    take_match(h, m);
    tally_add(&w->seat->tally.hits, m->n_blocks != 0);
    request_verify(w, h);
    at_point(w, POINT_LOOKUP);
    fetch(w, h, m);
    if (w->gone)
        return false;
    request_verify(w, h);
    if (!h->unsure)
        return true;
    request_end(w, h);
    return false;
}

/* ---- what lacks is added --------------------------------------------------------------------- */

uint32_t request_wish(struct actor *w, const struct hand *h)
{
    uint32_t whole = blocks_of(w, h->text.n), n = whole - h->n_table;
    return n && dice_one_in(&w->dice, 4) ? dice_between(&w->dice, 1, n) : n;
}

void request_reserved(struct actor *w, struct hand *h, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool twice = false;
        for (uint32_t k = 0; k < h->n_table; k++)
            twice |= h->table[k] == ids[i];
        EXPECT(w, ids[i] >= 1 && ids[i] <= w->plan->blocks && !twice,
               "reserve gave block %u of %u%s", ids[i], w->plan->blocks,
               twice ? ", which the lease has already" : "");
        h->table[h->n_table++] = ids[i];
    }
}

/* False: there is no room. */
static bool reserve(struct actor *w, struct hand *h)
{
    uint32_t ids[TABLE_MAX], n = request_wish(w, h);
    for (int tries = 0; n && tries < RESERVE_TRIES && !w->gone; tries++) {
        int rc = CALL(w, "pfx_reserve", ERROR(PFX_ENOSPC) | stale_of(w, h),
                      pfx_reserve(w->c, h->lease, n, ids));
        if (rc == 0) {
            request_reserved(w, h, ids, n);
            at_point(w, POINT_RESERVE);
            return !w->gone;
        }
        if (rc != PFX_ENOSPC)
            return false;
        n = (n + 1) / 2;
        nap_us(dice_below(&w->dice, 3000));
    }
    return n == 0 && !w->gone;
}

void request_fill(struct actor *w, struct hand *h)
{
    while (h->n_right < h->n_table) {
        uint32_t i = h->n_right;
        page_write(w->c, h->table[i], &h->text, i * w->bt, tokens_at(w, h, i));
        h->n_right++;
        if (h->n_right == h->n_table - (h->n_table - h->n_matched) / 2)
            at_point(w, POINT_FILL);
        if (w->cut)
            return; /* pages are not ours any more */
    }
    if (dice_one_in(&w->dice, 4))
        nap_us(dice_below(&w->dice, 2000));
    request_verify(w, h); /* nobody else has written there */
}

static bool picture_starts(const struct text *t, uint32_t at)
{
    bool starts = false;
    for (uint32_t i = 0; i < t->n_extras; i++)
        starts |= t->extra[i].at == at;
    return starts;
}

void request_inserted(struct actor *w, struct hand *h, uint32_t n_written, uint32_t flags,
                      const struct pfx_insert_result *r)
{
    uint32_t cached = n_written / w->bt;
    /* A partly filled block is cached up to the first picture that starts in it. */
    if (flags & PFX_FINAL && n_written % w->bt && !picture_starts(&h->text, cached * w->bt))
        cached++;
    EXPECT(w, r->cached_blocks == cached && r->new_blocks + r->duplicate_blocks <= cached,
           "an insert of %u tokens: %u blocks cached, %u new, %u duplicates", n_written,
           r->cached_blocks, r->new_blocks, r->duplicate_blocks);
    h->final = flags & PFX_FINAL;
    h->n_inserted = n_written > h->n_inserted ? n_written : h->n_inserted;
    h->known = n_written > h->known ? n_written : h->known;
}

void request_insert(struct actor *w, struct hand *h, uint32_t n_written, uint32_t flags)
{
    uint32_t canonical[TABLE_MAX];
    bool look = dice_one_in(&w->dice, 3);
    struct pfx_insert_args args = {.size = sizeof args,
                                   .flags = flags,
                                   .tokens = h->text.token,
                                   .n_written = n_written,
                                   .extras = h->text.extra,
                                   .n_extras = h->text.n_extras};
    struct pfx_insert_result r = {.size = sizeof r};
    if (CALL(w, "pfx_insert", stale_of(w, h),
             pfx_insert(w->c, h->lease, &args, look ? canonical : NULL, &r)) < 0)
        return;
    request_inserted(w, h, n_written, flags, &r);
    for (uint32_t i = 0; look && i < n_written / w->bt; i++)
        verify_block(w, h, canonical[i], i * w->bt, w->bt, "canonical");
}

/* In some pieces, the last of them perhaps final. */
static void publish(struct actor *w, struct hand *h)
{
    uint32_t room = h->n_table * w->bt, whole = room < h->text.n ? room : h->text.n;
    uint32_t from = h->n_matched * w->bt;
    if (whole <= from)
        return;
    if (dice_one_in(&w->dice, 4))
        request_insert(w, h, dice_between(&w->dice, from, whole), 0);
    if (w->gone)
        return;
    bool final = whole == h->text.n && dice_one_in(&w->dice, 3);
    request_insert(w, h, whole, final ? PFX_FINAL : 0);
    if (!w->gone && dice_one_in(&w->dice, 12)) /* again: changes nothing */
        request_insert(w, h, whole, final ? PFX_FINAL : 0);
    at_point(w, POINT_INSERT);
}

/* ---- from the start to the end -----------------------------------------------------------------
 */

void request_begin(struct actor *w, struct hand *h)
{
    request_draw(w, h);
    struct pfx_lookup_args args = request_lookup(w, h);
    struct pfx_match m = {.size = sizeof m};
    w->begun++;
    if (CALL(w, "pfx_lookup", crowded(w), pfx_lookup(w->c, &args, &m)) < 0)
        return;
    if (!request_matched(w, h, &args, &m, h->version))
        return;
    if (h->state.depth && dice_one_in(&w->dice, 2))
        state_use(w, h);
    else if (dice_one_in(&w->dice, 8) && h->n_table)
        cut_at(w, h, dice_below(&w->dice, h->n_table + 1));
    if (w->gone || dice_one_in(&w->dice, 8)) /* only looked */
        return;
    if (!reserve(w, h)) {
        if (!w->gone)
            request_end(w, h);
        return;
    }
    if (mate_exists(w) && dice_one_in(&w->dice, 4) && mate_offer(w, h))
        return;
    request_fill(w, h);
    if (!w->gone && !w->cut && dice_one_in(&w->dice, 6)) {
        flight_end(w, h);
        return;
    }
    if (!w->gone)
        publish(w, h);
    if (!w->gone && w->plan->slots && dice_one_in(&w->dice, 2))
        state_keep(w, h);
}

void request_end(struct actor *w, struct hand *h)
{
    request_verify(w, h);
    CALL(w, "pfx_release", 0, pfx_release(w->c, h->lease));
    tally_add(&w->seat->tally.requests, 1);
    hand_clear(h);
}
