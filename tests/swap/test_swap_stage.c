/*
 * A pool that only copiers reach: what they do late, or not at all, over both engines. All other
 * tests of the tier run over such a pool as well; here is what is there of it alone.
 */
#include "daemon/swap_private.h"
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N = 32, PAGE = 64 << 10, A_STAGE = 8 /* of these */, STAGES = 16 };

static void begin(struct rig *r, int engine, uint32_t n_pieces)
{
    setenv("SWAP_STAGED", "1", 1);
    rig_init(r, PAGE, N, 4 * N);
    rig_store(r, STORE_BLOCKS, PAGE, N, 4 * N, n_pieces);
    r->config.uring = engine == 0;
    rig_start(r);
    rig_wait_ready(r, STORE_BLOCKS, 4 * N);
    rig_tell_faults(r);
    faults_clear();
}

static struct swap_order *writes(struct rig *r, uint32_t n, struct written *w)
{
    struct swap_order *o = rig_order(r, SWAP_WRITE, STORE_BLOCKS);
    for (uint32_t i = 0; i < n; i++) {
        const struct swap_record *record = rig_add_write(r, o, i, 0, 1);
        REQUIRE(record);
        w[i] = (struct written){record->slot, record->generation, 0, 1};
    }
    return o;
}

/* Into pages that hold something else. */
static struct swap_order *reads(struct rig *r, uint32_t n, const struct written *w)
{
    struct swap_order *o = rig_order(r, SWAP_READ, STORE_BLOCKS);
    for (uint32_t i = 0; i < n; i++) {
        page_fill(r, STORE_BLOCKS, i, 0);
        rig_add_read(o, w[i].slot, w[i].generation, i);
    }
    return o;
}

static void wait_for_answer(struct rig *r, struct swap_order *o)
{
    swap_submit(r->sw, o);
    ck_assert_ptr_eq(rig_take(r), o);
}

static unsigned count(const struct swap_order *o, enum swap_status status)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < o->n; i++)
        n += o->record[i].status == status;
    return n;
}

/* GOOD: it has what was written; else it is as it was. */
static void pages_fit(const struct rig *r, const struct swap_order *o, const struct written *w)
{
    for (uint32_t i = 0; i < o->n; i++)
        REQUIRE(
            page_is(r, STORE_BLOCKS, i, o->record[i].status == SWAP_GOOD ? w[i].generation : 0));
}

/* ---- how large, and how many ---- */

START_TEST(buffers)
{
    static const struct {
        uint64_t record;
        unsigned records, n;
        uint64_t bytes;
    } want[] = {
        {1, 64, 16, 256 << 10},                                    /* an order has no more */
        {4096, 64, 16, 256 << 10},      {4097, 64, 16, 512 << 10}, /* 8 KiB each in the file */
        {64 << 10, 8, 16, 512 << 10},   {200 << 10, 2, 16, 400 << 10},
        {512 << 10, 1, 16, 512 << 10},  {2 << 20, 1, 4, 2 << 20}, /* 8 MiB of them */
        {64 << 20, 1, 3, 64 << 20},                               /* three at least */
        {100 << 20, 1, 2, 100 << 20},                             /* within 256 MiB */
        {3ull << 30, 1, 1, 3ull << 30},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct swap_buffers b = swap_buffers(want[i].record);
        ck_assert_uint_eq(b.records, want[i].records);
        ck_assert_uint_eq(b.n, want[i].n);
        ck_assert_uint_eq(b.bytes, want[i].bytes);
    }
}
END_TEST

/* Records of several devices, each longer than an operation, in three stages: more than there are
 * of these in one order, and readers beside writers. */
START_TEST(large_records)
{
    enum { BIG = (3 << 20) + 1000 * 8, MANY = 7 };
    struct rig r;
    struct written w[MANY], more[MANY];
    setenv("SWAP_STAGED", "1", 1);
    rig_init(&r, 4096, 4, 8);
    rig_store(&r, STORE_BLOCKS, BIG, 2 * MANY, 2 * MANY, 3);
    r.config.uring = _i == 0;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 2 * MANY);
    faults_clear();
    struct swap_order *o = writes(&r, MANY, w);
    wait_for_answer(&r, o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    ck_assert_uint_eq(faults_copies().begun, 3 * MANY);
    swap_order_free(r.sw, o);
    struct swap_order *in = reads(&r, MANY, w);
    struct swap_order *out = rig_order(&r, SWAP_WRITE, STORE_BLOCKS);
    for (uint32_t i = 0; i < MANY; i++) {
        const struct swap_record *record = rig_add_write(&r, out, MANY + i, 0, 1);
        more[i] = (struct written){record->slot, record->generation, 0, 1};
    }
    swap_submit(r.sw, out);
    swap_submit(r.sw, in);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(rig_take(&r)->status, SWAP_GOOD);
    pages_fit(&r, in, w);
    swap_order_free(r.sw, in);
    swap_order_free(r.sw, out);
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(rig_read(&r, &more[i]), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

/* ---- what is damaged ---- */

/* One of a stage, all of a stage, and one with others in its operation. */
START_TEST(damage_does_not_reach_the_pool)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, 1);
    struct swap_order *o = writes(&r, N, w);
    wait_for_answer(&r, o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    swap_order_free(r.sw, o);
    ck_assert_uint_eq(faults_copies().begun, N / A_STAGE);
    uint64_t bad = 1u << 3 | 1u << 31 | 0xffu << A_STAGE;
    for (uint32_t i = 0; i < N; i++)
        if (bad >> i & 1)
            file_flip(rig_file(&r, 0, STORE_BLOCKS), rig_slot_offset(&r, w[i].slot) + 12345);
    faults_clear();
    o = reads(&r, N, w);
    wait_for_answer(&r, o);
    for (uint32_t i = 0; i < N; i++)
        ck_assert_int_eq(o->record[i].status, bad >> i & 1 ? SWAP_CORRUPT : SWAP_GOOD);
    pages_fit(&r, o, w);
    ck_assert_uint_eq(faults_copies().begun, N / A_STAGE - 1); /* none for that without any */
    swap_order_free(r.sw, o);
    rig_deinit(&r);
}
END_TEST

/* ---- copies that fail ---- */

/* The first stages' copies, on one device of three, as they begin or end: more of them than errors
 * in a row that make a file sick. */
static void failing(struct rig *r, enum copier_way way, bool begins, unsigned device)
{
    enum { TIMES = SWAP_ERRORS + 4 };
    struct written w[N];
    enum swap_status bad = way == COPIER_OUT ? SWAP_REFUSED : SWAP_FAILED;
    struct swap_facts before = swap_facts(r->sw);
    struct swap_order *o = writes(r, N, w);
    for (int i = 0; i < TIMES; i++) {
        faults_clear();
        if (way == COPIER_OUT || i > 0) {
            faults_copy(way, begins, device, 1);
        } else {
            wait_for_answer(r, o);
            ck_assert_int_eq(o->status, SWAP_GOOD);
            swap_order_free(r->sw, o);
            o = reads(r, N, w);
            faults_copy(way, begins, device, 1);
        }
        wait_for_answer(r, o);
        ck_assert_uint_eq(faults_copies().failed, 1);
        ck_assert_uint_eq(faults_copies().under_way, 0);
        ck_assert_int_eq(o->status, bad);
        ck_assert_uint_eq(count(o, bad), A_STAGE);
        ck_assert_uint_eq(count(o, SWAP_GOOD), N - A_STAGE);
        ck_assert(swap_facts(r->sw).healthy);
        for (uint32_t k = 0; k < N; k++)
            if (way == COPIER_IN && o->record[k].status == SWAP_GOOD)
                REQUIRE(page_is(r, STORE_BLOCKS, k, w[k].generation));
        if (way == COPIER_OUT) { /* the same slots again */
            struct swap_order *again = rig_order(r, SWAP_WRITE, STORE_BLOCKS);
            for (uint32_t k = 0; k < N; k++)
                swap_slot_give(r->sw, STORE_BLOCKS, w[k].slot);
            swap_order_free(r->sw, o);
            swap_order_free(r->sw, again);
            o = writes(r, N, w);
        } else {
            swap_order_free(r->sw, o);
            o = reads(r, N, w);
        }
    }
    faults_clear();
    wait_for_answer(r, o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    swap_order_free(r->sw, o);
    struct swap_facts after = swap_facts(r->sw);
    ck_assert_uint_eq(after.errors - before.errors, way == COPIER_IN ? TIMES * A_STAGE : 0);
    for (uint32_t k = 0; k < N; k++) {
        ck_assert_int_eq(rig_read(r, &w[k]), SWAP_GOOD);
        swap_slot_give(r->sw, STORE_BLOCKS, w[k].slot);
    }
}

START_TEST(copies_that_fail)
{
    struct rig r;
    begin(&r, _i, 3);
    for (int begins = 0; begins < 2; begins++)
        for (unsigned device = 0; device < 3; device++) {
            failing(&r, COPIER_OUT, begins, device);
            failing(&r, COPIER_IN, begins, device);
        }
    rig_deinit(&r);
}
END_TEST

/* All of them, all the time: nothing is written, nothing hangs, and the file is as well as ever. */
START_TEST(no_copy_at_all)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, 2);
    faults_copy(COPIER_OUT, false, 0, UINT_MAX);
    for (int i = 0; i < 3; i++) {
        struct swap_order *o = writes(&r, N, w);
        wait_for_answer(&r, o);
        ck_assert_uint_eq(count(o, SWAP_REFUSED), N);
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(swap_facts(r.sw).writes, 0);
    ck_assert(swap_facts(r.sw).healthy);
    rig_stop(&r);
    faults_clear();
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, NULL, 0), 0);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w[0]), SWAP_GOOD);
    ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

/* ---- copies that are late ---- */

/* Several are under way at once, and nobody asks for one without an end: in 400 ms about 20 times
 * until a millisecond has gone by, then each millisecond. */
START_TEST(late_copies)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, 1);
    faults_copies_late(UINT_MAX);
    struct swap_order *o = writes(&r, N, w);
    swap_submit(r.sw, o);
    EVENTUALLY(WAIT_MS, faults_copies().under_way == N / A_STAGE);
    unsigned asked = faults_copies().asked;
    sleep_us(400 * 1000);
    asked = faults_copies().asked - asked;
    ck_assert_uint_gt(asked, 0);
    ck_assert_uint_lt(asked, N / A_STAGE * (400 + 40));
    ck_assert_ptr_null(swap_take(r.sw));
    faults_copies_late(0);
    ck_assert_ptr_eq(rig_take(&r), o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    swap_order_free(r.sw, o);
    faults_copies_late(50);
    o = reads(&r, N, w);
    wait_for_answer(&r, o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    pages_fit(&r, o, w);
    swap_order_free(r.sw, o);
    ck_assert_uint_ge(faults_copies().most, 2);
    rig_deinit(&r);
}
END_TEST

static struct swap_order *one(struct rig *r, const struct written *w, uint32_t page)
{
    struct swap_order *o = rig_order(r, w ? SWAP_READ : SWAP_WRITE, STORE_BLOCKS);
    if (w)
        rig_add_read(o, w->slot, w->generation, page);
    else
        REQUIRE(rig_add_write(r, o, page, 0, 1));
    swap_submit(r->sw, o);
    return o;
}

static void take_all(struct rig *r, unsigned n)
{
    while (n--) {
        struct swap_order *o = rig_take(r);
        ck_assert_int_eq(o->status, SWAP_GOOD);
        swap_order_free(r->sw, o);
    }
}

/* Writes that stand still leave a quarter of the stages, so a read passes them; and the other way
 * round, once writes wait. */
START_TEST(neither_holds_all)
{
    enum { MOST = STAGES - STAGES / 4, MANY = 2 * STAGES };
    struct rig r;
    struct written w;
    begin(&r, _i, 1);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    faults_clear();
    faults_copies_late(UINT_MAX);
    for (uint32_t i = 0; i < MANY; i++)
        one(&r, NULL, i % N);
    EVENTUALLY(WAIT_MS, faults_copies().under_way == MOST);
    sleep_us(20000);
    ck_assert_uint_eq(faults_copies().under_way, MOST);
    for (uint32_t i = 0; i < MANY; i++)
        one(&r, &w, i % N);
    EVENTUALLY(WAIT_MS, faults_copies().under_way == STAGES);
    sleep_us(20000);
    ck_assert_uint_eq(faults_copies().begun, STAGES); /* no more, and they wait */
    faults_copies_late(1);
    take_all(&r, 2 * MANY);
    rig_deinit(&r);
}
END_TEST

/* One for both, as of records of gigabytes: in turn. (Answers need not be: a write leaves it before
 * its header is written, and that may take long.) */
START_TEST(in_turn)
{
    enum { EACH = 12 };
    struct rig r;
    struct written w;
    setenv("SWAP_STAGED", "1", 1);
    rig_init(&r, PAGE, N, 4 * N);
    r.config.uring = _i == 0;
    r.config.store[STORE_BLOCKS].buffers.n = 1;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 4 * N);
    ck_assert_int_eq(rig_write(&r, 0, 1, &w), SWAP_GOOD);
    faults_clear();
    faults_copies_late(UINT_MAX);
    for (uint32_t i = 0; i < EACH; i++)
        one(&r, NULL, i);
    for (uint32_t i = 0; i < EACH; i++)
        one(&r, &w, EACH + i);
    EVENTUALLY(WAIT_MS, faults_copies().under_way == 1);
    sleep_us(20000);
    faults_copies_late(1);
    take_all(&r, 2 * EACH);
    ck_assert_uint_eq(faults_copies().begun, 2 * EACH);
    ck_assert_uint_eq(faults_copies().most, 1);
    ck_assert_uint_le(faults_copies().longest, 2); /* the first may be one before the reads came */
    rig_deinit(&r);
}
END_TEST

/* ---- the end ---- */

static void *let_go(void *arg)
{
    (void)arg;
    sleep_us(300 * 1000);
    faults_copies_late(0);
    return NULL;
}

/* Copies are waited for, both ways; what has no buffer yet is given up. */
START_TEST(stop_waits_for_copies)
{
    for (int read = 0; read < 2; read++) {
        struct rig r;
        struct written w[N], found[4 * N];
        begin(&r, _i, 2);
        struct swap_order *o = writes(&r, N, w);
        wait_for_answer(&r, o);
        ck_assert_int_eq(o->status, SWAP_GOOD);
        swap_order_free(r.sw, o);
        faults_copies_late(UINT_MAX);
        for (uint32_t i = 0; i < 2 * STAGES; i++)
            one(&r, read ? &w[i] : NULL, i);
        unsigned busy = read ? STAGES : STAGES - STAGES / 4;
        EVENTUALLY(WAIT_MS, faults_copies().under_way == 2 * busy);
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
        uint64_t began = now_ms();
        rig_stop(&r);
        ck_assert_uint_ge(now_ms() - began, 250);
        pthread_join(thread, NULL);
        ck_assert_uint_eq(faults_copies().under_way, 0);
        memset(r.pool[0], 0xee, r.pool_bytes[0] * 2);
        rig_start_only(&r);
        uint32_t n = rig_scan(&r, found, 4 * N);
        ck_assert_uint_eq(n, read ? N : N + busy);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_int_eq(rig_read(&r, &found[i]), SWAP_GOOD);
        rig_deinit(&r);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_stage");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, buffers);
    tcase_add_loop_test(t, large_records, 0, 2);
    tcase_add_loop_test(t, damage_does_not_reach_the_pool, 0, 2);
    tcase_add_loop_test(t, copies_that_fail, 0, 2);
    tcase_add_loop_test(t, no_copy_at_all, 0, 2);
    tcase_add_loop_test(t, late_copies, 0, 2);
    tcase_add_loop_test(t, neither_holds_all, 0, 2);
    tcase_add_loop_test(t, in_turn, 0, 2);
    tcase_add_loop_test(t, stop_waits_for_copies, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
