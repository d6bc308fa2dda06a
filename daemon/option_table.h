/*
 * option_table.h - the one table of options. Parser, --help and configuration file are made of it.
 */
#ifndef DAEMON_OPTION_TABLE_H
#define DAEMON_OPTION_TABLE_H

#include "daemon/option_values.h"
#include "daemon/options.h"

/* What is being read, and what was given where the value alone does not tell. */
struct reading {
    struct options *o;
    const char *config;
    uint64_t given; /* bit i: row i of the table */
    struct why why;
};

struct row;
typedef bool row_set(struct reading *r, const struct row *row, const char *value);

struct row {
    const char *name;
    const char *arg;       /* NULL: a switch */
    const char *preset;    /* the default, set before anything else; NULL: */
    const char *otherwise; /* what happens then, in words */
    const char *help;
    row_set *set;
    size_t offset; /* of a plain field of struct options, and its range */
    uint64_t min, max;
};

unsigned row_count(void);
const struct row *row_at(unsigned i);
const struct row *row_find(const char *name, size_t n); /* NULL: there is none */

/* Set it and remember that it was given; false and a reason in r->why. */
bool row_give(struct reading *r, const struct row *row, const char *value);
bool row_given(const struct reading *r, const char *name);

/* --config is looked for first and set apart. */
bool row_is_config(const struct row *row);

void print_help(void);

#endif
