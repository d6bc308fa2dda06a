/*
 * bench_swap.h - what the rows of the disk tier share: a directory to measure in, fio beside us,
 * and a daemon with a tier.
 *
 *   bench_swap.c       the swap thread in this process against fio: swap.read.*, swap.write.*
 *   bench_fio.c        fio
 *   bench_tier.c       private daemons with a tier: swap.lookup.p99, swap.restart
 */
#ifndef TOOLS_BENCH_SWAP_H
#define TOOLS_BENCH_SWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A new directory in --dir, where files take direct I/O. False after a sentence. */
bool swap_dir_make(char *dir, size_t room);
/* With the files in it. Those that are open stay usable, and take no room once they are closed. */
void swap_dir_remove(char *dir);

/* A file of so many bytes, written to its end, that has no name any more; -1 after a sentence. */
int plain_file(const char *dir, uint64_t bytes);

struct fio_job {
    int fd;      /* of the file */
    int pool_fd; /* a memfd, whose first pages are its buffers */
    uint64_t file_bytes, block_bytes;
    unsigned depth, ms;
    bool write;
    int core; /* -1: any */
};
struct moved {
    double bytes, seconds, cpu_seconds;
};
/* Sequentially, from front to back and again. False after a sentence. */
bool fio_run(const struct fio_job *job, struct moved *out);
/* False after a sentence, once: there is no fio here. */
bool fio_there(void);

#endif
