/*
 * Attaching: options, handshake, mappings; and the way back.
 *
 * Every descriptor is checked (seals, size) before it is mapped and closed once it is; the mapping
 * is what we keep. Whatever fails, all that was taken is given back and a sentence says why.
 */
#include "client/attach.h"
#include "kernels/device.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 5000,
    ENDS_MS = 100, /* from the loss of a killed daemon's memory to its hang-up */
    BYE_MS = 200,  /* how long pfx_close waits for the daemon to have given back */
};

static_assert(DEVICES_MAX < 64, "a bit each in map_devices");

#define SOCKET_PATH_ROOM sizeof((struct sockaddr_un *)0)->sun_path

/* ---- options ----------------------------------------------------------------------- */

/* As check_in, when there is no connection yet. */
static int open_check_in(const void *in, size_t known, const char *what)
{
    struct pfx nobody = {0};
    int status = check_in(&nobody, in, known);
    return status ? refuse(status, "%s: %s", what, nobody.why) : 0;
}

static int layout_check(const struct pfx_layout *l)
{
    if (!l)
        return 0;
    int status = open_check_in(l, sizeof *l, "layout");
    if (status)
        return status;
    if (l->reserved)
        return refuse(PFX_EINVAL, "layout: a reserved field is not 0");
    if (l->block_tokens == 0 || l->n_devices == 0)
        return refuse(PFX_EINVAL, "layout: block_tokens and n_devices are at least 1");
    return 0;
}

static int options_check(const struct pfx_options *o, struct hello *h)
{
    int status = open_check_in(o, sizeof *o, "options");
    if (status)
        return status;
    if (o->reserved)
        return refuse(PFX_EINVAL, "options: a reserved field is not 0");
    uint32_t n = o->ring_entries;
    if (n > RING_MAX || (n & (n - 1)))
        return refuse(PFX_EINVAL, "ring_entries: %u is not a power of two up to %d", n, RING_MAX);
    if (o->arena_bytes > ARENA_MAX)
        return refuse(PFX_EINVAL, "arena_bytes: %u is more than %d", o->arena_bytes, ARENA_MAX);
    if (o->socket_path && strlen(o->socket_path) >= SOCKET_PATH_ROOM)
        return refuse(PFX_EINVAL, "socket_path: %s is longer than the %zu bytes of a socket's name",
                      o->socket_path, SOCKET_PATH_ROOM - 1);
    if (o->name && strlen(o->name) >= sizeof h->name)
        return refuse(PFX_EINVAL, "name: more than 31 bytes");
    if (o->group && strlen(o->group) >= sizeof h->group)
        return refuse(PFX_EINVAL, "group: more than 63 bytes");
    if (o->map_devices != PFX_MAP_NONE && o->map_devices >> DEVICES_MAX)
        return refuse(PFX_EINVAL, "map_devices: a pool has at most %d devices", DEVICES_MAX);
    return layout_check(o->layout);
}

static void hello_fill(const struct pfx_options *o, uint32_t abi, struct hello *h)
{
    *h = (struct hello){
        .magic = HELLO_MAGIC,
        .abi = abi,
        .kind = HELLO_WORKER,
        .format = LAYOUT_FORMAT,
        .ring_entries = o->ring_entries && o->ring_entries < RING_MIN ? RING_MIN : o->ring_entries,
        .arena_bytes = o->arena_bytes && o->arena_bytes < ARENA_MIN ? ARENA_MIN : o->arena_bytes,
        .maps = o->map_devices == PFX_MAP_NONE  ? 0
                : o->map_devices == PFX_MAP_ALL ? UINT64_MAX
                                                : o->map_devices,
    };
    if (o->name)
        memcpy(h->name, o->name, strlen(o->name));
    if (o->group)
        memcpy(h->group, o->group, strlen(o->group));
    const struct pfx_layout *l = o->layout;
    if (!l)
        return;
    h->has_layout = 1;
    h->layout = (struct wire_layout){
        .block_tokens = l->block_tokens,
        .n_devices = l->n_devices,
        .block_bytes = l->block_bytes,
        .snapshot_bytes = l->snapshot_bytes,
    };
    memcpy(h->layout.model_digest, l->model_digest, sizeof h->layout.model_digest);
}

/* ---- mappings ----------------------------------------------------------------------------- */

static int map_region(struct segment *s, int fd, enum segment_kind kind, uint64_t bytes,
                      bool writable, const char *what)
{
    int rc = segment_map(s, fd, kind, bytes, writable);
    if (rc == 0)
        return 0;
    const char *why = rc == -EPERM    ? "it is not sealed"
                      : rc == -EINVAL ? "its size is not the one announced"
                                      : strerror(-rc);
    return refuse(rc == -ENOMEM ? PFX_EAGAIN : PFX_EVERSION, "the %s could not be mapped: %s", what,
                  why);
}

static bool channel_right(const struct segment *s, const struct welcome *w)
{
    const struct channel_header *h = s->base;
    return h->magic == CHANNEL_MAGIC && h->format == LAYOUT_FORMAT && h->epoch == w->epoch &&
           h->ring_entries == w->ring_entries && h->arena_bytes == w->arena_bytes;
}

static void channel_begin(struct pfx *c, const struct welcome *w)
{
    uint8_t *out = c->request_region.base, *in = c->completion_region.base;
    struct channel_words *ours = (void *)(out + CHANNEL_WORDS);
    const struct channel_words *theirs = (const void *)(in + CHANNEL_WORDS);
    uint32_t n = w->ring_entries;
    c->ring_entries = n;
    c->requests = (struct ring_writer){.entries = out + CHANNEL_RING,
                                       .shared_tail = &ours->tail,
                                       .shared_head = &theirs->head,
                                       .size = n};
    c->completions = (struct ring_reader){.entries = in + CHANNEL_RING,
                                          .shared_head = &ours->head,
                                          .shared_tail = &theirs->tail,
                                          .size = n};
    c->doze = &ours->doze;
    c->out_bytes = out + channel_arena_offset(n);
    c->in_bytes = in + channel_arena_offset(n);
    arena_init(&c->out, w->arena_bytes);
    arena_init(&c->in, w->arena_bytes);
}

static int map_channel(struct pfx *c, const struct welcome *w, const int *fd)
{
    uint64_t bytes = channel_bytes(w->ring_entries, w->arena_bytes);
    int status = map_region(&c->request_region, fd[0], SEGMENT_SHARED, bytes, true, "request ring");
    if (status == 0)
        status = map_region(&c->completion_region, fd[1], SEGMENT_DAEMON, bytes, false,
                            "completion ring");
    if (status == 0)
        status =
            map_region(&c->index_region, fd[2], SEGMENT_DAEMON, w->index_bytes, false, "index");
    if (status)
        return status;
    if (!channel_right(&c->request_region, w) || !channel_right(&c->completion_region, w) ||
        !index_view_init(&c->index, c->index_region.base, w->index_bytes) ||
        c->index.epoch != w->epoch)
        return refuse(PFX_EVERSION, "the daemon's regions are not of this format");
    channel_begin(c, w);
    return 0;
}

static int map_pool(struct pfx *c, const struct welcome *w, const int *fd, uint64_t which)
{
    uint32_t n = w->layout.n_devices;
    if (which == PFX_MAP_NONE)
        return 0;
    if (which >> n)
        return refuse(PFX_EINVAL, "map_devices: the pool has %u devices", n);
    for (uint32_t i = 0; i < n; i++) {
        char why[400];
        if (which != PFX_MAP_ALL && !(which >> i & 1))
            continue;
        c->devices[i] = device_import(&w->device[i], fd[i], why, sizeof why);
        if (!c->devices[i] && channel_ends(c, ENDS_MS))
            return refuse(PFX_EGONE, "the daemon ended while this process attached");
        if (!c->devices[i])
            return refuse(PFX_EAGAIN, "device %u: %s", i, why);
    }
    c->block_stride = w->block_stride;
    c->slot_stride = w->slot_stride;
    return 0;
}

static void geometry_fill(struct pfx *c, const struct welcome *w)
{
    c->geometry = (struct pfx_geometry){
        .size = sizeof c->geometry,
        .n_blocks = w->n_blocks,
        .layout = {.size = sizeof c->geometry.layout,
                   .block_tokens = w->layout.block_tokens,
                   .block_bytes = w->layout.block_bytes,
                   .snapshot_bytes = w->layout.snapshot_bytes,
                   .n_devices = w->layout.n_devices},
        .n_slots = w->n_slots,
        .n_disk_blocks = w->n_disk,
        .epoch = w->epoch,
        .active = w->active,
    };
    memcpy(c->geometry.layout.model_digest, w->layout.model_digest, 32);
}

/* ---- open, close ----------------------------------------------------------------------------- */

static struct pfx *pfx_new(const struct pfx_options *o)
{
    struct pfx *c = calloc(1, sizeof *c);
    void *page =
        mmap(NULL, REGION_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!c || page == MAP_FAILED) {
        free(c);
        if (page != MAP_FAILED)
            munmap(page, REGION_PAGE);
        return NULL;
    }
    (void)madvise(page, REGION_PAGE, MADV_WIPEONFORK);
    *(uint32_t *)page = 1;
    c->here = page;
    c->why = "no call has failed";
    c->fd = c->event_fd = c->epoll_fd = -1;
    c->request_region.fd = c->completion_region.fd = c->index_region.fd = -1;
    c->timeout_ns = (o->timeout_ms ? o->timeout_ms : TIMEOUT_MS) * 1000000ull;
    return c;
}

/* Four times the ring: asynchronous calls under way or done, those handed out, timed-out ones that
 * are still out, and what the library sends for itself. */
static bool calls_init(struct pfx *c)
{
    uint32_t n = 4 * c->ring_entries + 4, tags = 8 * c->ring_entries;
    TAILQ_INIT(&c->free);
    TAILQ_INIT(&c->pending);
    TAILQ_INIT(&c->stalled);
    TAILQ_INIT(&c->done);
    TAILQ_INIT(&c->handed);
    c->calls = calloc(n, sizeof *c->calls);
    c->by_tag = malloc(tags * sizeof *c->by_tag);
    if (!c->calls || !c->by_tag)
        return false;
    memset(c->by_tag, 0xff, tags * sizeof *c->by_tag);
    c->n_calls = n;
    c->tag_mask = tags - 1;
    for (uint32_t i = 0; i < n; i++)
        TAILQ_INSERT_TAIL(&c->free, &c->calls[i], link);
    return true;
}

static void calls_deinit(struct pfx *c)
{
    for (uint32_t i = 0; i < c->n_calls; i++) {
        struct call *call = &c->calls[i];
        if (call->op == OP_LOOKUP && call->state != CALL_FREE && call->look.fresh)
            lease_free(c, call->look.fresh);
        free(call->copy);
        free(call->own_ids);
    }
    free(c->calls);
    free(c->by_tag);
}

/* All that is ours alone; in a forked child that is all there is. */
static void pfx_free(struct pfx *c)
{
    calls_deinit(c);
    leases_forget(c);
    free(c->spaces.slot);
    free(c->scratch);
    if (c->fd >= 0)
        close(c->fd);
    if (c->event_fd >= 0)
        close(c->event_fd);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    munmap((void *)(uintptr_t)c->here, REGION_PAGE);
    free(c);
}

/* False: a GPU's driver has refused, and its work may still write. */
static bool unmap_pool(struct pfx *c)
{
    bool over = true;
    for (uint32_t i = 0; i < DEVICES_MAX; i++)
        over &= device_free(c->devices[i]);
    return over;
}

static void unmap_channel(struct pfx *c)
{
    segment_free(&c->request_region);
    segment_free(&c->completion_region);
    segment_free(&c->index_region);
}

static int attach(struct pfx *c, const struct pfx_options *o, const struct hello *h)
{
    struct welcome w = {0};
    struct received r = {.n = 0};
    int status = socket_open(c, o);
    if (status == 0)
        status = handshake(c, h, &w, &r);
    if (status == 0 && !welcome_right(&w, r.n))
        status = refuse(PFX_EVERSION, "the daemon's welcome contradicts itself");
    if (status == 0)
        status = map_channel(c, &w, r.fd);
    if (status == 0)
        status = map_pool(c, &w, r.fd + 3, o->map_devices);
    received_close(&r);
    if (status)
        return status;
    geometry_fill(c, &w);
    if (o->ring_entries)
        c->ring_entries = o->ring_entries; /* the ring may be larger than what was asked for */
    c->has_mates = o->group && o->group[0];
    c->spin_ns = (o->spin_us ? o->spin_us : w.spin_us) * 1000ull;
    return calls_init(c) ? 0 : refuse(PFX_EAGAIN, "there is no memory for another connection");
}

/* Only after the pool was unmapped, which waits for what a GPU still does with it: the daemon gives
 * our pages to others, and may free the memory that we had imported. Without it, it waits for our
 * process to end. */
static bool say_bye(struct pfx *c)
{
    const uint8_t bye = BYE;
    return c->fd >= 0 && send(c->fd, &bye, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

int pfx_open_abi(uint32_t abi_version, const struct pfx_options *options, pfx **out)
{
    static const struct pfx_options defaults = {.size = sizeof defaults};
    struct hello h;
    if (!out)
        return refuse(PFX_EINVAL, "out is NULL");
    *out = NULL;
    const struct pfx_options *o = options ? options : &defaults;
    int status = options_check(o, &h);
    if (status)
        return status;
    if (abi_version != PFX_ABI_VERSION)
        return refuse(PFX_EVERSION, "the caller was compiled for ABI %u, this library is %u",
                      abi_version, PFX_ABI_VERSION);
    struct pfx *c = pfx_new(o);
    if (!c)
        return refuse(PFX_EAGAIN, "there is no memory for another connection");
    hello_fill(o, abi_version, &h);
    status = attach(c, o, &h);
    if (status) {
        if (unmap_pool(c))
            (void)say_bye(c); /* it may have attached us before something failed here */
        unmap_channel(c);
        pfx_free(c);
        return status;
    }
    *out = c;
    return 0;
}

/* Until the daemon has hung up, within a bound: then all is given back. */
static void await_end(struct pfx *c)
{
    uint64_t until = clock_ns() + BYE_MS * 1000000ull, now;
    while ((now = clock_ns()) < until) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int ms = (int)((until - now + 999999) / 1000000);
        if (poll(&p, 1, ms) > 0 && p.revents & (POLLHUP | POLLERR))
            return;
        channel_drain(c);
    }
}

void pfx_close(pfx *c)
{
    if (!c)
        return;
    if (check_here(c) == 0) {
        if (unmap_pool(c) && say_bye(c))
            await_end(c);
        unmap_channel(c);
    }
    pfx_free(c);
}

const char *pfx_why(const pfx *c)
{
    if (c && check_here(c))
        return "this connection belongs to the process that opened it, not to a forked child; open "
               "one here";
    return c ? c->why : refuse_why();
}
