/*
 * Trace files of prefixctl replay: any text. What is taken is whole: every prompt has its segments,
 * and they add up. What is not is refused with one sentence.
 */
#include "shm/layout.h"
#include "tests/fuzz/fuzz.h"
#include "tools/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char fuzz_name[] = "trace";

enum { LIMIT = 64 };

static unsigned sentences;

/* In the place of prefixctl's own. */
int tool_fail(int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    REQUIRE(n > 0);
    sentences++;
    return code;
}

static void check(const struct workload *w)
{
    size_t next = 0;
    uint32_t longest = 0;
    REQUIRE(w->n_prompts >= 1 && w->n_prompts <= LIMIT);
    for (size_t i = 0; i < w->n_prompts; i++) {
        const struct prompt *p = &w->prompt[i];
        uint64_t tokens = 0;
        REQUIRE_EQ(p->first, next);
        next += p->n_segments;
        REQUIRE(next <= w->n_segments && p->n_segments > 0);
        for (size_t k = p->first; k < next; k++) {
            REQUIRE(w->segment[k].n_tokens >= 1 && w->segment[k].n_tokens <= TRACE_BLOCK);
            tokens += w->segment[k].n_tokens;
        }
        REQUIRE_EQ(tokens, p->n_tokens);
        REQUIRE(p->stem <= p->n_tokens && p->stem % TRACE_BLOCK == 0);
        longest = p->n_tokens > longest ? p->n_tokens : longest;
    }
    REQUIRE_EQ(longest, w->longest);
    REQUIRE_EQ(next, w->n_segments);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    struct workload w = {0};
    char path[64];
    int fd = memfd_create("trace", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    sentences = 0;
    int code = trace_load(&w, path, LIMIT, n && bytes[n - 1] == ' ');
    REQUIRE(code == EXIT_GOOD || code == EXIT_USAGE);
    REQUIRE_EQ(sentences, code == EXIT_USAGE);
    if (code == EXIT_GOOD)
        check(&w);
    workload_free(&w);
    close(fd);
}

static const char *const words[] = {
    "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
    "{\"timestamp\": 27.5, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [1]}\n",
    "{\"timestamp\":1,\"input_length\":1537,\"output_length\":1,\"hash_ids\":[0,9,8,7]}\n",
    "\"timestamp\":",
    "\"input_length\":",
    "\"hash_ids\":",
    "2147483647",
    "-1",
    "1e400",
    "9223372036854775807",
    "9223372036854775808",
    "[[[[[[[[",
    "]]]]",
    "\\u0000",
    "\"\\ud800\"",
    "\n",
    "\r\n",
    "{}",
    "[]",
    "null",
    "\xff\xfe",
    " \t",
    "[1,2]",
    "700",
    "511",
    "513"};

enum { WORDS = sizeof words / sizeof words[0] };

size_t fuzz_seed(unsigned i, uint8_t *to)
{
    size_t n = 0;
    if (i >= 12)
        return 0;
    for (unsigned k = 0; k <= i; k++) {
        const char *word = words[i < 3 ? i : (k * 7 + i) % (i < 6 ? 3 : WORDS)];
        memcpy(to + n, word, strlen(word));
        n += strlen(word);
    }
    return n;
}

size_t fuzz_mutate(uint8_t *bytes, size_t n, struct rng *r)
{
    const char *word = words[rng_below(r, WORDS)];
    size_t length = strlen(word), at = rng_below(r, (uint32_t)n + 1);
    if (rng_below(r, 2) || n + length > FUZZ_INPUT)
        return mutate_bytes(bytes, n, r);
    memmove(bytes + at + length, bytes + at, n - at);
    memcpy(bytes + at, word, length);
    return n + length;
}
