/*
 * Connections: opening and closing leaves nothing behind, on either side; closing gives back at
 * once, whatever is under way.
 */
#include "tests/client/fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t resident_kib(pid_t pid)
{
    char path[64], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f) && sscanf(line, "VmRSS: %lu", &kib) != 1)
        ;
    fclose(f);
    return kib;
}

static uint64_t mapped_kib(pid_t pid)
{
    char path[64], line[512];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    unsigned long from, to;
    while (fgets(line, sizeof line, f)) /* the regions of the daemon are memfds */
        if (strstr(line, "memfd:") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            sum += (to - from) / 1024;
    fclose(f);
    return sum;
}

/* All that a connection may use: a descriptor for events, leases, a space, ids, calls under way. */
static void busy_connection(struct host *h, int i)
{
    pfx *c = connect_with(h, (struct pfx_options){.group = i % 2 ? "engine" : NULL});
    struct seq s = seq("aaaabbbbccccdd");
    struct pfx_lookup_args look = {.size = sizeof look, .tokens = s.at, .n_tokens = s.n};
    struct pfx_insert_args in = {
        .size = sizeof in, .flags = PFX_FINAL, .tokens = s.at, .n_written = s.n};
    struct pfx_insert_result r = {.size = sizeof r};
    struct pfx_space_desc d = {.size = sizeof d, .tenant = "t", .tenant_len = 1};
    struct pfx_match m = {.size = sizeof m};
    struct pfx_completion k = completion_empty();
    uint32_t ids[4];
    if (i % 3)
        ck_assert_int_ge(pfx_fd(c), 0);
    OK(pfx_space_open(c, &d, &look.space));
    OK(pfx_lookup(c, &look, &m));
    OK(pfx_reserve(c, m.lease, 4, ids));
    OK(pfx_insert(c, m.lease, &in, ids, &r));
    OK(pfx_submit_lookup(c, &look, 1));
    OK(pfx_submit_reserve(c, m.lease, 1, 2));
    OK(pfx_submit_space_open(c, &d, 3));
    if (i % 4 == 0)
        ck_assert_int_ge(pfx_wait(c, &k, sizeof k, 1, 0), 0);
    if (i % 5 == 0) {
        int rc = pfx_cancel(c, 1);
        ck_assert(rc == 0 || rc == PFX_ENOENT);
    }
    OK(pfx_submit_insert(c, m.lease, &in, 4));
    OK(pfx_submit_release(c, m.lease, 5));
    pfx_close(c);
}

START_TEST(a_thousand_connections_leak_nothing)
{
    struct host h;
    struct worker w;
    host_small(&h, 32, 4);
    worker_open(&w, &h, NULL);
    unsigned fds = 0, daemon_fds = 0;
    uint64_t maps = 0, daemon_maps = 0, resident = 0, daemon_resident = 0;
    for (int i = 0; i < 1000; i++) {
        busy_connection(&h, i);
        if (i == 199) { /* warm */
            fds = count_fds(getpid()), daemon_fds = count_fds(h.pid);
            maps = mapped_kib(getpid()), daemon_maps = mapped_kib(h.pid);
            resident = resident_kib(getpid()), daemon_resident = resident_kib(h.pid);
        }
    }
    ck_assert_uint_eq(count_fds(getpid()), fds);
    ck_assert_uint_eq(count_fds(h.pid), daemon_fds);
    ck_assert_uint_eq(mapped_kib(getpid()), maps);
    ck_assert_uint_eq(mapped_kib(h.pid), daemon_maps);
    if (SLOW == 1) { /* a sanitizer keeps what is freed for a while; it finds leaks itself */
        ck_assert_uint_le(resident_kib(getpid()), resident + 512);
        ck_assert_uint_le(resident_kib(h.pid), daemon_resident + 512);
    }
    step(&w);
    pages_are(&w, 28, 0, 0, 4);
    struct pfx_stats s = counters(&w);
    ck_assert_uint_eq(s.leases, 0);
    ck_assert_uint_eq(s.workers, 1);
    ck_assert_uint_eq(s.workers_reaped, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* Opens that fail leave nothing either, wherever they fail. */
START_TEST(failed_opens_leak_nothing)
{
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "32", "--max-workers", "2");
    worker_open(&w, &h, NULL);
    struct pfx_layout other = pfx_geometry(w.c)->layout;
    other.block_tokens++;
    struct pfx_options bad[] = {worker_options(&h), worker_options(&h), worker_options(&h)};
    bad[0].layout = &other;
    bad[1].map_devices = 2;
    bad[2].socket_path = "/nowhere";
    const int want[] = {PFX_EMISMATCH, PFX_EINVAL, PFX_EGONE};
    unsigned fds = count_fds(getpid());
    uint64_t maps = mapped_kib(getpid());
    for (int i = 0; i < 600; i++) {
        pfx *c;
        EVENTUALLY(5000 * SLOW, counters(&w).workers == 1);
        status_is(pfx_open(&bad[i % 3], &c), want[i % 3], "a bad open");
    }
    ck_assert_uint_eq(count_fds(getpid()), fds);
    ck_assert_uint_eq(mapped_kib(getpid()), maps);
    EVENTUALLY(5000 * SLOW, counters(&w).workers == 1);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* When pfx_close is back, all is given back: another worker can have it without waiting. */
START_TEST(close_gives_back_at_once)
{
    struct host h;
    struct worker w, other;
    host_small(&h, 32, 4);
    worker_open(&w, &h, NULL);
    for (int i = 0; i < 100; i++) {
        worker_open(&other, &h, i % 2 ? "engine" : NULL);
        struct held l = look(&other, "aaaabbbbcccc");
        ck_assert_int_eq(grab(&other, &l, 32 - l.n_table), 0);
        put(&other, &l, "aaaabbbbcccc", 0, NULL, NULL);
        worker_close(&other);
        pages_are(&w, 29, 0, 0, 3);
        struct held all = look(&w, "");
        ck_assert_int_eq(grab(&w, &all, 32), 0);
        drop(&w, &all);
    }
    ck_assert_uint_eq(counters(&w).workers_reaped, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* With everything under way that fits, answered or not. Nothing of it stays. */
START_TEST(close_with_calls_under_way)
{
    struct host h;
    struct worker w;
    host_small(&h, 256, 4);
    worker_open(&w, &h, NULL);
    static uint32_t tokens[1000];
    sequence(tokens, 1000, 1);
    for (int i = 0; i < 60; i++) {
        pfx *c = connect_with(&h, (struct pfx_options){.arena_bytes = 1, .ring_entries = 64});
        struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = 1000};
        struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = 1000};
        struct pfx_match m = {.size = sizeof m};
        OK(pfx_lookup(c, &look, &m));
        OK(pfx_submit_reserve(c, m.lease, 250 - m.n_blocks, 1));
        OK(pfx_submit_insert(c, m.lease, &in, 2));
        for (uint64_t k = 0; k < 40; k++)
            OK(pfx_submit_lookup(c, &look, k));
        if (i % 3 == 0)
            sleep_us(200);
        pfx_close(c);
        EVENTUALLY(5000 * SLOW, counters(&w).workers == 1);
        ck_assert_uint_eq(counters(&w).leases, 0);
        ck_assert_uint_eq(counters(&w).blocks_private, 0);
        step(&w);
    }
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* A stopped daemon does not hold it up for long; it gives back when it goes on. */
START_TEST(close_while_the_daemon_is_stopped)
{
    struct host h;
    struct worker w, other;
    host_small(&h, 32, 4);
    worker_open(&w, &h, NULL);
    worker_open(&other, &h, NULL);
    struct held l = look(&other, "aaaabbbb");
    ck_assert_int_eq(grab(&other, &l, 5), 0);
    struct seq s = seq("aaaabbbb");
    struct pfx_lookup_args args = lookup_args(&other, &s);
    host_pause(&h);
    OK(pfx_submit_lookup(other.c, &args, 1));
    uint64_t start = now_ms();
    worker_close(&other);
    ck_assert_uint_lt(now_ms() - start, 1000 * SLOW);
    host_resume(&h);
    EVENTUALLY(5000 * SLOW, counters(&w).workers == 1);
    pages_are(&w, 32, 0, 0, 0);
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* One a thread, all at once. */
struct thread {
    pthread_t id;
    struct host *h;
    uint32_t which;
};

static void *thread_run(void *arg)
{
    const struct thread *t = arg;
    for (int i = 0; i < 30; i++) {
        struct pfx_options o = worker_options(t->h);
        o.group = "threads";
        o.timeout_ms = 5000 * SLOW;
        pfx *c;
        if (pfx_open(&o, &c))
            return "open";
        uint32_t tokens[64], ids[16];
        sequence(tokens, 64, t->which + i % 3);
        struct pfx_lookup_args look = {.size = sizeof look, .tokens = tokens, .n_tokens = 64};
        struct pfx_insert_args in = {.size = sizeof in, .tokens = tokens, .n_written = 64};
        struct pfx_insert_result r = {.size = sizeof r};
        for (int k = 0; k < 20; k++) {
            struct pfx_match m = {.size = sizeof m};
            if (pfx_lookup(c, &look, &m) || pfx_reserve(c, m.lease, 16 - m.n_blocks, ids) ||
                pfx_insert(c, m.lease, &in, NULL, &r) || pfx_release(c, m.lease))
                return "a call";
        }
        pfx_close(c);
    }
    return NULL;
}

START_TEST(a_connection_a_thread)
{
    enum { THREADS = 6 };
    struct host h;
    struct worker w;
    HOST_START(&h, "--blocks", "512", "--block-tokens", "4", "--block-bytes", "64");
    worker_open(&w, &h, NULL);
    struct thread t[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        t[i] = (struct thread){.h = &h, .which = i};
        ck_assert_int_eq(pthread_create(&t[i].id, NULL, thread_run, &t[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(t[i].id, &failed), 0);
        ck_assert_msg(failed == NULL, "thread %d: %s", i, (const char *)failed);
    }
    step(&w);
    ck_assert_uint_eq(counters(&w).leases, 0);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("connection");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, a_thousand_connections_leak_nothing);
    tcase_add_test(t, failed_opens_leak_nothing);
    tcase_add_test(t, close_gives_back_at_once);
    tcase_add_test(t, close_with_calls_under_way);
    tcase_add_test(t, close_while_the_daemon_is_stopped);
    tcase_add_test(t, a_connection_a_thread);
    suite_add_tcase(s, t);
    return s;
}
