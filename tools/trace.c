#include "tools/replay.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- workloads ------------------------------------------------------------------------- */

static void *room_for(void *array, size_t n, size_t *room, size_t bytes)
{
    if (n < *room)
        return array;
    *room = *room ? *room * 2 : 1024;
    array = reallocarray(array, *room, bytes);
    if (!array) {
        tool_fail(0, "out of memory.");
        exit(EXIT_DAEMON);
    }
    return array;
}

static struct prompt *next_prompt(struct workload *w)
{
    size_t before = w->room_prompts;
    w->prompt = room_for(w->prompt, w->n_prompts, &w->room_prompts, sizeof *w->prompt);
    if (w->room_prompts != before) /* so that the one begun starts empty */
        memset(w->prompt + before, 0, (w->room_prompts - before) * sizeof *w->prompt);
    return &w->prompt[w->n_prompts];
}

void workload_segment(struct workload *w, uint64_t seed, uint32_t n_tokens)
{
    struct prompt *p = next_prompt(w);
    if (p->n_segments == 0)
        p->first = w->n_segments;
    w->segment = room_for(w->segment, w->n_segments, &w->room_segments, sizeof *w->segment);
    w->segment[w->n_segments++] = (struct segment){seed, n_tokens};
    p->n_segments++;
    p->n_tokens += n_tokens;
}

void workload_prompt(struct workload *w, uint32_t stem)
{
    struct prompt *p = next_prompt(w);
    p->stem = stem;
    if (p->n_tokens > w->longest)
        w->longest = p->n_tokens;
    w->n_prompts++;
}

void workload_free(struct workload *w)
{
    free(w->prompt);
    free(w->segment);
    *w = (struct workload){0};
}

/* ---- the open trace format -------------------------------------------------------------- */

struct place_in_file {
    const char *path;
    uint64_t line;
};

static bool bad_line(const struct place_in_file *at, const char *what)
{
    tool_fail(0, "%s line %llu: %s.", at->path, (unsigned long long)at->line, what);
    return false;
}

/* The fields of a request, checked against each other. */
static bool take_request(struct workload *w, const json_t *o, bool pad_last,
                         const struct place_in_file *at)
{
    const json_t *length = json_object_get(o, "input_length");
    const json_t *ids = json_object_get(o, "hash_ids");
    if (!json_is_object(o))
        return bad_line(at, "it is no JSON object");
    if (!json_is_number(json_object_get(o, "timestamp")))
        return bad_line(at, "\"timestamp\" is no number");
    if (!json_is_integer(length) || json_integer_value(length) < 1)
        return bad_line(at, "\"input_length\" is no positive whole number");
    if (!json_is_array(ids))
        return bad_line(at, "\"hash_ids\" is no list");
    json_int_t tokens = json_integer_value(length);
    size_t n = json_array_size(ids);
    if (tokens > INT32_MAX - TRACE_BLOCK)
        return bad_line(at, "\"input_length\" is longer than 2^31 tokens");
    if (n != (size_t)(tokens + TRACE_BLOCK - 1) / TRACE_BLOCK)
        return bad_line(at, "\"hash_ids\" has not one id for every 512 tokens of \"input_length\"");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return bad_line(at, "a hash id is no whole number");
        uint32_t left = (uint32_t)tokens - (uint32_t)i * TRACE_BLOCK;
        workload_segment(w, (uint64_t)json_integer_value(id),
                         pad_last || left > TRACE_BLOCK ? TRACE_BLOCK : left);
    }
    workload_prompt(w, (uint32_t)tokens / TRACE_BLOCK * TRACE_BLOCK);
    return true;
}

static bool take_line(struct workload *w, const char *text, size_t n, bool pad_last,
                      const struct place_in_file *at)
{
    if (strspn(text, " \t\r\n") == n)
        return true;
    json_error_t error;
    json_t *o = json_loadb(text, n, 0, &error);
    if (!o)
        return bad_line(at, error.text);
    bool good = take_request(w, o, pad_last, at);
    json_decref(o);
    return good;
}

int trace_load(struct workload *w, const char *path, uint64_t limit, bool pad_last)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return tool_fail(EXIT_USAGE, "cannot read the trace %s: %s.", path, strerror(errno));
    struct stat st;
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(f);
        return tool_fail(EXIT_USAGE, "the trace %s is a directory; --trace takes a file.", path);
    }
    struct place_in_file at = {path, 1};
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool good = true;
    for (; good && w->n_prompts < limit && (n = getline(&line, &room, f)) > 0; at.line++)
        good = take_line(w, line, (size_t)n, pad_last, &at);
    if (good && ferror(f))
        good = bad_line(&at, strerror(errno));
    free(line);
    fclose(f);
    if (good && w->n_prompts == 0) {
        tool_fail(0, "the trace %s has no request.", path);
        good = false;
    }
    return good ? EXIT_GOOD : EXIT_USAGE;
}
