"""The sums of a tile, spread over the registers of a group's items.

What it takes (both operands' tiles in shared memory) and gives (the sums there) says nothing of registers: a unit that
multiplies whole tiles can stand in its place.
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.grid.contraction.loader import Shelf
from compiler.codegen.grid.contraction.plan import Tile
from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value


class RegisterTile:
    """Each item's `own_m` x `own_n` sums, of neighbouring rows, and of columns as far apart as there are items along
    them, so that neighbouring items read and write neighbouring elements of shared memory.

    `in_blocks`: sums are of blocks, which `end_block` adds to totals.
    """

    def __init__(self, here: Here, block: Block, tile: Tile, *, in_blocks: bool) -> None:
        self._tile, self._apart = tile, tile.n // tile.own_n
        self._row, self._column = tir.divide(block, here.item, self._apart)
        self._count = tile.own_m * tile.own_n
        self._sums = block.local(self._count, name="sums")
        self._totals = block.local(self._count, name="totals") if in_blocks else self._sums
        self._in_blocks = in_blocks
        self._clear(block, self._totals)

    def begin_block(self, block: Block) -> None:
        """Before the first tile of a block."""
        if self._in_blocks:
            self._clear(block, self._sums)

    def multiply(self, block: Block, a: Shelf, b: Shelf) -> None:
        """Add the products of two tiles in shared memory."""
        block.loop(self._tile.k, lambda inner, step: self._step(inner, step, a, b), name="step")

    def end_block(self, block: Block) -> None:
        """After its last tile."""
        for number in range(self._count if self._in_blocks else 0):
            total = tirx.Add(tir.load(self._totals, number), tir.load(self._sums, number))
            block.store(self._totals, number, total)

    def store(self, block: Block, shared: Buffer) -> None:
        """Write the tile's sums to shared memory from its start, row by row."""
        for i, j in self._own():
            place = (self._row * self._tile.own_m + i) * self._tile.n + self._column + j * self._apart
            block.store(shared, place, tir.load(self._totals, i * self._tile.own_n + j))

    def _step(self, block: Block, step: Value, a: Shelf, b: Shelf) -> None:
        tile = self._tile
        rows = [a.at(step, self._row * tile.own_m + i) for i in range(tile.own_m)]
        columns = [b.at(step, self._column + j * self._apart) for j in range(tile.own_n)]
        left = [block.let(tir.load(a.shared, place), "a") for place in rows]
        right = [block.let(tir.load(b.shared, place), "b") for place in columns]
        for i, j in self._own():
            number = i * tile.own_n + j
            block.store(self._sums, number, tirx.Add(tir.load(self._sums, number), tirx.Mul(left[i], right[j])))

    def _own(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self._tile.own_m) for j in range(self._tile.own_n)]

    def _clear(self, block: Block, buffer: Buffer) -> None:
        for number in range(self._count):
            block.store(buffer, number, tir.literal(0.0, "float32"))
