#include "tests/raw.h"
#include "client/prefixd.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int raw_connect(const struct host *h)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, h->socket);
    REQUIRE_EQ(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

struct hello raw_hello(const char *name)
{
    struct hello hello = {.magic = HELLO_MAGIC,
                          .abi = PFX_ABI_VERSION,
                          .kind = HELLO_WORKER,
                          .format = LAYOUT_FORMAT};
    strncpy(hello.name, name, sizeof hello.name - 1);
    return hello;
}

bool raw_greet(struct raw *r, const struct host *h, const struct hello *hello)
{
    memset(r, 0, sizeof *r);
    r->fd = raw_connect(h);
    REQUIRE_EQ(send(r->fd, hello, sizeof *hello, MSG_NOSIGNAL), sizeof *hello);
    char control[CMSG_SPACE(sizeof r->fds)];
    struct iovec part = {&r->welcome, sizeof r->welcome};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    REQUIRE_EQ(poll(&p, 1, 10000 * SLOW), 1);
    ssize_t n = recvmsg(r->fd, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return false;
    REQUIRE_EQ(n, sizeof r->welcome);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(r->fds, CMSG_DATA(c), bytes);
        r->n_fds = (unsigned)(bytes / sizeof r->fds[0]);
    }
    return true;
}

void raw_map(struct raw *r)
{
    const struct welcome *w = &r->welcome;
    uint64_t bytes = channel_bytes(w->ring_entries, w->arena_bytes);
    REQUIRE_EQ(r->n_fds, w->n_fds);
    REQUIRE_EQ(segment_map(&r->request, r->fds[0], SEGMENT_SHARED, bytes, true), 0);
    REQUIRE_EQ(segment_map(&r->completion, r->fds[1], SEGMENT_DAEMON, bytes, false), 0);
    REQUIRE_EQ(segment_map(&r->index, r->fds[2], SEGMENT_DAEMON, w->index_bytes, false), 0);
    if (w->device[0].kind == DEVICE_HOST)
        REQUIRE_EQ(segment_map(&r->pool, r->fds[3], SEGMENT_SHARED, w->device[0].bytes, true), 0);
    uint8_t *mine = r->request.base;
    uint8_t *theirs = r->completion.base;
    r->words = (struct channel_words *)(void *)(mine + CHANNEL_WORDS);
    r->peer = (const struct channel_words *)(const void *)(theirs + CHANNEL_WORDS);
    r->arena = mine + channel_arena_offset(w->ring_entries);
    r->answers = theirs + channel_arena_offset(w->ring_entries);
    r->out = (struct ring_writer){.entries = mine + CHANNEL_RING,
                                  .shared_tail = &r->words->tail,
                                  .shared_head = &r->peer->head,
                                  .size = w->ring_entries};
    r->in = (struct ring_reader){.entries = theirs + CHANNEL_RING,
                                 .shared_head = &r->words->head,
                                 .shared_tail = &r->peer->tail,
                                 .size = w->ring_entries};
    REQUIRE(index_view_init(&r->view, r->index.base, r->index.bytes));
}

void raw_open(struct raw *r, struct host *h, const char *name)
{
    struct hello hello = raw_hello(name);
    REQUIRE(raw_greet(r, h, &hello));
    REQUIRE_MSG(r->welcome.status == 0, "refused: %s", r->welcome.why);
    raw_map(r);
}

void raw_close(struct raw *r)
{
    struct segment *all[] = {&r->request, &r->completion, &r->index, &r->pool};
    for (unsigned i = 0; i < 4; i++)
        if (all[i]->base) {
            all[i]->fd = -1;
            segment_free(all[i]);
        }
    for (unsigned i = 0; i < r->n_fds; i++)
        close(r->fds[i]);
    close(r->fd);
}

bool raw_post(struct raw *r, const struct request *rq)
{
    if (ring_claim(&r->out) != RING_OK)
        return false;
    ring_post(&r->out, rq);
    if (doze_must_wake(&r->view.header->doze, &r->answered)) {
        char wake = WAKE;
        send(r->fd, &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return true;
}

bool raw_take(struct raw *r, struct wire_completion *out, int ms)
{
    uint64_t start = now_us(), now = start;
    while (ring_peek(&r->in, out) != RING_OK) {
        if (now > start + (uint64_t)ms * 1000)
            return false;
        if (now < start + 1000)
            sched_yield();
        else
            sleep_us(100);
        now = now_us();
    }
    ring_drop(&r->in);
    return true;
}

struct wire_completion raw_call(struct raw *r, struct request rq)
{
    struct wire_completion c;
    rq.tag = ++r->tag;
    REQUIRE(raw_post(r, &rq));
    REQUIRE_MSG(raw_take(r, &c, 5000 * SLOW), "op %u was not answered", rq.op);
    REQUIRE_EQ(c.tag, rq.tag);
    REQUIRE_EQ(c.op, rq.op);
    return c;
}

bool raw_ended(struct raw *r, int ms)
{
    uint64_t until = now_ms() + (uint64_t)ms;
    for (;;) {
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        poll(&p, 1, 20);
        char byte;
        ssize_t n = recv(r->fd, &byte, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return true;
        if (now_ms() > until)
            return false;
    }
}

uint64_t raw_lease(struct raw *r)
{
    struct wire_completion c = raw_call(r, (struct request){.op = OP_LOOKUP, .flags = RF_NO_MATCH});
    REQUIRE_EQ(c.status, 0);
    return c.lease;
}

struct wire_completion raw_reserve(struct raw *r, uint64_t lease, uint32_t n)
{
    return raw_call(r, (struct request){.op = OP_RESERVE,
                                        .lease = lease,
                                        .reserve = {.n = n, .arena = 0, .room = n}});
}
