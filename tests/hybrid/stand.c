#include "tests/hybrid/stand.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void daemon_options(struct daemon_options *o, const struct hybrid *m, const struct pool_sizes *p)
{
    const struct {
        const char *option;
        uint64_t value;
    } numbers[6] = {{"--block-tokens", hybrid_block_tokens(m)},
                    {"--block-bytes", hybrid_block_bytes(m)},
                    {"--blocks", p->n_blocks},
                    {"--snapshots", p->n_slots},
                    {"--snapshot-bytes", hybrid_state_bytes(m)},
                    {"--snapshot-swap", p->swap_slots * hybrid_state_bytes(m)}};
    *o = (struct daemon_options){.argv = {"--model", "hybrid"}};
    unsigned n = 2;
    for (unsigned i = 0; i < (p->swap_slots ? 6 : 5); i++) {
        snprintf(o->text[i], sizeof o->text[i], "%" PRIu64, numbers[i].value);
        o->argv[n++] = numbers[i].option;
        o->argv[n++] = o->text[i];
    }
    if (p->alpha) {
        o->argv[n++] = "--alpha";
        o->argv[n++] = p->alpha;
    }
}

void worker_attach(struct engine *e, const struct host *h, const struct hybrid *m,
                   const char *group)
{
    struct pfx_layout layout = engine_layout(m, "hybrid");
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = h->socket,
                                  .group = group,
                                  .layout = &layout,
                                  .timeout_ms = 5000 * SLOW};
    *e = (struct engine){.c = NULL};
    int rc = pfx_open(&options, &e->c);
    ck_assert_msg(rc == 0, "%s", pfx_why(NULL));
}

struct pfx_stats worker_stats(const struct engine *e)
{
    struct pfx_stats s = {.size = sizeof s};
    REQUIRE_EQ(pfx_stats(e->c, &s), 0);
    return s;
}

void nothing_is_held(const struct engine *e)
{
    EVENTUALLY(10000 * SLOW, worker_stats(e).leases == 0);
    struct pfx_stats s = worker_stats(e);
    ck_assert_uint_eq(s.blocks_private + s.blocks_pinned, 0);
    struct pfx_lookup_args args = {.size = sizeof args, .flags = PFX_NO_MATCH};
    struct pfx_match m = {.size = sizeof m};
    ck_assert_int_eq(pfx_lookup(e->c, &args, &m), 0);
    uint32_t slot;
    for (uint32_t i = 0; i < pfx_geometry(e->c)->n_slots; i++)
        ck_assert_int_eq(pfx_snapshot_reserve(e->c, m.lease, &slot), 0);
    ck_assert_int_eq(pfx_snapshot_reserve(e->c, m.lease, &slot), PFX_ENOSPC);
    ck_assert_int_eq(pfx_release(e->c, m.lease), 0);
}
