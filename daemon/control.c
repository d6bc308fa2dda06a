/*
 * Who holds the lock on PATH.lock owns PATH. The kernel drops the lock with its holder, so a socket
 * that SIGKILL left behind is stale exactly when we get the lock, and may be replaced. The lock
 * file is removed on a clean stop: whoever has opened it meanwhile sees that the file it locked is
 * no longer the one at the path, and tries again.
 */
#include "daemon/control.h"

#include "daemon/daemon.h"
#include "daemon/foreign.h"
#include "daemon/log.h"
#include "daemon/same_file.h"
#include "shm/socket_path.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { EXIT_OPTION = 2, EXIT_BUSY = 1, DYING_LOOK_MS = 20, FIRST_LOOKS = 5 };

struct lock_path {
    char text[sizeof((struct options *)0)->socket + sizeof ".lock"];
};

static struct lock_path lock_path(const struct daemon *d)
{
    struct lock_path p;
    snprintf(p.text, sizeof p.text, "%s.lock", d->options->socket);
    return p;
}

static struct sockaddr_un address(const struct daemon *d)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, d->options->socket, sizeof at.sun_path);
    return at;
}

static int open_lock(const char *path)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -errno;
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            int rc = -errno;
            close(fd);
            return rc;
        }
        if (same_file(fd, path))
            return fd;
        close(fd);
    }
}

/* Somebody else's file or living socket is left alone, though we hold our lock. */
static bool clear_path(const struct daemon *d)
{
    struct sockaddr_un at = address(d);
    struct stat st;
    if (lstat(at.sun_path, &st))
        return errno == ENOENT;
    if (!S_ISSOCK(st.st_mode)) {
        errno = EEXIST;
        return false;
    }
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return false;
    bool dead = connect(probe, (const struct sockaddr *)&at, sizeof at) && errno == ECONNREFUSED;
    close(probe);
    if (dead)
        return unlink(at.sun_path) == 0;
    errno = EADDRINUSE;
    return false;
}

static int refuse_path(const struct daemon *d, int error)
{
    log_error("--socket %s: it cannot be made: %s%s", d->options->socket,
              error == EEXIST       ? "a file that is no socket is there; remove it"
              : error == EADDRINUSE ? "another program listens there"
                                    : strerror(error),
              descriptors_remedy(error));
    return EXIT_OPTION;
}

/* The lock could not be made, or the system's directory for it (`of_directory`). */
static int refuse_lock(const char *path, const char *lock, bool system, int of_directory, int error)
{
    const char *remedy = system ? "give --socket, or set PREFIXD_SOCKET or XDG_RUNTIME_DIR"
                                : "give --socket a path where this user may make files";
    if (error == EMFILE)
        remedy = RAISE_DESCRIPTORS;
    if (error == ENOENT && of_directory)
        log_error("--socket %s: its directory %s cannot be made: %s; %s", path,
                  SYSTEM_SOCKET_DIRECTORY, strerror(of_directory), remedy);
    else
        log_error("--socket %s: its lock %s cannot be made: %s; %s", path, lock, strerror(error),
                  remedy);
    return EXIT_OPTION;
}

/* Who listens at the path; 0: nobody, or it cannot be told; GONE: whoever did has closed it. A
 * daemon that starts removes such a path right after it has the lock. */
enum { GONE = -1 };

static pid_t listener_of(const struct daemon *d)
{
    struct sockaddr_un at = address(d);
    struct ucred peer = {0};
    socklen_t n = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    if (connect(fd, (const struct sockaddr *)&at, sizeof at))
        peer.pid = errno == ECONNREFUSED ? GONE : 0;
    else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
        peer.pid = 0;
    close(fd);
    return peer.pid;
}

/* Is this process on its way out, or gone? proc(5): field 9 of stat has the kernel's PF_EXITING
 * from the moment on at which nothing of the program runs any more. */
static bool is_dying(pid_t pid)
{
    enum { PF_EXITING = 4 };
    char path[32], text[512];
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return n < 0 && errno == ESRCH;
    text[n] = 0;
    const char *rest = strrchr(text, ')');
    return rest && sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
           flags & PF_EXITING;
}

/* Who was killed has its lock until the kernel has taken its memory apart, and its operations on
 * disks are over: a new one at once is not a second one. The first looks are for one that has not
 * felt its signal yet. -EINTR: we are to stop ourselves. */
static int lock_after_the_dying(const struct daemon *d, const char *lock)
{
    int fd = open_lock(lock);
    for (int looks = 0; fd == -EWOULDBLOCK; looks++) {
        pid_t holder = listener_of(d);
        bool dying = holder == GONE || (holder && is_dying(holder));
        if (!dying && looks >= FIRST_LOOKS)
            return open_lock(lock); /* it may be gone since */
        if (dying && looks == FIRST_LOOKS)
            log_info("waiting until a prefixd that was killed is gone");
        struct pollfd signals = {.fd = d->signal_fd, .events = POLLIN};
        if (poll(&signals, 1, DYING_LOOK_MS) == 1)
            return -EINTR;
        fd = open_lock(lock);
    }
    return fd;
}

int control_lock(struct daemon *d)
{
    const char *path = d->options->socket;
    bool system = strncmp(path, SYSTEM_SOCKET_DIRECTORY "/", sizeof SYSTEM_SOCKET_DIRECTORY) == 0;
    int of_directory = system && mkdir(SYSTEM_SOCKET_DIRECTORY, 0755) ? errno : 0;

    struct lock_path lock = lock_path(d);
    int fd = lock_after_the_dying(d, lock.text);
    if (fd == -EWOULDBLOCK) {
        log_error("another prefixd serves %s; stop it, or give --socket another path", path);
        return EXIT_BUSY;
    }
    if (fd == -EINTR) {
        log_info("told to stop before it began");
        return EXIT_BUSY;
    }
    if (fd < 0)
        return refuse_lock(path, lock.text, system, of_directory, -fd);
    d->lock_fd = fd;
    return clear_path(d) ? 0 : refuse_path(d, errno);
}

static int make_listener(const struct daemon *d)
{
    struct sockaddr_un at = address(d);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    foreign_refuse(fd);
    /* Everybody may connect; who may attach is decided by SO_PEERCRED (handshake.c). The mode comes
     * with the name: where others may write, it could mean another file a moment later. */
    mode_t mask = umask(0111);
    int rc =
        bind(fd, (const struct sockaddr *)&at, sizeof at) || listen(fd, SOMAXCONN) ? -errno : 0;
    (void)umask(mask);
    if (rc) {
        close(fd);
        return rc;
    }
    return fd;
}

int control_listen(struct daemon *d)
{
    int fd = make_listener(d);
    if (fd < 0)
        return refuse_path(d, -fd);
    d->listen_fd = fd;
    return 0;
}

void control_deafen(struct daemon *d)
{
    if (d->listen_fd < 0)
        return;
    (void)unlink(d->options->socket);
    watch_remove(d, d->listen_fd);
    for (int fd; (fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;)
        foreign_close(&d->foreign, fd); /* who still waits in the queue */
    close(d->listen_fd);
    d->listen_fd = -1;
}

void control_close(struct daemon *d)
{
    control_deafen(d);
    if (d->lock_fd >= 0) {
        struct lock_path lock = lock_path(d);
        (void)unlink(lock.text);
        close(d->lock_fd);
    }
    d->lock_fd = -1;
}
