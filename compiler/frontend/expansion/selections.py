"""Parts of a selection of rows: positions, a mask of those that were meant, and a node that reads such rows."""

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
from compiler.frontend.scope import KnownOperand, Scope, Selected
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
        """Returns how the rows of an operand are selected; None if they are not."""
        return self.scope.selected.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def shape(self, index: int) -> tuple[int, ...]:
        """Shape of an operand, all rows counted."""
        return self.scope.shape(self.scope.operands[self.node.inputs[index]])

    def known_elements(self, index: int) -> Array | None:
        """The elements of an operand, if they are known."""
        operand = self.scope.operands.get(self.node.inputs[index]) if index < len(self.node.inputs) else None
        return operand.array if isinstance(operand, KnownOperand) else None

    def axis(self, name: str, default: int, rank: int) -> int:
        """An attribute that says an axis, counted from the front."""
        attribute = self.node.attributes.get(name, default)
        return attribute % rank if isinstance(attribute, int) and rank else 0

    def refuse(self) -> NoReturn:
        """Raises: UnsupportedOperator."""
        raise UnsupportedOperator(
            "reads rows that a condition selects while the step runs, in a way that their number would change",
            where=self.node.where,
            hint="use torch.where with the condition over all rows, or a TopK of known size",
        )

    def import_selected(self, of: Selected, axis: int | None) -> None:
        """Imports the node; its outputs are selected along `axis` (None: they are numbers of rows)."""
        self.run(self.node)
        for name in filter(None, self.node.outputs):
            self.scope.selected[name] = replace(of, axis=axis)

    def only(self, *indices: int) -> Selected:
        """The selection of these operands, if no other one is selected."""
        selections = [self.selected(index) for index in indices]
        first = next((selection for selection in selections if selection is not None), None)
        others = any(self.selected(index) for index in range(len(self.node.inputs)) if index not in indices)
        return self.refuse() if first is None or others else first

    def masked(self, index: int, fill: float) -> SourceNode:
        """The node with `fill` in place of the rows of an operand that were not meant."""
        selection = self.selected(index)
        name = self.node.inputs[index]
        assert selection is not None
        assert selection.axis is not None
        masked_name = free_name(f"{name}@{self.node.name}", self.scope.used_names)
        self.scope.used_names.add(masked_name)
        value = self.scope.value(self.scope.operands[name])
        self.scope.operands[masked_name] = filled(self.scope, value, selection, fill)
        return replace(self.node, inputs=(*self.node.inputs[:index], masked_name, *self.node.inputs[index + 1 :]))


def select(scope: Scope, node: SourceNode, opset: int) -> None:
    """The positions of all elements, and which of them are not zero."""
    call = Call(scope, node, opset)
    mask, shape = call.value(0), call.shape(0)
    count = prod(shape)
    scope.require_foldable(count * max(len(shape), 1) * np.dtype(np.int64).itemsize, node.where)
    base, times = _repeats(scope, mask)
    if base not in scope.masks:
        true = mask
        if call.dtype(0) != "bool":
            true = call.emit("not", call.emit("equal", mask, call.scalar(0, mask)))
        scope.masks[base] = call.reshape(true, (count,))
    meant = spread(scope, scope.masks[base], times)
    places = np.stack([axis.reshape(-1) for axis in np.indices(shape)]) if shape else np.zeros((0, 1))
    scope.count_folded((places,), node.where)
    scope.operands[node.outputs[0]] = KnownOperand(node.outputs[0], places.astype(np.int64))
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
    reshaped = made_by(scope, wide.inputs[0]) if wide is not None and wide.op == "broadcast_to" else None
    if wide is None or reshaped is None or reshaped.op != "reshape" or reshaped.inputs[0] not in scope.masks:
        return mask, 1
    base, shape = scope.builder.shape(reshaped.inputs[0]), scope.builder.shape(mask)
    more = len(shape) - len(base)
    if shape[: len(base)] != base or scope.builder.shape(wide.inputs[0]) != (*base, *(1 for _ in range(more))):
        return mask, 1
    return reshaped.inputs[0], prod(shape[len(base) :])


def spread(scope: Scope, mask: Value, times: int) -> Value:
    """Returns a value with every element `times` in a row; the same value for the same operands."""
    if times == 1:
        return mask
    if (mask, times) not in scope.spread:
        (count,) = scope.builder.shape(mask)
        wide = scope.emit("broadcast_to", scope.emit("reshape", mask, shape=(count, 1)), shape=(count, times))
        scope.spread[mask, times] = scope.emit("reshape", wide, shape=(count * times,))
    return scope.spread[mask, times]


def filled(scope: Scope, value: Value, selection: Selected, fill: float) -> Value:
    shape = scope.builder.shape(value)
    assert selection.axis is not None
    column = tuple(extent if axis == selection.axis else 1 for axis, extent in enumerate(shape))
    mask = scope.emit("reshape", selection.mask, shape=column)
    kind = np.float32 if scope.builder.types[value].dtype == "f32" else np.int64
    return scope.emit("where", mask, value, scope.constant(np.asarray(fill, kind)))
