/*
 * tokens.h - comparing tokens in shared memory that may change while they are read.
 *
 * The daemon may rewrite an extent under a reader. So the loads must be single machine loads
 * that the compiler can neither repeat, widen nor drop: on x86-64 vector loads in inline
 * assembly, elsewhere and under the thread sanitizer relaxed atomic ones. The result means
 * nothing until the node's version has been checked afterwards.
 */
#ifndef SHM_TOKENS_H
#define SHM_TOKENS_H

#include <stddef.h>
#include <stdint.h>

/* How many leading tokens are equal. `shared` may change meanwhile; `mine` may not. */
size_t tokens_match(const uint32_t *shared, const uint32_t *mine, size_t n);

/* The portable twin, which the tests hold against the one above. */
size_t tokens_match_atomic(const uint32_t *shared, const uint32_t *mine, size_t n);

/* Copy out of memory that may change (ids, tokens of the tree listing). */
void tokens_copy(uint32_t *to, const uint32_t *shared, size_t n);

/* The writer's half: inside a change of the node's version. */
void tokens_store(uint32_t *shared, const uint32_t *from, size_t n);

#endif
