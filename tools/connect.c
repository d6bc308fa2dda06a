/*
 * The three ways from a tool to a daemon:
 *
 *   shared memory   connect, let SO_PEERCRED name the daemon, open its index memfd through /proc:
 *                   the daemon executes nothing for it, so it may be stopped or stuck. A user who
 *                   may not look there but may attach gets the index as a worker does
 *   admin channel   HELLO_ADMIN, then a request packet is answered by a memfd of rows
 *   libprefixd      an ordinary worker that maps no pool
 */
#include "tools/tool.h"
#include "tools/raw_channel.h"
#include "shm/socket_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_no_daemon(const struct tool *t, const char *cause)
{
    struct socket_paths paths;
    char also[SOCKET_PATH_MAX + 80] = "", remedy[SOCKET_PATH_MAX + 80];
    if (t->also)
        snprintf(also, sizeof also, " nor at %s (%s)", t->also, strerror(t->also_error));
    socket_paths(&paths, t->socket);
    socket_remedy(&paths, remedy, sizeof remedy);
    return tool_fail(EXIT_DAEMON,
                     "no daemon answers at %s (%s)%s; %s, or name the socket of a running one with "
                     "--socket or $PREFIXD_SOCKET.",
                     t->socket, cause, also, remedy);
}

/* A connected socket, or -1 with errno. The path fits (tool_find). */
static int connect_to(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, path, strnlen(path, SOCKET_PATH_MAX));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* 0 if a daemon answers there (be it that its backlog is full), else why not. */
static int probe(const char *path)
{
    int fd = connect_to(path);
    if (fd < 0)
        return errno == EAGAIN ? 0 : errno;
    close(fd);
    return 0;
}

bool tool_find(struct tool *t)
{
    static struct socket_paths paths; /* t->socket points into it */
    if (t->given && !*t->given)
        return tool_fail(0, "--socket takes a path, not the empty one."), false;
    socket_paths(&paths, t->given);
    for (unsigned i = 0; i < paths.n; i++)
        if (strlen(paths.at[i]) > SOCKET_PATH_MAX)
            return tool_fail(0,
                             "the socket path %s is longer than the %d bytes of a socket's "
                             "name.",
                             paths.at[i], SOCKET_PATH_MAX),
                   false;
    t->socket = paths.at[0];
    if (paths.n == 1 || probe(paths.at[0]) == 0)
        return true;
    t->also_error = probe(paths.at[1]);
    if (t->also_error)
        t->also = paths.at[1];
    else
        t->socket = paths.at[1];
    return true;
}

int tool_connect(const struct tool *t, pid_t *pid)
{
    int fd = connect_to(t->socket);
    *pid = 0;
    if (fd < 0) {
        int error = t->also ? t->also_error : errno; /* of the last path: the system's, if two */
        if (error == EACCES || error == EPERM)
            tool_fail(EXIT_DAEMON, SOCKET_CLOSED ".", t->also ? t->also : t->socket);
        else if (errno == EAGAIN)
            tool_fail(EXIT_DAEMON,
                      "the daemon at %s is stuck or stopped: its backlog is full. If "
                      "it is stopped, let it go on with SIGCONT.",
                      t->socket);
        else
            fail_no_daemon(t, strerror(errno));
        return -1;
    }
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
        *pid = peer.pid;
    return fd;
}

/* ---- a daemon that does not answer ------------------------------------------------------ */

/* The state of a process as ps shows it, 0 if it is not known. */
static char process_state(pid_t pid)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *name = strrchr(text, ')'); /* it may hold anything, blanks as well */
    return name && name[1] ? name[2] : 0;
}

static bool is_stopped(pid_t pid)
{
    char state = process_state(pid);
    return state == 'T' || state == 't';
}

/* May this user read its memory through /proc? ptrace(2) decides it alike for all links there. */
static bool may_look(pid_t pid)
{
    char path[32], target[8];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    return readlink(path, target, sizeof target) >= 0;
}

int tool_fail_silent(const struct tool *t, pid_t pid, int ms)
{
    if (is_stopped(pid))
        return tool_fail(EXIT_DAEMON,
                         "daemon %d at %s is stopped and does not answer; let it go on with "
                         "SIGCONT (kill -CONT %d).%s",
                         pid, t->socket, pid,
                         may_look(pid) ? " `prefixctl status` and `tree` work all the same." : "");
    return tool_fail(EXIT_DAEMON,
                     "daemon %d at %s did not answer within %d s: it is busy, or was "
                     "stopped meanwhile. What was asked may still happen; try again.",
                     pid, t->socket, ms / 1000);
}

/* ---- shared memory -------------------------------------------------------------------- */

/* -1: there is none, or (then EACCES) this user may list them and no more: proc(5) gives the
 * directory to the daemon's user, and ptrace(2) what it names, which asks for its group as well. */
static int open_index_fd(DIR *fds)
{
    struct dirent *entry;
    while ((entry = readdir(fds))) {
        char target[64];
        ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        if (n < 0 && errno == EACCES)
            return -1;
        if (n < 0)
            continue;
        target[n] = '\0';
        if (strcmp(target, "/memfd:prefixd-index (deleted)") == 0)
            return openat(dirfd(fds), entry->d_name, O_RDONLY | O_CLOEXEC);
    }
    errno = ENOENT;
    return -1;
}

/* What is mapped, if it is of our format and has been carved. */
static int view_index(struct daemon_index *di)
{
    di->ready = index_view_init(&di->view, di->base, di->bytes);
    const struct index_header *h = di->base;
    if (!di->ready && shm_load_acquire(&h->ready) && h->format != LAYOUT_FORMAT) {
        pid_t pid = di->pid;
        daemon_index_close(di);
        return tool_fail(EXIT_DAEMON,
                         "daemon %d has another index format; install matching "
                         "versions of prefixd and prefixctl.",
                         pid);
    }
    return EXIT_GOOD;
}

/* All of a region of the daemon's. One that is not sealed could end while it is read: whatever
 * listens there is no prefixd. */
static int map_sealed(int fd, struct segment *s, pid_t pid)
{
    struct stat st;
    int rc = fd < 0 || fstat(fd, &st)
                 ? -EINVAL
                 : segment_map(s, fd, SEGMENT_DAEMON, (uint64_t)st.st_size, false);
    if (rc == 0)
        return EXIT_GOOD;
    return tool_fail(EXIT_DAEMON, "what process %d shares cannot be mapped: %s.", pid,
                     rc == -EPERM    ? "it is not sealed, so this is no prefixd"
                     : rc == -EINVAL ? "it has no size"
                                     : strerror(-rc));
}

static int map_index(struct daemon_index *di, int fd)
{
    struct segment s;
    int code = map_sealed(fd, &s, di->pid);
    if (code != EXIT_GOOD)
        return code;
    di->base = s.base;
    di->bytes = s.bytes;
    return view_index(di);
}

/* As a worker of a moment. It has gone again before anybody counts the workers. */
static int borrow_index(const struct tool *t, struct daemon_index *di)
{
    struct raw_channel raw;
    struct welcome w;
    int code = raw_ask(t, &raw, &w);
    if (code != EXIT_GOOD || w.status == PFX_EMISMATCH) /* it waits for the first layout */
        return code;
    if (w.status != 0)
        return tool_fail(EXIT_DAEMON,
                         "daemon %d at %s refused: %s; or run as the daemon's user or "
                         "as root, who need no consent.",
                         di->pid, t->socket, w.why);
    di->base = raw.index.base;
    di->bytes = raw.index.bytes;
    raw.index.base = NULL;
    const uint8_t bye = BYE;
    struct pollfd hung_up = {.fd = raw.fd, .events = POLLIN};
    if (send(raw.fd, &bye, 1, MSG_NOSIGNAL) == 1)
        poll(&hung_up, 1, TOOL_TIMEOUT_MS);
    raw_detach(&raw);
    return view_index(di);
}

int daemon_index_open(const struct tool *t, struct daemon_index *di)
{
    *di = (struct daemon_index){0};
    int socket = tool_connect(t, &di->pid);
    if (socket < 0)
        return EXIT_DAEMON;
    close(socket);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", di->pid);
    DIR *fds = opendir(path);
    if (!fds)
        return borrow_index(t, di);
    int fd = open_index_fd(fds);
    bool denied = fd < 0 && errno == EACCES;
    closedir(fds);
    if (denied)
        return borrow_index(t, di);
    if (fd < 0)
        return EXIT_GOOD; /* it waits for the first layout */
    int code = map_index(di, fd);
    close(fd);
    return code;
}

void daemon_index_waits(const struct tool *t, const struct daemon_index *di)
{
    printf("daemon %d at %s waits for the layout of its first worker; nothing is cached yet.\n",
           di->pid, t->socket);
}

void daemon_index_close(struct daemon_index *di)
{
    if (di->base && di->base != MAP_FAILED)
        munmap(di->base, di->bytes);
    *di = (struct daemon_index){0};
}

/* ---- admin channel -------------------------------------------------------------------- */

/* True once there is a packet; false with errno. A stopped daemon is not waited for to the end. */
static bool await_packet(int socket, pid_t pid, int timeout_ms)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};
    for (int waited = 0; waited < timeout_ms; waited += TOOL_TIMEOUT_MS) {
        int ready = poll(&p, 1, TOOL_TIMEOUT_MS);
        if (ready != 0)
            return ready > 0;
        if (is_stopped(pid))
            break;
    }
    errno = ETIMEDOUT;
    return false;
}

/* One packet, within the time; its descriptor, if any, to *fd. Bytes read, or -1 with errno. */
static ssize_t receive(int socket, pid_t pid, void *to, size_t room, int timeout_ms, int *fd)
{
    if (!await_packet(socket, pid, timeout_ms))
        return -1;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec io = {to, room};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
    if (n == 0) {
        errno = ECONNRESET;
        return -1;
    }
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n;
}

static int fail_answer(const struct tool *t, pid_t pid, int ms)
{
    if (errno == ETIMEDOUT)
        return tool_fail_silent(t, pid, ms);
    return tool_fail(EXIT_DAEMON, "daemon %d at %s closed the connection (%s).", pid, t->socket,
                     strerror(errno));
}

static int say_hello(const struct tool *t, int socket, pid_t pid)
{
    struct hello hello = {.magic = HELLO_MAGIC,
                          .abi = PFX_ABI_VERSION,
                          .kind = HELLO_ADMIN,
                          .format = LAYOUT_FORMAT,
                          .name = "prefixctl"};
    struct welcome welcome;
    int fd = -1;
    if (send(socket, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
        return fail_answer(t, pid, TOOL_TIMEOUT_MS);
    ssize_t n = receive(socket, pid, &welcome, sizeof welcome, TOOL_TIMEOUT_MS, &fd);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return fail_answer(t, pid, TOOL_TIMEOUT_MS);
    if (n != sizeof welcome || welcome.magic != HELLO_MAGIC)
        return tool_fail(EXIT_DAEMON, "what listens at %s is no prefixd of this version.",
                         t->socket);
    welcome.why[sizeof welcome.why - 1] = '\0';
    if (welcome.status != 0)
        return tool_fail(EXIT_DAEMON, "the daemon refused: %s.",
                         welcome.why[0] ? welcome.why : pfx_strerror(welcome.status));
    return EXIT_GOOD;
}

static int map_rows(const struct admin_reply *reply, int fd, pid_t pid, size_t row_bytes,
                    struct admin_rows *rows)
{
    if (reply->status == PFX_EACCESS)
        return tool_fail(EXIT_DAEMON, "the daemon refused: that is for its own user and root; run "
                                      "as one of them.");
    if (reply->status != 0)
        return tool_fail(EXIT_DAEMON, "the daemon refused: %s.", pfx_strerror(reply->status));
    rows->n = reply->n_rows;
    if (rows->n == 0)
        return EXIT_GOOD;
    struct segment s;
    int code = map_sealed(fd, &s, pid);
    if (code != EXIT_GOOD)
        return code;
    rows->row = s.base;
    rows->bytes = s.bytes;
    if (reply->row_bytes == row_bytes && rows->bytes / row_bytes >= rows->n)
        return EXIT_GOOD;
    admin_free(rows);
    return tool_fail(EXIT_DAEMON, "the daemon's answer has another shape; install matching "
                                  "versions of prefixd and prefixctl.");
}

int admin_ask(const struct tool *t, uint32_t op, size_t row_bytes, int timeout_ms,
              struct admin_rows *rows)
{
    *rows = (struct admin_rows){0};
    pid_t pid;
    int socket = tool_connect(t, &pid), fd = -1;
    if (socket < 0)
        return EXIT_DAEMON;
    int code = say_hello(t, socket, pid);
    if (code == EXIT_GOOD) {
        struct admin_request request = {.op = op};
        struct admin_reply reply;
        if (send(socket, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
            receive(socket, pid, &reply, sizeof reply, timeout_ms, &fd) != sizeof reply)
            code = fail_answer(t, pid, timeout_ms);
        else
            code = map_rows(&reply, fd, pid, row_bytes, rows);
    }
    if (fd >= 0)
        close(fd);
    close(socket);
    return code;
}

void admin_free(struct admin_rows *rows)
{
    if (rows->row)
        munmap((void *)(uintptr_t)rows->row, rows->bytes);
    *rows = (struct admin_rows){0};
}

/* ---- libprefixd ----------------------------------------------------------------------- */

int tool_fail_pfx(const char *what, int error, const char *why)
{
    if (!why || !*why)
        why = pfx_strerror(error);
    size_t n = strlen(why);
    return tool_fail(EXIT_DAEMON, "%s: %s%s", what, why, n && why[n - 1] == '.' ? "" : ".");
}

pfx *tool_attach(const struct tool *t, int *code)
{
    pid_t pid;
    int socket = tool_connect(t, &pid); /* for our own sentence if nobody is there */
    if (socket < 0) {
        *code = EXIT_DAEMON;
        return NULL;
    }
    close(socket);
    struct pfx_options options = {.size = sizeof options,
                                  .socket_path = t->socket,
                                  .name = "prefixctl",
                                  .map_devices = PFX_MAP_NONE,
                                  .timeout_ms = TOOL_TIMEOUT_MS};
    pfx *c = NULL;
    int rc = pfx_open(&options, &c);
    if (rc == 0)
        return c;
    *code = rc == PFX_ETIMEDOUT ? tool_fail_silent(t, pid, TOOL_TIMEOUT_MS)
                                : tool_fail_pfx("cannot attach", rc, pfx_why(NULL));
    return NULL;
}

int tool_fail_call(const struct tool *t, const pfx *c, const char *what, int error)
{
    pid_t pid;
    if (error != PFX_ETIMEDOUT)
        return tool_fail_pfx(what, error, pfx_why(c));
    int socket = tool_connect(t, &pid);
    if (socket < 0)
        return EXIT_DAEMON;
    close(socket);
    return tool_fail_silent(t, pid, TOOL_TIMEOUT_MS);
}

/* ---- output --------------------------------------------------------------------------- */

void print_json(json_t *json)
{
    json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10));
    putchar('\n');
    json_decref(json);
}

json_t *json_text(const char *bytes, size_t room)
{
    char hex[512];
    size_t n = strnlen(bytes, room);
    json_t *text = json_stringn(bytes, n);
    if (text || n >= sizeof hex / 2)
        return text;
    print_hex(hex, (const uint8_t *)bytes, n);
    return json_string(hex);
}

void print_hex(char *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(to + 2 * i, 3, "%02x", bytes[i]);
    to[2 * n] = '\0';
}
