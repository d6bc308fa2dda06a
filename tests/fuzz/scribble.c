/*
 * A region that changes while the daemon reads it, in two ways:
 *
 *   a second thread   flips bits all the time, as fast as it can: of records, arena, indexes and
 *                     wake-up word. What is hit is a matter of luck, and of processors.
 *   after each read   what the daemon has just read is changed before its next instruction. So it
 *                     never has the same from there twice, the same way each time an input is
 *                     tried. Who copies first, and works with the copy, does not notice.
 *
 * The latter, where processors can (x86-64): the daemon's own mapping of the region is forbidden to
 * it. An access faults; it is allowed for one instruction (the trap flag), and forbidden again.
 * What memcpy says in one instruction is one read.
 */
#include "tests/fuzz/fuzz_requests.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* ---- a second thread -------------------------------------------------------------------- */

enum { SCRIBBLES = 10 /* an input: where processors are few, each costs some milliseconds */ };

static struct {
    sem_t go, over;
    uint32_t running, stop;
    unsigned kind;
    struct guest *guest;
    bool made;
} scribbler;

/* The record that was posted last, the arena's beginning, the indexes and the wake-up word: all,
 * these rarely; or one of them alone. */
static void scribble(struct guest *g, struct rng *r)
{
    uint8_t *base = g->w.request.base;
    uint32_t dice = rng_below(r, 64), kind = scribbler.kind;
    uint32_t last = (g->w.out.tail - 1) & (g->w.out.size - 1);
    uint32_t *word = (uint32_t *)(void *)g->w.arena + rng_below(r, 512);
    if (kind == 1 || (kind == 0 && dice < 24))
        word = (uint32_t *)(void *)(base + CHANNEL_RING + last * RING_RECORD) + rng_below(r, 16);
    if (kind == 3 || (kind == 0 && dice == 63))
        word = (uint32_t *)(void *)(base + CHANNEL_WORDS) + rng_below(r, 3) * 16;
    __atomic_fetch_xor(word, 1u << rng_below(r, dice & 1 ? 32 : 4), __ATOMIC_RELAXED);
}

static void *scribble_on(void *arg)
{
    struct rng r = {1};
    (void)arg;
    for (;;) {
        while (sem_wait(&scribbler.go))
            continue;
        __atomic_store_n(&scribbler.running, 1, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&scribbler.stop, __ATOMIC_ACQUIRE))
            scribble(scribbler.guest, &r);
        sem_post(&scribbler.over);
    }
    return NULL;
}

static void thread_begin(struct scene *s, struct guest *g)
{
    pthread_t thread;
    if (s->steps % 4 || s->scribbles++ >= SCRIBBLES)
        return;
    if (!scribbler.made) {
        REQUIRE(sem_init(&scribbler.go, 0, 0) == 0 && sem_init(&scribbler.over, 0, 0) == 0);
        REQUIRE(pthread_create(&thread, NULL, scribble_on, NULL) == 0);
        scribbler.made = true;
    }
    scribbler.guest = g;
    scribbler.kind = s->shape.scribble / 8 % 4;
    scribbler.stop = scribbler.running = 0;
    sem_post(&scribbler.go);
    while (!__atomic_load_n(&scribbler.running, __ATOMIC_ACQUIRE))
        sched_yield();
    g->lies = true;
}

static void thread_end(void)
{
    if (!scribbler.running)
        return;
    __atomic_store_n(&scribbler.stop, 1, __ATOMIC_RELEASE);
    while (sem_wait(&scribbler.over))
        continue;
    scribbler.running = 0;
}

/* ---- after each read ----------------------------------------------------------------------- */

#if defined(__x86_64__)

enum { TRAP_FLAG = 0x100 };

static struct {
    uint8_t *daemons, *guests; /* the same region */
    size_t n;
    size_t read; /* from here on, just now */
    struct rng rng;
    struct sigaction fault, trap; /* whose they were */
} forbidden;

/* Bits of n bytes there. An index that is changed ends the session, so that is rare. */
static void change(size_t at, size_t n)
{
    struct rng *r = &forbidden.rng;
    if (at < CHANNEL_RING && rng_below(r, 16))
        return;
    for (size_t end = at + n; at + 8 <= end; at += 8)
        if (rng_below(r, 2) == 0)
            *(uint64_t *)(void *)(forbidden.guests + (at & ~7ul)) ^= 1ull << rng_below(r, 64);
}

static void allow(int how)
{
    if (mprotect(forbidden.daemons, forbidden.n, how))
        abort();
}

/* rep movsb, which would trap at each byte, is done here. */
static bool copied(size_t read, greg_t *reg)
{
    const uint8_t *next = (const uint8_t *)reg[REG_RIP];
    size_t n = (size_t)reg[REG_RCX];
    if (next[0] != 0xf3 || next[1] != 0xa4 || n > forbidden.n - read ||
        (uint8_t *)reg[REG_RSI] != forbidden.daemons + read)
        return false;
    memcpy((void *)reg[REG_RDI], forbidden.guests + read, n);
    change(read, n);
    reg[REG_RSI] += (greg_t)n;
    reg[REG_RDI] += (greg_t)n;
    reg[REG_RCX] = 0;
    reg[REG_RIP] += 2;
    return true;
}

static void faulted(int sig, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    size_t read = (size_t)((uint8_t *)info->si_addr - forbidden.daemons);
    (void)sig;
    if (read >= forbidden.n) { /* somebody else's: it faults again */
        sigaction(SIGSEGV, &forbidden.fault, NULL);
        return;
    }
    if (copied(read, at->uc_mcontext.gregs))
        return;
    forbidden.read = read;
    allow(PROT_READ | PROT_WRITE);
    at->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void trapped(int sig, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    (void)sig;
    (void)info;
    at->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    change(forbidden.read, 8);
    allow(PROT_NONE);
}

static const struct session *session_of(struct scene *s, const struct guest *g)
{
    list_each (at, after, &s->h.d.sessions)
        if (list_entry(at, struct session, link)->number == g->w.welcome.worker)
            return list_entry(at, struct session, link);
    return NULL;
}

static void reads_begin(struct scene *s, struct guest *g)
{
    struct sigaction fault = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO},
                     trap = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    const struct session *theirs = session_of(s, g);
    if (!theirs)
        return;
    forbidden.daemons = theirs->request_region.base;
    forbidden.guests = g->w.request.base;
    forbidden.n = theirs->request_region.bytes;
    forbidden.rng.state = s->steps;
    REQUIRE(sigaction(SIGSEGV, &fault, &forbidden.fault) == 0);
    REQUIRE(sigaction(SIGTRAP, &trap, &forbidden.trap) == 0);
    allow(PROT_NONE);
    g->lies = true;
}

static void reads_end(struct scene *s, struct guest *g)
{
    if (!forbidden.n)
        return;
    if (session_of(s, g)) /* else the mapping is gone */
        allow(PROT_READ | PROT_WRITE);
    forbidden.n = 0;
    sigaction(SIGSEGV, &forbidden.fault, NULL);
    sigaction(SIGTRAP, &forbidden.trap, NULL);
}

#else

static void reads_begin(struct scene *s, struct guest *g)
{
    (void)s;
    (void)g;
}

static void reads_end(struct scene *s, struct guest *g)
{
    (void)s;
    (void)g;
}

#endif

void scribble_begin(struct scene *s, struct guest *g)
{
    if (!g->open)
        return;
    if (s->shape.scribble % 8 == 1)
        thread_begin(s, g);
    if (s->shape.scribble % 8 == 2)
        reads_begin(s, g);
}

void scribble_end(struct scene *s, struct guest *g)
{
    thread_end();
    reads_end(s, g);
}
