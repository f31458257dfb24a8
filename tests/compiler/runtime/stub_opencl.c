/* A driver that runs nothing: what STUB_OPENCL names goes wrong, all else succeeds. STUB_LOG is a file for lines of buffers and
 * of arguments that are offsets. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef void *handle;

static char thing; /* every handle */
static unsigned char *memory;

static int fails(const char *what) {
    const char *asked = getenv("STUB_OPENCL");
    return asked && strcmp(asked, what) == 0;
}

static void tell(const char *what, uint64_t number) {
    const char *path = getenv("STUB_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %llu\n", what, (unsigned long long)number);
    fclose(file);
}

static handle made(const char *what, cl_int *code) {
    *code = fails(what) ? -5 : 0;
    return &thing;
}

static cl_int told(const void *value, size_t bytes, size_t size, void *to) {
    if (size < bytes) return -30;
    memcpy(to, value, bytes);
    return 0;
}

static cl_int number(uint64_t value, size_t size, void *to) { return told(&value, sizeof value, size, to); }

cl_int clGetPlatformIDs(uint32_t most, handle *found, uint32_t *count) {
    *count = fails("clGetPlatformIDs") ? 0 : 1;
    if (most) *found = &thing;
    return 0;
}

cl_int clGetPlatformInfo(handle of, uint32_t what, size_t size, void *to, size_t *used) {
    (void)of, (void)what, (void)used;
    return told("stub", 5, size, to);
}

cl_int clGetDeviceIDs(handle platform, uint64_t kinds, uint32_t most, handle *found, uint32_t *count) {
    (void)platform, (void)kinds, (void)most;
    *count = 1;
    *found = &thing;
    return fails("clGetDeviceIDs") ? -1 : 0;
}

cl_int clGetDeviceInfo(handle of, uint32_t what, size_t size, void *to, size_t *used) {
    (void)of, (void)used;
    switch (what) {
    case 0x1000: return number(4, size, to);                                       /* a GPU */
    case 0x1010: return number(fails("allocation") ? 64 : 1 << 30, size, to);      /* most bytes at once */
    case 0x1023: return number(fails("shared") ? 16 : 1 << 15, size, to);          /* shared bytes */
    case 0x102B: return told("stub device", 12, size, to);
    case 0x102D: return told("7.1", 4, size, to);
    default: return told("OpenCL 1.2 stub", 16, size, to);
    }
}

handle clCreateContext(const intptr_t *properties, uint32_t count, const handle *devices, void *notify, void *data, cl_int *code) {
    (void)properties, (void)count, (void)devices, (void)notify, (void)data;
    return made("clCreateContext", code);
}

handle clCreateCommandQueue(handle context, handle device, uint64_t properties, cl_int *code) {
    (void)context, (void)device, (void)properties;
    return made("clCreateCommandQueue", code);
}

handle clCreateBuffer(handle context, uint64_t flags, size_t bytes, void *host, cl_int *code) {
    (void)context, (void)flags, (void)host;
    tell("buffer", bytes);
    memory = calloc(1, bytes);
    return made("clCreateBuffer", code);
}

handle clCreateProgramWithSource(handle context, uint32_t count, const char **texts, const size_t *bytes, cl_int *code) {
    (void)context, (void)count, (void)texts, (void)bytes;
    return made("clCreateProgramWithSource", code);
}

cl_int clBuildProgram(handle program, uint32_t count, const handle *devices, const char *options, void *notify, void *data) {
    (void)program, (void)count, (void)devices, (void)options, (void)notify, (void)data;
    return fails("clBuildProgram") ? -11 : 0;
}

cl_int clGetProgramBuildInfo(handle program, handle device, uint32_t what, size_t size, void *to, size_t *used) {
    (void)program, (void)device, (void)what, (void)used;
    return told("line 3: odd word", 17, size, to);
}

#ifndef STUB_IS_OLD
handle clCreateKernel(handle program, const char *name, cl_int *code) {
    (void)program, (void)name;
    return made("clCreateKernel", code);
}
#endif

cl_int clGetKernelWorkGroupInfo(handle kernel, handle device, uint32_t what, size_t size, void *to, size_t *used) {
    (void)kernel, (void)device, (void)what, (void)used;
    return number(fails("items") ? 1 : 1024, size, to);
}

cl_int clSetKernelArg(handle kernel, uint32_t index, size_t size, const void *value) {
    uint64_t number;
    (void)kernel;
    if (size != sizeof number) return -51;
    memcpy(&number, value, sizeof number);
    if (index % 2) tell("argument", number);
    return fails("clSetKernelArg") ? -51 : 0;
}

cl_int clEnqueueNDRangeKernel(handle queue, handle kernel, uint32_t dimensions, const size_t *offset, const size_t *total,
                              const size_t *group, uint32_t count, const handle *wait, handle *event) {
    (void)queue, (void)kernel, (void)dimensions, (void)offset, (void)count, (void)wait, (void)event;
    if (*total % *group) abort();
    return fails("clEnqueueNDRangeKernel") ? -54 : 0;
}

cl_int clEnqueueWriteBuffer(handle queue, handle buffer, uint32_t waits, size_t offset, size_t bytes, const void *from,
                            uint32_t count, const handle *wait, handle *event) {
    (void)queue, (void)buffer, (void)waits, (void)count, (void)wait, (void)event;
    memcpy(memory + offset, from, bytes);
    return fails("clEnqueueWriteBuffer") ? -5 : 0;
}

cl_int clEnqueueReadBuffer(handle queue, handle buffer, uint32_t waits, size_t offset, size_t bytes, void *to, uint32_t count,
                           const handle *wait, handle *event) {
    (void)queue, (void)buffer, (void)waits, (void)count, (void)wait, (void)event;
    memcpy(to, memory + offset, bytes);
    return fails("clEnqueueReadBuffer") ? -36 : 0;
}

cl_int clEnqueueFillBuffer(handle queue, handle buffer, const void *pattern, size_t size, size_t offset, size_t bytes,
                           uint32_t count, const handle *wait, handle *event) {
    (void)queue, (void)buffer, (void)pattern, (void)size, (void)count, (void)wait, (void)event;
    memset(memory + offset, 0, bytes);
    return fails("clEnqueueFillBuffer") ? -5 : 0;
}

void *clEnqueueMapBuffer(handle queue, handle buffer, uint32_t waits, uint64_t use, size_t offset, size_t bytes, uint32_t count,
                         const handle *wait, handle *event, cl_int *code) {
    (void)queue, (void)buffer, (void)waits, (void)use, (void)bytes, (void)count, (void)wait, (void)event;
    *code = fails("clEnqueueMapBuffer") ? -12 : 0;
    return *code ? NULL : memory + offset;
}

cl_int clEnqueueUnmapMemObject(handle queue, handle buffer, void *address, uint32_t count, const handle *wait, handle *event) {
    (void)queue, (void)buffer, (void)address, (void)count, (void)wait, (void)event;
    return fails("clEnqueueUnmapMemObject") ? -5 : 0;
}

cl_int clFinish(handle queue) { return (void)queue, fails("clFinish") ? -36 : 0; }
cl_int clFlush(handle queue) { return (void)queue, 0; }
cl_int clReleaseKernel(handle kernel) { return (void)kernel, 0; }
cl_int clReleaseProgram(handle program) { return (void)program, 0; }
cl_int clReleaseMemObject(handle object) { return (void)object, 0; }
cl_int clReleaseCommandQueue(handle queue) { return (void)queue, 0; }
cl_int clReleaseContext(handle context) { return (void)context, 0; }
