"""Which axes of a graph's values have to be in one order, by what each operator does with its axes.

An operator without a rule pins all axes of its operands and results: whatever nobody has thought through stays in the
model's order. So do the model's inputs and outputs. Parameters and constants are free, since their elements move too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from compiler.channels.atoms import Atom, factors, pin, split_off, unite
from compiler.channels.layers import Wires
from compiler.graph import Graph, Node
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.record import integer, ints
from compiler.values import Value

Axes = tuple[Atom, ...]
"""One atom for each axis of a value, which may since have been split or united with others."""


class Coupling:
    """The axes of every value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.wires = graph, Wires.of(graph)
        self._axes: dict[Value, Axes] = {}
        for value in (*graph.inputs, *graph.outputs):
            pin(self.axes(value))
        for node in graph.nodes:
            RULES.get(node.op, _unknown)(self, node)

    def axes(self, value: Value) -> Axes:
        """Its axes."""
        if value not in self._axes:
            self._axes[value] = tuple(Atom(extent) for extent in self.graph.types[value].shape)
        return self._axes[value]

    def factors(self, value: Value, axis: int) -> list[Atom]:
        """What an axis is the product of, outermost first."""
        return factors((self.axes(value)[axis],))

    def pin(self, value: Value, axes: Iterable[int] | None = None) -> None:
        """These axes of a value, or all of it, stay in order."""
        own = self.axes(value)
        pin(own if axes is None else [own[axis] for axis in axes])


def couple(graph: Graph) -> Coupling:
    """The axes of a graph's values, united as its nodes say."""
    return Coupling(graph)


def _unknown(c: Coupling, node: Node) -> None:
    for value in (*node.inputs, *node.outputs):
        c.pin(value)


def _one(axes: Axes, axis: int) -> tuple[Atom, ...]:
    return (axes[axis],)


def _broadcast(c: Coupling, node: Node) -> None:
    """Operands against the results, from the last axis on; an operand's axis of 1 goes with every element."""
    for output in node.outputs:
        for value in node.inputs:
            _against(c.axes(value), c.axes(output))


def _against(operand: Axes, result: Axes) -> None:
    for one, other in zip(reversed(operand), reversed(result), strict=False):
        if one.extent == other.extent:
            unite((one,), (other,))


def _reshape(c: Coupling, node: Node) -> None:
    unite(c.axes(node.inputs[0]), c.axes(node.output))


def _transpose(c: Coupling, node: Node) -> None:
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    for axis, source in enumerate(ints(node.attrs, "perm")):
        unite(_one(x, source), _one(y, axis))


def _slice(c: Coupling, node: Node) -> None:
    """One of several equal ranges takes part in the order within each of them; any other cut leaves nothing free."""
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    starts, stops, steps = (ints(node.attrs, name) for name in ("starts", "stops", "steps"))
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        whole, size = x[axis].extent, stop - start
        if (start, stop, step) == (0, whole, 1):
            unite(_one(x, axis), _one(y, axis))
        elif step == 1 and size and whole % size == 0 and start % size == 0:
            _within(_one(x, axis), whole // size, _one(y, axis))
        else:
            pin((*_one(x, axis), *_one(y, axis)))


def _within(whole: tuple[Atom, ...], count: int, part: tuple[Atom, ...]) -> None:
    """Each of `count` equal ranges of `whole` is in the order of `part`."""
    apart = split_off(whole, count)
    if apart is None:
        pin((*whole, *part))
        return
    pin(apart[0])
    unite(apart[1], part)


def _concat(c: Coupling, node: Node) -> None:
    along, y = integer(node.attrs, "axis"), c.axes(node.output)
    extents = {c.axes(value)[along].extent for value in node.inputs}
    for value in node.inputs:
        x = c.axes(value)
        for axis in range(len(y)):
            if axis != along or x[axis].extent == y[axis].extent:
                unite(_one(x, axis), _one(y, axis))
            elif len(extents) == 1:
                _within(_one(y, axis), len(node.inputs), _one(x, axis))
            else:
                pin((*_one(x, axis), *_one(y, axis)))


def _pad(c: Coupling, node: Node) -> None:
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    for axis, added in enumerate(zip(ints(node.attrs, "before"), ints(node.attrs, "after"), strict=True)):
        if any(added):
            pin((x[axis], y[axis]))
        else:
            unite(_one(x, axis), _one(y, axis))


def _reduce(c: Coupling, node: Node) -> None:
    """What is summed may come in any order."""
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    gone = {axis % len(x) for axis in ints(node.attrs, "axes")} if x else set()
    kept = [axis for axis in range(len(x)) if axis not in gone]
    places = kept if len(y) == len(x) else range(len(kept))
    for axis, place in zip(kept, places, strict=True):
        unite(_one(x, axis), _one(y, place))


def _last_summed(c: Coupling, node: Node) -> None:
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    for axis in range(len(y)):
        unite(_one(x, axis), _one(y, axis))


def _gather(c: Coupling, node: Node) -> None:
    """Rows are named by number, so they stay; the axes beside them, and those of the numbers, are free."""
    x, index, y = (c.axes(value) for value in (*node.inputs, node.output))
    along = integer(node.attrs, "axis") if "axis" in node.attrs else 0
    pin(_one(x, along))
    result = (*x[:along], *index, *x[along + 1 :])
    for one, other in zip(result, y, strict=True):
        unite((one,), (other,))


def _matmul(c: Coupling, node: Node) -> None:
    a, b = (c.axes(value) for value in node.inputs)
    y = c.axes(node.output)
    if len(a) < 2 or len(b) < 2:
        _unknown(c, node)
        return
    rows, inner = (a[-1], a[-2]) if node.attrs.get("transpose_a") else (a[-2], a[-1])
    inner_b, columns = (b[-1], b[-2]) if node.attrs.get("transpose_b") else (b[-2], b[-1])
    unite((inner,), (inner_b,))
    unite((rows,), (y[-2],))
    unite((columns,), (y[-1],))
    _against(a[:-2], y[:-2])
    _against(b[:-2], y[:-2])


def _conv(c: Coupling, node: Node) -> None:
    _convolution(c, c.axes(node.inputs[0]), c.axes(node.inputs[1]), c.axes(node.output))


def _transposed_conv(c: Coupling, node: Node) -> None:
    _convolution(c, c.axes(node.output), c.axes(node.inputs[1]), c.axes(node.inputs[0]))


def _convolution(c: Coupling, x: Axes, w: Axes, y: Axes) -> None:
    """x [N, H, W, groups * C], w [R, S, C, groups * O] (or [R, S, C] depth-wise), y [N, P, Q, groups * O]."""
    unite(_one(x, 0), _one(y, 0))
    pin((*x[1:3], *y[1:3], *w[:2]))
    unite(_one(w, len(w) - 1), _one(y, 3))
    groups = x[3].extent // w[2].extent
    apart, outputs = split_off(_one(x, 3), groups), split_off(_one(y, 3), groups)
    if len(w) == 3:
        unite(_one(x, 3), _one(w, 2))
    elif apart is None or outputs is None:
        pin((x[3], y[3], w[2]))
    else:
        unite(apart[1], _one(w, 2))
        unite(apart[0], outputs[0])


def _pool(c: Coupling, node: Node) -> None:
    for value in node.inputs[1:]:
        c.pin(value)
    x, y = c.axes(node.inputs[0]), c.axes(node.output)
    pin((*x[1:3], *y[1:3]))
    unite(_one(x, 0), _one(y, 0))
    unite(_one(x, 3), _one(y, 3))


def _attention(c: Coupling, node: Node) -> None:
    """q [B, T, H, D], k [B, S, G, D], v [B, S, G, E], mask [B, H, T, S] or 1 there -> y [B, T, H, E], [B, H, 2, T]."""
    q, k, v, *masks = (c.axes(value) for value in node.inputs)
    y, stats = (c.axes(value) for value in node.outputs)
    pin((q[1], k[1], v[1], y[1], *stats[2:], *(atom for mask in masks for atom in mask[2:])))
    for one in (k, v, y, stats, *masks):
        if one[0].extent == q[0].extent:
            unite(_one(q, 0), _one(one, 0))
    unite(_one(q, 3), _one(k, 3))
    unite(_one(v, 3), _one(y, 3))
    unite(_one(k, 2), _one(v, 2))
    for heads in (y[2], stats[1], *(mask[1] for mask in masks)):
        if heads.extent == q[2].extent:
            unite((heads,), _one(q, 2))
    groups = split_off(_one(q, 2), k[2].extent)
    if groups is None:
        pin((q[2], k[2]))
    else:
        unite(groups[0], _one(k, 2))


def _along(c: Coupling, node: Node) -> None:
    """Neighbours along one axis count there; everything else goes its own way."""
    along, y = integer(node.attrs, "axis") % len(c.axes(node.output)), c.axes(node.output)
    operands = node.inputs if node.op == "linear_scan" else node.inputs[:1]
    for value in node.inputs[len(operands) :]:
        c.pin(value)
    for value in operands:
        x = c.axes(value)
        pin((x[along], y[along]))
        for axis in range(len(y)):
            if axis != along:
                unite(_one(x, axis), _one(y, axis))


Rule = Callable[[Coupling, Node], None]
_ALIKE: Sequence[str] = (
    "softmax", "safe_softmax", "log_softmax", "normalize", "rms_normalize", "layer_norm", "batch_norm",
    "held", "statistic", "broadcast_to",
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((record.name for record in ELEMENTWISE), _broadcast),
    **dict.fromkeys(_ALIKE, _broadcast),
    **dict.fromkeys(("reduce_sum", "reduce_mean", "reduce_max"), _reduce),
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    **dict.fromkeys(("conv2d", "depthwise_conv2d"), _conv),
    **dict.fromkeys(("conv2d_input_grad", "depthwise_input_grad"), _transposed_conv),
    **dict.fromkeys(("gather", "embedding"), _gather),
    **dict.fromkeys(("cumulative_sum", "linear_scan", "resample"), _along),
    "log_sum_exp": _last_summed,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "matmul": _matmul,
    "attention": _attention,
}
"""Operator -> how the orders of its axes hang together."""
