/* cuda_driver.c: CUDA's driver, which is loaded when the program runs, and the GPU that it gives. */
#include <dlfcn.h>
#include <stdio.h>

#include "cuda_device.h"
#include "failure.h"

enum { NAME_BYTES = 128 };

/* The loader of a Jetson, or of a container on it, may not know the driver's folder, which differs by JetPack's version. */
static const char *const DRIVERS[] = {"libcuda.so.1", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1",
                                      "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
                                      "/usr/lib/aarch64-linux-gnu/tegra-egl/libcuda.so.1"};

const char *pf_cuda_name(const pf_device *device, cu_result code) {
    const char *name = NULL;
    return device->cu.cuGetErrorName(code, &name) == CUDA_SUCCESS && name ? name : "an unknown error";
}

pf_status pf_cuda_check(const pf_device *device, cu_result code, const char *what) {
    if (code == CUDA_SUCCESS) return PF_OK;
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return pf_fail(PF_LIMITS, "limits.memory", "the CUDA driver has no room for this step (%s answered %s); free memory or "
                       "use a sparser plan or a smaller batch", what, pf_cuda_name(device, code));
    return pf_fail(PF_INTERNAL, "internal.device", "the CUDA driver answered %s (%d) to %s", pf_cuda_name(device, code), code,
                   what);
}

pf_status pf_cuda_enter(const pf_device *device) { return PF_CUDA(device, cuCtxSetCurrent, device->context); }

/* What people are told is of the library's plain name, not of the folders that only Jetsons have. */
static pf_status load_library(pf_device *device) {
    device->library = dlopen(DRIVERS[0], RTLD_NOW | RTLD_LOCAL);
    if (device->library) return PF_OK;
    pf_status status = pf_fail(PF_LIMITS, "limits.driver", "there is no CUDA driver (%s); install NVIDIA's driver of this "
                               "board or GPU", dlerror());
    for (size_t i = 1; i < sizeof DRIVERS / sizeof *DRIVERS && !device->library; i++)
        device->library = dlopen(DRIVERS[i], RTLD_NOW | RTLD_LOCAL);
    return device->library ? PF_OK : status;
}

static pf_status load_driver(pf_device *device) {
    PF_TRY(load_library(device));
#define PF_CU_LOAD(name, parameters)                                                                                      \
    *(void **)&device->cu.name = dlsym(device->library, #name);                                                           \
    if (!device->cu.name)                                                                                                 \
        return pf_fail(PF_LIMITS, "limits.driver", "the CUDA driver has no %s: it is older than CUDA 11.4", #name);
    PF_CU_FUNCTIONS(PF_CU_LOAD)
    return PF_OK;
}

/* The first GPU: the driver's CUDA_VISIBLE_DEVICES says which that is. */
static pf_status choose_device(pf_device *device) {
    int32_t count = 0;
    cu_result code = device->cu.cuInit(0);
    if (code == CUDA_SUCCESS) code = device->cu.cuDeviceGetCount(&count);
    if (code == CUDA_SUCCESS && count > 0) return PF_CUDA(device, cuDeviceGet, &device->device, 0);
    return pf_fail(PF_LIMITS, "limits.driver", "CUDA knows no GPU here (%s): the driver's library is installed, but its kernel "
                   "module is not loaded or of another version, or this process may not open the GPU",
                   code == CUDA_SUCCESS ? "it counts none" : pf_cuda_name(device, code));
}

int32_t pf_cuda_attribute(const pf_device *device, int32_t what) {
    int32_t value = 0;
    device->cu.cuDeviceGetAttribute(&value, what, device->device);
    return value;
}

static void describe(pf_device *device) {
    char name[NAME_BYTES] = "";
    int32_t version = 0;
    device->cu.cuDeviceGetName(name, sizeof name, device->device);
    device->cu.cuDriverGetVersion(&version);
    name[sizeof name - 1] = 0;
    snprintf(device->message, sizeof device->message, "GPU %s, compute capability %d.%d, driver CUDA %d.%d", name,
             pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
             pf_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), version / 1000, version % 1000 / 10);
}

pf_status pf_cuda_start(pf_device *device) {
    PF_TRY(load_driver(device));
    PF_TRY(choose_device(device));
    describe(device);
    PF_TRY(PF_CUDA(device, cuDevicePrimaryCtxRetain, &device->context, device->device));
    PF_TRY(pf_cuda_enter(device));
    return PF_CUDA(device, cuStreamCreate, &device->stream, CU_STREAM_NON_BLOCKING);
}

pf_status pf_device_finish(pf_device *device) {
    PF_TRY(pf_cuda_enter(device));
    return PF_CUDA(device, cuStreamSynchronize, device->stream);
}

void pf_cuda_stop(pf_device *device) {
    if (device->stream) device->cu.cuStreamDestroy_v2(device->stream);
    if (device->context) device->cu.cuDevicePrimaryCtxRelease_v2(device->device);
} /* the driver stays loaded: it does not bear to be unloaded */
