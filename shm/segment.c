#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

enum { SEALS_SIZE = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static int seals_of(enum segment_kind kind)
{
    return kind == SEGMENT_DAEMON ? SEALS_SIZE | F_SEAL_FUTURE_WRITE : SEALS_SIZE;
}

static int memfd_open(const char *name, unsigned flags)
{
    flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, flags);
    return fd < 0 ? -errno : fd;
}

/* Beyond RLIMIT_FSIZE, ftruncate would raise SIGXFSZ: a limit is a full file system, never a
 * signal. */
static int memfd_resize(int fd, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        return -EFBIG;
    if (bytes > INT64_MAX)
        return -EFBIG;
    return ftruncate(fd, (off_t)bytes) ? -errno : 0;
}

/* A fork must not write where only its parent may, and a core dump needs no KV bytes. */
static void *map_private_to_us(int fd, uint64_t bytes, bool writable)
{
    void *base =
        mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return NULL;
    (void)madvise(base, bytes, MADV_DONTFORK);
    (void)madvise(base, bytes, MADV_DONTDUMP);
    return base;
}

int segment_create_with(struct segment *s, const char *name, enum segment_kind kind, uint64_t bytes,
                        unsigned memfd_flags)
{
    *s = (struct segment){.fd = -1, .bytes = bytes};
    int rc = memfd_open(name, memfd_flags);
    if (rc < 0)
        return rc;
    s->fd = rc;
    rc = memfd_resize(s->fd, bytes);
    if (rc)
        goto fail;
    s->base = map_private_to_us(s->fd, bytes, true);
    if (!s->base) {
        rc = -errno;
        goto fail;
    }
    /* The mapping comes first: FUTURE_WRITE lets it keep writing, and gives nobody a new one. */
    if (fcntl(s->fd, F_ADD_SEALS, seals_of(kind))) {
        rc = -errno;
        goto fail;
    }
    return 0;
fail:
    segment_free(s);
    return rc;
}

int segment_create(struct segment *s, const char *name, enum segment_kind kind, uint64_t bytes)
{
    return segment_create_with(s, name, kind, bytes, 0);
}

#define RAISE_MACHINES "raise the machine's descriptor limit (fs.file-max)"

const char *descriptors_remedy(int error)
{
    return error == EMFILE ? "; " RAISE_DESCRIPTORS : error == ENFILE ? "; " RAISE_MACHINES : "";
}

const char *segment_remedy(int error)
{
    switch (error) {
    case -EFBIG:
        return "raise the file size limit (ulimit -f, LimitFSIZE=), or ask for fewer";
    case -EMFILE:
        return RAISE_DESCRIPTORS;
    case -ENFILE:
        return RAISE_MACHINES;
    default:
        return "ask for fewer";
    }
}

int segment_map(struct segment *s, int fd, enum segment_kind kind, uint64_t bytes, bool writable)
{
    *s = (struct segment){.fd = -1, .bytes = bytes};
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & seals_of(kind)) != seals_of(kind))
        return -EPERM;
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    if (st.st_size < 0 || (uint64_t)st.st_size != bytes || bytes == 0)
        return -EINVAL;
    s->base = map_private_to_us(fd, bytes, writable);
    return s->base ? 0 : -errno;
}

void segment_free(struct segment *s)
{
    if (s->base)
        (void)munmap(s->base, s->bytes);
    if (s->fd >= 0)
        (void)close(s->fd);
    *s = (struct segment){.fd = -1};
}
