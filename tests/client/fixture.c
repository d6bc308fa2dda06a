#include "tests/client/fixture.h"
#include "shm/message.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

pfx *connect_with(const struct host *h, struct pfx_options o)
{
    pfx *c = NULL;
    o.size = sizeof o;
    o.socket_path = h->socket;
    if (!o.timeout_ms)
        o.timeout_ms = 5000 * SLOW;
    int rc = pfx_open(&o, &c);
    ck_assert_msg(rc == 0, "pfx_open: %d (%s)", rc, pfx_why(NULL));
    return c;
}

static void fixture_lease(struct fixture *f)
{
    cache(&f->w, "aaaabbbb");
    f->tokens = seq("aaaabbbbcccc");
    f->lease = look_seq(&f->w, &f->tokens);
    ck_assert_uint_eq(f->lease.match.matched_tokens, 8);
    ck_assert_int_eq(grab(&f->w, &f->lease, 3), 0);
    struct pfx_insert_result r;
    ck_assert_int_eq(put_seq(&f->w, &f->lease, &f->tokens, 0, NULL, &r), 0);
    ck_assert_uint_eq(r.cached_blocks, 3);
}

void fixture_open(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    HOST_START(&f->h, "--blocks", "64", "--block-tokens", "4", "--block-bytes", "64", "--snapshots",
               "4", "--snapshot-bytes", "64");
    worker_open(&f->w, &f->h, NULL);
    f->c = f->w.c;
    fixture_lease(f);
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "tenant", .tenant_len = 6};
    OK(pfx_space_open(f->c, &d, &f->space));
    struct pfx_lookup_args args = lookup_args(&f->w, &f->tokens);
    OK(pfx_submit_lookup(f->c, &args, FIX_TAG));
    OK(pfx_ping(f->c)); /* now it is set aside */
}

void fixture_close(struct fixture *f)
{
    struct pfx_completion aside = completion_of(f->c, FIX_TAG, 0);
    ck_assert_uint_eq(aside.match.matched_tokens, 8);
    completion_none(f->c);
    OK(pfx_release(f->c, aside.lease));
    OK(pfx_release(f->c, f->lease.lease));
    OK(pfx_space_close(f->c, f->space));
    step(&f->w);
    pages_are(&f->w, FIX_BLOCKS - 3, 0, 0, 3);
    worker_close(&f->w);
    host_stop(&f->h);
}

/* ---- nothing has changed ----------------------------------------------------------------- */

/* All rows of a question to the daemon's tools' side; the caller frees them. */
static struct worker_row *worker_rows(struct host *h, uint32_t *n)
{
    audit_clean(h); /* connects h->admin */
    struct admin_request rq = {.op = ADMIN_WORKERS};
    ck_assert_int_eq(send(h->admin, &rq, sizeof rq, 0), sizeof rq);
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct admin_reply reply;
    struct iovec part = {&reply, sizeof reply};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ck_assert_int_eq(recvmsg(h->admin, &m, MSG_CMSG_CLOEXEC), sizeof reply);
    ck_assert_int_eq(reply.status, 0);
    ck_assert_uint_eq(reply.row_bytes, sizeof(struct worker_row));
    int fd;
    ck_assert_ptr_nonnull(CMSG_FIRSTHDR(&m));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    size_t bytes = reply.n_rows * sizeof(struct worker_row);
    struct worker_row *rows = malloc(bytes);
    ck_assert_int_eq(pread(fd, rows, bytes, 0), (ssize_t)bytes);
    close(fd);
    *n = reply.n_rows;
    return rows;
}

static uint64_t requests_so_far(struct host *h)
{
    uint32_t n;
    uint64_t sum = 0;
    struct worker_row *rows = worker_rows(h, &n);
    for (uint32_t i = 0; i < n; i++)
        sum += rows[i].requests;
    free(rows);
    return sum;
}

struct still still_begin(struct worker *w)
{
    return (struct still){.stats = counters(w), .requests = requests_so_far(w->host)};
}

void counters_equal(struct worker *w, const struct pfx_stats *before, const char *what)
{
    struct pfx_stats now = counters(w);
    now.disk_ready_blocks = before->disk_ready_blocks; /* files grow by themselves */
    const uint64_t *a = (const uint64_t *)before, *b = (const uint64_t *)&now;
    for (size_t i = 0; i < sizeof now / 8; i++)
        ck_assert_msg(a[i] == b[i], "%s: field %zu of pfx_stats went from %llu to %llu", what, i,
                      (unsigned long long)a[i], (unsigned long long)b[i]);
}

void still_end(struct worker *w, const struct still *before, const char *what)
{
    OK(pfx_ping(w->c)); /* in order: whatever was posted earlier has been counted */
    uint64_t sent = requests_so_far(w->host) - before->requests - 1;
    ck_assert_msg(sent == 0, "%s: %llu records were sent", what, (unsigned long long)sent);
    counters_equal(w, &before->stats, what);
}

void status_is(long got, int want, const char *what)
{
    ck_assert_msg(got == want, "%s: %ld (%s), not %d (%s)", what, got, pfx_strerror((int)got), want,
                  pfx_strerror(want));
}

/* ---- completions ------------------------------------------------------------------------- */

struct pfx_completion completion_empty(void)
{
    struct pfx_completion k = {.size = sizeof k};
    k.match.size = sizeof k.match;
    k.insert.size = sizeof k.insert;
    return k;
}

struct pfx_completion completion_take(pfx *c)
{
    struct pfx_completion k = completion_empty();
    int n = pfx_wait(c, &k, sizeof k, 1, 5000 * SLOW);
    ck_assert_msg(n == 1, "pfx_wait: %d (%s)", n, pfx_why(c));
    ck_assert_uint_eq(k.size, sizeof k);
    return k;
}

struct pfx_completion completion_of(pfx *c, uint64_t tag, int status)
{
    struct pfx_completion k = completion_take(c);
    ck_assert_msg(k.tag == tag && k.status == status, "tag %llu status %d, not tag %llu status %d",
                  (unsigned long long)k.tag, k.status, (unsigned long long)tag, status);
    return k;
}

void completion_none(pfx *c)
{
    struct pfx_completion k = completion_empty();
    ck_assert_int_eq(pfx_wait(c, &k, sizeof k, 1, 0), 0);
    ck_assert_int_eq(pfx_wait(c, &k, sizeof k, 1, 10), 0);
}

/* ---- sequences --------------------------------------------------------------------------- */

void sequence(uint32_t *to, size_t n, uint32_t which)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint32_t)(i * 7 + 1) ^ which << 24;
}
