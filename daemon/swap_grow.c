/*
 * swap_grow.c - what the swap thread does beside orders: it writes files longer, tries sick devices
 * again, and writes what is owed. Growth keeps ahead of the slots in use, one operation at a time,
 * so that orders are not slowed by much; where it does not, in waves of several, or a fast writer
 * would have to give up what is on disk while most of the budget is not there yet. What fails is
 * tried again after PROBE_NS.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { PROBE_WRITE, PROBE_READ };

#define AHEAD_BYTES (1ull << 30)   /* and a quarter of what is in use */
#define HURRY_BYTES (256ull << 20) /* with less than that ahead, in waves */

/* ---- health ---- */

static void tell_health(struct swap *sw)
{
    bool healthy = true, writable = false;
    for (unsigned i = 0; i < sw->n_files; i++) {
        const struct swap_file *f = &sw->file[i];
        healthy &= !f->sick;
        writable |= !f->sick && f->store == STORE_BLOCKS;
    }
    shm_store(&sw->facts.healthy, healthy);
    shm_store(&sw->facts.writable, writable);
}

void file_sick(struct swap *sw, struct swap_file *f, const char *reason)
{
    if (f->sick)
        return;
    shm_store(&f->sick, true);
    f->retry_ns = sw->now_ns + PROBE_NS;
    log_warning("%s: %s; not used until a probe succeeds", f->name, reason);
    tell_health(sw);
}

void file_error(struct swap *sw, struct swap_file *f, int error)
{
    if (++f->errors == 1 && sw->now_ns - f->said_ns > SECOND_NS) {
        f->said_ns = sw->now_ns;
        log_warning("%s: %s", f->name, strerror(error));
    }
    if (f->errors >= SWAP_ERRORS)
        file_sick(sw, f, "too many errors in a row");
}

void file_good(struct swap *sw, struct swap_file *f)
{
    f->errors = 0;
}

static void probe_send(struct swap *sw, struct swap_file *f, uint32_t phase)
{
    struct op *op = op_new(sw, OP_PROBE, f);
    op->first = phase;
    op->write = phase == PROBE_WRITE;
    op->direct = f->direct;
    op->offset = SWAP_PROBE;
    op->base = f->probe;
    op->length = SWAP_ALIGN;
    memset(f->probe, phase == PROBE_WRITE ? (int)(sw->now_ns & 0xff) | 1 : 0, SWAP_ALIGN);
    f->probing = true;
    op_send(sw, op);
}

void probe_over(struct swap *sw, struct op *op, int error)
{
    struct swap_file *f = op->file;
    if (!error && op->first == PROBE_WRITE) {
        probe_send(sw, f, PROBE_READ);
        return;
    }
    f->probing = false;
    f->retry_ns = sw->now_ns + PROBE_NS;
    if (error || !f->probe[0])
        return;
    shm_store(&f->sick, false);
    f->errors = 0;
    log_info("%s: works again", f->name);
    tell_health(sw);
}

/* ---- growth ---- */

static uint64_t slots_ready(const struct swap_store *s)
{
    uint64_t ready = 0;
    for (unsigned i = 0; i < s->n_files; i++)
        ready += s->file[i].ready;
    return ready;
}

static bool wants_slots(const struct swap *sw, const struct swap_store *s)
{
    uint64_t taken = shm_load(&sw->taken[s->kind]);
    return slots_ready(s) < taken + taken / 4 + AHEAD_BYTES / s->slot_bytes + 1;
}

static bool in_a_hurry(const struct swap *sw, const struct swap_file *f)
{
    const struct swap_store *s = &sw->store[f->store];
    return sw->now_ns >= f->narrow_ns &&
           slots_ready(s) < shm_load(&sw->taken[s->kind]) + HURRY_BYTES / s->slot_bytes;
}

static bool can_grow(const struct swap *sw, const struct swap_file *f)
{
    bool waits = f->sick || f->owed || (f->full && sw->now_ns < f->retry_ns);
    return !waits && f->ready < f->n_slots && wants_slots(sw, &sw->store[f->store]);
}

static void grow_send(struct swap *sw, struct swap_file *f)
{
    const struct swap_store *s = &sw->store[f->store];
    uint64_t at = f->length, end = bytes_for(s, f->super.extent_slots, f->n_slots);
    uint64_t most = in_a_hurry(sw, f) ? SWAP_WAVE * (uint64_t)SWAP_SPLIT : SWAP_SPLIT;
    if (end - at > most)
        end = at + most;
    sw->growth.left = (unsigned)((end - at + SWAP_SPLIT - 1) / SWAP_SPLIT);
    sw->growth.wave = sw->growth.left > 1;
    sw->growth.end = end;
    sw->growth.error = 0;
    for (; at < end; at += SWAP_SPLIT) {
        struct op *op = op_new(sw, OP_GROW, f);
        op->write = true;
        op->direct = f->direct;
        op->offset = at;
        op->base = sw->zeros;
        op->length = end - at < SWAP_SPLIT ? (uint32_t)(end - at) : SWAP_SPLIT;
        op_send(sw, op);
    }
}

/* One note is enough, until the index thread has seen it and looks. */
static void tell_grown(struct swap *sw)
{
    shm_full_fence(); /* GROWN-2: `ready` was stored before */
    if (shm_load(&sw->grown))
        return;
    shm_store(&sw->grown, 1);
    swap_channel_post(&sw->answers, NULL, NOTE_GROWN);
}

static void grow_failed(struct swap *sw, struct swap_file *f, int error)
{
    bool room = error == ENOSPC || error == EDQUOT || error == EFBIG;
    f->retry_ns = sw->now_ns + PROBE_NS;
    if (!f->full)
        log_warning("%s: %s; it stays at %u of %u slots for now", f->name, strerror(error),
                    f->ready, f->n_slots);
    shm_store(&f->full, true);
    if (!room)
        file_error(sw, f, error);
}

/* What came after the first failure is not the file's, and must not hold room that the rest of it
 * needs: the rest goes one by one, and tells what is wrong. */
static void wave_failed(struct swap *sw, struct swap_file *f)
{
    f->narrow_ns = sw->now_ns + PROBE_NS;
    if (ftruncate(f->fd, (off_t)f->length))
        log_warning("%s: %s", f->name, strerror(errno));
}

/* Of a wave that fails in places, what comes before the first of them counts. */
void grow_over(struct swap *sw, struct op *op, int error)
{
    struct swap_file *f = op->file;
    uint64_t good = op->offset + op->done / SWAP_ALIGN * SWAP_ALIGN;
    if (error && good < sw->growth.end)
        sw->growth.end = good;
    if (error)
        sw->growth.error = error;
    if (--sw->growth.left)
        return;
    error = sw->growth.error;
    f->length = sw->growth.end;
    uint32_t ready = slots_in(&sw->store[f->store], f, f->length);
    if (ready != f->ready) {
        shm_store_release(&f->ready, ready);
        tell_grown(sw);
    }
    if (error && sw->growth.wave)
        wave_failed(sw, f);
    else if (error)
        grow_failed(sw, f, error);
    if (error)
        return;
    if (f->full)
        log_info("%s: grows again", f->name);
    shm_store(&f->full, false);
}

/* ---- all of it ---- */

static bool retire_unretired(struct swap *sw, struct swap_file *f)
{
    const struct swap_store *s = &sw->store[f->store];
    uint32_t end = f->first_slot + f->n_slots;
    for (uint32_t slot = f->first_slot; f->unretired && slot < end; slot++)
        if (s->unretired[slot / 64] >> slot % 64 & 1 && slot_retire(sw, f, slot))
            return false;
    return true;
}

bool pay_owed(struct swap *sw, struct swap_file *f)
{
    return (!f->owed || !head_write(f)) && retire_unretired(sw, f);
}

static void retry(struct swap *sw, struct swap_file *f)
{
    if (sw->now_ns < f->retry_ns)
        return;
    if (f->sick) {
        if (!f->probing)
            probe_send(sw, f, PROBE_WRITE);
        return;
    }
    f->retry_ns = sw->now_ns + PROBE_NS;
    if (pay_owed(sw, f))
        log_info("%s: what was owed is written", f->name);
}

void background_step(struct swap *sw)
{
    for (unsigned i = 0; i < sw->n_files; i++)
        if (sw->file[i].sick || sw->file[i].owed || sw->file[i].unretired)
            retry(sw, &sw->file[i]);
    for (unsigned k = 0; !sw->growth.left && k < sw->n_files; k++) {
        struct swap_file *f = &sw->file[sw->grow_next++ % sw->n_files];
        if (can_grow(sw, f))
            grow_send(sw, f);
    }
    shm_store(&sw->facts.growing, sw->growth.left > 0);
}
