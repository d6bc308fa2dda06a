/* Start, faults, devices, contexts. */
#include "tests/fake_cuda/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXTS_DEEP = 16, FAULTS_MAX = 16 };

struct fault {
    char name[CUDA_NAME_MAX];
    unsigned long nth, seen;
    bool on; /* and all later ones */
    int code;
};

static struct {
    pid_t pid; /* 0: not initialised */
    unsigned n_devices;
    int n_visible, visible[FAKE_DEVICES_MAX]; /* physical ones */
    unsigned retained[FAKE_DEVICES_MAX];
    struct fault fault[FAULTS_MAX];
    unsigned n_faults;
    bool faults_read;
} fake;

static _Thread_local int stack[CONTEXTS_DEEP]; /* visible device + 1 */
static _Thread_local unsigned n_stack;

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

void fake_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fake CUDA, process %d: ", (int)getpid());
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

const char *fake_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

const char *fake_machine(void)
{
    return fake_environment("FAKE_CUDA_MACHINE", "");
}

/* ---- faults ---------------------------------------------------------------------------------- */

void fake_cuda_fail(const char *faults)
{
    fake.faults_read = true;
    fake.n_faults = 0;
    while (faults && *faults && fake.n_faults < FAULTS_MAX) {
        struct fault *f = &fake.fault[fake.n_faults];
        *f = (struct fault){.code = CUDA_UNKNOWN};
        char plus[2] = "";
        int n = 0;
        if (sscanf(faults, "%63[^:]:%lu%1[+]:%d%n", f->name, &f->nth, plus, &f->code, &n) != 4 &&
            sscanf(faults, "%63[^:]:%lu:%d%n", f->name, &f->nth, &f->code, &n) != 3)
            fake_die("FAKE_CUDA_FAIL: %s is not NAME:N:CODE", faults);
        f->on = plus[0] == '+';
        fake.n_faults++;
        faults += n + (faults[n] == ',');
    }
}

static int fault_of(const char *name)
{
    if (!fake.faults_read)
        fake_cuda_fail(getenv("FAKE_CUDA_FAIL"));
    for (unsigned i = 0; i < fake.n_faults; i++) {
        struct fault *f = &fake.fault[i];
        if (strcmp(f->name, "*") != 0 && strcmp(f->name, name) != 0)
            continue;
        f->seen++;
        if (f->on ? f->seen >= f->nth : f->seen == f->nth)
            return f->code;
    }
    return 0;
}

int fake_enter(const char *name)
{
    if (fake.pid && fake.pid != getpid())
        fake_die("%s in a forked child: CUDA does not survive a fork", name);
    if (!fake.pid)
        return CUDA_NOT_INITIALIZED;
    return fault_of(name);
}

/* ---- start ------------------------------------------------------------------------------------
 */

void fake_uuid(int physical, uint8_t uuid[16])
{
    memcpy(uuid, "fake GPU number ", 16);
    uuid[15] = (uint8_t)physical;
}

/* An index, or the beginning of a UUID that only one has; -1: neither. */
static int named(const char *word, size_t n)
{
    char *end, text[CUDA_UUID_TEXT];
    uint8_t uuid[16];
    long index = strtol(word, &end, 10);
    if (end == word + n)
        return index >= 0 && index < (long)fake.n_devices ? (int)index : -1;
    int found = -1;
    for (int i = 0; i < (int)fake.n_devices; i++) {
        fake_uuid(i, uuid);
        cuda_uuid_print(text, uuid);
        if (n >= 5 && n < sizeof text && memcmp(text, word, n) == 0) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

/* The list ends at the first that is not there; one that stands twice leaves none. */
static void look_at_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    fake.n_visible = 0;
    if (!list) {
        for (unsigned i = 0; i < fake.n_devices; i++)
            fake.visible[fake.n_visible++] = (int)i;
        return;
    }
    while (*list) {
        size_t n = strcspn(list, ",");
        int physical = named(list, n);
        if (physical < 0)
            return;
        if (fake_visible(physical) >= 0) {
            fake.n_visible = 0;
            return;
        }
        fake.visible[fake.n_visible++] = physical;
        list += n + (list[n] == ',');
    }
}

int fake_cuInit(unsigned flags)
{
    if (flags)
        fake_die("cuInit: flags must be 0");
    if (fake.pid && fake.pid != getpid())
        return CUDA_NOT_INITIALIZED; /* as the real one answers */
    int result = fault_of("cuInit");
    if (result)
        return result;
    fake.n_devices = (unsigned)atoi(fake_environment("FAKE_CUDA_DEVICES", "2"));
    if (fake.n_devices > FAKE_DEVICES_MAX)
        fake_die("FAKE_CUDA_DEVICES: at most %d", FAKE_DEVICES_MAX);
    if (!fake.pid)
        look_at_visible();
    if (fake.n_visible == 0)
        return CUDA_NO_DEVICE;
    fake.pid = getpid();
    return CUDA_OK;
}

void fake_cuda_forked(void)
{
    if (!fake.pid || fake.pid == getpid())
        return;
    pthread_mutex_init(&fake_lock, NULL); /* another thread may have had it */
    fake_streams_forked();
    fake_memory_forked();
    memset(&fake, 0, sizeof fake);
    n_stack = 0;
}

static int version(void)
{
    return atoi(fake_environment("FAKE_CUDA_VERSION", "13000"));
}

int fake_cuDriverGetVersion(int *out)
{
    *out = version();
    return CUDA_OK;
}

FAKE_API int cuDriverGetVersion(int *out);
int cuDriverGetVersion(int *out)
{
    return fake_cuDriverGetVersion(out);
}

/* ---- who has which function ---------------------------------------------------------------------
 */

static bool missing(const char *name)
{
    const char *list = fake_environment("FAKE_CUDA_MISSING", "");
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ','))
            return true;
    return false;
}

FAKE_API int cuGetProcAddress_v2(const char *name, void **at, int wanted, uint64_t flags,
                                 int *found);
int cuGetProcAddress_v2(const char *name, void **at, int wanted, uint64_t flags, int *found)
{
    static const struct {
        const char *name;
        int version;
        void (*at)(void);
    } all[] = {
#define FAKE_ROW(name, version, needed, parameters) {#name, version, (void (*)(void))fake_##name},
        CUDA_CALLS(FAKE_ROW)
#undef FAKE_ROW
#define FAKE_ROW_OLD(name, version, needed, parameters)                                            \
    {#name, version, (void (*)(void))fake_##name##_v##version},
            CUDA_OLD_CALLS(FAKE_ROW_OLD)
#undef FAKE_ROW_OLD
    };
    bool known = missing(name), right = known;
    *at = NULL;
    *found = 1; /* no such symbol */
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i].name, name) != 0 || missing(name))
            continue;
        known = true;
        if (wanted != all[i].version)
            continue;
        right = true;
        *found = all[i].version <= version() ? 0 : 2; /* the driver is too old */
        if (*found == 0)
            memcpy(at, &all[i].at, sizeof *at);
    }
    if (known && !right)
        fake_die("%s was asked for as of %d, and is not compiled for that", name, wanted);
    return CUDA_OK; /* as the real one: the absence is no error */
}

int fake_cuGetErrorName(int result, const char **name)
{
    static const struct {
        int result;
        const char *name;
    } names[] = {
        {CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {CUDA_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CUDA_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {CUDA_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
        {CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].result == result) {
            *name = names[i].name;
            return CUDA_OK;
        }
    *name = NULL;
    return CUDA_INVALID_VALUE;
}

/* ---- devices
 * -------------------------------------------------------------------------------------- */

int fake_physical(int device)
{
    return device >= 0 && device < fake.n_visible ? fake.visible[device] : -1;
}

int fake_visible(int physical)
{
    for (int i = 0; i < fake.n_visible; i++)
        if (fake.visible[i] == physical)
            return i;
    return -1;
}

int fake_cuDeviceGetCount(int *count)
{
    FAKE_ENTER();
    *count = fake.n_visible;
    return CUDA_OK;
}

int fake_cuDeviceGet(int *device, int ordinal)
{
    FAKE_ENTER();
    if (fake_physical(ordinal) < 0)
        return CUDA_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_OK;
}

int fake_cuDeviceGetName(char *name, int room, int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0)
        return CUDA_INVALID_DEVICE;
    snprintf(name, (size_t)room, "Fake GPU");
    return CUDA_OK;
}

int fake_cuDeviceGetUuid(struct cuda_uuid *uuid, int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0)
        return CUDA_INVALID_DEVICE;
    fake_uuid(fake_physical(device), uuid->bytes);
    return CUDA_OK;
}

int fake_cuDeviceGetAttribute(int *value, int attribute, int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0)
        return CUDA_INVALID_DEVICE;
    *value = attribute == CUDA_HOST_NUMA_ID ? -1 : 1;
    const char *list = fake_environment("FAKE_CUDA_ATTRIBUTES", "");
    int given, at, n;
    while (sscanf(list, "%d=%d%n", &at, &given, &n) == 2) {
        if (at == attribute)
            *value = given;
        list += n + (list[n] == ',');
    }
    return CUDA_OK;
}

/* ---- contexts: the primary one of each device
 * ------------------------------------------------------- */

static void *context_of(int device)
{
    return (void *)&fake.retained[device];
}

static int device_of(const void *context)
{
    const unsigned *at = context;
    if (at < fake.retained || at >= fake.retained + FAKE_DEVICES_MAX || !*at)
        fake_die("a context is used that was never retained, or was released");
    return (int)(at - fake.retained);
}

int fake_current(const char *for_what)
{
    if (n_stack == 0)
        fake_die("%s: no context is current in this thread", for_what);
    int device = stack[n_stack - 1];
    if (!fake.retained[device])
        fake_die("%s: the context that is current was released", for_what);
    return device;
}

int fake_cuDevicePrimaryCtxRetain(void **context, int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0)
        return CUDA_INVALID_DEVICE;
    __atomic_add_fetch(&fake.retained[device], 1, __ATOMIC_SEQ_CST);
    *context = context_of(device);
    return CUDA_OK;
}

int fake_cuDevicePrimaryCtxRelease(int device)
{
    FAKE_ENTER();
    if (fake_physical(device) < 0 || !fake.retained[device])
        fake_die("cuDevicePrimaryCtxRelease: device %d has no context that was retained", device);
    if (__atomic_sub_fetch(&fake.retained[device], 1, __ATOMIC_SEQ_CST))
        return CUDA_OK;
    const char *lost = fake_memory_of_context(device);
    if (!lost)
        lost = fake_streams_of_context(device);
    if (lost)
        fake_die("cuDevicePrimaryCtxRelease: %s goes with the context", lost);
    return CUDA_OK;
}

int fake_cuCtxPushCurrent(void *context)
{
    FAKE_ENTER();
    if (n_stack == CONTEXTS_DEEP)
        fake_die("cuCtxPushCurrent: %d contexts are on this thread's stack", CONTEXTS_DEEP);
    stack[n_stack++] = device_of(context);
    return CUDA_OK;
}

int fake_cuCtxPopCurrent(void **context)
{
    FAKE_ENTER();
    if (n_stack == 0)
        fake_die("cuCtxPopCurrent: no context is current in this thread");
    int device = stack[--n_stack];
    if (context)
        *context = context_of(device);
    return CUDA_OK;
}

/* ---- what is left
 * --------------------------------------------------------------------------------- */

struct fake_facts fake_cuda_facts(void)
{
    struct fake_facts facts = {.initialised = fake.pid != 0};
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        facts.contexts += fake.retained[i];
    fake_memory_facts(&facts);
    fake_streams_facts(&facts);
    fake_kernels_facts(&facts);
    return facts;
}

__attribute__((destructor)) static void look_back(void)
{
    while (fake.pid == getpid() && fake_stuck())
        pause();
    if (fake.pid != getpid() || strcmp(fake_environment("FAKE_CUDA_LEAKS", "0"), "0") == 0)
        return;
    struct fake_facts f = fake_cuda_facts();
    /* contexts end with the process, as those of most programs do */
    if (!fake_memory_left() && !f.streams && !f.events && !f.pinned && !f.modules)
        return;
    fprintf(
        stderr,
        "fake CUDA, process %d: left at exit: %u contexts, %u mappings, %u handles, %u streams, "
        "%u events, %u pinned, %u modules\n",
        (int)getpid(), f.contexts, f.mappings, f.handles, f.streams, f.events, f.pinned, f.modules);
    _exit(86);
}
