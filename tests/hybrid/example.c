/*
 * example.c - a hybrid model served through prefixd, and what that saves.
 *
 *     prefixd $(hybrid_example --options) &
 *     hybrid_example [--socket PATH]            (default: $PREFIXD_SOCKET, see prefixd.h)
 *
 * It waits a few seconds for the daemon to be ready.
 * Some users ask questions behind one system prompt, each in a conversation of his own. Every
 * answer is computed twice, through the cache and without any, and the two must be equal to the
 * last bit. Run it again, or twice at once: the processes share what they compute.
 */
#include "tests/hybrid/engine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    WAIT_S = 5, /* for a daemon */
    BLOCK_TOKENS = 16,
    BLOCKS = 1024,
    SLOTS = 64,
    USERS = 3,
    TURNS = 3,
    SYSTEM = 640, /* tokens of the system prompt */
    QUESTION = 45,
    ANSWER = 12,
    CHUNK = 256,
    LONGEST = SYSTEM + TURNS * (QUESTION + ANSWER),
};

struct user {
    uint32_t n, tokens[LONGEST];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void say(struct user *u, uint32_t n, uint32_t *seed)
{
    while (n--) {
        *seed = *seed * 1664525u + 1013904223u;
        u->tokens[u->n++] = *seed >> 26; /* of 64 */
    }
}

static void print_options(FILE *to, const struct hybrid *m)
{
    fprintf(to,
            "--model hybrid --block-tokens %d --blocks %d --block-bytes %zu --snapshots %d "
            "--snapshot-bytes %zu\n",
            BLOCK_TOKENS, BLOCKS, hybrid_block_bytes(m), SLOTS, hybrid_state_bytes(m));
}

/* The prompt, up to its last logits. */
static double prefill_plain(const struct hybrid *m, const struct user *u)
{
    struct hybrid_text prompt = {.tokens = u->tokens};
    struct hybrid_answer first;
    double begin = now_s();
    if (!hybrid_plain(m, &prompt, u->n, 1, CHUNK, &first))
        abort();
    return now_s() - begin;
}

struct sums {
    uint32_t turns, equal;
    double cached, plain;
};

static void serve(struct engine *e, const struct hybrid *m, struct user *u, uint64_t session,
                  struct sums *sums)
{
    struct request rq = {.model = m,
                         .session = session,
                         .prompt = {.tokens = u->tokens},
                         .n_tokens = u->n,
                         .n_decode = ANSWER,
                         .chunk = CHUNK,
                         .stride = SYSTEM / 2, /* a state in the middle and at the end of what
                                                  all users share */
                         .save_before_end = true,
                         .finish = FINISH_TAIL,
                         .flags = PFX_FETCH};
    struct hybrid_answer cached, plain;
    double begin = now_s();
    struct turn *t = turn_begin(e, &rq);
    while (!turn_has_prompt(t))
        turn_step(t);
    double with = now_s() - begin;
    uint32_t restored = turn_restored(t);
    while (turn_step(t))
        ;
    turn_end(t, &cached);
    double without = prefill_plain(m, u);
    if (!hybrid_plain(m, &rq.prompt, u->n, ANSWER, u->n, &plain))
        abort();
    bool equal = hybrid_answers_equal(&cached, &plain);
    printf("user %" PRIu64 ": %4u tokens, state restored at %4u, prefill %6.2f ms, without cache "
           "%6.2f ms, answers %s\n",
           session, u->n, restored, with * 1e3, without * 1e3, equal ? "equal" : "DIFFER");
    sums->turns++;
    sums->equal += equal;
    sums->cached += with;
    sums->plain += without;
    memcpy(u->tokens + u->n, cached.tokens, sizeof cached.tokens[0] * ANSWER);
    u->n += ANSWER;
}

static struct sums converse(struct engine *e, const struct hybrid *m)
{
    static struct user users[USERS];
    struct sums sums = {.turns = 0};
    uint32_t seed = 1;
    say(&users[0], SYSTEM, &seed);
    for (int i = 1; i < USERS; i++)
        users[i] = users[0];
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < USERS; i++) {
            say(&users[i], QUESTION, &seed);
            serve(e, m, &users[i], (uint64_t)i + 1, &sums);
        }
    return sums;
}

/* The daemon may have been started a moment ago. */
static int attach(const struct pfx_options *options, pfx **c)
{
    double until = now_s() + WAIT_S;
    int rc;
    while ((rc = pfx_open(options, c)) == PFX_EGONE && now_s() < until)
        usleep(50000);
    return rc;
}

/* The one that was built with this program, or any. */
static void print_daemon(FILE *to, const char *self)
{
    const char *slash = strrchr(self, '/');
    char path[PATH_MAX];
    int n = slash ? snprintf(path, sizeof path, "%.*s/../daemon/prefixd", (int)(slash - self), self)
                  : 0;
    bool there = n > 0 && n < PATH_MAX && access(path, X_OK) == 0;
    fputs(there ? path : "prefixd", to);
}

static int run(const struct hybrid *m, const char *self, const char *socket)
{
    struct pfx_layout layout = engine_layout(m, "hybrid");
    struct pfx_options options = {
        .size = sizeof options, .socket_path = socket, .name = "hybrid", .layout = &layout};
    struct engine e = {.c = NULL};
    if (attach(&options, &e.c) < 0) {
        fprintf(stderr, "hybrid_example: %s\nIt needs a daemon started with\n    ", pfx_why(NULL));
        print_daemon(stderr, self);
        fputc(' ', stderr);
        print_options(stderr, m);
        return EXIT_FAILURE;
    }
    struct sums s = converse(&e, m);
    printf("\n%u of %u answers equal, to the last bit of the logits\n", s.equal, s.turns);
    printf("%" PRIu64 " of %" PRIu64 " prompt tokens not recomputed; prefill %.1f ms instead of "
           "%.1f ms\n",
           e.counts.restored_tokens, e.counts.prompt_tokens, s.cached * 1e3, s.plain * 1e3);
    printf("%" PRIu64 " states restored, %" PRIu64 " of them at a depth inside a block; %" PRIu64
           " filed\n",
           e.counts.restores, e.counts.unaligned, e.counts.saves);
    pfx_close(e.c);
    return s.equal == s.turns ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    bool options = argc == 2 && strcmp(argv[1], "--options") == 0;
    bool socket = argc == 3 && strcmp(argv[1], "--socket") == 0;
    bool help = argc == 2 && strcmp(argv[1], "--help") == 0;
    if (argc > 1 && !options && !socket) {
        fprintf(help ? stdout : stderr,
                "usage: hybrid_example [--socket PATH | --options | --help]\n"
                "  --options  print what its daemon is to be started with\n");
        return help ? EXIT_SUCCESS : 2;
    }
    struct hybrid *m = hybrid_new(1, BLOCK_TOKENS, false);
    if (!m)
        return EXIT_FAILURE;
    int status = EXIT_SUCCESS;
    if (options)
        print_options(stdout, m);
    else
        status = run(m, argv[0], socket ? argv[2] : NULL);
    hybrid_free(m);
    return status;
}
