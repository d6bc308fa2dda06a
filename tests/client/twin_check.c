/* Completions of the asynchronous twin, against what the synchronous one said. */
#include "tests/client/twin.h"

#include <poll.h>
#include <string.h>

/* Every id is one of the pool's, and none stands there twice. */
static void ids_right(const uint32_t *ids, uint32_t n)
{
    static uint64_t seen[TWIN_BLOCKS + 1], round;
    round++;
    for (uint32_t i = 0; i < n; i++) { /* ck_assert would make a system call each time */
        if (ids[i] == 0 || ids[i] > TWIN_BLOCKS || seen[ids[i]] == round)
            ck_abort_msg("id %u, at %u of %u, is out of range or stands there twice", ids[i], i, n);
        seen[ids[i]] = round;
    }
}

static void check_lookup(struct twin *t, const struct expected *e, const struct pfx_completion *k)
{
    ck_assert_uint_eq(k->match.matched_tokens, e->match.matched_tokens);
    ck_assert_uint_eq(k->match.tail_tokens, e->match.tail_tokens);
    ck_assert_uint_eq(k->match.n_blocks, e->match.n_blocks);
    ck_assert_uint_eq(k->match.n_resident, k->match.n_blocks);
    struct family *y = &t->family[e->family];
    if (e->kind == TWIN_LOOKUP) {
        y->a = k->lease;
        y->state = OPEN;
    }
    if (y->state == OPEN && y->a == k->lease) /* else it may have been released meanwhile */
        ids_right(k->match.blocks, k->match.n_blocks);
}

static void check(struct twin *t, const struct expected *e, const struct pfx_completion *k)
{
    ck_assert_msg(k->status == e->status, "tag %llu, kind %d: status %d, the twin's was %d",
                  (unsigned long long)k->tag, (int)e->kind, k->status, e->status);
    if (k->status)
        return;
    switch (e->kind) {
    case TWIN_LOOKUP:
    case TWIN_FETCH:
        check_lookup(t, e, k);
        break;
    case TWIN_RESERVE:
        ck_assert_uint_eq(k->n_ids, e->n_ids);
        ids_right(k->ids, k->n_ids);
        break;
    case TWIN_INSERT:
        ck_assert_mem_eq(&k->insert, &e->insert, sizeof k->insert);
        ids_right(k->ids, k->n_ids);
        break;
    case TWIN_SPACE:
        ck_assert_uint_ne(k->space, 0);
        break;
    case TWIN_TRUNCATE:
    case TWIN_RELEASE:
        break;
    }
}

void twin_take(struct twin *t, unsigned max, int ms)
{
    struct pfx_completion k[32];
    if (t->fd >= 0 && ms && rng_below(&t->rng, 2)) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        poll(&p, 1, ms);
        ms = 0;
    }
    for (unsigned i = 0; i < LENGTH(k); i++)
        k[i] = completion_empty();
    int n = pfx_wait(t->a, k, sizeof *k, max < LENGTH(k) ? max : LENGTH(k), ms);
    ck_assert_int_ge(n, 0);
    for (int i = 0; i < n; i++) {
        while (t->log[t->taken % TWIN_LOG].cancelled && t->taken < t->submitted)
            t->taken++;
        ck_assert_uint_lt(t->taken, t->submitted);
        ck_assert_msg(k[i].tag == t->taken, "completion %llu comes where %llu is due",
                      (unsigned long long)k[i].tag, (unsigned long long)t->taken);
        check(t, &t->log[t->taken++ % TWIN_LOG], &k[i]);
    }
}
