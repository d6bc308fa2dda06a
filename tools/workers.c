#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

static json_t *describe(const struct worker_row *w)
{
    return json_pack(
        "{s:I,s:i,s:I,s:o,s:o,s:I,s:I,s:I,s:I,s:b}", "worker", (json_int_t)w->worker, "pid", w->pid,
        "uid", (json_int_t)w->uid, "name", json_text(w->name, sizeof w->name), "group",
        json_text(w->group, sizeof w->group), "leases", (json_int_t)w->leases, "opened_spaces",
        (json_int_t)w->opened_spaces, "private_blocks", (json_int_t)w->private_blocks, "requests",
        (json_int_t)w->requests, "dead", (int)(w->dead != 0));
}

static int workers_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    struct admin_rows rows;
    int code = admin_ask(t, ADMIN_WORKERS, sizeof(struct worker_row), TOOL_TIMEOUT_MS, &rows);
    if (code != EXIT_GOOD)
        return code;
    const struct worker_row *w = (const struct worker_row *)(const void *)rows.row;
    json_t *list = json_array();
    if (!t->json)
        printf("%8s %8s %6s %-20s %-20s %8s %10s %12s\n", "worker", "pid", "uid", "name", "group",
               "leases", "private", "requests");
    for (uint32_t i = 0; i < rows.n; i++, w++) {
        if (t->json)
            json_array_append_new(list, describe(w));
        else
            printf("%8llu %8d %6u %-20.32s %-20.64s %8u %10llu %12llu%s\n",
                   (unsigned long long)w->worker, w->pid, w->uid, w->name, w->group, w->leases,
                   (unsigned long long)w->private_blocks, (unsigned long long)w->requests,
                   w->dead ? "  dead, its group keeps its leases" : "");
    }
    if (t->json)
        print_json(json_pack("{s:O}", "workers", list));
    json_decref(list);
    admin_free(&rows);
    return EXIT_GOOD;
}

const struct command workers_command = {
    "workers", "", "who is attached, and what each holds", NULL, NULL, workers_run,
};
