/* A worker's life: it attaches, serves requests, and comes to whatever end was ordered. */
#include "tests/chaos/worker.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- findings ------------------------------------------------------------------------------ */

void wrong(struct actor *w, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tally_add(&w->seat->tally.wrong_answers, 1);
    stage_find(w->stage, "worker %u (process %d): %s", w->cast->seat, (int)getpid(), text);
}

/* ---- calls --------------------------------------------------------------------------------- */

void call_begin(struct actor *w, const char *what)
{
    shm_store(&w->seat->what, what);
    shm_store(&w->seat->late_ns, shm_load(&w->stage->late_ns));
    shm_store(&w->seat->disk_late_ns, shm_load(&w->stage->disk_late_ns));
    shm_store_release(&w->seat->since_ns, clock_ns());
}

/* What of its time counts: see DEADLINE_MS. */
static uint64_t time_taken(const struct actor *w, uint64_t now)
{
    const struct seat *s = w->seat;
    uint64_t since = s->since_ns, down = shm_load_acquire(&w->stage->down_ns),
             released = shm_load(&s->released_ns);
    since = down > since ? down : since;
    since = released > since ? released : since;
    uint64_t taken = now > since ? now - since : 0;
    uint64_t late = shm_load(&w->stage->late_ns) - s->late_ns,
             disk = shm_load(&w->stage->disk_late_ns) - s->disk_late_ns;
    late = disk > late ? disk : late;
    return taken > late ? taken - late : 0;
}

static void judge_time(struct actor *w)
{
    uint64_t now = clock_ns(), taken = time_taken(w, now);
    if (taken > (uint64_t)DEADLINE_MS * 1000000) {
        nap_us(200000); /* the pulses may be later still */
        taken = time_taken(w, now);
    }
    if (taken > w->seat->tally.worst_ns)
        shm_store(&w->seat->tally.worst_ns, taken);
    if (taken <= (uint64_t)DEADLINE_MS * 1000000)
        return;
    tally_add(&w->seat->tally.deadline_misses, 1);
    stage_find(w->stage, "worker %u (process %d): %s took %llu ms, and %d are allowed",
               w->cast->seat, (int)getpid(), w->seat->what, (unsigned long long)taken / 1000000,
               DEADLINE_MS);
}

int call_end(struct actor *w, int rc, uint32_t also)
{
    judge_time(w);
    tally_add(&w->seat->tally.calls, 1);
    shm_store_release(&w->seat->since_ns, 0);
    if (rc >= 0 || also & ERROR(rc))
        return rc;
    if (rc == PFX_EGONE || rc == PFX_ETIMEDOUT)
        w->gone = true; /* of the second, judge_time has said what there is to say */
    if (rc == PFX_ETIMEDOUT ||
        (rc == PFX_EGONE && (w->cut || shm_load(&w->stage->life) != w->life)))
        return rc;
    wrong(w, "%s: %s (%s)", w->seat->what, pfx_strerror(rc), w->c ? pfx_why(w->c) : pfx_why(NULL));
    return rc;
}

uint32_t stale_of(const struct actor *w, const struct hand *h)
{
    bool flushed = shm_load_acquire(&w->stage->flush_begun[h->space]) != h->version;
    return flushed || h->unsure ? ERROR(PFX_ESTALE) : 0;
}

/* ---- orders -------------------------------------------------------------------------------- */

/* All sockets of this process are the library's: it has one connection. */
static void cut_connection(struct actor *w)
{
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        int fd = atoi(e->d_name);
        if (fd > 2 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
            shutdown(fd, SHUT_RDWR);
    }
    if (d)
        closedir(d);
    w->cut = w->gone = true; /* what it held is no longer its own */
    tally_add(&w->seat->tally.cut_short, 1);
}

void at_point(struct actor *w, enum point point)
{
    uint32_t order = shm_load(&w->seat->order);
    if (order % 256 != point || w->gone)
        return;
    shm_store(&w->seat->order, 0);
    switch (order / 256) {
    case ENDING_KILL:
        kill(getpid(), SIGKILL);
        pause();
        break;
    case ENDING_EXIT:
        tally_add(&w->seat->tally.exits, 1);
        _exit(0);
    default:
        cut_connection(w);
    }
}

/* ---- attach and detach --------------------------------------------------------------------- */

/* Two of four seats are a group; the others are one each of their own. */
bool mate_exists(const struct actor *w)
{
    return w->cast->seat % 4 < 2 && (w->cast->seat ^ 1u) < w->plan->workers;
}

/* A GPU that this process cannot map, once: pfx_open fails, and leaves nothing behind. */
static bool device_fault(struct actor *w)
{
    static const char *const faults[] = {"cuMemImportFromShareableHandle:1:2", "cuMemMap:1:2",
                                         "cuMemAddressReserve:1:2", "cuDevicePrimaryCtxRetain:1:2",
                                         "cuIpcOpenMemHandle:1:2"};
    void (*fail)(const char *) = NULL;
    if (!w->plan->cuda)
        return false;
    *(void **)(&fail) = dlsym(RTLD_DEFAULT, "fake_cuda_fail");
    bool wanted = fail && dice_one_in(&w->dice, 4);
    if (fail)
        fail(wanted ? faults[dice_below(&w->dice, 5)] : NULL);
    return wanted;
}

static void detach(struct actor *w)
{
    bool haunts =
        w->cut && w->plan->cuda; /* pages that a GPU may write come back with its process */
    if ((!w->gone && mate_exists(w) && !mate_await(w)) || haunts ||
        (w->gone && dice_one_in(&w->dice, 4))) {
        tally_add(&w->seat->tally.exits, 1);
        _exit(0);
    }
    call_begin(w, "pfx_close");
    pfx_close(w->c);
    call_end(w, 0, 0);
    w->c = NULL;
    for (unsigned i = 0; i < HANDS; i++)
        hand_clear(&w->hand[i]);
}

static bool attach(struct actor *w)
{
    char name[32], group[32];
    snprintf(name, sizeof name, "chaos-%u", w->cast->seat);
    snprintf(group, sizeof group, "engine-%u", w->cast->seat / 2);
    struct pfx_options o = {.size = sizeof o,
                            .socket_path = w->cast->socket,
                            .name = name,
                            .group = mate_exists(w) ? group : NULL,
                            .ring_entries = 1u << dice_between(&w->dice, 3, 6),
                            .timeout_ms = CALL_MS,
                            .spin_us = dice_one_in(&w->dice, 2) ? 1 : 0};
    bool faulty = device_fault(w);
    w->life = shm_load_acquire(&w->stage->life);
    uint32_t also = faulty ? ERROR(PFX_EAGAIN) : 0;
    if (w->life % 2)
        also |= ERROR(PFX_EGONE);
    if (CALL(w, "pfx_open", also, pfx_open(&o, &w->c)) < 0) {
        tally_add(&w->seat->tally.device_faults, w->rc == PFX_EAGAIN);
        w->c = NULL;
        nap_us(2000);
        return false;
    }
    if (w->life % 2) { /* one that goes, or one that has only just come: nobody knows */
        detach(w);
        return false;
    }
    w->bt = w->plan->block_tokens;
    w->attached_ns = clock_ns();
    tally_add(&w->seat->tally.attached, 1);
    return true;
}

static void open_space(struct actor *w, unsigned i)
{
    struct pfx_space_desc d = space_of(i);
    if (!w->gone)
        CALL(w, "pfx_space_open", 0, pfx_space_open(w->c, &d, &w->space[i]));
}

/* ---- beside requests ----------------------------------------------------------------------- */

static void look_at_counters(struct actor *w)
{
    struct pfx_stats s = {.size = sizeof s};
    if (CALL(w, "pfx_stats", 0, pfx_stats(w->c, &s)) < 0)
        return;
    uint64_t sum =
        s.blocks_free + s.blocks_private + s.blocks_pinned + s.blocks_idle + s.blocks_inflight;
    EXPECT(w, sum == w->plan->blocks, "the five page counts sum to %llu, not %u",
           (unsigned long long)sum, w->plan->blocks);
}

static void peek(struct actor *w)
{
    struct hand h = {.lease = 0};
    request_draw(w, &h);
    struct pfx_lookup_args args = request_lookup(w, &h);
    struct pfx_peeked p = {.size = sizeof p};
    if (CALL(w, "pfx_peek_full", 0, pfx_peek_full(w->c, &args, &p)) == 0)
        EXPECT(w, p.matched_tokens + p.tail_tokens <= h.text.n && p.snapshot_depth <= h.text.n,
               "peek: %u and %u tokens matched of %u", p.matched_tokens, p.tail_tokens, h.text.n);
    text_free(&h.text);
}

static void reopen_space(struct actor *w)
{
    unsigned i = 1 + dice_below(&w->dice, SPACES - 1);
    if (CALL(w, "pfx_space_close", 0, pfx_space_close(w->c, w->space[i])) == 0)
        open_space(w, i);
}

static void chore(struct actor *w)
{
    struct pfx_evicted e = {.size = sizeof e};
    struct pfx_spilled s = {.size = sizeof s};
    switch (dice_below(&w->dice, 10)) {
    case 0:
        CALL(w, "pfx_evict", 0, pfx_evict(w->c, dice_below(&w->dice, 8), &e));
        break;
    case 1:
        CALL(w, "pfx_snapshot_evict", ERROR(PFX_ENOENT), pfx_snapshot_evict(w->c));
        break;
    case 2:
        if (CALL(w, "pfx_snapshot_spill", ERROR(PFX_ENOENT) | ERROR(PFX_ENOSPC) | ERROR(PFX_EIO),
                 pfx_snapshot_spill(w->c, 0, &s)) == 0 &&
            !s.dropped && dice_one_in(&w->dice, 4))
            CALL(w, "pfx_snapshot_forget", ERROR(PFX_ENOENT), pfx_snapshot_forget(w->c, s.key));
        break;
    case 3:
        reopen_space(w);
        break;
    case 4:
        CALL(w, "pfx_ping", 0, pfx_ping(w->c));
        break;
    case 5:
    case 6:
        peek(w);
        break;
    default:
        look_at_counters(w);
    }
}

/* ---- its life -------------------------------------------------------------------------------- */

static void step(struct actor *w)
{
    struct hand *h = &w->hand[dice_below(&w->dice, HANDS)];
    uint32_t dice = dice_below(&w->dice, 16);
    if (dice == 0)
        chore(w);
    else if (dice <= 2)
        flight_run(w);
    else if (h->lease)
        request_end(w, h);
    else
        request_begin(w, h);
    if (!w->gone && mate_exists(w))
        mate_serve(w);
    if (dice_one_in(&w->dice, 8))
        nap_us(dice_below(&w->dice, 1500));
}

int worker_live(const struct cast *cast)
{
    struct actor w = {.cast = cast,
                      .plan = cast->plan,
                      .stage = cast->stage,
                      .seat = &cast->stage->seat[cast->seat],
                      .dice = dice_of(cast->plan->seed, 100, cast->seat, cast->birth)};
    while (!shm_load_acquire(&w.stage->stop)) {
        w.gone = w.cut = false;
        if (!attach(&w))
            continue;
        w.space[0] = 0;
        for (unsigned i = 1; i < SPACES; i++)
            open_space(&w, i);
        while (!w.gone && !shm_load_acquire(&w.stage->stop))
            step(&w);
        for (unsigned i = 0; i < HANDS && !w.gone; i++)
            if (w.hand[i].lease && dice_one_in(&w.dice, 2)) /* the rest goes with the connection */
                request_end(&w, &w.hand[i]);
        detach(&w);
    }
    for (unsigned i = 0; i < HANDS; i++)
        text_free(&w.hand[i].text);
    return 0;
}
