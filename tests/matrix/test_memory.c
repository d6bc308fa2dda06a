/*
 * Too little memory, a small /dev/shm: who cannot have what it needs says so and ends, or refuses
 * that one worker; nobody dies by a signal, then or later.
 */
#include "tests/refuse.h"
#include "tests/scenario/disk_site.h"
#include "tests/tools/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SOON_MS = 5000 * SLOW, MIB = 1 << 20 };

/* ---- regions -----------------------------------------------------------------------------------
 */

/* Its first region, or the pool, which is the larger one: one sentence with the remedy. */
START_TEST(start_without_memory)
{
    static const struct {
        long call; /* that fails; 0: a shared mapping of so many bytes at least */
        int error;
        const char *remedy;
    } cases[] = {
        {__NR_memfd_create, EMFILE, "raise the descriptor limit"},
        {__NR_memfd_create, ENFILE, "fs.file-max"},
        {__NR_memfd_create, ENOMEM, "ask for fewer"},
        {__NR_ftruncate, ENOSPC, "ask for fewer"},
        {__NR_ftruncate, EFBIG, "raise the file size limit"},
        {0, 4096, "ask for fewer"},
        {0, 8 * MIB, "ask for fewer"},
    };
    char dir[64], socket[80];
    struct said s;
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    if (cases[_i].call)
        refuse_call(cases[_i].call, cases[_i].error);
    else
        refuse_shared_maps((uint32_t)cases[_i].error,
                           cases[_i].error < MIB ? UINT32_MAX : 64 * MIB);
    PREFIXD(&s, "--socket", socket, "--blocks", "4096", "--block-bytes", "4K");
    refused(&s, 2, cases[_i].remedy);
    ck_assert_msg(strstr(s.err, "--blocks") != NULL, "%s", s.err);
    ck_assert_msg(strstr(s.err, strerror(cases[_i].call ? cases[_i].error : ENOMEM)) != NULL, "%s",
                  s.err);
    ck_assert_int_ne(access(socket, F_OK), 0);
}
END_TEST

/* A worker whose rings cannot be had is refused, and the next one, which asks for less, is not. */
START_TEST(rings_without_memory)
{
    struct host h;
    struct worker w;
    pfx *c;
    refuse_shared_maps(24 * MIB, 64 * MIB);
    host_small(&h, 16, 4);
    worker_open(&w, &h, NULL);
    step(&w);
    unsigned before = count_fds(h.pid);
    for (int i = 0; i < 3; i++) {
        struct pfx_options o = worker_options(&h);
        o.arena_bytes = 32 * MIB;
        ck_assert_int_eq(pfx_open(&o, &c), PFX_ENOSPC);
        ck_assert_str_eq(pfx_why(NULL),
                         "the daemon has no room for another worker: Cannot allocate memory");
        o.arena_bytes = MIB;
        ck_assert_int_eq(pfx_open(&o, &c), 0);
        pfx_close(c);
    }
    EVENTUALLY(SOON_MS, counters(&w).workers == 1 && count_fds(h.pid) == before);
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- the worker
 * ---------------------------------------------------------------------------------- */

static void cannot_map(struct child *me, void *arg)
{
    const struct host *h = arg;
    struct pfx_options o = worker_options(h);
    pfx *c;
    unsigned before = count_fds(getpid());
    static const uint32_t from[] = {8 * MIB, 64 * MIB, 4096},
                          to[] = {64 * MIB, UINT32_MAX, 8 * MIB};
    static const char *const what[] = {"pool", "index", "ring"};
    for (int i = 0; i < 3; i++) {
        refuse_shared_maps(from[i], to[i]);
        ck_assert_int_eq(pfx_open(&o, &c), PFX_EAGAIN);
        ck_assert_ptr_null(c);
        ck_assert_msg(strstr(pfx_why(NULL), "could not be mapped: Cannot allocate memory") &&
                          strstr(pfx_why(NULL), what[i]),
                      "%s", pfx_why(NULL));
        ck_assert_uint_eq(count_fds(getpid()), before);
        o.map_devices = PFX_MAP_NONE;
        ck_assert_int_eq(pfx_open(&o, &c), i ? PFX_EAGAIN : 0); /* a scheduler needs no pool */
        pfx_close(c);
        o.map_devices = PFX_MAP_ALL;
    }
}

/* It cannot map what it gets: a sentence, and nothing of it is left in the daemon. */
START_TEST(worker_without_memory)
{
    struct host h;
    struct worker w;
    struct child c;
    HOST_START(&h, "--blocks", "4096", "--block-tokens", "4", "--block-bytes", "4K");
    worker_open(&w, &h, NULL);
    step(&w);
    unsigned before = count_fds(h.pid);
    child_start(&c, cannot_map, &h);
    child_join(&c);
    EVENTUALLY(SOON_MS, counters(&w).workers == 1 && count_fds(h.pid) == before);
    ck_assert_uint_eq(counters(&w).workers_reaped, 0); /* each said goodbye */
    step(&w);
    worker_close(&w);
    host_stop(&h);
}
END_TEST

/* ---- /dev/shm
 * --------------------------------------------------------------------------------------- */

/* Of a page, and that full; or none that may be written. Regions are memory without a name, so that
 * its size is no limit to them and nothing is left there. */
START_TEST(dev_shm_is_not_used)
{
    struct site s;
    ck_assert_msg(mounts_of_our_own() &&
                      mount("tmpfs", "/dev/shm", "tmpfs", _i ? MS_RDONLY : 0, "size=4k") == 0,
                  "/dev/shm cannot be made small here: %s", strerror(errno));
    int full = _i ? -1 : open("/dev/shm/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert(_i || write(full, (char[4096]){1}, 4096) == 4096);
    site_init(&s, "2M");
    site_set(&s, "--snapshots", "4");
    site_set(&s, "--snapshot-bytes", "192");
    site_start(&s);
    cache(&s.w, "aaaabbbb");
    disk_used_is(&s, 2);
    ck_assert_uint_eq(evict_pages(&s, 8), 0);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    site_again(&s);
    ck_assert_uint_eq(exact(&s, "aaaabbbbx"), 8);
    DIR *d = opendir("/dev/shm");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));)
        ck_assert_msg(e->d_name[0] == '.' || strcmp(e->d_name, "full") == 0, "%s", e->d_name);
    closedir(d);
    close(full);
    site_deinit(&s);
}
END_TEST

/* ---- control groups
 * ------------------------------------------------------------------------------------ */

/* What the daemon is told of its group, in the words of the second version and of the first. */
static void write_limit(const char *base, const char *group, const char *file, const char *bytes)
{
    char command[900];
    snprintf(command, sizeof command, "mkdir -p '%s%s' && echo %s >'%s%s/%s'", base, group, bytes,
             base, group, file);
    ck_assert_int_eq(system(command), 0);
}

/* The line of /proc/self/cgroup with these controllers, or NULL; static. */
static const char *group_of_ours(const char *controllers)
{
    static char line[512];
    char want[32];
    const char *found = NULL;
    snprintf(want, sizeof want, ":%s:", controllers);
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *at = strstr(line, want);
        line[strcspn(line, "\n")] = 0;
        found = at ? at + strlen(want) : NULL;
    }
    if (f)
        fclose(f);
    return found;
}

/* Bytes that the pool's file holds: all of them, if it was filled ahead. */
static uint64_t pool_filled(const struct host *h)
{
    char path[300], target[64];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)h->pid);
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        if (strstr(target, "prefixd-pool") && fstatat(dirfd(d), e->d_name, &st, 0) == 0)
            bytes = (uint64_t)st.st_blocks * 512;
    }
    closedir(d);
    return bytes;
}

static void start_in_group(const char *limit, bool warns, bool filled)
{
    struct host h;
    HOST_START(&h, "--blocks", "2000", "--block-bytes", "4K");
    ck_assert_msg(host_logged(&h, "MiB) is larger than what its control group may use") == warns,
                  "limit %s", limit);
    ck_assert_msg((pool_filled(&h) > 7 * MIB) == filled, "limit %s: %llu bytes", limit,
                  (unsigned long long)pool_filled(&h));
    host_stop(&h);
}

/* A pool of 8 MiB. To fill it ahead beyond what its group may use would be death, at the start; and
 * a pool that can never be filled is told of. A limit of a group further up is one as well. */
START_TEST(pool_in_a_control_group)
{
    static const char *const bases[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/memory"};
    static const char *const files[] = {"memory.max", "memory.limit_in_bytes"};
    const char *group = group_of_ours(_i ? "memory" : "");
    if (!group) { /* this machine has only the other version */
        ck_assert_ptr_nonnull(group_of_ours(_i ? "" : "memory"));
        return;
    }
    if (strcmp(group, "/") == 0)
        group = "";
    ck_assert_msg(mounts_of_our_own() && mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, NULL) == 0,
                  "what this process is told of its group cannot be changed: %s", strerror(errno));
    start_in_group("none", false, true);
    write_limit(bases[_i], group, files[_i], _i ? "9223372036854771712" : "max");
    start_in_group("none", false, true);
    write_limit(bases[_i], "", files[_i], "67108864");
    start_in_group("64 MiB", false, true);
    write_limit(bases[_i], "", files[_i], "20971520");
    start_in_group("20 MiB", false, false);
    write_limit(bases[_i], group, files[_i], "4194304");
    start_in_group("4 MiB", true, false);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("memory");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, start_without_memory, 0, 7);
    tcase_add_test(t, rings_without_memory);
    tcase_add_test(t, worker_without_memory);
    tcase_add_loop_test(t, dev_shm_is_not_used, 0, 2);
    tcase_add_loop_test(t, pool_in_a_control_group, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
