"""Rows that a condition selects while a step runs: all of them are computed, and what was not selected counts nothing.

`torch.where(mask)` and `x[mask]` are exported as NonZero, whose number of results only the step knows. Here its results
are the positions of all elements, which are known, with a mask of those that were meant. A tensor whose axis runs over
them is *selected*: operators that treat its rows one by one do so; what adds rows up, or puts them back, leaves the
others out. Nothing else may read such a tensor: it would see rows that are not there.

Rows that were not meant read 0.5 in place of what they pick, where no function of practice has a pole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from compiler.errors import UnsupportedOperator
from compiler.frontend.expansion.selections import Reader, Run, filled, made_by, select, spread
from compiler.frontend.file.source import SourceNode, free_name
from compiler.frontend.scope import Scope, Selected
from compiler.values import Value

_FILLER = 0.5
_BY_ELEMENT = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Sum",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    }
)
_ALONG = {"Softmax": -1, "LogSoftmax": -1, "LayerNormalization": -1, "RMSNormalization": -1}
_REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


def read_selected(scope: Scope, node: SourceNode, opset: int, run: Run) -> bool:
    """Import a node that selects rows or reads selected ones; False if it does neither. Raises: UnsupportedOperator."""
    if node.op_type == "NonZero" and isinstance(scope.operands.get(node.inputs[0]), Value):
        if node.inputs[0] in scope.selected:
            Reader(scope, node, run).refuse()
        select(scope, node, opset)
        return True
    if not any(name in scope.selected for name in node.inputs):
        return False
    reader = Reader(scope, node, run)
    if node.op_type in _BY_ELEMENT:
        _by_element(reader)
    else:
        _RULES.get(node.op_type, Reader.refuse)(reader)
    return True


# ------------------------------------------------------------------------------------------------------------- by rows


def _by_element(reader: Reader) -> None:
    """The selected axis of every operand, seen from the end, is the same; the others do not have it."""
    found = [(reader.selected(index), index) for index in range(len(reader.node.inputs)) if reader.node.inputs[index]]
    if any(own is not None and own.axis is None for own, _ in found):
        _counts(reader) if reader.node.op_type in ("Cast", "Identity") else reader.refuse()
        return
    first = next(own for own, _ in found if own is not None)
    rank = max(len(reader.shape(index)) for _, index in found)
    axes = {own.axis + rank - len(reader.shape(i)) for own, i in found if own is not None and own.axis is not None}
    if len(axes) != 1 or any(own is not None and own.meant != first.meant for own, _ in found):
        reader.refuse()
    (axis,) = axes
    for own, index in found:
        place = axis - rank + len(reader.shape(index))
        if own is None and place >= 0 and reader.shape(index)[place] != 1:
            reader.refuse()
    reader.kept(first, axis)


def _counts(reader: Reader) -> None:
    """Numbers of rows among other numbers: only put together, to say a shape."""
    for index in range(len(reader.node.inputs)):
        own = reader.selected(index)
        if own is not None and own.axis is not None:
            reader.refuse()
    first = next(one for one in map(reader.selected, range(len(reader.node.inputs))) if one is not None)
    reader.kept(first, None)


def _shape(reader: Reader) -> None:
    own = reader.only(0)
    if own.axis is None:
        reader.run(reader.node)
        return
    rank = len(reader.shape(0))
    bounds = [reader.node.attributes.get(name, default) for name, default in (("start", 0), ("end", rank))]
    start, end = (bound + rank if isinstance(bound, int) and bound < 0 else bound for bound in bounds)
    if isinstance(start, int) and isinstance(end, int) and start <= own.axis < end:
        reader.kept(own, None)
    else:
        reader.run(reader.node)


def _cast_like(reader: Reader) -> None:
    own = reader.selected(0)
    if own is None:
        reader.run(reader.node)
    else:
        reader.kept(own, own.axis)


def _transpose(reader: Reader) -> None:
    own = reader.only(0)
    if own.axis is None:
        reader.refuse()
    rank = len(reader.shape(0))
    perm = reader.node.attributes.get("perm", tuple(reversed(range(rank))))
    reader.kept(own, list(perm).index(own.axis) if isinstance(perm, tuple) else reader.refuse())


def _axes_changed(reader: Reader) -> None:
    """Squeeze and Unsqueeze by known axes."""
    own, axes = reader.only(0), reader.known(1)
    if own.axis is None:
        _counts(reader)
        return
    if axes is None:
        reader.refuse()
    rank, step = len(reader.shape(0)), axes.size if reader.node.op_type == "Unsqueeze" else 0
    places = sorted(int(axis) % (rank + step) for axis in axes.reshape(-1))
    if reader.node.op_type == "Squeeze":
        reader.refuse() if own.axis in places else reader.kept(own, own.axis - sum(p < own.axis for p in places))
        return
    kept = [place for place in range(rank + step) if place not in places]
    reader.kept(own, kept[own.axis])


def _reshape(reader: Reader) -> None:
    """The first axis stays what it is."""
    own = reader.selected(0)
    if own is None or own.axis != 0:
        reader.refuse()
    given = reader.known(1)
    count, *rest = reader.shape(0)
    if given is not None and given.tolist() == [-1] and rest:
        reader.kept(replace(own, meant=spread(reader.scope, own.meant, prod(rest))), 0)
        return
    if given is None or not given.size or not (reader.selected(1) is not None or int(given[0]) in (-1, 0)):
        reader.refuse()
    inner = [int(extent) for extent in given[1:]]
    if -1 in inner or prod(inner) * count != prod(reader.shape(0)):
        reader.refuse()
    reader.kept(own, 0)


def _expand(reader: Reader) -> None:
    """To more axes before the selected one, or of the others."""
    own = reader.selected(0)
    if own is None or own.axis is None:
        reader.refuse()
    given = reader.known(1)
    if given is None:
        _to_own_shape(reader, own)
        return
    axis = own.axis + max(given.size - len(reader.shape(0)), 0)
    wanted = int(given[axis - max(len(reader.shape(0)) - given.size, 0)]) if given.size else 1
    if reader.selected(1) is None and wanted != 1:
        reader.refuse()
    reader.kept(own, axis)


def _to_own_shape(reader: Reader, own: Selected) -> None:
    """To the shape that it has: the number of rows as the sum of the condition, and the extents of the other axes."""
    scope = reader.scope
    shape = scope.operands[reader.node.inputs[1]]
    joined = made_by(scope, shape) if isinstance(shape, Value) else None
    if joined is None or joined.op != "concat" or len(joined.inputs) != 2 or own.axis != 0:
        reader.refuse()
    rest = scope.builder.arrays.get(joined.inputs[1])
    if rest is None or tuple(rest.tolist()) != reader.shape(0)[1:]:
        reader.refuse()
    made: Value = joined.inputs[0]
    sums = 0
    while made not in scope.meant:
        node = made_by(scope, made)
        if node is None or node.op not in ("reshape", "cast", "reduce_sum"):
            reader.refuse()
        sums += node.op == "reduce_sum"
        made = node.inputs[0]
    if sums != 1 or scope.meant[made] != own.meant:
        reader.refuse()
    scope.operands[reader.node.outputs[0]] = scope.operands[reader.node.inputs[0]]
    scope.selected[reader.node.outputs[0]] = own


def _product(reader: Reader) -> None:
    """Rows times a matrix."""
    own = reader.only(0)
    transposed = bool(reader.node.attributes.get("transA", 0))
    if own.axis is None or transposed or own.axis == len(reader.shape(0)) - 1 or len(reader.shape(1)) > 2:
        reader.refuse()
    added = reader.shape(2) if len(reader.node.inputs) > 2 and reader.node.inputs[2] else ()
    if len(added) == 2 and added[0] != 1:
        reader.refuse()
    reader.kept(own, own.axis)


def _along(reader: Reader) -> None:
    """Norms and softmax over later axes."""
    own = reader.only(0)
    axis = reader.axis("axis", _ALONG[reader.node.op_type], len(reader.shape(0)))
    softmax = reader.node.op_type.endswith("Softmax")
    if own.axis is None or len(reader.node.outputs) > 1 or (axis == own.axis if softmax else axis <= own.axis):
        reader.refuse()
    reader.kept(own, own.axis)


def _slice(reader: Reader) -> None:
    own, axes = reader.only(0), reader.known(3)
    if own.axis is None:
        _counts(reader)
        return
    rank = len(reader.shape(0))
    starts = reader.known(1)
    if starts is None:
        reader.refuse()
    touched = range(starts.size) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    reader.refuse() if own.axis in touched else reader.kept(own, own.axis)


def _concat(reader: Reader) -> None:
    count = len(reader.node.inputs)
    found = [reader.selected(index) for index in range(count)]
    first = next(one for one in found if one is not None)
    if first.axis is None:
        _counts(reader)
        return
    if any(own != first for own in found) or reader.axis("axis", 0, len(reader.shape(0))) == first.axis:
        reader.refuse()
    reader.kept(first, first.axis)


def _split(reader: Reader) -> None:
    own = reader.only(0)
    if own.axis is None or reader.axis("axis", 0, len(reader.shape(0))) == own.axis:
        reader.refuse()
    reader.kept(own, own.axis)


# ---------------------------------------------------------------------------------------------------------- picking


def _gather(reader: Reader) -> None:
    data, index = reader.selected(0), reader.selected(1)
    axis = reader.axis("axis", 0, len(reader.shape(0)))
    if data is not None and data.axis is None and index is None:
        _counts(reader)
    elif data is None and index is not None and index.axis is not None:
        _picked(reader, index, axis + index.axis)
    elif data is not None and index is None and data.axis is not None and data.axis != axis:
        reader.kept(data, data.axis + (len(reader.shape(1)) - 1 if data.axis > axis else 0))
    else:
        reader.refuse()


def _gather_nd(reader: Reader) -> None:
    own = reader.only(1)
    if own.axis is None or own.axis == len(reader.shape(1)) - 1 or reader.node.attributes.get("batch_dims", 0):
        reader.refuse()
    _picked(reader, own, own.axis)


def _picked(reader: Reader, own: Selected, axis: int) -> None:
    """What is picked; rows that were not meant are filled, so that no gradient and no pole is there."""
    reader.kept(own, axis)
    name = reader.node.outputs[0]
    made = reader.scope.operands[name]
    if isinstance(made, Value) and reader.scope.builder.types[made].dtype == "f32":
        reader.scope.operands[name] = filled(reader.scope, made, replace(own, axis=axis), _FILLER)


# ------------------------------------------------------------------------------------------------------ back to all


def _reduce(reader: Reader) -> None:
    """Over later axes row by row; a sum over the rows leaves the others out."""
    own, axes = reader.only(0), reader.known(1)
    rank = len(reader.shape(0))
    if own.axis is None or (axes is None and len(reader.node.inputs) > 1 and reader.node.inputs[1]):
        reader.refuse()
    given = reader.node.attributes.get("axes")
    listed = axes.reshape(-1) if axes is not None else given if isinstance(given, tuple) else range(rank)
    places = sorted({int(axis) % rank for axis in listed})
    if own.axis in places:
        if reader.node.op_type not in ("ReduceSum", "ReduceSumSquare", "ReduceL2"):
            reader.refuse()
        reader.run(reader.masked(0, 0.0))
        return
    keeps = bool(reader.node.attributes.get("keepdims", 1))
    reader.kept(own, own.axis - (0 if keeps else sum(place < own.axis for place in places)))


def _put_back(reader: Reader) -> None:
    """ScatterND: updates that were not meant add nothing, or put there what is there."""
    index, updates = reader.selected(1), reader.selected(2)
    places = reader.known(1)
    kind = reader.node.attributes.get("reduction", "none")
    if reader.selected(0) is not None or index is None or index.axis != 0 or places is None or places.ndim != 2:
        reader.refuse()
    if updates is None or updates.axis != 0 or updates.meant != index.meant:
        reader.refuse()
    if kind == "add":
        reader.run(reader.masked(2, 0.0))
        return
    if kind != "none" or len(np.unique(places, axis=0)) != len(places):
        reader.refuse()
    scope, node = reader.scope, reader.node
    there = free_name(f"{node.name}@there", scope.taken)
    scope.taken.add(there)
    reader.run(SourceNode(f"{node.name} there", "GatherND", (node.inputs[0], node.inputs[1]), (there,), {}))
    new, old = scope.value(scope.operands[node.inputs[2]]), scope.value(scope.operands[there])
    shape = scope.builder.shape(old)
    meant = scope.emit("reshape", updates.meant, shape=(shape[0], *(1 for _ in shape[1:])))
    scope.operands[there] = scope.emit("where", meant, new, old)
    reader.run(replace(node, inputs=(node.inputs[0], node.inputs[1], there)))


_RULES: Mapping[str, Callable[[Reader], None]] = {
    "CastLike": _cast_like,
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _product,
    "MatMul": _product,
    "Reshape": _reshape,
    "ScatterND": _put_back,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _axes_changed,
    "Transpose": _transpose,
    "Unsqueeze": _axes_changed,
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(_REDUCE, _reduce),
}


def refuse_selected(scope: Scope, names: Sequence[str], where: str) -> None:
    """Raises: UnsupportedOperator if one of these tensors has as many rows as only the step knows."""
    found = next((name for name in names if name in scope.selected), "")
    if found:
        raise UnsupportedOperator(
            f"{found!r} has as many rows as a condition selects while the step runs",
            where=where,
            hint="keep all rows, and a mask beside them",
        )
