#include "kernels/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int get_address(const char *name, void **at, int version, uint64_t flags, int *found);

/* ---- loading ----------------------------------------------------------------------------- */

static const char *text_of_version(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

static bool refuse_version(int version, char *why, size_t n_why)
{
    char has[16], oldest[16];
    snprintf(
        why, n_why,
        "the NVIDIA driver here serves CUDA %s at most and prefixd needs %s; update the driver",
        text_of_version(version, has), text_of_version(CUDA_OLDEST, oldest));
    return false;
}

/* A driver that is too old for cuGetProcAddress has had this one for ever. */
static bool refuse_old(void *library, char *why, size_t n_why)
{
    int (*ask)(int *) = NULL, version = 0;
    *(void **)(&ask) = dlsym(library, "cuDriverGetVersion");
    if (!ask || ask(&version)) {
        snprintf(why, n_why,
                 "libcuda.so.1 is no NVIDIA driver: it lacks cuGetProcAddress; see which file "
                 "`ldconfig -p` names and remove it");
        return false;
    }
    return refuse_version(version, why, n_why);
}

static bool load_one(get_address *ask, const char *name, int version, bool needed, void **at,
                     char *why, size_t n_why)
{
    int found = 0;
    *at = NULL;
    int result = ask(name, at, version, 0, &found);
    if (result == CUDA_OK && found == 0 && *at) /* success with a NULL is how it says "none" */
        return true;
    *at = NULL;
    if (!needed)
        return true;
    char since[16];
    snprintf(why, n_why, "the NVIDIA driver here has no %s as of CUDA %s; update the driver", name,
             text_of_version(version, since));
    return false;
}

static bool load_all(struct cuda_driver *cu, get_address *ask, char *why, size_t n_why)
{
#define CUDA_LOAD(name, version, needed, parameters)                                               \
    if (!load_one(ask, #name, version, needed, (void **)&cu->name, why, n_why))                    \
        return false;
    CUDA_CALLS(CUDA_LOAD)
#undef CUDA_LOAD
#define CUDA_LOAD_OLD(name, version, needed, parameters)                                           \
    if (!cu->name &&                                                                               \
        !load_one(ask, #name, version, needed, (void **)&cu->name##_v##version, why, n_why))       \
        return false;
    CUDA_OLD_CALLS(CUDA_LOAD_OLD)
#undef CUDA_LOAD_OLD
    return true;
}

bool cuda_open(struct cuda_driver *cu, char *why, size_t n_why)
{
    get_address *ask;
    memset(cu, 0, sizeof *cu);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        snprintf(why, n_why,
                 "there is no NVIDIA driver here (%s); install it, or start the container with "
                 "GPUs",
                 dlerror());
        return false;
    }
    *(void **)(&ask) = dlsym(library, "cuGetProcAddress_v2");
    if (!ask)
        return refuse_old(library, why, n_why);
    if (!load_all(cu, ask, why, n_why))
        return false;
    int result = cu->cuDriverGetVersion(&cu->version);
    if (result == CUDA_OK && cu->version < CUDA_OLDEST)
        return refuse_version(cu->version, why, n_why);
    if (result == CUDA_OK)
        result = cu->cuInit(0);
    if (result == CUDA_OK)
        return true;
    cuda_explain(cu, result, "the driver does not start", why, n_why);
    return false;
}

void cuda_or(char *why, size_t n_why, const char *otherwise)
{
    size_t n = strlen(why);
    snprintf(why + n, n_why - n, ", or %s", otherwise);
}

/* ---- errors -------------------------------------------------------------------------------- */

#define OTHER_KERNELS                                                                              \
    "this build's kernels are not for this GPU, or too new for this driver; build with an nvcc "   \
    "that knows the GPU and is no newer than the driver"

/* What they may mean to somebody who runs prefixd, and what to do. */
static const struct {
    int result;
    const char *remedy;
} remedies[] = {
    {CUDA_OUT_OF_MEMORY, "the GPU has no room for it: ask for less, or end what holds its memory "
                         "(nvidia-smi shows that)"},
    {CUDA_NOT_INITIALIZED, "CUDA does not survive a fork: this process was forked after its parent "
                           "used CUDA; start workers by exec (spawn)"},
    {CUDA_STUB_LIBRARY, "the libcuda.so.1 found is the toolkit's stub; take stubs/ out of "
                        "LD_LIBRARY_PATH"},
    {CUDA_DEVICE_UNAVAILABLE, "another process has the GPU for itself; set its compute mode to "
                              "DEFAULT (nvidia-smi -c 0)"},
    {CUDA_NO_DEVICE, "no GPU is visible to this process; check CUDA_VISIBLE_DEVICES, and that the "
                     "container was started with GPUs"},
    {CUDA_INVALID_DEVICE, "that GPU is not there; nvidia-smi -L lists those that are"},
    {CUDA_INVALID_IMAGE, OTHER_KERNELS},
    {CUDA_MAP_FAILED,
     "the handle could not be mapped: both sides need the same GPU, driver and pid "
     "namespace, and no MIG between them; try --cuda-export fd"},
    {CUDA_NO_BINARY, OTHER_KERNELS},
    {CUDA_UNSUPPORTED_PTX, OTHER_KERNELS},
    {CUDA_ECC_UNCORRECTABLE, "the GPU's memory is damaged; reset it or take it out of use"},
    {CUDA_OS_ERROR, "the kernel refused; check the driver's device files and the cgroup's rules"},
    {CUDA_INVALID_HANDLE, "the daemon that made the handle is gone, or in another pid namespace; "
                          "try --cuda-export fd"},
    {CUDA_ILLEGAL_ADDRESS, "this process used a wrong device address and its context is lost; "
                           "start it again"},
    {CUDA_LAUNCH_FAILED, "a kernel of this process failed and its context is lost; start it again"},
    {CUDA_NOT_PERMITTED, "the driver does not permit it to this process; check the container's "
                         "capabilities and IMEX channels"},
    {CUDA_NOT_SUPPORTED,
     "this GPU, or the way it is shared (MIG, WSL), cannot do it; try the other "
     "--cuda-export, or --device host"},
    {CUDA_SYSTEM_NOT_READY, "the system is not ready: start nvidia-fabricmanager"},
    {CUDA_DRIVER_MISMATCH, "libcuda.so.1 and the kernel's driver are of different versions; reboot "
                           "or install matching ones"},
    {CUDA_UNKNOWN, "the GPU may have been lost; the kernel's log (dmesg, Xid) says more"},
};

static const char *remedy_of(int result)
{
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
        if (remedies[i].result == result)
            return remedies[i].remedy;
    return "the kernel's log (dmesg, Xid) may say more";
}

void cuda_explain(const struct cuda_driver *cu, int result, const char *what, char *why,
                  size_t n_why)
{
    const char *name = NULL;
    if (cu->cuGetErrorName(result, &name) || !name)
        name = "an error without a name";
    snprintf(why, n_why, "%s: %s (%d): %s", what, name, result, remedy_of(result));
}

/* ---- names --------------------------------------------------------------------------------- */

int cuda_find(const struct cuda_driver *cu, const uint8_t uuid[16])
{
    int count = 0, device;
    struct cuda_uuid there;
    (void)cu->cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++)
        if (cu->cuDeviceGet(&device, i) == CUDA_OK &&
            cu->cuDeviceGetUuid(&there, device) == CUDA_OK &&
            memcmp(there.bytes, uuid, sizeof there.bytes) == 0)
            return device;
    return -1;
}

void cuda_uuid_print(char text[CUDA_UUID_TEXT], const uint8_t uuid[16])
{
    size_t n = (size_t)snprintf(text, CUDA_UUID_TEXT, "GPU-");
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(text + n, CUDA_UUID_TEXT - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'W'
                                                : -1;
}

bool cuda_uuid_parse(const char *text, size_t n, uint8_t uuid[16])
{
    if (n != CUDA_UUID_TEXT - 1 || (memcmp(text, "GPU-", 4) != 0 && memcmp(text, "MIG-", 4) != 0))
        return false;
    const char *at = text + 4;
    for (int i = 0; i < 16; i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *at++ != '-')
            return false;
        int high = digit(at[0]), low = high < 0 ? -1 : digit(at[1]);
        if (low < 0)
            return false;
        uuid[i] = (uint8_t)(high << 4 | low);
        at += 2;
    }
    return true;
}
