#include "tests/matrix/inside.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one mapping a region ---------------------------------------------------------------- */

enum { MAPPINGS = 64 };

static struct {
    pthread_mutex_t lock;
    struct mapping {
        void *base; /* NULL: free */
        ino_t inode;
        unsigned users;
    } at[MAPPINGS];
    unsigned ever;
} mappings = {.lock = PTHREAD_MUTEX_INITIALIZER};

int __real_segment_create(struct segment *, const char *, enum segment_kind, uint64_t);
int __real_segment_create_with(struct segment *, const char *, enum segment_kind, uint64_t,
                               unsigned);
int __real_segment_map(struct segment *, int, enum segment_kind, uint64_t, bool);
void __real_segment_free(struct segment *);
int __wrap_segment_create(struct segment *, const char *, enum segment_kind, uint64_t);
int __wrap_segment_create_with(struct segment *, const char *, enum segment_kind, uint64_t,
                               unsigned);
int __wrap_segment_map(struct segment *, int, enum segment_kind, uint64_t, bool);
void __wrap_segment_free(struct segment *);

static ino_t inode_of(int fd)
{
    struct stat st;
    REQUIRE_EQ(fstat(fd, &st), 0);
    return st.st_ino;
}

static void mapping_note(const struct segment *s)
{
    pthread_mutex_lock(&mappings.lock);
    struct mapping *m = mappings.at;
    while (m->base)
        REQUIRE(++m < mappings.at + MAPPINGS);
    *m = (struct mapping){s->base, inode_of(s->fd), 1};
    pthread_mutex_unlock(&mappings.lock);
}

int __wrap_segment_create(struct segment *s, const char *name, enum segment_kind kind,
                          uint64_t bytes)
{
    return __wrap_segment_create_with(s, name, kind, bytes, 0);
}

int __wrap_segment_create_with(struct segment *s, const char *name, enum segment_kind kind,
                               uint64_t bytes, unsigned flags)
{
    int rc = __real_segment_create_with(s, name, kind, bytes, flags);
    if (rc == 0)
        mapping_note(s);
    return rc;
}

int __wrap_segment_map(struct segment *s, int fd, enum segment_kind kind, uint64_t bytes,
                       bool writable)
{
    int rc = __real_segment_map(s, fd, kind, bytes, writable);
    if (rc)
        return rc;
    ino_t inode = inode_of(fd);
    pthread_mutex_lock(&mappings.lock);
    struct mapping *m = mappings.at;
    while (!m->base || m->inode != inode)
        REQUIRE_MSG(++m < mappings.at + MAPPINGS, "the daemon has no such region");
    REQUIRE_EQ(munmap(s->base, bytes), 0);
    s->base = m->base;
    m->users++;
    mappings.ever++;
    pthread_mutex_unlock(&mappings.lock);
    return 0;
}

/* The last one unmaps it. */
void __wrap_segment_free(struct segment *s)
{
    pthread_mutex_lock(&mappings.lock);
    for (struct mapping *m = mappings.at; s->base && m < mappings.at + MAPPINGS; m++)
        if (m->base == s->base) {
            if (--m->users)
                s->base = NULL;
            else
                m->base = NULL;
            break;
        }
    pthread_mutex_unlock(&mappings.lock);
    __real_segment_free(s);
}

unsigned mappings_shared(void)
{
    unsigned n = 0;
    pthread_mutex_lock(&mappings.lock);
    for (unsigned i = 0; i < MAPPINGS; i++)
        n += mappings.at[i].base && mappings.at[i].users > 1;
    pthread_mutex_unlock(&mappings.lock);
    return n;
}

unsigned mappings_shared_ever(void)
{
    pthread_mutex_lock(&mappings.lock);
    unsigned n = mappings.ever;
    pthread_mutex_unlock(&mappings.lock);
    return n;
}

/* ---- the daemon --------------------------------------------------------------------------- */

static void *run(void *arg)
{
    struct inside *in = arg;
    return daemon_run(&in->d) ? in : NULL;
}

void inside_start(struct inside *in, const char *const *options)
{
    enum { WORDS = 40 };
    memset(in, 0, sizeof *in);
    temp_dir(in->host.dir);
    in->host.admin = -1;
    in->host.pid = getpid();
    snprintf(in->host.socket, sizeof in->host.socket, "%s/s", in->host.dir);
    const char *argv[WORDS] = {"prefixd", "--socket", in->host.socket};
    int n = 3;
    while (*options && n < WORDS)
        argv[n++] = *options++;
    REQUIRE_EQ(options_read(&in->options, n, (char **)(uintptr_t)argv), OPTIONS_RUN);
    REQUIRE_EQ(daemon_start(&in->d, &in->options), 0);
    REQUIRE_EQ(pthread_create(&in->thread, NULL, run, in), 0);
}

/* daemon_start has blocked the signal here, and in all threads that were begun since. */
void inside_stop(struct inside *in)
{
    void *failed;
    if (in->host.admin >= 0)
        close(in->host.admin);
    REQUIRE_EQ(kill(getpid(), SIGTERM), 0);
    REQUIRE_EQ(pthread_join(in->thread, &failed), 0);
    REQUIRE(!failed);
    daemon_stop(&in->d);
    REQUIRE_EQ(in->d.n_sessions, 0);
    rmdir(in->host.dir);
}
