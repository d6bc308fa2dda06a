/*
 * swap_transfer.c - operations: which one is next, how many at once, and what becomes of a result.
 *
 * An operation is known to the engine by {index, generation of its use}. A completion that does not
 * fit, of one that was thought to be over, is counted and ignored: it can never be taken for that
 * of the operation that has the place now.
 *
 * Neighbours. Records of an order whose slots follow each other in the file, and whose pages follow
 * each other in the pool, go as one operation of up to SWAP_SPLIT; so do their headers, which stand
 * one after the other in the order. If such an operation fails, each of its records is tried by
 * itself, so that only those fail that have to.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ---- */

bool ops_init(struct swap *sw)
{
    sw->n_ops = sw->n_free_op = 2 * sw->config.depth + SWAP_BACKGROUND;
    sw->op = calloc(sw->n_ops, sizeof *sw->op);
    sw->free_op = calloc(sw->n_ops, sizeof *sw->free_op);
    sw->zeros = aligned_alloc(SWAP_ALIGN, SWAP_SPLIT);
    sw->hash.state = XXH3_createState();
    if (!sw->op || !sw->free_op || !sw->zeros || !sw->hash.state)
        return false;
    memset(sw->zeros, 0, SWAP_SPLIT);
    for (uint32_t i = 0; i < sw->n_ops; i++)
        sw->free_op[i] = sw->n_ops - 1 - i;
    return true;
}

void ops_deinit(struct swap *sw)
{
    free(sw->op);
    free(sw->free_op);
    free(sw->zeros);
    XXH3_freeState(sw->hash.state);
}

/* There is a place: depth, and the bounds of what goes on beside it, are kept by those who ask. */
struct op *op_new(struct swap *sw, enum op_kind kind, struct swap_file *f)
{
    struct op *op = &sw->op[sw->free_op[--sw->n_free_op]];
    *op = (struct op){.kind = kind,
                      .busy = true,
                      .file = f,
                      .generation = op->generation,
                      .began_ns = sw->now_ns};
    return op;
}

static void op_free(struct swap *sw, struct op *op)
{
    op->busy = false;
    op->job = NULL;
    op->generation++;
    sw->free_op[sw->n_free_op++] = (uint32_t)(op - sw->op);
}

/* What is not done yet. Each time under another tag. */
static void op_submit(struct swap *sw, struct op *op)
{
    op->generation++;
    const struct engine_op e = {
        .tag = (uint64_t)op->generation << 32 | (uint32_t)(op - sw->op),
        .offset = op->offset + op->done,
        .base = op->base + op->done,
        .length = op->length - op->done,
        .file = (uint16_t)(2 * op->file->index + (op->direct ? 1 : 0)),
        .write = op->write,
    };
    sw->engine->ops->submit(sw->engine, &e);
}

void op_send(struct swap *sw, struct op *op)
{
    sw->n_payload += op->kind == OP_PAYLOAD;
    sw->n_writes += op->kind == OP_PAYLOAD && op->write;
    sw->n_headers += op->kind == OP_HEADER;
    op_submit(sw, op);
}

/* ---- results ---- */

/* The operation is over, `error` (errno) or 0. For each of its records, and what comes of that. */
static void records_over(struct swap *sw, const struct op *op, int error)
{
    struct job *j = op->job;
    bool again = error && op->n > 1; /* each by itself */
    for (uint32_t r = op->first; r < op->first + op->n; r++) {
        uint64_t bit = 1ull << r;
        if (op->kind == OP_HEADER) {
            if (again) {
                j->alone |= bit;
                j->ready |= bit;
            }
            continue;
        }
        j->state[r].left--;
        if (again) {
            j->alone |= bit;
            j->todo |= bit;
        } else if (error && !j->state[r].error) {
            j->state[r].error = error;
            j->todo &= ~bit; /* the rest is not begun */
        }
    }
    if (again && op->kind == OP_HEADER && list_empty(&j->header))
        list_append(&sw->headers, &j->header);
    if (again && op->kind == OP_PAYLOAD && list_empty(&j->issue))
        list_append(op->write ? &sw->writes : &sw->reads, &j->issue);
    if (again)
        return;
    /* The last record to be over answers the order: it is not ours to look at after that. */
    uint32_t first = op->first, n = op->n;
    for (uint32_t r = first; r < first + n; r++)
        if (op->kind == OP_HEADER)
            header_over(sw, j, r, error);
        else
            payload_over(sw, j, r);
}

static void op_over(struct swap *sw, struct op *op, int error)
{
    struct op was = *op;
    op_free(sw, op);
    switch (was.kind) {
    case OP_PAYLOAD:
        sw->n_payload--;
        sw->n_writes -= was.write;
        records_over(sw, &was, error);
        break;
    case OP_HEADER:
        sw->n_headers--;
        records_over(sw, &was, error);
        break;
    case OP_GROW:
        grow_over(sw, &was, error);
        break;
    case OP_PROBE:
        probe_over(sw, &was, error);
        break;
    case OP_HEADERS:
        scan_headers_over(sw, &was, error);
        break;
    case OP_BODIES:
        scan_bodies_over(sw, &was, error);
        break;
    }
}

/* A short transfer goes on from where it stopped; a direct one from the last aligned place before
 * that. What makes no progress SWAP_TRIES times in a row has failed. */
static void op_short(struct swap *sw, struct op *op, uint32_t moved)
{
    uint32_t done = op->done + moved;
    if (op->direct)
        done -= done % op->file->align;
    op->tries = done > op->done ? 0 : op->tries + 1;
    op->done = done;
    if (op->tries < SWAP_TRIES)
        op_submit(sw, op);
    else
        op_over(sw, op, EIO);
}

static void op_result(struct swap *sw, struct op *op, int result)
{
    if (result == -EINVAL && op->direct) { /* promised at open, refused now */
        file_direct_off(op->file, EINVAL);
        op->direct = false;
        op->done = 0;
        op_submit(sw, op);
    } else if (result == -EAGAIN || result == -EINTR) {
        if (++op->tries < SWAP_TRIES)
            op_submit(sw, op);
        else
            op_over(sw, op, -result);
    } else if (result < 0) {
        op_over(sw, op, -result);
    } else if (result == 0) {
        op_over(sw, op, op->write ? EIO : ENODATA); /* a read: the file ends here */
    } else if ((uint32_t)result > op->length - op->done) {
        op_over(sw, op, EIO);
    } else if ((uint32_t)result < op->length - op->done) {
        op_short(sw, op, (uint32_t)result);
    } else {
        op_over(sw, op, 0);
    }
}

void op_completed(struct swap *sw, const struct engine_result *r)
{
    uint32_t index = (uint32_t)r->tag, generation = (uint32_t)(r->tag >> 32);
    struct op *op = index < sw->n_ops ? &sw->op[index] : NULL;
    if (!op || !op->busy || op->generation != generation) {
        FACT_ADD(sw, late, 1);
        return;
    }
    op_result(sw, op, r->result);
}

/* An operation that does not come back keeps its page, as the kernel may still use it; but what
 * comes after it is not to stand behind it. */
void ops_look_for_stuck(struct swap *sw)
{
    if (sw->now_ns - sw->looked_ns < SECOND_NS)
        return;
    sw->looked_ns = sw->now_ns;
    for (unsigned i = 0; i < sw->n_ops; i++) {
        struct op *op = &sw->op[i];
        if (!op->busy || sw->now_ns - op->began_ns < STUCK_NS)
            continue;
        op->began_ns = sw->now_ns; /* said again after as long */
        file_sick(sw, op->file, "an operation does not come back");
    }
}

/* ---- what is next ---- */

/* How many records from r on can go as one operation of payload. */
static uint32_t neighbours(const struct swap *sw, const struct job *j, unsigned r)
{
    const struct swap_store *s = &sw->store[j->order.store];
    const struct swap_record *first = &j->order.record[r];
    const struct swap_file *f = file_of(s, first->slot);
    uint64_t pitch = s->piece_pitch;
    if (sw->config.n_pieces != 1 || s->step != pitch || s->config->record_bytes != pitch)
        return 1;
    uint32_t room = f->super.extent_slots - (first->slot - f->first_slot) % f->super.extent_slots;
    uint32_t n = 1;
    while (r + n < j->order.n && n < room && (n + 1) * pitch <= SWAP_SPLIT &&
           j->todo >> (r + n) & 1 && !(j->alone >> (r + n) & 1) &&
           first[n].slot == first->slot + n &&
           payload_at(s, j, r + n, 0) == payload_at(s, j, r, 0) + n * pitch &&
           file_of(s, first[n].slot) == f)
        n++;
    return n;
}

/* Payload of r is issued to its end. */
static void issued(struct swap *sw, struct job *j, unsigned r)
{
    uint64_t bit = 1ull << r;
    j->todo &= ~bit;
    if (j->order.kind != SWAP_WRITE || (j->hashed | j->unhashed) & bit)
        return;
    j->unhashed |= bit;
    if (list_empty(&j->hash))
        list_append(&sw->hashing, &j->hash);
}

static void issue_several(struct swap *sw, struct job *j, struct op *op, unsigned r, uint32_t n)
{
    op->n = n;
    op->length = (uint32_t)(n * sw->store[j->order.store].piece_pitch);
    for (uint32_t i = 0; i < n; i++) {
        j->state[r + i].left++;
        issued(sw, j, r + i);
    }
    j->current = -1;
}

/* Bytes of a piece that a transfer moves: what is aligned, where it is direct. */
static uint64_t piece_length(const struct swap_store *s, const struct op *op)
{
    return op->direct ? swap_round_up(s->config->record_bytes, op->file->align)
                      : s->config->record_bytes;
}

static void issue_part(struct swap *sw, struct job *j, struct op *op, unsigned r)
{
    uint64_t piece = piece_length(&sw->store[j->order.store], op), rest = piece - j->at;
    op->n = 1;
    op->length = rest < SWAP_SPLIT ? (uint32_t)rest : SWAP_SPLIT;
    j->state[r].left++;
    j->at += op->length;
    if (j->at < piece)
        return;
    j->at = 0;
    if (++j->piece < sw->config.n_pieces)
        return;
    j->current = -1;
    issued(sw, j, r);
}

/* The device has become sick since the order came. */
static void give_up(struct swap *sw, struct job *j, unsigned r)
{
    j->current = -1;
    j->todo &= ~(1ull << r);
    if (!j->todo)
        list_remove(&j->issue);
    j->state[r].error = ESHUTDOWN;
    payload_over(sw, j, r);
}

/* The next operation of a job that has something to do. */
static void issue_payload(struct swap *sw, struct job *j)
{
    if (!j->todo) { /* its records have failed meanwhile */
        list_remove(&j->issue);
        return;
    }
    const struct swap_store *s = &sw->store[j->order.store];
    if (j->current < 0 || !(j->todo >> j->current & 1)) {
        j->current = __builtin_ctzll(j->todo);
        j->piece = 0;
        j->at = 0;
    }
    unsigned r = (unsigned)j->current;
    const struct swap_record *record = &j->order.record[r];
    struct swap_file *f = file_of(s, record->slot);
    if (f->sick) {
        give_up(sw, j, r);
        return;
    }
    struct op *op = op_new(sw, OP_PAYLOAD, f);
    op->job = j;
    op->first = r;
    op->write = j->order.kind == SWAP_WRITE;
    op->direct = f->direct;
    op->offset =
        slot_offset(s, f, record->slot - f->first_slot) + j->piece * s->piece_pitch + j->at;
    op->base = payload_at(s, j, r, j->piece) + j->at;
    bool begun = j->piece || j->at || j->alone >> r & 1;
    uint32_t n = begun ? 1 : neighbours(sw, j, r);
    if (n > 1)
        issue_several(sw, j, op, r, n);
    else
        issue_part(sw, j, op, r);
    op_send(sw, op);
    if (!j->todo)
        list_remove(&j->issue);
}

static void fill_header(struct swap *sw, struct job *j, unsigned r)
{
    const struct swap_store *s = &sw->store[j->order.store];
    const struct swap_record *record = &j->order.record[r];
    const struct swap_file *f = file_of(s, record->slot);
    uint8_t *at = j->staging + (size_t)r * s->header_bytes;
    struct slot_header *h = (struct slot_header *)(void *)at;
    *h = (struct slot_header){
        .magic = HEADER_MAGIC,
        .generation = record->generation,
        .file_id = {f->super.file_id[0], f->super.file_id[1]},
        .slot = record->slot - f->first_slot,
        .body_bytes = record->body_bytes,
        .payload = {j->state[r].digest[0], j->state[r].digest[1]},
    };
    memset(at + sizeof *h + record->body_bytes, 0,
           s->header_bytes - sizeof *h - record->body_bytes);
    header_seal(h);
}

/* Headers that are ready, as many as follow each other. */
static void issue_headers(struct swap *sw, struct job *j)
{
    const struct swap_store *s = &sw->store[j->order.store];
    unsigned r = (unsigned)__builtin_ctzll(j->ready);
    const struct swap_record *first = &j->order.record[r];
    struct swap_file *f = file_of(s, first->slot);
    uint32_t local = first->slot - f->first_slot, n = 0;
    uint32_t room = f->super.extent_slots - local % f->super.extent_slots;
    do {
        fill_header(sw, j, r + n);
        j->ready &= ~(1ull << (r + n));
        n++;
    } while (r + n < j->order.n && n < room && j->ready >> (r + n) & 1 &&
             !((j->alone >> r | j->alone >> (r + n)) & 1) && first[n].slot == first->slot + n &&
             file_of(s, first[n].slot) == f);
    struct op *op = op_new(sw, OP_HEADER, f);
    op->job = j;
    op->first = r;
    op->n = n;
    op->write = true;
    op->offset = header_offset(s, f, local);
    op->base = j->staging + (size_t)r * s->header_bytes;
    op->length = n * s->header_bytes;
    op_send(sw, op);
    if (!j->ready)
        list_remove(&j->header);
}

/* Headers, which end orders, beside payload. Of that first what somebody waits for: reads; but
 * writes keep a quarter. */
void transfers_issue(struct swap *sw)
{
    while (!list_empty(&sw->headers) && sw->n_headers < sw->config.depth)
        issue_headers(sw, list_entry(sw->headers.next, struct job, header));
    while (sw->n_payload < sw->config.depth) {
        bool writes = !list_empty(&sw->writes), reads = !list_empty(&sw->reads);
        if (writes && (!reads || sw->n_writes < sw->config.depth / 4))
            issue_payload(sw, list_entry(sw->writes.next, struct job, issue));
        else if (reads)
            issue_payload(sw, list_entry(sw->reads.next, struct job, issue));
        else
            return;
    }
}
