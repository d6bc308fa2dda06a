#include "tests/client/async.h"

void async_open(struct async *a)
{
    host_small(&a->h, 64, 4);
    worker_open(&a->w, &a->h, NULL);
    a->c = a->w.c;
    cache(&a->w, "aaaabbbb");
    a->s = seq("aaaabbbbccccdd");
    a->look = lookup_args(&a->w, &a->s);
    a->in = (struct pfx_insert_args){
        .size = sizeof a->in, .flags = PFX_FINAL, .tokens = a->s.at, .n_written = a->s.n};
}

void async_close(struct async *a)
{
    completion_none(a->c);
    step(&a->w);
    ck_assert_uint_eq(counters(&a->w).leases, 0);
    ck_assert_uint_eq(counters(&a->w).blocks_private, 0);
    worker_close(&a->w);
    host_stop(&a->h);
}

void only(const struct pfx_completion *k, bool match, bool insert, uint32_t n_ids)
{
    ck_assert_uint_eq(k->size, sizeof *k);
    ck_assert_uint_eq(k->match.size, sizeof k->match);
    ck_assert_uint_eq(k->insert.size, sizeof k->insert);
    ck_assert(match == (k->match.lease != 0));
    ck_assert(insert == (k->insert.cached_blocks != 0));
    ck_assert_uint_eq(k->n_ids, n_ids);
    ck_assert((k->ids != NULL) == (n_ids != 0));
    ck_assert_uint_eq(k->reserved, 0);
}
