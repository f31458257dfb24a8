"""Sums and maxima in vector accumulators: start values, combining, and folding a vector into one number."""

from __future__ import annotations

from typing import Literal

from tvm import tirx

from compiler.codegen.tir.expressions import extreme
from compiler.codegen.tir.tir import Block, Buffer, Value, base, lanes_of, literal, load
from compiler.element_types import ELEMENT_TYPES, NUMERIC

Combine = Literal["sum", "max"]
_LOWEST = {ELEMENT_TYPES[name].tir: ELEMENT_TYPES[name].lowest for name in NUMERIC}


def neutral(combine: Combine, element: str, lanes: int = 1) -> Value:
    """Returns the value from which combining starts."""
    return literal(0 if combine == "sum" else _LOWEST[element], element, lanes)


def combined(combine: Combine, x: Value, y: Value) -> Value:
    """`x + y` or the larger one (NaN if either is)."""
    return tirx.Add(x, y) if combine == "sum" else extreme("max", x, y)


def fold_lanes(block: Block, combine: Combine, vector: Value) -> Value:
    """Returns all lanes of a vector combined, in a tree."""
    lanes, element = lanes_of(vector), base(vector)
    if lanes == 1:
        return vector
    # Through the stack, from which LLVM makes shuffles: TVM has no portable one.
    buffer = block.local(lanes, element, "fold")
    block.store(buffer, 0, vector)
    while lanes > 1:
        lanes //= 2
        halves = (load(buffer, 0, lanes), load(buffer, lanes, lanes))
        block.store(buffer, 0, combined(combine, *(block.let(half, "half") for half in halves)))
    return block.let(load(buffer, 0), "folded")


class Accumulators:
    """A row of vector accumulators on the stack, which LLVM keeps in registers."""

    def __init__(self, block: Block, combine: Combine, element: str, count: int, lanes: int) -> None:
        self.combine, self.element, self.count, self.lanes = combine, element, count, lanes
        self.buffer: Buffer = block.local(count * lanes, element, "acc")
        self.clear(block)

    def clear(self, block: Block) -> None:
        """Back to the neutral value."""
        for number in range(self.count):
            block.store(self.buffer, number * self.lanes, neutral(self.combine, self.element, self.lanes))

    def get(self, number: int) -> Value:
        """Returns the value of one accumulator."""
        return load(self.buffer, number * self.lanes, self.lanes)

    def add(self, block: Block, number: int, value: Value) -> None:
        """Combines a value into one accumulator."""
        old = block.let(self.get(number), "a")
        block.store(self.buffer, number * self.lanes, combined(self.combine, old, value))

    def total(self, block: Block) -> Value:
        """Returns all accumulators combined in a tree, lane by lane."""
        values = [block.let(self.get(number), "t") for number in range(self.count)]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            rest = values[-1:] if len(values) % 2 else []
            values = [block.let(combined(self.combine, x, y), "t") for x, y in pairs] + rest
        return values[0]
