/* opencl.c: a device behind OpenCL 1.2. The driver is loaded when the program runs, so that it starts where there is none and
 * can say so. All memory is one buffer; a kernel gets it, and an offset, for each operand. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "failure.h"
#include "opencl_api.h"

enum { MAX_PLATFORMS = 16, MAX_DEVICES = 16, MESSAGE_BYTES = 256, LOG_BYTES = 480, PROGRAMS = 3 };

static const char OPTIONS[] = "-cl-std=CL1.2";
static const char *const DRIVERS[] = {"libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so"};

/* A launch with its arguments set. */
typedef struct {
    cl_handle kernel;
    size_t total, items;
} prepared;

struct pf_device {
    void *library;
    pf_cl cl;
    cl_handle device, context, queue, buffer;
    uint64_t bytes;
    cl_handle *codes;                 /* programs, by the image's texts */
    prepared *launches[PROGRAMS];     /* by the launches of each program of the image */
    cl_handle empty_code, empty;      /* what computes nothing */
    char message[MESSAGE_BYTES];
};

static const pf_program *program_at(int number) {
    const pf_program *const programs[PROGRAMS] = {&pf_image_data.train, &pf_image_data.forward, &pf_image_data.accumulate};
    return programs[number];
}

static uint32_t launch_count(const pf_program *program) {
    const pf_call *last = program->call_count ? &program->calls[program->call_count - 1] : NULL;
    return last ? last->first_launch + last->launch_count : 0;
}

/* What a call of the driver answered. */
static pf_status check(cl_int code, const char *what) {
    if (code == CL_SUCCESS) return PF_OK;
    bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY || code == CL_INVALID_BUFFER_SIZE;
    if (memory || code == CL_OUT_OF_RESOURCES)
        return pf_fail(PF_LIMITS, "limits.memory", "the OpenCL driver has no room for this step (%s answered %d); free memory or use "
                       "a sparser plan or a smaller batch", what, code);
    return pf_fail(PF_INTERNAL, "internal.device", "the OpenCL driver answered %d to %s", code, what);
}

/* ------------------------------------------------------------------------------------------------------- the driver */

static pf_status load_driver(pf_device *device) {
    for (size_t i = 0; i < sizeof DRIVERS / sizeof *DRIVERS && !device->library; i++)
        device->library = dlopen(DRIVERS[i], RTLD_NOW | RTLD_LOCAL);
    if (!device->library)
        return pf_fail(PF_LIMITS, "limits.driver", "there is no OpenCL driver (%s); install the one of this board's GPU, or "
                       "pocl-opencl-icd to run on its CPU", dlerror());
#define PF_CL_LOAD(name, result, parameters)                                                                              \
    *(void **)&device->cl.name = dlsym(device->library, #name);                                                           \
    if (!device->cl.name)                                                                                                 \
        return pf_fail(PF_LIMITS, "limits.driver", "the OpenCL driver has no %s: it is older than OpenCL 1.2", #name);
    PF_CL_FUNCTIONS(PF_CL_LOAD)
    return PF_OK;
}

static uint64_t number_of(const pf_device *device, cl_handle of, cl_uint what) {
    uint64_t value = 0;
    device->cl.clGetDeviceInfo(of, what, sizeof value, &value, NULL);
    return value;
}

/* A GPU before an accelerator before a CPU; of equals the first. */
static int rank_of(const pf_device *device, cl_handle of) {
    uint64_t type = number_of(device, of, CL_DEVICE_TYPE);
    return type & CL_DEVICE_TYPE_GPU ? 3 : type & CL_DEVICE_TYPE_ACCELERATOR ? 2 : 1;
}

static pf_status choose_device(pf_device *device) {
    cl_handle platforms[MAX_PLATFORMS], found[MAX_DEVICES];
    cl_uint platform_count = 0, count = 0;
    int best = 0;
    if (device->cl.clGetPlatformIDs(MAX_PLATFORMS, platforms, &platform_count) != CL_SUCCESS) platform_count = 0;
    for (cl_uint i = 0; i < platform_count && i < MAX_PLATFORMS; i++) {
        cl_bits kinds = CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_CPU;
        if (device->cl.clGetDeviceIDs(platforms[i], kinds, MAX_DEVICES, found, &count) != CL_SUCCESS) continue;
        for (cl_uint k = 0; k < count && k < MAX_DEVICES; k++)
            if (rank_of(device, found[k]) > best) best = rank_of(device, device->device = found[k]);
    }
    if (best) return PF_OK;
    return pf_fail(PF_LIMITS, "limits.driver", "OpenCL knows no device here: its loader is installed, a driver is not, or this "
                   "process may not open the GPU");
}

static void text_of(const pf_device *device, cl_uint what, char *text, size_t size) {
    text[0] = 0;
    device->cl.clGetDeviceInfo(device->device, what, size, text, NULL);
    text[size - 1] = 0;
}

static void describe(pf_device *device) {
    static const char *const kinds[] = {"", "CPU", "accelerator", "GPU"};
    char name[96], version[64], driver[64];
    text_of(device, CL_DEVICE_NAME, name, sizeof name);
    text_of(device, CL_DEVICE_VERSION, version, sizeof version);
    text_of(device, CL_DRIVER_VERSION, driver, sizeof driver);
    snprintf(device->message, sizeof device->message, "%s %s, %s, driver %s", kinds[rank_of(device, device->device)], name, version,
             driver);
}

pf_status pf_device_open(pf_device **made) {
    pf_device *device = *made = calloc(1, sizeof **made);
    cl_int code;
    if (!device) return pf_fail(PF_LIMITS, "limits.memory", "no memory for a step");
    PF_TRY(load_driver(device));
    PF_TRY(choose_device(device));
    describe(device);
    device->context = device->cl.clCreateContext(NULL, 1, &device->device, NULL, NULL, &code);
    PF_TRY(check(code, "clCreateContext"));
    device->queue = device->cl.clCreateCommandQueue(device->context, device->device, 0, &code);
    return check(code, "clCreateCommandQueue");
}

/* --------------------------------------------------------------------------------------------------------- memory */

pf_status pf_device_allocate(pf_device *device, uint64_t bytes) {
    static const uint32_t zero = 0;
    uint64_t most = number_of(device, device->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    cl_int code;
    device->bytes = (bytes ? bytes + 3 : 4) / 4 * 4;
    if (most && device->bytes > most)
        return pf_fail(PF_LIMITS, "limits.memory", "this step needs %" PRIu64 " bytes (weights, optimizer state and arena) and %s "
                       "gives at most %" PRIu64 " at once; use a sparser plan or a smaller batch", device->bytes, device->message,
                       most);
    cl_bits kind = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR; /* the host's memory where the device reaches it */
    device->buffer = device->cl.clCreateBuffer(device->context, kind, device->bytes, NULL, &code);
    PF_TRY(check(code, "clCreateBuffer"));
    code = device->cl.clEnqueueFillBuffer(device->queue, device->buffer, &zero, sizeof zero, 0, device->bytes, 0, NULL, NULL);
    PF_TRY(check(code, "clEnqueueFillBuffer"));
    return pf_device_finish(device);
}

unsigned char *pf_device_memory(const pf_device *device) { return (void)device, NULL; }

pf_status pf_device_upload(pf_device *device, uint64_t offset, const void *from, uint64_t bytes) {
    return check(device->cl.clEnqueueWriteBuffer(device->queue, device->buffer, CL_TRUE, offset, bytes, from, 0, NULL, NULL),
                 "clEnqueueWriteBuffer");
}

pf_status pf_device_download(pf_device *device, uint64_t offset, void *to, uint64_t bytes) {
    return check(device->cl.clEnqueueReadBuffer(device->queue, device->buffer, CL_TRUE, offset, bytes, to, 0, NULL, NULL),
                 "clEnqueueReadBuffer");
}

pf_status pf_device_map(pf_device *device, uint64_t offset, uint64_t bytes, pf_access access, void **address) {
    cl_bits use = (access & PF_READ ? CL_MAP_READ : 0) | (access & PF_WRITE ? CL_MAP_WRITE : 0);
    cl_int code;
    *address = device->cl.clEnqueueMapBuffer(device->queue, device->buffer, CL_TRUE, use, offset, bytes, 0, NULL, NULL, &code);
    return check(code, "clEnqueueMapBuffer");
}

pf_status pf_device_unmap(pf_device *device, void *address) {
    return check(device->cl.clEnqueueUnmapMemObject(device->queue, device->buffer, address, 0, NULL, NULL),
                 "clEnqueueUnmapMemObject");
}

/* -------------------------------------------------------------------------------------------------------- kernels */

static pf_status build(pf_device *device, const char *text, size_t bytes, cl_handle *made) {
    cl_int code;
    *made = device->cl.clCreateProgramWithSource(device->context, 1, &text, &bytes, &code);
    PF_TRY(check(code, "clCreateProgramWithSource"));
    code = device->cl.clBuildProgram(*made, 1, &device->device, OPTIONS, NULL, NULL);
    if (code == CL_SUCCESS) return PF_OK;
    char log[LOG_BYTES] = "";
    device->cl.clGetProgramBuildInfo(*made, device->device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
    log[sizeof log - 1] = 0;
    return pf_fail(PF_INTERNAL, "internal.device", "%s does not compile a kernel (%d): %s", device->message, code, log);
}

static pf_status set_arguments(const pf_device *device, const pf_program *program, const pf_call *call, const pf_launch *launch,
                               cl_handle kernel) {
    for (uint32_t i = 0; i < launch->argument_count; i++) {
        const pf_operand *operand = &program->operands[call->first_operand + program->arguments[launch->first_argument + i]];
        PF_TRY(check(device->cl.clSetKernelArg(kernel, 2 * i, sizeof device->buffer, &device->buffer), "clSetKernelArg"));
        PF_TRY(check(device->cl.clSetKernelArg(kernel, 2 * i + 1, sizeof operand->offset, &operand->offset), "clSetKernelArg"));
    }
    return PF_OK;
}

static pf_status prepare(const pf_device *device, const pf_program *program, const pf_call *call, const pf_launch *launch,
                         prepared *own) {
    cl_int code;
    size_t most = 0;
    own->kernel = device->cl.clCreateKernel(device->codes[launch->code], launch->entry, &code);
    PF_TRY(check(code, "clCreateKernel"));
    own->items = launch->items;
    own->total = launch->groups * launch->items;
    code = device->cl.clGetKernelWorkGroupInfo(own->kernel, device->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    PF_TRY(check(code, "clGetKernelWorkGroupInfo"));
    uint64_t shared = number_of(device, device->device, CL_DEVICE_LOCAL_MEM_SIZE);
    if (most < own->items || shared < launch->shared_bytes)
        return pf_fail(PF_LIMITS, "limits.device", "%s runs %s in groups of at most %zu items with %" PRIu64 " shared bytes; this "
                       "build needs %zu and %" PRIu64, device->message, call->name, most, shared, own->items, launch->shared_bytes);
    return set_arguments(device, program, call, launch, own->kernel);
}

static pf_status prepare_all(pf_device *device, int number) {
    const pf_program *program = program_at(number);
    device->launches[number] = calloc(launch_count(program) + 1, sizeof(prepared));
    if (!device->launches[number]) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of launches");
    for (uint32_t i = 0; i < program->call_count; i++) {
        const pf_call *call = &program->calls[i];
        for (uint32_t k = call->first_launch; k < call->first_launch + call->launch_count; k++)
            PF_TRY(prepare(device, program, call, &program->launches[k], &device->launches[number][k]));
    }
    return PF_OK;
}

static pf_status load_empty(pf_device *device) {
    static const char text[] = "__kernel void pf_nothing(void) {}\n";
    cl_int code;
    PF_TRY(build(device, text, sizeof text - 1, &device->empty_code));
    device->empty = device->cl.clCreateKernel(device->empty_code, "pf_nothing", &code);
    return check(code, "clCreateKernel");
}

pf_status pf_device_load(pf_device *device) {
    const pf_image *image = &pf_image_data;
    device->codes = calloc(image->code_count + 1, sizeof *device->codes);
    if (!device->codes) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of kernels");
    for (uint32_t i = 0; i < image->code_count; i++)
        PF_TRY(build(device, image->codes[i].code, image->codes[i].bytes, &device->codes[i]));
    for (int number = 0; number < PROGRAMS; number++) PF_TRY(prepare_all(device, number));
    return load_empty(device);
}

static pf_status start(pf_device *device, cl_handle kernel, size_t total, size_t items) {
    return check(device->cl.clEnqueueNDRangeKernel(device->queue, kernel, 1, NULL, &total, &items, 0, NULL, NULL),
                 "clEnqueueNDRangeKernel");
}

pf_status pf_device_enqueue(pf_device *device, const pf_program *program, uint32_t index) {
    const pf_call *call = &program->calls[index];
    int number = 0;
    while (program_at(number) != program) number++;
    for (uint32_t k = call->first_launch; k < call->first_launch + call->launch_count; k++) {
        const prepared *own = &device->launches[number][k];
        PF_TRY(start(device, own->kernel, own->total, own->items));
    }
    return PF_OK;
}

pf_status pf_device_enqueue_all(pf_device *device, const pf_program *program) {
    for (uint32_t i = 0; i < program->call_count; i++) PF_TRY(pf_device_enqueue(device, program, i));
    return PF_OK;
}

pf_status pf_device_enqueue_nothing(pf_device *device) { return start(device, device->empty, 1, 1); }

pf_status pf_device_finish(pf_device *device) { return check(device->cl.clFinish(device->queue), "clFinish"); }

static void release_launches(pf_device *device, int number) {
    for (uint32_t k = 0; device->launches[number] && k < launch_count(program_at(number)); k++)
        if (device->launches[number][k].kernel) device->cl.clReleaseKernel(device->launches[number][k].kernel);
    free(device->launches[number]);
}

void pf_device_close(pf_device *device) {
    if (!device) return;
    if (device->queue) device->cl.clFinish(device->queue);
    for (int number = 0; number < PROGRAMS; number++) release_launches(device, number);
    for (uint32_t i = 0; device->codes && i < pf_image_data.code_count; i++)
        if (device->codes[i]) device->cl.clReleaseProgram(device->codes[i]);
    free(device->codes);
    if (device->empty) device->cl.clReleaseKernel(device->empty);
    if (device->empty_code) device->cl.clReleaseProgram(device->empty_code);
    if (device->buffer) device->cl.clReleaseMemObject(device->buffer);
    if (device->queue) device->cl.clReleaseCommandQueue(device->queue);
    if (device->context) device->cl.clReleaseContext(device->context);
    free(device); /* the driver stays loaded: those of GPUs do not all bear to be unloaded */
}

const char *pf_device_message(const pf_device *device) { return device->message; }
