"""The sums of a tile, made on tensor cores by warps of 32 items, which hold them in registers.

A warp's product is of 16 rows, 8 columns and 8 words of steps: a step of TF32, or two of sixteen bits, of which the
first is the lower half. Of item `4 group + place` of a warp (group 0 to 7, place 0 to 3):

    A    a0: row group      word place          a1: row group + 8  word place
         a2: row group      word place + 4      a3: row group + 8  word place + 4
    B    b0: word place      column group       b1: word place + 4  column group
    C    sum 0: row group      column 2 place   sum 1: row group      column 2 place + 1
         sum 2: row group + 8  column 2 place   sum 3: row group + 8  column 2 place + 1

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", of type .tf32, and "for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.codegen.grid import tensor_cores
from compiler.codegen.grid.contraction.loader import Shelf
from compiler.codegen.grid.contraction.product import Factors
from compiler.codegen.grid.contraction.sums import Sums
from compiler.codegen.grid.contraction.tile import MMA_K, MMA_M, MMA_N, WARP, WarpTile
from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value

_PLACES = 4
_SUMS = 4
"""An item's of one product."""


class TensorTile(Sums):
    """Each warp's `own_m` x `own_n` sums, of neighbouring rows and columns; products lie side by side in them."""

    def __init__(self, here: Here, block: Block, tile: WarpTile, factors: Factors, *, in_blocks: bool) -> None:
        self._factors = factors
        self._tile, self._down, self._across = tile, tile.own_m // MMA_M, tile.own_n // MMA_N
        warp, lane = tir.divide(block, here.item, WARP)
        down, across = tir.divide(block, warp, tile.n // tile.own_n)
        group, self._place = tir.divide(block, lane, _PLACES)
        self._row = block.let(down * tir.index(tile.own_m) + group, "row")
        self._first_column = block.let(across * tir.index(tile.own_n), "column")
        self._column = block.let(self._first_column + group, "column")
        super().__init__(block, self._down * self._across * _SUMS, in_blocks=in_blocks)

    def multiply(self, block: Block, a: Shelf, b: Shelf) -> None:
        """As `SumsOfTile` says."""
        block.loop(
            self._tile.k // self._tile.per_word // MMA_K,
            lambda inner, number: self._step(inner, number, a, b),
            name="step",
        )

    def store(self, block: Block, shared: Buffer) -> None:
        """As `SumsOfTile` says."""
        width = self._tile.n + self._tile.sums_pad
        column = block.let(self._first_column + self._place * tir.index(2), "column")
        for first, i, j in self._products():
            for number in range(_SUMS):
                row = self._row + (MMA_M * i + MMA_M // 2 * (number // 2))
                place = row * tir.index(width) + column + (MMA_N * j + number % 2)
                block.store(shared, place, tir.load(self.totals, first + number))

    def _step(self, block: Block, number: Value, a: Shelf, b: Shelf) -> None:
        """The products of 8 words of steps."""
        near = block.let(number * tir.index(MMA_K) + self._place, "near")
        words = (near, block.let(near + _PLACES, "far"))
        rows = [self._row + MMA_M // 2 * i for i in range(2 * self._down)]
        left = [[self._read(block, a, word, row) for row in rows] for word in words]
        right = [[self._read(block, b, word, self._column + MMA_N * j) for word in words] for j in range(self._across)]
        for first, i, j in self._products():
            left_words = (*left[0][2 * i : 2 * i + 2], *left[1][2 * i : 2 * i + 2])
            tensor_cores.multiply(block, self._factors, self.now, first, left_words, right[j])

    def _read(self, block: Block, shelf: Shelf, word: Value, place: Value) -> Value:
        return block.let(tir.load(shelf.shared, shelf.word(word, place)), "x")

    def _products(self) -> Iterator[tuple[int, int, int]]:
        """(its first sum, its number down and across) of each of a warp's products."""
        for number in range(self._down * self._across):
            yield number * _SUMS, *divmod(number, self._across)
