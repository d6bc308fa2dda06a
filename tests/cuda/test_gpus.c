/*
 * Pools on GPUs: two processes and one memory, by both exports; imports of several connections; the
 * worker's own numbering of GPUs; and workers that want no GPU.
 */
#include "tests/cuda/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TWO_UUIDS                                                                                  \
    "cuda:GPU-66616b65-2047-5055-206e-756d62657203,GPU-66616b65-2047-5055-206e-756d62657201"

#define UUID_BUT_LAST "GPU-66616b65-2047-5055-206e-756d626572"
#define SEVEN_UUIDS                                                                                \
    UUID_BUT_LAST "05," UUID_BUT_LAST "06," UUID_BUT_LAST "07," UUID_BUT_LAST "08," UUID_BUT_LAST  \
                  "09," UUID_BUT_LAST "0a," UUID_BUT_LAST "0b," UUID_BUT_LAST

/* ---- one memory --------------------------------------------------------------------------------
 */

static void writer(struct child *me, void *arg)
{
    pfx *c = gpu_open(arg, PFX_MAP_ALL);
    for (uint32_t d = 0; d < 2; d++) {
        memset(pfx_block_address(c, d, 14), 0x10 + (int)d, 64);
        memset(pfx_slot_address(c, d, 2), 0x20 + (int)d, 64);
    }
    child_post(me, 1);
    child_wait(me);
    ck_assert_uint_eq(*(uint8_t *)pfx_block_address(c, 1, 3), 0x33);
    pfx_close(c);
    struct fake_facts f = gpu_facts();
    ck_assert_uint_eq(f.initialised, 1);
    ck_assert_uint_eq(f.contexts, 0);
    ck_assert_uint_eq(f.mappings, 0);
    ck_assert_uint_eq(f.handles, 0);
}

static void all_are(const void *at, uint8_t byte)
{
    for (unsigned i = 0; i < 64; i++)
        ck_assert_uint_eq(((const uint8_t *)at)[i], byte);
}

START_TEST(two_processes_share_one_memory)
{
    struct host h;
    struct child other;
    gpu_host(&h, "cuda:0,1", gpu_exports[_i]);
    child_start(&other, writer, &h);
    child_wait(&other);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    for (uint32_t d = 0; d < 2; d++) {
        all_are(pfx_block_address(c, d, 14), (uint8_t)(0x10 + d));
        all_are(pfx_slot_address(c, d, 2), (uint8_t)(0x20 + d));
    }
    memset(pfx_block_address(c, 1, 3), 0x33, 64);
    child_post(&other, 1);
    child_join(&other);
    all_are(pfx_block_address(c, 0, 14), 0x10); /* the writer's end took nothing away */
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* Two connections of a process. By handle it is one mapping that the driver counts, by descriptor
 * each has its own; either way the end of one is not the other's. */
START_TEST(connections_of_one_process)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx *a = gpu_open(&h, PFX_MAP_ALL), *b = gpu_open(&h, PFX_MAP_ALL);
    memset(pfx_block_address(a, 0, 5), 0x55, 64);
    all_are(pfx_block_address(b, 0, 5), 0x55);
    bool same = pfx_block_address(a, 0, 5) == pfx_block_address(b, 0, 5);
    ck_assert_int_eq(same, _i == 1);
    ck_assert_uint_eq(gpu_facts().mappings, same ? 1 : 2);
    ck_assert_uint_eq(gpu_facts().contexts, 2);
    pfx_close(a);
    all_are(pfx_block_address(b, 0, 5), 0x55);
    ck_assert_uint_eq(gpu_facts().mappings, 1);
    pfx_close(b);
    ck_assert_uint_eq(gpu_facts().mappings, 0);
    ck_assert_uint_eq(gpu_facts().contexts, 0);
    ck_assert_uint_eq(gpu_facts().handles, 0);
    host_stop(&h);
}
END_TEST

/* Another daemon, at the same socket and maybe at the same addresses: a connection keeps what it
 * has imported, a new one imports anew. */
START_TEST(an_import_is_of_one_epoch)
{
    struct host h;
    gpu_host(&h, "cuda", "fd");
    pfx *old = gpu_open(&h, PFX_MAP_ALL);
    uint64_t epoch = pfx_geometry(old)->epoch;
    memset(pfx_block_address(old, 0, 1), 0x11, 64);
    host_kill(&h);
    host_again(&h, (const char *const[]){"--blocks", "14", "--block-tokens", "4", "--block-bytes",
                                         "64", NULL});
    pfx *new = gpu_open(&h, PFX_MAP_ALL);
    ck_assert_uint_ne(pfx_geometry(new)->epoch, epoch);
    ck_assert_uint_eq(*(uint8_t *)pfx_block_address(new, 0, 1), 0);
    memset(pfx_block_address(new, 0, 1), 0x22, 64);
    all_are(pfx_block_address(old, 0, 1), 0x11);
    pfx_close(old);
    all_are(pfx_block_address(new, 0, 1), 0x22);
    pfx_close(new);
    host_stop(&h);
}
END_TEST

/* ---- which GPUs
 * ----------------------------------------------------------------------------------- */

static void uuid_is(pfx *c, uint32_t device, uint8_t last)
{
    struct pfx_pool_view v = {.size = sizeof v};
    uint8_t uuid[17] = "fake GPU number ";
    uuid[15] = last;
    ck_assert_int_eq(pfx_pool_view(c, device, &v), 0);
    ck_assert_uint_eq(v.is_cuda, 1);
    ck_assert_mem_eq(v.device_uuid, uuid, 16);
}

struct sight {
    const char *visible;
    uint64_t map;
    const char *refused; /* in the sentence; NULL: it works */
};

/* The pool is on GPUs 3 and 1, in that order. */
static const struct sight sights[] = {
    {"3,1", PFX_MAP_ALL, NULL},
    {"1,3", PFX_MAP_ALL, NULL},
    {"0,1,2,3,4", PFX_MAP_ALL, NULL},
    {"GPU-66616b65-2047-5055-206e-756d62657201,3", PFX_MAP_ALL, NULL},
    {"1", 2, NULL},
    {"3", 1, NULL},
    {"3", 2, "device 1: the pool is on GPU-66616b65-2047-5055-206e-756d62657201"},
    {"3", PFX_MAP_ALL, "CUDA_VISIBLE_DEVICES=3; make it visible, or leave it out of map_devices"},
    {"0", PFX_MAP_ALL, "device 0: the pool is on GPU-66616b65-2047-5055-206e-756d62657203"},
    {SEVEN_UUIDS "0c", PFX_MAP_ALL, "...; make it visible, or leave it out of map_devices"},
    {"", PFX_MAP_ALL, "no GPU is visible to this process; check CUDA_VISIBLE_DEVICES"},
    {"3,3", PFX_MAP_ALL, "no GPU is visible to this process"},
    {"", PFX_MAP_NONE, NULL},
};

struct looker {
    struct host *h;
    const struct sight *sight;
};

static void sees(pfx *c, uint32_t device, uint8_t last, uint8_t byte)
{
    uuid_is(c, device, last);
    all_are(pfx_block_address(c, device, 7), byte);
}

static void looks(struct child *me, void *arg)
{
    const struct looker *l = arg;
    struct pfx_options o = worker_options(l->h);
    pfx *c;
    setenv("CUDA_VISIBLE_DEVICES", l->sight->visible, 1);
    o.map_devices = l->sight->map;
    int rc = pfx_open(&o, &c);
    if (l->sight->refused) {
        ck_assert_int_eq(rc, PFX_EAGAIN);
        ck_assert_msg(strstr(pfx_why(NULL), l->sight->refused) != NULL, "%s", pfx_why(NULL));
        ck_assert_uint_eq(gpu_facts().contexts + gpu_facts().mappings, 0);
        return;
    }
    ck_assert_msg(rc == 0, "%s: %s", l->sight->visible, pfx_why(NULL));
    if (l->sight->map != 2 && l->sight->map != PFX_MAP_NONE)
        sees(c, 0, 3, 0xa0);
    if (l->sight->map != 1 && l->sight->map != PFX_MAP_NONE)
        sees(c, 1, 1, 0xa1);
    pfx_close(c);
}

/* Device i of the pool is the same GPU for everybody, however he numbers them. */
START_TEST(gpus_are_found_by_uuid)
{
    struct host h;
    struct child other;
    gpu_host(&h, TWO_UUIDS, gpu_exports[_i]);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    memset(pfx_block_address(c, 0, 7), 0xa0, 64);
    memset(pfx_block_address(c, 1, 7), 0xa1, 64);
    for (size_t i = 0; i < sizeof sights / sizeof sights[0]; i++) {
        struct looker l = {&h, &sights[i]};
        child_start(&other, looks, &l);
        child_join(&other);
    }
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* The daemon has its own view as well. */
START_TEST(the_daemon_numbers_what_it_sees)
{
    struct host h;
    setenv("CUDA_VISIBLE_DEVICES", "5,2", 1);
    gpu_host(&h, "cuda:1", "auto");
    unsetenv("CUDA_VISIBLE_DEVICES");
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    uuid_is(c, 0, 2);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* As many as there are shards, also when a worker brings the layout. */
START_TEST(shards_of_a_layout)
{
    struct host h;
    struct pfx_layout l = {.size = sizeof l, .block_tokens = 4, .block_bytes = 64, .n_devices = 3};
    struct pfx_options o;
    pfx *c;
    HOST_START(&h, "--device", "cuda", "--bytes", "64K");
    o = worker_options(&h);
    o.layout = &l;
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    for (uint32_t d = 0; d < 3; d++)
        uuid_is(c, d, (uint8_t)d);
    pfx_close(c);
    host_stop(&h);
    HOST_START(&h, "--device", "cuda:4,2", "--bytes", "64K");
    o.socket_path = h.socket;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EMISMATCH);
    ck_assert_msg(strstr(pfx_why(NULL), "n_devices 3: --device lists 2 GPUs") != NULL, "%s",
                  pfx_why(NULL));
    l.n_devices = 2;
    ck_assert_int_eq(pfx_open(&o, &c), 0);
    uuid_is(c, 0, 4);
    uuid_is(c, 1, 2);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* ---- what a worker takes of a GPU
 * ------------------------------------------------------------------ */

/* A scheduler: it does not even load the driver. */
START_TEST(who_maps_nothing_has_no_context)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx *c = gpu_open(&h, PFX_MAP_NONE);
    ck_assert_ptr_null(fake_cuda("fake_cuda_facts"));
    ck_assert_ptr_null(pfx_block_address(c, 0, 1));
    ck_assert_int_eq(pfx_ping(c), 0);
    pfx_close(c);
    ck_assert_ptr_null(fake_cuda("fake_cuda_facts"));
    host_stop(&h);
}
END_TEST

/* The engine's context is the same one, and stays current in its thread; one of another device as
 * well. */
START_TEST(the_callers_context_stays_current)
{
    struct host h;
    struct cuda_driver cu;
    char why[400];
    void *context, *was;
    gpu_host(&h, "cuda:1", gpu_exports[_i]);
    ck_assert_msg(cuda_open(&cu, why, sizeof why), "%s", why);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ck_assert_int_eq(cu.cuCtxPushCurrent(context), 0);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    ck_assert_int_eq(cu.cuCtxPopCurrent(&was), 0);
    ck_assert_ptr_eq(was, context);
    ck_assert_int_eq(cu.cuCtxPushCurrent(context), 0);
    pfx_close(c);
    ck_assert_int_eq(cu.cuCtxPopCurrent(&was), 0);
    ck_assert_ptr_eq(was, context);
    ck_assert_uint_eq(gpu_facts().contexts, 1);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRelease(0), 0);
    host_stop(&h);
}
END_TEST

/* The daemon has no context where it exports descriptors, and says nothing that a real one would
 * not: it starts without a word of warning. */
START_TEST(auto_takes_descriptors_where_it_can)
{
    struct host h;
    gpu_host(&h, "cuda", "auto");
    pfx *c = gpu_open(&h, PFX_MAP_ALL), *b = gpu_open(&h, PFX_MAP_ALL);
    ck_assert_ptr_ne(pfx_block_address(c, 0, 1), pfx_block_address(b, 0, 1));
    pfx_close(b);
    pfx_close(c);
    ck_assert(!host_logged(&h, "warning"));
    ck_assert(host_logged(&h, "device 0: " UUID_BUT_LAST "00, exported as a descriptor (fd)\n"));
    host_stop(&h);
    setenv("FAKE_CUDA_ATTRIBUTES", "103=0", 1);
    gpu_host(&h, "cuda", "auto");
    c = gpu_open(&h, PFX_MAP_ALL);
    b = gpu_open(&h, PFX_MAP_ALL);
    ck_assert_ptr_eq(pfx_block_address(c, 0, 1), pfx_block_address(b, 0, 1)); /* a handle */
    pfx_close(b);
    pfx_close(c);
    ck_assert(host_logged(&h, "device 0: " UUID_BUT_LAST "00, exported as a handle (ipc)\n"));
    host_stop(&h);
}
END_TEST

/* Options that are of the other kind of pool are warned of, each by its name. */
static const struct {
    const char *device, *option, *value, *warning;
} others[] = {
    {"host", "--cuda-export", "fd", "warning: --cuda-export: the pool is in host memory"},
    {"host", "--cuda-export", "auto", NULL},
    {"cuda", "--cuda-export", "fd", NULL},
    {"cuda", "--numa", "0", "warning: --numa: the pool is on GPUs"},
    {"cuda", "--numa", "any", NULL},
    {"cuda", "--huge-pages", NULL, "warning: --huge-pages: the pool is on GPUs"},
};
enum { OTHERS = sizeof others / sizeof others[0] };

START_TEST(options_of_another_pool_are_warned_of)
{
    struct host h;
    HOST_START(&h, "--device", others[_i].device, "--block-bytes", "64", others[_i].option,
               others[_i].value);
    ck_assert_int_eq(host_logged(&h, "warning"), others[_i].warning != NULL);
    if (others[_i].warning)
        ck_assert(host_logged(&h, others[_i].warning));
    host_stop(&h);
}
END_TEST

/* CUDA is gone in a forked child; pfx_open says so, and pfx_close of what was inherited is safe. */
START_TEST(a_forked_child_is_told)
{
    struct host h;
    gpu_host(&h, "cuda", gpu_exports[_i]);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    pid_t pid = fork(); /* not child_start: that stands for an exec */
    if (pid == 0) {
        struct pfx_options o = worker_options(&h);
        pfx *mine;
        bool right = pfx_open(&o, &mine) == PFX_EAGAIN &&
                     strstr(pfx_why(NULL), "CUDA does not survive a fork") != NULL;
        pfx_close(c);
        _exit(right ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(pfx_ping(c), 0);
    memset(pfx_block_address(c, 0, 1), 1, 64);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* ---- a close under the GPU's work ----------------------------------------------------------- */

enum { BUSY_BYTES = 64, BUSY_US = 300 * 1000 };

/* Each page of the pool is written by the GPU, late; pfx_close is called meanwhile. `twin`: another
 * connection of the process still maps the pool. */
static void closes_busy(struct child *me, const struct host *h, bool twin)
{
    struct cuda_driver cu;
    void *context, *stream;
    char why[400];
    pfx *c = gpu_open(h, PFX_MAP_ALL), *other = twin ? gpu_open(h, PFX_MAP_ALL) : NULL;
    ck_assert_msg(cuda_open(&cu, why, sizeof why), "%s", why);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ck_assert_int_eq(cu.cuCtxPushCurrent(context), 0);
    ck_assert_int_eq(cu.cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING), 0);
    for (uint32_t b = 1; b <= 14; b++)
        ck_assert_int_eq(
            cu.cuMemsetD8Async((uintptr_t)pfx_block_address(c, 0, b), 0x99, BUSY_BYTES, stream), 0);
    pfx_close(c);
    child_post(me, 1);
    child_wait(me);
    pfx_close(other);
    ck_assert_int_eq(cu.cuStreamSynchronize(stream), 0);
    ck_assert_int_eq(cu.cuStreamDestroy(stream), 0);
    ck_assert_int_eq(cu.cuCtxPopCurrent(&context), 0);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRelease(0), 0);
}

static void closes_alone(struct child *me, void *arg)
{
    closes_busy(me, arg, false);
}

static void closes_twin(struct child *me, void *arg)
{
    closes_busy(me, arg, true);
}

/* The daemon gives the pages of a connection to others as soon as it is closed: nothing of it may
 * write any more then. Nor may a GPU lose memory that it works on: the process would lose its
 * context. */
START_TEST(a_close_waits_for_the_gpu)
{
    struct host h;
    struct child other;
    gpu_host(&h, "cuda", gpu_exports[_i % EXPORTS]);
    pfx *c = gpu_open(&h, PFX_MAP_ALL);
    char us[16];
    snprintf(us, sizeof us, "%d", BUSY_US);
    setenv("FAKE_CUDA_DELAY_US", us, 1);
    child_start(&other, _i < EXPORTS ? closes_alone : closes_twin, &h);
    child_wait(&other);
    for (uint32_t b = 1; b <= 14; b++)
        all_are(pfx_block_address(c, 0, b), 0x99);
    child_post(&other, 1);
    child_join(&other);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpus");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 30 * SLOW);
    tcase_add_loop_test(t, two_processes_share_one_memory, 0, EXPORTS);
    tcase_add_loop_test(t, connections_of_one_process, 0, EXPORTS);
    tcase_add_test(t, an_import_is_of_one_epoch);
    tcase_add_loop_test(t, gpus_are_found_by_uuid, 0, EXPORTS);
    tcase_add_test(t, the_daemon_numbers_what_it_sees);
    tcase_add_test(t, shards_of_a_layout);
    tcase_add_loop_test(t, who_maps_nothing_has_no_context, 0, EXPORTS);
    tcase_add_loop_test(t, the_callers_context_stays_current, 0, EXPORTS);
    tcase_add_test(t, auto_takes_descriptors_where_it_can);
    tcase_add_loop_test(t, options_of_another_pool_are_warned_of, 0, OTHERS);
    tcase_add_loop_test(t, a_forked_child_is_told, 0, EXPORTS);
    tcase_add_loop_test(t, a_close_waits_for_the_gpu, 0, 2 * EXPORTS);
    suite_add_tcase(s, t);
    return s;
}
