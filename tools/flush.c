#include "tools/tool.h"

#include <jansson.h>
#include <stdio.h>

static struct {
    uint64_t space;
    bool all;
} opt = {.space = PFX_ALL_SPACES};

static const struct option_row options[] = {
    {"space", "N", OPTION_NUMBER, &opt.space, PFX_ALL_SPACES - 1,
     "the space to forget, as `tree` numbers it (default: 0, the base space)"},
    {"all", NULL, OPTION_FLAG, &opt.all, 0, "forget every space"},
    {0},
};

static int flush_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    if (opt.all && opt.space != PFX_ALL_SPACES)
        return tool_fail(EXIT_USAGE, "--all and --space exclude each other.");
    if (!opt.all && opt.space == PFX_ALL_SPACES)
        opt.space = 0;
    int code = EXIT_GOOD;
    pfx *c = tool_attach(t, &code);
    if (!c)
        return code;
    int rc = pfx_flush(c, opt.space);
    if (rc == PFX_ENOENT)
        code = tool_fail(EXIT_USAGE, "there is no space %llu; `prefixctl tree` lists them.",
                         (unsigned long long)opt.space);
    else if (rc < 0)
        code = tool_fail_call(t, c, "flush failed", rc);
    else if (t->json)
        print_json(opt.all ? json_pack("{s:s}", "flushed", "all")
                           : json_pack("{s:I}", "flushed", (json_int_t)opt.space));
    else if (opt.all)
        printf("every space was flushed\n");
    else
        printf("space %llu was flushed\n", (unsigned long long)opt.space);
    pfx_close(c);
    return code;
}

const struct command flush_command = {
    "flush",
    "",
    "forget what is cached in a space, in all tiers",
    "Blocks that a lease holds go when it is released.",
    options,
    flush_run,
};
