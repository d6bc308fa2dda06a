/* Calls that wait for the disk, and what happens meanwhile to what they wait for: it is held still
 * in the middle (io_stop). */
#include "tests/raw.h"
#include "tests/scenario/disk_site.h"

#include <sched.h>
#include <string.h>

enum { GIVEN_UP_MS = 25000 /* an operation that takes 20 s makes a disk sick */ };

static bool next(struct worker *w, struct pfx_completion *done, int ms)
{
    *done = (struct pfx_completion){.size = sizeof *done};
    done->match.size = sizeof done->match;
    done->insert.size = sizeof done->insert;
    return pfx_wait(w->c, done, sizeof *done, 1, ms) == 1;
}

/* A fetch waits for pages, and a mate cuts its match, to 0, 1 or 2 blocks of 3. */
START_TEST(b22_truncate_while_its_fetch_waits_for_pages)
{
    struct site s;
    struct worker a, b;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&a, &s.h, "mates");
    worker_open(&b, &s.h, "mates");
    struct site by_a = site_by(&s, a);
    struct held l = seek(&by_a, "aaaabbbbccccx", 0);
    ck_assert_uint_eq(l.match.n_resident, 0);
    io_stop(&s);
    cache(&s.w, "AAAABBBBCCCCDDDDEEEEFFFF");
    inflight_is(&s, 6);
    ck_assert_int_eq(pfx_submit_fetch(a.c, l.lease, 1), 0);
    ck_assert_int_eq(pfx_ping(a.c), 0);
    ck_assert_int_eq(pfx_truncate(b.c, l.lease, (uint32_t)_i), 0);
    io_go(&s);
    struct pfx_completion done;
    ck_assert(next(&a, &done, DISK_WAIT_MS));
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.match.n_blocks, _i);
    ck_assert_uint_eq(done.match.n_resident, _i);
    struct seq q = seq("aaaabbbbccccx");
    for (int i = 0; i < _i; i++)
        ck_assert(bytes_are(&a, done.match.blocks[i], &q, 4 * (size_t)(i + 1)));
    step(&a);
    ck_assert_int_eq(release(&a, l.lease), 0);
    worker_close(&a);
    worker_close(&b);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* As many jobs wait for the disk as the ring has entries, and one more, which no worker of the
 * library would send: the daemon sleeps all the same. */
START_TEST(e94_ring_full_of_waiting_calls)
{
    struct site s;
    struct raw r;
    site_init(&s, "2M");
    site_set(&s, "--blocks", "64");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    raw_open(&r, &s.h, "raw");
    io_stop(&s);
    for (uint32_t i = 0; i < r.out.size + 1; i++) {
        /* a flush waits for the disk, and for nothing else */
        struct request rq = {.op = OP_FLUSH, .tag = i};
        while (!raw_post(&r, &rq))
            sleep_us(1000);
    }
    sleep_us(300000);
    uint64_t before = process_cpu_us(s.h.pid);
    sleep_us(500000);
    uint64_t spent = process_cpu_us(s.h.pid) - before;
    io_go(&s);
    ck_assert_msg(spent < 150000, "%llu us of 500000 were spent asleep", (unsigned long long)spent);
    for (uint32_t i = 0; i < r.out.size + 1; i++) {
        struct wire_completion out;
        ck_assert(raw_take(&r, &out, DISK_WAIT_MS));
        ck_assert_int_eq(out.status, 0);
    }
    raw_close(&r);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* Nothing can be evicted while all is being written: that is waited for, but not for as long as the
 * disk stands. */
START_TEST(e94_evict_while_all_is_in_flight)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_start(&s);
    worker_open_timeout(&v, &s.h, 2 * GIVEN_UP_MS);
    io_stop(&s);
    cache(&s.w, "aaaabbbbccccddddeeeeffffgggghhhh");
    inflight_is(&s, 8);
    uint64_t began = now_ms();
    struct pfx_evicted e = {.size = sizeof e};
    int rc = pfx_evict(v.c, 8, &e);
    uint64_t took = now_ms() - began;
    io_go(&s);
    ck_assert_msg(rc == 0, "%s after %llu ms", pfx_strerror(rc), (unsigned long long)took);
    ck_assert_uint_eq(e.freed_blocks, 0);
    ck_assert_uint_lt(took, GIVEN_UP_MS);
    worker_close(&v);
    all_written(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccddddeeeeffffgggghhhhx"), 32);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* A flush has freed its pages and waits for the disk alone. Who finds no room meanwhile hears so at
 * once. */
START_TEST(e64_no_room_while_a_flush_waits_for_the_disk)
{
    struct site s;
    struct worker v;
    site_init(&s, "2M");
    site_set(&s, "--swap-depth", "1"); /* one path at a time is being written */
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    struct held all = look(&s.w, "xxxx");
    ck_assert_int_eq(grab(&s.w, &all, 6), 0);
    struct held l = seek(&s, "aaaabbbbccccx", 0);
    worker_open_timeout(&v, &s.h, 200 * SLOW);
    struct site by_v = site_by(&s, v);
    use_space(&by_v, "tenant", 0, 0, 3);
    io_stop(&s);
    cache(&s.w, "yyyy");
    inflight_is(&s, 1);
    cache(&s.w, "zzzz");
    ck_assert_int_eq(pfx_flush(v.c, by_v.w.space), PFX_ETIMEDOUT);
    uint64_t began = now_ms();
    int rc = pfx_fetch(s.w.c, l.lease, &l.match);
    uint64_t took = now_ms() - began;
    io_go(&s);
    ck_assert_msg(rc == PFX_ENOSPC, "%s after %llu ms", pfx_strerror(rc), (unsigned long long)took);
    ck_assert_uint_lt(took, 1000 * SLOW);
    step(&s.w);
    drop(&s.w, &l);
    drop(&s.w, &all);
    worker_close(&v);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* ---- a worker without the library ----------------------------------------------------------- */

enum { FLOOD_PATHS = 6, FLOOD_LEASES = 6, FLOOD_ROUNDS = 30000 };

static const char *const flood_texts[FLOOD_PATHS] = {"aaaabbbbccccx",         "aaaabbbbddddx",
                                                     "aaaaeeeeffffggggx",     "hhhhx",
                                                     "hhhhiiiijjjjkkkkllllx", "mmmmnnnnx"};

static void flood_lookup(struct raw *r, struct rng *g, uint32_t path)
{
    const char *text = flood_texts[path];
    uint32_t n = (uint32_t)strlen(text), at = path * 256;
    for (uint32_t i = 0; i < n; i++)
        memcpy(r->arena + at + 4 * i, &(uint32_t){(unsigned char)text[i]}, 4);
    struct request rq = {.op = OP_LOOKUP_SLOW,
                         .flags = (uint16_t)(RF_LAST | (rng_below(g, 4) ? RF_FETCH : 0)),
                         .tag = rng_below(g, 64),
                         .slow = {.n_tokens = n,
                                  .max_match = n - 1,
                                  .multiple = 4,
                                  .snapshot_multiple = 4,
                                  .arena = at,
                                  .piece = n}};
    (void)raw_post(r, &rq);
}

static void flood_one(struct raw *r, struct rng *g, uint64_t *lease)
{
    uint32_t k = rng_below(g, FLOOD_LEASES);
    struct request rq = {.tag = rng_below(g, 64), .lease = lease[k]};
    switch (rng_below(g, 10)) {
    case 0:
    case 1:
        flood_lookup(r, g, rng_below(g, FLOOD_PATHS));
        return;
    case 2:
    case 3:
    case 4:
        rq.op = OP_FETCH;
        break;
    case 5:
        rq.op = OP_TRUNCATE;
        rq.number.n = rng_below(g, 5);
        break;
    case 6:
        rq.op = OP_RELEASE;
        break;
    case 7:
        rq.op = OP_CANCEL;
        rq.lease = 0;
        rq.number.n = rng_below(g, 64);
        break;
    case 8:
        rq.op = OP_RESERVE;
        rq.reserve = (struct request_reserve){.n = 1 + rng_below(g, 20), .arena = 8192, .room = 0};
        break;
    default:
        rq.op = rng_below(g, 400) ? OP_EVICT : OP_FLUSH;
        rq.lease = 0;
        if (rq.op == OP_EVICT)
            rq.number.n = rng_below(g, 40);
        break;
    }
    (void)raw_post(r, &rq);
}

static void flood_take(struct raw *r, struct rng *g, uint64_t *lease)
{
    struct wire_completion out;
    while (ring_peek(&r->in, &out) == RING_OK) {
        ring_drop(&r->in);
        if (out.op == OP_LOOKUP_SLOW && out.status == 0) {
            uint64_t *at = &lease[rng_below(g, FLOOD_LEASES)];
            struct request rq = {.op = OP_RELEASE, .lease = *at};
            while (*at && !raw_post(r, &rq))
                sched_yield();
            *at = out.lease;
        }
    }
}

/* One that floods the daemon with calls on the same few leases, while the disk stands now and then.
 * Another's lookups are answered meanwhile, its bytes are right, and in the end nothing is lost. */
START_TEST(e94_flood_of_calls_that_wait)
{
    struct site s;
    struct raw r;
    uint64_t lease[FLOOD_LEASES] = {0}, slowest = 0;
    struct rng g = rng_seeded("flood");
    site_init(&s, "2M");
    site_set(&s, "--blocks", _i ? "64" : "16");
    if (_i == 2)
        site_set(&s, "--swap-depth", "1");
    site_start(&s);
    raw_open(&r, &s.h, "flood");
    for (int i = 0; i < FLOOD_ROUNDS; i++) {
        flood_one(&r, &g, lease);
        if (rng_below(&g, 3) == 0)
            flood_take(&r, &g, lease);
        if (i % 1000 == 0) {
            const char *some = flood_texts[rng_below(&g, FLOOD_PATHS)];
            struct seq whole = seq(some);
            struct held h = seek_seq(&s, &whole, PFX_FETCH);
            uint32_t lack = (uint32_t)strlen(some) / 4 - h.n_table;
            if (grab(&s.w, &h, lack) == 0)
                ck_assert_int_eq(put(&s.w, &h, some, 0, NULL, NULL), 0);
            drop(&s.w, &h);
        }
        if (i % 1000 == 300)
            io_stop(&s);
        if (i % 1000 == 700)
            io_go(&s);
        if (i % 100 == 0) {
            struct seq q = seq("zzzzyyyyx");
            struct pfx_lookup_args args = lookup_args(&s.w, &q);
            struct pfx_match m = {.size = sizeof m};
            uint64_t began = now_us();
            ck_assert_int_eq(pfx_lookup(s.w.c, &args, &m), 0);
            uint64_t took = now_us() - began;
            slowest = took > slowest ? took : slowest;
            ck_assert_int_eq(pfx_release(s.w.c, m.lease), 0);
        }
        if (i % 1000 == 800) {
            flood_take(&r, &g, lease);
            audit_clean(&s.h);
            struct seq q = seq(flood_texts[rng_below(&g, FLOOD_PATHS)]);
            struct held h = seek_seq(&s, &q, PFX_FETCH);
            for (uint32_t k = 0; k < h.match.n_resident; k++)
                ck_assert(bytes_are(&s.w, h.table[k], &q, 4 * (size_t)(k + 1)));
            drop(&s.w, &h);
        }
    }
    ck_assert_uint_lt(slowest, 200 * 1000 * SLOW);
    raw_close(&r);
    EVENTUALLY(DISK_WAIT_MS, counters(&s.w).workers == 1);
    inflight_is(&s, 0);
    at_rest(&s);
    ck_assert_uint_eq(counters(&s.w).leases, 0);
    site_deinit(&s);
}
END_TEST

/* ---- a disk that does not come back ---------------------------------------------------------- */

/* After a time what waits for it is answered, and what comes then hears so soon: a miss. */
START_TEST(e94_reads_that_do_not_come_back)
{
    struct site s;
    struct worker v;
    struct pfx_completion done;
    site_init(&s, "2M");
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    worker_open(&v, &s.h, NULL);
    struct held l = seek(&s, "aaaabbbbccccx", 0);
    io_stop(&s);
    submit_fetch(&v, "aaaabbbbccccx", 1);
    inflight_is(&s, 3);
    ck_assert_msg(next(&v, &done, GIVEN_UP_MS), "a lookup waits for a disk that stands");
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.match.n_blocks, 0);
    ck_assert_int_eq(release(&v, done.lease), 0);
    uint64_t began = now_ms();
    struct held now = seek(&s, "aaaabbbbccccx", PFX_FETCH);
    ck_assert_uint_eq(now.match.n_blocks, 0);
    ck_assert_int_eq(pfx_fetch(s.w.c, l.lease, &l.match), PFX_EIO);
    ck_assert_uint_eq(l.match.n_blocks, 0);
    ck_assert_uint_lt(now_ms() - began, 2000 * SLOW);
    step(&s.w);
    ck_assert_uint_ge(counters(&s.w).blocks_inflight, 3);
    drop(&s.w, &now);
    drop(&s.w, &l);
    worker_close(&v);
    io_go(&s);
    inflight_is(&s, 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbccccx"), 12); /* nothing is lost by it */
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

/* The one slot is still being written. */
START_TEST(e94_a_spill_that_does_not_come_back)
{
    struct site s;
    uint32_t slot;
    site_init(&s, "2M");
    site_set(&s, "--snapshots", "1");
    site_set(&s, "--snapshot-bytes", "192");
    site_set(&s, "--snapshot-swap", "512K");
    site_start(&s);
    keep(&s.w, "aaaabbbb", 8, PFX_EXACT, 0);
    all_written(&s);
    struct held h = look(&s.w, "zzzz");
    io_stop(&s);
    ck_assert_int_eq(pfx_submit_snapshot_reserve(s.w.c, h.lease, 1), 0);
    struct pfx_completion done;
    ck_assert_msg(next(&s.w, &done, GIVEN_UP_MS), "a reserve waits for a disk that stands");
    ck_assert_int_eq(done.status, PFX_ENOSPC);
    step(&s.w);
    io_go(&s);
    EVENTUALLY(DISK_WAIT_MS, slot_reserve(&s.w, &h, &slot) == 0);
    drop(&s.w, &h);
    slots_all_there(&s.w);
    at_rest(&s);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk: calls that wait");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, b22_truncate_while_its_fetch_waits_for_pages, 0, 4);
    tcase_add_test(t, e94_ring_full_of_waiting_calls);
    tcase_add_test(t, e94_evict_while_all_is_in_flight);
    tcase_add_test(t, e64_no_room_while_a_flush_waits_for_the_disk);
    tcase_add_test(t, e94_reads_that_do_not_come_back);
    tcase_add_test(t, e94_a_spill_that_does_not_come_back);
    tcase_add_loop_test(t, e94_flood_of_calls_that_wait, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
