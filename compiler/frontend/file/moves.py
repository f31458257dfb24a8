"""The places that the elements of a value reach, as long as nodes only move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.frontend.file.source import SourceNode

Places = Mapping[str, Sequence[int]]
"""Operators, and inputs of theirs."""
EVERY = range(64)
MOVES: Places = {
    **dict.fromkeys(
        (
            "Cast",
            "CastLike",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Pad",
            "Reshape",
            "Slice",
            "Split",
            "Squeeze",
            "Tile",
            "Transpose",
            "Trilu",
            "Unsqueeze",
        ),
        (0,),
    ),
    "Concat": EVERY,
}
"""The operands whose elements a node passes on."""


def reaches_only(name: str, readers: Mapping[str, Sequence[SourceNode]], destinations: Places) -> bool:
    """Whether all nodes that the elements reach, moved or as they are, read them in one of the places."""
    pending, reached = [name], {name}
    while pending:
        value = pending.pop()
        for node in readers.get(value, ()):
            places = {index for index, operand in enumerate(node.inputs) if operand == value}
            if places <= set(destinations.get(node.op_type, ())):
                continue
            if not places <= set(MOVES.get(node.op_type, ())):
                return False
            pending += [output for output in node.outputs if output not in reached]
            reached.update(node.outputs)
    return True
