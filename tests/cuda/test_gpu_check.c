/* tools/gpu_check where there is no GPU, and on GPUs that are not real. */
#include "kernels/block_copy_image.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char output[64 * 1024];

static int check(const char *libraries, const char *const *options)
{
    char machine[32];
    snprintf(machine, sizeof machine, "gpu_check-%d", (int)getpid()); /* memory of its own */
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    setenv("LD_LIBRARY_PATH", libraries, 1);
    return program_run(getenv("GPU_CHECK_BIN"), options, output, sizeof output);
}
#define CHECK(libraries, ...) check(libraries, (const char *const[]){__VA_ARGS__, NULL})

/* Is this said? */
static void said(const char *text)
{
    ck_assert_msg(strstr(output, text) != NULL, "not said: %s\n%s", text, output);
}

static void not_said(const char *text)
{
    ck_assert_msg(strstr(output, text) == NULL, "said: %s\n%s", text, output);
}

/* A driver that is of no use: one sentence, and an exit status of its own. */
START_TEST(no_driver)
{
    ck_assert_int_eq(CHECK(getenv("OLD_CUDA_DIR"), "--mib", "4"), 77);
    said("gpu-check: nothing was checked: ");
    ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
    ck_assert_int_eq(CHECK(getenv("OLD_CUDA_DIR"), "--probe"), 77);
}
END_TEST

START_TEST(no_gpu)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib", "4"), 77);
    said("no GPU is visible to this process");
    ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
}
END_TEST

START_TEST(usage)
{
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib"), 2);
    said("gpu-check: --mib: it takes a whole number, from 4 to 65536; see --help\n");
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib", "3"), 2);
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--what", "4"), 2);
    said("gpu-check: --what: there is no such option; see --help\n");
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib", "4", "--device", "x"), 2);
    said("gpu-check: --device: it takes a whole number, from 0 to 65536; see --help\n");
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--help"), 0);
    said("usage: gpu_check");
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--probe"), 0);
}
END_TEST

/* All of it. A build without kernels is found out. */
START_TEST(all_is_well)
{
    bool kernels = block_copy_image_bytes > 0;
    setenv("FAKE_CUDA_LEAKS", "1", 1);
    setenv("FAKE_CUDA_TOUCH", "0", 1);
    setenv("FAKE_CUDA_DELAY_US", "200", 1);
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib", "4"), kernels ? 0 : 1);
    said(kernels ? "2 MiB out and in again, by the kernel" : "this build has no kernels");
    said("2 MiB out and in again, by the copy engine");
    for (int i = 0; i < 2; i++) {
        static const char *const export[] = {"fd", "ipc"};
        char text[96];
        snprintf(text, sizeof text, "%s: every block and slot of the pool", export[i]);
        said(text);
        snprintf(text, sizeof text, "%s: one process wrote 8 blocks", export[i]);
        said(text);
        snprintf(text, sizeof text, "%s: kill -9 of a worker", export[i]);
        said(text);
        snprintf(text, sizeof text, "%s: kill -9 of the daemon, then of its worker", export[i]);
        said(text);
    }
    said("| 64 KiB |");
    said("| 2048 KiB |");
    if (kernels)
        not_said("none");
}
END_TEST

/* It is seen when a kernel fails, when other bytes come out than went in, when an export is
 * refused, and when there is no memory. */
static const struct {
    const char *name, *value, *said;
} faults[] = {
    {"FAKE_CUDA_FAIL", "cuLaunchKernel:3:719", "cuLaunchKernel: "},
    {"FAKE_CUDA_ROT", "1", "its memory is not what it must be"},
    {"FAKE_CUDA_ROT", "2", "came out of the GPU with other bytes"},
    {"FAKE_CUDA_FAIL", "cuMemImportFromShareableHandle:1:801", "the worker that should pool said"},
    {"FAKE_CUDA_FAIL", "cuIpcGetMemHandle:1:801", "the private daemon did not start"},
    {"FAKE_CUDA_BYTES", "67108864", "the private daemon did not start"},
};

START_TEST(faults_are_found)
{
    if (_i == 0 && !block_copy_image_bytes)
        return; /* there is no kernel to fail */
    setenv(faults[_i].name, faults[_i].value, 1);
    ck_assert_int_eq(CHECK(getenv("FAKE_CUDA_DIR"), "--mib", "4"), 1);
    said(faults[_i].said);
    said("FAILED  ");
    said("gpu-check: FAILED");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpu_check");
    TCase *tc = tcase_create("gpu_check");
    tcase_set_timeout(tc, 60 * SLOW);
    tcase_add_test(tc, no_driver);
    tcase_add_test(tc, no_gpu);
    tcase_add_test(tc, usage);
    tcase_add_test(tc, all_is_well);
    tcase_add_loop_test(tc, faults_are_found, 0, sizeof faults / sizeof *faults);
    suite_add_tcase(s, tc);
    return s;
}
