"""The kinds of losses: how each is written out of operators.

A kind of `compiler.spec.loss` is one row in `LOSSES`. The mean and the sum of what is measured are left to `_reduced`,
except where a mean is a weighted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from compiler.ops.cross_entropy import NOTHING_IGNORED
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import LossKind
from compiler.step.training import Term
from compiler.values import Role, Value

Write = Callable[[GraphBuilder, Term, Role], Value]
"""Writes a loss as a value of the given role."""


def _labels_of(term: Term) -> Value:
    assert term.labels is not None
    return term.labels


def _reduced(b: GraphBuilder, each: Value, term: Term, role: Role) -> Value:
    """The mean, or the sum, of what is measured element by element."""
    axes = tuple(range(len(b.shape(each))))
    return b.emit("reduce_sum" if term.is_sum else "reduce_mean", each, axes=axes, keepdims=False, output=b.fresh(role))


# -------------------------------------------------------------------------------------------------- classes by number


def _cross_entropy(b: GraphBuilder, term: Term, role: Role) -> Value:
    return _classified(b, term, _labels_of(term), role)


def _next_token(b: GraphBuilder, term: Term, role: Role) -> Value:
    """Returns the loss of each position against the next one's label."""
    return _classified(b, term, _next_labels(b, term), role)


def _next_labels(b: GraphBuilder, term: Term) -> Value:
    """Returns the label of the next position, beside each; the last one counts for nothing, and no logits are
    copied.
    """
    labels = _labels_of(term)
    if b.types[labels].dtype != "i64":
        labels = b.emit("cast", labels, to="i64")
    shape, along = b.shape(labels), sequence_axis(b, term)
    begins = [int(axis == along) for axis in range(len(shape))]
    rest = b.emit("slice", labels, starts=tuple(begins), stops=shape, steps=(1,) * len(shape))
    none = np.full((*shape[:along], 1, *shape[along + 1 :]), NOTHING_IGNORED, np.int64)
    return b.emit("concat", rest, b.constant(none), axis=along)


def sequence_axis(b: GraphBuilder, term: Term) -> int:
    """The axis of next-token labels along which they follow each other: the one that is not the batch."""
    return 0 if term.batch_axis == 1 else 1


def _classified(b: GraphBuilder, term: Term, labels: Value, role: Role) -> Value:
    ignored = max(term.ignored, NOTHING_IGNORED)
    weights = (b.constant(np.asarray(term.class_weights, np.float32)),) if term.class_weights else ()
    rows = b.emit("cross_entropy", _classes_last(b, term), labels, *weights, ignored=ignored, smoothing=term.smoothing)
    axes = tuple(range(len(b.shape(rows))))
    if term.is_sum:
        return b.emit("reduce_sum", rows, axes=axes, keepdims=False, output=b.fresh(role))
    count = _count(b, term, labels)
    count = positive_or_1(b, count) if weights else b.emit("maximum", count, b.constant(1.0))
    total = b.emit("reduce_sum", rows, axes=axes, keepdims=False)
    return b.emit("div", total, count, output=b.fresh(role))


def label_count(b: GraphBuilder, term: Term) -> Value:
    """Returns how many labels of a loss by classes count, or the sum of their classes' weights: what its mean divides
    by.
    """
    return _count(b, term, _next_labels(b, term) if term.is_shifted else _labels_of(term))


def _count(b: GraphBuilder, term: Term, labels: Value) -> Value:
    counted = _counted(b, labels, max(term.ignored, NOTHING_IGNORED))
    if term.class_weights:
        weights = b.constant(np.asarray(term.class_weights, np.float32))
        counted = b.emit("mul", counted, _own_weights(b, labels, weights))
    return b.emit("reduce_sum", counted, axes=tuple(range(len(b.shape(counted)))), keepdims=False)


def _counted(b: GraphBuilder, labels: Value, ignored: int) -> Value:
    """1.0 for a label that counts, else 0.0."""
    counts = b.emit("less_equal", b.constant(np.asarray(0, np.int64)), labels)
    if ignored >= 0:
        other = b.emit("not", b.emit("equal", labels, b.constant(np.asarray(ignored, np.int64))))
        counts = b.emit("and", counts, other)
    return b.emit("cast", counts, to="f32")


def _own_weights(b: GraphBuilder, labels: Value, weights: Value) -> Value:
    """The weight of each label's class; of some class for a label that is none."""
    last = b.constant(np.asarray(b.shape(weights)[0] - 1, np.int64))
    class_index = b.emit("minimum", b.emit("maximum", labels, b.constant(np.asarray(0, np.int64))), last)
    return b.emit("gather", weights, class_index, axis=0)


def positive_or_1(b: GraphBuilder, total: Value) -> Value:
    """Returns the divisor of a weighted mean: 1 where no label counts, so that the loss is 0."""
    one = b.constant(1.0)
    return b.emit("where", b.emit("less", b.constant(0.0), total), total, one)


def _classes_last(b: GraphBuilder, term: Term) -> Value:
    rank, axis = len(b.shape(term.output)), term.class_axis
    if axis is None or axis == rank - 1:
        return term.output
    return b.emit("transpose", term.output, perm=(*range(axis), *range(axis + 1, rank), axis))


# ---------------------------------------------------------------------------------------------------- number by number


def _mean_squared_error(b: GraphBuilder, term: Term, role: Role) -> Value:
    error = b.emit("sub", term.output, _labels_of(term))
    return _reduced(b, b.emit("mul", error, error), term, role)


def _l1(b: GraphBuilder, term: Term, role: Role) -> Value:
    """|error|, whose gradient is 0 where there is none, as in PyTorch."""
    return _reduced(b, b.emit("abs", b.emit("sub", term.output, _labels_of(term))), term, role)


def _huber(b: GraphBuilder, term: Term, role: Role) -> Value:
    """Returns Huber's loss. With a = |error| and c = min(a, delta): c (a - c / 2), which is a^2 / 2 up to delta, and a
    line from there on.
    """
    size = b.emit("abs", b.emit("sub", term.output, _labels_of(term)))
    capped = b.emit("minimum", size, b.constant(term.delta))
    rest = b.emit("sub", size, b.emit("mul", capped, b.constant(0.5)))
    return _reduced(b, b.emit("mul", capped, rest), term, role)


def _smooth_l1(b: GraphBuilder, term: Term, role: Role) -> Value:
    """Huber's loss over its delta: with a = |error| and c = min(a / beta, 1), c (a - c beta / 2)."""
    if not term.delta:
        return _l1(b, term, role)
    size = b.emit("abs", b.emit("sub", term.output, _labels_of(term)))
    capped = b.emit("minimum", b.emit("div", size, b.constant(term.delta)), b.constant(1.0))
    rest = b.emit("sub", size, b.emit("mul", capped, b.constant(0.5 * term.delta)))
    return _reduced(b, b.emit("mul", capped, rest), term, role)


def _bce_with_logits(b: GraphBuilder, term: Term, role: Role) -> Value:
    each = _with_pos_weight(b, term) if term.pos_weight else b.emit("bce_with_logits", term.output, _labels_of(term))
    if term.class_weights:
        each = b.emit("mul", each, _per_class(b, term, term.class_weights))
    return _reduced(b, each, term, role)


def _with_pos_weight(b: GraphBuilder, term: Term) -> Value:
    """(1 - y) softplus(x) + p y softplus(-x): no differences of large numbers."""
    x, y = term.output, _labels_of(term)
    rest = b.emit("log1p", b.emit("exp", b.emit("neg", b.emit("abs", x))))
    zero = b.constant(0.0)
    if_0 = b.emit("add", b.emit("maximum", x, zero), rest)
    if_1 = b.emit("add", b.emit("maximum", b.emit("neg", x), zero), rest)
    weighted = b.emit("mul", _per_class(b, term, term.pos_weight), y)
    return b.emit("add", b.emit("mul", b.emit("sub", b.constant(1.0), y), if_0), b.emit("mul", weighted, if_1))


def _per_class(b: GraphBuilder, term: Term, weights: tuple[float, ...]) -> Value:
    """Weights of classes as they meet an output whose classes lie along `class_axis`."""
    rank = len(b.shape(term.output))
    axis = rank - 1 if term.class_axis is None else term.class_axis
    behind = (1,) * (rank - 1 - axis)
    return b.constant(np.asarray(weights, np.float32).reshape(-1, *behind) if len(weights) > 1 else weights[0])


def _model_loss(b: GraphBuilder, term: Term, role: Role) -> Value:
    return b.emit("reshape", term.output, shape=(), output=b.fresh(role))


LOSSES: Mapping[LossKind, Write] = {
    "cross_entropy": _cross_entropy,
    "next_token": _next_token,
    "mse": _mean_squared_error,
    "l1": _l1,
    "huber": _huber,
    "smooth_l1": _smooth_l1,
    "bce_with_logits": _bce_with_logits,
    "graph": _model_loss,
}
