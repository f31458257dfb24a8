"""What kernel specs mean, in NumPy float64: index arithmetic and expressions, with nothing of code generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.graph import Array, TensorType
from compiler.kernels import philox
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Stat, Unary
from compiler.kernels.spec import MapSpec, ReduceSpec, RowSpec

_erf = np.vectorize(math.erf, otypes=[np.float64])


def identity(*shape: int, dtype: str = "f32") -> Access:
    """Axis i reads dimension i."""
    return Access(TensorType(dtype, shape), tuple(Affine(((i, 1),)) for i in range(len(shape))))  # type: ignore[arg-type]


def picked(shape: tuple[int, ...], *axes: int | None, dtype: str = "f32") -> Access:
    """Dimension i follows `axes[i]`, or stays at 0 where that is None (broadcast, transpose)."""
    index = tuple(Affine() if axis is None else Affine(((axis, 1),)) for axis in axes)
    return Access(TensorType(dtype, shape), index)  # type: ignore[arg-type]


def affine(index: Affine, extents: Sequence[int]) -> NDArray[np.int64]:
    """The value of an affine index at every point of the iteration space."""
    grids = np.indices(tuple(extents))
    total = np.full(tuple(extents), index.offset, np.int64)
    for axis, coefficient in index.terms:
        total += coefficient * grids[axis]
    return total


def reading(access: Access, array: Array, extents: Sequence[int]) -> Array:
    """What the access reads at every point; integers and bools stay, floats become float64."""
    wide = array.astype(np.float64) if access.type.dtype == "f32" else array
    places = [affine(dimension, extents) for dimension in access.index]
    if access.fill is None:
        return np.asarray(wide[tuple(places)]) if places else np.full(tuple(extents), wide)
    inside = np.ones(tuple(extents), bool)
    for place, extent in zip(places, access.type.shape, strict=True):
        inside &= (place >= 0) & (place < extent)
    safe = tuple(np.where(inside, place, 0) for place in places)
    return np.where(inside, wide[safe], np.asarray(access.fill, wide.dtype))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "tanh": np.tanh,
    "erf": _erf,
    "floor": np.floor,
    "sign": np.sign,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "not": np.logical_not,
    "to_f32": lambda x: x.astype(np.float64),
    "to_i64": lambda x: x.astype(np.int64),
    "to_i32": lambda x: x.astype(np.int32),
    "to_bool": lambda x: x.astype(bool),
    "is_nan": np.isnan,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "philox": philox.bits_of,
    "philox0": lambda x, y: philox.top_bits(x, y, 0),
    "philox1": lambda x, y: philox.top_bits(x, y, 1),
    "mod": np.mod,
    "fmod": np.fmod,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shift_left": np.left_shift,
}


def value(expr: Expr, refs: Sequence[Array], stats: Sequence[Array] = (), extents: Sequence[int] = ()) -> Array:
    """The expression at every point, in float64 (constants take the kind of what they meet)."""
    match expr:
        case Const(number):
            return np.asarray(np.float64(number))
        case Ref(operand):
            return refs[operand]
        case Stat(stage):
            return stats[stage]
        case Index(axis):
            return np.indices(tuple(extents))[axis]
        case Unary(op, x):
            return np.asarray(_UNARY[op](value(x, refs, stats, extents)))
        case Binary(op, x, y):
            return np.asarray(_BINARY[op](value(x, refs, stats, extents), value(y, refs, stats, extents)))
        case Select(cond, then, other):
            sides = (value(then, refs, stats, extents), value(other, refs, stats, extents))
            return np.where(value(cond, refs, stats, extents), *sides)


def writing(access: Access, output: Array, values: Array, extents: Sequence[int]) -> None:
    """Store the values of every point."""
    places = tuple(affine(dimension, extents) for dimension in access.index)
    whole = np.broadcast_to(values, tuple(extents))
    output[places] = whole if places else whole.reshape(-1)[-1]


def run_map(spec: MapSpec, inputs: Sequence[Array], initial: Sequence[Array] | None = None) -> list[Array]:
    """The outputs of a map kernel, in float64 (or integers, bools)."""
    refs = [reading(access, array, spec.extents) for access, array in zip(spec.inputs, inputs, strict=True)]
    outputs = _outputs(spec.outputs, initial)
    for access, output, expr in zip(spec.outputs, outputs, spec.exprs, strict=True):
        writing(access, output, value(expr, refs, (), spec.extents), spec.extents)
    return outputs


def _outputs(accesses: Sequence[Access], initial: Sequence[Array] | None) -> list[Array]:
    kinds = {"f32": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
    if initial is not None:
        return [array.astype(kinds[a.type.dtype]) for a, array in zip(accesses, initial, strict=True)]
    return [np.zeros(access.type.shape, kinds[access.type.dtype]) for access in accesses]


def run_reduce(spec: ReduceSpec, inputs: Sequence[Array]) -> Array:
    """The output of a reduction, in float64."""
    count = len(spec.inputs)
    refs = [reading(a, array, spec.extents) for a, array in zip(spec.inputs, inputs[:count], strict=True)]
    terms = np.broadcast_to(value(spec.expr, refs, (), spec.extents), spec.extents)
    combined = (np.sum if spec.combine == "sum" else np.max)(terms, axis=spec.reduced, keepdims=True)
    whole = np.broadcast_to(combined, spec.extents)
    extra = [reading(a, array, spec.extents) for a, array in zip(spec.epilogue_inputs, inputs[count:], strict=True)]
    (output,) = _outputs((spec.output,), None)
    writing(spec.output, output, value(spec.epilogue, [whole, *extra], (), spec.extents), spec.extents)
    return output


def run_row(spec: RowSpec, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a row-wise kernel, in float64."""
    extents = (spec.rows, spec.width)
    refs = [reading(access, array, extents) for access, array in zip(spec.inputs, inputs, strict=True)]
    stats: list[Array] = []
    for combine, expr in spec.stages:
        terms = np.broadcast_to(value(expr, refs, stats, extents), extents)
        stats.append((np.sum if combine == "sum" else np.max)(terms, axis=1, keepdims=True))
    outputs = _outputs(spec.outputs, None)
    for access, output, expr in zip(spec.outputs, outputs, spec.exprs, strict=True):
        writing(access, output, value(expr, refs, stats, extents), extents)
    return outputs
