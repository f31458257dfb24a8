"""Adafactor: second moments of a matrix by its rows and columns, and steps measured by the parameter's own size.

Of a gradient g with two axes or more, in the author's layout, with fresh = t ** beta2_decay at step t:

    row' = row + fresh (mean over the last axis of g^2 - row)
    col' = col + fresh (mean over the last axis but one of g^2 - col)
    v = row' col' / max(mean over the last axis but one of row', eps1)
and of one with fewer:  v = v' = v + fresh (g^2 - v). Then

    u = g / sqrt(max(v, eps1^2))
    step = max(eps2, rms(w)) min(lr, 1 / sqrt(t)) / max(1, rms(u) / clip_threshold)
    w' = w (1 - lr weight_decay) - step u          rms(x) = sqrt(mean of x^2), of what learns
Source: torch.optim.Adafactor (arXiv 1804.04235).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from compiler.channels.slices import UpdateSlice
from compiler.graph import Parameter, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.optimizer import OptimizerSpec
from compiler.step.autodiff import slice_of
from compiler.step.clipping import sum_of_squares
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Rates:
    """Numbers of a step: the learning rate, the share of what is new, 1 / sqrt(t)."""

    learning: Value
    fresh: Value
    inverse_root: Value


def update(
    b: GraphBuilder,
    parameter: Value,
    details: Parameter,
    gradient: Value,
    part: UpdateSlice,
    rates: Rates,
    spec: OptimizerSpec,
    weight_decay: float,
) -> Mapping[Value, Value]:
    """Appends the update and returns what the parameter and its state become."""
    squares = b.emit("mul", gradient, gradient)
    if len(details.file_shape) > 1:
        fresh, moment = _factored(b, parameter, details, squares, rates.fresh, spec.eps1)
    else:
        state = parameter.state("variance")
        b.types[state] = b.types[gradient]
        moment = _blended(b, state, squares, rates.fresh)
        fresh = {state: moment}
    floor = b.constant(spec.eps1**2)
    direction = b.emit("mul", gradient, b.emit("rsqrt", b.emit("maximum", moment, floor)))
    step = _step(b, slice_of(b, parameter, part), direction, rates, spec)
    window = {"axis": part.axis, "start": part.start}
    operands = (parameter, direction, step, rates.learning)
    b.emit("scaled_update", *operands, output=parameter.updated(), weight_decay=weight_decay, **window)
    # Last: whatever reads the new moments may be given the old ones to compute them from.
    state_updates = {state: b.emit("keep", state, value, output=state.updated()) for state, value in fresh.items()}
    return {parameter: parameter.updated(), **state_updates}


def factored_axes(parameter: Parameter) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Inside axes of the author's last axis and of the last but one; an axis of one element is none."""
    view = iter(enumerate(parameter.view_shape))
    axes: list[tuple[int, ...]] = []
    for extent in parameter.file_shape:
        merged_axes: list[int] = []
        while prod(parameter.view_shape[axis] for axis in merged_axes) != extent:
            axis, size = next(view)
            merged_axes += [axis] if size > 1 else []
        axes.append(tuple(sorted(parameter.perm.index(axis) for axis in merged_axes)))
    return axes[-1], axes[-2]


def _factored(
    b: GraphBuilder, parameter: Value, details: Parameter, squares: Value, fresh: Value, eps1: float
) -> tuple[dict[Value, Value], Value]:
    """The new state, and the second moment that it stands for."""
    last, before = factored_axes(details)
    states = parameter.state("row_var"), parameter.state("col_var")
    moments = []
    for state, axes in zip(states, (last, before), strict=True):
        mean = _mean(b, squares, axes)
        b.types[state] = b.types[mean]
        moments.append(_blended(b, state, mean, fresh))
    row, col = moments
    scale = b.emit("maximum", _mean(b, row, before), b.constant(eps1))
    return dict(zip(states, moments, strict=True)), b.emit("mul", b.emit("div", row, scale), col)


def _mean(b: GraphBuilder, x: Value, axes: tuple[int, ...]) -> Value:
    return b.emit("reduce_mean", x, axes=axes, keepdims=True) if axes else x


def _blended(b: GraphBuilder, state: Value, new: Value, fresh: Value) -> Value:
    """(1 - fresh) state + fresh new: a sum of what is not negative, without cancellation."""
    decayed = b.emit("mul", state, b.emit("sub", b.constant(1.0), fresh))
    return b.emit("add", decayed, b.emit("mul", new, fresh))


def _step(b: GraphBuilder, weight: Value, direction: Value, rates: Rates, spec: OptimizerSpec) -> Value:
    size = b.emit("maximum", _root_mean_square(b, weight), b.constant(spec.eps2))
    rate = b.emit("mul", size, b.emit("minimum", rates.learning, rates.inverse_root))
    excess = b.emit("div", _root_mean_square(b, direction), b.constant(spec.clip_threshold))
    return b.emit("div", rate, b.emit("maximum", excess, b.constant(1.0)))


def _root_mean_square(b: GraphBuilder, x: Value) -> Value:
    count = TensorType("f32", b.shape(x)).size
    return b.emit("sqrt", b.emit("mul", sum_of_squares(b, x), b.constant(1.0 / count)))
