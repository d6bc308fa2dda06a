/* Writing, reading, and what a restart finds, over both engines (loop 0: io_uring, 1: threads). */
#include "daemon/swap_private.h"
#include "tests/swap/faults.h"
#include "tests/swap/rig.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void begin(struct rig *r, int engine, uint64_t record_bytes, uint64_t pages, uint64_t slots)
{
    rig_init(r, record_bytes, pages, slots);
    r->config.uring = engine == 0;
}

START_TEST(write_read_restart)
{
    struct rig r;
    begin(&r, _i, 64 << 10, 64, 100);
    rig_start(&r);
    ck_assert_int_eq(swap_facts(r.sw).uring, _i == 0);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 100);
    rig_wait_ready(&r, STORE_BLOCKS, 100);
    struct written w[100], found[100];
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(rig_write(&r, i ? w[i - 1].generation : 0, 5, &w[i]), SWAP_GOOD);
        ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), (unsigned)(99 - i));
    }
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
    rig_stop(&r);
    rig_start_only(&r);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0);
    ck_assert_uint_eq(rig_scan(&r, found, 100), 100);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 0);
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_eq(found[i].slot, w[i].slot);
        ck_assert_uint_eq(found[i].generation, w[i].generation);
        ck_assert_uint_eq(found[i].parent, w[i].parent);
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
    }
    ck_assert_uint_gt(swap_generation(r.sw), w[99].generation);
    ck_assert_uint_eq(swap_facts(r.sw).errors, 0);
    rig_deinit(&r);
}
END_TEST

/* Orders of 64 neighbours, several under way; pages in and out of order. */
static void write_many(struct rig *r, uint32_t pages, bool in_order, struct written *w)
{
    struct swap_order *o[8];
    uint32_t page = 0, per = pages / 8;
    for (int k = 0; k < 8; k++) {
        o[k] = rig_order(r, SWAP_WRITE, STORE_BLOCKS);
        for (uint32_t i = 0; i < per; i++, page++) {
            uint32_t at = in_order ? page : page ^ 1;
            struct swap_record *record = rig_add_write(r, o[k], at, 0, 1);
            w[page] = (struct written){record->slot, record->generation, 0, 1};
        }
        swap_submit(r->sw, o[k]);
    }
    for (int k = 0; k < 8; k++) {
        struct swap_order *got = rig_take(r);
        ck_assert_int_eq(got->status, SWAP_GOOD);
        swap_order_free(r->sw, got);
    }
}

static void read_many(struct rig *r, uint32_t pages, const struct written *w)
{
    uint32_t per = pages / 8;
    for (uint32_t i = 0; i < pages; i++)
        page_fill(r, STORE_BLOCKS, i, 0);
    for (uint32_t k = 0; k < 8; k++) {
        struct swap_order *o = rig_order(r, SWAP_READ, STORE_BLOCKS);
        for (uint32_t i = k * per; i < (k + 1) * per; i++)
            rig_add_read(o, w[i].slot, w[i].generation, i);
        swap_submit(r->sw, o);
    }
    for (int k = 0; k < 8; k++) {
        struct swap_order *got = rig_take(r);
        ck_assert_int_eq(got->status, SWAP_GOOD);
        swap_order_free(r->sw, got);
    }
    for (uint32_t i = 0; i < pages; i++)
        REQUIRE(page_is(r, STORE_BLOCKS, i, w[i].generation));
}

START_TEST(many_at_once)
{
    static const uint64_t sizes[] = {4096, 64 << 10, 320 << 10, 64, 1000};
    for (int k = 0; k < 5; k++)
        for (int in_order = 0; in_order < 2; in_order++) {
            struct rig r;
            struct written w[128];
            begin(&r, _i, sizes[k], 128, 128);
            rig_start(&r);
            rig_wait_ready(&r, STORE_BLOCKS, 128);
            write_many(&r, 128, in_order, w);
            read_many(&r, 128, w);
            struct swap_facts f = swap_facts(r.sw);
            ck_assert_uint_eq(f.reads, 128);
            ck_assert_uint_eq(f.writes, 128);
            ck_assert_uint_eq(f.bytes_written, 128 * sizes[k]);
            ck_assert_uint_eq(f.errors + f.late, 0);
            ck_assert(f.healthy);
            rig_deinit(&r);
        }
}
END_TEST

/* Pieces of several devices, longer than an operation, and of an odd length. */
START_TEST(pieces)
{
    struct rig r;
    begin(&r, _i, 4096, 4, 8);
    rig_store(&r, STORE_BLOCKS, (2 << 20) + 1000 * 8, 4, 6, RIG_DEVICES);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 6);
    struct written w[6], found[6];
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(rig_write(&r, 0, 0, &w[i]), SWAP_GOOD);
    for (int i = 0; i < 6; i++) {
        page_fill(&r, STORE_BLOCKS, 2, 77);
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
        REQUIRE(page_is(&r, STORE_BLOCKS, 2, 77)); /* nothing beside it was touched */
    }
    rig_stop(&r);
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, 6), 6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(rig_read(&r, &w[i]), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

START_TEST(generation_and_slot_are_checked)
{
    struct rig r;
    begin(&r, _i, 8192, 8, 16);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 16);
    struct written w;
    ck_assert_int_eq(rig_write(&r, 0, 0, &w), SWAP_GOOD);
    struct written wrong = w;
    wrong.generation++;
    ck_assert_int_eq(rig_read(&r, &wrong), SWAP_CORRUPT);
    wrong = w;
    wrong.slot++;
    ck_assert_int_eq(rig_read(&r, &wrong), SWAP_CORRUPT);
    wrong.slot = 16; /* of no file */
    ck_assert_int_eq(rig_read(&r, &wrong), SWAP_CORRUPT);
    ck_assert_int_eq(rig_read(&r, &w), SWAP_GOOD);

    struct swap_order *o = rig_order(&r, SWAP_READ, STORE_BLOCKS); /* each its own status */
    rig_add_read(o, w.slot, w.generation, 2);
    rig_add_read(o, w.slot, w.generation + 1, 3);
    rig_add_read(o, w.slot, w.generation, 4);
    swap_submit(r.sw, o);
    ck_assert_ptr_eq(rig_take(&r), o);
    ck_assert_int_eq(o->record[0].status, SWAP_GOOD);
    ck_assert_int_eq(o->record[1].status, SWAP_CORRUPT);
    ck_assert_int_eq(o->record[2].status, SWAP_GOOD);
    ck_assert_int_eq(o->status, SWAP_CORRUPT);
    REQUIRE(page_is(&r, STORE_BLOCKS, 4, w.generation));
    swap_order_free(r.sw, o);
    rig_deinit(&r);
}
END_TEST

/* What hangs on nothing does not come back; parents come first, wherever their slots are. */
START_TEST(chains)
{
    struct rig r;
    begin(&r, _i, 4096, 8, 64);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 64);
    struct written w[8], found[8];
    ck_assert_int_eq(rig_write(&r, 0, 1, &w[0]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, w[0].generation, 1, &w[1]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, w[1].generation, 1, &w[2]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, w[2].generation, 1, &w[3]), SWAP_GOOD);
    ck_assert_int_eq(rig_write(&r, 999, 1, &w[4]), SWAP_GOOD); /* a later one, or none */
    ck_assert_int_eq(rig_write(&r, w[0].generation, 1, &w[5]), SWAP_GOOD);
    swap_slot_give(r.sw, STORE_BLOCKS, w[1].slot);
    ck_assert_int_eq(rig_retire(&r, w[1].slot), SWAP_GOOD); /* 2 and 3 lose what they hang on */
    rig_stop(&r);
    rig_start_only(&r);
    ck_assert_uint_eq(rig_scan(&r, found, 8), 2);
    ck_assert_uint_eq(found[0].generation, w[0].generation);
    ck_assert_uint_eq(found[1].generation, w[5].generation);
    ck_assert_uint_eq(swap_free(r.sw, STORE_BLOCKS), 64 - 2 - 1);
    rig_deinit(&r);
}
END_TEST

/* Several paths, both stores; snapshots hang on blocks. */
START_TEST(paths_and_stores)
{
    struct rig r;
    begin(&r, _i, 8192, 32, 0);
    for (unsigned p = 1; p < 3; p++) {
        struct rig more;
        rig_init(&more, 4096, 1, 1);
        memcpy(r.dir[p], more.dir[0], sizeof r.dir[p]);
        r.config.path[p] = r.dir[p];
        memset(more.dir[0], 0, sizeof more.dir[0]); /* ours now */
        rig_deinit(&more);
    }
    r.config.n_paths = 3;
    rig_budget(&r, STORE_BLOCKS, 20);
    rig_store(&r, STORE_SNAPSHOTS, 300 << 10, 4, 5, 1);
    rig_start(&r);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_BLOCKS), 60);
    ck_assert_uint_eq(swap_slots(r.sw, STORE_SNAPSHOTS), 15);
    rig_wait_ready(&r, STORE_BLOCKS, 60);
    rig_wait_ready(&r, STORE_SNAPSHOTS, 15);
    struct written w[60];
    unsigned in_file[3] = {0};
    for (int i = 0; i < 60; i++) {
        ck_assert_int_eq(rig_write(&r, i % 6 ? w[i - 1].generation : 0, 3, &w[i]), SWAP_GOOD);
        in_file[w[i].slot / 20]++;
        if (i == 29)
            for (int p = 0; p < 3; p++)
                ck_assert_uint_eq(in_file[p], 10); /* in turn from each */
    }
    for (int i = 0; i < 15; i++) {
        struct swap_order *o = rig_order(&r, SWAP_WRITE, STORE_SNAPSHOTS);
        ck_assert_ptr_nonnull(rig_add_write(&r, o, 1, i < 10 ? w[i].generation : 7777, 3));
        ck_assert_int_eq(rig_run(&r, o), SWAP_GOOD);
    }
    rig_stop(&r);
    rig_start_only(&r);
    unsigned n[SWAP_STORES] = {0};
    for (bool last = false; !last;) {
        struct swap_order *o = rig_take(&r);
        n[o->store] += o->n;
        for (uint32_t i = 0; i < o->n; i++) {
            const struct body *b = (const struct body *)(const void *)o->record[i].body;
            uint64_t parent = b->prefix.parent_generation;
            if (parent)
                ck_assert_uint_eq(w[parent - 1].slot, b->prefix.parent_slot);
            else
                ck_assert_uint_eq(b->prefix.parent_slot, NO_SLOT);
            if (o->store == STORE_SNAPSHOTS)
                ck_assert_uint_eq(n[STORE_BLOCKS], 60); /* all blocks before */
        }
        last = o->last;
        swap_order_free(r.sw, o);
    }
    ck_assert_uint_eq(n[STORE_BLOCKS], 60);
    ck_assert_uint_eq(n[STORE_SNAPSHOTS], 10);
    rig_deinit(&r);
}
END_TEST

/* As many orders as may be out; the descriptor is quiet when there is nothing, and no order is
 * lost. */
START_TEST(all_orders_out)
{
    struct rig r;
    begin(&r, _i, 4096, 256, 256);
    r.config.depth = 4;
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 256);
    for (int round = 0; round < 200; round++) {
        struct swap_order *o[17];
        unsigned n = 0, back = 0;
        while (n < 17 && (o[n] = swap_order_new(r.sw, SWAP_READ, STORE_BLOCKS)))
            n++;
        ck_assert_uint_eq(n, 16);
        for (unsigned i = 0; i < n; i++) {
            rig_add_read(o[i], i, 5, i); /* nothing there */
            swap_submit(r.sw, o[i]);
        }
        for (; back < n; back++)
            swap_order_free(r.sw, rig_take(&r));
        struct pollfd p = {.fd = swap_fd(r.sw), .events = POLLIN};
        EVENTUALLY(1000, !swap_take(r.sw) && poll(&p, 1, 0) == 0);
    }
    rig_deinit(&r);
}
END_TEST

/* An idle tier sleeps. */
START_TEST(idle)
{
    struct rig r;
    begin(&r, _i, 4096, 16, 64);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 64);
    sleep_us(300 * 1000);
    uint64_t before = process_cpu_us(getpid());
    sleep_us(1000 * 1000);
    ck_assert_uint_lt(process_cpu_us(getpid()) - before, 20 * 1000);
    rig_deinit(&r);
}
END_TEST

/* While answers come one by one, the descriptor is readable again for each that was not taken: one
 * that comes between a look and the emptying of the descriptor too. Asked for nothing but it. */
START_TEST(answers_are_announced)
{
    enum { OUT = 8, ANSWERS = 40000 / SLOW };
    struct rig r;
    struct written w;
    begin(&r, _i, 4096, OUT, 16);
    rig_start(&r);
    rig_wait_ready(&r, STORE_BLOCKS, 16);
    ck_assert_int_eq(rig_write(&r, 0, 0, &w), SWAP_GOOD);
    for (uint32_t sent = 0, got = 0; got < ANSWERS;) {
        for (; sent < ANSWERS && sent - got < OUT; sent++) {
            struct swap_order *o = rig_order(&r, SWAP_READ, STORE_BLOCKS);
            rig_add_read(o, w.slot, w.generation, sent % OUT);
            swap_submit(r.sw, o);
        }
        struct swap_order *o = swap_take(r.sw);
        if (o) {
            REQUIRE(o->status == SWAP_GOOD);
            swap_order_free(r.sw, o);
            got++;
            continue;
        }
        struct pollfd p = {.fd = swap_fd(r.sw), .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 5000 * SLOW) == 1, "%u sent, %u came back, no more", sent, got);
    }
    rig_deinit(&r);
}
END_TEST

START_TEST(engines_refused)
{
    struct rig r;
    struct written w;
    static const int errors[] = {-EPERM, -ENOSYS, -ENOMEM, -EACCES};
    begin(&r, 0, 8192, 8, 16);
    faults_setup(errors[_i], 0);
    rig_start(&r);
    ck_assert(!swap_facts(r.sw).uring);
    rig_wait_ready(&r, STORE_BLOCKS, 16);
    ck_assert_int_eq(rig_write(&r, 0, 0, &w), SWAP_GOOD);
    ck_assert_int_eq(rig_read(&r, &w), SWAP_GOOD);
    rig_deinit(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("swap_basic");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, write_read_restart, 0, 2);
    tcase_add_loop_test(t, many_at_once, 0, 2);
    tcase_add_loop_test(t, pieces, 0, 2);
    tcase_add_loop_test(t, generation_and_slot_are_checked, 0, 2);
    tcase_add_loop_test(t, chains, 0, 2);
    tcase_add_loop_test(t, paths_and_stores, 0, 2);
    tcase_add_loop_test(t, all_orders_out, 0, 2);
    tcase_add_loop_test(t, idle, 0, 2);
    tcase_add_loop_test(t, answers_are_announced, 0, 2);
    tcase_add_loop_test(t, engines_refused, 0, 4);
    suite_add_tcase(s, t);
    return s;
}
