/*
 * Hostile control sockets: greetings that are cut, too long, wrong or none, with descriptors that
 * nobody asked for, and everything that a worker can do with those it was given.
 *
 *      one byte: which daemon | struct step, struct step, ...
 */
#include "client/prefixd.h"
#include "tests/fuzz/house.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

const char fuzz_name[] = "handshake";

enum { HEAD = 32, LINES = 6, STEPS_MOST = 64, PACKET = 1024, FDS_MOST = 253 };

enum {
    DO_CONNECT, /* and no more           */
    DO_HELLO,   /* of a worker           */
    DO_ADMIN,   /* of a tool             */
    DO_PACKET,  /* anything              */
    DO_ASK,     /* as a tool             */
    DO_TAKE,    /* what the daemon said  */
    DO_MISUSE,  /* of the descriptors    */
    DO_CLOSE,
    DO_SHUTDOWN,
    DO_ROUNDS,
    DO_LOOK,
    DO_KINDS
};

struct step {
    uint8_t what, line; /* which connection */
    uint16_t length;    /* of a packet: 0: as it should be */
    uint16_t fds;       /* that come with it */
    uint16_t patches;   /* words that are something else */
    uint32_t at[3];
    uint32_t word[3];
};
static_assert(sizeof(struct step) == 32, "no holes");

struct scene {
    struct house h;
    struct honest honest;
    bool honest_there;
    struct raw line[LINES];
    bool open[LINES];
};

/* ---- packets ---------------------------------------------------------------------------- */

static int spare_fd(unsigned i)
{
    static const char *const paths[] = {"/dev/null", "/proc/self/exe", "/", "/dev/zero"};
    return i % 5 == 4 ? memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                      : open(paths[i % 5 % 4], O_RDONLY | O_CLOEXEC);
}

/* With n descriptors, all the same one. */
static void send_with(int fd, const void *bytes, size_t n, unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(FDS_MOST * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, n};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    int one = n_fds ? spare_fd(n_fds) : -1, all[FDS_MOST];
    for (unsigned i = 0; i < n_fds; i++)
        all[i] = one;
    if (n_fds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), all, n_fds * sizeof(int));
    }
    (void)sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (one >= 0)
        close(one);
}

static void send_packet(struct raw *r, const struct step *p, const void *good, size_t n)
{
    uint8_t bytes[PACKET] = {0};
    memcpy(bytes, good, n);
    for (unsigned i = 0; i < p->patches % 4; i++)
        memcpy(bytes + p->at[i] % (n / 4) * 4, &p->word[i], 4);
    if (p->length)
        n = p->length % (PACKET + 1);
    send_with(r->fd, bytes, n, p->fds % (FDS_MOST + 1));
}

static void say_hello(struct scene *s, struct raw *r, const struct step *p)
{
    static const char *const groups[] = {"", "a", "b", ""};
    struct hello hello = raw_hello("stranger");
    hello.kind = p->what == DO_ADMIN ? HELLO_ADMIN : HELLO_WORKER;
    hello.arena_bytes = ARENA_MIN;
    hello.ring_entries = RING_MIN;
    strcpy(hello.group, groups[p->at[0] % 4]);
    hello.layout = (struct wire_layout){.block_tokens = 4, .n_devices = 1, .block_bytes = 64};
    if (s->h.d.carved)
        hello.layout = s->h.d.layout;
    hello.has_layout = !s->h.d.carved || p->at[1] % 2;
    send_packet(r, p, &hello, sizeof hello);
}

/* ---- descriptors ------------------------------------------------------------------------ */

static void refused(const char *what, int result)
{
    REQUIRE_MSG(result == -1, "%s was possible", what);
}

/* Index and completions: nobody else writes there, by whatever way. */
static void misuse_ours(int fd)
{
    char path[64];
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE_MSG(at == MAP_FAILED, "a region of the daemon's was mapped writable");
    at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    refused("mprotect", mprotect(at, 4096, PROT_READ | PROT_WRITE));
    munmap(at, 4096);
    refused("pwrite", (int)pwrite(fd, "x", 1, 0));
    refused("a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again < 0)
        return;
    at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    REQUIRE_MSG(at == MAP_FAILED, "a region of the daemon's was opened anew and mapped writable");
    refused("pwrite after another open", (int)pwrite(again, "x", 1, 0));
    refused("ftruncate after another open", ftruncate(again, 0));
    close(again);
}

/* What is common to all regions: their length and their seals stay. */
static void misuse(int fd, bool ours, const struct step *p)
{
    static const int seals[] = {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE,
                                0x10 /* FUTURE_WRITE */};
    struct stat before, after;
    int kept = fcntl(fd, F_GET_SEALS);
    REQUIRE(fstat(fd, &before) == 0 && kept >= 0);
    for (size_t i = 0; i < sizeof seals / sizeof seals[0]; i++)
        refused("another seal", fcntl(fd, F_ADD_SEALS, seals[i]));
    refused("ftruncate", ftruncate(fd, 0));
    refused("ftruncate", ftruncate(fd, before.st_size * 2));
    refused("ftruncate", ftruncate(fd, p->at[0] == (uint64_t)before.st_size ? 1 : p->at[0]));
    refused("fallocate", fallocate(fd, 0, before.st_size, 4096));
    (void)fcntl(fd, F_SETFL, (int)p->word[0] & (O_APPEND | O_NONBLOCK | O_DIRECT));
    (void)fcntl(fd, F_SETFD, 0);
    (void)fcntl(fd, F_SETLEASE, F_RDLCK);
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    (void)fchmod(fd, 0);
    if (ours)
        misuse_ours(fd);
    REQUIRE(fstat(fd, &after) == 0);
    REQUIRE_EQ(after.st_size, before.st_size);
    REQUIRE_EQ(fcntl(fd, F_GET_SEALS), kept);
}

static void misuse_socket(int fd, const struct step *p)
{
    int big = (int)p->word[1];
    (void)fcntl(fd, F_SETFL, (int)p->word[0] & (O_NONBLOCK | O_ASYNC));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
    (void)setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &big, sizeof big);
}

static void misuse_all(struct raw *r, const struct step *p)
{
    misuse_socket(r->fd, p);
    for (unsigned i = 0; i < r->n_fds; i++)
        misuse(r->fds[i], i == 1 || i == 2, p);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void hang_up(struct scene *s, unsigned i)
{
    struct raw *r = &s->line[i];
    for (unsigned k = 0; k < r->n_fds; k++)
        close(r->fds[k]);
    close(r->fd);
    s->open[i] = false;
    memset(r, 0, sizeof *r);
}

/* Rows of a tool come as a descriptor too: sealed as well. */
static void take(struct raw *r, const struct step *p)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    uint8_t bytes[512];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (!r->n_fds && recv(r->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC) ==
                         (ssize_t)sizeof r->welcome) {
        (void)guest_welcome(r);
        REQUIRE(r->welcome.magic == HELLO_MAGIC);
        REQUIRE(memchr(r->welcome.why, 0, sizeof r->welcome.why));
        REQUIRE_EQ(r->n_fds, r->welcome.n_fds);
        REQUIRE(!r->n_fds || r->welcome.status == 0);
        return;
    }
    m.msg_control = &control;
    m.msg_controllen = sizeof control;
    if (recvmsg(r->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
        return;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int fd;
        if (c->cmsg_type != SCM_RIGHTS)
            continue;
        REQUIRE_EQ(c->cmsg_len, CMSG_LEN(sizeof fd));
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        misuse(fd, true, p);
        close(fd);
    }
}

static void meet_honest(struct scene *s)
{
    struct raw probe;
    if (s->honest_there || !s->h.d.carved || s->h.d.n_blocks < 2 * HONEST_BLOCKS)
        return;
    for (int i = 0; i < 2 * LINES; i++) /* what was said before makes room, or takes it */
        house_round(&s->h);
    if (s->h.d.n_sessions >= s->h.options.max_workers) { /* that is the way to be refused */
        REQUIRE(!guest_open(&s->h, &probe, "one too many", "", 0, false));
        return;
    }
    honest_open(&s->h, &s->honest);
    s->honest_there = true;
}

static void do_step(struct scene *s, const struct step *p)
{
    static const char bye = BYE;
    unsigned i = p->line % LINES;
    struct raw *r = &s->line[i];
    struct admin_request rq = {.op = p->at[0] % 5, .reserved = p->at[1] % 4 ? 0 : p->word[1]};
    if (!s->open[i]) {
        memset(r, 0, sizeof *r);
        r->fd = raw_connect(&s->h.host);
        s->open[i] = true;
    }
    switch (p->what % DO_KINDS) {
    case DO_HELLO:
    case DO_ADMIN:
        say_hello(s, r, p);
        break;
    case DO_PACKET:
        send_packet(r, p, p->word, sizeof p->word);
        break;
    case DO_ASK:
        send_packet(r, p, &rq, sizeof rq);
        break;
    case DO_TAKE:
        take(r, p);
        break;
    case DO_MISUSE:
        misuse_all(r, p);
        break;
    case DO_CLOSE:
        if (p->at[0] & 1)
            (void)send(r->fd, &bye, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        hang_up(s, i);
        break;
    case DO_SHUTDOWN:
        (void)shutdown(r->fd, (int)(p->at[0] % 3));
        break;
    case DO_LOOK:
        meet_honest(s);
        break;
    default:
        break;
    }
    if (p->at[2] & 1 || p->what % DO_KINDS == DO_ROUNDS)
        house_round(&s->h);
}

static bool start(struct scene *s, uint8_t which)
{
    static const char *const waits[] = {"--bytes=256K", "--max-workers=4", "--max-leases=16", NULL};
    static const char *const fixed[] = {"--blocks=16",     "--block-tokens=4", "--block-bytes=64",
                                        "--max-workers=4", "--max-leases=16",  NULL};
    static const char *const states[] = {"--blocks=16",         "--block-tokens=2",
                                         "--block-bytes=64",    "--max-workers=3",
                                         "--max-leases=16",     "--snapshots=2",
                                         "--devices=3",         "--snapshot-bytes=64",
                                         "--allow-group=12345", NULL};
    static const char *const *const all[] = {fixed, waits, states, waits};
    static const int on = 1;
    house_hash(UINT64_MAX);
    if (!house_start(&s->h, all[which % 4]))
        return false;
    if (which & 4) /* a kernel that lets descriptors through */
        (void)setsockopt(s->h.d.listen_fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on);
    return true;
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    static struct scene s;
    struct step p;
    memset(&s, 0, sizeof s);
    (void)house_init();
    unsigned fds = count_fds(getpid());
    REQUIRE(start(&s, n ? bytes[0] : 0));
    meet_honest(&s);
    size_t at = HEAD;
    for (unsigned i = 0; at + sizeof p <= n && i < STEPS_MOST; i++, at += sizeof p) {
        memcpy(&p, bytes + at, sizeof p);
        do_step(&s, &p);
        if (s.honest_there && i % 8 == 7)
            honest_look(&s.h, &s.honest);
        if (i % 8 == 3)
            house_audit(&s.h);
    }
    for (unsigned i = 0; i < LINES; i++)
        if (s.open[i])
            hang_up(&s, i);
    for (int i = 0; i < 4; i++)
        house_round(&s.h);
    house_audit(&s.h);
    meet_honest(&s);
    REQUIRE_EQ(s.h.d.n_visitors, 0);
    REQUIRE_EQ(s.h.d.n_sessions, s.honest_there);
    if (s.honest_there) {
        honest_work(&s.h, &s.honest);
        honest_close(&s.h, &s.honest);
    }
    house_stop(&s.h);
    REQUIRE_EQ(count_fds(getpid()), fds);
}

/* ---- seeds ---------------------------------------------------------------------------------- */

static void make_step(uint8_t *unit, struct rng *r)
{
    struct step p = {.what = (uint8_t)rng_below(r, DO_KINDS),
                     .line = (uint8_t)rng_below(r, LINES),
                     .length = (uint16_t)(rng_below(r, 6) ? 0 : rng_below(r, 600)),
                     .fds = (uint16_t)(rng_below(r, 6) ? 0 : rng_below(r, 254)),
                     .patches = (uint16_t)(rng_below(r, 2) ? 0 : rng_below(r, 4))};
    for (int i = 0; i < 3; i++) {
        p.at[i] = rng_below(r, 64);
        p.word[i] = odd_number(r);
    }
    memcpy(unit, &p, sizeof p);
}

size_t fuzz_seed(unsigned i, uint8_t *to)
{
    static const uint8_t talk[] = {DO_HELLO, DO_TAKE, DO_MISUSE, DO_PACKET, DO_ADMIN,
                                   DO_TAKE,  DO_ASK,  DO_TAKE,   DO_LOOK,   DO_CLOSE};
    struct rng r = {i};
    size_t n = HEAD;
    if (i >= 16)
        return 0;
    memset(to, 0, HEAD);
    to[0] = (uint8_t)i;
    for (size_t k = 0; k < sizeof talk; k++, n += sizeof(struct step)) {
        struct step p = {.what = talk[k], .line = k > 3 && k < 8, .at = {k % 4, 1, 1}};
        memcpy(to + n, &p, sizeof p);
    }
    for (unsigned k = 0; k < 2 * i; k++, n += sizeof(struct step))
        make_step(to + n, &r);
    return n;
}

size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r)
{
    mutate_unit_made(make_step);
    return mutate_units(bytes, n, HEAD, sizeof(struct step), r);
}
