/*
 * The tester tested: each misuse ends the process of the fake driver's user with a sentence, and
 * the same calls in the right order do not.
 */
#include "kernels/cuda_driver.h"
#include "tests/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4 << 20 };

static struct cuda_driver cu;
static void *context;

static const struct cuda_memory_kind kind = {
    .type = CUDA_MEMORY_PINNED,
    .handle_types = CUDA_HANDLE_FD,
    .location = {CUDA_LOCATION_DEVICE, 0},
};

#define GOOD(call)                                                                                 \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_) {                                                                             \
            fprintf(stderr, "%s is %d\n", #call, result_);                                         \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static void begin(void)
{
    char why[400];
    if (!cuda_open(&cu, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        _exit(4);
    }
    GOOD(cu.cuDevicePrimaryCtxRetain(&context, 0));
    GOOD(cu.cuCtxPushCurrent(context));
}

static uint64_t allocate(void)
{
    uint64_t at;
    GOOD(cu.cuMemAlloc(&at, SIZE));
    return at;
}

static void *stream(void)
{
    void *s;
    GOOD(cu.cuStreamCreate(&s, CUDA_STREAM_NON_BLOCKING));
    return s;
}

/* ---- right -------------------------------------------------------------------------------------
 */

static char pinned[2][SIZE];

/* Copies on two streams, ordered by an event, late; then all of it is given back. */
static void in_order(void)
{
    void *a = stream(), *b = stream(), *event;
    uint64_t at = allocate();
    GOOD(cu.cuMemHostRegister(pinned, sizeof pinned, 0));
    GOOD(cu.cuEventCreate(&event, CUDA_EVENT_NO_TIMING));
    memset(pinned[0], 7, SIZE);
    GOOD(cu.cuMemcpyHtoDAsync(at, pinned[0], SIZE, a));
    GOOD(cu.cuEventRecord(event, a));
    GOOD(cu.cuStreamWaitEvent(b, event, 0));
    GOOD(cu.cuMemcpyDtoHAsync(pinned[1], at, SIZE, b));
    GOOD(cu.cuStreamSynchronize(b));
    if (memcmp(pinned[0], pinned[1], SIZE) != 0)
        _exit(5);
    GOOD(cu.cuStreamSynchronize(a));
    GOOD(cu.cuEventDestroy(event));
    GOOD(cu.cuStreamDestroy(a));
    GOOD(cu.cuStreamDestroy(b));
    GOOD(cu.cuMemHostUnregister(pinned));
    GOOD(cu.cuMemFree(at));
}

/* Late means late: without a wait the bytes are not there. */
static void really_late(void)
{
    void *a = stream();
    uint64_t at = allocate();
    setenv("FAKE_CUDA_DELAY_US", "2000000", 1);
    for (int i = 0; i < 4; i++) {
        GOOD(cu.cuMemsetD8Async(at, 9, SIZE, a));
        if (*(volatile char *)(uintptr_t)at == 9 && i == 0)
            _exit(6);
        setenv("FAKE_CUDA_DELAY_US", "1000", 1);
    }
    GOOD(cu.cuStreamSynchronize(a));
    if (*(volatile char *)(uintptr_t)at != 9)
        _exit(7);
    GOOD(cu.cuStreamDestroy(a));
    GOOD(cu.cuMemFree(at));
}

static void map_and_unmap(void)
{
    uint64_t handle, at;
    const struct cuda_access access = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ_WRITE};
    GOOD(cu.cuMemCreate(&handle, SIZE, &kind, 0));
    GOOD(cu.cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    GOOD(cu.cuMemMap(at, SIZE, 0, handle, 0));
    GOOD(cu.cuMemSetAccess(at, SIZE, &access, 1));
    GOOD(cu.cuMemRelease(handle));
    *(char *)(uintptr_t)at = 1;
    GOOD(cu.cuMemUnmap(at, SIZE));
    GOOD(cu.cuMemAddressFree(at, SIZE));
}

/* ---- wrong --------------------------------------------------------------------------------------
 */

static void free_twice(void)
{
    uint64_t at = allocate();
    GOOD(cu.cuMemFree(at));
    (void)cu.cuMemFree(at);
}

static void release_twice(void)
{
    uint64_t handle;
    GOOD(cu.cuMemCreate(&handle, SIZE, &kind, 0));
    GOOD(cu.cuMemRelease(handle));
    (void)cu.cuMemRelease(handle);
}

static void no_context(void)
{
    uint64_t at;
    GOOD(cu.cuCtxPopCurrent(NULL));
    (void)cu.cuMemAlloc(&at, SIZE);
}

static void released_context(void)
{
    uint64_t at;
    GOOD(cu.cuDevicePrimaryCtxRelease(0));
    (void)cu.cuMemAlloc(&at, SIZE);
}

static void memory_goes_with_its_context(void)
{
    (void)allocate();
    GOOD(cu.cuCtxPopCurrent(NULL));
    (void)cu.cuDevicePrimaryCtxRelease(0);
}

static void stream_goes_with_its_context(void)
{
    (void)stream();
    GOOD(cu.cuCtxPopCurrent(NULL));
    (void)cu.cuDevicePrimaryCtxRelease(0);
}

static void wrong_context(void)
{
    uint64_t at = allocate();
    void *other;
    GOOD(cu.cuDevicePrimaryCtxRetain(&other, 1));
    GOOD(cu.cuCtxPushCurrent(other));
    (void)cu.cuMemFree(at);
}

static void part_of_a_block(void)
{
    uint64_t at;
    struct cuda_ipc_handle handle;
    GOOD(cu.cuMemAlloc(&at, SIZE - 1));
    (void)cu.cuIpcGetMemHandle(&handle, at);
}

static void own_handle(void)
{
    uint64_t at = allocate();
    struct cuda_ipc_handle handle;
    GOOD(cu.cuIpcGetMemHandle(&handle, at));
    (void)cu.cuIpcOpenMemHandle(&at, handle, CUDA_IPC_LAZY_PEER);
}

static void offset(void)
{
    uint64_t handle, at;
    GOOD(cu.cuMemCreate(&handle, SIZE, &kind, 0));
    GOOD(cu.cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    (void)cu.cuMemMap(at, SIZE / 2, SIZE / 2, handle, 0);
}

static void forked(void)
{
    int status = 0, count;
    pid_t pid = fork();
    if (pid == 0) {
        (void)cu.cuDeviceGetCount(&count);
        _exit(0);
    }
    (void)waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        abort();
}

static void pageable(void)
{
    (void)cu.cuMemcpyHtoDAsync(allocate(), pinned[0], SIZE, stream());
}

static void two_streams(void)
{
    uint64_t at = allocate();
    (void)cu.cuMemsetD8Async(at, 1, SIZE, stream());
    (void)cu.cuMemsetD8Async(at + SIZE / 2, 2, 16, stream());
}

static void freed_in_use(void)
{
    uint64_t at = allocate();
    (void)cu.cuMemsetD8Async(at, 1, SIZE, stream());
    (void)cu.cuMemFree(at);
}

static void unpinned_in_use(void)
{
    void *s = stream();
    GOOD(cu.cuMemHostRegister(pinned, sizeof pinned, 0));
    (void)cu.cuMemcpyHtoDAsync(allocate(), pinned[0], SIZE, s);
    (void)cu.cuMemHostUnregister(pinned);
}

static void copy_after_free(void)
{
    uint64_t at = allocate();
    GOOD(cu.cuMemFree(at));
    (void)cu.cuMemsetD8Async(at, 1, SIZE, stream());
}

static void null_stream(void)
{
    (void)cu.cuMemsetD8Async(allocate(), 1, SIZE, NULL);
}

/* An importer in another process has it open. */
static void free_under_importer(void)
{
    uint64_t at = allocate();
    struct cuda_ipc_handle handle;
    int down[2], up[2];
    char byte;
    GOOD(cu.cuIpcGetMemHandle(&handle, at));
    if (pipe(down) || pipe(up))
        _exit(8);
    if (fork() == 0) {
        void (*forget)(void) = NULL;
        *(void **)(&forget) = fake_cuda("fake_cuda_forked");
        forget();
        begin();
        GOOD(cu.cuIpcOpenMemHandle(&at, handle, CUDA_IPC_LAZY_PEER));
        (void)!write(up[1], "o", 1);
        close(down[1]);
        (void)!read(down[0], &byte, 1);
        _exit(0);
    }
    close(up[1]);
    (void)!read(up[0], &byte, 1);
    (void)cu.cuMemFree(at);
}

static const struct {
    const char *name;
    void (*act)(void);
    const char *says; /* NULL: it is right */
} acts[] = {
    {"in order", in_order, NULL},
    {"really late", really_late, NULL},
    {"map and unmap", map_and_unmap, NULL},
    {"free twice", free_twice, "cuMemFree: "},
    {"release twice", release_twice, "or was released"},
    {"no context", no_context, "no context is current"},
    {"released context", released_context, "the context that is current was released"},
    {"memory goes with its context", memory_goes_with_its_context, "memory of cuMemAlloc goes"},
    {"stream goes with its context", stream_goes_with_its_context, "a stream goes"},
    {"wrong context", wrong_context, "of another device"},
    {"part of a block", part_of_a_block, "no multiple of 2 MiB"},
    {"own handle", own_handle, "this process's own"},
    {"offset", offset, "offset and flags must be 0"},
    {"forked", forked, "CUDA does not survive a fork"},
    {"pageable", pageable, "not pinned host memory"},
    {"two streams", two_streams, "not ordered before it"},
    {"freed in use", freed_in_use, "nothing has waited for that"},
    {"unpinned in use", unpinned_in_use, "nothing has waited for that"},
    {"copy after free", copy_after_free, "not device memory"},
    {"null stream", null_stream, "that is no stream"},
    {"free under an importer", free_under_importer, "another process has it open"},
};
enum { ACTS = sizeof acts / sizeof acts[0] };

START_TEST(misuse_is_seen)
{
    char said[2048] = "";
    int out[2], status;
    ck_assert_int_eq(pipe(out), 0);
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        begin();
        acts[_i].act();
        _exit(0);
    }
    close(out[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ssize_t n = read(out[0], said, sizeof said - 1);
    said[n > 0 ? n : 0] = 0;
    if (!acts[_i].says) {
        ck_assert_msg(status == 0, "%s: 0x%x, %s", acts[_i].name, (unsigned)status, said);
        return;
    }
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s: 0x%x, %s", acts[_i].name,
                  (unsigned)status, said);
    ck_assert_msg(strstr(said, acts[_i].says) != NULL, "%s: %s", acts[_i].name, said);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fake cuda");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 30 * SLOW);
    tcase_add_loop_test(t, misuse_is_seen, 0, ACTS);
    suite_add_tcase(s, t);
    return s;
}
