/*
 * swap_stage.c - pools that the CPU does not reach, nor the kernel's I/O: a GPU's. Payload goes
 * through buffers of the host, pinned, which a copier a device fills and empties.
 *
 *      WRITE   pool --copier OUT--> buffer --checksum, file--> over
 *      READ    file --> buffer --checksum right--copier IN--> pool, over
 *
 * A stage is the buffer of one number of every device's copier; it holds some records of one order,
 * whole: all their pieces, one a device, at the same place in each buffer.
 *
 *      order   r0 r1 r2 r3 r4 r5 r6        stage 2            stage 5
 *                                   dev 0  | r0 r1 r2 r3 |    | r4 r5 r6 .. |
 *                                   dev 1  | r0 r1 r2 r3 |    | r4 r5 r6 .. |
 *
 *      FREE --WRITE--> FILLING --all copied--> OPEN --payload written and summed--> FREE
 *           --READ------------------------------^ \
 *                                                  +-all that are left are verified--> DRAINING
 *                                                                     --all copied--> FREE
 *
 * While it is OPEN, its records are operations and checksums like those of any pool (payload_at);
 * neighbours in the file are neighbours here, wherever their pages are. What fails leaves the
 * stage, and the others go on. A page is written to only from a record whose
 * checksum is right, so nothing damaged reaches the pool.
 *
 * Nothing here waits for a copy: it is looked at when a quarter of the time that it has taken so
 * far has gone by, so it is noticed late by a quarter, and looked at some ten times while it takes
 * a thousand times as long as the first nap. Stages wait for copies, for operations and for the
 * checksum, and none of these for a stage: so each becomes free. Readers are served first. A
 * quarter is not for writes, nor for readers while writes wait.
 *
 * A copy that fails is not the file's fault: a write is refused (nothing of it counts yet), a read
 * has failed, and the file's health is as before. A copy that does not come back keeps its buffer
 * and its pages, as an operation does.
 *
 * The price is one more copy, which the GPU makes, and memory: STAGES_BYTES a device and store.
 * More where records are large, as STAGES_MIN should be there: one is copied, one read or written,
 * and one is left for the others. Beyond STAGES_MOST there are fewer: a record that large is copied
 * and written in turn, and it is memory that the host must have.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAGE_BYTES = 512 << 10, /* of small records: the bus and the disk are at their best by then */
    STAGES_BYTES = 8 << 20,
    STAGES_MOST = 256 << 20,
    STAGES_MIN = 3,
    LOOK_FIRST_US = 20, /* at a copy that has just begun */
    LOOK_LAST_US = 1000,
};

/* ---- begin and end ---- */

struct swap_buffers swap_buffers(uint64_t record_bytes)
{
    uint64_t pitch = swap_round_up(record_bytes, SWAP_ALIGN), records = STAGE_BYTES / pitch;
    if (records > SWAP_BATCH)
        records = SWAP_BATCH;
    if (records == 0)
        records = 1;
    uint64_t bytes = records * pitch, n = STAGES_BYTES / bytes, most = STAGES_MOST / bytes;
    if (n > COPIER_BUFFERS)
        n = COPIER_BUFFERS;
    if (n < STAGES_MIN)
        n = most < 1 ? 1 : most < STAGES_MIN ? most : STAGES_MIN;
    return (struct swap_buffers){.bytes = bytes, .n = (unsigned)n, .records = (unsigned)records};
}

/* All buffers are ours, so they have the same numbers on each device. */
bool staging_init(struct swap *sw, struct swap_store *s)
{
    const struct swap_store_config *c = s->config;
    if (!c->copier[0] || !c->record_bytes)
        return true;
    struct staging *g = calloc(1, sizeof *g);
    if (!g)
        return false;
    s->staging = g;
    g->n = c->buffers.n;
    list_init(&g->reads);
    list_init(&g->writes);
    for (uint32_t d = 0; d < sw->config.n_pieces; d++)
        for (unsigned i = 0; i < g->n; i++)
            (void)copier_take(c->copier[d]);
    log_info("--swap: %s go through %u buffers of %llu KiB a device",
             s->kind == STORE_BLOCKS ? "blocks" : "snapshots", g->n,
             (unsigned long long)c->buffers.bytes >> 10);
    return true;
}

void staging_deinit(struct swap *sw, struct swap_store *s)
{
    if (!s->staging)
        return;
    for (uint32_t d = 0; d < sw->config.n_pieces; d++)
        for (unsigned i = 0; i < s->staging->n; i++)
            copier_give(s->config->copier[d], i);
    free(s->staging);
}

struct iovec payload_memory(const struct swap_store *s, uint32_t device)
{
    const struct swap_store_config *c = s->config;
    if (!c->copier[0])
        return (struct iovec){c->pool[device], c->stride * c->pool_records};
    uint8_t *first = copier_buffers(c->copier[device]);
    uint8_t *last = copier_buffer(c->copier[device], c->buffers.n - 1);
    return (struct iovec){first, (uint64_t)(last - first) + c->buffers.bytes};
}

/* ---- copies ---- */

/* The last record to be over answers the job: it is not ours to look at after that. */
static void all_over(struct swap *sw, struct job *j, uint64_t records, enum swap_status status)
{
    for (; records; records &= records - 1)
        record_over(sw, j, (unsigned)__builtin_ctzll(records), status);
}

static void copy_failed(struct swap *sw, const struct swap_store *s, struct stage *g, uint32_t d)
{
    g->failed = true;
    if (sw->stage_said_ns && sw->now_ns - sw->stage_said_ns < SECOND_NS)
        return;
    sw->stage_said_ns = sw->now_ns;
    log_warning("--swap: device %u: %s; the %s is given up", d, copier_why(s->config->copier[d]),
                g->write ? "write" : "read");
}

/* FILLING or DRAINING is over. */
static void copied(struct swap *sw, struct stage *g)
{
    struct job *j = g->job;
    if (g->state == STAGE_DRAINING) {
        all_over(sw, j, g->records, g->failed ? SWAP_FAILED : SWAP_GOOD);
    } else if (g->failed) {
        all_over(sw, j, g->records, SWAP_REFUSED);
    } else {
        g->state = STAGE_OPEN;
        j->todo |= g->records;
        if (list_empty(&j->issue))
            list_append(&sw->writes, &j->issue);
    }
}

static void copies_look(struct swap *sw, const struct swap_store *s, struct stage *g, unsigned i)
{
    for (uint32_t left = g->moving; left; left &= left - 1) {
        uint32_t d = (uint32_t)__builtin_ctz(left);
        int rc = copier_poll(s->config->copier[d], i);
        if (rc)
            g->moving &= ~(1u << d);
        if (rc < 0)
            copy_failed(sw, s, g, d);
    }
    if (!g->moving) {
        copied(sw, g);
    } else if (sw->now_ns > g->began_ns + STUCK_NS) {
        g->began_ns = sw->now_ns; /* said again after as long */
        log_warning("--swap: a copy of a device does not come back");
    }
}

/* Where one device refuses, those that have begun are waited for like others. */
static void copies_begin(struct swap *sw, const struct swap_store *s, struct stage *g, unsigned i,
                         enum stage_state state)
{
    const struct swap_store_config *c = s->config;
    struct copier_part part[SWAP_BATCH];
    unsigned n = 0;
    for (uint64_t left = g->records; left; left &= left - 1) {
        unsigned r = (unsigned)__builtin_ctzll(left);
        part[n++] = (struct copier_part){
            .pool = c->first + g->job->order.record[r].record * c->stride,
            .buffer = g->job->state[r].place * s->step,
            .bytes = c->record_bytes,
        };
    }
    g->state = state;
    g->failed = false;
    g->began_ns = clock_ns();
    for (uint32_t d = 0; d < sw->config.n_pieces && !g->failed; d++) {
        enum copier_way way = state == STAGE_FILLING ? COPIER_OUT : COPIER_IN;
        if (copier_begin(c->copier[d], i, way, part, n))
            copy_failed(sw, s, g, d);
        else
            g->moving |= 1u << d;
    }
    if (!g->moving)
        copied(sw, g);
}

/* ---- stages ---- */

void stage_want(struct swap *sw, struct job *j, uint64_t records)
{
    struct staging *all = sw->store[j->order.store].staging;
    j->unstaged = records;
    if (records)
        list_append(j->order.kind == SWAP_READ ? &all->reads : &all->writes, &j->stage);
}

/* As many of its records as one holds. */
static void stage_begin(struct swap *sw, const struct swap_store *s, struct job *j)
{
    struct staging *all = s->staging;
    unsigned i = 0;
    while (all->stage[i].state != STAGE_FREE)
        i++;
    struct stage *g = &all->stage[i];
    *g = (struct stage){.job = j, .state = STAGE_OPEN, .write = j->order.kind == SWAP_WRITE};
    for (unsigned n = 0; n < s->config->buffers.records && j->unstaged; n++) {
        unsigned r = (unsigned)__builtin_ctzll(j->unstaged);
        j->unstaged &= j->unstaged - 1;
        j->state[r].stage = (uint16_t)(i + 1);
        j->state[r].place = (uint16_t)n;
        g->records |= 1ull << r;
    }
    if (!j->unstaged)
        list_remove(&j->stage);
    all->turn_of_writes = !g->write;
    sw->n_staged++;
    all->n_reading += !g->write;
    all->n_writing += g->write;
    if (g->write) {
        copies_begin(sw, s, g, i, STAGE_FILLING);
        return;
    }
    j->todo |= g->records;
    if (list_empty(&j->issue))
        list_append(&sw->reads, &j->issue);
}

void stage_verified(struct swap *sw, struct job *j, unsigned r)
{
    struct stage *g = &sw->store[j->order.store].staging->stage[j->state[r].stage - 1u];
    g->verified |= 1ull << r;
    sw->stage_news |= g->verified == g->records;
}

void stage_left(struct swap *sw, struct job *j, unsigned r)
{
    struct staging *all = sw->store[j->order.store].staging;
    if (!j->state[r].stage)
        return;
    struct stage *g = &all->stage[j->state[r].stage - 1u];
    j->state[r].stage = 0;
    g->records &= ~(1ull << r);
    g->verified &= ~(1ull << r);
    sw->stage_news |= g->verified == g->records;
    if (g->records)
        return;
    g->state = STAGE_FREE;
    sw->n_staged--;
    all->n_reading -= !g->write;
    all->n_writing -= g->write;
}

/* The job whose turn it is, if there is a stage for it. */
static struct job *next_job(const struct staging *all)
{
    unsigned busy = all->n_reading + all->n_writing;
    unsigned most = all->n > 1 ? all->n - (all->n + 3) / 4 : 1;
    bool reads = !list_empty(&all->reads), writes = !list_empty(&all->writes);
    if (busy == all->n)
        return NULL;
    if (reads && writes && all->n == 1)
        reads = !all->turn_of_writes;
    if (reads && (!writes || all->n_reading < most))
        return list_entry(all->reads.next, struct job, stage);
    if (writes && all->n_writing < most)
        return list_entry(all->writes.next, struct job, stage);
    return NULL;
}

static void store_step(struct swap *sw, const struct swap_store *s)
{
    for (unsigned i = 0; i < s->staging->n; i++) {
        struct stage *g = &s->staging->stage[i];
        if (g->moving)
            copies_look(sw, s, g, i);
        else if (g->state == STAGE_OPEN && g->verified == g->records)
            copies_begin(sw, s, g, i, STAGE_DRAINING);
    }
    for (struct job *j; (j = next_job(s->staging));)
        stage_begin(sw, s, j);
}

void stages_step(struct swap *sw)
{
    sw->stage_news = false;
    for (int k = 0; k < SWAP_STORES; k++)
        if (sw->store[k].staging)
            store_step(sw, &sw->store[k]);
}

unsigned stages_nap_us(const struct swap *sw, unsigned most)
{
    for (int k = 0; k < SWAP_STORES; k++)
        for (unsigned i = 0; sw->store[k].staging && i < sw->store[k].staging->n; i++) {
            const struct stage *g = &sw->store[k].staging->stage[i];
            if (!g->moving)
                continue;
            uint64_t nap = (sw->now_ns - g->began_ns) / 4000;
            if (sw->now_ns < g->began_ns || nap < LOOK_FIRST_US)
                nap = LOOK_FIRST_US;
            if (nap > LOOK_LAST_US)
                nap = LOOK_LAST_US;
            if (nap < most)
                most = (unsigned)nap;
        }
    return most;
}

void stages_give_up(struct swap *sw)
{
    for (int k = 0; k < SWAP_STORES; k++) {
        struct staging *all = sw->store[k].staging;
        struct list *queues[] = {all ? &all->reads : NULL, all ? &all->writes : NULL};
        for (int q = 0; q < 2 && queues[q]; q++)
            list_each (at, after, queues[q]) {
                struct job *j = list_entry(at, struct job, stage);
                uint64_t records = j->unstaged;
                list_remove(at);
                j->unstaged = 0;
                payload_give_up(sw, j, records);
            }
    }
}
