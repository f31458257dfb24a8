"""What a selection of rows is made of: positions, a mask of those that were meant, and a node that reads such rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

import numpy as np

from compiler.errors import UnsupportedOperator
from compiler.frontend.call import Call
from compiler.frontend.file.source import SourceNode, free_name
from compiler.frontend.scope import Known, Scope, Selected
from compiler.graph import Array, Node
from compiler.values import Value

Run = Callable[[SourceNode], None]
"""Imports one node as if all rows were meant."""
_RECENT = 64


@dataclass(frozen=True, slots=True)
class Reader:
    """A node of which some operand is selected."""

    scope: Scope
    node: SourceNode
    run: Run

    def selected(self, index: int) -> Selected | None:
        """How the rows of an operand are selected; None if they are not."""
        return self.scope.selected.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def shape(self, index: int) -> tuple[int, ...]:
        """Shape of an operand, all rows counted."""
        return self.scope.shape(self.scope.operands[self.node.inputs[index]])

    def known(self, index: int) -> Array | None:
        """The elements of an operand, if they are known."""
        operand = self.scope.operands.get(self.node.inputs[index]) if index < len(self.node.inputs) else None
        return operand.array if isinstance(operand, Known) else None

    def axis(self, name: str, default: int, rank: int) -> int:
        """An attribute that says an axis, counted from the front."""
        given = self.node.attributes.get(name, default)
        return given % rank if isinstance(given, int) and rank else 0

    def refuse(self) -> NoReturn:
        """Raises: UnsupportedOperator."""
        raise UnsupportedOperator(
            "reads rows that a condition selects while the step runs, in a way that their number would change",
            where=self.node.where,
            hint="use torch.where with the condition over all rows, or a TopK of known size",
        )

    def kept(self, of: Selected, axis: int | None) -> None:
        """Import the node; its outputs are selected along `axis` (None: they are numbers of rows)."""
        self.run(self.node)
        for name in filter(None, self.node.outputs):
            self.scope.selected[name] = replace(of, axis=axis)

    def only(self, *indices: int) -> Selected:
        """The selection of these operands, if no other one is selected."""
        found = [self.selected(index) for index in indices]
        first = next((one for one in found if one is not None), None)
        others = any(self.selected(index) for index in range(len(self.node.inputs)) if index not in indices)
        return self.refuse() if first is None or others else first

    def masked(self, index: int, fill: float) -> SourceNode:
        """The node with `fill` in place of the rows of an operand that were not meant."""
        own = self.selected(index)
        name = self.node.inputs[index]
        assert own is not None
        assert own.axis is not None
        made = free_name(f"{name}@{self.node.name}", self.scope.taken)
        self.scope.taken.add(made)
        value = self.scope.value(self.scope.operands[name])
        self.scope.operands[made] = filled(self.scope, value, own, fill)
        return replace(self.node, inputs=(*self.node.inputs[:index], made, *self.node.inputs[index + 1 :]))


def select(scope: Scope, node: SourceNode, opset: int) -> None:
    """The positions of all elements, and which of them are not zero."""
    call = Call(scope, node, opset)
    mask, shape = call.value(0), call.shape(0)
    count = prod(shape)
    scope.require_foldable(count * max(len(shape), 1) * np.dtype(np.int64).itemsize, node.where)
    base, times = _repeats(scope, mask)
    if base not in scope.meant:
        true = mask
        if call.dtype(0) != "bool":
            true = call.emit("not", call.emit("equal", mask, call.scalar(0, mask)))
        scope.meant[base] = call.reshape(true, (count,))
    meant = spread(scope, scope.meant[base], times)
    places = np.stack([axis.reshape(-1) for axis in np.indices(shape)]) if shape else np.zeros((0, 1))
    scope.count_folded((places,), node.where)
    scope.operands[node.outputs[0]] = Known(node.outputs[0], places.astype(np.int64))
    scope.selected[node.outputs[0]] = Selected(meant, 1)
    scope.warn(
        "model.selected_rows",
        "selects rows by a condition: all rows are computed, and those not selected left out",
        where=node.where,
    )


def made_by(scope: Scope, value: Value) -> Node | None:
    """The node of a value, if it is one of the last: what is written beside a selection is made right before it."""
    recent = itertools.islice(reversed(scope.builder.nodes), _RECENT)
    return next((node for node in recent if value in node.outputs), None)


def _repeats(scope: Scope, mask: Value) -> tuple[Value, int]:
    """The condition that a mask repeats along new last axes, as `out[mask] = rows` is written, and how often."""
    wide = made_by(scope, mask)
    seen = made_by(scope, wide.inputs[0]) if wide is not None and wide.op == "broadcast_to" else None
    if wide is None or seen is None or seen.op != "reshape" or seen.inputs[0] not in scope.meant:
        return mask, 1
    base, shape = scope.builder.shape(seen.inputs[0]), scope.builder.shape(mask)
    more = len(shape) - len(base)
    if shape[: len(base)] != base or scope.builder.shape(wide.inputs[0]) != (*base, *(1 for _ in range(more))):
        return mask, 1
    return seen.inputs[0], prod(shape[len(base) :])


def spread(scope: Scope, meant: Value, times: int) -> Value:
    """Every element `times` in a row; the same value whenever it is asked for."""
    if times == 1:
        return meant
    if (meant, times) not in scope.spread:
        (count,) = scope.builder.shape(meant)
        wide = scope.emit("broadcast_to", scope.emit("reshape", meant, shape=(count, 1)), shape=(count, times))
        scope.spread[meant, times] = scope.emit("reshape", wide, shape=(count * times,))
    return scope.spread[meant, times]


def filled(scope: Scope, value: Value, own: Selected, fill: float) -> Value:
    shape = scope.builder.shape(value)
    assert own.axis is not None
    column = tuple(extent if axis == own.axis else 1 for axis, extent in enumerate(shape))
    meant = scope.emit("reshape", own.meant, shape=column)
    kind = np.float32 if scope.builder.types[value].dtype == "f32" else np.int64
    return scope.emit("where", meant, value, scope.constant(np.asarray(fill, kind)))
