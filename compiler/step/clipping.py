"""Clipping by norm: all gradients together are scaled down to a norm where theirs is larger.

    norm = sqrt(sum over all gradients of the sum of their squares);  g' = g min(1, most / (norm + 1e-6))
Rewrites: the gradients of a step. Requires: gradients as the optimizer is to see them (of the slices that learn,
averaged over micro-batches). Ensures: no update may run before all gradients are there, so they all live until then.
A sum of squares goes by the last axis first and then over the others, so that none has many terms of one size.
Source: torch.nn.utils.clip_grad_norm_ (norm type 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.graph import TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value
from compiler.warnings import CompileWarning

EPSILON = 1e-6


def clip(b: GraphBuilder, gradients: Mapping[Value, Value], most: float) -> dict[Value, Value]:
    """The gradients by parameter, scaled."""
    total = _sum([sum_of_squares(b, gradient) for gradient in gradients.values()], b)
    norm = b.emit("add", b.emit("sqrt", total), b.constant(EPSILON))
    share = b.emit("minimum", b.emit("div", b.constant(most), norm), b.constant(1.0))
    return {parameter: b.emit("mul", gradient, share) for parameter, gradient in gradients.items()}


def sum_of_squares(b: GraphBuilder, x: Value) -> Value:
    """Returns the sum of the squares of all elements, a scalar."""
    square, rank = b.emit("mul", x, x), len(b.shape(x))
    for axes in ((rank - 1,), tuple(range(rank - 1))):
        if rank and axes:
            square = b.emit("reduce_sum", square, axes=axes, keepdims=False)
    return square


def clip_warnings(gradients: Sequence[TensorType]) -> tuple[CompileWarning, ...]:
    """Warns about what clipping costs in memory."""
    size_bytes = sum(gradient.size_bytes for gradient in gradients)
    message = (
        f"all gradients, {size_bytes:,} bytes, stay in memory until their norm is known, and no update comes early"
    )
    return (CompileWarning("optimizer.clip_norm", "spec.optimizer.clip_norm", message, "train fewer parameters"),)


def _sum(terms: list[Value], b: GraphBuilder) -> Value:
    """Pair by pair."""
    while len(terms) > 1:
        pairs = [b.emit("add", x, y) for x, y in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return terms[0]
