"""Running one kernel from NumPy: build it, link it with a small launcher, and call it through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from compiler.codegen import worker
from compiler.codegen.api import build_kernels
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.linking.toolchain import RUNTIME
from compiler.codegen.symbols import symbol_of
from compiler.codegen.worker import Request
from compiler.errors import BuildError
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec, signature
from compiler.program.operands import operand_types
from compiler.targets import CpuTarget, Target, load
from tests.kernel_harness.cache import kernel_cache_folder
from tests.kernel_harness.cuda import CudaKernel
from tests.kernel_harness.machine import native_target
from tests.kernel_harness.objects import load_library, object_file
from tests.kernel_harness.opencl import run_on_device
from tests.kernel_harness.storage import Runnable, Storage

_LAUNCHER = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
typedef struct { void *sync_handle; int32_t num_task; } Env;
typedef int (*Lambda)(int, Env *, void *);
typedef struct { Lambda lambda; Env env; void *cdata; int id; int rc; } Task;
static int32_t threads = 1;
static void *run(void *p) { Task *t = p; t->rc = t->lambda(t->id, &t->env, t->cdata); return 0; }
static int launch(Lambda lambda, void *cdata, int num_task) {
  pthread_t ids[64]; Task tasks[64]; int rc = 0;
  for (int i = 0; i < threads; i++) tasks[i] = (Task){lambda, {0, threads}, cdata, i, 0};
  for (int i = 1; i < threads; i++) pthread_create(&ids[i], 0, run, &tasks[i]);
  run(&tasks[0]);
  for (int i = 1; i < threads; i++) pthread_join(ids[i], 0);
  for (int i = 0; i < threads; i++) rc = rc ? rc : tasks[i].rc;
  return rc;
}
int (*__TVMBackendParallelLaunch)(Lambda, void *, int) = launch;
void set_threads(int n) { threads = n < 1 ? 1 : n > 64 ? 64 : n; }
__attribute__((constructor)) static void find_tiles(void) { if (!pf_tiles_ask()) abort(); }
"""


def build_object(spec: KernelSpec, target: Target, threads: int = 2, choice: Choice = DEFAULT) -> CompiledKernel:
    """One kernel, from the tests' cache or built by a process of the compiler. Raises: BuildError."""
    kernels = build_kernels(
        (spec,), target, threads=threads, cache_dir=kernel_cache_folder(), choices={signature(spec): choice}
    )
    return kernels[signature(spec)]


def build_in_process(spec: KernelSpec, target: Target, threads: int = 2, choice: Choice = DEFAULT) -> CompiledKernel:
    """Build one kernel in this process, past the cache: for tests that replace parts of the compiler.

    Raises: BuildError with the traceback.
    """
    reply = worker.build(Request(spec, target, threads, choice))
    if reply.kernel is None:
        raise BuildError(reply.error, where=symbol_of(spec))
    return reply.kernel


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("zero", ctypes.c_int32), ("tensor", ctypes.POINTER(_DLTensor)))


class Kernel(Runnable):
    """A compiled kernel in this process.

    `run(*inputs)` returns the outputs; `call(storages)` is the bare call, for benchmarks and in-place checks.
    A parallel loop gets `threads` threads. `other_objects` have functions that the kernel calls.
    """

    def __init__(
        self,
        spec: KernelSpec,
        target: Target,
        threads: int,
        choice: Choice = DEFAULT,
        other_objects: Sequence[Path] = (),
        build: Callable[[KernelSpec, Target, int, Choice], CompiledKernel] = build_object,
    ) -> None:
        kernel = build(spec, target, threads, choice)
        super().__init__(spec, kernel.workspace_bytes)
        others = [path.read_bytes() for path in other_objects]
        self._library = load_library(kernel.object_bytes, _launcher_object(), *others)
        self.threads = threads
        self._function = getattr(self._library, f"__tvm_ffi_{symbol_of(spec, choice)}")

    def call(self, storages: Sequence[Storage]) -> None:
        """Run once over the given storages (one per operand, the workspace last). Raises: AssertionError."""
        self._library.set_threads(self.threads)
        code = self._function(None, *self.arguments(storages), None)
        assert code == 0, f"kernel returned {code}"

    def arguments(self, storages: Sequence[Storage]) -> tuple[object, int]:
        """The argument array of the packed ABI and its length; it keeps what it points to alive."""
        tensors = [_DLTensor(data=storage.address) for storage in storages]
        array = (_Any * len(tensors))(*(_Any(7, 0, ctypes.pointer(tensor)) for tensor in tensors))
        array._referenced = (tensors, storages)  # type: ignore[attr-defined]
        return array, len(tensors)


def run_kernel(
    spec: KernelSpec,
    inputs: Sequence[Array],
    *,
    threads: int = 2,
    target: str | Target | None = None,
    initial: Sequence[Array | None] = (),
    choice: Choice = DEFAULT,
) -> tuple[Array, ...]:
    """Build `spec` and run it once (see `Runnable.run`): here, by this machine's OpenCL, or CUDA's text as C++."""
    target = target or default_target()
    target = load(target) if isinstance(target, str) else target
    if isinstance(target, CpuTarget):
        return Kernel(spec, target, threads, choice).run(*inputs, initial=initial)
    if target.kind == "cuda":
        return CudaKernel(spec, target, choice).run(*inputs, initial=initial)
    types = operand_types(spec)
    return run_on_device(build_object(spec, target), (types.inputs, types.outputs), inputs, initial)


def default_target() -> str:
    """The target of `run_kernel` unless a test names one: this machine's, or what `POCKFARM_KERNELS_ON` names."""
    return os.environ.get("POCKFARM_KERNELS_ON") or native_target()


@cache
def _launcher_object() -> bytes:
    return object_file((RUNTIME / "tiles.h").read_text() + _LAUNCHER, "-O2", "-fPIC").read_bytes()
