/* device.h: what runs a step's kernels, and where the memory of the step lies. A binary has one kind of it, which its target
 * decides: devices/cpu.c, devices/opencl.c, devices/cuda.c. All of it is called by one thread at a time. */
#ifndef POCKFARM_DEVICE_H
#define POCKFARM_DEVICE_H

#include "image.h"

typedef struct pf_device pf_device;

/* What the host does with bytes that it maps; PF_WRITE: it writes all of them. They reach the device with the unmapping. */
typedef enum { PF_READ = 1, PF_WRITE = 2, PF_READ_WRITE = 3 } pf_access;

/* The driver, if there is one, and what it drives. `*device` is for `pf_device_close`, also where this fails. */
pf_status pf_device_open(pf_device **device);

/* All memory of the step, zero: offsets of the image count from its start. */
pf_status pf_device_allocate(pf_device *device, uint64_t bytes);

/* The image's kernels, bound to that memory. */
pf_status pf_device_load(pf_device *device);

/* Where the host reaches the memory at any time; NULL: by the next four functions only. */
unsigned char *pf_device_memory(const pf_device *device);

/* Some bytes to the device or from it, after all that was enqueued before. */
pf_status pf_device_upload(pf_device *device, uint64_t offset, const void *from, uint64_t bytes);
pf_status pf_device_download(pf_device *device, uint64_t offset, void *to, uint64_t bytes);

/* Many bytes without a copy of ours; none of them may be mapped while kernels run. */
pf_status pf_device_map(pf_device *device, uint64_t offset, uint64_t bytes, pf_access access, void **address);
pf_status pf_device_unmap(pf_device *device, void *address);

/* Start call `index` of a program of the image, after all that was enqueued before. */
pf_status pf_device_enqueue(pf_device *device, const pf_program *program, uint32_t index);

/* Start all calls of a program in order, as call by call would or as one. */
pf_status pf_device_enqueue_all(pf_device *device, const pf_program *program);

/* Start what computes nothing, as a call is started. */
pf_status pf_device_enqueue_nothing(pf_device *device);

/* Wait until all that was enqueued is done. */
pf_status pf_device_finish(pf_device *device);

/* NULL: nothing. */
void pf_device_close(pf_device *device);

/* What it is, for people: the device's and its driver's names and versions. Empty for a CPU. */
const char *pf_device_message(const pf_device *device);

#endif
