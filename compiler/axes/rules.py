"""Rules of what each operator does with its axes: one rule for each operator, valid in both directions.

An operator without a rule is `Unknown`: nothing that it touches may be put in another order, and nobody says where its
results' axes come from. The tests put the axes of every operator's examples in another order, as its rule allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.axes.facts import Alike, Axis, Fact, Fixed, Reshaped, Rule, Shapes, Stems, Unknown
from compiler.graph import Node
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.record import integer, ints
from compiler.values import Value


def facts_of(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Yields what is known about a node's axes."""
    return RULES.get(node.op, _unknown)(node, shapes)


def _unknown(node: Node, shapes: Shapes) -> Iterator[Fact]:
    yield Unknown()


def _fixed(shapes: Shapes, *values: Value) -> Iterator[Fact]:
    for value in values:
        yield from (Fixed(Axis(value, axis)) for axis in range(len(shapes(value))))


def _elementwise(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Operands against the results, from the last axis on; an operand's axis of 1 goes with every element."""
    for output in node.outputs:
        for value in node.inputs:
            yield from _against(shapes, value, output)


def _against(shapes: Shapes, operand: Value, result: Value, without: int = 0) -> Iterator[Fact]:
    """Yields that the operand's and the result's axes of equal size, counted from the last, are alike; the last
    `without` axes are left out.
    """
    ranks = len(shapes(operand)), len(shapes(result))
    for back in range(without + 1, min(ranks) + 1):
        if shapes(operand)[-back] == shapes(result)[-back]:
            yield Alike(Axis(operand, ranks[0] - back), Axis(result, ranks[1] - back))


def _reshape(node: Node, shapes: Shapes) -> Iterator[Fact]:
    yield Reshaped(node.inputs[0], node.output)


def _transpose(node: Node, shapes: Shapes) -> Iterator[Fact]:
    for axis, source in enumerate(ints(node.attrs, "perm")):
        yield Alike(Axis(node.inputs[0], source), Axis(node.output, axis))


def _slice(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Lets one of several equal runs take part in the order within each of them; any other cut leaves nothing free."""
    x, y = node.inputs[0], node.output
    starts, stops, steps = (ints(node.attrs, name) for name in ("starts", "stops", "steps"))
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        whole, size = shapes(x)[axis], stop - start
        if (start, stop, step) == (0, whole, 1):
            yield Alike(Axis(x, axis), Axis(y, axis))
        elif step == 1 and size and whole % size == 0 and start % size == 0:
            yield Fixed(Axis(x, axis, "outer", whole // size))
            yield Alike(Axis(x, axis, "inner", whole // size), Axis(y, axis))
        else:
            yield Stems(Axis(x, axis), Axis(y, axis))


def _concat(node: Node, shapes: Shapes) -> Iterator[Fact]:
    along, y = integer(node.attrs, "axis"), node.output
    extents, count = {shapes(value)[along] for value in node.inputs}, len(node.inputs)
    for value in node.inputs:
        for axis, extent in enumerate(shapes(y)):
            if axis != along or shapes(value)[axis] == extent:
                yield Alike(Axis(value, axis), Axis(y, axis))
            elif len(extents) == 1:
                yield Fixed(Axis(y, axis, "outer", count))
                yield Alike(Axis(value, axis), Axis(y, axis, "inner", count))
            else:
                yield Stems(Axis(value, axis), Axis(y, axis))


def _pad(node: Node, shapes: Shapes) -> Iterator[Fact]:
    for axis, added in enumerate(zip(ints(node.attrs, "before"), ints(node.attrs, "after"), strict=True)):
        kind = Stems if any(added) else Alike
        yield kind(Axis(node.inputs[0], axis), Axis(node.output, axis))


def _reduce(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Lets the elements that are summed come in any order."""
    x, y = node.inputs[0], node.output
    rank = len(shapes(x))
    reduced = {axis % rank for axis in ints(node.attrs, "axes")} if rank else set()
    remaining = [axis for axis in range(rank) if axis not in reduced]
    places = remaining if len(shapes(y)) == rank else range(len(remaining))
    for axis, place in zip(remaining, places, strict=True):
        yield Alike(Axis(x, axis), Axis(y, place))


def _last_summed(node: Node, shapes: Shapes) -> Iterator[Fact]:
    for axis in range(len(shapes(node.output))):
        yield Alike(Axis(node.inputs[0], axis), Axis(node.output, axis))


def _gather(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Rows are named by number, so they stay; the axes beside them, and those of the numbers, are free."""
    table, index = node.inputs
    along = integer(node.attrs, "axis") if "axis" in node.attrs else 0
    yield Fixed(Axis(table, along))
    ranks = len(shapes(table)), len(shapes(index))
    result = [
        *(Axis(table, axis) for axis in range(along)),
        *(Axis(index, axis) for axis in range(ranks[1])),
        *(Axis(table, axis) for axis in range(along + 1, ranks[0])),
    ]
    for axis, source in enumerate(result):
        yield Alike(source, Axis(node.output, axis))


def _matmul(node: Node, shapes: Shapes) -> Iterator[Fact]:
    (a, b), y = node.inputs, node.output
    ranks = len(shapes(a)), len(shapes(b)), len(shapes(y))
    if min(ranks) < 2:
        yield Unknown()
        return
    rows, inner = _matrix(a, ranks[0], transposed=bool(node.attrs.get("transpose_a")))
    inner_b, columns = _matrix(b, ranks[1], transposed=bool(node.attrs.get("transpose_b")))
    yield Alike(inner, inner_b)
    yield Alike(rows, Axis(y, ranks[2] - 2))
    yield Alike(columns, Axis(y, ranks[2] - 1))
    yield from _against(shapes, a, y, without=2)
    yield from _against(shapes, b, y, without=2)


def _matrix(value: Value, rank: int, *, transposed: bool) -> tuple[Axis, Axis]:
    rows, columns = Axis(value, rank - 2), Axis(value, rank - 1)
    return (columns, rows) if transposed else (rows, columns)


def _conv(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """x [N, H, W, groups * C], w [R, S, C, groups * O] (or [R, S, C] depth-wise), y [N, P, Q, groups * O]."""
    (x, w), y = node.inputs[:2], node.output
    yield Alike(Axis(x, 0), Axis(y, 0))
    yield from _windows(x, w, y)
    yield Alike(Axis(w, len(shapes(w)) - 1), Axis(y, 3))
    if len(shapes(w)) == 3:
        yield Alike(Axis(x, 3), Axis(y, 3))
        return
    groups = shapes(x)[3] // shapes(w)[2]
    yield Alike(_within(x, groups), Axis(w, 2))
    if groups > 1:
        yield Alike(Axis(x, 3, "outer", groups), Axis(y, 3, "outer", groups))


def _transposed_conv(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """d_y [N, P, Q, groups * O], w as of a convolution -> d_x [N, H, W, groups * C]."""
    (d_y, w), d_x = node.inputs[:2], node.output
    yield Alike(Axis(d_y, 0), Axis(d_x, 0))
    yield from _windows(d_y, w, d_x)
    yield Alike(Axis(d_y, 3), Axis(w, len(shapes(w)) - 1))
    if len(shapes(w)) == 3:
        yield Alike(Axis(d_y, 3), Axis(d_x, 3))
        return
    groups = shapes(d_x)[3] // shapes(w)[2]
    yield Alike(Axis(w, 2), _within(d_x, groups))
    if groups > 1:
        yield Alike(Axis(d_y, 3, "outer", groups), Axis(d_x, 3, "outer", groups))


def _windows(x: Value, w: Value, y: Value) -> Iterator[Fact]:
    for axis in (Axis(x, 1), Axis(x, 2), Axis(y, 1), Axis(y, 2), Axis(w, 0), Axis(w, 1)):
        yield Fixed(axis)


def _within(value: Value, groups: int) -> Axis:
    """The channels of each group."""
    return Axis(value, 3) if groups == 1 else Axis(value, 3, "inner", groups)


def _pool(node: Node, shapes: Shapes) -> Iterator[Fact]:
    x, y = node.inputs[0], node.output
    yield from _fixed(shapes, *node.inputs[1:])
    for axis in (1, 2):
        yield Fixed(Axis(x, axis))
        yield Fixed(Axis(y, axis))
    yield Alike(Axis(x, 0), Axis(y, 0))
    yield Alike(Axis(x, 3), Axis(y, 3))


def _attention(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """q [B, T, H, D], k [B, S, G, D], v [B, S, G, E], mask [B, H, T, S] or 1 there -> y [B, T, H, E], [B, H, 2, T]."""
    (q, k, v, *masks), (y, stats) = node.inputs, node.outputs
    yield Stems(Axis(q, 1), Axis(y, 1))
    places = [Axis(k, 1), Axis(v, 1), *(Axis(tensor, axis) for tensor in (stats, *masks) for axis in (2, 3))]
    yield from (Fixed(place) for place in places)
    for operand in (k, v, *masks):
        if shapes(operand)[0] == shapes(q)[0]:
            yield Alike(Axis(operand, 0), Axis(q, 0))
    yield from (Alike(Axis(q, 0), Axis(output, 0)) for output in (y, stats))
    yield Alike(Axis(q, 3), Axis(k, 3))
    yield Alike(Axis(v, 3), Axis(y, 3))
    yield Alike(Axis(k, 2), Axis(v, 2))
    yield Alike(Axis(q, 2), Axis(y, 2))
    yield Alike(Axis(q, 2), Axis(stats, 1))
    for mask in masks:
        if shapes(mask)[1] == shapes(q)[2]:
            yield Alike(Axis(mask, 1), Axis(q, 2))
    yield Alike(Axis(q, 2, "outer", shapes(k)[2]), Axis(k, 2))


def _along(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Neighbours along one axis count there; everything else goes its own way."""
    y, rank = node.output, len(shapes(node.output))
    along = integer(node.attrs, "axis") % rank
    operands = node.inputs if node.op == "linear_scan" else node.inputs[:1]
    yield from _fixed(shapes, *node.inputs[len(operands) :])
    for value in operands:
        for axis in range(rank):
            kind = Stems if axis == along else Alike
            yield kind(Axis(value, axis), Axis(y, axis))


def _recurrence(node: Node, shapes: Shapes) -> Iterator[Fact]:
    """Positions and samples are the input's, the state's width is that of the weights; gates lie side by side."""
    (x, weights), y = node.inputs[:2], node.outputs[0]
    yield from _fixed(shapes, *node.inputs, *node.outputs)
    yield Stems(Axis(x, 0), Axis(y, 0))
    yield Stems(Axis(x, 1), Axis(y, 1))
    yield Stems(Axis(weights, 1), Axis(y, 2))


_ALIKE: Sequence[str] = (
    "softmax",
    "safe_softmax",
    "log_softmax",
    "normalize",
    "rms_normalize",
    "layer_norm",
    "batch_norm",
    "held",
    "statistic",
    "broadcast_to",
)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((record.name for record in ELEMENTWISE), _elementwise),
    **dict.fromkeys(_ALIKE, _elementwise),
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
    "recurrence": _recurrence,
}
"""Operator -> what it does with its axes."""
VIEWS = frozenset({"identity", "reshape", "transpose"})
"""Operators that hand on every element of their operand, once, and nothing else."""
