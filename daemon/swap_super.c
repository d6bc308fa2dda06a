/*
 * swap_super.c - what a file of the disk tier says of itself: headers' checksums, its superblocks,
 * its geometry, and what is found in it.
 */
#include "daemon/swap_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { EXTENT_SLOTS_MAX = 2048 }; /* headers of about a MiB */

/* ---- small transfers that are waited for ---- */

/* True: go on. A transfer of nothing is no progress, and ends it. */
static bool moved(ssize_t n, unsigned *tries, int *error)
{
    if (n > 0)
        return true;
    *error = n == 0 ? -ENODATA : -errno;
    return n < 0 && (errno == EINTR || errno == EAGAIN) && ++*tries < SWAP_TRIES;
}

int file_read(int fd, void *to, size_t n, uint64_t offset)
{
    int error = 0;
    unsigned tries = 0;
    for (size_t done = 0; done < n;) {
        struct iovec part = {(uint8_t *)to + done, n - done};
        ssize_t got = preadv2(fd, &part, 1, (off_t)(offset + done), 0);
        if (!moved(got, &tries, &error))
            return error;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int file_write(int fd, const void *from, size_t n, uint64_t offset, int flags)
{
    int error = 0;
    unsigned tries = 0;
    for (size_t done = 0; done < n;) {
        struct iovec part = {(uint8_t *)(uintptr_t)from + done, n - done};
        ssize_t got = pwritev2(fd, &part, 1, (off_t)(offset + done), flags);
        if (!moved(got, &tries, &error))
            return error == -ENODATA ? -EIO : error;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int file_promise(const struct swap_file *f, const void *from, size_t n, uint64_t offset)
{
    return f->sick ? -EIO : file_write(f->fd, from, n, offset, RWF_DSYNC);
}

/* ---- headers ---- */

static uint64_t header_checksum(const struct slot_header *h)
{
    return XXH3_64bits_withSeed(h + 1, h->body_bytes,
                                XXH3_64bits(h, offsetof(struct slot_header, checksum)));
}

void header_seal(struct slot_header *h)
{
    h->checksum = header_checksum(h);
}

bool header_fits(const struct slot_header *h, const struct swap_file *f, uint32_t local,
                 uint32_t room)
{
    return (h->magic == HEADER_MAGIC || h->magic == RETIRED_MAGIC) &&
           h->body_bytes <= room - sizeof *h && h->slot == local && h->generation &&
           h->generation < GENERATION_END && h->file_id[0] == f->super.file_id[0] &&
           h->file_id[1] == f->super.file_id[1] && h->checksum == header_checksum(h);
}

/* ---- superblocks ---- */

static uint64_t super_checksum(const struct superblock *b)
{
    return XXH3_64bits(b, offsetof(struct superblock, checksum));
}

/* One after the other: whenever power fails, one of them is whole, and what has been promised
 * stands in both. */
int super_write(struct swap_file *f)
{
    f->super.sequence++;
    f->super.checksum = super_checksum(&f->super);
    int error = file_promise(f, &f->super, sizeof f->super, 0);
    if (!error)
        error = file_promise(f, &f->super, sizeof f->super, SWAP_SUPERBLOCK);
    if (error)
        f->owed = true;
    return error;
}

int head_write(struct swap_file *f)
{
    int error = file_promise(f, f->flushes->record, sizeof f->flushes->record, SWAP_FLUSHES);
    if (!error)
        error = super_write(f);
    f->owed = error != 0;
    return error;
}

/* ---- geometry ---- */

static uint32_t headers_of(const struct swap_store *s, uint32_t extent_slots)
{
    return (uint32_t)swap_round_up((uint64_t)extent_slots * s->header_bytes, SWAP_ALIGN);
}

uint64_t bytes_for(const struct swap_store *s, uint32_t extent_slots, uint64_t n_slots)
{
    uint64_t headers = headers_of(s, extent_slots);
    uint64_t extents = (n_slots + extent_slots - 1) / extent_slots;
    return SWAP_EXTENTS + extents * headers + n_slots * s->slot_bytes;
}

uint32_t slots_in(const struct swap_store *s, const struct swap_file *f, uint64_t length)
{
    if (length <= SWAP_EXTENTS)
        return 0;
    uint64_t n = (length - SWAP_EXTENTS) / extent_bytes(s, f) * f->super.extent_slots;
    uint64_t rest = (length - SWAP_EXTENTS) % extent_bytes(s, f);
    if (rest > f->extent_headers)
        n += (rest - f->extent_headers) / s->slot_bytes;
    return n < f->n_slots ? (uint32_t)n : f->n_slots;
}

/* A few extents for a small budget, so that the headers of slots that it has no room for cost
 * little. */
static uint32_t extent_slots_of(const struct swap_store *s, uint64_t budget)
{
    uint64_t quarter = budget / (s->slot_bytes + s->header_bytes) / 4;
    uint32_t n = EXTENT_SLOTS_MIN;
    while (n < EXTENT_SLOTS_MAX && n * 2 <= quarter)
        n *= 2;
    return n;
}

uint64_t swap_file_slots(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t budget)
{
    struct swap_store s = store_shape(record_bytes, n_pieces, body_bytes);
    struct swap_file f = {.n_slots = NO_SLOT - 1};
    f.super.extent_slots = extent_slots_of(&s, budget);
    f.extent_headers = headers_of(&s, f.super.extent_slots);
    return budget < bytes_for(&s, EXTENT_SLOTS_MIN, 1) ? 0 : slots_in(&s, &f, budget);
}

/* ---- what is in it ---- */

static bool all_zero(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        if (b[i])
            return false;
    return true;
}

static enum swap_found judge(const struct swap_store *s, struct swap_file *f,
                             const struct superblock two[2])
{
    const struct superblock *best = NULL;
    for (int i = 0; i < 2; i++)
        if (two[i].magic == SWAP_MAGIC && two[i].checksum == super_checksum(&two[i]) &&
            two[i].flushed_all < GENERATION_END && (!best || two[i].sequence > best->sequence))
            best = &two[i];
    if (!best)
        return FOUND_DAMAGED;
    if (best->format != SWAP_FORMAT || best->header_bytes != s->header_bytes ||
        best->slot_bytes != s->slot_bytes || best->extent_slots < EXTENT_SLOTS_MIN ||
        best->extent_slots > EXTENT_SLOTS_MAX || f->budget < bytes_for(s, best->extent_slots, 1) ||
        memcmp(best->fingerprint, s->config->fingerprint, sizeof best->fingerprint) != 0)
        return FOUND_OTHER;
    f->super = *best;
    f->owed = memcmp(&two[0], &two[1], sizeof two[0]) != 0; /* two again, by files_join */
    f->extent_headers = headers_of(s, best->extent_slots);
    return FOUND_KEPT;
}

int file_look_into(const struct swap_store *s, struct swap_file *f, uint64_t length,
                   enum swap_found *found)
{
    static const uint64_t magic = SWAP_MAGIC;
    struct superblock two[2] = {0};
    uint64_t n = length < sizeof two ? length : sizeof two;
    int error = file_read(f->fd, two, n, 0);
    if (error)
        return error;
    if (n == 0 || (all_zero(two, sizeof two) && length <= SWAP_EXTENTS)) {
        *found = FOUND_NOTHING; /* made, but not begun */
        return 0;
    }
    uint64_t head = n < sizeof magic ? n : sizeof magic;
    if (memcmp(&two[0], &magic, head) != 0 && two[1].magic != magic) {
        *found = FOUND_FOREIGN;
        return 0;
    }
    *found = judge(s, f, two);
    if (*found != FOUND_KEPT)
        return 0;
    error = file_read(f->fd, f->flushes->record, sizeof f->flushes->record, SWAP_FLUSHES);
    if (error && error != -ENODATA) /* cut off there: no slots either */
        return error;
    if (!flushes_load(f->flushes))
        *found = FOUND_DAMAGED;
    return 0;
}

int file_empty(const struct swap_store *s, struct swap_file *f)
{
    if (ftruncate(f->fd, 0))
        return -errno;
    memset(f->flushes, 0, sizeof *f->flushes);
    f->super = (struct superblock){.magic = SWAP_MAGIC,
                                   .format = SWAP_FORMAT,
                                   .header_bytes = s->header_bytes,
                                   .slot_bytes = s->slot_bytes,
                                   .extent_slots = extent_slots_of(s, f->budget)};
    f->extent_headers = headers_of(s, f->super.extent_slots);
    memcpy(f->super.fingerprint, s->config->fingerprint, sizeof f->super.fingerprint);
    if (getrandom(f->super.file_id, sizeof f->super.file_id, 0) != sizeof f->super.file_id)
        return -errno;
    f->mates = 0;
    f->owed = true; /* files_join writes it */
    return 0;
}
