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
    """Imports a node that selects rows or reads selected ones. Returns False if it does neither. Raises:
    UnsupportedOperator.
    """
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
    selections = [
        (reader.selected(index), index) for index in range(len(reader.node.inputs)) if reader.node.inputs[index]
    ]
    if any(selection is not None and selection.axis is None for selection, _ in selections):
        _counts(reader) if reader.node.op_type in ("Cast", "Identity") else reader.refuse()
        return
    first = next(selection for selection, _ in selections if selection is not None)
    rank = max(len(reader.shape(index)) for _, index in selections)
    axes = {
        selection.axis + rank - len(reader.shape(i))
        for selection, i in selections
        if selection is not None and selection.axis is not None
    }
    if len(axes) != 1 or any(selection is not None and selection.mask != first.mask for selection, _ in selections):
        reader.refuse()
    (axis,) = axes
    for selection, index in selections:
        place = axis - rank + len(reader.shape(index))
        if selection is None and place >= 0 and reader.shape(index)[place] != 1:
            reader.refuse()
    reader.import_selected(first, axis)


def _counts(reader: Reader) -> None:
    """Numbers of rows among other numbers: only put together, to say a shape."""
    for index in range(len(reader.node.inputs)):
        selection = reader.selected(index)
        if selection is not None and selection.axis is not None:
            reader.refuse()
    first = next(other for other in map(reader.selected, range(len(reader.node.inputs))) if other is not None)
    reader.import_selected(first, None)


def _shape(reader: Reader) -> None:
    selection = reader.only(0)
    if selection.axis is None:
        reader.run(reader.node)
        return
    rank = len(reader.shape(0))
    bounds = [reader.node.attributes.get(name, default) for name, default in (("start", 0), ("end", rank))]
    start, end = (bound + rank if isinstance(bound, int) and bound < 0 else bound for bound in bounds)
    if isinstance(start, int) and isinstance(end, int) and start <= selection.axis < end:
        reader.import_selected(selection, None)
    else:
        reader.run(reader.node)


def _cast_like(reader: Reader) -> None:
    selection = reader.selected(0)
    if selection is None:
        reader.run(reader.node)
    else:
        reader.import_selected(selection, selection.axis)


def _transpose(reader: Reader) -> None:
    selection = reader.only(0)
    if selection.axis is None:
        reader.refuse()
    rank = len(reader.shape(0))
    perm = reader.node.attributes.get("perm", tuple(reversed(range(rank))))
    reader.import_selected(selection, list(perm).index(selection.axis) if isinstance(perm, tuple) else reader.refuse())


def _axes_changed(reader: Reader) -> None:
    """Squeeze and Unsqueeze by known axes."""
    selection, axes = reader.only(0), reader.known_elements(1)
    if selection.axis is None:
        _counts(reader)
        return
    if axes is None:
        reader.refuse()
    rank, step = len(reader.shape(0)), axes.size if reader.node.op_type == "Unsqueeze" else 0
    places = sorted(int(axis) % (rank + step) for axis in axes.reshape(-1))
    if reader.node.op_type == "Squeeze":
        reader.refuse() if selection.axis in places else reader.import_selected(
            selection, selection.axis - sum(p < selection.axis for p in places)
        )
        return
    remaining = [place for place in range(rank + step) if place not in places]
    reader.import_selected(selection, remaining[selection.axis])


def _reshape(reader: Reader) -> None:
    """The first axis stays what it is."""
    selection = reader.selected(0)
    if selection is None or selection.axis != 0:
        reader.refuse()
    target_shape = reader.known_elements(1)
    count, *rest = reader.shape(0)
    if target_shape is not None and target_shape.tolist() == [-1] and rest:
        reader.import_selected(replace(selection, mask=spread(reader.scope, selection.mask, prod(rest))), 0)
        return
    if (
        target_shape is None
        or not target_shape.size
        or not (reader.selected(1) is not None or int(target_shape[0]) in (-1, 0))
    ):
        reader.refuse()
    inner = [int(extent) for extent in target_shape[1:]]
    if -1 in inner or prod(inner) * count != prod(reader.shape(0)):
        reader.refuse()
    reader.import_selected(selection, 0)


def _expand(reader: Reader) -> None:
    """Imports an Expand to more axes before the selected one, or of the others."""
    selection = reader.selected(0)
    if selection is None or selection.axis is None:
        reader.refuse()
    target_shape = reader.known_elements(1)
    if target_shape is None:
        _to_own_shape(reader, selection)
        return
    axis = selection.axis + max(target_shape.size - len(reader.shape(0)), 0)
    target_extent = (
        int(target_shape[axis - max(len(reader.shape(0)) - target_shape.size, 0)]) if target_shape.size else 1
    )
    if reader.selected(1) is None and target_extent != 1:
        reader.refuse()
    reader.import_selected(selection, axis)


def _to_own_shape(reader: Reader, selection: Selected) -> None:
    """Imports an Expand to the shape that the rows have: their number as the sum of the condition, and the extents of
    the other axes.
    """
    scope = reader.scope
    shape = scope.operands[reader.node.inputs[1]]
    joined = made_by(scope, shape) if isinstance(shape, Value) else None
    if joined is None or joined.op != "concat" or len(joined.inputs) != 2 or selection.axis != 0:
        reader.refuse()
    rest = scope.builder.arrays.get(joined.inputs[1])
    if rest is None or tuple(rest.tolist()) != reader.shape(0)[1:]:
        reader.refuse()
    source: Value = joined.inputs[0]
    sums = 0
    while source not in scope.masks:
        node = made_by(scope, source)
        if node is None or node.op not in ("reshape", "cast", "reduce_sum"):
            reader.refuse()
        sums += node.op == "reduce_sum"
        source = node.inputs[0]
    if sums != 1 or scope.masks[source] != selection.mask:
        reader.refuse()
    scope.operands[reader.node.outputs[0]] = scope.operands[reader.node.inputs[0]]
    scope.selected[reader.node.outputs[0]] = selection


def _product(reader: Reader) -> None:
    """Rows times a matrix."""
    selection = reader.only(0)
    transposed = bool(reader.node.attributes.get("transA", 0))
    if selection.axis is None or transposed or selection.axis == len(reader.shape(0)) - 1 or len(reader.shape(1)) > 2:
        reader.refuse()
    added = reader.shape(2) if len(reader.node.inputs) > 2 and reader.node.inputs[2] else ()
    if len(added) == 2 and added[0] != 1:
        reader.refuse()
    reader.import_selected(selection, selection.axis)


def _along(reader: Reader) -> None:
    """Norms and softmax over later axes."""
    selection = reader.only(0)
    axis = reader.axis("axis", _ALONG[reader.node.op_type], len(reader.shape(0)))
    softmax = reader.node.op_type.endswith("Softmax")
    if (
        selection.axis is None
        or len(reader.node.outputs) > 1
        or (axis == selection.axis if softmax else axis <= selection.axis)
    ):
        reader.refuse()
    reader.import_selected(selection, selection.axis)


def _slice(reader: Reader) -> None:
    selection, axes = reader.only(0), reader.known_elements(3)
    if selection.axis is None:
        _counts(reader)
        return
    rank = len(reader.shape(0))
    starts = reader.known_elements(1)
    if starts is None:
        reader.refuse()
    touched = range(starts.size) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    reader.refuse() if selection.axis in touched else reader.import_selected(selection, selection.axis)


def _concat(reader: Reader) -> None:
    count = len(reader.node.inputs)
    selections = [reader.selected(index) for index in range(count)]
    first = next(selection for selection in selections if selection is not None)
    if first.axis is None:
        _counts(reader)
        return
    if (
        any(selection != first for selection in selections)
        or reader.axis("axis", 0, len(reader.shape(0))) == first.axis
    ):
        reader.refuse()
    reader.import_selected(first, first.axis)


def _split(reader: Reader) -> None:
    selection = reader.only(0)
    if selection.axis is None or reader.axis("axis", 0, len(reader.shape(0))) == selection.axis:
        reader.refuse()
    reader.import_selected(selection, selection.axis)


# ---------------------------------------------------------------------------------------------------------- picking


def _gather(reader: Reader) -> None:
    data, index = reader.selected(0), reader.selected(1)
    axis = reader.axis("axis", 0, len(reader.shape(0)))
    if data is not None and data.axis is None and index is None:
        _counts(reader)
    elif data is None and index is not None and index.axis is not None:
        _picked(reader, index, axis + index.axis)
    elif data is not None and index is None and data.axis is not None and data.axis != axis:
        reader.import_selected(data, data.axis + (len(reader.shape(1)) - 1 if data.axis > axis else 0))
    else:
        reader.refuse()


def _gather_nd(reader: Reader) -> None:
    selection = reader.only(1)
    if (
        selection.axis is None
        or selection.axis == len(reader.shape(1)) - 1
        or reader.node.attributes.get("batch_dims", 0)
    ):
        reader.refuse()
    _picked(reader, selection, selection.axis)


def _picked(reader: Reader, selection: Selected, axis: int) -> None:
    """Imports a pick of elements; rows that were not meant are filled, so that no gradient and no pole is there."""
    reader.import_selected(selection, axis)
    name = reader.node.outputs[0]
    output = reader.scope.operands[name]
    if isinstance(output, Value) and reader.scope.builder.types[output].dtype == "f32":
        reader.scope.operands[name] = filled(reader.scope, output, replace(selection, axis=axis), _FILLER)


# ------------------------------------------------------------------------------------------------------ back to all


def _reduce(reader: Reader) -> None:
    """Imports a reduction over later axes row by row; a sum over the rows leaves the others out."""
    selection, axes = reader.only(0), reader.known_elements(1)
    rank = len(reader.shape(0))
    if selection.axis is None or (axes is None and len(reader.node.inputs) > 1 and reader.node.inputs[1]):
        reader.refuse()
    attribute = reader.node.attributes.get("axes")
    listed = axes.reshape(-1) if axes is not None else attribute if isinstance(attribute, tuple) else range(rank)
    places = sorted({int(axis) % rank for axis in listed})
    if selection.axis in places:
        if reader.node.op_type not in ("ReduceSum", "ReduceSumSquare", "ReduceL2"):
            reader.refuse()
        reader.run(reader.masked(0, 0.0))
        return
    keeps = bool(reader.node.attributes.get("keepdims", 1))
    reader.import_selected(
        selection, selection.axis - (0 if keeps else sum(place < selection.axis for place in places))
    )


def _put_back(reader: Reader) -> None:
    """ScatterND: updates that were not meant add nothing, or put there what is there."""
    index, updates = reader.selected(1), reader.selected(2)
    places = reader.known_elements(1)
    kind = reader.node.attributes.get("reduction", "none")
    if reader.selected(0) is not None or index is None or index.axis != 0 or places is None or places.ndim != 2:
        reader.refuse()
    if updates is None or updates.axis != 0 or updates.mask != index.mask:
        reader.refuse()
    if kind == "add":
        reader.run(reader.masked(2, 0.0))
        return
    if kind != "none" or len(np.unique(places, axis=0)) != len(places):
        reader.refuse()
    scope, node = reader.scope, reader.node
    there = free_name(f"{node.name}@there", scope.used_names)
    scope.used_names.add(there)
    reader.run(SourceNode(f"{node.name} there", "GatherND", (node.inputs[0], node.inputs[1]), (there,), {}))
    new, old = scope.value(scope.operands[node.inputs[2]]), scope.value(scope.operands[there])
    shape = scope.builder.shape(old)
    meant = scope.emit("reshape", updates.mask, shape=(shape[0], *(1 for _ in shape[1:])))
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
    selected_name = next((name for name in names if name in scope.selected), "")
    if selected_name:
        raise UnsupportedOperator(
            f"{selected_name!r} has as many rows as a condition selects while the step runs",
            where=where,
            hint="keep all rows, and a mask beside them",
        )
