"""Cross-entropy of logits with class labels, per row, and its gradient.

    cross_entropy    per row: log sum exp(x) - x[label]; 0 where label < 0 (ignored)
                     d_x = (softmax(x) - onehot(label)) d_loss
Source: ONNX SoftmaxCrossEntropyLoss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import per_row, row_matrix
from compiler.kernels.expressions import Binary, Const, Index, Ref, Select, Stat, Unary, mul, sub
from compiler.kernels.spec import RowSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, reading_cost
from compiler.ops.rows import SECOND, Stage
from compiler.ops.softmax import log_softmax, softmax
from compiler.values import Value

_LABELS = TensorType("i64", (2, 3))
_ROWS = TensorType("f32", (2, 3))
_X = TensorType("f32", (2, 3, 5))


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
    picked = np.where(_one_hot(logits, labels), log_softmax(logits), 0).sum(axis=-1)
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
    d_x = (softmax(logits) - _one_hot(logits, labels)) * d_loss[..., None]
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
    return out.add("Cast", out.add("Equal", last, out.ints(*range(width))), to=ELEMENT_TYPES["f32"].onnx)


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
    grad=SECOND,
    cost=reading_cost(20),
    lower=_cross_entropy_grad_lower,
    to_onnx=_cross_entropy_grad_onnx,
    examples=(Example((_X, _LABELS, _ROWS), values=("normal", "index:5")),),
)

CROSS_ENTROPY_OPERATORS = (CROSS_ENTROPY, CROSS_ENTROPY_GRAD)
