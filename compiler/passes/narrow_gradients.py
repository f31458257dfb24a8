"""Moves the slice of a weight-gradient into its operands, so that only the slice is saved and multiplied.

Rewrites: slice(matmul(A^T, d)) over rows -> matmul(slice(A)^T, d); slice(conv2d_weight_grad(x, d)) over input
channels -> conv2d_weight_grad(slice(x), d); the same for depth-wise and transposed ones; slice(a + b) -> slice(a) +
slice(b); slice(reshape(a)) -> reshape(slice(a)) where a reshape only adds or drops unit axes.
Requires: gradients sliced by autodiff. Ensures: every kept element equals the
matching element of the full gradient, since each output element reads its own channel only.
Why: memory and time of a channel-sparse layer fall with the ratio. Source: PockEngine, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compiler.graph import Graph, Node
from compiler.ops.record import flag, ints
from compiler.ops.windows import groups_of
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value


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
    source = b.made.get(node.inputs[0])
    bounds = _one_axis(b, node)
    if source is None or bounds is None or source.op not in NARROWING:
        return None
    return NARROWING[source.op](b, source, *bounds)


def _one_axis(b: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """(axis, start, stop) of a slice that cuts one axis with step 1."""
    starts, stops, steps = (ints(node.attrs, name) for name in ("starts", "stops", "steps"))
    shape = b.shape(node.inputs[0])
    cut = [i for i, extent in enumerate(shape) if (starts[i], stops[i]) != (0, extent)]
    if len(cut) != 1 or any(step != 1 for step in steps):
        return None
    return cut[0], starts[cut[0]], stops[cut[0]]


def _slice(b: Rewriter, value: Value, axis: int, start: int, stop: int) -> Value:
    shape = b.shape(value)
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else extent for i, extent in enumerate(shape))
    phase, b.phase = b.phase, b.made[value].phase if value in b.made else "forward"
    result = b.emit("slice", value, starts=starts, stops=stops, steps=(1,) * len(shape))
    b.phase = phase
    return result


def _matmul(b: Rewriter, source: Node, axis: int, start: int, stop: int) -> Value | None:
    x, y = source.inputs
    rank = len(b.shape(source.output))
    ta, tb = flag(source.attrs, "transpose_a"), flag(source.attrs, "transpose_b")
    if axis == rank - 2 and len(b.shape(x)) >= 2:
        along = len(b.shape(x)) - (1 if ta else 2)
        return b.emit("matmul", _slice(b, x, along, start, stop), y, transpose_a=ta, transpose_b=tb)
    if axis == rank - 1:
        along = len(b.shape(y)) - (2 if tb else 1)
        return b.emit("matmul", x, _slice(b, y, along, start, stop), transpose_a=ta, transpose_b=tb)
    return None


def _weight_grad(b: Rewriter, source: Node, axis: int, start: int, stop: int) -> Value | None:
    """Input channels of a convolution (axis 2), or of a transposed one (axis 3), whose input stands for d_y."""
    x, d_y = source.inputs
    shape = ints(source.attrs, "shape")
    groups = groups_of(b.shape(x), shape)
    if axis not in (2, 3) or (axis == 3 and groups > 1):
        return None
    if axis == 2:
        x = _slice_groups(b, x, groups, start, stop)
    if axis == 3 or source.op == "depthwise_weight_grad":
        d_y = _slice(b, d_y, 3, start, stop)
    attrs: dict[str, Any] = dict(source.attrs)
    attrs["shape"] = (*shape[:axis], stop - start, *shape[axis + 1 :])
    return b.emit(source.op, x, d_y, **attrs)


def _slice_groups(b: Rewriter, x: Value, groups: int, start: int, stop: int) -> Value:
    """The same channels of each group of images."""
    if groups == 1:
        return _slice(b, x, 3, start, stop)
    *size, c = b.shape(x)
    phase, b.phase = b.phase, b.made[x].phase if x in b.made else "forward"
    grouped = b.emit("reshape", x, shape=(*size, groups, c // groups))
    kept = _slice(b, grouped, 4, start, stop)
    result = b.emit("reshape", kept, shape=(*size, groups * (stop - start)))
    b.phase = phase
    return result


def _reshape(b: Rewriter, source: Node, axis: int, start: int, stop: int) -> Value | None:
    """One that only adds or drops axes of extent 1."""
    shape, inner = b.shape(source.output), b.shape(source.inputs[0])
    places = [place for place, extent in enumerate(inner) if extent != 1]
    if [inner[place] for place in places] != [extent for extent in shape if extent != 1]:
        return None
    along = places[sum(extent != 1 for extent in shape[:axis])]
    narrow = _narrowed(b, source.inputs[0], along, start, stop)
    return b.emit("reshape", narrow, shape=(*shape[:axis], stop - start, *shape[axis + 1 :]))


def _add(b: Rewriter, source: Node, axis: int, start: int, stop: int) -> Value | None:
    if b.shape(source.inputs[0]) != b.shape(source.inputs[1]):
        return None
    return b.emit("add", *(_narrowed(b, value, axis, start, stop) for value in source.inputs))


def _narrowed(b: Rewriter, value: Value, axis: int, start: int, stop: int) -> Value:
    inner = b.made.get(value)
    narrower = NARROWING[inner.op](b, inner, axis, start, stop) if inner and inner.op in NARROWING else None
    return narrower or _slice(b, value, axis, start, stop)


Narrow = Callable[[Rewriter, Node, int, int, int], Value | None]

NARROWING: Mapping[str, Narrow] = {
    "matmul": _matmul,
    "conv2d_weight_grad": _weight_grad,
    "depthwise_weight_grad": _weight_grad,
    "add": _add,
    "reshape": _reshape,
}
