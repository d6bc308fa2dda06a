#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static int evict_run(const struct tool *t, int n, char **arg)
{
    uint64_t blocks;
    if (n != 1 || !*arg[0] || strspn(arg[0], "0123456789") != strlen(arg[0]))
        return tool_fail(EXIT_USAGE, "takes one number: how many blocks to evict.");
    if (!parse_number(arg[0], UINT32_MAX, &blocks))
        return tool_fail(EXIT_USAGE, "evicts at most %u blocks, not '%s'.", UINT32_MAX, arg[0]);
    int code = EXIT_GOOD;
    pfx *c = tool_attach(t, &code);
    if (!c)
        return code;
    struct pfx_evicted out = {.size = sizeof out};
    int rc = pfx_evict(c, (uint32_t)blocks, &out);
    if (rc < 0)
        code = tool_fail_call(t, c, "evict failed", rc);
    else if (t->json)
        print_json(json_pack("{s:I,s:I}", "freed_blocks", (json_int_t)out.freed_blocks,
                             "removed_blocks", (json_int_t)out.removed_blocks));
    else
        printf("%u block%s left the cache, %u page%s became free\n", out.removed_blocks,
               PLURAL(out.removed_blocks), out.freed_blocks, PLURAL(out.freed_blocks));
    pfx_close(c);
    return code;
}

const struct command evict_command = {
    "evict", "N", "evict up to N idle blocks, least recently used first", NULL, NULL, evict_run,
};
