"""What ONNX operators compute on tensors known at compile time: shape arithmetic, masks, position tables.

Operators that can make much out of little (Range, Expand, Tile ...) check the size of their result first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import LimitExceeded
from compiler.frontend.call import Call
from compiler.frontend.shapes import reshape_target, slice_bounds, split_sizes, squeeze_axes, unsqueezed
from compiler.graph import Array
from compiler.values import Value

Fold = Callable[[Call, Sequence[Array]], "Array | tuple[Array, ...]"]

NUMPY_OF_ONNX: Mapping[int, str] = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2",
                                    11: "f8", 12: "u4", 13: "u8"}  # fmt: skip


def _sized(call: Call, shape: Sequence[int], item_bytes: int = 8) -> tuple[int, ...]:
    size = prod(shape) * item_bytes
    if size > call.scope.limits.folded_bytes:
        raise LimitExceeded(
            f"would compute {size:,} bytes at compile time, the limit is {call.scope.limits.folded_bytes:,}",
            where=call.node.where,
        )
    return tuple(shape)


def _broadcasting(function: Callable[..., Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        _sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        with np.errstate(all="ignore"):
            return np.asarray(function(*x))

    return fold


def _variadic(function: Callable[[Any, Any], Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        _sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        result = x[0]
        for operand in x[1:]:
            result = np.asarray(function(result, operand))
        return result

    return fold


def _like_first(function: Callable[..., Any]) -> Fold:
    """Functions whose result keeps the first operand's element type."""

    def fold(call: Call, x: Sequence[Array]) -> Array:
        _sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        with np.errstate(all="ignore"):
            return np.asarray(function(*x)).astype(x[0].dtype, copy=False)

    return fold


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    # ONNX integer division truncates towards zero.
    quotient = np.floor_divide(np.abs(x), np.abs(y))
    return np.asarray(np.sign(x) * np.sign(y) * quotient).astype(x.dtype)


def _mod(call: Call, x: Sequence[Array]) -> Array:
    _sized(call, np.broadcast_shapes(x[0].shape, x[1].shape))
    fmod = call.attributes.integer("fmod", 0)
    return np.asarray(np.fmod(x[0], x[1]) if fmod else np.mod(x[0], x[1]))


def cast_target(call: Call) -> np.dtype[Any]:
    """The element type that Cast or CastLike asks for; only the type of CastLike's second operand matters."""
    call.attributes.ignore("saturate", "round_mode")
    if call.node.op_type == "CastLike":
        like = call.operand(1)
        return ELEMENT_TYPES[call.dtype(1)].numpy if isinstance(like, Value) else like.array.dtype
    code = call.attributes.integer("to", 0)
    if code not in NUMPY_OF_ONNX:
        call.unsupported(f"element type {code} is not supported", "export the model in float32")
    return np.dtype(NUMPY_OF_ONNX[code])


def _shape(call: Call, x: Sequence[Array]) -> Array:
    return shape_vector(call, x[0].shape)


def shape_vector(call: Call, shape: tuple[int, ...]) -> Array:
    """The result of `Shape`, whose operand need not be known."""
    start, end = call.attributes.integer("start", 0), call.attributes.integer("end", len(shape))
    return np.asarray(shape[slice(start, end)], np.int64)


def _range(call: Call, x: Sequence[Array]) -> Array:
    start, limit, delta = (array.reshape(-1)[0] for array in x)
    if delta == 0:
        call.fail("step 0")
    count = max(ceil((float(limit) - float(start)) / float(delta)), 0)
    _sized(call, (count,))
    return np.asarray(start + np.arange(count) * delta).astype(x[0].dtype)


def _constant_of_shape(call: Call, x: Sequence[Array]) -> Array:
    value = call.attributes.tensor("value")
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)
    return np.full(_sized(call, [int(extent) for extent in x[0]]), fill[0], fill.dtype)


def _expand(call: Call, x: Sequence[Array]) -> Array:
    shape = np.broadcast_shapes(x[0].shape, tuple(int(extent) for extent in x[1]))
    return np.broadcast_to(x[0], _sized(call, shape)).copy()


def _tile(call: Call, x: Sequence[Array]) -> Array:
    repeats = [int(count) for count in x[1]]
    _sized(call, [extent * count for extent, count in zip(x[0].shape, repeats, strict=True)])
    return np.tile(x[0], repeats)


def _concat(call: Call, x: Sequence[Array]) -> Array:
    return np.concatenate(list(x), axis=call.attributes.integer("axis", 0))


def _gather(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    _sized(call, [*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :]])
    return np.take(x[0], x[1], axis=axis)


def _gather_elements(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    cut = tuple(slice(None) if i == axis else slice(extent) for i, extent in enumerate(x[1].shape))
    return np.take_along_axis(x[0][cut], x[1], axis=axis)


def _gather_nd(call: Call, x: Sequence[Array]) -> Array:
    if call.attributes.integer("batch_dims", 0):
        call.unsupported("batch_dims is not supported")
    _sized(call, [*x[1].shape[:-1], *x[0].shape[x[1].shape[-1] :]])
    return np.asarray(x[0][tuple(np.moveaxis(x[1], -1, 0))])


def _scatter_nd(call: Call, x: Sequence[Array]) -> Array:
    if call.attributes.text("reduction", "none") != "none":
        call.unsupported("a reduction is not supported")
    result = x[0].copy()
    result[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return result


def _slice(call: Call, x: Sequence[Array]) -> Array:
    index = [slice(None)] * x[0].ndim
    for axis, start, stop, step in slice_bounds(call, x[0].shape):
        # A stop of -1 after clamping means "before the first element", which NumPy spells None.
        index[axis] = slice(start, stop if stop >= 0 else None, step)
    return x[0][tuple(index)]


def _split(call: Call, x: Sequence[Array]) -> tuple[Array, ...]:
    axis, sizes = split_sizes(call, x[0].shape)
    return tuple(np.split(x[0], np.cumsum(sizes)[:-1], axis=axis))


def _transpose(call: Call, x: Sequence[Array]) -> Array:
    return x[0].transpose(call.attributes.integers("perm"))


def _reduce(function: Callable[..., Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        axes = tuple(int(axis) for axis in x[1]) if len(x) > 1 else call.attributes.integers("axes")
        keep = bool(call.attributes.integer("keepdims", 1))
        untouched = bool(call.attributes.integer("noop_with_empty_axes", 0))
        if untouched and not axes:
            return x[0]
        chosen = call.axes(axes, x[0].ndim) if axes else None
        return np.asarray(function(x[0], axis=chosen, keepdims=keep)).astype(x[0].dtype, copy=False)

    return fold


def _trilu(call: Call, x: Sequence[Array]) -> Array:
    offset = int(x[1].reshape(-1)[0]) if len(x) > 1 else 0
    return np.triu(x[0], offset) if call.attributes.integer("upper", 1) else np.tril(x[0], offset)


def _cumsum(call: Call, x: Sequence[Array]) -> Array:
    if call.attributes.integer("exclusive", 0) or call.attributes.integer("reverse", 0):
        call.unsupported("exclusive or reverse is not supported")
    return np.cumsum(x[0], axis=call.axis(int(x[1].reshape(-1)[0]), x[0].ndim)).astype(x[0].dtype)


def _matmul(call: Call, x: Sequence[Array]) -> Array:
    left = x[0].shape if x[0].ndim > 1 else (1, *x[0].shape)
    right = x[1].shape if x[1].ndim > 1 else (*x[1].shape, 1)
    _sized(call, (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1]))
    return np.asarray(np.matmul(x[0], x[1]))


def _clip(call: Call, x: Sequence[Array]) -> Array:
    low = call.array(1, "the lower bound") if call.has(1) else None
    high = call.array(2, "the upper bound") if call.has(2) else None
    return x[0] if low is None and high is None else np.asarray(np.clip(x[0], low, high))


def _where(call: Call, x: Sequence[Array]) -> Array:
    _sized(call, np.broadcast_shapes(*(array.shape for array in x)))
    return np.where(x[0], x[1], x[2])


def _arg_max(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    keep = bool(call.attributes.integer("keepdims", 1))
    if not call.attributes.integer("select_last_index", 0):
        return np.asarray(np.argmax(x[0], axis=axis, keepdims=keep), np.int64)
    from_end = np.argmax(np.flip(x[0], axis), axis=axis, keepdims=keep)
    return np.asarray(x[0].shape[axis] - 1 - from_end, np.int64)


FOLDS: Mapping[str, Fold] = {
    "Abs": _like_first(np.abs),
    "Add": _broadcasting(np.add),
    "And": _broadcasting(np.logical_and),
    "ArgMax": _arg_max,
    "Ceil": _like_first(np.ceil),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Cos": _like_first(np.cos),
    "CumSum": _cumsum,
    "Div": _broadcasting(_divide),
    "Equal": _broadcasting(np.equal),
    "Exp": _like_first(np.exp),
    "Expand": _expand,
    "Flatten": lambda call, x: x[0].reshape(reshape_target(call, x[0].shape)),
    "Floor": _like_first(np.floor),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Greater": _broadcasting(np.greater),
    "GreaterOrEqual": _broadcasting(np.greater_equal),
    "IsNaN": _broadcasting(np.isnan),
    "Less": _broadcasting(np.less),
    "LessOrEqual": _broadcasting(np.less_equal),
    "Log": _like_first(np.log),
    "MatMul": _matmul,
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Mod": _mod,
    "Mul": _broadcasting(np.multiply),
    "Neg": _broadcasting(np.negative),
    "NonZero": lambda call, x: np.asarray(np.nonzero(x[0]), np.int64),
    "Not": _broadcasting(np.logical_not),
    "Or": _broadcasting(np.logical_or),
    "Pow": _like_first(np.power),
    "Range": _range,
    "Reciprocal": _like_first(np.reciprocal),
    "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Relu": _like_first(lambda x: np.maximum(x, 0)),
    "Reshape": lambda call, x: x[0].reshape(reshape_target(call, x[0].shape)),
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Sign": _like_first(np.sign),
    "Sin": _like_first(np.sin),
    "Size": lambda call, x: np.asarray(x[0].size, np.int64),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _like_first(np.sqrt),
    "Squeeze": lambda call, x: x[0].reshape(squeeze_axes(call, x[0].shape)),
    "Sub": _broadcasting(np.subtract),
    "Sum": _variadic(np.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": lambda call, x: x[0].reshape(unsqueezed(call, x[0].shape)),
    "Where": _where,
    "Xor": _broadcasting(np.logical_xor),
}
