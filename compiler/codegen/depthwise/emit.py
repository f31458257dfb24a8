"""TIR of a depth-wise convolution: forward and input gradient by `rows`, weight gradient by `weights`.

Depth-wise convolution, forward and input gradient: a tile is some output columns by one vector of channels.

A strided input gradient has several phases (see `conv.phases`): the tile then holds the outputs of all phases at a
place, so that an element of d_y is loaded once for all of them. Input rows outside the image are skipped by a scalar
condition; tiles at the left and right border have code of their own, with the taps that exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby

from tvm import tirx

from compiler.codegen.choice import Choice
from compiler.codegen.conv.phases import AxisPhase, axis_phases, several
from compiler.codegen.depthwise.plan import DepthwisePlan, Taps, input_rows, plan_of, workspace_bytes
from compiler.codegen.depthwise.weights import DepthwiseWeights
from compiler.codegen.tile.epilogue import Epilogue
from compiler.codegen.tile.register_tile import Place, RegisterTile, fma, load_wide, prefetch, wide
from compiler.codegen.tile.share import share_out
from compiler.codegen.tile.tiling import ColumnTile, vector_pieces
from compiler.codegen.tir.tir import Block, Operands, PrimFunc, Value, declare, finish, index
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import CpuTarget

_AHEAD_ELEMENTS = 4096
"""The distance ahead, in the order of memory, at which rows are fetched that come from beyond the caches."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns `first + i`, i in [0, width), of every column phase. `taps[p][i]`: what column i of phase p reads.

    A column that a phase does not have (its last, where the extent is odd) is missing at the end of `taps[p]`.
    """

    width: int
    taps: tuple[tuple[Taps, ...], ...]


@dataclass(frozen=True, slots=True)
class Corner:
    """The place where a tile stands: image, unit of rows, first column, first channel."""

    image: Value
    q: Value
    first: Value
    c: Value


@dataclass(frozen=True, slots=True)
class Band:
    """`rows` rows from `first` on of images of `shape` (height, width); a column of the tile is `pixels` pixels."""

    shape: tuple[int, int]
    first: Value
    rows: int
    pixels: int


Sums = Mapping[tuple[int, int], RegisterTile]
"""(row phase, column phase) -> its accumulators."""


class DepthwiseRows:
    """The emitter of one kernel."""

    def __init__(self, spec: DepthwiseSpec, operands: Operands, plan: DepthwisePlan) -> None:
        self.spec, self.plan = spec, plan
        self.x, self.w, *extra = operands.inputs
        self.y = operands.outputs[0]
        self.epilogue = Epilogue.of(spec.epilogue, extra, spec.epilogue_inputs, 4)
        self.rows, self.columns = several(axis_phases(spec, 0), plan.rows), axis_phases(spec, 1)
        forward = spec.kind == "forward"
        self.out_shape = (spec.oh, spec.ow) if forward else (spec.h, spec.w)
        self.in_shape = (spec.h, spec.w) if forward else (spec.oh, spec.ow)

    def emit(self, block: Block) -> None:
        """Emits all output rows, shared out among threads."""
        most, least = self.rows[0].count, self.rows[-1].count
        longest = tuple(phase for phase in self.rows if phase.count == most)

        def row(body: Block, unit: Value) -> None:
            image = body.let(tirx.truncdiv(unit, index(most)), "image")
            q = body.let(unit - image * most, "q")
            if most == least:
                self._row(image, q, self.rows, body)
            else:
                every, some = (partial(self._row, image, q, phases) for phases in (self.rows, longest))
                body.when(tirx.LT(q, index(least)), every, some)

        def slot_body(body: Block, _slot: Value, first: Value, end: Value) -> None:
            body.loop(end - first, lambda b, i: row(b, b.let(first + i, "unit")), name="row")

        share_out(block, self.plan.slots, self.spec.n * most, slot_body)

    def _row(self, image: Value, q: Value, rows: tuple[AxisPhase, ...], block: Block) -> None:
        """Emits one output row of each row phase; neighbouring tiles that are alike are turns of a loop."""
        first = 0
        for tile, alike in groupby(tiles_of(self.columns, self.plan.columns)):
            turns = len(list(alike))

            def emit_tile(body: Block, i: Value, start: int = first, tile: Tile = tile) -> None:
                self._tile(body, image, q, rows, body.let(i * tile.width + start, "column"), tile)

            block.loop(turns, emit_tile, name="columns")
            first += turns * tile.width

    def _tile(
        self, block: Block, image: Value, q: Value, rows: tuple[AxisPhase, ...], first: Value, tile: Tile
    ) -> None:
        """Emits all channels of one tile."""
        lanes, whole = self.plan.lanes, self.spec.c // self.plan.lanes

        def channels(body: Block, c: Value, width: int) -> None:
            corner = Corner(image, q, first, c)
            sums = {
                (r, p): RegisterTile(body, len(taps), ColumnTile((width,), width))
                for r in range(len(rows))
                for p, taps in enumerate(tile.taps)
                if taps
            }
            for offset, row_taps in input_rows(rows).items():
                place = body.let(q * rows[0].input_step + offset, "y")
                products = partial(self._products, tile=tile, sums=sums, corner=corner, row=place, row_taps=row_taps)
                inside = {phase.inside(offset) for phase in rows}
                if inside == {(0, phase.count) for phase in rows}:
                    products(body)
                elif any(low < high for low, high in inside):
                    extent = index(rows[0].input_extent)
                    body.when(tirx.And(tirx.LE(index(0), place), tirx.LT(place, extent)), products)
            if self.plan.ahead:
                self._fetch_ahead(body, rows, corner, tile)
            self._store(body, rows, corner, sums)

        block.loop(whole, lambda b, i: channels(b, b.let(i * lanes, "c"), lanes), name="channels")
        for start, width in vector_pieces(self.spec.c - whole * lanes, lanes):
            channels(block, index(whole * lanes + start), width)

    def _products(self, block: Block, *, tile: Tile, sums: Sums, corner: Corner, row: Value, row_taps: Taps) -> None:
        """Emits all products with one input row, which `row_taps` name by (row phase, kernel row). Loads each input
        once.
        """
        height, width = self.in_shape
        step = self.columns[0].input_step
        lanes = next(iter(sums.values())).columns.width
        start = (corner.image * height + row) * width + corner.first * step
        base = block.let(wide(start * self.spec.c + corner.c), "x_base")
        weights = block.let(wide(corner.c), "w_base")

        @cache
        def weight(kernel_row: int, tap: int) -> Value:
            place = (kernel_row * self.spec.kernel[1] + tap) * self.spec.c
            return block.let(load_wide(self.w, weights + wide(place), lanes), "w")

        @cache
        def x(place: int) -> Value:
            return block.let(load_wide(self.x, base + wide(place * self.spec.c), lanes), "x")

        for column in range(tile.width):
            for p, taps in enumerate(tile.taps):
                for tap, offset in taps[column] if column < len(taps) else ():
                    for r, kernel_row in row_taps:
                        total = sums[r, p].get(column, 0, lanes)
                        value = fma(x(column * step + offset), weight(kernel_row, tap), total, lanes)
                        sums[r, p].put(block, column, 0, value)

    def _store(self, block: Block, rows: tuple[AxisPhase, ...], corner: Corner, sums: Sums) -> None:
        for (r, p), tile in sums.items():
            row_phase, columns = rows[r], self.columns[p]
            row = block.let(corner.q * row_phase.step + row_phase.first, "oh")
            column = block.let(corner.first * columns.step + columns.first, "ow")
            base = block.let(self._pixel(corner.image, row, column) * self.spec.c + corner.c, "place")

            def axes(
                number: int, _: int, row: Value = row, column: Value = column, step: int = columns.step
            ) -> tuple[Value, ...]:
                return (corner.image, row, column + number * step, corner.c)

            self.epilogue.tile(block, tile, Place(self.y, base, columns.step * self.spec.c, 2, axes))

    def _pixel(self, image: Value, row: Value, column: Value) -> Value:
        return (image * self.out_shape[0] + row) * self.out_shape[1] + column

    # ---------------------------------------------------------------------------------------------------- fetching

    def _fetch_ahead(self, block: Block, rows: tuple[AxisPhase, ...], corner: Corner, tile: Tile) -> None:
        """Prefetches what is about to be met for the first time: the newest input rows, what the epilogue reads point
        by point, and the lines to be written, for which stores would otherwise wait.

        A tile touches its columns side by side, which memory's own prefetching does not follow: each turn of the loop
        over channels asks for its share of the tile's bytes, in the order of memory, some way on.
        """
        unit = rows[0].input_step
        newest = corner.q * unit + (max(input_rows(rows), default=0) - unit + 1)
        pixels = self.columns[0].input_step
        self._fetch_rows(block, [(self.x, False)], Band(self.in_shape, newest, unit, pixels), corner, tile)
        shape = (self.spec.n, *self.out_shape, self.spec.c)
        alike = [b for b, access in self.epilogue.inputs if access.type.shape == shape and access.strides[3] == 1]
        buffers = [*((buffer, False) for buffer in alike), (self.y, True)]
        unit, pixels = rows[0].step, self.columns[0].step
        self._fetch_rows(block, buffers, Band(self.out_shape, corner.q * unit, unit, pixels), corner, tile)

    def _fetch_rows(
        self, block: Block, buffers: Sequence[tuple[Value, bool]], band: Band, corner: Corner, tile: Tile
    ) -> None:
        """Fetches one turn's share of a band of each buffer (with a flag that says whether it will be written), some
        way on along each row, or behind its end in the band below.
        """
        (height, width), c = band.shape, self.spec.c
        pixels, row_elements = tile.width * band.pixels, width * c
        ahead = _AHEAD_ELEMENTS // band.rows
        along = block.let(corner.first * (band.pixels * c) + corner.c * pixels + ahead, "along")
        if band.rows > 1:
            below = index((band.rows - 1) * row_elements)
            along = block.let(along + tirx.Select(tirx.LT(along, index(row_elements)), index(0), below), "along")
        for row in range(band.rows):
            start = block.let(wide((corner.image * height + band.first + row) * row_elements + along), "ahead")
            for buffer, write in buffers:
                for line in range(0, pixels * self.plan.lanes, self.plan.precision.line):
                    prefetch(block, buffer, start + wide(line), write=write)


def tiles_of(columns: tuple[AxisPhase, ...], most: int) -> Iterator[Tile]:
    """The columns of all phases in tiles of nearly equal width, at most `most`, from left to right."""
    count = columns[0].count
    tiles = -(-count // most)
    for number in range(tiles):
        first, end = count * number // tiles, count * (number + 1) // tiles
        taps = tuple(tuple(phase.taps_at(q) for q in range(first, min(end, phase.count))) for phase in columns)
        yield Tile(end - first, taps)


def emit(spec: DepthwiseSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> PrimFunc:
    """TIR of a depth-wise convolution."""
    operands = declare(spec, workspace_bytes(spec, target, threads, choice))
    body = Block()
    plan = plan_of(spec, target, threads, choice)
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, operands, plan).emit(body)
    else:
        DepthwiseRows(spec, operands, plan).emit(body)
    return finish(spec, operands, body)
