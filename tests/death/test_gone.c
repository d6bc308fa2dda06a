/*
 * The daemon is killed under live workers, whatever they are doing: each learns it within 100 ms,
 * every call ends, what is mapped stays readable, and a new daemon can be attached to.
 */
#include "tests/death/crowd.h"
#include "tests/worker.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEARNS_MS = 100, SOON_MS = 2000 * SLOW };

static const char *const options[] = {"--blocks", "16", "--block-tokens", "4", "--block-bytes",
                                      "64",       NULL};

/* ---- how each learns it --------------------------------------------------------------------- */

enum state { IN_WAIT, IN_CALL, IN_POLL, IN_FD, IN_STUCK_CALL, STATES };

/* In memory that all share. */
struct learned {
    uint64_t at_us[STATES];
};

struct subject {
    struct host *host;
    enum state state;
    struct learned *learned;
};

static struct pfx_completion completion(void)
{
    return (struct pfx_completion){.size = sizeof(struct pfx_completion),
                                   .match.size = sizeof(struct pfx_match),
                                   .insert.size = sizeof(struct pfx_insert_result)};
}

static int wait_one(struct worker *w, int ms)
{
    struct pfx_completion done = completion();
    return pfx_wait(w->c, &done, sizeof done, 1, ms);
}

/* One call after another, until one fails. */
static int call_on(struct worker *w)
{
    struct seq s = seq("aaaabbbbccccd");
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_match m = {.size = sizeof m};
    for (;;) {
        int rc = pfx_lookup(w->c, &args, &m);
        if (rc == 0)
            rc = pfx_release(w->c, m.lease);
        if (rc)
            return rc;
    }
}

static int wait_on_fd(struct worker *w)
{
    struct pollfd p = {.fd = pfx_fd(w->c), .events = POLLIN};
    ck_assert_int_ge(p.fd, 0);
    int rc = 0;
    while (rc == 0) {
        ck_assert_int_eq(poll(&p, 1, SOON_MS * 10), 1);
        rc = wait_one(w, 0);
    }
    return rc;
}

static int until_it_fails(struct worker *w, enum state state)
{
    int rc = 0;
    switch (state) {
    case IN_WAIT:
        return wait_one(w, -1);
    case IN_POLL:
        while ((rc = wait_one(w, 0)) == 0)
            ;
        return rc;
    case IN_FD:
        return wait_on_fd(w);
    default:
        return call_on(w);
    }
}

/* What it had stays as it was, and nothing is promised any more. */
static void all_gone(struct worker *w, const struct held *h, const char *text)
{
    struct seq s = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_match m = {.size = sizeof m};
    struct pfx_stats stats = {.size = sizeof stats};
    struct pfx_evicted evicted = {.size = sizeof evicted};
    uint32_t id;
    bytes_match(w, h, text);
    ck_assert_int_eq(pfx_lookup(w->c, &args, &m), PFX_EGONE);
    ck_assert_int_eq(pfx_reserve(w->c, h->lease, 1, &id), PFX_EGONE);
    ck_assert_int_eq(pfx_release(w->c, h->lease), PFX_EGONE);
    ck_assert_int_eq(pfx_ping(w->c), PFX_EGONE);
    ck_assert_int_eq(pfx_evict(w->c, 1, &evicted), PFX_EGONE);
    ck_assert_int_eq(pfx_peek(w->c, 0, s.at, s.n), PFX_EGONE);
    ck_assert_int_eq(pfx_stats(w->c, &stats), PFX_EGONE);
    ck_assert_int_eq(wait_one(w, -1), PFX_EGONE);
    ck_assert_int_eq(wait_one(w, 0), PFX_EGONE);
    bytes_match(w, h, text);
    ck_assert_uint_eq(pfx_geometry(w->c)->n_blocks, 16);
}

static void subject_run(struct child *me, void *arg)
{
    const struct subject *s = arg;
    struct worker w;
    worker_open_timeout(&w, s->host, 60000);
    w.unchecked = true;
    struct held h = look(&w, "aaaabbbbccccd");
    ck_assert_uint_eq(h.match.matched_tokens, 12);
    child_post(me, 1);
    if (s->state == IN_STUCK_CALL)
        child_wait(me); /* the daemon is stopped */
    int rc = until_it_fails(&w, s->state);
    shm_store_release(&s->learned->at_us[s->state], now_us());
    ck_assert_int_eq(rc, PFX_EGONE);
    all_gone(&w, &h, "aaaabbbbccccd");
    uint64_t before = now_ms();
    worker_close(&w);
    ck_assert_uint_le(now_ms() - before, SOON_MS);
}

static void check_learned(const struct learned *l, uint64_t dead_us, uint64_t late_us)
{
    static const char *const names[STATES] = {"pfx_wait", "a call", "pfx_wait 0", "poll on pfx_fd",
                                              "a call that hung"};
    for (int i = 0; i < STATES; i++) {
        int64_t us = (int64_t)(shm_load_acquire(&l->at_us[i]) - dead_us);
        ck_assert_msg(us < LEARNS_MS * 1000 + (int64_t)late_us,
                      "in %s it was learned after %lld us (the machine was %llu us late)", names[i],
                      (long long)us, (unsigned long long)late_us);
        fprintf(stderr, "%s: after %lld us\n", names[i], (long long)us);
    }
}

/* Killed between two instructions of whatever it does; then once more. */
START_TEST(gone_is_learned_in_every_state)
{
    struct host h;
    struct worker w;
    struct child child[STATES];
    struct subject subject[STATES];
    struct beat beat;
    struct learned *learned =
        mmap(NULL, sizeof *learned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    host_start(&h, options);
    worker_open(&w, &h, NULL);
    cache(&w, "aaaabbbbcccc");
    beat_begin(&beat);
    for (int i = 0; i < STATES; i++) {
        subject[i] = (struct subject){&h, (enum state)i, learned};
        child_start(&child[i], subject_run, &subject[i]);
        child_wait(&child[i]);
    }
    sleep_us(50000); /* so that those that sleep do, which nobody can tell */
    host_pause(&h);
    child_post(&child[IN_STUCK_CALL], 1);
    sleep_us(20000);
    host_kill(&h);
    uint64_t dead_us = now_us();
    for (int i = 0; i < STATES; i++)
        child_join(&child[i]);
    check_learned(learned, dead_us, beat_end(&beat));
    worker_close(&w);
    host_again(&h, options);
    worker_open(&w, &h, NULL);
    pages_are(&w, 16, 0, 0, 0);
    worker_close(&w);
    host_stop(&h);
    munmap(learned, sizeof *learned);
}
END_TEST

/* ---- calls under way ------------------------------------------------------------------------- */

enum { CALLS = 60, SETTLED = 5 };

static void submit_any(struct worker *w, uint64_t lease, uint64_t tag)
{
    struct seq s = seq(tag % 2 ? "aaaabbbbccccd" : "eeeeffffg");
    struct pfx_lookup_args args = lookup_args(w, &s);
    struct pfx_insert_args ins = {.size = sizeof ins, .tokens = s.at, .n_written = 4};
    struct pfx_space_desc desc = {.size = sizeof desc, .adapter_id = tag};
    int rc = 0;
    switch (tag % 6) {
    case 0:
    case 1:
        rc = pfx_submit_lookup(w->c, &args, tag);
        break;
    case 2:
        rc = pfx_submit_reserve(w->c, lease, 1, tag);
        break;
    case 3:
        rc = pfx_submit_insert(w->c, lease, &ins, tag);
        break;
    case 4:
        rc = pfx_submit_space_open(w->c, &desc, tag);
        break;
    default:
        rc = pfx_submit_truncate(w->c, lease, 0, tag);
    }
    ck_assert_int_eq(rc, 0);
}

/* Who polls may look a few times before the death shows. */
static int take_some(struct worker *w, struct pfx_completion *done, int max, int timeout_ms)
{
    uint64_t until = now_ms() + SOON_MS;
    int n = 0;
    while (n == 0 && now_ms() < until) {
        for (int i = 0; i < max; i++)
            done[i] = completion();
        n = pfx_wait(w->c, done, sizeof done[0], (unsigned)max, timeout_ms);
        ck_assert(n != 0 || timeout_ms == 0);
    }
    return n;
}

/* Every call that was submitted ends once: the first few were answered before, the others not. */
static void collect(struct worker *w, int timeout_ms)
{
    unsigned seen[CALLS] = {0};
    struct pfx_completion done[7];
    for (unsigned total = 0; total < CALLS;) {
        int n = take_some(w, done, 7, timeout_ms);
        ck_assert_int_gt(n, 0);
        for (int i = 0; i < n; i++) {
            uint64_t tag = done[i].tag;
            ck_assert_uint_lt(tag, CALLS);
            seen[tag]++;
            ck_assert_msg(tag < SETTLED || done[i].status == PFX_EGONE, "call %d: %s", (int)tag,
                          pfx_strerror(done[i].status));
            ck_assert_ptr_null(done[i].status ? done[i].ids : NULL);
        }
        total += (unsigned)n;
    }
    for (unsigned i = 0; i < CALLS; i++)
        ck_assert_uint_eq(seen[i], 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(wait_one(w, timeout_ms), PFX_EGONE);
}

/* _i: how they are collected: waiting for ever, polling, or with a time limit. */
START_TEST(gone_ends_every_call_once)
{
    static const int timeouts[] = {-1, 0, 1000};
    struct host h;
    struct worker w;
    host_start(&h, options);
    worker_open(&w, &h, NULL);
    struct held held = look(&w, "aaaabbbbccccd");
    for (uint64_t tag = 0; tag < SETTLED; tag++)
        submit_any(&w, held.lease, tag);
    ck_assert_int_eq(pfx_ping(w.c), 0);
    host_pause(&h);
    for (uint64_t tag = SETTLED; tag < CALLS; tag++)
        submit_any(&w, held.lease, tag);
    host_kill(&h);
    collect(&w, timeouts[_i]);
    struct seq s = seq("aaaa");
    struct pfx_lookup_args args = lookup_args(&w, &s);
    int rc = pfx_submit_lookup(w.c, &args, 99);
    if (rc == 0) { /* submitted, so it is answered */
        struct pfx_completion done = completion();
        ck_assert_int_eq(pfx_wait(w.c, &done, sizeof done, 1, 0), 1);
        ck_assert_int_eq(done.status, PFX_EGONE);
        ck_assert_uint_eq(done.tag, 99);
    } else {
        ck_assert_int_eq(rc, PFX_EGONE);
    }
    ck_assert_int_eq(wait_one(&w, 0), PFX_EGONE);
    worker_close(&w);
    host_again(&h, options);
    host_stop(&h);
}
END_TEST

/* The descriptor is readable until all is taken, and stays so: the end is worth a look, too. */
START_TEST(gone_makes_the_fd_readable)
{
    struct host h;
    struct worker w;
    host_start(&h, options);
    worker_open(&w, &h, NULL);
    struct pollfd p = {.fd = pfx_fd(w.c), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    struct held held = look(&w, "aaaabbbbccccd");
    host_pause(&h);
    for (uint64_t tag = 0; tag < CALLS; tag++)
        submit_any(&w, held.lease, tag);
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    host_kill(&h);
    unsigned got = 0;
    for (int n = 0; n >= 0; got += n > 0) {
        ck_assert_int_eq(poll(&p, 1, SOON_MS), 1);
        n = wait_one(&w, 0);
        ck_assert(n >= 0 || n == PFX_EGONE);
    }
    ck_assert_uint_eq(got, CALLS);
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    worker_close(&w);
    host_again(&h, options);
    host_stop(&h);
}
END_TEST

/* ---- another daemon -----------------------------------------------------------------------------
 */

static unsigned count_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned n = 0;
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:prefixd") != NULL;
    fclose(f);
    return n;
}

static void *use_from_another_thread(void *arg)
{
    struct worker w;
    worker_open(&w, arg, NULL);
    cache(&w, "aaaabbbb");
    struct held h = look(&w, "aaaabbbbc");
    ck_assert_uint_eq(h.match.matched_tokens, 8);
    bytes_match(&w, &h, "aaaabbbbc");
    drop(&w, &h);
    worker_close(&w);
    return NULL;
}

/* B43: an old connection is worth nothing in a new epoch, and leaves nothing behind. */
START_TEST(gone_daemon_comes_again)
{
    struct host h;
    struct worker old, w;
    host_start(&h, options);
    worker_open(&old, &h, NULL);
    struct pfx_options o = worker_options(&h);
    unsigned fds = count_fds(getpid());
    uint64_t epoch = pfx_geometry(old.c)->epoch;
    for (int i = 0; i < 5; i++) {
        cache(&old, "aaaabbbbcccc");
        struct held h1 = look(&old, "aaaabbbbccccd");
        host_kill(&h);
        EVENTUALLY(SOON_MS, wait_one(&old, 0) == PFX_EGONE);
        ck_assert_int_eq(pfx_open(&o, &w.c), PFX_EGONE);
        ck_assert_ptr_null(w.c);
        host_again(&h, options);
        all_gone(&old, &h1, "aaaabbbbccccd"); /* also while another one runs */
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, use_from_another_thread, &h), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        worker_open(&w, &h, NULL);
        ck_assert_uint_ne(pfx_geometry(w.c)->epoch, epoch);
        epoch = pfx_geometry(w.c)->epoch;
        ck_assert_int_eq(pfx_release(w.c, h1.lease), PFX_ESTALE);
        bytes_match(&old, &h1, "aaaabbbbccccd");
        evict(&w, 16);
        pages_are(&w, 16, 0, 0, 0);
        worker_close(&old);
        old = w;
    }
    close(h.admin);
    h.admin = -1;
    ck_assert_uint_eq(count_fds(getpid()), fds);
    worker_close(&old);
    ck_assert_uint_eq(count_mappings(), 0);
    host_stop(&h);
}
END_TEST

/* A daemon that stops closes what its workers have open, and a space with nothing in it sleeps
 * then: who walks the index before the hang-up is seen learns that the daemon is gone, not that he
 * has never opened the space. */
START_TEST(gone_is_no_space_that_was_never_open)
{
    struct host h;
    struct worker w;
    struct seq s = seq("aaaabbbbc");
    host_start(&h, options);
    worker_open(&w, &h, NULL);
    struct pfx_space_desc desc = {.size = sizeof desc, .tenant = "t", .tenant_len = 1};
    ck_assert_int_eq(pfx_space_open(w.c, &desc, &w.space), 0);
    struct pfx_lookup_args args = lookup_args(&w, &s);
    struct pfx_match m = {.size = sizeof m};
    struct pfx_peeked p = {.size = sizeof p};
    struct pfx_completion done = completion();
    ck_assert_int_eq(pfx_peek(w.c, w.space, s.at, s.n),
                     0); /* the socket is not asked so soon again */
    host_stop(&h);
    switch (_i) {
    case 0:
        ck_assert_int_eq(pfx_lookup(w.c, &args, &m), PFX_EGONE);
        break;
    case 1: /* the completion's, if it could be submitted */
        done.status = pfx_submit_lookup(w.c, &args, 1);
        if (done.status == 0)
            ck_assert_int_eq(pfx_wait(w.c, &done, sizeof done, 1, SOON_MS), 1);
        ck_assert_int_eq(done.status, PFX_EGONE);
        break;
    case 2:
        ck_assert_int_eq(pfx_peek(w.c, w.space, s.at, s.n), PFX_EGONE);
        break;
    default:
        ck_assert_int_eq(pfx_peek_full(w.c, &args, &p), PFX_EGONE);
    }
    worker_close(&w);
}
END_TEST

/* Sixty-four of them at once: nobody is forgotten. */
enum { MANY = 64 };
START_TEST(gone_is_learned_by_all_of_many)
{
    struct host h;
    struct worker w[MANY];
    host_start(&h, options);
    for (int i = 0; i < MANY; i++)
        worker_open(&w[i], &h, i % 2 ? "engine" : NULL);
    struct held held = look(&w[1], "aaaabbbb");
    struct beat beat;
    ck_assert_int_eq(grab(&w[1], &held, 4), 0);
    beat_begin(&beat);
    audit_clean(&h);
    host_kill(&h);
    uint64_t before = now_us();
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(wait_one(&w[i], -1), PFX_EGONE);
    uint64_t took = now_us() - before;
    ck_assert_uint_le(took, LEARNS_MS * 1000 + beat_end(&beat));
    host_again(&h, options);
    for (int i = 0; i < MANY; i++)
        worker_close(&w[i]);
    ck_assert_uint_eq(count_mappings(), 0);
    worker_open(&w[0], &h, "engine");
    ck_assert_uint_eq(counters(&w[0]).workers, 1);
    pages_are(&w[0], 16, 0, 0, 0);
    worker_close(&w[0]);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gone");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, gone_is_learned_in_every_state, 0, 3);
    tcase_add_loop_test(t, gone_ends_every_call_once, 0, 3);
    tcase_add_test(t, gone_makes_the_fd_readable);
    tcase_add_test(t, gone_daemon_comes_again);
    tcase_add_loop_test(t, gone_is_no_space_that_was_never_open, 0, 4);
    tcase_add_test(t, gone_is_learned_by_all_of_many);
    suite_add_tcase(s, t);
    return s;
}
