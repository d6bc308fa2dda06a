/*
 * swap_private.h - what the files of the disk tier share. Each field has one thread that writes it:
 * the index thread, the swap thread, or swap_start before there are two.
 */
#ifndef DAEMON_SWAP_PRIVATE_H
#define DAEMON_SWAP_PRIVATE_H

#include "daemon/list.h"
#include "daemon/swap.h"
#include "daemon/swap_engine.h"
#include "shm/clock.h"
#include "shm/ring.h"

#include <pthread.h>
#include <xxhash.h>

enum {
    SWAP_SPLIT = 1 << 20, /* the longest operation: longer ones have come back with EAGAIN */
    SWAP_TRIES = 16,      /* of an operation, without progress */
    SWAP_ERRORS = 8,      /* in a row: the file is sick */
    EXTENT_SLOTS_MIN = 16,
    SWAP_SCANS = 16,      /* SCAN orders out */
    SWAP_WAVE = 16,       /* operations of growth at once */
    SWAP_BACKGROUND = 64, /* operations beside those that depth counts: 16 of growth, a probe a
                             file, 16 of the scan */
};

#define SECOND_NS 1000000000ull
#define PROBE_NS  (2 * SECOND_NS)  /* between probes, tries to grow, and to write what is owed */
#define STUCK_NS  (20 * SECOND_NS) /* an operation that takes longer makes its file sick */

/* Generations that may be in places nobody can see are jumped over. */
#define GENERATION_JUMP (1ull << 32)
/* None comes near it: what says so is damaged, and to count on from there would lead back to
 * numbers that old records have. What is counted on from just below it has as far to go. */
#define GENERATION_END (1ull << 62)

/* ---- files (swap thread, after swap_start) ---- */

/* What may not come back; the same in memory and on disk. */
struct flushes {
    uint16_t n;
    uint16_t bucket[2 * FLUSH_RECORDS]; /* by space: record + 1 */
    struct flush_record record[FLUSH_RECORDS];
};

struct swap_file {
    char *name;
    enum swap_store_kind store;
    unsigned index; /* among all files: its descriptors in the engine are 2 x index, + 1 direct */
    int fd;         /* headers and all that is small; locked */
    int direct_fd;  /* payload; -1: none */
    bool direct;    /* false: payload through fd too */
    uint32_t align; /* of direct transfers */
    uint64_t mates; /* how many files were in its set, 0: made anew just now */
    uint32_t first_slot; /* number in the store of its slot 0 */
    uint32_t n_slots;    /* by the budget */
    uint32_t ready;      /* that exist; the index thread reads it */
    uint64_t length;     /* as far as it is prewritten */
    uint64_t budget;
    uint32_t extent_headers; /* bytes, padded */
    struct superblock super;
    struct flushes *flushes;
    bool owed;          /* superblocks or flush records could not be written: they will be */
    uint32_t unretired; /* slots whose retirement could not: the same */
    uint32_t full;      /* growth waits; the index thread reads it */
    bool probing;
    uint32_t sick;      /* the index thread reads it */
    uint64_t narrow_ns; /* no waves before */
    uint8_t *probe;     /* a block for it */
    unsigned errors;    /* in a row */
    uint64_t said_ns;   /* when one was last logged */
    uint64_t retry_ns;  /* when to grow, probe or write what is owed again */
};

/* What a slot's header on disk says, as far as it is known. The file's header is not read again. */
struct slot_fact {
    uint64_t generation; /* 0: none that counts */
    uint64_t payload[2];
};

struct swap_store {
    enum swap_store_kind kind;
    const struct swap_store_config *config;
    uint32_t header_bytes; /* of a slot, the body included */
    uint64_t piece_pitch;  /* from piece to piece in a slot */
    uint64_t slot_bytes;
    uint64_t step;           /* from record to record in memory */
    struct staging *staging; /* NULL: that memory is the pool. Else buffers: swap_stage.c */
    struct swap_file *file;
    unsigned n_files;
    uint32_t n_slots;
    struct slot_fact *fact; /* swap thread */
    uint64_t *retired;   /* a bit a slot: swap thread until the scan is over, then index thread */
    uint64_t *unretired; /* a bit a slot that is to be retired yet: swap thread */
};

/* ---- orders ---- */

struct job {
    struct swap_order order;         /* must be first */
    struct list alive;               /* WRITE: from its beginning to its answer */
    struct list issue, header, hash; /* while there is work of that kind */
    struct list stage;               /* while some records wait for a buffer */
    uint8_t *staging; /* SWAP_BATCH headers with their bodies, as they stand on disk */
    uint32_t room;    /* bytes of staging */
    uint32_t n_over;
    /* A bit a record. */
    uint64_t open;     /* WRITE: its payload or its checksum is not through */
    uint64_t unstaged; /* waits for a buffer */
    uint64_t todo;     /* payload not issued to its end */
    uint64_t alone;    /* failed as one of several in an operation: goes by itself */
    uint64_t unhashed; /* checksum to be computed */
    uint64_t hashed;
    uint64_t ready; /* header to be written, once no record is open */
    uint64_t over;
    int current; /* record that is issued in part, or -1 */
    uint32_t piece;
    uint64_t at; /* of it: next to be issued */
    struct {
        uint32_t left;  /* operations */
        int error;      /* errno */
        uint16_t stage; /* number + 1; 0: in none */
        uint16_t place; /* in its buffers */
        uint64_t digest[2];
    } state[SWAP_BATCH];
};

static inline void job_in_no_list(struct job *j)
{
    list_init(&j->alive);
    list_init(&j->issue);
    list_init(&j->header);
    list_init(&j->hash);
    list_init(&j->stage);
}

enum op_kind { OP_PAYLOAD, OP_HEADER, OP_GROW, OP_PROBE, OP_HEADERS, OP_BODIES };

struct op {
    enum op_kind kind;
    bool busy, write, direct;
    uint32_t generation; /* counts submissions: a completion of an earlier one is late */
    struct swap_file *file;
    struct job *job;
    uint32_t first, n; /* records of the job */
    uint64_t offset;
    uint8_t *base;
    uint32_t length, done;
    uint32_t tries;
    uint64_t began_ns;
};

/* A ring of one direction, in private memory; the reader sleeps on fd. */
struct swap_channel {
    struct ring_writer w; /* writer's */
    uint32_t answered;
    _Alignas(64) uint32_t tail;
    uint32_t wakes;                    /* how often fd was written */
    _Alignas(64) struct ring_reader r; /* reader's */
    uint32_t doze;
    _Alignas(64) uint32_t head;
    uint8_t *entries;
    int fd;
};

/* A ring's record. */
struct swap_note {
    struct job *job;
    enum swap_note_what { NOTE_ORDER, NOTE_SCAN_BACK, NOTE_GROWN } what;
    uint8_t pad[RING_RECORD - 12];
};
static_assert(sizeof(struct swap_note) == RING_RECORD, "a record");

struct scan;

/* ---- pools that the CPU does not reach: swap_stage.c (swap thread) ---- */

enum stage_state { STAGE_FREE, STAGE_FILLING, STAGE_OPEN, STAGE_DRAINING };

struct stage { /* the buffer of its number, of each device's copier */
    enum stage_state state;
    bool write, failed;
    uint32_t moving; /* a bit a device whose copier is at it */
    struct job *job;
    uint64_t records;  /* of the job, in it */
    uint64_t verified; /* READ: of these, checksum right */
    uint64_t began_ns;
};

struct staging {
    unsigned n, n_reading, n_writing;
    bool turn_of_writes;       /* where there is one for both */
    struct list reads, writes; /* jobs with records that wait */
    struct stage stage[COPIER_BUFFERS];
};

struct swap {
    struct swap_config config; /* a copy; paths are this struct's own */
    struct swap_store store[SWAP_STORES];
    struct swap_file *file;
    unsigned n_files;
    pthread_t thread;
    struct swap_channel orders, answers;
    uint32_t stopping; /* index thread writes, swap thread reads */

    /* index thread */
    struct slots *slots[SWAP_STORES];
    uint32_t wakes_seen;
    bool armed; /* swap_take has found nothing: fd will say when there is something */
    bool scanning;
    unsigned n_out;
    unsigned n_under_way; /* orders that were submitted, and not taken back */
    uint32_t turns_seen;
    uint64_t turned_ns; /* when they had changed, or nothing was under way */
    bool stands;        /* the swap thread itself does not come back */
    uint64_t next_generation;
    struct list spare; /* orders to be used again */
    unsigned n_spare;
    uint32_t taken[SWAP_STORES]; /* slots in use: the swap thread reads it, to grow ahead of it */
    uint32_t grown; /* a note of it is under way: swap thread sets, index thread clears */

    /* swap thread */
    _Alignas(64) struct engine *engine;
    struct op *op;
    uint32_t *free_op;
    unsigned n_ops, n_free_op;
    unsigned n_payload, n_writes; /* operations in flight; writes among them */
    unsigned n_headers;
    struct list alive, reads, writes, headers, hashing, deferred;
    struct {
        struct job *job; /* NULL: nothing begun */
        unsigned record;
        uint32_t piece;
        uint64_t at;
        XXH3_state_t *state;
    } hash;
    unsigned n_staged;           /* stages that are not free */
    bool stage_news;             /* one has become free, or can be copied from */
    uint64_t stage_said_ns;      /* when a failure of a copier's was last logged */
    struct scan *scan;           /* NULL: over */
    uint64_t highest_generation; /* seen in headers, flushes and orders */
    bool generation_jump;        /* swap_start, scan: there may be headers that nobody sees */
    struct {
        unsigned left; /* operations under way, of one file; 0: nothing grows */
        bool wave;     /* there were several */
        uint64_t end;  /* what has not failed ends here */
        int error;     /* errno */
    } growth;
    unsigned grow_next;
    uint8_t *zeros;
    uint64_t now_ns, looked_ns, unpinned_ns;
    bool left_behind; /* operations that did not come back before the end: nothing is freed */
    uint32_t turns;   /* the index thread reads it */
    struct swap_facts facts; /* each field on its own, relaxed */
};

#define FACT_ADD(sw, field, n) shm_store(&(sw)->facts.field, (sw)->facts.field + (n))

/* ---- geometry ---- */

static inline uint64_t swap_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static inline uint64_t extent_bytes(const struct swap_store *s, const struct swap_file *f)
{
    return f->extent_headers + f->super.extent_slots * s->slot_bytes;
}

static inline uint64_t header_offset(const struct swap_store *s, const struct swap_file *f,
                                     uint32_t local)
{
    uint32_t e = f->super.extent_slots;
    return SWAP_EXTENTS + local / e * extent_bytes(s, f) + (uint64_t)(local % e) * s->header_bytes;
}

static inline uint64_t slot_offset(const struct swap_store *s, const struct swap_file *f,
                                   uint32_t local)
{
    uint32_t e = f->super.extent_slots;
    return SWAP_EXTENTS + local / e * extent_bytes(s, f) + f->extent_headers +
           local % e * s->slot_bytes;
}

static inline struct swap_file *file_of(const struct swap_store *s, uint32_t slot)
{
    for (unsigned i = 0; i < s->n_files; i++)
        if (slot - s->file[i].first_slot < s->file[i].n_slots)
            return &s->file[i];
    return NULL;
}

/* Where payload is, or goes to: in the pool, or in a buffer. */
static inline uint8_t *payload_at(const struct swap_store *s, const struct job *j, unsigned r,
                                  uint32_t piece)
{
    if (s->staging)
        return copier_buffer(s->config->copier[piece], j->state[r].stage - 1u) +
               j->state[r].place * s->step;
    return s->config->pool[piece] + j->order.record[r].record * s->step;
}

/* ---- swap_super.c ---- */

/* All of it, short transfers and EINTR seen to. 0 or -errno; -ENODATA: the file ends before. */
int file_read(int fd, void *to, size_t n, uint64_t offset);
int file_write(int fd, const void *from, size_t n, uint64_t offset, int flags);
/* Synchronized, which may take its time; a sick file is not waited for: -EIO. */
int file_promise(const struct swap_file *f, const void *from, size_t n, uint64_t offset);

void header_seal(struct slot_header *h);
/* A header and the body after it, in `room` bytes: whole, and of this slot? */
bool header_fits(const struct slot_header *h, const struct swap_file *f, uint32_t local,
                 uint32_t room);

int super_write(struct swap_file *f);
/* Superblocks and flush records, all. */
int head_write(struct swap_file *f);
uint32_t slots_in(const struct swap_store *s, const struct swap_file *f, uint64_t length);
struct swap_store store_shape(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes);
uint64_t bytes_for(const struct swap_store *s, uint32_t extent_slots, uint64_t n_slots);

enum swap_found { FOUND_NOTHING, FOUND_KEPT, FOUND_OTHER, FOUND_DAMAGED, FOUND_FOREIGN };

/* 0 or -errno: it cannot be read. */
int file_look_into(const struct swap_store *s, struct swap_file *f, uint64_t length,
                   enum swap_found *found);
/* In memory it is as if new; on disk nothing is left. 0 or -errno. */
int file_empty(const struct swap_store *s, struct swap_file *f);

/* ---- swap_file.c ---- */

/* False: no memory. */
bool file_begin(struct swap_file *f, enum swap_store_kind kind, const char *path, uint64_t budget);
bool file_open(struct swap *sw, struct swap_store *s, struct swap_file *f, const char *path,
               enum swap_found *found, char *why, size_t n_why);
/* Cut to its budget. 0 or -errno. */
int file_trim(const struct swap_store *s, struct swap_file *f, uint64_t length);
void file_close(struct swap_file *f);
/* Direct I/O is refused after all. */
void file_direct_off(struct swap_file *f, int error);
/* False, for it is said in `why`. */
bool swap_fail(char *why, size_t n_why, const char *name, const char *what);
bool swap_fail_errno(char *why, size_t n_why, const char *name, const char *what);

/* ---- swap_set.c ---- */

bool files_open(struct swap *sw, char *why, size_t n_why);
/* No operation is under way any more. */
void files_unlock(struct swap *sw);
void files_close(struct swap *sw);

/* ---- swap_flush.c ---- */

/* As they were read. False: one is damaged. */
bool flushes_load(struct flushes *l);
uint64_t flushes_highest(const struct flushes *l);
bool flushed(const struct swap_file *f, const uint64_t space[2], uint64_t generation);
/* The record is, or flushed_all is, on disk: 0 or -errno. `lowest` is asked for when there is no
 * room: no header of the file, written or under way, is older. */
int flush_write(struct swap_file *f, const uint64_t space[2], uint64_t generation,
                uint64_t (*lowest)(void *arg, struct swap_file *f), void *arg);

/* ---- swap_slots.c ---- */

struct slots *slots_new(const struct swap_store *s);
void store_slots_free(struct slots *l);
void slots_scan_over(struct slots *l);
void slots_grown(struct slots *l);

/* ---- swap.c ---- */

bool swap_channel_init(struct swap_channel *c, unsigned size, int fd_flags);
void swap_channel_deinit(struct swap_channel *c);
void swap_channel_post(struct swap_channel *c, struct job *job, enum swap_note_what what);
struct job *job_alloc(const struct swap_store *s, bool bodies);

/* ---- swap_thread.c ---- */

void *swap_main(void *arg);
/* 0 or -errno: the old header may still be there. */
int slot_retire(struct swap *sw, struct swap_file *f, uint32_t slot);

/* ---- swap_record.c ---- */

void job_answer(struct swap *sw, struct job *j);
void record_over(struct swap *sw, struct job *j, unsigned r, enum swap_status status);
void payload_over(struct swap *sw, struct job *j, unsigned r);
/* Not tried any more. */
void payload_give_up(struct swap *sw, struct job *j, uint64_t records);
void header_over(struct swap *sw, struct job *j, unsigned r, int error);
/* False: no checksum is wanted. */
bool hash_begin(struct swap *sw);
/* Some of the checksums that are wanted. */
void hash_step(struct swap *sw);

/* ---- swap_transfer.c ---- */

bool ops_init(struct swap *sw);
void ops_deinit(struct swap *sw);
struct op *op_new(struct swap *sw, enum op_kind kind, struct swap_file *f);
void op_send(struct swap *sw, struct op *op);
void op_completed(struct swap *sw, const struct engine_result *r);
void ops_look_for_stuck(struct swap *sw);
/* Payload and headers, as far as depth allows. */
void transfers_issue(struct swap *sw);

/* ---- swap_stage.c ---- */

/* False: no memory. Without copiers there is nothing to do. */
bool staging_init(struct swap *sw, struct swap_store *s);
void staging_deinit(struct swap *sw, struct swap_store *s);
/* What the engine moves, of a device. */
struct iovec payload_memory(const struct swap_store *s, uint32_t device);
/* Records of a job that is about to begin. */
void stage_want(struct swap *sw, struct job *j, uint64_t records);
/* READ: its checksum is right. */
void stage_verified(struct swap *sw, struct job *j, unsigned r);
/* Its buffer is not needed any more; if it has one. */
void stage_left(struct swap *sw, struct job *j, unsigned r);
/* Copies that are over, and others that can begin. */
void stages_step(struct swap *sw);
/* How long it may be slept, `most` at most, before a copy is to be looked at. */
unsigned stages_nap_us(const struct swap *sw, unsigned most);
/* What waits for a buffer will not have one. */
void stages_give_up(struct swap *sw);

/* ---- swap_grow.c ---- */

void background_step(struct swap *sw);
/* Promises that could not be kept so far. False: some still cannot. */
bool pay_owed(struct swap *sw, struct swap_file *f);
void grow_over(struct swap *sw, struct op *op, int error);
void probe_over(struct swap *sw, struct op *op, int error);
void file_error(struct swap *sw, struct swap_file *f, int error);
void file_good(struct swap *sw, struct swap_file *f);
void file_sick(struct swap *sw, struct swap_file *f, const char *reason);

/* ---- swap_scan.c ---- */

bool scan_begin(struct swap *sw);
/* True: there is more that can be done at once. */
bool scan_step(struct swap *sw);
void scan_headers_over(struct swap *sw, struct op *op, int error);
void scan_bodies_over(struct swap *sw, struct op *op, int error);
void scan_back(struct swap *sw, struct job *j);
/* All headers have been seen: the highest generation is known. */
bool scan_knows(const struct swap *sw);
void scan_free(struct swap *sw);

#endif
