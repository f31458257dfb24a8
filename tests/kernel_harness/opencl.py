"""Running one kernel through OpenCL from NumPy: the driver is called through ctypes, without our runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache

import numpy as np

from compiler.codegen.artefacts import CompiledKernel
from compiler.element_types import ELEMENT_TYPES
from compiler.errors import BuildError
from compiler.graph import Array, TensorType
from tests.kernel_harness.cache import cached_file

DRIVER = "libOpenCL.so.1"
_ALL_DEVICES = 0xFFFFFFFF
_OPTIONS = b"-cl-std=CL1.2 -cl-opt-disable"
"""Each kernel runs once or twice: to optimize it would take longer than that saves."""
_DEVICE_NAME, _DRIVER_VERSION = 0x102B, 0x102D
_BINARY_SIZES, _BINARIES = 0x1165, 0x1166
_BUILD_LOG = 0x1183
_GUARD_BYTES = 64
_GUARD = 0xA5


class OpenCl:
    """The first device of the first platform."""

    def __init__(self) -> None:
        self._cl = ctypes.CDLL(DRIVER)
        for name in (
            "clCreateContext",
            "clCreateCommandQueue",
            "clCreateProgramWithSource",
            "clCreateProgramWithBinary",
            "clCreateKernel",
            "clCreateBuffer",
        ):
            getattr(self._cl, name).restype = c_void_p
        platform, self._device, code = c_void_p(), c_void_p(), c_int()
        self._check(self._cl.clGetPlatformIDs(1, byref(platform), None), "clGetPlatformIDs")
        self._check(
            self._cl.clGetDeviceIDs(platform, c_uint64(_ALL_DEVICES), 1, byref(self._device), None), "clGetDeviceIDs"
        )
        self._context = c_void_p(self._cl.clCreateContext(None, 1, byref(self._device), None, None, byref(code)))
        self._check(code.value, "clCreateContext")
        self._queue = c_void_p(self._cl.clCreateCommandQueue(self._context, self._device, c_uint64(0), byref(code)))
        self._check(code.value, "clCreateCommandQueue")
        self._identity = b"\0".join(map(self._device_info, (_DEVICE_NAME, _DRIVER_VERSION)))

    def _device_info(self, number: int) -> bytes:
        text = ctypes.create_string_buffer(1 << 10)
        code = self._cl.clGetDeviceInfo(self._device, number, c_size_t(len(text)), text, None)
        self._check(code, "clGetDeviceInfo")
        return text.value

    def _check(self, code: int, function: str) -> None:
        if code:
            raise BuildError(f"{function} returned {code}", where=DRIVER)

    def program(self, text: bytes) -> c_void_p:
        """A program built from its text, the device's code for it from the cache. Raises: BuildError with the log."""
        key = b"\0".join((self._identity, _OPTIONS, text))
        binary = cached_file("programs", key, lambda path: path.write_bytes(self._binary(text))).read_bytes()
        code = c_int()
        parts, sizes = (c_char_p * 1)(binary), (c_size_t * 1)(len(binary))
        program = c_void_p(
            self._cl.clCreateProgramWithBinary(self._context, 1, byref(self._device), sizes, parts, None, byref(code))
        )
        self._check(code.value, "clCreateProgramWithBinary")
        self._build(program, text)
        return program

    def _binary(self, text: bytes) -> bytes:
        code, size = c_int(), c_size_t()
        lines, sizes = (c_char_p * 1)(text), (c_size_t * 1)(len(text))
        program = c_void_p(self._cl.clCreateProgramWithSource(self._context, 1, lines, sizes, byref(code)))
        self._check(code.value, "clCreateProgramWithSource")
        self._build(program, text)
        code = self._cl.clGetProgramInfo(program, _BINARY_SIZES, c_size_t(ctypes.sizeof(size)), byref(size), None)
        self._check(code, "clGetProgramInfo")
        binary = ctypes.create_string_buffer(size.value)
        parts = (c_void_p * 1)(ctypes.addressof(binary))
        code = self._cl.clGetProgramInfo(program, _BINARIES, c_size_t(ctypes.sizeof(parts)), parts, None)
        self._check(code, "clGetProgramInfo")
        self._cl.clReleaseProgram(program)
        return binary.raw

    def _build(self, program: c_void_p, text: bytes) -> None:
        if self._cl.clBuildProgram(program, 1, byref(self._device), _OPTIONS, None, None):
            log = ctypes.create_string_buffer(1 << 16)
            self._cl.clGetProgramBuildInfo(program, self._device, _BUILD_LOG, c_size_t(len(log)), log, None)
            raise BuildError(log.value.decode(errors="replace"), where=text.decode())

    def run(self, kernel: CompiledKernel, operands: Sequence[bytearray]) -> None:
        """Run all launches of a kernel over operands, each in a buffer of its own; their bytes change in place.

        Raises: BuildError; AssertionError if a kernel wrote outside its operands.
        """
        program, code = self.program(kernel.artefacts[0].content), c_int()
        buffers = [
            self._buffer(bytes(_GUARD_BYTES * [_GUARD]) + operand + bytes(_GUARD_BYTES * [_GUARD]))
            for operand in operands
        ]
        for launch in kernel.launches:
            function = c_void_p(self._cl.clCreateKernel(program, launch.entry.encode(), byref(code)))
            self._check(code.value, "clCreateKernel")
            for place, number in enumerate(launch.operands):
                self._argument(function, 2 * place, buffers[number])
                self._argument(function, 2 * place + 1, c_uint64(_GUARD_BYTES))
            total, group = c_size_t(launch.groups * launch.items), c_size_t(launch.items)
            queue_code = self._cl.clEnqueueNDRangeKernel(
                self._queue, function, 1, None, byref(total), byref(group), 0, None, None
            )
            self._check(queue_code, f"clEnqueueNDRangeKernel of {launch.entry}")
            self._cl.clReleaseKernel(function)
        for number, (buffer, operand) in enumerate(zip(buffers, operands, strict=True)):
            raw = bytearray(len(operand) + 2 * _GUARD_BYTES)
            into = (ctypes.c_char * len(raw)).from_buffer(raw)
            read_code = self._cl.clEnqueueReadBuffer(
                self._queue, buffer, 1, c_size_t(0), c_size_t(len(raw)), into, 0, None, None
            )
            self._check(read_code, "clEnqueueReadBuffer")
            self._cl.clReleaseMemObject(buffer)
            assert set(raw[:_GUARD_BYTES]) == {_GUARD}, f"operand {number}: written before its start"
            assert set(raw[-_GUARD_BYTES:]) == {_GUARD}, f"operand {number}: written past its end"
            operand[:] = raw[_GUARD_BYTES:-_GUARD_BYTES]
        self._cl.clReleaseProgram(program)

    def _buffer(self, content: bytes) -> c_void_p:
        code = c_int()
        flags = c_uint64(1 | 1 << 5)  # CL_MEM_READ_WRITE, CL_MEM_COPY_HOST_PTR
        buffer = self._cl.clCreateBuffer(self._context, flags, c_size_t(len(content)), content, byref(code))
        self._check(code.value, "clCreateBuffer")
        return c_void_p(buffer)

    def _argument(self, function: c_void_p, place: int, value: c_void_p | c_uint64) -> None:
        self._check(self._cl.clSetKernelArg(function, c_uint(place), c_size_t(8), byref(value)), "clSetKernelArg")


@cache
def device() -> OpenCl:
    """This process's device. Raises: OSError or BuildError where there is none."""
    return OpenCl()


def run_on_device(
    kernel: CompiledKernel,
    types: tuple[Sequence[TensorType], Sequence[TensorType]],
    inputs: Sequence[Array],
    initial: Sequence[Array | None] = (),
) -> tuple[Array, ...]:
    """The outputs for these inputs, which start as `initial[i]` if given, else as garbage. Raises: as `OpenCl.run`."""
    input_types, output_types = types
    operands = [
        bytearray(np.ascontiguousarray(np.broadcast_to(np.asarray(a), t.shape), _kind(t)).tobytes())
        for a, t in zip(inputs, input_types, strict=True)
    ]
    starts = [*initial, *[None] * (len(output_types) - len(initial))]
    for start, tensor in zip(starts, output_types, strict=True):
        empty = b"\xff" * tensor.size_bytes  # NaN: a read before the first write shows
        operands.append(bytearray(empty if start is None else np.ascontiguousarray(start, _kind(tensor)).tobytes()))
    before = [bytes(operand) for operand in operands[: len(inputs)]]
    if kernel.workspace_bytes:
        operands.append(bytearray(b"\xff" * kernel.workspace_bytes))
    device().run(kernel, operands)
    assert before == [bytes(operand) for operand in operands[: len(inputs)]], "an input changed"
    return tuple(_arrays(operands[len(inputs) : len(inputs) + len(output_types)], output_types))


def _kind(tensor: TensorType) -> np.dtype[np.generic]:
    return ELEMENT_TYPES[tensor.dtype].numpy


def _arrays(operands: Iterable[bytearray], types: Iterable[TensorType]) -> Iterable[Array]:
    for operand, tensor in zip(operands, types, strict=True):
        yield np.frombuffer(bytes(operand), _kind(tensor)).reshape(tensor.shape)
