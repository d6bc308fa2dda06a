/*
 * swap_record.c - what a record of an order goes through, up to the order's answer.
 *
 *      WRITE   payload issued - checksum computed - payload written - header written - over
 *                             \------ in any order -------/
 *      READ    payload read - checksum compared - over
 *
 * It is over at its first hard error, but not before its operations under way have come back: until
 * then the kernel may use its page. An order is answered when all its records are over.
 */
#include "daemon/swap_private.h"

#include <errno.h>
#include <string.h>

enum { HASH_STEP = 256 << 10 /* then the device is looked after: 25 us or so */ };

/* ---- the end of a record, and of an order ---- */

void job_answer(struct swap *sw, struct job *j)
{
    list_remove(&j->alive);
    list_remove(&j->issue);
    list_remove(&j->header);
    list_remove(&j->hash);
    list_remove(&j->stage);
    if (sw->hash.job == j)
        sw->hash.job = NULL;
    swap_channel_post(&sw->answers, j, NOTE_ORDER);
}

/* The payload of a record is through, or there will be no header. The headers of an order go
 * together, with the last payload: they lie side by side, so that they are one operation mostly,
 * and the order is not answered before the last of them is written anyway. */
static void payload_through(struct swap *sw, struct job *j, unsigned r)
{
    if (sw->store[j->order.store].staging)
        stage_left(sw, j, r);
    j->open &= ~(1ull << r);
    if (!j->open && j->ready && list_empty(&j->header))
        list_append(&sw->headers, &j->header);
}

void record_over(struct swap *sw, struct job *j, unsigned r, enum swap_status status)
{
    const struct swap_store *s = &sw->store[j->order.store];
    uint64_t bytes = s->config->record_bytes * sw->config.n_pieces;
    j->order.record[r].status = status;
    if (status > j->order.status)
        j->order.status = status;
    j->over |= 1ull << r;
    j->todo &= ~(1ull << r);
    j->unhashed &= ~(1ull << r);
    if (sw->hash.job == j && sw->hash.record == r)
        sw->hash.job = NULL;
    if (status == SWAP_GOOD && j->order.kind == SWAP_WRITE) {
        FACT_ADD(sw, writes, 1);
        FACT_ADD(sw, bytes_written, bytes);
    } else if (status == SWAP_GOOD && j->order.kind == SWAP_READ) {
        FACT_ADD(sw, reads, 1);
        FACT_ADD(sw, bytes_read, bytes);
    } else if (status == SWAP_FAILED || status == SWAP_CORRUPT) {
        FACT_ADD(sw, errors, 1);
    }
    payload_through(sw, j, r);
    if (++j->n_over == j->order.n)
        job_answer(sw, j);
}

static enum swap_status status_of(const struct job *j, int error)
{
    if (!error)
        return SWAP_GOOD;
    if (j->order.kind == SWAP_READ)
        return error == ENODATA ? SWAP_CORRUPT : SWAP_FAILED;
    if (error == ESHUTDOWN)
        return SWAP_REFUSED;
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? SWAP_FULL : SWAP_FAILED;
}

static void record_failed(struct swap *sw, struct job *j, unsigned r, int error)
{
    struct swap_file *f = file_of(&sw->store[j->order.store], j->order.record[r].slot);
    enum swap_status status = status_of(j, error);
    if (status == SWAP_FAILED && error != ESHUTDOWN)
        file_error(sw, f, error);
    record_over(sw, j, r, status);
}

static void want_hash(struct swap *sw, struct job *j, unsigned r)
{
    j->unhashed |= 1ull << r;
    if (list_empty(&j->hash))
        list_append(&sw->hashing, &j->hash);
}

/* What has come of a record's payload, when an operation of it is over, or its checksum is there.
 */
void payload_over(struct swap *sw, struct job *j, unsigned r)
{
    uint64_t bit = 1ull << r;
    if (j->over & bit || j->state[r].left || (j->todo & bit && !j->state[r].error))
        return;
    if (j->state[r].error) {
        record_failed(sw, j, r, j->state[r].error);
        return;
    }
    if (j->order.kind == SWAP_READ) {
        file_good(sw, file_of(&sw->store[j->order.store], j->order.record[r].slot));
        want_hash(sw, j, r);
    } else if (j->hashed & bit) {
        j->ready |= bit;
        payload_through(sw, j, r);
    }
}

void payload_give_up(struct swap *sw, struct job *j, uint64_t records)
{
    for (; records; records &= records - 1) {
        unsigned r = (unsigned)__builtin_ctzll(records);
        j->state[r].error = ESHUTDOWN;
        payload_over(sw, j, r); /* now, or when its operations are */
    }
}

void header_over(struct swap *sw, struct job *j, unsigned r, int error)
{
    struct swap_store *s = &sw->store[j->order.store];
    const struct swap_record *record = &j->order.record[r];
    if (error) {
        record_failed(sw, j, r, error);
        return;
    }
    struct slot_fact *fact = &s->fact[record->slot];
    fact->generation = record->generation;
    memcpy(fact->payload, j->state[r].digest, sizeof fact->payload);
    file_good(sw, file_of(s, record->slot));
    record_over(sw, j, r, SWAP_GOOD);
}

/* ---- checksums, a step at a time ---- */

bool hash_begin(struct swap *sw)
{
    while (!sw->hash.job && !list_empty(&sw->hashing)) {
        struct job *j = list_entry(sw->hashing.next, struct job, hash);
        if (!j->unhashed) {
            list_remove(&j->hash);
            continue;
        }
        sw->hash.job = j;
        sw->hash.record = (unsigned)__builtin_ctzll(j->unhashed);
        sw->hash.piece = 0;
        sw->hash.at = 0;
        XXH3_128bits_reset(sw->hash.state);
    }
    return sw->hash.job != NULL;
}

/* What was read is not what was written. Mostly that is the disk; or a worker has given pages of
 * the pool back to the machine (a hole in its file), and the ring moves those that it holds on to,
 * not those that have come in their place. */
static void look_at_pins(struct swap *sw)
{
    if (sw->now_ns - sw->unpinned_ns < SECOND_NS)
        return;
    sw->unpinned_ns = sw->now_ns;
    sw->engine->ops->unpin(sw->engine);
}

static void hash_done(struct swap *sw, struct job *j, unsigned r)
{
    XXH128_hash_t digest = XXH3_128bits_digest(sw->hash.state);
    const struct swap_record *record = &j->order.record[r];
    sw->hash.job = NULL;
    j->unhashed &= ~(1ull << r);
    if (j->order.kind == SWAP_READ) {
        const struct swap_store *s = &sw->store[j->order.store];
        const struct slot_fact *fact = &s->fact[record->slot];
        bool same = fact->payload[0] == digest.low64 && fact->payload[1] == digest.high64;
        if (same && s->staging)
            stage_verified(sw, j, r);
        else
            record_over(sw, j, r, same ? SWAP_GOOD : SWAP_CORRUPT);
        if (!same)
            look_at_pins(sw);
        return;
    }
    j->state[r].digest[0] = digest.low64;
    j->state[r].digest[1] = digest.high64;
    j->hashed |= 1ull << r;
    payload_over(sw, j, r);
}

/* Some of the record that is begun: so many bytes at most. Returns how many. */
static uint64_t hash_part(struct swap *sw, uint64_t most)
{
    struct job *j = sw->hash.job;
    const struct swap_store *s = &sw->store[j->order.store];
    const uint8_t *piece = payload_at(s, j, sw->hash.record, sw->hash.piece);
    uint64_t n = s->config->record_bytes - sw->hash.at;
    if (n > most)
        n = most;
    XXH3_128bits_update(sw->hash.state, piece + sw->hash.at, n);
    sw->hash.at += n;
    if (sw->hash.at < s->config->record_bytes)
        return n;
    sw->hash.at = 0;
    if (++sw->hash.piece == sw->config.n_pieces)
        hash_done(sw, j, sw->hash.record);
    return n;
}

void hash_step(struct swap *sw)
{
    for (uint64_t done = 0; done < HASH_STEP && hash_begin(sw);)
        done += hash_part(sw, HASH_STEP - done);
}
