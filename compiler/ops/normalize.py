"""Rows brought to mean 0 and variance 1, or to mean square 1, and the gradients; without scale and shift.

    normalize        y = (x - mean) r, r = 1/sqrt(var + epsilon)
                     d_x = r (d_y - mean(d_y) - y mean(d_y y))
    rms_normalize    y = x r, r = 1/sqrt(mean(x^2) + epsilon)
                     d_x = r (d_y - y mean(d_y y))
Source: ONNX LayerNormalization, RMSNormalization.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Const, Expr, Ref, Stat, Unary, add, mul, sub
from compiler.kernels.spec import RowSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, number, reading_cost
from compiler.ops.rows import SECOND, Stage, over_rows, same_type
from compiler.values import Value

_X = TensorType("f32", (2, 3, 5))


def moments(x: Array, attrs: Attrs, centred: bool) -> tuple[Array, Array]:
    """(mean or 0, reciprocal standard deviation) of every row."""
    mean = x.mean(axis=-1, keepdims=True) if centred else np.zeros_like(x[..., :1])
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return mean, np.asarray(1 / np.sqrt(variance + number(attrs, "epsilon")))


def norm_stages(width: int, epsilon: float, centred: bool) -> tuple[tuple[Stage, ...], Expr, Expr]:
    """Stages, then the centred value and its scale as expressions of Ref(0)."""
    share = Const(1.0 / width)
    value: Expr = sub(Ref(0), mul(Stat(0), share)) if centred else Ref(0)
    stages: tuple[Stage, ...] = ((("sum", Ref(0)),) if centred else ()) + (("sum", mul(value, value)),)
    scale = Unary("rsqrt", add(mul(Stat(len(stages) - 1), share), Const(epsilon)))
    return stages, value, scale


def _norm_lower(inputs: Types, outputs: Types, attrs: Attrs, centred: bool) -> RowSpec:
    stages, value, scale = norm_stages(outputs[0].shape[-1], number(attrs, "epsilon"), centred)
    return over_rows(inputs, outputs[0], stages, mul(value, scale))


def _norm_grad_evaluate(inputs: Sequence[Array], attrs: Attrs, centred: bool) -> tuple[Array, ...]:
    x, d_y = inputs
    mean, scale = moments(x, attrs, centred)
    y = (x - mean) * scale
    offset = d_y.mean(axis=-1, keepdims=True) if centred else 0
    return (scale * (d_y - offset - y * (d_y * y).mean(axis=-1, keepdims=True)),)


def _norm_grad_lower(inputs: Types, outputs: Types, attrs: Attrs, centred: bool) -> RowSpec:
    width = outputs[0].shape[-1]
    stages, value, scale = norm_stages(width, number(attrs, "epsilon"), centred)
    share, y = Const(1.0 / width), mul(value, scale)
    first = len(stages)
    stages += (("sum", mul(Ref(1), y)),) + ((("sum", Ref(1)),) if centred else ())
    rest = sub(Ref(1), mul(y, mul(Stat(first), share)))
    if centred:
        rest = sub(rest, mul(Stat(first + 1), share))
    return over_rows(inputs, outputs[0], stages, mul(scale, rest))


def norm_onnx(out: OnnxWriter, x: str, epsilon: float, centred: bool) -> tuple[str, str]:
    """(normalised value, scale)."""
    axes = out.ints(-1)
    value = out.add("Sub", x, out.add("ReduceMean", x, axes, keepdims=1)) if centred else x
    variance = out.add("ReduceMean", out.add("Mul", value, value), axes, keepdims=1)
    scale = out.add("Reciprocal", out.add("Sqrt", out.add("Add", variance, out.scalar(epsilon))))
    return out.add("Mul", value, scale), scale


def _norm_forward_onnx(node: NamedNode, centred: bool) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    y, _ = norm_onnx(out, node.inputs[0], number(node.attrs, "epsilon"), centred)
    out.add("Identity", y, output=node.output)
    return out.nodes


def _norm_grad_onnx(node: NamedNode, centred: bool) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x, d_y = node.inputs
    y, scale = norm_onnx(out, x, number(node.attrs, "epsilon"), centred)
    along = out.add("ReduceMean", out.add("Mul", d_y, y), out.ints(-1), keepdims=1)
    rest = out.add("Sub", d_y, out.add("Mul", y, along))
    if centred:
        rest = out.add("Sub", rest, out.add("ReduceMean", d_y, out.ints(-1), keepdims=1))
    out.add("Mul", scale, rest, output=node.output)
    return out.nodes


def _normalization(name: str, centred: bool) -> tuple[Operator, Operator]:
    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        mean, scale = moments(inputs[0], attrs, centred)
        return ((inputs[0] - mean) * scale,)

    def grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        return (b.emit(f"{name}_grad", node.inputs[0], d_output, epsilon=number(node.attrs, "epsilon")),)

    forward = Operator(
        name=name,
        attributes=("epsilon",),
        infer=same_type,
        evaluate=evaluate,
        grad=grad,
        cost=reading_cost(6),
        lower=lambda inputs, outputs, attrs: _norm_lower(inputs, outputs, attrs, centred),
        to_onnx=lambda node, types: _norm_forward_onnx(node, centred),
        examples=(Example((_X,), {"epsilon": 1e-5}),),
    )
    backward = Operator(
        name=f"{name}_grad",
        attributes=("epsilon",),
        infer=same_type,
        evaluate=lambda inputs, attrs: _norm_grad_evaluate(inputs, attrs, centred),
        grad=SECOND,
        cost=reading_cost(14),
        lower=lambda inputs, outputs, attrs: _norm_grad_lower(inputs, outputs, attrs, centred),
        to_onnx=lambda node, types: _norm_grad_onnx(node, centred),
        examples=(Example((_X, _X), {"epsilon": 1e-5}),),
    )
    return forward, backward


NORMALIZE_OPERATORS = (*_normalization("normalize", True), *_normalization("rms_normalize", False))
