"""Copying operands into the order in which register tiles read them: B panels, and images with their zero border.

A panel of a matrix [steps, columns] holds, step after step, the columns of one tile, zeros where the tile is wider
than the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx

from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Buffer, Value, index, literal, load


@dataclass(frozen=True)
class Matrix:
    """Element (step, column) lies at `base + step * step_stride + column * column_stride`; one stride is 1."""

    buffer: Buffer
    base: Value
    step_stride: int
    column_stride: int

    def at(self, step: Value | int, column: Value | int) -> Matrix:
        """The matrix that begins at (step, column)."""
        return replace(self, base=self.base + step * self.step_stride + column * self.column_stride)

    def steps(self, count: int) -> Callable[[int], Value]:
        """Returns what reads `count` steps of a column, which lie side by side."""
        return lambda column: load(self.buffer, self.base + column * self.column_stride, count)


def pack_panel(
    block: Block, source: Matrix, buffer: Buffer, base: Value, *, steps: int | Value, tile: ColumnTile, lanes: int
) -> None:
    """Copies `steps` steps of the columns of `tile` to a panel at `base`."""
    if source.column_stride == 1:
        block.loop(steps, lambda body, k: _copy_step(body, source.at(k, 0), buffer, base + k * tile.width, tile))
        return
    turns = steps // lanes if isinstance(steps, int) else block.let(tirx.truncdiv(steps, index(lanes)), "turns")

    def square(body: Block, number: Value) -> None:
        step = number * lanes
        for start in range(0, tile.width, lanes):
            at = source.at(step, start)
            put_square(body, at.steps(lanes), buffer, base + step * tile.width + start, tile, start, lanes)

    block.loop(turns, square, name="square")
    first_step = turns * lanes
    block.loop(
        steps - first_step,
        lambda body, k: _gather_step(
            body, source.at(first_step + k, 0), buffer, base + (first_step + k) * tile.width, tile
        ),
    )


def _copy_step(block: Block, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    start = 0
    for width in tile.widths:
        valid = max(min(width, tile.valid - start), 0)
        for piece, lanes in vector_pieces(valid, width):
            block.store(buffer, base + (start + piece), load(source.buffer, source.base + (start + piece), lanes))
        put_zeros(block, buffer, base + start, valid, width)
        start += width


def put_zeros(block: Block, buffer: Buffer, base: Value, first: int, end: int) -> None:
    """Zeros from column `first` to `end`."""
    for piece, lanes in vector_pieces(end - first, 4):
        block.store(buffer, base + (first + piece), literal(0.0, "float32", lanes))


def _gather_step(block: Block, source: Matrix, buffer: Buffer, base: Value, tile: ColumnTile) -> None:
    for column in range(tile.valid):
        value = load(source.buffer, source.base + column * source.column_stride)
        block.store(buffer, base + column, value)
    put_zeros(block, buffer, base, tile.valid, tile.width)


def put_square(
    block: Block, column: Callable[[int], Value], buffer: Buffer, base: Value, tile: ColumnTile, first: int, lanes: int
) -> None:
    """A square of `lanes` steps by `lanes` columns, from columns that are read as vectors (`column`: of the square), by
    exchanges between registers; zeros where the tile has none."""
    height = min(lanes, tile.width - first)
    columns = [
        block.let(column(number), "column") if first + number < tile.valid else literal(0.0, "float32", lanes)
        for number in range(lanes)
    ]
    for step, vector in enumerate(transposed(block, columns)):
        if height < lanes:
            vector = tirx.Shuffle([vector], [index(i) for i in range(height)])
        block.store(buffer, base + step * tile.width, vector)


def transposed(block: Block, rows: list[Value]) -> list[Value]:
    """The transpose of a square of as many vectors as each has elements (a power of two)."""
    size = len(rows)
    distance = size // 2
    while distance:
        low = _picks(size, distance, 0)
        high = _picks(size, distance, distance)
        exchanged = list(rows)
        for row in range(size):
            if not row & distance:
                pair = [rows[row], rows[row + distance]]
                exchanged[row] = block.let(tirx.Shuffle(pair, low), "t")
                exchanged[row + distance] = block.let(tirx.Shuffle(pair, high), "t")
        rows = exchanged
        distance //= 2
    return rows


def _picks(size: int, distance: int, first: int) -> list[Value]:
    picked: list[Value] = []
    for start in range(first, size, 2 * distance):
        picked += [index(start + i) for i in range(distance)]
        picked += [index(size + start + i) for i in range(distance)]
    return picked


def copy_run(
    block: Block, source: Buffer, source_base: Value, buffer: Buffer, base: Value, count: int, lanes: int
) -> None:
    """Copies `count` consecutive elements."""
    whole = count // lanes
    block.loop(
        whole,
        lambda body, i: body.store(buffer, base + i * lanes, load(source, source_base + i * lanes, lanes)),
        name="copy",
    )
    for start, width in vector_pieces(count - whole * lanes, lanes):
        offset = whole * lanes + start
        block.store(buffer, base + offset, load(source, source_base + offset, width))


def zero_run(block: Block, buffer: Buffer, base: Value, count: int, lanes: int) -> None:
    """Sets `count` consecutive elements to zero."""
    whole = count // lanes
    block.loop(whole, lambda body, i: body.store(buffer, base + i * lanes, literal(0.0, "float32", lanes)), name="zero")
    for start, width in vector_pieces(count - whole * lanes, lanes):
        block.store(buffer, base + (whole * lanes + start), literal(0.0, "float32", width))
