/* The snapshot calls of local.h, as the library makes them. */
#include "tests/model/local.h"

/* The client knows its slots' numbers, depths and kinds before it sends; the daemon checks again.
 */
static int number(void *self, int conn, enum opcode op, uint64_t lease, uint64_t n,
                  struct wire_completion *c)
{
    struct request rq = {.op = (uint16_t)op, .lease = lease, .number = {.n = n}};
    *c = local_call(self, conn, &rq);
    return c->status;
}

int local_fetch(void *self, int conn, uint64_t lease, struct pfx_match *out)
{
    struct wire_completion c;
    int status = number(self, conn, OP_FETCH, lease, 0, &c);
    if (status == 0 || status == PFX_EIO)
        local_match(self, conn, &c, out);
    return status;
}

int local_snapshot_reserve(void *self, int conn, uint64_t lease, uint32_t *slot)
{
    struct wire_completion c;
    int status = number(self, conn, OP_SNAPSHOT_RESERVE, lease, 0, &c);
    *slot = c.number.slot;
    return status;
}

int local_snapshot_insert(void *self, int conn, uint64_t lease, uint32_t slot, uint32_t depth,
                          int kind)
{
    struct request rq = {.op = OP_SNAPSHOT_INSERT, .lease = lease};
    rq.number = (struct request_number){.n = slot, .depth = depth, .kind = (uint32_t)kind};
    return local_call(self, conn, &rq).status;
}

int local_snapshot_cancel(void *self, int conn, uint64_t lease, uint32_t slot)
{
    struct wire_completion c;
    return number(self, conn, OP_SNAPSHOT_CANCEL, lease, slot, &c);
}

int local_snapshot_drop(void *self, int conn, uint64_t lease)
{
    struct wire_completion c;
    return number(self, conn, OP_SNAPSHOT_DROP, lease, 0, &c);
}

int local_snapshot_evict(void *self, int conn)
{
    struct wire_completion c;
    return number(self, conn, OP_SNAPSHOT_EVICT, 0, 0, &c);
}

int local_snapshot_spill(void *self, int conn, uint32_t min_tokens, struct pfx_spilled *out)
{
    struct wire_completion c;
    int status = number(self, conn, OP_SNAPSHOT_SPILL, 0, min_tokens, &c);
    *out = (struct pfx_spilled){.size = sizeof *out,
                                .depth = c.number.depth,
                                .key = c.number.n,
                                .dropped = c.number.dropped};
    return status;
}

int local_snapshot_forget(void *self, int conn, uint64_t key)
{
    struct wire_completion c;
    return number(self, conn, OP_SNAPSHOT_FORGET, 0, key, &c);
}

uint8_t *local_slot(void *self, int conn, uint32_t slot)
{
    (void)conn;
    return ((struct local *)self)->slots[slot];
}
