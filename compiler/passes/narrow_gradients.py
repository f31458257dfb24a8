"""Moves the slice of a weight-gradient into its operands, so that only the slice is saved and multiplied.

Rewrites: slice(matmul(A^T, d)) over rows -> matmul(slice(A)^T, d), over columns -> matmul(A^T, slice(d));
slice(conv2d_weight_grad(x, d)) over input channels -> conv2d_weight_grad(slice(x), d), over output channels -> of
slice(d), and in groups those that are whole, or the same outputs of each; the same for depth-wise and transposed ones;
slice(a + b) -> slice(a) + slice(b); slice(sum(a)) -> sum(slice(a)); slice(reshape(a)) -> reshape(slice(a)) where a
reshape only adds or drops unit axes, or splits one; slice(scatter_add(i, a)) -> gather of a, where each row of the
slice has one place in it, or scatter_add(i, slice(a)) beside the rows.
Requires: gradients sliced by autodiff. Ensures: every kept element equals the
matching element of the full gradient, since each output element reads its own channel only.
Why: memory and time of a channel-sparse layer fall with the ratio. Source: PockEngine, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from compiler.graph import Graph, Node
from compiler.ops.record import flag, integer, ints
from compiler.ops.windows import groups_of
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Cut:
    """The part that is kept along an axis: a range, in each of several equal parts of the axis; or, by number,
    `rows`.
    """

    start: int
    stop: int
    groups: int = 1
    rows: Value | None = None

    @property
    def size(self) -> int:
        """Extent of what is kept."""
        return self.groups * (self.stop - self.start)


def narrow_gradients(graph: Graph) -> PassResult[Graph]:
    """The graph with slices of weight-gradients pushed into their operands."""
    b = Rewriter(graph)
    declined: list[Declined] = []
    for node in graph.nodes:
        slices = node.op == "slice" and node.phase == "backward"
        if not b.replay(node, _narrow if slices else None) and slices:
            needs = (
                f"the gradient of a product or a convolution, cut along one axis of its own ({', '.join(NARROWING)})"
            )
            declined.append(Declined("narrow.source", node.layer or node.op, needs))
    return rewritten(graph, b.replayed(), declined)


def _narrow(b: Rewriter, node: Node) -> Value | None:
    source = b.makers.get(node.inputs[0])
    axis_cut = _one_axis(b, node)
    if source is None or axis_cut is None or source.op not in NARROWING:
        return None
    return NARROWING[source.op](b, source, *axis_cut)


def _one_axis(b: Rewriter, node: Node) -> tuple[int, Cut] | None:
    """Returns the part that a slice keeps if it cuts one axis with step 1."""
    starts, stops, steps = (ints(node.attrs, name) for name in ("starts", "stops", "steps"))
    shape = b.shape(node.inputs[0])
    cut = [i for i, extent in enumerate(shape) if (starts[i], stops[i]) != (0, extent)]
    if len(cut) != 1 or any(step != 1 for step in steps):
        return None
    return cut[0], Cut(starts[cut[0]], stops[cut[0]])


def _take(b: Rewriter, value: Value, axis: int, cut: Cut) -> Value:
    """Returns the part that is kept of a value, made where the value is."""
    phase, b.phase = b.phase, b.makers[value].phase if value in b.makers else "forward"
    shape = b.shape(value)
    if cut.groups == 1:
        result = _sliced(b, value, axis, cut)
    else:
        apart = (*shape[:axis], cut.groups, shape[axis] // cut.groups, *shape[axis + 1 :])
        part = _sliced(b, b.emit("reshape", value, shape=apart), axis + 1, cut)
        result = b.emit("reshape", part, shape=_with(shape, axis, cut.size))
    b.phase = phase
    return result


def _sliced(b: Rewriter, value: Value, axis: int, cut: Cut) -> Value:
    if cut.rows is not None:
        return b.emit("gather", value, cut.rows, axis=axis)
    shape = b.shape(value)
    starts, stops = _with((0,) * len(shape), axis, cut.start), _with(shape, axis, cut.stop)
    return b.emit("slice", value, starts=starts, stops=stops, steps=(1,) * len(shape))


def _with(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _matmul(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    x, y = source.inputs
    rank = len(b.shape(source.output))
    ta, tb = flag(source.attrs, "transpose_a"), flag(source.attrs, "transpose_b")
    if axis == rank - 2 and len(b.shape(x)) >= 2:
        along = len(b.shape(x)) - (1 if ta else 2)
        return b.emit("matmul", _take(b, x, along, cut), y, transpose_a=ta, transpose_b=tb)
    if axis == rank - 1:
        along = len(b.shape(y)) - (2 if tb else 1)
        return b.emit("matmul", x, _take(b, y, along, cut), transpose_a=ta, transpose_b=tb)
    return None


def _weight_grad(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    """Input channels of a convolution (axis 2), or its outputs (axis 3), which are a transposed one's inputs."""
    x, d_y = source.inputs
    shape = ints(source.attrs, "shape")
    groups = groups_of(b.shape(x), shape)
    attrs: dict[str, Any] = {**source.attrs, "shape": _with(shape, axis, cut.size)}
    if axis == 2:
        x = _take(b, x, 3, replace(cut, groups=groups * cut.groups))
        d_y = _take(b, d_y, 3, cut) if source.op == "depthwise_weight_grad" else d_y
    elif axis == 3 and groups > 1:
        outputs = shape[3] // groups
        if cut.rows is not None or cut.groups > 1 or cut.start % outputs or cut.stop % outputs:
            return _same_of_each_group(b, source, cut, groups)
        x = _take(b, x, 3, Cut(cut.start // outputs * shape[2], cut.stop // outputs * shape[2]))
        d_y = _take(b, d_y, 3, cut)
    elif axis == 3:
        d_y = _take(b, d_y, 3, cut)
    else:
        return None
    return b.emit(source.op, x, d_y, **attrs)


def _same_of_each_group(b: Rewriter, source: Node, cut: Cut, groups: int) -> Value | None:
    if cut.groups != groups:
        return None
    x, d_y = source.inputs
    attrs: dict[str, Any] = {**source.attrs, "shape": _with(ints(source.attrs, "shape"), 3, cut.size)}
    return b.emit(source.op, x, _take(b, d_y, 3, cut), **attrs)


def _reshape(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    """Narrows a reshape that only adds or drops axes of extent 1, or splits the axis that is cut."""
    shape, inner = b.shape(source.output), b.shape(source.inputs[0])
    narrowed_shape = _with(shape, axis, cut.size)
    places = [place for place, extent in enumerate(inner) if extent != 1]
    if [inner[place] for place in places] == [extent for extent in shape if extent != 1]:
        along = places[sum(extent != 1 for extent in shape[:axis])]
        return b.emit("reshape", _narrowed(b, source.inputs[0], along, cut), shape=narrowed_shape)
    split = _split_axis(inner, shape, axis)
    if split is None or cut.groups > 1 or cut.rows is not None:
        return None
    along, outer, inside = split
    part = Cut(cut.start * inside, cut.stop * inside, outer)
    return b.emit("reshape", _narrowed(b, source.inputs[0], along, part), shape=narrowed_shape)


def _split_axis(inner: tuple[int, ...], shape: tuple[int, ...], axis: int) -> tuple[int, int, int] | None:
    """(axis, outer, inner): the axis of `inner` that `axis` is a factor of, and what it has outside and inside it."""
    before = prod(shape[:axis])
    for along in range(len(inner)):
        front = prod(inner[:along])
        if before % front or (front * inner[along]) % (before * shape[axis]):
            continue
        outer, inside = before // front, front * inner[along] // (before * shape[axis])
        if outer * shape[axis] * inside == inner[along] and shape[axis] > 1:
            return along, outer, inside
    return None


def _add(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    if b.shape(source.inputs[0]) != b.shape(source.inputs[1]):
        return None
    return b.emit("add", *(_narrowed(b, value, axis, cut) for value in source.inputs))


def _sum(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    """Narrows the gradient of a bias, which is a sum over rows."""
    x = source.inputs[0]
    rank = len(b.shape(x))
    reduced = {reduced_axis % rank for reduced_axis in ints(source.attrs, "axes")}
    remaining = [place for place in range(rank) if place not in reduced]
    along = axis if flag(source.attrs, "keepdims") else remaining[axis]
    attrs: dict[str, Any] = dict(source.attrs)
    return b.emit("reduce_sum", _take(b, x, along, cut), **attrs)


def _scatter_add(b: Rewriter, source: Node, axis: int, cut: Cut) -> Value | None:
    """Rows that were looked up: those of the slice where each was once, or a part of every row."""
    index, updates = source.inputs
    along, shape = integer(source.attrs, "axis"), ints(source.attrs, "shape")
    if axis != along:
        update_axis = axis if axis < along else axis + len(b.shape(index)) - 1
        narrowed = _take(b, updates, update_axis, cut)
        return b.emit("scatter_add", index, narrowed, axis=along, shape=_with(shape, axis, cut.size))
    numbers = b.arrays.get(index)
    if numbers is None or numbers.ndim != 1 or cut.groups > 1 or cut.rows is not None:
        return None
    if sorted(numbers.tolist()) != list(range(shape[along])):
        return None
    rows = b.constant(np.argsort(numbers)[cut.start : cut.stop].astype(np.int64))
    return _narrowed(b, updates, along, Cut(0, cut.stop - cut.start, rows=rows))


def _narrowed(b: Rewriter, value: Value, axis: int, cut: Cut) -> Value:
    inner = b.makers.get(value)
    narrower = NARROWING[inner.op](b, inner, axis, cut) if inner and inner.op in NARROWING else None
    return narrower or _take(b, value, axis, cut)


Narrow = Callable[[Rewriter, Node, int, Cut], Value | None]

NARROWING: Mapping[str, Narrow] = {
    "matmul": _matmul,
    "conv2d_weight_grad": _weight_grad,
    "depthwise_weight_grad": _weight_grad,
    "add": _add,
    "reduce_sum": _sum,
    "reshape": _reshape,
    "scatter_add": _scatter_add,
}
