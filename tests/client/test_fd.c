/* pfx_fd: readable when completions wait, or the daemon has died; an event loop needs nothing else.
 */
#include "tests/client/fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n = poll(&p, 1, ms);
    ck_assert_int_ge(n, 0);
    return n == 1;
}

/* Nothing waits: after pfx_wait has said so, the descriptor says so too. (A wake-up may still be on
 * its way for a completion that was taken before it came.) */
static void quiet(pfx *c, int fd)
{
    struct pfx_completion k = completion_empty();
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(pfx_wait(c, &k, sizeof k, 1, 0), 0);
        if (!readable(fd, 5))
            return;
    }
    ck_abort_msg("the descriptor stays readable though nothing waits");
}

static struct pfx_completion take_by_fd(pfx *c, int fd, uint64_t tag)
{
    struct pfx_completion k = completion_empty();
    do
        ck_assert_msg(readable(fd, 5000 * SLOW), "tag %d: the descriptor said nothing", (int)tag);
    while (pfx_wait(c, &k, sizeof k, 1, 0) == 0);
    ck_assert_uint_eq(k.tag, tag);
    OK(k.status);
    return k;
}

START_TEST(readable_when_a_completion_waits)
{
    struct fixture f;
    fixture_open(&f);
    struct pfx_completion aside = completion_of(f.c, FIX_TAG, 0);
    struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
    int fd = pfx_fd(f.c);
    ck_assert_int_ge(fd, 0);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    quiet(f.c, fd);
    for (uint64_t tag = 1; tag <= 300; tag++) {
        ck_assert_int_eq(pfx_fd(f.c), fd); /* always the same */
        OK(pfx_submit_lookup(f.c, &args, tag));
        struct pfx_completion k = take_by_fd(f.c, fd, tag);
        OK(pfx_release(f.c, k.lease));
        if (tag % 30 == 0)
            quiet(f.c, fd);
    }
    OK(pfx_release(f.c, aside.lease));
    OK(pfx_submit_lookup(f.c, &args, FIX_TAG));
    fixture_close(&f);
}
END_TEST

/* A completion that a synchronous call set aside is announced, and stays so until it is taken. */
START_TEST(readable_while_set_aside)
{
    struct fixture f;
    fixture_open(&f); /* with one set aside before the descriptor was asked for */
    int fd = pfx_fd(f.c);
    ck_assert(readable(fd, 0));
    struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
    for (uint64_t tag = 1; tag <= 50; tag++) {
        OK(pfx_submit_lookup(f.c, &args, tag));
        OK(pfx_ping(f.c));
        ck_assert(readable(fd, 0));
    }
    struct pfx_completion aside = take_by_fd(f.c, fd, FIX_TAG);
    OK(pfx_release(f.c, aside.lease));
    for (uint64_t tag = 1; tag <= 50; tag++) {
        ck_assert(readable(fd, 0)); /* level-triggered: until the last one */
        OK(pfx_release(f.c, take_by_fd(f.c, fd, tag).lease));
    }
    quiet(f.c, fd);
    OK(pfx_submit_lookup(f.c, &args, FIX_TAG));
    OK(pfx_ping(f.c));
    fixture_close(&f);
}
END_TEST

/* Not while a call is under way and unanswered; then soon. */
START_TEST(not_readable_before_the_answer)
{
    struct fixture f;
    fixture_open(&f);
    int fd = pfx_fd(f.c);
    OK(pfx_release(f.c, take_by_fd(f.c, fd, FIX_TAG).lease));
    struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
    quiet(f.c, fd);
    host_pause(&f.h);
    OK(pfx_submit_lookup(f.c, &args, FIX_TAG));
    OK(pfx_submit_lookup(f.c, &args, 2));
    quiet(f.c, fd);
    OK(pfx_cancel(f.c, 2));
    quiet(f.c, fd);
    host_resume(&f.h);
    ck_assert(readable(fd, 5000 * SLOW));
    fixture_close(&f);
}
END_TEST

/* ---- an event loop ----------------------------------------------------------------------- */

enum { WORKERS = 3, REQUESTS = 400 };

struct engine {
    pfx *c;
    int fd;
    uint32_t done, step;
    uint64_t lease;
    uint32_t tokens[64];
};

/* One request after another: lookup, reserve, insert, release, each submitted when the one before
 * has completed; the tag says which. */
static void engine_next(struct engine *e, const struct pfx_completion *k)
{
    struct pfx_lookup_args look = {.size = sizeof look, .tokens = e->tokens, .n_tokens = 64};
    struct pfx_insert_args in = {.size = sizeof in, .tokens = e->tokens, .n_written = 64};
    if (k) {
        OK(k->status);
        ck_assert_uint_eq(k->tag, e->step);
        e->step = (e->step + 1) % 4;
    }
    switch (e->step) {
    case 0:
        if (k && ++e->done == REQUESTS)
            return;
        sequence(e->tokens, 64, e->done % 7);
        OK(pfx_submit_lookup(e->c, &look, 0));
        break;
    case 1:
        e->lease = k->lease;
        OK(pfx_submit_reserve(e->c, e->lease, 16 - k->match.n_blocks, 1));
        break;
    case 2:
        OK(pfx_submit_insert(e->c, e->lease, &in, 2));
        break;
    case 3:
        OK(pfx_submit_release(e->c, e->lease, 3));
        break;
    }
}

START_TEST(event_loop_of_three_connections)
{
    struct host h;
    struct engine e[WORKERS] = {{0}};
    HOST_START(&h, "--blocks", "200", "--block-tokens", "4", "--block-bytes", "64");
    int loop = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < WORKERS; i++) {
        e[i].c = connect_with(&h, (struct pfx_options){.spin_us = i ? 1 : 50});
        e[i].fd = pfx_fd(e[i].c);
        struct epoll_event want = {.events = EPOLLIN, .data.u32 = i};
        ck_assert_int_eq(epoll_ctl(loop, EPOLL_CTL_ADD, e[i].fd, &want), 0);
        engine_next(&e[i], NULL);
    }
    unsigned empty = 0, taken = 0;
    while (taken < WORKERS * REQUESTS * 4) {
        struct epoll_event got;
        int n = epoll_wait(loop, &got, 1, 5000 * SLOW);
        ck_assert_msg(n == 1, "no descriptor is readable after %u completions", taken);
        struct engine *x = &e[got.data.u32];
        struct pfx_completion k = completion_empty();
        if (pfx_wait(x->c, &k, sizeof k, 1, 0) == 1) {
            taken++;
            engine_next(x, &k);
        } else {
            empty++;
        }
    }
    ck_assert_uint_le(empty, taken); /* it does not burn the processor */
    for (int i = 0; i < WORKERS; i++) {
        quiet(e[i].c, e[i].fd);
        pfx_close(e[i].c);
        ck_assert_int_eq(fcntl(e[i].fd, F_GETFD), -1); /* the library's, and closed by it */
    }
    close(loop);
    audit_clean(&h);
    host_stop(&h);
}
END_TEST

START_TEST(readable_at_the_death)
{
    struct fixture f;
    fixture_open(&f);
    int fd = pfx_fd(f.c);
    OK(pfx_release(f.c, take_by_fd(f.c, fd, FIX_TAG).lease));
    struct pfx_lookup_args args = lookup_args(&f.w, &f.tokens);
    quiet(f.c, fd);
    host_pause(&f.h);
    OK(pfx_submit_lookup(f.c, &args, 1));
    quiet(f.c, fd);
    host_kill(&f.h);
    struct pfx_completion k = completion_empty();
    ck_assert(readable(fd, 100 * SLOW));
    ck_assert_int_eq(pfx_wait(f.c, &k, sizeof k, 1, 0), 1);
    ck_assert_int_eq(k.status, PFX_EGONE);
    ck_assert(readable(fd, 100 * SLOW)); /* pfx_wait has more to say */
    ck_assert_int_eq(pfx_wait(f.c, &k, sizeof k, 1, 0), PFX_EGONE);
    worker_close(&f.w);
    host_again(&f.h, NULL);
    host_stop(&f.h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fd");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, readable_when_a_completion_waits);
    tcase_add_test(t, readable_while_set_aside);
    tcase_add_test(t, not_readable_before_the_answer);
    tcase_add_test(t, event_loop_of_three_connections);
    tcase_add_test(t, readable_at_the_death);
    suite_add_tcase(s, t);
    return s;
}
