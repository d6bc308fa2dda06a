#include "daemon/daemon.h"

#include "daemon/control.h"
#include "daemon/foreign.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/quarantine.h"
#include "daemon/visitor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { EXIT_TROUBLE = 1, EXIT_OPTION = 2, FDS_A_WORKER = 2, FDS_OF_OURS = 128 };

/* ---- start ---------------------------------------------------------------------------- */

static int trouble(const char *what)
{
    log_error("%s: %s%s", what, strerror(errno), descriptors_remedy(errno));
    return EXIT_TROUBLE;
}

/* What the limit allows at most, we take; say so if it does not suffice. */
static void raise_descriptor_limit(const struct options *o)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    uint64_t needed = (uint64_t)o->max_workers * FDS_A_WORKER + FDS_OF_OURS;
    if (limit.rlim_max < needed)
        log_warning(
            "--max-workers %u needs %llu descriptors and the limit is %llu; raise it (ulimit -n, "
            "LimitNOFILE=)",
            o->max_workers, (unsigned long long)needed, (unsigned long long)limit.rlim_max);
}

static void signal_ready(struct daemon *d, struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info;
    if (read(d->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    log_info("SIG%s from process %u", sigabbrev_np((int)info.ssi_signo), info.ssi_pid);
    d->stopping = true;
}

/* A signal is one more descriptor. SIGXFSZ is ignored: a file size limit is a full file system. */
static int start_signals(struct daemon *d)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL))
        return trouble("signals");
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return trouble("signalfd");
    d->on_signal.ready = signal_ready;
    return watch_add(d, d->signal_fd, &d->on_signal) ? trouble("epoll") : 0;
}

static int start_basics(struct daemon *d)
{
    raise_descriptor_limit(d->options);
    d->scratch = malloc(PIECE_BYTES);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!d->scratch || d->epoll_fd < 0 || d->spare_fd < 0)
        return trouble("start");
    while (d->epoch == 0)
        if (getrandom(&d->epoch, sizeof d->epoch, 0) != (ssize_t)sizeof d->epoch)
            return trouble("random numbers");
    return start_signals(d);
}

/* The blocks were given in two ways, and the smaller one counts. */
static void say_unused_bytes(const struct daemon *d)
{
    const struct options *o = d->options;
    uint64_t used =
        (d->n_blocks * d->block_stride + d->n_slots * d->slot_stride) * d->layout.n_devices;
    if (o->blocks && o->bytes >= used + d->block_stride * d->layout.n_devices)
        log_warning("--bytes %llu is only a limit beside --blocks %u, which take %llu bytes of it; "
                    "leave one of the two away",
                    (unsigned long long)o->bytes, o->blocks, (unsigned long long)used);
}

/* Options of the disk tier that can have no effect, whatever the layout. */
static void say_unused_swap(const struct options *o)
{
    for (int i = 0; i < 3 && o->without_swap[i]; i++)
        log_warning("--%s: there is no disk tier; give --swap PATH:SIZE as well",
                    o->without_swap[i]);
    if (o->n_swap && o->null_index)
        log_warning("--swap: with --index none nothing is cached, and nothing is written");
}

static void say_padding(const char *what, uint64_t bytes, uint64_t stride)
{
    if (stride > bytes)
        log_warning("--swap: direct transfers want multiples of %d bytes: a %s of %llu takes %llu "
                    "in the pool and on disk, %llu of them for nothing",
                    SWAP_ALIGN, what, (unsigned long long)bytes, (unsigned long long)stride,
                    (unsigned long long)(stride - bytes));
}

/* Of what is written in good time as much lies in the pool. */
static void say_small_disk(const struct daemon *d)
{
    uint32_t there = d->header->params.n_disk;
    bool insert = d->options->swap_write == SWAP_WRITE_INSERT;
    if (there < (insert ? d->n_blocks : d->n_blocks / 16))
        log_warning("--swap: the files hold %u blocks and the pool %u: %s; give a larger SIZE",
                    there, d->n_blocks,
                    insert ? "not all that is inserted can be written"
                           : "they have room for little beyond what is in the pool as well");
}

/* Options of the other kind of pool. */
static void say_unused_place(const struct options *o)
{
    if (!o->n_gpus && o->cuda_export != EXPORT_AUTO)
        log_warning("--cuda-export: the pool is in host memory; give --device cuda as well");
    if (o->n_gpus && o->huge_pages)
        log_warning("--huge-pages: the pool is on GPUs, which have pages of their own");
    if (o->n_gpus && o->numa_node != -1)
        log_warning("--numa: the pool is on GPUs; --device says which");
}

/* What the layout makes of the disk tier. */
static void say_unused_disk(const struct daemon *d)
{
    if (!d->options->n_swap)
        return;
    say_small_disk(d);
    say_padding("block", d->layout.block_bytes, d->block_stride);
    if (d->n_tier)
        say_padding("state", d->layout.snapshot_bytes, d->slot_stride);
    else if (d->n_slots)
        log_warning("--swap without --snapshot-swap: states are in their slots alone, and blocks "
                    "that come back from disk are of no use where the state has gone; give "
                    "--snapshot-swap SIZE as well");
}

/* Options that can have no effect beside the others. */
static void say_unused_options(const struct daemon *d)
{
    const struct options *o = d->options;
    uint64_t deepest = (d->n_blocks + 1ull) * d->layout.block_tokens - 1;
    if (o->alpha != 0 && d->n_slots == 0)
        log_warning("--alpha %g: there are no snapshots to rank; give --snapshots and "
                    "--snapshot-bytes",
                    o->alpha);
    if (o->spill_min_tokens && d->n_tier == 0)
        log_warning("--spill-min-tokens %u: nothing is spilled; give --snapshot-swap SIZE as well",
                    o->spill_min_tokens);
    if (d->n_tier && o->spill_min_tokens > deepest)
        log_warning("--spill-min-tokens %u: nothing is spilled, for the pool holds no prefix of "
                    "more than %llu tokens; give a smaller one, or more --blocks",
                    o->spill_min_tokens, (unsigned long long)deepest);
}

void daemon_say_unused(const struct daemon *d)
{
    say_unused_bytes(d);
    say_unused_options(d);
    say_unused_disk(d);
}

static int start_cache(struct daemon *d)
{
    char why[WHY_MAX];
    say_unused_swap(d->options);
    say_unused_place(d->options);
    if (d->options->waits) {
        log_info("--bytes %llu: waiting for the first worker's layout",
                 (unsigned long long)d->options->bytes);
        return 0;
    }
    if (daemon_carve(d, &d->options->layout, why, sizeof why) == 0) {
        daemon_say_unused(d);
        return 0;
    }
    log_error("%s", why);
    return EXIT_OPTION;
}

int daemon_start(struct daemon *d, const struct options *options)
{
    *d = (struct daemon){.options = options,
                         .signal_fd = -1,
                         .epoll_fd = -1,
                         .lock_fd = -1,
                         .listen_fd = -1,
                         .spare_fd = -1,
                         .index_segment = {.fd = -1}};
    list_init(&d->sessions);
    list_init(&d->groups);
    list_init(&d->ghosts);
    list_init(&d->confined);
    list_init(&d->visitors);
    log_setup(options->log_level);

    int rc = start_basics(d);
    if (rc == 0)
        rc = control_lock(d);
    if (rc == 0)
        rc = start_cache(d);
    if (rc == 0)
        rc = control_listen(d);
    if (rc == 0 && visitors_start(d))
        rc = trouble("epoll");
    if (rc)
        return rc;
    log_info("prefixd %s serves %s, epoch %016llx", PREFIXD_VERSION, options->socket,
             (unsigned long long)d->epoch);
    printf("ready %s\n", options->socket);
    if (fflush(stdout))
        log_warning("the line `ready %s` could not be written to standard output: %s",
                    options->socket, strerror(errno));
    notify_systemd("READY=1");
    return 0;
}

/* ---- stop ----------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void daemon_stop(struct daemon *d)
{
    if (d->listen_fd >= 0)
        notify_systemd("STOPPING=1");
    visitors_stop(d);
    control_deafen(d);
    d->importers_left = !quarantine_farewell(d);
    list_each (at, after, &d->sessions)
        session_end(d, list_entry(at, struct session, link), true, "the daemon stops");
    quarantine_stop(d);
    control_close(d);
    daemon_uncarve(d);
    foreign_stop(&d->foreign);
    close_fd(&d->signal_fd);
    close_fd(&d->epoll_fd);
    close_fd(&d->spare_fd);
    free(d->scratch);
    d->scratch = NULL;
}

/* ---- counters --------------------------------------------------------------------------- */

void daemon_publish(struct daemon *d)
{
    if (!d->carved)
        return;
    struct counters *c = &d->counters;
    c->blocks_free = d->pool.n_free;
    c->blocks_private = d->pool.n_private;
    c->blocks_pinned = index_pinned(d->index);
    c->blocks_idle = index_idle(d->index);
    c->blocks_inflight = d->pool.n_inflight + d->pool.n_confined + index_busy(d->index);
    c->nodes = index_nodes(d->index);
    c->spaces = spaces_live(d->spaces);
    c->leases = d->leases.n_used;
    c->workers = d->n_sessions;
    if (d->snapshots) {
        c->snapshots = snapshots_resident(d->snapshots);
        c->snapshots_tiered = snapshots_tiered(d->snapshots);
        c->slots_free = slots_free(d->snapshots);
        c->slots_private = slots_private(d->snapshots);
    }
    c->disk_scan_done = 1; /* there is no disk to scan */
    if (d->disk)
        disk_publish(d->disk);
    if (memcmp(c, &d->published, sizeof *c) == 0)
        return;
    d->published = *c;
    stats_publish(&d->header->stats, c);
}
