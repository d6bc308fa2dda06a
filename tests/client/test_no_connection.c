/*
 * Every call without a connection, or on that of another process: PFX_EINVAL, which also comes
 * before PFX_EGONE and PFX_ESTALE.
 */
#include "tests/client/fixture.h"

enum { UNKNOWN = 12345 };

static const struct pfx_lookup_args any_lookup = {.size = sizeof any_lookup};
static const struct pfx_insert_args any_insert = {.size = sizeof any_insert};
static const struct pfx_space_desc any_space = {.size = sizeof any_space};
static struct pfx_match any_match = {.size = sizeof any_match};
static struct pfx_peeked any_peeked = {.size = sizeof any_peeked};
static struct pfx_insert_result any_result = {.size = sizeof any_result};
static struct pfx_evicted any_evicted = {.size = sizeof any_evicted};
static struct pfx_spilled any_spilled = {.size = sizeof any_spilled};
static struct pfx_pool_view any_view = {.size = sizeof any_view};
static struct pfx_stats any_stats = {.size = sizeof any_stats};
static struct pfx_completion any_completion;
static uint32_t any_ids[4];
static uint64_t any_lease;
static pfx_space any_number;

/* Every call that takes a connection, each with right arguments. */
#define CALLS(C)                                                                                   \
    C(pfx_ping(c))                                                                                 \
    C(pfx_pool_view(c, 0, &any_view))                                                              \
    C(pfx_space_open(c, &any_space, &any_number))                                                  \
    C(pfx_space_close(c, 0))                                                                       \
    C(pfx_peek(c, 0, NULL, 0))                                                                     \
    C(pfx_peek_full(c, &any_lookup, &any_peeked))                                                  \
    C(pfx_lookup(c, &any_lookup, &any_match))                                                      \
    C(pfx_fetch(c, any_lease, &any_match))                                                         \
    C(pfx_truncate(c, any_lease, 5))                                                               \
    C(pfx_reserve(c, any_lease, 1, any_ids))                                                       \
    C(pfx_insert(c, any_lease, &any_insert, NULL, &any_result))                                    \
    C(pfx_release(c, any_lease))                                                                   \
    C(pfx_snapshot_reserve(c, any_lease, any_ids))                                                 \
    C(pfx_snapshot_insert(c, any_lease, 1, 8, PFX_EXACT))                                          \
    C(pfx_snapshot_cancel(c, any_lease, 1))                                                        \
    C(pfx_snapshot_drop(c, any_lease))                                                             \
    C(pfx_evict(c, 1, &any_evicted))                                                               \
    C(pfx_snapshot_evict(c))                                                                       \
    C(pfx_snapshot_spill(c, 0, &any_spilled))                                                      \
    C(pfx_snapshot_forget(c, 1))                                                                   \
    C(pfx_flush(c, 0))                                                                             \
    C(pfx_stats(c, &any_stats))                                                                    \
    C(pfx_submit_space_open(c, &any_space, 1))                                                     \
    C(pfx_submit_lookup(c, &any_lookup, 1))                                                        \
    C(pfx_submit_fetch(c, any_lease, 1))                                                           \
    C(pfx_submit_truncate(c, any_lease, 5, 1))                                                     \
    C(pfx_submit_reserve(c, any_lease, 1, 1))                                                      \
    C(pfx_submit_insert(c, any_lease, &any_insert, 1))                                             \
    C(pfx_submit_release(c, any_lease, 1))                                                         \
    C(pfx_submit_snapshot_reserve(c, any_lease, 1))                                                \
    C(pfx_submit_snapshot_insert(c, any_lease, 1, 8, PFX_EXACT, 1))                                \
    C(pfx_cancel(c, FIX_TAG))                                                                      \
    C(pfx_wait(c, &any_completion, sizeof any_completion, 1, 0))                                   \
    C(pfx_fd(c))

static void no_call_works(pfx *c)
{
    any_completion = completion_empty();
#define REFUSES(call) status_is(call, PFX_EINVAL, #call);
    CALLS(REFUSES)
#undef REFUSES
    ck_assert_ptr_null(pfx_block_address(c, 0, 1));
    ck_assert_ptr_null(pfx_slot_address(c, 0, 1));
}

START_TEST(null_connection)
{
    no_call_works(NULL);
    ck_assert_ptr_null(pfx_geometry(NULL));
    ck_assert_ptr_nonnull(pfx_why(NULL));
    pfx_close(NULL);
}
END_TEST

static void forked(struct child *me, void *arg)
{
    pfx *c = arg;
    no_call_works(c);
    pfx_close(c); /* frees the copy and leaves the parent's connection alone */
}

START_TEST(forked_child)
{
    struct fixture f;
    struct child child;
    fixture_open(&f);
    any_lease = f.lease.lease;
    struct still before = still_begin(&f.w);
    child_start(&child, forked, f.c);
    child_join(&child);
    still_end(&f.w, &before, "a forked child");
    fixture_close(&f);
}
END_TEST

/* ---- PFX_EINVAL first, also when the daemon is dead -------------------------------------- */

static void einval_first(pfx *c, uint64_t lease)
{
    const uint32_t token = 1;
    struct pfx_lookup_args flags = {.size = sizeof flags, .flags = 16},
                           tokens = {.size = sizeof tokens, .n_tokens = 1};
    struct pfx_insert_args written = {.size = sizeof written, .n_written = 1};
    struct pfx_space_desc tenant = {.size = sizeof tenant, .tenant = &token, .tenant_len = 256};
    struct pfx_match m = {.size = sizeof m}, small = {.size = 8};
    struct pfx_completion k = {0};
#define EINVAL_OF(call) status_is(call, PFX_EINVAL, #call)
    EINVAL_OF(pfx_lookup(c, &flags, &m));
    EINVAL_OF(pfx_lookup(c, &tokens, &m));
    EINVAL_OF(pfx_lookup(c, &any_lookup, &small));
    EINVAL_OF(pfx_submit_lookup(c, &flags, 1));
    EINVAL_OF(pfx_peek(c, 0, NULL, 1));
    EINVAL_OF(pfx_peek_full(c, &flags, &any_peeked));
    EINVAL_OF(pfx_fetch(c, lease, &small));
    EINVAL_OF(pfx_reserve(c, lease, 1, NULL));
    EINVAL_OF(pfx_insert(c, lease, &written, NULL, &any_result));
    EINVAL_OF(pfx_submit_insert(c, lease, &written, 1));
    EINVAL_OF(pfx_space_open(c, &tenant, &any_number));
    EINVAL_OF(pfx_submit_space_open(c, &tenant, 1));
    EINVAL_OF(pfx_snapshot_reserve(c, lease, NULL));
    EINVAL_OF(pfx_snapshot_insert(c, lease, 0, 8, PFX_EXACT));
    EINVAL_OF(pfx_snapshot_insert(c, lease, 1, 0, PFX_EXACT));
    EINVAL_OF(pfx_submit_snapshot_insert(c, lease, 1, 8, 3, 1));
    EINVAL_OF(pfx_snapshot_cancel(c, lease, 0));
    EINVAL_OF(pfx_evict(c, 1, NULL));
    EINVAL_OF(pfx_snapshot_spill(c, 1, NULL));
    EINVAL_OF(pfx_stats(c, NULL));
    EINVAL_OF(pfx_pool_view(c, 1, &any_view));
    EINVAL_OF(pfx_wait(c, &k, sizeof k, 1, 0));
#undef EINVAL_OF
}

START_TEST(einval_before_egone)
{
    struct fixture f;
    fixture_open(&f);
    completion_of(f.c, FIX_TAG, 0);
    host_kill(&f.h);
    einval_first(f.c, f.lease.lease);
    EVENTUALLY(100 * SLOW, pfx_ping(f.c) == PFX_EGONE);
    einval_first(f.c, f.lease.lease);
    ck_assert_int_eq(pfx_release(f.c, f.lease.lease), PFX_EGONE);
    ck_assert_int_eq(pfx_lookup(f.c, &any_lookup, &any_match), PFX_EGONE);
    worker_close(&f.w);
    host_again(&f.h, NULL);
    host_stop(&f.h);
}
END_TEST

/* ... and when the lease is stale, or none. */
START_TEST(einval_before_estale)
{
    struct fixture f;
    fixture_open(&f);
    const uint64_t stale[] = {0, UNKNOWN, f.lease.lease ^ 1, UINT64_MAX};
    for (size_t i = 0; i < LENGTH(stale); i++) {
        struct still before = still_begin(&f.w);
        einval_first(f.c, stale[i]);
        still_end(&f.w, &before, "a bad argument and a stale lease");
    }
    fixture_close(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("no_connection");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, null_connection);
    tcase_add_test(t, forked_child);
    tcase_add_test(t, einval_before_egone);
    tcase_add_test(t, einval_before_estale);
    suite_add_tcase(s, t);
    return s;
}
