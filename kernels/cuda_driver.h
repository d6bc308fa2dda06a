/*
 * cuda_driver.h - what we use of libcuda, loaded when the first GPU is asked for.
 *
 * The build needs no CUDA toolkit and the binary no driver: types are declared here, in plain C,
 * and functions are asked of cuGetProcAddress by name and by the version of the signature that
 * stands below. A newer driver then hands out that very signature, not its newest; one that lacks
 * it says so, and the caller gets a sentence instead of a crash.
 *
 * Handles of the driver (contexts, streams, events, modules, functions) are void *, addresses of
 * device memory and handles of allocations uint64_t, devices int, results enum cuda_result.
 */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Those that we tell apart, or say more about than the driver does. */
enum cuda_result {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_STUB_LIBRARY = 34,
    CUDA_DEVICE_UNAVAILABLE = 46,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_MAP_FAILED = 205,
    CUDA_NO_BINARY = 209,
    CUDA_ECC_UNCORRECTABLE = 214,
    CUDA_UNSUPPORTED_PTX = 222,
    CUDA_OS_ERROR = 304,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_READY = 600,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_PERMITTED = 800,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_SYSTEM_NOT_READY = 802,
    CUDA_DRIVER_MISMATCH = 803,
    CUDA_UNKNOWN = 999,
};

/* ---- structs of the driver's interface --------------------------------------------------- */

struct cuda_uuid {
    uint8_t bytes[16];
};

struct cuda_ipc_handle {
    uint8_t bytes[64];
};
static_assert(sizeof(struct cuda_ipc_handle) == 64, "CU_IPC_HANDLE_SIZE");

struct cuda_location {
    int type; /* CUDA_LOCATION_DEVICE */
    int id;
};

struct cuda_memory_kind { /* CUmemAllocationProp_v1 */
    int type;             /* CUDA_MEMORY_PINNED */
    int handle_types;     /* CUDA_HANDLE_FD */
    struct cuda_location location;
    void *reserved_pointer;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};
static_assert(sizeof(struct cuda_memory_kind) == 32, "as the driver has it");

struct cuda_access { /* CUmemAccessDesc_v1 */
    struct cuda_location location;
    int flags; /* CUDA_ACCESS_READ_WRITE */
};

struct cuda_copy_attributes { /* CUmemcpyAttributes_v1 */
    int order;                /* CUDA_ORDER_STREAM */
    struct cuda_location from, to;
    unsigned flags;
};
static_assert(sizeof(struct cuda_copy_attributes) == 24, "as the driver has it");

enum {
    CUDA_LOCATION_DEVICE = 1,
    CUDA_MEMORY_PINNED = 1,
    CUDA_HANDLE_FD = 1,
    CUDA_ACCESS_READ_WRITE = 3,
    CUDA_GRANULARITY_MINIMUM = 0,
    CUDA_ORDER_STREAM = 1,
    CUDA_IPC_LAZY_PEER = 1,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
};

/* Attributes of a device. */
enum {
    CUDA_HAS_UNIFIED_ADDRESSES = 41,
    CUDA_HAS_VMM = 102,
    CUDA_HAS_FD_HANDLES = 103,
    CUDA_HAS_IPC = 125,
    CUDA_HOST_NUMA_ID = 134, /* CUDA 12.2 */
};

/* ---- one table --------------------------------------------------------------------------- */

/* Name, version of the signature, whether prefixd needs it, parameters. All that is needed came
 * with CUDA 12.0 at the latest. */
#define CUDA_CALLS(C)                                                                              \
    C(cuInit, 2000, true, (unsigned flags))                                                        \
    C(cuDriverGetVersion, 2020, true, (int *version))                                              \
    C(cuGetErrorName, 6000, true, (int result, const char **name))                                 \
    C(cuDeviceGetCount, 2000, true, (int *count))                                                  \
    C(cuDeviceGet, 2000, true, (int *device, int ordinal))                                         \
    C(cuDeviceGetName, 2000, true, (char *name, int room, int device))                             \
    C(cuDeviceGetUuid, 11040, true, (struct cuda_uuid * uuid, int device))                         \
    C(cuDeviceGetAttribute, 2000, true, (int *value, int attribute, int device))                   \
    C(cuDeviceTotalMem, 3020, true, (size_t * bytes, int device))                                  \
    C(cuDevicePrimaryCtxRetain, 7000, true, (void **context, int device))                          \
    C(cuDevicePrimaryCtxRelease, 11000, true, (int device))                                        \
    C(cuCtxPushCurrent, 4000, true, (void *context))                                               \
    C(cuCtxPopCurrent, 4000, true, (void **context))                                               \
    C(cuCtxSynchronize, 2000, true, (void))                                                        \
    C(cuMemGetInfo, 3020, true, (size_t * free_bytes, size_t * total))                             \
    C(cuMemAlloc, 3020, true, (uint64_t * address, size_t bytes))                                  \
    C(cuMemFree, 3020, true, (uint64_t address))                                                   \
    C(cuIpcGetMemHandle, 4010, true, (struct cuda_ipc_handle * handle, uint64_t address))          \
    C(cuIpcOpenMemHandle, 11000, true,                                                             \
      (uint64_t * address, struct cuda_ipc_handle handle, unsigned flags))                         \
    C(cuIpcCloseMemHandle, 4010, true, (uint64_t address))                                         \
    C(cuMemGetAllocationGranularity, 10020, true,                                                  \
      (size_t * bytes, const struct cuda_memory_kind *kind, int which))                            \
    C(cuMemCreate, 10020, true,                                                                    \
      (uint64_t * handle, size_t bytes, const struct cuda_memory_kind *kind,                       \
       unsigned long long flags))                                                                  \
    C(cuMemRelease, 10020, true, (uint64_t handle))                                                \
    C(cuMemExportToShareableHandle, 10020, true,                                                   \
      (void *shared, uint64_t handle, int type, unsigned long long flags))                         \
    C(cuMemImportFromShareableHandle, 10020, true, (uint64_t * handle, void *shared, int type))    \
    C(cuMemAddressReserve, 10020, true,                                                            \
      (uint64_t * address, size_t bytes, size_t alignment, uint64_t wish,                          \
       unsigned long long flags))                                                                  \
    C(cuMemAddressFree, 10020, true, (uint64_t address, size_t bytes))                             \
    C(cuMemMap, 10020, true,                                                                       \
      (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))  \
    C(cuMemUnmap, 10020, true, (uint64_t address, size_t bytes))                                   \
    C(cuMemSetAccess, 10020, true,                                                                 \
      (uint64_t address, size_t bytes, const struct cuda_access *access, size_t n))                \
    C(cuMemHostRegister, 6050, true, (void *host, size_t bytes, unsigned flags))                   \
    C(cuMemHostUnregister, 4000, true, (void *host))                                               \
    C(cuStreamCreate, 2000, true, (void **stream, unsigned flags))                                 \
    C(cuStreamDestroy, 4000, true, (void *stream))                                                 \
    C(cuStreamSynchronize, 2000, true, (void *stream))                                             \
    C(cuStreamWaitEvent, 3020, true, (void *stream, void *event, unsigned flags))                  \
    C(cuEventCreate, 2000, true, (void **event, unsigned flags))                                   \
    C(cuEventDestroy, 4000, true, (void *event))                                                   \
    C(cuEventRecord, 2000, true, (void *event, void *stream))                                      \
    C(cuEventQuery, 2000, true, (void *event))                                                     \
    C(cuEventSynchronize, 2000, true, (void *event))                                               \
    C(cuMemsetD8Async, 3020, true,                                                                 \
      (uint64_t address, unsigned char byte, size_t bytes, void *stream))                          \
    C(cuMemcpyHtoDAsync, 3020, true, (uint64_t to, const void *from, size_t bytes, void *stream))  \
    C(cuMemcpyDtoHAsync, 3020, true, (void *to, uint64_t from, size_t bytes, void *stream))        \
    C(cuMemcpyDtoDAsync, 3020, true, (uint64_t to, uint64_t from, size_t bytes, void *stream))     \
    C(cuMemcpyBatchAsync, 13000, false,                                                            \
      (uint64_t * to, uint64_t * from, size_t * bytes, size_t n,                                   \
       struct cuda_copy_attributes * attributes, size_t * first, size_t n_attributes,              \
       void *stream))                                                                              \
    C(cuModuleLoadData, 2000, true, (void **module, const void *image))                            \
    C(cuModuleUnload, 2000, true, (void *module))                                                  \
    C(cuModuleGetFunction, 2000, true, (void **function, void *module, const char *name))          \
    C(cuLaunchKernel, 4000, true,                                                                  \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, \
       void **extra))

/* The same, with another signature, of drivers that have no newer one: fields name_v12080. */
#define CUDA_OLD_CALLS(C)                                                                          \
    C(cuMemcpyBatchAsync, 12080, false,                                                            \
      (uint64_t * to, uint64_t * from, size_t * bytes, size_t n,                                   \
       struct cuda_copy_attributes * attributes, size_t * first, size_t n_attributes,              \
       size_t * failed, void *stream))

enum { CUDA_OLDEST = 12000, CUDA_NAME_MAX = 64 };

struct cuda_driver {
#define CUDA_FIELD(name, version, needed, parameters) int(*name) parameters;
    CUDA_CALLS(CUDA_FIELD)
#undef CUDA_FIELD
#define CUDA_OLD_FIELD(name, version, needed, parameters) int(*name##_v##version) parameters;
    CUDA_OLD_CALLS(CUDA_OLD_FIELD)
#undef CUDA_OLD_FIELD
    int version; /* 12040: CUDA 12.4 */
};

/* Load it and initialise it in this process. The library is never unloaded: threads of its own
 * live in it. False, and a sentence that names the cause and the remedy. */
bool cuda_open(struct cuda_driver *cu, char *why, size_t n_why);

/* To that sentence: ", or do this", which only the caller knows. */
void cuda_or(char *why, size_t n_why, const char *otherwise);

/* "what: CUDA_ERROR_NAME; what it may mean and what to do". */
void cuda_explain(const struct cuda_driver *cu, int result, const char *what, char *why,
                  size_t n_why);

/* The device of that UUID, as this process numbers them (CUDA_VISIBLE_DEVICES); -1: none. */
int cuda_find(const struct cuda_driver *cu, const uint8_t uuid[16]);

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
enum { CUDA_UUID_TEXT = 41 };
void cuda_uuid_print(char text[CUDA_UUID_TEXT], const uint8_t uuid[16]);
bool cuda_uuid_parse(const char *text, size_t n, uint8_t uuid[16]); /* GPU-.. or MIG-.. */

#endif
