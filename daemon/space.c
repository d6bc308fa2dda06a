#include "daemon/daemon.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NOBODY UINT32_MAX

struct space_private {
    uint32_t opens;      /* by sessions, each counted once a space */
    uint32_t uses;       /* by leases */
    uint32_t chain;      /* 1 + next slot of the same hash */
    uint32_t prev, next; /* among the dormant, oldest first */
};

struct spaces {
    struct index *index;
    uint32_t max, top, live;
    uint32_t oldest, youngest; /* dormant */
    uint32_t n_heads;
    uint64_t seed;   /* private, so that nobody can choose descriptions that collide */
    uint32_t *heads; /* 1 + slot, by hash of the key; zero pages cost nothing */
    struct space_private *priv;
};

static struct index_space *shared(const struct spaces *s, uint32_t slot)
{
    return (struct index_space *)(uintptr_t)index_space_at(index_view_of(s->index), slot);
}

static void begin(struct index_space *x)
{
    shm_store(&x->version, x->version + 1);
    shm_write_fence(); /* VERSION */
}

static void end(struct index_space *x)
{
    shm_store_release(&x->version, x->version + 1); /* VERSION: this must be last */
}

/* ---- by description ---------------------------------------------------------------- */

static uint32_t *head_of(const struct spaces *s, const struct space_key *key)
{
    const uint64_t numbers[2] = {key->adapter_id, key->adapter_generation};
    uint64_t hash = XXH3_64bits_withSeed(numbers, sizeof numbers, s->seed);
    hash = XXH3_64bits_withSeed(key->tenant, key->tenant_len, hash);
    return &s->heads[hash & (s->n_heads - 1)];
}

static struct space_key key_of(const struct index_space *x)
{
    struct space_key key = {x->adapter_id, x->adapter_generation, x->tenant_len, {0}};
    memcpy(key.tenant, x->tenant, x->tenant_len);
    return key;
}

static bool same(const struct index_space *x, const struct space_key *key)
{
    return x->adapter_id == key->adapter_id && x->adapter_generation == key->adapter_generation &&
           x->tenant_len == key->tenant_len && memcmp(x->tenant, key->tenant, key->tenant_len) == 0;
}

static uint32_t find(const struct spaces *s, const struct space_key *key)
{
    uint32_t at = *head_of(s, key);
    while (at && !same(shared(s, at - 1), key))
        at = s->priv[at - 1].chain;
    return at ? at - 1 : NOBODY;
}

static void unchain(struct spaces *s, uint32_t slot)
{
    struct space_key key = key_of(shared(s, slot));
    uint32_t *link = head_of(s, &key);
    while (*link != slot + 1)
        link = &s->priv[*link - 1].chain;
    *link = s->priv[slot].chain;
}

/* ---- live and dormant --------------------------------------------------------------- */

static void dormant_add(struct spaces *s, uint32_t slot)
{
    struct space_private *p = &s->priv[slot];
    p->prev = s->youngest;
    p->next = NOBODY;
    if (s->youngest != NOBODY)
        s->priv[s->youngest].next = slot;
    else
        s->oldest = slot;
    s->youngest = slot;
}

static void dormant_remove(struct spaces *s, uint32_t slot)
{
    struct space_private *p = &s->priv[slot];
    if (p->prev != NOBODY)
        s->priv[p->prev].next = p->next;
    else
        s->oldest = p->next;
    if (p->next != NOBODY)
        s->priv[p->next].prev = p->prev;
    else
        s->youngest = p->prev;
}

static void wake(struct spaces *s, uint32_t slot)
{
    struct index_space *x = shared(s, slot);
    uint32_t root = index_root_new(s->index, slot);
    begin(x);
    shm_store(&x->root, root);
    shm_store(&x->state, SPACE_LIVE);
    end(x);
    s->live++;
}

/* Nobody uses it and nothing is cached: it sleeps. */
static void settle(struct spaces *s, uint32_t slot)
{
    struct index_space *x = shared(s, slot);
    const struct space_private *p = &s->priv[slot];
    if (slot == 0 || x->state != SPACE_LIVE || p->opens || p->uses ||
        !index_root_empty(s->index, x->root))
        return;
    begin(x);
    index_root_free(s->index, x->root);
    shm_store(&x->root, 0);
    shm_store(&x->state, SPACE_DORMANT);
    end(x);
    s->live--;
    dormant_add(s, slot);
}

static void on_emptied(void *arg, uint32_t slot)
{
    settle(arg, slot);
}

/* A slot for a new description: never used, or that of the oldest dormant one. */
static uint32_t free_slot(struct spaces *s)
{
    if (s->top < s->max)
        return s->top++;
    uint32_t slot = s->oldest;
    if (slot == NOBODY)
        return NOBODY;
    dormant_remove(s, slot);
    unchain(s, slot);
    struct index_space *x = shared(s, slot);
    begin(x);
    shm_store(&x->state, SPACE_FREE);
    shm_store(&x->number, x->number + (1ull << 32));
    end(x);
    return slot;
}

static void describe(struct spaces *s, uint32_t slot, const struct space_key *key)
{
    struct index_space *x = shared(s, slot);
    begin(x);
    shm_store(&x->number, (x->number & ~(uint64_t)UINT32_MAX) | slot);
    shm_store(&x->flushes, 0);
    shm_store(&x->adapter_id, key->adapter_id);
    shm_store(&x->adapter_generation, key->adapter_generation);
    shm_store(&x->tenant_len, key->tenant_len);
    memset(x->tenant, 0, sizeof x->tenant);
    memcpy(x->tenant, key->tenant, key->tenant_len);
    end(x);
    s->priv[slot] = (struct space_private){.chain = *head_of(s, key)};
    *head_of(s, key) = slot + 1;
    wake(s, slot);
}

/* ---- the interface -------------------------------------------------------------------- */

struct spaces *spaces_new(struct index *index)
{
    struct spaces *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->index = index;
    s->max = index_view_of(index)->params.max_spaces;
    s->oldest = s->youngest = NOBODY;
    s->n_heads = 64;
    if (getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed) {
        spaces_free(s);
        return NULL;
    }
    while (s->n_heads < s->max)
        s->n_heads *= 2;
    s->heads = calloc(s->n_heads, sizeof *s->heads);
    s->priv = calloc(s->max, sizeof *s->priv);
    if (!s->heads || !s->priv) {
        spaces_free(s);
        return NULL;
    }
    struct space_key base = {0};
    describe(s, free_slot(s), &base);
    index_set_emptied(index, on_emptied, s);
    return s;
}

void spaces_free(struct spaces *s)
{
    if (!s)
        return;
    free(s->heads);
    free(s->priv);
    free(s);
}

uint32_t spaces_find(const struct spaces *s, uint64_t number)
{
    uint32_t slot = (uint32_t)number;
    if (slot >= s->top)
        return NOBODY;
    const struct index_space *x = shared(s, slot);
    return x->state == SPACE_LIVE && x->number == number ? slot : NOBODY;
}

uint64_t spaces_number(const struct spaces *s, uint32_t slot)
{
    return shared(s, slot)->number;
}

struct space_key spaces_key(const struct spaces *s, uint32_t slot)
{
    return key_of(shared(s, slot));
}

uint32_t spaces_root(const struct spaces *s, uint32_t slot)
{
    return shared(s, slot)->root;
}

uint64_t spaces_flushes(const struct spaces *s, uint32_t slot)
{
    return shared(s, slot)->flushes;
}

uint32_t spaces_live(const struct spaces *s)
{
    return s->live;
}

uint32_t spaces_top(const struct spaces *s)
{
    return s->top;
}

bool spaces_open(struct spaces *s, const struct space_key *key, uint32_t *slot)
{
    *slot = find(s, key);
    if (*slot == NOBODY) {
        *slot = free_slot(s);
        if (*slot == NOBODY)
            return false;
        describe(s, *slot, key);
    } else if (shared(s, *slot)->state == SPACE_DORMANT) {
        dormant_remove(s, *slot);
        wake(s, *slot);
    }
    s->priv[*slot].opens++;
    return true;
}

void spaces_close(struct spaces *s, uint32_t slot)
{
    assert(s->priv[slot].opens);
    s->priv[slot].opens--;
    settle(s, slot);
}

void spaces_use(struct spaces *s, uint32_t slot)
{
    s->priv[slot].uses++;
}

void spaces_unuse(struct spaces *s, uint32_t slot)
{
    assert(s->priv[slot].uses);
    s->priv[slot].uses--;
    settle(s, slot);
}

struct place spaces_flush(struct spaces *s, uint32_t slot)
{
    struct index_space *x = shared(s, slot);
    uint32_t old = x->root;
    bool empty = index_root_empty(s->index, old);
    uint32_t root = empty ? old : index_root_new(s->index, slot);
    begin(x);
    shm_store(&x->flushes, x->flushes + 1);
    shm_store(&x->root, root);
    end(x);
    struct place condemned = {0};
    if (!empty) {
        condemned = (struct place){index_node_at(index_view_of(s->index), old)->identity, old, 0};
        index_condemn(s->index, old);
    }
    settle(s, slot);
    return condemned;
}

/* ---- what a session has open: ascending by slot ------------------------------------------ */

static uint32_t position(const struct session *s, uint32_t slot)
{
    uint32_t low = 0, high = s->n_opened;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (s->opened[mid].slot < slot)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct opened_space *session_space(struct session *s, uint32_t slot, bool add)
{
    uint32_t at = position(s, slot);
    if (at < s->n_opened && s->opened[at].slot == slot)
        return &s->opened[at];
    if (!add || s->n_opened == SESSION_SPACES_MAX)
        return NULL;
    if (s->n_opened == s->cap_opened) {
        uint32_t cap = s->cap_opened ? 2 * s->cap_opened : 8;
        struct opened_space *more = realloc(s->opened, cap * sizeof *more);
        if (!more)
            return NULL;
        s->opened = more;
        s->cap_opened = cap;
    }
    memmove(s->opened + at + 1, s->opened + at, (s->n_opened - at) * sizeof *s->opened);
    s->opened[at] = (struct opened_space){.slot = slot};
    s->n_opened++;
    return &s->opened[at];
}

void session_space_drop(struct session *s, uint32_t slot)
{
    uint32_t at = position(s, slot);
    s->n_opened--;
    memmove(s->opened + at, s->opened + at + 1, (s->n_opened - at) * sizeof *s->opened);
}

void spaces_session_end(struct daemon *d, struct session *s)
{
    for (uint32_t i = 0; i < s->n_opened; i++)
        spaces_close(d->spaces, s->opened[i].slot);
    free(s->opened);
    s->opened = NULL;
    s->n_opened = s->cap_opened = 0;
}

unsigned spaces_audit(const struct spaces *s, audit_find *find_one, void *arg)
{
    unsigned found = 0;
    uint32_t live = 0, dormant = 0, listed = 0;
    for (uint32_t slot = 0; slot < s->top; slot++) {
        const struct index_space *x = shared(s, slot);
        const struct space_private *p = &s->priv[slot];
        struct space_key key = key_of(x);
        live += x->state == SPACE_LIVE;
        dormant += x->state == SPACE_DORMANT;
        bool used =
            slot == 0 || p->opens || p->uses || (x->root && !index_root_empty(s->index, x->root));
        if (used != (x->state == SPACE_LIVE) || (x->version & 1) || find(s, &key) != slot ||
            (uint32_t)x->number != slot) {
            find_one(arg, "space %llu is in a wrong state", (unsigned long long)x->number);
            found++;
        }
    }
    for (uint32_t slot = s->oldest; slot != NOBODY; slot = s->priv[slot].next)
        listed++;
    if (live != s->live || dormant != listed) {
        find_one(arg, "%u live and %u dormant spaces are counted as %u and %u", live, dormant,
                 s->live, listed);
        found++;
    }
    return found;
}
