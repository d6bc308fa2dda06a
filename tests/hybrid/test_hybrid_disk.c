/*
 * The proof once more, through the disk: before each turn every state has been spilled and no block
 * has a page, so what a turn restores has been written, read and checked; and from round to round
 * there is another daemon. Answers are those without any cache, to the last bit of the logits.
 *
 *      round    turn of each conversation, each after all has left the pool
 *               the daemon ends: SIGTERM or SIGKILL in turn, after all was written, or at once
 *               now and then bytes of its files rot meanwhile
 *
 * Three adapters have weights of their own and the same texts: a space has another number in each
 * life, so one that is taken for another shows. PFX_SEED=<printed> repeats a run.
 */
#include "daemon/swap.h"
#include "tests/hybrid/conversation.h"
#include "tests/hybrid/stand.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ROUNDS = 14,
    LIVE_MAX = 5,
    ADAPTERS = 3,
    WAIT_MS = 20000 * SLOW,
    ROT = 8,
    SECTOR = 512,
    BODY = 900
};

static const struct shape {
    const char *name;
    uint32_t block_tokens, stride, live;
    uint32_t n_blocks, n_slots, n_tier, n_disk; /* on disk: about so many */
    const char *write, *admit;
    bool roomy; /* nothing is ever given up */
} shapes[] = {
    {"roomy", 4, 8, 4, 2000, 200, 3000, 8000, "insert", "1", true},
    {"wide blocks", 16, 24, 4, 600, 40, 3000, 4000, "evict", "1", true},
    {"little room", 4, 10, 5, 300, 6, 60, 200, "evict", "1", false},
    {"seen twice", 4, 12, 4, 300, 20, 500, 800, "insert", "2", false},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct thread {
    struct conversation c, other;
    uint32_t adapter, n_served;
};

struct world {
    const struct shape *shape;
    struct host host;
    struct rng rng;
    struct hybrid *model[ADAPTERS];
    char dir[64], swap[96], snapshot_swap[24];
    struct daemon_options options;
    const char *argv[32];
    struct engine e;
    struct engine_counts counts; /* of the lives before */
    pfx_space space[ADAPTERS];
    struct talk talk;
    struct thread threads[LIVE_MAX];
    uint64_t lives, kills, rotten;
    uint64_t written, read, states_fetched, errors;
};

static uint32_t dice(struct world *w, uint32_t n)
{
    return rng_below(&w->rng, n);
}

static bool one_in(struct world *w, uint32_t n)
{
    return dice(w, n) == 0;
}

/* ---- a life --------------------------------------------------------------------------------- */

static void make_options(struct world *w)
{
    const struct shape *s = w->shape;
    uint64_t block = hybrid_block_bytes(w->model[0]), state = hybrid_state_bytes(w->model[0]);
    uint64_t blocks = swap_file_bytes(block, 1, BODY, s->n_disk);
    uint64_t states = swap_file_bytes(state, 1, BODY, s->n_tier);
    unsigned n = 0;
    daemon_options(&w->options, w->model[0],
                   &(struct pool_sizes){.n_blocks = s->n_blocks, .n_slots = s->n_slots});
    while (w->options.argv[n]) {
        w->argv[n] = w->options.argv[n];
        n++;
    }
    temp_dir(w->dir);
    snprintf(w->swap, sizeof w->swap, "%s:%" PRIu64, w->dir, blocks);
    snprintf(w->snapshot_swap, sizeof w->snapshot_swap, "%" PRIu64, states);
    const char *more[] = {"--swap",       w->swap,  "--snapshot-swap", w->snapshot_swap,
                          "--swap-write", s->write, "--swap-admit",    s->admit,
                          "--log-level",  "warning"};
    memcpy(w->argv + n, more, sizeof more);
}

/* In another order each time, and among others: the numbers of spaces mean nothing. */
static void open_spaces(struct world *w)
{
    w->space[0] = 0;
    for (uint32_t opened = 1; opened != (1u << ADAPTERS) - 1;) {
        uint32_t i = dice(w, ADAPTERS);
        struct pfx_space_desc d = {.size = sizeof d, .adapter_id = i ? 6 + i : 100 + w->lives};
        pfx_space space;
        if (opened >> i & 1 && i)
            continue;
        REQUIRE_EQ(pfx_space_open(w->e.c, &d, &space), 0);
        if (i)
            w->space[i] = space;
        opened |= 1u << i;
    }
}

static void life_begin(struct world *w)
{
    if (w->lives++)
        host_again(&w->host, w->argv);
    else
        host_start(&w->host, w->argv);
    worker_attach(&w->e, &w->host, w->model[0], NULL);
    EVENTUALLY(WAIT_MS, worker_stats(&w->e).disk_scan_done);
    open_spaces(w);
}

static void life_count(struct world *w)
{
    struct pfx_stats s = worker_stats(&w->e);
    w->written += s.disk_written_blocks;
    w->read += s.disk_read_blocks;
    w->states_fetched += s.snapshot_fetches;
    w->errors += s.disk_errors;
    engine_counts_add(&w->counts, &w->e.counts);
}

static void daemon_ends(struct world *w, bool killed)
{
    if (killed) {
        host_kill(&w->host);
        w->kills++;
        return;
    }
    int status;
    ck_assert_int_eq(kill(w->host.pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(w->host.pid, &status, 0), w->host.pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Anywhere behind the head of both files. */
static void rot(struct world *w)
{
    static const char *const names[] = {"blocks", "snapshots"};
    for (int f = 0; f < 2; f++) {
        char path[96];
        uint8_t bytes[SECTOR];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s.prefixd", w->dir, names[f]);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        ck_assert(fd >= 0 && fstat(fd, &st) == 0);
        uint32_t sectors = (uint32_t)((st.st_size - SWAP_EXTENTS) / SECTOR);
        for (int i = 0; i < ROT && sectors; i++) {
            for (int b = 0; b < SECTOR; b++)
                bytes[b] = (uint8_t)dice(w, 256);
            off_t at = SWAP_EXTENTS + (off_t)dice(w, sectors) * SECTOR;
            ck_assert_int_eq(pwrite(fd, bytes, SECTOR, at), SECTOR);
        }
        close(fd);
    }
    w->rotten++;
}

/* ---- all that is cached is on disk, and nowhere else
 * ----------------------------------------------- */

static void leave_pool(struct world *w)
{
    struct pfx_spilled spilled = {.size = sizeof spilled};
    struct pfx_evicted evicted = {.size = sizeof evicted};
    int rc;
    do
        rc = pfx_snapshot_spill(w->e.c, 0, &spilled);
    while (rc == 0);
    ck_assert_int_eq(rc, PFX_ENOENT);
    EVENTUALLY(WAIT_MS, pfx_evict(w->e.c, w->shape->n_blocks, &evicted) == 0 &&
                            worker_stats(&w->e).blocks_free == w->shape->n_blocks);
    ck_assert_uint_eq(worker_stats(&w->e).snapshots, 0);
}

static void next_life(struct world *w)
{
    bool settled = one_in(w, 2), killed = w->lives % 2;
    if (settled)
        leave_pool(w);
    else if (one_in(w, 2))
        sleep_us(dice(w, 5000));
    struct pfx_stats before = worker_stats(&w->e);
    life_count(w);
    bool first = on_cuda() && !killed; /* it waits two seconds for those who map its GPUs */
    if (first)
        pfx_close(w->e.c);
    daemon_ends(w, killed);
    if (!first)
        pfx_close(w->e.c);
    bool rotten = one_in(w, 4);
    if (rotten)
        rot(w);
    life_begin(w);
    struct pfx_stats now = worker_stats(&w->e);
    ck_assert_uint_eq(now.blocks_free, w->shape->n_blocks);
    if (settled && !rotten && w->shape->roomy) { /* swept ones may come back */
        ck_assert_uint_ge(now.disk_used, before.disk_used);
        ck_assert_uint_ge(now.snapshots_tiered, before.snapshots_tiered);
    }
    audit_clean(&w->host);
}

/* ---- turns -------------------------------------------------------------------------------------
 */

/* The next prompt, or a new conversation; every other time with the text of another one, whose
 * adapter it may share or not. */
static void next_prompt(struct world *w, struct thread *t)
{
    if (t->n_served && !one_in(w, 6) && talk_next(&w->talk, &t->c, &t->other))
        return;
    struct thread *like = &w->threads[dice(w, w->shape->live)];
    bool copied = like->n_served && one_in(w, 2);
    struct thread fresh = {.adapter = copied && one_in(w, 2) ? like->adapter : dice(w, ADAPTERS)};
    talk_open(&w->talk, &fresh.c, copied ? &like->c : NULL);
    *t = fresh;
}

static void turn(struct world *w, struct thread *t)
{
    struct hybrid_answer plain, cached;
    struct request rq = {.model = w->model[t->adapter],
                         .space = w->space[t->adapter],
                         .session = t->c.session,
                         .prompt = conversation_text(&t->c),
                         .n_tokens = t->c.n,
                         .n_decode = 1 + dice(w, HYBRID_DECODE),
                         .chunk = 1 + dice(w, 40),
                         .stride = one_in(w, 3) ? 0 : w->shape->stride,
                         .save_before_end = one_in(w, 2),
                         .save_end = one_in(w, 2),
                         .flags = one_in(w, 2) ? PFX_FETCH : 0};
    rq.finish = dice(w, t->c.session ? FINISH_TAIL_AND_SIBLING + 1 : FINISH_EXACT + 1);
    REQUIRE(hybrid_plain(rq.model, &rq.prompt, rq.n_tokens, rq.n_decode, 1 + dice(w, 64), &plain));
    uint32_t restored = engine_serve(&w->e, &rq, &cached);
    REQUIRE_MSG(hybrid_answers_equal(&plain, &cached),
                "other bits: life %" PRIu64 ", adapter %u, %u tokens, restored at %u", w->lives,
                t->adapter, rq.n_tokens, restored);
    talk_answer(&t->c, &cached);
    t->n_served++;
}

static void play_round(struct world *w)
{
    for (uint32_t i = 0; i < w->shape->live; i++) {
        next_prompt(w, &w->threads[i]);
        turn(w, &w->threads[i]);
        if (i + 1 < w->shape->live)
            leave_pool(w);
    }
    audit_clean(&w->host);
}

/* ---- the test
 * ------------------------------------------------------------------------------------ */

static const char *lacking(const struct world *w)
{
    const struct {
        const char *what;
        uint64_t value, least;
    } needs[] = {
        {"states restored", w->counts.restores, 15},
        {"at unaligned depths", w->counts.unaligned, 3},
        {"states read from disk", w->states_fetched, 15},
        {"blocks read from disk", w->read, 60},
        {"blocks written", w->written, 60},
        {"lives", w->lives, ROUNDS},
        {"kills", w->kills, ROUNDS / 2},
        {"files with rot", w->rotten, 1},
        {"conversations of another's text", w->talk.copied, 2},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if (needs[i].value < needs[i].least)
            return needs[i].what;
    return NULL;
}

START_TEST(same_bits_from_disk)
{
    struct world w = {.shape = &shapes[_i]};
    w.rng = rng_seeded(w.shape->name);
    for (uint32_t i = 0; i < ADAPTERS; i++)
        w.model[i] = hybrid_new(i + 1, w.shape->block_tokens, false);
    make_options(&w);
    talk_begin(&w.talk, &w.rng, w.shape->block_tokens, w.shape->stride);
    life_begin(&w);
    for (unsigned i = 0; i < ROUNDS || (lacking(&w) && i < 4 * ROUNDS); i++) {
        play_round(&w);
        next_life(&w);
    }
    fprintf(stderr,
            "%s: %" PRIu64 " lives, %" PRIu64 " turns, %" PRIu64 " states restored, %" PRIu64
            " inside a block, %" PRIu64 " states and %" PRIu64 " blocks read, %" PRIu64
            " written, %" PRIu64 " found out as rotten\n",
            w.shape->name, w.lives, w.counts.turns, w.counts.restores, w.counts.unaligned,
            w.states_fetched, w.read, w.written, w.errors);
    const char *lack = lacking(&w);
    ck_assert_msg(lack == NULL, "not enough: %s", lack);
    ck_assert_uint_eq(w.counts.alone, 0);
    nothing_is_held(&w.e);
    pfx_close(w.e.c);
    host_stop(&w.host);
    for (uint32_t i = 0; i < ADAPTERS; i++)
        hybrid_free(w.model[i]);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hybrid_disk");
    TCase *c = tcase_create("proof");
    tcase_set_timeout(c, 60 * SLOW);
    tcase_add_loop_test(c, same_bits_from_disk, 0, SHAPES);
    suite_add_tcase(s, c);
    return s;
}
