/* prefixctl's small subcommands: help, wrong usage, no daemon, and what each shows and does. */
#include "tests/tools/run.h"
#include "tests/worker.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const commands[] = {"status", "workers", "leases", "tree", "audit",
                                       "evict",  "flush",   "replay", "bench"};
enum { COMMANDS = sizeof commands / sizeof commands[0] };
#define NOBODY "/tmp/prefixd-nobody-is-here"

/* ---- help, usage, no daemon ---------------------------------------------------------------------
 */

START_TEST(ctl_help)
{
    struct said s;
    RUN(&s, prefixctl_path(), "--help");
    ck_assert_int_eq(s.code, 0);
    for (int i = 0; i < COMMANDS; i++)
        ck_assert_msg(strstr(s.out, commands[i]) != NULL, "--help does not show %s", commands[i]);
    RUN(&s, prefixctl_path(), "-h");
    ck_assert_int_eq(s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.out, "replay"));
    RUN(&s, prefixctl_path(), "--version");
    ck_assert_int_eq(s.code, 0);
    ck_assert_int_eq(strncmp(s.out, "prefixctl ", 10), 0);
    for (int i = 0; i < COMMANDS; i++) {
        RUN(&s, prefixctl_path(), commands[i], "--help");
        ck_assert_msg(s.code == 0, "%s --help: exit %d", commands[i], s.code);
        ck_assert_str_eq(s.err, "");
        ck_assert_ptr_nonnull(strstr(s.out, commands[i]));
        ck_assert_ptr_nonnull(strstr(s.out, "--json"));
        ck_assert_ptr_nonnull(strstr(s.out, "--socket"));
    }
}
END_TEST

static const struct wrong {
    const char *words[5], *named;
} wrong[] = {
    {{"stats"}, "stats"},
    {{"--json"}, "--json"},
    {{"--json", "status"}, "options come after the command"},
    {{"status", "--nonsense"}, "--nonsense"},
    {{"status", "extra"}, "extra"},
    {{"workers", "extra"}, "extra"},
    {{"leases", "extra"}, "extra"},
    {{"tree", "extra"}, "extra"},
    {{"tree", "--depth", "deep"}, "--depth"},
    {{"tree", "--space"}, "--space"},
    {{"audit", "extra"}, "extra"},
    {{"evict"}, "number"},
    {{"evict", "some"}, "number"},
    {{"evict", "1", "2"}, "number"},
    {{"evict", "4294967296"}, "at most 4294967295"},
    {{"evict", "99999999999999999999"}, "at most 4294967295"},
    {{"evict", "--", "-1"}, "number"},
    {{"flush", "everything"}, "everything"},
    {{"flush", "--all", "--space", "3"}, "--all"},
    {{"flush", "--space", "x"}, "--space"},
    {{"flush", "--all", "--space", "0"}, "--all"},
    {{"flush", "--space", "18446744073709551615"}, "--space"},
    {{"bench", "ring", "--socket", NOBODY}, "--socket"},
    {{"replay", "--private", "--socket", NOBODY}, "--socket"},
    {{"replay", "--private", "--trace", "/etc"}, "directory"},
    {{"bench", "nonsense"}, "nonsense"},
    {{"replay", "file"}, "file"},
    {{"replay", "--workers", "0"}, "--workers"},
    {{"replay", "--workers", "1000"}, "--workers"},
    {{"replay", "--limit", "0"}, "--limit"},
    {{"replay", "--blocks", "64"}, "--private"},
    {{"replay", "--json=yes"}, "--json"},
};

START_TEST(ctl_wrong_usage)
{
    struct said s;
    const struct wrong *w = &wrong[_i];
    setenv("PREFIXD_SOCKET", NOBODY, 1);
    const char *words[6] = {0};
    for (int i = 0; i < 5; i++)
        words[i] = w->words[i];
    run_as(0, &s, prefixctl_path(), words);
    refused(&s, 2, w->named);
}
END_TEST

START_TEST(ctl_no_command)
{
    struct said s;
    const char *words[] = {NULL};
    run_as(0, &s, prefixctl_path(), words);
    refused(&s, 2, "--help");
}
END_TEST

/* A plain sentence that says where it looked and how to go on. */
static void nobody_there(const char *const *words)
{
    struct said s;
    run_as(0, &s, prefixctl_path(), words);
    refused(&s, 3, NOBODY);
    ck_assert_ptr_nonnull(strstr(s.err, "no daemon"));
    ck_assert_ptr_nonnull(strstr(s.err, "--socket"));
}

START_TEST(ctl_no_daemon)
{
    static const char *const words[][4] = {
        {"status"}, {"workers"},    {"leases"},           {"tree"}, {"audit"}, {"flush", "--all"},
        {"replay"}, {"evict", "3"}, {"status", "--json"},
    };
    setenv("PREFIXD_SOCKET", NOBODY, 1);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        nobody_there(words[i]);
    unsetenv("PREFIXD_SOCKET");
    nobody_there((const char *const[]){"status", "--socket", NOBODY, NULL});
    nobody_there((const char *const[]){"tree", "--socket=" NOBODY, NULL});
}
END_TEST

START_TEST(ctl_socket_too_long)
{
    struct said s;
    char path[200];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    RUN(&s, prefixctl_path(), "status", "--socket", path);
    refused(&s, 2, "longer");
    RUN(&s, prefixctl_path(), "status", "--socket", "");
    refused(&s, 2, "--socket");
}
END_TEST

/* ---- what each shows
 * ------------------------------------------------------------------------------ */

struct scene {
    struct host host;
    struct worker w;
    struct said s;
};

static void scene_begin(struct scene *s)
{
    host_small(&s->host, 16, 4);
    worker_open(&s->w, &s->host, "engine");
    cache(&s->w, "aaaabbbbcccc");
    cache(&s->w, "aaaabbbbdddd");
    cache_final(&s->w, "aaaabbbbddddee");
}

static void scene_end(struct scene *s)
{
    worker_close(&s->w);
    host_stop(&s->host);
}

static const char *const status_fields[] = {"lookups",
                                            "hits",
                                            "misses",
                                            "hit_tokens",
                                            "lookup_tokens",
                                            "inserted_blocks",
                                            "duplicate_blocks",
                                            "evicted_blocks",
                                            "blocks_free",
                                            "blocks_private",
                                            "blocks_pinned",
                                            "blocks_idle",
                                            "blocks_inflight",
                                            "disk_used",
                                            "disk_read_blocks",
                                            "disk_written_blocks",
                                            "disk_errors",
                                            "snapshots",
                                            "snapshots_tiered",
                                            "snapshot_hits",
                                            "snapshot_saves",
                                            "snapshot_evictions",
                                            "snapshot_spills",
                                            "snapshot_fetches",
                                            "snapshot_forgotten",
                                            "recompute_tokens",
                                            "nodes",
                                            "spaces",
                                            "leases",
                                            "workers",
                                            "workers_reaped",
                                            "disk_ready_blocks",
                                            "disk_scan_done",
                                            "uptime_s",
                                            "n_disk_blocks",
                                            "active"};

START_TEST(ctl_status)
{
    struct scene s;
    scene_begin(&s);
    struct held h = look(&s.w, "aaaabbbbx");
    ck_assert_int_eq(grab(&s.w, &h, 3), 0);
    CTL(&s.s, &s.host, "status", "--json");
    json_t *o = json_said(&s.s);
    for (size_t i = 0; i < sizeof status_fields / sizeof status_fields[0]; i++)
        ck_assert_msg(json_is_number(json_object_get(o, status_fields[i])), "no number \"%s\"",
                      status_fields[i]);
    ck_assert(json_is_true(json_object_get(o, "ready")));
    ck_assert_int_eq(number_of(o, "pid"), s.host.pid);
    char epoch[32];
    snprintf(epoch, sizeof epoch, "%016llx", (unsigned long long)pfx_geometry(s.w.c)->epoch);
    ck_assert_str_eq(text_of(o, "epoch"), epoch);
    ck_assert_int_eq(number_of(o, "n_blocks"), 16);
    ck_assert_int_eq(number_of(o, "block_tokens"), 4);
    ck_assert_int_eq(number_of(o, "block_bytes"), 64);
    ck_assert_int_eq(number_of(o, "n_devices"), 1);
    ck_assert_int_eq(number_of(o, "blocks_free"), 8);
    ck_assert_int_eq(number_of(o, "blocks_private"), 3);
    ck_assert_int_eq(number_of(o, "blocks_pinned"), 2);
    ck_assert_int_eq(number_of(o, "blocks_idle"), 3);
    ck_assert_int_eq(number_of(o, "leases"), 1);
    ck_assert_int_eq(number_of(o, "workers"), 1);
    ck_assert_int_eq(number_of(o, "hits"), 1);
    ck_assert_int_eq(number_of(o, "hit_tokens"), 8);
    json_decref(o);
    CTL(&s.s, &s.host, "status");
    ck_assert_int_eq(s.s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.s.out, "16 blocks of 4 tokens"));
    drop(&s.w, &h);
    scene_end(&s);
}
END_TEST

START_TEST(ctl_workers_and_leases)
{
    struct scene s;
    char id[32];
    scene_begin(&s);
    struct held h = look(&s.w, "aaaabbbbx");
    ck_assert_int_eq(grab(&s.w, &h, 3), 0);
    setenv("PREFIXD_SOCKET", s.host.socket, 1); /* instead of --socket */
    RUN(&s.s, prefixctl_path(), "workers", "--json");
    unsetenv("PREFIXD_SOCKET");
    json_t *o = json_said(&s.s), *list = json_object_get(o, "workers");
    ck_assert_uint_eq(json_array_size(list), 1);
    const json_t *row = json_array_get(list, 0);
    ck_assert_int_eq(number_of(row, "pid"), getpid());
    ck_assert_int_eq(number_of(row, "uid"), getuid());
    ck_assert_str_eq(text_of(row, "name"), "test");
    ck_assert_str_eq(text_of(row, "group"), "engine");
    ck_assert_int_eq(number_of(row, "leases"), 1);
    ck_assert_int_eq(number_of(row, "private_blocks"), 3);
    ck_assert_int_gt(number_of(row, "requests"), 5);
    ck_assert(json_is_false(json_object_get(row, "dead")));
    int64_t worker = number_of(row, "worker");
    json_decref(o);

    CTL(&s.s, &s.host, "leases", "--json");
    o = json_said(&s.s);
    list = json_object_get(o, "leases");
    ck_assert_uint_eq(json_array_size(list), 1);
    row = json_array_get(list, 0);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)h.lease);
    ck_assert_str_eq(text_of(row, "lease"), id);
    ck_assert_str_eq(text_of(row, "group"), "engine");
    ck_assert_int_eq(number_of(row, "worker"), worker);
    ck_assert_int_eq(number_of(row, "space"), 0);
    ck_assert_int_eq(number_of(row, "matched_blocks"), 2);
    ck_assert_int_eq(number_of(row, "held_blocks"), 2);
    ck_assert_int_eq(number_of(row, "table_blocks"), 5);
    ck_assert_int_eq(number_of(row, "private_blocks"), 3);
    ck_assert(json_is_false(json_object_get(row, "final")));
    ck_assert(json_is_false(json_object_get(row, "stale")));
    json_decref(o);
    CTL(&s.s, &s.host, "leases");
    ck_assert_ptr_nonnull(strstr(s.s.out, id));
    CTL(&s.s, &s.host, "workers");
    ck_assert_ptr_nonnull(strstr(s.s.out, "engine"));
    drop(&s.w, &h);
    scene_end(&s);
}
END_TEST

/* A name of any bytes does no harm to a terminal or a JSON reader. */
START_TEST(ctl_workers_odd_names)
{
    struct scene s;
    pfx *c;
    scene_begin(&s);
    struct pfx_options o = worker_options(&s.host);
    o.name = "\x1b[2J\"\\\n\xff\xc3";
    o.group = "group\twith \xe2\x82\xac";
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    CTL(&s.s, &s.host, "workers", "--json");
    json_t *j = json_said(&s.s);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "workers")), 2);
    json_decref(j);
    CTL(&s.s, &s.host, "workers");
    ck_assert_int_eq(s.s.code, 0);
    for (const char *p = s.s.out; *p; p++)
        ck_assert_msg((unsigned char)*p >= 0x20 || *p == '\n', "byte %02x", (unsigned char)*p);
    pfx_close(c);
    scene_end(&s);
}
END_TEST

START_TEST(ctl_audit)
{
    struct scene s;
    scene_begin(&s);
    struct held h = look(&s.w, "aaaabbbbx");
    ck_assert_int_eq(grab(&s.w, &h, 3), 0);
    CTL(&s.s, &s.host, "audit", "--json");
    json_t *o = json_said(&s.s);
    ck_assert(json_is_true(json_object_get(o, "ok")));
    ck_assert(json_is_array(json_object_get(o, "findings")));
    ck_assert_uint_eq(json_array_size(json_object_get(o, "findings")), 0);
    json_decref(o);
    CTL(&s.s, &s.host, "audit");
    ck_assert_int_eq(s.s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.s.out, "audit ok"));
    drop(&s.w, &h);
    scene_end(&s);
}
END_TEST

/* ---- tree
 * ------------------------------------------------------------------------------------------ */

/* Blocks and partial blocks below a node, itself included. */
static unsigned count_blocks(const json_t *node, bool tokens)
{
    size_t i;
    const json_t *child, *children = json_object_get(node, "children");
    unsigned n = (unsigned)number_of(node, "blocks");
    if (number_of(node, "partial_tokens"))
        n = 1;
    ck_assert(json_is_array(children));
    ck_assert_int_eq(number_of(node, "n_children"), (int64_t)json_array_size(children));
    ck_assert_int_eq(json_object_get(node, "tokens") != NULL, tokens);
    json_array_foreach(children, i, child) n += count_blocks(child, tokens);
    return n;
}

static const json_t *root_of(const json_t *tree, size_t space)
{
    return json_object_get(json_array_get(json_object_get(tree, "spaces"), space), "root");
}

START_TEST(ctl_tree)
{
    struct scene s;
    scene_begin(&s);
    CTL(&s.s, &s.host, "tree", "--json");
    json_t *o = json_said(&s.s);
    ck_assert_int_eq(number_of(o, "block_tokens"), 4);
    ck_assert_uint_eq(count_blocks(root_of(o, 0), false), 5);
    json_decref(o);
    CTL(&s.s, &s.host, "tree");
    ck_assert_int_eq(s.s.code, 0);
    ck_assert_ptr_null(strstr(s.s.out, "97 97 97 97"));
    ck_assert_ptr_null(strstr(s.s.out, "tokens 97"));

    CTL(&s.s, &s.host, "tree", "--tokens", "--json");
    o = json_said(&s.s);
    ck_assert_uint_eq(count_blocks(root_of(o, 0), true), 5);
    const json_t *top = json_array_get(json_object_get(root_of(o, 0), "children"), 0);
    const json_t *tokens = json_object_get(top, "tokens");
    ck_assert_uint_eq(json_array_size(tokens), 8);
    for (size_t i = 0; i < 8; i++)
        ck_assert_int_eq(json_integer_value(json_array_get(tokens, i)), "aaaabbbb"[i]);
    json_decref(o);
    CTL(&s.s, &s.host, "tree", "--tokens");
    ck_assert_ptr_nonnull(strstr(s.s.out, "97 97 97 97"));

    CTL(&s.s, &s.host, "tree", "--json", "--depth", "0");
    o = json_said(&s.s);
    ck_assert_uint_eq(json_array_size(json_object_get(root_of(o, 0), "children")), 0);
    json_decref(o);
    scene_end(&s);
}
END_TEST

/* Spaces have their description; one can be picked. */
START_TEST(ctl_tree_spaces)
{
    struct scene s;
    char number[32];
    scene_begin(&s);
    struct pfx_space_desc desc = {.size = sizeof desc,
                                  .tenant_len = 3,
                                  .tenant = "\x01z\x00",
                                  .adapter_id = 7,
                                  .adapter_generation = 9};
    ck_assert_int_eq(pfx_space_open(s.w.c, &desc, &s.w.space), 0);
    cache(&s.w, "zzzz");
    snprintf(number, sizeof number, "%llu", (unsigned long long)s.w.space);
    CTL(&s.s, &s.host, "tree", "--json", "--space", number);
    json_t *o = json_said(&s.s);
    ck_assert_uint_eq(json_array_size(json_object_get(o, "spaces")), 1);
    const json_t *space = json_array_get(json_object_get(o, "spaces"), 0);
    ck_assert_int_eq(number_of(space, "space"), (int64_t)s.w.space);
    ck_assert_str_eq(text_of(space, "tenant"), "017a00");
    ck_assert_int_eq(number_of(space, "adapter_id"), 7);
    ck_assert_int_eq(number_of(space, "adapter_generation"), 9);
    ck_assert_uint_eq(count_blocks(root_of(o, 0), false), 1);
    json_decref(o);
    CTL(&s.s, &s.host, "tree", "--space", "987654321");
    refused(&s.s, 2, "987654321");
    scene_end(&s);
}
END_TEST

/* ---- what each does
 * --------------------------------------------------------------------------------- */

START_TEST(ctl_evict)
{
    struct scene s;
    scene_begin(&s);
    struct held h = look(&s.w, "aaaabbbbx");
    pages_are(&s.w, 11, 0, 2, 3);
    CTL(&s.s, &s.host, "evict", "1", "--json");
    json_t *o = json_said(&s.s);
    ck_assert_int_eq(number_of(o, "freed_blocks"), 1);
    ck_assert_int_eq(number_of(o, "removed_blocks"), 1);
    json_decref(o);
    step(&s.w);
    pages_are(&s.w, 12, 0, 2, 2);
    ck_assert_uint_eq(matched(&s.w, "aaaabbbbccccx"), 8); /* the oldest went */
    ck_assert_uint_eq(matched(&s.w, "aaaabbbbddddx"), 12);
    CTL(&s.s, &s.host, "evict", "100");
    ck_assert_int_eq(s.s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.s.out, "2 blocks"));
    step(&s.w);
    pages_are(&s.w, 14, 0, 2, 0); /* what is held stays */
    drop(&s.w, &h);
    CTL(&s.s, &s.host, "evict", "0");
    ck_assert_int_eq(s.s.code, 0);
    pages_are(&s.w, 14, 0, 0, 2);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 3);
    scene_end(&s);
}
END_TEST

START_TEST(ctl_flush)
{
    struct scene s;
    char number[32];
    scene_begin(&s);
    struct pfx_space_desc desc = {.size = sizeof desc, .adapter_id = 7};
    pfx_space other;
    ck_assert_int_eq(pfx_space_open(s.w.c, &desc, &other), 0);
    s.w.space = other;
    cache(&s.w, "aaaa");
    pages_are(&s.w, 10, 0, 0, 6);
    snprintf(number, sizeof number, "%llu", (unsigned long long)other);
    CTL(&s.s, &s.host, "flush", "--space", number, "--json");
    json_t *o = json_said(&s.s);
    ck_assert_int_eq(number_of(o, "flushed"), (int64_t)other);
    json_decref(o);
    step(&s.w);
    pages_are(&s.w, 11, 0, 0, 5);
    cache(&s.w, "aaaa");
    CTL(&s.s, &s.host, "flush"); /* the base space alone */
    ck_assert_int_eq(s.s.code, 0);
    pages_are(&s.w, 15, 0, 0, 1);
    ck_assert_uint_eq(matched(&s.w, "aaaax"), 4);
    CTL(&s.s, &s.host, "flush", "--space", "987654321");
    refused(&s.s, 2, "987654321");
    CTL(&s.s, &s.host, "flush", "--all", "--json");
    o = json_said(&s.s);
    ck_assert_str_eq(text_of(o, "flushed"), "all");
    json_decref(o);
    step(&s.w);
    pages_are(&s.w, 16, 0, 0, 0);
    ck_assert_uint_eq(counters(&s.w).evicted_blocks, 0);
    scene_end(&s);
}
END_TEST

/* Who needs the daemon's answer says that there is none, in bounded time. */
START_TEST(ctl_stopped_daemon)
{
    struct scene s;
    scene_begin(&s);
    host_pause(&s.host);
    char command[600];
    snprintf(command, sizeof command,
             "for c in workers leases audit 'evict 1' flush replay; do { '%s' $c; [ $? = 3 ] || "
             "echo \"$c: not 3\"; } & done; wait",
             prefixctl_path());
    setenv("PREFIXD_SOCKET", s.host.socket, 1);
    RUN(&s.s, "/bin/sh", "-c", command);
    ck_assert_str_eq(s.s.out, "");
    unsigned n = 0;
    for (const char *at = s.s.err; (at = strstr(at, "is stopped")); at++)
        n += strstr(at, "SIGCONT") != NULL;
    ck_assert_msg(n == 6, "%u of 6 say that it is stopped: %s", n, s.s.err);
    host_resume(&s.host);
    unsetenv("PREFIXD_SOCKET");
    CTL(&s.s, &s.host, "workers");
    ck_assert_int_eq(s.s.code, 0);
    scene_end(&s);
}
END_TEST

/* Output that is lost is a failure, whatever it was. */
START_TEST(ctl_output_lost)
{
    static const char *const lines[] = {"--help", "-h",   "--version",      "status --help",
                                        "status", "tree", "workers --json", "audit"};
    struct scene s;
    char command[512];
    scene_begin(&s);
    setenv("PREFIXD_SOCKET", s.host.socket, 1);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(command, sizeof command, "'%s' %s >/dev/full", prefixctl_path(), lines[i]);
        RUN(&s.s, "/bin/sh", "-c", command);
        refused(&s.s, 3, "output");
    }
    unsetenv("PREFIXD_SOCKET");
    scene_end(&s);
}
END_TEST

/* Whom --allow-user names sees the same, though /proc does not show him the daemon; and he is not
 * counted. */
START_TEST(ctl_status_for_another_user)
{
    enum { SOMEBODY = 12345 };
    struct host h;
    struct said s;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    HOST_START(&h, "--blocks", "16", "--allow-user", "12345");
    ck_assert_int_eq(chmod(h.dir, 0755), 0);
    run_as(SOMEBODY, &s, prefixctl_path(),
           (const char *const[]){"status", "--json", "--socket", h.socket, NULL});
    json_t *o = json_said(&s);
    ck_assert(json_is_true(json_object_get(o, "ready")));
    ck_assert_int_eq(number_of(o, "n_blocks"), 16);
    ck_assert_int_eq(number_of(o, "workers"), 0);
    json_decref(o);
    run_as(SOMEBODY, &s, prefixctl_path(),
           (const char *const[]){"tree", "--socket", h.socket, NULL});
    ck_assert_int_eq(s.code, 0);
    ck_assert_ptr_nonnull(strstr(s.out, "space 0"));
    run_as(SOMEBODY + 1, &s, prefixctl_path(),
           (const char *const[]){"status", "--socket", h.socket, NULL});
    refused(&s, 3, "--allow-user");
    host_stop(&h);
}
END_TEST

/* The user's socket, else the system's, for tool and library alike; all of them are named. */
START_TEST(ctl_names_every_path)
{
    struct said s;
    pfx *c;
    unsetenv("PREFIXD_SOCKET");
    setenv("XDG_RUNTIME_DIR", NOBODY, 1);
    if (access("/run/prefixd/prefixd.sock", F_OK) == 0)
        SKIP_TEST("there is a daemon at the default socket");
    RUN(&s, prefixctl_path(), "status");
    refused(&s, 3, NOBODY "/prefixd.sock");
    refused(&s, 3, "/run/prefixd/prefixd.sock");
    ck_assert_int_eq(pfx_open(NULL, &c), PFX_EGONE);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), NOBODY "/prefixd.sock"));
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "/run/prefixd/prefixd.sock"));
}
END_TEST

struct closed {
    uid_t uid;
    const char *path, *socket; /* what is named as closed; what is given, or NULL */
};

static void closed_to_library(struct child *me, void *arg)
{
    const struct closed *v = arg;
    pfx *c;
    struct pfx_options o = {.size = sizeof o, .socket_path = v->socket};
    (void)me;
    ck_assert_int_eq(setgroups(0, NULL) | setgid(v->uid) | setuid(v->uid), 0);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EACCESS);
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), v->path));
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "join the group"));
}

static void closed_to(uid_t uid, const char *path, const char *socket)
{
    struct said s;
    struct child c;
    struct closed v = {uid, path, socket};
    const char *words[] = {"workers", socket ? "--socket" : NULL, socket, NULL};
    run_as(uid, &s, prefixctl_path(), words);
    refused(&s, 3, path);
    ck_assert_ptr_nonnull(strstr(s.err, "join the group"));
    child_start(&c, closed_to_library, &v);
    child_join(&c);
}

/* The directory of the socket is for a group, as the unit's is: that is the cause, not that nobody
 * would answer, also where the user's own path is looked at first. */
START_TEST(ctl_directory_for_a_group)
{
    enum { SOMEBODY = 12345 };
    struct host h;
    if (geteuid() != 0)
        SKIP_TEST("other users can be tried by root alone");
    HOST_START(&h, "--blocks", "16", "--allow-user", "12345");
    ck_assert_int_eq(chmod(h.dir, 0750), 0);
    closed_to(SOMEBODY, h.socket, h.socket);
    host_stop(&h);
    if (!own_file_system("/run", "1m"))
        SKIP_TEST("no /run of our own may be mounted");
    ck_assert_int_eq(mkdir("/run/prefixd", 0750), 0);
    unsetenv("PREFIXD_SOCKET");
    setenv("XDG_RUNTIME_DIR", NOBODY, 1);
    closed_to(SOMEBODY, "/run/prefixd/prefixd.sock", NULL);
}
END_TEST

/* None of this leaves anything behind in the daemon. */
START_TEST(ctl_leaves_no_trace)
{
    struct scene s;
    scene_begin(&s);
    struct pages before = pages(&s.w);
    unsigned fds = count_fds(s.host.pid); /* ours, and the audit's */
    for (int i = 0; i < 20; i++) {
        CTL(&s.s, &s.host, i % 2 ? "leases" : "audit");
        ck_assert_int_eq(s.s.code, 0);
        CTL(&s.s, &s.host, i % 2 ? "status" : "tree");
        ck_assert_int_eq(s.s.code, 0);
        CTL(&s.s, &s.host, "evict", "0");
        ck_assert_int_eq(s.s.code, 0);
    }
    EVENTUALLY(5000 * SLOW, count_fds(s.host.pid) == fds);
    pages_equal(&s.w, before);
    ck_assert_uint_eq(counters(&s.w).workers, 1);
    ck_assert_uint_eq(counters(&s.w).workers_reaped, 0);
    scene_end(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("prefixctl");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, ctl_help);
    tcase_add_loop_test(t, ctl_wrong_usage, 0, sizeof wrong / sizeof wrong[0]);
    tcase_add_test(t, ctl_no_command);
    tcase_add_test(t, ctl_no_daemon);
    tcase_add_test(t, ctl_socket_too_long);
    tcase_add_test(t, ctl_status);
    tcase_add_test(t, ctl_workers_and_leases);
    tcase_add_test(t, ctl_workers_odd_names);
    tcase_add_test(t, ctl_audit);
    tcase_add_test(t, ctl_tree);
    tcase_add_test(t, ctl_tree_spaces);
    tcase_add_test(t, ctl_evict);
    tcase_add_test(t, ctl_flush);
    tcase_add_test(t, ctl_stopped_daemon);
    tcase_add_test(t, ctl_output_lost);
    tcase_add_test(t, ctl_status_for_another_user);
    tcase_add_test(t, ctl_names_every_path);
    tcase_add_test(t, ctl_directory_for_a_group);
    tcase_add_test(t, ctl_leaves_no_trace);
    suite_add_tcase(s, t);
    return s;
}
