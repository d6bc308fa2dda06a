/*
 * session.h - one attached worker: its socket, pidfd, channel, group, and what it opened.
 *
 * A session ends when its worker says BYE, hangs up, dies (pidfd), or breaks its ring. What it
 * holds is written down here, in the daemon's private memory; giving it back is one walk.
 *
 * A group is (user id, name): processes that act as one engine. Leases belong to the group, so a
 * killed scheduler's pages stay held while its ranks still write into them; the last attached
 * member's end gives them back. After that the name is a new group.
 */
#ifndef DAEMON_SESSION_H
#define DAEMON_SESSION_H

#include "daemon/list.h"
#include "daemon/pool.h"
#include "daemon/snapshot.h"
#include "daemon/watch.h"
#include "shm/message.h"
#include "shm/ring.h"
#include "shm/segment.h"

#include <sys/types.h>

struct daemon;

struct group {
    struct list link;     /* daemon.groups */
    struct list leases;   /* struct lease.of_group */
    struct list dead;     /* struct dead_member: members whose leases stay (group.c) */
    uint64_t n_leases;    /* all of them, those of the dead included */
    uint64_t n_pages;     /* reserved by them, published or not, or about to be: jobs */
    uint64_t n_slots;     /* reserved by them and not filed */
    uint32_t members;     /* attached sessions */
    uint32_t ghosts;      /* of it, in quarantine; then what it gives back is confined */
    struct list confined; /* daemon.confined */
    struct page_chain pages, slots;
    uid_t uid;
    char name[64]; /* empty: one session's own */
};

/* A space that this session has open. */
struct opened_space {
    uint32_t slot;
    uint32_t count;
};

/* An operation that goes on over several turns, because it moves many blocks. The session's later
 * records wait for it, but not while it waits for the disk; other sessions never do. */
struct job {
    uint32_t op; /* OP_NOP: none */
    struct request request;
    uint64_t left;           /* blocks still to move */
    uint64_t freed, removed; /* EVICT */
    uint32_t *pages;         /* RESERVE: taken so far */
    uint32_t n_pages;
    struct place root;   /* FLUSH: the condemned root being emptied; node 0: none */
    uint32_t slot;       /* FLUSH of all: the next space */
    uint64_t lease;      /* LOOKUP, FETCH: whose snapshot comes back from the lower tier */
    bool begun;          /* that has begun */
    uint64_t began_ns;   /* to wait for pages; 0: it does not */
    uint64_t since_ns;   /* it waits for a transfer; 0: it does not */
    uint32_t n_absent;   /* LOOKUP, FETCH: blocks to read; 0: that is over */
    struct fetch *fetch; /* of them; NULL: it has no pages yet */
    struct disk_flush *disk_flush; /* FLUSH: on its way */
    bool reaped;                   /* FLUSH: only the disk is left */
    struct spill spill;            /* SNAPSHOT_SPILL */
};

struct waiting {
    struct list link; /* session.waiting */
    struct job job;
};

struct session {
    struct list link; /* daemon.sessions */
    uint64_t number;  /* counts up from 1 in an epoch */
    struct group *group;
    struct dead_member *obituary; /* for its group, if it dies */
    struct list leases;           /* struct lease.of_session: those that this one opened */
    uint32_t n_leases;
    int fd, pidfd;        /* pidfd < 0: the kernel gave none, hang-up alone */
    bool hung_up, exited; /* what was seen of its end */
    uint64_t maps;        /* hello.maps */
    pid_t pid;
    uid_t uid;
    gid_t gid;
    char name[32];

    struct watch on_socket, on_exit;
    struct segment request_region, completion_region;
    struct ring_reader requests;
    struct ring_writer completions;
    const uint8_t *request_arena; /* hostile memory: copy, check, use the copy */
    uint8_t *completion_arena;
    uint32_t arena_bytes;
    const uint32_t *worker_doze;
    uint32_t doze_answered;

    struct job job;
    bool blocked;        /* it waits for the disk, and there is no room to set it aside */
    struct list waiting; /* jobs that wait for the disk: no more than its ring has entries */
    uint32_t n_waiting;
    struct opened_space *opened;
    uint32_t n_opened, cap_opened;
    uint64_t n_requests;
    uint64_t private_blocks; /* reserved by leases that it opened */
};

/* Attach the peer that sent `hello` on fd; answers WELCOME with descriptors, or a refusal (and
 * then closes fd). */
void session_attach(struct daemon *d, int fd, const struct hello *hello);

/* The last of it: regions, descriptors. */
void session_free(struct daemon *d, struct session *s);

/* End it. clean: the worker said BYE, so its own leases go at once even if its group lives on. */
void session_end(struct daemon *d, struct session *s, bool clean, const char *why);

/* Drain up to a turn's work of its request ring. True if it had any. May end the session. */
bool session_turn(struct daemon *d, struct session *s);

/* What a turn would find. PAUSED: its completion ring is full; only the worker can change that.
 * WAITING: what is left waits for the disk. */
enum session_state { SESSION_IDLE, SESSION_READY, SESSION_WAITING, SESSION_PAUSED };
enum session_state session_look(struct session *s);

#endif
