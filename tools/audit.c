#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

/* The daemon walks everything it has before it answers. */
enum { AUDIT_TIMEOUT_MS = 300 * 1000 };

static int audit_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    struct admin_rows rows;
    int code = admin_ask(t, ADMIN_AUDIT, sizeof(struct audit_row), AUDIT_TIMEOUT_MS, &rows);
    if (code != EXIT_GOOD)
        return code;
    const struct audit_row *row = (const struct audit_row *)(const void *)rows.row;
    json_t *list = json_array();
    for (uint32_t i = 0; i < rows.n; i++, row++) {
        if (t->json)
            json_array_append_new(list, json_text(row->finding, sizeof row->finding));
        else
            printf("%.*s\n", (int)sizeof row->finding, row->finding);
    }
    if (t->json)
        print_json(json_pack("{s:b,s:O}", "ok", (int)(rows.n == 0), "findings", list));
    else
        printf("%s: %u finding%s\n", rows.n ? "audit failed" : "audit ok", rows.n, PLURAL(rows.n));
    json_decref(list);
    code = rows.n ? EXIT_FINDING : EXIT_GOOD;
    admin_free(&rows);
    return code;
}

const struct command audit_command = {
    "audit",
    "",
    "the daemon walks all it has and compares every counter with the walk",
    "Exits 1 if anything disagrees.",
    NULL,
    audit_run,
};
