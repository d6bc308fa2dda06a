/*
 * fio, as fast as it can be asked to be: io_uring, direct, registered buffers and file, one and the
 * same content in all writes. It opens our descriptor's file, which has no name, through /proc.
 */
#include "tools/bench_swap.h"
#include "tools/measure.h"
#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 256 << 10, NOT_FOUND = 127 };

/* All that it prints, NUL-terminated; what does not fit is lost. Its exit status, or -1. */
static int run(char *const argv[], int core, char *text, size_t room)
{
    int out[2], status = -1;
    size_t n = 0;
    if (pipe2(out, O_CLOEXEC) != 0)
        return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        cores_pin(0, core);
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        execvp(argv[0], argv);
        _exit(NOT_FOUND);
    }
    close(out[1]);
    for (char lost[4096]; pid > 0;) {
        size_t left = room - 1 - n;
        ssize_t got = read(out[0], left ? text + n : lost, left ? left : sizeof lost);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        if (got > 0 && left)
            n += (size_t)got;
    }
    text[n] = '\0';
    close(out[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool fio_there(void)
{
    static bool said;
    char text[256];
    char *argv[] = {(char[]){"fio"}, (char[]){"--version"}, NULL};
    if (run(argv, -1, text, sizeof text) == 0)
        return true;
    if (!said)
        tool_fail(0, "swap.read and swap.write are measured against fio, which is not here: "
                     "apt-get install fio.");
    said = true;
    return false;
}

/* Notes may stand before its JSON. */
static bool take(const char *text, bool write, struct moved *out)
{
    const char *json = strchr(text, '{');
    json_t *all = json ? json_loads(json, JSON_DISABLE_EOF_CHECK, NULL) : NULL, *side;
    double bytes = 0, ms = 0, user = 0, sys = 0;
    int bad = json_unpack(all, "{s:[{s:o,s:F,s:F}]}", "jobs", write ? "write" : "read", &side,
                          "usr_cpu", &user, "sys_cpu", &sys);
    if (!bad)
        bad = json_unpack(side, "{s:F,s:F}", "io_bytes", &bytes, "runtime", &ms);
    json_decref(all);
    double seconds = ms / 1000;
    *out = (struct moved){bytes, seconds, (user + sys) / 100 * seconds};
    return !bad && bytes > 0 && ms > 0;
}

bool fio_run(const struct fio_job *job, struct moved *out)
{
    static char text[OUTPUT_MAX];
    char file[64], pool[64], size[32], bs[32], depth[24], runtime[24];
    snprintf(file, sizeof file, "--filename=/proc/%d/fd/%d", (int)getpid(), job->fd);
    snprintf(pool, sizeof pool, "--iomem=mmapshared:/proc/%d/fd/%d", (int)getpid(), job->pool_fd);
    snprintf(size, sizeof size, "--size=%" PRIu64, job->file_bytes);
    snprintf(bs, sizeof bs, "--bs=%" PRIu64, job->block_bytes);
    snprintf(depth, sizeof depth, "--iodepth=%u", job->depth);
    snprintf(runtime, sizeof runtime, "--runtime=%ums", job->ms);
    const char *argv[] = {"fio",
                          "--name=prefixctl",
                          "--ioengine=io_uring",
                          "--direct=1",
                          "--fixedbufs",
                          "--registerfiles",
                          "--time_based",
                          "--scramble_buffers=0",
                          "--fallocate=none",
                          "--allow_file_create=0",
                          "--output-format=json",
                          job->write ? "--rw=write" : "--rw=read",
                          file,
                          pool,
                          size,
                          bs,
                          depth,
                          runtime,
                          NULL};
    int status = run((char *const *)(uintptr_t)argv, job->core, text, sizeof text);
    if (status == 0 && take(text, job->write, out))
        return true;
    text[strcspn(text, "\n")] = '\0';
    if (!interrupted)
        tool_fail(0,
                  "fio could not be run (%s); it needs io_uring, and locked memory for its buffers "
                  "(ulimit -l).",
                  text[0] ? text : "it said nothing");
    return false;
}
