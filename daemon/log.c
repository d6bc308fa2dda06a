#include "daemon/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level log_limit = LOG_AT_INFO;

static const struct {
    const char *text;
    int priority;
} levels[] = {
#define LOG_LEVEL_ROW(name, text, priority) {text, priority},
    LOG_LEVELS(LOG_LEVEL_ROW)
#undef LOG_LEVEL_ROW
};

void log_setup(enum log_level level)
{
    log_limit = level;
}

const char *log_level_name(unsigned level)
{
    return level < LOG_LEVELS_N ? levels[level].text : NULL;
}

/* journald takes the priority in front and keeps the time itself; a person wants both in words. */
static int log_prefix(char *to, size_t n, enum log_level level)
{
    if (getenv("JOURNAL_STREAM"))
        return snprintf(to, n, "<%d>", levels[level].priority);

    char when[32];
    time_t now = time(NULL);
    struct tm local;
    if (!localtime_r(&now, &local) || !strftime(when, sizeof when, "%F %T", &local))
        when[0] = 0;
    return snprintf(to, n, "%s prefixd: %s%s", when, level == LOG_AT_INFO ? "" : levels[level].text,
                    level == LOG_AT_INFO ? "" : ": ");
}

void log_line(enum log_level level, const char *format, ...)
{
    if (level > log_limit)
        return;
    char line[1024];
    int used = log_prefix(line, sizeof line, level);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0)
        return;
    size_t n = strlen(line);
    line[n++] = '\n';
    /* One write, so that lines of several processes do not mix; nobody to tell if it fails. */
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}
