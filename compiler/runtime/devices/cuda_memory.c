/* cuda_memory.c: the memory of a step on an NVIDIA GPU: one allocation, and how the host comes to it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_device.h"
#include "failure.h"

/* A GPU with memory of its own takes that. One that shares the host's (a Jetson) takes managed memory, which both of them
 * cache: pinned memory it would not cache, and kernels read most bytes more than once.
 *
 * Source: NVIDIA, CUDA for Tegra, Memory Selection. */
static pf_status allocate(pf_device *device, uint64_t bytes) {
    bool is_managed = pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) > 0;
    device->is_unified = is_managed && pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_INTEGRATED) > 0;
    device->is_concurrent = pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) > 0;
    if (device->is_unified) return PF_CUDA(device, cuMemAllocManaged, &device->memory, bytes, CU_MEM_ATTACH_GLOBAL);
    return PF_CUDA(device, cuMemAlloc_v2, &device->memory, bytes);
}

pf_status pf_device_allocate(pf_device *device, uint64_t bytes) {
    size_t most = 0;
    if (bytes == 0) bytes = 1;
    PF_TRY(pf_cuda_enter(device));
    PF_TRY(PF_CUDA(device, cuDeviceTotalMem_v2, &most, device->device));
    if (bytes > most)
        return pf_fail(PF_LIMITS, "limits.memory", "this step needs %" PRIu64 " bytes (weights, optimizer state and arena) and "
                       "%s has %zu; use a sparser plan or a smaller batch", bytes, device->message, most);
    PF_TRY(allocate(device, bytes));
    PF_TRY(PF_CUDA(device, cuMemsetD8Async, device->memory, 0, bytes, device->stream));
    return pf_device_finish(device);
}

/* Managed memory too is the host's only while it is mapped. */
unsigned char *pf_device_memory(const pf_device *device) { return (void)device, NULL; }

static unsigned char *unified(const pf_device *device, uint64_t offset) {
    return (unsigned char *)(uintptr_t)(device->memory + offset);
}

/* While the host has unified memory, the GPU may not come to it: the host copies. Else the driver does, and has taken what it
 * needs of `from` when it returns, unless that is pinned. */
pf_status pf_device_upload(pf_device *device, uint64_t offset, const void *from, uint64_t bytes) {
    if (device->windows > 0) return memcpy(unified(device, offset), from, bytes), PF_OK;
    PF_TRY(pf_cuda_enter(device));
    return PF_CUDA(device, cuMemcpyHtoDAsync_v2, device->memory + offset, from, bytes, device->stream);
}

pf_status pf_device_download(pf_device *device, uint64_t offset, void *to, uint64_t bytes) {
    if (device->windows > 0) return memcpy(to, unified(device, offset), bytes), PF_OK;
    PF_TRY(pf_cuda_enter(device));
    PF_TRY(PF_CUDA(device, cuMemcpyDtoHAsync_v2, to, device->memory + offset, bytes, device->stream));
    return pf_device_finish(device);
}

/* Where host and GPU may not use managed memory at once, not even different parts of it, all of it is handed over and back:
 * without that the host might not come to it while any other step of the process runs. */
static pf_status hand_to(const pf_device *device, uint32_t whom) {
    if (device->is_concurrent) return PF_OK;
    return PF_CUDA(device, cuStreamAttachMemAsync, device->stream, device->memory, 0, whom);
}

static pf_status open_unified(pf_device *device, uint64_t offset, void **address) {
    if (device->windows == 0) PF_TRY(hand_to(device, CU_MEM_ATTACH_HOST));
    PF_TRY(pf_device_finish(device));
    device->windows++;
    *address = unified(device, offset);
    return PF_OK;
}

static pf_status close_unified(pf_device *device) {
    return --device->windows == 0 ? hand_to(device, CU_MEM_ATTACH_GLOBAL) : PF_OK;
}

static pf_status stage(pf_device *device, uint64_t offset, uint64_t bytes, pf_staging **found) {
    for (pf_staging *own = device->stagings; own; own = own->next)
        if (!own->is_open && own->offset == offset && own->bytes == bytes) return *found = own, PF_OK;
    pf_staging *own = calloc(1, sizeof *own);
    if (!own) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of what is mapped");
    *own = (pf_staging){.next = device->stagings, .offset = offset, .bytes = bytes};
    pf_status status = PF_CUDA(device, cuMemHostAlloc, &own->address, bytes, 0);
    if (status != PF_OK) return free(own), status;
    *found = device->stagings = own;
    return PF_OK;
}

static pf_status drop(pf_device *device, pf_staging *own) {
    pf_staging **link = &device->stagings;
    while (*link != own) link = &(*link)->next;
    *link = own->next;
    void *address = own->address;
    free(own);
    return PF_CUDA(device, cuMemFreeHost, address);
}

static pf_status open_staging(pf_device *device, uint64_t offset, uint64_t bytes, pf_access access, void **address) {
    pf_staging *own;
    PF_TRY(pf_device_finish(device)); /* kernels, and copies from this buffer */
    PF_TRY(stage(device, offset, bytes, &own));
    if (access & PF_READ) PF_TRY(pf_device_download(device, offset, own->address, bytes));
    own->access = access;
    own->is_open = true;
    *address = own->address;
    return PF_OK;
}

/* Its buffer waits for the next step, unless it is one of weights or optimizer state: these are large, and mapped seldom. */
static pf_status close_staging(pf_device *device, void *address) {
    pf_staging *own = device->stagings;
    while (!own->is_open || own->address != address) own = own->next;
    own->is_open = false;
    pf_status status = own->access & PF_WRITE ? pf_device_upload(device, own->offset, address, own->bytes) : PF_OK;
    if (own->offset >= pf_image_data.accumulator_offset) return status;
    pf_status finished = pf_device_finish(device), dropped = drop(device, own);
    return status != PF_OK ? status : finished != PF_OK ? finished : dropped;
}

pf_status pf_device_map(pf_device *device, uint64_t offset, uint64_t bytes, pf_access access, void **address) {
    PF_TRY(pf_cuda_enter(device));
    return device->is_unified ? open_unified(device, offset, address) : open_staging(device, offset, bytes, access, address);
}

pf_status pf_device_unmap(pf_device *device, void *address) {
    PF_TRY(pf_cuda_enter(device));
    return device->is_unified ? close_unified(device) : close_staging(device, address);
}

void pf_cuda_free_memory(pf_device *device) {
    while (device->stagings) drop(device, device->stagings);
    if (device->memory) device->cu.cuMemFree_v2(device->memory);
}
