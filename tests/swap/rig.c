#include "tests/swap/rig.h"
#include "tests/swap/faults.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Some of the callers are killed at any moment: silent checks, as half a message of Check's would
 * be no message. */

/* ---- set up ---- */

static void make_dir(struct rig *r, unsigned path)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(r->dir[path], sizeof r->dir[path], "%s/prefixd-swap-XXXXXX", tmp ? tmp : "/tmp");
    REQUIRE(mkdtemp(r->dir[path]));
    r->config.path[path] = r->dir[path];
}

/* The first page of the copiers' pool is nobody's. */
static void stage(struct rig *r, enum swap_store_kind store)
{
    struct swap_store_config *c = &r->config.store[store];
    char why[256], note[256];
    copiers_free(r->copier[store], RIG_DEVICES);
    c->buffers = swap_buffers(c->record_bytes);
    c->first = 4096;
    for (uint32_t d = 0; d < r->config.n_pieces; d++) {
        const struct copier_config config = {
            .pool = (uintptr_t)c->pool[d] - c->first,
            .pool_bytes = c->first + r->pool_bytes[store],
            .buffer_bytes = c->buffers.bytes,
            .n_buffers = c->buffers.n,
            .numa_node = -1,
        };
        r->copier[store][d] = copier_new(&config, why, sizeof why, note, sizeof note);
        REQUIRE_MSG(r->copier[store][d] != NULL, "%s", why);
        c->copier[d] = r->copier[store][d];
        c->pool[d] = NULL;
    }
    faults_copies_late(2);
}

void rig_store(struct rig *r, enum swap_store_kind store, uint64_t record_bytes,
               uint64_t pool_records, uint64_t n_slots, uint32_t n_pieces)
{
    struct swap_store_config *c = &r->config.store[store];
    uint64_t stride = (record_bytes + 511) / 512 * 512;
    r->config.n_pieces = n_pieces;
    c->record_bytes = record_bytes;
    c->body_bytes = RIG_BODY;
    c->stride = stride;
    c->pool_records = pool_records;
    memset(c->fingerprint, 7 + (int)store, sizeof c->fingerprint);
    r->pool_bytes[store] = stride * pool_records;
    r->pool[store] = mmap(NULL, r->pool_bytes[store] * n_pieces, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(r->pool[store] != MAP_FAILED);
    for (uint32_t d = 0; d < n_pieces; d++)
        c->pool[d] = r->pool[store] + d * r->pool_bytes[store];
    if (getenv("SWAP_STAGED"))
        stage(r, store);
    rig_budget(r, store, n_slots);
}

void rig_budget(struct rig *r, enum swap_store_kind store, uint64_t n_slots)
{
    struct swap_store_config *c = &r->config.store[store];
    for (unsigned p = 0; p < r->config.n_paths; p++)
        c->bytes[p] = swap_file_bytes(c->record_bytes, r->config.n_pieces, c->body_bytes, n_slots);
}

void rig_init(struct rig *r, uint64_t record_bytes, uint64_t pool_records, uint64_t n_slots)
{
    memset(r, 0, sizeof *r);
    signal(SIGXFSZ, SIG_IGN);
    make_dir(r, 0);
    r->config.n_paths = 1;
    r->config.depth = 16;
    r->config.uring = getenv("SWAP_THREADS") == NULL;
    rig_store(r, STORE_BLOCKS, record_bytes, pool_records, n_slots, 1);
}

const char *rig_file(const struct rig *r, unsigned path, enum swap_store_kind store)
{
    static char name[128];
    snprintf(name, sizeof name, "%s/%s.prefixd", r->dir[path],
             store == STORE_BLOCKS ? "blocks" : "snapshots");
    return name;
}

void rig_deinit(struct rig *r)
{
    rig_stop(r);
    for (unsigned p = 0; p < SWAP_PATHS && r->dir[p][0]; p++) {
        for (int k = 0; k < SWAP_STORES; k++)
            unlink(rig_file(r, p, (enum swap_store_kind)k));
        rmdir(r->dir[p]);
    }
    for (int k = 0; k < SWAP_STORES; k++)
        copiers_free(r->copier[(enum swap_store_kind)k], RIG_DEVICES);
    for (int k = 0; k < SWAP_STORES; k++)
        if (r->pool[k])
            munmap(r->pool[k], r->pool_bytes[k] * r->config.n_pieces);
}

void rig_start_only(struct rig *r)
{
    char why[256] = "";
    r->sw = swap_start(&r->config, why, sizeof why);
    REQUIRE_MSG(r->sw != NULL, "%s", why);
}

bool rig_start_fails(struct rig *r, const char *why_has)
{
    char why[256] = "";
    r->sw = swap_start(&r->config, why, sizeof why);
    if (!r->sw && strstr(why, why_has))
        return true;
    fprintf(stderr, "started, or said: %s\n", why);
    return false;
}

void rig_start(struct rig *r)
{
    rig_start_only(r);
    rig_scan(r, NULL, 0);
}

void rig_stop(struct rig *r)
{
    swap_stop(r->sw);
    r->sw = NULL;
}

/* Growth is announced through the descriptor, as an order is. */
void rig_wait_ready(struct rig *r, enum swap_store_kind store, uint32_t n)
{
    uint64_t until = now_ms() + WAIT_MS;
    while (swap_ready(r->sw, store) < n) {
        struct pollfd p = {.fd = swap_fd(r->sw), .events = POLLIN};
        REQUIRE(!swap_take(r->sw));
        if (swap_ready(r->sw, store) >= n)
            break;
        poll(&p, 1, 1000);
        REQUIRE_MSG(now_ms() < until, "%u of %u slots", swap_ready(r->sw, store), n);
    }
}

/* ---- the file ---- */

void file_patch(const char *name, uint64_t offset, const void *bytes, size_t n)
{
    int fd = open(name, O_RDWR);
    REQUIRE(fd >= 0);
    REQUIRE_EQ(pwrite(fd, bytes, n, (off_t)offset), (ssize_t)n);
    close(fd);
}

void file_get(const char *name, uint64_t offset, void *bytes, size_t n)
{
    int fd = open(name, O_RDONLY);
    REQUIRE(fd >= 0);
    REQUIRE_EQ(pread(fd, bytes, n, (off_t)offset), (ssize_t)n);
    close(fd);
}

void file_flip(const char *name, uint64_t offset)
{
    uint8_t byte;
    file_get(name, offset, &byte, 1);
    byte ^= 0x10;
    file_patch(name, offset, &byte, 1);
}

static struct {
    uint64_t headers, extent, header_bytes, slot_bytes;
    uint32_t slots;
} shape;

static void look_at_shape(const struct rig *r)
{
    struct superblock b;
    file_get(rig_file(r, 0, STORE_BLOCKS), 0, &b, sizeof b);
    shape.slots = b.extent_slots;
    shape.header_bytes = b.header_bytes;
    shape.slot_bytes = b.slot_bytes;
    shape.headers = ((uint64_t)b.extent_slots * b.header_bytes + 4095) / 4096 * 4096;
    shape.extent = shape.headers + b.extent_slots * b.slot_bytes;
}

uint64_t rig_header_offset(const struct rig *r, uint32_t local)
{
    look_at_shape(r);
    return SWAP_EXTENTS + local / shape.slots * shape.extent +
           local % shape.slots * shape.header_bytes;
}

uint64_t rig_slot_offset(const struct rig *r, uint32_t local)
{
    look_at_shape(r);
    return SWAP_EXTENTS + local / shape.slots * shape.extent + shape.headers +
           local % shape.slots * shape.slot_bytes;
}

static bool is_header(uint64_t offset)
{
    return offset >= SWAP_EXTENTS && (offset - SWAP_EXTENTS) % shape.extent < shape.headers;
}

void rig_tell_faults(const struct rig *r)
{
    look_at_shape(r);
    faults_is_header = is_header;
}

/* ---- bytes ---- */

static uint64_t word_of(uint64_t number, uint64_t device, uint64_t i)
{
    return (number * 0x9e3779b97f4a7c15ull ^ device << 56) + i * 0xd1342543de82ef95ull;
}

static uint64_t *page_words(const struct rig *r, enum swap_store_kind store, uint32_t record,
                            uint32_t device)
{
    const struct swap_store_config *c = &r->config.store[store];
    return (uint64_t *)(void *)(r->pool[store] + device * r->pool_bytes[store] +
                                record * c->stride);
}

void page_fill(struct rig *r, enum swap_store_kind store, uint32_t record, uint64_t number)
{
    for (uint32_t d = 0; d < r->config.n_pieces; d++) {
        uint64_t *word = page_words(r, store, record, d);
        for (uint64_t i = 0; i < r->config.store[store].record_bytes / 8; i++)
            word[i] = word_of(number, d, i);
    }
}

bool page_is(const struct rig *r, enum swap_store_kind store, uint32_t record, uint64_t number)
{
    uint64_t wrong = 0;
    for (uint32_t d = 0; d < r->config.n_pieces; d++) {
        const uint64_t *word = page_words(r, store, record, d);
        for (uint64_t i = 0; i < r->config.store[store].record_bytes / 8; i++)
            wrong |= word[i] ^ word_of(number, d, i);
    }
    return wrong == 0;
}

void body_fill(struct swap_record *record, uint64_t parent, uint64_t space)
{
    struct body *b = (struct body *)(void *)record->body;
    memset(b, 0, sizeof *b);
    b->prefix.parent_generation = parent;
    b->prefix.space[0] = space;
    b->prefix.space[1] = space ? ~space : 0;
    b->generation = record->generation;
    b->check = word_of(record->generation, 9, record->slot);
    record->body_bytes = sizeof *b;
}

bool body_is(const struct swap_record *record)
{
    const struct body *b = (const struct body *)(const void *)record->body;
    return record->body_bytes == sizeof *b && b->generation == record->generation;
}

/* ---- orders ---- */

struct swap_order *rig_order(struct rig *r, enum swap_kind kind, enum swap_store_kind store)
{
    struct swap_order *o = swap_order_new(r->sw, kind, store);
    REQUIRE(o);
    return o;
}

struct swap_order *rig_take(struct rig *r)
{
    uint64_t until = now_ms() + WAIT_MS;
    for (;;) {
        struct swap_order *o = swap_take(r->sw);
        if (o)
            return o;
        struct pollfd p = {.fd = swap_fd(r->sw), .events = POLLIN};
        poll(&p, 1, 2000);
        REQUIRE_MSG(now_ms() < until, "no answer");
    }
}

struct swap_record *rig_add_write(struct rig *r, struct swap_order *o, uint32_t record,
                                  uint64_t parent, uint64_t space)
{
    struct swap_record *w = &o->record[o->n];
    if (!swap_slots_take(r->sw, o->store, 1, &w->slot))
        return NULL;
    o->n++;
    w->record = record;
    w->generation = swap_generation(r->sw);
    page_fill(r, o->store, record, w->generation);
    body_fill(w, parent, space);
    return w;
}

void rig_add_read(struct swap_order *o, uint32_t slot, uint64_t generation, uint32_t record)
{
    o->record[o->n++] =
        (struct swap_record){.slot = slot, .record = record, .generation = generation};
}

enum swap_status rig_run(struct rig *r, struct swap_order *o)
{
    swap_submit(r->sw, o);
    struct swap_order *got = rig_take(r);
    REQUIRE(got == o);
    enum swap_status status = o->status;
    swap_order_free(r->sw, o);
    return status;
}

enum swap_status rig_write(struct rig *r, uint64_t parent, uint64_t space, struct written *w)
{
    struct swap_order *o = rig_order(r, SWAP_WRITE, STORE_BLOCKS);
    struct swap_record *record = rig_add_write(r, o, 0, parent, space);
    REQUIRE(record);
    *w = (struct written){record->slot, record->generation, parent, space};
    return rig_run(r, o);
}

enum swap_status rig_read(struct rig *r, const struct written *w)
{
    struct swap_order *o = rig_order(r, SWAP_READ, STORE_BLOCKS);
    page_fill(r, STORE_BLOCKS, 1, 0);
    rig_add_read(o, w->slot, w->generation, 1);
    enum swap_status status = rig_run(r, o);
    if (status == SWAP_GOOD)
        REQUIRE_MSG(page_is(r, STORE_BLOCKS, 1, w->generation), "wrong bytes");
    return status;
}

enum swap_status rig_flush(struct rig *r, enum swap_store_kind store, uint64_t space,
                           uint64_t generation)
{
    struct swap_order *o = rig_order(r, SWAP_FLUSH, store);
    o->space[0] = space;
    o->space[1] = space ? ~space : 0;
    o->generation = generation;
    return rig_run(r, o);
}

enum swap_status rig_retire(struct rig *r, uint32_t slot)
{
    struct swap_order *o = rig_order(r, SWAP_RETIRE, STORE_BLOCKS);
    o->record[o->n++].slot = slot;
    return rig_run(r, o);
}

uint32_t rig_scan(struct rig *r, struct written *found, uint32_t n)
{
    uint32_t got = 0;
    uint64_t before[SWAP_STORES] = {0};
    for (bool last = false; !last;) {
        struct swap_order *o = rig_take(r);
        REQUIRE_EQ(o->kind, SWAP_SCAN);
        for (uint32_t i = 0; i < o->n; i++) {
            const struct swap_record *w = &o->record[i];
            const struct body *b = (const struct body *)(const void *)w->body;
            REQUIRE(body_is(w));
            REQUIRE(w->generation > before[o->store]);
            before[o->store] = w->generation;
            if (found && got < n) {
                found[got] = (struct written){w->slot, w->generation, b->prefix.parent_generation,
                                              b->prefix.space[0]};
                swap_slot_used(r->sw, o->store, w->slot);
            }
            got++;
        }
        last = o->last;
        swap_order_free(r->sw, o);
    }
    REQUIRE(!swap_scanning(r->sw));
    return got;
}
