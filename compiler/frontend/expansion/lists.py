"""Sequences of tensors whose lengths and positions the file decides: lists of names while a model is imported.

No graph value is a sequence: what is taken out of one is the tensor that was put in. Optional values are the same, with
at most one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.expansion.bodies import place
from compiler.frontend.file.source import Body, SourceNode, free_name
from compiler.frontend.scope import KnownOperand, Scope

Run = Callable[[Sequence[SourceNode]], None]
_MOST = 4096
"""Tensors of one sequence."""


def _construct(scope: Scope, node: SourceNode, run: Run) -> None:
    for name in node.inputs:
        _tensor(scope, node, name)
    _keep(scope, node, tuple(node.inputs))


def _empty(scope: Scope, node: SourceNode, run: Run) -> None:
    _keep(scope, node, ())


def _insert(scope: Scope, node: SourceNode, run: Run) -> None:
    items, new = _items(scope, node), _tensor(scope, node, node.operand(1))
    at = _position(scope, node, 2, len(items), end=True)
    _keep(scope, node, (*items[:at], new, *items[at:]))


def _erase(scope: Scope, node: SourceNode, run: Run) -> None:
    items = _items(scope, node)
    at = _position(scope, node, 1, len(items)) if node.operand(1) else len(items) - 1
    _keep(scope, node, (*items[:at], *items[at + 1 :]))


def _at(scope: Scope, node: SourceNode, run: Run) -> None:
    items = _items(scope, node)
    scope.same(node.outputs[0], items[_position(scope, node, 1, len(items))])


def _length(scope: Scope, node: SourceNode, run: Run) -> None:
    scope.operands[node.outputs[0]] = KnownOperand(node.outputs[0], np.asarray(len(_items(scope, node)), np.int64))


def _concatenate(scope: Scope, node: SourceNode, run: Run) -> None:
    """The tensors side by side, along a new axis if asked."""
    items, axis = list(_items(scope, node)), node.attributes.get("axis", 0)
    if not items:
        raise ModelError("joins a sequence of no tensor", where=node.where)
    if node.attributes.get("new_axis", 0):
        where = _constant(scope, node, np.asarray([axis]))
        raised = [free_name(f"{node.name}/part", scope.used_names) for _ in items]
        run(
            [
                SourceNode(node.name, "Unsqueeze", (item, where), (output,))
                for item, output in zip(items, raised, strict=True)
            ]
        )
        items = raised
    run([SourceNode(node.name, "Concat", tuple(items), node.outputs[:1], {"axis": axis})])


def _split(scope: Scope, node: SourceNode, run: Run) -> None:
    """Pieces of one tensor; without sizes each of extent 1, whose axis goes with `keepdims` 0."""
    x = _tensor(scope, node, node.operand(0))
    shape, axis = scope.shape(scope.operands[x]), node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise ModelError(f"axis {axis} of a tensor of rank {len(shape)}", where=node.where)
    sizes = _sizes(scope, node, shape[axis])
    pieces = tuple(free_name(f"{node.outputs[0]}[{i}]", scope.used_names) for i in range(len(sizes)))
    split_sizes = _constant(scope, node, np.asarray(sizes))
    run([SourceNode(node.name, "Split", (x, split_sizes), pieces, {"axis": axis})])
    if not node.operand(1) and not node.attributes.get("keepdims", 1):
        where = _constant(scope, node, np.asarray([axis]))
        flat = tuple(free_name(piece, scope.used_names) for piece in pieces)
        run([SourceNode(node.name, "Squeeze", (a, where), (b,)) for a, b in zip(pieces, flat, strict=True)])
        pieces = flat
    _keep(scope, node, pieces)


def _sizes(scope: Scope, node: SourceNode, extent: int) -> list[int]:
    if not node.operand(1):
        _check_length(node, extent)
        return [1] * extent
    sizes = _known_operand(scope, node, 1, "the sizes")
    if sizes.ndim:
        return [int(size) for size in sizes]
    size = int(sizes)
    if size < 1:
        raise ModelError(f"splits into pieces of {size}", where=node.where)
    _check_length(node, -(-extent // size))
    return [min(size, extent - start) for start in range(0, extent, size)]


def _map(scope: Scope, node: SourceNode, run: Run) -> None:
    """The body once for each tensor of the first sequence, and of the others beside it."""
    body = node.attributes.get("body")
    first = min(body.captured.values(), default=len(node.inputs)) if isinstance(body, Body) else 0
    sequences = node.inputs[:first]
    if not isinstance(body, Body) or len(sequences) != len(body.inputs):
        raise ModelError("its body does not fit its inputs", where=node.where)
    count = len(_items(scope, node))
    columns = [scope.sequences.get(name, (name,) * count) for name in sequences]
    if any(len(column) != count for column in columns):
        raise ModelError("its sequences differ in length", where=node.where)
    results: list[tuple[str, ...]] = []
    captured = {name: node.inputs[position] for name, position in body.captured.items()}
    for items in zip(*columns, strict=True):
        actual = {**captured, **dict(zip(body.inputs, items, strict=True))}
        nodes, outputs = place(body, actual, (), node.name, scope.used_names)
        run(nodes)
        results.append(outputs)
    for position, name in enumerate(node.outputs):
        if name:
            scope.sequences[name] = tuple(outputs[position] for outputs in results)


def _optional(scope: Scope, node: SourceNode, run: Run) -> None:
    if node.operand(0):
        scope.same(node.outputs[0], node.inputs[0])
    else:
        _keep(scope, node, ())


def _get(scope: Scope, node: SourceNode, run: Run) -> None:
    scope.same(node.outputs[0], node.operand(0))


def _has(scope: Scope, node: SourceNode, run: Run) -> None:
    name = node.operand(0)
    there = bool(name) and (name in scope.operands or bool(scope.sequences[name]))
    scope.operands[node.outputs[0]] = KnownOperand(node.outputs[0], np.asarray(there))


# ---------------------------------------------------------------------------------------------------------------- parts


def _keep(scope: Scope, node: SourceNode, items: tuple[str, ...]) -> None:
    _check_length(node, len(items))
    scope.sequences[node.outputs[0]] = items


def _check_length(node: SourceNode, count: int) -> None:
    if count > _MOST:
        raise UnsupportedOperator(f"a sequence of {count:,} tensors; at most {_MOST:,} are supported", where=node.where)


def _items(scope: Scope, node: SourceNode) -> tuple[str, ...]:
    if node.operand(0) not in scope.sequences:
        raise ModelError(f"reads {node.operand(0)!r}, which is no sequence of tensors", where=node.where)
    return scope.sequences[node.operand(0)]


def _tensor(scope: Scope, node: SourceNode, name: str) -> str:
    if name not in scope.operands:
        raise UnsupportedOperator(f"reads {name!r}, which is no tensor", where=node.where)
    return name


def _known_operand(scope: Scope, node: SourceNode, index: int, what: str) -> np.ndarray:
    operand = scope.operands.get(node.operand(index))
    if not isinstance(operand, KnownOperand) or operand.array.dtype.kind not in "iu" or operand.array.ndim > 1:
        raise UnsupportedOperator(
            f"{what} ({node.operand(index)!r}) must be integers that are known",
            where=node.where,
            hint="bind the input shapes in the spec, or export with static shapes",
        )
    return operand.array


def _position(scope: Scope, node: SourceNode, index: int, length: int, *, end: bool = False) -> int:
    """A position in a sequence, counted from its front; its end where none is given."""
    if not node.operand(index) and end:
        return length
    at = int(_known_operand(scope, node, index, "the position").reshape(-1)[0])
    if not -length <= at < length + end:
        raise ModelError(f"position {at} of a sequence of {length}", where=node.where)
    return at + length if at < 0 else at


def _constant(scope: Scope, node: SourceNode, array: np.ndarray) -> str:
    name = free_name(f"{node.name}/constant", scope.used_names)
    scope.operands[name] = KnownOperand(name, array)
    return name


LISTS: Mapping[str, Callable[[Scope, SourceNode, Run], None]] = {
    "ConcatFromSequence": _concatenate,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}
