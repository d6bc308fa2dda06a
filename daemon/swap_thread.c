/*
 * swap_thread.c - the swap thread: its loop, and how orders begin.
 *
 *      orders --> issue up to depth --> reap (submits; sleeps only here) --> checksum of one --+
 *         ^------------------------------------------------------------------------------------+
 *
 * What is issued is on its way before a checksum is computed, so the device works meanwhile. What
 * a record of an order goes through is in swap_record.c.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"
#include "shm/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    RESULTS = 64,
    NAP_US = 60 * 1000 * 1000, /* with nothing to look after */
    LOOK_US = 500 * 1000,      /* with something */
    DRAIN_SECONDS = 30,
};

/* ---- flush and retire: waited for, and synchronized ---- */

/* Headers of this file that are written, or may be soon: none is older. */
static uint64_t lowest_generation(void *arg, struct swap_file *f)
{
    struct swap *sw = arg;
    const struct swap_store *s = &sw->store[f->store];
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < f->n_slots; i++) {
        uint64_t g = s->fact[f->first_slot + i].generation;
        if (g > f->super.flushed_all && g < lowest)
            lowest = g;
    }
    list_each (at, after, &sw->alive) {
        const struct swap_order *o = &list_entry(at, struct job, alive)->order;
        for (uint32_t r = 0; r < o->n; r++)
            if (o->record[r].generation < lowest)
                lowest = o->record[r].generation;
    }
    return lowest;
}

static void flush_order(struct swap *sw, struct job *j)
{
    struct swap_order *o = &j->order;
    struct swap_store *s = &sw->store[o->store];
    uint64_t generation = o->generation == UINT64_MAX ? sw->highest_generation : o->generation;
    for (unsigned i = 0; i < s->n_files; i++) {
        int error = flush_write(&s->file[i], o->space, generation, lowest_generation, sw);
        if (!error)
            continue;
        log_warning("%s: a flush could not be written (%s); it is tried again", s->file[i].name,
                    strerror(-error));
        o->status = SWAP_FAILED;
        FACT_ADD(sw, errors, 1);
    }
    job_answer(sw, j);
}

int slot_retire(struct swap *sw, struct swap_file *f, uint32_t slot)
{
    struct swap_store *s = &sw->store[f->store];
    uint32_t local = slot - f->first_slot;
    uint64_t bit = 1ull << slot % 64, *unretired = &s->unretired[slot / 64];
    struct slot_header h = {.magic = RETIRED_MAGIC,
                            .generation = sw->highest_generation ? sw->highest_generation : 1,
                            .file_id = {f->super.file_id[0], f->super.file_id[1]},
                            .slot = local};
    header_seal(&h);
    int error = file_promise(f, &h, sizeof h, header_offset(s, f, local));
    f->unretired -= (*unretired & bit) != 0;
    f->unretired += error != 0;
    *unretired = error ? *unretired | bit : *unretired & ~bit;
    if (error) /* the old header is there: a flush record may still be needed for it */
        f->retry_ns = sw->now_ns + PROBE_NS;
    else
        s->fact[slot].generation = 0;
    return error;
}

static void retire_order(struct swap *sw, struct job *j)
{
    struct swap_store *s = &sw->store[j->order.store];
    j->order.status = SWAP_GOOD;
    for (uint32_t i = 0; i < j->order.n; i++) {
        struct swap_record *r = &j->order.record[i];
        struct swap_file *f = file_of(s, r->slot);
        int error = slot_retire(sw, f, r->slot);
        r->status = error ? SWAP_FAILED : SWAP_GOOD;
        if (error) { /* it is tried again, as a flush is */
            j->order.status = SWAP_FAILED;
            file_error(sw, f, -error);
        }
    }
    job_answer(sw, j);
}

/* ---- orders ---- */

/* Records that need not be tried; the others are to do. */
static void transfer_begin(struct swap *sw, struct job *j)
{
    const struct swap_store *s = &sw->store[j->order.store];
    uint32_t n = j->order.n;
    bool read = j->order.kind == SWAP_READ;
    uint64_t todo = 0;
    enum swap_status verdict[SWAP_BATCH];
    for (uint32_t i = 0; i < n; i++) {
        const struct swap_record *r = &j->order.record[i];
        const struct swap_file *f = file_of(s, r->slot);
        if (!read && r->generation > sw->highest_generation)
            shm_store(&sw->highest_generation, r->generation);
        if (!f || r->slot - f->first_slot >= f->ready || r->record >= s->config->pool_records ||
            (!read && r->body_bytes > s->header_bytes - sizeof(struct slot_header)))
            verdict[i] = read ? SWAP_CORRUPT : SWAP_FAILED;
        else if (f->sick)
            verdict[i] = read ? SWAP_FAILED : SWAP_REFUSED;
        else if (read && s->fact[r->slot].generation != r->generation)
            verdict[i] = SWAP_CORRUPT;
        else
            todo |= 1ull << i;
    }
    j->open = read ? 0 : todo;
    if (!read)
        list_append(&sw->alive, &j->alive);
    j->todo = s->staging ? 0 : todo;
    if (s->staging)
        stage_want(sw, j, todo);
    else if (todo)
        list_append(read ? &sw->reads : &sw->writes, &j->issue);
    for (uint32_t i = 0; i < n; i++)
        if (!(todo >> i & 1))
            record_over(sw, j, i, verdict[i]); /* the last one answers */
}

static void order_begin(struct swap *sw, struct job *j)
{
    job_in_no_list(j);
    j->current = -1;
    j->order.status = SWAP_GOOD;
    switch (j->order.kind) {
    case SWAP_FLUSH:
        flush_order(sw, j);
        break;
    case SWAP_RETIRE:
        retire_order(sw, j);
        break;
    case SWAP_WRITE:
    case SWAP_READ:
        if (j->order.n)
            transfer_begin(sw, j);
        else
            job_answer(sw, j);
        break;
    case SWAP_SCAN:
        break;
    }
}

/* Nothing is known of generations before the headers have been read: an early flush waits. */
static void orders_take(struct swap *sw)
{
    struct swap_note note;
    while (ring_peek(&sw->orders.r, &note) == RING_OK) {
        ring_drop(&sw->orders.r);
        if (note.what == NOTE_SCAN_BACK) {
            scan_back(sw, note.job);
        } else if (scan_knows(sw)) {
            order_begin(sw, note.job);
        } else {
            list_init(&note.job->issue);
            list_append(&sw->deferred, &note.job->issue);
        }
    }
    while (scan_knows(sw) && !list_empty(&sw->deferred)) {
        struct job *j = list_entry(sw->deferred.next, struct job, issue);
        list_remove(&j->issue);
        order_begin(sw, j);
    }
}

/* ---- the loop ---- */

static void engine_choose(struct swap *sw)
{
    int fds[2 * SWAP_STORES * SWAP_PATHS];
    struct iovec memory[SWAP_STORES * 16];
    struct engine_setup setup = {.fds = fds,
                                 .n_fds = 2 * sw->n_files,
                                 .depth = sw->n_ops,
                                 .wake_fd = sw->orders.fd,
                                 .memory = memory};
    for (unsigned i = 0; i < sw->n_files; i++) {
        fds[2 * i] = sw->file[i].fd;
        fds[2 * i + 1] = sw->file[i].direct_fd >= 0 ? sw->file[i].direct_fd : sw->file[i].fd;
    }
    for (int k = 0; k < SWAP_STORES; k++)
        for (uint32_t d = 0; sw->store[k].n_files && d < sw->config.n_pieces; d++)
            memory[setup.n_memory++] = payload_memory(&sw->store[k], d);
    int error = 0;
    if (sw->config.uring)
        sw->engine = engine_uring_new(&setup, &error);
    shm_store(&sw->facts.uring, sw->engine != NULL);
    if (error)
        log_warning("--swap: io_uring is refused here (%s%s); threads do its work",
                    strerror(-error), descriptors_remedy(-error));
    if (!sw->engine)
        sw->engine = engine_threads_new(&setup, &error);
    if (!sw->engine) { /* a few KiB */
        log_error("--swap: there is no memory for it");
        abort();
    }
}

static bool idle(const struct swap *sw)
{
    return sw->n_free_op == sw->n_ops && list_empty(&sw->headers) && !sw->n_staged;
}

static bool wants_look(const struct swap *sw)
{
    bool wants = sw->n_free_op != sw->n_ops;
    for (unsigned i = 0; i < sw->n_files; i++) {
        const struct swap_file *f = &sw->file[i];
        wants |= f->sick || f->owed || f->unretired || f->full;
    }
    return wants;
}

static void reap(struct swap *sw, unsigned timeout_us)
{
    struct engine_result results[RESULTS];
    unsigned n = sw->engine->ops->reap(sw->engine, results, RESULTS, timeout_us);
    sw->now_ns = clock_ns();
    for (unsigned i = 0; i < n; i++)
        op_completed(sw, &results[i]);
}

/* Sleeps only where nothing can be done and no order has come since we looked. */
static void turn(struct swap *sw)
{
    shm_store(&sw->turns, sw->turns + 1);
    orders_take(sw);
    bool busy = scan_step(sw);
    stages_step(sw);
    transfers_issue(sw);
    background_step(sw);
    ops_look_for_stuck(sw);
    shm_store(&sw->facts.in_flight, sw->n_payload);
    if (hash_begin(sw) || busy || sw->stage_news || sw->engine->ops->pin(sw->engine)) {
        reap(sw, 0);
        hash_step(sw);
        return;
    }
    struct swap_note note;
    doze_begin(&sw->orders.doze); /* DOZE-1 is in it */
    if (ring_peek(&sw->orders.r, &note) == RING_OK || shm_load_acquire(&sw->stopping))
        reap(sw, 0);
    else
        reap(sw, stages_nap_us(sw, wants_look(sw) ? LOOK_US : NAP_US));
    doze_end(&sw->orders.doze);
}

/* What has begun is brought to its end, what has not is given up. */
static void drain(struct swap *sw)
{
    struct list *queues[] = {&sw->reads, &sw->writes};
    stages_give_up(sw);
    for (int q = 0; q < 2; q++)
        list_each (at, after, queues[q]) {
            struct job *j = list_entry(at, struct job, issue);
            list_remove(at);
            uint64_t todo = j->todo;
            j->todo = 0;
            payload_give_up(sw, j, todo);
        }
    uint64_t until = clock_ns() + DRAIN_SECONDS * SECOND_NS;
    while (!idle(sw) || hash_begin(sw)) {
        stages_step(sw);
        transfers_issue(sw);
        reap(sw, hash_begin(sw) || sw->stage_news ? 0 : stages_nap_us(sw, LOOK_US));
        hash_step(sw);
        if (sw->now_ns > until) {
            log_warning("--swap: operations do not come back; they are left behind");
            return;
        }
    }
}

/* What operations that do not come back may still write to is not freed, nor are files unlocked. */
static void swap_end(struct swap *sw)
{
    drain(sw);
    for (unsigned i = 0; i < sw->n_files; i++)
        (void)pay_owed(sw, &sw->file[i]);
    if (idle(sw)) {
        sw->engine->ops->free(sw->engine);
        files_unlock(sw);
    } else {
        sw->left_behind = true;
    }
    while (!list_empty(&sw->deferred)) {
        struct job *j = list_entry(sw->deferred.next, struct job, issue);
        list_remove(&j->issue);
        free(j);
    }
}

void *swap_main(void *arg)
{
    struct swap *sw = arg;
    prctl(PR_SET_NAME, "prefixd-swap");
    list_init(&sw->alive);
    list_init(&sw->reads);
    list_init(&sw->writes);
    list_init(&sw->headers);
    list_init(&sw->hashing);
    list_init(&sw->deferred);
    sw->now_ns = clock_ns();
    engine_choose(sw);
    while (!shm_load_acquire(&sw->stopping))
        turn(sw);
    swap_end(sw);
    return NULL;
}
