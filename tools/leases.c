#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

static json_t *describe(const struct lease_row *l)
{
    char id[24];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)l->lease);
    return json_pack("{s:s,s:I,s:o,s:I,s:I,s:I,s:I,s:I,s:b,s:b,s:I,s:I,s:I}", "lease", id, "worker",
                     (json_int_t)l->worker, "group", json_text(l->group, sizeof l->group), "space",
                     (json_int_t)l->space, "matched_blocks", (json_int_t)l->matched_blocks,
                     "held_blocks", (json_int_t)l->held_blocks, "table_blocks",
                     (json_int_t)l->table_blocks, "private_blocks", (json_int_t)l->private_blocks,
                     "final", (int)(l->final != 0), "stale", (int)(l->stale != 0), "reserved_slots",
                     (json_int_t)l->slots, "snapshot_depth", (json_int_t)l->snapshot_depth,
                     "tier_depth", (json_int_t)l->tier_depth);
}

static void show(const struct lease_row *l)
{
    printf("%016llx %8llu %-20.64s %8llu %8u %8u %8u %8u %6u %9u %9u", (unsigned long long)l->lease,
           (unsigned long long)l->worker, l->group, (unsigned long long)l->space, l->matched_blocks,
           l->held_blocks, l->table_blocks, l->private_blocks, l->slots, l->snapshot_depth,
           l->tier_depth);
    printf("%s%s\n", l->final ? "  final" : "", l->stale ? "  from before a flush" : "");
}

static int leases_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    struct admin_rows rows;
    int code = admin_ask(t, ADMIN_LEASES, sizeof(struct lease_row), TOOL_TIMEOUT_MS, &rows);
    if (code != EXIT_GOOD)
        return code;
    const struct lease_row *l = (const struct lease_row *)(const void *)rows.row;
    json_t *list = json_array();
    if (!t->json)
        printf("%-16s %8s %-20s %8s %8s %8s %8s %8s %6s %9s %9s\n", "lease", "worker", "group",
               "space", "matched", "held", "table", "private", "slots", "snapshot", "spilled");
    for (uint32_t i = 0; i < rows.n; i++, l++) {
        if (t->json)
            json_array_append_new(list, describe(l));
        else
            show(l);
    }
    if (t->json)
        print_json(json_pack("{s:O}", "leases", list));
    json_decref(list);
    admin_free(&rows);
    return EXIT_GOOD;
}

const struct command leases_command = {
    "leases",
    "",
    "what is held: one line a lease, numbers in blocks",
    "slots: reserved for snapshots; snapshot and spilled: the depth, in tokens, of those that it\n"
    "was offered, 0: none.",
    NULL,
    leases_run,
};
