/*
 * swap_file.c - opening the disk tier's files, their superblocks, and headers' checksums.
 *
 * A file is locked on the open description that the ring registers: so the lock of a daemon that
 * was killed goes when its last operation is over, which is after its death. It is waited for, a
 * bounded time; whoever has it then is another daemon. One lock and no more: on NFS, two of one
 * process, on descriptions of their own, would shut each other out.
 */
#include "daemon/log.h"
#include "daemon/same_file.h"
#include "daemon/swap_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    EXTENT_SLOTS_MAX = 2048, /* headers of about a MiB */
    LOCK_WAIT_MS = 5 * 1000,
    LOCK_LOOK_MS = 10,
    LOCK_SAY_MS = 200,
};

static const char *const store_names[SWAP_STORES] = {"blocks", "snapshots"};

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

/* ---- opening one ---- */

static bool fail(char *why, size_t n_why, const char *name, const char *what)
{
    snprintf(why, n_why, "--swap: %s %s", name, what);
    return false;
}

static bool fail_errno(char *why, size_t n_why, const char *name, const char *what)
{
    snprintf(why, n_why, "--swap: %s cannot be %s: %s", name, what, strerror(errno));
    return false;
}

static bool lock(struct swap_file *f, char *why, size_t n_why)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (unsigned ms = 0; fcntl(f->fd, F_OFD_SETLK, &whole); ms += LOCK_LOOK_MS) {
        if (errno != EAGAIN && errno != EACCES)
            return fail_errno(why, n_why, f->name, "locked");
        if (ms == LOCK_SAY_MS)
            log_info("%s: waiting for another daemon, or the last operations of a killed one",
                     f->name);
        if (ms >= LOCK_WAIT_MS)
            return fail(why, n_why, f->name,
                        "is used by another daemon; stop that, or name another directory");
        nanosleep(&(struct timespec){.tv_nsec = LOCK_LOOK_MS * 1000 * 1000}, NULL);
    }
    return true;
}

/* By a hard link: it would wait for itself. */
static bool opened_before(const struct swap *sw, const struct swap_file *f, char *why, size_t n_why)
{
    for (unsigned i = 0; i < sw->n_files; i++)
        if (same_file(f->fd, sw->file[i].name)) {
            snprintf(why, n_why, "--swap: %s is the same file as %s; remove one of the two names",
                     f->name, sw->file[i].name);
            return true;
        }
    return false;
}

static bool open_locked(const struct swap *sw, struct swap_file *f, char *why, size_t n_why)
{
    f->fd = open(f->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (f->fd < 0 && (errno == ELOOP || errno == EISDIR))
        return fail(why, n_why, f->name,
                    errno == ELOOP ? "is a symbolic link; move it away"
                                   : "is a directory; move it away");
    if (f->fd < 0)
        return fail_errno(why, n_why, f->name, "opened");
    if (opened_before(sw, f, why, n_why) || !lock(f, why, n_why))
        return false;
    if (!same_file(f->fd, f->name))
        return fail(why, n_why, f->name, "was replaced while it was opened");
    /* Headers are read as they are asked for: no reading ahead into payload. */
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
    return true;
}

/* Transfers go from and to that memory itself: what the device wants, it must have. */
static bool memory_aligned(const struct swap *sw, const struct swap_store *s, uint64_t memory,
                           uint64_t transfer)
{
    bool fits =
        s->step % memory == 0 && swap_round_up(s->config->record_bytes, transfer) <= s->step;
    for (uint32_t d = 0; d < sw->config.n_pieces; d++)
        fits &= (uintptr_t)payload_memory(s, d).iov_base % memory == 0;
    return fits;
}

void file_direct_off(struct swap_file *f, int error)
{
    if (f->direct)
        log_info("%s: no direct I/O (%s); its bytes go through the page cache", f->name,
                 error ? strerror(error) : "the pool is not aligned for it");
    f->direct = false;
    f->align = 1;
}

static void open_direct(const struct swap *sw, struct swap_file *f)
{
    f->direct = true;
    f->direct_fd = open(f->name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_DIRECT);
    if (f->direct_fd < 0 || !same_file(f->direct_fd, f->name)) {
        file_direct_off(f, f->direct_fd < 0 ? errno : ESTALE);
        return;
    }
    uint64_t memory = SWAP_ALIGN, transfer = SWAP_ALIGN;
    struct statx x;
    if (!statx(f->direct_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) &&
        x.stx_mask & STATX_DIOALIGN) {
        memory = x.stx_dio_mem_align;
        transfer = x.stx_dio_offset_align;
    }
    if (!memory || !transfer || transfer > SWAP_ALIGN)
        file_direct_off(f, EINVAL);
    else if (!memory_aligned(sw, &sw->store[f->store], memory, transfer))
        file_direct_off(f, 0);
    else
        f->align = (uint32_t)transfer;
}

/* ---- what is in it ---- */

enum found { FOUND_NOTHING, FOUND_KEPT, FOUND_OTHER, FOUND_DAMAGED, FOUND_FOREIGN };

static bool all_zero(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        if (b[i])
            return false;
    return true;
}

static enum found judge(const struct swap_store *s, struct swap_file *f,
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

/* 0 or -errno: it cannot be read. */
static int look_into(const struct swap_store *s, struct swap_file *f, uint64_t length,
                     enum found *found)
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

static int file_empty(const struct swap_store *s, struct swap_file *f)
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

/* Where growth goes on. The file may end anywhere: cut by a smaller budget, or by somebody else. Of
 * an extent that has lost slots the headers are still there: they go, or they would come back with
 * the next slots there. */
static int file_trim(const struct swap_store *s, struct swap_file *f, uint64_t length)
{
    uint64_t most = bytes_for(s, f->super.extent_slots, f->n_slots);
    if (length > most) {
        if (ftruncate(f->fd, (off_t)most))
            return -errno;
        length = most;
    }
    f->ready = slots_in(s, f, length);
    uint32_t e = f->super.extent_slots, lost = e - f->ready % e;
    uint64_t from = header_offset(s, f, f->ready);
    f->length = lost == e ? from : length / SWAP_ALIGN * SWAP_ALIGN;
    if (lost == e)
        return 0;
    uint8_t *zeros = calloc(lost, s->header_bytes);
    int error = zeros ? file_write(f->fd, zeros, (size_t)lost * s->header_bytes, from, 0) : -ENOMEM;
    free(zeros);
    return error;
}

/* ---- all of them ---- */

/* Which of the files that were kept belong together? Those of the set that is complete, else the
 * largest. The others were away while flushes were written, and generations given out. */
static const struct swap_file *choose_set(const struct swap *sw)
{
    const struct swap_file *best = NULL;
    uint64_t best_score = 0;
    for (unsigned i = 0; i < sw->n_files; i++) {
        const struct swap_file *f = &sw->file[i];
        uint64_t n = 0;
        for (unsigned k = 0; k < sw->n_files; k++)
            n += sw->file[k].mates &&
                 !memcmp(sw->file[k].super.set_id, f->super.set_id, sizeof f->super.set_id);
        uint64_t score = !f->mates ? 0 : n + (n == f->mates ? SWAP_STORES * SWAP_PATHS : 0);
        if (score > best_score) {
            best_score = score;
            best = f;
        }
    }
    return best;
}

static bool files_join(struct swap *sw, char *why, size_t n_why)
{
    const struct swap_file *chosen = choose_set(sw);
    uint64_t set[2], n_chosen = 0, mates = chosen ? chosen->mates : 0;
    if (chosen)
        memcpy(set, chosen->super.set_id, sizeof set);
    for (unsigned i = 0; chosen && i < sw->n_files; i++) {
        struct swap_file *f = &sw->file[i];
        int error = 0;
        if (f->mates && memcmp(f->super.set_id, set, sizeof set) != 0) {
            log_info("%s: was not there when the others were last used; emptied", f->name);
            error = file_empty(&sw->store[f->store], f);
        }
        n_chosen += f->mates != 0;
        if (error) {
            errno = -error;
            return fail_errno(why, n_why, f->name, "emptied");
        }
    }
    bool anew = n_chosen != sw->n_files || n_chosen != mates; /* else they are as we left them */
    /* Headers of a missing file may have higher generations. */
    sw->generation_jump = anew && n_chosen != 0;
    if (anew && getrandom(set, sizeof set, 0) != sizeof set)
        return fail_errno(why, n_why, "a random number", "had");
    for (unsigned i = 0; i < sw->n_files; i++) {
        struct swap_file *f = &sw->file[i];
        memcpy(f->super.set_id, set, sizeof set);
        f->super.set_files = sw->n_files;
        int error = f->owed ? head_write(f) : anew ? super_write(f) : 0;
        if (error)
            log_warning("%s: cannot be written (%s); tried again", f->name, strerror(-error));
    }
    return true;
}

/* Nobody else's: an owner could read what is cached, and change it. Whoever has the directory can
 * do so anyway. */
static bool may_be_ours(const struct stat *st, const char *path)
{
    struct stat dir;
    return st->st_uid == geteuid() || st->st_uid == 0 ||
           (!stat(path, &dir) && st->st_uid == dir.st_uid);
}

static bool file_open(struct swap *sw, struct swap_store *s, struct swap_file *f, const char *path,
                      enum found *found, char *why, size_t n_why)
{
    struct stat st;
    if (!open_locked(sw, f, why, n_why))
        return false;
    if (fstat(f->fd, &st))
        return fail_errno(why, n_why, f->name, "looked at");
    *found = FOUND_FOREIGN;
    bool ours = may_be_ours(&st, path);
    int error = ours && S_ISREG(st.st_mode) ? look_into(s, f, (uint64_t)st.st_size, found) : 0;
    if (!error && *found == FOUND_FOREIGN) {
        log_warning("--swap: %s %s: it is left alone, and this path is not in use; move it away "
                    "and start prefixd again",
                    f->name, ours ? "is not a file of prefixd" : "belongs to another user");
        sw->facts.foreign++;
        return true;
    }
    if (st.st_mode & 077 && fchmod(f->fd, 0600))
        log_warning("--swap: %s is open to other users, and stays so: %s", f->name,
                    strerror(errno));
    if (!error && (*found == FOUND_OTHER || *found == FOUND_DAMAGED))
        log_info("%s: %s; emptied", f->name,
                 *found == FOUND_OTHER ? "of another layout or model, or too large for SIZE"
                                       : "damaged");
    if (!error && *found != FOUND_KEPT)
        error = file_empty(s, f);
    errno = -error;
    if (error)
        return fail_errno(why, n_why, f->name, "read");
    f->mates = *found == FOUND_KEPT ? f->super.set_files : 0;
    open_direct(sw, f);
    return true;
}

static void file_close(struct swap_file *f)
{
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    if (f->fd >= 0)
        close(f->fd);
    free(f->flushes);
    free(f->probe);
    free(f->name);
}

static bool file_begin(struct swap_file *f, enum swap_store_kind kind, const char *path,
                       uint64_t budget)
{
    *f = (struct swap_file){.store = kind, .fd = -1, .direct_fd = -1, .align = 1, .budget = budget};
    f->flushes = calloc(1, sizeof *f->flushes);
    f->probe = aligned_alloc(SWAP_ALIGN, SWAP_ALIGN);
    if (asprintf(&f->name, "%s/%s.prefixd", path, store_names[kind]) < 0)
        f->name = NULL;
    return f->flushes && f->probe && f->name;
}

static bool store_open(struct swap *sw, struct swap_store *s, char *why, size_t n_why)
{
    s->file = sw->file + sw->n_files;
    for (unsigned p = 0; s->config->record_bytes && p < sw->config.n_paths; p++) {
        uint64_t budget = s->config->bytes[p];
        if (budget < bytes_for(s, EXTENT_SLOTS_MIN, 1))
            continue;
        struct swap_file *f = &s->file[s->n_files];
        enum found found;
        if (!file_begin(f, s->kind, sw->config.path[p], budget)) {
            file_close(f);
            return fail(why, n_why, sw->config.path[p], "needs memory that there is none of");
        }
        if (!file_open(sw, s, f, sw->config.path[p], &found, why, n_why)) {
            file_close(f);
            return false;
        }
        if (found == FOUND_FOREIGN) {
            file_close(f);
            continue;
        }
        f->index = sw->n_files++;
        s->n_files++;
    }
    return true;
}

/* Slots are numbered once it is known which files there are. */
static bool store_number(struct swap *sw, struct swap_store *s, char *why, size_t n_why)
{
    for (unsigned i = 0; i < s->n_files; i++) {
        struct swap_file *f = &s->file[i];
        struct stat st;
        f->first_slot = s->n_slots;
        f->n_slots = NO_SLOT - 1 - s->n_slots; /* that many numbers are left */
        if (s->config->slots_most) /* an old file may have other extents than a new one */
            f->n_slots = s->config->slots_most - s->n_slots;
        f->n_slots = slots_in(s, f, f->budget);
        s->n_slots += f->n_slots;
        if (fstat(f->fd, &st))
            return fail_errno(why, n_why, f->name, "looked at");
        if ((uint64_t)st.st_size > f->budget)
            sw->generation_jump = true;
        int error = file_trim(s, f, (uint64_t)st.st_size);
        errno = -error;
        if (error && error != -ENOSPC && error != -EDQUOT && error != -EFBIG)
            return fail_errno(why, n_why, f->name, "cut to its budget");
    }
    return true;
}

bool files_open(struct swap *sw, char *why, size_t n_why)
{
    sw->file = calloc(SWAP_STORES * SWAP_PATHS, sizeof *sw->file);
    if (!sw->file)
        return fail(why, n_why, "it", "needs memory that there is none of");
    for (int k = 0; k < SWAP_STORES; k++)
        if (!store_open(sw, &sw->store[k], why, n_why))
            return false;
    if (!files_join(sw, why, n_why))
        return false;
    for (int k = 0; k < SWAP_STORES; k++)
        if (!store_number(sw, &sw->store[k], why, n_why))
            return false;
    return true;
}

/* A ring goes some time after it was closed, and its hold on the files with it. */
void files_unlock(struct swap *sw)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    for (unsigned i = 0; i < sw->n_files; i++)
        (void)fcntl(sw->file[i].fd, F_OFD_SETLK, &whole);
}

void files_close(struct swap *sw)
{
    for (unsigned i = 0; i < sw->n_files; i++)
        file_close(&sw->file[i]);
    free(sw->file);
    sw->file = NULL;
    sw->n_files = 0;
}
