/*
 * log.h - lines on stderr that a person and journald can read. A line names what happened and,
 * where there is one, the remedy.
 */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

/* L(name, text, priority of syslog) */
#define LOG_LEVELS(L)                                                                             \
    L(ERROR, "error", 3) L(WARNING, "warning", 4) L(INFO, "info", 6) L(DEBUG, "debug", 7)

enum log_level {
#define LOG_LEVEL_ENUM(name, text, priority) LOG_AT_##name,
    LOG_LEVELS(LOG_LEVEL_ENUM)
#undef LOG_LEVEL_ENUM
    LOG_LEVELS_N
};

/* The only state outside struct daemon: what is less urgent is dropped from here on. */
void log_setup(enum log_level level);
const char *log_level_name(unsigned level); /* NULL past the last */

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define PLURAL(n) ((n) == 1 ? "" : "s")

#define log_error(...) log_line(LOG_AT_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_AT_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_AT_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_AT_DEBUG, __VA_ARGS__)

#endif
