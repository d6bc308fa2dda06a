/*
 * swap.c - the index thread's side: start and stop, orders and answers. Nothing here waits but
 * swap_start and swap_stop.
 *
 * The eventfd of the answers is asked for once a time that nothing was found (the doze word): while
 * the index thread comes back by itself, and finds something, no answer costs a system call.
 */
#include "daemon/swap.h"
#include "daemon/log.h"
#include "daemon/swap_private.h"
#include "shm/segment.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ORDERS_A_DEPTH = 4, STACK_BYTES = 1 << 20 };

/* ---- channels ---- */

bool swap_channel_init(struct swap_channel *c, unsigned size, int fd_flags)
{
    c->fd = eventfd(0, EFD_CLOEXEC | fd_flags);
    c->entries = calloc(size, RING_RECORD);
    c->w = (struct ring_writer){
        .entries = c->entries, .shared_tail = &c->tail, .shared_head = &c->head, .size = size};
    c->r = (struct ring_reader){
        .entries = c->entries, .shared_head = &c->head, .shared_tail = &c->tail, .size = size};
    return c->fd >= 0 && c->entries;
}

void swap_channel_deinit(struct swap_channel *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->entries);
}

static void swap_channel_wake(struct swap_channel *c)
{
    uint64_t one = 1;
    ssize_t n = write(c->fd, &one, sizeof one);
    (void)n; /* it cannot be full */
    shm_store_release(&c->wakes, c->wakes + 1);
}

/* There is room: no more notes can be under way than the ring holds (swap_start). */
void swap_channel_post(struct swap_channel *c, struct job *job, enum swap_note_what what)
{
    struct swap_note note = {.job = job, .what = what};
    if (ring_claim(&c->w) != RING_OK)
        abort();
    ring_post(&c->w, &note);
    if (doze_must_wake(&c->doze, &c->answered)) /* DOZE-2 is in it */
        swap_channel_wake(c);
}

/* ---- start and stop ---- */

static bool stores_init(struct swap *sw)
{
    for (int k = 0; k < SWAP_STORES; k++) {
        struct swap_store *s = &sw->store[k];
        s->kind = (enum swap_store_kind)k;
        s->config = &sw->config.store[k];
        s->header_bytes = (uint32_t)swap_round_up(
            sizeof(struct slot_header) + s->config->body_bytes, sizeof(struct slot_header));
        s->piece_pitch = swap_round_up(s->config->record_bytes, SWAP_ALIGN);
        s->slot_bytes = s->piece_pitch * sw->config.n_pieces;
        s->step = s->config->copier[0] ? s->piece_pitch : s->config->stride;
        if (s->config->record_bytes && s->config->body_bytes < sizeof(struct body_prefix))
            return false;
    }
    return true;
}

static bool tables_init(struct swap *sw)
{
    bool whole = true;
    for (int k = 0; k < SWAP_STORES; k++) {
        struct swap_store *s = &sw->store[k];
        s->fact = calloc(s->n_slots + 1ull, sizeof *s->fact);
        s->retired = calloc(s->n_slots / 64 + 1ull, sizeof *s->retired);
        s->unretired = calloc(s->n_slots / 64 + 1ull, sizeof *s->unretired);
        sw->slots[k] = slots_new(s);
        whole &= s->fact && s->retired && s->unretired && sw->slots[k] && staging_init(sw, s);
    }
    list_init(&sw->spare);
    sw->scanning = true;
    sw->facts.healthy = sw->facts.writable = true;
    unsigned size = RING_MIN; /* every order, every batch of the scan, and a note of growth */
    while (size < sw->config.depth * ORDERS_A_DEPTH + SWAP_SCANS + 1)
        size *= 2;
    whole &= swap_channel_init(&sw->orders, size, 0);
    whole &= swap_channel_init(&sw->answers, size, EFD_NONBLOCK);
    return whole && ops_init(sw) && scan_begin(sw);
}

static void swap_free_all(struct swap *sw)
{
    files_close(sw);
    ops_deinit(sw);
    scan_free(sw);
    list_each (at, after, &sw->spare)
        free(list_entry(at, struct job, issue));
    for (int k = 0; k < SWAP_STORES; k++) {
        store_slots_free(sw->slots[k]);
        staging_deinit(sw, &sw->store[k]);
        free(sw->store[k].fact);
        free(sw->store[k].retired);
        free(sw->store[k].unretired);
    }
    for (unsigned p = 0; p < sw->config.n_paths; p++)
        free((char *)(uintptr_t)sw->config.path[p]);
    swap_channel_deinit(&sw->orders);
    swap_channel_deinit(&sw->answers);
    free(sw);
}

/* Signals are the main thread's. */
static int thread_start(struct swap *sw)
{
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_attr_init(&attr);
    if (!error) {
        (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
        error = pthread_create(&sw->thread, &attr, swap_main, sw);
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

struct swap *swap_start(const struct swap_config *config, char *why, size_t n_why)
{
    snprintf(why, n_why, "--swap: there is no memory for its tables");
    struct swap *sw = aligned_alloc(64, swap_round_up(sizeof *sw, 64));
    if (!sw)
        return NULL;
    memset(sw, 0, sizeof *sw);
    sw->config = *config;
    sw->orders.fd = sw->answers.fd = -1;
    list_init(&sw->spare);
    bool good = true;
    for (unsigned p = 0; p < config->n_paths; p++)
        good &= (sw->config.path[p] = strdup(config->path[p])) != NULL;
    if (sw->config.depth < 1)
        sw->config.depth = 1;
    if (sw->config.depth > SWAP_DEPTH_MAX)
        sw->config.depth = SWAP_DEPTH_MAX;
    good = good && stores_init(sw) && files_open(sw, why, n_why);
    if (good) {
        errno = ENOMEM;
        good = tables_init(sw);
        snprintf(why, n_why, "--swap: its tables cannot be made: %s%s", strerror(errno),
                 descriptors_remedy(errno));
    }
    int error = good ? thread_start(sw) : 0;
    if (error)
        snprintf(why, n_why, "--swap: its thread cannot be started: %s", strerror(error));
    if (good && !error)
        return sw;
    swap_free_all(sw);
    return NULL;
}

void swap_stop(struct swap *sw)
{
    if (!sw)
        return;
    shm_store_release(&sw->stopping, 1);
    swap_channel_wake(&sw->orders);
    pthread_join(sw->thread, NULL);
    if (sw->left_behind)
        return;
    struct swap_note note;
    while (ring_peek(&sw->orders.r, &note) == RING_OK) { /* never begun */
        ring_drop(&sw->orders.r);
        free(note.job);
    }
    while (ring_peek(&sw->answers.r, &note) == RING_OK) {
        ring_drop(&sw->answers.r);
        free(note.job);
    }
    swap_free_all(sw);
}

int swap_fd(const struct swap *sw)
{
    return sw->answers.fd;
}

struct swap_store store_shape(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes)
{
    return (struct swap_store){
        .header_bytes = (uint32_t)swap_round_up(sizeof(struct slot_header) + body_bytes,
                                                sizeof(struct slot_header)),
        .slot_bytes = swap_round_up(record_bytes, SWAP_ALIGN) * n_pieces,
    };
}

uint64_t swap_file_bytes(uint64_t record_bytes, uint32_t n_pieces, uint32_t body_bytes,
                         uint64_t n_slots)
{
    struct swap_store s = store_shape(record_bytes, n_pieces, body_bytes);
    return bytes_for(&s, EXTENT_SLOTS_MIN, n_slots);
}

/* ---- orders ---- */

/* Headers with their bodies stand there as they will on disk, one after the other. */
struct job *job_alloc(const struct swap_store *s, bool bodies)
{
    uint32_t room = bodies ? SWAP_BATCH * s->header_bytes : 0;
    struct job *j = malloc(sizeof *j + room);
    if (!j)
        return NULL;
    memset(j, 0, sizeof *j);
    j->staging = (uint8_t *)(j + 1);
    j->room = room;
    return j;
}

static struct job *take_spare(struct swap *sw, uint32_t room)
{
    list_each (at, after, &sw->spare) {
        struct job *j = list_entry(at, struct job, issue);
        if (j->room < room)
            continue;
        list_remove(at);
        sw->n_spare--;
        uint32_t had = j->room;
        memset(j, 0, sizeof *j);
        j->staging = (uint8_t *)(j + 1);
        j->room = had;
        return j;
    }
    return NULL;
}

struct swap_order *swap_order_new(struct swap *sw, enum swap_kind kind, enum swap_store_kind store)
{
    const struct swap_store *s = &sw->store[store];
    bool bodies = kind == SWAP_WRITE;
    if (kind == SWAP_SCAN || sw->n_out >= sw->config.depth * ORDERS_A_DEPTH)
        return NULL;
    struct job *j = take_spare(sw, bodies ? SWAP_BATCH * s->header_bytes : 0);
    if (!j)
        j = job_alloc(s, bodies);
    if (!j)
        return NULL;
    sw->n_out++;
    j->order.kind = kind;
    j->order.store = store;
    for (uint32_t i = 0; bodies && i < SWAP_BATCH; i++)
        j->order.record[i].body =
            j->staging + (size_t)i * s->header_bytes + sizeof(struct slot_header);
    return &j->order;
}

void swap_order_free(struct swap *sw, struct swap_order *o)
{
    struct job *j = (struct job *)(void *)o;
    if (o->kind == SWAP_SCAN) { /* the swap thread's, which reads the next batch into it */
        swap_channel_post(&sw->orders, j, NOTE_SCAN_BACK);
        return;
    }
    sw->n_out--;
    if (sw->n_spare >= sw->config.depth) {
        free(j);
        return;
    }
    sw->n_spare++;
    list_init(&j->issue);
    list_append(&sw->spare, &j->issue);
}

void swap_submit(struct swap *sw, struct swap_order *o)
{
    o->began_ns = clock_ns();
    if (!sw->n_under_way++)
        sw->turned_ns = o->began_ns;
    swap_channel_post(&sw->orders, (struct job *)(void *)o, NOTE_ORDER);
}

/* ---- answers ---- */

static void tell_taken(struct swap *sw)
{
    for (int k = 0; k < SWAP_STORES; k++)
        shm_store(&sw->taken[k],
                  swap_ready(sw, (enum swap_store_kind)k) - swap_free(sw, (enum swap_store_kind)k));
}

static void scan_is_over(struct swap *sw)
{
    sw->scanning = false;
    sw->next_generation = shm_load(&sw->highest_generation) + 1;
    for (int k = 0; k < SWAP_STORES; k++)
        slots_scan_over(sw->slots[k]);
    tell_taken(sw);
}

static void have_grown(struct swap *sw)
{
    shm_store(&sw->grown, 0);
    shm_full_fence(); /* GROWN-1: then the look. What comes after it is told anew */
    for (int k = 0; k < SWAP_STORES; k++)
        slots_grown(sw->slots[k]);
}

/* The eventfd may be written a little after the note that it announces has been taken. So it is
 * emptied by count, and no system call is made where nobody has written. False: nobody has. */
static bool empty_fd(struct swap *sw)
{
    struct swap_channel *c = &sw->answers;
    uint32_t wakes = shm_load_acquire(&c->wakes);
    if (wakes == sw->wakes_seen)
        return false;
    sw->wakes_seen = wakes;
    uint64_t count;
    ssize_t n = read(c->fd, &count, sizeof count);
    (void)n; /* the last reading took this one too */
    return true;
}

/* The next note, else false, with the eventfd asked for. What was written to it may announce a note
 * that came after our look: then it is asked for anew, and we look again. */
static bool next_note(struct swap *sw, struct swap_note *note)
{
    struct swap_channel *c = &sw->answers;
    while (ring_peek(&c->r, note) != RING_OK) {
        bool written = empty_fd(sw);
        if (sw->armed && !written)
            return false;
        doze_begin(&c->doze); /* DOZE-1 is in it: look once more */
        sw->armed = true;
    }
    if (sw->armed)
        doze_end(&c->doze);
    sw->armed = false;
    ring_drop(&c->r);
    return true;
}

/* What the swap thread writes and waits for (flushes, retired slots) may not come back, and then it
 * looks after nothing else. */
static void look_for_turns(struct swap *sw)
{
    uint32_t turns = shm_load(&sw->turns);
    uint64_t now = clock_ns();
    if (turns != sw->turns_seen)
        sw->turned_ns = now;
    sw->turns_seen = turns;
    bool stands = now - sw->turned_ns >= STUCK_NS;
    if (stands && !sw->stands)
        log_warning(
            "--swap: its thread does not come back from a file; none is used until it does");
    sw->stands = stands;
}

struct swap_order *swap_take(struct swap *sw)
{
    struct swap_note note;
    if (sw->n_under_way)
        look_for_turns(sw);
    while (next_note(sw, &note)) {
        if (note.what == NOTE_GROWN) {
            have_grown(sw);
            continue;
        }
        if (note.job->order.kind == SWAP_SCAN && note.job->order.last)
            scan_is_over(sw);
        if (note.job->order.kind != SWAP_SCAN)
            sw->n_under_way--;
        sw->stands = false;
        return &note.job->order;
    }
    return NULL;
}

uint64_t swap_generation(struct swap *sw)
{
    return sw->next_generation++;
}

bool swap_scanning(const struct swap *sw)
{
    return sw->scanning;
}

struct swap_facts swap_facts(const struct swap *sw)
{
    const struct swap_facts *f = &sw->facts;
    return (struct swap_facts){
        .reads = shm_load(&f->reads),
        .writes = shm_load(&f->writes),
        .errors = shm_load(&f->errors),
        .bytes_read = shm_load(&f->bytes_read),
        .bytes_written = shm_load(&f->bytes_written),
        .late = shm_load(&f->late),
        .foreign = f->foreign,
        .in_flight = shm_load(&f->in_flight),
        .uring = shm_load(&f->uring),
        .growing = shm_load(&f->growing),
        .healthy = shm_load(&f->healthy) && !sw->stands,
        .writable = shm_load(&f->writable) && !sw->stands,
    };
}
