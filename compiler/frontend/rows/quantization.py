"""Import rows: rounding to integers and back. Whole numbers are held as reals; gradients pass straight through.

The slope of QuantizeLinear is that of its scaling, and 0 where it saturates: what trains networks that round ("straight
through", Bengio et al. 2013). Scales and zero points do not learn. Rounding is to even, as ONNX has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.eight_bits import laid_along
from compiler.frontend.file.source import type_label
from compiler.frontend.scope import KnownOperand, Operand
from compiler.values import Value

_RANGES: Mapping[str, tuple[float, float]] = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
}
_OF_ONNX: Mapping[int, str] = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 21: "uint4", 22: "int4"}
"""`TensorProto.DataType` of what QuantizeLinear's attribute `output_dtype` may name."""


class _Steps(NamedTuple):
    """The size of the steps between integers, and which integer is zero."""

    scale: Value
    zero: Value | None


def _steps(call: Call) -> _Steps:
    scale = _laid(call, 1, "the scale")
    return _Steps(scale, _laid(call, 2, "the zero point") if call.has(2) else None)


def _laid(call: Call, index: int, meaning: str) -> Value:
    """A scale or zero point that broadcasts to the operand."""
    operand = call.operand(index)
    if isinstance(operand, KnownOperand):
        axis, block = call.attributes.integer("axis", 1), call.attributes.integer("block_size", 0)
        array = call.array(index, meaning).astype(np.float32)
        try:
            return call.constant(np.asarray(laid_along(array, call.shape(0), axis, block), np.float32))
        except ValueError as problem:
            call.fail(f"{meaning} has shape {list(array.shape)}: {problem}")
    value = _real(call, call.value(index))
    if np.prod(call.shape_of(value), dtype=int) != 1:
        call.unsupported(f"{meaning} of several numbers is only known at run time", "store it in the file")
    return call.emit("detach", call.reshape(value, ()))


def _real(call: Call, value: Value) -> Value:
    """Whole numbers as reals."""
    is_real = ELEMENT_TYPES[call.scope.builder.types[value].dtype].is_real
    return value if is_real else call.emit("cast", value, to="f32")


def _quantize(call: Call) -> Operand:
    """saturate(round(x / scale) + zero point)."""
    call.attributes.ignore("saturate", "precision")
    call.require_dtype(0, ("f32",))
    steps = _steps(call)
    return _rounded(call, call.value(0), steps, *_range(call))


def _range(call: Call) -> tuple[float, float]:
    zero = call.known_operand(2)
    code = call.attributes.integer("output_dtype", 2)
    integers = _OF_ONNX.get(code, type_label(code)) if zero is None else str(zero.array.dtype)
    if integers not in _RANGES:
        call.unsupported(f"it rounds to {integers}, supported: {', '.join(_RANGES)}")
    return _RANGES[integers]


def _rounded(call: Call, x: Value, steps: _Steps, low: float, high: float) -> Value:
    scaled = call.emit("div", x, steps.scale)
    # What rounding adds is exact, and so is its sum with what was rounded.
    added = call.emit("detach", call.emit("sub", call.emit("round", scaled), scaled))
    whole = call.emit("add", scaled, added)
    shifted = whole if steps.zero is None else call.emit("add", whole, steps.zero)
    return call.emit("clip", shifted, low=low, high=high)


def _dequantize(call: Call) -> Operand:
    """(x - zero point) * scale."""
    call.attributes.ignore("output_dtype")
    steps = _steps(call)
    stored = call.known_operand(0)
    if stored is not None and not stored.source:
        x = call.constant(np.asarray(call.array(0, "the tensor"), np.float32))
        message = f"{stored.array.size:,} weights in {stored.array.dtype} are frozen"
        hint = "export the model in float32 to let them learn"
        if "float" not in stored.array.dtype.name:
            message += ": they lie in a branch, a function or a data file"
            hint = "in the graph itself, and in one file, `quantized: dequantize` lets them learn"
        call.scope.warn("model.eight_bits", message, where=call.node.where, hint=hint)
    else:
        x = _real(call, call.value(0))
    difference = x if steps.zero is None else call.emit("sub", x, steps.zero)
    return call.emit("mul", difference, steps.scale)


def _dynamic(call: Call) -> tuple[Operand, ...]:
    """Integers of a range that x itself gives, with 0 in it; their scale and zero point, which pass no gradient."""
    call.require_dtype(0, ("f32",))
    x = call.value(0)
    axes = tuple(range(len(call.shape_of(x))))
    ends = call.emit("detach", x)
    zero = call.scalar(0.0, x)
    high = call.emit("maximum", _greatest(call, ends, axes), zero)
    low = call.emit("neg", call.emit("maximum", _greatest(call, call.emit("neg", ends), axes), zero))
    least, most = _RANGES["uint8"]
    extent = call.emit("div", call.emit("sub", high, low), call.scalar(most - least, x))
    scale = call.emit("where", call.emit("equal", extent, zero), call.scalar(1.0, x), extent)
    offset = call.emit("round", call.emit("neg", call.emit("div", low, scale)))
    offset = call.emit("clip", offset, low=least, high=most)
    return _rounded(call, x, _Steps(scale, offset), least, most), scale, offset


def _greatest(call: Call, x: Value, axes: tuple[int, ...]) -> Value:
    return call.emit("reduce_max", x, axes=axes, keepdims=False)


ROWS: Mapping[str, Rule] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "QuantizeLinear": _quantize,
}
