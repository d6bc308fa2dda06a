#include "tests/states.h"

#include "daemon/disk.h"

#include <stdio.h>
#include <string.h>

/* Nothing is spilled before. */
static void scan_over(struct host *h)
{
    struct worker w;
    worker_open(&w, h, NULL);
    EVENTUALLY(20000, counters(&w).disk_scan_done);
    worker_close(&w);
}

void host_states(struct host *h, unsigned n_blocks, unsigned bt, unsigned n_slots, unsigned n_tier)
{
    char blocks[16], tokens[16], slots[16], bytes[16], swap[16];
    snprintf(blocks, sizeof blocks, "%u", n_blocks);
    snprintf(tokens, sizeof tokens, "%u", bt);
    snprintf(slots, sizeof slots, "%u", n_slots);
    snprintf(bytes, sizeof bytes, "%d", STATE_BYTES);
    const char *options[] = {"--blocks",
                             blocks,
                             "--block-tokens",
                             tokens,
                             "--block-bytes",
                             "64",
                             "--snapshots",
                             slots,
                             "--snapshot-bytes",
                             bytes,
                             "--snapshot-swap",
                             swap,
                             NULL,
                             NULL,
                             NULL};
    if (on_disk() && n_tier) {
        char dir[64], path[80];
        temp_dir(dir);
        snprintf(path, sizeof path, "%s:4M", dir);
        options[12] = "--swap";
        options[13] = path;
        snprintf(swap, sizeof swap, "%llu",
                 (unsigned long long)swap_file_bytes(STATE_BYTES, 1, state_body_room(bt), n_tier));
        host_start(h, options);
        scan_over(h);
        return;
    }
    snprintf(swap, sizeof swap, "%u", n_tier * STATE_BYTES);
    host_start(h, options);
}

/* ---- bytes ------------------------------------------------------------------------- */

/* What the bytes of one part on one device begin with. */
static uint64_t state_word(const struct worker *w, const struct state *state, uint32_t device,
                           int part)
{
    struct rng r = {w->space * 131 + w->weights + (state->tail_of << 20) + 7};
    for (uint32_t i = 0; i < state->depth; i++)
        r.state ^= rng_next(&r) + state->s->at[i];
    r.state ^= rng_next(&r) + state->depth;
    r.state ^= rng_next(&r) + device * STATE_PARTS + (unsigned)part;
    return rng_next(&r);
}

static size_t state_bytes(const struct worker *w)
{
    return pfx_geometry(w->c)->layout.snapshot_bytes;
}

/* A half, a third, and the rest of the slot. */
static void part_bounds(size_t bytes, int part, size_t *from, size_t *to)
{
    size_t bound[STATE_PARTS + 1] = {0, bytes / 2, bytes / 2 + bytes / 3, bytes};
    *from = bound[part];
    *to = bound[part + 1];
}

/* Large states differ in their first and last page: the rest stays as it is. */
enum { EDGE = 4096 };

static bool at_edge(size_t i, size_t from, size_t to)
{
    return i < from + EDGE || i + EDGE >= to;
}

static uint8_t state_byte(uint64_t word, size_t i)
{
    return (uint8_t)((word + i / 8 * 0x9e3779b97f4a7c15ull) >> i % 8 * 8);
}

/* Write a part on every device, or (write false) compare it. */
static bool part_visit(const struct worker *w, uint32_t slot, const struct state *state, int part,
                       bool write)
{
    size_t from, to;
    bool same = true;
    REQUIRE(state->depth <= state->s->n);
    part_bounds(state_bytes(w), part, &from, &to);
    for (uint32_t d = 0; d < pfx_geometry(w->c)->layout.n_devices; d++) {
        uint64_t word = state_word(w, state, d, part);
        uint8_t *at = pfx_slot_address(w->c, d, slot);
        REQUIRE_MSG(at != NULL, "slot %u has no address", slot);
        for (size_t i = from; i < to; i++) {
            if (!at_edge(i, from, to)) {
                i = to - EDGE - 1;
                continue;
            }
            if (write)
                at[i] = state_byte(word, i);
            same &= at[i] == state_byte(word, i);
        }
    }
    return same;
}

void state_fill(const struct worker *w, uint32_t slot, const struct state *state)
{
    for (int part = 0; part < STATE_PARTS; part++)
        part_visit(w, slot, state, part, true);
}

bool state_part_is(const struct worker *w, uint32_t slot, const struct state *state, int part)
{
    return part_visit(w, slot, state, part, false);
}

bool state_is(const struct worker *w, uint32_t slot, const struct state *state)
{
    bool same = true;
    for (int part = 0; part < STATE_PARTS; part++)
        same &= state_part_is(w, slot, state, part);
    return same;
}

/* ---- calls ------------------------------------------------------------------------- */

struct held ask_seq(struct worker *w, const struct seq *s, uint64_t session, uint32_t flags)
{
    struct pfx_lookup_args args = lookup_args(w, s);
    args.session = session;
    args.flags = flags;
    return look_args(w, &args);
}

struct held ask(struct worker *w, const char *text, uint64_t session, uint32_t flags)
{
    struct seq s = seq(text);
    return ask_seq(w, &s, session, flags);
}

int slot_reserve(struct worker *w, const struct held *h, uint32_t *slot)
{
    int rc = pfx_snapshot_reserve(w->c, h->lease, slot);
    step(w);
    return rc;
}

int slot_insert(struct worker *w, const struct held *h, uint32_t slot, uint32_t depth,
                enum pfx_snapshot_kind kind)
{
    int rc = pfx_snapshot_insert(w->c, h->lease, slot, depth, kind);
    step(w);
    return rc;
}

int slot_cancel(struct worker *w, const struct held *h, uint32_t slot)
{
    int rc = pfx_snapshot_cancel(w->c, h->lease, slot);
    step(w);
    return rc;
}

int fetch(struct worker *w, struct held *h)
{
    int rc = pfx_fetch(w->c, h->lease, &h->match);
    step(w);
    return rc;
}

int let_go(struct worker *w, const struct held *h)
{
    int rc = pfx_snapshot_drop(w->c, h->lease);
    step(w);
    return rc;
}

int evict_state(struct worker *w)
{
    int rc = pfx_snapshot_evict(w->c);
    step(w);
    return rc;
}

int forget_state(struct worker *w, uint64_t key)
{
    int rc = pfx_snapshot_forget(w->c, key);
    step(w);
    return rc;
}

uint32_t save_seq(struct worker *w, const struct held *h, const struct seq *s, uint32_t depth,
                  enum pfx_snapshot_kind kind)
{
    uint32_t slot = 0;
    int rc = slot_reserve(w, h, &slot);
    REQUIRE_MSG(rc == 0, "pfx_snapshot_reserve: %s (%s)", pfx_strerror(rc), pfx_why(w->c));
    REQUIRE(slot >= 1 && slot <= pfx_geometry(w->c)->n_slots);
    state_fill(w, slot, &(struct state){s, depth, kind == PFX_TAIL ? h->session : 0});
    rc = slot_insert(w, h, slot, depth, kind);
    REQUIRE_MSG(rc == 0, "pfx_snapshot_insert at %u: %s (%s)", depth, pfx_strerror(rc),
                pfx_why(w->c));
    return slot;
}

uint32_t save(struct worker *w, const struct held *h, const char *text, uint32_t depth,
              enum pfx_snapshot_kind kind)
{
    struct seq s = seq(text);
    return save_seq(w, h, &s, depth, kind);
}

struct pfx_spilled spill(struct worker *w, uint32_t min_tokens)
{
    struct pfx_spilled out = {.size = sizeof out};
    int rc = pfx_snapshot_spill(w->c, min_tokens, &out);
    REQUIRE_MSG(rc == 0, "pfx_snapshot_spill: %s (%s)", pfx_strerror(rc), pfx_why(w->c));
    REQUIRE_EQ(out.dropped, out.key == 0);
    REQUIRE(out.depth > 0);
    step(w);
    return out;
}

void keep_seq(struct worker *w, const struct seq *s, uint32_t depth, enum pfx_snapshot_kind kind,
              uint64_t session)
{
    struct pfx_lookup_args args = lookup_args(w, s);
    args.session = session;
    args.max_match = s->n;
    args.flags = PFX_QUIET;
    struct held h = look_args(w, &args);
    uint32_t bt = block_tokens(w);
    if (h.match.n_resident < h.match.n_blocks) /* it goes on from there */
        REQUIRE_EQ(fetch(w, &h), 0);
    REQUIRE_EQ(let_go(w, &h), 0);
    REQUIRE_EQ(grab(w, &h, (uint32_t)((s->n + bt - 1) / bt) - h.n_table), 0);
    REQUIRE_EQ(put_seq(w, &h, s, PFX_FINAL, NULL, NULL), 0);
    save_seq(w, &h, s, depth, kind);
    drop(w, &h);
}

void keep(struct worker *w, const char *text, uint32_t depth, enum pfx_snapshot_kind kind,
          uint64_t session)
{
    struct seq s = seq(text);
    keep_seq(w, &s, depth, kind, session);
}

/* ---- what is offered ------------------------------------------------------------------ */

void offers_seq(struct worker *w, const struct held *h, const struct seq *s, uint32_t depth,
                uint32_t tier_depth)
{
    const struct pfx_snapshot_ref *ref = &h->match.snapshot;
    REQUIRE_MSG(ref->depth == depth && ref->tier_depth == tier_depth,
                "offered at %u and, spilled, at %u; not at %u and %u", ref->depth, ref->tier_depth,
                depth, tier_depth);
    REQUIRE_EQ(ref->slot != PFX_NO_SLOT, depth != 0);
    REQUIRE_EQ(ref->tier_key != 0, tier_depth != 0);
    REQUIRE(ref->is_tail == 0 || (depth != 0 && h->session != 0));
    if (depth)
        REQUIRE_MSG(
            state_is(w, ref->slot, &(struct state){s, depth, ref->is_tail ? h->session : 0}),
            "slot %u, offered at %u, holds other bytes", ref->slot, depth);
}

void offers(struct worker *w, const struct held *h, const char *text, uint32_t depth,
            uint32_t tier_depth)
{
    struct seq s = seq(text);
    offers_seq(w, h, &s, depth, tier_depth);
}

struct pfx_snapshot_ref found_seq(struct worker *w, const struct seq *s, uint64_t session,
                                  uint32_t depth, uint32_t tier_depth)
{
    struct pfx_lookup_args args = lookup_args(w, s);
    struct pfx_peeked p = {.size = sizeof p};
    args.session = session;
    args.flags = PFX_QUIET;
    struct held h = look_args(w, &args);
    offers_seq(w, &h, s, depth, tier_depth);
    drop(w, &h);
    REQUIRE_EQ(pfx_peek_full(w->c, &args, &p), 0);
    REQUIRE_EQ(p.snapshot_depth, depth);
    REQUIRE_EQ(p.snapshot_tier_depth, tier_depth);
    return h.match.snapshot;
}

struct pfx_snapshot_ref found(struct worker *w, const char *text, uint64_t session, uint32_t depth,
                              uint32_t tier_depth)
{
    struct seq s = seq(text);
    return found_seq(w, &s, session, depth, tier_depth);
}

void states_are(const struct worker *w, unsigned resident, unsigned tiered)
{
    struct pfx_stats s = counters(w);
    REQUIRE_MSG(s.snapshots == resident && s.snapshots_tiered == tiered,
                "%u resident, %u spilled; not %u and %u", (unsigned)s.snapshots,
                (unsigned)s.snapshots_tiered, resident, tiered);
}

/* ---- slots ---------------------------------------------------------------------------- */

uint32_t slots_to_get(struct worker *w)
{
    uint32_t n = 0, slot[SLOTS_MAX];
    bool seen[SLOTS_MAX + 1] = {false};
    int rc;
    struct held h = look(w, "");
    while ((rc = slot_reserve(w, &h, &slot[n])) == 0) {
        REQUIRE(slot[n] >= 1 && slot[n] <= pfx_geometry(w->c)->n_slots);
        REQUIRE_MSG(!seen[slot[n]], "slot %u was given out twice", slot[n]);
        seen[slot[n++]] = true;
        REQUIRE(n < SLOTS_MAX);
    }
    REQUIRE_EQ(rc, PFX_ENOSPC);
    for (uint32_t i = 0; i < n / 2; i++)
        REQUIRE_EQ(slot_cancel(w, &h, slot[i]), 0);
    drop(w, &h); /* gives back the others */
    return n;
}

void slots_all_there(struct worker *w)
{
    REQUIRE_EQ(slots_to_get(w), pfx_geometry(w->c)->n_slots);
}

void tier_reconciles(const struct worker *w, unsigned resaved, unsigned swept, unsigned dropped)
{
    struct pfx_stats s = counters(w);
    uint64_t here =
        s.snapshot_spills - s.snapshot_fetches - s.snapshot_forgotten - resaved - swept - dropped;
    REQUIRE_MSG(s.snapshots_tiered == here,
                "%u spilled now; %u spilled, %u fetched, %u forgotten, %u resaved, %u swept, %u "
                "dropped",
                (unsigned)s.snapshots_tiered, (unsigned)s.snapshot_spills,
                (unsigned)s.snapshot_fetches, (unsigned)s.snapshot_forgotten, resaved, swept,
                dropped);
}
