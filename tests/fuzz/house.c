#include "tests/fuzz/house.h"
#include "client/prefixd.h"
#include "daemon/geometry.h"
#include "shm/status.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUND_NS = 1000000,
    ROUND_CPU_MS = 40 * SLOW,
    WORK_MOST = 1 << 19, /* tokens, of all sessions and in the background */
    OPTIONS = 48,
};

/* ---- what makes an input repeatable -------------------------------------------------- */

static uint64_t clock_ns = 1000000000, hash_mask = UINT64_MAX;
static struct rng random_numbers;
static bool real_time;

/* Every lease that was ever opened by the daemon that runs. */
static struct {
    uint64_t *id;
    size_t n, room;
} opened;

struct lease *__real_lease_open(struct daemon *d, struct session *s, uint32_t space,
                                uint64_t session, uint32_t tag);
struct lease *__wrap_lease_open(struct daemon *d, struct session *s, uint32_t space,
                                uint64_t session, uint32_t tag);
struct lease *__wrap_lease_open(struct daemon *d, struct session *s, uint32_t space,
                                uint64_t session, uint32_t tag)
{
    struct lease *l = __real_lease_open(d, s, space, session, tag);
    if (l && opened.n == opened.room) {
        opened.room = 2 * opened.room + 64;
        opened.id = reallocarray(opened.id, opened.room, sizeof *opened.id);
        REQUIRE(opened.id);
    }
    if (l)
        opened.id[opened.n++] = l->id;
    return l;
}

bool house_lease(uint64_t id)
{
    for (size_t i = opened.n; i-- > 0;)
        if (opened.id[i] == id)
            return true;
    return false;
}

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
__attribute__((visibility("default"))) int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_MONOTONIC || real_time)
        return __real_clock_gettime(id, t);
    *t = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
    return 0;
}

ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = (uint8_t)rng_next(&random_numbers);
    return (ssize_t)n;
}

bool __real_geometry_plan(const struct options *o, const struct wire_layout *layout,
                          struct geometry *g, char *why, size_t n_why);
bool __wrap_geometry_plan(const struct options *o, const struct wire_layout *layout,
                          struct geometry *g, char *why, size_t n_why);
bool __wrap_geometry_plan(const struct options *o, const struct wire_layout *layout,
                          struct geometry *g, char *why, size_t n_why)
{
    bool good = __real_geometry_plan(o, layout, g, why, n_why);
    g->params.hash_mask = hash_mask;
    return good;
}

void house_hash(uint64_t mask)
{
    hash_mask = mask;
}

void house_real_time(void)
{
    real_time = true;
}

void house_wait(uint64_t ns)
{
    clock_ns += ns;
}

/* ---- start and stop --------------------------------------------------------------------- */

static char directory[64];
static pid_t owner;

static void remove_directory(void)
{
    char command[128];
    if (getpid() != owner)
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", directory);
}

const char *house_init(void)
{
    if (directory[0])
        return directory;
    const char *tmp = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/prefixd-fuzz-XXXXXX", tmp ? tmp : "/dev/shm");
    REQUIRE(mkdtemp(directory));
    owner = getpid();
    atexit(remove_directory);
    REQUIRE(freopen("/dev/null", "w", stdout)); /* `ready`, each time */
    return directory;
}

bool house_start_with(struct house *h)
{
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    random_numbers.state = 1;
    opened.n = 0;
    snprintf(h->host.socket, sizeof h->host.socket, "%s/socket", house_init());
    strcpy(h->options.socket, h->host.socket);
    int rc = daemon_start(&h->d, &h->options);
    sigprocmask(SIG_UNBLOCK, &both, NULL); /* they are whoever's who fuzzes */
    if (rc)
        daemon_stop(&h->d);
    return rc == 0;
}

bool house_start(struct house *h, const char *const *options)
{
    char *argv[OPTIONS] = {(char *)(uintptr_t) "prefixd", (char *)(uintptr_t) "--log-level=error",
                           (char *)(uintptr_t) "--socket=/dev/null/none"};
    int n = 3;
    for (; *options && n < OPTIONS - 1; n++)
        argv[n] = (char *)(uintptr_t)*options++;
    return options_read(&h->options, n, argv) == OPTIONS_RUN && house_start_with(h);
}

void house_stop(struct house *h)
{
    daemon_stop(&h->d);
    REQUIRE_EQ(h->d.n_sessions, 0);
    REQUIRE(list_empty(&h->d.groups));
}

/* ---- rounds -------------------------------------------------------------------------------- */

enum { EVENTS = 4096 };

/* The disk's descriptor is ready until disk_step has taken what is there: it is passed by once. */
static void serve_events(struct house *h)
{
    struct epoll_event e;
    int n = 0, disk = 0;
    for (; disk < 2 && epoll_wait(h->d.epoll_fd, &e, 1, 0) == 1 && n < EVENTS; n++) {
        struct watch *w = e.data.ptr;
        disk += w == &h->d.on_disk;
        w->ready(&h->d, w, e.events);
    }
    REQUIRE_MSG(n < EVENTS, "a descriptor stays ready for ever");
}

/* Nobody's ring is thought to have more in it than it can. */
static void rings_are_possible(const struct house *h)
{
    list_each (at, after, &h->d.sessions) {
        const struct session *s = list_entry(at, struct session, link);
        REQUIRE(s->requests.peer_tail - s->requests.head <= s->requests.size);
        REQUIRE(s->completions.tail - s->completions.peer_head <= s->completions.size);
    }
}

void house_round(struct house *h)
{
    uint64_t start = cpu_ns(), work = h->d.work;
    clock_ns += ROUND_NS;
    if (h->tick)
        h->tick(h->arg);
    serve_events(h);
    if (dispatch_background(&h->d))
        daemon_publish(&h->d);
    list_each (at, after, &h->d.sessions)
        session_turn(&h->d, list_entry(at, struct session, link));
    rings_are_possible(h);
    REQUIRE_MSG(h->d.work - work < WORK_MOST, "a round did work for %d tokens",
                (int)(h->d.work - work));
    uint64_t ms = (cpu_ns() - start) / 1000000;
    REQUIRE_MSG(ms < ROUND_CPU_MS, "a round took %d ms", (int)ms);
}

static void find(void *arg, const char *finding, ...) __attribute__((format(printf, 2, 3)));
static void find(void *arg, const char *finding, ...)
{
    va_list args;
    (void)arg;
    va_start(args, finding);
    vfprintf(stderr, finding, args);
    va_end(args);
    fputc('\n', stderr);
}

void house_audit(struct house *h)
{
    if (!h->d.carved)
        return;
    daemon_publish(&h->d);
    REQUIRE_EQ(daemon_audit(&h->d, find, NULL), 0);
    const struct counters *c = &h->d.counters;
    REQUIRE_EQ(c->blocks_free + c->blocks_private + c->blocks_pinned + c->blocks_idle +
                   c->blocks_inflight,
               h->d.n_blocks);
}

/* ---- guests --------------------------------------------------------------------------------- */

bool guest_welcome(struct raw *r)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof r->fds) + CMSG_SPACE(sizeof(struct ucred))];
    } control = {0};
    struct iovec part = {&r->welcome, sizeof r->welcome};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t n = recvmsg(r->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n <= 0)
        return false;
    REQUIRE_EQ(n, sizeof r->welcome);
    REQUIRE_EQ(m.msg_flags & (MSG_CTRUNC | MSG_TRUNC), 0);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_type == SCM_RIGHTS) { /* with SO_PASSCRED there is more */
            size_t bytes = c->cmsg_len - CMSG_LEN(0);
            memcpy(r->fds, CMSG_DATA(c), bytes);
            r->n_fds = (unsigned)(bytes / sizeof r->fds[0]);
        }
    return true;
}

bool guest_open(struct house *h, struct raw *r, const char *name, const char *group,
                uint32_t ring_entries, bool with_layout)
{
    struct hello hello = raw_hello(name);
    memset(r, 0, sizeof *r);
    hello.ring_entries = ring_entries;
    hello.arena_bytes = ARENA_MIN;
    hello.has_layout = with_layout;
    hello.layout = h->d.layout;
    strcpy(hello.group, group);
    r->fd = raw_connect(&h->host);
    REQUIRE_EQ(send(r->fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT), sizeof hello);
    house_round(h);
    house_round(h);
    if (!guest_welcome(r) || r->welcome.status) {
        close(r->fd);
        return false;
    }
    raw_map(r);
    return true;
}

void guest_close(struct house *h, struct raw *r)
{
    raw_close(r);
    memset(r, 0, sizeof *r);
    house_round(h);
}

struct wire_completion guest_call(struct house *h, struct raw *r, struct request rq, int rounds)
{
    struct wire_completion c;
    rq.tag = ++r->tag;
    REQUIRE(raw_post(r, &rq));
    for (int i = 0; i < rounds; i++) {
        house_round(h);
        if (i >= IN_TIME && h->threads)
            sleep_us(200); /* the swap thread's turn */
        if (ring_peek(&r->in, &c) != RING_OK)
            continue;
        ring_drop(&r->in);
        REQUIRE_EQ(c.tag, rq.tag);
        REQUIRE_EQ(c.op, rq.op);
        return c;
    }
    ck_abort_msg("%u was not answered in %d rounds", rq.op, rounds);
}

/* ---- the honest one ---------------------------------------------------------------------------
 */

static struct wire_completion ask(struct house *h, struct honest *x, struct request rq, int rounds)
{
    return guest_call(h, &x->w, rq, rounds);
}

static uint8_t *page(struct honest *x, uint32_t block)
{
    REQUIRE_MSG(block >= 1 && block <= x->w.view.params.n_blocks, "block %u is none", block);
    return (uint8_t *)x->w.pool.base + block * x->w.welcome.block_stride;
}

static uint8_t byte_of(uint32_t position, size_t i)
{
    return (uint8_t)(0xa5 + 31 * position + 7 * i);
}

static void page_write(struct honest *x, uint32_t block, uint32_t position)
{
    uint8_t *at = page(x, block);
    for (size_t i = 0; i < x->w.welcome.layout.block_bytes; i++)
        at[i] = byte_of(position, i);
}

static void page_check(struct honest *x, uint32_t block, uint32_t position)
{
    const uint8_t *at = page(x, block);
    for (size_t i = 0; !x->mistrusts && i < x->w.welcome.layout.block_bytes; i++)
        REQUIRE_MSG(at[i] == byte_of(position, i), "wrong bytes in block %u, position %u", block,
                    position);
}

static void ids(struct house *h, struct honest *x, uint64_t lease, uint32_t n, uint32_t *to)
{
    struct wire_completion c =
        ask(h, x, (struct request){.op = OP_TABLE, .lease = lease, .table = {.count = n}}, IN_TIME);
    REQUIRE_EQ(c.status, 0);
    REQUIRE_EQ(c.table.n, n);
    memcpy(to, x->w.answers, n * 4u);
}

static struct wire_completion look(struct house *h, struct honest *x, uint16_t flags, int rounds)
{
    uint32_t bt = x->w.view.params.block_tokens, n = HONEST_BLOCKS * bt;
    uint32_t piece = n < piece_most(bt) ? n : piece_most(bt);
    struct request rq = {.op = OP_LOOKUP_SLOW, .flags = (uint16_t)(RF_LAST | flags)};
    memcpy(x->w.arena, x->tokens, piece * 4u);
    rq.slow = (struct request_lookup_slow){.space = x->space,
                                           .session = 7,
                                           .n_tokens = piece,
                                           .max_match = piece,
                                           .multiple = bt,
                                           .snapshot_multiple = 1,
                                           .piece = piece};
    struct wire_completion c = ask(h, x, rq, rounds);
    REQUIRE_EQ(c.status, 0);
    return c;
}

static void release(struct house *h, struct honest *x, uint64_t lease)
{
    struct request rq = {.op = OP_RELEASE, .lease = lease};
    REQUIRE_EQ(ask(h, x, rq, IN_TIME).status, 0);
}

/* What the lookup matched: pages that are there have the right bytes. Returns how many there are
 * in front. */
static uint32_t check_match(struct house *h, struct honest *x, const struct wire_completion *c)
{
    uint32_t table[HONEST_BLOCKS], n = c->lookup.where.depth, there = 0;
    REQUIRE(n <= HONEST_BLOCKS);
    ids(h, x, c->lease, n, table);
    for (uint32_t i = 0; i < n; i++)
        if (table[i] != NO_PAGE) {
            page_check(x, table[i], i);
            there += there == i;
        }
    return there;
}

void honest_look(struct house *h, struct honest *x)
{
    for (uint32_t i = 0; x->lease && i < HONEST_BLOCKS; i++)
        page_check(x, x->table[i], i);
    struct wire_completion c = look(h, x, RF_QUIET, IN_TIME);
    check_match(h, x, &c);
    release(h, x, c.lease);
}

/* Reserve what lacks, write, insert. Returns the lease, which holds all. */
static uint64_t compute(struct house *h, struct honest *x)
{
    uint32_t bt = x->w.view.params.block_tokens, table[HONEST_BLOCKS];
    struct wire_completion c = look(h, x, RF_FETCH, PATIENCE);
    uint64_t lease = c.lease;
    uint32_t n = check_match(h, x, &c), left = HONEST_BLOCKS - n;
    if (n < c.lookup.where.depth) { /* what could not be fetched is computed anew */
        struct request cut = {.op = OP_TRUNCATE, .lease = lease, .number = {.n = n}};
        REQUIRE_EQ(ask(h, x, cut, IN_TIME).status, 0);
    }
    struct request take = {.op = OP_RESERVE, .lease = lease, .reserve = {.n = left, .room = left}};
    c = ask(h, x, take, PATIENCE);
    REQUIRE_EQ(c.status, 0);
    ids(h, x, lease, HONEST_BLOCKS, table);
    for (uint32_t i = n; i < HONEST_BLOCKS; i++)
        page_write(x, table[i], i);
    bool stays = false; /* a piece that did not move the lease: there is no index */
    do {
        struct place where = c.op == OP_INSERT ? c.insert.where : c.table.where;
        uint32_t first = where.depth, end = HONEST_BLOCKS, most = piece_most(bt) / bt;
        end = end - first < most ? end : first + most;
        struct request put = {.op = OP_INSERT, .lease = lease};
        put.flags = end == HONEST_BLOCKS || stays ? RF_LAST : 0;
        put.insert = (struct request_insert){.where = where, .piece = (end - first) * bt};
        memcpy(x->w.arena, x->tokens + first * bt, (end - first) * bt * 4);
        c = ask(h, x, put, IN_TIME);
        stays = c.insert.where.depth < end;
    } while (c.status == ANSWER_MORE);
    REQUIRE_EQ(c.status, 0);
    return lease;
}

void honest_open(struct house *h, struct honest *x)
{
    static const char tenant[] = "the honest worker's own";
    bool mistrusts = x->mistrusts;
    memset(&x->w, 0, sizeof x->w);
    REQUIRE(guest_open(h, &x->w, "honest", "", 0, false));
    x->mistrusts = mistrusts;
    uint32_t bt = x->w.view.params.block_tokens;
    for (uint32_t i = 0; i < HONEST_BLOCKS * bt; i++)
        x->tokens[i] = 0x40000000u + i;
    struct request rq = {.op = OP_SPACE_OPEN, .space = {.tenant_len = sizeof tenant}};
    memcpy(x->w.arena, tenant, sizeof tenant);
    struct wire_completion c = ask(h, x, rq, IN_TIME);
    REQUIRE_EQ(c.status, 0);
    x->space = c.number.n;
    x->lease = compute(h, x);
    ids(h, x, x->lease, HONEST_BLOCKS, x->table);
    for (uint32_t i = 0; i < HONEST_BLOCKS; i++) /* of two computed at once one is another's */
        page_check(x, x->table[i], i);
    honest_look(h, x);
}

void honest_work(struct house *h, struct honest *x)
{
    honest_look(h, x);
    release(h, x, x->lease);
    x->lease = compute(h, x);
    ids(h, x, x->lease, HONEST_BLOCKS, x->table);
    struct wire_completion c = look(h, x, 0, IN_TIME);
    uint32_t bt = x->w.view.params.block_tokens, whole = piece_most(bt) / bt;
    whole = whole < HONEST_BLOCKS ? whole : HONEST_BLOCKS;
    if (h->d.header->active)
        REQUIRE_EQ(check_match(h, x, &c), whole);
    release(h, x, c.lease);
}

void honest_close(struct house *h, struct honest *x)
{
    release(h, x, x->lease);
    x->lease = 0;
    house_audit(h);
    guest_close(h, &x->w);
    house_audit(h);
    REQUIRE_EQ(h->d.n_sessions, 0);
    REQUIRE_EQ(h->d.counters.leases, 0);
    REQUIRE_EQ(h->d.counters.blocks_private, 0);
    REQUIRE_EQ(h->d.counters.slots_private, 0);
    if (!h->d.disk)
        REQUIRE_EQ(h->d.counters.blocks_pinned, 0);
}
