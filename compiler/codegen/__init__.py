"""Code generation: `KernelSpec`s to object files for a target. The only package that imports TVM.

Importing TVM takes seconds and hundreds of megabytes, so only what writes TIR does (`tir`, and the emitting files of
each family), and only worker processes load that, through `family`. A family's `plan` does without.

Rooms: `tile` holds what all contractions share (register tiles, packing, cutting work for threads), then one room for
each family or group of families; `tir` writes and compiles TIR; `linking` makes binaries.

The kernel ABI (what the C runtime calls)
-----------------------------------------
A kernel with symbol S is TVM's packed function

    int32_t __tvm_ffi_S(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result);

`self` and `result` are not read and may be NULL. `args[i]` (16 bytes: int32 type_index, int32 zero, 8-byte union) is
operand i, in the order inputs, outputs, then one f32 workspace if its launch record says so:
`type_index = 7` (kTVMFFIDLTensorPtr) and `v_ptr` = `DLTensor *`. Of the DLTensor only `data` is read (offset 0, 64-byte
aligned storage of the whole tensor); nothing is checked, so a caller builds its tables once, from the same specs.
A call without parallel loops costs a few nanoseconds. The return value is 0, or what the parallel launch returned
when that is not 0.

An object may need, all weak or provided by the caller:

    int (*__TVMBackendParallelLaunch)(int (*lambda)(int task_id, TVMParallelGroupEnv *env, void *cdata),
                                      void *cdata, int num_task);

a *variable* holding a function pointer, emitted as a weak zero (`V`) in each object that launches; the runtime defines
it strongly. `num_task` is always 0: the runtime picks the count, at least 1, and passes it in
`struct TVMParallelGroupEnv { void *sync_handle; int32_t num_task; }` (sync_handle may be NULL; no kernel uses the
barrier). The lambda must be called exactly once for each task_id in [0, num_task), in any order or at once; the launch
returns when all have returned, 0 or the first non-zero code. A kernel may launch several times, one after
another, never nested. Work is split over num_task at run time, so any number of threads gives the same bytes.
`__TVMBackendAllocWorkspace` and `__TVMBackendFreeWorkspace` are not used: kernels allocate nothing but small stack
arrays. `TVMFFIErrorSetRaisedFromCStrParts` is not needed, since argument checks are compiled out. LLVM may call
`memset` and `memcpy`.
"""
