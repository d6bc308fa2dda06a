#include "tests/harness.h"
#include "client/prefixd.h"
#include "shm/clock.h"
#include "shm/layout.h"
#include "shm/message.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READY_MS = 20000, STOP_MS = 20000, ARGV_MAX = 48 };

static const char *from_environment(const char *name)
{
    const char *path = getenv(name);
    ck_assert_msg(path != NULL, "%s is not set: run the tests by meson", name);
    return path;
}

const char *prefixd_path(void)
{
    return from_environment("PREFIXD_BIN");
}

const char *prefixctl_path(void)
{
    return from_environment("PREFIXCTL_BIN");
}

/* ---- a private daemon -------------------------------------------------------- */

/* In the child of a fork: die with the parent, even if it died before the prctl. */
static void die_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(98);
}

static void show_log(const struct host *h)
{
    char text[4096];
    ssize_t n;
    off_t at = 0;
    while ((n = pread(h->log, text, sizeof text, at)) > 0) {
        fwrite(text, 1, (size_t)n, stderr);
        at += n;
    }
}

/* The first line of its stdout must be `ready SOCKET`. */
static void await_ready(struct host *h, int out)
{
    char line[160] = "";
    size_t n = 0;
    uint64_t until = now_ms() + READY_MS;
    while (n + 1 < sizeof line && !strchr(line, '\n')) {
        struct pollfd p = {.fd = out, .events = POLLIN};
        int left = (int)(until - now_ms());
        ssize_t got = left > 0 && poll(&p, 1, left) == 1 ? read(out, line + n, 1) : 0;
        if (got != 1) {
            show_log(h);
            ck_abort_msg("prefixd did not say ready (\"%s\")", line);
        }
        line[++n] = 0;
    }
    char want[160];
    snprintf(want, sizeof want, "ready %s\n", h->socket);
    ck_assert_str_eq(line, want);
}

/* A failed check ends the test by exit(): its directories go then, unless a child is what ends. */
static struct {
    pid_t pid;
    char dir[64];
} leftover[16];

static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

static void remove_left(void)
{
    for (size_t i = 0; i < sizeof leftover / sizeof leftover[0]; i++)
        if (leftover[i].pid == getpid())
            remove_dir(leftover[i].dir);
}

static void dir_note(const char *dir, bool used)
{
    static pid_t registered;
    if (registered != getpid())
        atexit(remove_left);
    registered = getpid();
    for (size_t i = 0; i < sizeof leftover / sizeof leftover[0]; i++)
        if (used ? leftover[i].pid != getpid() : strcmp(leftover[i].dir, dir) == 0) {
            leftover[i].pid = used ? getpid() : 0;
            strcpy(leftover[i].dir, used ? dir : "");
            return;
        }
}

bool on_disk(void)
{
    return getenv("PREFIXD_TEST_DISK") != NULL;
}

bool on_cuda(void)
{
    const char *device = getenv("PREFIXD_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

void *fake_cuda(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *at = NULL;
    if (library) {
        at = dlsym(library, name);
        dlclose(library);
    }
    return at;
}

/* In the child that becomes the daemon. */
static int add_device(const char **argv, int n)
{
    bool given = false;
    for (int i = 0; i < n; i++)
        given |= strcmp(argv[i], "--device") == 0;
    if (!given) {
        argv[n++] = "--device";
        argv[n++] = "cuda";
    }
    setenv("FAKE_CUDA_TOUCH", "0", 1);
    setenv("FAKE_CUDA_LEAKS", "1", 1);
    return n;
}

void temp_dir(char dir[64])
{
    strcpy(dir, "/tmp/prefixd-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    dir_note(dir, true);
}

static void spawn(struct host *h, const char *const *options)
{
    int out[2];
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    pid_t parent = getpid();
    h->admin = -1;
    h->pid = fork();
    ck_assert_int_ge(h->pid, 0);
    if (h->pid == 0) {
        const char *argv[ARGV_MAX] = {prefixd_path(), "--socket", h->socket};
        int n = 3;
        for (int i = 0; options && options[i] && n < ARGV_MAX - 3; i++)
            argv[n++] = options[i];
        if (on_cuda())
            n = add_device(argv, n);
        die_with(parent);
        dup2(out[1], STDOUT_FILENO);
        dup2(h->log, STDERR_FILENO);
        close_range(STDERR_FILENO + 1, ~0u, 0); /* what we were started with is not the daemon's */
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(out[1]);
    await_ready(h, out[0]);
    close(out[0]);
}

void host_start(struct host *h, const char *const *options)
{
    memset(h, 0, sizeof *h);
    temp_dir(h->dir);
    snprintf(h->socket, sizeof h->socket, "%s/s", h->dir);
    char log[80];
    snprintf(log, sizeof log, "%s/log", h->dir);
    h->log = open(log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(h->log, 0);
    spawn(h, options);
}

void host_small(struct host *h, unsigned n_blocks, unsigned block_tokens)
{
    char blocks[16], tokens[16];
    snprintf(blocks, sizeof blocks, "%u", n_blocks);
    snprintf(tokens, sizeof tokens, "%u", block_tokens);
    HOST_START(h, "--blocks", blocks, "--block-tokens", tokens, "--block-bytes", "64");
}

void host_again(struct host *h, const char *const *options)
{
    spawn(h, options);
}

static int reap(pid_t pid, int ms)
{
    int status = 0;
    uint64_t until = now_ms() + (uint64_t)ms;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        ck_assert_msg(now_ms() < until, "process %d did not end in %d ms", (int)pid, ms);
        sleep_us(200);
    }
    return status;
}

static void close_host(struct host *h)
{
    if (h->admin >= 0)
        close(h->admin);
    h->admin = -1;
}

void host_stop(struct host *h)
{
    close_host(h);
    ck_assert_int_eq(kill(h->pid, SIGTERM), 0);
    int status = reap(h->pid, STOP_MS);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        show_log(h);
        ck_abort_msg("prefixd ended with status 0x%x", (unsigned)status);
    }
    ck_assert_msg(access(h->socket, F_OK) != 0, "the socket was left behind");
    close(h->log);
    remove_dir(h->dir);
    dir_note(h->dir, false);
}

void host_kill(struct host *h)
{
    close_host(h);
    ck_assert_int_eq(kill(h->pid, SIGKILL), 0);
    int status = reap(h->pid, STOP_MS);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void host_pause(struct host *h)
{
    ck_assert_int_eq(kill(h->pid, SIGSTOP), 0);
    int status = 0;
    ck_assert_int_eq(waitpid(h->pid, &status, WUNTRACED), h->pid);
    ck_assert(WIFSTOPPED(status));
}

void host_resume(struct host *h)
{
    ck_assert_int_eq(kill(h->pid, SIGCONT), 0);
}

bool host_logged(const struct host *h, const char *text)
{
    char all[16384];
    ssize_t n = pread(h->log, all, sizeof all - 1, 0);
    all[n > 0 ? n : 0] = 0;
    return strstr(all, text) != NULL;
}

int program_run(const char *path, const char *const *options, char *output, size_t room)
{
    int out[2];
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        const char *argv[ARGV_MAX] = {path};
        for (int i = 0; options[i] && i < ARGV_MAX - 2; i++)
            argv[i + 1] = options[i];
        die_with(parent);
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        execv(path, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(out[1]);
    size_t n = 0;
    char rest[512];
    for (ssize_t got = 1; got > 0;) {
        size_t left = room - 1 - n;
        got = left ? read(out[0], output + n, left) : read(out[0], rest, sizeof rest);
        if (left && got > 0)
            n += (size_t)got;
    }
    output[n] = 0;
    close(out[0]);
    int status = reap(pid, 60000);
    ck_assert_msg(WIFEXITED(status), "%s ended with status 0x%x", path, (unsigned)status);
    return WEXITSTATUS(status);
}

/* ---- audit ------------------------------------------------------------------------ */

static int admin_connect(const struct host *h)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, h->socket);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    struct hello hello = {.magic = HELLO_MAGIC,
                          .abi = PFX_ABI_VERSION,
                          .kind = HELLO_ADMIN,
                          .format = LAYOUT_FORMAT,
                          .name = "audit"};
    ck_assert_int_eq(send(fd, &hello, sizeof hello, 0), sizeof hello);
    struct welcome welcome;
    ck_assert_int_eq(recv(fd, &welcome, sizeof welcome, 0), sizeof welcome);
    ck_assert_msg(welcome.status == 0, "admin refused: %s", welcome.why);
    return fd;
}

/* One reply and the descriptor that came with it, or -1. */
static int receive_rows(int fd, struct admin_reply *reply)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {reply, sizeof *reply};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    REQUIRE_EQ(recvmsg(fd, &m, MSG_CMSG_CLOEXEC), sizeof *reply);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int rows = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&rows, CMSG_DATA(c), sizeof rows);
    return rows;
}

void audit_clean(struct host *h)
{
    if (h->admin < 0)
        h->admin = admin_connect(h);
    struct admin_request rq = {.op = ADMIN_AUDIT};
    REQUIRE_EQ(send(h->admin, &rq, sizeof rq, 0), sizeof rq);
    struct admin_reply reply;
    int rows = receive_rows(h->admin, &reply);
    REQUIRE_EQ(reply.status, 0);
    if (reply.n_rows != 0) {
        struct audit_row row = {.finding = "(no row)"};
        REQUIRE(rows >= 0);
        REQUIRE_EQ(pread(rows, &row, sizeof row, 0), sizeof row);
        ck_abort_msg("audit: %u findings, the first: %.255s", reply.n_rows, row.finding);
    }
    if (rows >= 0)
        close(rows);
}

/* ---- child processes ---------------------------------------------------------------- */

void child_start(struct child *c, child_fn *fn, void *arg)
{
    int down[2], up[2];
    ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        die_with(parent);
        void (*forked)(void) = NULL;
        *(void **)(&forked) = fake_cuda("fake_cuda_forked");
        if (forked)
            forked(); /* these children stand for workers, which are started by exec */
        close(down[1]);
        close(up[0]);
        struct child me = {.pid = parent, .to = up[1], .from = down[0]};
        fn(&me, arg);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    *c = (struct child){.pid = pid, .to = down[1], .from = up[0]};
}

void child_post(struct child *c, uint64_t word)
{
    ck_assert_int_eq(write(c->to, &word, sizeof word), sizeof word);
}

uint64_t child_wait(struct child *c)
{
    uint64_t word = 0;
    struct pollfd p = {.fd = c->from, .events = POLLIN};
    ck_assert_msg(poll(&p, 1, 30000 * SLOW) == 1, "the other side said nothing");
    ck_assert_msg(read(c->from, &word, sizeof word) == sizeof word, "the other side has gone");
    return word;
}

static int child_end(struct child *c)
{
    close(c->to);
    int status = reap(c->pid, 60000 * SLOW);
    close(c->from);
    return status;
}

void child_join(struct child *c)
{
    int status = child_end(c);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with 0x%x",
                  (unsigned)status);
}

void child_kill(struct child *c, int sig)
{
    ck_assert_int_eq(kill(c->pid, sig), 0);
    int status = child_end(c);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == sig,
                  "a child was to die by signal %d but ended with 0x%x", sig, (unsigned)status);
}

/* ---- small things ------------------------------------------------------------------- */

struct rng rng_seeded(const char *what)
{
    const char *given = getenv("PFX_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed =
        given ? strtoull(given, NULL, 0) : (uint64_t)t.tv_sec * 1000003u + (uint64_t)t.tv_nsec;
    fprintf(stderr, "%s: PFX_SEED=%llu\n", what, (unsigned long long)seed);
    return (struct rng){seed};
}

uint64_t rng_next(struct rng *r) /* splitmix64 */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

uint64_t now_us(void)
{
    return clock_ns() / 1000;
}

uint64_t now_ms(void)
{
    return now_us() / 1000;
}

void sleep_us(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

unsigned count_fds(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n - (pid == getpid());
}

uint64_t process_cpu_us(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    ck_assert_int_gt(n, 0);
    text[n] = 0;
    unsigned long user = 0, system = 0;
    int got = sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                     &user, &system);
    ck_assert_int_eq(got, 2);
    return (uint64_t)(user + system) * 1000000u / (uint64_t)sysconf(_SC_CLK_TCK);
}
