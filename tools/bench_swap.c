/*
 * The swap thread in this process against fio: files of the same length in the same directory, from
 * front to back and again, a record an operation of fio's, the same depth.
 *
 * The records lie next to each other in the file, as the slots of a chain do, and anywhere in the
 * pool, as its pages do: none is moved together with its neighbour, so that both sides carry out
 * the same operations. Ours also computes or compares the checksum of every byte and writes
 * headers; its processor time is that of the whole process, the index thread's side included.
 *
 * What would be compared otherwise, and is not our thread: each side has one thread for its
 * operations, on the same core, as it matters which one interrupts come to; and fio's buffers are
 * the pages of our pool, as many as may be in flight. How much memory the transfers go through
 * decides whether it stays in a cache, and where its pages lie, into how many pieces the kernel
 * cuts a transfer: on one machine fio alone wrote 5.1 GB/s with 32 buffers and 4.0 with 48, and
 * read 1.4 to 3.2 GB/s with buffers of its own. So of ours that many are never in flight: some
 * wait for a checksum, a header, or the index thread.
 */
#include "tools/bench_swap.h"
#include "daemon/log.h"
#include "daemon/swap.h"
#include "tools/bench.h"
#include "tools/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPTH = 64,    /* twice prefixd's default: what waits leaves enough in flight */
    PAGES = DEPTH, /* of the pool: ordered and not yet back */
    BATCH = 4,     /* records an order */
    RUN_MS = 1000,
    GROW_MS = 60 * 1000,
    ALIGN = 4096,
    BODY = 128, /* of a header */
};
#define FILE_BYTES (1ull << 30)

/* ---- where ----------------------------------------------------------------------------------- */

static int fail_dir(const char *what)
{
    return tool_fail(0, "%s %s (%s); name a directory on a disk's file system with --dir.",
                     bench_dir, what, strerror(errno));
}

bool swap_dir_make(char *dir, size_t room)
{
    struct statx x = {0};
    bool made = false;
    if ((size_t)snprintf(dir, room, "%s/prefixctl-XXXXXX", bench_dir) >= room)
        errno = ENAMETOOLONG;
    else if ((made = mkdtemp(dir) != NULL)) {
        int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
        if (fd >= 0 && !statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) &&
            x.stx_mask & STATX_DIOALIGN && !x.stx_dio_offset_align) {
            close(fd);
            fd = -1;
            errno = EINVAL;
        }
        if (fd >= 0) {
            close(fd);
            return true;
        }
        rmdir(dir);
    }
    fail_dir(made ? "takes no direct I/O" : "cannot be written to");
    dir[0] = '\0';
    return false;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    remove(path);
    return 0;
}

void swap_dir_remove(char *dir)
{
    if (dir[0])
        nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    dir[0] = '\0';
}

static void fill_random(uint8_t *to, uint64_t bytes)
{
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = random_word(9, i);
        memcpy(to + i, &word, sizeof word);
    }
}

int plain_file(const char *dir, uint64_t bytes)
{
    enum { STEP = 1 << 20 };
    char name[4096];
    snprintf(name, sizeof name, "%s/plain", dir);
    uint8_t *b = aligned_alloc(ALIGN, STEP);
    int fd = b ? open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600) : -1;
    bool good = fd >= 0 && unlink(name) == 0;
    if (good)
        fill_random(b, STEP);
    for (uint64_t at = 0; good && at < bytes; at += STEP)
        good = pwrite(fd, b, STEP, (off_t)at) == STEP;
    free(b);
    if (good)
        return fd;
    fail_dir("has no room for two files of 1 GiB");
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- ours ------------------------------------------------------------------------------------ */

struct swap_row {
    char dir[4096];
    bool write;
    int plain;
    int pool_fd;
    uint8_t *pool;
    uint64_t record;
    struct swap *sw;
    uint32_t n, next; /* slots; which one comes next */
    uint32_t *slot;
    uint64_t *generation;
    uint32_t page[PAGES]; /* of the pool, not in use */
    unsigned n_pages;
    struct moved ours, theirs; /* sums of all pairs */
    struct cores cores;        /* fio and the swap thread have `other`, we who order `mine` */
    cpu_set_t before;
};

static struct swap_order *wait_order(struct swap *sw, int ms)
{
    struct swap_order *o;
    while (!(o = swap_take(sw))) {
        struct pollfd p = {.fd = swap_fd(sw), .events = POLLIN};
        if (poll(&p, 1, ms) == 0)
            return NULL;
    }
    return o;
}

/* All slots, in the order of the file. They come as it grows. */
static bool take_slots(struct swap_row *row)
{
    uint64_t end = clock_ns() + GROW_MS * 1000000ull;
    for (uint32_t got = 0; got < row->n && !interrupted && clock_ns() < end;) {
        uint32_t first, run = swap_slots_take(row->sw, STORE_BLOCKS, row->n - got, &first);
        for (uint32_t i = 0; i < run; i++)
            row->slot[got++] = first + i;
        if (got == row->n)
            return true;
        struct swap_order *o = run ? NULL : wait_order(row->sw, 10);
        if (o)
            swap_order_free(row->sw, o); /* the scan of nothing */
    }
    if (!interrupted)
        fail_dir("did not take 1 GiB in time");
    return false;
}

static void fill_order(struct swap_row *row, struct swap_order *o)
{
    for (; o->n < BATCH && row->n_pages; o->n++) {
        struct swap_record *r = &o->record[o->n];
        uint32_t i = row->next++ % row->n;
        r->slot = row->slot[i];
        r->record = row->page[--row->n_pages];
        if (row->write) {
            row->generation[i] = swap_generation(row->sw);
            memset(r->body, 0, BODY);
            r->body_bytes = BODY;
        }
        r->generation = row->generation[i];
    }
}

static bool order_back(struct swap_row *row, struct swap_order *o)
{
    bool good = o->status == SWAP_GOOD;
    for (uint32_t i = 0; i < o->n; i++)
        row->page[row->n_pages++] = o->record[i].record;
    swap_order_free(row->sw, o);
    if (!good)
        tool_fail(0, "the swap thread failed: see its lines above.");
    return good;
}

/* At least for `ms`, and at least `least` records; then until all are back. */
static bool run_orders(struct swap_row *row, bool write, unsigned ms, uint32_t least,
                       struct moved *out)
{
    enum swap_kind kind = write ? SWAP_WRITE : SWAP_READ;
    uint64_t began = clock_ns(), end = began + ms * 1000000ull;
    struct timespec c0, c1;
    uint64_t records = 0;
    bool good = true, more = true;
    row->write = write;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c0);
    while (good && (more || row->n_pages < PAGES)) {
        while (more && row->n_pages >= BATCH) {
            struct swap_order *o = swap_order_new(row->sw, kind, STORE_BLOCKS);
            if (!o)
                break;
            fill_order(row, o);
            records += o->n;
            swap_submit(row->sw, o);
        }
        struct swap_order *o = wait_order(row->sw, 30 * 1000);
        good = o && order_back(row, o);
        more = !interrupted && (records < least || clock_ns() < end);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c1);
    out->seconds = (double)(clock_ns() - began) / 1e9;
    out->bytes = (double)records * (double)row->record;
    out->cpu_seconds = (double)(c1.tv_sec - c0.tv_sec) + (double)(c1.tv_nsec - c0.tv_nsec) / 1e9;
    return good && !interrupted;
}

static bool start(struct swap_row *row)
{
    char why[512];
    struct swap_config c = {
        .path = {row->dir}, .n_paths = 1, .n_pieces = 1, .depth = DEPTH, .uring = true};
    c.store[STORE_BLOCKS] =
        (struct swap_store_config){.bytes = {swap_file_bytes(row->record, 1, BODY, row->n)},
                                   .slots_most = row->n,
                                   .record_bytes = row->record,
                                   .body_bytes = BODY,
                                   .pool = {row->pool},
                                   .stride = row->record,
                                   .pool_records = PAGES};
    log_setup(LOG_AT_WARNING);
    cores_pin(0, row->cores.other);
    row->sw = swap_start(&c, why, sizeof why); /* its thread has our affinity */
    cores_pin(0, row->cores.mine);
    if (!row->sw)
        tool_fail(0, "%s.", why);
    return row->sw != NULL;
}

/* ---- rows ------------------------------------------------------------------------------------ */

void swap_end(void *self)
{
    struct swap_row *row = self;
    swap_stop(row->sw);
    swap_dir_remove(row->dir);
    sched_setaffinity(0, sizeof row->before, &row->before);
    if (row->plain >= 0)
        close(row->plain);
    if (row->pool_fd >= 0)
        close(row->pool_fd);
    if (row->pool)
        munmap(row->pool, row->record * PAGES);
    free(row->slot);
    free(row->generation);
    free(row);
}

static bool row_init(struct swap_row *row)
{
    row->n = (uint32_t)(FILE_BYTES / row->record);
    row->slot = calloc(row->n, sizeof *row->slot);
    row->generation = calloc(row->n, sizeof *row->generation);
    uint64_t bytes = row->record * PAGES;
    row->pool_fd = memfd_create("pool", MFD_CLOEXEC);
    if (row->pool_fd < 0 || ftruncate(row->pool_fd, (off_t)bytes) != 0)
        return false;
    void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, row->pool_fd, 0);
    if (pool == MAP_FAILED || !row->slot || !row->generation)
        return false;
    row->pool = pool;
    fill_random(row->pool, bytes);
    shuffle(row->page, PAGES, 1);
    row->n_pages = PAGES;
    return true;
}

static void *row_begin(uint64_t record, bool write)
{
    struct swap_row *row = calloc(1, sizeof *row);
    if (!row)
        return NULL;
    row->record = record;
    row->plain = row->pool_fd = -1;
    sched_getaffinity(0, sizeof row->before, &row->before);
    (void)cores_choose(&row->cores); /* one core: nobody is pinned */
    struct moved warm;
    if (fio_there() && row_init(row) && swap_dir_make(row->dir, sizeof row->dir) &&
        (row->plain = plain_file(row->dir, FILE_BYTES)) >= 0 && start(row) && take_slots(row)) {
        swap_dir_remove(row->dir); /* all are open: nothing is left, whatever happens */
        bool good = run_orders(row, true, 0, row->n, &warm);
        row->write = write;
        if (good)
            return row;
    }
    swap_end(row);
    return NULL;
}

static double add(struct moved *sum, const struct moved *m)
{
    sum->bytes += m->bytes;
    sum->cpu_seconds += m->cpu_seconds;
    return m->bytes / m->seconds / 1e6;
}

double swap_value(void *self)
{
    struct swap_row *row = self;
    struct moved m;
    return run_orders(row, row->write, RUN_MS, 0, &m) ? add(&row->ours, &m) : -1;
}

double swap_baseline(void *self)
{
    struct swap_row *row = self;
    struct fio_job job = {.fd = row->plain,
                          .pool_fd = row->pool_fd,
                          .file_bytes = FILE_BYTES,
                          .block_bytes = row->record,
                          .depth = DEPTH,
                          .ms = RUN_MS,
                          .write = row->write,
                          .core = row->cores.other};
    struct moved m;
    return fio_run(&job, &m) ? add(&row->theirs, &m) : -1;
}

void swap_more(void *self, json_t *json)
{
    const struct swap_row *row = self;
    json_object_set_new(json, "cpu_s_per_gb",
                        json_real(row->ours.cpu_seconds * 1e9 / row->ours.bytes));
    json_object_set_new(json, "baseline_cpu_s_per_gb",
                        json_real(row->theirs.cpu_seconds * 1e9 / row->theirs.bytes));
}

#define BEGIN(name, record, write)                                                                 \
    void *name##_begin(void)                                                                       \
    {                                                                                              \
        return row_begin(record, write);                                                           \
    }
BEGIN(swap_read_64k, 64 << 10, false)
BEGIN(swap_read_256k, 256 << 10, false)
BEGIN(swap_read_1m, 1 << 20, false)
BEGIN(swap_write_64k, 64 << 10, true)
BEGIN(swap_write_256k, 256 << 10, true)
BEGIN(swap_write_1m, 1 << 20, true)
