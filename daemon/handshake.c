#include "daemon/handshake.h"

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "shm/clock.h"
#include "shm/status.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REFUSALS_LOGGED = 20, REFUSALS_S = 10 };

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* ---- who ---------------------------------------------------------------------------- */

bool peer_identify(int fd, struct peer *p)
{
    struct ucred cred;
    socklen_t n = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) || n != sizeof cred)
        return false;
    *p = (struct peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
    return true;
}

static bool group_allowed(const struct options *o, gid_t gid)
{
    for (uint32_t i = 0; i < o->n_groups; i++)
        if (o->groups[i] == gid)
            return true;
    return false;
}

static bool any_group_allowed(const struct options *o, int fd)
{
    socklen_t n = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) == 0 || errno != ERANGE)
        return false;
    gid_t *groups = malloc(n);
    bool allowed = false;
    if (groups && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) == 0)
        for (size_t i = 0; i < n / sizeof *groups && !allowed; i++)
            allowed = group_allowed(o, groups[i]);
    free(groups);
    return allowed;
}

bool peer_is_owner(const struct peer *p)
{
    return p->uid == 0 || p->uid == geteuid();
}

bool peer_allowed(const struct options *o, int fd, const struct peer *p)
{
    if (peer_is_owner(p))
        return true;
    for (uint32_t i = 0; i < o->n_users; i++)
        if (o->users[i] == p->uid)
            return true;
    return o->n_groups && (group_allowed(o, p->gid) || any_group_allowed(o, fd));
}

static bool is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

int peer_pidfd(int fd, const struct peer *p)
{
    int pidfd;
    socklen_t n = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
        return pidfd;
    if (is_shortage(errno))
        return -errno;
    if (p->pid <= 0)
        return -ESRCH; /* in another pid namespace, before Linux 6.5 */
    pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (pidfd < 0)
        return is_shortage(errno) ? -errno : -ESRCH;
    /* The number may belong to another process by now, but only if the peer is gone: then its
     * socket has hung up. */
    struct pollfd hung = {.fd = fd};
    if (poll(&hung, 1, 0) != 0) {
        close(pidfd);
        return -ESRCH;
    }
    return pidfd;
}

/* ---- HELLO ---------------------------------------------------------------------------- */

static bool terminated(const char *text, size_t n)
{
    return memchr(text, 0, n) != NULL;
}

int hello_check(const struct hello *h, size_t n, char *why, size_t n_why)
{
    if (n < offsetof(struct hello, kind) || h->magic != HELLO_MAGIC) {
        snprintf(why, n_why, "this is not the hello of a prefixd worker");
        return STATUS_EINVAL;
    }
    if (h->abi != WIRE_ABI || n != sizeof *h || h->format != LAYOUT_FORMAT) {
        snprintf(why, n_why,
                 "the daemon (%s) speaks ABI %u with format %u, the worker ABI %u with format %u; "
                 "install matching versions",
                 PREFIXD_VERSION, WIRE_ABI, LAYOUT_FORMAT, h->abi, h->format);
        return STATUS_EVERSION;
    }
    if (h->kind > HELLO_ADMIN || h->has_layout > 1 || !terminated(h->name, sizeof h->name) ||
        !terminated(h->group, sizeof h->group)) {
        snprintf(why, n_why, "the hello has a field that is out of range");
        return STATUS_EINVAL;
    }
    return 0;
}

static void hex(char to[65], const uint8_t digest[32])
{
    for (int i = 0; i < 32; i++)
        sprintf(to + 2 * i, "%02x", digest[i]);
}

int hello_compare(const struct wire_layout *ours, const struct wire_layout *theirs, char *why,
                  size_t n_why)
{
    const struct {
        const char *name;
        uint64_t ours, theirs;
    } field[] = {
        {"block_tokens", ours->block_tokens, theirs->block_tokens},
        {"block_bytes", ours->block_bytes, theirs->block_bytes},
        {"snapshot_bytes", ours->snapshot_bytes, theirs->snapshot_bytes},
        {"n_devices", ours->n_devices, theirs->n_devices},
    };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (field[i].ours != field[i].theirs) {
            snprintf(why, n_why, "%s: the daemon has %llu, the worker %llu", field[i].name,
                     (unsigned long long)field[i].ours, (unsigned long long)field[i].theirs);
            return STATUS_EMISMATCH;
        }
    if (memcmp(ours->model_digest, theirs->model_digest, sizeof ours->model_digest) == 0)
        return 0;
    char a[65], b[65];
    hex(a, ours->model_digest);
    hex(b, theirs->model_digest);
    snprintf(why, n_why, "model_digest: the daemon (--model) has %s, the worker %s", a, b);
    return STATUS_EMISMATCH;
}

/* ---- WELCOME -------------------------------------------------------------------------- */

struct welcome welcome_of(const struct daemon *d)
{
    struct welcome w = {
        .magic = HELLO_MAGIC,
        .abi = WIRE_ABI,
        .spin_us = d->options->spin_us,
        .epoch = d->epoch,
        .index_bytes = d->index_segment.bytes,
        .n_blocks = d->n_blocks,
        .n_slots = d->n_slots,
        .n_disk = d->header ? d->header->params.n_disk : 0,
        .active = !d->options->null_index,
        .block_stride = d->block_stride,
        .slot_stride = d->slot_stride,
        .layout = d->layout,
    };
    for (uint32_t i = 0; i < d->layout.n_devices; i++)
        w.device[i] = *device_share(d->devices[i]);
    return w;
}

bool welcome_send(int fd, const struct welcome *w, const int *fds, unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE((DEVICES_MAX + 3) * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)w, sizeof *w};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    return sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *w;
}

static void log_refusal(struct daemon *d, const struct peer *p, const char *why)
{
    uint64_t now = clock_ns();
    if (now - d->refused_ns >= REFUSALS_S * 1000000000ull) {
        if (d->n_refused > REFUSALS_LOGGED)
            log_warning("%u more were refused", d->n_refused - REFUSALS_LOGGED);
        d->refused_ns = now;
        d->n_refused = 0;
    }
    if (d->n_refused++ < REFUSALS_LOGGED)
        log_warning("refused process %d of user %u: %s", (int)p->pid, p->uid, why);
    else if (d->n_refused == REFUSALS_LOGGED + 1)
        log_warning("%d refusals within %d seconds: more are only counted", REFUSALS_LOGGED,
                    REFUSALS_S);
}

void welcome_refuse(struct daemon *d, int fd, const struct peer *p, int status, const char *why)
{
    struct welcome w = {.magic = HELLO_MAGIC, .abi = WIRE_ABI, .status = status, .epoch = d->epoch};
    snprintf(w.why, sizeof w.why, "%s", why);
    log_refusal(d, p, why);
    (void)welcome_send(fd, &w, NULL, 0);
}

/* ---- text ------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `at`, 0 if it is none. Overlong forms and surrogates are none. */
static size_t utf8_length(const unsigned char *at)
{
    if (at[0] >= 0x20 && at[0] < 0x7f)
        return 1;
    size_t n = at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (at[0] >= 0xf0 && at[0] < 0xf5)
        n = 4;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xc2 && at[1] < 0xa0) || (at[0] == 0xe0 && at[1] < 0xa0) ||
        (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return n;
}

void text_clean(char *to, const char *from, size_t n)
{
    size_t i = 0;
    while (from[i] && i + 1 < n) {
        size_t length = utf8_length((const unsigned char *)from + i);
        if (length && i + length < n) {
            memcpy(to + i, from + i, length);
            i += length;
        } else {
            to[i++] = '?';
        }
    }
    memset(to + i, 0, n - i);
}
