/*
 * One daemon with a pool on the GPU, processes that share it, and kill -9 of both, with each of the
 * two exports. After every kill the GPU must have as much free memory as before.
 */
#include "client/prefixd.h"
#include "tools/gpu_check.h"
#include "tools/measure.h"
#include "tools/private_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WORKER_MS = 60 * 1000,
    BACK_MS = 20 * 1000,
    SLACK = 2 << 20, /* others may use the GPU too */
};

/* ---- workers ----------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int out;
};

static bool spawn(struct process *p, const char *socket, const char *task)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0 || (p->pid = fork()) < 0) {
        finding("no process or pipe for a worker");
        return false;
    }
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        execl("/proc/self/exe", "gpu_check", "--worker", socket, task, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    p->out = out[0];
    return true;
}

/* It has said "done"; else a finding, with what it said instead. */
static bool await(const struct process *p, const char *task)
{
    char text[600] = "";
    size_t n = 0;
    uint64_t end = clock_ns() + (uint64_t)WORKER_MS * 1000000;
    while (n < sizeof text - 1 && clock_ns() < end && !strchr(text, '\n')) {
        struct pollfd fd = {.fd = p->out, .events = POLLIN};
        if (poll(&fd, 1, 100) <= 0)
            continue;
        ssize_t got = read(p->out, text + n, sizeof text - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        text[n] = '\0';
    }
    if (strcmp(text, "done\n") == 0)
        return true;
    text[strcspn(text, "\n")] = '\0';
    finding("the worker that should %s said: %s", task, text[0] ? text : "nothing");
    return false;
}

static void end(struct process *p, bool by_force)
{
    int status;
    if (p->pid <= 0)
        return;
    if (by_force)
        kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    close(p->out);
    p->pid = 0;
}

static bool work(const char *socket, const char *task)
{
    struct process p = {0};
    bool good = spawn(&p, socket, task) && await(&p, task);
    end(&p, !good);
    return good;
}

/* ---- the GPU's memory -------------------------------------------------------------------- */

static uint64_t free_bytes(const struct gpu *g)
{
    size_t now = 0, all;
    g->cu.cuMemGetInfo(&now, &all);
    return now;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* As much is free as before, within BACK_MS. */
static bool memory_is_back(const struct gpu *g, uint64_t before, const char *export,
                           const char *what)
{
    uint64_t began = clock_ns(), limit = began + (uint64_t)BACK_MS * 1000000, now;
    while ((now = free_bytes(g)) + SLACK < before && clock_ns() < limit)
        nap();
    double took = (double)(clock_ns() - began) * 1e-9;
    if (now + SLACK < before) {
        finding("%s: after %s, %.1f MiB of the GPU are free and before it were %.1f", export, what,
                (double)now / (1 << 20), (double)before / (1 << 20));
        return false;
    }
    fine("%s: %s: %.1f MiB were free before, %.1f are again, after %.2f s", export, what,
         (double)before / (1 << 20), (double)now / (1 << 20), took);
    return true;
}

/* ---- one export ---------------------------------------------------------------------------- */

/* The dead worker's lease is gone: nothing is pinned any more. */
static bool lease_is_back(pfx *c, const char *export)
{
    struct pfx_stats st = {.size = sizeof st};
    uint64_t limit = clock_ns() + (uint64_t)BACK_MS * 1000000;
    do {
        nap();
        st.size = sizeof st;
    } while (pfx_stats(c, &st) == 0 && (st.blocks_pinned || st.leases) && clock_ns() < limit);
    if (!st.blocks_pinned && !st.leases)
        return true;
    finding("%s: a killed worker still holds %llu blocks", export,
            (unsigned long long)st.blocks_pinned);
    return false;
}

static bool kill_a_worker(const struct gpu *g, const struct private_daemon *d, const char *export)
{
    struct process p = {0};
    struct pfx_options options = {
        .size = sizeof options, .socket_path = d->socket, .map_devices = PFX_MAP_NONE};
    pfx *c = NULL;
    if (pfx_open(&options, &c) < 0) {
        finding("%s: %s", export, pfx_why(NULL));
        return false;
    }
    uint64_t before = free_bytes(g);
    bool good = spawn(&p, d->socket, "hold") && await(&p, "hold");
    end(&p, true);
    good = good && lease_is_back(c, export) &&
           memory_is_back(g, before, export, "kill -9 of a worker") && work(d->socket, "read");
    pfx_close(c);
    return good;
}

/* The daemon goes while a worker has the pool mapped; the worker lives on, and goes as well. */
static void kill_the_daemon(const struct gpu *g, struct private_daemon *d, uint64_t before,
                            const char *export)
{
    struct process p = {0};
    bool good = spawn(&p, d->socket, "hold") && await(&p, "hold");
    private_daemon_kill(d);
    for (int i = 0; i < 40; i++)
        nap();
    int status;
    if (good && waitpid(p.pid, &status, WNOHANG) != 0) {
        finding("%s: a worker died with its daemon", export);
        p.pid = 0;
        good = false;
    }
    end(&p, true);
    if (good)
        memory_is_back(g, before, export, "kill -9 of the daemon, then of its worker");
}

static void one_export(const struct gpu *g, const char *export, int attribute)
{
    struct private_daemon d;
    char device[CUDA_UUID_TEXT + 8];
    int there = 0;
    g->cu.cuDeviceGetAttribute(&there, attribute, g->device);
    if (!there) {
        fine("%s: this GPU does not offer it; not checked", export);
        return;
    }
    snprintf(device, sizeof device, "cuda:%s", g->uuid);
    struct daemon_args args = {.arg = {"--device", device, "--cuda-export", export, "--blocks",
                                       "64", "--block-bytes", "2M", "--block-tokens", "16"},
                               .n = 10};
    uint64_t before = free_bytes(g);
    if (private_daemon_start(&d, &args) != EXIT_GOOD)
        return;
    if (work(d.socket, "pool"))
        fine("%s: every block and slot of the pool is memory of its own", export);
    if (work(d.socket, "write") && work(d.socket, "read")) {
        fine("%s: one process wrote %d blocks of 2 MiB, another found and read them", export,
             WORKER_BLOCKS);
        if (kill_a_worker(g, &d, export)) {
            kill_the_daemon(g, &d, before, export);
            return;
        }
    }
    private_daemon_stop(&d);
}

void gpu_check_sharing(struct gpu *g)
{
    one_export(g, "fd", CUDA_HAS_FD_HANDLES);
    one_export(g, "ipc", CUDA_HAS_IPC);
}
