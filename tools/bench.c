#include "tools/bench.h"
#include "tools/measure.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_MAX = 31 };

#define PAIRED(f) f##_begin, f##_value, f##_baseline, f##_end
static const struct bench_row rows[] = {
    {"index.hot", "ns", "memcmp", 2, 15, PAIRED(index_hot)},
    {"index.cold", "ns", "memcmp_cold", 2, 7, PAIRED(index_cold)},
    {"index.scale", "ns", "index.scale.100k", 2, 7, PAIRED(index_scale)},
    {"lookup.p50", "ns", "1.5*index.hot+5*pingpong", 1, 15, PAIRED(lookup_p50)},
    {"lookup.p99_busy", "ns", "lookup.p50", 20, 9, PAIRED(lookup_busy)},
    {"peek.hot", "ns", "index.hot", 1.5, 15, PAIRED(peek_hot)},
    {"ring.p50", "ns", "pingpong", 1.5, 15, PAIRED(ring_p50)},
    {"snapshots.lookup", "ns", "snapshots.lookup.without", 2, 15, PAIRED(snapshots_lookup)},
    {"evict.runs", "us/block", NULL, 1, 15, evict_runs_begin, evict_value, NULL, evict_end},
    {"evict.single", "us/block", NULL, 3, 15, evict_single_begin, evict_value, NULL, evict_end},
    {"memory.runs", "bytes/block", NULL, 128, 1, memory_runs_begin, memory_value, NULL, memory_end},
    {"memory.truncated", "bytes/block", NULL, 128, 1, memory_truncated_begin, memory_value, NULL,
     memory_end},
    {"memory.single", "bytes/block", NULL, 256, 1, memory_single_begin, memory_value, NULL,
     memory_end},
    {"idle.cpu", "% of a core", NULL, 0.5, 1, idle_begin, idle_value, NULL, idle_end},
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

/* The pair of the median ratio; false: it could not be measured. */
static bool measure(const struct bench_row *row, struct pair *median)
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
    row->end(self);
    if (n < row->pairs)
        return false;
    qsort(pair, n, sizeof pair[0], compare_ratio);
    *median = pair[n / 2];
    return true;
}

static void print_row(const struct tool *t, const struct bench_row *row, const struct pair *p)
{
    double ratio = p->value / p->baseline;
    const char *against = row->baseline_name ? row->baseline_name : "absolute";
    if (t->json)
        print_json(json_pack("{s:s,s:f,s:s,s:f,s:s,s:f,s:f,s:b}", "name", row->name, "value",
                             p->value, "unit", row->unit, "baseline", p->baseline, "baseline_name",
                             against, "ratio", ratio, "budget", row->budget, "ok",
                             (int)(ratio <= row->budget)));
    else if (row->baseline_name)
        printf("%-18s %12.1f %-12s %10.3f x %-30s %7.1f  %s\n", row->name, p->value, row->unit,
               ratio, against, row->budget, ratio <= row->budget ? "ok" : "OVER");
    else
        printf("%-18s %12.3f %-12s %43s %9.1f  %s\n", row->name, p->value, row->unit, "",
               row->budget, ratio <= row->budget ? "ok" : "OVER");
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
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    fprintf(stderr, "prefixctl bench: this is no release build (meson setup --buildtype=release); "
                    "the budgets are meant for one.\n");
#endif
}

static int bench_run(const struct tool *t, int n, char **arg)
{
    int code = EXIT_GOOD, found = 0;
    if (n != 1)
        return tool_fail(EXIT_USAGE, "takes one name: index, lookup, peek, ring, snapshots, "
                                     "evict, memory, idle, one row of these, or all.");
    if (t->given)
        return tool_fail(EXIT_USAGE, "starts daemons of its own; --socket means nothing here.");
    interrupt_catch();
    for (int i = 0; i < N_ROWS && !interrupted; i++) {
        struct pair median;
        if (!wanted(&rows[i], arg[0]))
            continue;
        if (found == 0)
            warn_of_build();
        if (!found++ && !t->json)
            printf("%-18s %12s %-12s %10s   %-30s %7s\n", "row", "value", "unit", "ratio", "to",
                   "budget");
        if (!measure(&rows[i], &median)) {
            code = EXIT_DAEMON;
            continue;
        }
        print_row(t, &rows[i], &median);
        if (median.value / median.baseline > rows[i].budget && code == EXIT_GOOD)
            code = EXIT_FINDING;
    }
    interrupt_raise();
    if (!found)
        return tool_fail(EXIT_USAGE,
                         "there is no row '%s'; the names are index, lookup, peek, ring, "
                         "snapshots, evict, memory, idle, one row of these, or all.",
                         arg[0]);
    return code;
}

const struct command bench_command = {
    "bench",
    "NAME",
    "measure this machine against the budgets",
    "NAME is index, lookup, peek, ring, snapshots, evict, memory or idle, one row of these, or\n"
    "all.\n"
    "A row is measured in pairs with its baseline, in turn; the pair of the median ratio counts.\n"
    "ratio = value / baseline must not exceed budget; an absolute row has the baseline 1. Daemons\n"
    "are its own. Exits 1 if a row is over its budget.",
    NULL,
    bench_run,
};
