/* copier_private.h - what the files of the copier share. */
#ifndef KERNELS_COPIER_PRIVATE_H
#define KERNELS_COPIER_PRIVATE_H

#include "kernels/block_copy.h"
#include "kernels/copier.h"

struct copier_ops {
    /* Parts are checked, and neighbours are one. -EIO: nothing is under way. */
    int (*begin)(struct copier *c, unsigned buffer, enum copier_way way,
                 const struct copier_part *parts, unsigned n);
    int (*poll)(struct copier *c, unsigned buffer);
    /* False: something may still be under way. */
    bool (*free)(struct copier *c);
};

enum copier_state { BUFFER_FREE, BUFFER_TAKEN, BUFFER_MOVING };

struct copier {
    const struct copier_ops *ops;
    struct copier_config config;
    uint8_t *buffers;
    uint64_t buffer_pitch; /* whole pages */
    enum copier_state state[COPIER_BUFFERS];
    struct copier_part parts[COPIER_PARTS];  /* of the begin under way */
    struct copier_part sorted[COPIER_PARTS]; /* and by where they go to */
    char why[256];
};

/* Bytes of the host mapping. */
uint64_t copier_room(const struct copier *c);
void copier_say(struct copier *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A host pool: what is to be moved yet. */
struct copier_host {
    struct copier copier; /* must be first */
    struct host_move {
        struct copier_part *parts;
        unsigned n, at;
        uint64_t done; /* of part `at` */
        enum copier_way way;
    } move[COPIER_BUFFERS];
};

/* A GPU. Each buffer has a stream and an event; its list for the kernel, behind all buffers; and in
 * device memory the same room once more, with the list behind it (stage). */
struct copier_cuda {
    struct copier copier; /* must be first */
    const struct cuda_driver *cu;
    bool entered; /* the context could be used */
    bool stuck;   /* where config.stuck is, if nobody gave one */
    void *stream[COPIER_BUFFERS], *event[COPIER_BUFFERS];
    void *module;
    void *kernel; /* NULL: there is none, the copy engine does all */
    uint64_t stage;
    bool pinned;
    uint64_t engine_from; /* mean bytes of a part, from which on */
    unsigned engine_few;  /* and as few parts as that: by the copy engine */
    uint64_t to[COPIER_PARTS], from[COPIER_PARTS];
    size_t sizes[COPIER_PARTS];
};

enum { COPIER_LIST = COPIER_PARTS * sizeof(struct copy_piece) };

extern const struct copier_ops copier_host_ops, copier_cuda_ops;

/* Until then (clock_ns) at most: what has not come back by then sets *stuck. */
void copier_cuda_wait(struct copier_cuda *c, uint64_t until_ns);

/* The buffers are there; a line in note. 0 or -EIO, a sentence in c->why. */
int copier_cuda_start(struct copier_cuda *c, char *note, size_t n_note);
/* 0 or -EIO, a sentence in c->why. */
int copier_by_engine(struct copier_cuda *c, unsigned buffer, enum copier_way way,
                     const struct copier_part *parts, unsigned n);
int copier_by_kernel(struct copier_cuda *c, unsigned buffer, enum copier_way way,
                     const struct copier_part *parts, unsigned n);
int copier_checked(struct copier_cuda *c, int result, const char *what);
#define COPIER_CALL(c, name, ...) copier_checked((c), (c)->cu->name(__VA_ARGS__), #name)

/* Find engine_from and engine_few, and say so in note. 0 or -EIO. */
int copier_measure(struct copier_cuda *c, char *note, size_t n_note);

#endif
