/*
 * Replay a trace through worker processes, and prove every hit.
 *
 * The parent attaches only before (for the geometry) and after (for what leaked); each worker has a
 * connection of its own. Request i belongs to worker i mod n, so one worker replays strictly in
 * order. Results come back in memory shared by fork, one struct outcome a request.
 */
#include "tools/replay.h"
#include "tools/measure.h"
#include "tools/private_daemon.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESTART_TRIES = 6000, WORKERS_MAX = 256, PROGRESS_CELLS = 30 };

static struct {
    bool private, pad_last;
    const char *restart;
    double restart_at;
    const char *trace, *snapshots; /* NULL: without, "": as many slots as there are */
    uint64_t workers, limit;
    struct daemon_args daemon;
} opt = {.workers = 1, .limit = UINT64_MAX};

#define DAEMON(name, value, help)                                                                  \
    {                                                                                              \
        name, value, OPTION_DAEMON, &opt.daemon, 0, help                                           \
    }
static const struct option_row options[] = {
    {"trace", "FILE", OPTION_TEXT, &opt.trace, 0,
     "requests, a JSON object a line (default: a built-in chat workload)"},
    {"workers", "N", OPTION_NUMBER, &opt.workers, WORKERS_MAX, "worker processes (default: 1)"},
    {"limit", "REQUESTS", OPTION_NUMBER, &opt.limit, 0, "stop after so many requests"},
    {"pad-last", NULL, OPTION_FLAG, &opt.pad_last, 0,
     "count a request's last, partial block of 512 tokens as a whole one,\n"
     "and let a whole prompt match"},
    {"snapshots", "[N]", OPTION_MAYBE, &opt.snapshots, 0,
     "as a hybrid model: restart from snapshots, file one at each prompt's\n"
     "end and branch; N: slots of the private daemon (default: 256)"},
    {"private", NULL, OPTION_FLAG, &opt.private, 0,
     "start a daemon for this run; the options below are handed to it"},
    DAEMON("blocks", "N", "blocks of its pool (default: 65536)"),
    DAEMON("block-tokens", "N", "tokens of a block (default: 16); without --private: must be so"),
    DAEMON("block-bytes", "SIZE", "bytes of a block on a device (default: 4K)"),
    DAEMON("bytes", "SIZE", "bytes of its pool, instead of --blocks"),
    DAEMON("devices", "N", "shards of a block"),
    DAEMON("device", "WHERE", "where its pages live; only host memory can be compared"),
    DAEMON("policy", "NAME", "who is evicted first"),
    DAEMON("index", "radix|none", "none: nothing is ever found"),
    DAEMON("snapshot-bytes", "SIZE", "bytes of a slot on a device (default: 4K)"),
    DAEMON("snapshot-swap", "SIZE",
           "memory, with --swap disk, for spilled snapshots (default: none)"),
    DAEMON("spill-min-tokens", "N", "snapshots of fewer tokens are dropped, not spilled"),
    DAEMON("alpha", "X",
           "uses that a token of a snapshot's depth is worth\n"
           "(see prefixd --help, as for the rest)"),
    DAEMON("numa", "N|local|any", "memory node of its pool"),
    DAEMON("huge-pages", NULL, "2 MiB pages"),
    DAEMON("spin-us", "N", "spin before sleeping"),
    DAEMON("max-workers", "N", "workers attached at once"),
    DAEMON("max-leases", "N", "leases of one worker"),
    DAEMON("max-worker-blocks", "N", "blocks that one worker has reserved"),
    DAEMON("max-worker-slots", "N", "slots that one worker has reserved"),
    DAEMON("model", "TEXT", "identity of the model"),
    {"restart-at", "FRACTION", OPTION_TEXT, &opt.restart, 0,
     "kill the private daemon (SIGKILL) after so much of the requests, more\n"
     "than 0 and less than 1, and start it again (default: never)"},
    DAEMON("swap", "PATH:SIZE",
           "a disk tier below its pool; repeatable (default: none). Its files stay,\n"
           "and the next replay there begins with what they hold"),
    DAEMON("swap-write", "evict|insert", "when blocks are written (default: evict)"),
    DAEMON("swap-admit", "N", "write only blocks that were seen N times (default: 1)"),
    DAEMON("swap-depth", "N", "transfers under way at once (default: 32)"),
    DAEMON("config", "FILE", "configuration file"),
    DAEMON("log-level", "LEVEL", "of its log"),
    {0},
};
#undef DAEMON

/* ---- before ------------------------------------------------------------------------------- */

static void add_default(const char *name, const char *value)
{
    if (!daemon_args_have(&opt.daemon, name))
        daemon_args_add(&opt.daemon, name, value);
}

/* What a private daemon is told that was not said. A configuration file decides for itself. */
static void add_defaults(void)
{
    bool config = daemon_args_have(&opt.daemon, "--config");
    if (!config) {
        if (!daemon_args_have(&opt.daemon, "--bytes"))
            add_default("--blocks", "65536");
        add_default("--block-tokens", "16");
        add_default("--block-bytes", "4K");
    }
    if (opt.snapshots && *opt.snapshots)
        add_default("--snapshots", opt.snapshots);
    else if (opt.snapshots && !config)
        add_default("--snapshots", "256");
    if (opt.snapshots && !config)
        add_default("--snapshot-bytes", "4K");
}

/* What a private daemon is told of snapshots must matter. */
static int check_states(void)
{
    static const char *const of_states[] = {"--snapshot-bytes", "--snapshot-swap",
                                            "--spill-min-tokens", "--alpha"};
    uint64_t slots;
    if (opt.snapshots && parse_number(opt.snapshots, 0, &slots) && slots == 0)
        return tool_fail(EXIT_USAGE,
                         "--snapshots takes at least 1; leave it away to replay without.");
    for (size_t i = 0; !opt.snapshots && i < sizeof of_states / sizeof of_states[0]; i++)
        if (daemon_args_have(&opt.daemon, of_states[i]))
            return tool_fail(EXIT_USAGE,
                             "%s means nothing without --snapshots; add that, or leave it away.",
                             of_states[i]);
    return EXIT_GOOD;
}

static int check_restart(void)
{
    char *end = NULL;
    if (!opt.restart)
        return EXIT_GOOD;
    opt.restart_at = strtod(opt.restart, &end);
    if (*end || end == opt.restart || !(opt.restart_at > 0 && opt.restart_at < 1))
        return tool_fail(EXIT_USAGE, "--restart-at takes a fraction between 0 and 1, not '%s'.",
                         opt.restart);
    return opt.private ? EXIT_GOOD
                       : tool_fail(EXIT_USAGE, "--restart-at kills the daemon, so it must be ours: "
                                               "add --private.");
}

static int check_options(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'; the trace is --trace FILE.",
                         arg[0]);
    if (opt.workers == 0)
        return tool_fail(EXIT_USAGE, "--workers must be at least 1.");
    if (opt.limit == 0)
        return tool_fail(EXIT_USAGE, "--limit must be at least 1.");
    int restart = check_restart();
    if (restart != EXIT_GOOD)
        return restart;
    if (opt.private) {
        if (t->given)
            return tool_fail(EXIT_USAGE, "--private starts a daemon of its own, at a socket of its "
                                         "own; leave --socket or --private away.");
        int code = check_states();
        add_defaults();
        return code;
    }
    if (opt.snapshots && *opt.snapshots)
        return tool_fail(EXIT_USAGE,
                         "--snapshots takes a number with --private only: the running daemon has "
                         "its own slots.");
    for (unsigned i = 0; i < opt.daemon.n; i++)
        if (opt.daemon.arg[i][0] == '-' && strcmp(opt.daemon.arg[i], "--block-tokens") != 0)
            return tool_fail(EXIT_USAGE,
                             "%s is for a private daemon; add --private, or leave it "
                             "away: the running daemon has its own.",
                             opt.daemon.arg[i]);
    return EXIT_GOOD;
}

/* --block-tokens without --private: a demand on the running daemon. */
static uint64_t demanded_block_tokens(void)
{
    uint64_t n = 0;
    for (unsigned i = 0; i + 1 < opt.daemon.n; i++)
        if (strcmp(opt.daemon.arg[i], "--block-tokens") == 0)
            parse_number(opt.daemon.arg[i + 1], 0, &n);
    return n;
}

/* What is held, or what was counted, before we begin is not ours to answer for. */
struct levels {
    uint64_t blocks, slots;
    uint64_t recompute_tokens;
};

static bool read_levels(const struct daemon_index *di, struct levels *l)
{
    struct counters c;
    if (!di->ready || !stats_copy(&di->view.header->stats, &c))
        return false;
    *l = (struct levels){
        .blocks = c.blocks_private + c.blocks_pinned + c.blocks_inflight + c.leases,
        .slots = di->view.header->n_slots - c.slots_free - c.snapshots,
        .recompute_tokens = c.recompute_tokens,
    };
    return true;
}

/* Now; or, with `until`, once nothing more is held than then: the daemon gives back what a closed
 * connection held when it sees the hang-up. Bounded. */
static int levels_now(const struct tool *t, const struct levels *until, struct levels *now)
{
    struct daemon_index di;
    int code = daemon_index_open(t, &di);
    if (code != EXIT_GOOD)
        return code;
    bool good = read_levels(&di, now);
    for (int tries = 0; good && until && tries < 1000; tries++) {
        if (now->blocks <= until->blocks && now->slots <= until->slots)
            break;
        usleep(2000);
        good = read_levels(&di, now);
    }
    if (!good)
        code = tool_fail(EXIT_DAEMON, "the counters of daemon %d never stood still.", di.pid);
    daemon_index_close(&di);
    return code;
}

static int check_daemon(const struct tool *t, uint32_t *block_tokens)
{
    int code = EXIT_GOOD;
    pfx *c = tool_attach(t, &code);
    if (!c)
        return code;
    const struct pfx_geometry *g = pfx_geometry(c);
    const struct pfx_layout *layout = &g->layout;
    uint64_t wanted = demanded_block_tokens();
    *block_tokens = layout->block_tokens;
    if (wanted && wanted != *block_tokens)
        code = tool_fail(EXIT_USAGE, "the daemon at %s has blocks of %u tokens, not %llu.",
                         t->socket, *block_tokens, (unsigned long long)wanted);
    else if (layout->block_bytes == 0 && !opt.snapshots)
        code = tool_fail(EXIT_DAEMON,
                         "the daemon at %s holds states only, no blocks to replay; "
                         "add --snapshots.",
                         t->socket);
    else if (opt.snapshots && g->n_slots == 0)
        code = tool_fail(EXIT_DAEMON,
                         "the daemon at %s has no slots for snapshots; it takes them with "
                         "--snapshots and --snapshot-bytes.",
                         t->socket);
    else if (opt.trace && (*block_tokens > TRACE_BLOCK || TRACE_BLOCK % *block_tokens))
        code = tool_fail(EXIT_USAGE,
                         "a trace has one id for every %d tokens, and blocks of %u "
                         "tokens do not divide that; use a power of two up to %d.",
                         TRACE_BLOCK, *block_tokens, TRACE_BLOCK);
    pfx_close(c);
    return code;
}

/* ---- meanwhile ----------------------------------------------------------------------------- */

static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The worker processes. `code` is the first failure's. */
struct crew {
    const struct replay *r;
    pid_t pid[WORKERS_MAX]; /* 0: it has ended */
    unsigned left;
    bool killed;
    int code;
    struct private_daemon *daemon; /* NULL: not ours */
    bool restarted;
};

static void crew_kill(struct crew *crew, int code)
{
    if (crew->killed)
        return;
    crew->killed = true;
    crew->code = code;
    for (unsigned i = 0; i < crew->r->n_workers; i++)
        if (crew->pid[i] > 0)
            kill(crew->pid[i], SIGKILL);
}

static void crew_start(struct crew *crew)
{
    pid_t parent = getpid();
    fflush(NULL);
    for (unsigned i = 0; i < crew->r->n_workers; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? replay_worker(crew->r, i) : EXIT_DAEMON);
        }
        if (pid < 0) {
            crew_kill(crew,
                      tool_fail(EXIT_DAEMON, "cannot start worker %u: %s.", i, strerror(errno)));
            return;
        }
        crew->pid[i] = pid;
        crew->left++;
    }
}

static void show_progress(const struct replay *r, bool last)
{
    static uint64_t shown_ns;
    uint64_t done = 0;
    if (!isatty(STDERR_FILENO) || (!last && clock_ns() - shown_ns < 100 * 1000000u))
        return;
    shown_ns = clock_ns();
    if (last) {
        fprintf(stderr, "\r\033[K");
        return;
    }
    for (unsigned i = 0; i < r->n_workers; i++)
        done += shm_load(&r->words[i].done);
    size_t n = r->work->n_prompts;
    int cells = (int)(done * PROGRESS_CELLS / n);
    char bar[PROGRESS_CELLS + 1];
    memset(bar, '.', PROGRESS_CELLS);
    memset(bar, '#', (size_t)cells);
    bar[PROGRESS_CELLS] = '\0';
    fprintf(stderr, "\r[%s] %3d %%  %llu of %zu requests", bar, (int)(done * 100 / n),
            (unsigned long long)done, n);
}

static void crew_reap(struct crew *crew, unsigned i)
{
    int status;
    if (crew->pid[i] <= 0 || waitpid(crew->pid[i], &status, WNOHANG) != crew->pid[i])
        return;
    crew->pid[i] = 0;
    crew->left--;
    if (crew->killed || (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_GOOD))
        return;
    crew_kill(crew,
              WIFEXITED(status) /* then it said why */
                  ? EXIT_DAEMON
                  : tool_fail(EXIT_DAEMON, "worker %u died of signal %d.", i, WTERMSIG(status)));
}

/* Until it knows what is on disk: before, lookups miss. */
static int await_scan(const struct tool *t)
{
    int code = EXIT_GOOD;
    struct pfx_stats s = {.size = sizeof s};
    pfx *c = tool_attach(t, &code);
    for (int tries = 0; c && tries < RESTART_TRIES && !interrupted; tries++) {
        if (pfx_stats(c, &s) < 0 || s.disk_scan_done)
            break;
        usleep(10000);
    }
    pfx_close(c);
    if (code == EXIT_GOOD && !s.disk_scan_done)
        code = tool_fail(EXIT_DAEMON, "the daemon did not find what it has on disk in time.");
    return code;
}

/* All that are left have paused: SIGKILL for the daemon, and on with the next one. */
static int restart_daemon(const struct crew *crew)
{
    int code = private_daemon_again(crew->daemon, &opt.daemon);
    return code == EXIT_GOOD ? await_scan(crew->r->tool) : code;
}

static void crew_restart(struct crew *crew)
{
    unsigned paused = 0;
    for (unsigned i = 0; i < crew->r->n_workers; i++)
        paused += crew->pid[i] > 0 && shm_load_acquire(&crew->r->words[i].paused);
    if (crew->restarted || !paused || paused < crew->left)
        return;
    crew->restarted = true;
    int code = restart_daemon(crew);
    if (code == EXIT_GOOD)
        shm_store_release(crew->r->go, 2u);
    else
        crew_kill(crew, code);
}

/* Let them begin together, and wait for all; on the first failure, or an interruption, the others
 * are killed. Returns when they began. */
static uint64_t crew_await(struct crew *crew)
{
    const struct replay *r = crew->r;
    uint64_t begin_ns = 0;
    while (crew->left) {
        unsigned ready = 0;
        for (unsigned i = 0; i < r->n_workers; i++)
            ready += shm_load_acquire(&r->words[i].ready);
        if (ready == r->n_workers && !begin_ns) {
            begin_ns = clock_ns();
            shm_store_release(r->go, 1u);
        }
        for (unsigned i = 0; i < r->n_workers; i++)
            crew_reap(crew, i);
        crew_restart(crew);
        if (interrupted)
            crew_kill(crew, EXIT_DAEMON);
        show_progress(r, false);
        usleep(2000);
    }
    show_progress(r, true);
    return begin_ns;
}

/* ---- after --------------------------------------------------------------------------------- */

struct sum {
    uint64_t requested, hit, disk, verified, corrupt, leaked;
    uint64_t p50, p99, max;
    double seconds, ratio;
    size_t requests;
    /* --snapshots */
    uint64_t prompt_tokens, skipped, recompute_tokens;
    uint64_t restarts, saves, corrupt_states, leaked_slots;
};

static bool add_up(const struct replay *r, uint64_t begin_ns, struct sum *s)
{
    size_t n = r->work->n_prompts;
    uint64_t *ns = malloc(n * sizeof *ns), end = begin_ns + 1;
    if (!ns)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct outcome *o = &r->outcome[i];
        s->requests += o->done;
        s->requested += o->requested;
        s->hit += o->hit;
        s->disk += o->disk;
        s->verified += o->verified;
        s->corrupt += o->corrupt;
        s->prompt_tokens += r->work->prompt[i].n_tokens;
        s->skipped += o->restart;
        s->restarts += o->restart != 0;
        s->saves += o->saves;
        s->corrupt_states += o->corrupt_state;
        ns[i] = o->lookup_ns;
    }
    for (unsigned i = 0; i < r->n_workers; i++)
        end = r->words[i].end_ns > end ? r->words[i].end_ns : end;
    s->seconds = (double)(end - begin_ns) / 1e9;
    s->ratio = s->requested ? (double)s->hit / (double)s->requested : 0;
    s->p50 = quantile(ns, n, 500);
    s->p99 = quantile(ns, n, 990);
    s->max = ns[n - 1];
    free(ns);
    return true;
}

static int count_leaked(const struct tool *t, const struct levels *before, struct sum *s)
{
    struct levels now;
    int code = levels_now(t, before, &now);
    if (code != EXIT_GOOD)
        return code;
    s->leaked = now.blocks > before->blocks ? now.blocks - before->blocks : 0;
    s->leaked_slots = now.slots > before->slots ? now.slots - before->slots : 0;
    s->recompute_tokens = now.recompute_tokens - before->recompute_tokens;
    return EXIT_GOOD;
}

static double state_ratio(const struct sum *s)
{
    return s->prompt_tokens ? (double)s->skipped / (double)s->prompt_tokens : 0;
}

static void report_json(const struct sum *s)
{
    json_t *o =
        json_pack("{s:I,s:I,s:I,s:I,s:f,s:I,s:I,s:I,s:f,s:{s:I,s:I,s:I}}", "requests",
                  (json_int_t)s->requests, "blocks_requested", (json_int_t)s->requested,
                  "blocks_hit", (json_int_t)s->hit, "disk_hits", (json_int_t)s->disk, "hit_ratio",
                  s->ratio, "verified_blocks", (json_int_t)s->verified, "corrupt_blocks",
                  (json_int_t)s->corrupt, "leaked_blocks", (json_int_t)s->leaked, "requests_per_s",
                  (double)s->requests / s->seconds, "lookup_ns", "p50", (json_int_t)s->p50, "p99",
                  (json_int_t)s->p99, "max", (json_int_t)s->max);
    if (opt.snapshots)
        json_object_update_new(
            o, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "snapshot_hits",
                         (json_int_t)s->restarts, "snapshot_saves", (json_int_t)s->saves,
                         "snapshots_verified", (json_int_t)s->restarts, "snapshots_corrupt",
                         (json_int_t)s->corrupt_states, "leaked_slots", (json_int_t)s->leaked_slots,
                         "recomputed_tokens", (json_int_t)(s->prompt_tokens - s->skipped),
                         "recompute_tokens", (json_int_t)s->recompute_tokens, "prompt_tokens",
                         (json_int_t)s->prompt_tokens, "state_hit_ratio", state_ratio(s)));
    print_json(o);
}

static void report_states(const struct sum *s)
{
    printf("%llu of %zu requests restarted from a snapshot: %llu of %llu tokens skipped (%.4f), "
           "%llu recomputed\n",
           (unsigned long long)s->restarts, s->requests, (unsigned long long)s->skipped,
           (unsigned long long)s->prompt_tokens, state_ratio(s),
           (unsigned long long)(s->prompt_tokens - s->skipped));
    printf("%llu of these had keys and values in the cache, but no state\n",
           (unsigned long long)s->recompute_tokens);
    printf("%llu snapshots saved; %llu read back and compared: %llu corrupt; %llu slots leaked\n",
           (unsigned long long)s->saves, (unsigned long long)s->restarts,
           (unsigned long long)s->corrupt_states, (unsigned long long)s->leaked_slots);
}

static void report(const struct sum *s, uint32_t block_tokens)
{
    printf("%zu requests by %llu worker%s in %.2f s (%.0f a second)\n", s->requests,
           (unsigned long long)opt.workers, PLURAL(opt.workers), s->seconds,
           (double)s->requests / s->seconds);
    printf("%llu of %llu blocks were in the cache: hit ratio %.4f, %llu tokens not recomputed\n",
           (unsigned long long)s->hit, (unsigned long long)s->requested, s->ratio,
           (unsigned long long)(s->hit * block_tokens));
    if (s->disk)
        printf("%llu of them came from disk\n", (unsigned long long)s->disk);
    printf("%llu blocks read back and compared: %llu corrupt; %llu leaked\n",
           (unsigned long long)s->verified, (unsigned long long)s->corrupt,
           (unsigned long long)s->leaked);
    if (opt.snapshots)
        report_states(s);
    printf("lookup: half within %.1f us, 99 %% within %.1f us, the slowest %.1f us\n",
           (double)s->p50 / 1e3, (double)s->p99 / 1e3, (double)s->max / 1e3);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int run_workers(struct replay *r, struct private_daemon *daemon, uint32_t block_tokens,
                       const struct levels *before)
{
    r->outcome = share(r->work->n_prompts * sizeof *r->outcome);
    r->words = share(r->n_workers * sizeof *r->words);
    r->go = share(sizeof *r->go);
    if (!r->outcome || !r->words || !r->go)
        return tool_fail(EXIT_DAEMON, "out of memory.");
    struct crew crew = {.r = r, .daemon = daemon};
    crew_start(&crew);
    uint64_t begin_ns = crew_await(&crew);
    if (crew.code != EXIT_GOOD)
        return crew.code;

    struct sum sum = {0};
    if (!add_up(r, begin_ns, &sum))
        return tool_fail(EXIT_DAEMON, "out of memory.");
    static const struct levels fresh;
    int code = count_leaked(r->tool, crew.restarted ? &fresh : before, &sum);
    if (code != EXIT_GOOD)
        return code;
    if (r->tool->json)
        report_json(&sum);
    else
        report(&sum, block_tokens);
    bool bad = sum.corrupt || sum.leaked || sum.corrupt_states || sum.leaked_slots;
    return bad ? EXIT_FINDING : EXIT_GOOD;
}

static int run_against(const struct tool *t, const struct workload *work,
                       struct private_daemon *daemon)
{
    struct replay r = {.tool = t,
                       .work = work,
                       .whole_match = opt.pad_last,
                       .snapshots = opt.snapshots != NULL,
                       .n_workers = (unsigned)opt.workers,
                       .pause_at = work->n_prompts};
    if (opt.restart)
        r.pause_at = (size_t)(opt.restart_at * (double)work->n_prompts);
    uint32_t block_tokens = 0;
    struct levels before;
    int code = check_daemon(t, &block_tokens);
    if (code == EXIT_GOOD && daemon)
        code = await_scan(t); /* of files that an earlier run left in --swap */
    if (code == EXIT_GOOD)
        code = levels_now(t, NULL, &before);
    if (code == EXIT_GOOD)
        code = run_workers(&r, daemon, block_tokens, &before);
    if (r.outcome)
        munmap(r.outcome, work->n_prompts * sizeof *r.outcome);
    if (r.words)
        munmap(r.words, r.n_workers * sizeof *r.words);
    if (r.go)
        munmap(r.go, sizeof *r.go);
    return code;
}

static int replay_run(const struct tool *t, int n, char **arg)
{
    struct workload work = {0};
    int code = check_options(t, n, arg);
    if (code != EXIT_GOOD)
        return code;
    if (opt.trace)
        code = trace_load(&work, opt.trace, opt.limit, opt.pad_last);
    else
        chat_make(&work, opt.limit);
    if (code == EXIT_GOOD && opt.private) {
        struct private_daemon d;
        struct tool own = *t;
        interrupt_catch();
        code = private_daemon_start(&d, &opt.daemon);
        if (code == EXIT_GOOD) {
            own.socket = d.socket;
            own.also = NULL;
            code = run_against(&own, &work, &d);
            if (!private_daemon_stop(&d) && code == EXIT_GOOD)
                code = EXIT_DAEMON;
        }
        interrupt_raise();
    } else if (code == EXIT_GOOD) {
        code = run_against(t, &work, NULL);
    }
    workload_free(&work);
    return code;
}

const struct command replay_command = {
    "replay",
    "",
    "replay a trace through worker processes and verify every hit byte for byte",
    "A trace line has timestamp, input_length, output_length and hash_ids, one id for every 512\n"
    "tokens of the prompt. Blocks are counted in the daemon's size; a block that is not full does\n"
    "not count, unless --pad-last. Exits 1 if a page or snapshot was wrong or something leaked.\n"
    "--snapshots: a prompt skips only what a snapshot covers; state_hit_ratio counts that.\n"
    "recomputed_tokens is the rest: all prompt tokens that had to run. recompute_tokens is the\n"
    "daemon's counter: those of them that were matched, but had no state.",
    options,
    replay_run,
};
