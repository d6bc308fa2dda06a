/*
 * swap_flush.c - what a restart must not bring back. No flush is ever forgotten: a record goes only
 * when a newer one of its space is on disk, or flushed_all covers it, or no header in the file,
 * written or under way, is old enough to be meant.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <stdlib.h>
#include <string.h>

enum { DROPPED_TOGETHER = FLUSH_RECORDS / 8, N_BUCKETS = 2 * FLUSH_RECORDS };

static const struct flush_record none;

static uint64_t record_checksum(const struct flush_record *r)
{
    return XXH3_64bits(r, offsetof(struct flush_record, checksum));
}

static bool is_free(const struct flush_record *r)
{
    return !r->generation;
}

/* Where the record of the space is, or would be. */
static uint16_t *bucket_of(struct flushes *l, const uint64_t space[2])
{
    for (uint64_t i = space[0];; i++) {
        uint16_t *b = &l->bucket[i % N_BUCKETS];
        if (!*b || !memcmp(l->record[*b - 1].space, space, sizeof l->record[0].space))
            return b;
    }
}

/* Records changed: find them anew. Of two of one space the older is forgotten. */
static void find_anew(struct flushes *l)
{
    memset(l->bucket, 0, sizeof l->bucket);
    l->n = 0;
    for (uint16_t i = 0; i < FLUSH_RECORDS; i++) {
        struct flush_record *r = &l->record[i];
        if (is_free(r))
            continue;
        uint16_t *b = bucket_of(l, r->space);
        if (*b && l->record[*b - 1].generation >= r->generation) {
            *r = none;
            continue;
        }
        if (*b)
            l->record[*b - 1] = none;
        else
            l->n++;
        *b = (uint16_t)(i + 1);
    }
}

bool flushes_load(struct flushes *l)
{
    bool whole = true;
    for (uint16_t i = 0; i < FLUSH_RECORDS; i++)
        whole &= !memcmp(&l->record[i], &none, sizeof none) ||
                 (l->record[i].checksum == record_checksum(&l->record[i]) &&
                  l->record[i].generation < GENERATION_END);
    if (whole)
        find_anew(l);
    return whole;
}

uint64_t flushes_highest(const struct flushes *l)
{
    uint64_t highest = 0;
    for (uint16_t i = 0; i < FLUSH_RECORDS; i++)
        if (l->record[i].generation > highest)
            highest = l->record[i].generation;
    return highest;
}

bool flushed(const struct swap_file *f, const uint64_t space[2], uint64_t generation)
{
    if (generation <= f->super.flushed_all)
        return true;
    uint16_t at = f->flushes->n ? *bucket_of(f->flushes, space) : 0;
    return at && generation <= f->flushes->record[at - 1].generation;
}

/* Records up to this generation mean nothing any more. */
static void drop_up_to(struct flushes *l, uint64_t generation)
{
    for (uint16_t i = 0; i < FLUSH_RECORDS; i++)
        if (l->record[i].generation <= generation)
            l->record[i] = none;
    find_anew(l);
}

static int by_generation(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* All of that generation and older is dead from here on, whatever its space. On disk first. */
static int flush_all(struct swap_file *f, uint64_t generation)
{
    if (generation <= f->super.flushed_all)
        return 0;
    f->super.flushed_all = generation;
    int error = super_write(f);
    if (!error)
        drop_up_to(f->flushes, generation);
    return error;
}

static int make_room(struct swap_file *f, uint64_t lowest)
{
    struct flushes *l = f->flushes;
    if (lowest)
        drop_up_to(l, lowest - 1);
    if (l->n < FLUSH_RECORDS - 1)
        return 0;
    uint64_t sorted[FLUSH_RECORDS];
    unsigned n = 0;
    for (uint16_t i = 0; i < FLUSH_RECORDS; i++)
        if (!is_free(&l->record[i]))
            sorted[n++] = l->record[i].generation;
    qsort(sorted, n, sizeof sorted[0], by_generation);
    log_info(
        "%s: %u spaces were flushed; what is older than the first of these flushes is forgotten "
        "at the next restart",
        f->name, n);
    return flush_all(f, sorted[DROPPED_TOGETHER - 1]);
}

/* The record goes to a free place: that of the space's last flush stays until it is on disk. */
int flush_write(struct swap_file *f, const uint64_t space[2], uint64_t generation,
                uint64_t (*lowest)(void *arg, struct swap_file *f), void *arg)
{
    struct flushes *l = f->flushes;
    if (!space[0] && !space[1])
        return flush_all(f, generation);
    if (flushed(f, space, generation))
        return f->owed ? head_write(f) : 0;
    if (l->n >= FLUSH_RECORDS - 1) {
        int error = make_room(f, lowest(arg, f));
        if (error) { /* it is owed, as part of the other */
            f->super.flushed_all = generation;
            return error;
        }
    }
    uint16_t i = 0;
    while (!is_free(&l->record[i]))
        i++;
    struct flush_record *r = &l->record[i];
    *r = (struct flush_record){.space = {space[0], space[1]}, .generation = generation};
    r->checksum = record_checksum(r);
    int error = file_promise(f, r, sizeof *r, SWAP_FLUSHES + i * sizeof *r);
    if (error)
        f->owed = true;
    find_anew(l); /* it counts from now on, written or owed */
    return error;
}
