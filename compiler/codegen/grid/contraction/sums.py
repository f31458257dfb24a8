"""An item's sums in registers, and their totals where they are of blocks."""

from __future__ import annotations

from typing import Protocol

from tvm import tirx

from compiler.codegen.grid.contraction.loader import SharedTile
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer


class SumsOfTile(Protocol):
    """The interface of code that makes a tile's sums of both operands' tiles in shared memory."""

    def begin_block(self, block: Block) -> None:
        """Emits what comes before the first tile of a block."""

    def multiply(self, block: Block, a: SharedTile, b: SharedTile) -> None:
        """Adds the products of two tiles in shared memory."""

    def end_block(self, block: Block) -> None:
        """Emits what comes after a block's last tile."""

    def store(self, block: Block, shared: Buffer) -> None:
        """Writes the tile's sums to shared memory from its start, row by row."""


class Sums:
    """`count` sums, which start as 0. `in_blocks`: they are of blocks, which `end_block` adds to totals."""

    def __init__(self, block: Block, count: int, *, in_blocks: bool) -> None:
        self._count, self._in_blocks = count, in_blocks
        self.now = block.local(count, name="sums")
        self.totals = block.local(count, name="totals") if in_blocks else self.now
        self._clear(block, self.totals)

    def begin_block(self, block: Block) -> None:
        """Clears the block's sums before its first tile."""
        if self._in_blocks:
            self._clear(block, self.now)

    def end_block(self, block: Block) -> None:
        """Adds the block's sums to the totals after its last tile."""
        for number in range(self._count if self._in_blocks else 0):
            total = tirx.Add(tir.load(self.totals, number), tir.load(self.now, number))
            block.store(self.totals, number, total)

    def _clear(self, block: Block, buffer: Buffer) -> None:
        for number in range(self._count):
            block.store(buffer, number, tir.literal(0.0, "float32"))
