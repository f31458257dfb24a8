"""Writes through a mask (`x[mask] = value`) as a choice between the value and what was there.

PyTorch's exporter writes the positions of the mask's ones (NonZero), as many copies of the value, and a ScatterND: how
many there are depends on data, though nothing of the result's shape does.
Rewrites: ScatterND(data, positions of a mask, copies of a value) -> Where(mask, value, data). Requires: a value that
the file holds, one element, or a row of the axes behind the mask's. Ensures: every other scatter stays. Why: shapes are
static.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.graph import Array

_SAME = ("Cast", "CastLike", "Identity")


def select_masked_writes(source: SourceModel) -> SourceModel:
    """The model with choices in place of writes through masks; unchanged if it has none."""
    if not any(node.op_type == "NonZero" for node in source.nodes):
        return source
    chain = _Chain(source)
    nodes = [chain.chosen(node) if node.op_type == "ScatterND" else node for node in source.nodes]
    return source if not chain.unread else replace(source, nodes=_without_unread(nodes, chain.unread, source.outputs))


class _Chain:
    """The nodes that made a value, one by one."""

    def __init__(self, source: SourceModel) -> None:
        self.initializers: Mapping[str, Array] = source.initializers
        self.makers = {name: node for node in source.nodes for name in node.outputs}
        self.unread: set[str] = set()
        """Names that scatters read that are gone."""

    def chosen(self, scatter: SourceNode) -> SourceNode:
        """Returns a Where in place of a scatter that is a write through a mask, else the same node."""
        inputs = self._written(scatter)
        if inputs is None:
            return scatter
        self.unread.update(scatter.inputs[1:])
        return replace(scatter, op_type="Where", inputs=(*inputs, scatter.operand(0)), attributes={})

    def _written(self, scatter: SourceNode) -> tuple[str, str] | None:
        """Names of the mask and the value. One axis of updates: the positions name every axis of the data."""
        positions = self._maker(self._maker(scatter, 1, "Transpose"), 0, "NonZero")
        flat = self._maker(scatter, 2, "Reshape")
        copies = self._maker(flat, 0, "Expand")
        target = self._stored(flat.operand(1)) if flat is not None else None
        plain = scatter.attributes.get("reduction", "none") == "none"
        if positions is None or copies is None or target is None or target.size != 1 or not plain:
            return None
        value = self._stored(copies.operand(0))
        if value is None or (value.size != 1 and value.ndim > self._axes_behind(positions)):
            return None
        return (positions.operand(0), copies.operand(0)) if self._counts(copies, positions) else None

    def _counts(self, copies: SourceNode, positions: SourceNode) -> bool:
        """Whether there are as many copies as the mask has ones (for each, what lies behind the mask's axes)."""
        joined = self._maker(copies, 1, "Concat")
        count = self._maker(copies, 1, "ReduceSum") if joined is None else self._maker(joined, 0, "ReduceSum")
        mask_view = self._maker(self._maker(count, 0, "Cast"), 0, "Reshape")
        mask = positions.operand(0)
        return mask_view is not None and mask_view.operand(0) in (mask, self._through(mask, "Expand", "Unsqueeze"))

    def _axes_behind(self, positions: SourceNode) -> int:
        """Returns how many axes of the data the mask does not have: those that it was given before it was spread."""
        spread = self._maker(positions, 0, "Expand")
        added = self._maker(spread, 0, "Unsqueeze")
        axes = self._stored(added.operand(1)) if added is not None else None
        return 0 if axes is None else int(axes.size)

    def _through(self, name: str, *kinds: str) -> str:
        for kind in kinds:
            maker = self.makers.get(name)
            name = maker.operand(0) if maker is not None and maker.op_type == kind else name
        return name

    def _maker(self, node: SourceNode | None, index: int, op_type: str) -> SourceNode | None:
        maker = self.makers.get(node.operand(index)) if node is not None else None
        return maker if maker is not None and maker.op_type == op_type else None

    def _stored(self, name: str) -> Array | None:
        """A tensor that the file holds, also behind nodes that keep its elements."""
        maker = self.makers.get(name)
        while maker is not None and maker.op_type in _SAME:
            name = maker.operand(0)
            maker = self.makers.get(name)
        if maker is None:
            return self.initializers.get(name)
        arrays = [
            np.asarray(value) for value in maker.attributes.values() if isinstance(value, np.ndarray | int | tuple)
        ]
        return arrays[0] if maker.op_type == "Constant" and len(arrays) == 1 else None


def _without_unread(nodes: list[SourceNode], unread: set[str], outputs: tuple[str, ...]) -> tuple[SourceNode, ...]:
    """The nodes without those that only made what is read no more."""
    readers: dict[str, int] = dict.fromkeys(outputs, 1)
    for node in nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1
    remaining, spare = [], set(unread)
    for node in reversed(nodes):
        if not spare.isdisjoint(node.outputs) and not any(readers.get(name) for name in node.outputs):
            spare.update(node.inputs)
            for name in node.inputs:
                readers[name] -= 1
        else:
            remaining.append(node)
    return tuple(reversed(remaining))
