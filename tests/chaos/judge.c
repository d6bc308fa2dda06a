/*
 * All workers are gone: everything that they had must be back, and everything that there is can be
 * had. In this order, as each step changes what the next one looks at:
 *
 *      1. counters come to rest: no lease, nothing private, held or in flight
 *      2. the audit has no finding, files are within their budgets
 *      3. one lease gets every slot, and every block
 *      4. all is flushed: nothing is cached in any tier
 *      5. every slot of the files can be written again, but those that were retired for an error
 */
#include "tests/chaos/chaos.h"

#include <stdlib.h>

enum { REST_MS = 3 * DEADLINE_MS, TRIES = 40, FILL_MS = 4 * DEADLINE_MS, PIECE = 16 };

static uint64_t off(uint64_t is, uint64_t should)
{
    return is > should ? is - should : should - is;
}

static bool at_rest(const struct counters *c, const struct house *h)
{
    return c->workers == 1 && c->leases == 0 && c->blocks_private == 0 && c->blocks_pinned == 0 &&
           c->blocks_inflight == 0 && c->slots_private == 0 && c->disk_in_flight == 0 &&
           c->disk_scan_done && house_fds(h) == h->fds;
}

static void say_leaks(struct house *h, const struct counters *c)
{
    stage_find(h->stage,
               "not back after %d ms: %llu workers, %llu leases, %llu blocks private, %llu pinned, "
               "%llu in flight, %llu slots private, %llu transfers, scan %llu, %u descriptors, "
               "before %u",
               REST_MS, (unsigned long long)c->workers - 1, (unsigned long long)c->leases,
               (unsigned long long)c->blocks_private, (unsigned long long)c->blocks_pinned,
               (unsigned long long)c->blocks_inflight, (unsigned long long)c->slots_private,
               (unsigned long long)c->disk_in_flight, (unsigned long long)c->disk_scan_done,
               house_fds(h), h->fds);
}

static bool come_to_rest(struct house *h, struct totals *t)
{
    struct counters c;
    for (uint64_t until = now_ms() + REST_MS;; nap_us(20000)) {
        if (!house_status(h, &c))
            return false;
        if (at_rest(&c, h))
            break;
        if (now_ms() < until)
            continue;
        say_leaks(h, &c);
        t->leaked_blocks += c.blocks_private + c.blocks_pinned + c.blocks_inflight;
        t->leaked_slots += c.slots_private;
        t->leaked_fds += off(house_fds(h), h->fds);
        break;
    }
    uint64_t blocks =
        off(c.blocks_free + c.blocks_idle + c.blocks_private + c.blocks_pinned + c.blocks_inflight,
            h->plan->blocks);
    uint64_t slots = off(c.slots_free + c.slots_private + c.snapshots, h->plan->slots);
    if (blocks || slots)
        stage_find(h->stage, "%llu blocks and %llu slots are in no count",
                   (unsigned long long)blocks, (unsigned long long)slots);
    t->leaked_blocks += blocks;
    t->leaked_slots += slots;
    return true;
}

static uint64_t empty_lease(struct house *h)
{
    struct pfx_lookup_args args = {.size = sizeof args};
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(h->c, &args, &m);
    if (rc < 0)
        stage_find(h->stage, "the judge's lookup: %s (%s)", pfx_strerror(rc), pfx_why(h->c));
    return rc < 0 ? 0 : m.lease;
}

/* Blocks that this lease cannot get: what is idle may have to be written first. */
static uint32_t blocks_lacking(struct house *h, uint64_t lease)
{
    uint32_t left = h->plan->blocks, *ids = calloc(left, sizeof *ids);
    for (int tries = 0; ids && left && tries < TRIES; tries++) {
        for (uint32_t n = left; n && left; n = (n + 1) / 2) {
            int rc = pfx_reserve(h->c, lease, n, ids);
            left -= rc == 0 ? n : 0;
            if (rc == 0 || n == 1)
                break;
        }
    }
    free(ids);
    return left;
}

static uint32_t slots_lacking(struct house *h, uint64_t lease)
{
    uint32_t left = h->plan->slots, slot;
    for (int tries = 0; left && tries < TRIES; tries++) {
        int rc = 0;
        while (left && (rc = pfx_snapshot_reserve(h->c, lease, &slot)) == 0)
            left--;
        if (left)
            nap_us(10000);
    }
    return left;
}

static void get_everything(struct house *h, struct totals *t)
{
    uint64_t lease = empty_lease(h);
    if (!lease)
        return;
    uint32_t slots = slots_lacking(h, lease), blocks = blocks_lacking(h, lease);
    if (slots || blocks)
        stage_find(h->stage, "one lease gets all but %u blocks and %u slots: %s", blocks, slots,
                   pfx_why(h->c));
    t->leaked_blocks += blocks;
    t->leaked_slots += slots;
    int rc = pfx_release(h->c, lease);
    if (rc < 0)
        stage_find(h->stage, "the judge's release: %s", pfx_strerror(rc));
}

static void flush_everything(struct house *h, struct totals *t)
{
    struct counters c;
    int rc = pfx_flush(h->c, PFX_ALL_SPACES);
    for (int tries = 0; rc == PFX_EIO && tries < 100 * TRIES; tries++) {
        nap_us(2000);
        rc = pfx_flush(h->c, PFX_ALL_SPACES);
    }
    if (rc < 0)
        stage_find(h->stage, "the judge's flush: %s (%s)", pfx_strerror(rc), pfx_why(h->c));
    bool empty = false;
    for (uint64_t until = now_ms() + REST_MS; !empty && now_ms() < until; nap_us(10000)) {
        if (!house_status(h, &c))
            return;
        empty = c.blocks_free == h->plan->blocks && c.nodes == 0 && c.disk_used == 0 &&
                c.snapshots == 0 && c.snapshots_tiered == 0 && c.slots_free == h->plan->slots &&
                c.spaces == 1;
    }
    if (empty)
        return;
    stage_find(h->stage,
               "after a flush of everything: %llu blocks free, %llu nodes, %llu blocks on disk, "
               "%llu and %llu states, %llu slots free, %llu spaces",
               (unsigned long long)c.blocks_free, (unsigned long long)c.nodes,
               (unsigned long long)c.disk_used, (unsigned long long)c.snapshots,
               (unsigned long long)c.snapshots_tiered, (unsigned long long)c.slots_free,
               (unsigned long long)c.spaces);
    t->leaked_blocks += h->plan->blocks - c.blocks_free;
    t->leaked_slots += h->plan->slots - c.slots_free;
}

/* ---- slots of the files ---------------------------------------------------------------------- */

/* PIECE new blocks, of which each is a prefix of its own: on disk and in the pool they can go in
 * any order. Twice, so that --swap-admit 2 writes them too. */
static void insert_some(struct house *h, uint32_t *next)
{
    uint32_t bt = h->plan->block_tokens, *token = calloc(bt + 1, sizeof *token), id;
    for (unsigned i = 0; token && i < PIECE; i++, ++*next) {
        for (uint32_t k = 0; k < bt; k++)
            token[k] = 0xf0000000u + *next;
        for (unsigned twice = 0; twice < 2; twice++) {
            struct pfx_lookup_args args = {
                .size = sizeof args, .tokens = token, .n_tokens = bt, .max_match = bt};
            struct pfx_match m = {.size = sizeof m};
            struct pfx_insert_args in = {.size = sizeof in, .tokens = token, .n_written = bt};
            struct pfx_insert_result out = {.size = sizeof out};
            if (pfx_lookup(h->c, &args, &m) < 0)
                continue;
            if (!m.n_blocks && pfx_reserve(h->c, m.lease, 1, &id) == 0)
                (void)pfx_insert(h->c, m.lease, &in, NULL, &out);
            (void)pfx_release(h->c, m.lease);
        }
    }
    free(token);
}

/* So much is on disk when nothing moves. */
static uint64_t used_at_rest(struct house *h)
{
    struct pfx_stats s = {.size = sizeof s};
    uint64_t used = UINT64_MAX;
    for (unsigned same = 0; same < 5; nap_us(2000)) {
        if (pfx_stats(h->c, &s) < 0)
            return 0;
        same = s.disk_used == used && !s.blocks_inflight ? same + 1 : 0;
        used = s.disk_used;
    }
    return used;
}

static uint64_t disk_errors(struct house *h)
{
    struct pfx_stats s = {.size = sizeof s};
    return pfx_stats(h->c, &s) < 0 ? 0 : s.disk_errors;
}

static void fill_files(struct house *h, struct totals *t)
{
    uint64_t slots = pfx_geometry(h->c)->n_disk_blocks, most = 0;
    uint32_t next = 0;
    for (uint64_t until = now_ms() + FILL_MS; most < slots && now_ms() < until;) {
        insert_some(h, &next);
        uint64_t used = next < slots ? 0 : used_at_rest(h);
        most = used > most ? used : most;
    }
    /* What SIGKILL left half written is found when it is read, and its slot is not used again. */
    uint64_t retired = h->disk_errors + disk_errors(h);
    if (most + retired >= slots)
        return;
    stage_find(h->stage,
               "%llu of %llu slots of the files can be used, after %u blocks, and %llu "
               "errors",
               (unsigned long long)most, (unsigned long long)slots, next,
               (unsigned long long)retired);
    t->leaked_disk_slots += slots - most - retired;
}

void judge(struct house *h, struct totals *t)
{
    if (!come_to_rest(h, t))
        return;
    house_audit(h);
    disk_within_budget(h);
    get_everything(h, t);
    flush_everything(h, t);
    house_audit(h);
    if (h->plan->paths && !h->plan->bad_media)
        fill_files(h, t);
    house_audit(h);
    t->audits += 3;
}
