/* sanitized.h - is this compiled with a sanitizer? gcc defines a macro, clang answers a question.
 */
#ifndef SHM_SANITIZED_H
#define SHM_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED_ADDRESS 1
#elif defined(__has_feature)
#define SANITIZED_ADDRESS __has_feature(address_sanitizer)
#else
#define SANITIZED_ADDRESS 0
#endif

#if defined(__SANITIZE_THREAD__)
#define SANITIZED_THREAD 1
#elif defined(__has_feature)
#define SANITIZED_THREAD __has_feature(thread_sanitizer)
#else
#define SANITIZED_THREAD 0
#endif

#endif
