"""A kernel that runs in this process from NumPy: each operand lies between guard bytes that are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from compiler.element_types import ELEMENT_TYPES
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
        self._raw[self._start : self._start + size_bytes] = 0xFF  # NaN: a read before the first write shows

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
        assert len(inputs) == len(self.types.inputs), f"expected {len(self.types.inputs)} inputs, got {len(inputs)}"
        for storage, tensor, array in zip(storages, self.types.inputs, inputs, strict=False):
            storage.view(tensor)[...] = array
        outputs = storages[len(inputs) : len(inputs) + len(self.types.outputs)]
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
