#include "tools/gpu_check.h"
#include "kernels/block_copy_image.h"
#include "tools/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned n_findings;

/* ---- what is said ------------------------------------------------------------------------ */

void finding(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    n_findings++;
    printf("FAILED  ");
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
    va_end(args);
}

void fine(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("ok      ");
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
    va_end(args);
}

/* For what the private daemon has to say. */
int tool_fail(int code, const char *format, ...)
{
    va_list args;
    char text[2048];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    finding("%s", text);
    return code;
}

bool gpu_ok(const struct gpu *g, int result, const char *what)
{
    char why[400];
    if (result == CUDA_OK)
        return true;
    cuda_explain(&g->cu, result, what, why, sizeof why);
    finding("%s", why);
    return false;
}

/* ---- the GPU ------------------------------------------------------------------------------- */

bool gpu_use(struct gpu *g, int device)
{
    struct cuda_uuid uuid;
    g->device = device;
    if (!gpu_ok(g, g->cu.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid") ||
        !gpu_ok(g, g->cu.cuDeviceGetName(g->name, sizeof g->name, device), "cuDeviceGetName") ||
        !gpu_ok(g, g->cu.cuDevicePrimaryCtxRetain(&g->context, device),
                "cuDevicePrimaryCtxRetain") ||
        !gpu_ok(g, g->cu.cuCtxPushCurrent(g->context), "cuCtxPushCurrent"))
        return false;
    cuda_uuid_print(g->uuid, uuid.bytes);
    return true;
}

void *gpu_pinned(struct gpu *g, uint64_t bytes)
{
    void *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!at) {
        finding("there is no memory for %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
    memset(at, 0, bytes);
    if (gpu_ok(g, g->cu.cuMemHostRegister(at, bytes, 0), "cuMemHostRegister"))
        return at;
    free(at);
    return NULL;
}

void gpu_unpin(struct gpu *g, void *at)
{
    if (at)
        g->cu.cuMemHostUnregister(at);
    free(at);
}

/* ---- from start to end ------------------------------------------------------------------- */

static const char usage[] =
    "usage: gpu_check [--device INDEX] [--mib N] [--probe]\n"
    "Check prefixd on a GPU, and measure it. Exit status: 0 all is well, 1 something is not,\n"
    "2 a wrong option, 77 there is no driver or no GPU.\n"
    "  --device INDEX  which GPU, as CUDA_VISIBLE_DEVICES numbers them (0)\n"
    "  --mib N         how much is copied to measure (256)\n"
    "  --probe         only say whether there is a GPU\n";

enum { NUMBER_MOST = 1 << 16, MIB_LEAST = 4 };

struct options {
    unsigned long device, mib;
    bool probe, help;
};

static bool number(const char *option, const char *text, unsigned long least, unsigned long *to)
{
    char *end;
    errno = 0;
    *to = text ? strtoul(text, &end, 10) : 0;
    if (text && !errno && end != text && !*end && *to >= least && *to <= NUMBER_MOST)
        return true;
    fprintf(stderr, "gpu-check: %s: it takes a whole number, from %lu to %d; see --help\n", option,
            least, NUMBER_MOST);
    return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--probe") == 0)
            o->probe = true;
        else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0)
            o->help = true;
        else if (strcmp(option, "--device") == 0 || strcmp(option, "--mib") == 0) {
            bool mib = option[2] == 'm';
            if (!number(option, argv[++i], mib ? MIB_LEAST : 0, mib ? &o->mib : &o->device))
                return false;
        } else {
            fprintf(stderr, "gpu-check: %s: there is no such option; see --help\n", option);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct gpu g;
    char why[400];
    struct options o = {.mib = 256};
    if (argc == 4 && strcmp(argv[1], "--worker") == 0)
        return gpu_check_worker(argv[2], argv[3]);
    if (!parse(argc, argv, &o))
        return EXIT_USAGE;
    if (o.help) {
        fputs(usage, stdout);
        return EXIT_GOOD;
    }
    if (!cuda_open(&g.cu, why, sizeof why)) {
        printf("gpu-check: nothing was checked: %s.\n", why);
        return GPU_EXIT_NONE;
    }
    if (o.probe)
        return EXIT_GOOD;
    g.bytes = o.mib << 20;
    if (gpu_use(&g, (int)o.device)) {
        printf("%s, %s, driver for CUDA %d.%d; kernels: %s\n\n", g.name, g.uuid,
               g.cu.version / 1000, g.cu.version % 1000 / 10, block_copy_targets);
        gpu_check_copies(&g);
        gpu_check_sharing(&g);
        gpu_check_speed(&g);
    }
    printf("\ngpu-check: %s\n", n_findings ? "FAILED" : "ok");
    return n_findings ? EXIT_FINDING : EXIT_GOOD;
}
