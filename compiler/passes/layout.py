"""Sinks transposes through the graph until they cancel, so that images stay NHWC from the first convolution on.

Rewrites: f(transpose(x)) -> transpose(f(x)) for element-wise, reduction, concat, pad, slice and row-wise
operators, for those along one axis (lookup, resampling, running sums), and for a reshape that splits axes or merges
neighbours (swapped before: a shuffle of channels). Requires: importers that wrap each convolution in NCHW <-> NHWC
transposes. Ensures: a transpose is left only where an operator fixes its axes (matmul, graph output).
Why: a convolutional net imported from NCHW would otherwise copy every activation twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.graph import Graph, Node
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.record import flag, integer, ints
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value

ELEMENTWISE_NAMES = frozenset(record.name for record in ELEMENTWISE)


@dataclass(frozen=True, slots=True)
class Lazy:
    """A value that equals `transpose(base, perm)` and has not been written as such."""

    base: Value
    perm: tuple[int, ...]


class Sinker(GraphBuilder):
    """Replays a graph, keeping transposes lazy for as long as operators can work on their base."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, keep_nodes=False)
        self.lazy: dict[Value, Lazy] = {}
        self.plain: dict[Value, Value] = {}
        self.declined: list[Declined] = []
        """Transposes that came to no end, and before what they had to be written."""
        self.reader = self.before = ""
        """The node that is being replayed, and its operator."""

    def name(self, value: Value) -> Value:
        """A plain value equal to `value`, writing its pending transpose if there is one."""
        if value in self.plain:
            return self.plain[value]
        pending = self.lazy.get(value)
        if pending is None:
            return value
        self.plain[value] = self.emit("transpose", pending.base, perm=pending.perm)
        needs = "an operator that works on any order of axes, or the other operands in the same order"
        self.declined.append(Declined("layout.axes_are_fixed", self.reader, f"{needs}, not {self.before}"))
        return self.plain[value]

    def defer(self, output: Value, base: Value, perm: tuple[int, ...]) -> None:
        """Makes `output` stand for `transpose(base, perm)`."""
        if perm == tuple(range(len(perm))):
            self.plain[output] = base
        else:
            self.lazy[output] = Lazy(base, perm)

    def pending(self, value: Value) -> Lazy | None:
        """The pending transpose of a value."""
        return self.lazy.get(value)


Rule = Callable[[Sinker, Node], bool]
"""Handles a node by deferring its output; False means that it needs plain operands."""


def sink_transposes(graph: Graph) -> PassResult[Graph]:
    """The graph with transposes moved towards its outputs, most of them cancelled."""
    b = Sinker(graph)
    for node in graph.nodes:
        b.stand_for(node)
        b.before, b.reader = node.op, node.layer or node.op
        rule = _elementwise if node.op in ELEMENTWISE_NAMES else RULES.get(node.op)
        if rule is not None and rule(b, node):
            continue
        inputs = tuple(b.name(name) for name in node.inputs)
        b.nodes.append(replace(node, inputs=inputs))
    b.before, b.reader = "an output", "outputs"
    for output in graph.outputs:
        if b.name(output) != output:
            b.emit("identity", b.name(output), output=output)
    return rewritten(graph, b.graph_of(graph), b.declined)


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _transpose(b: Sinker, node: Node) -> bool:
    perm, source = ints(node.attrs, "perm"), b.pending(node.inputs[0])
    if source is None:
        b.defer(node.output, b.name(node.inputs[0]), perm)
    else:
        b.defer(node.output, source.base, tuple(source.perm[axis] for axis in perm))
    return True


def _elementwise(b: Sinker, node: Node) -> bool:
    pending = [b.pending(name) for name in node.inputs]
    perms = [lazy.perm for lazy in pending if lazy is not None]
    rank = len(b.types[node.output].shape)
    if not perms or len(perms[0]) != rank:
        return False
    perm = perms[0]
    full = [name for name in node.inputs if b.types[name].shape == b.types[node.output].shape]
    agreeing = sum(lazy is not None and lazy.perm == perm for lazy in pending)
    if 2 * agreeing < len(full):
        return False
    operands = tuple(_in_base(b, name, perm) for name in node.inputs)
    b.defer(node.output, b.emit(node.op, *operands, **_attrs(node)), perm)
    return True


def _in_base(b: Sinker, name: Value, perm: tuple[int, ...]) -> Value:
    """The operand as it broadcasts against values that are stored before the transpose."""
    lazy = b.pending(name)
    if lazy is not None and lazy.perm == perm:
        return lazy.base
    plain = b.name(name)
    shape, rank = b.shape(plain), len(perm)
    if all(extent == 1 for extent in shape):
        return plain
    if len(shape) < rank:
        shape = (1,) * (rank - len(shape)) + shape
        plain = b.emit("reshape", plain, shape=shape)
    inverse = _inverse(perm)
    moved = [axis for axis in inverse if shape[axis] != 1]
    if moved == sorted(moved):
        return b.emit("reshape", plain, shape=tuple(shape[axis] for axis in inverse))
    return b.emit("transpose", plain, perm=inverse)


def _attrs(node: Node) -> dict[str, Any]:
    return dict(node.attrs)


def _reduce(b: Sinker, node: Node) -> bool:
    lazy = b.pending(node.inputs[0])
    if lazy is None:
        return False
    axes = tuple(sorted(lazy.perm[axis] for axis in ints(node.attrs, "axes")))
    keep = flag(node.attrs, "keepdims")
    result = b.emit(node.op, lazy.base, axes=axes, keepdims=keep)
    if keep:
        b.defer(node.output, result, lazy.perm)
        return True
    remaining = [axis for axis in lazy.perm if axis not in axes]
    ranks = {axis: position for position, axis in enumerate(sorted(remaining))}
    b.defer(node.output, result, tuple(ranks[axis] for axis in remaining))
    return True


def _concat(b: Sinker, node: Node) -> bool:
    pending = [b.pending(name) for name in node.inputs]
    first = next((lazy for lazy in pending if lazy is not None), None)
    if first is None or sum(lazy is not None and lazy.perm == first.perm for lazy in pending) * 2 < len(pending):
        return False
    operands = tuple(_in_base(b, name, first.perm) for name in node.inputs)
    result = b.emit("concat", *operands, axis=first.perm[integer(node.attrs, "axis")])
    b.defer(node.output, result, first.perm)
    return True


def _per_axis(*names: str) -> Rule:
    """Operators whose attributes hold one entry per axis."""

    def rule(b: Sinker, node: Node) -> bool:
        lazy = b.pending(node.inputs[0])
        if lazy is None or len(lazy.perm) != len(b.shape(node.output)):
            return False
        attrs = _attrs(node)
        inverse = _inverse(lazy.perm)
        attrs.update({name: tuple(ints(node.attrs, name)[axis] for axis in inverse) for name in names})
        b.defer(node.output, b.emit(node.op, lazy.base, **attrs), lazy.perm)
        return True

    return rule


def _broadcast(b: Sinker, node: Node) -> bool:
    """Pixels repeated in an image; not heads of keys and values, which are looked for where the model repeats them."""
    lazy = b.pending(node.inputs[0])
    moves = lazy is not None and lazy.perm[-1] != len(lazy.perm) - 1
    return moves and _per_axis("shape")(b, node)


def _along(b: Sinker, node: Node) -> bool:
    """Operators that work along one axis and leave the others as they are; further operands are tables for it."""
    lazy = b.pending(node.inputs[0])
    tables = node.inputs[1:]
    if lazy is None or (node.op == "gather" and len(b.shape(tables[0])) != 1):
        return False
    attrs = _attrs(node)
    attrs["axis"] = lazy.perm[integer(node.attrs, "axis")]
    b.defer(node.output, b.emit(node.op, lazy.base, *map(b.name, tables), **attrs), lazy.perm)
    return True


def _rows(b: Sinker, node: Node) -> bool:
    lazy = b.pending(node.inputs[0])
    if lazy is None or lazy.perm[-1] != len(lazy.perm) - 1:
        return False
    b.defer(node.output, b.emit(node.op, lazy.base, **_attrs(node)), lazy.perm)
    return True


def _per_channel(place: int) -> Rule:
    """A norm with one number per element of its last axis: input `place` has all axes, the others that one."""

    def rule(b: Sinker, node: Node) -> bool:
        lazy = b.pending(node.inputs[place])
        if lazy is None or lazy.perm[-1] != len(lazy.perm) - 1:
            return False
        operands = [lazy.base if i == place else b.name(name) for i, name in enumerate(node.inputs)]
        output = b.emit(node.op, *operands, **_attrs(node))
        b.defer(node.output, output, lazy.perm if b.shape(output) == b.shape(lazy.base) else (0,))
        return True

    return rule


def _reshape(b: Sinker, node: Node) -> bool:
    """A reshape that splits axes, or merges axes which lie side by side in the base too, can come first."""
    lazy = b.pending(node.inputs[0])
    if lazy is None:
        return False
    shape = b.shape(node.output)
    lead = next((axis for axis, extent in enumerate(shape) if extent != 1), 0)
    groups = _regrouped(b.shape(lazy.base), lazy.perm, shape[lead:])
    if groups is None:
        lazy = _shuffled(b, lazy, shape[lead:])
        groups = _regrouped(b.shape(lazy.base), lazy.perm, shape[lead:]) if lazy else None
    if lazy is None or groups is None:
        return False
    order = sorted(range(len(groups)), key=lambda number: groups[number][0])
    base_shape = shape[:lead] + tuple(extent for number in order for extent in groups[number][1])
    starts, position = {}, lead
    for number in order:
        starts[number], position = position, position + len(groups[number][1])
    moved = (starts[number] + i for number, (_, extents) in enumerate(groups) for i in range(len(extents)))
    perm = (*range(lead), *moved)
    base = lazy.base if b.shape(lazy.base) == base_shape else b.emit("reshape", lazy.base, shape=base_shape)
    b.defer(node.output, base, perm)
    return True


def _shuffled(b: Sinker, lazy: Lazy, shape: tuple[int, ...]) -> Lazy | None:
    """Returns the same value on a base in which the axes that a reshape merges follow each other, None if that takes
    more.

    It takes one transpose where they lie side by side in another order: a shuffle of channels in groups.
    """
    base = b.shape(lazy.base)
    places = _places(base)
    order = list(range(len(base)))
    for axes, _ in _groups(base, lazy.perm, shape) or ():
        slots = sorted(axes)
        if places[slots[-1]] - places[slots[0]] != len(slots) - 1:
            return None
        for slot, axis in zip(slots, axes, strict=True):
            order[slot] = axis
    if order == list(range(len(base))):
        return None
    moved = b.emit("transpose", lazy.base, perm=tuple(order))
    return Lazy(moved, tuple(order.index(axis) for axis in lazy.perm))


def _regrouped(
    base: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Returns how a reshape to `shape` groups the axes of transpose(base, perm): (place in the base, new extents) per
    group.

    None where a group's axes do not lie side by side in the base.
    """
    groups, places = _groups(base, perm, shape), _places(base)
    for axes, _ in groups or ():
        if any(places[after] != places[before] + 1 for before, after in itertools.pairwise(axes)):
            return None
    return [(places[axes[0]], extents) for axes, extents in groups] if groups else None


def _places(base: tuple[int, ...]) -> dict[int, int]:
    """Place of each axis among those that count."""
    return {axis: place for place, axis in enumerate(axis for axis, extent in enumerate(base) if extent != 1)}


def _groups(
    base: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> list[tuple[list[int], tuple[int, ...]]] | None:
    """The axes of the base that a reshape to `shape` merges, in their new order, and the extents that it makes of them.

    Axes of extent 1 do not count.
    """
    places = _places(base)
    axes = [axis for axis in perm if axis in places]
    groups: list[tuple[list[int], tuple[int, ...]]] = []
    pending = list(shape)
    while axes:
        members, extents = [axes.pop(0)], [pending.pop(0)] if pending else []
        have, want = base[members[0]], extents[0] if extents else 1
        while have != want:
            if have < want and axes:
                members.append(axes.pop(0))
                have *= base[members[-1]]
            elif have > want and pending:
                extents.append(pending.pop(0))
                want *= extents[-1]
            else:
                return None
        while pending and pending[0] == 1:
            extents.append(pending.pop(0))
        groups.append((members, tuple(extents)))
    return groups if groups and not pending else None


RULES: Mapping[str, Rule] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "reduce_sum": _reduce,
    "reduce_mean": _reduce,
    "reduce_max": _reduce,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "cumulative_sum": _along,
    "gather": _along,
    "resample": _along,
    "top_k": _along,
    "pad": _per_axis("before", "after"),
    "slice": _per_axis("starts", "stops", "steps"),
    "safe_softmax": _rows,
    "softmax": _rows,
    "log_softmax": _rows,
    "normalize": _rows,
    "rms_normalize": _rows,
    "batch_norm": _per_channel(0),
    "statistic": _per_channel(1),
    "dropout": _elementwise,
}
