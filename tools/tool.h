/*
 * tool.h - what the subcommands of prefixctl share: options, exit codes, the ways to a daemon.
 */
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

#include "client/prefixd.h"
#include "shm/index_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum exit_code {
    EXIT_GOOD = 0,
    EXIT_FINDING = 1, /* a check failed */
    EXIT_USAGE = 2,
    EXIT_DAEMON = 3, /* none there, it refused, it or a worker failed us; no output possible */
};

enum { TOOL_TIMEOUT_MS = 5000 /* for what a daemon that is awake answers at once */ };
#define PLURAL(n) ((n) == 1 ? "" : "s")

struct tool {
    const char *socket; /* of the daemon; NULL for bench alone */
    const char *given;  /* by --socket, or NULL */
    const char *also;   /* where no daemon answered either, or NULL; */
    int also_error;     /* and why */
    bool json;
};

/* ---- options: one table a subcommand, from which parser and help are made ------------ */

enum option_kind {
    OPTION_FLAG,   /* to: bool                                                         */
    OPTION_TEXT,   /* to: const char *                                                 */
    OPTION_NUMBER, /* to: uint64_t, at most `max`                                      */
    OPTION_MAYBE,  /* to: const char *, a number that may be left out: then it is ""   */
    OPTION_DAEMON, /* handed on to a private daemon: collected in a struct daemon_args */
};

struct option_row {
    const char *name;  /* without dashes; NULL ends the table */
    const char *value; /* what its value is called in the help; NULL: it has none */
    enum option_kind kind;
    void *to;
    uint64_t max; /* OPTION_NUMBER; 0: any */
    const char *help;
};

struct daemon_args {
    const char *arg[64]; /* NULL-terminated: name, value, name, ... */
    unsigned n;
};

/* Append one option (value NULL: a flag); false: too many. */
bool daemon_args_add(struct daemon_args *args, const char *name, const char *value);
bool daemon_args_have(const struct daemon_args *args, const char *name);

struct command {
    const char *name;
    const char *arguments; /* in the first line of its help */
    const char *summary;
    const char *details; /* more lines for its help, or NULL */
    const struct option_row *options;
    int (*run)(const struct tool *t, int n, char **arg); /* positional arguments; an exit code */
};

/* Take the options out of argv; the *n positional arguments stay at its start. False after a
 * sentence on stderr. */
bool options_parse(const struct option_row *table, const struct option_row *common, char **argv,
                   int *n);
void options_help(const struct option_row *table);

bool parse_number(const char *text, uint64_t max, uint64_t *to);

/* "prefixctl NAME: " and a sentence on stderr; returns code. */
int tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence for a failed call of libprefixd: what failed, and why (NULL: the error's own). */
int tool_fail_pfx(const char *what, int error, const char *why);

/* ---- ways to a daemon ---------------------------------------------------------------- */

/* Set t->socket: what --socket and the environment say, else where a daemon answers (the rule of
 * shm/socket_path.h). False after a sentence: a path is none of a socket. */
bool tool_find(struct tool *t);

/* A connected control socket and who listens there; -1 after a sentence. */
int tool_connect(const struct tool *t, pid_t *pid);

/* The daemon's index, read-only. Who may look into the daemon (its user and root) asks it for
 * nothing: works while it is stopped. Others attach as a worker for a moment. */
struct daemon_index {
    struct index_view view; /* unset while not ready */
    pid_t pid;
    bool ready; /* false: it has not carved its pool yet, there is no index */
    void *base;
    size_t bytes;
};
int daemon_index_open(const struct tool *t, struct daemon_index *di); /* an exit code */
void daemon_index_close(struct daemon_index *di);
/* What status and tree say of one that is not ready. */
void daemon_index_waits(const struct tool *t, const struct daemon_index *di);

/* Rows that only the daemon knows (message.h, admin_op). */
struct admin_rows {
    const uint8_t *row;
    uint32_t n;
    size_t bytes; /* mapped */
};
int admin_ask(const struct tool *t, uint32_t op, size_t row_bytes, int timeout_ms,
              struct admin_rows *rows); /* an exit code */
void admin_free(struct admin_rows *rows);

/* The sentence for a daemon that did not answer within ms: stopped, or busy. EXIT_DAEMON. */
int tool_fail_silent(const struct tool *t, pid_t pid, int ms);
/* The same, or tool_fail_pfx, for a failed call of this connection. */
int tool_fail_call(const struct tool *t, const pfx *c, const char *what, int error);

/* A connection of libprefixd that maps no pool; NULL after a sentence, with an exit code. */
pfx *tool_attach(const struct tool *t, int *code);

struct json_t;
/* Print on one line and give up the reference. */
void print_json(struct json_t *json);
/* Bytes of a peer, up to a NUL; in hex where they are no UTF-8. */
struct json_t *json_text(const char *bytes, size_t room);
void print_hex(char *to, const uint8_t *bytes, size_t n); /* 2n + 1 bytes */

/* ---- the subcommands ------------------------------------------------------------------ */

extern const struct command status_command, workers_command, leases_command, tree_command,
    audit_command, evict_command, flush_command, replay_command, bench_command;

#endif
