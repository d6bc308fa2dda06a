/* The daemon of a round: its options, its lives, and what can be asked of it. */
#include "tests/chaos/chaos.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    READY_MS = 30000 * SLOW,
    STOP_MS = 30000 * SLOW,
    ARGV_MAX = 64,
    STATUS_ROOM = 16384,
    AT_START = 300, /* copies by which a start sees that they work: one that fails ends it */
};

/* ---- programs of the build --------------------------------------------------------------- */

/* $NAME, or beside this program. */
static const char *program(const char *name, const char *beside)
{
    static char path[2][4200];
    char *to = path[strcmp(name, "PREFIXD_BIN") == 0];
    const char *given = getenv(name);
    char self[4000] = "";
    if (given && *given)
        return given;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(to, sizeof path[0], "%s/%s", self, beside);
    return to;
}

static void die_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(98);
}

/* Run prefixctl to its end; its output, and its exit status, -1: it did not end well. */
static int run_prefixctl(const struct house *h, const char *command, char *text, size_t room)
{
    int out[2], status = 0;
    if (pipe2(out, O_CLOEXEC))
        return -1;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        die_with(parent);
        dup2(out[1], STDOUT_FILENO);
        execl(program("PREFIXCTL_BIN", "../tools/prefixctl"), "prefixctl", command, "--json",
              "--socket", h->socket, (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n<room - 1; n += got> 0 ? (size_t)got : 0)
        got = read(out[0], text + n, room - 1 - n);
    text[n] = '\0';
    close(out[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- its directory ----------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static bool make_dirs(struct house *h, const char *swap_dir)
{
    const struct plan *p = h->plan;
    const char *tmp = getenv("TMPDIR");
    if (!tmp || *tmp != '/' || strlen(tmp) > 60)
        tmp = "/tmp";
    snprintf(h->dir, sizeof h->dir, "%s/prefixd-chaos-XXXXXX", tmp);
    if (!mkdtemp(h->dir)) {
        stage_find(h->stage, "a directory cannot be made in %s: %s; set TMPDIR", tmp,
                   strerror(errno));
        return false;
    }
    snprintf(h->socket, sizeof h->socket, "%s/s", h->dir);
    snprintf(h->log, sizeof h->log, "%s/log", h->dir);
    char parent[sizeof h->dir];
    snprintf(parent, sizeof parent, "%s", swap_dir ? swap_dir : h->dir);
    for (uint32_t i = 0; i < p->paths; i++) {
        snprintf(h->path[i], sizeof h->path[i], "%.60s/chaos-%d-%u-%u", parent, (int)getpid(),
                 p->round, i);
        if (mkdir(h->path[i], 0700)) {
            stage_find(h->stage, "%s cannot be made: %s", h->path[i], strerror(errno));
            return false;
        }
    }
    return true;
}

void house_remove(struct house *h, bool keep)
{
    if (keep) {
        fprintf(stderr, "chaos: kept: %s\n", h->dir);
        return;
    }
    for (uint32_t i = 0; i < h->plan->paths; i++)
        if (h->path[i][0])
            nftw(h->path[i], remove_one, 8, FTW_DEPTH | FTW_PHYS);
    nftw(h->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void house_show_log(const struct house *h, int lines)
{
    char text[65536];
    int fd = open(h->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, from) : 0;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return;
    const char *at = text + n;
    while (at > text && lines >= 0)
        lines -= *--at == '\n';
    fprintf(stderr, "the daemon's log ends:\n%.*s\n", (int)(text + n - at), at);
}

/* Copies between GPUs and buffers that failed: at most one a second is logged. */
unsigned house_device_faults(const struct house *h)
{
    FILE *f = fopen(h->log, "re");
    char line[1100];
    unsigned n = 0;
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "is given up") != NULL;
    if (f)
        fclose(f);
    return n;
}

/* ---- its options ------------------------------------------------------------------------- */

struct line {
    const char *argv[ARGV_MAX];
    char number[ARGV_MAX][24], swap[PATHS_MAX][160];
    unsigned n;
};

static void add(struct line *l, const char *name, const char *value)
{
    if (l->n + 3 > ARGV_MAX)
        abort();
    l->argv[l->n++] = name;
    l->argv[l->n++] = value;
}

static void add_number(struct line *l, const char *name, uint64_t value)
{
    snprintf(l->number[l->n], sizeof l->number[0], "%llu", (unsigned long long)value);
    add(l, name, l->number[l->n]);
}

/* What n spilled states take: in memory their bytes, on disk a header and padding as well. */
static uint64_t tier_bytes(const struct plan *p)
{
    uint64_t padded = (p->slot_bytes + 4095u) & ~4095u, header = 1024 + p->block_tokens * 4;
    return p->paths ? p->tier * (padded * p->devices + header) + p->paths * 300 * 1024
                    : (uint64_t)p->tier * p->slot_bytes * p->devices;
}

static void add_tiers(struct line *l, const struct house *h)
{
    const struct plan *p = h->plan;
    if (p->slots) {
        add_number(l, "--snapshots", p->slots);
        add_number(l, "--snapshot-bytes", p->slot_bytes);
        if (p->alpha)
            add(l, "--alpha", "0.05");
    }
    if (p->tier) {
        add_number(l, "--snapshot-swap", tier_bytes(p));
        if (p->spill_min)
            add_number(l, "--spill-min-tokens", p->spill_min);
    }
    for (uint32_t i = 0; i < p->paths; i++) {
        snprintf(l->swap[i], sizeof l->swap[i], "%s:%uK", h->path[i], p->path_kib);
        add(l, "--swap", l->swap[i]);
    }
    if (!p->paths)
        return;
    add(l, "--swap-write", p->write_early ? "insert" : "evict");
    add_number(l, "--swap-admit", p->admit);
    add_number(l, "--swap-depth", p->depth);
}

static void options(struct line *l, const struct house *h)
{
    const struct plan *p = h->plan;
    l->argv[l->n++] = program("PREFIXD_BIN", "../daemon/prefixd");
    add(l, "--socket", h->socket);
    add_number(l, "--blocks", p->blocks);
    add_number(l, "--block-tokens", p->block_tokens);
    add_number(l, "--block-bytes", p->block_bytes);
    add_number(l, "--devices", p->devices);
    add_number(l, "--max-leases", p->leases);
    add_number(l, "--spin-us", p->spin_us);
    add(l, "--device", p->cuda ? "cuda" : "host");
    if (p->ipc)
        add(l, "--cuda-export", "ipc");
    add_tiers(l, h);
}

/* ---- start --------------------------------------------------------------------------------- */

/* Single copies that fail, each some hundred calls after the one before. */
static void set_device_faults(const struct house *h)
{
    static const char *const calls[] = {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"};
    struct dice d = dice_of(h->plan->seed, 200, h->life, 0);
    char text[600] = "";
    size_t used = 0;
    for (unsigned call = 0; call < 2; call++)
        for (unsigned i = 0, at = AT_START; i < 6; i++) {
            at += dice_between(&d, 20, 300);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:%u:719",
                                     used ? "," : "", calls[call], at);
        }
    setenv("FAKE_CUDA_FAIL", text, 1);
    setenv("FAKE_CUDA_TOUCH", "0", 1);
    setenv("FAKE_CUDA_LEAKS", "1", 1);
    setenv("FAKE_CUDA_DELAY_US", "200", 1);
    setenv("LD_LIBRARY_PATH", getenv("CHAOS_FAKE_CUDA"), 1);
}

static void become_daemon(const struct house *h, int out, int device)
{
    struct line l = {.n = 0};
    int log = open(h->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    options(&l, h);
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (h->plan->cuda)
        set_device_faults(h);
    if (device >= 0)
        disk_filter(device);
    execv(l.argv[0], (char *const *)(uintptr_t)l.argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s; set PREFIXD_BIN\n", l.argv[0], strerror(errno));
    _exit(99);
}

static bool await_ready(int out)
{
    char text[256];
    size_t n = 0;
    for (uint64_t until = now_ms() + READY_MS; now_ms() < until && n < sizeof text - 1;) {
        struct pollfd p = {.fd = out, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            continue;
        ssize_t got = read(out, text + n, sizeof text - 1 - n);
        if (got <= 0)
            return false;
        n += (size_t)got;
        text[n] = '\0';
        if (strncmp(text, "ready ", 6) == 0 && strchr(text, '\n'))
            return true;
    }
    return false;
}

bool house_start(struct house *h)
{
    int out[2], pair[2] = {-1, -1};
    bool filtered = h->plan->paths && h->plan->filtered;
    if (pipe2(out, O_CLOEXEC) ||
        (filtered && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)))
        return false;
    pid_t parent = getpid();
    h->life++;
    fflush(NULL);
    h->pid = fork();
    if (h->pid == 0) {
        die_with(parent);
        setpgid(0, 0);
        become_daemon(h, out[1], pair[1]);
    }
    close(out[1]);
    if (filtered) {
        close(pair[1]);
        h->device = disk_device(pair[0], h->stage, h->plan->seed + h->life);
        close(pair[0]);
    }
    bool ready = h->pid > 0 && await_ready(out[0]);
    close(out[0]);
    if (!ready) {
        stage_find(h->stage, "the daemon's start %u: it does not say ready", h->life);
        return false;
    }
    shm_store_release(&h->stage->life, shm_load(&h->stage->life) + 1);
    return true;
}

/* When its threads have begun, and it has done with those that attached. */
static bool count_fds(struct house *h)
{
    struct counters c = {0};
    for (uint64_t until = now_ms() + READY_MS; !c.disk_scan_done && now_ms() < until; nap_us(5000))
        if (!house_status(h, &c))
            return false;
    nap_us(20000);
    h->fds = house_fds(h);
    return house_audit(h);
}

bool house_begin(struct house *h, const struct plan *p, struct stage *s, const char *swap_dir)
{
    h->plan = p;
    h->stage = s;
    s->life = 1;
    return make_dirs(h, swap_dir) && house_start(h) && house_connect(h) && count_fds(h);
}

/* ---- end ------------------------------------------------------------------------------------ */

static void device_ends(struct house *h)
{
    int status;
    if (h->device > 0)
        waitpid(h->device, &status, 0); /* with the last process that has the filter */
    h->device = 0;
}

/* Its wait status; -1: it does not end. */
static int reap(struct house *h)
{
    int status = 0;
    for (uint64_t until = now_ms() + STOP_MS; waitpid(h->pid, &status, WNOHANG) == 0; nap_us(300)) {
        if (h->meanwhile)
            h->meanwhile(h->arg);
        if (now_ms() > until) {
            kill(h->pid, SIGKILL);
            waitpid(h->pid, &status, 0);
            status = -1;
            break;
        }
    }
    h->pid = 0;
    device_ends(h);
    return status;
}

void house_end(struct house *h, bool kindly)
{
    struct stage *s = h->stage;
    if (h->pid <= 0)
        return;
    if (!(shm_load(&s->life) % 2))
        shm_store_release(&s->life, shm_load(&s->life) + 1);
    shm_store_release(&s->down_ns, clock_ns());
    house_disconnect(h);
    kill(h->pid, kindly ? SIGTERM : SIGKILL);
    int status = reap(h);
    shm_store_release(&s->down_ns, clock_ns());
    if (status == -1)
        stage_find(s, "the daemon did not end within %d ms of a SIG%s", STOP_MS,
                   kindly ? "TERM" : "KILL");
    else if (kindly ? !WIFEXITED(status) || WEXITSTATUS(status) != 0
                    : !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        stage_find(s, "the daemon ended with wait status 0x%x after a SIG%s", (unsigned)status,
                   kindly ? "TERM" : "KILL");
    if (kindly && access(h->socket, F_OK) == 0)
        stage_find(s, "the daemon has left its socket behind");
}

bool house_fell(struct house *h)
{
    int status;
    if (h->pid <= 0 || waitpid(h->pid, &status, WNOHANG) != h->pid)
        return false;
    shm_store_release(&h->stage->life, shm_load(&h->stage->life) | 1u);
    shm_store_release(&h->stage->down_ns, clock_ns());
    h->pid = 0;
    device_ends(h);
    stage_find(h->stage, "the daemon ended by itself, wait status 0x%x (%s %d)", (unsigned)status,
               WIFSIGNALED(status) ? "signal" : "exit status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return true;
}

/* ---- questions --------------------------------------------------------------------------------
 */

bool house_audit(struct house *h)
{
    char text[STATUS_ROOM];
    int code = run_prefixctl(h, "audit", text, sizeof text);
    if (code == 0)
        return true;
    stage_find(h->stage, "prefixctl audit ends with %d: %.300s", code, text);
    return false;
}

bool house_status(struct house *h, struct counters *c)
{
    static const char *const names[] = {
#define COUNTER_NAME(name, kind) #name,
        COUNTERS(COUNTER_NAME) DETAILS(COUNTER_NAME)
#undef COUNTER_NAME
    };
    char text[STATUS_ROOM];
    int code = run_prefixctl(h, "status", text, sizeof text);
    json_t *o = code == 0 ? json_loads(text, 0, NULL) : NULL;
    bool good = o != NULL;
    for (unsigned i = 0; good && i < COUNTERS_N; i++) {
        const json_t *value = json_object_get(o, names[i]);
        good = json_is_integer(value);
        ((uint64_t *)c)[i] = good ? (uint64_t)json_integer_value(value) : 0;
    }
    json_decref(o);
    if (!good)
        stage_find(h->stage, "prefixctl status ends with %d: %.300s", code, text);
    return good;
}

/* Open files are not counted: which there are depends on what has been done to them. */
unsigned house_fds(const struct house *h)
{
    char path[64], name[400], to[256];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)h->pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        ssize_t len = readlink(name, to, sizeof to - 1);
        to[len > 0 ? len : 0] = '\0';
        n += len > 0 && !strstr(to, ".prefixd");
    }
    if (d)
        closedir(d);
    return n;
}

bool house_connect(struct house *h)
{
    struct pfx_options o = {.size = sizeof o,
                            .socket_path = h->socket,
                            .name = "director",
                            .map_devices = PFX_MAP_NONE,
                            .timeout_ms = CALL_MS};
    if (pfx_open(&o, &h->c) == 0)
        return true;
    stage_find(h->stage, "the director cannot attach: %s", pfx_why(NULL));
    return false;
}

void house_disconnect(struct house *h)
{
    struct pfx_stats s = {.size = sizeof s};
    if (h->c && pfx_stats(h->c, &s) == 0)
        h->disk_errors += s.disk_errors;
    pfx_close(h->c);
    h->c = NULL;
}
