/* Asynchronous calls: several lookups at once, one of them perhaps cancelled; a reserve; an insert
 * and a release that are submitted together. */
#include "tests/chaos/worker.h"

#include <poll.h>
#include <string.h>

enum { TAG_FLIGHT = 100, TAG_RESERVE = 200, TAG_INSERT, TAG_RELEASE };

static int wait_one(struct actor *w, struct pfx_completion *done)
{
    *done = (struct pfx_completion){.size = sizeof *done,
                                    .match = {.size = sizeof done->match},
                                    .insert = {.size = sizeof done->insert}};
    if (dice_one_in(&w->dice, 2)) {
        struct pollfd p = {.fd = pfx_fd(w->c), .events = POLLIN};
        uint64_t until = now_ms() + CALL_MS;
        int got = 0;
        while (got == 0 && now_ms() < until) {
            (void)poll(&p, 1, 100);
            got = pfx_wait(w->c, done, sizeof *done, 1, 0);
        }
        return got;
    }
    return pfx_wait(w->c, done, sizeof *done, 1, CALL_MS);
}

/* The next completion; false: there is none any more, or it does not come. */
static bool next(struct actor *w, struct pfx_completion *done)
{
    int rc = CALL(w, "pfx_wait", 0, wait_one(w, done));
    if (rc == 0) {
        wrong(w, "a completion did not come in %d ms", CALL_MS);
        w->gone = true;
    }
    return rc == 1;
}

/* A status as if the call had been synchronous. */
static int status_of(struct actor *w, const char *what, const struct pfx_completion *done,
                     uint32_t also)
{
    call_begin(w, what);
    return call_end(w, done->status, also);
}

/* ---- lookups ----------------------------------------------------------------------------- */

struct flight {
    struct hand *hand[HANDS];
    struct pfx_lookup_args args[HANDS];
    unsigned n, under_way;
};

static void submit(struct actor *w, struct flight *f, struct hand *h)
{
    request_draw(w, h);
    f->args[f->n] = request_lookup(w, h);
    if (CALL(w, "pfx_submit_lookup", ERROR(PFX_EAGAIN),
             pfx_submit_lookup(w->c, &f->args[f->n], TAG_FLIGHT + f->n)) < 0)
        return;
    f->hand[f->n++] = h;
    f->under_way++;
}

static void cancel(struct actor *w, struct flight *f)
{
    unsigned i = dice_below(&w->dice, f->n);
    if (CALL(w, "pfx_cancel", ERROR(PFX_ENOENT), pfx_cancel(w->c, TAG_FLIGHT + i)) == 0) {
        f->under_way--;
        tally_add(&w->seat->tally.cancels, 1);
    }
}

static void land(struct actor *w, struct flight *f, const struct pfx_completion *done)
{
    uint64_t i = done->tag - TAG_FLIGHT;
    if (i >= f->n) {
        wrong(w, "a completion has tag %llu", (unsigned long long)done->tag);
        return;
    }
    struct pfx_match m = done->match;
    if (status_of(w, "an asynchronous lookup", done, crowded(w)) == 0)
        request_matched(w, f->hand[i], &f->args[i], &m, f->hand[i]->version);
}

void flight_run(struct actor *w)
{
    struct flight f = {.n = 0};
    struct pfx_completion done;
    for (unsigned i = 0; i < HANDS && !w->gone; i++)
        if (!w->hand[i].lease)
            submit(w, &f, &w->hand[i]);
    if (f.n == 0 || w->gone)
        return;
    at_point(w, POINT_FETCH);
    at_point(w, POINT_FLIGHT);
    if (dice_one_in(&w->dice, 2) && !w->gone)
        cancel(w, &f);
    /* All are taken first: request_matched makes calls of its own. */
    struct pfx_completion landed[HANDS];
    unsigned n = 0;
    while (f.under_way && !w->gone && next(w, &done)) {
        landed[n++] = done;
        f.under_way--;
    }
    for (unsigned i = 0; i < n && !w->gone; i++)
        land(w, &f, &landed[i]);
}

/* ---- insert and release -------------------------------------------------------------------- */

void flight_end(struct actor *w, struct hand *h)
{
    struct pfx_completion done;
    uint32_t room = h->n_table * w->bt, whole = room < h->text.n ? room : h->text.n;
    struct pfx_insert_args args = {.size = sizeof args,
                                   .tokens = h->text.token,
                                   .n_written = whole,
                                   .extras = h->text.extra,
                                   .n_extras = h->text.n_extras};
    if (CALL(w, "pfx_submit_insert", 0, pfx_submit_insert(w->c, h->lease, &args, TAG_INSERT)) < 0 ||
        CALL(w, "pfx_submit_release", 0, pfx_submit_release(w->c, h->lease, TAG_RELEASE)) < 0)
        return;
    at_point(w, POINT_FLIGHT);
    for (unsigned i = 0; i < 2 && !w->gone; i++) {
        if (!next(w, &done))
            return;
        EXPECT(w, done.tag == (i ? TAG_RELEASE : TAG_INSERT), "completion %u has tag %llu", i,
               (unsigned long long)done.tag);
        int rc = status_of(w, i ? "an asynchronous release" : "an asynchronous insert", &done,
                           i ? 0 : stale_of(w, h));
        if (rc == 0 && i == 0)
            request_inserted(w, h, whole, 0, &done.insert);
    }
    if (!w->gone) {
        tally_add(&w->seat->tally.requests, 1);
        hand_clear(h);
    }
}
