"""Running a kernel on a device with outputs that share storage with inputs, as the memory plan lets updates do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_void_p

import numpy as np

from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.kernel_harness.launch import build_object
from tests.kernel_harness.opencl import OpenCl

OPENCL = "x86-64-v3/opencl"


class _Sharing(OpenCl):
    """A device that gives some operands the buffer of an earlier one."""

    def __init__(self, shared: Mapping[int, int]) -> None:
        super().__init__()
        self._shared = shared
        self._made: list[c_void_p] = []

    def _buffer(self, content: bytes) -> c_void_p:
        earlier = self._shared.get(len(self._made))
        if earlier is None:
            buffer = super()._buffer(content)
        else:
            buffer = self._made[earlier]
            self._check(self._cl.clRetainMemObject(buffer), "clRetainMemObject")
        self._made.append(buffer)
        return buffer


def run_in_place(spec: KernelSpec, inputs: Sequence[Array], takes_over: Sequence[int]) -> list[Array]:
    """The outputs, of which the one numbered k has the storage of input `takes_over[k]`."""
    kernel, types = build_object(spec, load(OPENCL)), operand_types(spec)
    operands = [
        bytearray(np.ascontiguousarray(array, tensor.element.numpy).tobytes())
        for array, tensor in zip(inputs, types.inputs, strict=True)
    ]
    first = len(operands)
    operands += [bytearray(tensor.size_bytes) for tensor in types.outputs]
    if kernel.workspace_bytes:
        operands.append(bytearray(b"\xff" * kernel.workspace_bytes))
    _Sharing({first + output: number for output, number in enumerate(takes_over)}).run(kernel, operands)
    return [
        np.frombuffer(bytes(operand), tensor.element.numpy).reshape(tensor.shape)
        for operand, tensor in zip(operands[first:], types.outputs, strict=False)
    ]
