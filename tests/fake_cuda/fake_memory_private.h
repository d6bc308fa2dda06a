/* fake_memory_private.h - what the files that hold device memory share (fake_memory.c has the
 * words). */
#ifndef TESTS_FAKE_MEMORY_PRIVATE_H
#define TESTS_FAKE_MEMORY_PRIVATE_H

#include "tests/fake_cuda/fake.h"

struct memory {
    TAILQ_ENTRY(memory) link;
    uint64_t handle; /* of cuMemCreate and imports */
    int fd, device;  /* physical */
    size_t bytes;
    unsigned handles, maps;
    bool legacy, foreign;
};
extern TAILQ_HEAD(memory_list, memory) memories;

enum kind { RESERVED, ALLOCATED, OPENED };

struct range {
    TAILQ_ENTRY(range) link;
    enum kind kind;
    uint8_t *at, *alias; /* alias: where the fake's own copies go */
    size_t bytes;
    struct memory *memory; /* NULL: nothing is mapped there */
    bool access;
    unsigned opens;
    int device;            /* visible: whose context opened or allocated it */
    uint64_t handle_of[3]; /* OPENED: device and inode of the memfd, and its length */
};
extern TAILQ_HEAD(range_list, range) ranges;

#define LOCKED(result)                                                                             \
    do {                                                                                           \
        int result_ = (result);                                                                    \
        pthread_mutex_unlock(&fake_lock);                                                          \
        return result_;                                                                            \
    } while (0)

/* Everything below is called with fake_lock held. */

void *fake_allocate(size_t n); /* zeroed */

/* memory_settle: it goes when neither a handle nor a mapping is left. */
int memory_new(int visible, size_t bytes, struct memory **out);
void memory_settle(struct memory *m);
struct memory *memory_of(uint64_t handle, const char *what);
bool memory_imported(const struct memory *m); /* by another process, through a legacy handle */

struct range *range_new(enum kind kind, size_t bytes);
void range_free(struct range *r);
struct range *range_of(uint64_t address, enum kind kind, const char *what); /* that begins there */
void range_map(struct range *r, struct memory *m);
void range_open(struct range *r);
void range_close(struct range *r); /* the addresses stay, without memory */

#endif
