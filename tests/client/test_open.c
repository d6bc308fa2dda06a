/*
 * pfx_open: options out of range, layouts that are another's, and what is left behind: nothing.
 */
#include "tests/client/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* After a refusal: no connection, a sentence, and neither a descriptor nor a worker left behind. */
static void open_refused(struct fixture *f, const struct pfx_options *o, uint32_t abi, int want,
                         const char *what)
{
    struct pfx_stats before = counters(&f->w);
    unsigned fds = count_fds(getpid());
    pfx *c = f->c;
    status_is(pfx_open_abi(abi, o, &c), want, what);
    ck_assert_ptr_null(c);
    ck_assert_uint_gt(strlen(pfx_why(NULL)), 10);
    ck_assert_uint_eq(count_fds(getpid()), fds);
    OK(pfx_ping(f->c));
    EVENTUALLY(5000 * SLOW, counters(&f->w).workers == before.workers);
    counters_equal(&f->w, &before, what);
}

/* n bytes of text. */
static const char *text_of(char *to, size_t n)
{
    memset(to, 'n', n);
    to[n] = 0;
    return to;
}

START_TEST(options_out_of_range)
{
    struct fixture f;
    fixture_open(&f);
    static char n32[33], n64[65], n500[501];
    text_of(n32, 32), text_of(n64, 64), text_of(n500, 500);
    const struct {
        const char *what;
        struct pfx_options o;
    } rows[] = {
        {"ring 3", {.ring_entries = 3}},
        {"ring 7", {.ring_entries = 7}},
        {"ring 255", {.ring_entries = 255}},
        {"ring 257", {.ring_entries = 257}},
        {"ring 2^31 + 1", {.ring_entries = (1u << 31) + 1}},
        {"ring, too large", {.ring_entries = 1u << 31}},
        {"ring -1", {.ring_entries = UINT32_MAX}},
        {"arena", {.arena_bytes = UINT32_MAX}},
        {"name 32", {.name = n32}},
        {"name 500", {.name = n500}},
        {"group 64", {.group = n64}},
        {"group 500", {.group = n500}},
        {"socket 500", {.socket_path = n500}},
        {"device 1 of 1", {.map_devices = 2}},
        {"device 0 and 1 of 1", {.map_devices = 3}},
        {"device 15 of 1", {.map_devices = 1ull << 15}},
        {"device 16", {.map_devices = 1ull << 16}},
        {"device 63", {.map_devices = 1ull << 63}},
        {"all but device 63", {.map_devices = UINT64_MAX - 1}},
        {"reserved", {.reserved = 1}},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct pfx_options o = rows[i].o;
        o.size = sizeof o;
        if (!o.socket_path)
            o.socket_path = f.h.socket;
        open_refused(&f, &o, PFX_ABI_VERSION, PFX_EINVAL, rows[i].what);
        if (o.map_devices == 0) /* what is known without asking comes before PFX_EVERSION too */
            open_refused(&f, &o, PFX_ABI_VERSION + 1, PFX_EINVAL, rows[i].what);
    }
    struct pfx_options o = worker_options(&f.h);
    struct still before = still_begin(&f.w);
    status_is(pfx_open(&o, NULL), PFX_EINVAL, "out is NULL");
    still_end(&f.w, &before, "out is NULL");
    fixture_close(&f);
}
END_TEST

START_TEST(options_at_their_limits)
{
    struct fixture f;
    fixture_open(&f);
    static char n31[32], n63[64];
    text_of(n31, 31), text_of(n63, 63);
    const struct {
        const char *what;
        struct pfx_options o;
    } rows[] = {
        {"nothing", {0}},
        {"ring 1", {.ring_entries = 1}},
        {"ring 2", {.ring_entries = 2}},
        {"ring 4", {.ring_entries = 4}},
        {"ring 8", {.ring_entries = 8}},
        {"ring 4096", {.ring_entries = 4096}},
        {"arena 1", {.arena_bytes = 1}},
        {"arena, odd", {.arena_bytes = 70001}},
        {"arena 64 MiB", {.arena_bytes = 64u << 20}},
        {"name 31", {.name = n31}},
        {"name 0", {.name = ""}},
        {"name that is no UTF-8", {.name = "\xff\xfe\n"}},
        {"group 63", {.group = n63}},
        {"group 0", {.group = ""}},
        {"device 0", {.map_devices = 1}},
        {"no device", {.map_devices = PFX_MAP_NONE}},
        {"spin", {.spin_us = UINT32_MAX, .timeout_ms = 100 * SLOW}},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        pfx *c = connect_with(&f.h, rows[i].o);
        struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
        struct pfx_match m = {.size = sizeof m};
        status_is(pfx_lookup(c, &args, &m), 0, rows[i].what);
        ck_assert_uint_eq(m.matched_tokens, 8);
        pfx_close(c);
    }
    fixture_close(&f);
}
END_TEST

START_TEST(other_abi)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_options o = worker_options(&f.h);
    const uint32_t abi[] = {0, 2, UINT32_MAX};
    for (size_t i = 0; i < LENGTH(abi); i++)
        open_refused(&f, &o, abi[i], PFX_EVERSION, "another ABI");
    pfx *c;
    OK(pfx_open_abi(1, &o, &c));
    pfx_close(c);
    fixture_close(&f);
}
END_TEST

START_TEST(other_layout)
{
    struct fixture f;
    fixture_open(&f);
    const struct pfx_layout right = pfx_geometry(f.c)->layout;
    struct pfx_layout l[5] = {right, right, right, right, right};
    l[0].block_tokens *= 2;
    l[1].block_bytes += 64;
    l[2].snapshot_bytes += 64;
    l[3].n_devices = 2;
    l[4].model_digest[31] ^= 1;
    const char *const names[] = {"block_tokens", "block_bytes", "snapshot_bytes", "n_devices",
                                 "model_digest"};
    struct pfx_options o = worker_options(&f.h);
    for (int i = 0; i < 5; i++) {
        o.layout = &l[i];
        open_refused(&f, &o, PFX_ABI_VERSION, PFX_EMISMATCH, names[i]);
        ck_assert_msg(strstr(pfx_why(NULL), names[i]), "\"%s\" does not name %s", pfx_why(NULL),
                      names[i]);
    }
    l[0] = l[3] = right;
    l[0].block_tokens = l[3].n_devices = 0; /* out of range, not another's */
    o.layout = &l[0];
    open_refused(&f, &o, PFX_ABI_VERSION, PFX_EINVAL, "no block_tokens");
    o.layout = &l[3];
    open_refused(&f, &o, PFX_ABI_VERSION, PFX_EINVAL, "no devices");
    o.layout = &right;
    pfx *c;
    OK(pfx_open(&o, &c));
    pfx_close(c);
    fixture_close(&f);
}
END_TEST

START_TEST(no_daemon)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_options o = worker_options(&f.h);
    const char *const nobody[] = {"/nowhere/prefixd.sock", "/tmp", "/dev/null", f.h.dir};
    for (size_t i = 0; i < LENGTH(nobody); i++) {
        o.socket_path = nobody[i];
        open_refused(&f, &o, PFX_ABI_VERSION, PFX_EGONE, nobody[i]);
        ck_assert_msg(strstr(pfx_why(NULL), nobody[i]), "\"%s\" does not name the socket",
                      pfx_why(NULL));
    }
    fixture_close(&f);
}
END_TEST

/* pfx_open(NULL, &c) is all defaults; the environment names the socket. */
START_TEST(null_options)
{
    struct fixture f;
    fixture_open(&f);
    pfx *c;
    setenv("PREFIXD_SOCKET", f.h.socket, 1);
    OK(pfx_open(NULL, &c));
    ck_assert_uint_eq(pfx_geometry(c)->epoch, pfx_geometry(f.c)->epoch);
    pfx_close(c);
    setenv("PREFIXD_SOCKET", "/nowhere/prefixd.sock", 1);
    ck_assert_int_eq(pfx_open(NULL, &c), PFX_EGONE);
    ck_assert_ptr_null(c);
    struct pfx_options o = worker_options(&f.h); /* the caller's word goes before it */
    OK(pfx_open(&o, &c));
    pfx_close(c);
    fixture_close(&f);
}
END_TEST

/* Without $PREFIXD_SOCKET: $XDG_RUNTIME_DIR/prefixd.sock. */
START_TEST(runtime_directory)
{
    struct host h;
    pfx *c;
    HOST_START(&h, "--blocks", "8");
    char at[128];
    snprintf(at, sizeof at, "%s/prefixd.sock", h.dir);
    ck_assert_int_eq(symlink(h.socket, at), 0);
    unsetenv("PREFIXD_SOCKET");
    setenv("XDG_RUNTIME_DIR", h.dir, 1);
    OK(pfx_open(NULL, &c));
    ck_assert_uint_eq(pfx_geometry(c)->n_blocks, 8);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* A daemon that waits for the first worker's layout takes it, and then no other. */
START_TEST(first_layout_counts)
{
    struct host h;
    HOST_START(&h, "--bytes", "1M");
    struct pfx_options o = worker_options(&h);
    pfx *c;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EMISMATCH); /* it brings none */
    struct pfx_layout l = {
        .size = sizeof l, .block_tokens = 8, .block_bytes = 4096, .n_devices = 2};
    o.layout = &l;
    OK(pfx_open(&o, &c));
    ck_assert_uint_eq(pfx_geometry(c)->n_blocks, 128); /* 1 MiB of 2 x 4 KiB */
    ck_assert_uint_eq(pfx_geometry(c)->layout.block_tokens, 8);
    ck_assert_uint_eq(pfx_geometry(c)->layout.n_devices, 2);
    pfx *other;
    l.block_tokens = 16;
    ck_assert_int_eq(pfx_open(&o, &other), PFX_EMISMATCH);
    o.layout = NULL;
    OK(pfx_open(&o, &other));
    pfx_close(other);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* As many workers as --max-workers allows; one more when one has gone. */
START_TEST(too_many_workers)
{
    struct host h;
    HOST_START(&h, "--blocks", "8", "--max-workers", "3");
    struct pfx_options o = worker_options(&h);
    pfx *c[3], *more;
    for (int i = 0; i < 3; i++)
        OK(pfx_open(&o, &c[i]));
    ck_assert_int_eq(pfx_open(&o, &more), PFX_ENOSPC);
    ck_assert_ptr_null(more);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "max-workers"));
    pfx_close(c[1]);
    OK(pfx_open(&o, &c[1]));
    for (int i = 0; i < 3; i++) {
        OK(pfx_ping(c[i]));
        pfx_close(c[i]);
    }
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("open");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, options_out_of_range);
    tcase_add_test(t, options_at_their_limits);
    tcase_add_test(t, other_abi);
    tcase_add_test(t, other_layout);
    tcase_add_test(t, no_daemon);
    tcase_add_test(t, null_options);
    tcase_add_test(t, runtime_directory);
    tcase_add_test(t, first_layout_counts);
    tcase_add_test(t, too_many_workers);
    suite_add_tcase(s, t);
    return s;
}
