/*
 * What can be wrong with GPUs: one sentence that names the cause and the remedy, and an exit or a
 * PFX error, soon; and nothing is left behind.
 */
#include "kernels/device.h"
#include "tests/cuda/gpu.h"
#include "tests/raw.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 40, CALLS_SWAP = 1000, SOON_MS = 3000 * SLOW };

/* ---- the daemon does not start ------------------------------------------------------------------
 */

struct refusal {
    const char *name, *value; /* of the environment; NULL: nothing */
    const char *options[8];
    const char *says[2];
};

#define ON(...)                                                                                    \
    {                                                                                              \
        "--block-bytes", "64", __VA_ARGS__                                                         \
    }

static const struct refusal refusals[] = {
    {"LD_LIBRARY_PATH",
     "",
     ON("--device", "cuda"),
     {"there is no NVIDIA driver here (libcuda.so.1:", "or use --device host"}},
    {"LD_LIBRARY_PATH",
     "$OLD_CUDA_DIR",
     ON("--device", "cuda"),
     {"serves CUDA 11.2 at most and prefixd needs 12.0", "update the driver"}},
    {"FAKE_CUDA_VERSION",
     "11080",
     ON("--device", "cuda"),
     {"serves CUDA 11.8 at most and prefixd needs 12.0", "update the driver"}},
    {"FAKE_CUDA_MISSING",
     "cuMemCreate",
     ON("--device", "cuda"),
     {"has no cuMemCreate as of CUDA 10.2", "update the driver"}},
    {"FAKE_CUDA_DEVICES",
     "0",
     ON("--device", "cuda"),
     {"CUDA_ERROR_NO_DEVICE", "check CUDA_VISIBLE_DEVICES"}},
    {"CUDA_VISIBLE_DEVICES",
     "",
     ON("--device", "cuda"),
     {"CUDA_ERROR_NO_DEVICE", "check CUDA_VISIBLE_DEVICES"}},
    {"CUDA_VISIBLE_DEVICES",
     "3,4",
     ON("--device", "cuda:2"),
     {"--device: GPU 2 is not here: 2 GPUs are visible", "nvidia-smi -L lists them"}},
    {NULL,
     NULL,
     ON("--device", "cuda:GPU-00000000-0000-0000-0000-000000000000"),
     {"GPU-00000000-0000-0000-0000-000000000000 is not here", "nvidia-smi -L lists them"}},
    {NULL,
     NULL,
     ON("--device", "cuda:MIG-00000000-0000-0000-0000-000000000000"),
     {"--device: MIG-00000000-0000-0000-0000-000000000000 is not here", "nvidia-smi -L lists"}},
    {"FAKE_CUDA_DEVICES",
     "1",
     ON("--device", "cuda", "--devices", "2"),
     {"GPU 1 is not here: 1 GPU is visible", "nvidia-smi"}},
    {NULL,
     NULL,
     ON("--device", "cuda:0,1", "--devices", "3"),
     {"--devices: --device lists another number of GPUs", "one shard is on each"}},
    {"FAKE_CUDA_BYTES",
     "1048576",
     ON("--device", "cuda", "--blocks", "65536"),
     {"--blocks: GPU-", "all of the GPU's memory is 1 MiB; ask for less"}},
    {"FAKE_CUDA_ATTRIBUTES",
     "103=0",
     ON("--device", "cuda", "--cuda-export", "fd"),
     {"CUDA_ERROR_NOT_SUPPORTED", "try the other --cuda-export"}},
    {"FAKE_CUDA_ATTRIBUTES",
     "103=0,125=0",
     ON("--device", "cuda"),
     {"CUDA_ERROR_NOT_SUPPORTED", "or --device host"}},
    {"FAKE_CUDA_FAIL",
     "cuInit:1:803",
     ON("--device", "cuda"),
     {"the driver does not start", "of different versions; reboot or install matching ones"}},
    {"FAKE_CUDA_FAIL",
     "cuMemCreate:1:46",
     ON("--device", "cuda"),
     {"CUDA_ERROR_DEVICE_UNAVAILABLE", "set its compute mode to DEFAULT"}},
    {"FAKE_CUDA_FAIL",
     "cuMemExportToShareableHandle:1:800",
     ON("--device", "cuda"),
     {"could not be exported as a descriptor", "check the container's capabilities"}},
    {"FAKE_CUDA_FAIL",
     "cuMemExportToShareableHandle:1:205", /* the longest of all */
     ON("--device", "cuda"),
     {"could not be exported as a descriptor", "try --cuda-export fd\n"}},
    {"FAKE_CUDA_FAIL",
     "cuIpcGetMemHandle:1:801",
     ON("--device", "cuda", "--cuda-export", "ipc"),
     {"could not be exported as a handle", "the way it is shared (MIG, WSL)"}},
    {"FAKE_CUDA_FAIL",
     "cuStreamCreate:3:2",
     ON("--device", "cuda", "--swap", "/tmp:64M"),
     {"--swap: ", "CUDA_ERROR_OUT_OF_MEMORY"}},
    {NULL,
     NULL,
     ON("--device", "cuda:"),
     {"nothing is neither the number of a GPU nor its UUID", ""}},
    {NULL, NULL, ON("--device", "cuda:0,"), {"nothing is neither", ""}},
    {NULL, NULL, ON("--device", "cuda:GPU-1"), {"GPU-1 is neither", "nvidia-smi -L"}},
    {NULL, NULL, ON("--device", "cuda:-1"), {"-1 is neither", ""}},
    {NULL, NULL, ON("--device", "rocm"), {"it takes host, cuda, or cuda: and a list of GPUs", ""}},
    {NULL, NULL, ON("--cuda-export", "pipe"), {"it takes auto, fd or ipc", ""}},
    {NULL,
     NULL,
     ON("--device", "cuda:0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0"),
     {"a pool has at most 16 devices", ""}},
};
enum { REFUSALS = sizeof refusals / sizeof refusals[0] };

/* Its exit status and its words. */
static int run_daemon(const char *const *options, char *said, size_t room)
{
    char dir[64], socket[80];
    const char *argv[16] = {"--socket", socket};
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    for (int i = 0; i < 8 && options[i]; i++)
        argv[2 + i] = options[i];
    return program_run(prefixd_path(), argv, said, room);
}

static unsigned lines(const char *text)
{
    unsigned n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

START_TEST(the_daemon_says_what_is_wrong)
{
    const struct refusal *r = &refusals[_i];
    char said[4096];
    if (r->name) {
        const char *value = r->value[0] == '$' ? getenv(r->value + 1) : r->value;
        ck_assert_ptr_nonnull(value);
        setenv(r->name, value, 1);
    }
    setenv("FAKE_CUDA_LEAKS", "1", 1);
    uint64_t start = now_ms();
    int code = run_daemon(r->options, said, sizeof said);
    ck_assert_msg(code == 2, "exit %d: %s", code, said);
    ck_assert_uint_lt(now_ms() - start, SOON_MS);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(said, r->says[i]) != NULL, "\"%s\" is not in: %s", r->says[i], said);
    ck_assert_msg(lines(said) == 1, "%s", said);
}
END_TEST

/* Memory that does not come: one line at the first try, ten seconds, one sentence. A signal ends
 * the wait. */
START_TEST(memory_that_does_not_come)
{
    char said[4096];
    const char *const options[8] = {"--device", "cuda", "--block-bytes", "64"};
    setenv("FAKE_CUDA_FAIL", "cuMemCreate:1+:2", 1);
    uint64_t start = now_ms();
    ck_assert_int_eq(run_daemon(options, said, sizeof said), 2);
    ck_assert_uint_ge(now_ms() - start, 9000);
    ck_assert_msg(lines(said) == 2, "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "the GPU has no room for it: ask for less"));
}
END_TEST

/* The GPU falls off the bus at the Nth call, whichever that is: a sentence and exit status 2, or,
 * if it starts before that, a daemon that stops when it is told to (by timeout(1), which then says
 * 124).
 */
START_TEST(the_device_disappears_from_the_daemon)
{
    char said[4096], fail[32], dir[64], socket[80], swap[80];
    temp_dir(dir);
    snprintf(socket, sizeof socket, "%s/s", dir);
    snprintf(swap, sizeof swap, "%s:64M", dir);
    bool swaps = _i >= EXPORTS; /* its copiers make many more calls: not each */
    const char *const words[] = {"3",
                                 prefixd_path(),
                                 "--socket",
                                 socket,
                                 "--device",
                                 "cuda",
                                 "--cuda-export",
                                 gpu_exports[_i % EXPORTS],
                                 swaps ? "--swap" : NULL,
                                 swap,
                                 NULL};
    int code = 2, refused = -1;
    if (swaps) /* what a driver that is gone does not take back */
        setenv("ASAN_OPTIONS", "detect_leaks=0:halt_on_error=1", 1);
    int most = swaps ? CALLS_SWAP : CALLS, each = swaps ? 13 : 1;
    for (int n = 1; code == 2 && n <= most; n += each, refused++) {
        snprintf(fail, sizeof fail, "*:%d+:999", n);
        setenv("FAKE_CUDA_FAIL", fail, 1);
        code = program_run("/usr/bin/timeout", words, said, sizeof said);
        ck_assert_msg(code == 124 || (code == 2 && lines(said) == 1), "%d: exit %d: %s", n, code,
                      said);
        if (code == 2)
            ck_assert_msg(strstr(said, "may have been lost") || strstr(said, "is not here") ||
                              strstr(said, "cannot do it"),
                          "%d: %s", n, said);
    }
    ck_assert_int_eq(code, 124);
    ck_assert_int_ge(refused, 4);
}
END_TEST

/* ---- the worker cannot import
 * --------------------------------------------------------------------- */

struct import_refusal {
    const char *export, *fail, *says[2];
};

static const struct import_refusal import_refusals[] = {
    {"ipc",
     "cuIpcOpenMemHandle:1:205",
     {"could not be opened", "same GPU, driver and pid namespace, and no MIG between them"}},
    {"ipc", "cuIpcOpenMemHandle:1:400", {"could not be opened", "in another pid namespace"}},
    {"ipc", "cuIpcOpenMemHandle:1:801", {"could not be opened", "(MIG, WSL)"}},
    {"fd", "cuMemImportFromShareableHandle:1:800", {"could not be imported", "capabilities"}},
    {"fd", "cuMemImportFromShareableHandle:1:304", {"could not be imported", "the cgroup's rules"}},
    {"fd", "cuMemAddressReserve:1:2", {"there are no addresses", "ask for less"}},
    {"fd", "cuMemMap:1:2", {"could not be mapped", "ask for less"}},
    {"fd", "cuMemSetAccess:1:101", {"could not be mapped", "nvidia-smi -L"}},
    {"fd", "cuDevicePrimaryCtxRetain:1:2", {"there is no context for it", "ask for less"}},
    {"ipc", "cuCtxPushCurrent:1:201", {"its context does not work", "dmesg"}},
    {"ipc", "cuInit:1:100", {"CUDA_ERROR_NO_DEVICE", "check CUDA_VISIBLE_DEVICES"}},
};
enum { IMPORT_REFUSALS = sizeof import_refusals / sizeof import_refusals[0] };

static void nothing_is_left(struct host *h)
{
    struct fake_facts f = gpu_facts();
    ck_assert_uint_eq(f.contexts, 0);
    ck_assert_uint_eq(f.mappings, 0);
    ck_assert_uint_eq(f.handles, 0);
    pfx *c = gpu_open(h, PFX_MAP_NONE);
    struct pfx_stats s = {.size = sizeof s};
    EVENTUALLY(SOON_MS, pfx_stats(c, &s) == 0 && s.workers == 1 && s.blocks_inflight == 0);
    pfx_close(c);
    audit_clean(h);
}

START_TEST(the_worker_is_told_what_is_wrong)
{
    const struct import_refusal *r = &import_refusals[_i];
    struct host h;
    gpu_host(&h, "cuda:0,1", r->export);
    struct pfx_options o = worker_options(&h);
    pfx *c;
    setenv("FAKE_CUDA_FAIL", r->fail, 1);
    unsigned fds = count_fds(getpid());
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EAGAIN);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(pfx_why(NULL), r->says[i]) != NULL, "%s", pfx_why(NULL));
    ck_assert_ptr_nonnull(strstr(pfx_why(NULL), "device 0: "));
    ck_assert_uint_le(count_fds(getpid()), fds);
    nothing_is_left(&h);
    ck_assert_int_eq(pfx_open(&o, &c), 0); /* the next one works */
    pfx_close(c);
    nothing_is_left(&h);
    host_stop(&h);
}
END_TEST

/* The worker's remedies are not the daemon's. */
START_TEST(a_worker_with_an_old_driver)
{
    struct host h;
    gpu_host(&h, "cuda", "fd");
    struct pfx_options o = worker_options(&h);
    pfx *c;
    setenv("FAKE_CUDA_VERSION", "11080", 1);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EAGAIN);
    ck_assert_msg(strstr(pfx_why(NULL), "serves CUDA 11.8 at most and prefixd needs 12.0; update "
                                        "the driver, or map no GPU (PFX_MAP_NONE)") != NULL,
                  "%s", pfx_why(NULL));
    pfx_close(gpu_open(&h, PFX_MAP_NONE));
    host_stop(&h);
}
END_TEST

/* Each call that takes something fails once, at each of its places in a pfx_open of two devices:
 * all that was taken is given back. */
START_TEST(any_call_of_an_import_may_fail)
{
    static const char *const calls[] = {
        "cuInit",          "cuDeviceGetCount",         "cuDeviceGet",
        "cuDeviceGetUuid", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
        "cuMemMap",        "cuMemAddressReserve",      "cuMemImportFromShareableHandle",
        "cuMemSetAccess",  "cuIpcOpenMemHandle",
    };
    struct host h;
    gpu_host(&h, "cuda:0,1", gpu_exports[_i]);
    struct pfx_options o = worker_options(&h);
    unsigned refused = 0;
    pfx_close(gpu_open(&h, 1)); /* so that the driver is loaded */
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (int n = 1; n <= 2; n++) {
            char fail[64];
            pfx *c;
            snprintf(fail, sizeof fail, "%s:%d:999", calls[i], n);
            gpu_fail(fail);
            int rc = pfx_open(&o, &c);
            gpu_fail(NULL);
            if (rc == 0)
                pfx_close(c);
            refused += rc != 0;
            nothing_is_left(&h);
        }
    /* 9 or 10 of them are of this export; that two GPUs are looked through hides some faults */
    ck_assert_uint_ge(refused, 12);
    host_stop(&h);
}
END_TEST

static uint64_t in_flight(pfx *c)
{
    struct pfx_stats s = {.size = sizeof s};
    ck_assert_int_eq(pfx_stats(c, &s), 0);
    return s.blocks_inflight;
}

/* The GPU is lost while a worker is attached: closing ends, and the daemon goes on. Nobody knows
 * what the GPU still writes for that process, so the pages are in quarantine, as if it had died.
 */
START_TEST(the_device_disappears_from_a_worker)
{
    struct host h;
    gpu_host(&h, "cuda:0,1", gpu_exports[_i]);
    struct worker w = {.host = &h, .c = gpu_open(&h, PFX_MAP_ALL)};
    struct held held = look(&w, "aaaabbbb");
    ck_assert_int_eq(grab(&w, &held, 2), 0);
    pfx *c = w.c;
    gpu_fail("*:1+:999");
    ck_assert_int_eq(pfx_ping(c), 0);
    uint64_t start = now_ms();
    pfx_close(c);
    struct pfx_options o = worker_options(&h);
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EAGAIN);
    ck_assert_msg(strstr(pfx_why(NULL), "the GPU may have been lost") != NULL, "%s", pfx_why(NULL));
    ck_assert_uint_lt(now_ms() - start, SOON_MS);
    c = gpu_open(&h, PFX_MAP_NONE); /* what needs no GPU works */
    EVENTUALLY(SOON_MS, in_flight(c) == 2);
    audit_clean(&h);
    pfx_close(c);
    host_kill(&h);
}
END_TEST

/* The driver does not wait (a graph is being captured, say): what its work may use is not unmapped
 * under it, nor are its pages given to others. */
START_TEST(a_close_that_the_driver_refuses)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    struct worker w = {.host = &h, .c = gpu_open(&h, PFX_MAP_ALL)};
    struct held held = look(&w, "aaaabbbb");
    ck_assert_int_eq(grab(&w, &held, 2), 0);
    void *page = pfx_block_address(w.c, 0, held.table[0]);
    gpu_fail("cuCtxSynchronize:1:900");
    pfx_close(w.c);
    gpu_fail(NULL);
    ck_assert_uint_eq(gpu_facts().mappings, 1);
    memset(page, 1, 64);
    pfx *c = gpu_open(&h, PFX_MAP_NONE);
    EVENTUALLY(SOON_MS, in_flight(c) == 2);
    pfx_close(c);
    host_kill(&h);
}
END_TEST

/* kill -9 of the daemon between WELCOME and the import. A descriptor keeps the memory; a handle is
 * not opened to a wrong byte, but refused with a sentence. */
START_TEST(the_daemon_dies_before_the_import)
{
    struct host h;
    struct raw r;
    char why[400] = "";
    struct hello hello = raw_hello("early");
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx_close(gpu_open(&h, PFX_MAP_ALL)); /* so that the driver is loaded */
    ck_assert(raw_greet(&r, &h, &hello));
    host_kill(&h);
    struct device *d = device_import(&r.welcome.device[0], r.fds[3], why, sizeof why);
    ck_assert_int_eq(d != NULL, _i == 0);
    if (d) {
        memset(device_address(d), 0x5a, device_bytes(d));
        ck_assert(device_free(d));
    } else {
        ck_assert_msg(strstr(why, "the daemon that made the handle is gone") != NULL, "%s", why);
    }
    ck_assert_uint_eq(gpu_facts().mappings + gpu_facts().contexts + gpu_facts().handles, 0);
    raw_close(&r);
}
END_TEST

/* What was open stays open. */
START_TEST(the_daemon_dies_after_the_import)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    host_kill(&h);
    memset(pfx_block_address(c, 0, 1), 1, 64);
    pfx_close(c);
    ck_assert_uint_eq(gpu_facts().mappings + gpu_facts().contexts + gpu_facts().handles, 0);
}
END_TEST

/* What is no pool is refused with a sentence, and nothing of it is left. */
START_TEST(what_is_no_pool)
{
    struct host h;
    struct raw r;
    struct hello hello = raw_hello("wrong");
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx_close(gpu_open(&h, PFX_MAP_ALL)); /* so that the driver is loaded */
    ck_assert(raw_greet(&r, &h, &hello));
    struct wire_device all[4];
    for (int i = 0; i < 4; i++)
        all[i] = r.welcome.device[0];
    all[1].uuid[0] ^= 1;
    memset(all[2].handle, _i ? 0xff : 0, sizeof all[2].handle);
    all[3].kind = 77;
    static const char *const says[4] = {"", "which this process does not see", "could not be",
                                        "a kind of device that this library does not know"};
    for (int i = _i; i < 4; i++) { /* a handle's placeholder is not looked at */
        char why[400] = "";
        int fd = i < 3 ? r.fds[2] : r.fds[3]; /* the index */
        ck_assert_ptr_null(device_import(&all[i], fd, why, sizeof why));
        ck_assert_msg(strlen(why) > 20 && strstr(why, says[i]) != NULL, "%d: %s", i, why);
        ck_assert_uint_eq(gpu_facts().mappings + gpu_facts().contexts + gpu_facts().handles, 0);
    }
    char why[400];
    ck_assert_ptr_null(device_import(&all[2], -1, why, sizeof why));
    raw_close(&r);
    host_kill(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpu faults");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_loop_test(t, the_daemon_says_what_is_wrong, 0, REFUSALS);
    tcase_add_test(t, memory_that_does_not_come);
    tcase_add_loop_test(t, the_device_disappears_from_the_daemon, 0, 2 * EXPORTS);
    tcase_add_loop_test(t, the_worker_is_told_what_is_wrong, 0, IMPORT_REFUSALS);
    tcase_add_test(t, a_worker_with_an_old_driver);
    tcase_add_loop_test(t, any_call_of_an_import_may_fail, 0, EXPORTS);
    tcase_add_loop_test(t, the_device_disappears_from_a_worker, 0, EXPORTS);
    tcase_add_loop_test(t, a_close_that_the_driver_refuses, 0, EXPORTS);
    tcase_add_loop_test(t, the_daemon_dies_before_the_import, 0, EXPORTS);
    tcase_add_loop_test(t, the_daemon_dies_after_the_import, 0, EXPORTS);
    tcase_add_loop_test(t, what_is_no_pool, 0, EXPORTS);
    suite_add_tcase(s, t);
    return s;
}
