#include "tools/tool.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool daemon_args_add(struct daemon_args *args, const char *name, const char *value)
{
    unsigned room = sizeof args->arg / sizeof args->arg[0] - 1 - args->n; /* one for the NULL */
    if (room < 2)
        return false;
    args->arg[args->n++] = name;
    if (value)
        args->arg[args->n++] = value;
    return true;
}

bool daemon_args_have(const struct daemon_args *args, const char *name)
{
    for (unsigned i = 0; i < args->n; i++)
        if (strcmp(args->arg[i], name) == 0)
            return true;
    return false;
}

bool parse_number(const char *text, uint64_t max, uint64_t *to)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (errno || *end || (max && n > max))
        return false;
    *to = n;
    return true;
}

static const struct option_row *find(const struct option_row *table, const char *name, size_t len)
{
    for (; table && table->name; table++)
        if (strlen(table->name) == len && strncmp(table->name, name, len) == 0)
            return table;
    return NULL;
}

static bool take(const struct option_row *row, char *dashed, const char *value)
{
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)row->to = true;
        return true;
    case OPTION_TEXT:
        *(const char **)row->to = value;
        return true;
    case OPTION_MAYBE:
        *(const char **)row->to = value ? value : "";
        return true;
    case OPTION_NUMBER:
        if (parse_number(value, row->max, row->to))
            return true;
        if (row->max)
            tool_fail(0, "%s takes a whole number up to %llu, not '%s'.", dashed,
                      (unsigned long long)row->max, value);
        else
            tool_fail(0, "%s takes a whole number, not '%s'.", dashed, value);
        return false;
    case OPTION_DAEMON:
        if (daemon_args_add(row->to, dashed, value))
            return true;
        tool_fail(0, "too many daemon options.");
        return false;
    }
    return false;
}

bool options_parse(const struct option_row *table, const struct option_row *common, char **argv,
                   int *n)
{
    static char help[] = "--help";
    bool only_positional = false;
    *n = 0;
    for (char **at = argv; *at; at++) {
        char *word = *at;
        if (only_positional || word[0] != '-' || word[1] == '\0') {
            argv[(*n)++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (strcmp(word, "-h") == 0)
            word = help;
        char *equals = strchr(word, '=');
        size_t len = equals ? (size_t)(equals - word) : strlen(word);
        const struct option_row *row = NULL;
        if (len > 2 && word[1] == '-') {
            row = find(table, word + 2, len - 2);
            row = row ? row : find(common, word + 2, len - 2);
        }
        if (!row || (equals && !row->value)) {
            tool_fail(0, "unknown option %s; see --help.", word);
            return false;
        }
        const char *value = equals ? equals + 1 : NULL;
        bool maybe = row->kind == OPTION_MAYBE;
        if (row->value && !equals && at[1] && (!maybe || isdigit((unsigned char)at[1][0])))
            value = *++at;
        if (row->value && !value && !maybe) {
            tool_fail(0, "%s needs a value: %s.", word, row->value);
            return false;
        }
        if (equals)
            *equals = '\0';
        if (!take(row, word, value))
            return false;
    }
    argv[*n] = NULL;
    return true;
}

void options_help(const struct option_row *table)
{
    for (; table && table->name; table++) {
        char left[40];
        snprintf(left, sizeof left, "--%s%s%s%s", table->name, table->value ? " " : "",
                 table->value ? table->value : "", strcmp(table->name, "help") ? "" : ", -h");
        printf("  %-24s ", left);
        for (const char *p = table->help; *p; p++) {
            putchar(*p);
            if (*p == '\n')
                printf("%27s", "");
        }
        if (table->max && table->max < UINT32_MAX)
            printf(", at most %llu", (unsigned long long)table->max);
        putchar('\n');
    }
}
