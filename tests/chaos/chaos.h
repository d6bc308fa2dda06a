/*
 * chaos.h - workers on real traces while processes die, sleep and restart, and disks and GPUs fail.
 *
 *      director    this process: a daemon, the schedule, faults, deadlines; at the end the judge
 *
 *      workers     a process each: request after request of the trace, every byte compared
 *
 *      device      a process that answers the daemon's reads and writes of its swap files
 *
 *      pulses      one naps, one writes: how late the machine, and its disk, let anybody go on
 *
 * A run is a list of rounds. A round has a plan (pool, tiers, faults: struct plan) and a schedule
 * (who is killed when, struct event); both follow from the seed and the round's number alone. What
 * the processes make of it does not repeat, but what happens to them does.
 *
 * They meet in memory that all share (struct stage): the director writes orders, workers write what
 * they do and what they find.
 *
 *      plan.c      what a round is like, and what happens in it
 *      director.c  events, births and deaths, calls that take too long
 *      house.c     the daemon: start, end, status, audit, log
 *      disk.c      what happens to its files, and to its reads and writes
 *      worker.c    a worker's life, deadlines    request.c, state.c   one request
 *      text.c      tokens, and the bytes that follow from them
 *      mate.c      leases that another member of the group goes on with
 *      flight.c    asynchronous calls
 *      judge.c     everything has come back
 */
#ifndef TESTS_CHAOS_CHAOS_H
#define TESTS_CHAOS_CHAOS_H

#include "client/prefixd.h"
#include "shm/atomic.h"
#include "shm/sanitized.h"
#include "tools/measure.h"
#include "tools/replay.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SEATS_MAX = 32, SPACES = 6, FINDINGS_MAX = 24, FINDING_ROOM = 512, PATHS_MAX = 3 };

/* Sanitizers slow everything: only time limits look at this. */
enum { SLOW = SANITIZED_ADDRESS || SANITIZED_THREAD ? 2 : 1 };

/* How long a call of a worker may take. The longest wait that the daemon has by its contract is
 * that of a reserve for idle blocks to be written, half a second; a fetch waits for the disk, whose
 * operations are held up by a millisecond each at most. The rest is for two cores that twenty
 * processes share. What is not counted: time before the worker was let go on, before the daemon's
 * last end, and in which the machine let nobody run, or its disk let nobody write. A call that
 * waits for somebody who is dead or stopped takes longer, or never ends: CALL_MS is when the
 * library gives up. */
enum { DEADLINE_MS = 2000 * SLOW, CALL_MS = 5 * DEADLINE_MS };

/* A lease in each hand, and some that were cancelled and are on their way back: a worker that needs
 * more has lost some. */
enum { LEASES_NEEDED = 6 };

/* ---- what is drawn -------------------------------------------------------------------- */

struct dice {
    uint64_t state;
};
uint64_t dice_next(struct dice *d);
uint32_t dice_below(struct dice *d, uint32_t n); /* 0 .. n-1 */
bool dice_one_in(struct dice *d, uint32_t n);
uint32_t dice_between(struct dice *d, uint32_t low, uint32_t high);
struct dice dice_of(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

struct plan {
    uint64_t seed;
    unsigned round, workers;
    uint32_t ms;
    bool cuda, ipc;
    bool filtered;  /* reads and writes of swap files go through our device */
    bool bad_media; /* contents of swap files are damaged: slots are retired for good */
    uint32_t block_tokens, id_tokens; /* a trace's id stands for so many tokens */
    uint32_t blocks, block_bytes, devices, slots, slot_bytes, tier;
    uint32_t paths, path_kib, admit, depth, leases, spin_us, spill_min;
    bool write_early; /* --swap-write insert */
    bool alpha;
    uint32_t window; /* prompts that are asked for at a time */
    size_t first;    /* of the trace */
};

enum act {
    ACT_KILL,    /* SIGKILL for a worker                                               */
    ACT_ORDER,   /* an end that it brings upon itself, at the next point a of kind b   */
    ACT_STOP,    /* SIGSTOP for a ms                                                   */
    ACT_RESTART, /* of the daemon: a 0: SIGKILL, 1: SIGTERM; b: what happens to files; c: ms down */
    ACT_FLUSH,   /* of space a                                                         */
    ACT_DISK,    /* for a ms b per mille of reads and writes do c                      */
    ACT_ROT,     /* bytes of a file change under the daemon                            */
    ACT_AUDIT,
    ACTS
};

enum { DISK_KINDS = 5 }; /* EIO of reads, of writes; lies; delays; ENOSPC */

struct event {
    uint32_t ms;
    uint16_t act, seat;
    uint32_t a, b, c;
    uint64_t salt; /* for what has more to draw */
};

struct schedule {
    struct event *event;
    size_t n;
};

struct plan plan_draw(uint64_t seed, unsigned round, unsigned workers, uint32_t ms, int device,
                      bool disk, size_t n_prompts);
enum { DEVICE_MIXED, DEVICE_HOST_ONLY, DEVICE_CUDA_ONLY };
struct schedule schedule_draw(const struct plan *p);
void schedule_print(const struct plan *p, const struct schedule *s);

/* Tenants and adapters: 0 the base space, the rest in all ways apart. */
struct pfx_space_desc space_of(unsigned space);

/* ---- the stage -------------------------------------------------------------------------- */

/* Where a worker may come to an end by itself. */
enum point {
    POINT_NONE,
    POINT_LOOKUP,  /* holds a match                            */
    POINT_RESERVE, /* has private blocks                       */
    POINT_FILL,    /* has written some of them                 */
    POINT_INSERT,  /* has published, and not released          */
    POINT_SLOT,    /* has a private slot                       */
    POINT_FLIGHT,  /* has asynchronous calls under way         */
    POINT_FETCH,   /* one of them brings blocks from disk      */
    POINT_OFFER,   /* a lease is offered to its mate           */
    POINTS
};
enum ending { ENDING_KILL, ENDING_EXIT, ENDING_CUT, ENDINGS }; /* CUT: shuts its socket, goes on */

#define TALLY(T)                                                                                   \
    T(requests)                                                                                    \
    T(calls)                                                                                       \
    T(hits)                                                                                        \
    T(disk_hits)                                                                                   \
    T(verified_blocks)                                                                             \
    T(corrupt_blocks)                                                                              \
    T(verified_states)                                                                             \
    T(corrupt_states)                                                                              \
    T(cut_short)                                                                                   \
    T(exits)                                                                                       \
    T(cancels) T(handed_over) T(deadline_misses) T(wrong_answers) T(device_faults) T(attached)

struct tally {
#define TALLY_FIELD(name) uint64_t name;
    TALLY(TALLY_FIELD)
#undef TALLY_FIELD
    uint64_t worst_ns; /* slowest call, what is not counted taken off */
};

/* A lease with private blocks, for the mate to fill and insert. Its maker does not close before it
 * is over: that would give the blocks back under the mate's hands. */
enum offer_state { OFFER_NONE, OFFER_MADE, OFFER_TAKEN };
struct offer {
    uint32_t state; /* enum offer_state */
    uint32_t life;
    uint64_t made_ns, lease, version;
    size_t prompt;
    uint32_t variant, space, n_tokens, n_matched, n_table;
    uint32_t table[512];
};

struct seat {
    uint32_t
        order; /* point + 256 * ending; 0: none. Written by the director, taken by its worker */
    uint32_t pad;
    const char *what; /* call under way; the program is the same in all processes */
    uint64_t since_ns;
    uint64_t late_ns, disk_late_ns; /* of the stage, when it began */
    uint64_t released_ns;           /* when it was let go on last; by the director */
    struct tally tally;
    struct offer offer;
};

struct stage {
    uint32_t stop;         /* workers close and end */
    uint32_t life;         /* of the daemon; odd: it is down, or about to be */
    uint64_t down_ns;      /* since when, or its last end */
    uint64_t late_ns;      /* what the pulse was late, all together */
    uint64_t disk_late_ns; /* the same of the one that writes */
    uint32_t flush_begun[SPACES], flush_done[SPACES];
    uint32_t read_faults, write_faults, lies, delays, full; /* per mille; for the device */
    uint64_t disk_faults;                                   /* that it has made */
    uint32_t n_findings;
    char finding[FINDINGS_MAX][FINDING_ROOM];
    struct seat seat[SEATS_MAX];
};

/* Somebody found something wrong: in words, with all that helps. */
void stage_find(struct stage *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t now_ms(void)
{
    return clock_ns() / 1000000;
}
static inline void nap_us(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}
static inline void tally_add(uint64_t *counter, uint64_t n) /* its one writer is alive or dead */
{
    shm_store(counter, shm_load(counter) + n);
}

/* ---- a round ------------------------------------------------------------------------------ */

struct house {
    const struct plan *plan;
    struct stage *stage;
    pid_t pid, device;    /* daemon; who answers for its disk, or 0 */
    unsigned life;        /* starts so far */
    uint64_t disk_errors; /* of the lives before */
    unsigned fds;         /* of the first life, with nobody attached; files not counted */
    char dir[96], socket[108], log[128];
    char path[PATHS_MAX][112];
    void (*meanwhile)(void *arg); /* while it is waited for; NULL: nothing */
    void *arg;
    pfx *c; /* the director's own connection: maps nothing; NULL while there is none */
};

/* False: it cannot be started, a finding says why. */
bool house_begin(struct house *h, const struct plan *p, struct stage *s, const char *swap_dir);
bool house_start(struct house *h);
/* SIGKILL or SIGTERM, which must end with exit status 0 in time. */
void house_end(struct house *h, bool kindly);
/* It has ended by itself: never right. */
bool house_fell(struct house *h);
void house_remove(struct house *h, bool keep);
void house_show_log(const struct house *h, int lines);
bool house_audit(struct house *h); /* false: there are findings */
/* All counters of prefixctl status; false: it did not answer. */
bool house_status(struct house *h, struct counters *c);
unsigned house_fds(const struct house *h);
unsigned house_device_faults(const struct house *h); /* that its log tells of */
bool house_connect(struct house *h);
void house_disconnect(struct house *h);

/* What may happen to a file while nobody has it open. */
enum damage { DAMAGE_NONE, DAMAGE_CUT, DAMAGE_GARBAGE, DAMAGE_BITS, DAMAGE_GONE, DAMAGES };
bool disk_damage(struct house *h, enum damage kind, uint64_t salt);
bool disk_rot(struct house *h, uint64_t salt); /* under the daemon's hands */
bool disk_within_budget(struct house *h);
/* In the child that becomes the daemon: its swap I/O is asked for through `to`. */
void disk_filter(int to);
/* In the director: the process that answers. */
pid_t disk_device(int from, struct stage *s, uint64_t seed);

struct totals {
    struct tally tally;
    uint64_t kills, stops, restarts, flushes, audits, disk_faults, device_faults;
    uint64_t leaked_blocks, leaked_slots, leaked_disk_slots, leaked_fds;
    uint64_t late_ns, disk_late_ns;
    unsigned rounds, findings;
};

/* One round, from its daemon's start to its verdict. */
void round_run(const struct plan *p, const struct workload *work, const char *swap_dir, bool keep,
               struct totals *t);
void judge(struct house *h, struct totals *t);

/* The life of a worker; the exit status of its process. */
struct cast {
    const struct plan *plan;
    const struct workload *work;
    struct stage *stage;
    const char *socket;
    unsigned seat, birth; /* births of this seat before */
};
int worker_live(const struct cast *cast);

#endif
