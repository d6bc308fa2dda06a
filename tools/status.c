#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>
#include <time.h>

static double uptime_s(const struct index_header *h)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec -
                    (int64_t)h->started_realtime_ns) /
           1e9;
}

static void add(json_t *o, const char *name, uint64_t value)
{
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static json_t *describe(const struct daemon_index *di, const struct counters *counters)
{
    const struct index_header *h = di->view.header;
    char digest[65], epoch[17];
    snprintf(epoch, sizeof epoch, "%016llx", (unsigned long long)h->epoch);
    print_hex(digest, h->model_digest, sizeof h->model_digest);
    json_t *o = json_object();
    json_object_set_new(o, "ready", json_true());
    add(o, "pid", (uint64_t)di->pid);
    json_object_set_new(o, "epoch", json_string(epoch));
    json_object_set_new(o, "uptime_s", json_real(uptime_s(h)));
    add(o, "active", h->active);
    add(o, "n_blocks", di->view.params.n_blocks);
    add(o, "n_disk_blocks", di->view.params.n_disk);
    add(o, "n_slots", h->n_slots);
    add(o, "n_tier", h->n_tier);
    add(o, "block_tokens", di->view.params.block_tokens);
    add(o, "block_bytes", h->block_bytes);
    add(o, "snapshot_bytes", h->snapshot_bytes);
    add(o, "n_devices", h->n_devices);
    json_object_set_new(o, "model_digest", json_string(digest));
#define ADD_COUNTER(name, kind) add(o, #name, counters->name);
    COUNTERS(ADD_COUNTER)
    DETAILS(ADD_COUNTER)
#undef ADD_COUNTER
    return o;
}

static void show_snapshots(const struct index_header *h, const struct counters *c)
{
    typedef unsigned long long ull;
    printf("snapshots     %llu resident in %u slot%s of %llu bytes (%llu free, %llu reserved)",
           (ull)c->snapshots, h->n_slots, PLURAL(h->n_slots), (ull)h->snapshot_bytes,
           (ull)c->slots_free, (ull)c->slots_private);
    if (h->n_tier)
        printf("; spilled %llu of at most %u state%s", (ull)c->snapshots_tiered, h->n_tier,
               PLURAL(h->n_tier));
    if (c->recompute_tokens)
        printf("\nno state      for %llu of %llu matched tokens", (ull)c->recompute_tokens,
               (ull)c->hit_tokens);
    putchar('\n');
}

static void show_disk(uint32_t n_disk, const struct counters *c)
{
    typedef unsigned long long ull;
    printf(
        "disk          %llu of at most %u blocks in %llu slots that exist%s; %s, %llu under way; "
        "read %llu, written %llu, errors %llu%s",
        (ull)c->disk_used, n_disk, (ull)c->disk_ready_blocks,
        c->disk_scan_done ? "" : ", looking for more", c->disk_uring ? "io_uring" : "threads",
        (ull)c->disk_in_flight, (ull)c->disk_read_blocks, (ull)c->disk_written_blocks,
        (ull)c->disk_errors, c->disk_healthy ? "" : "; unhealthy: a file is not used");
    if (c->disk_unused_files)
        printf("\n              %llu file%s not ours and not in use: see the log of prefixd",
               (ull)c->disk_unused_files, c->disk_unused_files == 1 ? " is" : "s are");
    putchar('\n');
}

static void show(const struct tool *t, const struct daemon_index *di, const struct counters *c)
{
    const struct index_header *h = di->view.header;
    printf("daemon        %d at %s, up %.0f s%s\n", di->pid, t->socket, uptime_s(h),
           h->active ? "" : ", caching is off");
    printf("pool          %u block%s of %u token%s and %llu bytes on %u device%s\n",
           di->view.params.n_blocks, PLURAL(di->view.params.n_blocks), di->view.params.block_tokens,
           PLURAL(di->view.params.block_tokens), (unsigned long long)h->block_bytes, h->n_devices,
           PLURAL(h->n_devices));
    if (h->n_slots)
        show_snapshots(h, c);
    if (di->view.params.n_disk)
        show_disk(di->view.params.n_disk, c);
    if (c->lookup_tokens)
        printf("hit ratio     %.4f of the tokens looked up\n",
               (double)c->hit_tokens / (double)c->lookup_tokens);
    putchar('\n');
#define SHOW_COUNTER(name, kind) printf("%-20s %llu\n", #name, (unsigned long long)c->name);
    COUNTERS(SHOW_COUNTER)
    DETAILS(SHOW_COUNTER)
#undef SHOW_COUNTER
}

static int not_ready(const struct tool *t, const struct daemon_index *di)
{
    if (t->json)
        print_json(json_pack("{s:b,s:i}", "ready", 0, "pid", (int)di->pid));
    else
        daemon_index_waits(t, di);
    return EXIT_GOOD;
}

static int status_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    struct daemon_index di;
    struct counters counters;
    int code = daemon_index_open(t, &di);
    if (code != EXIT_GOOD)
        return code;
    if (!di.ready)
        code = not_ready(t, &di);
    else if (!stats_copy(&di.view.header->stats, &counters))
        code = tool_fail(EXIT_DAEMON, "the counters of daemon %d never stood still.", di.pid);
    else if (t->json)
        print_json(describe(&di, &counters));
    else
        show(t, &di, &counters);
    daemon_index_close(&di);
    return code;
}

const struct command status_command = {
    "status",
    "",
    "the daemon's geometry and counters",
    "Reads shared memory only: works while the daemon is stopped. A user who may attach but not\n"
    "look into the daemon's process is attached as a worker for a moment instead: that needs an\n"
    "answer of the daemon.",
    NULL,
    status_run,
};
