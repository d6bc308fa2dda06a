#include "shm/sanitized.h"
#include "tools/bench.h"
#include "tools/measure.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_MAX = 31 };

#define PAIRED(f)         .begin = f##_begin, .value = f##_value, .baseline = f##_baseline, .end = f##_end
#define ABSOLUTE(f, kind) .begin = f##_begin, .value = kind##_value, .end = kind##_end
#define AGAINST_FIO(f)                                                                             \
    .begin = f##_begin, .value = swap_value, .baseline = swap_baseline, .end = swap_end,           \
    .at_least = true, .more = swap_more
static const struct bench_row rows[] = {
    {"index.hot", "ns", "memcmp", 2, 15, PAIRED(index_hot)},
    {"index.cold", "ns", "memcmp_cold", 2, 7, PAIRED(index_cold)},
    {"index.scale", "ns", "index.scale.100k", 2, 7, PAIRED(index_scale)},
    {"lookup.p50", "ns", "1.5*index.hot+5*pingpong", 1, 15, PAIRED(lookup_p50)},
    {"lookup.p99_busy", "ns", "lookup.p50", 20, 9, PAIRED(lookup_busy)},
    {"peek.hot", "ns", "index.hot", 1.5, 15, PAIRED(peek_hot)},
    {"ring.p50", "ns", "pingpong", 1.5, 15, PAIRED(ring_p50)},
    {"snapshots.lookup", "ns", "snapshots.lookup.without", 2, 15, PAIRED(snapshots_lookup)},
    {"evict.runs", "us/block", NULL, 1, 15, ABSOLUTE(evict_runs, evict)},
    {"evict.single", "us/block", NULL, 3, 15, ABSOLUTE(evict_single, evict)},
    {"memory.runs", "bytes/block", NULL, 128, 1, ABSOLUTE(memory_runs, memory)},
    {"memory.truncated", "bytes/block", NULL, 128, 1, ABSOLUTE(memory_truncated, memory)},
    {"memory.single", "bytes/block", NULL, 256, 1, ABSOLUTE(memory_single, memory)},
    {"swap.read.64k", "MB/s", "fio", 0, 5, AGAINST_FIO(swap_read_64k)},
    {"swap.read.256k", "MB/s", "fio", 0.95, 5, AGAINST_FIO(swap_read_256k)},
    {"swap.read.1m", "MB/s", "fio", 0.95, 5, AGAINST_FIO(swap_read_1m)},
    {"swap.write.64k", "MB/s", "fio", 0, 5, AGAINST_FIO(swap_write_64k)},
    {"swap.write.256k", "MB/s", "fio", 0.95, 5, AGAINST_FIO(swap_write_256k)},
    {"swap.write.1m", "MB/s", "fio", 0.95, 5, AGAINST_FIO(swap_write_1m)},
    {"swap.lookup.p99", "ns", "swap.lookup.p99.idle", 0, 5, PAIRED(swap_lookup),
     .more = swap_lookup_more},
    {"swap.restart", "s", NULL, 5, 3, ABSOLUTE(swap_restart, swap_restart),
     .more = swap_restart_more},
    {"idle.cpu", "% of a core", NULL, 0.5, 1, ABSOLUTE(idle, idle)},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

struct pair {
    double value, baseline;
};

static int compare_ratio(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    double p = x->value / x->baseline, q = y->value / y->baseline;
    return (p > q) - (p < q);
}

/* The pair of the median ratio, and more, if there is; false: it could not be measured. */
static bool measure(const struct bench_row *row, struct pair *median, json_t *more)
{
    struct pair pair[PAIRS_MAX];
    unsigned n = 0;
    void *self = row->begin();
    if (!self)
        return false;
    for (; n < row->pairs && !interrupted; n++) {
        pair[n].value = row->value(self);
        pair[n].baseline = row->baseline ? row->baseline(self) : 1;
        if (pair[n].value < 0 || pair[n].baseline <= 0)
            break;
    }
    if (n == row->pairs && row->more)
        row->more(self, more);
    row->end(self);
    if (n < row->pairs)
        return false;
    qsort(pair, n, sizeof pair[0], compare_ratio);
    *median = pair[n / 2];
    return true;
}

static bool within(const struct bench_row *row, const struct pair *p)
{
    double ratio = p->value / p->baseline;
    return row->budget == 0 || (row->at_least ? ratio >= row->budget : ratio <= row->budget);
}

static void print_more(json_t *more)
{
    const char *key;
    json_t *value;
    json_object_foreach(more, key, value)
        printf("%18s %12.3f %s\n", "", json_number_value(value), key);
}

static void print_text(const struct bench_row *row, const struct pair *p, json_t *more)
{
    char budget[16] = "-";
    const char *verdict = within(row, p) ? "ok" : row->at_least ? "UNDER" : "OVER";
    if (row->budget != 0)
        snprintf(budget, sizeof budget, row->at_least ? "%.2f" : "%.1f", row->budget);
    if (row->baseline_name)
        printf("%-18s %12.1f %-12s %10.3f x %-30s %7s  %s\n", row->name, p->value, row->unit,
               p->value / p->baseline, row->baseline_name, budget, verdict);
    else
        printf("%-18s %12.3f %-12s %43s %9s  %s\n", row->name, p->value, row->unit, "", budget,
               verdict);
    print_more(more);
}

/* A row without a budget has none in JSON (null) and is always ok. */
static void print_row(const struct tool *t, const struct bench_row *row, const struct pair *p,
                      json_t *more)
{
    if (t->json) {
        json_t *json = json_pack(
            "{s:s,s:f,s:s,s:f,s:s,s:f,s:o,s:b}", "name", row->name, "value", p->value, "unit",
            row->unit, "baseline", p->baseline, "baseline_name",
            row->baseline_name ? row->baseline_name : "absolute", "ratio", p->value / p->baseline,
            "budget", row->budget != 0 ? json_real(row->budget) : json_null(), "ok",
            (int)within(row, p));
        json_object_update(json, more);
        print_json(json);
    } else {
        print_text(row, p, more);
    }
    fflush(stdout);
}

/* NAME is a row, or the part before the dot of several, or all. */
static bool wanted(const struct bench_row *row, const char *name)
{
    size_t n = strlen(name);
    return strcmp(name, "all") == 0 || strcmp(name, row->name) == 0 ||
           (strncmp(name, row->name, n) == 0 && row->name[n] == '.');
}

static void warn_of_build(void)
{
#if !defined(NDEBUG) || SANITIZED_ADDRESS || SANITIZED_THREAD
    fprintf(stderr, "prefixctl bench: this is no release build (meson setup --buildtype=release); "
                    "the budgets are meant for one.\n");
#endif
}

#define NAMES                                                                                      \
    "index, lookup, peek, ring, snapshots, evict, memory, swap, idle, one row of these, or all"

/* One row. EXIT_GOOD, or what is wrong. */
static int run_row(const struct tool *t, const struct bench_row *row)
{
    struct pair median;
    json_t *more = json_object();
    int code = EXIT_DAEMON;
    if (measure(row, &median, more)) {
        print_row(t, row, &median, more);
        code = within(row, &median) ? EXIT_GOOD : EXIT_FINDING;
    }
    json_decref(more);
    return code;
}

static int bench_run(const struct tool *t, int n, char **arg)
{
    int code = EXIT_GOOD, found = 0;
    if (n != 1)
        return tool_fail(EXIT_USAGE, "takes one name: " NAMES ".");
    if (t->given)
        return tool_fail(EXIT_USAGE, "starts daemons of its own; --socket means nothing here.");
    interrupt_catch();
    for (int i = 0; i < N_ROWS && !interrupted; i++) {
        if (!wanted(&rows[i], arg[0]))
            continue;
        if (found == 0)
            warn_of_build();
        if (!found++ && !t->json)
            printf("%-18s %12s %-12s %10s   %-30s %7s\n", "row", "value", "unit", "ratio", "to",
                   "budget");
        int bad = run_row(t, &rows[i]);
        code = bad > code ? bad : code;
    }
    interrupt_raise();
    if (!found)
        return tool_fail(EXIT_USAGE, "there is no row '%s'; the names are " NAMES ".", arg[0]);
    return code;
}

const char *bench_dir = ".";
static const struct option_row options[] = {
    {"dir", "DIR", OPTION_TEXT, &bench_dir, 0,
     "where swap makes its files, 5 GiB at most, gone at the end; on\n"
     "a file system with direct I/O (default: the current directory)"},
    {0},
};

const struct command bench_command = {
    "bench",
    "NAME",
    "measure this machine against the budgets",
    "NAME is index, lookup, peek, ring, snapshots, evict, memory, swap or idle, one row of these,\n"
    "or all.\n"
    "A row is measured in pairs with its baseline, in turn; the pair of the median ratio counts.\n"
    "ratio = value / baseline must not exceed budget; an absolute row has the baseline 1.\n"
    "swap.read and swap.write are measured against fio (apt-get install fio): their ratio must\n"
    "not be below the budget, if they have one. swap.lookup.p99 is what another worker waits "
    "while\n"
    "blocks go to disk and back, against the same without; swap.restart the seconds from the "
    "start\n"
    "of a daemon with 1,000,000 blocks on disk to its first hit. Daemons are its own. Exits 1 if "
    "a\n"
    "row misses its budget, 3 if one could not be measured.",
    options,
    bench_run,
};
