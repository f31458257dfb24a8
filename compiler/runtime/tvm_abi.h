/* tvm_abi.h: the part of TVM's packed-call ABI (apache-tvm 0.27, tvm-ffi; DLPack 1.x) that our kernels use. */
#ifndef POCKFARM_TVM_ABI_H
#define POCKFARM_TVM_ABI_H

#include <stdint.h>

typedef struct {
    int32_t device_type, device_id;
} pf_dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} pf_dl_dtype;

typedef struct {
    void *data;
    pf_dl_device device;
    int32_t ndim;
    pf_dl_dtype dtype;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} pf_dl_tensor;

typedef struct {
    int32_t type_index;
    uint32_t zero_padding;
    union {
        int64_t v_int64;
        void *v_ptr;
    };
} pf_ffi_any;

typedef struct {
    void *sync_handle;
    int32_t num_task;
} pf_parallel_env;

enum { PF_FFI_NONE = 0, PF_FFI_DL_TENSOR = 7, PF_DL_CPU = 1, PF_DL_INT = 0, PF_DL_FLOAT = 2, PF_DL_BOOL = 6 };

_Static_assert(sizeof(pf_dl_tensor) == 48, "DLTensor");
_Static_assert(sizeof(pf_ffi_any) == 16, "TVMFFIAny");
_Static_assert(sizeof(pf_parallel_env) == 16, "TVMParallelGroupEnv");

typedef int pf_kernel_fn(void *self, const pf_ffi_any *args, int32_t count, pf_ffi_any *result);
typedef int pf_parallel_lambda(int task, pf_parallel_env *env, void *closure);

#endif
