"""A group's block of queries and keys: what its items load, multiply and keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.grid.attention.plan import DEPTH, Cut
from compiler.codegen.grid.checks import guarded, when_all
from compiler.codegen.grid.functions import number
from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value


@dataclass(frozen=True)
class Matrix:
    """`count` rows of `width` elements of one head: row p begins at `base` + p `stride`."""

    buffer: Buffer
    base: Value
    stride: int
    count: int
    width: int


class Tile:
    """Products over blocks, for the items of one group.

    Item (y, x) of `tall` x `wide` has rows y, y + tall, ... and columns x, x + wide, ... of every result, in registers.
    """

    def __init__(self, here: Here, cut: Cut) -> None:
        self.here, self.cut = here, cut
        self.y, self.x = tir.divide(here.block, here.item, cut.wide)
        self.left, self.right = (here.shared(cut.loaded, name=name) for name in ("left", "right"))
        self.weights = here.shared(cut.block * cut.stride, name="weights")

    def row(self, r: int) -> Value:
        """An item's row `r` in its block."""
        return self.y + tir.index(self.cut.tall * r)

    def column(self, c: int) -> Value:
        """An item's column `c`."""
        return self.x + tir.index(self.cut.wide * c)

    def zeros(self, block: Block, count: int, name: str) -> Buffer:
        """Registers that hold zero."""
        registers = block.local(count, name=name)
        for place in range(count):
            block.store(registers, place, number(0.0))
        return registers

    def across(self, block: Block, queries: Matrix, first_query: Value, keys: Matrix, first_key: Value) -> Buffer:
        """Rows of one matrix times rows of another: an item's sums [rows, columns]."""
        cut, width = self.cut, queries.width
        depth, sums = cut.depth(width), self.zeros(block, cut.rows * cut.columns, "scores")

        def part(inner: Block, i: Value) -> None:
            start = inner.let(i * tir.index(depth), "start")
            self.here.barrier(inner)
            self._load_across(inner, queries, first_query, start, self.left)
            self._load_across(inner, keys, first_key, start, self.right)
            self.here.barrier(inner)
            inner.loop(depth, lambda b, d: self._multiply(b, self.left, d, cut.stride, sums, cut.columns), name="d")

        block.loop(-(-width // depth), part, name="part")
        return sums

    def _load_across(self, block: Block, matrix: Matrix, first: Value, start: Value, to: Buffer) -> None:
        """Elements `start`, ... of a block of rows, so that those of a column lie together; zero where there are none.

        Neighbouring items load neighbouring elements of a row.
        """
        cut, depth = self.cut, self.cut.depth(matrix.width)
        row, d = tir.divide(block, self.here.item, depth)
        step = cut.items // depth
        element, matrix_row = block.let(start + d, "element"), block.let(first + row, "own")
        inside = [tirx.LT(element, tir.index(matrix.width))] if matrix.width % depth else []
        at = block.let(matrix.base + matrix_row * tir.index(matrix.stride) + element, "at")
        for turn in range(cut.block // step):
            place = at + tir.index(turn * step * matrix.stride)
            value = tir.load(matrix.buffer, place)
            checks = [*inside, *self.there(matrix, matrix_row + tir.index(turn * step))]
            block.store(to, d * tir.index(cut.stride) + row + tir.index(turn * step), guarded(block, checks, value))

    def keep(self, block: Block, values: Buffer, *, by_query: bool) -> None:
        """An item's scores to the group's weights [key, query], or [query, key]."""
        cut = self.cut
        row_step, column_step = (cut.stride, 1) if by_query else (1, cut.stride)
        for r in range(cut.rows):
            for c in range(cut.columns):
                place = self.row(r) * tir.index(row_step) + self.column(c) * tir.index(column_step)
                block.store(self.weights, place, tir.load(values, r * cut.columns + c))

    def add_weighted(
        self, block: Block, matrix: Matrix, first: Value, totals: Buffer, factors: Sequence[Value] = ()
    ) -> None:
        """Transposed weights times a block of rows of `matrix`, added to an item's totals [rows, sums of its width].

        The totals are multiplied by each row's factor before. What a block adds is summed first, by itself.
        """
        cut, width = self.cut, self.cut.sums(matrix.width)
        for start, count in cut.pieces(matrix.width):
            sums = self._weighted(block, matrix, first, start, count)
            for r in range(cut.rows):
                for c in range(count):
                    place = r * width + start + c
                    before = tir.load(totals, place)
                    before = before * factors[r] if factors else before
                    block.store(totals, place, before + tir.load(sums, r * count + c))

    def _weighted(self, block: Block, matrix: Matrix, first: Value, start_column: int, count: int) -> Buffer:
        """The columns `start_column`, ... of an item, over one block."""
        cut = self.cut
        sums = self.zeros(block, cut.rows * count, "sums")

        def part(inner: Block, i: Value) -> None:
            start = inner.let(i * tir.index(DEPTH), "start")
            self.here.barrier(inner)
            self._load_along(inner, matrix, first + start, start_column, count)
            self.here.barrier(inner)

            def step(b: Block, d: Value) -> None:
                self._multiply(b, self.weights, d, count * cut.wide, sums, count, left_from=start)

            inner.loop(DEPTH, step, name="d")

        block.loop(cut.block // DEPTH, part, name="part")
        return sums

    def _load_along(self, block: Block, matrix: Matrix, first: Value, start_column: int, count: int) -> None:
        """Rows of `matrix` from `first` on, as they lie, of the columns `start_column`, ... of every item."""
        cut = self.cut
        matrix_row = block.let(first + self.y, "own")
        at = block.let(matrix.base + matrix_row * tir.index(matrix.stride) + self.x, "at")
        for turn in range(DEPTH // cut.tall):
            there = self.there(matrix, matrix_row + tir.index(turn * cut.tall))
            for c in range(count):
                place = at + tir.index(turn * cut.tall * matrix.stride + (start_column + c) * cut.wide)
                checks = [*there, *self.within(matrix, start_column + c)]
                value = guarded(block, checks, tir.load(matrix.buffer, place))
                to = self.row(turn) * tir.index(count * cut.wide) + self.column(c)
                block.store(self.right, to, value)

    def _multiply(
        self,
        block: Block,
        left: Buffer,
        d: Value,
        right_stride: int,
        sums: Buffer,
        columns: int,
        left_from: Value | None = None,
    ) -> None:
        """Adds the products of term `d` of a left operand [terms, block] and of the loaded right one."""
        cut = self.cut
        term = d if left_from is None else left_from + d
        at = block.let(term * tir.index(cut.stride) + self.y, "at")
        from_right = block.let(d * tir.index(right_stride) + self.x, "at")
        rows = [block.let(tir.load(left, at + tir.index(cut.tall * r)), "a") for r in range(cut.rows)]
        others = [block.let(tir.load(self.right, from_right + tir.index(cut.wide * c)), "b") for c in range(columns)]
        for r, a in enumerate(rows):
            for c, b in enumerate(others):
                block.store(sums, r * columns + c, tir.load(sums, r * columns + c) + a * b)

    def write(self, block: Block, matrix: Matrix, first: Value, totals: Buffer, factors: Sequence[Value] = ()) -> None:
        """An item's totals, each row times its factor, to the rows from `first` on."""
        cut, width = self.cut, self.cut.sums(matrix.width)
        for r in range(cut.rows):
            row = block.let(first + self.row(r), "row")
            at = block.let(matrix.base + row * tir.index(matrix.stride) + self.x, "at")
            for c in range(width):
                value = tir.load(totals, r * width + c)
                value = value * factors[r] if factors else value
                place = at + tir.index(c * cut.wide)

                def store(inner: Block, place: Value = place, value: Value = value) -> None:
                    inner.store(matrix.buffer, place, value)

                when_all(block, [*self.there(matrix, row), *self.within(matrix, c)], store)

    def there(self, matrix: Matrix, row: Value) -> list[Value]:
        """Returns the conditions to check for a row of a block."""
        return [tirx.LT(row, tir.index(matrix.count))] if matrix.count % self.cut.block else []

    def within(self, matrix: Matrix, c: int) -> list[Value]:
        """Returns the conditions to check for an item's column `c`."""
        beyond = (c + 1) * self.cut.wide > matrix.width
        return [tirx.LT(self.column(c), tir.index(matrix.width))] if beyond else []
