/* What the kernel and the device may do, one at a time and all at once, over both engines. */
#include "daemon/swap_private.h"
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <stdio.h>
#include <string.h>

enum { N = 64, PAGE = 64 << 10 };

static const struct fault_where any_read = {.reads = true, .payload = true, .from = SWAP_EXTENTS};
static const struct fault_where any_write = {.writes = true, .payload = true, .from = SWAP_EXTENTS};
static const struct fault_where any_header = {
    .writes = true, .headers = true, .from = SWAP_EXTENTS};

static void begin(struct rig *r, int engine, struct written *w)
{
    rig_init(r, PAGE, N, 2 * N);
    r->config.uring = engine == 0;
    rig_start(r);
    rig_wait_ready(r, STORE_BLOCKS, 2 * N);
    rig_tell_faults(r);
    faults_clear();
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(r, 0, 1, &w[i]), SWAP_GOOD);
}

/* All of them in one order, into their pages. */
static struct swap_order *read_all(struct rig *r, const struct written *w)
{
    struct swap_order *o = rig_order(r, SWAP_READ, STORE_BLOCKS);
    for (uint32_t i = 0; i < N; i++) {
        page_fill(r, STORE_BLOCKS, i, 0);
        rig_add_read(o, w[i].slot, w[i].generation, i);
    }
    swap_submit(r->sw, o);
    ck_assert_ptr_eq(rig_take(r), o);
    for (uint32_t i = 0; i < N; i++)
        if (o->record[i].status == SWAP_GOOD)
            REQUIRE(page_is(r, STORE_BLOCKS, i, w[i].generation));
    return o;
}

static unsigned count(const struct swap_order *o, enum swap_status status)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < o->n; i++)
        n += o->record[i].status == status;
    return n;
}

/* B31: these are finished, and nobody notices. */
START_TEST(passing_faults_of_reads)
{
    static const enum fault kinds[] = {FAULT_SHORT, FAULT_EAGAIN,  FAULT_EINTR,
                                       FAULT_DELAY, FAULT_REORDER, FAULT_ODD};
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    for (int k = 0; k < 6; k++) {
        faults_clear();
        faults_plan(kinds[k], any_read, 0, 3);
        faults_plan(kinds[k], any_read, 2, 3);
        struct swap_order *o = read_all(&r, w);
        ck_assert_int_eq(o->status, SWAP_GOOD);
        ck_assert_uint_gt(faults_done(), 0);
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(swap_facts(r.sw).errors, 0);
    ck_assert(r.sw->file[0].direct); /* goes on from an aligned place */
    rig_deinit(&r);
}
END_TEST

/* A result of 0, an error, rot: these are said, of the records they hit and of no others. */
START_TEST(lasting_faults_of_reads)
{
    static const struct {
        enum fault fault;
        enum swap_status status;
    } rows[] = {{FAULT_ZERO, SWAP_CORRUPT},
                {FAULT_EIO, SWAP_FAILED},
                {FAULT_CANCEL, SWAP_FAILED},
                {FAULT_FLIP, SWAP_CORRUPT}};
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    for (int k = 0; k < 4; k++) {
        uint64_t at = rig_slot_offset(&r, w[10].slot);
        const struct fault_where where = {.reads = true, .from = at, .to = at + PAGE};
        faults_clear();
        faults_plan(rows[k].fault, where, 0, 2);
        struct swap_order *o = rig_order(&r, SWAP_READ, STORE_BLOCKS);
        for (uint32_t i = 0; i < 20; i++) /* apart in the pool, and in the file: each by itself */
            rig_add_read(o, w[i * 7 % 20].slot, w[i * 7 % 20].generation, i * 3);
        swap_submit(r.sw, o);
        ck_assert_ptr_eq(rig_take(&r), o);
        ck_assert_int_eq(o->record[10].status, rows[k].status);
        ck_assert_uint_eq(count(o, SWAP_GOOD), 19);
        swap_order_free(r.sw, o);
        faults_clear();
        o = read_all(&r, w);
        ck_assert_int_eq(o->status, SWAP_GOOD);
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(swap_facts(r.sw).errors, 4);
    ck_assert(swap_facts(r.sw).healthy);
    rig_deinit(&r);
}
END_TEST

/* One bad slot among neighbours that went as one operation. */
START_TEST(one_of_several)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    faults_plan(FAULT_EIO, any_read, 1, 1);
    struct swap_order *o = read_all(&r, w);
    ck_assert_int_eq(o->status, SWAP_GOOD); /* each was tried again by itself */
    swap_order_free(r.sw, o);
    ck_assert_uint_eq(faults_done(), 1);
    rig_deinit(&r);
}
END_TEST

START_TEST(faults_of_writes)
{
    static const struct {
        enum fault fault;
        enum swap_status status;
        bool header;
    } rows[] = {
        {FAULT_SHORT, SWAP_GOOD, false},   {FAULT_EAGAIN, SWAP_GOOD, false},
        {FAULT_EINTR, SWAP_GOOD, false},   {FAULT_DELAY, SWAP_GOOD, false},
        {FAULT_REORDER, SWAP_GOOD, false}, {FAULT_ODD, SWAP_GOOD, false},
        {FAULT_EIO, SWAP_FAILED, false},   {FAULT_ZERO, SWAP_FAILED, false},
        {FAULT_ENOSPC, SWAP_FULL, false},  {FAULT_CANCEL, SWAP_FAILED, false},
        {FAULT_SHORT, SWAP_GOOD, true},    {FAULT_EINTR, SWAP_GOOD, true},
        {FAULT_EIO, SWAP_FAILED, true},    {FAULT_ENOSPC, SWAP_FULL, true},
        {FAULT_CANCEL, SWAP_FAILED, true},
    };
    struct rig r;
    struct written w[N], x;
    begin(&r, _i, w);
    for (unsigned k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        faults_clear();
        faults_plan(rows[k].fault, rows[k].header ? any_header : any_write, 0, 1);
        ck_assert_int_eq(rig_write(&r, 0, 1, &x), rows[k].status);
        ck_assert_uint_eq(faults_done(), 1);
        ck_assert_int_eq(rig_read(&r, &x), rows[k].status == SWAP_GOOD ? SWAP_GOOD : SWAP_CORRUPT);
        faults_clear();
        if (rows[k].status == SWAP_GOOD)
            swap_slot_give(r.sw, STORE_BLOCKS, x.slot);
    }
    faults_plan(FAULT_FLIP, any_write, 0, 1); /* nobody can know before it is read */
    ck_assert_int_eq(rig_write(&r, 0, 1, &x), SWAP_GOOD);
    ck_assert_int_eq(rig_read(&r, &x), SWAP_CORRUPT);
    rig_deinit(&r);
}
END_TEST

/* No progress, for ever: it ends. */
START_TEST(no_endless_tries)
{
    static const enum fault kinds[] = {FAULT_EAGAIN, FAULT_EINTR};
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    for (int k = 0; k < 2; k++) {
        faults_clear();
        faults_plan(kinds[k], any_read, 0, 1000000);
        ck_assert_int_eq(rig_read(&r, &w[k]), SWAP_FAILED);
        ck_assert_uint_eq(faults_done(), SWAP_TRIES);
    }
    faults_clear();
    ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

/* A cancelled operation's completion comes when its place, and its page, are used by another. */
START_TEST(late_completions)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    r.config.depth = 4;
    for (int round = 0; round < 40; round++) {
        faults_plan(FAULT_CANCEL, any_read, 0, 1);
        ck_assert_int_eq(rig_read(&r, &w[round]), SWAP_FAILED);
        faults_clear();
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(rig_read(&r, &w[(round + i) % N]), SWAP_GOOD);
            sleep_us(5000);
        }
    }
    sleep_us(50 * 1000);
    ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD);
    ck_assert_uint_ge(swap_facts(r.sw).late, 35);
    ck_assert_uint_le(swap_facts(r.sw).late, 40);
    rig_deinit(&r);
}
END_TEST

/* 1,000 reads through a queue of depth 8, with all that passes: each ends once. */
START_TEST(a_thousand_through_eight)
{
    struct rig r;
    struct written w[N];
    rig_init(&r, PAGE, N, 2 * N);
    r.config.uring = _i == 0;
    r.config.depth = 8;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 2 * N);
    rig_tell_faults(&r);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(&r, 0, 1, &w[i]), SWAP_GOOD);
    struct rng rng = rng_seeded("a thousand");
    faults_random(FAULT_SHORT | FAULT_EAGAIN | FAULT_EINTR | FAULT_DELAY | FAULT_REORDER, any_read,
                  300, rng_next(&rng));
    unsigned sent = 0, done = 0;
    bool out[N] = {false};
    while (done < 1000) {
        struct swap_order *o = sent < 1000 ? swap_order_new(r.sw, SWAP_READ, STORE_BLOCKS) : NULL;
        if (o) {
            for (uint32_t i = 0; i < N && o->n < 4 && sent < 1000; i++) {
                uint32_t page = rng_below(&rng, N);
                if (out[page])
                    continue;
                out[page] = true;
                const struct written *x = &w[rng_below(&rng, N)];
                rig_add_read(o, x->slot, x->generation, page);
                sent++;
            }
            if (o->n) {
                swap_submit(r.sw, o);
                continue;
            }
            swap_order_free(r.sw, o);
        }
        o = rig_take(&r);
        ck_assert_int_eq(o->status, SWAP_GOOD);
        for (uint32_t i = 0; i < o->n; i++) {
            REQUIRE(out[o->record[i].record]);
            REQUIRE(page_is(&r, STORE_BLOCKS, o->record[i].record, o->record[i].generation));
            out[o->record[i].record] = false;
        }
        done += o->n;
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(swap_facts(r.sw).reads, 1000);
    ck_assert_uint_gt(faults_done(), 100);
    rig_deinit(&r);
}
END_TEST

/* A device that fails: after some errors nothing is tried, until a probe succeeds. */
START_TEST(sick_and_well_again)
{
    struct rig r;
    struct written w[N], x;
    begin(&r, _i, w);
    faults_plan(FAULT_EIO, (struct fault_where){.from = 0}, 0, 1000000);
    for (int i = 0; i < SWAP_ERRORS; i++) {
        ck_assert(swap_facts(r.sw).healthy);
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_FAILED);
    }
    ck_assert(!swap_facts(r.sw).healthy);
    unsigned tried = faults_done();
    uint64_t start = now_ms();
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(rig_read(&r, &w[i % N]), SWAP_FAILED);
    ck_assert_int_eq(rig_write(&r, 0, 1, &x), SWAP_REFUSED);
    swap_slot_give(r.sw, STORE_BLOCKS, x.slot);
    ck_assert_uint_lt(now_ms() - start, 1500 * SLOW);
    ck_assert_uint_le(faults_done(), tried + 1); /* a probe at most */
    sleep_us(2500 * 1000);
    ck_assert(!swap_facts(r.sw).healthy);
    faults_clear();
    EVENTUALLY(10000, swap_facts(r.sw).healthy);
    ck_assert_int_eq(rig_read(&r, &w[0]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, 0, 1, &x), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

/* A sick file of two: what is new goes to the other, whose reads go on. */
START_TEST(one_sick_of_two)
{
    enum { EACH = 40 };
    struct rig r, more;
    struct written w[20], x;
    faults_clear();
    rig_init(&r, PAGE, N, EACH);
    rig_init(&more, PAGE, 1, 1);
    memcpy(r.dir[1], more.dir[0], sizeof r.dir[1]);
    memset(more.dir[0], 0, sizeof more.dir[0]); /* ours now */
    rig_deinit(&more);
    r.config.path[1] = r.dir[1];
    r.config.n_paths = 2;
    r.config.uring = _i == 0;
    rig_budget(&r, STORE_BLOCKS, EACH);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 2 * EACH);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(rig_write(&r, 0, 1, &w[i]), SWAP_GOOD);
    faults_plan(FAULT_EIO, (struct fault_where){.file = 1}, 0, 1000000);
    for (int i = 0; i < 20; i++) /* in turn from each: 10 are in the first */
        ck_assert_int_eq(rig_read(&r, &w[i]), w[i].slot < EACH ? SWAP_FAILED : SWAP_GOOD);
    ck_assert(!swap_facts(r.sw).healthy);
    ck_assert(swap_facts(r.sw).writable);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), EACH - 10);
    for (int i = 10; i < EACH; i++) {
        ck_assert_int_eq(rig_write(&r, 0, 1, &x), SWAP_GOOD);
        ck_assert_uint_ge(x.slot, EACH);
        ck_assert_int_eq(rig_read(&r, &x), SWAP_GOOD);
    }
    uint32_t slot;
    ck_assert_uint_eq(swap_slots_take(r.sw, STORE_BLOCKS, 1, &slot), 0);
    faults_clear();
    EVENTUALLY(10000, swap_facts(r.sw).healthy);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), EACH - 10);
    ck_assert_int_eq(rig_write(&r, 0, 1, &x), SWAP_GOOD);
    ck_assert_uint_lt(x.slot, EACH);
    rig_deinit(&r);
}
END_TEST

/* An operation that hangs takes only its own order with it. */
START_TEST(hanging)
{
    struct rig r;
    struct written w[N];
    begin(&r, _i, w);
    faults_plan(FAULT_HANG, any_read, 0, 1);
    struct swap_order *o = rig_order(&r, SWAP_READ, STORE_BLOCKS);
    rig_add_read(o, w[0].slot, w[0].generation, 0);
    swap_submit(r.sw, o);
    for (int i = 1; i < N; i++)
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
    faults_clear(); /* it comes back */
    ck_assert_ptr_eq(rig_take(&r), o);
    ck_assert_int_eq(o->status, SWAP_GOOD);
    swap_order_free(r.sw, o);
    rig_deinit(&r);
}
END_TEST

/* Everything, on everything but the scan: what is said to be good is exact; slots are never shared.
 */
START_TEST(storm)
{
    enum { ROUNDS = 400, HELD = 2 * N };
    struct rig r;
    struct written held[HELD];
    unsigned n_held = 0, outcome[5] = {0};
    struct rng rng = rng_seeded("storm");
    rig_init(&r, PAGE, N, HELD);
    r.config.uring = _i == 0;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, HELD);
    rig_tell_faults(&r);
    struct fault_where where = {.from = SWAP_EXTENTS};
    faults_random(((1 << FAULT_KINDS) - 1) & ~FAULT_HANG, where, 60, rng_next(&rng));
    for (int round = 0; round < ROUNDS; round++) {
        if (n_held < HELD / 2 || (rng_below(&rng, 2) && n_held < HELD - 8)) {
            struct swap_order *o = rig_order(&r, SWAP_WRITE, STORE_BLOCKS);
            for (uint32_t n = 1 + rng_below(&rng, 8); n && swap_free(r.sw, STORE_BLOCKS); n--)
                rig_add_write(&r, o, o->n * 2 % N, 0, 1);
            swap_submit(r.sw, o);
            ck_assert_ptr_eq(rig_take(&r), o);
            for (uint32_t i = 0; i < o->n; i++) {
                const struct swap_record *x = &o->record[i];
                outcome[x->status]++;
                if (x->status == SWAP_GOOD)
                    held[n_held++] = (struct written){x->slot, x->generation, 0, 1};
                else
                    swap_slot_give(r.sw, STORE_BLOCKS, x->slot);
            }
            swap_order_free(r.sw, o);
        } else {
            unsigned at = rng_below(&rng, n_held);
            enum swap_status status = rig_read(&r, &held[at]);
            outcome[status]++;
            if (status == SWAP_CORRUPT || rng_below(&rng, 2)) {
                swap_slot_give(r.sw, STORE_BLOCKS, held[at].slot);
                held[at] = held[--n_held];
            }
        }
        if (!swap_facts(r.sw).healthy)
            EVENTUALLY(20000, swap_facts(r.sw).healthy);
    }
    fprintf(stderr, "good %u, corrupt %u, failed %u, full %u, refused %u, late %llu\n", outcome[0],
            outcome[1], outcome[2], outcome[3], outcome[4],
            (unsigned long long)swap_facts(r.sw).late);
    ck_assert_uint_gt(outcome[SWAP_GOOD], ROUNDS);
    faults_clear();
    unsigned good = 0;
    for (unsigned i = 0; i < n_held; i++)
        good += rig_read(&r, &held[i]) == SWAP_GOOD;
    ck_assert_uint_ge(good, n_held * 8 / 10); /* but for flipped bits */
    rig_stop(&r);
    rig_start_only(&r);
    struct written found[HELD];
    uint32_t n = rig_scan(&r, found, HELD);
    ck_assert_uint_ge(n, n_held - 30); /* but for flipped headers */
    for (uint32_t i = 0; i < n; i++)
        rig_read(&r, &found[i]); /* exact, or not GOOD */
    rig_deinit(&r);
}
END_TEST

/* The scan itself meets them. */
START_TEST(faults_of_the_scan)
{
    struct rig r;
    struct written w[N], found[2 * N];
    begin(&r, _i, w);
    rig_stop(&r);
    faults_random(FAULT_SHORT | FAULT_EAGAIN | FAULT_EINTR | FAULT_DELAY | FAULT_REORDER,
                  (struct fault_where){.reads = true}, 500, 5);
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, 2 * N), N);
    rig_stop(&r);
    faults_clear();
    faults_plan(FAULT_EIO, (struct fault_where){.reads = true}, 0,
                1); /* the headers' first reading */
    rig_start_only(&r);
    uint32_t n = rig_scan(&r, found, 2 * N);
    ck_assert_uint_lt(n, N);
    ck_assert_uint_le(swap_free(r.sw, STORE_BLOCKS), 2 * N - N); /* what was not seen is not used */
    ck_assert_uint_gt(swap_generation(r.sw), w[N - 1].generation);
    rig_stop(&r);
    faults_clear();
    faults_plan(FAULT_FLIP, (struct fault_where){.reads = true}, 0, 100);
    rig_start_only(&r);
    n = rig_scan(&r, found, 2 * N);
    ck_assert_uint_lt(n, N + 1);
    faults_clear();
    for (uint32_t i = 0; i < n; i++)
        rig_read(&r, &found[i]);
    rig_deinit(&r);
}
END_TEST

/* What reads differently the second time is dropped, and all that hangs on it in the same window.
 */
START_TEST(second_reading)
{
    struct rig r;
    struct written w[N], found[N];
    unsigned cut = 0;
    rig_init(&r, 4096, N, N);
    r.config.uring = _i == 0;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_write(&r, i ? w[i - 1].generation : 0, 1, &w[i]), SWAP_GOOD);
    for (int round = 0; round < 20; round++) {
        rig_stop(&r);
        faults_clear();
        faults_random(0, (struct fault_where){0}, 0, (uint64_t)round); /* which bit */
        faults_plan(FAULT_FLIP, (struct fault_where){.reads = true}, N / 16, 1);
        rig_start_only(&r);
        uint32_t n = rig_scan(&r, found, N);
        cut += n < N; /* but for a bit of no meaning */
        for (uint32_t i = 0; i < n; i++)
            ck_assert_uint_eq(found[i].generation, w[i].generation);
    }
    ck_assert_uint_gt(cut, 10);
    rig_deinit(&r);
}
END_TEST

/* Stopped while much is under way, and some of it goes wrong: all of it has come back before. */
START_TEST(stop_in_the_middle)
{
    struct rng rng = rng_seeded("stop");
    for (int round = 0; round < 20; round++) {
        struct rig r;
        rig_init(&r, PAGE, N, 2 * N);
        r.config.uring = _i == 0;
        rig_start(&r);
        rig_wait_ready(&r, STORE_BLOCKS, 2 * N);
        rig_tell_faults(&r);
        faults_random(FAULT_DELAY | FAULT_REORDER | FAULT_SHORT | FAULT_EIO, any_write, 200,
                      rng_next(&rng));
        for (int k = 0; k < 8; k++) {
            struct swap_order *o = rig_order(&r, SWAP_WRITE, STORE_BLOCKS);
            for (uint32_t i = 0; i < 8; i++)
                rig_add_write(&r, o, (uint32_t)k * 8 + i, 0, 1);
            swap_submit(r.sw, o);
        }
        sleep_us(rng_below(&rng, 5000));
        rig_stop(&r);
        memset(r.pool[0], 0xee, r.pool_bytes[0]); /* nothing is written from here any more */
        faults_clear();
        struct written found[2 * N];
        rig_start_only(&r);
        uint32_t n = rig_scan(&r, found, 2 * N);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_int_eq(rig_read(&r, &found[i]), SWAP_GOOD);
        rig_deinit(&r);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_faults");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_loop_test(t, passing_faults_of_reads, 0, 2);
    tcase_add_loop_test(t, lasting_faults_of_reads, 0, 2);
    tcase_add_loop_test(t, one_of_several, 0, 2);
    tcase_add_loop_test(t, faults_of_writes, 0, 2);
    tcase_add_loop_test(t, no_endless_tries, 0, 2);
    tcase_add_loop_test(t, late_completions, 0, 2);
    tcase_add_loop_test(t, a_thousand_through_eight, 0, 2);
    tcase_add_loop_test(t, sick_and_well_again, 0, 2);
    tcase_add_loop_test(t, one_sick_of_two, 0, 2);
    tcase_add_loop_test(t, hanging, 0, 2);
    tcase_add_loop_test(t, storm, 0, 2);
    tcase_add_loop_test(t, faults_of_the_scan, 0, 2);
    tcase_add_loop_test(t, second_reading, 0, 2);
    tcase_add_loop_test(t, stop_in_the_middle, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
