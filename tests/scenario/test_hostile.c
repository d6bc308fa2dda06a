/*
 * Workers that lie: every opcode with garbage, indexes that cannot be, arenas that change while
 * they are read, strangers' leases, greetings that are none. The daemon lives, its audit is clean,
 * what an honest worker holds is untouched, and the liar's session ends where its ring does.
 */
#include "client/prefixd.h"
#include "tests/pass.h"
#include "tests/raw.h"
#include "tests/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct scene {
    struct host h;
    struct worker honest;
    struct held held; /* by the honest one: must stay as it is, whatever happens */
};

static void scene_open(struct scene *s)
{
    host_small(&s->h, 32, 4);
    worker_open(&s->honest, &s->h, NULL);
    s->honest.weights = 42;
    cache(&s->honest, "aaaabbbbcccc");
    s->held = look(&s->honest, "aaaabbbbccccx");
    ck_assert_uint_eq(s->held.n_table, 3);
}

static void scene_holds(struct scene *s)
{
    step(&s->honest);
    bytes_match(&s->honest, &s->held, "aaaabbbbcccc");
}

static void scene_close(struct scene *s)
{
    scene_holds(s);
    struct held l = look(&s->honest, "zzzzyyyy"); /* and is served */
    ck_assert_int_eq(grab(&s->honest, &l, 2), 0);
    ck_assert_int_eq(put(&s->honest, &l, "zzzzyyyy", 0, NULL, NULL), 0);
    drop(&s->honest, &l);
    ck_assert_uint_eq(matched(&s->honest, "zzzzyyyyx"), 8);
    drop(&s->honest, &s->held);
    pfx_close(s->honest.c);
    host_stop(&s->h);
}

/* ---- records ------------------------------------------------------------------------ */

/* A number that is often at an edge. */
static uint32_t odd_number(struct rng *r)
{
    static const uint32_t edges[] = {
        0,   1,   2,    3,     4,     5,      8,       16,        63,       64,        65,
        255, 256, 4096, 65535, 65536, 262144, 1048576, INT32_MAX, 1u << 31, UINT32_MAX};
    return rng_below(r, 3) ? edges[rng_below(r, sizeof edges / sizeof edges[0])]
                           : (uint32_t)rng_next(r);
}

static void odd_words(struct rng *r, void *to, size_t bytes)
{
    uint32_t *word = to;
    for (size_t i = 0; i < bytes / 4; i++)
        word[i] = odd_number(r);
}

/* Flushing other people's spaces is anybody's right, and would spoil what is checked. */
static bool disturbs(const struct request *rq)
{
    return rq->op == OP_FLUSH && (rq->space.space == 0 || rq->space.space == UINT64_MAX);
}

static struct request odd_record(struct raw *w, struct rng *r, uint64_t own, uint64_t foreign)
{
    struct request rq = {0};
    odd_words(r, &rq, sizeof rq);
    rq.op = (uint16_t)(rng_below(r, 20) ? rng_below(r, OP_COUNT) : odd_number(r));
    rq.flags = (uint16_t)(rng_below(r, 2) ? 0 : odd_number(r));
    if (rq.op == OP_LOOKUP_SLOW && rng_below(r, 2)) /* nearly right, so that it goes further */
        rq.slow = (struct request_lookup_slow){.n_tokens = odd_number(r),
                                               .max_match = rng_below(r, 64),
                                               .multiple = 4,
                                               .piece = rng_below(r, 16) * 4,
                                               .n_extras = rng_below(r, 4)};
    if (rq.op == OP_INSERT && rng_below(r, 2)) {
        rq.flags = rng_below(r, 2) ? RF_LAST : 0;
        rq.insert =
            (struct request_insert){.piece = rng_below(r, 64), .n_extras = rng_below(r, 4) / 3};
    }
    if (rq.op == OP_RESERVE && rng_below(r, 2)) {
        rq.flags = 0;
        rq.reserve = (struct request_reserve){.n = rng_below(r, 40), .room = rng_below(r, 8)};
    }
    if (rq.op == OP_TABLE && rng_below(r, 2)) {
        rq.flags = 0;
        rq.table = (struct request_table){.from = odd_number(r), .count = rng_below(r, 8)};
    }
    if (rq.op == OP_LOOKUP && rng_below(r, 2)) {
        const struct index_node *n = index_node_at(&w->view, 1 + rng_below(r, 8));
        rq.lookup =
            (struct request_lookup){.where = {n->identity, 1 + rng_below(r, 8), odd_number(r)},
                                    .rest = (uint16_t)rng_below(r, 6)};
    }
    const uint64_t leases[] = {own, foreign, 0, rng_next(r), own + (1ull << 32), own ^ 1};
    rq.lease = leases[rng_below(r, 6)];
    return rq;
}

static void odd_arena(struct raw *w, struct rng *r)
{
    if (rng_below(r, 4) == 0)
        odd_words(r, w->arena, 4096);
}

START_TEST(hostile_every_opcode_with_garbage)
{
    struct scene s;
    struct raw w;
    struct rng r = rng_seeded("hostile");
    scene_open(&s);
    raw_open(&w, &s.h, "liar");
    uint64_t own = raw_lease(&w);
    unsigned done[OP_COUNT] = {0};
    for (int i = 0; i < 40000; i++) {
        struct request rq = odd_record(&w, &r, own, s.held.lease);
        if (disturbs(&rq))
            continue;
        odd_arena(&w, &r);
        struct wire_completion c = raw_call(&w, rq);
        ck_assert_msg(c.status >= PFX_EMISMATCH && c.status <= ANSWER_MORE, "op %u: status %d",
                      rq.op, c.status);
        if (rq.op < OP_COUNT)
            done[rq.op] += c.status >= 0;
        if ((c.status == 0 || c.status == ANSWER_MORE) &&
            (rq.op == OP_LOOKUP || rq.op == OP_LOOKUP_SLOW))
            own = c.lease;
        if (i % 50 == 0)
            scene_holds(&s);
    }
    /* it was not all refused at the door */
    static const uint16_t reached[] = {OP_NOP,     OP_LOOKUP, OP_LOOKUP_SLOW, OP_RESERVE, OP_INSERT,
                                       OP_RELEASE, OP_TABLE,  OP_SPACE_OPEN,  OP_EVICT};
    for (size_t i = 0; i < sizeof reached / sizeof reached[0]; i++)
        ck_assert_msg(done[reached[i]] > 0, "op %u never succeeded", reached[i]);
    raw_close(&w);
    EVENTUALLY(5000, counters(&s.honest).workers == 1);
    scene_close(&s);
}
END_TEST

/* B45: absurd sizes are refused without allocation. */
START_TEST(b45_absurd_messages)
{
    struct scene s;
    struct raw w;
    scene_open(&s);
    raw_open(&w, &s.h, "absurd");
    uint64_t lease = raw_lease(&w);
    const uint32_t much = UINT32_MAX;
    const struct {
        struct request rq;
        int status;
    } cases[] = {
        {{.op = OP_LOOKUP_SLOW,
          .flags = RF_LAST,
          .slow = {.n_tokens = much, .max_match = much, .multiple = 4, .piece = much}},
         PFX_EINVAL},
        {{.op = OP_LOOKUP_SLOW,
          .flags = RF_LAST,
          .slow = {.n_tokens = much, .max_match = much, .multiple = 4, .n_extras = much}},
         PFX_EINVAL},
        {{.op = OP_LOOKUP, .lookup = {.rest = UINT16_MAX}}, PFX_EINVAL},
        {{.op = OP_RESERVE, .lease = lease, .reserve = {.n = much}}, PFX_ETOOBIG},
        {{.op = OP_RESERVE, .lease = lease, .reserve = {.n = 1, .room = much}}, PFX_EINVAL},
        {{.op = OP_RESERVE, .lease = lease, .reserve = {.n = 1, .room = 1, .arena = much}},
         PFX_EINVAL},
        {{.op = OP_INSERT, .lease = lease, .flags = RF_LAST, .insert = {.piece = much}},
         PFX_EINVAL},
        {{.op = OP_INSERT, .lease = lease, .flags = RF_LAST, .insert = {.n_extras = much}},
         PFX_EINVAL},
        {{.op = OP_INSERT, .lease = lease, .flags = RF_LAST, .insert = {.arena = much, .piece = 4}},
         PFX_EINVAL},
        {{.op = OP_TABLE, .lease = lease, .table = {.count = much}}, PFX_EINVAL},
        {{.op = OP_TABLE, .lease = lease, .table = {.count = 1, .arena = much - 7}}, PFX_EINVAL},
        {{.op = OP_TRUNCATE, .lease = lease, .number = {.n = UINT64_MAX}}, PFX_EINVAL},
        {{.op = OP_SPACE_OPEN, .space = {.tenant_len = much}}, PFX_EINVAL},
        {{.op = OP_SPACE_OPEN, .space = {.tenant_len = 4, .arena = much}}, PFX_EINVAL},
        {{.op = UINT16_MAX}, PFX_EINVAL},
        {{.op = OP_COUNT}, PFX_EINVAL},
    };
    struct pages before = pages(&s.honest);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_completion c = raw_call(&w, cases[i].rq);
        ck_assert_msg(c.status == cases[i].status, "case %zu: %d instead of %d", i, c.status,
                      cases[i].status);
        step(&s.honest);
        pages_equal(&s.honest, before);
    }
    raw_close(&w);
    scene_close(&s);
}
END_TEST

/* Bytes of the arena change while the daemon works on them: it works on its copy. */
struct scribbler {
    struct raw *w;
    bool stop;
};

static void *scribble(void *arg)
{
    struct scribbler *x = arg;
    struct rng r = {1};
    while (!__atomic_load_n(&x->stop, __ATOMIC_RELAXED))
        for (int i = 0; i < 64; i++)
            __atomic_store_n((uint32_t *)(void *)x->w->arena + rng_below(&r, 1024), odd_number(&r),
                             __ATOMIC_RELAXED);
    return NULL;
}

START_TEST(hostile_arena_changes_under_the_reader)
{
    struct scene s;
    struct raw w;
    pthread_t thread;
    scene_open(&s);
    raw_open(&w, &s.h, "scribbler");
    struct scribbler x = {.w = &w};
    ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &x), 0);
    for (int i = 0; i < 3000; i++) {
        uint64_t lease = raw_lease(&w);
        ck_assert_int_eq(raw_reserve(&w, lease, 4).status, 0);
        raw_call(&w, (struct request){.op = OP_INSERT,
                                      .lease = lease,
                                      .flags = RF_LAST | RF_FINAL,
                                      .insert = {.piece = 15, .n_extras = 2}});
        struct request slow = {.op = OP_LOOKUP_SLOW, .flags = RF_LAST};
        slow.slow = (struct request_lookup_slow){
            .n_tokens = 16, .max_match = 16, .multiple = 4, .piece = 16, .n_extras = 2};
        raw_call(&w, slow);
        raw_call(&w, (struct request){.op = OP_SPACE_OPEN, .space = {.tenant_len = 200}});
        struct request release_it = {.op = OP_RELEASE, .lease = lease};
        ck_assert_int_eq(raw_call(&w, release_it).status, 0);
        if (i % 50 == 0)
            scene_holds(&s);
        /* Its leases of lookups go with it: where the scribbler sleeps, each holds 4 blocks more,
         * of the 29 that the honest one leaves. */
        if (i % 6 == 5) {
            __atomic_store_n(&x.stop, true, __ATOMIC_RELAXED);
            pthread_join(thread, NULL);
            raw_close(&w);
            raw_open(&w, &s.h, "scribbler");
            x.stop = false;
            ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &x), 0);
        }
    }
    __atomic_store_n(&x.stop, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    raw_close(&w);
    EVENTUALLY(5000, counters(&s.honest).workers == 1);
    scene_close(&s);
}
END_TEST

/* ---- rings ------------------------------------------------------------------------------ */

static void liar_ends(struct scene *s, struct raw *w, uint32_t jump)
{
    ck_assert_msg(raw_ended(w, 5000), "the daemon went on with a ring that jumped %u", jump);
    EVENTUALLY(5000, counters(&s->honest).workers == 1);
    ck_assert_uint_eq(pages(&s->honest).private, 0); /* what it had reserved is back */
    raw_close(w);
    scene_holds(s);
}

START_TEST(hostile_ring_indexes)
{
    struct scene s;
    struct raw w;
    scene_open(&s);
    static const uint32_t jumps[] = {257, 1000, 1u << 31, UINT32_MAX};
    for (int i = 0; i < 4; i++) { /* more records than the ring holds */
        raw_open(&w, &s.h, "liar");
        ck_assert_int_eq(raw_reserve(&w, raw_lease(&w), 2).status, 0);
        shm_store_release(&w.words->tail, w.out.tail + jumps[i]);
        char wake = WAKE;
        send(w.fd, &wake, 1, MSG_DONTWAIT);
        liar_ends(&s, &w, jumps[i]);
    }
    for (int i = 0; i < 3; i++) { /* completions taken that were never given */
        raw_open(&w, &s.h, "liar");
        ck_assert_int_eq(raw_reserve(&w, raw_lease(&w), 2).status, 0);
        shm_store_release(&w.words->head, w.in.head + jumps[i]);
        struct request nop = {.op = OP_NOP};
        for (uint32_t n = 0; n < 3 * w.welcome.ring_entries; n++)
            if (!raw_post(&w, &nop) && raw_ended(&w, 1))
                break;
        liar_ends(&s, &w, jumps[i]);
    }
    scene_close(&s);
}
END_TEST

/* A worker that takes no completions is paused, alone, and loses none. */
START_TEST(b41_full_reply_ring_pauses_one_worker)
{
    struct scene s;
    struct raw w;
    scene_open(&s);
    raw_open(&w, &s.h, "stopped");
    uint32_t posted = 0, room = w.welcome.ring_entries;
    struct request nop = {.op = OP_NOP};
    for (uint64_t until = now_ms() + 2000; posted < 2 * room && now_ms() < until;) {
        nop.tag = posted;
        posted += raw_post(&w, &nop);
    }
    ck_assert_uint_eq(posted, 2 * room); /* both rings are full now */
    ck_assert(!raw_post(&w, &nop));
    for (int i = 0; i < 200; i++)
        ck_assert_uint_eq(matched(&s.honest, "aaaabbbbccccx"), 12);
    for (uint32_t i = 0; i < posted; i++) {
        struct wire_completion c;
        ck_assert(raw_take(&w, &c, 5000));
        ck_assert_uint_eq(c.tag, i);
    }
    raw_call(&w, (struct request){.op = OP_NOP});
    raw_close(&w);
    scene_close(&s);
}
END_TEST

/* ---- greetings ------------------------------------------------------------------------------- */

static void refused(struct scene *s, const struct hello *hello, int status)
{
    struct raw w;
    bool answered = raw_greet(&w, &s->h, hello);
    ck_assert_msg(answered, "closed without a word instead of status %d", status);
    ck_assert_msg(w.welcome.status == status, "%d instead of %d: %.200s", w.welcome.status, status,
                  w.welcome.why);
    ck_assert_uint_eq(w.n_fds, 0);
    ck_assert_ptr_nonnull(memchr(w.welcome.why, 0, sizeof w.welcome.why));
    ck_assert_uint_gt(strlen(w.welcome.why), 10);
    ck_assert(raw_ended(&w, 5000));
    raw_close(&w);
    scene_holds(s);
}

START_TEST(hostile_greetings)
{
    struct scene s;
    scene_open(&s);
    unsigned fds = count_fds(s.h.pid);
    struct hello good = raw_hello("h"), bad = good;
    bad.abi = 2;
    refused(&s, &bad, PFX_EVERSION);
    bad = good;
    bad.magic++;
    refused(&s, &bad, PFX_EINVAL); /* not one of us at all */
    bad = good;
    bad.format++;
    refused(&s, &bad, PFX_EVERSION);
    static const uint32_t rings[] = {1, 7, 9, 100, RING_MAX * 2, UINT32_MAX};
    for (int i = 0; i < 6; i++) {
        bad = good;
        bad.ring_entries = rings[i];
        refused(&s, &bad, PFX_EINVAL);
    }
    bad = good;
    bad.arena_bytes = UINT32_MAX;
    refused(&s, &bad, PFX_EINVAL);
    bad = good;
    memset(bad.name, 'x', sizeof bad.name); /* no end */
    refused(&s, &bad, PFX_EINVAL);
    bad = good;
    memset(bad.group, 'x', sizeof bad.group);
    refused(&s, &bad, PFX_EINVAL);
    bad = good;
    bad.has_layout = 1;
    refused(&s, &bad, PFX_EMISMATCH);
    EVENTUALLY(5000, count_fds(s.h.pid) == fds);
    scene_close(&s);
}
END_TEST

START_TEST(hostile_packets)
{
    struct scene s;
    struct rng r = rng_seeded("packets");
    scene_open(&s);
    unsigned fds = count_fds(s.h.pid);
    uint8_t junk[2048];
    for (int i = 0; i < 200; i++) {
        int fd = raw_connect(&s.h);
        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)rng_next(&r);
        size_t n = rng_below(&r, 4) ? rng_below(&r, sizeof junk) : sizeof(struct hello);
        if (rng_below(&r, 8)) /* else it says nothing at all */
            send(fd, junk, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (rng_below(&r, 2))
            send(fd, junk, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        close(fd);
    }
    scene_holds(&s);
    struct raw w; /* and from somebody who has been let in */
    for (int i = 0; i < 20; i++) {
        raw_open(&w, &s.h, "chatty");
        ck_assert_int_eq(raw_reserve(&w, raw_lease(&w), 1).status, 0);
        for (int k = 0; k < 20; k++)
            send(w.fd, junk, 1 + rng_below(&r, sizeof junk - 1), MSG_DONTWAIT | MSG_NOSIGNAL);
        raw_close(&w);
    }
    EVENTUALLY(5000, counters(&s.honest).workers == 1);
    EVENTUALLY(5000, count_fds(s.h.pid) == fds);
    scene_close(&s);
}
END_TEST

/* Descriptors sent along are closed, not kept. */
START_TEST(hostile_descriptors)
{
    struct scene s;
    struct raw w;
    scene_open(&s);
    bool passed = false;
    raw_open(&w, &s.h, "generous");
    unsigned fds = count_fds(s.h.pid);
    for (int i = 0; i < 100; i++) {
        const char byte = WAKE;
        passed |= pass_descriptors(w.fd, &byte, 1, &w.fd, 1);
    }
    if (passed) /* before Linux 6.16: it is hung up on */
        EVENTUALLY(5000, host_logged(&s.h, "it passed descriptors"));
    for (int i = 0; i < 50 && !passed; i++)
        raw_call(&w, (struct request){.op = OP_NOP});
    EVENTUALLY(5000, count_fds(s.h.pid) <= fds);
    raw_close(&w);
    scene_close(&s);
}
END_TEST

/* Connections that say nothing are bounded and keep nobody out for long. */
START_TEST(hostile_silent_connections)
{
    struct scene s;
    int fd[300];
    scene_open(&s);
    for (int i = 0; i < 300; i++)
        fd[i] = raw_connect(&s.h);
    scene_holds(&s);
    ck_assert_uint_lt(count_fds(s.h.pid), 300);
    for (int i = 0; i < 300; i++)
        close(fd[i]);
    struct worker late;
    worker_open(&late, &s.h, NULL);
    worker_close(&late);
    scene_close(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hostile workers");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, hostile_every_opcode_with_garbage);
    tcase_add_test(t, b45_absurd_messages);
    tcase_add_test(t, hostile_arena_changes_under_the_reader);
    tcase_add_test(t, hostile_ring_indexes);
    tcase_add_test(t, b41_full_reply_ring_pauses_one_worker);
    tcase_add_test(t, hostile_greetings);
    tcase_add_test(t, hostile_packets);
    tcase_add_test(t, hostile_descriptors);
    tcase_add_test(t, hostile_silent_connections);
    suite_add_tcase(s, t);
    return s;
}
