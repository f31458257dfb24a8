"""Row-wise operators over the last axis: softmax, normalisation, cross-entropy, and their gradients.

    softmax          y = exp(x - max x) / sum           d_x = y (d_y - sum(y d_y))
    safe_softmax     the same, and 0 in a row that is -inf throughout
    log_softmax      y = x - max x - log sum exp        d_x = d_y - exp(y) sum(d_y)
    normalize        y = (x - mean) r, r = 1/sqrt(var + epsilon)
                     d_x = r (d_y - mean(d_y) - y mean(d_y y))
    rms_normalize    y = x r, r = 1/sqrt(mean(x^2) + epsilon)
                     d_x = r (d_y - y mean(d_y y))
    cross_entropy    per row: log sum exp(x) - x[label]; 0 where label < 0 (ignored)
                     d_x = (softmax(x) - onehot(label)) d_loss
Source: ONNX Softmax, LayerNormalization, SoftmaxCrossEntropyLoss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import Binary, Const, Expr, Index, Ref, RowSpec, Select, Stat, Unary
from compiler.ops.access import per_row, row_matrix
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    number,
    reading_cost,
)
from compiler.values import Value

Stage = tuple[Literal["sum", "max"], Expr]
_X = TensorType("f32", (2, 3, 5))
_LABELS = TensorType("i64", (2, 3))
_ROWS = TensorType("f32", (2, 3))
_SECOND = NotDifferentiable("second derivatives are not needed by any optimizer here")


def add(x: Expr, y: Expr) -> Expr:
    return Binary("add", x, y)


def sub(x: Expr, y: Expr) -> Expr:
    return Binary("sub", x, y)


def mul(x: Expr, y: Expr) -> Expr:
    return Binary("mul", x, y)


def _same(inputs: Types, attrs: Attrs) -> Types:
    return (inputs[0],)


def _rows(inputs: Types, output: TensorType, stages: tuple[Stage, ...], expr: Expr) -> RowSpec:
    """A kernel over all rows of tensors that share one shape."""
    width = output.shape[-1]
    rows = output.size // width
    reads = tuple(row_matrix(tensor, rows, width) for tensor in inputs)
    return RowSpec(rows, width, reads, stages, (row_matrix(output, rows, width),), (expr,))


# ----------------------------------------------------------------------------------------------------------- softmax


def _softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def _softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = Unary("exp", sub(Ref(0), Stat(0)))
    return _rows(inputs, outputs[0], (("max", Ref(0)), ("sum", shifted)), Binary("div", shifted, Stat(1)))


def _softmax_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    y, d_y = inputs
    total = np.where(d_y == 0, 0, y * d_y).sum(axis=-1, keepdims=True)
    return (np.where(d_y == total, 0, y * (d_y - total)),)


def _softmax_grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    """Zero where nothing comes back, though y may be NaN: a guard behind the softmax put something in its place."""
    zero = Const(0.0)
    term = Select(Binary("eq", Ref(1), zero), zero, mul(Ref(0), Ref(1)))
    rest = sub(Ref(1), Stat(0))
    return _rows(inputs, outputs[0], (("sum", term),), Select(Binary("eq", rest, zero), zero, mul(Ref(0), rest)))


def _softmax_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    (y, d_y), zero = node.inputs, out.scalar(0.0)
    term = out.add("Where", out.add("Equal", d_y, zero), zero, out.add("Mul", y, d_y))
    rest = out.add("Sub", d_y, out.add("ReduceSum", term, out.ints(-1), keepdims=1))
    out.add("Where", out.add("Equal", rest, zero), zero, out.add("Mul", y, rest), output=node.output)
    return out.nodes


SOFTMAX = Operator(
    name="softmax",
    attributes=(),
    infer=_same,
    evaluate=lambda inputs, attrs: (_softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_softmax_lower,
    to_onnx=lambda node, types: [OnnxNode("Softmax", node.inputs, node.outputs, {"axis": -1})],
    examples=(Example((_X,)),),
)

LOWEST = float(np.finfo(np.float32).min)
"""Stands for the maximum of a row that is -inf throughout, so that nothing is inf - inf."""


def _safe_softmax(x: Array) -> Array:
    shifted = np.exp(x - np.maximum(x.max(axis=-1, keepdims=True), x.dtype.type(LOWEST)))
    return np.asarray(shifted / np.maximum(shifted.sum(axis=-1, keepdims=True), 0.5))


def _safe_softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = Unary("exp", sub(Ref(0), Binary("max", Stat(0), Const(LOWEST))))
    # A row's largest element adds 1 to the sum; only one that is -inf throughout comes below 1/2.
    weights = Binary("div", shifted, Binary("max", Stat(1), Const(0.5)))
    return _rows(inputs, outputs[0], (("max", Ref(0)), ("sum", shifted)), weights)


def _safe_softmax_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    top = out.add("Max", out.add("ReduceMax", node.inputs[0], out.ints(-1), keepdims=1), out.scalar(LOWEST))
    shifted = out.add("Exp", out.add("Sub", node.inputs[0], top))
    total = out.add("Max", out.add("ReduceSum", shifted, out.ints(-1), keepdims=1), out.scalar(0.5))
    out.add("Div", shifted, total, output=node.output)
    return out.nodes


SAFE_SOFTMAX = Operator(
    name="safe_softmax",
    attributes=(),
    infer=_same,
    evaluate=lambda inputs, attrs: (_safe_softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_safe_softmax_lower,
    to_onnx=_safe_softmax_onnx,
    examples=(Example((_X,)),),
)

SOFTMAX_GRAD = Operator(
    name="softmax_grad",
    attributes=(),
    infer=_same,
    evaluate=_softmax_grad_evaluate,
    grad=_SECOND,
    cost=reading_cost(4),
    lower=_softmax_grad_lower,
    to_onnx=_softmax_grad_onnx,
    examples=(Example((_X, _X), values=("unit",)),),
)

# ------------------------------------------------------------------------------------------------------- log_softmax


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _log_softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = sub(Ref(0), Stat(0))
    stages: tuple[Stage, ...] = (("max", Ref(0)), ("sum", Unary("exp", shifted)))
    return _rows(inputs, outputs[0], stages, sub(shifted, Unary("log", Stat(1))))


def _log_softmax_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    y, d_y = inputs
    return (d_y - np.exp(y) * d_y.sum(axis=-1, keepdims=True),)


def _log_softmax_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    y, d_y = node.inputs
    total = out.add("ReduceSum", d_y, out.ints(-1), keepdims=1)
    out.add("Sub", d_y, out.add("Mul", out.add("Exp", y), total), output=node.output)
    return out.nodes


LOG_SOFTMAX = Operator(
    name="log_softmax",
    attributes=(),
    infer=_same,
    evaluate=lambda inputs, attrs: (_log_softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("log_softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_log_softmax_lower,
    to_onnx=lambda node, types: [OnnxNode("LogSoftmax", node.inputs, node.outputs, {"axis": -1})],
    examples=(Example((_X,)),),
)

LOG_SOFTMAX_GRAD = Operator(
    name="log_softmax_grad",
    attributes=(),
    infer=_same,
    evaluate=_log_softmax_grad_evaluate,
    grad=_SECOND,
    cost=reading_cost(15),
    lower=lambda inputs, outputs, attrs: _rows(
        inputs, outputs[0], (("sum", Ref(1)),), sub(Ref(1), mul(Unary("exp", Ref(0)), Stat(0)))
    ),
    to_onnx=_log_softmax_grad_onnx,
    examples=(Example((_X, _X)),),
)

# ----------------------------------------------------------------------------------------------------- normalisation


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
    return _rows(inputs, outputs[0], stages, mul(value, scale))


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
    return _rows(inputs, outputs[0], stages, mul(scale, rest))


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
        infer=_same,
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
        infer=_same,
        evaluate=lambda inputs, attrs: _norm_grad_evaluate(inputs, attrs, centred),
        grad=_SECOND,
        cost=reading_cost(14),
        lower=lambda inputs, outputs, attrs: _norm_grad_lower(inputs, outputs, attrs, centred),
        to_onnx=lambda node, types: _norm_grad_onnx(node, centred),
        examples=(Example((_X, _X), {"epsilon": 1e-5}),),
    )
    return forward, backward


# ----------------------------------------------------------------------------------------------------- cross-entropy


def _cross_entropy_infer(inputs: Types, attrs: Attrs) -> Types:
    logits, labels = inputs
    if labels.shape != logits.shape[:-1]:
        raise ModelShapeError(
            f"cross-entropy of logits {logits} needs labels of shape {logits.shape[:-1]}, got {labels}"
        )
    return (TensorType(logits.dtype, labels.shape),)


def _one_hot(logits: Array, labels: Array) -> Array:
    return np.asarray(labels[..., None] == np.arange(logits.shape[-1]))


def _cross_entropy_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    logits, labels = inputs
    picked = np.where(_one_hot(logits, labels), _log_softmax(logits), 0).sum(axis=-1)
    return (np.asarray(-picked, logits.dtype),)


def _cross_entropy_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    logits, labels = inputs
    width, rows = logits.shape[-1], labels.size
    hit = Select(Binary("eq", Index(1), Ref(1)), sub(Ref(0), Stat(0)), Const(0.0))
    stages: tuple[Stage, ...] = (("max", Ref(0)), ("sum", Unary("exp", sub(Ref(0), Stat(0)))), ("sum", hit))
    loss = sub(Unary("log", Stat(1)), Stat(2))
    kept = Select(Binary("lt", Ref(1), Const(0)), Const(0.0), loss)
    reads = (row_matrix(logits, rows, width), per_row(labels))
    return RowSpec(rows, width, reads, stages, (per_row(outputs[0]),), (kept,))


def _cross_entropy_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    return (b.emit("cross_entropy_grad", *node.inputs, d_output), None)


def _cross_entropy_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    logits, labels, d_loss = inputs
    d_x = (_softmax(logits) - _one_hot(logits, labels)) * d_loss[..., None]
    return (np.where(labels[..., None] < 0, 0, d_x).astype(logits.dtype),)


def _cross_entropy_grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    logits, labels, d_loss = inputs
    width, rows = logits.shape[-1], labels.size
    shifted = Unary("exp", sub(Ref(0), Stat(0)))
    stages: tuple[Stage, ...] = (("max", Ref(0)), ("sum", shifted))
    hot = Select(Binary("eq", Index(1), Ref(1)), Const(1.0), Const(0.0))
    d_x = mul(sub(Binary("div", shifted, Stat(1)), hot), Ref(2))
    kept = Select(Binary("lt", Ref(1), Const(0)), Const(0.0), d_x)
    reads = (row_matrix(logits, rows, width), per_row(labels), per_row(d_loss))
    return RowSpec(rows, width, reads, stages, (row_matrix(outputs[0], rows, width),), (kept,))


def _onnx_one_hot(out: OnnxWriter, labels: str, width: int) -> str:
    last = out.add("Unsqueeze", labels, out.ints(-1))
    return out.add("Cast", out.add("Equal", last, out.ints(*range(width))), to=1)


def _cross_entropy_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    logits, labels = node.inputs
    hot = _onnx_one_hot(out, labels, types[logits].shape[-1])
    picked = out.add("Mul", hot, out.add("LogSoftmax", logits, axis=-1))
    out.add("Neg", out.add("ReduceSum", picked, out.ints(-1), keepdims=0), output=node.output)
    return out.nodes


def _cross_entropy_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    logits, labels, d_loss = node.inputs
    hot = _onnx_one_hot(out, labels, types[logits].shape[-1])
    rest = out.add("Sub", out.add("Softmax", logits, axis=-1), hot)
    d_x = out.add("Mul", rest, out.add("Unsqueeze", d_loss, out.ints(-1)))
    ignored = out.add("Unsqueeze", out.add("Less", labels, out.ints(0)), out.ints(-1))
    out.add("Where", ignored, out.scalar(0.0), d_x, output=node.output)
    return out.nodes


CROSS_ENTROPY = Operator(
    name="cross_entropy",
    attributes=(),
    infer=_cross_entropy_infer,
    evaluate=_cross_entropy_evaluate,
    grad=_cross_entropy_grad,
    cost=reading_cost(20),
    lower=_cross_entropy_lower,
    to_onnx=_cross_entropy_onnx,
    examples=(Example((_X, _LABELS), values=("normal", "index:5")),),
)

CROSS_ENTROPY_GRAD = Operator(
    name="cross_entropy_grad",
    attributes=(),
    infer=lambda inputs, attrs: (inputs[0],),
    evaluate=_cross_entropy_grad_evaluate,
    grad=_SECOND,
    cost=reading_cost(20),
    lower=_cross_entropy_grad_lower,
    to_onnx=_cross_entropy_grad_onnx,
    examples=(Example((_X, _LABELS, _ROWS), values=("normal", "index:5")),),
)

ROWS = (
    SOFTMAX,
    SAFE_SOFTMAX,
    SOFTMAX_GRAD,
    LOG_SOFTMAX,
    LOG_SOFTMAX_GRAD,
    *_normalization("normalize", True),
    *_normalization("rms_normalize", False),
    CROSS_ENTROPY,
    CROSS_ENTROPY_GRAD,
)
