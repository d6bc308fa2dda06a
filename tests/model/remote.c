#include "tests/model/backend.h"
#include "tests/worker.h"

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

struct backend backend_remote(uint32_t block_tokens, uint32_t n_blocks)
{
    struct remote *x = calloc(1, sizeof *x);
    host_small(&x->host, n_blocks, block_tokens);
    worker_open(&x->watcher, &x->host, NULL);
    return (struct backend){.self = x,
                            .attach = remote_attach,
                            .detach = remote_detach,
                            .space_open = remote_space_open,
                            .space_close = remote_space_close,
                            .flush = remote_flush,
                            .lookup = remote_lookup,
                            .reserve = remote_reserve,
                            .truncate = remote_truncate,
                            .insert = remote_insert,
                            .release = remote_release,
                            .evict = remote_evict,
                            .peek = remote_peek,
                            .stats = remote_stats,
                            .audit = remote_audit,
                            .free = remote_free};
}
