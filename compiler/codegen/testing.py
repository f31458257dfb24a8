"""Running one kernel from NumPy, for tests and benchmarks: build, link with a small launcher, call through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import ziglang

from compiler.cache_folder import LINKER, cache_folder
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.linking.link import RUNTIME
from compiler.codegen.opencl_testing import run_on_device
from compiler.codegen.symbols import symbol_of
from compiler.codegen.worker import Request, build
from compiler.element_types import ELEMENT_TYPES
from compiler.errors import BuildError
from compiler.graph import Array, TensorType
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

_GUARD_BYTES = 64
_GUARD = 0xA5


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


class Storage:
    """64-byte aligned bytes of one operand between guard bytes that `check` looks at."""

    def __init__(self, size_bytes: int) -> None:
        self._raw = np.full(size_bytes + 2 * _GUARD_BYTES + 64, _GUARD, np.uint8)
        self._start = (-self._raw.ctypes.data) % 64 + _GUARD_BYTES
        self._size_bytes = size_bytes
        self._raw[self._start : self._start + size_bytes] = 0xFF  # NaN: what is read unwritten shows

    def view(self, tensor: TensorType) -> Array:
        """The operand as an array over this storage."""
        flat = self._raw[self._start : self._start + self._size_bytes]
        return flat.view(ELEMENT_TYPES[tensor.dtype].numpy).reshape(tensor.shape)

    def check(self, name: str) -> None:
        """Raises: AssertionError if a kernel wrote outside the operand."""
        before, after = self._raw[: self._start], self._raw[self._start + self._size_bytes :]
        assert bool((before == _GUARD).all()), f"{name}: written before its start"
        assert bool((after == _GUARD).all()), f"{name}: written past its end"


class Kernel:
    """A compiled kernel in this process.

    `run(*inputs)` returns the outputs; `call(storages)` is the bare call, for benchmarks and in-place checks. `beside`:
    objects with functions that the kernel calls.
    """

    def __init__(
        self, spec: KernelSpec, target: Target, threads: int, choice: Choice = DEFAULT, beside: Sequence[Path] = ()
    ) -> None:
        reply = build_object(spec, target, threads, choice)
        self.spec = spec
        self.types = operand_types(spec)
        self.workspace_bytes = reply.workspace_bytes
        self._library = _load(reply.object_bytes, beside)
        self.set_threads(threads)
        self._function = getattr(self._library, f"__tvm_ffi_{symbol_of(spec, choice)}")

    def set_threads(self, threads: int) -> None:
        """How many threads a parallel loop gets from now on."""
        self._library.set_threads(threads)

    def storages(self) -> list[Storage]:
        """Fresh storage for every operand, the workspace last."""
        sizes = [tensor.size_bytes for tensor in self.types.inputs + self.types.outputs]
        return [Storage(size) for size in sizes + ([self.workspace_bytes] if self.workspace_bytes else [])]

    def call(self, storages: Sequence[Storage]) -> None:
        """Run once over the given storages (one per operand, the workspace last). Raises: AssertionError."""
        code = self._function(None, *self.arguments(storages), None)
        assert code == 0, f"kernel returned {code}"

    def arguments(self, storages: Sequence[Storage]) -> tuple[object, int]:
        """The argument array of the packed ABI and its length; it keeps what it points to alive."""
        tensors = [_DLTensor(data=_address(storage)) for storage in storages]
        array = (_Any * len(tensors))(*(_Any(7, 0, ctypes.pointer(tensor)) for tensor in tensors))
        array._kept = (tensors, storages)  # type: ignore[attr-defined]
        return array, len(tensors)

    def run(self, *inputs: Array, initial: Sequence[Array | None] = ()) -> tuple[Array, ...]:
        """The outputs for these inputs. Outputs start as `initial[i]` if given, else as garbage.

        Raises: AssertionError if the kernel fails, writes outside its operands or changes an input.
        """
        storages = self.storages()
        given = [np.asarray(array) for array in inputs]
        assert len(given) == len(self.types.inputs), f"{len(self.types.inputs)} inputs wanted, {len(given)} given"
        for storage, tensor, array in zip(storages, self.types.inputs, given, strict=False):
            storage.view(tensor)[...] = array
        outputs = storages[len(given) : len(given) + len(self.types.outputs)]
        for storage, tensor, start in zip(outputs, self.types.outputs, initial, strict=False):
            if start is not None:
                storage.view(tensor)[...] = start
        before = [storage.view(t).copy() for storage, t in zip(storages, self.types.inputs, strict=False)]
        self.call(storages)
        for number, storage in enumerate(storages):
            storage.check(f"operand {number}")
        for number, (array, storage) in enumerate(zip(before, storages, strict=False)):
            assert storage.view(self.types.inputs[number]).tobytes() == array.tobytes(), f"input {number} changed"
        return tuple(s.view(t).copy() for s, t in zip(outputs, self.types.outputs, strict=True))


def _address(storage: Storage) -> int:
    return int(storage._raw.ctypes.data) + storage._start


def run_kernel(
    spec: KernelSpec,
    inputs: Sequence[Array],
    *,
    threads: int = 2,
    target: str | None = None,
    initial: Sequence[Array | None] = (),
    choice: Choice = DEFAULT,
) -> tuple[Array, ...]:
    """Build `spec` for this machine and run it once (see `Kernel.run`)."""
    wanted = load(target or default_target())
    if isinstance(wanted, CpuTarget):
        return Kernel(spec, wanted, threads, choice).run(*inputs, initial=initial)
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


def _load(object_bytes: bytes, beside: Sequence[Path]) -> ctypes.CDLL:
    """The kernel, the launcher and what is beside them as a library in this process, which has the C library they call.

    The linker is called directly: zig's compiler driver takes ten times as long to start it.
    """
    with tempfile.TemporaryDirectory(prefix="pockfarm-test-") as folder:
        path = Path(folder) / "kernel.o"
        path.write_bytes(object_bytes)
        library = Path(folder) / "kernel.so"
        objects = [str(one) for one in (path, _launcher_object(), *beside)]
        zig("ld.lld", "-shared", "--gc-sections", "-o", str(library), *objects)
        return ctypes.CDLL(str(library), mode=os.RTLD_NOW)


@cache
def _launcher_object() -> Path:
    """The launcher, compiled once per content into the user's temporary folder."""
    return object_of("launcher", (RUNTIME / "tiles.h").read_text() + _LAUNCHER, "-O2", "-fPIC")


def object_of(name: str, source: str, *options: str) -> Path:
    """C source compiled once per content and options, kept in the user's temporary folder. Raises: BuildError."""
    digest = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pockfarm-{name}-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.o"
    if not path.exists():
        written = folder / f"{os.getpid()}.c"
        written.write_text(source)
        partial = folder / f"{os.getpid()}.o"
        zig("cc", *options, "-c", str(written), "-o", str(partial))
        partial.replace(path)
    return path


def zig(program: str, *arguments: str) -> str:
    """Run one of zig's programs (`cc`, `ld.lld`) and return what it said on both outputs. Raises: BuildError."""
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / LINKER), **os.environ}
    command = [str(Path(ziglang.__file__).parent / "zig"), program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise BuildError(done.stderr.strip()[-2000:], where=f"zig {program}")
    return done.stdout + done.stderr
