/*
 * The rules for structs that cross the interface, each struct in each call that takes it: `size`,
 * excess, reserved fields, unknown flags; and lists of extras.
 */
#include "tests/client/fixture.h"

#include <string.h>

/* Larger than any struct of the interface, and all that a later version may use. */
enum { ROOM = 4096 };

union padded {
    uint32_t size;
    uint64_t align;
    uint8_t bytes[ROOM];
};

/* ---- what the caller passes in ----------------------------------------------------------- */

/* Runs one call with this struct and undoes what it did. */
typedef int in_call(struct fixture *f, const void *in);

static int in_lookup(struct fixture *f, const void *in)
{
    struct pfx_match m = {.size = sizeof m};
    int rc = pfx_lookup(f->c, in, &m);
    if (rc == 0)
        OK(pfx_release(f->c, m.lease));
    return rc;
}

/* Wait for the submitted call behind the completion that is set aside, and set that aside anew. */
static struct pfx_completion in_answer(struct fixture *f)
{
    struct pfx_completion aside = completion_of(f->c, FIX_TAG, 0), k = completion_of(f->c, 5, 0);
    OK(pfx_release(f->c, aside.lease));
    struct pfx_lookup_args again = lookup_args(&f->w, &f->tokens);
    OK(pfx_submit_lookup(f->c, &again, FIX_TAG));
    OK(pfx_ping(f->c));
    return k;
}

static int in_submit_lookup(struct fixture *f, const void *in)
{
    int rc = pfx_submit_lookup(f->c, in, 5);
    if (rc == 0)
        OK(pfx_release(f->c, in_answer(f).lease));
    return rc;
}

static int in_peek_full(struct fixture *f, const void *in)
{
    struct pfx_peeked p = {.size = sizeof p};
    return pfx_peek_full(f->c, in, &p);
}

static int in_insert(struct fixture *f, const void *in)
{
    struct pfx_insert_result r = {.size = sizeof r};
    return pfx_insert(f->c, f->lease.lease, in, NULL, &r);
}

static int in_submit_insert(struct fixture *f, const void *in)
{
    int rc = pfx_submit_insert(f->c, f->lease.lease, in, 5);
    if (rc == 0)
        in_answer(f);
    return rc;
}

static int in_space_open(struct fixture *f, const void *in)
{
    pfx_space s;
    int rc = pfx_space_open(f->c, in, &s);
    if (rc == 0)
        OK(pfx_space_close(f->c, s));
    return rc;
}

static int in_submit_space_open(struct fixture *f, const void *in)
{
    int rc = pfx_submit_space_open(f->c, in, 5);
    if (rc == 0)
        OK(pfx_space_close(f->c, in_answer(f).space));
    return rc;
}

static int in_open(struct fixture *f, const void *in)
{
    pfx *c = f->c; /* anything but NULL */
    int rc = pfx_open(in, &c);
    ck_assert((c != NULL) == (rc == 0));
    pfx_close(c);
    return rc;
}

static int in_layout(struct fixture *f, const void *in)
{
    struct pfx_options o = worker_options(&f->h);
    o.layout = in;
    return in_open(f, &o);
}

static const uint32_t in_tokens[] = {'a', 'a', 'a', 'a', 'b', 'b', 'b', 'b', 'c'};

enum in_kind { IN_LOOKUP, IN_INSERT, IN_SPACE, IN_OPTIONS, IN_LAYOUT };

static const struct input {
    const char *name;
    enum in_kind kind;
    in_call *call;
} inputs[] = {
    {"pfx_lookup", IN_LOOKUP, in_lookup},
    {"pfx_submit_lookup", IN_LOOKUP, in_submit_lookup},
    {"pfx_peek_full", IN_LOOKUP, in_peek_full},
    {"pfx_insert", IN_INSERT, in_insert},
    {"pfx_submit_insert", IN_INSERT, in_submit_insert},
    {"pfx_space_open", IN_SPACE, in_space_open},
    {"pfx_submit_space_open", IN_SPACE, in_submit_space_open},
    {"pfx_open", IN_OPTIONS, in_open},
    {"pfx_open with a layout", IN_LAYOUT, in_layout},
};

/* A struct that the call accepts; returns the size that this library knows. */
static size_t in_right(const struct fixture *f, enum in_kind kind, union padded *to)
{
    struct pfx_lookup_args l = {.size = sizeof l, .tokens = in_tokens, .n_tokens = 9};
    struct pfx_insert_args i = {.size = sizeof i, .tokens = in_tokens, .n_written = 9};
    struct pfx_space_desc s = {.size = sizeof s, .tenant = "other", .tenant_len = 5};
    struct pfx_options o = worker_options(&f->h);
    struct pfx_layout y = pfx_geometry(f->c)->layout;
    const struct {
        const void *at;
        size_t size;
    } all[] = {[IN_LOOKUP] = {&l, sizeof l},
               [IN_INSERT] = {&i, sizeof i},
               [IN_SPACE] = {&s, sizeof s},
               [IN_OPTIONS] = {&o, sizeof o},
               [IN_LAYOUT] = {&y, sizeof y}};
    memset(to, 0, sizeof *to);
    memcpy(to, all[kind].at, all[kind].size);
    return all[kind].size;
}

/* The call must refuse this struct. */
static void in_refused(struct fixture *f, const struct input *in, const union padded *arg)
{
    struct still before = still_begin(&f->w);
    status_is(in->call(f, arg), PFX_EINVAL, in->name);
    still_end(&f->w, &before, in->name);
}

START_TEST(input_sizes)
{
    struct fixture f;
    fixture_open(&f);
    const struct input *in = &inputs[_i];
    union padded arg;
    size_t known = in_right(&f, in->kind, &arg);
    status_is(in->call(&f, &arg), 0, in->name);
    const size_t wrong[] = {0, 1, 4, known / 2, known - 8, known - 1, UINT32_MAX};
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        arg.size = (uint32_t)wrong[i];
        in_refused(&f, in, &arg);
    }
    const size_t larger[] = {known + 1, known + 4, known + 8, 1000, ROOM};
    for (size_t i = 0; i < LENGTH(larger); i++) {
        arg.size = (uint32_t)larger[i]; /* from a later version, its new fields 0 */
        status_is(in->call(&f, &arg), 0, in->name);
        const size_t places[] = {known, (known + larger[i]) / 2, larger[i] - 1};
        for (size_t k = 0; k < LENGTH(places); k++) {
            arg.bytes[places[k]] = 1;
            in_refused(&f, in, &arg);
            arg.bytes[places[k]] = 0;
        }
        arg.bytes[larger[i] % ROOM] = larger[i] < ROOM; /* behind it: none of our business */
        status_is(in->call(&f, &arg), 0, in->name);
        in_right(&f, in->kind, &arg);
    }
    fixture_close(&f);
}
END_TEST

/* Every bit of a flags field that is not one of the call's; every bit of a reserved one. */
static void in_bits(struct fixture *f, const struct input *in, size_t offset, uint32_t allowed)
{
    union padded arg;
    for (int bit = 0; bit < 32; bit++) {
        uint32_t value = 1u << bit;
        in_right(f, in->kind, &arg);
        memcpy(arg.bytes + offset, &value, 4);
        if (!(value & allowed))
            in_refused(f, in, &arg);
    }
    uint32_t all = UINT32_MAX;
    memcpy(arg.bytes + offset, &all, 4);
    in_refused(f, in, &arg);
}

START_TEST(input_flags_and_reserved_fields)
{
    struct fixture f;
    fixture_open(&f);
    const struct input *in = &inputs[_i];
    switch (in->kind) {
    case IN_LOOKUP:
        in_bits(&f, in, offsetof(struct pfx_lookup_args, flags),
                PFX_FETCH | PFX_NO_MATCH | PFX_NO_TAIL | PFX_QUIET);
        break;
    case IN_INSERT:
        in_bits(&f, in, offsetof(struct pfx_insert_args, flags), PFX_FINAL);
        break;
    case IN_OPTIONS:
        in_bits(&f, in, offsetof(struct pfx_options, reserved), 0);
        break;
    case IN_LAYOUT:
        in_bits(&f, in, offsetof(struct pfx_layout, reserved), 0);
        break;
    case IN_SPACE: { /* it has none of either; its tenant has a length */
        struct pfx_space_desc d = {.size = sizeof d, .tenant = f.tokens.at};
        const uint32_t wrong[] = {256, 257, 1u << 31, UINT32_MAX};
        union padded arg;
        for (size_t i = 0; i < LENGTH(wrong); i++) {
            d.tenant_len = wrong[i];
            memset(&arg, 0, sizeof arg);
            memcpy(&arg, &d, sizeof d);
            in_refused(&f, in, &arg);
        }
        d.tenant_len = 255;
        memcpy(&arg, &d, sizeof d);
        status_is(in->call(&f, &arg), 0, in->name);
        break;
    }
    }
    fixture_close(&f);
}
END_TEST

/* ---- extras ------------------------------------------------------------------------------ */

enum { MANY = 4 };
static const struct extras_row {
    const char *what;
    int want;
    size_t n;
    struct pfx_extra at[MANY];
} extras_rows[] = {
    {"none", 0, 0, {{0}}},
    {"one", 0, 1, {{.at = 0, .len = 9}}},
    {"side by side", 0, 2, {{.at = 0, .len = 4}, {.at = 4, .len = 1}}},
    {"beyond the tokens", 0, 2, {{.at = 5, .len = 3}, {.at = 9, .len = 100}}},
    {"far beyond", 0, 1, {{.at = 1ull << 40, .len = 1}}},
    {"to the very end", 0, 1, {{.at = UINT64_MAX - 1, .len = 1}}},
    {"empty", PFX_EINVAL, 1, {{.at = 2, .len = 0}}},
    {"the second empty", PFX_EINVAL, 2, {{.at = 2, .len = 2}, {.at = 6, .len = 0}}},
    {"an empty one beyond the tokens", PFX_EINVAL, 2, {{.at = 2, .len = 2}, {.at = 600, .len = 0}}},
    {"overlapping by one", PFX_EINVAL, 2, {{.at = 2, .len = 3}, {.at = 4, .len = 2}}},
    {"the same twice", PFX_EINVAL, 2, {{.at = 2, .len = 3}, {.at = 2, .len = 3}}},
    {"one inside another", PFX_EINVAL, 2, {{.at = 0, .len = 9}, {.at = 3, .len = 1}}},
    {"descending", PFX_EINVAL, 2, {{.at = 6, .len = 1}, {.at = 2, .len = 1}}},
    {"descending beyond the tokens", PFX_EINVAL, 2, {{.at = 60, .len = 1}, {.at = 20, .len = 1}}},
    {"the last descends",
     PFX_EINVAL,
     3,
     {{.at = 1, .len = 1}, {.at = 5, .len = 2}, {.at = 4, .len = 1}}},
    {"the end overflows", PFX_EINVAL, 1, {{.at = 1, .len = UINT64_MAX}}},
    {"the end is 2^64", PFX_EINVAL, 1, {{.at = UINT64_MAX, .len = 1}}},
    {"the end overflows far out", PFX_EINVAL, 1, {{.at = 1ull << 63, .len = 1ull << 63}}},
    {"overflow hides descent",
     PFX_EINVAL,
     2,
     {{.at = 8, .len = UINT64_MAX - 4}, {.at = 5, .len = 1}}},
};

static void extras_give(union padded *arg, enum in_kind kind, const struct pfx_extra *at, size_t n)
{
    size_t offset = kind == IN_LOOKUP ? offsetof(struct pfx_lookup_args, extras)
                                      : offsetof(struct pfx_insert_args, extras);
    size_t count = kind == IN_LOOKUP ? offsetof(struct pfx_lookup_args, n_extras)
                                     : offsetof(struct pfx_insert_args, n_extras);
    memcpy(arg->bytes + offset, &at, sizeof at);
    memcpy(arg->bytes + count, &n, sizeof n);
}

START_TEST(input_extras)
{
    struct fixture f;
    fixture_open(&f);
    for (size_t i = 0; i < LENGTH(extras_rows); i++) {
        const struct extras_row *row = &extras_rows[i];
        for (const struct input *in = inputs; in->kind <= IN_INSERT; in++) {
            union padded arg;
            in_right(&f, in->kind, &arg);
            extras_give(&arg, in->kind, row->at, row->n);
            if (row->want == 0 && in->kind == IN_LOOKUP)
                status_is(in->call(&f, &arg), 0, row->what);
            else if (row->want)
                in_refused(&f, in, &arg);
        }
    }
    for (const struct input *in = inputs; in->kind <= IN_INSERT; in++) {
        union padded arg;
        in_right(&f, in->kind, &arg);
        extras_give(&arg, in->kind, NULL, 1); /* a number and no list */
        in_refused(&f, in, &arg);
    }
    fixture_close(&f);
}
END_TEST

/* ---- what the library fills -------------------------------------------------------------- */

typedef int out_call(struct fixture *f, void *out);

static int out_lookup(struct fixture *f, void *out)
{
    struct pfx_lookup_args args = lookup_args(&f->w, &f->tokens);
    int rc = pfx_lookup(f->c, &args, out);
    if (rc == 0)
        OK(pfx_release(f->c, ((struct pfx_match *)out)->lease));
    return rc;
}

static int out_fetch(struct fixture *f, void *out)
{
    return pfx_fetch(f->c, f->lease.lease, out);
}

static int out_insert(struct fixture *f, void *out)
{
    struct pfx_insert_args args = {
        .size = sizeof args, .tokens = f->tokens.at, .n_written = f->tokens.n};
    return pfx_insert(f->c, f->lease.lease, &args, NULL, out);
}

static int out_peek(struct fixture *f, void *out)
{
    struct pfx_lookup_args args = lookup_args(&f->w, &f->tokens);
    return pfx_peek_full(f->c, &args, out);
}

static int out_evict(struct fixture *f, void *out)
{
    return pfx_evict(f->c, 0, out);
}

static int out_spill(struct fixture *f, void *out)
{
    return pfx_snapshot_spill(f->c, 0, out);
}

static int out_view(struct fixture *f, void *out)
{
    return pfx_pool_view(f->c, 0, out);
}

static int out_stats(struct fixture *f, void *out)
{
    return pfx_stats(f->c, out);
}

static const struct output {
    const char *name;
    size_t known;
    int want; /* of a right call */
    out_call *call;
} outputs[] = {
    {"pfx_lookup", sizeof(struct pfx_match), 0, out_lookup},
    {"pfx_fetch", sizeof(struct pfx_match), 0, out_fetch},
    {"pfx_insert", sizeof(struct pfx_insert_result), 0, out_insert},
    {"pfx_peek_full", sizeof(struct pfx_peeked), 0, out_peek},
    {"pfx_evict", sizeof(struct pfx_evicted), 0, out_evict},
    {"pfx_snapshot_spill", sizeof(struct pfx_spilled), PFX_ENOENT, out_spill},
    {"pfx_pool_view", sizeof(struct pfx_pool_view), 0, out_view},
    {"pfx_stats", sizeof(struct pfx_stats), 0, out_stats},
};

/* pfx_stats has 64 bits for its size, all others 32. */
static void out_size(const struct output *o, union padded *out, uint64_t size)
{
    memset(out, 0xa5, sizeof *out);
    if (o->call == out_stats)
        out->align = size;
    else
        out->size = (uint32_t)size;
}

START_TEST(output_sizes)
{
    struct fixture f;
    fixture_open(&f);
    const struct output *o = &outputs[_i];
    union padded out, before;
    const size_t wrong[] = {0, 1, 4, o->known / 2, o->known - 1};
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        out_size(o, &out, wrong[i]);
        before = out;
        REFUSED(&f.w, PFX_EINVAL, o->call(&f, &out));
        ck_assert_mem_eq(&out, &before, sizeof out);
    }
    REFUSED(&f.w, PFX_EINVAL, o->call(&f, NULL));
    const size_t right[] = {o->known, o->known + 1, o->known + 64, ROOM, UINT32_MAX};
    for (size_t i = 0; i < LENGTH(right); i++) {
        out_size(o, &out, right[i]);
        before = out;
        status_is(o->call(&f, &out), o->want, o->name);
        if (o->want) { /* nothing is changed, results included */
            ck_assert_mem_eq(&out, &before, sizeof out);
            continue;
        }
        uint64_t size = o->call == out_stats ? out.align : out.size;
        ck_assert_msg(size == o->known, "%s says that %d bytes are filled", o->name, (int)size);
        ck_assert_mem_eq(out.bytes + o->known, before.bytes + o->known, ROOM - o->known);
    }
    fixture_close(&f);
}
END_TEST

/* The three sizes of a completion, in each element of the array. */
START_TEST(output_completion_sizes)
{
    struct fixture f;
    fixture_open(&f);
    static struct pfx_completion k[3];
    uint32_t *const sizes[] = {&k[0].size, &k[0].match.size, &k[0].insert.size,
                               &k[2].size, &k[2].match.size, &k[2].insert.size};
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        for (int n = 0; n < 3; n++)
            k[n] = completion_empty();
        uint32_t known = *sizes[i];
        const uint32_t wrong[] = {0, 1, known - 1};
        for (size_t j = 0; j < LENGTH(wrong); j++) {
            *sizes[i] = wrong[j];
            REFUSED(&f.w, PFX_EINVAL, pfx_wait(f.c, k, sizeof *k, 3, 0));
        }
    }
    fixture_close(&f); /* which finds the completion that was set aside */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("structs");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, input_sizes, 0, LENGTH(inputs));
    tcase_add_loop_test(t, input_flags_and_reserved_fields, 0, LENGTH(inputs));
    tcase_add_test(t, input_extras);
    tcase_add_loop_test(t, output_sizes, 0, LENGTH(outputs));
    tcase_add_test(t, output_completion_sizes);
    suite_add_tcase(s, t);
    return s;
}
