"""Sizes of register tiles and how work is cut for threads: plain arithmetic on a target's figures, without TVM."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import Precision
from compiler.codegen.tir.iteration import chunks
from compiler.kernels.expressions import Expr, work
from compiler.targets import CpuTarget

PARALLEL_FLOPS = 500_000
"""Less arithmetic than this is not worth waking other threads for."""
_MAX_WORK = 12
"""Most arithmetic of one expression (see `work`) in the epilogue of a tile: a transcendental function would be copied
into every vector of it."""
_MOST_ROWS = 14
_MOST_VECTORS = 4
_MOST_VECTORS_OF_A_ROW = 6
_SHORT_REDUCTION = 48
"""A product with fewer steps is bound by writing its output: whole rows at a time are twice to three times as fast."""
BAND_ROWS, BANDS = 16, 2
"""Rows of a tile register; and how many of them a tile of such registers has, beside each other and below."""
_LATENCY = 8
"""Independent multiply-adds that keep the pipelines full."""


@dataclass(frozen=True, slots=True)
class ColumnTile:
    """The columns of one register tile: vectors of `widths` elements side by side, of which `valid` exist."""

    widths: tuple[int, ...]
    valid: int

    @property
    def width(self) -> int:
        """Elements that are computed."""
        return sum(self.widths)


@dataclass(frozen=True, slots=True)
class Columns:
    """`count` columns as `full` equal tiles and perhaps a narrower last one.

    Padded: the last tile is rounded up to whole vectors (or half a vector), which packed panels fill with zeros.
    Not padded: its last vectors are narrower, so that nothing outside the matrix is read.
    """

    count: int
    full: int
    tile: ColumnTile
    tail: ColumnTile | None

    @property
    def padded(self) -> int:
        """Columns that the tiles compute in all."""
        return self.full * self.tile.width + (self.tail.width if self.tail else 0)


def vector_pieces(extent: int, lanes: int) -> list[tuple[int, int]]:
    """`extent` elements as (start, width): full vectors, then widths halving."""
    return [(start, lanes) for start in range(0, extent - extent % lanes, lanes)] + chunks(extent, lanes)


def columns(count: int, vectors: int, lanes: int, *, padded: bool) -> Columns:
    """Cuts `count` columns into tiles of `vectors` vectors."""
    width = vectors * lanes
    full, rest = divmod(count, width)
    tile = ColumnTile((lanes,) * vectors, width)
    if not rest:
        return Columns(count, full, tile, None)
    if not padded:
        return Columns(count, full, tile, ColumnTile(tuple(w for _, w in vector_pieces(rest, lanes)), rest))
    whole, last = divmod(rest, lanes)
    widths = (lanes,) * whole
    if last:
        widths += (lanes // 2,) if lanes > 4 and last <= lanes // 2 else (lanes,)
    return Columns(count, full, tile, ColumnTile(widths, rest))


def tile_shape(target: CpuTarget, precision: Precision, *, rows: int, count: int, steps: int) -> tuple[int, int]:
    """(rows, vectors) of the register tile for a product of `rows` x `count` over `steps`: the least cost over both.

    The accumulators, one row of B and one element of A must fit in the registers. Cost of a tile for each step of the
    reduction: its multiply-adds (at least as many as hide their latency), or its loads if they are more.
    """
    registers, sums = target.vector_registers - 1, precision.sum_size
    vectors = -(-count // precision.lanes)
    if steps < _SHORT_REDUCTION and _MOST_VECTORS < vectors <= min(_MOST_VECTORS_OF_A_ROW, registers // (4 * sums)):
        return min(rows, (registers - vectors) // (vectors * sums)), vectors
    best: tuple[float, int, int] | None = None
    for width in range(1, min(_MOST_VECTORS, vectors) + 1):
        for height in range(1, min(_MOST_ROWS, rows, (registers - width) // (width * sums)) + 1):
            full, rest = divmod(rows, height)
            full_columns, rest_columns = divmod(vectors, width)
            cost = sum(
                row_tiles * column_tiles * _step_cost(h, w, sums)
                for row_tiles, h in ((full, height), (1, rest))
                for column_tiles, w in ((full_columns, width), (1, rest_columns))
                if h and w
            )
            if best is None or (cost, -height * width) < (best[0], -best[1] * best[2]):
                best = (cost, height, width)
    assert best is not None
    return best[1], best[2]


def _step_cost(height: int, width: int, sums: int) -> float:
    return max(height * width * sums, _LATENCY, 0.5 * height + width) + 0.25 * (height + width)


def divisor_near(extent: int, low: int, high: int) -> int:
    """The largest divisor of `extent` in [low, high], or `high` (or all of a short extent) if there is none."""
    if extent <= high:
        return extent
    return next((size for size in range(high, low - 1, -1) if extent % size == 0), high)


def unroll_of(extent: int) -> int:
    """Steps of a reduction that are written out in one turn of its loop."""
    if extent <= 8:
        return extent
    return next((steps for steps in (4, 6, 5, 3, 7) if extent % steps == 0), 4)


def tile_can_hold(expr: Expr) -> bool:
    """Whether an expression is short enough for the end of a register tile, which is unrolled."""
    return work(expr) <= _MAX_WORK


def slots_of(flops: float, threads: int) -> int:
    """Threads that a kernel of `flops` is cut for."""
    return threads if flops >= PARALLEL_FLOPS else 1
