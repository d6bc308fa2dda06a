#include "tests/model/backend.h"
#include "tests/model/model.h"
#include "tests/worker.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONNS = 8 };

struct remote {
    struct host host;
    struct worker w[CONNS];
    struct worker watcher; /* for counters while nobody else is attached */
};

static pfx *conn_of(void *self, int conn)
{
    return ((struct remote *)self)->w[conn].c;
}

static void remote_attach(void *self, int conn, const char *group)
{
    struct remote *x = self;
    worker_open(&x->w[conn], &x->host, group);
}

/* A goodbye is read in the daemon's own time: wait for it. */
static void remote_detach(void *self, int conn, bool clean)
{
    struct remote *x = self;
    uint64_t workers = counters(&x->watcher).workers;
    REQUIRE(clean);
    worker_close(&x->w[conn]);
    EVENTUALLY(5000 * SLOW, counters(&x->watcher).workers == workers - 1);
}

static int remote_space_open(void *self, int conn, const struct pfx_space_desc *desc,
                             pfx_space *out)
{
    return pfx_space_open(conn_of(self, conn), desc, out);
}

static int remote_space_close(void *self, int conn, pfx_space space)
{
    return pfx_space_close(conn_of(self, conn), space);
}

static int remote_flush(void *self, int conn, pfx_space space)
{
    return pfx_flush(conn_of(self, conn), space);
}

static int remote_lookup(void *self, int conn, const struct pfx_lookup_args *args,
                         struct pfx_match *out)
{
    out->size = sizeof *out;
    return pfx_lookup(conn_of(self, conn), args, out);
}

static int remote_reserve(void *self, int conn, uint64_t lease, uint32_t n, uint32_t *blocks)
{
    return pfx_reserve(conn_of(self, conn), lease, n, blocks);
}

static int remote_truncate(void *self, int conn, uint64_t lease, uint32_t n)
{
    return pfx_truncate(conn_of(self, conn), lease, n);
}

static int remote_insert(void *self, int conn, uint64_t lease, const struct pfx_insert_args *args,
                         uint32_t *canonical, struct pfx_insert_result *out)
{
    out->size = sizeof *out;
    return pfx_insert(conn_of(self, conn), lease, args, canonical, out);
}

static int remote_release(void *self, int conn, uint64_t lease)
{
    return pfx_release(conn_of(self, conn), lease);
}

static int remote_fetch(void *self, int conn, uint64_t lease, struct pfx_match *out)
{
    out->size = sizeof *out;
    return pfx_fetch(conn_of(self, conn), lease, out);
}

static int remote_snapshot_reserve(void *self, int conn, uint64_t lease, uint32_t *slot)
{
    return pfx_snapshot_reserve(conn_of(self, conn), lease, slot);
}

static int remote_snapshot_insert(void *self, int conn, uint64_t lease, uint32_t slot,
                                  uint32_t depth, int kind)
{
    return pfx_snapshot_insert(conn_of(self, conn), lease, slot, depth,
                               (enum pfx_snapshot_kind)kind);
}

static int remote_snapshot_cancel(void *self, int conn, uint64_t lease, uint32_t slot)
{
    return pfx_snapshot_cancel(conn_of(self, conn), lease, slot);
}

static int remote_snapshot_drop(void *self, int conn, uint64_t lease)
{
    return pfx_snapshot_drop(conn_of(self, conn), lease);
}

static int remote_snapshot_evict(void *self, int conn)
{
    return pfx_snapshot_evict(conn_of(self, conn));
}

static int remote_snapshot_spill(void *self, int conn, uint32_t min_tokens, struct pfx_spilled *out)
{
    out->size = sizeof *out;
    return pfx_snapshot_spill(conn_of(self, conn), min_tokens, out);
}

static int remote_snapshot_forget(void *self, int conn, uint64_t key)
{
    return pfx_snapshot_forget(conn_of(self, conn), key);
}

static uint8_t *remote_slot(void *self, int conn, uint32_t slot)
{
    return pfx_slot_address(conn_of(self, conn), 0, slot);
}

static int remote_evict(void *self, int conn, uint32_t n, struct pfx_evicted *out)
{
    out->size = sizeof *out;
    int rc = pfx_evict(conn_of(self, conn), n, out);
    return rc < 0 ? rc : 0;
}

static ssize_t remote_peek(void *self, int conn, const struct pfx_lookup_args *args,
                           struct pfx_peeked *out)
{
    out->size = sizeof *out;
    return pfx_peek_full(conn_of(self, conn), args, out);
}

/* As the model counts: without the watcher. */
static void remote_stats(void *self, struct pfx_stats *out)
{
    struct remote *x = self;
    *out = counters(&x->watcher);
    out->workers--;
}

static void remote_audit(void *self)
{
    audit_clean(&((struct remote *)self)->host);
}

static void remote_free(void *self)
{
    struct remote *x = self;
    worker_close(&x->watcher);
    host_stop(&x->host);
    free(x);
}

static void start(struct host *h, const struct model_config *config, uint32_t block_bytes)
{
    char text[8][32];
    const char *options[20] = {0};
    const struct {
        const char *name;
        uint32_t value;
    } number[] = {
        {"--blocks", config->n_blocks},
        {"--block-tokens", config->block_tokens},
        {"--block-bytes", block_bytes},
        {"--snapshots", config->n_slots},
        {"--snapshot-bytes", STATE_BYTES},
        {"--spill-min-tokens", config->spill_min},
        {"--snapshot-swap", config->n_tier * STATE_BYTES},
    };
    int n = 0, at = 0;
    for (; n < 7; n++) {
        snprintf(text[n], sizeof text[n], "%u", number[n].value);
        options[at++] = number[n].name;
        options[at++] = text[n];
    }
    snprintf(text[n], sizeof text[n], "%.2f", config->alpha);
    options[at++] = "--alpha";
    options[at++] = text[n];
    host_start(h, options);
}

struct backend backend_remote(const struct model_config *config, uint32_t block_bytes)
{
    struct remote *x = calloc(1, sizeof *x);
    start(&x->host, config, block_bytes);
    worker_open(&x->watcher, &x->host, NULL);
    return (struct backend){.self = x,
                            .attach = remote_attach,
                            .detach = remote_detach,
                            .space_open = remote_space_open,
                            .space_close = remote_space_close,
                            .flush = remote_flush,
                            .lookup = remote_lookup,
                            .fetch = remote_fetch,
                            .reserve = remote_reserve,
                            .truncate = remote_truncate,
                            .insert = remote_insert,
                            .release = remote_release,
                            .snapshot_reserve = remote_snapshot_reserve,
                            .snapshot_insert = remote_snapshot_insert,
                            .snapshot_cancel = remote_snapshot_cancel,
                            .snapshot_drop = remote_snapshot_drop,
                            .snapshot_evict = remote_snapshot_evict,
                            .snapshot_spill = remote_snapshot_spill,
                            .snapshot_forget = remote_snapshot_forget,
                            .slot = remote_slot,
                            .evict = remote_evict,
                            .peek = remote_peek,
                            .stats = remote_stats,
                            .audit = remote_audit,
                            .free = remote_free};
}
