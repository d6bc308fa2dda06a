/* One round: the daemon, its workers, and what the schedule does to them. */
#include "tests/chaos/chaos.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BIRTH_MS = 150,            /* until a seat is taken again, at most */
    MATE_MS = 400,             /* a mate outlives the other by that, at most */
    HOME_MS = 2 * DEADLINE_MS, /* for workers that were told to stop */
    FLUSH_TRIES = 2000,
    LATE_NS = 20 * 1000000, /* of the pulse: less is how a scheduler works */
    PULSE_US = 2000,
    DISK_LATE_NS = 100 * 1000000, /* of the pulse that writes */
    DISK_PULSE_US = 50000,
};

struct occupant {
    pid_t pid;   /* 0: nobody */
    bool doomed; /* it was killed, or told to end: that is no finding */
    unsigned births;
    uint64_t again_ms; /* the seat may be taken again; 0: when its mate's may */
    uint64_t wake_ms;  /* stopped until then; 0: it is not */
    uint64_t end_ms;   /* its mate is dead: it dies then; 0: no */
    uint64_t blamed;   /* since_ns of the call that has been counted as too long */
};

struct director {
    const struct plan *plan;
    const struct workload *work;
    struct stage *stage;
    struct house house;
    struct totals *totals;
    struct occupant seat[SEATS_MAX];
    struct dice dice;        /* for what is not in the schedule */
    uint64_t calm_ms;        /* the disk's faults end then; 0: there are none */
    pid_t pulse, disk_pulse; /* the second: 0 without a disk */
    bool fallen;             /* the daemon is not there any more, or nothing is right any more */
};

void stage_find(struct stage *s, const char *format, ...)
{
    uint32_t i = __atomic_fetch_add(&s->n_findings, 1, __ATOMIC_ACQ_REL);
    if (i >= FINDINGS_MAX)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(s->finding[i], FINDING_ROOM, format, args);
    va_end(args);
}

/* ---- births -------------------------------------------------------------------------------- */

static pid_t child(void)
{
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(98);
    }
    return pid;
}

static void pulse_run(struct stage *s)
{
    for (;;) {
        uint64_t before = clock_ns();
        nap_us(PULSE_US);
        uint64_t late = clock_ns() - before - PULSE_US * 1000ull;
        if (late > LATE_NS)
            tally_add(&s->late_ns, late);
    }
}

static void disk_pulse_run(struct stage *s, const char *dir)
{
    static _Alignas(4096) char page[4096];
    char path[200];
    snprintf(path, sizeof path, "%s/pulse", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_DSYNC | O_CLOEXEC, 0600);
    for (;;) {
        uint64_t before = clock_ns();
        if (pwrite(fd, page, sizeof page, 0) != (ssize_t)sizeof page)
            _exit(0); /* then nothing is taken off */
        uint64_t late = clock_ns() - before;
        if (late > DISK_LATE_NS)
            tally_add(&s->disk_late_ns, late);
        nap_us(DISK_PULSE_US);
    }
}

/* The library asks for libcuda.so.1, and gets the one that is loaded already. */
static void load_fake_cuda(struct stage *s)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("CHAOS_FAKE_CUDA"));
    if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
        stage_find(s, "the driver that is not real cannot be loaded: %s", dlerror());
        _exit(1);
    }
}

static void seat_birth(struct director *d, unsigned i)
{
    struct occupant *o = &d->seat[i];
    struct seat *seat = &d->stage->seat[i];
    struct cast cast = {d->plan, d->work, d->stage, d->house.socket, i, o->births};
    seat->since_ns = seat->released_ns = 0;
    seat->order = 0;
    pid_t pid = child();
    if (pid == 0) {
        pfx_close(d->house.c); /* the child's copy: what it cuts is its own */
        if (d->plan->cuda)
            load_fake_cuda(d->stage);
        _exit(worker_live(&cast));
    }
    *o = (struct occupant){.pid = pid > 0 ? pid : 0, .births = o->births + 1};
}

/* ---- deaths -------------------------------------------------------------------------------- */

static void seat_kill(struct director *d, unsigned i)
{
    struct occupant *o = &d->seat[i];
    o->doomed = true;
    kill(o->pid, SIGKILL);
}

static unsigned mate_of(const struct director *d, unsigned i)
{
    unsigned mate = i ^ 1u;
    return i % 4 < 2 && mate < d->plan->workers ? mate : i;
}

/* A group must end now and then, or what its dead have left is there for good: so the mate of one
 * that died dies as well, some time later, and both are born again together. */
static void seat_empty(struct director *d, unsigned i)
{
    struct occupant *o = &d->seat[i], *mate = &d->seat[mate_of(d, i)];
    uint32_t taken = OFFER_TAKEN;
    uint64_t now = now_ms();
    o->pid = 0;
    o->wake_ms = o->end_ms = 0;
    o->again_ms = now + 1 + dice_below(&d->dice, BIRTH_MS);
    if (mate == o)
        return;
    __atomic_compare_exchange_n(&d->stage->seat[mate_of(d, i)].offer.state, &taken, OFFER_NONE,
                                false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (mate->pid && !mate->end_ms)
        mate->end_ms = now + 1 + dice_below(&d->dice, MATE_MS);
}

static void seat_ended(struct director *d, unsigned i, int status)
{
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    d->totals->kills += killed;
    if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        const char *what = shm_load(&d->stage->seat[i].what);
        stage_find(d->stage,
                   "worker %u (process %d) ended with wait status 0x%x; its last call: %s", i,
                   (int)d->seat[i].pid, (unsigned)status, what ? what : "none");
        tally_add(&d->stage->seat[i].tally.wrong_answers, 1);
    }
    seat_empty(d, i);
}

static void reap(struct director *d)
{
    for (unsigned i = 0; i < d->plan->workers; i++) {
        int status;
        pid_t pid = d->seat[i].pid;
        if (pid && waitpid(pid, &status, WNOHANG) == pid)
            seat_ended(d, i, status);
    }
}

static void births(struct director *d)
{
    uint64_t now = now_ms();
    for (unsigned i = 0; i < d->plan->workers; i++) {
        const struct occupant *mate = &d->seat[mate_of(d, i)];
        bool alone = mate == &d->seat[i] || !mate->end_ms;
        if (!d->seat[i].pid && d->seat[i].again_ms <= now && alone)
            seat_birth(d, i);
    }
}

/* ---- stops --------------------------------------------------------------------------------- */

static void seat_wake(struct director *d, unsigned i)
{
    struct occupant *o = &d->seat[i];
    if (!o->wake_ms)
        return;
    o->wake_ms = 0;
    shm_store_release(&d->stage->seat[i].released_ns, clock_ns());
    kill(o->pid, SIGCONT);
}

static void seat_stop(struct director *d, unsigned i, uint32_t ms)
{
    struct occupant *o = &d->seat[i];
    if (o->wake_ms)
        return;
    o->wake_ms = now_ms() + ms;
    kill(o->pid, SIGSTOP);
    d->totals->stops++;
}

/* Who is due; and calls that have not come back at all. */
static void look_at_seats(struct director *d)
{
    uint64_t now = now_ms();
    for (unsigned i = 0; i < d->plan->workers; i++) {
        struct occupant *o = &d->seat[i];
        struct seat *seat = &d->stage->seat[i];
        if (!o->pid)
            continue;
        if (o->wake_ms && o->wake_ms <= now)
            seat_wake(d, i);
        if (o->end_ms && o->end_ms <= now)
            seat_kill(d, i);
        uint64_t since = shm_load_acquire(&seat->since_ns), begun = since / 1000000;
        uint64_t down = shm_load(&d->stage->down_ns) / 1000000;
        begun = down > begun ? down : begun;
        if (!since || o->wake_ms || o->blamed == since || now < begun + 2 * CALL_MS ||
            now < shm_load(&seat->released_ns) / 1000000 + 2 * CALL_MS)
            continue;
        o->blamed = since;
        tally_add(&seat->tally.deadline_misses, 1);
        stage_find(d->stage, "worker %u (process %d): %s has not come back in %llu ms", i,
                   (int)o->pid, seat->what, (unsigned long long)(now - begun));
        seat_kill(d, i);
    }
}

/* ---- the daemon and its disk ------------------------------------------------------------------
 */

static void calm(struct director *d)
{
    struct stage *s = d->stage;
    shm_store(&s->read_faults, 0);
    shm_store(&s->write_faults, 0);
    shm_store(&s->lies, 0);
    shm_store(&s->delays, 0);
    shm_store(&s->full, 0);
    d->calm_ms = 0;
}

static void disk_event(struct director *d, const struct event *e)
{
    struct stage *s = d->stage;
    calm(d);
    uint32_t *const kind[DISK_KINDS] = {&s->read_faults, &s->write_faults, &s->lies, &s->delays,
                                        &s->full};
    shm_store(kind[e->c], e->b);
    d->calm_ms = now_ms() + e->a;
}

/* While the daemon ends. */
static void meanwhile(void *arg)
{
    struct director *d = arg;
    reap(d);
    births(d);
    look_at_seats(d);
}

static void restart(struct director *d, const struct event *e)
{
    calm(d); /* what it reads when it starts must not be lies */
    house_end(&d->house, e->a);
    d->totals->restarts++;
    d->totals->disk_faults += disk_damage(&d->house, (enum damage)e->b, e->salt);
    for (uint64_t until = now_ms() + e->c; now_ms() < until; nap_us(1000))
        meanwhile(d);
    d->fallen = !house_start(&d->house) || !house_connect(&d->house);
}

/* A flush that the disk has not got yet counts for this daemon alone: so it is repeated until it is
 * there, before anything else happens. */
static void flush(struct director *d, unsigned space)
{
    struct stage *s = d->stage;
    pfx *c = d->house.c;
    pfx_space number = 0;
    struct pfx_space_desc desc = space_of(space);
    int rc = space ? pfx_space_open(c, &desc, &number) : 0;
    if (rc == 0) {
        shm_store_release(&s->flush_begun[space], s->flush_begun[space] + 1);
        rc = pfx_flush(c, number);
        for (int tries = 0; rc == PFX_EIO && tries < FLUSH_TRIES; tries++) {
            calm(d);
            nap_us(10000);
            rc = pfx_flush(c, number);
        }
        shm_store_release(&s->flush_done[space], s->flush_begun[space]);
        d->totals->flushes++;
    }
    if (rc == 0 && space)
        rc = pfx_space_close(c, number);
    if (rc < 0 && !house_fell(&d->house))
        stage_find(s, "the director's flush of space %u: %s (%s)", space, pfx_strerror(rc),
                   pfx_why(c));
}

/* ---- events ------------------------------------------------------------------------------------
 */

static void happen(struct director *d, const struct event *e)
{
    struct occupant *o = &d->seat[e->seat];
    switch (e->act) {
    case ACT_KILL:
        if (o->pid)
            seat_kill(d, e->seat);
        break;
    case ACT_ORDER:
        shm_store(&d->stage->seat[e->seat].order, e->a + 256 * e->b);
        break;
    case ACT_STOP:
        if (o->pid)
            seat_stop(d, e->seat, e->a);
        break;
    case ACT_RESTART:
        restart(d, e);
        break;
    case ACT_FLUSH:
        flush(d, e->a);
        break;
    case ACT_DISK:
        disk_event(d, e);
        break;
    case ACT_ROT:
        d->totals->disk_faults += disk_rot(&d->house, e->salt);
        break;
    default:
        house_audit(&d->house);
        d->totals->audits++;
    }
}

static void play(struct director *d, const struct schedule *s)
{
    uint64_t began = now_ms();
    for (size_t i = 0; now_ms() - began < d->plan->ms && !d->fallen;) {
        for (; i < s->n && s->event[i].ms <= now_ms() - began && !d->fallen; i++)
            happen(d, &s->event[i]);
        reap(d);
        births(d);
        look_at_seats(d);
        if (d->calm_ms && d->calm_ms <= now_ms())
            calm(d);
        d->fallen |= house_fell(&d->house) || shm_load(&d->stage->n_findings) >= FINDINGS_MAX;
        nap_us(1000);
    }
}

/* Half of the workers are told to come home, the others are killed where they are. */
static void end_workers(struct director *d)
{
    calm(d);
    shm_store_release(&d->stage->stop, 1u);
    for (unsigned i = 0; i < d->plan->workers; i++) {
        d->seat[i].end_ms = 0;
        seat_wake(d, i);
        if (d->seat[i].pid && dice_one_in(&d->dice, 2))
            seat_kill(d, i);
    }
    unsigned left = 1;
    for (uint64_t until = now_ms() + HOME_MS + CALL_MS; left && now_ms() < until; nap_us(500)) {
        reap(d);
        left = 0;
        for (unsigned i = 0; i < d->plan->workers; i++) {
            d->seat[i].end_ms = 0;
            left += d->seat[i].pid != 0;
        }
    }
    for (unsigned i = 0; i < d->plan->workers; i++) {
        if (!d->seat[i].pid)
            continue;
        const char *what = shm_load(&d->stage->seat[i].what);
        tally_add(&d->stage->seat[i].tally.deadline_misses, 1);
        stage_find(d->stage, "worker %u (process %d) does not come home; its last call: %s", i,
                   (int)d->seat[i].pid, what ? what : "none");
        seat_kill(d, i);
        waitpid(d->seat[i].pid, NULL, 0);
    }
}

/* ---- the sum ------------------------------------------------------------------------------------
 */

static void add_up(struct totals *t, const struct stage *s)
{
    for (unsigned i = 0; i < SEATS_MAX; i++) {
        const struct tally *of = &s->seat[i].tally;
#define TALLY_SUM(name) t->tally.name += of->name;
        TALLY(TALLY_SUM)
#undef TALLY_SUM
        if (of->worst_ns > t->tally.worst_ns)
            t->tally.worst_ns = of->worst_ns;
    }
    t->disk_faults += s->disk_faults;
    t->late_ns += s->late_ns;
    t->disk_late_ns += s->disk_late_ns;
    t->findings += s->n_findings;
    t->rounds++;
}

static void show_findings(const struct director *d)
{
    const struct stage *s = d->stage;
    uint32_t n = s->n_findings < FINDINGS_MAX ? s->n_findings : FINDINGS_MAX;
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "chaos: round %u: %s\n", d->plan->round, s->finding[i]);
    if (s->n_findings > n)
        fprintf(stderr, "chaos: and %u more\n", s->n_findings - n);
    if (n)
        house_show_log(&d->house, 30);
}

void round_run(const struct plan *p, const struct workload *work, const char *swap_dir, bool keep,
               struct totals *t)
{
    struct director d = {.plan = p, .work = work, .totals = t};
    struct schedule schedule = schedule_draw(p);
    d.dice = dice_of(p->seed, 300, 0, 0);
    d.stage =
        mmap(NULL, sizeof *d.stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (d.stage == MAP_FAILED)
        abort();
    d.pulse = child();
    if (d.pulse == 0)
        pulse_run(d.stage);
    d.house.meanwhile = meanwhile;
    d.house.arg = &d;
    if (house_begin(&d.house, p, d.stage, swap_dir)) {
        d.disk_pulse = p->paths ? child() : 0;
        if (p->paths && d.disk_pulse == 0)
            disk_pulse_run(d.stage, d.house.path[0]);
        play(&d, &schedule);
        end_workers(&d);
        d.house.meanwhile = NULL; /* nobody is born any more */
        if (!d.fallen && !house_fell(&d.house))
            judge(&d.house, t);
        house_end(&d.house, true);
    }
    const pid_t pulses[2] = {d.pulse, d.disk_pulse};
    for (int i = 0; i < 2; i++)
        if (pulses[i] > 0 && kill(pulses[i], SIGKILL) == 0)
            waitpid(pulses[i], NULL, 0);
    t->device_faults += house_device_faults(&d.house);
    add_up(t, d.stage);
    show_findings(&d);
    house_remove(&d.house, keep && d.stage->n_findings);
    munmap(d.stage, sizeof *d.stage);
    free(schedule.event);
}
