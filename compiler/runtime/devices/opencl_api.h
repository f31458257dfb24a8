/* opencl_api.h: the part of OpenCL 1.2 that we call, declared here since the driver is loaded when the program runs.
 *
 * Source: OpenCL 1.2 specification and the values of its registry (cl.h). */
#ifndef POCKFARM_OPENCL_API_H
#define POCKFARM_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bits;
typedef void *cl_handle;

enum {
    CL_SUCCESS = 0,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_INVALID_BUFFER_SIZE = -61,
    CL_TRUE = 1,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
    CL_DEVICE_TYPE_CPU = 2,
    CL_DEVICE_TYPE_GPU = 4,
    CL_DEVICE_TYPE_ACCELERATOR = 8,
    CL_MEM_READ_WRITE = 1,
    CL_MEM_ALLOC_HOST_PTR = 16,
    CL_MAP_READ = 1,
    CL_MAP_WRITE = 2,
};

/* PF_CL(name, result, parameters) of every function. */
#define PF_CL_FUNCTIONS(PF_CL)                                                                                                 \
    PF_CL(clGetPlatformIDs, cl_int, (cl_uint, cl_handle *, cl_uint *))                                                         \
    PF_CL(clGetPlatformInfo, cl_int, (cl_handle, cl_uint, size_t, void *, size_t *))                                           \
    PF_CL(clGetDeviceIDs, cl_int, (cl_handle, cl_bits, cl_uint, cl_handle *, cl_uint *))                                       \
    PF_CL(clGetDeviceInfo, cl_int, (cl_handle, cl_uint, size_t, void *, size_t *))                                             \
    PF_CL(clCreateContext, cl_handle,                                                                                          \
          (const intptr_t *, cl_uint, const cl_handle *, void (*)(const char *, const void *, size_t, void *), void *,         \
           cl_int *))                                                                                                          \
    PF_CL(clReleaseContext, cl_int, (cl_handle))                                                                               \
    PF_CL(clCreateCommandQueue, cl_handle, (cl_handle, cl_handle, cl_bits, cl_int *))                                          \
    PF_CL(clReleaseCommandQueue, cl_int, (cl_handle))                                                                          \
    PF_CL(clCreateBuffer, cl_handle, (cl_handle, cl_bits, size_t, void *, cl_int *))                                           \
    PF_CL(clReleaseMemObject, cl_int, (cl_handle))                                                                             \
    PF_CL(clCreateProgramWithSource, cl_handle, (cl_handle, cl_uint, const char **, const size_t *, cl_int *))                 \
    PF_CL(clBuildProgram, cl_int,                                                                                              \
          (cl_handle, cl_uint, const cl_handle *, const char *, void (*)(cl_handle, void *), void *))                          \
    PF_CL(clGetProgramBuildInfo, cl_int, (cl_handle, cl_handle, cl_uint, size_t, void *, size_t *))                            \
    PF_CL(clReleaseProgram, cl_int, (cl_handle))                                                                               \
    PF_CL(clCreateKernel, cl_handle, (cl_handle, const char *, cl_int *))                                                      \
    PF_CL(clGetKernelWorkGroupInfo, cl_int, (cl_handle, cl_handle, cl_uint, size_t, void *, size_t *))                         \
    PF_CL(clSetKernelArg, cl_int, (cl_handle, cl_uint, size_t, const void *))                                                  \
    PF_CL(clReleaseKernel, cl_int, (cl_handle))                                                                                \
    PF_CL(clEnqueueNDRangeKernel, cl_int,                                                                                      \
          (cl_handle, cl_handle, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const cl_handle *,          \
           cl_handle *))                                                                                                       \
    PF_CL(clEnqueueWriteBuffer, cl_int,                                                                                        \
          (cl_handle, cl_handle, cl_uint, size_t, size_t, const void *, cl_uint, const cl_handle *, cl_handle *))              \
    PF_CL(clEnqueueReadBuffer, cl_int,                                                                                         \
          (cl_handle, cl_handle, cl_uint, size_t, size_t, void *, cl_uint, const cl_handle *, cl_handle *))                    \
    PF_CL(clEnqueueFillBuffer, cl_int,                                                                                         \
          (cl_handle, cl_handle, const void *, size_t, size_t, size_t, cl_uint, const cl_handle *, cl_handle *))               \
    PF_CL(clEnqueueMapBuffer, void *,                                                                                          \
          (cl_handle, cl_handle, cl_uint, cl_bits, size_t, size_t, cl_uint, const cl_handle *, cl_handle *, cl_int *))         \
    PF_CL(clEnqueueUnmapMemObject, cl_int, (cl_handle, cl_handle, void *, cl_uint, const cl_handle *, cl_handle *))            \
    PF_CL(clFlush, cl_int, (cl_handle))                                                                                        \
    PF_CL(clFinish, cl_int, (cl_handle))

#define PF_CL_POINTER(name, result, parameters) result(*name) parameters;
typedef struct {
    PF_CL_FUNCTIONS(PF_CL_POINTER)
} pf_cl;

#endif
