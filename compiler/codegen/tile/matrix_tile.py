"""A tile whose sums are in tile registers, where a machine multiplies whole matrices at once.

Two blocks of 16 rows of A and two of 16 columns of B make four products, each block loaded once for two. Sums leave the
registers for memory at the end of a run, from where epilogues take them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from compiler.codegen.tile.register_tile import SUM_BLOCK, RegisterTile, Scalars, Stream, Vectors, wide
from compiler.codegen.tile.tiling import BAND_ROWS, ColumnTile
from compiler.codegen.tir import halves, tiles
from compiler.codegen.tir.tir import Block, Buffer, Value, element_of, index, load


class MatrixTile(RegisterTile):
    """A tile of at most `BANDS` bands of `BAND_ROWS` rows, by as many vectors.

    Steps are pairs of bfloat16; those of a row of A lie side by side, and B is a panel.
    """

    def __init__(self, block: Block, rows: int, columns: ColumnTile) -> None:
        super().__init__(block, rows, columns, "bf16")
        self.bands = tuple(min(BAND_ROWS, rows - first) for first in range(0, rows, BAND_ROWS))

    def allocate(self, block: Block) -> None:
        """Allocates one array, row by row, as the registers are written to memory."""
        self._sums = block.local(self.rows * self.columns.width, self.element, "sums")

    def get(self, row: int, start: int, width: int, first: int = 0) -> Value:
        """`width` elements, from number `first` on, of the sums from (row, start) on."""
        return load(self._sums, row * self.columns.width + start + first, width)

    def put(self, block: Block, row: int, start: int, value: Value) -> None:
        """Sets the sums from (row, start) on."""
        block.store(self._sums, row * self.columns.width + start, value)

    def clear(self, block: Block) -> None:
        """Sets the sums to zero, as which registers begin: nothing is written until the end of a run."""
        self._in_memory = False

    def fresh(self, block: Block) -> MatrixTile:
        """Another one of this shape."""
        return MatrixTile(block, self.rows, self.columns)

    def blocked_run(self, block: Block, a: Scalars, b: Vectors, steps: int, ahead: Sequence[Stream] = ()) -> None:
        """Adds products block by block, as any tile does; sums that those of blocks are added to are in memory from the
        start.
        """
        if steps > 3 * SUM_BLOCK // 2:
            super().clear(block)
            self._in_memory = True
        super().blocked_run(block, a, b, steps, ahead)

    def run_from(
        self, block: Block, a: Scalars, b: Vectors, steps: int | Value, ahead: Sequence[Stream], part: tuple[Value, int]
    ) -> None:
        """Adds the products of `steps` steps, as many at once as a register has words, then those that are left.

        Nothing is fetched `ahead`: a load of a register asks for 16 lines itself.
        """
        depth = tiles.WORDS
        if isinstance(steps, int):
            turns, rest = divmod(steps, depth)
            self._pass(block, a, b, turns, depth)
            self._pass(block, *_later(a, b, index(turns * depth)), min(rest, 1), rest)
            return
        count = block.let(tirx.truncdiv(steps, index(depth)), "turns")
        remaining = block.let(steps - count * depth, "left")
        self._pass(block, a, b, count, depth)
        last = _later(a, b, count * depth)
        block.when(tirx.GT(remaining, index(0)), lambda body: self._pass(body, *last, 1, remaining))

    def _pass(self, block: Block, a: Scalars, b: Vectors, turns: int | Value, depth: int | Value) -> None:
        """Adds the products of `turns` times `depth` steps to the sums in memory."""
        if isinstance(turns, int) and not turns:
            return
        self._configure(block, depth)
        stride = wide(4 * self.columns.width)
        for row, column, sums in self._blocks() if self._in_memory else ():
            block.add(tiles.load(tiles.sums_in(row, column), _address(self._sums, index(sums)), stride))

        def turn(body: Block, number: Value) -> None:
            first = wide(number) * wide(tiles.WORDS)
            for column, start in enumerate(self.starts):
                place = b.base + first * wide(b.step_stride) + wide(start)
                body.add(tiles.load(tiles.b_in(column), _address(b.buffer, place), wide(4 * b.step_stride)))
            for row in range(len(self.bands)):
                place = a.base + first + wide(row * BAND_ROWS * a.row_stride)
                body.add(tiles.load(tiles.a_in(row), _address(a.buffer, place), wide(4 * a.row_stride)))
            for row, column, _ in self._blocks():
                body.add(tiles.dot(row, column))

        block.loop(turns, turn, name="turn")
        for row, column, sums in self._blocks():
            block.add(tiles.store(tiles.sums_in(row, column), _address(self._sums, index(sums)), stride))
        block.add(tiles.release())
        self._in_memory = True

    def _blocks(self) -> list[tuple[int, int, int]]:
        """(row, column, where its sums begin) of each of the blocks of at most 16 by 16."""
        return [
            (row, column, row * BAND_ROWS * self.columns.width + start)
            for row in range(len(self.bands))
            for column, start in enumerate(self.starts)
        ]

    def _configure(self, block: Block, depth: int | Value) -> None:
        """Configures what the registers hold, for products of `depth` steps at once."""
        shapes: list[tuple[int | Value, int | Value]] = [(0, 0)] * tiles.REGISTERS
        for row, height in enumerate(self.bands):
            shapes[tiles.a_in(row)] = (height, depth)
            for column, width in enumerate(self.columns.widths):
                shapes[tiles.sums_in(row, column)] = (height, width)
                shapes[tiles.b_in(column)] = (depth, width)
        table = block.local(tiles.CONFIGURATION_WORDS, "int32", "tiles")
        for place, word in enumerate(tiles.configuration(shapes)):
            block.store(table, place, index(word))
        block.add(tiles.configure(_address(table, index(0))))


def _later(a: Scalars, b: Vectors, steps: Value) -> tuple[Scalars, Vectors]:
    return a.at(wide(steps)), b.at(wide(steps) * wide(b.step_stride))


def _address(buffer: Buffer, place: Value) -> Value:
    """Returns the address of a word: two elements of a buffer of bfloat16."""
    if element_of(buffer) == halves.BF16:
        place = place * tirx.IntImm(str(place.ty.dtype), 2)
    return tirx.address_of(tirx.BufferLoad(buffer, [place]))
