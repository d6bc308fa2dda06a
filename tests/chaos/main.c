/* chaos: options, rounds, and what came of them. */
#include "tests/chaos/chaos.h"
#include "tools/tool.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUND_MS = 10000, JUDGE_MS = 1500 * SLOW, SECONDS_MAX = 24 * 3600 };

static struct {
    uint64_t seconds, seed, workers, round;
    const char *seed_text, *trace, *device, *swap;
    bool json, keep, schedule, help;
} opt = {.seconds = 600, .workers = 12, .round = UINT64_MAX};

static const struct option_row options[] = {
    {"seconds", "N", OPTION_NUMBER, &opt.seconds, SECONDS_MAX, "how long (default: 600)"},
    {"seed", "N", OPTION_TEXT, &opt.seed_text, 0,
     "of all that is drawn (default: $PFX_SEED, or another one each time)"},
    {"workers", "N", OPTION_NUMBER, &opt.workers, SEATS_MAX, "worker processes (default: 12)"},
    {"round", "N", OPTION_NUMBER, &opt.round, SECONDS_MAX / (ROUND_MS / 1000) - 1,
     "play this one alone, 10 seconds of it, from 0"},
    {"trace", "FILE", OPTION_TEXT, &opt.trace, 0,
     "requests (default: the public traces by turns where they are, else chats)"},
    {"device", "host|cuda|mixed", OPTION_TEXT, &opt.device, 0,
     "where pages live; cuda: on GPUs that are not real (default: mixed, every third round)"},
    {"swap", "DIR|off", OPTION_TEXT, &opt.swap, 0,
     "where swap files go (default: beside the socket)"},
    {"keep", NULL, OPTION_FLAG, &opt.keep, 0, "leave log and files of a round with findings"},
    {"schedule", NULL, OPTION_FLAG, &opt.schedule, 0, "print what would happen, and stop"},
    {"json", NULL, OPTION_FLAG, &opt.json, 0, "print JSON"},
    {"help", NULL, OPTION_FLAG, &opt.help, 0, "this text"},
    {0},
};

int tool_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("chaos: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

static void help(void)
{
    printf(
        "usage: chaos [OPTION]...\n\n"
        "Workers replay traces against a daemon of their own while processes are killed and\n"
        "stopped, the daemon is restarted, and disks and GPUs fail; every block and state that is\n"
        "found is compared, and at the end everything must have come back.\n\nOptions:\n");
    options_help(options);
    printf("\nExit codes: 0 good, 1 something is wrong (stderr says what), 2 wrong usage.\n");
}

/* ---- what there is to replay --------------------------------------------------------------- */

enum { TRACES = 2, PROMPTS = 4000, CHATS = 1000 };

static int load(struct workload work[TRACES], unsigned *n)
{
    static const char *const names[TRACES] = {"conversation_trace.jsonl", "synthetic_trace.jsonl"};
    *n = 1;
    if (opt.trace)
        return trace_load(&work[0], opt.trace, UINT64_MAX, false);
    for (unsigned i = 0; i < TRACES; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s", CHAOS_TRACES, names[i]);
        if (access(path, R_OK) != 0) {
            chat_make(&work[0], CHATS);
            return EXIT_GOOD;
        }
        int code = trace_load(&work[i], path, PROMPTS, false);
        if (code != EXIT_GOOD)
            return code;
    }
    *n = TRACES;
    return EXIT_GOOD;
}

/* ---- options ----------------------------------------------------------------------------------
 */

static int check_options(int n, char **arg)
{
    const char *seed = opt.seed_text ? opt.seed_text : getenv("PFX_SEED");
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    if (opt.workers == 0 || opt.seconds == 0)
        return tool_fail(EXIT_USAGE, "--workers and --seconds must be at least 1.");
    if (opt.schedule && opt.json)
        return tool_fail(EXIT_USAGE, "--schedule prints text; leave --json out.");
    if (opt.device && strcmp(opt.device, "host") != 0 && strcmp(opt.device, "cuda") != 0 &&
        strcmp(opt.device, "mixed") != 0)
        return tool_fail(EXIT_USAGE, "--device takes host, cuda or mixed, not '%s'.", opt.device);
    if (opt.swap && strcmp(opt.swap, "off") != 0 && (strlen(opt.swap) > 60 || opt.swap[0] != '/'))
        return tool_fail(EXIT_USAGE, "--swap takes off or an absolute path of at most 60 bytes.");
    if (opt.swap && opt.swap[0] == '/' && access(opt.swap, W_OK | X_OK) != 0)
        return tool_fail(EXIT_USAGE, "--swap %s: %s; name a directory that this user may write.",
                         opt.swap, strerror(errno));
    opt.seed = mix64(clock_ns() + (uint64_t)getpid()) % 1000000;
    if (seed && !parse_number(seed, 0, &opt.seed))
        return tool_fail(EXIT_USAGE, "a seed is a whole number, not '%s'.", seed);
    return EXIT_GOOD;
}

static int device_of(void)
{
    return !opt.device || !strcmp(opt.device, "mixed") ? DEVICE_MIXED
           : !strcmp(opt.device, "cuda")               ? DEVICE_CUDA_ONLY
                                                       : DEVICE_HOST_ONLY;
}

/* The driver that is not real lies in the build, beside this program. */
static void find_fake_cuda(void)
{
    char path[4200], self[4000] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(path, sizeof path, "%s/fake_cuda", self);
    setenv("CHAOS_FAKE_CUDA", path, 0);
    setenv("FAKE_CUDA_DEVICES", "4", 1);
}

/* ---- results ------------------------------------------------------------------------------------
 */

static uint64_t wrongs(const struct totals *t)
{
    return t->findings + t->tally.corrupt_blocks + t->tally.corrupt_states + t->leaked_blocks +
           t->leaked_slots + t->leaked_disk_slots + t->leaked_fds + t->tally.deadline_misses +
           t->tally.wrong_answers;
}

struct row {
    const char *name;
    uint64_t value;
};

static void show(const struct totals *t)
{
    const struct row rows[] = {
        {"seed", opt.seed},
        {"seconds", opt.seconds},
        {"rounds", t->rounds},
        {"kills", t->kills},
        {"stops", t->stops},
        {"closes", t->tally.cut_short + t->tally.exits},
        {"restarts", t->restarts},
        {"flushes", t->flushes},
        {"disk_faults", t->disk_faults},
        {"device_faults", t->device_faults + t->tally.device_faults},
        {"audits", t->audits},
        {"attached", t->tally.attached},
        {"requests", t->tally.requests},
        {"calls", t->tally.calls},
        {"hits", t->tally.hits},
        {"disk_hits", t->tally.disk_hits},
        {"handed_over", t->tally.handed_over},
        {"cancels", t->tally.cancels},
        {"slowest_call_us", t->tally.worst_ns / 1000},
        {"machine_late_ms", t->late_ns / 1000000},
        {"disk_late_ms", t->disk_late_ns / 1000000},
        {"verified_blocks", t->tally.verified_blocks},
        {"verified_states", t->tally.verified_states},
        {"wrong_answers", t->tally.wrong_answers},
        {"corrupt_states", t->tally.corrupt_states},
        {"leaked_disk_slots", t->leaked_disk_slots},
        {"leaked_descriptors", t->leaked_fds},
        {"findings", t->findings},
        {"corrupt_blocks", t->tally.corrupt_blocks},
        {"leaked_blocks", t->leaked_blocks},
        {"leaked_slots", t->leaked_slots},
        {"deadline_misses", t->tally.deadline_misses},
    };
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!opt.json)
            printf("%-20s %12llu\n", rows[i].name, (unsigned long long)rows[i].value);
        json_object_set_new(o, rows[i].name, json_integer((json_int_t)rows[i].value));
    }
    if (opt.json) {
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_decref(o);
}

/* ---- rounds
 * -------------------------------------------------------------------------------------- */

static void rounds(const struct workload *work, unsigned n_work, struct totals *t)
{
    uint64_t ms = opt.seconds * 1000, began = now_ms();
    unsigned n = (unsigned)((ms + ROUND_MS / 2) / ROUND_MS), first = 0;
    n = n ? n : 1;
    if (opt.round != UINT64_MAX) {
        ms = ROUND_MS;
        first = (unsigned)opt.round;
        n = first + 1;
    }
    for (unsigned i = first; i < n && !wrongs(t); i++) {
        /* What is left, in equal parts: a judge may take longer than was thought. */
        uint64_t left = ms - (now_ms() - began < ms ? now_ms() - began : ms);
        uint64_t planned = opt.schedule ? ms / (n - first) : left / (n - i);
        const struct workload *w = &work[i % n_work];
        bool disk = !opt.swap || strcmp(opt.swap, "off") != 0;
        struct plan p =
            plan_draw(opt.seed, i, (unsigned)opt.workers,
                      (uint32_t)(planned > 2 * JUDGE_MS ? planned - JUDGE_MS : JUDGE_MS),
                      device_of(), disk, w->n_prompts);
        if (opt.schedule) {
            struct schedule s = schedule_draw(&p);
            schedule_print(&p, &s);
            free(s.event);
            continue;
        }
        round_run(&p, w, disk ? opt.swap : NULL, opt.keep, t);
        fprintf(stderr,
                "chaos: round %u of %u (%s%s): %llu requests, %llu kills, %llu restarts so far\n",
                i + 1, n, p.cuda ? "cuda" : "host", p.paths ? ", disk" : "",
                (unsigned long long)t->tally.requests, (unsigned long long)t->kills,
                (unsigned long long)t->restarts);
    }
}

int main(int argc, char **argv)
{
    struct workload work[TRACES] = {0};
    struct totals t = {0};
    unsigned n_work = 0;
    int n;
    (void)argc;
    if (!options_parse(options, NULL, argv + 1, &n))
        return EXIT_USAGE;
    if (opt.help) {
        help();
        return EXIT_GOOD;
    }
    int code = check_options(n, argv + 1);
    if (code == EXIT_GOOD)
        code = load(work, &n_work);
    if (code != EXIT_GOOD)
        return code;
    fprintf(stderr, "chaos: PFX_SEED=%llu\n", (unsigned long long)opt.seed);
    find_fake_cuda();
    rounds(work, n_work, &t);
    for (unsigned i = 0; i < n_work; i++)
        workload_free(&work[i]);
    if (opt.schedule)
        return EXIT_GOOD;
    if (!wrongs(&t) && !t.tally.verified_blocks) { /* then zeros say nothing */
        fprintf(stderr, "chaos: nothing was found in the cache, so no block was compared\n");
        t.findings++;
    }
    show(&t);
    return wrongs(&t) ? EXIT_FINDING : EXIT_GOOD;
}
