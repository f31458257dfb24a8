/* cuda_api.h: the part of the CUDA driver API that we call, declared here since the driver is loaded when the program runs.
 *
 * The names are those of the library: a function that has changed is there under its first name too, as what it was. The
 * youngest is cuGraphInstantiateWithFlags, of CUDA 11.4.
 *
 * Source: NVIDIA, CUDA Driver API reference manual: functions, and the values of its enumerations. */
#ifndef POCKFARM_CUDA_API_H
#define POCKFARM_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cu_result;
typedef int32_t cu_device;
typedef uint64_t cu_address; /* CUdeviceptr */
typedef void *cu_handle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    CUDA_ERROR_INVALID_SOURCE = 300,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ATTACH_HOST = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
};

/* PF_CU(name, parameters) of every function; all answer a cu_result. */
#define PF_CU_FUNCTIONS(PF_CU)                                                                                                 \
    PF_CU(cuGetErrorName, (cu_result, const char **))                                                                          \
    PF_CU(cuInit, (uint32_t))                                                                                                  \
    PF_CU(cuDriverGetVersion, (int32_t *))                                                                                     \
    PF_CU(cuDeviceGetCount, (int32_t *))                                                                                       \
    PF_CU(cuDeviceGet, (cu_device *, int32_t))                                                                                 \
    PF_CU(cuDeviceGetName, (char *, int32_t, cu_device))                                                                       \
    PF_CU(cuDeviceGetAttribute, (int32_t *, int32_t, cu_device))                                                               \
    PF_CU(cuDeviceTotalMem_v2, (size_t *, cu_device))                                                                          \
    PF_CU(cuDevicePrimaryCtxRetain, (cu_handle *, cu_device))                                                                  \
    PF_CU(cuDevicePrimaryCtxRelease_v2, (cu_device))                                                                           \
    PF_CU(cuCtxSetCurrent, (cu_handle))                                                                                        \
    PF_CU(cuStreamCreate, (cu_handle *, uint32_t))                                                                             \
    PF_CU(cuStreamSynchronize, (cu_handle))                                                                                    \
    PF_CU(cuStreamAttachMemAsync, (cu_handle, cu_address, size_t, uint32_t))                                                   \
    PF_CU(cuStreamBeginCapture_v2, (cu_handle, int32_t))                                                                       \
    PF_CU(cuStreamEndCapture, (cu_handle, cu_handle *))                                                                        \
    PF_CU(cuStreamDestroy_v2, (cu_handle))                                                                                     \
    PF_CU(cuMemAlloc_v2, (cu_address *, size_t))                                                                               \
    PF_CU(cuMemAllocManaged, (cu_address *, size_t, uint32_t))                                                                 \
    PF_CU(cuMemFree_v2, (cu_address))                                                                                          \
    PF_CU(cuMemHostAlloc, (void **, size_t, uint32_t))                                                                         \
    PF_CU(cuMemFreeHost, (void *))                                                                                             \
    PF_CU(cuMemsetD8Async, (cu_address, uint8_t, size_t, cu_handle))                                                           \
    PF_CU(cuMemcpyHtoDAsync_v2, (cu_address, const void *, size_t, cu_handle))                                                 \
    PF_CU(cuMemcpyDtoHAsync_v2, (void *, cu_address, size_t, cu_handle))                                                       \
    PF_CU(cuModuleLoadData, (cu_handle *, const void *))                                                                       \
    PF_CU(cuModuleLoadDataEx, (cu_handle *, const void *, uint32_t, int32_t *, void **))                                       \
    PF_CU(cuModuleGetFunction, (cu_handle *, cu_handle, const char *))                                                         \
    PF_CU(cuModuleUnload, (cu_handle))                                                                                         \
    PF_CU(cuFuncGetAttribute, (int32_t *, int32_t, cu_handle))                                                                 \
    PF_CU(cuLaunchKernel,                                                                                                      \
          (cu_handle, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, cu_handle, void **, void **))      \
    PF_CU(cuGraphInstantiateWithFlags, (cu_handle *, cu_handle, uint64_t))                                                     \
    PF_CU(cuGraphDestroy, (cu_handle))                                                                                         \
    PF_CU(cuGraphLaunch, (cu_handle, cu_handle))                                                                               \
    PF_CU(cuGraphExecDestroy, (cu_handle))

#define PF_CU_POINTER(name, parameters) cu_result(*name) parameters;
typedef struct {
    PF_CU_FUNCTIONS(PF_CU_POINTER)
} pf_cu;

#endif
