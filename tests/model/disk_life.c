/* Daemons come and go on one trial disk; connections on one daemon; and time goes by. */
#include "tests/model/disk_run.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IDLE_TURNS = 60000, END_TURNS = 4000, SCAN_TURNS = 4000 };

/* ---- time: the daemon's clock stands still between turns (--wrap=clock_gettime) ------- */

static uint64_t clock_ns = 1000000000;

int __real_clock_gettime(clockid_t id, struct timespec *t);
__attribute__((visibility("default"))) int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_MONOTONIC)
        return __real_clock_gettime(id, t);
    *t = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
    return 0;
}

static void go_on(struct disk_run *r, int conn)
{
    struct run_conn *c = &r->conn[conn];
    struct wire_completion out;
    REQUIRE_MSG(c->turns++ < TURNS_MOST, "opcode %u comes to no end", c->op);
    bool done = local_go_on(r->x, conn, &out);
    run_look_for_flushes(r, conn);
    run_look_for_matches(r, conn);
    if (done)
        run_answered(r, conn, &out);
    check_step(r);
}

void run_turn(struct disk_run *r)
{
    r->turns++;
    clock_ns += r->shape.tick_us * 1000ull * (1 + dice(r, 2));
    trial_tick(r->disk);
    (void)dispatch_background(&r->x->d);
    bool scanned = run_scanning(r);
    daemon_publish(&r->x->d);
    if (scanned && !run_scanning(r)) {
        r->restored = r->x->d.published.disk_used;
        r->first_generation = trial_generation(r->disk);
    }
    check_step(r);
    for (int c = 0; c < RUN_CONNS; c++)
        if (r->conn[c].used && r->conn[c].busy && !one_in(r, 3))
            go_on(r, c);
}

bool run_scanning(const struct disk_run *r)
{
    return !r->x->d.published.disk_scan_done;
}

static bool quiet(const struct disk_run *r)
{
    bool busy = r->x->d.n_orphans || trial_counts(r->disk, STORE_BLOCKS).orders || run_scanning(r);
    for (int c = 0; c < RUN_CONNS; c++)
        busy |= r->conn[c].used && r->conn[c].busy;
    return !busy;
}

void run_idle(struct disk_run *r)
{
    for (int turns = 0; !quiet(r); turns++) {
        REQUIRE_MSG(turns < IDLE_TURNS, "the daemon finds no rest");
        run_turn(r);
    }
}

/* ---- connections ------------------------------------------------------------------------ */

static const char *const groups[RUN_CONNS] = {NULL, NULL, "g", "g"};

void run_attach(struct disk_run *r, int conn)
{
    r->b.attach(r->x, conn, groups[conn]);
    r->conn[conn] =
        (struct run_conn){.used = true, .group = groups[conn] ? 100 : conn, .lease = -1};
    r->conn[conn].opens[0] = 1;
}

void run_detach(struct disk_run *r, int conn, bool clean)
{
    r->b.detach(r->x, conn, clean);
    r->conn[conn] = (struct run_conn){0};
    for (int i = 0; i < RUN_LEASES; i++) { /* which of them go is another test's question */
        struct run_lease *l = &r->lease[i];
        l->used = l->used && run_lease_of(r, l);
    }
}

/* ---- daemons -------------------------------------------------------------------------- */

static struct swap_config config_of(const struct disk_run *r)
{
    struct swap_config c = {
        .path = {"trial"}, .n_paths = 1, .n_pieces = 1, .depth = r->shape.depth, .uring = true};
    c.store[STORE_BLOCKS] =
        (struct swap_store_config){.slots_most = trial_disk_config_of(r->disk)->slots[STORE_BLOCKS],
                                   .record_bytes = r->shape.block_tokens * sizeof(uint64_t),
                                   .body_bytes = body_room(r->shape.block_tokens),
                                   .pool = {(uint8_t *)r->page},
                                   .stride = sizeof r->page[0],
                                   .pool_records = r->shape.n_blocks + 1};
    c.store[STORE_SNAPSHOTS] =
        (struct swap_store_config){.record_bytes = r->shape.n_states_disk ? STATE_BYTES : 0,
                                   .body_bytes = state_body_room(r->shape.block_tokens),
                                   .pool = {(uint8_t *)r->x->slots},
                                   .stride = STATE_BYTES,
                                   .pool_records = r->shape.n_states + 1};
    return c;
}

void run_start(struct disk_run *r)
{
    const struct disk_shape *s = &r->shape;
    const struct model_config config = {.block_tokens = s->block_tokens,
                                        .n_blocks = s->n_blocks,
                                        .n_slots = s->n_states,
                                        .n_tier = s->n_states_disk,
                                        .alpha = 0.5};
    const struct local_disk disk = {trial_disk_config_of(r->disk)->slots[STORE_BLOCKS], s->admit};
    for (uint32_t p = 0; p <= s->n_blocks; p++)
        for (int i = 0; i < RUN_BT; i++)
            r->page[p][i] = r->shadow[p][i] = rng_next(&r->rng);
    r->x = local_new_on_disk(&config, &disk, s->hash_mask, rng_next(&r->rng));
    r->b = local_backend(r->x);
    r->x->options.snapshot_swap = s->n_states_disk;
    r->x->options.swap_write = s->insert ? SWAP_WRITE_INSERT : SWAP_WRITE_EVICT;
    char why[256];
    struct swap_config swap = config_of(r);
    trial_disk_insert(r->disk);
    r->x->d.disk = disk_start(&r->x->d, &swap, why, sizeof why);
    REQUIRE(r->x->d.disk != NULL);
    if (s->n_states)
        local_snapshots(r->x, &config, disk_states(r->x->d.disk), DISK_WAIT_NS);
    daemon_publish(&r->x->d);
    memset(r->flushes, 0, sizeof r->flushes);
    memset(r->number, 0, sizeof r->number);
    r->inserted = r->restored = 0;
    r->first_generation = UINT64_MAX;
    run_attach(r, (int)dice(r, RUN_CONNS));
}

/* What a killed process does no more. Its orders fail by now. */
static void bury(struct disk_run *r)
{
    bool busy = true;
    for (int c = 0; c < RUN_CONNS; c++)
        if (r->conn[c].used)
            run_detach(r, c, true);
    for (int turns = 0; busy; turns++) {
        REQUIRE_MSG(turns < END_TURNS, "a daemon comes to no end");
        trial_tick(r->disk);
        busy = dispatch_background(&r->x->d) || trial_counts(r->disk, STORE_BLOCKS).orders;
        daemon_publish(&r->x->d);
    }
    local_free(r->x);
    r->x = NULL;
}

/* Until then nobody asks for anything: so all that must be there is there. */
static void await_scan(struct disk_run *r)
{
    for (int turns = 0; run_scanning(r); turns++) {
        REQUIRE_MSG(turns < SCAN_TURNS, "the scan comes to no end");
        run_turn(r);
    }
    check_tree(r);
    check_present(r);
}

void run_end(struct disk_run *r)
{
    trial_kill(r->disk);
    bury(r);
    trial_disk_free(r->disk);
    words_clear(&r->published);
    words_clear(&r->present);
    words_clear(&r->saved);
    words_clear(&r->kept);
    for (int i = 0; i < ADMIT_MOST; i++)
        words_clear(&r->seen[i]);
    free(r->page);
    free(r->shadow);
    free(r);
}

static void restart(struct disk_run *r)
{
    r->cut_scans += run_scanning(r);
    r->cut_flushes += r->x->d.n_flushing > 0;
    check_tree(r);
    trial_kill(r->disk);
    if (!r->shape.whole && one_in(r, 3)) { /* another budget */
        uint32_t *slots = &trial_disk_config_of(r->disk)->slots[STORE_BLOCKS];
        *slots = r->shape.n_disk / 2 + dice(r, r->shape.n_disk);
    }
    note_copies(r);
    r->faults = trial_counts(r->disk, STORE_BLOCKS).faults;
    r->errors += r->x->d.published.disk_errors;
    bury(r);
    for (int s = 0; s < RUN_SPACES; s++)
        r->lives[s].first = r->durable[s];
    run_start(r);
    r->restarts++;
}

void run_restart(struct disk_run *r, bool kill)
{
    if (!kill)
        run_idle(r);
    restart(r);
    if (r->shape.whole || r->shape.no_flush || one_in(r, 2)) {
        await_scan(r);
        return;
    }
    while (!one_in(r, 3)) { /* before it has found all */
        run_turn(r);
        if (run_scanning(r))
            restart(r);
    }
}
