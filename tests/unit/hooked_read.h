/*
 * hooked_read.h - shm/index_read.c and snapshot_read.c once more, with a call before every load of
 * shared memory: there the test lets the daemon's side change the tree. So a reader is interrupted
 * between any two of its loads, by any number of whole changes, as often as one likes and in one
 * thread.
 *
 * What it cannot show is a change seen by halves; that is the litmus of VERSION and the test with
 * real processes.
 */
#ifndef TESTS_HOOKED_READ_H
#define TESTS_HOOKED_READ_H

#include "shm/snapshot_read.h"

extern void (*hooked_between_loads)(void);

bool hooked_index_walk(const struct index_view *view, uint64_t space,
                       const struct index_query *query, uint32_t limit, struct index_found *found);
bool hooked_index_path_ids(const struct index_view *view, struct place where, uint32_t from,
                           uint32_t to, uint32_t *pages, uint32_t *disks);
int hooked_index_path_agrees(const struct index_view *view, struct place where,
                             const struct index_query *query);
uint32_t hooked_index_tail_tokens(const struct index_view *view, struct place where,
                                  const uint32_t *rest, uint32_t n_rest);
bool hooked_index_snapshots(const struct index_view *view, struct place where,
                            const struct snapshot_want *want, struct snapshots_found *found);

#endif
