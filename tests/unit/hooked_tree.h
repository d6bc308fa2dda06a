/* hooked_tree.h - tools/tree.c (prefixctl tree) with a call of hooked_between_loads (hooked_read.h)
 * before every load of shared memory. */
#ifndef TESTS_HOOKED_TREE_H
#define TESTS_HOOKED_TREE_H

#include "shm/index_read.h"

/* What it prints, with --json --tokens; the caller frees it. */
char *hooked_tree(const struct index_view *view);

#endif
