/*
 * house.h - a whole daemon in this process, and who lives there: guests, that say what the input
 * tells them, and an honest worker, that must not notice.
 *
 *      house_round    every waiting event, work in the background, a turn of each session: what
 *                     daemon_run does without ever sleeping. No round may take long.
 *      guests         struct raw, attached through the real socket
 *      honest         has three blocks cached in a space of its own, and holds them; from time to
 *                     time it looks: bytes must be right, and the answer is there within two rounds
 *
 * After each round no ring may hold more than it can.
 *
 * Time is the house's own (--wrap=clock_gettime), random numbers are always the same
 * (--wrap=getrandom), and the hash of the index can be made worse (--wrap=geometry_plan): so an
 * input means the same each time it is tried.
 */
#ifndef TESTS_FUZZ_HOUSE_H
#define TESTS_FUZZ_HOUSE_H

#include "daemon/daemon.h"
#include "tests/fuzz/fuzz.h"
#include "tests/raw.h"

enum { HOUSE_BLOCK = 64, HOUSE_STATE = 192, HONEST_BLOCKS = 3 };
/* Rounds until a call is answered: one that waits for nobody, and one that may wait for the disk.
 */
enum { IN_TIME = 2, PATIENCE = 20000 };

struct house {
    struct host host; /* its socket, for raw_connect */
    struct options options;
    struct daemon d;
    void (*tick)(void *arg); /* once a round; NULL: nothing */
    void *arg;
    bool threads; /* there are others than this one: they need their time */
};

/* Once in a process: a directory for the socket, and no words on standard output. */
const char *house_init(void);

/* Options of prefixd, NULL ends them; --socket and the like are added. False: it does not start. */
bool house_start(struct house *h, const char *const *options);
bool house_start_with(struct house *h); /* h->options are read already */
void house_stop(struct house *h);
void house_hash(uint64_t mask); /* of the next index */
bool house_lease(uint64_t id);  /* was one of this number ever opened? */
void house_wait(uint64_t ns);   /* time goes by */
void house_real_time(void);     /* ... as it does elsewhere: with a real disk */

void house_round(struct house *h);
/* No finding, and no session, lease, page or slot but those of n workers that hold so much. */
void house_audit(struct house *h);

/* ---- who comes ---- */

bool guest_open(struct house *h, struct raw *r, const char *name, const char *group,
                uint32_t ring_entries, bool with_layout);
void guest_close(struct house *h, struct raw *r); /* hangs up, and a round */
/* The descriptors of a packet are kept if it is a WELCOME; false: nothing, or the end. */
bool guest_welcome(struct raw *r);

/* The answer, in so many rounds. */
struct wire_completion guest_call(struct house *h, struct raw *r, struct request rq, int rounds);

struct honest {
    struct raw w;
    uint64_t space, lease;
    uint32_t table[HONEST_BLOCKS];
    uint32_t tokens[HONEST_BLOCKS * BLOCK_TOKENS_MAX + 1];
    bool mistrusts; /* others may have written what it reads: only that it is served counts */
};

void honest_open(struct house *h, struct honest *x);
/* Its pages are as they were, and a lookup is answered in time, with right bytes. */
void honest_look(struct house *h, struct honest *x);
/* All it does: lookup, fetch, reserve, write, insert, look again. Nobody else is there. */
void honest_work(struct house *h, struct honest *x);
void honest_close(struct house *h, struct honest *x);

#endif
