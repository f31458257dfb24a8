"""Running one kernel in this process from NumPy, for tests: its operands between guards, and objects made by zig."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ziglang

from compiler.cache_folder import LINKER, cache_folder
from compiler.element_types import ELEMENT_TYPES
from compiler.errors import BuildError
from compiler.graph import Array, TensorType
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import OperandTypes, operand_types

_GUARD_BYTES = 64
_GUARD = 0xA5


class Storage:
    """64-byte aligned bytes of one operand between guard bytes that `check` looks at."""

    def __init__(self, size_bytes: int) -> None:
        self._raw = np.full(size_bytes + 2 * _GUARD_BYTES + 64, _GUARD, np.uint8)
        self._start = (-self._raw.ctypes.data) % 64 + _GUARD_BYTES
        self._size_bytes = size_bytes
        self._raw[self._start : self._start + size_bytes] = 0xFF  # NaN: what is read unwritten shows

    @property
    def address(self) -> int:
        """Where the operand begins."""
        return int(self._raw.ctypes.data) + self._start

    def view(self, tensor: TensorType) -> Array:
        """The operand as an array over this storage."""
        flat = self._raw[self._start : self._start + self._size_bytes]
        return flat.view(ELEMENT_TYPES[tensor.dtype].numpy).reshape(tensor.shape)

    def check(self, name: str) -> None:
        """Raises: AssertionError if a kernel wrote outside the operand."""
        before, after = self._raw[: self._start], self._raw[self._start + self._size_bytes :]
        assert bool((before == _GUARD).all()), f"{name}: written before its start"
        assert bool((after == _GUARD).all()), f"{name}: written past its end"


class Runnable(ABC):
    """A kernel in this process: what `call` runs over storages, one per operand, the workspace last."""

    def __init__(self, spec: KernelSpec, workspace_bytes: int) -> None:
        self.spec, self.workspace_bytes = spec, workspace_bytes
        self.types: OperandTypes = operand_types(spec)

    @abstractmethod
    def call(self, storages: Sequence[Storage]) -> None:
        """Run once. Raises: AssertionError."""

    def storages(self) -> list[Storage]:
        """Fresh storage for every operand, the workspace last."""
        sizes = [tensor.size_bytes for tensor in self.types.inputs + self.types.outputs]
        return [Storage(size) for size in sizes + ([self.workspace_bytes] if self.workspace_bytes else [])]

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


def loaded(*objects: Path | str) -> ctypes.CDLL:
    """Objects as a library in this process, which has the C library they call.

    The linker is called directly: zig's compiler driver takes ten times as long to start it.
    """
    with tempfile.TemporaryDirectory(prefix="pockfarm-test-") as folder:
        library = Path(folder) / "kernel.so"
        zig("ld.lld", "-shared", "--gc-sections", "-o", str(library), *map(str, objects))
        return ctypes.CDLL(str(library), mode=os.RTLD_NOW)


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
