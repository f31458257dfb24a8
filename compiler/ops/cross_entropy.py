"""Cross-entropy of logits with class labels, per row, and its gradient.

    cross_entropy    per row: A log sum exp(x) - sum t x, with the targets
                     t = (1 - smoothing) w[label] onehot(label) + smoothing / C w,  A = sum t;
                     0 where label < 0 or label = ignored; w are the classes' weights, 1 without them
                     d_x = (A softmax(x) - t) d_loss
Source: ONNX SoftmaxCrossEntropyLoss; torch.nn.functional.cross_entropy (label_smoothing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import Access, axis, per_row, row_matrix
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Stat, Unary, add, mul, sub
from compiler.kernels.spec import RowSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, integer, number, reading_cost
from compiler.ops.rows import SECOND, Stage
from compiler.ops.softmax import log_softmax, softmax
from compiler.values import Value

_LABELS = TensorType("i64", (2, 3))
_ROWS = TensorType("f32", (2, 3))
_X = TensorType("f32", (2, 3, 5))
_WEIGHTS = TensorType("f32", (5,))
NOTHING_IGNORED = -1
"""`ignored` where no class counts for nothing: negative labels never count."""
PLAIN: Attrs = {"ignored": NOTHING_IGNORED, "smoothing": 0.0}


def _check_weights(logits: TensorType, weights: Types) -> None:
    if any(weight.shape != logits.shape[-1:] for weight in weights):
        raise ModelShapeError(
            f"cross-entropy of logits {logits} needs {logits.shape[-1]} class weights, got {weights[0]}"
        )


def _cross_entropy_infer(inputs: Types, attrs: Attrs) -> Types:
    logits, labels, *weights = inputs
    if labels.shape != logits.shape[:-1]:
        raise ModelShapeError(
            f"cross-entropy of logits {logits} needs labels of shape {logits.shape[:-1]}, got {labels}"
        )
    _check_weights(logits, tuple(weights))
    return (TensorType(logits.dtype, labels.shape),)


def _ignored(labels: Array, attrs: Attrs) -> Array:
    return np.asarray((labels < 0) | (labels == integer(attrs, "ignored")))


def _targets(logits: Array, labels: Array, weights: Sequence[Array], attrs: Attrs) -> Array:
    """Returns the distribution that a row should have, times the weight of the row; 0 where it is ignored."""
    classes, smoothing = logits.shape[-1], number(attrs, "smoothing")
    hot = np.asarray(labels[..., None] == np.arange(classes), logits.dtype)
    w = weights[0] if weights else np.ones(classes, logits.dtype)
    targets = (1 - smoothing) * hot * w + smoothing / classes * w
    return np.asarray(np.where(_ignored(labels, attrs)[..., None], 0, targets), logits.dtype)


def _cross_entropy_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    logits, labels, *weights = inputs
    targets = _targets(logits, labels, weights, attrs)
    picked = np.where(targets != 0, targets * log_softmax(logits), 0).sum(axis=-1)
    return (np.asarray(-picked, logits.dtype),)


class _Row:
    """The expressions of a row: the first stages are its largest logit and the sum of exponentials."""

    def __init__(self, inputs: Types, attrs: Attrs) -> None:
        self.logits, self.labels, *rest = inputs
        self.width, self.rows = self.logits.shape[-1], self.labels.size
        self.smoothing, self.ignored = number(attrs, "smoothing"), integer(attrs, "ignored")
        self.weighted = len(rest) > 0
        self.reads = [row_matrix(self.logits, self.rows, self.width), per_row(self.labels)]
        if self.weighted:
            self.reads.append(Access(rest[0], (axis(1),)))
        self.shifted = sub(Ref(0), Stat(0))
        self.is_label = Binary("eq", Index(1), Ref(1))
        self.stages: list[Stage] = [("max", Ref(0)), ("sum", Unary("exp", self.shifted))]

    def sum(self, each: Expr) -> Expr:
        """Returns the sum of `each` over the row."""
        self.stages.append(("sum", each))
        return Stat(len(self.stages) - 1)

    def weight(self) -> Expr | None:
        """The weight of the row's own class, less what smoothing takes of it; None for 1."""
        label_share = Const(1.0 - self.smoothing)
        if not self.weighted:
            return label_share if self.smoothing else None
        label_weight = self.sum(Select(self.is_label, Ref(2), Const(0.0)))
        return mul(label_share, label_weight) if self.smoothing else label_weight

    def spread(self) -> Expr:
        """Returns what smoothing adds to every class of the row, times its weight."""
        return Const(self.smoothing / self.width)

    def unless_ignored(self, result: Expr) -> Expr:
        """0 for a label that does not count."""
        if self.ignored >= 0:
            result = Select(Binary("eq", Ref(1), Const(self.ignored)), Const(0.0), result)
        return Select(Binary("lt", Ref(1), Const(0)), Const(0.0), result)

    def spec(self, output: Access, result: Expr) -> RowSpec:
        return RowSpec(
            self.rows, self.width, tuple(self.reads), tuple(self.stages), (output,), (self.unless_ignored(result),)
        )


def _cross_entropy_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    row = _Row(inputs, attrs)
    label_loss = sub(Unary("log", Stat(1)), row.sum(Select(row.is_label, row.shifted, Const(0.0))))
    weight = row.weight()
    loss = label_loss if weight is None else mul(weight, label_loss)
    if row.smoothing:
        below = row.sum(mul(Ref(2), row.shifted) if row.weighted else row.shifted)
        all_weights = row.sum(Ref(2)) if row.weighted else Const(float(row.width))
        loss = add(loss, mul(row.spread(), sub(mul(all_weights, Unary("log", Stat(1))), below)))
    return row.spec(per_row(outputs[0]), loss)


def _cross_entropy_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    logits, labels, *weights = node.inputs
    ignored, smoothing = integer(node.attrs, "ignored"), number(node.attrs, "smoothing")
    d_x = b.emit("cross_entropy_grad", logits, labels, *weights, d_output, ignored=ignored, smoothing=smoothing)
    return (d_x, *(None for _ in node.inputs[1:]))


def _cross_entropy_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    logits, labels, *weights, d_loss = inputs
    targets = _targets(logits, labels, weights, attrs)
    d_x = (targets.sum(axis=-1, keepdims=True) * softmax(logits) - targets) * d_loss[..., None]
    return (d_x.astype(logits.dtype),)


def _cross_entropy_grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    row = _Row(inputs[:-1], attrs)
    row.reads.append(per_row(inputs[-1]))
    d_loss = Ref(len(inputs) - 1)
    probability: Expr = Binary("div", Unary("exp", row.shifted), Stat(1))
    weight = row.weight()
    target: Expr = Select(row.is_label, Const(1.0) if weight is None else weight, Const(0.0))
    total = weight
    if row.smoothing:
        spread = mul(row.spread(), Ref(2)) if row.weighted else row.spread()
        target = add(target, spread)
        total = add(total, mul(row.spread(), row.sum(Ref(2)))) if row.weighted and total is not None else None
    if total is not None:
        probability = mul(total, probability)
    return row.spec(row_matrix(outputs[0], row.rows, row.width), mul(sub(probability, target), d_loss))


def _onnx_one_hot(out: OnnxWriter, labels: str, width: int) -> str:
    last = out.add("Unsqueeze", labels, out.ints(-1))
    return out.add("Cast", out.add("Equal", last, out.ints(*range(width))), to=ELEMENT_TYPES["f32"].onnx)


def _onnx_targets(out: OnnxWriter, node: NamedNode, weights: Sequence[str], width: int) -> str:
    """Adds the nodes of `_targets`, which may give anything where the label is ignored, unless it is negative in a
    plain loss: 0 then.
    """
    smoothing = number(node.attrs, "smoothing")
    targets = _onnx_one_hot(out, node.inputs[1], width)
    if smoothing:
        scaled = out.add("Mul", targets, out.scalar(1.0 - smoothing))
        targets = out.add("Add", scaled, out.scalar(smoothing / width))
    return out.add("Mul", targets, weights[0]) if weights else targets


def _onnx_ignored(out: OnnxWriter, node: NamedNode) -> str:
    ignored = out.add("Less", node.inputs[1], out.ints(0))
    if integer(node.attrs, "ignored") < 0:
        return ignored
    return out.add("Or", ignored, out.add("Equal", node.inputs[1], out.ints(integer(node.attrs, "ignored"))))


def _is_plain(node: NamedNode) -> bool:
    """Whether an ignored label is 0 by itself: it is negative, so that no class is hot."""
    return not number(node.attrs, "smoothing") and integer(node.attrs, "ignored") < 0


def _cross_entropy_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    logits, _, *weights = node.inputs
    targets = _onnx_targets(out, node, weights, types[logits].shape[-1])
    picked = out.add("Mul", targets, out.add("LogSoftmax", logits, axis=-1))
    total = out.add("ReduceSum", picked, out.ints(-1), keepdims=0)
    if _is_plain(node):
        out.add("Neg", total, output=node.output)
    else:
        out.add("Where", _onnx_ignored(out, node), out.scalar(0.0), out.add("Neg", total), output=node.output)
    return out.nodes


def _cross_entropy_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    logits, _, *weights, d_loss = node.inputs
    targets = _onnx_targets(out, node, weights, types[logits].shape[-1])
    probabilities = out.add("Softmax", logits, axis=-1)
    if weights:
        probabilities = out.add("Mul", probabilities, out.add("ReduceSum", targets, out.ints(-1), keepdims=1))
    rest = out.add("Sub", probabilities, targets)
    d_x = out.add("Mul", rest, out.add("Unsqueeze", d_loss, out.ints(-1)))
    ignored = out.add("Unsqueeze", _onnx_ignored(out, node), out.ints(-1))
    out.add("Where", ignored, out.scalar(0.0), d_x, output=node.output)
    return out.nodes


_OPTIONS: tuple[tuple[Attrs, Types], ...] = (
    (PLAIN, ()),
    ({"ignored": 2, "smoothing": 0.0}, ()),
    ({"ignored": NOTHING_IGNORED, "smoothing": 0.1}, ()),
    ({"ignored": NOTHING_IGNORED, "smoothing": 0.0}, (_WEIGHTS,)),
    ({"ignored": 1, "smoothing": 0.3}, (_WEIGHTS,)),
)
_VALUES = ("normal", "index:5")

CROSS_ENTROPY = Operator(
    name="cross_entropy",
    attributes=("ignored", "smoothing"),
    infer=_cross_entropy_infer,
    evaluate=_cross_entropy_evaluate,
    grad=_cross_entropy_grad,
    cost=reading_cost(20),
    lower=_cross_entropy_lower,
    to_onnx=_cross_entropy_onnx,
    examples=tuple(
        Example((_X, _LABELS, *more), attrs, values=(*_VALUES, *("positive" for _ in more))) for attrs, more in _OPTIONS
    ),
)

CROSS_ENTROPY_GRAD = Operator(
    name="cross_entropy_grad",
    attributes=("ignored", "smoothing"),
    infer=lambda inputs, attrs: (inputs[0],),
    evaluate=_cross_entropy_grad_evaluate,
    grad=SECOND,
    cost=reading_cost(20),
    lower=_cross_entropy_grad_lower,
    to_onnx=_cross_entropy_grad_onnx,
    examples=tuple(
        Example((_X, _LABELS, *more, _ROWS), attrs, values=(*_VALUES, *("positive" for _ in more)))
        for attrs, more in _OPTIONS
    ),
)

CROSS_ENTROPY_OPERATORS = (CROSS_ENTROPY, CROSS_ENTROPY_GRAD)
