/*
 * space.h - who may share with whom: (tenant, adapter, adapter generation), compared whole.
 *
 * A space is live while a session has it open, a lease uses it, or something is cached in it;
 * else dormant: its description and number stay, so that opening it again gives the same number,
 * until its slot is needed (oldest first). The table is in the shared index, for readers; the
 * counts are here. Slot 0 is the base space, always live.
 */
#ifndef DAEMON_SPACE_H
#define DAEMON_SPACE_H

#include "daemon/index.h"

struct daemon;
struct session;

struct space_key {
    uint64_t adapter_id, adapter_generation;
    uint32_t tenant_len;
    uint8_t tenant[TENANT_MAX];
};

struct spaces;

struct spaces *spaces_new(struct index *index);
void spaces_free(struct spaces *s);

/* The slot of a live space of that number, or UINT32_MAX. */
uint32_t spaces_find(const struct spaces *s, uint64_t number);
uint64_t spaces_number(const struct spaces *s, uint32_t slot);
struct space_key spaces_key(const struct spaces *s, uint32_t slot);
uint32_t spaces_root(const struct spaces *s, uint32_t slot);
uint64_t spaces_flushes(const struct spaces *s, uint32_t slot);
uint32_t spaces_live(const struct spaces *s);

/* Open (counted); false: every slot is live. */
bool spaces_open(struct spaces *s, const struct space_key *key, uint32_t *slot);
void spaces_close(struct spaces *s, uint32_t slot);

/* A lease begins or ends to use it. */
void spaces_use(struct spaces *s, uint32_t slot);
void spaces_unuse(struct spaces *s, uint32_t slot);

uint32_t spaces_top(const struct spaces *s); /* slots from here on were never used */

/* Put a new root in place and raise the flush generation. Returns the condemned root, to be reaped;
 * node 0: nothing was cached. */
struct place spaces_flush(struct spaces *s, uint32_t slot);

/* What a session has open: find or add (NULL: it has too many, or no memory), drop one, and give
 * all of it back. */
enum { SESSION_SPACES_MAX = 4096 };
struct opened_space *session_space(struct session *s, uint32_t slot, bool add);
void session_space_drop(struct session *s, uint32_t slot);
void spaces_session_end(struct daemon *d, struct session *s);

unsigned spaces_audit(const struct spaces *s, audit_find *find, void *arg);

#endif
