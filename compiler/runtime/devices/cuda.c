/* cuda.c: NVIDIA's GPUs, through the CUDA driver API. Kernels get an address for each operand, in the one allocation that all
 * memory is; a program is a graph, made of its launches the first time that it runs. */
#include <inttypes.h>
#include <stdlib.h>

#include "cuda_device.h"
#include "failure.h"

enum { LOG_BYTES = 320, PROGRAMS = PF_CUDA_PROGRAMS };

static const pf_program *program_at(int number) {
    const pf_program *const programs[PROGRAMS] = {&pf_image_data.train, &pf_image_data.forward, &pf_image_data.accumulate};
    return programs[number];
}

static int number_of(const pf_program *program) {
    int number = 0;
    while (program_at(number) != program) number++;
    return number;
}

static uint32_t launch_count(const pf_program *program) {
    const pf_call *last = program->call_count ? &program->calls[program->call_count - 1] : NULL;
    return last ? last->first_launch + last->launch_count : 0;
}

static uint32_t argument_count(const pf_program *program) {
    uint32_t count = launch_count(program);
    return count ? program->launches[count - 1].first_argument + program->launches[count - 1].argument_count : 0;
}

pf_status pf_device_open(pf_device **made) {
    pf_device *device = *made = calloc(1, sizeof **made);
    if (!device) return pf_fail(PF_LIMITS, "limits.memory", "no memory for a step");
    return pf_cuda_start(device);
}

/* Whether it means that this driver does not take such code for this GPU. */
static bool refuses(cu_result code) {
    switch (code) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_INVALID_SOURCE: return true;
    default: return false;
    }
}

/* The code of one generation, else what the driver itself compiles. */
static pf_status load_code(const pf_device *device, const pf_code *code, cu_handle *module) {
    char log[LOG_BYTES] = "";
    int32_t options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    cu_result first = device->cu.cuModuleLoadData(module, code->code), second = first;
    if (refuses(first) && code->other) second = device->cu.cuModuleLoadDataEx(module, code->other, 2, options, values);
    if (second != CUDA_SUCCESS) *module = NULL;
    if (!refuses(second)) return pf_cuda_check(device, second, "cuModuleLoadData");
    return pf_fail(PF_LIMITS, "limits.device", "%s takes no form of a kernel of this build (code: %s; PTX: %s%s%s); build for "
                   "this GPU, or update its driver", device->message, pf_cuda_name(device, first), pf_cuda_name(device, second),
                   *log ? ": " : "", log);
}

static pf_status prepare(const pf_device *device, const pf_call *call, const pf_launch *launch, cu_handle *function) {
    int32_t items = 0;
    PF_TRY(PF_CUDA(device, cuModuleGetFunction, function, device->modules[launch->code], launch->entry));
    PF_TRY(PF_CUDA(device, cuFuncGetAttribute, &items, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, *function));
    int32_t shared = pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    int32_t groups = pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    if (launch->items <= (uint64_t)items && launch->shared_bytes <= (uint64_t)shared && launch->groups <= (uint64_t)groups)
        return PF_OK;
    return pf_fail(PF_LIMITS, "limits.device", "%s runs %s in at most %d groups, of at most %d items with %d shared bytes; "
                   "this build needs %" PRIu64 ", %" PRIu64 " and %" PRIu64, device->message, call->name, groups, items, shared,
                   launch->groups, launch->items, launch->shared_bytes);
}

static void set_arguments(const pf_device *device, const pf_program *program, const pf_call *call, const pf_launch *launch,
                          cu_address *addresses) {
    for (uint32_t i = launch->first_argument; i < launch->first_argument + launch->argument_count; i++)
        addresses[i] = device->memory + program->operands[call->first_operand + program->arguments[i]].offset;
}

static pf_status prepare_all(pf_device *device, int number) {
    const pf_program *program = program_at(number);
    cu_handle *functions = device->functions[number] = calloc(launch_count(program) + 1, sizeof *functions);
    cu_address *addresses = device->addresses[number] = calloc(argument_count(program) + 1, sizeof *addresses);
    if (!functions || !addresses) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of launches");
    for (uint32_t i = 0; i < program->call_count; i++) {
        const pf_call *call = &program->calls[i];
        for (uint32_t k = call->first_launch; k < call->first_launch + call->launch_count; k++) {
            PF_TRY(prepare(device, call, &program->launches[k], &functions[k]));
            set_arguments(device, program, call, &program->launches[k], addresses);
        }
    }
    return PF_OK;
}

pf_status pf_device_load(pf_device *device) {
    const pf_image *image = &pf_image_data;
    device->modules = calloc(image->code_count + 1, sizeof *device->modules);
    if (!device->modules) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of kernels");
    PF_TRY(pf_cuda_enter(device));
    for (uint32_t i = 0; i < image->code_count; i++) PF_TRY(load_code(device, &image->codes[i], &device->modules[i]));
    for (int number = 0; number < PROGRAMS; number++) PF_TRY(prepare_all(device, number));
    return PF_OK;
}

static pf_status start(const pf_device *device, cu_handle function, uint64_t groups, uint64_t items, void **arguments) {
    uint32_t grid = (uint32_t)groups, group = (uint32_t)items;
    return PF_CUDA(device, cuLaunchKernel, function, grid, 1, 1, group, 1, 1, 0, device->stream, arguments, NULL);
}

static pf_status start_call(const pf_device *device, int number, const pf_call *call) {
    void *arguments[PF_MAX_OPERANDS];
    for (uint32_t k = call->first_launch; k < call->first_launch + call->launch_count; k++) {
        const pf_launch *launch = &program_at(number)->launches[k];
        for (uint32_t i = 0; i < launch->argument_count; i++)
            arguments[i] = &device->addresses[number][launch->first_argument + i];
        PF_TRY(start(device, device->functions[number][k], launch->groups, launch->items, arguments));
    }
    return PF_OK;
}

pf_status pf_device_enqueue(pf_device *device, const pf_program *program, uint32_t index) {
    PF_TRY(pf_cuda_enter(device));
    return start_call(device, number_of(program), &program->calls[index]);
}

/* Of this thread alone: others go on allocating memory meanwhile. A capture is ended whatever came of it, or the stream would
 * take nothing more. */
static pf_status make_graph(pf_device *device, int number) {
    const pf_program *program = program_at(number);
    cu_handle graph = NULL;
    pf_status status = PF_OK;
    PF_TRY(PF_CUDA(device, cuStreamBeginCapture_v2, device->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < program->call_count && status == PF_OK; i++)
        status = start_call(device, number, &program->calls[i]);
    cu_result ended = device->cu.cuStreamEndCapture(device->stream, &graph);
    if (status == PF_OK) status = pf_cuda_check(device, ended, "cuStreamEndCapture");
    if (status == PF_OK) status = PF_CUDA(device, cuGraphInstantiateWithFlags, &device->graphs[number], graph, 0);
    if (graph) device->cu.cuGraphDestroy(graph);
    return status;
}

pf_status pf_device_enqueue_all(pf_device *device, const pf_program *program) {
    int number = number_of(program);
    PF_TRY(pf_cuda_enter(device));
    if (!device->graphs[number]) PF_TRY(make_graph(device, number));
    return PF_CUDA(device, cuGraphLaunch, device->graphs[number], device->stream);
}

/* Loaded when it is asked for: training goes without the driver's compiler. */
pf_status pf_device_enqueue_nothing(pf_device *device) {
    static const char text[] = ".version 6.4\n.target sm_52\n.address_size 64\n.visible .entry pf_nothing() { ret; }\n";
    PF_TRY(pf_cuda_enter(device));
    if (!device->empty_module) PF_TRY(PF_CUDA(device, cuModuleLoadData, &device->empty_module, text));
    if (!device->empty) PF_TRY(PF_CUDA(device, cuModuleGetFunction, &device->empty, device->empty_module, "pf_nothing"));
    return start(device, device->empty, 1, 1, NULL);
}

static void release_kernels(pf_device *device) {
    for (int number = 0; number < PROGRAMS; number++) {
        if (device->graphs[number]) device->cu.cuGraphExecDestroy(device->graphs[number]);
        free(device->functions[number]);
        free(device->addresses[number]);
    }
    for (uint32_t i = 0; device->modules && i < pf_image_data.code_count; i++)
        if (device->modules[i]) device->cu.cuModuleUnload(device->modules[i]);
    if (device->empty_module) device->cu.cuModuleUnload(device->empty_module);
    free(device->modules);
}

void pf_device_close(pf_device *device) {
    if (!device) return;
    if (device->context) device->cu.cuCtxSetCurrent(device->context);
    if (device->stream) device->cu.cuStreamSynchronize(device->stream);
    release_kernels(device);
    pf_cuda_free_memory(device);
    pf_cuda_stop(device);
    free(device);
}

const char *pf_device_message(const pf_device *device) { return device->message; }
