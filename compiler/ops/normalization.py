"""Layer norm and RMS norm with their scale and shift, and one gradient for all three operands.

    layer_norm       n = (x - mean) r, r = 1/sqrt(var + epsilon); y = n weight + bias
                     g = d_y weight;  d_x = r (g - mean(g) - n mean(g n)),  d_weight = sum(d_y n),  d_bias = sum(d_y)
    not centred      n = x r, r = 1/sqrt(mean(x^2) + epsilon); d_x without mean(g)
n is computed again in the backward pass: it is cheaper to compute than to keep. Source: ONNX LayerNormalization (17),
RMSNormalization (23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import Access, axis, row_matrix
from compiler.kernels.expressions import Expr, Ref, add, mul
from compiler.kernels.spec import NormGradSpec, RowSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.normalize import moments, norm_onnx, norm_stages
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    ints,
    number,
    reading_cost,
)
from compiler.values import Value

_T = TypeVar("_T")
_GRADIENT_FLOPS = 18


def _check(inputs: Types) -> None:
    x, *columns = inputs
    if not x.shape or any(tensor.shape != x.shape[-1:] for tensor in columns):
        raise ModelShapeError(f"norm of {x} with {', '.join(map(str, columns))}: they must have its last axis")


def _infer(inputs: Types, attrs: Attrs) -> Types:
    _check(inputs)
    return (inputs[0],)


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, weight, *bias = inputs
    mean, scale = moments(x, attrs, flag(attrs, "centred"))
    y = (x - mean) * scale * weight
    return (y + bias[0] if bias else y,)


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    wanted = (*wanted, False)[:3]
    gradients = [b.fresh() if want else None for want in wanted]
    b.emit_many(
        "layer_norm_grad",
        (*node.inputs[:2], d_output),
        outputs=tuple(value for value in gradients if value),
        epsilon=number(node.attrs, "epsilon"),
        centred=flag(node.attrs, "centred"),
        wanted=tuple(int(want) for want in wanted),
    )
    return gradients[: len(node.inputs)]


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    width = outputs[0].shape[-1]
    rows = outputs[0].size // width
    stages, value, scale = norm_stages(width, number(attrs, "epsilon"), flag(attrs, "centred"))
    y: Expr = mul(mul(value, scale), Ref(1))
    reads = (row_matrix(inputs[0], rows, width), *(Access(tensor, (axis(1),)) for tensor in inputs[1:]))
    return RowSpec(
        rows, width, reads, stages, (row_matrix(outputs[0], rows, width),), (add(y, Ref(2)) if inputs[2:] else y,)
    )


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x, weight, *bias = node.inputs
    y, _ = norm_onnx(out, x, number(node.attrs, "epsilon"), flag(node.attrs, "centred"))
    y = out.add("Mul", y, weight)
    out.add("Add" if bias else "Identity", y, *bias, output=node.output)
    return out.nodes


def _grad_infer(inputs: Types, attrs: Attrs) -> Types:
    x, weight, d_y = inputs
    _check((x, weight))
    if d_y != x:
        raise ModelShapeError(f"gradient {d_y} of a norm of {x}")
    return _chosen((x, weight, weight), attrs)


def _chosen(candidates: tuple[_T, _T, _T], attrs: Attrs) -> tuple[_T, ...]:
    return tuple(candidate for candidate, wanted in zip(candidates, ints(attrs, "wanted"), strict=True) if wanted)


def _grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, weight, d_y = inputs
    mean, scale = moments(x, attrs, flag(attrs, "centred"))
    n, g = (x - mean) * scale, d_y * weight
    along = (g * n).mean(axis=-1, keepdims=True)
    offset = g.mean(axis=-1, keepdims=True) if flag(attrs, "centred") else np.zeros_like(along)
    rows = tuple(range(x.ndim - 1))
    return _chosen((scale * (g - offset - n * along), (d_y * n).sum(axis=rows), d_y.sum(axis=rows)), attrs)


def _grad_cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    read, written = (sum(tensor.size_bytes for tensor in tensors) for tensors in (inputs, outputs))
    return Cost(_GRADIENT_FLOPS * inputs[0].size, read, written)


def _grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> NormGradSpec:
    width = inputs[0].shape[-1]
    d_x, d_weight, d_bias = (bool(want) for want in ints(attrs, "wanted"))
    epsilon, centred = number(attrs, "epsilon"), flag(attrs, "centred")
    wanted, rows = (d_x, d_weight, d_bias), inputs[0].size // width
    return NormGradSpec(rows, width, epsilon, centred, wanted, dtype=inputs[0].dtype)


def _grad_to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.outputs[0])
    x, weight, d_y = node.inputs
    centred = flag(node.attrs, "centred")
    n, scale = norm_onnx(out, x, number(node.attrs, "epsilon"), centred)
    outputs = iter(node.outputs)
    d_x, d_weight, d_bias = ints(node.attrs, "wanted")
    rows = out.ints(*range(len(types[x].shape) - 1))
    if d_x:
        g, last = out.add("Mul", d_y, weight), out.ints(-1)
        along = out.add("ReduceMean", out.add("Mul", g, n), last, keepdims=1)
        rest = out.add("Sub", g, out.add("Mul", n, along))
        if centred:
            rest = out.add("Sub", rest, out.add("ReduceMean", g, last, keepdims=1))
        out.add("Mul", scale, rest, output=next(outputs))
    if d_weight:
        out.add("ReduceSum", out.add("Mul", d_y, n), rows, keepdims=0, output=next(outputs))
    if d_bias:
        out.add("ReduceSum", d_y, rows, keepdims=0, output=next(outputs))
    return out.nodes


def _types(*shapes: tuple[int, ...]) -> Types:
    return tuple(TensorType("f32", shape) for shape in shapes)


_SHAPE, _WIDTH = (2, 3, 21), (21,)


def _grad_example(centred: bool, *wanted: int) -> Example:
    return Example(_types(_SHAPE, _WIDTH, _SHAPE), {"epsilon": 1e-5, "centred": centred, "wanted": wanted})


NORMALIZATION = (
    Operator(
        name="layer_norm",
        attributes=("epsilon", "centred"),
        infer=_infer,
        evaluate=_evaluate,
        grad=_grad,
        cost=reading_cost(8),
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            Example(_types(_SHAPE, _WIDTH, _WIDTH), {"epsilon": 1e-5, "centred": True}),
            Example(_types(_SHAPE, _WIDTH), {"epsilon": 1e-5, "centred": False}),
        ),
    ),
    Operator(
        name="layer_norm_grad",
        attributes=("epsilon", "centred", "wanted"),
        infer=_grad_infer,
        evaluate=_grad_evaluate,
        grad=NotDifferentiable("second derivatives are not needed by any optimizer here"),
        cost=_grad_cost,
        lower=_grad_lower,
        to_onnx=_grad_to_onnx,
        examples=(_grad_example(True, 1, 1, 1), _grad_example(False, 1, 1, 0), _grad_example(True, 0, 0, 1)),
    ),
)
