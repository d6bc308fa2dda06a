/*
 * B36: 200 times SIGKILL for the daemon at random points while it spills, fetches, evicts, flushes,
 * scans and starts, over many lives of two swap directories. Between lives files are cut, or partly
 * garbage.
 *
 * Blocks are those of a tree of LEVELS levels and BRANCHES branches, in two spaces: more than the
 * disk holds, which holds more than the pool. After each restart everything is looked up: exact
 * bytes or a miss, and what the tier says it holds is what can be found, to the block. A flush that
 * has returned changes the weights, so that what it was to take away would show by its bytes.
 */
#include "tests/refuse.h"
#include "tests/scenario/disk_site.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEVELS = 4, BRANCHES = 3, LEAVES = 81, SPACES = 2, KILLS = 200, BT = 4 };

struct run {
    struct site s;
    struct rng rng;
    pfx_space space[SPACES];
    uint64_t weights[SPACES];
    unsigned n_found, n_exact, n_misses, n_flushes, n_quiet, n_moving;
};

static struct seq path(unsigned leaf)
{
    struct seq q = {.n = LEVELS * BT + 1}; /* one token is left to compute */
    for (unsigned level = 0, i = 0; level < LEVELS; level++, leaf /= BRANCHES)
        for (unsigned k = 0; k < BT; k++)
            q.at[i++] = 1000 * (level + 1) + 10 * (leaf % BRANCHES) + k;
    return q;
}

static void enter(struct run *r, unsigned space)
{
    struct worker *w = &r->s.w;
    w->space = r->space[space];
    w->weights = r->weights[space] - w->space * 31; /* see use_space */
}

static void open_spaces(struct run *r)
{
    for (unsigned i = 0; i < SPACES; i++)
        r->space[i] = use_space(&r->s, i ? "tenant" : "", 0, 0, 0);
}

/* ---- what there is ---- */

/* Prefixes that are found; on_disk: only those with a copy there. */
static unsigned count(struct run *r, bool on_disk)
{
    unsigned n = 0;
    bool unchecked = r->s.w.unchecked;
    r->s.w.unchecked = true; /* there are hundreds of these */
    for (unsigned space = 0; space < SPACES; space++) {
        bool seen[LEVELS][LEAVES] = {{false}};
        enter(r, space);
        for (unsigned leaf = 0; leaf < LEAVES; leaf++) {
            struct seq q = path(leaf);
            struct held h = seek_seq(&r->s, &q, PFX_QUIET);
            REQUIRE_EQ(pfx_peek(r->s.w.c, r->s.w.space, q.at, q.n), h.match.matched_tokens);
            for (unsigned i = 0, prefix = 0, unit = 1, rest = leaf; i < h.match.n_blocks; i++) {
                prefix += rest % BRANCHES * unit;
                unit *= BRANCHES;
                rest /= BRANCHES;
                n += !seen[i][prefix] && (!on_disk || h.match.disk[i] != PFX_NO_DISK);
                seen[i][prefix] = true;
            }
            drop(&r->s.w, &h);
        }
    }
    r->s.w.unchecked = unchecked;
    return n;
}

/* ---- a life ---- */

static void put_path(struct run *r, struct held *h, const struct seq *q)
{
    struct worker *w = &r->s.w;
    uint32_t lacks = LEVELS - h->n_table;
    if (lacks == 0 || pfx_reserve(w->c, h->lease, lacks, h->table + h->n_table) < 0)
        return;
    h->n_table = LEVELS;
    fill(w, h, q);
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = q->at, .n_written = LEVELS * (size_t)BT};
    struct pfx_insert_result out = {.size = sizeof out};
    (void)pfx_insert(w->c, h->lease, &args, NULL, &out);
}

/* Look up a path, with or without a fetch; check what is there; mostly add what is not. */
static int visit(struct run *r)
{
    struct worker *w = &r->s.w;
    struct seq q = path(rng_below(&r->rng, LEAVES));
    struct held h = {.match = {.size = sizeof h.match}};
    enter(r, rng_below(&r->rng, SPACES));
    struct pfx_lookup_args args = lookup_args(w, &q);
    args.flags = rng_below(&r->rng, 4) ? PFX_FETCH : 0;
    int rc = pfx_lookup(w->c, &args, &h.match);
    if (rc < 0)
        return rc;
    h.lease = h.match.lease;
    for (uint32_t i = 0; i < h.match.n_blocks; i++)
        h.table[i] = h.match.blocks[i];
    h.n_table = h.n_published = h.match.n_blocks;
    for (uint32_t i = 0; i < h.match.n_resident; i++)
        REQUIRE_MSG(bytes_are(w, h.table[i], &q, (size_t)(i + 1) * BT), "wrong bytes at %u", i);
    if (h.match.n_resident == h.match.n_blocks && rng_below(&r->rng, 8))
        put_path(r, &h, &q);
    if (rng_below(&r->rng, 16) == 0)
        return 0; /* the lease goes with the connection */
    return pfx_release(w->c, h.lease);
}

static int flush_one(struct run *r)
{
    unsigned which = rng_below(&r->rng, SPACES + 1);
    bool all = which == SPACES;
    int rc = pfx_flush(r->s.w.c, all ? PFX_ALL_SPACES : r->space[which]);
    for (unsigned i = 0; rc == 0 && i < SPACES; i++)
        r->weights[i] += all || i == which;
    r->n_flushes += rc == 0;
    return rc;
}

static int evict_some(struct run *r)
{
    struct pfx_evicted e = {.size = sizeof e};
    return pfx_evict(r->s.w.c, 1 + rng_below(&r->rng, 12), &e);
}

static int act(struct run *r)
{
    uint32_t dice = rng_below(&r->rng, 100);
    int rc = dice < 82 ? visit(r) : dice < 98 ? evict_some(r) : flush_one(r);
    REQUIRE_MSG(rc >= 0 || rc == PFX_EGONE, "%s (%s)", pfx_strerror(rc), pfx_why(r->s.w.c));
    return rc;
}

/* eye: a connection of its own, to see what was under way. */
struct killer {
    pthread_t thread;
    pid_t pid;
    unsigned us;
    pfx *eye;
    bool moving;
};

static void *kill_it(void *arg)
{
    struct killer *k = arg;
    struct pfx_stats last = {.size = sizeof last};
    sleep_us(k->us);
    k->moving = pfx_stats(k->eye, &last) == 0 && last.blocks_inflight;
    kill(k->pid, SIGKILL);
    return NULL;
}

static void live_and_die(struct run *r)
{
    struct killer k = {.pid = r->s.h.pid, .us = rng_below(&r->rng, 25000 * (SLOW > 1 ? 2 : 1))};
    struct pfx_options o = worker_options(&r->s.h);
    REQUIRE_EQ(pfx_open(&o, &k.eye), 0);
    r->s.w.unchecked = true;
    ck_assert_int_eq(pthread_create(&k.thread, NULL, kill_it, &k), 0);
    while (act(r) != PFX_EGONE)
        ;
    pthread_join(k.thread, NULL);
    pfx_close(k.eye);
    r->n_moving += k.moving;
    site_kill(&r->s);
}

/* It has come to rest before it is killed: nothing may be lost. Returns what was on disk. */
static unsigned live_and_rest(struct run *r)
{
    for (unsigned i = 20 + rng_below(&r->rng, 100); i; i--)
        REQUIRE(act(r) >= 0);
    all_written(&r->s);
    unsigned used = count(r, true);
    site_kill(&r->s);
    r->n_quiet++;
    return used;
}

/* Killed while it starts: opens, locks, mends, empties. */
static void stillborn(struct run *r, unsigned us)
{
    pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const char *argv[SITE_OPTIONS + 4] = {prefixd_path(), "--socket", r->s.h.socket};
        memcpy(argv + 3, r->s.option, r->s.n_options * sizeof argv[0]);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    sleep_us(us);
    kill(pid, SIGKILL);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status), "it ended by itself: 0x%x", (unsigned)status);
}

/* ---- between lives ---- */

static unsigned newest_file(const struct run *r)
{
    struct stat a, b;
    ck_assert_int_eq(stat(site_file(&r->s, 0), &a), 0);
    ck_assert_int_eq(stat(site_file(&r->s, 1), &b), 0);
    bool second = b.st_mtim.tv_sec != a.st_mtim.tv_sec ? b.st_mtim.tv_sec > a.st_mtim.tv_sec
                                                       : b.st_mtim.tv_nsec > a.st_mtim.tv_nsec;
    return second;
}

static bool damage(struct run *r)
{
    unsigned file = newest_file(r), kind = rng_below(&r->rng, 20);
    uint64_t size = site_file_size(&r->s, file), at = rng_next(&r->rng) % (size + 1);
    if (kind == 0)
        site_file_cut(&r->s, file, size / 2);
    else if (kind == 1)
        site_file_garbage(&r->s, !file, size, 1 + rng_below(&r->rng, 100000), rng_next(&r->rng));
    else if (kind == 2)
        site_file_garbage(&r->s, file, at, 1 + rng_below(&r->rng, 20000), rng_next(&r->rng));
    else
        return false;
    return true;
}

/* ---- after a restart ---- */

static void judge(struct run *r, unsigned at_least)
{
    open_spaces(r);
    unsigned found = count(r, false);
    REQUIRE_EQ(counters(&r->s.w).disk_used, found);
    REQUIRE_MSG(found >= at_least, "%u of %u blocks were found again", found, at_least);
    REQUIRE_EQ(counters(&r->s.w).blocks_free, pfx_geometry(r->s.w.c)->n_blocks);
    r->n_found += found;
    r->s.w.unchecked = true; /* a life has hundreds of these */
    for (unsigned space = 0; space < SPACES; space++) {
        enter(r, space);
        for (unsigned leaf = 0; leaf < LEAVES; leaf++) {
            struct seq q = path(leaf);
            uint32_t there = (uint32_t)pfx_peek(r->s.w.c, r->s.w.space, q.at, q.n);
            uint32_t got = exact_seq(&r->s, &q);
            REQUIRE(got <= there);
            r->n_exact += got / BT;
            r->n_misses += got < there;
        }
    }
    r->s.w.unchecked = false;
    step(&r->s.w);
    REQUIRE_EQ(counters(&r->s.w).disk_used, count(r, false)); /* those that were lost too */
}

/* No slot has been lost on the way: the tier can still be filled to its last one. */
static void fill_up(struct run *r, bool damaged)
{
    struct site *s = &r->s;
    uint32_t slots = pfx_geometry(s->w.c)->n_disk_blocks;
    enter(r, 0);
    EVENTUALLY(DISK_WAIT_MS, counters(&s->w).disk_ready_blocks == slots);
    s->w.unchecked = true;
    uint64_t most = 0;
    for (uint32_t i = 0; i < 2 * slots + 64; i++) {
        struct seq q = {.n = BT, .at = {1u << 20, i, i, i}};
        cache_seq(&s->w, &q, 0);
        if (i % 16 != 15) /* all_written looks on for a while */
            continue;
        all_written(s);
        uint64_t used = counters(&s->w).disk_used;
        most = used > most ? used : most;
        if (most == slots)
            break;
    }
    s->w.unchecked = false;
    step(&s->w);
    if (!damaged) /* what was damaged is retired */
        REQUIRE_MSG(most == slots, "%u of %u slots", (unsigned)most, slots);
}

/* So many kills while blocks come and go, of GPUs a quarter; those at rest and while it starts come
 * on top. */
static void run(unsigned most, bool hurt)
{
    static struct run it;
    unsigned kills = on_cuda() ? most / 4 : most;
    struct run *r = &it;
    *r = (struct run){.rng = rng_seeded("kill")};
    site_init(&r->s, "768K");
    site_path(&r->s, "640K");
    site_set(&r->s, "--blocks", "40");
    site_start(&r->s);
    uint64_t began = now_ms();
    unsigned at_least = 0, n_damaged = 0, n_early = 0;
    for (unsigned killed = 0; killed < kills;) {
        judge(r, at_least);
        at_least = 0;
        if (rng_below(&r->rng, 4) == 0) {
            at_least = live_and_rest(r);
        } else {
            live_and_die(r);
            killed++;
        }
        if (hurt && damage(r)) {
            at_least = 0;
            n_damaged++;
        }
        if (rng_below(&r->rng, 8) == 0) {
            stillborn(r, rng_below(&r->rng, 30000 * (SLOW > 1 ? 4 : 1)));
            n_early++;
        }
        site_start(&r->s);
    }
    judge(r, at_least);
    fill_up(r, n_damaged != 0 || r->n_misses != 0);
    fprintf(
        stderr,
        "%u kills (%u with blocks in flight), %u at rest, %u while it started; %u times damaged, "
        "%u flushes: %u blocks found, %u exact, %u misses; %llu ms\n",
        kills, r->n_moving, r->n_quiet, n_early, n_damaged, r->n_flushes, r->n_found, r->n_exact,
        r->n_misses, (unsigned long long)(now_ms() - began));
    ck_assert_uint_gt(r->n_moving, kills / 25);
    ck_assert_uint_gt(r->n_found, 10 * kills);
    ck_assert_uint_gt(r->n_exact, r->n_found);
    site_deinit(&r->s);
}

START_TEST(b36_killed_at_random_points)
{
    run(KILLS / 2, true);
}
END_TEST

START_TEST(b36_killed_at_random_points_without_damage)
{
    run(KILLS / 4, false);
}
END_TEST

START_TEST(b36_killed_at_random_points_with_threads)
{
    refuse_io_uring(EPERM);
    run(KILLS / 4, true);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_kill");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, b36_killed_at_random_points);
    tcase_add_test(t, b36_killed_at_random_points_without_damage);
    tcase_add_test(t, b36_killed_at_random_points_with_threads);
    suite_add_tcase(s, t);
    return s;
}
