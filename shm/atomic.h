/*
 * atomic.h - the only place where an access to shared memory is spelled.
 *
 * Every word that two processes may touch at once goes through one of these. Plain
 * dereferences of shared memory are for bytes that cannot change any more (a record between
 * its peek and its drop is copied out first, see ring.h).
 */
#ifndef SHM_ATOMIC_H
#define SHM_ATOMIC_H

#include <stdint.h>

#define shm_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define shm_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define shm_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define shm_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/* Loads before it are not moved past loads after it (the reader's half of a version check). */
static inline void shm_read_fence(void)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* Stores after it are not seen before stores before it (the writer's half of a version check). */
static inline void shm_write_fence(void)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Orders a store before a later load of another word: the only thing that makes the wake-up
 * edges (ring.h, DOZE-1 and DOZE-2) work. Acquire and release do not. */
static inline void shm_full_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

#endif
