#include "tools/raw_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FDS_MAX = 3 + DEVICES_MAX, SPINS_MAX = 1 << 28 };

/* The WELCOME and its descriptors; n of them, or -1. */
static int receive_welcome(int socket, struct welcome *welcome, int fd[FDS_MAX])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec io = {welcome, sizeof *welcome};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != sizeof *welcome)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS)
        return 0;
    size_t bytes = c->cmsg_len - CMSG_LEN(0);
    memcpy(fd, CMSG_DATA(c), bytes);
    return (int)(bytes / sizeof(int));
}

static bool map(struct raw_channel *raw, const struct welcome *w, const int *fd)
{
    uint64_t bytes = channel_bytes(w->ring_entries, w->arena_bytes);
    if (segment_map(&raw->request, fd[0], SEGMENT_SHARED, bytes, true) != 0 ||
        segment_map(&raw->completion, fd[1], SEGMENT_DAEMON, bytes, false) != 0 ||
        segment_map(&raw->index, fd[2], SEGMENT_DAEMON, w->index_bytes, false) != 0)
        return false;
    uint8_t *mine = raw->request.base;
    const uint8_t *theirs = raw->completion.base;
    struct channel_words *out = (struct channel_words *)(void *)(mine + CHANNEL_WORDS);
    const struct channel_words *in =
        (const struct channel_words *)(const void *)(theirs + CHANNEL_WORDS);
    raw->requests = (struct ring_writer){.entries = mine + CHANNEL_RING,
                                         .shared_tail = &out->tail,
                                         .shared_head = &in->head,
                                         .size = w->ring_entries};
    raw->completions = (struct ring_reader){.entries = theirs + CHANNEL_RING,
                                            .shared_head = &out->head,
                                            .shared_tail = &in->tail,
                                            .size = w->ring_entries};
    return true;
}

int raw_ask(const struct tool *t, struct raw_channel *raw, struct welcome *w)
{
    struct hello hello = {.magic = HELLO_MAGIC,
                          .abi = PFX_ABI_VERSION,
                          .kind = HELLO_WORKER,
                          .format = LAYOUT_FORMAT,
                          .name = "prefixctl"};
    int fd[FDS_MAX], n = -1;
    pid_t pid;
    *w = (struct welcome){0};
    *raw = (struct raw_channel){.request.fd = -1, .completion.fd = -1, .index.fd = -1};
    raw->fd = tool_connect(t, &pid);
    if (raw->fd < 0)
        return EXIT_DAEMON;
    fcntl(raw->fd, F_SETFL, 0);
    struct pollfd answer = {.fd = raw->fd, .events = POLLIN};
    if (send(raw->fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
        if (poll(&answer, 1, TOOL_TIMEOUT_MS) == 0) {
            raw_detach(raw);
            return tool_fail_silent(t, pid, TOOL_TIMEOUT_MS);
        }
        n = receive_welcome(raw->fd, w, fd);
    }
    bool refused = n == 0 && w->status < 0, good = n >= 3 && w->status == 0 && map(raw, w, fd);
    for (int i = 0; i < n; i++)
        close(fd[i]);
    w->why[sizeof w->why - 1] = '\0';
    if (!good)
        raw_detach(raw);
    return good || refused ? EXIT_GOOD
                           : tool_fail(EXIT_DAEMON,
                                       "daemon %d at %s gave no channel; its log says "
                                       "why.",
                                       pid, t->socket);
}

bool raw_attach(const struct tool *t, struct raw_channel *raw)
{
    struct welcome w;
    if (raw_ask(t, raw, &w) != EXIT_GOOD)
        return false;
    if (w.status != 0)
        tool_fail(0, "the daemon gave no channel: %s.", w.why);
    return w.status == 0;
}

void raw_detach(struct raw_channel *raw)
{
    struct segment *s[] = {&raw->request, &raw->completion, &raw->index};
    if (raw->fd < 0)
        return;
    for (int i = 0; i < 3; i++)
        if (s[i]->base)
            segment_free(s[i]);
    close(raw->fd);
    raw->fd = -1;
}

bool raw_round_trip(struct raw_channel *raw)
{
    const struct index_header *h = raw->index.base;
    struct request request = {.op = OP_NOP, .tag = ++raw->tag};
    struct wire_completion answer;
    if (ring_claim(&raw->requests) != RING_OK)
        return tool_fail(0, "the request ring is full or broken."), false;
    ring_post(&raw->requests, &request);
    if (doze_must_wake(&h->doze, &raw->answered)) {
        static const uint8_t wake = WAKE;
        send(raw->fd, &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    for (uint32_t spins = 0; spins < SPINS_MAX; spins++) {
        if (ring_peek(&raw->completions, &answer) == RING_OK) {
            ring_drop(&raw->completions);
            return answer.tag == raw->tag;
        }
        cpu_relax();
    }
    return tool_fail(0, "the daemon does not answer an empty request."), false;
}
