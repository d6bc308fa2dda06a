/*
 * prefixctl - look at a prefixd daemon, act on it, replay traces against it, measure it.
 *
 * One table of subcommands; each is a file of that name with a table of its options. From these
 * tables come the dispatch, the parser and every help text.
 */
#include "tools/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct command *const commands[] = {
    &status_command, &workers_command, &leases_command, &tree_command,  &audit_command,
    &evict_command,  &flush_command,   &replay_command, &bench_command,
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static struct tool tool;
static bool want_help;

static const struct option_row common_options[] = {
    {"json", NULL, OPTION_FLAG, &tool.json, 0, "print JSON"},
    {"socket", "PATH", OPTION_TEXT, &tool.given, 0,
     "the daemon's socket (default: $PREFIXD_SOCKET; without that,\n"
     "$XDG_RUNTIME_DIR/prefixd.sock, then /run/prefixd/prefixd.sock)"},
    {"help", NULL, OPTION_FLAG, &want_help, 0, "this text"},
    {0},
};

static const char exit_codes[] =
    "\nExit codes: 0 good, 1 a check failed (audit found something, bytes were corrupt, a budget\n"
    "was missed), 2 wrong usage, 3 no daemon there, or it refused or failed, a worker process of\n"
    "a replay failed or died, or the output could not be written.\n";

static const struct command *running;

int tool_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "prefixctl%s%s: ", running ? " " : "", running ? running->name : "");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

static void help_all(void)
{
    printf("usage: prefixctl COMMAND [OPTION]...\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\nOptions of every command (`prefixctl COMMAND --help` shows all of its own):\n");
    options_help(common_options);
    fputs(exit_codes, stdout);
}

static void help_one(const struct command *c)
{
    printf("usage: prefixctl %s%s%s [OPTION]...\n\n%s\n", c->name, *c->arguments ? " " : "",
           c->arguments, c->summary);
    if (c->details)
        printf("%s\n", c->details);
    printf("\nOptions:\n");
    options_help(c->options);
    options_help(common_options);
    fputs(exit_codes, stdout);
}

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* An exit code: whatever ran, output that is lost is a failure. */
static int finish(int code)
{
    const char *cause = fflush(stdout) != 0 ? strerror(errno) : "an earlier write failed";
    if (!ferror(stdout) || code > EXIT_FINDING)
        return code;
    return tool_fail(EXIT_DAEMON, "the output could not be written: %s.", cause);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return tool_fail(EXIT_USAGE, "no command given; `prefixctl --help` lists them.");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help_all();
        return finish(EXIT_GOOD);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("prefixctl %s\n", PREFIXD_VERSION);
        return finish(EXIT_GOOD);
    }
    if (argv[1][0] == '-')
        return tool_fail(EXIT_USAGE,
                         "%s: options come after the command, as in `prefixctl status "
                         "--json`; `prefixctl --help` lists the commands.",
                         argv[1]);
    running = find_command(argv[1]);
    if (!running)
        return tool_fail(EXIT_USAGE, "there is no command '%s'; `prefixctl --help` lists them.",
                         argv[1]);
    int n;
    if (!options_parse(running->options, common_options, argv + 2, &n))
        return EXIT_USAGE;
    if (want_help) {
        help_one(running);
        return finish(EXIT_GOOD);
    }
    if (running != &bench_command && !tool_find(&tool))
        return EXIT_USAGE;
    return finish(running->run(&tool, n, argv + 2));
}
