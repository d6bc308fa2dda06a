/*
 * What kernels/cuda_driver.h declares by itself, against CUDA's own headers: compiled is passed.
 * Each function exists in the version asked for and takes as many parameters, each as large, and
 * the same of them pointers (handles of ours are void *, or uint64_t where the driver has an
 * integer); constants and structs are the driver's.
 */
#include "kernels/cuda_driver.h"

#include <cudaTypedefs.h> /* after ours: it renames functions by macros */

#include <cstddef>
#include <type_traits>

template <class A, class B> constexpr bool same_shape()
{
    return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
}

/* same<theirs, ours>: of two pointers to functions. */
template <class Theirs, class Ours> struct same {
    static constexpr bool value = false;
};
template <bool as_many, class Theirs, class Ours> struct same_parameters {
    static constexpr bool value = false;
};
template <class R, class... A, class S, class... B>
struct same_parameters<true, R (*)(A...), S (*)(B...)> {
    static constexpr bool value = (same_shape<A, B>() && ...);
};
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
    static constexpr bool value =
        same_shape<R, S>() &&
        same_parameters<sizeof...(A) == sizeof...(B), R (*)(A...), S (*)(B...)>::value;
};

#define CHECK(name, version, needed, parameters)                                                   \
    static_assert(same<PFN_##name##_v##version, int(*) parameters>::value, #name);
CUDA_CALLS(CHECK)
CUDA_OLD_CALLS(CHECK)

/* A difference is seen. */
static_assert(!same<PFN_cuMemcpyBatchAsync_v12080, PFN_cuMemcpyBatchAsync_v13000>::value, "");
static_assert(!same<PFN_cuMemcpyHtoDAsync_v3020, PFN_cuMemcpyDtoHAsync_v3020>::value, "");

#define EQUAL(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours)
EQUAL(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
EQUAL(CUDA_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
EQUAL(CUDA_DEVICE_UNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
EQUAL(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
EQUAL(CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
EQUAL(CUDA_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
EQUAL(CUDA_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
EQUAL(CUDA_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
EQUAL(CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
EQUAL(CUDA_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
EQUAL(CUDA_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
EQUAL(CUDA_OS_ERROR, CUDA_ERROR_OPERATING_SYSTEM);
EQUAL(CUDA_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
EQUAL(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
EQUAL(CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
EQUAL(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
EQUAL(CUDA_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
EQUAL(CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
EQUAL(CUDA_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY);
EQUAL(CUDA_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
EQUAL(CUDA_UNKNOWN, CUDA_ERROR_UNKNOWN);

EQUAL(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
EQUAL(CUDA_MEMORY_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
EQUAL(CUDA_HANDLE_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
EQUAL(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
EQUAL(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
EQUAL(CUDA_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
EQUAL(CUDA_IPC_LAZY_PEER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
EQUAL(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
EQUAL(CUDA_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
EQUAL(CUDA_HAS_UNIFIED_ADDRESSES, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
EQUAL(CUDA_HAS_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
EQUAL(CUDA_HAS_FD_HANDLES, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
EQUAL(CUDA_HAS_IPC, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);

#define FIELD(ours, field, theirs, their_field)                                                    \
    static_assert(offsetof(struct ours, field) == offsetof(theirs, their_field), #ours "." #field)
static_assert(sizeof(struct cuda_uuid) == sizeof(CUuuid), "");
static_assert(sizeof(struct cuda_ipc_handle) == sizeof(CUipcMemHandle), "");
static_assert(sizeof(struct cuda_location) == sizeof(CUmemLocation), "");
static_assert(sizeof(struct cuda_memory_kind) == sizeof(CUmemAllocationProp), "");
static_assert(sizeof(struct cuda_access) == sizeof(CUmemAccessDesc), "");
static_assert(sizeof(struct cuda_copy_attributes) == sizeof(CUmemcpyAttributes), "");
FIELD(cuda_location, type, CUmemLocation, type);
FIELD(cuda_location, id, CUmemLocation, id);
FIELD(cuda_memory_kind, type, CUmemAllocationProp, type);
FIELD(cuda_memory_kind, handle_types, CUmemAllocationProp, requestedHandleTypes);
FIELD(cuda_memory_kind, location, CUmemAllocationProp, location);
FIELD(cuda_memory_kind, compression, CUmemAllocationProp, allocFlags);
FIELD(cuda_access, location, CUmemAccessDesc, location);
FIELD(cuda_access, flags, CUmemAccessDesc, flags);
FIELD(cuda_copy_attributes, order, CUmemcpyAttributes, srcAccessOrder);
FIELD(cuda_copy_attributes, from, CUmemcpyAttributes, srcLocHint);
FIELD(cuda_copy_attributes, to, CUmemcpyAttributes, dstLocHint);
FIELD(cuda_copy_attributes, flags, CUmemcpyAttributes, flags);
