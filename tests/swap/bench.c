/*
 * bench.c - the swap thread against the least loop that moves the same bytes: io_uring, direct,
 * fixed buffers, the same depth, the same places in a file of the same length. Five interleaved
 * pairs a row.
 *
 *      bench DIR [MIB]     JSON lines: MB/s of both, and their ratio; CPU seconds a gigabyte
 *      bench DIR scan N    a restart with N headers
 */
#include "daemon/swap.h"

#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 32, PAIRS = 5, POOL = 256 << 20, BODY = 448 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static struct swap *begin(const char *dir, uint8_t *pool, uint64_t record, uint64_t slots)
{
    char why[256];
    struct swap_config c = {
        .path = {dir}, .n_paths = 1, .n_pieces = 1, .depth = DEPTH, .uring = true};
    c.store[0] = (struct swap_store_config){.bytes = {swap_file_bytes(record, 1, BODY, slots) * 2},
                                            .record_bytes = record,
                                            .body_bytes = BODY,
                                            .pool = {pool},
                                            .stride = record,
                                            .pool_records = POOL / record};
    struct swap *sw = swap_start(&c, why, sizeof why);
    if (!sw)
        die(why);
    return sw;
}

static struct swap_order *wait_one(struct swap *sw)
{
    for (;;) {
        struct swap_order *o = swap_take(sw);
        if (o)
            return o;
        struct pollfd p = {.fd = swap_fd(sw), .events = POLLIN};
        poll(&p, 1, 1000);
    }
}

static uint64_t scan(struct swap *sw)
{
    uint64_t n = 0;
    for (bool last = false; !last;) {
        struct swap_order *o = wait_one(sw);
        n += o->n;
        last = o->last;
        swap_order_free(sw, o);
    }
    return n;
}

/* Until it has grown. */
static void wait_slots(struct swap *sw)
{
    struct pollfd p = {.fd = swap_fd(sw), .events = POLLIN};
    poll(&p, 1, 100);
    if (swap_take(sw))
        die("an answer that nobody asked for");
}

struct places {
    uint32_t slot[1 << 16];
    uint64_t generation[1 << 16];
    uint32_t n;
};

/* Orders of up to 64 records with twice the depth under way, as the daemon would. */
static double ours(struct swap *sw, struct places *p, uint64_t record, bool write)
{
    double start = now_s();
    uint64_t pages = POOL / record;
    uint32_t sent = 0, done = 0, batch = (uint32_t)(DEPTH * 2 * (1 << 20) / record / 8);
    if (batch > SWAP_BATCH)
        batch = SWAP_BATCH;
    if (batch < 4)
        batch = 4;
    while (done < p->n) {
        while (sent < p->n && sent - done < pages - batch) {
            struct swap_order *o = swap_order_new(sw, write ? SWAP_WRITE : SWAP_READ, STORE_BLOCKS);
            if (!o)
                break;
            for (; o->n < batch && sent < p->n; o->n++, sent++) {
                struct swap_record *r = &o->record[o->n];
                r->slot = p->slot[sent];
                r->record = (uint32_t)(sent % pages);
                if (write) {
                    p->generation[sent] = swap_generation(sw);
                    memset(r->body, 0, 64);
                    r->body_bytes = 64;
                }
                r->generation = p->generation[sent];
            }
            swap_submit(sw, o);
        }
        struct swap_order *o = wait_one(sw);
        if (o->status != SWAP_GOOD)
            die("an order failed");
        done += o->n;
        swap_order_free(sw, o);
    }
    return (double)p->n * (double)record / 1e6 / (now_s() - start);
}

static double theirs(const char *name, uint8_t *pool, uint64_t record, uint32_t n, bool write)
{
    struct io_uring ring;
    struct io_uring_params params = {.flags =
                                         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int fd = open(name, O_RDWR | O_DIRECT);
    struct iovec v = {pool, POOL};
    if (fd < 0 || io_uring_queue_init_params(DEPTH, &ring, &params) ||
        io_uring_register_files(&ring, &fd, 1) || io_uring_register_buffers(&ring, &v, 1))
        die("the plain loop cannot be set up");
    double start = now_s();
    uint64_t pages = POOL / record;
    for (uint32_t sent = 0, done = 0; done < n;) {
        for (; sent < n && sent - done < DEPTH; sent++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            uint8_t *at = pool + sent % pages * record;
            if (write)
                io_uring_prep_write_fixed(sqe, 0, at, (unsigned)record, sent * record, 0);
            else
                io_uring_prep_read_fixed(sqe, 0, at, (unsigned)record, sent * record, 0);
            sqe->flags |= IOSQE_FIXED_FILE;
        }
        io_uring_submit_and_wait(&ring, 1);
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        io_uring_for_each_cqe(&ring, head, cqe)
        {
            if (cqe->res != (int)record)
                die("the plain loop failed");
            seen++;
        }
        io_uring_cq_advance(&ring, seen);
        done += seen;
    }
    double mbs = (double)n * (double)record / 1e6 / (now_s() - start);
    io_uring_queue_exit(&ring);
    close(fd);
    return mbs;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void row(struct swap *sw, struct places *p, const char *plain, uint8_t *pool,
                uint64_t record, bool write)
{
    double a[PAIRS], b[PAIRS], ratio[PAIRS], cpu_a = 0, cpu_b = 0;
    for (int i = 0; i < PAIRS; i++) {
        double c0 = cpu_s();
        a[i] = ours(sw, p, record, write);
        double c1 = cpu_s();
        b[i] = theirs(plain, pool, record, p->n, write);
        cpu_a += c1 - c0;
        cpu_b += cpu_s() - c1;
        ratio[i] = a[i] / b[i];
    }
    qsort(a, PAIRS, sizeof a[0], by_value);
    qsort(b, PAIRS, sizeof b[0], by_value);
    qsort(ratio, PAIRS, sizeof ratio[0], by_value);
    double gb = (double)p->n * (double)record * PAIRS / 1e9;
    printf("{\"name\":\"swap.%s.%" PRIu64 "k\",\"value\":%.0f,\"unit\":\"MB/s\",\"baseline\":%.0f,"
           "\"ratio\":%.3f,\"cpu_s_gb\":%.3f,\"baseline_cpu_s_gb\":%.3f}\n",
           write ? "write" : "read", record >> 10, a[PAIRS / 2], b[PAIRS / 2], ratio[PAIRS / 2],
           cpu_a / gb, cpu_b / gb);
    fflush(stdout);
}

static void speed(const char *dir, uint64_t mib)
{
    static struct places p;
    static const uint64_t sizes[] = {64 << 10, 256 << 10, 1 << 20};
    char plain[512], file[512];
    snprintf(plain, sizeof plain, "%s/plain", dir);
    snprintf(file, sizeof file, "%s/blocks.prefixd", dir);
    uint8_t *pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(pool, 5, POOL);
    int fd = open(plain, O_RDWR | O_CREAT | O_DIRECT, 0600);
    for (uint64_t i = 0; i < mib; i++)
        if (pwrite(fd, pool, 1 << 20, (off_t)(i << 20)) != 1 << 20)
            die("the plain file cannot be written");
    close(fd);
    for (int k = 0; k < 3; k++) {
        uint64_t record = sizes[k];
        p.n = (uint32_t)((mib << 20) / record);
        if (p.n > 1 << 16)
            p.n = 1 << 16;
        unlink(file);
        struct swap *sw = begin(dir, pool, record, p.n);
        scan(sw);
        for (uint32_t i = 0; i < p.n;) {
            uint32_t first, got = swap_slots_take(sw, STORE_BLOCKS, SWAP_BATCH, &first);
            if (!got)
                wait_slots(sw);
            for (uint32_t x = 0; x < got && i < p.n; x++)
                p.slot[i++] = first + x;
        }
        sleep(1); /* it grows ahead of what was taken */
        while (swap_facts(sw).growing)
            wait_slots(sw);
        row(sw, &p, plain, pool, record, true);
        row(sw, &p, plain, pool, record, false);
        swap_stop(sw);
        unlink(file);
    }
    unlink(plain);
}

static void restart(const char *dir, uint32_t n)
{
    enum { RECORD = 4096 };
    char file[512];
    snprintf(file, sizeof file, "%s/blocks.prefixd", dir);
    uint8_t *pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct swap *sw = begin(dir, pool, RECORD, n);
    scan(sw);
    uint32_t sent = 0, done = 0;
    uint64_t parent[1024] = {0}; /* chains side by side */
    while (done < n) {
        struct swap_order *o = sent < n ? swap_order_new(sw, SWAP_WRITE, STORE_BLOCKS) : NULL;
        if (o) {
            uint32_t first, got = swap_slots_take(sw, STORE_BLOCKS, SWAP_BATCH, &first);
            if (!got) {
                swap_order_free(sw, o);
                o = sent == done ? NULL : wait_one(sw);
                if (!o)
                    wait_slots(sw);
                done += o ? o->n : 0;
                if (o)
                    swap_order_free(sw, o);
                continue;
            }
            for (; o->n < got && sent < n; o->n++, sent++) {
                struct swap_record *r = &o->record[o->n];
                r->slot = first + o->n;
                r->record = sent % (POOL / RECORD);
                r->generation = swap_generation(sw);
                memset(r->body, 0, BODY);
                struct body_prefix *p = (struct body_prefix *)(void *)r->body;
                p->parent_generation = sent / 1024 % 16 ? parent[sent % 1024] : 0;
                parent[sent % 1024] = r->generation;
                r->body_bytes = BODY;
            }
            swap_submit(sw, o);
            continue;
        }
        o = wait_one(sw);
        done += o->n;
        swap_order_free(sw, o);
    }
    swap_stop(sw);
    for (int cold = 0; cold < 2; cold++) {
        if (cold && system("sync; echo 3 > /proc/sys/vm/drop_caches"))
            break;
        double start = now_s();
        sw = begin(dir, pool, RECORD, n);
        uint64_t found = scan(sw);
        printf("{\"name\":\"swap.scan%s\",\"value\":%.0f,\"unit\":\"blocks/s\",\"blocks\":%" PRIu64
               ",\"seconds\":%.3f}\n",
               cold ? ".cold" : "", (double)found / (now_s() - start), found, now_s() - start);
        swap_stop(sw);
    }
    unlink(file);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[2], "scan"))
        restart(argv[1], (uint32_t)strtoul(argv[3], NULL, 0));
    else if (argc == 2 || argc == 3)
        speed(argv[1], argc == 3 ? strtoull(argv[2], NULL, 0) : 2048);
    else
        die("usage: bench DIR [MIB | scan N]");
    return 0;
}
