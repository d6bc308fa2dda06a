#include "daemon/options.h"

#include "daemon/geometry.h"
#include "daemon/option_values.h"
#include "kernels/device.h"
#include "shm/layout.h"

#include <errno.h>
#include <ini.h>
#include <sched.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_US = 50, DEFAULT_BLOCKS = 1024, BLOCKS_MAX = (1 << 30) - 1 };

/* What was given, where the value alone does not tell. */
struct reading {
    struct options *o;
    const char *config;
    uint64_t given; /* bit i: row i of the table */
    struct why why;
};

struct row;
typedef bool row_set(struct reading *r, const struct row *row, const char *value);

/* One row an option: parser, --help and configuration file are made of it. */
struct row {
    const char *name, *arg; /* arg NULL: a switch */
    const char *preset;     /* shown as default, and set before anything else if it is a value */
    const char *help;
    row_set *set;
    size_t offset; /* of a plain field; `max` of 0: no plain count */
    uint64_t min, max;
};

static row_set set_count, set_size, set_alpha, set_switch, set_socket, set_config, set_device, set_user,
    set_group, set_model, set_index, set_policy, set_numa, set_log_level;

#define FIELD(name) offsetof(struct options, name)
static const struct row rows[] = {
    {"socket", "PATH", NULL,
     "control socket (default $PREFIXD_SOCKET, then $XDG_RUNTIME_DIR/prefixd.sock, then "
     "/run/prefixd/prefixd.sock)",
     set_socket, 0, 0, 0},
    {"config", "FILE", NULL,
     "read lines `option = value` from FILE; the command line wins (default: none)", set_config, 0, 0,
     0},
    {"allow-user", "USER", NULL,
     "besides root and the daemon's own user, let USER (name or number) attach; repeatable (default: "
     "nobody)",
     set_user, 0, 0, 0},
    {"allow-group", "GROUP", NULL, "let members of GROUP attach; repeatable (default: nobody)",
     set_group, 0, 0, 0},
    {"device", "host", "host", "where pages live; this build has the host's memory only", set_device, 0,
     0, 0},
    {"bytes", "SIZE", NULL,
     "usable bytes of the pool, all devices together; alone, the first worker's layout decides how they "
     "are cut (default: as the other options say, 64M without any)",
     set_size, FIELD(bytes), 1, INT64_MAX},
    {"blocks", "N", NULL, "blocks of the pool (default: what --bytes holds, 1024 without)", set_count,
     FIELD(blocks), 1, BLOCKS_MAX},
    {"block-tokens", "N", "16", "tokens of a block", set_count, FIELD(layout.block_tokens), 1,
     BLOCK_TOKENS_MAX},
    {"block-bytes", "SIZE", "64K",
     "bytes of a block on one device, a multiple of 64; 0 with snapshots alone", set_size,
     FIELD(layout.block_bytes), 0, INT64_MAX},
    {"devices", "N", "1", "shards of the pool, one a tensor-parallel rank", set_count,
     FIELD(layout.n_devices), 1, DEVICES_MAX},
    {"snapshots", "N", "0", "slots for recurrent state", set_count, FIELD(snapshots), 0, BLOCKS_MAX},
    {"snapshot-bytes", "SIZE", "0", "bytes of a slot on one device", set_size,
     FIELD(layout.snapshot_bytes), 0, INT64_MAX},
    {"model", "TEXT", NULL,
     "what KV bytes depend on besides the layout; only workers with its SHA-256 as model_digest may "
     "attach (default: a digest of zeros)",
     set_model, 0, 0, 0},
    {"huge-pages", NULL, "no", "put the pool on 2 MiB pages where the machine has them",
     set_switch, FIELD(huge_pages), 0, 0},
    {"numa", "N|local|any", "any", "memory node of the pool", set_numa, 0, 0, 0},
    {"index", "radix|none", "radix", "none: every call works, nothing is ever found", set_index, 0, 0,
     0},
    {"policy", "NAME", "lru", "who is evicted first", set_policy, 0, 0, 0},
    {"alpha", "X", "0", "weight of a snapshot's depth against its age when one must go", set_alpha, 0, 0,
     0},
    {"spin-us", "N", NULL,
     "microseconds to look for work before sleeping (default: 50, on one CPU 0)", set_count,
     FIELD(spin_us), 0, 1000000},
    {"max-workers", "N", "256", "workers attached at once", set_count, FIELD(max_workers), 1, 65536},
    {"max-leases", "N", "65536", "leases of one worker", set_count, FIELD(max_leases), 1, 1 << 24},
    {"log-level", "LEVEL", "info", "error, warning, info or debug", set_log_level, 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };
static_assert(ROWS <= 64, "a bit each in reading.given");

static const struct row *row_find(const char *name, size_t n)
{
    for (unsigned i = 0; i < ROWS; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

static bool given(const struct reading *r, const char *name)
{
    return r->given >> (row_find(name, strlen(name)) - rows) & 1;
}

/* ---- one setter a kind of value --------------------------------------------------- */

static void *field(struct reading *r, const struct row *row)
{
    return (char *)r->o + row->offset;
}

static bool set_count(struct reading *r, const struct row *row, const char *value)
{
    uint64_t n;
    if (!value_count(value, row->min, row->max, &n, &r->why))
        return false;
    *(uint32_t *)field(r, row) = (uint32_t)n;
    return true;
}

static bool set_size(struct reading *r, const struct row *row, const char *value)
{
    uint64_t n;
    if (!value_size(value, &n, &r->why))
        return false;
    if (n < row->min)
        return value_refuse(&r->why, "it is smaller than one block");
    *(uint64_t *)field(r, row) = n;
    return true;
}

static bool set_switch(struct reading *r, const struct row *row, const char *value)
{
    return value_switch(value, field(r, row), &r->why);
}

static bool set_alpha(struct reading *r, const struct row *row, const char *value)
{
    return value_number(value, &r->o->alpha, &r->why);
}

static bool set_socket(struct reading *r, const struct row *row, const char *value)
{
    size_t n = strlen(value);
    if (n == 0)
        return value_refuse(&r->why, "it takes a path");
    if (n >= sizeof r->o->socket)
        return value_refuse(&r->why, "the path is too long for a socket; at most %zu bytes fit",
                            sizeof r->o->socket - 1);
    memcpy(r->o->socket, value, n + 1);
    return true;
}

static bool set_config(struct reading *r, const struct row *row, const char *value)
{
    r->config = value;
    return true;
}

static bool set_user(struct reading *r, const struct row *row, const char *value)
{
    if (r->o->n_users == ALLOWED_MAX)
        return value_refuse(&r->why, "at most %d users; use --allow-group", ALLOWED_MAX);
    return value_user(value, &r->o->users[r->o->n_users], &r->why) && ++r->o->n_users;
}

static bool set_group(struct reading *r, const struct row *row, const char *value)
{
    if (r->o->n_groups == ALLOWED_MAX)
        return value_refuse(&r->why, "at most %d groups", ALLOWED_MAX);
    return value_group(value, &r->o->groups[r->o->n_groups], &r->why) && ++r->o->n_groups;
}

static bool set_device(struct reading *r, const struct row *row, const char *value)
{
    if (strcmp(value, "host") == 0)
        return true;
    return value_refuse(&r->why, "this build has the host pool only; use --device host");
}

static bool set_model(struct reading *r, const struct row *row, const char *value)
{
    SHA2_CTX sha;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)value, strlen(value));
    SHA256Final(r->o->layout.model_digest, &sha);
    r->o->has_model = true;
    return true;
}

static bool set_index(struct reading *r, const struct row *row, const char *value)
{
    r->o->null_index = strcmp(value, "none") == 0;
    return r->o->null_index || strcmp(value, "radix") == 0 ||
           value_refuse(&r->why, "it takes radix or none");
}

static bool set_policy(struct reading *r, const struct row *row, const char *value)
{
    r->o->policy = policy_find(value);
    if (r->o->policy)
        return true;
    char known[128] = "";
    for (unsigned i = 0, n = 0; policy_at(i) && n < sizeof known; i++)
        n += (unsigned)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", policy_at(i)->name);
    return value_refuse(&r->why, "there is no such policy; known: %s", known);
}

static bool set_numa(struct reading *r, const struct row *row, const char *value)
{
    uint64_t node;
    r->o->numa_node = strcmp(value, "local") == 0 ? -2 : -1;
    if (r->o->numa_node == -2 || strcmp(value, "any") == 0)
        return true;
    if (!value_count(value, 0, INT32_MAX, &node, &r->why))
        return value_refuse(&r->why, "it takes the number of a node, local or any");
    r->o->numa_node = (int)node;
    return device_has_node((int)node) || value_refuse(&r->why, "this machine has no such node");
}

static bool set_log_level(struct reading *r, const struct row *row, const char *value)
{
    for (unsigned i = 0; log_level_name(i); i++)
        if (strcmp(value, log_level_name(i)) == 0) {
            r->o->log_level = (enum log_level)i;
            return true;
        }
    return value_refuse(&r->why, "it takes error, warning, info or debug");
}

/* ---- command line ------------------------------------------------------------------ */

static void print_help(void)
{
    printf("prefixd: one prefix cache for all LLM workers of a machine\n\n"
           "usage: prefixd [--OPTION VALUE]...\n\n");
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        char left[40];
        snprintf(left, sizeof left, "--%s%s%s", row->name, row->arg ? " " : "",
                 row->arg ? row->arg : "");
        printf("  %-23s %s%s%s%s\n", left, row->help, row->preset ? " (default: " : "",
               row->preset ? row->preset : "", row->preset ? ")" : "");
    }
    printf("  %-23s print the version and stop\n  %-23s print this and stop\n\n", "--version", "--help");
    printf("SIZE is in bytes and takes K, M, G or T. Policies:\n");
    for (unsigned i = 0; policy_at(i); i++)
        printf("  %-23s %s\n", policy_at(i)->name, policy_at(i)->help);
}

static int bad(const char *sentence)
{
    fprintf(stderr, "prefixd: %s\n", sentence);
    return 2;
}

static int bad_value(const struct row *row, const char *value, const struct why *why)
{
    fprintf(stderr, "prefixd: --%s %s: %s\n", row->name, value, why->text);
    return 2;
}

/* Only looks: which row and value stand at argv[*i]? Steps over the value. */
static int read_argument(int argc, char **argv, int *i, const struct row **row, const char **value)
{
    const char *name = argv[*i];
    if (strncmp(name, "--", 2) != 0 || !name[2]) {
        fprintf(stderr, "prefixd: %s: not an option; see --help\n", name);
        return 2;
    }
    const char *equals = strchr(name, '=');
    *row = row_find(name + 2, equals ? (size_t)(equals - name - 2) : strlen(name + 2));
    if (!*row) {
        fprintf(stderr, "prefixd: %s: there is no such option; see --help\n", name);
        return 2;
    }
    if (equals)
        *value = equals + 1;
    else if (!(*row)->arg)
        *value = "yes";
    else if (++*i < argc)
        *value = argv[*i];
    else {
        fprintf(stderr, "prefixd: %s: it takes a value, %s\n", name, (*row)->arg);
        return 2;
    }
    return OPTIONS_RUN;
}

static int read_command_line(struct reading *r, int argc, char **argv, bool config_only)
{
    for (int i = 1; i < argc; i++) {
        const struct row *row;
        const char *value;
        int rc = read_argument(argc, argv, &i, &row, &value);
        if (rc != OPTIONS_RUN)
            return rc;
        if ((row->set == set_config) != config_only)
            continue;
        if (!row->set(r, row, value))
            return bad_value(row, value, &r->why);
        r->given |= 1ull << (row - rows);
    }
    return OPTIONS_RUN;
}

/* ---- configuration file ------------------------------------------------------------ */

struct file_reading {
    struct reading *r;
    FILE *file;
    bool too_long;
    char sentence[512];
};

/* inih would read the rest of a long line as another line. */
static char *read_line(char *line, int n, void *arg)
{
    struct file_reading *f = arg;
    if (!fgets(line, n, f->file))
        return NULL;
    size_t length = strlen(line);
    if (length + 1 == (size_t)n && line[length - 1] != '\n' && !feof(f->file))
        f->too_long = true;
    return f->too_long ? NULL : line;
}

static int read_entry(void *arg, const char *section, const char *name, const char *value)
{
    struct file_reading *f = arg;
    const struct row *row = row_find(name, strlen(name));
    if (f->sentence[0])
        return 0;
    if (section[0] && strcmp(section, "prefixd") != 0)
        snprintf(f->sentence, sizeof f->sentence, "there is no section [%s]", section);
    else if (!row || row->set == set_config)
        snprintf(f->sentence, sizeof f->sentence, "%s: there is no such option", name);
    else if (!row->set(f->r, row, value ? value : "yes"))
        snprintf(f->sentence, sizeof f->sentence, "%s = %s: %s", name, value ? value : "",
                 f->r->why.text);
    else
        f->r->given |= 1ull << (row - rows);
    return f->sentence[0] == 0;
}

static int read_file(struct reading *r)
{
    struct file_reading f = {.r = r, .file = fopen(r->config, "re")};
    if (!f.file) {
        fprintf(stderr, "prefixd: --config %s: %s\n", r->config, strerror(errno));
        return 2;
    }
    int line = ini_parse_stream(read_line, &f, read_entry, &f);
    bool broken = ferror(f.file);
    fclose(f.file);
    if (broken || f.too_long || line == -2)
        fprintf(stderr, "prefixd: --config %s: %s\n", r->config,
                f.too_long ? "a line is too long" : "it could not be read");
    else if (line > 0)
        fprintf(stderr, "prefixd: --config %s, line %d: %s\n", r->config, line,
                f.sentence[0] ? f.sentence : "not of the form `option = value`");
    return broken || f.too_long || line ? 2 : OPTIONS_RUN;
}

/* ---- all together ------------------------------------------------------------------ */

static bool set_presets(struct reading *r)
{
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (row->preset && !row->set(r, row, row->preset))
            return false;
    cpu_set_t cpus;
    r->o->spin_us = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2 ? 0 : SPIN_US;
    return true;
}

static int choose_socket(struct reading *r)
{
    const char *environment = getenv("PREFIXD_SOCKET"), *directory = getenv("XDG_RUNTIME_DIR");
    char path[512];
    if (given(r, "socket"))
        return OPTIONS_RUN;
    if (environment && *environment)
        snprintf(path, sizeof path, "%s", environment);
    else if (directory && *directory)
        snprintf(path, sizeof path, "%s/prefixd.sock", directory);
    else
        snprintf(path, sizeof path, "/run/prefixd/prefixd.sock");
    if (set_socket(r, row_find("socket", 6), path))
        return OPTIONS_RUN;
    fprintf(stderr, "prefixd: %s: %s; give --socket\n", path, r->why.text);
    return 2;
}

static int check_pool(struct reading *r)
{
    struct options *o = r->o;
    if (given(r, "snapshots") != given(r, "snapshot-bytes"))
        return bad("--snapshots and --snapshot-bytes only mean something together");
    if ((o->snapshots == 0) != (o->layout.snapshot_bytes == 0))
        return bad("--snapshots and --snapshot-bytes must both be 0 or both be more");
    o->waits = o->bytes && !given(r, "blocks") && !given(r, "block-tokens") && !given(r, "block-bytes") &&
               !given(r, "devices") && !given(r, "snapshots");
    if (o->waits)
        return o->bytes >= REGION_PAGE ? OPTIONS_RUN : bad("--bytes: it is smaller than any useful block");
    if (!o->bytes && !o->blocks)
        o->blocks = DEFAULT_BLOCKS;
    struct geometry g;
    char why[256];
    return geometry_plan(o, &o->layout, &g, why, sizeof why) ? OPTIONS_RUN : bad(why);
}

int options_read(struct options *o, int argc, char **argv)
{
    *o = (struct options){0};
    struct reading r = {.o = o};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            print_help();
        else if (strcmp(argv[i], "--version") == 0)
            printf("prefixd %s\n", PREFIXD_VERSION);
        else
            continue;
        return fflush(stdout) ? 1 : 0;
    }
    if (!set_presets(&r))
        return bad(r.why.text);
    int rc = read_command_line(&r, argc, argv, true);
    if (rc == OPTIONS_RUN && r.config)
        rc = read_file(&r);
    if (rc == OPTIONS_RUN)
        rc = read_command_line(&r, argc, argv, false);
    if (rc == OPTIONS_RUN)
        rc = choose_socket(&r);
    return rc == OPTIONS_RUN ? check_pool(&r) : rc;
}
