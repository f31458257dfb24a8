"""Reductions over axes: sum, mean, maximum, and log of a sum of exponentials.

    reduce_max       d_x = hit d_y / (number of hits), hit = (x = max x): equal maxima share evenly, as in torch.amax
    log_sum_exp      y = top + log sum exp(x - top), top = max x, over the last axis; -inf where all x are
                     d_x = softmax(x) d_y
What hits is found by the kernel that uses it, from one copy of x: a maximum of x computed elsewhere, or x computed
again from what made it, may differ from it by a rounding, and then nothing hits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import Access, axis, identity, per_row, row_matrix
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Select, Stat, Unary
from compiler.kernels.spec import ReduceSpec, RowSpec
from compiler.ops.emitter import Emitter, GradRule, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    ints,
    reading_cost,
)
from compiler.values import Value

_CUBE = TensorType("f32", (2, 3, 4))
_EXAMPLES = (
    Example((_CUBE,), {"axes": (1,), "keepdims": True}, ("apart",)),
    Example((_CUBE,), {"axes": (0, 2), "keepdims": False}, ("apart",)),
    Example((TensorType("f32", ()),), {"axes": (), "keepdims": False}),
)


def _infer(inputs: Types, attrs: Attrs) -> Types:
    axes, shape = ints(attrs, "axes"), inputs[0].shape
    output_shape = _kept_shape(shape, axes)
    if not flag(attrs, "keepdims"):
        output_shape = tuple(extent for i, extent in enumerate(shape) if i not in axes)
    return (TensorType(inputs[0].dtype, output_shape),)


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else extent for i, extent in enumerate(shape))


def _mean_scale(shape: tuple[int, ...], attrs: Attrs) -> float:
    return 1.0 / prod(shape[i] for i in ints(attrs, "axes"))


def _spread(b: Emitter, node: Node, value: Value) -> Value:
    shape = b.shape(node.inputs[0])
    expanded = b.emit("reshape", value, shape=_kept_shape(shape, ints(node.attrs, "axes")))
    return b.emit("broadcast_to", expanded, shape=shape)


def _sum_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    return (_spread(b, node, d_output),)


def _mean_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    scale = b.constant(_mean_scale(b.shape(node.inputs[0]), node.attrs))
    return (_spread(b, node, b.emit("mul", d_output, scale)),)


def _reduction(
    name: str,
    onnx: str,
    evaluate: Callable[..., Array],
    grad: GradRule | NotDifferentiable,
    *,
    combine: Literal["sum", "max"],
    scale: Callable[[tuple[int, ...], Attrs], float] | None = None,
) -> Operator:
    def lower(inputs: Types, outputs: Types, attrs: Attrs) -> ReduceSpec:
        shape, axes = inputs[0].shape, ints(attrs, "axes")
        remaining = tuple(i for i in range(len(shape)) if i not in axes)
        epilogue: Expr = Binary("mul", Ref(0), Const(scale(shape, attrs))) if scale else Ref(0)
        result = TensorType(outputs[0].dtype, tuple(shape[i] for i in remaining))
        target = Access(result, tuple(axis(i) for i in remaining))
        if not axes:  # of a scalar, or of nothing: one axis of one turn
            shape, axes = (*shape, 1), (len(shape),)
        return ReduceSpec(shape, axes, combine, (identity(inputs[0]),), Ref(0), target, epilogue)

    def to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
        out = OnnxWriter(node.output)
        axes, keep = ints(node.attrs, "axes"), int(flag(node.attrs, "keepdims"))
        noop = {} if axes else {"noop_with_empty_axes": 1}
        out.add(onnx, node.inputs[0], out.ints(*axes), output=node.output, keepdims=keep, **noop)
        return out.nodes

    def run(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        return (np.asarray(evaluate(inputs[0], axis=ints(attrs, "axes"), keepdims=flag(attrs, "keepdims"))),)

    return Operator(
        name=name,
        attributes=("axes", "keepdims"),
        infer=_infer,
        evaluate=run,
        grad=grad,
        cost=reading_cost(1),
        lower=lower,
        to_onnx=to_onnx,
        examples=_EXAMPLES,
    )


# ----------------------------------------------------------------------------------------------- gradient of a maximum


def _max_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    """The reduced axes are moved to the end, where they are one."""
    x, axes = node.inputs[0], ints(node.attrs, "axes")
    shape = b.shape(x)
    remaining = tuple(i for i in range(len(shape)) if i not in axes)
    perm = (*remaining, *sorted(axes))
    rows = tuple(shape[i] for i in remaining)
    moved = b.emit("transpose", x, perm=perm)
    flat = b.emit("reshape", moved, shape=(*rows, prod(shape[i] for i in axes)))
    d_flat = b.emit("reduce_max_grad", flat, b.emit("reshape", d_output, shape=rows))
    inverse = tuple(perm.index(i) for i in range(len(perm)))
    return (b.emit("transpose", b.emit("reshape", d_flat, shape=b.shape(moved)), perm=inverse),)


def _max_grad_infer(inputs: Types, attrs: Attrs) -> Types:
    x, d_y = inputs
    if d_y.shape != x.shape[:-1]:
        raise ModelShapeError(f"gradient {d_y} of the maximum of {x} along its last axis")
    return (x,)


def _max_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, d_y = inputs
    hit = x == x.max(axis=-1, keepdims=True)
    return (np.asarray(hit * (d_y[..., None] / hit.sum(axis=-1, keepdims=True)), x.dtype),)


def _max_grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    x, d_y = inputs
    rows, width = d_y.size, x.shape[-1]
    hit = Select(Binary("eq", Ref(0), Stat(0)), Const(1.0), Const(0.0))
    # A product: a row with a NaN hits nothing, and 0 / 0 says so.
    share = Binary("mul", hit, Binary("div", Ref(1), Stat(1)))
    reads = (row_matrix(x, rows, width), per_row(d_y))
    return RowSpec(
        rows, width, reads, (("max", Ref(0)), ("sum", hit)), (row_matrix(outputs[0], rows, width),), (share,)
    )


def _max_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x, d_y = node.inputs
    last = out.ints(-1)
    hit = out.add("Cast", out.add("Equal", x, out.add("ReduceMax", x, last, keepdims=1)), to=1)
    share = out.add("Div", out.add("Unsqueeze", d_y, last), out.add("ReduceSum", hit, last, keepdims=1))
    out.add("Mul", hit, share, output=node.output)
    return out.nodes


_MAX_GRAD = Operator(
    name="reduce_max_grad",
    attributes=(),
    infer=_max_grad_infer,
    evaluate=_max_grad_evaluate,
    grad=NotDifferentiable("second derivatives are not needed by any optimizer here"),
    cost=reading_cost(4),
    lower=_max_grad_lower,
    to_onnx=_max_grad_onnx,
    examples=(Example((_CUBE, TensorType("f32", (2, 3))), values=("apart",)),),
)

# ---------------------------------------------------------------------------------------------------------- log_sum_exp

_FINITE = float(np.finfo(np.float32).max)


def _log_sum_exp(x: Array) -> Array:
    top = np.clip(x.max(axis=-1, keepdims=True), x.dtype.type(-_FINITE), x.dtype.type(_FINITE))
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(np.exp(x - top).sum(axis=-1, keepdims=True)) + top)[..., 0])


def _log_sum_exp_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x = node.inputs[0]
    column = b.emit("reshape", d_output, shape=(*b.shape(d_output), 1))
    return (b.emit("mul", b.emit("safe_softmax", x), column),)


def _log_sum_exp_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    x, y = inputs[0], outputs[0]
    # Finite, so that nothing is inf - inf: a row of -inf has the sum 0, one with +inf the sum +inf.
    top = Binary("min", Binary("max", Stat(0), Const(-_FINITE)), Const(_FINITE))
    terms = Unary("exp", Binary("sub", Ref(0), top))
    result = Binary("add", Unary("log", Stat(1)), top)
    reads = (row_matrix(x, y.size, x.shape[-1]),)
    return RowSpec(y.size, x.shape[-1], reads, (("max", Ref(0)), ("sum", terms)), (per_row(y),), (result,))


def _log_sum_exp_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    out.add("ReduceLogSumExp", node.inputs[0], out.ints(-1), output=node.output, keepdims=0)
    return out.nodes


_LOG_SUM_EXP = Operator(
    name="log_sum_exp",
    attributes=(),
    infer=lambda inputs, attrs: (TensorType(inputs[0].dtype, inputs[0].shape[:-1]),),
    evaluate=lambda inputs, attrs: (_log_sum_exp(inputs[0]),),
    grad=_log_sum_exp_grad,
    cost=reading_cost(15),
    lower=_log_sum_exp_lower,
    to_onnx=_log_sum_exp_onnx,
    examples=(Example((_CUBE,)),),
)

REDUCTION = (
    _reduction("reduce_sum", "ReduceSum", np.sum, _sum_grad, combine="sum"),
    _reduction("reduce_mean", "ReduceMean", np.mean, _mean_grad, combine="sum", scale=_mean_scale),
    _reduction("reduce_max", "ReduceMax", np.max, _max_grad, combine="max"),
    _MAX_GRAD,
    _LOG_SUM_EXP,
)
