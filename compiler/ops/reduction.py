"""Reductions over axes: sum, mean, maximum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernel_spec import Access, Binary, Const, Expr, ReduceSpec, Ref
from compiler.ops.access import axis, identity
from compiler.ops.elementwise import Grads
from compiler.ops.record import (
    Example,
    GradRule,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    ints,
    reading_cost,
)

if TYPE_CHECKING:
    from compiler.builder import GraphBuilder

_CUBE = TensorType("f32", (2, 3, 4))
_EXAMPLES = (
    Example((_CUBE,), {"axes": (1,), "keepdims": True}, ("apart",)),
    Example((_CUBE,), {"axes": (0, 2), "keepdims": False}, ("apart",)),
)


def _infer(inputs: Types, attrs: Attrs) -> Types:
    axes, shape = ints(attrs, "axes"), inputs[0].shape
    kept = _kept_shape(shape, axes)
    if not flag(attrs, "keepdims"):
        kept = tuple(extent for i, extent in enumerate(shape) if i not in axes)
    return (TensorType(inputs[0].dtype, kept),)


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else extent for i, extent in enumerate(shape))


def _mean_scale(shape: tuple[int, ...], attrs: Attrs) -> float:
    return 1.0 / prod(shape[i] for i in ints(attrs, "axes"))


def _spread(b: GraphBuilder, node: Node, value: str) -> str:
    shape = b.shape(node.inputs[0])
    kept = b.emit("reshape", value, shape=_kept_shape(shape, ints(node.attrs, "axes")))
    return b.emit("broadcast_to", kept, shape=shape)


def _sum_grad(b: GraphBuilder, node: Node, d_output: str, wanted: tuple[bool, ...]) -> Grads:
    return (_spread(b, node, d_output),)


def _mean_grad(b: GraphBuilder, node: Node, d_output: str, wanted: tuple[bool, ...]) -> Grads:
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
        kept = tuple(i for i in range(len(shape)) if i not in axes)
        epilogue: Expr = Binary("mul", Ref(0), Const(scale(shape, attrs))) if scale else Ref(0)
        result = TensorType(outputs[0].dtype, tuple(shape[i] for i in kept))
        target = Access(result, tuple(axis(i) for i in kept))
        return ReduceSpec(shape, axes, combine, (identity(inputs[0]),), Ref(0), target, epilogue)

    def to_onnx(node: Node, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
        out = OnnxWriter(node.output)
        axes, keep = ints(node.attrs, "axes"), int(flag(node.attrs, "keepdims"))
        out.add(onnx, node.inputs[0], out.ints(*axes), output=node.output, keepdims=keep)
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


def _max_grad(b: GraphBuilder, node: Node, d_output: str, wanted: tuple[bool, ...]) -> Grads:
    # Equal maxima share the gradient evenly, as torch.amax does.
    x, axes = node.inputs[0], ints(node.attrs, "axes")
    hit = b.emit("cast", b.emit("equal", x, _spread(b, node, node.output)), to="f32")
    count = b.emit("reduce_sum", hit, axes=axes, keepdims=False)
    share = b.emit("div", b.emit("reshape", d_output, shape=b.shape(count)), count)
    return (b.emit("mul", hit, _spread(b, node, share)),)


REDUCTION = (
    _reduction("reduce_sum", "ReduceSum", np.sum, _sum_grad, combine="sum"),
    _reduction("reduce_mean", "ReduceMean", np.mean, _mean_grad, combine="sum", scale=_mean_scale),
    _reduction("reduce_max", "ReduceMax", np.max, _max_grad, combine="max"),
)
