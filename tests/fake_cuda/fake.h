/*
 * fake.h - a small libcuda.so.1 of our own, for machines without a GPU.
 *
 * Device memory is a memfd: another process that imports it maps the same pages, and it lives as
 * long as anybody has it, as the real one does. What the driver leaves undefined, or forgives, ends
 * the process here, with a sentence on stderr: a test that passes has done none of it.
 *
 *   fake_device.c   start, faults, devices, contexts       fake_stream.c   streams, events, order
 *   fake_memory.c   allocations, mappings, both exports    fake_copy.c     copies; no kernels
 *
 * What a machine is like comes from the environment:
 *
 *   FAKE_CUDA_DEVICES=N       GPUs; 2
 *   FAKE_CUDA_BYTES=N         memory of each, all processes of the machine together; without limit
 *   FAKE_CUDA_MACHINE=NAME    whose memory is counted together; the empty one
 *   FAKE_CUDA_VERSION=N       of the driver; 13000
 *   FAKE_CUDA_ATTRIBUTES=A=V,..   values of attributes
 *   FAKE_CUDA_MISSING=NAME,..     functions that it does not have
 *   FAKE_CUDA_FAIL=NAME:N:CODE,.. the Nth call of NAME returns CODE; N+: it and all later ones;
 *                                 * as NAME: any call
 *   FAKE_CUDA_DELAY_US=N      what is asynchronous begins up to that much later
 *   FAKE_CUDA_STUCK=N         the Nth copy or kernel of the process never ends; nor does the
 *                             process then, if it is the driver's to end it (exit)
 *   FAKE_CUDA_ROT=N           the Nth copy of the process has a wrong bit in its first byte
 *   FAKE_CUDA_PAGEABLE=1      copies may use host memory that is not pinned, and are waited for
 *                             then, as the real one does; else that is misuse
 *   FAKE_CUDA_TOUCH=0         this process cannot touch device memory by its address, as with a
 *                             real one; else tests read pages with the CPU
 *   FAKE_CUDA_LEAKS=1         what is left at exit is a fault: it ends with 86
 *   CUDA_VISIBLE_DEVICES      as the real one takes it
 */
#ifndef FAKE_CUDA_FAKE_H
#define FAKE_CUDA_FAKE_H

#include "kernels/cuda_driver.h"

#include <pthread.h>
#include <sys/queue.h>
#include <sys/types.h>

#define FAKE_API __attribute__((visibility("default")))

enum { FAKE_DEVICES_MAX = 16, FAKE_STREAMS_MAX = 640, FAKE_GRANULARITY = 2 << 20 };

/* Every function of the driver: fake_cuMemAlloc and so on. */
#define FAKE_DECLARE(name, version, needed, parameters) int fake_##name parameters;
CUDA_CALLS(FAKE_DECLARE)
#undef FAKE_DECLARE
#define FAKE_DECLARE_OLD(name, version, needed, parameters) int fake_##name##_v##version parameters;
CUDA_OLD_CALLS(FAKE_DECLARE_OLD)
#undef FAKE_DECLARE_OLD

/* ---- for tests: by dlsym in the library that is loaded ------------------------------------- */

/* In a child of a fork: forget what the parent had, as if by exec. */
FAKE_API void fake_cuda_forked(void);
/* As FAKE_CUDA_FAIL, from now on, counted anew; NULL: no more faults. */
FAKE_API void fake_cuda_fail(const char *faults);
/* What this process has: contexts retained, bytes imported or allocated and still mapped. */
struct fake_facts {
    unsigned initialised, contexts, mappings, handles, streams, events, pinned, modules;
};
FAKE_API struct fake_facts fake_cuda_facts(void);

/* ---- between the files ---------------------------------------------------------------------- */

extern pthread_mutex_t fake_lock; /* over everything; never held while something is awaited */

/* Misuse. */
_Noreturn void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Begin a call: initialised, not forked, and what FAKE_CUDA_FAIL says of it. */
int fake_enter(const char *name);
#define FAKE_ENTER()                                                                               \
    do {                                                                                           \
        int result_ = fake_enter(__func__ + sizeof "fake_" - 1);                                   \
        if (result_)                                                                               \
            return result_;                                                                        \
    } while (0)

int fake_physical(int device);          /* the GPU behind a visible device; -1: there is none */
int fake_visible(int physical);         /* and back */
int fake_current(const char *for_what); /* visible device of the context that is current, or die */
const char *fake_environment(const char *name, const char *otherwise);
const char *fake_machine(void);
void fake_uuid(int physical, uint8_t uuid[16]);

/* Memory of this process that copies may use: the CPU's own view of a device address, or the host
 * address itself if it is pinned. Dies if it is neither. */
void *fake_span(uint64_t address, size_t bytes, bool device, const char *what);
void *fake_span_if(uint64_t address, size_t bytes, bool device); /* NULL instead of dying */

void fake_memory_forked(void);
void fake_memory_facts(struct fake_facts *facts);
bool fake_memory_left(void); /* something that only this process could have freed */
/* What would go with a device's context: NULL, or what it is. */
const char *fake_memory_of_context(int device);
const char *fake_streams_of_context(int device);

/* What an operation reads or writes. */
struct fake_use {
    uint64_t address; /* as the caller names it, device or host */
    size_t bytes;
    bool write;
};

/* Run fn(arg) on the stream, after what is on it. It may use what `use` lists, and conflicts with
 * no operation that is not ordered before it, or the process dies. fn frees arg. */
int fake_submit(void *stream, const char *what, const struct fake_use *use, unsigned n,
                void (*fn)(void *arg), void *arg);
/* Until all that is on it is done; the host does not learn that. */
void fake_finish(void *stream);
/* Nothing that the host does not know to be over uses this memory, or the process dies. */
void fake_unused(uint64_t address, size_t bytes, const char *what);
bool fake_stuck(void); /* something is under way that never ends */
void fake_streams_forked(void);
void fake_streams_facts(struct fake_facts *facts);
void fake_kernels_facts(struct fake_facts *facts);

#endif
