/*
 * lease.h - what a worker holds for one sequence.
 *
 *   block table    positions 0 .. matched-1     the held path (index)
 *                  positions matched .. table-1  pages[], reserved by this lease
 *
 *                  0        matched        path.where.depth        table
 *                  |--held---|--published----|------private----------|
 *
 * A page in pages[] is LEASE_PUBLISHED once the index owns it. A position below the held depth
 * whose page is not published is a duplicate: the index had one already, this one is freed at
 * release.
 *
 * A lease id carries its slot and a generation: 0 is never one, and an id used after release, or
 * by another group, is refused.
 */
#ifndef DAEMON_LEASE_H
#define DAEMON_LEASE_H

#include "daemon/index.h"
#include "daemon/list.h"

struct daemon;
struct session;
struct group;

#define LEASE_PUBLISHED 0x80000000u

struct lease {
    uint64_t id;
    struct list of_group, of_session; /* of_session is empty once its opener is gone */
    struct session *opener;           /* NULL: it has died, a group mate keeps the lease alive */
    struct dead_member *dead;         /* then who it was */
    struct group *group;
    uint32_t space;         /* slot */
    uint64_t space_number;
    uint64_t flushes;       /* the space's flush generation when it was opened */
    uint64_t session;       /* conversation */
    uint32_t tag;           /* of the lookup that opened it, for OP_CANCEL */
    bool opening;           /* a slow lookup whose last piece has not come */
    bool final;
    uint32_t final_tokens;  /* n_written of the final insert */

    struct hold path, tail, partial;
    uint32_t tail_block, tail_tokens; /* what `tail` holds, as it was offered */
    uint32_t matched;
    uint32_t inserted;      /* depth to which this lease has published, 0: not beyond matched */
    uint32_t duplicates;
    uint32_t *pages;
    uint32_t n_pages, cap_pages;

    uint32_t resident, tiered;      /* snapshots that it was offered and holds; 0: none */
    uint32_t n_slots, first_slot;   /* reserved and not yet saved: a list through lease_slot */
    struct lease_residue *residue;  /* NULL: none */
};

/* The tokens of the latest insert after its last whole block, and the extras that start in them:
 * what a snapshot may be saved at beyond the held path. Only where the pool has slots. */
struct lease_residue {
    uint32_t n_tokens, n_extras;
    struct wire_extra *extras;
    uint32_t tokens[];
};

/* By slot: whose it is while it is private, and the next one of that lease. */
struct lease_slot {
    struct lease *lease;
    uint32_t prev, next; /* 0: none */
};

struct leases {
    struct lease **slot;
    uint32_t *generation;
    uint32_t *free;
    uint32_t n_slots, n_free, n_used;
    uint32_t top; /* slots from here on were never used */
    struct lease_slot *snapshots; /* by snapshot slot; NULL: the pool has none */
};

/* `snapshots`: slots of the pool. */
bool leases_init(struct leases *ls, uint32_t n_slots, uint32_t snapshots);
void leases_deinit(struct leases *ls);

/* NULL: no memory or no slot (the caller answers PFX_ENOSPC). */
struct lease *lease_open(struct daemon *d, struct session *s, uint32_t space, uint64_t session,
                         uint32_t tag);

/* The lease of that id, if the session's group may use it; NULL: PFX_ESTALE. */
struct lease *lease_find(struct daemon *d, const struct session *s, uint64_t id);

/* From before a flush of its space: it may only be released. */
bool lease_is_stale(const struct daemon *d, const struct lease *l);

static inline uint32_t lease_table(const struct lease *l)
{
    return l->matched + l->n_pages;
}

/* n pages became private, or (negative) are it no longer: counted for the opener, dead or alive. */
void lease_count_private(struct lease *l, int64_t n);

/* Give back the private pages of positions from matched + keep on. */
void lease_drop_pages(struct daemon *d, struct lease *l, uint32_t keep);

/* A snapshot slot begins, or ends, to be the lease's; what is its. */
void lease_slot_add(struct daemon *d, struct lease *l, uint32_t slot);
void lease_slot_remove(struct daemon *d, struct lease *l, uint32_t slot);
bool lease_has_slot(const struct daemon *d, const struct lease *l, uint64_t slot);

/* End its holds on snapshots deeper than `tokens`. */
void lease_drop_snapshots(struct daemon *d, struct lease *l, uint64_t tokens);
void lease_drop_residue(struct lease *l);

/* Give back all that it holds. */
void lease_release(struct daemon *d, struct lease *l);

/* The opener ends. clean: its leases go; else they stay with its group while that has members. */
void leases_session_end(struct daemon *d, struct session *s, bool clean);
void leases_group_end(struct daemon *d, struct group *g);

#endif
