/* cuda_device.h: the inside of a device behind CUDA: cuda_driver.c has its driver, cuda_memory.c its memory, and cuda.c its
 * kernels. */
#ifndef POCKFARM_CUDA_DEVICE_H
#define POCKFARM_CUDA_DEVICE_H

#include "cuda_api.h"
#include "device.h"

enum { PF_CUDA_MESSAGE_BYTES = 192, PF_CUDA_PROGRAMS = 3 };

/* Host memory that some bytes of a GPU with memory of its own are copied from and to; pinned, so that a copy needs no other. */
typedef struct pf_staging {
    struct pf_staging *next;
    uint64_t offset, bytes;
    void *address;
    pf_access access;
    bool is_open;
} pf_staging;

struct pf_device {
    void *library;
    pf_cu cu;
    cu_device device;
    cu_handle context, stream;
    bool is_unified;    /* the host reaches the memory, see `allocate` */
    bool is_concurrent; /* also while kernels run */
    int windows;        /* that are open in unified memory */
    cu_address memory;
    pf_staging *stagings;
    cu_handle *modules;                      /* by the image's codes */
    cu_handle *functions[PF_CUDA_PROGRAMS];  /* by the launches of each program of the image */
    cu_address *addresses[PF_CUDA_PROGRAMS]; /* by their arguments */
    cu_handle graphs[PF_CUDA_PROGRAMS];      /* NULL: not run yet */
    cu_handle empty_module, empty;           /* what computes nothing */
    char message[PF_CUDA_MESSAGE_BYTES];
};

/* Load the driver and take the first GPU. Undone by `pf_cuda_stop`, also where this fails. */
pf_status pf_cuda_start(pf_device *device);
void pf_cuda_stop(pf_device *device);

/* What a call of the driver answered. */
pf_status pf_cuda_check(const pf_device *device, cu_result code, const char *what);
#define PF_CUDA(device, name, ...) pf_cuda_check(device, (device)->cu.name(__VA_ARGS__), #name)

/* The driver's name of an error. */
const char *pf_cuda_name(const pf_device *device, cu_result code);

/* Before other calls: a thread has a context of its own, and any thread may come. */
pf_status pf_cuda_enter(const pf_device *device);

/* A number that describes the GPU; 0 where it is not known. */
int32_t pf_cuda_attribute(const pf_device *device, int32_t what);

void pf_cuda_free_memory(pf_device *device);

#endif
