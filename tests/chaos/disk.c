/*
 * Faults of the disk.
 *
 * Between two lives, and under the daemon's hands: files are cut, overwritten, deleted; bits flip.
 *
 * While it runs, where the plan says so: io_uring is forbidden to the daemon, so each transfer is a
 * system call of a thread, and a seccomp filter sends those to a process of ours. It lets the
 * kernel do them, later perhaps, or answers for it: EIO, ENOSPC; or a lie - it says that all went
 * well and has done nothing, so that a page keeps what it had, or a slot of the file. Only
 * transfers of slots and their headers are lied about, and no synchronized one: nobody could tell a
 * flush that never reached the disk from one that nobody asked for.
 */
#include "tests/chaos/chaos.h"
#include "tests/disk_calls.h"
#include "tests/pass.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/swap_format.h"

/* All go through one process, and a fetch may have hundreds of them before it. */
enum { DELAY_MAX_US = 1000 };

/* ---- files ---------------------------------------------------------------------------------- */

/* One of the files that are there; false: there is none. */
static bool some_file(const struct house *h, struct dice *d, char *path, size_t room, off_t *size)
{
    static const char *const stores[] = {"blocks", "blocks", "snapshots"};
    struct stat st;
    for (int tries = 0; h->plan->paths && tries < 4; tries++) {
        snprintf(path, room, "%s/%s.prefixd", h->path[dice_below(d, h->plan->paths)],
                 stores[dice_below(d, 3)]);
        if (stat(path, &st) == 0 && st.st_size > SWAP_EXTENTS) {
            *size = st.st_size;
            return true;
        }
    }
    return false;
}

/* Somewhere between `from` and the end; up to `most` bytes, none beyond it. */
static void overwrite(int fd, off_t from, off_t size, uint32_t most, struct dice *d)
{
    uint64_t word[2048];
    uint64_t left = (uint64_t)(size - from), skip = dice_next(d) % left;
    size_t n = dice_between(d, 1, most < sizeof word ? most : (uint32_t)sizeof word);
    off_t at = from + (off_t)skip;
    n = n < left - skip ? n : left - skip;
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        word[i] = dice_next(d);
    ssize_t put = pwrite(fd, word, n, at);
    (void)put;
}

static void flip_bits(int fd, off_t from, off_t size, unsigned n, struct dice *d)
{
    for (; n; n--) {
        off_t at = from + (off_t)(dice_next(d) % (uint64_t)(size - from));
        uint8_t byte;
        if (pread(fd, &byte, 1, at) != 1)
            continue;
        byte ^= (uint8_t)(1u << dice_below(d, 8));
        ssize_t put = pwrite(fd, &byte, 1, at);
        (void)put;
    }
}

bool disk_damage(struct house *h, enum damage kind, uint64_t salt)
{
    struct dice d = {salt};
    char path[200];
    off_t size;
    if (kind == DAMAGE_NONE || !some_file(h, &d, path, sizeof path, &size))
        return false;
    if (kind == DAMAGE_GONE)
        return unlink(path) == 0;
    if (kind == DAMAGE_CUT)
        return truncate(path, dice_one_in(&d, 4) ? 0 : (off_t)(dice_next(&d) % (uint64_t)size)) ==
               0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (kind == DAMAGE_GARBAGE)
        overwrite(fd, 0, size, 16384, &d);
    else
        flip_bits(fd, 0, size, dice_between(&d, 1, 200), &d);
    close(fd);
    return true;
}

bool disk_rot(struct house *h, uint64_t salt)
{
    struct dice d = {salt};
    char path[200];
    off_t size;
    if (!some_file(h, &d, path, sizeof path, &size))
        return false;
    if (dice_one_in(&d, 20))
        return unlink(path) == 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (dice_one_in(&d, 2))
        flip_bits(fd, SWAP_EXTENTS, size, dice_between(&d, 1, 400), &d);
    else
        for (unsigned i = dice_between(&d, 1, 8); i; i--)
            overwrite(fd, SWAP_EXTENTS, size, 8192, &d);
    close(fd);
    return true;
}

bool disk_within_budget(struct house *h)
{
    static const char *const stores[] = {"blocks", "snapshots"};
    uint64_t budget = h->plan->path_kib * 1024ull;
    bool good = true;
    for (uint32_t i = 0; i < h->plan->paths; i++) {
        char path[200];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s.prefixd", h->path[i], stores[0]);
        if (stat(path, &st) || (uint64_t)st.st_size <= budget)
            continue;
        stage_find(h->stage, "%s has %llu bytes, and %llu are its budget", path,
                   (unsigned long long)st.st_size, (unsigned long long)budget);
        good = false;
    }
    return good;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static int receive_fd(int from)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    char byte;
    int fd = -1;
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

void disk_filter(int to)
{
    int listener = disk_calls_listen();
    if (listener < 0 || !pass_descriptors(to, "f", 1, &listener, 1)) {
        dprintf(STDERR_FILENO, "no listener for system calls: %s\n", strerror(errno));
        _exit(97);
    }
    close(listener);
}

/* How many bytes are asked for; 0: cannot be told. */
static size_t asked_for(const struct seccomp_notif *call)
{
    struct iovec theirs;
    struct iovec to = {&theirs, sizeof theirs};
    struct iovec from = {(void *)(uintptr_t)call->data.args[1], sizeof theirs};
    if (call->data.args[2] != 1 ||
        process_vm_readv((pid_t)call->pid, &to, 1, &from, 1, 0) != (ssize_t)sizeof theirs)
        return 0;
    return theirs.iov_len;
}

static bool may_lie(const struct seccomp_notif *call)
{
    return (int64_t)call->data.args[3] >= SWAP_EXTENTS && call->data.args[5] == 0;
}

static bool happens(struct dice *d, const uint32_t *per_mille)
{
    return dice_below(d, 1000) < shm_load(per_mille);
}

static struct seccomp_notif_resp decide(struct stage *s, struct dice *d,
                                        const struct seccomp_notif *call)
{
    struct seccomp_notif_resp answer = {.id = call->id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    bool write = call->data.nr == __NR_pwritev2;
    size_t n = may_lie(call) && happens(d, &s->lies) ? asked_for(call) : 0;
    if (happens(d, &s->delays))
        nap_us(dice_below(d, DELAY_MAX_US));
    if (n) {
        answer.flags = 0;
        answer.val = (int64_t)n;
    } else if (happens(d, write ? &s->write_faults : &s->read_faults)) {
        answer.flags = 0;
        answer.error = -EIO;
    } else if (write && happens(d, &s->full)) {
        answer.flags = 0;
        answer.error = -ENOSPC;
    }
    if (!answer.flags)
        tally_add(&s->disk_faults, 1);
    return answer;
}

pid_t disk_device(int from, struct stage *s, uint64_t seed)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "chaos-device");
    if (getppid() != parent)
        _exit(98);
    struct dice d = {seed};
    int listener = receive_fd(from);
    while (listener >= 0) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        struct seccomp_notif call = {0};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            break;
        if (p.revents & POLLHUP && !(p.revents & POLLIN))
            break;
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
            continue; /* the caller is dead */
        struct seccomp_notif_resp answer = decide(s, &d, &call);
        (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    _exit(0);
}
