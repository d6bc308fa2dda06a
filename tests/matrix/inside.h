/*
 * inside.h - a whole daemon as a thread of this process, and the library beside it over the same
 * mappings: what a thread sanitizer, which knows memory by its address, has to see.
 *
 *      daemon_run, swap threads ----> [ regions, mapped once ] <---- threads with a pfx each
 *
 * --wrap=segment_create, segment_create_with, segment_map and segment_free: whoever maps a region
 * that is mapped here already gets that mapping, after all checks of its descriptor.
 */
#ifndef TESTS_MATRIX_INSIDE_H
#define TESTS_MATRIX_INSIDE_H

#include "daemon/daemon.h"
#include "tests/harness.h"

#include <pthread.h>

struct inside {
    struct host host; /* its socket, and for audits */
    struct options options;
    struct daemon d;
    pthread_t thread;
};

/* Options of prefixd, NULL ends them; --socket is added. */
void inside_start(struct inside *in, const char *const *options);
void inside_stop(struct inside *in); /* SIGTERM, as for one of its own process */

/* Mappings that somebody shares now, and those that were shared so far. */
unsigned mappings_shared(void);
unsigned mappings_shared_ever(void);

#endif
