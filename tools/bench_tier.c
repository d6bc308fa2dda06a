/*
 * A daemon with a disk tier. What another worker waits for a lookup while gigabytes move; and how
 * long after kill -9 a daemon with a million blocks on disk gives the first of them back.
 *
 * Two cores are shared by the index thread, the swap thread, the kernel's and two workers. So
 * nobody spins here: the lookups come at a pace, as those of a scheduler do.
 */
#include "tools/bench.h"
#include "tools/bench_swap.h"
#include "tools/measure.h"
#include "tools/private_daemon.h"

#include "daemon/swap.h"
#include "shm/atomic.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* A daemon, and a worker of it. */
struct site {
    char dir[4096], swap[4200];
    struct daemon_args args;
    struct private_daemon daemon;
    struct tool tool;
    pfx *c;
};

static bool site_begin(struct site *s, uint64_t disk_bytes, const char *const *more)
{
    struct statvfs fs;
    if (!swap_dir_make(s->dir, sizeof s->dir))
        return false;
    if (statvfs(s->dir, &fs) == 0 && fs.f_bavail * fs.f_frsize < disk_bytes + (256u << 20)) {
        tool_fail(0, "%s has no %" PRIu64 " MB free; name another directory with --dir.", bench_dir,
                  disk_bytes / 1000000 + 256);
        return false;
    }
    snprintf(s->swap, sizeof s->swap, "%s:%" PRIu64, s->dir, disk_bytes);
    daemon_args_add(&s->args, "--swap", s->swap);
    for (; more[0]; more += 2)
        daemon_args_add(&s->args, more[0], more[1]);
    if (private_daemon_start(&s->daemon, &s->args) != EXIT_GOOD)
        return false;
    s->tool.socket = s->daemon.socket;
    int code;
    return (s->c = tool_attach(&s->tool, &code)) != NULL;
}

static void site_end(struct site *s)
{
    pfx_close(s->c);
    private_daemon_stop(&s->daemon);
    swap_dir_remove(s->dir);
}

static struct pfx_stats stats_of(pfx *c)
{
    struct pfx_stats now = {.size = sizeof now};
    (void)pfx_stats(c, &now);
    return now;
}

static double fail(pfx *c, const char *what, int rc)
{
    if (!interrupted)
        tool_fail_pfx(what, rc, pfx_why(c));
    return -1;
}

/* Look a sequence up, fetched, and cache what is missing. Its matched tokens, or a negative error.
 */
static int visit(pfx *c, const uint32_t *tokens, uint32_t n_blocks, uint32_t block_tokens)
{
    static uint32_t ids[1024];
    uint32_t n = n_blocks * block_tokens;
    struct pfx_lookup_args look = {
        .size = sizeof look, .flags = PFX_FETCH, .tokens = tokens, .n_tokens = n + 1};
    struct pfx_insert_args args = {.size = sizeof args, .tokens = tokens, .n_written = n};
    struct pfx_insert_result out = {.size = sizeof out};
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(c, &look, &m);
    if (rc < 0)
        return rc;
    if (m.matched_tokens < n &&
        (rc = pfx_truncate(c, m.lease, m.matched_tokens / block_tokens)) >= 0 &&
        (rc = pfx_reserve(c, m.lease, n_blocks - m.matched_tokens / block_tokens, ids)) >= 0)
        rc = pfx_insert(c, m.lease, &args, NULL, &out);
    int released = pfx_release(c, m.lease);
    return rc < 0 ? rc : released < 0 ? released : (int)m.matched_tokens;
}

/* ---- swap.lookup.p99 ------------------------------------------------------------------------ */

enum {
    LOAD_BLOCK_BYTES = 256 << 10,
    LOAD_BLOCKS = 64,  /* of a sequence */
    LOAD_KNOWN = 48,   /* sequences: four times what the pool holds, half of what the disk does */
    LOAD_READY = 4000, /* blocks: the file grows so far by itself */
    LOAD_ROOM_MS = 60 * 1000,
    HELD_BLOCKS = 256,
    PACE_US = 200,
    CALLS = 4000,
};

struct load {
    uint32_t run;   /* 1: at full speed; 0: pause */
    uint32_t turns; /* sequences visited */
};

struct lookup_row {
    struct site site;
    struct load *load;
    pid_t loader;
    uint32_t tokens[HELD_BLOCKS * BENCH_BLOCK_TOKENS + 1];
    double blocks, seconds; /* moved under load */
};

static void load_tokens(uint32_t *to, uint32_t which)
{
    bench_fill_tokens(to, LOAD_BLOCKS * BENCH_BLOCK_TOKENS + 1, 1000 + which);
}

/* Three of four are on disk by now and are read; the fourth is new and pushes others out. */
static int load_worker(const struct lookup_row *row)
{
    static uint32_t tokens[LOAD_BLOCKS * BENCH_BLOCK_TOKENS + 1];
    int code, rc = 0;
    pfx *c = tool_attach(&row->site.tool, &code);
    if (!c)
        return code;
    for (uint32_t i = 0; rc >= 0; i++) {
        while (!shm_load_acquire(&row->load->run))
            usleep(1000);
        load_tokens(tokens, i < LOAD_KNOWN || i % 4 ? i % LOAD_KNOWN : i);
        rc = visit(c, tokens, LOAD_BLOCKS, BENCH_BLOCK_TOKENS);
        shm_store_release(&row->load->turns, i + 1);
    }
    return tool_fail_pfx("the worker that loads the disk failed", rc, pfx_why(c));
}

/* Until the file has room for what is to be found there later. */
static bool load_room(pfx *c)
{
    uint64_t end = clock_ns() + LOAD_ROOM_MS * 1000000ull;
    while (stats_of(c).disk_ready_blocks < LOAD_READY) {
        if (interrupted || clock_ns() > end)
            return tool_fail(0, "the file did not grow in time."), false;
        usleep(1000);
    }
    return true;
}

static bool load_begin(struct lookup_row *row)
{
    pid_t parent = getpid();
    void *shared =
        mmap(NULL, sizeof *row->load, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return false;
    row->load = shared;
    row->load->run = 1;
    fflush(NULL);
    row->loader = fork();
    if (row->loader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        _exit(getppid() == parent ? load_worker(row) : EXIT_DAEMON);
    }
    while (row->loader > 0 && shm_load_acquire(&row->load->turns) < 2 * LOAD_KNOWN) {
        if (interrupted || waitpid(row->loader, NULL, WNOHANG) != 0)
            return false;
        usleep(1000);
    }
    shm_store_release(&row->load->run, 0u);
    return row->loader > 0;
}

static int look_held(struct lookup_row *row, struct pfx_match *m)
{
    struct pfx_lookup_args look = {.size = sizeof look,
                                   .tokens = row->tokens,
                                   .n_tokens = HELD_BLOCKS * BENCH_BLOCK_TOKENS + 1};
    *m = (struct pfx_match){.size = sizeof *m};
    return pfx_lookup(row->site.c, &look, m);
}

void *swap_lookup_begin(void)
{
    static const char *const more[] = {"--blocks", "1024", "--block-bytes", "256K", NULL};
    struct lookup_row *row = calloc(1, sizeof *row);
    struct pfx_match m;
    if (!row)
        return NULL;
    bench_fill_tokens(row->tokens, HELD_BLOCKS * BENCH_BLOCK_TOKENS + 1, 7);
    if (site_begin(&row->site, 1536ull << 20, more)) {
        int rc = visit(row->site.c, row->tokens, HELD_BLOCKS, BENCH_BLOCK_TOKENS);
        if (rc >= 0 && (rc = look_held(row, &m)) >= 0 && load_room(row->site.c) && load_begin(row))
            return row;
        if (rc < 0)
            fail(row->site.c, "the prefix could not be cached", rc);
    }
    swap_lookup_end(row);
    return NULL;
}

static double look_ns(struct lookup_row *row)
{
    static uint64_t ns[CALLS];
    struct pfx_match m;
    for (int i = 0; i < CALLS; i++) {
        usleep(PACE_US);
        uint64_t before = clock_ns();
        int rc = look_held(row, &m);
        ns[i] = clock_ns() - before;
        if (rc >= 0 && m.matched_tokens != HELD_BLOCKS * BENCH_BLOCK_TOKENS) {
            tool_fail(0, "a held prefix was not found.");
            return -1;
        }
        if (rc < 0 || (rc = pfx_release(row->site.c, m.lease)) < 0)
            return fail(row->site.c, "lookup or release failed", rc);
    }
    return (double)quantile(ns, CALLS, 990);
}

double swap_lookup_value(void *self)
{
    struct lookup_row *row = self;
    shm_store_release(&row->load->run, 1u);
    usleep(20 * 1000);
    struct pfx_stats a = stats_of(row->site.c);
    uint64_t began = clock_ns();
    double ns = look_ns(row);
    struct pfx_stats b = stats_of(row->site.c);
    row->seconds += (double)(clock_ns() - began) / 1e9;
    row->blocks += (double)(b.disk_read_blocks - a.disk_read_blocks) +
                   (double)(b.disk_written_blocks - a.disk_written_blocks);
    shm_store_release(&row->load->run, 0u);
    usleep(300 * 1000); /* what is owed to the disk is written */
    if (ns >= 0 && b.disk_read_blocks == a.disk_read_blocks) {
        tool_fail(0, "the worker that loads the disk did nothing.");
        return -1;
    }
    return ns;
}

double swap_lookup_baseline(void *self)
{
    return look_ns(self);
}

void swap_lookup_more(void *self, json_t *json)
{
    const struct lookup_row *row = self;
    json_object_set_new(json, "moved_mb_per_s",
                        json_real(row->blocks * LOAD_BLOCK_BYTES / row->seconds / 1e6));
}

void swap_lookup_end(void *self)
{
    struct lookup_row *row = self;
    if (row->loader > 0) {
        kill(row->loader, SIGKILL);
        waitpid(row->loader, NULL, 0);
    }
    if (row->load)
        munmap(row->load, sizeof *row->load);
    site_end(&row->site);
    free(row);
}

/* ---- swap.restart --------------------------------------------------------------------------- */

enum {
    RESTART_BLOCK_TOKENS = 4,
    RESTART_BLOCKS = 250, /* of a sequence */
    SEQUENCES = 4000,
    BEHIND = 16384,     /* blocks that may be unwritten: a quarter of the pool */
    HEADER_ROOM = 1000, /* no header takes more */
    SAMPLE = 100,       /* sequences that must be whole at the end */
    RESTART_MS = 120 * 1000,
};

struct restart_row {
    struct site site;
    double answer_s, scan_s, blocks; /* of the last restart */
};

static int visit_sequence(pfx *c, uint32_t which)
{
    uint32_t tokens[RESTART_BLOCKS * RESTART_BLOCK_TOKENS + 1];
    bench_fill_tokens(tokens, RESTART_BLOCKS * RESTART_BLOCK_TOKENS + 1, 1 + which);
    return visit(c, tokens, RESTART_BLOCKS, RESTART_BLOCK_TOKENS);
}

/* Until no more than `behind` are unwritten, and the file has room for a few more: where it has
 * none yet, cold blocks go. */
static bool wait_written(pfx *c, uint64_t inserted, uint64_t behind)
{
    enum { FEW = 1024 };
    uint64_t end = clock_ns() + RESTART_MS * 1000000ull;
    for (;;) {
        struct pfx_stats now = stats_of(c);
        if (now.disk_used + behind >= inserted && now.disk_ready_blocks >= inserted + FEW)
            return true;
        if (interrupted || clock_ns() > end)
            return tool_fail(0, "the blocks did not reach the disk in time."), false;
        usleep(1000);
    }
}

static bool fill_disk(struct restart_row *row)
{
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        int rc = visit_sequence(row->site.c, i);
        if (rc < 0)
            return fail(row->site.c, "a sequence could not be cached", rc), false;
        if (!wait_written(row->site.c, (uint64_t)(i + 1) * RESTART_BLOCKS, BEHIND))
            return false;
    }
    return wait_written(row->site.c, (uint64_t)SEQUENCES * RESTART_BLOCKS, 0);
}

void *swap_restart_begin(void)
{
    static const char *const more[] = {"--blocks",     "65536",          "--block-bytes",
                                       "4096",         "--block-tokens", "4",
                                       "--swap-write", "insert",         NULL};
    struct restart_row *row = calloc(1, sizeof *row);
    if (!row)
        return NULL;
    uint64_t bytes = swap_file_bytes(4096, 1, HEADER_ROOM, SEQUENCES * RESTART_BLOCKS + BEHIND);
    if (site_begin(&row->site, bytes, more) && fill_disk(row))
        return row;
    swap_restart_end(row);
    return NULL;
}

/* What the kernel has of the file is forgotten, as after a reboot. */
static void cool(const struct site *s)
{
    char name[4200];
    snprintf(name, sizeof name, "%s/blocks.prefixd", s->dir);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fdatasync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static bool all_there(struct restart_row *row)
{
    for (uint32_t i = 0; i < SAMPLE; i++) {
        int rc = visit_sequence(row->site.c, i * (SEQUENCES / SAMPLE) + SEQUENCES / SAMPLE - 1);
        if (rc < 0)
            return fail(row->site.c, "a lookup failed", rc), false;
        if (rc != RESTART_BLOCKS * RESTART_BLOCK_TOKENS)
            return tool_fail(0, "after the restart a sequence is found in part: %d tokens.", rc),
                   false;
    }
    return true;
}

double swap_restart_value(void *self)
{
    struct restart_row *row = self;
    struct site *s = &row->site;
    siginfo_t info;
    double hit_s = 0;
    row->answer_s = row->scan_s = 0;
    pfx_close(s->c);
    s->c = NULL;
    kill(s->daemon.pid, SIGKILL);
    waitid(P_PID, (id_t)s->daemon.pid, &info, WEXITED | WNOWAIT);
    cool(s);
    uint64_t began = clock_ns();
    int code = private_daemon_again(&s->daemon, &s->args);
    if (code != EXIT_GOOD || !(s->c = tool_attach(&s->tool, &code)))
        return -1;
    while (row->scan_s == 0 || hit_s == 0) {
        uint32_t tokens[RESTART_BLOCKS * RESTART_BLOCK_TOKENS + 1];
        struct pfx_lookup_args look = {.size = sizeof look,
                                       .flags = PFX_FETCH,
                                       .tokens = tokens,
                                       .n_tokens = RESTART_BLOCKS * RESTART_BLOCK_TOKENS + 1};
        struct pfx_match m = {.size = sizeof m};
        bench_fill_tokens(tokens, look.n_tokens, 1);
        int rc = pfx_lookup(s->c, &look, &m);
        double now = (double)(clock_ns() - began) / 1e9;
        if (rc < 0 || (rc = pfx_release(s->c, m.lease)) < 0)
            return fail(s->c, "a lookup failed", rc);
        row->answer_s = row->answer_s > 0 ? row->answer_s : now;
        hit_s = hit_s > 0 || m.matched_tokens == 0 ? hit_s : now;
        struct pfx_stats stats = stats_of(s->c);
        if (stats.disk_scan_done && row->scan_s == 0) {
            row->scan_s = (double)(clock_ns() - began) / 1e9;
            row->blocks = (double)stats.disk_used;
        }
        if (interrupted || now > RESTART_MS / 1000.)
            return tool_fail(0, "after the restart nothing was found in time."), -1;
        usleep(1000);
    }
    return all_there(row) ? hit_s : -1;
}

void swap_restart_more(void *self, json_t *json)
{
    const struct restart_row *row = self;
    json_object_set_new(json, "first_answer_s", json_real(row->answer_s));
    json_object_set_new(json, "scan_s", json_real(row->scan_s));
    json_object_set_new(json, "blocks", json_real(row->blocks));
    json_object_set_new(json, "blocks_per_s", json_real(row->blocks / row->scan_s));
}

void swap_restart_end(void *self)
{
    struct restart_row *row = self;
    site_end(&row->site);
    free(row);
}
