"""Masks that the backward pass keeps of a tensor that it only compares: one bit for each element.

    inside_bits  bit = low < x < high, a bound that is infinite left out; 32 bits to a word
    unpack_bits  the bits as booleans, of any shape with as many elements
Words are [groups, lanes]: bit k of word j of a group is element (32 group + k) lanes + j of the tensor as it lies, so
that both kernels move whole vectors. A tensor with elements left over has no such words (`lanes_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.access import Access, axis, identity
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Unary
from compiler.kernels.spec import MapSpec, ReduceSpec
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    elementwise_cost,
    ints,
    number,
    reading_cost,
)

BITS = 32
LANES = (16, 8, 4)
"""Words side by side: as many as make a vector on most machines."""
_FLAT = NotDifferentiable("bits have no derivative")
_ONE, _ZERO = Unary("to_i32", Const(1.0)), Unary("to_i32", Const(0.0))
_BIT = Binary("shift_left", _ONE, Unary("to_i32", Index(1)))


def lanes_of(size: int) -> int:
    """Words in a group, for a tensor of so many elements; 0 if it has no whole number of groups."""
    return next((lanes for lanes in LANES if size and size % (BITS * lanes) == 0), 0)


def _words(size: int) -> TensorType:
    lanes = lanes_of(size)
    if not lanes:
        raise InternalError(f"{size} elements are no whole number of words")
    return TensorType("i32", (size // (BITS * lanes), lanes))


def _grouped(tensor: TensorType, words: TensorType) -> TensorType:
    groups, lanes = words.shape
    return TensorType(tensor.dtype, (groups, BITS, lanes))


def _over_bits(words: TensorType) -> Access:
    """The word of a point (group, bit, lane)."""
    return Access(words, (axis(0), axis(2)))


def _inside_expr(attrs: Attrs) -> Expr:
    low, high = number(attrs, "low"), number(attrs, "high")
    parts: list[Expr] = [Binary("lt", Const(low), Ref(0))] if low != -inf else []
    parts += [Binary("lt", Ref(0), Const(high))] if high != inf else []
    inside = parts[0] if len(parts) == 1 else Binary("and", *parts)
    return Select(inside, _BIT, _ZERO)


def _inside(x: Array, attrs: Attrs) -> Array:
    low, high = number(attrs, "low"), number(attrs, "high")
    return np.asarray(((x > low) if low != -inf else True) & ((x < high) if high != inf else True))


def _pack_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    groups, lanes = _words(inputs[0].size).shape
    bits = _inside(inputs[0], attrs).reshape(groups, BITS, lanes).astype(np.uint32)
    places = np.arange(BITS, dtype=np.uint32)[None, :, None]
    return (np.bitwise_or.reduce(bits << places, axis=1).view(np.int32),)


def _pack_lower(inputs: Types, outputs: Types, attrs: Attrs) -> ReduceSpec:
    tensor = _grouped(inputs[0], outputs[0])
    return ReduceSpec(
        tensor.shape, (1,), "sum", (identity(tensor),), _inside_expr(attrs), output=_over_bits(outputs[0])
    )


def _places(out: OnnxWriter) -> str:
    values = (np.uint32(1) << np.arange(BITS, dtype=np.uint32)).view(np.int32)
    return out.add("Constant", value=values.reshape(1, BITS, 1))


def _pack_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out, tensor = OnnxWriter(node.output), types[node.inputs[0]]
    groups, lanes = _words(tensor.size).shape
    x = out.add("Reshape", node.inputs[0], out.ints(groups, BITS, lanes))
    low, high = number(node.attrs, "low"), number(node.attrs, "high")
    bounds = [out.add("Less", out.scalar(low), x)] if low != -inf else []
    bounds += [out.add("Less", x, out.scalar(high))] if high != inf else []
    inside = bounds[0] if len(bounds) == 1 else out.add("And", *bounds)
    bits = out.add("Where", inside, _places(out), out.add("Constant", value=np.asarray(0, np.int32)))
    out.add("ReduceSum", bits, out.ints(1), output=node.output, keepdims=0)
    return out.nodes


def _unpack_infer(inputs: Types, attrs: Attrs) -> Types:
    shape = ints(attrs, "shape")
    if inputs != (_words(prod(shape)),):
        raise InternalError(f"bits of {shape} in {', '.join(map(str, inputs))}")
    return (TensorType("bool", shape),)


def _unpack_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    places = np.arange(BITS, dtype=np.uint32)[None, :, None]
    bits = inputs[0].view(np.uint32)[:, None, :] >> places & np.uint32(1)
    return (bits.astype(bool).reshape(ints(attrs, "shape")),)


def _unpack_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    tensor = _grouped(outputs[0], inputs[0])
    bit = Unary("to_bool", Binary("bit_and", Ref(0), _BIT))
    return MapSpec(tensor.shape, (_over_bits(inputs[0]),), (identity(tensor),), (bit,))


def _unpack_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    words = out.add("Unsqueeze", node.inputs[0], out.ints(1))
    bits = out.add("BitwiseAnd", words, _places(out))
    inside = out.add("Not", out.add("Equal", bits, out.add("Constant", value=np.asarray(0, np.int32))))
    out.add("Reshape", inside, out.ints(*ints(node.attrs, "shape")), output=node.output)
    return out.nodes


_X, _SMALL = TensorType("f32", (3, 2, 4, 64)), TensorType("f32", (2, 5, 64))
_SHAPES: tuple[tuple[int, ...], ...] = ((3, 2, 4, 64), (2, 5, 64))

MASKS = (
    Operator(
        name="inside_bits",
        attributes=("low", "high"),
        infer=lambda inputs, attrs: (_words(inputs[0].size),),
        evaluate=_pack_evaluate,
        grad=_FLAT,
        cost=reading_cost(2),
        lower=_pack_lower,
        to_onnx=_pack_onnx,
        examples=(
            Example((_X,), {"low": 0.0, "high": inf}),
            Example((_X,), {"low": -0.5, "high": 0.5}),
            Example((_SMALL,), {"low": -inf, "high": 0.25}),
        ),
    ),
    Operator(
        name="unpack_bits",
        attributes=("shape",),
        infer=_unpack_infer,
        evaluate=_unpack_evaluate,
        grad=_FLAT,
        cost=elementwise_cost(2),
        lower=_unpack_lower,
        to_onnx=_unpack_onnx,
        examples=tuple(Example((_words(prod(shape)),), {"shape": shape}, ("index:2000000000",)) for shape in _SHAPES),
    ),
)
