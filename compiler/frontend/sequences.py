"""Sequences of tensors that are only taken apart again: each piece becomes a slice.

PyTorch's exporter, not optimizing, writes `split`, `chunk` and `unbind` as SplitToSequence and SequenceAt.
Rewrites: SequenceAt(SplitToSequence(x, sizes), i) -> Slice(x), squeezed for `keepdims=0`. Requires: sizes and positions
that the file holds. Ensures: nothing about other sequences, which stay, and which the import refuses by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from compiler.frontend.source import SourceModel, SourceNode, free_name
from compiler.graph import Array


@dataclass(frozen=True, slots=True)
class _Split:
    """What a SplitToSequence does: pieces of `sizes` (one number: all of that size) along an axis."""

    x: str
    axis: int
    sizes: Array
    squeezed: bool

    def bounds(self, position: int) -> tuple[int, int] | None:
        """First and past-the-last index of a piece, or None if the sizes do not tell."""
        if self.sizes.ndim == 0:
            return (position * int(self.sizes), (position + 1) * int(self.sizes)) if position >= 0 else None
        ends = np.cumsum(self.sizes)
        if not -len(ends) <= position < len(ends):
            return None
        return int(ends[position] - self.sizes[position]), int(ends[position])


def without_sequences(source: SourceModel) -> SourceModel:
    """The model with pieces of split tensors as slices; unchanged if it has no sequences."""
    splits = {node.outputs[0]: node for node in source.nodes if node.op_type == "SplitToSequence" and node.outputs}
    if not splits:
        return source
    known = _constants(source)
    initializers, names = dict(source.initializers), source.value_names()
    nodes: list[SourceNode] = []
    for node in source.nodes:
        taken = splits.get(node.operand(0)) if node.op_type == "SequenceAt" else None
        split = None if taken is None else _split(taken, known)
        position = None if split is None else known.get(node.operand(1))
        bounds = None if split is None or position is None else split.bounds(int(position.reshape(-1)[0]))
        nodes += [node] if split is None or bounds is None else _slice(node, split, bounds, initializers, names)
    read = {name for node in nodes for name in node.inputs}
    kept = tuple(node for node in nodes if node.op_type != "SplitToSequence" or node.outputs[0] in read)
    return replace(source, nodes=kept, initializers=initializers)


def _constants(source: SourceModel) -> dict[str, Array]:
    """Integers that the file holds, as initializers or Constant nodes."""
    found = {name: array for name, array in source.initializers.items() if array.dtype.kind == "i"}
    for node in source.nodes:
        value = node.attributes.get("value", node.attributes.get("value_int", node.attributes.get("value_ints")))
        if node.op_type == "Constant" and value is not None and np.asarray(value).dtype.kind == "i":
            found[node.outputs[0]] = np.asarray(value)
    return found


def _split(node: SourceNode, known: dict[str, Array]) -> _Split | None:
    axis, keep = node.attributes.get("axis", 0), node.attributes.get("keepdims", 1)
    given = len(node.inputs) > 1 and node.inputs[1] != ""
    sizes = known.get(node.inputs[1]) if given else np.asarray(1)
    if sizes is None or sizes.ndim > 1 or not isinstance(axis, int) or not bool((sizes > 0).all()):
        return None
    return _Split(node.operand(0), axis, sizes, squeezed=not given and keep == 0)


def _slice(
    node: SourceNode, split: _Split, bounds: tuple[int, int], initializers: dict[str, Array], taken: set[str]
) -> list[SourceNode]:
    (output,) = node.outputs
    operands = {"start": [bounds[0]], "end": [bounds[1]], "axis": [split.axis]}
    names = {what: free_name(f"{output}:{what}", taken) for what in operands}
    initializers.update({names[what]: np.asarray(value, np.int64) for what, value in operands.items()})
    piece = free_name(f"{output}:piece", taken) if split.squeezed else output
    inputs = (split.x, *names.values())
    made = [replace(node, op_type="Slice", inputs=inputs, outputs=(piece,), attributes={})]
    if split.squeezed:
        squeeze = (piece, names["axis"])
        made.append(replace(node, op_type="Squeeze", inputs=squeeze, outputs=(output,), attributes={}))
    return made
