#include "daemon/session.h"

#include "daemon/daemon.h"
#include "daemon/foreign.h"
#include "daemon/group.h"
#include "daemon/handshake.h"
#include "daemon/log.h"
#include "daemon/quarantine.h"
#include "daemon/visitor.h"
#include "shm/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RING_DEFAULT = 256,
    RECORD_TOKENS = 1024, /* what the smallest record costs a turn */
    WAITING_A_TURN = 8,   /* jobs that are asked whether the disk has done what they wait for */
    PACKETS_A_LOOK = 16,
    PACKETS_OF_THE_DEAD = 4096, /* more than a socket's buffer holds */
};

/* Of who maps GPUs: that their pages are quiet only an exit tells (quarantine.h). */
static const char UNSEEN[] =
    "the daemon cannot see this process end, and a GPU may write on after it has: let both share a "
    "pid namespace (docker: --pid=host or --pid=container:NAME), or run Linux 6.5 or newer; a "
    "worker that maps no GPU (PFX_MAP_NONE) may attach";

/* ---- the control socket --------------------------------------------------------------- */

enum heard { HEARD_NOTHING, HEARD_BYE, HEARD_DESCRIPTORS };

/* Is there a BYE among the next `limit` packets? They are taken; wake-ups mean nothing more, and
 * BYE counts even if the worker has gone since. Nothing received is no hang-up: a packet may be
 * empty. One with descriptors ends the looking: it stays where it is (foreign.h). */
static enum heard hear(const struct session *s, int limit)
{
    for (int i = 0; i < limit; i++) {
        char packet = 0;
        ssize_t n = foreign_recv(s->fd, &packet, 1);
        if (n < 0 && errno == EPERM)
            return HEARD_DESCRIPTORS;
        if (n <= 0)
            break;
        if (packet == BYE)
            return HEARD_BYE;
    }
    return HEARD_NOTHING;
}

static void socket_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    struct session *s = list_entry(w, struct session, on_socket);
    bool over = events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR);
    enum heard heard = hear(s, over ? PACKETS_OF_THE_DEAD : PACKETS_A_LOOK);
    s->hung_up = over;
    if (heard == HEARD_BYE)
        session_end(d, s, true, "it said goodbye");
    else if (over)
        session_end(d, s, false, "it hung up");
    else if (heard == HEARD_DESCRIPTORS)
        session_end(d, s, false, "it passed descriptors, which nobody had asked for");
}

static void exit_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    struct session *s = list_entry(w, struct session, on_exit);
    bool clean = hear(s, PACKETS_OF_THE_DEAD) == HEARD_BYE;
    s->exited = true;
    session_end(d, s, clean, clean ? "it said goodbye" : "its process is dead");
}

/* ---- begin ------------------------------------------------------------------------------ */

static void write_channel_header(const struct daemon *d, const struct session *s,
                                 const struct segment *region)
{
    *(struct channel_header *)region->base = (struct channel_header){
        .magic = CHANNEL_MAGIC,
        .format = LAYOUT_FORMAT,
        .ring_entries = s->requests.size,
        .epoch = d->epoch,
        .arena_bytes = s->arena_bytes,
    };
}

static struct channel_words *words_of(const struct segment *region)
{
    return (struct channel_words *)(void *)((uint8_t *)region->base + CHANNEL_WORDS);
}

static int make_channel(const struct daemon *d, struct session *s, uint32_t ring_entries)
{
    uint64_t bytes = channel_bytes(ring_entries, s->arena_bytes);
    int rc = segment_create(&s->request_region, SEGMENT_REQUEST, SEGMENT_SHARED, bytes);
    if (rc == 0)
        rc = segment_create(&s->completion_region, SEGMENT_COMPLETION, SEGMENT_DAEMON, bytes);
    if (rc)
        return rc;

    uint8_t *in = s->request_region.base, *out = s->completion_region.base;
    struct channel_words *theirs = words_of(&s->request_region),
                         *ours = words_of(&s->completion_region);
    s->requests = (struct ring_reader){.entries = in + CHANNEL_RING,
                                       .shared_head = &ours->head,
                                       .shared_tail = &theirs->tail,
                                       .size = ring_entries};
    s->completions = (struct ring_writer){.entries = out + CHANNEL_RING,
                                          .shared_tail = &ours->tail,
                                          .shared_head = &theirs->head,
                                          .size = ring_entries};
    s->request_arena = in + channel_arena_offset(ring_entries);
    s->completion_arena = out + channel_arena_offset(ring_entries);
    s->worker_doze = &theirs->doze;
    write_channel_header(d, s, &s->request_region);
    write_channel_header(d, s, &s->completion_region);
    return 0;
}

void session_free(struct daemon *d, struct session *s)
{
    segment_free(&s->request_region);
    segment_free(&s->completion_region);
    if (s->pidfd >= 0)
        close(s->pidfd);
    if (s->fd >= 0)
        foreign_close(&d->foreign, s->fd);
    free(s->obituary);
    free(s->opened);
    free(s);
}

static int watch_session(struct daemon *d, struct session *s)
{
    int rc = watch_add(d, s->fd, &s->on_socket);
    if (rc == 0 && s->pidfd >= 0) {
        rc = watch_add(d, s->pidfd, &s->on_exit);
        if (rc)
            watch_remove(d, s->fd);
    }
    return rc;
}

/* Owns fd from here, also when it fails (then errno-like in *rc, and fd is still open). */
static struct session *session_new(struct daemon *d, int fd, const struct peer *p,
                                   const struct hello *h, int *rc)
{
    struct session *s = calloc(1, sizeof *s);
    *rc = -ENOMEM;
    if (!s)
        return NULL;
    list_init(&s->link);
    list_init(&s->leases);
    list_init(&s->waiting);
    s->maps = h->maps;
    s->fd = fd;
    s->pid = p->pid;
    s->uid = p->uid;
    s->gid = p->gid;
    s->on_socket.ready = socket_ready;
    s->on_exit.ready = exit_ready;
    s->request_region.fd = s->completion_region.fd = -1;
    s->arena_bytes = h->arena_bytes;
    text_clean(s->name, h->name, sizeof s->name);
    s->pidfd = peer_pidfd(fd, p);
    *rc = s->pidfd;
    if (s->pidfd < 0 && quarantine_needed(d, s))
        goto fail;

    s->obituary = calloc(1, sizeof *s->obituary);
    *rc = s->obituary ? make_channel(d, s, h->ring_entries) : -ENOMEM;
    if (*rc == 0)
        *rc = watch_session(d, s);
    if (*rc)
        goto fail;
    s->group = group_join(d, s->uid, h->group);
    if (!s->group) {
        *rc = -ENOMEM;
        watch_remove(d, fd);
        goto fail;
    }
    s->number = ++d->next_session;
    list_append(&d->sessions, &s->link);
    d->n_sessions++;
    return s;
fail:
    s->fd = -1; /* the caller still has something to say on it */
    session_free(d, s);
    return NULL;
}

static int check_sizes(struct hello *h, char *why, size_t n)
{
    if (h->ring_entries == 0)
        h->ring_entries = RING_DEFAULT;
    if (h->arena_bytes == 0)
        h->arena_bytes = ARENA_DEFAULT;
    if (h->ring_entries < RING_MIN || h->ring_entries > RING_MAX ||
        (h->ring_entries & (h->ring_entries - 1))) {
        snprintf(why, n, "ring_entries: %u is not a power of two between %d and %d",
                 h->ring_entries, RING_MIN, RING_MAX);
        return STATUS_EINVAL;
    }
    if (h->arena_bytes < ARENA_MIN || h->arena_bytes > ARENA_MAX) {
        snprintf(why, n, "arena_bytes: %u is not between %d and %d", h->arena_bytes, ARENA_MIN,
                 ARENA_MAX);
        return STATUS_EINVAL;
    }
    h->arena_bytes = (h->arena_bytes + REGION_PAGE - 1) & ~(REGION_PAGE - 1u);
    return 0;
}

static int check_layout(struct daemon *d, const struct hello *h, char *why, size_t n)
{
    if (d->carved)
        return h->has_layout ? hello_compare(&d->layout, &h->layout, why, n) : 0;
    if (h->has_layout) {
        int status = daemon_carve(d, &h->layout, why, n);
        if (status == 0)
            daemon_say_unused(d);
        return status;
    }
    snprintf(why, n,
             "the daemon (--bytes alone) waits for the first worker's layout, and this worker "
             "brings none; set pfx_options.layout, or start the daemon with --blocks");
    return STATUS_EMISMATCH;
}

static bool send_welcome(const struct daemon *d, const struct session *s)
{
    int fds[3 + DEVICES_MAX] = {s->request_region.fd, s->completion_region.fd, d->index_segment.fd};
    unsigned n = 3;
    for (uint32_t i = 0; i < d->layout.n_devices; i++)
        fds[n++] = device_fd(d->devices[i]);
    struct welcome w = welcome_of(d);
    w.ring_entries = s->requests.size;
    w.arena_bytes = s->arena_bytes;
    w.n_fds = n;
    w.worker = s->number;
    return welcome_send(s->fd, &w, fds, n);
}

/* The worker has its own copies now; mappings stay. */
static void close_region_fds(struct session *s)
{
    close(s->request_region.fd);
    close(s->completion_region.fd);
    s->request_region.fd = s->completion_region.fd = -1;
}

void session_attach(struct daemon *d, int fd, const struct hello *hello)
{
    struct hello h = *hello;
    struct peer peer = {0};
    struct session *s = NULL;
    char why[WHY_MAX] = "the kernel does not say who this is";
    int status = peer_identify(fd, &peer) ? check_sizes(&h, why, sizeof why) : STATUS_EACCESS;
    if (status == 0 && d->n_sessions + d->n_ghosts >= d->options->max_workers) {
        snprintf(why, sizeof why, "%u workers are attached%s, and --max-workers allows no more",
                 d->n_sessions + d->n_ghosts, d->n_ghosts ? " or not quite dead" : "");
        status = STATUS_ENOSPC;
    }
    if (status == 0)
        status = check_layout(d, &h, why, sizeof why);
    if (status == 0) {
        int rc;
        do
            s = session_new(d, fd, &peer, &h, &rc);
        while (!s && rc == -EMFILE && visitors_give_way(d));
        if (!s && rc == -ESRCH) {
            snprintf(why, sizeof why, "%s", UNSEEN);
            status = STATUS_EACCESS;
        } else if (!s) {
            snprintf(why, sizeof why, "the daemon has no room for another worker: %s%s",
                     strerror(-rc), descriptors_remedy(-rc));
            status = STATUS_ENOSPC;
        }
    }
    if (status) {
        welcome_refuse(d, fd, &peer, status, why);
        foreign_close(&d->foreign, fd);
        return;
    }
    daemon_publish(d);
    if (!send_welcome(d, s)) {
        s->maps = 0; /* it has nothing to map */
        session_end(d, s, false, "its welcome could not be sent");
        return;
    }
    close_region_fds(s);
    log_info("worker %llu (%s, process %d, user %u) attached", (unsigned long long)s->number,
             s->name[0] ? s->name : "unnamed", (int)s->pid, s->uid);
}

/* ---- end ---------------------------------------------------------------------------------- */

static void jobs_abandon(struct daemon *d, struct session *s)
{
    dispatch_abandon(d, s, &s->job);
    list_each (at, after, &s->waiting) {
        struct waiting *w = list_entry(at, struct waiting, link);
        dispatch_abandon(d, s, &w->job);
        free(w);
    }
}

void session_end(struct daemon *d, struct session *s, bool clean, const char *why)
{
    uint32_t held = s->n_leases;
    bool ghost = !clean && quarantine_begin(d, s);
    jobs_abandon(d, s);
    if (!clean)
        group_mourn(s);
    leases_session_end(d, s, clean);
    spaces_session_end(d, s);
    bool last = s->group->members == 1;
    group_leave(d, s->group);

    if (!ghost)
        list_remove(&s->link);
    d->n_sessions--;
    if (!clean)
        d->counters.workers_reaped++;
    daemon_publish(d);
    log_line(clean ? LOG_AT_INFO : LOG_AT_WARNING,
             "worker %llu (%s, process %d) ended: %s; %u lease%s %s", (unsigned long long)s->number,
             s->name[0] ? s->name : "unnamed", (int)s->pid, why, held, held == 1 ? "" : "s",
             clean || last ? "given back" : "left to its group");
    if (ghost)
        return;
    watch_remove(d, s->fd);
    if (s->pidfd >= 0)
        watch_remove(d, s->pidfd);
    session_free(d, s);
}

/* ---- turns -------------------------------------------------------------------------------- */

enum session_state session_look(struct session *s)
{
    bool wants =
        s->job.op != OP_NOP || s->requests.head != shm_load_acquire(s->requests.shared_tail);
    if (!wants && list_empty(&s->waiting))
        return SESSION_IDLE;
    if (ring_claim(&s->completions) == RING_NONE)
        return SESSION_PAUSED;
    return wants && !s->blocked ? SESSION_READY : SESSION_WAITING;
}

static void answer(struct daemon *d, struct session *s, const struct wire_completion *out)
{
    daemon_publish(d); /* a counter is there before the completion that reports it */
    ring_post(&s->completions, out);
}

/* Ask some of the jobs that wait, the longest first. True: one was answered, or has gone on. */
static bool ask_waiting(struct daemon *d, struct session *s, uint64_t *cost, bool *posted)
{
    bool moved = false;
    uint32_t n = s->n_waiting < WAITING_A_TURN ? s->n_waiting : WAITING_A_TURN;
    for (; n && ring_claim(&s->completions) == RING_OK; n--) {
        struct waiting *w = list_entry(s->waiting.next, struct waiting, link);
        struct wire_completion out;
        uint64_t spent = 0;
        enum progress came = dispatch_continue(d, s, &w->job, &out, &spent);
        list_remove(&w->link);
        moved |= came != WAITS;
        if (came != WAITS)
            *cost += spent;
        if (came == ANSWERED) {
            answer(d, s, &out);
            *posted = true;
            s->n_waiting--;
            free(w);
        } else {
            list_append(&s->waiting, &w->link);
        }
    }
    return moved;
}

/* The job waits for the disk: aside with it, so that later records do not. False: there is no room
 * for it, and they do. */
static bool set_aside(struct session *s)
{
    struct waiting *w = s->n_waiting < s->completions.size ? malloc(sizeof *w) : NULL;
    if (!w)
        return false;
    w->job = s->job;
    list_append(&s->waiting, &w->link);
    s->n_waiting++;
    s->job = (struct job){0};
    return true;
}

/* One step of the session: begin or go on with a record. ANSWERED: *out is to be posted.
 * RING_NONE: nothing to do; RING_BROKEN: one of its indexes is impossible. */
static enum ring_state step(struct daemon *d, struct session *s, struct wire_completion *out,
                            uint64_t *cost, enum progress *came)
{
    /* No request is taken without room for its answer: a full ring pauses this worker alone. */
    enum ring_state room = ring_claim(&s->completions);
    if (room != RING_OK)
        return room;
    if (s->job.op != OP_NOP) {
        *came = dispatch_continue(d, s, &s->job, out, cost);
        return RING_OK;
    }
    struct request rq;
    enum ring_state record = ring_peek(&s->requests, &rq);
    if (record != RING_OK)
        return record;
    ring_drop(&s->requests);
    *came = dispatch_request(d, s, &rq, out, cost);
    return RING_OK;
}

bool session_turn(struct daemon *d, struct session *s)
{
    uint64_t cost = 0;
    bool posted = false, moved = s->n_waiting && ask_waiting(d, s, &cost, &posted);
    bool going = true;
    enum ring_state state = RING_NONE;
    while (going && cost < TURN_TOKENS) {
        struct wire_completion out;
        enum progress came = GOES_ON;
        state = step(d, s, &out, &cost, &came);
        if (state != RING_OK)
            break;
        cost += RECORD_TOKENS;
        if (came == ANSWERED) {
            answer(d, s, &out);
            posted = true;
        }
        /* An unfinished job has had its turn. */
        going = came == ANSWERED || (came == WAITS && set_aside(s));
        s->blocked = came == WAITS && !going;
        moved |= !s->blocked;
    }
    d->work += cost;
    if (posted && doze_must_wake(s->worker_doze, &s->doze_answered)) {
        char wake = WAKE; /* a full buffer means that one is waiting there already */
        (void)send(s->fd, &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (state == RING_BROKEN) {
        session_end(d, s, false, "its ring has an impossible index");
        return true;
    }
    return moved;
}
