"""The sums of a tile, spread over the registers of a group's items.

What it takes (both operands' tiles in shared memory) and gives (the sums there) says nothing of registers: a unit that
multiplies whole tiles can stand in its place (`tensor_tile`).
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.grid.contraction.loader import Shelf
from compiler.codegen.grid.contraction.sums import Sums
from compiler.codegen.grid.contraction.tile import Tile
from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value


class RegisterTile(Sums):
    """Each item's `own_m` x `own_n` sums, of neighbouring rows, and of columns as far apart as there are items along
    them, so that neighbouring items read and write neighbouring elements of shared memory.
    """

    def __init__(self, here: Here, block: Block, tile: Tile, *, in_blocks: bool) -> None:
        self._tile, self._apart = tile, tile.n // tile.own_n
        self._row, self._column = tir.divide(block, here.item, self._apart)
        super().__init__(block, tile.own_m * tile.own_n, in_blocks=in_blocks)

    def multiply(self, block: Block, a: Shelf, b: Shelf) -> None:
        """As `SumsOfTile` says."""
        block.loop(self._tile.k, lambda inner, step: self._step(inner, step, a, b), name="step")

    def store(self, block: Block, shared: Buffer) -> None:
        """As `SumsOfTile` says."""
        for i, j in self._own():
            place = (self._row * self._tile.own_m + i) * self._tile.n + self._column + j * self._apart
            block.store(shared, place, tir.load(self.totals, i * self._tile.own_n + j))

    def _step(self, block: Block, step: Value, a: Shelf, b: Shelf) -> None:
        tile = self._tile
        rows = [a.at(step, self._row * tile.own_m + i) for i in range(tile.own_m)]
        columns = [b.at(step, self._column + j * self._apart) for j in range(tile.own_n)]
        left = [block.let(tir.load(a.shared, place), "a") for place in rows]
        right = [block.let(tir.load(b.shared, place), "b") for place in columns]
        for i, j in self._own():
            number = i * tile.own_n + j
            block.store(self.now, number, tirx.Add(tir.load(self.now, number), tirx.Mul(left[i], right[j])))

    def _own(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self._tile.own_m) for j in range(self._tile.own_n)]
