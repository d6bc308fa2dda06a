#include "tests/scenario/disk_site.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- directories that go with a test that fails, too ---- */

static char leftover[16][64];
static pid_t leftover_of;

static void remove_tree(const char *dir)
{
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0)
        fprintf(stderr, "%s could not be removed\n", dir);
}

static void remove_leftover(void)
{
    for (size_t i = 0; leftover_of == getpid() && i < 16; i++)
        if (leftover[i][0])
            remove_tree(leftover[i]);
}

static void note_dir(const char *dir)
{
    if (leftover_of != getpid())
        atexit(remove_leftover);
    leftover_of = getpid();
    for (size_t i = 0; i < 16; i++)
        if (!leftover[i][0]) {
            snprintf(leftover[i], sizeof leftover[i], "%s", dir);
            return;
        }
}

static void forget_dir(const char *dir)
{
    for (size_t i = 0; i < 16; i++)
        if (strcmp(leftover[i], dir) == 0)
            leftover[i][0] = 0;
}

/* ---- options ---- */

void site_set(struct site *s, const char *option, const char *value)
{
    unsigned i = 0;
    while (i < s->n_options && strcmp(s->option[i], option) != 0)
        i += 2;
    if (!value) {
        if (i < s->n_options) {
            s->option[i] = s->option[s->n_options - 2];
            s->option[i + 1] = s->option[s->n_options - 1];
            s->n_options -= 2;
        }
        return;
    }
    REQUIRE(i + 2 < SITE_OPTIONS);
    if (i == s->n_options)
        s->n_options += 2;
    s->option[i] = option;
    s->option[i + 1] = value;
}

void site_budget(struct site *s, unsigned path, const char *budget)
{
    REQUIRE(strlen(s->dir[path]) + strlen(budget) + 2 <= sizeof s->swap[path]);
    stpcpy(stpcpy(stpcpy(s->swap[path], s->dir[path]), ":"), budget);
}

void site_path(struct site *s, const char *budget)
{
    unsigned i = s->n_paths++;
    REQUIRE(i < SITE_PATHS && s->n_options + 2 < SITE_OPTIONS);
    strcpy(s->dir[i], "/tmp/prefixd-disk-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(s->dir[i]));
    note_dir(s->dir[i]);
    site_budget(s, i, budget);
    s->option[s->n_options++] = "--swap";
    s->option[s->n_options++] = s->swap[i];
}

void site_init(struct site *s, const char *budget)
{
    memset(s, 0, sizeof *s);
    site_set(s, "--blocks", "8");
    site_set(s, "--block-tokens", "4");
    site_set(s, "--block-bytes", "4K");
    site_set(s, "--swap-write", "insert");
    site_path(s, budget);
}

/* ---- lives ---- */

void site_start_scanning(struct site *s)
{
    const char *options[SITE_OPTIONS + 1] = {NULL};
    memcpy(options, s->option, s->n_options * sizeof options[0]);
    if (s->was_up)
        host_again(&s->h, options);
    else
        host_start(&s->h, options);
    s->up = s->was_up = true;
    worker_open(&s->w, &s->h, NULL);
}

/* Files grow as they are used: room for n more, or all that there will be. */
static bool has_slots(const struct site *s, uint64_t n)
{
    struct pfx_stats c = counters(&s->w);
    return c.disk_ready_blocks >= c.disk_used + n ||
           c.disk_ready_blocks >= pfx_geometry(s->w.c)->n_disk_blocks;
}

void site_start(struct site *s)
{
    site_start_scanning(s);
    EVENTUALLY(DISK_WAIT_MS, counters(&s->w).disk_scan_done && has_slots(s, 8));
    step(&s->w);
}

/* A thread that is held must be seen to end, or its process would not. */
static void held_thread_ends(struct site *s)
{
    int status;
    if (s->stopped)
        waitpid(s->stopped, &status, __WALL);
    s->stopped = 0;
}

void site_kill(struct site *s)
{
    ck_assert_int_eq(kill(s->h.pid, SIGKILL), 0);
    held_thread_ends(s);
    host_kill(&s->h);
    s->up = false;
    worker_close(&s->w);
}

void site_stop(struct site *s)
{
    worker_close(&s->w);
    host_stop(&s->h);
    s->up = s->was_up = false;
}

void site_again(struct site *s)
{
    site_kill(s);
    site_start(s);
}

void site_deinit(struct site *s)
{
    if (!s->up)
        site_start(s); /* whatever was done to it, it starts, and ends well */
    site_stop(s);
    for (unsigned i = 0; i < s->n_paths; i++) {
        remove_tree(s->dir[i]);
        forget_dir(s->dir[i]);
    }
}

/* ---- files ---- */

const char *site_file(const struct site *s, unsigned path)
{
    static char name[96];
    snprintf(name, sizeof name, "%s/blocks.prefixd", s->dir[path]);
    return name;
}

uint64_t site_file_size(const struct site *s, unsigned path)
{
    struct stat st;
    ck_assert_int_eq(stat(site_file(s, path), &st), 0);
    return (uint64_t)st.st_size;
}

void site_file_cut(const struct site *s, unsigned path, uint64_t length)
{
    ck_assert_int_eq(truncate(site_file(s, path), (off_t)length), 0);
}

void site_file_garbage(const struct site *s, unsigned path, uint64_t at, uint64_t n, uint64_t seed)
{
    struct rng r = {seed};
    int fd = open(site_file(s, path), O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    while (n) {
        uint64_t word[512];
        size_t some = n < sizeof word ? n : sizeof word;
        for (size_t i = 0; i < 512; i++)
            word[i] = rng_next(&r);
        REQUIRE_EQ(pwrite(fd, word, some, (off_t)at), some);
        at += some;
        n -= some;
    }
    close(fd);
}

/* ---- a disk that stands still ---- */

static pid_t thread_of(pid_t pid, const char *name)
{
    char path[64], comm[32];
    pid_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; !found && (e = readdir(d));) {
        char file[400];
        snprintf(file, sizeof file, "%s/%s/comm", path, e->d_name);
        int fd = open(file, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, comm, sizeof comm - 1);
        if (fd >= 0)
            close(fd);
        comm[n > 0 ? n - 1 : 0] = 0;
        if (strcmp(comm, name) == 0)
            found = (pid_t)atoi(e->d_name);
    }
    closedir(d);
    return found;
}

void io_stop(struct site *s)
{
    int status = 0;
    EVENTUALLY(DISK_WAIT_MS, has_slots(s, 24));
    pid_t tid = thread_of(s->h.pid, "prefixd-swap");
    ck_assert_int_ne(tid, 0);
    ck_assert_msg(ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0, "the swap thread cannot be held: %s",
                  strerror(errno));
    ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), 0);
    ck_assert_int_eq(waitpid(tid, &status, __WALL), tid);
    ck_assert(WIFSTOPPED(status));
    s->stopped = tid;
}

void io_go(struct site *s)
{
    ck_assert_int_eq(ptrace(PTRACE_DETACH, s->stopped, NULL, NULL), 0);
    s->stopped = 0;
}

/* ---- calls ---- */

struct held seek_seq(struct site *s, const struct seq *q, uint32_t flags)
{
    struct held h = {.match = {.size = sizeof h.match}};
    struct pfx_lookup_args args = lookup_args(&s->w, q);
    args.flags = flags;
    int rc = pfx_lookup(s->w.c, &args, &h.match);
    REQUIRE_MSG(rc == 0, "pfx_lookup: %s (%s)", pfx_strerror(rc), pfx_why(s->w.c));
    h.lease = h.match.lease;
    h.n_table = h.n_published = h.match.n_blocks;
    for (uint32_t i = 0; i < h.n_table; i++)
        h.table[i] = h.match.blocks[i];
    step(&s->w);
    return h;
}

struct held seek(struct site *s, const char *text, uint32_t flags)
{
    struct seq q = seq(text);
    return seek_seq(s, &q, flags);
}

uint32_t exact_seq(struct site *s, const struct seq *q)
{
    struct held h = seek_seq(s, q, PFX_FETCH | PFX_QUIET);
    uint32_t n = h.match.matched_tokens, bt = block_tokens(&s->w);
    REQUIRE_EQ(h.match.n_blocks, n / bt);
    REQUIRE_EQ(h.match.n_resident, h.match.n_blocks);
    for (uint32_t i = 0; i < h.match.n_blocks; i++)
        REQUIRE_MSG(bytes_are(&s->w, h.table[i], q, (size_t)(i + 1) * bt),
                    "block %u at position %u holds other bytes", h.table[i], i);
    drop(&s->w, &h);
    return n;
}

uint32_t exact(struct site *s, const char *text)
{
    struct seq q = seq(text);
    return exact_seq(s, &q);
}

uint32_t findable(struct site *s, const char *text)
{
    struct seq q = seq(text);
    ssize_t n = pfx_peek(s->w.c, s->w.space, q.at, q.n);
    REQUIRE(n >= 0);
    return (uint32_t)n;
}

void disk_used_is(struct site *s, unsigned n)
{
    EVENTUALLY(DISK_WAIT_MS, counters(&s->w).disk_used == n);
    step(&s->w);
}

void all_written(struct site *s)
{
    uint64_t until = now_ms() + DISK_WAIT_MS, since = now_ms(), last = UINT64_MAX;
    while (now_ms() - since < 30) { /* nothing new for that long */
        struct pfx_stats c = counters(&s->w);
        if (c.disk_written_blocks != last || c.blocks_inflight) {
            last = c.disk_written_blocks;
            since = now_ms();
        }
        REQUIRE(now_ms() < until);
        sleep_us(500);
    }
    step(&s->w);
}

uint32_t evict_pages(struct site *s, uint32_t n)
{
    struct pfx_evicted e = {.size = sizeof e};
    REQUIRE_EQ(pfx_evict(s->w.c, n, &e), 0);
    step(&s->w);
    return e.removed_blocks;
}

pfx_space use_space(struct site *s, const char *tenant, uint64_t adapter, uint64_t generation,
                    uint64_t weights)
{
    struct pfx_space_desc d = {.size = sizeof d,
                               .tenant = tenant,
                               .tenant_len = (uint32_t)strlen(tenant),
                               .adapter_id = adapter,
                               .adapter_generation = generation};
    int rc = pfx_space_open(s->w.c, &d, &s->w.space);
    REQUIRE_MSG(rc == 0, "pfx_space_open: %s", pfx_strerror(rc));
    s->w.weights = weights - s->w.space * 31; /* see prefix_word in worker.c */
    return s->w.space;
}

/* ---- moves ---- */

/* Cached, written, and in no page. */
void put_on_disk(struct site *s, const char *text)
{
    cache(&s->w, text);
    all_written(s);
    ck_assert_uint_eq(evict_pages(s, pfx_geometry(s->w.c)->n_blocks), 0);
    ck_assert_uint_eq(counters(&s->w).blocks_free, pfx_geometry(s->w.c)->n_blocks);
}

/* The same daemon, by another worker. */
struct site site_by(const struct site *s, struct worker w)
{
    struct site other = *s;
    other.w = w;
    return other;
}

void submit_fetch(struct worker *w, const char *text, uint64_t tag)
{
    struct seq q = seq(text);
    struct pfx_lookup_args args = lookup_args(w, &q);
    args.flags = PFX_FETCH;
    ck_assert_int_eq(pfx_submit_lookup(w->c, &args, tag), 0);
}

struct held await_fetch(struct worker *w, uint64_t tag, const char *text)
{
    struct pfx_completion done = {.size = sizeof done};
    struct held h = {0};
    done.match.size = sizeof done.match;
    done.insert.size = sizeof done.insert;
    ck_assert_int_eq(pfx_wait(w->c, &done, sizeof done, 1, DISK_WAIT_MS), 1);
    ck_assert_uint_eq(done.tag, tag);
    ck_assert_int_eq(done.status, 0);
    h.match = done.match;
    h.lease = done.lease;
    h.n_table = h.n_published = h.match.n_blocks;
    ck_assert_uint_eq(h.match.n_resident, h.match.n_blocks);
    for (uint32_t i = 0; i < h.n_table; i++)
        h.table[i] = h.match.blocks[i];
    bytes_match(w, &h, text);
    step(w);
    return h;
}

void keep_on_disk(struct site *s, const char *text, uint32_t depth, enum pfx_snapshot_kind kind,
                  uint64_t session)
{
    keep(&s->w, text, depth, kind, session);
    struct pfx_spilled out = spill(&s->w, 0);
    ck_assert_uint_eq(out.dropped, 0);
    ck_assert_uint_eq(out.depth, depth);
}

void inflight_is(struct site *s, unsigned n)
{
    EVENTUALLY(DISK_WAIT_MS, counters(&s->w).blocks_inflight == n);
    step(&s->w);
}

/* Nothing is held, nothing moves, and none is lost. */
bool disk_is_healthy(const struct site *s)
{
    static char text[16384];
    const char *argv[] = {"status", "--socket", s->h.socket, "--json", NULL};
    ck_assert_int_eq(program_run(prefixctl_path(), argv, text, sizeof text), 0);
    const char *at = strstr(text, "\"disk_healthy\":");
    ck_assert_ptr_nonnull(at);
    return atoi(strchr(at, ':') + 1) != 0;
}

void at_rest(struct site *s)
{
    all_written(s);
    struct pages p = pages(&s->w);
    ck_assert_uint_eq(p.private + p.pinned + p.inflight, 0);
    ck_assert_uint_eq(p.free + p.idle, pfx_geometry(s->w.c)->n_blocks);
}

struct seq numbers(uint32_t first, uint32_t n)
{
    struct seq q = {.n = n};
    for (uint32_t i = 0; i < n; i++)
        q.at[i] = first + i;
    return q;
}
