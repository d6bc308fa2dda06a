/*
 * swap_file.c - opening one of the disk tier's files.
 *
 * A file is locked on the open description that the ring registers: so the lock of a daemon that
 * was killed goes when its last operation is over, which is after its death. It is waited for, a
 * bounded time; whoever has it then is another daemon. One lock and no more: on NFS, two of one
 * process, on descriptions of their own, would shut each other out.
 */
#include "daemon/log.h"
#include "daemon/same_file.h"
#include "daemon/swap_private.h"
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCK_WAIT_MS = 5 * 1000,
    LOCK_LOOK_MS = 10,
    LOCK_SAY_MS = 200,
};

static const char *const store_names[SWAP_STORES] = {"blocks", "snapshots"};

bool swap_fail(char *why, size_t n_why, const char *name, const char *what)
{
    snprintf(why, n_why, "--swap: %s %s", name, what);
    return false;
}

bool swap_fail_errno(char *why, size_t n_why, const char *name, const char *what)
{
    snprintf(why, n_why, "--swap: %s cannot be %s: %s%s", name, what, strerror(errno),
             descriptors_remedy(errno));
    return false;
}

static bool lock(struct swap_file *f, char *why, size_t n_why)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (unsigned ms = 0; fcntl(f->fd, F_OFD_SETLK, &whole); ms += LOCK_LOOK_MS) {
        if (errno != EAGAIN && errno != EACCES)
            return swap_fail_errno(why, n_why, f->name, "locked");
        if (ms == LOCK_SAY_MS)
            log_info("%s: waiting for another daemon, or the last operations of a killed one",
                     f->name);
        if (ms >= LOCK_WAIT_MS)
            return swap_fail(why, n_why, f->name,
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
        return swap_fail(why, n_why, f->name,
                         errno == ELOOP ? "is a symbolic link; move it away"
                                        : "is a directory; move it away");
    if (f->fd < 0)
        return swap_fail_errno(why, n_why, f->name, "opened");
    if (opened_before(sw, f, why, n_why) || !lock(f, why, n_why))
        return false;
    if (!same_file(f->fd, f->name))
        return swap_fail(why, n_why, f->name, "was replaced while it was opened");
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

/* Nobody else's: an owner could read what is cached, and change it. Whoever has the directory can
 * do so anyway. */
static bool may_be_ours(const struct stat *st, const char *path)
{
    struct stat dir;
    return st->st_uid == geteuid() || st->st_uid == 0 ||
           (!stat(path, &dir) && st->st_uid == dir.st_uid);
}

bool file_open(struct swap *sw, struct swap_store *s, struct swap_file *f, const char *path,
               enum swap_found *found, char *why, size_t n_why)
{
    struct stat st;
    if (!open_locked(sw, f, why, n_why))
        return false;
    if (fstat(f->fd, &st))
        return swap_fail_errno(why, n_why, f->name, "looked at");
    *found = FOUND_FOREIGN;
    bool ours = may_be_ours(&st, path);
    int error = ours && S_ISREG(st.st_mode) ? file_look_into(s, f, (uint64_t)st.st_size, found) : 0;
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
        return swap_fail_errno(why, n_why, f->name, "read");
    f->mates = *found == FOUND_KEPT ? f->super.set_files : 0;
    open_direct(sw, f);
    return true;
}

void file_close(struct swap_file *f)
{
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    if (f->fd >= 0)
        close(f->fd);
    free(f->flushes);
    free(f->probe);
    free(f->name);
}

bool file_begin(struct swap_file *f, enum swap_store_kind kind, const char *path, uint64_t budget)
{
    *f = (struct swap_file){.store = kind, .fd = -1, .direct_fd = -1, .align = 1, .budget = budget};
    f->flushes = calloc(1, sizeof *f->flushes);
    f->probe = aligned_alloc(SWAP_ALIGN, SWAP_ALIGN);
    if (asprintf(&f->name, "%s/%s.prefixd", path, store_names[kind]) < 0)
        f->name = NULL;
    return f->flushes && f->probe && f->name;
}

/* Where growth goes on. The file may end anywhere: cut by a smaller budget, or by somebody else. Of
 * an extent that has lost slots the headers are still there: they go, or they would come back with
 * the next slots there. */
int file_trim(const struct swap_store *s, struct swap_file *f, uint64_t length)
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
