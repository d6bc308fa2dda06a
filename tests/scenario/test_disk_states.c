/* States on disk over restarts: whole and exact, or a miss; with their prefix, space and kind, or
 * not at all. */
#include "tests/scenario/disk_site.h"

#include "daemon/disk.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void states_init(struct site *s)
{
    site_init(s, "4M");
    site_set(s, "--blocks", "32");
    site_set(s, "--snapshots", "4");
    site_set(s, "--snapshot-bytes", "192");
    site_set(s, "--snapshot-swap", "512K");
}

static const char *states_file(const struct site *s)
{
    static char name[96];
    snprintf(name, sizeof name, "%s/snapshots.prefixd", s->dir[0]);
    return name;
}

static uint64_t states_file_bytes(const struct site *s)
{
    struct stat st;
    ck_assert_int_eq(stat(states_file(s), &st), 0);
    return (uint64_t)st.st_size;
}

/* Fetched, and right; its slot and page are free for others afterwards. */
static void comes_back(struct site *s, const char *text, uint64_t session, uint32_t depth)
{
    found(&s->w, text, session, 0, depth);
    struct held h = ask(&s->w, text, session, PFX_FETCH);
    offers(&s->w, &h, text, depth, 0);
    bytes_match(&s->w, &h, text);
    drop(&s->w, &h);
}

/* Each kind, and a depth inside a block. */
START_TEST(b29_states_survive_kill_9)
{
    struct site s;
    states_init(&s);
    site_start(&s);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0);
    keep_on_disk(&s, "ccccdddd", 7, PFX_EXACT, 3);
    keep_on_disk(&s, "eeeeffffgggg", 10, PFX_TAIL, 5);
    keep_on_disk(&s, "eeeeffffgggg", 4, PFX_TAIL_SIBLING, 5);
    keep_on_disk(&s, "hhhh", 3, PFX_EXACT, 0); /* hangs on the root */
    states_are(&s.w, 0, 5);
    for (int life = 0; life < 2; life++) {
        site_again(&s);
        states_are(&s.w, 0, 5);
        comes_back(&s, "aaaabbbbx", 0, 8);
        comes_back(&s, "ccccddddx", 9, 7);
        comes_back(&s, "eeeeffffggggx", 5, 10);
        comes_back(&s, "eeeeffffggggx", 6, 4); /* another session: the sibling alone */
        comes_back(&s, "hhhhx", 0, 3);
        states_are(&s.w, 4, 1); /* four slots */
        while (counters(&s.w).snapshots)
            ck_assert_uint_eq(spill(&s.w, 0).dropped, 0);
        states_are(&s.w, 0, 5);
    }
    slots_all_there(&s.w);
    site_deinit(&s);
}
END_TEST

/* What was not spilled is not there, what was fetched back counts as resident alone. */
START_TEST(b29_only_what_is_on_disk_survives)
{
    struct site s;
    states_init(&s);
    site_start(&s);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0);
    keep(&s.w, "ccccdddd", 8, PFX_EXACT, 0);
    states_are(&s.w, 1, 1);
    site_again(&s);
    states_are(&s.w, 0, 1);
    found(&s.w, "ccccddddx", 0, 0, 0);
    comes_back(&s, "aaaabbbbx", 0, 8);
    site_deinit(&s);
}
END_TEST

/* A state of KV that was on disk long before it. */
START_TEST(b29_attached_after_the_prefix_was_written)
{
    struct site s;
    states_init(&s);
    site_start(&s);
    put_on_disk(&s, "aaaabbbbcccc");
    keep_on_disk(&s, "aaaabbbbcccc", 12, PFX_EXACT, 0);
    ck_assert_uint_eq(counters(&s.w).disk_written_blocks, 3);
    (void)evict_pages(&s, 32);
    comes_back(&s, "aaaabbbbccccx", 0, 12);
    site_again(&s);
    site_deinit(&s);
}
END_TEST

/* How long a disk takes for gigabytes is no question of the test. */
static void worker_patient(struct site *s)
{
    worker_close(&s->w);
    worker_open_timeout(&s->w, &s->h, 60000 * SLOW);
}

/* More bytes than 32 bits count, and than the kernel moves by one call. */
START_TEST(b45_states_of_3_gib_on_disk)
{
    struct site s;
    states_init(&s);
    site_set(&s, "--snapshots", "1");
    site_set(&s, "--snapshot-bytes", "3G");
    site_set(&s, "--snapshot-swap", "3200M"); /* room for one */
    site_start(&s);
    EVENTUALLY(60000 * SLOW,
               states_file_bytes(&s) >= swap_file_bytes(3ull << 30, 1, state_body_room(4), 1));
    sleep_us(100000); /* until that has been seen */
    worker_patient(&s);
    keep_on_disk(&s, "aaaabbbb", 7, PFX_EXACT, 0);
    site_again(&s);
    worker_patient(&s);
    comes_back(&s, "aaaabbbbx", 0, 7);
    site_deinit(&s);
}
END_TEST

/* ---- spaces and kinds ---------------------------------------------------------------------- */

static const struct {
    const char *tenant;
    uint64_t adapter;
} spaces[] = {{"", 0}, {"a", 0}, {"b", 0}, {"a", 1}, {"a", 2}};
enum { SPACES = 5 };

static void enter(struct site *s, int i)
{
    use_space(s, spaces[i].tenant, spaces[i].adapter, 0, 0);
    s->w.weights = 0;
}

/* state_word mixes in the space's number, which is another one in another life: this makes up for
 * it. */
static void with_weights(struct site *s, int i)
{
    s->w.weights = (uint64_t)(i + 1) * 100000 - s->w.space * 131;
}

static void states_but(struct site *s, int gone)
{
    while (counters(&s->w).snapshots)
        spill(&s->w, 0);
    for (int i = SPACES; i-- > 0;) {
        enter(s, i);
        with_weights(s, i);
        struct pfx_snapshot_ref ref = found(&s->w, "aaaabbbbx", 1, 0, i == gone ? 0 : 8);
        ck_assert_int_eq(ref.tier_key != 0, i != gone);
        struct held h = ask(&s->w, "aaaabbbbx", 1, PFX_FETCH);
        offers(&s->w, &h, "aaaabbbbx", i == gone ? 0 : 8, 0);
        drop(&s->w, &h);
    }
}

/* Same tokens, same session, each with a state of its own, some tails: they never meet, and a flush
 * takes one space's away for good. */
START_TEST(b18_states_stay_apart_on_disk)
{
    struct site s;
    states_init(&s);
    site_set(&s, "--snapshots", "8");
    site_start(&s);
    for (int i = 0; i < SPACES; i++) {
        enter(&s, i);
        with_weights(&s, i);
        keep_on_disk(&s, "aaaabbbb", 8, i % 2 ? PFX_TAIL : PFX_EXACT, 1);
    }
    for (int life = 0; life < 3; life++) {
        site_again(&s);
        use_space(&s, "stranger", 0, 0, 0);
        found(&s.w, "aaaabbbbx", 1, 0, 0);
        states_but(&s, life < 2 ? -1 : 1);
        if (life == 1) {
            enter(&s, 1);
            ck_assert_int_eq(pfx_flush(s.w.c, s.w.space), 0);
            states_but(&s, 1);
        }
        while (counters(&s.w).snapshots)
            spill(&s.w, 0);
        states_are(&s.w, 0, life == 0 ? SPACES : SPACES - 1);
    }
    ck_assert_int_eq(pfx_flush(s.w.c, PFX_ALL_SPACES), 0);
    site_again(&s);
    states_are(&s.w, 0, 0);
    site_deinit(&s);
}
END_TEST

/* ---- prefixes ------------------------------------------------------------------------------ */

/* A state whose prefix is gone is a miss; a prefix whose states are gone is found as ever. */
START_TEST(e126_states_and_prefixes_on_disk)
{
    struct site s;
    states_init(&s);
    site_start(&s);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0);
    site_kill(&s);
    ck_assert_int_eq(unlink(_i ? states_file(&s) : site_file(&s, 0)), 0);
    site_start(&s);
    states_are(&s.w, 0, 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), _i ? 8 : 0);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0);
    site_again(&s);
    comes_back(&s, "aaaabbbbx", 0, 8);
    site_deinit(&s);
}
END_TEST

/* Its prefix leaves every tier, so does it, in this life and for the next. */
START_TEST(e126_prefix_leaves_all_tiers)
{
    struct site s;
    char budget[32];
    states_init(&s);
    snprintf(budget, sizeof budget, "%u", 300 * 1024);
    site_budget(&s, 0, budget);
    site_start(&s);
    uint32_t slots = pfx_geometry(s.w.c)->n_disk_blocks;
    ck_assert_uint_lt(slots, 60);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0);
    states_are(&s.w, 0, 1);
    for (uint32_t i = 0; i < slots + 40; i++) {
        struct seq q = {.n = 4, .at = {7000 + i, 1, 2, 3}};
        cache_seq(&s.w, &q, 0);
        all_written(&s);
    }
    ck_assert_uint_eq(findable(&s, "aaaabbbbx"), 0);
    states_are(&s.w, 0, 0);
    site_again(&s);
    states_are(&s.w, 0, 0);
    keep_on_disk(&s, "aaaabbbb", 8, PFX_EXACT, 0); /* nothing of the old one is in the way */
    comes_back(&s, "aaaabbbbx", 0, 8);
    site_deinit(&s);
}
END_TEST

/* ---- damage -------------------------------------------------------------------------------- */

/* A bit of the state that the lookup offers, flipped between two lives. */
static void damage(struct site *s, const uint8_t first[8], unsigned at_byte)
{
    static uint8_t bytes[600 * 1024];
    int fd = open(states_file(s), O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    uint8_t *at = memmem(bytes, (size_t)n, first, 8);
    ck_assert_ptr_nonnull(at);
    at[at_byte] ^= 4;
    ck_assert_int_eq(pwrite(fd, bytes, (size_t)n, 0), n);
    close(fd);
}

/* The first bytes of the state that is offered. */
static void first_bytes(struct site *s, const char *text, uint8_t first[8])
{
    struct held h = look(&s->w, text);
    ck_assert_uint_eq(h.match.snapshot.depth, h.match.matched_tokens);
    memcpy(first, pfx_slot_address(s->w.c, 0, h.match.snapshot.slot), 8);
    drop(&s->w, &h);
}

/* A flipped bit in the deeper of two states: that one is a miss once, the other is offered. KV is
 * not concerned. */
START_TEST(b27_damaged_state_on_disk)
{
    uint8_t first[8];
    struct site s;
    states_init(&s);
    site_start(&s);
    keep_on_disk(&s, "aaaabbbb", 4, PFX_EXACT, 0);
    keep(&s.w, "aaaabbbb", 8, PFX_EXACT, 0);
    first_bytes(&s, "aaaabbbbx", first);
    spill(&s.w, 0);
    site_kill(&s);
    damage(&s, first, _i ? 190 : 0); /* its first part, or its last */
    site_start(&s);
    found(&s.w, "aaaabbbbx", 0, 0, 8);
    struct held h = ask(&s.w, "aaaabbbbx", 0, PFX_FETCH);
    ck_assert_uint_eq(h.match.matched_tokens, 8);
    ck_assert_uint_ne(h.match.snapshot.depth, 8);
    offers(&s.w, &h, "aaaabbbbx", h.match.snapshot.depth, h.match.snapshot.tier_depth);
    drop(&s.w, &h);
    states_are(&s.w, h.match.snapshot.depth != 0, h.match.snapshot.depth == 0);
    h = ask(&s.w, "aaaabbbbx", 0, PFX_FETCH);
    offers(&s.w, &h, "aaaabbbbx", 4, 0);
    bytes_match(&s.w, &h, "aaaabbbbx");
    drop(&s.w, &h);
    ck_assert_uint_eq(counters(&s.w).disk_errors, 1); /* tried once */
    slots_all_there(&s.w);
    site_deinit(&s);
}
END_TEST

/* A slot on disk that was found bad holds nothing any more: where all others are full, the coldest
 * state goes for a warmer one, as where the budget ends. */
START_TEST(bad_slot_of_states_is_no_room)
{
    uint8_t first[8];
    char room[32];
    struct site s;
    states_init(&s);
    snprintf(room, sizeof room, "%llu",
             (unsigned long long)swap_file_bytes(192, 1, state_body_room(4), 3));
    site_set(&s, "--snapshot-swap", room);
    site_start(&s);
    keep_on_disk(&s, "aaaa", 4, PFX_EXACT, 0);
    keep_on_disk(&s, "bbbb", 4, PFX_EXACT, 0);
    keep(&s.w, "cccc", 4, PFX_EXACT, 0);
    first_bytes(&s, "ccccx", first);
    ck_assert_uint_eq(spill(&s.w, 0).dropped, 0);
    states_are(&s.w, 0, 3);
    site_kill(&s);
    damage(&s, first, 0);
    site_start(&s);
    struct held h = ask(&s.w, "ccccx", 0, PFX_FETCH);
    ck_assert_uint_eq(h.match.snapshot.depth, 0);
    drop(&s.w, &h);
    states_are(&s.w, 0, 2);
    keep_on_disk(&s, "dddd", 4, PFX_EXACT, 0);
    states_are(&s.w, 0, 2);
    found(&s.w, "aaaax", 0, 0, 0);
    comes_back(&s, "bbbbx", 0, 4);
    comes_back(&s, "ddddx", 0, 4);
    slots_all_there(&s.w);
    site_deinit(&s);
}
END_TEST

/* ---- killed at random points --------------------------------------------------------------- */

/* Texts of two blocks; states at 4, 6 (a tail) and 8. */
enum { TEXTS = 6, LIVES = 60 };

static struct seq text_of(unsigned i)
{
    struct seq q = {.n = 9};
    for (unsigned k = 0; k < 8; k++)
        q.at[k] = k < 4 ? 10 + i / 2 : 20 + i % 2;
    return q;
}

struct life {
    struct site s;
    struct rng rng;
    unsigned spills, fetches, found, exact;
};

/* One turn of an engine; the first error ends it. */
static int turn(struct life *l)
{
    static const uint32_t depths[] = {4, 6, 8};
    struct worker *w = &l->s.w;
    struct seq q = text_of(rng_below(&l->rng, TEXTS));
    struct held h = {.session = 1 + rng_below(&l->rng, 2), .match = {.size = sizeof h.match}};
    uint32_t slot, depth = depths[rng_below(&l->rng, 3)];
    struct pfx_lookup_args args = lookup_args(w, &q);
    args.session = h.session;
    args.flags = PFX_FETCH;
    int rc = pfx_lookup(w->c, &args, &h.match);
    if (rc)
        return rc;
    h.lease = h.match.lease;
    h.n_table = h.n_published = h.match.n_blocks;
    for (uint32_t i = 0; i < h.n_table; i++)
        h.table[i] = h.match.blocks[i];
    REQUIRE_EQ(h.match.n_resident, h.match.n_blocks);
    if (h.match.snapshot.depth)
        offers_seq(w, &h, &q, h.match.snapshot.depth, h.match.snapshot.tier_depth);
    l->fetches += h.match.snapshot.depth != 0;
    if ((rc = pfx_reserve(w->c, h.lease, 2 - h.n_table, h.table + h.n_table)))
        return rc;
    h.n_table = 2;
    q.n = 8;
    fill(w, &h, &q);
    struct pfx_insert_args in = {.size = sizeof in, .tokens = q.at, .n_written = 8};
    struct pfx_insert_result out = {.size = sizeof out};
    if ((rc = pfx_insert(w->c, h.lease, &in, NULL, &out)))
        return rc;
    rc = pfx_snapshot_reserve(w->c, h.lease, &slot);
    if (rc == 0) {
        bool tail = depth == 6;
        state_fill(w, slot, &(struct state){&q, depth, tail ? h.session : 0});
        rc = pfx_snapshot_insert(w->c, h.lease, slot, depth, tail ? PFX_TAIL : PFX_EXACT);
    }
    return rc ? rc : pfx_release(w->c, h.lease);
}

static int act(struct life *l)
{
    struct pfx_spilled out = {.size = sizeof out};
    struct pfx_evicted gone = {.size = sizeof gone};
    uint32_t dice = rng_below(&l->rng, 20);
    int rc = dice < 11   ? turn(l)
             : dice < 18 ? pfx_snapshot_spill(l->s.w.c, 0, &out)
             : dice < 19 ? pfx_evict(l->s.w.c, 4, &gone)
                         : pfx_snapshot_evict(l->s.w.c);
    l->spills += rc == 0 && out.key;
    REQUIRE_MSG(rc >= 0 || rc == PFX_EGONE || rc == PFX_ENOENT || rc == PFX_ENOSPC, "%s",
                pfx_strerror(rc));
    return rc;
}

static void *kill_it(void *arg)
{
    struct life *l = arg;
    sleep_us(rng_below(&(struct rng){now_us()}, 20000 * (SLOW > 1 ? 2 : 1)));
    kill(l->s.h.pid, SIGKILL);
    return NULL;
}

/* An entry at this depth alone. */
static uint64_t key_at(struct life *l, unsigned i, uint32_t depth, uint64_t session, bool bring)
{
    struct seq q = text_of(i);
    struct pfx_lookup_args args = lookup_args(&l->s.w, &q);
    args.session = session;
    args.flags = PFX_QUIET | (bring ? PFX_FETCH : 0);
    args.max_match = depth == 4 ? 4 : 8;
    args.snapshot_multiple = depth;
    struct held h = look_args(&l->s.w, &args);
    uint64_t key = h.match.snapshot.tier_key;
    if (h.match.snapshot.depth) {
        offers_seq(&l->s.w, &h, &q, h.match.snapshot.depth, h.match.snapshot.tier_depth);
        l->exact++;
    }
    drop(&l->s.w, &h);
    return key;
}

/* Every entry that the daemon counts can be found, and holds its own bytes. */
static void judge(struct life *l)
{
    uint64_t seen[4 * TEXTS];
    unsigned n = 0;
    l->s.w.unchecked = true;
    for (int bring = 0; bring < 2; bring++) {
        for (unsigned i = 0; i < TEXTS; i++)
            for (unsigned k = 0; k < 4; k++) {
                static const uint32_t depth[] = {4, 8, 6, 6};
                uint64_t key = key_at(l, i, depth[k], k < 2 ? 0 : k - 1, bring);
                bool known = key == 0;
                for (unsigned j = 0; j < n; j++)
                    known |= seen[j] == key;
                if (!known && !bring)
                    seen[n++] = key;
            }
        if (!bring)
            REQUIRE_EQ(counters(&l->s.w).snapshots_tiered, n);
    }
    l->found += n;
    l->s.w.unchecked = false;
    step(&l->s.w);
    slots_all_there(&l->s.w);
}

START_TEST(b36_killed_while_states_move)
{
    static struct life it;
    struct life *l = &it;
    *l = (struct life){.rng = rng_seeded("states")};
    states_init(&l->s);
    site_start(&l->s);
    for (unsigned i = 0; i < LIVES; i++) {
        pthread_t killer;
        l->s.w.unchecked = true;
        ck_assert_int_eq(pthread_create(&killer, NULL, kill_it, l), 0);
        while (act(l) != PFX_EGONE)
            ;
        pthread_join(killer, NULL);
        site_kill(&l->s);
        site_start(&l->s);
        judge(l);
    }
    fprintf(stderr, "%u spills, %u offers; after %d kills %u found, %u exact\n", l->spills,
            l->fetches, LIVES, l->found, l->exact);
    ck_assert_uint_gt(l->found, LIVES);
    ck_assert_uint_gt(l->exact, LIVES);
    site_deinit(&l->s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("disk_states");
    TCase *t = tcase_create("all");
    setenv("PREFIXD_TEST_DISK", "1", 1); /* a match may have blocks on disk only: see worker.c */
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, b29_states_survive_kill_9);
    tcase_add_test(t, b29_only_what_is_on_disk_survives);
    tcase_add_test(t, b29_attached_after_the_prefix_was_written);
    tcase_add_test(t, b18_states_stay_apart_on_disk);
    tcase_add_loop_test(t, e126_states_and_prefixes_on_disk, 0, 2);
    tcase_add_test(t, e126_prefix_leaves_all_tiers);
    tcase_add_loop_test(t, b27_damaged_state_on_disk, 0, 2);
    tcase_add_test(t, bad_slot_of_states_is_no_room);
    tcase_add_test(t, b36_killed_while_states_move);
    suite_add_tcase(s, t);
    t = tcase_create("large");
    tcase_set_timeout(t, 120 * SLOW);
    tcase_add_test(t, b45_states_of_3_gib_on_disk);
    suite_add_tcase(s, t);
    return s;
}
