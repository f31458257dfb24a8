/* cpu.c: the host itself: kernels are called, on the calling thread's pool, and the memory is a mapping of the process. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"
#include "device.h"
#include "failure.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

struct pf_device {
    unsigned char *memory;
    void *mapping; /* what `memory` lies in, from its first huge page on */
    size_t mapped_bytes;
};

pf_status pf_device_open(pf_device **device) {
    *device = calloc(1, sizeof **device);
    return *device ? PF_OK : pf_fail(PF_LIMITS, "limits.memory", "no memory for a step");
}

/* Aligned to huge pages, which the system gives to whole ones only: fewer page faults, fewer TLB misses. */
pf_status pf_device_allocate(pf_device *device, uint64_t size) {
    size_t bytes = size ? size : 1, slack = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    void *mapping = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return pf_fail(PF_LIMITS, "limits.memory", "this step needs %zu bytes (weights, optimizer state and arena), the system "
                       "refused: %s; free memory or use a sparser plan or a smaller batch", bytes, strerror(errno));
    device->mapping = mapping;
    device->mapped_bytes = bytes + slack;
    device->memory = (unsigned char *)mapping + (slack ? -(uintptr_t)mapping % HUGE_PAGE_BYTES : 0);
    madvise(device->memory, bytes, MADV_HUGEPAGE); /* a hint; nothing outside the plan is ever touched */
    return PF_OK;
}

pf_status pf_device_load(pf_device *device) { return (void)device, PF_OK; }

unsigned char *pf_device_memory(const pf_device *device) { return device->memory; }

pf_status pf_device_upload(pf_device *device, uint64_t offset, const void *from, uint64_t bytes) {
    memcpy(device->memory + offset, from, bytes);
    return PF_OK;
}

pf_status pf_device_download(pf_device *device, uint64_t offset, void *to, uint64_t bytes) {
    memcpy(to, device->memory + offset, bytes);
    return PF_OK;
}

pf_status pf_device_map(pf_device *device, uint64_t offset, uint64_t bytes, pf_access access, void **address) {
    (void)bytes, (void)access;
    *address = device->memory + offset;
    return PF_OK;
}

pf_status pf_device_unmap(pf_device *device, void *address) { return (void)device, (void)address, PF_OK; }

static void fill_tensor(pf_dl_tensor *tensor, const pf_device *device, const pf_operand *operand) {
    static const pf_dl_dtype dtypes[] = {
        {PF_DL_FLOAT, 32, 1}, {PF_DL_INT, 64, 1}, {PF_DL_INT, 32, 1}, {PF_DL_BOOL, 8, 1},
        {PF_DL_FLOAT, 16, 1}, {PF_DL_FLOAT, 16, 1}, {PF_DL_INT, 8, 1}};
    static const int64_t stride = 1;
    *tensor = (pf_dl_tensor){.data = device->memory + operand->offset, .device = {PF_DL_CPU, 0}, .ndim = 1,
                             .dtype = dtypes[operand->dtype], .shape = &operand->count, .strides = &stride};
}

static pf_status call(const pf_device *device, const pf_program *program, uint32_t index, pf_kernel_fn *kernel) {
    const pf_call *own = &program->calls[index];
    pf_dl_tensor tensors[PF_MAX_OPERANDS];
    pf_ffi_any arguments[PF_MAX_OPERANDS], result = {.type_index = PF_FFI_NONE};
    for (uint32_t k = 0; k < own->operand_count; k++) {
        fill_tensor(&tensors[k], device, &program->operands[own->first_operand + k]);
        arguments[k] = (pf_ffi_any){.type_index = PF_FFI_DL_TENSOR, .v_ptr = &tensors[k]};
    }
    int failed = kernel(NULL, arguments, (int32_t)own->operand_count, &result);
    if (failed == 0) return PF_OK;
    pf_status status = pf_fail(PF_INTERNAL, "internal.kernel", "kernel %" PRIu32 " (%s, %s) failed with %d: %s", index, own->name,
                               own->phase, failed, pf_kernel_message());
    pf_kernel_message_clear();
    return status;
}

pf_status pf_device_enqueue(pf_device *device, const pf_program *program, uint32_t index) {
    return call(device, program, index, program->calls[index].kernel);
}

pf_status pf_device_enqueue_all(pf_device *device, const pf_program *program) {
    for (uint32_t i = 0; i < program->call_count; i++) PF_TRY(call(device, program, i, program->calls[i].kernel));
    return PF_OK;
}

static int empty_kernel(void *self, const pf_ffi_any *args, int32_t count, pf_ffi_any *result) {
    (void)self, (void)args, (void)count, (void)result;
    return 0;
}

/* With the operands of the step's first kernel. */
pf_status pf_device_enqueue_nothing(pf_device *device) { return call(device, &pf_image_data.train, 0, empty_kernel); }

pf_status pf_device_finish(pf_device *device) { return (void)device, PF_OK; }

void pf_device_close(pf_device *device) {
    if (!device) return;
    if (device->mapping) munmap(device->mapping, device->mapped_bytes);
    free(device);
}

const char *pf_device_message(const pf_device *device) { return (void)device, ""; }
