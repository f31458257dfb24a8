"""Running one kernel from NumPy, for tests and benchmarks: build, link with a small launcher, call through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.cuda_testing import CudaKernel
from compiler.codegen.linking.link import RUNTIME
from compiler.codegen.opencl_testing import run_on_device
from compiler.codegen.running import Runnable, Storage, loaded, object_of, zig
from compiler.codegen.symbols import symbol_of
from compiler.codegen.worker import Request, build
from compiler.errors import BuildError
from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import CpuTarget, Target, load, load_cpu

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
__attribute__((constructor)) static void ask(void) { if (!pf_tiles_ask()) abort(); }
"""


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

    `run(*inputs)` returns the outputs; `call(storages)` is the bare call, for benchmarks and in-place checks. `beside`:
    objects with functions that the kernel calls.
    """

    def __init__(
        self, spec: KernelSpec, target: Target, threads: int, choice: Choice = DEFAULT, beside: Sequence[Path] = ()
    ) -> None:
        reply = build_object(spec, target, threads, choice)
        super().__init__(spec, reply.workspace_bytes)
        self._library = _loaded(reply.object_bytes, beside)
        self.set_threads(threads)
        self._function = getattr(self._library, f"__tvm_ffi_{symbol_of(spec, choice)}")

    def set_threads(self, threads: int) -> None:
        """How many threads a parallel loop gets from now on."""
        self._library.set_threads(threads)

    def call(self, storages: Sequence[Storage]) -> None:
        """Run once over the given storages (one per operand, the workspace last). Raises: AssertionError."""
        code = self._function(None, *self.arguments(storages), None)
        assert code == 0, f"kernel returned {code}"

    def arguments(self, storages: Sequence[Storage]) -> tuple[object, int]:
        """The argument array of the packed ABI and its length; it keeps what it points to alive."""
        tensors = [_DLTensor(data=storage.address) for storage in storages]
        array = (_Any * len(tensors))(*(_Any(7, 0, ctypes.pointer(tensor)) for tensor in tensors))
        array._kept = (tensors, storages)  # type: ignore[attr-defined]
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
    named = target or default_target()
    wanted = load(named) if isinstance(named, str) else named
    if isinstance(wanted, CpuTarget):
        return Kernel(spec, wanted, threads, choice).run(*inputs, initial=initial)
    if wanted.kind == "cuda":
        return CudaKernel(spec, wanted, choice).run(*inputs, initial=initial)
    types = operand_types(spec)
    return run_on_device(build_object(spec, wanted), (types.inputs, types.outputs), inputs, initial)


def build_object(spec: KernelSpec, target: Target, threads: int = 2, choice: Choice = DEFAULT) -> CompiledKernel:
    """Build one kernel in this process. Raises: BuildError with the traceback."""
    reply = build(Request(spec, target, threads, choice))
    if reply.kernel is None:
        raise BuildError(reply.error, where=symbol_of(spec))
    return reply.kernel


def default_target() -> str:
    """Where `run_kernel` runs what no test says otherwise of: this machine, or what the environment names."""
    return os.environ.get("POCKFARM_KERNELS_ON") or native_target()


@cache
def native_target() -> str:
    """The best x86-64 target that this machine runs; of those that differ in half precision alone, the plain one."""
    return "x86-64-v4" if runs(load_cpu("x86-64-v4")) else "x86-64-v3"


def runs(target: CpuTarget) -> bool:
    """Whether this machine has all instructions of a target."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return target.architecture == platform.machine() and set(target.required_features) <= set(flags)


def _loaded(object_bytes: bytes, beside: Sequence[Path]) -> ctypes.CDLL:
    """The kernel with the launcher and what is beside them."""
    with tempfile.TemporaryDirectory(prefix="pockfarm-test-") as folder:
        path = Path(folder) / "kernel.o"
        path.write_bytes(object_bytes)
        return loaded(path, _launcher_object(), *beside)


@cache
def _launcher_object() -> Path:
    """The launcher, compiled once per content into the user's temporary folder."""
    return object_of("launcher", (RUNTIME / "tiles.h").read_text() + _LAUNCHER, "-O2", "-fPIC")


__all__ = ["Kernel", "Storage", "build_object", "native_target", "object_of", "run_kernel", "runs", "zig"]
