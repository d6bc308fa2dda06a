/*
 * What a worker can do with the descriptors that it is given: the daemon's regions are read and
 * never written, by whatever way, no region changes its length, and none gets another seal. Tried
 * by a worker of the daemon's own user, root if the tests are root's, and by one of another.
 */
#include "client/prefixd.h"
#include "tests/raw.h"
#include "tests/scenario/disk_site.h"
#include "tests/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { GUEST = 12345, PAGE = 4096 };

/* As WELCOME brings them. */
enum { REQUEST, COMPLETION, INDEX, POOL, REGIONS };

struct scene {
    struct host h;
    struct worker honest;
    struct held held;
};

static void begin(struct scene *s)
{
    HOST_START(&s->h, "--blocks", "32", "--block-tokens", "4", "--block-bytes", "64",
               "--allow-user", "12345");
    ck_assert_int_eq(chmod(s->h.dir, 0755), 0);
    worker_open(&s->honest, &s->h, NULL);
    cache(&s->honest, "aaaabbbbcccc");
    s->held = look(&s->honest, "aaaabbbbccccx");
}

static void end(struct scene *s)
{
    step(&s->honest);
    bytes_match(&s->honest, &s->held, "aaaabbbbcccc");
    drop(&s->honest, &s->held);
    ck_assert_uint_eq(cache(&s->honest, "zzzzyyyy"), 2);
    ck_assert_uint_eq(matched(&s->honest, "zzzzyyyyx"), 8);
    worker_close(&s->honest);
    host_stop(&s->h);
}

static void become_guest(void)
{
    REQUIRE_EQ(setresgid(GUEST, GUEST, GUEST), 0);
    REQUIRE_EQ(setresuid(GUEST, GUEST, GUEST), 0);
    REQUIRE_EQ(prctl(PR_SET_DUMPABLE, 1), 0); /* /proc/self is its own, as that of any process */
}

static void refused(const char *what, long result, int error)
{
    int was = errno;
    REQUIRE_MSG(result == -1, "%s was possible", what);
    REQUIRE_MSG(was == error, "%s: %s instead of %s", what, strerror(was), strerror(error));
}

/* ---- lengths and seals ------------------------------------------------------------------ */

static void lengths_stay(int fd)
{
    struct stat st;
    REQUIRE_EQ(fstat(fd, &st), 0);
    refused("a cut", ftruncate(fd, 0), EPERM);
    refused("a cut by a byte", ftruncate(fd, st.st_size - 1), EPERM);
    refused("growth", ftruncate(fd, st.st_size + 1), EPERM);
    refused("growth by fallocate", fallocate(fd, 0, st.st_size, PAGE), EPERM);
    refused("growth by a write", pwrite(fd, "x", 1, st.st_size), EPERM);
    REQUIRE(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE) == -1);
    REQUIRE(fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, PAGE) == -1);
}

static void seals_stay(int fd)
{
    static const int seals[] = {F_SEAL_SEAL,  F_SEAL_SHRINK,           F_SEAL_GROW,
                                F_SEAL_WRITE, 0x10 /* FUTURE_WRITE */, 0x20 /* EXEC */};
    for (size_t i = 0; i < sizeof seals / sizeof seals[0]; i++)
        refused("another seal", fcntl(fd, F_ADD_SEALS, seals[i]), EPERM);
}

/* ---- no writing --------------------------------------------------------------------------- */

static void no_write_through(int fd)
{
    off_t at = 0;
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC), line[2];
    REQUIRE_EQ(pipe2(line, O_CLOEXEC), 0);
    REQUIRE_EQ(write(line[1], "x", 1), 1);
    refused("pwrite", pwrite(fd, "x", 1, 0), EPERM);
    REQUIRE_EQ(lseek(fd, 0, SEEK_SET), 0);
    refused("write", write(fd, "x", 1), EPERM);
    REQUIRE(splice(line[0], NULL, fd, &at, 1, 0) <= 0);
    REQUIRE(sendfile(fd, zero, NULL, 1) <= 0);
    refused("a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), EPERM);
    REQUIRE(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, PAGE) == -1);
    close(line[0]);
    close(line[1]);
    close(zero);
}

static void no_write_to(void *at)
{
    int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    struct iovec ours = {(char[]){'x'}, 1}, theirs = {at, 1};
    REQUIRE(mem >= 0);
    REQUIRE(pwrite(mem, "x", 1, (off_t)(uintptr_t)at) <= 0); /* as a debugger writes */
    refused("a write from beside", process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0), EFAULT);
    refused("mprotect", mprotect(at, PAGE, PROT_READ | PROT_WRITE), EACCES);
    refused("MADV_REMOVE", madvise(at, PAGE, MADV_REMOVE), EACCES);
    close(mem);
}

static void no_write_by_map(int fd)
{
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    refused("a writable mapping", at == MAP_FAILED ? -1 : 0, EPERM);
    at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    no_write_to(at);
    char was = *(volatile char *)at;
    char *copy = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    REQUIRE(copy != MAP_FAILED);
    *copy = (char)~was; /* one's own copy, and nobody else's */
    REQUIRE_EQ(*(volatile char *)at, was);
    munmap(copy, PAGE);
    munmap(at, PAGE);
}

/* The descriptor is one thing, the file another: it can be opened anew, with other rights. */
static int opened_anew(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static void no_write(int fd)
{
    no_write_through(fd);
    no_write_by_map(fd);
    int again = opened_anew(fd, O_RDWR);
    REQUIRE(again >= 0); /* by its mode everybody may: the seals hold, and nothing else does */
    lengths_stay(again);
    no_write_through(again);
    no_write_by_map(again);
    close(again);
    REQUIRE(opened_anew(fd, O_RDWR | O_TRUNC) == -1);
}

static void abuse(int fd, bool ours)
{
    struct stat before, after;
    int seals = fcntl(fd, F_GET_SEALS);
    REQUIRE_EQ(fstat(fd, &before), 0);
    lengths_stay(fd);
    seals_stay(fd);
    if (ours)
        no_write(fd);
    /* What is left changes nothing for anybody. */
    (void)fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK);
    (void)fcntl(fd, F_SETOWN, getpid());
    (void)fcntl(fd, F_SETLEASE, F_RDLCK);
    (void)fcntl(fd, F_SETFL, 0);
    REQUIRE_EQ(fstat(fd, &after), 0);
    REQUIRE_EQ(after.st_size, before.st_size);
    REQUIRE_EQ(fcntl(fd, F_GET_SEALS), seals);
}

/* ---- workers -------------------------------------------------------------------------------- */

static void abuse_all(struct host *h)
{
    struct raw w;
    raw_open(&w, h, "abuser");
    for (unsigned i = 0; i < w.n_fds; i++)
        abuse(w.fds[i], i == COMPLETION || i == INDEX);
    uint64_t lease = raw_lease(&w);
    REQUIRE_EQ(raw_reserve(&w, lease, 2).status, 0); /* its channel works as before */
    raw_close(&w);
}

START_TEST(regions_stay_as_they_are)
{
    struct scene s;
    begin(&s);
    abuse_all(&s.h);
    end(&s);
}
END_TEST

static void as_guest(struct child *me, void *arg)
{
    struct host *h = arg;
    become_guest();
    abuse_all(h);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", h->pid);
    refused("the daemon's memory", open(path, O_RDWR | O_CLOEXEC), EACCES);
    snprintf(path, sizeof path, "/proc/%d/fd", h->pid);
    refused("the daemon's descriptors", open(path, O_RDONLY | O_CLOEXEC), EACCES);
    refused("a signal", kill(h->pid, SIGKILL), EPERM);
}

START_TEST(regions_stay_as_they_are_for_another_user)
{
    struct scene s;
    struct child c;
    if (geteuid() != 0)
        SKIP_TEST("only root can try it as another user");
    begin(&s);
    child_start(&c, as_guest, &s.h);
    child_join(&c);
    EVENTUALLY(5000, counters(&s.honest).workers == 1);
    end(&s);
}
END_TEST

/* Rows of `prefixctl workers` and the like are the daemon's memory as well. */
START_TEST(regions_of_rows_stay_as_they_are)
{
    struct scene s;
    begin(&s);
    struct hello hello = raw_hello("tool");
    hello.kind = HELLO_ADMIN;
    struct raw r;
    ck_assert(raw_greet(&r, &s.h, &hello));
    ck_assert_int_eq(r.welcome.status, 0);
    ck_assert_uint_eq(r.n_fds, 0);
    const struct admin_request rq = {.op = ADMIN_WORKERS};
    ck_assert_int_eq(send(r.fd, &rq, sizeof rq, MSG_NOSIGNAL), sizeof rq);
    struct admin_reply reply;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&reply, sizeof reply};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ck_assert_int_eq(recvmsg(r.fd, &m, MSG_CMSG_CLOEXEC), sizeof reply);
    ck_assert_uint_eq(reply.n_rows, 1);
    int fd;
    ck_assert_ptr_nonnull(CMSG_FIRSTHDR(&m));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    abuse(fd, true);
    close(fd);
    raw_close(&r);
    end(&s);
}
END_TEST

/* Of its own region a worker may take the pages away while the daemon reads it: that is as if it
 * had written zeros. */
START_TEST(holes_in_a_request_region)
{
    struct scene s;
    struct raw w;
    begin(&s);
    raw_open(&w, &s.h, "digger");
    struct stat st;
    ck_assert_int_eq(fstat(w.fds[REQUEST], &st), 0);
    uint64_t lease = raw_lease(&w);
    for (int i = 0; i < 200; i++) {
        off_t arena = w.arena - (uint8_t *)w.request.base;
        ck_assert_int_eq(fallocate(w.fds[REQUEST], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                   arena, st.st_size - arena),
                         0);
        struct request insert = {
            .op = OP_INSERT, .lease = lease, .flags = RF_LAST, .insert = {.piece = 8}};
        ck_assert_int_ge(raw_call(&w, insert).status, 0);
    }
    ck_assert_int_eq(
        fallocate(w.fds[REQUEST], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size), 0);
    char wake = WAKE;
    send(w.fd, &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* indexes of 0: impossible by now */
    ck_assert(raw_ended(&w, 5000));
    raw_close(&w);
    EVENTUALLY(5000, counters(&s.honest).workers == 1);
    end(&s);
}
END_TEST

/* ---- holes in the pool ------------------------------------------------------------------------
 */

enum { TEXTS = 5 };

/* So many of some texts, which nobody has had before, do not come back from disk as they were. */
static unsigned lost_on_disk(struct site *s, char first)
{
    char text[TEXTS][10] = {{0}};
    unsigned lost = 0;
    for (int i = 0; i < TEXTS; i++) {
        memset(text[i], first + i, 8);
        put_on_disk(s, text[i]);
    }
    for (int i = 0; i < TEXTS; i++) {
        text[i][8] = 'x'; /* a match leaves one token over */
        lost += exact(s, text[i]) != 8;
    }
    return lost;
}

/* A worker gives pages of the pool back to the machine. New ones come in their place, while the
 * kernel holds on to the old for the daemon's transfers. What was cached may be lost, and a little
 * more; not what comes after that. */
START_TEST(holes_in_the_pool_do_not_end_the_disk)
{
    struct site s;
    struct worker thief;
    struct pfx_pool_view v = {.size = sizeof v};
    site_init(&s, "2M");
    site_start(&s);
    ck_assert_uint_eq(lost_on_disk(&s, 'a'), 0);
    worker_open(&thief, &s.h, NULL);
    ck_assert_int_eq(pfx_pool_view(thief.c, 0, &v), 0);
    uint64_t bytes = pfx_geometry(thief.c)->n_blocks * v.block_stride;
    ck_assert_int_eq(madvise(v.blocks, bytes, MADV_REMOVE), 0);
    worker_close(&thief);
    (void)lost_on_disk(&s, 'h');
    ck_assert_uint_eq(lost_on_disk(&s, 'q'), 0);
    site_stop(&s);
    site_deinit(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("regions");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, regions_stay_as_they_are);
    tcase_add_test(t, regions_stay_as_they_are_for_another_user);
    tcase_add_test(t, regions_of_rows_stay_as_they_are);
    tcase_add_test(t, holes_in_a_request_region);
    tcase_add_test(t, holes_in_the_pool_do_not_end_the_disk);
    suite_add_tcase(s, t);
    return s;
}
