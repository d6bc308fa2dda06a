/*
 * Hostile files of the disk tier: superblocks, flush records, headers, their bodies, payloads, and
 * lengths. A good pair of files is made once; the input says what is spoiled, and whether its
 * checksum is made to fit afterwards. Then a daemon starts over them and is asked for all of it.
 *
 *      one byte: which good files; one: is it started twice; one: is nothing forged | struct patch,
 * ...
 *
 * Files whose checksums were forged may say anything: then bytes are not compared, but the daemon
 * still lives, is clean, and serves. Where nothing was forged, no byte may be wrong.
 */
#include "client/prefixd.h"
#include "daemon/disk_private.h"
#include "tests/fuzz/house.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

const char fuzz_name[] = "swap";

enum { HEAD = 32, SLOTS = 40, STATES = 6, PATCHES_MOST = 40, BT = 4, SHAPES = 3 };

enum {
    ON_SUPER_A,
    ON_SUPER_B,
    ON_FLUSH,
    ON_HEADER,
    ON_BODY,
    ON_PAYLOAD,
    ON_LENGTH,
    ON_ANY,
    ON_KINDS
};
enum { DO_FLIP, DO_SET, DO_ADD, DO_ZERO, DO_COPY, DO_FILL, DO_KINDS };

struct patch {
    uint8_t on, what;
    uint8_t file; /* bit 0: of the states */
    uint8_t seal; /* odd: its checksum is made to fit */
    uint16_t index, other;
    uint32_t at, word;
};
static_assert(sizeof(struct patch) == 16, "no holes");

struct image {
    uint8_t *bytes;
    size_t n, room;
};

struct good {
    struct image file[SWAP_STORES];
};

static struct good good[SHAPES];
static const char *const names[SWAP_STORES] = {"blocks.prefixd", "snapshots.prefixd"};

/* ---- files ---- */

static const char *path_of(int file)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", house_init(), names[file]);
    return path;
}

static void image_read(struct image *m, int file)
{
    FILE *f = fopen(path_of(file), "re");
    REQUIRE(f && fseek(f, 0, SEEK_END) == 0);
    m->n = (size_t)ftell(f);
    m->room = m->n + 65536;
    m->bytes = calloc(1, m->room);
    rewind(f);
    REQUIRE(m->bytes && fread(m->bytes, 1, m->n, f) == m->n);
    fclose(f);
}

static void image_write(const struct image *m, int file)
{
    int fd = open(path_of(file), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, m->bytes, m->n) == (ssize_t)m->n);
    close(fd);
}

/* ---- the daemon ---- */

static void start(struct house *h, unsigned shape)
{
    static char blocks[64], swap[128], states[64];
    const char *options[24];
    unsigned n = 0;
    snprintf(blocks, sizeof blocks, "--blocks=%d", shape == 2 ? 12 : 48);
    snprintf(swap, sizeof swap, "--swap=%s:%llu", house_init(),
             (unsigned long long)swap_file_bytes(HOUSE_BLOCK, 1, body_room(BT), SLOTS));
    snprintf(states, sizeof states, "--snapshot-swap=%llu",
             (unsigned long long)swap_file_bytes(HOUSE_STATE, 1, state_body_room(BT), STATES));
    options[n++] = blocks;
    options[n++] = swap;
    options[n++] = "--block-tokens=4";
    options[n++] = "--block-bytes=64";
    options[n++] = "--max-workers=4";
    options[n++] = "--max-leases=32";
    options[n++] = "--swap-write=insert";
    if (shape != 1) {
        options[n++] = "--snapshots=4";
        options[n++] = "--snapshot-bytes=192";
        options[n++] = states;
    }
    options[n] = NULL;
    house_hash(UINT64_MAX);
    h->threads = true;
    REQUIRE(house_start(h, options));
}

static void settle(struct house *h, bool (*over)(const struct house *h))
{
    for (int i = 0; !over(h); i++) {
        REQUIRE_MSG(i < PATIENCE, "it comes to no end");
        house_round(h);
        daemon_publish(&h->d);
        sleep_us(100);
    }
}

static bool scanned(const struct house *h)
{
    return h->d.counters.disk_scan_done;
}

static bool written(const struct house *h)
{
    return h->d.counters.disk_used >= 10;
}

/* ---- a worker that fills and asks ---- */

static uint32_t token(uint32_t sequence, uint32_t i)
{
    return i < 8 ? i : sequence * 16 + i;
}

/* Tokens [first, end) and, of one sequence, extras: how many. */
static uint32_t piece(struct raw *w, uint32_t sequence, uint32_t first, uint32_t end)
{
    static const struct wire_extra extra[2] = {{.at = 9, .len = 2, .digest = {1}},
                                               {.at = 13, .len = 9, .digest = {2}}};
    uint32_t *to = (uint32_t *)(void *)w->arena;
    for (uint32_t i = first; i < end; i++)
        *to++ = token(sequence, i);
    if (sequence != 2 || first > 9)
        return 0;
    memcpy(w->arena + (((end - first) * 4 + 7) & ~7u), extra, sizeof extra);
    return 2;
}

/* Bytes of a block or state that ends at token `end` of a sequence. */
static uint8_t byte_of(uint32_t sequence, uint32_t end, size_t i)
{
    return (uint8_t)(token(sequence, end - 1) * 29 + end * 7 + i * 3);
}

static uint8_t *block_at(struct raw *w, uint32_t block)
{
    REQUIRE_MSG(block >= 1 && block <= w->welcome.n_blocks, "block %u is none", block);
    return (uint8_t *)w->pool.base + block * w->welcome.block_stride;
}

static uint8_t *slot_at(struct raw *w, uint32_t slot)
{
    REQUIRE_MSG(slot >= 1 && slot <= w->welcome.n_slots, "slot %u is none", slot);
    return (uint8_t *)w->pool.base +
           pool_slots_offset(w->welcome.n_blocks, w->welcome.block_stride) +
           slot * w->welcome.slot_stride;
}

static void bytes_write(uint8_t *to, size_t n, uint32_t sequence, uint32_t end)
{
    for (size_t i = 0; i < n; i++)
        to[i] = byte_of(sequence, end, i);
}

static void bytes_check(const uint8_t *at, size_t n, uint32_t sequence, uint32_t end)
{
    for (size_t i = 0; i < n; i++)
        REQUIRE_MSG(at[i] == byte_of(sequence, end, i), "sequence %u: wrong bytes before token %u",
                    sequence, end);
}

/* Block ids of the lease's first n positions, in the arena. */
static const uint32_t *table_of(struct house *h, struct raw *w, uint64_t lease, uint32_t n)
{
    struct request rq = {.op = OP_TABLE, .lease = lease, .table = {.count = n}};
    struct wire_completion c = guest_call(h, w, rq, PATIENCE);
    REQUIRE_EQ(c.status, 0);
    REQUIRE_EQ(c.table.n, n);
    return (const uint32_t *)(const void *)w->answers;
}

static struct wire_completion look(struct house *h, struct raw *w, uint32_t sequence, uint32_t n)
{
    struct request rq = {.op = OP_LOOKUP_SLOW, .flags = RF_LAST | RF_FETCH};
    rq.slow = (struct request_lookup_slow){.session = 5,
                                           .n_tokens = n,
                                           .max_match = n,
                                           .multiple = BT,
                                           .snapshot_multiple = 1,
                                           .piece = n,
                                           .n_extras = piece(w, sequence, 0, n)};
    struct wire_completion c = guest_call(h, w, rq, PATIENCE);
    REQUIRE_EQ(c.status, 0);
    return c;
}

static int number(struct house *h, struct raw *w, uint16_t op, uint64_t lease, uint64_t n)
{
    struct request rq = {.op = op, .lease = lease, .number = {.n = n}};
    return guest_call(h, w, rq, PATIENCE).status;
}

static void compute(struct house *h, struct raw *w, uint32_t sequence, uint32_t n)
{
    struct wire_completion c = look(h, w, sequence, n);
    uint64_t lease = c.lease;
    uint32_t depth = c.lookup.where.depth, left = (n + BT - 1) / BT - depth;
    c = guest_call(h, w, (struct request){.op = OP_RESERVE, .lease = lease, .reserve = {.n = left}},
                   PATIENCE);
    REQUIRE_EQ(c.status, 0);
    struct place where = c.table.where;
    const uint32_t *table = table_of(h, w, lease, depth + left);
    for (uint32_t i = depth; i < depth + left; i++)
        bytes_write(block_at(w, table[i]), HOUSE_BLOCK, sequence, (i + 1) * BT);
    struct request put = {.op = OP_INSERT, .lease = lease, .flags = RF_LAST};
    put.insert = (struct request_insert){
        .where = where, .piece = n - depth * BT, .n_extras = piece(w, sequence, depth * BT, n)};
    c = guest_call(h, w, put, IN_TIME);
    REQUIRE_EQ(c.status, 0);
    if (h->d.snapshots) {
        c = guest_call(h, w, (struct request){.op = OP_SNAPSHOT_RESERVE, .lease = lease}, PATIENCE);
        REQUIRE_EQ(c.status, 0);
        bytes_write(slot_at(w, c.number.slot), HOUSE_STATE, sequence, n);
        struct request save = {.op = OP_SNAPSHOT_INSERT, .lease = lease};
        save.number = (struct request_number){.n = c.number.slot, .depth = n, .kind = sequence % 3};
        REQUIRE_EQ(guest_call(h, w, save, IN_TIME).status, 0);
    }
    REQUIRE_EQ(number(h, w, OP_RELEASE, lease, 0), 0);
}

/* What a lookup has brought back. */
static void check(struct house *h, struct raw *w, uint32_t sequence,
                  const struct wire_completion *c)
{
    const uint32_t *table = table_of(h, w, c->lease, c->lookup.where.depth);
    for (uint32_t i = 0; i < c->lookup.where.depth; i++)
        if (table[i] != NO_PAGE)
            bytes_check(block_at(w, table[i]), HOUSE_BLOCK, sequence, (i + 1) * BT);
    if (c->lookup.slot != NO_SLOT)
        bytes_check(slot_at(w, c->lookup.slot), HOUSE_STATE, sequence, c->lookup.snapshot_depth);
}

/* Everything that it once computed, whatever is left of it; then room is made. */
static void ask_for_all(struct house *h, bool forged)
{
    struct raw w;
    REQUIRE(guest_open(h, &w, "asks", "", 0, false));
    for (uint32_t sequence = 0; sequence < 4; sequence++) {
        struct wire_completion c = look(h, &w, sequence, 22);
        REQUIRE(c.lookup.where.depth <= 5);
        if (!forged)
            check(h, &w, sequence, &c);
        REQUIRE_EQ(number(h, &w, OP_RELEASE, c.lease, 0), 0);
        house_audit(h);
    }
    (void)number(h, &w, OP_EVICT, 0, 1000);
    if (h->d.snapshots)
        (void)number(h, &w, OP_SNAPSHOT_SPILL, 0, 0);
    house_audit(h);
    (void)number(h, &w, OP_FLUSH, 0, 0);
    house_audit(h);
    guest_close(h, &w);
}

static void make_good(unsigned shape)
{
    static struct house h;
    static struct honest x;
    struct raw w;
    memset(&h, 0, sizeof h);
    memset(&x, 0, sizeof x);
    unlink(path_of(0));
    unlink(path_of(1));
    start(&h, shape);
    settle(&h, scanned);
    honest_open(&h, &x);
    REQUIRE(guest_open(&h, &w, "fills", "", 0, false));
    REQUIRE_EQ(number(&h, &w, OP_FLUSH, 0, 0), 0);
    for (uint32_t sequence = 0; sequence < 4; sequence++)
        compute(&h, &w, sequence, 18 + sequence);
    for (int i = 0; h.d.snapshots && i < 4; i++)
        (void)number(&h, &w, OP_SNAPSHOT_SPILL, 0, 0);
    settle(&h, written);
    guest_close(&h, &w);
    honest_close(&h, &x);
    house_stop(&h);
    image_read(&good[shape].file[0], 0);
    if (shape != 1)
        image_read(&good[shape].file[1], 1);
}

/* ---- what is spoiled ---- */

struct part {
    size_t at, n;
};

/* Where the superblock that the good file has says that it is. */
static struct part part_of(const struct image *whole, const struct patch *p, uint32_t index)
{
    const struct superblock *b = (const struct superblock *)(const void *)whole->bytes;
    uint64_t headers = ((uint64_t)b->extent_slots * b->header_bytes + SWAP_ALIGN - 1) & ~4095ull;
    uint64_t extent = headers + b->extent_slots * b->slot_bytes;
    uint32_t slot = index % SLOTS;
    uint64_t first = SWAP_EXTENTS + slot / b->extent_slots * extent;
    uint64_t header = first + slot % b->extent_slots * b->header_bytes;
    struct part all[ON_KINDS] = {
        [ON_SUPER_A] = {0, sizeof *b},
        [ON_SUPER_B] = {SWAP_SUPERBLOCK, sizeof *b},
        [ON_FLUSH] = {SWAP_FLUSHES + index % FLUSH_RECORDS * sizeof(struct flush_record),
                      sizeof(struct flush_record)},
        [ON_HEADER] = {header, sizeof(struct slot_header)},
        [ON_BODY] = {header + sizeof(struct slot_header),
                     b->header_bytes - sizeof(struct slot_header)},
        [ON_PAYLOAD] = {first + headers + slot % b->extent_slots * b->slot_bytes, b->slot_bytes},
        [ON_ANY] = {0, whole->n},
    };
    struct part it = all[p->on % ON_KINDS];
    if (it.at + it.n > whole->n) /* not all slots exist */
        it = (struct part){0, sizeof *b};
    return it;
}

static void change(struct image *m, const struct image *whole, const struct patch *p,
                   struct part it)
{
    bool small = p->on % ON_KINDS <= ON_SUPER_B; /* most of it is padding */
    uint32_t most = small && it.n > 256 ? 256 : (uint32_t)it.n;
    uint8_t *at = m->bytes + it.at + p->at % (most / 4) * 4;
    uint32_t word;
    memcpy(&word, at, 4);
    switch (p->what % DO_KINDS) {
    case DO_FLIP:
        word ^= 1u << p->word % 32;
        break;
    case DO_SET:
        word = p->word;
        break;
    case DO_ADD:
        word += (uint32_t)(int8_t)p->word;
        break;
    case DO_ZERO:
        memset(m->bytes + it.at, 0, it.n);
        return;
    case DO_COPY: /* of another of its kind */
        memcpy(m->bytes + it.at, whole->bytes + part_of(whole, p, p->other).at, it.n);
        return;
    default:
        memset(at, (int)p->word, p->other % (it.n - (size_t)(at - m->bytes - it.at)));
        return;
    }
    memcpy(at, &word, 4);
}

static void seal(struct image *m, const struct image *whole, const struct patch *p, struct part it)
{
    uint8_t *at = m->bytes + it.at;
    uint32_t kind = p->on % ON_KINDS;
    if (it.at < SWAP_FLUSHES) {
        struct superblock *b = (struct superblock *)(void *)(m->bytes + it.at);
        b->checksum = XXH3_64bits(b, offsetof(struct superblock, checksum));
    } else if (kind == ON_FLUSH) {
        struct flush_record *r = (struct flush_record *)(void *)at;
        r->checksum = XXH3_64bits(r, offsetof(struct flush_record, checksum));
    } else if (kind == ON_HEADER || kind == ON_BODY) {
        const struct superblock *b = (const struct superblock *)(const void *)whole->bytes;
        struct slot_header *h =
            (struct slot_header *)(void *)(kind == ON_BODY ? at - sizeof *h : at);
        if (h->body_bytes <= b->header_bytes - sizeof *h)
            h->checksum = XXH3_64bits_withSeed(
                h + 1, h->body_bytes, XXH3_64bits(h, offsetof(struct slot_header, checksum)));
    }
}

/* True: a checksum has been forged. */
static bool spoil(struct image *m, const struct image *whole, const struct patch *p)
{
    uint32_t kind = p->on % ON_KINDS;
    if (kind == ON_LENGTH) {
        m->n = p->what & 1 ? p->word % (m->room + 1) : m->n - p->word % 8192 % (m->n + 1);
        return true; /* slots that are cut off take the numbers of others with them */
    }
    struct part it = part_of(whole, p, p->index);
    change(m, whole, p, it);
    if (!(p->seal & 1))
        return false;
    seal(m, whole, p, it);
    return true;
}

/* ---- an input ---- */

static void live(unsigned shape, bool forged)
{
    static struct house h;
    static struct honest x;
    memset(&h, 0, sizeof h);
    memset(&x, 0, sizeof x);
    x.mistrusts = forged;
    start(&h, shape);
    settle(&h, scanned);
    house_audit(&h);
    /* Another record has a number that none ever had, whatever the files say. */
    REQUIRE(swap_generation(h.d.disk->swap) - 1 < UINT64_MAX / 2);
    honest_open(&h, &x);
    house_audit(&h);
    ask_for_all(&h, forged);
    honest_work(&h, &x);
    honest_close(&h, &x);
    house_stop(&h);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    struct patch p;
    unsigned shape = n ? bytes[0] % SHAPES : 0;
    bool forged = false;
    house_real_time();
    signal(SIGXFSZ, SIG_IGN);
    if (!good[shape].file[0].bytes)
        make_good(shape);
    struct image now[SWAP_STORES] = {0};
    for (int k = 0; k < SWAP_STORES; k++) {
        unlink(path_of(k));
        if (!good[shape].file[k].bytes)
            continue;
        now[k] = good[shape].file[k];
        now[k].bytes = malloc(now[k].room);
        memcpy(now[k].bytes, good[shape].file[k].bytes, now[k].room);
    }
    size_t at = HEAD;
    for (unsigned i = 0; at + sizeof p <= n && i < PATCHES_MOST; i++, at += sizeof p) {
        memcpy(&p, bytes + at, sizeof p);
        int k = now[1].bytes ? p.file & 1 : 0;
        if (bytes[2] & 1) {
            p.seal = 0;
            p.on = p.on % ON_KINDS == ON_LENGTH ? ON_PAYLOAD : p.on;
        }
        forged |= spoil(&now[k], &good[shape].file[k], &p);
    }
    for (int k = 0; k < SWAP_STORES; k++)
        if (now[k].bytes) {
            image_write(&now[k], k);
            free(now[k].bytes);
        }
    live(shape, forged);
    if (n > 1 && bytes[1] % 4 == 3)
        live(shape, forged);
}

static void make_patch(uint8_t *unit, struct rng *r)
{
    struct patch p = {.on = (uint8_t)rng_below(r, ON_KINDS),
                      .what = (uint8_t)rng_below(r, DO_KINDS),
                      .file = (uint8_t)(rng_below(r, 3) == 0),
                      .seal = (uint8_t)rng_below(r, 2),
                      .index = (uint16_t)rng_below(r, 30),
                      .other = (uint16_t)rng_below(r, 30),
                      .at = rng_below(r, rng_below(r, 2) ? 24 : 200),
                      .word = odd_number(r)};
    memcpy(unit, &p, sizeof p);
}

/* One word of the headers' bodies is the same in all slots, and every checksum fits. */
static size_t forged_words(unsigned i, uint8_t *to)
{
    static const uint8_t words[] = {0,  1,  2,  4,  8,  12, 13,  14,  78,  79, 80,
                                    81, 82, 90, 91, 92, 96, 102, 104, 106, 108};
    static const uint32_t values[] = {0, 1, 8, UINT32_MAX};
    enum { WORDS = sizeof words / sizeof words[0], VALUES = sizeof values / sizeof values[0] };
    size_t n = HEAD;
    if (i >= 2 * WORDS * VALUES)
        return 0;
    for (uint16_t slot = 0; slot < 20; slot++, n += sizeof(struct patch)) {
        struct patch p = {.on = ON_BODY,
                          .what = DO_SET,
                          .file = (uint8_t)(i & 1),
                          .seal = 1,
                          .index = slot,
                          .at = words[i / 2 % WORDS],
                          .word = values[i / 2 / WORDS]};
        memcpy(to + n, &p, sizeof p);
    }
    return n;
}

/* Generations at their end: of superblocks, a flush record, headers. */
static size_t last_generation(unsigned i, uint8_t *to)
{
    static const struct {
        uint8_t on, word;
    } where[] = {{ON_SUPER_A, 26}, {ON_FLUSH, 4}, {ON_HEADER, 2}};
    unsigned kind = i % 3, slots = kind == 2 ? 1 + i / 3 % 2 * 15 : 1;
    size_t n = HEAD;
    to[1] = i & 1 ? 3 : 0;
    for (unsigned slot = 0; slot < slots; slot++)
        for (unsigned half = 0; half < (kind ? 2u : 4u); half++, n += sizeof(struct patch)) {
            struct patch p = {.on = (uint8_t)(where[kind].on + half / 2),
                              .what = DO_SET,
                              .file = (uint8_t)(i / 6 & 1),
                              .seal = 1,
                              .index = (uint16_t)slot,
                              .at = where[kind].word + half % 2,
                              .word = UINT32_MAX - (half % 2 ? 0 : slot)};
            memcpy(to + n, &p, sizeof p);
        }
    return n;
}

size_t fuzz_seed(unsigned i, uint8_t *to)
{
    enum { RANDOM = 24, LAST = 12 };
    struct rng r = {i};
    size_t n = HEAD;
    memset(to, 0, HEAD);
    if (i >= RANDOM + LAST)
        return forged_words(i - RANDOM - LAST, to);
    if (i >= RANDOM)
        return last_generation(i - RANDOM, to);
    to[0] = (uint8_t)i;
    to[1] = (uint8_t)(i % 5);
    to[2] = (uint8_t)(i / 3 % 2);
    for (unsigned k = 0; k < i / 2; k++, n += sizeof(struct patch))
        make_patch(to + n, &r);
    return n;
}

size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r)
{
    mutate_unit_made(make_patch);
    return mutate_units(bytes, n, HEAD, sizeof(struct patch), r);
}
