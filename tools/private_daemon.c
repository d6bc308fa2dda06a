#include "tools/private_daemon.h"
#include "tools/measure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 60 * 1000, STOP_MS = 10 * 1000 };

/* $PREFIXD_BIN; beside this program; in the build tree; where it is installed; else by $PATH. */
static void find_binary(char *to, size_t room)
{
    static const char *const beside[] = {"prefixd", "../daemon/prefixd", "../sbin/prefixd"};
    const char *env = getenv("PREFIXD_BIN");
    char self[4000] = "";
    if (env && *env) {
        snprintf(to, room, "%s", env);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < sizeof beside / sizeof beside[0]; i++) {
        slash[1] = '\0';
        snprintf(to, room, "%s%s", self, beside[i]);
        if (access(to, X_OK) == 0)
            return;
    }
    snprintf(to, room, "prefixd");
}

/* ---- the temporary directory ----------------------------------------------------------- */

#define DIR_PREFIX "prefixctl-"

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    remove(path);
    return 0;
}

static void remove_dir(struct private_daemon *d)
{
    if (d->dir[0])
        nftw(d->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    d->dir[0] = '\0';
}

/* Of somebody of this user who was killed: the lock file is there, of an earlier second, and the
 * daemon that held it is not. */
static bool is_left_over(int tmp, const char *name)
{
    char path[300];
    struct stat dir, file;
    if (strncmp(name, DIR_PREFIX, sizeof DIR_PREFIX - 1) != 0 ||
        fstatat(tmp, name, &dir, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(dir.st_mode) ||
        dir.st_uid != geteuid())
        return false;
    snprintf(path, sizeof path, "%s/socket.lock", name);
    int lock = openat(tmp, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool left = lock >= 0 && fstat(lock, &file) == 0 && file.st_mtime + 2 < time(NULL) &&
                flock(lock, LOCK_EX | LOCK_NB) == 0;
    if (lock >= 0)
        close(lock);
    return left;
}

static void remove_left_over(const char *tmp)
{
    DIR *all = opendir(tmp);
    for (struct dirent *e; all && (e = readdir(all));) {
        struct private_daemon gone;
        int n = snprintf(gone.dir, sizeof gone.dir, "%s/%s", tmp, e->d_name);
        if ((size_t)n < sizeof gone.dir && is_left_over(dirfd(all), e->d_name))
            remove_dir(&gone);
    }
    if (all)
        closedir(all);
}

static int make_dir(struct private_daemon *d)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || *tmp != '/' || strlen(tmp) > sizeof d->dir - sizeof "/" DIR_PREFIX "XXXXXX")
        tmp = "/tmp"; /* a socket's path is short */
    remove_left_over(tmp);
    snprintf(d->dir, sizeof d->dir, "%s/" DIR_PREFIX "XXXXXX", tmp);
    if (!mkdtemp(d->dir)) {
        d->dir[0] = '\0';
        return tool_fail(EXIT_DAEMON,
                         "cannot make a temporary directory in %s: %s; set TMPDIR to "
                         "the short path of one where this user may write.",
                         tmp, strerror(errno));
    }
    snprintf(d->socket, sizeof d->socket, "%s/socket", d->dir);
    return EXIT_GOOD;
}

static int open_log(const struct private_daemon *d, int flags)
{
    char path[96];
    snprintf(path, sizeof path, "%s/log", d->dir);
    return open(path, flags | O_CLOEXEC, 0600);
}

/* What it said before it gave up, on one line. */
static void read_log(const struct private_daemon *d, char *to, size_t room)
{
    int fd = open_log(d, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, to, room - 1) : 0;
    if (fd >= 0)
        close(fd);
    to[n > 0 ? n : 0] = '\0';
    for (size_t len = strlen(to); len && to[len - 1] == '\n'; len--)
        to[len - 1] = '\0';
    for (char *p = to; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
}

/* ---- start and stop --------------------------------------------------------------------- */

static void exec_daemon(const struct private_daemon *d, const struct daemon_args *args, int out,
                        pid_t parent)
{
    char binary[4096];
    const char *argv[3 + sizeof args->arg / sizeof args->arg[0]];
    int log = open_log(d, O_WRONLY | O_CREAT | O_APPEND), n = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);  /* it died before we asked */
    setpgid(0, 0); /* a ^C is ours to handle */
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    find_binary(binary, sizeof binary);
    argv[n++] = binary;
    argv[n++] = "--socket";
    argv[n++] = d->socket;
    for (unsigned i = 0; i < args->n; i++)
        argv[n++] = args->arg[i];
    argv[n] = NULL;
    execvp(binary, (char *const *)(uintptr_t)argv);
    dprintf(log, "cannot run %s: %s; name the daemon's binary with $PREFIXD_BIN", binary,
            strerror(errno));
    _exit(127);
}

/* True once a line that begins with "ready" has come; false: end of file, time or interruption. */
static bool await_ready(int out)
{
    char line[512];
    size_t n = 0;
    uint64_t end = clock_ns() + (uint64_t)START_MS * 1000000;
    while (n < sizeof line - 1 && clock_ns() < end && !interrupted) {
        struct pollfd p = {.fd = out, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            continue;
        ssize_t got = read(out, line + n, sizeof line - 1 - n);
        if (got <= 0)
            return false;
        n += (size_t)got;
        line[n] = '\0';
        const char *at = strncmp(line, "ready ", 6) == 0 ? line : strstr(line, "\nready ");
        if (at && strchr(at + 1, '\n'))
            return true;
    }
    return false;
}

/* Wait for its end up to ms, then kill it. The wait status. */
static int reap(struct private_daemon *d, int ms)
{
    int status = 0;
    uint64_t end = clock_ns() + (uint64_t)ms * 1000000;
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (clock_ns() > end)
            kill(d->pid, SIGKILL);
        poll(NULL, 0, 2);
    }
    d->pid = 0;
    close(d->out);
    return status;
}

static int fail_start(struct private_daemon *d)
{
    char log[1024];
    int status = reap(d, interrupted ? 0 : 100);
    bool hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    read_log(d, log, sizeof log);
    remove_dir(d);
    if (interrupted)
        return EXIT_DAEMON;
    bool usage = WIFEXITED(status) && WEXITSTATUS(status) == 2;
    return tool_fail(usage ? EXIT_USAGE : EXIT_DAEMON, "the private daemon did not start%s: %s",
                     hung ? " in time" : "", log[0] ? log : "it said nothing.");
}

static int spawn(struct private_daemon *d, const struct daemon_args *args)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) {
        remove_dir(d);
        return tool_fail(EXIT_DAEMON, "cannot make a pipe: %s.", strerror(errno));
    }
    fflush(NULL);
    pid_t parent = getpid();
    d->pid = fork();
    if (d->pid == 0)
        exec_daemon(d, args, out[1], parent);
    close(out[1]);
    d->out = out[0];
    if (d->pid < 0) {
        close(d->out);
        remove_dir(d);
        return tool_fail(EXIT_DAEMON, "cannot start a process: %s.", strerror(errno));
    }
    return await_ready(d->out) ? EXIT_GOOD : fail_start(d);
}

int private_daemon_start(struct private_daemon *d, const struct daemon_args *args)
{
    *d = (struct private_daemon){0};
    int code = make_dir(d);
    return code == EXIT_GOOD ? spawn(d, args) : code;
}

int private_daemon_again(struct private_daemon *d, const struct daemon_args *args)
{
    kill(d->pid, SIGKILL);
    reap(d, STOP_MS);
    return spawn(d, args);
}

void private_daemon_kill(struct private_daemon *d)
{
    kill(d->pid, SIGKILL);
    reap(d, STOP_MS);
    remove_dir(d);
}

bool private_daemon_stop(struct private_daemon *d)
{
    if (d->pid <= 0)
        return true;
    kill(d->pid, SIGTERM);
    kill(d->pid, SIGCONT);
    int status = reap(d, STOP_MS);
    remove_dir(d);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    if (!interrupted)
        tool_fail(0, "the private daemon ended badly (%s %d).",
                  WIFSIGNALED(status) ? "signal" : "exit code",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}
